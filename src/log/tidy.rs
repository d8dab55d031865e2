//! Brings the names in a partition's directory in order before it is loaded: finishes deletions, compactions and
//! rolls that a crash interrupted. *File thread.*

use std::io;
use std::path::Path;

use zerocopy::FromBytes;

use crate::base::Offset;
use crate::io::{FileHandle, Files, OpenMode};
use crate::wire::record::{BatchHead, HEAD_LEN, LOG_OVERHEAD, MAGIC};

use super::error::Context;
use super::names::{self, FileKind, FileName, Stage};
use super::scan::{Scan, Step};
use super::{LogError, checkpoint, jobs};

/// What there is to load.
pub(super) struct Listing {
    /// Base offsets of the segments, ascending.
    pub logs: Vec<Offset>,
    /// Offsets of the producer snapshots, ascending.
    pub snapshots: Vec<Offset>,
    /// Base offsets of the segments that have a transaction index, ascending.
    pub transaction_indexes: Vec<Offset>,
    /// There is a file of leader epochs.
    pub has_epochs: bool,
}

type Named = (FileName, String);

/// Tidies up and lists what remains.
pub(super) fn tidy<F: Files>(files: &F, dir: &Path) -> Result<Listing, LogError> {
    let (mut names, has_epochs) = list(files, dir)?;
    let count = names.len();
    let in_progress = |(name, _): &Named| name.stage != Stage::Live || name.kind == FileKind::Spare;
    if names.iter().any(in_progress) {
        remove_unfinished(files, dir, &names)?;
        finish_swaps(files, dir)?;
        name_spares(files, dir)?;
        names = list(files, dir)?.0;
    }
    let live = |kind| {
        let of_kind = names.iter().filter(move |(name, _)| name.kind == kind && name.stage == Stage::Live);
        of_kind.map(|(name, _)| name.base)
    };
    let logs: Vec<Offset> = live(FileKind::Log).collect();
    let snapshots: Vec<Offset> = live(FileKind::Snapshot).collect();
    let mut transaction_indexes: Vec<Offset> = live(FileKind::TransactionIndex).collect();
    transaction_indexes.retain(|base| logs.binary_search(base).is_ok());
    let is_orphan = |(name, _): &&Named| {
        matches!(name.kind, FileKind::OffsetIndex | FileKind::TimeIndex | FileKind::TransactionIndex)
            && logs.binary_search(&name.base).is_err()
    };
    let orphans: Vec<_> = names.iter().filter(is_orphan).map(|(_, name)| dir.join(name)).collect();
    jobs::unlink(files, &orphans)?;
    if names.len() != count || !orphans.is_empty() {
        files.sync_dir(dir).context("sync", dir)?;
    }
    Ok(Listing { logs, snapshots, transaction_indexes, has_epochs })
}

/// In ascending order: base offsets have 20 digits. And whether there is a file of leader epochs.
fn list<F: Files>(files: &F, dir: &Path) -> Result<(Vec<Named>, bool), LogError> {
    let entries = files.list(dir).context("list", dir)?;
    let has_epochs = entries.iter().any(|entry| entry.name == checkpoint::EPOCHS_FILE);
    let mut names: Vec<Named> = entries
        .into_iter()
        .filter(|entry| !entry.is_dir)
        .filter_map(|entry| FileName::parse(&entry.name).map(|name| (name, entry.name)))
        .collect();
    names.sort_by_key(|(name, _)| name.base);
    Ok((names, has_epochs))
}

/// Removes what was to be deleted, outputs of a compaction that was not finished, and the finished ones that
/// belong to it.
fn remove_unfinished<F: Files>(files: &F, dir: &Path, names: &[Named]) -> Result<(), LogError> {
    let cleaned =
        names.iter().filter(|(name, _)| name.stage == Stage::Cleaned).map(|(name, _)| name.base).min();
    let is_void = |(name, _): &&Named| match name.stage {
        Stage::Live => false,
        Stage::Deleted | Stage::Cleaned => true,
        Stage::Swap => cleaned.is_some_and(|cleaned| name.base >= cleaned),
    };
    let paths: Vec<_> = names.iter().filter(is_void).map(|(_, name)| dir.join(name)).collect();
    jobs::unlink(files, &paths)
}

/// Finished outputs of a compaction take the place of the segments they were made from.
fn finish_swaps<F: Files>(files: &F, dir: &Path) -> Result<(), LogError> {
    let (names, _) = list(files, dir)?;
    let swaps: Vec<&Named> = names.iter().filter(|(name, _)| name.stage == Stage::Swap).collect();
    let mut replaced: Option<(Offset, Offset)> = None;
    for (name, text) in swaps.iter().filter(|(name, _)| name.kind == FileKind::Log) {
        let next = next_offset(files, &dir.join(text), name.base)?;
        replaced =
            Some(replaced.map_or((name.base, next), |(low, high)| (low.min(name.base), high.max(next))));
    }
    if let Some((low, high)) = replaced {
        let is_replaced = |(name, _): &&Named| {
            name.stage == Stage::Live
                && !matches!(name.kind, FileKind::Snapshot | FileKind::Spare)
                && (low..high).contains(&name.base)
        };
        let paths: Vec<_> = names.iter().filter(is_replaced).map(|(_, name)| dir.join(name)).collect();
        jobs::unlink(files, &paths)?;
    }
    for (name, text) in swaps {
        let to = names::file(dir, name.base, name.kind);
        files.rename(&dir.join(text), &to).context("rename", &to)?;
    }
    Ok(())
}

fn next_offset<F: Files>(files: &F, path: &Path, base: Offset) -> Result<Offset, LogError> {
    let file = files.open(path, OpenMode::Read).context("open", path)?;
    let length = file.len().context("measure", path)?.min(i32::MAX as u64) as u32;
    let mut scan = Scan::heads(&file, 0, length, base);
    let mut next = base;
    while let Step::Batch(found) = scan.next().context("scan", path)? {
        next = found.head.next_offset();
    }
    Ok(next)
}

/// A spare file that a roll had taken has batches: it gets the name of the first one's offset. Others go.
fn name_spares<F: Files>(files: &F, dir: &Path) -> Result<(), LogError> {
    for (name, text) in list(files, dir)?.0 {
        if name.kind != FileKind::Spare {
            continue;
        }
        let path = dir.join(text);
        let base = first_offset(files, &path).context("read", &path)?;
        let to = base.map(|base| names::file(dir, base, FileKind::Log));
        match to {
            Some(to) if !files.exists(&to).context("look for", &to)? => {
                files.rename(&path, &to).context("rename", &path)?;
            }
            _ => files.remove_file(&path).context("remove", &path)?,
        }
    }
    Ok(())
}

fn first_offset<F: Files>(files: &F, path: &Path) -> io::Result<Option<Offset>> {
    let mut head = [0; HEAD_LEN];
    let read = files.open(path, OpenMode::Read)?.read_at(&mut head, 0)?;
    let Ok(head) = BatchHead::read_from_bytes(&head[..read]) else { return Ok(None) };
    let plausible = head.magic() == MAGIC
        && head.length() >= (HEAD_LEN - LOG_OVERHEAD) as i32
        && head.base_offset().0 > 0;
    Ok(plausible.then(|| head.base_offset()))
}
