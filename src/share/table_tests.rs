//! Every state of a record × every event, by hand; and the rules that concern several records.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::base::clock::Monotonic;
use crate::base::{LeaderEpoch, Offset};
use crate::wire::ErrorCode;

const LIMITS: Limits = Limits { delivery_count_max: 2, in_flight_max: 100 };
const ALL: Wanted = Wanted { records_max: 1000, exact: false, batch_size: 1000 };

fn at(second: u64) -> Monotonic {
    Monotonic::ZERO.plus(Duration::from_secs(second))
}

fn holder(member: &str) -> Holder {
    Holder { member: Arc::from(member), session: SessionNumber(1) }
}

fn kept(start: i64, batches: &[StateBatch]) -> Persisted {
    Persisted {
        state_epoch: 1,
        leader_epoch: LeaderEpoch(0),
        start: Offset(start),
        delivery_complete: -1,
        batches: batches.to_vec(),
    }
}

fn fresh() -> SharePartition {
    SharePartition::load(&kept(-1, &[]), Offset(0))
}

fn span(first: i64, last: i64) -> Span {
    Span { first: Offset(first), last: Offset(last), is_aborted: false }
}

fn acquire(partition: &mut SharePartition, member: &str, spans: &[Span]) -> Vec<(i64, i64, u16)> {
    acquire_as(partition, member, spans, ALL)
}

fn acquire_as(
    partition: &mut SharePartition,
    member: &str,
    spans: &[Span],
    wanted: Wanted,
) -> Vec<(i64, i64, u16)> {
    let from = partition.fetch_from(LIMITS).unwrap_or(partition.end());
    let acquired = partition.acquire(&holder(member), at(30), from, spans, wanted, LIMITS);
    acquired.iter().map(|acquired| (acquired.first.0, acquired.last.0, acquired.delivery_count)).collect()
}

fn say(first: i64, last: i64, kind: AcknowledgeKind) -> AcknowledgeBatch {
    AcknowledgeBatch { first: Offset(first), last: Offset(last), kinds: vec![kind] }
}

fn acknowledge(
    partition: &mut SharePartition,
    member: &str,
    batch: AcknowledgeBatch,
) -> Result<Option<Change>, ErrorCode> {
    partition.acknowledge(member, &[batch], Some(at(60)), LIMITS)
}

/// Acknowledges what must be right, and has it written.
fn settle(partition: &mut SharePartition, member: &str, batch: AcknowledgeBatch) -> Vec<StateBatch> {
    let change = acknowledge(partition, member, batch).expect("acknowledged").expect("a change");
    partition.written(change.id, true);
    change.batches
}

/// Offset 5 stands between two records that are held, so that the window does not move.
fn between() -> SharePartition {
    let mut partition = SharePartition::load(&kept(4, &[]), Offset(0));
    assert_eq!(acquire(&mut partition, "a", &[span(4, 6)]), [(4, 6, 1)]);
    partition
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Is {
    Available,
    Mine,
    Others,
    Changing,
    Acknowledged,
    Archived,
}

/// Offset 5 in this state, 4 and 6 with member "a".
fn in_state(state: Is) -> SharePartition {
    let mut partition = between();
    match state {
        Is::Mine => {}
        Is::Available => {
            settle(&mut partition, "a", say(5, 5, AcknowledgeKind::Release));
        }
        Is::Others => {
            settle(&mut partition, "a", say(5, 5, AcknowledgeKind::Release));
            assert_eq!(acquire(&mut partition, "b", &[span(5, 6)]), [(5, 5, 2)]);
        }
        Is::Changing => {
            acknowledge(&mut partition, "a", say(5, 5, AcknowledgeKind::Accept)).expect("acknowledged");
        }
        Is::Acknowledged => {
            settle(&mut partition, "a", say(5, 5, AcknowledgeKind::Accept));
        }
        Is::Archived => {
            settle(&mut partition, "a", say(5, 5, AcknowledgeKind::Reject));
        }
    }
    partition
}

#[test]
fn an_acknowledgement_counts_only_from_who_has_the_record() {
    use AcknowledgeKind::{Accept, Gap, Reject, Release, Renew};
    for state in [Is::Available, Is::Mine, Is::Others, Is::Changing, Is::Acknowledged, Is::Archived] {
        for kind in [Gap, Accept, Release, Reject, Renew] {
            let mut partition = in_state(state);
            let before = partition.clone();
            let result = acknowledge(&mut partition, "a", say(5, 5, kind));
            match (state, kind) {
                (Is::Mine, Renew) => {
                    assert_eq!(result, Ok(None), "a lock is not written");
                    assert_eq!(partition.next_lock_end(), Some(at(30)), "the others' locks stay");
                }
                (Is::Mine, _) => {
                    let change = result.expect("acknowledged").expect("a change");
                    let expected = match kind {
                        Accept => DeliveryState::Acknowledged,
                        Release => DeliveryState::Available,
                        _ => DeliveryState::Archived,
                    };
                    let [batch] = change.batches[..] else { panic!("{change:?}") };
                    assert_eq!((batch.first, batch.last, batch.state), (Offset(5), Offset(5), expected));
                    assert_eq!((batch.delivery_count, change.start), (1, Offset(4)));
                }
                _ => {
                    assert_eq!(result, Err(ErrorCode::InvalidRecordState), "{state:?} {kind:?}");
                    assert_eq!(partition, before, "{state:?} {kind:?}");
                }
            }
        }
    }
}

#[test]
fn only_what_is_available_is_acquired() {
    for state in [Is::Available, Is::Mine, Is::Others, Is::Changing, Is::Acknowledged, Is::Archived] {
        let mut partition = in_state(state);
        let expected: &[(i64, i64, u16)] = match state {
            Is::Available => &[(5, 5, 2)],
            _ => &[],
        };
        assert_eq!(acquire(&mut partition, "c", &[span(4, 6)]), expected, "{state:?}");
    }
}

#[test]
fn the_end_of_a_lock_frees_what_is_held_and_nothing_else() {
    for state in [Is::Available, Is::Mine, Is::Others, Is::Changing, Is::Acknowledged, Is::Archived] {
        let mut partition = in_state(state);
        assert_eq!(partition.expire(at(29), LIMITS), None, "{state:?}");
        let change = partition.expire(at(30), LIMITS).expect("4 and 6 are held");
        let fifth = change.batches.iter().find(|batch| batch.first.0 <= 5 && batch.last.0 >= 5);
        let fifth = fifth.map(|batch| (batch.state, batch.delivery_count));
        assert_eq!(
            fifth,
            match state {
                Is::Mine => Some((DeliveryState::Available, 1)),
                // It was its last delivery.
                Is::Others => Some((DeliveryState::Archived, 2)),
                _ => None,
            },
            "{state:?}"
        );
        assert_eq!(partition.next_lock_end(), None);
    }
}

#[test]
fn the_end_of_a_session_frees_what_its_member_holds() {
    for state in [Is::Available, Is::Mine, Is::Others, Is::Changing, Is::Acknowledged, Is::Archived] {
        let mut partition = in_state(state);
        let other = Holder { session: SessionNumber(2), ..holder("a") };
        assert_eq!(partition.release(&other, LIMITS), None, "{state:?}");
        let change = partition.release(&holder("a"), LIMITS).expect("4 and 6 are held");
        let has_fifth = change.batches.iter().any(|batch| batch.first.0 <= 5 && batch.last.0 >= 5);
        assert_eq!(has_fifth, state == Is::Mine, "{state:?}");
    }
}

#[test]
fn a_change_that_could_not_be_written_leaves_the_record_with_its_member() {
    for kind in [AcknowledgeKind::Accept, AcknowledgeKind::Release, AcknowledgeKind::Reject] {
        let mut partition = between();
        let before = partition.clone();
        let change = acknowledge(&mut partition, "a", say(5, 5, kind)).expect("right").expect("a change");
        partition.written(change.id, false);
        let again = acknowledge(&mut partition, "a", say(5, 5, AcknowledgeKind::Accept));
        assert!(again.is_ok(), "{kind:?}");
        assert_eq!(before.next_lock_end(), Some(at(30)));
    }
}

#[test]
fn a_batch_with_one_wrong_offset_changes_nothing() {
    let mut partition = between();
    settle(&mut partition, "a", say(5, 5, AcknowledgeKind::Accept));
    let before = partition.clone();
    for (first, last, error) in [
        (4, 6, ErrorCode::InvalidRecordState),
        (6, 7, ErrorCode::InvalidRequest),
        (6, i64::MAX, ErrorCode::InvalidRequest),
        (6, 4, ErrorCode::InvalidRequest),
        (-1, 4, ErrorCode::InvalidRequest),
    ] {
        let result = acknowledge(&mut partition, "a", say(first, last, AcknowledgeKind::Accept));
        assert_eq!(result, Err(error), "{first} to {last}");
        assert_eq!(partition, before);
    }
    let twice = [say(6, 6, AcknowledgeKind::Accept), say(6, 6, AcknowledgeKind::Release)];
    assert_eq!(partition.acknowledge("a", &twice, None, LIMITS), Err(ErrorCode::InvalidRecordState));
    let kinds = vec![AcknowledgeKind::Accept; 2];
    let wrong = AcknowledgeBatch { first: Offset(4), last: Offset(6), kinds };
    assert_eq!(partition.acknowledge("a", &[wrong], None, LIMITS), Err(ErrorCode::InvalidRequest));
    let renewed = partition.acknowledge("a", &[say(4, 4, AcknowledgeKind::Renew)], None, LIMITS);
    assert_eq!(renewed, Err(ErrorCode::InvalidRequest), "the group does not renew");
    assert_eq!(partition, before);
}

#[test]
fn each_offset_of_a_batch_may_have_a_kind_of_its_own() {
    let mut partition = fresh();
    acquire(&mut partition, "a", &[span(0, 5)]);
    let kinds = [1, 1, 2, 3, 0, 1].map(|id| AcknowledgeKind::from_wire(id).expect("a kind")).to_vec();
    let batch = AcknowledgeBatch { first: Offset(0), last: Offset(5), kinds };
    let batches = settle(&mut partition, "a", batch);
    let shown: Vec<_> = batches.iter().map(|batch| (batch.first.0, batch.last.0, batch.state.id())).collect();
    assert_eq!(shown, [(0, 1, 2), (2, 2, 0), (3, 4, 4), (5, 5, 2)]);
    let again = acquire(&mut partition, "a", &[span(2, 5)]);
    assert_eq!(again, [(2, 2, 2)]);
    let change = acknowledge(&mut partition, "a", say(2, 2, AcknowledgeKind::Accept));
    let change = change.expect("acknowledged").expect("a change");
    // What it is about counts already.
    assert_eq!((change.start, change.delivery_complete), (Offset(2), 4));
    partition.written(change.id, false);
    assert_eq!((partition.start(), partition.end()), (Offset(2), Offset(6)));
    assert_eq!(partition.in_flight(), 1);
}

#[test]
fn what_is_released_too_often_is_archived() {
    let mut partition = fresh();
    for count in [1, 2] {
        assert_eq!(acquire(&mut partition, "a", &[span(0, 0)]), [(0, 0, count)]);
        let [batch] = settle(&mut partition, "a", say(0, 0, AcknowledgeKind::Release))[..] else {
            panic!("one batch")
        };
        let expected = if count == 2 { DeliveryState::Archived } else { DeliveryState::Available };
        assert_eq!((batch.state, batch.delivery_count), (expected, count));
    }
    assert_eq!(partition.start(), Offset(1));
    assert_eq!(acquire(&mut partition, "a", &[span(1, 1)]), [(1, 1, 1)]);
}

/// Delivers what there is of a batch of 8 records again and again, each time without success.
fn fail_again_and_again(limits: Limits) -> Vec<(i64, i64, u16)> {
    let mut partition = fresh();
    let mut deliveries = Vec::new();
    while let Some(from) = partition.fetch_from(limits).filter(|from| from.0 < 8) {
        let acquired = partition.acquire(&holder("a"), at(30), from, &[span(0, 7)], ALL, limits);
        let [acquired] = acquired[..] else { panic!("{acquired:?} behind {deliveries:?}") };
        deliveries.push((acquired.first.0, acquired.last.0, acquired.delivery_count));
        partition.release(&holder("a"), limits);
    }
    deliveries
}

#[test]
fn of_a_batch_that_fails_ever_fewer_are_delivered_at_once_and_at_the_last_time_one() {
    let limits = Limits { delivery_count_max: 5, ..LIMITS };
    let mut expected = vec![(0, 7, 1), (0, 7, 2), (0, 7, 3), (0, 3, 4)];
    expected.extend((0..4).map(|offset| (offset, offset, 5)));
    expected.push((4, 7, 4));
    expected.extend((4..8).map(|offset| (offset, offset, 5)));
    assert_eq!(fail_again_and_again(limits), expected);
    // With a limit of 2 every second delivery would be of one record.
    assert_eq!(fail_again_and_again(LIMITS), [(0, 7, 1), (0, 7, 2)]);
}

#[test]
fn records_that_have_failed_often_do_not_come_with_others() {
    let limits = Limits { delivery_count_max: 5, ..LIMITS };
    let tried = |first, last, delivery_count| StateBatch {
        first: Offset(first),
        last: Offset(last),
        state: DeliveryState::Available,
        delivery_count,
    };
    let mut partition = SharePartition::load(&kept(0, &[tried(0, 1, 1), tried(2, 5, 3)]), Offset(0));
    let spans = [span(0, 1), span(2, 5), span(6, 9)];
    let mut fetch = || -> Vec<(i64, i64, u16)> {
        let from = partition.fetch_from(limits).expect("there is more");
        let acquired = partition.acquire(&holder("a"), at(30), from, &spans, ALL, limits);
        acquired.iter().map(|it| (it.first.0, it.last.0, it.delivery_count)).collect()
    };
    assert_eq!(fetch(), [(0, 1, 2)]);
    assert_eq!(fetch(), [(2, 3, 4)], "half of its batch, and nothing new");
    assert_eq!(fetch(), [(4, 5, 4)]);
    assert_eq!(fetch(), [(6, 9, 1)]);
}

#[test]
fn the_window_moves_when_its_first_records_are_done_with() {
    let mut partition = fresh();
    acquire(&mut partition, "a", &[span(0, 9)]);
    settle(&mut partition, "a", say(3, 5, AcknowledgeKind::Accept));
    assert_eq!(partition.start(), Offset(0));
    settle(&mut partition, "a", say(0, 2, AcknowledgeKind::Accept));
    assert_eq!((partition.start(), partition.end()), (Offset(6), Offset(10)));
    // Said once more: it is done with for good.
    assert_eq!(acknowledge(&mut partition, "a", say(0, 2, AcknowledgeKind::Release)), Ok(None));
}

#[test]
fn a_fetch_gets_whole_batches_unless_its_number_of_records_is_exact() {
    let spans = [span(0, 3), span(4, 7), span(8, 11)];
    let soft = Wanted { records_max: 5, exact: false, batch_size: 100 };
    assert_eq!(acquire_as(&mut fresh(), "a", &spans, soft), [(0, 7, 1)]);
    let exact = Wanted { exact: true, ..soft };
    let mut partition = fresh();
    assert_eq!(acquire_as(&mut partition, "a", &spans, exact), [(0, 4, 1)]);
    assert_eq!(partition.fetch_from(LIMITS), Some(Offset(5)));
    // A batch that is delivered in parts.
    assert_eq!(acquire_as(&mut partition, "a", &spans[1..], exact), [(5, 9, 1)]);
    let small = Wanted { records_max: 100, exact: false, batch_size: 4 };
    assert_eq!(acquire_as(&mut fresh(), "a", &spans, small), [(0, 3, 1), (4, 7, 1), (8, 11, 1)]);
}

#[test]
fn no_new_records_are_delivered_while_too_many_are_under_way() {
    let limits = Limits { in_flight_max: 8, ..LIMITS };
    let mut partition = fresh();
    let fetch = |partition: &mut SharePartition, from, spans: &[Span]| {
        partition.acquire(&holder("a"), at(30), Offset(from), spans, ALL, limits).len()
    };
    assert_eq!(fetch(&mut partition, 0, &[span(0, 4), span(5, 9), span(10, 14)]), 1);
    assert_eq!((partition.end(), partition.fetch_from(limits)), (Offset(10), None));
    // One that comes back is delivered all the same, and the new ones behind it are not.
    settle(&mut partition, "a", say(7, 7, AcknowledgeKind::Release));
    assert_eq!(partition.fetch_from(limits), Some(Offset(7)));
    assert_eq!(fetch(&mut partition, 7, &[span(5, 9), span(10, 14)]), 1);
    assert_eq!(partition.end(), Offset(10));
    settle(&mut partition, "a", say(0, 4, AcknowledgeKind::Accept));
    assert_eq!(partition.fetch_from(limits), Some(Offset(10)));
}

#[test]
fn what_is_not_in_the_log_and_what_was_aborted_is_never_delivered() {
    let mut partition = fresh();
    let aborted = Span { is_aborted: true, ..span(5, 6) };
    assert_eq!(acquire(&mut partition, "a", &[span(2, 3), aborted, span(9, 9)]), [(2, 3, 1), (9, 9, 1)]);
    settle(&mut partition, "a", say(2, 3, AcknowledgeKind::Accept));
    assert_eq!(partition.start(), Offset(9));
}

#[test]
fn records_that_the_log_lost_are_forgotten_whoever_has_them() {
    let mut partition = fresh();
    acquire(&mut partition, "a", &[span(0, 9)]);
    partition.log_start_moved(Offset(4));
    assert_eq!((partition.start(), partition.in_flight()), (Offset(4), 6));
    let batches = settle(&mut partition, "a", say(0, 5, AcknowledgeKind::Accept));
    assert_eq!(batches.iter().map(|batch| (batch.first.0, batch.last.0)).collect::<Vec<_>>(), [(4, 5)]);
    partition.log_start_moved(Offset(50));
    assert_eq!((partition.start(), partition.end()), (Offset(50), Offset(50)));
}

#[test]
fn after_a_load_what_nobody_spoke_of_is_available() {
    let batch = |first, last, state, delivery_count| StateBatch {
        first: Offset(first),
        last: Offset(last),
        state,
        delivery_count,
    };
    let batches = [
        batch(0, 2, DeliveryState::Acknowledged, 1),
        batch(5, 6, DeliveryState::Available, 1),
        batch(8, 8, DeliveryState::Archived, 2),
    ];
    let mut partition = SharePartition::load(&kept(0, &batches), Offset(77));
    assert_eq!((partition.start(), partition.end()), (Offset(3), Offset(9)));
    assert_eq!(acquire(&mut partition, "a", &[span(3, 8)]), [(3, 4, 1), (5, 6, 2), (7, 7, 1)]);
    assert_eq!(SharePartition::load(&kept(-1, &[]), Offset(77)).start(), Offset(77));
}

#[test]
fn a_state_that_is_cut_too_finely_is_refused() {
    let limits = Limits { in_flight_max: i64::MAX, ..LIMITS };
    let mut partition = fresh();
    let count = RANGES_MAX as i64 + 10;
    partition.acquire(&holder("a"), at(30), Offset(0), &[span(0, count - 1)], ALL, limits);
    let kinds: Vec<_> = (0..count)
        .map(|offset| match offset % 2 {
            0 => AcknowledgeKind::Accept,
            _ => AcknowledgeKind::Release,
        })
        .collect();
    let batch = AcknowledgeBatch { first: Offset(0), last: Offset(count - 1), kinds };
    assert_eq!(partition.acknowledge("a", &[batch], None, limits), Err(ErrorCode::InvalidRequest));
}
