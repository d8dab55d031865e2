//! The blocking half of a move: what file threads do with the copy and the two directories. *File thread.*

use std::path::PathBuf;
use std::sync::Arc;

use super::{Copy, Failure, Planned, UNFLUSHED_BYTES_MAX};
use crate::base::{Offset, TopicPartition, clock};
use crate::config::LogConfig;
use crate::io::FileHandle;
use crate::io::os::OsFiles;
use crate::log::{DirError, Gaps, Log, LogError, Moved, OpenOptions};
use crate::shard::directories::{Directories, StartEntry};
use crate::shard::placement::PartitionKey;

/// Blocks: for a file thread.
pub(super) fn open_copy(
    directories: &Directories,
    to: usize,
    key: PartitionKey,
    topic_partition: TopicPartition,
    config: Arc<LogConfig>,
    log_start: Offset,
    found: Option<StartEntry>,
) -> Result<Copy, Failure> {
    let home = &directories.list[to];
    let (dir, recovery_point, clean) = match found {
        Some(entry) => (entry.found.dir, entry.found.recovery_point, entry.clean),
        None => {
            let made = home.log_dir.create_future(&topic_partition, key.topic);
            (made.map_err(Failure::Arrive)?, Offset::ZERO, true)
        }
    };
    // What compaction has left out of the current replica is not saved before the copy is whole: a gap in it is taken
    // for a loss, and the rest is copied again.
    let is_new = clean && recovery_point == Offset::ZERO;
    let options = OpenOptions {
        dir: dir.clone(),
        topic_partition,
        config,
        recovery_point,
        // The first segment of a new copy begins there.
        log_start: if is_new { log_start } else { Offset::ZERO },
        cleaned: None,
        gaps: Gaps::BelowRecoveryPoint,
        clean,
    };
    let mut log = Box::new(Log::open(&home.context, options, clock::now())?);
    if log.log_start() > log_start || log.log_end() < log_start {
        log.restart_at(log_start, clock::now()).map_err(Failure::Copy)?;
    }
    Ok(Copy { log, dir })
}

/// Brings the copy up to what was planned; with `sync` all of it is on the disk then. Blocks: for a file thread.
pub(super) fn copy_some(log: &mut Log<OsFiles>, planned: &Planned, sync: bool) -> Result<(), Failure> {
    let now = clock::now();
    if log.log_end() > planned.log_end {
        log.truncate_to(planned.log_end, now).map_err(Failure::Copy)?;
    }
    if log.log_end() < planned.log_start {
        // What lay between was deleted meanwhile.
        log.restart_at(planned.log_start, now).map_err(Failure::Copy)?;
    }
    if let Some(range) = &planned.range {
        let mut bytes = vec![0; range.length as usize];
        let read = range.file.read_at(&mut bytes, range.position).map_err(|source| {
            Failure::Source(LogError { what: "read", path: log.dir().to_path_buf(), source })
        })?;
        log.append_as_follower(&bytes[..read], now).map_err(Failure::Copy)?;
    }
    if planned.log_start > log.log_start() {
        // It is not behind the end.
        let _ = log.advance_log_start(planned.log_start);
    }
    if sync || log.unflushed_bytes() >= UNFLUSHED_BYTES_MAX {
        log.request_checkpoint();
    }
    log.run_jobs(now).map_err(Failure::Copy)
}

/// Gives the whole copy the place of the current replica; returns what that is called now. Blocks: for a file
/// thread.
pub(super) fn switch_directories(
    directories: &Directories,
    (from, to): (usize, usize),
    name: &TopicPartition,
    copy: &mut Copy,
) -> Result<PathBuf, Failure> {
    let (leave, arrive) = (&directories.list[from].log_dir, &directories.list[to].log_dir);
    let whole = Moved { log_start: copy.log.log_start(), log_end: copy.log.log_end() };
    arrive.note_moved(&copy.dir, whole).map_err(Failure::Arrive)?;
    let left = match leave.rename_deleted(name) {
        Ok(left) => left,
        Err(error) => {
            // Appends go on, and the copy is not whole any more.
            arrive.forget_moved(&copy.dir).map_err(Failure::Arrive)?;
            return Err(Failure::Leave(error));
        }
    };
    match arrive.promote(&copy.dir, name) {
        Ok(dir) => {
            copy.log.relocate(dir.clone());
            copy.dir = dir;
            Ok(left)
        }
        Err(error) => {
            leave.restore(&left, name).map_err(Failure::Leave)?;
            arrive.forget_moved(&copy.dir).map_err(Failure::Arrive)?;
            Err(Failure::Arrive(error))
        }
    }
}

/// Finishes, before the partition is opened, what a crash interrupted; the entry to open. Blocks: for a file thread.
pub(in crate::shard) fn finish_interrupted(
    directories: &Directories,
    current: Option<StartEntry>,
    future: StartEntry,
) -> Result<StartEntry, DirError> {
    let name = &future.found.topic_partition;
    // What was done before the opening of the log was refused is not done again.
    if let Some(current) = current.filter(|current| current.found.dir.exists()) {
        let log_dir = &directories.list[current.directory].log_dir;
        let left = log_dir.rename_deleted(name)?;
        log_dir.remove_deleted(&left)?;
    }
    let log_dir = &directories.list[future.directory].log_dir;
    let dir = match future.found.dir.exists() {
        true => log_dir.promote(&future.found.dir, name)?,
        false => log_dir.partition_dir(name),
    };
    tracing::info!(partition = %name, to = %dir.display(), "an interrupted move is finished");
    let mut entry = future;
    entry.found.dir = dir;
    Ok(entry)
}

/// Puts a copy aside that belongs to no current replica. Blocks: for a file thread.
pub(in crate::shard) fn put_copy_aside(
    directories: &Directories,
    future: &StartEntry,
) -> Result<PathBuf, DirError> {
    directories.list[future.directory]
        .log_dir
        .mark_future_stray(&future.found.dir, &future.found.topic_partition)
}
