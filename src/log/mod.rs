//! The log of one partition: Kafka's files, byte for byte.
//!
//! A [`Log`] belongs to one shard at a time. It is blocking code that knows no executor; the driver decides which
//! thread runs what. Methods marked *shard* touch memory and the page cache only: append, read plans, offsets.
//! Whatever can wait for the disk comes out as a job that a file thread runs: [`Log::next_job`] for the log's
//! own upkeep (at most one at a time), [`PrepareJob`], [`FlushJob`], [`ReadJob`], [`TimeJob`]. The few calls marked *file
//! thread* (open, close, truncate) take the whole log there. It never spawns, sleeps or reads a clock.

mod append;
mod checkpoint;
mod clean;
mod dir;
mod epochs;
mod error;
mod flush;
mod follow;
mod future_dir;
mod index;
mod index_write;
mod jobs;
mod names;
mod offsets;
mod preallocation;
mod prepare;
mod producers;
mod read;
mod recovery;
mod reindex;
mod replay;
mod reserve;
mod retention;
mod scan;
mod scrub;
mod segment;
mod snapshot;
mod tidy;
mod truncate;
mod txn_index;
mod verification;

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::base::clock::{Monotonic, Now};
use crate::base::{LeaderEpoch, Offset, ProducerId, TopicPartition};
use crate::config::LogConfig;
use crate::io::Files;
use crate::wire::ErrorCode;

pub use append::{Appended, Batch};
pub use checkpoint::CheckpointError;
pub use clean::{
    Clean, CleanError, CleanFigures, CleanSettings, CleanStep, Cleanable, Cleaned, FirstTimestampJob,
};
pub use dir::{
    Checkpoint, DirError, DirLock, DirectoryId, Found, FoundPartition, LogDir, MetaProperties, Moved,
};
pub use epochs::EpochStart;
pub use error::{Fault, LogError, ReadError};
pub use flush::{FlushJob, FlushOutcome, WriteBackJob};
pub use jobs::{Job, Outcome};
pub use offsets::{OffsetLookup, TimeJob, TimestampTarget, YoungestLeft};
pub use preallocation::Preallocation;
pub use prepare::{Followable, PrepareJob, PrepareOutcome};
pub use producers::{Origin, ProducerDescription};
pub use read::{Read, ReadJob, ReadOutcome, ReadPlan, ReadRequest};
pub use recovery::{Gaps, OpenError, OpenOptions};
pub use reserve::Reserve;
pub use scrub::{ScrubFinding, ScrubJob, ScrubOutcome, ScrubPosition, Scrubbed};
pub use segment::{FileRange, OffsetMetadata, SegmentFile, TimestampOffset};
pub use txn_index::AbortedTransaction;
pub use verification::{Claim, Guard, Query as VerificationQuery};

use epochs::Epochs;
use jobs::Upkeep;
use producers::Producers;
use read::{Recent, Window};
use segment::Segment;

/// What all logs of a log directory share.
pub struct LogContext<F: Files> {
    pub files: F,
    /// The number of the log directory: whom an error of a file is told about.
    pub directory: usize,
    /// Shared by all directories.
    pub preallocation: Arc<Preallocation>,
    /// Set when the process is to end: recovery gives up.
    pub stop: Arc<AtomicBool>,
    /// Closes a file: the last close of a large unlinked file takes long, so production posts it to the file threads.
    pub dispose: Box<dyn Fn(F::File) + Send + Sync>,
    /// `producer.id.expiration.ms`
    pub producer_id_expiration_ms: i64,
}

impl<F: Files> LogContext<F> {
    /// Closes files in place and has Kafka's default expiration.
    pub fn new(files: F) -> Self {
        Self {
            files,
            directory: 0,
            preallocation: Preallocation::new(1 << 30),
            stop: Arc::default(),
            dispose: Box::new(drop),
            producer_id_expiration_ms: 24 * 60 * 60 * 1000,
        }
    }
}

/// Counts of what should be rare.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LogCounts {
    pub rolls: u64,
    /// Rolls that had to create their file on the append path.
    pub rolls_unprepared: u64,
    /// Appends that had to open the active file.
    pub reopened: u64,
    /// Spare files or preallocations that did not succeed.
    pub preparations_failed: u64,
    /// Reads that had to go to a file thread.
    pub cold_reads: u64,
    /// Segments whose offset index was found to lead astray while it was used.
    pub indexes_damaged: u64,
    /// Writes and jobs that a full disk refused.
    pub refused_for_space: u64,
}

/// The log of one partition.
pub struct Log<F: Files> {
    context: Arc<LogContext<F>>,
    dir: PathBuf,
    topic_partition: TopicPartition,
    config: Arc<LogConfig>,
    /// In ascending order, never empty; appends go to the last, the active one.
    segments: VecDeque<Segment<F>>,
    log_start: Offset,
    /// All records below are on the disk.
    flushed: Offset,
    recovery_point: Offset,
    /// Where the log ended when it was opened with [`Gaps::Anywhere`].
    unsaved_below: Offset,
    flushed_at: Monotonic,
    /// Bytes appended since it was opened, and how many of them are on the disk.
    appended_bytes: u64,
    flushed_bytes: u64,
    epochs: Epochs,
    producers: Producers,
    /// Offsets of the producer snapshots that are on the disk, ascending.
    snapshots: Vec<Offset>,
    /// Where the latest batches lie.
    recent: VecDeque<Recent>,
    /// Rows of old index files that recent reads used.
    windows: VecDeque<Window>,
    /// Truncations so far: what was planned before one is stale after it.
    generation: u64,
    /// Exchanges of segments by compaction so far: positions from before one are stale after it.
    layout: u64,
    /// What compaction has cleaned.
    cleaned: Option<Offset>,
    youngest_left: Option<YoungestLeft>,
    /// A write, sync or rename failed: nothing more is written.
    offline: bool,
    /// The disk was full since it was last asked.
    met_full_disk: bool,
    upkeep: Upkeep<F>,
    counts: LogCounts,
}

impl<F: Files> Log<F> {
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.topic_partition
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn config(&self) -> &Arc<LogConfig> {
        &self.config
    }

    /// *Shard.* The settings from now on; segments that exist keep their size.
    pub fn set_config(&mut self, config: Arc<LogConfig>) {
        self.config = config;
    }

    /// The first offset that clients may read.
    pub fn log_start(&self) -> Offset {
        self.log_start
    }

    /// The offset that the next record gets.
    pub fn log_end(&self) -> Offset {
        self.active().next
    }

    /// Everything below is on the disk.
    pub fn flushed(&self) -> Offset {
        self.flushed
    }

    /// Where recovery would have to begin.
    pub fn recovery_point(&self) -> Offset {
        self.recovery_point
    }

    /// What `recovery-point-offset-checkpoint` is to say. Write it after a truncation and after opening, before the
    /// next append. `None`: it must not have a line of the log, whose gaps would be losses above it
    /// ([`Gaps::Anywhere`]).
    pub fn recovery_point_to_save(&self) -> Option<Offset> {
        let is_known = self.recovery_point >= self.unsaved_below.min(self.log_end());
        is_known.then_some(self.recovery_point)
    }

    pub fn end_metadata(&self) -> OffsetMetadata {
        let active = self.active();
        OffsetMetadata { offset: active.next, segment: active.base, position: active.size }
    }

    /// Bytes of all segments.
    pub fn size(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.size)).sum()
    }

    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Bytes appended and not yet on the disk, as far as this process knows.
    pub fn unflushed_bytes(&self) -> u64 {
        self.appended_bytes - self.flushed_bytes
    }

    /// A write, sync or rename failed; appends and reads answer KAFKA_STORAGE_ERROR.
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// Whether a write or a job has met a full disk since the last call.
    pub fn take_met_full_disk(&mut self) -> bool {
        std::mem::take(&mut self.met_full_disk)
    }

    pub fn counts(&self) -> LogCounts {
        self.counts
    }

    /// *Shard.* The largest known epoch ≤ `epoch` and the offset after its last record; (-1, -1): not known.
    pub fn epoch_end(&self, epoch: LeaderEpoch) -> (LeaderEpoch, Offset) {
        self.epochs.end_of(epoch, self.log_end())
    }

    /// The newest epoch that has a record or was begun.
    pub fn latest_epoch(&self) -> Option<LeaderEpoch> {
        self.epochs.latest()
    }

    /// The epoch that wrote the record at `offset`.
    pub fn epoch_of(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.epochs.at(offset)
    }

    pub fn epochs(&self) -> &[EpochStart] {
        self.epochs.starts()
    }

    /// *Shard.* This broker leads from here on: the epoch starts at the log's end.
    pub fn begin_epoch(&mut self, epoch: LeaderEpoch) {
        let end = self.log_end();
        self.epochs.begin(epoch, end);
    }

    /// *Shard.* This broker leads no more: an epoch that it began and wrote nothing in is none of this log's.
    pub fn forget_begun_epoch(&mut self) {
        let end = self.log_end();
        self.epochs.forget_begun(end);
    }

    /// *Shard.* Transactions that ended below the high watermark no longer hold the last stable offset.
    pub fn high_watermark_advanced(&mut self, high_watermark: Offset) {
        self.producers.high_watermark_advanced(high_watermark);
    }

    /// The first record of an open, or ended but not replicated, transaction: the last stable offset is at most this.
    pub fn first_unstable(&self) -> Option<Offset> {
        self.producers.first_unstable().map(|first| first.max(self.log_start))
    }

    /// How many producers it knows of.
    pub fn producer_count(&self) -> usize {
        self.producers.len()
    }

    /// DescribeProducers.
    pub fn producers(&self) -> impl Iterator<Item = ProducerDescription> {
        self.producers.descriptions()
    }

    /// *Shard.* Before a transactional batch is written: `None` if the producer's transaction is under way here,
    /// else the guard to append with once the coordinator has the partition in the transaction.
    pub fn begin_verification(
        &mut self,
        query: VerificationQuery,
        now: Now,
    ) -> Result<Option<Guard>, ErrorCode> {
        self.producers.begin_verification(query, now.wall)
    }

    /// *Shard.* The coordinator does not have the partition in the transaction; `is_final` unless the producer is to
    /// ask for the same again.
    pub fn refuse_verification(&mut self, id: ProducerId, guard: Guard, is_final: bool) {
        self.producers.refuse_verification(id, guard, is_final);
    }

    /// *Shard.* A sweep: forgets producers that wrote nothing for `producer.id.expiration.ms`.
    pub fn expire_producers(&mut self, now: Now) {
        self.producers.expire(now.wall, self.context.producer_id_expiration_ms);
    }

    /// *Shard.* DeleteRecords: the log starts at `offset` now, which the caller has checked against the high
    /// watermark. Segments that lie before it go at the next [`Log::enforce_retention`].
    pub fn advance_log_start(&mut self, offset: Offset) -> Result<Offset, ErrorCode> {
        if offset > self.log_end() {
            return Err(ErrorCode::OffsetOutOfRange);
        }
        if offset > self.log_start {
            self.log_start = offset;
            self.epochs.truncate_start(offset);
        }
        Ok(self.log_start)
    }

    fn active(&self) -> &Segment<F> {
        self.segments.back().expect("a log has a segment at all times")
    }

    fn active_mut(&mut self) -> &mut Segment<F> {
        self.segments.back_mut().expect("a log has a segment at all times")
    }

    /// The number of the segment that holds `offset`, or the first.
    fn segment_of(&self, offset: Offset) -> usize {
        self.segments.partition_point(|segment| segment.base <= offset).saturating_sub(1)
    }

    /// A write or a job was refused by the disk, and nothing is lost.
    fn note_refusal(&mut self, error: &LogError) {
        tracing::warn!(partition = %self.topic_partition, %error, "refused");
        if error.fault() == Fault::NoSpace {
            self.met_full_disk = true;
            self.counts.refused_for_space += 1;
        }
    }

    fn take_offline(&mut self, error: &LogError) {
        if !self.offline {
            tracing::error!(partition = %self.topic_partition, %error, "log taken offline");
            self.offline = true;
        }
    }
}
