use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kafka_protocol::protocol::StrBytes;
use proptest::prelude::*;

use super::*;
use crate::base::{PartitionIndex, TopicId};

fn topic(number: u128) -> TopicId {
    TopicId(uuid::Uuid::from_u128(number))
}

struct Group {
    members: Vec<(StrBytes, Option<StrBytes>, BTreeSet<TopicId>, Partitions)>,
    counts: PartitionCounts,
}

impl Group {
    fn new(counts: &[i32]) -> Self {
        let counts = counts.iter().zip(0..).map(|(count, number)| (topic(number), *count)).collect();
        Self { members: Vec::new(), counts }
    }

    fn member(mut self, id: &str, topics: &[u128]) -> Self {
        let topics = topics.iter().map(|number| topic(*number)).collect();
        self.members.push((StrBytes::from_string(id.to_owned()), None, topics, Partitions::new()));
        self
    }

    fn named(mut self, instance: &str) -> Self {
        self.members.last_mut().expect("a member").1 = Some(StrBytes::from_string(instance.to_owned()));
        self
    }

    fn candidates(&self) -> Vec<Candidate<'_>> {
        let each = self.members.iter().map(|(id, instance_id, topics, present)| Candidate {
            id,
            instance_id: instance_id.as_ref(),
            topics: Rc::new(topics.clone()),
            present,
        });
        each.collect()
    }

    fn settle(&mut self, assignor: Assignor) -> usize {
        let targets = assign(assignor, &self.candidates(), &self.counts);
        let mut moved = 0;
        for ((.., present), target) in self.members.iter_mut().zip(targets) {
            moved += held(present).difference(&held(&target)).count();
            *present = target;
        }
        moved
    }

    /// As `t0p1 t1p0`.
    fn of(&self, id: &str) -> String {
        let (.., present) = self.members.iter().find(|member| &*member.0 == id).expect("a member");
        let names: Vec<String> = held(present)
            .into_iter()
            .map(|(topic, partition)| format!("t{}p{partition}", topic.0.as_u128()))
            .collect();
        names.join(" ")
    }

    /// Each partition of a topic that somebody reads has one owner, who reads it.
    fn check(&self) {
        let mut seen = BTreeSet::new();
        for (id, _, topics, present) in &self.members {
            for (topic, partition) in held(present) {
                assert!(topics.contains(&topic), "{id} does not read {topic}");
                assert!(seen.insert((topic, partition)), "{topic}-{partition} is given twice");
            }
        }
        let read: BTreeSet<TopicId> = self.members.iter().flat_map(|member| member.2.clone()).collect();
        let all: usize = read.iter().map(|topic| self.counts[topic] as usize).sum();
        assert_eq!(seen.len(), all);
    }

    fn sizes(&self) -> Vec<usize> {
        self.members.iter().map(|(.., present)| held(present).len()).collect()
    }
}

fn held(partitions: &Partitions) -> BTreeSet<(TopicId, PartitionIndex)> {
    let each = partitions.iter();
    each.flat_map(|(topic, list)| list.iter().map(|partition| (*topic, *partition))).collect()
}

#[test]
fn partitions_are_evened_out_as_far_as_the_steps_reach() {
    let mut group = Group::new(&[6, 1]).member("a", &[0]).member("b", &[0, 1]);
    group.members[0].3.insert(topic(0), (0..6).map(PartitionIndex).collect());
    let sizes = |steps: usize| -> Vec<usize> {
        let targets = uniform::assign_mixed(&group.candidates(), &group.counts, steps);
        targets.iter().map(|target| held(target).len()).collect()
    };
    assert_eq!(sizes(1_000), [4, 3]);
    assert_eq!(sizes(1), [6, 1]);
}

#[test]
fn range_shares_two_topics_of_four_partitions_evenly() {
    let mut group = Group::new(&[4, 4]).member("C0", &[0, 1]).member("C1", &[0, 1]);
    group.settle(Assignor::Range);
    assert_eq!(group.of("C0"), "t0p0 t0p1 t1p0 t1p1");
    assert_eq!(group.of("C1"), "t0p2 t0p3 t1p2 t1p3");
}

#[test]
fn range_gives_what_is_over_to_the_first_of_each_topic() {
    let mut group = Group::new(&[3, 3]).member("C0", &[0, 1]).member("C1", &[0, 1]);
    group.settle(Assignor::Range);
    assert_eq!(group.of("C0"), "t0p0 t0p1 t1p0 t1p1");
    assert_eq!(group.of("C1"), "t0p2 t1p2");
}

#[test]
fn range_asks_of_each_topic_who_reads_it() {
    let mut group = Group::new(&[1, 2, 3]).member("C0", &[0]).member("C1", &[0, 1]).member("C2", &[0, 1, 2]);
    group.settle(Assignor::Range);
    assert_eq!([group.of("C0"), group.of("C1"), group.of("C2")], ["t0p0", "t1p0", "t1p1 t2p0 t2p1 t2p2"]);
}

#[test]
fn range_keeps_static_members_in_place_through_new_ids() {
    let with = |ids: [&str; 2]| {
        let mut group = Group::new(&[3])
            .member(ids[0], &[0])
            .named("I0")
            .member(ids[1], &[0])
            .named("I1")
            .member("A", &[0]);
        group.settle(Assignor::Range);
        [group.of(ids[0]), group.of(ids[1]), group.of("A")]
    };
    assert_eq!(with(["M0", "M1"]), with(["M3", "M2"]));
    assert_eq!(with(["M0", "M1"]), ["t0p0", "t0p1", "t0p2"]);
}

#[test]
fn more_members_than_partitions_leaves_some_without() {
    for assignor in [Assignor::Range, Assignor::Uniform] {
        let mut group = Group::new(&[2]).member("a", &[0]).member("b", &[0]).member("c", &[0]);
        group.settle(assignor);
        group.check();
        assert_eq!(group.sizes(), [1, 1, 0]);
    }
}

#[test]
fn uniform_shares_two_topics_of_three_partitions_evenly() {
    let mut group = Group::new(&[3, 3]).member("C0", &[0, 1]).member("C1", &[0, 1]);
    group.settle(Assignor::Uniform);
    group.check();
    assert_eq!(group.sizes(), [3, 3]);
}

#[test]
fn uniform_gives_unequal_readers_what_only_they_can_read() {
    let mut group = Group::new(&[1, 2, 3]).member("C0", &[0]).member("C1", &[0, 1]).member("C2", &[0, 1, 2]);
    group.settle(Assignor::Uniform);
    group.check();
    assert_eq!([group.of("C0"), group.of("C1"), group.of("C2")], ["t0p0", "t1p0 t1p1", "t2p0 t2p1 t2p2"]);
}

#[test]
fn uniform_moves_no_more_than_it_must() {
    let mut group = Group::new(&[6]).member("a", &[0]).member("b", &[0]);
    group.settle(Assignor::Uniform);
    assert_eq!(group.settle(Assignor::Uniform), 0);
    let mut group = group.member("c", &[0]);
    assert_eq!(group.settle(Assignor::Uniform), 2, "one third goes to the third");
    group.check();
    group.members.remove(0);
    assert_eq!(group.settle(Assignor::Uniform), 0, "the others keep theirs");
    group.check();
    assert_eq!(group.sizes(), [3, 3]);
}

#[test]
fn uniform_takes_in_new_partitions_without_moving_the_old() {
    let mut group = Group::new(&[4]).member("a", &[0]).member("b", &[0]);
    group.settle(Assignor::Uniform);
    group.counts.insert(topic(0), 7);
    assert_eq!(group.settle(Assignor::Uniform), 0);
    group.check();
}

proptest! {
    #[test]
    fn uniform_is_even_and_complete(
        counts in prop::collection::vec(1..9i32, 1..5),
        steps in prop::collection::vec((any::<bool>(), any::<u8>()), 1..12),
    ) {
        let topics: Vec<u128> = (0..counts.len() as u128).collect();
        let mut group = Group::new(&counts).member("0", &topics);
        for (number, (adds, pick)) in steps.into_iter().enumerate() {
            if adds || group.members.len() == 1 {
                group = group.member(&format!("{}", number + 1), &topics);
            } else {
                let at = usize::from(pick) % group.members.len();
                group.members.remove(at);
            }
            let before: BTreeMap<_, _> =
                group.members.iter().map(|(id, .., present)| (id.clone(), held(present).len())).collect();
            let moved = group.settle(Assignor::Uniform);
            group.check();
            let sizes = group.sizes();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{sizes:?}");
            // Only what is above the largest share moves.
            let over: usize = before.values().map(|size| size.saturating_sub(*least)).sum();
            prop_assert!(moved <= over);
        }
    }

    #[test]
    fn mixed_subscriptions_are_served_whole(
        counts in prop::collection::vec(1..9i32, 4),
        readers in prop::collection::vec(prop::collection::btree_set(0..4u128, 1..4), 1..7),
    ) {
        for assignor in [Assignor::Uniform, Assignor::Range] {
            let mut group = Group::new(&counts);
            for (number, topics) in readers.iter().enumerate() {
                group = group.member(&format!("{number}"), &topics.iter().copied().collect::<Vec<_>>());
            }
            group.settle(assignor);
            group.check();
            prop_assert_eq!(group.settle(assignor), 0, "a second time moves nothing");
        }
    }

    #[test]
    fn who_may_not_even_out_any_further_still_gives_every_partition_away(
        counts in prop::collection::vec(1..9i32, 4),
        readers in prop::collection::vec(prop::collection::btree_set(0..4u128, 1..4), 1..7),
        steps in 0..200usize,
    ) {
        let mut group = Group::new(&counts);
        for (number, topics) in readers.iter().enumerate() {
            group = group.member(&format!("{number}"), &topics.iter().copied().collect::<Vec<_>>());
        }
        let targets = uniform::assign_mixed(&group.candidates(), &group.counts, steps);
        for ((.., present), target) in group.members.iter_mut().zip(targets) {
            *present = target;
        }
        group.check();
    }
}
