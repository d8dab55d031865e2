//! A read that memory and page cache cannot plan: looked up on a file thread. *File thread.*

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::super::error::Context;
use super::super::index::{self, OffsetEntry, relative};
use super::super::names::{self, FileKind};
use super::super::scan::{self, Found};
use super::super::txn_index::{AbortedTransaction, Overlap};
use super::super::{LogContext, LogError, SegmentFile};
use super::{Floor, Place, ReadPlan, ReadRequest, WINDOW_ROWS, plan};
use crate::base::Offset;
use crate::io::{Files, OpenMode};

/// A plan that the disk has to be asked for.
pub struct ReadJob<F: Files> {
    pub(super) context: Arc<LogContext<F>>,
    pub(super) dir: PathBuf,
    pub(super) segment: Offset,
    pub(super) file: Option<Arc<SegmentFile<F>>>,
    pub(super) size: u32,
    pub(super) request: ReadRequest,
    pub(super) start: Floor,
    /// Where the readable part ends, or where to look for the bound.
    pub(super) end: Result<u32, Floor>,
    /// Where the segment's offsets end.
    pub(super) next: Offset,
    /// Rows of the segment's offset index that are in its file.
    pub(super) index_rows: u32,
    /// `None`: aborted transactions are not asked for.
    pub(super) aborted: Option<Vec<AbortedPart>>,
    pub(super) generation: u64,
    pub(super) layout: u64,
}

/// The aborted transactions of one segment.
pub(super) struct AbortedPart {
    pub segment: Offset,
    /// The first rows, which only the file has.
    pub in_file: u32,
    /// Memory may take them.
    pub is_small: bool,
    /// The rows behind those.
    pub tail: Vec<AbortedTransaction>,
}

impl<F: Files> std::fmt::Debug for ReadJob<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadJob").field("segment", &self.segment).field("request", &self.request).finish()
    }
}

/// What a read job found.
pub struct ReadOutcome<F: Files> {
    pub(super) segment: Offset,
    pub(super) request: ReadRequest,
    pub(super) generation: u64,
    pub(super) layout: u64,
    pub(super) result: Result<Answer<F>, LogError>,
}

pub(super) struct Answer<F: Files> {
    pub file: Arc<SegmentFile<F>>,
    pub rows: Vec<OffsetEntry>,
    pub place: Option<Place>,
    pub end: u32,
    pub aborted: Option<Vec<AbortedTransaction>>,
    /// All rows of some transaction indexes.
    pub loaded: Vec<(Offset, Vec<AbortedTransaction>)>,
    /// The offset index of the segment leads astray.
    pub index_damaged: bool,
}

impl<F: Files> ReadJob<F> {
    /// *File thread.*
    pub fn run(self) -> ReadOutcome<F> {
        let result = self.look();
        ReadOutcome {
            segment: self.segment,
            request: self.request,
            generation: self.generation,
            layout: self.layout,
            result,
        }
    }

    fn look(&self) -> Result<Answer<F>, LogError> {
        let path = names::file(&self.dir, self.segment, FileKind::Log);
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                let file = self.context.files.open(&path, OpenMode::Write).context("open", &path)?;
                SegmentFile::new(&self.context, file)
            }
        };
        let mut index_damaged = false;
        let (found, rows) = self.find(&**file, self.start, self.request.offset, &mut index_damaged)?;
        let end = match self.end {
            Ok(end) => end,
            Err(floor) => {
                let (bound, _) = self.find(&**file, floor, self.request.upper_bound, &mut index_damaged)?;
                bound.map_or(self.size, |bound| bound.position)
            }
        };
        let place =
            found.map(|found| Place { position: found.position, length: found.head.total_len() as u32 });
        let mut loaded = Vec::new();
        let aborted = match (place, &self.aborted) {
            (Some(place), Some(parts)) => {
                let plan = plan(self.request, self.segment, &file, place, end, false);
                Some(self.look_for_aborted(parts, &plan, &mut loaded)?)
            }
            (_, parts) => parts.as_ref().map(|_| Vec::new()),
        };
        Ok(Answer { file, rows, place, end, aborted, loaded, index_damaged })
    }

    fn look_for_aborted(
        &self,
        parts: &[AbortedPart],
        plan: &ReadPlan<F>,
        loaded: &mut Vec<(Offset, Vec<AbortedTransaction>)>,
    ) -> Result<Vec<AbortedTransaction>, LogError> {
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        let files = &self.context.files;
        let mut overlap = Overlap::new(self.request.offset, self.offset_after(plan)?);
        for part in parts {
            if part.in_file > 0 {
                let path = names::file(&self.dir, part.segment, FileKind::TransactionIndex);
                let file = files.open(&path, OpenMode::Read).context("open", &path)?;
                if part.is_small && part.tail.is_empty() {
                    let rows = index::rows(&file, 0, part.in_file).context("read", &path)?;
                    let is_done = overlap.take(rows.iter().copied());
                    loaded.push((part.segment, rows));
                    if is_done {
                        break;
                    }
                    continue;
                }
                if overlap.take_from_file(&file, part.in_file).context("read", &path)? {
                    break;
                }
            }
            if overlap.take(part.tail.iter().copied()) {
                break;
            }
        }
        Ok(overlap.into_found())
    }

    /// An offset behind the records of a plan.
    fn offset_after(&self, plan: &ReadPlan<F>) -> Result<Offset, LogError> {
        let bound = self.request.upper_bound.min(self.next);
        let Some(range) = &plan.range else { return Ok(self.request.offset) };
        if self.index_rows == 0 {
            return Ok(bound);
        }
        let end = range.position + u64::from(range.length);
        let path = names::file(&self.dir, self.segment, FileKind::OffsetIndex);
        let file = self.context.files.open(&path, OpenMode::Read).context("open", &path)?;
        let before = |row: &OffsetEntry| u64::from(row.position) < end;
        let last = match index::floor_in_file(&file, self.index_rows, before) {
            // It is shorter than it was; the search for a position has it built anew.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(bound),
            last => last.context("search", &path)?,
        };
        let number = last.map_or(0, |(number, _)| number + 1);
        if number >= self.index_rows {
            return Ok(bound);
        }
        let row: OffsetEntry = index::row(&file, number).context("read", &path)?;
        // A damaged row must not hide a transaction.
        let log = &**range.file;
        if !index::is_sound(log, self.segment, &row).context("read", &path)? {
            return Ok(bound);
        }
        Ok(bound.min(self.segment.plus(i64::from(row.relative) + 1)))
    }

    /// Searches from where the index says, and from the segment's beginning when the index is wrong.
    fn find(
        &self,
        file: &F::File,
        floor: Floor,
        offset: Offset,
        index_damaged: &mut bool,
    ) -> Result<(Option<Found>, Vec<OffsetEntry>), LogError> {
        let path = names::file(&self.dir, self.segment, FileKind::Log);
        let (start, rows) = match self.position(floor, offset) {
            Ok(position) => position,
            // The index is shorter than it was: begin behind any log.
            Err(error) if error.source.kind() == io::ErrorKind::UnexpectedEof => (u32::MAX, Vec::new()),
            Err(error) => return Err(error),
        };
        let is_sound = match rows.first() {
            Some(row) => index::is_sound(file, self.segment, row).context("read", &path)?,
            None => true,
        };
        let found = scan::find(file, start, self.size, offset);
        let is_sound = is_sound && (start < self.size || start == 0);
        let is_lost = |error: &io::Error| error.kind() == io::ErrorKind::InvalidData && start > 0;
        match found {
            Ok(found) if is_sound => return Ok((found, rows)),
            Err(error) if is_sound && !is_lost(&error) => return Err(error).context("scan", &path),
            _ => {}
        }
        let found = scan::find(file, 0, self.size, offset).context("scan", &path)?;
        *index_damaged = true;
        Ok((found, Vec::new()))
    }

    /// The position to search `offset` from, and the index rows around it.
    fn position(&self, floor: Floor, offset: Offset) -> Result<(u32, Vec<OffsetEntry>), LogError> {
        let offset = offset.max(self.segment);
        let rows = match floor {
            Floor::Position(position) => return Ok((position, Vec::new())),
            Floor::InIndex { rows } => rows,
        };
        let path = names::file(&self.dir, self.segment, FileKind::OffsetIndex);
        let file = self.context.files.open(&path, OpenMode::Read).context("open", &path)?;
        let wanted = relative(self.segment, offset).unwrap_or(u32::MAX);
        let floor = index::floor_in_file::<OffsetEntry>(&file, rows, |entry| entry.relative <= wanted);
        let Some((number, _)) = floor.context("search", &path)? else { return Ok((0, Vec::new())) };
        let window = index::rows(&file, number, WINDOW_ROWS.min(rows - number)).context("read", &path)?;
        Ok((window.first().map_or(0, |entry: &OffsetEntry| entry.position), window))
    }
}
