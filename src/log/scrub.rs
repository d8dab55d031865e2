//! The scrub: reads batches again that nobody asks for, to find damage before somebody does. It repairs nothing: a
//! finding is told, and the partition goes on. The damaged batch is served as it is, and every client that checks
//! its checksum refuses it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::base::Offset;
use crate::io::os::OsFiles;
use crate::io::{Files, OpenMode, cached};

use super::error::Context;
use super::names::{self, FileKind};
use super::scan::{Scan, Step};
use super::{Log, LogContext, LogError, SegmentFile};

/// Where the scrub of a log goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubPosition {
    /// Base offset of the segment.
    pub segment: Offset,
    pub position: u32,
    /// The first offset that may be there.
    offset: Offset,
    /// Of the log's segments then: where a batch begins in a file says nothing of the one that took its place.
    layout: u64,
}

/// A batch that is not what was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubFinding {
    pub path: PathBuf,
    pub position: u32,
    /// The first offset that cannot be read.
    pub offset: Offset,
    pub why: &'static str,
}

/// Reads a stretch of one segment, on a file thread.
pub struct ScrubJob<F: Files> {
    context: Arc<LogContext<F>>,
    dir: PathBuf,
    file: Option<Arc<SegmentFile<F>>>,
    from: ScrubPosition,
    size: u32,
    bytes_max: u32,
}

/// What a job found, for [`Log::finish_scrub`].
pub struct ScrubOutcome<F: Files> {
    /// The file and the stretch of it that was read; none when the segment is gone.
    pub read: Option<(Arc<SegmentFile<F>>, u32, u32)>,
    findings: Vec<ScrubFinding>,
    next: ScrubPosition,
}

/// What a stretch came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scrubbed {
    pub bytes: u64,
    pub findings: Vec<ScrubFinding>,
    /// Where to go on, for [`Log::scrub_job`].
    pub next: ScrubPosition,
}

impl<F: Files> Log<F> {
    /// *Shard.* The job for the next stretch from `from` on, of about `bytes_max`; `None` at the log's end, while
    /// compaction exchanges files, and once it has done so since: the next round reads the new ones.
    pub fn scrub_job(&self, from: Option<ScrubPosition>, bytes_max: u32) -> Option<ScrubJob<F>> {
        if self.upkeep.has_swaps() {
            return None;
        }
        let (before_all, layout) = (Offset(i64::MIN), self.layout);
        let from =
            from.unwrap_or(ScrubPosition { segment: before_all, position: 0, offset: before_all, layout });
        if from.layout != layout {
            return None;
        }
        let is_left = |base: Offset, size: u32| match base.cmp(&from.segment) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => from.position < size,
            std::cmp::Ordering::Greater => size > 0,
        };
        let segment = self.segments.iter().find(|segment| is_left(segment.base, segment.size))?;
        let from = match segment.base == from.segment {
            true => from,
            false => ScrubPosition { segment: segment.base, position: 0, offset: segment.base, layout },
        };
        Some(ScrubJob {
            context: Arc::clone(&self.context),
            dir: self.dir.clone(),
            file: segment.file.clone(),
            from,
            size: segment.size,
            bytes_max,
        })
    }

    /// *Shard.* What a stretch came to; `None` when compaction has exchanged the file under it: what looks like damage may
    /// be of a file that was taken away while it was read.
    pub fn finish_scrub(&self, outcome: ScrubOutcome<F>) -> Option<Scrubbed> {
        let ScrubOutcome { read, findings, next } = outcome;
        let bytes = read.map_or(0, |(_, from, to)| u64::from(to - from));
        (next.layout == self.layout).then_some(Scrubbed { bytes, findings, next })
    }
}

impl ScrubJob<OsFiles> {
    /// Whether the page cache has the stretch already; a file that is not open counts as not cached. *File thread.*
    pub fn is_cached(&self) -> bool {
        let length = self.bytes_max.min(self.size - self.from.position);
        self.file.as_ref().is_some_and(|file| {
            cached::is_cached(&***file, u64::from(self.from.position), u64::from(length)).unwrap_or(true)
        })
    }
}

impl<F: Files> ScrubJob<F> {
    /// *File thread.*
    pub fn run(self) -> Result<ScrubOutcome<F>, LogError> {
        let ScrubPosition { segment, position, mut offset, layout } = self.from;
        let path = names::file(&self.dir, segment, FileKind::Log);
        let gone = ScrubPosition { segment, position: u32::MAX, offset, layout };
        let file = match self.file {
            Some(file) => file,
            None => match self.context.files.open(&path, OpenMode::Read) {
                // Retention has taken it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(ScrubOutcome { read: None, findings: Vec::new(), next: gone });
                }
                opened => SegmentFile::new(&self.context, opened.context("open", &path)?),
            },
        };
        let mut scan = Scan::whole(&**file, position, self.size, segment);
        let (mut findings, mut next) = (Vec::new(), position);
        while next - position < self.bytes_max {
            let why = match scan.next().context("scrub", &path)? {
                Step::Batch(found) => {
                    let is_intact = scan.is_intact(&found).context("scrub", &path)?;
                    let at = found.position;
                    next = found.end();
                    if !is_intact {
                        let (path, offset) = (path.clone(), found.head.base_offset());
                        let why = "the checksum does not match";
                        findings.push(ScrubFinding { path, position: at, offset, why });
                    }
                    offset = found.head.next_offset();
                    continue;
                }
                Step::End => break,
                Step::Bad(why) => why,
            };
            // Where the next batch begins cannot be known: the rest of the segment is lost to readers too.
            findings.push(ScrubFinding { path: path.clone(), position: next, offset, why });
            next = u32::MAX;
            break;
        }
        let end = next.min(self.size);
        let next = ScrubPosition { segment, position: next, offset, layout };
        Ok(ScrubOutcome { read: Some((file, position, end)), findings, next })
    }
}
