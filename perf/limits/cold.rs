//! The requests that a load generator makes before and after its load.

use std::io;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsResponse, CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest,
    DeleteTopicsResponse, InitProducerIdResponse, ListOffsetsRequest, ListOffsetsResponse, MetadataRequest,
    MetadataResponse, RequestHeader, ResponseHeader,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use uuid::Uuid;

use super::store::{Store, Topic};
use super::wire::TopicAt;

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const TOPIC_ALREADY_EXISTS: i16 = 36;
const UNSUPPORTED_VERSION: i16 = 35;
const EARLIEST: i64 = -2;
const NODE: i32 = 1;

/// What is understood: all of it in flexible versions, but for ApiVersions.
const VERSIONS: [(ApiKey, i16, i16); 9] = [
    (ApiKey::Produce, 9, 13),
    (ApiKey::Fetch, 12, 17),
    (ApiKey::ListOffsets, 6, 7),
    (ApiKey::Metadata, 9, 12),
    (ApiKey::ApiVersions, 0, 3),
    (ApiKey::CreateTopics, 5, 7),
    (ApiKey::DeleteTopics, 5, 6),
    (ApiKey::InitProducerId, 2, 4),
    // librdkafka tells by this one that a broker has format 2.
    (ApiKey::AddPartitionsToTxn, 0, 0),
];

pub fn answer(frame: &[u8], store: &mut Store) -> io::Result<Vec<u8>> {
    let mut body = Bytes::copy_from_slice(frame);
    let [key_high, key_low, version_high, version_low, ..] = frame else {
        return Err(io::Error::other("a request without a head"));
    };
    let version = i16::from_be_bytes([*version_high, *version_low]);
    let key = ApiKey::try_from(i16::from_be_bytes([*key_high, *key_low]))
        .map_err(|()| io::Error::other("an unknown request"))?;
    let known = VERSIONS.iter().any(|(known, min, max)| *known == key && (*min..=*max).contains(&version));
    let header = RequestHeader::decode(&mut body, key.request_header_version(version)).map_err(wrong)?;
    let correlation = header.correlation_id;
    match key {
        ApiKey::ApiVersions => {
            let (version, error) = if known { (version, 0) } else { (0, UNSUPPORTED_VERSION) };
            encode(key, version, correlation, &api_versions().with_error_code(error))
        }
        _ if !known => Err(io::Error::other(format!("{key:?} {version} is not understood"))),
        ApiKey::Metadata => {
            let request = MetadataRequest::decode(&mut body, version).map_err(wrong)?;
            encode(key, version, correlation, &metadata(&request, store))
        }
        ApiKey::ListOffsets => {
            let request = ListOffsetsRequest::decode(&mut body, version).map_err(wrong)?;
            encode(key, version, correlation, &list_offsets(&request, store))
        }
        ApiKey::CreateTopics => {
            let request = CreateTopicsRequest::decode(&mut body, version).map_err(wrong)?;
            encode(key, version, correlation, &create_topics(&request, store)?)
        }
        ApiKey::DeleteTopics => {
            let request = DeleteTopicsRequest::decode(&mut body, version).map_err(wrong)?;
            encode(key, version, correlation, &delete_topics(&request, store))
        }
        ApiKey::InitProducerId => {
            // Sequences are not looked at, so that all producers may be the same.
            let response = InitProducerIdResponse::default().with_producer_id(1.into());
            encode(key, version, correlation, &response)
        }
        _ => Err(io::Error::other(format!("{key:?} is not understood"))),
    }
}

fn api_versions() -> ApiVersionsResponse {
    let known = |(key, min, max): (ApiKey, i16, i16)| {
        ApiVersion::default().with_api_key(key as i16).with_min_version(min).with_max_version(max)
    };
    ApiVersionsResponse::default().with_api_keys(VERSIONS.map(known).to_vec())
}

fn metadata(request: &MetadataRequest, store: &Store) -> MetadataResponse {
    let topics = match &request.topics {
        None => store.topics().map(describe).collect(),
        Some(topics) => topics
            .iter()
            .map(|wanted| {
                let name = wanted.name.clone().unwrap_or_default();
                let found = store.topic(&name);
                found.map(describe).unwrap_or_else(|| {
                    MetadataResponseTopic::default()
                        .with_error_code(UNKNOWN_TOPIC_OR_PARTITION)
                        .with_name(Some(name))
                })
            })
            .collect(),
    };
    let broker = MetadataResponseBroker::default()
        .with_node_id(NODE.into())
        .with_host(StrBytes::from_static_str("127.0.0.1"))
        .with_port(i32::from(store.port));
    MetadataResponse::default().with_brokers(vec![broker]).with_controller_id(NODE.into()).with_topics(topics)
}

fn describe(topic: &Topic) -> MetadataResponseTopic {
    let partition = |index| {
        MetadataResponsePartition::default()
            .with_partition_index(index as i32)
            .with_leader_id(NODE.into())
            .with_leader_epoch(0)
            .with_replica_nodes(vec![NODE.into()])
            .with_isr_nodes(vec![NODE.into()])
    };
    MetadataResponseTopic::default()
        .with_name(Some(StrBytes::from_string(topic.name.clone()).into()))
        .with_topic_id(Uuid::from_u128(topic.id))
        .with_partitions((0..topic.partitions.len()).map(partition).collect())
}

fn list_offsets(request: &ListOffsetsRequest, store: &Store) -> ListOffsetsResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            let response = ListOffsetsPartitionResponse::default()
                .with_partition_index(partition.partition_index)
                .with_leader_epoch(0);
            let name = TopicAt::Name(topic.name.as_bytes());
            match store.find(name, partition.partition_index) {
                Some(at) if partition.timestamp == EARLIEST => response.with_offset(store.start(at)),
                Some(at) => response.with_offset(store.end(at)),
                None => response.with_error_code(UNKNOWN_TOPIC_OR_PARTITION),
            }
        });
        ListOffsetsTopicResponse::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    ListOffsetsResponse::default().with_topics(topics.collect())
}

fn create_topics(request: &CreateTopicsRequest, store: &mut Store) -> io::Result<CreateTopicsResponse> {
    let mut topics = Vec::new();
    for topic in &request.topics {
        let result = CreatableTopicResult::default().with_name(topic.name.clone());
        if store.topic(&topic.name).is_some() {
            topics.push(result.with_error_code(TOPIC_ALREADY_EXISTS));
            continue;
        }
        let setting = |name: &str| {
            let config = topic.configs.iter().find(|config| config.name.as_str() == name)?;
            config.value.as_ref()?.parse().ok()
        };
        let id = store.create(&topic.name, topic.num_partitions.max(1) as usize, setting)?;
        topics.push(result.with_topic_id(Uuid::from_u128(id)).with_num_partitions(topic.num_partitions));
    }
    Ok(CreateTopicsResponse::default().with_topics(topics))
}

fn delete_topics(request: &DeleteTopicsRequest, store: &mut Store) -> DeleteTopicsResponse {
    let named = request.topics.iter().filter_map(|topic| topic.name.clone());
    let names: Vec<_> = named.chain(request.topic_names.iter().cloned()).collect();
    let mut responses = Vec::new();
    for name in names {
        let error = if store.delete(&name) { 0 } else { UNKNOWN_TOPIC_OR_PARTITION };
        responses.push(DeletableTopicResult::default().with_name(Some(name)).with_error_code(error));
    }
    DeleteTopicsResponse::default().with_responses(responses)
}

fn encode(key: ApiKey, version: i16, correlation: i32, body: &impl Encodable) -> io::Result<Vec<u8>> {
    let mut out = BytesMut::new();
    out.extend_from_slice(&[0; 4]);
    let header = ResponseHeader::default().with_correlation_id(correlation);
    header.encode(&mut out, key.response_header_version(version)).map_err(wrong)?;
    body.encode(&mut out, version).map_err(wrong)?;
    let len = (out.len() - 4) as i32;
    out[..4].copy_from_slice(&len.to_be_bytes());
    Ok(out.to_vec())
}

fn wrong(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}
