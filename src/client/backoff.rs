//! Exponential back-off with jitter, as Kafka's clients have it since KIP-580.

use std::time::Duration;

use crate::base::random::Random;

/// Waits that double from `first` to `max`, each off by up to a fifth so that clients do not march in step.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, failures: 0 }
    }

    /// The wait after one more failure.
    pub fn failed(&mut self, random: &mut Random) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(16)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        doubled.mul_f64(0.8 + random.below(401) as f64 / 1000.0)
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_within_a_fifth() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(1000));
        let mut random = Random::seeded(1);
        for expected in [100, 200, 400, 800, 1000, 1000, 1000] {
            let wait = backoff.failed(&mut random).as_millis();
            assert!((expected * 8 / 10..=expected * 12 / 10).contains(&wait), "{wait} for {expected}");
        }
        backoff.succeeded();
        assert!(backoff.failed(&mut random).as_millis() <= 120);
    }
}
