//! `kuring perf`: arguments, progress and the report.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::output::{Failure, Output};
use super::produce::{AcksName, CompressionName};
use super::{ConnectArguments, interrupt_flag};
use crate::client::producer::Acks;
use crate::perf::{ConsumeLoad, PERCENTILES, ProduceLoad, Report, Setting, Side, Tick, write_histogram};

#[derive(Subcommand)]
pub enum PerfCommand {
    /// Produce as fast as possible, or at a rate
    #[command(after_help = "Examples:
  kuring perf produce --duration 30 --partitions 8
  kuring perf produce --rate 100000 --record-size 1024 --linger 5 --acks all --hdr produce.hgrm
  kuring perf produce --records 1000000 --compression lz4 --json > result.json
  kuring perf produce --connections 1000 --partitions 100 --batch-size 1 --in-flight 1
  kuring perf produce --transactional --transaction-duration 100

With --rate the schedule does not wait for the broker and latency counts from the time a record was due
(no coordinated omission); without, from the time its batch was sent. Progress goes to standard error.
Exit codes: 0 done, 1 failed or some records were refused, 2 wrong usage.")]
    Produce(ProduceArguments),
    /// Read a topic from its beginning to its end
    #[command(after_help = "Examples:
  kuring perf consume
  kuring perf consume --duration 30              (again and again)
  kuring perf consume --check-crcs --threads 1

Latency is that of a fetch, from the request to the whole answer. Bytes are those of whole batches.
Exit codes: 0 done, 1 failed, 2 wrong usage.")]
    Consume(ConsumeArguments),
    /// Measure from the time a record was due until it has been fetched
    #[command(after_help = "Examples:
  kuring perf end-to-end --rate 10000 --duration 60 --warmup 10 --hdr end-to-end.hgrm
  kuring perf end-to-end --rate 50000 --partitions 16 --acks all --linger 1

Producers and consumers run in this process, so that one clock measures both ends.
Exit codes: 0 done, 1 failed, or records did not arrive, 2 wrong usage.")]
    EndToEnd(EndToEndArguments),
}

#[derive(Args)]
struct SettingArguments {
    #[arg(short, long, default_value = "kuring-perf")]
    topic: String,
    /// Partitions of the topic, if it has to be created
    #[arg(short, long, default_value_t = 1)]
    partitions: i32,
    /// Copies of each partition, if the topic has to be created
    #[arg(short = 'R', long)]
    replication_factor: Option<i16>,
    /// Worker threads; one for each core if left out (end-to-end: half of them for each side)
    #[arg(long)]
    threads: Option<usize>,
    /// Connections that produce, of all threads together; one for each thread and broker if left out
    #[arg(long, value_name = "COUNT")]
    connections: Option<usize>,
    /// Pin each worker to a core
    #[arg(long)]
    pin: bool,
    /// Seconds at the start that are not measured
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    warmup: f64,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Write the distribution of the latency to a file, as HdrHistogram's tools read it
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,
    /// No progress on standard error
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Args)]
struct LoadArguments {
    /// Bytes of a record's value
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 1024)]
    record_size: usize,
    /// Give each record one of so many keys
    #[arg(long, value_name = "COUNT")]
    keys: Option<u64>,
    #[arg(short, long, default_value = "all")]
    acks: AcksName,
    /// Bytes of a batch before compression
    #[arg(long, value_name = "BYTES", default_value_t = 65536)]
    batch_size: usize,
    /// Milliseconds that a batch waits for more records, with --rate
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    linger: f64,
    #[arg(short = 'z', long, default_value = "none")]
    compression: CompressionName,
    /// Requests in flight on each connection
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    in_flight: usize,
    /// Send with a producer id and sequences
    #[arg(long)]
    idempotent: bool,
    /// Send in transactions, each connection in its own; needs --acks all and a cluster of one broker
    #[arg(long)]
    transactional: bool,
    /// Milliseconds from the first record of a transaction to its commit
    #[arg(long, value_name = "MS", default_value_t = 1000.0, requires = "transactional")]
    transaction_duration: f64,
}

#[derive(Args)]
struct FetchArguments {
    /// Bytes of an answer for one partition
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    partition_bytes: i32,
    /// Bytes of an answer
    #[arg(long, value_name = "BYTES", default_value_t = 50 << 20)]
    fetch_bytes: i32,
    /// Bytes that an answer waits for
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    min_bytes: i32,
    /// Milliseconds that an answer waits for them
    #[arg(long, value_name = "MS", default_value_t = 500)]
    max_wait: u64,
    /// Check the checksum of every batch
    #[arg(long)]
    check_crcs: bool,
    /// Readers of which each reads all of it
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    fan_out: usize,
}

#[derive(Args)]
pub struct ProduceArguments {
    #[command(flatten)]
    setting: SettingArguments,
    #[command(flatten)]
    load: LoadArguments,
    /// Records per second of all threads together; as many as possible if left out
    #[arg(short, long)]
    rate: Option<f64>,
    /// Seconds to run, after the warm-up; 10 unless --records is given
    #[arg(short, long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Records to send
    #[arg(short = 'n', long)]
    records: Option<u64>,
}

#[derive(Args)]
pub struct ConsumeArguments {
    #[command(flatten)]
    setting: SettingArguments,
    #[command(flatten)]
    fetch: FetchArguments,
    /// Seconds to run, after the warm-up, beginning again at each end; once to the end if left out
    #[arg(short, long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Records to read
    #[arg(short = 'n', long)]
    records: Option<u64>,
}

#[derive(Args)]
pub struct EndToEndArguments {
    #[command(flatten)]
    setting: SettingArguments,
    #[command(flatten)]
    load: LoadArguments,
    #[command(flatten)]
    fetch: FetchArguments,
    /// Records per second of all threads together
    #[arg(short, long, default_value_t = 1000.0)]
    rate: f64,
    /// Seconds to run, after the warm-up
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10.0)]
    duration: f64,
}

pub fn run(command: PerfCommand) -> Result<(), Failure> {
    // An interrupted run reports what it measured so far.
    let interrupt = interrupt_flag()?;
    let (name, setting, report) = match command {
        PerfCommand::Produce(arguments) => {
            let seconds = arguments.duration.or(arguments.records.is_none().then_some(10.0));
            let load = load(&arguments.load, arguments.rate, seconds, arguments.records)?;
            let setting = arguments.setting;
            let report = crate::perf::produce(&setting.setting(&interrupt)?, &load, progress(&setting))?;
            ("produce", setting, report)
        }
        PerfCommand::Consume(arguments) => {
            let load = fetch(&arguments.fetch, arguments.duration, arguments.records)?;
            let setting = arguments.setting;
            let report = crate::perf::consume(&setting.setting(&interrupt)?, &load, progress(&setting))?;
            ("consume", setting, report)
        }
        PerfCommand::EndToEnd(arguments) => {
            let write = load(&arguments.load, Some(arguments.rate), Some(arguments.duration), None)?;
            let read = fetch(&arguments.fetch, None, None)?;
            let setting = arguments.setting;
            let report =
                crate::perf::end_to_end(&setting.setting(&interrupt)?, &write, &read, progress(&setting))?;
            ("end-to-end", setting, report)
        }
    };
    show(name, &setting, &report)
}

impl SettingArguments {
    fn setting(&self, interrupt: &Arc<AtomicBool>) -> Result<Setting, Failure> {
        Ok(Setting {
            cluster: self.connect.config(),
            topic: self.topic.clone(),
            partitions: self.partitions,
            replication_factor: self.replication_factor,
            threads: self.threads,
            connections: self.connections,
            warm_up: seconds("--warmup", self.warmup)?,
            pin: self.pin,
            interrupt: interrupt.clone(),
        })
    }
}

fn load(
    arguments: &LoadArguments,
    rate: Option<f64>,
    duration: Option<f64>,
    records: Option<u64>,
) -> Result<ProduceLoad, Failure> {
    if let Some(rate) = rate
        && !(rate.is_finite() && rate > 0.0)
    {
        return Err(Failure::Told("--rate must be above 0".into()));
    }
    if arguments.transactional && arguments.acks.acks() != Acks::All {
        return Err(Failure::Told("--transactional needs --acks all".into()));
    }
    Ok(ProduceLoad {
        record_bytes: arguments.record_size,
        keys: arguments.keys,
        rate,
        acks: arguments.acks.acks(),
        batch_bytes: arguments.batch_size,
        linger: seconds("--linger", arguments.linger / 1000.0)?,
        compression: arguments.compression.compression(),
        in_flight_max: arguments.in_flight.max(1),
        idempotent: arguments.idempotent || arguments.transactional,
        transaction: match arguments.transactional {
            true => Some(seconds("--transaction-duration", arguments.transaction_duration / 1000.0)?),
            false => None,
        },
        duration: duration.map(|duration| seconds("--duration", duration)).transpose()?,
        records,
    })
}

fn fetch(
    arguments: &FetchArguments,
    duration: Option<f64>,
    records: Option<u64>,
) -> Result<ConsumeLoad, Failure> {
    Ok(ConsumeLoad {
        duration: duration.map(|duration| seconds("--duration", duration)).transpose()?,
        records,
        partition_bytes_max: arguments.partition_bytes,
        fetch_bytes_max: arguments.fetch_bytes,
        fetch_bytes_min: arguments.min_bytes,
        fetch_wait_max: Duration::from_millis(arguments.max_wait),
        check_crcs: arguments.check_crcs,
        fan_out: arguments.fan_out.max(1),
    })
}

fn seconds(name: &str, seconds: f64) -> Result<Duration, Failure> {
    let wrong = |_| Failure::Told(format!("{name} must be a time, 0 or more"));
    Duration::try_from_secs_f64(seconds).map_err(wrong)
}

fn progress(setting: &SettingArguments) -> impl FnMut(Tick) {
    let quiet = setting.quiet;
    move |tick: Tick| {
        if quiet {
            return;
        }
        let line = format!(
            "{:5.0} s  {:9.1} MB/s  {:11.0} records/s  worst {}\n",
            tick.since_start.as_secs_f64(),
            tick.bytes_per_second / 1e6,
            tick.records_per_second,
            shown(tick.latency_max)
        );
        // Progress that nobody can read any more is no reason to stop measuring.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

fn show(name: &str, setting: &SettingArguments, report: &Report) -> Result<(), Failure> {
    let sides: Vec<(&str, &Side)> = [("produced", &report.produced), ("consumed", &report.consumed)]
        .into_iter()
        .filter_map(|(name, side)| Some((name, side.as_ref()?)))
        .collect();
    let mut out = Output::stdout();
    if setting.json {
        let mut object = Map::new();
        object.insert("run".into(), json!(name));
        object.insert("topic".into(), json!(setting.topic));
        object.insert("client_cpu_seconds".into(), json!(report.cpu.as_secs_f64()));
        for (name, side) in &sides {
            object.insert((*name).into(), as_json(side));
        }
        out.line(Value::Object(object))?;
    } else {
        for (name, side) in &sides {
            out.line(as_text(name, side))?;
        }
        out.line(format_args!("client CPU {:.2} s", report.cpu.as_secs_f64()))?;
    }
    out.finish()?;
    // End-to-end latency is measured where records arrive.
    if let (Some(path), Some((_, side))) = (&setting.hdr, sides.last()) {
        write_hdr(path, side)?;
    }
    check(report)
}

/// A run whose records were refused or lost has failed, whatever it measured.
fn check(report: &Report) -> Result<(), Failure> {
    for side in [&report.produced, &report.consumed].into_iter().flatten() {
        if side.failed > 0 {
            let error = side.first_error.as_deref().unwrap_or("no reason given");
            return Err(Failure::Told(format!("{} records were refused: {error}", side.failed)));
        }
    }
    if let (Some(expected), Some(consumed)) = (report.expected, &report.consumed)
        && consumed.all_records < expected
    {
        let missing = expected - consumed.all_records;
        return Err(Failure::Told(format!("{missing} of {expected} records did not arrive")));
    }
    Ok(())
}

fn as_text(name: &str, side: &Side) -> String {
    let mut text = format!(
        "{name} {} records in {:.2} s: {:.1} MB/s, {:.0} records/s, {} requests\n",
        side.records,
        side.elapsed.as_secs_f64(),
        side.bytes_per_second() / 1e6,
        side.records_per_second(),
        side.requests
    );
    text += &format!("latency: mean {}", shown(side.mean()));
    for percentile in PERCENTILES {
        text += &format!(", {} {}", percentile_name(percentile), shown(side.percentile(percentile)));
    }
    if side.unsent > 0 {
        text += &format!("\nbehind schedule: {} records were due and never sent", side.unsent);
    }
    text
}

fn as_json(side: &Side) -> Value {
    let mut latency = Map::new();
    latency.insert("mean".into(), json!(millis(side.mean())));
    for percentile in PERCENTILES {
        latency.insert(percentile_name(percentile), json!(millis(side.percentile(percentile))));
    }
    json!({
        "records": side.records,
        "bytes": side.bytes,
        "requests": side.requests,
        "seconds": side.elapsed.as_secs_f64(),
        "records_per_second": side.records_per_second(),
        "mb_per_second": side.bytes_per_second() / 1e6,
        "failed": side.failed,
        "unsent": side.unsent,
        "latency_ms": latency,
    })
}

fn percentile_name(percentile: f64) -> String {
    if percentile == 100.0 { "max".into() } else { format!("p{percentile}") }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn shown(duration: Duration) -> String {
    let ms = millis(duration);
    if ms < 10.0 { format!("{ms:.3} ms") } else { format!("{ms:.1} ms") }
}

fn write_hdr(path: &Path, side: &Side) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Told(format!("{}: {error}", path.display()));
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    write_histogram(&side.latencies, &mut file).and_then(|()| file.flush()).map_err(failed)
}
