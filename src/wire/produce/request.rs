//! The Produce request.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::{FLEXIBLE_VERSION, TOPIC_ID_VERSION};
use crate::base::PartitionIndex;
use crate::wire::parts::{TopicRef, read_string};
use crate::wire::read::{DecodeError, Reader};

/// When the client wants its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    /// Never: no response is sent.
    None,
    /// After the leader's append.
    Leader,
    /// After all in-sync replicas have it.
    All,
    /// Every partition is answered INVALID_REQUIRED_ACKS.
    Invalid(i16),
}

/// Names and records share the memory of the frame.
#[derive(Clone, PartialEq, Debug)]
pub struct ProduceRequest {
    pub transactional_id: Option<StrBytes>,
    pub acks: Acks,
    /// How long `acks=all` may wait, ms.
    pub timeout_ms: i32,
    pub topics: Vec<ProduceTopic>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ProduceTopic {
    pub topic: TopicRef,
    pub partitions: Vec<ProducePartition>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ProducePartition {
    pub index: PartitionIndex,
    /// Unchecked: [`crate::wire::validate`] judges them. `None` is null, to be treated as empty.
    pub records: Option<Bytes>,
}

impl ProduceRequest {
    /// Reads the body of a request. What follows its last field is ignored, as Kafka does.
    pub fn decode(version: i16, body: &Bytes) -> Result<Self, DecodeError> {
        let flexible = version >= FLEXIBLE_VERSION;
        let by_id = version >= TOPIC_ID_VERSION;
        let mut reader = Reader::new(body);
        let transactional_id = read_string(&mut reader, flexible)?;
        let acks = match reader.i16()? {
            0 => Acks::None,
            1 => Acks::Leader,
            -1 => Acks::All,
            other => Acks::Invalid(other),
        };
        let timeout_ms = reader.i32()?;
        let topic_len_min = match (by_id, flexible) {
            (true, _) => 16 + 1 + 1,
            (false, true) => 1 + 1 + 1,
            (false, false) => 2 + 4,
        };
        let count = reader.elements(flexible, topic_len_min)?;
        let mut topics = Vec::with_capacity(count);
        for _ in 0..count {
            let topic = TopicRef::read(&mut reader, by_id, flexible)?;
            let partitions = read_partitions(&mut reader, flexible)?;
            reader.skip_tagged_fields(flexible)?;
            topics.push(ProduceTopic { topic, partitions });
        }
        reader.skip_tagged_fields(flexible)?;
        Ok(Self { transactional_id, acks, timeout_ms, topics })
    }
}

fn read_partitions(reader: &mut Reader<'_>, flexible: bool) -> Result<Vec<ProducePartition>, DecodeError> {
    let len_min = if flexible { 4 + 1 + 1 } else { 4 + 4 };
    let count = reader.elements(flexible, len_min)?;
    let mut partitions = Vec::with_capacity(count);
    for _ in 0..count {
        let index = PartitionIndex(reader.i32()?);
        let records = reader.bytes(flexible)?;
        reader.skip_tagged_fields(flexible)?;
        partitions.push(ProducePartition { index, records });
    }
    Ok(partitions)
}
