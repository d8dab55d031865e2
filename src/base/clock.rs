//! The only place that reads a clock. Everything else takes `now` as an argument, so that the simulator
//! can pass its own.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time since the process started; never goes back. Durations and deadlines are made of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Monotonic(Duration);

impl Monotonic {
    pub const ZERO: Monotonic = Monotonic(Duration::ZERO);

    pub const fn from_millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    pub const fn from_nanos(ns: u64) -> Self {
        Self(Duration::from_nanos(ns))
    }

    pub fn as_millis(self) -> u64 {
        self.0.as_millis() as u64
    }

    pub fn as_nanos(self) -> u64 {
        self.0.as_nanos() as u64
    }

    /// The time from `earlier` to here, zero if `earlier` is later.
    pub fn since(self, earlier: Monotonic) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub fn plus(self, duration: Duration) -> Monotonic {
        Monotonic(self.0.saturating_add(duration))
    }
}

/// Milliseconds since 1970 UTC: record timestamps and what files and the protocol carry. May jump.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// "No timestamp" in a batch.
    pub const NONE: Timestamp = Timestamp(-1);
}

/// Both clocks, read together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Now {
    pub monotonic: Monotonic,
    pub wall: Timestamp,
}

static START: OnceLock<Instant> = OnceLock::new();

/// Reads the monotonic clock: about 25 ns.
pub fn monotonic() -> Monotonic {
    Monotonic(START.get_or_init(Instant::now).elapsed())
}

/// Reads the wall clock: about 25 ns.
pub fn wall() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(since_epoch.as_millis() as i64)
}

/// Reads both clocks.
pub fn now() -> Now {
    Now { monotonic: monotonic(), wall: wall() }
}
