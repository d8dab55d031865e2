//! The checkpoint files of the log directories: every shard tells its offsets, one writes the files.

use std::rc::Rc;

use super::Shard;
use super::directories::Directories;
use super::messages::{CheckpointEntry, Reply, Request};
use crate::base::{Offset, TopicPartition};
use crate::log::{Checkpoint, DirError};

/// Which of an entry's offsets a checkpoint file holds.
type OffsetOf = fn(&CheckpointEntry) -> Option<Offset>;

impl Shard {
    pub(super) fn checkpoint_entries(&self) -> Vec<CheckpointEntry> {
        let replicas = self.replicas.borrow();
        let entries = replicas.values().filter_map(|replica| {
            let live = replica.with(|partition| CheckpointEntry {
                directory: replica.directory(),
                topic_partition: replica.topic_partition.clone(),
                recovery_point: partition.log().recovery_point(),
                high_watermark: partition.high_watermark(),
                log_start: partition.log().log_start(),
                cleaned: partition.log().cleaned(),
            });
            live.ok().or_else(|| replica.found_entry())
        });
        let copies = replicas.values().filter_map(|replica| {
            replica.moving().map(|moving| moving.checkpoint_entry(&replica.topic_partition))
        });
        entries.chain(copies).collect()
    }

    /// Gathers the offsets of all shards and writes every directory's checkpoint files, on a file thread.
    pub async fn write_checkpoints(self: &Rc<Self>) {
        let turn = self.settings.directories.begin_checkpoints();
        let replies = self.ask_all(|| Request::Checkpoint).await;
        let mut entries = Vec::new();
        for reply in replies {
            if let Reply::Checkpoint(mut part) = reply {
                entries.append(&mut part);
            }
        }
        let directories = self.settings.directories.clone();
        let written = directories
            .threads
            .run("checkpoints", {
                let directories = directories.clone();
                move || write_checkpoints(&directories, turn, &entries)
            })
            .await;
        if let Err(error) = written {
            tracing::error!("the checkpoint files were not written: {error}");
        }
    }
}

/// Writes the checkpoint files of a stopping broker. Offsets that were gathered before, perhaps from half of
/// the shards, are not written over them any more. Blocks: for a file thread.
///
/// # Errors
/// As [`write_all`].
pub fn write_last_checkpoints(
    directories: &Directories,
    entries: &[CheckpointEntry],
) -> Result<(), DirError> {
    let mut writes = directories.lock_checkpoints();
    writes.is_final = true;
    write_all(directories, entries)
}

fn write_checkpoints(
    directories: &Directories,
    turn: u64,
    entries: &[CheckpointEntry],
) -> Result<(), DirError> {
    let mut writes = directories.lock_checkpoints();
    if writes.is_final || turn < writes.written {
        return Ok(());
    }
    writes.written = turn;
    write_all(directories, entries)
}

/// Writes the checkpoint files of every directory that serves.
///
/// # Errors
/// The first directory's whose files could not be written; the others are written all the same.
fn write_all(directories: &Directories, entries: &[CheckpointEntry]) -> Result<(), DirError> {
    let mut result = Ok(());
    for (index, directory) in directories.list.iter().enumerate() {
        if directories.has_failed(index) {
            continue;
        }
        let files: [(Checkpoint, OffsetOf); 4] = [
            (Checkpoint::RecoveryPoint, |entry| Some(entry.recovery_point)),
            (Checkpoint::HighWatermark, |entry| Some(entry.high_watermark)),
            (Checkpoint::LogStart, |entry| Some(entry.log_start)),
            (Checkpoint::Cleaner, |entry| entry.cleaned),
        ];
        for (kind, offset) in files {
            let here = entries.iter().filter(|entry| entry.directory == index);
            let lines: Vec<(TopicPartition, Offset)> =
                here.filter_map(|entry| Some((entry.topic_partition.clone(), offset(entry)?))).collect();
            // Where nothing was ever cleaned there is no file to be written again and again.
            if kind == Checkpoint::Cleaner && lines.is_empty() && !directory.log_dir.has_checkpoint(kind) {
                continue;
            }
            if let Err(error) = directory.log_dir.write_checkpoint(kind, &lines) {
                result = result.and(Err(error));
            }
        }
    }
    result
}
