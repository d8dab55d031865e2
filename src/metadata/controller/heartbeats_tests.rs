use std::time::Duration;

use uuid::Uuid;

use super::super::super::command::AlterPartition;
use super::super::testing::Cluster;
use super::*;
use crate::base::BrokerEpoch;
use crate::metadata::State;

fn broker(fenced: bool, shutting_down: bool) -> BrokerImage {
    BrokerImage {
        id: BrokerId(1),
        epoch: BrokerEpoch(5),
        incarnation: Uuid::nil(),
        endpoints: Vec::new(),
        rack: None,
        fenced,
        shutting_down,
        log_dirs: Vec::new(),
        features: Vec::new(),
    }
}

/// A row: fenced and shutting down; wants a fence, wants to stop; caught up, leads something, all know; what comes next.
type Row = ((bool, bool), (bool, bool), (bool, bool, bool), Next);

const YES: bool = true;
const NO: bool = false;

const ROWS: &[Row] = &[
    // Fenced.
    ((YES, NO), (YES, NO), (YES, NO, YES), Next::Stay),
    ((YES, NO), (NO, NO), (NO, NO, YES), Next::Stay),
    ((YES, NO), (NO, NO), (YES, NO, YES), Next::Unfence),
    ((YES, YES), (NO, NO), (YES, NO, YES), Next::Unfence),
    ((YES, NO), (NO, YES), (YES, NO, NO), Next::ShutDown),
    ((YES, NO), (YES, YES), (NO, NO, NO), Next::ShutDown),
    // In service.
    ((NO, NO), (NO, NO), (YES, YES, NO), Next::Stay),
    ((NO, NO), (NO, NO), (NO, YES, NO), Next::Stay),
    ((NO, NO), (YES, NO), (YES, YES, NO), Next::Fence),
    ((NO, NO), (NO, YES), (YES, YES, NO), Next::BeginShutdown),
    ((NO, NO), (YES, YES), (YES, YES, NO), Next::BeginShutdown),
    ((NO, NO), (NO, YES), (YES, NO, NO), Next::ShutDown),
    // About to stop.
    ((NO, YES), (NO, YES), (YES, NO, NO), Next::Stay),
    ((NO, YES), (NO, YES), (YES, NO, YES), Next::ShutDown),
    ((NO, YES), (NO, NO), (YES, NO, NO), Next::Stay),
];

#[test]
fn a_heartbeat_leads_to_what_the_table_says() {
    for (position, row) in ROWS.iter().enumerate() {
        let ((fenced, shutting_down), (wants_fence, wants_shutdown), (caught_up, leads, known), expected) =
            *row;
        let beat = Heartbeat {
            id: BrokerId(1),
            epoch: BrokerEpoch(5),
            metadata_version: 0,
            wants_fence,
            wants_shutdown,
        };
        let found = next(&broker(fenced, shutting_down), beat, caught_up, || leads, || known);
        assert_eq!(found, expected, "row {position}");
    }
}

#[test]
fn a_broker_is_unfenced_when_it_has_its_own_registration_and_wants_to() {
    let mut cluster = Cluster::of_many(2);
    let epoch = cluster.start(3, None).unwrap();
    let state = cluster.beat(3, epoch, |beat| beat.wants_fence = true).unwrap();
    assert!(state.is_fenced && state.is_caught_up);
    let state = cluster.beat(3, epoch, |beat| beat.metadata_version = epoch.0 as u64 - 1).unwrap();
    assert!(state.is_fenced && !state.is_caught_up);
    let state = cluster.beat(3, epoch, |beat| beat.metadata_version = epoch.0 as u64).unwrap();
    assert!(!state.is_fenced && state.is_caught_up && !state.should_shut_down);
    assert!(!cluster.state.image().broker(BrokerId(3)).unwrap().fenced);
    let stale = BrokerEpoch(epoch.0 - 1);
    assert_eq!(cluster.beat(3, stale, |_| {}).unwrap_err().code, ErrorCode::StaleBrokerEpoch);
    assert_eq!(cluster.beat(9, epoch, |_| {}).unwrap_err().code, ErrorCode::BrokerIdNotRegistered);
}

#[test]
fn a_heartbeat_that_changes_nothing_makes_no_record() {
    let mut cluster = Cluster::of_many(2);
    let before = cluster.state.image().clone();
    let epoch = before.broker(BrokerId(1)).unwrap().epoch;
    let beat = Heartbeat {
        id: BrokerId(1),
        epoch,
        metadata_version: before.version(),
        wants_fence: false,
        wants_shutdown: false,
    };
    let outcome = cluster.controller.handle(&before, Command::Heartbeat(beat), cluster.now).unwrap();
    assert!(outcome.records.is_empty());
}

fn epoch_of(cluster: &Cluster, id: i32) -> BrokerEpoch {
    cluster.state.image().broker(BrokerId(id)).unwrap().epoch
}

#[test]
fn a_broker_that_is_not_heard_of_is_fenced_and_another_leads() {
    let mut cluster = Cluster::of_many(3);
    cluster.put("t", &[1, 2, 3], &[1, 2, 3], 1);
    cluster.put("alone", &[1], &[1], 1);
    cluster.pass(6);
    for id in [2, 3] {
        let epoch = epoch_of(&cluster, id);
        cluster.beat(id, epoch, |_| {}).unwrap();
    }
    assert_eq!(cluster.run_due(), 0);
    let due = cluster.controller.next_due(cluster.state.image()).unwrap();
    assert_eq!(due, Monotonic::from_millis(10_000), "broker 1's session");
    cluster.pass(4);
    assert_eq!(cluster.run_due(), 1);
    let image = cluster.state.image().clone();
    let fenced: Vec<bool> = image.brokers().map(|broker| broker.fenced).collect();
    assert_eq!(fenced, [true, false, false]);
    assert_eq!(cluster.state_of("t"), (Some(2), vec![2, 3], vec![]));
    assert_eq!(cluster.state_of("alone"), (None, vec![], vec![1]));
    assert_eq!(cluster.run_due(), 0, "once");
    // The same process was only cut off: it takes up what waits for it, and not what others have.
    let epoch = epoch_of(&cluster, 1);
    assert!(!cluster.beat(1, epoch, |_| {}).unwrap().is_fenced);
    assert_eq!(cluster.state_of("t"), (Some(2), vec![2, 3], vec![]));
    assert_eq!(cluster.state_of("alone"), (Some(1), vec![1], vec![]));
    let due = cluster.controller.next_due(&cluster.state.image().clone()).unwrap();
    assert_eq!(due, Monotonic::from_millis(16_000), "those that were heard of last");
}

#[test]
fn a_controller_that_begins_to_lead_gives_everybody_a_whole_session() {
    let mut cluster = Cluster::of_many(2);
    cluster.pass(60);
    cluster.controller.sessions().borrow_mut().begin(cluster.state.image(), cluster.now);
    assert_eq!(cluster.run_due(), 0);
    cluster.pass(9);
    assert_eq!(cluster.run_due(), 0);
    cluster.pass(1);
    assert_eq!(cluster.run_due(), 2);
}

#[test]
fn a_controller_that_stood_still_blames_nobody_for_it_once() {
    let mut cluster = Cluster::of_many(1);
    let sessions = cluster.controller.sessions();
    let due = cluster.controller.next_due(cluster.state.image()).unwrap();
    cluster.pass(25);
    sessions.borrow_mut().forgive(due, cluster.now);
    assert_eq!(cluster.run_due(), 0);
    let due = cluster.controller.next_due(cluster.state.image()).unwrap();
    assert_eq!(due, Monotonic::from_millis(27_500));
    cluster.pass(5);
    sessions.borrow_mut().forgive(due, cluster.now);
    assert_eq!(cluster.run_due(), 1, "nothing came in between");
}

#[test]
fn a_restart_raises_the_epoch_and_takes_leaderships_away() {
    let mut cluster = Cluster::of_many(3);
    cluster.put("t", &[1, 2, 3], &[1, 2, 3], 1);
    let before = epoch_of(&cluster, 1);
    let refusal = cluster.start(1, None).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::DuplicateBrokerRegistration, "its session is alive");
    cluster.pass(11);
    for id in [2, 3] {
        let epoch = epoch_of(&cluster, id);
        cluster.beat(id, epoch, |_| {}).unwrap();
    }
    // It comes before the controller has noticed that its session is over.
    let after = cluster.start(1, None).unwrap();
    assert!(after > before);
    assert!(cluster.state.image().broker(BrokerId(1)).unwrap().fenced);
    assert_eq!(cluster.state_of("t"), (Some(2), vec![2, 3], vec![]));
    let topic = cluster.state.image().topic("t").unwrap().clone();
    assert_eq!((topic.partitions[0].leader_epoch.0, topic.partitions[0].partition_epoch), (5, 8));
    assert_eq!(cluster.beat(1, before, |_| {}).unwrap_err().code, ErrorCode::StaleBrokerEpoch);
    let stale = AlterPartition { broker: BrokerId(1), epoch: before, partitions: Vec::new() };
    let refusal = cluster.run(Command::AlterPartition(stale)).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::StaleBrokerEpoch);
}

#[test]
fn who_was_not_shut_down_cleanly_is_not_eligible_any_more() {
    for (is_clean, eligible) in [(true, vec![1, 2]), (false, vec![2])] {
        let mut cluster = Cluster::of_many(3);
        cluster.put("t", &[1, 2, 3], &[1, 2], 1);
        // Two in sync are wanted: who leaves when only one is left stays eligible.
        let set = |name: &str, value: &str| Record::Config {
            resource: super::super::super::image::ConfigResource::BrokerDefault,
            name: name.to_owned(),
            value: Some(value.to_owned()),
        };
        let version = cluster.state.image().version();
        cluster.state.apply(version + 1, &[set("min.insync.replicas", "2")]).unwrap();
        let epochs = [1, 2].map(|id| epoch_of(&cluster, id));
        cluster.pass(11);
        let third = epoch_of(&cluster, 3);
        cluster.beat(3, third, |_| {}).unwrap();
        assert_eq!(cluster.run_due(), 2);
        assert_eq!(cluster.state_of("t"), (None, vec![], vec![1, 2]), "both, one after the other");
        let epoch = cluster.start(1, is_clean.then_some(epochs[0])).unwrap();
        assert_eq!(cluster.state_of("t").2, eligible);
        cluster.beat(1, epoch, |_| {}).unwrap();
        let leader = if is_clean { Some(1) } else { None };
        assert_eq!(cluster.state_of("t").0, leader);
        // The state is whole in a snapshot.
        let copy = State::decode(cluster.state.image().version(), &cluster.state.encode()).unwrap();
        assert_eq!(copy.image().topic("t"), cluster.state.image().topic("t"));
    }
}

#[test]
fn a_broker_that_stops_is_let_go_when_the_others_know_who_leads() {
    let mut cluster = Cluster::of_many(3);
    cluster.put("t", &[1, 2, 3], &[1, 2, 3], 1);
    let epochs = [1, 2, 3].map(|id| epoch_of(&cluster, id));
    let old = cluster.state.image().version();
    let stop = |beat: &mut Heartbeat| beat.wants_shutdown = true;
    let state = cluster.beat(1, epochs[0], stop).unwrap();
    assert!(!state.should_shut_down && !state.is_fenced);
    assert!(cluster.state.image().broker(BrokerId(1)).unwrap().shutting_down);
    assert_eq!(cluster.state_of("t"), (Some(2), vec![2, 3], vec![]));
    // One of the others has not heard yet.
    cluster.beat(2, epochs[1], |_| {}).unwrap();
    cluster.beat(3, epochs[2], |beat| beat.metadata_version = old).unwrap();
    assert!(!cluster.beat(1, epochs[0], stop).unwrap().should_shut_down);
    cluster.beat(3, epochs[2], |_| {}).unwrap();
    let state = cluster.beat(1, epochs[0], stop).unwrap();
    assert!(state.should_shut_down && state.is_fenced);
    // And it may come back at once.
    let epoch = cluster.start(1, Some(epochs[0])).unwrap();
    cluster.beat(1, epoch, |_| {}).unwrap();
    let broker = cluster.state.image().broker(BrokerId(1)).unwrap();
    assert!(broker.serves());
    assert!(broker.epoch > epochs[0]);
}

#[test]
fn a_broker_that_leads_nothing_is_let_go_at_once() {
    let mut cluster = Cluster::of_many(2);
    cluster.put("t", &[1, 2], &[1, 2], 1);
    let epoch = epoch_of(&cluster, 2);
    let state = cluster.beat(2, epoch, |beat| beat.wants_shutdown = true).unwrap();
    assert!(state.should_shut_down && state.is_fenced);
    assert_eq!(cluster.state_of("t"), (Some(1), vec![1], vec![]));
}

#[test]
fn the_same_process_may_register_again() {
    let mut cluster = Cluster::of_many(1);
    let request = cluster.registration(2, None);
    let register = |cluster: &mut Cluster| {
        let epoch = cluster.run(Command::RegisterBroker(request.clone())).unwrap().broker_epoch();
        (epoch, cluster.state.image().version())
    };
    let first = register(&mut cluster);
    let (again, _) = register(&mut cluster);
    assert_eq!(again, first.0);
    let image = cluster.state.image();
    assert_eq!(image.broker(BrokerId(2)).unwrap().epoch, again);
}

#[test]
fn directories_that_cannot_be_are_refused() {
    let mut cluster = Cluster::of_many(1);
    for directories in [vec![], vec![Uuid::from_u128(7)], vec![Uuid::from_u128(1001)], {
        vec![Uuid::from_u128(2000), Uuid::from_u128(2000)]
    }] {
        let mut request = cluster.registration(2, None);
        request.log_dirs = directories;
        let refusal = cluster.run(Command::RegisterBroker(request)).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidRegistration);
    }
}

#[test]
fn a_node_alone_needs_no_heartbeat() {
    let mut cluster = Cluster::of(1);
    cluster.now = cluster.now.plus(Duration::from_secs(1000));
    assert_eq!(cluster.controller.next_due(cluster.state.image()), None);
    let epoch = epoch_of(&cluster, 1);
    assert_eq!(cluster.beat(1, epoch, |_| {}).unwrap_err().code, ErrorCode::InvalidRequest);
}
