//! Segments of message formats 0 and 1 (`tests/fixtures/legacy`), which Apache Kafka 4.x still serves from disk. The
//! records are those that a consumer got from it. By time it finds nothing as long as there is a segment of format
//! 0, which it takes to be as young as its file; here what follows is found.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kuring::base::clock::{Monotonic, Now, Timestamp};
use kuring::base::{LeaderEpoch, Offset, PartitionIndex, TopicPartition};
use kuring::config::LogConfig;
use kuring::io::FileHandle;
use kuring::io::os::OsFiles;
use kuring::log::{
    Batch, Gaps, Log, LogContext, OffsetLookup, OpenOptions, Origin, Read, ReadRequest, TimestampTarget,
};
use kuring::wire::record::{BatchBuilder, Compression, legacy_records};

const SEGMENTS: [i64; 3] = [0, 11, 28];
const END: i64 = 31;
const T: i64 = 1_500_000_000_000;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/legacy/old-0")
}

fn now() -> Now {
    Now { monotonic: Monotonic::ZERO, wall: Timestamp(T) }
}

fn open(dir: &Path, clean: bool) -> Log<OsFiles> {
    let config = LogConfig { index_interval_bytes: 100, ..LogConfig::default() };
    let options = OpenOptions {
        dir: dir.to_path_buf(),
        topic_partition: TopicPartition::new("old", PartitionIndex(0)),
        config: Arc::new(config),
        recovery_point: Offset::ZERO,
        log_start: Offset::ZERO,
        cleaned: None,
        gaps: Gaps::BelowRecoveryPoint,
        clean,
    };
    Log::open(&Arc::new(LogContext::new(OsFiles)), options, now()).unwrap()
}

fn segment(dir: &Path, base: i64) -> PathBuf {
    dir.join(format!("{base:020}.log"))
}

fn copy() -> tempfile::TempDir {
    let temporary = tempfile::tempdir().unwrap();
    for base in SEGMENTS {
        std::fs::copy(segment(&fixture(), base), segment(temporary.path(), base)).unwrap();
    }
    temporary
}

/// The bytes that a fetch from `offset` gets.
fn read(log: &mut Log<OsFiles>, offset: i64) -> Vec<u8> {
    let request = ReadRequest {
        offset: Offset(offset),
        bytes_max: 100_000,
        upper_bound: log.log_end(),
        whole_first_batch: true,
        with_aborted: false,
    };
    let mut read = log.read(request).unwrap();
    let range = loop {
        match read {
            Read::Plan(plan) => break plan.range.unwrap(),
            Read::NeedsDisk(job) => read = log.finish_read(job.run()).unwrap(),
        }
    };
    let mut bytes = vec![0; range.length as usize];
    range.file.read_at(&mut bytes, range.position).unwrap();
    bytes
}

/// (offset, timestamp, value) of the records in `bytes`, as far as they are messages of an old format.
fn records(mut bytes: &[u8]) -> Vec<(i64, i64, Option<String>)> {
    let mut found = Vec::new();
    let mut scratch = Vec::new();
    while bytes.get(16).is_some_and(|magic| *magic < 2) {
        let length = 12 + u32::from_be_bytes(bytes[8..12].try_into().unwrap()) as usize;
        for record in legacy_records(&bytes[..length], &mut scratch, 1 << 20).unwrap() {
            let value = record.value.map(|value| String::from_utf8(value.to_vec()).unwrap());
            found.push((record.offset.0, record.timestamp.0, value));
        }
        bytes = &bytes[length..];
    }
    found
}

fn time_lookup(log: &Log<OsFiles>, target: TimestampTarget) -> Option<(i64, i64)> {
    let found = match log.offset_for(target) {
        OffsetLookup::Ready(found) => found,
        OffsetLookup::NeedsDisk(job) => job.run().unwrap(),
    };
    found.map(|found| (found.offset.0, found.timestamp.0))
}

fn check(log: &mut Log<OsFiles>) {
    assert_eq!((log.log_start(), log.log_end()), (Offset(0), Offset(END)));
    assert_eq!(log.segment_count(), 3);
    for offset in 0..END {
        let base = SEGMENTS.into_iter().rfind(|base| *base <= offset).unwrap();
        let whole = std::fs::read(segment(&fixture(), base)).unwrap();
        let bytes = read(log, offset);
        assert!(whole.ends_with(&bytes), "from {offset}");
        // It begins with the message that holds the offset, or the next record where old compaction left none.
        let (first, rest) = (records(&bytes), records(&whole[..whole.len() - bytes.len()]));
        assert!(first.iter().any(|(found, ..)| *found >= offset) || offset >= 29, "from {offset}");
        assert!(rest.iter().all(|(found, ..)| *found < offset), "from {offset}");
    }
    for (at, expected) in [
        (0, Some((11, 11_000))),
        (11_000, Some((11, 11_000))),
        (12_000, Some((12, 90_000))),
        (13_500, Some((12, 90_000))),
        (90_000, Some((12, 90_000))),
        (90_001, Some((21, 100_000))),
        (105_000, Some((22, 110_000))),
        (120_000, Some((28, 120_000))),
        (130_500, Some((30, 131_000))),
        (131_001, None),
    ] {
        let found = time_lookup(log, TimestampTarget::FirstAtOrAfter(Timestamp(T + at)));
        assert_eq!(found, expected.map(|(offset, time)| (offset, T + time)), "{at}");
    }
    assert_eq!(time_lookup(log, TimestampTarget::Max), Some((30, T + 131_000)));
    assert_eq!(log.latest_epoch(), Some(LeaderEpoch(0)), "only format 2 has epochs");
}

#[test]
fn segments_of_old_formats_are_recovered_and_served_as_they_are() {
    let temporary = copy();
    let mut log = open(temporary.path(), false);
    check(&mut log);
    log.close(now()).unwrap();
    let mut log = open(temporary.path(), true);
    check(&mut log);
    log.release_files();
    check(&mut log);
    for base in SEGMENTS {
        let (ours, before) = (segment(temporary.path(), base), segment(&fixture(), base));
        assert_eq!(std::fs::read(ours).unwrap(), std::fs::read(before).unwrap(), "segment {base}");
    }
}

#[test]
fn records_of_old_formats_are_those_that_kafka_reads() {
    let values = |base| records(&std::fs::read(segment(&fixture(), base)).unwrap());
    let old = values(0);
    assert_eq!(old.iter().map(|(offset, ..)| *offset).collect::<Vec<_>>(), (0..11).collect::<Vec<_>>());
    assert!(old.iter().all(|(_, timestamp, _)| *timestamp == -1));
    assert_eq!((old[9].2.as_deref(), &old[10].2), (Some("v9"), &None));
    let newer: Vec<_> =
        values(11).into_iter().map(|(offset, time, value)| (offset, time - T, value)).collect();
    let at = |offset: i64| newer.iter().find(|(found, ..)| *found == offset).map(|(_, time, _)| *time);
    assert_eq!((at(12), at(13), at(20)), (Some(90_000), Some(13_000), Some(20_000)));
    assert_eq!((at(21), at(22), at(23)), (Some(100_000), Some(110_000), Some(110_000)), "LogAppendTime");
    assert_eq!((at(24), at(25), at(26), at(27)), (Some(24_000), None, None, Some(27_000)), "compacted");
}

#[test]
fn new_batches_follow_old_messages_and_truncation_cuts_between_them() {
    let temporary = copy();
    let mut log = open(temporary.path(), false);
    let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE);
    builder.append(Timestamp(T + 200_000), None, Some(b"new"), &[]);
    let batch: Bytes = builder.finish().unwrap();
    let mut batches = [Batch::from_bytes(&batch).unwrap()];
    let results = log.append(&mut batches, LeaderEpoch(3), Origin::Client, now());
    assert_eq!(results[0].as_ref().unwrap().first, Offset(END));
    log.truncate_to(Offset(29), now()).unwrap();
    assert_eq!(log.log_end(), Offset(29));
    // In the middle of a compressed set: all of it goes.
    log.truncate_to(Offset(13), now()).unwrap();
    assert_eq!((log.log_end(), log.segment_count()), (Offset(13), 2));
    assert_eq!(records(&read(&mut log, 11)).len(), 1);
    log.close(now()).unwrap();
}

#[test]
fn damage_in_an_old_message_ends_the_log_before_it() {
    for (base, position, end) in [(28, 30, 28), (11, 60, 12), (0, 20, 0), (0, 392, 10)] {
        let temporary = copy();
        let path = segment(temporary.path(), base);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[position] ^= 4;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(open(temporary.path(), false).log_end(), Offset(end), "{base} {position}");
    }
}

#[test]
fn a_log_that_follows_takes_old_messages_as_they_are() {
    let (from, to) = (copy(), tempfile::tempdir().unwrap());
    let mut source = open(from.path(), false);
    let mut log = open(to.path(), false);
    while log.log_end() < source.log_end() {
        let bytes = read(&mut source, log.log_end().0);
        assert_eq!(log.append_as_follower(&bytes, now()).unwrap(), bytes.len());
    }
    for offset in 0..END {
        let (theirs, ours) = (read(&mut source, offset), read(&mut log, offset));
        assert!(ours.starts_with(&theirs), "from {offset}");
    }
    log.close(now()).unwrap();
    assert_eq!(open(to.path(), false).log_end(), Offset(END));
}
