//! Which brokers hold the replicas of new partitions: the two algorithms of Kafka's `AdminUtils`.
//!
//! First replicas go round the brokers from a random start; the others follow at a shift that grows with
//! each round, so that the followers of one leader spread over all brokers. With racks the round visits
//! the racks in turn, and a replica goes to a rack that has none as long as there is one.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::base::BrokerId;
use crate::base::random::Random;

/// A broker that may hold replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Candidate<'a> {
    pub id: BrokerId,
    pub rack: Option<&'a str>,
}

/// Replicas for `partitions` (their numbers), `replication_factor` each. Racks count when every
/// candidate has one. `candidates` ascend by id; there are at least `replication_factor` of them.
/// Partitions added to a topic continue its round: `first_leader` is the first replica of its partition 0.
pub(super) fn assign(
    partitions: Range<usize>,
    replication_factor: usize,
    candidates: &[Candidate<'_>],
    first_leader: Option<BrokerId>,
    random: &mut Random,
) -> Vec<Vec<BrokerId>> {
    assert!(replication_factor >= 1 && replication_factor <= candidates.len());
    let (start, shift) = match first_leader {
        Some(leader) => {
            let start = candidates.iter().position(|candidate| candidate.id >= leader).unwrap_or(0);
            (start, start)
        }
        None => {
            let mut any = || random.below(candidates.len() as u64) as usize;
            (any(), any())
        }
    };
    let racks: Option<Vec<&str>> = candidates.iter().map(|candidate| candidate.rack).collect();
    match racks {
        Some(racks) => {
            let brokers: Vec<(BrokerId, &str)> =
                candidates.iter().zip(racks).map(|(candidate, rack)| (candidate.id, rack)).collect();
            rack_aware(partitions, replication_factor, &alternate_racks(&brokers), start, shift)
        }
        None => {
            let brokers: Vec<BrokerId> = candidates.iter().map(|candidate| candidate.id).collect();
            rack_unaware(partitions, replication_factor, &brokers, start, shift)
        }
    }
}

fn rack_unaware(
    partitions: Range<usize>,
    replication_factor: usize,
    brokers: &[BrokerId],
    start: usize,
    mut shift: usize,
) -> Vec<Vec<BrokerId>> {
    let count = brokers.len();
    let mut assignment = Vec::with_capacity(partitions.len());
    for partition in partitions {
        if partition > 0 && partition % count == 0 {
            shift += 1;
        }
        let first = (partition + start) % count;
        let mut replicas = vec![brokers[first]];
        for replica in 0..replication_factor - 1 {
            replicas.push(brokers[follower(first, shift, replica, count)]);
        }
        assignment.push(replicas);
    }
    assignment
}

/// `brokers` come with their racks in turn, see [`alternate_racks`].
fn rack_aware(
    partitions: Range<usize>,
    replication_factor: usize,
    brokers: &[(BrokerId, &str)],
    start: usize,
    mut shift: usize,
) -> Vec<Vec<BrokerId>> {
    let count = brokers.len();
    let racks_count = {
        let mut racks: Vec<&str> = brokers.iter().map(|(_, rack)| *rack).collect();
        racks.sort_unstable();
        racks.dedup();
        racks.len()
    };
    let mut assignment = Vec::with_capacity(partitions.len());
    for partition in partitions {
        if partition > 0 && partition % count == 0 {
            shift += 1;
        }
        let first = (partition + start) % count;
        let (leader, leader_rack) = brokers[first];
        let mut replicas = vec![leader];
        let mut racks = vec![leader_rack];
        // Each step of `step` tries the next broker; after one round without a hit every rack that is
        // still free has only brokers that hold a replica, which cannot be: replicas never outnumber
        // brokers.
        let mut step = 0;
        while replicas.len() < replication_factor {
            let (broker, rack) = brokers[follower(first, shift * racks_count, step, count)];
            let rack_is_taken = racks.contains(&rack);
            if (!rack_is_taken || racks.len() == racks_count) && !replicas.contains(&broker) {
                replicas.push(broker);
                if !rack_is_taken {
                    racks.push(rack);
                }
            }
            step += 1;
        }
        assignment.push(replicas);
    }
    assignment
}

/// The position of a follower: never that of the first replica.
fn follower(first: usize, shift: usize, replica: usize, count: usize) -> usize {
    if count == 1 {
        return first;
    }
    let distance = 1 + (shift + replica) % (count - 1);
    (first + distance) % count
}

/// Orders brokers so that the racks, by name, come in turn: racks {0,1,2}, {3,4,5}, {6,7,8} give
/// 0, 3, 6, 1, 4, 7, 2, 5, 8.
fn alternate_racks<'a>(brokers: &[(BrokerId, &'a str)]) -> Vec<(BrokerId, &'a str)> {
    let mut by_rack: BTreeMap<&str, Vec<(BrokerId, &'a str)>> = BTreeMap::new();
    for broker in brokers {
        by_rack.entry(broker.1).or_default().push(*broker);
    }
    for rack in by_rack.values_mut() {
        rack.sort_unstable();
    }
    let rounds = by_rack.values().map(Vec::len).max().unwrap_or(0);
    (0..rounds).flat_map(|round| by_rack.values().filter_map(move |rack| rack.get(round))).copied().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(ids: &[i32]) -> Vec<BrokerId> {
        ids.iter().copied().map(BrokerId).collect()
    }

    fn numbers(assignment: Vec<Vec<BrokerId>>) -> Vec<Vec<i32>> {
        assignment.into_iter().map(|replicas| replicas.into_iter().map(|id| id.0).collect()).collect()
    }

    /// The table in the comment of Kafka's `AdminUtils`: five brokers, ten partitions, three replicas.
    #[test]
    fn without_racks_the_followers_shift_after_each_round() {
        let assignment = rack_unaware(0..10, 3, &ids(&[0, 1, 2, 3, 4]), 0, 0);
        assert_eq!(
            numbers(assignment),
            [
                [0, 1, 2],
                [1, 2, 3],
                [2, 3, 4],
                [3, 4, 0],
                [4, 0, 1],
                [0, 2, 3],
                [1, 3, 4],
                [2, 4, 0],
                [3, 0, 1],
                [4, 1, 2]
            ]
        );
    }

    #[test]
    fn racks_come_in_turn() {
        let brokers: Vec<(BrokerId, &str)> =
            (0..9).map(|id| (BrokerId(id), ["rack1", "rack2", "rack3"][id as usize / 3])).collect();
        let order: Vec<i32> = alternate_racks(&brokers).iter().map(|(id, _)| id.0).collect();
        assert_eq!(order, [0, 3, 6, 1, 4, 7, 2, 5, 8]);
        let uneven = [(BrokerId(5), "b"), (BrokerId(1), "a"), (BrokerId(0), "b"), (BrokerId(7), "b")];
        let order: Vec<i32> = alternate_racks(&uneven).iter().map(|(id, _)| id.0).collect();
        assert_eq!(order, [1, 0, 5, 7]);
    }

    #[test]
    fn with_racks_each_partition_is_in_as_many_racks_as_it_can() {
        let brokers: Vec<(BrokerId, &str)> =
            (0..6).map(|id| (BrokerId(id), ["r1", "r2", "r3"][id as usize / 2])).collect();
        let assignment = rack_aware(0..6, 3, &alternate_racks(&brokers), 0, 0);
        for replicas in &assignment {
            let mut racks: Vec<i32> = replicas.iter().map(|id| id.0 / 2).collect();
            racks.sort_unstable();
            assert_eq!(racks, [0, 1, 2], "{assignment:?}");
        }
    }

    proptest! {
        #[test]
        fn replicas_are_distinct_and_spread_evenly(
            brokers in 1usize..9, rounds in 1usize..6, factor in 1usize..9, racks in 0usize..4, seed: u64,
        ) {
            let factor = factor.min(brokers);
            // Equal racks, so that even loads are possible.
            let racks = if racks > 0 && brokers % racks == 0 { racks } else { 0 };
            let names = ["a", "b", "c", "d"];
            let candidates: Vec<Candidate<'_>> = (0..brokers)
                .map(|id| Candidate {
                    id: BrokerId(id as i32 * 3),
                    rack: (racks > 0).then(|| names[id % racks.max(1)]),
                })
                .collect();
            let partitions = brokers * rounds;
            let assignment = assign(0..partitions, factor, &candidates, None, &mut Random::seeded(seed));
            let mut leaders = BTreeMap::new();
            let mut replicas_of = BTreeMap::new();
            for replicas in &assignment {
                prop_assert_eq!(replicas.len(), factor);
                let mut sorted = replicas.clone();
                sorted.sort_unstable();
                sorted.dedup();
                prop_assert_eq!(sorted.len(), factor, "{:?}", assignment);
                *leaders.entry(replicas[0]).or_insert(0) += 1;
                for replica in replicas {
                    *replicas_of.entry(*replica).or_insert(0) += 1;
                }
                if racks > 0 {
                    let mut used: Vec<i32> = replicas.iter().map(|id| id.0 / 3 % racks as i32).collect();
                    used.sort_unstable();
                    used.dedup();
                    prop_assert_eq!(used.len(), racks.min(factor), "{:?}", assignment);
                }
            }
            // Whole rounds: every broker leads equally often.
            prop_assert!(leaders.values().all(|count| *count == rounds), "{:?}", leaders);
            if racks == 0 {
                prop_assert!(replicas_of.values().all(|count| *count == rounds * factor), "{:?}", replicas_of);
            }
        }
    }

    #[test]
    fn later_partitions_continue_the_round() {
        let all = rack_unaware(0..7, 2, &ids(&[0, 1, 2]), 1, 0);
        let later = rack_unaware(3..7, 2, &ids(&[0, 1, 2]), 1, 0);
        assert_eq!(all[3..], later);
    }
}
