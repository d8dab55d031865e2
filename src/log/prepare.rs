//! What appends need of the file system before they can go on: the active segment's file open, and a file for the
//! next segment when the batches will not fit. A file thread provides it; the batches wait in the partition's
//! queue meanwhile.

use std::borrow::Borrow;
use std::path::PathBuf;
use std::sync::Arc;

use crate::base::Offset;
use crate::base::clock::Now;
use crate::io::{Files, OpenMode};
use crate::wire::ErrorCode;
use crate::wire::record::BatchHead;

use super::error::Context;
use super::jobs::{self, Spare};
use super::names::{self, FileKind};
use super::{Batch, Log, LogContext, LogError, SegmentFile};

/// Opens or makes files that an append waits for. May run beside the log's other jobs.
pub struct PrepareJob<F: Files> {
    context: Arc<LogContext<F>>,
    dir: PathBuf,
    /// The segment to open.
    open: Option<Offset>,
    /// The spare file to make.
    spare: Option<PathBuf>,
}

/// What became of it.
pub struct PrepareOutcome<F: Files> {
    opened: Option<Opened<F>>,
    spare: Option<Result<Spare<F>, LogError>>,
}

/// What a log can take as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Followable {
    pub bytes: usize,
    /// There are no more whole batches.
    pub is_all: bool,
}

struct Opened<F: Files> {
    segment: Offset,
    file: Result<Arc<SegmentFile<F>>, LogError>,
}

impl<F: Files> Log<F> {
    /// *Shard.* How many of `batches`, from the first on, can be appended without opening or making a file. When
    /// that is not all of them a [`Log::prepare_job`] is to provide for the rest; after one that could not, they
    /// are refused by the error.
    pub fn appendable(&mut self, batches: &[Batch], now: Now) -> Result<usize, ErrorCode> {
        let count = self.prepared_for(batches.iter().map(|batch| &batch.head), now);
        let refused = std::mem::take(&mut self.upkeep.append_refused);
        let count = count.min(batches.len());
        if count < batches.len() && refused { Err(ErrorCode::KafkaStorageError) } else { Ok(count) }
    }

    /// *Shard.* The same for what [`Log::append_as_follower`] is to take: of the whole batches that `bytes` begin with.
    pub fn followable(&mut self, bytes: &[u8], now: Now) -> Result<Followable, ErrorCode> {
        if self.offline || self.is_held_up() {
            return Err(ErrorCode::KafkaStorageError);
        }
        let count = self.prepared_for(heads(bytes), now);
        let refused = std::mem::take(&mut self.upkeep.append_refused);
        let mut found = Followable { bytes: 0, is_all: true };
        for (number, head) in heads(bytes).enumerate() {
            match number < count {
                true => found.bytes += head.total_len(),
                false => found.is_all = false,
            }
        }
        if !found.is_all && refused { Err(ErrorCode::KafkaStorageError) } else { Ok(found) }
    }

    /// How many of the batches of these heads.
    fn prepared_for(&self, heads: impl Iterator<Item = impl Borrow<BatchHead>>, now: Now) -> usize {
        if self.offline || self.is_held_up() {
            // All of them are refused.
            return usize::MAX;
        }
        if self.active().file.is_none() {
            return 0;
        }
        let mut spares = usize::from(self.upkeep.spare.is_some());
        let (mut bytes, mut rows) = (0, 0);
        let mut rolled_size: Option<u64> = None;
        let mut number = 0;
        for head in heads {
            let head = head.borrow();
            let rolls = match rolled_size {
                None => self.must_roll_after(bytes, rows, head, now),
                // Of a segment that begins among these batches only the size can be known here.
                Some(size) => {
                    size > 0 && size + head.total_len() as u64 > u64::from(self.config.segment_bytes)
                }
            };
            if rolls {
                if spares == 0 {
                    return number;
                }
                spares -= 1;
                rolled_size = Some(0);
            }
            match &mut rolled_size {
                Some(size) => *size += head.total_len() as u64,
                None => {
                    bytes += head.total_len() as u64;
                    rows += 1;
                }
            }
            number += 1;
        }
        number
    }

    /// *Shard.* The job that provides what [`Log::appendable`] missed; `None` when a file thread is at it already:
    /// ask again when the log's job has come back.
    pub fn prepare_job(&mut self) -> Option<PrepareJob<F>> {
        let active = self.active();
        let open = active.file.is_none().then_some(active.base);
        // Opening comes first: what there is room for is written before the roll.
        let spare = match open {
            None if self.upkeep.spare_out => return None,
            None if self.upkeep.spare.is_none() => Some(self.spare_path()),
            _ => None,
        };
        let (context, dir) = (Arc::clone(&self.context), self.dir.clone());
        Some(PrepareJob { context, dir, open, spare })
    }

    /// *Shard.* Takes what was provided. What was refused refuses the appends that wait; any other error means that
    /// the directory is to be taken offline.
    pub fn finish_prepare(&mut self, outcome: PrepareOutcome<F>, now: Now) -> Result<(), LogError> {
        let PrepareOutcome { opened, spare } = outcome;
        let mut result = Ok(());
        match opened {
            Some(Opened { segment, file: Ok(file) }) => {
                self.counts.reopened += 1;
                let active = self.active_mut();
                if active.base == segment {
                    active.file.get_or_insert(file);
                }
            }
            Some(Opened { file: Err(error), .. }) => result = self.note_unprepared(error),
            None => {}
        }
        match spare {
            Some(Ok(spare)) => self.spare_made(Ok(spare), now),
            Some(Err(error)) => {
                self.upkeep.spare_out = false;
                result = self.note_unprepared(error);
            }
            None => {}
        }
        result
    }

    fn note_unprepared(&mut self, error: LogError) -> Result<(), LogError> {
        self.counts.preparations_failed += 1;
        self.upkeep.append_refused = true;
        if error.fault().passes() {
            self.note_refusal(&error);
            return Ok(());
        }
        self.take_offline(&error);
        Err(error)
    }
}

/// The heads of the whole batches that `bytes` begin with, up to one that is damaged: whoever appends it finds that.
fn heads(bytes: &[u8]) -> impl Iterator<Item = BatchHead> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let head = BatchHead::of_entry(left).ok()?;
        left = left.get(head.total_len()..)?;
        Some(head)
    })
}

impl<F: Files> PrepareJob<F> {
    /// *File thread.*
    pub fn run(self) -> PrepareOutcome<F> {
        let Self { context, dir, open, spare } = self;
        let opened = open.map(|segment| {
            let path = names::file(&dir, segment, FileKind::Log);
            let file = context.files.open(&path, OpenMode::Write).context("open", &path);
            Opened { segment, file: file.map(|file| SegmentFile::new(&context, file)) }
        });
        let spare = spare.map(|path| jobs::create_spare(&context, &dir, path));
        PrepareOutcome { opened, spare }
    }
}
