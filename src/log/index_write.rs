//! The index rows of a segment on their way from memory to its files. *File thread.*

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use crate::base::Offset;
use crate::io::{FileHandle, Files, OpenMode};

use super::error::{Context, SYNC};
use super::index::{Pending, Table};
use super::names::{self, FileKind};
use super::segment::{Rows, Segment};
use super::{LogError, SegmentFile};

/// Rows for the index files of a segment.
pub(super) struct IndexWrite<F: Files> {
    pub base: Offset,
    file: Option<Arc<SegmentFile<F>>>,
    size: u32,
    index: Pending,
    times: Pending,
    /// `None`: the segment has no transaction index.
    aborted: Option<Pending>,
}

impl<F: Files> IndexWrite<F> {
    pub fn of(segment: &Segment<F>) -> Self {
        Self {
            base: segment.base,
            file: segment.file.clone(),
            size: segment.size,
            index: segment.index.pending(),
            times: segment.times.pending(),
            aborted: segment.aborted.as_deref().map(Table::pending),
        }
    }

    /// Writes the new rows; the files end with them.
    pub fn write(&self, files: &F, dir: &Path) -> Result<(), LogError> {
        for (kind, pending) in self.tables() {
            let path = names::file(dir, self.base, kind);
            let file = files.open(&path, OpenMode::Create).context("open", &path)?;
            let length = pending.position + pending.bytes.len() as u64;
            if file.len().context("measure", &path)? > length {
                file.truncate(length).context("truncate", &path)?;
                // Else the rows could come back after a crash, and the log behind them is another one by then.
                file.sync_data().context("sync", &path)?;
            }
            if !pending.bytes.is_empty() {
                let mut bytes = [IoSlice::new(&pending.bytes)];
                file.write_all_at(&mut bytes, pending.position).context("write", &path)?;
            }
        }
        Ok(())
    }

    pub fn sync(&self, files: &F, dir: &Path) -> Result<(), LogError> {
        for (kind, pending) in self.tables() {
            if pending.rows > 0 {
                let path = names::file(dir, self.base, kind);
                let file = files.open(&path, OpenMode::Write).context("open", &path)?;
                file.sync_data().context(SYNC, &path)?;
            }
        }
        Ok(())
    }

    /// Cuts what was reserved behind the last batch and makes all of it durable.
    pub fn cut(&self, files: &F, dir: &Path) -> Result<(), LogError> {
        let path = names::file(dir, self.base, FileKind::Log);
        match &self.file {
            Some(file) => cut_and_sync(&***file, self.size, &path)?,
            None => {
                let file = files.open(&path, OpenMode::Write).context("open", &path)?;
                cut_and_sync(&file, self.size, &path)?;
            }
        }
        self.sync(files, dir)
    }

    /// Rows that were written.
    pub fn rows(&self) -> Rows {
        let aborted = self.aborted.as_ref().map_or(0, |pending| pending.rows);
        Rows { index: self.index.rows, times: self.times.rows, aborted }
    }

    fn tables(&self) -> impl Iterator<Item = (FileKind, &Pending)> {
        let always = [(FileKind::OffsetIndex, &self.index), (FileKind::TimeIndex, &self.times)];
        let aborted = self.aborted.iter().map(|pending| (FileKind::TransactionIndex, pending));
        always.into_iter().chain(aborted)
    }
}

fn cut_and_sync(file: &impl FileHandle, size: u32, path: &Path) -> Result<(), LogError> {
    // Also when the length is right: blocks beyond it are freed.
    file.truncate(u64::from(size)).context("truncate", path)?;
    file.sync_data().context(SYNC, path)
}
