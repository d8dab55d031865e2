//! A partition's directory as a crash, a bad disk or a stranger may have left it.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use kuring::base::clock::{Monotonic, Now, Timestamp};
use kuring::base::{LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition};
use kuring::config::LogConfig;
use kuring::io::mem::MemFiles;
use kuring::io::{FileHandle, Files};
use kuring::log::{
    Batch, Gaps, Log, LogContext, OffsetLookup, OpenOptions, Origin, Read, ReadError, ReadRequest,
    TimestampTarget,
};
use kuring::wire::record::{BatchBuilder, Batches, Codec, Compression};

use super::checkpoints::write;
use super::input::Input;
use super::record_batches::sealed;

const DIR: &str = "/data/t-0";
const TIME: i64 = 1_700_000_000_000;

/// Segments, indexes, snapshots and epochs put together from the input, opened after a crash or a clean stop.
pub fn recovery(data: &[u8]) {
    let mut input = Input::new(data);
    let files = MemFiles::new(1);
    files.create_dir_all(Path::new(DIR)).expect("memory takes everything");
    let clean = input.below(4) == 0;
    let recovery_point = [0, 0, i64::from(input.byte())][input.below(3)];
    let log_start = [0, 0, i64::from(input.byte())][input.below(3)];
    let mut base = [0, i64::from(input.byte()), input.i64() & i64::MAX][input.below(3)];
    for _ in 0..1 + input.below(3) {
        base = base.saturating_add(segment(&mut input, &files, base));
    }
    if input.flag() {
        let length = input.below(80);
        write(&files, &Path::new(DIR).join("leader-epoch-checkpoint"), input.take(length));
    }
    files.set_cold_percent([0, 50][input.below(2)]);

    let mut log = open(&files, (recovery_point, log_start), clean);
    let checked = !clean && recovery_point == 0;
    let before = read_all(&mut log, checked);
    look_up(&mut log, checked);
    if !checked {
        return;
    }
    // What recovery kept it keeps for good, and goes on from there.
    let (start, end) = (log.log_start(), log.log_end());
    let appended = append(&mut log, 3);
    settle(&mut log);
    log.close(now()).expect("memory takes everything");
    drop(log);
    for clean in [true, false] {
        let mut again = open(&files, (0, start.0), clean);
        assert_eq!(again.log_start(), start);
        assert_eq!(again.log_end().0, end.0 + if appended { 3 } else { 0 });
        let bytes = read_all(&mut again, true);
        assert!(bytes.starts_with(&before));
        again.close(now()).expect("memory takes everything");
    }
}

/// Writes the files of one segment; returns how far its offsets go.
fn segment(input: &mut Input<'_>, files: &MemFiles, base: i64) -> i64 {
    let mut bytes = Vec::new();
    let mut next = base;
    for _ in 0..input.below(6) {
        match input.below(8) {
            // The builder makes none that goes beyond the last number.
            0..4 if next < i64::MAX - 8 => {
                let records = 1 + input.below(3) as i32;
                let codec = Codec::ALL[input.below(5)];
                let epoch = LeaderEpoch(i32::from(input.byte()) % 4);
                let producer = input.flag().then(|| i64::from(input.byte()));
                let batch = batch_at(next, records, codec, epoch, producer);
                next = next.saturating_add(i64::from(records));
                bytes.extend_from_slice(&batch);
            }
            4 => {
                let length = usize::from(input.byte());
                bytes.extend_from_slice(&sealed(input.take(length)));
            }
            5 => {
                let length = usize::from(input.byte());
                bytes.extend_from_slice(input.take(length));
            }
            6 => {
                let at = usize::from(input.u16()) % bytes.len().max(1);
                let byte = input.byte();
                if let Some(target) = bytes.get_mut(at) {
                    *target = byte;
                }
            }
            _ => bytes.truncate(usize::from(input.u16())),
        }
    }
    let stage = ["", "", "", "", ".swap", ".cleaned", ".deleted"][input.below(7)];
    let kind = ["log", "log", "log", "spare"][input.below(4)];
    let name = |kind: &str| Path::new(DIR).join(format!("{base:020}.{kind}{stage}"));
    write(files, &name(kind), &bytes);
    for kind in ["index", "timeindex", "txnindex", "snapshot"] {
        match input.below(3) {
            0 => {}
            1 => write(files, &name(kind), &[]),
            _ => {
                let length = usize::from(input.byte());
                let mut contents = input.take(length).to_vec();
                if kind == "snapshot" {
                    sum_snapshot(&mut contents);
                }
                write(files, &name(kind), &contents);
            }
        }
    }
    // Often the next segment follows without a gap.
    match input.below(4) {
        0 => 1 + i64::from(input.byte()),
        _ => (next - base).max(1),
    }
}

/// A file's name and what is in it.
type Contents = (String, Vec<u8>);

/// Index files of a sound log replaced by the input. What is read is right or an error.
pub fn indexes(data: &[u8]) {
    static SOUND: OnceLock<(i64, Vec<Contents>)> = OnceLock::new();
    let (end, sound) = SOUND.get_or_init(sound_log);
    let end = *end;
    let mut input = Input::new(data);
    let files = MemFiles::new(1);
    files.create_dir_all(Path::new(DIR)).expect("memory takes everything");
    sound.iter().for_each(|(name, contents)| write(&files, &Path::new(DIR).join(name), contents));
    let logs: Vec<&Contents> = sound.iter().filter(|(name, _)| name.ends_with(".log")).collect();
    let expected: Vec<u8> = logs.iter().flat_map(|(_, contents)| contents.iter().copied()).collect();

    let base = logs[input.below(logs.len())].0.trim_end_matches(".log");
    let clean = input.flag();
    let recovery_point = match clean {
        true => end,
        false => [0, end, i64::from(input.byte()) % end][input.below(3)],
    };
    files.set_cold_percent([0, 50][input.below(2)]);
    let offset_rows = usize::from(input.byte());
    write(&files, &Path::new(DIR).join(format!("{base}.index")), input.take(offset_rows));
    write(&files, &Path::new(DIR).join(format!("{base}.timeindex")), input.rest());

    let mut log = open(&files, (recovery_point, 0), clean);
    assert_eq!(log.log_end().0, end);
    for offset in 0..end {
        for bound in [end, offset + 1 + (offset * 7) % (end - offset)] {
            let Ok(bytes) = read(&mut log, offset, bound) else { continue };
            let expected = slice(&expected, offset, bound);
            assert_eq!(bytes, expected[..bytes.len().min(expected.len())], "offset {offset} below {bound}");
            assert!(!bytes.is_empty() || expected.is_empty(), "offset {offset} below {bound}");
        }
    }
    look_up(&mut log, false);
}

/// A log of some segments: where it ends, and its files.
fn sound_log() -> (i64, Vec<Contents>) {
    let files = MemFiles::new(1);
    let mut log = open(&files, (0, 0), false);
    for number in 0..40 {
        append(&mut log, 1 + number % 3);
        settle(&mut log);
    }
    log.close(now()).expect("memory takes everything");
    let entries = files.list(Path::new(DIR)).expect("it is there");
    let contents = |name: String| {
        let bytes = files.read_small(&Path::new(DIR).join(&name), 1 << 20).expect("it is there");
        (name, bytes)
    };
    (log.log_end().0, entries.into_iter().map(|entry| contents(entry.name)).collect())
}

/// A snapshot file, its checksum put right, under a log that a crash left.
pub fn producer_snapshots(data: &[u8]) {
    let mut input = Input::new(data);
    let files = MemFiles::new(1);
    let mut log = open(&files, (0, 0), false);
    for _ in 0..3 {
        append(&mut log, 2);
    }
    log.close(now()).expect("memory takes everything");
    let end = log.log_end();
    drop(log);
    let mut snapshot = input.rest().to_vec();
    sum_snapshot(&mut snapshot);
    write(&files, &Path::new(DIR).join(format!("{:020}.snapshot", end.0)), &snapshot);
    let mut log = open(&files, (end.0, 0), false);
    assert_eq!(log.log_end(), end);
    let before = log.producers().count();
    if let Some(unstable) = log.first_unstable() {
        assert!(unstable >= Offset::ZERO);
    }
    append(&mut log, 2);
    log.expire_producers(Now { monotonic: Monotonic::ZERO, wall: Timestamp(i64::MAX) });
    log.close(now()).expect("memory takes everything");
    drop(log);
    let log = open(&files, (0, 0), true);
    assert!(log.producers().count() <= before + 1);
}

/// Opens the log in `dir`; it must be readable.
pub fn open_and_check(files: &MemFiles, dir: &Path, clean: bool) {
    assert_eq!(dir, Path::new(DIR));
    let mut log = open(files, (0, 0), clean);
    append(&mut log, 2);
    read_all(&mut log, true);
}

fn now() -> Now {
    Now { monotonic: Monotonic::ZERO, wall: Timestamp(TIME) }
}

fn open(files: &MemFiles, (recovery_point, log_start): (i64, i64), clean: bool) -> Log<MemFiles> {
    let config = LogConfig { segment_bytes: 2000, index_interval_bytes: 150, ..LogConfig::default() };
    let options = OpenOptions {
        dir: Path::new(DIR).to_path_buf(),
        topic_partition: TopicPartition::new("t", PartitionIndex(0)),
        config: Arc::new(config),
        recovery_point: Offset(recovery_point),
        log_start: Offset(log_start),
        cleaned: None,
        gaps: Gaps::BelowRecoveryPoint,
        clean,
    };
    let context = Arc::new(LogContext::new(files.clone()));
    Log::open(&context, options, now()).expect("memory has no errors, and damage is none")
}

/// Appends one batch unless the log has no room; tells whether it did.
fn append(log: &mut Log<MemFiles>, records: i32) -> bool {
    let bytes = batch_at(0, records, Codec::None, LeaderEpoch(5), None);
    let mut batches = [Batch::from_bytes(&bytes.into()).expect("it is one batch")];
    let results = log.append(&mut batches, LeaderEpoch(5), Origin::Client, now());
    results.iter().all(Result::is_ok)
}

fn batch_at(base: i64, records: i32, codec: Codec, epoch: LeaderEpoch, producer: Option<i64>) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Offset(base), Compression::of(codec)).with_leader_epoch(epoch);
    if let Some(producer) = producer {
        builder = builder.with_producer(ProducerId(producer), ProducerEpoch(0), 0);
    }
    for number in 0..records {
        builder.append(Timestamp(TIME + i64::from(number)), Some(b"key"), Some(&[7; 40]), &[]);
    }
    builder.finish().expect("memory takes everything").to_vec()
}

fn settle(log: &mut Log<MemFiles>) {
    while let Some(job) = log.next_job(now()) {
        log.finish(job.run(), now()).expect("memory has no errors");
    }
}

/// One fetch: the bytes that the plan names.
fn read(log: &mut Log<MemFiles>, offset: i64, bound: i64) -> Result<Vec<u8>, ReadError> {
    let request = ReadRequest {
        offset: Offset(offset),
        bytes_max: 300,
        upper_bound: Offset(bound),
        whole_first_batch: true,
        with_aborted: true,
    };
    let mut read = log.read(request)?;
    for _ in 0..20 {
        match read {
            Read::Plan(plan) => {
                let Some(range) = plan.range else { return Ok(Vec::new()) };
                assert!(range.length <= 1 << 20);
                let mut bytes = vec![0; range.length as usize];
                let found = range.file.read_at(&mut bytes, range.position).expect("memory has no errors");
                assert_eq!(found, bytes.len(), "the plan leaves the file");
                return Ok(bytes);
            }
            Read::NeedsDisk(job) => read = log.finish_read(job.run())?,
        }
    }
    panic!("{request:?} finds no plan");
}

/// Every byte from start to end in ascending order of offsets; `checked`: recovery has looked at all of it.
fn read_all(log: &mut Log<MemFiles>, checked: bool) -> Vec<u8> {
    let (mut offset, end) = (log.log_start().0, log.log_end().0);
    assert!(offset <= end);
    let mut all = Vec::new();
    while offset < end {
        let bytes = match read(log, offset, end) {
            Ok(bytes) => bytes,
            Err(error) if checked => panic!("{offset} of {end}: {error}"),
            Err(_) => return all,
        };
        let before = offset;
        let mut whole = 0;
        for batch in Batches::new(&bytes).map_while(Result::ok) {
            whole += batch.bytes().len();
            let next = batch.head().next_offset().0;
            if checked {
                batch.check_crc().expect("recovery has checked it");
                assert!(next > offset && next <= end);
            }
            offset = offset.max(next);
        }
        if offset == before {
            assert!(!checked || bytes.is_empty(), "nothing after {offset} of {end}");
            return all;
        }
        all.extend_from_slice(&bytes[..whole]);
    }
    all
}

/// Times and epochs; that they come back, and from a log that recovery has `checked` within its bounds.
fn look_up(log: &mut Log<MemFiles>, checked: bool) {
    let targets = [
        TimestampTarget::FirstAtOrAfter(Timestamp(0)),
        TimestampTarget::FirstAtOrAfter(Timestamp(TIME + 1)),
        TimestampTarget::FirstAtOrAfter(Timestamp(i64::MAX)),
        TimestampTarget::Max,
    ];
    for target in targets {
        let found = match log.offset_for(target) {
            OffsetLookup::Ready(found) => found,
            OffsetLookup::NeedsDisk(job) => job.run().unwrap_or_default(),
        };
        if let Some(found) = found {
            assert!(!checked || (found.offset >= log.log_start() && found.offset < log.log_end()));
        }
    }
    for epoch in 0..5 {
        let (_, end) = log.epoch_end(LeaderEpoch(epoch));
        assert!(!checked || end <= log.log_end());
    }
}

/// The batches from the one that holds `offset` to the last below `bound`.
fn slice(all: &[u8], offset: i64, bound: i64) -> Vec<u8> {
    let batches = Batches::new(all).map_while(Result::ok);
    let wanted = batches.filter(|batch| {
        let next = batch.head().next_offset().0;
        next > offset && next <= bound
    });
    wanted.flat_map(|batch| batch.bytes().iter().copied()).collect()
}

/// Version 1 and the right checksum, so that the fields behind them are read.
fn sum_snapshot(bytes: &mut [u8]) {
    if bytes.len() < 10 {
        return;
    }
    bytes[..2].copy_from_slice(&1_i16.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[6..]);
    bytes[2..6].copy_from_slice(&crc.to_be_bytes());
}
