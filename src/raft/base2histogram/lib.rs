//! What openraft calls of the crate `base2histogram`: histograms of its own batch sizes and stages.
//!
//! The published crate builds 26 MiB of look-up tables at its first `Histogram::new`, more than all the rest of an idle
//! broker. Here a value falls into the power of two above it, which needs no table. kuring reads none of these
//! figures (openraft shows them with its feature `runtime-stats`, which is off), so that is precise enough.

use std::fmt;
use std::marker::PhantomData;

/// One bucket for zero and one for each bit length.
const BUCKETS: usize = 65;

/// Counts of values by their bit length. `T` labels slots of time in the published crate; here there are none.
pub struct Histogram<T = ()> {
    counts: [u64; BUCKETS],
    slots: PhantomData<T>,
}

impl<T> Histogram<T> {
    pub fn new() -> Self {
        Self { counts: [0; BUCKETS], slots: PhantomData }
    }

    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Records `value` as `count` values.
    pub fn record_n(&mut self, value: u64, count: u64) {
        let bucket = (u64::BITS - value.leading_zeros()) as usize;
        self.counts[bucket] = self.counts[bucket].saturating_add(count);
    }

    /// How many values were recorded.
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The greatest value of the bucket in which the share `p` (0 to 1) of all values is reached; 0 without values.
    pub fn percentile(&self, p: f64) -> u64 {
        let rank = ((self.total() as f64 * p).ceil() as u64).max(1);
        let mut seen = 0u64;
        for (bits, count) in self.counts.iter().enumerate() {
            seen = seen.saturating_add(*count);
            if seen >= rank {
                return greatest_of(bits);
            }
        }
        0
    }

    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.total(),
            p0_1: self.percentile(0.001),
            p1: self.percentile(0.01),
            p5: self.percentile(0.05),
            p10: self.percentile(0.10),
            p50: self.percentile(0.50),
            p90: self.percentile(0.90),
            p99: self.percentile(0.99),
            p99_9: self.percentile(0.999),
        }
    }
}

/// The greatest value of `bits` bits.
fn greatest_of(bits: usize) -> u64 {
    1u64.checked_shl(bits as u32).map_or(u64::MAX, |next| next - 1)
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for Histogram<T> {
    fn clone(&self) -> Self {
        Self { counts: self.counts, slots: PhantomData }
    }
}

impl<T> PartialEq for Histogram<T> {
    fn eq(&self, other: &Self) -> bool {
        self.counts == other.counts
    }
}

impl<T> Eq for Histogram<T> {}

impl<T> fmt::Debug for Histogram<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.percentile_stats(), f)
    }
}

/// Values at fixed shares of a histogram, in the unit that was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PercentileStats {
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Histograms under their names, one line each.
#[derive(Debug, Default)]
pub struct AsciiChart {
    rows: Vec<(String, Histogram)>,
}

impl AsciiChart {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add(mut self, name: impl Into<String>, histogram: Histogram) -> Self {
        self.rows.push((name.into(), histogram));
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, histogram) in &self.rows {
            writeln!(f, "{name}: {:?}", histogram.percentile_stats())?;
        }
        Ok(())
    }
}
