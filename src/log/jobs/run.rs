//! The blocking half of a log's jobs: what file threads do. *File thread.*

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::error::{Context, SYNC};
use super::super::flush::sync_segments;
use super::super::names::{self, FileKind};
use super::super::{LogContext, LogError, SegmentFile, checkpoint, reindex};
use super::{Checkpoint, Done, EpochWrite, Failed, Job, Outcome, PREALLOCATE_BYTES, Roll, Spare, Task};
use crate::base::Offset;
use crate::io::{FileHandle, Files, OpenMode};

impl<F: Files> Job<F> {
    /// *File thread.*
    pub fn run(self) -> Outcome<F> {
        let Job { context, dir, names_changed, task } = self;
        let done = match task {
            Task::Roll(roll) => match finish_roll(&context, &dir, &roll) {
                Ok(()) => Ok(Done::Rolled(roll)),
                Err(error) => Err(Failed { error, task: Task::Roll(roll) }),
            },
            Task::Checkpoint(checkpoint) => match run_checkpoint(&context, &dir, &checkpoint) {
                Ok(()) => Ok(Done::Checkpoint(checkpoint)),
                Err(error) => Err(Failed { error, task: Task::Checkpoint(checkpoint) }),
            },
            Task::Spare { path } => Ok(Done::Spare(create_spare(&context, &dir, path))),
            Task::Preallocate { base, file, position } => {
                let reserved = file.preallocate(position, PREALLOCATE_BYTES).context("preallocate in", &dir);
                Ok(Done::Preallocated { base, up_to: reserved.map(|()| position + PREALLOCATE_BYTES) })
            }
            Task::Delete { bases } => match rename_deleted(&context, &dir, &bases) {
                Ok(paths) => Ok(Done::Deleted { paths }),
                Err(error) => Err(Failed { error, task: Task::Delete { bases } }),
            },
            Task::Unlink { paths } => match unlink(&context.files, &paths) {
                Ok(()) => Ok(Done::Unlinked),
                Err(error) => Err(Failed { error, task: Task::Unlink { paths } }),
            },
            Task::Reindex { segment, size, interval, layout } => {
                let tables = reindex::rebuild(&context, &dir, segment, size, interval);
                Ok(Done::Reindexed { segment, layout, tables })
            }
            Task::Swap(mut swap) => match swap.run(&context, &dir) {
                Ok(swapped) => Ok(Done::Swapped(swapped)),
                Err(error) => Err(Failed { error, task: Task::Swap(swap) }),
            },
        };
        Outcome { names_changed, done }
    }
}

fn finish_roll<F: Files>(context: &LogContext<F>, dir: &Path, roll: &Roll<F>) -> Result<(), LogError> {
    let Roll { rolled, old, epochs } = roll;
    let files = &context.files;
    if let Some(spare) = &rolled.spare {
        let path = names::file(dir, rolled.new, FileKind::Log);
        match files.rename(spare, &path) {
            // An attempt that was refused further on has done it.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && files.exists(&path).context("look for", &path)? => {}
            renamed => renamed.context("rename", spare)?,
        }
    }
    for kind in [FileKind::OffsetIndex, FileKind::TimeIndex] {
        let path = names::file(dir, rolled.new, kind);
        files.open(&path, OpenMode::Create).context("create", &path)?;
    }
    if let Some(old) = old {
        old.write(files, dir)?;
        old.cut(files, dir)?;
    }
    write_snapshot(files, dir, rolled.new, &rolled.snapshot)?;
    write_epochs(files, dir, epochs.as_ref())?;
    files.sync_dir(dir).context(SYNC, dir)
}

fn run_checkpoint<F: Files>(
    context: &LogContext<F>,
    dir: &Path,
    checkpoint: &Checkpoint<F>,
) -> Result<(), LogError> {
    let files = &context.files;
    checkpoint.active.write(files, dir)?;
    sync_segments(files, dir, &checkpoint.files, &checkpoint.closed)?;
    checkpoint.active.sync(files, dir)?;
    if let Some(snapshot) = &checkpoint.snapshot {
        write_snapshot(files, dir, checkpoint.up_to, snapshot)?;
    }
    write_epochs(files, dir, checkpoint.epochs.as_ref())?;
    let stale = checkpoint.stale_snapshots.iter();
    unlink(files, &stale.map(|offset| names::file(dir, *offset, FileKind::Snapshot)).collect::<Vec<_>>())?;
    files.sync_dir(dir).context(SYNC, dir)
}

pub(in crate::log) fn create_spare<F: Files>(
    context: &Arc<LogContext<F>>,
    dir: &Path,
    path: PathBuf,
) -> Result<Spare<F>, LogError> {
    let file = context.files.open(&path, OpenMode::Create).context("create", &path)?;
    // One may be left of an attempt that failed half way.
    file.truncate(0).context("truncate", &path)?;
    context.files.sync_dir(dir).context(SYNC, dir)?;
    Ok(Spare { path, file: SegmentFile::new(context, file) })
}

/// The names end in `.deleted` now; returns them.
fn rename_deleted<F: Files>(
    context: &LogContext<F>,
    dir: &Path,
    bases: &[Offset],
) -> Result<Vec<PathBuf>, LogError> {
    let mut renamed = Vec::new();
    for base in bases {
        for kind in FileKind::OF_SEGMENT {
            let path = names::file(dir, *base, kind);
            let to = names::deleted(&path);
            match context.files.rename(&path, &to) {
                Ok(()) => renamed.push(to),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // An attempt that was refused further on may have done it.
                    if context.files.exists(&to).context("look for", &to)? {
                        renamed.push(to);
                    }
                }
                Err(source) => return Err(LogError { what: "rename", path, source }),
            }
        }
    }
    context.files.sync_dir(dir).context(SYNC, dir)?;
    Ok(renamed)
}

pub(in crate::log) fn unlink<F: Files>(files: &F, paths: &[PathBuf]) -> Result<(), LogError> {
    for path in paths {
        match files.remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(LogError { what: "remove", path: path.clone(), source: error });
            }
            _ => {}
        }
    }
    Ok(())
}

pub(in crate::log) fn write_snapshot<F: Files>(
    files: &F,
    dir: &Path,
    offset: Offset,
    bytes: &[u8],
) -> Result<(), LogError> {
    // Its checksum tells a torn one; the one before it is still there then.
    let path = names::file(dir, offset, FileKind::Snapshot);
    let file = files.open(&path, OpenMode::Create).context("create", &path)?;
    file.truncate(0).context("truncate", &path)?;
    file.write_all_at(&mut [IoSlice::new(bytes)], 0).context("write", &path)?;
    file.sync_data().context(SYNC, &path)
}

pub(in crate::log) fn write_epochs<F: Files>(
    files: &F,
    dir: &Path,
    epochs: Option<&EpochWrite>,
) -> Result<Option<u64>, LogError> {
    let Some(epochs) = epochs else { return Ok(None) };
    let path = dir.join(checkpoint::EPOCHS_FILE);
    files.write_atomically(&path, epochs.text.as_bytes()).context("write", &path)?;
    Ok(Some(epochs.version))
}
