//! OffsetCommit and OffsetFetch with topic ids in place of names (version 10, KIP-848): their requests, which
//! kafka-protocol 0.18 has types for but does not decode. It does encode the responses.

use bytes::Bytes;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::{GroupId, OffsetCommitRequest, OffsetFetchRequest};
use kafka_protocol::protocol::{Request, StrBytes};

use super::guard;
use super::parts::read_string;
use super::read::{DecodeError, Reader};

/// The first version of OffsetCommit and OffsetFetch that names topics by id.
pub const FIRST_WITH_TOPIC_IDS: i16 = 10;

/// Every version that has topic ids is flexible.
const FLEXIBLE: bool = true;

/// Decodes OffsetCommit of any served version. Strings share the frame's memory.
pub fn offset_commit(version: i16, body: &Bytes) -> Result<OffsetCommitRequest, DecodeError> {
    decode(version, body, read_commit)
}

/// Decodes OffsetFetch of any served version. Strings share the frame's memory.
pub fn offset_fetch(version: i16, body: &Bytes) -> Result<OffsetFetchRequest, DecodeError> {
    decode(version, body, read_fetch)
}

/// The walk over the schema goes ahead of `read` also: it bounds the elements of the whole request.
fn decode<T: Request>(
    version: i16,
    body: &Bytes,
    read: fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    if version < FIRST_WITH_TOPIC_IDS {
        return guard::decode(version, body);
    }
    guard::check(T::KEY, version, body)?;
    read(&mut Reader::new(body))
}

fn read_commit(reader: &mut Reader<'_>) -> Result<OffsetCommitRequest, DecodeError> {
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(string(reader)?))
        .with_generation_id_or_member_epoch(reader.i32()?)
        .with_member_id(string(reader)?)
        .with_group_instance_id(read_string(reader, FLEXIBLE)?)
        .with_topics(array(reader, read_commit_topic)?);
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(request)
}

pub(super) fn read_commit_topic(reader: &mut Reader<'_>) -> Result<OffsetCommitRequestTopic, DecodeError> {
    let topic = OffsetCommitRequestTopic::default()
        .with_topic_id(reader.topic_id()?.0)
        .with_partitions(array(reader, read_commit_partition)?);
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(topic)
}

fn read_commit_partition(reader: &mut Reader<'_>) -> Result<OffsetCommitRequestPartition, DecodeError> {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(reader.i32()?)
        .with_committed_offset(reader.i64()?)
        .with_committed_leader_epoch(reader.i32()?)
        .with_committed_metadata(read_string(reader, FLEXIBLE)?);
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(partition)
}

fn read_fetch(reader: &mut Reader<'_>) -> Result<OffsetFetchRequest, DecodeError> {
    let request = OffsetFetchRequest::default()
        .with_groups(array(reader, read_fetch_group)?)
        .with_require_stable(reader.bool()?);
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(request)
}

fn read_fetch_group(reader: &mut Reader<'_>) -> Result<OffsetFetchRequestGroup, DecodeError> {
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(GroupId(string(reader)?))
        .with_member_id(read_string(reader, FLEXIBLE)?)
        .with_member_epoch(reader.i32()?)
        // Null asks for all topics.
        .with_topics(nullable_array(reader, read_fetch_topic)?);
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(group)
}

fn read_fetch_topic(reader: &mut Reader<'_>) -> Result<OffsetFetchRequestTopics, DecodeError> {
    let topic = OffsetFetchRequestTopics::default()
        .with_topic_id(reader.topic_id()?.0)
        .with_partition_indexes(array(reader, |reader| reader.i32())?);
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(topic)
}

pub(super) fn array<T>(
    reader: &mut Reader<'_>,
    element: fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    nullable_array(reader, element)?.ok_or(DecodeError::Null)
}

fn nullable_array<T>(
    reader: &mut Reader<'_>,
    element: fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Option<Vec<T>>, DecodeError> {
    // Every element here takes more than a byte; the walk has counted them exactly.
    let Some(count) = reader.count(FLEXIBLE, 1)? else { return Ok(None) };
    (0..count).map(|_| element(reader)).collect::<Result<Vec<T>, _>>().map(Some)
}

pub(super) fn string(reader: &mut Reader<'_>) -> Result<StrBytes, DecodeError> {
    read_string(reader, FLEXIBLE)?.ok_or(DecodeError::Null)
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut as _, BytesMut};
    use uuid::Uuid;

    use super::*;

    const ID: Uuid = Uuid::from_u128(0x5106_2a40_bd86_4bf5_ab19_ee57_d217_9db8);

    #[rustfmt::skip]
    fn commit_of_version_10() -> Bytes {
        let mut body = BytesMut::new();
        body.put_slice(b"\x02g\0\0\0\x07\x07member\x09instance");   // group, epoch 7, member, instance
        body.put_slice(b"\x02");                                    // one topic
        body.put_slice(ID.as_bytes());
        body.put_slice(b"\x03");                                    // two partitions
        body.put_slice(b"\0\0\0\x01\0\0\0\0\0\0\0\x05\0\0\0\x03\x05note\0");
        body.put_slice(b"\0\0\0\x02\0\0\0\0\0\0\0\x06\xff\xff\xff\xff\0\0");
        body.put_slice(b"\0\x01\x64\x02\xaa\xbb");                  // no tagged field, then one that is skipped
        body.freeze()
    }

    #[rustfmt::skip]
    fn fetch_of_version_10() -> Bytes {
        let mut body = BytesMut::new();
        body.put_slice(b"\x03\x02g\x07member\0\0\0\x07\x02");       // two groups; g, member, epoch 7, one topic
        body.put_slice(ID.as_bytes());
        body.put_slice(b"\x03\0\0\0\x01\0\0\0\x04\0\0");            // partitions 1 and 4
        body.put_slice(b"\x04all\0\xff\xff\xff\xff\0\0");           // all: no member, all topics
        body.put_slice(b"\x01\0");                                  // stable offsets only
        body.freeze()
    }

    #[test]
    fn commit_names_topics_by_id() {
        let request = offset_commit(10, &commit_of_version_10()).unwrap();
        let partition = |index, offset, epoch, note: Option<&'static str>| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(index)
                .with_committed_offset(offset)
                .with_committed_leader_epoch(epoch)
                .with_committed_metadata(note.map(StrBytes::from_static_str))
        };
        let topic = OffsetCommitRequestTopic::default()
            .with_topic_id(ID)
            .with_partitions(vec![partition(1, 5, 3, Some("note")), partition(2, 6, -1, None)]);
        let expected = OffsetCommitRequest::default()
            .with_group_id(GroupId(StrBytes::from_static_str("g")))
            .with_generation_id_or_member_epoch(7)
            .with_member_id(StrBytes::from_static_str("member"))
            .with_group_instance_id(Some(StrBytes::from_static_str("instance")))
            .with_topics(vec![topic]);
        assert_eq!(request, expected);
    }

    #[test]
    fn fetch_names_topics_by_id() {
        let request = offset_fetch(10, &fetch_of_version_10()).unwrap();
        let topic = OffsetFetchRequestTopics::default().with_topic_id(ID).with_partition_indexes(vec![1, 4]);
        let one = OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(StrBytes::from_static_str("g")))
            .with_member_id(Some(StrBytes::from_static_str("member")))
            .with_member_epoch(7)
            .with_topics(Some(vec![topic]));
        let all = OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(StrBytes::from_static_str("all")))
            .with_member_id(None)
            .with_member_epoch(-1)
            .with_topics(None);
        let expected = OffsetFetchRequest::default().with_groups(vec![one, all]).with_require_stable(true);
        assert_eq!(request, expected);
    }

    #[test]
    fn older_versions_go_to_the_codec() {
        use kafka_protocol::protocol::Encodable as _;
        let topic = OffsetCommitRequestTopic::default().with_name(StrBytes::from_static_str("t").into());
        let request = OffsetCommitRequest::default().with_topics(vec![topic]);
        let mut body = BytesMut::new();
        request.encode(&mut body, 9).unwrap();
        assert_eq!(offset_commit(9, &body.freeze()), Ok(request));
    }

    #[test]
    fn null_is_refused_where_a_value_is_required() {
        let with = |from: &'static [u8], to: &'static [u8]| {
            let body = commit_of_version_10();
            let at = body.windows(from.len()).position(|window| window == from).unwrap();
            Bytes::from([&body[..at], to, &body[at + from.len()..]].concat())
        };
        assert_eq!(offset_commit(10, &with(b"\x02g", b"\0")), Err(DecodeError::Null));
        assert_eq!(offset_commit(10, &with(b"\x07member", b"\0")), Err(DecodeError::Null));
        assert!(offset_commit(10, &with(b"\x09instance", b"\0")).is_ok());
        assert_eq!(offset_fetch(10, &Bytes::from_static(b"\0\x01\0")), Err(DecodeError::Null));
    }

    #[test]
    fn counts_that_the_request_cannot_hold_are_refused() {
        let mut body = commit_of_version_10().to_vec();
        let id = body.windows(16).position(|window| window == ID.as_bytes()).unwrap();
        body[id - 1] = 0x7f;
        assert!(matches!(offset_commit(10, &body.into()), Err(DecodeError::Count { .. })));
        let mut body = fetch_of_version_10().to_vec();
        body[0] = 0x7f;
        assert!(matches!(offset_fetch(10, &body.into()), Err(DecodeError::Count { .. })));
    }
}
