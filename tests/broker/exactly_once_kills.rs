//! Consume, transform, produce, killed again and again: the client, the broker, and the broker between the decision of
//! a transaction and each of its markers. Whatever was read committed in the end holds each input exactly once.
//!
//! A few kills here; `KURING_TXN_KILLS=100 cargo test --test broker exactly_once_kills -- --nocapture` runs as many. A
//! failure prints its seed; `KURING_SEED` draws the same moments again, though not the same timing.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kafka_protocol::messages::{DescribeTransactionsRequest, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use kuring::base::random::Random;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

use crate::exactly_once::{ONE_REPLICA, put, read};
use crate::harness::client::{Client, Send};
use crate::harness::raw::Raw;
use crate::harness::{Broker, PATIENCE, eventually};
use crate::held::{self, hold, release};

/// Set in the process that copies: where the broker is.
const COPIER: &str = "KURING_TEST_COPIER";
pub const PARTITIONS: i32 = 2;
/// Inputs between two kills.
const INPUTS: usize = 20;
/// One partition each: their markers are held back one by one.
static MARKED: [&str; 3] = ["marked-0", "marked-1", "marked-2"];

fn kills() -> usize {
    std::env::var("KURING_TXN_KILLS").map_or(9, |kills| kills.parse().expect("a number of kills"))
}

fn seed() -> u64 {
    match std::env::var("KURING_SEED") {
        Ok(seed) => seed.parse().expect("KURING_SEED is a number"),
        Err(_) => Random::from_os().next_u64() >> 16,
    }
}

/// Not a test of its own: the process that [`Copier::start`] starts, until it is killed.
#[test]
fn copier_of_the_kills() {
    let Ok(bootstrap) = std::env::var(COPIER) else { return };
    loop {
        let Err(error) = copy(&bootstrap);
        println!("copier: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Copies from `in` to `out-a` and `out-b`, some at a time with their offsets in one transaction.
fn copy(bootstrap: &str) -> Result<std::convert::Infallible, KafkaError> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("socket.timeout.ms", "5000");
    config.set("reconnect.backoff.max.ms", "1000");
    let producer: BaseProducer =
        config.clone().set("transactional.id", "copier").set("linger.ms", "1").create()?;
    producer.init_transactions(PATIENCE)?;
    let consumer: BaseConsumer = config
        .set("group.id", "copier")
        // The next process takes the place of the killed one at once.
        .set("group.instance.id", "copier")
        .set("session.timeout.ms", "10000")
        .set("heartbeat.interval.ms", "500")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .create()?;
    consumer.subscribe(&["in"])?;
    let mut random = Random::from_os();
    loop {
        let mut batch = Vec::new();
        let mut next = TopicPartitionList::new();
        let size = 1 + random.below(8) as usize;
        while batch.len() < size {
            let Some(message) = consumer.poll(Duration::from_millis(50)) else { break };
            let message = message?;
            let value = message.payload().expect("every record has a value").to_vec();
            batch.push((message.partition(), String::from_utf8(value).expect("text")));
            let (partition, offset) = (message.partition(), Offset::Offset(message.offset() + 1));
            match next.find_partition("in", partition) {
                Some(mut known) => known.set_offset(offset)?,
                None => next.add_partition_offset("in", partition, offset)?,
            }
        }
        if batch.is_empty() {
            continue;
        }
        producer.begin_transaction()?;
        for (partition, value) in &batch {
            for topic in ["out-a", "out-b"] {
                let record = BaseRecord::<(), str>::to(topic).partition(*partition).payload(value);
                producer.send(record).map_err(|(error, _)| error)?;
            }
        }
        let group = consumer.group_metadata().expect("it is in a group");
        producer.send_offsets_to_transaction(&next, &group, PATIENCE)?;
        if random.below(5) == 0 {
            producer.flush(PATIENCE)?;
            producer.abort_transaction(PATIENCE)?;
            rewind(&consumer)?;
        } else {
            producer.commit_transaction(PATIENCE)?;
        }
    }
}

/// Back to what is committed.
fn rewind(consumer: &BaseConsumer) -> Result<(), KafkaError> {
    for element in consumer.committed(PATIENCE)?.elements() {
        let offset = match element.offset() {
            Offset::Offset(offset) => Offset::Offset(offset),
            _ => Offset::Beginning,
        };
        consumer.seek(element.topic(), element.partition(), offset, PATIENCE)?;
    }
    Ok(())
}

/// A process that copies, until it is dropped.
pub struct Copier(Child);

impl Copier {
    pub fn start(bootstrap: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        let copier = Command::new(program)
            .args(["--exact", "exactly_once_kills::copier_of_the_kills", "--nocapture"])
            .env(COPIER, bootstrap)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program runs");
        Self(copier)
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // It may have ended: then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Run {
    broker: Broker,
    random: Random,
    copier: Option<Copier>,
    inputs: usize,
    /// Values of the transactions that were killed between their markers.
    marked: Vec<String>,
    counts: BTreeMap<&'static str, usize>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let settings: Vec<(&str, &str)> = ONE_REPLICA.into_iter().chain(held::SETTINGS).collect();
        let mut broker = Broker::stopped(2, &settings);
        held::prepare(&broker);
        broker.start_again(2);
        let client = Client::of(&broker);
        for topic in ["in", "out-a", "out-b"] {
            client.create_topic(topic, PARTITIONS, &[]);
        }
        for topic in MARKED {
            client.create_topic(topic, 1, &[]);
        }
        Self {
            broker,
            random: Random::seeded(seed),
            copier: None,
            inputs: 0,
            marked: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    fn feed(&mut self) {
        let client = Client::of(&self.broker);
        let numbers = self.inputs..self.inputs + INPUTS;
        let sends: Vec<Send> = numbers
            .map(|number| Send::value(format!("v{number:05}")).to(number as i32 % PARTITIONS))
            .collect();
        client.send(&client.producer(&[("enable.idempotence", "true")]), "in", &sends);
        self.inputs += INPUTS;
    }

    fn start_copier(&mut self) {
        if self.copier.is_none() {
            self.copier = Some(Copier::start(self.broker.bootstrap()));
        }
    }

    fn stop_copier(&mut self) {
        drop(self.copier.take());
    }

    fn kill(&mut self, number: usize) {
        self.feed();
        self.start_copier();
        std::thread::sleep(Duration::from_micros(self.random.below(900_000)));
        match number % 3 {
            0 => {
                *self.counts.entry("client").or_default() += 1;
                self.stop_copier();
            }
            1 => {
                *self.counts.entry("broker").or_default() += 1;
                self.restart();
            }
            _ => self.kill_between_markers(number / 3 % MARKED.len()),
        }
    }

    fn restart(&mut self) {
        self.broker.kill();
        held::prepare(&self.broker);
        self.broker.start_again(2);
    }

    /// Kills the broker when a transaction is decided and `written` of its three partitions have their marker.
    fn kill_between_markers(&mut self, written: usize) {
        *self.counts.entry(["no marker", "one marker", "two markers"][written]).or_default() += 1;
        let held = &MARKED[written..];
        let value = format!("m{:05}", self.marked.len());
        let mut raw = Raw::connect(&self.broker);
        let client = Client::of(&self.broker);
        let config = client.config(&[
            ("transactional.id", "marked"),
            ("linger.ms", "1"),
            ("socket.timeout.ms", "5000"),
        ]);
        let producer: BaseProducer = config.create().expect("a producer");
        producer.init_transactions(PATIENCE).expect("a producer id");
        producer.begin_transaction().unwrap();
        for topic in MARKED {
            put(&producer, topic, 0, &[&value]);
        }
        producer.flush(PATIENCE).expect("written");
        for topic in held {
            hold(&self.broker, topic);
        }
        producer.commit_transaction(PATIENCE).expect("decided");
        self.marked.push(value);
        let there = |client: &Client, topics: &[&str], count: usize| {
            for topic in topics {
                eventually("committed values", || {
                    (read(client, topic, 1, "read_committed").len() == count).then_some(())
                });
            }
        };
        there(&client, &MARKED[..written], self.marked.len());
        assert_eq!(state(&mut raw, "marked"), "PrepareCommit");
        self.restart();
        let client = Client::of(&self.broker);
        let mut raw = Raw::connect(&self.broker);
        assert_eq!(state(&mut raw, "marked"), "PrepareCommit");
        for topic in held {
            assert_eq!(read(&client, topic, 1, "read_committed").len(), self.marked.len() - 1, "{topic}");
            release(&self.broker, topic);
        }
        there(&client, &MARKED, self.marked.len());
        eventually("CompleteCommit", || (state(&mut raw, "marked") == "CompleteCommit").then_some(()));
    }

    fn check(&mut self) {
        self.start_copier();
        let client = Client::of(&self.broker);
        let inputs: Vec<String> = (0..self.inputs).map(|number| format!("v{number:05}")).collect();
        // Not read before: the end of what is read committed moves as long as the copier is at work.
        let mut before = -1;
        while before < self.inputs as i64 {
            // As long as it goes on there is hope.
            eventually("the copier goes on", || {
                let now = copied(&client);
                (now > before || now == self.inputs as i64).then(|| before = now)
            });
        }
        let outputs = ["out-a", "out-b"].map(|topic| (topic, PARTITIONS, &inputs));
        let marked = MARKED.map(|topic| (topic, 1, &self.marked));
        for (topic, partitions, wanted) in outputs.into_iter().chain(marked) {
            eventually("the markers are everywhere", || {
                let mut values = read(&client, topic, partitions, "read_committed");
                values.sort_unstable();
                (values.len() >= wanted.len()).then(|| assert_eq!(&values, wanted, "{topic}"))
            });
        }
    }
}

/// The inputs that the copier has committed.
pub fn copied(client: &Client) -> i64 {
    let consumer: BaseConsumer = client.config(&[("group.id", "copier")]).create().expect("a consumer");
    let mut asked = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        asked.add_partition("in", partition);
    }
    let Ok(told) = consumer.committed_offsets(asked, PATIENCE) else { return -1 };
    told.elements().iter().map(|element| element.offset().to_raw().unwrap_or(0).max(0)).sum()
}

fn state(raw: &mut Raw, id: &str) -> String {
    let id = TransactionalId(StrBytes::from_string(id.to_owned()));
    let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id]);
    eventually("the coordinator is loaded", || {
        let state = raw.call(0, &request).transaction_states[0].clone();
        (!matches!(state.error_code, 14..=16)).then(|| state.transaction_state.to_string())
    })
}

#[test]
fn each_input_is_copied_once_whatever_is_killed() {
    if Broker::is_kafka() {
        return;
    }
    let seed = seed();
    println!("seed {seed}");
    let mut run = Run::new(seed);
    for number in 0..kills() {
        run.kill(number);
    }
    run.check();
    println!("kills: {:?}; {} inputs", run.counts, run.inputs);
}
