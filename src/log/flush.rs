//! Flushes: fdatasync of what was appended, and what a log knows to be on the disk since.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::Offset;
use crate::base::clock::Now;
use crate::io::{FileHandle, Files, OpenMode};

use super::error::{Context, SYNC};
use super::names::{self, FileKind};
use super::segment::Segment;
use super::{Log, LogContext, LogError, SegmentFile};

/// After so many flushed bytes the recovery point follows, asked or not: bounds what recovery reads.
const CHECKPOINT_BYTES: u64 = 32 << 20;

impl<F: Files> Log<F> {
    /// *Shard.* Whether `flush.messages` or `flush.ms` asks for a flush.
    pub fn flush_due(&self, now: Now) -> bool {
        let unflushed = self.log_end().0 - self.flushed.0;
        unflushed > 0
            && (unflushed >= self.config.flush_messages
                || now.monotonic.since(self.flushed_at).as_millis() >= self.config.flush_ms.max(0) as u128)
    }

    /// *Shard.* A flush up to the log's end; `None` when all is flushed.
    pub fn flush_job(&self) -> Option<FlushJob<F>> {
        if self.flushed >= self.log_end() || self.offline {
            return None;
        }
        let sync_dir = self.upkeep.names_unsynced();
        Some(FlushJob {
            context: Arc::clone(&self.context),
            dir: self.dir.clone(),
            files: self.unflushed_files(),
            closed: self.unflushed_closed(),
            sync_dir,
            outcome: FlushOutcome {
                up_to: self.log_end(),
                appended_bytes: self.appended_bytes,
                names_changed: if sync_dir { self.upkeep.names_changed() } else { 0 },
                generation: self.generation,
                error: None,
            },
        })
    }

    /// *Shard.* Takes the outcome of a flush: the offset below which all is on the disk. After a failed sync the log
    /// is offline: it is never repeated. What came to no sync, for want of a descriptor, may be done again.
    pub fn finish_flush(&mut self, outcome: FlushOutcome, now: Now) -> Result<Offset, LogError> {
        if let Some(error) = outcome.error {
            if error.fault().passes() {
                self.note_refusal(&error);
                return Ok(self.flushed);
            }
            self.take_offline(&error);
            return Err(error);
        }
        if outcome.generation == self.generation {
            self.upkeep.mark_names_synced(outcome.names_changed);
            self.mark_flushed(outcome.up_to, outcome.appended_bytes, now);
            if self.flushed_bytes - self.upkeep.checkpoint_bytes() >= CHECKPOINT_BYTES {
                self.request_checkpoint();
            }
        }
        Ok(self.flushed)
    }

    /// *Shard.* What starts the write-back of all that is not flushed. It changes nothing in the log.
    pub fn write_back_job(&self) -> WriteBackJob<F> {
        WriteBackJob { files: self.unflushed_files() }
    }

    fn unflushed_segments(&self) -> impl Iterator<Item = &Segment<F>> {
        self.segments.range(self.segment_of(self.flushed)..)
    }

    pub(super) fn unflushed_files(&self) -> Vec<Arc<SegmentFile<F>>> {
        self.unflushed_segments().filter_map(|segment| segment.file.clone()).collect()
    }

    /// Segments with unflushed records whose file is not open: only after recovery.
    pub(super) fn unflushed_closed(&self) -> Vec<PathBuf> {
        let closed = self.unflushed_segments().filter(|segment| segment.file.is_none());
        closed.map(|segment| names::file(&self.dir, segment.base, FileKind::Log)).collect()
    }

    pub(super) fn mark_flushed(&mut self, up_to: Offset, appended_bytes: u64, now: Now) {
        self.flushed = self.flushed.max(up_to);
        self.flushed_bytes = self.flushed_bytes.max(appended_bytes);
        self.flushed_at = now.monotonic;
    }
}

/// Has the system write what a log has dirty, so that a later flush finds little left to do.
pub struct WriteBackJob<F: Files> {
    files: Vec<Arc<SegmentFile<F>>>,
}

impl<F: Files> WriteBackJob<F> {
    /// *File thread.* An error is the next flush's as well, which takes the log offline for it.
    pub fn run(self) -> std::io::Result<()> {
        self.files.iter().try_for_each(|file| file.begin_write_back())
    }
}

/// Makes everything up to the log's end durable.
pub struct FlushJob<F: Files> {
    context: Arc<LogContext<F>>,
    dir: PathBuf,
    files: Vec<Arc<SegmentFile<F>>>,
    closed: Vec<PathBuf>,
    sync_dir: bool,
    outcome: FlushOutcome,
}

/// What became of a flush.
#[derive(Debug)]
pub struct FlushOutcome {
    up_to: Offset,
    appended_bytes: u64,
    names_changed: u64,
    generation: u64,
    error: Option<LogError>,
}

impl FlushOutcome {
    /// It came to no sync, for want of a descriptor: to be done again later.
    pub fn is_refused(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.fault().passes())
    }
}

impl<F: Files> FlushJob<F> {
    /// The files that are synced.
    pub fn files(&self) -> &[Arc<SegmentFile<F>>] {
        &self.files
    }

    /// All records below it are durable after a flush.
    pub fn up_to(&self) -> Offset {
        self.outcome.up_to
    }

    /// *File thread.* fdatasync of each file, and the directory if a name in it is new.
    pub fn run(self) -> FlushOutcome {
        let error = self.sync().err();
        FlushOutcome { error, ..self.outcome }
    }

    /// A sync of the whole file system that began after this job was made has done it.
    pub fn synced_otherwise(self) -> FlushOutcome {
        self.outcome
    }

    fn sync(&self) -> Result<(), LogError> {
        sync_segments(&self.context.files, &self.dir, &self.files, &self.closed)?;
        if self.sync_dir {
            self.context.files.sync_dir(&self.dir).context(SYNC, &self.dir)?;
        }
        Ok(())
    }
}

/// fdatasync of segments, by descriptor or by path.
pub(super) fn sync_segments<F: Files>(
    files: &F,
    dir: &Path,
    open: &[Arc<SegmentFile<F>>],
    closed: &[PathBuf],
) -> Result<(), LogError> {
    for file in open {
        file.sync_data().context("sync a segment of", dir)?;
    }
    for path in closed {
        let file = files.open(path, OpenMode::Write).context("open", path)?;
        file.sync_data().context(SYNC, path)?;
    }
    Ok(())
}
