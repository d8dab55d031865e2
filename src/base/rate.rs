//! How fast something goes, over sliding windows, and for how long it has to stop when that is too fast: the rules of
//! Kafka's quotas (`Rate`, `SampledStat`, `TokenBucket`, `QuotaUtils`). Pure.
//!
//! A [`Rate`] is what all shards count together, by atomics; a [`TokenBucket`] has one owner.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use super::clock::Monotonic;

/// Of more windows the oldest are not looked at: a rate keeps 16 bytes for each.
const WINDOWS_MAX: u32 = 1000;

/// The least time that a rate is taken over.
const ELAPSED_MIN: Duration = Duration::from_millis(1);

/// The windows that a rate is taken over (`quota.window.num`, `quota.window.size.seconds`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows {
    count: u32,
    span: Duration,
}

impl Windows {
    /// At least one window of at least one second.
    pub fn new(count: u32, seconds: u32) -> Self {
        Self { count: count.clamp(1, WINDOWS_MAX), span: Duration::from_secs(u64::from(seconds.max(1))) }
    }

    pub fn span(self) -> Duration {
        self.span
    }

    /// All of them.
    pub fn total(self) -> Duration {
        self.span * self.count
    }

    /// All whole ones: what may come in a burst after a long silence is the limit times this.
    pub fn whole(self) -> Duration {
        self.span * (self.count - 1)
    }
}

/// What came in the last windows. Costs two relaxed atomic operations to add to; exact but for what several shards add
/// in the very moment in which a window begins, which counts to the one before.
#[derive(Debug)]
pub struct Rate {
    windows: Windows,
    /// Windows are counted from here on.
    origin: Monotonic,
    /// Since the beginning.
    total: AtomicI64,
    /// The newest window with anything in it; counted from 1.
    newest: AtomicU64,
    /// One more than windows: the oldest is left only in part.
    marks: Box<[Mark]>,
}

/// The beginning of a window.
#[derive(Default, Debug)]
struct Mark {
    /// 0: none yet.
    window: AtomicU64,
    /// The total at that time.
    before: AtomicI64,
}

/// A rate before the division.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    pub sum: i64,
    pub elapsed: Duration,
}

impl Rate {
    pub fn new(windows: Windows, now: Monotonic) -> Self {
        let marks: Box<[Mark]> = (0..=windows.count).map(|_| Mark::default()).collect();
        let rate = Self { windows, origin: now, total: AtomicI64::new(0), newest: AtomicU64::new(1), marks };
        rate.mark(1).window.store(1, Ordering::Relaxed);
        rate
    }

    /// Adds what came now.
    pub fn record(&self, value: i64, now: Monotonic) {
        let window = self.window(now);
        if self.newest.load(Ordering::Relaxed) < window
            && self.newest.fetch_max(window, Ordering::AcqRel) < window
        {
            let mark = self.mark(window);
            mark.before.store(self.total.load(Ordering::Relaxed), Ordering::Relaxed);
            mark.window.store(window, Ordering::Release);
        }
        self.total.fetch_add(value, Ordering::Relaxed);
    }

    /// Takes back what was recorded and did not come after all.
    pub fn take_back(&self, value: i64) {
        self.total.fetch_sub(value, Ordering::Relaxed);
    }

    /// What came in the windows, and the time to divide it by: since the oldest of them that has something, and at
    /// least all whole windows beside the present one.
    pub fn measure(&self, now: Monotonic) -> Measured {
        let Measured { sum, mut elapsed } = self.since_oldest(now);
        let full = elapsed.as_nanos() / self.windows.span.as_nanos();
        let missing = u128::from(self.windows.count - 1).saturating_sub(full);
        elapsed += self.windows.span * u32::try_from(missing).unwrap_or(0);
        Measured { sum, elapsed: elapsed.max(ELAPSED_MIN) }
    }

    /// Whether more than `limit` per second came since the oldest window that has something, and at least in the length of
    /// one: a burst counts at once (`SimpleRate`, by which replication is throttled).
    pub fn is_above(&self, limit: f64, now: Monotonic) -> bool {
        let Measured { sum, elapsed } = self.since_oldest(now);
        sum as f64 > limit * elapsed.max(self.windows.span).as_secs_f64()
    }

    fn since_oldest(&self, now: Monotonic) -> Measured {
        let window = self.window(now);
        let kept = window.saturating_sub(u64::from(self.windows.count)).max(1)..=window;
        let marks = self.marks.iter().map(|mark| (mark.window.load(Ordering::Acquire), mark));
        let oldest = marks.filter(|(window, _)| kept.contains(window)).min_by_key(|(window, _)| *window);
        let (sum, start) = match oldest {
            Some((window, mark)) => {
                let before = mark.before.load(Ordering::Relaxed);
                (self.total.load(Ordering::Relaxed) - before, self.start(window))
            }
            None => (0, now),
        };
        Measured { sum, elapsed: now.since(start) }
    }

    /// How long nothing may come, for the rate to be `limit` per second at the end of that time; zero if it is not above
    /// that (`QuotaUtils.throttleTime`).
    pub fn throttle(&self, limit: f64, now: Monotonic) -> Duration {
        self.measure(now).throttle(limit)
    }

    /// The same, if so much more came now.
    pub fn throttle_with(&self, more: i64, limit: f64, now: Monotonic) -> Duration {
        let measured = self.measure(now);
        Measured { sum: measured.sum.saturating_add(more), ..measured }.throttle(limit)
    }

    /// Nothing has come in any window.
    pub fn is_silent(&self, now: Monotonic) -> bool {
        self.newest.load(Ordering::Relaxed) + u64::from(self.windows.count) < self.window(now)
    }

    fn window(&self, now: Monotonic) -> u64 {
        (now.since(self.origin).as_nanos() / self.windows.span.as_nanos()) as u64 + 1
    }

    fn start(&self, window: u64) -> Monotonic {
        let span_ns = u64::try_from(self.windows.span.as_nanos()).unwrap_or(u64::MAX);
        self.origin.plus(Duration::from_nanos(span_ns.saturating_mul(window - 1)))
    }

    fn mark(&self, window: u64) -> &Mark {
        &self.marks[(window % self.marks.len() as u64) as usize]
    }
}

impl Measured {
    fn throttle(self, limit: f64) -> Duration {
        let allowed_ms = self.elapsed.as_secs_f64() * 1e3;
        let needed_ms = self.sum as f64 / limit * 1e3;
        // To the millisecond, as it is told; a cast keeps to the greatest number.
        Duration::from_millis((needed_ms - allowed_ms).round().max(0.0) as u64)
    }
}

/// Permits that come at a rate and gather up to a burst of all windows. It may be overdrawn once.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    tokens: f64,
    at: Monotonic,
}

impl TokenBucket {
    /// A full one.
    pub fn new(now: Monotonic) -> Self {
        Self { tokens: f64::INFINITY, at: now }
    }

    /// How long it is overdrawn; zero if permits may be taken.
    pub fn overdrawn(&mut self, windows: Windows, limit: f64, now: Monotonic) -> Duration {
        self.refill(windows, limit, now);
        Duration::from_millis((-self.tokens / limit * 1e3).round().max(0.0) as u64)
    }

    /// Takes permits, whatever is left.
    pub fn take(&mut self, permits: f64, windows: Windows, limit: f64, now: Monotonic) {
        self.refill(windows, limit, now);
        self.tokens -= permits;
    }

    /// As full as it gets: the same as one that was never used.
    pub fn is_full(&mut self, windows: Windows, limit: f64, now: Monotonic) -> bool {
        self.refill(windows, limit, now);
        self.tokens >= burst(windows, limit)
    }

    fn refill(&mut self, windows: Windows, limit: f64, now: Monotonic) {
        let came = now.since(self.at).as_secs_f64() * limit;
        self.tokens = (self.tokens + came).min(burst(windows, limit));
        self.at = self.at.max(now);
    }
}

fn burst(windows: Windows, limit: f64) -> f64 {
    windows.total().as_secs_f64() * limit
}

#[cfg(test)]
mod tests {
    use super::*;

    const KAFKA: Windows = Windows { count: 11, span: Duration::from_secs(1) };

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_millis(ms)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_kafka_computes_of_the_same_records_is_what_comes_out() {
        // Of Kafka's `Rate` and `QuotaUtils.throttleTime` for a quota of 500 per second, 11 windows of 1 s: when, how
        // much, and the throttle time.
        let rate = Rate::new(KAFKA, at(0));
        for (when, value, throttle) in [
            // 5000 in the ten seconds that count at least.
            (0, 5000, 0),
            (0, 1, 2),
            // 10.5 seconds: 5250 are allowed, 5251 are there.
            (500, 250, 2),
            // The whole window is behind, ten seconds count again.
            (1000, 0, 502),
            (1500, 0, 2),
            (1500, 500, 1002),
        ] {
            assert_eq!(rate.throttle_with(value, 500.0, at(when)), ms(throttle), "{when}");
            rate.record(value, at(when));
            assert_eq!(rate.throttle(500.0, at(when)), ms(throttle), "{when}");
        }
        assert_eq!(rate.measure(at(10_500)), Measured { sum: 5751, elapsed: ms(10_500) });
    }

    #[test]
    fn windows_that_are_over_count_no_more() {
        let rate = Rate::new(KAFKA, at(0));
        rate.record(9000, at(100));
        rate.record(10, at(5000));
        assert_eq!(rate.measure(at(11_999)), Measured { sum: 9010, elapsed: ms(11_999) });
        assert_eq!(rate.measure(at(12_000)), Measured { sum: 10, elapsed: ms(10_000) });
        assert!(!rate.is_silent(at(16_999)));
        assert_eq!(rate.measure(at(17_000)), Measured { sum: 0, elapsed: ms(10_000) });
        assert!(rate.is_silent(at(17_000)));
        rate.record(7, at(1_000_000));
        assert_eq!(rate.measure(at(1_000_000)).sum, 7);
    }

    #[test]
    fn replication_is_measured_without_the_windows_that_were_not_there_yet() {
        let rate = Rate::new(KAFKA, at(0));
        assert!(!rate.is_above(0.0, at(0)), "nothing came");
        rate.record(1001, at(100));
        assert!(rate.is_above(1000.0, at(100)), "of a second at least");
        assert!(!rate.is_above(1000.0, at(1002)));
        rate.record(4000, at(2500));
        assert!(rate.is_above(1000.0, at(5000)));
        assert!(!rate.is_above(1000.0, at(5002)));
        assert!(!rate.is_above(f64::MAX, at(2500)));
        rate.record(100, at(60_000));
        assert!(!rate.is_above(1000.0, at(60_000)), "what came before is forgotten");
    }

    #[test]
    fn what_is_taken_back_never_came() {
        let rate = Rate::new(KAFKA, at(0));
        rate.record(5000, at(0));
        rate.record(400, at(1000));
        assert_eq!(rate.throttle(500.0, at(1000)), ms(800));
        rate.take_back(400);
        assert_eq!(rate.throttle(500.0, at(1000)), Duration::ZERO);
    }

    /// A client that sends `request` bytes as soon as it may and needs `cost` ms for each; what it sent by when.
    fn paced(shards: u64, windows: Windows, limit: f64, request: i64, cost: u64, until: u64) -> Vec<i64> {
        let rate = Rate::new(windows, at(0));
        let mut next = vec![0; shards as usize];
        let mut sent = vec![0; until as usize / 1000];
        for now in 0..until {
            for client in &mut next {
                if *client <= now {
                    rate.record(request, at(now));
                    sent[now as usize / 1000] += request;
                    let throttle = rate.throttle(limit, at(now)).as_millis() as u64;
                    *client = now + cost.max(throttle);
                }
            }
        }
        sent
    }

    #[test]
    fn whoever_sends_four_times_as_fast_gets_the_limit_whatever_the_shards() {
        for shards in [1, 8] {
            // A million bytes per second; without the limit each shard would take four.
            let sent = paced(shards, KAFKA, 1e6, 16_000, 4, 60_000);
            // What was not used before comes in a burst, and again when that has left the windows.
            for period in sent.chunks(12) {
                let per_second = period.iter().sum::<i64>() as f64 / 12.0;
                assert!((0.9e6..1.1e6).contains(&per_second), "{shards}: {per_second}");
            }
        }
    }

    #[test]
    fn many_threads_lose_nothing_but_where_a_window_begins() {
        let rate = Rate::new(KAFKA, at(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|step| rate.record(1, at(step))));
            }
        });
        assert_eq!(rate.measure(at(9999)).sum, 40_000);
    }

    #[test]
    fn a_bucket_may_be_overdrawn_once_and_fills_at_its_rate() {
        // Kafka's `TokenBucketTest`: 100 windows of 1 s, 5 per second, a burst of 560 after which 12 s are to wait.
        let windows = Windows::new(100, 1);
        let mut bucket = TokenBucket::new(at(0));
        assert_eq!(bucket.overdrawn(windows, 5.0, at(0)), Duration::ZERO);
        bucket.take(560.0, windows, 5.0, at(0));
        assert_eq!(bucket.overdrawn(windows, 5.0, at(0)), ms(12_000));
        assert_eq!(bucket.overdrawn(windows, 5.0, at(11_500)), ms(500));
        assert_eq!(bucket.overdrawn(windows, 5.0, at(12_000)), Duration::ZERO);
        assert!(!bucket.is_full(windows, 5.0, at(111_000)));
        assert!(bucket.is_full(windows, 5.0, at(112_000)));
        // Another limit, another burst.
        bucket.take(10.0, windows, 0.1, at(112_000));
        assert_eq!(bucket.overdrawn(windows, 0.1, at(112_000)), Duration::ZERO);
        bucket.take(1.0, windows, 0.1, at(112_000));
        assert_eq!(bucket.overdrawn(windows, 0.1, at(112_000)), ms(10_000));
    }
}
