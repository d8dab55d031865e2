//! Offset commits: as many as go, and 20,000 a second.

use std::io::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{GroupId, OffsetCommitRequest, TopicName};

use crate::broker::{Broker, TOPIC};
use crate::wire::{Connection, frame, text};
use crate::{Options, Outcome};

const CONNECTIONS: usize = 64;
const THREADS: usize = 2;
const PARTITIONS: i32 = 8;
const RATE: f64 = 20_000.0;
const VERSION: i16 = 8;

/// Connections of one thread, each a consumer that assigns its partitions itself, with its commit.
struct Worker {
    members: Vec<(Connection, Vec<u8>)>,
}

impl Worker {
    fn open(broker: &Broker, number: usize) -> Result<Self> {
        let members = (0..CONNECTIONS / THREADS).map(|member| {
            let partition = OffsetCommitRequestPartition::default()
                .with_partition_index(member as i32 % PARTITIONS)
                .with_committed_offset(42)
                .with_committed_metadata(Some(text("")));
            let topic = OffsetCommitRequestTopic::default()
                .with_name(TopicName(text(TOPIC)))
                .with_partitions(vec![partition]);
            let request = OffsetCommitRequest::default()
                .with_group_id(GroupId(text(&format!("g{number}-{member}"))))
                .with_generation_id_or_member_epoch(-1)
                .with_topics(vec![topic]);
            Ok((Connection::open(broker.address)?, frame(VERSION, &request)))
        });
        Ok(Self { members: members.collect::<Result<_>>()? })
    }

    /// Commits round and round, at a rate if there is one; how many, and how long they took from when they were due.
    fn run(&mut self, time: Duration, rate: Option<f64>, done: &AtomicU64) -> Result<Histogram<u64>> {
        let mut latency = Histogram::<u64>::new(3).map_err(Error::other)?;
        let start = Instant::now();
        let mut sent = 0usize;
        while start.elapsed() < time {
            let due = match rate {
                Some(rate) => (start.elapsed().as_secs_f64() * rate) as usize,
                None => sent + self.members.len(),
            };
            let batch = due.min(sent + self.members.len()) - sent;
            let begun = Instant::now();
            for at in 0..batch {
                let (connection, commit) = &mut self.members[at];
                connection.send(commit)?;
            }
            for at in 0..batch {
                let response = self.members[at].0.receive::<OffsetCommitRequest>(VERSION)?;
                let code = response.topics[0].partitions[0].error_code;
                if code != 0 {
                    return Err(Error::other(format!("a commit is refused with {code}")));
                }
                let since = match rate {
                    Some(rate) => {
                        start.elapsed().saturating_sub(Duration::from_secs_f64((sent + at) as f64 / rate))
                    }
                    None => begun.elapsed(),
                };
                latency.record(since.as_micros() as u64).map_err(Error::other)?;
            }
            sent += batch;
            done.fetch_add(batch as u64, Ordering::Relaxed);
            if rate.is_some() {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
        Ok(latency)
    }
}

pub fn run(options: &Options) -> Outcome {
    let broker = Broker::start(options, PARTITIONS, &[])?;
    let mut workers = (0..THREADS).map(|number| Worker::open(&broker, number)).collect::<Result<Vec<_>>>()?;
    for (what, rate) in [("as many as go", None), ("20,000 asked for", Some(RATE / THREADS as f64))] {
        let (done, time) = (AtomicU64::new(0), options.time);
        let (from, start) = (broker.cpu_time()?, Instant::now());
        let latencies: Vec<Result<Histogram<u64>>> = std::thread::scope(|scope| {
            let done = &done;
            let running: Vec<_> =
                workers.iter_mut().map(|worker| scope.spawn(move || worker.run(time, rate, done))).collect();
            running.into_iter().map(|thread| thread.join().map_err(|_| Error::other("a panic"))?).collect()
        });
        let (used, elapsed) = (broker.cpu_time()? - from, start.elapsed());
        let mut latency = Histogram::<u64>::new(3).map_err(Error::other)?;
        for one in latencies {
            latency.add(one?).map_err(Error::other)?;
        }
        let count = done.load(Ordering::Relaxed) as f64;
        println!(
            "commits, {what}: {:.0}/s over {CONNECTIONS} connections, {:.0}% of a core ({:.1} µs each); p50 {:.2} ms, \
             p99 {:.2} ms",
            count / elapsed.as_secs_f64(),
            100.0 * used.as_secs_f64() / elapsed.as_secs_f64(),
            used.as_secs_f64() * 1e6 / count,
            latency.value_at_quantile(0.5) as f64 / 1000.0,
            latency.value_at_quantile(0.99) as f64 / 1000.0,
        );
    }
    Ok(())
}
