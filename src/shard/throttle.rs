//! The pace of what all shards do together, in bytes per second; what was spent too early is waited for afterwards.
//! Pure.

use std::time::Duration;

use crate::base::clock::Monotonic;

/// Nobody waits for longer at once: the limit, or what is waited for, may be another one by then.
const WAIT_MAX: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Throttle {
    /// Bytes that were moved and whose time has not passed, as of `at`.
    owed: f64,
    at: Monotonic,
}

impl Throttle {
    pub fn new() -> Self {
        Self { owed: 0.0, at: Monotonic::ZERO }
    }

    /// So many bytes were moved.
    pub fn spend(&mut self, bytes: u64) {
        self.owed += bytes as f64;
    }

    /// How long to wait before asking again; `None`: go on.
    pub fn wait(&mut self, bytes_per_second: u64, now: Monotonic) -> Option<Duration> {
        let rate = bytes_per_second as f64;
        let paid = now.since(self.at).as_secs_f64() * rate;
        self.owed = (self.owed - paid).max(0.0);
        self.at = now;
        if self.owed <= 0.0 {
            return None;
        }
        let wait = Duration::try_from_secs_f64(self.owed / rate).unwrap_or(WAIT_MAX);
        // A rest of less than a byte is not waited for again and again.
        Some(wait.clamp(Duration::from_millis(1), WAIT_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_spent_is_waited_for_at_the_rate_of_the_moment() {
        let mut throttle = Throttle::new();
        let at = |ms: u64| Monotonic::from_millis(ms);
        let ms = Duration::from_millis;
        assert_eq!(throttle.wait(1000, at(0)), None, "nothing was spent");
        throttle.spend(50);
        assert_eq!(throttle.wait(1000, at(60_000)), None, "long ago");
        throttle.spend(50);
        assert_eq!(throttle.wait(1000, at(60_000)), Some(ms(50)));
        assert_eq!(throttle.wait(1000, at(60_020)), Some(ms(30)));
        assert_eq!(throttle.wait(1000, at(60_050)), None);
        throttle.spend(1 << 30);
        assert_eq!(throttle.wait(1000, at(60_050)), Some(WAIT_MAX));
        assert_eq!(throttle.wait(0, at(60_150)), Some(WAIT_MAX), "nothing may move");
        assert_eq!(throttle.wait(i64::MAX as u64, at(60_250)), None, "the limit is gone");
    }
}
