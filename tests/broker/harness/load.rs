//! A load that goes on while brokers come and go: an idempotent producer that waits for all in sync, and a consumer behind
//! it. Nothing of it may be lost or twice, and each partition keeps its order.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::util::Timeout;
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::client::Client;
use super::{PATIENCE, eventually};

/// From a record to the next of the same partition.
const PAUSE: Duration = Duration::from_millis(10);

/// Of both: who stands still is given up after a while. Leaders are looked for, too, where nobody says that one has gone.
const SETTINGS: [(&str, &str); 2] =
    [("socket.timeout.ms", "5000"), ("topic.metadata.refresh.interval.ms", "1000")];

/// Numbers from 0 on, the same in each partition.
pub struct Load {
    topic: String,
    partitions: i32,
    shared: Arc<Shared>,
    sending: Option<JoinHandle<u32>>,
    reading: Option<JoinHandle<()>>,
}

struct Shared {
    must_end: AtomicBool,
    sent: AtomicU32,
    /// By partition, when each record was acknowledged.
    acknowledged: Mutex<Vec<Vec<Instant>>>,
    failed: Mutex<Option<String>>,
    /// How many there are to be read.
    wanted: OnceLock<u32>,
}

struct Ledger(Arc<Shared>);

impl ClientContext for Ledger {}

impl ProducerContext for Ledger {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(message) => {
                let mut all = self.0.acknowledged.lock().expect("nobody panics with it");
                all[message.partition() as usize].push(Instant::now());
            }
            Err((error, message)) => {
                let text = format!("partition {}: {error}", message.partition());
                self.0.failed.lock().expect("nobody panics with it").get_or_insert(text);
            }
        }
    }
}

impl Load {
    pub fn start(client: &Client, topic: &str, partitions: i32) -> Self {
        let shared = Arc::new(Shared {
            must_end: AtomicBool::new(false),
            sent: AtomicU32::new(0),
            acknowledged: Mutex::new(vec![Vec::new(); partitions as usize]),
            failed: Mutex::new(None),
            wanted: OnceLock::new(),
        });
        let settings = [("enable.idempotence", "true"), ("acks", "all"), ("message.timeout.ms", "120000")];
        let config = client.config(&[&SETTINGS[..], &settings].concat());
        let producer: ThreadedProducer<Ledger> =
            config.create_with_context(Ledger(shared.clone())).expect("a producer");
        let consumer = client.consumer(&SETTINGS);
        let mut all = TopicPartitionList::new();
        for partition in 0..partitions {
            all.add_partition_offset(topic, partition, Offset::Beginning).expect("a valid offset");
        }
        consumer.assign(&all).expect("assign");
        let sending = {
            let (shared, topic) = (shared.clone(), topic.to_owned());
            std::thread::spawn(move || send(&producer, &topic, partitions, &shared))
        };
        let reading = {
            let shared = shared.clone();
            std::thread::spawn(move || read(&consumer, partitions, &shared))
        };
        let (sending, reading) = (Some(sending), Some(reading));
        Self { topic: topic.to_owned(), partitions, shared, sending, reading }
    }

    /// Waits until all that was sent before is acknowledged, and something sent later in each partition.
    #[track_caller]
    pub fn await_progress(&self, when: &str) {
        let before = self.shared.sent.load(Ordering::Relaxed) as usize;
        eventually(&format!("records are taken in every partition {when}"), || {
            self.check();
            let all = self.shared.acknowledged.lock().expect("nobody panics with it");
            all.iter().all(|times| times.len() > before).then_some(())
        });
    }

    /// Tells the longest time without an acknowledgement since then, by partition.
    pub fn tell(&self, what: &str, since: Instant) {
        let all = self.shared.acknowledged.lock().expect("nobody panics with it");
        let longest: Vec<Duration> = all.iter().map(|times| longest_gap(times, since)).collect();
        println!("{what}: the partitions took nothing for {longest:?}");
    }

    /// Ends it. All that was sent is there, once, in its order, and nothing else: to the consumer that was there
    /// all the time and to one that comes now.
    #[track_caller]
    pub fn finish(mut self, client: &Client) {
        self.shared.must_end.store(true, Ordering::Relaxed);
        let count = self.sending.take().map(|sending| sending.join().expect("all was acknowledged"));
        let count = count.expect("it has not ended yet");
        self.check();
        self.shared.wanted.set(count).expect("nobody has set it");
        self.reading
            .take()
            .map(|reading| reading.join().expect("all was read"))
            .expect("it has not ended yet");
        println!("{count} records in each of {} partitions", self.partitions);
        let expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        let total = count as usize * self.partitions as usize;
        for (partition, found) in client.read_each(&self.topic, self.partitions, total).iter().enumerate() {
            let found: Vec<String> = found.iter().map(|got| got.text()).collect();
            assert!(found == expected, "partition {partition}: {count} records, in order: {found:?}");
        }
        let offsets =
            |partition| eventually("its leader tells it", || client.try_offsets(&self.topic, partition));
        let ends: Vec<(i64, i64)> = (0..self.partitions).map(offsets).collect();
        assert!(ends.iter().all(|offsets| *offsets == (0, i64::from(count))), "{count}: {ends:?}");
    }

    #[track_caller]
    fn check(&self) {
        let failed = self.shared.failed.lock().expect("nobody panics with it").clone();
        assert_eq!(failed, None, "nothing may be refused for good");
        let has_ended = self.reading.as_ref().is_some_and(JoinHandle::is_finished);
        assert!(!has_ended, "the consumer has given up");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.must_end.store(true, Ordering::Relaxed);
        // Of a test that has failed: nothing more is waited for.
        let _ = self.shared.wanted.set(0);
    }
}

/// How many records there are in each partition in the end, all of them acknowledged or refused.
fn send(producer: &ThreadedProducer<Ledger>, topic: &str, partitions: i32, shared: &Shared) -> u32 {
    let mut number = 0;
    while !shared.must_end.load(Ordering::Relaxed) {
        let value = number.to_string();
        for partition in 0..partitions {
            let record = BaseRecord::<(), str>::to(topic).partition(partition).payload(&value);
            producer.send(record).map_err(|(error, _)| error).expect("the queue is far from full");
        }
        number += 1;
        shared.sent.store(number, Ordering::Relaxed);
        std::thread::sleep(PAUSE);
    }
    producer.flush(Timeout::After(2 * PATIENCE)).expect("all is acknowledged");
    number
}

fn read(consumer: &BaseConsumer, partitions: i32, shared: &Shared) {
    let mut next = vec![0_u32; partitions as usize];
    let mut last_error = None;
    let mut wanted_since = None;
    loop {
        if let Some(wanted) = shared.wanted.get() {
            if next.iter().all(|next| next >= wanted) {
                return;
            }
            let since = *wanted_since.get_or_insert_with(Instant::now);
            assert!(since.elapsed() < 2 * PATIENCE, "{next:?} of {wanted} were read, {last_error:?}");
        }
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                let partition = message.partition();
                let expected = &mut next[partition as usize];
                let found = String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
                let is_next = found == expected.to_string() && message.offset() == i64::from(*expected);
                assert!(is_next, "partition {partition}: {found} at {}, wanted {expected}", message.offset());
                *expected += 1;
            }
            Some(Err(error)) => {
                assert!(!is_for_good(&error), "{error}");
                last_error = Some(error);
            }
            None => {}
        }
    }
}

/// What no client mends by itself.
fn is_for_good(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::AutoOffsetReset
                | RDKafkaErrorCode::OffsetOutOfRange
                | RDKafkaErrorCode::LogTruncation
                | RDKafkaErrorCode::BadMessage
                | RDKafkaErrorCode::InvalidMessage
        )
    )
}

/// Between two neighbours, the later of them after `since`.
fn longest_gap(times: &[Instant], since: Instant) -> Duration {
    let before = times.iter().rev().find(|time| **time <= since).copied().unwrap_or(since);
    let later = times.iter().copied().filter(|time| *time > since);
    let mut last = before;
    let gaps = later.map(|time| time.duration_since(std::mem::replace(&mut last, time)));
    gaps.max().unwrap_or_default()
}
