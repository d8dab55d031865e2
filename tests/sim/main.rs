//! Seeded simulations: production code over faulty, forgetful files, against a model.
//!
//! Each test runs fixed seeds and a fresh one. A failure prints its seed; `KURING_SEED=<seed> cargo test --test
//! sim` runs just that one again, the same to the last step.

mod kafka;
mod legacy;
mod log;
mod log_model;
mod transactions;

/// The seeds to run: one given by the environment, or `fixed` ones and a fresh one.
fn seeds(fixed: u64) -> Vec<u64> {
    match std::env::var("KURING_SEED") {
        Ok(seed) => vec![seed.parse().expect("KURING_SEED is a number")],
        Err(_) => {
            let fresh = kuring::base::random::Random::from_os().next_u64() >> 16;
            (0..fixed).chain([fresh]).collect()
        }
    }
}

/// Runs `simulate` for each seed and panics with the first that fails.
fn run_seeds(fixed: u64, simulate: impl Fn(u64) -> Result<(), String>) {
    for seed in seeds(fixed) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| simulate(seed)));
        let failure = match outcome {
            Ok(Ok(())) => continue,
            Ok(Err(failure)) => failure,
            Err(_) => "it panicked, see above".to_owned(),
        };
        panic!("seed {seed}: {failure}\nreplay with KURING_SEED={seed} cargo test --test sim");
    }
}
