//! Dynamic members: joining, voting, syncing, leaving, failing.

use kafka_protocol::messages::GroupId;
use kafka_protocol::messages::ListGroupsRequest;

use super::harness::{
    GROUP, Harness, OK, REBALANCE_MS, SESSION_MS, join_request, protocol, settings, sync_request, text,
};
use crate::coordinator::{Request, Response};
use crate::wire::ErrorCode;

#[test]
fn a_lone_member_leads_after_the_initial_delay() {
    let mut h = Harness::new();
    let id = h.new_member_id();
    let join = h.join(&id);
    h.pass(2_999);
    assert_eq!(h.reply(join), None);
    assert_eq!(h.state(), "PreparingRebalance");
    h.pass(1);
    let response = h.join_reply(join);
    assert_eq!((response.error_code, response.generation_id), (OK, 1));
    assert_eq!(response.leader, id);
    assert_eq!(response.member_id, id);
    assert_eq!(response.protocol_name, Some(text("range")));
    assert_eq!(response.members.len(), 1);
    assert_eq!(h.state(), "CompletingRebalance");

    let sync = h.sync(&id, 1, &[(&id, "all")]);
    let response = h.sync_reply(sync);
    assert_eq!((response.error_code, &response.assignment[..]), (OK, &b"all"[..]));
    assert_eq!(h.state(), "Stable");
}

#[test]
fn the_member_id_is_the_clients_id_and_a_uuid() {
    let mut h = Harness::new();
    let id = h.new_member_id();
    let (client, uuid) = id.split_at(7);
    assert_eq!(client, "client-");
    assert!(uuid::Uuid::parse_str(uuid).is_ok_and(|uuid| uuid.get_version_num() == 4));
}

#[test]
fn before_version_four_a_member_joins_without_an_id() {
    let mut h = Harness::new();
    h.version = 3;
    let join = h.join("");
    h.pass(3_000);
    let response = h.join_reply(join);
    assert_eq!(response.error_code, OK);
    assert_eq!(response.leader, response.member_id);
}

#[test]
fn newcomers_put_the_first_rebalance_off_up_to_the_rebalance_timeout() {
    let mut h = Harness::new();
    let first = h.new_member_id();
    let first = h.join(&first);
    let mut later = Vec::new();
    // Someone comes in every delay of 3 s: the phase ends when 60 s are over.
    for _ in 0..19 {
        h.pass(2_900);
        let id = h.new_member_id();
        later.push(h.join(&id));
    }
    assert_eq!(h.reply(first), None, "at 55.1 s");
    h.pass(4_900);
    let response = h.join_reply(first);
    assert_eq!(response.members.len(), 20);
    assert!(later.into_iter().all(|token| h.join_reply(token).error_code == OK));
}

#[test]
fn without_an_initial_delay_the_first_member_is_served_at_once() {
    let mut h = Harness::with(crate::config::GroupSettings { initial_rebalance_delay_ms: 0, ..settings() });
    let id = h.new_member_id();
    let join = h.join(&id);
    h.pass(1);
    assert_eq!(h.join_reply(join).generation_id, 1);
}

#[test]
fn a_newcomer_starts_a_rebalance_that_all_members_join() {
    let mut h = Harness::new();
    let (mut ids, generation) = h.stable_group(2);
    let new = h.new_member_id().to_string();
    assert_eq!(h.state(), "Stable", "an id alone changes nothing");
    let join_new = h.join(&new);
    assert_eq!(h.state(), "PreparingRebalance");
    for id in &ids {
        assert_eq!(h.heartbeat(id, generation), ErrorCode::RebalanceInProgress.code());
    }
    let mut joins: Vec<_> = ids.iter().map(|id| h.join(id)).collect();
    joins.push(join_new);
    ids.push(new);
    assert_eq!(h.settle_generation(&ids, &joins), generation + 1);
    assert_eq!(h.state(), "Stable");
}

#[test]
fn only_the_leader_is_told_the_members() {
    let mut h = Harness::new();
    let first = h.new_member_id();
    let second = h.new_member_id();
    let joins = [h.join(&first), h.join(&second)];
    h.wait_for(joins[0]);
    let responses = joins.map(|token| h.join_reply(token));
    assert!(responses.iter().all(|response| response.leader == first));
    let ids: Vec<_> = responses[0].members.iter().map(|member| member.member_id.clone()).collect();
    assert_eq!(ids, [first, second]);
    assert!(responses[1].members.is_empty());
}

#[test]
fn a_member_that_does_not_rejoin_in_time_is_out() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(2);
    let new = h.new_member_id();
    let join_new = h.join(&new);
    let rejoin = h.join(&ids[0]);
    // It stays alive, but does not rejoin.
    let silent = &ids[1..];
    h.pass_with_heartbeats(silent, generation, REBALANCE_MS as u64 + 4_000);
    let response = h.join_reply(rejoin);
    assert_eq!((response.error_code, response.members.len()), (OK, 2));
    assert_eq!(h.join_reply(join_new).error_code, OK);
    assert_eq!(h.heartbeat(&ids[1], generation), ErrorCode::UnknownMemberId.code());
}

#[test]
fn when_the_leader_is_out_another_leads() {
    let mut h = Harness::new();
    let (ids, _) = h.stable_group(2);
    let new = h.new_member_id();
    h.join(&new);
    let rejoin = h.join(&ids[1]);
    h.pass(REBALANCE_MS as u64);
    assert_eq!(h.join_reply(rejoin).leader, *ids[1]);
}

#[test]
fn a_session_that_ends_starts_a_rebalance() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(2);
    h.pass(SESSION_MS as u64 - 1);
    assert_eq!(h.heartbeat(&ids[0], generation), OK);
    h.pass(1);
    assert_eq!(h.heartbeat(&ids[0], generation), ErrorCode::RebalanceInProgress.code());
    assert_eq!(h.heartbeat(&ids[1], generation), ErrorCode::UnknownMemberId.code());
    let rejoin = h.join(&ids[0]);
    assert_eq!(h.join_reply(rejoin).members.len(), 1);
}

#[test]
fn heartbeats_keep_a_group_stable_for_a_long_time() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(3);
    h.pass_with_heartbeats(&ids, generation, 3_600_000);
    assert_eq!(h.state(), "Stable");
}

#[test]
fn a_group_whose_members_all_fail_is_empty_and_its_generation_goes_on() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(2);
    h.pass(2 * SESSION_MS as u64 + REBALANCE_MS as u64);
    assert_eq!(h.state(), "Empty");
    assert_eq!(h.heartbeat(&ids[0], generation), ErrorCode::UnknownMemberId.code());
    let (_, next) = h.stable_group(1);
    assert!(next > generation + 1, "{next}");
}

#[test]
fn a_member_that_leaves_is_missed_at_once() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(2);
    assert_eq!(h.leave(&ids[0]), OK);
    assert_eq!(h.heartbeat(&ids[1], generation), ErrorCode::RebalanceInProgress.code());
    assert_eq!(h.leave(&ids[0]), ErrorCode::UnknownMemberId.code());
    let rejoin = h.join(&ids[1]);
    let response = h.join_reply(rejoin);
    assert_eq!((response.leader.as_str(), response.generation_id), (ids[1].as_str(), generation + 1));
    assert_eq!(h.leave(&ids[1]), OK);
    assert_eq!(h.state(), "Empty");
}

#[test]
fn a_pending_member_that_never_comes_delays_a_rebalance_for_a_session_at_most() {
    let mut h = Harness::new();
    let (ids, _) = h.stable_group(1);
    let _ghost = h.new_member_id();
    let rejoin = h.join(&ids[0]);
    assert_eq!(h.reply(rejoin), None, "the ghost is waited for");
    h.pass(SESSION_MS as u64);
    assert_eq!(h.join_reply(rejoin).error_code, OK);
}

#[test]
fn a_pending_member_can_leave() {
    let mut h = Harness::new();
    let (ids, _) = h.stable_group(1);
    let ghost = h.new_member_id();
    let rejoin = h.join(&ids[0]);
    assert_eq!(h.leave(&ghost), OK);
    assert_eq!(h.join_reply(rejoin).error_code, OK);
    let join = h.join(&ghost);
    assert_eq!(h.join_reply(join).error_code, ErrorCode::UnknownMemberId.code());
}

#[test]
fn a_new_member_that_waits_too_long_is_sent_away() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(1);
    let new = h.new_member_id();
    let mut request = join_request(&new);
    request.rebalance_timeout_ms = 3_600_000;
    let join = h.send(Request::Join(request));
    // The old member lives on and keeps not rejoining.
    h.pass_with_heartbeats(&ids, generation, 299_000);
    assert_eq!(h.reply(join), None);
    h.pass_with_heartbeats(&ids, generation, 10_000);
    assert_eq!(h.join_reply(join).error_code, ErrorCode::UnknownMemberId.code());
}

#[test]
fn members_vote_for_a_protocol_that_all_support() {
    let mut h = Harness::new();
    let preferences = [["a", "b", "c"], ["b", "a", "c"], ["b", "c", "a"]];
    let mut joins = Vec::new();
    let ids = preferences.map(|_| h.new_member_id());
    for (names, id) in preferences.into_iter().zip(ids) {
        let mut request = join_request(&id);
        request.protocols = names.iter().map(|name| protocol(name)).collect();
        joins.push(h.send(Request::Join(request)));
    }
    h.wait_for(joins[0]);
    for join in joins {
        assert_eq!(h.join_reply(join).protocol_name, Some(text("b")));
    }
}

#[test]
fn a_member_without_a_common_protocol_is_refused() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(1);
    let inconsistent = ErrorCode::InconsistentGroupProtocol.code();
    let mut request = join_request("");
    request.protocols = vec![protocol("sticky")];
    let join = h.send(Request::Join(request));
    assert_eq!(h.join_reply(join).error_code, inconsistent);
    let mut request = join_request("");
    request.protocol_type = text("connect");
    let join = h.send(Request::Join(request));
    assert_eq!(h.join_reply(join).error_code, inconsistent);

    let mut request = sync_request(&ids[0], generation, &[]);
    request.protocol_name = Some(text("sticky"));
    let sync = h.send(Request::Sync(request));
    assert_eq!(h.sync_reply(sync).error_code, inconsistent);
    assert_eq!(h.state(), "Stable");
}

#[test]
fn a_refused_join_makes_no_group() {
    let mut h = Harness::new();
    let mut request = join_request("");
    request.protocols.clear();
    let join = h.send(Request::Join(request));
    assert_eq!(h.join_reply(join).error_code, ErrorCode::InconsistentGroupProtocol.code());
    let list = h.call(Request::List(ListGroupsRequest::default()));
    assert!(matches!(list, Response::List(list) if list.groups.is_empty()));
}

#[test]
fn wrong_ids_generations_and_timeouts_have_their_errors() {
    let mut h = Harness::new();
    let unknown = ErrorCode::UnknownMemberId.code();
    assert_eq!(h.heartbeat("x", 1), unknown, "no group");
    assert_eq!(h.leave("x"), unknown);
    let sync = h.sync("x", 1, &[]);
    assert_eq!(h.sync_reply(sync).error_code, unknown);
    let join = h.join("x");
    assert_eq!(h.join_reply(join).error_code, unknown);

    let (ids, generation) = h.stable_group(1);
    assert_eq!(h.heartbeat("x", generation), unknown);
    assert_eq!(h.heartbeat(&ids[0], generation + 1), ErrorCode::IllegalGeneration.code());
    let sync = h.sync(&ids[0], generation - 1, &[]);
    assert_eq!(h.sync_reply(sync).error_code, ErrorCode::IllegalGeneration.code());

    for timeout in [5_999, 1_800_001, -1] {
        let mut request = join_request("keeps-its-id");
        request.session_timeout_ms = timeout;
        let join = h.send(Request::Join(request));
        let response = h.join_reply(join);
        assert_eq!(response.error_code, ErrorCode::InvalidSessionTimeout.code());
        assert_eq!(response.member_id, text("keeps-its-id"));
    }
    let mut request = join_request("");
    request.group_id = GroupId(text(""));
    let join = h.send(Request::Join(request));
    assert_eq!(h.join_reply(join).error_code, ErrorCode::InvalidGroupId.code());
}

#[test]
fn strings_that_no_record_could_hold_are_refused() {
    let mut h = Harness::new();
    let long = "x".repeat(40_000);
    let mut request = join_request("");
    request.group_id = GroupId(text(&long));
    let join = h.send(Request::Join(request));
    assert_eq!(h.join_reply(join).error_code, ErrorCode::InvalidGroupId.code());
    let mut request = join_request("");
    request.protocols = vec![protocol(&long)];
    let join = h.send(Request::Join(request));
    assert_eq!(h.join_reply(join).error_code, ErrorCode::InvalidRequest.code());
}

#[test]
fn what_members_hold_has_a_limit() {
    let limit = 64 << 10;
    let mut h = Harness::with(crate::config::GroupSettings { members_bytes_max: limit, ..settings() });
    // Members join without being told their id first.
    h.version = 3;
    let long = |bytes: usize| {
        join_request("").with_protocols(vec![protocol("range").with_metadata(vec![7; bytes].into())])
    };
    // More than a group may have.
    let join = h.send(Request::Join(long(20 << 10)));
    assert_eq!(h.join_reply(join).error_code, ErrorCode::GroupMaxSizeReached.code());
    // Groups until all have what all may have.
    let mut accepted = 0;
    let refused = loop {
        let group = GroupId(text(&format!("g{accepted}")));
        let join = h.send(Request::Join(long(10 << 10).with_group_id(group)));
        match h.reply(join) {
            Some(Response::Join(response)) => break response.error_code,
            _ => accepted += 1,
        }
    };
    assert_eq!((refused, accepted), (ErrorCode::GroupMaxSizeReached.code(), 5));
    // Sessions end, and there is room again.
    h.pass(600_000);
    let join = h.send(Request::Join(long(10 << 10)));
    assert_eq!(h.reply(join), None);
}

#[test]
fn the_group_size_has_a_limit() {
    let mut h = Harness::with(crate::config::GroupSettings { members_max: 2, ..settings() });
    let (ids, _) = h.stable_group(2);
    let join = h.join("");
    let response = h.join_reply(join);
    assert_eq!(response.error_code, ErrorCode::GroupMaxSizeReached.code());
    assert_eq!(response.member_id, text(""));
    let rejoin = h.join(&ids[0]);
    assert_eq!(h.state(), "PreparingRebalance");
    let rejoin_other = h.join(&ids[1]);
    assert_eq!(h.join_reply(rejoin).error_code, OK);
    assert_eq!(h.join_reply(rejoin_other).error_code, OK);
}

#[test]
fn syncs_wait_for_the_leader_and_for_its_record() {
    let mut h = Harness::new();
    let ids: Vec<String> = (0..2).map(|_| h.new_member_id().to_string()).collect();
    let joins: Vec<_> = ids.iter().map(|id| h.join(id)).collect();
    h.wait_for(joins[0]);
    joins.iter().for_each(|join| assert_eq!(h.join_reply(*join).error_code, OK));
    let follower = h.sync(&ids[1], 1, &[]);
    assert_eq!(h.reply(follower), None);
    h.holds_appends = true;
    let leader = h.sync(&ids[0], 1, &[(&ids[0], "x"), (&ids[1], "y"), ("stranger", "z")]);
    assert_eq!(h.reply(leader), None, "not before it is written");
    assert_eq!(h.state(), "CompletingRebalance");
    h.release();
    assert_eq!(&h.sync_reply(leader).assignment[..], b"x");
    assert_eq!(&h.sync_reply(follower).assignment[..], b"y");
    // Asked again, the answer is the same.
    let again = h.sync(&ids[1], 1, &[]);
    assert_eq!(&h.sync_reply(again).assignment[..], b"y");
}

#[test]
fn members_that_do_not_sync_in_time_are_out() {
    let mut h = Harness::new();
    let ids: Vec<String> = (0..2).map(|_| h.new_member_id().to_string()).collect();
    let joins: Vec<_> = ids.iter().map(|id| h.join(id)).collect();
    h.pass(6_000);
    joins.iter().for_each(|join| assert_eq!(h.join_reply(*join).error_code, OK));
    let follower = h.sync(&ids[1], 1, &[]);
    // The leader lives, but never assigns.
    h.pass_with_heartbeats(&ids[..1], 1, REBALANCE_MS as u64 + 4_000);
    assert_eq!(h.sync_reply(follower).error_code, ErrorCode::RebalanceInProgress.code());
    assert_eq!(h.heartbeat(&ids[0], 1), ErrorCode::UnknownMemberId.code());
    let rejoin = h.join(&ids[1]);
    assert_eq!(h.join_reply(rejoin).leader, *ids[1]);
}

#[test]
fn a_sync_during_the_join_phase_sends_back_to_join() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(2);
    h.join(&ids[0]);
    let sync = h.sync(&ids[1], generation, &[]);
    assert_eq!(h.sync_reply(sync).error_code, ErrorCode::RebalanceInProgress.code());
}

#[test]
fn a_follower_that_joins_again_unchanged_learns_the_present_generation() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(2);
    let join = h.join(&ids[1]);
    let response = h.join_reply(join);
    assert_eq!((response.error_code, response.generation_id), (OK, generation));
    assert_eq!(h.state(), "Stable");

    let mut request = join_request(&ids[1]);
    request.protocols[0].metadata = bytes::Bytes::from_static(b"other");
    h.send(Request::Join(request));
    assert_eq!(h.state(), "PreparingRebalance", "what it offers has changed");
}

#[test]
fn a_leader_that_joins_again_forces_a_rebalance() {
    let mut h = Harness::new();
    let (ids, _) = h.stable_group(2);
    h.join(&ids[0]);
    assert_eq!(h.state(), "PreparingRebalance");
}

#[test]
fn a_member_that_missed_its_answer_gets_it_again_while_the_assignment_is_awaited() {
    let mut h = Harness::new();
    let id = h.new_member_id();
    let join = h.join(&id);
    h.pass(3_000);
    let first = h.join_reply(join);
    let again = h.join(&id);
    assert_eq!(h.join_reply(again), first);
}

#[test]
fn a_second_join_of_a_waiting_member_answers_the_first() {
    let mut h = Harness::new();
    let id = h.new_member_id();
    let first = h.join(&id);
    let second = h.join(&id);
    assert_eq!(h.join_reply(first).error_code, ErrorCode::RebalanceInProgress.code());
    h.pass(3_000);
    assert_eq!(h.join_reply(second).error_code, OK);
}

#[test]
fn an_assignment_that_cannot_be_written_makes_everyone_rejoin() {
    let mut h = Harness::new();
    let id = h.new_member_id();
    let join = h.join(&id);
    h.pass(3_000);
    h.join_reply(join);
    h.holds_appends = true;
    let sync = h.sync(&id, 1, &[(&id, "x")]);
    h.fail_one(ErrorCode::NotEnoughReplicas);
    assert_eq!(h.sync_reply(sync).error_code, ErrorCode::CoordinatorNotAvailable.code());
    assert_eq!(h.state(), "PreparingRebalance");
    h.holds_appends = false;
    let join = h.join(&id);
    assert_eq!(h.join_reply(join).generation_id, 2);
}

#[test]
fn the_assignment_of_an_overtaken_generation_is_dropped() {
    let mut h = Harness::new();
    let id = h.new_member_id();
    let join = h.join(&id);
    h.pass(3_000);
    h.join_reply(join);
    h.holds_appends = true;
    let sync = h.sync(&id, 1, &[(&id, "old")]);
    // Another member comes while the record is written.
    let new = h.new_member_id();
    let join_new = h.join(&new);
    assert_eq!(h.sync_reply(sync).error_code, ErrorCode::RebalanceInProgress.code());
    h.release();
    assert_eq!(h.state(), "PreparingRebalance");
    let rejoin = h.join(&id);
    let ids = [id.to_string(), new.to_string()];
    assert_eq!(h.settle_generation(&ids, &[rejoin, join_new]), 2);
}

#[test]
fn a_new_group_that_cannot_be_written_is_none() {
    let mut h = Harness::new();
    h.version = 3;
    h.holds_appends = true;
    let join = h.join("");
    assert_eq!(h.reply(join), None);
    h.fail_one(ErrorCode::NotLeaderOrFollower);
    assert_eq!(h.join_reply(join).error_code, ErrorCode::NotCoordinator.code());
    assert_eq!(h.state(), "Dead");
}

#[test]
fn descriptions_show_metadata_and_assignments_of_a_stable_group() {
    let mut h = Harness::new();
    let (ids, _) = h.stable_group(1);
    let Response::Describe(group) = h.call(Request::Describe(GroupId(text(GROUP)))) else { panic!() };
    assert_eq!(group.protocol_type, text("consumer"));
    assert_eq!(group.protocol_data, text("range"));
    let member = &group.members[0];
    assert_eq!((member.member_id.as_str(), member.client_id.as_str()), (ids[0].as_str(), "client"));
    assert_eq!(member.client_host, text("/127.0.0.1"));
    assert_eq!(member.member_metadata, super::harness::subscription());
    assert_eq!(member.member_assignment, ids[0].as_bytes());
}

#[test]
fn a_group_that_is_not_there_is_dead_or_not_found_by_version() {
    let mut h = Harness::new();
    for (version, error) in [(5, OK), (6, ErrorCode::GroupIdNotFound.code())] {
        h.version = version;
        let Response::Describe(group) = h.call(Request::Describe(GroupId(text("none")))) else { panic!() };
        assert_eq!((group.error_code, group.group_state), (error, text("Dead")));
    }
}

#[test]
fn lists_filter_by_state_and_type_without_regard_to_case() {
    let mut h = Harness::new();
    h.stable_group(1);
    let mut count = |states: &[&str], types: &[&str]| {
        let request = ListGroupsRequest::default()
            .with_states_filter(states.iter().map(|state| text(state)).collect())
            .with_types_filter(types.iter().map(|kind| text(kind)).collect());
        match h.call(Request::List(request)) {
            Response::List(list) => list.groups.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(count(&[], &[]), 1);
    assert_eq!(count(&["sTable"], &["Classic"]), 1);
    assert_eq!(count(&["Empty"], &[]), 0);
    assert_eq!(count(&[], &["consumer"]), 0);
    assert_eq!(count(&["nonsense"], &[]), 0);
    assert_eq!(count(&["Empty", "Stable"], &["share", "classic"]), 1);
}

#[test]
fn members_of_join_group_0_have_their_session_for_a_rebalance_too() {
    let mut h = Harness::new();
    h.version = 0;
    // What is read of a version without the field.
    let join = |member: &str| Request::Join(join_request(member).with_rebalance_timeout_ms(-1));
    let first = h.send(join(""));
    h.wait_for(first);
    let joined = h.join_reply(first);
    let (id, generation) = (joined.member_id.to_string(), joined.generation_id);
    let synced = h.sync(&id, generation, &[(&id, "all")]);
    assert_eq!(h.sync_reply(synced).error_code, OK);
    let second = h.send(join(""));
    h.pass(SESSION_MS as u64 / 2);
    assert!(h.reply(second).is_none(), "the first has time to join again");
    let first = h.send(join(&id));
    let (first, second) = (h.join_reply(first), h.join_reply(second));
    assert_eq!((first.error_code, second.error_code), (OK, OK));
    assert_eq!(first.members.len(), 2);
}
