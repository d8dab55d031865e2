//! The segment that a group becomes, while it is written: `.cleaned` files until the shard has taken it. *File
//! thread.*

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::io::{FileHandle, Files, OpenMode};
use crate::wire::record::BatchHead;

use super::super::error::Context;
use super::super::index::{Entry, Table};
use super::super::names::{self, FileKind};
use super::super::segment::{Segment, SegmentFile};
use super::super::{AbortedTransaction, LogContext, LogError, jobs};

/// Write-back is waited for in such steps, so that the kernel never has much of it at once.
const SYNC_BYTES: u32 = 8 << 20;

/// A finished output: everything of it is on the disk, under temporary names.
pub(super) struct Output<F: Files> {
    pub segment: Segment<F>,
}

pub(super) struct Writer<F: Files> {
    dir: PathBuf,
    file: Arc<SegmentFile<F>>,
    segment: Segment<F>,
    index_interval_bytes: u32,
    buffer: Vec<u8>,
    buffer_bytes: usize,
    written: u32,
    synced: u32,
}

impl<F: Files> Writer<F> {
    pub fn create(
        context: &Arc<LogContext<F>>,
        dir: &Path,
        base: Offset,
        index_interval_bytes: u32,
        buffer_bytes: usize,
    ) -> Result<Self, LogError> {
        discard(&context.files, dir, base)?;
        let path = path(dir, base, FileKind::Log);
        let file = context.files.open(&path, OpenMode::CreateNew).context("create", &path)?;
        let file = SegmentFile::new(context, file);
        Ok(Self {
            dir: dir.to_path_buf(),
            segment: Segment::new(base, Arc::clone(&file), Timestamp::NONE),
            file,
            index_interval_bytes,
            buffer: Vec::with_capacity(buffer_bytes),
            buffer_bytes,
            written: 0,
            synced: 0,
        })
    }

    /// False: the segment would become longer than a segment can be.
    pub fn append(&mut self, head: &BatchHead, bytes: &[u8]) -> Result<bool, LogError> {
        if u64::from(self.segment.size) + bytes.len() as u64 > i32::MAX as u64 {
            return Ok(false);
        }
        if self.buffer.len() + bytes.len() > self.buffer_bytes {
            self.flush()?;
        }
        self.buffer.extend_from_slice(bytes);
        self.segment.note(head, self.index_interval_bytes);
        Ok(true)
    }

    pub fn note_aborted(&mut self, aborted: Vec<AbortedTransaction>) {
        aborted.into_iter().for_each(|transaction| self.segment.note_aborted(transaction));
    }

    /// Makes all of it durable. The segment ends at `end`, where the next one begins; if no record has a timestamp it
    /// is as old as its youngest source, written at `modified`, which its file says too. The rows of its indexes stay in memory until the files have
    /// their names.
    pub fn finish(mut self, files: &F, end: Offset, modified: Timestamp) -> Result<Output<F>, LogError> {
        self.flush()?;
        self.segment.note_newest();
        self.segment.next = end;
        self.segment.modified = modified;
        self.write_table(files, FileKind::OffsetIndex, &self.segment.index)?;
        self.write_table(files, FileKind::TimeIndex, &self.segment.times)?;
        if let Some(aborted) = &self.segment.aborted {
            self.write_table(files, FileKind::TransactionIndex, aborted)?;
        }
        let path = path(&self.dir, self.segment.base, FileKind::Log);
        if !self.segment.has_timestamps() && modified.0 >= 0 {
            self.file.set_modified(modified).context("set the time of", &path)?;
        }
        self.file.sync_all().context("sync", &path)?;
        Ok(Output { segment: self.segment })
    }

    fn flush(&mut self) -> Result<(), LogError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let path = || path(&self.dir, self.segment.base, FileKind::Log);
        let mut bytes = [IoSlice::new(&self.buffer)];
        let written = self.file.write_all_at(&mut bytes, u64::from(self.written));
        written.map_err(|source| LogError { what: "write", path: path(), source })?;
        self.written += self.buffer.len() as u32;
        self.buffer.clear();
        if self.written - self.synced >= SYNC_BYTES {
            self.file.sync_data().map_err(|source| LogError { what: "sync", path: path(), source })?;
            self.synced = self.written;
        }
        Ok(())
    }

    fn write_table<E: Entry>(&self, files: &F, kind: FileKind, table: &Table<E>) -> Result<(), LogError> {
        let path = path(&self.dir, self.segment.base, kind);
        let write = || -> io::Result<()> {
            let file = files.open(&path, OpenMode::CreateNew)?;
            file.write_all_at(&mut [IoSlice::new(&table.pending().bytes)], 0)?;
            file.sync_data()
        };
        write().context("write", &path)
    }
}

/// Removes an output that is not wanted, or was left behind.
pub(super) fn discard<F: Files>(files: &F, dir: &Path, base: Offset) -> Result<(), LogError> {
    let kinds = [FileKind::Log, FileKind::OffsetIndex, FileKind::TimeIndex, FileKind::TransactionIndex];
    jobs::unlink(files, &kinds.map(|kind| path(dir, base, kind)))
}

fn path(dir: &Path, base: Offset, kind: FileKind) -> PathBuf {
    names::cleaned(&names::file(dir, base, kind))
}
