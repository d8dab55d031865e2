//! The open loop: when each record is due, whatever the broker does. No IO.

use std::time::Duration;

use crate::base::clock::Monotonic;

/// Records at even distances, or all at once.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    start: Monotonic,
    interval_ns: Option<f64>,
}

impl Schedule {
    /// `rate` in records per second; `None` makes every record due at the start.
    pub fn new(start: Monotonic, rate: Option<f64>) -> Self {
        Self { start, interval_ns: rate.map(|rate| 1e9 / rate) }
    }

    /// Records come at a rate, and latency counts from when they are due.
    pub fn is_paced(&self) -> bool {
        self.interval_ns.is_some()
    }

    pub fn due(&self, record: u64) -> Monotonic {
        match self.interval_ns {
            Some(interval) => self.start.plus(Duration::from_nanos((record as f64 * interval) as u64)),
            None => self.start,
        }
    }

    /// How many records are due by `now`.
    pub fn count(&self, now: Monotonic) -> u64 {
        if now < self.start {
            return 0;
        }
        match self.interval_ns {
            Some(interval) => (now.since(self.start).as_nanos() as f64 / interval) as u64 + 1,
            None => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_due_at_even_distances_whatever_was_sent() {
        let schedule = Schedule::new(Monotonic::from_millis(100), Some(1000.0));
        assert_eq!(schedule.count(Monotonic::from_millis(99)), 0);
        assert_eq!(schedule.count(Monotonic::from_millis(100)), 1);
        assert_eq!(schedule.count(Monotonic::from_millis(102)), 3);
        assert_eq!(schedule.due(2), Monotonic::from_millis(102));
        assert_eq!(Schedule::new(Monotonic::ZERO, None).count(Monotonic::ZERO), u64::MAX);
    }
}
