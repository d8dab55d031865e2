//! What each request meets: the checks of Kafka's `TransactionCoordinator`, in its order.

use std::collections::BTreeSet;

use kafka_protocol::protocol::StrBytes;

use super::super::codec::STRING_BYTES_MAX;
use super::super::interface::ReplyToken;
use super::interface::{Producer, Request, Response};
use super::machine::Coordinator;
use super::partition::{Entry, Step, Then, bytes_of, bytes_of_id};
use super::state::{NO_EPOCH, State, Transaction, TransactionVersion, is_exhausted};
use crate::base::clock::Now;
use crate::base::{PROCESS, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition};
use crate::wire::ErrorCode;

/// Appends, rounds of markers and waits for producer ids that may be under way; what would add to them is refused.
pub(super) const PENDING_MAX: usize = 16_384;

/// What a request that changes something comes to.
enum Verdict {
    /// It is done or refused; nothing is to be written.
    Answer(Response),
    Append(Transaction, Then),
    /// It needs a producer id that nobody had before.
    NeedsId,
}

impl Coordinator {
    /// The answer, or `None` when it comes as an effect. `fresh` is a producer id that the request has
    /// waited for.
    pub(super) fn serve(
        &mut self,
        request: Request,
        token: ReplyToken,
        fresh: Option<ProducerId>,
        now: Now,
    ) -> Option<Response> {
        if let Request::List { filter, after } = &request {
            return Some(self.list(filter, after.as_ref(), now.wall));
        }
        let id = request.transactional_id().cloned().unwrap_or_default();
        if let Some(error) = self.refusal(&request, &id) {
            return Some(request.failed(error));
        }
        let index = self.partition_of(&id);
        let Some(partition) = self.partitions.get(&index) else {
            return Some(request.failed(ErrorCode::NotCoordinator));
        };
        if partition.is_loading {
            return Some(request.failed(ErrorCode::CoordinatorLoadInProgress));
        }
        let entry = partition.entries.get(&id);
        let verdict = match &request {
            Request::Describe(_) => return Some(Response::Describe(super::list::describe(&id, entry))),
            Request::VerifyPartitions { producer, partitions, .. } => {
                return Some(Response::VerifyPartitions(verify(entry, *producer, partitions)));
            }
            Request::Init { timeout_ms, expected, .. } => {
                self.init(entry, *timeout_ms, *expected, token, fresh, now)
            }
            Request::AddPartitions { producer, partitions, version, .. } => {
                add(entry, *producer, partitions, *version, token, now)
            }
            Request::End { producer, commit, version, .. } if version.bumps_epoch() => {
                end(entry, *producer, *commit, *version, token, fresh, now)
            }
            Request::End { producer, commit, version, .. } => {
                end_without_bump(entry, *producer, *commit, *version, token, now)
            }
            Request::List { .. } => unreachable!("it was answered above"),
        };
        self.carry_out(index, id, request, verdict, token)
    }

    fn carry_out(
        &mut self,
        index: PartitionIndex,
        id: StrBytes,
        request: Request,
        verdict: Verdict,
        token: ReplyToken,
    ) -> Option<Response> {
        match verdict {
            Verdict::Answer(response) => Some(response),
            _ if self.pending() >= PENDING_MAX => {
                PROCESS.transactions_refused_pending.increment();
                Some(request.failed(ErrorCode::CoordinatorNotAvailable))
            }
            Verdict::Append(target, then) if !self.has_room_for(index, &id, &target, then) => {
                PROCESS.transactions_refused_room.increment();
                Some(request.failed(ErrorCode::CoordinatorNotAvailable))
            }
            Verdict::Append(target, then) => {
                self.append(index, &id, Some(target), then);
                None
            }
            Verdict::NeedsId if !self.has_room_to_wait(index, &id) => {
                PROCESS.transactions_refused_room.increment();
                Some(request.failed(ErrorCode::CoordinatorNotAvailable))
            }
            Verdict::NeedsId => {
                self.ask_for_id(index, &id, request, token);
                None
            }
        }
    }

    /// Whether a record that makes the id, or adds to its transaction, may be held beside all others until it is
    /// written. What ends a transaction always may.
    fn has_room_for(&self, index: PartitionIndex, id: &StrBytes, target: &Transaction, then: Then) -> bool {
        if !matches!(then, Then::Init { .. } | Then::Add { .. }) {
            return true;
        }
        let entry = self.partitions.get(&index).and_then(|partition| partition.entries.get(id));
        let after = bytes_of(id, target);
        match entry {
            Some(entry) if after <= entry.bytes() => true,
            Some(_) => (self.bytes() + after) as u64 <= self.settings.bytes_max,
            None => (self.bytes() + bytes_of_id(id) + after) as u64 <= self.settings.bytes_max,
        }
    }

    /// Whether an id may wait for its producer id beside all others. One that is there always may.
    fn has_room_to_wait(&self, index: PartitionIndex, id: &StrBytes) -> bool {
        let is_known =
            self.partitions.get(&index).is_some_and(|partition| partition.entries.contains_key(id));
        is_known || (self.bytes() + bytes_of_id(id)) as u64 <= self.settings.bytes_max
    }

    /// What is wrong with a request whatever state its transactional id is in.
    fn refusal(&self, request: &Request, id: &StrBytes) -> Option<ErrorCode> {
        if id.is_empty() || id.len() > STRING_BYTES_MAX {
            return Some(ErrorCode::InvalidRequest);
        }
        match request {
            Request::Init { timeout_ms, .. }
                if *timeout_ms <= 0 || *timeout_ms > self.settings.timeout_ms_max =>
            {
                Some(ErrorCode::InvalidTransactionTimeout)
            }
            _ => None,
        }
    }

    fn init(
        &self,
        entry: Option<&Entry>,
        timeout_ms: i32,
        expected: Option<Producer>,
        token: ReplyToken,
        fresh: Option<ProducerId>,
        now: Now,
    ) -> Verdict {
        let refuse = |error| Verdict::Answer(Response::Init(Err(error)));
        let created;
        let current = match entry {
            Some(Entry { current: Some(current), step: Step::Nothing, .. }) => current,
            Some(_) => return refuse(ErrorCode::ConcurrentTransactions),
            None => {
                let Some(fresh) = fresh else { return Verdict::NeedsId };
                created = Transaction::created(fresh, timeout_ms, now.wall);
                &created
            }
        };
        // A producer may go on if it is the present one, or the last one before its epochs were used up,
        // whose answer was lost.
        let is_known = |expected: &Producer| {
            current.epoch == NO_EPOCH
                || expected.id == current.producer_id
                || (expected.id == current.previous_producer_id && is_exhausted(expected.epoch))
        };
        if !expected.as_ref().is_none_or(is_known) {
            return refuse(ErrorCode::ProducerFenced);
        }
        let expected = expected.map(|expected| expected.epoch);
        match current.state {
            State::PrepareCommit | State::PrepareAbort => refuse(ErrorCode::ConcurrentTransactions),
            State::Empty | State::CompleteCommit | State::CompleteAbort
                if current.is_exhausted() && expected.is_none_or(|epoch| epoch == current.epoch) =>
            {
                match fresh {
                    Some(fresh) => {
                        let rotated = current.rotated(fresh, expected.is_some(), timeout_ms, now.wall);
                        Verdict::Append(rotated, Then::Init { token })
                    }
                    None => Verdict::NeedsId,
                }
            }
            State::Empty | State::CompleteCommit | State::CompleteAbort => {
                match current.initialized(expected, timeout_ms, now.wall) {
                    Ok(target) => Verdict::Append(target, Then::Init { token }),
                    Err(error) => refuse(error),
                }
            }
            State::Ongoing => match (fresh, self.version.bumps_epoch() && current.is_exhausted()) {
                (None, true) => Verdict::NeedsId,
                (fresh, needs_id) => {
                    let next = fresh.filter(|_| needs_id).unwrap_or(ProducerId::NONE);
                    let target = current.fenced(self.version, next, now.wall);
                    Verdict::Append(target, Then::Fence { token: Some(token) })
                }
            },
            State::Dead | State::PrepareEpochFence => {
                unreachable!("no transaction is kept in {:?}", current.state)
            }
        }
    }
}

fn add(
    entry: Option<&Entry>,
    producer: Producer,
    partitions: &BTreeSet<TopicPartition>,
    version: TransactionVersion,
    token: ReplyToken,
    now: Now,
) -> Verdict {
    let answer = |result| Verdict::Answer(Response::AddPartitions(result));
    let current = match entry {
        None => return answer(Err(ErrorCode::InvalidProducerIdMapping)),
        // First of all: the producer may be the one that the transition makes (KIP-890).
        Some(Entry { current: Some(current), step: Step::Nothing, .. }) => current,
        Some(_) => return answer(Err(ErrorCode::ConcurrentTransactions)),
    };
    if let Err(error) = check_producer(current, producer) {
        return answer(Err(error));
    }
    match current.state {
        State::PrepareCommit | State::PrepareAbort => answer(Err(ErrorCode::ConcurrentTransactions)),
        State::Ongoing if partitions.is_subset(&current.partitions) => answer(Ok(())),
        _ => Verdict::Append(current.with_partitions(partitions, version, now.wall), Then::Add { token }),
    }
}

/// What is under way is of no interest: the log checks once more when the batch is appended.
fn verify(
    entry: Option<&Entry>,
    producer: Producer,
    partitions: &BTreeSet<TopicPartition>,
) -> Result<BTreeSet<TopicPartition>, ErrorCode> {
    let current = entry.and_then(|entry| entry.current.as_ref());
    let current = current.ok_or(ErrorCode::InvalidProducerIdMapping)?;
    check_producer(current, producer)?;
    match current.state.is_prepared() {
        true => Err(ErrorCode::ConcurrentTransactions),
        false => Ok(partitions.difference(&current.partitions).cloned().collect()),
    }
}

fn check_producer(current: &Transaction, producer: Producer) -> Result<(), ErrorCode> {
    if current.producer_id != producer.id {
        return Err(ErrorCode::InvalidProducerIdMapping);
    }
    match current.epoch == producer.epoch {
        true => Ok(()),
        false => Err(ErrorCode::ProducerFenced),
    }
}

/// EndTxn of a client that keeps its epoch.
fn end_without_bump(
    entry: Option<&Entry>,
    producer: Producer,
    commit: bool,
    version: TransactionVersion,
    token: ReplyToken,
    now: Now,
) -> Verdict {
    let answer = |result| Verdict::Answer(Response::End(result));
    let Some(Entry { current: Some(current), step, .. }) = entry else {
        return answer(Err(ErrorCode::InvalidProducerIdMapping));
    };
    if let Err(error) = check_producer(current, producer) {
        return answer(Err(error));
    }
    if !matches!(step, Step::Nothing) {
        return answer(Err(ErrorCode::ConcurrentTransactions));
    }
    match (current.state, commit) {
        (State::Ongoing, _) => Verdict::Append(
            current.prepared(commit, version, ProducerId::NONE, now.wall),
            Then::End { token },
        ),
        // It was answered before, and the answer was lost.
        (State::CompleteCommit, true) | (State::CompleteAbort, false) => answer(Ok(Producer::NONE)),
        (State::PrepareCommit, true) | (State::PrepareAbort, false) => {
            answer(Err(ErrorCode::ConcurrentTransactions))
        }
        _ => answer(Err(ErrorCode::InvalidTxnState)),
    }
}

/// EndTxn that raises the epoch (KIP-890). The epoch tells a question asked again, which has the epoch before
/// the present one, from the end of the next transaction, which has the present one.
fn end(
    entry: Option<&Entry>,
    producer: Producer,
    commit: bool,
    version: TransactionVersion,
    token: ReplyToken,
    fresh: Option<ProducerId>,
    now: Now,
) -> Verdict {
    let answer = |result| Verdict::Answer(Response::End(result));
    let current = match entry {
        None => return answer(Err(ErrorCode::InvalidProducerIdMapping)),
        Some(Entry { current: Some(current), step: Step::Nothing, .. }) => current,
        Some(_) => return answer(Err(ErrorCode::ConcurrentTransactions)),
    };
    let is_of_last_id = current.previous_producer_id == producer.id
        && producer.epoch.0 == i16::MAX - 1
        && current.epoch == ProducerEpoch(0);
    let is_of_last_epoch = i32::from(current.epoch.0) == i32::from(producer.epoch.0) + 1;
    let is_retry = is_of_last_id || is_of_last_epoch;
    if current.producer_id != producer.id && !is_of_last_id {
        return answer(Err(ErrorCode::InvalidProducerIdMapping));
    }
    let is_present = producer.epoch == current.epoch;
    let is_valid = match current.state {
        State::PrepareCommit | State::PrepareAbort => is_of_last_epoch,
        State::CompleteCommit | State::CompleteAbort => is_retry || is_present,
        _ => is_present,
    };
    if !is_valid {
        return answer(Err(ErrorCode::ProducerFenced));
    }
    match (current.state, commit) {
        (State::Ongoing, _) => {}
        (State::CompleteCommit, true) | (State::CompleteAbort, false) if is_retry => {
            return answer(Ok(Producer::of(current)));
        }
        // Nothing was added to it.
        (State::CompleteCommit | State::CompleteAbort, false) if !is_retry => {}
        (State::Empty, false) => {}
        (State::PrepareCommit, true) | (State::PrepareAbort, false) => {
            return answer(Err(ErrorCode::ConcurrentTransactions));
        }
        _ => return answer(Err(ErrorCode::InvalidTxnState)),
    }
    let next = match (current.is_exhausted(), fresh) {
        (false, _) => ProducerId::NONE,
        (true, Some(fresh)) => fresh,
        (true, None) => return Verdict::NeedsId,
    };
    Verdict::Append(current.prepared(commit, version, next, now.wall), Then::End { token })
}
