//! The way of a batch into the log: queue, validate, one vectored write for all that is ready, then wait
//! for the high watermark if the producer asked for it.

use std::collections::VecDeque;
use std::task::Poll;

use bytes::Bytes;

use super::Partition;
use super::slots::Slot;
use crate::base::Offset;
use crate::base::clock::Now;
use crate::config::Durability;
use crate::io::Files;
use crate::log::{Appended, Batch, Claim, Origin};
use crate::wire::ErrorCode;
use crate::wire::validate::{Limits, RecordError, ValidatedBatch, Validation};

/// Records written by one call at most, so that a turn's end is never far.
const BATCHES_PER_WRITE_MAX: usize = 256;

/// What a producer waits for (`acks`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    None,
    Leader,
    All,
}

impl Acks {
    /// From the wire; other values are INVALID_REQUIRED_ACKS.
    pub fn from_wire(acks: i16) -> Option<Acks> {
        match acks {
            0 => Some(Acks::None),
            1 => Some(Acks::Leader),
            -1 => Some(Acks::All),
            _ => None,
        }
    }
}

/// One batch on its way in.
pub struct QueuedAppend<T> {
    /// As the client sent it, shared with the receive buffer.
    pub records: Bytes,
    /// Version of the Produce request: some codecs need a newer one.
    pub produce_version: i16,
    pub acks: Acks,
    /// A coordinator's batch is taken as it is.
    pub origin: Origin,
    pub claim: Claim,
    pub token: T,
}

/// Why a batch was not appended.
#[derive(Debug)]
pub enum AppendFailure {
    /// The batch or a record in it is not acceptable.
    Records(RecordError),
    Code(ErrorCode),
}

/// The end of an append: what the producer is told. `spent` is the payload, to be carried home; empty if it had to wait
/// after it was written.
pub struct Committed<T> {
    pub token: T,
    pub result: Result<Appended, AppendFailure>,
    pub spent: Bytes,
}

/// What a turn did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turn {
    /// Consumers may read further than before.
    pub high_watermark_moved: bool,
    /// The queue is not empty: the budget is used up, go on in another turn.
    pub more: bool,
    /// The queue waits for a file: run [`Log::prepare_job`](crate::log::Log::prepare_job).
    pub prepare: bool,
    /// A compressed batch must begin anew: too many of the shard are half done.
    pub postponed: bool,
}

pub(super) struct Queued<T> {
    append: QueuedAppend<T>,
    /// Begun, and not finished within a turn's budget.
    validation: Option<(Box<Validation>, Option<Slot>)>,
    /// Validated, and put back until the log has a file for it.
    validated: Option<Batch>,
}

pub(super) struct Waiting<T> {
    /// It is told when what it waits for has come as far.
    end: Offset,
    committed: Committed<T>,
}

impl<F: Files, T> Partition<F, T> {
    /// Takes a batch in; the order of calls is the order in the log.
    pub fn enqueue(&mut self, append: QueuedAppend<T>) {
        self.queue.push_back(Queued { append, validation: None, validated: None });
    }

    /// Validates and writes what is queued. `budget_bytes` bounds the bytes looked at, and what was is taken
    /// off it: decompressing may be slow, and a batch that is not finished keeps its place at the head of the
    /// queue.
    pub fn turn(&mut self, budget_bytes: &mut usize, now: Now, committed: &mut Vec<Committed<T>>) -> Turn {
        let mut turn = Turn::default();
        if self.preparing {
            return turn;
        }
        let mut batches = Vec::new();
        let mut owners = Vec::new();
        let lacks_replicas = self.lacks_replicas();
        while let Some(queued) = self.queue.front_mut() {
            if batches.len() == BATCHES_PER_WRITE_MAX || *budget_bytes == 0 {
                turn.more = true;
                break;
            }
            if queued.append.acks == Acks::All && lacks_replicas {
                let failure = AppendFailure::Code(ErrorCode::NotEnoughReplicas);
                fail_front(&mut self.queue, failure, committed);
                continue;
            }
            if let Some(batch) = queued.validated.take() {
                batches.push(batch);
                owners.extend(self.queue.pop_front().map(|queued| queued.append));
                continue;
            }
            if queued.append.origin == Origin::Coordinator {
                match own_batch(&queued.append, self.config.max_message_bytes as usize) {
                    Ok(batch) => {
                        batches.push(batch);
                        owners.extend(self.queue.pop_front().map(|queued| queued.append));
                    }
                    Err(code) => fail_front(&mut self.queue, AppendFailure::Code(code), committed),
                }
                continue;
            }
            let begun = match queued.validation.take() {
                Some(begun) => Ok(begun),
                None => Validation::start(
                    queued.append.records.clone(),
                    &self.config,
                    queued.append.produce_version,
                    now.wall,
                    Limits::of(&self.config),
                )
                .map(|validation| (Box::new(validation), None)),
            };
            let (mut validation, slot) = match begun {
                Ok(begun) => begun,
                Err(error) => {
                    fail_front(&mut self.queue, AppendFailure::Records(error), committed);
                    continue;
                }
            };
            match validation.step_within(budget_bytes) {
                Poll::Pending => {
                    let slot = slot.or_else(|| self.slots.take());
                    match slot.is_some() || !validation.is_decompressing() {
                        true => queued.validation = Some((validation, slot)),
                        false => turn.postponed = true,
                    }
                    turn.more = true;
                    break;
                }
                Poll::Ready(Ok(batch)) => {
                    let claim = queued.append.claim;
                    batches.push(Batch { head: batch.head, body: batch.body, claim });
                    owners.extend(self.queue.pop_front().map(|queued| queued.append));
                }
                Poll::Ready(Err(error)) => {
                    fail_front(&mut self.queue, AppendFailure::Records(error), committed);
                }
            }
        }
        if !batches.is_empty() {
            turn.prepare = self.keep_unprepared(&mut batches, &mut owners, now, committed);
            turn.more &= !turn.prepare;
        }
        if !batches.is_empty() {
            self.write(batches, owners, now, committed);
        }
        turn.high_watermark_moved = self.advance_high_watermark(now, committed);
        self.let_go_of_payloads();
        turn
    }

    /// What was written in this turn and waits for followers, or for the disk, is in the file: it is not to be kept from
    /// what comes next for as long as these take.
    fn let_go_of_payloads(&mut self) {
        for queue in [&mut self.uncommitted, &mut self.unsynced] {
            let fresh = queue.iter_mut().rev().take_while(|waiting| !waiting.committed.spent.is_empty());
            fresh.for_each(|waiting| waiting.committed.spent = Bytes::new());
        }
    }

    /// Puts back what the log cannot take before a file was opened or made; true when there is such.
    fn keep_unprepared(
        &mut self,
        batches: &mut Vec<Batch>,
        owners: &mut Vec<QueuedAppend<T>>,
        now: Now,
        committed: &mut Vec<Committed<T>>,
    ) -> bool {
        let count = match self.log.appendable(batches, now) {
            Ok(count) => count,
            Err(code) => {
                batches.clear();
                committed.extend(owners.drain(..).map(|append| refused(append, AppendFailure::Code(code))));
                return false;
            }
        };
        for (batch, append) in batches.drain(count..).zip(owners.drain(count..)).rev() {
            self.queue.push_front(Queued { append, validation: None, validated: Some(batch) });
            self.preparing = true;
        }
        self.preparing
    }

    fn write(
        &mut self,
        mut batches: Vec<Batch>,
        owners: Vec<QueuedAppend<T>>,
        now: Now,
        committed: &mut Vec<Committed<T>>,
    ) {
        let mut results = Vec::with_capacity(batches.len());
        let mut batches = batches.as_mut_slice();
        for run in owners.chunk_by(|one, next| one.origin == next.origin) {
            let (of_run, rest) = batches.split_at_mut(run.len());
            results.extend(self.log.append(of_run, self.leader_epoch, run[0].origin, now));
            batches = rest;
        }
        for (append, result) in owners.into_iter().zip(results) {
            let queue = match (append.acks, self.durability) {
                (Acks::All, _) => Some(&mut self.uncommitted),
                (_, Durability::Fsync) => Some(&mut self.unsynced),
                (_, Durability::PageCache) => None,
            };
            let outcome = Committed {
                token: append.token,
                result: result.map_err(AppendFailure::Code),
                spent: append.records,
            };
            match (&outcome.result, queue) {
                (Ok(appended), Some(queue)) if appended.last >= self.high_watermark => {
                    let end = appended.last.plus(1);
                    queue.push_back(Waiting { end, committed: outcome });
                }
                _ => committed.push(outcome),
            }
        }
    }

    pub(super) fn release_committed(&mut self, committed: &mut Vec<Committed<T>>) {
        release(&mut self.unsynced, self.log.flushed(), committed);
        release(&mut self.uncommitted, self.high_watermark, committed);
    }

    pub(super) fn fail_uncommitted(&mut self, code: ErrorCode, committed: &mut Vec<Committed<T>>) {
        for mut waiting in self.unsynced.drain(..).chain(self.uncommitted.drain(..)) {
            waiting.committed.result = Err(AppendFailure::Code(code));
            committed.push(waiting.committed);
        }
    }

    pub(super) fn fail_queued(&mut self, code: ErrorCode, committed: &mut Vec<Committed<T>>) {
        while !self.queue.is_empty() {
            fail_front(&mut self.queue, AppendFailure::Code(code), committed);
        }
    }
}

/// A batch that a coordinator of this broker made. Markers are taken whatever the topic's `max.message.bytes`: without
/// them nothing behind their transaction could be read any more.
fn own_batch<T>(append: &QueuedAppend<T>, bytes_max: usize) -> Result<Batch, ErrorCode> {
    let batch = ValidatedBatch::from_own(&append.records).map_err(|_| ErrorCode::CorruptMessage)?;
    match batch.len() > bytes_max && !batch.head.attributes().is_control() {
        true => Err(ErrorCode::MessageTooLarge),
        false => Ok(Batch { head: batch.head, body: batch.body, claim: append.claim }),
    }
}

/// Takes from the front what waited for `reached`.
fn release<T>(queue: &mut VecDeque<Waiting<T>>, reached: Offset, committed: &mut Vec<Committed<T>>) {
    while let Some(waiting) = queue.pop_front_if(|waiting| waiting.end <= reached) {
        committed.push(waiting.committed);
    }
}

fn fail_front<T>(queue: &mut VecDeque<Queued<T>>, failure: AppendFailure, committed: &mut Vec<Committed<T>>) {
    if let Some(Queued { append, .. }) = queue.pop_front() {
        committed.push(refused(append, failure));
    }
}

fn refused<T>(append: QueuedAppend<T>, failure: AppendFailure) -> Committed<T> {
    Committed { token: append.token, result: Err(failure), spent: append.records }
}
