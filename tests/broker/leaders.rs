//! What one node answers when somebody wants other leaders or other replicas of its partitions, or a broker away.

use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, BrokerId, ElectLeadersRequest, ElectLeadersResponse,
    ListPartitionReassignmentsRequest, MetadataRequest, UnregisterBrokerRequest,
};

use super::harness::Broker;
use super::harness::client::Client;
use super::harness::raw::{Raw, name};

const ELECTION_NOT_NEEDED: i16 = 84;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INVALID_REPLICA_ASSIGNMENT: i16 = 39;
const NO_REASSIGNMENT_IN_PROGRESS: i16 = 85;
const INVALID_REQUEST: i16 = 42;
const BROKER_ID_NOT_REGISTERED: i16 = 102;

fn topic_with_two_partitions() -> (Broker, Raw, i32) {
    let broker = Broker::with(1, &[]);
    Client::of(&broker).create_topic("t", 2, &[]);
    let mut raw = Raw::connect(&broker);
    let id = raw.call(12, &MetadataRequest::default().with_topics(Some(Vec::new()))).brokers[0].node_id.0;
    (broker, raw, id)
}

/// Partition, code, message of each result.
fn told(answer: &ElectLeadersResponse) -> Vec<(i32, i16, Option<String>)> {
    let results = answer.replica_election_results.iter().flat_map(|topic| &topic.partition_result);
    let message = |text: &kafka_protocol::protocol::StrBytes| text.to_string();
    results
        .map(|result| (result.partition_id, result.error_code, result.error_message.as_ref().map(message)))
        .collect()
}

#[test]
fn a_leader_that_leads_needs_no_election_and_what_is_not_there_has_none() {
    let (_broker, mut raw, _) = topic_with_two_partitions();
    let topics = || {
        let topic = |topic: &str, partitions: &[i32]| {
            TopicPartitions::default().with_topic(name(topic)).with_partitions(partitions.to_vec())
        };
        vec![topic("t", &[1, 7, 0]), topic("nothing", &[0])]
    };
    let text = |text: &str| Some(text.to_owned());
    for (version, kind) in [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)] {
        let request = ElectLeadersRequest::default()
            .with_election_type(kind)
            .with_topic_partitions(Some(topics()))
            .with_timeout_ms(30_000);
        let answer = raw.call(version, &request);
        let needless = text("Leader election not needed for topic partition.");
        let expected = [
            (1, ELECTION_NOT_NEEDED, needless.clone()),
            (7, UNKNOWN_TOPIC_OR_PARTITION, text("No such partition as t-7")),
            (0, ELECTION_NOT_NEEDED, needless),
            (0, UNKNOWN_TOPIC_OR_PARTITION, text("No such topic as nothing")),
        ];
        assert_eq!((answer.error_code, told(&answer)), (0, expected.to_vec()), "{version} {kind}");
        // Of all partitions none is told of.
        let all = request.with_topic_partitions(None);
        let answer = raw.call(version, &all);
        assert_eq!((answer.error_code, told(&answer)), (0, vec![]));
    }
    for version in 1..=2 {
        let strange =
            ElectLeadersRequest::default().with_election_type(7).with_topic_partitions(Some(topics()));
        let answer = raw.call(version, &strange);
        assert_eq!(answer.error_code, INVALID_REQUEST);
        let codes: Vec<i16> = told(&answer).iter().map(|(_, code, _)| *code).collect();
        assert_eq!(codes, [INVALID_REQUEST; 4]);
    }
}

#[test]
fn a_partition_may_be_told_to_stay_and_nothing_else() {
    let (_broker, mut raw, id) = topic_with_two_partitions();
    let mut ask = |version, topic: &str, index, replicas: Option<&[i32]>, may_change_factor| {
        let replicas = replicas.map(|ids| ids.iter().map(|id| BrokerId(*id)).collect());
        let wanted = ReassignablePartition::default().with_partition_index(index).with_replicas(replicas);
        let wanted = ReassignableTopic::default().with_name(name(topic)).with_partitions(vec![wanted]);
        let request = AlterPartitionReassignmentsRequest::default()
            .with_topics(vec![wanted])
            .with_allow_replication_factor_change(may_change_factor)
            .with_timeout_ms(30_000);
        let answer = raw.call(version, &request);
        assert_eq!((answer.error_code, answer.error_message.as_deref()), (0, None));
        let found = &answer.responses[0].partitions[0];
        assert_eq!((&answer.responses[0].name, found.partition_index), (&name(topic), index));
        (found.error_code, found.error_message.as_ref().map(ToString::to_string))
    };
    let other = id + 5;
    let includes = |what: &str| Some(format!("The manual partition assignment includes {what}"));
    let text = |text: &str| Some(text.to_owned());
    for version in 0..=1 {
        let mut check = |replicas: Option<&[i32]>, code: i16, message: Option<String>| {
            assert_eq!(ask(version, "t", 1, replicas, true), (code, message), "{version} {replicas:?}");
        };
        check(Some(&[id]), 0, None);
        check(Some(&[]), INVALID_REPLICA_ASSIGNMENT, includes("an empty replica list."));
        check(
            Some(&[id, id]),
            INVALID_REPLICA_ASSIGNMENT,
            includes(&format!("the broker {id} more than once.")),
        );
        let unknown = includes(&format!("broker {other}, but no such broker is registered."));
        check(Some(&[other]), INVALID_REPLICA_ASSIGNMENT, unknown.clone());
        check(Some(&[other, id]), INVALID_REPLICA_ASSIGNMENT, unknown);
        check(None, NO_REASSIGNMENT_IN_PROGRESS, None);
        let unknown = (UNKNOWN_TOPIC_OR_PARTITION, text("Unable to find partition t:2."));
        assert_eq!(ask(version, "t", 2, Some(&[id]), true), unknown);
        let unknown = (UNKNOWN_TOPIC_OR_PARTITION, text("Unable to find a topic named u."));
        assert_eq!(ask(version, "u", 0, Some(&[id]), true), unknown);
    }
    assert_eq!(ask(1, "t", 0, Some(&[id]), false), (0, None));
    // What cannot be is told before what is not wanted.
    assert_eq!(ask(1, "t", 0, Some(&[id, other]), false).0, INVALID_REPLICA_ASSIGNMENT);
    let topic = ListPartitionReassignmentsTopics::default()
        .with_name(name("t"))
        .with_partition_indexes(vec![0, 1, 9]);
    for topics in [None, Some(vec![topic]), Some(Vec::new())] {
        let request =
            ListPartitionReassignmentsRequest::default().with_topics(topics).with_timeout_ms(30_000);
        let answer = raw.call(0, &request);
        assert_eq!((answer.error_code, answer.error_message, answer.topics), (0, None, vec![]));
    }
}

#[test]
fn a_broker_that_is_not_there_cannot_be_taken_out() {
    let (broker, mut raw, id) = topic_with_two_partitions();
    let mut unregister = |id: i32| {
        let answer = raw.call(0, &UnregisterBrokerRequest::default().with_broker_id(BrokerId(id)));
        (answer.error_code, answer.error_message.map(|text| text.to_string()))
    };
    let other = id + 5;
    let expected = format!("Broker ID {other} is not currently registered");
    assert_eq!(unregister(other), (BROKER_ID_NOT_REGISTERED, Some(expected)));
    if !Broker::is_kafka() {
        // Kafka would forget its only broker, which goes on in vain.
        assert_eq!(unregister(id).0, INVALID_REQUEST);
        Client::of(&broker).create_topic("u", 1, &[]);
    }
}
