//! Times that a consumer group has of its own, by its dynamic configs.

use super::consumers::{beat, join};
use super::harness::{Harness, settings};
use crate::config::ConsumerGroupTimes;

const SESSION: &str = "consumer.session.timeout.ms";
const HEARTBEAT: &str = "consumer.heartbeat.interval.ms";
const ASSIGNMENT: &str = "consumer.assignment.interval.ms";

#[test]
fn members_are_told_the_groups_own_heartbeat_interval_from_their_next_heartbeat_on() {
    let (mut h, mut cluster) = Harness::consumers(&[("t", 1)]);
    assert_eq!(h.answer(join("a", &["t"])).heartbeat_interval_ms, 5_000);
    cluster.configure_group(HEARTBEAT, Some("7000"));
    h.cluster(cluster.image());
    assert_eq!(h.answer(beat("a", 2)).heartbeat_interval_ms, 7_000);
    // It is in the metadata log, not in the coordinator's.
    h.restart();
    assert_eq!(h.answer(beat("a", 2)).heartbeat_interval_ms, 7_000);
    cluster.configure_group(HEARTBEAT, None);
    h.cluster(cluster.image());
    assert_eq!(h.answer(beat("a", 2)).heartbeat_interval_ms, 5_000);
}

#[test]
fn a_session_of_the_groups_own_length_begins_with_the_next_heartbeat() {
    let (mut h, mut cluster) = Harness::consumers(&[("t", 1)]);
    h.beats(join("a", &["t"]));
    cluster.configure_group(SESSION, Some("60000"));
    h.cluster(cluster.image());
    h.beats(beat("a", 2));
    h.pass(59_000);
    assert_eq!(h.group().len(), 1);
    // And a shorter one again.
    cluster.configure_group(SESSION, None);
    h.cluster(cluster.image());
    h.beats(beat("a", 2));
    h.pass(46_000);
    assert!(h.group().is_empty());
}

#[test]
fn a_value_beyond_the_brokers_bounds_counts_as_the_bound() {
    let (mut h, mut cluster) = Harness::consumers(&[("t", 1)]);
    for (value, interval) in [("1", 5_000), ("99000", 15_000), ("nonsense", 5_000)] {
        cluster.configure_group(HEARTBEAT, Some(value));
        h.cluster(cluster.image());
        assert_eq!(h.answer(join("a", &["t"])).heartbeat_interval_ms, interval, "{value}");
    }
}

#[test]
fn a_group_has_its_own_interval_between_targets() {
    let mut batched = settings();
    batched.consumer.times = ConsumerGroupTimes { assignment_interval_ms: 1_000, ..batched.consumer.times };
    let (mut h, mut cluster) = Harness::consumers_with(batched, &[("t", 4)]);
    cluster.configure_group(ASSIGNMENT, Some("0"));
    h.cluster(cluster.image());
    for member in ["a", "b", "c"] {
        h.beats(join(member, &["t"]));
        let group = h.describe_consumer();
        assert_eq!(group.group_epoch, group.assignment_epoch, "{member}");
    }
}
