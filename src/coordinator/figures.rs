//! What is told of the groups to whoever looks from outside: how many in which state, and what they have
//! committed. Reads only.

use std::collections::BTreeMap;
use std::ops::Bound;

use kafka_protocol::protocol::StrBytes;

use super::machine::Coordinator;
use crate::base::{Offset, PartitionIndex};

/// What one group has committed on one topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    pub group: StrBytes,
    pub topic: StrBytes,
    pub offsets: Vec<(PartitionIndex, Offset)>,
}

/// The last group that was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    partition: PartitionIndex,
    group: StrBytes,
}

impl Coordinator {
    /// Groups by the name of their state.
    pub fn group_counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for group in self.partitions.values().flat_map(|partition| partition.groups.values()) {
            *counts.entry(group.state().name()).or_insert(0) += 1;
        }
        for group in self.partitions.values().flat_map(|partition| partition.consumers.values()) {
            *counts.entry(group.state_name()).or_insert(0) += 1;
        }
        for group in self.partitions.values().flat_map(|partition| partition.shares.values()) {
            *counts.entry(group.state_name()).or_insert(0) += 1;
        }
        counts
    }

    /// The offsets of the groups after `told`, whole groups until there are `offsets_max` of them; with where to
    /// go on, `None` at the end.
    pub fn committed(&self, told: Option<&Told>, offsets_max: usize) -> (Vec<Committed>, Option<Told>) {
        let mut committed = Vec::new();
        let mut count = 0;
        let first = told.map_or(PartitionIndex(0), |told| told.partition);
        for (&index, partition) in self.partitions.range(first..) {
            let from = match told {
                Some(told) if told.partition == index => Bound::Excluded(&told.group),
                _ => Bound::Unbounded,
            };
            for (group, topics) in partition.offsets.groups_from(from) {
                for (topic, offsets) in topics {
                    count += offsets.len();
                    committed.push(Committed {
                        group: group.clone(),
                        topic: topic.clone(),
                        offsets: offsets.iter().map(|(index, value)| (*index, value.offset)).collect(),
                    });
                }
                if count >= offsets_max {
                    return (committed, Some(Told { partition: index, group: group.clone() }));
                }
            }
        }
        (committed, None)
    }
}
