//! What runs beside the appends: each log's jobs and flushes on file threads, and the sweeps that carry the
//! rules of time.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::Shard;
use super::placement::PartitionKey;
use super::replica::Replica;
use crate::base::clock::{self, Monotonic};
use crate::base::fatal;
use crate::config::Durability;
use crate::io::cached::is_refused_call;
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, spawn, yield_if_needed};
use crate::log::FlushJob;

/// The period of the sweep that looks after flushes and idle memory, while there is any.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Write-back of a file starts when this much of it is dirty: then the kernel never has so much that it
/// slows the writers down (appends at 800 MB/s: the longest took 32 ms without
/// write-back, 4 ms with it).
const WRITE_BACK_BYTES: u64 = 8 << 20;

/// A flush begins when so much was appended since the last. It also empties the disk's cache and commits the file
/// system's journal, for which other writers may have to wait: hence not as often as write-back starts.
const FLUSH_BYTES: u64 = 64 << 20;

/// While a shard has more unflushed bytes than its share, files with this much are flushed first.
const FLUSH_BYTES_PRESSED: u64 = 64 << 10;

/// A replica that nobody wrote or read for so long gives its descriptors back.
const IDLE_FILES_AFTER: Duration = Duration::from_secs(60);

/// How often every log is asked for work that came due by itself, as the removal of old files.
const UPKEEP_EVERY_MS: u64 = 5_000;

/// No file stays dirty for longer.
const DIRTY_MAX: Duration = Duration::from_secs(30);

impl Shard {
    /// Starts what is due for `replica`'s log: its next job, a flush, write-back.
    pub(super) fn look_for_jobs(self: &Rc<Self>, replica: &Rc<Replica>) {
        let now = clock::now();
        if !replica.job_runs.get() && replica.with(|partition| partition.log().has_job(now)) == Ok(true) {
            self.run_jobs(replica.clone());
        }
        let unflushed_bytes = replica.unflushed_bytes.get();
        let many_unflushed = unflushed_bytes >= self.flush_bytes();
        let flush = replica.with(|partition| match partition.flush_due(now) {
            None if many_unflushed => partition.start_flush(),
            due => due,
        });
        if let Ok(Some(job)) = flush {
            self.run_flush(replica.clone(), job);
        } else if unflushed_bytes.saturating_sub(replica.written_back_bytes.get()) >= WRITE_BACK_BYTES {
            self.begin_write_back(replica);
        }
    }

    pub(super) fn note_unflushed(&self, replica: &Rc<Replica>, bytes: u64) {
        let now = clock::monotonic();
        let before = replica.unflushed_bytes.replace(replica.unflushed_bytes.get() + bytes);
        if before == 0 {
            replica.unflushed_since.set(now);
            if !replica.is_swept.replace(true) {
                self.unflushed.borrow_mut().push(replica.clone());
                self.sweep_wanted.notify();
            }
        }
        replica.last_used.set(now);
        self.unflushed_bytes.set(self.unflushed_bytes.get() + bytes);
    }

    /// The replica's unflushed bytes are flushed, or nobody's any more.
    pub(super) fn forget_unflushed(&self, replica: &Replica) {
        let bytes = replica.unflushed_bytes.replace(0);
        replica.written_back_bytes.set(0);
        self.unflushed_bytes.set(self.unflushed_bytes.get().saturating_sub(bytes));
    }

    /// How much of a file may be unflushed: less once the shard has used up its share of
    /// `kuring.unflushed.bytes`.
    fn flush_bytes(&self) -> u64 {
        let share = self.settings.config.unflushed_bytes_max / u64::from(self.shards());
        match self.unflushed_bytes.get() > share {
            true => FLUSH_BYTES_PRESSED,
            // Only a flush has the system write.
            false if self.settings.directories.lacks_write_back() => WRITE_BACK_BYTES,
            false => FLUSH_BYTES,
        }
    }

    fn run_jobs(self: &Rc<Self>, replica: Rc<Replica>) {
        replica.job_runs.set(true);
        let shard = self.clone();
        spawn(Queue::Back, "log job", async move {
            while let Ok(Some(job)) = replica.with(|partition| partition.log_mut().next_job(clock::now())) {
                let outcome = shard.settings.directories.threads.run("log job", move || job.run()).await;
                let mut committed = Vec::new();
                let finished = replica.with(|partition| {
                    let finished = partition.finish_job(outcome, clock::now(), &mut committed);
                    (finished, partition.has_queued())
                });
                shard.finish_appends(committed);
                shard.look_for_full_disk(&replica);
                if matches!(finished, Ok((_, true))) {
                    // It may have waited for what the job provided.
                    shard.resume(&replica);
                }
                match finished.map(|(finished, _)| finished) {
                    Ok(Ok(true)) => shard.wake_fetches(replica.key),
                    Ok(Err(error)) => {
                        shard.report_failure(&replica, &error);
                        break;
                    }
                    // No news, or closed meanwhile.
                    Ok(Ok(false)) | Err(_) => {}
                }
            }
            replica.job_runs.set(false);
            if let Ok(Some(at)) = replica.with(|partition| partition.log().retry_at()) {
                shard.sleep_until(at).await;
                shard.look_for_jobs(&replica);
            }
        })
        .detach();
    }

    /// Has a file thread open or make what the replica's appends wait for.
    pub(super) fn prepare(self: &Rc<Self>, replica: &Rc<Replica>) {
        if replica.prepare_runs.get() {
            return;
        }
        let Ok(Some(job)) = replica.with(|partition| partition.log_mut().prepare_job()) else { return };
        replica.prepare_runs.set(true);
        let (shard, replica) = (self.clone(), replica.clone());
        spawn(Queue::Serve, "prepare log", async move {
            let outcome = shard.settings.directories.threads.run("prepare log", move || job.run()).await;
            replica.prepare_runs.set(false);
            let finished = replica.with(|partition| partition.finish_prepare(outcome, clock::now()));
            if let Ok(Err(error)) = finished {
                shard.report_failure(&replica, &error);
            }
            shard.look_for_full_disk(&replica);
            shard.resume(&replica);
        })
        .detach();
    }

    /// Has a file thread start the write-back of what `replica` has dirty. One at a time: the asking waits where the disk's
    /// queue is full, and the threads are there for others as well.
    fn begin_write_back(self: &Rc<Self>, replica: &Rc<Replica>) {
        if replica.write_back_runs.get() || self.settings.directories.lacks_write_back() {
            return;
        }
        let Ok(job) = replica.with(|partition| partition.log().write_back_job()) else { return };
        replica.write_back_runs.set(true);
        replica.written_back_bytes.set(replica.unflushed_bytes.get());
        let (shard, replica) = (self.clone(), replica.clone());
        spawn(Queue::Back, "write-back", async move {
            let begun = shard.settings.directories.threads.run("write-back", move || job.run()).await;
            replica.write_back_runs.set(false);
            if let Err(error) = begun {
                if !is_refused_call(&error) {
                    tracing::warn!(partition = %replica.topic_partition, "write-back does not begin: {error}");
                } else if shard.settings.directories.note_no_write_back() {
                    tracing::warn!(
                        "sync_file_range is refused ({error}): files are synced each {} MiB instead; allow it in the \
                         seccomp profile of the container (config/ has one)",
                        WRITE_BACK_BYTES >> 20
                    );
                }
                // Where the disk fails, the flush meets the same error, and is the one to answer for it.
                if let Ok(Some(job)) = replica.with(|partition| partition.start_flush()) {
                    shard.run_flush(replica, job);
                }
            }
        })
        .detach();
    }

    fn run_flush(self: &Rc<Self>, replica: Rc<Replica>, job: FlushJob<OsFiles>) {
        let unflushed_bytes = replica.unflushed_bytes.get();
        self.forget_unflushed(&replica);
        let shard = self.clone();
        let queue = match shard.settings.config.durability {
            Durability::Fsync => Queue::Serve,
            Durability::PageCache => Queue::Back,
        };
        spawn(queue, "flush", async move {
            let directories = &shard.settings.directories;
            let begun = clock::monotonic();
            let outcome = match shard.settings.config.durability {
                Durability::Fsync => match directories.list[replica.directory()].commit.flush(job).await {
                    Some(outcome) => outcome,
                    // Acknowledgements would wait for it for ever.
                    None => fatal("the commit service of a log directory has ended"),
                },
                Durability::PageCache => directories.threads.run("flush", move || job.run()).await,
            };
            shard.flushes.record(clock::monotonic().since(begun));
            let refused = outcome.is_refused();
            let mut committed = Vec::new();
            let finished =
                replica.with(|partition| partition.finish_flush(outcome, clock::now(), &mut committed));
            shard.finish_appends(committed);
            match finished {
                Ok(Ok(_)) if refused => {
                    // The sweep asks again.
                    shard.note_unflushed(&replica, unflushed_bytes.max(1));
                }
                Ok(Ok(high_watermark_moved)) => {
                    if high_watermark_moved {
                        shard.wake_fetches(replica.key);
                    }
                    // What came while the disk was busy goes into the next flush.
                    shard.look_for_jobs(&replica);
                }
                Ok(Err(error)) => shard.report_failure(&replica, &error),
                // Closed meanwhile.
                Err(_) => {}
            }
        })
        .detach();
    }
}

/// Starts the shard's sweep.
pub(super) fn start_sweeps(shard: &Rc<Shard>) {
    let shard = shard.clone();
    spawn(Queue::Back, "sweep", async move {
        let config = shard.config().clone();
        let start = clock::monotonic();
        let mut sweeps = Sweeps {
            retention: Periodic::new(
                start.plus(Duration::from_millis(config.log_initial_task_delay_ms)),
                config.retention_check_interval_ms,
            ),
            producers: Periodic::new(start, config.producer_id_expiration_check_interval_ms),
            upkeep: Periodic::new(start, UPKEEP_EVERY_MS),
        };
        loop {
            shard.wait_for_sweep(&sweeps).await;
            if shard.stopping.get() {
                return;
            }
            shard.sweep(&mut sweeps).await;
        }
    })
    .detach();
}

struct Sweeps {
    retention: Periodic,
    producers: Periodic,
    upkeep: Periodic,
}

impl Sweeps {
    fn next(&self) -> Monotonic {
        self.retention.next.min(self.producers.next).min(self.upkeep.next)
    }
}

struct Periodic {
    next: Monotonic,
    every: Duration,
}

impl Periodic {
    fn new(first: Monotonic, every_ms: u64) -> Self {
        Self { next: first, every: Duration::from_millis(every_ms.max(1)) }
    }

    fn is_due(&mut self, now: Monotonic) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now.plus(self.every);
        true
    }
}

impl Shard {
    /// A second while there is something to flush or to give back, else until a longer period ends.
    async fn wait_for_sweep(self: &Rc<Self>, sweeps: &Sweeps) {
        let now = clock::monotonic();
        if self.unflushed.borrow().is_empty() && self.chunks.idle_bytes() == 0 {
            let until_next = sweeps.next().since(now).max(SWEEP_EVERY);
            let mut sleep = pin!(self.sleep(until_next));
            let wanted = std::future::poll_fn(|context| match sleep.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(false),
                Poll::Pending => self.sweep_wanted.poll_notified(context).map(|()| true),
            });
            if !wanted.await {
                return;
            }
        }
        self.sleep(SWEEP_EVERY).await;
    }

    async fn sweep(self: &Rc<Self>, sweeps: &mut Sweeps) {
        let now = clock::now();
        self.chunks.trim();
        self.sweep_unflushed(now.monotonic).await;
        let retention = sweeps.retention.is_due(now.monotonic);
        let producers = sweeps.producers.is_due(now.monotonic);
        let upkeep = sweeps.upkeep.is_due(now.monotonic);
        if !(retention || producers || upkeep) {
            return;
        }
        let keys: Vec<PartitionKey> = self.replicas.borrow().keys().copied().collect();
        for key in keys {
            let Some(replica) = self.replica(key) else { continue };
            if retention || producers {
                // A closed or offline replica has nothing to sweep.
                let _ = replica.with(|partition| {
                    if retention {
                        let high_watermark = partition.high_watermark();
                        partition.log_mut().enforce_retention(high_watermark, now);
                    }
                    if producers {
                        partition.log_mut().expire_producers(now);
                    }
                });
            }
            if now.monotonic.since(replica.last_used.get()) >= IDLE_FILES_AFTER {
                let _ = replica.with(|partition| partition.log_mut().release_files());
            }
            self.look_for_jobs(&replica);
            yield_if_needed().await;
        }
    }

    /// Flushes what is due by time, and forgets who has nothing unflushed any more.
    async fn sweep_unflushed(self: &Rc<Self>, now: Monotonic) {
        let swept = std::mem::take(&mut *self.unflushed.borrow_mut());
        for replica in swept {
            if replica.with(|_| ()).is_err() {
                // Closed or offline since: nothing will flush them.
                self.forget_unflushed(&replica);
            } else if replica.unflushed_bytes.get() > 0 {
                if now.since(replica.unflushed_since.get()) >= DIRTY_MAX {
                    replica.unflushed_since.set(now);
                    self.flush_old(&replica);
                } else {
                    self.look_for_jobs(&replica);
                }
            }
            if replica.unflushed_bytes.get() > 0 {
                self.unflushed.borrow_mut().push(replica);
            } else {
                replica.is_swept.set(false);
            }
            yield_if_needed().await;
        }
    }

    fn flush_old(self: &Rc<Self>, replica: &Rc<Replica>) {
        match replica.with(|partition| {
            (partition.start_overdue_flush(), partition.log().flushed() >= partition.log().log_end())
        }) {
            Ok((Some(job), _)) => self.run_flush(replica.clone(), job),
            // A job has flushed it meanwhile.
            Ok((None, true)) => self.forget_unflushed(replica),
            _ => {}
        }
    }
}
