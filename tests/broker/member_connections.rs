//! Connections that bring nothing but heartbeats of group members: where there are many they go over to the
//! coordinator's shard and are looked at together, and nothing else changes for them.

use std::thread::sleep;
use std::time::Duration;

use kafka_protocol::messages::{ApiVersionsRequest, GroupId, HeartbeatRequest};
use kafka_protocol::protocol::StrBytes;

use crate::admin::metric;
use crate::group_rules::coordinator;
use crate::harness::raw::{Answer, Raw};
use crate::harness::{Broker, PATIENCE, eventually};

const MEMBERS: usize = 400;
/// Heartbeats that come sooner after each other are part of a rebalance.
const INTERVAL: Duration = Duration::from_millis(250);
const UNKNOWN_MEMBER_ID: i16 = 25;
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
