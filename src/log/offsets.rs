//! ListOffsets: the first record at or after a time, and the youngest record. Reads and decompresses batches, so
//! the answer comes from a job unless the segments' own timestamps decide.

use std::path::PathBuf;
use std::sync::Arc;

use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::io::{Files, OpenMode};
use crate::wire::record::BatchView;

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

/// A search in one segment, on a file thread.
pub struct TimeJob<F: Files> {
    context: Arc<LogContext<F>>,
    dir: PathBuf,
    segment: Offset,
    file: Option<Arc<SegmentFile<F>>>,
    size: u32,
    log_start: Offset,
    /// What the batch's youngest timestamp must reach.
    wanted: Timestamp,
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
        let mut candidates = self.segments.range(first..).filter(|segment| segment.size > 0);
        let segment = match target {
            TimestampTarget::FirstAtOrAfter(time) => candidates.find(|segment| newest(segment) >= time),
            TimestampTarget::Max => {
                candidates.reduce(|best, segment| if newest(segment) > newest(best) { segment } else { best })
            }
        };
        let Some(segment) = segment.filter(|segment| newest(segment).0 >= 0) else {
            return OffsetLookup::Ready(None);
        };
        OffsetLookup::NeedsDisk(TimeJob {
            context: Arc::clone(&self.context),
            dir: self.dir.clone(),
            segment: segment.base,
            file: segment.file.clone(),
            size: segment.size,
            log_start: self.log_start,
            wanted: match target {
                TimestampTarget::FirstAtOrAfter(time) => time,
                TimestampTarget::Max => newest(segment),
            },
            floor: time_floor(segment, target),
        })
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
    /// *File thread.* `None`: no such record.
    pub fn run(self) -> Result<Option<TimestampOffset>, LogError> {
        let path = names::file(&self.dir, self.segment, FileKind::Log);
        let opened;
        let file: &F::File = match &self.file {
            Some(file) => file,
            None => {
                opened = self.context.files.open(&path, OpenMode::Read).context("open", &path)?;
                &opened
            }
        };
        let from = self.position()?;
        let mut scan = Scan::heads(file, from, self.size, Offset(i64::MIN));
        loop {
            let step = scan.next().context("scan", &path)?;
            let Step::Batch(found) = step else { return Ok(None) };
            if self.may_hold(&found) {
                let batch = read_batch(&mut scan, &found).context("read", &path)?;
                if let Some(answer) = self.search(&batch) {
                    return Ok(Some(answer));
                }
            }
        }
    }

    fn may_hold(&self, found: &Found) -> bool {
        found.head.max_timestamp() >= self.wanted && found.head.last_offset() >= self.log_start
    }

    fn search(&self, batch: &[u8]) -> Option<TimestampOffset> {
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
    fn position(&self) -> Result<u32, LogError> {
        let (offset, index_rows) = match self.floor {
            TimeFloor::Position(position) => return Ok(position),
            TimeFloor::ByOffset { offset, index_rows } => (offset, index_rows),
            TimeFloor::ByTime { timestamp, time_rows, index_rows } => {
                let path = names::file(&self.dir, self.segment, FileKind::TimeIndex);
                let file = self.context.files.open(&path, OpenMode::Read).context("open", &path)?;
                let older = |entry: &TimeEntry| entry.timestamp < timestamp;
                match index::floor_in_file(&file, time_rows, older).context("search", &path)? {
                    Some((_, entry)) => (self.segment.plus(i64::from(entry.relative)), index_rows),
                    None => return Ok(0),
                }
            }
        };
        let path = names::file(&self.dir, self.segment, FileKind::OffsetIndex);
        let file = self.context.files.open(&path, OpenMode::Read).context("open", &path)?;
        let wanted = relative(self.segment, offset).unwrap_or(u32::MAX);
        let floor = index::floor_in_file::<OffsetEntry>(&file, index_rows, |entry| entry.relative <= wanted);
        Ok(floor.context("search", &path)?.map_or(0, |(_, entry)| entry.position))
    }
}

fn read_batch<H: crate::io::FileHandle>(scan: &mut Scan<'_, H>, found: &Found) -> std::io::Result<Vec<u8>> {
    use zerocopy::IntoBytes;
    let mut bytes = Vec::with_capacity(found.head.total_len());
    bytes.extend_from_slice(found.head.as_bytes());
    bytes.extend_from_slice(scan.body(found)?);
    Ok(bytes)
}
