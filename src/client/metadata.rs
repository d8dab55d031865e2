//! What the client knows of the cluster: brokers, topics, leaders. Refreshed after errors and by age. No IO.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{MetadataRequest, MetadataResponse};
use kafka_protocol::protocol::StrBytes;

use super::backoff::Backoff;
use crate::base::clock::Monotonic;
use crate::base::random::Random;
use crate::base::{BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicName, TopicPartition};
use crate::wire::ErrorCode;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    pub host: String,
    pub port: u16,
    pub rack: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMetadata {
    /// Zero when the broker speaks no topic ids.
    pub id: TopicId,
    pub internal: bool,
    /// In order of index.
    pub partitions: Vec<PartitionMetadata>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMetadata {
    pub index: PartitionIndex,
    pub leader: Option<Leader>,
    pub replicas: Vec<BrokerId>,
    pub in_sync: Vec<BrokerId>,
    pub offline: Vec<BrokerId>,
}

/// Who leads a partition, since which epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    pub broker: BrokerId,
    pub epoch: LeaderEpoch,
}

/// The cache. Topics become part of it by [`Metadata::want`].
pub struct Metadata {
    brokers: BTreeMap<BrokerId, Broker>,
    controller: Option<BrokerId>,
    cluster_id: Option<String>,
    topics: BTreeMap<TopicName, Result<TopicMetadata, ErrorCode>>,
    wanted: BTreeSet<TopicName>,
    age_max: Duration,
    refreshed_at: Option<Monotonic>,
    asked: bool,
    retry_at: Monotonic,
    backoff: Backoff,
    generation: u64,
}

impl Metadata {
    /// `age_max` is `metadata.max.age.ms`; `backoff` are the first and the longest wait between refreshes.
    pub fn new(age_max: Duration, backoff: (Duration, Duration)) -> Self {
        Self {
            brokers: BTreeMap::new(),
            controller: None,
            cluster_id: None,
            topics: BTreeMap::new(),
            wanted: BTreeSet::new(),
            age_max,
            refreshed_at: None,
            asked: true,
            retry_at: Monotonic::ZERO,
            backoff: Backoff::new(backoff.0, backoff.1),
            generation: 0,
        }
    }

    /// Adds a topic to every refresh from now on; asks for one when nothing is known of it.
    pub fn want(&mut self, topic: &TopicName) {
        if self.wanted.insert(topic.clone()) {
            self.asked = true;
        }
    }

    /// Asks for a refresh: an answer showed that the cache is wrong.
    pub fn refresh(&mut self) {
        self.asked = true;
    }

    /// Whether a refresh should be sent now: asked for and not held back, or the cache is too old.
    pub fn is_due(&self, now: Monotonic) -> bool {
        self.due_in(now).is_zero()
    }

    /// The time until [`Metadata::is_due`].
    pub fn due_in(&self, now: Monotonic) -> Duration {
        let by_age = self.refreshed_at.map_or(now, |at| at.plus(self.age_max));
        let due = if self.asked { self.retry_at } else { by_age.max(self.retry_at) };
        due.since(now)
    }

    pub fn request(&self, create_topics: bool) -> MetadataRequest {
        let topic = |name: &TopicName| {
            MetadataRequestTopic::default().with_name(Some(StrBytes::from_string(name.to_string()).into()))
        };
        MetadataRequest::default()
            .with_topics(Some(self.wanted.iter().map(topic).collect()))
            .with_allow_auto_topic_creation(create_topics)
    }

    /// Takes an answer in. While a wanted topic or a leader is missing, the next refresh stays due, with
    /// growing waits.
    pub fn apply(&mut self, response: &MetadataResponse, random: &mut Random, now: Monotonic) {
        self.brokers = response.brokers.iter().map(|b| (BrokerId(b.node_id.0), broker(b))).collect();
        self.controller = Some(BrokerId(response.controller_id.0)).filter(|id| id.0 >= 0);
        self.cluster_id = response.cluster_id.as_ref().map(|id| id.to_string());
        self.refreshed_at = Some(now);
        self.generation += 1;
        let mut complete = true;
        for topic in &response.topics {
            let Some(name) = &topic.name else { continue };
            let name = TopicName::new(&name.0);
            let known = match ErrorCode::try_from_code(topic.error_code) {
                None => Ok(topic_metadata(topic, self.topics.get(&name).and_then(|t| t.as_ref().ok()))),
                Some(code) => Err(code),
            };
            complete &= match &known {
                Ok(topic) => topic.partitions.iter().all(|partition| partition.leader.is_some()),
                Err(code) => !code.is_retriable(),
            };
            self.topics.insert(name, known);
        }
        // One that was wanted while the request was under way is not in its answer.
        let unasked = self.wanted.iter().any(|name| !self.topics.contains_key(name));
        self.asked = !complete || unasked;
        if complete {
            self.backoff.succeeded();
            // A refresh asked for right after this one still waits the first back-off: answers that were
            // under way must not start a storm.
            self.retry_at = now.plus(self.backoff.failed(random));
            self.backoff.succeeded();
        } else {
            self.retry_at = now.plus(self.backoff.failed(random));
        }
    }

    /// A refresh was lost: try again after a wait.
    pub fn failed(&mut self, random: &mut Random, now: Monotonic) {
        self.asked = true;
        self.retry_at = now.plus(self.backoff.failed(random));
    }

    /// Counts the answers taken in.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All topics that something is known of.
    pub fn topics(&self) -> impl Iterator<Item = (&TopicName, Result<&TopicMetadata, ErrorCode>)> {
        self.topics.iter().map(|(name, known)| (name, known.as_ref().map_err(|&code| code)))
    }

    pub fn brokers(&self) -> &BTreeMap<BrokerId, Broker> {
        &self.brokers
    }

    pub fn controller(&self) -> Option<BrokerId> {
        self.controller
    }

    pub fn cluster_id(&self) -> Option<&str> {
        self.cluster_id.as_deref()
    }

    /// What is known of a topic: nothing yet, the broker's error, or its partitions.
    pub fn topic(&self, topic: &str) -> Option<Result<&TopicMetadata, ErrorCode>> {
        self.topics.get(topic).map(|known| known.as_ref().map_err(|&code| code))
    }

    pub fn topic_name(&self, id: TopicId) -> Option<&TopicName> {
        let is = |known: &Result<TopicMetadata, ErrorCode>| known.as_ref().is_ok_and(|topic| topic.id == id);
        self.topics.iter().find(|(_, known)| is(known)).map(|(name, _)| name)
    }

    pub fn topic_id(&self, topic: &str) -> TopicId {
        self.topic(topic).and_then(Result::ok).map_or(TopicId::ZERO, |topic| topic.id)
    }

    pub fn leader(&self, partition: &TopicPartition) -> Option<Leader> {
        let topic = self.topic(&partition.topic)?.ok()?;
        topic.partitions.get(usize::try_from(partition.partition.0).ok()?)?.leader
    }

    /// Partition counts of the topics that are known.
    pub fn partition_count(&self, topic: &str) -> Option<NonZeroU32> {
        NonZeroU32::new(self.topic(topic)?.ok()?.partitions.len() as u32)
    }
}

fn broker(broker: &kafka_protocol::messages::metadata_response::MetadataResponseBroker) -> Broker {
    Broker {
        host: broker.host.to_string(),
        port: u16::try_from(broker.port).unwrap_or(0),
        rack: broker.rack.as_ref().map(|rack| rack.to_string()),
    }
}

/// Reads a topic. A leader of an older epoch than the one known is not taken: the answer came from a broker
/// that lags. A topic with another id starts anew.
fn topic_metadata(
    topic: &kafka_protocol::messages::metadata_response::MetadataResponseTopic,
    before: Option<&TopicMetadata>,
) -> TopicMetadata {
    let id = TopicId(topic.topic_id);
    let before = before.filter(|before| before.id == id);
    let ids = |ids: &[kafka_protocol::messages::BrokerId]| ids.iter().map(|id| BrokerId(id.0)).collect();
    let mut partitions: Vec<PartitionMetadata> = topic
        .partitions
        .iter()
        .map(|partition| {
            let index = PartitionIndex(partition.partition_index);
            let leader = Leader {
                broker: BrokerId(partition.leader_id.0),
                epoch: LeaderEpoch(partition.leader_epoch),
            };
            let known = before.and_then(|topic| topic.partitions.get(index.0 as usize)?.leader);
            let leader = match known {
                Some(known) if known.epoch > leader.epoch => Some(known),
                _ => Some(leader).filter(|leader| leader.broker.0 >= 0),
            };
            PartitionMetadata {
                index,
                leader,
                replicas: ids(&partition.replica_nodes),
                in_sync: ids(&partition.isr_nodes),
                offline: ids(&partition.offline_replicas),
            }
        })
        .collect();
    partitions.sort_by_key(|partition| partition.index);
    TopicMetadata { id, internal: topic.is_internal, partitions }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::metadata_response::{
        MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn metadata() -> (Metadata, Random) {
        let backoff = (Duration::from_millis(100), SECOND);
        (Metadata::new(300 * SECOND, backoff), Random::seeded(1))
    }

    fn answer(error: i16, leader: i32, epoch: i32) -> MetadataResponse {
        let partition = MetadataResponsePartition::default()
            .with_partition_index(0)
            .with_leader_id(leader.into())
            .with_leader_epoch(epoch);
        let topic = MetadataResponseTopic::default()
            .with_error_code(error)
            .with_name(Some(StrBytes::from_static_str("t").into()))
            .with_partitions(if error == 0 { vec![partition] } else { vec![] });
        let broker = MetadataResponseBroker::default()
            .with_node_id(1.into())
            .with_host(StrBytes::from_static_str("h"))
            .with_port(9);
        MetadataResponse::default().with_brokers(vec![broker]).with_topics(vec![topic])
    }

    fn partition() -> TopicPartition {
        TopicPartition::new("t", PartitionIndex(0))
    }

    #[test]
    fn a_refresh_is_due_at_start_after_errors_and_by_age() {
        let (mut metadata, mut random) = metadata();
        let start = Monotonic::from_millis(1000);
        assert!(metadata.is_due(start));
        metadata.want(&"t".into());
        metadata.apply(&answer(0, 1, 0), &mut random, start);
        assert!(!metadata.is_due(start.plus(299 * SECOND)));
        assert!(metadata.is_due(start.plus(300 * SECOND)));
        metadata.refresh();
        assert!(!metadata.is_due(start), "held back");
        assert!(metadata.is_due(start.plus(SECOND)));
    }

    #[test]
    fn a_topic_wanted_while_an_answer_is_under_way_is_asked_for_next() {
        let (mut metadata, mut random) = metadata();
        let now = Monotonic::from_millis(1000);
        metadata.want(&"t".into());
        metadata.apply(&answer(0, 1, 0).with_topics(vec![]), &mut random, now);
        assert!(metadata.is_due(now.plus(SECOND)));
        metadata.apply(&answer(0, 1, 0), &mut random, now);
        assert!(!metadata.is_due(now.plus(SECOND)));
    }

    #[test]
    fn a_topic_without_leader_stays_asked_for_with_growing_waits() {
        let (mut metadata, mut random) = metadata();
        metadata.want(&"t".into());
        let now = Monotonic::from_millis(1000);
        metadata.apply(&answer(3, -1, -1), &mut random, now);
        assert_eq!(metadata.topic("t"), Some(Err(ErrorCode::UnknownTopicOrPartition)));
        let first = metadata.due_in(now);
        metadata.apply(&answer(0, -1, 0), &mut random, now);
        assert_eq!(metadata.leader(&partition()), None);
        assert!(metadata.due_in(now) > first);
    }

    #[test]
    fn an_older_leader_epoch_is_not_believed() {
        let (mut metadata, mut random) = metadata();
        metadata.apply(&answer(0, 1, 5), &mut random, Monotonic::ZERO);
        metadata.apply(&answer(0, 2, 4), &mut random, Monotonic::ZERO);
        assert_eq!(metadata.leader(&partition()).map(|leader| leader.broker), Some(BrokerId(1)));
        metadata.apply(&answer(0, 2, 6), &mut random, Monotonic::ZERO);
        assert_eq!(metadata.leader(&partition()).map(|leader| leader.broker), Some(BrokerId(2)));
    }
}
