//! Subscriptions by regular expression.

use kafka_protocol::messages::ConsumerGroupHeartbeatRequest;

use super::consumers::{Cluster, beat, join};
use super::harness::{Harness, OK, text};
use crate::coordinator::{Request, Response};
use crate::wire::ErrorCode;

fn by_regex(member: &str, regex: &str) -> ConsumerGroupHeartbeatRequest {
    join(member, &[]).with_subscribed_topic_names(None).with_subscribed_topic_regex(Some(text(regex)))
}

#[test]
fn expressions_stand_for_the_topics_that_match() {
    let (mut h, mut cluster) = Harness::consumers(&[("orders-1", 1), ("orders-2", 1), ("my-orders-1", 1)]);
    let (epoch, assignment) = h.beats(by_regex("a", "orders-.*"));
    assert_eq!(epoch, 2);
    assert_eq!(assignment.map(|topics| topics.len()), Some(2));
    h.restart_same();
    cluster.create("orders-3", 1);
    h.cluster(cluster.image());
    // Not so soon after the last time.
    assert_eq!(h.beats(beat("a", 2)), (2, None));
    h.pass(10_000);
    let (epoch, assignment) = h.beats(beat("a", 2));
    assert_eq!((epoch, assignment.map(|topics| topics.len())), (3, Some(3)));
    // Another expression: what it does not match goes.
    let names = beat("a", 3).with_subscribed_topic_regex(Some(text("orders-[12]")));
    let (_, assignment) = h.beats(names);
    assert_eq!(assignment.map(|topics| topics.len()), Some(2));
    let group = h.describe_consumer();
    assert_eq!(group.members[0].subscribed_topic_regex.as_deref(), Some("orders-[12]"));
    h.restart_same();
    // The last reader takes the expression along.
    h.beats(beat("a", -1));
    assert!(!h.group().is_subscribed(&text("orders-1")));
    h.restart_same();
}

#[test]
fn an_expression_is_matched_again_though_another_was_matched_since() {
    let (mut h, mut cluster) = Harness::consumers(&[("a-1", 1), ("b-1", 1)]);
    h.beats(by_regex("a", "a-.*"));
    cluster.create("a-2", 1);
    h.cluster(cluster.image());
    h.beats(by_regex("b", "b-.*"));
    assert!(!h.group().is_subscribed(&text("a-2")));
    h.pass(10_000);
    let epoch = h.group().member(&text("b")).expect("b").position.epoch.0;
    h.beats(beat("b", epoch));
    assert!(h.group().is_subscribed(&text("a-2")));
}

#[test]
fn an_expression_is_matched_again_though_the_clock_was_set_back() {
    let (mut h, mut cluster) = Harness::consumers(&[("a-1", 1)]);
    h.beats(by_regex("a", "a-.*"));
    cluster.create("a-2", 1);
    h.cluster(cluster.image());
    h.set_back_ms = 3_600_000;
    h.beats(beat("a", 2));
    assert!(h.group().is_subscribed(&text("a-2")));
}

#[test]
fn an_expression_is_matched_again_though_another_broker_has_counted_further() {
    let (mut h, mut cluster) = Harness::consumers(&[("a-1", 1)]);
    for other in ["x", "y", "z"] {
        cluster.create(other, 1);
    }
    h.cluster(cluster.image());
    let (epoch, _) = h.beats(by_regex("a", "a-.*"));
    // The metadata of a broker that has seen less happen and has a topic more.
    h.image = Cluster::new(&[("a-1", 1), ("a-2", 1)]).image();
    h.restart();
    h.pass(10_000);
    h.beats(beat("a", epoch));
    assert!(h.group().is_subscribed(&text("a-2")));
}

#[test]
fn a_member_goes_on_though_its_expression_cannot_be_written_again() {
    let (mut h, mut cluster) = Harness::consumers(&[("a-1", 1)]);
    h.beats(by_regex("a", "a-.*"));
    let before = h.group().clone();
    cluster.create("a-2", 1);
    h.cluster(cluster.image());
    h.pass(10_000);
    h.holds_appends = true;
    let beating = h.send(Request::ConsumerHeartbeat(beat("a", 2)));
    assert!(h.reply(beating).is_none(), "the expression is written before");
    h.fail_one(ErrorCode::MessageTooLarge);
    let Some(Response::ConsumerHeartbeat(response)) = h.reply(beating) else { panic!("it is served") };
    assert_eq!((response.error_code, response.member_epoch), (OK, 2));
    assert_eq!(*h.group(), before);
    // Not so soon again, and the session began anew.
    h.pass(9_000);
    h.beats(beat("a", 2));
    assert!(h.held.is_empty());
    h.release();
    h.pass(1_000);
    assert_eq!(h.beats(beat("a", 2)).1.map(|topics| topics.len()), Some(2));
}

#[test]
fn a_group_has_a_number_of_expressions_and_matches_a_few_at_a_time() {
    let (mut h, mut cluster) = Harness::consumers(&[("t", 1)]);
    for index in 0..100 {
        h.beats(by_regex(&format!("m{index}"), &format!("t|{index}")));
    }
    let (code, reason) = h.refused(by_regex("late", "u"));
    assert_eq!(code, ErrorCode::InvalidRegularExpression);
    assert!(reason.contains("100 already"), "{reason}");
    // One that is there already may have more readers.
    h.beats(by_regex("late", "t|1"));
    cluster.create("99", 1);
    h.cluster(cluster.image());
    h.pass(10_000);
    let mut writes = 0;
    while !h.group().is_subscribed(&text("99")) {
        let epoch = h.group().member(&text("late")).expect("late").position.epoch.0;
        h.beats(beat("late", epoch));
        writes += 1;
        assert!(writes < 100, "it gets there");
        h.pass(1_000);
    }
    assert!(writes > 100 / 8 - 1, "{writes}: not all at once");
}

#[test]
fn an_expression_for_too_many_topics_is_refused() {
    let names: Vec<String> = (0..1200).map(|index| format!("{index:0>240}")).collect();
    let topics: Vec<(&str, i32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let (mut h, _) = Harness::consumers(&topics);
    let (code, _) = h.refused(by_regex("a", ".*"));
    assert_eq!(code, ErrorCode::InvalidRegularExpression);
    h.beats(by_regex("a", "0*1."));
}
