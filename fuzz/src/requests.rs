//! What a connection reads: frames, headers, the bodies of all requests.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages;
use kafka_protocol::protocol::{Decodable, Encodable};
use kuring::base::clock::Timestamp;
use kuring::base::{BrokerId, LeaderEpoch, Offset, ProducerId};
use kuring::wire::api::{APIS, Api};
use kuring::wire::fetch::{
    AbortedTransaction, DivergingEpoch, FetchPartitionResponse, FetchRequest, FetchResponse,
    FetchTopicResponse, Piece, SessionId,
};
use kuring::wire::frame::{self, FrameStep, PREFIX_LEN, REQUEST_LEN_MIN};
use kuring::wire::header::{self, CorrelationId, Request};
use kuring::wire::newer::{
    self, FIRST_MARKERS_WITH_VERSION, FIRST_TXN_COMMIT_WITH_TOPIC_IDS, FIRST_VOTER_WITH_ACK,
};
use kuring::wire::parts::{CurrentLeader, NodeEndpoint, TopicRef};
use kuring::wire::produce::{
    ProducePartitionResponse, ProduceRequest, ProduceResponse, ProduceTopicResponse,
};
use kuring::wire::topic_ids::{self, FIRST_WITH_TOPIC_IDS};
use kuring::wire::{ApiKey, ErrorCode, guard};

use super::input::Input;

/// The bytes of a connection, frame after frame, whole frames decoded.
pub fn frames(data: &[u8]) {
    let mut input = Input::new(data);
    let len_max = [100, 1 << 16, 104_857_600][input.below(3)];
    let mut buffer = input.rest();
    loop {
        match frame::next(buffer, len_max) {
            FrameStep::Complete { len } => {
                assert!((REQUEST_LEN_MIN..=len_max).contains(&len));
                let frame = Bytes::copy_from_slice(&buffer[PREFIX_LEN..PREFIX_LEN + len]);
                if let Ok(Request::Known { header, body }) = header::parse(&frame) {
                    assert!(header.api.min_served <= header.version && header.version <= header.api.max);
                    assert!(body.len() + REQUEST_LEN_MIN <= len);
                    decode(header.api, header.version, &body);
                }
                buffer = &buffer[PREFIX_LEN + len..];
            }
            FrameStep::NeedMore { total } => {
                assert!(total > buffer.len() && total <= PREFIX_LEN + len_max);
                return;
            }
            FrameStep::Invalid(_) => return,
        }
    }
}

/// A body for one version of one API.
pub fn requests(data: &[u8]) {
    let mut input = Input::new(data);
    let api = &APIS[input.below(APIS.len())];
    let versions = (api.max - api.min_served + 1) as usize;
    let version = api.min_served + input.below(versions) as i16;
    decode(api, version, &Bytes::copy_from_slice(input.rest()));
}

/// Whether a request has tagged fields that its version does not know, by its debug form.
fn has_unknown_tags(request: &str) -> bool {
    request.split("unknown_tagged_fields: ").skip(1).any(|rest| !rest.starts_with("{}"))
}

/// Decodes a body the way its handler does. What the codec took, it must write and read again.
pub fn decode(api: &Api, version: i16, body: &Bytes) {
    macro_rules! guarded {
        ($request:ty) => {{
            let Ok(request) = guard::decode::<$request>(version, body) else { return };
            let mut again = BytesMut::new();
            // One that kafka-protocol knows by another version.
            let codec_version = api.codec_version(version);
            request.encode(&mut again, codec_version).expect("what was decoded can be encoded");
            let second = guard::decode::<$request>(version, &again.freeze());
            let is_back = second.as_ref().is_ok_and(|second| *second == request);
            // The codec writes some unknown tags (twice the same, above 2^31) so that it cannot be read; NaN is not NaN.
            let text = || format!("{request:?}");
            let is_back = is_back || has_unknown_tags(&text()) || format!("{:?}", second.as_ref().ok()) == format!("Some({})", text());
            assert!(is_back, "what was encoded is decoded as {second:?}");
        }};
    }
    match api.key {
        ApiKey::Produce => produce(version, body),
        ApiKey::Fetch => fetch(version, body),
        ApiKey::ListOffsets => guarded!(messages::ListOffsetsRequest),
        ApiKey::Metadata => guarded!(messages::MetadataRequest),
        ApiKey::OffsetCommit if version >= FIRST_WITH_TOPIC_IDS => {
            let Ok(request) = topic_ids::offset_commit(version, body) else { return };
            assert!(request.topics.iter().all(|topic| topic.name.is_empty()));
        }
        ApiKey::OffsetFetch if version >= FIRST_WITH_TOPIC_IDS => {
            let Ok(request) = topic_ids::offset_fetch(version, body) else { return };
            let topics = request.groups.iter().flat_map(|group| group.topics.iter().flatten());
            assert!(topics.into_iter().all(|topic| topic.name.is_empty()));
        }
        ApiKey::OffsetCommit => guarded!(messages::OffsetCommitRequest),
        ApiKey::OffsetFetch => guarded!(messages::OffsetFetchRequest),
        ApiKey::FindCoordinator => guarded!(messages::FindCoordinatorRequest),
        ApiKey::JoinGroup => guarded!(messages::JoinGroupRequest),
        ApiKey::Heartbeat => guarded!(messages::HeartbeatRequest),
        ApiKey::LeaveGroup => guarded!(messages::LeaveGroupRequest),
        ApiKey::SyncGroup => guarded!(messages::SyncGroupRequest),
        ApiKey::DescribeGroups => guarded!(messages::DescribeGroupsRequest),
        ApiKey::ListGroups => guarded!(messages::ListGroupsRequest),
        ApiKey::ConsumerGroupHeartbeat => guarded!(messages::ConsumerGroupHeartbeatRequest),
        ApiKey::ConsumerGroupDescribe => guarded!(messages::ConsumerGroupDescribeRequest),
        ApiKey::ApiVersions => guarded!(messages::ApiVersionsRequest),
        ApiKey::CreateTopics => guarded!(messages::CreateTopicsRequest),
        ApiKey::DeleteTopics => guarded!(messages::DeleteTopicsRequest),
        ApiKey::DeleteRecords => guarded!(messages::DeleteRecordsRequest),
        ApiKey::InitProducerId => guarded!(messages::InitProducerIdRequest),
        ApiKey::OffsetForLeaderEpoch => guarded!(messages::OffsetForLeaderEpochRequest),
        ApiKey::AddPartitionsToTxn => guarded!(messages::AddPartitionsToTxnRequest),
        ApiKey::AddOffsetsToTxn => guarded!(messages::AddOffsetsToTxnRequest),
        ApiKey::EndTxn => guarded!(messages::EndTxnRequest),
        ApiKey::WriteTxnMarkers if version >= FIRST_MARKERS_WITH_VERSION => {
            let _ = newer::write_txn_markers(version, body);
        }
        ApiKey::WriteTxnMarkers => guarded!(messages::WriteTxnMarkersRequest),
        ApiKey::TxnOffsetCommit if version >= FIRST_TXN_COMMIT_WITH_TOPIC_IDS => {
            let Ok(request) = newer::txn_offset_commit(version, body) else { return };
            assert!(request.commit.topics.iter().all(|topic| topic.name.is_empty()));
        }
        ApiKey::TxnOffsetCommit => guarded!(messages::TxnOffsetCommitRequest),
        ApiKey::DescribeClientQuotas => guarded!(messages::DescribeClientQuotasRequest),
        ApiKey::AlterClientQuotas => guarded!(messages::AlterClientQuotasRequest),
        ApiKey::DescribeUserScramCredentials => guarded!(messages::DescribeUserScramCredentialsRequest),
        ApiKey::DescribeQuorum => guarded!(messages::DescribeQuorumRequest),
        ApiKey::UpdateFeatures => guarded!(messages::UpdateFeaturesRequest),
        ApiKey::DescribeTransactions => guarded!(messages::DescribeTransactionsRequest),
        ApiKey::ListTransactions => guarded!(messages::ListTransactionsRequest),
        ApiKey::DescribeConfigs => guarded!(messages::DescribeConfigsRequest),
        ApiKey::AlterConfigs => guarded!(messages::AlterConfigsRequest),
        ApiKey::AlterReplicaLogDirs => guarded!(messages::AlterReplicaLogDirsRequest),
        ApiKey::DescribeLogDirs => guarded!(messages::DescribeLogDirsRequest),
        ApiKey::CreatePartitions => guarded!(messages::CreatePartitionsRequest),
        ApiKey::DeleteGroups => guarded!(messages::DeleteGroupsRequest),
        ApiKey::IncrementalAlterConfigs => guarded!(messages::IncrementalAlterConfigsRequest),
        ApiKey::OffsetDelete => guarded!(messages::OffsetDeleteRequest),
        ApiKey::DescribeCluster => guarded!(messages::DescribeClusterRequest),
        ApiKey::DescribeProducers => guarded!(messages::DescribeProducersRequest),
        ApiKey::ListConfigResources => guarded!(messages::ListConfigResourcesRequest),
        ApiKey::DescribeTopicPartitions => guarded!(messages::DescribeTopicPartitionsRequest),
        ApiKey::AddRaftVoter if version >= FIRST_VOTER_WITH_ACK => {
            let _ = newer::add_raft_voter(version, body);
        }
        ApiKey::AddRaftVoter => guarded!(messages::AddRaftVoterRequest),
        ApiKey::RemoveRaftVoter => guarded!(messages::RemoveRaftVoterRequest),
        ApiKey::UnregisterBroker => guarded!(messages::UnregisterBrokerRequest),
        ApiKey::ElectLeaders => guarded!(messages::ElectLeadersRequest),
        ApiKey::AlterPartitionReassignments => guarded!(messages::AlterPartitionReassignmentsRequest),
        ApiKey::ListPartitionReassignments => guarded!(messages::ListPartitionReassignmentsRequest),
        ApiKey::ShareGroupHeartbeat => guarded!(messages::ShareGroupHeartbeatRequest),
        ApiKey::ShareGroupDescribe => guarded!(messages::ShareGroupDescribeRequest),
        ApiKey::ShareFetch => guarded!(messages::ShareFetchRequest),
        ApiKey::ShareAcknowledge => guarded!(messages::ShareAcknowledgeRequest),
        ApiKey::DescribeShareGroupOffsets => guarded!(messages::DescribeShareGroupOffsetsRequest),
        ApiKey::AlterShareGroupOffsets => guarded!(messages::AlterShareGroupOffsetsRequest),
        ApiKey::DeleteShareGroupOffsets => guarded!(messages::DeleteShareGroupOffsetsRequest),
        key => panic!("{key:?} is served and has no decoder in the fuzz targets"),
    }
}

/// Produce and Fetch alone, and the responses to what was asked.
pub fn hot_path(data: &[u8]) {
    let mut input = Input::new(data);
    let produces = input.flag();
    let version = i16::from(input.byte());
    let body = Bytes::copy_from_slice(input.rest());
    match produces {
        true => produce(3 + version % 11, &body),
        false => fetch(4 + version % 15, &body),
    }
}

fn produce(version: i16, body: &Bytes) {
    let Ok(request) = ProduceRequest::decode(version, body) else { return };
    // Counts that passed ours cannot make the other codec allocate.
    if let Some(theirs) = as_written::<messages::ProduceRequest>(version, body) {
        assert_eq!(theirs.timeout_ms, request.timeout_ms);
        assert_eq!(theirs.topic_data.len(), request.topics.len());
        for (theirs, ours) in theirs.topic_data.iter().zip(&request.topics) {
            assert_named(&ours.topic, &theirs.name.0, &theirs.topic_id);
            let theirs: Vec<_> =
                theirs.partition_data.iter().map(|part| (part.index, part.records.clone())).collect();
            let ours: Vec<_> =
                ours.partitions.iter().map(|part| (part.index.0, part.records.clone())).collect();
            assert_eq!(theirs, ours);
        }
    }
    let mut number = 0;
    let mut topics = Vec::new();
    for topic in &request.topics {
        let mut partitions = Vec::new();
        for partition in &topic.partitions {
            number += 1;
            partitions.push(match number % 3 {
                0 => ProducePartitionResponse {
                    log_append_time: Timestamp(number),
                    log_start_offset: Offset(number),
                    ..ProducePartitionResponse::appended(partition.index, Offset(number))
                },
                1 => ProducePartitionResponse {
                    record_errors: vec![(1, None), (2, Some("why".to_owned()))],
                    error_message: Some("bad".to_owned()),
                    ..ProducePartitionResponse::failed(partition.index, ErrorCode::InvalidRecord)
                },
                _ => ProducePartitionResponse {
                    current_leader: Some(CurrentLeader { id: BrokerId(1), epoch: LeaderEpoch(2) }),
                    ..ProducePartitionResponse::failed(partition.index, ErrorCode::NotLeaderOrFollower)
                },
            });
        }
        topics.push(ProduceTopicResponse { topic: topic.topic.clone(), partitions });
    }
    let response = ProduceResponse { topics, throttle_ms: 7, node_endpoints: endpoints(number) };
    let Ok(frame) = response.encode(version, CorrelationId(9)) else { return };
    let mut body = frame_body(&frame, version >= 9);
    let theirs = messages::ProduceResponse::decode(&mut body, version).expect("our answer is readable");
    assert!(body.is_empty());
    assert_eq!(theirs.responses.len(), request.topics.len());
}

fn fetch(version: i16, body: &Bytes) {
    let Ok(request) = FetchRequest::decode(version, body) else { return };
    if let Some(theirs) = as_written::<messages::FetchRequest>(version.min(FETCH_UNTAGGED), body) {
        assert_eq!((theirs.max_wait_ms, theirs.min_bytes), (request.max_wait_ms, request.min_bytes));
        assert_eq!(theirs.topics.len(), request.topics.len());
        for (theirs, ours) in theirs.topics.iter().zip(&request.topics) {
            assert_named(&ours.topic, &theirs.topic.0, &theirs.topic_id);
            let theirs: Vec<_> =
                theirs.partitions.iter().map(|part| (part.partition, part.fetch_offset)).collect();
            let ours: Vec<_> =
                ours.partitions.iter().map(|part| (part.index.0, part.fetch_offset.0)).collect();
            assert_eq!(theirs, ours);
        }
        assert_eq!(theirs.forgotten_topics_data.len(), request.forgotten.len());
    }
    let mut number = 0;
    let mut topics = Vec::new();
    for topic in &request.topics {
        let mut partitions = Vec::new();
        for partition in &topic.partitions {
            number += 1;
            partitions.push(match number % 3 {
                0 => FetchPartitionResponse {
                    high_watermark: Offset(number),
                    aborted: Some(vec![AbortedTransaction {
                        producer_id: ProducerId(number),
                        first_offset: Offset(1),
                    }]),
                    records_len: number as usize,
                    ..FetchPartitionResponse::failed(partition.index, None)
                },
                1 => FetchPartitionResponse {
                    diverging_epoch: Some(DivergingEpoch { epoch: LeaderEpoch(3), end_offset: Offset(4) }),
                    ..FetchPartitionResponse::failed(partition.index, None)
                },
                _ => FetchPartitionResponse {
                    current_leader: Some(CurrentLeader { id: BrokerId(1), epoch: LeaderEpoch(2) }),
                    ..FetchPartitionResponse::failed(partition.index, ErrorCode::NotLeaderOrFollower)
                },
            });
        }
        topics.push(FetchTopicResponse { topic: topic.topic.clone(), partitions });
    }
    let response = FetchResponse {
        throttle_ms: 7,
        error: None,
        session_id: SessionId(5),
        topics,
        node_endpoints: endpoints(number),
    };
    let Ok(encoded) = response.encode(version, CorrelationId(9)) else { return };
    let mut frame = BytesMut::new();
    for piece in &encoded.pieces {
        match piece {
            Piece::Bytes(bytes) => frame.extend_from_slice(bytes),
            Piece::Records { len, .. } => frame.resize(frame.len() + len, 0),
        }
    }
    assert_eq!(frame.len(), encoded.total_len);
    let mut body = frame_body(&frame.freeze(), version >= 12);
    let theirs = messages::FetchResponse::decode(&mut body, version).expect("our answer is readable");
    assert!(body.is_empty());
    assert_eq!(theirs.responses.len(), request.topics.len());
}

/// Later versions differ by known tagged fields in the midst of a request: kafka-protocol reads them without a look at the
/// length that the peer gave, and what it then takes for counts it allocates. As unknown ones it takes them by their length.
const FETCH_UNTAGGED: i16 = 16;

/// The request as kafka-protocol reads it, if `body` begins as it would write it: of a known tagged field with another
/// length than it should have, it reads on elsewhere than we do.
fn as_written<T: Decodable + Encodable>(version: i16, body: &Bytes) -> Option<T> {
    let request = T::decode(&mut body.clone(), version).ok()?;
    let mut again = BytesMut::new();
    request.encode(&mut again, version).ok()?;
    body.starts_with(&again).then_some(request)
}

fn assert_named(ours: &TopicRef, name: &str, id: &uuid::Uuid) {
    match ours {
        TopicRef::Name(ours) => assert_eq!(ours.as_str(), name),
        TopicRef::Id(ours) => assert_eq!(&ours.0, id),
    }
}

fn endpoints(number: i64) -> Vec<NodeEndpoint> {
    match number {
        0 => Vec::new(),
        _ => vec![NodeEndpoint { id: BrokerId(1), host: "host".to_owned(), port: 9, rack: None }],
    }
}

/// What follows size prefix, correlation id and, in flexible versions, the tagged fields of a response.
fn frame_body(frame: &Bytes, flexible: bool) -> Bytes {
    assert_eq!(frame[..PREFIX_LEN], ((frame.len() - PREFIX_LEN) as i32).to_be_bytes());
    frame.slice(PREFIX_LEN + 4 + usize::from(flexible)..)
}
