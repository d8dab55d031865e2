//! What the producer decides, without IO: which batches go to which broker now, under which sequence, and
//! what an answer means for them.
//!
//! Order within a partition: batches leave in the order they were made. While a batch is being sent again,
//! nothing else of its partition is in flight. With idempotence this keeps the order always; without it, a
//! batch that fails may come after others that were in flight with it (`in_flight_max` of 1 prevents that).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use super::batch::{Batch, BatchId, size_bound};
use super::{Delivery, ProducerConfig, ProducerRecord, Sequence};
use crate::base::clock::{Monotonic, Now};
use crate::base::random::Random;
use crate::base::{BrokerId, Offset, ProducerEpoch, ProducerId, TopicPartition};
use crate::client::backoff::Backoff;
use crate::client::error::{ClientError, Result};
use crate::wire::ErrorCode;
use crate::wire::record::increment_sequence;

/// The batches of a request, encoded.
pub type Batches = Vec<(TopicPartition, BatchId, Bytes)>;

/// One Produce request: at most one batch of each partition.
#[derive(Debug)]
pub struct Request {
    pub broker: BrokerId,
    pub batches: Batches,
}

pub struct Sender {
    config: ProducerConfig,
    partitions: BTreeMap<TopicPartition, Partition>,
    bytes: usize,
    next_batch: u64,
    producer: Option<(ProducerId, ProducerEpoch)>,
    /// Requests in flight of each broker.
    in_flight: HashMap<BrokerId, usize>,
    /// Everything is sent at once: a flush, the end, or memory is short.
    hurry: bool,
    /// What could not even be encoded.
    failed: Vec<Delivery>,
    random: Random,
}

#[derive(Default)]
struct Partition {
    /// Oldest first; only the last may be open.
    queue: VecDeque<Batch>,
    in_flight: Vec<Batch>,
    sequence: Option<Sequence>,
    /// The broker's idea of the sequence is lost: once nothing is in flight, start anew under a new epoch.
    restart: bool,
}

impl Sender {
    pub fn new(config: ProducerConfig, random: Random) -> Self {
        Self {
            config,
            partitions: BTreeMap::new(),
            bytes: 0,
            next_batch: 0,
            producer: None,
            in_flight: HashMap::new(),
            hurry: false,
            failed: Vec::new(),
            random,
        }
    }

    /// Whether a record of this size fits into the buffer now.
    pub fn has_room(&self, record: &ProducerRecord) -> bool {
        self.bytes == 0 || self.bytes + size_bound(record) <= self.config.buffer_bytes_max
    }

    /// Fails for a record that no request can hold.
    pub fn check_size(&self, record: &ProducerRecord) -> Result<()> {
        let (size, limit) = (size_bound(record), self.config.request_bytes_max);
        if size > limit { Err(ClientError::RecordTooLarge { size, limit }) } else { Ok(()) }
    }

    /// Puts a record into the partition's last batch, or a new one. True when that closed a batch.
    pub fn append(&mut self, partition: TopicPartition, record: &ProducerRecord, now: Now) -> bool {
        let timestamp = record.timestamp.unwrap_or(now.wall);
        let limit = self.config.batch_bytes;
        let entry = self.partitions.entry(partition).or_default();
        let mut closed = false;
        if let Some(last) = entry.queue.back_mut() {
            let before = last.bytes();
            if last.append(record, timestamp, limit) {
                self.bytes += last.bytes() - before;
                if last.bytes() >= limit {
                    last.close();
                }
                return last.is_closed();
            }
            last.close();
            closed = true;
        }
        let mut batch = Batch::new(BatchId(self.next_batch), self.config.compression, now.monotonic);
        self.next_batch += 1;
        let appended = batch.append(record, timestamp, limit);
        assert!(appended, "an empty batch takes any record");
        self.bytes += batch.bytes();
        if batch.bytes() >= limit {
            batch.close();
            closed = true;
        }
        entry.queue.push_back(batch);
        closed
    }

    /// Sends without waiting for more records, until told otherwise.
    pub fn set_hurry(&mut self, hurry: bool) {
        self.hurry = hurry;
    }

    pub fn is_empty(&self) -> bool {
        self.partitions.values().all(|partition| partition.queue.is_empty() && partition.in_flight.is_empty())
    }

    /// The newest batch made so far; a flush waits for all up to it.
    pub fn last_batch(&self) -> BatchId {
        BatchId(self.next_batch)
    }

    /// Whether a batch older than `id` is not done.
    pub fn has_older_than(&self, id: BatchId) -> bool {
        let older = |batch: &Batch| batch.id < id;
        self.partitions.values().any(|p| p.queue.iter().any(older) || p.in_flight.iter().any(older))
    }

    /// Records wait and cannot leave before [`Sender::set_producer`].
    pub fn wants_producer(&self) -> bool {
        self.config.is_idempotent() && self.producer.is_none() && !self.is_empty()
    }

    pub fn set_producer(&mut self, id: ProducerId, epoch: ProducerEpoch) {
        self.producer = Some((id, epoch));
    }

    /// The requests to send now: to brokers that are ready and have less than `in_flight_max` requests in
    /// flight. `leader` tells who leads a partition, if that broker is ready.
    pub fn drain(
        &mut self,
        now: Monotonic,
        mut leader: impl FnMut(&TopicPartition) -> Option<BrokerId>,
    ) -> Vec<Request> {
        if self.config.is_idempotent() && self.producer.is_none() {
            return Vec::new();
        }
        let mut requests: BTreeMap<BrokerId, (usize, Batches)> = BTreeMap::new();
        for (name, partition) in &mut self.partitions {
            if !partition.may_send(now, self.config.linger, self.hurry) {
                continue;
            }
            let Some(broker) = leader(name) else { continue };
            if self.in_flight.get(&broker).copied().unwrap_or(0) >= self.config.in_flight_max {
                continue;
            }
            let (size, batches) = requests.entry(broker).or_default();
            let next = partition.queue.front().map_or(0, Batch::bytes);
            if !batches.is_empty() && *size + next > self.config.request_bytes_max {
                continue;
            }
            if self.config.is_idempotent() && !partition.give_sequence(&mut self.producer) {
                break;
            }
            let Some(mut batch) = partition.queue.pop_front() else { continue };
            batch.attempts += 1;
            let before = batch.bytes();
            let bytes = match batch.encode() {
                Ok(bytes) => bytes,
                Err(error) => {
                    partition.restart |= batch.sequence.is_some();
                    self.bytes -= before;
                    self.failed.push(Delivery {
                        partition: name.clone(),
                        count: batch.count(),
                        outcome: Err(error),
                    });
                    continue;
                }
            };
            // Compression lowers what the buffer is charged for.
            self.bytes = self.bytes - before + bytes.len();
            *size += bytes.len();
            batches.push((name.clone(), batch.id, bytes));
            partition.in_flight.push(batch);
        }
        requests.retain(|_, (_, batches)| !batches.is_empty());
        for broker in requests.keys() {
            *self.in_flight.entry(*broker).or_default() += 1;
        }
        requests.into_iter().map(|(broker, (_, batches))| Request { broker, batches }).collect()
    }

    /// The time until [`Sender::drain`] or [`Sender::expire`] may have something to do without a new event.
    pub fn due_in(&self, now: Monotonic) -> Duration {
        let heads = self.partitions.values().filter_map(|partition| partition.queue.front());
        let times = heads.map(|head| {
            let send = head.created.plus(self.config.linger).max(head.retry_at).since(now);
            let expire = head.created.plus(self.config.delivery_timeout).since(now);
            // What could go already waits for an event: an answer, a leader, a connection.
            if send.is_zero() { expire } else { send.min(expire) }
        });
        times.min().unwrap_or(Duration::MAX)
    }

    /// A request to `broker` has ended, with or without an answer.
    pub fn request_done(&mut self, broker: BrokerId) {
        if let Some(count) = self.in_flight.get_mut(&broker) {
            *count = count.saturating_sub(1);
        }
    }

    /// Takes the answer for one batch. Returns its delivery, or nothing when it will be sent again; then the
    /// metadata should be refreshed.
    pub fn answered(
        &mut self,
        name: &TopicPartition,
        id: BatchId,
        outcome: Result<Option<Offset>>,
        now: Monotonic,
    ) -> Option<Delivery> {
        let partition = self.partitions.get_mut(name)?;
        let position = partition.in_flight.iter().position(|batch| batch.id == id)?;
        let batch = partition.in_flight.remove(position);
        let oldest = !partition.in_flight.iter().any(|other| other.id < id)
            && partition.queue.front().is_none_or(|other| other.id > id);
        let error = match outcome {
            Ok(offset) => return Some(self.deliver(name, batch, Ok(offset))),
            Err(error) => error,
        };
        match next_step(error.code(), error.is_retriable(), oldest, partition.restart) {
            Step::Done => return Some(self.deliver(name, batch, Ok(None))),
            Step::Retry => {}
            Step::Restart => partition.restart = true,
            Step::Fail => {
                // The sequence has a hole now, so the batches behind it would all be refused.
                partition.restart |= batch.sequence.is_some();
                if error.code() == Some(ErrorCode::InvalidProducerEpoch) {
                    self.producer = None;
                }
                return Some(self.deliver(name, batch, Err(error)));
            }
        }
        if now >= batch.created.plus(self.config.delivery_timeout) {
            partition.restart |= batch.sequence.is_some();
            return Some(self.deliver(name, batch, Err(error)));
        }
        let mut batch = batch;
        let (first, max) = self.config.retry_backoff;
        let mut backoff = Backoff::new(first, max);
        for _ in 1..batch.attempts.min(8) {
            backoff.failed(&mut self.random);
        }
        batch.retry_at = now.plus(backoff.failed(&mut self.random));
        let place = partition.queue.iter().position(|other| other.id > batch.id);
        partition.queue.insert(place.unwrap_or(partition.queue.len()), batch);
        None
    }

    /// Gives up batches that wait longer than the delivery time-out, or could not be encoded.
    pub fn expire(&mut self, now: Monotonic) -> Vec<Delivery> {
        let timeout = self.config.delivery_timeout;
        let mut expired = Vec::new();
        for (name, partition) in &mut self.partitions {
            while let Some(batch) = partition.queue.pop_front_if(|batch| now >= batch.created.plus(timeout)) {
                // One that was sent may have been written: what follows cannot know its sequence.
                partition.restart |= batch.sequence.is_some();
                expired.push((name.clone(), batch));
            }
        }
        let fail = |(name, batch): (TopicPartition, Batch)| {
            let what = format!("sending {} records to {name}", batch.count());
            self.deliver(&name, batch, Err(ClientError::TimedOut { what, after: timeout }))
        };
        let mut deliveries: Vec<Delivery> = expired.into_iter().map(fail).collect();
        deliveries.append(&mut self.failed);
        deliveries
    }

    fn deliver(&mut self, name: &TopicPartition, batch: Batch, outcome: Result<Option<Offset>>) -> Delivery {
        self.bytes -= batch.bytes();
        Delivery { partition: name.clone(), count: batch.count(), outcome }
    }
}

/// What an error means for a batch.
enum Step {
    /// It was written before.
    Done,
    Retry,
    /// It was not written, and the broker has lost the sequence: again, under a new epoch.
    Restart,
    Fail,
}

/// `oldest`: nothing older of the partition is unanswered. `restarting`: an older batch has left a hole.
fn next_step(code: Option<ErrorCode>, retriable: bool, oldest: bool, restarting: bool) -> Step {
    match code {
        Some(ErrorCode::DuplicateSequenceNumber) => Step::Done,
        Some(ErrorCode::UnknownProducerId) => Step::Restart,
        // Refused because an older batch is missing, which will come again or has been given up.
        Some(ErrorCode::OutOfOrderSequenceNumber) if !oldest || restarting => Step::Retry,
        _ if retriable => Step::Retry,
        _ => Step::Fail,
    }
}

impl Partition {
    fn may_send(&mut self, now: Monotonic, linger: Duration, hurry: bool) -> bool {
        if self.restart && !self.in_flight.is_empty() {
            return false;
        }
        let more = self.queue.len() > 1;
        let Some(head) = self.queue.front() else { return false };
        if head.attempts > 0 {
            return self.in_flight.is_empty() && now >= head.retry_at;
        }
        let retrying = self.in_flight.iter().any(|batch| batch.attempts > 1);
        !retrying && (head.is_closed() || more || hurry || now >= head.created.plus(linger))
    }

    /// Gives the first batch its sequence, if it has none. False when a new producer id is needed first.
    fn give_sequence(&mut self, producer: &mut Option<(ProducerId, ProducerEpoch)>) -> bool {
        if self.restart {
            let Some((id, epoch)) = *producer else { return false };
            if self.sequence.is_some_and(|sequence| sequence.producer == id) {
                // A new epoch of an idempotent producer needs no leave from the broker (KIP-360).
                let Some(next) = epoch.0.checked_add(1) else {
                    *producer = None;
                    return false;
                };
                *producer = Some((id, ProducerEpoch(next)));
            }
            self.sequence = None;
            self.restart = false;
            for batch in &mut self.queue {
                batch.sequence = None;
            }
        }
        let Some((id, epoch)) = *producer else { return false };
        let Some(head) = self.queue.front_mut() else { return true };
        if head.sequence.is_some() {
            return true;
        }
        // Another producer id than before can only start at 0; an epoch that other partitions made is not
        // taken over, the broker counts by partition.
        let next = match self.sequence {
            Some(sequence) if sequence.producer == id => sequence,
            _ => Sequence { producer: id, epoch, base: 0 },
        };
        head.sequence = Some(next);
        self.sequence = Some(Sequence { base: increment_sequence(next.base, head.count()), ..next });
        true
    }
}
