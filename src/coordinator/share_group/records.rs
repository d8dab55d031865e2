//! The records of share groups in `__consumer_offsets`, byte for byte as Kafka 4.4 writes them (the schemas
//! `ShareGroup*Key` and `ShareGroup*Value` of its group coordinator).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::super::codec::{Malformed, Reader, Writer};
use super::super::consumer::{Epoch, Partitions};
use super::super::interface::KeyValue;
use super::super::records::RecordError;
use super::super::room::{MEMBER_BYTES, NAME_BYTES, PARTITION_BYTES};
use super::group::count;
use crate::base::clock::Timestamp;
use crate::base::{PartitionIndex, TopicId};

const MEMBER_KEY: i16 = 10;
const GROUP_KEY: i16 = 11;
const TARGET_EPOCH_KEY: i16 = 12;
const TARGET_KEY: i16 = 13;
const POSITION_KEY: i16 = 14;
const STATE_KEY: i16 = 15;
/// All values have this version, which is flexible; the keys are not.
const VALUE_VERSION: i16 = 0;
/// The only state that a member of a share group has (`MemberState.STABLE`).
const STABLE: i8 = 0;
/// The time of a target assignment.
const AT_TAG: u32 = 0;

/// A change of a share group. A value that is not there takes the thing away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShareRecord {
    Member {
        group: StrBytes,
        member: StrBytes,
        value: Option<Box<MemberMetadata>>,
    },
    Group {
        group: StrBytes,
        value: Option<GroupEpoch>,
    },
    TargetEpoch {
        group: StrBytes,
        value: Option<TargetEpoch>,
    },
    Target {
        group: StrBytes,
        member: StrBytes,
        value: Option<Partitions>,
    },
    Position {
        group: StrBytes,
        member: StrBytes,
        value: Option<Box<Position>>,
    },
    /// Which partitions have a state in `__share_group_state`.
    States {
        group: StrBytes,
        value: Option<Box<States>>,
    },
}

/// What a member says of itself.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MemberMetadata {
    pub rack_id: Option<StrBytes>,
    pub client_id: StrBytes,
    pub client_host: StrBytes,
    pub topic_names: BTreeSet<StrBytes>,
}

impl MemberMetadata {
    pub(super) fn held_bytes(&self) -> usize {
        let names = self.topic_names.iter().map(|name| NAME_BYTES + name.len());
        MEMBER_BYTES + self.client_id.len() + names.sum::<usize>()
    }
}

/// The group's epoch and what it stands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupEpoch {
    pub epoch: Epoch,
    /// Of all topics that members subscribe to; 0 when there are none.
    pub metadata_hash: i64,
}

/// The epoch of the target assignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetEpoch {
    pub epoch: Epoch,
    /// When it was made; 0 when the record does not say.
    pub at: Timestamp,
}

/// Where a member is.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Position {
    pub epoch: Epoch,
    /// A member that did not hear of its new epoch comes again with this one.
    pub previous_epoch: Epoch,
    pub assigned: Partitions,
}

/// Partitions of a topic, with its name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NamedPartitions {
    pub name: StrBytes,
    pub partitions: BTreeSet<PartitionIndex>,
}

/// The partitions whose state is being made, is there, or is being deleted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct States {
    pub initializing: BTreeMap<TopicId, NamedPartitions>,
    pub initialized: BTreeMap<TopicId, NamedPartitions>,
    pub deleting: BTreeMap<TopicId, StrBytes>,
}

impl ShareRecord {
    pub fn is_tombstone(&self) -> bool {
        match self {
            ShareRecord::Member { value, .. } => value.is_none(),
            ShareRecord::Group { value, .. } => value.is_none(),
            ShareRecord::TargetEpoch { value, .. } => value.is_none(),
            ShareRecord::Target { value, .. } => value.is_none(),
            ShareRecord::Position { value, .. } => value.is_none(),
            ShareRecord::States { value, .. } => value.is_none(),
        }
    }

    pub fn group(&self) -> &StrBytes {
        match self {
            ShareRecord::Member { group, .. }
            | ShareRecord::Group { group, .. }
            | ShareRecord::TargetEpoch { group, .. }
            | ShareRecord::Target { group, .. }
            | ShareRecord::Position { group, .. }
            | ShareRecord::States { group, .. } => group,
        }
    }

    /// What the group holds of it, about.
    pub(in crate::coordinator) fn held_bytes(&self) -> usize {
        match self {
            ShareRecord::Member { value: Some(value), .. } => value.held_bytes(),
            ShareRecord::Target { value: Some(value), .. } => PARTITION_BYTES * count(value),
            ShareRecord::Position { value: Some(value), .. } => PARTITION_BYTES * count(&value.assigned),
            ShareRecord::States { value: Some(value), .. } => {
                let partitions = value.initialized.values().map(|named| named.partitions.len());
                PARTITION_BYTES * partitions.sum::<usize>()
            }
            _ => 0,
        }
    }

    pub(in crate::coordinator) fn encode(&self) -> KeyValue {
        match self {
            ShareRecord::Member { group, member, value } => KeyValue {
                key: key(MEMBER_KEY, group, Some(member)),
                value: value.as_ref().map(|value| encode_member(value)),
            },
            ShareRecord::Group { group, value } => {
                KeyValue { key: key(GROUP_KEY, group, None), value: value.as_ref().map(encode_group) }
            }
            ShareRecord::TargetEpoch { group, value } => KeyValue {
                key: key(TARGET_EPOCH_KEY, group, None),
                value: value.as_ref().map(encode_target_epoch),
            },
            ShareRecord::Target { group, member, value } => KeyValue {
                key: key(TARGET_KEY, group, Some(member)),
                value: value.as_ref().map(encode_target),
            },
            ShareRecord::Position { group, member, value } => KeyValue {
                key: key(POSITION_KEY, group, Some(member)),
                value: value.as_ref().map(|value| encode_position(value)),
            },
            ShareRecord::States { group, value } => KeyValue {
                key: key(STATE_KEY, group, None),
                value: value.as_ref().map(|value| encode_states(value)),
            },
        }
    }

    /// Whether a key of this version is a share group's.
    pub(in crate::coordinator) fn is_key(version: i16) -> bool {
        matches!(version, MEMBER_KEY..=STATE_KEY)
    }

    /// `key` stands behind its version, which [`ShareRecord::is_key`] knows.
    pub(in crate::coordinator) fn decode(
        version: i16,
        key: &mut Reader<'_>,
        value: Option<&[u8]>,
    ) -> Result<ShareRecord, RecordError> {
        let group = key.string()?;
        let mut value = value.map(|value| open(version, value)).transpose()?;
        Ok(match version {
            MEMBER_KEY => ShareRecord::Member {
                group,
                member: key.string()?,
                value: value.as_mut().map(decode_member).transpose()?.map(Box::new),
            },
            GROUP_KEY => ShareRecord::Group { group, value: value.as_mut().map(decode_group).transpose()? },
            TARGET_EPOCH_KEY => ShareRecord::TargetEpoch {
                group,
                value: value.as_mut().map(decode_target_epoch).transpose()?,
            },
            TARGET_KEY => ShareRecord::Target {
                group,
                member: key.string()?,
                value: value.as_mut().map(decode_target).transpose()?,
            },
            POSITION_KEY => ShareRecord::Position {
                group,
                member: key.string()?,
                value: value.as_mut().map(decode_position).transpose()?.map(Box::new),
            },
            STATE_KEY => ShareRecord::States {
                group,
                value: value.as_mut().map(decode_states).transpose()?.map(Box::new),
            },
            other => return Err(RecordError::UnknownKey(other)),
        })
    }
}

fn key(version: i16, group: &StrBytes, member: Option<&StrBytes>) -> Bytes {
    let mut writer = Writer::new(version);
    writer.string(group);
    if let Some(member) = member {
        writer.string(member);
    }
    writer.finish()
}

fn open(key: i16, value: &[u8]) -> Result<Reader<'_>, RecordError> {
    let mut reader = Reader::new(value);
    let version = reader.i16()?;
    if version != VALUE_VERSION {
        return Err(RecordError::UnknownValue { key, value: version });
    }
    reader.set_flexible(true);
    Ok(reader)
}

fn encode_member(value: &MemberMetadata) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.compact_nullable_string(value.rack_id.as_deref());
    writer.compact_string(&value.client_id).compact_string(&value.client_host);
    writer.compact_count(Some(value.topic_names.len()));
    for name in &value.topic_names {
        writer.compact_string(name);
    }
    writer.tagged_fields(&[]);
    writer.finish()
}

fn decode_member(reader: &mut Reader<'_>) -> Result<MemberMetadata, Malformed> {
    let rack_id = reader.nullable_string()?;
    let (client_id, client_host) = (reader.string()?, reader.string()?);
    let topic_names = (0..reader.count()?).map(|_| reader.string()).collect::<Result<_, _>>()?;
    reader.tagged_fields(|_, _| {})?;
    Ok(MemberMetadata { rack_id, client_id, client_host, topic_names })
}

fn encode_group(value: &GroupEpoch) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.i32(value.epoch.0).i64(value.metadata_hash).tagged_fields(&[]);
    writer.finish()
}

fn decode_group(reader: &mut Reader<'_>) -> Result<GroupEpoch, Malformed> {
    let (epoch, metadata_hash) = (Epoch(reader.i32()?), reader.i64()?);
    reader.tagged_fields(|_, _| {})?;
    Ok(GroupEpoch { epoch, metadata_hash })
}

fn encode_target_epoch(value: &TargetEpoch) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.i32(value.epoch.0);
    match value.at {
        Timestamp(0) => writer.tagged_fields(&[]),
        Timestamp(at) => writer.tagged_fields(&[(AT_TAG, &at.to_be_bytes())]),
    };
    writer.finish()
}

fn decode_target_epoch(reader: &mut Reader<'_>) -> Result<TargetEpoch, Malformed> {
    let epoch = Epoch(reader.i32()?);
    let mut at = Timestamp(0);
    reader.tagged_fields(|tag, bytes| {
        if let (AT_TAG, Ok(bytes)) = (tag, <[u8; 8]>::try_from(bytes)) {
            at = Timestamp(i64::from_be_bytes(bytes));
        }
    })?;
    Ok(TargetEpoch { epoch, at })
}

fn encode_target(value: &Partitions) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    write_topics(&mut writer, value);
    writer.tagged_fields(&[]);
    writer.finish()
}

fn decode_target(reader: &mut Reader<'_>) -> Result<Partitions, Malformed> {
    let topics = read_topics(reader)?;
    reader.tagged_fields(|_, _| {})?;
    Ok(topics)
}

fn encode_position(value: &Position) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.i32(value.epoch.0).i32(value.previous_epoch.0).i8(STABLE);
    write_topics(&mut writer, &value.assigned);
    writer.tagged_fields(&[]);
    writer.finish()
}

fn decode_position(reader: &mut Reader<'_>) -> Result<Position, Malformed> {
    let (epoch, previous_epoch) = (Epoch(reader.i32()?), Epoch(reader.i32()?));
    reader.i8()?;
    let assigned = read_topics(reader)?;
    reader.tagged_fields(|_, _| {})?;
    Ok(Position { epoch, previous_epoch, assigned })
}

fn write_topics(writer: &mut Writer, topics: &Partitions) {
    writer.compact_count(Some(topics.len()));
    for (topic, partitions) in topics {
        writer.topic_id(*topic);
        write_partitions(writer, partitions);
        writer.tagged_fields(&[]);
    }
}

fn read_topics(reader: &mut Reader<'_>) -> Result<Partitions, Malformed> {
    let mut topics = Partitions::new();
    for _ in 0..reader.count()? {
        let (topic, partitions) = (reader.topic_id()?, read_partitions(reader)?);
        reader.tagged_fields(|_, _| {})?;
        if !partitions.is_empty() {
            topics.insert(topic, partitions);
        }
    }
    Ok(topics)
}

fn write_partitions(writer: &mut Writer, partitions: &BTreeSet<PartitionIndex>) {
    writer.compact_count(Some(partitions.len()));
    for partition in partitions {
        writer.i32(partition.0);
    }
}

fn read_partitions(reader: &mut Reader<'_>) -> Result<BTreeSet<PartitionIndex>, Malformed> {
    (0..reader.count()?).map(|_| reader.i32().map(PartitionIndex)).collect()
}

fn encode_states(value: &States) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    for topics in [&value.initializing, &value.initialized] {
        writer.compact_count(Some(topics.len()));
        for (topic, named) in topics {
            writer.topic_id(*topic).compact_string(&named.name);
            write_partitions(&mut writer, &named.partitions);
            writer.tagged_fields(&[]);
        }
    }
    writer.compact_count(Some(value.deleting.len()));
    for (topic, name) in &value.deleting {
        writer.topic_id(*topic).compact_string(name).tagged_fields(&[]);
    }
    writer.tagged_fields(&[]);
    writer.finish()
}

fn decode_states(reader: &mut Reader<'_>) -> Result<States, Malformed> {
    let (initializing, initialized) = (read_named(reader)?, read_named(reader)?);
    let mut deleting = BTreeMap::new();
    for _ in 0..reader.count()? {
        deleting.insert(reader.topic_id()?, reader.string()?);
        reader.tagged_fields(|_, _| {})?;
    }
    reader.tagged_fields(|_, _| {})?;
    Ok(States { initializing, initialized, deleting })
}

fn read_named(reader: &mut Reader<'_>) -> Result<BTreeMap<TopicId, NamedPartitions>, Malformed> {
    let mut topics = BTreeMap::new();
    for _ in 0..reader.count()? {
        let topic = reader.topic_id()?;
        let named = NamedPartitions { name: reader.string()?, partitions: read_partitions(reader)? };
        reader.tagged_fields(|_, _| {})?;
        topics.insert(topic, named);
    }
    Ok(topics)
}
