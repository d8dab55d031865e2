//! Compaction against a model: of each key the last record, at its offset.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use super::super::*;
use super::*;
use crate::base::clock::Timestamp;
use crate::base::random::Random;
use crate::base::{PartitionIndex, ProducerEpoch, ProducerId};
use crate::config::CleanupPolicy;
use crate::io::mem::{Crash, Fault, MemFiles};
use crate::io::{DirEntry, FileHandle, OpenMode};
use crate::wire::record::{BatchBuilder, BatchHead, BatchView, Batches, Codec, Compression, EndTxnMarker};

pub(super) const DIR: &str = "/t-0";
const RETENTION_MS: i64 = 1000;
pub(super) const SETTINGS: CleanSettings =
    CleanSettings { map_bytes: 1 << 20, load_factor: 0.9, buffer_bytes: 4096, slice_bytes: 700 };

/// Offset → key, value.
pub(super) type Records = BTreeMap<i64, (Option<String>, Option<String>)>;

pub(super) fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 600,
        index_interval_bytes: 100,
        cleanup_policy: CleanupPolicy { compact: true, delete: false },
        min_cleanable_dirty_ratio: 0.01,
        delete_retention_ms: RETENTION_MS,
        file_delete_delay_ms: 0,
        ..LogConfig::default()
    }
}

pub(super) struct Bench {
    pub context: Arc<LogContext<MemFiles>>,
    config: Arc<LogConfig>,
    log: Option<Log<MemFiles>>,
    pub time: i64,
    /// Reads everything after each exchange.
    checks: bool,
}

impl Bench {
    pub fn new(config: LogConfig) -> Self {
        let context = Arc::new(LogContext::new(MemFiles::new(7)));
        let mut bench = Self { context, config: Arc::new(config), log: None, time: 10_000, checks: true };
        bench.open(Offset::ZERO, None, false);
        bench
    }

    pub fn now(&self) -> Now {
        Now { monotonic: Monotonic::from_millis(self.time as u64), wall: Timestamp(self.time) }
    }

    pub fn open(&mut self, recovery_point: Offset, cleaned: Option<Offset>, clean: bool) {
        self.log = None;
        let options = OpenOptions {
            dir: DIR.into(),
            topic_partition: TopicPartition::new("t", PartitionIndex(0)),
            config: Arc::clone(&self.config),
            recovery_point,
            log_start: Offset::ZERO,
            cleaned,
            gaps: Gaps::BelowRecoveryPoint,
            clean,
        };
        self.log = Some(Log::open(&self.context, options, self.now()).unwrap());
        self.settle().unwrap();
    }

    pub fn log(&mut self) -> &mut Log<MemFiles> {
        self.log.as_mut().unwrap()
    }

    pub fn settle(&mut self) -> Result<(), LogError> {
        let now = self.now();
        while let Some(job) = self.log().next_job(now) {
            self.log().finish(job.run(), now)?;
        }
        Ok(())
    }

    pub fn append(&mut self, builder: BatchBuilder) {
        self.append_bytes(&builder.finish().unwrap());
    }

    fn append_bytes(&mut self, bytes: &bytes::Bytes) {
        let mut batches = vec![Batch::from_bytes(bytes).unwrap()];
        let now = self.now();
        let results = self.log().append(&mut batches, LeaderEpoch(0), Origin::Coordinator, now);
        results[0].unwrap();
        self.settle().unwrap();
    }

    /// One batch; `None` is a tombstone.
    pub fn put(&mut self, records: &[(&str, Option<&str>)]) {
        let builder = self.batch(Codec::None, records);
        self.append(builder);
    }

    fn batch(&self, codec: Codec, records: &[(&str, Option<&str>)]) -> BatchBuilder {
        let mut builder = BatchBuilder::new(Offset::ZERO, Compression::of(codec));
        for (key, value) in records {
            let value = value.map(str::as_bytes);
            builder.append(Timestamp(self.time), Some(key.as_bytes()), value, &[]);
        }
        builder
    }

    /// Fills up the active segment, so that all before it can be cleaned.
    pub fn roll(&mut self) {
        let before = self.log().segment_count();
        while self.log().segment_count() == before {
            let value = "x".repeat(200);
            self.put(&[("filler", Some(&value))]);
        }
        self.log().request_checkpoint();
        self.settle().unwrap();
    }

    pub fn clean(&mut self) -> Result<(), CleanError> {
        self.clean_with(SETTINGS)
    }

    fn clean_with(&mut self, settings: CleanSettings) -> Result<(), CleanError> {
        let (now, end) = (self.now(), self.log().log_end());
        self.log().high_watermark_advanced(end);
        let stable = self.log().first_unstable().unwrap_or(end);
        let Some(mut clean) = self.log().start_clean(stable, settings, now) else { return Ok(()) };
        loop {
            clean = match clean.run() {
                CleanStep::More(clean) => clean,
                CleanStep::Group(clean, cleaned) => {
                    if let Err(cleaned) = self.log().exchange(cleaned) {
                        cleaned.discard()?;
                    }
                    if self.checks {
                        self.check_readable();
                    }
                    self.settle()?;
                    clean
                }
                CleanStep::Done { up_to, generation, .. } => {
                    assert!(!self.log().has_swaps());
                    self.log().mark_cleaned(up_to, generation);
                    return Ok(());
                }
                CleanStep::Failed(error) => return Err(error),
            };
        }
    }

    fn heads(&mut self) -> Vec<BatchHead> {
        self.batches().iter().map(|bytes| *BatchView::parse(bytes).unwrap().head()).collect()
    }

    /// All batches, as consumers get them.
    fn batches(&mut self) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let end = self.log().log_end();
        let mut next = self.log().log_start();
        while next < end {
            let bytes = self.fetch(next, 1 << 20);
            let before = next;
            for batch in Batches::new(&bytes).map_while(Result::ok) {
                batch.check_crc().unwrap();
                assert!(batch.head().base_offset() >= before || before.0 == 0);
                next = batch.head().next_offset();
                found.push(batch.bytes().to_vec());
            }
            if next == before {
                break;
            }
        }
        found
    }

    fn fetch(&mut self, offset: Offset, bytes_max: u32) -> Vec<u8> {
        let upper_bound = self.log().log_end();
        let request =
            ReadRequest { offset, bytes_max, upper_bound, whole_first_batch: true, with_aborted: false };
        let mut read = self.log().read(request).unwrap();
        let plan = loop {
            match read {
                Read::Plan(plan) => break plan,
                Read::NeedsDisk(job) => read = self.log().finish_read(job.run()).unwrap(),
            }
        };
        let Some(range) = plan.range else { return Vec::new() };
        let mut bytes = vec![0; range.length as usize];
        assert_eq!(range.file.read_at(&mut bytes, range.position).unwrap(), bytes.len());
        bytes
    }

    pub fn records(&mut self) -> Records {
        let mut records = Records::new();
        for bytes in self.batches() {
            let view = BatchView::parse(&bytes).unwrap();
            if view.head().attributes().is_control() {
                continue;
            }
            let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            for record in view.records(&mut Vec::new(), 1 << 20).unwrap() {
                let record = record.unwrap();
                let before = records.insert(record.offset.0, (text(record.key), text(record.value)));
                assert!(before.is_none());
            }
        }
        records
    }

    /// From every offset a fetch finds the batch that holds it, or the next one.
    pub fn check_readable(&mut self) {
        let heads = self.heads();
        let mut at = 0;
        for offset in self.log().log_start().0..self.log().log_end().0 {
            while heads[at].last_offset().0 < offset {
                at += 1;
            }
            let bytes = self.fetch(Offset(offset), 1);
            let found = BatchView::parse(&bytes).unwrap();
            assert_eq!(found.head(), &heads[at], "at {offset}");
        }
    }

    pub fn names(&self) -> Vec<String> {
        let entries = self.context.files.list(Path::new(DIR)).unwrap();
        entries.into_iter().map(|entry: DirEntry| entry.name).collect()
    }
}

fn values(records: &Records) -> Vec<(i64, &str, Option<&str>)> {
    let rest = records.iter().filter(|(_, (key, _))| key.as_deref() != Some("filler"));
    rest.map(|(offset, (key, value))| (*offset, key.as_deref().unwrap_or("-"), value.as_deref())).collect()
}

#[test]
fn of_each_key_the_last_record_stays_at_its_offset() {
    for codec in Codec::ALL {
        let mut bench = Bench::new(config());
        for (first, second) in [("1", "2"), ("3", "4")] {
            let batch = bench.batch(codec, &[("a", Some(first)), ("b", Some(first)), ("a", Some(second))]);
            bench.append(batch);
        }
        let batch = bench.batch(codec, &[("c", Some("5")), ("b", Some("6"))]);
        bench.append(batch);
        bench.roll();
        let (start, end) = (bench.log().log_start(), bench.log().log_end());
        bench.clean().unwrap();
        let records = bench.records();
        assert_eq!(values(&records), [(5, "a", Some("4")), (6, "c", Some("5")), (7, "b", Some("6"))]);
        assert_eq!((bench.log().log_start(), bench.log().log_end()), (start, end));
        let heads = bench.heads();
        let batch = heads.iter().find(|head| head.base_offset() == Offset(3)).unwrap();
        assert_eq!((batch.last_offset(), batch.count()), (Offset(5), 1), "the batch keeps its range");
        assert_eq!(batch.attributes().codec(), Some(codec));
        bench.check_readable();
        assert_eq!(bench.names().iter().filter(|name| name.split('.').count() > 2).count(), 0);
        let cleaned = bench.log().cleaned();
        assert!(cleaned.is_some_and(|cleaned| cleaned > Offset(7)));
        let now = bench.now();
        assert_eq!(bench.log().cleanable(end, now), None, "nothing is dirty");
        bench.open(end, cleaned, false);
        assert_eq!(bench.records(), records);
        bench.check_readable();
    }
}

#[test]
fn tombstones_go_when_their_horizon_is_over() {
    let mut bench = Bench::new(config());
    bench.put(&[("a", Some("1")), ("b", Some("1"))]);
    bench.put(&[("a", None)]);
    bench.roll();
    bench.clean().unwrap();
    assert_eq!(values(&bench.records()), [(1, "b", Some("1")), (2, "a", None)]);
    let horizon = |bench: &mut Bench| {
        let heads = bench.heads();
        let head = heads.iter().find(|head| head.base_offset() == Offset(2)).copied();
        head.map(|head| {
            (head.attributes().has_delete_horizon(), head.base_timestamp().0, head.max_timestamp().0)
        })
    };
    assert_eq!(horizon(&mut bench), Some((true, 10_000 + RETENTION_MS, 10_000)));
    bench.time += RETENTION_MS - 1;
    bench.roll();
    bench.clean().unwrap();
    assert_eq!(horizon(&mut bench), Some((true, 11_000, 10_000)), "the horizon is set once");
    bench.time += 1;
    bench.roll();
    bench.clean().unwrap();
    assert_eq!(values(&bench.records()), [(1, "b", Some("1"))]);
    bench.check_readable();
}

#[test]
fn small_segments_become_one_that_is_no_longer_than_allowed() {
    let mut bench = Bench::new(config());
    for number in 0..60 {
        bench.put(&[(&format!("k{}", number % 7), Some("some value"))]);
    }
    bench.roll();
    let before = bench.log().segment_count();
    bench.clean().unwrap();
    for _ in 0..3 {
        bench.roll();
        bench.clean().unwrap();
    }
    assert!(bench.log().segment_count() < before);
    assert!(bench.log().segments.iter().all(|segment| segment.size <= 600));
    assert_eq!(values(&bench.records()).len(), 7);
    bench.check_readable();
    let end = bench.log().log_end();
    let now = bench.now();
    bench.log().close(now).unwrap();
    bench.open(end, None, true);
    assert_eq!(values(&bench.records()).len(), 7);
    bench.check_readable();
}

#[test]
fn the_active_segment_young_segments_and_undecided_records_are_left_alone() {
    let mut bench = Bench::new(LogConfig { min_compaction_lag_ms: 500, ..config() });
    bench.put(&[("a", Some("1")), ("a", Some("2"))]);
    bench.roll();
    let (now, end) = (bench.now(), bench.log().log_end());
    assert_eq!(bench.log().cleanable(end, now), None, "too young");
    bench.time += 500;
    let now = bench.now();
    let cleanable = bench.log().cleanable(end, now).unwrap();
    assert_eq!(cleanable.upper_bound, bench.log().active().base);
    assert_eq!(bench.log().cleanable(Offset(1), now), None, "above the last stable offset");
    bench.log().set_config(Arc::new(LogConfig::default()));
    assert_eq!(bench.log().cleanable(end, now), None, "not compacted");
}

#[test]
fn old_records_are_due_before_the_dirty_ratio_is_reached() {
    let config = LogConfig { min_cleanable_dirty_ratio: 0.99, max_compaction_lag_ms: 700, ..config() };
    let mut bench = Bench::new(config.clone());
    bench.put(&[("a", Some("1"))]);
    bench.roll();
    bench.clean().unwrap();
    bench.put(&[("a", Some("2"))]);
    bench.roll();
    let due = |bench: &mut Bench| {
        let (now, end) = (bench.now(), bench.log().log_end());
        bench.log().cleanable(end, now).unwrap().is_due(&config)
    };
    assert!(!due(&mut bench));
    bench.time += 701;
    assert!(due(&mut bench));
    let (end, cleaned) = (bench.log().log_end(), bench.log().cleaned());
    let now = bench.now();
    bench.log().close(now).unwrap();
    bench.open(end, cleaned, true);
    while let Some(job) = bench.log().first_timestamp_job() {
        bench.log().note_first_timestamp(job.run());
    }
    assert!(due(&mut bench));
}

#[test]
fn a_map_that_is_too_small_cleans_in_several_rounds() {
    let mut bench = Bench::new(config());
    for round in 0..2 {
        for number in 0..40 {
            bench.put(&[(&format!("k{number}"), Some(&format!("{round}")))]);
        }
    }
    bench.roll();
    let small = CleanSettings { map_bytes: 24 * 8, ..SETTINGS };
    let mut rounds = 0;
    loop {
        let (now, end) = (bench.now(), bench.log().log_end());
        if bench.log().cleanable(end, now).is_none() {
            break;
        }
        bench.clean_with(small).unwrap();
        bench.check_readable();
        rounds += 1;
    }
    assert!(rounds > 5);
    let records = bench.records();
    assert!(values(&records).iter().all(|(_, _, value)| *value == Some("1")), "{records:?}");
    let mut bench = Bench::new(config());
    let names: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    let one: Vec<(&str, Option<&str>)> = names.iter().map(|name| (name.as_str(), Some("v"))).collect();
    bench.put(&one);
    bench.roll();
    assert!(matches!(bench.clean_with(small), Err(CleanError::MapTooSmall)));
}

#[test]
fn a_producers_last_batch_stays_without_its_records() {
    let mut bench = Bench::new(config());
    let batch = |bench: &Bench, id: i64, sequence: i32, key: &str| {
        let builder = bench.batch(Codec::None, &[(key, Some("v")), (key, Some("w"))]);
        builder.with_producer(ProducerId(id), ProducerEpoch(3), sequence)
    };
    for (id, sequence) in [(1, 0), (1, 2), (2, 0)] {
        let batch = batch(&bench, id, sequence, "a");
        bench.append(batch);
    }
    bench.put(&[("a", Some("last"))]);
    bench.roll();
    bench.clean().unwrap();
    assert_eq!(values(&bench.records()), [(6, "a", Some("last"))]);
    let heads = bench.heads();
    let empty: Vec<_> = heads.iter().filter(|head| head.count() == 0).collect();
    assert_eq!(empty.len(), 2);
    assert_eq!((empty[0].base_offset(), empty[0].last_offset()), (Offset(2), Offset(3)));
    assert_eq!((empty[0].base_sequence(), empty[0].last_sequence()), (2, 3));
    assert_eq!(empty[0].max_timestamp(), Timestamp(10_000));
    // Without the snapshots the sequences come from the batches.
    for name in bench.names().iter().filter(|name| name.ends_with(".snapshot")) {
        bench.context.files.remove_file(&Path::new(DIR).join(name)).unwrap();
    }
    bench.open(Offset::ZERO, None, false);
    let known: HashMap<i64, i32> =
        bench.log().producers().map(|producer| (producer.id.0, producer.last_sequence)).collect();
    assert_eq!(known, HashMap::from([(1, 3), (2, 1)]));
    bench.check_readable();
}

#[test]
fn markers_stay_until_their_data_is_gone_and_the_horizon_is_over() {
    let mut bench = Bench::new(config());
    let transactional = |bench: &Bench, id: i64, key: &str, value: &str| {
        let builder = bench.batch(Codec::None, &[(key, Some(value))]);
        builder.with_producer(ProducerId(id), ProducerEpoch(0), 0).with_transactional()
    };
    let marker = |bench: &mut Bench, id: i64, commit: bool| {
        let time = Timestamp(bench.time);
        let marker = EndTxnMarker { commit, coordinator_epoch: 1 };
        bench.append_bytes(&marker.to_batch(ProducerId(id), ProducerEpoch(0), time));
    };
    bench.put(&[("a", Some("0"))]);
    let batch = transactional(&bench, 1, "a", "committed");
    bench.append(batch);
    marker(&mut bench, 1, true);
    let batch = transactional(&bench, 2, "a", "aborted");
    bench.append(batch);
    marker(&mut bench, 2, false);
    let base = bench.log().active().base;
    bench.roll();
    assert_eq!(aborted_rows(&bench, base), 1);
    let controls = |bench: &mut Bench| {
        let controls = bench.heads().into_iter().filter(|head| head.attributes().is_control());
        controls
            .map(|head| (head.base_offset().0, head.attributes().has_delete_horizon()))
            .collect::<Vec<_>>()
    };
    // Producers that are known keep their last batches and markers: these are expired.
    bench.time += 2 * 24 * 60 * 60 * 1000;
    let now = bench.now();
    bench.log().expire_producers(now);
    bench.clean().unwrap();
    assert_eq!(values(&bench.records()), [(1, "a", Some("committed"))]);
    assert_eq!(controls(&mut bench), [(2, false), (4, false)]);
    assert_eq!(aborted_rows(&bench, base), 1, "readers of the kept marker may still need it");
    bench.put(&[("a", Some("new"))]);
    bench.roll();
    bench.clean().unwrap();
    assert_eq!(controls(&mut bench), [(2, false), (4, true)], "no data of the aborted one was left");
    assert_eq!(aborted_rows(&bench, base), 0);
    bench.roll();
    bench.clean().unwrap();
    assert_eq!(controls(&mut bench), [(2, true), (4, true)]);
    bench.time += RETENTION_MS;
    bench.roll();
    bench.clean().unwrap();
    assert_eq!(controls(&mut bench), []);
    assert_eq!(values(&bench.records()).len(), 1);
    bench.check_readable();
}

fn aborted_rows(bench: &Bench, base: Offset) -> u64 {
    let path = names::file(Path::new(DIR), base, names::FileKind::TransactionIndex);
    bench.context.files.open(&path, OpenMode::Read).map_or(0, |file| file.len().unwrap() / 34)
}

#[test]
fn a_damaged_batch_stops_the_cleaning_and_changes_nothing() {
    let mut bench = Bench::new(config());
    for number in 0..20 {
        bench.put(&[("a", Some(&format!("value {number}")))]);
    }
    bench.roll();
    let path = names::file(Path::new(DIR), Offset(0), names::FileKind::Log);
    let file = bench.context.files.open(&path, OpenMode::Write).unwrap();
    file.write_all_at(&mut [std::io::IoSlice::new(b"X")], 75).unwrap();
    let names = bench.names();
    assert!(matches!(bench.clean(), Err(CleanError::Damaged { .. })));
    assert_eq!(bench.names(), names);
}

/// Random appends, cleanings, clean and unclean ends, against all records that were ever appended.
struct Model {
    bench: Bench,
    random: Random,
    appended: Records,
    /// Below it only the last records of keys are left.
    cleaned: i64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let config = LogConfig { segment_bytes: 300 + random.below(2000) as u32, ..config() };
        Self { bench: Bench::new(config), random, appended: Records::new(), cleaned: 0 }
    }

    fn append(&mut self) {
        let codec = Codec::ALL[self.random.below(5) as usize];
        let count = 1 + self.random.below(4);
        let records: Vec<(String, Option<String>)> = (0..count)
            .map(|_| {
                let key = format!("k{}", self.random.below(12));
                let length = self.random.below(60) as usize;
                let value = (self.random.below(5) > 0).then(|| "v".repeat(length));
                (key, value)
            })
            .collect();
        let records: Vec<(&str, Option<&str>)> =
            records.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
        let end = self.bench.log().log_end().0;
        let mut batch = self.bench.batch(codec, &records);
        if self.random.below(3) == 0 {
            let id = ProducerId(self.random.below(3) as i64);
            batch = batch.with_producer(id, ProducerEpoch(0), end as i32);
        }
        self.bench.append(batch);
        for (offset, (key, value)) in (end..).zip(records) {
            self.appended.insert(offset, (Some(key.to_owned()), value.map(str::to_owned)));
        }
    }

    /// What is left was appended so; of each key its last record is there, unless it is a tombstone.
    fn check(&mut self) {
        let found = self.bench.records();
        for (offset, record) in &found {
            assert_eq!(self.appended.get(offset), Some(record), "at {offset}");
        }
        let mut last: HashMap<&str, i64> = HashMap::new();
        for (offset, (key, _)) in &self.appended {
            last.insert(key.as_deref().unwrap(), *offset);
        }
        for (key, offset) in last {
            let newest = found.iter().rev().find(|(_, (other, _))| other.as_deref() == Some(key));
            match newest {
                Some((at, _)) => assert_eq!(*at, offset, "{key} is old"),
                None => assert_eq!(self.appended[&offset].1, None, "{key} is lost"),
            }
        }
        let bound = self.bench.log().active().base.0.max(self.cleaned);
        let untouched = self.appended.range(bound..).all(|(offset, _)| found.contains_key(offset));
        assert!(untouched, "records that were not to be cleaned are gone");
        self.bench.check_readable();
    }

    fn check_clean(&mut self, up_to: i64) {
        let found = self.bench.records();
        let mut seen: HashMap<String, i64> = HashMap::new();
        for (offset, (key, _)) in found.range(..up_to) {
            let before = seen.insert(key.clone().unwrap(), *offset);
            assert_eq!(before, None, "{key:?} twice below {up_to}");
        }
    }

    fn step(&mut self) {
        self.bench.time += self.random.below(100) as i64;
        match self.random.below(20) {
            0..15 => self.append(),
            15..18 => {
                self.bench.log().request_checkpoint();
                self.bench.settle().unwrap();
                self.bench.clean().unwrap();
                let up_to = self.bench.log().cleaned().map_or(0, |cleaned| cleaned.0);
                self.cleaned = up_to;
                self.check_clean(up_to);
                self.check();
            }
            18 => self.crash_while_cleaning(),
            _ => {
                let now = self.bench.now();
                self.bench.log().close(now).unwrap();
                let (end, cleaned) = (self.bench.log().log_end(), self.bench.log().cleaned());
                self.bench.open(end, cleaned, true);
                self.check();
            }
        }
    }

    /// An operation of the cleaning fails and the machine or the process ends there.
    fn crash_while_cleaning(&mut self) {
        self.bench.log().request_checkpoint();
        self.bench.settle().unwrap();
        let now = self.bench.now();
        if let Some(job) = self.bench.log().flush_job() {
            self.bench.log().finish_flush(job.run(), now).unwrap();
        }
        let (point, cleaned) = (self.bench.log().recovery_point(), self.bench.log().cleaned());
        let after = self.random.below(80);
        let error = rustix::io::Errno::IO;
        self.bench.context.files.set_fault(Some(Fault { operation: None, after, error, sticky: true }));
        self.bench.checks = false;
        // It may have been through before the fault.
        let _ = self.bench.clean();
        self.bench.checks = true;
        self.bench.context.files.set_fault(None);
        self.bench.log = None;
        let crash = if self.random.below(2) == 0 { Crash::Machine } else { Crash::Process };
        self.bench.context.files.crash(crash);
        let end = self.appended.keys().next_back().map_or(0, |last| last + 1);
        self.bench.open(point, cleaned, false);
        assert_eq!(self.bench.log().log_end().0, end, "{crash:?}");
        self.check();
        assert!(
            !self.bench.names().iter().any(|name| name.split('.').count() > 2),
            "{:?}",
            self.bench.names()
        );
    }
}

#[test]
fn the_log_agrees_with_its_model_through_cleanings_and_crashes() {
    for seed in 0..8 {
        let mut model = Model::new(seed);
        let run = std::panic::AssertUnwindSafe(|| (0..150).for_each(|_| model.step()));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn a_crash_at_any_step_of_a_cleaning_leaves_the_old_records_or_the_new_ones() {
    for crash in [Crash::Process, Crash::Machine] {
        let mut operations = u64::MAX;
        let mut after = 0;
        while after < operations {
            let mut bench = Bench::new(config());
            bench.put(&[("gone", Some("1")), ("a", Some("1"))]);
            bench.put(&[("gone", None)]);
            bench.roll();
            bench.clean().unwrap();
            bench.time += RETENTION_MS;
            for number in 0..12 {
                bench.put(&[("a", Some(&format!("{number}"))), (&format!("k{number}"), Some("v"))]);
            }
            bench.roll();
            let (point, cleaned) = (bench.log().recovery_point(), bench.log().cleaned());
            let before = bench.context.files.operations();
            let error = rustix::io::Errno::IO;
            let fault = Fault { operation: None, after, error, sticky: true };
            bench.context.files.set_fault((operations != u64::MAX).then_some(fault));
            bench.checks = false;
            let cleaning = bench.clean();
            bench.checks = true;
            bench.context.files.set_fault(None);
            if operations == u64::MAX {
                cleaning.unwrap();
                operations = bench.context.files.operations() - before;
                continue;
            }
            bench.log = None;
            bench.context.files.crash(crash);
            bench.open(point, cleaned, false);
            let records = bench.records();
            let found = values(&records);
            let newest = |key: &str| found.iter().rev().find(|(_, other, _)| *other == key).copied();
            assert_eq!(
                newest("a").map(|(_, _, value)| value),
                Some(Some("11")),
                "{crash:?} {after}: {found:?}"
            );
            assert!(
                newest("gone").is_none_or(|(_, _, value)| value.is_none()),
                "{crash:?} {after}: {found:?}"
            );
            for number in 0..12 {
                assert!(newest(&format!("k{number}")).is_some(), "{crash:?} {after}: {found:?}");
            }
            bench.check_readable();
            bench.clean().unwrap();
            bench.check_readable();
            after += 1;
        }
        assert!(operations > 50, "{operations}");
    }
}
