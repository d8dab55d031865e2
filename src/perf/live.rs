//! What runs show while they run: counters that workers add to once per batch.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::base::clock::{Monotonic, monotonic};

/// Shared by the workers of one side.
#[derive(Default)]
pub struct Live {
    records: AtomicU64,
    bytes: AtomicU64,
    latency_max_ns: AtomicU64,
    stop: AtomicBool,
    ready: AtomicUsize,
    /// Of readers at the tail: stop once so many have arrived.
    expected: AtomicU64,
    complete: AtomicBool,
}

/// A second of a run.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    pub since_start: Duration,
    pub records_per_second: f64,
    pub bytes_per_second: f64,
    /// The worst of this second.
    pub latency_max: Duration,
}

impl Live {
    pub fn add(&self, records: u64, bytes: u64, latency: Duration) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.latency_max_ns.fetch_max(latency.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Ends all workers soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn worker_ready(&self) {
        self.ready.fetch_add(1, Ordering::Relaxed);
    }

    pub fn ready_count(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
    }

    /// Nothing is written any more: readers stop when they have `records`.
    pub fn expect(&self, records: u64) {
        self.expected.store(records, Ordering::Relaxed);
        self.complete.store(true, Ordering::Relaxed);
    }

    /// All that is expected has arrived.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
            && self.records.load(Ordering::Relaxed) >= self.expected.load(Ordering::Relaxed)
    }

    /// The writers are done, so that what has not arrived after a while will not.
    pub fn is_expecting(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
    }
}

/// Makes [`Tick`]s of a [`Live`].
pub struct Ticker {
    start: Monotonic,
    last: Monotonic,
    records: u64,
    bytes: u64,
}

impl Ticker {
    pub const INTERVAL: Duration = Duration::from_secs(1);

    pub fn new(start: Monotonic) -> Self {
        Self { start, last: start, records: 0, bytes: 0 }
    }

    /// The tick, when a second is over.
    pub fn tick(&mut self, live: &Live) -> Option<Tick> {
        let now = monotonic();
        let elapsed = now.since(self.last);
        if elapsed < Self::INTERVAL {
            return None;
        }
        let (records, bytes) = (live.records.load(Ordering::Relaxed), live.bytes.load(Ordering::Relaxed));
        let tick = Tick {
            since_start: now.since(self.start),
            records_per_second: (records - self.records) as f64 / elapsed.as_secs_f64(),
            bytes_per_second: (bytes - self.bytes) as f64 / elapsed.as_secs_f64(),
            latency_max: Duration::from_nanos(live.latency_max_ns.swap(0, Ordering::Relaxed)),
        };
        (self.last, self.records, self.bytes) = (now, records, bytes);
        Some(tick)
    }
}
