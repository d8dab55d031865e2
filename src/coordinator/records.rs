//! The records of `__consumer_offsets`, byte for byte as Kafka 4.x writes them: key and value begin with
//! the version of their schema; a key's version also says what it is the key of.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::codec::{Malformed, Reader, Writer};
use super::consumer::ConsumerRecord;
use super::interface::KeyValue;
use super::share_group::ShareRecord;
use crate::base::clock::Timestamp;
use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicId};

const OFFSET_KEY_VERSION: i16 = 1;
const GROUP_KEY_VERSION: i16 = 2;
/// The first flexible version; its topic id is a tagged field.
const OFFSET_VALUE_VERSION: i16 = 4;
const TOPIC_ID_TAG: u32 = 0;
/// The only version with an expiry of its own (`retention_time_ms` of OffsetCommit 2–4).
const OFFSET_VALUE_VERSION_WITH_EXPIRY: i16 = 1;
/// The last version that is not flexible: Kafka writes it as long as there is no tagged field.
const GROUP_VALUE_VERSION: i16 = 3;
const VALUE_VERSION_MAX: i16 = 4;
const FIRST_FLEXIBLE_VERSION: i16 = 4;

/// A record that the coordinator understands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    Offset { key: OffsetKey, value: Option<OffsetValue> },
    Group { group: StrBytes, value: Option<GroupValue> },
    Consumer(ConsumerRecord),
    Share(ShareRecord),
}

/// Whose offset it is (`OffsetCommitKey`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OffsetKey {
    pub group: StrBytes,
    pub topic: StrBytes,
    pub partition: PartitionIndex,
}

/// A committed offset (`OffsetCommitValue`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OffsetValue {
    pub offset: Offset,
    pub leader_epoch: LeaderEpoch,
    pub metadata: StrBytes,
    pub committed_at: Timestamp,
    /// Only old clients set it; then it alone decides when the offset expires.
    pub expires_at: Option<Timestamp>,
    /// Which topic of the name it is of; zero where the record does not say.
    pub topic_id: TopicId,
}

/// A generation of a group (`GroupMetadataValue`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupValue {
    /// Empty for a group that never had members.
    pub protocol_type: StrBytes,
    pub generation: i32,
    pub protocol: Option<StrBytes>,
    pub leader: Option<StrBytes>,
    pub state_since: Option<Timestamp>,
    pub members: Vec<MemberValue>,
}

/// A member of that generation. Times in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberValue {
    pub id: StrBytes,
    pub instance_id: Option<StrBytes>,
    pub client_id: StrBytes,
    pub client_host: StrBytes,
    pub rebalance_timeout_ms: i32,
    pub session_timeout_ms: i32,
    pub subscription: Bytes,
    pub assignment: Bytes,
}

/// Why a record was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// Of a streams group, or of a later Kafka: skipped.
    #[error("key version {0} is not a consumer group's or a share group's")]
    UnknownKey(i16),
    #[error("value version {value} under key version {key} is not known")]
    UnknownValue { key: i16, value: i16 },
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl Record {
    pub fn encode(&self) -> KeyValue {
        match self {
            Record::Offset { key, value } => {
                KeyValue { key: encode_offset_key(key), value: value.as_ref().map(encode_offset_value) }
            }
            Record::Group { group, value } => {
                let mut key = Writer::new(GROUP_KEY_VERSION);
                key.string(group);
                KeyValue { key: key.finish(), value: value.as_ref().map(encode_group_value) }
            }
            Record::Consumer(record) => record.encode(),
            Record::Share(record) => record.encode(),
        }
    }

    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Record, RecordError> {
        let mut key_reader = Reader::new(key);
        let key_version = key_reader.i16()?;
        match key_version {
            0 | OFFSET_KEY_VERSION => {
                let key = OffsetKey {
                    group: key_reader.string()?,
                    topic: key_reader.string()?,
                    partition: PartitionIndex(key_reader.i32()?),
                };
                let value = value.map(|value| decode_offset_value(key_version, value)).transpose()?;
                Ok(Record::Offset { key, value })
            }
            GROUP_KEY_VERSION => {
                let group = key_reader.string()?;
                let value = value.map(|value| decode_group_value(key_version, value)).transpose()?;
                Ok(Record::Group { group, value })
            }
            _ if ShareRecord::is_key(key_version) => {
                ShareRecord::decode(key_version, &mut key_reader, value).map(Record::Share)
            }
            _ => ConsumerRecord::decode(key_version, &mut key_reader, value).map(Record::Consumer),
        }
    }

    /// The group it belongs to.
    pub fn group(&self) -> &StrBytes {
        match self {
            Record::Offset { key, .. } => &key.group,
            Record::Group { group, .. } => group,
            Record::Consumer(record) => record.group(),
            Record::Share(record) => record.group(),
        }
    }
}

fn encode_offset_key(key: &OffsetKey) -> Bytes {
    let mut writer = Writer::new(OFFSET_KEY_VERSION);
    writer.string(&key.group).string(&key.topic).i32(key.partition.0);
    writer.finish()
}

fn encode_offset_value(value: &OffsetValue) -> Bytes {
    match value.expires_at {
        None => {
            let mut writer = Writer::new(OFFSET_VALUE_VERSION);
            writer.i64(value.offset.0).i32(value.leader_epoch.0);
            writer.compact_string(&value.metadata).i64(value.committed_at.0);
            let topic_id = value.topic_id.0.as_bytes();
            match value.topic_id.is_zero() {
                true => writer.tagged_fields(&[]),
                false => writer.tagged_fields(&[(TOPIC_ID_TAG, topic_id)]),
            };
            writer.finish()
        }
        Some(expires_at) => {
            let mut writer = Writer::new(OFFSET_VALUE_VERSION_WITH_EXPIRY);
            writer.i64(value.offset.0);
            writer.string(&value.metadata).i64(value.committed_at.0).i64(expires_at.0);
            writer.finish()
        }
    }
}

fn encode_group_value(value: &GroupValue) -> Bytes {
    let mut writer = Writer::new(GROUP_VALUE_VERSION);
    writer.string(&value.protocol_type).i32(value.generation);
    writer.nullable_string(value.protocol.as_deref()).nullable_string(value.leader.as_deref());
    writer.i64(value.state_since.unwrap_or(Timestamp::NONE).0);
    writer.i32(i32::try_from(value.members.len()).expect("a group's size is bounded by an i32"));
    for member in &value.members {
        writer.string(&member.id).nullable_string(member.instance_id.as_deref());
        writer.string(&member.client_id).string(&member.client_host);
        writer.i32(member.rebalance_timeout_ms).i32(member.session_timeout_ms);
        writer.bytes(&member.subscription).bytes(&member.assignment);
    }
    writer.finish()
}

/// Opens a value: its version, checked, and a reader behind it.
fn open(key_version: i16, value: &[u8]) -> Result<(i16, Reader<'_>), RecordError> {
    let mut reader = Reader::new(value);
    let version = reader.i16()?;
    if !(0..=VALUE_VERSION_MAX).contains(&version) {
        return Err(RecordError::UnknownValue { key: key_version, value: version });
    }
    reader.set_flexible(version >= FIRST_FLEXIBLE_VERSION);
    Ok((version, reader))
}

fn decode_offset_value(key_version: i16, value: &[u8]) -> Result<OffsetValue, RecordError> {
    let (version, mut reader) = open(key_version, value)?;
    let offset = Offset(reader.i64()?);
    let leader_epoch = if version >= 3 { LeaderEpoch(reader.i32()?) } else { LeaderEpoch::NONE };
    let metadata = reader.string()?;
    let committed_at = Timestamp(reader.i64()?);
    let expires_at = match version {
        OFFSET_VALUE_VERSION_WITH_EXPIRY => Some(Timestamp(reader.i64()?)).filter(|at| at.0 != -1),
        _ => None,
    };
    let mut topic_id = TopicId::ZERO;
    reader.tagged_fields(|tag, bytes| {
        if let (TOPIC_ID_TAG, Ok(id)) = (tag, <[u8; 16]>::try_from(bytes)) {
            topic_id = TopicId(uuid::Uuid::from_bytes(id));
        }
    })?;
    Ok(OffsetValue { offset, leader_epoch, metadata, committed_at, expires_at, topic_id })
}

fn decode_group_value(key_version: i16, value: &[u8]) -> Result<GroupValue, RecordError> {
    let (version, mut reader) = open(key_version, value)?;
    let protocol_type = reader.string()?;
    let generation = reader.i32()?;
    let protocol = reader.nullable_string()?;
    let leader = reader.nullable_string()?;
    let state_since = match version {
        2.. => Some(Timestamp(reader.i64()?)).filter(|at| at.0 != -1),
        _ => None,
    };
    let mut members = Vec::new();
    for _ in 0..reader.count()? {
        members.push(decode_member(version, &mut reader)?);
    }
    reader.tagged_fields(|_, _| {})?;
    Ok(GroupValue { protocol_type, generation, protocol, leader, state_since, members })
}

fn decode_member(version: i16, reader: &mut Reader<'_>) -> Result<MemberValue, RecordError> {
    let id = reader.string()?;
    let instance_id = if version >= 3 { reader.nullable_string()? } else { None };
    let client_id = reader.string()?;
    let client_host = reader.string()?;
    let rebalance_timeout_ms = if version >= 1 { reader.i32()? } else { -1 };
    let session_timeout_ms = reader.i32()?;
    let subscription = reader.bytes()?;
    let assignment = reader.bytes()?;
    reader.tagged_fields(|_, _| {})?;
    // Version 0 had one time-out for both.
    let rebalance_timeout_ms =
        if rebalance_timeout_ms == -1 { session_timeout_ms } else { rebalance_timeout_ms };
    Ok(MemberValue {
        id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> StrBytes {
        StrBytes::from_string(text.to_owned())
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn unhex(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
    }

    fn offset_value() -> OffsetValue {
        OffsetValue {
            offset: Offset(42),
            leader_epoch: LeaderEpoch(5),
            metadata: text("note"),
            committed_at: Timestamp(1_700_000_000_000),
            expires_at: None,
            topic_id: TopicId(uuid::Uuid::from_u128(1)),
        }
    }

    fn group_value() -> GroupValue {
        let member = |id: &str, instance_id: Option<&str>| MemberValue {
            id: text(id),
            instance_id: instance_id.map(text),
            client_id: text("c"),
            client_host: text("/127.0.0.1"),
            rebalance_timeout_ms: 300_000,
            session_timeout_ms: 45_000,
            subscription: Bytes::from_static(&[0, 1, 2]),
            assignment: Bytes::from_static(&[3]),
        };
        GroupValue {
            protocol_type: text("consumer"),
            generation: 3,
            protocol: Some(text("range")),
            leader: Some(text("m-1")),
            state_since: Some(Timestamp(1_700_000_000_001)),
            members: vec![member("m-1", Some("i1")), member("m-2", None)],
        }
    }

    // The bytes below are what the serializers of Apache Kafka 4.4.0 make of these values.
    const OFFSET_KEY: &str = "0001000267310004742dc3a400000007";
    const GROUP_KEY: &str = "000200026731";
    const OFFSET_VALUES: [&str; 5] = [
        "0000000000000000002a00046e6f74650000018bcfe56800",
        "0001000000000000002a00046e6f74650000018bcfe568000000018bcfe6ee9f",
        "0002000000000000002a00046e6f74650000018bcfe56800",
        "0003000000000000002a0000000500046e6f74650000018bcfe56800",
        "0004000000000000002a00000005056e6f74650000018bcfe5680001001000000000000000000000000000000001",
    ];
    const GROUP_VALUES: [&str; 5] = [
        "00000008636f6e73756d657200000003000572616e676500036d2d310000000200036d2d31000163000a2f3132372e302e302e310000afc800000003000102000000010300036d2d32000163000a2f3132372e302e302e310000afc8000000030001020000000103",
        "00010008636f6e73756d657200000003000572616e676500036d2d310000000200036d2d31000163000a2f3132372e302e302e31000493e00000afc800000003000102000000010300036d2d32000163000a2f3132372e302e302e31000493e00000afc8000000030001020000000103",
        "00020008636f6e73756d657200000003000572616e676500036d2d310000018bcfe568010000000200036d2d31000163000a2f3132372e302e302e31000493e00000afc800000003000102000000010300036d2d32000163000a2f3132372e302e302e31000493e00000afc8000000030001020000000103",
        "00030008636f6e73756d657200000003000572616e676500036d2d310000018bcfe568010000000200036d2d3100026931000163000a2f3132372e302e302e31000493e00000afc800000003000102000000010300036d2d32ffff000163000a2f3132372e302e302e31000493e00000afc8000000030001020000000103",
        "000409636f6e73756d6572000000030672616e6765046d2d310000018bcfe5680103046d2d3103693102630b2f3132372e302e302e31000493e00000afc804000102020300046d2d320002630b2f3132372e302e302e31000493e00000afc80400010202030000",
    ];

    fn offset_record(value: Option<OffsetValue>) -> Record {
        let key = OffsetKey { group: text("g1"), topic: text("t-ä"), partition: PartitionIndex(7) };
        Record::Offset { key, value }
    }

    #[test]
    fn offset_records_are_written_as_kafka_writes_them() {
        let record = offset_record(Some(offset_value())).encode();
        assert_eq!(hex(&record.key), OFFSET_KEY);
        assert_eq!(record.value.as_deref().map(hex).as_deref(), Some(OFFSET_VALUES[4]));

        let with_expiry = OffsetValue { expires_at: Some(Timestamp(1_700_000_099_999)), ..offset_value() };
        let record = offset_record(Some(with_expiry)).encode();
        assert_eq!(record.value.as_deref().map(hex).as_deref(), Some(OFFSET_VALUES[1]));

        let without_id = OffsetValue { topic_id: TopicId::ZERO, ..offset_value() };
        let record = offset_record(Some(without_id)).encode();
        let expected = "0004000000000000002a00000005056e6f74650000018bcfe5680000";
        assert_eq!(record.value.as_deref().map(hex).as_deref(), Some(expected));

        assert_eq!(offset_record(None).encode().value, None);
    }

    #[test]
    fn group_records_are_written_as_kafka_writes_them() {
        let record = Record::Group { group: text("g1"), value: Some(group_value()) }.encode();
        assert_eq!(hex(&record.key), GROUP_KEY);
        assert_eq!(record.value.as_deref().map(hex).as_deref(), Some(GROUP_VALUES[3]));

        let empty = GroupValue {
            protocol_type: StrBytes::new(),
            generation: 0,
            protocol: None,
            leader: None,
            state_since: None,
            members: Vec::new(),
        };
        let record = Record::Group { group: text("g1"), value: Some(empty) }.encode();
        let expected = "0003000000000000ffffffffffffffffffffffff00000000";
        assert_eq!(record.value.as_deref().map(hex).as_deref(), Some(expected));
    }

    #[test]
    fn every_version_of_kafkas_records_is_read() {
        for (version, bytes) in OFFSET_VALUES.iter().enumerate() {
            let read = Record::decode(&unhex(OFFSET_KEY), Some(&unhex(bytes)));
            let mut expected = offset_value();
            expected.expires_at = (version == 1).then_some(Timestamp(1_700_000_099_999));
            if version < 3 {
                expected.leader_epoch = LeaderEpoch::NONE;
            }
            if version < 4 {
                expected.topic_id = TopicId::ZERO;
            }
            assert_eq!(read, Ok(offset_record(Some(expected))), "version {version}");
        }
        for (version, bytes) in GROUP_VALUES.iter().enumerate() {
            let read = Record::decode(&unhex(GROUP_KEY), Some(&unhex(bytes)));
            let mut expected = group_value();
            for member in &mut expected.members {
                if version < 1 {
                    member.rebalance_timeout_ms = member.session_timeout_ms;
                }
                if version < 3 {
                    member.instance_id = None;
                }
            }
            if version < 2 {
                expected.state_since = None;
            }
            assert_eq!(
                read,
                Ok(Record::Group { group: text("g1"), value: Some(expected) }),
                "version {version}"
            );
        }
        // Key version 0 is that of Kafka 0.8.
        let old_key = OFFSET_KEY.replacen("0001", "0000", 1);
        assert_eq!(Record::decode(&unhex(&old_key), None), Ok(offset_record(None)));
    }

    #[test]
    fn records_of_other_group_kinds_and_of_later_versions_are_named() {
        assert_eq!(Record::decode(&[0, 9, 0, 0], None), Err(RecordError::UnknownKey(9)));
        assert_eq!(Record::decode(&[0xff, 0xff], None), Err(RecordError::UnknownKey(-1)));
        let result = Record::decode(&unhex(GROUP_KEY), Some(&[0, 5]));
        assert_eq!(result, Err(RecordError::UnknownValue { key: 2, value: 5 }));
    }

    #[test]
    fn truncated_records_are_refused_at_every_length() {
        for bytes in OFFSET_VALUES.iter().map(|bytes| (OFFSET_KEY, bytes)) {
            let value = unhex(bytes.1);
            for length in 0..value.len() {
                assert!(Record::decode(&unhex(bytes.0), Some(&value[..length])).is_err());
            }
        }
        for bytes in GROUP_VALUES {
            let value = unhex(bytes);
            for length in 0..value.len() {
                assert!(Record::decode(&unhex(GROUP_KEY), Some(&value[..length])).is_err());
            }
        }
        // A count of 2^31 - 1 members in 30 bytes allocates nothing.
        let value = unhex("0003000000000000ffffffffffffffffffffffff7fffffff0000");
        assert!(Record::decode(&unhex(GROUP_KEY), Some(&value)).is_err());
    }

    #[test]
    fn what_is_written_is_read_back() {
        for record in [
            offset_record(Some(offset_value())),
            offset_record(None),
            Record::Group { group: text(""), value: Some(group_value()) },
            Record::Group { group: text("ö"), value: None },
        ] {
            let encoded = record.encode();
            assert_eq!(Record::decode(&encoded.key, encoded.value.as_deref()), Ok(record));
        }
    }
}
