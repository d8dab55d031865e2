//! The share coordinator itself. Of one key one change is being written at a time; what comes meanwhile waits for it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::super::interface::{KeyValue, ReplyToken, Ticket};
use super::super::partitioner::partition_for;
use super::super::turn::append_error;
use super::records::{Record, RecordError, Snapshot, Update};
use crate::base::clock::{Monotonic, Now, Timestamp};
use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use crate::config::ShareStateSettings;
use crate::share::{DeliveryState, Persisted, Runs, ShareKey, StateBatch};
use crate::wire::ErrorCode;

/// Requests that wait for the writes of their keys, per partition; further ones are refused.
const WAITING_MAX: usize = 16_384;

/// A request for one share partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Makes the state, or begins it anew at `start` (-1: where `share.auto.offset.reset` says).
    Initialize {
        key: ShareKey,
        state_epoch: i32,
        start: Offset,
    },
    /// A partition's leader that begins to share it says its epoch: from then on none before it may write. Who only wants
    /// to know says [`LeaderEpoch::NONE`].
    Read {
        key: ShareKey,
        leader_epoch: LeaderEpoch,
    },
    Write(Box<StateWrite>),
    Delete {
        key: ShareKey,
    },
}

/// What a share partition has to keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateWrite {
    pub key: ShareKey,
    pub state_epoch: i32,
    pub leader_epoch: LeaderEpoch,
    pub start: Offset,
    pub delivery_complete: i32,
    pub batches: Vec<StateBatch>,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    Read(Result<Persisted, ErrorCode>),
    /// To all that change something.
    Changed(Result<(), ErrorCode>),
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    Reply {
        token: ReplyToken,
        response: Response,
    },
    /// Append and call [`Coordinator::appended`] with `ticket`.
    Append {
        partition: PartitionIndex,
        record: KeyValue,
        ticket: Ticket,
    },
    /// Every key has a snapshot at or behind this offset: what lies below is of no use any more.
    Prune {
        partition: PartitionIndex,
        below: Offset,
    },
}

impl Request {
    pub fn key(&self) -> &ShareKey {
        match self {
            Request::Initialize { key, .. } | Request::Read { key, .. } | Request::Delete { key } => key,
            Request::Write(write) => &write.key,
        }
    }

    fn failed(&self, error: ErrorCode) -> Response {
        match self {
            Request::Read { .. } => Response::Read(Err(error)),
            _ => Response::Changed(Err(error)),
        }
    }
}

impl Response {
    fn failed(&self, error: ErrorCode) -> Response {
        match self {
            Response::Read(_) => Response::Read(Err(error)),
            Response::Changed(_) => Response::Changed(Err(error)),
        }
    }
}

/// All share partitions of the partitions of `__share_group_state` that this node leads.
pub struct Coordinator {
    settings: ShareStateSettings,
    partition_count: i32,
    partitions: BTreeMap<PartitionIndex, Partition>,
    /// Whose append is under way.
    tickets: HashMap<Ticket, (PartitionIndex, ShareKey)>,
    next_ticket: u64,
    next_prune: Monotonic,
    effects: Vec<Effect>,
}

#[derive(Default)]
struct Partition {
    /// Its log is being read; requests are put off.
    is_loading: bool,
    kept: HashMap<ShareKey, Kept>,
    writing: HashMap<ShareKey, Writing>,
    /// All that wait in `writing`.
    waiting: usize,
    /// Records since the last look for snapshots that are too old.
    has_grown: bool,
    pruned_below: Offset,
    /// Records that were not understood while the log was read.
    skipped: u64,
}

/// A record on its way, who is answered what when it is written, and who comes after it.
struct Writing {
    record: Record,
    reply: Option<(ReplyToken, Response)>,
    waiting: VecDeque<(Request, Option<ReplyToken>)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Kept {
    snapshot_epoch: i32,
    state_epoch: i32,
    leader_epoch: LeaderEpoch,
    start: Offset,
    delivery_complete: i32,
    created_at: Timestamp,
    states: Runs<(DeliveryState, u16)>,
    /// Where the last snapshot lies in the log: there or a little before.
    snapshot_at: Offset,
    snapshot_written_at: Timestamp,
    updates: i32,
}

impl Coordinator {
    /// `partition_count` is how many partitions `__share_group_state` has or will have.
    pub fn new(settings: ShareStateSettings, partition_count: i32, now: Now) -> Self {
        let next_prune = now.monotonic.plus(settings.prune_interval);
        Self {
            settings,
            partition_count,
            partitions: BTreeMap::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
            next_prune,
            effects: Vec::new(),
        }
    }

    /// The topic turned out to have another number of partitions than its setting says.
    pub fn set_partition_count(&mut self, partition_count: i32) {
        assert!(self.partitions.is_empty(), "states never move between partitions");
        self.partition_count = partition_count;
    }

    pub fn partition_of(&self, key: &ShareKey) -> PartitionIndex {
        partition_for(&key.coordinator_key(), self.partition_count)
    }

    /// This node now leads the partition and reads its log: [`Coordinator::replay`] each record, then
    /// [`Coordinator::loaded`]. Until then its keys are answered COORDINATOR_LOAD_IN_PROGRESS.
    pub fn load(&mut self, partition: PartitionIndex) {
        self.unload(partition);
        self.partitions.insert(partition, Partition { is_loading: true, ..Partition::default() });
    }

    /// Applies one record of the log of a partition that is being loaded. What is not understood is skipped, with a
    /// line in the log.
    pub fn replay(&mut self, partition: PartitionIndex, at: Offset, key: &[u8], value: Option<&[u8]>) {
        let Some(partition) = self.partitions.get_mut(&partition).filter(|it| it.is_loading) else { return };
        match Record::decode(key, value) {
            Ok(record) => partition.apply(record, at),
            Err(error) => {
                partition.skipped += 1;
                match error {
                    RecordError::UnknownKey(_) => {
                        tracing::debug!(%error, "skipped a record of __share_group_state")
                    }
                    _ => tracing::warn!(%error, "skipped a record of __share_group_state"),
                }
            }
        }
    }

    /// The whole log is read: the partition serves from now on.
    pub fn loaded(&mut self, index: PartitionIndex) {
        let Some(partition) = self.partitions.get_mut(&index) else { return };
        partition.is_loading = false;
        let (keys, skipped) = (partition.kept.len(), partition.skipped);
        tracing::debug!(partition = %index, keys, skipped, "loaded a partition of __share_group_state");
    }

    /// This node leads the partition no more: all that waits is sent to look for the coordinator.
    pub fn unload(&mut self, index: PartitionIndex) {
        let Some(partition) = self.partitions.remove(&index) else { return };
        self.tickets.retain(|_, (partition, _)| *partition != index);
        for writing in partition.writing.into_values() {
            if let Some((token, response)) = writing.reply {
                self.answer(Some(token), response.failed(ErrorCode::NotCoordinator));
            }
            for (request, token) in writing.waiting {
                self.answer(token, request.failed(ErrorCode::NotCoordinator));
            }
        }
    }

    /// Serves a request. The reply comes as an [`Effect`], now or later, exactly once.
    pub fn handle(&mut self, request: Request, token: ReplyToken, now: Now) {
        let index = self.partition_of(request.key());
        let error = match self.partitions.get(&index) {
            None => ErrorCode::NotCoordinator,
            Some(partition) if partition.is_loading => ErrorCode::CoordinatorLoadInProgress,
            Some(partition) if partition.waiting >= WAITING_MAX => ErrorCode::CoordinatorNotAvailable,
            Some(_) => return self.serve(index, request, Some(token), now),
        };
        self.answer(Some(token), request.failed(error));
    }

    /// Deletes what is kept of topics that were deleted.
    pub fn topics_deleted(&mut self, is_deleted: impl Fn(TopicId) -> bool, now: Now) {
        let of_partition = |(index, partition): (&PartitionIndex, &Partition)| {
            let keys = partition.kept.keys().filter(|key| !partition.is_loading && is_deleted(key.topic));
            keys.map(|key| (*index, key.clone())).collect::<Vec<_>>()
        };
        let gone: Vec<_> = self.partitions.iter().flat_map(of_partition).collect();
        for (index, key) in gone {
            self.serve(index, Request::Delete { key }, None, now);
        }
    }

    /// An append succeeded, in a batch that begins at this offset, or failed.
    pub fn appended(&mut self, ticket: Ticket, result: Result<Offset, ErrorCode>, now: Now) {
        // Unknown when the partition was unloaded in the meantime: all that waited has been answered.
        let Some((index, key)) = self.tickets.remove(&ticket) else { return };
        let Some(partition) = self.partitions.get_mut(&index) else { return };
        let Some(Writing { record, reply, mut waiting }) = partition.writing.remove(&key) else { return };
        match result {
            Ok(at) => partition.apply(record, at),
            Err(error) => {
                tracing::warn!(%error, group = %key.group, "the state of a share partition could not be written");
            }
        }
        if let Some((token, response)) = reply {
            let response = match result {
                Ok(_) => response,
                Err(error) => response.failed(append_error(error)),
            };
            self.answer(Some(token), response);
        }
        while let Some((request, token)) = waiting.pop_front() {
            if let Some(partition) = self.partitions.get_mut(&index) {
                partition.waiting -= 1;
            }
            self.serve(index, request, token, now);
            let Some(partition) = self.partitions.get_mut(&index) else { return };
            if let Some(writing) = partition.writing.get_mut(&key) {
                writing.waiting = waiting;
                return;
            }
        }
    }

    /// When [`Coordinator::advance`] is to be called.
    pub fn next_deadline(&self) -> Monotonic {
        self.next_prune
    }

    /// Makes snapshots of what has not changed for long, and has the log cut off below the oldest snapshot.
    pub fn advance(&mut self, now: Now) {
        if now.monotonic < self.next_prune {
            return;
        }
        self.next_prune = now.monotonic.plus(self.settings.prune_interval);
        let indexes: Vec<PartitionIndex> = self.partitions.keys().copied().collect();
        for index in indexes {
            let Some(partition) = self.partitions.get_mut(&index).filter(|it| !it.is_loading) else {
                continue;
            };
            let oldest = partition.kept.values().map(|kept| kept.snapshot_at).min();
            if let Some(below) = oldest.filter(|below| *below > partition.pruned_below) {
                partition.pruned_below = below;
                self.effects.push(Effect::Prune { partition: index, below });
            }
            if std::mem::take(&mut partition.has_grown) {
                self.snapshot_cold(index, now);
            }
        }
    }

    /// Takes what is to be done, in order.
    pub fn drain_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Share partitions whose state is kept.
    pub fn key_count(&self) -> usize {
        self.partitions.values().map(|partition| partition.kept.len()).sum()
    }

    fn snapshot_cold(&mut self, index: PartitionIndex, now: Now) {
        let Some(partition) = self.partitions.get(&index) else { return };
        let age_max = i64::try_from(self.settings.cold_interval.as_millis()).unwrap_or(i64::MAX);
        let is_cold = |kept: &Kept| now.wall.0.saturating_sub(kept.snapshot_written_at.0) >= age_max;
        let cold = partition
            .kept
            .iter()
            .filter(|(key, kept)| is_cold(kept) && !partition.writing.contains_key(*key));
        let records: Vec<Record> = cold
            .map(|(key, kept)| Record::Snapshot { key: key.clone(), value: Some(kept.snapshot(now.wall)) })
            .collect();
        for record in records {
            self.write(index, record, None);
        }
        // They are no news.
        if let Some(partition) = self.partitions.get_mut(&index) {
            partition.has_grown = false;
        }
    }

    fn serve(&mut self, index: PartitionIndex, request: Request, token: Option<ReplyToken>, now: Now) {
        let Some(partition) = self.partitions.get_mut(&index) else { return };
        if let Some(writing) = partition.writing.get_mut(request.key()) {
            partition.waiting += 1;
            writing.waiting.push_back((request, token));
            return;
        }
        match self.decide(index, &request, now) {
            Ok(Decision::Record(record, response)) => {
                self.write(index, record, token.map(|token| (token, response)));
            }
            Ok(Decision::Answer(response)) => self.answer(token, response),
            Err(error) => self.answer(token, request.failed(error)),
        }
    }

    /// What a request leads to, given the state of its key (`ShareCoordinatorShard`).
    fn decide(&self, index: PartitionIndex, request: &Request, now: Now) -> Result<Decision, ErrorCode> {
        let kept = self.partitions.get(&index).and_then(|partition| partition.kept.get(request.key()));
        match request {
            Request::Read { key, leader_epoch } => {
                let kept = kept.ok_or(ErrorCode::UnknownTopicOrPartition)?;
                let response = Response::Read(Ok(kept.to_persisted()));
                if *leader_epoch == LeaderEpoch::NONE || *leader_epoch == kept.leader_epoch {
                    return Ok(Decision::Answer(response));
                }
                if *leader_epoch < kept.leader_epoch {
                    return Err(ErrorCode::FencedLeaderEpoch);
                }
                let update = Update {
                    snapshot_epoch: kept.snapshot_epoch,
                    leader_epoch: *leader_epoch,
                    start: kept.start,
                    delivery_complete: kept.delivery_complete,
                    batches: Vec::new(),
                };
                Ok(Decision::Record(self.updated(key, kept, update, now), response))
            }
            Request::Initialize { key, state_epoch, start } => {
                if kept.is_some_and(|kept| *state_epoch < kept.state_epoch) {
                    return Err(ErrorCode::FencedStateEpoch);
                }
                let value = Snapshot {
                    snapshot_epoch: kept.map_or(0, |kept| kept.snapshot_epoch + 1),
                    state_epoch: *state_epoch,
                    leader_epoch: LeaderEpoch(0),
                    start: *start,
                    delivery_complete: -1,
                    created_at: now.wall,
                    written_at: now.wall,
                    batches: Vec::new(),
                };
                Ok(Decision::changed(Record::Snapshot { key: key.clone(), value: Some(value) }))
            }
            Request::Write(write) => {
                let kept = kept.ok_or(ErrorCode::InvalidRequest)?;
                if write.leader_epoch < kept.leader_epoch {
                    return Err(ErrorCode::FencedLeaderEpoch);
                }
                if write.state_epoch < kept.state_epoch {
                    return Err(ErrorCode::FencedStateEpoch);
                }
                let update = Update {
                    snapshot_epoch: kept.snapshot_epoch,
                    leader_epoch: write.leader_epoch,
                    start: write.start,
                    delivery_complete: write.delivery_complete,
                    batches: write.batches.clone(),
                };
                Ok(Decision::changed(self.updated(&write.key, kept, update, now)))
            }
            Request::Delete { key } => match kept {
                Some(_) => Ok(Decision::changed(Record::Snapshot { key: key.clone(), value: None })),
                None => Ok(Decision::Answer(Response::Changed(Ok(())))),
            },
        }
    }

    /// The record of an update: now and then one of all that is kept.
    fn updated(&self, key: &ShareKey, kept: &Kept, update: Update, now: Now) -> Record {
        if kept.updates < self.settings.updates_per_snapshot {
            return Record::Update { key: key.clone(), value: update };
        }
        let mut after = kept.clone();
        after.update(update);
        Record::Snapshot { key: key.clone(), value: Some(after.snapshot(now.wall)) }
    }

    fn write(&mut self, index: PartitionIndex, record: Record, reply: Option<(ReplyToken, Response)>) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let key = record.key().clone();
        self.effects.push(Effect::Append { partition: index, record: record.encode(), ticket });
        self.tickets.insert(ticket, (index, key.clone()));
        if let Some(partition) = self.partitions.get_mut(&index) {
            partition.has_grown = true;
            partition.writing.insert(key, Writing { record, reply, waiting: VecDeque::new() });
        }
    }

    fn answer(&mut self, token: Option<ReplyToken>, response: Response) {
        if let Some(token) = token {
            self.effects.push(Effect::Reply { token, response });
        }
    }
}

enum Decision {
    /// What is answered when it is written.
    Record(Record, Response),
    Answer(Response),
}

impl Decision {
    fn changed(record: Record) -> Self {
        Decision::Record(record, Response::Changed(Ok(())))
    }
}

impl Partition {
    fn apply(&mut self, record: Record, at: Offset) {
        match record {
            Record::Snapshot { key, value: None } => {
                self.kept.remove(&key);
            }
            Record::Snapshot { key, value: Some(value) } => {
                self.kept.insert(key, Kept::from_snapshot(value, at));
            }
            Record::Update { key, value } => match self.kept.get_mut(&key) {
                Some(kept) if value.snapshot_epoch >= kept.snapshot_epoch => {
                    kept.update(value);
                    kept.updates += 1;
                }
                // Its snapshot was deleted, or a later one has what it says.
                _ => {}
            },
        }
    }
}

impl Kept {
    fn from_snapshot(value: Snapshot, at: Offset) -> Self {
        let mut kept = Self {
            snapshot_epoch: value.snapshot_epoch,
            state_epoch: value.state_epoch,
            leader_epoch: value.leader_epoch,
            start: value.start,
            delivery_complete: value.delivery_complete,
            created_at: value.created_at,
            states: Runs::default(),
            snapshot_at: at,
            snapshot_written_at: value.written_at,
            updates: 0,
        };
        kept.lay(&value.batches);
        kept
    }

    fn update(&mut self, update: Update) {
        self.leader_epoch = update.leader_epoch;
        self.start = self.start.max(update.start);
        self.delivery_complete = update.delivery_complete;
        self.lay(&update.batches);
    }

    /// The newest state of an offset counts; below the start nothing is kept.
    fn lay(&mut self, batches: &[StateBatch]) {
        for batch in batches.iter().filter(|batch| batch.first <= batch.last && batch.last.0 < i64::MAX) {
            self.states.set(batch.first, batch.last, (batch.state, batch.delivery_count));
        }
        self.states.remove_below(self.start);
    }

    fn batches(&self) -> Vec<StateBatch> {
        let batch = |(first, last, (state, delivery_count)): (Offset, Offset, &(DeliveryState, u16))| {
            StateBatch { first, last, state: *state, delivery_count: *delivery_count }
        };
        self.states.iter().map(batch).collect()
    }

    fn snapshot(&self, now: Timestamp) -> Snapshot {
        Snapshot {
            snapshot_epoch: self.snapshot_epoch.wrapping_add(1).max(0),
            state_epoch: self.state_epoch,
            leader_epoch: self.leader_epoch,
            start: self.start,
            delivery_complete: self.delivery_complete,
            created_at: self.created_at,
            written_at: now,
            batches: self.batches(),
        }
    }

    fn to_persisted(&self) -> Persisted {
        Persisted {
            state_epoch: self.state_epoch,
            leader_epoch: self.leader_epoch,
            start: self.start,
            delivery_complete: self.delivery_complete,
            batches: self.batches(),
        }
    }
}
