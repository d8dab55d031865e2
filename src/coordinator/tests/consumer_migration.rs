//! Groups that change from the classic protocol to the new one and back while their members live (KIP-848).

use bytes::Bytes;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{GroupId, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest};

use super::consumers::{Cluster, beat, join, owning};
use super::harness::{GROUP, Harness, OK, join_request, settings, text};
use crate::base::TopicId;
use crate::config::{ConsumerGroupTimes, MigrationPolicy};
use crate::coordinator::{ReplyToken, Request, Response};
use crate::wire::ErrorCode;

/// A `ConsumerProtocolAssignment` 0 of partitions of topic "t".
fn assignment(partitions: &[i32]) -> Bytes {
    let mut bytes = vec![0, 0, 0, 0, 0, 1, 0, 1, b't'];
    bytes.extend((partitions.len() as i32).to_be_bytes());
    partitions.iter().for_each(|partition| bytes.extend(partition.to_be_bytes()));
    bytes.extend([0xff; 4]);
    bytes.into()
}

/// A `ConsumerProtocolSubscription` 1 to topic "t" of a member that has these.
fn rejoin(member: &str, owned: &[i32]) -> JoinGroupRequest {
    let mut bytes = vec![0, 1, 0, 0, 0, 1, 0, 1, b't', 0xff, 0xff, 0xff, 0xff];
    match owned {
        [] => bytes.extend([0; 4]),
        _ => {
            bytes.extend([0, 0, 0, 1, 0, 1, b't']);
            bytes.extend((owned.len() as i32).to_be_bytes());
            owned.iter().for_each(|partition| bytes.extend(partition.to_be_bytes()));
        }
    }
    let mut request = join_request(member);
    request.protocols[0].metadata = bytes.into();
    request
}

/// A stable classic group of one member that has both partitions of "t".
fn classic_group(h: &mut Harness) -> String {
    h.version = 9;
    let id = h.new_member_id().to_string();
    let token = h.join(&id);
    h.wait_for(token);
    let generation = h.join_reply(token).generation_id;
    let mut request = super::harness::sync_request(&id, generation, &[(&id, "")]);
    request.assignments[0].assignment = assignment(&[0, 1]);
    let token = h.send(Request::Sync(request));
    assert_eq!(h.sync_reply(token).error_code, OK);
    id
}

fn heartbeat(h: &mut Harness, member: &str, generation: i32) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_generation_id(generation)
        .with_member_id(text(member));
    match h.call(Request::Heartbeat(request)) {
        Response::Heartbeat(response) => response.error_code,
        other => panic!("{other:?}"),
    }
}

fn upgraded() -> (Harness, Cluster, String, TopicId) {
    let (mut h, cluster) = Harness::consumers(&[("t", 2)]);
    let old = classic_group(&mut h);
    let t = cluster.id("t");
    h.version = 1;
    // The first member of the new protocol takes the group along.
    assert_eq!(h.beats(join("new", &["t"])), (2, Some(vec![])));
    (h, cluster, old, t)
}

#[test]
fn a_classic_group_is_taken_over_with_its_members_and_their_partitions() {
    let (mut h, _, old, t) = upgraded();
    h.restart_same();
    let group = h.describe_consumer();
    assert_eq!(group.members.len(), 2);
    let classic = group.members.iter().find(|member| *member.member_id == *old).expect("the old member");
    assert_eq!((classic.member_epoch, classic.member_type), (1, 0));
    assert_eq!(classic.assignment.topic_partitions[0].partitions, [0, 1]);

    // The old one joins again twice: to give one back, then for the next generation.
    h.version = 9;
    let rebalance = ErrorCode::RebalanceInProgress.code();
    assert_eq!(heartbeat(&mut h, &old, 1), rebalance);
    let token = h.send(Request::Join(rejoin(&old, &[0, 1])));
    let joined = h.join_reply(token);
    assert_eq!((joined.error_code, joined.generation_id, &*joined.leader), (OK, 1, ""));
    assert_eq!(joined.protocol_name.as_deref(), Some("range"));
    let token = h.sync(&old, 1, &[]);
    assert_eq!(h.sync_reply(token).assignment, assignment_of(1, &[0]));
    assert_eq!(heartbeat(&mut h, &old, 1), rebalance);
    let token = h.send(Request::Join(rejoin(&old, &[0])));
    assert_eq!(h.join_reply(token).generation_id, 2);
    let token = h.sync(&old, 2, &[]);
    assert_eq!(h.sync_reply(token).assignment, assignment_of(1, &[0]));
    assert_eq!(heartbeat(&mut h, &old, 2), OK);
    assert_eq!(heartbeat(&mut h, &old, 1), ErrorCode::IllegalGeneration.code());
    h.version = 1;
    assert_eq!(h.beats(beat("new", 2)), (2, Some(vec![(t, vec![1])])));
    assert_eq!(h.group().state_name(), "Stable");
    h.restart_same();
}

/// An assignment in the version of the subscription.
fn assignment_of(version: u8, partitions: &[i32]) -> Bytes {
    let mut bytes = assignment(partitions).to_vec();
    bytes[1] = version;
    bytes.into()
}

#[test]
fn the_group_goes_back_when_the_last_of_the_new_protocol_leaves() {
    let (mut h, _, old, _) = upgraded();
    h.beats(beat("new", -1));
    h.version = 9;
    assert_eq!(h.state(), "PreparingRebalance");
    assert_eq!(heartbeat(&mut h, &old, 2), ErrorCode::RebalanceInProgress.code());
    let token = h.send(Request::Join(rejoin(&old, &[0, 1])));
    let joined = h.join_reply(token);
    assert_eq!((joined.error_code, joined.generation_id, &*joined.leader), (OK, 3, old.as_str()));
    let token = h.sync(&old, 3, &[(&old, "x")]);
    assert_eq!(h.sync_reply(token).assignment, "x".as_bytes());
    h.restart_same();
    assert_eq!(h.state(), "Stable");
    assert_eq!(heartbeat(&mut h, &old, 3), OK);
}

#[test]
fn the_group_goes_back_when_the_last_of_the_new_protocol_is_silent() {
    let (mut h, _, old, _) = upgraded();
    for _ in 0..10 {
        h.version = 9;
        h.pass(5_000);
        heartbeat(&mut h, &old, 1);
        let token = h.send(Request::Join(rejoin(&old, &[0, 1])));
        h.reply(token);
    }
    let Ok(state) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| h.state())) else { panic!() };
    assert_ne!(state, "Dead", "it is a classic group again");
}

#[test]
fn what_the_policy_forbids_is_refused() {
    for (policy, upgrades) in [(MigrationPolicy::Disabled, false), (MigrationPolicy::Upgrade, true)] {
        let mut with = settings();
        with.consumer.migration_policy = policy;
        let (mut h, _) = Harness::consumers_with(with, &[("t", 2)]);
        classic_group(&mut h);
        h.version = 1;
        let response = h.answer(join("new", &["t"]));
        if !upgrades {
            assert_eq!(response.error_code, ErrorCode::GroupIdNotFound.code());
            assert_eq!(
                response.error_message.as_deref(),
                Some("Cannot upgrade classic group g to consumer group because online upgrade is disabled.")
            );
            continue;
        }
        h.beats(beat("new", -1));
        assert_eq!(h.group().len(), 1, "the old member stays in a consumer group");
    }
}

#[test]
fn a_group_of_another_kind_is_not_taken_over() {
    let (mut h, _) = Harness::consumers(&[("t", 2)]);
    h.version = 9;
    let mut request = join_request("").with_protocol_type(text("connect"));
    let token = h.send(Request::Join(request.clone()));
    request.member_id = h.join_reply(token).member_id;
    h.send(Request::Join(request));
    h.version = 1;
    let response = h.answer(join("new", &["t"]));
    assert_eq!(
        response.error_message.as_deref(),
        Some(
            "Cannot upgrade classic group g to consumer group because the group does not use the consumer \
             embedded protocol."
        )
    );
}

#[test]
fn a_rebalance_that_is_on_is_broken_off_by_the_upgrade() {
    let (mut h, _) = Harness::consumers(&[("t", 2)]);
    let old = classic_group(&mut h);
    h.version = 9;
    let other = h.new_member_id().to_string();
    let waiting: ReplyToken = h.join(&other);
    assert_eq!(h.state(), "PreparingRebalance");
    h.version = 1;
    h.beats(join("new", &["t"]));
    let joined = h.join_reply(waiting);
    assert_eq!(joined.error_code, ErrorCode::RebalanceInProgress.code());
    assert_eq!(h.group().len(), 3);
    assert_eq!(h.group().shared_partitions(), 0);
    h.restart_same();
    h.version = 9;
    assert_eq!(h.leave(&old), OK);
    assert_eq!(h.leave(&other), OK);
    h.version = 1;
    assert_eq!(h.group().len(), 1);
    // An administrator may send away members of the new protocol too.
    h.version = 9;
    assert_eq!(h.leave("new"), OK);
    assert!(h.group().is_empty());
}

#[test]
fn empty_groups_change_their_kind_and_keep_their_offsets() {
    let (mut h, _) = Harness::consumers(&[("t", 2)]);
    h.version = 9;
    assert_eq!(h.commit("", -1, 5), OK);
    h.version = 1;
    assert_eq!(h.beats(join("a", &["t"])).0, 2);
    assert_eq!(h.committed(GROUP, "t"), 5);
    h.restart_same();
    assert_eq!(h.committed(GROUP, "t"), 5);
    h.beats(beat("a", -1));
    classic_group(&mut h);
    assert_eq!(h.committed(GROUP, "t"), 5);
    assert_eq!(h.state(), "Stable");
    h.restart_same();
    assert_eq!(h.state(), "Stable");
}

#[test]
fn a_static_member_comes_back_by_the_other_protocol() {
    let (mut h, cluster) = Harness::consumers(&[("t", 2)]);
    let t = cluster.id("t");
    h.version = 9;
    let mut request = join_request("");
    request.group_instance_id = Some(text("i"));
    let token = h.send(Request::Join(request.clone()));
    h.wait_for(token);
    let joined = h.join_reply(token);
    let id = joined.member_id.to_string();
    let mut sync = super::harness::sync_request(&id, joined.generation_id, &[(&id, "")]);
    sync.assignments[0].assignment = assignment(&[0, 1]);
    let token = h.send(Request::Sync(sync));
    h.sync_reply(token);
    h.version = 1;
    // It need not have left.
    let of = |request: kafka_protocol::messages::ConsumerGroupHeartbeatRequest| {
        request.with_instance_id(Some(text("i")))
    };
    assert_eq!(h.beats(of(join("new", &["t"]))).1, Some(vec![(t, vec![0, 1])]));
    assert_eq!(h.group().len(), 1);
    h.restart_same();
    let epoch = h.describe_consumer().members[0].member_epoch;
    h.beats(of(owning("new", epoch, &[(t, &[0, 1])])));
    // And back: nothing changes but the protocol.
    h.version = 9;
    let token = h.send(Request::Join(request));
    let joined = h.join_reply(token);
    assert_eq!(joined.error_code, OK);
    assert_eq!(h.state(), "Stable");
    let token = h.sync(&joined.member_id, joined.generation_id, &[]);
    assert_eq!(h.sync_reply(token).assignment, assignment(&[0, 1]));
    h.restart_same();
    assert_eq!(h.state(), "Stable");
}

#[test]
fn who_joins_by_the_classic_protocol_waits_for_the_group_that_is_being_founded() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.holds_appends = true;
    let founder = h.send(Request::ConsumerHeartbeat(join("new", &["t"])));
    h.version = 3;
    let old = h.join("");
    assert_eq!(h.held.len(), 1, "the founding alone is written");
    h.release();
    assert!(h.reply(founder).is_some());
    assert_eq!(h.join_reply(old).error_code, OK);
    assert_eq!(h.group().len(), 2);
    h.restart_same();
    assert_eq!(h.group().len(), 2);
}

#[test]
fn a_join_in_place_of_an_ended_group_that_cannot_be_deleted_is_told_once() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.beats(join("a", &["t"]));
    h.beats(beat("a", -1));
    h.holds_appends = true;
    h.version = 3;
    let joining = h.join("");
    assert_eq!(h.held.len(), 1, "the end of the consumer group");
    h.fail_one(ErrorCode::NotEnoughReplicas);
    assert_eq!(h.join_reply(joining).error_code, ErrorCode::CoordinatorNotAvailable.code());
    assert!(h.held.is_empty(), "it is not tried again unless somebody asks");
    h.release();
    let joining = h.join("");
    h.wait_for(joining);
    assert_eq!(h.join_reply(joining).error_code, OK);
}

#[test]
fn what_a_member_was_waited_for_before_a_downgrade_does_not_end_it_after_the_next_upgrade() {
    let (mut h, _, old, _) = upgraded();
    h.version = 9;
    // It joins and would have to sync within its rebalance time-out, a minute.
    let token = h.send(Request::Join(rejoin(&old, &[0, 1])));
    assert_eq!(h.join_reply(token).error_code, OK);
    h.version = 1;
    h.beats(beat("new", -1));
    h.version = 9;
    assert_eq!(
        h.coordinator.timers_armed(),
        3,
        "the old one's session, the end of the join phase, the sweep"
    );
    let token = h.send(Request::Join(rejoin(&old, &[0, 1])));
    let generation = h.join_reply(token).generation_id;
    let mut request = super::harness::sync_request(&old, generation, &[(&old, "")]);
    request.assignments[0].assignment = assignment(&[0, 1]);
    let token = h.send(Request::Sync(request));
    assert_eq!(h.sync_reply(token).error_code, OK);
    for _ in 0..11 {
        h.pass(5_000);
        assert_eq!(heartbeat(&mut h, &old, generation), OK);
    }
    h.version = 1;
    h.beats(join("new", &["t"]));
    // Past the minute that began before the group was a classic one in between.
    for _ in 0..2 {
        h.pass(5_000);
        let rebalances = heartbeat(&mut h, &old, generation);
        assert_eq!(rebalances, ErrorCode::RebalanceInProgress.code());
    }
    assert_eq!(h.group().len(), 2);
}

#[test]
fn a_member_of_the_classic_protocol_does_not_join_again_and_again_until_there_is_a_target() {
    let mut batched = settings();
    batched.consumer.times = ConsumerGroupTimes { assignment_interval_ms: 15_000, ..batched.consumer.times };
    let (mut h, _) = Harness::consumers_with(batched, &[("t", 2)]);
    let old = classic_group(&mut h);
    h.version = 1;
    h.beats(join("new", &["t"]));
    h.beats(join("late", &["t"]));
    let described = h.describe_consumer();
    assert!(described.group_epoch > described.assignment_epoch, "the target is put off");
    h.version = 9;
    let rebalance = ErrorCode::RebalanceInProgress.code();
    let mut generation = 1;
    // Towards the target that there is.
    for owned in [&[0, 1][..], &[0]] {
        assert_eq!(heartbeat(&mut h, &old, generation), rebalance);
        let token = h.send(Request::Join(rejoin(&old, owned)));
        generation = h.join_reply(token).generation_id;
        let token = h.sync(&old, generation, &[]);
        assert_eq!(h.sync_reply(token).error_code, OK, "it has what it can have by now");
    }
    // And with a heartbeat after the interval towards the next.
    for _ in 0..4 {
        h.pass(4_000);
        assert_eq!(heartbeat(&mut h, &old, generation), rebalance);
    }
    let token = h.send(Request::Join(rejoin(&old, &[0])));
    assert!(h.join_reply(token).generation_id > generation);
    let described = h.describe_consumer();
    assert_eq!(described.group_epoch, described.assignment_epoch);
}

#[test]
fn an_administrator_that_removes_a_member_by_its_instance_id_is_not_told_the_members() {
    let (mut h, _) = Harness::consumers(&[("t", 2)]);
    h.beats(join("a", &["t"]).with_instance_id(Some(text("i"))));
    h.beats(join("b", &["t"]));
    h.version = 5;
    let by_instance = MemberIdentity::default().with_group_instance_id(Some(text("i")));
    let request =
        LeaveGroupRequest::default().with_group_id(GroupId(text(GROUP))).with_members(vec![by_instance]);
    let Response::Leave(left) = h.call(Request::Leave(request)) else { panic!("an answer to LeaveGroup") };
    let member = &left.members[0];
    assert_eq!(
        (member.error_code, &*member.member_id, member.group_instance_id.as_deref()),
        (OK, "", Some("i"))
    );
    assert_eq!(h.group().len(), 1);
}

#[test]
fn a_group_that_is_changing_its_kind_answers_no_heartbeat_before_it_has() {
    let (mut h, _) = Harness::consumers(&[("t", 2)]);
    let old = classic_group(&mut h);
    let request = HeartbeatRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_generation_id(1)
        .with_member_id(text(&old));
    let beat = Request::Heartbeat(request);
    assert!(h.beat(&beat).is_some());
    h.holds_appends = true;
    h.version = 1;
    h.send(Request::ConsumerHeartbeat(join("new", &["t"])));
    assert_eq!(h.held.len(), 1, "the upgrade is written");
    assert_eq!(h.beat(&beat), None);
    h.version = 9;
    let waiting = h.send(beat);
    assert_eq!(h.reply(waiting), None);
    h.release();
    assert!(h.reply(waiting).is_some());
}
