//! The stored form of records: our own, compact and versioned.
//!
//! A batch is `version u8 · count varint · records`; a record is `kind u8 · version u8 · fields`.
//! Integers are LEB128 varints, zig-zag when signed; text and lists carry their length before them. A
//! reader refuses kinds and versions it does not know, lengths beyond the input and bytes left over: a
//! node that does not understand a record must not guess the state.

use uuid::Uuid;

use super::elections::Transit;
use super::forms::{Form, SECOND, THIRD};
use super::image::{BrokerImage, ConfigResource, ControllerImage, Endpoint, FeatureRange, PartitionImage};
use super::record::{BrokerChange, PartitionChange, Record, Stamp};
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, ProducerId, TopicId, TopicName};

const BATCH_VERSION: u8 = 1;
/// Why stored bytes are not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("metadata record ends early")]
    Short,
    #[error("{0} bytes follow the last metadata record")]
    Long(usize),
    #[error("metadata batch of unknown version {0}: written by a newer kuring?")]
    BatchVersion(u8),
    #[error("metadata record of unknown kind {kind} version {version}: written by a newer kuring?")]
    Kind { kind: u8, version: u8 },
    #[error("metadata record holds a {0} that cannot be")]
    Value(&'static str),
}

/// Appends the stored form of `records` to `out`.
pub fn encode_records(records: &[Record], out: &mut Vec<u8>) {
    let mut writer = Writer(out);
    writer.u8(BATCH_VERSION);
    writer.unsigned(records.len() as u64);
    for record in records {
        writer.record(record);
    }
}

/// Reads back what [`encode_records`] wrote; `bytes` must hold nothing else.
pub fn decode_records(bytes: &[u8]) -> Result<Vec<Record>, DecodeError> {
    let mut reader = Reader(bytes);
    match reader.u8()? {
        BATCH_VERSION => {}
        version => return Err(DecodeError::BatchVersion(version)),
    }
    // A record takes at least kind, version and one byte.
    let records = reader.list(3, Reader::record)?;
    reader.end()?;
    Ok(records)
}

/// Writes the primitive forms.
pub struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub fn unsigned(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn signed(&mut self, value: i64) {
        self.unsigned(((value << 1) ^ (value >> 63)) as u64);
    }

    pub fn text(&mut self, value: &str) {
        self.unsigned(value.len() as u64);
        self.0.extend_from_slice(value.as_bytes());
    }

    pub fn uuid(&mut self, value: &Uuid) {
        self.0.extend_from_slice(value.as_bytes());
    }

    pub(super) fn option<T>(&mut self, value: &Option<T>, write: impl FnOnce(&mut Self, &T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(super) fn list<T>(&mut self, values: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.unsigned(values.len() as u64);
        for value in values {
            write(self, value);
        }
    }

    pub(super) fn broker(&mut self, id: &BrokerId) {
        self.signed(i64::from(id.0));
    }

    pub(super) fn brokers(&mut self, ids: &[BrokerId]) {
        self.list(ids, Self::broker);
    }

    fn uuids(&mut self, ids: &[Uuid]) {
        self.list(ids, Self::uuid);
    }

    pub(super) fn resource(&mut self, resource: &ConfigResource) {
        match resource {
            ConfigResource::Topic(name) => {
                self.u8(0);
                self.text(name);
            }
            ConfigResource::Broker(id) => {
                self.u8(1);
                self.broker(id);
            }
            ConfigResource::BrokerDefault => self.u8(2),
            ConfigResource::Group(name) => {
                self.u8(3);
                self.text(name);
            }
            ConfigResource::ClientMetrics(name) => {
                self.u8(4);
                self.text(name);
            }
        }
    }

    fn record(&mut self, record: &Record) {
        let Form { kind, version } = Form::of(record);
        self.u8(kind);
        self.u8(version);
        match record {
            Record::Cluster { id } => {
                self.text(id);
            }
            Record::BrokerRegistered(broker) => {
                self.broker(&broker.id);
                self.signed(broker.epoch.0);
                self.uuid(&broker.incarnation);
                self.list(&broker.endpoints, Self::endpoint);
                self.option(&broker.rack, |writer, rack| writer.text(rack));
                self.bool(broker.fenced);
                self.uuids(&broker.log_dirs);
                if version >= SECOND {
                    self.bool(broker.shutting_down);
                }
                if version >= THIRD {
                    self.list(&broker.features, Self::feature);
                }
            }
            Record::BrokerFenced { id, epoch } => {
                self.broker(id);
                self.signed(epoch.0);
            }
            Record::BrokerUnfenced { id, epoch } => {
                self.broker(id);
                self.signed(epoch.0);
            }
            Record::BrokerRemoved { id, epoch } => {
                self.broker(id);
                self.signed(epoch.0);
            }
            Record::Topic { name, id } => {
                self.text(name);
                self.uuid(&id.0);
            }
            Record::Partition { topic, index, partition } => {
                self.uuid(&topic.0);
                self.signed(i64::from(index.0));
                self.brokers(&partition.replicas);
                self.brokers(&partition.isr);
                self.option(&partition.leader, Self::broker);
                self.signed(i64::from(partition.leader_epoch.0));
                self.signed(i64::from(partition.partition_epoch));
                self.uuids(&partition.directories);
                if let Some(transit) = &partition.transit {
                    self.transit(transit);
                }
            }
            Record::PartitionChanged(change) => {
                self.uuid(&change.topic.0);
                self.signed(i64::from(change.index.0));
                self.option(&change.leader, |writer, leader| writer.option(leader, Self::broker));
                self.option(&change.isr, |writer, isr| writer.brokers(isr));
                self.option(&change.replicas, |writer, replicas| writer.brokers(replicas));
                self.option(&change.directories, |writer, directories| writer.uuids(directories));
                if let Some(transit) = &change.transit {
                    self.transit(transit);
                }
            }
            Record::TopicRemoved { id } => {
                self.uuid(&id.0);
            }
            Record::Config { resource, name, value } => {
                self.resource(resource);
                self.text(name);
                self.option(value, |writer, value| writer.text(value));
            }
            Record::ProducerIds { broker, epoch, next } => {
                self.broker(broker);
                self.signed(epoch.0);
                self.signed(next.0);
            }
            Record::Feature { name, level } => {
                self.text(name);
                self.signed(i64::from(*level));
            }
            Record::BrokerChanged(change) => {
                self.broker(&change.id);
                self.signed(change.epoch.0);
                self.option(&change.fenced, |writer, fenced| writer.bool(*fenced));
                self.option(&change.shutting_down, |writer, shutting_down| writer.bool(*shutting_down));
                self.bool(change.is_unclean);
                self.stamp(&change.rules);
            }
            Record::DirectoryFailed { broker, epoch, directory, rules } => {
                self.broker(broker);
                self.signed(epoch.0);
                self.uuid(directory);
                self.stamp(rules);
            }
            Record::ControllerRegistered(controller) => {
                self.controller(controller);
            }
            Record::ClientQuota { entity, key, limit } => {
                self.quota_entity(entity);
                self.u8(*key as u8);
                self.option(limit, Self::quota_limit);
            }
        }
    }

    fn endpoint(&mut self, endpoint: &Endpoint) {
        self.text(&endpoint.listener);
        self.text(&endpoint.host);
        self.unsigned(u64::from(endpoint.port));
        self.signed(i64::from(endpoint.security_protocol));
    }

    fn feature(&mut self, feature: &FeatureRange) {
        self.text(&feature.name);
        self.signed(i64::from(feature.min));
        self.signed(i64::from(feature.max));
    }

    pub(super) fn controller(&mut self, controller: &ControllerImage) {
        self.broker(&controller.id);
        self.uuid(&controller.incarnation);
        self.list(&controller.endpoints, Self::endpoint);
        self.list(&controller.features, Self::feature);
    }

    fn stamp(&mut self, rules: &Stamp) {
        self.bool(rules.elr);
        self.signed(i64::from(rules.min_isr));
        self.bool(rules.unclean_election);
    }

    fn transit(&mut self, transit: &Transit) {
        self.brokers(&transit.adding);
        self.brokers(&transit.removing);
        self.brokers(&transit.elr);
        self.option(&transit.last_known, Self::broker);
        self.bool(transit.recovering);
    }
}

/// Reads the primitive forms; never allocates more than the input could hold.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.bytes(1)?[0])
    }

    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value("flag")),
        }
    }

    pub fn unsigned(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(DecodeError::Value("number"));
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Value("number"))
    }

    pub fn signed(&mut self) -> Result<i64, DecodeError> {
        let value = self.unsigned()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub fn text(&mut self) -> Result<&'a str, DecodeError> {
        let length = usize::try_from(self.unsigned()?).map_err(|_| DecodeError::Short)?;
        std::str::from_utf8(self.bytes(length)?).map_err(|_| DecodeError::Value("text"))
    }

    pub fn uuid(&mut self) -> Result<Uuid, DecodeError> {
        Uuid::from_slice(self.bytes(16)?).map_err(|_| DecodeError::Value("id"))
    }

    pub fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Long(self.0.len())) }
    }

    pub(super) fn i32(&mut self) -> Result<i32, DecodeError> {
        i32::try_from(self.signed()?).map_err(|_| DecodeError::Value("number"))
    }

    pub(super) fn i16(&mut self) -> Result<i16, DecodeError> {
        i16::try_from(self.signed()?).map_err(|_| DecodeError::Value("number"))
    }

    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Each element takes at least `bytes_min`, so a count that cannot fit is refused before allocating.
    pub(super) fn list<T>(
        &mut self,
        bytes_min: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = usize::try_from(self.unsigned()?).map_err(|_| DecodeError::Short)?;
        if count > self.0.len() / bytes_min {
            return Err(DecodeError::Short);
        }
        (0..count).map(|_| read(self)).collect()
    }

    pub(super) fn broker(&mut self) -> Result<BrokerId, DecodeError> {
        self.i32().map(BrokerId)
    }

    pub(super) fn epoch(&mut self) -> Result<BrokerEpoch, DecodeError> {
        self.signed().map(BrokerEpoch)
    }

    pub(super) fn brokers(&mut self) -> Result<Box<[BrokerId]>, DecodeError> {
        self.list(1, Self::broker).map(Vec::into_boxed_slice)
    }

    fn uuids(&mut self) -> Result<Vec<Uuid>, DecodeError> {
        self.list(16, Self::uuid)
    }

    pub(super) fn topic_id(&mut self) -> Result<TopicId, DecodeError> {
        self.uuid().map(TopicId)
    }

    pub(super) fn resource(&mut self) -> Result<ConfigResource, DecodeError> {
        Ok(match self.u8()? {
            0 => ConfigResource::Topic(TopicName::new(self.text()?)),
            1 => ConfigResource::Broker(self.broker()?),
            2 => ConfigResource::BrokerDefault,
            3 => ConfigResource::Group(self.text()?.to_owned()),
            4 => ConfigResource::ClientMetrics(self.text()?.to_owned()),
            _ => return Err(DecodeError::Value("config resource")),
        })
    }

    fn endpoint(&mut self) -> Result<Endpoint, DecodeError> {
        Ok(Endpoint {
            listener: self.text()?.to_owned(),
            host: self.text()?.to_owned(),
            port: u16::try_from(self.unsigned()?).map_err(|_| DecodeError::Value("port"))?,
            security_protocol: self.i16()?,
        })
    }

    pub(super) fn controller(&mut self) -> Result<ControllerImage, DecodeError> {
        Ok(ControllerImage {
            id: self.broker()?,
            incarnation: self.uuid()?,
            endpoints: self.list(4, Self::endpoint)?,
            features: self.list(3, Self::feature)?,
        })
    }

    fn stamp(&mut self) -> Result<Stamp, DecodeError> {
        Ok(Stamp { elr: self.bool()?, min_isr: self.i32()?, unclean_election: self.bool()? })
    }

    fn feature(&mut self) -> Result<FeatureRange, DecodeError> {
        Ok(FeatureRange { name: self.text()?.to_owned(), min: self.i16()?, max: self.i16()? })
    }

    fn transit(&mut self) -> Result<Transit, DecodeError> {
        Ok(Transit {
            adding: self.brokers()?.into_vec(),
            removing: self.brokers()?.into_vec(),
            elr: self.brokers()?.into_vec(),
            last_known: self.option(Self::broker)?,
            recovering: self.bool()?,
        })
    }

    fn record(&mut self) -> Result<Record, DecodeError> {
        let (kind, version) = (self.u8()?, self.u8()?);
        if (Form { kind, version }).level().is_none() {
            return Err(DecodeError::Kind { kind, version });
        }
        let has_more = version >= SECOND;
        Ok(match kind {
            0 => Record::Cluster { id: self.text()?.to_owned() },
            1 => Record::BrokerRegistered(BrokerImage {
                id: self.broker()?,
                epoch: self.epoch()?,
                incarnation: self.uuid()?,
                endpoints: self.list(4, Self::endpoint)?,
                rack: self.option(|reader| reader.text().map(str::to_owned))?,
                fenced: self.bool()?,
                log_dirs: self.uuids()?,
                shutting_down: if has_more { self.bool()? } else { false },
                features: if version == THIRD { self.list(3, Self::feature)? } else { Vec::new() },
            }),
            2 => Record::BrokerFenced { id: self.broker()?, epoch: self.epoch()? },
            3 => Record::BrokerUnfenced { id: self.broker()?, epoch: self.epoch()? },
            4 => Record::BrokerRemoved { id: self.broker()?, epoch: self.epoch()? },
            5 => Record::Topic { name: TopicName::new(self.text()?), id: self.topic_id()? },
            6 => Record::Partition {
                topic: self.topic_id()?,
                index: PartitionIndex(self.i32()?),
                partition: PartitionImage {
                    replicas: self.brokers()?,
                    isr: self.brokers()?,
                    leader: self.option(Self::broker)?,
                    leader_epoch: LeaderEpoch(self.i32()?),
                    partition_epoch: self.i32()?,
                    directories: self.uuids()?.into_boxed_slice(),
                    transit: if has_more { Some(Box::new(self.transit()?)) } else { None },
                },
            },
            7 => Record::PartitionChanged(PartitionChange {
                topic: self.topic_id()?,
                index: PartitionIndex(self.i32()?),
                leader: self.option(|reader| reader.option(Self::broker))?,
                isr: self.option(Self::brokers)?,
                replicas: self.option(Self::brokers)?,
                directories: self.option(|reader| reader.uuids().map(Vec::into_boxed_slice))?,
                transit: if has_more { Some(self.transit()?) } else { None },
            }),
            8 => Record::TopicRemoved { id: self.topic_id()? },
            9 => Record::Config {
                resource: self.resource()?,
                name: self.text()?.to_owned(),
                value: self.option(|reader| reader.text().map(str::to_owned))?,
            },
            10 => Record::ProducerIds {
                broker: self.broker()?,
                epoch: self.epoch()?,
                next: ProducerId(self.signed()?),
            },
            11 => Record::Feature { name: self.text()?.to_owned(), level: self.i16()? },
            12 => Record::BrokerChanged(BrokerChange {
                id: self.broker()?,
                epoch: self.epoch()?,
                fenced: self.option(Self::bool)?,
                shutting_down: self.option(Self::bool)?,
                is_unclean: self.bool()?,
                rules: self.stamp()?,
            }),
            18 => Record::DirectoryFailed {
                broker: self.broker()?,
                epoch: self.epoch()?,
                directory: self.uuid()?,
                rules: self.stamp()?,
            },
            20 => Record::ControllerRegistered(self.controller()?),
            13 => Record::ClientQuota {
                entity: self.quota_entity()?,
                key: self.quota_key()?,
                limit: self.option(Self::quota_limit)?,
            },
            _ => return Err(DecodeError::Kind { kind, version }),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::quotas::{QuotaEntity, QuotaKey, QuotaLimit, QuotaName};
    use super::*;

    fn uuid() -> impl Strategy<Value = Uuid> {
        any::<u128>().prop_map(Uuid::from_u128)
    }

    fn brokers() -> impl Strategy<Value = Box<[BrokerId]>> {
        prop::collection::vec(any::<i32>().prop_map(BrokerId), 0..5).prop_map(Vec::into_boxed_slice)
    }

    fn uuids() -> impl Strategy<Value = Vec<Uuid>> {
        prop::collection::vec(uuid(), 0..3)
    }

    fn resource() -> impl Strategy<Value = ConfigResource> {
        prop_oneof![
            ".{0,9}".prop_map(|name| ConfigResource::Topic(TopicName::new(&name))),
            any::<i32>().prop_map(|id| ConfigResource::Broker(BrokerId(id))),
            Just(ConfigResource::BrokerDefault),
            ".{0,9}".prop_map(ConfigResource::Group),
            ".{0,9}".prop_map(ConfigResource::ClientMetrics),
        ]
    }

    fn broker() -> impl Strategy<Value = BrokerImage> {
        let endpoint = (".{0,9}", ".{0,20}", any::<u16>(), any::<i16>()).prop_map(
            |(listener, host, port, security_protocol)| Endpoint { listener, host, port, security_protocol },
        );
        let endpoints = prop::collection::vec(endpoint, 0..4);
        let states = (any::<bool>(), any::<bool>());
        let feature = (".{0,9}", any::<i16>(), any::<i16>()).prop_map(|(name, min, max)| FeatureRange {
            name,
            min,
            max,
        });
        let features = prop::collection::vec(feature, 0..3);
        let rest = (prop::option::of(".{0,9}"), states, uuids(), features);
        (any::<i32>(), any::<i64>(), uuid(), endpoints, rest).prop_map(
            |(id, epoch, incarnation, endpoints, (rack, (fenced, shutting_down), log_dirs, features))| {
                BrokerImage {
                    id: BrokerId(id),
                    epoch: BrokerEpoch(epoch),
                    incarnation,
                    endpoints,
                    rack,
                    fenced,
                    shutting_down,
                    log_dirs,
                    features,
                }
            },
        )
    }

    fn transit() -> impl Strategy<Value = Transit> {
        let list = || brokers().prop_map(<[BrokerId]>::into_vec);
        (list(), list(), list(), prop::option::of(any::<i32>().prop_map(BrokerId)), any::<bool>()).prop_map(
            |(adding, removing, elr, last_known, recovering)| Transit {
                adding,
                removing,
                elr,
                last_known,
                recovering,
            },
        )
    }

    fn partition() -> impl Strategy<Value = PartitionImage> {
        let leader = prop::option::of(any::<i32>().prop_map(BrokerId));
        let transit = prop::option::of(transit().prop_map(Box::new));
        (brokers(), brokers(), leader, any::<i32>(), any::<i32>(), uuids(), transit).prop_map(
            |(replicas, isr, leader, leader_epoch, partition_epoch, directories, transit)| PartitionImage {
                replicas,
                isr,
                leader,
                leader_epoch: LeaderEpoch(leader_epoch),
                partition_epoch,
                directories: directories.into_boxed_slice(),
                transit,
            },
        )
    }

    fn change() -> impl Strategy<Value = PartitionChange> {
        let leader = prop::option::of(prop::option::of(any::<i32>().prop_map(BrokerId)));
        let lists = (prop::option::of(brokers()), prop::option::of(brokers()), prop::option::of(uuids()));
        (uuid(), any::<i32>(), leader, lists, prop::option::of(transit())).prop_map(
            |(topic, index, leader, (isr, replicas, directories), transit)| PartitionChange {
                topic: TopicId(topic),
                index: PartitionIndex(index),
                leader,
                isr,
                replicas,
                directories: directories.map(Vec::into_boxed_slice),
                transit,
            },
        )
    }

    fn broker_change() -> impl Strategy<Value = BrokerChange> {
        let states = (prop::option::of(any::<bool>()), prop::option::of(any::<bool>()), any::<bool>());
        let rules = (any::<bool>(), any::<i32>(), any::<bool>());
        (any::<i32>(), any::<i64>(), states, rules).prop_map(
            |(id, epoch, (fenced, shutting_down, is_unclean), (elr, min_isr, unclean_election))| {
                BrokerChange {
                    id: BrokerId(id),
                    epoch: BrokerEpoch(epoch),
                    fenced,
                    shutting_down,
                    is_unclean,
                    rules: Stamp { elr, min_isr, unclean_election },
                }
            },
        )
    }

    fn quota() -> impl Strategy<Value = Record> {
        let name =
            || prop::option::of(prop_oneof![Just(QuotaName::Default), ".{0,9}".prop_map(QuotaName::Of)]);
        let key = prop::sample::select(QuotaKey::ALL.to_vec());
        let limit = prop::option::of(any::<f64>().prop_map(QuotaLimit::new));
        (name(), name(), name(), key, limit).prop_map(|(user, client_id, ip, key, limit)| {
            Record::ClientQuota { entity: QuotaEntity { user, client_id, ip }, key, limit }
        })
    }

    fn record() -> impl Strategy<Value = Record> {
        let epoch = || (any::<i32>().prop_map(BrokerId), any::<i64>().prop_map(BrokerEpoch));
        prop_oneof![
            ".{0,30}".prop_map(|id| Record::Cluster { id }),
            broker().prop_map(Record::BrokerRegistered),
            epoch().prop_map(|(id, epoch)| Record::BrokerFenced { id, epoch }),
            epoch().prop_map(|(id, epoch)| Record::BrokerUnfenced { id, epoch }),
            epoch().prop_map(|(id, epoch)| Record::BrokerRemoved { id, epoch }),
            (".{0,9}", uuid())
                .prop_map(|(name, id)| Record::Topic { name: TopicName::new(&name), id: TopicId(id) }),
            (uuid(), any::<i32>(), partition()).prop_map(|(topic, index, partition)| Record::Partition {
                topic: TopicId(topic),
                index: PartitionIndex(index),
                partition
            }),
            change().prop_map(Record::PartitionChanged),
            uuid().prop_map(|id| Record::TopicRemoved { id: TopicId(id) }),
            (resource(), ".{0,9}", prop::option::of(".{0,30}"))
                .prop_map(|(resource, name, value)| Record::Config { resource, name, value }),
            (epoch(), any::<i64>()).prop_map(|((broker, epoch), next)| Record::ProducerIds {
                broker,
                epoch,
                next: ProducerId(next)
            }),
            (".{0,9}", any::<i16>()).prop_map(|(name, level)| Record::Feature { name, level }),
            broker_change().prop_map(Record::BrokerChanged),
            (broker_change(), uuid()).prop_map(|(BrokerChange { id, epoch, rules, .. }, directory)| {
                Record::DirectoryFailed { broker: id, epoch, directory, rules }
            }),
            broker().prop_map(|broker| {
                let BrokerImage { id, incarnation, endpoints, features, .. } = broker;
                Record::ControllerRegistered(ControllerImage { id, incarnation, endpoints, features })
            }),
            quota(),
        ]
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were_and_no_prefix_passes(
            records in prop::collection::vec(record(), 0..8),
        ) {
            let mut bytes = Vec::new();
            encode_records(&records, &mut bytes);
            prop_assert_eq!(decode_records(&bytes), Ok(records));
            for end in 0..bytes.len() {
                prop_assert!(decode_records(&bytes[..end]).is_err());
            }
            bytes.push(0);
            prop_assert_eq!(decode_records(&bytes), Err(DecodeError::Long(1)));
        }

        #[test]
        fn damaged_records_never_panic(
            records in prop::collection::vec(record(), 1..4),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = Vec::new();
            encode_records(&records, &mut bytes);
            for (position, value) in damage {
                let position = position.index(bytes.len());
                bytes[position] = value;
            }
            let _ = decode_records(&bytes);
        }
    }

    #[test]
    fn unknown_kinds_and_versions_are_refused() {
        assert_eq!(decode_records(&[9, 0]), Err(DecodeError::BatchVersion(9)));
        assert_eq!(decode_records(&[1, 1, 200, 0, 0]), Err(DecodeError::Kind { kind: 200, version: 0 }));
        assert_eq!(decode_records(&[1, 1, 8, 1, 0]), Err(DecodeError::Kind { kind: 8, version: 1 }));
    }

    #[test]
    fn what_a_node_alone_writes_is_of_the_first_versions() {
        let partition = PartitionImage {
            replicas: [BrokerId(1)].into(),
            isr: [BrokerId(1)].into(),
            leader: Some(BrokerId(1)),
            leader_epoch: LeaderEpoch(2),
            partition_epoch: 3,
            directories: Box::default(),
            transit: None,
        };
        let topic = TopicId(Uuid::nil());
        let mut bytes = Vec::new();
        encode_records(&[Record::Partition { topic, index: PartitionIndex(0), partition }], &mut bytes);
        let expected = [&[1, 1, 6, 0][..], &[0; 16], &[0, 1, 2, 1, 2, 1, 2, 4, 6, 0]].concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_count_beyond_the_input_allocates_nothing() {
        let huge = [1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0];
        assert_eq!(decode_records(&huge), Err(DecodeError::Short));
    }
}
