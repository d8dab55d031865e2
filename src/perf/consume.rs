//! One worker that consumes: it walks batch heads in the receive buffer and copies nothing.

use std::os::fd::AsFd;
use std::time::Duration;

use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::protocol::StrBytes;
use rustix::event::{PollFd, PollFlags};

use super::body::STAMP_BYTES;
use super::fetch_frame::walk;
use super::live::Live;
use super::plan::{LinkPlan, Plan, Share};
use super::report::Recorder;
use super::{ConsumeLoad, Outcome, wait};
use crate::base::clock::{Monotonic, monotonic};
use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicName, TopicPartition};
use crate::client::{ClientError, Connection, Result, encode};
use crate::wire::record::{BatchError, BatchView};

const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);
const POLL_WAIT_MAX: Duration = Duration::from_millis(100);
/// How long after the last write the last records may take to arrive.
const TAIL_WAIT_MAX: Duration = Duration::from_secs(5);
const TOPIC_ID_VERSION: i16 = 13;
/// The epoch of a fetch without session (KIP-227).
const NO_SESSION: i32 = -1;
/// The most that the records of one batch may take after decompression.
const DECOMPRESSED_BYTES_MAX: usize = 256 << 20;

/// What is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// What the topic held at the start, once or again and again for a time.
    Stored,
    /// What arrives during the run; values begin with the time their record was due.
    Tail,
}

pub struct ConsumeWorker {
    load: ConsumeLoad,
    reading: Reading,
    links: Vec<Link>,
    version: i16,
    client_id: String,
    topic: TopicName,
    topic_id: TopicId,
    recorder: Recorder,
    scratch: Vec<u8>,
}

struct Link {
    address: String,
    connection: Connection,
    partitions: Vec<Partition>,
    next_correlation: i32,
    asked_at: Option<Monotonic>,
}

struct Partition {
    index: PartitionIndex,
    epoch: LeaderEpoch,
    first: Offset,
    end: Offset,
    next: Offset,
}

/// What one answer held.
#[derive(Default)]
struct Taken {
    records: u64,
    bytes: u64,
}

impl ConsumeWorker {
    pub fn new(plan: &Plan, share: &Share, load: ConsumeLoad, reading: Reading) -> Result<Self> {
        let links = share.links.iter().map(|link| Link::open(plan, link, reading));
        Ok(Self {
            links: links.collect::<Result<_>>()?,
            version: plan.fetch_version,
            client_id: plan.client_id.clone(),
            topic: plan.topic.clone(),
            topic_id: plan.topic_id,
            recorder: Recorder::new(Monotonic::ZERO),
            load,
            reading,
            scratch: Vec::new(),
        })
    }

    pub fn run(mut self, measure_from: Monotonic, live: &Live) -> Outcome {
        self.recorder = Recorder::new(measure_from);
        let end = self.load.duration.map(|duration| measure_from.plus(duration));
        let mut quiet_since = monotonic();
        live.worker_ready();
        loop {
            let now = monotonic();
            let over = live.is_stopped()
                || end.is_some_and(|end| now >= end && self.reading == Reading::Stored)
                || self.load.records.is_some_and(|records| self.recorder.all_records >= records)
                || live.is_complete()
                || live.is_expecting() && now.since(quiet_since) > TAIL_WAIT_MAX;
            if over || self.links.iter().all(|link| link.partitions.iter().all(Partition::is_done)) {
                return Ok(self.recorder);
            }
            for index in 0..self.links.len() {
                self.ask(index, now)?;
            }
            let before = self.recorder.all_records;
            self.wait(live)?;
            if self.recorder.all_records != before || !live.is_expecting() {
                quiet_since = monotonic();
            }
        }
    }

    /// Sends a fetch if the connection is open and has none in flight.
    fn ask(&mut self, index: usize, now: Monotonic) -> Result<()> {
        let link = &mut self.links[index];
        if link.asked_at.is_some() || link.connection.is_connecting() {
            return Ok(());
        }
        let partitions: Vec<FetchPartition> = link
            .partitions
            .iter()
            .filter(|partition| !partition.is_done())
            .map(|partition| {
                FetchPartition::default()
                    .with_partition(partition.index.0)
                    .with_current_leader_epoch(partition.epoch.0)
                    .with_fetch_offset(partition.next.0)
                    .with_last_fetched_epoch(-1)
                    .with_log_start_offset(-1)
                    .with_partition_max_bytes(self.load.partition_bytes_max)
            })
            .collect();
        if partitions.is_empty() {
            return Ok(());
        }
        let topic = FetchTopic::default().with_partitions(partitions);
        let topic = match self.version {
            ..TOPIC_ID_VERSION => topic.with_topic(StrBytes::from_string(self.topic.to_string()).into()),
            _ => topic.with_topic_id(self.topic_id.0),
        };
        let request = FetchRequest::default()
            .with_replica_id((-1).into())
            .with_max_wait_ms(self.load.fetch_wait_max.as_millis() as i32)
            .with_min_bytes(self.load.fetch_bytes_min)
            .with_max_bytes(self.load.fetch_bytes_max)
            .with_session_epoch(NO_SESSION)
            .with_topics(vec![topic]);
        let frame = encode(&request, self.version, link.next_correlation, &self.client_id)?;
        link.connection.send(frame).map_err(|error| link.lost(error.to_string()))?;
        link.asked_at = Some(now);
        Ok(())
    }

    fn wait(&mut self, live: &Live) -> Result<()> {
        let returned = {
            let mut fds: Vec<PollFd<'_>> = self
                .links
                .iter()
                .map(|link| PollFd::from_borrowed_fd(link.connection.as_fd(), link.connection.interest()))
                .collect();
            wait(&mut fds, POLL_WAIT_MAX)?
        };
        for (index, flags) in returned.into_iter().enumerate() {
            let link = &mut self.links[index];
            if link.asked_at.is_some_and(|at| monotonic().since(at) > ANSWER_WAIT_MAX) {
                return Err(link.lost("a request was not answered in time".into()));
            }
            if flags.is_empty() {
                continue;
            }
            if link.connection.is_connecting() || flags.contains(PollFlags::OUT) {
                link.connection.on_writable().map_err(|error| link.lost(error.to_string()))?;
            }
            if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.read(index, live)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, index: usize, live: &Live) -> Result<()> {
        let link = &mut self.links[index];
        let open = link.connection.read_some().map_err(|error| link.lost(error.to_string()))?;
        let now = monotonic();
        let Some(asked_at) = link.asked_at else {
            return if open { Ok(()) } else { Err(link.lost("the broker closed it".into())) };
        };
        let Link { connection, partitions, address, next_correlation, .. } = link;
        let frame = connection
            .next_frame()
            .map_err(|error| ClientError::Lost { address: address.clone(), reason: error.to_string() })?;
        let Some(frame) = frame else {
            return if open { Ok(()) } else { Err(link.lost("the broker closed it".into())) };
        };
        let mut taken = Taken::default();
        let correlation = walk(frame, self.version, |answer| {
            let name = || TopicPartition::new(self.topic.clone(), answer.index);
            if let Some(code) = answer.error {
                return Err(ClientError::broker(format!("fetch {}", name()), code, None));
            }
            let Some(partition) = partitions.iter_mut().find(|partition| partition.index == answer.index)
            else {
                return Ok(());
            };
            let mut reader = Batches {
                load: &self.load,
                stamps: (self.reading == Reading::Tail).then_some((&mut self.recorder, now)),
                scratch: &mut self.scratch,
            };
            let damaged = |reason: String| ClientError::DamagedBatch { partition: name(), reason };
            reader.take(answer.records, partition, &mut taken).map_err(damaged)
        })?;
        if correlation != *next_correlation {
            return Err(ClientError::Malformed {
                what: "Fetch".into(),
                reason: format!("correlation id {correlation} was not expected"),
            });
        }
        *next_correlation = next_correlation.wrapping_add(1).max(0);
        link.asked_at = None;
        let again = self.load.duration.is_some() && self.reading == Reading::Stored;
        for partition in link.partitions.iter_mut().filter(|partition| again && partition.is_done()) {
            partition.next = partition.first;
        }
        // The next request leaves before this answer is accounted for.
        self.ask(index, now)?;
        let latency = now.since(asked_at);
        live.add(taken.records, taken.bytes, latency);
        let measured = self.recorder.count(taken.records, taken.bytes, now);
        if measured && self.reading == Reading::Stored {
            self.recorder.latency(latency, 1);
        }
        Ok(())
    }
}

/// Walks the batches of one partition's records.
struct Batches<'a> {
    load: &'a ConsumeLoad,
    stamps: Option<(&'a mut Recorder, Monotonic)>,
    scratch: &'a mut Vec<u8>,
}

impl Batches<'_> {
    fn take(&mut self, mut bytes: &[u8], partition: &mut Partition, taken: &mut Taken) -> Result<(), String> {
        while !bytes.is_empty() && !partition.is_done() {
            let view = match BatchView::parse(bytes) {
                Ok(view) => view,
                // Cut off at the size limit: it comes with the next fetch.
                Err(BatchError::Incomplete { .. }) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            bytes = &bytes[view.bytes().len()..];
            if view.head().next_offset() <= partition.next {
                continue;
            }
            if self.load.check_crcs {
                view.check_crc().map_err(|error| error.to_string())?;
            }
            if !view.head().attributes().is_control() {
                taken.records += view.head().count() as u64;
                taken.bytes += view.bytes().len() as u64;
            }
            self.read_stamps(&view)?;
            partition.next = view.head().next_offset();
        }
        Ok(())
    }

    fn read_stamps(&mut self, view: &BatchView<'_>) -> Result<(), String> {
        let Some((recorder, now)) = &mut self.stamps else { return Ok(()) };
        let records =
            view.records(self.scratch, DECOMPRESSED_BYTES_MAX).map_err(|error| error.to_string())?;
        for record in records {
            let record = record.map_err(|error| error.to_string())?;
            let Some(stamp) = record.value.and_then(|value| value.first_chunk::<STAMP_BYTES>()) else {
                continue;
            };
            let due = Monotonic::from_nanos(u64::from_be_bytes(*stamp));
            if recorder.is_measured(due) {
                recorder.latency(now.since(due), 1);
            }
        }
        Ok(())
    }
}

impl Partition {
    fn is_done(&self) -> bool {
        self.next >= self.end
    }
}

impl Link {
    fn open(plan: &Plan, link: &LinkPlan, reading: Reading) -> Result<Self> {
        let address = link.address.to_string();
        let connection = Connection::open(link.address, plan.response_bytes_max)
            .map_err(|error| ClientError::Connect { address: address.clone(), reason: error.to_string() })?;
        let partitions = link.partitions.iter().map(|partition| Partition {
            index: partition.index,
            epoch: partition.leader_epoch,
            first: partition.first,
            end: if reading == Reading::Tail { Offset(i64::MAX) } else { partition.end },
            next: if reading == Reading::Tail { partition.end } else { partition.first },
        });
        Ok(Self {
            address,
            connection,
            partitions: partitions.collect(),
            next_correlation: 0,
            asked_at: None,
        })
    }

    fn lost(&self, reason: String) -> ClientError {
        ClientError::Lost { address: self.address.clone(), reason }
    }
}
