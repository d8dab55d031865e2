//! The metadata state machine: applies records to the current image and writes it out as records again.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::codec::{self, DecodeError};
use super::elections::{self, Election, Rules, Target};
use super::image::{
    BrokerImage, ConfigResource, ControllerImage, Image, LOST_DIRECTORY, Overrides, PartitionImage,
    TopicImage,
};
use super::names;
use super::record::{BrokerChange, PartitionChange, Record, Stamp};
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicName};

/// A record that contradicts the state: the log or a snapshot is damaged, or the controller is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("metadata record names topic {0}, which does not exist")]
    NoTopic(TopicId),
    #[error("metadata record names partition {1} of topic {0}, which does not exist")]
    NoPartition(TopicId, PartitionIndex),
    #[error("metadata record creates partition {1} of topic {0} out of order")]
    PartitionOrder(TopicId, PartitionIndex),
    #[error("metadata record creates topic {0} ({1}) a second time")]
    TopicExists(TopicName, TopicId),
    #[error("metadata record names broker {0} of epoch {1}, which is not registered")]
    NoBroker(BrokerId, BrokerEpoch),
    #[error("metadata record gives the cluster the id {new}, it has {old}")]
    OtherCluster { old: Arc<str>, new: String },
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// The current image and the rules by which records change it. Deterministic: the same records give the
/// same state on every node.
#[derive(Clone, Default, Debug)]
pub struct State {
    image: Image,
}

impl State {
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Applies the records of the entry at `index` of the log.
    pub fn apply(&mut self, index: u64, records: &[Record]) -> Result<(), ApplyError> {
        let mut rest = records;
        while let Some((record, tail)) = rest.split_first() {
            rest = match record {
                // Partitions of one topic come in a row: copy the topic once, not once for each.
                Record::Partition { topic, .. } => {
                    let same = |record: &&Record| matches!(record, Record::Partition { topic: other, .. } if other == topic);
                    let (run, tail) = rest.split_at(rest.iter().take_while(same).count());
                    self.add_partitions(*topic, run)?;
                    tail
                }
                other => {
                    self.apply_one(other)?;
                    tail
                }
            };
        }
        self.image.version = index;
        Ok(())
    }

    /// The whole state as a stored batch of records.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        codec::encode_records(&self.records(), &mut bytes);
        bytes
    }

    /// The state that [`State::encode`] wrote at `index` of the log.
    pub fn decode(index: u64, bytes: &[u8]) -> Result<State, ApplyError> {
        let mut state = State::default();
        state.apply(index, &codec::decode_records(bytes)?)?;
        Ok(state)
    }

    /// Records that make this state out of an empty one. Brokers come before topics, so that applying them
    /// moves no leadership.
    fn records(&self) -> Vec<Record> {
        let image = &self.image;
        let mut records = Vec::with_capacity(image.partition_count + 2 * image.topic_count() + 16);
        if !image.cluster_id.is_empty() {
            records.push(Record::Cluster { id: image.cluster_id.to_string() });
        }
        for (name, level) in image.features() {
            records.push(Record::Feature { name: name.to_owned(), level });
        }
        for controller in image.controllers() {
            records.push(Record::ControllerRegistered(ControllerImage::clone(controller)));
        }
        for broker in image.brokers() {
            records.push(Record::BrokerRegistered(BrokerImage::clone(broker)));
        }
        for topic in image.topics() {
            records.push(Record::Topic { name: topic.name.clone(), id: topic.id });
            for (index, partition) in topic.numbered() {
                let partition = PartitionImage::clone(partition);
                records.push(Record::Partition { topic: topic.id, index, partition });
            }
        }
        for (resource, overrides) in image.configs() {
            for (name, value) in overrides.iter() {
                let (name, value) = (name.clone(), Some(value.clone()));
                records.push(Record::Config { resource: resource.clone(), name, value });
            }
        }
        for (entity, limits) in image.client_quotas.iter() {
            for (key, limit) in limits.iter() {
                let (entity, key, limit) = (entity.clone(), *key, Some(*limit));
                records.push(Record::ClientQuota { entity, key, limit });
            }
        }
        if image.next_producer_id.0 > 0 {
            // Who took the last block is of no interest any more.
            let (broker, epoch) = (BrokerId(-1), BrokerEpoch(-1));
            records.push(Record::ProducerIds { broker, epoch, next: image.next_producer_id });
        }
        records
    }

    fn apply_one(&mut self, record: &Record) -> Result<(), ApplyError> {
        match record {
            Record::Cluster { id } => self.set_cluster(id),
            Record::BrokerRegistered(broker) => {
                self.image.brokers.insert(broker.id, Arc::new(broker.clone()));
                self.find_lost_replicas(broker.id);
                if !broker.fenced {
                    self.take_up_leaderships(broker.id);
                }
                Ok(())
            }
            Record::BrokerFenced { id, epoch } => {
                self.set_fenced(*id, *epoch, true)?;
                self.give_up_leaderships(*id);
                Ok(())
            }
            Record::BrokerUnfenced { id, epoch } => {
                self.set_fenced(*id, *epoch, false)?;
                self.take_up_leaderships(*id);
                Ok(())
            }
            Record::BrokerRemoved { id, epoch } => {
                self.registered(*id, *epoch)?;
                self.image.brokers.remove(id);
                self.give_up_leaderships(*id);
                Ok(())
            }
            Record::Topic { name, id } => self.add_topic(name, *id),
            Record::Partition { topic, .. } => self.add_partitions(*topic, std::slice::from_ref(record)),
            Record::PartitionChanged(change) => self.change_partition(change),
            Record::TopicRemoved { id } => self.remove_topic(*id),
            Record::Config { resource, name, value } => {
                self.set_config(resource, name, value.as_deref());
                Ok(())
            }
            Record::ProducerIds { next, .. } => {
                self.image.next_producer_id = self.image.next_producer_id.max(*next);
                Ok(())
            }
            Record::Feature { name, level } => {
                let features = Arc::make_mut(&mut self.image.features);
                match level {
                    0 => features.remove(name),
                    _ => features.insert(name.clone(), *level),
                };
                Ok(())
            }
            Record::BrokerChanged(change) => self.change_broker(change),
            Record::DirectoryFailed { broker, epoch, directory, rules } => {
                self.fail_directory(*broker, *epoch, *directory, rules)
            }
            Record::ControllerRegistered(controller) => {
                self.image.controllers.insert(controller.id, Arc::new(controller.clone()));
                Ok(())
            }
            Record::ClientQuota { entity, key, limit } => {
                Arc::make_mut(&mut self.image.client_quotas).set(entity, *key, *limit);
                Ok(())
            }
        }
    }

    /// A broker of a cluster that does not serve any more leaves what it is in sync with, or has it led by others;
    /// one that begins to serve leads what nobody else may.
    fn change_broker(&mut self, change: &BrokerChange) -> Result<(), ApplyError> {
        let before = self.registered(change.id, change.epoch)?;
        let after = BrokerImage {
            fenced: change.fenced.unwrap_or(before.fenced),
            shutting_down: change.shutting_down.unwrap_or(before.shutting_down),
            ..BrokerImage::clone(before)
        };
        let (id, serves) = (change.id, after.serves());
        self.image.brokers.insert(id, Arc::new(after));
        self.elect(&change.rules, |partition| {
            if serves {
                let waits = partition.leader.is_none() && partition.replicas.contains(&id);
                return waits.then(|| Target::of(partition, partition.transit()));
            }
            let is_part = partition.isr.contains(&id) || partition.leader == Some(id);
            let is_eligible = change.is_unclean && partition.transit().elr.contains(&id);
            (is_part || is_eligible).then(|| {
                let mut target = Target::of(partition, partition.transit());
                target.isr.retain(|other| *other != id);
                target.unclean = change.is_unclean.then_some(id);
                target
            })
        });
        Ok(())
    }

    /// What a broker had in a directory is lost: it leaves what it is in sync with, or has it led by others.
    fn fail_directory(
        &mut self,
        id: BrokerId,
        epoch: BrokerEpoch,
        directory: Uuid,
        stamp: &Stamp,
    ) -> Result<(), ApplyError> {
        let mut broker = BrokerImage::clone(self.registered(id, epoch)?);
        broker.log_dirs.retain(|other| *other != directory);
        self.image.brokers.insert(id, Arc::new(broker));
        self.change_partitions(|partition| {
            let is_there = partition.replicas.contains(&id) && partition.directory_of(id) == directory;
            is_there.then(|| {
                let directories = partition.directories_with(id, LOST_DIRECTORY);
                let partition_epoch = partition.partition_epoch + 1;
                PartitionImage { directories, partition_epoch, ..partition.clone() }
            })
        });
        self.elect(stamp, |partition| {
            let transit = partition.transit();
            let counts =
                partition.isr.contains(&id) || partition.leader == Some(id) || transit.elr.contains(&id);
            (counts && partition.is_lost_on(id)).then(|| {
                let mut target = Target::of(partition, transit);
                target.isr.retain(|other| *other != id);
                target.unclean = Some(id);
                target
            })
        });
        Ok(())
    }

    /// Makes of every partition what `wanted` wants of it, as far as the rule allows.
    fn elect(&mut self, stamp: &Stamp, wanted: impl Fn(&PartitionImage) -> Option<Target>) {
        let serving: BTreeMap<BrokerId, bool> =
            self.image.brokers().map(|broker| (broker.id, broker.serves())).collect();
        let mut settings = TopicSettings::new(&self.image, stamp);
        let mut changed_topics = Vec::new();
        for topic in self.image.topics() {
            let mut changed: Option<TopicImage> = None;
            for (position, partition) in topic.partitions.iter().enumerate() {
                let Some(target) = wanted(partition) else { continue };
                let (min_isr, election) = settings.of(&topic.name);
                let serves = |broker: BrokerId| {
                    serving.get(&broker).copied().unwrap_or(false) && !partition.is_lost_on(broker)
                };
                let rules = Rules { election, elr: stamp.elr, min_isr, serves: &serves };
                if let Some(change) = elections::change(partition, partition.transit(), target, &rules) {
                    let topic = changed.get_or_insert_with(|| TopicImage::clone(topic));
                    topic.partitions[position] = Arc::new(change.apply_to(partition));
                }
            }
            changed_topics.extend(changed);
        }
        for topic in changed_topics {
            self.put_topic(topic);
        }
    }

    fn set_cluster(&mut self, id: &str) -> Result<(), ApplyError> {
        let old = &self.image.cluster_id;
        if !old.is_empty() && **old != *id {
            return Err(ApplyError::OtherCluster { old: old.clone(), new: id.to_owned() });
        }
        self.image.cluster_id = Arc::from(id);
        Ok(())
    }

    fn registered(&self, id: BrokerId, epoch: BrokerEpoch) -> Result<&Arc<BrokerImage>, ApplyError> {
        let broker = self.image.broker(id).filter(|broker| broker.epoch == epoch);
        broker.ok_or(ApplyError::NoBroker(id, epoch))
    }

    fn set_fenced(&mut self, id: BrokerId, epoch: BrokerEpoch, fenced: bool) -> Result<(), ApplyError> {
        let broker = BrokerImage { fenced, ..BrokerImage::clone(self.registered(id, epoch)?) };
        self.image.brokers.insert(id, Arc::new(broker));
        Ok(())
    }

    fn add_topic(&mut self, name: &TopicName, id: TopicId) -> Result<(), ApplyError> {
        if self.image.topic(name).is_some() || self.image.topic_by_id(id).is_some() {
            return Err(ApplyError::TopicExists(name.clone(), id));
        }
        if let Some(key) = names::collision_key(name) {
            self.image.collision_keys.insert(key, name.clone());
        }
        self.put_topic(TopicImage { name: name.clone(), id, partitions: Vec::new() });
        Ok(())
    }

    /// `run` holds only [`Record::Partition`]s of `topic`.
    fn add_partitions(&mut self, topic: TopicId, run: &[Record]) -> Result<(), ApplyError> {
        let mut changed = self.topic(topic)?;
        changed.partitions.reserve(run.len());
        for record in run {
            let Record::Partition { index, partition, .. } = record else { continue };
            if usize::try_from(index.0) != Ok(changed.partitions.len()) {
                return Err(ApplyError::PartitionOrder(topic, *index));
            }
            changed.partitions.push(Arc::new(partition.clone()));
        }
        self.image.partition_count += run.len();
        self.put_topic(changed);
        Ok(())
    }

    fn change_partition(&mut self, change: &PartitionChange) -> Result<(), ApplyError> {
        let mut topic = self.topic(change.topic)?;
        let position = usize::try_from(change.index.0).unwrap_or(usize::MAX);
        let Some(partition) = topic.partitions.get_mut(position) else {
            return Err(ApplyError::NoPartition(change.topic, change.index));
        };
        let partition = Arc::make_mut(partition);
        if let Some(leader) = change.leader {
            lead(partition, leader);
        } else {
            partition.partition_epoch += 1;
        }
        if let Some(isr) = &change.isr {
            partition.isr = isr.clone();
        }
        if let Some(replicas) = &change.replicas {
            partition.replicas = replicas.clone();
        }
        if let Some(directories) = &change.directories {
            partition.directories = directories.clone();
        }
        if let Some(transit) = &change.transit {
            partition.transit = (*transit != elections::NO_TRANSIT).then(|| Box::new(transit.clone()));
        }
        self.put_topic(topic);
        Ok(())
    }

    fn remove_topic(&mut self, id: TopicId) -> Result<(), ApplyError> {
        let topic = self.image.topics_by_id.remove(&id).ok_or(ApplyError::NoTopic(id))?;
        self.image.topics_by_name.remove(&*topic.name);
        if let Some(key) = names::collision_key(&topic.name) {
            self.image.collision_keys.remove(&key);
        }
        self.image.configs.remove(&ConfigResource::Topic(topic.name.clone()));
        self.image.partition_count -= topic.partitions.len();
        Ok(())
    }

    fn set_config(&mut self, resource: &ConfigResource, name: &str, value: Option<&str>) {
        let mut overrides = Overrides::clone(self.image.overrides(resource));
        match value {
            Some(value) => overrides.insert(name.to_owned(), value.to_owned()),
            None => overrides.remove(name),
        };
        if overrides.is_empty() {
            self.image.configs.remove(resource);
        } else {
            self.image.configs.insert(resource.clone(), Arc::new(overrides));
        }
    }

    /// The broker (re)started: it tells anew which of its replicas are on an offline directory.
    fn find_lost_replicas(&mut self, broker: BrokerId) {
        self.change_partitions(|partition| {
            partition.is_lost_on(broker).then(|| {
                let directories = partition.directories_with(broker, Uuid::nil());
                let partition_epoch = partition.partition_epoch + 1;
                PartitionImage { directories, partition_epoch, ..partition.clone() }
            })
        });
    }

    /// The broker (re)started: whatever it still leads gets a new leader epoch, so that consumers notice a
    /// lost tail (KIP-320), and it leads again what waited for it.
    fn take_up_leaderships(&mut self, broker: BrokerId) {
        self.change_partitions(|partition| {
            let in_sync = partition.isr.contains(&broker) && !partition.is_lost_on(broker);
            let waits = partition.leader.is_none() && in_sync;
            if partition.leader == Some(broker) || waits {
                let mut changed = partition.clone();
                lead(&mut changed, Some(broker));
                return Some(changed);
            }
            None
        });
    }

    /// The broker is gone: it leaves the ISRs that others are in, and what it led goes to the first replica
    /// that is in sync and alive.
    fn give_up_leaderships(&mut self, broker: BrokerId) {
        let alive: BTreeMap<BrokerId, bool> =
            self.image.brokers().map(|other| (other.id, !other.fenced)).collect();
        self.change_partitions(|partition| {
            if !partition.isr.contains(&broker) {
                return None;
            }
            let mut changed = partition.clone();
            if changed.isr.len() > 1 {
                changed.isr = changed.isr.iter().copied().filter(|other| *other != broker).collect();
            }
            if partition.leader == Some(broker) {
                let is_alive = |other: &BrokerId| {
                    alive.get(other).copied().unwrap_or(false) && !partition.is_lost_on(*other)
                };
                let in_sync = |other: &BrokerId| changed.isr.contains(other);
                let next = changed.replicas.iter().copied().find(|other| in_sync(other) && is_alive(other));
                lead(&mut changed, next);
            } else {
                changed.partition_epoch += 1;
            }
            (changed != *partition).then_some(changed)
        });
    }

    /// Replaces every partition for which `change` returns another.
    fn change_partitions(&mut self, change: impl Fn(&PartitionImage) -> Option<PartitionImage>) {
        let mut changed_topics = Vec::new();
        for topic in self.image.topics() {
            let mut changed: Option<TopicImage> = None;
            for (position, partition) in topic.partitions.iter().enumerate() {
                if let Some(partition) = change(partition) {
                    let topic = changed.get_or_insert_with(|| TopicImage::clone(topic));
                    topic.partitions[position] = Arc::new(partition);
                }
            }
            changed_topics.extend(changed);
        }
        for topic in changed_topics {
            self.put_topic(topic);
        }
    }

    fn topic(&self, id: TopicId) -> Result<TopicImage, ApplyError> {
        self.image.topic_by_id(id).map(|topic| TopicImage::clone(topic)).ok_or(ApplyError::NoTopic(id))
    }

    fn put_topic(&mut self, topic: TopicImage) {
        let topic = Arc::new(topic);
        self.image.topics_by_name.insert(topic.name.clone(), topic.clone());
        self.image.topics_by_id.insert(topic.id, topic);
    }
}

/// What the settings of topics say to the rule for their partitions.
pub(super) struct TopicSettings<'a> {
    image: &'a Image,
    stamp: &'a Stamp,
    /// Of the topic that was asked for last.
    last: Option<(TopicName, (usize, Election))>,
}

impl<'a> TopicSettings<'a> {
    pub(super) fn new(image: &'a Image, stamp: &'a Stamp) -> Self {
        Self { image, stamp, last: None }
    }

    /// The least number in sync, and how a leader is elected where nobody leads.
    pub(super) fn of(&mut self, topic: &TopicName) -> (usize, Election) {
        if let Some((_, known)) = self.last.as_ref().filter(|(last, _)| last == topic) {
            return *known;
        }
        let own = self.image.overrides(&ConfigResource::Topic(topic.clone()));
        let default = self.image.overrides(&ConfigResource::BrokerDefault);
        let value = |name: &str| own.get(name).or_else(|| default.get(name)).map(String::as_str);
        let min_isr = value("min.insync.replicas").and_then(|text| text.trim().parse().ok());
        let unclean = value("unclean.leader.election.enable").map(|text| text.trim() == "true");
        let min_isr = usize::try_from(min_isr.unwrap_or(self.stamp.min_isr)).unwrap_or(1).max(1);
        let election = match unclean.unwrap_or(self.stamp.unclean_election) {
            true => Election::Unclean,
            false => Election::Online,
        };
        self.last = Some((topic.clone(), (min_isr, election)));
        (min_isr, election)
    }
}

/// A new leadership: both epochs grow.
fn lead(partition: &mut PartitionImage, leader: Option<BrokerId>) {
    partition.leader = leader;
    partition.leader_epoch = LeaderEpoch(partition.leader_epoch.0 + 1);
    partition.partition_epoch += 1;
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::quotas::{QuotaEntity, QuotaKey, QuotaLimit, QuotaName};
    use super::*;

    fn id(number: u128) -> TopicId {
        TopicId(Uuid::from_u128(number))
    }

    fn broker(id: i32, epoch: i64, fenced: bool) -> Record {
        Record::BrokerRegistered(BrokerImage {
            id: BrokerId(id),
            epoch: BrokerEpoch(epoch),
            incarnation: Uuid::from_u128(epoch as u128),
            endpoints: Vec::new(),
            rack: None,
            fenced,
            shutting_down: false,
            log_dirs: Vec::new(),
            features: Vec::new(),
        })
    }

    fn partition(topic: TopicId, index: i32, replicas: &[i32]) -> Record {
        let replicas: Box<[BrokerId]> = replicas.iter().copied().map(BrokerId).collect();
        let partition = PartitionImage {
            isr: replicas.clone(),
            leader: Some(replicas[0]),
            replicas,
            leader_epoch: LeaderEpoch(0),
            partition_epoch: 0,
            directories: Box::default(),
            transit: None,
        };
        Record::Partition { topic, index: PartitionIndex(index), partition }
    }

    fn quota(user: &str, limit: Option<f64>) -> Record {
        let entity = QuotaEntity { user: Some(QuotaName::Of(user.into())), ..QuotaEntity::default() };
        Record::ClientQuota { entity, key: QuotaKey::RequestPercentage, limit: limit.map(QuotaLimit::new) }
    }

    fn state() -> State {
        let mut state = State::default();
        let orders = id(1);
        let records = [
            Record::Cluster { id: "c".into() },
            broker(1, 5, false),
            broker(2, 6, false),
            Record::Topic { name: "orders".into(), id: orders },
            partition(orders, 0, &[1]),
            partition(orders, 1, &[1, 2]),
            partition(orders, 2, &[2, 1]),
            Record::Topic { name: "a.b".into(), id: id(2) },
            partition(id(2), 0, &[2]),
            Record::Config {
                resource: ConfigResource::Topic("orders".into()),
                name: "retention.ms".into(),
                value: Some("5".into()),
            },
            Record::Config {
                resource: ConfigResource::BrokerDefault,
                name: "x".into(),
                value: Some("y".into()),
            },
            Record::ProducerIds {
                broker: BrokerId(1),
                epoch: BrokerEpoch(5),
                next: crate::base::ProducerId(1000),
            },
            Record::Feature { name: "transaction.version".into(), level: 2 },
            quota("a", Some(1.5)),
            quota("b", Some(2.0)),
        ];
        state.apply(7, &records).unwrap();
        state
    }

    fn leaders(state: &State) -> Vec<(Option<i32>, i32)> {
        let topic = state.image().topic("orders").unwrap();
        topic.partitions.iter().map(|p| (p.leader.map(|id| id.0), p.leader_epoch.0)).collect()
    }

    #[test]
    fn a_snapshot_gives_the_same_state() {
        let mut state = state();
        state
            .apply(8, &[Record::BrokerFenced { id: BrokerId(1), epoch: BrokerEpoch(5) }, broker(2, 9, false)])
            .unwrap();
        let copy = State::decode(8, &state.encode()).unwrap();
        assert_eq!(format!("{:?}", copy.records()), format!("{:?}", state.records()));
        assert_eq!(copy.image().version(), 8);
        assert_eq!(copy.image().partition_count(), 4);
        assert_eq!(copy.image().colliding_topic("a_b").map(|name| &**name), Some("a.b"));
        assert!(copy.image().changes_since(&copy.clone().image).is_empty());
        assert_eq!(copy.image().client_quotas().iter().count(), 2);
    }

    #[test]
    fn quotas_are_another_object_only_when_they_change() {
        let mut state = state();
        let before = state.image().client_quotas().clone();
        state.apply(8, &[Record::Feature { name: "f".into(), level: 1 }]).unwrap();
        assert!(Arc::ptr_eq(&before, state.image().client_quotas()));
        state.apply(9, &[quota("a", None)]).unwrap();
        assert_eq!((before.iter().count(), state.image().client_quotas().iter().count()), (2, 1));
    }

    #[test]
    fn a_restart_raises_the_leader_epochs_of_the_broker_only() {
        let mut state = state();
        let before = state.image().clone();
        state.apply(8, &[broker(1, 8, false)]).unwrap();
        assert_eq!(leaders(&state), [(Some(1), 1), (Some(1), 1), (Some(2), 0)]);
        let changes = state.image().changes_since(&before);
        assert_eq!(changes.topics_changed.len(), 1);
        assert!(changes.brokers_changed && changes.topics_added.is_empty());
    }

    #[test]
    fn a_fenced_broker_gives_up_what_others_can_lead_and_takes_the_rest_up_again() {
        let mut state = state();
        let (id, epoch) = (BrokerId(1), BrokerEpoch(5));
        state.apply(8, &[Record::BrokerFenced { id, epoch }]).unwrap();
        assert_eq!(leaders(&state), [(None, 1), (Some(2), 1), (Some(2), 0)]);
        let topic = state.image().topic("orders").unwrap().clone();
        assert_eq!(&*topic.partitions[0].isr, [BrokerId(1)]);
        assert_eq!(&*topic.partitions[1].isr, [BrokerId(2)]);
        state.apply(9, &[Record::BrokerUnfenced { id, epoch }]).unwrap();
        assert_eq!(leaders(&state), [(Some(1), 2), (Some(2), 1), (Some(2), 0)]);
        let wrong = Record::BrokerUnfenced { id, epoch: BrokerEpoch(4) };
        assert_eq!(state.apply(10, &[wrong]), Err(ApplyError::NoBroker(id, BrokerEpoch(4))));
    }

    #[test]
    fn a_removed_topic_takes_its_configs_along() {
        let mut state = state();
        let before = state.image().clone();
        state.apply(8, &[Record::TopicRemoved { id: id(1) }]).unwrap();
        let image = state.image();
        assert!(image.topic("orders").is_none() && image.topic_by_id(id(1)).is_none());
        assert!(image.overrides(&ConfigResource::Topic("orders".into())).is_empty());
        assert_eq!((image.topic_count(), image.partition_count()), (1, 1));
        let changes = image.changes_since(&before);
        assert_eq!(changes.topics_removed[0].id, id(1));
        assert_eq!(changes.configs_changed, [ConfigResource::Topic("orders".into())]);
        // The same name again is another topic.
        state.apply(9, &[Record::Topic { name: "orders".into(), id: id(3) }]).unwrap();
        let changes = state.image().changes_since(&before);
        assert_eq!(
            (changes.topics_removed[0].id, changes.topics_added[0].id, changes.topics_changed.len()),
            (id(1), id(3), 0)
        );
    }

    #[test]
    fn records_that_contradict_the_state_are_refused() {
        let mut state = state();
        assert_eq!(state.apply(8, &[Record::TopicRemoved { id: id(9) }]), Err(ApplyError::NoTopic(id(9))));
        assert_eq!(
            state.apply(8, &[partition(id(1), 5, &[1])]),
            Err(ApplyError::PartitionOrder(id(1), PartitionIndex(5)))
        );
        let again = Record::Topic { name: "orders".into(), id: id(4) };
        assert!(matches!(state.apply(8, &[again]), Err(ApplyError::TopicExists(..))));
        let other = Record::Cluster { id: "d".into() };
        assert!(matches!(state.apply(8, &[other]), Err(ApplyError::OtherCluster { .. })));
    }

    #[test]
    fn a_change_of_one_partition_among_100_000_is_cheap_to_find() {
        let mut state = State::default();
        for number in 0..10_000u128 {
            let name = TopicName::new(&format!("t{number}"));
            let mut records = vec![Record::Topic { name, id: id(number) }];
            records.extend((0..10).map(|index| partition(id(number), index, &[1])));
            state.apply(number as u64, &records).unwrap();
        }
        let before = state.image().clone();
        let change = PartitionChange {
            topic: id(77),
            index: PartitionIndex(3),
            leader: Some(None),
            isr: None,
            replicas: None,
            directories: None,
            transit: None,
        };
        state.apply(20_000, &[Record::PartitionChanged(change)]).unwrap();
        let changes = state.image().changes_since(&before);
        let [(old, new)] = &changes.topics_changed[..] else { panic!("{changes:?}") };
        assert_eq!(old.partitions[3].leader, Some(BrokerId(1)));
        assert_eq!(new.partitions[3].leader, None);
        // All other partitions are still the same objects.
        assert!(Arc::ptr_eq(&old.partitions[2], &new.partitions[2]));
        assert_eq!(state.image().partition_count(), 100_000);
    }
}
