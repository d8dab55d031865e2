//! The owner's half of a produce request: queue each batch at its partition, write at the end of the turn,
//! answer when the producer's acks are met.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::Shard;
use super::mesh::ReplyTo;
use super::messages::{AppendAnswer, AppendReply, AppendRequest, Reply};
use super::replica::Replica;
use super::timers::Timer;
use crate::base::clock::{self, Monotonic};
use crate::config::Durability;
use crate::partition::{Acks, AppendFailure, Committed, QueuedAppend, Turn};
use crate::timer::TimerKey;
use crate::wire::ErrorCode;
use crate::wire::validate::BatchBound;

/// Bytes that one turn looks at, decompressed ones counted as such, before the shard's other tasks get
/// theirs. A plain batch is looked at twice: for its checksum, and for its records.
const TURN_BYTES_MAX: usize = 4 << 20;

/// Names the request, and the part of it, that a batch belongs to.
pub(super) struct AppendToken {
    request: Rc<AppendInFlight>,
    part: usize,
}

/// One produce request at one owner.
pub(super) struct AppendInFlight {
    reply_to: Cell<Option<ReplyTo>>,
    parts: RefCell<Vec<Option<Result<AppendAnswer, AppendFailure>>>>,
    spent: RefCell<Vec<Bytes>>,
    left: Cell<usize>,
    /// `None` where nothing is waited for but the append itself.
    timeout: Option<Duration>,
    timer: Cell<Option<TimerKey>>,
    /// Written, and not answered in its turn: since when it waits.
    waits_since: Cell<Option<Monotonic>>,
}

impl Shard {
    pub(super) fn append(self: &Rc<Self>, reply_to: ReplyTo, request: AppendRequest) {
        let count = request.parts.len();
        let waits = match request.acks {
            Acks::None => false,
            Acks::Leader => self.settings.config.durability == Durability::Fsync,
            Acks::All => true,
        };
        let in_flight = Rc::new(AppendInFlight {
            reply_to: Cell::new(Some(reply_to)),
            parts: RefCell::new((0..count).map(|_| None).collect()),
            spent: RefCell::new(Vec::with_capacity(count)),
            left: Cell::new(count),
            timeout: waits.then_some(request.timeout),
            timer: Cell::new(None),
            waits_since: Cell::new(None),
        });
        for (index, part) in request.parts.into_iter().enumerate() {
            let token = AppendToken { request: in_flight.clone(), part: index };
            let Some(replica) = self.replica(part.key) else {
                let failure = AppendFailure::Code(ErrorCode::UnknownTopicOrPartition);
                self.finish_append(Committed { token, result: Err(failure), spent: part.records });
                continue;
            };
            let mut queued = Some(QueuedAppend {
                records: part.records,
                produce_version: request.produce_version,
                acks: request.acks,
                origin: request.origin,
                claim: part.claim,
                token,
            });
            let taken = if self.refuses_for_space(&replica) {
                Err(ErrorCode::KafkaStorageError)
            } else {
                let taken = replica.with(|partition| {
                    match (partition.check_leader_epoch(part.epoch), queued.take()) {
                        (Ok(()), Some(append)) => {
                            partition.enqueue(append);
                            Ok(())
                        }
                        (_, append) => {
                            queued = append;
                            Err(ErrorCode::NotLeaderOrFollower)
                        }
                    }
                });
                taken.and_then(|taken| taken)
            };
            match (taken, queued) {
                (Err(code), Some(append)) => self.finish_append(Committed {
                    token: append.token,
                    result: Err(AppendFailure::Code(code)),
                    spent: append.records,
                }),
                _ => self.mark_dirty(&replica),
            }
        }
        if in_flight.left.get() > 0 {
            self.fresh_appends.borrow_mut().push(in_flight);
        } else if count == 0 {
            self.answer_append(&in_flight);
        }
    }

    /// Writes what this turn queued, one write per partition, and answers what is done. Called by the pump
    /// after a batch of messages and by a connection after the frames of one receive.
    pub fn end_turn(self: &Rc<Self>) {
        let mut dirty = std::mem::take(&mut *self.dirty.borrow_mut()).into_iter();
        give_turns(&mut dirty, TURN_BYTES_MAX, |replica, budget_bytes| {
            replica.is_dirty.set(false);
            self.turn(&replica, budget_bytes);
        });
        self.wake_followers();
        if dirty.len() > 0 {
            // They go first in the next turn.
            self.dirty.borrow_mut().splice(0..0, dirty);
            self.continue_turns.notify();
        }
        let fresh = std::mem::take(&mut *self.fresh_appends.borrow_mut());
        for in_flight in fresh {
            if in_flight.left.get() > 0
                && let Some(timeout) = in_flight.timeout
            {
                let now = clock::monotonic();
                in_flight.waits_since.set(Some(now));
                self.appends_waiting.set(self.appends_waiting.get() + 1);
                let deadline = now.plus(timeout);
                let key = self.timers.insert(deadline, Timer::AppendTimeout(Rc::downgrade(&in_flight)));
                in_flight.timer.set(Some(key));
            }
        }
    }

    fn turn(self: &Rc<Self>, replica: &Rc<Replica>, budget_bytes: &mut usize) {
        if replica.held.get() {
            // Whoever holds it has it resumed.
            return;
        }
        let mut committed = Vec::new();
        let turned = replica.with(|partition| {
            let before = partition.log().log_end();
            let size_before = partition.log().size();
            let turn = partition.turn(budget_bytes, clock::now(), &mut committed);
            let records = partition.log().log_end().0 - before.0;
            let bytes = partition.log().size().saturating_sub(size_before);
            if records > 0 && partition.has_followers() {
                self.grown.borrow_mut().push(replica.key);
            }
            (turn, records, bytes, partition.log().is_offline())
        });
        let Ok((turn, records, bytes, offline)) = turned else { return };
        let appended = records > 0;
        self.counters.appended_batches.add(committed.len() as u64);
        self.counters.appended_records.add(u64::try_from(records).unwrap_or(0));
        self.counters.appended_bytes.add(bytes);
        self.finish_appends(committed);
        if appended {
            self.note_unflushed(replica, bytes);
            self.look_for_jobs(replica);
        }
        if offline {
            self.report_failure(replica, &"an append failed");
        }
        self.look_for_full_disk(replica);
        self.after_turn(replica, turn);
    }

    fn after_turn(self: &Rc<Self>, replica: &Rc<Replica>, turn: Turn) {
        if turn.high_watermark_moved {
            self.wake_fetches(replica.key);
        }
        if turn.prepare {
            self.prepare(replica);
        }
        if turn.postponed {
            self.counters.decompressions_postponed.increment();
        }
        if turn.more {
            self.resume(replica);
        }
    }

    /// The replica's queue gets another turn.
    pub(super) fn resume(self: &Rc<Self>, replica: &Rc<Replica>) {
        self.mark_dirty(replica);
        self.continue_turns.notify();
    }

    pub(super) fn mark_dirty(&self, replica: &Rc<Replica>) {
        if !replica.is_dirty.replace(true) {
            self.dirty.borrow_mut().push(replica.clone());
        }
    }

    pub(super) fn finish_appends(self: &Rc<Self>, committed: Vec<Committed<AppendToken>>) {
        for done in committed {
            self.finish_append(done);
        }
    }

    fn finish_append(self: &Rc<Self>, done: Committed<AppendToken>) {
        if let Err(AppendFailure::Records(error)) = &done.result {
            match error.bound {
                Some(BatchBound::Decompression) => {
                    self.counters.batches_too_large_decompressed.increment();
                }
                Some(BatchBound::Records) => self.counters.batches_with_too_many_records.increment(),
                None => {}
            }
        }
        let in_flight = done.token.request;
        let answer = done.result.map(|appended| AppendAnswer {
            base_offset: appended.first,
            log_append_time: appended.log_append_time,
            log_start: appended.log_start,
        });
        in_flight.spent.borrow_mut().push(done.spent);
        if let Some(part) = in_flight.parts.borrow_mut().get_mut(done.token.part)
            && part.is_none()
        {
            *part = Some(answer);
            in_flight.left.set(in_flight.left.get() - 1);
        }
        if in_flight.left.get() == 0 {
            self.answer_append(&in_flight);
        }
    }

    fn answer_append(self: &Rc<Self>, in_flight: &AppendInFlight) {
        if let Some(key) = in_flight.timer.take() {
            self.timers.cancel(key);
        }
        let Some(reply_to) = in_flight.reply_to.take() else { return };
        let parts = std::mem::take(&mut *in_flight.parts.borrow_mut());
        let parts = parts
            .into_iter()
            .map(|part| part.unwrap_or(Err(AppendFailure::Code(ErrorCode::RequestTimedOut))))
            .collect();
        let spent = std::mem::take(&mut *in_flight.spent.borrow_mut());
        let waited = match in_flight.waits_since.get() {
            Some(since) => {
                self.appends_waiting.set(self.appends_waiting.get() - 1);
                clock::monotonic().since(since)
            }
            None => Duration::ZERO,
        };
        self.mesh.push_reply(reply_to, Reply::Append(AppendReply { parts, spent, waited }));
    }

    /// Answers a request whose time is up: what is not committed is REQUEST_TIMED_OUT, though it may still
    /// be appended, as with Kafka.
    pub(super) fn append_timed_out(self: &Rc<Self>, in_flight: &AppendInFlight) {
        in_flight.timer.set(None);
        if in_flight.left.get() > 0 {
            self.counters.append_timeouts.increment();
            self.answer_append(in_flight);
        }
    }
}

/// Gives turns from the front until they have used `budget_bytes` up together; leaves the rest.
fn give_turns<T>(
    waiting: &mut impl Iterator<Item = T>,
    mut budget_bytes: usize,
    mut turn: impl FnMut(T, &mut usize),
) {
    while budget_bytes > 0
        && let Some(next) = waiting.next()
    {
        turn(next, &mut budget_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_share_the_budget_of_a_turn_and_the_rest_of_them_wait_for_the_next() {
        let (mut waiting, mut served) = (0..5, Vec::new());
        give_turns(&mut waiting, 10, |partition, budget_bytes| {
            served.push(partition);
            // The last one may go beyond it.
            *budget_bytes = budget_bytes.saturating_sub(4);
        });
        assert_eq!((served, waiting), (vec![0, 1, 2], 3..5));
    }
}
