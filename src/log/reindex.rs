//! Builds the indexes of an old segment anew while the log is in service, after a read found that they lead astray.
//! Until then reads of the segment begin at its start.

use std::path::Path;

use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::io::{Files, OpenMode};

use super::error::Context;
use super::index::{OffsetEntry, Table, TimeEntry};
use super::names::{self, FileKind};
use super::scan::{Scan, Step};
use super::segment::{Segment, SegmentFile};
use super::{Log, LogContext, LogError};

/// The indexes of a segment; all rows are in the files.
pub(super) struct Tables {
    index: Table<OffsetEntry>,
    times: Table<TimeEntry>,
}

impl<F: Files> Log<F> {
    /// *Shard.* A read has found that the offset index of the segment is wrong.
    pub(super) fn index_damaged(&mut self, segment: Offset) {
        self.windows.retain(|window| window.segment() != segment);
        if !self.upkeep.reindex.contains(&segment) {
            self.counts.indexes_damaged += 1;
            tracing::error!(
                partition = %self.topic_partition,
                %segment,
                "the offset index is damaged: it is built anew"
            );
            self.upkeep.reindex.push(segment);
        }
    }

    /// The next segment to index and its size; the active one's turn comes when it is no longer that.
    pub(super) fn reindex_due(&self) -> Option<(Offset, u32)> {
        let last = self.segments.len() - 1;
        let due = |base: &Offset| {
            let number = self.segments.iter().position(|segment| segment.base == *base)?;
            (number < last && self.segments[number].index.unwritten() == 0)
                .then(|| (*base, self.segments[number].size))
        };
        self.upkeep.reindex.iter().find_map(due)
    }

    /// *Shard.* Takes the new tables; an error that passes leaves the old ones, and reads find out again.
    pub(super) fn reindexed(
        &mut self,
        base: Offset,
        tables: Result<Option<Tables>, LogError>,
    ) -> Result<(), LogError> {
        let tables = match tables {
            Ok(tables) => tables,
            Err(error) if error.fault().passes() => {
                self.note_refusal(&error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let segment = self.segments.iter_mut().find(|segment| segment.base == base);
        if let (Some(tables), Some(segment)) = (tables, segment) {
            segment.index = tables.index;
            segment.times = tables.times;
            tracing::info!(partition = %self.topic_partition, segment = %base, "the indexes are built anew");
        }
        Ok(())
    }
}

/// Reads all heads of the segment and replaces its index files. `None`: retention has taken it. *File thread.*
pub(super) fn rebuild<F: Files>(
    context: &std::sync::Arc<LogContext<F>>,
    dir: &Path,
    base: Offset,
    size: u32,
    interval: u32,
) -> Result<Option<Tables>, LogError> {
    let files = &context.files;
    let path = names::file(dir, base, FileKind::Log);
    let file = match files.open(&path, OpenMode::Read) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => SegmentFile::new(context, opened.context("open", &path)?),
    };
    let mut segment = Segment::new(base, file.clone(), Timestamp::NONE);
    let mut scan = Scan::heads(&**file, 0, size, base);
    // Damage ends the indexes: what lies behind it is found from the last row on, as far as it can be.
    while let Step::Batch(found) = scan.next().context("scan", &path)? {
        segment.note(&found.head, interval);
    }
    segment.note_newest();
    let (index, times) = (segment.index.pending(), segment.times.pending());
    for (kind, pending) in [(FileKind::OffsetIndex, &index), (FileKind::TimeIndex, &times)] {
        let path = names::file(dir, base, kind);
        files.write_atomically(&path, &pending.bytes).context("write", &path)?;
    }
    Ok(Some(Tables {
        index: Table::on_disk(index.rows, segment.index.last()),
        times: Table::on_disk(times.rows, segment.times.last()),
    }))
}
