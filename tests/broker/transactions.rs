//! Transactions that Apache Kafka wrote (`tests/fixtures/kafka-transactions`), served at both isolation levels. Tests of
//! transactions that clients begin come with them.

use std::path::{Path, PathBuf};

use rdkafka::consumer::Consumer as _;
use rdkafka::{Offset, TopicPartitionList};

use crate::harness::Broker;
use crate::harness::client::{Client, poll};
use crate::harness::raw::{FETCH, Raw, fetch};

const ALL: [(i64, &str); 19] = [
    (0, "n0"),
    (1, "n1"),
    (2, "a0"),
    (3, "a1"),
    (5, "a2"),
    (6, "a3"),
    (8, "b0"),
    (9, "a4"),
    (11, "b1"),
    (12, "n2"),
    (13, "a5"),
    (16, "a6"),
    (17, "a7"),
    (19, "b2"),
    (21, "n3"),
    (22, "c0"),
    (23, "a8"),
    (25, "n4"),
    (26, "a9"),
];

/// What a real Kafka gave a consumer with read_committed.
const COMMITTED: [i64; 9] = [0, 1, 2, 3, 12, 13, 16, 17, 21];

const LAST_STABLE: i64 = 22;
const END: i64 = 28;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kafka-transactions/txn-0")
}

/// Puts the partition that Kafka wrote in the place of an empty one of a stopped broker.
fn implant(broker: &Broker, without: &[&str]) {
    let dir = broker.data().join("txn-0");
    for entry in std::fs::read_dir(&dir).expect("the partition's directory") {
        let entry = entry.expect("a name");
        if entry.file_name() != "partition.metadata" {
            std::fs::remove_file(entry.path()).expect("ours");
        }
    }
    for entry in std::fs::read_dir(fixture()).expect("the fixture") {
        let entry = entry.expect("a name");
        let name = entry.file_name().into_string().expect("ASCII");
        if !without.iter().any(|extension| name.ends_with(extension)) {
            std::fs::copy(entry.path(), dir.join(name)).expect("copied");
        }
    }
}

fn read(client: &Client, isolation: &str, count: usize) -> Vec<(i64, String)> {
    let consumer = client.consumer(&[("isolation.level", isolation)]);
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset("txn", 0, Offset::Beginning).expect("a valid offset");
    consumer.assign(&assignment).expect("assign");
    let got = poll(&consumer, count);
    let more = consumer.poll(std::time::Duration::from_millis(700));
    assert!(more.is_none(), "{isolation}: more than {count} records: {:?}", more.map(|more| more.is_ok()));
    got.iter().map(|got| (got.offset, got.text())).collect()
}

#[track_caller]
fn check(broker: &Broker) {
    let client = Client::of(broker);
    let all: Vec<(i64, String)> = ALL.iter().map(|(offset, text)| (*offset, (*text).to_string())).collect();
    let committed: Vec<(i64, String)> =
        all.iter().filter(|(offset, _)| COMMITTED.contains(offset)).cloned().collect();
    assert_eq!(read(&client, "read_uncommitted", all.len()), all);
    assert_eq!(read(&client, "read_committed", committed.len()), committed);

    let mut raw = Raw::connect(broker);
    let mut request = fetch("txn", &[(0, 8)]);
    let uncommitted = raw.call(FETCH, &request).responses[0].partitions[0].clone();
    assert_eq!((uncommitted.high_watermark, uncommitted.last_stable_offset), (END, LAST_STABLE));
    assert_eq!(uncommitted.aborted_transactions, None);
    request.isolation_level = 1;
    let committed = raw.call(FETCH, &request).responses[0].partitions[0].clone();
    assert_eq!((committed.high_watermark, committed.last_stable_offset), (END, LAST_STABLE));
    let aborted = committed.aborted_transactions.expect("a list");
    let aborted: Vec<(i64, i64)> = aborted.iter().map(|one| (one.producer_id.0, one.first_offset)).collect();
    assert_eq!(aborted, [(2, 8), (1, 9)]);
    // Nothing that is decided is left.
    let mut request = fetch("txn", &[(0, LAST_STABLE)]);
    request.isolation_level = 1;
    request.max_wait_ms = 50;
    let undecided = raw.call(FETCH, &request).responses[0].partitions[0].clone();
    assert_eq!(undecided.error_code, 0);
    assert_eq!(undecided.records.map_or(0, |records| records.len()), 0);
    assert_eq!(undecided.aborted_transactions, Some(Vec::new()));

    assert_eq!(raw.list_offset(7, "txn", -1).offset, END);
    let isolated = |raw: &mut Raw, timestamp| raw.list_offset_committed(7, "txn", timestamp).offset;
    assert_eq!(isolated(&mut raw, -1), LAST_STABLE);
    assert_eq!(isolated(&mut raw, -2), 0);
    // The youngest record is not decided.
    assert_eq!(isolated(&mut raw, -3), -1);
}

#[test]
fn transactions_that_kafka_wrote_are_served_at_both_isolation_levels() {
    if Broker::is_kafka() {
        // They are its own; `COMMITTED` is what it gave.
        return;
    }
    for (unclean, without) in [(false, &[][..]), (true, &[]), (true, &[".txnindex", ".snapshot"])] {
        let mut broker = Broker::with(2, &[("log.retention.ms", "-1")]);
        Client::of(&broker).create_topic("txn", 1, &[]);
        broker.terminate();
        implant(&broker, without);
        if unclean {
            std::fs::remove_file(broker.data().join(".kafka_cleanshutdown")).expect("it was stopped cleanly");
        }
        broker.start_again(2);
        check(&broker);
        broker.kill();
        broker.start_again(3);
        check(&broker);
    }
}
