//! Throttled replication (Kafka's `ReplicationQuotaManager`): replicas that are to catch up do not take from the others what
//! these need. Topics say which replicas that concerns (`leader.replication.throttled.replicas` and the like), brokers how
//! fast these may be sent and fetched. All that is replicated of them counts; when it is too much, those wait that are
//! not in sync.
//!
//! The rates are measured by all shards together, as those of clients are. Where no topic names a replica nothing is
//! measured and nothing looked up.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use super::Shard;
use super::placement::PartitionKey;
use super::replica::LivePartition;
use crate::base::clock::{self, Monotonic};
use crate::base::{BrokerId, PartitionIndex, Rate, TopicId, Windows};
use crate::metadata::{Changes, ConfigResource, Image, TopicImage};

const ALL: &str = "*";

/// Which end of replication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicationEnd {
    Leader,
    Follower,
}

impl ReplicationEnd {
    const BOTH: [ReplicationEnd; 2] = [ReplicationEnd::Leader, ReplicationEnd::Follower];

    /// The config of a topic that names its replicas.
    fn replicas_config(self) -> &'static str {
        match self {
            ReplicationEnd::Leader => "leader.replication.throttled.replicas",
            ReplicationEnd::Follower => "follower.replication.throttled.replicas",
        }
    }
}

/// How fast throttled partitions are replicated, at each end; one for the process.
#[derive(Debug)]
pub struct ReplicationMeters([Rate; 2]);

impl ReplicationMeters {
    pub fn new(windows: Windows, now: Monotonic) -> Self {
        Self([Rate::new(windows, now), Rate::new(windows, now)])
    }
}

/// What a shard knows of the throttles of this broker.
#[derive(Default)]
pub(super) struct Throttles([Throttled; 2]);

#[derive(Default)]
struct Throttled {
    bytes_per_second: Cell<u64>,
    topics: RefCell<HashMap<TopicId, Replicas, ahash::RandomState>>,
}

/// Those of one topic on this broker.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Replicas {
    All,
    These(Vec<PartitionIndex>),
}

impl Replicas {
    /// What a topic's config says of the broker's replicas; `None`: none of them.
    fn of(text: &str, broker: BrokerId) -> Option<Self> {
        if text.trim() == ALL {
            return Some(Self::All);
        }
        let pairs = text.split(',').filter_map(|pair| pair.trim().split_once(':'));
        let here = pairs.filter(|(_, id)| id.parse() == Ok(broker.0));
        let these: Vec<PartitionIndex> =
            here.filter_map(|(index, _)| index.parse().ok().map(PartitionIndex)).collect();
        (!these.is_empty()).then_some(Self::These(these))
    }

    fn has(&self, partition: PartitionIndex) -> bool {
        match self {
            Self::All => true,
            Self::These(these) => these.contains(&partition),
        }
    }
}

impl Throttled {
    fn set(&self, topic: TopicId, replicas: Option<Replicas>) {
        let mut topics = self.topics.borrow_mut();
        match replicas {
            Some(replicas) => topics.insert(topic, replicas),
            None => topics.remove(&topic),
        };
    }

    fn is_any(&self) -> bool {
        !self.topics.borrow().is_empty()
    }

    fn has(&self, key: PartitionKey) -> bool {
        let topics = self.topics.borrow();
        !topics.is_empty() && topics.get(&key.topic).is_some_and(|replicas| replicas.has(key.partition))
    }
}

impl Shard {
    /// Takes note of what is throttled, and how much, by a new image.
    pub(super) fn know_throttles(&self, changes: &Changes, image: &Image, is_first: bool) {
        let is_ours = |resource: &ConfigResource| match resource {
            ConfigResource::BrokerDefault => true,
            ConfigResource::Broker(broker) => *broker == self.settings.broker,
            _ => false,
        };
        if is_first || changes.configs_changed.iter().any(is_ours) {
            self.know_rates(image);
        }
        for topic in &changes.topics_removed {
            self.throttles.0.iter().for_each(|throttled| throttled.set(topic.id, None));
        }
        let configured = changes.configs_changed.iter().filter_map(|resource| match resource {
            ConfigResource::Topic(name) => image.topic(name),
            _ => None,
        });
        for topic in changes.topics_added.iter().chain(configured) {
            self.know_throttled(topic, image);
        }
    }

    fn know_rates(&self, image: &Image) {
        let broker = image.overrides(&ConfigResource::Broker(self.settings.broker));
        let default = image.overrides(&ConfigResource::BrokerDefault);
        let levels = self.settings.config.levels(broker, default);
        let [leader, follower] = &self.throttles.0;
        leader.bytes_per_second.set(levels.leader_bytes_per_second());
        follower.bytes_per_second.set(levels.follower_bytes_per_second());
    }

    fn know_throttled(&self, topic: &TopicImage, image: &Image) {
        let overrides = image.overrides(&ConfigResource::Topic(topic.name.clone()));
        for end in ReplicationEnd::BOTH {
            let text = overrides.get(end.replicas_config());
            let replicas = text.and_then(|text| Replicas::of(text, self.settings.broker));
            self.throttles.0[end as usize].set(topic.id, replicas);
        }
    }

    /// Whether any partition is throttled here.
    pub fn throttles(&self, end: ReplicationEnd) -> bool {
        self.throttles.0[end as usize].is_any()
    }

    /// Whether what is replicated of the partition counts.
    pub fn is_throttled(&self, end: ReplicationEnd, key: PartitionKey) -> bool {
        self.throttles.0[end as usize].has(key)
    }

    /// So many bytes of throttled partitions were replicated.
    pub fn note_replicated(&self, end: ReplicationEnd, bytes: u64) {
        let rate = &self.settings.replication.0[end as usize];
        rate.record(i64::try_from(bytes).unwrap_or(i64::MAX), clock::monotonic());
    }

    /// Whether a replica of the partition that is not in sync has to wait.
    pub fn holds_back(&self, end: ReplicationEnd, key: PartitionKey) -> bool {
        if !self.is_throttled(end, key) {
            return false;
        }
        let limit = self.throttles.0[end as usize].bytes_per_second.get();
        self.settings.replication.0[end as usize].is_above(limit as f64, clock::monotonic())
    }

    /// Whether a follower gets nothing of a partition that this broker leads. One that is in sync is not held back: it
    /// would fall out of sync (`ReplicaManager.shouldLeaderThrottle`).
    pub(super) fn holds_back_from(
        &self,
        follower: BrokerId,
        key: PartitionKey,
        partition: &LivePartition,
    ) -> bool {
        self.is_throttled(ReplicationEnd::Leader, key)
            && !partition.has_in_sync(follower)
            && self.holds_back(ReplicationEnd::Leader, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_names_partitions_and_brokers() {
        let of = |text: &str| Replicas::of(text, BrokerId(2));
        assert_eq!(of("*"), Some(Replicas::All));
        let some = of("0:1,0:2, 3:2 ,4:22").unwrap();
        assert_eq!(some, Replicas::These(vec![PartitionIndex(0), PartitionIndex(3)]));
        assert!(some.has(PartitionIndex(3)) && !some.has(PartitionIndex(4)));
        assert!(Replicas::All.has(PartitionIndex(4)));
        for none in ["", "0:1", "x", "2", "2:x"] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
