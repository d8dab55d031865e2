//! The cleaner: compacts the logs of compacted topics, one partition per cleaner thread at a time, the dirtiest
//! first (Kafka's `LogCleaner`).
//!
//! Shard 0 chooses: it asks every shard for its dirtiest log and has the owner of the dirtiest of all clean it
//! ([`run`]). The work itself runs in slices on threads of the cleaner's own, which step back where a shard wants
//! the core; a shard only exchanges lists of segments. A partition that cannot be cleaned is left alone for a
//! while; the others go on.

mod budget;
mod run;

use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;

use self::budget::ByteBudget;
use super::Shard;
use super::messages::{Reply, Request};
use super::placement::PartitionKey;
use crate::base::clock::{self, Monotonic, Timestamp};
use crate::base::{ShardId, fatal};
use crate::config::CleanerSettings;
use crate::io::runtime::{Queue, spawn};
use crate::io::threads::FileThreads;
use crate::log::CleanFigures;
use crate::metadata::ConfigResource;

/// A thread that is nice by so much gets a fifth of what a shard gets where both want one core.
const NICE: i32 = 7;

/// A cleaner without a pause between looks would be all that the shards hear of.
const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// What the cleaner's parts on all shards share.
#[derive(Debug)]
pub struct Cleaner {
    /// One thread each, made when it is first needed.
    threads: Mutex<Vec<FileThreads>>,
    bytes: Mutex<ByteBudget>,
    pub counters: CleanerCounters,
}

/// Figures for the operator, with the names of Kafka's metrics where it has them
/// (`kafka.log:type=LogCleaner` and `LogCleanerManager`). Any thread reads them.
#[derive(Debug)]
pub struct CleanerCounters {
    /// Cleanings that ended well, that were given up because the log changed, and that failed.
    pub runs: AtomicU64,
    pub runs_aborted: AtomicU64,
    pub runs_failed: AtomicU64,
    /// Read, to map keys and to rewrite, and written.
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    /// Time on the cleaner's threads, and time that it was held up by its budgets.
    pub busy_ms: AtomicU64,
    pub throttled_ms: AtomicU64,
    /// `max-dirty-percent`: of the dirtiest log, at the last look.
    pub max_dirty_percent: AtomicU64,
    /// `max-buffer-utilization-percent`: of the memory for keys, in the last cleaning.
    pub buffer_utilization_percent: AtomicU64,
    /// `max-clean-time-secs`, in milliseconds: the last cleaning's time.
    pub last_clean_ms: AtomicU64,
    /// `cleaner-recopy-percent`: of what was rewritten in the last cleaning, how much stayed.
    pub recopy_percent: AtomicU64,
    /// When it last looked for something to clean, since the epoch; 0: never.
    last_look_ms: AtomicI64,
    /// By log directory, at the last look.
    uncleanable: Vec<Uncleanable>,
}

#[derive(Default, Debug)]
struct Uncleanable {
    partitions: AtomicU64,
    bytes: AtomicU64,
}

impl CleanerCounters {
    /// `time-since-last-run-ms`; `None`: it has not looked yet.
    pub fn since_last_look_ms(&self, now: Timestamp) -> Option<i64> {
        match self.last_look_ms.load(Ordering::Relaxed) {
            0 => None,
            last => Some(now.0.saturating_sub(last).max(0)),
        }
    }

    /// `uncleanable-partitions-count` of a log directory.
    pub fn uncleanable_partitions(&self, directory: usize) -> u64 {
        self.uncleanable[directory].partitions.load(Ordering::Relaxed)
    }

    /// `uncleanable-bytes` of a log directory: dirty ones of partitions that cannot be cleaned.
    pub fn uncleanable_bytes(&self, directory: usize) -> u64 {
        self.uncleanable[directory].bytes.load(Ordering::Relaxed)
    }
}

/// A shard's dirtiest log and what else it knows of its logs.
#[derive(Default, Debug)]
pub struct CleanableLogs {
    pub(super) dirtiest: Option<Dirtiest>,
    /// A log would be due if the checkpoint file had its recovery point.
    pub(super) awaits_checkpoint: bool,
    /// Of all its logs, due or not.
    pub(super) ratio_max: f64,
    /// By log directory: partitions and dirty bytes.
    pub(super) uncleanable: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Dirtiest {
    pub key: PartitionKey,
    pub ratio: f64,
}

/// Cleans a partition on the thread of a slot.
#[derive(Clone, Copy, Debug)]
pub struct CleanRequest {
    pub(super) key: PartitionKey,
    pub(super) slot: usize,
}

/// How a cleaning ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CleanEnd {
    Cleaned,
    /// The partition has gone or has changed, or there was nothing to clean.
    Aborted,
    Failed,
}

impl Cleaner {
    pub(super) fn new(directories: usize) -> Self {
        let counters = CleanerCounters {
            runs: AtomicU64::new(0),
            runs_aborted: AtomicU64::new(0),
            runs_failed: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            busy_ms: AtomicU64::new(0),
            throttled_ms: AtomicU64::new(0),
            max_dirty_percent: AtomicU64::new(0),
            buffer_utilization_percent: AtomicU64::new(0),
            last_clean_ms: AtomicU64::new(0),
            recopy_percent: AtomicU64::new(0),
            last_look_ms: AtomicI64::new(0),
            uncleanable: (0..directories).map(|_| Uncleanable::default()).collect(),
        };
        Self { threads: Mutex::default(), bytes: Mutex::new(ByteBudget::new()), counters }
    }

    /// The thread of a slot.
    fn thread(&self, slot: usize) -> std::io::Result<FileThreads> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.len() <= slot {
            threads.push(FileThreads::start_at("cleaner", 1, 1024, NICE)?);
        }
        Ok(threads[slot].clone())
    }

    /// Pays for a slice and tells how long to wait before the next.
    fn pause_after(&self, bytes: u64, worked: Duration, settings: &CleanerSettings) -> Duration {
        let mut budget = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let for_bytes = budget.spend(bytes, settings.bytes_per_second, clock::monotonic());
        let pause = for_bytes.max(budget::rest_after(worked, settings.cpu_percent));
        add(&self.counters.busy_ms, worked.as_millis() as u64);
        add(&self.counters.throttled_ms, pause.as_millis() as u64);
        pause
    }

    fn note_run(&self, figures: &CleanFigures, took: Duration) {
        let counters = &self.counters;
        add(&counters.runs, 1);
        let percent = |part: f64| (part * 100.0) as u64;
        counters.buffer_utilization_percent.store(percent(figures.map_utilization), Ordering::Relaxed);
        counters.last_clean_ms.store(took.as_millis() as u64, Ordering::Relaxed);
        let recopied = figures.written_bytes as f64 / figures.read_bytes.max(1) as f64;
        counters.recopy_percent.store(percent(recopied), Ordering::Relaxed);
    }

    fn note_look(&self, found: &[CleanableLogs]) {
        let counters = &self.counters;
        counters.last_look_ms.store(clock::now().wall.0, Ordering::Relaxed);
        let ratio = found.iter().map(|logs| logs.ratio_max).fold(0.0, f64::max);
        counters.max_dirty_percent.store((ratio * 100.0) as u64, Ordering::Relaxed);
        for (directory, uncleanable) in counters.uncleanable.iter().enumerate() {
            let here = found.iter().filter_map(|logs| logs.uncleanable.get(directory));
            let (partitions, bytes) =
                here.fold((0, 0), |(partitions, bytes), (one, more)| (partitions + one, bytes + more));
            uncleanable.partitions.store(partitions, Ordering::Relaxed);
            uncleanable.bytes.store(bytes, Ordering::Relaxed);
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Starts the choosing, on shard 0.
pub fn start_cleaner(shard: &Rc<Shard>) {
    if !shard.cleaner_settings().enabled {
        tracing::warn!("log.cleaner.enable is false: compacted topics grow for ever");
        return;
    }
    let shard = shard.clone();
    spawn(Queue::Back, "cleaner", async move {
        let mut free: Vec<usize> = Vec::new();
        let mut slots = 0;
        let mut running = FuturesUnordered::new();
        loop {
            let settings = shard.cleaner_settings();
            while slots < settings.threads {
                free.push(slots);
                slots += 1;
            }
            // Fewer threads than before: slots above stay unused.
            let slot = free.iter().copied().filter(|slot| *slot < settings.threads).min();
            let mut wait = true;
            if let Some(slot) = slot
                && let Some((owner, key)) = shard.dirtiest_of_all().await
            {
                free.retain(|other| *other != slot);
                let ended = shard.send(owner, Request::Clean(CleanRequest { key, slot })).await;
                shard.end_turn();
                running.push(async move { (slot, ended.await) });
                wait = running.len() >= settings.threads;
            }
            if shard.is_stopping() {
                return;
            }
            if !wait {
                continue;
            }
            let backoff = Duration::from_millis(settings.backoff_ms).max(BACKOFF_MIN);
            let sleep = pin!(shard.sleep(backoff));
            if running.is_empty() {
                sleep.await;
            } else if let Either::Left((Some((slot, end)), sleep)) = select(running.next(), sleep).await {
                free.push(slot);
                // After a failure there may be nothing else to do than the same again.
                if !matches!(end, Reply::Cleaned(CleanEnd::Cleaned)) {
                    sleep.await;
                }
            }
            if shard.is_stopping() {
                return;
            }
        }
    })
    .detach();
}

impl Shard {
    /// What compaction may take now.
    pub(super) fn cleaner_settings(&self) -> CleanerSettings {
        let image = self.image();
        let broker = image.overrides(&ConfigResource::Broker(self.settings.broker));
        let default = image.overrides(&ConfigResource::BrokerDefault);
        self.settings.config.levels(broker, default).cleaner()
    }

    /// Asks every shard; the dirtiest log that is due, and its owner.
    async fn dirtiest_of_all(self: &Rc<Self>) -> Option<(ShardId, PartitionKey)> {
        let (mut dirtiest, awaits_checkpoint) = self.look_for_dirtiest().await;
        if dirtiest.is_none() && awaits_checkpoint && self.write_checkpoints().await {
            (dirtiest, _) = self.look_for_dirtiest().await;
        }
        dirtiest
    }

    /// Also whether a log waits for its checkpoint.
    async fn look_for_dirtiest(self: &Rc<Self>) -> (Option<(ShardId, PartitionKey)>, bool) {
        let replies = self.ask_all(|| Request::FindCleanable).await;
        let found: Vec<CleanableLogs> = replies
            .into_iter()
            .map(|reply| match reply {
                Reply::Cleanable(found) => found,
                _ => fatal("a question for dirty logs got another request's answer"),
            })
            .collect();
        self.settings.directories.cleaner.note_look(&found);
        let dirtiest = found.iter().filter_map(|logs| logs.dirtiest);
        let dirtiest = dirtiest.max_by(|one, other| one.ratio.total_cmp(&other.ratio));
        let awaits_checkpoint = found.iter().any(|logs| logs.awaits_checkpoint);
        (dirtiest.map(|dirtiest| (self.owner(dirtiest.key), dirtiest.key)), awaits_checkpoint)
    }
}

/// A replica's state with the cleaner.
#[derive(Default, Debug)]
pub(super) struct CleaningState {
    /// A cleaning is under way.
    pub runs: std::cell::Cell<bool>,
    /// A slice of it is on a thread: nobody may take the directory away.
    pub slice_runs: std::cell::Cell<bool>,
    /// It could not be cleaned, and is left alone until then.
    pub uncleanable_until: std::cell::Cell<Option<Monotonic>>,
    /// In a row.
    pub failures: std::cell::Cell<u32>,
}
