//! Offsets that were committed within transactions which have not ended: they count from the marker on, if it
//! commits (Kafka's `OffsetMetadataManager`, pending transactional offsets).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kafka_protocol::protocol::StrBytes;

use super::records::{OffsetKey, OffsetValue};
use crate::base::{PartitionIndex, ProducerId};

/// Of one partition of `__consumer_offsets`.
#[derive(Default)]
pub(super) struct OpenOffsets {
    by_group: BTreeMap<StrBytes, BTreeMap<ProducerId, Held>>,
    groups: HashMap<ProducerId, BTreeSet<StrBytes>>,
    /// Counts what was held, so that it is known what was written later.
    held: u64,
}

type Held = BTreeMap<(StrBytes, PartitionIndex), HeldOffset>;

#[derive(Debug)]
struct HeldOffset {
    number: u64,
    /// `None`: a later commit of the same offset took its place and stays whatever this transaction comes to.
    value: Option<OffsetValue>,
}

impl OpenOffsets {
    /// A record of an open transaction was written.
    pub(super) fn hold(&mut self, producer: ProducerId, key: OffsetKey, value: OffsetValue) {
        self.held += 1;
        let held = HeldOffset { number: self.held, value: Some(value) };
        self.groups.entry(producer).or_default().insert(key.group.clone());
        let of_group = self.by_group.entry(key.group).or_default();
        of_group.entry(producer).or_default().insert((key.topic, key.partition), held);
    }

    /// Takes what the transaction wrote: the offsets that count if it commits.
    pub(super) fn end(&mut self, producer: ProducerId, commit: bool) -> Vec<(OffsetKey, OffsetValue)> {
        let mut ended = Vec::new();
        for group in self.groups.remove(&producer).unwrap_or_default() {
            let Some(of_group) = self.by_group.get_mut(&group) else { continue };
            let held = of_group.remove(&producer).unwrap_or_default();
            for ((topic, partition), offset) in held {
                let Some(value) = offset.value.filter(|_| commit) else { continue };
                // An older one of another transaction must not replace it later.
                for other in of_group.values_mut() {
                    if let Some(older) = other.get_mut(&(topic.clone(), partition))
                        && older.number < offset.number
                    {
                        older.value = None;
                    }
                }
                ended.push((OffsetKey { group: group.clone(), topic, partition }, value));
            }
            if of_group.is_empty() {
                self.by_group.remove(&group);
            }
        }
        ended
    }

    /// The same offset was committed outside of a transaction.
    pub(super) fn overtake(&mut self, key: &OffsetKey) {
        let Some(of_group) = self.by_group.get_mut(&key.group) else { return };
        for held in of_group.values_mut() {
            if let Some(offset) = held.get_mut(&(key.topic.clone(), key.partition)) {
                offset.value = None;
            }
        }
    }

    /// The offset was deleted.
    pub(super) fn remove(&mut self, key: &OffsetKey) {
        let Some(of_group) = self.by_group.get_mut(&key.group) else { return };
        for held in of_group.values_mut() {
            held.remove(&(key.topic.clone(), key.partition));
        }
    }

    /// Whether the fate of an offset is open.
    pub(super) fn contains(&self, group: &StrBytes, topic: &StrBytes, partition: PartitionIndex) -> bool {
        self.by_group.get(group).is_some_and(|of_group| {
            let place = (topic.clone(), partition);
            of_group.values().any(|held| held.contains_key(&place))
        })
    }

    /// Whether a transaction of the group is open.
    pub(super) fn has_group(&self, group: &StrBytes) -> bool {
        self.by_group.contains_key(group)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = OffsetKey> {
        self.by_group.iter().flat_map(|(group, of_group)| keys(group, of_group))
    }

    pub(super) fn keys_of_group(&self, group: &StrBytes) -> impl Iterator<Item = OffsetKey> {
        self.by_group.get_key_value(group).into_iter().flat_map(|(group, of_group)| keys(group, of_group))
    }
}

fn keys<'a>(
    group: &'a StrBytes,
    of_group: &'a BTreeMap<ProducerId, Held>,
) -> impl Iterator<Item = OffsetKey> + 'a {
    of_group.values().flat_map(|held| held.keys()).map(|(topic, partition)| OffsetKey {
        group: group.clone(),
        topic: topic.clone(),
        partition: *partition,
    })
}
