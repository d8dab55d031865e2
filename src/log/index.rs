//! The two indexes of a segment: offset → position and timestamp → offset, Kafka's `.index` and `.timeindex`.
//!
//! Both are tables of fixed-size entries that only grow. The newest entries are in memory, the older ones in
//! the file: of the active segment those since the last write and a few hundred before them, of an old segment
//! none. Nothing here opens a file; jobs write the new entries.

use std::collections::VecDeque;
use std::io;

use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::io::FileHandle;

/// Entries that stay in memory after they were written: 2 MiB of log and more are found without the file.
const ENTRIES_KEPT: usize = 512;

/// A row of an index.
pub(super) trait Entry: Copy {
    const BYTES: usize;
    fn encode(&self, into: &mut Vec<u8>);
    /// `bytes` are `BYTES` long.
    fn decode(bytes: &[u8]) -> Self;
    /// Whether this may directly follow `earlier`.
    fn follows(&self, earlier: &Self) -> bool;
}

/// `.index`: the batch at `position` has the last offset `base + relative`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OffsetEntry {
    pub relative: u32,
    pub position: u32,
}

impl Entry for OffsetEntry {
    const BYTES: usize = 8;

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.relative.to_be_bytes());
        into.extend_from_slice(&self.position.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Self {
        Self { relative: be_u32(&bytes[..4]), position: be_u32(&bytes[4..8]) }
    }

    fn follows(&self, earlier: &Self) -> bool {
        self.relative > earlier.relative && self.position > earlier.position
    }
}

/// `.timeindex`: no record up to `base + relative` is younger than `timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TimeEntry {
    pub timestamp: Timestamp,
    pub relative: u32,
}

impl Entry for TimeEntry {
    const BYTES: usize = 12;

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.timestamp.0.to_be_bytes());
        into.extend_from_slice(&self.relative.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Self {
        let mut timestamp = [0; 8];
        timestamp.copy_from_slice(&bytes[..8]);
        Self { timestamp: Timestamp(i64::from_be_bytes(timestamp)), relative: be_u32(&bytes[8..12]) }
    }

    fn follows(&self, earlier: &Self) -> bool {
        self.timestamp > earlier.timestamp && self.relative >= earlier.relative
    }
}

fn be_u32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// The offset of an entry relative to the segment's base; `None` when an index cannot hold it.
pub(super) fn relative(base: Offset, offset: Offset) -> Option<u32> {
    u32::try_from(offset.0.checked_sub(base.0)?).ok().filter(|relative| *relative <= i32::MAX as u32)
}

/// Where an entry is to be looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lookup<E> {
    /// The answer: the last entry that satisfies, if one does.
    Known(Option<E>),
    /// Among the first `entries` of the file.
    InFile { entries: u32 },
}

/// An index: rows in ascending order.
#[derive(Clone, Debug)]
pub(super) struct Table<E> {
    /// Rows in the file.
    written: u32,
    /// The last rows; some of them may be in the file already.
    tail: VecDeque<E>,
    /// Rows before `tail`, all of them in the file.
    before_tail: u32,
    last: Option<E>,
}

impl<E: Entry> Table<E> {
    pub fn new() -> Self {
        Self { written: 0, tail: VecDeque::new(), before_tail: 0, last: None }
    }

    /// All rows are in the file; `last` is the last of them.
    pub fn on_disk(rows: u32, last: Option<E>) -> Self {
        assert_eq!(rows == 0, last.is_none());
        Self { written: rows, tail: VecDeque::new(), before_tail: rows, last }
    }

    pub fn len(&self) -> u32 {
        self.before_tail + self.tail.len() as u32
    }

    /// Rows that can be read from the file.
    pub fn in_file(&self) -> u32 {
        self.written
    }

    pub fn last(&self) -> Option<E> {
        self.last
    }

    /// Appends a row unless it would break the order; tells whether it did.
    pub fn push(&mut self, entry: E) -> bool {
        if self.last.is_some_and(|last| !entry.follows(&last)) {
            return false;
        }
        self.tail.push_back(entry);
        self.last = Some(entry);
        true
    }

    /// Finds the last row for which `satisfies` holds; it must hold for a prefix of the rows.
    pub fn floor(&self, satisfies: impl Fn(&E) -> bool) -> Lookup<E> {
        match self.tail.front() {
            Some(first) if satisfies(first) => {
                let count = self.tail.partition_point(satisfies);
                Lookup::Known(Some(self.tail[count - 1]))
            }
            _ if self.before_tail == 0 => Lookup::Known(None),
            _ => Lookup::InFile { entries: self.before_tail },
        }
    }

    /// The rows behind those for which `before` holds, a prefix, if memory has them all.
    pub fn after(&self, before: impl Fn(&E) -> bool) -> Option<impl Iterator<Item = E>> {
        let from = match self.last {
            Some(last) if before(&last) => self.tail.len(),
            _ => self.tail.partition_point(&before),
        };
        let is_whole = from > 0 || self.before_tail == 0 || self.last.is_none_or(|last| before(&last));
        is_whole.then(|| self.tail.range(from..).copied())
    }

    /// The first row for which `before` does not hold, if it is in memory and known to be the first.
    pub fn first_in_memory(&self, before: impl Fn(&E) -> bool) -> Option<E> {
        self.after(before)?.next()
    }

    /// The rows that are in memory, and how many the file has before them.
    pub fn tail(&self) -> (u32, impl Iterator<Item = E>) {
        (self.before_tail, self.tail.iter().copied())
    }

    /// Takes all rows of the file back into memory, unless they are too many or some were added since.
    pub fn refill(&mut self, rows: Vec<E>) {
        if self.tail.is_empty() && rows.len() as u32 == self.written && rows.len() <= ENTRIES_KEPT {
            self.tail = rows.into();
            self.before_tail = 0;
        }
    }

    /// So few rows that memory may have them all.
    pub fn is_small(&self) -> bool {
        self.len() as usize <= ENTRIES_KEPT
    }

    /// Rows that the file lacks.
    pub fn unwritten(&self) -> u32 {
        self.len() - self.written
    }

    /// The bytes of the rows that the file lacks, and where they go.
    pub fn pending(&self) -> Pending {
        let skip = (self.written - self.before_tail) as usize;
        let mut bytes = Vec::with_capacity(self.unwritten() as usize * E::BYTES);
        self.tail.iter().skip(skip).for_each(|entry| entry.encode(&mut bytes));
        Pending { position: u64::from(self.written) * E::BYTES as u64, rows: self.unwritten(), bytes }
    }

    /// `rows` more are in the file.
    pub fn mark_written(&mut self, rows: u32) {
        self.written += rows;
        assert!(self.written <= self.len());
        while self.tail.len() > ENTRIES_KEPT && self.before_tail < self.written {
            self.tail.pop_front();
            self.before_tail += 1;
        }
    }

    /// Takes back the rows after the first `rows`, none of which is in the file; `last` is then the last one.
    pub fn rollback(&mut self, rows: u32, last: Option<E>) {
        assert!(rows >= self.written);
        self.tail.truncate((rows - self.before_tail) as usize);
        self.last = last;
    }

    /// Gives the memory of what is in the file back.
    pub fn release(&mut self) {
        let evict = (self.written - self.before_tail) as usize;
        self.tail.drain(..evict);
        self.before_tail = self.written;
        self.tail.shrink_to_fit();
    }
}

/// Rows on their way to the file.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub position: u64,
    pub rows: u32,
    pub bytes: Vec<u8>,
}

/// No row is longer.
const ROW_BYTES_MAX: usize = 34;

/// Reads the row `number` of an index file.
pub(super) fn row<E: Entry>(file: &impl FileHandle, number: u32) -> io::Result<E> {
    let mut bytes = [0; ROW_BYTES_MAX];
    let read = file.read_at(&mut bytes[..E::BYTES], u64::from(number) * E::BYTES as u64)?;
    if read < E::BYTES {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(E::decode(&bytes[..E::BYTES]))
}

/// Reads up to `count` rows from `number` on.
pub(super) fn rows<E: Entry>(file: &impl FileHandle, number: u32, count: u32) -> io::Result<Vec<E>> {
    let mut bytes = vec![0; count as usize * E::BYTES];
    let read = file.read_at(&mut bytes, u64::from(number) * E::BYTES as u64)?;
    Ok(bytes[..read].chunks_exact(E::BYTES).map(E::decode).collect())
}

/// Whether the log has a batch at the row's position that the row may speak of: one that begins at or before its
/// offset. A row that was damaged leads into the middle of a batch, or behind the offset, and records would be
/// passed over.
pub(super) fn is_sound(log: &impl FileHandle, base: Offset, entry: &OffsetEntry) -> io::Result<bool> {
    let mut offset = [0; 8];
    let read = log.read_at(&mut offset, u64::from(entry.position))?;
    let offset = Offset(i64::from_be_bytes(offset));
    Ok(read == 8 && offset >= base && offset <= base.plus(i64::from(entry.relative)))
}

/// Binary search among the first `rows` of an index file for the last row that satisfies, with its number: up to
/// 20 small reads.
pub(super) fn floor_in_file<E: Entry>(
    file: &impl FileHandle,
    rows: u32,
    satisfies: impl Fn(&E) -> bool,
) -> io::Result<Option<(u32, E)>> {
    let (mut low, mut high, mut found) = (0, rows, None);
    while low < high {
        let middle = low + (high - low) / 2;
        let entry = row::<E>(file, middle)?;
        if satisfies(&entry) {
            found = Some((middle, entry));
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(found)
}

/// Reads a whole index file and returns its longest ordered prefix. What follows it was lost in a crash, or
/// is the zeroes of a file that Kafka had preallocated.
pub(super) fn ordered_prefix<E: Entry>(file: &impl FileHandle, rows_max: u32) -> io::Result<Vec<E>> {
    let rows = (file.len()? / E::BYTES as u64).min(u64::from(rows_max)) as usize;
    let mut bytes = vec![0; rows * E::BYTES];
    let read = file.read_at(&mut bytes, 0)?;
    let mut entries: Vec<E> = Vec::with_capacity(rows);
    for chunk in bytes[..read].chunks_exact(E::BYTES) {
        let entry = E::decode(chunk);
        if entries.last().is_some_and(|last| !entry.follows(last)) {
            break;
        }
        entries.push(entry);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::io::mem::MemFiles;
    use crate::io::{Files, OpenMode};

    fn entries(steps: &[(u32, u32)]) -> Vec<OffsetEntry> {
        let mut last = OffsetEntry { relative: 0, position: 0 };
        let add = |(relative, position): &(u32, u32)| {
            last = OffsetEntry {
                relative: last.relative + 1 + relative,
                position: last.position + 1 + position,
            };
            last
        };
        steps.iter().map(add).collect()
    }

    #[test]
    fn no_more_of_an_index_file_is_read_than_its_log_can_have_rows() {
        let rows = entries(&[(1, 1); 10]);
        let mut bytes = Vec::new();
        rows.iter().for_each(|row| row.encode(&mut bytes));
        let files = MemFiles::new(1);
        let file = files.open(std::path::Path::new("/i"), OpenMode::Create).unwrap();
        file.write_all_at(&mut [std::io::IoSlice::new(&bytes)], 0).unwrap();
        assert_eq!(ordered_prefix::<OffsetEntry>(&file, 4).unwrap(), &rows[..4]);
        assert_eq!(ordered_prefix::<OffsetEntry>(&file, 11).unwrap(), rows);
    }

    proptest! {
        #[test]
        fn floor_agrees_wherever_the_rows_are(
            steps in prop::collection::vec((0u32..20, 0u32..20), 0..2000),
            written in 0usize..2000,
            wanted in 0u32..30_000,
        ) {
            let rows = entries(&steps);
            let files = MemFiles::new(1);
            let path = std::path::Path::new("/i");
            let file = files.open(path, OpenMode::CreateNew).unwrap();
            let mut table = Table::new();
            let written = written.min(rows.len());
            for (number, row) in rows.iter().enumerate() {
                prop_assert!(table.push(*row));
                if number + 1 == written {
                    let pending = table.pending();
                    file.write_all_at(&mut [io::IoSlice::new(&pending.bytes)], pending.position).unwrap();
                    table.mark_written(pending.rows);
                }
            }
            prop_assert_eq!(table.unwritten() as usize, rows.len() - written);
            let satisfies = |entry: &OffsetEntry| entry.relative <= wanted;
            let expected = rows.iter().copied().rfind(satisfies);
            for _ in 0..2 {
                let found = match table.floor(satisfies) {
                    Lookup::Known(found) => found,
                    Lookup::InFile { entries } => {
                        floor_in_file(&file, entries, satisfies).unwrap().map(|(_, entry)| entry)
                    }
                };
                prop_assert_eq!(found, expected);
                table.release();
            }
            prop_assert_eq!(ordered_prefix::<OffsetEntry>(&file, u32::MAX).unwrap(), &rows[..written]);
        }
    }

    #[test]
    fn time_rows_only_grow() {
        let mut table = Table::new();
        let entry = |timestamp, relative| TimeEntry { timestamp: Timestamp(timestamp), relative };
        assert!(table.push(entry(10, 5)));
        assert!(!table.push(entry(10, 6)));
        assert!(!table.push(entry(9, 7)));
        assert!(table.push(entry(11, 5)));
        assert_eq!(table.len(), 2);
        assert_eq!(table.pending().bytes.len(), 24);
    }
}
