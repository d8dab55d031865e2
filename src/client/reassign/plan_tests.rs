use proptest::prelude::*;

use super::*;
use crate::base::PartitionIndex;

fn ids(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

fn assignment(topics: &[(&str, &[&[i32]])]) -> Assignment {
    let partitions = topics.iter().flat_map(|(topic, partitions)| {
        partitions
            .iter()
            .zip(0..)
            .map(|(replicas, index)| (TopicPartition::new(*topic, PartitionIndex(index)), ids(replicas)))
    });
    partitions.collect()
}

/// Brokers from 1 on, in these racks.
fn candidates(racks: &[Option<u8>]) -> Vec<Candidate> {
    let one = |(rack, id): (&Option<u8>, i32)| Candidate {
        id: BrokerId(id),
        rack: rack.map(|rack| format!("rack-{rack}")),
    };
    racks.iter().zip(1..).map(one).collect()
}

fn without_racks(count: usize) -> Vec<Candidate> {
    candidates(&vec![None; count])
}

/// Replicas that are on brokers where they were not.
fn moves(before: &Assignment, after: &Assignment) -> usize {
    let new = |(partition, replicas): (&TopicPartition, &Vec<BrokerId>)| {
        replicas.iter().filter(|id| !before[partition].contains(id)).count()
    };
    after.iter().map(new).sum()
}

/// How many replicas, or first replicas, each candidate has.
fn loads<'a>(
    partitions: impl Iterator<Item = &'a [BrokerId]>,
    candidates: &[Candidate],
) -> BTreeMap<BrokerId, usize> {
    let mut loads: BTreeMap<BrokerId, usize> = candidates.iter().map(|one| (one.id, 0)).collect();
    partitions.flatten().for_each(|id| *loads.get_mut(id).expect("a candidate") += 1);
    loads
}

fn spread(loads: &BTreeMap<BrokerId, usize>) -> usize {
    let most = loads.values().max().copied().unwrap_or(0);
    most - loads.values().min().copied().unwrap_or(0)
}

fn topics(assignment: &Assignment) -> BTreeSet<&TopicName> {
    assignment.keys().map(|partition| &partition.topic).collect()
}

fn of_topic<'a>(assignment: &'a Assignment, topic: &TopicName) -> impl Iterator<Item = &'a [BrokerId]> {
    let of_topic = assignment.iter().filter(move |(partition, _)| partition.topic == *topic);
    of_topic.map(|(_, replicas)| &replicas[..])
}

fn all(assignment: &Assignment) -> impl Iterator<Item = &[BrokerId]> {
    assignment.values().map(|replicas| &replicas[..])
}

#[test]
fn a_new_broker_gets_its_share_and_nothing_else_moves() {
    let present = assignment(&[("t", &[&[1, 2], &[2, 1], &[1, 2], &[2, 1], &[1, 2], &[2, 1]])]);
    let brokers = without_racks(3);
    let planned = plan(&present, &brokers).unwrap();
    assert_eq!(loads(all(&planned), &brokers).into_values().collect::<Vec<_>>(), [4, 4, 4]);
    assert_eq!(moves(&present, &planned), 4);
    assert_eq!(
        loads(all(&planned).map(|list| &list[..1]), &brokers).into_values().collect::<Vec<_>>(),
        [2; 3]
    );
}

#[test]
fn a_broker_that_is_left_out_gives_all_it_has_and_what_is_elsewhere_stays() {
    let present = assignment(&[("t", &[&[1, 2, 3], &[2, 3, 4], &[3, 4, 1], &[4, 1, 2]])]);
    let planned = plan(&present, &without_racks(3)).unwrap();
    assert_eq!(moves(&present, &planned), 3);
    assert!(all(&planned).all(|replicas| replicas.iter().all(|id| id.0 <= 3)));
}

#[test]
fn what_is_balanced_over_topics_stays_though_a_topic_alone_would_not_be_told_apart() {
    // Each topic has one partition more here than there; together they are even.
    let present = assignment(&[("a", &[&[1]]), ("b", &[&[1]]), ("c", &[&[2], &[3]]), ("d", &[&[2], &[3]])]);
    assert_eq!(plan(&present, &without_racks(3)), Ok(present));
}

#[test]
fn topics_of_one_partition_are_dealt_out() {
    let present = assignment(&[("a", &[&[1]]), ("b", &[&[1]]), ("c", &[&[1]])]);
    let brokers = without_racks(3);
    let planned = plan(&present, &brokers).unwrap();
    assert_eq!(loads(all(&planned), &brokers).into_values().collect::<Vec<_>>(), [1; 3]);
    assert_eq!(moves(&present, &planned), 2);
}

#[test]
fn a_rack_that_is_twice_there_gives_one_up() {
    let brokers = candidates(&[Some(1), Some(1), Some(2), Some(2)]);
    let planned = plan(&assignment(&[("t", &[&[1, 2], &[3, 4]])]), &brokers).unwrap();
    assert!(all(&planned).all(|replicas| (replicas[0].0 <= 2) != (replicas[1].0 <= 2)), "{planned:?}");
    assert_eq!(spread(&loads(all(&planned), &brokers)), 0);
}

#[test]
fn a_lone_broker_of_a_rack_has_a_replica_of_all_when_each_rack_must() {
    let brokers = candidates(&[Some(1), Some(2), Some(2), Some(2)]);
    let present = assignment(&[("t", &[&[2, 3], &[3, 4], &[4, 2]])]);
    let planned = plan(&present, &brokers).unwrap();
    assert_eq!(loads(all(&planned), &brokers).into_values().collect::<Vec<_>>(), [3, 1, 1, 1]);
    assert_eq!(moves(&present, &planned), 3);
}

#[test]
fn what_cannot_be_planned_is_told() {
    let present = assignment(&[("t", &[&[1, 2]])]);
    let refused = |racks: &[Option<u8>]| plan(&present, &candidates(racks)).unwrap_err().to_string();
    assert_eq!(refused(&[None]), "partition t-0 has 2 replicas, more than the 1 brokers");
    assert_eq!(refused(&[Some(1), None]), "broker 2 has no rack, others have one");
    let twice = [candidates(&[None, None]), candidates(&[None])].concat();
    assert_eq!(plan(&present, &twice), Err(PlanError::BrokerTwice(BrokerId(1))));
}

/// The fewest moves to an even assignment of one topic, by trying all.
fn fewest_moves(present: &Assignment, candidates: &[Candidate]) -> usize {
    fn subsets(from: &[Candidate], size: usize) -> Vec<Vec<BrokerId>> {
        match (size, from) {
            (0, _) => vec![Vec::new()],
            (_, []) => Vec::new(),
            (_, [first, rest @ ..]) => {
                let with = subsets(rest, size - 1).into_iter().map(|mut rest| {
                    rest.insert(0, first.id);
                    rest
                });
                with.chain(subsets(rest, size)).collect()
            }
        }
    }
    fn go(
        left: &[(TopicPartition, usize)],
        made: &mut Assignment,
        try_one: &mut impl FnMut(&Assignment),
        from: &[Candidate],
    ) {
        let [(partition, size), rest @ ..] = left else { return try_one(made) };
        for replicas in subsets(from, *size) {
            made.insert(partition.clone(), replicas);
            go(rest, made, try_one, from);
        }
    }
    let left: Vec<_> =
        present.iter().map(|(partition, replicas)| (partition.clone(), replicas.len())).collect();
    let mut fewest = usize::MAX;
    let mut try_one = |made: &Assignment| {
        if spread(&loads(all(made), candidates)) <= 1 {
            fewest = fewest.min(moves(present, made));
        }
    };
    go(&left, &mut Assignment::new(), &mut try_one, candidates);
    fewest
}

/// Topics with replicas anywhere on brokers 1 to 9, and not more than there are candidates.
fn any_topics(candidates: usize) -> impl Strategy<Value = Assignment> {
    let most = candidates.min(4);
    let shuffled = Just((1..=9).map(BrokerId).collect::<Vec<_>>()).prop_shuffle();
    let partition = (shuffled, 1..=most).prop_map(|(brokers, count)| brokers[..count].to_vec());
    let topic = prop::collection::vec(partition, 1..8);
    prop::collection::vec(topic, 1..5).prop_map(|topics| {
        let partitions = topics.into_iter().zip(["a", "b", "c", "d"]).flat_map(|(partitions, topic)| {
            partitions
                .into_iter()
                .zip(0..)
                .map(move |(replicas, index)| (TopicPartition::new(topic, PartitionIndex(index)), replicas))
        });
        partitions.collect()
    })
}

fn any_case() -> impl Strategy<Value = (Vec<Candidate>, Assignment)> {
    let racks = prop_oneof![
        (1_usize..8).prop_map(|count| vec![None; count]),
        prop::collection::vec((1_u8..4).prop_map(Some), 1..8),
    ];
    racks.prop_flat_map(|racks| (Just(candidates(&racks)), any_topics(racks.len())))
}

/// The most replicas that a rack needs to have of a partition: as evenly as the racks' sizes allow.
fn fair(sizes: &[usize], replicas: usize) -> usize {
    (0..=replicas)
        .find(|level| sizes.iter().map(|size| size.min(level)).sum::<usize>() >= replicas)
        .expect("there are enough brokers")
}

proptest! {
    #[test]
    fn each_partition_keeps_its_number_of_replicas_on_brokers_that_differ((candidates, present) in any_case()) {
        let planned = plan(&present, &candidates).unwrap();
        prop_assert!(planned.keys().eq(present.keys()));
        for (partition, replicas) in &planned {
            prop_assert_eq!(replicas.len(), present[partition].len());
            let distinct: BTreeSet<_> = replicas.iter().collect();
            prop_assert_eq!(distinct.len(), replicas.len());
            prop_assert!(replicas.iter().all(|id| candidates.iter().any(|one| one.id == *id)));
        }
    }

    #[test]
    fn what_was_planned_stays_as_it_is((candidates, present) in any_case()) {
        let planned = plan(&present, &candidates).unwrap();
        prop_assert_eq!(plan(&planned, &candidates), Ok(planned));
    }

    #[test]
    fn racks_have_as_few_of_a_partition_as_their_sizes_allow((candidates, present) in any_case()) {
        let planned = plan(&present, &candidates).unwrap();
        let rack_of: BTreeMap<BrokerId, &Option<String>> =
            candidates.iter().map(|one| (one.id, &one.rack)).collect();
        let mut sizes: BTreeMap<&Option<String>, usize> = BTreeMap::new();
        candidates.iter().for_each(|one| *sizes.entry(&one.rack).or_default() += 1);
        let sizes_only: Vec<usize> = sizes.values().copied().collect();
        for replicas in planned.values() {
            let most = fair(&sizes_only, replicas.len());
            for (rack, size) in &sizes {
                let there = replicas.iter().filter(|id| rack_of[*id] == *rack).count();
                prop_assert!(there <= most && there >= most.saturating_sub(1).min(*size), "{:?}", planned);
            }
        }
        // Whoever shares a rack has the same share.
        for topic in topics(&planned) {
            let loads = loads(of_topic(&planned, topic), &candidates);
            for rack in sizes.keys() {
                let in_rack = loads.iter().filter(|(id, _)| rack_of[*id] == *rack);
                prop_assert!(spread(&in_rack.map(|(id, load)| (*id, *load)).collect()) <= 1);
            }
        }
    }

    #[test]
    fn brokers_differ_by_one_replica_at_most(
        (racks, size) in (1_u8..4, 1_usize..4),
        (present, with_racks) in any_topics(3).prop_flat_map(|topics| (Just(topics), any::<bool>())),
    ) {
        let brokers = usize::from(racks) * size;
        prop_assume!(brokers >= 4 || present.values().all(|replicas| replicas.len() <= brokers));
        let racks: Vec<_> = (0..brokers).map(|at| with_racks.then_some(at as u8 % racks)).collect();
        let candidates = candidates(&racks);
        let planned = plan(&present, &candidates).unwrap();
        prop_assert!(spread(&loads(all(&planned), &candidates)) <= 1);
        for topic in topics(&planned) {
            prop_assert!(spread(&loads(of_topic(&planned, topic), &candidates)) <= 1);
        }
    }

    #[test]
    fn brokers_lead_the_same_number_of_a_topic(count in 1_usize..8, replicas in 1_usize..4, partitions in 1_usize..20) {
        let replicas = replicas.min(count);
        let lists: Vec<Vec<i32>> = vec![(1..=replicas as i32).collect(); partitions];
        let lists: Vec<&[i32]> = lists.iter().map(|list| &list[..]).collect();
        let candidates = without_racks(count);
        let planned = plan(&assignment(&[("t", &lists), ("u", &lists)]), &candidates).unwrap();
        let firsts = loads(all(&planned).map(|list| &list[..1]), &candidates);
        prop_assert!(spread(&firsts) <= 1, "{:?}", planned);
        for topic in topics(&planned) {
            prop_assert!(spread(&loads(of_topic(&planned, topic).map(|list| &list[..1]), &candidates)) <= 1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn there_are_no_fewer_moves(
        count in 1_usize..4,
        lists in prop::collection::vec((Just(vec![1, 2, 3, 4, 5]).prop_shuffle(), 1_usize..3), 1..6),
    ) {
        let lists: Vec<Vec<i32>> =
            lists.into_iter().map(|(ids, size)| ids[..size.min(count)].to_vec()).collect();
        let lists: Vec<&[i32]> = lists.iter().map(|list| &list[..]).collect();
        let present = assignment(&[("t", &lists)]);
        let candidates = without_racks(count);
        let planned = plan(&present, &candidates).unwrap();
        prop_assert_eq!(moves(&present, &planned), fewest_moves(&present, &candidates));
    }
}
