//! The work of one cleaning: maps the keys of the dirty part, then rewrites the log group by group. *File thread*;
//! one slice at a time, so that whoever drives it can throttle and give up between two of them.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::clock::Timestamp;
use crate::base::{Offset, ProducerId};
use crate::config::LogConfig;
use crate::io::{FileHandle, Files, OpenMode};
use crate::wire::record::{BatchHead, BatchView, Records, upgrade_message};

use super::super::error::Context;
use super::super::index::{self, Entry};
use super::super::names::{self, FileKind};
use super::super::scan::{Found, Scan, Step};
use super::super::segment::{Segment, SegmentFile};
use super::super::{AbortedTransaction, LogContext, LogError};
use super::CleanSettings;
use super::filter::{self, LastRecord, Rules, Verdict};
use super::offset_map::OffsetMap;
use super::output::{self, Output, Writer};
use super::transactions::{Fate, Transactions};

/// A batch whose records take more is not cleaned, nor is its partition: they would have to be held in memory.
const DECOMPRESSED_BYTES_MAX: usize = 256 << 20;

/// Why a log could not be cleaned.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    #[error(transparent)]
    Storage(#[from] LogError),
    /// A segment was removed meanwhile: try again another time.
    #[error("{} has gone", path.display())]
    Gone { path: PathBuf },
    #[error("{} at {position}: {why}", path.display())]
    Damaged { path: PathBuf, position: u32, why: String },
    #[error("the keys of one batch do not fit log.cleaner.dedupe.buffer.size")]
    MapTooSmall,
    #[error("the segment at {base} would become longer than a segment can be")]
    TooLong { base: Offset },
}

/// What a cleaning has done so far.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct CleanFigures {
    /// Read to map the keys of the dirty part.
    pub mapped_bytes: u64,
    /// Read to be rewritten, and what was written of it.
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// How full the map of keys was, of 1.
    pub map_utilization: f64,
}

impl CleanFigures {
    /// What the disk has had to do.
    pub fn io_bytes(&self) -> u64 {
        self.mapped_bytes + self.read_bytes + self.written_bytes
    }
}

/// Whose log it is.
pub(super) struct Group<F: Files> {
    pub context: Arc<LogContext<F>>,
    pub dir: PathBuf,
    pub config: Arc<LogConfig>,
    pub generation: u64,
}

/// A segment to be cleaned, as it was when the cleaning began; nothing is appended to it any more.
pub(super) struct Source<F: Files> {
    pub base: Offset,
    /// Where the next segment begins.
    pub end: Offset,
    pub size: u32,
    index_bytes: u64,
    time_bytes: u64,
    /// Of its youngest record.
    timestamp: Timestamp,
    file: Option<Arc<SegmentFile<F>>>,
}

impl<F: Files> Source<F> {
    pub fn of(segment: &Segment<F>, end: Offset) -> Self {
        Self {
            base: segment.base,
            end,
            size: segment.size,
            index_bytes: u64::from(segment.index.len()) * index::OffsetEntry::BYTES as u64,
            time_bytes: u64::from(segment.times.len()) * index::TimeEntry::BYTES as u64,
            timestamp: segment.largest_timestamp(),
            file: segment.file.clone(),
        }
    }
}

/// The aborted transactions whose markers are in a segment.
pub(super) struct AbortedRows {
    pub base: Offset,
    /// Rows of its transaction index that memory does not have.
    pub in_file: u32,
    /// Those after them.
    pub tail: Vec<AbortedTransaction>,
}

/// The identity of a source, for the exchange.
#[derive(Clone, Copy)]
pub(super) struct SourceId {
    pub base: Offset,
    pub size: u32,
}

/// A group of segments that became one, or none.
pub struct Cleaned<F: Files> {
    pub(super) generation: u64,
    pub(super) sources: Vec<SourceId>,
    pub(super) output: Option<Output<F>>,
    context: Arc<LogContext<F>>,
    dir: PathBuf,
}

impl<F: Files> Cleaned<F> {
    /// *File thread.* Removes the files of an output that the log could not take.
    pub fn discard(self) -> Result<(), LogError> {
        match &self.output {
            Some(output) => output::discard(&self.context.files, &self.dir, output.segment.base),
            None => Ok(()),
        }
    }
}

/// What a slice came to.
pub enum CleanStep<F: Files> {
    More(Box<Clean<F>>),
    /// Give it to [`super::Log::exchange`], then go on.
    Group(Box<Clean<F>>, Box<Cleaned<F>>),
    /// The records below the offset are clean once all swaps are done; the log's generation it is true for.
    Done {
        up_to: Offset,
        generation: u64,
        figures: CleanFigures,
    },
    /// Nothing is left behind.
    Failed(CleanError),
}

/// A cleaning under way.
pub struct Clean<F: Files> {
    log: Group<F>,
    settings: CleanSettings,
    now: Timestamp,
    sources: Vec<Source<F>>,
    first_dirty: Offset,
    upper_bound: Offset,
    /// As the shard has told them, until the work begins.
    producers: Vec<(ProducerId, LastRecord)>,
    last_records: HashMap<ProducerId, LastRecord>,
    /// Of the segments that have some.
    aborted_rows: Vec<AbortedRows>,
    aborted: Vec<AbortedTransaction>,
    map: OffsetMap,
    mapped_end: Offset,
    transactions: Transactions,
    stage: Stage<F>,
    scratch: Vec<u8>,
    figures: CleanFigures,
}

enum Stage<F: Files> {
    Begin,
    Map { source: usize, position: u32 },
    Rewrite(Box<Rewrite<F>>),
    Done,
}

/// The group that is being written.
struct Rewrite<F: Files> {
    /// Numbers of its sources, and those of the groups after it.
    group: std::ops::Range<usize>,
    later: VecDeque<std::ops::Range<usize>>,
    source: usize,
    position: u32,
    /// Made with the first batch that stays.
    writer: Option<Writer<F>>,
    changed: bool,
}

impl<F: Files> Clean<F> {
    pub(super) fn new(
        log: Group<F>,
        settings: CleanSettings,
        sources: Vec<Source<F>>,
        (first_dirty, upper_bound): (Offset, Offset),
        producers: Vec<(ProducerId, LastRecord)>,
        aborted_rows: Vec<AbortedRows>,
        now: Timestamp,
    ) -> Self {
        Self {
            log,
            settings,
            now,
            sources,
            first_dirty,
            upper_bound,
            producers,
            last_records: HashMap::new(),
            aborted_rows,
            aborted: Vec::new(),
            map: OffsetMap::new(0, settings.load_factor, 0),
            mapped_end: first_dirty,
            transactions: Transactions::default(),
            stage: Stage::Begin,
            scratch: Vec::new(),
            figures: CleanFigures::default(),
        }
    }

    pub fn figures(&self) -> CleanFigures {
        self.figures
    }

    /// *File thread.* Does the next slice.
    pub fn run(mut self: Box<Self>) -> CleanStep<F> {
        match self.slice() {
            Ok(Some(cleaned)) => CleanStep::Group(self, cleaned),
            Ok(None) if matches!(self.stage, Stage::Done) => CleanStep::Done {
                up_to: self.mapped_end,
                generation: self.log.generation,
                figures: self.figures,
            },
            Ok(None) => CleanStep::More(self),
            Err(error) => {
                if let Err(left) = self.discard() {
                    tracing::warn!("what compaction left unfinished is still there: {left}");
                }
                CleanStep::Failed(error)
            }
        }
    }

    /// *File thread.* Gives up: removes what is unfinished.
    pub fn discard(self) -> Result<(), LogError> {
        match self.stage {
            Stage::Rewrite(rewrite) => {
                let base = self.sources[rewrite.group.start].base;
                output::discard(&self.log.context.files, &self.log.dir, base)
            }
            _ => Ok(()),
        }
    }

    fn slice(&mut self) -> Result<Option<Box<Cleaned<F>>>, CleanError> {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Begin => self.begin().map(|()| None),
            Stage::Map { source, position } => self.map_slice(source, position).map(|()| None),
            Stage::Rewrite(mut rewrite) => match self.rewrite_slice(&mut rewrite) {
                Ok(false) => {
                    self.stage = Stage::Rewrite(rewrite);
                    Ok(None)
                }
                Ok(true) => self.finish_group(rewrite),
                Err(error) => {
                    // For `discard`.
                    self.stage = Stage::Rewrite(rewrite);
                    Err(error)
                }
            },
            Stage::Done => Ok(None),
        }
    }

    fn begin(&mut self) -> Result<(), CleanError> {
        let first = self.sources.first().map_or(self.first_dirty, |source| source.base);
        for rows in std::mem::take(&mut self.aborted_rows) {
            let rows = load_aborted(&self.log, rows)?;
            let overlaps = |row: &AbortedTransaction| row.last >= first && row.first < self.upper_bound;
            self.aborted.extend(rows.into_iter().filter(overlaps));
        }
        self.last_records = std::mem::take(&mut self.producers).into_iter().collect();
        let offsets = (self.upper_bound.0 - self.first_dirty.0).max(0) as u64;
        self.map = OffsetMap::new(self.settings.map_bytes, self.settings.load_factor, offsets);
        let dirty = self.aborted.iter().filter(|row| row.last >= self.first_dirty);
        self.transactions = Transactions::new(dirty.copied().collect());
        let source = self.sources.partition_point(|source| source.end <= self.first_dirty);
        self.stage = Stage::Map { source, position: 0 };
        Ok(())
    }

    /// Notes the keys of a slice of the dirty part.
    fn map_slice(&mut self, number: usize, position: u32) -> Result<(), CleanError> {
        let Some(source) = self.sources.get_mut(number) else {
            self.start_rewrite();
            return Ok(());
        };
        let file = self.log.open(source)?;
        let (base, end) = (source.base, source.end);
        let mut scan = Scan::in_chunks(&**file, position, source.size, base, self.settings.buffer_bytes / 2);
        let mut full = false;
        while u64::from(scan.position() - position) < self.settings.slice_bytes {
            let Some(found) = self.log.next(&mut scan, base)? else { break };
            self.figures.mapped_bytes += found.head.total_len() as u64;
            if found.head.last_offset() < self.first_dirty {
                continue;
            }
            let batch = self.log.read(&mut scan, &found, base)?;
            if self.map_batch(&batch).map_err(|why| self.log.damaged(base, found.position, why))? {
                self.mapped_end = self.mapped_end.max(found.head.next_offset());
            } else {
                full = true;
                break;
            }
        }
        let position = scan.position();
        self.figures.map_utilization = self.map.utilization();
        if full {
            if self.mapped_end <= self.first_dirty {
                return Err(CleanError::MapTooSmall);
            }
            self.start_rewrite();
        } else if position >= self.sources[number].size {
            // Also what an earlier compaction left out.
            self.mapped_end = self.mapped_end.max(end);
            self.stage = Stage::Map { source: number + 1, position: 0 };
        } else {
            self.stage = Stage::Map { source: number, position };
        }
        Ok(())
    }

    /// False: the map is full; some of the batch's keys may be in it.
    fn map_batch(&mut self, bytes: &[u8]) -> Result<bool, String> {
        let batch = BatchView::parse(bytes).map_err(|error| error.to_string())?;
        let head = batch.head();
        let fate = self.transactions.pass(head, batch.body());
        if head.attributes().is_control() || fate == Fate::Obsolete {
            return Ok(true);
        }
        let limit = self.log.decompressed_bytes_max();
        let body =
            filter::uncompressed(&batch, limit, &mut self.scratch).map_err(|error| error.to_string())?;
        for record in Records::new(head, body) {
            let record = record.map_err(|error| error.to_string())?;
            if let Some(key) = record.key
                && record.offset >= self.first_dirty
                && !self.map.put(key, record.offset)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn start_rewrite(&mut self) {
        let count = self.sources.partition_point(|source| source.base < self.mapped_end);
        self.sources.truncate(count);
        self.transactions = Transactions::new(std::mem::take(&mut self.aborted));
        let mut groups = groups(&self.sources, &self.log.config);
        self.stage = next_group(&mut groups);
    }

    /// Rewrites a slice of a group; true when the group is through.
    fn rewrite_slice(&mut self, rewrite: &mut Rewrite<F>) -> Result<bool, CleanError> {
        let source = &mut self.sources[rewrite.source];
        let file = self.log.open(source)?;
        let (base, size) = (source.base, source.size);
        let is_last_source = rewrite.source + 1 == self.sources.len();
        let began = rewrite.position;
        let mut scan = Scan::in_chunks(&**file, began, size, base, self.settings.buffer_bytes / 2);
        let rules = Rules {
            map: &self.map,
            mapped_end: self.mapped_end,
            last_records: &self.last_records,
            now: self.now,
            delete_retention_ms: self.log.config.delete_retention_ms,
            decompressed_bytes_max: self.log.decompressed_bytes_max(),
        };
        while u64::from(scan.position() - began) < self.settings.slice_bytes {
            let Some(found) = self.log.next(&mut scan, base)? else { break };
            let bytes = self.log.read(&mut scan, &found, base)?;
            self.figures.read_bytes += found.head.total_len() as u64;
            let damaged = |why: String| self.log.damaged(base, found.position, why);
            let batch = BatchView::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
            let fate = self.transactions.pass(batch.head(), batch.body());
            let is_last = is_last_source && found.end() == size;
            let verdict = rules
                .judge(&batch, fate, is_last, &mut self.scratch)
                .map_err(|error| damaged(error.to_string()))?;
            rewrite.changed |= verdict != Verdict::Unchanged || found.head.is_legacy();
            let written: &[u8] = match &verdict {
                Verdict::Nothing => continue,
                Verdict::Unchanged => &bytes,
                Verdict::Replaced(bytes) => bytes,
            };
            let group_base = self.sources[rewrite.group.start].base;
            let writer = self.log.writer(&mut rewrite.writer, group_base, self.settings)?;
            let head = BatchView::parse(written).map_err(|error| damaged(error.to_string()))?;
            let head: &BatchHead = head.head();
            if !writer.append(head, written)? {
                return Err(CleanError::TooLong { base: group_base });
            }
            self.figures.written_bytes += written.len() as u64;
        }
        rewrite.position = scan.position();
        if rewrite.position < size {
            return Ok(false);
        }
        self.sources[rewrite.source].file = None;
        rewrite.source += 1;
        rewrite.position = 0;
        Ok(rewrite.source == rewrite.group.end)
    }

    fn finish_group(&mut self, rewrite: Box<Rewrite<F>>) -> Result<Option<Box<Cleaned<F>>>, CleanError> {
        let Rewrite { group, mut later, mut writer, changed, .. } = *rewrite;
        let sources = &self.sources[group.clone()];
        let base = sources[0].base;
        // An empty segment has no place but at the start of the log, which must not move.
        let is_first = group.start == 0;
        let unchanged = !changed && sources.len() == 1 && (is_first || sources[0].size > 0);
        let finished = (|| {
            let aborted = self.transactions.take_kept();
            if writer.is_none() && is_first {
                self.log.writer(&mut writer, base, self.settings)?;
            }
            let Some(mut writer) = writer else { return Ok(None) };
            if unchanged {
                output::discard(&self.log.context.files, &self.log.dir, base)?;
                return Ok(None);
            }
            writer.note_aborted(aborted);
            let end = sources[sources.len() - 1].end;
            let timestamp = sources.iter().map(|source| source.timestamp).max().unwrap_or(Timestamp::NONE);
            writer.finish(&self.log.context.files, end, timestamp).map(Some)
        })();
        let output = match finished {
            Ok(output) => output,
            Err(error) => {
                if let Err(left) = output::discard(&self.log.context.files, &self.log.dir, base) {
                    tracing::warn!("what compaction left unfinished is still there: {left}");
                }
                return Err(CleanError::Storage(error));
            }
        };
        self.stage = next_group(&mut later);
        if unchanged {
            return Ok(None);
        }
        let id = |source: &Source<F>| SourceId { base: source.base, size: source.size };
        Ok(Some(Box::new(Cleaned {
            generation: self.log.generation,
            sources: sources.iter().map(id).collect(),
            output,
            context: Arc::clone(&self.log.context),
            dir: self.log.dir.clone(),
        })))
    }
}

impl<F: Files> Group<F> {
    fn decompressed_bytes_max(&self) -> usize {
        DECOMPRESSED_BYTES_MAX.min(self.config.max_decompressed_message_bytes as usize)
    }

    fn path(&self, base: Offset) -> PathBuf {
        names::file(&self.dir, base, FileKind::Log)
    }

    fn open(&self, source: &mut Source<F>) -> Result<Arc<SegmentFile<F>>, CleanError> {
        if let Some(file) = &source.file {
            return Ok(Arc::clone(file));
        }
        let file = SegmentFile::new(&self.context, self.open_file(&self.path(source.base))?);
        source.file = Some(Arc::clone(&file));
        Ok(file)
    }

    fn open_file(&self, path: &Path) -> Result<F::File, CleanError> {
        self.context.files.open(path, OpenMode::Read).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CleanError::Gone { path: path.to_path_buf() },
            _ => LogError { what: "open", path: path.to_path_buf(), source }.into(),
        })
    }

    fn next<H: FileHandle>(&self, scan: &mut Scan<'_, H>, base: Offset) -> Result<Option<Found>, CleanError> {
        match scan.next().context("read", &self.path(base))? {
            Step::Batch(found) => Ok(Some(found)),
            Step::End => Ok(None),
            Step::Bad(why) => Err(self.damaged(base, scan.position(), why.to_owned())),
        }
    }

    /// The whole batch, whose checksum is right: what is rewritten gets a new one. Older formats are brought to the
    /// present one, as Kafka does.
    fn read<'s, H: FileHandle>(
        &self,
        scan: &'s mut Scan<'_, H>,
        found: &Found,
        base: Offset,
    ) -> Result<Cow<'s, [u8]>, CleanError> {
        let entry = scan.entry(found).context("read", &self.path(base))?;
        if !found.head.is_intact(entry) {
            return Err(self.damaged(base, found.position, "the checksum does not match".to_owned()));
        }
        if !found.head.is_legacy() {
            return Ok(Cow::Borrowed(entry));
        }
        let upgraded = upgrade_message(entry, self.decompressed_bytes_max());
        let upgraded = upgraded.map_err(|error| self.damaged(base, found.position, error.to_string()))?;
        Ok(Cow::Owned(upgraded.to_vec()))
    }

    fn writer<'w>(
        &self,
        writer: &'w mut Option<Writer<F>>,
        base: Offset,
        settings: CleanSettings,
    ) -> Result<&'w mut Writer<F>, LogError> {
        match writer {
            Some(writer) => Ok(writer),
            None => {
                let interval = self.config.index_interval_bytes;
                let made =
                    Writer::create(&self.context, &self.dir, base, interval, settings.buffer_bytes / 2)?;
                Ok(writer.insert(made))
            }
        }
    }

    fn damaged(&self, base: Offset, position: u32, why: String) -> CleanError {
        CleanError::Damaged { path: self.path(base), position, why }
    }
}

fn next_group<F: Files>(groups: &mut VecDeque<std::ops::Range<usize>>) -> Stage<F> {
    match groups.pop_front() {
        None => Stage::Done,
        Some(group) => Stage::Rewrite(Box::new(Rewrite {
            source: group.start,
            group,
            later: std::mem::take(groups),
            position: 0,
            writer: None,
            changed: false,
        })),
    }
}

/// Neighbours that go into one segment: no longer than `segment.bytes`, with indexes no longer than
/// `segment.index.bytes`, even if all of it stays.
fn groups<F: Files>(sources: &[Source<F>], config: &LogConfig) -> VecDeque<std::ops::Range<usize>> {
    let mut groups: VecDeque<std::ops::Range<usize>> = VecDeque::new();
    let (mut size, mut index_bytes, mut time_bytes) = (0, 0, 0);
    for (number, source) in sources.iter().enumerate() {
        let next =
            (size + u64::from(source.size), index_bytes + source.index_bytes, time_bytes + source.time_bytes);
        let index_max = u64::from(config.segment_index_bytes);
        let fits = |group: &std::ops::Range<usize>| {
            let span = source.end.0 - 1 - sources[group.start].base.0;
            next.0 <= u64::from(config.segment_bytes)
                && next.1 <= index_max
                && next.2 <= index_max
                && (source.size == 0 || span <= i64::from(i32::MAX))
        };
        match groups.back_mut() {
            Some(group) if fits(group) => {
                group.end = number + 1;
                (size, index_bytes, time_bytes) = next;
            }
            _ => {
                groups.push_back(number..number + 1);
                size = u64::from(source.size);
                (index_bytes, time_bytes) = (source.index_bytes, source.time_bytes);
            }
        }
    }
    groups
}

fn load_aborted<F: Files>(log: &Group<F>, rows: AbortedRows) -> Result<Vec<AbortedTransaction>, CleanError> {
    let mut aborted = Vec::new();
    if rows.in_file > 0 {
        let path = names::file(&log.dir, rows.base, FileKind::TransactionIndex);
        let file = log.open_file(&path)?;
        aborted = index::rows(&file, 0, rows.in_file).context("read", &path)?;
    }
    aborted.extend(rows.tail);
    Ok(aborted)
}
