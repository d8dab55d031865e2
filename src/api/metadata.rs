//! Metadata 0–13: brokers and topics as a client of this listener sees them, and the creation of topics that
//! are asked for and are not there (Kafka's `KafkaApis.handleTopicMetadataRequest`).
//!
//! A topic made here is in the answer: the change is applied on every shard before the controller answers.
//! Kafka makes the client ask again.

use std::collections::{HashMap, HashSet};

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{MetadataRequest, MetadataResponse};

use super::Client;
use super::cluster_view::{
    CLUSTER_OPERATIONS, TOPIC_OPERATIONS, View, broker_id, broker_ids, text, topic_name,
};
use super::internal_topics;
use crate::base::{PartitionIndex, TopicId};
use crate::metadata::{
    Command, CreateTopics, NewTopic, PartitionImage, Refusal, TopicImage, check_topic_name,
};
use crate::wire::ErrorCode;
use crate::wire::header::RequestHeader;

/// Answers a request; creates topics first where it asks for that and the broker's settings allow it.
pub async fn handle(client: &Client, header: &RequestHeader, request: MetadataRequest) -> MetadataResponse {
    let version = header.version;
    if let Some(code) = refusal(version, &request) {
        return refuse_all(&request, code);
    }
    let config = client.shard.config();
    let mut refused = HashMap::new();
    if config.auto_create_topics && request.allow_auto_topic_creation {
        let image = client.shard.image();
        let missing = missing_topics(&request, |name| image.topic(name).is_some());
        let topics: Vec<NewTopic> =
            missing.iter().filter_map(|name| internal_topics::auto_created(name, config)).collect();
        if !topics.is_empty() {
            let names: Vec<String> = topics.iter().map(|topic| topic.name.clone()).collect();
            let command = Command::CreateTopics(CreateTopics { topics, validate_only: false });
            // Over its quota the client is told that there is no such topic, and asks again (`AutoTopicCreationManager`).
            refused = match client.command_under_quota(header, true, command).await {
                Ok((_, response)) => failures(response.topics_created()),
                Err(Refusal { code, .. }) => names.into_iter().map(|name| (name, code)).collect(),
            };
        }
    }
    let image = client.shard.image();
    let view = View::of(&image, client);
    respond(view, version, &request, &refused)
}

/// What stands against the request as a whole.
fn refusal(version: i16, request: &MetadataRequest) -> Option<ErrorCode> {
    let topics = request.topics.iter().flatten();
    // Versions 10 and 11 have the field of the topic id but do not look at it.
    let malformed = |topic: &MetadataRequestTopic| match &topic.name {
        Some(_) => version < 12 && !topic.topic_id.is_nil(),
        None => version < 12 || topic.topic_id.is_nil(),
    };
    topics.into_iter().any(malformed).then_some(ErrorCode::InvalidRequest)
}

fn refuse_all(request: &MetadataRequest, code: ErrorCode) -> MetadataResponse {
    let topics = request.topics.iter().flatten().map(|topic| {
        // Older versions cannot say null.
        let name = topic.name.clone().unwrap_or_default();
        MetadataResponseTopic::default().with_error_code(code.code()).with_name(Some(name))
    });
    MetadataResponse::default().with_topics(topics.collect())
}

/// The names that the request asks for and that could be created, once each.
fn missing_topics(request: &MetadataRequest, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut missing = Vec::new();
    let mut seen = HashSet::new();
    for topic in request.topics.iter().flatten() {
        let Some(name) = topic.name.as_ref().filter(|_| topic.topic_id.is_nil()) else { continue };
        if seen.insert(name) && !exists(name) && check_topic_name(name).is_ok() {
            missing.push(name.to_string());
        }
    }
    missing
}

/// Why topics were not created. That another client was first is no reason, and a quota none that is told.
fn failures<T>(results: Vec<(String, Result<T, Refusal>)>) -> HashMap<String, ErrorCode> {
    results
        .into_iter()
        .filter_map(|(name, result)| Some((name, result.err()?.code)))
        .filter(|(_, code)| {
            !matches!(code, ErrorCode::TopicAlreadyExists | ErrorCode::ThrottlingQuotaExceeded)
        })
        .collect()
}

fn respond(
    view: View<'_>,
    version: i16,
    request: &MetadataRequest,
    refused: &HashMap<String, ErrorCode>,
) -> MetadataResponse {
    let brokers = view.brokers().map(|(broker, endpoint)| {
        MetadataResponseBroker::default()
            .with_node_id(broker_id(broker.id))
            .with_host(text(&endpoint.host))
            .with_port(i32::from(endpoint.port))
            .with_rack(broker.rack.as_deref().map(text))
    });
    let with_operations = version >= 8 && request.include_topic_authorized_operations;
    let finish = |topic: MetadataResponseTopic| match with_operations {
        true => topic.with_topic_authorized_operations(TOPIC_OPERATIONS),
        false => topic,
    };
    let topics: Vec<MetadataResponseTopic> = match wanted(version, request) {
        None => view.image.topics().map(|topic| finish(found(view, version, topic))).collect(),
        Some(topics) => {
            let mut seen = HashSet::new();
            let distinct = topics.iter().filter(|topic| seen.insert((&topic.name, topic.topic_id)));
            distinct.map(|topic| finish(one(view, version, topic, refused))).collect()
        }
    };
    let mut response = MetadataResponse::default()
        .with_brokers(brokers.collect())
        .with_cluster_id(Some(text(view.image.cluster_id())))
        .with_controller_id(broker_id(view.controller()))
        .with_topics(topics);
    if (8..=10).contains(&version) && request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = CLUSTER_OPERATIONS;
    }
    response
}

/// `None`: all topics. An empty list asked for all in version 0, for none since.
fn wanted(version: i16, request: &MetadataRequest) -> Option<&[MetadataRequestTopic]> {
    request.topics.as_deref().filter(|topics| version > 0 || !topics.is_empty())
}

fn one(
    view: View<'_>,
    version: i16,
    wanted: &MetadataRequestTopic,
    refused: &HashMap<String, ErrorCode>,
) -> MetadataResponseTopic {
    if !wanted.topic_id.is_nil() {
        return match view.image.topic_by_id(TopicId(wanted.topic_id)) {
            Some(topic) => found(view, version, topic),
            None => MetadataResponseTopic::default()
                .with_error_code(ErrorCode::UnknownTopicId.code())
                .with_name(None)
                .with_topic_id(wanted.topic_id),
        };
    }
    let name: &str = wanted.name.as_ref().map_or("", |name| name);
    if let Some(topic) = view.image.topic(name) {
        return found(view, version, topic);
    }
    let code = if check_topic_name(name).is_err() {
        ErrorCode::InvalidTopicException
    } else {
        refused.get(name).copied().unwrap_or(ErrorCode::UnknownTopicOrPartition)
    };
    MetadataResponseTopic::default()
        .with_error_code(code.code())
        .with_name(Some(topic_name(name)))
        .with_is_internal(crate::metadata::is_internal_topic(name))
}

fn found(view: View<'_>, version: i16, topic: &TopicImage) -> MetadataResponseTopic {
    let partitions = topic.numbered().map(|(index, image)| partition(view, version, index, image));
    MetadataResponseTopic::default()
        .with_name(Some(topic_name(&topic.name)))
        .with_topic_id(topic.id.0)
        .with_is_internal(topic.is_internal())
        .with_partitions(partitions.collect())
}

fn partition(
    view: View<'_>,
    version: i16,
    index: PartitionIndex,
    image: &PartitionImage,
) -> MetadataResponsePartition {
    let seen = view.partition(image);
    // LISTENER_NOT_FOUND came with version 6; version 0 leaves dead replicas out and says so.
    let error = match seen.error {
        Some(ErrorCode::ListenerNotFound) if version < 6 => Some(ErrorCode::LeaderNotAvailable),
        None if version == 0 && !seen.offline.is_empty() => Some(ErrorCode::ReplicaNotAvailable),
        error => error,
    };
    let mut replicas = broker_ids(&image.replicas);
    let mut isr = broker_ids(&image.isr);
    if version == 0 {
        let offline = broker_ids(&seen.offline);
        replicas.retain(|id| !offline.contains(id));
        isr.retain(|id| !offline.contains(id));
    }
    MetadataResponsePartition::default()
        .with_error_code(super::code(error))
        .with_partition_index(index.0)
        .with_leader_id(broker_id(seen.leader))
        .with_leader_epoch(image.leader_epoch.0)
        .with_replica_nodes(replicas)
        .with_isr_nodes(isr)
        .with_offline_replicas(broker_ids(&seen.offline))
}

#[cfg(test)]
#[path = "metadata_tests.rs"]
mod tests;
