//! Round-robin (Kafka's `RoundRobinAssignor`): all partitions in order are dealt to the members in order;
//! a member that did not subscribe to a partition's topic is passed over.

use super::{Assignment, Members, PartitionCounts};
use crate::base::{PartitionIndex, TopicPartition};

pub fn assign(members: &Members, topics: &PartitionCounts) -> Assignment {
    let mut assignment: Assignment = members.keys().map(|member| (member.clone(), Vec::new())).collect();
    let order: Vec<_> = members.iter().collect();
    let mut turn = 0;
    for (topic, &count) in topics {
        if !order.iter().any(|(_, subscription)| subscription.topics.contains(topic)) {
            continue;
        }
        for index in 0..count {
            // Ends: at least one member subscribes to the topic.
            while !order[turn % order.len()].1.topics.contains(topic) {
                turn += 1;
            }
            let partitions =
                assignment.get_mut(order[turn % order.len()].0).expect("every member has an entry");
            partitions.push(TopicPartition::new(topic.clone(), PartitionIndex(index as i32)));
            turn += 1;
        }
    }
    assignment
}

#[cfg(test)]
mod tests {
    use super::super::testing::{expect, members, topics};
    use super::*;

    #[test]
    fn equal_subscriptions_are_dealt_evenly() {
        let assignment = assign(&members(&[&["t0", "t1"], &["t0", "t1"]]), &topics(&[("t0", 3), ("t1", 3)]));
        expect(&assignment, &[("C0", "t0p0 t0p2 t1p1"), ("C1", "t0p1 t1p0 t1p2")]);
    }

    #[test]
    fn unequal_subscriptions_are_dealt_unevenly() {
        let members = members(&[&["t0"], &["t0", "t1"], &["t0", "t1", "t2"]]);
        let assignment = assign(&members, &topics(&[("t0", 1), ("t1", 2), ("t2", 3)]));
        expect(&assignment, &[("C0", "t0p0"), ("C1", "t1p0"), ("C2", "t1p1 t2p0 t2p1 t2p2")]);
    }

    #[test]
    fn a_topic_without_subscriber_is_left_out() {
        let assignment = assign(&members(&[&["t1"]]), &topics(&[("t0", 2), ("t1", 1)]));
        expect(&assignment, &[("C0", "t1p0")]);
    }
}
