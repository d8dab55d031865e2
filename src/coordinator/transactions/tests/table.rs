//! Every state × every event: what is answered, which states are written, and where it ends.

use super::harness::{Harness, ID, TIMEOUT_MS, partitions, producer, settings, text};
use crate::coordinator::transactions::{Producer, Request, Response, TransactionVersion};
use crate::coordinator::{KeyValue, transactions::Record};
use TransactionVersion::{V1, V2};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Unknown,
    Empty,
    Ongoing,
    PrepareCommit,
    PrepareAbort,
    CompleteCommit,
    CompleteAbort,
    /// Its tombstone is on its way.
    Dead,
}

/// Brings a coordinator to a state. Markers are held from then on. Returns who the producer is.
fn reach(at: At, version: TransactionVersion) -> (Harness, Producer) {
    let mut h = Harness::new(version);
    if at == At::Unknown {
        return (h, producer(1000, 0));
    }
    let mut me = h.init(None).unwrap();
    match at {
        At::Unknown | At::Empty => {}
        At::Ongoing => h.add(me, &["a", "b"]).unwrap(),
        At::PrepareCommit | At::PrepareAbort => {
            h.add(me, &["a", "b"]).unwrap();
            h.holds_markers = true;
            me = current(h.end(me, at == At::PrepareCommit).unwrap(), me);
        }
        At::CompleteCommit | At::CompleteAbort => {
            h.add(me, &["a", "b"]).unwrap();
            me = current(h.end(me, at == At::CompleteCommit).unwrap(), me);
        }
        At::Dead => {
            h.holds_appends = true;
            h.pass(settings().id_expiration_ms as u64 + 3_600_000);
            assert_eq!(h.appends.len(), 1, "the tombstone");
        }
    }
    h.holds_markers = true;
    (h, me)
}

/// Without an epoch of its own the end of a transaction tells no new one.
fn current(told: Producer, me: Producer) -> Producer {
    if told == Producer::NONE { me } else { told }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Init,
    /// By the present producer.
    InitAgain,
    /// By a producer that was fenced.
    InitOld,
    Add,
    AddSame,
    AddOld,
    Verify,
    Commit,
    Abort,
    /// With the epoch before the present one: a question asked again under transactions v2, else a zombie's.
    CommitLast,
    AbortLast,
    CommitOther,
}

fn request(event: Event, me: Producer, version: TransactionVersion) -> Request {
    let id = text(ID);
    let old = Producer { epoch: (me.epoch.0 - 1).into(), ..me };
    let init = |expected| Request::Init { id: text(ID), timeout_ms: TIMEOUT_MS, expected };
    let add = |producer, names: &[&str]| Request::AddPartitions {
        id: text(ID),
        producer,
        partitions: partitions(names),
        version,
    };
    let end = |producer, commit| Request::End { id: text(ID), producer, commit, version };
    match event {
        Event::Init => init(None),
        Event::InitAgain => init(Some(me)),
        Event::InitOld => init(Some(producer(7, 0))),
        Event::Add => add(me, &["c"]),
        Event::AddSame => add(me, &["a"]),
        Event::AddOld => add(old, &["c"]),
        Event::Verify => Request::VerifyPartitions { id, producer: me, partitions: partitions(&["a", "c"]) },
        Event::Commit => end(me, true),
        Event::Abort => end(me, false),
        Event::CommitLast => end(old, true),
        Event::AbortLast => end(old, false),
        Event::CommitOther => end(producer(7, 0), true),
    }
}

/// `answer [written states] state`, with epochs relative to the producer's.
fn outcome(at: At, event: Event, version: TransactionVersion) -> String {
    let (mut h, me) = reach(at, version);
    let before = h.records();
    let token = h.send(request(event, me, version));
    let who = |them: Producer| match them {
        Producer::NONE => "ok".to_owned(),
        them if them.id == me.id => format!("epoch{:+}", them.epoch.0 - me.epoch.0),
        them => format!("new id, epoch {}", them.epoch),
    };
    let answer = match h.replies.remove(&token) {
        None => "waits".to_owned(),
        Some(Response::Init(result) | Response::End(result)) => {
            result.map_or_else(|error| format!("{error:?}"), who)
        }
        Some(Response::AddPartitions(result)) => {
            result.map_or_else(|error| format!("{error:?}"), |()| "ok".to_owned())
        }
        Some(Response::VerifyPartitions(result)) => {
            result.map_or_else(|error| format!("{error:?}"), |missing| format!("{} missing", missing.len()))
        }
        Some(other) => panic!("{other:?}"),
    };
    let partition = h.coordinator.partition_of(ID);
    let log = h.logs.get(&partition).map_or(&[][..], |log| &log[..]);
    let written = log.iter().skip(before).map(|KeyValue { key, value }| {
        let record = Record::decode(key, value.as_deref()).unwrap();
        let value = record.value.expect("no tombstone is written here");
        format!("{}{:+}", value.state.name(), value.epoch.0 - me.epoch.0)
    });
    let written: Vec<String> = written.collect();
    format!("{answer} [{}] {}", written.join(" "), h.state().0)
}

const EVENTS: [Event; 12] = [
    Event::Init,
    Event::InitAgain,
    Event::InitOld,
    Event::Add,
    Event::AddSame,
    Event::AddOld,
    Event::Verify,
    Event::Commit,
    Event::Abort,
    Event::CommitLast,
    Event::AbortLast,
    Event::CommitOther,
];

#[track_caller]
fn check(version: TransactionVersion, at: At, expected: [&str; EVENTS.len()]) {
    for (event, expected) in EVENTS.into_iter().zip(expected) {
        assert_eq!(outcome(at, event, version), expected, "{version:?}: {event:?} in {at:?}");
    }
}

#[test]
fn an_unknown_id_is_made_by_init_alone() {
    for version in [V1, V2] {
        let unknown = "InvalidProducerIdMapping [] error 105";
        let made = "epoch+0 [Empty+0] Empty";
        check(
            version,
            At::Unknown,
            [
                made, made, made, unknown, unknown, unknown, unknown, unknown, unknown, unknown, unknown,
                unknown,
            ],
        );
    }
}

#[test]
fn empty() {
    let fenced = "ProducerFenced [] Empty";
    let other = "InvalidProducerIdMapping [] Empty";
    let invalid = "InvalidTxnState [] Empty";
    let next = "epoch+1 [Empty+1] Empty";
    let begun = "ok [Ongoing+0] Ongoing";
    check(
        V1,
        At::Empty,
        [
            next,
            next,
            fenced,
            begun,
            begun,
            fenced,
            "2 missing [] Empty",
            invalid,
            invalid,
            fenced,
            fenced,
            other,
        ],
    );
    // Nothing was added: an abort raises the epoch all the same.
    let aborted = "epoch+1 [PrepareAbort+1 CompleteAbort+1] CompleteAbort";
    check(
        V2,
        At::Empty,
        [
            next,
            next,
            fenced,
            begun,
            begun,
            fenced,
            "2 missing [] Empty",
            invalid,
            aborted,
            fenced,
            fenced,
            other,
        ],
    );
}

#[test]
fn ongoing() {
    let fenced = "ProducerFenced [] Ongoing";
    let other = "InvalidProducerIdMapping [] Ongoing";
    let added = "ok [Ongoing+0] Ongoing";
    let there = "ok [] Ongoing";
    let missing = "1 missing [] Ongoing";
    // The successor aborts the transaction and has to ask again.
    let aborts = "ConcurrentTransactions [PrepareAbort+1] PrepareAbort";
    check(
        V1,
        At::Ongoing,
        [
            aborts,
            aborts,
            fenced,
            added,
            there,
            fenced,
            missing,
            "epoch+0 [PrepareCommit+0] PrepareCommit",
            "epoch+0 [PrepareAbort+0] PrepareAbort",
            fenced,
            fenced,
            other,
        ],
    );
    check(
        V2,
        At::Ongoing,
        [
            aborts,
            aborts,
            fenced,
            added,
            there,
            fenced,
            missing,
            "epoch+1 [PrepareCommit+1] PrepareCommit",
            "epoch+1 [PrepareAbort+1] PrepareAbort",
            fenced,
            fenced,
            other,
        ],
    );
}

#[test]
fn prepare_commit_and_prepare_abort() {
    for (at, name) in [(At::PrepareCommit, "PrepareCommit"), (At::PrepareAbort, "PrepareAbort")] {
        let busy = &*format!("ConcurrentTransactions [] {name}");
        let fenced = &*format!("ProducerFenced [] {name}");
        let other = &*format!("InvalidProducerIdMapping [] {name}");
        check(V1, at, [busy, busy, busy, busy, busy, busy, busy, busy, busy, fenced, fenced, other]);
        // The producer may be the one of the transition: everything waits.
        check(V2, at, [busy; EVENTS.len()]);
    }
}

#[test]
fn complete_commit_and_complete_abort() {
    for (at, name) in [(At::CompleteCommit, "CompleteCommit"), (At::CompleteAbort, "CompleteAbort")] {
        let fenced = &*format!("ProducerFenced [] {name}");
        let other = &*format!("InvalidProducerIdMapping [] {name}");
        let invalid = &*format!("InvalidTxnState [] {name}");
        let missing = &*format!("2 missing [] {name}");
        let again = &*format!("ok [] {name}");
        let told_again = &*format!("epoch+0 [] {name}");
        let next = "epoch+1 [Empty+1] Empty";
        let begun = "ok [Ongoing+0] Ongoing";
        let (commit, abort) = if at == At::CompleteCommit { (again, invalid) } else { (invalid, again) };
        check(
            V1,
            at,
            [next, next, fenced, begun, begun, fenced, missing, commit, abort, fenced, fenced, other],
        );
        let aborted = "epoch+1 [PrepareAbort+1 CompleteAbort+1] CompleteAbort";
        let (commit, abort) =
            if at == At::CompleteCommit { (told_again, invalid) } else { (invalid, told_again) };
        check(
            V2,
            at,
            [next, next, fenced, begun, begun, fenced, missing, invalid, aborted, commit, abort, other],
        );
    }
}

#[test]
fn dead() {
    let busy = "ConcurrentTransactions [] error 105";
    let mapping = "InvalidProducerIdMapping [] error 105";
    let fenced = "ProducerFenced [] error 105";
    let missing = "2 missing [] error 105";
    check(V1, At::Dead, [busy, busy, busy, busy, busy, busy, missing, busy, busy, fenced, fenced, mapping]);
    check(V2, At::Dead, [busy, busy, busy, busy, busy, busy, missing, busy, busy, busy, busy, busy]);
}
