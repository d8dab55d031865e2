//! The transaction coordinator itself: what is under way for each transactional id, and what becomes of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use kafka_protocol::protocol::StrBytes;

use super::super::interface::{ReplyToken, Ticket};
use super::super::partitioner::partition_for;
use super::super::turn::append_error;
use super::interface::{Effect, Marker, Producer, Request, Response};
use super::records::Record;
use super::state::{State, Transaction, TransactionVersion};
use crate::base::clock::{Monotonic, Now, Timestamp};
use crate::base::{Counter, PartitionIndex, ProducerId, TopicPartition};
use crate::config::TransactionSettings;
use crate::wire::ErrorCode;

/// How long to wait before what failed and must not be given up is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

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
    next_ticket: u64,
    /// All wait equally long, so they come due in order.
    retries: VecDeque<(Monotonic, Place)>,
    next_abort: Monotonic,
    next_expiry: Monotonic,
    pub(super) effects: Vec<Effect>,
    /// Requests refused because too much was under way.
    pub refused_pending: Counter,
}

/// A transactional id under one leadership of its partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    partition: PartitionIndex,
    epoch: i32,
    id: StrBytes,
}

enum Waiting {
    Request(Request, ReplyToken),
    TimedOut(Place),
}

pub(super) struct Partition {
    /// The leader epoch: markers carry it, so that those of an earlier coordinator are told apart.
    pub(super) epoch: i32,
    /// Its log is being read; requests are put off.
    pub(super) is_loading: bool,
    pub(super) entries: BTreeMap<StrBytes, Entry>,
    /// Records that were not understood while the log was read.
    skipped: u64,
}

pub(super) struct Entry {
    /// As the last record has it; `None` before the first one is written.
    pub(super) current: Option<Transaction>,
    pub(super) step: Step,
}

/// What is under way for a transactional id; at most one thing at a time.
pub(super) enum Step {
    Nothing,
    /// A record is being appended; `None` is a tombstone.
    Append {
        target: Option<Transaction>,
        then: Then,
    },
    /// These partitions have not told that they have their marker.
    Markers {
        missing: BTreeSet<TopicPartition>,
    },
    /// Every partition has its marker; the record that says so could not be appended.
    Completion,
}

/// What follows when a record was appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    Init {
        token: ReplyToken,
    },
    Add {
        token: ReplyToken,
    },
    End {
        token: ReplyToken,
    },
    /// A producer was fenced in the middle of its transaction, by its successor or by its time-out.
    Fence {
        token: Option<ReplyToken>,
    },
    Complete,
    Expire,
}

impl Coordinator {
    /// `partition_count` is how many partitions `__transaction_state` has or will have.
    pub fn new(settings: TransactionSettings, partition_count: i32, now: Now) -> Self {
        let next_abort = now.monotonic.plus(settings.abort_interval);
        let next_expiry = now.monotonic.plus(settings.expiry_interval);
        Self {
            settings,
            partition_count,
            version: TransactionVersion::V0,
            partitions: BTreeMap::new(),
            tickets: HashMap::new(),
            waiting: HashMap::new(),
            next_ticket: 0,
            retries: VecDeque::new(),
            next_abort,
            next_expiry,
            effects: Vec::new(),
            refused_pending: Counter::default(),
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
        let loading = Partition { epoch, is_loading: true, entries: BTreeMap::new(), skipped: 0 };
        self.partitions.insert(partition, loading);
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
        self.retries.retain(|(_, place)| place.partition != index);
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
        match (self.waiting.remove(&ticket), result) {
            (Some(Waiting::Request(request, token)), Ok(id)) => {
                self.handle_with(request, token, Some(id), now);
            }
            (Some(Waiting::Request(request, token)), Err(error)) => {
                let response = request.failed(error);
                self.effects.push(Effect::Reply { token, response });
            }
            (Some(Waiting::TimedOut(place)), Ok(id)) => self.abort_timed_out(place, Some(id), now),
            // The next sweep finds it again.
            (Some(Waiting::TimedOut(_)), Err(_)) | (None, _) => {}
        }
    }

    /// An append succeeded (it is committed) or failed.
    pub fn appended(&mut self, ticket: Ticket, result: Result<(), ErrorCode>, now: Now) {
        // Unknown when the partition was unloaded in the meantime: all that waited has been answered.
        let Some(place) = self.tickets.remove(&ticket) else { return };
        let Some(partition) = self.partitions.get_mut(&place.partition) else { return };
        let Some(entry) = partition.entries.get_mut(&place.id) else { return };
        let Step::Append { target, then } = std::mem::replace(&mut entry.step, Step::Nothing) else {
            unreachable!("a ticket belongs to the one append of its transactional id")
        };
        match result {
            Ok(()) => {
                partition.apply(Record { id: place.id.clone(), value: target });
                self.follow(place, then, now);
            }
            Err(error) => self.append_failed(place, then, append_error(error), now),
        }
    }

    /// The end of a round of markers. What failed is sent again.
    pub fn markers_written(
        &mut self,
        ticket: Ticket,
        results: Vec<(TopicPartition, Result<(), ErrorCode>)>,
        now: Now,
    ) {
        let Some(place) = self.tickets.remove(&ticket) else { return };
        let Some(entry) = self.entry_at(&place) else { return };
        let Step::Markers { missing } = &mut entry.step else {
            unreachable!("a ticket belongs to the one round of markers of its transactional id")
        };
        for (partition, result) in results {
            match result {
                Ok(()) => {
                    missing.remove(&partition);
                }
                // Whoever has the higher epoch has ended it there.
                Err(ErrorCode::InvalidProducerEpoch) => {
                    tracing::warn!(%partition, transactional_id = %place.id, "a newer producer overtook a marker");
                    missing.remove(&partition);
                }
                Err(error) => {
                    tracing::debug!(%partition, %error, transactional_id = %place.id, "a marker is to be sent again");
                }
            }
        }
        match missing.is_empty() {
            true => self.complete(place.partition, &place.id, now),
            false => self.retries.push_back((now.monotonic.plus(RETRY_AFTER), place)),
        }
    }

    /// When [`Coordinator::advance`] is to be called at the latest; never while there is nothing to look at.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        let retry = self.retries.front().map(|(deadline, _)| *deadline);
        let sweep = self.partitions.values().any(|partition| !partition.entries.is_empty());
        let sweep = sweep.then(|| self.next_abort.min(self.next_expiry));
        retry.into_iter().chain(sweep).min()
    }

    /// Does what is due at `now`.
    pub fn advance(&mut self, now: Now) {
        while let Some((_, place)) = self.retries.pop_front_if(|(deadline, _)| *deadline <= now.monotonic) {
            match self.entry_at(&place).map(|entry| &entry.step) {
                Some(Step::Markers { .. }) => self.send_markers(place.partition, &place.id, now),
                Some(Step::Completion) => self.complete(place.partition, &place.id, now),
                _ => {}
            }
        }
        if self.next_abort <= now.monotonic {
            self.next_abort = now.monotonic.plus(self.settings.abort_interval);
            for place in self.idle_where(|transaction, now| transaction.is_timed_out(now), now.wall) {
                self.abort_timed_out(place, None, now);
            }
        }
        if self.next_expiry <= now.monotonic {
            self.next_expiry = now.monotonic.plus(self.settings.expiry_interval);
            let expiration_ms = self.settings.id_expiration_ms;
            for place in self.idle_where(|it, now| it.is_expired(now, expiration_ms), now.wall) {
                self.append(place.partition, &place.id, None, Then::Expire);
            }
        }
    }

    /// Takes what is to be done, in order.
    pub fn drain_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The ids whose state is as asked and for which nothing is under way.
    fn idle_where(&self, asked: impl Fn(&Transaction, Timestamp) -> bool, now: Timestamp) -> Vec<Place> {
        let mut places = Vec::new();
        for (index, partition) in self.partitions.iter().filter(|(_, partition)| !partition.is_loading) {
            for (id, entry) in &partition.entries {
                let is_idle = matches!(entry.step, Step::Nothing);
                if is_idle && entry.current.as_ref().is_some_and(|transaction| asked(transaction, now)) {
                    places.push(Place { partition: *index, epoch: partition.epoch, id: id.clone() });
                }
            }
        }
        places
    }

    fn entry_at(&mut self, place: &Place) -> Option<&mut Entry> {
        let partition = self.partitions.get_mut(&place.partition)?;
        (partition.epoch == place.epoch).then_some(())?;
        partition.entries.get_mut(&place.id)
    }

    /// Asks for a producer id; the request is begun anew when it is there.
    pub(super) fn ask_for_id(&mut self, request: Request, token: ReplyToken) {
        self.wait_for_id(Waiting::Request(request, token));
    }

    fn wait_for_id(&mut self, waiting: Waiting) {
        let ticket = self.ticket();
        self.waiting.insert(ticket, waiting);
        self.effects.push(Effect::NewProducerId { ticket });
    }

    fn abort_timed_out(&mut self, place: Place, fresh: Option<ProducerId>, now: Now) {
        let version = self.version;
        let Some(Entry { current: Some(current), step: Step::Nothing }) = self.entry_at(&place) else {
            return;
        };
        if !current.is_timed_out(now.wall) {
            return;
        }
        let next = match fresh {
            Some(fresh) => fresh,
            None if version.bumps_epoch() && current.is_exhausted() => {
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
        let entry = partition.entries.entry(id.clone());
        let entry = entry.or_insert_with(|| Entry { current: None, step: Step::Nothing });
        entry.step = Step::Append { target: record.value, then };
        self.tickets.insert(ticket, Place { partition: index, epoch: partition.epoch, id: id.clone() });
        self.effects.push(Effect::Append { partition: index, record: encoded, ticket });
    }

    fn ticket(&mut self) -> Ticket {
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
        tracing::warn!(%error, transactional_id = %place.id, "an append to __transaction_state failed");
        self.refuse(then, error);
        let Some(partition) = self.partitions.get_mut(&place.partition) else { return };
        match partition.entries.get_mut(&place.id) {
            Some(entry) if then == Then::Complete => {
                entry.step = Step::Completion;
                self.retries.push_back((now.monotonic.plus(RETRY_AFTER), place));
            }
            Some(Entry { current: None, .. }) => {
                partition.entries.remove(&place.id);
            }
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

    /// Tells the partitions the end of a transaction that is decided.
    fn send_markers(&mut self, index: PartitionIndex, id: &StrBytes, now: Now) {
        let ticket = self.ticket();
        let Some(partition) = self.partitions.get_mut(&index) else { return };
        let Some(Entry { current: Some(current), step }) = partition.entries.get_mut(id) else { return };
        let missing = match std::mem::replace(step, Step::Nothing) {
            Step::Markers { missing } => missing,
            _ => current.partitions.clone(),
        };
        if missing.is_empty() {
            return self.complete(index, id, now);
        }
        *step = Step::Markers { missing: missing.clone() };
        let marker = Marker {
            producer: Producer::of(current),
            commit: current.state == State::PrepareCommit,
            coordinator_epoch: partition.epoch,
            version: current.client_version,
        };
        self.tickets.insert(ticket, Place { partition: index, epoch: partition.epoch, id: id.clone() });
        self.effects.push(Effect::WriteMarkers { marker, partitions: missing, ticket });
    }

    /// Every partition has its marker.
    fn complete(&mut self, index: PartitionIndex, id: &StrBytes, now: Now) {
        let entry = self.partitions.get(&index).and_then(|partition| partition.entries.get(id));
        let Some(current) = entry.and_then(|entry| entry.current.as_ref()) else { return };
        let target = current.completed(now.wall);
        self.append(index, id, Some(target), Then::Complete);
    }
}

impl Partition {
    /// Applies a record, loaded or just appended.
    fn apply(&mut self, record: Record) {
        match record.value {
            Some(value) => {
                let entry = self.entries.entry(record.id);
                let entry = entry.or_insert_with(|| Entry { current: None, step: Step::Nothing });
                entry.current = Some(value);
            }
            None => {
                self.entries.remove(&record.id);
            }
        }
    }
}
