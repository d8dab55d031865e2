use std::fmt::Debug;

use bytes::BufMut;
use kafka_protocol::messages::{self, ApiVersionsResponse, MetadataRequest, MetadataResponse};
use kafka_protocol::protocol::Decodable;
use proptest::prelude::*;

use super::*;
use crate::base::random::Random;
use crate::wire::ApiKey;
use crate::wire::api::APIS;
use crate::wire::newer::{
    self, FIRST_MARKERS_WITH_VERSION, FIRST_TXN_COMMIT_WITH_TOPIC_IDS, FIRST_VOTER_WITH_ACK,
};
use crate::wire::topic_ids::{self, FIRST_WITH_TOPIC_IDS};

/// Calls `$call!(Request)` with the request type of an API.
macro_rules! with_request {
    ($api:expr, $call:ident) => {
        match $api.key {
            ApiKey::ListOffsets => $call!(messages::ListOffsetsRequest),
            ApiKey::Metadata => $call!(messages::MetadataRequest),
            ApiKey::OffsetCommit => $call!(messages::OffsetCommitRequest),
            ApiKey::OffsetFetch => $call!(messages::OffsetFetchRequest),
            ApiKey::FindCoordinator => $call!(messages::FindCoordinatorRequest),
            ApiKey::JoinGroup => $call!(messages::JoinGroupRequest),
            ApiKey::Heartbeat => $call!(messages::HeartbeatRequest),
            ApiKey::LeaveGroup => $call!(messages::LeaveGroupRequest),
            ApiKey::SyncGroup => $call!(messages::SyncGroupRequest),
            ApiKey::DescribeGroups => $call!(messages::DescribeGroupsRequest),
            ApiKey::ListGroups => $call!(messages::ListGroupsRequest),
            ApiKey::ApiVersions => $call!(messages::ApiVersionsRequest),
            ApiKey::CreateTopics => $call!(messages::CreateTopicsRequest),
            ApiKey::DeleteTopics => $call!(messages::DeleteTopicsRequest),
            ApiKey::DeleteRecords => $call!(messages::DeleteRecordsRequest),
            ApiKey::InitProducerId => $call!(messages::InitProducerIdRequest),
            ApiKey::OffsetForLeaderEpoch => $call!(messages::OffsetForLeaderEpochRequest),
            ApiKey::AddPartitionsToTxn => $call!(messages::AddPartitionsToTxnRequest),
            ApiKey::AddOffsetsToTxn => $call!(messages::AddOffsetsToTxnRequest),
            ApiKey::EndTxn => $call!(messages::EndTxnRequest),
            ApiKey::WriteTxnMarkers => $call!(messages::WriteTxnMarkersRequest),
            ApiKey::TxnOffsetCommit => $call!(messages::TxnOffsetCommitRequest),
            ApiKey::DescribeClientQuotas => $call!(messages::DescribeClientQuotasRequest),
            ApiKey::AlterClientQuotas => $call!(messages::AlterClientQuotasRequest),
            ApiKey::DescribeUserScramCredentials => {
                $call!(messages::DescribeUserScramCredentialsRequest)
            }
            ApiKey::DescribeQuorum => $call!(messages::DescribeQuorumRequest),
            ApiKey::UpdateFeatures => $call!(messages::UpdateFeaturesRequest),
            ApiKey::DescribeTransactions => $call!(messages::DescribeTransactionsRequest),
            ApiKey::ListTransactions => $call!(messages::ListTransactionsRequest),
            ApiKey::DescribeConfigs => $call!(messages::DescribeConfigsRequest),
            ApiKey::AlterConfigs => $call!(messages::AlterConfigsRequest),
            ApiKey::AlterReplicaLogDirs => $call!(messages::AlterReplicaLogDirsRequest),
            ApiKey::DescribeLogDirs => $call!(messages::DescribeLogDirsRequest),
            ApiKey::CreatePartitions => $call!(messages::CreatePartitionsRequest),
            ApiKey::DeleteGroups => $call!(messages::DeleteGroupsRequest),
            ApiKey::ElectLeaders => $call!(messages::ElectLeadersRequest),
            ApiKey::AlterPartitionReassignments => $call!(messages::AlterPartitionReassignmentsRequest),
            ApiKey::ListPartitionReassignments => $call!(messages::ListPartitionReassignmentsRequest),
            ApiKey::IncrementalAlterConfigs => $call!(messages::IncrementalAlterConfigsRequest),
            ApiKey::OffsetDelete => $call!(messages::OffsetDeleteRequest),
            ApiKey::DescribeCluster => $call!(messages::DescribeClusterRequest),
            ApiKey::DescribeProducers => $call!(messages::DescribeProducersRequest),
            ApiKey::UnregisterBroker => $call!(messages::UnregisterBrokerRequest),
            ApiKey::AddRaftVoter => $call!(messages::AddRaftVoterRequest),
            ApiKey::RemoveRaftVoter => $call!(messages::RemoveRaftVoterRequest),
            ApiKey::ConsumerGroupHeartbeat => $call!(messages::ConsumerGroupHeartbeatRequest),
            ApiKey::ConsumerGroupDescribe => $call!(messages::ConsumerGroupDescribeRequest),
            ApiKey::ListConfigResources => $call!(messages::ListConfigResourcesRequest),
            ApiKey::DescribeTopicPartitions => $call!(messages::DescribeTopicPartitionsRequest),
            ApiKey::ShareGroupHeartbeat => $call!(messages::ShareGroupHeartbeatRequest),
            ApiKey::ShareGroupDescribe => $call!(messages::ShareGroupDescribeRequest),
            ApiKey::DescribeShareGroupOffsets => $call!(messages::DescribeShareGroupOffsetsRequest),
            ApiKey::AlterShareGroupOffsets => $call!(messages::AlterShareGroupOffsetsRequest),
            ApiKey::DeleteShareGroupOffsets => $call!(messages::DeleteShareGroupOffsetsRequest),
            key => panic!("{key:?} has no request type here"),
        }
    };
}

/// The APIs whose requests go through the guard.
fn guarded() -> impl Iterator<Item = &'static Api> {
    APIS.iter().filter(|api| !has_own_codec(api.key))
}

fn has_own_codec(key: ApiKey) -> bool {
    matches!(key, ApiKey::Produce | ApiKey::Fetch | ApiKey::ShareFetch | ApiKey::ShareAcknowledge)
}

/// Decodes by the codec behind the guard and encodes again.
fn round_trip(api: &Api, version: i16, body: &Bytes) -> Result<BytesMut, DecodeError> {
    macro_rules! run {
        ($request:ty) => {{
            let request = decode::<$request>(version, body)?;
            let mut out = BytesMut::new();
            request.encode(&mut out, api.codec_version(version)).unwrap();
            Ok(out)
        }};
    }
    with_request!(api, run)
}

/// Whether the codec behind the guard is `wire::topic_ids` or `wire::newer`, which encode no requests.
fn has_own_decoder(api: &Api, version: i16) -> bool {
    match api.key {
        ApiKey::OffsetCommit | ApiKey::OffsetFetch => version >= FIRST_WITH_TOPIC_IDS,
        ApiKey::TxnOffsetCommit => version >= FIRST_TXN_COMMIT_WITH_TOPIC_IDS,
        ApiKey::WriteTxnMarkers => version >= FIRST_MARKERS_WITH_VERSION,
        ApiKey::AddRaftVoter => version >= FIRST_VOTER_WITH_ACK,
        _ => false,
    }
}

fn decode_own(api: &Api, version: i16, body: &Bytes) -> Result<(), DecodeError> {
    match api.key {
        ApiKey::OffsetCommit => topic_ids::offset_commit(version, body).map(|_| ()),
        ApiKey::OffsetFetch => topic_ids::offset_fetch(version, body).map(|_| ()),
        ApiKey::TxnOffsetCommit => newer::txn_offset_commit(version, body).map(|_| ()),
        ApiKey::AddRaftVoter => newer::add_raft_voter(version, body).map(|_| ()),
        ApiKey::WriteTxnMarkers => newer::write_txn_markers(version, body).map(|_| ()),
        key => panic!("{key:?} has no decoder of its own"),
    }
}

/// Writes a body by the schema: what the schema says is what the codec must read.
struct Filler {
    random: Random,
    version: i16,
    flexible: bool,
}

impl Filler {
    fn body(api: &Api, version: i16, seed: u64) -> Bytes {
        let mut filler = Filler { random: Random::seeded(seed), version, flexible: version >= api.flexible };
        let mut out = BytesMut::new();
        filler.fields(schema::of(api.key).unwrap(), &mut out);
        out.freeze()
    }

    fn fields(&mut self, fields: &[Field], out: &mut BytesMut) {
        for field in fields {
            if field.is_in(self.version) {
                self.value(field.kind, out);
            }
        }
        if self.flexible {
            // Sometimes an unknown tagged field, which the codec keeps.
            match self.random.below(3) {
                0 => out.put_slice(&[1, 100, 2, 0xaa, 0xbb]),
                _ => out.put_u8(0),
            }
        }
    }

    fn value(&mut self, kind: Kind, out: &mut BytesMut) {
        match kind {
            // A boolean is one byte and comes back as 0 or 1.
            Kind::Fixed(1) => out.put_u8(self.random.below(2) as u8),
            Kind::Fixed(len) => (0..len).for_each(|_| out.put_u8(self.random.below(128) as u8)),
            Kind::String => self.run(2, out),
            Kind::Bytes => self.run(4, out),
            Kind::Array(fields) => {
                let count = self.random.below(3) as usize;
                self.len(4, count, out);
                (0..count).for_each(|_| self.fields(fields, out));
            }
            Kind::ArrayOf(kind) => {
                let count = self.random.below(3) as usize;
                self.len(4, count, out);
                (0..count).for_each(|_| self.value(*kind, out));
            }
            Kind::NullableStruct(fields) => match self.random.below(2) {
                0 => out.put_i8(-1),
                _ => {
                    out.put_i8(1);
                    self.fields(fields, out);
                }
            },
        }
    }

    fn run(&mut self, prefix_len: usize, out: &mut BytesMut) {
        let len = self.random.below(20) as usize;
        self.len(prefix_len, len, out);
        (0..len).for_each(|_| out.put_u8(b'a' + self.random.below(26) as u8));
    }

    fn len(&mut self, prefix_len: usize, len: usize, out: &mut BytesMut) {
        match (self.flexible, prefix_len) {
            (true, _) => out.put_u8(len as u8 + 1),
            (false, 2) => out.put_i16(len as i16),
            (false, _) => out.put_i32(len as i32),
        }
    }
}

#[test]
fn every_api_of_the_table_has_a_schema_or_a_codec_of_its_own() {
    for api in APIS {
        assert_eq!(schema::of(api.key).is_none(), has_own_codec(api.key), "{}", api.name);
    }
}

#[test]
fn schema_of_every_version_is_what_the_codec_reads() {
    for api in guarded() {
        for version in api.min_served..=api.max {
            for seed in 0..50 {
                let body = Filler::body(api, version, seed);
                let checked = Checked { api, len: body.len() };
                assert_eq!(check(api.key as i16, version, &body), Ok(checked), "{} {version}", api.name);
                if has_own_decoder(api, version) {
                    assert_eq!(decode_own(api, version, &body), Ok(()), "{} {version}", api.name);
                    continue;
                }
                let again = round_trip(api, version, &body);
                let again = again.unwrap_or_else(|error| panic!("{} {version}: {error}", api.name));
                assert_eq!(again, body, "{} {version}", api.name);
            }
        }
    }
}

#[test]
fn cut_requests_are_refused_by_the_walk() {
    for api in guarded() {
        for version in api.min_served..=api.max {
            let body = Filler::body(api, version, 7);
            for len in 0..body.len() {
                assert!(
                    check(api.key as i16, version, &body.slice(..len)).is_err(),
                    "{} {version}",
                    api.name
                );
            }
        }
    }
}

#[test]
fn hostile_counts_are_refused() {
    // The request that asked for 309 GB, in both kinds of length.
    let compact = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert!(matches!(decode::<MetadataRequest>(12, &compact), Err(DecodeError::Count { .. })));
    let legacy = Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff]);
    assert!(matches!(decode::<MetadataRequest>(1, &legacy), Err(DecodeError::Count { .. })));
    let negative = Bytes::from_static(&[0xff, 0xff, 0xff, 0xfe]);
    assert_eq!(decode::<MetadataRequest>(1, &negative), Err(DecodeError::Negative(-2)));
}

#[test]
fn number_of_elements_is_bounded_whatever_their_size() {
    // DeleteGroups v2: empty strings of one byte each, so the count fits the bytes.
    let count = ELEMENTS_MAX as u32 + 1;
    let mut body = BytesMut::new();
    body.put_slice(&[(count + 1) as u8 | 0x80, ((count + 1) >> 7) as u8 | 0x80, ((count + 1) >> 14) as u8]);
    body.put_bytes(1, count as usize);
    body.put_u8(0);
    let outcome = decode::<messages::DeleteGroupsRequest>(2, &body.freeze());
    assert_eq!(outcome, Err(DecodeError::Count { count: u64::from(count), left: count as usize + 1 }));
}

#[test]
fn bytes_behind_the_last_field_are_ignored() {
    let body = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 9, 9, 9]);
    assert_eq!(decode::<MetadataRequest>(1, &body).unwrap().topics, None);
}

#[test]
fn versions_outside_the_table_are_refused() {
    let outcome = decode::<MetadataRequest>(14, &Bytes::new());
    assert_eq!(outcome, Err(DecodeError::Version { key: 3, version: 14 }));
}

#[test]
fn response_frame_has_prefix_header_and_body() {
    let response = MetadataResponse::default().with_controller_id(messages::BrokerId(3));
    for (version, header_len) in [(8, 4), (9, 5)] {
        let frame = encode(version, CorrelationId(77), &response).unwrap();
        assert_eq!(frame[..4], ((frame.len() - 4) as i32).to_be_bytes());
        assert_eq!(frame[4..8], 77i32.to_be_bytes());
        let mut body = frame.slice(4 + header_len..);
        assert_eq!(MetadataResponse::decode(&mut body, version).unwrap(), response);
        assert!(body.is_empty());
    }
}

#[test]
fn api_versions_is_answered_with_the_old_header_and_no_default_tagged_fields() {
    let frame = encode(3, CorrelationId(1), &ApiVersionsResponse::default()).unwrap();
    // Prefix, correlation id, error, an empty compact array, throttle time, no tagged field.
    assert_eq!(&frame[..], [0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0]);
}

/// Decodes by whichever codec is behind the guard.
fn attempt(api: &Api, version: i16, body: &Bytes) -> Result<(), DecodeError> {
    match has_own_decoder(api, version) {
        true => decode_own(api, version, body),
        false => round_trip(api, version, body).map(|_| ()),
    }
}

/// The outcome must be a value: that no decoder panics or asks for memory is what is tested.
fn accept_any<T: Debug>(outcome: T) -> usize {
    format!("{outcome:?}").len()
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..120), api in 0usize..100, version: u8,
    ) {
        let apis: Vec<&Api> = guarded().collect();
        let api = apis[api % apis.len()];
        let version = api.min_served + i16::from(version) % (api.max - api.min_served + 1);
        accept_any(attempt(api, version, &Bytes::from(bytes)));
    }

    #[test]
    fn damaged_requests_never_panic(
        seed: u64, at: prop::sample::Index, byte: u8, api in 0usize..100, version: u8,
    ) {
        let apis: Vec<&Api> = guarded().collect();
        let api = apis[api % apis.len()];
        let version = api.min_served + i16::from(version) % (api.max - api.min_served + 1);
        let mut body = Filler::body(api, version, seed).to_vec();
        prop_assume!(!body.is_empty());
        let at = at.index(body.len());
        body[at] = byte;
        accept_any(attempt(api, version, &body.into()));
    }
}
