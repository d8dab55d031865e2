//! Full disks, missing descriptors and files that an append waits for.

use super::tests::{Bench, EPOCH, append, at, batch, config, fetch, offsets, settle};
use super::*;
use crate::base::clock::Timestamp;
use crate::base::{ProducerEpoch, ProducerId};
use crate::io::mem::{Fault as DiskFault, MemFiles, Operation};
use crate::io::{FileHandle, OpenMode};
use crate::wire::record::{BatchBuilder, Compression, EndTxnMarker};
use rustix::io::Errno;

fn sticky(files: &MemFiles, operation: Operation, after: u64, error: Errno) {
    files.set_fault(Some(DiskFault { operation: Some(operation), after, error, sticky: true }));
}

/// Runs all jobs that are due at `time`; how many there were.
fn run_jobs(log: &mut Log<MemFiles>, time: i64) -> usize {
    let mut count = 0;
    while let Some(job) = log.next_job(at(time)) {
        log.finish(job.run(), at(time)).unwrap();
        count += 1;
    }
    count
}

#[test]
fn a_roll_that_meets_a_full_disk_anywhere_is_done_again_and_nothing_is_lost() {
    for operation in [Operation::Write, Operation::Name, Operation::Truncate] {
        for after in 0..12 {
            let bench = Bench::new(config(1000));
            let mut log = bench.open(Offset::ZERO, false);
            settle(&mut log);
            while log.segment_count() == 1 {
                append(&mut log, vec![batch(3, 10)]);
            }
            let end = log.log_end().0;
            sticky(bench.files(), operation, after, Errno::NOSPC);
            run_jobs(&mut log, 0);
            assert!(!log.is_offline(), "{operation:?} {after}");
            let refused = log.retry_at().is_some();
            assert_eq!(log.take_met_full_disk(), refused || log.counts().refused_for_space > 0);
            if refused {
                bench.files().set_fault(None);
                let results = append(&mut log, vec![batch(1, 20)]);
                assert_eq!(results, [Err(ErrorCode::KafkaStorageError)], "{operation:?} {after}");
                assert_eq!(run_jobs(&mut log, 1), 0, "not before its time");
            }
            bench.files().set_fault(None);
            run_jobs(&mut log, 10_000);
            assert!(log.retry_at().is_none());
            assert_eq!(append(&mut log, vec![batch(1, 20)])[0].as_ref().unwrap().first.0, end);
            run_jobs(&mut log, 20_000);
            assert_eq!(fetch(&mut log, end, 1 << 20, end + 1), [end]);
            log.close(at(20_000)).unwrap();
            let mut again = bench.open(log.recovery_point(), true);
            assert_eq!(again.log_end().0, end + 1);
            assert_eq!(fetch(&mut again, end, 1 << 20, end + 1), [end]);
        }
    }
}

#[test]
fn deletion_and_checkpoints_outlast_a_lack_of_descriptors() {
    let bench = Bench::new(config(1000));
    let mut log = bench.open(Offset::ZERO, false);
    for _ in 0..40 {
        append(&mut log, vec![batch(3, 10)]);
        settle(&mut log);
    }
    log.request_checkpoint();
    settle(&mut log);
    assert!(log.segment_count() > 2);
    log.advance_log_start(Offset(90)).unwrap();
    let end = log.log_end();
    log.enforce_retention(end, at(0));
    for after in 0..40 {
        sticky(bench.files(), Operation::Name, after, Errno::MFILE);
        run_jobs(&mut log, 1000 * (after as i64 + 1));
        log.request_checkpoint();
        assert!(!log.is_offline(), "after {after} names");
    }
    assert!(!log.take_met_full_disk(), "the disk is not full");
    bench.files().set_fault(None);
    run_jobs(&mut log, 1_000_000);
    run_jobs(&mut log, 2_000_000);
    let names = bench.files().list(log.dir()).unwrap();
    assert!(names.iter().all(|entry| !entry.name.ends_with(".deleted")), "{names:?}");
    let logs = names.iter().filter(|entry| entry.name.ends_with(".log")).count();
    assert_eq!(logs, log.segment_count());
}

#[test]
fn a_failed_sync_takes_the_log_offline_even_when_it_says_full() {
    let bench = Bench::new(config(1 << 20));
    let mut log = bench.open(Offset::ZERO, false);
    append(&mut log, vec![batch(3, 10)]);
    sticky(bench.files(), Operation::SyncData, 0, Errno::NOSPC);
    let job = log.flush_job().unwrap();
    assert!(log.finish_flush(job.run(), at(0)).is_err());
    assert!(log.is_offline());
}

#[test]
fn a_read_only_file_system_takes_the_log_offline() {
    let bench = Bench::new(config(1 << 20));
    let mut log = bench.open(Offset::ZERO, false);
    sticky(bench.files(), Operation::Write, 0, Errno::ROFS);
    append(&mut log, vec![batch(3, 10)]);
    assert!(log.is_offline());
}

#[test]
fn an_append_waits_for_the_file_and_the_next_segment_that_a_job_provides() {
    let bench = Bench::new(config(1000));
    let mut log = bench.open(Offset::ZERO, false);
    let mut batches: Vec<Batch> = (0..20).map(|_| batch(3, 10)).collect();
    let operations = |bench: &Bench| bench.files().operations();
    assert_eq!(log.appendable(&batches, at(0)), Ok(0), "no file is open");
    let (mut appended, mut prepared) = (0, 0);
    while !batches.is_empty() {
        let before = operations(&bench);
        let count = log.appendable(&batches, at(0)).unwrap();
        assert_eq!(operations(&bench), before, "asking costs nothing");
        let mut now: Vec<Batch> = batches.drain(..count).collect();
        if !now.is_empty() {
            let results = log.append(&mut now, EPOCH, Origin::Client, at(0));
            assert!(results.iter().all(Result::is_ok));
            appended += count;
        }
        if !batches.is_empty() {
            let job = log.prepare_job().expect("no other job makes it");
            log.finish_prepare(job.run(), at(0)).unwrap();
            prepared += 1;
        }
    }
    assert_eq!((appended, log.counts().rolls_unprepared), (20, 0));
    assert!(prepared >= log.segment_count());
    settle(&mut log);
    for offset in 0..60 {
        let found = fetch(&mut log, offset, 1, 60);
        assert_eq!(found, offsets(offset / 3 * 3..offset / 3 * 3 + 3));
    }
}

#[test]
fn what_cannot_be_provided_refuses_the_append_once_and_is_asked_for_again() {
    let bench = Bench::new(config(1000));
    let mut log = bench.open(Offset::ZERO, false);
    let batches = [batch(3, 10)];
    sticky(bench.files(), Operation::Name, 0, Errno::MFILE);
    assert_eq!(log.appendable(&batches, at(0)), Ok(0));
    let job = log.prepare_job().unwrap();
    log.finish_prepare(job.run(), at(0)).unwrap();
    assert_eq!(log.appendable(&batches, at(0)), Err(ErrorCode::KafkaStorageError));
    assert_eq!(log.appendable(&batches, at(0)), Ok(0), "the next one asks anew");
    bench.files().set_fault(None);
    let job = log.prepare_job().unwrap();
    log.finish_prepare(job.run(), at(0)).unwrap();
    assert_eq!(log.appendable(&batches, at(0)), Ok(1));
    assert!(!log.is_offline());
}

#[test]
fn hot_logs_reserve_no_more_than_the_bound_together() {
    let mut context = LogContext::new(MemFiles::new(1));
    context.preallocation = Preallocation::new(100 << 20);
    let context = Arc::new(context);
    let preallocate = Arc::new(LogConfig { preallocate: true, ..LogConfig::default() });
    let open = |name: &str| {
        let options = OpenOptions {
            dir: format!("/{name}-0").into(),
            topic_partition: TopicPartition::new(name, crate::base::PartitionIndex(0)),
            config: Arc::clone(&preallocate),
            recovery_point: Offset::ZERO,
            log_start: Offset::ZERO,
            cleaned: None,
            gaps: Gaps::BelowRecoveryPoint,
            clean: false,
        };
        Log::open(&context, options, at(0)).unwrap()
    };
    let (mut one, mut two) = (open("one"), open("two"));
    for log in [&mut one, &mut two] {
        append(log, vec![batch(1, 10)]);
        settle(log);
    }
    assert_eq!(context.preallocation.held(), 64 << 20);
    assert_eq!(context.preallocation.refused(), 1);
    drop(one);
    assert_eq!(context.preallocation.held(), 0);
}

/// Overwrites 8 bytes of a file.
fn overwrite(files: &MemFiles, path: &std::path::Path, position: u64, bytes: [u8; 8]) {
    let file = files.open(path, OpenMode::Write).unwrap();
    file.write_all_at(&mut [std::io::IoSlice::new(&bytes)], position).unwrap();
}

#[test]
fn a_damaged_index_misleads_no_read_and_is_built_anew() {
    // Rows of the first segment that point into a batch, behind the offset, and beyond the file.
    for position in [7u32, 700, 70_000] {
        let bench = Bench::new(config(1500));
        let mut log = bench.open(Offset::ZERO, false);
        for _ in 0..40 {
            append(&mut log, vec![batch(3, 10)]);
            settle(&mut log);
        }
        log.close(at(0)).unwrap();
        let mut log = bench.open(log.recovery_point(), true);
        settle(&mut log);
        let index = log.dir().join("00000000000000000000.index");
        let whole = bench.files().read_small(&index, 1 << 20).unwrap();
        let rows = whole.len() as u64 / 8;
        assert!(rows > 3);
        for row in 0..rows {
            let relative: [u8; 4] = whole[row as usize * 8..][..4].try_into().unwrap();
            let mut damaged = [0; 8];
            damaged[..4].copy_from_slice(&relative);
            damaged[4..].copy_from_slice(&(position + row as u32 * 3).to_be_bytes());
            overwrite(bench.files(), &index, row * 8, damaged);
        }
        for offset in 0..24 {
            assert!(fetch(&mut log, offset, 1, 120).contains(&offset), "{offset} with rows at {position}");
        }
        assert!(log.counts().indexes_damaged > 0);
        settle(&mut log);
        assert_eq!(bench.files().read_small(&index, 1 << 20).unwrap(), whole, "built anew");
        let damaged = log.counts().indexes_damaged;
        for offset in 0..24 {
            assert!(fetch(&mut log, offset, 1, 120).contains(&offset));
        }
        assert_eq!(log.counts().indexes_damaged, damaged);
    }
}

#[test]
fn an_index_that_is_shorter_than_it_was_is_damaged_and_no_fault_of_the_disk() {
    let bench = Bench::new(config(1500));
    let mut log = bench.open(Offset::ZERO, false);
    for number in 0..40 {
        append(&mut log, vec![batch(3, 10 * number)]);
        settle(&mut log);
    }
    log.close(at(0)).unwrap();
    let mut log = bench.open(log.recovery_point(), true);
    settle(&mut log);
    let whole = |name: &str| bench.files().read_small(&log.dir().join(name), 1 << 20).unwrap();
    let index = "00000000000000000000.index";
    let before = whole(index);
    for name in [index, "00000000000000000000.timeindex"] {
        bench.files().open(&log.dir().join(name), OpenMode::Write).unwrap().truncate(4).unwrap();
    }
    for time in [11, 21, 31] {
        let OffsetLookup::NeedsDisk(job) =
            log.offset_for(TimestampTarget::FirstAtOrAfter(crate::base::clock::Timestamp(time)))
        else {
            panic!("memory has no old segment");
        };
        let found = job.run().unwrap().unwrap();
        assert_eq!((found.timestamp.0, found.offset.0), (time, (time - 1) / 10 * 3 + 1));
    }
    let dir = log.dir().to_path_buf();
    for offset in 0..24 {
        assert!(fetch(&mut log, offset, 1, 120).contains(&offset), "{offset}");
    }
    assert_eq!(log.counts().indexes_damaged, 1);
    settle(&mut log);
    assert_eq!(bench.files().read_small(&dir.join(index), 1 << 20).unwrap(), before, "built anew");
}

#[test]
fn an_index_that_has_become_short_hides_no_aborted_transaction() {
    let bench = Bench::new(config(1500));
    let mut log = bench.open(Offset::ZERO, false);
    let (id, epoch) = (ProducerId(5), ProducerEpoch(0));
    let mut builder =
        BatchBuilder::new(Offset::ZERO, Compression::NONE).with_producer(id, epoch, 0).with_transactional();
    builder.append(Timestamp(1), None, Some(b"aborted"), &[]);
    let marker = EndTxnMarker { commit: false, coordinator_epoch: 1 }.to_batch(id, epoch, Timestamp(1));
    for bytes in [builder.finish().unwrap(), marker] {
        let mut batches = [Batch::from_bytes(&bytes).unwrap()];
        assert!(log.append(&mut batches, EPOCH, Origin::Coordinator, at(0))[0].is_ok());
    }
    for _ in 0..40 {
        append(&mut log, vec![batch(3, 10)]);
        settle(&mut log);
    }
    log.close(at(0)).unwrap();
    let mut log = bench.open(log.recovery_point(), true);
    settle(&mut log);
    let index = log.dir().join("00000000000000000000.index");
    bench.files().open(&index, OpenMode::Write).unwrap().truncate(4).unwrap();
    let request = ReadRequest {
        offset: Offset(0),
        bytes_max: 100,
        upper_bound: log.log_end(),
        whole_first_batch: true,
        with_aborted: true,
    };
    let mut read = log.read(request).unwrap();
    let plan = loop {
        match read {
            Read::Plan(plan) => break plan,
            Read::NeedsDisk(job) => read = log.finish_read(job.run()).unwrap(),
        }
    };
    assert_eq!(plan.aborted.unwrap().len(), 1);
}

#[test]
fn epochs_and_snapshots_that_are_too_long_are_damaged_and_no_fault_of_the_disk() {
    let bench = Bench::new(config(1 << 20));
    let mut log = bench.open(Offset::ZERO, false);
    append(&mut log, vec![batch(3, 10)]);
    log.close(at(0)).unwrap();
    let (dir, end) = (log.dir().to_path_buf(), log.log_end());
    let grow = |name: &str, length: usize| {
        let file = bench.files().open(&dir.join(name), OpenMode::Write).unwrap();
        file.write_all_at(&mut [std::io::IoSlice::new(b"x")], length as u64).unwrap();
    };
    grow(checkpoint::EPOCHS_FILE, checkpoint::EPOCHS_BYTES_MAX);
    grow("00000000000000000003.snapshot", snapshot::SNAPSHOT_BYTES_MAX);
    let mut log = bench.open(end, true);
    assert_eq!((log.log_end(), log.epoch_of(Offset(2))), (end, Some(EPOCH)));
    assert_eq!(fetch(&mut log, 0, 1000, 3), [0, 1, 2]);
}

#[test]
fn the_scrub_reads_all_and_finds_what_was_changed() {
    let bench = Bench::new(config(1500));
    let mut log = bench.open(Offset::ZERO, false);
    for _ in 0..40 {
        append(&mut log, vec![batch(3, 10)]);
        settle(&mut log);
    }
    let scrub = |log: &Log<MemFiles>| {
        let (mut position, mut bytes, mut findings) = (None, 0, Vec::new());
        while let Some(job) = log.scrub_job(position, 400) {
            let scrubbed = log.finish_scrub(job.run().unwrap()).unwrap();
            bytes += scrubbed.bytes;
            findings.extend(scrubbed.findings);
            position = Some(scrubbed.next);
        }
        (bytes, findings)
    };
    assert_eq!(scrub(&log), (log.size(), vec![]));
    let length = batch(3, 10).head.total_len() as u64;
    let path = log.dir().join("00000000000000000000.log");
    overwrite(bench.files(), &path, 2 * length + 70, [0xff; 8]);
    let (bytes, findings) = scrub(&log);
    assert_eq!(bytes, log.size());
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].position, findings[0].offset), (2 * length as u32, Offset(6)));
    // A length that is none: the rest of the segment is lost to the scrub too.
    overwrite(bench.files(), &path, 4 * length + 8, [0xff; 8]);
    let (_, findings) = scrub(&log);
    assert_eq!(findings.len(), 2);
    assert_eq!((findings[1].position, findings[1].offset), (4 * length as u32, Offset(12)));
    assert!(!log.is_offline(), "damage is told, the partition goes on");
}

#[test]
fn recovery_gives_up_when_the_process_is_to_end() {
    let bench = Bench::new(config(1 << 20));
    let mut log = bench.open(Offset::ZERO, false);
    append(&mut log, vec![batch(3, 10)]);
    drop(log);
    bench.context.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let options = OpenOptions {
        dir: "/t-0".into(),
        topic_partition: TopicPartition::new("t", crate::base::PartitionIndex(0)),
        config: config(1 << 20),
        recovery_point: Offset::ZERO,
        log_start: Offset::ZERO,
        cleaned: None,
        gaps: Gaps::BelowRecoveryPoint,
        clean: false,
    };
    assert!(matches!(Log::open(&bench.context, options, at(0)), Err(OpenError::Stopped)));
}

#[test]
fn a_transaction_whose_first_batches_met_a_full_disk_begins_with_the_first_of_them() {
    let bench = Bench::new(config(1 << 20));
    let mut log = bench.open(Offset::ZERO, false);
    let (id, epoch) = (ProducerId(5), ProducerEpoch(0));
    let batch = |sequence: i32, claim| {
        let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE)
            .with_producer(id, epoch, sequence)
            .with_transactional();
        builder.append(Timestamp(1), None, Some(b"value"), &[]);
        Batch { claim, ..Batch::from_bytes(&builder.finish().unwrap()).unwrap() }
    };
    let query = VerificationQuery { id, epoch, sequence: 0, bumps_epoch: true };
    let claim = Claim::Begins(log.begin_verification(query, at(0)).unwrap().unwrap());
    append(&mut log, vec![super::tests::batch(1, 10)]);
    sticky(bench.files(), Operation::Write, 0, Errno::NOSPC);
    let refused = append(&mut log, vec![batch(0, claim), batch(1, claim)]);
    assert_eq!(refused, [Err(ErrorCode::KafkaStorageError), Err(ErrorCode::KafkaStorageError)]);
    bench.files().set_fault(None);
    // Whichever of them comes first when it is sent again.
    assert_eq!(append(&mut log, vec![batch(1, claim)]), [Err(ErrorCode::OutOfOrderSequenceNumber)]);
    let results = append(&mut log, vec![batch(0, claim), batch(1, claim)]);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}
