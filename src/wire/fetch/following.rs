//! The follower's half of Fetch: its request is written, and the answer is walked where it lies: records are slices of
//! the frame. In the versions that name topics by id.

use bytes::Bytes;

use super::response::fetch_api;
use super::{
    DivergingEpoch, FLEXIBLE_VERSION, FetchPartition, FetchRequest, IsolationLevel, SessionId,
    TOPIC_ID_VERSION,
};
use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use crate::wire::ErrorCode;
use crate::wire::header::CorrelationId;
use crate::wire::parts::TopicRef;
use crate::wire::read::{DecodeError, Reader};
use crate::wire::write::{EncodeError, Writer};

/// The first version with the follower's state in a tagged field.
const REPLICA_STATE_VERSION: i16 = 15;
const DIRECTORY_VERSION: i16 = 17;
const HIGH_WATERMARK_VERSION: i16 = 18;

/// Index, error, high watermark, last stable offset, log start, no aborted transactions, replica, no records, no tags.
const PARTITION_LEN_MIN: usize = 4 + 2 + 8 + 8 + 8 + 1 + 4 + 1 + 1;
const TOPIC_LEN_MIN: usize = 16 + 1 + 1;

/// What a leader has answered.
#[derive(Clone, PartialEq, Debug)]
pub struct FetchAnswer {
    /// Of the request as a whole.
    pub error: Option<ErrorCode>,
    pub session_id: SessionId,
    pub partitions: Vec<FetchedSlice>,
}

/// One partition of it.
#[derive(Clone, PartialEq, Debug)]
pub struct FetchedSlice {
    pub topic: TopicId,
    pub index: PartitionIndex,
    pub error: Option<ErrorCode>,
    pub high_watermark: Offset,
    pub log_start: Offset,
    pub diverging: Option<DivergingEpoch>,
    /// Shares the frame's memory.
    pub records: Bytes,
}

impl FetchRequest {
    /// The whole frame. Topics are named by id, so from version 13 on.
    pub fn encode(
        &self,
        version: i16,
        correlation_id: CorrelationId,
        client_id: &str,
    ) -> Result<Bytes, EncodeError> {
        assert!(version >= TOPIC_ID_VERSION, "a follower's request of version {version}");
        let mut writer = Writer::request(fetch_api(), version, correlation_id, client_id);
        if version < REPLICA_STATE_VERSION {
            writer.i32(self.replica_id.0);
        }
        writer.i32(self.max_wait_ms);
        writer.i32(self.min_bytes);
        writer.i32(self.max_bytes);
        writer.i8(match self.isolation_level {
            IsolationLevel::ReadUncommitted => 0,
            IsolationLevel::ReadCommitted => 1,
        });
        writer.i32(self.session_id.0);
        writer.i32(self.session_epoch.0);
        writer.count(self.topics.len());
        for topic in &self.topics {
            debug_assert!(matches!(topic.topic, TopicRef::Id(_)));
            topic.topic.write(&mut writer);
            writer.count(topic.partitions.len());
            topic.partitions.iter().for_each(|partition| partition.write(version, &mut writer));
            writer.no_tagged_fields();
        }
        writer.count(self.forgotten.len());
        for topic in &self.forgotten {
            topic.topic.write(&mut writer);
            writer.count(topic.partitions.len());
            topic.partitions.iter().for_each(|partition| writer.i32(partition.0));
            writer.no_tagged_fields();
        }
        writer.string(&self.rack_id);
        if version < REPLICA_STATE_VERSION {
            writer.no_tagged_fields();
        } else {
            writer.varint(1);
            writer.varint(1);
            writer.varint(4 + 8 + 1);
            writer.i32(self.replica_id.0);
            writer.i64(self.replica_epoch.0);
            writer.no_tagged_fields();
        }
        writer.finish(0)
    }
}

impl FetchPartition {
    fn write(&self, version: i16, writer: &mut Writer) {
        writer.i32(self.index.0);
        writer.i32(self.current_leader_epoch.0);
        writer.i64(self.fetch_offset.0);
        writer.i32(self.last_fetched_epoch.0);
        writer.i64(self.log_start_offset.0);
        writer.i32(self.max_bytes);
        let has_directory = version >= DIRECTORY_VERSION && !self.replica_directory_id.is_nil();
        let high_watermark = self.high_watermark.filter(|_| version >= HIGH_WATERMARK_VERSION);
        writer.varint(u32::from(has_directory) + u32::from(high_watermark.is_some()));
        if has_directory {
            writer.varint(0);
            writer.varint(16);
            writer.slice(self.replica_directory_id.as_bytes());
        }
        if let Some(offset) = high_watermark {
            writer.varint(1);
            writer.varint(8);
            writer.i64(offset.0);
        }
    }
}

impl FetchAnswer {
    /// Walks the frame of an answer, without its length: the correlation id, whatever it is, and the rest.
    pub fn decode(version: i16, frame: &Bytes) -> Result<(CorrelationId, Self), DecodeError> {
        debug_assert!(version >= TOPIC_ID_VERSION && TOPIC_ID_VERSION >= FLEXIBLE_VERSION);
        let mut reader = Reader::new(frame);
        let correlation_id = CorrelationId(reader.i32()?);
        reader.skip_tagged_fields(fetch_api().response_header_version(version) >= 1)?;
        // The throttle time.
        reader.skip(4)?;
        let error = read_error(&mut reader)?;
        let session_id = SessionId(reader.i32()?);
        let mut partitions = Vec::new();
        for _ in 0..reader.elements(true, TOPIC_LEN_MIN)? {
            let topic = reader.topic_id()?;
            let count = reader.elements(true, PARTITION_LEN_MIN)?;
            partitions.reserve(count);
            for _ in 0..count {
                partitions.push(FetchedSlice::read(topic, &mut reader)?);
            }
            reader.skip_tagged_fields(true)?;
        }
        reader.skip_tagged_fields(true)?;
        Ok((correlation_id, Self { error, session_id, partitions }))
    }
}

impl FetchedSlice {
    fn read(topic: TopicId, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let index = PartitionIndex(reader.i32()?);
        let error = read_error(reader)?;
        let high_watermark = Offset(reader.i64()?);
        // The last stable offset: a follower finds its own.
        reader.skip(8)?;
        let log_start = Offset(reader.i64()?);
        for _ in 0..reader.count(true, 8 + 8 + 1)?.unwrap_or(0) {
            reader.skip(8 + 8)?;
            reader.skip_tagged_fields(true)?;
        }
        // The preferred replica.
        reader.skip(4)?;
        let records = reader.bytes(true)?.unwrap_or_default();
        let mut diverging = None;
        reader.tagged_fields(|tag, field| {
            if tag == 0 {
                let (epoch, end_offset) = (LeaderEpoch(field.i32()?), Offset(field.i64()?));
                diverging = Some(DivergingEpoch { epoch, end_offset });
            }
            Ok(())
        })?;
        // Kafka's default for "none".
        let diverging = diverging.filter(|diverging| diverging.epoch != LeaderEpoch::NONE);
        Ok(Self { topic, index, error, high_watermark, log_start, diverging, records })
    }
}

fn read_error(reader: &mut Reader<'_>) -> Result<Option<ErrorCode>, DecodeError> {
    Ok(match reader.i16()? {
        0 => None,
        code => Some(ErrorCode::try_from_code(code).unwrap_or(ErrorCode::UnknownServerError)),
    })
}
