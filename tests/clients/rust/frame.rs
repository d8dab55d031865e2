//! What the scenarios share: their line of output, clients, and waiting. A scenario fails by a panic.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Message as _, OwnedMessage};
use rdkafka::producer::FutureProducer;
use rdkafka::producer::future_producer::{Delivery, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// How long anything may take that should take milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A record to send.
#[derive(Clone, Default)]
pub struct Send {
    pub partition: i32,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub timestamp: Option<i64>,
    pub headers: Option<rdkafka::message::OwnedHeaders>,
}

pub fn value(text: impl ToString) -> Send {
    Send { value: Some(text.to_string().into_bytes()), ..Send::default() }
}

pub struct Frame {
    bootstrap: String,
    runtime: tokio::runtime::Runtime,
    pub admin: AdminClient<DefaultClientContext>,
    failed: bool,
}

impl Frame {
    pub fn new(bootstrap: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let config = Self::config_of(bootstrap, &[]);
        let admin = config.create().expect("an administrator");
        Self { bootstrap: bootstrap.to_owned(), runtime, admin, failed: false }
    }

    pub fn scenario(&mut self, name: &str, body: impl FnOnce(&Self)) {
        if std::env::var("KURING_SCENARIO").is_ok_and(|only| only != name) {
            return;
        }
        match std::panic::catch_unwind(AssertUnwindSafe(|| body(self))) {
            Ok(()) => println!("ok {name}"),
            Err(payload) => {
                self.failed = true;
                let text = payload.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
                println!("FAILED {name}: {}", text.replace('\n', " "));
            }
        }
    }

    pub fn exit(self) -> ! {
        std::process::exit(i32::from(self.failed))
    }

    fn config_of(bootstrap: &str, more: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap);
        for (name, value) in more {
            config.set(*name, *value);
        }
        config
    }

    pub fn config(&self, more: &[(&str, &str)]) -> ClientConfig {
        Self::config_of(&self.bootstrap, more)
    }

    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime
            .block_on(async { tokio::time::timeout(2 * PATIENCE, future).await.expect("an answer in time") })
    }

    pub fn try_create(
        &self,
        name: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> Result<String, RDKafkaErrorCode> {
        let name = format!("rdkafka-{name}");
        let mut topic = NewTopic::new(&name, partitions, TopicReplication::Fixed(-1));
        for (key, value) in configs {
            topic = topic.set(key, value);
        }
        let answer = self.wait(self.admin.create_topics([&topic], &AdminOptions::new())).expect("an answer");
        answer.into_iter().next().expect("one topic").map_err(|(_, code)| code)
    }

    /// librdkafka takes metadata from the broker only now and then: a new topic may be unknown to it for a while.
    pub fn create(&self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> String {
        let topic = self.try_create(name, partitions, configs).expect("created");
        eventually("the topic is known", || self.partitions(&topic) == partitions as usize);
        topic
    }

    pub fn partitions(&self, topic: &str) -> usize {
        let metadata = self.admin.inner().fetch_metadata(Some(topic), PATIENCE).expect("metadata");
        metadata
            .topics()
            .iter()
            .find(|found| found.name() == topic)
            .map_or(0, |found| found.partitions().len())
    }

    pub fn producer(&self, more: &[(&str, &str)]) -> FutureProducer {
        self.config(more).create().expect("a producer")
    }

    pub fn try_send(
        &self,
        topic: &str,
        records: &[Send],
        more: &[(&str, &str)],
    ) -> Vec<Result<Delivery, (KafkaError, OwnedMessage)>> {
        let producer = self.producer(more);
        let sent: Vec<_> = records.iter().map(|record| put(&producer, topic, record)).collect();
        self.wait(async {
            let mut done = Vec::new();
            for delivery in sent {
                done.push(delivery.await.expect("the producer lives"));
            }
            done
        })
    }

    pub fn send(&self, topic: &str, records: &[Send], more: &[(&str, &str)]) -> Vec<Delivery> {
        let done = self.try_send(topic, records, more);
        done.into_iter().map(|delivery| delivery.map_err(|(error, _)| error).expect("delivered")).collect()
    }

    pub fn consumer(&self, group: &str, more: &[(&str, &str)]) -> BaseConsumer {
        let group = format!("rdkafka-{group}");
        let mut config = self.config(&[
            ("group.id", &group),
            ("enable.auto.commit", "false"),
            ("auto.offset.reset", "earliest"),
        ]);
        for (name, value) in more {
            config.set(*name, *value);
        }
        config.create().expect("a consumer")
    }

    /// A member of a classic group.
    pub fn member(&self, group: &str, topic: &str, more: &[(&str, &str)]) -> BaseConsumer {
        let consumer = self.consumer(group, &[&[("heartbeat.interval.ms", "200")], more].concat());
        consumer.subscribe(&[topic]).expect("subscribes");
        consumer
    }

    /// All of partition 0, from the start.
    pub fn stored(&self, topic: &str, count: usize, more: &[(&str, &str)]) -> Vec<OwnedMessage> {
        let consumer = self.consumer("unused", more);
        consumer.assign(&at(topic, &[(0, Offset::Beginning)])).expect("assigns");
        poll(&consumer, count)
    }
}

pub fn put(producer: &FutureProducer, topic: &str, record: &Send) -> rdkafka::producer::DeliveryFuture {
    let mut next = FutureRecord::<[u8], [u8]>::to(topic).partition(record.partition);
    next.key = record.key.as_deref();
    next.payload = record.value.as_deref();
    next.timestamp = record.timestamp;
    next.headers = record.headers.clone();
    producer.send_result(next).map_err(|(error, _)| error).expect("queued")
}

pub fn at(topic: &str, offsets: &[(i32, Offset)]) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in offsets {
        list.add_partition_offset(topic, *partition, *offset).expect("a valid offset");
    }
    list
}

pub fn eventually(what: &str, mut probe: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !probe() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn poll(consumer: &BaseConsumer, count: usize) -> Vec<OwnedMessage> {
    let mut got = Vec::new();
    let end = Instant::now() + PATIENCE;
    while got.len() < count {
        assert!(Instant::now() < end, "only {} of {count} records came", got.len());
        if let Some(message) = consumer.poll(Duration::from_millis(100)) {
            got.push(message.expect("a record").detach());
        }
    }
    got
}

pub fn values(messages: &[OwnedMessage]) -> Vec<String> {
    let text =
        |message: &OwnedMessage| String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
    messages.iter().map(text).collect()
}

pub fn held(consumer: &BaseConsumer) -> Vec<i32> {
    let assignment = consumer.assignment().expect("an assignment");
    assignment.elements().iter().map(|element| element.partition()).collect()
}

/// Polls until the members hold so many partitions each.
pub fn share(wanted: &[usize], members: &[&BaseConsumer]) {
    eventually(&format!("shares {wanted:?}"), || {
        for member in members {
            drop(member.poll(Duration::from_millis(50)));
        }
        members.iter().map(|member| held(member).len()).eq(wanted.iter().copied())
    });
}

/// This program once more, as a member of a group that can be killed.
pub struct Member(Child);

impl Member {
    pub fn start(group: &str, topic: &str) -> Self {
        let bootstrap = std::env::args().nth(1).expect("the bootstrap address");
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args([&bootstrap, "member", group, topic])
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        Self(child)
    }

    pub fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("waited for");
    }
}

/// Where the run tells what it does to the broker: see `outage` there.
pub fn control(file: &str) -> PathBuf {
    PathBuf::from(std::env::var_os("KURING_OUTAGE").expect("KURING_OUTAGE")).join(file)
}

/// The values by offset must be 0, 1, 2….
pub fn check_order(sent: usize, by_offset: &BTreeMap<i64, String>, what: &str) {
    assert_eq!(by_offset.len(), sent, "records {what}");
    for (position, (offset, value)) in by_offset.iter().enumerate() {
        assert_eq!((*offset, value), (position as i64, &position.to_string()), "{what}");
    }
}
