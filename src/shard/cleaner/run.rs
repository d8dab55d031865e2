//! The owner's part of the cleaner: which of its logs are dirty, and the cleaning of one of them.

use std::rc::Rc;
use std::time::Duration;

use super::super::Shard;
use super::super::mesh::ReplyTo;
use super::super::messages::Reply;
use super::super::placement::PartitionKey;
use super::super::replica::Replica;
use super::{CleanEnd, CleanRequest, CleanableLogs, Dirtiest, add};
use crate::base::Offset;
use crate::base::clock::{self, Monotonic};
use crate::config::CleanerSettings;
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, spawn, yield_if_needed};
use crate::io::threads::FileThreads;
use crate::log::{Clean, CleanError, CleanFigures, CleanSettings, CleanStep, Cleanable, Fault};

/// Read at once, by one slice.
const SLICE_BYTES: u64 = 1 << 20;

/// A partition that could not be cleaned is tried again after so long, twice as long after each further failure.
const RETRY_AFTER: Duration = Duration::from_secs(10 * 60);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// One that found the disk full, after so long.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(60);

/// How often a cleaning looks whether its last rename is done.
const SWAP_POLL: Duration = Duration::from_millis(5);

/// First timestamps that are read from files for one partition, at one look.
const FIRST_TIMESTAMPS_MAX: usize = 64;

/// Less for reading and writing would be a system call per batch.
const BUFFER_BYTES_MIN: u64 = 32 << 10;

impl Shard {
    pub(in super::super) fn find_cleanable(self: &Rc<Self>, reply_to: ReplyTo) {
        let shard = self.clone();
        spawn(Queue::Back, "find dirty logs", async move {
            let keys: Vec<PartitionKey> = shard.replicas.borrow().keys().copied().collect();
            let directories = shard.settings.directories.list.len();
            let mut found = CleanableLogs { uncleanable: vec![(0, 0); directories], ..Default::default() };
            for key in keys {
                if let Some(replica) = shard.replica(key) {
                    shard.look_at(&replica, &mut found).await;
                }
                yield_if_needed().await;
            }
            shard.mesh.push_reply(reply_to, Reply::Cleanable(found));
        })
        .detach();
    }

    async fn look_at(&self, replica: &Replica, found: &mut CleanableLogs) {
        let now = clock::now();
        let directory = self.settings.directories.list.get(replica.directory());
        if directory.is_some_and(|directory| directory.space.is_full()) {
            // What room there is belongs to the metadata log and the internal topics.
            return;
        }
        for _ in 0..FIRST_TIMESTAMPS_MAX {
            let job = replica.with(|partition| partition.log().first_timestamp_job());
            let Ok(Some(job)) = job else { break };
            let first = self.settings.directories.threads.run("first timestamp", move || job.run()).await;
            let _ = replica.with(|partition| partition.log_mut().note_first_timestamp(first));
        }
        let saved = self.saved_recovery_point(replica);
        let cleanable = replica.with(|partition| {
            let is_due = |cleanable: &Cleanable| cleanable.is_due(partition.config());
            let cleanable = partition.cleanable(saved, now);
            let awaits_checkpoint = saved < partition.log().recovery_point()
                && !cleanable.as_ref().is_some_and(is_due)
                && partition.cleanable(Offset(i64::MAX), now).as_ref().is_some_and(is_due);
            (cleanable, cleanable.as_ref().is_some_and(is_due), awaits_checkpoint)
        });
        let Ok((cleanable, is_due, awaits_checkpoint)) = cleanable else { return };
        let cleaning = &replica.cleaning;
        let dirty_bytes = cleanable.map_or(0, |cleanable| cleanable.dirty_bytes);
        if cleaning.failures.get() > 0 && dirty_bytes > 0 {
            let (partitions, bytes) = &mut found.uncleanable[replica.directory()];
            *partitions += 1;
            *bytes += dirty_bytes;
        }
        if replica.moving().is_some()
            || cleaning.runs.get()
            || cleaning.uncleanable_until.get().is_some_and(|until| now.monotonic < until)
        {
            return;
        }
        found.awaits_checkpoint |= awaits_checkpoint;
        let Some(cleanable) = cleanable else { return };
        let ratio = cleanable.ratio();
        found.ratio_max = found.ratio_max.max(ratio);
        if is_due && found.dirtiest.is_none_or(|dirtiest| ratio > dirtiest.ratio) {
            found.dirtiest = Some(Dirtiest { key: replica.key, ratio });
        }
    }

    fn saved_recovery_point(&self, replica: &Replica) -> Offset {
        replica.told.recovery_point(&self.settings.directories.checkpoints, replica.directory())
    }

    pub(in super::super) fn clean(self: &Rc<Self>, mut reply_to: ReplyTo, request: CleanRequest) {
        self.mesh.park(&mut reply_to);
        let replica = self.replica(request.key).filter(|replica| replica.moving().is_none());
        let replica = replica.filter(|replica| !replica.cleaning.runs.replace(true));
        let Some(replica) = replica else {
            self.mesh.push_reply(reply_to, Reply::Cleaned(CleanEnd::Aborted));
            return;
        };
        let shard = self.clone();
        spawn(Queue::Back, "clean", async move {
            let began = clock::monotonic();
            let outcome = shard.clean_replica(&replica, request.slot).await;
            replica.cleaning.runs.set(false);
            let end = shard.note_cleaning(&replica, outcome, began);
            shard.mesh.push_reply(reply_to, Reply::Cleaned(end));
        })
        .detach();
    }

    fn note_cleaning(
        self: &Rc<Self>,
        replica: &Replica,
        outcome: Result<Option<CleanFigures>, CleanError>,
        began: Monotonic,
    ) -> CleanEnd {
        let cleaner = &self.settings.directories.cleaner;
        let cleaning = &replica.cleaning;
        let now = clock::monotonic();
        let partition = &replica.topic_partition;
        let error = match outcome {
            Ok(Some(figures)) => {
                cleaning.uncleanable_until.set(None);
                if cleaning.failures.replace(0) > 0 {
                    tracing::info!(%partition, "the log can be compacted again");
                }
                cleaner.note_run(&figures, now.since(began));
                tracing::debug!(%partition, ?figures, "compacted");
                return CleanEnd::Cleaned;
            }
            Ok(None) | Err(CleanError::Gone { .. }) => {
                add(&cleaner.counters.runs_aborted, 1);
                return CleanEnd::Aborted;
            }
            Err(error) => error,
        };
        add(&cleaner.counters.runs_failed, 1);
        let failures = cleaning.failures.get();
        let mut after = RETRY_AFTER.saturating_mul(1 << failures.min(16)).min(RETRY_AFTER_MAX);
        if let CleanError::Storage(error) = &error {
            match error.fault() {
                Fault::NoSpace | Fault::NoResources => after = FULL_RETRY_AFTER,
                Fault::Disk => self.report_failure(replica, error),
                Fault::Corrupt => {}
            }
        }
        cleaning.uncleanable_until.set(Some(now.plus(after)));
        cleaning.failures.set(failures + 1);
        if failures == 0 {
            tracing::error!(%partition, "the log cannot be compacted and is left alone for a while: {error}");
        }
        CleanEnd::Failed
    }

    /// `None`: given up, without a fault.
    async fn clean_replica(
        self: &Rc<Self>,
        replica: &Rc<Replica>,
        slot: usize,
    ) -> Result<Option<CleanFigures>, CleanError> {
        let cleaner = &self.settings.directories.cleaner;
        let thread = match cleaner.thread(slot) {
            Ok(thread) => thread,
            Err(error) => {
                tracing::warn!("no thread for the cleaner: {error}");
                return Ok(None);
            }
        };
        let settings = clean_settings(&self.cleaner_settings());
        let saved = self.saved_recovery_point(replica);
        let begun = replica.with(|partition| partition.start_clean(saved, settings, clock::now()));
        let Ok(Some(mut clean)) = begun else { return Ok(None) };
        loop {
            let before = clean.figures();
            let (step, worked) = on_thread(replica, &thread, move || {
                let began = clock::monotonic();
                let step = clean.run();
                (step, clock::monotonic().since(began))
            })
            .await;
            let (figures, next) = match step {
                CleanStep::More(next) => (next.figures(), Some(next)),
                CleanStep::Group(next, cleaned) => {
                    let figures = next.figures();
                    match replica.with(|partition| partition.log_mut().exchange(cleaned)) {
                        Ok(Ok(())) => {
                            self.look_for_jobs(replica);
                            (figures, Some(next))
                        }
                        // The log has changed under the work.
                        Ok(Err(cleaned)) => {
                            let discarded = on_thread(replica, &thread, move || cleaned.discard()).await;
                            thread.drop_later(next);
                            discarded?;
                            (figures, None)
                        }
                        Err(_) => {
                            thread.drop_later(next);
                            (figures, None)
                        }
                    }
                }
                CleanStep::Done { up_to, generation, figures } => {
                    self.count(&before, &figures);
                    let swapped = self.swaps_done(replica).await;
                    let marked = |partition: &mut super::super::replica::LivePartition| {
                        partition.log_mut().mark_cleaned(up_to, generation);
                    };
                    return Ok((swapped && replica.with(marked).is_ok()).then_some(figures));
                }
                CleanStep::Failed(error) => return Err(error),
            };
            self.count(&before, &figures);
            let Some(next) = next else { return Ok(None) };
            let bytes = figures.io_bytes() - before.io_bytes();
            let pause = cleaner.pause_after(bytes, worked, &self.cleaner_settings());
            if !pause.is_zero() {
                self.sleep(pause).await;
            }
            let goes_on = !self.is_stopping()
                && replica.moving().is_none()
                && replica.with(|partition| partition.config().cleanup_policy.compact) == Ok(true);
            if !goes_on {
                self.give_up(replica, &thread, next).await;
                return Ok(None);
            }
            clean = next;
        }
    }

    /// Removes what is unfinished, unless the partition's directory is no longer its own.
    async fn give_up(&self, replica: &Replica, thread: &FileThreads, clean: Box<Clean<OsFiles>>) {
        if replica.with(|_| ()).is_err() {
            thread.drop_later(clean);
            return;
        }
        if let Err(left) = on_thread(replica, thread, move || clean.discard()).await {
            tracing::warn!("what compaction left unfinished is still there: {left}");
        }
    }

    /// Waits for the renames; false when the log has gone.
    async fn swaps_done(self: &Rc<Self>, replica: &Rc<Replica>) -> bool {
        loop {
            match replica.with(|partition| (partition.log().has_swaps(), partition.log().is_offline())) {
                Ok((false, _)) => return true,
                Ok((true, false)) => {}
                Ok((true, true)) | Err(_) => return false,
            }
            self.look_for_jobs(replica);
            self.sleep(SWAP_POLL).await;
        }
    }

    fn count(&self, before: &CleanFigures, after: &CleanFigures) {
        let counters = &self.settings.directories.cleaner.counters;
        let read = |figures: &CleanFigures| figures.mapped_bytes + figures.read_bytes;
        add(&counters.read_bytes, read(after) - read(before));
        add(&counters.written_bytes, after.written_bytes - before.written_bytes);
    }
}

/// Runs a piece of work during which the partition's directory stays where it is.
async fn on_thread<T: Send + 'static>(
    replica: &Replica,
    thread: &FileThreads,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    replica.cleaning.slice_runs.set(true);
    let done = thread.run("clean", work).await;
    replica.cleaning.slice_runs.set(false);
    done
}

/// This thread's share of the memory.
fn clean_settings(settings: &CleanerSettings) -> CleanSettings {
    let threads = settings.threads.max(1) as u64;
    CleanSettings {
        map_bytes: settings.map_bytes / threads,
        load_factor: settings.map_load_factor,
        buffer_bytes: (settings.buffer_bytes / threads).max(BUFFER_BYTES_MIN) as usize,
        slice_bytes: SLICE_BYTES,
    }
}
