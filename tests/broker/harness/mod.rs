//! What the tests of a running broker share: the broker's process, a real client, a raw socket, record batches.

pub mod batch;
pub mod broker;
pub mod client;
pub mod disk;
pub mod raw;
pub mod report;

pub use broker::Broker;

use std::time::{Duration, Instant};

/// How long anything may take that should take milliseconds: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Calls `probe` until it gives a value; fails with `what` when it does not within [`PATIENCE`].
#[track_caller]
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The numbers of shards that a test of placement runs with; Kafka has none, so once is enough there.
pub fn shard_counts<const N: usize>(counts: [usize; N]) -> impl Iterator<Item = usize> {
    counts.into_iter().take(if Broker::is_kafka() || broker::off_owner() { 1 } else { N })
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
