//! The load generator behind `kuring perf`.
//!
//! One thread per worker, each with its own connections and its own share of the partitions; workers share
//! nothing but a few counters for the progress line. Batches are made once and sent many times, so that the
//! generator costs less than what it measures. With a rate it is an open loop: the schedule of records does
//! not wait for the broker, and latency counts from the scheduled time.

mod body;
mod consume;
mod fetch_frame;
mod live;
mod plan;
mod produce;
mod produce_frame;
mod report;
mod schedule;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::base::clock::{Monotonic, monotonic};
use crate::client::producer::Acks;
use crate::client::{ClientError, ClusterConfig, Result};
use crate::wire::record::Compression;

pub use live::Tick;
pub use report::{PERCENTILES, Report, Side, write_histogram};

use body::{Bodies, STAMP_BYTES};
use consume::{ConsumeWorker, Reading};
use live::{Live, Ticker};
use plan::{Plan, identities};
use produce::ProduceWorker;
use report::Recorder;
use schedule::Schedule;

/// What all runs have in common.
#[derive(Clone, Debug)]
pub struct Setting {
    pub cluster: ClusterConfig,
    pub topic: String,
    /// For a topic that does not exist yet.
    pub partitions: i32,
    pub replication_factor: Option<i16>,
    /// `None`: one for each core; end-to-end half of them for each side.
    pub threads: Option<usize>,
    /// Connections that produce, of all workers together; `None`: one for each worker and broker.
    pub connections: Option<usize>,
    /// Time at the start that is not measured.
    pub warm_up: Duration,
    /// Pins worker N to core N.
    pub pin: bool,
    /// Ends the run early once it is set.
    pub interrupt: Arc<AtomicBool>,
}

/// The load of a producing run.
#[derive(Clone, Debug)]
pub struct ProduceLoad {
    pub record_bytes: usize,
    /// Records get one of so many keys; `None`: they have none.
    pub keys: Option<u64>,
    /// Records per second of all workers together; `None`: as fast as the broker takes them.
    pub rate: Option<f64>,
    pub acks: Acks,
    pub batch_bytes: usize,
    pub linger: Duration,
    pub compression: Compression,
    pub in_flight_max: usize,
    pub idempotent: bool,
    /// Each connection commits a transaction after so long and begins the next one; idempotent, too.
    pub transaction: Option<Duration>,
    pub duration: Option<Duration>,
    pub records: Option<u64>,
}

/// The load of a consuming run: from the oldest record to the end, or round and round for a time.
#[derive(Clone, Debug)]
pub struct ConsumeLoad {
    pub duration: Option<Duration>,
    pub records: Option<u64>,
    pub partition_bytes_max: i32,
    pub fetch_bytes_max: i32,
    pub fetch_bytes_min: i32,
    pub fetch_wait_max: Duration,
    pub check_crcs: bool,
    /// How many readers read all of it, each with connections of its own.
    pub fan_out: usize,
}

/// How long the readers of an end-to-end run may take to begin.
const READY_WAIT_MAX: Duration = Duration::from_secs(10);
const TICK_WAIT: Duration = Duration::from_millis(20);

type Outcome = Result<Recorder>;
type Work = Box<dyn FnOnce(&Live) -> Outcome + Send>;

/// Produces; `tick` is called once a second.
pub fn produce(setting: &Setting, load: &ProduceLoad, mut tick: impl FnMut(Tick)) -> Result<Report> {
    let plan = Plan::make(setting, setting.threads.unwrap_or_else(cores), false)?;
    let writers = produce_workers(setting, &plan, load, false)?;
    let live = Arc::new(Live::default());
    let (start, cpu) = (monotonic(), report::cpu_time());
    let work = start_writing(writers, load, start, start.plus(setting.warm_up));
    let workers = Workers::spawn(setting, work, &live)?;
    workers.watch(&live, start, &mut tick);
    let produced = Side::merge(workers.join()?);
    Ok(Report { produced: Some(produced), consumed: None, expected: None, cpu: report::cpu_time() - cpu })
}

/// Consumes what the topic holds.
pub fn consume(setting: &Setting, load: &ConsumeLoad, mut tick: impl FnMut(Tick)) -> Result<Report> {
    let plan = Plan::make(setting, setting.threads.unwrap_or_else(cores), true)?;
    let readers = consume_workers(&plan, load, Reading::Stored)?;
    let live = Arc::new(Live::default());
    let (start, cpu) = (monotonic(), report::cpu_time());
    let workers = Workers::spawn(setting, start_reading(readers, start.plus(setting.warm_up)), &live)?;
    workers.watch(&live, start, &mut tick);
    let consumed = Side::merge(workers.join()?);
    Ok(Report { produced: None, consumed: Some(consumed), expected: None, cpu: report::cpu_time() - cpu })
}

/// Produces and consumes at once. A record's latency is from the time it was due to its arrival, so a rate
/// below what the broker holds is wanted.
pub fn end_to_end(
    setting: &Setting,
    load: &ProduceLoad,
    reading: &ConsumeLoad,
    mut tick: impl FnMut(Tick),
) -> Result<Report> {
    if load.record_bytes < STAMP_BYTES {
        let reason = format!("{} bytes have no room for a time stamp", load.record_bytes);
        return Err(ClientError::Encode { what: "the records".into(), reason });
    }
    let threads = setting.threads.unwrap_or_else(|| (cores() / 2).max(1));
    let readers = consume_workers(&Plan::make(setting, threads, true)?, reading, Reading::Tail)?;
    let writers = produce_workers(setting, &Plan::make(setting, threads, false)?, load, true)?;
    let (read_live, write_live) = (Arc::new(Live::default()), Arc::new(Live::default()));
    let cpu = report::cpu_time();
    let start = monotonic().plus(Duration::from_millis(100));
    let measure_from = start.plus(setting.warm_up);
    let reader_count = readers.len();
    let readers = Workers::spawn(setting, start_reading(readers, measure_from), &read_live)?;
    while read_live.ready_count() < reader_count && monotonic() < start.plus(READY_WAIT_MAX) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let writers = Workers::spawn(setting, start_writing(writers, load, start, measure_from), &write_live)?;
    writers.watch(&read_live, start, &mut tick);
    let written = writers.join();
    let read_each =
        |recorders: &[Recorder]| recorders.iter().map(|recorder| recorder.all_records).sum::<u64>();
    let expected = written.as_ref().map_or(0, |recorders| read_each(recorders) * reading.fan_out as u64);
    match &written {
        Ok(_) => read_live.expect(expected),
        Err(_) => read_live.stop(),
    }
    let read = readers.join();
    let (produced, consumed) = (Side::merge(written?), Side::merge(read?));
    let cpu = report::cpu_time() - cpu;
    Ok(Report { produced: Some(produced), consumed: Some(consumed), expected: Some(expected), cpu })
}

fn produce_workers(
    setting: &Setting,
    plan: &Plan,
    load: &ProduceLoad,
    stamped: bool,
) -> Result<Vec<ProduceWorker>> {
    let count = plan.workers.len();
    let bodies = Arc::new(Bodies::make(load)?);
    let links = plan.workers.iter().map(|share| share.links.len()).sum();
    // Each connection has an id of its own, because connections may share partitions.
    let ids = match load.idempotent || load.transaction.is_some() {
        true => identities(setting, plan, links, load.transaction.is_some())?,
        false => Vec::new(),
    };
    let mut ids = ids.into_iter();
    let worker = |(number, share): (usize, &plan::Share)| {
        let load = ProduceLoad { records: part(load.records, number, count), ..load.clone() };
        ProduceWorker::new(plan, share, load, bodies.clone(), &mut ids, stamped)
    };
    plan.workers.iter().enumerate().map(worker).collect()
}

fn consume_workers(plan: &Plan, load: &ConsumeLoad, reading: Reading) -> Result<Vec<ConsumeWorker>> {
    let count = plan.workers.len();
    let worker = |(number, share)| {
        let load = ConsumeLoad { records: part(load.records, number, count), ..load.clone() };
        ConsumeWorker::new(plan, share, load, reading)
    };
    let readers = (0..load.fan_out.max(1)).flat_map(|_| plan.workers.iter().enumerate());
    readers.map(worker).collect()
}

/// The share of worker `number` in a total.
fn part(total: Option<u64>, number: usize, count: usize) -> Option<u64> {
    let (number, count) = (number as u64, count as u64);
    total.map(|total| total / count + u64::from(number < total % count))
}

fn start_writing(
    workers: Vec<ProduceWorker>,
    load: &ProduceLoad,
    start: Monotonic,
    measure_from: Monotonic,
) -> Vec<Work> {
    let rate = load.rate.map(|rate| rate / workers.len() as f64);
    let schedule = Schedule::new(start, rate);
    let work =
        |worker: ProduceWorker| -> Work { Box::new(move |live| worker.run(schedule, measure_from, live)) };
    workers.into_iter().map(work).collect()
}

fn start_reading(workers: Vec<ConsumeWorker>, measure_from: Monotonic) -> Vec<Work> {
    let work = |worker: ConsumeWorker| -> Work { Box::new(move |live| worker.run(measure_from, live)) };
    workers.into_iter().map(work).collect()
}

/// The threads of one side.
struct Workers {
    handles: Vec<JoinHandle<Outcome>>,
    live: Arc<Live>,
    interrupt: Arc<AtomicBool>,
}

impl Workers {
    fn spawn(setting: &Setting, work: Vec<Work>, live: &Arc<Live>) -> Result<Self> {
        let mut handles = Vec::new();
        for (number, work) in work.into_iter().enumerate() {
            let (live, pin) = (live.clone(), setting.pin);
            let run = move || {
                if pin {
                    pin_to_core(number);
                }
                // One worker's failure ends the run.
                work(&live).inspect_err(|_| live.stop())
            };
            handles.push(std::thread::Builder::new().name(format!("perf-{number}")).spawn(run)?);
        }
        Ok(Self { handles, live: live.clone(), interrupt: setting.interrupt.clone() })
    }

    /// Tells the progress of `live` until the threads have ended. An interrupt ends them.
    fn watch(&self, live: &Live, start: Monotonic, tick: &mut impl FnMut(Tick)) {
        let mut ticker = Ticker::new(start);
        while !self.handles.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(TICK_WAIT);
            if self.interrupt.load(Ordering::Relaxed) {
                self.live.stop();
            }
            if let Some(told) = ticker.tick(live) {
                tick(told);
            }
        }
    }

    fn join(self) -> Result<Vec<Recorder>> {
        let outcomes: Vec<Outcome> = self
            .handles
            .into_iter()
            // A panic has been printed by its thread.
            .map(|handle| handle.join().unwrap_or(Err(ClientError::Closed)))
            .collect();
        outcomes.into_iter().collect()
    }
}

/// Polls and returns what each descriptor is ready for.
fn wait(fds: &mut [PollFd<'_>], timeout: Duration) -> Result<Vec<PollFlags>> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) => Ok(fds.iter().map(PollFd::revents).collect()),
        Err(rustix::io::Errno::INTR) => Ok(vec![PollFlags::empty(); fds.len()]),
        Err(error) => Err(ClientError::Io(error.into())),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn pin_to_core(number: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(number % cores());
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(%error, number, "cannot pin");
    }
}
