//! Heartbeats that are answered at once and in place. Every heartbeat of the other tests is tried that way too, and must
//! then be answered the same as on the whole way ([`Harness::send`]).

use kafka_protocol::messages::{GroupId, HeartbeatRequest};

use super::harness::{GROUP, Harness, SESSION_MS, text};
use crate::coordinator::Request;

fn beat(member: &str, generation: i32) -> Request {
    let request = HeartbeatRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_generation_id(generation)
        .with_member_id(text(member));
    Request::Heartbeat(request)
}

#[test]
fn a_heartbeat_without_news_goes_the_short_way_and_any_other_the_long_one() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(2);
    assert!(h.beat(&beat(&ids[0], generation)).is_some());
    assert_eq!(h.beat(&beat(&ids[0], generation - 1)), None, "another generation");
    assert_eq!(h.beat(&beat("nobody", generation)), None);
    h.new_member_id();
    assert!(h.beat(&beat(&ids[0], generation)).is_some(), "a member to be is no news");
    let newcomer = h.new_member_id();
    h.join(&newcomer);
    assert_eq!(h.state(), "PreparingRebalance");
    assert_eq!(h.beat(&beat(&ids[0], generation)), None, "it has to join again");
}

#[test]
fn a_partition_that_is_loaded_serves_no_heartbeat_on_the_short_way() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(1);
    assert!(h.beat(&beat(&ids[0], generation)).is_some());
    let (partition, now) = (h.coordinator.partition_of(GROUP), h.now());
    h.coordinator.load(partition, now);
    h.replay(partition);
    assert_eq!(h.beat(&beat(&ids[0], generation)), None);
    h.coordinator.loaded(partition, now);
    assert!(h.beat(&beat(&ids[0], generation)).is_some());
}

#[test]
fn heartbeats_on_the_short_way_keep_a_session_and_touch_no_timer() {
    let mut h = Harness::new();
    let (ids, generation) = h.stable_group(1);
    // The first may arm the timer: a new member has another time to join in.
    h.pass(1_000);
    assert!(h.beat(&beat(&ids[0], generation)).is_some());
    let (timers, deadline) = (h.coordinator.timers_armed(), h.coordinator.next_deadline());
    h.pass(1_000);
    assert!(h.beat(&beat(&ids[0], generation)).is_some());
    assert_eq!((h.coordinator.timers_armed(), h.coordinator.next_deadline()), (timers, deadline));
    for _ in 0..5 {
        h.pass(SESSION_MS as u64 - 1);
        assert!(h.beat(&beat(&ids[0], generation)).is_some());
    }
    h.pass(SESSION_MS as u64 - 1);
    assert_eq!(h.state(), "Stable");
    h.pass(1);
    assert_eq!(h.state(), "Empty");
}
