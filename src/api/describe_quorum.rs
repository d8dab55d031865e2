//! DescribeQuorum 0–2 (KIP-595, KIP-836, KIP-853): who votes on the metadata log, and how far each is. Whoever leads it
//! tells (`KafkaRaftClient.handleDescribeQuorumRequest`), any broker asks there.

use kafka_protocol::messages::describe_quorum_response::{
    Listener, Node, PartitionData, ReplicaState, TopicData,
};
use kafka_protocol::messages::{DescribeQuorumRequest, DescribeQuorumResponse};
use uuid::Uuid;

use super::Client;
use super::answer_room::AnswerRoom;
use super::cluster_view::{broker_id, text, topic_name};
use crate::base::{BrokerId, ShardId};
use crate::config::BrokerConfig;
use crate::metadata::Image;
use crate::raft::{QuorumDescription, ReplicaDescription};
use crate::shard::messages::{ControlReply, ControlRequest, Reply, Request};
use crate::wire::ErrorCode;

/// What Kafka calls the metadata log, which has one partition.
const METADATA_LOG: (&str, i32) = ("__cluster_metadata", 0);

/// From here on directories and the voters' addresses are told.
const FIRST_WITH_NODES: i16 = 2;

/// What a partition that is not there takes in the answer, about.
const REFUSED_BYTES: usize = 256;

pub async fn handle(client: &Client, version: i16, request: DescribeQuorumRequest) -> DescribeQuorumResponse {
    if !asks_for_metadata_log(&request) {
        return refuse_all(client, request).await;
    }
    let asked = Request::Control(ControlRequest::DescribeQuorum);
    match client.shard.ask(ShardId::CONTROL, asked).await {
        Reply::Control(ControlReply::Quorum(Some(description))) => {
            respond(version, &description, &client.shard.image(), client.shard.config())
        }
        // What a client is told in whose name a broker of Kafka's has looked in vain.
        Reply::Control(ControlReply::Quorum(None)) => DescribeQuorumResponse::default()
            .with_error_code(ErrorCode::RequestTimedOut.code())
            .with_error_message(Some(text("The request timed out."))),
        _ => crate::base::fatal("a question for the quorum got another request's answer"),
    }
}

fn asks_for_metadata_log(request: &DescribeQuorumRequest) -> bool {
    let (name, index) = METADATA_LOG;
    let [topic] = &request.topics[..] else { return false };
    let [partition] = &topic.partitions[..] else { return false };
    topic.topic_name.as_str() == name && partition.partition_index == index
}

/// Nothing else has a quorum, and nobody asks for several at once.
async fn refuse_all(client: &Client, request: DescribeQuorumRequest) -> DescribeQuorumResponse {
    let mut room = AnswerRoom::new(client);
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut partitions = Vec::new();
        for partition in topic.partitions {
            if !room.add(REFUSED_BYTES).await {
                break;
            }
            partitions.push(
                PartitionData::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(ErrorCode::UnknownTopicOrPartition.code())
                    .with_error_message(Some(text("This server does not host this topic-partition."))),
            );
        }
        topics.push(TopicData::default().with_topic_name(topic.topic_name).with_partitions(partitions));
    }
    DescribeQuorumResponse::default().with_topics(topics)
}

fn respond(
    version: i16,
    description: &QuorumDescription,
    image: &Image,
    config: &BrokerConfig,
) -> DescribeQuorumResponse {
    let with_nodes = version >= FIRST_WITH_NODES;
    let states = |replicas: &[ReplicaDescription]| replicas.iter().map(|it| state(it, with_nodes)).collect();
    let (name, index) = METADATA_LOG;
    let partition = PartitionData::default()
        .with_partition_index(index)
        .with_leader_id(broker_id(description.leader))
        .with_leader_epoch(description.epoch.0)
        .with_high_watermark(description.high_watermark.0)
        .with_current_voters(states(&description.voters))
        .with_observers(states(&description.observers));
    let topic = TopicData::default().with_topic_name(topic_name(name)).with_partitions(vec![partition]);
    let nodes = description.voters.iter().filter(|_| with_nodes).map(|voter| {
        Node::default()
            .with_node_id(broker_id(voter.node))
            .with_listeners(listeners(voter.node, image, config))
    });
    // Where nothing is wrong the words are "", not none, as in Kafka.
    DescribeQuorumResponse::default().with_topics(vec![topic]).with_nodes(nodes.collect())
}

fn state(replica: &ReplicaDescription, with_directory: bool) -> ReplicaState {
    ReplicaState::default()
        .with_replica_id(broker_id(replica.node))
        .with_replica_directory_id(if with_directory { replica.directory } else { Uuid::nil() })
        .with_log_end_offset(replica.log_end.0)
        .with_last_fetch_timestamp(replica.last_fetch.0)
        .with_last_caught_up_timestamp(replica.last_caught_up.0)
}

/// Where other controllers reach the voter, which a node alone has no need of.
pub(super) fn listeners(node: BrokerId, image: &Image, config: &BrokerConfig) -> Vec<Listener> {
    let listener = |name: &str, host: &str, port| {
        Listener::default().with_name(text(name)).with_host(text(host)).with_port(port)
    };
    if let Some(registered) = image.controller(node) {
        let endpoints = registered.endpoints.iter();
        return endpoints.map(|it| listener(&it.listener, &it.host, it.port)).collect();
    }
    let mut voters = config.cluster.iter().flat_map(|cluster| &cluster.voters);
    let voter = voters.find(|voter| voter.node == node).zip(config.controller_listeners.first());
    voter.map(|(it, own)| listener(own.name.as_str(), &it.host, it.port)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::describe_quorum_request::{
        PartitionData as AskedPartition, TopicData as AskedTopic,
    };

    use super::*;
    use crate::base::clock::Timestamp;
    use crate::base::{LeaderEpoch, Offset};
    use crate::config::Source;
    use crate::metadata::{ControllerImage, Endpoint, Record, State};
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    fn config() -> BrokerConfig {
        let text = "node.id=1\nlog.dirs=/data\nlisteners=PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093\n\
                    controller.listener.names=CONTROLLER\n\
                    controller.quorum.voters=1@127.0.0.1:9093,2@localhost:9094\n";
        BrokerConfig::load(Some(Source { path: "server.properties", text }), &[]).unwrap().config
    }

    fn description() -> QuorumDescription {
        let replica = |node: i32| ReplicaDescription {
            node: BrokerId(node),
            directory: Uuid::from_u128(100 + node as u128),
            log_end: Offset(30 + i64::from(node)),
            last_fetch: Timestamp(1000),
            last_caught_up: Timestamp(900),
        };
        QuorumDescription {
            leader: BrokerId(2),
            epoch: LeaderEpoch(7),
            high_watermark: Offset(31),
            voters: vec![replica(1), replica(2)],
            observers: vec![replica(3)],
        }
    }

    fn asked(topics: &[(&str, &[i32])]) -> DescribeQuorumRequest {
        let partition = |index: &i32| AskedPartition::default().with_partition_index(*index);
        let topics = topics.iter().map(|(name, partitions)| {
            AskedTopic::default()
                .with_topic_name(topic_name(name))
                .with_partitions(partitions.iter().map(partition).collect())
        });
        DescribeQuorumRequest::default().with_topics(topics.collect())
    }

    #[test]
    fn the_metadata_log_alone_has_a_quorum() {
        let (name, _) = METADATA_LOG;
        assert!(asks_for_metadata_log(&asked(&[(name, &[0])])));
        for other in [("t", &[0][..]), (name, &[]), (name, &[1]), (name, &[0, 0])] {
            assert!(!asks_for_metadata_log(&asked(&[other])), "{other:?}");
        }
        assert!(!asks_for_metadata_log(&asked(&[])));
        assert!(!asks_for_metadata_log(&asked(&[(name, &[0]), (name, &[0])])));
    }

    #[test]
    fn every_version_tells_what_it_has_room_for() {
        let registered = Record::ControllerRegistered(ControllerImage {
            id: BrokerId(2),
            incarnation: Uuid::from_u128(9),
            endpoints: vec![Endpoint {
                listener: "OTHER".to_owned(),
                host: "there".to_owned(),
                port: 1,
                security_protocol: 0,
            }],
            features: Vec::new(),
        });
        let mut state = State::default();
        state.apply(1, &[Record::Cluster { id: "cluster".into() }, registered]).unwrap();
        for version in 0..=2 {
            let response = respond(version, &description(), state.image(), &config());
            assert!(guard::encode(version, CorrelationId(1), &response).is_ok(), "{version}");
            let [TopicData { topic_name, partitions, .. }] = &response.topics[..] else { panic!() };
            assert_eq!((topic_name.as_str(), partitions.len()), ("__cluster_metadata", 1));
            let told = &partitions[0];
            assert_eq!((told.leader_id.0, told.leader_epoch, told.high_watermark), (2, 7, 31));
            let ends = |states: &[ReplicaState]| -> Vec<(i32, i64)> {
                states.iter().map(|state| (state.replica_id.0, state.log_end_offset)).collect()
            };
            assert_eq!(ends(&told.current_voters), [(1, 31), (2, 32)]);
            assert_eq!(ends(&told.observers), [(3, 33)]);
            let directory = told.current_voters[0].replica_directory_id.as_u128();
            assert_eq!(directory, if version < 2 { 0 } else { 101 });
            let listeners = response.nodes.iter().flat_map(|node| {
                let node_id = node.node_id.0;
                node.listeners.iter().map(move |it| (node_id, &*it.name, &*it.host, it.port))
            });
            let listeners: Vec<(i32, &str, &str, u16)> = listeners.collect();
            match version {
                2 => assert_eq!(listeners, [(1, "CONTROLLER", "127.0.0.1", 9093), (2, "OTHER", "there", 1)]),
                _ => assert_eq!(response.nodes, []),
            }
        }
    }
}
