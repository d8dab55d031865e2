//! Sticky (the goals of Kafka's `StickyAssignor`): first as even as the subscriptions allow, then as many
//! partitions as possible where they were.
//!
//! Claims from the last generation are kept, the unowned partitions go to the least loaded members, and then
//! partitions move one at a time from a member to another that has at least two fewer. Each move lowers the
//! sum of squares, so it ends; it ends where no single move makes the load more even.

use std::collections::{BTreeMap, BTreeSet};

use super::{Assignment, Members, PartitionCounts, Subscription};
use crate::base::{PartitionIndex, TopicName, TopicPartition};
use crate::client::protocol::decode_sticky_user_data;

pub fn assign(members: &Members, topics: &PartitionCounts) -> Assignment {
    let subscribers = subscribers(members, topics);
    let mut owned = kept_claims(members, topics, &subscribers);
    give_unowned(&mut owned, topics, &subscribers);
    balance(&mut owned, &subscribers);
    owned.into_iter().map(|(member, partitions)| (member, partitions.into_iter().collect())).collect()
}

type Owned = BTreeMap<String, BTreeSet<TopicPartition>>;
type Subscribers<'a> = BTreeMap<&'a TopicName, Vec<&'a String>>;

fn subscribers<'a>(members: &'a Members, topics: &'a PartitionCounts) -> Subscribers<'a> {
    let subscribed = |topic: &TopicName| {
        members.iter().filter(|(_, s)| s.topics.contains(topic)).map(|(member, _)| member).collect()
    };
    topics.keys().map(|topic| (topic, subscribed(topic))).collect()
}

/// Each member's claims that still hold: the topic exists and is subscribed, and no other member claims the
/// partition from a later generation. Of two claims from the same generation neither can be trusted more;
/// the first member by name keeps it.
fn kept_claims(members: &Members, topics: &PartitionCounts, subscribers: &Subscribers<'_>) -> Owned {
    let mut owner: BTreeMap<TopicPartition, (i32, &String)> = BTreeMap::new();
    for (member, subscription) in members {
        let (claimed, generation) = claims(subscription);
        for partition in claimed {
            let exists = topics
                .get(&partition.topic)
                .is_some_and(|&count| (0..i64::from(count)).contains(&i64::from(partition.partition.0)));
            let subscribed = subscribers.get(&partition.topic).is_some_and(|s| s.contains(&member));
            if !exists || !subscribed {
                continue;
            }
            match owner.get(&partition) {
                Some(&(other, _)) if other >= generation => {}
                _ => {
                    owner.insert(partition, (generation, member));
                }
            }
        }
    }
    let mut owned: Owned = members.keys().map(|member| (member.clone(), BTreeSet::new())).collect();
    for (partition, (_, member)) in owner {
        owned.get_mut(member).expect("every member has an entry").insert(partition);
    }
    owned
}

fn claims(subscription: &Subscription) -> (Vec<TopicPartition>, i32) {
    let user_data = subscription.user_data.clone().and_then(decode_sticky_user_data);
    user_data.unwrap_or_else(|| (subscription.owned.clone(), subscription.generation))
}

/// Gives every partition without owner to its least loaded subscriber. Partitions with few possible owners
/// come first, so that they do not find their owners already full.
fn give_unowned(owned: &mut Owned, topics: &PartitionCounts, subscribers: &Subscribers<'_>) {
    let taken: BTreeSet<&TopicPartition> = owned.values().flatten().collect();
    let mut free = Vec::new();
    for (topic, &count) in topics {
        let all = (0..count).map(|p| TopicPartition::new(topic.clone(), PartitionIndex(p as i32)));
        free.extend(all.filter(|partition| !taken.contains(partition)));
    }
    free.sort_by_key(|partition| subscribers[&partition.topic].len());
    for partition in free {
        if let Some(member) = least_loaded(owned, &subscribers[&partition.topic]) {
            let partitions = owned.get_mut(member).expect("every member has an entry");
            partitions.insert(partition);
        }
    }
}

/// Moves partitions until no member could take one from another that has two or more than it.
fn balance(owned: &mut Owned, subscribers: &Subscribers<'_>) {
    while let Some((from, to, partition)) = next_move(owned, subscribers) {
        owned.get_mut(&from).expect("every member has an entry").remove(&partition);
        owned.get_mut(&to).expect("every member has an entry").insert(partition);
    }
}

/// The move between the most and the least loaded members that are two or more apart. The last partition
/// in order moves, so that the first ones stay.
fn next_move(owned: &Owned, subscribers: &Subscribers<'_>) -> Option<(String, String, TopicPartition)> {
    let mut by_load: Vec<_> = owned.iter().collect();
    by_load.sort_by_key(|(member, partitions)| (std::cmp::Reverse(partitions.len()), *member));
    for (from, partitions) in by_load {
        let best = partitions
            .iter()
            .rev()
            .filter_map(|p| Some((least_loaded(owned, &subscribers[&p.topic])?, p)))
            .min_by_key(|(to, _)| owned[*to].len());
        if let Some((to, partition)) = best
            && owned[to].len() + 2 <= partitions.len()
        {
            return Some((from.clone(), to.clone(), partition.clone()));
        }
    }
    None
}

fn least_loaded<'a>(owned: &Owned, members: &[&'a String]) -> Option<&'a String> {
    members.iter().copied().min_by_key(|member| owned[*member].len())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{expect, members, partitions, topics};
    use super::*;
    use crate::client::protocol::encode_sticky_user_data;
    use proptest::prelude::*;

    /// Each member's claims become what `assignment` gave it.
    fn after(members: &mut Members, assignment: &Assignment, generation: i32) {
        for (member, subscription) in members.iter_mut() {
            let owned = assignment.get(member).cloned().unwrap_or_default();
            subscription.user_data = Some(encode_sticky_user_data(&owned, generation));
        }
    }

    fn moved(before: &Assignment, after: &Assignment) -> usize {
        let kept = |(member, partitions): (&String, &Vec<TopicPartition>)| {
            partitions.iter().filter(|p| before.get(member).is_some_and(|b| b.contains(p))).count()
        };
        after.values().map(Vec::len).sum::<usize>() - after.iter().map(kept).sum::<usize>()
    }

    /// The worked example of KIP-54: four topics of two partitions.
    #[test]
    fn a_members_partitions_are_shared_out_and_the_others_keep_theirs() {
        let topics = topics(&[("t0", 2), ("t1", 2), ("t2", 2), ("t3", 2)]);
        let all: &[&str] = &["t0", "t1", "t2", "t3"];
        let mut members = members(&[all, all, all]);
        let first = assign(&members, &topics);
        expect(&first, &[("C0", "t0p0 t1p1 t3p0"), ("C1", "t0p1 t2p0 t3p1"), ("C2", "t1p0 t2p1")]);

        members.remove("C1");
        after(&mut members, &first, 1);
        let second = assign(&members, &topics);
        assert_eq!(moved(&first, &second), 3, "only what C1 had");
        assert_eq!(second["C0"].len(), 4);
        assert_eq!(second["C2"].len(), 4);
    }

    /// The example where round-robin is uneven: t1p1 can go to C1.
    #[test]
    fn unequal_subscriptions_are_as_even_as_they_can_be() {
        let members = members(&[&["t0"], &["t0", "t1"], &["t0", "t1", "t2"]]);
        let assignment = assign(&members, &topics(&[("t0", 1), ("t1", 2), ("t2", 3)]));
        expect(&assignment, &[("C0", "t0p0"), ("C1", "t1p0 t1p1"), ("C2", "t2p0 t2p1 t2p2")]);
    }

    #[test]
    fn a_leaving_member_in_unequal_subscriptions_moves_only_its_own() {
        let topics = topics(&[("t0", 1), ("t1", 2), ("t2", 3)]);
        let mut members = members(&[&["t0"], &["t0", "t1"], &["t0", "t1", "t2"]]);
        let first = assign(&members, &topics);
        members.remove("C0");
        after(&mut members, &first, 1);
        expect(&assign(&members, &topics), &[("C1", "t0p0 t1p0 t1p1"), ("C2", "t2p0 t2p1 t2p2")]);
    }

    #[test]
    fn a_newcomer_takes_its_share_and_no_more_moves() {
        let topics = topics(&[("t", 6)]);
        let mut two = members(&[&["t"], &["t"]]);
        let first = assign(&two, &topics);
        after(&mut two, &first, 1);
        two.extend(members(&[&["t"], &["t"], &["t"]]).into_iter().skip(2));
        let second = assign(&two, &topics);
        assert!(second.values().all(|partitions| partitions.len() == 2));
        assert_eq!(moved(&first, &second), 2);
    }

    #[test]
    fn the_claim_of_the_later_generation_wins() {
        let mut members = members(&[&["t"], &["t"]]);
        let claim = partitions("tp0 tp1");
        members.get_mut("C0").expect("there").user_data = Some(encode_sticky_user_data(&claim, 3));
        members.get_mut("C1").expect("there").user_data = Some(encode_sticky_user_data(&claim, 4));
        let assignment = assign(&members, &topics(&[("t", 2)]));
        expect(&assignment, &[("C0", "tp1"), ("C1", "tp0")]);
    }

    proptest! {
        #[test]
        fn all_is_assigned_evenly_and_the_second_round_moves_nothing(
            counts in proptest::collection::vec(0u32..9, 1..5),
            subscriptions in proptest::collection::vec(1u8..32, 1..6),
        ) {
            let topics: PartitionCounts =
                counts.iter().enumerate().map(|(n, &count)| (format!("t{n}").as_str().into(), count)).collect();
            let names: Vec<String> = (0..counts.len()).map(|n| format!("t{n}")).collect();
            let subscribed: Vec<Vec<&str>> = subscriptions.iter().map(|bits| {
                names.iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1).map(|(_, t)| t.as_str()).collect()
            }).collect();
            let subscribed: Vec<&[&str]> = subscribed.iter().map(Vec::as_slice).collect();
            let mut members = members(&subscribed);
            let first = assign(&members, &topics);
            let mut seen = BTreeSet::new();
            for (member, partitions) in &first {
                for partition in partitions {
                    prop_assert!(members[member].topics.contains(&partition.topic));
                    prop_assert!(seen.insert(partition.clone()), "{partition} twice");
                    for (other, subscription) in &members {
                        if subscription.topics.contains(&partition.topic) {
                            prop_assert!(first[other].len() + 1 >= partitions.len());
                        }
                    }
                }
            }
            let possible: u32 = topics.iter()
                .filter(|(topic, _)| members.values().any(|s| s.topics.contains(topic)))
                .map(|(_, count)| count).sum();
            prop_assert_eq!(seen.len(), possible as usize);
            after(&mut members, &first, 1);
            prop_assert_eq!(assign(&members, &topics), first);
        }
    }
}
