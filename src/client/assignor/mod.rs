//! Who reads which partition of a classic group, decided by the group's leader: range, round-robin and
//! sticky. Pure functions; the same input gives the same output on every member.

mod range;
mod round_robin;
mod sticky;

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::base::{TopicName, TopicPartition};

/// What one member said when it joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    pub topics: Vec<TopicName>,
    /// What it had before this rebalance.
    pub owned: Vec<TopicPartition>,
    /// The generation `owned` is from, -1 when it is not known.
    pub generation: i32,
    /// What its assignor adds.
    pub user_data: Option<Bytes>,
}

/// Members by id: the order every assignor counts in.
pub type Members = BTreeMap<String, Subscription>;
/// Partition counts of the topics that exist.
pub type PartitionCounts = BTreeMap<TopicName, u32>;
/// The partitions of each member; every member is in it.
pub type Assignment = BTreeMap<String, Vec<TopicPartition>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignor {
    Range,
    RoundRobin,
    Sticky,
}

impl Assignor {
    pub const ALL: [Assignor; 3] = [Assignor::Range, Assignor::RoundRobin, Assignor::Sticky];

    /// The protocol's name in JoinGroup.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Range => "range",
            Assignor::RoundRobin => "roundrobin",
            Assignor::Sticky => "sticky",
        }
    }

    pub fn from_name(name: &str) -> Option<Assignor> {
        Self::ALL.into_iter().find(|assignor| assignor.name() == name)
    }

    pub fn assign(self, members: &Members, topics: &PartitionCounts) -> Assignment {
        match self {
            Assignor::Range => range::assign(members, topics),
            Assignor::RoundRobin => round_robin::assign(members, topics),
            Assignor::Sticky => sticky::assign(members, topics),
        }
    }
}

#[cfg(test)]
mod testing {
    use super::*;
    use crate::base::PartitionIndex;

    /// Members named C0, C1… with the topics each subscribes to.
    pub fn members(subscriptions: &[&[&str]]) -> Members {
        let subscription = |topics: &&[&str]| Subscription {
            topics: topics.iter().map(|&topic| topic.into()).collect(),
            generation: -1,
            ..Subscription::default()
        };
        subscriptions.iter().enumerate().map(|(n, topics)| (format!("C{n}"), subscription(topics))).collect()
    }

    pub fn topics(counts: &[(&str, u32)]) -> PartitionCounts {
        counts.iter().map(|&(topic, count)| (topic.into(), count)).collect()
    }

    /// `"t0p1 t1p0"` as partitions.
    pub fn partitions(text: &str) -> Vec<TopicPartition> {
        let parse = |word: &str| {
            let (topic, index) = word.rsplit_once('p').expect("topic, p, index");
            TopicPartition::new(topic, PartitionIndex(index.parse().expect("a number")))
        };
        text.split_whitespace().map(parse).collect()
    }

    pub fn expect(assignment: &Assignment, expected: &[(&str, &str)]) {
        let expected: Assignment =
            expected.iter().map(|&(member, text)| (member.to_owned(), partitions(text))).collect();
        assert_eq!(*assignment, expected);
    }
}
