//! The log of a compacted partition: appends with keys, cleanings that are interrupted by everything else, jobs that
//! finish late or never, retention, DeleteRecords, truncations, killed processes and lost power. What is left must have
//! been appended so, the last record of each key must be there, and every fetch must find what a scan of the whole log
//! finds.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

use kuring::base::clock::Timestamp;
use kuring::base::{LeaderEpoch, Offset};
use kuring::config::{CleanupPolicy, LogConfig};
use kuring::io::mem::{Crash, Lies, MemFiles};
use kuring::log::{Batch, Clean, CleanError, CleanSettings, CleanStep, Log, Origin, ReadRequest};
use kuring::wire::record::{BatchBuilder, BatchView, Batches, Codec, Compression};

use crate::home::{Site, bytes_of, ensure, text};
use crate::run_seeds;

const KEYS: u64 = 12;
const STEPS_MAX: u64 = 300;
/// Of a batch.
const RECORDS_MAX: i64 = 4;

/// A record: its key, and a number that no other has.
type Record = (u64, u64);

/// A batch as a scan of the log finds it.
struct Stored {
    next: i64,
    bytes: Vec<u8>,
    records: Vec<(i64, Record)>,
}

struct World {
    site: Site,
    clean: Option<Box<Clean<MemFiles>>>,
    /// All that was appended and not lost, by offset.
    appended: BTreeMap<i64, Record>,
    numbers: u64,
    end: i64,
    durable: i64,
    /// The recovery point that the checkpoint file has.
    saved: i64,
    /// Records below may have gone for a younger one of their key.
    cleanable: i64,
    /// The furthest log start: after a crash older records may be back, or not.
    deleted: i64,
}

impl World {
    fn new(seed: u64, lies: Lies) -> Result<World, String> {
        let site = Site::new(seed, lies, |random| LogConfig {
            segment_bytes: 500 + random.below(1500) as u32,
            index_interval_bytes: [0, 100, 1000][random.below(3) as usize],
            cleanup_policy: CleanupPolicy { compact: true, delete: random.below(3) == 0 },
            retention_bytes: 20_000,
            retention_ms: -1,
            file_delete_delay_ms: 500,
            min_cleanable_dirty_ratio: 0.01,
            ..LogConfig::default()
        })?;
        Ok(World {
            site,
            clean: None,
            appended: BTreeMap::new(),
            numbers: 0,
            end: 0,
            durable: 0,
            saved: 0,
            cleanable: 0,
            deleted: 0,
        })
    }

    fn log(&mut self) -> &mut Log<MemFiles> {
        self.site.log()
    }

    /// By chance one of the numbers below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.site.random.below(bound)
    }

    fn step(&mut self) -> Result<(), String> {
        self.site.time += self.below(100) as i64;
        match self.below(100) {
            0..35 => self.append()?,
            35..60 => {
                for _ in 0..1 + self.below(4) {
                    self.site.advance_job()?;
                }
            }
            60..78 => {
                for _ in 0..1 + self.below(12) {
                    self.advance_clean()?;
                }
            }
            78..82 => self.flush()?,
            82..88 => self.log().request_checkpoint(),
            88..90 => self.write_checkpoints()?,
            90..91 => {
                let (now, end) = (self.site.now(), self.end);
                self.log().enforce_retention(Offset(end), now);
            }
            91..92 => self.delete_records()?,
            92..93 => self.truncate()?,
            93..94 => self.check(false)?,
            94..95 => self.stop()?,
            95..97 => self.crash(Crash::Process)?,
            _ => self.crash(Crash::Machine)?,
        }
        let (flushed, end) = (self.log().flushed().0, self.log().log_end().0);
        ensure!(end == self.end, "log end {end}, expected {}", self.end);
        self.durable = self.durable.max(flushed);
        self.deleted = self.deleted.max(self.log().log_start().0);
        Ok(())
    }

    fn append(&mut self) -> Result<(), String> {
        let codec = [Codec::None, Codec::None, Codec::None, Codec::Lz4][self.below(4) as usize];
        let mut builder = BatchBuilder::new(Offset::ZERO, Compression::of(codec));
        let mut records = Vec::new();
        for _ in 0..1 + self.below(RECORDS_MAX as u64) {
            self.numbers += 1;
            let record = (self.below(KEYS), self.numbers);
            let value = format!("{:0width$}", record.1, width = 20 + self.below(60) as usize);
            builder.append(Timestamp(self.site.time), Some(&[record.0 as u8]), Some(value.as_bytes()), &[]);
            records.push(record);
        }
        let bytes = builder.finish().map_err(text)?;
        let mut batches = [Batch::from_bytes(&bytes).ok_or("not a batch")?];
        let now = self.site.now();
        let results = self.log().append(&mut batches, LeaderEpoch(0), Origin::Coordinator, now);
        ensure!(results.iter().all(Result::is_ok), "append refused: {results:?}");
        self.appended.extend((self.end..).zip(records.iter().copied()));
        self.end += records.len() as i64;
        let end = self.end;
        self.log().high_watermark_advanced(Offset(end));
        Ok(())
    }

    fn delete_records(&mut self) -> Result<(), String> {
        let start = self.log().log_start().0;
        let offset = start + self.below((self.end - start) as u64 / 4 + 1) as i64;
        let moved = self.log().advance_log_start(Offset(offset)).map_err(|code| format!("{code:?}"))?;
        ensure!(moved.0 == offset, "DeleteRecords to {offset} answered {moved}");
        Ok(())
    }

    /// As a follower does. What may have been compacted was below the high watermark and is never truncated.
    fn truncate(&mut self) -> Result<(), String> {
        self.site.finish_job()?;
        let low = self.log().log_start().0.max(self.cleanable).max(self.end - 40);
        if low >= self.end {
            return Ok(());
        }
        let offset = low + self.below((self.end - low) as u64 + 1) as i64;
        let now = self.site.now();
        self.log().truncate_to(Offset(offset), now).map_err(text)?;
        let end = self.log().log_end().0;
        ensure!((offset - RECORDS_MAX + 1..=offset).contains(&end), "truncated to {end}, not {offset}");
        self.cut(end);
        self.write_checkpoints()
    }

    /// Nothing is left from `end` on.
    fn cut(&mut self, end: i64) {
        self.appended.split_off(&end);
        (self.end, self.durable, self.deleted) = (end, self.durable.min(end), self.deleted.min(end));
    }

    fn flush(&mut self) -> Result<(), String> {
        let now = self.site.now();
        if let Some(flush) = self.log().flush_job() {
            self.log().finish_flush(flush.run(), now).map_err(text)?;
        }
        Ok(())
    }

    /// Begins a cleaning or does a slice of the one that has begun.
    fn advance_clean(&mut self) -> Result<(), String> {
        let Some(clean) = self.clean.take() else {
            let slice_bytes = [700, 10_000][self.below(2) as usize];
            let settings =
                CleanSettings { map_bytes: 1 << 20, load_factor: 0.9, buffer_bytes: 4096, slice_bytes };
            let (now, bound) = (self.site.now(), Offset(self.end.min(self.saved)));
            if let Some(cleanable) = self.log().cleanable(bound, now) {
                self.cleanable = self.cleanable.max(cleanable.upper_bound.0);
                self.clean = self.log().start_clean(bound, settings, now);
            }
            return Ok(());
        };
        match clean.run() {
            CleanStep::More(clean) => self.clean = Some(clean),
            CleanStep::Group(clean, cleaned) => {
                match self.log().exchange(cleaned) {
                    Ok(()) => {}
                    Err(cleaned) => cleaned.discard().map_err(text)?,
                }
                self.clean = Some(clean);
                self.check(false)?;
            }
            CleanStep::Done { up_to, generation, .. } => self.log().mark_cleaned(up_to, generation),
            CleanStep::Failed(error) => {
                let start = self.log().log_start().0;
                ensure!(has_gone_below(&error, start), "cleaning failed, the log starts at {start}: {error}");
                self.check(true)?;
            }
        }
        Ok(())
    }

    fn write_checkpoints(&mut self) -> Result<(), String> {
        let recovery_point = self.log().recovery_point();
        self.site.write_checkpoints(recovery_point)?;
        self.saved = recovery_point.0;
        Ok(())
    }

    fn stop(&mut self) -> Result<(), String> {
        self.site.finish_job()?;
        self.clean = None;
        let now = self.site.now();
        self.log().close(now).map_err(text)?;
        self.write_checkpoints()?;
        self.durable = self.end;
        self.site.start_after_clean_stop()?;
        self.check(true)
    }

    fn crash(&mut self, crash: Crash) -> Result<(), String> {
        self.clean = None;
        self.site.crash(crash)?;
        let end = self.log().log_end().0;
        let promised = if crash == Crash::Process { self.end } else { self.durable };
        ensure!(
            promised <= end && end <= self.end,
            "{crash:?}: end {end}, {promised} to {} expected",
            self.end
        );
        self.cut(end);
        self.write_checkpoints()?;
        self.check(true)
    }

    /// Compares what the log has with what was appended; `every`: fetches from every offset, else from some.
    fn check(&mut self, every: bool) -> Result<(), String> {
        let stored = self.scan()?;
        let (start, end) = (self.log().log_start().0, self.end);
        let found: BTreeMap<i64, Record> = stored
            .iter()
            .flat_map(|batch| batch.records.iter().copied())
            .filter(|(at, _)| *at >= start)
            .collect();
        for (offset, record) in &found {
            let expected = self.appended.get(offset);
            ensure!(expected == Some(record), "{offset} has {record:?}, {expected:?} was appended");
        }
        let mut last: HashMap<u64, i64> = HashMap::new();
        for (offset, (key, _)) in self.appended.range(start.max(self.deleted)..) {
            last.insert(*key, *offset);
            ensure!(
                *offset < self.cleanable || found.contains_key(offset),
                "{offset} was not to be cleaned and is gone"
            );
        }
        for (key, offset) in last {
            ensure!(found.contains_key(&offset), "the last record of key {key}, at {offset}, is gone");
        }
        let offsets: Vec<i64> = match every {
            true => (start..end).collect(),
            false => (0..10).map(|_| start + self.below((end - start + 1) as u64) as i64).collect(),
        };
        for offset in offsets {
            let bytes = self.fetch(offset)?;
            let expected = stored.iter().find(|batch| batch.next > offset);
            let expected = expected.map_or(&[][..], |batch| &batch.bytes);
            ensure!(
                bytes == expected,
                "fetch of {offset}: {} bytes, expected {}",
                bytes.len(),
                expected.len()
            );
        }
        Ok(())
    }

    /// Every batch from start to end, by fetches one after the other.
    fn scan(&mut self) -> Result<Vec<Stored>, String> {
        let (mut next, end) = (self.log().log_start().0, self.log().log_end().0);
        let mut stored = Vec::new();
        while next < end {
            let bytes = self.fetch(next)?;
            let Some(batch) = Batches::new(&bytes).next() else { break };
            let batch = batch.map_err(text)?;
            batch.check_crc().map_err(text)?;
            ensure!(batch.head().next_offset().0 > next, "the scan goes back from {next}");
            next = batch.head().next_offset().0;
            stored.push(Stored { next, records: records(&batch)?, bytes: batch.bytes().to_vec() });
        }
        Ok(stored)
    }

    /// The first batch from `offset` on.
    fn fetch(&mut self, offset: i64) -> Result<Vec<u8>, String> {
        let request = ReadRequest {
            offset: Offset(offset),
            bytes_max: 1,
            upper_bound: self.log().log_end(),
            whole_first_batch: true,
            with_aborted: false,
        };
        bytes_of(&self.site.plan(request)?)
    }
}

fn records(batch: &BatchView<'_>) -> Result<Vec<(i64, Record)>, String> {
    let mut scratch = Vec::new();
    let mut found = Vec::new();
    for record in batch.records(&mut scratch, 1 << 20).map_err(text)? {
        let record = record.map_err(text)?;
        let (Some([key]), Some(value)) = (record.key, record.value) else {
            return Err("an odd record".into());
        };
        let number = std::str::from_utf8(value).map_err(text)?.parse().map_err(text)?;
        found.push((record.offset.0, (u64::from(*key), number)));
    }
    Ok(found)
}

/// Whether a cleaning failed because retention or DeleteRecords had taken a segment away under it. No other failure is
/// right here: nothing is damaged while the log is open.
fn has_gone_below(error: &CleanError, log_start: i64) -> bool {
    let CleanError::Gone { path } = error else { return false };
    let base = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<i64>().ok());
    base.is_some_and(|base| base < log_start)
}

/// How many records compaction took.
fn simulate(seed: u64, lies: Lies) -> Result<usize, String> {
    let mut world = World::new(seed, lies)?;
    let steps = STEPS_MAX / 6 + world.below(STEPS_MAX * 5 / 6);
    for step in 0..steps {
        world.step().map_err(|failure| format!("step {step}: {failure}"))?;
    }
    world.check(true)?;
    let start = world.log().log_start().0;
    let left: usize = world.scan()?.iter().map(|batch| batch.records.len()).sum();
    Ok(world.appended.range(start..).count().saturating_sub(left))
}

#[test]
fn compacted_log_agrees_with_its_model_through_crashes() {
    let compacted = AtomicUsize::new(0);
    run_seeds(1000, |seed| {
        let gone = simulate(seed, Lies::default())?;
        compacted.fetch_add(usize::from(gone > 0), Ordering::Relaxed);
        Ok(())
    });
    let compacted = compacted.into_inner();
    println!("compaction took records in {compacted} seeds");
    assert!(compacted > 300 || std::env::var_os("KURING_SEED").is_some(), "compaction took nothing");
}

#[test]
fn a_compaction_whose_syncs_are_lies_is_found_out() {
    let found = |lies| (0..60).any(|seed| simulate(seed, lies).is_err());
    assert!(found(Lies { sync_data: true, ..Lies::default() }), "data that was never synced");
    assert!(found(Lies { sync_dir: true, ..Lies::default() }), "names that were never synced");
}
