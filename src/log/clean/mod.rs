//! Compaction: of each key the last record stays (Kafka's `LogCleaner`, `Cleaner`, `LogCleanerManager`).
//!
//! The shard tells what may be cleaned ([`Log::cleanable`]) and begins ([`Log::start_clean`]). The work itself, a
//! [`Clean`], is blocking code for a file thread, done in slices; it reads segments that nobody writes any more,
//! and writes `.cleaned` files that nobody else looks at. Each finished group of segments goes back to the shard,
//! which exchanges the list of segments in memory ([`Log::exchange`]) and leaves the renames to a job of the log's
//! upkeep. Whatever happened to the log meanwhile is found there: then the output is dropped and nothing was
//! changed. Readers with open ranges go on reading the old files.

mod filter;
mod offset_map;
mod output;
mod swap;
mod transactions;
mod work;

#[cfg(test)]
mod exchange_tests;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use crate::base::Offset;
use crate::base::clock::{Now, Timestamp};
use crate::config::LogConfig;
use crate::io::{FileHandle, Files, OpenMode};

use super::{Log, LogContext, names, recovery};
use filter::LastRecord;
pub(super) use swap::{Swap, Swapped};
use work::{AbortedRows, Group, Source};
pub use work::{Clean, CleanError, CleanFigures, CleanStep, Cleaned};

/// The memory and the pace of a [`Clean`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CleanSettings {
    /// `log.cleaner.dedupe.buffer.size`, this cleaner's share.
    pub map_bytes: u64,
    /// `log.cleaner.io.buffer.load.factor`
    pub load_factor: f64,
    /// `log.cleaner.io.buffer.size`, this cleaner's share: half is for reading, half for writing.
    pub buffer_bytes: usize,
    /// How much is read at a slice.
    pub slice_bytes: u64,
}

/// How much of a log is to be cleaned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cleanable {
    /// Records below it were cleaned before.
    pub first_dirty: Offset,
    /// Records from here on may not be cleaned yet.
    pub upper_bound: Offset,
    pub clean_bytes: u64,
    pub dirty_bytes: u64,
    /// A dirty record is older than `max.compaction.lag.ms`.
    pub overdue: bool,
}

impl Cleanable {
    /// The dirty share of what can be cleaned.
    pub fn ratio(&self) -> f64 {
        match self.clean_bytes + self.dirty_bytes {
            0 => 0.0,
            total => self.dirty_bytes as f64 / total as f64,
        }
    }

    pub fn is_due(&self, config: &LogConfig) -> bool {
        self.dirty_bytes > 0 && (self.overdue || self.ratio() > config.min_cleanable_dirty_ratio)
    }
}

/// Reads the head of a segment's first batch.
pub struct FirstTimestampJob<F: Files> {
    context: Arc<LogContext<F>>,
    path: PathBuf,
    base: Offset,
}

impl<F: Files> FirstTimestampJob<F> {
    /// *File thread.* The segment and the youngest timestamp of its first batch, which is none where it cannot be
    /// read: whoever reads the segment next will tell.
    pub fn run(self) -> (Offset, Timestamp) {
        let read = || {
            let file = self.context.files.open(&self.path, OpenMode::Read)?;
            let size = file.len()?.min(u64::from(u32::MAX));
            recovery::first_timestamp(&file, size as u32)
        };
        (self.base, read().ok().flatten().unwrap_or(Timestamp::NONE))
    }
}

impl<F: Files> Log<F> {
    /// All records below were cleaned, once; `None`: none ever was. What `cleaner-offset-checkpoint` is to say.
    pub fn cleaned(&self) -> Option<Offset> {
        self.cleaned
    }

    /// *Shard.* What can be cleaned of the log: whole segments that are on the disk, below `bound`, and older than
    /// `min.compaction.lag.ms`. The bound is the last stable offset or, if that is less, the recovery point that the
    /// checkpoint file has: recovery takes what is missing above that for lost. `None`: nothing, or the log is not
    /// compacted, or a segment of the last time still has only its `.cleaned` name, which the next one would take.
    pub fn cleanable(&self, bound: Offset, now: Now) -> Option<Cleanable> {
        if !self.config.cleanup_policy.compact || self.offline || self.upkeep.has_swaps() {
            return None;
        }
        let first_dirty = self.first_dirty();
        let rolling = self.upkeep.rolls_from().unwrap_or(self.active().base);
        let limit = bound.min(rolling).min(self.recovery_point);
        let mut cleanable = Cleanable {
            first_dirty,
            upper_bound: first_dirty,
            clean_bytes: 0,
            dirty_bytes: 0,
            overdue: false,
        };
        let lag_ms = self.config.min_compaction_lag_ms;
        let mut earliest = i64::MAX;
        for (number, segment) in self.segments.iter().enumerate() {
            let Some(end) = self.segments.get(number + 1).map(|next| next.base) else { break };
            let size = u64::from(segment.size);
            if end <= first_dirty {
                cleanable.clean_bytes += size;
                continue;
            }
            let too_young = lag_ms > 0 && segment.largest_timestamp().0 > now.wall.0.saturating_sub(lag_ms);
            if end > limit || too_young {
                break;
            }
            let first = segment.first_timestamp.map_or(i64::MAX, |first| first.0);
            earliest = earliest.min(if first > 0 { first } else { i64::MAX });
            cleanable.dirty_bytes += size;
            cleanable.upper_bound = end;
        }
        cleanable.overdue = earliest < now.wall.0.saturating_sub(self.config.max_compaction_lag_ms);
        (cleanable.upper_bound > first_dirty && cleanable.dirty_bytes > 0).then_some(cleanable)
    }

    /// *Shard.* Begins to clean below `bound`, as [`Log::cleanable`]; `None` when there is nothing to clean. One at a
    /// time.
    pub fn start_clean(&self, bound: Offset, settings: CleanSettings, now: Now) -> Option<Box<Clean<F>>> {
        let Cleanable { first_dirty, upper_bound, .. } = self.cleanable(bound, now)?;
        let ends = self.segments.iter().skip(1).map(|next| next.base);
        let sources = self.segments.iter().zip(ends).take_while(|(_, end)| *end <= upper_bound);
        let sources: Vec<Source<F>> = sources.map(|(segment, end)| Source::of(segment, end)).collect();
        // A table of them is made where nobody waits.
        let last_records = self.producers.iter().map(|(id, producer)| {
            let offset = producer.last().map(|last| last.last_offset);
            (id, LastRecord { offset, epoch: producer.epoch })
        });
        // A transaction that began below the bound may have its marker, and so its row, in any later segment.
        let rows = self.segments.iter().filter_map(|segment| {
            let (in_file, tail) = segment.aborted.as_deref()?.tail();
            Some(AbortedRows { base: segment.base, in_file, tail: tail.collect() })
        });
        Some(Box::new(Clean::new(
            Group {
                context: Arc::clone(&self.context),
                dir: self.dir.clone(),
                config: Arc::clone(&self.config),
                generation: self.generation,
            },
            settings,
            sources,
            (first_dirty, upper_bound),
            last_records.collect(),
            rows.collect(),
            now.wall,
        )))
    }

    /// *Shard.* A finished group takes the place of its segments, and a job is due that renames the files. When
    /// the log has changed, so that it cannot, the output comes back to be discarded.
    pub fn exchange(&mut self, cleaned: Box<Cleaned<F>>) -> Result<(), Box<Cleaned<F>>> {
        let Some(first) = self.place_of(&cleaned) else { return Err(cleaned) };
        let Cleaned { sources, output, .. } = *cleaned;
        let count = sources.len();
        let bases: Vec<Offset> = sources.iter().map(|source| source.base).collect();
        let last = bases[count - 1];
        let is_source = |offset: &Offset| bases.binary_search(offset).is_ok();
        self.windows.retain(|window| !is_source(&window.segment()));
        while self.recent.front().is_some_and(|recent| recent.segment <= last) {
            self.recent.pop_front();
        }
        self.segments.drain(first..first + count);
        let kept = output.as_ref().map(|output| output.segment.base);
        let has_aborted = output.as_ref().is_some_and(|output| output.segment.aborted.is_some());
        if let Some(output) = output {
            self.segments.insert(first, output.segment);
        }
        self.snapshots.retain(|offset| kept == Some(*offset) || !is_source(offset));
        self.layout += 1;
        self.upkeep.swaps.push_back(Swap::new(bases, kept, has_aborted));
        Ok(())
    }

    /// Exchanges whose renames are not done.
    pub fn has_swaps(&self) -> bool {
        self.upkeep.has_swaps()
    }

    /// *Shard.* The records below `up_to` are clean: all swaps are done. Not if the log was truncated since the
    /// `generation` of the work.
    pub fn mark_cleaned(&mut self, up_to: Offset, generation: u64) {
        if generation == self.generation {
            self.cleaned = Some(up_to);
        }
    }

    /// *Shard.* A segment whose first timestamp has to be read from the file, for `max.compaction.lag.ms`.
    pub fn first_timestamp_job(&self) -> Option<FirstTimestampJob<F>> {
        let config = &self.config;
        if !config.cleanup_policy.compact || config.max_compaction_lag_ms == i64::MAX {
            return None;
        }
        let first_dirty = self.first_dirty();
        let ends = self.segments.iter().skip(1).map(|next| next.base);
        let dirty = self.segments.iter().zip(ends).filter(|(_, end)| *end > first_dirty);
        let mut lacking = dirty.filter(|(segment, _)| segment.first_timestamp.is_none() && segment.size > 0);
        lacking.next().map(|(segment, _)| FirstTimestampJob {
            context: Arc::clone(&self.context),
            path: names::file(&self.dir, segment.base, names::FileKind::Log),
            base: segment.base,
        })
    }

    /// *Shard.* What the job found.
    pub fn note_first_timestamp(&mut self, (base, timestamp): (Offset, Timestamp)) {
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.base == base) {
            segment.first_timestamp.get_or_insert(timestamp);
        }
    }

    fn first_dirty(&self) -> Offset {
        match self.cleaned {
            Some(cleaned) if self.log_start <= cleaned && cleaned <= self.log_end() => cleaned,
            _ => self.log_start,
        }
    }

    /// Where the sources of the group lie, if they all still do.
    fn place_of(&self, cleaned: &Cleaned<F>) -> Option<usize> {
        if cleaned.generation != self.generation || self.offline || !self.config.cleanup_policy.compact {
            return None;
        }
        let base = cleaned.sources.first()?.base;
        let first = self.segments.iter().position(|segment| segment.base == base)?;
        let there = self.segments.range(first..).zip(&cleaned.sources);
        let same = there
            .take_while(|(segment, source)| segment.base == source.base && segment.size == source.size)
            .count();
        // The active segment is never among them.
        let is_whole = same == cleaned.sources.len() && first + same < self.segments.len();
        is_whole.then_some(first)
    }
}
