//! Tests of the log as a whole; `tests/sim` has the model test.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::base::clock::Timestamp;
use crate::base::{PartitionIndex, ProducerEpoch, ProducerId};
use crate::config::CleanupPolicy;
use crate::io::mem::{Crash, Fault, MemFiles, Operation};
use crate::io::{FileHandle, OpenMode};
use crate::wire::record::{BatchBuilder, BatchView, Batches, Compression};

pub(super) const EPOCH: LeaderEpoch = LeaderEpoch(3);

pub(super) fn config(segment_bytes: u32) -> Arc<LogConfig> {
    Arc::new(LogConfig { segment_bytes, index_interval_bytes: 100, ..LogConfig::default() })
}

pub(super) fn at(wall: i64) -> Now {
    Now { monotonic: Monotonic::from_millis(wall as u64), wall: Timestamp(wall) }
}

/// `records` records of `time`, `time + 1`, …
pub(super) fn batch(records: i32, time: i64) -> Batch {
    let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE);
    for number in 0..records {
        builder.append(Timestamp(time + i64::from(number)), Some(b"key"), Some(b"some value"), &[]);
    }
    Batch::from_bytes(&builder.finish().unwrap()).unwrap()
}

fn sequenced(records: i32, sequence: i32) -> Batch {
    let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE).with_producer(
        ProducerId(5),
        ProducerEpoch(0),
        sequence,
    );
    for _ in 0..records {
        builder.append(Timestamp(1), None, Some(b"value"), &[]);
    }
    Batch::from_bytes(&builder.finish().unwrap()).unwrap()
}

pub(super) struct Bench {
    pub context: Arc<LogContext<MemFiles>>,
    config: Arc<LogConfig>,
}

impl Bench {
    pub fn new(config: Arc<LogConfig>) -> Self {
        Self { context: Arc::new(LogContext::new(MemFiles::new(1))), config }
    }

    pub fn files(&self) -> &MemFiles {
        &self.context.files
    }

    pub fn open(&self, recovery_point: Offset, clean: bool) -> Log<MemFiles> {
        self.open_at(recovery_point, clean, at(0))
    }

    fn open_at(&self, recovery_point: Offset, clean: bool, now: Now) -> Log<MemFiles> {
        self.open_with(Gaps::BelowRecoveryPoint, recovery_point, clean, now)
    }

    fn open_with(&self, gaps: Gaps, recovery_point: Offset, clean: bool, now: Now) -> Log<MemFiles> {
        let options = OpenOptions {
            dir: "/t-0".into(),
            topic_partition: TopicPartition::new("t", PartitionIndex(0)),
            config: Arc::clone(&self.config),
            recovery_point,
            log_start: Offset::ZERO,
            cleaned: None,
            gaps,
            clean,
        };
        Log::open(&self.context, options, now).unwrap()
    }
}

pub(super) fn append(log: &mut Log<MemFiles>, batches: Vec<Batch>) -> Vec<Result<Appended, ErrorCode>> {
    let mut batches = batches;
    log.append(&mut batches, EPOCH, Origin::Client, at(0))
}

pub(super) fn settle(log: &mut Log<MemFiles>) {
    while let Some(job) = log.next_job(at(0)) {
        log.finish(job.run(), at(0)).unwrap();
    }
}

pub(super) fn fetch(log: &mut Log<MemFiles>, offset: i64, bytes_max: u32, upper_bound: i64) -> Vec<i64> {
    let request = ReadRequest {
        offset: Offset(offset),
        bytes_max,
        upper_bound: Offset(upper_bound),
        whole_first_batch: true,
        with_aborted: false,
    };
    let mut read = log.read(request).unwrap();
    let plan = loop {
        match read {
            Read::Plan(plan) => break plan,
            Read::NeedsDisk(job) => read = log.finish_read(job.run()).unwrap(),
        }
    };
    let Some(range) = plan.range else { return vec![] };
    let mut bytes = vec![0; range.length as usize];
    assert_eq!(range.file.read_at(&mut bytes, range.position).unwrap(), bytes.len());
    Batches::new(&bytes)
        .map_while(Result::ok)
        .flat_map(|batch: BatchView<'_>| {
            batch.check_crc().unwrap();
            assert_eq!(batch.head().leader_epoch(), EPOCH);
            batch.head().base_offset().0..batch.head().next_offset().0
        })
        .collect()
}

pub(super) fn offsets(range: std::ops::Range<i64>) -> Vec<i64> {
    range.collect()
}

#[test]
fn batches_get_dense_offsets_and_come_back() {
    let mut log = Bench::new(config(1 << 20)).open(Offset::ZERO, false);
    let results = append(&mut log, vec![batch(3, 10), batch(1, 20), batch(2, 30)]);
    let firsts: Vec<i64> = results.iter().map(|result| result.as_ref().unwrap().first.0).collect();
    assert_eq!(firsts, [0, 3, 4]);
    assert_eq!(results[2].as_ref().unwrap().last, Offset(5));
    assert_eq!(fetch(&mut log, 0, 1 << 20, 6), offsets(0..6));
    assert_eq!(fetch(&mut log, 4, 1 << 20, 6), offsets(4..6));
    assert_eq!(fetch(&mut log, 2, 1 << 20, 6), offsets(0..6), "the batch that holds the offset");
    assert_eq!(fetch(&mut log, 2, 1, 6), offsets(0..3), "the first batch is whole");
    assert_eq!(fetch(&mut log, 0, 1 << 20, 3), offsets(0..3), "not past the bound");
    assert_eq!(fetch(&mut log, 0, 1 << 20, 4), offsets(0..4));
    assert_eq!(fetch(&mut log, 3, 1 << 20, 3), offsets(0..0));
    assert_eq!(fetch(&mut log, 6, 1 << 20, 6), offsets(0..0));
    let beyond = ReadRequest {
        offset: Offset(7),
        bytes_max: 1,
        upper_bound: Offset(6),
        whole_first_batch: false,
        with_aborted: false,
    };
    assert!(matches!(log.read(beyond), Err(ReadError::OutOfRange)));
    let start = log.offset_metadata(Offset(3)).unwrap();
    let bytes = start.bytes_until(&log.end_metadata()).unwrap();
    assert_eq!(bytes as usize, batch(1, 20).head.total_len() + batch(2, 30).head.total_len());
}

#[test]
fn segments_roll_and_every_offset_is_found_in_each_state() {
    let bench = Bench::new(config(1000));
    let mut log = bench.open(Offset::ZERO, false);
    for number in 0..40 {
        append(&mut log, vec![batch(2, number), batch(1, number)]);
        if number % 7 == 0 {
            settle(&mut log);
        }
    }
    let end = 120;
    let check = |log: &mut Log<MemFiles>| {
        for offset in 0..end {
            let found = fetch(log, offset, 1, end);
            assert!(found.contains(&offset), "{offset}: {found:?}");
            let bound = fetch(log, offset, 1 << 20, (offset + 5).min(end));
            assert!(bound.iter().all(|found| *found < offset + 5), "{offset}: {bound:?}");
        }
    };
    assert!(log.segment_count() > 5);
    check(&mut log);
    settle(&mut log);
    check(&mut log);
    assert!(log.counts().rolls > log.counts().rolls_unprepared, "some rolls found a spare file");
    log.release_files();
    bench.files().set_cold_percent(30);
    check(&mut log);
    log.close(at(0)).unwrap();
    assert_eq!(log.recovery_point(), Offset(end));
    let operations = bench.files().operations();
    let mut log = bench.open(Offset(end), true);
    assert!(bench.files().operations() - operations < 200, "a clean start reads little");
    assert_eq!(log.log_end(), Offset(end));
    check(&mut log);
    append(&mut log, vec![batch(1, 0)]);
    assert_eq!(log.log_end(), Offset(end + 1));
    drop(log);
    let mut log = bench.open(Offset::ZERO, false);
    assert_eq!(log.log_end(), Offset(end + 1));
    check(&mut log);
}

#[test]
fn a_segment_rolls_by_the_time_of_its_records() {
    let config = Arc::new(LogConfig { segment_ms: 100, ..LogConfig::default() });
    let mut log = Bench::new(config).open(Offset::ZERO, false);
    append(&mut log, vec![batch(1, 1000)]);
    append(&mut log, vec![batch(1, 1100)]);
    assert_eq!(log.segment_count(), 1);
    append(&mut log, vec![batch(1, 1101)]);
    assert_eq!(log.segment_count(), 2);
    append(&mut log, vec![batch(1, 500)]);
    assert_eq!(log.segment_count(), 2);
}

#[test]
fn duplicates_get_the_first_answer_also_after_a_restart() {
    let bench = Bench::new(config(1 << 20));
    let mut log = bench.open(Offset::ZERO, false);
    let first = append(&mut log, vec![sequenced(2, 0), sequenced(1, 2), sequenced(2, 0)]);
    assert_eq!(first[2].as_ref().unwrap().first, Offset(0));
    assert!(first[2].as_ref().unwrap().duplicate);
    assert_eq!(append(&mut log, vec![sequenced(1, 4)]), [Err(ErrorCode::OutOfOrderSequenceNumber)]);
    assert_eq!(log.log_end(), Offset(3));
    drop(log);
    let mut log = bench.open(Offset::ZERO, false);
    let again = append(&mut log, vec![sequenced(2, 0), sequenced(1, 2), sequenced(1, 3)]);
    assert!(again[0].as_ref().unwrap().duplicate && again[1].as_ref().unwrap().duplicate);
    assert_eq!(again[2].as_ref().unwrap().first, Offset(3));
    log.close(at(0)).unwrap();
    let mut log = bench.open(log.recovery_point(), true);
    let last = append(&mut log, vec![sequenced(1, 3), sequenced(1, 4)]);
    assert!(last[0].as_ref().unwrap().duplicate);
    assert_eq!(last[1].as_ref().unwrap().first, Offset(4));
}

#[test]
fn a_full_disk_refuses_the_write_and_leaves_the_log_as_it_was() {
    let bench = Bench::new(config(1 << 20));
    let mut log = bench.open(Offset::ZERO, false);
    append(&mut log, vec![sequenced(2, 0)]);
    let fault = |error| Fault { operation: Some(Operation::Write), after: 0, error, sticky: false };
    bench.files().set_fault(Some(fault(rustix::io::Errno::NOSPC)));
    let refused = append(&mut log, vec![sequenced(1, 2), batch(1, 0), sequenced(2, 0), sequenced(1, 2)]);
    assert_eq!(refused[0], Err(ErrorCode::KafkaStorageError));
    assert_eq!(refused[1], Err(ErrorCode::KafkaStorageError));
    assert_eq!(refused[2].as_ref().unwrap().first, Offset(0), "that duplicate is in the log");
    assert_eq!(refused[3], Err(ErrorCode::KafkaStorageError));
    assert_eq!(log.log_end(), Offset(2));
    let after = append(&mut log, vec![sequenced(1, 2)]);
    assert_eq!(after[0].as_ref().unwrap().first, Offset(2));
    assert!(!log.is_offline());
    bench.files().set_fault(Some(fault(rustix::io::Errno::IO)));
    assert_eq!(append(&mut log, vec![sequenced(1, 3)]), [Err(ErrorCode::KafkaStorageError)]);
    assert!(log.is_offline());
    assert_eq!(append(&mut log, vec![sequenced(1, 3)]), [Err(ErrorCode::KafkaStorageError)]);
    drop(log);
    assert_eq!(bench.open(Offset::ZERO, false).log_end(), Offset(3));
}

#[test]
fn a_failed_sync_takes_the_log_offline() {
    let bench = Bench::new(config(1 << 20));
    let mut log = bench.open(Offset::ZERO, false);
    append(&mut log, vec![batch(2, 0)]);
    let job = log.flush_job().unwrap();
    assert_eq!(job.up_to(), Offset(2));
    assert_eq!(log.finish_flush(job.run(), at(0)).unwrap(), Offset(2));
    assert!(log.flush_job().is_none());
    append(&mut log, vec![batch(2, 0)]);
    let operation = Some(Operation::SyncData);
    let error = rustix::io::Errno::IO;
    bench.files().set_fault(Some(Fault { operation, after: 0, error, sticky: false }));
    let outcome = log.flush_job().unwrap().run();
    assert!(log.finish_flush(outcome, at(0)).is_err());
    assert_eq!(log.flushed(), Offset(2));
    assert!(log.is_offline() && log.flush_job().is_none() && log.next_job(at(0)).is_none());
}

#[test]
fn recovery_cuts_at_the_first_bad_batch_and_keeps_what_is_before() {
    let bench = Bench::new(config(1 << 20));
    let mut log = bench.open(Offset::ZERO, false);
    let size = batch(1, 0).head.total_len() as u64;
    for _ in 0..50 {
        append(&mut log, vec![batch(1, 0)]);
    }
    log.request_checkpoint();
    settle(&mut log);
    assert_eq!(log.recovery_point(), Offset(50));
    for _ in 0..50 {
        append(&mut log, vec![batch(1, 0)]);
    }
    drop(log);
    let path = Path::new("/t-0/00000000000000000000.log");
    let file = bench.files().open(path, OpenMode::Write).unwrap();
    let mut byte = [std::io::IoSlice::new(&[0xff])];
    file.write_all_at(&mut byte, 70 * size + 65).unwrap();
    let mut log = bench.open(Offset(50), false);
    assert_eq!(log.log_end(), Offset(70));
    assert_eq!(file.len().unwrap(), 70 * size);
    for offset in 0..70 {
        assert_eq!(fetch(&mut log, offset, 1, 70), [offset]);
    }
    // Damage below the recovery point is not looked for.
    file.write_all_at(&mut [std::io::IoSlice::new(&[0xff])], 20 * size + 65).unwrap();
    assert_eq!(bench.open(Offset(50), false).log_end(), Offset(70));
    assert_eq!(bench.open(Offset::ZERO, false).log_end(), Offset(20));
}

#[test]
fn truncation_forgets_records_sequences_and_epochs() {
    let bench = Bench::new(config(500));
    let mut log = bench.open(Offset::ZERO, false);
    for number in 0..30 {
        let mut batches = vec![sequenced(2, number * 2)];
        log.append(&mut batches, LeaderEpoch(number / 10), Origin::Client, at(0));
    }
    assert!(log.segment_count() > 3);
    log.truncate_to(Offset(45), at(0)).unwrap();
    assert_eq!(log.log_end(), Offset(44), "the batch that holds it goes whole");
    assert_eq!(log.epoch_end(LeaderEpoch(1)), (LeaderEpoch(1), Offset(40)));
    assert_eq!(log.latest_epoch(), Some(LeaderEpoch(2)));
    log.truncate_to(Offset(36), at(0)).unwrap();
    assert_eq!(log.latest_epoch(), Some(LeaderEpoch(1)));
    let next = append(&mut log, vec![sequenced(2, 36), sequenced(2, 34), sequenced(2, 40)]);
    assert_eq!(next[0].as_ref().unwrap().first, Offset(36));
    assert_eq!(next[1].as_ref().unwrap().first, Offset(34));
    assert_eq!(next[2], Err(ErrorCode::OutOfOrderSequenceNumber));
    drop(log);
    let mut log = bench.open(Offset::ZERO, false);
    assert_eq!(log.log_end(), Offset(38));
    log.restart_at(Offset(100), at(0)).unwrap();
    assert_eq!((log.log_start(), log.log_end()), (Offset(100), Offset(100)));
    assert_eq!(append(&mut log, vec![sequenced(1, 7)])[0].as_ref().unwrap().first, Offset(100));
    drop(log);
    let log = bench.open(Offset::ZERO, false);
    assert_eq!((log.log_start(), log.log_end()), (Offset(100), Offset(101)));
}

#[test]
fn a_transaction_in_whose_first_batch_the_log_starts_begins_there_after_a_truncation_too() {
    let bench = Bench::new(config(10_000));
    let mut log = bench.open(Offset::ZERO, false);
    let of_transaction = |sequence: i32| {
        let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE)
            .with_producer(ProducerId(5), ProducerEpoch(0), sequence)
            .with_transactional();
        (0..2).for_each(|_| builder.append(Timestamp(1), None, Some(b"value"), &[]));
        Batch::from_bytes(&builder.finish().unwrap()).unwrap()
    };
    append(&mut log, vec![of_transaction(0), of_transaction(2), batch(1, 1)]);
    log.advance_log_start(Offset(1)).unwrap();
    log.truncate_to(Offset(4), at(0)).unwrap();
    // Else the record at 1 would be read committed when the transaction is aborted.
    assert_eq!(log.producers().next().unwrap().transaction_first, Some(Offset::ZERO));
    assert_eq!(log.epochs()[0].start, Offset(1));
}

#[test]
fn retention_removes_whole_segments_below_the_high_watermark() {
    let by_size = Arc::new(LogConfig { segment_bytes: 1000, retention_bytes: 2000, ..LogConfig::default() });
    let bench = Bench::new(by_size);
    let mut log = bench.open(Offset::ZERO, false);
    for number in 0..60 {
        append(&mut log, vec![batch(1, number)]);
    }
    settle(&mut log);
    log.enforce_retention(Offset::ZERO, at(100));
    assert_eq!(log.log_start(), Offset::ZERO, "nothing above the high watermark goes");
    log.enforce_retention(Offset(60), at(100));
    assert!(log.size() >= 2000 && log.size() < 3000);
    let start = log.log_start();
    settle(&mut log);
    let deleted = |log: &Log<MemFiles>| {
        let entries = bench.files().list(log.dir()).unwrap();
        entries.iter().filter(|entry| entry.name.ends_with(".deleted")).count()
    };
    assert!(deleted(&log) > 0);
    assert!(!log.has_job(at(59_999)));
    let job = log.next_job(at(60_000)).unwrap();
    log.finish(job.run(), at(60_000)).unwrap();
    assert_eq!(deleted(&log), 0);
    log.advance_log_start(Offset(55)).unwrap();
    log.enforce_retention(Offset(60), at(0));
    assert!(log.log_start() == Offset(55) && log.size() < 2000);
    assert!(start < Offset(55));
    assert_eq!(log.advance_log_start(Offset(61)), Err(ErrorCode::OffsetOutOfRange));

    // By time all records go: an empty segment takes their place.
    for _ in 0..2 {
        log.enforce_retention(Offset(60), at(8 * 24 * 3600 * 1000));
        settle(&mut log);
    }
    assert_eq!((log.log_start(), log.log_end(), log.size()), (Offset(60), Offset(60), 0));
    append(&mut log, vec![batch(1, 0)]);
    drop(log);
    let mut log = bench.open(Offset::ZERO, false);
    assert_eq!((log.log_start(), log.log_end()), (Offset(60), Offset(61)));
    assert_eq!(fetch(&mut log, 60, 1, 61), [60]);
}

#[test]
fn offsets_are_found_by_time_down_to_the_record() {
    let bench = Bench::new(config(1000));
    let mut log = bench.open(Offset::ZERO, false);
    for number in 0..30 {
        append(&mut log, vec![batch(3, 100 + number * 10)]);
    }
    append(&mut log, vec![batch(1, 50)]);
    for round in 0..3 {
        match round {
            1 => settle(&mut log),
            2 => {
                log.close(at(0)).unwrap();
                log = bench.open(log.recovery_point(), true);
            }
            _ => {}
        }
        let find = |target| match log.offset_for(target) {
            OffsetLookup::Ready(found) => found,
            OffsetLookup::NeedsDisk(job) => job.run().unwrap(),
        };
        let at_or_after = |time| find(TimestampTarget::FirstAtOrAfter(Timestamp(time)));
        for number in 0..30 {
            for record in 0..3 {
                let found = at_or_after(100 + number * 10 + record).unwrap();
                assert_eq!(found.offset, Offset(number * 3 + record));
                assert_eq!(found.timestamp, Timestamp(100 + number * 10 + record));
                assert_eq!(found.leader_epoch, Some(EPOCH));
            }
        }
        assert_eq!(at_or_after(0).unwrap().offset, Offset::ZERO);
        assert_eq!(at_or_after(103).unwrap().offset, Offset(3));
        assert_eq!(at_or_after(393), None);
        let max = find(TimestampTarget::Max).unwrap();
        assert_eq!((max.offset, max.timestamp), (Offset(89), Timestamp(392)));
    }
}

#[test]
fn damaged_or_missing_indexes_are_rebuilt() {
    let bench = Bench::new(config(1000));
    let mut log = bench.open(Offset::ZERO, false);
    for number in 0..40 {
        append(&mut log, vec![batch(1, number)]);
    }
    log.close(at(0)).unwrap();
    let end = log.recovery_point();
    let entries = bench.files().list(Path::new("/t-0")).unwrap();
    for (number, entry) in entries.iter().filter(|entry| entry.name.ends_with("index")).enumerate() {
        let path = Path::new("/t-0").join(&entry.name);
        if number % 2 == 0 {
            bench.files().remove_file(&path).unwrap();
        } else {
            let file = bench.files().open(&path, OpenMode::Write).unwrap();
            file.write_all_at(&mut [std::io::IoSlice::new(&[7; 13])], 0).unwrap();
        }
    }
    let mut log = bench.open(end, true);
    assert_eq!(log.log_end(), Offset(40));
    for offset in 0..40 {
        assert_eq!(fetch(&mut log, offset, 1, 40), [offset]);
    }
}

#[test]
fn index_rows_that_recovery_took_do_not_come_back_after_a_loss_of_power() {
    for seed in 0..20 {
        let files = MemFiles::new(seed);
        let bench = Bench { context: Arc::new(LogContext::new(files.clone())), config: config(1 << 20) };
        let mut log = bench.open(Offset::ZERO, false);
        for number in 0..10 {
            append(&mut log, vec![batch(1, number)]);
        }
        log.close(at(0)).unwrap();
        drop(log);
        let index = Path::new("/t-0/00000000000000000000.index");
        assert!(!files.read_small(index, 1000).unwrap().is_empty());
        let path = Path::new("/t-0/00000000000000000000.log");
        files.open(path, OpenMode::Write).unwrap().truncate(10).unwrap();
        assert_eq!(bench.open(Offset::ZERO, false).log_end(), Offset::ZERO);
        files.crash(Crash::Machine);
        assert!(files.read_small(index, 1000).unwrap().is_empty(), "seed {seed}");
    }
}

#[test]
fn a_flush_after_a_killed_process_also_covers_the_names_it_had_made() {
    for seed in 0..20 {
        let files = MemFiles::new(seed);
        let bench = Bench { context: Arc::new(LogContext::new(files.clone())), config: config(150) };
        let mut log = bench.open(Offset::ZERO, false);
        append(&mut log, vec![batch(1, 0)]);
        let flush = log.flush_job().expect("there is a record");
        log.finish_flush(flush.run(), at(0)).unwrap();
        // Rolls into a file that it creates itself, and is killed before the slow part of the roll.
        append(&mut log, vec![batch(2, 1)]);
        assert_eq!(log.segment_count(), 2);
        drop(log);
        files.crash(Crash::Process);
        let mut log = bench.open(Offset::ZERO, false);
        let flush = log.flush_job().expect("nothing was flushed by this process");
        assert_eq!(log.finish_flush(flush.run(), at(0)).unwrap(), Offset(3));
        drop(log);
        files.crash(Crash::Machine);
        assert_eq!(bench.open(Offset::ZERO, false).log_end(), Offset(3), "seed {seed}");
    }
}

#[test]
fn a_log_opens_whose_last_segment_went_with_its_snapshot() {
    let bench = Bench::new(config(150));
    let mut log = bench.open(Offset::ZERO, false);
    append(&mut log, vec![batch(1, 0)]);
    append(&mut log, vec![batch(1, 1)]);
    log.close(at(0)).unwrap();
    assert_eq!(log.segment_count(), 2);
    drop(log);
    // Rubbish behind the first segment: what follows is removed, and its base is where the log ends.
    let file = bench.files().open(Path::new("/t-0/00000000000000000000.log"), OpenMode::Write).unwrap();
    let end = file.len().unwrap();
    file.write_all_at(&mut [std::io::IoSlice::new(&[7; 30])], end).unwrap();
    let mut log = bench.open(Offset::ZERO, false);
    assert_eq!(log.log_end(), Offset(1));
    append(&mut log, vec![batch(1, 1)]);
    assert_eq!(fetch(&mut log, 1, 1, 2), [1]);
}

#[test]
fn a_batch_is_split_into_head_and_body_only_when_whole() {
    let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE);
    builder.append(Timestamp(1), None, Some(b"v"), &[]);
    let bytes = builder.finish().unwrap();
    assert!(Batch::from_bytes(&bytes).is_some());
    assert!(Batch::from_bytes(&bytes.slice(..bytes.len() - 1)).is_none());
    assert!(Batch::from_bytes(&Bytes::from([&bytes[..], b"x"].concat())).is_none());
}

#[test]
fn the_recovery_point_follows_flushes_without_being_asked() {
    let bench = Bench::new(config(1 << 30));
    let mut log = bench.open(Offset::ZERO, false);
    let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE);
    builder.append(Timestamp(1), None, Some(&vec![0; 1 << 20]), &[]);
    let large = Batch::from_bytes(&builder.finish().unwrap()).unwrap();
    for _ in 0..33 {
        append(&mut log, vec![large.clone()]);
    }
    let outcome = log.flush_job().unwrap().run();
    log.finish_flush(outcome, at(0)).unwrap();
    assert_eq!((log.flushed(), log.recovery_point()), (Offset(33), Offset::ZERO));
    settle(&mut log);
    assert_eq!(log.recovery_point(), Offset(33));
    append(&mut log, vec![batch(1, 0)]);
    log.request_checkpoint();
    settle(&mut log);
    assert_eq!(log.recovery_point(), Offset(34));
    let operations = bench.files().operations();
    log.request_checkpoint();
    assert!(log.next_job(at(0)).is_none());
    assert_eq!(bench.files().operations(), operations);
}

#[test]
fn retention_waits_until_a_segment_is_on_the_disk() {
    let by_size = Arc::new(LogConfig { segment_bytes: 1000, retention_bytes: 0, ..LogConfig::default() });
    let bench = Bench::new(by_size);
    let mut log = bench.open(Offset::ZERO, false);
    for number in 0..30 {
        append(&mut log, vec![batch(1, number)]);
    }
    log.enforce_retention(Offset(30), at(0));
    assert_eq!(log.log_start(), Offset::ZERO, "a torn segment before flushed ones would cost them");
    settle(&mut log);
    log.enforce_retention(Offset(30), at(0));
    settle(&mut log);
    log.enforce_retention(Offset(30), at(0));
    settle(&mut log);
    assert_eq!((log.log_start(), log.size()), (Offset(30), 0));
}

#[test]
fn a_segment_without_timestamps_ages_from_its_last_write_also_over_a_restart() {
    let config = LogConfig { segment_bytes: 1000, retention_ms: 1000, ..LogConfig::default() };
    let bench = Bench::new(Arc::new(config));
    bench.files().set_time(Timestamp(5000));
    let mut log = bench.open(Offset::ZERO, false);
    let append = |log: &mut Log<MemFiles>| {
        let results = log.append(&mut [batch(1, -1)], EPOCH, Origin::Client, at(5000));
        assert!(results[0].is_ok());
    };
    while log.segment_count() == 1 {
        append(&mut log);
    }
    settle(&mut log);
    log.close(at(5000)).unwrap();
    let (end, segments) = (log.log_end(), log.segment_count());
    for (clean, log_time) in [(true, 7), (false, 9)] {
        bench.files().set_time(Timestamp(9000));
        // What the clock says at the opening has no part in it.
        let mut again = bench.open_at(log.recovery_point(), clean, at(log_time));
        again.enforce_retention(end, at(6000));
        assert_eq!(again.segment_count(), segments, "clean: {clean}");
        again.enforce_retention(end, at(6001));
        assert!(again.segment_count() < segments, "clean: {clean}");
    }
}

#[test]
fn a_log_whose_recovery_point_was_lost_has_none_to_save_before_all_of_it_is_on_the_disk() {
    let bench = Bench::new(Arc::default());
    append(&mut bench.open(Offset::ZERO, false), vec![batch(3, 10)]);
    let mut log = bench.open_with(Gaps::Anywhere, Offset::ZERO, false, at(0));
    assert_eq!(log.recovery_point_to_save(), None);
    append(&mut log, vec![batch(3, 10)]);
    settle(&mut log);
    assert_eq!(log.recovery_point_to_save(), Some(log.recovery_point()));
    assert!(log.recovery_point() >= Offset(3));
    let clean = bench.open_with(Gaps::Anywhere, Offset::ZERO, true, at(0));
    assert_eq!(clean.recovery_point_to_save(), Some(Offset(6)));
}

#[test]
fn the_youngest_record_is_one_that_is_left() {
    // The second segment begins at 9.
    let bench = Bench::new(config(3 * batch(3, 0).head.total_len() as u32));
    let mut log = bench.open(Offset::ZERO, false);
    for time in [100, 500, 200, 150, 300] {
        append(&mut log, vec![batch(3, time)]);
        settle(&mut log);
    }
    assert_eq!(log.segment_count(), 2);
    let youngest = |log: &Log<MemFiles>| match log.offset_for(TimestampTarget::Max) {
        OffsetLookup::Ready(found) => found,
        OffsetLookup::NeedsDisk(job) => job.run().unwrap(),
    };
    for (log_start, expected) in
        [(0, Some((502, 5))), (5, Some((502, 5))), (6, Some((302, 14))), (14, Some((302, 14))), (15, None)]
    {
        log.advance_log_start(Offset(log_start)).unwrap();
        let found = youngest(&log).map(|found| (found.timestamp.0, found.offset.0));
        assert_eq!(found, expected, "log start {log_start}");
    }
    // What is left of the segment is younger than the others.
    let mut log = Bench::new(config(1 << 20)).open(Offset::ZERO, false);
    append(&mut log, vec![batch(3, 500), batch(3, 300), batch(3, 100)]);
    for (log_start, expected) in [(2, (502, 2)), (3, (302, 5)), (5, (302, 5)), (6, (102, 8))] {
        log.advance_log_start(Offset(log_start)).unwrap();
        let found = youngest(&log).unwrap();
        assert_eq!((found.timestamp.0, found.offset.0), expected, "log start {log_start}");
    }
}

#[test]
fn the_youngest_record_that_is_left_is_looked_for_once() {
    let mut log = Bench::new(config(1 << 20)).open(Offset::ZERO, false);
    append(&mut log, vec![batch(3, 500), batch(3, 300), batch(3, 100)]);
    log.advance_log_start(Offset(4)).unwrap();
    let look = |log: &mut Log<MemFiles>| match log.offset_for(TimestampTarget::Max) {
        OffsetLookup::Ready(found) => (found.map(|found| (found.timestamp.0, found.offset.0)), false),
        OffsetLookup::NeedsDisk(job) => {
            let (found, learnt) = job.look();
            learnt.into_iter().for_each(|youngest| log.learn(youngest));
            (found.unwrap().map(|found| (found.timestamp.0, found.offset.0)), true)
        }
    };
    assert_eq!(look(&mut log), (Some((302, 5)), true));
    assert_eq!(look(&mut log), (Some((302, 5)), false));
    log.advance_log_start(Offset(5)).unwrap();
    assert_eq!(look(&mut log), (Some((302, 5)), false), "it is still there");
    // What comes behind it is looked at by itself.
    append(&mut log, vec![batch(3, 200)]);
    assert_eq!(look(&mut log), (Some((302, 5)), true));
    assert_eq!(look(&mut log), (Some((302, 5)), false));
    append(&mut log, vec![batch(3, 400)]);
    assert_eq!(look(&mut log), (Some((402, 14)), true));
    assert_eq!(look(&mut log), (Some((402, 14)), false));
    log.truncate_to(Offset(12), at(0)).unwrap();
    // As long again as it was, and longer.
    append(&mut log, vec![batch(9, 350)]);
    assert_eq!(look(&mut log), (Some((358, 20)), true), "it was truncated");
    log.truncate_to(Offset(12), at(0)).unwrap();
    assert_eq!(look(&mut log), (Some((302, 5)), true), "that, too");
    log.advance_log_start(Offset(6)).unwrap();
    assert_eq!(look(&mut log), (Some((202, 11)), true), "it was deleted");
    log.advance_log_start(Offset(12)).unwrap();
    assert_eq!(look(&mut log).0, None);
}

#[test]
fn a_gap_above_the_saved_recovery_point_is_a_loss_also_in_a_compacted_log() {
    let compacted = CleanupPolicy { compact: true, delete: false };
    let config = LogConfig { segment_bytes: 1000, cleanup_policy: compacted, ..LogConfig::default() };
    let config = Arc::new(config);
    for (saved_segments, clean, is_loss) in [(1, false, true), (2, false, false), (0, true, false)] {
        let bench = Bench::new(Arc::clone(&config));
        let mut log = bench.open(Offset::ZERO, false);
        while log.segment_count() < 4 {
            append(&mut log, vec![batch(3, 10)]);
            settle(&mut log);
        }
        log.close(at(0)).unwrap();
        let bases: Vec<Offset> = log.segments.iter().map(|segment| segment.base).collect();
        for kind in ["log", "index", "timeindex"] {
            let path = log.dir().join(format!("{:020}.{kind}", bases[1].0));
            bench.files().remove_file(&path).unwrap();
        }
        let again = bench.open(bases[saved_segments], clean);
        let end = if is_loss { bases[1] } else { log.log_end() };
        assert_eq!(again.log_end(), end, "saved up to segment {saved_segments}, clean: {clean}");
    }
}
