//! Range (Kafka's `RangeAssignor`): topic by topic, each member gets a run of consecutive partitions, the
//! first ones by name one more when the count does not divide.

use super::{Assignment, Members, PartitionCounts};
use crate::base::{PartitionIndex, TopicPartition};

pub fn assign(members: &Members, topics: &PartitionCounts) -> Assignment {
    let mut assignment: Assignment = members.keys().map(|member| (member.clone(), Vec::new())).collect();
    for (topic, &count) in topics {
        let subscribed: Vec<&String> =
            members.iter().filter(|(_, s)| s.topics.contains(topic)).map(|(member, _)| member).collect();
        if subscribed.is_empty() {
            continue;
        }
        let (each, extra) = (count as usize / subscribed.len(), count as usize % subscribed.len());
        let mut next = 0;
        for (position, member) in subscribed.into_iter().enumerate() {
            let run = each + usize::from(position < extra);
            let partitions = assignment.get_mut(member).expect("every member has an entry");
            partitions.extend(
                (next..next + run).map(|p| TopicPartition::new(topic.clone(), PartitionIndex(p as i32))),
            );
            next += run;
        }
    }
    assignment
}

#[cfg(test)]
mod tests {
    use super::super::testing::{expect, members, topics};
    use super::*;

    #[test]
    fn two_members_halve_two_topics_of_four() {
        let assignment = assign(&members(&[&["t0", "t1"], &["t0", "t1"]]), &topics(&[("t0", 4), ("t1", 4)]));
        expect(&assignment, &[("C0", "t0p0 t0p1 t1p0 t1p1"), ("C1", "t0p2 t0p3 t1p2 t1p3")]);
    }

    #[test]
    fn the_first_member_gets_the_odd_partition_of_each_topic() {
        let assignment = assign(&members(&[&["t0", "t1"], &["t0", "t1"]]), &topics(&[("t0", 3), ("t1", 3)]));
        expect(&assignment, &[("C0", "t0p0 t0p1 t1p0 t1p1"), ("C1", "t0p2 t1p2")]);
    }

    #[test]
    fn a_topic_is_divided_among_its_subscribers_only() {
        let members = members(&[&["t0"], &["t0", "t1"], &["t0", "t1", "t2"]]);
        let assignment = assign(&members, &topics(&[("t0", 1), ("t1", 2), ("t2", 3)]));
        expect(&assignment, &[("C0", "t0p0"), ("C1", "t1p0"), ("C2", "t1p1 t2p0 t2p1 t2p2")]);
    }

    #[test]
    fn more_members_than_partitions_leave_some_idle() {
        let assignment = assign(&members(&[&["t"], &["t"], &["t"]]), &topics(&[("t", 2)]));
        expect(&assignment, &[("C0", "tp0"), ("C1", "tp1"), ("C2", "")]);
    }
}
