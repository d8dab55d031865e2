use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::produce_request as theirs;
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint as TheirEndpoint, PartitionProduceResponse,
    TopicProduceResponse,
};
use kafka_protocol::messages::{self, ResponseHeader, TopicName as TheirTopicName, TransactionalId};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use proptest::prelude::*;

use super::*;
use crate::base::clock::Timestamp;
use crate::base::{BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicId};
use crate::wire::ErrorCode;
use crate::wire::header::CorrelationId;
use crate::wire::parts::{CurrentLeader, NodeEndpoint, TopicRef};

const VERSIONS: std::ops::RangeInclusive<i16> = 3..=13;

fn text(value: &'static str) -> StrBytes {
    StrBytes::from_static_str(value)
}

fn topic_id() -> TopicId {
    TopicId(uuid::Uuid::from_u128(0x1234_5678_9abc_def0_1122_3344_5566_7788))
}

fn topic_ref(version: i16) -> TopicRef {
    if version >= 13 { TopicRef::Id(topic_id()) } else { TopicRef::Name(text("events")) }
}

fn their_request(version: i16) -> messages::ProduceRequest {
    let partition =
        |index, records| theirs::PartitionProduceData::default().with_index(index).with_records(records);
    let topic = theirs::TopicProduceData::default().with_partition_data(vec![
        partition(0, Some(Bytes::from_static(b"some records"))),
        partition(7, None),
        partition(9, Some(Bytes::new())),
    ]);
    let topic = match version >= 13 {
        true => topic.with_topic_id(topic_id().0),
        false => topic.with_name(TheirTopicName(text("events"))),
    };
    messages::ProduceRequest::default()
        .with_transactional_id(Some(TransactionalId(text("tx"))))
        .with_acks(-1)
        .with_timeout_ms(1500)
        .with_topic_data(vec![topic])
}

fn encoded(message: &impl Encodable, version: i16) -> Bytes {
    let mut out = BytesMut::new();
    message.encode(&mut out, version).unwrap();
    out.freeze()
}

#[test]
fn request_of_every_version_is_read_without_copying_records() {
    for version in VERSIONS {
        let body = encoded(&their_request(version), version);
        let request = ProduceRequest::decode(version, &body).unwrap();
        assert_eq!(request.transactional_id.as_deref(), Some("tx"));
        assert_eq!((request.acks, request.timeout_ms), (Acks::All, 1500));
        assert_eq!(request.topics.len(), 1);
        assert_eq!(request.topics[0].topic, topic_ref(version));
        let partitions = &request.topics[0].partitions;
        let indexes: Vec<i32> = partitions.iter().map(|partition| partition.index.0).collect();
        assert_eq!(indexes, [0, 7, 9]);
        let records = partitions[0].records.as_ref().unwrap();
        assert_eq!(&records[..], b"some records");
        assert!(body.as_ptr_range().contains(&records.as_ptr()));
        assert_eq!((&partitions[1].records, &partitions[2].records), (&None, &Some(Bytes::new())));
    }
}

#[test]
fn cut_requests_are_errors() {
    for version in VERSIONS {
        let body = encoded(&their_request(version), version);
        for len in 0..body.len() {
            assert!(ProduceRequest::decode(version, &body.slice(..len)).is_err(), "{version} {len}");
        }
    }
}

#[test]
fn hostile_counts_are_refused() {
    // null transactional id, acks, timeout, then 2^31 - 1 topics.
    let legacy = Bytes::from_static(&[0xff, 0xff, 0, 1, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff, 0, 0]);
    assert!(ProduceRequest::decode(3, &legacy).is_err());
    let compact = Bytes::from_static(&[0, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0]);
    assert!(ProduceRequest::decode(9, &compact).is_err());
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), version in 3i16..=13) {
        let _ = ProduceRequest::decode(version, &Bytes::from(bytes));
    }

    #[test]
    fn damaged_requests_never_panic(at: prop::sample::Index, byte: u8, version in 3i16..=13) {
        let mut body = encoded(&their_request(version), version).to_vec();
        let at = at.index(body.len());
        body[at] = byte;
        let _ = ProduceRequest::decode(version, &body.into());
    }
}

fn our_response(version: i16) -> ProduceResponse {
    let refused = ProducePartitionResponse {
        log_append_time: Timestamp(99),
        log_start_offset: Offset(3),
        record_errors: vec![(1, Some("no key".to_string())), (2, None)],
        error_message: Some("refused".to_string()),
        current_leader: Some(CurrentLeader { id: BrokerId(5), epoch: LeaderEpoch(8) }),
        ..ProducePartitionResponse::failed(PartitionIndex(4), ErrorCode::NotLeaderOrFollower)
    };
    let appended = ProducePartitionResponse::appended(PartitionIndex(0), Offset(1 << 40));
    ProduceResponse {
        topics: vec![ProduceTopicResponse { topic: topic_ref(version), partitions: vec![appended, refused] }],
        throttle_ms: 12,
        node_endpoints: vec![
            NodeEndpoint { id: BrokerId(5), host: "host".into(), port: 9092, rack: Some("r1".into()) },
            NodeEndpoint { id: BrokerId(6), host: "h".repeat(130), port: 9093, rack: None },
        ],
    }
}

fn their_response(version: i16) -> messages::ProduceResponse {
    let appended = PartitionProduceResponse::default().with_index(0).with_base_offset(1 << 40);
    let mut refused = PartitionProduceResponse::default()
        .with_index(4)
        .with_error_code(6)
        .with_base_offset(-1)
        .with_log_append_time_ms(99)
        .with_log_start_offset(3)
        .with_record_errors(vec![
            BatchIndexAndErrorMessage::default()
                .with_batch_index(1)
                .with_batch_index_error_message(Some(text("no key"))),
            BatchIndexAndErrorMessage::default().with_batch_index(2),
        ])
        .with_error_message(Some(text("refused")));
    let mut response = messages::ProduceResponse::default().with_throttle_time_ms(12);
    if version >= 10 {
        let leader = LeaderIdAndEpoch::default().with_leader_id(messages::BrokerId(5)).with_leader_epoch(8);
        refused = refused.with_current_leader(leader);
        response = response.with_node_endpoints(vec![
            TheirEndpoint::default()
                .with_node_id(messages::BrokerId(5))
                .with_host(text("host"))
                .with_port(9092)
                .with_rack(Some(text("r1"))),
            TheirEndpoint::default()
                .with_node_id(messages::BrokerId(6))
                .with_host(StrBytes::from_string("h".repeat(130)))
                .with_port(9093),
        ]);
    }
    let topic = TopicProduceResponse::default().with_partition_responses(vec![appended, refused]);
    let topic = match version >= 13 {
        true => topic.with_topic_id(topic_id().0),
        false => topic.with_name(TheirTopicName(text("events"))),
    };
    response.with_responses(vec![topic])
}

#[test]
fn response_of_every_version_is_byte_for_byte_what_the_message_codec_writes() {
    for version in VERSIONS {
        let frame = our_response(version).encode(version, CorrelationId(77)).unwrap();
        let mut expected = BytesMut::new();
        let header = ResponseHeader::default().with_correlation_id(77);
        header.encode(&mut expected, if version >= 9 { 1 } else { 0 }).unwrap();
        their_response(version).encode(&mut expected, version).unwrap();
        assert_eq!(frame[..4], (expected.len() as i32).to_be_bytes());
        assert_eq!(frame[4..], expected[..], "version {version}");
    }
}

#[test]
fn defaults_write_no_tagged_field() {
    let mut response = our_response(12);
    response.node_endpoints.clear();
    response.topics[0].partitions[1].current_leader = None;
    let frame = response.encode(12, CorrelationId(1)).unwrap();
    // Header version 1: length, correlation id, no tags.
    let mut body = frame.slice(9..);
    let decoded = messages::ProduceResponse::decode(&mut body, 12).unwrap();
    assert!(body.is_empty());
    assert!(decoded.node_endpoints.is_empty());
}
