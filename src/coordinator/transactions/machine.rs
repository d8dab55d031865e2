//! The transaction coordinator itself: what is under way for each transactional id, and what becomes of it.

use std::collections::{BTreeMap, HashMap};

use kafka_protocol::protocol::StrBytes;

use super::super::interface::{ReplyToken, Ticket};
use super::super::partitioner::partition_for;
use super::super::turn::append_error;
use super::deadlines::{Kind, Sweep};
use super::interface::{Effect, Producer, Request, Response};
use super::partition::{Entry, Partition, Step, Then, bytes_of_id};
use super::records::Record;
use super::state::{Transaction, TransactionVersion};
use crate::base::clock::{Monotonic, Now};
use crate::base::{Counter, PartitionIndex, ProducerId};
use crate::config::TransactionSettings;
use crate::wire::ErrorCode;

/// All transactional ids of the partitions of `__transaction_state` that this node leads.
pub struct Coordinator {
    pub(super) settings: TransactionSettings,
    partition_count: i32,
    /// The finalized feature.
    pub(super) version: TransactionVersion,
    pub(super) partitions: BTreeMap<PartitionIndex, Partition>,
    /// Where an append or a round of markers under way belongs.
    pub(super) tickets: HashMap<Ticket, Place>,
    /// Who waits for a producer id.
    waiting: HashMap<Ticket, Waiting>,
    /// What those hold whose transactional id is not there yet.
    waiting_bytes: usize,
    next_ticket: u64,
    /// What failed and must not be given up, by when it is tried again.
    pub(super) retries: BTreeMap<(Monotonic, u64), Place>,
    pub(super) next_retry: u64,
    pub(super) next_warning: Monotonic,
    timeouts: Sweep,
    expiries: Sweep,
    pub(super) effects: Vec<Effect>,
    /// Markers and records of decided ends that were put off.
    pub(super) retried: Counter,
    /// Ends that were left to a later coordinator.
    pub(super) fenced: Counter,
}

/// A transactional id under one leadership of its partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) partition: PartitionIndex,
    pub(super) epoch: i32,
    pub(super) id: StrBytes,
}

enum Waiting {
    Request { request: Request, token: ReplyToken, bytes: usize },
    TimedOut(Place),
}

impl Coordinator {
    /// `partition_count` is how many partitions `__transaction_state` has or will have.
    pub fn new(settings: TransactionSettings, partition_count: i32, now: Now) -> Self {
        let timeouts = Sweep::new(Kind::TimeOut, settings.abort_interval, now.monotonic);
        let expiries = Sweep::new(Kind::Expiry, settings.expiry_interval, now.monotonic);
        Self {
            settings,
            partition_count,
            version: TransactionVersion::V0,
            partitions: BTreeMap::new(),
            tickets: HashMap::new(),
            waiting: HashMap::new(),
            waiting_bytes: 0,
            next_ticket: 0,
            retries: BTreeMap::new(),
            next_retry: 0,
            next_warning: Monotonic::ZERO,
            timeouts,
            expiries,
            effects: Vec::new(),
            retried: Counter::default(),
            fenced: Counter::default(),
        }
    }

    /// The topic turned out to have another number of partitions than its setting says.
    pub fn set_partition_count(&mut self, partition_count: i32) {
        assert!(self.partitions.is_empty(), "transactional ids never move between partitions");
        self.partition_count = partition_count;
    }

    /// The feature `transaction.version` was finalized at another level.
    pub fn set_version(&mut self, version: TransactionVersion) {
        self.version = version;
    }

    pub fn version(&self) -> TransactionVersion {
        self.version
    }

    pub fn partition_of(&self, transactional_id: &str) -> PartitionIndex {
        partition_for(transactional_id, self.partition_count)
    }

    /// This node now leads the partition in leader epoch `epoch` and reads its log: [`Coordinator::replay`]
    /// each record, then [`Coordinator::loaded`].
    pub fn load(&mut self, partition: PartitionIndex, epoch: i32) {
        self.unload(partition);
        self.partitions.insert(partition, Partition::new(epoch, self.settings.id_expiration_ms));
    }

    /// Applies one record of the log of a partition that is being loaded. What is not understood is skipped,
    /// with a line in the log.
    pub fn replay(&mut self, partition: PartitionIndex, key: &[u8], value: Option<&[u8]>) {
        let Some(partition) = self.partitions.get_mut(&partition).filter(|it| it.is_loading) else { return };
        match Record::decode(key, value) {
            Ok(record) => partition.apply(record),
            Err(error) => {
                partition.skipped += 1;
                tracing::warn!(%error, "skipped a record of __transaction_state");
            }
        }
    }

    /// The whole log is read: the partition serves from now on, and what was decided is carried through.
    pub fn loaded(&mut self, index: PartitionIndex, now: Now) {
        let Some(partition) = self.partitions.get_mut(&index) else { return };
        partition.is_loading = false;
        let (ids, skipped) = (partition.entries.len(), partition.skipped);
        tracing::debug!(partition = %index, ids, skipped, "loaded a partition of __transaction_state");
        let prepared = |entry: &Entry| entry.current.as_ref().is_some_and(|it| it.state.is_prepared());
        let decided: Vec<StrBytes> =
            partition.entries.iter().filter(|(_, entry)| prepared(entry)).map(|(id, _)| id.clone()).collect();
        for id in decided {
            tracing::info!(transactional_id = %id, "ending a transaction whose end was decided before");
            self.send_markers(index, &id, now);
        }
    }

    /// This node leads the partition no more: all that waits is sent to look for the coordinator.
    pub fn unload(&mut self, index: PartitionIndex) {
        let Some(partition) = self.partitions.remove(&index) else { return };
        self.tickets.retain(|_, place| place.partition != index);
        // A topic that is made again begins with the epochs of the old one.
        self.retries.retain(|_, place| place.partition != index);
        self.waiting
            .retain(|_, waiting| !matches!(waiting, Waiting::TimedOut(place) if place.partition == index));
        for entry in partition.entries.into_values() {
            if let Step::Append { then, .. } = entry.step {
                self.refuse(then, ErrorCode::NotCoordinator);
            }
        }
    }

    /// Whether the partition serves or is being loaded.
    pub fn owns(&self, partition: PartitionIndex) -> bool {
        self.partitions.contains_key(&partition)
    }

    /// Serves a request. The reply comes as an [`Effect`], now or later, exactly once.
    pub fn handle(&mut self, request: Request, token: ReplyToken, now: Now) {
        self.handle_with(request, token, None, now);
    }

    fn handle_with(&mut self, request: Request, token: ReplyToken, fresh: Option<ProducerId>, now: Now) {
        if let Some(response) = self.serve(request, token, fresh, now) {
            self.effects.push(Effect::Reply { token, response });
        }
    }

    /// A producer id came that an [`Effect::NewProducerId`] asked for.
    pub fn producer_id(&mut self, ticket: Ticket, result: Result<ProducerId, ErrorCode>, now: Now) {
        match self.waiting.remove(&ticket) {
            Some(Waiting::Request { request, token, bytes }) => {
                self.waiting_bytes -= bytes;
                match result {
                    Ok(id) => self.handle_with(request, token, Some(id), now),
                    Err(error) => self.reply(token, request.failed(error)),
                }
            }
            Some(Waiting::TimedOut(place)) => {
                if let Some(entry) = self.entry_at(&place) {
                    entry.waits_for_id = false;
                }
                // Without an id: the next sweep finds it again.
                if let Ok(id) = result {
                    self.abort_timed_out(place, Some(id), now);
                }
            }
            None => {}
        }
    }

    /// An append succeeded (it is committed) or failed.
    pub fn appended(&mut self, ticket: Ticket, result: Result<(), ErrorCode>, now: Now) {
        // Unknown when the partition was unloaded in the meantime: all that waited has been answered.
        let Some(place) = self.tickets.remove(&ticket) else { return };
        let Some(partition) = self.partitions.get_mut(&place.partition) else { return };
        let Some((target, then)) = partition.end_append(&place.id) else { return };
        match result {
            Ok(()) => {
                partition.apply(Record { id: place.id.clone(), value: target });
                self.follow(place, then, now);
            }
            Err(error) => self.append_failed(place, then, append_error(error), now),
        }
    }

    /// When [`Coordinator::advance`] is to be called at the latest; never while there is nothing to look at.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        let sweep = self.partitions.values().any(|partition| !partition.entries.is_empty());
        let sweep = sweep.then(|| self.timeouts.next.min(self.expiries.next));
        self.next_retry_at().into_iter().chain(sweep).min()
    }

    /// Does what is due at `now`, or a part of it.
    pub fn advance(&mut self, now: Now) {
        self.retry_due(now);
        if self.timeouts.next <= now.monotonic {
            let (places, timeouts) = self.sweep(self.timeouts.clone(), now);
            self.timeouts = timeouts;
            for place in places {
                self.abort_timed_out(place, None, now);
            }
        }
        if self.expiries.next <= now.monotonic {
            let (places, expiries) = self.sweep(self.expiries.clone(), now);
            self.expiries = expiries;
            for place in places {
                self.append(place.partition, &place.id, None, Then::Expire);
            }
        }
    }

    /// Takes what is to be done, in order.
    pub fn drain_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(super) fn entry_at(&mut self, place: &Place) -> Option<&mut Entry> {
        let partition = self.partitions.get_mut(&place.partition)?;
        (partition.epoch == place.epoch).then_some(())?;
        partition.entries.get_mut(&place.id)
    }

    /// What waits for its record, its markers or a producer id.
    pub(super) fn pending(&self) -> usize {
        self.tickets.len() + self.waiting.len()
    }

    /// What all ids, their transactions and what waits for them hold, about.
    pub(super) fn bytes(&self) -> usize {
        self.partitions.values().map(Partition::bytes).sum::<usize>() + self.waiting_bytes
    }

    /// Asks for a producer id; the request is begun anew when it is there.
    pub(super) fn ask_for_id(
        &mut self,
        index: PartitionIndex,
        id: &StrBytes,
        mut request: Request,
        token: ReplyToken,
    ) {
        let known = self.partitions.get(&index).and_then(|it| it.entries.get_key_value(id));
        let bytes = match known {
            Some((key, _)) => {
                request.set_transactional_id(key.clone());
                0
            }
            None => {
                request.set_transactional_id(StrBytes::from_string(id.to_string()));
                bytes_of_id(id)
            }
        };
        self.waiting_bytes += bytes;
        self.wait_for_id(Waiting::Request { request, token, bytes });
    }

    fn wait_for_id(&mut self, waiting: Waiting) {
        let ticket = self.ticket();
        self.waiting.insert(ticket, waiting);
        self.effects.push(Effect::NewProducerId { ticket });
    }

    fn abort_timed_out(&mut self, place: Place, fresh: Option<ProducerId>, now: Now) {
        let version = self.version;
        let Some(Entry { current: Some(current), step: Step::Nothing, .. }) = self.entry_at(&place) else {
            return;
        };
        if !current.is_timed_out(now.wall) {
            return;
        }
        let next = match fresh {
            Some(fresh) => fresh,
            None if version.bumps_epoch() && current.is_exhausted() => {
                if let Some(entry) = self.entry_at(&place) {
                    entry.waits_for_id = true;
                }
                return self.wait_for_id(Waiting::TimedOut(place));
            }
            None => ProducerId::NONE,
        };
        let target = current.fenced(version, next, now.wall);
        tracing::info!(transactional_id = %place.id, "aborting a transaction that timed out");
        self.append(place.partition, &place.id, Some(target), Then::Fence { token: None });
    }

    /// Begins to append the record of a step.
    pub(super) fn append(
        &mut self,
        index: PartitionIndex,
        id: &StrBytes,
        target: Option<Transaction>,
        then: Then,
    ) {
        let record = Record { id: id.clone(), value: target };
        let encoded = record.encode(self.version);
        let ticket = self.ticket();
        let partition = self.partitions.get_mut(&index).expect("only a partition that serves is written");
        partition.begin_append(id, record.value, then);
        self.tickets.insert(ticket, Place { partition: index, epoch: partition.epoch, id: id.clone() });
        self.effects.push(Effect::Append { partition: index, record: encoded, ticket });
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        ticket
    }

    /// A record was appended and applied.
    fn follow(&mut self, place: Place, then: Then, now: Now) {
        let current = self.entry_at(&place).and_then(|entry| entry.current.as_ref());
        // Who the producer is now, and will be when the transaction is complete.
        let current = current.map(|current| {
            (
                Producer::of(current),
                current.state.is_prepared().then(|| Producer::of(&current.completed(now.wall))),
            )
        });
        match (then, current) {
            (Then::Init { token }, Some((producer, _))) => self.reply(token, Response::Init(Ok(producer))),
            (Then::Add { token }, _) => self.reply(token, Response::AddPartitions(Ok(()))),
            (Then::End { token }, Some((producer, completed))) => {
                self.reply(token, Response::End(Ok(completed.unwrap_or(producer))));
                self.send_markers(place.partition, &place.id, now);
            }
            (Then::Fence { token }, _) => {
                if let Some(token) = token {
                    // It asks again and finds its predecessor's transaction ended.
                    self.reply(token, Response::Init(Err(ErrorCode::ConcurrentTransactions)));
                }
                self.send_markers(place.partition, &place.id, now);
            }
            (Then::Complete | Then::Expire, _) => {}
            (Then::Init { .. } | Then::End { .. }, None) => {
                unreachable!("only an expiry takes an id away")
            }
        }
    }

    fn append_failed(&mut self, place: Place, then: Then, error: ErrorCode, now: Now) {
        if then != Then::Complete {
            tracing::warn!(%error, transactional_id = %place.id, "an append to __transaction_state failed");
        }
        self.refuse(then, error);
        let Some(partition) = self.partitions.get_mut(&place.partition) else { return };
        match partition.entries.get_mut(&place.id) {
            Some(entry) if then == Then::Complete => {
                entry.step = Step::Completion;
                self.try_again(place, None, error, now);
            }
            Some(Entry { current: None, .. }) => partition.remove(&place.id),
            _ => {}
        }
    }

    fn refuse(&mut self, then: Then, error: ErrorCode) {
        match then {
            Then::Init { token } | Then::Fence { token: Some(token) } => {
                self.reply(token, Response::Init(Err(error)));
            }
            Then::Add { token } => self.reply(token, Response::AddPartitions(Err(error))),
            Then::End { token } => self.reply(token, Response::End(Err(error))),
            Then::Fence { token: None } | Then::Complete | Then::Expire => {}
        }
    }

    fn reply(&mut self, token: ReplyToken, response: Response) {
        self.effects.push(Effect::Reply { token, response });
    }
}
