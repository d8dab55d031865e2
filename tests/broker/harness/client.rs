//! librdkafka as a person would use it: create topics, produce, consume.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::{Broker, PATIENCE, eventually};

pub struct Client {
    bootstrap: String,
    runtime: tokio::runtime::Runtime,
}

/// A record to send.
#[derive(Clone, Debug, Default)]
pub struct Send {
    pub partition: Option<i32>,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub timestamp: Option<i64>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// A record that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub timestamp: Option<i64>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Client {
    pub fn of(broker: &Broker) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        Self { bootstrap: broker.bootstrap().to_string(), runtime }
    }

    /// Of a cluster, which is reached by any of these addresses.
    pub fn of_all<'a>(addresses: impl Iterator<Item = &'a str>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        Self { bootstrap: addresses.collect::<Vec<_>>().join(","), runtime }
    }

    pub fn config(&self, more: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap).set("socket.timeout.ms", "20000");
        // Ten seconds otherwise: brokers that are killed come back sooner.
        config.set("reconnect.backoff.max.ms", "1000");
        for (name, value) in more {
            config.set(*name, *value);
        }
        config
    }

    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime
            .block_on(async { tokio::time::timeout(2 * PATIENCE, future).await.expect("an answer in time") })
    }

    pub fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.config(&[]).create().expect("an admin client")
    }

    /// Creates the topic and waits until its partitions have leaders.
    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let result = self.try_create_topic(name, partitions, settings);
        assert_eq!(result, Ok(()), "creating {name}");
        self.await_partitions(name, partitions);
    }

    pub fn try_create_topic(
        &self,
        name: &str,
        partitions: i32,
        settings: &[(&str, &str)],
    ) -> Result<(), RDKafkaErrorCode> {
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let topic = settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value));
        let results =
            self.wait(self.admin().create_topics([&topic], &options())).expect("the request was sent");
        results.into_iter().next().expect("one result").map(drop).map_err(|(_, code)| code)
    }

    pub fn delete_topic(&self, name: &str) -> Result<(), RDKafkaErrorCode> {
        let results =
            self.wait(self.admin().delete_topics(&[name], &options())).expect("the request was sent");
        results.into_iter().next().expect("one result").map(drop).map_err(|(_, code)| code)
    }

    #[track_caller]
    pub fn await_partitions(&self, name: &str, partitions: i32) {
        let admin = self.admin();
        eventually(&format!("{name} has {partitions} partitions with leaders"), || {
            let metadata = admin.inner().fetch_metadata(Some(name), PATIENCE).ok()?;
            let topic = metadata.topics().iter().find(|topic| topic.name() == name)?;
            let led = topic.partitions().iter().filter(|partition| partition.leader() >= 0).count();
            (topic.error().is_none() && led == partitions as usize).then_some(())
        });
        // Kafka's metadata runs ahead of the broker's own partitions, kuring's must not.
        for partition in (0..partitions).filter(|_| Broker::is_kafka()) {
            eventually("the leader leads", || self.try_offsets(name, partition));
        }
    }

    /// Deletes what is below `offset`.
    #[track_caller]
    pub fn delete_records(&self, topic: &str, partition: i32, offset: i64) {
        let mut below = TopicPartitionList::new();
        below.add_partition_offset(topic, partition, Offset::Offset(offset)).expect("a valid offset");
        let results =
            self.wait(self.admin().delete_records(&below, &options())).expect("the request was sent");
        for element in results.elements() {
            element.error().expect("deleted");
        }
    }

    pub fn producer(&self, more: &[(&str, &str)]) -> FutureProducer {
        self.config(more).create().expect("a producer")
    }

    /// Sends all without waiting in between; for each, where it went or why not.
    pub fn try_send(
        &self,
        producer: &FutureProducer,
        topic: &str,
        records: &[Send],
    ) -> Vec<Result<(i32, i64), KafkaError>> {
        let sent: Vec<_> = records.iter().map(|record| send(producer, topic, record)).collect();
        self.wait(async {
            let mut results = Vec::with_capacity(sent.len());
            for delivery in sent {
                results.push(match delivery {
                    Ok(delivery) => match delivery.await.expect("the producer lives") {
                        Ok(delivered) => Ok((delivered.partition, delivered.offset)),
                        Err((error, _)) => Err(error),
                    },
                    Err(error) => Err(error),
                });
            }
            results
        })
    }

    #[track_caller]
    pub fn send(&self, producer: &FutureProducer, topic: &str, records: &[Send]) -> Vec<(i32, i64)> {
        let results = self.try_send(producer, topic, records);
        let failed = results.iter().find(|result| result.is_err());
        assert!(failed.is_none(), "{failed:?}");
        results.into_iter().flatten().collect()
    }

    /// Reads `count` records of these partitions from their beginning, in the order of arrival.
    #[track_caller]
    pub fn read(&self, topic: &str, partitions: &[i32], count: usize) -> Vec<Got> {
        self.read_from(topic, partitions, Offset::Beginning, count)
    }

    #[track_caller]
    pub fn read_from(&self, topic: &str, partitions: &[i32], from: Offset, count: usize) -> Vec<Got> {
        let consumer = self.consumer(&[]);
        let mut assignment = TopicPartitionList::new();
        for partition in partitions {
            assignment.add_partition_offset(topic, *partition, from).expect("a valid offset");
        }
        consumer.assign(&assignment).expect("assign");
        poll(&consumer, count)
    }

    pub fn consumer(&self, more: &[(&str, &str)]) -> BaseConsumer {
        let mut config = self.config(&[
            ("group.id", "unused"),
            ("enable.auto.commit", "false"),
            ("auto.offset.reset", "error"),
            ("fetch.wait.max.ms", "100"),
            ("check.crcs", "true"),
        ]);
        for (name, value) in more {
            config.set(*name, *value);
        }
        config.create().expect("a consumer")
    }

    /// The first and the next offset of a partition.
    pub fn offsets(&self, topic: &str, partition: i32) -> (i64, i64) {
        if Broker::is_kafka() {
            // After a start Kafka serves before it leads.
            return eventually("the leader leads", || self.try_offsets(topic, partition));
        }
        self.consumer(&[]).fetch_watermarks(topic, partition, PATIENCE).expect("offsets")
    }

    /// The same of the first `partitions`, by one consumer: to make one takes longer than to ask.
    pub fn all_offsets(&self, topic: &str, partitions: i32) -> Vec<(i64, i64)> {
        if Broker::is_kafka() {
            return (0..partitions).map(|partition| self.offsets(topic, partition)).collect();
        }
        let consumer = self.consumer(&[]);
        let offsets = |partition| consumer.fetch_watermarks(topic, partition, PATIENCE).expect("offsets");
        (0..partitions).map(offsets).collect()
    }

    /// Reads `count` records of the first `partitions` from their beginning, by one consumer; those of each partition
    /// in its order.
    #[track_caller]
    pub fn read_each(&self, topic: &str, partitions: i32, count: usize) -> Vec<Vec<Got>> {
        let mut each: Vec<Vec<Got>> = (0..partitions).map(|_| Vec::new()).collect();
        for got in self.read(topic, &(0..partitions).collect::<Vec<_>>(), count) {
            each[got.partition as usize].push(got);
        }
        each
    }

    /// `None` where nobody says that it leads.
    pub fn try_offsets(&self, topic: &str, partition: i32) -> Option<(i64, i64)> {
        self.consumer(&[]).fetch_watermarks(topic, partition, PATIENCE).ok()
    }
}

impl Send {
    pub fn value(value: impl Into<Vec<u8>>) -> Self {
        Self { value: Some(value.into()), ..Self::default() }
    }

    pub fn to(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub fn at(mut self, timestamp: i64) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    pub fn header(mut self, name: &str, value: Option<&[u8]>) -> Self {
        self.headers.push((name.to_string(), value.map(<[u8]>::to_vec)));
        self
    }
}

impl Got {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.value.as_deref().unwrap_or_default()).into_owned()
    }
}

/// Polls until `count` records came. Errors that a client mends by itself are waited out.
#[track_caller]
pub fn poll(consumer: &BaseConsumer, count: usize) -> Vec<Got> {
    let start = Instant::now();
    let mut got = Vec::with_capacity(count);
    while got.len() < count {
        assert!(start.elapsed() < 2 * PATIENCE, "only {} of {count} records came", got.len());
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => got.push(Got {
                partition: message.partition(),
                offset: message.offset(),
                key: message.key().map(<[u8]>::to_vec),
                value: message.payload().map(<[u8]>::to_vec),
                timestamp: message.timestamp().to_millis(),
                headers: message.headers().map_or_else(Vec::new, |headers| {
                    headers
                        .iter()
                        .map(|header| (header.key.to_string(), header.value.map(<[u8]>::to_vec)))
                        .collect()
                }),
            }),
            Some(Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown,
            )))
            | None => {}
            Some(Err(error)) => panic!("{error}"),
        }
    }
    got
}

pub fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE))
}

fn send(
    producer: &FutureProducer,
    topic: &str,
    record: &Send,
) -> Result<rdkafka::producer::DeliveryFuture, KafkaError> {
    let mut out = FutureRecord::<[u8], [u8]>::to(topic);
    out.partition = record.partition;
    out.key = record.key.as_deref();
    out.payload = record.value.as_deref();
    out.timestamp = record.timestamp;
    if !record.headers.is_empty() {
        let headers = record.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: value.as_deref() })
        });
        out = out.headers(headers);
    }
    producer.send_result(out).map_err(|(error, _)| error)
}
