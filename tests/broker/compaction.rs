//! Compacted topics: of each key the last record stays at its offset, tombstones go, consumers do not stick at gaps.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use rdkafka::admin::{AlterConfig, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};

use crate::admin::{figure, metric_with};
use crate::harness::client::{Client, Send, options};
use crate::harness::raw::Raw;
use crate::harness::{Broker, PATIENCE, eventually};

/// The least that Kafka takes as `segment.bytes`.
const SEGMENT_BYTES: usize = 1 << 20;
const VALUE_BYTES: usize = 60_000;

const SETTINGS: &[(&str, &str)] = &[
    ("log.cleaner.backoff.ms", "100"),
    ("log.cleaner.min.cleanable.ratio", "0.01"),
    ("offsets.topic.num.partitions", "1"),
    ("offsets.topic.segment.bytes", "1048576"),
    ("log.segment.delete.delay.ms", "500"),
];

/// Everything from `from` to the end: offset → key, length of the value and its first letters.
fn read_to_end(client: &Client, topic: &str, from: Offset) -> BTreeMap<i64, (String, Option<String>)> {
    let consumer: BaseConsumer = client.consumer(&[("enable.partition.eof", "true")]);
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset(topic, 0, from).expect("a valid offset");
    consumer.assign(&assignment).expect("assign");
    let start = Instant::now();
    let mut got = BTreeMap::new();
    loop {
        assert!(start.elapsed() < 2 * PATIENCE, "the consumer sticks after {:?}", got.keys().next_back());
        match consumer.poll(std::time::Duration::from_millis(200)) {
            Some(Ok(message)) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let value = message.payload().map(|value| text(&value[..value.len().min(8)]));
                got.insert(message.offset(), (message.key().map(text).unwrap_or_default(), value));
            }
            Some(Err(KafkaError::PartitionEOF(_))) => return got,
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }
}

/// A value that does not compress to nothing and says which round it is from.
fn value(round: usize) -> Vec<u8> {
    let mut value = format!("{round:08}").into_bytes();
    value.resize(VALUE_BYTES, b'.');
    value
}

fn send(client: &Client, topic: &str, keys: impl Iterator<Item = String>, round: usize) {
    let records: Vec<Send> = keys.map(|key| Send::value(value(round)).key(key).to(0)).collect();
    client.send(&client.producer(&[("linger.ms", "5")]), topic, &records);
}

/// Fills segments, so that what was sent before is no longer in the active one.
fn roll(client: &Client, topic: &str, round: usize) {
    send(client, topic, (0..2 * SEGMENT_BYTES / VALUE_BYTES + 2).map(|_| "filler".to_owned()), round);
}

fn log_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).expect("the partition's directory").filter_map(Result::ok);
    let logs = entries.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "log"));
    logs.filter_map(|entry| entry.metadata().ok()).map(|data| data.len()).sum()
}

fn without_filler(found: &BTreeMap<i64, (String, Option<String>)>) -> Vec<(i64, &str, Option<&str>)> {
    let rest = found.iter().filter(|(_, (key, _))| key != "filler");
    rest.map(|(offset, (key, value))| (*offset, key.as_str(), value.as_deref())).collect()
}

#[test]
fn the_last_value_of_each_key_is_left_and_tombstones_go() {
    let mut broker = Broker::with(2, SETTINGS);
    let client = Client::of(&broker);
    let settings = [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "1048576"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("delete.retention.ms", "1500"),
        ("file.delete.delay.ms", "500"),
    ];
    client.create_topic("table", 1, &settings);
    for round in 0..8 {
        send(&client, "table", (0..10).map(|key| format!("k{key}")), round);
    }
    client.send(&client.producer(&[]), "table", &[Send::default().key("k3").to(0)]);
    roll(&client, "table", 0);
    let end = client.offsets("table", 0).1;
    let compacted = eventually("only the last values are left", || {
        let found = read_to_end(&client, "table", Offset::Beginning);
        let rest = without_filler(&found);
        let is_last = |(offset, key, _): &(i64, &str, _)| *offset >= 70 && *key != "k3" || *offset == 80;
        rest.iter().all(is_last).then_some(found)
    });
    let rest = without_filler(&compacted);
    for (offset, key, value) in &rest {
        match *offset {
            80 => assert_eq!((*key, *value), ("k3", None)),
            _ => assert_eq!((*key, *value), (format!("k{}", offset - 70).as_str(), Some("00000007"))),
        }
    }
    assert!(rest.len() >= 9, "{rest:?}");
    assert_eq!(client.offsets("table", 0), (0, end), "offsets stay what they were");
    for from in [0, 33, 69, 75, 79] {
        let found = read_to_end(&client, "table", Offset::Offset(from));
        let wanted: Vec<i64> = compacted.keys().copied().filter(|offset| *offset >= from).collect();
        assert!(wanted.iter().all(|offset| found.contains_key(offset) || *offset >= 80), "from {from}");
    }
    let mut round = 1;
    eventually("the tombstone goes after delete.retention.ms", || {
        roll(&client, "table", round);
        round += 1;
        let found = read_to_end(&client, "table", Offset::Beginning);
        (!found.values().any(|(key, _)| key == "k3")).then_some(())
    });
    let keys = || {
        let found = read_to_end(&client, "table", Offset::Beginning);
        let rest = without_filler(&found).iter().map(|(offset, key, _)| (*offset, key.to_string())).collect();
        let rest: Vec<(i64, String)> = rest;
        rest
    };
    let wanted: Vec<(i64, String)> =
        (0..10).filter(|key| *key != 3).map(|key| (70 + key, format!("k{key}"))).collect();
    assert_eq!(keys(), wanted);
    broker.terminate();
    broker.start_again(3);
    assert_eq!(keys(), wanted, "after a clean stop");
    if !Broker::is_kafka() {
        let checkpoint = std::fs::read_to_string(broker.data().join("cleaner-offset-checkpoint"));
        assert!(checkpoint.expect("the cleaner's checkpoint").contains("table 0 "));
    }
    broker.kill();
    broker.start_again(2);
    assert_eq!(keys(), wanted, "after a kill");
}

#[test]
fn committed_offsets_are_compacted_and_survive() {
    let mut broker = Broker::with(2, SETTINGS);
    let client = Client::of(&broker);
    client.create_topic("t", 1, &[]);
    let metadata = "m".repeat(4000);
    let consumer: BaseConsumer = client.consumer(&[("group.id", "g")]);
    let commits = 700;
    for offset in 1..=commits {
        let mut list = TopicPartitionList::new();
        list.add_partition("t", 0);
        list.set_partition_offset("t", 0, Offset::Offset(offset)).expect("in the list");
        for mut element in list.elements() {
            element.set_metadata(&metadata);
        }
        consumer.commit(&list, CommitMode::Sync).expect("committed");
    }
    let dir = broker.data().join("__consumer_offsets-0");
    let written = commits as u64 * metadata.len() as u64;
    eventually("old commits are gone", || (log_bytes(&dir) < written / 2).then_some(()));
    let committed = |client: &Client| {
        let consumer: BaseConsumer = client.consumer(&[("group.id", "g")]);
        let mut list = TopicPartitionList::new();
        list.add_partition("t", 0);
        let found = consumer.committed_offsets(list, PATIENCE).expect("committed offsets");
        found.elements()[0].offset()
    };
    assert_eq!(committed(&client), Offset::Offset(commits));
    broker.kill();
    broker.start_again(2);
    assert_eq!(committed(&client), Offset::Offset(commits));
    broker.terminate();
    broker.start_again(1);
    assert_eq!(committed(&client), Offset::Offset(commits));
}

fn compact_from_now_on(client: &Client, topic: &str) {
    let alter = AlterConfig::new(ResourceSpecifier::Topic(topic))
        .set("cleanup.policy", "compact")
        .set("segment.bytes", "1048576")
        .set("min.cleanable.dirty.ratio", "0.01");
    let results = client.wait(client.admin().alter_configs([&alter], &options())).expect("sent");
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn a_partition_that_cannot_be_compacted_is_told_of_once_and_the_others_go_on() {
    if Broker::is_kafka() {
        return;
    }
    let slowly = ("log.cleaner.io.max.bytes.per.second", "4000000");
    let broker = Broker::with(2, &[SETTINGS, &[slowly]].concat());
    let client = Client::of(&broker);
    let topics = ["bad", "good"];
    for topic in topics {
        client.create_topic(topic, 1, &[("segment.bytes", "1048576")]);
        for round in 0..6 {
            send(&client, topic, (0..5).map(|key| format!("k{key}")), round);
        }
        roll(&client, topic, 0);
    }
    let damaged = broker.data().join("bad-0/00000000000000000000.log");
    let mut bytes = std::fs::read(&damaged).expect("the first segment");
    bytes[5_000] ^= 1;
    std::fs::write(&damaged, bytes).expect("damaged");
    topics.iter().for_each(|topic| compact_from_now_on(&client, topic));
    eventually("the sound one is compacted", || {
        let found = read_to_end(&client, "good", Offset::Beginning);
        (found.range(..30).count() <= 6).then_some(())
    });
    let told = || broker.log().lines().filter(|line| line.contains("cannot be compacted")).count();
    eventually("the damaged one is told of", || (told() == 1).then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(told(), 1, "{}", broker.log());
    assert!(broker.log().contains("bad-0"));
    eventually("it is counted", || {
        let done = metric_with(&broker, "kuring_cleaner_runs_total", &[("outcome", "done")]);
        let written = metric_with(&broker, "kuring_cleaner_bytes_total", &[("direction", "written")]);
        let bad = figure(&broker, "kuring_cleaner_uncleanable_partitions", &[]);
        (bad == 1.0 && done >= 1 && written > 0).then_some(())
    });
    // Not dirty enough to be cleaned any more.
    Raw::connect(&broker).set_topic_config("good", "min.cleanable.dirty.ratio", Some("0.999"));
    roll(&client, "good", 1);
    for name in [
        "kuring_cleaner_uncleanable_bytes",
        "kuring_cleaner_busy_seconds_total",
        "kuring_cleaner_throttled_seconds_total",
        "kuring_cleaner_dirtiest_ratio",
        "kuring_cleaner_memory_used_ratio",
        "kuring_cleaner_kept_ratio",
        "kuring_cleaner_last_run_seconds",
        "kuring_cleaner_since_look_seconds",
    ] {
        eventually(name, || (figure(&broker, name, &[]) > 0.0).then_some(()));
    }
    send(&client, "bad", (0..5).map(|key| format!("k{key}")), 7);
}
