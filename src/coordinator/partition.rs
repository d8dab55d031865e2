//! One partition of `__consumer_offsets` that this node leads: its groups, their offsets, and the appends
//! under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kafka_protocol::protocol::StrBytes;

use super::consumer::{ConsumerGroup, ConsumerRecord};
use super::gate::Gates;
use super::group::Group;
use super::interface::Ticket;
use super::offsets::Offsets;
use super::open_offsets::OpenOffsets;
use super::records::{OffsetKey, Record, RecordError};
use super::share_group::ShareGroup;
use super::turn::Write;
use crate::base::ProducerId;
use crate::base::clock::Timestamp;
use crate::wire::ErrorCode;

pub(super) struct Partition {
    /// Its log is being read; requests are put off.
    pub(super) is_loading: bool,
    /// Classic groups; an id is in one of the three maps.
    pub(super) groups: BTreeMap<StrBytes, Group>,
    pub(super) consumers: BTreeMap<StrBytes, ConsumerGroup>,
    pub(super) shares: BTreeMap<StrBytes, ShareGroup>,
    pub(super) gates: Gates,
    pub(super) offsets: Offsets,
    pub(super) open: OpenOffsets,
    /// In append order, which is the order they are applied in.
    pub(super) pending: VecDeque<Pending>,
    /// Topics that were deleted while the log was read.
    pub(super) deleted_topics: Vec<StrBytes>,
    /// Records that were not understood while the log was read.
    pub(super) skipped: u64,
}

pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) write: Write,
    pub(super) outcome: Option<Result<(), ErrorCode>>,
    /// The error of an earlier part of the same write.
    pub(super) spoiled: Option<ErrorCode>,
}

impl Partition {
    pub(super) fn loading() -> Self {
        Self {
            is_loading: true,
            groups: BTreeMap::new(),
            consumers: BTreeMap::new(),
            shares: BTreeMap::new(),
            gates: Gates::default(),
            offsets: Offsets::default(),
            open: OpenOffsets::default(),
            pending: VecDeque::new(),
            deleted_topics: Vec::new(),
            skipped: 0,
        }
    }

    /// Applies one record of the log.
    pub(super) fn replay(&mut self, key: &[u8], value: Option<&[u8]>) {
        match Record::decode(key, value) {
            Ok(record) => {
                self.apply(record);
            }
            Err(error) => {
                self.skipped += 1;
                match error {
                    RecordError::UnknownKey(_) => {
                        tracing::debug!(%error, "skipped a record of __consumer_offsets")
                    }
                    _ => tracing::warn!(%error, "skipped a record of __consumer_offsets"),
                }
            }
        }
    }

    /// Holds one record of the log that belongs to a transaction.
    pub(super) fn replay_in_transaction(&mut self, producer: ProducerId, key: &[u8], value: Option<&[u8]>) {
        match Record::decode(key, value) {
            Ok(record) => self.hold(producer, record),
            Err(error) => {
                self.skipped += 1;
                tracing::warn!(%error, "skipped a transaction's record of __consumer_offsets");
            }
        }
    }

    /// Applies a record that is state. Returns the classic group that ends with it.
    pub(super) fn apply(&mut self, record: Record) -> Option<Group> {
        match record {
            Record::Offset { key, value } => {
                match &value {
                    Some(value) => {
                        self.make_simple_group(&key.group, value.committed_at);
                        self.open.overtake(&key);
                    }
                    None => self.open.remove(&key),
                }
                self.offsets.apply(key, value);
                None
            }
            Record::Group { group, value: None } => self.groups.remove(&group),
            // The record of a living group is read back only: its state runs ahead of it.
            Record::Group { group, value: Some(value) } => {
                self.consumers.remove(&group);
                self.shares.remove(&group);
                self.groups.insert(group.clone(), Group::from_record(group, value))
            }
            Record::Consumer(record) => self.apply_consumer(record),
            Record::Share(record) => self.apply_share(record),
        }
    }

    /// A consumer that assigns its partitions itself: its commit makes its group.
    fn make_simple_group(&mut self, id: &StrBytes, at: Timestamp) {
        let is_there = self.groups.contains_key(id) || self.consumers.contains_key(id);
        if !is_there && !self.shares.contains_key(id) {
            self.groups.insert(id.clone(), Group::new(id.clone(), at));
        }
    }

    /// Applies one record of a transaction, of the log or just written.
    pub(super) fn hold(&mut self, producer: ProducerId, record: Record) {
        // A coordinator writes nothing but commits within a transaction.
        if let Record::Offset { key, value: Some(value) } = record {
            self.make_simple_group(&key.group, value.committed_at);
            self.open.hold(producer, key, value);
        }
    }

    /// Applies the end of a transaction.
    pub(super) fn end_transaction(&mut self, producer: ProducerId, commit: bool) {
        for (key, value) in self.open.end(producer, commit) {
            self.offsets.apply(key, Some(value));
        }
    }

    fn apply_consumer(&mut self, record: ConsumerRecord) -> Option<Group> {
        let id = record.group().clone();
        let ends = matches!(record, ConsumerRecord::Group { value: None, .. });
        if let Some(group) = self.consumers.get_mut(&id) {
            group.apply(record);
            if ends {
                self.consumers.remove(&id);
            }
            return None;
        }
        if record.is_tombstone() {
            return None;
        }
        // A classic group of the name was only one that keeps offsets, or it was taken over.
        let classic = self.groups.remove(&id);
        let mut group = ConsumerGroup::new(id.clone());
        group.apply(record);
        self.consumers.insert(id, group);
        classic
    }

    /// Offsets of appends that are under way: a deletion has to cover them too.
    pub(super) fn pending_offsets(&self) -> impl Iterator<Item = &OffsetKey> {
        self.pending.iter().flat_map(|pending| &pending.write.records).filter_map(|record| match record {
            Record::Offset { key, value: Some(_) } => Some(key),
            _ => None,
        })
    }

    pub(super) fn has_pending_offsets(&self, group: &StrBytes) -> bool {
        self.open.has_group(group) || self.pending_offsets().any(|key| key.group == *group)
    }

    /// The keys of all offsets of a group.
    pub(super) fn offsets_of_group(&self, group: &StrBytes) -> BTreeSet<OffsetKey> {
        let pending = self.pending_offsets().filter(|key| key.group == *group).cloned();
        let open = self.open.keys_of_group(group);
        self.offsets.of_group(group).map(|(key, _)| key).chain(pending).chain(open).collect()
    }

    /// The keys of all offsets of a topic.
    pub(super) fn offsets_of_topic(&self, topic: &StrBytes) -> BTreeSet<OffsetKey> {
        let pending = self.pending_offsets().filter(|key| key.topic == *topic).cloned();
        let open = self.open.keys().filter(|key| key.topic == *topic);
        self.offsets.of_topic(topic).chain(pending).chain(open).collect()
    }

    /// Tombstones for the offsets of a group that expired, and whether nothing is left of them. `retention_starts`
    /// says from when the retention of an offset counts; `None` keeps it.
    pub(super) fn expired_offset_tombstones(
        &self,
        group: &StrBytes,
        is_subscribed: impl Fn(&StrBytes) -> bool,
        retention_starts: impl Fn(Timestamp) -> Option<Timestamp>,
        retention_ms: i64,
        now: Timestamp,
    ) -> (Vec<Record>, bool) {
        let mut all_expired = !self.has_pending_offsets(group);
        let mut expired = Vec::new();
        for (key, value) in self.offsets.of_group(group) {
            let is_expired = match (is_subscribed(&key.topic), retention_starts(value.committed_at)) {
                (false, Some(start)) => match value.expires_at {
                    Some(expires_at) => now >= expires_at,
                    None => now.0.saturating_sub(start.0) >= retention_ms,
                },
                _ => false,
            };
            let is_open = self.open.contains(&key.group, &key.topic, key.partition);
            if is_expired && !is_open && !self.pending_offsets().any(|pending| *pending == key) {
                expired.push(key);
            } else {
                all_expired = false;
            }
        }
        (tombstones(expired), all_expired)
    }
}

pub(super) fn tombstones(keys: impl IntoIterator<Item = OffsetKey>) -> Vec<Record> {
    keys.into_iter().map(|key| Record::Offset { key, value: None }).collect()
}
