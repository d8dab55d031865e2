//! What a log has file threads do: the slow part of a roll, spare files and preallocation, checkpoints, the
//! deletion of old segments, and flushes.
//!
//! Jobs own what they need and share open files only; a log keeps at most one upkeep job in flight, so no two of
//! them touch the same index or name.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::base::Offset;
use crate::base::clock::{Monotonic, Now};
use crate::io::{FileHandle, Files, OpenMode};

use super::clean::{Swap, Swapped};
use super::error::Context;
use super::index::{Pending, Table};
use super::names::{self, FileKind};
use super::segment::{Rows, Segment};
use super::{Log, LogContext, LogError, SegmentFile, checkpoint, snapshot};

/// Disk blocks are reserved in such steps.
const PREALLOCATE_BYTES: u64 = 64 << 20;

/// A segment that took so much since it was opened is hot: worth reserving blocks for.
const HOT_BYTES: u64 = 16 << 20;

/// After so many flushed bytes the recovery point follows, asked or not: bounds what recovery reads.
const CHECKPOINT_BYTES: u64 = 32 << 20;

/// What is to be done for a log.
pub(super) struct Upkeep<F: Files> {
    in_flight: bool,
    /// Renames after compaction.
    pub swaps: VecDeque<Swap>,
    /// One of them is out.
    swap_in_flight: bool,
    rolled: VecDeque<Rolled>,
    /// A file for the next segment under a temporary name.
    pub spare: Option<Spare<F>>,
    /// One was asked for since the last roll; a full disk is not asked twice.
    spare_tried: bool,
    preallocate_tried: bool,
    /// Blocks of the active segment are reserved up to here.
    preallocated: u64,
    /// The log's count of appended bytes when the active segment began.
    segment_began: u64,
    checkpoint_wanted: bool,
    /// The log's count of appended bytes at the last checkpoint or roll.
    checkpoint_bytes: u64,
    /// Base offsets of segments whose files are to be renamed.
    pub doomed: Vec<Offset>,
    unlinks: VecDeque<Unlink>,
    /// Retention waits for a spare file to roll into; the high watermark it was told.
    pub retention_waits: Option<Offset>,
    /// Counts files created without a sync of the directory, and how many of those were synced since.
    names_changed: u64,
    names_synced: u64,
}

pub(super) struct Spare<F: Files> {
    pub path: PathBuf,
    pub file: Arc<SegmentFile<F>>,
}

/// A roll whose slow part is due.
pub(super) struct Rolled {
    pub old: Offset,
    pub new: Offset,
    /// The new segment's file has this name still.
    pub spare: Option<PathBuf>,
    /// Producer state at `new`.
    pub snapshot: Vec<u8>,
    pub appended_bytes: u64,
}

struct Unlink {
    due: Monotonic,
    paths: Vec<PathBuf>,
}

impl<F: Files> Upkeep<F> {
    /// `names_synced`: the names of all files that are there are known to be on the disk.
    pub fn new(names_synced: bool) -> Self {
        Self {
            in_flight: false,
            swaps: VecDeque::new(),
            swap_in_flight: false,
            rolled: VecDeque::new(),
            spare: None,
            spare_tried: false,
            preallocate_tried: false,
            preallocated: 0,
            segment_began: 0,
            checkpoint_wanted: false,
            checkpoint_bytes: 0,
            doomed: Vec::new(),
            unlinks: VecDeque::new(),
            retention_waits: None,
            names_changed: u64::from(!names_synced),
            names_synced: 0,
        }
    }

    pub fn segment_rolled(&mut self, rolled: Rolled, appended_bytes: u64) {
        self.names_changed += u64::from(rolled.spare.is_none());
        self.rolled.push_back(rolled);
        self.preallocated = 0;
        self.spare_tried = false;
        self.preallocate_tried = false;
        self.segment_began = appended_bytes;
    }

    /// Retention rolls when there is a spare file.
    pub fn wait_for_spare(&mut self, high_watermark: Offset) {
        self.retention_waits = Some(high_watermark);
        self.spare_tried = false;
    }

    pub fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    pub fn has_swaps(&self) -> bool {
        self.swap_in_flight || !self.swaps.is_empty()
    }

    /// A file was created and the directory not synced since.
    pub fn names_unsynced(&self) -> bool {
        self.names_synced < self.names_changed
    }

    /// Files that wait to be removed.
    pub fn take_unlinks(&mut self) -> Vec<PathBuf> {
        self.unlinks.drain(..).flat_map(|unlink| unlink.paths).collect()
    }

    /// The active segment is another one now, or shorter.
    pub fn truncated(&mut self, appended_bytes: u64) {
        self.preallocated = 0;
        self.spare_tried = false;
        self.preallocate_tried = false;
        self.segment_began = appended_bytes;
    }

    /// No job is out and none is due but unlinks.
    pub fn is_idle(&self) -> bool {
        !self.in_flight && self.rolled.is_empty() && self.doomed.is_empty() && self.swaps.is_empty()
    }
}

/// A job of a log's upkeep.
pub struct Job<F: Files> {
    context: Arc<LogContext<F>>,
    dir: PathBuf,
    names_changed: u64,
    task: Task<F>,
}

enum Task<F: Files> {
    Roll { rolled: Rolled, old: Option<Box<IndexWrite<F>>>, epochs: Option<EpochWrite> },
    Checkpoint(Box<Checkpoint<F>>),
    Spare { path: PathBuf },
    Preallocate { base: Offset, file: Arc<SegmentFile<F>>, position: u64 },
    Delete { bases: Vec<Offset> },
    Unlink { paths: Vec<PathBuf> },
    Swap(Swap),
}

struct Checkpoint<F: Files> {
    files: Vec<Arc<SegmentFile<F>>>,
    /// Those of the segments whose file is not open.
    closed: Vec<PathBuf>,
    active: IndexWrite<F>,
    up_to: Offset,
    appended_bytes: u64,
    snapshot: Option<Vec<u8>>,
    stale_snapshots: Vec<Offset>,
    epochs: Option<EpochWrite>,
}

/// The contents of `leader-epoch-checkpoint`.
pub(super) struct EpochWrite {
    pub text: String,
    pub version: u64,
}

/// Rows for the index files of a segment.
pub(super) struct IndexWrite<F: Files> {
    base: Offset,
    file: Option<Arc<SegmentFile<F>>>,
    size: u32,
    index: Pending,
    times: Pending,
    /// `None`: the segment has no transaction index.
    aborted: Option<Pending>,
}

/// What became of a job.
pub struct Outcome<F: Files> {
    names_changed: u64,
    done: Result<Done<F>, LogError>,
}

enum Done<F: Files> {
    Rolled { rolled: Rolled, rows: Option<Rows>, epochs: Option<u64> },
    Checkpoint(Box<Checkpoint<F>>),
    Spare(Result<Spare<F>, LogError>),
    Preallocated { base: Offset, up_to: Result<u64, LogError> },
    Deleted { paths: Vec<PathBuf> },
    Unlinked,
    Swapped(Swapped),
}

impl<F: Files> Log<F> {
    /// *Shard.* Whether [`Log::next_job`] has something: a few comparisons.
    pub fn has_job(&self, now: Now) -> bool {
        let upkeep = &self.upkeep;
        if upkeep.in_flight || self.offline {
            return false;
        }
        !upkeep.rolled.is_empty()
            || !upkeep.swaps.is_empty()
            || !upkeep.doomed.is_empty()
            || upkeep.checkpoint_wanted
            || self.wants_spare()
            || self.wants_preallocation()
            || upkeep.unlinks.front().is_some_and(|unlink| unlink.due <= now.monotonic)
    }

    /// *Shard.* The next piece of work for a file thread; `None` while one is out or when there is none.
    pub fn next_job(&mut self, now: Now) -> Option<Job<F>> {
        if self.upkeep.in_flight || self.offline {
            return None;
        }
        let task = self.next_task(now)?;
        self.upkeep.in_flight = true;
        let (context, dir) = (Arc::clone(&self.context), self.dir.clone());
        Some(Job { context, dir, names_changed: self.upkeep.names_changed, task })
    }

    fn next_task(&mut self, now: Now) -> Option<Task<F>> {
        if let Some(rolled) = self.upkeep.rolled.pop_front() {
            let old = self.segments.iter().find(|segment| segment.base == rolled.old);
            let old = old.map(|segment| Box::new(IndexWrite::of(segment)));
            return Some(Task::Roll { rolled, old, epochs: self.epoch_write() });
        }
        // Before deletions: retention may have taken a segment whose files do not have their names yet.
        if let Some(swap) = self.upkeep.swaps.pop_front() {
            self.upkeep.swap_in_flight = true;
            return Some(Task::Swap(swap));
        }
        if !self.upkeep.doomed.is_empty() {
            return Some(Task::Delete { bases: std::mem::take(&mut self.upkeep.doomed) });
        }
        if std::mem::take(&mut self.upkeep.checkpoint_wanted) {
            return Some(Task::Checkpoint(Box::new(self.checkpoint())));
        }
        if self.wants_spare() {
            self.upkeep.spare_tried = true;
            return Some(Task::Spare { path: names::file(&self.dir, self.active().base, FileKind::Spare) });
        }
        if self.wants_preallocation() {
            self.upkeep.preallocate_tried = true;
            let position = self.upkeep.preallocated.max(u64::from(self.active().size));
            let file = Arc::clone(self.active().file.as_ref()?);
            return Some(Task::Preallocate { base: self.active().base, file, position });
        }
        let due = self.upkeep.unlinks.front().is_some_and(|unlink| unlink.due <= now.monotonic);
        let unlink = if due { self.upkeep.unlinks.pop_front() } else { None };
        unlink.map(|unlink| Task::Unlink { paths: unlink.paths })
    }

    /// *Shard.* Takes the outcome of a job. An error means that the directory is to be taken offline.
    pub fn finish(&mut self, outcome: Outcome<F>, now: Now) -> Result<(), LogError> {
        self.upkeep.in_flight = false;
        self.upkeep.swap_in_flight = false;
        let done = outcome.done.inspect_err(|error| self.take_offline(error))?;
        match done {
            Done::Rolled { rolled, rows, epochs } => {
                if let Some(rows) = rows {
                    self.mark_written(rolled.old, rows, true);
                }
                self.snapshots_add(rolled.new);
                epochs.into_iter().for_each(|version| self.epochs.mark_written(version));
                self.upkeep.names_synced = self.upkeep.names_synced.max(outcome.names_changed);
                if self.flushed >= rolled.old || rows.is_none() {
                    self.mark_flushed(rolled.new, rolled.appended_bytes, now);
                    self.upkeep.checkpoint_bytes = rolled.appended_bytes;
                    self.recovery_point = self.recovery_point.max(rolled.new);
                }
            }
            Done::Checkpoint(checkpoint) => {
                self.mark_written(checkpoint.active.base, checkpoint.active.rows(), false);
                if let Some(epochs) = &checkpoint.epochs {
                    self.epochs.mark_written(epochs.version);
                }
                self.snapshots.retain(|offset| !checkpoint.stale_snapshots.contains(offset));
                if checkpoint.snapshot.is_some() {
                    self.snapshots_add(checkpoint.up_to);
                }
                self.upkeep.names_synced = self.upkeep.names_synced.max(outcome.names_changed);
                self.mark_flushed(checkpoint.up_to, checkpoint.appended_bytes, now);
                self.upkeep.checkpoint_bytes = checkpoint.appended_bytes;
                self.recovery_point = self.recovery_point.max(checkpoint.up_to);
            }
            Done::Spare(Ok(spare)) => {
                self.upkeep.spare = Some(spare);
                if let Some(high_watermark) = self.upkeep.retention_waits.take() {
                    self.enforce_retention(high_watermark, now);
                }
            }
            // It may have rolled since.
            Done::Preallocated { base, .. } if base != self.active().base => {}
            Done::Preallocated { up_to: Ok(up_to), .. } => {
                self.upkeep.preallocated = up_to;
                self.upkeep.preallocate_tried = false;
            }
            Done::Spare(Err(error)) | Done::Preallocated { up_to: Err(error), .. } => {
                // Only slower without it: the roll creates its file itself.
                self.counts.preparations_failed += 1;
                tracing::warn!(partition = %self.topic_partition, %error, "could not prepare for appends");
            }
            Done::Deleted { paths } => self.unlink_later(paths, now),
            Done::Swapped(Swapped { output, paths }) => {
                if let Some(segment) = output.and_then(|base| self.segment_at(base)) {
                    segment.mark_written(segment.unwritten_rows());
                    segment.release_rows();
                }
                self.unlink_later(paths, now);
            }
            Done::Unlinked => {}
        }
        Ok(())
    }

    /// *Shard.* Asks for index, epochs, producer snapshot and data on the disk up to the log's end; when that is
    /// done [`Log::recovery_point`] is there. Nothing to do for a log that did not change.
    pub fn request_checkpoint(&mut self) {
        let changed = self.recovery_point < self.log_end() || self.epochs.is_dirty();
        self.upkeep.checkpoint_wanted |= changed && !self.offline;
    }

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
                names_changed: if sync_dir { self.upkeep.names_changed } else { 0 },
                generation: self.generation,
                error: None,
            },
        })
    }

    /// *Shard.* Takes the outcome of a flush: the offset below which all is on the disk. After an error the log is
    /// offline; a flush is never repeated.
    pub fn finish_flush(&mut self, outcome: FlushOutcome, now: Now) -> Result<Offset, LogError> {
        if let Some(error) = outcome.error {
            self.take_offline(&error);
            return Err(error);
        }
        if outcome.generation == self.generation {
            self.upkeep.names_synced = self.upkeep.names_synced.max(outcome.names_changed);
            self.mark_flushed(outcome.up_to, outcome.appended_bytes, now);
            if self.flushed_bytes - self.upkeep.checkpoint_bytes >= CHECKPOINT_BYTES {
                self.request_checkpoint();
            }
        }
        Ok(self.flushed)
    }

    /// *Shard.* Gives back descriptors and memory of an idle log; the next append or read opens files again.
    pub fn release_files(&mut self) {
        if self.flushed < self.log_end() || !self.upkeep.is_idle() {
            return;
        }
        for segment in &mut self.segments {
            segment.file = None;
            segment.release_rows();
        }
        self.recent = VecDeque::new();
        self.windows = VecDeque::new();
    }

    fn wants_spare(&self) -> bool {
        let upkeep = &self.upkeep;
        let filling = u64::from(self.active().size) * 4 > u64::from(self.config.segment_bytes) * 3
            && self.appended_bytes > upkeep.segment_began;
        upkeep.spare.is_none() && !upkeep.spare_tried && (filling || upkeep.retention_waits.is_some())
    }

    fn wants_preallocation(&self) -> bool {
        let upkeep = &self.upkeep;
        let size = u64::from(self.active().size);
        let hot = self.appended_bytes - upkeep.segment_began >= HOT_BYTES
            || (self.config.preallocate && self.appended_bytes > upkeep.segment_began);
        hot && !upkeep.preallocate_tried
            && self.active().file.is_some()
            && upkeep.preallocated < u64::from(self.config.segment_bytes)
            && size + PREALLOCATE_BYTES / 2 > upkeep.preallocated
    }

    fn checkpoint(&self) -> Checkpoint<F> {
        let up_to = self.log_end();
        let is_base = |offset: &Offset| self.segments.iter().any(|segment| segment.base == *offset);
        // Of the snapshots inside a segment the latest stays: the new one may lie above what a crash leaves.
        let inside: Vec<Offset> = self.snapshots.iter().copied().filter(|offset| !is_base(offset)).collect();
        let stale = inside.len().saturating_sub(1);
        Checkpoint {
            files: self.unflushed_files(),
            closed: self.unflushed_closed(),
            active: IndexWrite::of(self.active()),
            up_to,
            appended_bytes: self.appended_bytes,
            snapshot: (self.snapshots.last() != Some(&up_to)).then(|| snapshot::encode(&self.producers)),
            stale_snapshots: inside[..stale].to_vec(),
            epochs: self.epoch_write(),
        }
    }

    pub(super) fn epoch_write(&self) -> Option<EpochWrite> {
        self.epochs.is_dirty().then(|| EpochWrite {
            text: checkpoint::encode_epochs(self.epochs.starts()),
            version: self.epochs.version(),
        })
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

    fn mark_flushed(&mut self, up_to: Offset, appended_bytes: u64, now: Now) {
        self.flushed = self.flushed.max(up_to);
        self.flushed_bytes = self.flushed_bytes.max(appended_bytes);
        self.flushed_at = now.monotonic;
    }

    fn unlink_later(&mut self, paths: Vec<PathBuf>, now: Now) {
        let delay = Duration::from_millis(self.config.file_delete_delay_ms.max(0) as u64);
        self.upkeep.unlinks.push_back(Unlink { due: now.monotonic.plus(delay), paths });
    }

    fn segment_at(&mut self, base: Offset) -> Option<&mut Segment<F>> {
        self.segments.iter_mut().find(|segment| segment.base == base)
    }

    fn mark_written(&mut self, base: Offset, rows: Rows, release: bool) {
        if let Some(segment) = self.segment_at(base) {
            segment.mark_written(rows);
            if release {
                segment.release_rows();
            }
        }
    }

    fn snapshots_add(&mut self, offset: Offset) {
        if let Err(place) = self.snapshots.binary_search(&offset) {
            self.snapshots.insert(place, offset);
        }
    }
}

impl<F: Files> Job<F> {
    /// *File thread.*
    pub fn run(self) -> Outcome<F> {
        let Job { context, dir, names_changed, task } = self;
        let done = match task {
            Task::Roll { rolled, old, epochs } => finish_roll(&context, &dir, rolled, old, epochs),
            Task::Checkpoint(checkpoint) => {
                run_checkpoint(&context, &dir, &checkpoint).map(|()| Done::Checkpoint(checkpoint))
            }
            Task::Spare { path } => Ok(Done::Spare(create_spare(&context, &dir, path))),
            Task::Preallocate { base, file, position } => {
                let reserved = file.preallocate(position, PREALLOCATE_BYTES).context("preallocate in", &dir);
                Ok(Done::Preallocated { base, up_to: reserved.map(|()| position + PREALLOCATE_BYTES) })
            }
            Task::Delete { bases } => {
                rename_deleted(&context, &dir, &bases).map(|paths| Done::Deleted { paths })
            }
            Task::Swap(swap) => swap.run(&context, &dir).map(Done::Swapped),
            Task::Unlink { paths } => unlink(&context.files, &paths).map(|()| Done::Unlinked),
        };
        Outcome { names_changed, done }
    }
}

fn finish_roll<F: Files>(
    context: &LogContext<F>,
    dir: &Path,
    rolled: Rolled,
    old: Option<Box<IndexWrite<F>>>,
    epochs: Option<EpochWrite>,
) -> Result<Done<F>, LogError> {
    let files = &context.files;
    if let Some(spare) = &rolled.spare {
        let path = names::file(dir, rolled.new, FileKind::Log);
        files.rename(spare, &path).context("rename", spare)?;
    }
    for kind in [FileKind::OffsetIndex, FileKind::TimeIndex] {
        let path = names::file(dir, rolled.new, kind);
        files.open(&path, OpenMode::Create).context("create", &path)?;
    }
    let mut rows = None;
    if let Some(old) = &old {
        old.write(files, dir)?;
        old.cut(files, dir)?;
        rows = Some(old.rows());
    }
    write_snapshot(files, dir, rolled.new, &rolled.snapshot)?;
    let version = write_epochs(files, dir, epochs.as_ref())?;
    files.sync_dir(dir).context("sync", dir)?;
    Ok(Done::Rolled { rolled, rows, epochs: version })
}

fn run_checkpoint<F: Files>(
    context: &LogContext<F>,
    dir: &Path,
    checkpoint: &Checkpoint<F>,
) -> Result<(), LogError> {
    let files = &context.files;
    checkpoint.active.write(files, dir)?;
    sync_segments(files, dir, &checkpoint.files, &checkpoint.closed)?;
    checkpoint.active.sync(files, dir)?;
    if let Some(snapshot) = &checkpoint.snapshot {
        write_snapshot(files, dir, checkpoint.up_to, snapshot)?;
    }
    write_epochs(files, dir, checkpoint.epochs.as_ref())?;
    let stale = checkpoint.stale_snapshots.iter();
    unlink(files, &stale.map(|offset| names::file(dir, *offset, FileKind::Snapshot)).collect::<Vec<_>>())?;
    files.sync_dir(dir).context("sync", dir)
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
        file.sync_data().context("sync", path)?;
    }
    Ok(())
}

fn create_spare<F: Files>(
    context: &Arc<LogContext<F>>,
    dir: &Path,
    path: PathBuf,
) -> Result<Spare<F>, LogError> {
    let file = context.files.open(&path, OpenMode::Create).context("create", &path)?;
    // One may be left of an attempt that failed half way.
    file.truncate(0).context("truncate", &path)?;
    context.files.sync_dir(dir).context("sync", dir)?;
    Ok(Spare { path, file: SegmentFile::new(context, file) })
}

/// The names end in `.deleted` now; returns them.
fn rename_deleted<F: Files>(
    context: &LogContext<F>,
    dir: &Path,
    bases: &[Offset],
) -> Result<Vec<PathBuf>, LogError> {
    let mut renamed = Vec::new();
    // The log file last: what a crash leaves of a segment is never a log without its past.
    let kinds = [
        FileKind::Snapshot,
        FileKind::OffsetIndex,
        FileKind::TimeIndex,
        FileKind::TransactionIndex,
        FileKind::Log,
    ];
    for base in bases {
        for kind in kinds {
            let path = names::file(dir, *base, kind);
            let to = names::deleted(&path);
            match context.files.rename(&path, &to) {
                Ok(()) => renamed.push(to),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(LogError { what: "rename", path, source }),
            }
        }
    }
    context.files.sync_dir(dir).context("sync", dir)?;
    Ok(renamed)
}

pub(super) fn unlink<F: Files>(files: &F, paths: &[PathBuf]) -> Result<(), LogError> {
    for path in paths {
        match files.remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(LogError { what: "remove", path: path.clone(), source: error });
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn write_snapshot<F: Files>(
    files: &F,
    dir: &Path,
    offset: Offset,
    bytes: &[u8],
) -> Result<(), LogError> {
    // Its checksum tells a torn one; the one before it is still there then.
    let path = names::file(dir, offset, FileKind::Snapshot);
    let file = files.open(&path, OpenMode::Create).context("create", &path)?;
    file.truncate(0).context("truncate", &path)?;
    file.write_all_at(&mut [IoSlice::new(bytes)], 0).context("write", &path)?;
    file.sync_data().context("sync", &path)
}

pub(super) fn write_epochs<F: Files>(
    files: &F,
    dir: &Path,
    epochs: Option<&EpochWrite>,
) -> Result<Option<u64>, LogError> {
    let Some(epochs) = epochs else { return Ok(None) };
    let path = dir.join(checkpoint::EPOCHS_FILE);
    files.write_atomically(&path, epochs.text.as_bytes()).context("write", &path)?;
    Ok(Some(epochs.version))
}

impl<F: Files> IndexWrite<F> {
    pub fn of(segment: &Segment<F>) -> Self {
        Self {
            base: segment.base,
            file: segment.file.clone(),
            size: segment.size,
            index: segment.index.pending(),
            times: segment.times.pending(),
            aborted: segment.aborted.as_deref().map(Table::pending),
        }
    }

    /// Writes the new rows; the files end with them.
    pub fn write(&self, files: &F, dir: &Path) -> Result<(), LogError> {
        for (kind, pending) in self.tables() {
            let path = names::file(dir, self.base, kind);
            let file = files.open(&path, OpenMode::Create).context("open", &path)?;
            let length = pending.position + pending.bytes.len() as u64;
            if file.len().context("measure", &path)? > length {
                file.truncate(length).context("truncate", &path)?;
                // Else the rows could come back after a crash, and the log behind them is another one by then.
                file.sync_data().context("sync", &path)?;
            }
            if !pending.bytes.is_empty() {
                let mut bytes = [IoSlice::new(&pending.bytes)];
                file.write_all_at(&mut bytes, pending.position).context("write", &path)?;
            }
        }
        Ok(())
    }

    pub fn sync(&self, files: &F, dir: &Path) -> Result<(), LogError> {
        for (kind, pending) in self.tables() {
            if pending.rows > 0 {
                let path = names::file(dir, self.base, kind);
                let file = files.open(&path, OpenMode::Write).context("open", &path)?;
                file.sync_data().context("sync", &path)?;
            }
        }
        Ok(())
    }

    /// Cuts what was reserved behind the last batch and makes all of it durable.
    pub fn cut(&self, files: &F, dir: &Path) -> Result<(), LogError> {
        let path = names::file(dir, self.base, FileKind::Log);
        match &self.file {
            Some(file) => cut_and_sync(&***file, self.size),
            None => files.open(&path, OpenMode::Write).and_then(|file| cut_and_sync(&file, self.size)),
        }
        .context("finish", &path)?;
        self.sync(files, dir)
    }

    /// Rows that were written.
    pub fn rows(&self) -> Rows {
        let aborted = self.aborted.as_ref().map_or(0, |pending| pending.rows);
        Rows { index: self.index.rows, times: self.times.rows, aborted }
    }

    fn tables(&self) -> impl Iterator<Item = (FileKind, &Pending)> {
        let always = [(FileKind::OffsetIndex, &self.index), (FileKind::TimeIndex, &self.times)];
        let aborted = self.aborted.iter().map(|pending| (FileKind::TransactionIndex, pending));
        always.into_iter().chain(aborted)
    }
}

fn cut_and_sync(file: &impl FileHandle, size: u32) -> io::Result<()> {
    // Also when the length is right: blocks beyond it are freed.
    file.truncate(u64::from(size))?;
    file.sync_data()
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
            self.context.files.sync_dir(&self.dir).context("sync", &self.dir)?;
        }
        Ok(())
    }
}
