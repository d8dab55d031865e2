//! Apache Kafka's own metadata log (`__cluster_metadata`, KIP-500): reads its records and tells in ours what kuring has
//! the like of, so that a stopped Kafka node's directories can be taken over.
//!
//! No IO: the batches come in as bytes. A kind of record that is not known is an error unless it says nothing that
//! kuring keeps: the state must not be guessed.

use std::collections::BTreeMap;

use bytes::Bytes;
use uuid::Uuid;

use super::image::{ConfigResource, PartitionImage};
use super::record::Record;
use crate::base::{BrokerId, LeaderEpoch, Offset, PartitionIndex, ProducerId, TopicId, TopicName};
use crate::config::Scope;
use crate::wire::read::{DecodeError, Reader};
use crate::wire::record::{BatchError, BatchView, Batches, ReadError};

/// What one batch may take after decompression: Kafka's writers compress none.
const DECOMPRESSED_BYTES_MAX: usize = 64 << 20;
/// The only frame around a record (`MetadataRecordSerde`).
const FRAME_VERSION: u32 = 1;
/// `PartitionChangeRecord`'s leader when it does not change.
const LEADER_UNCHANGED: i32 = -2;

#[derive(Debug, thiserror::Error)]
pub enum KafkaMetadataError {
    #[error("Kafka's metadata log: {0}")]
    Batch(#[from] BatchError),
    #[error("Kafka's metadata log, offset {offset}: {what}")]
    Record { offset: Offset, what: String },
    #[error("partition {0} has replicas on other brokers: kuring takes over a cluster of one node")]
    OtherReplicas(String),
    #[error("topic {0} lacks a partition")]
    Gap(TopicName),
}

/// What the log says.
#[derive(Default)]
pub struct KafkaMetadata {
    topics: BTreeMap<TopicId, Topic>,
    configs: BTreeMap<ConfigResource, BTreeMap<String, String>>,
    next_producer_id: ProducerId,
    /// The records of a metadata transaction (KIP-868), until it ends.
    transaction: Option<Vec<(Offset, Bytes)>>,
    /// What is not taken over: kinds of records and names of configs, each with how often it came.
    left_out: BTreeMap<String, u64>,
}

struct Topic {
    name: TopicName,
    partitions: BTreeMap<PartitionIndex, PartitionImage>,
}

/// A record's value behind its frame.
struct Entry {
    key: u32,
    version: u32,
    body: Bytes,
}

impl KafkaMetadata {
    /// Applies a snapshot or a segment of the log, from `from` on: what lies before is in a snapshot.
    pub fn apply(&mut self, bytes: &[u8], from: Offset) -> Result<(), KafkaMetadataError> {
        for batch in Batches::new(bytes) {
            let batch = match batch {
                Ok(batch) => batch,
                // A preallocated segment ends in zeros, a crashed one in the middle of a batch.
                Err(BatchError::Length { length: 0 } | BatchError::Incomplete { .. }) => break,
                Err(error) => return Err(error.into()),
            };
            batch.check_crc()?;
            self.batch(&batch, from)?;
        }
        Ok(())
    }

    /// What the log holds that kuring has nothing like, and how often.
    pub fn left_out(&self) -> &BTreeMap<String, u64> {
        &self.left_out
    }

    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// The records that make the same state, for a cluster whose only broker is `node`.
    pub fn into_records(mut self, node: BrokerId) -> Result<Vec<Record>, KafkaMetadataError> {
        let mut records = Vec::new();
        for (id, topic) in std::mem::take(&mut self.topics) {
            records.push(Record::Topic { name: topic.name.clone(), id });
            for (wanted, (index, partition)) in (0..).map(PartitionIndex).zip(topic.partitions) {
                if wanted != index {
                    return Err(KafkaMetadataError::Gap(topic.name));
                }
                if *partition.replicas != [node] {
                    return Err(KafkaMetadataError::OtherReplicas(format!("{}-{index}", topic.name)));
                }
                // A stop leaves no replica in sync, only eligible ones (KIP-966): of one replica that is the one.
                let partition = PartitionImage { isr: partition.replicas.clone(), ..partition };
                records.push(Record::Partition { topic: id, index, partition });
            }
        }
        for (resource, overrides) in self.configs {
            for (name, value) in overrides {
                records.push(Record::Config { resource: resource.clone(), name, value: Some(value) });
            }
        }
        if self.next_producer_id.0 > 0 {
            let (broker, epoch) = (BrokerId(-1), crate::base::BrokerEpoch(-1));
            records.push(Record::ProducerIds { broker, epoch, next: self.next_producer_id });
        }
        Ok(records)
    }

    fn batch(&mut self, batch: &BatchView<'_>, from: Offset) -> Result<(), KafkaMetadataError> {
        let head = batch.head();
        if head.next_offset() <= from {
            return Ok(());
        }
        // Leaders, voters, heads and feet of snapshots: Raft's own business.
        if head.attributes().is_control() {
            return Ok(());
        }
        let offset = head.base_offset();
        let unreadable = |error: ReadError| KafkaMetadataError::Record { offset, what: error.to_string() };
        let mut scratch = Vec::new();
        let records =
            batch.records(&mut scratch, DECOMPRESSED_BYTES_MAX).map_err(|error| unreadable(error.into()))?;
        for record in records {
            let record = record.map_err(|error| unreadable(error.into()))?;
            if record.offset < from {
                continue;
            }
            let value = Bytes::copy_from_slice(record.value.unwrap_or_default());
            self.record(record.offset, value)?;
        }
        Ok(())
    }

    fn record(&mut self, offset: Offset, value: Bytes) -> Result<(), KafkaMetadataError> {
        let at = |error: DecodeError| KafkaMetadataError::Record { offset, what: error.to_string() };
        let entry = Entry::parse(&value).map_err(at)?;
        match (entry.key, &mut self.transaction) {
            // BeginTransactionRecord
            (23, transaction) => *transaction = Some(Vec::new()),
            // EndTransactionRecord
            (24, transaction) => {
                for (offset, value) in transaction.take().unwrap_or_default() {
                    self.record(offset, value)?;
                }
            }
            // AbortTransactionRecord
            (25, transaction) => *transaction = None,
            (_, Some(transaction)) => transaction.push((offset, value)),
            (_, None) => {
                self.entry(&entry).map_err(|what| KafkaMetadataError::Record { offset, what })?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), String> {
        let text = |error: DecodeError| error.to_string();
        let mut reader = Reader::new(&entry.body);
        match entry.key {
            2 => self.topic(&mut reader).map_err(text),
            3 => self.partition(entry.version, &mut reader).map_err(text),
            4 => self.config(&mut reader).map_err(text),
            5 => self.partition_change(&mut reader),
            9 => {
                let id = reader.topic_id().map_err(text)?;
                let topic =
                    self.topics.remove(&id).ok_or_else(|| format!("topic {id} is removed and not there"))?;
                self.configs.remove(&ConfigResource::Topic(topic.name));
                Ok(())
            }
            15 => {
                let skipped = reader.skip(size_of::<i32>() + size_of::<i64>());
                let next = skipped.and_then(|()| reader.i64()).map_err(text)?;
                self.next_producer_id = ProducerId(next).max(self.next_producer_id);
                Ok(())
            }
            // Brokers and controllers register anew; features are what this broker finalizes.
            0 | 1 | 7 | 8 | 12 | 17 | 20 | 21 | 27 | 28 => Ok(()),
            6 | 18 | 19 => self.leave_out("ACLs"),
            10 | 26 => self.leave_out("delegation tokens"),
            11 | 22 => self.leave_out("SCRAM credentials"),
            14 => self.leave_out("quotas"),
            other => Err(format!("a kind of record that is not known: {other}")),
        }
    }

    fn leave_out(&mut self, what: &str) -> Result<(), String> {
        *self.left_out.entry(what.to_owned()).or_default() += 1;
        Ok(())
    }

    fn topic(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let name = TopicName::new(reader.string(true)?);
        let id = reader.topic_id()?;
        self.topics.insert(id, Topic { name, partitions: BTreeMap::new() });
        Ok(())
    }

    fn partition(&mut self, version: u32, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let index = PartitionIndex(reader.i32()?);
        let topic = reader.topic_id()?;
        let (replicas, isr) = (brokers(reader)?, brokers(reader)?);
        let _removing = brokers(reader)?;
        let _adding = brokers(reader)?;
        let leader = reader.i32()?;
        let leader_epoch = LeaderEpoch(reader.i32()?);
        let partition_epoch = reader.i32()?;
        let directories = if version >= 1 { directories(reader)? } else { Box::default() };
        let leader = (leader >= 0).then_some(BrokerId(leader));
        let partition = PartitionImage { replicas, isr, leader, leader_epoch, partition_epoch, directories };
        // A partition of a topic that is not there is an error of the change that follows, if any does.
        if let Some(topic) = self.topics.get_mut(&topic) {
            topic.partitions.insert(index, partition);
        }
        Ok(())
    }

    /// As `PartitionRegistration.merge` does it.
    fn partition_change(&mut self, reader: &mut Reader<'_>) -> Result<(), String> {
        let text = |error: DecodeError| error.to_string();
        let index = PartitionIndex(reader.i32().map_err(text)?);
        let id = reader.topic_id().map_err(text)?;
        let topic = self.topics.get_mut(&id).ok_or_else(|| format!("topic {id} changes and is not there"))?;
        let partition = topic
            .partitions
            .get_mut(&index)
            .ok_or_else(|| format!("{}-{index} changes and is not there", topic.name))?;
        let mut leader = LEADER_UNCHANGED;
        let fields = reader.tagged_fields(|tag, field| {
            match tag {
                0 => partition.isr = brokers(field)?,
                1 => leader = field.i32()?,
                2 => partition.replicas = brokers(field)?,
                8 => partition.directories = directories(field)?,
                _ => {}
            }
            Ok(())
        });
        fields.map_err(text)?;
        if leader != LEADER_UNCHANGED {
            partition.leader = (leader >= 0).then_some(BrokerId(leader));
            partition.leader_epoch = LeaderEpoch(partition.leader_epoch.0 + 1);
        }
        partition.partition_epoch += 1;
        Ok(())
    }

    fn config(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let kind = reader.i8()?;
        let resource_name = reader.string(true)?.to_owned();
        let name = reader.string(true)?.to_owned();
        let value = reader.nullable_string(true)?.map(str::to_owned);
        let (resource, scope) = match (kind, resource_name.parse()) {
            (2, _) => (ConfigResource::Topic(TopicName::new(&resource_name)), Some(Scope::Topic)),
            (4, Ok(id)) => (ConfigResource::Broker(BrokerId(id)), Some(Scope::Broker)),
            (4, Err(_)) => (ConfigResource::BrokerDefault, Some(Scope::Broker)),
            (32, _) => (ConfigResource::Group(resource_name), None),
            (16, _) => (ConfigResource::ClientMetrics(resource_name), None),
            _ => {
                *self.left_out.entry(format!("configs of resource type {kind}")).or_default() += 1;
                return Ok(());
            }
        };
        let overrides = self.configs.entry(resource).or_default();
        match value {
            Some(value) => {
                // What kuring would not take from a client either has no effect here: it is told instead.
                let alone = BTreeMap::from([(name.clone(), value.clone())]);
                let known = scope
                    .is_none_or(|scope| scope.definition(&name).is_some() && scope.validate(&alone).is_ok());
                if known {
                    overrides.insert(name, value);
                } else {
                    // Its value may be a password.
                    *self.left_out.entry(format!("config {name}")).or_default() += 1;
                }
            }
            None => drop(overrides.remove(&name)),
        }
        Ok(())
    }
}

impl Entry {
    fn parse(value: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(value);
        match reader.varint()? {
            FRAME_VERSION => {}
            other => return Err(DecodeError::Message(format!("frame version {other}"))),
        }
        let (key, version) = (reader.varint()?, reader.varint()?);
        Ok(Self { key, version, body: reader.rest() })
    }
}

fn brokers(reader: &mut Reader<'_>) -> Result<Box<[BrokerId]>, DecodeError> {
    let count = reader.count(true, size_of::<i32>())?.unwrap_or(0);
    (0..count).map(|_| reader.i32().map(BrokerId)).collect()
}

fn directories(reader: &mut Reader<'_>) -> Result<Box<[Uuid]>, DecodeError> {
    let count = reader.count(true, size_of::<Uuid>())?.unwrap_or(0);
    (0..count).map(|_| reader.topic_id().map(|TopicId(id)| id)).collect()
}

#[cfg(test)]
#[path = "kafka_tests.rs"]
mod tests;
