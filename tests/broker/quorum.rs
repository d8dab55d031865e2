//! The quorum of the metadata log as any broker tells of it: DescribeQuorum. The values are Apache Kafka's.

use std::collections::BTreeSet;

use kafka_protocol::messages::describe_quorum_request::{
    PartitionData as AskedPartition, TopicData as AskedTopic,
};
use kafka_protocol::messages::describe_quorum_response::{PartitionData, ReplicaState};
use kafka_protocol::messages::{DescribeClusterRequest, DescribeQuorumRequest, DescribeQuorumResponse};
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::cluster_elections::create;
use crate::harness::client::Client;
use crate::harness::raw::{Raw, name};
use crate::harness::{Broker, eventually};

const METADATA_LOG: &str = "__cluster_metadata";
const REQUEST_TIMED_OUT: i16 = 7;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;

fn asked(topics: &[(&str, &[i32])]) -> DescribeQuorumRequest {
    let partition = |index: &i32| AskedPartition::default().with_partition_index(*index);
    let topics = topics.iter().map(|(topic, partitions)| {
        AskedTopic::default()
            .with_topic_name(name(topic))
            .with_partitions(partitions.iter().map(partition).collect())
    });
    DescribeQuorumRequest::default().with_topics(topics.collect())
}

fn describe(node: &Broker, version: i16) -> DescribeQuorumResponse {
    let answer = Raw::connect(node).call(version, &asked(&[(METADATA_LOG, &[0])]));
    assert_eq!((answer.error_code, answer.topics.len()), (0, 1));
    let [partition] = &answer.topics[0].partitions[..] else { panic!("{answer:?}") };
    assert_eq!((partition.partition_index, partition.error_code), (0, 0));
    if version >= 2 {
        assert_eq!((&answer.error_message, &partition.error_message), (&None, &None));
    }
    answer
}

fn quorum(node: &Broker) -> PartitionData {
    describe(node, 2).topics.remove(0).partitions.remove(0)
}

/// What a node of several tells; nothing while it finds nobody who leads.
fn told_now(node: &Broker) -> Option<DescribeQuorumResponse> {
    let answer = Raw::connect(node).call(2, &asked(&[(METADATA_LOG, &[0])]));
    assert!([0, REQUEST_TIMED_OUT].contains(&answer.error_code), "{answer:?}");
    (answer.error_code == 0).then_some(answer)
}

fn quorum_now(node: &Broker) -> Option<PartitionData> {
    Some(told_now(node)?.topics.remove(0).partitions.remove(0))
}

/// What is told of a voter.
fn voter(quorum: &PartitionData, id: i32) -> ReplicaState {
    let found = quorum.current_voters.iter().find(|voter| voter.replica_id.0 == id);
    found.cloned().unwrap_or_else(|| panic!("no voter {id}: {quorum:?}"))
}

fn ids(replicas: &[ReplicaState]) -> BTreeSet<i32> {
    replicas.iter().map(|replica| replica.replica_id.0).collect()
}

#[test]
fn a_node_alone_is_a_quorum_of_one() {
    let broker = Broker::start();
    let cluster = Raw::connect(&broker).call(1, &DescribeClusterRequest::default().with_endpoint_type(1));
    let id = cluster.brokers[0].broker_id.0;
    let before = quorum(&broker).high_watermark;
    Client::of(&broker).create_topic("t", 3, &[]);
    for version in 0..=2 {
        let answer = describe(&broker, version);
        let told = &answer.topics[0].partitions[0];
        assert_eq!((told.leader_id.0, ids(&told.current_voters)), (id, BTreeSet::from([id])));
        assert_eq!(told.observers, []);
        assert!(told.leader_epoch >= 1 && told.high_watermark > before, "{told:?}");
        let own = voter(told, id);
        assert!(own.log_end_offset >= told.high_watermark, "{told:?}");
        match version {
            0 => assert_eq!((own.last_fetch_timestamp, own.last_caught_up_timestamp), (-1, -1)),
            _ => assert!(own.last_fetch_timestamp > 0 && own.last_caught_up_timestamp > 0, "{own:?}"),
        }
        let nodes: Vec<i32> = answer.nodes.iter().map(|node| node.node_id.0).collect();
        assert_eq!(nodes, if version >= 2 { vec![id] } else { vec![] });
        if version >= 2 && !Broker::is_kafka() {
            assert_ne!(own.replica_directory_id, Uuid::nil());
            assert_eq!(answer.nodes[0].listeners, [], "no other controller is to reach it");
        }
    }
}

#[test]
fn nothing_but_the_metadata_log_has_a_quorum() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    let cases: [&[(&str, &[i32])]; 6] = [
        &[],
        &[("t", &[0])],
        &[(METADATA_LOG, &[])],
        &[(METADATA_LOG, &[1])],
        &[(METADATA_LOG, &[0, 0])],
        &[(METADATA_LOG, &[0]), ("t", &[0, 7])],
    ];
    for version in 0..=2 {
        for topics in cases {
            let answer = raw.call(version, &asked(topics));
            assert_eq!((answer.error_code, answer.nodes.len()), (0, 0), "{topics:?}");
            let told = answer.topics.iter().map(|topic| {
                let partitions = topic.partitions.iter().inspect(|partition| {
                    assert_eq!(partition.error_code, UNKNOWN_TOPIC_OR_PARTITION);
                    if version >= 2 {
                        let message = partition.error_message.as_deref();
                        assert_eq!(message, Some("This server does not host this topic-partition."));
                    }
                });
                (topic.topic_name.to_string(), partitions.map(|it| it.partition_index).collect::<Vec<i32>>())
            });
            let expected =
                topics.iter().map(|(topic, partitions)| ((*topic).to_owned(), partitions.to_vec()));
            assert!(told.eq(expected), "version {version}: {answer:?}");
        }
    }
}

#[test]
fn every_node_tells_the_same_of_the_quorum_and_who_is_behind() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    let controller = cluster.controller() as i32 + 1;
    create(&cluster, "t", &[&[1, 2, 3]]);
    for (_, node) in cluster.running() {
        eventually("all voters have all, and are known by their directories", || {
            let told = quorum_now(node)?;
            assert_eq!((ids(&told.current_voters), &told.observers), (BTreeSet::from([1, 2, 3]), &vec![]));
            let leader = voter(&told, told.leader_id.0);
            let directories: BTreeSet<Uuid> =
                told.current_voters.iter().map(|voter| voter.replica_directory_id).collect();
            let is_whole = |voter: &ReplicaState| {
                !voter.replica_directory_id.is_nil()
                    && voter.log_end_offset == leader.log_end_offset
                    && (1..=leader.last_fetch_timestamp).contains(&voter.last_caught_up_timestamp)
                    && voter.last_caught_up_timestamp <= voter.last_fetch_timestamp
            };
            let is_known = directories.len() == 3 && told.high_watermark == leader.log_end_offset;
            (is_known && told.current_voters.iter().all(is_whole)).then_some(())
        });
        let nodes = eventually("somebody leads", || told_now(node)).nodes;
        let listeners = nodes.iter().flat_map(|node| &node.listeners);
        let addresses: BTreeSet<(&str, &str, u16)> =
            listeners.map(|it| (it.name.as_str(), it.host.as_str(), it.port)).collect();
        assert!(addresses.iter().all(|(name, host, _)| (*name, *host) == ("CONTROLLER", "127.0.0.1")));
        assert_eq!((nodes.len(), addresses.len()), (3, 3));
    }
    // A follower is lost, and the log goes on.
    let lost = controller % 3 + 1;
    let other = 6 - controller - lost;
    cluster.nodes[lost as usize - 1].kill();
    create(&cluster, "more", &[&[controller]]);
    for (_, node) in cluster.running() {
        eventually("the one that is lost is behind, and the other has all", || {
            let told = quorum_now(node)?;
            let [leader, lost, other] = [told.leader_id.0, lost, other].map(|id| voter(&told, id));
            let is_behind = lost.log_end_offset < told.high_watermark
                && lost.last_caught_up_timestamp < other.last_caught_up_timestamp;
            (is_behind && other.log_end_offset == leader.log_end_offset).then_some(())
        });
    }
    cluster.start_stopped();
    eventually("it catches up", || {
        let told = quorum_now(&cluster.nodes[controller as usize - 1])?;
        (voter(&told, lost).log_end_offset == voter(&told, told.leader_id.0).log_end_offset).then_some(())
    });
    // The leader is lost: whoever leads then tells.
    let told = eventually("somebody leads", || quorum_now(&cluster.nodes[lost as usize - 1]));
    cluster.nodes[told.leader_id.0 as usize - 1].kill();
    for (_, node) in cluster.running() {
        eventually("another leads", || {
            let now = quorum_now(node)?;
            let is_next = now.leader_id != told.leader_id && now.leader_epoch > told.leader_epoch;
            (is_next && now.high_watermark >= told.high_watermark).then_some(())
        });
    }
}
