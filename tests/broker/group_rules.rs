//! The rules of the group coordinator on the wire: who is told which error, in every version. The values are
//! Apache Kafka's.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest, GroupId, HeartbeatRequest,
    JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest, OffsetCommitRequest,
    OffsetDeleteRequest, OffsetFetchRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;
use rdkafka::consumer::Consumer as _;

use crate::harness::batch::read_all;
use crate::harness::client::{Client, Send, poll};
use crate::harness::raw::{Raw, name};
use crate::harness::{Broker, eventually, shard_counts};

const OK: i16 = 0;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const OFFSET_METADATA_TOO_LARGE: i16 = 12;
const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const ILLEGAL_GENERATION: i16 = 22;
const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
const INVALID_GROUP_ID: i16 = 24;
const UNKNOWN_MEMBER_ID: i16 = 25;
const INVALID_SESSION_TIMEOUT: i16 = 26;
const REBALANCE_IN_PROGRESS: i16 = 27;
const NON_EMPTY_GROUP: i16 = 68;
const GROUP_ID_NOT_FOUND: i16 = 69;
const MEMBER_ID_REQUIRED: i16 = 79;
const FENCED_INSTANCE_ID: i16 = 82;
const GROUP_SUBSCRIBED_TO_TOPIC: i16 = 86;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_string())
}

fn group(id: &str) -> GroupId {
    GroupId(text(id))
}

/// A connection to a broker that coordinates `id`.
pub fn coordinator(broker: &Broker, id: &str) -> Raw {
    let mut raw = Raw::connect(broker);
    eventually("the coordinator serves", || {
        let find = FindCoordinatorRequest::default().with_coordinator_keys(vec![text(id)]);
        if raw.call(4, &find).coordinators[0].error_code != OK {
            return None;
        }
        let asked = DescribeGroupsRequest::default().with_groups(vec![group(id)]);
        (raw.call(0, &asked).groups[0].error_code == OK).then_some(())
    });
    raw
}

/// A consumer's subscription to one topic.
fn subscription(topic: &str) -> Bytes {
    let mut bytes = vec![0, 0, 0, 0, 0, 1];
    bytes.extend((topic.len() as u16).to_be_bytes());
    bytes.extend(topic.as_bytes());
    bytes.extend([0xff; 4]);
    bytes.into()
}

pub fn join(id: &str, member: &str) -> JoinGroupRequest {
    let protocol =
        JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata(subscription("topic"));
    JoinGroupRequest::default()
        .with_group_id(group(id))
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(10_000)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

pub fn sync(id: &str, member: &str, generation: i32, assigned: &[(&str, &'static [u8])]) -> SyncGroupRequest {
    let assigned = assigned.iter().map(|(member, assignment)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(Bytes::from_static(assignment))
    });
    SyncGroupRequest::default()
        .with_group_id(group(id))
        .with_member_id(text(member))
        .with_generation_id(generation)
        .with_assignments(assigned.collect())
}

pub fn heartbeat(raw: &mut Raw, id: &str, member: &str, generation: i32) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(group(id))
        .with_member_id(text(member))
        .with_generation_id(generation);
    raw.call(4, &request).error_code
}

fn leave(raw: &mut Raw, id: &str, member: &str) -> i16 {
    let leaver = MemberIdentity::default().with_member_id(text(member));
    let request = LeaveGroupRequest::default().with_group_id(group(id)).with_members(vec![leaver]);
    let response = raw.call(4, &request);
    if response.error_code == OK { response.members[0].error_code } else { response.error_code }
}

fn commit(topic: &str, partition: i32, offset: i64) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(partition)
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text("note")));
    let topic = OffsetCommitRequestTopic::default().with_name(name(topic)).with_partitions(vec![partition]);
    OffsetCommitRequest::default().with_generation_id_or_member_epoch(-1).with_topics(vec![topic])
}

fn commit_code(raw: &mut Raw, version: i16, request: &OffsetCommitRequest) -> i16 {
    raw.call(version, request).topics[0].partitions[0].error_code
}

/// The committed offset of partition 0.
fn committed(raw: &mut Raw, id: &str, topic: &str) -> i64 {
    let topic = OffsetFetchRequestTopics::default().with_name(name(topic)).with_partition_indexes(vec![0]);
    let asked = OffsetFetchRequestGroup::default().with_group_id(group(id)).with_topics(Some(vec![topic]));
    let response = raw.call(8, &OffsetFetchRequest::default().with_groups(vec![asked]));
    assert_eq!(response.groups[0].error_code, OK);
    response.groups[0].topics[0].partitions[0].committed_offset
}

fn delete(raw: &mut Raw, id: &str) -> i16 {
    raw.call(2, &DeleteGroupsRequest::default().with_groups_names(vec![group(id)])).results[0].error_code
}

fn delete_offset(raw: &mut Raw, id: &str, topic: &str) -> (i16, i16) {
    let partitions = vec![OffsetDeleteRequestPartition::default()];
    let topic = OffsetDeleteRequestTopic::default().with_name(name(topic)).with_partitions(partitions);
    let response =
        raw.call(0, &OffsetDeleteRequest::default().with_group_id(group(id)).with_topics(vec![topic]));
    let of_partition = response.topics.first().map_or(OK, |topic| topic.partitions[0].error_code);
    (response.error_code, of_partition)
}

/// Joins as clients since version 4 do, and syncs; the member's id and the generation.
fn stable_member(raw: &mut Raw, id: &str) -> (String, i32) {
    let first = raw.call(5, &join(id, ""));
    assert_eq!(first.error_code, MEMBER_ID_REQUIRED);
    let joined = raw.call(5, &join(id, &first.member_id));
    assert_eq!((joined.error_code, &joined.leader), (OK, &first.member_id));
    let member = joined.member_id.to_string();
    let synced = raw.call(3, &sync(id, &member, joined.generation_id, &[(&member, b"all")]));
    assert_eq!((synced.error_code, &synced.assignment[..]), (OK, &b"all"[..]));
    (member, joined.generation_id)
}

#[test]
fn commits_share_a_batch_with_those_that_come_within_the_linger() {
    if Broker::is_kafka() {
        return;
    }
    let settings = [("group.coordinator.append.linger.ms", "1000"), ("offsets.topic.num.partitions", "1")];
    let broker = Broker::with(2, &settings);
    Client::of(&broker).create_topic("t", 1, &[]);
    let ids: Vec<String> = (0..20).map(|number| format!("g{number}")).collect();
    let mut members: Vec<Raw> = ids.iter().map(|id| coordinator(&broker, id)).collect();
    for (member, (id, offset)) in members.iter_mut().zip(ids.iter().zip(0..)) {
        member.send(8, &commit("t", 0, offset).with_group_id(group(id)));
    }
    for member in &mut members {
        let (_, response) = member.receive::<OffsetCommitRequest>(8);
        assert_eq!(response.topics[0].partitions[0].error_code, OK);
    }
    let log = broker.data().join("__consumer_offsets-0").join("00000000000000000000.log");
    let batches = read_all(&std::fs::read(log).expect("the log of the offsets topic"));
    let records: usize = batches.iter().map(|batch| batch.offsets.len()).sum();
    assert_eq!(records, ids.len());
    assert!(batches.len() < records, "{} batches", batches.len());
    for (member, (id, offset)) in members.iter_mut().zip(ids.iter().zip(0..)) {
        assert_eq!(committed(member, id, "t"), offset);
    }
}

#[test]
fn a_groups_life_on_the_wire() {
    let broker = Broker::with(2, &[("group.initial.rebalance.delay.ms", "0")]);
    let client = Client::of(&broker);
    client.create_topic("topic", 1, &[]);
    client.create_topic("other", 1, &[]);
    let mut raw = coordinator(&broker, "g");

    for (request, code) in [
        (join("", ""), INVALID_GROUP_ID),
        (join("g", "").with_session_timeout_ms(5_999), INVALID_SESSION_TIMEOUT),
        (join("g", "").with_session_timeout_ms(1_800_001), INVALID_SESSION_TIMEOUT),
        (join("g", "nobody"), UNKNOWN_MEMBER_ID),
        (join("g", "").with_protocols(Vec::new()), INCONSISTENT_GROUP_PROTOCOL),
    ] {
        assert_eq!(raw.call(5, &request).error_code, code, "{request:?}");
    }
    assert_eq!(heartbeat(&mut raw, "g", "nobody", 0), UNKNOWN_MEMBER_ID);
    assert_eq!(leave(&mut raw, "g", "nobody"), UNKNOWN_MEMBER_ID);
    assert_eq!(raw.call(3, &sync("g", "nobody", 0, &[])).error_code, UNKNOWN_MEMBER_ID);

    let (member, generation) = stable_member(&mut raw, "g");
    assert_eq!(heartbeat(&mut raw, "g", &member, generation), OK);
    assert_eq!(heartbeat(&mut raw, "g", &member, generation + 1), ILLEGAL_GENERATION);
    assert_eq!(heartbeat(&mut raw, "g", "nobody", generation), UNKNOWN_MEMBER_ID);
    assert_eq!(raw.call(3, &sync("g", &member, generation + 1, &[])).error_code, ILLEGAL_GENERATION);
    assert_eq!(
        raw.call(5, &join("g", "").with_protocol_type(text("connect"))).error_code,
        INCONSISTENT_GROUP_PROTOCOL
    );

    // Commits: of the member in its generation alone.
    let own = |generation| {
        commit("topic", 0, 7)
            .with_group_id(group("g"))
            .with_member_id(text(&member))
            .with_generation_id_or_member_epoch(generation)
    };
    assert_eq!(commit_code(&mut raw, 8, &own(generation)), OK);
    assert_eq!(commit_code(&mut raw, 8, &own(generation + 1)), ILLEGAL_GENERATION);
    assert_eq!(commit_code(&mut raw, 8, &commit("topic", 0, 8).with_group_id(group("g"))), UNKNOWN_MEMBER_ID);
    assert_eq!(committed(&mut raw, "g", "topic"), 7);

    // Deleting while it is in use.
    assert_eq!(delete(&mut raw, "g"), NON_EMPTY_GROUP);
    assert_eq!(delete_offset(&mut raw, "g", "topic"), (OK, GROUP_SUBSCRIBED_TO_TOPIC));
    assert_eq!(delete_offset(&mut raw, "g", "other"), (OK, OK));

    // A second member: the first is called back by its heartbeat.
    let mut second = Raw::connect(&broker);
    let id = second.call(5, &join("g", "")).member_id;
    second.send(5, &join("g", &id));
    eventually("the rebalance begins", || {
        (heartbeat(&mut raw, "g", &member, generation) == REBALANCE_IN_PROGRESS).then_some(())
    });
    assert_eq!(raw.call(3, &sync("g", &member, generation, &[])).error_code, REBALANCE_IN_PROGRESS);
    let rejoined = raw.call(5, &join("g", &member));
    let (_, joined) = second.receive::<JoinGroupRequest>(5);
    assert_eq!((rejoined.generation_id, joined.generation_id), (generation + 1, generation + 1));
    assert_eq!((rejoined.members.len(), joined.members.len()), (2, 0));
    assert_eq!(commit_code(&mut raw, 8, &own(generation + 1)), REBALANCE_IN_PROGRESS);
    second.send(3, &sync("g", &id, generation + 1, &[]));
    let shares: [(&str, &'static [u8]); 2] = [(&member, b"a"), (&id, b"b")];
    assert_eq!(&raw.call(3, &sync("g", &member, generation + 1, &shares)).assignment[..], b"a");
    assert_eq!(&second.receive::<SyncGroupRequest>(3).1.assignment[..], b"b");

    // Leaving, until the group is empty and can be deleted with its offsets.
    assert_eq!(leave(&mut raw, "g", &member), OK);
    assert_eq!(leave(&mut raw, "g", &member), UNKNOWN_MEMBER_ID);
    assert_eq!(leave(&mut second, "g", &id), OK);
    assert_eq!(committed(&mut raw, "g", "topic"), 7);
    assert_eq!(delete(&mut raw, "g"), OK);
    assert_eq!(delete(&mut raw, "g"), GROUP_ID_NOT_FOUND);
    assert_eq!(committed(&mut raw, "g", "topic"), -1);
    assert_eq!(delete_offset(&mut raw, "g", "topic").0, GROUP_ID_NOT_FOUND);
}

#[test]
fn old_versions_join_without_an_id_and_are_answered_in_their_form() {
    for version in 0..=9 {
        let broker = Broker::with(1, &[("group.initial.rebalance.delay.ms", "0")]);
        let mut raw = coordinator(&broker, "g");
        let mut request = join("g", "");
        if version == 0 {
            request.rebalance_timeout_ms = -1;
        }
        let mut response: JoinGroupResponse = raw.call(version, &request);
        if version >= 4 {
            assert_eq!(response.error_code, MEMBER_ID_REQUIRED);
            request.member_id = response.member_id;
            response = raw.call(version, &request);
        }
        assert_eq!((response.error_code, response.generation_id), (OK, 1), "version {version}");
        assert_eq!(response.protocol_name, Some(text("range")));
        assert_eq!(response.members[0].metadata, subscription("topic"));
        let member = response.member_id.to_string();
        let version_of = |newest: i16| version.min(newest);
        let mut request = sync("g", &member, 1, &[(&member, b"x")]);
        if version >= 5 {
            assert_eq!(raw.call(5, &request).error_code, INCONSISTENT_GROUP_PROTOCOL);
            request.protocol_type = Some(text("consumer"));
            request.protocol_name = Some(text("range"));
        }
        let synced = raw.call(version_of(5), &request);
        assert_eq!((synced.error_code, &synced.assignment[..]), (OK, &b"x"[..]));
        let beat = HeartbeatRequest::default()
            .with_group_id(group("g"))
            .with_member_id(text(&member))
            .with_generation_id(1);
        assert_eq!(raw.call(version_of(4), &beat).error_code, OK);
        let described =
            raw.call(version_of(6), &DescribeGroupsRequest::default().with_groups(vec![group("g")]));
        assert_eq!((&*described.groups[0].group_state, described.groups[0].members.len()), ("Stable", 1));
        assert_eq!(described.groups[0].members[0].client_host, text("/127.0.0.1"));
        let listed = raw.call(version_of(5), &ListGroupsRequest::default());
        assert_eq!((listed.groups.len(), &*listed.groups[0].protocol_type), (1, "consumer"));
        if version >= 5 {
            assert_eq!(
                (&*listed.groups[0].group_state, &*listed.groups[0].group_type),
                ("Stable", "classic")
            );
        }
        let leaving = LeaveGroupRequest::default().with_group_id(group("g"));
        let leaving = match version_of(5) {
            ..3 => leaving.with_member_id(text(&member)),
            _ => leaving.with_members(vec![MemberIdentity::default().with_member_id(text(&member))]),
        };
        assert_eq!(raw.call(version_of(5), &leaving).error_code, OK);
        assert_eq!(delete_in(&mut raw, version_of(2)), OK);
        let gone = raw.call(version_of(6), &DescribeGroupsRequest::default().with_groups(vec![group("g")]));
        let expected = if version_of(6) >= 6 { GROUP_ID_NOT_FOUND } else { OK };
        assert_eq!((gone.groups[0].error_code, &*gone.groups[0].group_state), (expected, "Dead"));
    }
}

fn delete_in(raw: &mut Raw, version: i16) -> i16 {
    raw.call(version, &DeleteGroupsRequest::default().with_groups_names(vec![group("g")])).results[0]
        .error_code
}

#[test]
fn commits_and_fetches_work_in_every_version() {
    for shards in shard_counts([1, 3]) {
        let broker = Broker::with(shards, &[]);
        Client::of(&broker).create_topic("kept", 2, &[]);
        let mut raw = coordinator(&broker, "g");
        for version in 2..=9 {
            let mut request = commit("kept", 1, i64::from(version)).with_group_id(group("g"));
            if version >= 6 {
                request.topics[0].partitions[0].committed_leader_epoch = 0;
            }
            assert_eq!(commit_code(&mut raw, version, &request), OK, "version {version}");
        }
        for version in 1..=9 {
            let all = version >= 2;
            let (offset, metadata) = if version >= 8 {
                let asked = OffsetFetchRequestGroup::default().with_group_id(group("g")).with_topics(None);
                let other = OffsetFetchRequestGroup::default().with_group_id(group("none")).with_topics(None);
                let request = OffsetFetchRequest::default().with_groups(vec![asked, other]);
                let response = raw.call(version, &request);
                assert_eq!((&*response.groups[1].group_id.0, response.groups[1].topics.len()), ("none", 0));
                let partition = response.groups[0].topics[0].partitions[0].clone();
                (partition.committed_offset, partition.metadata)
            } else {
                let topic = OffsetFetchRequestTopic::default()
                    .with_name(name("kept"))
                    .with_partition_indexes(vec![1]);
                let request = OffsetFetchRequest::default()
                    .with_group_id(group("g"))
                    .with_topics((!all).then_some(vec![topic]));
                let response = raw.call(version, &request);
                assert_eq!(response.error_code, OK);
                let partition = response.topics[0].partitions[0].clone();
                (partition.committed_offset, partition.metadata)
            };
            assert_eq!((offset, metadata), (9, Some(text("note"))), "version {version}");
        }
    }
}

#[test]
fn commits_that_cannot_be_kept_are_refused_alone() {
    let broker = Broker::with(2, &[("offset.metadata.max.bytes", "10")]);
    Client::of(&broker).create_topic("topic", 1, &[]);
    let mut raw = coordinator(&broker, "g");
    let to = |request: OffsetCommitRequest| request.with_group_id(group("g"));
    assert_eq!(commit_code(&mut raw, 8, &to(commit("nowhere", 0, 1))), UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(commit_code(&mut raw, 8, &to(commit("topic", 1, 1))), UNKNOWN_TOPIC_OR_PARTITION);
    let mut long = to(commit("topic", 0, 1));
    long.topics[0].partitions[0].committed_metadata = Some(text("eleven long"));
    assert_eq!(commit_code(&mut raw, 8, &long), OFFSET_METADATA_TOO_LARGE);
    assert_eq!(commit_code(&mut raw, 8, &to(commit("topic", 0, 1))), OK);
    let with_generation = to(commit("topic", 0, 1)).with_generation_id_or_member_epoch(1);
    let unknown = with_generation.clone().with_group_id(group("unknown"));
    assert_eq!(commit_code(&mut raw, 8, &unknown), ILLEGAL_GENERATION);
    assert_eq!(commit_code(&mut raw, 9, &unknown), GROUP_ID_NOT_FOUND);
}

#[test]
fn a_topic_that_is_deleted_and_made_again_has_no_old_offsets() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("reborn", 1, &[]);
    let mut raw = coordinator(&broker, "g");
    assert_eq!(commit_code(&mut raw, 8, &commit("reborn", 0, 5).with_group_id(group("g"))), OK);
    assert_eq!(committed(&mut raw, "g", "reborn"), 5);
    client.delete_topic("reborn").expect("deleted");
    eventually("the offset is gone", || (committed(&mut raw, "g", "reborn") == -1).then_some(()));
    eventually("the topic is made again", || client.try_create_topic("reborn", 1, &[]).ok());
    client.await_partitions("reborn", 1);
    assert_eq!(committed(&mut raw, "g", "reborn"), -1);
}

#[test]
fn a_static_member_that_restarts_keeps_its_partitions_and_disturbs_nobody() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("static", 4, &[]);
    let join = |instance: &str| {
        let consumer = client.consumer(&[
            ("group.id", "g"),
            ("group.instance.id", instance),
            ("session.timeout.ms", "20000"),
            ("heartbeat.interval.ms", "200"),
            ("auto.offset.reset", "earliest"),
        ]);
        consumer.subscribe(&["static"]).expect("subscribed");
        consumer
    };
    let share = |consumer: &rdkafka::consumer::BaseConsumer| -> BTreeSet<i32> {
        let assignment = consumer.assignment().expect("an assignment");
        assignment.elements().iter().map(|element| element.partition()).collect()
    };
    let (one, two) = (join("one"), join("two"));
    eventually("both have their share", || {
        one.poll(Duration::from_millis(20));
        two.poll(Duration::from_millis(20));
        (share(&one).len() == 2 && share(&two).len() == 2).then_some(())
    });
    let before = share(&two);
    // A static member does not leave when it closes.
    drop(two);
    let start = Instant::now();
    let two = join("two");
    eventually("it is back", || {
        one.poll(Duration::from_millis(20));
        two.poll(Duration::from_millis(20));
        assert_eq!(share(&one).len(), 2, "the other keeps its share");
        (share(&two) == before).then_some(())
    });
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    client.send(
        &client.producer(&[]),
        "static",
        &[Send::value("x").to(*before.first().expect("a partition"))],
    );
    assert_eq!(poll(&two, 1)[0].text(), "x");
}

#[test]
fn the_former_self_of_a_static_member_is_fenced() {
    let broker = Broker::with(2, &[("group.initial.rebalance.delay.ms", "0")]);
    let mut raw = coordinator(&broker, "g");
    let join = |member: &str| join("g", member).with_group_instance_id(Some(text("i")));
    let first = raw.call(5, &join(""));
    assert_eq!(first.error_code, OK);
    let old = first.member_id.to_string();
    assert!(old.starts_with("i-"), "{old}");
    let mut request = sync("g", &old, 1, &[(&old, b"x")]);
    request.group_instance_id = Some(text("i"));
    assert_eq!(raw.call(3, &request).error_code, OK);
    let again = raw.call(9, &join(""));
    assert_eq!((again.error_code, again.generation_id, again.skip_assignment), (OK, 1, true));
    let beat = |member: &str| {
        HeartbeatRequest::default()
            .with_group_id(group("g"))
            .with_member_id(text(member))
            .with_group_instance_id(Some(text("i")))
            .with_generation_id(1)
    };
    assert_eq!(raw.call(4, &beat(&old)).error_code, FENCED_INSTANCE_ID);
    assert_eq!(raw.call(4, &beat(&again.member_id)).error_code, OK);
    assert_eq!(raw.call(5, &join(&old)).error_code, FENCED_INSTANCE_ID);
}

#[test]
fn too_few_brokers_for_the_offsets_topic_are_named() {
    if Broker::is_kafka() {
        // The property's default is overridden for the tests there.
        return;
    }
    let broker = Broker::with(2, &[("offsets.topic.replication.factor", "3")]);
    let mut raw = Raw::connect(&broker);
    for version in [0, 3, 4] {
        let request = match version {
            4 => FindCoordinatorRequest::default().with_coordinator_keys(vec![text("g")]),
            _ => FindCoordinatorRequest::default().with_key(text("g")),
        };
        let response = raw.call(version, &request);
        let code = response.coordinators.first().map_or(response.error_code, |found| found.error_code);
        assert_eq!(code, COORDINATOR_NOT_AVAILABLE);
    }
    eventually("the log says why", || {
        let lines =
            broker.log().lines().filter(|line| line.contains("offsets.topic.replication.factor")).count();
        (lines == 1).then_some(())
    });
}
