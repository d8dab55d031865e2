use std::time::Duration;

use super::super::super::command::{AlterConfigs, Command, ConfigChange, ConfigEdit, ConfigOp, ElectLeaders};
use super::super::super::image::ConfigResource;
use super::super::ClusterSettings;
use super::super::testing::Cluster;
use super::*;
use crate::base::LeaderEpoch;
use crate::base::clock::Monotonic;

fn elect(cluster: &mut Cluster, kind: ElectionKind, topics: &[(&str, &[i32])]) -> Vec<Result<(), ErrorCode>> {
    let topics = topics.iter().map(|(topic, partitions)| {
        ((*topic).to_owned(), partitions.iter().copied().map(PartitionIndex).collect())
    });
    let command = Command::ElectLeaders(ElectLeaders { kind, topics: topics.collect() });
    cluster.run(command).unwrap().leaders_elected()
}

fn fence(cluster: &mut Cluster, id: i32) {
    let id = BrokerId(id);
    let epoch = cluster.state.image().broker(id).unwrap().epoch;
    cluster.run(Command::FenceBroker { id, epoch }).unwrap();
}

fn set_unclean(cluster: &mut Cluster, resource: ConfigResource) {
    let step = ("unclean.leader.election.enable".to_owned(), ConfigOp::Set("true".to_owned()));
    let changes = vec![ConfigChange { resource, edit: ConfigEdit::Incremental(vec![step]) }];
    let results = cluster.run(Command::AlterConfigs(AlterConfigs { changes, validate_only: false })).unwrap();
    assert!(results.configs_altered().iter().all(|(_, result)| result.is_ok()));
}

use ElectionKind::{Preferred, Unclean};
use ErrorCode::{
    ElectionNotNeeded, EligibleLeadersNotAvailable, PreferredLeaderNotAvailable, UnknownTopicOrPartition,
};

/// A row: who is fenced; the ISR and the leader of replicas 1, 2, 3; what is asked for; what comes of it, and who leads.
type Row = (&'static [i32], (&'static [i32], i32), ElectionKind, Result<(), ErrorCode>, Option<i32>);

const ROWS: &[Row] = &[
    (&[], (&[1, 2, 3], 1), Preferred, Err(ElectionNotNeeded), Some(1)),
    (&[], (&[1, 2, 3], 2), Preferred, Ok(()), Some(1)),
    (&[], (&[2, 3], 2), Preferred, Err(PreferredLeaderNotAvailable), Some(2)),
    (&[1], (&[2, 3], 2), Preferred, Err(PreferredLeaderNotAvailable), Some(2)),
    // Nobody is left but one that is out of sync.
    (&[2, 3], (&[2, 3], 2), Preferred, Err(PreferredLeaderNotAvailable), None),
    (&[2, 3], (&[2, 3], 2), Unclean, Ok(()), Some(1)),
    (&[1, 2, 3], (&[2, 3], 2), Unclean, Err(EligibleLeadersNotAvailable), None),
    (&[], (&[2, 3], 2), Unclean, Err(ElectionNotNeeded), Some(2)),
    (&[1], (&[1, 2], 1), Unclean, Err(ElectionNotNeeded), Some(2)),
];

#[test]
fn elections_are_answered_with_kafkas_codes() {
    for (position, (fenced, (isr, leader), kind, expected, leads)) in ROWS.iter().enumerate() {
        let mut cluster = Cluster::of_many(3);
        cluster.put("t", &[1, 2, 3], isr, *leader);
        // An eligible replica would be elected cleanly: none is.
        for id in *fenced {
            fence(&mut cluster, *id);
        }
        clear_eligible(&mut cluster, "t");
        let before = cluster.state.image().topic("t").unwrap().partitions[0].leader_epoch;
        let found = elect(&mut cluster, *kind, &[("t", &[0])]);
        assert_eq!(found, [*expected], "row {position}");
        assert_eq!(cluster.state_of("t").0, *leads, "row {position}");
        let partition = cluster.state.image().topic("t").unwrap().partitions[0].clone();
        let grown = i32::from(expected.is_ok());
        assert_eq!(partition.leader_epoch, LeaderEpoch(before.0 + grown), "row {position}");
        assert_eq!(partition.transit().recovering, *kind == Unclean && expected.is_ok(), "row {position}");
    }
}

/// As if all who were eligible had come back without what they had.
fn clear_eligible(cluster: &mut Cluster, name: &str) {
    let topic = cluster.state.image().topic(name).unwrap().clone();
    let partition = &topic.partitions[0];
    if partition.leader.is_some() || partition.transit().elr.is_empty() {
        return;
    }
    let change = elections::Change { transit: Some(elections::NO_TRANSIT.clone()), ..Default::default() };
    let record = partitions::changed(topic.id, PartitionIndex(0), partition, change);
    let version = cluster.state.image().version();
    cluster.state.apply(version + 1, &[record]).unwrap();
}

#[test]
fn what_is_not_there_is_told_and_what_is_named_twice_is_elected_once() {
    let mut cluster = Cluster::of_many(3);
    cluster.put("t", &[1, 2, 3], &[1, 2, 3], 2);
    let found = elect(&mut cluster, Preferred, &[("u", &[0]), ("t", &[1, 0, -1]), ("t", &[0])]);
    let unknown = Err(UnknownTopicOrPartition);
    assert_eq!(found, [unknown, unknown, Ok(()), unknown, Ok(())]);
    let partition = cluster.state.image().topic("t").unwrap().partitions[0].clone();
    assert_eq!((partition.leader, partition.leader_epoch), (Some(BrokerId(1)), LeaderEpoch(5)));
}

#[test]
fn one_replica_has_no_other_to_elect() {
    let mut cluster = Cluster::of(1);
    cluster.put("t", &[1], &[1], 1);
    for kind in [Preferred, Unclean] {
        assert_eq!(elect(&mut cluster, kind, &[("t", &[0])]), [Err(ElectionNotNeeded)]);
    }
    fence(&mut cluster, 1);
    assert_eq!(elect(&mut cluster, Preferred, &[("t", &[0])]), [Err(PreferredLeaderNotAvailable)]);
    assert_eq!(elect(&mut cluster, Unclean, &[("t", &[0])]), [Err(EligibleLeadersNotAvailable)]);
}

fn active(brokers: i32) -> Cluster {
    let mut cluster = Cluster::of_many(brokers);
    cluster.controller.activate(cluster.state.image(), cluster.now);
    assert_eq!(cluster.run_due(), 0);
    cluster
}

/// Time passes, and all brokers are heard of.
fn pass(cluster: &mut Cluster, seconds: u64) {
    cluster.pass(seconds);
    let brokers: Vec<_> = cluster.state.image().brokers().map(|broker| (broker.id, broker.epoch)).collect();
    for (id, epoch) in brokers {
        cluster.controller.sessions().borrow_mut().touch(id, epoch, cluster.now);
    }
}

#[test]
fn the_first_replicas_lead_again_after_a_while() {
    let mut cluster = active(3);
    cluster.put("moved", &[1, 2, 3], &[1, 2, 3], 2);
    cluster.put("behind", &[1, 2], &[2], 2);
    pass(&mut cluster, 299);
    assert_eq!(cluster.run_due(), 0);
    assert_eq!(cluster.state_of("moved").0, Some(2));
    pass(&mut cluster, 1);
    assert_eq!(cluster.run_due(), 1);
    assert_eq!(cluster.state_of("moved"), (Some(1), vec![1, 2, 3], vec![]));
    assert_eq!(cluster.state_of("behind"), (Some(2), vec![2], vec![]));
    let due = cluster.controller.next_due(cluster.state.image()).unwrap();
    assert!(due > cluster.now, "it does not look all the time");
}

#[test]
fn a_thousand_leaders_go_at_once_and_the_rest_soon() {
    let mut cluster = active(2);
    let topic = cluster.put("t", &[1, 2], &[1, 2], 2);
    let one = PartitionImage::clone(&cluster.state.image().topic("t").unwrap().partitions[0]);
    let more: Vec<Record> = (1..1500)
        .map(|index| Record::Partition { topic, index: PartitionIndex(index), partition: one.clone() })
        .collect();
    let version = cluster.state.image().version();
    cluster.state.apply(version + 1, &more).unwrap();
    let led_by_first = |cluster: &Cluster| {
        let topic = cluster.state.image().topic("t").unwrap();
        topic.partitions.iter().filter(|partition| partition.leader == Some(BrokerId(1))).count()
    };
    pass(&mut cluster, 300);
    assert_eq!((cluster.run_due(), led_by_first(&cluster)), (1, 1000));
    let due = cluster.controller.next_due(cluster.state.image()).unwrap();
    assert!(due <= cluster.now.plus(Duration::from_millis(10)));
    cluster.now = due;
    assert_eq!((cluster.run_due(), led_by_first(&cluster)), (1, 1500));
}

/// Topic `t` has no leader, and one replica that is out of sync serves.
fn leaderless() -> Cluster {
    let mut cluster = active(3);
    cluster.put("t", &[1, 2, 3], &[2], 2);
    fence(&mut cluster, 2);
    clear_eligible(&mut cluster, "t");
    assert_eq!(cluster.state_of("t"), (None, vec![], vec![]));
    cluster
}

#[test]
fn a_setting_that_lets_any_replica_lead_does_so_at_once() {
    for resource in [ConfigResource::Topic("t".into()), ConfigResource::BrokerDefault] {
        let mut cluster = leaderless();
        assert_eq!(cluster.run_due(), 0);
        set_unclean(&mut cluster, resource);
        assert_eq!(cluster.run_due(), 1);
        assert_eq!(cluster.state_of("t"), (Some(1), vec![1], vec![]));
        assert!(cluster.state.image().topic("t").unwrap().partitions[0].transit().recovering);
        assert_eq!(cluster.run_due(), 0);
    }
    let mut cluster = leaderless();
    cluster.put("other", &[1], &[1], 1);
    set_unclean(&mut cluster, ConfigResource::Topic("other".into()));
    assert_eq!(cluster.run_due(), 0);
    assert_eq!(cluster.state_of("t").0, None, "another topic's setting");
}

#[test]
fn a_setting_that_was_changed_under_another_controller_is_followed_from_time_to_time() {
    let mut cluster = leaderless();
    let record = Record::Config {
        resource: ConfigResource::Topic("t".into()),
        name: "unclean.leader.election.enable".to_owned(),
        value: Some("true".to_owned()),
    };
    let version = cluster.state.image().version();
    cluster.state.apply(version + 1, &[record]).unwrap();
    pass(&mut cluster, 59);
    assert_eq!(cluster.run_due(), 0);
    pass(&mut cluster, 1);
    assert_eq!(cluster.run_due(), 1);
    assert_eq!(cluster.state_of("t").0, Some(1));
}

#[test]
fn a_node_alone_and_a_cluster_that_does_not_want_it_balance_nothing() {
    let settings = ClusterSettings {
        session_timeout: Duration::from_secs(1),
        rebalance_interval: None,
        unclean_interval: Duration::from_secs(60),
        stamp: Stamp { elr: true, min_isr: 1, unclean_election: false },
    };
    let timers = super::super::timers::Timers::begin(&settings, Monotonic::ZERO);
    assert_eq!(timers.next(), Some(Monotonic::ZERO), "for partitions without a leader");
    let mut alone = Cluster::of(1);
    alone.controller.activate(alone.state.image(), alone.now);
    assert_eq!(alone.controller.next_due(alone.state.image()), None);
}
