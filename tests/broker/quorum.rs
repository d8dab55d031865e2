//! The quorum of the metadata log as any broker tells of it: DescribeQuorum; and that its voters are fixed: AddRaftVoter,
//! RemoveRaftVoter. The values are Apache Kafka's.

use std::collections::BTreeSet;

use bytes::{Buf as _, BufMut as _, BytesMut};
use kafka_protocol::messages::add_raft_voter_request::Listener;
use kafka_protocol::messages::describe_quorum_request::{
    PartitionData as AskedPartition, TopicData as AskedTopic,
};
use kafka_protocol::messages::describe_quorum_response::{PartitionData, ReplicaState};
use kafka_protocol::messages::{
    AddRaftVoterRequest, ApiKey, DescribeClusterRequest, DescribeQuorumRequest, DescribeQuorumResponse,
    RemoveRaftVoterRequest,
};
use kafka_protocol::protocol::{Encodable as _, StrBytes};
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::cluster_elections::create;
use crate::harness::client::Client;
use crate::harness::raw::{Raw, name};
use crate::harness::{Broker, eventually};

const METADATA_LOG: &str = "__cluster_metadata";
const REQUEST_TIMED_OUT: i16 = 7;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const UNSUPPORTED_VERSION: i16 = 35;
const INVALID_REQUEST: i16 = 42;
const INCONSISTENT_CLUSTER_ID: i16 = 104;

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
        let words = [&answer.error_message, &partition.error_message];
        assert_eq!(words.map(|it| it.as_deref()), [Some(""); 2]);
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

pub(super) fn quorum_now(node: &Broker) -> Option<PartitionData> {
    Some(told_now(node)?.topics.remove(0).partitions.remove(0))
}

/// What is told of a voter.
fn voter(quorum: &PartitionData, id: i32) -> ReplicaState {
    let found = quorum.current_voters.iter().find(|voter| voter.replica_id.0 == id);
    found.cloned().unwrap_or_else(|| panic!("no voter {id}: {quorum:?}"))
}

pub(super) fn ids(replicas: &[ReplicaState]) -> BTreeSet<i32> {
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

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn cluster_id(node: &Broker) -> StrBytes {
    Raw::connect(node).call(0, &DescribeClusterRequest::default()).cluster_id
}

/// The code and the words of the answer to a request of either version; the second has one field more.
fn add(node: &Broker, version: i16, request: &AddRaftVoterRequest) -> (i16, String) {
    let mut body = BytesMut::new();
    request.encode(&mut body, 0).expect("it fits");
    if version == 1 {
        body.truncate(body.len() - 1);
        body.put_slice(&[0, 0]); // it need not be committed; no tagged field
    }
    let mut raw = Raw::connect(node);
    let sent = raw.send_as(ApiKey::AddRaftVoter as i16, version, 2, &body);
    let mut frame = raw.frame();
    assert_eq!((frame.get_i32(), frame.get_u8(), frame.get_i32()), (sent, 0, 0), "and no throttle time");
    let code = frame.get_i16();
    let length = usize::from(frame.get_u8());
    // A compact string of more than 126 bytes has another byte of length.
    let length = if length < 128 { length } else { length - 128 + 128 * usize::from(frame.get_u8()) };
    let message = frame.split_to(length.saturating_sub(1));
    assert_eq!(frame[..], [0]);
    (code, String::from_utf8(message.to_vec()).expect("words"))
}

fn remove(node: &Broker, request: &RemoveRaftVoterRequest) -> (i16, String) {
    let answer = Raw::connect(node).call(0, request);
    assert_eq!(answer.throttle_time_ms, 0);
    (answer.error_code, answer.error_message.map(|it| it.to_string()).unwrap_or_default())
}

/// The voters were given to the nodes with their files.
fn voters_stay(node: &Broker) {
    let own = cluster_id(node);
    let directory = Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    let listener =
        |name: &str| Listener::default().with_name(text(name)).with_host(text("127.0.0.1")).with_port(1);
    let voter = |cluster_id: Option<&StrBytes>, id, directory| {
        AddRaftVoterRequest::default()
            .with_cluster_id(cluster_id.cloned())
            .with_timeout_ms(30_000)
            .with_voter_id(id)
            .with_voter_directory_id(directory)
            .with_listeners(vec![listener("CONTROLLER")])
    };
    let other = (
        INCONSISTENT_CLUSTER_ID,
        format!("The given id \"other\" doesn't match the cluster id \"{}\"", own.as_str()),
    );
    let invalid = |what| (INVALID_REQUEST, format!("{what} voter request didn't include a valid voter"));
    let unsupported = |what| {
        let text = format!("Cluster doesn't support {what} voter because the kraft.version feature is 0");
        (UNSUPPORTED_VERSION, text)
    };
    for version in 0..=1 {
        let code = |request: &AddRaftVoterRequest| add(node, version, request);
        assert_eq!(code(&voter(Some(&text("other")), 7, directory)), other);
        assert_eq!(code(&voter(Some(&own), -1, directory)), invalid("Add"));
        assert_eq!(code(&voter(Some(&own), 7, Uuid::nil())), invalid("Add"));
        assert_eq!(code(&voter(Some(&own), 7, directory)), unsupported("adding"));
        assert_eq!(code(&voter(None, 1, directory)), unsupported("adding"));
    }
    let voter = |cluster_id: Option<&StrBytes>, id, directory| {
        RemoveRaftVoterRequest::default()
            .with_cluster_id(cluster_id.cloned())
            .with_voter_id(id)
            .with_voter_directory_id(directory)
    };
    assert_eq!(remove(node, &voter(Some(&text("other")), 1, directory)), other);
    assert_eq!(remove(node, &voter(Some(&own), -1, directory)), invalid("Remove"));
    assert_eq!(remove(node, &voter(Some(&own), 1, Uuid::nil())), invalid("Remove"));
    assert_eq!(remove(node, &voter(None, 1, directory)), unsupported("removing"));
    assert_eq!(remove(node, &voter(Some(&own), 99, directory)), unsupported("removing"));
}

#[test]
fn the_only_voter_of_a_node_alone_stays() {
    let broker = Broker::start();
    voters_stay(&broker);
}

#[test]
fn voters_that_the_nodes_files_name_stay() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start();
    let before = eventually("somebody leads", || quorum_now(&cluster.nodes[0])).current_voters;
    for (_, node) in cluster.running() {
        voters_stay(node);
        // The listener by which controllers reach each other is the first that they have.
        let elsewhere = Listener::default().with_name(text("OTHER")).with_host(text("h")).with_port(1);
        let voter = AddRaftVoterRequest::default()
            .with_cluster_id(None)
            .with_voter_id(7)
            .with_voter_directory_id(Uuid::from_u128(7))
            .with_listeners(vec![elsewhere]);
        let (code, message) = add(node, 0, &voter);
        assert_eq!(code, INVALID_REQUEST);
        assert!(message.starts_with("Add voter request didn't include the endpoint"), "{message}");
        assert!(message.ends_with("for the default listener ListenerName(CONTROLLER)"), "{message}");
    }
    let after = eventually("somebody leads", || quorum_now(&cluster.nodes[0])).current_voters;
    assert_eq!(ids(&after), ids(&before));
}
