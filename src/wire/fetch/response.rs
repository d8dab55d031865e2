//! The Fetch response, written around its records.

use bytes::Bytes;

use super::{FLEXIBLE_VERSION, SessionId, TOPIC_ID_VERSION};
use crate::base::{BrokerId, LeaderEpoch, Offset, PartitionIndex, ProducerId};
use crate::wire::api::{Api, find};
use crate::wire::header::CorrelationId;
use crate::wire::parts::{CurrentLeader, NodeEndpoint, TopicRef, write_endpoints};
use crate::wire::write::{EncodeError, Writer};
use crate::wire::{ApiKey, ErrorCode};

#[derive(Clone, PartialEq, Debug, Default)]
pub struct FetchResponse {
    pub throttle_ms: i32,
    /// For the request as a whole, as FETCH_SESSION_ID_NOT_FOUND; from version 7.
    pub error: Option<ErrorCode>,
    pub session_id: SessionId,
    pub topics: Vec<FetchTopicResponse>,
    /// Of the leaders named in [`FetchPartitionResponse::current_leader`]; from version 16.
    pub node_endpoints: Vec<NodeEndpoint>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct FetchTopicResponse {
    /// As the request named it.
    pub topic: TopicRef,
    pub partitions: Vec<FetchPartitionResponse>,
}

/// What is told of a partition beside its records. What a version does not have is left out.
#[derive(Clone, PartialEq, Debug)]
pub struct FetchPartitionResponse {
    pub index: PartitionIndex,
    pub error: Option<ErrorCode>,
    /// -1 with an error.
    pub high_watermark: Offset,
    /// -1 with an error.
    pub last_stable_offset: Offset,
    /// -1 with an error.
    pub log_start_offset: Offset,
    /// Aborted transactions that overlap the records, by first offset; `None` under read_uncommitted.
    pub aborted: Option<Vec<AbortedTransaction>>,
    /// Another replica that the consumer should ask from now on (KIP-392); from version 11.
    pub preferred_read_replica: Option<BrokerId>,
    /// Where the follower's log parts from ours (KIP-595); from version 12.
    pub diverging_epoch: Option<DivergingEpoch>,
    /// With NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH (KIP-951); from version 12.
    pub current_leader: Option<CurrentLeader>,
    /// Bytes of records that the caller sends for this partition.
    pub records_len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AbortedTransaction {
    pub producer_id: ProducerId,
    pub first_offset: Offset,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DivergingEpoch {
    pub epoch: LeaderEpoch,
    pub end_offset: Offset,
}

/// A response ready to be sent: its pieces one after the other are the frame.
#[derive(Clone, PartialEq, Debug)]
pub struct EncodedFetch {
    pub pieces: Vec<Piece>,
    /// Bytes of the whole frame, prefix and records included.
    pub total_len: usize,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Piece {
    Bytes(Bytes),
    /// The records of the partition that stands `partition`th in the response, counted from 0 through all
    /// topics: exactly `len` bytes, never 0.
    Records {
        partition: usize,
        len: usize,
    },
}

impl FetchPartitionResponse {
    /// The answer for a partition that cannot be read.
    pub fn failed(index: PartitionIndex, error: impl Into<Option<ErrorCode>>) -> Self {
        Self {
            index,
            error: error.into(),
            high_watermark: Offset(-1),
            last_stable_offset: Offset(-1),
            log_start_offset: Offset(-1),
            aborted: None,
            preferred_read_replica: None,
            diverging_epoch: None,
            current_leader: None,
            records_len: 0,
        }
    }
}

impl FetchResponse {
    /// Encodes for a request of `version`. All bytes between records share one allocation.
    pub fn encode(&self, version: i16, correlation_id: CorrelationId) -> Result<EncodedFetch, EncodeError> {
        let mut writer = Writer::response(fetch_api(), version, correlation_id);
        let mut gaps: Vec<Gap> = Vec::new();
        writer.i32(self.throttle_ms);
        if version >= 7 {
            writer.i16(self.error.map_or(0, |error| error.code()));
            writer.i32(self.session_id.0);
        }
        writer.count(self.topics.len());
        let mut partition_number = 0;
        for topic in &self.topics {
            debug_assert_eq!(matches!(topic.topic, TopicRef::Id(_)), version >= TOPIC_ID_VERSION);
            topic.topic.write(&mut writer);
            writer.count(topic.partitions.len());
            for partition in &topic.partitions {
                partition.write_before_records(version, &mut writer);
                if partition.records_len > 0 {
                    let len = partition.records_len;
                    gaps.push(Gap { at: writer.position(), partition: partition_number, len });
                }
                partition.write_after_records(version, &mut writer);
                partition_number += 1;
            }
            writer.no_tagged_fields();
        }
        if version >= FLEXIBLE_VERSION {
            write_endpoints(&mut writer, &self.node_endpoints, version >= 16);
        }
        let records_len: usize = gaps.iter().map(|gap| gap.len).sum();
        let written = writer.finish(records_len)?;
        let total_len = written.len() + records_len;
        Ok(EncodedFetch { pieces: cut(written, &gaps), total_len })
    }
}

/// Where records belong between the written bytes.
struct Gap {
    at: usize,
    partition: usize,
    len: usize,
}

fn cut(written: Bytes, gaps: &[Gap]) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(2 * gaps.len() + 1);
    let mut from = 0;
    for gap in gaps {
        pieces.push(Piece::Bytes(written.slice(from..gap.at)));
        pieces.push(Piece::Records { partition: gap.partition, len: gap.len });
        from = gap.at;
    }
    if from < written.len() {
        pieces.push(Piece::Bytes(written.slice(from..)));
    }
    pieces
}

impl FetchPartitionResponse {
    fn write_before_records(&self, version: i16, writer: &mut Writer) {
        writer.i32(self.index.0);
        writer.i16(self.error.map_or(0, |error| error.code()));
        writer.i64(self.high_watermark.0);
        writer.i64(self.last_stable_offset.0);
        if version >= 5 {
            writer.i64(self.log_start_offset.0);
        }
        match &self.aborted {
            None => writer.null_count(),
            Some(aborted) => {
                writer.count(aborted.len());
                for transaction in aborted {
                    writer.i64(transaction.producer_id.0);
                    writer.i64(transaction.first_offset.0);
                    writer.no_tagged_fields();
                }
            }
        }
        if version >= 11 {
            writer.i32(self.preferred_read_replica.map_or(-1, |replica| replica.0));
        }
        writer.count(self.records_len);
    }

    fn write_after_records(&self, version: i16, writer: &mut Writer) {
        if version < FLEXIBLE_VERSION {
            return;
        }
        let fields = u32::from(self.diverging_epoch.is_some()) + u32::from(self.current_leader.is_some());
        writer.varint(fields);
        if let Some(diverging) = self.diverging_epoch {
            writer.varint(0);
            writer.varint(4 + 8 + 1);
            writer.i32(diverging.epoch.0);
            writer.i64(diverging.end_offset.0);
            writer.no_tagged_fields();
        }
        if let Some(leader) = self.current_leader {
            leader.write_tagged(writer, 1);
        }
    }
}

pub(super) fn fetch_api() -> &'static Api {
    find(ApiKey::Fetch as i16).expect("the API table has Fetch")
}
