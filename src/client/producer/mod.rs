//! The producer: records in, batches out, each record once and in order.
//!
//! [`Sender`] decides, without IO; [`Producer`] gives it a thread and the network.

mod batch;
mod driver;
mod sender;
#[cfg(test)]
mod sender_tests;

use std::time::Duration;

use bytes::Bytes;

use super::cluster::ClusterConfig;
use super::error::ClientError;
use crate::base::clock::Timestamp;
use crate::base::{Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicName, TopicPartition};
use crate::wire::record::Compression;

pub use batch::BatchId;
pub use driver::Producer;
pub use sender::{Request, Sender};

/// When a write counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    /// When it is sent: no answer comes.
    None,
    /// When the leader has it.
    Leader,
    /// When all in-sync replicas have it.
    All,
}

impl Acks {
    pub fn code(self) -> i16 {
        match self {
            Acks::None => 0,
            Acks::Leader => 1,
            Acks::All => -1,
        }
    }
}

/// Names and defaults follow Kafka's producer.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    pub cluster: ClusterConfig,
    pub acks: Acks,
    /// `batch.size`, counted before compression.
    pub batch_bytes: usize,
    /// `linger.ms`: how long a batch waits for more records.
    pub linger: Duration,
    pub compression: Compression,
    /// `max.in.flight.requests.per.connection`; at most 5 with idempotence, the broker remembers no more.
    pub in_flight_max: usize,
    /// `max.request.size`.
    pub request_bytes_max: usize,
    /// `buffer.memory`: what waits to be sent or answered.
    pub buffer_bytes_max: usize,
    /// `delivery.timeout.ms`: from the record's arrival to success or failure.
    pub delivery_timeout: Duration,
    /// `max.block.ms`: how long `send` waits for memory or metadata.
    pub block_max: Duration,
    /// `enable.idempotence`; has effect with acks=all only.
    pub idempotent: bool,
    /// `retry.backoff.ms` and `retry.backoff.max.ms` of a batch.
    pub retry_backoff: (Duration, Duration),
}

impl ProducerConfig {
    pub fn new(cluster: ClusterConfig) -> Self {
        Self {
            cluster,
            acks: Acks::All,
            batch_bytes: 16 << 10,
            linger: Duration::from_millis(5),
            compression: Compression::NONE,
            in_flight_max: 5,
            request_bytes_max: 1 << 20,
            buffer_bytes_max: 32 << 20,
            delivery_timeout: Duration::from_secs(120),
            block_max: Duration::from_secs(60),
            idempotent: true,
            retry_backoff: (Duration::from_millis(100), Duration::from_secs(1)),
        }
    }

    pub fn is_idempotent(&self) -> bool {
        self.idempotent && self.acks == Acks::All && self.in_flight_max <= 5
    }
}

/// A record to send.
#[derive(Clone, Debug)]
pub struct ProducerRecord {
    pub topic: TopicName,
    /// `None`: the key decides, or the sticky partitioner for records without one.
    pub partition: Option<PartitionIndex>,
    pub key: Option<Bytes>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    pub headers: Vec<(Bytes, Option<Bytes>)>,
    /// `None`: the time of the call.
    pub timestamp: Option<Timestamp>,
}

impl ProducerRecord {
    pub fn new(topic: impl Into<TopicName>, value: Option<Bytes>) -> Self {
        Self { topic: topic.into(), partition: None, key: None, value, headers: Vec::new(), timestamp: None }
    }
}

/// The place of a batch in what one producer wrote to one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sequence {
    pub producer: ProducerId,
    pub epoch: ProducerEpoch,
    /// The number of the first record.
    pub base: i32,
}

/// The end of a batch's way.
#[derive(Debug)]
pub struct Delivery {
    pub partition: TopicPartition,
    pub count: i32,
    /// The first record's offset (`None` with acks=0, and when a retry found the batch already written), or
    /// why the records are lost.
    pub outcome: Result<Option<Offset>, ClientError>,
}
