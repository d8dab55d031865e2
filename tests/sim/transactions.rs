//! A partition that Apache Kafka wrote, with transactions of every end (`tests/fixtures/kafka-transactions`):
//! opened, rebuilt, cut and written again by our log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kuring::base::clock::{Monotonic, Now, Timestamp};
use kuring::base::{LeaderEpoch, Offset, PartitionIndex, TopicPartition};
use kuring::config::LogConfig;
use kuring::io::os::OsFiles;
use kuring::log::{Batch, Gaps, Log, LogContext, OpenOptions, Origin, Read, ReadPlan, ReadRequest};
use kuring::wire::record::Batches;

const END: i64 = 28;
/// The first record of the transaction that is open still.
const OPEN: i64 = 22;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kafka-transactions/txn-0")
}

fn now() -> Now {
    // The hour in which it was written: its producers are not forgotten yet.
    Now { monotonic: Monotonic::ZERO, wall: Timestamp(1_795_985_010_000) }
}

fn open(dir: &Path, recovery_point: i64, clean: bool) -> Log<OsFiles> {
    let config = LogConfig { segment_ms: 2000, ..LogConfig::default() };
    let options = OpenOptions {
        dir: dir.to_path_buf(),
        topic_partition: TopicPartition::new("txn", PartitionIndex(0)),
        config: Arc::new(config),
        recovery_point: Offset(recovery_point),
        log_start: Offset::ZERO,
        cleaned: None,
        gaps: Gaps::BelowRecoveryPoint,
        clean,
    };
    let mut log = Log::open(&Arc::new(LogContext::new(OsFiles)), options, now()).unwrap();
    log.high_watermark_advanced(log.log_end());
    log
}

fn copy_of_fixture(without: &[&str]) -> tempfile::TempDir {
    let temporary = tempfile::tempdir().unwrap();
    for (name, bytes) in files(&fixture()) {
        if !without.iter().any(|extension| name.ends_with(extension)) {
            std::fs::write(temporary.path().join(name), bytes).unwrap();
        }
    }
    temporary
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

fn transaction_indexes(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    files(dir).into_iter().filter(|(name, _)| name.ends_with(".txnindex")).collect()
}

fn plan(log: &mut Log<OsFiles>, offset: i64) -> ReadPlan<OsFiles> {
    let request = ReadRequest {
        offset: Offset(offset),
        bytes_max: 100_000,
        upper_bound: log.first_unstable().unwrap_or(log.log_end()),
        whole_first_batch: true,
        with_aborted: true,
    };
    let mut read = log.read(request).unwrap();
    loop {
        match read {
            Read::Plan(plan) => return plan,
            Read::NeedsDisk(job) => read = log.finish_read(job.run()).unwrap(),
        }
    }
}

/// (producer, first offset) of those that a fetch from `offset` is told of.
fn aborted(log: &mut Log<OsFiles>, offset: i64) -> Vec<(i64, i64)> {
    let found = plan(log, offset).aborted.unwrap();
    found.iter().map(|transaction| (transaction.producer.0, transaction.first.0)).collect()
}

/// What each fetch must be told of; more would be of no harm, but there is no need for it here.
fn check(log: &mut Log<OsFiles>) {
    assert_eq!(log.log_end(), Offset(END));
    assert_eq!(log.first_unstable(), Some(Offset(OPEN)));
    for offset in 0..OPEN {
        let expected: &[(i64, i64)] = match offset {
            // Ordered by their beginning; the second one ended in the next segment.
            0..=7 => &[(1, 5), (2, 8), (1, 9)],
            8..=10 => &[(2, 8), (1, 9)],
            11..=14 => &[(2, 8)],
            15 => &[],
            16..=20 => &[(2, 19)],
            _ => &[],
        };
        assert_eq!(aborted(log, offset), expected, "from {offset}");
    }
    let end = plan(log, OPEN);
    assert!(end.range.is_none());
    assert_eq!(end.aborted, Some(Vec::new()));
}

#[test]
fn transactions_that_kafka_wrote_are_known_after_a_clean_stop() {
    let temporary = copy_of_fixture(&[]);
    let mut log = open(temporary.path(), END, true);
    check(&mut log);
    // From memory now, and from the files again.
    check(&mut log);
    log.release_files();
    check(&mut log);
    log.close(now()).unwrap();
    assert_eq!(transaction_indexes(temporary.path()), transaction_indexes(&fixture()));
}

#[test]
fn transaction_indexes_are_rebuilt_by_recovery() {
    for (recovery_point, without) in [
        (0, &[".txnindex"][..]),
        (0, &[".txnindex", ".snapshot", ".index", ".timeindex"]),
        (0, &[]),
        (16, &["16.txnindex"]),
        (16, &["16.txnindex", "16.snapshot", "28.snapshot"]),
        (20, &[]),
    ] {
        let temporary = copy_of_fixture(without);
        let mut log = open(temporary.path(), recovery_point, false);
        check(&mut log);
        log.close(now()).unwrap();
        let rebuilt = transaction_indexes(temporary.path());
        assert_eq!(rebuilt, transaction_indexes(&fixture()), "{recovery_point} {without:?}");
    }
}

#[test]
fn a_damaged_transaction_index_is_rebuilt_in_spite_of_a_clean_stop() {
    for (name, bytes) in transaction_indexes(&fixture()) {
        let mut unordered = bytes[bytes.len() - 34..].to_vec();
        unordered.extend_from_slice(&bytes);
        for damaged in [&bytes[..33], &[0; 34], &unordered, &[&[0, 1], &bytes[2..]].concat()] {
            let temporary = copy_of_fixture(&[]);
            std::fs::write(temporary.path().join(&name), damaged).unwrap();
            let mut log = open(temporary.path(), END, true);
            check(&mut log);
            log.close(now()).unwrap();
            assert_eq!(transaction_indexes(temporary.path()), transaction_indexes(&fixture()), "{name}");
        }
    }
}

#[test]
fn truncation_takes_back_aborts_and_opens_their_transactions_again() {
    let temporary = copy_of_fixture(&[]);
    let mut log = open(temporary.path(), END, true);
    log.truncate_to(Offset(20), now()).unwrap();
    log.high_watermark_advanced(Offset(20));
    assert_eq!(log.first_unstable(), Some(Offset(19)));
    assert_eq!(aborted(&mut log, 0), [(1, 5), (2, 8), (1, 9)]);
    log.truncate_to(Offset(14), now()).unwrap();
    log.high_watermark_advanced(Offset(14));
    assert_eq!(log.first_unstable(), Some(Offset(8)));
    assert_eq!(aborted(&mut log, 0), [(1, 5)]);
    log.close(now()).unwrap();
    let kept: Vec<usize> = transaction_indexes(temporary.path()).values().map(Vec::len).collect();
    assert_eq!(kept, [68, 0]);
}

#[test]
fn the_log_start_bounds_the_first_unstable_offset() {
    let temporary = copy_of_fixture(&[]);
    let mut log = open(temporary.path(), END, true);
    log.advance_log_start(Offset(25)).unwrap();
    assert_eq!(log.first_unstable(), Some(Offset(25)));
}

#[test]
fn the_same_batches_make_the_same_files_as_kafkas() {
    let temporary = tempfile::tempdir().unwrap();
    let mut log = open(temporary.path(), 0, false);
    for (name, bytes) in files(&fixture()) {
        if !name.ends_with(".log") {
            continue;
        }
        for batch in Batches::new(&bytes) {
            let batch = Bytes::copy_from_slice(batch.unwrap().bytes());
            let mut batches = [Batch::from_bytes(&batch).unwrap()];
            let results = log.append(&mut batches, LeaderEpoch(0), Origin::Client, now());
            assert!(results[0].is_ok(), "{results:?}");
            while let Some(job) = log.next_job(now()) {
                log.finish(job.run(), now()).unwrap();
            }
        }
    }
    log.high_watermark_advanced(log.log_end());
    check(&mut log);
    log.close(now()).unwrap();
    let (ours, kafkas) = (files(temporary.path()), files(&fixture()));
    for (name, bytes) in &kafkas {
        // The order of producers in a snapshot is nobody's business.
        if !name.ends_with(".snapshot") {
            assert_eq!(ours.get(name), Some(bytes), "{name}");
        }
    }
    let mut log = open(temporary.path(), END, true);
    check(&mut log);
}

#[test]
fn a_log_that_follows_makes_the_same_files() {
    let temporary = tempfile::tempdir().unwrap();
    let mut log = open(temporary.path(), 0, false);
    let mut left = Vec::new();
    for (name, bytes) in files(&fixture()) {
        if name.ends_with(".log") {
            left.extend_from_slice(&bytes);
        }
    }
    // In pieces that end inside batches.
    let mut taken = 0;
    while taken < left.len() {
        let end = left.len().min(taken + 200);
        taken += log.append_as_follower(&left[taken..end], now()).unwrap();
        log.run_jobs(now()).unwrap();
    }
    log.high_watermark_advanced(log.log_end());
    check(&mut log);
    let damaged = {
        let mut bytes = left[..72].to_vec();
        bytes[70] ^= 1;
        log.append_as_follower(&bytes, now())
    };
    assert!(damaged.is_err());
    assert!(log.append_as_follower(&left[..72], now()).is_err(), "what is there does not follow");
    check(&mut log);
    log.close(now()).unwrap();
    let (ours, kafkas) = (files(temporary.path()), files(&fixture()));
    for (name, bytes) in &kafkas {
        if !name.ends_with(".snapshot") {
            assert_eq!(ours.get(name), Some(bytes), "{name}");
        }
    }
}
