//! Read plans: which bytes of which file answer a fetch. No byte is moved here.
//!
//! On the shard a plan is made of what memory and the page cache know; what they do not know a [`ReadJob`] finds
//! out on a file thread.

mod job;

use std::io;
use std::sync::Arc;

use crate::base::Offset;
use crate::io::{FileHandle, Files};
use crate::wire::record::{BatchHead, HEAD_LEN};

use self::job::AbortedPart;
pub use self::job::{ReadJob, ReadOutcome};
use super::index::{Lookup, OffsetEntry, relative};
use super::names::{self, FileKind};
use super::segment::Segment;
use super::txn_index::{AbortedTransaction, Overlap};
use super::{FileRange, Log, LogError, OffsetMetadata, ReadError, SegmentFile};

/// Positions of batches that are remembered after an append: the tail is read without a look at the file.
const RECENT_MAX: usize = 256;

/// Batches that a plan may step over on the shard; further ones are for a file thread.
const STEPS_MAX: usize = 64;

/// Read at once on the shard to step over batches: what lies between two rows of the index, mostly.
const LOOK_BYTES: usize = 4096;

/// So much before the end of a log counts as its tail.
const TAIL_BYTES: u32 = 32 << 20;

/// Windows of old index files that are remembered.
const WINDOWS_MAX: usize = 4;

/// Index rows in a window: 4 KiB of memory for 2 MiB of log or more.
const WINDOW_ROWS: u32 = 512;

/// Where a batch begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    pub first: Offset,
    /// The offset after its last record.
    pub next: Offset,
    pub segment: Offset,
    pub position: u32,
}

/// Some rows of the offset index of a segment, as a read job found them.
#[derive(Debug)]
pub(super) struct Window {
    segment: Offset,
    rows: Vec<OffsetEntry>,
}

impl Window {
    pub fn segment(&self) -> Offset {
        self.segment
    }
}

/// Bytes of a file that have just been read.
struct Looked {
    position: u32,
    length: usize,
}

impl Looked {
    /// Whether a whole head from `position` on is among them.
    fn contains(&self, position: u32) -> bool {
        position.checked_sub(self.position).is_some_and(|skip| skip as usize + HEAD_LEN <= self.length)
    }
}

/// What a fetch asks of one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    pub offset: Offset,
    pub bytes_max: u32,
    /// High watermark, last stable offset or log end: no record from here on is returned.
    pub upper_bound: Offset,
    /// Returns the first batch whole even when it is longer than `bytes_max`.
    pub whole_first_batch: bool,
    /// Tells the aborted transactions too (read_committed).
    pub with_aborted: bool,
}

impl ReadRequest {
    /// The answer without a record.
    fn nothing<F: Files>(&self, start: OffsetMetadata) -> ReadPlan<F> {
        let aborted = self.with_aborted.then(Vec::new);
        ReadPlan { start, range: None, first_batch_bytes: 0, aborted }
    }
}

/// A plan, or what it takes to make one.
#[derive(Debug)]
pub enum Read<F: Files> {
    Plan(ReadPlan<F>),
    /// Run it on a file thread and give the outcome to [`Log::finish_read`].
    NeedsDisk(ReadJob<F>),
}

/// The answer to a fetch.
#[derive(Debug)]
pub struct ReadPlan<F: Files> {
    /// The offset that was asked for, and the position of its batch.
    pub start: OffsetMetadata,
    /// `None`: there is nothing below the bound, or `bytes_max` is 0.
    pub range: Option<FileRange<F>>,
    /// Bytes of the batch that the range begins with; more than the range's when that was cut.
    pub first_batch_bytes: u32,
    /// The aborted transactions that overlap the range, ordered by first offset, perhaps some that lie behind it;
    /// `None` if they were not asked for.
    pub aborted: Option<Vec<AbortedTransaction>>,
}

/// A batch's place in its segment.
#[derive(Clone, Copy, Debug)]
struct Place {
    position: u32,
    /// Bytes of the batch.
    length: u32,
}

/// What memory and page cache say about an offset of a segment.
enum Located {
    At(Place),
    /// All of the segment's batches end before it.
    Beyond,
    /// The disk has to be asked, from the best known position on.
    Unknown {
        floor: Floor,
    },
}

/// The best known place to begin a search for an offset.
#[derive(Clone, Copy, Debug)]
enum Floor {
    Position(u32),
    /// The last row among the first `rows` of the index file that is not above the offset.
    InIndex {
        rows: u32,
    },
}

impl<F: Files> Log<F> {
    /// *Shard.* Plans a fetch. The plan starts at the batch that holds the offset, ends before the bound, and
    /// stays within one segment.
    pub fn read(&mut self, request: ReadRequest) -> Result<Read<F>, ReadError> {
        if request.offset < self.log_start || request.offset > self.log_end() {
            return Err(ReadError::OutOfRange);
        }
        if request.offset >= request.upper_bound.min(self.log_end()) {
            let start = self.offset_metadata(request.offset).unwrap_or(OffsetMetadata {
                offset: request.offset,
                segment: self.segments[self.segment_of(request.offset)].base,
                position: 0,
            });
            return Ok(Read::Plan(request.nothing(start)));
        }
        let first = self.segment_of(request.offset);
        for number in first..self.segments.len() {
            if self.segments[number].base >= request.upper_bound {
                break;
            }
            let planned = self.plan_within(number, request)?;
            if let Some(Read::NeedsDisk(_)) = &planned {
                self.counts.cold_reads += 1;
            }
            if let Some(planned) = planned {
                return Ok(planned);
            }
        }
        // Compaction left a gap up to the bound.
        let start =
            OffsetMetadata { offset: request.offset, segment: self.segments[first].base, position: 0 };
        Ok(Read::Plan(request.nothing(start)))
    }

    /// *Shard.* Takes the outcome of a read job: the plan, or the next thing to do.
    pub fn finish_read(&mut self, outcome: ReadOutcome<F>) -> Result<Read<F>, ReadError> {
        if outcome.generation != self.generation {
            return Err(ReadError::Stale);
        }
        // Compaction has exchanged segments: the position may be one of a file that is not there any more.
        if outcome.layout != self.layout {
            return self.read(outcome.request);
        }
        // Retention may have taken it meanwhile; the descriptors still read.
        let alive = self.segments.iter_mut().find(|segment| segment.base == outcome.segment);
        let result = match outcome.result {
            Ok(result) => result,
            Err(_) if alive.is_none() => return self.read(outcome.request),
            Err(error) => return Err(error.into()),
        };
        if let Some(segment) = alive {
            segment.file.get_or_insert_with(|| Arc::clone(&result.file));
            if result.index_damaged {
                self.index_damaged(outcome.segment);
            } else if !result.rows.is_empty() {
                self.windows.truncate(WINDOWS_MAX - 1);
                self.windows.push_front(Window { segment: outcome.segment, rows: result.rows });
            }
        }
        for (base, rows) in result.loaded {
            let segment = self.segments.iter_mut().find(|segment| segment.base == base);
            if let Some(table) = segment.and_then(|segment| segment.aborted.as_deref_mut()) {
                table.refill(rows);
            }
        }
        let request = outcome.request;
        match result.place {
            Some(place) => {
                let plan = plan(request, outcome.segment, &result.file, place, result.end, false);
                Ok(Read::Plan(ReadPlan { aborted: result.aborted, ..plan }))
            }
            // The segment ends before the offset: go on with the next one.
            None if request.offset < self.log_start => Err(ReadError::OutOfRange),
            None => {
                let next =
                    self.segments.iter().map(|segment| segment.base).find(|base| *base > outcome.segment);
                match next {
                    Some(next) => self.read(ReadRequest { offset: next.max(request.offset), ..request }),
                    None => Err(ReadError::Stale),
                }
            }
        }
    }

    /// *Shard.* Where an offset lies; `None` when the disk would have to be asked.
    pub fn offset_metadata(&self, offset: Offset) -> Option<OffsetMetadata> {
        if offset >= self.log_end() {
            return (offset == self.log_end()).then(|| self.end_metadata());
        }
        let segment = &self.segments[self.segment_of(offset)];
        match self.locate(segment, offset) {
            Ok(Located::At(place)) => {
                Some(OffsetMetadata { offset, segment: segment.base, position: place.position })
            }
            Ok(Located::Beyond) => {
                Some(OffsetMetadata { offset, segment: segment.base, position: segment.size })
            }
            _ => None,
        }
    }

    /// Keeps the positions of the latest batches only.
    pub(super) fn trim_recent(&mut self) {
        let surplus = self.recent.len().saturating_sub(RECENT_MAX);
        self.recent.drain(..surplus);
    }

    /// `None`: the segment ends before the offset.
    fn plan_within(&self, number: usize, request: ReadRequest) -> Result<Option<Read<F>>, ReadError> {
        let segment = &self.segments[number];
        let start = self.locate(segment, request.offset)?;
        // Whatever lies in the segment is below the bound if the next segment is not above it.
        let whole = match self.segments.get(number + 1) {
            Some(next) => next.base <= request.upper_bound,
            None => segment.next <= request.upper_bound,
        };
        let end = match start {
            Located::Beyond => return Ok(None),
            _ if whole => Located::Beyond,
            _ => self.locate(segment, request.upper_bound)?,
        };
        let end_position = match end {
            Located::At(place) => Some(place.position),
            Located::Beyond => Some(segment.size),
            Located::Unknown { .. } => None,
        };
        if let (Located::At(place), Some(end), Some(file)) = (&start, end_position, &segment.file) {
            let is_last = number + 1 == self.segments.len();
            let at_tail = is_last && segment.size - place.position <= TAIL_BYTES;
            let plan = plan(request, segment.base, file, *place, end, at_tail);
            if !request.with_aborted {
                return Ok(Some(Read::Plan(plan)));
            }
            let overlap = Overlap::new(request.offset, self.offset_after(number, request, &plan));
            if let Some(aborted) = self.aborted_in_memory(number, overlap) {
                return Ok(Some(Read::Plan(ReadPlan { aborted: Some(aborted), ..plan })));
            }
        }
        let floor = |located: &Located| match located {
            Located::At(place) => Floor::Position(place.position),
            Located::Beyond => Floor::Position(segment.size),
            Located::Unknown { floor } => *floor,
        };
        Ok(Some(Read::NeedsDisk(ReadJob {
            context: Arc::clone(&self.context),
            dir: self.dir.clone(),
            segment: segment.base,
            file: segment.file.clone(),
            size: segment.size,
            request,
            start: floor(&start),
            end: end_position.ok_or_else(|| floor(&end)),
            next: self.next_of(number),
            index_rows: segment.index.in_file(),
            aborted: request.with_aborted.then(|| self.aborted_parts(number)),
            generation: self.generation,
            layout: self.layout,
        })))
    }

    /// Where the offsets of a segment end at the latest.
    fn next_of(&self, number: usize) -> Offset {
        self.segments.get(number + 1).map_or(self.segments[number].next, |next| next.base)
    }

    /// An offset behind the records of a plan, as near as memory knows one.
    fn offset_after(&self, number: usize, request: ReadRequest, plan: &ReadPlan<F>) -> Offset {
        let segment = &self.segments[number];
        let bound = request.upper_bound.min(self.next_of(number));
        let Some(range) = &plan.range else { return request.offset };
        let end = range.position + u64::from(range.length);
        let row = segment.index.first_in_memory(|row| u64::from(row.position) < end);
        row.map_or(bound, |row| bound.min(segment.base.plus(i64::from(row.relative) + 1)))
    }

    /// The aborted transactions from the segment `number` on; `None` when the disk has to be asked.
    fn aborted_in_memory(&self, number: usize, mut overlap: Overlap) -> Option<Vec<AbortedTransaction>> {
        let tables = self.segments.range(number..).filter_map(|segment| segment.aborted.as_deref());
        for table in tables {
            if overlap.take_from_memory(table)? {
                break;
            }
        }
        Some(overlap.into_found())
    }

    /// Where the aborted transactions from the segment `number` on are to be looked for.
    fn aborted_parts(&self, number: usize) -> Vec<AbortedPart> {
        let segments = self.segments.range(number..);
        let part = |segment: &Segment<F>| {
            let table = segment.aborted.as_deref()?;
            let (in_file, tail) = table.tail();
            Some(AbortedPart {
                segment: segment.base,
                in_file,
                is_small: table.is_small(),
                tail: tail.collect(),
            })
        };
        segments.filter_map(part).collect()
    }

    /// How many of the recent batches begin at or before `offset`. Sought from the end, where most readers are, by doubling
    /// steps: in a log that was not read for a while each place that is looked at is a cache miss.
    fn recent_after(&self, offset: Offset) -> usize {
        let begins_before = |number: usize| self.recent[number].first <= offset;
        let count = self.recent.len();
        let mut step = 1;
        while step <= count && !begins_before(count - step) {
            step *= 2;
        }
        let (mut low, mut high) = (count.saturating_sub(step), count - step / 2);
        while low < high {
            let middle = low + (high - low) / 2;
            if begins_before(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Looks for the first batch of the segment whose last offset is not below `offset`.
    fn locate(&self, segment: &Segment<F>, offset: Offset) -> Result<Located, ReadError> {
        if offset >= segment.next {
            return Ok(Located::Beyond);
        }
        // Compaction leaves gaps between segments: then its first batch is the answer.
        let offset = offset.max(segment.base);
        // The batch that begins at or before it, among those that were just appended.
        let after = self.recent_after(offset);
        if let Some(recent) = after.checked_sub(1).and_then(|number| self.recent.get(number))
            && recent.segment == segment.base
        {
            let place = |number: usize| {
                let position = self.recent[number].position;
                let end = match self.recent.get(number + 1) {
                    Some(next) if next.segment == segment.base => next.position,
                    _ => segment.size,
                };
                Located::At(Place { position, length: end - position })
            };
            return Ok(match self.recent.get(after) {
                _ if offset < recent.next => place(after - 1),
                // A follower's log may have a gap between batches.
                Some(next) if next.segment == segment.base => place(after),
                _ => Located::Beyond,
            });
        }
        let Some(wanted) = relative(segment.base, offset) else { return Ok(Located::Beyond) };
        let satisfies = |entry: &OffsetEntry| entry.relative <= wanted;
        let (floor, rows_in_file) = match segment.index.floor(satisfies) {
            Lookup::Known(entry) => (Floor::Position(entry.map_or(0, |entry| entry.position)), None),
            Lookup::InFile { entries } => {
                (self.floor_in_windows(segment.base, wanted, entries), Some(entries))
            }
        };
        let (Floor::Position(mut position), Some(file)) = (floor, &segment.file) else {
            return Ok(Located::Unknown { floor });
        };
        let (mut bytes, mut looked) = ([0; LOOK_BYTES], Looked { position, length: 0 });
        let mut last_length = 0;
        for step in 0..STEPS_MAX {
            // A row of a damaged index may lead anywhere: a job looks at it again and finds out.
            let doubtful = rows_in_file.filter(|_| step == 0).map(|rows| Floor::InIndex { rows });
            if position >= segment.size {
                return Ok(doubtful.map_or(Located::Beyond, |floor| Located::Unknown { floor }));
            }
            if !looked.contains(position) {
                // Behind a long batch comes another one: nothing but its head is of use.
                let wanted = if last_length > LOOK_BYTES as u32 { HEAD_LEN } else { LOOK_BYTES };
                let read = file
                    .read_cached_at(&mut bytes[..wanted], u64::from(position))
                    .map_err(|error| self.read_error(segment, error))?;
                let Some(read) = read else { break };
                looked = Looked { position, length: read };
            }
            let skip = (position - looked.position) as usize;
            let Ok(head) = BatchHead::of_entry(&bytes[skip..looked.length.min(skip + HEAD_LEN)]) else {
                break;
            };
            let length = head.total_len() as u32;
            let is_whole =
                head.length() > 0 && position.checked_add(length).is_some_and(|end| end <= segment.size);
            match doubtful {
                Some(floor) if !is_whole || !(segment.base..=offset).contains(&head.base_offset()) => {
                    return Ok(Located::Unknown { floor });
                }
                _ if !is_whole => break,
                _ => {}
            }
            if head.last_offset() >= offset {
                return Ok(Located::At(Place { position, length }));
            }
            position += length;
            last_length = length;
        }
        Ok(Located::Unknown { floor: Floor::Position(position) })
    }

    fn floor_in_windows(&self, segment: Offset, wanted: u32, rows: u32) -> Floor {
        let holds = |window: &&Window| {
            window.segment == segment
                && matches!((window.rows.first(), window.rows.last()), (Some(first), Some(last))
                    if first.relative <= wanted && wanted <= last.relative)
        };
        match self.windows.iter().find(holds) {
            Some(window) => {
                let count = window.rows.partition_point(|row| row.relative <= wanted);
                Floor::Position(window.rows[count - 1].position)
            }
            None => Floor::InIndex { rows },
        }
    }

    fn read_error(&self, segment: &Segment<F>, source: io::Error) -> ReadError {
        let path = names::file(&self.dir, segment.base, FileKind::Log);
        ReadError::Storage(LogError { what: "read", path, source })
    }
}

/// The plan for a batch found at `place`, with `end` of the readable part of the file.
fn plan<F: Files>(
    request: ReadRequest,
    segment: Offset,
    file: &Arc<SegmentFile<F>>,
    place: Place,
    end: u32,
    at_tail: bool,
) -> ReadPlan<F> {
    let mut length = request.bytes_max;
    if request.whole_first_batch {
        length = length.max(place.length);
    }
    // The bound may lie in the batch that holds the offset: then nothing of it is readable.
    let length = length.min(end.saturating_sub(place.position));
    let file = Arc::clone(file);
    let range = FileRange { file, position: u64::from(place.position), length, at_tail };
    ReadPlan {
        start: OffsetMetadata { offset: request.offset, segment, position: place.position },
        range: (length > 0).then_some(range),
        first_batch_bytes: place.length,
        aborted: None,
    }
}
