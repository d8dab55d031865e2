use proptest::prelude::*;

use super::super::super::command::{Command, Heartbeat};
use super::super::super::image::ConfigResource;
use super::super::super::state::State;
use super::super::testing::Cluster;
use super::*;
use crate::base::{LeaderEpoch, PartitionIndex};

fn ids(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

fn numbers(ids: &[BrokerId]) -> Vec<i32> {
    ids.iter().map(|id| id.0).collect()
}

fn command(name: &str, index: i32, replicas: Option<&[i32]>, may_change_factor: bool) -> Command {
    let wanted = Reassignment { index: PartitionIndex(index), replicas: replicas.map(ids) };
    let topics = vec![(name.to_owned(), vec![wanted])];
    Command::AlterReassignments(AlterReassignments { may_change_factor, topics })
}

fn reassign(cluster: &mut Cluster, replicas: Option<&[i32]>) -> Result<(), ErrorCode> {
    let response = cluster.run(command("t", 0, replicas, true)).unwrap();
    response.reassignments_altered().remove(0).map_err(|refusal| refusal.code)
}

/// Replicas, those that are added, those that are removed.
fn plan_of(cluster: &Cluster) -> (Vec<i32>, Vec<i32>, Vec<i32>) {
    let partition = partition(cluster);
    let transit = partition.transit();
    (numbers(&partition.replicas), numbers(&transit.adding), numbers(&transit.removing))
}

fn partition(cluster: &Cluster) -> PartitionImage {
    PartitionImage::clone(&cluster.state.image().topic("t").unwrap().partitions[0])
}

/// The partition as it was: replicas, ISR, leader. What is wanted. What is under way then: replicas, adding, removing.
type Row = (
    (&'static [i32], &'static [i32], i32),
    &'static [&'static [i32]],
    (&'static [i32], &'static [i32], &'static [i32]),
);

const ROWS: &[Row] = &[
    // Somewhere else altogether.
    ((&[1, 2], &[1, 2], 1), &[&[3, 4]], (&[3, 4, 1, 2], &[3, 4], &[1, 2])),
    // One is replaced.
    ((&[1, 2, 3], &[1, 2, 3], 1), &[&[1, 2, 4]], (&[1, 2, 4, 3], &[4], &[3])),
    // One more.
    ((&[1, 2], &[1, 2], 1), &[&[1, 2, 3]], (&[1, 2, 3], &[3], &[])),
    // One less is done at once, and so is another order.
    ((&[1, 2, 3], &[1, 2, 3], 1), &[&[1, 3]], (&[1, 3], &[], &[])),
    ((&[1, 2, 3], &[1, 2], 1), &[&[3, 2, 1]], (&[3, 2, 1], &[], &[])),
    // To stay is nothing.
    ((&[1, 2, 3], &[1, 2], 1), &[&[1, 2, 3]], (&[1, 2, 3], &[], &[])),
    // Fewer, but those that stay are not in sync.
    ((&[1, 2, 3], &[1], 1), &[&[2, 3]], (&[2, 3, 1], &[], &[1])),
    // The aim changes: what was to come may go again, and what was there stays known as that.
    ((&[1, 2, 3], &[1, 2, 3], 1), &[&[1, 2, 4], &[1, 2, 5]], (&[1, 2, 5, 3, 4], &[4, 5], &[3, 4])),
    ((&[1, 2, 3], &[1, 2, 3], 1), &[&[1, 2, 4], &[1, 4, 5]], (&[1, 4, 5, 2, 3], &[4, 5], &[2, 3])),
    ((&[1, 2, 3], &[1, 2, 3], 1), &[&[1, 2, 4], &[1, 2, 3, 4]], (&[1, 2, 3, 4], &[4], &[])),
    // Back to where it was is done at once.
    ((&[1, 2, 3], &[1, 2, 3], 1), &[&[1, 2, 4], &[1, 2, 3]], (&[1, 2, 3], &[], &[])),
    // The same again changes nothing.
    ((&[1, 2, 3], &[1, 2, 3], 1), &[&[1, 2, 4], &[1, 2, 4]], (&[1, 2, 4, 3], &[4], &[3])),
];

#[test]
fn what_is_wanted_is_added_and_what_is_not_stays_until_then() {
    for (position, ((replicas, isr, leader), wanted, expected)) in ROWS.iter().enumerate() {
        let mut cluster = Cluster::of_many(5);
        cluster.put("t", replicas, isr, *leader);
        for target in *wanted {
            assert_eq!(reassign(&mut cluster, Some(target)), Ok(()), "row {position}");
        }
        let found = plan_of(&cluster);
        let found = (&found.0[..], &found.1[..], &found.2[..]);
        assert_eq!(found, *expected, "row {position}");
        // Given up, the replicas are those from before; where nothing was under way any more that is told.
        let is_under_way = !expected.1.is_empty() || !expected.2.is_empty();
        let given_up = reassign(&mut cluster, None);
        if !is_under_way {
            assert_eq!(given_up, Err(ErrorCode::NoReassignmentInProgress), "row {position}");
            continue;
        }
        assert_eq!(given_up, Ok(()), "row {position}");
        let (found, adding, removing) = plan_of(&cluster);
        assert_eq!(found.iter().collect::<BTreeSet<_>>(), replicas.iter().collect(), "row {position}");
        assert!(adding.is_empty() && removing.is_empty(), "row {position}");
        assert_eq!(cluster.state_of("t").0, Some(*leader), "row {position}");
    }
}

#[test]
fn another_order_copies_nothing_and_needs_no_new_epoch_of_its_leader() {
    let mut cluster = Cluster::of_many(3);
    cluster.put("t", &[1, 2, 3], &[1, 2, 3], 1);
    reassign(&mut cluster, Some(&[2, 3, 1])).unwrap();
    let after = partition(&cluster);
    assert_eq!((numbers(&after.replicas), after.leader), (vec![2, 3, 1], Some(BrokerId(1))));
    assert_eq!((after.leader_epoch, after.partition_epoch), (LeaderEpoch(4), 8));
    assert_eq!(numbers(&after.isr), [2, 3, 1], "in the order of the replicas");
}

#[test]
fn what_cannot_be_is_refused_with_kafkas_codes() {
    let mut cluster = Cluster::of_many(4);
    cluster.put("t", &[1, 2], &[1, 2], 1);
    let mut code = |name: &str, index, replicas: Option<&[i32]>, may_change_factor| {
        let response = cluster.run(command(name, index, replicas, may_change_factor)).unwrap();
        response.reassignments_altered().remove(0).map_err(|refusal| (refusal.code, refusal.message))
    };
    let mut check = |replicas: Option<&[i32]>, may_change_factor, code_expected, words: &str| {
        let (found, message) = code("t", 0, replicas, may_change_factor).unwrap_err();
        assert_eq!((found, message.as_str()), (code_expected, words));
    };
    let prefix = "The manual partition assignment includes";
    let invalid = ErrorCode::InvalidReplicaAssignment;
    check(Some(&[]), true, invalid, &format!("{prefix} an empty replica list."));
    check(Some(&[1, 3, 1]), true, invalid, &format!("{prefix} the broker 1 more than once."));
    check(Some(&[9, 1]), true, invalid, &format!("{prefix} broker 9, but no such broker is registered."));
    check(
        Some(&[1]),
        false,
        ErrorCode::InvalidReplicationFactor,
        "The replication factor is changed from 2 to 1",
    );
    check(None, true, ErrorCode::NoReassignmentInProgress, "No partition reassignment is in progress.");
    assert_eq!(code("t", 1, Some(&[1]), true).unwrap_err().0, ErrorCode::UnknownTopicOrPartition);
    assert_eq!(code("u", 0, Some(&[1]), true).unwrap_err().0, ErrorCode::UnknownTopicOrPartition);
    // The factor that counts is that of the aim.
    assert_eq!(code("t", 0, Some(&[1, 2, 3]), true), Ok(()));
    assert_eq!(code("t", 0, Some(&[1, 2, 4]), false), Ok(()));
    assert_eq!(code("t", 0, Some(&[1, 2]), false).unwrap_err().0, ErrorCode::InvalidReplicationFactor);
    assert_eq!(plan_of(&cluster), (vec![1, 2, 4, 3], vec![3, 4], vec![3]));
}

#[test]
fn a_partition_that_is_named_twice_is_reassigned_once() {
    let mut cluster = Cluster::of_many(3);
    cluster.put("t", &[1], &[1], 1);
    let wanted = |replicas: &[i32]| Reassignment { index: PartitionIndex(0), replicas: Some(ids(replicas)) };
    let topics = vec![("t".to_owned(), vec![wanted(&[2]), wanted(&[3])])];
    let request = AlterReassignments { may_change_factor: true, topics };
    let results = cluster.run(Command::AlterReassignments(request)).unwrap().reassignments_altered();
    assert!(results[0].is_ok());
    assert_eq!(results[1].as_ref().map_err(|refusal| refusal.code), Err(ErrorCode::InvalidRequest));
    assert_eq!(plan_of(&cluster), (vec![2, 1], vec![2], vec![1]));
}

#[test]
fn it_is_done_when_the_last_new_replica_is_in_sync() {
    let mut cluster = Cluster::of_many(4);
    cluster.put("t", &[1, 2], &[1, 2], 1);
    reassign(&mut cluster, Some(&[3, 4])).unwrap();
    cluster.alter_isr("t", &[1, 2, 4]).unwrap();
    assert_eq!(plan_of(&cluster), (vec![3, 4, 1, 2], vec![3, 4], vec![1, 2]));
    let before = partition(&cluster).leader_epoch;
    assert_eq!(cluster.alter_isr("t", &[1, 2, 3, 4]), Err(ErrorCode::NewLeaderElected));
    assert_eq!(plan_of(&cluster), (vec![3, 4], vec![], vec![]));
    assert_eq!(cluster.state_of("t"), (Some(3), vec![3, 4], vec![]));
    assert!(partition(&cluster).leader_epoch > before, "whoever is gone must notice");
}

#[test]
fn a_leader_that_stays_has_a_new_epoch_when_a_replica_is_gone() {
    let mut cluster = Cluster::of_many(3);
    cluster.put("t", &[1, 2], &[1, 2], 1);
    reassign(&mut cluster, Some(&[1, 3])).unwrap();
    let before = partition(&cluster).leader_epoch;
    let altered = cluster.alter_isr("t", &[1, 2, 3]).unwrap();
    assert_eq!((altered.leader, altered.leader_epoch), (Some(BrokerId(1)), LeaderEpoch(before.0 + 1)));
    assert_eq!(numbers(&altered.isr), [1, 3]);
}

#[test]
fn a_dead_target_is_waited_for_and_may_be_given_up() {
    let mut cluster = Cluster::of_many(3);
    cluster.put("t", &[1, 2], &[1, 2], 1);
    let epoch = cluster.state.image().broker(BrokerId(3)).unwrap().epoch;
    cluster.run(Command::FenceBroker { id: BrokerId(3), epoch }).unwrap();
    assert_eq!(reassign(&mut cluster, Some(&[1, 3])), Ok(()), "registered is enough");
    assert_eq!(cluster.alter_isr("t", &[1, 2, 3]), Err(ErrorCode::IneligibleReplica));
    assert_eq!(plan_of(&cluster).1, [3]);
    assert_eq!(reassign(&mut cluster, None), Ok(()));
    assert_eq!(plan_of(&cluster), (vec![1, 2], vec![], vec![]));
}

/// Those from before are out of sync: to give it up would lose records.
#[test]
fn it_is_not_given_up_where_that_would_lose_records_unless_that_is_allowed() {
    for is_allowed in [false, true] {
        let mut cluster = Cluster::of_many(3);
        cluster.put("t", &[1, 2], &[1, 2], 1);
        reassign(&mut cluster, Some(&[1, 2, 3])).unwrap_or_else(|code| panic!("{code:?}"));
        // As if all but the new one had been out of sync when it got there.
        let id = cluster.state.image().topic("t").unwrap().id;
        let change = elections::Change {
            leader: Some(Some(BrokerId(3))),
            isr: Some(ids(&[3]).into()),
            transit: Some(Transit { adding: ids(&[3]), ..Transit::default() }),
            ..Default::default()
        };
        let mut records = vec![partitions::changed(id, PartitionIndex(0), &partition(&cluster), change)];
        if is_allowed {
            records.push(Record::Config {
                resource: ConfigResource::Topic("t".into()),
                name: "unclean.leader.election.enable".to_owned(),
                value: Some("true".to_owned()),
            });
        }
        let version = cluster.state.image().version();
        cluster.state.apply(version + 1, &records).unwrap();
        let given_up = reassign(&mut cluster, None);
        if is_allowed {
            assert_eq!(given_up, Ok(()));
            assert_eq!(cluster.state_of("t"), (Some(1), vec![1], vec![]));
            assert!(partition(&cluster).transit().recovering);
        } else {
            assert_eq!(given_up, Err(ErrorCode::InvalidReplicaAssignment));
            assert_eq!(plan_of(&cluster).1, [3]);
        }
    }
}

#[test]
fn a_topic_that_is_deleted_takes_its_reassignment_along() {
    use super::super::super::command::{DeleteTopics, TopicRef};
    let mut cluster = Cluster::of_many(3);
    cluster.put("t", &[1], &[1], 1);
    reassign(&mut cluster, Some(&[2])).unwrap();
    let topics = vec![TopicRef::Name("t".to_owned())];
    cluster.run(Command::DeleteTopics(DeleteTopics { topics })).unwrap();
    assert_eq!(reassign(&mut cluster, None), Err(ErrorCode::UnknownTopicOrPartition));
}

/// Where the controller is lost: before what it proposes is committed, or after that and before anybody is answered.
#[derive(Clone, Copy, Debug)]
enum Lost {
    Undone,
    Unanswered,
}

/// Another controller goes on with what the log has.
fn fail_over(cluster: &mut Cluster) {
    let version = cluster.state.image().version();
    let copy = State::decode(version, &cluster.state.encode()).unwrap();
    assert_eq!(copy.image().topic("t"), cluster.state.image().topic("t"));
    let mut next = Cluster::of_many(0);
    next.now = cluster.now;
    next.state = copy;
    next.controller.activate(next.state.image(), next.now);
    *cluster = next;
}

/// What whoever asks says until it is so: the operator, then the leader for each new replica.
fn step(cluster: &Cluster, number: usize) -> Option<Command> {
    match number {
        0 => Some(command("t", 0, Some(&[3, 4]), true)),
        _ => {
            let partition = partition(cluster);
            let leader = partition.leader?;
            let added: Vec<i32> = [3, 4].into_iter().take(number).collect();
            let mut isr = numbers(&partition.isr);
            isr.extend(added.into_iter().filter(|id| !partition.isr.contains(&BrokerId(*id))));
            let image = cluster.state.image();
            let epoch = |id: BrokerId| image.broker(id).unwrap().epoch;
            let topic = image.topic("t").unwrap().id;
            Some(Command::AlterPartition(super::super::super::command::AlterPartition {
                broker: leader,
                epoch: epoch(leader),
                partitions: vec![super::super::super::command::AlterIsr {
                    topic,
                    index: PartitionIndex(0),
                    leader_epoch: partition.leader_epoch,
                    partition_epoch: partition.partition_epoch,
                    isr: isr.into_iter().map(|id| (BrokerId(id), epoch(BrokerId(id)))).collect(),
                    recovering: false,
                }],
            }))
        }
    }
}

#[test]
fn it_goes_on_with_the_next_controller_at_whatever_step_one_is_lost() {
    for lost_at in 0..3 {
        for lost in [Lost::Undone, Lost::Unanswered] {
            let mut cluster = Cluster::of_many(4);
            cluster.put("t", &[1, 2], &[1, 2], 1);
            for number in 0..3 {
                let Some(command) = step(&cluster, number) else { panic!("somebody leads") };
                if number == lost_at {
                    if matches!(lost, Lost::Unanswered) {
                        cluster.run(command.clone()).unwrap();
                    }
                    fail_over(&mut cluster);
                    // Whoever asked asks again with what it knew; what is done already is not done twice.
                    let before = partition(&cluster);
                    cluster.run(command.clone()).unwrap();
                    if matches!(lost, Lost::Unanswered) {
                        assert_eq!(partition(&cluster), before, "step {number}");
                    }
                } else {
                    cluster.run(command).unwrap();
                }
            }
            assert_eq!(plan_of(&cluster), (vec![3, 4], vec![], vec![]), "{lost:?} at {lost_at}");
            assert_eq!(cluster.state_of("t"), (Some(3), vec![3, 4], vec![]), "{lost:?} at {lost_at}");
        }
    }
}

/// What may happen to a partition in the middle of it.
#[derive(Clone, Debug)]
enum Event {
    Reassign(Vec<i32>),
    GiveUp,
    /// The leader has these in sync.
    InSync(BTreeSet<i32>),
    Fence(i32),
    Unfence(i32),
    FailOver,
}

fn event() -> impl Strategy<Value = Event> {
    let target = Just((1..=5).collect::<Vec<i32>>()).prop_shuffle();
    let target = (target, 1..4usize).prop_map(|(ids, count)| ids[..count].to_vec());
    prop_oneof![
        3 => target.prop_map(Event::Reassign),
        1 => Just(Event::GiveUp),
        4 => prop::collection::btree_set(1..=5i32, 1..5).prop_map(Event::InSync),
        1 => (1..=5i32).prop_map(Event::Fence),
        2 => (1..=5i32).prop_map(Event::Unfence),
        1 => Just(Event::FailOver),
    ]
}

fn happen(cluster: &mut Cluster, event: Event) {
    let epoch = |cluster: &Cluster, id: i32| cluster.state.image().broker(BrokerId(id)).unwrap().epoch;
    match event {
        Event::Reassign(target) => assert_eq!(reassign(cluster, Some(&target)), Ok(())),
        Event::GiveUp => {
            let _ = reassign(cluster, None);
        }
        Event::InSync(wanted) => {
            let partition = partition(cluster);
            let Some(leader) = partition.leader else { return };
            let serves = |id: &BrokerId| cluster.state.image().broker(*id).unwrap().serves();
            let isr: Vec<i32> = partition
                .replicas
                .iter()
                .filter(|id| **id == leader || (wanted.contains(&id.0) && serves(id)))
                .map(|id| id.0)
                .collect();
            match cluster.alter_isr("t", &isr) {
                Ok(_) | Err(ErrorCode::NewLeaderElected) => {}
                Err(code) => panic!("{code:?}"),
            }
        }
        Event::Fence(id) => {
            let epoch = epoch(cluster, id);
            cluster.run(Command::FenceBroker { id: BrokerId(id), epoch }).unwrap();
        }
        Event::Unfence(id) => {
            let beat = Heartbeat {
                id: BrokerId(id),
                epoch: epoch(cluster, id),
                metadata_version: cluster.state.image().version(),
                wants_fence: false,
                wants_shutdown: false,
            };
            cluster.run(Command::Heartbeat(beat)).unwrap();
        }
        Event::FailOver => fail_over(cluster),
    }
}

proptest! {
    /// Whatever happens and in whichever order, the partition is sound, nobody that is not in sync leads it, and in the
    /// end the last aim is reached and nothing else.
    #[test]
    fn every_reassignment_is_sound_and_comes_to_its_end(events in prop::collection::vec(event(), 1..30)) {
        let mut cluster = Cluster::of_many(5);
        cluster.put("t", &[1, 2], &[1, 2], 1);
        let mut aim: BTreeSet<i32> = BTreeSet::from([1, 2]);
        let mut origin = aim.clone();
        for event in events {
            let before = partition(&cluster);
            let asked = event.clone();
            happen(&mut cluster, event);
            let after = partition(&cluster);
            let transit = after.transit();
            let set = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect::<BTreeSet<i32>>();
            let replicas = set(&after.replicas);
            prop_assert_eq!(replicas.len(), after.replicas.len(), "no broker twice");
            for members in [&after.isr[..], &transit.elr, &transit.adding, &transit.removing] {
                prop_assert!(set(members).is_subset(&replicas));
            }
            prop_assert!(set(&after.isr).is_disjoint(&set(&transit.elr)));
            if let Some(leader) = after.leader {
                prop_assert!(after.isr.contains(&leader));
                prop_assert!(cluster.state.image().broker(leader).unwrap().serves());
            }
            // Who leads had all that was acknowledged: it was in sync or eligible. None else is ever elected here, but
            // where nobody was left who was.
            if after.leader != before.leader && let Some(leader) = after.leader && !transit.recovering {
                let had_all = before.isr.contains(&leader) || before.transit().elr.contains(&leader)
                    || matches!(&asked, Event::InSync(_));
                prop_assert!(had_all, "{asked:?}: {before:?} {after:?}");
            }
            match asked {
                Event::Reassign(target) => aim = target.into_iter().collect(),
                Event::GiveUp if is_under_way(before.transit()) && !is_under_way(transit) => aim = origin.clone(),
                _ => {}
            }
            if is_under_way(transit) {
                let adding = set(&transit.adding);
                let original: BTreeSet<i32> = replicas.difference(&adding).copied().collect();
                prop_assert_eq!(&original, &origin, "what was there before stays known");
                let wanted: BTreeSet<i32> = replicas.difference(&set(&transit.removing)).copied().collect();
                prop_assert_eq!(&wanted, &aim);
            } else {
                prop_assert_eq!(&replicas, &aim);
                origin = replicas;
            }
        }
        for id in 1..=5 {
            happen(&mut cluster, Event::Unfence(id));
        }
        happen(&mut cluster, Event::InSync((1..=5).collect()));
        let (replicas, adding, removing) = plan_of(&cluster);
        prop_assert!(adding.is_empty() && removing.is_empty());
        prop_assert_eq!(replicas.into_iter().collect::<BTreeSet<i32>>(), aim);
    }
}
