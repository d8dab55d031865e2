//! Partitions that are not owned, are being loaded, or are taken away.

use kafka_protocol::messages::{GroupId, HeartbeatRequest, ListGroupsRequest};

use super::harness::{GROUP, Harness, OK, commit_request, text};
use crate::base::TopicName;
use crate::coordinator::{Content, Request, Response};
use crate::wire::ErrorCode;

#[test]
fn a_partition_that_is_led_elsewhere_sends_to_look_for_the_coordinator() {
    let mut h = Harness::new();
    let now = h.now();
    let partition = h.coordinator.partition_of(GROUP);
    h.coordinator.unload(partition, now);
    let code = ErrorCode::NotCoordinator.code();
    let join = h.join("");
    assert_eq!(h.join_reply(join).error_code, code);
    assert_eq!(h.heartbeat("m", 1), code);
    assert_eq!(h.leave("m"), code);
    assert_eq!(h.commit("m", 1, 1), code);
    let sync = h.sync("m", 1, &[]);
    assert_eq!(h.sync_reply(sync).error_code, code);
}

#[test]
fn a_partition_that_is_loading_asks_for_patience() {
    let mut h = Harness::new();
    let now = h.now();
    let partition = h.coordinator.partition_of(GROUP);
    h.coordinator.load(partition, now);
    let code = ErrorCode::CoordinatorLoadInProgress.code();
    let join = h.join("");
    assert_eq!(h.join_reply(join).error_code, code);
    assert_eq!(h.commit("", -1, 1), code);
    assert_eq!(h.heartbeat("m", 1), OK, "a member is believed until its group is known");
    let list = h.call(Request::List(ListGroupsRequest::default()));
    assert!(matches!(list, Response::List(list) if list.error_code == code && list.groups.is_empty()));
    h.coordinator.loaded(partition, now);
    assert_eq!(h.commit("", -1, 1), OK);
}

#[test]
fn everything_that_waits_is_answered_when_the_partition_goes() {
    let mut h = Harness::new();
    let first = h.new_member_id();
    let join = h.join(&first);
    h.holds_appends = true;
    let mut request = commit_request("x", "", -1, "t", 1);
    // Another group of the same partition.
    let partition = h.coordinator.partition_of(GROUP);
    let other = (0..).map(|at| format!("x{at}")).find(|id| h.coordinator.partition_of(id) == partition);
    request.group_id = GroupId(text(&other.expect("there are enough names")));
    let commit = h.send(Request::Commit(request));
    let now = h.now();
    h.coordinator.unload(partition, now);
    h.run_effects();
    let code = ErrorCode::NotCoordinator.code();
    assert_eq!(h.join_reply(join).error_code, code);
    let Some(Response::Commit(response)) = h.reply(commit) else { panic!() };
    assert_eq!(response.topics[0].partitions[0].error_code, code);
    // The late acknowledgement is of no interest, and no timer is left but the sweep.
    h.release();
    h.load(partition);
    h.pass(300_000);
    assert_eq!(h.state(), "Empty");
}

#[test]
fn a_sync_that_waits_is_answered_when_the_partition_goes() {
    let mut h = Harness::new();
    let ids: Vec<String> = (0..2).map(|_| h.new_member_id().to_string()).collect();
    let joins: Vec<_> = ids.iter().map(|id| h.join(id)).collect();
    h.pass(6_000);
    joins.iter().for_each(|join| assert_eq!(h.join_reply(*join).error_code, OK));
    let sync = h.sync(&ids[1], 1, &[]);
    let now = h.now();
    h.coordinator.unload(h.coordinator.partition_of(GROUP), now);
    h.run_effects();
    assert_eq!(h.sync_reply(sync).error_code, ErrorCode::NotCoordinator.code());
}

#[test]
fn a_loaded_group_over_the_size_limit_rebalances() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(3);
    h.settings.members_max = 2;
    h.restart();
    assert_eq!(h.state(), "PreparingRebalance");
    let joins: Vec<_> = ids[..2].iter().map(|id| h.join(id)).collect();
    let refused = h.join(&ids[2]);
    assert_eq!(h.join_reply(refused).error_code, ErrorCode::GroupMaxSizeReached.code());
    h.pass(60_000);
    assert_eq!(h.settle_generation(&ids[..2], &joins), generation + 1);
}

#[test]
fn topics_deleted_during_loading_or_while_the_node_was_down_lose_their_offsets() {
    let mut h = Harness::new();
    for topic in ["t", "u"] {
        h.call(Request::Commit(commit_request(GROUP, "", -1, topic, 1)));
    }
    let partition = h.coordinator.partition_of(GROUP);
    let now = h.now();
    h.coordinator.load(partition, now);
    h.replay(partition);
    h.coordinator.topics_deleted(&[TopicName::new("t")], now);
    h.coordinator.loaded(partition, now);
    h.run_effects();
    assert_eq!((h.committed(GROUP, "t"), h.committed(GROUP, "u")), (-1, 1));
    assert_eq!(h.coordinator.committed_topics(partition), [TopicName::new("u")]);
}

#[test]
fn records_that_are_not_understood_are_skipped() {
    let mut h = Harness::new();
    h.call(Request::Commit(commit_request(GROUP, "", -1, "t", 1)));
    let partition = h.coordinator.partition_of(GROUP);
    let log = h.logs.entry(partition).or_default();
    for key in [&[0u8, 3, 0, 1, b'g'][..], &[], &[0, 1, 0], &[0xff]] {
        let key = bytes::Bytes::copy_from_slice(key);
        let value = Some(bytes::Bytes::from_static(b"?"));
        log.push(Content::Records(vec![crate::coordinator::KeyValue { key, value }]));
    }
    h.restart();
    assert_eq!(h.committed(GROUP, "t"), 1);
}

#[test]
fn a_heartbeat_costs_no_timer() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(1);
    let before = h.coordinator.timers_armed();
    for _ in 0..100 {
        h.pass(10);
        let request = HeartbeatRequest::default()
            .with_group_id(GroupId(text(GROUP)))
            .with_generation_id(generation)
            .with_member_id(text(&ids[0]));
        h.send(Request::Heartbeat(request));
    }
    assert_eq!(h.coordinator.timers_armed(), before);
}
