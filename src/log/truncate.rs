//! Truncation and closing. *File thread*: the whole log goes there and comes back.

use std::path::PathBuf;

use crate::base::Offset;
use crate::base::clock::Now;
use crate::io::{FileHandle, Files, OpenMode};

use super::error::Context;
use super::index::{self, Entry, Table, relative};
use super::names::{self, FileKind};
use super::recovery::{create_segment, remove_segments, write_indexes};
use super::replay::Span;
use super::scan::{self, Scan, Step};
use super::segment::{Newest, Segment, SegmentFile};
use super::txn_index::AbortedTransaction;
use super::{Log, LogError, flush, jobs, replay, snapshot};

impl<F: Files> Log<F> {
    /// *File thread.* Everything on the disk as after a clean shutdown; no job may be out. Afterwards
    /// `recovery_point` is the log's end, and the log is only to be dropped. After an error that passes, as of a
    /// full disk, the next start has to recover it.
    pub fn close(&mut self, now: Now) -> Result<(), LogError> {
        if self.offline {
            return Ok(());
        }
        let closed = self.write_all(now);
        closed.inspect_err(|error| {
            if !error.fault().passes() {
                self.take_offline(error);
            }
        })
    }

    /// *File thread.* Removes all records from `offset` on, and of the batch that holds it those before; no job
    /// may be out. The recovery points are to be written before the next append.
    pub fn truncate_to(&mut self, offset: Offset, now: Now) -> Result<(), LogError> {
        if offset >= self.log_end() {
            return Ok(());
        }
        if offset < self.segments[0].base {
            return self.restart_at(offset, now);
        }
        let truncated = self.settle(now).and_then(|()| self.cut(offset, now));
        truncated.inspect_err(|error| self.take_offline(error))
    }

    /// *File thread.* Removes all records; the next one gets `offset`. No job may be out.
    pub fn restart_at(&mut self, offset: Offset, now: Now) -> Result<(), LogError> {
        let restarted = self.settle(now).and_then(|()| self.empty(offset, now));
        restarted.inspect_err(|error| self.take_offline(error))
    }

    fn write_all(&mut self, now: Now) -> Result<(), LogError> {
        self.settle(now)?;
        let end = self.log_end();
        self.active_mut().note_newest();
        let (files, dir) = (self.context.files.clone(), self.dir.clone());
        if self.appended_bytes > 0 || self.flushed < end {
            flush::sync_segments(&files, &dir, &self.unflushed_files(), &self.unflushed_closed())?;
            self.cut_surplus()?;
        }
        let mut names_changed = false;
        let active = self.active_mut();
        let is_empty = active.size == 0;
        if active.has_unwritten_rows() {
            write_indexes(&files, &dir, active)?;
            names_changed = true;
        }
        if self.snapshots.last() != Some(&end) && !(is_empty && self.producers.len() == 0) {
            jobs::write_snapshot(&files, &dir, end, &snapshot::encode(&self.producers))?;
            self.snapshots.push(end);
            names_changed = true;
        }
        if let Some(version) = jobs::write_epochs(&files, &dir, self.epoch_write().as_ref())? {
            self.epochs.mark_written(version);
        }
        let mut paths = self.upkeep.take_unlinks();
        paths.extend(self.upkeep.spare.take().map(|spare| spare.path));
        jobs::unlink(&files, &paths)?;
        // A log that nothing happened to costs no sync: there may be a hundred thousand.
        if names_changed || self.upkeep.names_unsynced() {
            files.sync_dir(&dir).context("sync", &dir)?;
        }
        self.flushed = end;
        self.recovery_point = end;
        self.flushed_bytes = self.appended_bytes;
        Ok(())
    }

    /// Frees blocks that were reserved for the active segment and not used.
    fn cut_surplus(&mut self) -> Result<(), LogError> {
        let active = self.active();
        match &active.file {
            Some(file) => file.truncate(u64::from(active.size)).context("truncate a segment of", &self.dir),
            None => Ok(()),
        }
    }

    /// Does here what else a job would do.
    fn settle(&mut self, now: Now) -> Result<(), LogError> {
        assert!(!self.upkeep.is_in_flight(), "a job of the log is out");
        self.upkeep.retry_now();
        while !self.upkeep.is_idle() {
            let Some(job) = self.next_job(now) else { break };
            self.finish_or_put_back(job.run(), now)?;
        }
        Ok(())
    }

    fn cut(&mut self, offset: Offset, now: Now) -> Result<(), LogError> {
        let (files, dir) = (self.context.files.clone(), self.dir.clone());
        let keep = self.segment_of(offset) + 1;
        let gone: Vec<Offset> = self.segments.drain(keep..).map(|segment| segment.base).collect();
        if !gone.is_empty() {
            remove_segments(&files, &dir, &gone)?;
        }
        let active = self.active();
        let path = names::file(&dir, active.base, FileKind::Log);
        let file = files.open(&path, OpenMode::Write).context("open", &path)?;
        let from = replay::floor_position(&files, &dir, active, offset)?;
        let found = scan::find(&file, from, active.size, offset).context("scan", &path)?;
        let (size, next) = match found {
            Some(found) => (found.position, found.head.base_offset().min(offset)),
            None => (active.size, offset.min(active.next)),
        };
        file.truncate(u64::from(size)).context("truncate", &path)?;
        // Else old batches could come back behind new ones after a crash.
        file.sync_data().context("sync", &path)?;
        let file = SegmentFile::new(&self.context, file);
        let active = self.active_mut();
        active.file = Some(file);
        active.size = size;
        active.next = next;
        cut_indexes(&files, &dir, active)?;
        (active.created, active.modified) = (now.wall, now.wall);
        if size == 0 {
            active.first_timestamp = None;
        }
        self.forget_after(next);
        self.reload(now)
    }

    fn empty(&mut self, offset: Offset, now: Now) -> Result<(), LogError> {
        let (files, dir) = (self.context.files.clone(), self.dir.clone());
        let gone: Vec<Offset> = self.segments.iter().map(|segment| segment.base).collect();
        remove_segments(&files, &dir, &gone)?;
        create_segment(&files, &dir, offset)?;
        let path = names::file(&dir, offset, FileKind::Log);
        let file = files.open(&path, OpenMode::Write).context("open", &path)?;
        let file = SegmentFile::new(&self.context, file);
        self.segments.clear();
        self.segments.push_back(Segment::new(offset, file, now.wall));
        self.log_start = offset;
        self.cleaned = None;
        self.epochs.clear();
        let snapshots = std::mem::take(&mut self.snapshots);
        let paths = snapshots.iter().map(|offset| names::file(&dir, *offset, FileKind::Snapshot));
        jobs::unlink(&files, &paths.collect::<Vec<PathBuf>>())?;
        self.forget_after(offset);
        self.recovery_point = offset;
        self.flushed = offset;
        self.reload(now)
    }

    /// The log ends at `end` now: memory of what was behind it goes.
    fn forget_after(&mut self, end: Offset) {
        self.generation += 1;
        self.cleaned = self.cleaned.map(|cleaned| cleaned.min(end));
        self.recent.clear();
        self.windows.clear();
        self.upkeep.truncated(self.appended_bytes);
        self.flushed = self.flushed.min(end);
        self.recovery_point = self.recovery_point.min(end);
        self.log_start = self.log_start.min(end);
        self.epochs.truncate_end(end);
    }

    fn reload(&mut self, now: Now) -> Result<(), LogError> {
        let span = Span { log_start: self.log_start, end: self.log_end(), aborted_from: Offset(i64::MAX) };
        self.producers = replay::producers(
            &self.context,
            &self.dir,
            &mut self.segments,
            &mut self.snapshots,
            &mut self.epochs,
            span,
            now,
        )?;
        if let Some(version) =
            jobs::write_epochs(&self.context.files, &self.dir, self.epoch_write().as_ref())?
        {
            self.epochs.mark_written(version);
        }
        self.context.files.sync_dir(&self.dir).context("sync", &self.dir)
    }
}

/// Drops the rows of the indexes that lie behind the segment's end.
fn cut_indexes<F: Files>(files: &F, dir: &std::path::Path, segment: &mut Segment<F>) -> Result<(), LogError> {
    write_indexes(files, dir, segment)?;
    let (base, size) = (segment.base, segment.size);
    let end = relative(base, segment.next).unwrap_or(u32::MAX);
    segment.index = cut_table(files, dir, base, FileKind::OffsetIndex, |row: &index::OffsetEntry| {
        row.relative < end && row.position < size
    })?;
    segment.times =
        cut_table(files, dir, base, FileKind::TimeIndex, |row: &index::TimeEntry| row.relative < end)?;
    if segment.aborted.is_some() {
        let next = segment.next;
        let kind = FileKind::TransactionIndex;
        let table = cut_table(files, dir, base, kind, |row: &AbortedTransaction| row.last < next)?;
        segment.aborted = Some(Box::new(table));
    }
    let from = segment.index.last().map_or(0, |row| row.position);
    segment.since_entry = size - from;
    segment.newest = segment
        .times
        .last()
        .map(|row| Newest { timestamp: row.timestamp, offset: base.plus(i64::from(row.relative)) });
    // The time index may be behind by what came after the last row.
    let path = names::file(dir, base, FileKind::Log);
    let file = files.open(&path, OpenMode::Read).context("open", &path)?;
    let mut scan = Scan::heads(&file, from, size, base);
    while let Step::Batch(found) = scan.next().context("scan", &path)? {
        let (timestamp, offset) = (found.head.max_timestamp(), found.head.last_offset());
        if segment.newest.is_none_or(|newest| timestamp > newest.timestamp) {
            segment.newest = Some(Newest { timestamp, offset });
        }
    }
    Ok(())
}

fn cut_table<F: Files, E: Entry>(
    files: &F,
    dir: &std::path::Path,
    base: Offset,
    kind: FileKind,
    stays: impl Fn(&E) -> bool,
) -> Result<Table<E>, LogError> {
    let path = names::file(dir, base, kind);
    let file = files.open(&path, OpenMode::Create).context("open", &path)?;
    let rows = index::ordered_prefix::<E>(&file, u32::MAX).context("read", &path)?;
    let count = rows.partition_point(stays);
    file.truncate(count as u64 * E::BYTES as u64).context("truncate", &path)?;
    file.sync_data().context("sync", &path)?;
    Ok(Table::on_disk(count as u32, count.checked_sub(1).map(|last| rows[last])))
}
