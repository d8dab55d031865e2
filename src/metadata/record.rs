//! The records of the metadata log: every change of the cluster is one or more of them.
//!
//! A record is a fact, not a request: applying it cannot be refused. Some of them
//! ([`Record::BrokerRegistered`], [`Record::BrokerFenced`], [`Record::BrokerUnfenced`], and in a cluster
//! [`Record::BrokerChanged`]) also move the leaderships of the broker by a fixed rule (`State`), so that a start
//! with 100,000 partitions writes one record, not 100,000.

use uuid::Uuid;

use super::elections::Transit;
use super::image::{BrokerImage, ConfigResource, ControllerImage, PartitionImage};
use super::quotas::{QuotaEntity, QuotaKey, QuotaLimit};
use crate::base::{BrokerEpoch, BrokerId, PartitionIndex, ProducerId, TopicId, TopicName};

/// One change. In brackets: the record of Apache Kafka's KRaft log that says the like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The first record of a log: the cluster's identity. (`meta.properties` and the bootstrap records)
    Cluster { id: String },
    /// A broker process registered; unfenced, it takes up the leaderships that are its own, each with a
    /// new leader epoch. (`RegisterBrokerRecord`, with the `PartitionChangeRecord`s that follow)
    BrokerRegistered(BrokerImage),
    /// A broker is considered dead: it leaves ISRs and leaderships.
    /// (`BrokerRegistrationChangeRecord`, before `FenceBrokerRecord`)
    BrokerFenced { id: BrokerId, epoch: BrokerEpoch },
    /// A broker is ready. (`BrokerRegistrationChangeRecord`, before `UnfenceBrokerRecord`)
    BrokerUnfenced { id: BrokerId, epoch: BrokerEpoch },
    /// A broker left for good. (`UnregisterBrokerRecord`)
    BrokerRemoved { id: BrokerId, epoch: BrokerEpoch },
    /// A topic without partitions yet. (`TopicRecord`)
    Topic { name: TopicName, id: TopicId },
    /// A partition; numbers of a topic come without gaps. (`PartitionRecord`)
    Partition { topic: TopicId, index: PartitionIndex, partition: PartitionImage },
    /// Fields of a partition are others now. (`PartitionChangeRecord`)
    PartitionChanged(PartitionChange),
    /// A topic, its partitions and its configs are gone. (`RemoveTopicRecord`)
    TopicRemoved { id: TopicId },
    /// A config was set, or with `None` went back to its default. (`ConfigRecord`)
    Config { resource: ConfigResource, name: String, value: Option<String> },
    /// Producer ids below `next` are given out. (`ProducerIdsRecord`)
    ProducerIds { broker: BrokerId, epoch: BrokerEpoch, next: ProducerId },
    /// A feature is finalized at a level; 0 takes it away. (`FeatureLevelRecord`)
    Feature { name: String, level: i16 },
    /// A broker of a cluster is fenced, unfenced or about to stop, and its partitions follow by the rule of
    /// `elections`. (`BrokerRegistrationChangeRecord`, with the `PartitionChangeRecord`s that follow)
    BrokerChanged(BrokerChange),
    /// A broker of a cluster has lost a log directory, and its replicas there follow by the rule of `elections`.
    /// (`BrokerRegistrationChangeRecord`, with the `PartitionChangeRecord`s before it)
    DirectoryFailed { broker: BrokerId, epoch: BrokerEpoch, directory: Uuid, rules: Stamp },
    /// A controller process of a cluster is there. (`RegisterControllerRecord`)
    ControllerRegistered(ControllerImage),
    /// A quota of clients was set, or with `None` taken away. (`ClientQuotaRecord`)
    ClientQuota { entity: QuotaEntity, key: QuotaKey, limit: Option<QuotaLimit> },
}

/// The fields that are `Some` are replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerChange {
    pub id: BrokerId,
    pub epoch: BrokerEpoch,
    pub fenced: Option<bool>,
    pub shutting_down: Option<bool>,
    /// It came back without being sure of all that it had: it is eligible nowhere.
    pub is_unclean: bool,
    pub rules: Stamp,
}

/// What the rule for partitions depends on and the image does not have: as the controller had it at that moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Whether eligible leader replicas are kept.
    pub elr: bool,
    /// `min.insync.replicas` of topics for which nobody has set it.
    pub min_isr: i32,
    /// `unclean.leader.election.enable` of topics for which nobody has set it.
    pub unclean_election: bool,
}

/// The fields that are `Some` are replaced. The partition epoch grows by one; the leader epoch does when
/// `leader` is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionChange {
    pub topic: TopicId,
    pub index: PartitionIndex,
    pub leader: Option<Option<BrokerId>>,
    pub isr: Option<Box<[BrokerId]>>,
    pub replicas: Option<Box<[BrokerId]>>,
    pub directories: Option<Box<[Uuid]>>,
    pub transit: Option<Transit>,
}
