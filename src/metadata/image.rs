//! The immutable picture of the cluster that every shard reads: brokers, topics, config overrides.
//!
//! Published as `Arc<Image>`. A clone shares everything; a change copies only what it touches, see
//! [`SortedMap`].

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use uuid::Uuid;

use super::changes::Changes;
use super::elections::{NO_TRANSIT, Transit};
use super::features::KRAFT_VERSION;
use super::names;
use super::quotas::ClientQuotas;
use super::sorted_map::SortedMap;
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, ProducerId, TopicId, TopicName};

/// Config names and values that somebody set on one resource; defaults are not in it.
pub type Overrides = BTreeMap<String, String>;

static NO_OVERRIDES: LazyLock<Arc<Overrides>> = LazyLock::new(Arc::default);

/// The cluster as of one applied entry of the metadata log.
#[derive(Clone, Debug, Default)]
pub struct Image {
    pub(super) version: u64,
    pub(super) cluster_id: Arc<str>,
    pub(super) brokers: SortedMap<BrokerId, Arc<BrokerImage>>,
    pub(super) controllers: SortedMap<BrokerId, Arc<ControllerImage>>,
    pub(super) topics_by_name: SortedMap<TopicName, Arc<TopicImage>>,
    pub(super) topics_by_id: SortedMap<TopicId, Arc<TopicImage>>,
    /// Topics with `.` or `_` in the name, by [`names::collision_key`].
    pub(super) collision_keys: SortedMap<String, TopicName>,
    pub(super) configs: SortedMap<ConfigResource, Arc<Overrides>>,
    pub(super) features: Arc<BTreeMap<String, i16>>,
    pub(super) client_quotas: Arc<ClientQuotas>,
    pub(super) next_producer_id: ProducerId,
    pub(super) partition_count: usize,
}

impl Image {
    /// The index in the metadata log of the last entry in this image; grows with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Empty until the cluster was bootstrapped.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// All registered brokers, by ascending id.
    pub fn brokers(&self) -> impl Iterator<Item = &Arc<BrokerImage>> {
        self.brokers.iter().map(|(_, broker)| broker)
    }

    pub fn broker(&self, id: BrokerId) -> Option<&Arc<BrokerImage>> {
        self.brokers.get(&id)
    }

    /// The registered controllers of a cluster, by ascending id.
    pub fn controllers(&self) -> impl Iterator<Item = &Arc<ControllerImage>> {
        self.controllers.iter().map(|(_, controller)| controller)
    }

    pub fn controller(&self, id: BrokerId) -> Option<&Arc<ControllerImage>> {
        self.controllers.get(&id)
    }

    pub fn topic(&self, name: &str) -> Option<&Arc<TopicImage>> {
        self.topics_by_name.get(name)
    }

    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<TopicImage>> {
        self.topics_by_id.get(&id)
    }

    /// All topics, by ascending name.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<TopicImage>> {
        self.topics_by_name.iter().map(|(_, topic)| topic)
    }

    /// The topics named `first` or greater, by ascending name.
    pub fn topics_from(&self, first: &str) -> impl Iterator<Item = &Arc<TopicImage>> {
        self.topics_by_name.iter_from(first).map(|(_, topic)| topic)
    }

    pub fn partition(&self, topic: &str, partition: PartitionIndex) -> Option<&Arc<PartitionImage>> {
        self.topic(topic)?.partition(partition)
    }

    pub fn topic_count(&self) -> usize {
        self.topics_by_name.len()
    }

    pub fn partition_count(&self) -> usize {
        self.partition_count
    }

    /// What was set on `resource`; empty when nothing was.
    pub fn overrides(&self, resource: &ConfigResource) -> &Arc<Overrides> {
        self.configs.get(resource).unwrap_or(&NO_OVERRIDES)
    }

    /// Every resource that has overrides.
    pub fn configs(&self) -> impl Iterator<Item = (&ConfigResource, &Arc<Overrides>)> {
        self.configs.iter()
    }

    /// The first producer id that was not given out in a block.
    pub fn next_producer_id(&self) -> ProducerId {
        self.next_producer_id
    }

    /// The finalized level of a feature (KIP-584).
    pub fn feature(&self, name: &str) -> Option<i16> {
        self.features.get(name).copied()
    }

    /// Whether the voters on the metadata log are those that it says, not those of the nodes' files (KIP-853).
    pub fn voters_change(&self) -> bool {
        self.feature(KRAFT_VERSION).is_some_and(|level| level > 0)
    }

    /// The same object as in every other image that has the same quotas.
    pub fn client_quotas(&self) -> &Arc<ClientQuotas> {
        &self.client_quotas
    }

    pub fn features(&self) -> impl Iterator<Item = (&str, i16)> {
        self.features.iter().map(|(name, level)| (name.as_str(), *level))
    }

    /// What differs from `old`, an earlier image of the same log. May skip any number of versions; costs
    /// what changed plus one pointer comparison per 64 to 128 topics.
    pub fn changes_since(&self, old: &Image) -> Changes {
        Changes::between(old, self)
    }

    /// The topic whose name differs from `name` only by `.` and `_`, if any, `name` itself included.
    pub fn colliding_topic(&self, name: &str) -> Option<&TopicName> {
        self.collision_keys.get(&names::collision_key(name)?)
    }
}

/// A topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicImage {
    pub name: TopicName,
    pub id: TopicId,
    /// The position is the partition's number: numbers have no gaps.
    pub partitions: Vec<Arc<PartitionImage>>,
}

impl TopicImage {
    pub fn partition(&self, partition: PartitionIndex) -> Option<&Arc<PartitionImage>> {
        self.partitions.get(usize::try_from(partition.0).ok()?)
    }

    /// Partitions with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (PartitionIndex, &Arc<PartitionImage>)> {
        (0..).map(PartitionIndex).zip(&self.partitions)
    }

    /// Whether the brokers own the topic's contents (`__consumer_offsets` and the like).
    pub fn is_internal(&self) -> bool {
        names::is_internal_topic(&self.name)
    }
}

/// A partition as the controller sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionImage {
    /// The preferred leader is the first.
    pub replicas: Box<[BrokerId]>,
    /// In-sync replicas, in the order of `replicas`. In a cluster none at all may be left: then those of
    /// [`Transit::elr`] have what was acknowledged.
    pub isr: Box<[BrokerId]>,
    /// `None` while no in-sync replica is alive.
    pub leader: Option<BrokerId>,
    /// Grows with each leadership, also when the same broker starts again.
    pub leader_epoch: LeaderEpoch,
    /// Grows with each change of this partition.
    pub partition_epoch: i32,
    /// The log directory of each replica (KIP-858); empty while none is assigned.
    pub directories: Box<[Uuid]>,
    /// What is on its way with it; `None` is the same as nothing.
    pub transit: Option<Box<Transit>>,
}

/// Stands for the log directory of a replica whose directory is offline (Kafka's `DirectoryId.LOST`).
pub const LOST_DIRECTORY: Uuid = Uuid::from_u128(1);

impl PartitionImage {
    /// Whether the broker has a replica, and its log directory is offline.
    pub fn is_lost_on(&self, broker: BrokerId) -> bool {
        let directories = self.replicas.iter().zip(&self.directories);
        directories.into_iter().any(|(replica, directory)| *replica == broker && *directory == LOST_DIRECTORY)
    }

    pub fn transit(&self) -> &Transit {
        self.transit.as_deref().unwrap_or(&NO_TRANSIT)
    }

    /// The log directory of the broker's replica, nil where it is not known.
    pub fn directory_of(&self, broker: BrokerId) -> Uuid {
        let mut directories = self.replicas.iter().zip(&self.directories);
        directories.find(|(replica, _)| **replica == broker).map_or(Uuid::nil(), |(_, directory)| *directory)
    }

    /// The directories with another one for the broker's replica.
    pub(super) fn directories_with(&self, broker: BrokerId, directory: Uuid) -> Box<[Uuid]> {
        let known = |index: usize| self.directories.get(index).copied().unwrap_or(Uuid::nil());
        let replicas = self.replicas.iter().enumerate();
        replicas.map(|(index, id)| if *id == broker { directory } else { known(index) }).collect()
    }
}

/// A registered broker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerImage {
    pub id: BrokerId,
    /// Of this registration.
    pub epoch: BrokerEpoch,
    /// Chosen by the process when it started.
    pub incarnation: Uuid,
    pub endpoints: Vec<Endpoint>,
    pub rack: Option<String>,
    /// A fenced broker leads nothing and is shown to no client.
    pub fenced: bool,
    /// It has said that it is about to stop: it leads nothing any more, and is given nothing new.
    pub shutting_down: bool,
    pub log_dirs: Vec<Uuid>,
    /// The levels that it can work at; empty on a node alone, which is its own controller.
    pub features: Vec<FeatureRange>,
}

impl BrokerImage {
    /// Whether its replicas may lead and be in sync.
    pub fn serves(&self) -> bool {
        !self.fenced && !self.shutting_down
    }

    /// The address that clients of `listener` are told.
    pub fn endpoint(&self, listener: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.listener.eq_ignore_ascii_case(listener))
    }
}

/// A node that may lead the metadata log of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerImage {
    pub id: BrokerId,
    /// Chosen by the process when it started.
    pub incarnation: Uuid,
    pub endpoints: Vec<Endpoint>,
    /// The levels that it can work at.
    pub features: Vec<FeatureRange>,
}

/// The levels of a feature that a node can work at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeatureRange {
    pub name: String,
    pub min: i16,
    pub max: i16,
}

/// An advertised listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    pub listener: String,
    pub host: String,
    pub port: u16,
    /// Kafka's `SecurityProtocol` id: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL.
    pub security_protocol: i16,
}

/// What a config can be set on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ConfigResource {
    Topic(TopicName),
    Broker(BrokerId),
    /// All brokers (the empty broker name).
    BrokerDefault,
    Group(String),
    ClientMetrics(String),
}
