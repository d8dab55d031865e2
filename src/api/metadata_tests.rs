//! Tests of Metadata on an image, in every version.

use kafka_protocol::protocol::{Decodable, HeaderVersion};
use uuid::Uuid;

use super::super::cluster_view::testing::{cluster, topic_id, view};
use super::*;
use crate::wire::guard;
use crate::wire::header::CorrelationId;

fn by_name(names: &[&str]) -> MetadataRequest {
    let topics = names.iter().map(|name| MetadataRequestTopic::default().with_name(Some(topic_name(name))));
    MetadataRequest::default().with_topics(Some(topics.collect()))
}

fn by_id(ids: &[Uuid]) -> MetadataRequest {
    let topic = |id: &Uuid| MetadataRequestTopic::default().with_name(None).with_topic_id(*id);
    MetadataRequest::default().with_topics(Some(ids.iter().map(topic).collect()))
}

fn names(response: &MetadataResponse) -> Vec<String> {
    response
        .topics
        .iter()
        .map(|topic| topic.name.as_ref().map_or("-".into(), |name| name.to_string()))
        .collect()
}

fn codes(response: &MetadataResponse) -> Vec<i16> {
    response.topics.iter().map(|topic| topic.error_code).collect()
}

#[test]
fn every_version_can_be_encoded_with_all_that_was_asked_for() {
    let state = cluster(&[("a", 2), ("lost", 1), ("__consumer_offsets", 1)]);
    for version in 0..=13 {
        let mut request = by_name(&["a", "lost", "none", "bad name", "__consumer_offsets"]);
        request.include_cluster_authorized_operations = true;
        request.include_topic_authorized_operations = true;
        let response = respond(view(&state), version, &request, &HashMap::new());
        let frame = guard::encode(version, CorrelationId(1), &response).unwrap();
        let head = if MetadataResponse::header_version(version) >= 1 { 9 } else { 8 };
        let back = MetadataResponse::decode(&mut frame.slice(head..), version).unwrap();
        assert_eq!(codes(&back), [0, 0, 3, 17, 0], "version {version}");
        assert_eq!(back.topics[0].partitions.len(), 2);
        assert_eq!(back.topics[1].partitions[0].error_code, ErrorCode::LeaderNotAvailable.code());
        assert_eq!(back.topics[4].is_internal, version >= 1);
        assert_eq!(back.brokers.len(), 1);
        assert_eq!(&*back.brokers[0].host, "plaintext-1");
    }
}

#[test]
fn an_empty_list_is_all_topics_in_version_0_and_none_since() {
    let state = cluster(&[("b", 1), ("a", 1)]);
    let none = MetadataRequest::default().with_topics(Some(Vec::new()));
    let all = MetadataRequest::default().with_topics(None);
    assert_eq!(names(&respond(view(&state), 0, &none, &HashMap::new())), ["a", "b"]);
    assert_eq!(names(&respond(view(&state), 1, &none, &HashMap::new())), [""; 0]);
    assert_eq!(names(&respond(view(&state), 12, &all, &HashMap::new())), ["a", "b"]);
}

#[test]
fn topics_are_found_by_id() {
    let state = cluster(&[("a", 1)]);
    let request = by_id(&[topic_id("a").0, Uuid::from_u128(99)]);
    let response = respond(view(&state), 12, &request, &HashMap::new());
    assert_eq!(codes(&response), [0, ErrorCode::UnknownTopicId.code()]);
    assert_eq!(names(&response), ["a", "-"]);
    assert_eq!(refusal(12, &request), None);
    assert_eq!(refusal(11, &request), Some(ErrorCode::InvalidRequest));
    assert_eq!(refusal(12, &by_id(&[Uuid::nil()])), Some(ErrorCode::InvalidRequest));
    let refused = refuse_all(&request, ErrorCode::InvalidRequest);
    assert!(guard::encode(11, CorrelationId(1), &refused).is_ok());
}

#[test]
fn each_listener_has_its_own_addresses() {
    let state = cluster(&[("a", 1)]);
    let inside = View { listener: "inside", ..view(&state) };
    let response = respond(inside, 12, &by_name(&["a"]), &HashMap::new());
    let hosts: Vec<&str> = response.brokers.iter().map(|broker| &*broker.host).collect();
    assert_eq!(hosts, ["inside-1", "inside-3"]);
    assert_eq!(response.topics[0].partitions[0].leader_id.0, 1);
    let nowhere = View { listener: "OTHER", ..view(&state) };
    let code = |version| {
        respond(nowhere, version, &by_name(&["a"]), &HashMap::new()).topics[0].partitions[0].error_code
    };
    assert_eq!(code(6), ErrorCode::ListenerNotFound.code());
    assert_eq!(code(5), ErrorCode::LeaderNotAvailable.code());
}

#[test]
fn dead_replicas_are_offline_and_left_out_in_version_0() {
    let state = cluster(&[("a", 1)]);
    let partition = |version| {
        respond(view(&state), version, &by_name(&["a"]), &HashMap::new()).topics[0].partitions[0].clone()
    };
    let newer = partition(5);
    assert_eq!((newer.error_code, newer.replica_nodes.len(), newer.offline_replicas[0].0), (0, 2, 2));
    let oldest = partition(0);
    assert_eq!((oldest.error_code, oldest.replica_nodes.len()), (ErrorCode::ReplicaNotAvailable.code(), 1));
}

#[test]
fn only_names_that_can_be_topics_are_created_once_each() {
    let mut request = by_name(&["a", "new", "bad name", "new", ""]);
    request.topics.as_mut().unwrap().push(
        MetadataRequestTopic::default()
            .with_name(Some(topic_name("by-id")))
            .with_topic_id(Uuid::from_u128(3)),
    );
    assert_eq!(missing_topics(&request, |name| name == "a"), ["new"]);
}

#[test]
fn a_topic_that_could_not_be_created_says_why() {
    let state = cluster(&[]);
    let refused = failures::<()>(vec![
        ("three".into(), Err(Refusal::new(ErrorCode::InvalidReplicationFactor, ""))),
        ("race".into(), Err(Refusal::new(ErrorCode::TopicAlreadyExists, ""))),
        ("fine".into(), Ok(())),
    ]);
    let response = respond(view(&state), 9, &by_name(&["three", "race"]), &refused);
    assert_eq!(codes(&response), [ErrorCode::InvalidReplicationFactor.code(), 3]);
}

#[test]
fn a_topic_asked_for_twice_is_answered_once() {
    let state = cluster(&[("a", 1)]);
    assert_eq!(
        names(&respond(view(&state), 12, &by_name(&["a", "a", "x", "x"]), &HashMap::new())),
        ["a", "x"]
    );
}
