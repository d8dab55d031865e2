//! One segment: its file, its indexes and what is remembered of its batches.

use std::sync::Arc;

use crate::base::clock::Timestamp;
use crate::base::{LeaderEpoch, Offset};
use crate::io::Files;
use crate::wire::record::BatchHead;

use super::LogContext;
use super::index::{OffsetEntry, Table, TimeEntry, relative};
use super::txn_index::{AbortedTable, AbortedTransaction};

/// An open `.log` file. Read plans share it; it closes, on a thread that may wait, when the last one is done.
pub struct SegmentFile<F: Files> {
    /// `None` only while it is dropped.
    file: Option<F::File>,
    context: Arc<LogContext<F>>,
}

impl<F: Files> SegmentFile<F> {
    pub(super) fn new(context: &Arc<LogContext<F>>, file: F::File) -> Arc<Self> {
        Arc::new(Self { file: Some(file), context: Arc::clone(context) })
    }

    /// The number of its log directory.
    pub fn directory(&self) -> usize {
        self.context.directory
    }
}

impl<F: Files> std::ops::Deref for SegmentFile<F> {
    type Target = F::File;

    fn deref(&self) -> &F::File {
        self.file.as_ref().expect("only drop takes it")
    }
}

impl<F: Files> Drop for SegmentFile<F> {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            (self.context.dispose)(file);
        }
    }
}

impl<F: Files> std::fmt::Debug for SegmentFile<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SegmentFile")
    }
}

/// Bytes of a file on their way to a socket: `length` of them from `position` on.
#[derive(Debug)]
pub struct FileRange<F: Files> {
    pub file: Arc<SegmentFile<F>>,
    pub position: u64,
    pub length: u32,
    /// It begins among the bytes that were appended last: the page cache has them, unless memory is very short.
    pub at_tail: bool,
}

impl<F: Files> Clone for FileRange<F> {
    fn clone(&self) -> Self {
        Self { file: Arc::clone(&self.file), ..*self }
    }
}

/// An offset and where it lies (Kafka's `LogOffsetMetadata`): what a waiting fetch is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffsetMetadata {
    pub offset: Offset,
    /// Base offset of the segment.
    pub segment: Offset,
    /// Bytes from the start of the segment's file.
    pub position: u32,
}

impl OffsetMetadata {
    /// Bytes from here to `later`; `None` when that is in another segment: as good as enough.
    pub fn bytes_until(&self, later: &OffsetMetadata) -> Option<u64> {
        (self.segment == later.segment).then(|| u64::from(later.position.saturating_sub(self.position)))
    }
}

/// A timestamp and the record that has it (Kafka's `TimestampAndOffset`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimestampOffset {
    pub timestamp: Timestamp,
    pub offset: Offset,
    /// Of the batch that holds the record.
    pub leader_epoch: Option<LeaderEpoch>,
}

/// The youngest timestamp of a segment and the last offset of the first batch that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Newest {
    pub timestamp: Timestamp,
    pub offset: Offset,
}

pub(super) struct Segment<F: Files> {
    pub base: Offset,
    /// `None`: closed, a file thread opens it.
    pub file: Option<Arc<SegmentFile<F>>>,
    /// Bytes of whole batches; the file may be longer after a failed write or be preallocated.
    pub size: u32,
    /// The offset after the last record; at least `base`.
    pub next: Offset,
    pub index: Table<OffsetEntry>,
    pub times: Table<TimeEntry>,
    /// `None`: no transaction was aborted in it.
    pub aborted: Option<Box<AbortedTable>>,
    pub newest: Option<Newest>,
    /// Youngest timestamp of the first batch: the segment's age counts from it. `None`: no batch yet, or not known.
    pub first_timestamp: Option<Timestamp>,
    /// When this process made or opened it: its age for rolling if records have no timestamps.
    pub created: Timestamp,
    /// When its file was written last: its age for retention if records have no timestamps.
    pub modified: Timestamp,
    /// Bytes since the last index entry.
    pub since_entry: u32,
}

/// What an append changes, to go back to when its write fails.
#[derive(Clone, Copy)]
pub(super) struct SegmentMark {
    size: u32,
    next: Offset,
    newest: Option<Newest>,
    first_timestamp: Option<Timestamp>,
    since_entry: u32,
    index_rows: u32,
    time_rows: u32,
    last_index: Option<OffsetEntry>,
    last_time: Option<TimeEntry>,
    aborted_rows: u32,
    last_aborted: Option<AbortedTransaction>,
}

/// Rows of a segment's indexes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Rows {
    pub index: u32,
    pub times: u32,
    pub aborted: u32,
}

impl<F: Files> Segment<F> {
    pub fn new(base: Offset, file: Arc<SegmentFile<F>>, created: Timestamp) -> Self {
        Self {
            base,
            file: Some(file),
            size: 0,
            next: base,
            index: Table::new(),
            times: Table::new(),
            aborted: None,
            newest: None,
            first_timestamp: None,
            created,
            modified: created,
            since_entry: 0,
        }
    }

    /// Takes note of a batch that follows the last one; its head has its final offset. With `index_interval`
    /// bytes since the last index entry it gets one.
    pub fn note(&mut self, head: &BatchHead, index_interval: u32) {
        let position = self.size;
        if position == 0 {
            self.first_timestamp = Some(head.max_timestamp());
        }
        if self.newest.is_none_or(|newest| head.max_timestamp() > newest.timestamp) {
            self.newest = Some(Newest { timestamp: head.max_timestamp(), offset: head.last_offset() });
        }
        if self.since_entry > index_interval {
            if let Some(relative) = relative(self.base, head.last_offset()) {
                self.index.push(OffsetEntry { relative, position });
            }
            self.note_newest();
            self.since_entry = 0;
        }
        let bytes = head.total_len() as u32;
        self.since_entry = self.since_entry.saturating_add(bytes);
        self.size += bytes;
        self.next = head.next_offset();
    }

    /// Puts the youngest timestamp so far into the time index; the last thing before the segment becomes old.
    pub fn note_newest(&mut self) {
        if let Some(newest) = self.newest
            && newest.timestamp.0 >= 0
            && let Some(relative) = relative(self.base, newest.offset)
        {
            self.times.push(TimeEntry { timestamp: newest.timestamp, relative });
        }
    }

    /// Takes note of a transaction whose abort marker is in the segment; one that is known already is not taken
    /// twice.
    pub fn note_aborted(&mut self, transaction: AbortedTransaction) {
        self.aborted.get_or_insert_with(|| Box::new(Table::new())).push(transaction);
    }

    /// Rows of its indexes are not in their files.
    pub fn has_unwritten_rows(&self) -> bool {
        self.unwritten_rows() != Rows::default()
    }

    /// How many.
    pub fn unwritten_rows(&self) -> Rows {
        let aborted = self.aborted.as_deref().map_or(0, Table::unwritten);
        Rows { index: self.index.unwritten(), times: self.times.unwritten(), aborted }
    }

    /// So many more rows are in the files.
    pub fn mark_written(&mut self, rows: Rows) {
        self.index.mark_written(rows.index);
        self.times.mark_written(rows.times);
        if let Some(aborted) = &mut self.aborted {
            aborted.mark_written(rows.aborted);
        }
    }

    /// Gives the memory of what is in the files back.
    pub fn release_rows(&mut self) {
        self.index.release();
        self.times.release();
        if let Some(aborted) = &mut self.aborted {
            aborted.release();
        }
    }

    pub fn mark(&self) -> SegmentMark {
        SegmentMark {
            size: self.size,
            next: self.next,
            newest: self.newest,
            first_timestamp: self.first_timestamp,
            since_entry: self.since_entry,
            index_rows: self.index.len(),
            time_rows: self.times.len(),
            last_index: self.index.last(),
            last_time: self.times.last(),
            aborted_rows: self.aborted.as_deref().map_or(0, Table::len),
            last_aborted: self.aborted.as_deref().and_then(Table::last),
        }
    }

    /// Forgets what was noted since the mark. No row of it may have been written: none is within one append.
    pub fn rollback(&mut self, mark: &SegmentMark) {
        self.size = mark.size;
        self.next = mark.next;
        self.newest = mark.newest;
        self.first_timestamp = mark.first_timestamp;
        self.since_entry = mark.since_entry;
        self.index.rollback(mark.index_rows, mark.last_index);
        self.times.rollback(mark.time_rows, mark.last_time);
        if let Some(aborted) = &mut self.aborted {
            aborted.rollback(mark.aborted_rows, mark.last_aborted);
        }
    }

    /// The youngest timestamp of its records; without one when its file was written last, as in Kafka.
    pub fn largest_timestamp(&self) -> Timestamp {
        match self.newest {
            Some(newest) if newest.timestamp.0 >= 0 => newest.timestamp,
            _ => self.modified,
        }
    }

    /// Whether its records have timestamps.
    pub fn has_timestamps(&self) -> bool {
        self.newest.is_some_and(|newest| newest.timestamp.0 >= 0)
    }

    /// Records' time since the first batch (Kafka's `timeWaitedForRoll`), milliseconds.
    pub fn age_ms(&self, batch: Timestamp, wall: Timestamp) -> i64 {
        match self.first_timestamp {
            Some(first) if first.0 >= 0 => batch.0.saturating_sub(first.0),
            _ => wall.0.saturating_sub(self.created.0),
        }
    }
}
