//! What the simulations of a log share: its directory on files that forget, the log with the job that is on its way,
//! its ends and starts, reads, and how failures are told.

use std::path::Path;
use std::sync::Arc;

use kuring::base::clock::{Monotonic, Now, Timestamp};
use kuring::base::random::Random;
use kuring::base::{BrokerId, Offset, PartitionIndex, TopicId, TopicPartition};
use kuring::config::LogConfig;
use kuring::io::FileHandle;
use kuring::io::mem::{Crash, Lies, MemFiles};
use kuring::log::{
    Checkpoint, Found, Job, Log, LogContext, LogDir, OpenOptions, Outcome, Read, ReadError, ReadPlan,
    ReadRequest,
};

/// Fails the step.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

/// A job on its way: made, run, finished in separate steps, with anything between them.
pub enum InFlight<T, U> {
    Made(T),
    Run(U),
}

pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// One log and what is done to it from outside, in an order that the seed decides.
pub struct Site {
    pub random: Random,
    pub files: MemFiles,
    home: Home,
    log: Option<Log<MemFiles>>,
    job: Option<InFlight<Job<MemFiles>, Outcome<MemFiles>>>,
    /// Milliseconds.
    pub time: i64,
}

impl Site {
    /// With an empty log; `config` may be made by chance.
    pub fn new(seed: u64, lies: Lies, config: impl FnOnce(&mut Random) -> LogConfig) -> Result<Self, String> {
        let mut random = Random::seeded(seed);
        let files = MemFiles::new(random.next_u64());
        files.set_lies(lies);
        let config = config(&mut random);
        let home = Home::new(&files, config)?;
        let mut site = Self { random, files, home, log: None, job: None, time: 1_000_000 };
        site.open()?;
        Ok(site)
    }

    pub fn now(&self) -> Now {
        Now { monotonic: Monotonic::from_millis(self.time as u64), wall: Timestamp(self.time) }
    }

    pub fn log(&mut self) -> &mut Log<MemFiles> {
        self.log.as_mut().expect("every step leaves an open log")
    }

    /// Makes, runs or finishes the upkeep job.
    pub fn advance_job(&mut self) -> Result<(), String> {
        let now = self.now();
        self.job = match self.job.take() {
            None => self.log().next_job(now).map(InFlight::Made),
            Some(InFlight::Made(job)) => Some(InFlight::Run(job.run())),
            Some(InFlight::Run(outcome)) => {
                self.log().finish(outcome, now).map_err(text)?;
                None
            }
        };
        Ok(())
    }

    pub fn finish_job(&mut self) -> Result<(), String> {
        while self.job.is_some() {
            self.advance_job()?;
        }
        Ok(())
    }

    /// Writes the checkpoint files; `recovery_point` is to be the log's.
    pub fn write_checkpoints(&mut self, recovery_point: Offset) -> Result<(), String> {
        let (start, cleaned) = (self.log().log_start(), self.log().cleaned());
        self.home.write_checkpoint(Checkpoint::RecoveryPoint, recovery_point)?;
        self.home.write_checkpoint(Checkpoint::LogStart, start)?;
        match cleaned {
            Some(cleaned) => self.home.write_checkpoint(Checkpoint::Cleaner, cleaned),
            None => Ok(()),
        }
    }

    /// Says that the log was closed and its checkpoints were written, and starts again, perhaps after the power went.
    pub fn start_after_clean_stop(&mut self) -> Result<(), String> {
        self.home.mark_clean_shutdown()?;
        if self.random.below(2) == 0 {
            self.files.crash(Crash::Machine);
        }
        let (start, end) = (self.log().log_start(), self.log().log_end());
        self.open()?;
        let now = (self.log().log_start(), self.log().log_end());
        ensure!(
            now == (start, end),
            "a clean start moved the log from {start}..{end} to {}..{}",
            now.0,
            now.1
        );
        Ok(())
    }

    /// The log is gone and opened again; the recovery point that was found.
    pub fn crash(&mut self, crash: Crash) -> Result<Offset, String> {
        (self.job, self.log) = (None, None);
        self.files.crash(crash);
        self.open()
    }

    fn open(&mut self) -> Result<Offset, String> {
        let now = self.now();
        let cold = self.random.below(2) * 30;
        self.files.set_cold_percent(cold);
        let (log, recovery_point) = self.home.open(now)?;
        self.log = Some(log);
        Ok(recovery_point)
    }

    /// Where to read; jobs may come in between.
    pub fn plan(&mut self, request: ReadRequest) -> Result<ReadPlan<MemFiles>, String> {
        let mut read = self.log().read(request).map_err(text)?;
        for _ in 0..100 {
            read = match read {
                Read::Plan(plan) => return Ok(plan),
                Read::NeedsDisk(job) => {
                    let outcome = job.run();
                    if self.random.below(10) == 0 && self.job.is_some() {
                        self.advance_job()?;
                    }
                    match self.log().finish_read(outcome) {
                        Ok(read) => read,
                        Err(ReadError::Stale) => self.log().read(request).map_err(text)?,
                        Err(error) => return Err(text(error)),
                    }
                }
            };
        }
        Err(format!("{request:?} finds no plan"))
    }
}

/// The bytes of a plan.
pub fn bytes_of(plan: &ReadPlan<MemFiles>) -> Result<Vec<u8>, String> {
    let Some(range) = &plan.range else { return Ok(Vec::new()) };
    let mut bytes = vec![0; range.length as usize];
    let read = range.file.read_at(&mut bytes, range.position).map_err(text)?;
    ensure!(read == bytes.len(), "{read} bytes of {}", bytes.len());
    Ok(bytes)
}

/// A log directory with one partition.
struct Home {
    context: Arc<LogContext<MemFiles>>,
    config: Arc<LogConfig>,
    topic_partition: TopicPartition,
    dir: LogDir<MemFiles>,
}

impl Home {
    fn new(files: &MemFiles, config: LogConfig) -> Result<Self, String> {
        let topic_partition = TopicPartition::new("sim-topic", PartitionIndex(7));
        let (dir, _) = open_dir(files)?;
        // As the broker does: without a line the gaps of a compacted log would be believed.
        dir.write_checkpoint(Checkpoint::RecoveryPoint, &[(topic_partition.clone(), Offset::ZERO)])
            .map_err(text)?;
        dir.create_partition(&topic_partition, TopicId(uuid::Uuid::from_u128(9))).map_err(text)?;
        let context = Arc::new(LogContext::new(files.clone()));
        Ok(Self { context, config: Arc::new(config), topic_partition, dir })
    }

    /// Opens the log as a start does; also the recovery point that was found.
    fn open(&mut self, now: Now) -> Result<(Log<MemFiles>, Offset), String> {
        let (dir, found) = open_dir(&self.context.files)?;
        let partition = found.partitions.into_iter().next().ok_or("the partition's directory is lost")?;
        let recovery_point = partition.recovery_point;
        let options = OpenOptions {
            dir: partition.dir,
            topic_partition: partition.topic_partition,
            config: Arc::clone(&self.config),
            recovery_point,
            log_start: partition.log_start,
            cleaned: partition.cleaned,
            gaps: partition.gaps,
            clean: found.clean,
        };
        self.dir = dir;
        Ok((Log::open(&self.context, options, now).map_err(text)?, recovery_point))
    }

    fn write_checkpoint(&self, kind: Checkpoint, offset: Offset) -> Result<(), String> {
        self.dir.write_checkpoint(kind, &[(self.topic_partition.clone(), offset)]).map_err(text)
    }

    fn mark_clean_shutdown(&self) -> Result<(), String> {
        self.dir.mark_clean_shutdown(kuring::base::BrokerEpoch(1)).map_err(text)
    }
}

fn open_dir(files: &MemFiles) -> Result<(LogDir<MemFiles>, Found), String> {
    LogDir::open(files.clone(), Path::new("/data"), "sim", BrokerId(1)).map_err(text)
}
