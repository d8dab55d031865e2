//! Versions that kafka-protocol 0.18 does not know and Kafka 4.4 has: the requests of WriteTxnMarkers 2 (KIP-1228),
//! TxnOffsetCommit 6 (topic ids, KIP-1319) and AddRaftVoter 1 (KIP-1186), the responses of TxnOffsetCommit 6 and
//! DeleteGroups 3. The functions serve every version of their messages, so that the handlers need not tell them apart.

use bytes::Bytes;
use kafka_protocol::messages::add_raft_voter_request::Listener as VoterListener;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::txn_offset_commit_request::TxnOffsetCommitRequestTopic;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{
    AddRaftVoterRequest, DeleteGroupsResponse, GroupId, OffsetCommitRequest, OffsetCommitResponse,
    ProducerId, TopicName, TxnOffsetCommitRequest, TxnOffsetCommitResponse, WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::StrBytes;

use super::api::find;
use super::guard;
use super::header::CorrelationId;
use super::read::{DecodeError, Reader};
use super::topic_ids::{array, string};
use super::write::{EncodeError, Writer};
use super::{ApiKey, parts};

/// The first version of TxnOffsetCommit that names topics by id.
pub const FIRST_TXN_COMMIT_WITH_TOPIC_IDS: i16 = 6;
/// The first version of WriteTxnMarkers that says which transactions the client spoke.
pub const FIRST_MARKERS_WITH_VERSION: i16 = 2;
/// The first version of AddRaftVoter that says when it is to be answered.
pub const FIRST_VOTER_WITH_ACK: i16 = 1;
/// The first version of DeleteGroups whose answer may say in words what is wrong.
const FIRST_DELETE_WITH_MESSAGE: i16 = 3;

/// Every version that is decoded or encoded here is flexible.
const FLEXIBLE: bool = true;

/// A marker of WriteTxnMarkers.
#[derive(Clone, PartialEq, Debug)]
pub struct TxnMarker {
    pub marker: WritableTxnMarker,
    /// The level of `transaction.version`; 0 where the request does not say.
    pub transaction_version: i8,
}

/// A commit within a transaction: whose, and what it would be outside of one.
#[derive(Clone, PartialEq, Debug)]
pub struct TxnOffsetCommit {
    pub transactional_id: StrBytes,
    pub producer_id: ProducerId,
    pub producer_epoch: i16,
    pub commit: OffsetCommitRequest,
}

/// Decodes WriteTxnMarkers of any served version. Strings share the frame's memory.
pub fn write_txn_markers(version: i16, body: &Bytes) -> Result<Vec<TxnMarker>, DecodeError> {
    if version < FIRST_MARKERS_WITH_VERSION {
        let request = guard::decode::<WriteTxnMarkersRequest>(version, body)?;
        let markers = request.markers.into_iter();
        return Ok(markers.map(|marker| TxnMarker { marker, transaction_version: 0 }).collect());
    }
    guard::check(ApiKey::WriteTxnMarkers as i16, version, body)?;
    array(&mut Reader::new(body), read_marker)
}

fn read_marker(reader: &mut Reader<'_>) -> Result<TxnMarker, DecodeError> {
    let marker = WritableTxnMarker::default()
        .with_producer_id(ProducerId(reader.i64()?))
        .with_producer_epoch(reader.i16()?)
        .with_transaction_result(reader.bool()?)
        .with_topics(array(reader, read_marker_topic)?)
        .with_coordinator_epoch(reader.i32()?);
    let transaction_version = reader.i8()?;
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(TxnMarker { marker, transaction_version })
}

fn read_marker_topic(reader: &mut Reader<'_>) -> Result<WritableTxnMarkerTopic, DecodeError> {
    let topic = WritableTxnMarkerTopic::default()
        .with_name(TopicName(string(reader)?))
        .with_partition_indexes(array(reader, |reader| reader.i32())?);
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(topic)
}

/// Decodes AddRaftVoter of any served version, but for when it is to be answered: that is at once. Strings share the
/// frame's memory.
pub fn add_raft_voter(version: i16, body: &Bytes) -> Result<AddRaftVoterRequest, DecodeError> {
    if version < FIRST_VOTER_WITH_ACK {
        return guard::decode(version, body);
    }
    guard::check(ApiKey::AddRaftVoter as i16, version, body)?;
    let mut reader = Reader::new(body);
    Ok(AddRaftVoterRequest::default()
        .with_cluster_id(parts::read_string(&mut reader, FLEXIBLE)?)
        .with_timeout_ms(reader.i32()?)
        .with_voter_id(reader.i32()?)
        .with_voter_directory_id(reader.topic_id()?.0)
        .with_listeners(array(&mut reader, read_voter_listener)?))
}

fn read_voter_listener(reader: &mut Reader<'_>) -> Result<VoterListener, DecodeError> {
    let listener = VoterListener::default()
        .with_name(string(reader)?)
        .with_host(string(reader)?)
        .with_port(reader.i16()?.cast_unsigned());
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(listener)
}

/// Decodes TxnOffsetCommit of any served version. Strings share the frame's memory.
pub fn txn_offset_commit(version: i16, body: &Bytes) -> Result<TxnOffsetCommit, DecodeError> {
    if version < FIRST_TXN_COMMIT_WITH_TOPIC_IDS {
        return guard::decode(version, body).map(commit_of);
    }
    guard::check(ApiKey::TxnOffsetCommit as i16, version, body)?;
    let mut reader = Reader::new(body);
    let transactional_id = string(&mut reader)?;
    let group = GroupId(string(&mut reader)?);
    let (producer_id, producer_epoch) = (ProducerId(reader.i64()?), reader.i16()?);
    let commit = OffsetCommitRequest::default()
        .with_group_id(group)
        .with_generation_id_or_member_epoch(reader.i32()?)
        .with_member_id(string(&mut reader)?)
        .with_group_instance_id(parts::read_string(&mut reader, FLEXIBLE)?)
        .with_topics(array(&mut reader, super::topic_ids::read_commit_topic)?);
    Ok(TxnOffsetCommit { transactional_id, producer_id, producer_epoch, commit })
}

fn commit_of(request: TxnOffsetCommitRequest) -> TxnOffsetCommit {
    let topics =
        request.topics.into_iter().map(|TxnOffsetCommitRequestTopic { name, partitions, .. }| {
            let partitions = partitions.into_iter().map(|partition| {
                OffsetCommitRequestPartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_committed_offset(partition.committed_offset)
                    .with_committed_leader_epoch(partition.committed_leader_epoch)
                    .with_committed_metadata(partition.committed_metadata)
            });
            OffsetCommitRequestTopic::default().with_name(name).with_partitions(partitions.collect())
        });
    let commit = OffsetCommitRequest::default()
        .with_group_id(request.group_id)
        .with_generation_id_or_member_epoch(request.generation_id)
        .with_member_id(request.member_id)
        .with_group_instance_id(request.group_instance_id)
        .with_topics(topics.collect());
    TxnOffsetCommit {
        transactional_id: request.transactional_id.0,
        producer_id: request.producer_id,
        producer_epoch: request.producer_epoch,
        commit,
    }
}

/// The answer to TxnOffsetCommit, of what is the answer to its commit.
pub fn encode_txn_offset_commit(
    version: i16,
    correlation_id: CorrelationId,
    response: &OffsetCommitResponse,
) -> Result<Bytes, EncodeError> {
    if version < FIRST_TXN_COMMIT_WITH_TOPIC_IDS {
        let topics = response.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                TxnOffsetCommitResponsePartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(partition.error_code)
            });
            let answered = TxnOffsetCommitResponseTopic::default().with_name(topic.name.clone());
            answered.with_partitions(partitions.collect())
        });
        let response = TxnOffsetCommitResponse::default()
            .with_throttle_time_ms(response.throttle_time_ms)
            .with_topics(topics.collect());
        return guard::encode(version, correlation_id, &response);
    }
    let mut writer = response_to(ApiKey::TxnOffsetCommit, version, correlation_id);
    writer.i32(response.throttle_time_ms);
    writer.count(response.topics.len());
    for topic in &response.topics {
        writer.slice(topic.topic_id.as_bytes());
        writer.count(topic.partitions.len());
        for partition in &topic.partitions {
            writer.i32(partition.partition_index);
            writer.i16(partition.error_code);
            writer.no_tagged_fields();
        }
        writer.no_tagged_fields();
    }
    writer.no_tagged_fields();
    writer.finish(0)
}

/// The answer to DeleteGroups, in later versions with a place for words.
pub fn encode_delete_groups(
    version: i16,
    correlation_id: CorrelationId,
    response: &DeleteGroupsResponse,
) -> Result<Bytes, EncodeError> {
    if version < FIRST_DELETE_WITH_MESSAGE {
        return guard::encode(version, correlation_id, response);
    }
    let mut writer = response_to(ApiKey::DeleteGroups, version, correlation_id);
    writer.i32(response.throttle_time_ms);
    writer.count(response.results.len());
    for result in &response.results {
        writer.string(&result.group_id.0);
        writer.i16(result.error_code);
        // Kafka has words for errors that kuring does not have.
        writer.nullable_string(None);
        writer.no_tagged_fields();
    }
    writer.no_tagged_fields();
    writer.finish(0)
}

fn response_to(key: ApiKey, version: i16, correlation_id: CorrelationId) -> Writer {
    let api = find(key as i16).expect("the API table has it");
    Writer::response(api, version, correlation_id)
}

/// The bytes are what the Java client 4.4.0 writes (`MessageUtil.toByteBufferAccessor`), for each version that Kafka
/// 4.4.0 serves.
#[cfg(test)]
#[rustfmt::skip]
mod bytes_of_java {
    pub(super) const MARKERS: &[(i16, &str)] = &[
        (1, concat!(
            "030000000000001267000301020261030000000000000007000000000900000000000000126800000001",
            "ffffffff0000",
        )),
        (2, concat!(
            "030000000000001267000301020261030000000000000007000000000902000000000000001268000000",
            "01ffffffff000000",
        )),
    ];
    pub(super) const MARKERS_WRITTEN: &[(i16, &str)] = &[
        (1, "020000000000001267020261030000000000000000000007003400000000"),
        (2, "020000000000001267020261030000000000000000000007003400000000"),
    ];
    pub(super) const COMMIT: &[(i16, &str)] = &[
        (0, concat!(
            "000274780001670000000000001267000300000001000161000000020000000100000000000000640004",
            "6e6f74650000000200000000000000c8ffff",
        )),
        (1, concat!(
            "000274780001670000000000001267000300000001000161000000020000000100000000000000640004",
            "6e6f74650000000200000000000000c8ffff",
        )),
        (2, concat!(
            "000274780001670000000000001267000300000001000161000000020000000100000000000000640000",
            "000200046e6f74650000000200000000000000c8ffffffffffff",
        )),
        (3, concat!(
            "03747802670000000000001267000300000005026d026902026103000000010000000000000064000000",
            "02056e6f7465000000000200000000000000c8ffffffff00000000",
        )),
        (4, concat!(
            "03747802670000000000001267000300000005026d026902026103000000010000000000000064000000",
            "02056e6f7465000000000200000000000000c8ffffffff00000000",
        )),
        (5, concat!(
            "03747802670000000000001267000300000005026d026902026103000000010000000000000064000000",
            "02056e6f7465000000000200000000000000c8ffffffff00000000",
        )),
        (6, concat!(
            "03747802670000000000001267000300000005026d02690251062a40bd864bf5ab19ee57d2179db20300",
            "000001000000000000006400000002056e6f7465000000000200000000000000c8ffffffff00000000",
        )),
    ];
    pub(super) const COMMITTED: &[(i16, &str)] = &[
        (0, "000000000000000100016100000002000000010000000000020031"),
        (1, "000000000000000100016100000002000000010000000000020031"),
        (2, "000000000000000100016100000002000000010000000000020031"),
        (3, "000000000202610300000001000000000000020031000000"),
        (4, "000000000202610300000001000000000000020031000000"),
        (5, "000000000202610300000001000000000000020031000000"),
        (6, "000000000251062a40bd864bf5ab19ee57d2179db20300000001000000000000020031000000"),
    ];
    pub(super) const ADD_VOTER: &[(i16, &str)] = &[
        (0, concat!(
            "0000007530000000014fe0a4d2b3874ed19c1f627ff3518e53020b434f4e54524f4c4c45520a3132372e302e302e31",
            "eaa10000",
        )),
        (1, concat!(
            "0000007530000000014fe0a4d2b3874ed19c1f627ff3518e53020b434f4e54524f4c4c45520a3132372e302e302e31",
            "eaa1000100",
        )),
    ];
    pub(super) const DELETE: &[(i16, &str)] = &[
        (0, "0000000200016700056f74686572"),
        (1, "0000000200016700056f74686572"),
        (2, "030267066f7468657200"),
        (3, "030267066f7468657200"),
    ];
    pub(super) const DELETED: &[(i16, &str)] = &[
        (0, "0000000000000002000167000000056f746865720045"),
        (1, "0000000000000002000167000000056f746865720045"),
        (2, "00000000030267000000066f7468657200450000"),
        (3, "0000000003026700000000066f746865720045000000"),
    ];
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
    use kafka_protocol::messages::offset_commit_response::{
        OffsetCommitResponsePartition, OffsetCommitResponseTopic,
    };
    use kafka_protocol::messages::write_txn_markers_response::{
        WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
    };
    use kafka_protocol::messages::{DeleteGroupsRequest, WriteTxnMarkersResponse};
    use uuid::Uuid;

    use super::*;

    const ID: Uuid = Uuid::from_u128(0x5106_2a40_bd86_4bf5_ab19_ee57_d217_9db2);

    fn bytes(hex: &str) -> Bytes {
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        (0..hex.len()).step_by(2).map(byte).collect::<Vec<u8>>().into()
    }

    fn text(text: &'static str) -> StrBytes {
        StrBytes::from_static_str(text)
    }

    fn topic_name(name: &'static str) -> TopicName {
        TopicName(text(name))
    }

    /// The body of a response frame.
    fn body_of(key: ApiKey, version: i16, frame: &Bytes) -> Bytes {
        let api = find(key as i16).expect("it is served");
        assert_eq!(frame[..4], ((frame.len() - 4) as i32).to_be_bytes());
        frame.slice(if api.response_header_version(version) >= 1 { 9 } else { 8 }..)
    }

    /// Every version that is served is here, and no other.
    fn covers(key: ApiKey, versions: &[(i16, &str)]) {
        let api = find(key as i16).expect("it is served");
        let versions: Vec<i16> = versions.iter().map(|(version, _)| *version).collect();
        assert_eq!(versions, (api.min_served..=api.max).collect::<Vec<_>>());
    }

    #[test]
    fn markers_are_read_as_java_writes_them() {
        covers(ApiKey::WriteTxnMarkers, bytes_of_java::MARKERS);
        for (version, hex) in bytes_of_java::MARKERS {
            let topic = WritableTxnMarkerTopic::default()
                .with_name(topic_name("a"))
                .with_partition_indexes(vec![0, 7]);
            let first = WritableTxnMarker::default()
                .with_producer_id(ProducerId(4711))
                .with_producer_epoch(3)
                .with_transaction_result(true)
                .with_coordinator_epoch(9)
                .with_topics(vec![topic]);
            let second =
                WritableTxnMarker::default().with_producer_id(ProducerId(4712)).with_coordinator_epoch(-1);
            let transaction_version = if *version >= FIRST_MARKERS_WITH_VERSION { 2 } else { 0 };
            let expected = [
                TxnMarker { marker: first, transaction_version },
                TxnMarker { marker: second, transaction_version: 0 },
            ];
            assert_eq!(write_txn_markers(*version, &bytes(hex)).as_deref(), Ok(&expected[..]), "{version}");
        }
        let partition = |index, code| {
            WritableTxnMarkerPartitionResult::default().with_partition_index(index).with_error_code(code)
        };
        let topic = WritableTxnMarkerTopicResult::default()
            .with_name(topic_name("a"))
            .with_partitions(vec![partition(0, 0), partition(7, 52)]);
        let marker = WritableTxnMarkerResult::default().with_producer_id(ProducerId(4711));
        let response = WriteTxnMarkersResponse::default().with_markers(vec![marker.with_topics(vec![topic])]);
        for (version, hex) in bytes_of_java::MARKERS_WRITTEN {
            let codec_version =
                find(ApiKey::WriteTxnMarkers as i16).expect("it is served").codec_version(*version);
            let frame = guard::encode(codec_version, CorrelationId(1), &response).expect("encoded");
            assert_eq!(body_of(ApiKey::WriteTxnMarkers, *version, &frame), bytes(hex), "{version}");
        }
    }

    #[test]
    fn voters_to_be_added_are_read_as_java_writes_them() {
        covers(ApiKey::AddRaftVoter, bytes_of_java::ADD_VOTER);
        for (version, hex) in bytes_of_java::ADD_VOTER {
            let listener = VoterListener::default()
                .with_name(text("CONTROLLER"))
                .with_host(text("127.0.0.1"))
                .with_port(60_065);
            let expected = AddRaftVoterRequest::default()
                .with_cluster_id(None)
                .with_timeout_ms(30_000)
                .with_voter_id(1)
                .with_voter_directory_id(Uuid::from_u128(0x4fe0_a4d2_b387_4ed1_9c1f_627f_f351_8e53))
                .with_listeners(vec![listener]);
            assert_eq!(add_raft_voter(*version, &bytes(hex)), Ok(expected), "{version}");
        }
    }

    #[test]
    fn commits_within_a_transaction_are_read_as_java_writes_them() {
        covers(ApiKey::TxnOffsetCommit, bytes_of_java::COMMIT);
        for (version, hex) in bytes_of_java::COMMIT {
            let partition = |index, offset, epoch, note: Option<&'static str>| {
                OffsetCommitRequestPartition::default()
                    .with_partition_index(index)
                    .with_committed_offset(offset)
                    .with_committed_leader_epoch(if *version >= 2 { epoch } else { -1 })
                    .with_committed_metadata(note.map(text))
            };
            let topic = match *version {
                FIRST_TXN_COMMIT_WITH_TOPIC_IDS.. => OffsetCommitRequestTopic::default().with_topic_id(ID),
                _ => OffsetCommitRequestTopic::default().with_name(topic_name("a")),
            };
            let partitions = vec![partition(1, 100, 2, Some("note")), partition(2, 200, -1, None)];
            let mut commit = OffsetCommitRequest::default()
                .with_group_id(GroupId(text("g")))
                .with_topics(vec![topic.with_partitions(partitions)]);
            if *version >= 3 {
                commit = commit
                    .with_generation_id_or_member_epoch(5)
                    .with_member_id(text("m"))
                    .with_group_instance_id(Some(text("i")));
            }
            let expected = TxnOffsetCommit {
                transactional_id: text("tx"),
                producer_id: ProducerId(4711),
                producer_epoch: 3,
                commit,
            };
            assert_eq!(txn_offset_commit(*version, &bytes(hex)), Ok(expected), "{version}");
        }
        let partition = |index, code| {
            OffsetCommitResponsePartition::default().with_partition_index(index).with_error_code(code)
        };
        let topic = OffsetCommitResponseTopic::default()
            .with_name(topic_name("a"))
            .with_topic_id(ID)
            .with_partitions(vec![partition(1, 0), partition(2, 49)]);
        let response = OffsetCommitResponse::default().with_topics(vec![topic]);
        for (version, hex) in bytes_of_java::COMMITTED {
            let frame = encode_txn_offset_commit(*version, CorrelationId(1), &response).expect("encoded");
            assert_eq!(body_of(ApiKey::TxnOffsetCommit, *version, &frame), bytes(hex), "{version}");
        }
    }

    #[test]
    fn deleted_groups_are_told_as_java_reads_them() {
        covers(ApiKey::DeleteGroups, bytes_of_java::DELETE);
        for (version, hex) in bytes_of_java::DELETE {
            let request: DeleteGroupsRequest = guard::decode(*version, &bytes(hex)).expect("decoded");
            assert_eq!(request.groups_names, [GroupId(text("g")), GroupId(text("other"))]);
        }
        let result = |group, code| {
            DeletableGroupResult::default().with_group_id(GroupId(text(group))).with_error_code(code)
        };
        let response =
            DeleteGroupsResponse::default().with_results(vec![result("g", 0), result("other", 69)]);
        for (version, hex) in bytes_of_java::DELETED {
            let frame = encode_delete_groups(*version, CorrelationId(1), &response).expect("encoded");
            assert_eq!(body_of(ApiKey::DeleteGroups, *version, &frame), bytes(hex), "{version}");
        }
    }
}
