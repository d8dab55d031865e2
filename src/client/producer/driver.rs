//! The producer's thread: it owns the connections and asks the [`Sender`] what to do. Callers' threads meet
//! it in one mutex, which is never held during IO.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{InitProducerIdRequest, ProduceRequest, ProduceResponse};
use kafka_protocol::protocol::StrBytes;
use rustix::event::{EventfdFlags, eventfd};

use super::{Acks, BatchId, Delivery, ProducerConfig, ProducerRecord, Request, Sender};
use crate::base::clock::{monotonic, now};
use crate::base::random::Random;
use crate::base::{
    BrokerId, Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicId, TopicName, TopicPartition,
};
use crate::client::cluster::Cluster;
use crate::client::error::{ClientError, Result};
use crate::client::network::{Event, Lost, NodeId, Token, decode};
use crate::client::partitioner::{UniformSticky, partition_of_key};
use crate::wire::ErrorCode;

/// How long the thread waits at most before it looks again.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long it waits before it tries again to reach a broker.
const RETRY_WAIT: Duration = Duration::from_millis(20);

/// Sends records; usable from many threads. Dropping it waits for what was sent, as [`Producer::close`] does.
pub struct Producer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    block_max: Duration,
}

struct Shared {
    state: Mutex<State>,
    /// Something that callers wait for has changed: memory, topics, deliveries.
    changed: Condvar,
    wake: Arc<OwnedFd>,
}

struct State {
    sender: Sender,
    topics: BTreeMap<TopicName, Result<Topic, ErrorCode>>,
    wanted: BTreeSet<TopicName>,
    sticky: HashMap<TopicName, UniformSticky>,
    batch_bytes: usize,
    /// A caller waits for memory: what is there leaves without linger.
    hurry_once: bool,
    /// Callers that wait for everything so far.
    flushes: usize,
    closing: bool,
    /// The thread has ended.
    ended: bool,
}

/// What a caller needs of a topic to choose a partition.
struct Topic {
    partitions: NonZeroU32,
    available: Vec<PartitionIndex>,
}

impl Producer {
    /// Starts the thread. `on_delivery` is called on it for every batch, in the order they end.
    pub fn start(config: ProducerConfig, on_delivery: impl FnMut(Delivery) + Send + 'static) -> Result<Self> {
        let wake = Arc::new(
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
                .map_err(|error| ClientError::Io(error.into()))?,
        );
        let mut cluster = Cluster::new(config.cluster.clone())?;
        cluster.network.set_wake(wake.clone());
        let state = State {
            sender: Sender::new(config.clone(), Random::from_os()),
            topics: BTreeMap::new(),
            wanted: BTreeSet::new(),
            sticky: HashMap::new(),
            batch_bytes: config.batch_bytes,
            hurry_once: false,
            flushes: 0,
            closing: false,
            ended: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), wake });
        let block_max = config.block_max;
        let driver = Driver {
            shared: shared.clone(),
            cluster,
            config,
            in_flight: HashMap::new(),
            init_producer: None,
            deliver: Box::new(on_delivery),
            metadata_seen: 0,
        };
        let thread = std::thread::Builder::new().name("producer".into()).spawn(move || driver.run())?;
        Ok(Self { shared, thread: Some(thread), block_max })
    }

    /// Takes a record to be sent. Waits while the topic is not known or the buffer is full, at most
    /// `block_max`; the error is about this record only.
    pub fn send(&self, record: &ProducerRecord) -> Result<()> {
        let mut state = self.shared.lock();
        state.sender.check_size(record)?;
        let deadline = Instant::now() + self.block_max;
        loop {
            if state.closing || state.ended {
                return Err(ClientError::Closed);
            }
            match state.topics.get(&record.topic) {
                Some(Err(code)) if !code.is_retriable() => {
                    return Err(ClientError::broker(format!("topic {}", record.topic), *code, None));
                }
                Some(Ok(_)) if state.sender.has_room(record) => break,
                Some(Ok(_)) => state.hurry_once = true,
                _ => {
                    state.wanted.insert(record.topic.clone());
                }
            }
            self.shared.wake();
            state = self.wait(state, deadline, || format!("room or metadata for topic {}", record.topic))?;
        }
        let partition = state.choose(record)?;
        let was_empty = state.sender.is_empty();
        let closed = state.sender.append(TopicPartition::new(record.topic.clone(), partition), record, now());
        if record.partition.is_none() && record.key.is_none() {
            let bytes = super::batch::size_bound(record);
            if let Some(sticky) = state.sticky.get_mut(&record.topic) {
                sticky.appended(bytes, closed);
            }
        }
        drop(state);
        if closed || was_empty {
            self.shared.wake();
        }
        Ok(())
    }

    /// Sends everything now and waits until it is delivered or given up.
    pub fn flush(&self) -> Result<()> {
        let mut state = self.shared.lock();
        let last = state.sender.last_batch();
        state.flushes += 1;
        self.shared.wake();
        while state.sender.has_older_than(last) && !state.ended {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.flushes -= 1;
        if state.ended { Err(ClientError::Closed) } else { Ok(()) }
    }

    /// Flushes and ends the thread.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.lock().closing = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by it.
            let _ = thread.join();
        }
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        deadline: Instant,
        what: impl Fn() -> String,
    ) -> Result<MutexGuard<'a, State>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ClientError::TimedOut { what: what(), after: self.block_max });
        }
        let waited = self.shared.changed.wait_timeout(state, left);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // Fails only when 2^64 wake-ups are unread.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl State {
    fn choose(&mut self, record: &ProducerRecord) -> Result<PartitionIndex> {
        let Some(Ok(topic)) = self.topics.get(&record.topic) else { return Err(ClientError::Closed) };
        match (record.partition, &record.key) {
            (Some(index), _) if (0..topic.partitions.get() as i32).contains(&index.0) => Ok(index),
            (Some(index), _) => {
                let what = format!("partition {index} of topic {}", record.topic);
                Err(ClientError::broker(what, ErrorCode::UnknownTopicOrPartition, None))
            }
            (None, Some(key)) => Ok(partition_of_key(key, topic.partitions)),
            (None, None) => {
                let batch_bytes = self.batch_bytes;
                let sticky = self
                    .sticky
                    .entry(record.topic.clone())
                    .or_insert_with(|| UniformSticky::new(batch_bytes, Random::from_os()));
                Ok(sticky.next(&topic.available, topic.partitions))
            }
        }
    }
}

struct Driver {
    shared: Arc<Shared>,
    cluster: Cluster,
    config: ProducerConfig,
    in_flight: HashMap<Token, (BrokerId, Vec<(TopicPartition, BatchId)>)>,
    init_producer: Option<Token>,
    deliver: Box<dyn FnMut(Delivery) + Send>,
    metadata_seen: u64,
}

impl Driver {
    fn run(mut self) {
        // However this thread ends, callers must not wait for it forever.
        struct Ended(Arc<Shared>);
        impl Drop for Ended {
            fn drop(&mut self) {
                self.0.lock().ended = true;
                self.0.changed.notify_all();
            }
        }
        let _ended = Ended(self.shared.clone());
        loop {
            let (wait, done) = self.turn();
            if done {
                return;
            }
            match self.cluster.poll(wait.min(WAIT_MAX)) {
                Ok(events) => {
                    for event in events {
                        self.take(event);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "the producer cannot poll");
                    return;
                }
            }
        }
    }

    /// Sends what can be sent. Returns how long nothing is to be done, and whether all is over.
    fn turn(&mut self) -> (Duration, bool) {
        self.show_topics();
        let time = monotonic();
        let shared = self.shared.clone();
        let mut state = shared.lock();
        for topic in std::mem::take(&mut state.wanted) {
            self.cluster.metadata.want(&topic);
        }
        let hurry = state.closing || state.flushes > 0;
        let short_of_memory = std::mem::take(&mut state.hurry_once);
        state.sender.set_hurry(hurry || short_of_memory);
        let mut deliveries = state.sender.expire(time);
        let cluster = &mut self.cluster;
        let (mut leaderless, mut unready) = (false, false);
        let requests = state.sender.drain(time, |partition| {
            let leader = cluster.metadata.leader(partition).map(|leader| leader.broker);
            leaderless |= leader.is_none();
            let node = NodeId::Broker(leader?);
            let ready = cluster.network.ready(node, time);
            unready |= !ready;
            leader.filter(|_| ready && cluster.network.is_written(node))
        });
        let wants_producer = state.sender.wants_producer();
        let mut wait = state.sender.due_in(time);
        if leaderless || unready || wants_producer {
            wait = wait.min(RETRY_WAIT);
        }
        let done = state.closing && state.sender.is_empty();
        drop(state);
        if leaderless {
            self.cluster.metadata.refresh();
        }
        if wants_producer {
            self.ask_producer_id();
        }
        let sent_some = !requests.is_empty();
        for request in requests {
            deliveries.extend(self.send(request));
        }
        self.tell(deliveries);
        // More may be ready for brokers that take another request.
        (if sent_some { Duration::ZERO } else { wait }, done)
    }

    /// Copies what callers need of the metadata, when it has changed.
    fn show_topics(&mut self) {
        let metadata = &self.cluster.metadata;
        if metadata.generation() == self.metadata_seen {
            return;
        }
        self.metadata_seen = metadata.generation();
        let mut state = self.shared.lock();
        for (name, known) in metadata.topics() {
            let shown = match known {
                Err(code) => Err(code),
                Ok(topic) => {
                    let led = topic.partitions.iter().filter(|partition| partition.leader.is_some());
                    let available = led.map(|partition| partition.index).collect();
                    let Some(partitions) = NonZeroU32::new(topic.partitions.len() as u32) else { continue };
                    Ok(Topic { partitions, available })
                }
            };
            state.topics.insert(name.clone(), shown);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    fn ask_producer_id(&mut self) {
        if self.init_producer.is_some() {
            return;
        }
        let time = monotonic();
        let brokers: Vec<BrokerId> = self.cluster.metadata.brokers().keys().copied().collect();
        let ready =
            brokers.into_iter().map(NodeId::Broker).find(|&node| self.cluster.network.ready(node, time));
        let Some(node) = ready else { return };
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(i32::MAX)
            .with_producer_id((-1).into())
            .with_producer_epoch(-1);
        let network = &mut self.cluster.network;
        let sent = network
            .version::<InitProducerIdRequest>(node)
            .and_then(|version| network.send(node, version, &request, time));
        match sent {
            Ok(token) => self.init_producer = Some(token),
            Err(error) => tracing::warn!(%error, "no producer id"),
        }
    }

    /// Sends one request. With acks=0, and when it cannot be sent, its batches end here.
    fn send(&mut self, request: Request) -> Vec<Delivery> {
        let node = NodeId::Broker(request.broker);
        let ids: Vec<(TopicPartition, BatchId)> =
            request.batches.iter().map(|(name, id, _)| (name.clone(), *id)).collect();
        let timeout = self.config.cluster.network.request_timeout;
        let sent = self.cluster.network.version::<ProduceRequest>(node).and_then(|version| {
            let mut body =
                produce_request(&request.batches, version, |topic| self.cluster.metadata.topic_id(topic));
            body.acks = self.config.acks.code();
            body.timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
            if self.config.acks == Acks::None {
                self.cluster.network.send_unanswered(node, version, &body).map(|()| None)
            } else {
                self.cluster.network.send(node, version, &body, monotonic()).map(Some)
            }
        });
        match sent {
            Ok(Some(token)) => {
                self.in_flight.insert(token, (request.broker, ids));
                Vec::new()
            }
            Ok(None) => self.end_request(request.broker, ids, |_| Ok(None)),
            Err(error) => {
                let text = error.to_string();
                let retriable = error.is_retriable();
                self.end_request(request.broker, ids, |_| {
                    Err(if retriable {
                        lost(&text)
                    } else {
                        ClientError::Encode { what: "Produce".into(), reason: text.clone() }
                    })
                })
            }
        }
    }

    fn take(&mut self, event: Event) {
        let token = match &event {
            Event::Answer { token, .. } | Event::Lost(Lost { token, .. }) => *token,
        };
        if Some(token) == self.init_producer {
            self.init_producer = None;
            return self.take_producer_id(event);
        }
        let Some((broker, ids)) = self.in_flight.remove(&token) else { return };
        let deliveries = match event {
            Event::Lost(Lost { address, reason, .. }) => self.end_request(broker, ids, |_| {
                Err(ClientError::Lost { address: address.clone(), reason: reason.clone() })
            }),
            Event::Answer { version, body, .. } => match decode::<ProduceRequest>(version, body) {
                Ok(response) => {
                    let outcomes = self.outcomes(&response);
                    self.end_request(broker, ids, |name| outcome(&outcomes, name))
                }
                Err(error) => {
                    let text = error.to_string();
                    self.cluster.network.close(NodeId::Broker(broker), &text);
                    self.end_request(broker, ids, |_| Err(lost(&text)))
                }
            },
        };
        self.tell(deliveries);
    }

    fn take_producer_id(&mut self, event: Event) {
        let Event::Answer { version, body, .. } = event else { return };
        match decode::<InitProducerIdRequest>(version, body) {
            Ok(response) => match ErrorCode::try_from_code(response.error_code) {
                None => {
                    let id = ProducerId(response.producer_id.0);
                    self.shared.lock().sender.set_producer(id, ProducerEpoch(response.producer_epoch));
                }
                Some(code) => tracing::warn!("no producer id: {}", crate::client::code_name(code)),
            },
            Err(error) => tracing::warn!(%error, "no producer id"),
        }
    }

    fn outcomes(
        &self,
        response: &ProduceResponse,
    ) -> HashMap<TopicPartition, Result<Offset, (ErrorCode, String)>> {
        let mut outcomes = HashMap::new();
        for topic in &response.responses {
            let name = match TopicId(topic.topic_id) {
                TopicId::ZERO => TopicName::new(&topic.name.0),
                id => match self.cluster.metadata.topic_name(id) {
                    Some(name) => name.clone(),
                    None => continue,
                },
            };
            for partition in &topic.partition_responses {
                let outcome = match ErrorCode::try_from_code(partition.error_code) {
                    None => Ok(Offset(partition.base_offset)),
                    Some(code) => Err((code, produce_error_text(partition))),
                };
                outcomes.insert(TopicPartition::new(name.clone(), PartitionIndex(partition.index)), outcome);
            }
        }
        outcomes
    }

    /// Ends the batches of a request by what `outcome` says of each partition.
    fn end_request(
        &mut self,
        broker: BrokerId,
        ids: Vec<(TopicPartition, BatchId)>,
        outcome: impl Fn(&TopicPartition) -> Result<Option<Offset>>,
    ) -> Vec<Delivery> {
        let time = monotonic();
        let mut state = self.shared.lock();
        state.sender.request_done(broker);
        let mut deliveries = Vec::new();
        let mut again = false;
        for (name, id) in ids {
            let outcome = outcome(&name);
            if let Err(error) = &outcome {
                tracing::debug!(%error, partition = %name, "a batch was not written");
            }
            match state.sender.answered(&name, id, outcome, time) {
                Some(delivery) => deliveries.push(delivery),
                None => again = true,
            }
        }
        drop(state);
        if again {
            self.cluster.metadata.refresh();
        }
        deliveries
    }

    fn tell(&mut self, deliveries: Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }
        for delivery in deliveries {
            (self.deliver)(delivery);
        }
        self.shared.changed.notify_all();
    }
}

fn produce_request(
    batches: &[(TopicPartition, BatchId, Bytes)],
    version: i16,
    topic_id: impl Fn(&TopicName) -> TopicId,
) -> ProduceRequest {
    let mut topics: BTreeMap<&TopicName, Vec<PartitionProduceData>> = BTreeMap::new();
    for (name, _, bytes) in batches {
        let data =
            PartitionProduceData::default().with_index(name.partition.0).with_records(Some(bytes.clone()));
        topics.entry(&name.topic).or_default().push(data);
    }
    let topic = |(name, partitions): (&TopicName, Vec<PartitionProduceData>)| {
        let topic = TopicProduceData::default().with_partition_data(partitions);
        match version {
            ..=12 => topic.with_name(StrBytes::from_string(name.to_string()).into()),
            _ => topic.with_topic_id(topic_id(name).0),
        }
    };
    ProduceRequest::default().with_topic_data(topics.into_iter().map(topic).collect())
}

fn outcome(
    outcomes: &HashMap<TopicPartition, Result<Offset, (ErrorCode, String)>>,
    name: &TopicPartition,
) -> Result<Option<Offset>> {
    match outcomes.get(name) {
        Some(Ok(offset)) => Ok(Some(*offset).filter(|offset| offset.0 >= 0)),
        Some(Err((code, text))) => {
            let message = Some(text.as_str()).filter(|text| !text.is_empty());
            Err(ClientError::broker(format!("produce to {name}"), *code, message))
        }
        None => Err(lost("the answer leaves the partition out")),
    }
}

fn produce_error_text(
    partition: &kafka_protocol::messages::produce_response::PartitionProduceResponse,
) -> String {
    let record = partition.record_errors.iter().find_map(|error| error.batch_index_error_message.as_ref());
    partition.error_message.as_ref().or(record).map(|text| text.to_string()).unwrap_or_default()
}

fn lost(reason: &str) -> ClientError {
    ClientError::Lost { address: "the broker".into(), reason: reason.to_owned() }
}
