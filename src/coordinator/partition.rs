//! One partition of `__consumer_offsets` that this node leads: its groups, their offsets, and the appends
//! under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kafka_protocol::protocol::StrBytes;

use super::group::Group;
use super::interface::Ticket;
use super::offsets::Offsets;
use super::records::{OffsetKey, Record, RecordError};
use super::turn::Write;
use crate::base::clock::Timestamp;
use crate::wire::ErrorCode;

pub(super) struct Partition {
    /// Its log is being read; requests are put off.
    pub(super) is_loading: bool,
    pub(super) groups: BTreeMap<StrBytes, Group>,
    pub(super) offsets: Offsets,
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
            offsets: Offsets::default(),
            pending: VecDeque::new(),
            deleted_topics: Vec::new(),
            skipped: 0,
        }
    }

    /// Applies one record of the log.
    pub(super) fn replay(&mut self, key: &[u8], value: Option<&[u8]>) {
        match Record::decode(key, value) {
            Ok(record) => self.apply_loaded(record),
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

    fn apply_loaded(&mut self, record: Record) {
        match record {
            Record::Group { group, value: Some(value) } => {
                self.groups.insert(group.clone(), Group::from_record(group, value));
            }
            other => {
                self.apply(other);
            }
        }
    }

    /// Applies a record that is state. Returns the group whose tombstone it was.
    pub(super) fn apply(&mut self, record: Record) -> Option<Group> {
        match record {
            Record::Offset { key, value } => {
                if let (Some(value), false) = (&value, self.groups.contains_key(&key.group)) {
                    // A consumer that assigns its partitions itself: the commit makes its group.
                    let group = Group::new(key.group.clone(), value.committed_at);
                    self.groups.insert(key.group.clone(), group);
                }
                self.offsets.apply(key, value);
                None
            }
            Record::Group { group, value: None } => self.groups.remove(&group),
            Record::Group { value: Some(_), .. } => {
                unreachable!("the record of a living group is not replayed")
            }
        }
    }

    /// Offsets of appends that are under way: a deletion has to cover them too.
    pub(super) fn pending_offsets(&self) -> impl Iterator<Item = &OffsetKey> {
        self.pending.iter().flat_map(|pending| &pending.write.records).filter_map(|record| match record {
            Record::Offset { key, value: Some(_) } => Some(key),
            _ => None,
        })
    }

    pub(super) fn has_pending_offsets(&self, group: &StrBytes) -> bool {
        self.pending_offsets().any(|key| key.group == *group)
    }

    /// The keys of all offsets of a group.
    pub(super) fn offsets_of_group(&self, group: &StrBytes) -> BTreeSet<OffsetKey> {
        let pending = self.pending_offsets().filter(|key| key.group == *group).cloned();
        self.offsets.of_group(group).map(|(key, _)| key).chain(pending).collect()
    }

    /// The keys of all offsets of a topic.
    pub(super) fn offsets_of_topic(&self, topic: &StrBytes) -> BTreeSet<OffsetKey> {
        let pending = self.pending_offsets().filter(|key| key.topic == *topic).cloned();
        self.offsets.of_topic(topic).chain(pending).collect()
    }

    /// Tombstones for the offsets of `group` that expired, and whether nothing is left of them.
    pub(super) fn expired_offset_tombstones(
        &self,
        group: &Group,
        retention_ms: i64,
        now: Timestamp,
    ) -> (Vec<Record>, bool) {
        let mut all_expired = !self.has_pending_offsets(&group.id);
        let mut expired = Vec::new();
        for (key, value) in self.offsets.of_group(&group.id) {
            let is_expired =
                match (group.is_subscribed(&key.topic), group.retention_starts(value.committed_at)) {
                    (false, Some(start)) => match value.expires_at {
                        Some(expires_at) => now >= expires_at,
                        None => now.0.saturating_sub(start.0) >= retention_ms,
                    },
                    _ => false,
                };
            if is_expired && !self.pending_offsets().any(|pending| *pending == key) {
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
