//! What a run measured.

use std::io::{self, Write};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::base::clock::Monotonic;

/// Latencies are kept from 1 µs to an hour with three digits.
const LATENCY_NS_MIN: u64 = 1_000;
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// The percentiles that reports show.
pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// One worker's measurements.
pub struct Recorder {
    latencies: Histogram<u64>,
    measure_from: Monotonic,
    ended: Monotonic,
    records: u64,
    bytes: u64,
    requests: u64,
    /// Also those of the warm-up.
    pub all_records: u64,
    failed: u64,
    first_error: Option<String>,
    /// Records that were due and never sent.
    unsent: u64,
}

impl Recorder {
    pub fn new(measure_from: Monotonic) -> Self {
        let latencies = Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, DIGITS);
        Self {
            latencies: latencies.expect("the bounds are valid"),
            measure_from,
            ended: measure_from,
            records: 0,
            bytes: 0,
            requests: 0,
            all_records: 0,
            failed: 0,
            first_error: None,
            unsent: 0,
        }
    }

    /// Counts a batch or an answer that was complete at `now`. False during the warm-up: then no latency
    /// is to be recorded either.
    pub fn count(&mut self, records: u64, bytes: u64, now: Monotonic) -> bool {
        self.all_records += records;
        if now < self.measure_from {
            return false;
        }
        self.records += records;
        self.bytes += bytes;
        self.requests += 1;
        self.ended = now;
        true
    }

    /// Something due then belongs to what is measured.
    pub fn is_measured(&self, due: Monotonic) -> bool {
        due >= self.measure_from
    }

    pub fn latency(&mut self, latency: Duration, count: u64) {
        self.latencies.saturating_record_n((latency.as_nanos() as u64).max(LATENCY_NS_MIN), count);
    }

    pub fn fail(&mut self, records: u64, error: impl FnOnce() -> String) {
        self.failed += records;
        self.first_error.get_or_insert_with(error);
    }

    pub fn unsent(&mut self, records: u64) {
        self.unsent += records;
    }
}

/// What all workers of one side measured together.
pub struct Side {
    pub latencies: Histogram<u64>,
    pub elapsed: Duration,
    pub records: u64,
    pub bytes: u64,
    pub requests: u64,
    pub failed: u64,
    pub first_error: Option<String>,
    pub unsent: u64,
    /// Also those of the warm-up.
    pub all_records: u64,
}

impl Side {
    pub fn merge(recorders: Vec<Recorder>) -> Self {
        let empty = Recorder::new(Monotonic::ZERO);
        let mut side = Side {
            latencies: empty.latencies,
            elapsed: Duration::ZERO,
            records: 0,
            bytes: 0,
            requests: 0,
            failed: 0,
            first_error: None,
            unsent: 0,
            all_records: 0,
        };
        for recorder in recorders {
            side.latencies.add(&recorder.latencies).expect("all have the same bounds");
            side.elapsed = side.elapsed.max(recorder.ended.since(recorder.measure_from));
            side.records += recorder.records;
            side.bytes += recorder.bytes;
            side.requests += recorder.requests;
            side.failed += recorder.failed;
            side.first_error = side.first_error.or(recorder.first_error);
            side.unsent += recorder.unsent;
            side.all_records += recorder.all_records;
        }
        side
    }

    pub fn records_per_second(&self) -> f64 {
        per_second(self.records, self.elapsed)
    }

    /// Bytes of record values.
    pub fn bytes_per_second(&self) -> f64 {
        per_second(self.bytes, self.elapsed)
    }

    pub fn percentile(&self, percentile: f64) -> Duration {
        Duration::from_nanos(self.latencies.value_at_percentile(percentile))
    }

    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.latencies.mean() as u64)
    }
}

/// What a run found out.
pub struct Report {
    pub produced: Option<Side>,
    pub consumed: Option<Side>,
    /// Records that should have been consumed, where it is known.
    pub expected: Option<u64>,
    /// CPU time of this process during the run.
    pub cpu: Duration,
}

fn per_second(count: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() }
}

/// Writes the distribution in the text form of HdrHistogram's percentile files (`.hgrm`), in milliseconds.
pub fn write_histogram(latencies: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
    const NS_PER_MS: f64 = 1e6;
    writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
    for value in latencies.iter_quantiles(5) {
        let quantile = value.quantile_iterated_to();
        let inverse = if quantile < 1.0 { format!("{:14.2}", 1.0 / (1.0 - quantile)) } else { String::new() };
        writeln!(
            out,
            "{:12.3} {quantile:14.12} {:10} {inverse}",
            value.value_iterated_to() as f64 / NS_PER_MS,
            latencies.count_between(0, value.value_iterated_to()),
        )?;
    }
    writeln!(
        out,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        latencies.mean() / NS_PER_MS,
        latencies.stdev() / NS_PER_MS
    )?;
    writeln!(
        out,
        "#[Max     = {:12.3}, Total count    = {:12}]",
        latencies.max() as f64 / NS_PER_MS,
        latencies.len()
    )?;
    writeln!(
        out,
        "#[Buckets = {:12}, SubBuckets     = {:12}]",
        latencies.buckets(),
        latencies.distinct_values() / usize::from(latencies.buckets()).max(1)
    )
}

/// CPU time this process has used, user and system, to 10 ms; zero where `/proc` is not there.
pub fn cpu_time() -> Duration {
    std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| parse_cpu_time(&stat)).unwrap_or_default()
}

/// Fields 14 and 15 of `/proc/PID/stat`, in hundredths of a second (USER_HZ, the same on every Linux).
fn parse_cpu_time(stat: &str) -> Option<Duration> {
    // The name in parentheses may hold spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis(10 * (user + system)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_counts_for_nothing_but_the_total() {
        let mut recorder = Recorder::new(Monotonic::from_millis(1000));
        assert!(!recorder.count(10, 100, Monotonic::from_millis(999)));
        assert!(recorder.count(10, 100, Monotonic::from_millis(2000)));
        recorder.latency(Duration::from_millis(3), 10);
        assert_eq!(recorder.all_records, 20);
        let side = Side::merge(vec![recorder]);
        assert_eq!((side.records, side.elapsed), (10, Duration::from_secs(1)));
        assert_eq!(side.records_per_second(), 10.0);
        let p50 = side.percentile(50.0).as_micros();
        assert!((2990..3010).contains(&p50), "{p50}");
    }

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(parse_cpu_time(stat), Some(Duration::from_secs(3)));
        assert_eq!(parse_cpu_time("7 (x"), None);
    }

    #[test]
    fn the_distribution_is_written_as_a_percentile_file() {
        let mut recorder = Recorder::new(Monotonic::ZERO);
        recorder.latency(Duration::from_millis(2), 1);
        let mut text = Vec::new();
        write_histogram(&recorder.latencies, &mut text).expect("writes");
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains("1/(1-Percentile)") && text.contains("2.000"), "{text}");
    }
}
