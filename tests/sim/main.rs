//! Seeded simulations: production code over faulty, forgetful files, against a model.
//!
//! Each test runs fixed seeds and a fresh one. A failure prints its seed; `KURING_SEED=<seed> cargo test --test
//! sim` runs just that one again, the same to the last step. `KURING_SEEDS=<count>` runs so many fresh ones instead.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

mod cluster;
mod compaction;
mod home;
mod kafka;
mod kafka_clean;
mod legacy;
mod log;
mod log_model;
mod transactions;

/// The seeds to run: one or so many fresh ones as the environment says, or `fixed` ones and a fresh one.
fn seeds(fixed: u64) -> Vec<u64> {
    if let Ok(seed) = std::env::var("KURING_SEED") {
        return vec![seed.parse().expect("KURING_SEED is a number")];
    }
    let fresh = kuring::base::random::Random::from_os().next_u64() >> 16;
    match std::env::var("KURING_SEEDS") {
        Ok(count) => (fresh..).take(count.parse().expect("a number of seeds")).collect(),
        Err(_) => (0..fixed).chain([fresh]).collect(),
    }
}

/// Runs `simulate` for each seed, on all processors, and panics with one that fails.
fn run_seeds(fixed: u64, simulate: impl Fn(u64) -> Result<(), String> + Sync) {
    let seeds = seeds(fixed);
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let work = || {
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| simulate(*seed)));
            let failure = match outcome {
                Ok(Ok(())) => continue,
                Ok(Err(failure)) => failure,
                Err(_) => "it panicked, see above".to_owned(),
            };
            next.store(seeds.len(), Ordering::Relaxed);
            *failed.lock().expect("it is only assigned to") = Some((*seed, failure));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    if let Some((seed, failure)) = failed.into_inner().expect("it is only assigned to") {
        panic!("seed {seed}: {failure}\nreplay with KURING_SEED={seed} cargo test --test sim");
    }
}
