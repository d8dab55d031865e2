//! The transaction index of a segment: its aborted transactions, Kafka's `.txnindex` (`TransactionIndex`). A
//! consumer with read_committed is told of those that overlap what it fetches and leaves their records out.
//!
//! A row is made where the abort marker is, in whichever segment the transaction began; the file appears with
//! its first row. The rows are a [`Table`] like those of the other indexes: the shard appends to memory, jobs
//! write the file. Most segments have none.

use std::path::Path;

use crate::base::{Offset, ProducerId};
use crate::io::{FileHandle, Files, OpenMode};

use super::LogError;
use super::error::Context;
use super::index::{self, Entry, Table};
use super::names::{self, FileKind};

const VERSION: i16 = 0;

/// A transaction that was aborted on this partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AbortedTransaction {
    pub producer: ProducerId,
    /// Its first record.
    pub first: Offset,
    /// Its marker.
    pub last: Offset,
    /// The first record of the transactions that were open when it ended, or what follows the marker: all
    /// that lies below was decided then.
    pub last_stable: Offset,
}

impl Entry for AbortedTransaction {
    const BYTES: usize = 34;

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&VERSION.to_be_bytes());
        for field in [self.producer.0, self.first.0, self.last.0, self.last_stable.0] {
            into.extend_from_slice(&field.to_be_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Self {
        let field = |at: usize| bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | i64::from(*byte));
        Self {
            producer: ProducerId(field(2)),
            first: Offset(field(10)),
            last: Offset(field(18)),
            last_stable: Offset(field(26)),
        }
    }

    fn follows(&self, earlier: &Self) -> bool {
        self.last > earlier.last
    }
}

/// The rows of a segment, for those that have some.
pub(super) type AbortedTable = Table<AbortedTransaction>;

/// Gathers the transactions that overlap the records from `from` to below `to`.
#[derive(Debug)]
pub(super) struct Overlap {
    from: Offset,
    to: Offset,
    found: Vec<AbortedTransaction>,
}

impl Overlap {
    pub fn new(from: Offset, to: Offset) -> Self {
        Self { from, to, found: Vec::new() }
    }

    /// Takes the rows in their order; true once no further row can matter.
    pub fn take(&mut self, rows: impl IntoIterator<Item = AbortedTransaction>) -> bool {
        for row in rows {
            if row.last >= self.from && row.first < self.to {
                self.found.push(row);
            }
            if row.last_stable >= self.to {
                return true;
            }
        }
        false
    }

    /// Ordered by their first records.
    pub fn into_found(mut self) -> Vec<AbortedTransaction> {
        self.found.sort_unstable_by_key(|row| row.first);
        self.found
    }

    /// Whether a row ends before all that is asked for.
    fn is_before(&self) -> impl Fn(&AbortedTransaction) -> bool + use<> {
        let from = self.from;
        move |row| row.last < from
    }

    /// Takes the rows of a table, if memory has those that matter: whether it is done, as [`Overlap::take`].
    pub fn take_from_memory(&mut self, table: &AbortedTable) -> Option<bool> {
        let rows = table.after(self.is_before())?;
        Some(self.take(rows))
    }

    /// Takes the first `rows` of a segment's file.
    pub fn take_from_file(&mut self, file: &impl FileHandle, rows: u32) -> std::io::Result<bool> {
        const ROWS_AT_ONCE: u32 = 1024;
        let before = index::floor_in_file(file, rows, self.is_before())?;
        let mut next = before.map_or(0, |(number, _)| number + 1);
        while next < rows {
            let chunk = index::rows(file, next, ROWS_AT_ONCE.min(rows - next))?;
            if chunk.is_empty() {
                break;
            }
            next += chunk.len() as u32;
            if self.take(chunk) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Reads the file of the segment at `base`, whose log has `log_bytes`; `None` if it cannot be right.
pub(super) fn load<F: Files>(
    files: &F,
    dir: &Path,
    base: Offset,
    log_bytes: u32,
) -> Result<Option<Vec<AbortedTransaction>>, LogError> {
    let path = names::file(dir, base, FileKind::TransactionIndex);
    let file = files.open(&path, OpenMode::Read).context("open", &path)?;
    let length = file.len().context("measure", &path)?;
    // A marker is longer than its row: what is longer than the log is not to be read.
    let Ok(bytes) = usize::try_from(length) else { return Ok(None) };
    if length > u64::from(log_bytes) || bytes % AbortedTransaction::BYTES != 0 {
        return Ok(None);
    }
    let mut contents = vec![0; bytes];
    if file.read_at(&mut contents, 0).context("read", &path)? < bytes {
        return Ok(None);
    }
    let mut rows: Vec<AbortedTransaction> = Vec::with_capacity(bytes / AbortedTransaction::BYTES);
    for chunk in contents.chunks_exact(AbortedTransaction::BYTES) {
        let row = AbortedTransaction::decode(chunk);
        let sound = chunk[..2] == VERSION.to_be_bytes()
            && row.producer.0 >= 0
            && 0 <= row.first.0
            && row.first < row.last
            && base <= row.last
            && 0 <= row.last_stable.0
            && row.last_stable.0 <= row.last.0.saturating_add(1)
            && rows.last().is_none_or(|last| row.follows(last));
        if !sound {
            return Ok(None);
        }
        rows.push(row);
    }
    Ok(Some(rows))
}

/// The length of a file of `rows` rows.
pub(super) fn file_bytes(rows: usize) -> u64 {
    (rows * AbortedTransaction::BYTES) as u64
}

/// The table for rows that are all in the file; `None` for no rows.
pub(super) fn on_disk(rows: &[AbortedTransaction]) -> Option<Box<AbortedTable>> {
    (!rows.is_empty()).then(|| Box::new(Table::on_disk(rows.len() as u32, rows.last().copied())))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use crate::io::mem::MemFiles;

    fn row(producer: i64, first: i64, last: i64, last_stable: i64) -> AbortedTransaction {
        AbortedTransaction {
            producer: ProducerId(producer),
            first: Offset(first),
            last: Offset(last),
            last_stable: Offset(last_stable),
        }
    }

    fn write(files: &MemFiles, bytes: &[u8]) {
        let path = names::file(Path::new("/"), Offset(10), FileKind::TransactionIndex);
        let file = files.open(&path, OpenMode::Create).unwrap();
        file.truncate(0).unwrap();
        file.write_all_at(&mut [IoSlice::new(bytes)], 0).unwrap();
    }

    fn encode(rows: &[AbortedTransaction]) -> Vec<u8> {
        let mut bytes = Vec::new();
        rows.iter().for_each(|row| row.encode(&mut bytes));
        bytes
    }

    #[test]
    fn rows_are_kafkas_and_damage_is_told() {
        let files = MemFiles::new(1);
        let rows = [row(1, 5, 17, 8), row(7, 19, 20, 8)];
        let bytes = encode(&rows);
        assert_eq!(bytes.len(), 68);
        assert_eq!(bytes[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        let load = |bytes: &[u8]| {
            write(&files, bytes);
            super::load(&files, Path::new("/"), Offset(10), 1000).unwrap()
        };
        assert_eq!(load(&bytes), Some(rows.to_vec()));
        assert_eq!(load(&bytes[..67]), None, "torn");
        assert_eq!(load(&encode(&[rows[1], rows[0]])), None, "out of order");
        assert_eq!(load(&encode(&[row(1, 3, 9, 10)])), None, "before the segment");
        assert_eq!(load(&encode(&[row(1, 18, 17, 8)])), None, "ends before it begins");
        assert_eq!(load(&[&[0, 1], &bytes[2..]].concat()), None, "another version");
        assert_eq!(load(&[0; 34]), None, "zeroes");
        write(&files, &bytes);
        assert_eq!(super::load(&files, Path::new("/"), Offset(10), 67).unwrap(), None, "longer than its log");
    }

    #[test]
    fn the_search_takes_what_overlaps_and_stops_when_nothing_more_can() {
        let files = MemFiles::new(1);
        // The third began before everything and ended late: the others were undecided for readers till then.
        let rows = [row(1, 12, 13, 11), row(2, 15, 16, 11), row(3, 11, 20, 21), row(4, 30, 31, 32)];
        write(&files, &encode(&rows));
        let path = names::file(Path::new("/"), Offset(10), FileKind::TransactionIndex);
        let file = files.open(&path, OpenMode::Read).unwrap();
        let mut table = Table::new();
        assert!(rows.iter().all(|row| table.push(*row)));
        for (from, to, expected, done) in [
            (0, 10, &[][..], true),
            (10, 12, &[3][..], true),
            (10, 13, &[3, 1], true),
            (14, 40, &[3, 2, 4], false),
            (17, 22, &[3], true),
            (21, 30, &[], true),
            (32, 40, &[], false),
        ] {
            let found =
                |overlap: Overlap| overlap.into_found().iter().map(|row| row.producer.0).collect::<Vec<_>>();
            let mut overlap = Overlap::new(Offset(from), Offset(to));
            assert_eq!(overlap.take_from_file(&file, 4).unwrap(), done, "{from}..{to}");
            assert_eq!(found(overlap), expected, "{from}..{to}");
            let mut overlap = Overlap::new(Offset(from), Offset(to));
            assert_eq!(overlap.take_from_memory(&table), Some(done), "{from}..{to}");
            assert_eq!(found(overlap), expected, "{from}..{to}");
        }
        let on_disk = on_disk(&rows).unwrap();
        assert_eq!(Overlap::new(Offset(31), Offset(40)).take_from_memory(&on_disk), None);
        assert_eq!(Overlap::new(Offset(32), Offset(40)).take_from_memory(&on_disk), Some(false));
    }
}
