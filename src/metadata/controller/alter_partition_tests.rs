use super::super::super::command::Command;
use super::super::super::record::PartitionChange;
use super::super::testing::Cluster;
use super::*;
use crate::base::{LeaderEpoch, PartitionIndex, TopicId};

/// Broker 1 leads partition 0 of `t` on 1, 2 and 3, with itself alone in sync.
fn cluster() -> (Cluster, TopicId) {
    let mut cluster = Cluster::of_many(3);
    let topic = cluster.put("t", &[1, 2, 3], &[1], 1);
    (cluster, topic)
}

fn wanted(cluster: &Cluster, topic: TopicId, isr: &[i32]) -> AlterIsr {
    let image = cluster.state.image();
    let epoch = |id: i32| image.broker(BrokerId(id)).map_or(BrokerEpoch(3), |broker| broker.epoch);
    let partition = image.topic_by_id(topic).unwrap().partitions[0].clone();
    AlterIsr {
        topic,
        index: PartitionIndex(0),
        leader_epoch: partition.leader_epoch,
        partition_epoch: partition.partition_epoch,
        isr: isr.iter().map(|id| (BrokerId(*id), epoch(*id))).collect(),
        recovering: false,
    }
}

fn alter(cluster: &mut Cluster, leader: i32, wanted: AlterIsr) -> Altered {
    let epoch = cluster.state.image().broker(BrokerId(leader)).unwrap().epoch;
    let request = AlterPartition { broker: BrokerId(leader), epoch, partitions: vec![wanted] };
    cluster.run(Command::AlterPartition(request)).unwrap().partitions_altered().remove(0)
}

#[test]
fn a_leader_says_who_is_in_sync() {
    let (mut cluster, topic) = cluster();
    let all = wanted(&cluster, topic, &[3, 1, 2]);
    let altered = alter(&mut cluster, 1, all).unwrap();
    assert_eq!(*altered.isr, [1, 2, 3].map(BrokerId), "in the order of the replicas");
    assert_eq!((altered.leader_epoch, altered.partition_epoch), (LeaderEpoch(4), 8));
    assert_eq!(cluster.state_of("t"), (Some(1), vec![1, 2, 3], vec![]));
    let fewer = wanted(&cluster, topic, &[1, 3]);
    assert_eq!(*alter(&mut cluster, 1, fewer).unwrap().isr, [1, 3].map(BrokerId));
    let same = wanted(&cluster, topic, &[1, 3]);
    assert_eq!(alter(&mut cluster, 1, same).unwrap().partition_epoch, 9, "nothing has changed");
}

#[test]
fn what_does_not_fit_the_state_is_refused_with_kafkas_codes() {
    type Spoil = fn(&mut AlterIsr);
    let rows: &[(ErrorCode, Spoil)] = &[
        (ErrorCode::UnknownTopicId, |wanted| wanted.topic = TopicId(uuid::Uuid::from_u128(1))),
        (ErrorCode::UnknownTopicOrPartition, |wanted| wanted.index = PartitionIndex(1)),
        (ErrorCode::NotController, |wanted| wanted.leader_epoch = LeaderEpoch(5)),
        (ErrorCode::NotController, |wanted| wanted.partition_epoch += 1),
        (ErrorCode::FencedLeaderEpoch, |wanted| wanted.leader_epoch = LeaderEpoch(3)),
        (ErrorCode::InvalidUpdateVersion, |wanted| wanted.partition_epoch -= 1),
        (ErrorCode::InvalidRequest, |wanted| wanted.isr.retain(|(member, _)| member.0 != 1)),
        (ErrorCode::InvalidRequest, |wanted| wanted.isr.push((BrokerId(4), UNKNOWN_EPOCH))),
        (ErrorCode::InvalidRequest, |wanted| wanted.isr.push((BrokerId(1), UNKNOWN_EPOCH))),
        (ErrorCode::InvalidRequest, |wanted| wanted.recovering = true),
        (ErrorCode::IneligibleReplica, |wanted| wanted.isr[1].1 = BrokerEpoch(1)),
    ];
    for (position, (code, spoil)) in rows.iter().enumerate() {
        let (mut cluster, topic) = cluster();
        let mut wanted = wanted(&cluster, topic, &[1, 2]);
        spoil(&mut wanted);
        assert_eq!(alter(&mut cluster, 1, wanted), Err(*code), "row {position}");
        assert_eq!(cluster.state_of("t"), (Some(1), vec![1], vec![]));
    }
    let (mut cluster, topic) = cluster();
    let wanted = wanted(&cluster, topic, &[1, 2]);
    assert_eq!(alter(&mut cluster, 2, wanted), Err(ErrorCode::InvalidRequest), "it does not lead");
}

#[test]
fn a_fenced_broker_does_not_get_in_sync() {
    let (mut cluster, topic) = cluster();
    let epoch = cluster.state.image().broker(BrokerId(2)).unwrap().epoch;
    cluster.run(Command::FenceBroker { id: BrokerId(2), epoch }).unwrap();
    let both = wanted(&cluster, topic, &[1, 2]);
    assert_eq!(alter(&mut cluster, 1, both), Err(ErrorCode::IneligibleReplica));
}

#[test]
fn the_last_change_of_a_reassignment_can_be_its_leaders_end() {
    let (mut cluster, topic) = cluster();
    let transit = elections::Transit {
        adding: vec![BrokerId(2), BrokerId(3)],
        removing: vec![BrokerId(1)],
        ..elections::Transit::default()
    };
    let change = PartitionChange {
        topic,
        index: PartitionIndex(0),
        leader: None,
        isr: None,
        replicas: None,
        directories: None,
        transit: Some(transit),
    };
    let version = cluster.state.image().version();
    cluster.state.apply(version + 1, &[Record::PartitionChanged(change)]).unwrap();
    let half = wanted(&cluster, topic, &[1, 2]);
    assert!(alter(&mut cluster, 1, half).is_ok());
    let all = wanted(&cluster, topic, &[1, 2, 3]);
    assert_eq!(alter(&mut cluster, 1, all), Err(ErrorCode::NewLeaderElected));
    assert_eq!(cluster.state_of("t"), (Some(2), vec![2, 3], vec![]));
    let partition = cluster.state.image().topic_by_id(topic).unwrap().partitions[0].clone();
    assert_eq!(*partition.replicas, [2, 3].map(BrokerId));
    assert_eq!(partition.transit, None);
}
