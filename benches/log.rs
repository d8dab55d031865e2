//! The log on the operating system's files: append, look-up of offsets and times, compaction.
//! `cargo bench --bench log`. Files are in the temporary directory: what it lies on is what is measured.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kuring::base::clock::{Monotonic, Now, Timestamp};
use kuring::base::random::Random;
use kuring::base::{LeaderEpoch, Offset, PartitionIndex, TopicPartition};
use kuring::config::{CleanupPolicy, LogConfig};
use kuring::io::os::OsFiles;
use kuring::log::{
    Batch, CleanSettings, CleanStep, Gaps, Log, LogContext, OffsetLookup, OpenOptions, Origin, Read,
    ReadRequest, TimestampTarget,
};
use kuring::wire::record::{BatchBuilder, Codec, Compression};

const TIME: i64 = 1_700_000_000_000;
/// What compaction is given; the figure is per GB of it.
const COMPACTED_BYTES: u64 = 256 << 20;
const COMPACTED_KEYS: u64 = 20_000;

fn now() -> Now {
    Now { monotonic: Monotonic::ZERO, wall: Timestamp(TIME) }
}

fn open(dir: &Path, config: LogConfig) -> Log<OsFiles> {
    let options = OpenOptions {
        dir: dir.join("t-0"),
        topic_partition: TopicPartition::new("t", PartitionIndex(0)),
        config: Arc::new(config),
        recovery_point: Offset::ZERO,
        log_start: Offset::ZERO,
        cleaned: None,
        gaps: Gaps::BelowRecoveryPoint,
        clean: false,
    };
    Log::open(&Arc::new(LogContext::new(OsFiles)), options, now()).expect("the directory is empty")
}

fn batch(records: u64, time: i64, mut key: impl FnMut() -> u64) -> Bytes {
    let mut builder = BatchBuilder::new(Offset::ZERO, Compression::of(Codec::None));
    for number in 0..records {
        let time = Timestamp(time + number as i64);
        builder.append(time, Some(&key().to_be_bytes()), Some(&[number as u8; 1000]), &[]);
    }
    builder.finish().expect("memory takes everything")
}

fn append(log: &mut Log<OsFiles>, bytes: &Bytes) {
    let mut batches = [Batch::from_bytes(bytes).expect("it is one batch")];
    let results = log.append(&mut batches, LeaderEpoch(0), Origin::Client, now());
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

fn settle(log: &mut Log<OsFiles>) {
    while let Some(job) = log.next_job(now()) {
        log.finish(job.run(), now()).expect("the disk works");
    }
}

/// Appends of 64 KiB, each a write of its own; the jobs between them are not counted.
fn appends(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let config = LogConfig {
        segment_bytes: 64 << 20,
        retention_bytes: 64 << 20,
        file_delete_delay_ms: 0,
        ..LogConfig::default()
    };
    let mut log = open(dir.path(), config);
    let bytes = batch(63, TIME, || 1);
    let mut group = criterion.benchmark_group("append");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("64 KiB", |bencher| {
        bencher.iter_custom(|iterations| {
            let mut took = Duration::ZERO;
            for _ in 0..iterations {
                let mut batches = [Batch::from_bytes(&bytes).expect("it is one batch")];
                let start = Instant::now();
                let results = log.append(&mut batches, LeaderEpoch(0), Origin::Client, now());
                took += start.elapsed();
                assert!(results.iter().all(Result::is_ok), "{results:?}");
                let end = log.log_end();
                log.enforce_retention(end, now());
                settle(&mut log);
            }
            took
        });
    });
    group.finish();
}

/// Offsets and times in a log of 64 MiB in batches of 1 KiB, its files open and cached.
fn look_ups(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(dir.path(), LogConfig { segment_bytes: 16 << 20, ..LogConfig::default() });
    let count: i64 = 60_000;
    for number in 0..count {
        append(&mut log, &batch(1, TIME + number, || 1));
        settle(&mut log);
    }
    log.close(now()).expect("the disk works");
    let mut random = Random::seeded(1);
    let request = |offset| ReadRequest {
        offset: Offset(offset),
        bytes_max: 1 << 20,
        upper_bound: Offset(count),
        whole_first_batch: true,
        with_aborted: false,
    };
    let read = |log: &mut Log<OsFiles>, offset| {
        let mut read = log.read(request(offset)).expect("the offset is there");
        loop {
            match read {
                Read::Plan(plan) => return plan.first_batch_bytes,
                Read::NeedsDisk(job) => read = log.finish_read(job.run()).expect("the offset is there"),
            }
        }
    };
    criterion.bench_function("look up an offset at the tail", |bencher| {
        bencher.iter(|| read(&mut log, count - 1 - random.below(100) as i64));
    });
    criterion.bench_function("look up any offset", |bencher| {
        bencher.iter(|| read(&mut log, random.below(count as u64) as i64));
    });
    criterion.bench_function("look up a time", |bencher| {
        bencher.iter(|| {
            let time = Timestamp(TIME + random.below(count as u64) as i64);
            match log.offset_for(TimestampTarget::FirstAtOrAfter(time)) {
                OffsetLookup::Ready(found) => found,
                OffsetLookup::NeedsDisk(job) => job.run().expect("the disk works"),
            }
        });
    });
}

/// 256 MiB in records of 1 KiB with 20,000 keys, in segments of 64 MiB.
fn compaction(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("compaction");
    group.sample_size(10).throughput(Throughput::Bytes(COMPACTED_BYTES));
    group.bench_function("256 MiB", |bencher| {
        bencher.iter_batched(uncompacted, |(_dir, mut log)| compact(&mut log), BatchSize::PerIteration);
    });
    group.finish();
}

fn uncompacted() -> (tempfile::TempDir, Log<OsFiles>) {
    let dir = tempfile::tempdir().expect("a directory");
    let config = LogConfig {
        segment_bytes: 64 << 20,
        cleanup_policy: CleanupPolicy { compact: true, delete: false },
        file_delete_delay_ms: 0,
        ..LogConfig::default()
    };
    let mut log = open(dir.path(), config);
    let mut random = Random::seeded(1);
    while log.size() < COMPACTED_BYTES + (64 << 20) {
        append(&mut log, &batch(63, TIME, || random.below(COMPACTED_KEYS)));
        settle(&mut log);
    }
    log.request_checkpoint();
    settle(&mut log);
    (dir, log)
}

fn compact(log: &mut Log<OsFiles>) {
    let settings = CleanSettings {
        map_bytes: 128 << 20,
        load_factor: 0.9,
        buffer_bytes: 512 << 10,
        slice_bytes: 1 << 20,
    };
    let end = log.log_end();
    log.high_watermark_advanced(end);
    let mut clean = log.start_clean(end, settings, now()).expect("there is much to clean");
    loop {
        clean = match clean.run() {
            CleanStep::More(clean) => clean,
            CleanStep::Group(clean, cleaned) => {
                assert!(log.exchange(cleaned).is_ok(), "nothing else happened to the log");
                settle(log);
                clean
            }
            CleanStep::Done { up_to, generation, .. } => return log.mark_cleaned(up_to, generation),
            CleanStep::Failed(error) => panic!("{error}"),
        };
    }
}

criterion_group!(log, appends, look_ups, compaction);
criterion_main!(log);
