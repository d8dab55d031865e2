//! Topics and their files: appended to, read by position, the oldest unlinked.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::FallocateFlags;

use super::wire::TopicAt;

const SEGMENT_BYTES: u64 = 1 << 30;
/// Fields of a record batch, format 2.
const BATCH_HEAD: usize = 61;
const LENGTH_AT: usize = 8;
const CRC_AT: usize = 17;
const CHECKED_AT: usize = 21;
const LAST_DELTA_AT: usize = 23;
/// The most parts of one vectored write.
const PARTS_MAX: usize = 256;

pub struct Store {
    directory: PathBuf,
    pub port: u16,
    preallocate: bool,
    topics: Vec<Topic>,
    by_name: HashMap<Vec<u8>, usize>,
    by_id: HashMap<u128, usize>,
    next_id: u128,
    /// Batches so far, of all topics.
    pub appended: u64,
}

pub struct Topic {
    pub name: String,
    pub id: u128,
    pub partitions: Vec<Partition>,
    settings: TopicSettings,
}

#[derive(Clone, Copy)]
struct TopicSettings {
    segment_bytes: u64,
    /// `None`: nothing is unlinked.
    retention_bytes: Option<u64>,
    /// An answer waits for fdatasync.
    sync: bool,
    preallocate: bool,
}

#[derive(Default)]
pub struct Partition {
    segments: VecDeque<Segment>,
    pub end: i64,
}

struct Segment {
    path: PathBuf,
    file: Rc<File>,
    size: u64,
    /// Offset and position of each batch.
    batches: Vec<(i64, u64)>,
}

/// What a fetch sends of one partition.
pub struct Range {
    pub file: Rc<File>,
    pub position: u64,
    pub len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PartitionAt {
    topic: usize,
    partition: usize,
}

impl Store {
    pub fn new(directory: PathBuf, port: u16, preallocate: bool) -> Self {
        Self {
            directory,
            port,
            preallocate,
            topics: Vec::new(),
            by_name: HashMap::new(),
            by_id: HashMap::new(),
            next_id: 1,
            appended: 0,
        }
    }

    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.by_name.values().map(|at| &self.topics[*at])
    }

    pub fn topic(&self, name: &str) -> Option<&Topic> {
        self.by_name.get(name.as_bytes()).map(|at| &self.topics[*at])
    }

    /// `setting` gives the topic's settings by their Kafka names.
    pub fn create(
        &mut self,
        name: &str,
        partitions: usize,
        setting: impl Fn(&str) -> Option<i64>,
    ) -> io::Result<u128> {
        let id = self.next_id;
        self.next_id += 1;
        let settings = TopicSettings {
            segment_bytes: setting("segment.bytes").map_or(SEGMENT_BYTES, |bytes| bytes as u64),
            retention_bytes: setting("retention.bytes").and_then(|bytes| u64::try_from(bytes).ok()),
            sync: setting("flush.messages") == Some(1),
            preallocate: self.preallocate,
        };
        let mut topic = Topic { name: name.to_owned(), id, partitions: Vec::new(), settings };
        for index in 0..partitions.max(1) {
            let mut partition = Partition::default();
            let directory = self.directory.join(format!("{name}-{index}"));
            std::fs::create_dir_all(&directory)?;
            partition.roll(&directory, settings)?;
            topic.partitions.push(partition);
        }
        self.by_name.insert(name.as_bytes().to_vec(), self.topics.len());
        self.by_id.insert(id, self.topics.len());
        self.topics.push(topic);
        Ok(id)
    }

    pub fn delete(&mut self, name: &str) -> bool {
        let Some(at) = self.by_name.remove(name.as_bytes()) else { return false };
        self.by_id.remove(&self.topics[at].id);
        for index in 0..std::mem::take(&mut self.topics[at].partitions).len() {
            // Nobody asks whether a deleted topic's files are gone.
            let _ = std::fs::remove_dir_all(self.directory.join(format!("{name}-{index}")));
        }
        true
    }

    pub fn find(&self, topic: TopicAt<'_>, partition: i32) -> Option<PartitionAt> {
        let topic = match topic {
            TopicAt::Name(name) => *self.by_name.get(name)?,
            TopicAt::Id(id) => *self.by_id.get(&id)?,
        };
        let partition = partition as usize;
        (partition < self.topics[topic].partitions.len()).then_some(PartitionAt { topic, partition })
    }

    /// The offset that comes next.
    pub fn end(&self, at: PartitionAt) -> i64 {
        self.topics[at.topic].partitions[at.partition].end
    }

    pub fn start(&self, at: PartitionAt) -> i64 {
        let partition = &self.topics[at.topic].partitions[at.partition];
        let first = partition.segments.front().and_then(|segment| segment.batches.first());
        first.map_or(partition.end, |(offset, _)| *offset)
    }

    /// Appends `ranges` of `buffer` to one partition: each holds whole batches. Returns the base offset of
    /// each range.
    pub fn append(
        &mut self,
        at: PartitionAt,
        buffer: &mut [u8],
        ranges: &[std::ops::Range<usize>],
        offsets: &mut Vec<i64>,
    ) -> io::Result<()> {
        let topic = &mut self.topics[at.topic];
        let partition = &mut topic.partitions[at.partition];
        if partition.segments.back().is_some_and(|last| last.size >= topic.settings.segment_bytes) {
            let directory = self.directory.join(format!("{}-{}", topic.name, at.partition));
            partition.roll(&directory, topic.settings)?;
        }
        for range in ranges {
            offsets.push(partition.end);
            self.appended += partition.seal(&mut buffer[range.clone()])?;
        }
        let segment = partition.segments.back_mut().ok_or_else(|| io::Error::other("no segment"))?;
        segment.write(buffer, ranges)?;
        if topic.settings.sync {
            rustix::fs::fdatasync(&segment.file)?;
        }
        Ok(())
    }

    /// What lies at `offset`, `bytes_max` at most but one batch at least if `whole_first`.
    pub fn read(&self, at: PartitionAt, offset: i64, bytes_max: usize, whole_first: bool) -> Option<Range> {
        let partition = &self.topics[at.topic].partitions[at.partition];
        if offset >= partition.end {
            return None;
        }
        let after = partition
            .segments
            .partition_point(|segment| segment.batches.first().is_some_and(|(first, _)| *first <= offset));
        let segment = &partition.segments[after.saturating_sub(1)];
        let index = segment.batches.partition_point(|(first, _)| *first <= offset).saturating_sub(1);
        let position = segment.batches.get(index)?.1;
        let next = segment.batches.get(index + 1).map_or(segment.size, |(_, position)| *position);
        let mut len = ((segment.size - position) as usize).min(bytes_max);
        if whole_first {
            len = len.max((next - position) as usize);
        }
        (len > 0).then(|| Range { file: segment.file.clone(), position, len })
    }
}

impl Partition {
    fn roll(&mut self, directory: &Path, settings: TopicSettings) -> io::Result<()> {
        let path = directory.join(format!("{:020}.log", self.end));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        if settings.preallocate {
            rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, settings.segment_bytes)?;
        }
        self.segments.push_back(Segment { path, file: Rc::new(file), size: 0, batches: Vec::new() });
        let Some(retention) = settings.retention_bytes else { return Ok(()) };
        let mut total: u64 = self.segments.iter().map(|segment| segment.size).sum();
        while let Some(oldest) = self.segments.front()
            && total.saturating_sub(oldest.size) >= retention
            && self.segments.len() > 1
        {
            total -= oldest.size;
            std::fs::remove_file(&oldest.path)?;
            self.segments.pop_front();
        }
        Ok(())
    }

    /// Checks the sum of each batch, gives it its offset and notes where it will lie.
    fn seal(&mut self, mut bytes: &mut [u8]) -> io::Result<u64> {
        let mut count = 0;
        let segment = self.segments.back_mut().ok_or_else(|| io::Error::other("no segment"))?;
        while !bytes.is_empty() {
            if bytes.len() < BATCH_HEAD {
                return Err(io::Error::other("a batch is cut off"));
            }
            let len = LENGTH_AT + 4 + number(bytes, LENGTH_AT) as usize;
            let Some((batch, rest)) =
                bytes.split_at_mut_checked(len).filter(|(batch, _)| batch.len() >= BATCH_HEAD)
            else {
                return Err(io::Error::other("a batch is cut off"));
            };
            if crc_fast::crc32_iscsi(&batch[CHECKED_AT..]) != number(batch, CRC_AT) {
                return Err(io::Error::other("a batch is damaged"));
            }
            let records = i64::from(number(batch, LAST_DELTA_AT)) + 1;
            batch[..8].copy_from_slice(&self.end.to_be_bytes());
            segment.batches.push((self.end, segment.size));
            segment.size += len as u64;
            self.end += records;
            count += 1;
            bytes = rest;
        }
        Ok(count)
    }
}

impl Segment {
    /// Writes what [`Partition::seal`] has counted already.
    fn write(&self, buffer: &[u8], ranges: &[std::ops::Range<usize>]) -> io::Result<()> {
        let total: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        let mut position = self.size - total as u64;
        for ranges in ranges.chunks(PARTS_MAX) {
            let parts: Vec<IoSlice<'_>> =
                ranges.iter().map(|range| IoSlice::new(&buffer[range.clone()])).collect();
            let wanted: usize = parts.iter().map(|part| part.len()).sum();
            let written = rustix::io::pwritev(&self.file, &parts, position)?;
            if written != wanted {
                return Err(io::Error::other("a short write: the disk is full"));
            }
            position += wanted as u64;
        }
        Ok(())
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
