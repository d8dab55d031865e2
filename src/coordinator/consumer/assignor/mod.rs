//! The server-side assignors: which member gets which partitions. Pure.
//!
//! Neither looks at racks, as in Kafka 4: there a rack only makes a group look again when it changes.

mod range;
#[cfg(test)]
mod tests;
mod uniform;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kafka_protocol::protocol::StrBytes;

use super::member::Partitions;
use crate::base::{PartitionIndex, TopicId};
use crate::config::Assignor;

/// A member to be given partitions.
pub(super) struct Candidate<'a> {
    pub(super) id: &'a StrBytes,
    pub(super) instance_id: Option<&'a StrBytes>,
    /// Topics that there are; shared by members with the same subscription.
    pub(super) topics: Rc<BTreeSet<TopicId>>,
    /// What it was given last time.
    pub(super) present: &'a Partitions,
}

/// How many partitions each subscribed topic has.
pub(super) type PartitionCounts = BTreeMap<TopicId, i32>;

/// The new target of every candidate, in their order.
pub(super) fn assign(
    assignor: Assignor,
    candidates: &[Candidate<'_>],
    counts: &PartitionCounts,
) -> Vec<Partitions> {
    match assignor {
        Assignor::Uniform => uniform::assign(candidates, counts),
        Assignor::Range => range::assign(candidates, counts),
    }
}

fn partitions_of(topic: TopicId, counts: &PartitionCounts) -> impl Iterator<Item = PartitionIndex> {
    (0..counts.get(&topic).copied().unwrap_or(0)).map(PartitionIndex)
}

/// The members that read each topic, as positions in `candidates`.
fn subscribers(candidates: &[Candidate<'_>]) -> BTreeMap<TopicId, Vec<usize>> {
    let mut subscribers: BTreeMap<TopicId, Vec<usize>> = BTreeMap::new();
    for (at, candidate) in candidates.iter().enumerate() {
        for topic in candidate.topics.iter() {
            subscribers.entry(*topic).or_default().push(at);
        }
    }
    subscribers
}
