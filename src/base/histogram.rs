//! A histogram of durations with fixed bounds: plain cells of one shard, a few ns per recording, merged when
//! somebody looks.

use std::cell::Cell;
use std::time::Duration;

/// Upper bounds of the buckets, in ns; what is longer goes into one more. Each is at least twice the one before
/// it, which [`bucket`] relies on.
pub const BOUNDS_NS: [u64; BOUNDS] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
];
const BOUNDS: usize = 16;
const BUCKETS: usize = BOUNDS + 1;

/// How many bounds lie below each power of two.
static BELOW: [u8; 65] = bounds_below();

/// How long something took, how often.
#[derive(Default, Debug)]
pub struct Histogram {
    buckets: [Cell<u64>; BUCKETS],
    sum_ns: Cell<u64>,
}

/// The contents of a histogram, or of several together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Recorded {
    /// Not cumulative; the last one is above all bounds.
    pub buckets: [u64; BUCKETS],
    pub sum_ns: u64,
}

impl Histogram {
    /// About 2 ns.
    pub fn record(&self, duration: Duration) {
        // Without the 128 bits of `as_nanos`.
        let ns =
            duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos().into());
        let bucket = &self.buckets[bucket(ns)];
        bucket.set(bucket.get() + 1);
        self.sum_ns.set(self.sum_ns.get().wrapping_add(ns));
    }

    pub fn recorded(&self) -> Recorded {
        let mut buckets = [0; BUCKETS];
        for (copy, cell) in buckets.iter_mut().zip(&self.buckets) {
            *copy = cell.get();
        }
        Recorded { buckets, sum_ns: self.sum_ns.get() }
    }
}

impl Recorded {
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn merge(&mut self, other: &Recorded) {
        for (mine, others) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += others;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

/// The number of bounds below `ns`: at most one bound lies between two powers of two, so the logarithm finds
/// the place but for one comparison.
fn bucket(ns: u64) -> usize {
    let below = usize::from(BELOW[(u64::BITS - ns.leading_zeros()) as usize]);
    below + usize::from(below < BOUNDS && ns > BOUNDS_NS[below])
}

/// At `n`: how many bounds lie below `2^(n-1)`, the least number with `n` binary digits.
const fn bounds_below() -> [u8; 65] {
    let mut table = [0; 65];
    let mut digits = 1;
    while digits < 65 {
        let least = 1u64 << (digits - 1);
        let mut below = 0;
        while below < BOUNDS && BOUNDS_NS[below] < least {
            below += 1;
        }
        table[digits] = below as u8;
        digits += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_falls_into_the_bucket_of_its_bound() {
        let around = BOUNDS_NS.iter().flat_map(|bound| [bound - 1, *bound, bound + 1, 2 * bound - 1]);
        for ns in around.chain([0, 1, u64::MAX]) {
            let wanted = BOUNDS_NS.iter().filter(|bound| **bound < ns).count();
            assert_eq!(bucket(ns), wanted, "{ns}");
        }
    }

    #[test]
    fn bounds_are_at_least_twice_the_one_before() {
        assert!(BOUNDS_NS.windows(2).all(|pair| pair[1] >= 2 * pair[0]));
    }

    #[test]
    fn histograms_of_several_shards_merge() {
        let (one, other) = (Histogram::default(), Histogram::default());
        one.record(Duration::from_millis(1));
        other.record(Duration::from_millis(2));
        other.record(Duration::from_secs(60));
        let mut merged = one.recorded();
        merged.merge(&other.recorded());
        assert_eq!(merged.count(), 3);
        assert_eq!(merged.sum_ns, 60_003_000_000);
        assert_eq!((merged.buckets[4], merged.buckets[5], merged.buckets[BOUNDS]), (1, 1, 1));
    }
}
