//! ListOffsets: the first record at or after a time, and the youngest record. Reads and decompresses batches, so
//! the answer comes from a job unless the segments' own timestamps decide.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::io::{Files, OpenMode};
use crate::wire::record::{BatchHead, BatchView, legacy_records};

use super::error::Context;
use super::index::{self, Lookup, OffsetEntry, TimeEntry, relative};
use super::names::{self, FileKind};
use super::scan::{Found, Scan, Step};
use super::segment::Segment;
use super::{Log, LogContext, LogError, SegmentFile, TimestampOffset};

/// A batch whose records are longer than this is not looked into: its first offset stands for them.
const DECOMPRESSED_BYTES_MAX: usize = 256 << 20;

/// What ListOffsets looks for; earliest and latest are [`Log::log_start`] and [`Log::log_end`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimestampTarget {
    /// The first record whose timestamp is not below it.
    FirstAtOrAfter(Timestamp),
    /// The first of the records with the largest timestamp (KIP-734).
    Max,
}

/// An answer, or what it takes to get it.
pub enum OffsetLookup<F: Files> {
    Ready(Option<TimestampOffset>),
    NeedsDisk(TimeJob<F>),
}

/// A search through segments, on a file thread.
pub struct TimeJob<F: Files> {
    context: Arc<LogContext<F>>,
    dir: PathBuf,
    log_start: Offset,
    layout: u64,
    /// What the record's timestamp must reach.
    wanted: Timestamp,
    /// The segments that may hold it, in order.
    places: Vec<TimePlace<F>>,
}

struct TimePlace<F: Files> {
    segment: Offset,
    file: Option<Arc<SegmentFile<F>>>,
    size: u32,
    floor: TimeFloor,
}

/// Where the search in a segment begins.
enum TimeFloor {
    Position(u32),
    /// The time index says: among the first `time_rows` of its file, then among `index_rows` of the offset index'.
    ByTime {
        timestamp: Timestamp,
        time_rows: u32,
        index_rows: u32,
    },
    ByOffset {
        offset: Offset,
        index_rows: u32,
    },
}

impl<F: Files> Log<F> {
    /// *Shard.* Finds the segment by its youngest timestamp; the rest is a job's.
    pub fn offset_for(&self, target: TimestampTarget) -> OffsetLookup<F> {
        let newest = |segment: &Segment<F>| segment.newest.map_or(Timestamp::NONE, |newest| newest.timestamp);
        let first = self.segment_of(self.log_start);
        let candidates = self.segments.range(first..).filter(|segment| segment.size > 0);
        let wanted = match target {
            TimestampTarget::FirstAtOrAfter(time) => time,
            TimestampTarget::Max => candidates.clone().map(newest).max().unwrap_or(Timestamp::NONE),
        };
        if wanted.0 < 0 && target == TimestampTarget::Max {
            return OffsetLookup::Ready(None);
        }
        // More than one: the log start may lie behind the records of the first one.
        let candidates = candidates.filter(|segment| newest(segment) >= wanted.max(Timestamp(0)));
        let places: Vec<TimePlace<F>> = candidates
            .map(|segment| TimePlace {
                segment: segment.base,
                file: segment.file.clone(),
                size: segment.size,
                floor: time_floor(segment, target),
            })
            .collect();
        if places.is_empty() {
            return OffsetLookup::Ready(None);
        }
        let (context, dir) = (Arc::clone(&self.context), self.dir.clone());
        let (log_start, layout) = (self.log_start, self.layout);
        OffsetLookup::NeedsDisk(TimeJob { context, dir, log_start, layout, wanted, places })
    }

    /// Whether the answer of a job of this layout, or its failure, counts. Otherwise compaction has exchanged
    /// segments under it: look again.
    pub fn is_current(&self, layout: u64) -> bool {
        layout == self.layout
    }
}

fn time_floor<F: Files>(segment: &Segment<F>, target: TimestampTarget) -> TimeFloor {
    match target {
        TimestampTarget::Max => match segment.newest {
            Some(newest) => offset_floor(segment, newest.offset),
            None => TimeFloor::Position(0),
        },
        TimestampTarget::FirstAtOrAfter(timestamp) => {
            // No record up to a row's offset is younger than the row: only what follows is of interest.
            match segment.times.floor(|entry: &TimeEntry| entry.timestamp < timestamp) {
                Lookup::Known(None) => TimeFloor::Position(0),
                Lookup::Known(Some(entry)) => {
                    offset_floor(segment, segment.base.plus(i64::from(entry.relative)))
                }
                Lookup::InFile { entries } => {
                    TimeFloor::ByTime { timestamp, time_rows: entries, index_rows: segment.index.in_file() }
                }
            }
        }
    }
}

fn offset_floor<F: Files>(segment: &Segment<F>, offset: Offset) -> TimeFloor {
    let Some(wanted) = relative(segment.base, offset) else { return TimeFloor::Position(0) };
    match segment.index.floor(|entry: &OffsetEntry| entry.relative <= wanted) {
        Lookup::Known(entry) => TimeFloor::Position(entry.map_or(0, |entry| entry.position)),
        Lookup::InFile { entries } => TimeFloor::ByOffset { offset, index_rows: entries },
    }
}

impl<F: Files> TimeJob<F> {
    /// For [`Log::is_current`].
    pub fn layout(&self) -> u64 {
        self.layout
    }

    /// *File thread.* `None`: no such record.
    pub fn run(self) -> Result<Option<TimestampOffset>, LogError> {
        for place in &self.places {
            match self.search_segment(place) {
                Ok(None) => {}
                // Retention has taken the segment since.
                Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
                found => return found,
            }
        }
        Ok(None)
    }

    fn search_segment(&self, place: &TimePlace<F>) -> Result<Option<TimestampOffset>, LogError> {
        let path = names::file(&self.dir, place.segment, FileKind::Log);
        let opened;
        let file: &F::File = match &place.file {
            Some(file) => file,
            None => {
                opened = self.context.files.open(&path, OpenMode::Read).context("open", &path)?;
                &opened
            }
        };
        let from = self.position(file, place)?;
        let mut scan = Scan::heads(file, from, place.size, Offset(i64::MIN));
        while let Step::Batch(found) = scan.next().context("scan", &path)? {
            if self.may_hold(&found) {
                let entry = scan.entry(&found).context("read", &path)?;
                if let Some(answer) = self.search_entry(&found.head, entry) {
                    return Ok(Some(answer));
                }
            }
        }
        Ok(None)
    }

    fn may_hold(&self, found: &Found) -> bool {
        found.head.max_timestamp() >= self.wanted && found.head.last_offset() >= self.log_start
    }

    fn search_entry(&self, head: &BatchHead, entry: &[u8]) -> Option<TimestampOffset> {
        if head.is_legacy() { self.search_message(head, entry) } else { self.search_batch(entry) }
    }

    /// Format 1 has timestamps; format 0 has none to be found by.
    fn search_message(&self, head: &BatchHead, message: &[u8]) -> Option<TimestampOffset> {
        let mut scratch = Vec::new();
        let Ok(records) = legacy_records(message, &mut scratch, DECOMPRESSED_BYTES_MAX) else {
            let offset = head.base_offset().max(self.log_start);
            return Some(TimestampOffset { timestamp: head.max_timestamp(), offset, leader_epoch: None });
        };
        let mut records = records.iter();
        let record =
            records.find(|record| record.timestamp >= self.wanted && record.offset >= self.log_start)?;
        Some(TimestampOffset { timestamp: record.timestamp, offset: record.offset, leader_epoch: None })
    }

    fn search_batch(&self, batch: &[u8]) -> Option<TimestampOffset> {
        let view = BatchView::parse(batch).ok()?;
        let head = view.head();
        let leader_epoch = Some(head.leader_epoch()).filter(|epoch| epoch.0 >= 0);
        let mut scratch = Vec::new();
        let Ok(records) = view.records(&mut scratch, DECOMPRESSED_BYTES_MAX) else {
            let offset = head.base_offset().max(self.log_start);
            return Some(TimestampOffset { timestamp: head.max_timestamp(), offset, leader_epoch });
        };
        let mut records = records.map_while(Result::ok);
        let record =
            records.find(|record| record.timestamp >= self.wanted && record.offset >= self.log_start)?;
        Some(TimestampOffset { timestamp: record.timestamp, offset: record.offset, leader_epoch })
    }

    /// Where to begin.
    fn position(&self, log: &F::File, place: &TimePlace<F>) -> Result<u32, LogError> {
        let (offset, index_rows) = match place.floor {
            TimeFloor::Position(position) => return Ok(position),
            TimeFloor::ByOffset { offset, index_rows } => (offset, index_rows),
            TimeFloor::ByTime { timestamp, time_rows, index_rows } => {
                let path = names::file(&self.dir, place.segment, FileKind::TimeIndex);
                let file = self.context.files.open(&path, OpenMode::Read).context("open", &path)?;
                let older = |entry: &TimeEntry| entry.timestamp < timestamp;
                let floor = index::floor_in_file(&file, time_rows, older);
                match unless_short(floor).context("search", &path)? {
                    Some((_, entry)) => (place.segment.plus(i64::from(entry.relative)), index_rows),
                    None => return Ok(0),
                }
            }
        };
        let path = names::file(&self.dir, place.segment, FileKind::OffsetIndex);
        let file = self.context.files.open(&path, OpenMode::Read).context("open", &path)?;
        let wanted = relative(place.segment, offset).unwrap_or(u32::MAX);
        let floor = index::floor_in_file::<OffsetEntry>(&file, index_rows, |entry| entry.relative <= wanted);
        let Some((_, entry)) = unless_short(floor).context("search", &path)? else { return Ok(0) };
        // A damaged index must not pass over records; a fetch that meets it has it built anew.
        let is_sound = index::is_sound(log, place.segment, &entry).context("read", &path)?;
        Ok(if is_sound { entry.position } else { 0 })
    }
}

/// An index that is shorter than it was is damaged and tells nothing: the search begins with the segment.
fn unless_short<T>(found: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        found => found,
    }
}
