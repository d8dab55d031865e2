//! Rebuilds producer state from the latest snapshot and the batches after it. *File thread.*

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use crate::base::Offset;
use crate::base::clock::Now;
use crate::io::{Files, OpenMode};

use super::append::marker;
use super::epochs::Epochs;
use super::error::Context;
use super::index::{self, Lookup, OffsetEntry, relative};
use super::names::{self, FileKind};
use super::producers::Producers;
use super::recovery::write_indexes;
use super::scan::{Scan, Step};
use super::segment::Segment;
use super::txn_index::AbortedTransaction;
use super::verification::Claim;
use super::{LogContext, LogError, jobs, snapshot};

/// What is replayed.
pub(super) struct Span {
    pub log_start: Offset,
    pub end: Offset,
    /// Transaction indexes may lack those that were aborted from here on.
    pub aborted_from: Offset,
}

/// The state at the end. Snapshots that are damaged or above it are removed, also from `snapshots`. The leader
/// epochs of the batches on the way are noted, and transactions that were aborted get their rows.
pub(super) fn producers<F: Files>(
    context: &LogContext<F>,
    dir: &Path,
    segments: &mut VecDeque<Segment<F>>,
    snapshots: &mut Vec<Offset>,
    epochs: &mut Epochs,
    span: Span,
    now: Now,
) -> Result<Producers, LogError> {
    let files = &context.files;
    let mut producers = Producers::default();
    let above = snapshots.partition_point(|offset| *offset <= span.end);
    remove_snapshots(files, dir, snapshots.drain(above..))?;
    let mut from = span.log_start;
    let mut candidates = snapshots.partition_point(|offset| *offset <= span.aborted_from);
    while let Some(number) = candidates.checked_sub(1) {
        let latest = snapshots[number];
        let path = names::file(dir, latest, FileKind::Snapshot);
        let bytes = match files.read_small(&path, snapshot::SNAPSHOT_BYTES_MAX) {
            Ok(bytes) => bytes,
            // It went with its segment when that was removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                snapshots.remove(number);
                candidates = number;
                continue;
            }
            // Too long to be one; what is told of an empty one fits it.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Vec::new(),
            Err(source) => return Err(LogError { what: "read", path, source }),
        };
        match snapshot::decode(&bytes) {
            Ok(loaded) => {
                loaded.into_iter().for_each(|(id, producer)| producers.insert(id, producer));
                from = latest;
                break;
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "producer snapshot is of no use");
                remove_snapshots(files, dir, std::iter::once(snapshots.remove(number)))?;
                candidates = number;
            }
        }
    }
    for segment in segments.iter_mut().filter(|segment| segment.next > from && segment.size > 0) {
        let aborted = replay(files, dir, segment, from, &mut producers, epochs)?;
        aborted.into_iter().for_each(|transaction| segment.note_aborted(transaction));
        if segment.aborted.as_deref().is_some_and(|table| table.unwritten() > 0) {
            write_indexes(files, dir, segment)?;
        }
    }
    producers.commit();
    producers.expire(now.wall, context.producer_id_expiration_ms);
    Ok(producers)
}

fn replay<F: Files>(
    files: &F,
    dir: &Path,
    segment: &Segment<F>,
    from: Offset,
    producers: &mut Producers,
    epochs: &mut Epochs,
) -> Result<Vec<AbortedTransaction>, LogError> {
    let mut aborted = Vec::new();
    let path = names::file(dir, segment.base, FileKind::Log);
    let file = files.open(&path, OpenMode::Read).context("open", &path)?;
    let position = floor_position(files, dir, segment, from)?;
    let mut scan = Scan::heads(&file, position, segment.size, segment.base);
    while let Step::Batch(found) = scan.next().context("scan", &path)? {
        let head = &found.head;
        // What lies across counts: a log may start within a batch, whose records from there on are read.
        if head.next_offset() <= from {
            continue;
        }
        if epochs.latest().is_none_or(|latest| head.leader_epoch() > latest) {
            epochs.assign(head.leader_epoch(), head.base_offset().max(from));
        }
        if head.attributes().is_control() && head.producer_id().is_some() {
            let body = scan.body(&found).context("read", &path)?;
            if let Some(marker) = marker(head, body) {
                aborted.extend(producers.apply_marker(head, marker, Claim::Unchecked));
            }
        } else {
            producers.apply(head);
        }
        producers.commit();
    }
    Ok(aborted)
}

/// A position at or before the batch that holds `offset`.
pub(super) fn floor_position<F: Files>(
    files: &F,
    dir: &Path,
    segment: &Segment<F>,
    offset: Offset,
) -> Result<u32, LogError> {
    let Some(wanted) = relative(segment.base, offset) else { return Ok(0) };
    let satisfies = |entry: &OffsetEntry| entry.relative <= wanted;
    let rows = match segment.index.floor(satisfies) {
        Lookup::Known(entry) => return Ok(entry.map_or(0, |entry| entry.position)),
        Lookup::InFile { entries } => entries,
    };
    let path = names::file(dir, segment.base, FileKind::OffsetIndex);
    let file = files.open(&path, OpenMode::Read).context("open", &path)?;
    let floor = index::floor_in_file(&file, rows, satisfies).context("search", &path)?;
    Ok(floor.map_or(0, |(_, entry)| entry.position))
}

fn remove_snapshots<F: Files>(
    files: &F,
    dir: &Path,
    offsets: impl Iterator<Item = Offset>,
) -> Result<(), LogError> {
    let paths: Vec<_> = offsets.map(|offset| names::file(dir, offset, FileKind::Snapshot)).collect();
    jobs::unlink(files, &paths)
}
