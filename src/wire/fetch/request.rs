//! The Fetch request.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::{FLEXIBLE_VERSION, TOPIC_ID_VERSION};
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionIndex};
use crate::wire::parts::{TopicRef, read_string};
use crate::wire::read::{DecodeError, Reader};

/// A fetch session (KIP-227); 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SessionId(pub i32);

impl SessionId {
    pub const NONE: SessionId = SessionId(0);
}

/// Counts the requests of a fetch session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionEpoch(pub i32);

impl SessionEpoch {
    /// A full fetch that asks for a session.
    pub const INITIAL: SessionEpoch = SessionEpoch(0);
    /// A full fetch without a session, or the end of one.
    pub const FINAL: SessionEpoch = SessionEpoch(-1);

    /// The epoch that the next request carries; wraps to 1 (`FetchMetadata.nextEpoch`).
    pub fn next(self) -> SessionEpoch {
        match self.0 {
            ..0 => Self::FINAL,
            i32::MAX => SessionEpoch(1),
            epoch => SessionEpoch(epoch + 1),
        }
    }

    /// Whether the request lists every partition it wants.
    pub fn is_full(self) -> bool {
        self == Self::INITIAL || self == Self::FINAL
    }
}

/// Which records a consumer sees (KIP-98).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IsolationLevel {
    ReadUncommitted,
    ReadCommitted,
}

#[derive(Clone, PartialEq, Debug)]
pub struct FetchRequest {
    /// A follower says which cluster it means, a consumer does not.
    pub cluster_id: Option<StrBytes>,
    /// The follower that asks; -1 for a consumer.
    pub replica_id: BrokerId,
    /// The follower's epoch (KIP-903); -1 before version 15.
    pub replica_epoch: BrokerEpoch,
    /// How long to wait for `min_bytes`, ms.
    pub max_wait_ms: i32,
    pub min_bytes: i32,
    /// Bound on the records of the whole response, bytes; the first batch comes whole (KIP-74).
    pub max_bytes: i32,
    pub isolation_level: IsolationLevel,
    pub session_id: SessionId,
    pub session_epoch: SessionEpoch,
    pub topics: Vec<FetchTopic>,
    /// Leave the session.
    pub forgotten: Vec<ForgottenTopic>,
    /// Where the consumer is; empty when it does not say.
    pub rack_id: StrBytes,
}

#[derive(Clone, PartialEq, Debug)]
pub struct FetchTopic {
    pub topic: TopicRef,
    pub partitions: Vec<FetchPartition>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FetchPartition {
    pub index: PartitionIndex,
    /// What the client takes for the leader's epoch, else [`LeaderEpoch::NONE`] (KIP-320).
    pub current_leader_epoch: LeaderEpoch,
    pub fetch_offset: Offset,
    /// The epoch of the last record a follower has, else [`LeaderEpoch::NONE`].
    pub last_fetched_epoch: LeaderEpoch,
    /// The follower's log start; -1 from a consumer.
    pub log_start_offset: Offset,
    /// Bound on this partition's records, bytes.
    pub max_bytes: i32,
    /// The follower's log directory (KIP-853); nil when unknown.
    pub replica_directory_id: uuid::Uuid,
    /// The high watermark that the follower knows; `None` when it does not say (KIP-1166).
    pub high_watermark: Option<Offset>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ForgottenTopic {
    pub topic: TopicRef,
    pub partitions: Vec<PartitionIndex>,
}

impl FetchRequest {
    /// Reads the body of a request. What follows its last field is ignored, as Kafka does.
    pub fn decode(version: i16, body: &Bytes) -> Result<Self, DecodeError> {
        let flexible = version >= FLEXIBLE_VERSION;
        let mut reader = Reader::new(body);
        let replica_id = BrokerId(if version <= 14 { reader.i32()? } else { -1 });
        let max_wait_ms = reader.i32()?;
        let min_bytes = reader.i32()?;
        let max_bytes = reader.i32()?;
        let isolation_level = match reader.i8()? {
            0 => IsolationLevel::ReadUncommitted,
            1 => IsolationLevel::ReadCommitted,
            other => return Err(DecodeError::Message(format!("isolation level {other}"))),
        };
        let session_id = SessionId(if version >= 7 { reader.i32()? } else { 0 });
        let session_epoch = SessionEpoch(if version >= 7 { reader.i32()? } else { -1 });
        let topics = read_topics(&mut reader, version)?;
        let forgotten = if version >= 7 { read_forgotten(&mut reader, version)? } else { Vec::new() };
        let rack_id = match version >= 11 {
            true => read_string(&mut reader, flexible)?.ok_or(DecodeError::Null)?,
            false => StrBytes::new(),
        };
        let mut request = Self {
            cluster_id: None,
            replica_id,
            replica_epoch: BrokerEpoch(-1),
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation_level,
            session_id,
            session_epoch,
            topics,
            forgotten,
            rack_id,
        };
        if flexible {
            reader.tagged_fields(|tag, field| {
                match tag {
                    0 => request.cluster_id = read_string(field, true)?,
                    1 if version >= 15 => {
                        request.replica_id = BrokerId(field.i32()?);
                        request.replica_epoch = BrokerEpoch(field.i64()?);
                        field.skip_tagged_fields(true)?;
                    }
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok(request)
    }
}

fn read_topics(reader: &mut Reader<'_>, version: i16) -> Result<Vec<FetchTopic>, DecodeError> {
    let flexible = version >= FLEXIBLE_VERSION;
    let by_id = version >= TOPIC_ID_VERSION;
    let count = reader.elements(flexible, topic_len_min(version))?;
    let mut topics = Vec::with_capacity(count);
    for _ in 0..count {
        let topic = TopicRef::read(reader, by_id, flexible)?;
        let count = reader.elements(flexible, partition_len_min(version))?;
        let mut partitions = Vec::with_capacity(count);
        for _ in 0..count {
            partitions.push(read_partition(reader, version)?);
        }
        reader.skip_tagged_fields(flexible)?;
        topics.push(FetchTopic { topic, partitions });
    }
    Ok(topics)
}

fn read_partition(reader: &mut Reader<'_>, version: i16) -> Result<FetchPartition, DecodeError> {
    let flexible = version >= FLEXIBLE_VERSION;
    let mut partition = FetchPartition {
        index: PartitionIndex(reader.i32()?),
        current_leader_epoch: LeaderEpoch(if version >= 9 { reader.i32()? } else { -1 }),
        fetch_offset: Offset(reader.i64()?),
        last_fetched_epoch: LeaderEpoch(if flexible { reader.i32()? } else { -1 }),
        log_start_offset: Offset(if version >= 5 { reader.i64()? } else { -1 }),
        max_bytes: reader.i32()?,
        replica_directory_id: uuid::Uuid::nil(),
        high_watermark: None,
    };
    if flexible {
        reader.tagged_fields(|tag, field| {
            match tag {
                0 if version >= 17 => partition.replica_directory_id = field.topic_id()?.0,
                1 if version >= 18 => {
                    // The default stands for a follower without the feature.
                    let offset = field.i64()?;
                    partition.high_watermark = (offset != i64::MAX).then_some(Offset(offset));
                }
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(partition)
}

fn read_forgotten(reader: &mut Reader<'_>, version: i16) -> Result<Vec<ForgottenTopic>, DecodeError> {
    let flexible = version >= FLEXIBLE_VERSION;
    let by_id = version >= TOPIC_ID_VERSION;
    let count = reader.elements(flexible, topic_len_min(version))?;
    let mut topics = Vec::with_capacity(count);
    for _ in 0..count {
        let topic = TopicRef::read(reader, by_id, flexible)?;
        let count = reader.elements(flexible, 4)?;
        let mut partitions = Vec::with_capacity(count);
        for _ in 0..count {
            partitions.push(PartitionIndex(reader.i32()?));
        }
        reader.skip_tagged_fields(flexible)?;
        topics.push(ForgottenTopic { topic, partitions });
    }
    Ok(topics)
}

fn topic_len_min(version: i16) -> usize {
    match version {
        TOPIC_ID_VERSION.. => 16 + 1 + 1,
        FLEXIBLE_VERSION => 1 + 1 + 1,
        _ => 2 + 4,
    }
}

fn partition_len_min(version: i16) -> usize {
    match version {
        FLEXIBLE_VERSION.. => 4 + 4 + 8 + 4 + 8 + 4 + 1,
        9.. => 4 + 4 + 8 + 8 + 4,
        5.. => 4 + 8 + 8 + 4,
        _ => 4 + 8 + 4,
    }
}
