//! What a log has file threads do: the slow part of a roll, spare files and preallocation, checkpoints, and the
//! deletion of old segments.
//!
//! Jobs own what they need and share open files only; a log keeps at most one upkeep job in flight, so no two of
//! them touch the same index or name. A job that meets a full disk, or finds no descriptor, is put back and
//! done again later; whatever it had done by then is done again or found done.

mod run;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::base::Offset;
use crate::base::clock::{Monotonic, Now};
use crate::io::Files;

pub(super) use self::run::{create_spare, unlink, write_epochs, write_snapshot};
use super::clean::{Swap, Swapped};
use super::index_write::IndexWrite;
use super::names::{self, FileKind};
use super::preallocation::{Held, Preallocation};
use super::segment::{Rows, Segment};
use super::{Log, LogContext, LogError, SegmentFile, checkpoint, reindex, snapshot};

/// Disk blocks are reserved in such steps.
const PREALLOCATE_BYTES: u64 = 64 << 20;

/// A segment that took so much since it was opened is hot: worth reserving blocks for.
const HOT_BYTES: u64 = 16 << 20;

/// A job that was put back is due again after this.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// What is to be done for a log.
pub(super) struct Upkeep<F: Files> {
    in_flight: bool,
    /// Renames after compaction.
    pub swaps: VecDeque<Swap>,
    /// One of them is out.
    swap_in_flight: bool,
    /// The segment that the roll on a file thread has ended.
    roll_in_flight: Option<Offset>,
    /// A job was refused and put back: none is due before this.
    retry_at: Option<Monotonic>,
    rolled: VecDeque<Rolled>,
    /// A file for the next segment under a temporary name.
    pub spare: Option<Spare<F>>,
    /// One was asked for since the last roll; a full disk is not asked twice.
    spare_tried: bool,
    /// A file thread makes one now.
    pub spare_out: bool,
    /// What an append waited for could not be provided: it is to be refused.
    pub append_refused: bool,
    preallocate_tried: bool,
    /// Blocks of the active segment are reserved up to here.
    preallocated: u64,
    /// What that may be more than the segment's size, as of the last reservation.
    held: Held,
    /// The log's count of appended bytes when the active segment began.
    segment_began: u64,
    checkpoint_wanted: bool,
    /// The log's count of appended bytes at the last checkpoint or roll.
    checkpoint_bytes: u64,
    /// Base offsets of segments whose files are to be renamed.
    pub doomed: Vec<Offset>,
    unlinks: VecDeque<Unlink>,
    /// Segments whose indexes lead astray.
    pub reindex: Vec<Offset>,
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
    pub fn new(preallocation: &Arc<Preallocation>, names_synced: bool) -> Self {
        Self {
            in_flight: false,
            swaps: VecDeque::new(),
            swap_in_flight: false,
            roll_in_flight: None,
            retry_at: None,
            rolled: VecDeque::new(),
            spare: None,
            spare_tried: false,
            spare_out: false,
            append_refused: false,
            preallocate_tried: false,
            preallocated: 0,
            held: Held::new(preallocation),
            segment_began: 0,
            checkpoint_wanted: false,
            checkpoint_bytes: 0,
            doomed: Vec::new(),
            unlinks: VecDeque::new(),
            reindex: Vec::new(),
            retention_waits: None,
            names_changed: u64::from(!names_synced),
            names_synced: 0,
        }
    }

    pub fn segment_rolled(&mut self, rolled: Rolled, appended_bytes: u64) {
        self.names_changed += u64::from(rolled.spare.is_none());
        self.rolled.push_back(rolled);
        self.truncated(appended_bytes);
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

    /// The oldest segment whose roll is not finished: its files are about to be written.
    pub fn rolls_from(&self) -> Option<Offset> {
        self.roll_in_flight.or_else(|| self.rolled.front().map(|rolled| rolled.old))
    }

    /// A file was created and the directory not synced since.
    pub fn names_unsynced(&self) -> bool {
        self.names_synced < self.names_changed
    }

    /// Files that wait to be removed.
    pub fn take_unlinks(&mut self) -> Vec<PathBuf> {
        self.unlinks.drain(..).flat_map(|unlink| unlink.paths).collect()
    }

    /// The active segment was cut at its end: what was reserved behind it is given back.
    pub fn surplus_cut(&mut self) {
        self.preallocated = 0;
        self.held.set(0);
    }

    /// What was put back is due at once.
    pub fn retry_now(&mut self) {
        self.retry_at = None;
    }

    pub fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint_bytes
    }

    pub fn names_changed(&self) -> u64 {
        self.names_changed
    }

    /// The directory was synced when `names_changed` had this value.
    pub fn mark_names_synced(&mut self, names_changed: u64) {
        self.names_synced = self.names_synced.max(names_changed);
    }

    /// The active segment is another one now, or shorter.
    pub fn truncated(&mut self, appended_bytes: u64) {
        self.surplus_cut();
        self.spare_tried = false;
        self.preallocate_tried = false;
        self.segment_began = appended_bytes;
    }

    /// The directory is called `dir` now.
    pub fn relocate(&mut self, dir: &Path) {
        assert!(self.is_idle(), "a job has the old name");
        let relocate = |path: &mut PathBuf| {
            if let Some(name) = path.file_name() {
                *path = dir.join(name);
            }
        };
        self.spare.iter_mut().for_each(|spare| relocate(&mut spare.path));
        self.unlinks.iter_mut().flat_map(|unlink| &mut unlink.paths).for_each(relocate);
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
    Roll(Box<Roll<F>>),
    Checkpoint(Box<Checkpoint<F>>),
    Spare { path: PathBuf },
    Preallocate { base: Offset, file: Arc<SegmentFile<F>>, position: u64 },
    Delete { bases: Vec<Offset> },
    Unlink { paths: Vec<PathBuf> },
    Swap(Swap),
    Reindex { segment: Offset, size: u32, interval: u32, layout: u64 },
}

struct Roll<F: Files> {
    rolled: Rolled,
    old: Option<IndexWrite<F>>,
    epochs: Option<EpochWrite>,
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

/// What became of a job.
pub struct Outcome<F: Files> {
    names_changed: u64,
    done: Result<Done<F>, Failed<F>>,
}

struct Failed<F: Files> {
    error: LogError,
    task: Task<F>,
}

enum Done<F: Files> {
    Rolled(Box<Roll<F>>),
    Checkpoint(Box<Checkpoint<F>>),
    Spare(Result<Spare<F>, LogError>),
    Preallocated { base: Offset, up_to: Result<u64, LogError> },
    Deleted { paths: Vec<PathBuf> },
    Unlinked,
    Swapped(Swapped),
    Reindexed { segment: Offset, layout: u64, tables: Result<Option<reindex::Tables>, LogError> },
}

impl<F: Files> Log<F> {
    /// *Shard.* Whether [`Log::next_job`] has something: a few comparisons.
    pub fn has_job(&self, now: Now) -> bool {
        let upkeep = &self.upkeep;
        if upkeep.in_flight || self.offline || upkeep.retry_at.is_some_and(|at| now.monotonic < at) {
            return false;
        }
        !upkeep.rolled.is_empty()
            || !upkeep.swaps.is_empty()
            || !upkeep.doomed.is_empty()
            || upkeep.checkpoint_wanted
            || self.wants_spare()
            || self.wants_preallocation()
            || self.reindex_due().is_some()
            || upkeep.unlinks.front().is_some_and(|unlink| unlink.due <= now.monotonic)
    }

    /// *Shard.* The next piece of work for a file thread; `None` while one is out or when there is none.
    pub fn next_job(&mut self, now: Now) -> Option<Job<F>> {
        if !self.has_job(now) {
            return None;
        }
        self.upkeep.retry_at = None;
        let task = self.next_task(now)?;
        self.upkeep.in_flight = true;
        let (context, dir) = (Arc::clone(&self.context), self.dir.clone());
        Some(Job { context, dir, names_changed: self.upkeep.names_changed, task })
    }

    fn next_task(&mut self, now: Now) -> Option<Task<F>> {
        if let Some(rolled) = self.upkeep.rolled.pop_front() {
            self.upkeep.roll_in_flight = Some(rolled.old);
            let old = self.segments.iter().find(|segment| segment.base == rolled.old);
            let old = old.map(IndexWrite::of);
            return Some(Task::Roll(Box::new(Roll { rolled, old, epochs: self.epoch_write() })));
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
            return Some(Task::Spare { path: self.spare_path() });
        }
        if let Some(task) = self.preallocation() {
            return Some(task);
        }
        if let Some((segment, size)) = self.reindex_due() {
            self.upkeep.reindex.retain(|base| *base != segment);
            let (interval, layout) = (self.config.index_interval_bytes, self.layout);
            return Some(Task::Reindex { segment, size, interval, layout });
        }
        let due = self.upkeep.unlinks.front().is_some_and(|unlink| unlink.due <= now.monotonic);
        let unlink = if due { self.upkeep.unlinks.pop_front() } else { None };
        unlink.map(|unlink| Task::Unlink { paths: unlink.paths })
    }

    /// *Shard.* Where to make the next segment's file; the answer is for [`Log::spare_made`].
    pub(super) fn spare_path(&mut self) -> PathBuf {
        self.upkeep.spare_tried = true;
        self.upkeep.spare_out = true;
        names::file(&self.dir, self.active().base, FileKind::Spare)
    }

    pub(super) fn spare_made(&mut self, made: Result<Spare<F>, LogError>, now: Now) {
        self.upkeep.spare_out = false;
        match made {
            Ok(spare) => {
                self.upkeep.spare = Some(spare);
                if let Some(high_watermark) = self.upkeep.retention_waits.take() {
                    self.enforce_retention(high_watermark, now);
                }
            }
            Err(error) => {
                // An append may have come to need it meanwhile.
                self.upkeep.append_refused = true;
                self.not_prepared(&error);
            }
        }
    }

    /// Only slower without it, or refused where it cannot be done without.
    fn not_prepared(&mut self, error: &LogError) {
        self.counts.preparations_failed += 1;
        tracing::warn!(partition = %self.topic_partition, %error, "could not prepare for appends");
    }

    /// *Shard.* A job was refused by a full disk or for want of descriptors, and is due again at this time.
    pub fn retry_at(&self) -> Option<Monotonic> {
        self.upkeep.retry_at
    }

    /// The slow part of a roll was refused: until it is done nothing more is appended.
    pub(super) fn is_held_up(&self) -> bool {
        self.upkeep.retry_at.is_some() && !self.upkeep.rolled.is_empty()
    }

    /// *Shard.* Takes the outcome of a job; one that was refused is put back, see [`Log::retry_at`]. An error means
    /// that the directory is to be taken offline.
    pub fn finish(&mut self, outcome: Outcome<F>, now: Now) -> Result<(), LogError> {
        match self.finish_or_put_back(outcome, now) {
            Err(error) if error.fault().passes() => {
                self.note_refusal(&error);
                Ok(())
            }
            Err(error) => {
                self.take_offline(&error);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    fn put_back(&mut self, task: Task<F>, now: Now) {
        self.upkeep.retry_at = Some(now.monotonic.plus(RETRY_AFTER));
        match task {
            Task::Roll(roll) => self.upkeep.rolled.push_front(roll.rolled),
            Task::Checkpoint(_) => self.upkeep.checkpoint_wanted = true,
            Task::Delete { bases } => drop(self.upkeep.doomed.splice(0..0, bases)),
            Task::Unlink { paths } => self.upkeep.unlinks.push_front(Unlink { due: now.monotonic, paths }),
            Task::Swap(swap) => self.upkeep.swaps.push_front(swap),
            // They answer for themselves.
            Task::Spare { .. } | Task::Preallocate { .. } | Task::Reindex { .. } => {}
        }
    }

    /// A refused job is put back, and its error returned all the same.
    pub(super) fn finish_or_put_back(&mut self, outcome: Outcome<F>, now: Now) -> Result<(), LogError> {
        self.upkeep.in_flight = false;
        self.upkeep.swap_in_flight = false;
        self.upkeep.roll_in_flight = None;
        let done = match outcome.done {
            Ok(done) => done,
            Err(Failed { error, task }) => {
                if error.fault().passes() {
                    self.put_back(task, now);
                }
                return Err(error);
            }
        };
        match done {
            Done::Rolled(roll) => {
                let Roll { rolled, old, epochs } = *roll;
                let rows = old.map(|old| old.rows());
                if let Some(rows) = rows {
                    self.mark_written(rolled.old, rows, true);
                }
                self.snapshots_add(rolled.new);
                epochs.into_iter().for_each(|epochs| self.epochs.mark_written(epochs.version));
                self.upkeep.mark_names_synced(outcome.names_changed);
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
                self.upkeep.mark_names_synced(outcome.names_changed);
                self.mark_flushed(checkpoint.up_to, checkpoint.appended_bytes, now);
                self.upkeep.checkpoint_bytes = checkpoint.appended_bytes;
                self.recovery_point = self.recovery_point.max(checkpoint.up_to);
            }
            Done::Spare(Err(error)) if !error.fault().passes() => {
                self.upkeep.spare_out = false;
                return Err(error);
            }
            Done::Spare(made) => self.spare_made(made, now),
            // It may have rolled since.
            Done::Preallocated { base, .. } if base != self.active().base => {}
            Done::Preallocated { up_to: Ok(up_to), .. } => {
                self.upkeep.preallocated = up_to;
                self.upkeep.preallocate_tried = false;
            }
            Done::Preallocated { up_to: Err(error), .. } => {
                let surplus = self.upkeep.preallocated.saturating_sub(u64::from(self.active().size));
                self.upkeep.held.set(surplus);
                self.not_prepared(&error);
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
            // Else the segment may be another one by now, with indexes of its own.
            Done::Reindexed { segment, layout, tables } if layout == self.layout => {
                self.reindexed(segment, tables)?;
            }
            Done::Reindexed { .. } => {}
        }
        Ok(())
    }

    /// *Shard.* Asks for index, epochs, producer snapshot and data on the disk up to the log's end; when that is
    /// done [`Log::recovery_point`] is there. Nothing to do for a log that did not change.
    pub fn request_checkpoint(&mut self) {
        let changed = self.recovery_point < self.log_end() || self.epochs.is_dirty();
        self.upkeep.checkpoint_wanted |= changed && !self.offline;
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
        upkeep.spare.is_none()
            && !upkeep.spare_out
            && !upkeep.spare_tried
            && (filling || upkeep.retention_waits.is_some())
    }

    /// The next step of blocks, if the bound on all logs leaves it.
    fn preallocation(&mut self) -> Option<Task<F>> {
        if !self.wants_preallocation() {
            return None;
        }
        self.upkeep.preallocate_tried = true;
        let size = u64::from(self.active().size);
        let position = self.upkeep.preallocated.max(size);
        let (base, file) = (self.active().base, Arc::clone(self.active().file.as_ref()?));
        let fits = self.upkeep.held.set(position + PREALLOCATE_BYTES - size);
        fits.then_some(Task::Preallocate { base, file, position })
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
