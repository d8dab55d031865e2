//! What appends need of the file system before they can go on: the active segment's file open, and a file for the
//! next segment when the batches will not fit. A file thread provides it; the batches wait in the partition's
//! queue meanwhile.

use std::path::PathBuf;
use std::sync::Arc;

use crate::base::Offset;
use crate::base::clock::Now;
use crate::io::{Files, OpenMode};
use crate::wire::ErrorCode;

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

struct Opened<F: Files> {
    segment: Offset,
    file: Result<Arc<SegmentFile<F>>, LogError>,
}

impl<F: Files> Log<F> {
    /// *Shard.* How many of `batches`, from the first on, can be appended without opening or making a file. When
    /// that is not all of them a [`Log::prepare_job`] is to provide for the rest; after one that could not, they
    /// are refused by the error.
    pub fn appendable(&mut self, batches: &[Batch], now: Now) -> Result<usize, ErrorCode> {
        let count = self.prepared_for(batches, now);
        let refused = std::mem::take(&mut self.upkeep.append_refused);
        if count < batches.len() && refused { Err(ErrorCode::KafkaStorageError) } else { Ok(count) }
    }

    fn prepared_for(&self, batches: &[Batch], now: Now) -> usize {
        if self.offline || self.is_held_up() {
            // All of them are refused.
            return batches.len();
        }
        if self.active().file.is_none() {
            return 0;
        }
        let mut spares = usize::from(self.upkeep.spare.is_some());
        let (mut bytes, mut rows) = (0, 0);
        let mut rolled_size: Option<u64> = None;
        for (number, Batch { head, .. }) in batches.iter().enumerate() {
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
        }
        batches.len()
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
