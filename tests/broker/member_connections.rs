//! Connections that bring nothing but heartbeats of group members, or other requests to their coordinator: they go over to its
//! shard, those of many members are looked at together, and nothing else changes for them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::{BufMut as _, BytesMut};
use kafka_protocol::messages::{
    ApiVersionsRequest, GroupId, HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest, RequestHeader,
};
use kafka_protocol::protocol::{Encodable as _, StrBytes};

use crate::admin::metric;
use crate::group_rules::{coordinator, join, sync};
use crate::harness::raw::{Answer, Raw};
use crate::harness::{Broker, PATIENCE, eventually};

const MEMBERS: usize = 400;
/// Heartbeats that come sooner after each other are part of a rebalance.
const INTERVAL: Duration = Duration::from_millis(250);
const ILLEGAL_GENERATION: i16 = 22;
const UNKNOWN_MEMBER_ID: i16 = 25;
const REBALANCE_IN_PROGRESS: i16 = 27;
const OK: i16 = 0;

fn heartbeat() -> HeartbeatRequest {
    HeartbeatRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str("g")))
        .with_member_id(StrBytes::from_static_str("nobody"))
}

fn versions() -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("raw"))
        .with_client_software_version(StrBytes::from_static_str("1"))
}

/// A heartbeat of each, all at once.
fn beat(members: &mut [Raw]) {
    for member in &mut *members {
        member.send(4, &heartbeat());
    }
    for member in members {
        assert_eq!(member.receive::<HeartbeatRequest>(4).1.error_code, UNKNOWN_MEMBER_ID);
    }
}

#[test]
fn connections_of_many_members_are_looked_at_together_on_the_coordinators_shard() {
    if Broker::is_kafka() {
        return;
    }
    let backlog = ("socket.listen.backlog.size", "1000");
    let broker = Broker::with(2, &[("connections.max.idle.ms", "6000"), backlog]);
    drop(coordinator(&broker, "g"));
    let mut members: Vec<Raw> = (0..MEMBERS).map(|_| Raw::connect(&broker)).collect();
    eventually("all are gathered on one shard", || {
        beat(&mut members);
        sleep(INTERVAL);
        (metric(&broker, "kuring_connections_gathered") == MEMBERS as u64).then_some(())
    });
    let moved = metric(&broker, "kuring_connections_moved_total");
    assert!(moved >= MEMBERS as u64 / 2, "two of three begin on the other shard: {moved}");

    // Another request is served at once, also behind a heartbeat, and its connection waits alone from then on.
    members[0].send(4, &heartbeat());
    members[0].send(3, &versions());
    assert_eq!(members[0].receive::<HeartbeatRequest>(4).1.error_code, UNKNOWN_MEMBER_ID);
    assert_eq!(members[0].receive::<ApiVersionsRequest>(3).1.error_code, OK);
    for _ in 0..3 {
        assert_eq!(members[0].call(3, &versions()).error_code, OK);
    }
    assert_eq!(metric(&broker, "kuring_connections_gathered"), MEMBERS as u64 - 1);

    // Who leaves is noticed.
    let open = metric(&broker, "kuring_connections");
    members.truncate(MEMBERS - 50);
    eventually("those who left are gone", || {
        (metric(&broker, "kuring_connections") <= open - 50).then_some(())
    });
    // Who is silent is closed: at its time, not sooner.
    for _ in 0..9 {
        sleep(Duration::from_secs(1));
        beat(&mut members[1..]);
    }
    assert!(matches!(members[0].answer(PATIENCE), Answer::Closed), "it was silent for longer than 6 s");
    for member in &mut members[1..] {
        assert!(matches!(member.answer(PATIENCE), Answer::Closed));
    }
}

#[test]
fn connections_of_those_who_only_commit_come_to_live_where_the_coordinator_is() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(2, &[]);
    drop(coordinator(&broker, "g"));
    let mut members: Vec<Raw> = (0..6).map(|_| Raw::connect(&broker)).collect();
    let commit = OffsetCommitRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str("g")))
        .with_generation_id_or_member_epoch(-1);
    let before = metric(&broker, "kuring_connections_moved_total");
    eventually("half of them have moved", || {
        for member in &mut members {
            (0..100).for_each(|_| assert!(member.call(8, &commit).topics.is_empty()));
        }
        sleep(INTERVAL);
        (metric(&broker, "kuring_connections_moved_total") >= before + 3).then_some(())
    });
    for member in &mut members {
        assert!(member.call(8, &commit).topics.is_empty());
    }
}

/// The one member of a classic group.
struct Member {
    raw: Raw,
    group: String,
    id: String,
    generation: i32,
}

impl Member {
    fn join(broker: &Broker, group: String) -> Self {
        let mut raw = Raw::connect(broker);
        // The last version without the need of an id.
        let joined = raw.call(3, &join(&group, "").with_session_timeout_ms(SESSION_MS));
        let (id, generation) = (joined.member_id.to_string(), joined.generation_id);
        assert_eq!(joined.error_code, OK);
        let synced = raw.call(3, &sync(&group, &id, generation, &[(&id, b"mine")]));
        assert_eq!(synced.error_code, OK);
        Self { raw, group, id, generation }
    }

    fn heartbeat(&self, generation: i32) -> HeartbeatRequest {
        HeartbeatRequest::default()
            .with_group_id(GroupId(StrBytes::from_string(self.group.clone())))
            .with_member_id(StrBytes::from_string(self.id.clone()))
            .with_generation_id(generation)
    }

    fn send(&mut self) {
        let request = self.heartbeat(self.generation);
        self.raw.send(4, &request);
    }

    fn receive(&mut self) -> i16 {
        self.raw.receive::<HeartbeatRequest>(4).1.error_code
    }

    fn beat(&mut self) -> i16 {
        self.send();
        self.receive()
    }
}

const SESSION_MS: i32 = 6_000;

/// A heartbeat of each, all at once; nothing is new to any.
fn beat_all(members: &mut [Member]) {
    members.iter_mut().for_each(Member::send);
    for member in members {
        assert_eq!(member.receive(), OK);
    }
}

#[test]
fn heartbeats_at_rest_count_as_signs_of_life_and_whatever_else_comes_is_answered_as_ever() {
    if Broker::is_kafka() {
        return;
    }
    let settings = [
        ("connections.max.idle.ms", "6000"),
        ("socket.listen.backlog.size", "1000"),
        ("group.initial.rebalance.delay.ms", "0"),
    ];
    let broker = Broker::with(2, &settings);
    drop(coordinator(&broker, "g"));
    let mut members = Vec::new();
    for number in 0..MEMBERS {
        members.push(Member::join(&broker, format!("g{number}")));
        if number % 50 == 0 {
            // It may take longer than a session until all are there.
            beat_all(&mut members);
        }
    }
    let at_rest = |broker: &Broker| metric(broker, "kuring_heartbeats_at_rest_total");
    eventually("all are answered at rest", || {
        let before = at_rest(&broker);
        beat_all(&mut members);
        sleep(INTERVAL);
        (at_rest(&broker) == before + MEMBERS as u64).then_some(())
    });
    // For longer than a session lasts, and than a connection may be silent.
    let (begun, before) = (Instant::now(), at_rest(&broker));
    let mut rounds = 0;
    while begun.elapsed() < Duration::from_secs(8) {
        sleep(Duration::from_secs(1));
        beat_all(&mut members);
        rounds += 1;
    }
    assert_eq!(at_rest(&broker), before + rounds * MEMBERS as u64);

    sleep(INTERVAL);
    let request = members[0].heartbeat(members[0].generation + 1);
    assert_eq!(members[0].raw.call(4, &request).error_code, ILLEGAL_GENERATION);
    // Two at once, and one in two parts.
    members[1].send();
    assert_eq!((members[1].beat(), members[1].receive()), (OK, OK));
    let frame = frame(&members[2].heartbeat(members[2].generation));
    members[2].raw.send_bytes(&frame[..20]);
    sleep(INTERVAL);
    members[2].raw.send_bytes(&frame[20..]);
    assert_eq!(members[2].receive(), OK);
    // Another request behind one.
    members[3].send();
    members[3].raw.send(3, &versions());
    assert_eq!(members[3].receive(), OK);
    assert_eq!(members[3].raw.receive::<ApiVersionsRequest>(3).1.error_code, OK);
    assert_eq!(members[3].beat(), OK);
    // Something new: another member comes.
    let mut other = Raw::connect(&broker);
    other.send(3, &join(&members[4].group, "").with_session_timeout_ms(SESSION_MS));
    eventually("it is told of the rebalance", || {
        sleep(INTERVAL);
        (members[4].beat() == REBALANCE_IN_PROGRESS).then_some(())
    });
    let (group, id) = (members[4].group.clone(), members[4].id.clone());
    members[4].raw.send(3, &join(&group, &id).with_session_timeout_ms(SESSION_MS));
    let joined = members[4].raw.receive::<JoinGroupRequest>(3).1;
    assert_eq!((joined.error_code, joined.members.len()), (OK, 2));
    assert_eq!(other.receive::<JoinGroupRequest>(3).1.error_code, OK);
    let synced = members[4].raw.call(3, &sync(&group, &id, joined.generation_id, &[]));
    assert_eq!(synced.error_code, OK);
    members[4].generation = joined.generation_id;
    assert_eq!(members[4].beat(), OK);
    // Who is silent is no member any more.
    sleep(Duration::from_millis(SESSION_MS as u64 / 2));
    beat_all(&mut members[5..]);
    sleep(Duration::from_millis(SESSION_MS as u64 / 2 + 500));
    let mut anew = Raw::connect(&broker);
    let mut is_member =
        |member: &Member| anew.call(4, &member.heartbeat(member.generation)).error_code != UNKNOWN_MEMBER_ID;
    assert_eq!((is_member(&members[1]), is_member(&members[5])), (false, true));
}

/// With its length in front.
fn frame(request: &HeartbeatRequest) -> Vec<u8> {
    let header = RequestHeader::default()
        .with_request_api_key(12)
        .with_request_api_version(4)
        .with_correlation_id(1)
        .with_client_id(Some(StrBytes::from_static_str("raw")));
    let mut message = BytesMut::new();
    header.encode(&mut message, 2).expect("a header");
    request.encode(&mut message, 4).expect("a request");
    let mut frame = Vec::new();
    frame.put_u32(message.len() as u32);
    frame.extend_from_slice(&message);
    frame
}
