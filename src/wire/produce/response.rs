//! The Produce response.

use bytes::Bytes;

use super::TOPIC_ID_VERSION;
use crate::base::clock::Timestamp;
use crate::base::{Offset, PartitionIndex};
use crate::wire::api::{Api, find};
use crate::wire::header::CorrelationId;
use crate::wire::parts::{CurrentLeader, NodeEndpoint, TopicRef, write_endpoints};
use crate::wire::write::{EncodeError, Writer};
use crate::wire::{ApiKey, ErrorCode};

#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProduceResponse {
    pub topics: Vec<ProduceTopicResponse>,
    pub throttle_ms: i32,
    /// Of the leaders named in [`ProducePartitionResponse::current_leader`]; from version 10.
    pub node_endpoints: Vec<NodeEndpoint>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ProduceTopicResponse {
    /// As the request named it.
    pub topic: TopicRef,
    pub partitions: Vec<ProducePartitionResponse>,
}

/// What became of one partition's records. What a version does not have is left out.
#[derive(Clone, PartialEq, Debug)]
pub struct ProducePartitionResponse {
    pub index: PartitionIndex,
    pub error: Option<ErrorCode>,
    /// The offset that the first record got; -1 with an error.
    pub base_offset: Offset,
    /// The append time under LogAppendTime, else [`Timestamp::NONE`].
    pub log_append_time: Timestamp,
    /// -1 when unknown.
    pub log_start_offset: Offset,
    /// Refused records: place in the batch and why (KIP-467).
    pub record_errors: Vec<(i32, Option<String>)>,
    pub error_message: Option<String>,
    /// With NOT_LEADER_OR_FOLLOWER (KIP-951).
    pub current_leader: Option<CurrentLeader>,
}

impl ProducePartitionResponse {
    /// The answer to records that were appended.
    pub fn appended(index: PartitionIndex, base_offset: Offset) -> Self {
        Self { base_offset, ..Self::failed(index, None) }
    }

    /// The answer to records that were not; a `None` stands for success without offsets.
    pub fn failed(index: PartitionIndex, error: impl Into<Option<ErrorCode>>) -> Self {
        Self {
            index,
            error: error.into(),
            base_offset: Offset(-1),
            log_append_time: Timestamp::NONE,
            log_start_offset: Offset(-1),
            record_errors: Vec::new(),
            error_message: None,
            current_leader: None,
        }
    }
}

impl ProduceResponse {
    /// The whole frame that answers a request of `version`.
    pub fn encode(&self, version: i16, correlation_id: CorrelationId) -> Result<Bytes, EncodeError> {
        let mut writer = Writer::response(produce_api(), version, correlation_id);
        writer.count(self.topics.len());
        for topic in &self.topics {
            debug_assert_eq!(matches!(topic.topic, TopicRef::Id(_)), version >= TOPIC_ID_VERSION);
            topic.topic.write(&mut writer);
            writer.count(topic.partitions.len());
            for partition in &topic.partitions {
                partition.write(version, &mut writer);
            }
            writer.no_tagged_fields();
        }
        writer.i32(self.throttle_ms);
        write_endpoints(&mut writer, &self.node_endpoints, version >= 10);
        writer.finish(0)
    }
}

impl ProducePartitionResponse {
    fn write(&self, version: i16, writer: &mut Writer) {
        writer.i32(self.index.0);
        writer.i16(self.error.map_or(0, |error| error.code()));
        writer.i64(self.base_offset.0);
        writer.i64(self.log_append_time.0);
        if version >= 5 {
            writer.i64(self.log_start_offset.0);
        }
        if version >= 8 {
            writer.count(self.record_errors.len());
            for (batch_index, message) in &self.record_errors {
                writer.i32(*batch_index);
                writer.nullable_string(message.as_deref());
                writer.no_tagged_fields();
            }
            writer.nullable_string(self.error_message.as_deref());
        }
        match self.current_leader {
            Some(leader) if version >= 10 => {
                writer.varint(1);
                leader.write_tagged(writer, 0);
            }
            _ => writer.no_tagged_fields(),
        }
    }
}

fn produce_api() -> &'static Api {
    find(ApiKey::Produce as i16).expect("the API table has Produce")
}
