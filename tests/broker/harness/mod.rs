//! What the tests of a running broker share: the broker's process, a real client, a raw socket, record batches.

pub mod batch;
pub mod broker;
pub mod client;
pub mod disk;
pub mod load;
pub mod raw;
pub mod report;
pub mod wires;

pub use broker::Broker;

use std::net::TcpListener;
use std::ops::Range;
use std::time::{Duration, Instant};

use kuring::base::random::Random;

/// Below those that the system gives to connections: a broker that was stopped gets its port back.
const PORTS: Range<u16> = 10_000..30_000;

/// How long anything may take that should take milliseconds: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

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

/// Ports of 127.0.0.1 at which nobody listens.
pub fn free_ports(count: usize) -> Vec<u16> {
    let mut random = Random::from_os();
    // All are bound at once, so that no port is given twice.
    let mut bound = Vec::new();
    while bound.len() < count {
        let port = PORTS.start + random.below(PORTS.len() as u64) as u16;
        bound.extend(TcpListener::bind(("127.0.0.1", port)));
    }
    bound.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect()
}
