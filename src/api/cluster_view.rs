//! The cluster as the client of one listener may see it: what Metadata, DescribeCluster and
//! DescribeTopicPartitions share.

use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;

use super::Client;
use crate::base::BrokerId;
use crate::metadata::{BrokerImage, Endpoint, Image, PartitionImage};
use crate::wire::ErrorCode;

/// All operations that Kafka allows on a topic while no authorizer is set, one bit each: READ, WRITE,
/// CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS.
pub(super) const TOPIC_OPERATIONS: i32 = 3576;
/// The same for the cluster: CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS,
/// IDEMPOTENT_WRITE.
pub(super) const CLUSTER_OPERATIONS: i32 = 8096;

/// An image, seen through a listener.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub image: &'a Image,
    /// This node.
    pub broker: BrokerId,
    /// In a cluster, as far as this node knows it.
    pub controller: Option<BrokerId>,
    pub listener: &'a str,
}

/// A partition in the words of the protocol.
pub(super) struct PartitionView {
    pub error: Option<ErrorCode>,
    pub leader: BrokerId,
    pub offline: Vec<BrokerId>,
}

impl<'a> View<'a> {
    /// As a connection sees it.
    pub fn of(image: &'a Image, client: &'a Client) -> Self {
        let settings = client.shard.settings();
        let controller = settings.controller.node();
        Self { image, broker: settings.broker, controller, listener: client.listener.as_str() }
    }

    /// The unfenced brokers that have this listener, with their address on it.
    pub fn brokers(&self) -> impl Iterator<Item = (&'a BrokerImage, &'a Endpoint)> {
        self.all_brokers().filter(|(broker, _)| !broker.fenced)
    }

    /// The fenced ones too.
    pub fn all_brokers(&self) -> impl Iterator<Item = (&'a BrokerImage, &'a Endpoint)> {
        let listener = self.listener;
        self.image.brokers().filter_map(move |broker| Some((&**broker, broker.endpoint(listener)?)))
    }

    /// Whom a client is sent to for changes: the controller, and while none is known, or it serves no clients, this
    /// broker, which passes them on; -1 while that is not registered.
    pub fn controller(&self) -> BrokerId {
        let serves = |id: &BrokerId| self.brokers().any(|(broker, _)| broker.id == *id);
        match self.controller.filter(serves) {
            Some(controller) => controller,
            None if self.is_alive(self.broker) => self.broker,
            None => BrokerId(-1),
        }
    }

    pub fn is_alive(&self, id: BrokerId) -> bool {
        self.image.broker(id).is_some_and(|broker| !broker.fenced)
    }

    pub fn partition(&self, partition: &PartitionImage) -> PartitionView {
        let is_offline = |id: &BrokerId| !self.is_alive(*id) || partition.is_lost_on(*id);
        let offline = partition.replicas.iter().copied().filter(is_offline).collect();
        let leader = partition.leader.filter(|leader| self.is_alive(*leader));
        let (leader, error) = match leader {
            None => (BrokerId(-1), Some(ErrorCode::LeaderNotAvailable)),
            Some(leader) => {
                let endpoint = self.image.broker(leader).and_then(|broker| broker.endpoint(self.listener));
                match endpoint {
                    Some(_) => (leader, None),
                    None => (BrokerId(-1), Some(ErrorCode::ListenerNotFound)),
                }
            }
        };
        PartitionView { error, leader, offline }
    }
}

/// Broker ids as kafka-protocol has them.
pub(super) fn broker_ids(ids: &[BrokerId]) -> Vec<kafka_protocol::messages::BrokerId> {
    ids.iter().map(|id| broker_id(*id)).collect()
}

pub(super) fn broker_id(id: BrokerId) -> kafka_protocol::messages::BrokerId {
    kafka_protocol::messages::BrokerId(id.0)
}

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// What goes beside an error code, if it needs any words.
pub(super) fn message(words: &str) -> Option<StrBytes> {
    (!words.is_empty()).then(|| text(words))
}

pub(super) fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

#[cfg(test)]
pub(super) mod testing {
    //! A small cluster to look at.

    use uuid::Uuid;

    use super::*;
    use crate::base::{BrokerEpoch, LeaderEpoch, PartitionIndex, TopicId};
    use crate::metadata::{Record, State};

    pub fn topic_id(name: &str) -> TopicId {
        TopicId(Uuid::from_u128(
            name.bytes().fold(1, |sum: u128, byte| sum.wrapping_mul(257) + u128::from(byte)),
        ))
    }

    fn broker(id: i32, listeners: &[&str], fenced: bool) -> Record {
        let endpoints = listeners.iter().map(|listener| Endpoint {
            listener: (*listener).to_owned(),
            host: format!("{}-{id}", listener.to_lowercase()),
            port: 9092,
            security_protocol: 0,
        });
        Record::BrokerRegistered(BrokerImage {
            id: BrokerId(id),
            epoch: BrokerEpoch(i64::from(id)),
            incarnation: Uuid::from_u128(id as u128),
            endpoints: endpoints.collect(),
            rack: Some(format!("r{id}")),
            fenced,
            shutting_down: false,
            log_dirs: Vec::new(),
            features: Vec::new(),
        })
    }

    /// Topics by name and number of partitions, led by broker 1 and replicated to 2, which is fenced; 3 has
    /// listener `INSIDE` only. A topic whose name starts with `lost` has no leader.
    pub fn cluster(topics: &[(&str, i32)]) -> State {
        let mut records = vec![
            Record::Cluster { id: "cluster".into() },
            broker(1, &["PLAINTEXT", "INSIDE"], false),
            broker(2, &["PLAINTEXT"], true),
            broker(3, &["INSIDE"], false),
        ];
        for (name, partitions) in topics {
            let topic = topic_id(name);
            records.push(Record::Topic { name: (*name).into(), id: topic });
            for index in 0..*partitions {
                let partition = PartitionImage {
                    replicas: [BrokerId(1), BrokerId(2)].into(),
                    isr: [BrokerId(1)].into(),
                    leader: (!name.starts_with("lost")).then_some(BrokerId(1)),
                    leader_epoch: LeaderEpoch(7),
                    partition_epoch: 0,
                    directories: Box::default(),
                    transit: None,
                };
                records.push(Record::Partition { topic, index: PartitionIndex(index), partition });
            }
        }
        let mut state = State::default();
        if let Err(error) = state.apply(1, &records) {
            panic!("{error}");
        }
        state
    }

    pub fn view(state: &State) -> View<'_> {
        View { image: state.image(), broker: BrokerId(1), controller: None, listener: "PLAINTEXT" }
    }
}
