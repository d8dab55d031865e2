//! Opening a log: tidies its directory, loads its segments and repairs what a crash left (Kafka's `LogLoader`).
//! *File thread.*
//!
//! After a clean shutdown no batch is read but those behind the last index row. Otherwise everything from the
//! recovery point on is checked batch by batch; the log ends before the first one that is not whole and intact.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::clock::{Now, Timestamp};
use crate::base::{Offset, TopicPartition};
use crate::config::LogConfig;
use crate::io::{FileHandle, Files, OpenMode};
use crate::wire::record::{BatchHead, HEAD_LEN, LOG_OVERHEAD};

use super::epochs::Epochs;
use super::error::Context;
use super::index::{self, Entry, OffsetEntry, Table, TimeEntry};
use super::index_write::IndexWrite;
use super::jobs::{self, Upkeep};
use super::names::{self, FileKind};
use super::replay::Span;
use super::scan::{Scan, Step};
use super::segment::{Newest, Segment};
use super::tidy::{self, Listing};
use super::{Fault, Log, LogContext, LogCounts, LogError, checkpoint, replay, txn_index};

/// What a log is opened with.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The partition's directory; made if it is not there.
    pub dir: PathBuf,
    pub topic_partition: TopicPartition,
    pub config: Arc<LogConfig>,
    /// From `recovery-point-offset-checkpoint`; 0 if it has no entry.
    pub recovery_point: Offset,
    /// From `log-start-offset-checkpoint`; 0 if it has no entry.
    pub log_start: Offset,
    /// From `cleaner-offset-checkpoint`; `None` if it has no entry.
    pub cleaned: Option<Offset>,
    pub gaps: Gaps,
    /// The log directory had the clean-shutdown marker.
    pub clean: bool,
}

/// Where a log may have gaps between its segments. Only compaction makes them, below a recovery point that was saved
/// before it began; what is missing above was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gaps {
    BelowRecoveryPoint,
    /// None is saved, or it is lost: in a compacted log every gap is believed. A log that was opened so has none to
    /// save before all that it had then is on the disk.
    Anywhere,
}

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("{} has {length} bytes: more than a segment can have", path.display())]
    SegmentTooLong { path: PathBuf, length: u64 },
    #[error("the broker stops before the log was recovered")]
    Stopped,
}

impl OpenError {
    /// What it means for the log and its directory.
    pub fn fault(&self) -> Fault {
        match self {
            OpenError::Log(error) => error.fault(),
            OpenError::SegmentTooLong { .. } | OpenError::Stopped => Fault::Corrupt,
        }
    }
}

impl<F: Files> Log<F> {
    /// *File thread.* Opens the log in `options.dir`, an empty one if there is none, and repairs it.
    pub fn open(context: &Arc<LogContext<F>>, options: OpenOptions, now: Now) -> Result<Log<F>, OpenError> {
        let OpenOptions { dir, topic_partition, config, recovery_point, log_start, cleaned, gaps, clean } =
            options;
        let files = &context.files;
        create_dir(files, &dir)?;
        let Listing { logs, mut snapshots, transaction_indexes, has_epochs } = tidy::tidy(files, &dir)?;
        let (mut epochs, epochs_lost) = match has_epochs {
            true => read_epochs(files, &dir)?,
            false => (Epochs::default(), false),
        };
        // Without the file the epochs are gathered from all batches.
        let trusted = if epochs_lost { Offset::ZERO } else { recovery_point };
        let loader = Loader {
            files,
            dir: &dir,
            config: &config,
            trusted,
            gaps_below: match gaps {
                Gaps::Anywhere if config.cleanup_policy.compact => Offset(i64::MAX),
                // The policy may have been another one when the log was cleaned.
                _ => cleaned.map_or(recovery_point, |cleaned| cleaned.max(recovery_point)),
            },
            clean: clean && !epochs_lost,
            wall: now.wall,
            transaction_indexes: &transaction_indexes,
            aborted_from: Cell::new(Offset(i64::MAX)),
            stop: &context.stop,
        };
        let mut segments = loader.load(&logs, &mut epochs)?;
        let end = segments.back().map_or(log_start, |active| active.next);
        if end < log_start {
            tracing::warn!(%topic_partition, %end, %log_start, "the log ends before its start and is emptied");
            loader.remove(segments.drain(..))?;
        }
        if segments.is_empty() {
            segments.push_back(loader.create(log_start)?);
        }
        let active = segments.back().expect("one was added if there was none");
        let (first, end) = (segments.front().map_or(active.base, |first| first.base), active.next);
        let log_start = log_start.max(first);
        epochs.truncate_end(end);
        epochs.truncate_start(log_start);
        let producers = replay::producers(
            context,
            &dir,
            &mut segments,
            &mut snapshots,
            &mut epochs,
            Span { log_start, end, aborted_from: loader.aborted_from.get() },
            now,
        )?;
        loader.remove_stray_snapshots(&mut snapshots, &segments)?;
        let recovery_point = if loader.clean { end } else { recovery_point.min(end).max(first) };
        let names_synced = loader.clean;
        let mut log = Log {
            context: Arc::clone(context),
            dir,
            topic_partition,
            config,
            segments,
            log_start,
            flushed: recovery_point,
            recovery_point,
            unsaved_below: if gaps == Gaps::Anywhere { end } else { Offset::ZERO },
            flushed_at: now.monotonic,
            appended_bytes: 0,
            flushed_bytes: 0,
            epochs,
            producers,
            snapshots,
            recent: VecDeque::new(),
            windows: VecDeque::new(),
            generation: 0,
            layout: 0,
            // What is appended after a loss is not clean.
            cleaned: cleaned.filter(|cleaned| *cleaned <= end),
            youngest_left: None,
            offline: false,
            met_full_disk: false,
            // A process that was killed may have created the last file without a sync of the directory since.
            upkeep: Upkeep::new(&context.preallocation, names_synced),
            counts: LogCounts::default(),
        };
        log.request_checkpoint();
        Ok(log)
    }
}

/// Makes a directory, durably, unless it is there.
pub(super) fn create_dir<F: Files>(files: &F, dir: &Path) -> Result<(), LogError> {
    if files.exists(dir).context("look for", dir)? {
        return Ok(());
    }
    files.create_dir_all(dir).context("create", dir)?;
    match dir.parent() {
        Some(parent) => files.sync_dir(parent).context("sync", parent),
        None => Ok(()),
    }
}

/// The epochs, and whether the file that should have them is damaged.
fn read_epochs<F: Files>(files: &F, dir: &Path) -> Result<(Epochs, bool), LogError> {
    let path = dir.join(checkpoint::EPOCHS_FILE);
    let bytes = match files.read_small(&path, checkpoint::EPOCHS_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Epochs::default(), false)),
        // Too long to be one; what is told of an empty one fits it.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Vec::new(),
        Err(source) => return Err(LogError { what: "read", path, source }),
    };
    match checkpoint::decode_epochs(&bytes) {
        Ok(starts) => Ok((Epochs::from_file(starts), false)),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "leader epochs are gathered from the log");
            Ok((Epochs::default(), true))
        }
    }
}

/// Both indexes of a segment.
type Indexes = (Table<OffsetEntry>, Table<TimeEntry>);

/// Loads and repairs segments.
pub(super) struct Loader<'a, F: Files> {
    files: &'a F,
    dir: &'a Path,
    config: &'a LogConfig,
    /// What lies below was on the disk.
    trusted: Offset,
    /// Compaction may have taken what is missing below.
    gaps_below: Offset,
    clean: bool,
    wall: Timestamp,
    /// Segments that have the file.
    transaction_indexes: &'a [Offset],
    /// The aborted transactions that ended here or later are to be gathered from the log.
    aborted_from: Cell<Offset>,
    /// Recovery gives up.
    stop: &'a AtomicBool,
}

impl<F: Files> Loader<'_, F> {
    fn load(&self, logs: &[Offset], epochs: &mut Epochs) -> Result<VecDeque<Segment<F>>, OpenError> {
        let mut segments = VecDeque::with_capacity(logs.len());
        for (number, base) in logs.iter().enumerate() {
            let next_base = logs.get(number + 1).copied();
            let expected = segments.back().map(|segment: &Segment<F>| segment.next);
            if expected.is_some_and(|expected| self.is_gap(expected, *base)) {
                tracing::warn!(dir = %self.dir.display(), segment = %base, "segments after a gap are removed");
                self.remove_files(&logs[number..])?;
                break;
            }
            // The recovery point is behind it, so its roll was finished. One that ends there may have been rolled
            // after a checkpoint, and lack its last time index row.
            let is_old = next_base.is_some_and(|next| self.clean || next < self.trusted);
            let (segment, torn) = match next_base {
                Some(next) if is_old => (self.load_old(*base, next)?, false),
                _ if self.clean => self.load_active(*base)?,
                _ => self.recover(*base, epochs, next_base.is_none())?,
            };
            segments.push_back(segment);
            if torn && next_base.is_some() {
                tracing::warn!(dir = %self.dir.display(), segment = %base, "segments after damage are removed");
                self.remove_files(&logs[number + 1..])?;
                break;
            }
        }
        Ok(segments)
    }

    /// Whether records are missing before `base` that compaction has not taken, or are there twice.
    fn is_gap(&self, expected: Offset, base: Offset) -> bool {
        expected > base || (expected < base && !self.clean && base > self.gaps_below)
    }

    /// A segment that nothing was appended to since it was on the disk.
    fn load_old(&self, base: Offset, next: Offset) -> Result<Segment<F>, OpenError> {
        let (file, size) = self.open_log(base)?;
        let mut segment = match self.load_indexes(base, size, next)? {
            Some((index, times)) => {
                let newest = times.last().map(|row| newest(base, row));
                Segment { newest, ..self.segment(base, size, index, times) }
            }
            None => {
                tracing::warn!(dir = %self.dir.display(), segment = %base, "indexes are rebuilt");
                self.rebuild(base, size)?
            }
        };
        segment.next = next;
        self.note_modified(&mut segment, &file)?;
        self.load_aborted(&mut segment, size)?;
        Ok(segment)
    }

    /// Only where no timestamp of a record tells how old the segment is.
    fn note_modified(&self, segment: &mut Segment<F>, file: &F::File) -> Result<(), LogError> {
        if !segment.has_timestamps() {
            let path = || names::file(self.dir, segment.base, FileKind::Log);
            segment.modified =
                file.modified().map_err(|source| LogError { what: "measure", path: path(), source })?;
        }
        Ok(())
    }

    /// The transaction index of a segment, as far as the segment goes by now; what follows in the file is cut.
    fn load_aborted(&self, segment: &mut Segment<F>, log_bytes: u32) -> Result<(), LogError> {
        let base = segment.base;
        if self.transaction_indexes.binary_search(&base).is_err() {
            return Ok(());
        }
        let path = names::file(self.dir, base, FileKind::TransactionIndex);
        match txn_index::load(self.files, self.dir, base, log_bytes)? {
            Some(mut rows) => {
                let count = rows.len();
                rows.retain(|row| row.last < segment.next);
                if rows.len() < count {
                    let file = self.files.open(&path, OpenMode::Write).context("open", &path)?;
                    file.truncate(txn_index::file_bytes(rows.len())).context("truncate", &path)?;
                }
                segment.aborted = txn_index::on_disk(&rows);
            }
            None => {
                tracing::warn!(path = %path.display(), "the transaction index is rebuilt");
                self.aborted_from.set(self.aborted_from.get().min(base));
                jobs::unlink(self.files, &[path])?;
            }
        }
        Ok(())
    }

    /// The last segment after a clean shutdown.
    fn load_active(&self, base: Offset) -> Result<(Segment<F>, bool), OpenError> {
        let (file, size) = self.open_log(base)?;
        if size == 0 {
            // Whatever its index files hold speaks of nothing. There may be a hundred thousand such logs.
            let mut segment = self.segment(base, 0, Table::new(), Table::new());
            self.note_modified(&mut segment, &file)?;
            return Ok((segment, false));
        }
        let path = names::file(self.dir, base, FileKind::Log);
        let Some((index, times)) = self.load_indexes(base, size, Offset(i64::MAX))? else {
            return self.recover(base, &mut Epochs::default(), true);
        };
        let from = index.last().map_or(0, |row| row.position);
        let newest = times.last().map(|row| newest(base, row));
        let mut segment = Segment { newest, ..self.segment(base, from, index, times) };
        let mut scan = Scan::heads(&file, from, size, base);
        loop {
            match scan.next().context("scan", &path)? {
                Step::Batch(found) => segment.note(&found.head, u32::MAX),
                Step::End => break,
                Step::Bad(why) => {
                    tracing::warn!(path = %path.display(), why, "damaged in spite of a clean shutdown");
                    return self.recover(base, &mut Epochs::default(), true);
                }
            }
        }
        segment.first_timestamp = first_timestamp(&file, size).context("read", &path)?;
        self.note_modified(&mut segment, &file)?;
        self.load_aborted(&mut segment, size)?;
        Ok((segment, false))
    }

    /// Checks a segment from the recovery point on; it ends before the first bad batch. Tells whether one was there.
    fn recover(
        &self,
        base: Offset,
        epochs: &mut Epochs,
        is_last: bool,
    ) -> Result<(Segment<F>, bool), OpenError> {
        let (file, size) = self.open_log(base)?;
        let path = names::file(self.dir, base, FileKind::Log);
        let mut segment = self.trusted_part(base, &file, size).context("read", &path)?;
        self.load_aborted(&mut segment, size)?;
        let trusted_end = segment.next;
        // What the file says of the part that is read may be of records that an earlier crash took.
        epochs.truncate_end(segment.next);
        let mut scan = Scan::whole(&file, segment.size, size, segment.next);
        let damage = loop {
            let found = match scan.next().context("scan", &path)? {
                Step::Batch(found) => found,
                Step::End => break None,
                Step::Bad(why) => break Some(why),
            };
            if self.stop.load(Ordering::Relaxed) {
                return Err(OpenError::Stopped);
            }
            if !scan.is_intact(&found).context("read", &path)? {
                break Some("the checksum does not match");
            }
            if index::relative(base, found.head.last_offset()).is_none() {
                break Some("the offset does not belong into the segment");
            }
            if epochs.latest().is_none_or(|latest| found.head.leader_epoch() > latest) {
                epochs.assign(found.head.leader_epoch(), found.head.base_offset());
            }
            if found.head.attributes().is_control() {
                self.aborted_from.set(self.aborted_from.get().min(trusted_end));
            }
            segment.note(&found.head, self.config.index_interval_bytes);
        };
        if let Some(why) = damage {
            let end = segment.next;
            tracing::warn!(path = %path.display(), position = segment.size, %end, why, "cut at the first bad batch");
            file.truncate(u64::from(segment.size)).context("truncate", &path)?;
            // Else old batches could come back behind new ones after another crash.
            file.sync_data().context("sync", &path)?;
        }
        segment.first_timestamp = first_timestamp(&file, segment.size).context("read", &path)?;
        self.note_modified(&mut segment, &file)?;
        if !is_last {
            segment.note_newest();
        }
        self.write_indexes(&mut segment)?;
        Ok((segment, damage.is_some()))
    }

    /// What of a segment lies below the recovery point, according to index rows whose batch is there.
    fn trusted_part(&self, base: Offset, file: &F::File, size: u32) -> io::Result<Segment<F>> {
        if self.trusted <= base {
            return Ok(self.segment(base, 0, Table::new(), Table::new()));
        }
        let trusted = index::relative(base, self.trusted).unwrap_or(u32::MAX);
        let mut rows: Vec<OffsetEntry> =
            self.read_rows(base, size, FileKind::OffsetIndex)?.unwrap_or_default();
        rows.retain(|row| row.relative < trusted && row.position < size);
        let times: Option<Vec<TimeEntry>> = self.read_rows(base, size, FileKind::TimeIndex)?;
        let mut times = times.unwrap_or_else(|| {
            rows.clear();
            Vec::new()
        });
        let mut next = base;
        while let Some(row) = rows.last() {
            let mut scan = Scan::whole(file, row.position, size, base);
            if let Step::Batch(found) = scan.next()?
                && index::relative(base, found.head.last_offset()) == Some(row.relative)
                && scan.is_intact(&found)?
            {
                next = found.head.base_offset();
                break;
            }
            rows.pop();
        }
        let last = rows.last().copied();
        times.retain(|row| last.is_some_and(|last| row.relative <= last.relative));
        let last_time = times.last().copied();
        let index = Table::on_disk(rows.len() as u32, last);
        let times = Table::on_disk(times.len() as u32, last_time);
        let newest = last_time.map(|row| newest(base, row));
        Ok(Segment { next, newest, ..self.segment(base, last.map_or(0, |row| row.position), index, times) })
    }

    /// Reads all of an old segment's heads for its indexes.
    fn rebuild(&self, base: Offset, size: u32) -> Result<Segment<F>, OpenError> {
        let (file, _) = self.open_log(base)?;
        let path = names::file(self.dir, base, FileKind::Log);
        let mut segment = self.segment(base, 0, Table::new(), Table::new());
        let mut scan = Scan::heads(&file, 0, size, base);
        while let Step::Batch(found) = scan.next().context("scan", &path)? {
            segment.note(&found.head, self.config.index_interval_bytes);
        }
        // Damage below the recovery point is not the crash's: what is readable stays readable.
        segment.size = size;
        segment.note_newest();
        self.write_indexes(&mut segment)?;
        Ok(segment)
    }

    /// Both indexes of a complete segment; `None` when they are not sound.
    fn load_indexes(&self, base: Offset, size: u32, next: Offset) -> Result<Option<Indexes>, LogError> {
        let is_sound = |row: &OffsetEntry| row.position < size && base.plus(i64::from(row.relative)) < next;
        let Some(index) = self.load_table::<OffsetEntry>(base, FileKind::OffsetIndex, is_sound)? else {
            return Ok(None);
        };
        let is_sound = |row: &TimeEntry| row.timestamp.0 >= 0 && base.plus(i64::from(row.relative)) < next;
        let times = self.load_table::<TimeEntry>(base, FileKind::TimeIndex, is_sound)?;
        Ok(times.map(|times| (index, times)))
    }

    /// Looks at the last row only. `None`: there is no such file, or its last row or its length cannot be right.
    fn load_table<E: Entry>(
        &self,
        base: Offset,
        kind: FileKind,
        is_sound: impl Fn(&E) -> bool,
    ) -> Result<Option<Table<E>>, LogError> {
        let path = names::file(self.dir, base, kind);
        let file = match self.files.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LogError { what: "open", path, source }),
        };
        let length = file.len().context("measure", &path)?;
        let Ok(rows) = u32::try_from(length / E::BYTES as u64) else { return Ok(None) };
        if length % E::BYTES as u64 != 0 {
            return Ok(None);
        }
        if rows == 0 {
            return Ok(Some(Table::new()));
        }
        let last = index::row::<E>(&file, rows - 1).context("read", &path)?;
        Ok(is_sound(&last).then(|| Table::on_disk(rows, Some(last))))
    }

    /// The ordered rows of an index file, of a log of `log_bytes`; `None` if there is none.
    fn read_rows<E: Entry>(
        &self,
        base: Offset,
        log_bytes: u32,
        kind: FileKind,
    ) -> io::Result<Option<Vec<E>>> {
        // No more than there can be batches, however long the file is.
        let rows_max = log_bytes / LOG_OVERHEAD as u32 + 1;
        match self.files.open(&names::file(self.dir, base, kind), OpenMode::Read) {
            Ok(file) => index::ordered_prefix(&file, rows_max).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Brings the index files up to what memory has.
    fn write_indexes(&self, segment: &mut Segment<F>) -> Result<(), LogError> {
        write_indexes(self.files, self.dir, segment)?;
        segment.release_rows();
        Ok(())
    }

    fn open_log(&self, base: Offset) -> Result<(F::File, u32), OpenError> {
        let path = names::file(self.dir, base, FileKind::Log);
        let file = self.files.open(&path, OpenMode::Write).context("open", &path)?;
        let length = file.len().context("measure", &path)?;
        match u32::try_from(length) {
            Ok(size) if size <= i32::MAX as u32 => Ok((file, size)),
            _ => Err(OpenError::SegmentTooLong { path, length }),
        }
    }

    fn segment(
        &self,
        base: Offset,
        size: u32,
        index: Table<OffsetEntry>,
        times: Table<TimeEntry>,
    ) -> Segment<F> {
        Segment {
            base,
            file: None,
            size,
            next: base,
            index,
            times,
            aborted: None,
            newest: None,
            first_timestamp: None,
            created: self.wall,
            modified: self.wall,
            since_entry: 0,
        }
    }

    fn create(&self, base: Offset) -> Result<Segment<F>, LogError> {
        create_segment(self.files, self.dir, base)?;
        Ok(self.segment(base, 0, Table::new(), Table::new()))
    }

    fn remove(&self, segments: impl Iterator<Item = Segment<F>>) -> Result<(), LogError> {
        self.remove_files(&segments.map(|segment| segment.base).collect::<Vec<_>>())
    }

    fn remove_files(&self, bases: &[Offset]) -> Result<(), LogError> {
        remove_segments(self.files, self.dir, bases)
    }

    /// Those that belong to no segment, but for the latest two.
    fn remove_stray_snapshots(
        &self,
        snapshots: &mut Vec<Offset>,
        segments: &VecDeque<Segment<F>>,
    ) -> Result<(), LogError> {
        let latest = snapshots.len().saturating_sub(2);
        let (old, kept) = snapshots.split_at(latest);
        let is_base = |offset: &Offset| segments.iter().any(|segment| segment.base == *offset);
        let (mut stay, stray): (Vec<Offset>, Vec<Offset>) = old.iter().copied().partition(is_base);
        let paths: Vec<PathBuf> =
            stray.iter().map(|offset| names::file(self.dir, *offset, FileKind::Snapshot)).collect();
        jobs::unlink(self.files, &paths)?;
        stay.extend_from_slice(kept);
        *snapshots = stay;
        Ok(())
    }
}

fn newest(base: Offset, row: TimeEntry) -> Newest {
    Newest { timestamp: row.timestamp, offset: base.plus(i64::from(row.relative)) }
}

/// Youngest timestamp of the first batch.
pub(super) fn first_timestamp(file: &impl FileHandle, size: u32) -> io::Result<Option<Timestamp>> {
    if size == 0 {
        return Ok(None);
    }
    let mut head = [0; HEAD_LEN];
    let read = file.read_at(&mut head, 0)?;
    Ok(BatchHead::of_entry(&head[..read]).ok().map(|head| head.max_timestamp()))
}

/// Makes the files of an empty segment.
pub(super) fn create_segment<F: Files>(files: &F, dir: &Path, base: Offset) -> Result<(), LogError> {
    for kind in [FileKind::Log, FileKind::OffsetIndex, FileKind::TimeIndex] {
        let path = names::file(dir, base, kind);
        let file = files.open(&path, OpenMode::Create).context("create", &path)?;
        file.truncate(0).context("truncate", &path)?;
    }
    files.sync_dir(dir).context("sync", dir)
}

/// Removes all files of some segments.
pub(super) fn remove_segments<F: Files>(files: &F, dir: &Path, bases: &[Offset]) -> Result<(), LogError> {
    // Youngest first: a crash leaves no gap.
    for base in bases.iter().rev() {
        let paths: Vec<PathBuf> =
            FileKind::OF_SEGMENT.iter().map(|kind| names::file(dir, *base, *kind)).collect();
        jobs::unlink(files, &paths)?;
    }
    files.sync_dir(dir).context("sync", dir)
}

pub(super) fn write_indexes<F: Files>(
    files: &F,
    dir: &Path,
    segment: &mut Segment<F>,
) -> Result<(), LogError> {
    let write = IndexWrite::of(segment);
    write.write(files, dir)?;
    write.sync(files, dir)?;
    segment.mark_written(write.rows());
    Ok(())
}
