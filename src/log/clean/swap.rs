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

use super::super::error::{Context, SYNC};
use super::super::names::{self, FileKind};
use super::super::{LogContext, LogError};

/// A swap that is due. One that was refused half way, for want of a descriptor say, goes on where it was.
pub(in crate::log) struct Swap {
    /// Base offsets of the sources, ascending.
    replaced: Vec<Offset>,
    /// Base offset of the segment that replaces them, if one does.
    output: Option<Offset>,
    /// It has a transaction index.
    has_aborted: bool,
    /// Steps that are done.
    done: usize,
    /// Files to be unlinked later.
    paths: Vec<PathBuf>,
}

/// A swap that is done.
pub(in crate::log) struct Swapped {
    pub output: Option<Offset>,
    /// Files to be unlinked later.
    pub paths: Vec<PathBuf>,
}

enum Step {
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    /// What may not be there.
    PutAside(PathBuf),
    Sync,
}

impl Swap {
    pub fn new(replaced: Vec<Offset>, output: Option<Offset>, has_aborted: bool) -> Self {
        Self { replaced, output, has_aborted, done: 0, paths: Vec::new() }
    }

    pub fn run<F: Files>(&mut self, context: &LogContext<F>, dir: &Path) -> Result<Swapped, LogError> {
        let files = &context.files;
        for step in self.steps(dir).into_iter().skip(self.done) {
            match step {
                Step::Rename { from, to } => files.rename(&from, &to).context("rename", &from)?,
                Step::PutAside(path) => {
                    let to = names::deleted(&path);
                    match files.rename(&path, &to) {
                        Ok(()) => self.paths.push(to),
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(source) => return Err(LogError { what: "rename", path, source }),
                    }
                }
                Step::Sync => files.sync_dir(dir).context(SYNC, dir)?,
            }
            self.done += 1;
        }
        Ok(Swapped { output: self.output, paths: std::mem::take(&mut self.paths) })
    }

    /// The same at each call.
    fn steps(&self, dir: &Path) -> Vec<Step> {
        let mut kinds = vec![FileKind::Log, FileKind::OffsetIndex, FileKind::TimeIndex];
        kinds.extend(self.has_aborted.then_some(FileKind::TransactionIndex));
        let outputs: Vec<PathBuf> = self
            .output
            .iter()
            .flat_map(|base| kinds.iter().map(|kind| names::file(dir, *base, *kind)))
            .collect();
        let mut steps = Vec::new();
        for live in &outputs {
            steps.push(Step::Rename { from: names::cleaned(live), to: names::swap(live) });
        }
        if !outputs.is_empty() {
            steps.push(Step::Sync);
        }
        for base in &self.replaced {
            // The producer state at the output's base is what it was.
            let snapshot = (self.output != Some(*base)).then_some(FileKind::Snapshot);
            let kinds =
                [FileKind::Log, FileKind::OffsetIndex, FileKind::TimeIndex, FileKind::TransactionIndex];
            let kinds = kinds.into_iter().chain(snapshot);
            steps.extend(kinds.map(|kind| Step::PutAside(names::file(dir, *base, kind))));
        }
        for live in outputs {
            steps.push(Step::Rename { from: names::swap(&live), to: live });
        }
        steps.push(Step::Sync);
        steps
    }
}
