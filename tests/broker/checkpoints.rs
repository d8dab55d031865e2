//! The checkpoint files beside what happens to topics and metadata: whose lines are there, and when.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::harness::client::{Client, Send};
use crate::harness::{Broker, eventually};

const VALUE_BYTES: usize = 60_000;
/// Some five segments of the least size.
const RECORDS: usize = 90;

const OFTEN: &[(&str, &str)] = &[
    ("log.flush.offset.checkpoint.interval.ms", "200"),
    ("log.flush.start.offset.checkpoint.interval.ms", "200"),
    ("replica.high.watermark.checkpoint.interval.ms", "200"),
];

const RARELY: &[(&str, &str)] = &[
    ("log.flush.offset.checkpoint.interval.ms", "600000"),
    ("log.flush.start.offset.checkpoint.interval.ms", "600000"),
    ("replica.high.watermark.checkpoint.interval.ms", "600000"),
];

/// The lines of a topic in one of the files.
fn lines(broker: &Broker, file: &str, topic: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(broker.data().join(file)).unwrap_or_default();
    text.lines().filter(|line| line.starts_with(&format!("{topic} "))).map(str::to_owned).collect()
}

fn recovery_points(broker: &Broker, topic: &str) -> BTreeSet<String> {
    lines(broker, "recovery-point-offset-checkpoint", topic)
}

/// The base offsets of a partition's segments.
fn segments(dir: &Path) -> Vec<i64> {
    let names = std::fs::read_dir(dir).expect("the partition's directory").filter_map(Result::ok);
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut bases: Vec<i64> =
        names.filter_map(|name| name.strip_suffix(".log").and_then(|base| base.parse().ok())).collect();
    bases.sort_unstable();
    bases
}

/// Takes all files of a segment away, as compaction may.
fn remove_segment(dir: &Path, base: i64) {
    for entry in std::fs::read_dir(dir).expect("the partition's directory") {
        let path = entry.expect("a name").path();
        if path.file_stem().is_some_and(|stem| stem.to_string_lossy() == format!("{base:020}")) {
            std::fs::remove_file(path).expect("it is there");
        }
    }
}

/// A gap of a log that has no line is believed: one that is new must never be such.
#[test]
fn a_new_log_has_its_line_before_it_has_a_record() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(2, RARELY);
    let client = Client::of(&broker);
    client.create_topic("fresh", 3, &[]);
    let expected: Vec<String> = (0..3).map(|partition| format!("fresh {partition} 0")).collect();
    assert_eq!(recovery_points(&broker, "fresh").into_iter().collect::<Vec<_>>(), expected);
}

/// A topic may come under the name before the files are written again.
#[test]
fn a_topic_that_is_gone_has_no_lines_any_more() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(2, RARELY);
    let client = Client::of(&broker);
    client.create_topic("gone", 3, &[]);
    assert_eq!(recovery_points(&broker, "gone").len(), 3);
    client.delete_topic("gone").expect("deleted");
    eventually("they are gone, too", || recovery_points(&broker, "gone").is_empty().then_some(()));
}

#[test]
fn partitions_that_no_topic_has_keep_their_lines_until_the_metadata_is_back() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::with(2, OFTEN);
    let client = Client::of(&broker);
    let compacted = [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "1048576"),
        // The gap is made by hand.
        ("min.compaction.lag.ms", "3600000"),
    ];
    client.create_topic("kept", 1, &compacted);
    client.create_topic("cut", 1, &[]);
    let producer = client.producer(&[]);
    let records: Vec<Send> =
        (0..RECORDS).map(|n| Send::value(vec![b'v'; VALUE_BYTES]).key(format!("k{n}")).to(0)).collect();
    client.send(&producer, "kept", &records);
    client.send(&producer, "cut", &(0..10).map(|n| Send::value(format!("{n}")).to(0)).collect::<Vec<_>>());
    client.delete_records("cut", 0, 5);
    drop((client, producer));
    broker.terminate();
    let dir = broker.data().join("kept-0");
    let bases = segments(&dir);
    assert!(bases.len() >= 4, "{bases:?}");
    remove_segment(&dir, bases[1]);

    // The metadata is lost, and nobody notices before it ends without a clean stop.
    let (metadata, saved) = (broker.data().join("kuring-metadata"), broker.home().join("saved-metadata"));
    std::fs::rename(&metadata, &saved).expect("the metadata log");
    broker.start_again(2);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(recovery_points(&broker, "kept"), BTreeSet::from([format!("kept 0 {RECORDS}")]));
    assert_eq!(lines(&broker, "log-start-offset-checkpoint", "cut"), BTreeSet::from(["cut 0 5".to_owned()]));
    broker.kill();
    std::fs::remove_dir_all(&metadata).expect("the new metadata log");
    std::fs::rename(&saved, &metadata).expect("the metadata log");
    broker.start_again(2);

    let client = Client::of(&broker);
    let left = RECORDS - (bases[2] - bases[1]) as usize;
    let found: BTreeSet<i64> =
        client.read("kept", &[0], left).into_iter().map(|record| record.offset).collect();
    let expected: BTreeSet<i64> =
        (0..RECORDS as i64).filter(|offset| !(bases[1]..bases[2]).contains(offset)).collect();
    assert_eq!(found, expected, "what compaction left is all there");
    assert_eq!(client.offsets("cut", 0), (5, 10));
}

/// Recovery takes a gap above that for a loss.
#[test]
fn nothing_is_compacted_above_the_recovery_point_that_is_saved() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(2, &[RARELY, &[("log.cleaner.backoff.ms", "100")]].concat());
    let client = Client::of(&broker);
    let compacted =
        [("cleanup.policy", "compact"), ("segment.bytes", "1048576"), ("min.cleanable.dirty.ratio", "0.01")];
    client.create_topic("table", 1, &compacted);
    let records: Vec<Send> =
        (0..RECORDS).map(|n| Send::value(vec![b'v'; VALUE_BYTES]).key(format!("k{}", n % 4)).to(0)).collect();
    client.send(&client.producer(&[]), "table", &records);
    let dir = broker.data().join("table-0");
    let cleaned = eventually("little is left of all but the active segment", || {
        let bases = segments(&dir);
        (bases.len() <= 3).then(|| bases[1])
    });
    let saved = recovery_points(&broker, "table");
    let saved: Vec<i64> = saved
        .iter()
        .filter_map(|line| line.strip_prefix("table 0 ").and_then(|at| at.parse().ok()))
        .collect();
    assert!(matches!(saved[..], [saved] if saved >= cleaned), "{saved:?} is saved, {cleaned} is cleaned");
}

#[test]
fn the_lines_of_a_partition_that_is_put_aside_go() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::with(1, OFTEN);
    let client = Client::of(&broker);
    client.create_topic("first", 1, &[]);
    client.create_topic("second", 1, &[]);
    client.send(&client.producer(&[]), "first", &[Send::value("a").to(0)]);
    eventually("the line says that it is there", || {
        (recovery_points(&broker, "first").len() == 1).then_some(())
    });
    drop(client);
    broker.terminate();
    // As if `first` had another name.
    std::fs::rename(broker.data().join("first-0"), broker.data().join("other-0")).expect("the partition");
    let file = broker.data().join("recovery-point-offset-checkpoint");
    let text = std::fs::read_to_string(&file).expect("the file").replace("first 0 ", "other 0 ");
    std::fs::write(&file, text).expect("the file");
    broker.start_again(1);
    assert_eq!(recovery_points(&broker, "other"), BTreeSet::new(), "no topic has it: it is put aside");
    assert_eq!(recovery_points(&broker, "first").len(), 1);
}
