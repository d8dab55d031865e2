//! The records of `__transaction_state`, byte for byte as Kafka 4.x writes them (`TransactionLogKey`,
//! `TransactionLogValue`): key and value begin with the version of their schema.

use std::collections::BTreeSet;

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::super::codec::{Malformed, Reader, Writer};
use super::super::interface::KeyValue;
use super::state::{NO_EPOCH, State, Transaction, TransactionVersion};
use crate::base::clock::Timestamp;
use crate::base::{PartitionIndex, ProducerEpoch, ProducerId, TopicName, TopicPartition};

const KEY_VERSION: i16 = 0;
/// The last version that is not flexible: written until `transaction.version` is finalized.
const PLAIN_VALUE_VERSION: i16 = 0;
const FLEXIBLE_VALUE_VERSION: i16 = 1;

const PREVIOUS_PRODUCER_ID_TAG: u32 = 0;
const NEXT_PRODUCER_ID_TAG: u32 = 1;
const CLIENT_VERSION_TAG: u32 = 2;

/// A transactional id and its state; no state is a tombstone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub id: StrBytes,
    pub value: Option<Transaction>,
}

/// Why a record was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    #[error("key version {0} is not a transactional id's")]
    UnknownKey(i16),
    #[error("value version {0} is not known")]
    UnknownValue(i16),
    #[error("state {0} is none that is kept")]
    UnknownState(i8),
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl Record {
    /// `version` is the finalized `transaction.version`.
    pub fn encode(&self, version: TransactionVersion) -> KeyValue {
        let mut key = Writer::new(KEY_VERSION);
        key.string(&self.id);
        let value = self.value.as_ref().map(|value| match version {
            TransactionVersion::V0 if !needs_flexible(value) => encode_plain(value),
            TransactionVersion::V0 | TransactionVersion::V1 | TransactionVersion::V2 => {
                encode_flexible(value)
            }
        });
        KeyValue { key: key.finish(), value }
    }

    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Record, RecordError> {
        let mut key = Reader::new(key);
        match key.i16()? {
            KEY_VERSION => Ok(Record { id: key.string()?, value: value.map(decode_value).transpose()? }),
            version => Err(RecordError::UnknownKey(version)),
        }
    }
}

/// Whether a restart in this state would end the transaction otherwise than its producer was told: a client may speak
/// transactions v2 whatever the feature's level. (Kafka writes a plain value all the same, and forgets.)
fn needs_flexible(value: &Transaction) -> bool {
    value.client_version.bumps_epoch()
}

fn encode_plain(value: &Transaction) -> Bytes {
    let mut writer = Writer::new(PLAIN_VALUE_VERSION);
    encode_head(&mut writer, value);
    match topics(value) {
        None => {
            writer.i32(-1);
        }
        Some(topics) => {
            writer.i32(count(topics.len()));
            for (topic, partitions) in topics {
                writer.string(topic).i32(count(partitions.len()));
                for partition in partitions {
                    writer.i32(partition.0);
                }
            }
        }
    }
    writer.i64(value.updated_at.0).i64(value.started_at.0);
    writer.finish()
}

fn encode_flexible(value: &Transaction) -> Bytes {
    let mut writer = Writer::new(FLEXIBLE_VALUE_VERSION);
    encode_head(&mut writer, value);
    let topics = topics(value);
    writer.compact_count(topics.as_ref().map(Vec::len));
    for (topic, partitions) in topics.into_iter().flatten() {
        writer.compact_string(topic).compact_count(Some(partitions.len()));
        for partition in partitions {
            writer.i32(partition.0);
        }
        writer.tagged_fields(&[]);
    }
    writer.i64(value.updated_at.0).i64(value.started_at.0);
    let previous = value.previous_producer_id.0.to_be_bytes();
    let next = value.next_producer_id.0.to_be_bytes();
    let client = value.client_version.level().to_be_bytes();
    let mut tagged: Vec<(u32, &[u8])> = Vec::with_capacity(3);
    if value.previous_producer_id.is_some() {
        tagged.push((PREVIOUS_PRODUCER_ID_TAG, &previous));
    }
    if value.next_producer_id.is_some() {
        tagged.push((NEXT_PRODUCER_ID_TAG, &next));
    }
    if value.client_version != TransactionVersion::V0 {
        tagged.push((CLIENT_VERSION_TAG, &client));
    }
    writer.tagged_fields(&tagged);
    writer.finish()
}

fn encode_head(writer: &mut Writer, value: &Transaction) {
    writer.i64(value.producer_id.0).i16(value.epoch.0).i32(value.timeout_ms).i8(value.state.id());
}

/// The partitions by topic; null in an empty transaction.
fn topics(value: &Transaction) -> Option<Vec<(&TopicName, Vec<PartitionIndex>)>> {
    if value.state == State::Empty {
        return None;
    }
    let mut topics: Vec<(&TopicName, Vec<PartitionIndex>)> = Vec::new();
    for TopicPartition { topic, partition } in &value.partitions {
        match topics.last_mut() {
            Some((last, partitions)) if *last == topic => partitions.push(*partition),
            _ => topics.push((topic, vec![*partition])),
        }
    }
    Some(topics)
}

fn count(count: usize) -> i32 {
    i32::try_from(count).expect("a request is shorter than 2 GiB")
}

fn decode_value(value: &[u8]) -> Result<Transaction, RecordError> {
    let mut reader = Reader::new(value);
    match reader.i16()? {
        PLAIN_VALUE_VERSION => {}
        FLEXIBLE_VALUE_VERSION => reader.set_flexible(true),
        version => return Err(RecordError::UnknownValue(version)),
    }
    let producer_id = ProducerId(reader.i64()?);
    let epoch = ProducerEpoch(reader.i16()?);
    let timeout_ms = reader.i32()?;
    let state = reader.i8()?;
    let state =
        State::from_id(state).filter(|state| state.is_kept()).ok_or(RecordError::UnknownState(state))?;
    let mut partitions = BTreeSet::new();
    for _ in 0..reader.nullable_count()?.unwrap_or(0) {
        let topic = TopicName::new(&reader.string()?);
        for _ in 0..reader.count()? {
            partitions.insert(TopicPartition::new(topic.clone(), PartitionIndex(reader.i32()?)));
        }
        reader.tagged_fields(|_, _| {})?;
    }
    let updated_at = Timestamp(reader.i64()?);
    let started_at = Timestamp(reader.i64()?);
    let mut transaction = Transaction {
        producer_id,
        previous_producer_id: ProducerId::NONE,
        next_producer_id: ProducerId::NONE,
        epoch,
        last_epoch: NO_EPOCH,
        timeout_ms,
        state,
        partitions,
        started_at,
        updated_at,
        client_version: TransactionVersion::V0,
    };
    reader.tagged_fields(|tag, bytes| match tag {
        PREVIOUS_PRODUCER_ID_TAG => {
            if let Ok(bytes) = bytes.try_into() {
                transaction.previous_producer_id = ProducerId(i64::from_be_bytes(bytes));
            }
        }
        NEXT_PRODUCER_ID_TAG => {
            if let Ok(bytes) = bytes.try_into() {
                transaction.next_producer_id = ProducerId(i64::from_be_bytes(bytes));
            }
        }
        CLIENT_VERSION_TAG => {
            if let Ok(bytes) = bytes.try_into() {
                transaction.client_version = TransactionVersion::from_level(i16::from_be_bytes(bytes));
            }
        }
        _ => {}
    })?;
    Ok(transaction)
}
