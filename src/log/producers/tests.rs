use super::*;
use crate::log::verification::Claim;
use crate::wire::record::Attributes;

fn head(id: i64, epoch: i16, sequence: i32, offset: i64, records: i32) -> BatchHead {
    let mut head = BatchHead::empty();
    head.set_producer(ProducerId(id), ProducerEpoch(epoch), sequence);
    head.set_base_offset(Offset(offset));
    head.set_last_offset_delta(records - 1);
    head.set_count(records);
    head.set_max_timestamp(Timestamp(1000 + offset));
    head
}

fn transactional(mut head: BatchHead) -> BatchHead {
    head.set_attributes(Attributes::default().with_transactional(true));
    head
}

fn query(epoch: i16, sequence: i32, bumps_epoch: bool) -> Query {
    Query { id: ProducerId(1), epoch: ProducerEpoch(epoch), sequence, bumps_epoch }
}

fn begin(
    producers: &mut Producers,
    epoch: i16,
    sequence: i32,
    bumps_epoch: bool,
) -> Result<Option<Guard>, ErrorCode> {
    producers.begin_verification(query(epoch, sequence, bumps_epoch), Timestamp(1000))
}

fn append(producers: &mut Producers, head: &BatchHead) -> Result<Check, ErrorCode> {
    let check = producers.check(head, Origin::Client, Claim::Unchecked)?;
    if check == Check::Append {
        producers.apply(head);
        producers.commit();
    }
    Ok(check)
}

#[test]
fn the_last_five_batches_are_recognised_and_older_ones_are_out_of_order() {
    let mut producers = Producers::default();
    for batch in 0..6 {
        let next = head(1, 0, batch * 2, i64::from(batch) * 10, 2);
        assert_eq!(append(&mut producers, &next), Ok(Check::Append));
    }
    for batch in 1..6i64 {
        let again = head(1, 0, batch as i32 * 2, 500, 2);
        let first = Offset(batch * 10);
        let expected = Check::Duplicate { first, last: first.plus(1), timestamp: Timestamp(1000 + first.0) };
        assert_eq!(append(&mut producers, &again), Ok(expected));
    }
    let outside = head(1, 0, 0, 500, 2);
    assert_eq!(append(&mut producers, &outside), Err(ErrorCode::OutOfOrderSequenceNumber));
    let overlapping = head(1, 0, 10, 500, 1);
    assert_eq!(append(&mut producers, &overlapping), Err(ErrorCode::OutOfOrderSequenceNumber));
    let gap = head(1, 0, 13, 500, 1);
    assert_eq!(append(&mut producers, &gap), Err(ErrorCode::OutOfOrderSequenceNumber));
}

#[test]
fn sequence_wraps_to_zero() {
    let mut producers = Producers::default();
    append(&mut producers, &head(1, 0, i32::MAX - 1, 0, 2)).unwrap();
    assert_eq!(append(&mut producers, &head(1, 0, 0, 2, 1)), Ok(Check::Append));

    append(&mut producers, &head(2, 0, i32::MAX, 3, 3)).unwrap();
    let again = append(&mut producers, &head(2, 0, i32::MAX, 9, 3)).unwrap();
    assert!(matches!(again, Check::Duplicate { first: Offset(3), last: Offset(5), .. }));
    assert_eq!(append(&mut producers, &head(2, 0, 2, 6, 1)), Ok(Check::Append));
}

#[test]
fn a_new_epoch_starts_at_zero_and_fences_the_old_one() {
    let mut producers = Producers::default();
    assert_eq!(append(&mut producers, &head(1, 3, 77, 0, 1)), Ok(Check::Append), "unknown: starts anywhere");
    assert_eq!(append(&mut producers, &head(1, 4, 78, 1, 1)), Err(ErrorCode::OutOfOrderSequenceNumber));
    assert_eq!(append(&mut producers, &head(1, 4, 0, 1, 1)), Ok(Check::Append));
    assert_eq!(append(&mut producers, &head(1, 3, 78, 2, 1)), Err(ErrorCode::InvalidProducerEpoch));
    let coordinators = head(1, 4, -1, 2, 1);
    assert_eq!(producers.check(&coordinators, Origin::Coordinator, Claim::Unchecked), Ok(Check::Append));
}

#[test]
fn open_transactions_hold_the_first_unstable_offset_until_replicated() {
    let mut producers = Producers::default();
    append(&mut producers, &transactional(head(1, 0, 0, 10, 1))).unwrap();
    append(&mut producers, &transactional(head(2, 0, 0, 11, 1))).unwrap();
    assert_eq!(append(&mut producers, &head(2, 0, 1, 12, 1)), Err(ErrorCode::InvalidTxnState));
    let marker = EndTxnMarker { commit: true, coordinator_epoch: 7 };
    let end = head(1, 0, -1, 12, 1);
    assert_eq!(producers.check_marker(&end, marker, Claim::Unchecked), Ok(()));
    assert_eq!(producers.apply_marker(&end, marker, Claim::Unchecked), None, "a commit");
    assert_eq!(producers.first_unstable(), Some(Offset(10)));
    producers.high_watermark_advanced(Offset(12));
    assert_eq!(producers.first_unstable(), Some(Offset(10)));
    producers.high_watermark_advanced(Offset(13));
    assert_eq!(producers.first_unstable(), Some(Offset(11)));
    let zombie = EndTxnMarker { coordinator_epoch: 6, ..marker };
    assert_eq!(
        producers.check_marker(&end, zombie, Claim::Unchecked),
        Err(ErrorCode::TransactionCoordinatorFenced)
    );
}

#[test]
fn an_abort_marker_tells_the_transaction_and_what_is_stable_then() {
    let mut producers = Producers::default();
    append(&mut producers, &transactional(head(1, 0, 0, 10, 1))).unwrap();
    append(&mut producers, &transactional(head(2, 0, 0, 11, 1))).unwrap();
    let marker = EndTxnMarker { commit: false, coordinator_epoch: 7 };
    let aborted = |producer, first, last, last_stable| AbortedTransaction {
        producer: ProducerId(producer),
        first: Offset(first),
        last: Offset(last),
        last_stable: Offset(last_stable),
    };
    assert_eq!(
        producers.apply_marker(&head(2, 0, -1, 12, 1), marker, Claim::Unchecked),
        Some(aborted(2, 11, 12, 10))
    );
    assert_eq!(
        producers.apply_marker(&head(1, 0, -1, 13, 1), marker, Claim::Unchecked),
        Some(aborted(1, 10, 13, 14))
    );
    assert_eq!(
        producers.apply_marker(&head(1, 0, -1, 14, 1), marker, Claim::Unchecked),
        None,
        "no transaction"
    );
}

#[test]
fn rollback_restores_what_was() {
    let mut producers = Producers::default();
    append(&mut producers, &transactional(head(1, 0, 0, 10, 1))).unwrap();
    let before: Vec<_> = producers.descriptions().collect();
    producers.apply(&head(1, 0, 1, 11, 1));
    producers.apply(&transactional(head(2, 0, 0, 12, 1)));
    producers.apply_marker(
        &head(1, 0, -1, 13, 1),
        EndTxnMarker { commit: false, coordinator_epoch: 1 },
        Claim::Unchecked,
    );
    producers.rollback();
    assert_eq!(producers.descriptions().collect::<Vec<_>>(), before);
}

#[test]
fn rollback_gives_back_the_guard_of_a_transaction_that_did_not_begin() {
    let mut producers = Producers::default();
    let guard = begin(&mut producers, 0, 3, false).unwrap().unwrap();
    let claim = Claim::Begins(guard);
    let first = transactional(head(1, 0, 3, 10, 1));
    producers.apply(&first);
    producers.apply(&transactional(head(1, 0, 4, 11, 1)));
    producers.rollback();
    let later = transactional(head(1, 0, 4, 10, 1));
    assert_eq!(
        producers.check(&later, Origin::Client, claim),
        Err(ErrorCode::OutOfOrderSequenceNumber),
        "not before the one that failed with it"
    );
    assert_eq!(producers.check(&first, Origin::Client, claim), Ok(Check::Append));
    producers.apply_marker(
        &head(1, 0, -1, 10, 1),
        EndTxnMarker { commit: false, coordinator_epoch: 1 },
        Claim::Unchecked,
    );
    producers.rollback();
    assert_eq!(producers.check(&first, Origin::Client, claim), Ok(Check::Append), "nor was it ended");
    producers.apply(&first);
    producers.commit();
    producers.rollback();
    assert_eq!(producers.check(&later, Origin::Client, Claim::Open), Ok(Check::Append));
}

#[test]
fn idle_producers_expire_unless_a_transaction_is_open() {
    let mut producers = Producers::default();
    append(&mut producers, &head(1, 0, 0, 0, 1)).unwrap();
    append(&mut producers, &transactional(head(2, 0, 0, 1, 1))).unwrap();
    producers.expire(Timestamp(1000 + 99), 100);
    assert_eq!(producers.len(), 2);
    producers.expire(Timestamp(1000 + 100), 100);
    assert_eq!(producers.descriptions().map(|producer| producer.id.0).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_transaction_begins_with_a_guard_and_goes_on_without() {
    let mut producers = Producers::default();
    let first = transactional(head(1, 0, 0, 10, 1));
    let check = |producers: &Producers, head: &BatchHead, claim| producers.check(head, Origin::Client, claim);
    assert_eq!(check(&producers, &first, Claim::Open), Err(ErrorCode::InvalidTxnState));
    let begin = |producers: &mut Producers, epoch, sequence| begin(producers, epoch, sequence, false);
    let guard = begin(&mut producers, 0, 0).unwrap().unwrap();
    assert_eq!(begin(&mut producers, 0, 0), Ok(Some(guard)), "asked again");
    assert_eq!(check(&producers, &first, Claim::Begins(guard)), Ok(Check::Append));
    // The transaction ends before the batch is there.
    let marker = EndTxnMarker { commit: false, coordinator_epoch: 1 };
    producers.apply_marker(&head(1, 0, -1, 10, 1), marker, Claim::Unchecked);
    assert_eq!(check(&producers, &first, Claim::Begins(guard)), Err(ErrorCode::InvalidTxnState));
    let guard = begin(&mut producers, 0, 0).unwrap().unwrap();
    producers.apply(&first);
    assert_eq!(begin(&mut producers, 0, 1), Ok(None), "under way");
    let second = transactional(head(1, 0, 1, 11, 1));
    assert_eq!(check(&producers, &second, Claim::Open), Ok(Check::Append));
    assert_eq!(check(&producers, &second, Claim::Begins(guard)), Ok(Check::Append));
    let zombie = transactional(head(1, -1, 1, 11, 1));
    assert_eq!(check(&producers, &zombie, Claim::Open), Err(ErrorCode::InvalidProducerEpoch));
    assert_eq!(begin(&mut producers, -1, 0), Err(ErrorCode::InvalidProducerEpoch));
}

#[test]
fn a_batch_does_not_overtake_the_one_that_was_verified_before_it() {
    let mut producers = Producers::default();
    let begin = |producers: &mut Producers, sequence, bumps| begin(producers, 0, sequence, bumps);
    let guard = begin(&mut producers, 3, false).unwrap().unwrap();
    begin(&mut producers, 5, false).unwrap();
    let claim = Claim::Begins(guard);
    let overtaking = transactional(head(1, 0, 5, 0, 1));
    assert_eq!(producers.check(&overtaking, Origin::Client, claim), Err(ErrorCode::OutOfOrderSequenceNumber));
    let next = transactional(head(1, 0, 3, 0, 1));
    assert_eq!(producers.check(&next, Origin::Client, claim), Ok(Check::Append));
    let mut producers = Producers::default();
    let claim = Claim::Begins(begin(&mut producers, 3, true).unwrap().unwrap());
    assert_eq!(
        producers.check(&next, Origin::Client, claim),
        Err(ErrorCode::OutOfOrderSequenceNumber),
        "under transactions v2 an unknown producer begins with 0"
    );
}

#[test]
fn a_late_marker_does_not_end_the_next_transaction() {
    let mut producers = Producers::default();
    let marker = EndTxnMarker { commit: true, coordinator_epoch: 1 };
    let end = head(1, 1, -1, 10, 1);
    let check = |producers: &Producers, claim| producers.check_marker(&end, marker, claim);
    let bumped = Claim::Marker { bumps_epoch: true, coordinator_epoch_max: 1 };
    append(&mut producers, &transactional(head(1, 0, 0, 0, 1))).unwrap();
    assert_eq!(check(&producers, bumped), Ok(()));
    producers.apply_marker(&end, marker, Claim::Unchecked);
    assert_eq!(check(&producers, bumped), Ok(()), "written twice");
    append(&mut producers, &transactional(head(1, 1, 0, 11, 1))).unwrap();
    assert_eq!(check(&producers, bumped), Err(ErrorCode::InvalidProducerEpoch));
    assert_eq!(check(&producers, Claim::Unchecked), Ok(()));
}

#[test]
fn a_guard_outlives_the_end_of_the_transaction_before_its_own_and_no_other() {
    let mut producers = Producers::default();
    let marker = EndTxnMarker { commit: true, coordinator_epoch: 1 };
    let bumped = |bumps_epoch| Claim::Marker { bumps_epoch, coordinator_epoch_max: 1 };
    append(&mut producers, &transactional(head(1, 0, 0, 0, 1))).unwrap();
    // The client was told that its transaction is decided, and its next batch is quicker than the marker.
    let guard = begin(&mut producers, 1, 0, true).unwrap().unwrap();
    producers.apply_marker(&head(1, 1, -1, 1, 1), marker, bumped(true));
    let next = transactional(head(1, 1, 0, 2, 1));
    assert_eq!(producers.check(&next, Origin::Client, Claim::Begins(guard)), Ok(Check::Append));
    // Its own transaction is aborted before it is written.
    producers.apply_marker(&head(1, 2, -1, 2, 1), marker, bumped(true));
    let late = producers.check(&next, Origin::Client, Claim::Begins(guard));
    assert_eq!(late, Err(ErrorCode::InvalidProducerEpoch));
    // A transaction that keeps its epoch ends with it.
    let guard = begin(&mut producers, 2, 0, false).unwrap().unwrap();
    producers.apply_marker(&head(1, 2, -1, 3, 1), marker, bumped(false));
    let late = transactional(head(1, 2, 0, 4, 1));
    let late = producers.check(&late, Origin::Client, Claim::Begins(guard));
    assert_eq!(late, Err(ErrorCode::InvalidTxnState));
}

#[test]
fn a_coordinator_epoch_that_nobody_had_fences_nobody() {
    let mut producers = Producers::default();
    let end = head(1, 0, -1, 10, 1);
    let marker = |coordinator_epoch| EndTxnMarker { commit: false, coordinator_epoch };
    let check = |producers: &Producers, epoch| {
        let claim = Claim::Marker { bumps_epoch: false, coordinator_epoch_max: 3 };
        producers.check_marker(&end, marker(epoch), claim)
    };
    assert_eq!(check(&producers, i32::MAX), Err(ErrorCode::TransactionCoordinatorFenced));
    assert_eq!(check(&producers, 3), Ok(()));
    producers.apply_marker(&end, marker(2), Claim::Unchecked);
    assert_eq!(check(&producers, 1), Err(ErrorCode::TransactionCoordinatorFenced), "a zombie's");
    assert_eq!(check(&producers, 4), Err(ErrorCode::TransactionCoordinatorFenced));
    // Written before this was looked at, or when the topic of transactions was another one.
    producers.apply_marker(&end, marker(i32::MAX), Claim::Unchecked);
    assert_eq!(check(&producers, 0), Ok(()));
    assert_eq!(check(&producers, i32::MAX), Ok(()), "as DescribeProducers tells it to who ends it by hand");
}

#[test]
fn a_transaction_does_not_begin_while_the_one_before_it_is_open() {
    let mut producers = Producers::default();
    append(&mut producers, &transactional(head(1, 0, 0, 0, 1))).unwrap();
    let next = transactional(head(1, 1, 0, 1, 1));
    for origin in [Origin::Client, Origin::Coordinator] {
        let check = producers.check(&next, origin, Claim::Unchecked);
        assert_eq!(check, Err(ErrorCode::ConcurrentTransactions));
    }
    producers.apply_marker(
        &head(1, 1, -1, 1, 1),
        EndTxnMarker { commit: true, coordinator_epoch: 1 },
        Claim::Unchecked,
    );
    assert_eq!(append(&mut producers, &next), Ok(Check::Append));
}

#[test]
fn a_hanging_transaction_is_ended_with_the_next_one_that_the_coordinator_knows_of() {
    let mut producers = Producers::default();
    append(&mut producers, &transactional(head(1, 0, 0, 0, 1))).unwrap();
    let next = transactional(head(1, 1, 0, 1, 1));
    let guard = begin(&mut producers, 1, 0, true).unwrap().unwrap();
    let check = |producers: &Producers, claim| producers.check(&next, Origin::Client, claim);
    assert_eq!(check(&producers, Claim::Open), Err(ErrorCode::InvalidTxnState));
    assert_eq!(check(&producers, Claim::Begins(guard)), Ok(Check::Append));
    producers.apply(&next);
    producers.commit();
    assert_eq!(producers.first_unstable(), Some(Offset(0)));
    producers.apply_marker(
        &head(1, 2, -1, 2, 1),
        EndTxnMarker { commit: false, coordinator_epoch: 1 },
        Claim::Unchecked,
    );
    producers.commit();
    assert!(producers.open.is_empty(), "both have ended");
}

#[test]
fn the_guard_of_a_refused_verification_goes_when_nobody_else_counts_on_it() {
    let mut producers = Producers::default();
    let first = transactional(head(1, 0, 0, 10, 1));
    let is_good = |producers: &Producers, guard| {
        producers.check(&first, Origin::Client, Claim::Begins(guard)) == Ok(Check::Append)
    };
    let guard = begin(&mut producers, 0, 0, false).unwrap().unwrap();
    begin(&mut producers, 0, 0, false).unwrap();
    producers.refuse_verification(ProducerId(1), guard, true);
    assert!(is_good(&producers, guard), "another request has it, too");
    producers.refuse_verification(ProducerId(1), guard, true);
    assert!(!is_good(&producers, guard));
    let guard = begin(&mut producers, 0, 0, false).unwrap().unwrap();
    producers.refuse_verification(ProducerId(1), guard, false);
    assert!(is_good(&producers, guard), "it will be asked again");
}
