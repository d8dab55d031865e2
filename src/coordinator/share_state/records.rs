//! The records of `__share_group_state`, byte for byte as Kafka 4.4 writes them: `ShareSnapshot` has all that is kept of
//! a share partition, `ShareUpdate` what changed since.

use std::sync::Arc;

use bytes::Bytes;

use super::super::codec::{Malformed, Reader, Writer};
use super::super::interface::KeyValue;
use crate::base::clock::Timestamp;
use crate::base::{LeaderEpoch, Offset, PartitionIndex};
use crate::share::{DeliveryState, ShareKey, StateBatch};

const SNAPSHOT_KEY: i16 = 0;
const UPDATE_KEY: i16 = 1;
/// All values have this version, which is flexible; the keys are not.
const VALUE_VERSION: i16 = 0;
const DELIVERY_COMPLETE_TAG: u32 = 0;
const UNKNOWN: i32 = -1;

/// A change of what is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// No value deletes all that is kept.
    Snapshot {
        key: ShareKey,
        value: Option<Snapshot>,
    },
    Update {
        key: ShareKey,
        value: Update,
    },
}

/// `ShareSnapshotValue`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Counts the snapshots of the key; an update belongs to the one it names.
    pub snapshot_epoch: i32,
    pub state_epoch: i32,
    pub leader_epoch: LeaderEpoch,
    pub start: Offset,
    pub delivery_complete: i32,
    pub created_at: Timestamp,
    pub written_at: Timestamp,
    pub batches: Vec<StateBatch>,
}

/// `ShareUpdateValue`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Update {
    pub snapshot_epoch: i32,
    pub leader_epoch: LeaderEpoch,
    pub start: Offset,
    pub delivery_complete: i32,
    pub batches: Vec<StateBatch>,
}

/// Why a record was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    #[error("key version {0} is not a share partition's")]
    UnknownKey(i16),
    #[error("value version {0} is not known")]
    UnknownValue(i16),
    #[error("an update is never deleted")]
    NoUpdate,
    #[error("delivery state {0} is not known")]
    UnknownState(i8),
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl Record {
    pub fn key(&self) -> &ShareKey {
        match self {
            Record::Snapshot { key, .. } | Record::Update { key, .. } => key,
        }
    }

    pub fn encode(&self) -> KeyValue {
        match self {
            Record::Snapshot { key, value } => {
                KeyValue { key: encode_key(SNAPSHOT_KEY, key), value: value.as_ref().map(encode_snapshot) }
            }
            Record::Update { key, value } => {
                KeyValue { key: encode_key(UPDATE_KEY, key), value: Some(encode_update(value)) }
            }
        }
    }

    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Record, RecordError> {
        let mut reader = Reader::new(key);
        let version = reader.i16()?;
        if !matches!(version, SNAPSHOT_KEY | UPDATE_KEY) {
            return Err(RecordError::UnknownKey(version));
        }
        let key = ShareKey {
            group: Arc::from(reader.string()?.as_str()),
            topic: reader.topic_id()?,
            partition: PartitionIndex(reader.i32()?),
        };
        let mut value = value.map(open).transpose()?;
        Ok(match version {
            SNAPSHOT_KEY => Record::Snapshot { key, value: value.as_mut().map(decode_snapshot).transpose()? },
            _ => {
                let value = value.as_mut().ok_or(RecordError::NoUpdate)?;
                Record::Update { key, value: decode_update(value)? }
            }
        })
    }
}

fn encode_key(version: i16, key: &ShareKey) -> Bytes {
    let mut writer = Writer::new(version);
    writer.string(&key.group).topic_id(key.topic).i32(key.partition.0);
    writer.finish()
}

fn open(value: &[u8]) -> Result<Reader<'_>, RecordError> {
    let mut reader = Reader::new(value);
    let version = reader.i16()?;
    if version != VALUE_VERSION {
        return Err(RecordError::UnknownValue(version));
    }
    reader.set_flexible(true);
    Ok(reader)
}

fn encode_snapshot(value: &Snapshot) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.i32(value.snapshot_epoch).i32(value.state_epoch).i32(value.leader_epoch.0).i64(value.start.0);
    writer.i64(value.created_at.0).i64(value.written_at.0);
    encode_batches(&mut writer, &value.batches);
    encode_complete(&mut writer, value.delivery_complete);
    writer.finish()
}

fn encode_update(value: &Update) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.i32(value.snapshot_epoch).i32(value.leader_epoch.0).i64(value.start.0);
    encode_batches(&mut writer, &value.batches);
    encode_complete(&mut writer, value.delivery_complete);
    writer.finish()
}

fn encode_batches(writer: &mut Writer, batches: &[StateBatch]) {
    writer.compact_count(Some(batches.len()));
    for batch in batches {
        writer.i64(batch.first.0).i64(batch.last.0).i8(batch.state.id());
        writer.i16(i16::try_from(batch.delivery_count).unwrap_or(i16::MAX)).tagged_fields(&[]);
    }
}

fn encode_complete(writer: &mut Writer, count: i32) {
    match count {
        UNKNOWN => writer.tagged_fields(&[]),
        _ => writer.tagged_fields(&[(DELIVERY_COMPLETE_TAG, &count.to_be_bytes())]),
    };
}

fn decode_snapshot(reader: &mut Reader<'_>) -> Result<Snapshot, RecordError> {
    let (snapshot_epoch, state_epoch) = (reader.i32()?, reader.i32()?);
    let (leader_epoch, start) = (LeaderEpoch(reader.i32()?), Offset(reader.i64()?));
    let (created_at, written_at) = (Timestamp(reader.i64()?), Timestamp(reader.i64()?));
    let batches = decode_batches(reader)?;
    let delivery_complete = decode_complete(reader)?;
    Ok(Snapshot {
        snapshot_epoch,
        state_epoch,
        leader_epoch,
        start,
        delivery_complete,
        created_at,
        written_at,
        batches,
    })
}

fn decode_update(reader: &mut Reader<'_>) -> Result<Update, RecordError> {
    let (snapshot_epoch, leader_epoch) = (reader.i32()?, LeaderEpoch(reader.i32()?));
    let start = Offset(reader.i64()?);
    let batches = decode_batches(reader)?;
    Ok(Update { snapshot_epoch, leader_epoch, start, delivery_complete: decode_complete(reader)?, batches })
}

fn decode_batches(reader: &mut Reader<'_>) -> Result<Vec<StateBatch>, RecordError> {
    let count = reader.count()?;
    let mut batches = Vec::new();
    for _ in 0..count {
        let (first, last) = (Offset(reader.i64()?), Offset(reader.i64()?));
        let (state, delivery_count) = (reader.i8()?, reader.i16()?);
        let state = DeliveryState::from_id(state).ok_or(RecordError::UnknownState(state))?;
        reader.tagged_fields(|_, _| {})?;
        let delivery_count = u16::try_from(delivery_count).unwrap_or(0);
        batches.push(StateBatch { first, last, state, delivery_count });
    }
    Ok(batches)
}

fn decode_complete(reader: &mut Reader<'_>) -> Result<i32, Malformed> {
    let mut count = UNKNOWN;
    reader.tagged_fields(|tag, bytes| {
        if let (DELIVERY_COMPLETE_TAG, Ok(bytes)) = (tag, <[u8; 4]>::try_from(bytes)) {
            count = i32::from_be_bytes(bytes);
        }
    })?;
    Ok(count)
}
