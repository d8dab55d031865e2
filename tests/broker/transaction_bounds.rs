//! What one transaction that cannot go on may cost others, and what may keep one from its end: nothing. Kuring's own
//! rules, where Kafka waits or stays stuck.

use kafka_protocol::messages::ProduceRequest;

use crate::admin::{metric, metric_with};
use crate::harness::batch::Batch;
use crate::harness::client::Client;
use crate::harness::raw::{PRODUCE, Raw, fetch, produce};
use crate::harness::{Broker, eventually};
use crate::held::{hold, prepare, release};
use crate::transaction_rules::{Rules, Who, id};

const OK: i16 = 0;
const REQUEST_TIMED_OUT: i16 = 7;
const CONCURRENT_TRANSACTIONS: i16 = 51;
/// The topic whose markers are held back.
const HELD: &str = "held";

/// With a broker that can hold writes back.
fn rules(more: &[(&str, &str)]) -> Rules {
    let settings: Vec<(&str, &str)> = crate::held::SETTINGS.into_iter().chain(more.iter().copied()).collect();
    Rules::after(&settings, prepare)
}

fn transactional(topic: &str, name: &str, who: Who, sequence: i32, timeout_ms: i32) -> ProduceRequest {
    let batch = Batch::now(&["v"]).with_producer(who.id, who.epoch, sequence).transactional();
    produce(topic, 0, -1, batch.encode()).with_transactional_id(Some(id(name))).with_timeout_ms(timeout_ms)
}

fn send(raw: &mut Raw, request: &ProduceRequest) -> (i16, i64) {
    let response = raw.call(PRODUCE, request).responses[0].partition_responses[0].clone();
    (response.error_code, response.base_offset)
}

/// A transaction that is decided and waits for its marker in the topic [`HELD`]; the producer's next incarnation.
fn hold_an_end(h: &mut Rules, name: &str) -> Who {
    Client::of(&h.broker).create_topic(HELD, 1, &[]);
    let me = h.init(name);
    assert_eq!(send(&mut h.raw, &transactional(HELD, name, me, 0, 10_000)).0, OK);
    hold(&h.broker, HELD);
    let (error, next) = h.end(5, name, me, true);
    assert_eq!(error, OK);
    assert_eq!(h.state(name).1, "PrepareCommit");
    next
}

#[test]
fn answers_that_are_ready_do_not_wait_for_the_transaction_of_a_later_request() {
    if Broker::is_kafka() {
        return;
    }
    let mut h = rules(&[("add.partitions.to.txn.retry.backoff.max.ms", "60000")]);
    let next = hold_an_end(&mut h, "w");
    let plain = |value: &str| produce("t", 0, 1, Batch::now(&[value]).encode());
    let first = h.raw.send(PRODUCE, &plain("before"));
    let second = h.raw.send(PRODUCE, &transactional("t", "w", next, 0, 60_000));
    let third = h.raw.send(PRODUCE, &plain("after"));
    let mut receive = || {
        let (correlation, response) = h.raw.receive::<ProduceRequest>(PRODUCE);
        let partition = &response.responses[0].partition_responses[0];
        (correlation, partition.error_code, partition.base_offset)
    };
    assert_eq!(receive(), (first, OK, 0), "while the second one waits");
    release(&h.broker, HELD);
    assert_eq!(receive(), (second, OK, 1));
    assert_eq!(receive(), (third, OK, 2), "behind the one before it");
}

#[test]
fn a_verification_takes_no_longer_than_the_request_may() {
    if Broker::is_kafka() {
        return;
    }
    let mut h = rules(&[("add.partitions.to.txn.retry.backoff.max.ms", "60000")]);
    let next = hold_an_end(&mut h, "w");
    assert_eq!(send(&mut h.raw, &transactional("t", "w", next, 0, 50)), (REQUEST_TIMED_OUT, -1));
    release(&h.broker, HELD);
    assert_eq!(send(&mut h.raw, &transactional("t", "w", next, 0, 10_000)), (OK, 0), "sent again");
}

#[test]
fn a_connection_that_ends_while_its_batch_is_verified_leaves_the_batch_to_be_written() {
    if Broker::is_kafka() {
        return;
    }
    let mut h = rules(&[("add.partitions.to.txn.retry.backoff.max.ms", "60000")]);
    let next = hold_an_end(&mut h, "w");
    let mut other = Raw::connect(&h.broker);
    other.send(PRODUCE, &transactional("t", "w", next, 0, 60_000));
    drop(other);
    release(&h.broker, HELD);
    let mut read = || {
        let partition = h.raw.call(12, &fetch("t", &[(0, 0)])).responses[0].partitions[0].clone();
        partition.high_watermark
    };
    eventually("it is written", || (read() == 1).then_some(()));
}

#[test]
fn what_waits_to_be_verified_goes_with_a_connection_that_breaks() {
    if Broker::is_kafka() {
        return;
    }
    let mut h = rules(&[("add.partitions.to.txn.retry.backoff.max.ms", "60000")]);
    let next = hold_an_end(&mut h, "w");
    let mut other = Raw::connect(&h.broker);
    let read = |h: &mut Rules| {
        let partition = h.raw.call(12, &fetch("t", &[(0, 0)])).responses[0].partitions[0].clone();
        partition.high_watermark
    };
    other.send(PRODUCE, &produce("t", 0, 1, Batch::now(&["plain"]).encode()));
    eventually("it is written", || (read(&mut h) == 1).then_some(()));
    other.send(PRODUCE, &transactional("t", "w", next, 0, 60_000));
    other.send(PRODUCE, &produce("t", 0, 1, Batch::now(&["behind it"]).encode()));
    let received = || metric_with(&h.broker, "kuring_requests_total", &[("api", "Produce")]);
    eventually("all three are there", || (received() >= 4).then_some(()));
    // With an answer that was not read the peer's kernel resets the connection.
    drop(other);
    eventually("the broker has noticed", || (metric(&h.broker, "kuring_connections") == 1).then_some(()));
    release(&h.broker, HELD);
    // What was being verified may add its partition to the next transaction yet.
    eventually("the transaction ends", || (h.state("w").1 != "PrepareCommit").then_some(()));
    assert_eq!(
        send(&mut h.raw, &transactional("t", "w", next, 0, 10_000)),
        (OK, 1),
        "nothing came before it"
    );
    assert_eq!(read(&mut h), 2);
}

#[test]
fn a_marker_is_written_however_little_the_topic_takes() {
    if Broker::is_kafka() {
        return;
    }
    let mut h = Rules::start();
    let me = h.init("m");
    assert_eq!(send(&mut h.raw, &transactional("t", "m", me, 0, 10_000)).0, OK);
    h.raw.set_topic_config("t", "max.message.bytes", Some("10"));
    assert_eq!(h.end(5, "m", me, true).0, OK);
    h.await_state("m", "CompleteCommit");
    assert_eq!(h.raw.list_offset_committed(7, "t", -1).offset, 2);
}

#[test]
fn markers_that_cannot_be_written_are_written_when_they_can() {
    if Broker::is_kafka() {
        return;
    }
    let mut h = rules(&[]);
    let next = hold_an_end(&mut h, "r");
    let refused = send(&mut h.raw, &transactional("t", "r", next, 0, 10_000));
    assert_eq!(refused.0, CONCURRENT_TRANSACTIONS);
    let retries = || metric(&h.broker, "kuring_transaction_retries_waiting");
    eventually("it waits for its next attempt", || (retries() == 1).then_some(()));
    assert!(metric(&h.broker, "kuring_transaction_retries_total") > 0);
    assert_eq!(metric_with(&h.broker, "kuring_transactional_ids", &[("state", "PrepareCommit")]), 1);
    // The directory that holds the marker back is one of them.
    assert!(metric(&h.broker, "kuring_log_reserves_missing") > 0);
    release(&h.broker, HELD);
    h.await_state("r", "CompleteCommit");
}
