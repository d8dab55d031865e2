//! The log of one partition: random appends, rolls, retention, truncation, DeleteRecords, flushes, jobs that
//! finish late or never, full disks, clean stops, killed processes and lost power, against [`Model`].

use kuring::base::clock::Timestamp;
use kuring::base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};
use kuring::config::LogConfig;
use kuring::io::mem::{Crash, Fault, Lies, MemFiles, Operation};
use kuring::log::{
    Appended, Batch, FlushJob, FlushOutcome, Log, OffsetLookup, Origin, ReadError, ReadRequest,
    TimestampTarget,
};
use kuring::wire::ErrorCode;
use kuring::wire::record::{BatchBuilder, Codec, Compression};

use crate::home::{InFlight, Site, bytes_of, ensure, text};
use crate::log_model::Model;
use crate::run_seeds;

const PRODUCERS: i64 = 3;
const STEPS_MAX: u64 = 400;

struct World {
    site: Site,
    flush: Option<InFlight<FlushJob<MemFiles>, FlushOutcome>>,
    model: Model,
    planted: Planted,
    epoch: LeaderEpoch,
}

impl World {
    fn new(seed: u64, lies: Lies, planted: Planted) -> Result<World, String> {
        let site = Site::new(seed, lies, |random| LogConfig {
            segment_bytes: 800 + random.below(4000) as u32,
            index_interval_bytes: [0, 100, 1000][random.below(3) as usize],
            segment_index_bytes: 60 + random.below(1000) as u32,
            segment_ms: 5000,
            retention_ms: 20_000,
            retention_bytes: [-1, 10_000][random.below(2) as usize],
            file_delete_delay_ms: 1000,
            ..LogConfig::default()
        })?;
        Ok(World { site, flush: None, model: Model::default(), planted, epoch: LeaderEpoch(0) })
    }

    fn log(&mut self) -> &mut Log<MemFiles> {
        self.site.log()
    }

    /// By chance one of the numbers below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.site.random.below(bound)
    }

    fn step(&mut self) -> Result<(), String> {
        self.site.time += self.below(200) as i64;
        match self.below(100) {
            0..40 => self.append()?,
            40..62 => self.advance_job()?,
            62..70 => self.advance_flush()?,
            70..74 => self.checkpoint()?,
            74..77 => self.retention()?,
            77..79 => self.delete_records()?,
            79..81 => self.truncate()?,
            81..83 => {
                self.log().release_files();
            }
            83..92 => self.fetch_some()?,
            92..94 => self.look_up()?,
            94..95 => self.full_disk()?,
            95..96 => self.stop()?,
            96..98 => self.crash(Crash::Process)?,
            _ => self.crash(Crash::Machine)?,
        }
        self.compare_ends()
    }

    fn compare_ends(&mut self) -> Result<(), String> {
        let (start, end) = (self.log().log_start().0, self.log().log_end().0);
        ensure!(end == self.model.end, "log end {end}, expected {}", self.model.end);
        ensure!(start == self.model.start, "log start {start}, expected {}", self.model.start);
        let flushed = self.log().flushed().0;
        ensure!(flushed <= end, "flushed {flushed} of {end}");
        let promised = if self.planted == Planted::AcknowledgedEarly { end } else { flushed };
        self.model.durable = self.model.durable.max(promised);
        self.model.start_max = self.model.start_max.max(start);
        Ok(())
    }

    fn make_batch(&mut self, producers: &mut [Option<i32>]) -> (Batch, Vec<i64>) {
        // The slower codecs are rarer: the log looks into no body.
        let codec = match self.below(12) {
            0 => Codec::Gzip,
            1 => Codec::Zstd,
            2 => Codec::Snappy,
            3 => Codec::Lz4,
            _ => Codec::None,
        };
        let mut builder = BatchBuilder::new(Offset::ZERO, Compression::of(codec));
        let records = 1 + self.below(4) as i32;
        if self.below(2) == 0 {
            let id = self.below(PRODUCERS as u64) as usize;
            let sequence = producers[id].map_or(0, |last| last + 1);
            producers[id] = Some(sequence + records - 1);
            builder = builder.with_producer(ProducerId(id as i64), ProducerEpoch(0), sequence);
        }
        let mut timestamps = Vec::new();
        for _ in 0..records {
            let timestamp = self.site.time - self.below(300) as i64;
            let value: Vec<u8> = (0..self.below(120)).map(|_| self.site.random.next_u64() as u8).collect();
            builder.append(Timestamp(timestamp), None, Some(&value), &[]);
            timestamps.push(timestamp);
        }
        let bytes = builder.finish().expect("the codecs take these bytes");
        (Batch::from_bytes(&bytes).expect("it is one batch"), timestamps)
    }

    fn append(&mut self) -> Result<(), String> {
        if self.below(20) == 0 {
            self.epoch.0 += 1;
        }
        let mut sequences: Vec<Option<i32>> = (0..PRODUCERS)
            .map(|id| self.model.last_of(ProducerId(id)).and_then(|last| last.producer).map(|(_, last)| last))
            .collect();
        let made: Vec<(Batch, Vec<i64>)> =
            (0..1 + self.below(5)).map(|_| self.make_batch(&mut sequences)).collect();
        let mut batches: Vec<Batch> = made.iter().map(|(batch, _)| batch.clone()).collect();
        let (epoch, now) = (self.epoch, self.site.now());
        let results = self.log().append(&mut batches, epoch, Origin::Client, now);
        self.note_appended(made, &batches, &results, false)
    }

    fn note_appended(
        &mut self,
        made: Vec<(Batch, Vec<i64>)>,
        batches: &[Batch],
        results: &[Result<Appended, ErrorCode>],
        may_fail: bool,
    ) -> Result<(), String> {
        ensure!(results.len() == made.len(), "{} results for {} batches", results.len(), made.len());
        for (((sent, timestamps), batch), result) in made.into_iter().zip(batches).zip(results) {
            match result {
                Ok(appended) => {
                    ensure!(!appended.duplicate, "taken for a duplicate: {appended:?}");
                    ensure!(
                        appended.first.0 == self.model.end,
                        "at {appended:?}, expected {}",
                        self.model.end
                    );
                    self.model.push(sent, batch, timestamps);
                    ensure!(appended.last.0 + 1 == self.model.end, "{appended:?} is no answer to its batch");
                }
                Err(_) if may_fail => {}
                Err(code) => return Err(format!("append refused: {code:?}")),
            }
        }
        Ok(())
    }

    fn advance_job(&mut self) -> Result<(), String> {
        self.site.advance_job()?;
        // Retention may have waited for it.
        self.model.start = self.log().log_start().0;
        Ok(())
    }

    fn advance_flush(&mut self) -> Result<(), String> {
        let now = self.site.now();
        self.flush = match self.flush.take() {
            None => self.log().flush_job().map(InFlight::Made),
            Some(InFlight::Made(job)) if self.planted == Planted::FlushNotRun => {
                Some(InFlight::Run(job.synced_otherwise()))
            }
            Some(InFlight::Made(job)) => Some(InFlight::Run(job.run())),
            Some(InFlight::Run(outcome)) => {
                self.log().finish_flush(outcome, now).map_err(text)?;
                None
            }
        };
        Ok(())
    }

    fn finish_jobs(&mut self) -> Result<(), String> {
        self.site.finish_job()?;
        self.model.start = self.log().log_start().0;
        while self.flush.is_some() {
            self.advance_flush()?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        if self.below(2) == 0 {
            self.log().request_checkpoint();
            return Ok(());
        }
        self.write_checkpoints()
    }

    fn write_checkpoints(&mut self) -> Result<(), String> {
        let (mut point, start) = (self.log().recovery_point(), self.log().log_start());
        if self.planted == Planted::RecoveryPointAhead {
            point = self.log().log_end();
        }
        self.site.write_checkpoints(point)?;
        self.model.recovery_point = point.0;
        self.model.start_checkpoint = start.0;
        Ok(())
    }

    fn retention(&mut self) -> Result<(), String> {
        let (now, end) = (self.site.now(), self.model.end);
        let before = self.model.start;
        self.log().enforce_retention(Offset(end), now);
        self.model.start = self.log().log_start().0;
        ensure!(self.model.start >= before, "the log start went back to {}", self.model.start);
        Ok(())
    }

    fn delete_records(&mut self) -> Result<(), String> {
        let offset = self.model.start + self.below((self.model.end - self.model.start) as u64 / 4 + 1) as i64;
        let start = self.log().advance_log_start(Offset(offset)).map_err(|code| format!("{code:?}"))?;
        ensure!(start.0 == offset, "DeleteRecords to {offset} answered {start}");
        self.model.start = offset;
        Ok(())
    }

    fn truncate(&mut self) -> Result<(), String> {
        self.finish_jobs()?;
        let low = self.model.start.max(self.model.end - 40);
        let offset = low + self.below((self.model.end - low) as u64 + 1) as i64;
        let end = self.model.batch_at(offset).map_or(self.model.end, |batch| batch.first);
        let now = self.site.now();
        self.log().truncate_to(Offset(offset), now).map_err(text)?;
        self.model.cut(end);
        self.write_checkpoints()
    }

    fn full_disk(&mut self) -> Result<(), String> {
        let mut sequences: Vec<Option<i32>> = (0..PRODUCERS)
            .map(|id| self.model.last_of(ProducerId(id)).and_then(|last| last.producer).map(|(_, last)| last))
            .collect();
        let made: Vec<(Batch, Vec<i64>)> = (0..4).map(|_| self.make_batch(&mut sequences)).collect();
        let mut batches: Vec<Batch> = made.iter().map(|(batch, _)| batch.clone()).collect();
        let (epoch, now) = (self.epoch, self.site.now());
        let fault = Fault {
            operation: Some(Operation::Write),
            after: self.below(2),
            error: rustix::io::Errno::NOSPC,
            sticky: true,
        };
        self.site.files.set_fault(Some(fault));
        let results = self.log().append(&mut batches, epoch, Origin::Client, now);
        self.site.files.set_fault(None);
        ensure!(!self.log().is_offline(), "a full disk took the log offline");
        self.note_appended(made, &batches, &results, true)
    }

    /// A clean stop and start.
    fn stop(&mut self) -> Result<(), String> {
        self.finish_jobs()?;
        let now = self.site.now();
        self.log().close(now).map_err(text)?;
        ensure!(self.log().recovery_point().0 == self.model.end, "closed before the end");
        self.write_checkpoints()?;
        self.model.durable = self.model.end;
        self.site.start_after_clean_stop()?;
        self.fetch_all()?;
        self.send_again()
    }

    fn crash(&mut self, crash: Crash) -> Result<(), String> {
        self.flush = None;
        let before = (self.model.start, self.model.end);
        let recovery_point = self.site.crash(crash)?;
        ensure!(recovery_point.0 == self.model.recovery_point, "the recovery point is lost");
        let (start, end) = (self.log().log_start().0, self.log().log_end().0);
        ensure!(end <= before.1, "{crash:?}: the log grew from {} to {end}", before.1);
        let promised = if crash == Crash::Process { before.1 } else { self.model.durable };
        ensure!(end >= promised, "{crash:?}: {end} is left, {promised} was promised");
        ensure!(start <= before.0, "{crash:?}: the log start went on from {} to {start}", before.0);
        ensure!(start >= self.model.start_checkpoint, "{crash:?}: the log start went back to {start}");
        self.model.start = start;
        let whole = self.model.whole_before(end);
        // When all records from the log start on are lost it stays where it was told to be.
        let is_emptied = start == end && start == self.model.start_checkpoint;
        ensure!(
            whole == end || is_emptied,
            "{crash:?}: the log ends at {end}, inside a batch or behind a gap after {whole}"
        );
        self.model.cut(end);
        self.model.start = start;
        self.write_checkpoints()?;
        self.fetch_all()?;
        self.send_again()
    }

    fn fetch(&mut self, offset: i64, bytes_max: u32, bound: i64) -> Result<(), String> {
        let request = ReadRequest {
            offset: Offset(offset),
            bytes_max,
            upper_bound: Offset(bound),
            whole_first_batch: true,
            with_aborted: false,
        };
        let plan = self.site.plan(request)?;
        // A job may have ended meanwhile.
        self.model.start = self.log().log_start().0;
        let expected = self.model.bytes(offset, bound);
        if plan.range.is_none() {
            ensure!(expected.is_empty(), "{request:?}: nothing, expected {} bytes", expected.len());
            return Ok(());
        }
        let bytes = bytes_of(&plan)?;
        ensure!(expected.starts_with(&bytes), "{request:?}: other bytes than expected");
        let first = self.model.batch_at(offset).map_or(0, |batch| batch.length);
        ensure!(bytes.len() >= first, "{request:?}: the first batch is not whole");
        ensure!(plan.first_batch_bytes as usize == first, "{request:?}: first batch of {first} bytes");
        ensure!(bytes.len() <= first.max(bytes_max as usize), "{request:?}: {} bytes", bytes.len());
        Ok(())
    }

    fn fetch_some(&mut self) -> Result<(), String> {
        for _ in 0..5 {
            let (start, end) = (self.model.start, self.model.end);
            let offset = start + self.below((end - start) as u64 + 1) as i64;
            let bound = offset + self.below((end - offset) as u64 + 1) as i64;
            let bytes_max = self.below(3000) as u32;
            self.fetch(offset, bytes_max, bound)?;
            self.fetch(offset, bytes_max, end)?;
        }
        Ok(())
    }

    /// Every offset, and those around the log.
    fn fetch_all(&mut self) -> Result<(), String> {
        let (start, end) = (self.model.start, self.model.end);
        for offset in start..end {
            self.fetch(offset, 1, end)?;
        }
        for offset in [start - 1, end + 1] {
            let request = ReadRequest {
                offset: Offset(offset),
                bytes_max: 1,
                upper_bound: Offset(end),
                whole_first_batch: true,
                with_aborted: false,
            };
            let answer = self.log().read(request);
            ensure!(matches!(answer, Err(ReadError::OutOfRange)), "{offset} is readable in {start}..{end}");
        }
        self.look_up()
    }

    /// Offsets by time and by leader epoch.
    fn look_up(&mut self) -> Result<(), String> {
        let found = self.offset_for(TimestampTarget::Max)?;
        let expected = self.model.youngest(self.model.start);
        ensure!(found == expected, "the youngest record: {found:?}, expected {expected:?}");
        for _ in 0..3 {
            let time = self.site.time - self.below(10_000) as i64;
            let found = self.offset_for(TimestampTarget::FirstAtOrAfter(Timestamp(time)))?;
            let expected = self.model.first_at_or_after(time);
            ensure!(found == expected, "first at or after {time}: {found:?}, expected {expected:?}");
        }
        for epoch in 0..=self.epoch.0 {
            let epoch = LeaderEpoch(epoch);
            if let Some(expected) = self.model.epoch_end(epoch) {
                let found = self.log().epoch_end(epoch);
                ensure!(found == (epoch, expected), "epoch {epoch} ends at {found:?}, expected {expected}");
            }
        }
        Ok(())
    }

    fn offset_for(&mut self, target: TimestampTarget) -> Result<Option<(i64, i64)>, String> {
        let found = match self.log().offset_for(target) {
            OffsetLookup::Ready(found) => found,
            OffsetLookup::NeedsDisk(job) => {
                let (found, learnt) = job.look();
                learnt.into_iter().for_each(|youngest| self.log().learn(youngest));
                found.map_err(text)?
            }
        };
        Ok(found.map(|found| (found.offset.0, found.timestamp.0)))
    }

    /// The last batch of each producer, once more: nothing must be written twice.
    fn send_again(&mut self) -> Result<(), String> {
        for id in 0..PRODUCERS {
            let Some(last) = self.model.last_of(ProducerId(id)) else { continue };
            if last.first < self.model.start {
                continue;
            }
            let (first, mut batches) = (last.first, vec![last.sent.clone()]);
            let (epoch, now) = (self.epoch, self.site.now());
            let results = self.log().append(&mut batches, epoch, Origin::Client, now);
            match &results[..] {
                [Ok(appended)] if appended.duplicate && appended.first.0 == first => {}
                other => return Err(format!("producer {id} sent {first} again and got {other:?}")),
            }
        }
        Ok(())
    }
}

/// A bug of the driver's, not of the log's: the simulation must find it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// The checkpoint file is ahead of what the log says.
    RecoveryPointAhead,
    /// Records are taken for durable before a sync of them has succeeded.
    AcknowledgedEarly,
    /// An outcome of a flush is given to the log that the flush did not have.
    FlushNotRun,
}

fn simulate(seed: u64, lies: Lies, planted: Planted) -> Result<(), String> {
    let mut world = World::new(seed, lies, planted)?;
    let steps = STEPS_MAX / 8 + world.below(STEPS_MAX * 7 / 8);
    for step in 0..steps {
        world.step().map_err(|failure| format!("step {step}: {failure}"))?;
    }
    world.fetch_all()
}

#[test]
fn log_agrees_with_its_model_through_crashes() {
    run_seeds(2000, |seed| simulate(seed, Lies::default(), Planted::Nothing));
}

#[test]
fn planted_bugs_are_found() {
    let found = |lies, planted| (0..60).any(|seed| simulate(seed, lies, planted).is_err());
    let lies = Lies::default();
    assert!(found(Lies { sync_data: true, ..lies }, Planted::Nothing), "data that was never synced");
    assert!(found(Lies { sync_dir: true, ..lies }, Planted::Nothing), "names that were never synced");
    assert!(found(Lies { truncate: true, ..lies }, Planted::Nothing), "files that were never truncated");
    assert!(found(lies, Planted::RecoveryPointAhead), "a recovery point ahead of the disk");
    assert!(found(lies, Planted::AcknowledgedEarly), "records acknowledged before they are durable");
    assert!(found(lies, Planted::FlushNotRun), "a flush that was never run");
}
