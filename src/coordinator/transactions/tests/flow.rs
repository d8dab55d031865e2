//! Transactions from their beginning to their end, and what can come in between.

use std::sync::Arc;

use super::harness::{Harness, ID, TIMEOUT_MS, at_epoch, partitions, producer, settings, text};
use crate::base::{ProducerEpoch, ProducerId};
use crate::coordinator::transactions::{
    ListFilter, Producer, Record, Request, Response, State, Transaction, TransactionVersion,
};
use crate::wire::ErrorCode;
use TransactionVersion::{V0, V1, V2};

#[test]
fn a_commit_reaches_every_partition_and_then_is_complete() {
    for version in [V0, V1, V2] {
        let mut h = Harness::new(version);
        let me = h.init(None).unwrap();
        assert_eq!(me, producer(1000, 0));
        h.add(me, &["a"]).unwrap();
        h.add(me, &["b"]).unwrap();
        h.end(me, true).unwrap();
        let bumped = i16::from(version == V2);
        for (partition, markers) in &h.written {
            assert_eq!(markers.len(), 1, "{partition}");
            assert!(markers[0].commit);
            assert_eq!((markers[0].producer, markers[0].coordinator_epoch), (producer(1000, bumped), 1));
        }
        assert_eq!(h.written.len(), 2);
        assert_eq!(h.state(), ("CompleteCommit".to_owned(), producer(1000, bumped)));
        let last = h.last_record().unwrap();
        assert!(last.partitions.is_empty());
    }
}

#[test]
fn the_answer_waits_for_the_record_and_not_for_the_markers() {
    let mut h = Harness::new(V2);
    let me = h.init(None).unwrap();
    h.add(me, &["a"]).unwrap();
    h.holds_appends = true;
    h.holds_markers = true;
    let token = h.send(h.ending(me, true));
    assert!(h.replies.is_empty() && h.rounds.is_empty(), "nothing is told before it is durable");
    h.write_one();
    h.run_effects();
    assert_eq!(h.replies.remove(&token), Some(Response::End(Ok(producer(1000, 1)))));
    assert_eq!(h.rounds.len(), 1);
    h.mark_one();
    h.run_effects();
    assert_eq!(h.state().0, "PrepareCommit");
    h.write_one();
    assert_eq!(h.state().0, "CompleteCommit");
}

#[test]
fn markers_that_fail_are_sent_again_to_those_that_lack_them() {
    let mut h = Harness::new(V1);
    let me = h.init(None).unwrap();
    h.add(me, &["a", "b", "c"]).unwrap();
    h.holds_markers = true;
    h.end(me, false).unwrap();
    h.fail_markers(&["b"], ErrorCode::NotLeaderOrFollower);
    assert!(h.rounds.is_empty(), "not at once");
    h.pass(100);
    assert_eq!(h.rounds[0].1, partitions(&["b"]));
    h.mark_one();
    h.run_effects();
    assert_eq!(h.state().0, "CompleteAbort");
}

#[test]
fn a_completion_that_cannot_be_written_is_tried_again() {
    let mut h = Harness::new(V1);
    let me = h.init(None).unwrap();
    h.add(me, &["a"]).unwrap();
    h.holds_appends = true;
    h.send(h.ending(me, true));
    h.write_one();
    h.run_effects();
    h.fail_one(ErrorCode::NotEnoughReplicas);
    assert_eq!(h.add(me, &["a"]), Err(ErrorCode::ConcurrentTransactions));
    h.holds_appends = false;
    h.pass(100);
    assert_eq!(h.state().0, "CompleteCommit");
    assert_eq!(h.written[&partitions(&["a"]).pop_first().unwrap()].len(), 1, "the marker was there");
}

#[test]
fn a_transaction_whose_end_was_decided_is_carried_through_after_a_restart() {
    for commit in [true, false] {
        let mut h = Harness::new(V2);
        let me = h.init(None).unwrap();
        h.add(me, &["a", "b"]).unwrap();
        h.holds_markers = true;
        h.end(me, commit).unwrap();
        // Killed before any marker, then between the markers and the completion.
        h.restart();
        assert_eq!(h.state().0, if commit { "PrepareCommit" } else { "PrepareAbort" });
        assert_eq!(h.rounds[0].0.coordinator_epoch, 2);
        h.holds_appends = true;
        h.mark_one();
        h.restart();
        h.holds_appends = false;
        h.holds_markers = false;
        h.mark_one();
        h.run_effects();
        assert_eq!(h.state().0, if commit { "CompleteCommit" } else { "CompleteAbort" });
        assert!(h.written.values().flatten().all(|marker| marker.commit == commit));
    }
}

#[test]
fn a_decision_that_was_not_written_is_none() {
    let mut h = Harness::new(V2);
    let me = h.init(None).unwrap();
    h.add(me, &["a"]).unwrap();
    h.holds_appends = true;
    h.send(h.ending(me, true));
    h.restart();
    h.holds_appends = false;
    assert_eq!(h.state(), ("Ongoing".to_owned(), me));
    assert_eq!(h.end(me, false), Ok(producer(1000, 1)), "it may be aborted still");
}

#[test]
fn failed_appends_leave_everything_as_it_was() {
    let mut h = Harness::new(V1);
    h.holds_appends = true;
    let init = Request::Init { id: text(ID), timeout_ms: TIMEOUT_MS, expected: None };
    let token = h.send(init);
    assert_eq!(h.init(None), Err(ErrorCode::ConcurrentTransactions), "one at a time");
    h.fail_one(ErrorCode::RequestTimedOut);
    assert_eq!(h.replies.remove(&token), Some(Response::Init(Err(ErrorCode::CoordinatorNotAvailable))));
    assert_eq!(h.state().0, "error 105");
    h.holds_appends = false;
    let me = h.init(None).unwrap();
    for (error, told) in [
        (ErrorCode::NotEnoughReplicas, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::KafkaStorageError, ErrorCode::NotCoordinator),
        (ErrorCode::MessageTooLarge, ErrorCode::UnknownServerError),
    ] {
        h.holds_appends = true;
        let token = h.send(h.adding(me, &["a"]));
        h.fail_one(error);
        assert_eq!(h.replies.remove(&token), Some(Response::AddPartitions(Err(told))));
        h.holds_appends = false;
        assert_eq!(h.state(), ("Empty".to_owned(), me));
    }
}

#[test]
fn a_successor_aborts_the_transaction_and_then_gets_an_epoch_above_the_markers() {
    for version in [V1, V2] {
        let mut h = Harness::new(version);
        let zombie = h.init(None).unwrap();
        h.add(zombie, &["a"]).unwrap();
        assert_eq!(h.init(None), Err(ErrorCode::ConcurrentTransactions));
        assert_eq!(h.state(), ("CompleteAbort".to_owned(), producer(1000, 1)));
        let successor = h.init(None).unwrap();
        assert_eq!(successor, producer(1000, 2));
        assert_eq!(h.add(zombie, &["a"]), Err(ErrorCode::ProducerFenced));
        assert_eq!(h.end(zombie, true), Err(ErrorCode::ProducerFenced));
        assert_eq!(h.init(Some(zombie)), Err(ErrorCode::ProducerFenced));
        h.add(successor, &["a"]).unwrap();
        h.end(successor, true).unwrap();
    }
}

#[test]
fn a_transaction_that_times_out_is_aborted_and_its_producer_fenced() {
    for version in [V1, V2] {
        let mut h = Harness::new(version);
        let me = h.init(None).unwrap();
        h.add(me, &["a"]).unwrap();
        h.pass(TIMEOUT_MS as u64 / 2);
        // What is added later does not put it off.
        h.add(me, &["b"]).unwrap();
        h.pass(TIMEOUT_MS as u64 / 2);
        assert_eq!(h.state().0, "Ongoing");
        h.pass(10_000);
        assert_eq!(h.state(), ("CompleteAbort".to_owned(), producer(1000, 1)));
        assert!(h.written.values().flatten().all(|marker| !marker.commit));
        assert_eq!(h.written.len(), 2);
        assert_eq!(h.add(me, &["a"]), Err(ErrorCode::ProducerFenced));
        assert_eq!(
            h.end(me, true),
            Err(match version {
                // The epoch is the one before the present one: a commit asked again, of what was aborted.
                V2 => ErrorCode::InvalidTxnState,
                _ => ErrorCode::ProducerFenced,
            })
        );
    }
}

#[test]
fn an_unused_id_expires_and_an_open_transaction_does_not() {
    let mut h = Harness::new(V1);
    let me = h.init(None).unwrap();
    let other = Request::Init { id: text("other"), timeout_ms: i32::MAX - 1, expected: None };
    assert_eq!(h.call(other.clone()), Response::Init(Err(ErrorCode::InvalidTransactionTimeout)));
    h.pass(settings().id_expiration_ms as u64 - 3_600_000);
    assert_eq!(h.state(), ("Empty".to_owned(), me));
    h.pass(2 * 3_600_000);
    assert_eq!(h.state().0, "error 105");
    assert_eq!(h.last_record(), None, "a tombstone");
    assert_eq!(h.coordinator.next_deadline(), None, "nothing is left to look at");
    h.restart();
    assert_eq!(h.state().0, "error 105");
}

#[test]
fn epochs_used_up_lead_to_a_new_producer_id() {
    // By InitProducerId: the last epoch is kept to fence with.
    let mut h = at_epoch(i16::MAX - 1, V1);
    assert_eq!(h.init(None), Ok(producer(1000, 0)));
    let last = h.last_record().unwrap();
    assert_eq!((last.previous_producer_id, last.producer_id), (ProducerId(5), ProducerId(1000)));
    let me = producer(5, i16::MAX - 1);
    assert_eq!(h.init(Some(me)), Err(ErrorCode::ProducerFenced), "somebody else asked");
    let mut h = at_epoch(i16::MAX - 1, V1);
    assert_eq!(h.init(Some(me)), Ok(producer(1000, 0)));
    assert_eq!(h.init(Some(me)), Ok(producer(1000, 0)), "the answer was lost");

    // By EndTxn of transactions v2: markers carry the last epoch of all, the answer the new id.
    let mut h = at_epoch(i16::MAX - 1, V2);
    h.add(me, &["a"]).unwrap();
    assert_eq!(h.end(me, true), Ok(producer(1000, 0)));
    let marker = h.written.values().flatten().next().unwrap();
    assert_eq!(marker.producer, producer(5, i16::MAX));
    assert_eq!(h.state(), ("CompleteCommit".to_owned(), producer(1000, 0)));
    assert_eq!(h.end(me, true), Ok(producer(1000, 0)), "asked again");
    h.add(producer(1000, 0), &["a"]).unwrap();

    // By a fence in the middle of a transaction.
    let mut h = at_epoch(i16::MAX - 1, V2);
    h.add(me, &["a"]).unwrap();
    assert_eq!(h.init(None), Err(ErrorCode::ConcurrentTransactions));
    assert_eq!(h.state(), ("CompleteAbort".to_owned(), producer(1000, 0)));
    assert_eq!(h.init(None), Ok(producer(1000, 1)));

    // And without transactions v2.
    let mut h = at_epoch(i16::MAX - 1, V1);
    h.add(me, &["a"]).unwrap();
    assert_eq!(h.init(None), Err(ErrorCode::ConcurrentTransactions));
    assert_eq!(h.state(), ("CompleteAbort".to_owned(), producer(5, i16::MAX)));
    assert_eq!(h.init(None), Ok(producer(1000, 0)));
}

#[test]
fn a_producer_that_asks_for_its_next_epoch_gets_it_once() {
    let mut h = Harness::new(V1);
    let first = h.init(None).unwrap();
    let second = h.init(Some(first)).unwrap();
    assert_eq!(second, producer(1000, 1));
    assert_eq!(h.init(Some(first)), Ok(second), "the answer was lost");
    let successor = h.init(None).unwrap();
    assert_eq!(successor, producer(1000, 2));
    assert_eq!(h.init(Some(second)), Err(ErrorCode::ProducerFenced));
    assert_eq!(h.init(Some(producer(9, 2))), Err(ErrorCode::ProducerFenced));
}

#[test]
fn requests_that_are_wrong_in_themselves_are_refused() {
    let mut h = Harness::new(V2);
    let empty = Request::Init { id: text(""), timeout_ms: 1, expected: None };
    assert_eq!(h.call(empty), Response::Init(Err(ErrorCode::InvalidRequest)));
    for timeout_ms in [0, -1, 900_001] {
        let request = Request::Init { id: text(ID), timeout_ms, expected: None };
        assert_eq!(h.call(request), Response::Init(Err(ErrorCode::InvalidTransactionTimeout)));
    }
    let request = Request::End { id: text(""), producer: Producer::NONE, commit: true, version: V2 };
    assert_eq!(h.call(request), Response::End(Err(ErrorCode::InvalidRequest)));
}

#[test]
fn partitions_that_are_loaded_or_led_elsewhere_send_away() {
    let mut h = Harness::new(V2);
    let me = h.init(None).unwrap();
    h.holds_appends = true;
    let adding = h.send(h.adding(me, &["a"]));
    let partition = h.coordinator.partition_of(ID);
    h.coordinator.load(partition, 7);
    h.run_effects();
    let answer = h.replies.remove(&adding);
    assert_eq!(answer, Some(Response::AddPartitions(Err(ErrorCode::NotCoordinator))));
    assert_eq!(h.init(None), Err(ErrorCode::CoordinatorLoadInProgress));
    let listing = Request::List { filter: Arc::new(ListFilter::new(-1)), after: None };
    assert_eq!(h.call(listing), Response::List(Err(ErrorCode::CoordinatorLoadInProgress)));
    h.coordinator.unload(partition);
    assert_eq!(h.init(None), Err(ErrorCode::NotCoordinator));
    // The append comes home late: nobody waits for it.
    let (_, _, ticket) = h.appends.pop_front().unwrap();
    let now = h.now();
    h.coordinator.appended(ticket, Ok(()), now);
}

fn list(h: &mut Harness, longer_than_ms: i64, add: impl Fn(&mut ListFilter)) -> Vec<String> {
    let mut filter = ListFilter::new(longer_than_ms);
    add(&mut filter);
    match h.call(Request::List { filter: Arc::new(filter), after: None }) {
        Response::List(Ok((states, None))) => {
            states.iter().map(|it| it.transactional_id.to_string()).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn transactions_are_listed_by_state_producer_and_age() {
    let mut h = Harness::new(V1);
    let me = h.init(None).unwrap();
    h.add(me, &["a"]).unwrap();
    let other = Request::Init { id: text("other"), timeout_ms: TIMEOUT_MS, expected: None };
    h.call(other);
    h.pass(5_000);
    assert_eq!(list(&mut h, -1, |_| {}).len(), 2);
    let in_state = |h: &mut Harness, name: &str| list(h, -1, |filter| assert!(filter.add_state(name)));
    assert_eq!(in_state(&mut h, "Ongoing"), [ID]);
    assert_eq!(in_state(&mut h, "Empty"), ["other"]);
    assert_eq!(in_state(&mut h, "Dead").len(), 0);
    let unknown = list(&mut h, -1, |filter| assert!(!filter.add_state("ongoing")));
    assert_eq!(unknown.len(), 0, "none but those in that state");
    let either = list(&mut h, -1, |filter| assert!(filter.add_state("Ongoing") && filter.add_state("Empty")));
    assert_eq!(either.len(), 2);
    assert_eq!(list(&mut h, -1, |filter| filter.add_producer(ProducerId(1001))), ["other"]);
    let neither = |filter: &mut ListFilter| {
        filter.add_state("Ongoing");
        filter.add_producer(ProducerId(1001));
    };
    assert_eq!(list(&mut h, -1, neither).len(), 0);
    assert_eq!(list(&mut h, 0, |_| {}).len(), 2);
    assert_eq!(list(&mut h, 4_999, |_| {}).len(), 2);
    assert_eq!(list(&mut h, 5_000, |_| {}), ["other"], "since ever");
    assert_eq!(list(&mut h, i64::MAX, |_| {}).len(), 0);
}

#[test]
fn a_description_tells_partitions_and_times() {
    let mut h = Harness::new(V1);
    let me = h.init(None).unwrap();
    h.add(me, &["b", "a"]).unwrap();
    let Response::Describe(state) = h.call(Request::Describe(text(ID))) else { panic!() };
    let topics: Vec<&str> = state.topics.iter().map(|topic| topic.topic.as_str()).collect();
    assert_eq!(topics, ["a", "b"]);
    assert_eq!(state.transaction_timeout_ms, TIMEOUT_MS);
    assert_eq!(state.transaction_start_time_ms, h.now().wall.0);
    let Response::Describe(state) = h.call(Request::Describe(text(""))) else { panic!() };
    assert_eq!(state.error_code, ErrorCode::InvalidRequest.code());
}

#[test]
fn records_come_back_from_every_version() {
    let created = Transaction::created(ProducerId(5), TIMEOUT_MS, crate::base::clock::Timestamp(77));
    for (version, client) in [(V0, V0), (V0, V2), (V1, V2), (V2, V2)] {
        let now = created.updated_at;
        let transaction = created.initialized(None, TIMEOUT_MS, now).unwrap();
        let transaction = transaction.with_partitions(&partitions(&["a", "b"]), client, now);
        let transaction = transaction.prepared(true, client, ProducerId(9), now);
        let record = Record { id: text("tränsaktion"), value: Some(transaction.clone()) };
        let encoded = record.encode(version);
        let mut expected = transaction.clone();
        // Not kept.
        expected.last_epoch = ProducerEpoch(-1);
        if (version, client) == (V0, V0) {
            expected.previous_producer_id = ProducerId::NONE;
            expected.next_producer_id = ProducerId::NONE;
        }
        let decoded = Record::decode(&encoded.key, encoded.value.as_deref()).unwrap();
        assert_eq!(decoded.value, Some(expected), "{version:?} {client:?}");
        for cut in 0..encoded.value.as_ref().unwrap().len() {
            assert!(Record::decode(&encoded.key, Some(&encoded.value.as_ref().unwrap()[..cut])).is_err());
        }
    }
    let tombstone = Record { id: text(ID), value: None };
    let encoded = tombstone.encode(V2);
    assert_eq!(Record::decode(&encoded.key, encoded.value.as_deref()), Ok(tombstone));
    assert!(Record::decode(&[0, 1, 0, 0], None).is_err());
}

#[test]
fn transitions_are_kafkas() {
    let may: Vec<(State, Vec<State>)> = State::ALL
        .into_iter()
        .map(|to| (to, State::ALL.into_iter().filter(|from| to.may_follow(*from)).collect()))
        .collect();
    use State::*;
    assert_eq!(
        may,
        [
            (Empty, vec![Empty, CompleteCommit, CompleteAbort]),
            (Ongoing, vec![Empty, Ongoing, CompleteCommit, CompleteAbort]),
            (PrepareCommit, vec![Ongoing]),
            (PrepareAbort, vec![Empty, Ongoing, CompleteCommit, CompleteAbort, PrepareEpochFence]),
            (CompleteCommit, vec![PrepareCommit]),
            (CompleteAbort, vec![PrepareAbort]),
            (Dead, vec![Empty, CompleteCommit, CompleteAbort]),
            (PrepareEpochFence, vec![Ongoing]),
        ]
    );
    for state in State::ALL {
        assert_eq!((State::from_id(state.id()), State::from_name(state.name())), (Some(state), Some(state)));
    }
}
