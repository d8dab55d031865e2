//! Messages as the codecs of kafka-protocol write them, read by their schema.

use std::net::{IpAddr, SocketAddr};

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, NodeEndpoint, PartitionData};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{MetadataResponseBroker, MetadataResponseTopic};
use kafka_protocol::messages::{
    AlterConfigsRequest, DescribeConfigsResponse, EnvelopeRequest, IncrementalAlterConfigsRequest,
    alter_configs_request, incremental_alter_configs_request,
};
use kafka_protocol::messages::{
    ApiKey, BrokerId, FetchResponse, FindCoordinatorResponse, JoinGroupRequest, MetadataRequest,
    MetadataResponse, ProduceRequest, SaslAuthenticateRequest,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use serde_json::{Value, json};

use super::*;
use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::trace::Filter;
use crate::trace::address::Directory;
use crate::trace::schema::{Direction, Schemas};
use crate::wire::record::{BatchBuilder, Codec, Compression};

fn config() -> Config {
    Config {
        routes: Vec::new(),
        filter: Filter::default(),
        records: false,
        frame_bytes_max: 1 << 20,
        line_bytes_max: 1 << 20,
    }
}

fn encoded(message: &impl Encodable, version: i16) -> Bytes {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes, version).expect("encodes");
    bytes.freeze()
}

/// The decoded message and its JSON. Addresses of port 9092 are replaced.
fn read(
    key: ApiKey,
    direction: Direction,
    version: i16,
    body: &Bytes,
    config: &Config,
    names: &TopicNames,
) -> Result<(Decoded, Value), DecodeError> {
    let schemas = Schemas::new();
    let message = schemas.find(key as i16, direction).expect("known");
    let listening: SocketAddr = "127.0.0.1:7777".parse().expect("valid");
    let directory = Directory::new(vec![(listening, "broker.invalid:9092".parse().expect("valid"))]);
    let local = IpAddr::from([127, 0, 0, 1]);
    let replace =
        |address: &Address| (address.port == 9092).then(|| directory.replacement(address, local)).flatten();
    let context = Context { config, names, replace: &replace, hides_reasons: false };
    let decoded = decode(message, version, body, context)?;
    let json =
        serde_json::from_str(&decoded.json).unwrap_or_else(|error| panic!("{error}: {}", decoded.json));
    Ok((decoded, json))
}

fn text(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

fn metadata(host: &'static str) -> MetadataResponse {
    let broker = |id: i32, host: &'static str, port: i32| {
        MetadataResponseBroker::default().with_node_id(BrokerId(id)).with_host(text(host)).with_port(port)
    };
    MetadataResponse::default()
        .with_brokers(vec![broker(1, host, 9092), broker(2, "other", 9093)])
        .with_cluster_id(Some(text("cluster")))
        .with_controller_id(BrokerId(1))
}

#[test]
fn requests_of_every_version_are_read_field_by_field() {
    for version in 0..=13 {
        let topic = MetadataRequestTopic::default().with_name(Some(text("t").into()));
        let body = encoded(&MetadataRequest::default().with_topics(Some(vec![topic])), version);
        let (decoded, json) =
            read(ApiKey::Metadata, Direction::Request, version, &body, &config(), &TopicNames::default())
                .expect("decodes");
        assert_eq!((decoded.left, json["topics"][0]["name"].as_str()), (0, Some("t")), "version {version}");
        assert!(decoded.mentions.topics.contains("t") && decoded.rewritten.is_none());
        assert_eq!(json.get("allowAutoTopicCreation").is_some(), version >= 4);
    }
}

#[test]
fn the_addresses_of_brokers_are_replaced_in_every_version_and_nothing_else_is() {
    for version in 0..=12 {
        let body = encoded(&metadata("broker.invalid"), version);
        let (decoded, json) =
            read(ApiKey::Metadata, Direction::Response, version, &body, &config(), &TopicNames::default())
                .expect("decodes");
        // What is printed is what the broker said.
        assert_eq!(json["brokers"][0]["host"], "broker.invalid");
        let rewritten = decoded.rewritten.expect("replaced");
        let found = MetadataResponse::decode(&mut rewritten.clone(), version).expect("decodes");
        let mut wanted = MetadataResponse::decode(&mut body.clone(), version).expect("decodes");
        wanted.brokers[0].host = text("127.0.0.1");
        wanted.brokers[0].port = 7777;
        assert_eq!(found, wanted, "version {version}");
        let unknown = metadata("elsewhere.invalid");
        let body = encoded(&unknown, version);
        let read =
            read(ApiKey::Metadata, Direction::Response, version, &body, &config(), &TopicNames::default());
        assert!(read.expect("decodes").0.rewritten.is_none());
    }
}

#[test]
fn addresses_in_coordinators_and_in_tagged_fields_are_replaced() {
    let coordinator = FindCoordinatorResponse::default().with_host(text("broker.invalid")).with_port(9092);
    let body = encoded(&coordinator, 3);
    let (decoded, _) =
        read(ApiKey::FindCoordinator, Direction::Response, 3, &body, &config(), &TopicNames::default())
            .expect("decodes");
    let found =
        FindCoordinatorResponse::decode(&mut decoded.rewritten.expect("replaced"), 3).expect("decodes");
    assert_eq!((found.host.as_str(), found.port), ("127.0.0.1", 7777));

    let endpoint =
        NodeEndpoint::default().with_node_id(BrokerId(1)).with_host(text("broker.invalid")).with_port(9092);
    let partition =
        PartitionData::default().with_partition_index(4).with_records(Some(Bytes::from_static(b"abc")));
    let topic = FetchableTopicResponse::default().with_partitions(vec![partition]);
    let response = FetchResponse::default().with_responses(vec![topic]).with_node_endpoints(vec![endpoint]);
    let body = encoded(&response, 16);
    let (decoded, json) =
        read(ApiKey::Fetch, Direction::Response, 16, &body, &config(), &TopicNames::default())
            .expect("decodes");
    assert_eq!(json["nodeEndpoints"][0]["port"], 9092);
    assert_eq!(json["responses"][0]["partitions"][0]["records"]["bytesNotInWholeBatches"], 3);
    let found = FetchResponse::decode(&mut decoded.rewritten.expect("replaced"), 16).expect("decodes");
    let mut wanted = response;
    wanted.node_endpoints[0].host = text("127.0.0.1");
    wanted.node_endpoints[0].port = 7777;
    assert_eq!(found, wanted);
}

fn produce(codec: Codec) -> Bytes {
    let mut batch = BatchBuilder::new(Offset(0), Compression::of(codec));
    batch.append(Timestamp(5), Some(b"k"), Some(b"v\xff"), &[]);
    batch.append(Timestamp(6), None, None, &[]);
    let records = batch.finish().expect("encodes");
    let partition = kafka_protocol::messages::produce_request::PartitionProduceData::default()
        .with_records(Some(records));
    let topic = kafka_protocol::messages::produce_request::TopicProduceData::default()
        .with_name(text("t").into())
        .with_partition_data(vec![partition]);
    encoded(&ProduceRequest::default().with_acks(0).with_topic_data(vec![topic]), 9)
}

#[test]
fn records_are_summed_up_and_shown_when_asked_for() {
    let body = produce(Codec::Zstd);
    let names = TopicNames::default();
    let (decoded, json) =
        read(ApiKey::Produce, Direction::Request, 9, &body, &config(), &names).expect("decodes");
    assert_eq!(decoded.mentions.acks, Some(0));
    let records = &json["topicData"][0]["partitionData"][0]["records"];
    assert_eq!(
        (&records["batches"], &records["records"], &records["codecs"]),
        (&json!(1), &json!(2), &json!(["zstd"]))
    );
    assert_eq!(records.get("list"), None);
    let config = Config { records: true, ..config() };
    let (_, json) = read(ApiKey::Produce, Direction::Request, 9, &body, &config, &names).expect("decodes");
    let list = &json["topicData"][0]["partitionData"][0]["records"]["list"];
    assert_eq!(
        list,
        &json!([
            {"offset": 0, "timestamp": 5, "key": "k", "value": {"hex": "76ff"}},
            {"offset": 1, "timestamp": 6, "key": null, "value": null},
        ])
    );
}

#[test]
fn a_topic_id_is_named_once_a_response_has_told_its_name() {
    let names = TopicNames::default();
    let id = uuid::Uuid::from_u128(77);
    let by_id = MetadataRequest::default()
        .with_topics(Some(vec![MetadataRequestTopic::default().with_topic_id(id).with_name(None)]));
    let by_id = encoded(&by_id, 12);
    let (decoded, _) =
        read(ApiKey::Metadata, Direction::Request, 12, &by_id, &config(), &names).expect("decodes");
    assert!(decoded.mentions.topics.is_empty());
    let topic = MetadataResponseTopic::default().with_name(Some(text("t").into())).with_topic_id(id);
    let response = encoded(&metadata("a").with_topics(vec![topic]), 12);
    read(ApiKey::Metadata, Direction::Response, 12, &response, &config(), &names).expect("decodes");
    let (decoded, json) =
        read(ApiKey::Metadata, Direction::Request, 12, &by_id, &config(), &names).expect("decodes");
    assert_eq!(json["topics"][0]["(topic)"], "t");
    assert!(decoded.mentions.topics.contains("t"));
}

#[test]
fn secrets_are_told_by_their_length() {
    let request = SaslAuthenticateRequest::default().with_auth_bytes(Bytes::from_static(b"\0user\0password"));
    let (_, json) = read(
        ApiKey::SaslAuthenticate,
        Direction::Request,
        2,
        &encoded(&request, 2),
        &config(),
        &TopicNames::default(),
    )
    .expect("decodes");
    assert_eq!(json, json!({"authBytes": {"bytes": 14}}));
}

/// A message by the fields that it has on the wire.
fn fields(parts: &[&[u8]]) -> Bytes {
    Bytes::from(parts.concat())
}

fn read_one(key: ApiKey, direction: Direction, version: i16, body: &Bytes) -> Value {
    read(key, direction, version, body, &config(), &TopicNames::default()).expect("decodes").1
}

#[test]
fn configs_that_may_be_passwords_are_hidden_when_they_are_set() {
    let altered = |kind: i8, name: &'static str, value: Option<&'static str>| {
        let config = incremental_alter_configs_request::AlterableConfig::default()
            .with_name(text(name))
            .with_value(value.map(text));
        let resource = incremental_alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text("1"))
            .with_configs(vec![config]);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let json = read_one(ApiKey::IncrementalAlterConfigs, Direction::Request, 1, &encoded(&request, 1));
        json["resources"][0]["configs"][0]["value"].clone()
    };
    assert_eq!(altered(4, "listener.name.x.ssl.keystore.password", Some("hunter2")), "[hidden]");
    assert_eq!(altered(4, "sasl.jaas.config", Some("hunter2")), "[hidden]");
    // What is not known may be one.
    assert_eq!(altered(2, "some.plugin.login", Some("hunter2")), "[hidden]");
    assert_eq!(altered(2, "retention.ms", Some("1000")), "1000");
    assert_eq!(altered(4, "log.retention.ms", Some("1000")), "1000");
    assert_eq!(altered(4, "sasl.jaas.config", None), Value::Null);
    let config =
        alter_configs_request::AlterableConfig::default().with_name(text("x")).with_value(Some(text("y")));
    let resource = alter_configs_request::AlterConfigsResource::default()
        .with_resource_type(4)
        .with_configs(vec![config]);
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    let json = read_one(ApiKey::AlterConfigs, Direction::Request, 2, &encoded(&request, 2));
    assert_eq!(json["resources"][0]["configs"][0]["value"], "[hidden]");
}

#[test]
fn configs_that_a_broker_calls_sensitive_are_hidden_with_their_synonyms() {
    let synonym = DescribeConfigsSynonym::default().with_name(text("mine")).with_value(Some(text("hunter2")));
    let described = |name: &'static str, is_sensitive: bool| {
        DescribeConfigsResourceResult::default()
            .with_name(text(name))
            .with_value(Some(text("hunter2")))
            .with_is_sensitive(is_sensitive)
            .with_synonyms(vec![synonym.clone()])
    };
    let configs = vec![described("one", true), described("two", false), described("ssl.key.password", false)];
    let result = DescribeConfigsResult::default().with_resource_type(4).with_configs(configs);
    for version in 1..=4 {
        let response = DescribeConfigsResponse::default().with_results(vec![result.clone()]);
        let body = encoded(&response, version);
        let json = read_one(ApiKey::DescribeConfigs, Direction::Response, version, &body);
        let configs = &json["results"][0]["configs"];
        let values =
            [0, 1, 2].map(|at| (configs[at]["value"].clone(), configs[at]["synonyms"][0]["value"].clone()));
        let wanted = [("[hidden]", "[hidden]"), ("hunter2", "hunter2"), ("[hidden]", "hunter2")];
        assert_eq!(
            values,
            wanted.map(|(value, synonym)| (value.into(), synonym.into())),
            "version {version}"
        );
    }
}

#[test]
fn what_an_envelope_and_the_metadata_log_hold_is_not_shown() {
    let request = EnvelopeRequest::default().with_request_data(Bytes::from_static(b"hunter2"));
    let json = read_one(ApiKey::Envelope, Direction::Request, 0, &encoded(&request, 0));
    assert_eq!(json["requestData"], json!({"bytes": 7}));
    let mut batch = BatchBuilder::new(Offset(0), Compression::NONE);
    batch.append(Timestamp(5), None, Some(b"hunter2"), &[]);
    let records = batch.finish().expect("encodes");
    let config = Config { records: true, ..config() };
    for (id, is_shown) in [(1, false), (2, true)] {
        let partition = PartitionData::default().with_records(Some(records.clone()));
        let topic = FetchableTopicResponse::default()
            .with_topic_id(uuid::Uuid::from_u128(id))
            .with_partitions(vec![partition]);
        let response = FetchResponse::default().with_responses(vec![topic]);
        let body = encoded(&response, 16);
        let (_, json) = read(ApiKey::Fetch, Direction::Response, 16, &body, &config, &TopicNames::default())
            .expect("decodes");
        assert_eq!(json.to_string().contains("hunter2"), is_shown, "{json}");
    }
}

#[test]
fn strings_and_unknown_tags_are_cut_where_the_line_is_full() {
    let config = Config { line_bytes_max: 200, ..config() };
    let topic =
        MetadataRequestTopic::default().with_name(Some(StrBytes::from_string("x".repeat(30_000)).into()));
    let body = encoded(&MetadataRequest::default().with_topics(Some(vec![topic])), 9);
    let (decoded, _) = read(ApiKey::Metadata, Direction::Request, 9, &body, &config, &TopicNames::default())
        .expect("decodes");
    assert!(decoded.json.len() < 600, "{}", decoded.json);
    // No topics, three flags, and a hundred tags of a hundred bytes.
    let tags: Vec<u8> = (0..100u8).flat_map(|tag| [vec![tag, 100], vec![b'x'; 100]].concat()).collect();
    let body = fields(&[&[1, 0, 0, 0, 100], &tags]);
    let (decoded, json) =
        read(ApiKey::Metadata, Direction::Request, 9, &body, &config, &TopicNames::default())
            .expect("decodes");
    assert!(decoded.json.len() < 600, "{}", decoded.json);
    assert!(json["(tags)"].as_str().is_some_and(|text| text.ends_with(" more)")), "{json}");
}

#[test]
fn acknowledgements_are_known_of_a_produce_request_that_cannot_be_read() {
    let schemas = Schemas::new();
    let message = schemas.find(ApiKey::Produce as i16, Direction::Request).expect("known");
    let of = |version: i16, body: &[u8]| acks(message, version, &Bytes::copy_from_slice(body));
    assert_eq!(of(9, &[0, 0, 0, 0xff]), Some(0));
    assert_eq!(of(9, &[2, b't', 0xff, 0xff, 0xff]), Some(-1));
    assert_eq!(of(8, &[0xff, 0xff, 0, 1, 7]), Some(1));
    assert_eq!(of(9, &[0xff]), None);
}

#[test]
fn long_arrays_are_cut_and_the_json_stays_whole() {
    let topics =
        (0..1000).map(|_| MetadataRequestTopic::default().with_name(Some(text("some-topic").into())));
    let body = encoded(&MetadataRequest::default().with_topics(Some(topics.collect())), 9);
    let config = Config { line_bytes_max: 200, ..config() };
    let (decoded, json) =
        read(ApiKey::Metadata, Direction::Request, 9, &body, &config, &TopicNames::default())
            .expect("decodes");
    assert!(decoded.json.len() < 400, "{}", decoded.json);
    let topics = json["topics"].as_array().expect("an array");
    let left_out = format!("({} more)", 1001 - topics.len());
    assert_eq!(topics.last(), Some(&Value::String(left_out)));
    assert_eq!(json["allowAutoTopicCreation"], true);
}

#[test]
fn garbage_is_an_error_without_the_memory_for_it() {
    let schemas = Schemas::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (config, names) = (config(), TopicNames::default());
    for n in 0..20_000 {
        let key = (random() % 95) as i16;
        let direction = if random() % 2 == 0 { Direction::Request } else { Direction::Response };
        let Some(message) = schemas.find(key, direction) else { continue };
        let version = message.min + (random() % (message.max - message.min + 1) as u64) as i16;
        let body: Bytes =
            (0..random() % 60).map(|_| if random() % 3 == 0 { 0xff } else { random() as u8 }).collect();
        // Whatever comes: no panic, and what is told is JSON.
        let context =
            Context { config: &config, names: &names, replace: &|_| None, hides_reasons: n % 2 == 0 };
        if let Ok(decoded) = decode(message, version, &body, context) {
            assert!(serde_json::from_str::<Value>(&decoded.json).is_ok(), "{}", decoded.json);
        }
    }
    let huge = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
    let outcome = read(ApiKey::Metadata, Direction::Request, 12, &huge, &config, &names);
    assert!(matches!(outcome, Err(DecodeError::Count { .. })));
}

#[test]
fn what_follows_the_last_field_is_counted() {
    let mut body = encoded(&JoinGroupRequest::default(), 0).to_vec();
    body.extend_from_slice(b"more");
    let (decoded, _) =
        read(ApiKey::JoinGroup, Direction::Request, 0, &Bytes::from(body), &config(), &TopicNames::default())
            .expect("decodes");
    assert_eq!(decoded.left, 4);
}
