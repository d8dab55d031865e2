//! Many transactional ids, and transactions that cannot come to their end: nothing is done for all at once, nothing
//! without a bound, and nothing is given up.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::harness::{Harness, ID, TIMEOUT_MS, at_epoch, partitions, producer, settings, text};
use crate::config::TransactionSettings;
use crate::coordinator::transactions::{ListFilter, Producer, Request, Response, State, TransactionVersion};
use crate::wire::ErrorCode;
use TransactionVersion::{V0, V1, V2};

fn init(h: &mut Harness, id: &str) -> Result<Producer, ErrorCode> {
    match h.call(Request::Init { id: text(id), timeout_ms: TIMEOUT_MS, expected: None }) {
        Response::Init(result) => result,
        other => panic!("{other:?}"),
    }
}

fn add(h: &mut Harness, id: &str, producer: Producer, names: &[&str]) -> Result<(), ErrorCode> {
    let (partitions, version) = (partitions(names), h.version);
    match h.call(Request::AddPartitions { id: text(id), producer, partitions, version }) {
        Response::AddPartitions(result) => result,
        other => panic!("{other:?}"),
    }
}

fn count(h: &Harness, state: State) -> u64 {
    let figures = h.coordinator.figures();
    figures.ids.into_iter().find(|(name, _)| *name == state.name()).map_or(0, |(_, count)| count)
}

#[test]
fn markers_that_fail_are_sent_ever_more_rarely_but_for_ever() {
    let mut h = Harness::new(V2);
    let me = h.init(None).unwrap();
    h.add(me, &["a"]).unwrap();
    h.holds_markers = true;
    h.end(me, true).unwrap();
    for pause in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
        h.fail_markers(&["a"], ErrorCode::KafkaStorageError);
        assert_eq!(h.coordinator.figures().retries_waiting, 1);
        h.pass(pause - 1);
        assert!(h.rounds.is_empty(), "not before {pause} ms");
        h.pass(1);
        assert_eq!(h.rounds.len(), 1, "after {pause} ms");
    }
    h.mark_one();
    h.run_effects();
    assert_eq!(h.state().0, "CompleteCommit");
    assert_eq!((h.coordinator.figures().retries_waiting, h.coordinator.figures().retries), (0, 8));
    // The next one begins with the short pause again.
    let me = producer(me.id.0, me.epoch.0 + 1);
    h.add(me, &["a"]).unwrap();
    h.end(me, true).unwrap();
    h.fail_markers(&["a"], ErrorCode::NotLeaderOrFollower);
    h.pass(100);
    assert_eq!(h.rounds.len(), 1);
}

#[test]
fn markers_that_were_put_off_are_sent_at_once_when_brokers_come_or_go() {
    let mut h = Harness::new(V2);
    let me = h.init(None).unwrap();
    h.add(me, &["a"]).unwrap();
    h.holds_markers = true;
    h.end(me, true).unwrap();
    for pause in [100, 200, 400, 800] {
        h.fail_markers(&["a"], ErrorCode::NetworkException);
        h.pass(pause);
    }
    h.fail_markers(&["a"], ErrorCode::NetworkException);
    h.pass(10);
    assert!(h.rounds.is_empty());
    let now = h.now();
    h.coordinator.hurry(now);
    h.pass(0);
    assert_eq!(h.rounds.len(), 1);
    h.mark_one();
    h.run_effects();
    assert_eq!(h.state().0, "CompleteCommit");
}

#[test]
fn markers_that_a_partition_leaves_to_a_later_coordinator_are_not_sent_again_before_there_is_one() {
    let mut h = Harness::new(V2);
    let me = h.init(None).unwrap();
    h.add(me, &["a", "b", "c"]).unwrap();
    h.holds_markers = true;
    h.end(me, true).unwrap();
    h.fail_markers(&["b"], ErrorCode::TransactionCoordinatorFenced);
    let figures = h.coordinator.figures();
    assert_eq!((figures.retries_waiting, figures.fenced, figures.pending), (0, 1, 0));
    h.pass(60_000);
    assert!(h.rounds.is_empty());
    assert_eq!(h.init(None), Err(ErrorCode::ConcurrentTransactions));
    assert_eq!(h.state().0, "PrepareCommit");
    h.restart();
    let (marker, to, _) = &h.rounds[0];
    assert_eq!((marker.coordinator_epoch, to.len()), (2, 3));
    h.mark_one();
    h.run_effects();
    assert_eq!(h.state().0, "CompleteCommit");
}

#[test]
fn a_partition_that_takes_no_markers_keeps_no_transaction_from_its_end() {
    for error in [
        ErrorCode::InvalidProducerEpoch,
        ErrorCode::UnsupportedForMessageFormat,
        ErrorCode::UnsupportedVersion,
    ] {
        let mut h = Harness::new(V2);
        let me = h.init(None).unwrap();
        h.add(me, &["a", "b"]).unwrap();
        h.holds_markers = true;
        h.end(me, true).unwrap();
        h.fail_markers(&["b"], error);
        assert_eq!(h.state().0, "CompleteCommit", "{error}");
    }
}

#[test]
fn transactions_that_time_out_together_are_aborted_some_at_a_time() {
    const IDS: usize = 1000;
    let mut h = Harness::new(V2);
    for number in 0..IDS {
        let id = format!("id{number}");
        let me = init(&mut h, &id).unwrap();
        add(&mut h, &id, me, &["a"]).unwrap();
    }
    // One that is busy does not hold up those behind it.
    let me = h.init(None).unwrap();
    h.add(me, &["a"]).unwrap();
    h.holds_appends = true;
    h.send(h.adding(me, &["b"]));
    assert_eq!(count(&h, State::Ongoing), IDS as u64 + 1);
    h.now_ms += TIMEOUT_MS as u64 + 10_000;
    let mut turns = 0;
    while h.appends.len() <= IDS {
        let before = h.appends.len();
        let now = h.now();
        h.coordinator.advance(now);
        h.run_effects();
        assert!(h.appends.len() - before <= 256, "in one turn");
        turns += 1;
        assert!(turns < 10, "only {} of {IDS} were found", h.appends.len());
        h.now_ms = h.now_ms.max(h.coordinator.next_deadline().unwrap().as_millis());
    }
    h.holds_appends = false;
    while !h.appends.is_empty() {
        h.write_one();
    }
    h.run_effects();
    assert_eq!(count(&h, State::CompleteAbort), IDS as u64);
}

#[test]
fn ids_that_expire_together_go_some_at_a_time() {
    const IDS: usize = 600;
    let mut h = Harness::new(V1);
    for number in 0..IDS {
        init(&mut h, &format!("id{number}")).unwrap();
    }
    h.now_ms += settings().id_expiration_ms as u64;
    h.holds_appends = true;
    let now = h.now();
    h.coordinator.advance(now);
    h.run_effects();
    assert!((1..=256).contains(&h.appends.len()), "{} at once", h.appends.len());
    h.holds_appends = false;
    while !h.appends.is_empty() {
        h.write_one();
    }
    h.pass(1000);
    assert_eq!(count(&h, State::Empty), 0);
    assert_eq!(h.coordinator.figures().bytes, 0);
}

#[test]
fn transactions_are_listed_some_at_a_time_and_each_once() {
    const IDS: usize = 5000;
    let mut h = Harness::new(V1);
    for number in 0..IDS {
        init(&mut h, &format!("id{number}")).unwrap();
    }
    let filter = Arc::new(ListFilter::new(-1));
    let (mut after, mut parts) = (None, 0);
    let mut listed = BTreeSet::new();
    loop {
        let Response::List(Ok((states, next))) = h.call(Request::List { filter: filter.clone(), after })
        else {
            panic!("another answer")
        };
        parts += 1;
        assert!(states.len() <= 2048);
        for state in states {
            assert!(listed.insert(state.transactional_id.to_string()), "{:?} twice", state.transactional_id);
        }
        if next.is_none() {
            break;
        }
        after = next;
    }
    assert_eq!((listed.len(), parts), (IDS, 3));
}

#[test]
fn ids_and_partitions_beyond_the_room_are_refused_for_now_and_what_is_there_can_end() {
    let settings = TransactionSettings { bytes_max: 4096, ..settings() };
    let mut h = Harness::with(settings.clone(), V2);
    let me = h.init(None).unwrap();
    h.add(me, &["a"]).unwrap();
    let refused = (0..10).map(|number| init(&mut h, &format!("id{number}"))).find_map(Result::err);
    assert_eq!(refused, Some(ErrorCode::CoordinatorNotAvailable));
    assert!(h.coordinator.figures().bytes <= settings.bytes_max);
    let names: Vec<String> = (0..10).map(|number| format!("topic{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(h.add(me, &names), Err(ErrorCode::CoordinatorNotAvailable));
    assert_eq!(h.add(me, &["a"]), Ok(()), "nothing is added by it");
    let next = h.end(me, true).unwrap();
    assert_eq!(h.add(next, &["a"]), Ok(()));
    let before = h.coordinator.figures();
    h.restart();
    assert_eq!(h.coordinator.figures().bytes, before.bytes);
    assert_eq!(h.coordinator.figures().ids, before.ids);
    h.end(next, false).unwrap();
    h.pass(settings.id_expiration_ms as u64 + 2 * 3_600_000);
    assert_eq!(h.coordinator.figures().bytes, 0);
    assert!(init(&mut h, "id9").is_ok(), "there is room again");
}

#[test]
fn what_is_on_its_way_takes_its_room() {
    let settings = TransactionSettings { bytes_max: 4600, ..settings() };
    let mut h = Harness::with(settings, V2);
    let ids = ["id0", "id1", "id2"];
    let producers = ids.map(|id| init(&mut h, id).unwrap());
    let names: Vec<String> = (0..10).map(|number| format!("topic{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let before = h.coordinator.figures().bytes;
    h.holds_appends = true;
    let partitions = partitions(&names);
    h.send(Request::AddPartitions { id: text("id0"), producer: producers[0], partitions, version: V2 });
    assert_eq!(h.appends.len(), 1);
    assert_eq!(add(&mut h, "id1", producers[1], &names), Err(ErrorCode::CoordinatorNotAvailable));
    h.fail_one(ErrorCode::NotEnoughReplicas);
    assert_eq!(h.coordinator.figures().bytes, before, "it holds nothing any more");
    h.holds_appends = false;
    assert_eq!(add(&mut h, "id0", producers[0], &names), Ok(()));
    assert_eq!(add(&mut h, "id1", producers[1], &names), Ok(()));
    assert_eq!(add(&mut h, "id2", producers[2], &names), Err(ErrorCode::CoordinatorNotAvailable));
}

#[test]
fn what_waits_for_a_producer_id_is_bounded() {
    let init = |id: String| Request::Init { id: text(&id), timeout_ms: TIMEOUT_MS, expected: None };
    let mut h = Harness::new(V2);
    h.holds_ids = true;
    for number in 0..16_384 {
        h.send(init(format!("id{number}")));
    }
    assert_eq!((h.ids.len(), h.coordinator.figures().pending), (16_384, 16_384));
    let refused = Response::Init(Err(ErrorCode::CoordinatorNotAvailable));
    assert_eq!(h.call(init("one more".to_owned())), refused);
    while !h.ids.is_empty() {
        h.give_one_id();
    }
    h.holds_ids = false;
    assert_eq!(count(&h, State::Empty), 16_384);

    // By what they hold, too: an id may be long.
    let mut h = Harness::with(TransactionSettings { bytes_max: 100_000, ..settings() }, V2);
    h.holds_ids = true;
    for number in 0..3 {
        h.send(init(number.to_string() + &"x".repeat(30_000)));
    }
    assert_eq!(h.call(init("3".to_owned() + &"x".repeat(30_000))), refused);
    let token = h.send(init("short".to_owned()));
    assert_eq!(h.ids.len(), 4);
    h.refuse_ids(ErrorCode::CoordinatorLoadInProgress);
    assert_eq!(h.replies[&token], Response::Init(Err(ErrorCode::CoordinatorLoadInProgress)));
    assert_eq!((h.coordinator.figures().bytes, h.coordinator.figures().pending), (0, 0));
}

#[test]
fn a_producer_id_for_a_transaction_that_timed_out_is_asked_for_once() {
    let mut h = at_epoch(i16::MAX - 1, V2);
    let me = producer(5, i16::MAX - 1);
    h.add(me, &["a"]).unwrap();
    h.holds_ids = true;
    h.pass(TIMEOUT_MS as u64 + 10 * 10_000);
    assert_eq!(h.ids.len(), 1, "ten sweeps have found it");
    // There was none: the next sweep asks again.
    h.refuse_ids(ErrorCode::CoordinatorLoadInProgress);
    h.pass(20_000);
    assert_eq!(h.ids.len(), 1);
    h.give_one_id();
    assert_eq!(h.state(), ("CompleteAbort".to_owned(), producer(1000, 0)));
}

#[test]
fn a_restart_remembers_what_a_client_of_transactions_v2_was_told_whatever_the_features_level() {
    let mut h = Harness::new(V0);
    let me = h.init(None).unwrap();
    h.add(me, &["a"]).unwrap();
    h.holds_markers = true;
    let ending = Request::End { id: text(ID), producer: me, commit: true, version: V2 };
    assert_eq!(h.call(ending), Response::End(Ok(producer(1000, 1))));
    h.restart();
    assert_eq!(h.rounds[0].0.version, V2);
    h.mark_one();
    h.run_effects();
    assert_eq!(h.state(), ("CompleteCommit".to_owned(), producer(1000, 1)));

    // The last epoch of a producer id: the next one was told, and must not be lost.
    let mut h = Harness::new(V0);
    let mut me = h.init(None).unwrap();
    while me.epoch.0 < i16::MAX - 1 {
        me = h.init(Some(me)).unwrap();
    }
    h.add(me, &["a"]).unwrap();
    h.holds_markers = true;
    let ending = Request::End { id: text(ID), producer: me, commit: true, version: V2 };
    let Response::End(Ok(next)) = h.call(ending) else { panic!("refused") };
    assert_ne!(next.id, me.id);
    h.restart();
    h.mark_one();
    h.run_effects();
    assert_eq!(h.state(), ("CompleteCommit".to_owned(), next));
}
