//! Apache Kafka's own metadata log (`__cluster_metadata`, KIP-500): reads its records and tells in ours what kuring has
//! the like of, so that a stopped Kafka node's directories can be taken over.
//!
//! No IO: the files come in as bytes. A kind of record that is not known is an error unless it says nothing that
//! kuring keeps, and so is a record that contradicts those before it: the state must not be guessed.

#[path = "kafka_file.rs"]
mod file;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use uuid::Uuid;

use self::file::{Step, Walk, controls, voters};
use super::image::{ConfigResource, PartitionImage};
use super::names::check_topic_name;
use super::quotas::{QuotaEntity, QuotaKey, QuotaLimit, QuotaName};
use super::record::Record;
use crate::base::{BrokerId, LeaderEpoch, Offset, PartitionIndex, ProducerId, TopicId, TopicName};
use crate::config::{Scope, Settings};
use crate::wire::read::{DecodeError, Reader};
use crate::wire::record::{BatchView, ControlType, ReadError};

pub use self::file::SegmentEnd;

/// What one batch may take after decompression: Kafka's writers compress none.
const DECOMPRESSED_BYTES_MAX: usize = 64 << 20;
/// The only frame around a record (`MetadataRecordSerde`).
const FRAME_VERSION: u32 = 1;
/// `PartitionChangeRecord`'s leader when it does not change.
const LEADER_UNCHANGED: i32 = -2;
/// A partition's leader when it has none.
const NO_LEADER: i32 = -1;
/// The metadata log's own topic: never one of a client's.
const METADATA_TOPIC: &str = "__cluster_metadata";

#[derive(Debug, thiserror::Error)]
pub enum KafkaMetadataError {
    #[error("offset {offset} is due at byte {position}: {what}")]
    Damaged { offset: Offset, position: u64, what: String },
    #[error("the record of offset {offset}: {what}")]
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
    names: BTreeSet<TopicName>,
    configs: BTreeMap<ConfigResource, BTreeMap<String, String>>,
    quotas: BTreeMap<(QuotaEntity, QuotaKey), QuotaLimit>,
    next_producer_id: ProducerId,
    /// Who keeps this log, when the log says it.
    voters: Option<Vec<BrokerId>>,
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
    /// Reads a snapshot, which must be whole: header, state, footer and nothing behind.
    pub fn of_snapshot(bytes: &[u8]) -> Result<Self, KafkaMetadataError> {
        let mut metadata = Self::default();
        let mut walk = Walk::new(bytes, Offset::ZERO);
        let (mut is_begun, mut is_ended) = (false, false);
        loop {
            let batch = match walk.step()? {
                Step::End if is_ended && metadata.transaction.is_none() => return Ok(metadata),
                Step::End => return Err(walk.damaged("the snapshot has no footer")),
                Step::Unreadable(what) => return Err(walk.damaged(what)),
                Step::Batch(_) if is_ended => {
                    return Err(walk.damaged("something follows the snapshot's footer"));
                }
                Step::Batch(batch) => batch,
            };
            if batch.head().attributes().is_control() {
                let kinds = controls(&batch).map_err(|what| walk.damaged(what))?;
                is_begun |= kinds.first().is_some_and(|(kind, _)| *kind == ControlType::SnapshotHeader);
                is_ended = kinds.last().is_some_and(|(kind, _)| *kind == ControlType::SnapshotFooter);
            }
            if !is_begun {
                return Err(walk.damaged("the snapshot has no header"));
            }
            metadata.batch(&batch, Offset::ZERO)?;
        }
    }

    /// Applies a segment of the log, from `from` on: what lies before is in a snapshot. Every offset from the
    /// segment's `first` on must be there; the last of the log's segments may end in what a crash left of a batch.
    pub fn segment(
        &mut self,
        bytes: &[u8],
        first: Offset,
        from: Offset,
        is_last: bool,
    ) -> Result<SegmentEnd, KafkaMetadataError> {
        let mut walk = Walk::new(bytes, first);
        loop {
            match walk.step()? {
                Step::Batch(batch) => self.batch(&batch, from)?,
                Step::End => return Ok(SegmentEnd { next: walk.next_offset(), torn: None }),
                Step::Unreadable(what) if !is_last => return Err(walk.damaged(what)),
                Step::Unreadable(what) if walk.has_batches_behind() => {
                    return Err(walk.damaged(format!("{what}; sound batches follow")));
                }
                Step::Unreadable(_) => {
                    return Ok(SegmentEnd { next: walk.next_offset(), torn: Some(walk.position()) });
                }
            }
        }
    }

    /// What the log holds that kuring has nothing like, and how often.
    pub fn left_out(&self) -> BTreeMap<String, u64> {
        let mut left_out = self.left_out.clone();
        let orphans = self.configs.iter().filter(|(resource, _)| !self.has(resource));
        let count: usize = orphans.map(|(_, overrides)| overrides.len()).sum();
        if count > 0 {
            left_out.insert("configs of topics that are not there".to_owned(), count as u64);
        }
        left_out
    }

    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// The controllers that keep this log together; `None` where the log does not say it, as before KIP-853.
    pub fn voters(&self) -> Option<&[BrokerId]> {
        self.voters.as_deref()
    }

    /// The records that make the same state, for a cluster whose only broker is `node`.
    pub fn into_records(mut self, node: BrokerId) -> Result<Vec<Record>, KafkaMetadataError> {
        let mut records = Vec::new();
        let mut configs = std::mem::take(&mut self.configs);
        configs.retain(|resource, _| self.has(resource));
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
        for (resource, overrides) in configs {
            for (name, value) in overrides {
                records.push(Record::Config { resource: resource.clone(), name, value: Some(value) });
            }
        }
        for ((entity, key), limit) in std::mem::take(&mut self.quotas) {
            records.push(Record::ClientQuota { entity, key, limit: Some(limit) });
        }
        if self.next_producer_id.0 > 0 {
            let (broker, epoch) = (BrokerId(-1), crate::base::BrokerEpoch(-1));
            records.push(Record::ProducerIds { broker, epoch, next: self.next_producer_id });
        }
        Ok(records)
    }

    /// Whether what the configs are of is there.
    fn has(&self, resource: &ConfigResource) -> bool {
        !matches!(resource, ConfigResource::Topic(name) if !self.names.contains(name))
    }

    fn batch(&mut self, batch: &BatchView<'_>, from: Offset) -> Result<(), KafkaMetadataError> {
        let head = batch.head();
        if head.next_offset() <= from {
            return Ok(());
        }
        let offset = head.base_offset();
        // Leaders, versions, heads and feet of snapshots are Raft's own business.
        if head.attributes().is_control() {
            let at = |what: String| KafkaMetadataError::Record { offset, what };
            let records = controls(batch).map_err(at)?;
            for (_, record) in records.iter().filter(|(kind, _)| *kind == ControlType::KraftVoters) {
                self.voters = Some(voters(record).map_err(|error| at(text(error)))?);
            }
            return Ok(());
        }
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
        let at = |what: String| KafkaMetadataError::Record { offset, what };
        let entry = Entry::parse(&value).map_err(|error| at(text(error)))?;
        match (entry.key, &mut self.transaction) {
            // BeginTransactionRecord
            (23, Some(_)) => return Err(at("a transaction begins in another".to_owned())),
            (23, transaction) => *transaction = Some(Vec::new()),
            (24 | 25, None) => return Err(at("a transaction ends that did not begin".to_owned())),
            // EndTransactionRecord
            (24, transaction) => {
                for (offset, value) in transaction.take().unwrap_or_default() {
                    self.record(offset, value)?;
                }
            }
            // AbortTransactionRecord
            (25, transaction) => *transaction = None,
            (_, Some(transaction)) => transaction.push((offset, value)),
            (_, None) => self.entry(&entry).map_err(at)?,
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), String> {
        let mut reader = Reader::new(&entry.body);
        // What a later version says may change what these fields mean.
        let version_max = match entry.key {
            3 | 5 => 2,
            _ => 0,
        };
        if matches!(entry.key, 2..=5 | 9 | 14 | 15) && entry.version > version_max {
            return Err(format!("kind {} has version {}, known is {version_max}", entry.key, entry.version));
        }
        match entry.key {
            2 => self.topic(&mut reader),
            3 => self.partition(entry.version, &mut reader),
            4 => self.config(&mut reader),
            5 => self.partition_change(&mut reader),
            9 => self.removed_topic(&mut reader),
            15 => self.producer_ids(&mut reader),
            // Brokers and controllers register anew; features are what this broker finalizes.
            0 | 1 | 7 | 8 | 12 | 17 | 20 | 21 | 27 | 28 => Ok(()),
            6 | 18 | 19 => self.leave_out("ACLs"),
            10 | 26 => self.leave_out("delegation tokens"),
            11 | 22 => self.leave_out("SCRAM credentials"),
            14 => self.client_quota(&mut reader),
            other => Err(format!("a kind of record that is not known: {other}")),
        }
    }

    fn leave_out(&mut self, what: &str) -> Result<(), String> {
        *self.left_out.entry(what.to_owned()).or_default() += 1;
        Ok(())
    }

    fn topic(&mut self, reader: &mut Reader<'_>) -> Result<(), String> {
        let name = reader.string(true).map_err(text)?;
        let id = reader.topic_id().map_err(text)?;
        end(reader)?;
        check_topic_name(name).map_err(|error| format!("topic {name:?}: {error}"))?;
        if name == METADATA_TOPIC || id.is_zero() {
            return Err(format!("{name} of id {id} cannot be a topic"));
        }
        let name = TopicName::new(name);
        if self.topics.contains_key(&id) || !self.names.insert(name.clone()) {
            return Err(format!("topic {name} of id {id} is there already"));
        }
        self.topics.insert(id, Topic { name, partitions: BTreeMap::new() });
        Ok(())
    }

    fn removed_topic(&mut self, reader: &mut Reader<'_>) -> Result<(), String> {
        let id = reader.topic_id().map_err(text)?;
        end(reader)?;
        let topic = self.topics.remove(&id).ok_or_else(|| format!("topic {id} is removed and not there"))?;
        self.names.remove(&topic.name);
        self.configs.remove(&ConfigResource::Topic(topic.name));
        Ok(())
    }

    fn producer_ids(&mut self, reader: &mut Reader<'_>) -> Result<(), String> {
        // Who took them: the broker's id and its epoch.
        let next =
            reader.skip(size_of::<i32>() + size_of::<i64>()).and_then(|()| reader.i64()).map_err(text)?;
        end(reader)?;
        if next < 0 {
            return Err(format!("producer ids are given out up to {next}"));
        }
        self.next_producer_id = ProducerId(next).max(self.next_producer_id);
        Ok(())
    }

    fn partition(&mut self, version: u32, reader: &mut Reader<'_>) -> Result<(), String> {
        let (index, id, partition) = read_partition(version, reader).map_err(text)?;
        end(reader)?;
        let topic = self.topics.get_mut(&id);
        let topic = topic.ok_or_else(|| format!("topic {id} gets partition {index} and is not there"))?;
        check(&partition).map_err(|what| format!("partition {}-{index}: {what}", topic.name))?;
        if index.0 < 0 || topic.partitions.insert(index, partition).is_some() {
            return Err(format!("partition {}-{index} cannot be, or is there already", topic.name));
        }
        Ok(())
    }

    fn client_quota(&mut self, reader: &mut Reader<'_>) -> Result<(), String> {
        let (entity, key, limit) = read_quota(reader).map_err(text)?;
        end(reader)?;
        let (Some(entity), Some(key)) = (entity, QuotaKey::find(&key)) else {
            return self.leave_out("quotas of a kind that kuring does not have");
        };
        if matches!(&entity.ip, Some(QuotaName::Of(ip)) if ip.parse::<std::net::IpAddr>().is_err()) {
            return self.leave_out("quotas of hosts by name");
        }
        match limit {
            Some(limit) => self.quotas.insert((entity, key), limit),
            None => self.quotas.remove(&(entity, key)),
        };
        Ok(())
    }

    /// As `PartitionRegistration.merge` does it.
    fn partition_change(&mut self, reader: &mut Reader<'_>) -> Result<(), String> {
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
        at_end(reader)?;
        let of = |what: &str| format!("partition {}-{index}: {what}", topic.name);
        let next = |epoch: i32| epoch.checked_add(1).ok_or_else(|| of("an epoch is at its end"));
        if leader != LEADER_UNCHANGED {
            partition.leader = leader_of(leader).map_err(text)?;
            partition.leader_epoch = LeaderEpoch(next(partition.leader_epoch.0)?);
        }
        partition.partition_epoch = next(partition.partition_epoch)?;
        check(partition).map_err(|what| of(&what))
    }

    fn config(&mut self, reader: &mut Reader<'_>) -> Result<(), String> {
        let kind = reader.i8().map_err(text)?;
        let resource_name = reader.string(true).map_err(text)?.to_owned();
        let name = reader.string(true).map_err(text)?.to_owned();
        let value = reader.nullable_string(true).map_err(text)?.map(str::to_owned);
        end(reader)?;
        let file = Settings::default();
        let (resource, scope) = match (kind, resource_name.parse()) {
            (2, _) => (ConfigResource::Topic(TopicName::new(&resource_name)), Some(Scope::Topic)),
            (4, Ok(id)) => (ConfigResource::Broker(BrokerId(id)), Some(Scope::Broker)),
            (4, Err(_)) if resource_name.is_empty() => (ConfigResource::BrokerDefault, Some(Scope::Broker)),
            (4, Err(_)) => return Err(format!("a config of the broker {resource_name:?}")),
            (32, _) => (ConfigResource::Group(resource_name), Some(Scope::Group(&file))),
            (16, _) => (ConfigResource::ClientMetrics(resource_name), None),
            _ => return self.leave_out(&format!("configs of resource type {kind}")),
        };
        let overrides = self.configs.entry(resource).or_default();
        match value {
            Some(value) => {
                // What kuring would not take from a client either has no effect here: it is told instead.
                let alone = BTreeMap::from([(name.clone(), value.clone())]);
                let is_known = match scope {
                    None => true,
                    // What bounds it more is in the broker's file.
                    Some(scope @ Scope::Group(_)) => {
                        scope.definition(&name).is_some_and(|definition| definition.parse(&value).is_ok())
                    }
                    Some(scope) => scope.definition(&name).is_some() && scope.validate(&alone).is_ok(),
                };
                if is_known {
                    overrides.insert(name, value);
                } else {
                    // Its value may be a password. One that was known before must not stand in for it.
                    overrides.remove(&name);
                    return self.leave_out(&format!("config {name}"));
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

fn text(error: DecodeError) -> String {
    error.to_string()
}

/// The tagged fields, none of which says anything here, and the end.
fn end(reader: &mut Reader<'_>) -> Result<(), String> {
    reader.skip_tagged_fields(true).map_err(text)?;
    at_end(reader)
}

fn at_end(reader: &Reader<'_>) -> Result<(), String> {
    match reader.left() {
        0 => Ok(()),
        left => Err(format!("{left} bytes follow it")),
    }
}

/// Up to its tagged fields.
fn read_partition(
    version: u32,
    reader: &mut Reader<'_>,
) -> Result<(PartitionIndex, TopicId, PartitionImage), DecodeError> {
    let index = PartitionIndex(reader.i32()?);
    let topic = reader.topic_id()?;
    let (replicas, isr) = (brokers(reader)?, brokers(reader)?);
    let _removing = brokers(reader)?;
    let _adding = brokers(reader)?;
    let leader = leader_of(reader.i32()?)?;
    let leader_epoch = LeaderEpoch(reader.i32()?);
    let partition_epoch = reader.i32()?;
    let directories = if version >= 1 { directories(reader)? } else { Box::default() };
    let partition =
        PartitionImage { replicas, isr, leader, leader_epoch, partition_epoch, directories, transit: None };
    Ok((index, topic, partition))
}

/// Of whom, the key and the limit, up to the tagged fields. `None` of an entity with parts that are not known.
fn read_quota(
    reader: &mut Reader<'_>,
) -> Result<(Option<QuotaEntity>, String, Option<QuotaLimit>), DecodeError> {
    let mut entity = Some(QuotaEntity::default());
    // A part is two lengths and the end of its tagged fields at least.
    for _ in 0..reader.count(true, 3)?.unwrap_or(0) {
        let kind = reader.string(true)?;
        let name = reader.nullable_string(true)?;
        reader.skip_tagged_fields(true)?;
        let name = Some(name.map_or(QuotaName::Default, |name| QuotaName::Of(name.to_owned())));
        match (kind, &mut entity) {
            ("user", Some(entity)) => entity.user = name,
            ("client-id", Some(entity)) => entity.client_id = name,
            ("ip", Some(entity)) => entity.ip = name,
            _ => entity = None,
        }
    }
    let key = reader.string(true)?.to_owned();
    let value = f64::from_bits(reader.i64()? as u64);
    let is_removed = reader.bool()?;
    Ok((entity, key, (!is_removed).then(|| QuotaLimit::new(value))))
}

fn leader_of(id: i32) -> Result<Option<BrokerId>, DecodeError> {
    match id {
        NO_LEADER => Ok(None),
        0.. => Ok(Some(BrokerId(id))),
        _ => Err(DecodeError::Message(format!("its leader is {id}"))),
    }
}

/// What `PartitionRegistration` takes for granted.
fn check(partition: &PartitionImage) -> Result<(), String> {
    let PartitionImage { replicas, isr, leader, leader_epoch, partition_epoch, directories, .. } = partition;
    let known: BTreeSet<BrokerId> = replicas.iter().copied().collect();
    if known.len() != replicas.len() || known.first().is_none_or(|id| id.0 < 0) {
        return Err(format!("its replicas cannot be {replicas:?}"));
    }
    if isr.iter().chain(leader).any(|id| !known.contains(id)) {
        return Err(format!("of its leader {leader:?} and those in sync {isr:?} one is no replica"));
    }
    if leader_epoch.0 < 0 || *partition_epoch < 0 {
        return Err(format!("its epochs cannot be {leader_epoch} and {partition_epoch}"));
    }
    // Before Kafka 3.7 there were none.
    if !directories.is_empty() && directories.len() != replicas.len() {
        return Err(format!("it has {} directories for {} replicas", directories.len(), replicas.len()));
    }
    Ok(())
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
#[path = "kafka_testing.rs"]
pub(crate) mod testing;

#[cfg(test)]
#[path = "kafka_tests.rs"]
mod tests;
