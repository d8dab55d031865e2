//! `kuring dump-log`: what the files of a partition say, read independently of the code that writes them.

mod batches;
mod sidecars;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{Failure, Output};
use crate::base::Offset;

#[derive(Args)]
#[command(after_help = "Examples:
  kuring dump-log kuring-data/events-0/00000000000000000000.log
  kuring dump-log --records kuring-data/events-0/*.log
  kuring dump-log --verify kuring-data/events-0/*

Reads .log, .index, .timeindex and .snapshot files and leader-epoch-checkpoint, of kuring and of Apache Kafka.
With --verify only problems are printed; index entries are compared with the .log file beside them.
Exit codes: 0 all is well, 1 a file is damaged or cannot be read, 2 wrong usage.")]
pub struct DumpLogArguments {
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also print the records of each batch
    #[arg(short, long)]
    records: bool,
    /// Check checksums, offsets, records and index entries instead of printing
    #[arg(short, long)]
    verify: bool,
}

/// Where findings go while a file is read.
struct Report<'a> {
    out: &'a mut Output,
    path: &'a Path,
    records: bool,
    verify: bool,
    problems: u64,
}

impl Report<'_> {
    /// A line about the content; not printed when only problems are wanted.
    fn line(&mut self, line: std::fmt::Arguments<'_>) -> Result<(), Failure> {
        if self.verify { Ok(()) } else { self.out.line(line) }
    }

    fn problem(&mut self, problem: std::fmt::Arguments<'_>) -> Result<(), Failure> {
        self.problems += 1;
        self.out.line(format_args!("{}: PROBLEM: {problem}", self.path.display()))
    }
}

enum Kind {
    Log,
    OffsetIndex,
    TimeIndex,
    ProducerSnapshot,
    LeaderEpochs,
}

pub fn run(arguments: DumpLogArguments) -> Result<(), Failure> {
    let mut out = Output::stdout();
    let mut problems = 0;
    for path in &arguments.files {
        let Some(kind) = kind(path) else {
            // `partition-directory/*` also names files that hold no log data.
            if !arguments.verify {
                return Err(Failure::Told(format!(
                    "{}: not a kind of file that can be shown",
                    path.display()
                )));
            }
            continue;
        };
        let bytes = fs::read(path).map_err(|error| Failure::Told(format!("{}: {error}", path.display())))?;
        let mut report =
            Report { out: &mut out, path, records: arguments.records, verify: arguments.verify, problems: 0 };
        report.line(format_args!("{}: {} bytes", path.display(), bytes.len()))?;
        match kind {
            Kind::Log => batches::dump(&bytes, base_offset(path), &mut report)?,
            Kind::OffsetIndex => sidecars::offset_index(&bytes, base_offset(path), &mut report)?,
            Kind::TimeIndex => sidecars::time_index(&bytes, base_offset(path), &mut report)?,
            Kind::ProducerSnapshot => sidecars::producer_snapshot(&bytes, &mut report)?,
            Kind::LeaderEpochs => sidecars::leader_epochs(&bytes, &mut report)?,
        }
        problems += report.problems;
    }
    out.finish()?;
    match problems {
        0 => Ok(()),
        1 => Err(Failure::Told("1 problem was found".into())),
        _ => Err(Failure::Told(format!("{problems} problems were found"))),
    }
}

fn kind(path: &Path) -> Option<Kind> {
    if path.file_name()? == "leader-epoch-checkpoint" {
        return Some(Kind::LeaderEpochs);
    }
    match path.extension()?.to_str()? {
        "log" => Some(Kind::Log),
        "index" => Some(Kind::OffsetIndex),
        "timeindex" => Some(Kind::TimeIndex),
        "snapshot" => Some(Kind::ProducerSnapshot),
        _ => None,
    }
}

/// The offset in a file's name; other names count from 0.
fn base_offset(path: &Path) -> Option<Offset> {
    path.file_stem()?.to_str()?.parse().ok().map(Offset)
}

/// The `.log` file beside an index, if it is there.
fn log_beside(path: &Path) -> Option<Vec<u8>> {
    fs::read(path.with_extension("log")).ok()
}
