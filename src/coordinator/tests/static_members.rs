//! Static members (KIP-345): they keep their place while they restart.

use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{GroupId, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest};
use kafka_protocol::protocol::StrBytes;

use super::harness::{GROUP, Harness, OK, REBALANCE_MS, SESSION_MS, join_request, protocol, text};
use crate::coordinator::{Request, Response};
use crate::wire::ErrorCode;

fn static_join(instance: &str, member: &str) -> JoinGroupRequest {
    join_request(member).with_group_instance_id(Some(text(instance)))
}

/// A stable group of static members "i0", "i1"…; their member ids.
fn stable(h: &mut Harness, count: usize) -> Vec<String> {
    let joins: Vec<_> =
        (0..count).map(|at| h.send(Request::Join(static_join(&format!("i{at}"), "")))).collect();
    h.wait_for(joins[0]);
    let responses: Vec<_> = joins.iter().map(|join| h.join_reply(*join)).collect();
    let ids: Vec<String> = responses.iter().map(|response| response.member_id.to_string()).collect();
    let assignments: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), id.as_str())).collect();
    let syncs: Vec<_> = ids.iter().map(|id| h.sync(id, responses[0].generation_id, &assignments)).collect();
    assert!(syncs.into_iter().all(|sync| h.sync_reply(sync).error_code == OK));
    ids
}

fn heartbeat(h: &mut Harness, instance: &str, member: &str, generation: i32) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_generation_id(generation)
        .with_member_id(text(member))
        .with_group_instance_id(Some(text(instance)));
    match h.call(Request::Heartbeat(request)) {
        Response::Heartbeat(response) => response.error_code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_static_member_joins_without_a_member_id() {
    let mut h = Harness::new();
    let ids = stable(&mut h, 2);
    assert!(ids[0].starts_with("i0-") && ids[1].starts_with("i1-"));
}

#[test]
fn a_static_follower_that_restarts_gets_its_place_back_without_a_rebalance() {
    let mut h = Harness::new();
    let ids = stable(&mut h, 2);
    let join = h.send(Request::Join(static_join("i1", "")));
    let response = h.join_reply(join);
    assert_eq!((response.error_code, response.generation_id), (OK, 1));
    assert_eq!(response.leader, *ids[0]);
    assert!(!response.skip_assignment);
    let new = response.member_id.to_string();
    assert_ne!(new, ids[1]);
    let sync = h.sync(&new, 1, &[]);
    assert_eq!(h.sync_reply(sync).assignment, ids[1].as_bytes());
    assert_eq!(h.state(), "Stable");
    // Its former self is fenced.
    assert_eq!(heartbeat(&mut h, "i1", &ids[1], 1), ErrorCode::FencedInstanceId.code());
    assert_eq!(heartbeat(&mut h, "i1", &new, 1), OK);
    assert_eq!(heartbeat(&mut h, "other", &new, 1), ErrorCode::UnknownMemberId.code());
}

#[test]
fn a_static_leader_that_restarts_is_told_to_leave_the_assignment() {
    for (version, skips) in [(9, true), (8, false)] {
        let mut h = Harness::new();
        let ids = stable(&mut h, 2);
        h.version = version;
        let join = h.send(Request::Join(static_join("i0", "")));
        let response = h.join_reply(join);
        assert_eq!(response.skip_assignment, skips);
        if skips {
            assert_eq!((response.leader, response.members.len()), (response.member_id, 2));
        } else {
            // An older client must not think that it leads.
            assert_eq!((response.leader.as_str(), response.members.len()), (ids[0].as_str(), 0));
        }
    }
}

#[test]
fn the_new_id_of_a_static_member_survives_a_restart_of_the_broker() {
    let mut h = Harness::new();
    let ids = stable(&mut h, 2);
    let join = h.send(Request::Join(static_join("i1", "")));
    let new = h.join_reply(join).member_id;
    h.restart();
    assert_eq!(heartbeat(&mut h, "i1", &new, 1), OK);
    assert_eq!(heartbeat(&mut h, "i1", &ids[1], 1), ErrorCode::FencedInstanceId.code());
}

#[test]
fn a_new_id_that_cannot_be_written_is_taken_back() {
    let mut h = Harness::new();
    let ids = stable(&mut h, 2);
    h.holds_appends = true;
    let join = h.send(Request::Join(static_join("i1", "")));
    assert_eq!(h.reply(join), None);
    h.fail_one(ErrorCode::RequestTimedOut);
    let response = h.join_reply(join);
    assert_eq!(response.error_code, ErrorCode::CoordinatorNotAvailable.code());
    assert_eq!(response.member_id, StrBytes::new());
    assert_eq!(heartbeat(&mut h, "i1", &ids[1], 1), OK);
    h.pass(SESSION_MS as u64);
    assert_ne!(heartbeat(&mut h, "i1", &ids[1], 1), OK, "its session counts");
}

#[test]
fn two_restarts_at_once_fence_the_first() {
    let mut h = Harness::new();
    stable(&mut h, 2);
    h.holds_appends = true;
    let first = h.send(Request::Join(static_join("i1", "")));
    let second = h.send(Request::Join(static_join("i1", "")));
    assert_eq!(h.join_reply(first).error_code, ErrorCode::FencedInstanceId.code());
    h.release();
    assert_eq!(h.join_reply(second).error_code, OK);
}

#[test]
fn a_static_member_that_comes_back_with_another_protocol_forces_a_rebalance() {
    let mut h = Harness::new();
    let join = h.send(Request::Join(
        static_join("i0", "").with_protocols(vec![protocol("range"), protocol("sticky")]),
    ));
    h.wait_for(join);
    let id = h.join_reply(join).member_id;
    let sync = h.sync(&id, 1, &[(&id, "x")]);
    assert_eq!(h.sync_reply(sync).error_code, OK);
    let join = h.send(Request::Join(
        static_join("i0", "").with_protocols(vec![protocol("sticky"), protocol("range")]),
    ));
    let response = h.join_reply(join);
    assert_eq!((response.generation_id, response.protocol_name), (2, Some(text("sticky"))));
}

#[test]
fn a_static_member_back_during_completion_restarts_the_rebalance() {
    let mut h = Harness::new();
    let joins: Vec<_> = ["i0", "i1"].map(|at| h.send(Request::Join(static_join(at, "")))).into();
    h.wait_for(joins[0]);
    let ids: Vec<_> = joins.iter().map(|join| h.join_reply(*join).member_id).collect();
    let back = h.send(Request::Join(static_join("i1", "")));
    assert_eq!(h.reply(back), None);
    let rejoin = h.send(Request::Join(static_join("i0", &ids[0])));
    assert_eq!(h.join_reply(rejoin).generation_id, 2);
    assert_eq!(h.join_reply(back).generation_id, 2);
}

#[test]
fn a_rebalance_keeps_the_place_of_a_static_member_that_does_not_rejoin() {
    let mut h = Harness::new();
    let ids = stable(&mut h, 2);
    let new = h.new_member_id();
    let join_new = h.join(&new);
    let rejoin = h.send(Request::Join(static_join("i0", &ids[0])));
    for _ in 0..20 {
        h.pass(SESSION_MS as u64 / 3);
        heartbeat(&mut h, "i1", &ids[1], 1);
    }
    let response = h.join_reply(rejoin);
    assert_eq!((response.error_code, response.members.len()), (OK, 3));
    assert_eq!(h.join_reply(join_new).error_code, OK);
}

#[test]
fn static_members_that_are_all_gone_leave_the_group_when_their_sessions_end() {
    let mut h = Harness::new();
    stable(&mut h, 2);
    h.pass(4 * REBALANCE_MS as u64);
    assert_eq!(h.state(), "Empty");
}

#[test]
fn an_administrator_removes_a_static_member_by_its_instance_id() {
    let mut h = Harness::new();
    stable(&mut h, 2);
    let mut remove = |instance: &str| {
        let leaver = MemberIdentity::default().with_group_instance_id(Some(text(instance)));
        let request =
            LeaveGroupRequest::default().with_group_id(GroupId(text(GROUP))).with_members(vec![leaver]);
        match h.call(Request::Leave(request)) {
            Response::Leave(response) => response.members[0].error_code,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(remove("i1"), OK);
    assert_eq!(remove("i1"), ErrorCode::UnknownMemberId.code());
    assert_eq!(h.state(), "PreparingRebalance");
}

#[test]
fn a_wrong_member_id_of_a_known_instance_is_fenced() {
    let mut h = Harness::new();
    let ids = stable(&mut h, 2);
    let join = h.send(Request::Join(static_join("i1", &ids[0])));
    assert_eq!(h.join_reply(join).error_code, ErrorCode::FencedInstanceId.code());
    let join = h.send(Request::Join(static_join("i9", &ids[0])));
    assert_eq!(h.join_reply(join).error_code, ErrorCode::UnknownMemberId.code());
}

#[test]
fn a_static_member_that_came_back_and_is_silent_is_out_when_its_session_ends() {
    let mut h = Harness::new();
    stable(&mut h, 1);
    h.pass(1_000);
    let join = h.send(Request::Join(static_join("i0", "")));
    assert_eq!(h.join_reply(join).error_code, OK);
    h.pass(SESSION_MS as u64 - 1);
    assert_eq!(h.state(), "Stable");
    h.pass(1);
    assert_eq!(h.state(), "Empty");
}
