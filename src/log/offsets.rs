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

/// What is left of the segment that the log start lies in, as a search found it: its youngest record. The log keeps it,
/// so that the next search looks at no more than what was appended since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct YoungestLeft {
    segment: Offset,
    /// Of the log when it was looked at.
    layout: u64,
    generation: u64,
    /// So many bytes of the segment were looked at.
    bytes: u32,
    found: Option<TimestampOffset>,
}

/// A search through segments, on a file thread.
pub struct TimeJob<F: Files> {
    context: Arc<LogContext<F>>,
    dir: PathBuf,
    log_start: Offset,
    layout: u64,
    generation: u64,
    search: Search<F>,
    /// The youngest record of the first segment may lie below the log start: then it is not what `search` finds.
    deleted: Option<Box<Deleted<F>>>,
}

/// Segments to look through, in order.
struct Search<F: Files> {
    /// What the record's timestamp must reach.
    wanted: Timestamp,
    /// Those that may hold such a record.
    places: Vec<TimePlace<F>>,
}

/// Where the youngest record is when the first segment's is deleted.
struct Deleted<F: Files> {
    /// What is left of the segment, or of it what is not known yet.
    first: TimePlace<F>,
    known: Option<YoungestLeft>,
    /// The youngest record of the others.
    others: Search<F>,
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
        let place = |segment: &Segment<F>| TimePlace::of(segment, time_floor(segment, target));
        let places: Vec<TimePlace<F>> = candidates.map(place).collect();
        if places.is_empty() {
            return OffsetLookup::Ready(None);
        }
        let search = Search { wanted, places };
        let deleted = match target {
            TimestampTarget::Max => self.unless_deleted(first, wanted),
            TimestampTarget::FirstAtOrAfter(_) => None,
        };
        match deleted {
            Some(Deleted { first, known: Some(known), others }) if known.bytes == first.size => {
                let is_youngest = known.found.is_some_and(|found| found.timestamp >= others.wanted);
                if is_youngest || others.places.is_empty() {
                    return OffsetLookup::Ready(known.found);
                }
                OffsetLookup::NeedsDisk(self.time_job(others, None))
            }
            deleted => OffsetLookup::NeedsDisk(self.time_job(search, deleted.map(Box::new))),
        }
    }

    fn time_job(&self, search: Search<F>, deleted: Option<Box<Deleted<F>>>) -> TimeJob<F> {
        TimeJob {
            context: Arc::clone(&self.context),
            dir: self.dir.clone(),
            log_start: self.log_start,
            layout: self.layout,
            generation: self.generation,
            search,
            deleted,
        }
    }

    /// *Shard.* Keeps what a search has found out for the next one.
    pub fn learn(&mut self, youngest: YoungestLeft) {
        self.youngest_left = Some(youngest);
    }

    /// What is known of a segment and still true.
    fn youngest_left(&self, segment: &Segment<F>) -> Option<YoungestLeft> {
        self.youngest_left.filter(|known| {
            known.segment == segment.base
                && (known.layout, known.generation) == (self.layout, self.generation)
                && known.bytes <= segment.size
                && known.found.is_none_or(|found| found.offset >= self.log_start)
        })
    }

    /// Where to look when the record that has the timestamp `newest` is in the segment `first` and deleted.
    fn unless_deleted(&self, first: usize, newest: Timestamp) -> Option<Deleted<F>> {
        let of = |segment: &Segment<F>| segment.newest.map_or(Timestamp::NONE, |newest| newest.timestamp);
        let segment = &self.segments[first];
        if segment.base >= self.log_start || of(segment) < newest {
            return None;
        }
        let others = self.segments.range(first + 1..).filter(|segment| segment.size > 0);
        let wanted = others.clone().map(of).max().unwrap_or(Timestamp::NONE);
        let holders = others.filter(|segment| wanted.0 >= 0 && of(segment) >= wanted);
        let places = holders.map(|segment| TimePlace::of(segment, time_floor(segment, TimestampTarget::Max)));
        let known = self.youngest_left(segment);
        let floor = match known {
            Some(known) => TimeFloor::Position(known.bytes),
            None => offset_floor(segment, self.log_start),
        };
        Some(Deleted {
            first: TimePlace::of(segment, floor),
            known,
            others: Search { wanted, places: places.collect() },
        })
    }

    /// Whether the answer of a job of this layout, or its failure, counts. Otherwise compaction has exchanged
    /// segments under it: look again.
    pub fn is_current(&self, layout: u64) -> bool {
        layout == self.layout
    }
}

impl<F: Files> TimePlace<F> {
    fn of(segment: &Segment<F>, floor: TimeFloor) -> Self {
        Self { segment: segment.base, file: segment.file.clone(), size: segment.size, floor }
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
        self.look().0
    }

    /// *File thread.* [`TimeJob::run`], and what [`Log::learn`] may keep of it.
    pub fn look(self) -> (Result<Option<TimestampOffset>, LogError>, Option<YoungestLeft>) {
        let mut learnt = None;
        let found = self.find(&mut learnt);
        (found, learnt)
    }

    fn find(&self, learnt: &mut Option<YoungestLeft>) -> Result<Option<TimestampOffset>, LogError> {
        let is_known = self.deleted.as_ref().is_some_and(|deleted| deleted.known.is_some());
        if !is_known && let Some(found) = self.search(&self.search)? {
            return Ok(Some(found));
        }
        let Some(Deleted { first, known, others }) = self.deleted.as_deref() else { return Ok(None) };
        let youngest = match self.youngest_left(first, known.and_then(|known| known.found)) {
            Ok(youngest) => youngest,
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => return self.search(others),
            Err(error) => return Err(error),
        };
        *learnt = Some(YoungestLeft {
            segment: first.segment,
            layout: self.layout,
            generation: self.generation,
            bytes: first.size,
            found: youngest,
        });
        match youngest {
            Some(youngest) if youngest.timestamp >= others.wanted => Ok(Some(youngest)),
            _ => self.search(others),
        }
    }

    fn search(&self, search: &Search<F>) -> Result<Option<TimestampOffset>, LogError> {
        for place in &search.places {
            match self.search_segment(place, search.wanted) {
                Ok(None) => {}
                // Retention has taken the segment since.
                Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
                found => return found,
            }
        }
        Ok(None)
    }

    fn search_segment(
        &self,
        place: &TimePlace<F>,
        wanted: Timestamp,
    ) -> Result<Option<TimestampOffset>, LogError> {
        let path = names::file(&self.dir, place.segment, FileKind::Log);
        let file = self.file(place)?;
        let from = self.position(&**file, place)?;
        let mut scan = Scan::heads(&**file, from, place.size, Offset(i64::MIN));
        while let Step::Batch(found) = scan.next().context("scan", &path)? {
            if found.head.max_timestamp() >= wanted && found.head.last_offset() >= self.log_start {
                let entry = scan.entry(&found).context("read", &path)?;
                if let Some(answer) = self.first_in(&found.head, entry, wanted) {
                    return Ok(Some(answer));
                }
            }
        }
        Ok(None)
    }

    /// The youngest record of a segment that is not below the log start: a batch's head tells its youngest, only the
    /// one that the log start lies in has to be looked into.
    /// `youngest`: that of what lies before the place.
    fn youngest_left(
        &self,
        place: &TimePlace<F>,
        mut youngest: Option<TimestampOffset>,
    ) -> Result<Option<TimestampOffset>, LogError> {
        let path = names::file(&self.dir, place.segment, FileKind::Log);
        let file = self.file(place)?;
        let from = self.position(&**file, place)?;
        let mut scan = Scan::heads(&**file, from, place.size, Offset(i64::MIN));
        let mut batch: Option<Found> = None;
        while let Step::Batch(found) = scan.next().context("scan", &path)? {
            let reached = batch.map(|batch| batch.head.max_timestamp());
            let reached = reached.or(youngest.map(|youngest| youngest.timestamp)).unwrap_or(Timestamp::NONE);
            if found.head.last_offset() < self.log_start || found.head.max_timestamp() <= reached {
                continue;
            }
            if found.head.base_offset() < self.log_start {
                let entry = scan.entry(&found).context("read", &path)?;
                let of_batch = self.youngest_in(&found.head, entry).filter(|found| found.timestamp.0 >= 0);
                youngest = of_batch.or(youngest);
            } else {
                batch = Some(found);
            }
        }
        let Some(found) = batch else { return Ok(youngest) };
        let entry = scan.entry(&found).context("read", &path)?;
        Ok(self.youngest_in(&found.head, entry).or(youngest))
    }

    fn file(&self, place: &TimePlace<F>) -> Result<Arc<SegmentFile<F>>, LogError> {
        if let Some(file) = &place.file {
            return Ok(Arc::clone(file));
        }
        let path = names::file(&self.dir, place.segment, FileKind::Log);
        let file = self.context.files.open(&path, OpenMode::Read).context("open", &path)?;
        Ok(SegmentFile::new(&self.context, file))
    }

    /// The first record of a batch that reaches `wanted` and is not deleted.
    fn first_in(&self, head: &BatchHead, entry: &[u8], wanted: Timestamp) -> Option<TimestampOffset> {
        let mut found = None;
        self.each_record(head, entry, |record| {
            if record.timestamp >= wanted {
                found = Some(record);
            }
            found.is_none()
        });
        found
    }

    /// The first of the youngest records of a batch that are not deleted.
    fn youngest_in(&self, head: &BatchHead, entry: &[u8]) -> Option<TimestampOffset> {
        let mut youngest: Option<TimestampOffset> = None;
        self.each_record(head, entry, |record| {
            if youngest.is_none_or(|youngest| record.timestamp > youngest.timestamp) {
                youngest = Some(record);
            }
            true
        });
        youngest
    }

    /// Shows the records of a batch that are not deleted, until one is enough. Where they cannot be had, the batch's
    /// first offset stands for them. One that says of itself that it lies outside its batch is passed over: the checksum
    /// of a batch that its producer made so is right.
    fn each_record(&self, head: &BatchHead, entry: &[u8], mut goes_on: impl FnMut(TimestampOffset) -> bool) {
        let epoch = Some(head.leader_epoch()).filter(|epoch| epoch.0 >= 0 && !head.is_legacy());
        // The entry of older formats has the offset of its last record.
        let first = if head.is_legacy() { Offset::ZERO } else { head.base_offset() };
        let first = first.max(self.log_start);
        let mut show = |timestamp, offset| {
            let is_left = (first..=head.last_offset()).contains(&offset);
            !is_left || goes_on(TimestampOffset { timestamp, offset, leader_epoch: epoch })
        };
        let mut scratch = Vec::new();
        // Format 1 has timestamps; format 0 has none to be found by.
        if head.is_legacy() {
            if let Ok(records) = legacy_records(entry, &mut scratch, DECOMPRESSED_BYTES_MAX) {
                let _ = records.iter().all(|record| show(record.timestamp, record.offset));
                return;
            }
        } else {
            let Ok(view) = BatchView::parse(entry) else { return };
            if let Ok(records) = view.records(&mut scratch, DECOMPRESSED_BYTES_MAX) {
                let _ = records.map_while(Result::ok).all(|record| show(record.timestamp, record.offset));
                return;
            }
        }
        show(head.max_timestamp(), head.base_offset().max(self.log_start));
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
