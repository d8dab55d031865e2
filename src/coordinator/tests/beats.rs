//! Heartbeats that are answered at once and in place. Every heartbeat of the other tests is tried that way too, and must
//! then be answered the same as on the whole way ([`Harness::send`]).

use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, GroupId, HeartbeatRequest};

use super::consumers::{self, Cluster, join};
use super::harness::{GROUP, Harness, OK, SESSION_MS, read_beat, text};
use crate::coordinator::{Request, Response};
use crate::wire::ErrorCode;

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

#[test]
fn a_member_of_the_new_protocol_is_answered_on_the_short_way_unless_there_is_news() {
    let mut h = Harness::new();
    let mut cluster = Cluster::new(&[("t", 2)]);
    h.cluster(cluster.image());
    let Response::ConsumerHeartbeat(joined) = h.call(Request::ConsumerHeartbeat(join("m", &["t"]))) else {
        panic!("another answer");
    };
    assert_eq!(joined.error_code, OK);
    let request = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_member_id(text("m"))
        .with_member_epoch(joined.member_epoch)
        .with_rebalance_timeout_ms(-1);
    let quiet = Request::ConsumerHeartbeat(request.clone());
    assert_eq!(h.beat(&quiet), None, "a new group looks at its topics once more");
    h.call(quiet.clone());
    assert!(h.beat(&quiet).is_some());
    let stale = request.clone().with_member_epoch(joined.member_epoch - 1);
    assert_eq!(h.beat(&Request::ConsumerHeartbeat(stale)), None);
    let beat = read_beat(&request).expect("it tells nothing");
    let now = h.now();
    assert_eq!(h.coordinator.consumer_beat(&beat, b"client", "/10.0.0.1", now), None, "it has moved");
    assert_eq!(h.coordinator.consumer_beat(&beat, b"other", "/127.0.0.1", now), None);

    // Another member comes: while that is written, and until this one has given back what it is to, there is news.
    h.holds_appends = true;
    let other = h.send(Request::ConsumerHeartbeat(join("n", &["t"])));
    assert_eq!(h.beat(&quiet), None, "the group is being written");
    h.release();
    assert!(h.reply(other).is_some());
    assert_eq!(h.beat(&quiet), None, "it has to give a partition back");

    let mut h = Harness::new();
    h.cluster(cluster.image());
    h.call(Request::ConsumerHeartbeat(join("m", &["t"])));
    h.call(quiet.clone());
    assert!(h.beat(&quiet).is_some());
    cluster.grow("t", 3);
    h.cluster(cluster.image());
    assert_eq!(h.beat(&quiet), None, "the topic has grown");
}

#[test]
fn topics_are_looked_at_again_when_what_came_of_a_look_could_not_be_written() {
    let (mut h, mut cluster) = Harness::consumers(&[("t", 1)]);
    let (epoch, _) = h.beats(join("a", &["t"]));
    cluster.grow("t", 2);
    h.cluster(cluster.image());
    h.holds_appends = true;
    let failing = h.send(Request::ConsumerHeartbeat(consumers::beat("a", epoch)));
    h.fail_one(ErrorCode::NotEnoughReplicas);
    let Some(Response::ConsumerHeartbeat(failed)) = h.reply(failing) else { panic!("it is answered") };
    assert_eq!(failed.error_code, ErrorCode::CoordinatorNotAvailable.code());
    h.release();
    let (_, told) = h.beats(consumers::beat("a", epoch));
    assert_eq!(told.map(|topics| topics[0].1.len()), Some(2), "it is quiet until the topics change again");
}
