//! How fast the cleaner may go: bytes per second for all of it, a share of a core for each of its threads. Pure.

use std::time::Duration;

use crate::base::clock::Monotonic;

/// What was not used up is saved for so long only.
const SAVED_MAX: Duration = Duration::from_millis(300);

/// Nobody is held up for longer at once: the limit may be another one by then.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The bytes that may be read and written. Those that were are paid for afterwards, by waiting.
#[derive(Debug)]
pub(super) struct ByteBudget {
    /// Everything up to now is paid for at this time.
    paid_until: Monotonic,
}

impl ByteBudget {
    pub fn new() -> Self {
        Self { paid_until: Monotonic::ZERO }
    }

    /// `bytes` were read or written; how long to wait before the next.
    pub fn spend(&mut self, bytes: u64, per_second: f64, now: Monotonic) -> Duration {
        let seconds = bytes as f64 / per_second.max(1.0);
        let cost = Duration::from_secs_f64(seconds.min(3600.0));
        let idle = now.since(self.paid_until);
        if idle > SAVED_MAX {
            self.paid_until = self.paid_until.plus(idle - SAVED_MAX);
        }
        self.paid_until = self.paid_until.plus(cost);
        self.paid_until.since(now).min(PAUSE_MAX)
    }
}

/// How long a thread rests that has worked for `worked` and may take `percent` of a core.
pub(super) fn rest_after(worked: Duration, percent: u64) -> Duration {
    let percent = percent.clamp(1, 100) as u32;
    (worked * (100 - percent) / percent).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_time_that_the_limit_gives_them() {
        let mut budget = ByteBudget::new();
        let at = |ms: u64| Monotonic::from_millis(ms);
        let ms = Duration::from_millis;
        assert_eq!(budget.spend(1_000_000, 1e6, at(10_000)), ms(700), "a little was saved");
        assert_eq!(budget.spend(1_000_000, 1e6, at(10_700)), ms(1000));
        assert_eq!(budget.spend(1_000_000, 1e6, at(10_700)), ms(2000), "the threads share it");
        assert_eq!(budget.spend(1_000_000, f64::MAX, at(12_700)), Duration::ZERO);
        assert_eq!(budget.spend(u64::MAX, 0.0, at(12_700)), PAUSE_MAX);
    }

    #[test]
    fn a_thread_rests_as_its_share_of_the_core_says() {
        let ms = Duration::from_millis;
        assert_eq!(rest_after(ms(10), 50), ms(10));
        assert_eq!(rest_after(ms(10), 20), ms(40));
        assert_eq!(rest_after(ms(10), 100), Duration::ZERO);
    }
}
