//! ShareFetch and ShareAcknowledge, versions 1 and 2 (KIP-932, KIP-1206, KIP-1222): kafka-protocol 0.18 knows the first
//! only. The response to a fetch is written around its records, which are not copied.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::api::{Api, find};
use super::fetch::SessionEpoch;
use super::header::CorrelationId;
use super::parts::read_string;
use super::read::{DecodeError, Reader};
use super::write::{EncodeError, Writer};
use super::{ApiKey, ErrorCode};
use crate::base::{BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicId};

/// Every version is flexible.
const FLEXIBLE: bool = true;

/// From here on a request says how strictly it counts and whether it renews locks.
const RENEWING_VERSION: i16 = 2;

/// Who asks, and for which session.
#[derive(Clone, PartialEq, Debug)]
pub struct SharePeer {
    pub group: Option<StrBytes>,
    pub member: Option<StrBytes>,
    pub epoch: SessionEpoch,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ShareFetchRequest {
    pub peer: SharePeer,
    pub max_wait_ms: i32,
    pub min_bytes: i32,
    pub max_bytes: i32,
    pub max_records: i32,
    pub batch_size: i32,
    /// 0: whole batches; 1: not one record more than `max_records`.
    pub acquire_mode: i8,
    /// There are acknowledgements that ask for more time; then nothing is fetched.
    pub renews: bool,
    pub topics: Vec<ShareTopic>,
    /// Leave the session.
    pub forgotten: Vec<(TopicId, Vec<PartitionIndex>)>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ShareAcknowledgeRequest {
    pub peer: SharePeer,
    pub renews: bool,
    pub topics: Vec<ShareTopic>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ShareTopic {
    pub id: TopicId,
    pub partitions: Vec<SharePartition>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct SharePartition {
    pub index: PartitionIndex,
    pub acknowledgements: Vec<Acknowledgement>,
}

/// What was done with `first..=last`: one type for all or one for each offset.
#[derive(Clone, PartialEq, Debug)]
pub struct Acknowledgement {
    pub first: Offset,
    pub last: Offset,
    pub types: Vec<i8>,
}

impl ShareFetchRequest {
    pub fn decode(version: i16, body: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let peer = read_peer(&mut reader)?;
        let (max_wait_ms, min_bytes, max_bytes) = (reader.i32()?, reader.i32()?, reader.i32()?);
        let (max_records, batch_size) = (reader.i32()?, reader.i32()?);
        let (acquire_mode, renews) = match version {
            RENEWING_VERSION.. => (reader.i8()?, reader.bool()?),
            _ => (0, false),
        };
        let topics = read_topics(&mut reader)?;
        let mut forgotten = Vec::new();
        for _ in 0..reader.elements(FLEXIBLE, 18)? {
            let topic = reader.topic_id()?;
            let count = reader.elements(FLEXIBLE, 4)?;
            let partitions =
                (0..count).map(|_| reader.i32().map(PartitionIndex)).collect::<Result<_, _>>()?;
            reader.skip_tagged_fields(FLEXIBLE)?;
            forgotten.push((topic, partitions));
        }
        reader.skip_tagged_fields(FLEXIBLE)?;
        Ok(Self {
            peer,
            max_wait_ms,
            min_bytes,
            max_bytes,
            max_records,
            batch_size,
            acquire_mode,
            renews,
            topics,
            forgotten,
        })
    }
}

impl ShareAcknowledgeRequest {
    pub fn decode(version: i16, body: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let peer = read_peer(&mut reader)?;
        let renews = version >= RENEWING_VERSION && reader.bool()?;
        let topics = read_topics(&mut reader)?;
        reader.skip_tagged_fields(FLEXIBLE)?;
        Ok(Self { peer, renews, topics })
    }
}

fn read_peer(reader: &mut Reader<'_>) -> Result<SharePeer, DecodeError> {
    let group = read_string(reader, FLEXIBLE)?;
    let member = read_string(reader, FLEXIBLE)?;
    Ok(SharePeer { group, member, epoch: SessionEpoch(reader.i32()?) })
}

fn read_topics(reader: &mut Reader<'_>) -> Result<Vec<ShareTopic>, DecodeError> {
    let mut topics = Vec::new();
    for _ in 0..reader.elements(FLEXIBLE, 18)? {
        let id = reader.topic_id()?;
        let mut partitions = Vec::new();
        for _ in 0..reader.elements(FLEXIBLE, 6)? {
            let index = PartitionIndex(reader.i32()?);
            let mut acknowledgements = Vec::new();
            for _ in 0..reader.elements(FLEXIBLE, 18)? {
                let (first, last) = (Offset(reader.i64()?), Offset(reader.i64()?));
                let count = reader.elements(FLEXIBLE, 1)?;
                let types = (0..count).map(|_| reader.i8()).collect::<Result<_, _>>()?;
                reader.skip_tagged_fields(FLEXIBLE)?;
                acknowledgements.push(Acknowledgement { first, last, types });
            }
            reader.skip_tagged_fields(FLEXIBLE)?;
            partitions.push(SharePartition { index, acknowledgements });
        }
        reader.skip_tagged_fields(FLEXIBLE)?;
        topics.push(ShareTopic { id, partitions });
    }
    Ok(topics)
}

/// Who leads a partition, told with an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leader {
    pub id: BrokerId,
    pub epoch: LeaderEpoch,
}

impl Default for Leader {
    fn default() -> Self {
        Self { id: BrokerId(0), epoch: LeaderEpoch(0) }
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct ShareFetchResponse {
    pub throttle_ms: i32,
    pub error: Option<ErrorCode>,
    pub message: Option<String>,
    pub lock_timeout_ms: i32,
    pub topics: Vec<(TopicId, Vec<ShareFetchedPartition>)>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct ShareFetchedPartition {
    pub index: PartitionIndex,
    pub error: Option<ErrorCode>,
    pub acknowledge_error: Option<ErrorCode>,
    pub leader: Leader,
    pub records: Bytes,
    pub acquired: Vec<AcquiredRecords>,
}

/// Records that the member has now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcquiredRecords {
    pub first: Offset,
    pub last: Offset,
    pub delivery_count: i16,
}

impl ShareFetchResponse {
    /// The frame in pieces: the records are those of the response.
    pub fn encode(&self, version: i16, correlation_id: CorrelationId) -> Result<Vec<Bytes>, EncodeError> {
        let mut writer = Writer::response(api(ApiKey::ShareFetch), version, correlation_id);
        let mut gaps: Vec<(usize, Bytes)> = Vec::new();
        write_head(&mut writer, self.throttle_ms, self.error, self.message.as_deref());
        writer.i32(self.lock_timeout_ms);
        writer.count(self.topics.len());
        for (id, partitions) in &self.topics {
            writer.slice(id.0.as_bytes());
            writer.count(partitions.len());
            for partition in partitions {
                writer.i32(partition.index.0);
                write_error(&mut writer, partition.error);
                write_error(&mut writer, partition.acknowledge_error);
                write_leader(&mut writer, partition.leader);
                writer.count(partition.records.len());
                if !partition.records.is_empty() {
                    gaps.push((writer.position(), partition.records.clone()));
                }
                writer.count(partition.acquired.len());
                for acquired in &partition.acquired {
                    writer.i64(acquired.first.0);
                    writer.i64(acquired.last.0);
                    writer.i16(acquired.delivery_count);
                    writer.no_tagged_fields();
                }
                writer.no_tagged_fields();
            }
            writer.no_tagged_fields();
        }
        // No leader is elsewhere.
        writer.count(0);
        writer.no_tagged_fields();
        let written = writer.finish(gaps.iter().map(|(_, records)| records.len()).sum())?;
        let mut pieces = Vec::with_capacity(2 * gaps.len() + 1);
        let mut from = 0;
        for (at, records) in gaps {
            pieces.push(written.slice(from..at));
            pieces.push(records);
            from = at;
        }
        pieces.push(written.slice(from..));
        Ok(pieces)
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct ShareAcknowledgeResponse {
    pub throttle_ms: i32,
    pub error: Option<ErrorCode>,
    pub message: Option<String>,
    /// From version 2 on.
    pub lock_timeout_ms: i32,
    pub topics: Vec<(TopicId, Vec<ShareAcknowledgedPartition>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareAcknowledgedPartition {
    pub index: PartitionIndex,
    pub error: Option<ErrorCode>,
    pub leader: Leader,
}

impl ShareAcknowledgeResponse {
    pub fn encode(&self, version: i16, correlation_id: CorrelationId) -> Result<Bytes, EncodeError> {
        let mut writer = Writer::response(api(ApiKey::ShareAcknowledge), version, correlation_id);
        write_head(&mut writer, self.throttle_ms, self.error, self.message.as_deref());
        if version >= RENEWING_VERSION {
            writer.i32(self.lock_timeout_ms);
        }
        writer.count(self.topics.len());
        for (id, partitions) in &self.topics {
            writer.slice(id.0.as_bytes());
            writer.count(partitions.len());
            for partition in partitions {
                writer.i32(partition.index.0);
                write_error(&mut writer, partition.error);
                write_leader(&mut writer, partition.leader);
                writer.no_tagged_fields();
            }
            writer.no_tagged_fields();
        }
        writer.count(0);
        writer.no_tagged_fields();
        writer.finish(0)
    }
}

fn write_head(writer: &mut Writer, throttle_ms: i32, error: Option<ErrorCode>, message: Option<&str>) {
    writer.i32(throttle_ms);
    writer.i16(error.map_or(0, |error| error.code()));
    writer.nullable_string(message);
}

/// A code and no message.
fn write_error(writer: &mut Writer, error: Option<ErrorCode>) {
    writer.i16(error.map_or(0, |error| error.code()));
    writer.nullable_string(None);
}

fn write_leader(writer: &mut Writer, leader: Leader) {
    writer.i32(leader.id.0);
    writer.i32(leader.epoch.0);
    writer.no_tagged_fields();
}

fn api(key: ApiKey) -> &'static Api {
    find(key as i16).expect("the API table has it")
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut as _, BytesMut};
    use kafka_protocol::messages::share_acknowledge_request as acknowledge;
    use kafka_protocol::messages::share_fetch_request as fetch;
    use kafka_protocol::messages::{self, GroupId};
    use kafka_protocol::protocol::{Decodable as _, Encodable as _};

    use super::*;

    const ID: uuid::Uuid = uuid::Uuid::from_u128(0x5106_2a40_bd86_4bf5_ab19_ee57_d217_9db8);

    fn text(text: &'static str) -> StrBytes {
        StrBytes::from_static_str(text)
    }

    fn fetch_of_version_1() -> Bytes {
        let batch = fetch::AcknowledgementBatch::default()
            .with_first_offset(3)
            .with_last_offset(5)
            .with_acknowledge_types(vec![1, 2, 3]);
        let partition = fetch::FetchPartition::default()
            .with_partition_index(7)
            .with_acknowledgement_batches(vec![batch]);
        let topic = fetch::FetchTopic::default().with_topic_id(ID).with_partitions(vec![partition]);
        let forgotten = fetch::ForgottenTopic::default().with_topic_id(ID).with_partitions(vec![8, 9]);
        let request = messages::ShareFetchRequest::default()
            .with_group_id(Some(GroupId(text("g"))))
            .with_member_id(Some(text("m")))
            .with_share_session_epoch(4)
            .with_max_wait_ms(500)
            .with_min_bytes(1)
            .with_max_bytes(1000)
            .with_max_records(50)
            .with_batch_size(60)
            .with_topics(vec![topic])
            .with_forgotten_topics_data(vec![forgotten]);
        let mut out = BytesMut::new();
        request.encode(&mut out, 1).expect("encoded");
        out.freeze()
    }

    fn expected_topics() -> Vec<ShareTopic> {
        let acknowledgement = Acknowledgement { first: Offset(3), last: Offset(5), types: vec![1, 2, 3] };
        let partition = SharePartition { index: PartitionIndex(7), acknowledgements: vec![acknowledgement] };
        vec![ShareTopic { id: TopicId(ID), partitions: vec![partition] }]
    }

    #[test]
    fn a_fetch_is_read_in_both_versions() {
        let first = fetch_of_version_1();
        let request = ShareFetchRequest::decode(1, &first).expect("decoded");
        let expected = ShareFetchRequest {
            peer: SharePeer { group: Some(text("g")), member: Some(text("m")), epoch: SessionEpoch(4) },
            max_wait_ms: 500,
            min_bytes: 1,
            max_bytes: 1000,
            max_records: 50,
            batch_size: 60,
            acquire_mode: 0,
            renews: false,
            topics: expected_topics(),
            forgotten: vec![(TopicId(ID), vec![PartitionIndex(8), PartitionIndex(9)])],
        };
        assert_eq!(request, expected);
        // The news of version 2 stand behind the batch size: two strings and six numbers.
        let at = 2 + 2 + 6 * 4;
        let mut second = BytesMut::from(&first[..at]);
        second.put_slice(&[1, 1]);
        second.put_slice(&first[at..]);
        let request = ShareFetchRequest::decode(2, &second.freeze()).expect("decoded");
        assert_eq!(request, ShareFetchRequest { acquire_mode: 1, renews: true, ..expected });
        for len in 0..first.len() - 1 {
            assert!(ShareFetchRequest::decode(1, &first.slice(..len)).is_err(), "{len}");
        }
    }

    #[test]
    fn an_acknowledgement_is_read_in_both_versions() {
        let batch = acknowledge::AcknowledgementBatch::default()
            .with_first_offset(3)
            .with_last_offset(5)
            .with_acknowledge_types(vec![1, 2, 3]);
        let partition = acknowledge::AcknowledgePartition::default()
            .with_partition_index(7)
            .with_acknowledgement_batches(vec![batch]);
        let topic =
            acknowledge::AcknowledgeTopic::default().with_topic_id(ID).with_partitions(vec![partition]);
        let request = messages::ShareAcknowledgeRequest::default()
            .with_group_id(Some(GroupId(text("g"))))
            .with_member_id(Some(text("m")))
            .with_share_session_epoch(-1)
            .with_topics(vec![topic]);
        let mut first = BytesMut::new();
        request.encode(&mut first, 1).expect("encoded");
        let first = first.freeze();
        let peer = SharePeer { group: Some(text("g")), member: Some(text("m")), epoch: SessionEpoch::FINAL };
        let expected = ShareAcknowledgeRequest { peer, renews: false, topics: expected_topics() };
        assert_eq!(ShareAcknowledgeRequest::decode(1, &first), Ok(expected.clone()));
        let at = 2 + 2 + 4;
        let mut second = BytesMut::from(&first[..at]);
        second.put_u8(1);
        second.put_slice(&first[at..]);
        let expected = ShareAcknowledgeRequest { renews: true, ..expected };
        assert_eq!(ShareAcknowledgeRequest::decode(2, &second.freeze()), Ok(expected));
    }

    #[test]
    fn a_count_beyond_the_request_is_refused_before_anything_is_allocated() {
        let mut body = BytesMut::new();
        body.put_slice(b"\x02g\x02m\0\0\0\0");
        body.put_slice(&[0; 20]);
        body.put_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert!(ShareFetchRequest::decode(1, &body.freeze()).is_err());
    }

    #[test]
    fn answers_are_what_the_codec_reads() {
        let acquired = AcquiredRecords { first: Offset(1), last: Offset(2), delivery_count: 3 };
        let partition = ShareFetchedPartition {
            index: PartitionIndex(7),
            acknowledge_error: Some(ErrorCode::InvalidRecordState),
            records: Bytes::from_static(b"records"),
            acquired: vec![acquired],
            ..ShareFetchedPartition::default()
        };
        let failed = ShareFetchedPartition {
            index: PartitionIndex(8),
            error: Some(ErrorCode::NotLeaderOrFollower),
            leader: Leader { id: BrokerId(2), epoch: LeaderEpoch(9) },
            ..ShareFetchedPartition::default()
        };
        let response = ShareFetchResponse {
            lock_timeout_ms: 30_000,
            topics: vec![(TopicId(ID), vec![partition, failed])],
            ..ShareFetchResponse::default()
        };
        let frame = response.encode(2, CorrelationId(5)).expect("encoded").concat();
        assert_eq!(frame[..4], ((frame.len() - 4) as u32).to_be_bytes());
        // Length, correlation id, no tagged field.
        let mut body = Bytes::from(frame).slice(9..);
        let read = messages::ShareFetchResponse::decode(&mut body, 1).expect("decoded");
        assert_eq!((body.len(), read.acquisition_lock_timeout_ms), (0, 30_000));
        let partitions = &read.responses[0].partitions;
        assert_eq!(partitions[0].records.as_deref(), Some(&b"records"[..]));
        assert_eq!(
            (partitions[0].acknowledge_error_code, partitions[0].acquired_records[0].delivery_count),
            (121, 3)
        );
        assert_eq!((partitions[1].error_code, partitions[1].current_leader.leader_epoch), (6, 9));

        let partition = ShareAcknowledgedPartition {
            index: PartitionIndex(7),
            error: Some(ErrorCode::InvalidRecordState),
            leader: Leader::default(),
        };
        let response = ShareAcknowledgeResponse {
            lock_timeout_ms: 30_000,
            topics: vec![(TopicId(ID), vec![partition])],
            ..ShareAcknowledgeResponse::default()
        };
        let mut body = response.encode(1, CorrelationId(5)).expect("encoded").slice(9..);
        let read = messages::ShareAcknowledgeResponse::decode(&mut body, 1).expect("decoded");
        assert_eq!((body.len(), read.responses[0].partitions[0].error_code), (0, 121));
        let second = response.encode(2, CorrelationId(5)).expect("encoded");
        // Behind throttle time, error and no message.
        assert_eq!(second[9 + 7..9 + 11], 30_000i32.to_be_bytes());
    }
}
