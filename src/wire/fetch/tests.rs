use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::fetch_request as theirs;
use kafka_protocol::messages::fetch_response::{
    AbortedTransaction as TheirAborted, EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch,
    NodeEndpoint as TheirEndpoint, PartitionData,
};
use kafka_protocol::messages::{self, ResponseHeader, TopicName as TheirTopicName};
use kafka_protocol::protocol::{Encodable, StrBytes};
use proptest::prelude::*;

use super::*;
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionIndex, ProducerId, TopicId};
use crate::wire::ErrorCode;
use crate::wire::header::CorrelationId;
use crate::wire::parts::{CurrentLeader, NodeEndpoint, TopicRef};

const VERSIONS: std::ops::RangeInclusive<i16> = 4..=18;

fn text(value: &'static str) -> StrBytes {
    StrBytes::from_static_str(value)
}

fn topic_id() -> TopicId {
    TopicId(uuid::Uuid::from_u128(0x1234_5678_9abc_def0_1122_3344_5566_7788))
}

fn topic_ref(version: i16) -> TopicRef {
    if version >= 13 { TopicRef::Id(topic_id()) } else { TopicRef::Name(text("events")) }
}

fn their_request(version: i16) -> messages::FetchRequest {
    let mut partition = theirs::FetchPartition::default()
        .with_partition(3)
        .with_fetch_offset(1 << 33)
        .with_partition_max_bytes(1 << 20);
    let mut request = messages::FetchRequest::default()
        .with_max_wait_ms(500)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_isolation_level(1);
    if version <= 14 {
        request = request.with_replica_id(messages::BrokerId(2));
    }
    if version >= 5 {
        partition = partition.with_log_start_offset(11);
    }
    if version >= 9 {
        partition = partition.with_current_leader_epoch(6);
    }
    if version >= 12 {
        partition = partition.with_last_fetched_epoch(5);
        request = request.with_cluster_id(Some(text("cluster")));
    }
    if version >= 15 {
        let state =
            theirs::ReplicaState::default().with_replica_id(messages::BrokerId(2)).with_replica_epoch(44);
        request = request.with_replica_state(state);
    }
    if version >= 17 {
        partition = partition.with_replica_directory_id(uuid::Uuid::from_u128(5));
    }
    if version >= 18 {
        partition = partition.with_high_watermark(88);
    }
    let topic = theirs::FetchTopic::default()
        .with_partitions(vec![partition, theirs::FetchPartition::default().with_partition(4)]);
    let forgotten = theirs::ForgottenTopic::default().with_partitions(vec![1, 2, 3]);
    let (topic, forgotten) = match version >= 13 {
        true => (topic.with_topic_id(topic_id().0), forgotten.with_topic_id(topic_id().0)),
        false => (
            topic.with_topic(TheirTopicName(text("events"))),
            forgotten.with_topic(TheirTopicName(text("events"))),
        ),
    };
    if version >= 7 {
        request =
            request.with_session_id(123).with_session_epoch(4).with_forgotten_topics_data(vec![forgotten]);
    }
    if version >= 11 {
        request = request.with_rack_id(text("rack"));
    }
    request.with_topics(vec![topic])
}

fn encoded(message: &impl Encodable, version: i16) -> Bytes {
    let mut out = BytesMut::new();
    message.encode(&mut out, version).unwrap();
    out.freeze()
}

#[test]
fn request_of_every_version_is_read() {
    for version in VERSIONS {
        let since = |first: i16| version >= first;
        let body = encoded(&their_request(version), version);
        let request = FetchRequest::decode(version, &body).unwrap();
        assert_eq!(request.cluster_id.as_deref(), since(12).then_some("cluster"));
        assert_eq!(request.replica_id, BrokerId(2));
        assert_eq!(request.replica_epoch, BrokerEpoch(if since(15) { 44 } else { -1 }));
        assert_eq!((request.max_wait_ms, request.min_bytes, request.max_bytes), (500, 1, 50 << 20));
        assert_eq!(request.isolation_level, IsolationLevel::ReadCommitted);
        assert_eq!(request.session_id, SessionId(if since(7) { 123 } else { 0 }));
        assert_eq!(request.session_epoch, SessionEpoch(if since(7) { 4 } else { -1 }));
        assert_eq!(&*request.rack_id, if since(11) { "rack" } else { "" });
        assert_eq!(request.topics.len(), 1);
        assert_eq!(request.topics[0].topic, topic_ref(version));
        let expected = FetchPartition {
            index: PartitionIndex(3),
            current_leader_epoch: LeaderEpoch(if since(9) { 6 } else { -1 }),
            fetch_offset: Offset(1 << 33),
            last_fetched_epoch: LeaderEpoch(if since(12) { 5 } else { -1 }),
            log_start_offset: Offset(if since(5) { 11 } else { -1 }),
            max_bytes: 1 << 20,
            replica_directory_id: uuid::Uuid::from_u128(if since(17) { 5 } else { 0 }),
            high_watermark: since(18).then_some(Offset(88)),
        };
        assert_eq!(request.topics[0].partitions[0], expected);
        assert_eq!(request.topics[0].partitions[1].high_watermark, None);
        let forgotten =
            ForgottenTopic { topic: topic_ref(version), partitions: [1, 2, 3].map(PartitionIndex).to_vec() };
        assert_eq!(request.forgotten, if since(7) { vec![forgotten] } else { vec![] });
    }
}

#[test]
fn cut_requests_are_errors() {
    for version in VERSIONS {
        let body = encoded(&their_request(version), version);
        for len in 0..body.len() {
            assert!(FetchRequest::decode(version, &body.slice(..len)).is_err(), "{version} {len}");
        }
    }
}

#[test]
fn session_epoch_wraps_to_one_and_never_leaves_the_final_one() {
    assert_eq!(SessionEpoch::INITIAL.next(), SessionEpoch(1));
    assert_eq!(SessionEpoch(i32::MAX).next(), SessionEpoch(1));
    assert_eq!(SessionEpoch::FINAL.next(), SessionEpoch::FINAL);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), version in 4i16..=18) {
        let _ = FetchRequest::decode(version, &Bytes::from(bytes));
    }

    #[test]
    fn damaged_requests_never_panic(at: prop::sample::Index, byte: u8, version in 4i16..=18) {
        let mut body = encoded(&their_request(version), version).to_vec();
        let at = at.index(body.len());
        body[at] = byte;
        let _ = FetchRequest::decode(version, &body.into());
    }
}

const RECORDS: [&[u8]; 3] = [b"records of the first", b"", b"and of the third partition"];

fn our_response(version: i16) -> FetchResponse {
    let first = FetchPartitionResponse {
        high_watermark: Offset(100),
        last_stable_offset: Offset(90),
        log_start_offset: Offset(10),
        aborted: Some(vec![AbortedTransaction { producer_id: ProducerId(7), first_offset: Offset(50) }]),
        preferred_read_replica: Some(BrokerId(3)),
        records_len: RECORDS[0].len(),
        ..FetchPartitionResponse::failed(PartitionIndex(0), None)
    };
    let second = FetchPartitionResponse {
        current_leader: Some(CurrentLeader { id: BrokerId(2), epoch: LeaderEpoch(9) }),
        ..FetchPartitionResponse::failed(PartitionIndex(1), ErrorCode::NotLeaderOrFollower)
    };
    let third = FetchPartitionResponse {
        aborted: Some(vec![]),
        diverging_epoch: Some(DivergingEpoch { epoch: LeaderEpoch(4), end_offset: Offset(77) }),
        current_leader: Some(CurrentLeader { id: BrokerId(2), epoch: LeaderEpoch(9) }),
        records_len: RECORDS[2].len(),
        ..first.clone()
    };
    FetchResponse {
        throttle_ms: 5,
        error: Some(ErrorCode::FetchSessionIdNotFound),
        session_id: SessionId(42),
        topics: vec![
            FetchTopicResponse { topic: topic_ref(version), partitions: vec![first, second] },
            FetchTopicResponse { topic: topic_ref(version), partitions: vec![third] },
        ],
        node_endpoints: vec![NodeEndpoint { id: BrokerId(2), host: "host".into(), port: 9092, rack: None }],
    }
}

fn their_response(version: i16) -> messages::FetchResponse {
    let mut first = PartitionData::default()
        .with_high_watermark(100)
        .with_last_stable_offset(90)
        .with_log_start_offset(10)
        .with_aborted_transactions(Some(vec![
            TheirAborted::default().with_producer_id(messages::ProducerId(7)).with_first_offset(50),
        ]))
        .with_records(Some(Bytes::from_static(RECORDS[0])));
    if version >= 11 {
        first = first.with_preferred_read_replica(messages::BrokerId(3));
    }
    let mut second = PartitionData::default()
        .with_partition_index(1)
        .with_error_code(6)
        .with_high_watermark(-1)
        .with_aborted_transactions(None)
        .with_records(Some(Bytes::new()));
    let mut third = first
        .clone()
        .with_aborted_transactions(Some(vec![]))
        .with_records(Some(Bytes::from_static(RECORDS[2])));
    let mut response = messages::FetchResponse::default().with_throttle_time_ms(5);
    if version >= 7 {
        response = response.with_error_code(70).with_session_id(42);
    }
    if version >= 12 {
        let leader = LeaderIdAndEpoch::default().with_leader_id(messages::BrokerId(2)).with_leader_epoch(9);
        second = second.with_current_leader(leader.clone());
        third = third
            .with_current_leader(leader)
            .with_diverging_epoch(EpochEndOffset::default().with_epoch(4).with_end_offset(77));
    }
    if version >= 16 {
        response = response.with_node_endpoints(vec![
            TheirEndpoint::default()
                .with_node_id(messages::BrokerId(2))
                .with_host(text("host"))
                .with_port(9092),
        ]);
    }
    let topic = |partitions| {
        let topic = FetchableTopicResponse::default().with_partitions(partitions);
        match version >= 13 {
            true => topic.with_topic_id(topic_id().0),
            false => topic.with_topic(TheirTopicName(text("events"))),
        }
    };
    response.with_responses(vec![topic(vec![first, second]), topic(vec![third])])
}

fn joined(encoded: &EncodedFetch) -> Vec<u8> {
    let mut frame = Vec::new();
    for piece in &encoded.pieces {
        match piece {
            Piece::Bytes(bytes) => frame.extend_from_slice(bytes),
            Piece::Records { partition, len } => {
                assert_eq!(RECORDS[*partition].len(), *len);
                frame.extend_from_slice(RECORDS[*partition]);
            }
        }
    }
    frame
}

#[test]
fn response_of_every_version_is_byte_for_byte_what_the_message_codec_writes() {
    for version in VERSIONS {
        let encoded = our_response(version).encode(version, CorrelationId(77)).unwrap();
        let frame = joined(&encoded);
        assert_eq!(frame.len(), encoded.total_len);
        let mut expected = BytesMut::new();
        let header = ResponseHeader::default().with_correlation_id(77);
        header.encode(&mut expected, if version >= 12 { 1 } else { 0 }).unwrap();
        their_response(version).encode(&mut expected, version).unwrap();
        assert_eq!(frame[..4], (expected.len() as i32).to_be_bytes());
        assert_eq!(frame[4..], expected[..], "version {version}");
    }
}

#[test]
fn response_without_records_is_one_piece() {
    for version in VERSIONS {
        let response = FetchResponse { session_id: SessionId(9), ..FetchResponse::default() };
        let encoded = response.encode(version, CorrelationId(1)).unwrap();
        assert!(matches!(&encoded.pieces[..], [Piece::Bytes(bytes)] if bytes.len() == encoded.total_len));
    }
}

#[test]
fn response_beyond_a_frame_is_an_error() {
    let mut response = our_response(12);
    response.topics[0].partitions[0].records_len = i32::MAX as usize;
    assert!(response.encode(12, CorrelationId(1)).is_err());
}

const FOLLOWERS: std::ops::RangeInclusive<i16> = 13..=18;

#[test]
fn a_follower_writes_its_request_byte_for_byte_as_the_message_codec_does() {
    for version in FOLLOWERS {
        let theirs = encoded(&their_request(version).with_cluster_id(None), version);
        let request = FetchRequest::decode(version, &theirs).unwrap();
        let frame = request.encode(version, CorrelationId(5), "me").unwrap();
        assert_eq!(frame[..4], (frame.len() as i32 - 4).to_be_bytes());
        let parsed = crate::wire::header::parse(&frame.slice(4..)).unwrap();
        let crate::wire::header::Request::Known { header, body } = parsed else { panic!("{version}") };
        assert_eq!((header.version, header.correlation_id), (version, CorrelationId(5)));
        assert_eq!(header.client_id.as_deref(), Some(&b"me"[..]));
        assert_eq!(body, theirs, "version {version}");
    }
}

fn their_answer(version: i16) -> Bytes {
    let mut frame = BytesMut::new();
    ResponseHeader::default().with_correlation_id(77).encode(&mut frame, 1).unwrap();
    their_response(version).encode(&mut frame, version).unwrap();
    frame.freeze()
}

#[test]
fn an_answer_is_walked_where_it_lies() {
    for version in FOLLOWERS {
        let frame = their_answer(version);
        let (correlation_id, answer) = FetchAnswer::decode(version, &frame).unwrap();
        assert_eq!(correlation_id, CorrelationId(77));
        assert_eq!(answer.error, Some(ErrorCode::FetchSessionIdNotFound));
        assert_eq!(answer.session_id, SessionId(42));
        let [first, second, third] = &answer.partitions[..] else { panic!("three partitions") };
        assert_eq!((first.topic, first.index, first.error), (topic_id(), PartitionIndex(0), None));
        assert_eq!((first.high_watermark, first.log_start), (Offset(100), Offset(10)));
        assert_eq!((&first.records[..], first.diverging), (RECORDS[0], None));
        let records_at = first.records.as_ptr() as usize - frame.as_ptr() as usize;
        assert!(records_at < frame.len(), "they are a slice of the frame");
        assert_eq!((second.index, second.error), (PartitionIndex(1), Some(ErrorCode::NotLeaderOrFollower)));
        assert!(second.records.is_empty());
        assert_eq!(third.diverging, Some(DivergingEpoch { epoch: LeaderEpoch(4), end_offset: Offset(77) }));
        assert_eq!(&third.records[..], RECORDS[2]);
        for len in 0..frame.len() {
            assert!(FetchAnswer::decode(version, &frame.slice(..len)).is_err(), "{version} {len}");
        }
    }
}

proptest! {
    #[test]
    fn damaged_answers_never_panic(at: prop::sample::Index, byte: u8, version in 13i16..=18) {
        let mut frame = their_answer(version).to_vec();
        let at = at.index(frame.len());
        frame[at] = byte;
        let _ = FetchAnswer::decode(version, &frame.into());
    }
}
