//! What members of the new protocol may have the coordinator hold (`kuring.groups.bytes.max`).

use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, GroupId};

use super::consumers::{beat, join};
use super::harness::{Harness, OK, settings, text};
use crate::config::GroupSettings;
use crate::wire::ErrorCode;

const FULL: i16 = ErrorCode::GroupMaxSizeReached.code();

fn with_room(bytes: u64) -> GroupSettings {
    GroupSettings { members_bytes_max: bytes, ..settings() }
}

fn in_group(request: ConsumerGroupHeartbeatRequest, number: usize) -> ConsumerGroupHeartbeatRequest {
    request.with_group_id(GroupId(text(&format!("g{number}"))))
}

/// Founds one group after the other until one is refused; how many there are then.
fn fill(h: &mut Harness, request: &ConsumerGroupHeartbeatRequest) -> usize {
    for number in 0..1_000 {
        match h.answer(in_group(request.clone(), number)).error_code {
            OK => {}
            code => {
                assert_eq!(code, FULL);
                return number;
            }
        }
    }
    panic!("there is no bound")
}

#[test]
fn what_members_subscribe_to_is_bounded() {
    let (mut h, _) = Harness::consumers_with(with_room(200_000), &[("t", 1)]);
    let names: Vec<String> = (0..100).map(|number| format!("{number:0>100}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let request = join("a", &names);
    let groups = fill(&mut h, &request);
    assert!((7..=10).contains(&groups), "{groups} groups of 20 kB");
    // Who is in goes on, and who goes makes room.
    assert_eq!(h.answer(in_group(beat("a", 2), 0)).error_code, OK);
    assert_eq!(h.answer(in_group(request.clone(), 0)).error_code, OK, "it joins anew with what it had");
    assert_eq!(h.answer(in_group(beat("a", -1), 0)).error_code, OK);
    assert_eq!(h.answer(in_group(request.clone(), groups)).error_code, OK);
    // The same once it has been read back.
    h.restart_same();
    assert_eq!(h.answer(in_group(request, groups + 1)).error_code, FULL);
}

#[test]
fn what_members_are_assigned_is_bounded() {
    let (mut h, mut cluster) = Harness::consumers_with(with_room(1_000_000), &[("t", 1_000)]);
    let groups = fill(&mut h, &join("a", &["t"]));
    assert!((5..=7).contains(&groups), "{groups} groups of 200 kB");
    // A rebalance of who is in is never refused.
    cluster.grow("t", 1_200);
    h.cluster(cluster.image());
    for number in 0..groups {
        let response = h.answer(in_group(beat("a", 2), number));
        assert_eq!((response.error_code, response.member_epoch), (OK, 3));
    }
}

#[test]
fn a_group_has_a_quarter_and_members_with_the_same_subscription_share_it() {
    let (mut h, _) = Harness::consumers_with(with_room(256 << 10), &[("t", 1)]);
    let names: Vec<String> = (0..400).map(|number| format!("topic-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for member in 0..20 {
        assert_eq!(h.answer(in_group(join(&member.to_string(), &names), 0)).error_code, OK, "{member}");
    }
    // Others than these would be too much for one group.
    let others: Vec<String> = names.iter().map(|name| format!("other-{name}")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    assert_eq!(h.answer(in_group(join("x", &others), 0)).error_code, FULL);
    assert_eq!(h.answer(in_group(join("x", &others), 1)).error_code, OK);
}

#[test]
fn members_with_a_subset_each_of_what_the_group_reads_share_nothing() {
    let (mut h, _) = Harness::consumers_with(with_room(256 << 10), &[("t", 1)]);
    let names: Vec<String> = (0..200).map(|number| format!("topic-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let without = |at: usize| -> Vec<&str> {
        names.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, name)| *name).collect()
    };
    // 20 kB each, of which a group may have 64.
    let refused = (0..20).find(|member| {
        let request = join(&member.to_string(), &without(*member));
        h.answer(in_group(request, 0)).error_code == FULL
    });
    assert_eq!(refused, Some(3));
    // Members that are in with the same list are not free to part with it either, ...
    let in_other = |request| in_group(request, 1);
    let mut epochs = Vec::new();
    for member in 0..6 {
        epochs.push(h.beats(in_other(join(&format!("m{member}"), &names))).0);
    }
    let change = |member: usize, epoch: i32| {
        let changed = join(&format!("m{member}"), &without(member));
        in_other(changed.with_member_epoch(epoch).with_topic_partitions(None))
    };
    let answers: Vec<_> = (0..6).map(|member| h.answer(change(member, epochs[member]))).collect();
    let codes: Vec<i16> = answers.iter().map(|answer| answer.error_code).collect();
    assert_eq!(codes, [OK, FULL, FULL, FULL, FULL, FULL]);
    // ... but one goes from a list of its own to another of the same size.
    let other =
        join("m0", &without(100)).with_member_epoch(answers[0].member_epoch).with_topic_partitions(None);
    assert_eq!(h.answer(in_other(other)).error_code, OK);
}

#[test]
fn one_sum_refuses_many_and_after_a_moment_what_has_gone_counts() {
    let (mut h, _) = Harness::consumers_with(with_room(900_000), &[("t", 1)]);
    let request = join("a", &["t"]);
    let groups = fill(&mut h, &request);
    assert!(groups > 400, "{groups}");
    // The sum went through twice as many, a group and its member each.
    assert_eq!(h.answer(in_group(beat("a", -1), 0)).error_code, OK);
    let refused = (0..100).find(|_| h.answer(in_group(request.clone(), groups)).error_code == OK);
    assert_eq!(refused, Some(2 * groups / 64));
    assert_eq!(h.answer(in_group(request.clone(), groups + 1)).error_code, FULL);
    for group in 1..3 {
        assert_eq!(h.answer(in_group(beat("a", -1), group)).error_code, OK);
    }
    assert_eq!(h.answer(in_group(request.clone(), groups + 1)).error_code, FULL, "by the last sum");
    h.pass(100);
    assert_eq!(h.answer(in_group(request, groups + 1)).error_code, OK);
}
