//! The server-side assignors: which member gets which partitions. Pure.
//!
//! Neither looks at racks, as in Kafka 4: there a rack only makes a group look again when it changes.

mod range;
#[cfg(test)]
mod tests;
mod uniform;

use std::collections::{BTreeMap, BTreeSet, HashMap};
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

/// The members that read each topic, as ascending positions in `candidates`. It costs by subscriptions that differ, not
/// by members, and topics with the same readers share the list.
fn subscribers(candidates: &[Candidate<'_>]) -> BTreeMap<TopicId, Rc<[usize]>> {
    let mut numbers: HashMap<*const BTreeSet<TopicId>, usize> = HashMap::new();
    let mut subscriptions: Vec<(&BTreeSet<TopicId>, Vec<usize>)> = Vec::new();
    for (at, candidate) in candidates.iter().enumerate() {
        let number = *numbers.entry(Rc::as_ptr(&candidate.topics)).or_insert(subscriptions.len());
        if number == subscriptions.len() {
            subscriptions.push((&candidate.topics, Vec::new()));
        }
        subscriptions[number].1.push(at);
    }
    let mut by_topic: BTreeMap<TopicId, Vec<usize>> = BTreeMap::new();
    for (number, (topics, _)) in subscriptions.iter().enumerate() {
        for topic in *topics {
            by_topic.entry(*topic).or_default().push(number);
        }
    }
    let mut lists: HashMap<Vec<usize>, Rc<[usize]>> = HashMap::new();
    let mut list = |numbers: Vec<usize>| {
        let list = lists.entry(numbers).or_insert_with_key(|numbers| {
            let members = numbers.iter().flat_map(|number| &subscriptions[*number].1);
            let mut members: Vec<usize> = members.copied().collect();
            members.sort_unstable();
            members.into()
        });
        list.clone()
    };
    by_topic.into_iter().map(|(topic, numbers)| (topic, list(numbers))).collect()
}
