//! Many transactional ids, and transactions that cannot come to their end: nothing is done for all at once, nothing
//! without a bound, and nothing is given up.

use std::collections::BTreeSet;

use kafka_protocol::messages::ListTransactionsRequest;

use super::harness::{Harness, ID, TIMEOUT_MS, partitions, producer, settings, text};
use crate::config::TransactionSettings;
use crate::coordinator::transactions::{Producer, Request, Response, State, TransactionVersion};
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
        h.fail_markers(&["a"], ErrorCode::TransactionCoordinatorFenced);
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
    let filters = ListTransactionsRequest::default().with_duration_filter(-1);
    let (mut after, mut parts) = (None, 0);
    let mut listed = BTreeSet::new();
    loop {
        let Response::List { response, next } = h.call(Request::List { filters: filters.clone(), after })
        else {
            panic!("another answer")
        };
        parts += 1;
        assert!(response.transaction_states.len() <= 2048);
        for state in response.transaction_states {
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
