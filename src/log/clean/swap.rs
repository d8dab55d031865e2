//! The renames that make a cleaned segment take the place of its sources, such that each crash between two of them
//! leaves either the old records or the new ones (Kafka's `LocalLog.replaceSegments`; what is left is tidied up by
//! [`super::super::tidy`]). *File thread.*
//!
//! `.cleaned` files are void at a start, `.swap` files are finished. So: all outputs from `.cleaned` to `.swap`,
//! sync; the sources to `.deleted`, oldest first, so that no old record outlives a younger one; the outputs to
//! their own names, the log first: an index without its `.swap` log would be taken for a replaced one; sync.

use std::io;
use std::path::{Path, PathBuf};

use crate::base::Offset;
use crate::io::Files;

use super::super::error::Context;
use super::super::names::{self, FileKind};
use super::super::{LogContext, LogError};

/// A swap that is due.
pub(in crate::log) struct Swap {
    /// Base offsets of the sources, ascending.
    pub replaced: Vec<Offset>,
    /// Base offset of the segment that replaces them, if one does.
    pub output: Option<Offset>,
    /// It has a transaction index.
    pub has_aborted: bool,
}

/// A swap that is done.
pub(in crate::log) struct Swapped {
    pub output: Option<Offset>,
    /// Files to be unlinked later.
    pub paths: Vec<PathBuf>,
}

impl Swap {
    pub fn run<F: Files>(self, context: &LogContext<F>, dir: &Path) -> Result<Swapped, LogError> {
        let files = &context.files;
        let mut kinds = vec![FileKind::Log, FileKind::OffsetIndex, FileKind::TimeIndex];
        kinds.extend(self.has_aborted.then_some(FileKind::TransactionIndex));
        let outputs = || self.output.iter().flat_map(|base| kinds.iter().map(|kind| (*base, *kind)));
        if self.output.is_some() {
            for (base, kind) in outputs() {
                let live = names::file(dir, base, kind);
                let from = names::cleaned(&live);
                files.rename(&from, &names::swap(&live)).context("rename", &from)?;
            }
            files.sync_dir(dir).context("sync", dir)?;
        }
        let mut paths = Vec::new();
        for base in &self.replaced {
            self.put_aside(files, dir, *base, &mut paths)?;
        }
        for (base, kind) in outputs() {
            let live = names::file(dir, base, kind);
            let from = names::swap(&live);
            files.rename(&from, &live).context("rename", &from)?;
        }
        files.sync_dir(dir).context("sync", dir)?;
        Ok(Swapped { output: self.output, paths })
    }

    fn put_aside<F: Files>(
        &self,
        files: &F,
        dir: &Path,
        base: Offset,
        paths: &mut Vec<PathBuf>,
    ) -> Result<(), LogError> {
        // The producer state at the output's base is what it was.
        let snapshot = (self.output != Some(base)).then_some(FileKind::Snapshot);
        let kinds = [FileKind::Log, FileKind::OffsetIndex, FileKind::TimeIndex, FileKind::TransactionIndex];
        for kind in kinds.into_iter().chain(snapshot) {
            let path = names::file(dir, base, kind);
            let to = names::deleted(&path);
            match files.rename(&path, &to) {
                Ok(()) => paths.push(to),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(LogError { what: "rename", path, source }),
            }
        }
        Ok(())
    }
}
