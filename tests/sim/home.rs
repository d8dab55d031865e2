//! What the simulations of a log share: its directory on files that forget, and how failures are told.

use std::path::Path;
use std::sync::Arc;

use kuring::base::clock::Now;
use kuring::base::{BrokerId, Offset, PartitionIndex, TopicId, TopicPartition};
use kuring::config::LogConfig;
use kuring::io::mem::MemFiles;
use kuring::log::{Checkpoint, Found, Log, LogContext, LogDir, OpenOptions};

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

/// A log directory with one partition.
pub struct Home {
    context: Arc<LogContext<MemFiles>>,
    config: Arc<LogConfig>,
    topic_partition: TopicPartition,
    dir: LogDir<MemFiles>,
}

impl Home {
    pub fn new(files: &MemFiles, config: LogConfig) -> Result<Self, String> {
        let topic_partition = TopicPartition::new("sim-topic", PartitionIndex(7));
        let (dir, _) = open_dir(files)?;
        dir.create_partition(&topic_partition, TopicId(uuid::Uuid::from_u128(9))).map_err(text)?;
        let context = Arc::new(LogContext::new(files.clone()));
        Ok(Self { context, config: Arc::new(config), topic_partition, dir })
    }

    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Opens the log as a start does; also the recovery point that was found.
    pub fn open(&mut self, now: Now) -> Result<(Log<MemFiles>, Offset), String> {
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

    pub fn write_checkpoint(&self, kind: Checkpoint, offset: Offset) -> Result<(), String> {
        self.dir.write_checkpoint(kind, &[(self.topic_partition.clone(), offset)]).map_err(text)
    }

    pub fn mark_clean_shutdown(&self) -> Result<(), String> {
        self.dir.mark_clean_shutdown(kuring::base::BrokerEpoch(1)).map_err(text)
    }
}

fn open_dir(files: &MemFiles) -> Result<(LogDir<MemFiles>, Found), String> {
    LogDir::open(files.clone(), Path::new("/data"), "sim", BrokerId(1)).map_err(text)
}
