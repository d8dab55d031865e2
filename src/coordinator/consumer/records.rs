//! The records of consumer groups in `__consumer_offsets`, byte for byte as Kafka 4.4 writes them (the schemas
//! `ConsumerGroup*Key` and `ConsumerGroup*Value` of its group coordinator).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::super::codec::{Malformed, Reader, Writer};
use super::super::interface::KeyValue;
use super::super::member::Protocol;
use super::super::records::RecordError;
use super::super::room::{MEMBER_BYTES, NAME_BYTES, PARTITION_BYTES};
use super::member::{
    ClassicMetadata, Epoch, MemberMetadata, MemberState, Owned, Partitions, Position, partitions_of,
};
use crate::base::PartitionIndex;
use crate::base::clock::Timestamp;

const GROUP_KEY: i16 = 3;
/// Kafka before 4.1 kept the partitions of the subscribed topics; later ones only delete it.
const PARTITION_METADATA_KEY: i16 = 4;
const MEMBER_KEY: i16 = 5;
const TARGET_EPOCH_KEY: i16 = 6;
const TARGET_KEY: i16 = 7;
const POSITION_KEY: i16 = 8;
const REGEX_KEY: i16 = 16;
/// All values have this version, which is flexible; the keys are not.
const VALUE_VERSION: i16 = 0;

/// A change of a consumer group. A value that is not there takes the thing away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConsumerRecord {
    Group {
        group: StrBytes,
        value: Option<GroupEpoch>,
    },
    /// Whether there is a value; what is in it is of no use any more.
    PartitionMetadata {
        group: StrBytes,
        is_there: bool,
    },
    Member {
        group: StrBytes,
        member: StrBytes,
        value: Option<Box<MemberMetadata>>,
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
    Regex {
        group: StrBytes,
        regex: StrBytes,
        value: Option<ResolvedRegex>,
    },
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

/// The topics that a regular expression stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolvedRegex {
    pub topics: BTreeSet<StrBytes>,
    /// The version of the cluster's image that it was matched with.
    pub version: i64,
    pub at: Timestamp,
}

impl ConsumerRecord {
    pub fn is_tombstone(&self) -> bool {
        match self {
            ConsumerRecord::Group { value, .. } => value.is_none(),
            ConsumerRecord::PartitionMetadata { is_there, .. } => !is_there,
            ConsumerRecord::Member { value, .. } => value.is_none(),
            ConsumerRecord::TargetEpoch { value, .. } => value.is_none(),
            ConsumerRecord::Target { value, .. } => value.is_none(),
            ConsumerRecord::Position { value, .. } => value.is_none(),
            ConsumerRecord::Regex { value, .. } => value.is_none(),
        }
    }

    pub fn group(&self) -> &StrBytes {
        match self {
            ConsumerRecord::Group { group, .. }
            | ConsumerRecord::PartitionMetadata { group, .. }
            | ConsumerRecord::Member { group, .. }
            | ConsumerRecord::TargetEpoch { group, .. }
            | ConsumerRecord::Target { group, .. }
            | ConsumerRecord::Position { group, .. }
            | ConsumerRecord::Regex { group, .. } => group,
        }
    }

    /// What it makes the coordinator hold, about.
    pub(in crate::coordinator) fn held_bytes(&self) -> usize {
        match self {
            ConsumerRecord::Member { value: Some(metadata), .. } => MEMBER_BYTES + metadata.held_bytes(),
            ConsumerRecord::Target { value: Some(target), .. } => PARTITION_BYTES * partitions_of(target),
            ConsumerRecord::Position { value: Some(position), .. } => {
                let owned = position.assigned.values().chain(position.revoking.values());
                PARTITION_BYTES * owned.map(BTreeMap::len).sum::<usize>()
            }
            ConsumerRecord::Regex { value: Some(resolved), .. } => {
                resolved.topics.iter().map(|name| NAME_BYTES + name.len()).sum()
            }
            _ => 0,
        }
    }

    pub(in crate::coordinator) fn encode(&self) -> KeyValue {
        match self {
            ConsumerRecord::Group { group, value } => {
                KeyValue { key: key(GROUP_KEY, group, None), value: value.as_ref().map(encode_group) }
            }
            ConsumerRecord::PartitionMetadata { group, is_there } => {
                assert!(!is_there, "only the deletion is ever written");
                KeyValue { key: key(PARTITION_METADATA_KEY, group, None), value: None }
            }
            ConsumerRecord::Member { group, member, value } => KeyValue {
                key: key(MEMBER_KEY, group, Some(member)),
                value: value.as_ref().map(|value| encode_member(value)),
            },
            ConsumerRecord::TargetEpoch { group, value } => KeyValue {
                key: key(TARGET_EPOCH_KEY, group, None),
                value: value.as_ref().map(encode_target_epoch),
            },
            ConsumerRecord::Target { group, member, value } => KeyValue {
                key: key(TARGET_KEY, group, Some(member)),
                value: value.as_ref().map(encode_target),
            },
            ConsumerRecord::Position { group, member, value } => KeyValue {
                key: key(POSITION_KEY, group, Some(member)),
                value: value.as_ref().map(|value| encode_position(value)),
            },
            ConsumerRecord::Regex { group, regex, value } => {
                KeyValue { key: key(REGEX_KEY, group, Some(regex)), value: value.as_ref().map(encode_regex) }
            }
        }
    }

    /// `key` stands behind its version.
    pub(in crate::coordinator) fn decode(
        version: i16,
        key: &mut Reader<'_>,
        value: Option<&[u8]>,
    ) -> Result<ConsumerRecord, RecordError> {
        if !matches!(version, GROUP_KEY..=POSITION_KEY | REGEX_KEY) {
            return Err(RecordError::UnknownKey(version));
        }
        let group = key.string()?;
        let mut value = value.map(|value| open(version, value)).transpose()?;
        Ok(match version {
            GROUP_KEY => {
                ConsumerRecord::Group { group, value: value.as_mut().map(decode_group).transpose()? }
            }
            PARTITION_METADATA_KEY => ConsumerRecord::PartitionMetadata { group, is_there: value.is_some() },
            MEMBER_KEY => ConsumerRecord::Member {
                group,
                member: key.string()?,
                value: value.as_mut().map(decode_member).transpose()?.map(Box::new),
            },
            TARGET_EPOCH_KEY => ConsumerRecord::TargetEpoch {
                group,
                value: value.as_mut().map(decode_target_epoch).transpose()?,
            },
            TARGET_KEY => ConsumerRecord::Target {
                group,
                member: key.string()?,
                value: value.as_mut().map(decode_target).transpose()?,
            },
            POSITION_KEY => ConsumerRecord::Position {
                group,
                member: key.string()?,
                value: value.as_mut().map(decode_position).transpose()?.map(Box::new),
            },
            _ => ConsumerRecord::Regex {
                group,
                regex: key.string()?,
                value: value.as_mut().map(decode_regex).transpose()?,
            },
        })
    }
}

fn key(version: i16, group: &StrBytes, more: Option<&StrBytes>) -> Bytes {
    let mut writer = Writer::new(version);
    writer.string(group);
    if let Some(more) = more {
        writer.string(more);
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

fn encode_group(value: &GroupEpoch) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.i32(value.epoch.0);
    tagged_i64(&mut writer, value.metadata_hash);
    writer.finish()
}

fn decode_group(reader: &mut Reader<'_>) -> Result<GroupEpoch, Malformed> {
    let epoch = Epoch(reader.i32()?);
    Ok(GroupEpoch { epoch, metadata_hash: read_tagged_i64(reader)? })
}

fn encode_target_epoch(value: &TargetEpoch) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.i32(value.epoch.0);
    tagged_i64(&mut writer, value.at.0);
    writer.finish()
}

fn decode_target_epoch(reader: &mut Reader<'_>) -> Result<TargetEpoch, Malformed> {
    let epoch = Epoch(reader.i32()?);
    Ok(TargetEpoch { epoch, at: Timestamp(read_tagged_i64(reader)?) })
}

/// A number under tag 0 that is left out when it is 0.
fn tagged_i64(writer: &mut Writer, value: i64) {
    match value {
        0 => writer.tagged_fields(&[]),
        _ => writer.tagged_fields(&[(0, &value.to_be_bytes())]),
    };
}

fn read_tagged_i64(reader: &mut Reader<'_>) -> Result<i64, Malformed> {
    let mut value = 0;
    reader.tagged_fields(|tag, bytes| {
        if let (0, Ok(bytes)) = (tag, <[u8; 8]>::try_from(bytes)) {
            value = i64::from_be_bytes(bytes);
        }
    })?;
    Ok(value)
}

fn encode_member(value: &MemberMetadata) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.compact_nullable_string(value.instance_id.as_deref());
    writer.compact_nullable_string(value.rack_id.as_deref());
    writer.compact_string(&value.client_id).compact_string(&value.client_host);
    writer.compact_count(Some(value.topic_names.len()));
    for name in &*value.topic_names {
        writer.compact_string(name);
    }
    writer.compact_string(&value.topic_regex).i32(value.rebalance_timeout_ms);
    writer.compact_nullable_string(value.assignor.as_deref());
    match &value.classic {
        // To leave it out would mean an empty one: null is not the field's default.
        None => writer.tagged_fields(&[(0, &[NULL_STRUCT])]),
        Some(classic) => writer.tagged_fields(&[(0, &encode_classic(classic))]),
    };
    writer.finish()
}

/// What leads a nullable structure in a tagged field.
const NULL_STRUCT: u8 = 0;
const PRESENT_STRUCT: i8 = 1;

fn encode_classic(classic: &ClassicMetadata) -> Bytes {
    let mut writer = Writer::part();
    writer.i8(PRESENT_STRUCT).i32(classic.session_timeout_ms).compact_count(Some(classic.protocols.len()));
    for protocol in &classic.protocols {
        writer.compact_string(&protocol.name).compact_bytes(&protocol.metadata).tagged_fields(&[]);
    }
    writer.tagged_fields(&[]);
    writer.finish()
}

fn decode_member(reader: &mut Reader<'_>) -> Result<MemberMetadata, Malformed> {
    let instance_id = reader.nullable_string()?;
    let rack_id = reader.nullable_string()?;
    let client_id = reader.string()?;
    let client_host = reader.string()?;
    let topic_names = (0..reader.count()?).map(|_| reader.string()).collect::<Result<BTreeSet<_>, _>>()?;
    let topic_regex = reader.nullable_string()?.unwrap_or_default();
    let rebalance_timeout_ms = reader.i32()?;
    let assignor = reader.nullable_string()?;
    let mut classic = Ok(None);
    reader.tagged_fields(|tag, bytes| {
        if tag == 0 {
            classic = decode_classic(bytes);
        }
    })?;
    Ok(MemberMetadata {
        instance_id,
        rack_id,
        client_id,
        client_host,
        topic_names: topic_names.into_iter().collect(),
        topic_regex,
        rebalance_timeout_ms,
        assignor,
        classic: classic?,
    })
}

fn decode_classic(bytes: &[u8]) -> Result<Option<ClassicMetadata>, Malformed> {
    let mut reader = Reader::new(bytes);
    reader.set_flexible(true);
    if reader.i8()? != PRESENT_STRUCT {
        return Ok(None);
    }
    let session_timeout_ms = reader.i32()?;
    let mut protocols = Vec::new();
    for _ in 0..reader.count()? {
        protocols.push(Protocol { name: reader.string()?, metadata: reader.bytes()? });
        reader.tagged_fields(|_, _| {})?;
    }
    reader.tagged_fields(|_, _| {})?;
    Ok(Some(ClassicMetadata { session_timeout_ms, protocols }))
}

fn encode_target(value: &Partitions) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.compact_count(Some(value.len()));
    for (topic, partitions) in value {
        writer.topic_id(*topic).compact_count(Some(partitions.len()));
        for partition in partitions {
            writer.i32(partition.0);
        }
        writer.tagged_fields(&[]);
    }
    writer.tagged_fields(&[]);
    writer.finish()
}

fn decode_target(reader: &mut Reader<'_>) -> Result<Partitions, Malformed> {
    let mut target = Partitions::new();
    for _ in 0..reader.count()? {
        let topic = reader.topic_id()?;
        let partitions = (0..reader.count()?)
            .map(|_| reader.i32().map(PartitionIndex))
            .collect::<Result<BTreeSet<_>, _>>()?;
        reader.tagged_fields(|_, _| {})?;
        if !partitions.is_empty() {
            target.insert(topic, partitions);
        }
    }
    reader.tagged_fields(|_, _| {})?;
    Ok(target)
}

fn encode_position(value: &Position) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.i32(value.epoch.0).i32(value.previous_epoch.0).i8(value.state.code());
    for owned in [&value.assigned, &value.revoking] {
        writer.compact_count(Some(owned.len()));
        for (topic, partitions) in owned {
            writer.topic_id(*topic).compact_count(Some(partitions.len()));
            for partition in partitions.keys() {
                writer.i32(partition.0);
            }
            let mut epochs = Writer::part();
            epochs.compact_count(Some(partitions.len()));
            for epoch in partitions.values() {
                epochs.i32(epoch.0);
            }
            writer.tagged_fields(&[(0, &epochs.finish())]);
        }
    }
    writer.tagged_fields(&[]);
    writer.finish()
}

fn decode_position(reader: &mut Reader<'_>) -> Result<Position, Malformed> {
    let epoch = Epoch(reader.i32()?);
    let previous_epoch = Epoch(reader.i32()?);
    let state = MemberState::from_code(reader.i8()?);
    let assigned = decode_owned(epoch, reader)?;
    let revoking = decode_owned(epoch, reader)?;
    reader.tagged_fields(|_, _| {})?;
    Ok(Position { epoch, previous_epoch, state, assigned, revoking })
}

/// Before Kafka 4.3 the epochs were not kept: the member's own stands in.
fn decode_owned(member: Epoch, reader: &mut Reader<'_>) -> Result<Owned, Malformed> {
    let mut owned = Owned::new();
    for _ in 0..reader.count()? {
        let topic = reader.topic_id()?;
        let partitions =
            (0..reader.count()?).map(|_| reader.i32().map(PartitionIndex)).collect::<Result<Vec<_>, _>>()?;
        let mut epochs = Ok(Vec::new());
        reader.tagged_fields(|tag, bytes| {
            if tag == 0 {
                epochs = decode_epochs(bytes);
            }
        })?;
        let epochs = epochs?.into_iter().map(Some).chain(std::iter::repeat(None));
        let partitions: BTreeMap<PartitionIndex, Epoch> = partitions
            .into_iter()
            .zip(epochs)
            .map(|(partition, epoch)| (partition, epoch.unwrap_or(member)))
            .collect();
        if !partitions.is_empty() {
            owned.insert(topic, partitions);
        }
    }
    Ok(owned)
}

fn decode_epochs(bytes: &[u8]) -> Result<Vec<Epoch>, Malformed> {
    let mut reader = Reader::new(bytes);
    reader.set_flexible(true);
    match reader.varint()?.checked_sub(1) {
        None => Ok(Vec::new()),
        Some(count) => (0..count).map(|_| reader.i32().map(Epoch)).collect(),
    }
}

fn encode_regex(value: &ResolvedRegex) -> Bytes {
    let mut writer = Writer::new(VALUE_VERSION);
    writer.compact_count(Some(value.topics.len()));
    for topic in &value.topics {
        writer.compact_string(topic);
    }
    writer.i64(value.version).i64(value.at.0).tagged_fields(&[]);
    writer.finish()
}

fn decode_regex(reader: &mut Reader<'_>) -> Result<ResolvedRegex, Malformed> {
    let topics = (0..reader.count()?).map(|_| reader.string()).collect::<Result<BTreeSet<_>, _>>()?;
    let (version, at) = (reader.i64()?, Timestamp(reader.i64()?));
    reader.tagged_fields(|_, _| {})?;
    Ok(ResolvedRegex { topics, version, at })
}

#[cfg(test)]
mod tests {
    use super::super::super::records::Record;
    use super::*;
    use crate::base::TopicId;

    fn text(text: &str) -> StrBytes {
        StrBytes::from_string(text.to_owned())
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn topic(number: u128) -> TopicId {
        TopicId(uuid::Uuid::from_u128(number))
    }

    fn names(names: &[&str]) -> BTreeSet<StrBytes> {
        names.iter().map(|name| text(name)).collect()
    }

    fn full_member() -> MemberMetadata {
        MemberMetadata {
            instance_id: Some(text("i1")),
            rack_id: Some(text("r1")),
            client_id: text("c"),
            client_host: text("/127.0.0.1"),
            topic_names: [text("a"), text("b")].into(),
            topic_regex: text("x.*"),
            rebalance_timeout_ms: 300_000,
            assignor: Some(text("range")),
            classic: Some(ClassicMetadata {
                session_timeout_ms: 45_000,
                protocols: vec![Protocol { name: text("range"), metadata: Bytes::from_static(&[0, 1, 2]) }],
            }),
        }
    }

    /// What the serializers of Apache Kafka 4.4.0 make of these values.
    fn golden() -> Vec<(ConsumerRecord, &'static str, &'static str)> {
        let (group, member) = (text("g1"), text("m-1"));
        let partitions = |list: &[(i32, i32)]| {
            list.iter().map(|(index, epoch)| (PartitionIndex(*index), Epoch(*epoch))).collect()
        };
        let position = Position {
            epoch: Epoch(7),
            previous_epoch: Epoch(6),
            state: MemberState::UnrevokedPartitions,
            assigned: Owned::from([(topic(1), partitions(&[(0, 5), (3, 7)]))]),
            revoking: Owned::from([(topic(2), partitions(&[(1, 7)]))]),
        };
        let bare = MemberMetadata {
            client_id: text("c"),
            client_host: text("/127.0.0.1"),
            ..MemberMetadata::default()
        };
        let target = Partitions::from([(topic(1), BTreeSet::from([PartitionIndex(0), PartitionIndex(3)]))]);
        vec![
            (
                ConsumerRecord::Group {
                    group: group.clone(),
                    value: Some(GroupEpoch { epoch: Epoch(7), metadata_hash: 0x1122_3344_5566_7788 }),
                },
                "000300026731",
                "0000000000070100081122334455667788",
            ),
            (
                ConsumerRecord::Group {
                    group: group.clone(),
                    value: Some(GroupEpoch { epoch: Epoch(7), metadata_hash: 0 }),
                },
                "000300026731",
                "00000000000700",
            ),
            (
                ConsumerRecord::Member {
                    group: group.clone(),
                    member: member.clone(),
                    value: Some(Box::new(full_member())),
                },
                "00050002673100036d2d31",
                "000003693103723102630b2f3132372e302e302e31030261026204782e2a000493e00672616e6765010012010000afc8020672616e6765040001020000",
            ),
            (
                ConsumerRecord::Member {
                    group: group.clone(),
                    member: member.clone(),
                    value: Some(Box::new(bare)),
                },
                "00050002673100036d2d31",
                "0000000002630b2f3132372e302e302e310101ffffffff0001000100",
            ),
            (
                ConsumerRecord::TargetEpoch {
                    group: group.clone(),
                    value: Some(TargetEpoch { epoch: Epoch(7), at: Timestamp(1_700_000_000_000) }),
                },
                "000600026731",
                "0000000000070100080000018bcfe56800",
            ),
            (
                ConsumerRecord::Target { group: group.clone(), member: member.clone(), value: Some(target) },
                "00070002673100036d2d31",
                "000002000000000000000000000000000000010300000000000000030000",
            ),
            (
                ConsumerRecord::Regex {
                    group: group.clone(),
                    regex: text("x.*"),
                    value: Some(ResolvedRegex {
                        topics: names(&["xa", "xb"]),
                        version: 12,
                        at: Timestamp(1_700_000_000_000),
                    }),
                },
                "0010000267310003782e2a",
                "000003037861037862000000000000000c0000018bcfe5680000",
            ),
            (
                ConsumerRecord::Position { group, member, value: Some(Box::new(position)) },
                "00080002673100036d2d31",
                "00000000000700000006010200000000000000000000000000000001030000000000000003010009030000000500000007020000000000000000000000000000000202000000010100050200000007\
                 00",
            ),
        ]
    }

    #[test]
    fn consumer_records_are_written_as_kafka_writes_them() {
        for (record, key, value) in golden() {
            let encoded = record.encode();
            assert_eq!(hex(&encoded.key), key, "{record:?}");
            assert_eq!(encoded.value.as_deref().map(hex).as_deref(), Some(value.replace(' ', "").as_str()));
            let read = Record::decode(&encoded.key, encoded.value.as_deref());
            assert_eq!(read, Ok(Record::Consumer(record)));
        }
    }

    #[test]
    fn tombstones_of_consumer_records_are_read() {
        for (record, ..) in golden() {
            let key = record.encode().key;
            let Ok(Record::Consumer(read)) = Record::decode(&key, None) else { panic!("{record:?}") };
            assert_eq!(read.encode(), KeyValue { key, value: None });
        }
        let legacy = ConsumerRecord::PartitionMetadata { group: text("g1"), is_there: true };
        let read = Record::decode(&[0, 4, 0, 2, b'g', b'1'], Some(&[0, 0, 1, 0]));
        assert_eq!(read, Ok(Record::Consumer(legacy)));
    }

    #[test]
    fn partitions_without_epochs_take_the_members() {
        let golden = "00000000000700000006010200000000000000000000000000000001030000000000000003010009030000000500000007020000000000000000000000000000000202000000010000";
        let value: Vec<u8> = (0..golden.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&golden[at..at + 2], 16).unwrap())
            .collect();
        let key = [0, 8, 0, 2, b'g', b'1', 0, 3, b'm', b'-', b'1'];
        let Ok(Record::Consumer(ConsumerRecord::Position { value: Some(position), .. })) =
            Record::decode(&key, Some(&value))
        else {
            panic!("it is Kafka's")
        };
        assert_eq!(position.revoking[&topic(2)][&PartitionIndex(1)], Epoch(7));
        assert_eq!(position.assigned[&topic(1)][&PartitionIndex(0)], Epoch(5));
    }

    #[test]
    fn cut_off_records_are_refused() {
        for (record, ..) in golden() {
            let encoded = record.encode();
            let value = encoded.value.expect("a value");
            for length in 0..value.len() {
                assert!(Record::decode(&encoded.key, Some(&value[..length])).is_err(), "{record:?} {length}");
            }
        }
    }
}
