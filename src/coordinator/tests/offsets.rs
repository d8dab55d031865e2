//! Commits, fetches, deletions and expiry of offsets, and deletion of groups.

use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::offset_fetch_response::OffsetFetchResponseGroup;
use kafka_protocol::messages::{GroupId, OffsetDeleteRequest, TopicName};

use super::harness::{GROUP, Harness, OK, commit_request, join_request, text};
use crate::base::TopicName as Name;
use crate::coordinator::{Content, Record, Request, Response};
use crate::wire::ErrorCode;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn commit_simple(h: &mut Harness, group: &str, topic: &str, offset: i64) -> i16 {
    match h.call(Request::Commit(commit_request(group, "", -1, topic, offset))) {
        Response::Commit(response) => response.topics[0].partitions[0].error_code,
        other => panic!("{other:?}"),
    }
}

fn fetch(h: &mut Harness, topics: Option<Vec<OffsetFetchRequestTopics>>) -> OffsetFetchResponseGroup {
    let group = OffsetFetchRequestGroup::default().with_group_id(GroupId(text(GROUP))).with_topics(topics);
    match h.call(Request::FetchOffsets { group, require_stable: true }) {
        Response::FetchOffsets(response) => response,
        other => panic!("{other:?}"),
    }
}

fn delete_group(h: &mut Harness, group: &str) -> Option<ErrorCode> {
    match h.call(Request::Delete(GroupId(text(group)))) {
        Response::Delete(error) => error,
        other => panic!("{other:?}"),
    }
}

fn delete_offset(h: &mut Harness, topic: &str) -> Result<i16, i16> {
    let partition = OffsetDeleteRequestPartition::default();
    let topic = OffsetDeleteRequestTopic::default()
        .with_name(TopicName(text(topic)))
        .with_partitions(vec![partition]);
    let request = OffsetDeleteRequest::default().with_group_id(GroupId(text(GROUP))).with_topics(vec![topic]);
    match h.call(Request::DeleteOffsets(request)) {
        Response::DeleteOffsets(response) if response.error_code == OK => {
            Ok(response.topics[0].partitions[0].error_code)
        }
        Response::DeleteOffsets(response) => Err(response.error_code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_consumer_without_membership_commits_and_fetches() {
    let mut h = Harness::new();
    assert_eq!(h.committed(GROUP, "t"), -1);
    assert_eq!(commit_simple(&mut h, GROUP, "t", 42), OK);
    let response = fetch(&mut h, None);
    let partition = &response.topics[0].partitions[0];
    assert_eq!(response.topics[0].name, TopicName(text("t")));
    assert_eq!((partition.committed_offset, partition.committed_leader_epoch), (42, -1));
    assert_eq!(partition.metadata, Some(text("note")));
    assert_eq!(h.state(), "Empty");
}

#[test]
fn a_commit_is_seen_only_once_it_is_written() {
    let mut h = Harness::new();
    h.holds_appends = true;
    let commit = h.send(Request::Commit(commit_request(GROUP, "", -1, "t", 1)));
    assert_eq!(h.committed(GROUP, "t"), -1);
    assert_eq!(h.reply(commit), None);
    // A fetch that wants stable offsets waits for it.
    let group = OffsetFetchRequestGroup::default().with_group_id(GroupId(text(GROUP))).with_topics(None);
    let stable = h.send(Request::FetchOffsets { group, require_stable: true });
    assert_eq!(h.reply(stable), None);
    h.release();
    assert!(h.reply(commit).is_some());
    let Some(Response::FetchOffsets(response)) = h.reply(stable) else { panic!() };
    assert_eq!(response.topics[0].partitions[0].committed_offset, 1);
}

#[test]
fn a_commit_that_cannot_be_written_leaves_the_old_offset() {
    for (failure, answer) in [
        (ErrorCode::NotEnoughReplicas, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::NotLeaderOrFollower, ErrorCode::NotCoordinator),
        (ErrorCode::KafkaStorageError, ErrorCode::NotCoordinator),
        (ErrorCode::MessageTooLarge, ErrorCode::UnknownServerError),
        (ErrorCode::CorruptMessage, ErrorCode::CorruptMessage),
    ] {
        let mut h = Harness::new();
        commit_simple(&mut h, GROUP, "t", 1);
        h.holds_appends = true;
        let commit = h.send(Request::Commit(commit_request(GROUP, "", -1, "t", 2)));
        h.fail_one(failure);
        let Some(Response::Commit(response)) = h.reply(commit) else { panic!() };
        assert_eq!(response.topics[0].partitions[0].error_code, answer.code());
        assert_eq!(h.committed(GROUP, "t"), 1);
    }
}

#[test]
fn acknowledgements_out_of_order_are_applied_in_order() {
    let mut h = Harness::new();
    h.holds_appends = true;
    let first = h.send(Request::Commit(commit_request(GROUP, "", -1, "t", 1)));
    let second = h.send(Request::Commit(commit_request(GROUP, "", -1, "t", 2)));
    h.held.swap(0, 1);
    h.write_one();
    h.run_effects();
    assert_eq!((h.reply(first), h.reply(second)), (None, None));
    h.write_one();
    h.run_effects();
    assert!(h.reply(first).is_some() && h.reply(second).is_some());
    assert_eq!(h.committed(GROUP, "t"), 2);
}

#[test]
fn members_commit_in_their_generation() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(2);
    assert_eq!(h.commit(&ids[0], generation, 5), OK);
    assert_eq!(h.committed(GROUP, "t"), 5);
    assert_eq!(h.commit(&ids[0], generation - 1, 6), ErrorCode::IllegalGeneration.code());
    assert_eq!(h.commit("stranger", generation, 6), ErrorCode::UnknownMemberId.code());
    assert_eq!(h.commit("", -1, 6), ErrorCode::UnknownMemberId.code(), "the group is in use");
    // While others rejoin, the old generation may still commit; while it is completed, nobody.
    let rejoin = h.join(&ids[0]);
    assert_eq!(h.commit(&ids[1], generation, 7), OK);
    h.join(&ids[1]);
    assert_eq!(h.join_reply(rejoin).generation_id, generation + 1);
    assert_eq!(h.commit(&ids[1], generation + 1, 8), ErrorCode::RebalanceInProgress.code());
    assert_eq!(h.commit(&ids[1], generation, 8), ErrorCode::IllegalGeneration.code());
    assert_eq!(h.committed(GROUP, "t"), 7);
}

#[test]
fn a_commit_with_a_generation_to_no_group_is_refused_by_version() {
    let mut h = Harness::new();
    h.version = 8;
    assert_eq!(h.commit("m", 1, 5), ErrorCode::IllegalGeneration.code());
    h.version = 9;
    assert_eq!(h.commit("m", 1, 5), ErrorCode::GroupIdNotFound.code());
}

#[test]
fn a_commit_keeps_the_session_alive() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(1);
    for offset in 0..10 {
        h.pass(9_000);
        assert_eq!(h.commit(&ids[0], generation, offset), OK);
    }
    assert_eq!(h.state(), "Stable");
}

#[test]
fn metadata_that_is_too_long_is_refused_alone() {
    let mut h = Harness::new();
    let mut request = commit_request(GROUP, "", -1, "t", 1);
    let mut long = request.topics[0].partitions[0].clone().with_partition_index(1);
    // 4096 is allowed, counted as UTF-16 does.
    request.topics[0].partitions[0].committed_metadata = Some(text(&"ä".repeat(4096)));
    long.committed_metadata = Some(text(&"a".repeat(4097)));
    request.topics[0].partitions.push(long);
    let Response::Commit(response) = h.call(Request::Commit(request)) else { panic!() };
    let codes: Vec<i16> =
        response.topics[0].partitions.iter().map(|partition| partition.error_code).collect();
    assert_eq!(codes, [OK, ErrorCode::OffsetMetadataTooLarge.code()]);
    assert_eq!(h.committed(GROUP, "t"), 1);
}

#[test]
fn offsets_and_groups_survive_a_restart() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(2);
    h.commit(&ids[0], generation, 5);
    commit_simple(&mut h, "other", "t", 9);
    h.restart();
    assert_eq!(h.committed(GROUP, "t"), 5);
    assert_eq!(h.committed("other", "t"), 9);
    assert_eq!(h.state(), "Stable");
    assert_eq!(h.heartbeat(&ids[0], generation), OK);
    let sync = h.sync(&ids[1], generation, &[]);
    assert_eq!(h.sync_reply(sync).assignment, ids[1].as_bytes());
    // Who does not come back is out after a session.
    h.pass(10_000);
    assert_ne!(h.heartbeat(&ids[1], generation), OK);
}

#[test]
fn offsets_expire_when_the_group_was_empty_for_the_retention() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(1);
    h.commit(&ids[0], generation, 5);
    h.pass_with_heartbeats(&ids, generation, 8 * DAY_MS / 1000);
    assert_eq!(h.leave(&ids[0]), OK);
    h.pass(7 * DAY_MS - 1000);
    assert_eq!(h.committed(GROUP, "t"), 5);
    h.pass(601_000);
    assert_eq!(h.committed(GROUP, "t"), -1);
    assert_eq!(h.state(), "Dead", "an empty group without offsets goes too");
    h.restart();
    assert_eq!(h.state(), "Dead");
}

#[test]
fn offsets_of_a_simple_consumer_expire_after_the_last_commit() {
    let mut h = Harness::new();
    commit_simple(&mut h, GROUP, "t", 1);
    h.pass(3 * DAY_MS);
    commit_simple(&mut h, GROUP, "u", 2);
    h.pass(5 * DAY_MS);
    assert_eq!((h.committed(GROUP, "t"), h.committed(GROUP, "u")), (-1, 2));
    h.pass(3 * DAY_MS);
    assert_eq!(h.committed(GROUP, "u"), -1);
    assert_eq!(h.state(), "Dead");
}

#[test]
fn a_group_in_use_keeps_the_offsets_of_its_topics() {
    let mut h = Harness::new();
    commit_simple(&mut h, GROUP, "t", 1);
    commit_simple(&mut h, GROUP, "old", 2);
    let (ids, generation) = h.stable_group(1);
    for _ in 0..8 * 24 * 60 * 10 {
        h.pass(6_000 - 1);
        h.heartbeat(&ids[0], generation);
    }
    h.pass_with_heartbeats(&ids, generation, 600_000);
    assert_eq!(h.committed(GROUP, "t"), 1);
    assert_eq!(h.committed(GROUP, "old"), -1, "nobody reads it and its time is over");
}

#[test]
fn a_retention_of_the_commit_itself_wins() {
    let mut h = Harness::new();
    let mut request = commit_request(GROUP, "", -1, "t", 1);
    request.retention_time_ms = 3_600_000;
    h.call(Request::Commit(request));
    h.restart();
    h.pass(3_000_000);
    assert_eq!(h.committed(GROUP, "t"), 1);
    h.pass(1_300_000);
    assert_eq!(h.committed(GROUP, "t"), -1);
}

#[test]
fn a_sweep_leaves_an_offset_alone_that_is_being_committed_again() {
    let mut h = Harness::new();
    commit_simple(&mut h, GROUP, "t", 1);
    h.pass(7 * DAY_MS - 1000);
    h.holds_appends = true;
    h.send(Request::Commit(commit_request(GROUP, "", -1, "t", 2)));
    h.pass(601_000);
    h.release();
    assert_eq!(h.committed(GROUP, "t"), 2);
    h.restart();
    assert_eq!(h.committed(GROUP, "t"), 2);
}

#[test]
fn only_empty_groups_are_deleted_and_with_them_their_offsets() {
    let mut h = Harness::new();
    assert_eq!(delete_group(&mut h, "none"), Some(ErrorCode::GroupIdNotFound));
    let (ids, generation) = h.stable_group(1);
    h.commit(&ids[0], generation, 5);
    assert_eq!(delete_group(&mut h, GROUP), Some(ErrorCode::NonEmptyGroup));
    h.leave(&ids[0]);
    assert_eq!(delete_group(&mut h, GROUP), None);
    assert_eq!(h.committed(GROUP, "t"), -1);
    assert_eq!(delete_group(&mut h, GROUP), Some(ErrorCode::GroupIdNotFound));
    h.restart();
    assert_eq!((h.committed(GROUP, "t"), h.state().as_str()), (-1, "Dead"));
}

#[test]
fn nobody_uses_a_group_while_its_deletion_is_written() {
    let mut h = Harness::new();
    commit_simple(&mut h, GROUP, "t", 1);
    h.holds_appends = true;
    let delete = h.send(Request::Delete(GroupId(text(GROUP))));
    let join = h.send(Request::Join(join_request("")));
    assert_eq!(h.join_reply(join).error_code, ErrorCode::CoordinatorNotAvailable.code());
    assert_eq!(h.commit("", -1, 2), ErrorCode::CoordinatorNotAvailable.code());
    h.fail_one(ErrorCode::NotEnoughReplicas);
    let failed = Some(Response::Delete(Some(ErrorCode::CoordinatorNotAvailable)));
    assert_eq!(h.reply(delete), failed);
    h.holds_appends = false;
    assert_eq!((h.committed(GROUP, "t"), h.state().as_str()), (1, "Empty"));
    assert_eq!(commit_simple(&mut h, GROUP, "t", 3), OK);
}

#[test]
fn a_deletion_covers_commits_that_are_being_written() {
    let mut h = Harness::new();
    commit_simple(&mut h, GROUP, "t", 1);
    h.holds_appends = true;
    h.send(Request::Commit(commit_request(GROUP, "", -1, "u", 2)));
    h.send(Request::Delete(GroupId(text(GROUP))));
    h.release();
    assert_eq!(h.committed(GROUP, "u"), -1);
    h.restart();
    assert_eq!((h.committed(GROUP, "u"), h.state().as_str()), (-1, "Dead"));
}

#[test]
fn offsets_of_topics_that_members_read_are_not_deleted() {
    let mut h = Harness::new();
    assert_eq!(delete_offset(&mut h, "t"), Err(ErrorCode::GroupIdNotFound.code()));
    commit_simple(&mut h, GROUP, "old", 1);
    let (ids, generation) = h.stable_group(1);
    h.commit(&ids[0], generation, 5);
    assert_eq!(delete_offset(&mut h, "t"), Ok(ErrorCode::GroupSubscribedToTopic.code()));
    assert_eq!(delete_offset(&mut h, "old"), Ok(OK));
    assert_eq!((h.committed(GROUP, "t"), h.committed(GROUP, "old")), (5, -1));
    assert_eq!(delete_offset(&mut h, "never"), Ok(OK));
    h.restart();
    assert_eq!((h.committed(GROUP, "t"), h.committed(GROUP, "old")), (5, -1));
}

#[test]
fn offsets_of_a_group_in_use_by_others_than_consumers_are_not_deleted() {
    let mut h = Harness::new();
    let id = h.new_member_id();
    let mut request = join_request(&id);
    request.protocol_type = text("connect");
    h.send(Request::Join(request));
    assert_eq!(delete_offset(&mut h, "t"), Err(ErrorCode::NonEmptyGroup.code()));
}

#[test]
fn the_offsets_of_a_deleted_topic_go() {
    let mut h = Harness::new();
    commit_simple(&mut h, GROUP, "t", 1);
    commit_simple(&mut h, "other", "t", 2);
    commit_simple(&mut h, "other", "u", 3);
    let now = h.now();
    h.coordinator.topics_deleted(&[Name::new("t"), Name::new("never")], now);
    h.run_effects();
    for _ in 0..2 {
        assert_eq!(
            (h.committed(GROUP, "t"), h.committed("other", "t"), h.committed("other", "u")),
            (-1, -1, 3)
        );
        h.restart();
    }
}

#[test]
fn an_offset_of_a_former_topic_of_the_same_name_is_not_shown() {
    let mut h = Harness::new();
    let (old, new) = (uuid::Uuid::from_u128(1), uuid::Uuid::from_u128(2));
    let mut request = commit_request(GROUP, "", -1, "t", 5);
    request.topics[0].topic_id = old;
    h.call(Request::Commit(request));
    h.restart();
    for (id, offset) in [(old, 5), (new, -1), (uuid::Uuid::nil(), 5)] {
        let topic = OffsetFetchRequestTopics::default()
            .with_name(TopicName(text("t")))
            .with_topic_id(id)
            .with_partition_indexes(vec![0]);
        assert_eq!(fetch(&mut h, Some(vec![topic])).topics[0].partitions[0].committed_offset, offset);
    }
}

#[test]
fn a_long_write_is_appended_in_parts_and_answered_once() {
    let mut h = Harness::new();
    let mut request = commit_request(GROUP, "", -1, "t", 1);
    let mut partition = request.topics[0].partitions[0].clone();
    partition.committed_metadata = Some(text(&"x".repeat(4000)));
    request.topics[0].partitions =
        (0..1000).map(|index| partition.clone().with_partition_index(index)).collect();
    h.holds_appends = true;
    let commit = h.send(Request::Commit(request.clone()));
    assert!(h.held.len() > 5);
    let bytes = |content: &Content| -> usize {
        records_of(content)
            .iter()
            .map(|record| record.key.len() + record.value.as_ref().map_or(0, |value| value.len()))
            .sum()
    };
    assert!(h.held.iter().all(|(_, content, _)| bytes(content) <= 512 << 10));
    h.release();
    assert!(
        matches!(h.reply(commit), Some(Response::Commit(response)) if response.topics[0].partitions.iter().all(|p| p.error_code == OK))
    );
    h.restart();
    assert_eq!(fetch(&mut h, None).topics[0].partitions.len(), 1000);

    // One part fails: the whole answer says so.
    h.holds_appends = true;
    let commit = h.send(Request::Commit(request));
    h.fail_one(ErrorCode::NotEnoughReplicas);
    h.release();
    let Some(Response::Commit(response)) = h.reply(commit) else { panic!() };
    let code = ErrorCode::CoordinatorNotAvailable.code();
    assert!(response.topics[0].partitions.iter().all(|partition| partition.error_code == code));
}

fn records_of(content: &Content) -> &[crate::coordinator::KeyValue] {
    match content {
        Content::Records(records) | Content::InTransaction { records, .. } => records,
        Content::Marker(_) => &[],
    }
}

#[test]
fn an_empty_group_id_keeps_offsets() {
    let mut h = Harness::new();
    assert_eq!(commit_simple(&mut h, "", "t", 4), OK);
    assert_eq!(h.committed("", "t"), 4);
}

#[test]
fn records_are_for_the_partition_of_their_group() {
    let mut h = Harness::new();
    for group in ["a", "b", "c", "d", "e"] {
        commit_simple(&mut h, group, "t", 1);
    }
    for (partition, log) in &h.logs {
        for record in log.iter().flat_map(records_of) {
            let record = Record::decode(&record.key, record.value.as_deref()).expect("what was written");
            assert_eq!(h.coordinator.partition_of(record.group()), *partition);
        }
    }
}
