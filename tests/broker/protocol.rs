//! Requests as bytes: versions, refusals, order of answers, what garbage does. The values are Apache Kafka's.

use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, FetchRequest, ListOffsetsRequest, MetadataRequest,
    ProduceRequest, ResponseHeader,
};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, StrBytes};

use crate::harness::batch::Batch;
use crate::harness::client::Client;
use crate::harness::raw::{Answer, FETCH, PRODUCE, Raw, fetch, produce};
use crate::harness::{Broker, PATIENCE, shard_counts};

const UNSUPPORTED_VERSION: i16 = 35;

fn api_versions() -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("raw"))
        .with_client_software_version(StrBytes::from_static_str("1"))
}

#[test]
fn api_versions_of_an_unknown_version_are_answered_in_version_0() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    for version in [-1, 9, 99, i16::MAX] {
        let sent = raw.send_as(ApiKey::ApiVersions as i16, version, 2, b"\0\0\0");
        let mut frame = raw.frame();
        assert_eq!(ResponseHeader::decode(&mut frame, 0).expect("a header").correlation_id, sent);
        let response = ApiVersionsResponse::decode(&mut frame, 0).expect("a response of version 0");
        assert!(frame.is_empty(), "bytes after the response's end");
        assert_eq!(response.error_code, UNSUPPORTED_VERSION);
        let [only] = response.api_keys.as_slice() else { panic!("{:?}", response.api_keys) };
        assert_eq!((only.api_key, only.min_version), (ApiKey::ApiVersions as i16, 0));
        assert!(only.max_version >= 4, "{}", only.max_version);
    }
    // The connection lives on: that is how clients find the version that both know.
    assert_eq!(raw.call(4, &api_versions()).error_code, 0);
}

#[test]
fn every_version_of_api_versions_lists_the_same_keys() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    let keys = |raw: &mut Raw, version| {
        let response = raw.call(version, &api_versions());
        assert_eq!(response.error_code, 0, "version {version}");
        response.api_keys.iter().map(|api| (api.api_key, api.min_version, api.max_version)).collect::<Vec<(
            i16,
            i16,
            i16,
        )>>()
    };
    let newest = keys(&mut raw, 4);
    for version in 0..4 {
        assert_eq!(keys(&mut raw, version), newest, "version {version}");
    }
    // Clients that find Produce missing at 0 turn compression off, though nobody may use that version.
    let range = |key: ApiKey| newest.iter().find(|(found, ..)| *found == key as i16).copied();
    assert_eq!(range(ApiKey::Produce).map(|(_, min, _)| min), Some(0));
    assert_eq!(range(ApiKey::Fetch).map(|(_, min, _)| min), Some(4));
    assert_eq!(range(ApiKey::ListOffsets).map(|(_, min, _)| min), Some(1));
    assert_eq!(range(ApiKey::Metadata).map(|(_, min, _)| min), Some(0));
    assert!(range(ApiKey::Produce).is_some_and(|(.., max)| max >= 12), "{newest:?}");
    assert!(range(ApiKey::Fetch).is_some_and(|(.., max)| max >= 13), "{newest:?}");
}

#[test]
fn every_version_of_kafka_4_2_is_served() {
    /// Apache Kafka 4.2's ranges of what a client needs to produce and consume and to tend topics and groups.
    const RANGES: &[(i16, i16, i16)] = &[
        (0, 0, 13),
        (1, 4, 18),
        (2, 1, 11),
        (3, 0, 13),
        (8, 2, 10),
        (9, 1, 10),
        (10, 0, 6),
        (11, 0, 9),
        (12, 0, 4),
        (13, 0, 5),
        (14, 0, 5),
        (15, 0, 6),
        (16, 0, 5),
        (18, 0, 4),
        (19, 2, 7),
        (20, 1, 6),
        (21, 0, 2),
        (22, 0, 5),
        (23, 2, 4),
        (32, 1, 4),
        (33, 0, 2),
        (35, 1, 4),
        (37, 0, 3),
        (42, 0, 2),
        (44, 0, 1),
        (47, 0, 0),
        (60, 0, 2),
        (61, 0, 0),
        (74, 0, 1),
        (75, 0, 0),
    ];
    let broker = Broker::start();
    let response = Raw::connect(&broker).call(4, &api_versions());
    for (key, min, max) in RANGES {
        let api = response.api_keys.iter().find(|api| api.api_key == *key);
        let api = api.unwrap_or_else(|| panic!("key {key} is not served"));
        // A newer Kafka has newer versions; its minimums are the same.
        assert_eq!(api.min_version, *min, "key {key}");
        assert!(api.max_version >= *max, "key {key}: {} < {max}", api.max_version);
    }
}

#[test]
fn a_feature_with_minimum_0_is_left_out_before_version_4() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    let old = raw.call(3, &api_versions());
    assert!(old.supported_features.iter().all(|feature| feature.min_version >= 1), "{old:?}");
}

#[test]
fn a_version_that_is_not_served_closes_the_connection_at_once() {
    let broker = Broker::start();
    // Fetch above the newest and below the oldest, ListOffsets 0, Produce 0 to 2 (advertised, never served), a key
    // that no broker has.
    for (key, version, header) in [
        (1, 99, 2),
        (1, 3, 1),
        (2, 0, 1),
        (0, 0, 1),
        (0, 1, 1),
        (0, 2, 1),
        (3, 1000, 2),
        (3, -1, 1),
        (999, 0, 1),
    ] {
        let mut raw = Raw::connect(&broker);
        let start = Instant::now();
        raw.send_as(key, version, header, &[0; 32]);
        assert_eq!(raw.answer(PATIENCE), Answer::Closed, "key {key} version {version}");
        assert!(start.elapsed() < Duration::from_secs(5), "key {key} version {version}: slowly");
    }
    Raw::connect(&broker).call(4, &api_versions());
}

#[test]
fn garbage_closes_only_its_own_connection() {
    let mut broker = Broker::start();
    let mut bystander = Raw::connect(&broker);
    let sized = |size: i32, bytes: &[u8]| {
        let mut frame = BytesMut::new();
        frame.put_i32(size);
        frame.put_slice(bytes);
        frame.freeze()
    };
    let cases = [
        ("a negative size", sized(-1, &[0; 16])),
        ("a size of i32::MIN", sized(i32::MIN, &[0; 16])),
        ("a size above socket.request.max.bytes", sized(i32::MAX, &[0; 64])),
        ("an empty frame", sized(0, &[])),
        ("a frame of one byte", sized(1, &[0])),
        ("a frame of three bytes", sized(3, &[0, 18, 0])),
        ("a header that ends early", sized(8, &[0, 18, 0, 0, 0, 0, 0, 1])),
        ("a client id longer than the frame", sized(10, &[0, 18, 0, 0, 0, 0, 0, 1, 0x7f, 0xff])),
        ("an HTTP request", Bytes::from_static(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")),
        (
            "a TLS greeting",
            Bytes::from_static(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03garbage that goes on"),
        ),
    ];
    for (what, bytes) in cases {
        let mut raw = Raw::connect(&broker);
        raw.send_bytes(&bytes);
        assert_eq!(raw.answer(PATIENCE), Answer::Closed, "{what}");
        assert_eq!(bystander.call(4, &api_versions()).error_code, 0, "after {what}");
    }
    assert!(broker.is_alive());
}

#[test]
fn a_count_larger_than_the_frame_is_refused_without_the_memory_for_it() {
    let mut broker = Broker::start();
    // The counts claim billions of members: (key, version, header version, body).
    let huge_compact = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let cases: [(ApiKey, i16, i16, Vec<u8>); 6] = [
        (ApiKey::Metadata, 1, 1, vec![0x7f, 0xff, 0xff, 0xff]),
        (ApiKey::Metadata, 12, 2, huge_compact.to_vec()),
        (ApiKey::Fetch, 12, 2, [&[0xff; 4][..], &[0; 25], &huge_compact].concat()),
        (ApiKey::Produce, 9, 2, [&[0][..], &[0, 1, 0, 0, 1, 0], &huge_compact].concat()),
        (ApiKey::CreateTopics, 2, 1, vec![0x7f, 0xff, 0xff, 0xff, 0, 0]),
        (ApiKey::ListOffsets, 6, 2, [&[0xff; 4][..], &[0], &huge_compact].concat()),
    ];
    for (key, version, header, body) in cases {
        let mut raw = Raw::connect(&broker);
        raw.send_as(key as i16, version, header, &body);
        assert_eq!(raw.answer(PATIENCE), Answer::Closed, "{key:?} {version}");
    }
    assert!(broker.is_alive());
    Raw::connect(&broker).call(4, &api_versions());
}

#[test]
fn random_frames_never_stop_the_broker() {
    let mut broker = Broker::start();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..300 {
        let mut raw = Raw::connect(&broker);
        let (key, version) = ((random() % 95) as i16, (random() % 14) as i16);
        let body: Vec<u8> = (0..random() % 200).map(|_| random() as u8).collect();
        raw.send_as(key, version, 1 + (random() % 2) as i16, &body);
        drop(raw);
        assert!(broker.is_alive(), "round {round}: key {key} version {version} body {body:?}");
    }
    Raw::connect(&broker).call(4, &api_versions());
}

#[test]
fn a_frame_that_comes_byte_by_byte_is_a_frame() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    let mut body = BytesMut::new();
    api_versions().encode(&mut body, 3).expect("fits");
    let mut bytes = BytesMut::new();
    bytes.put_i32(11 + body.len() as i32);
    bytes.put_slice(&[0, 18, 0, 3, 0, 0, 0, 7, 0xff, 0xff, 0]);
    bytes.put_slice(&body);
    for byte in &bytes {
        raw.send_bytes(&[*byte]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(raw.receive::<ApiVersionsRequest>(3).0, 7);
}

#[test]
fn a_client_id_is_bytes_of_any_kind() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    raw.send_frame(&[0, 18, 0, 0, 0, 0, 0, 5, 0, 3, 0xff, 0xfe, 0x80]);
    assert_eq!(raw.receive::<ApiVersionsRequest>(0).0, 5);
}

#[test]
fn answers_come_in_the_order_of_the_requests() {
    for shards in shard_counts([1, 2, 3, 8]) {
        let broker = Broker::with(shards, &[]);
        Client::of(&broker).create_topic("ordered", 16, &[]);
        let mut raw = Raw::connect(&broker);
        let end: Vec<(i32, i64)> = (0..16).map(|partition| (partition, 0)).collect();
        let mut expected = Vec::new();
        for round in 0..5 {
            let data = Batch::of(&["a"], 1_000 + round).encode();
            expected.push((ApiKey::Produce, raw.send(PRODUCE, &produce("ordered", round as i32, -1, data))));
            expected.push((ApiKey::ApiVersions, raw.send(3, &api_versions())));
            // Nothing for it to return: it waits, and everything behind it too.
            let waiting = fetch("ordered", &end[8..]).with_max_wait_ms(100);
            expected.push((ApiKey::Fetch, raw.send(FETCH, &waiting)));
            expected.push((ApiKey::Metadata, raw.send(9, &MetadataRequest::default().with_topics(None))));
        }
        for (key, sent) in expected {
            let received = match key {
                ApiKey::Produce => raw.receive::<ProduceRequest>(PRODUCE).0,
                ApiKey::Fetch => raw.receive::<FetchRequest>(FETCH).0,
                ApiKey::Metadata => raw.receive::<MetadataRequest>(9).0,
                _ => raw.receive::<ApiVersionsRequest>(3).0,
            };
            assert_eq!(received, sent, "{key:?} with {shards} shards");
        }
    }
}

#[test]
fn each_served_version_of_the_data_requests_answers() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("versions", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let id = raw.topic_id("versions");
    for version in 3..=12 {
        let data = Batch::now(&["a", "b"]).encode();
        let response = raw.call(version, &produce("versions", 0, -1, data));
        let partition = &response.responses[0].partition_responses[0];
        assert_eq!(
            (partition.error_code, partition.base_offset),
            (0, 2 * i64::from(version - 3)),
            "{version}"
        );
    }
    let mut by_id = produce("versions", 0, -1, Batch::now(&["a", "b"]).encode());
    by_id.topic_data[0].name = Default::default();
    by_id.topic_data[0].topic_id = id;
    let response = raw.call(13, &by_id);
    assert_eq!(response.responses[0].topic_id, id);
    assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
    for version in 4..=17 {
        let mut request = fetch("versions", &[(0, 0)]);
        if version >= 13 {
            request.topics[0].topic = Default::default();
            request.topics[0].topic_id = id;
        }
        let response = raw.call(version, &request);
        let partition = &response.responses[0].partitions[0];
        assert_eq!((partition.error_code, partition.high_watermark), (0, 22), "fetch {version}");
        assert!(partition.records.as_ref().is_some_and(|records| records.len() > 61), "fetch {version}");
    }
    for version in 1..=10 {
        assert_eq!(raw.list_offset(version, "versions", -1).offset, 22, "list offsets {version}");
        assert_eq!(raw.list_offset(version, "versions", -2).offset, 0, "list offsets {version}");
    }
    for version in 0..=13 {
        let request =
            MetadataRequest::default().with_topics((version > 0).then_some(vec![]).or(Some(vec![])));
        let response = raw.call(version, &request);
        assert_eq!(response.brokers.len(), 1, "metadata {version}");
        // No topics asked for means all of them in version 0, none later.
        assert_eq!(response.topics.is_empty(), version > 0, "metadata {version}");
    }
}

#[test]
fn list_offsets_before_version_1_is_refused_and_the_next_connection_serves() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("refused", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let request = ListOffsetsRequest::default().with_replica_id((-1).into());
    let mut body = BytesMut::new();
    request.encode(&mut body, 1).expect("fits");
    raw.send_as(ApiKey::ListOffsets as i16, 0, 1, &body);
    assert_eq!(raw.answer(PATIENCE), Answer::Closed);
    assert_eq!(Raw::connect(&broker).list_offset(1, "refused", -1).offset, 0);
}
