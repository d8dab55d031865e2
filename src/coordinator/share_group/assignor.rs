//! The `simple` assignor (KIP-932): every partition goes to a member at least, every member gets a partition at least,
//! as evenly as that can be; what a member has it keeps, where that is no more than its part.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::protocol::StrBytes;

use super::super::consumer::Partitions;
use crate::base::{PartitionIndex, TopicId};

pub(super) const NAME: &str = "simple";

type Assignment = BTreeMap<StrBytes, Partitions>;

/// A partition with those who may have it.
struct Place<'a> {
    topic: TopicId,
    partition: PartitionIndex,
    candidates: &'a [usize],
    /// Who has it, by their numbers.
    members: BTreeSet<usize>,
}

/// Assigns `partitions` to the members, each with the topics that it subscribes to, given what they have.
pub(super) fn assign(
    members: &BTreeMap<StrBytes, BTreeSet<TopicId>>,
    partitions: &Partitions,
    current: &Assignment,
) -> Assignment {
    let topics: Vec<&BTreeSet<TopicId>> = members.values().collect();
    let mut subscribers: BTreeMap<TopicId, Vec<usize>> = BTreeMap::new();
    for (number, topics) in topics.iter().enumerate() {
        for topic in topics.iter().filter(|topic| partitions.contains_key(topic)) {
            subscribers.entry(*topic).or_default().push(number);
        }
    }
    let mut places: Vec<Place<'_>> = Vec::new();
    for (topic, indexes) in partitions {
        let Some(candidates) = subscribers.get(topic) else { continue };
        let place = |partition: &PartitionIndex| Place {
            topic: *topic,
            partition: *partition,
            candidates,
            members: BTreeSet::new(),
        };
        places.extend(indexes.iter().map(place));
    }
    let count = members.len().max(1);
    let mut load = vec![0; members.len()];
    keep(members, current, &mut places, &mut load, places_per_member(&subscribers, partitions, count));
    // Every partition has somebody: who has the least of all.
    for place in places.iter_mut().filter(|place| place.members.is_empty()) {
        let least = place.candidates.iter().copied().min_by_key(|number| (load[*number], *number));
        if let Some(number) = least {
            place.members.insert(number);
            load[number] += 1;
        }
    }
    // Everybody has a partition: that which the fewest have.
    let without: Vec<usize> = (0..members.len()).filter(|number| load[*number] == 0).collect();
    for number in without {
        let least = places
            .iter_mut()
            .filter(|place| place.candidates.binary_search(&number).is_ok())
            .min_by_key(|place| place.members.len());
        if let Some(place) = least {
            place.members.insert(number);
        }
    }
    let names: Vec<&StrBytes> = members.keys().collect();
    let mut assignment: Assignment = members.keys().map(|id| (id.clone(), Partitions::new())).collect();
    for place in &places {
        for number in &place.members {
            let of_member = assignment.entry(names[*number].clone()).or_default();
            of_member.entry(place.topic).or_default().insert(place.partition);
        }
    }
    assignment
}

/// The most that a member keeps, and the most members that keep one partition.
fn places_per_member(
    subscribers: &BTreeMap<TopicId, Vec<usize>>,
    partitions: &Partitions,
    members: usize,
) -> (usize, usize) {
    let count: usize = subscribers.keys().filter_map(|topic| partitions.get(topic)).map(BTreeSet::len).sum();
    match count {
        0 => (0, 0),
        _ => (count.div_ceil(members), members.div_ceil(count)),
    }
}

/// Leaves with the members what they have, up to their parts.
fn keep(
    members: &BTreeMap<StrBytes, BTreeSet<TopicId>>,
    current: &Assignment,
    places: &mut [Place<'_>],
    load: &mut [usize],
    (per_member, per_partition): (usize, usize),
) {
    let by_name: BTreeMap<(TopicId, PartitionIndex), usize> =
        places.iter().enumerate().map(|(at, place)| ((place.topic, place.partition), at)).collect();
    for (number, id) in members.keys().enumerate() {
        let had = current.get(id).into_iter().flatten();
        let had = had.flat_map(|(topic, indexes)| indexes.iter().map(move |index| (*topic, *index)));
        for at in had.filter_map(|name| by_name.get(&name)) {
            let place = &mut places[*at];
            let may_have = place.candidates.binary_search(&number).is_ok();
            if may_have && load[number] < per_member && place.members.len() < per_partition {
                place.members.insert(number);
                load[number] += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    fn topic(number: u128) -> TopicId {
        TopicId(uuid::Uuid::from_u128(number))
    }

    fn name(number: usize) -> StrBytes {
        StrBytes::from_string(format!("member-{number:03}"))
    }

    fn members(count: usize, topics: &[u128]) -> BTreeMap<StrBytes, BTreeSet<TopicId>> {
        (0..count).map(|number| (name(number), topics.iter().map(|id| topic(*id)).collect())).collect()
    }

    fn partitions(of: &[(u128, i32)]) -> Partitions {
        of.iter().map(|(id, count)| (topic(*id), (0..*count).map(PartitionIndex).collect())).collect()
    }

    fn sizes(assignment: &Assignment) -> Vec<usize> {
        assignment.values().map(|topics| topics.values().map(BTreeSet::len).sum()).collect()
    }

    #[test]
    fn partitions_are_dealt_out_evenly_and_shared_where_there_are_too_few() {
        for (member_count, partition_count, expected) in [
            (3, 6, vec![2, 2, 2]),
            (2, 5, vec![3, 2]),
            (5, 2, vec![1; 5]),
            (1, 4, vec![4]),
            (3, 0, vec![0; 3]),
        ] {
            let all = partitions(&[(1, partition_count)]);
            let assignment = assign(&members(member_count, &[1]), &all, &Assignment::new());
            assert_eq!(sizes(&assignment), expected, "{member_count} for {partition_count}");
        }
        assert_eq!(assign(&BTreeMap::new(), &partitions(&[(1, 2)]), &Assignment::new()), Assignment::new());
    }

    #[test]
    fn a_member_keeps_what_it_has_up_to_its_part() {
        let all = partitions(&[(1, 6)]);
        let before = assign(&members(2, &[1]), &all, &Assignment::new());
        let after = assign(&members(3, &[1]), &all, &before);
        assert_eq!(sizes(&after), [2, 2, 2]);
        for (id, topics) in &before {
            let kept = &after[id][&topic(1)];
            assert!(kept.is_subset(&topics[&topic(1)]), "{id} got something new");
        }
        assert_eq!(assign(&members(3, &[1]), &all, &after), after);
    }

    #[test]
    fn whatever_members_subscribe_to_nothing_and_nobody_is_left_out() {
        for seed in 0..200 {
            let mut random = Random::seeded(seed);
            let mut current = Assignment::new();
            for _ in 0..4 {
                let all = partitions(&[
                    (1, random.below(8) as i32),
                    (2, random.below(4) as i32),
                    (3, random.below(20) as i32),
                ]);
                let all: Partitions = all.into_iter().filter(|(_, indexes)| !indexes.is_empty()).collect();
                let subscriptions: BTreeMap<StrBytes, BTreeSet<TopicId>> = (0..random.below(9) as usize)
                    .map(|number| {
                        let topics = [1, 2, 3].into_iter().filter(|_| random.below(2) == 0).map(topic);
                        (name(number), topics.collect())
                    })
                    .collect();
                let assignment = assign(&subscriptions, &all, &current);
                assert!(assignment.keys().eq(subscriptions.keys()));
                for (id, topics) in &assignment {
                    assert!(topics.keys().all(|topic| subscriptions[id].contains(topic)), "seed {seed}");
                    let can_have = subscriptions[id].iter().any(|topic| all.contains_key(topic));
                    assert_eq!(!topics.is_empty(), can_have, "seed {seed}: {id}");
                }
                for (topic, indexes) in &all {
                    let wanted = subscriptions.values().any(|topics| topics.contains(topic));
                    for index in indexes {
                        let owners = assignment.values().filter(|topics| {
                            topics.get(topic).is_some_and(|indexes| indexes.contains(index))
                        });
                        assert_eq!(owners.count() > 0, wanted, "seed {seed}: {topic} {index}");
                    }
                }
                current = assignment;
            }
        }
    }
}
