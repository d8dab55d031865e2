//! The committed offsets of one partition of `__consumer_offsets`, and the requests that read and change
//! them (Kafka's `OffsetMetadataManager`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::codec::STRING_BYTES_MAX;
use super::member::copy_text;
use super::partition::Partition;
use super::records::{OffsetKey, OffsetValue, Record};
use crate::base::clock::Timestamp;
use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use crate::wire::ErrorCode;

/// "Nothing is committed" in an answer.
const NO_OFFSET: i64 = -1;
/// "Keep as long as the broker does" in OffsetCommit 2–4.
const DEFAULT_RETENTION_MS: i64 = -1;

/// Topic → partition → offset, of one group.
pub(super) type GroupOffsets = BTreeMap<StrBytes, BTreeMap<PartitionIndex, OffsetValue>>;

/// All offsets of a partition of `__consumer_offsets`, by group.
#[derive(Default)]
pub(super) struct Offsets(BTreeMap<StrBytes, GroupOffsets>);

impl Offsets {
    /// Applies a record.
    pub(super) fn apply(&mut self, key: OffsetKey, value: Option<OffsetValue>) {
        match value {
            Some(value) => {
                let topics = self.0.entry(key.group).or_default();
                topics.entry(key.topic).or_default().insert(key.partition, value);
            }
            None => self.remove(&key),
        }
    }

    fn remove(&mut self, key: &OffsetKey) {
        let Some(topics) = self.0.get_mut(&key.group) else { return };
        let Some(partitions) = topics.get_mut(&key.topic) else { return };
        partitions.remove(&key.partition);
        if partitions.is_empty() {
            topics.remove(&key.topic);
        }
        if topics.is_empty() {
            self.0.remove(&key.group);
        }
    }

    /// All offsets, group by group.
    pub(super) fn groups_from(
        &self,
        from: Bound<&StrBytes>,
    ) -> impl Iterator<Item = (&StrBytes, &GroupOffsets)> {
        self.0.range::<StrBytes, _>((from, Bound::Unbounded))
    }

    /// The offsets of one group.
    pub(super) fn of_group(&self, group: &StrBytes) -> impl Iterator<Item = (OffsetKey, &OffsetValue)> {
        let topics = self.0.get_key_value(group);
        topics.into_iter().flat_map(|(group, topics)| with_keys(group, topics))
    }

    /// The offsets of one topic, of all groups.
    pub(super) fn of_topic(&self, topic: &StrBytes) -> impl Iterator<Item = OffsetKey> {
        self.0.iter().filter_map(|(group, topics)| Some((group, topics.get(topic)?))).flat_map(
            move |(group, partitions)| {
                partitions.keys().map(move |partition| OffsetKey {
                    group: group.clone(),
                    topic: topic.clone(),
                    partition: *partition,
                })
            },
        )
    }

    pub(super) fn topics(&self) -> BTreeSet<StrBytes> {
        self.0.values().flat_map(|topics| topics.keys().cloned()).collect()
    }

    /// The answer to OffsetFetch for one group; a topic that is not there has no offsets, which is no
    /// error.
    pub(super) fn fetch(&self, request: &OffsetFetchRequestGroup) -> OffsetFetchResponseGroup {
        let topics = self.0.get(&request.group_id.0);
        let topics = match &request.topics {
            None => topics
                .into_iter()
                .flatten()
                .map(|(name, partitions)| {
                    let partitions = partitions.iter().map(|(index, value)| fetched(index.0, Some(value)));
                    OffsetFetchResponseTopics::default()
                        .with_name(TopicName(name.clone()))
                        .with_partitions(partitions.collect())
                })
                .collect(),
            Some(asked) => asked
                .iter()
                .map(|topic| {
                    let known = topics.and_then(|topics| topics.get(&topic.name.0));
                    let partitions = topic.partition_indexes.iter().map(|index| {
                        let value = known.and_then(|known| known.get(&PartitionIndex(*index)));
                        fetched(*index, value.filter(|value| value.is_of(TopicId(topic.topic_id))))
                    });
                    OffsetFetchResponseTopics::default()
                        .with_name(topic.name.clone())
                        .with_topic_id(topic.topic_id)
                        .with_partitions(partitions.collect())
                })
                .collect(),
        };
        OffsetFetchResponseGroup::default().with_group_id(request.group_id.clone()).with_topics(topics)
    }
}

impl Partition {
    /// The answer to OffsetFetch for one group that wants decided offsets only: one whose transaction is open is
    /// refused, because it may become another.
    pub(super) fn fetch_stable(&self, request: &OffsetFetchRequestGroup) -> OffsetFetchResponseGroup {
        let mut fetched = self.offsets.fetch(request);
        let group = &request.group_id.0;
        if !self.open.has_group(group) {
            return fetched;
        }
        for topic in &mut fetched.topics {
            for partition in &mut topic.partitions {
                let index = PartitionIndex(partition.partition_index);
                if self.open.contains(group, &topic.name.0, index) {
                    *partition = fetched_nothing(index.0, ErrorCode::UnstableOffsetCommit);
                }
            }
        }
        // Those that were never committed outside of the transaction are not among all offsets yet.
        if request.topics.is_none() {
            self.add_undecided(group, &mut fetched.topics);
        }
        fetched
    }

    fn add_undecided(&self, group: &StrBytes, topics: &mut Vec<OffsetFetchResponseTopics>) {
        for key in self.open.keys_of_group(group) {
            let at = topics.iter().position(|topic| topic.name.0 == key.topic).unwrap_or_else(|| {
                topics.push(OffsetFetchResponseTopics::default().with_name(TopicName(key.topic.clone())));
                topics.len() - 1
            });
            let partitions = &mut topics[at].partitions;
            if !partitions.iter().any(|partition| partition.partition_index == key.partition.0) {
                partitions.push(fetched_nothing(key.partition.0, ErrorCode::UnstableOffsetCommit));
            }
        }
    }
}

impl OffsetValue {
    /// Whether it was committed for this topic and not for a former one of its name. Not knowing passes.
    fn is_of(&self, topic_id: TopicId) -> bool {
        topic_id.is_zero() || self.topic_id.is_zero() || self.topic_id == topic_id
    }
}

fn with_keys<'a>(
    group: &'a StrBytes,
    topics: &'a GroupOffsets,
) -> impl Iterator<Item = (OffsetKey, &'a OffsetValue)> {
    topics.iter().flat_map(move |(topic, partitions)| {
        partitions.iter().map(move |(partition, value)| {
            (OffsetKey { group: group.clone(), topic: topic.clone(), partition: *partition }, value)
        })
    })
}

fn fetched_nothing(index: i32, error: ErrorCode) -> OffsetFetchResponsePartitions {
    fetched(index, None).with_error_code(error.code())
}

fn fetched(index: i32, value: Option<&OffsetValue>) -> OffsetFetchResponsePartitions {
    let partition = OffsetFetchResponsePartitions::default().with_partition_index(index);
    match value {
        Some(value) => partition
            .with_committed_offset(value.offset.0)
            .with_committed_leader_epoch(value.leader_epoch.0)
            .with_metadata(Some(value.metadata.clone())),
        None => partition
            .with_committed_offset(NO_OFFSET)
            .with_committed_leader_epoch(LeaderEpoch::NONE.0)
            .with_metadata(Some(StrBytes::new())),
    }
}

/// The records of a commit and its answer; a partition whose metadata is too long is refused alone.
pub(super) fn commit(
    request: &OffsetCommitRequest,
    metadata_max: usize,
    now: Timestamp,
) -> (Vec<Record>, OffsetCommitResponse) {
    let mut records = Vec::new();
    let group = copy_text(&request.group_id);
    let expires_at = match request.retention_time_ms {
        DEFAULT_RETENTION_MS => None,
        retention_ms => Some(Timestamp(now.0.saturating_add(retention_ms))),
    };
    let topics = request.topics.iter().map(|topic| {
        let name = copy_text(&topic.name);
        let partitions = topic.partitions.iter().map(|partition| {
            let error = if is_too_long(partition, metadata_max) {
                ErrorCode::OffsetMetadataTooLarge.code()
            } else {
                let key = OffsetKey {
                    group: group.clone(),
                    topic: name.clone(),
                    partition: PartitionIndex(partition.partition_index),
                };
                let value = OffsetValue {
                    offset: Offset(partition.committed_offset),
                    leader_epoch: LeaderEpoch(partition.committed_leader_epoch),
                    metadata: partition.committed_metadata.as_ref().map(copy_text).unwrap_or_default(),
                    committed_at: now,
                    expires_at,
                    topic_id: TopicId(topic.topic_id),
                };
                records.push(Record::Offset { key, value: Some(value) });
                0
            };
            answer_partition(partition.partition_index, error)
        });
        OffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_topic_id(topic.topic_id)
            .with_partitions(partitions.collect())
    });
    let response = OffsetCommitResponse::default().with_topics(topics.collect());
    (records, response)
}

fn is_too_long(partition: &OffsetCommitRequestPartition, metadata_max: usize) -> bool {
    partition.committed_metadata.as_ref().is_some_and(|metadata| {
        // The second is what the record can hold, whatever the setting says.
        metadata.encode_utf16().count() > metadata_max || metadata.len() > STRING_BYTES_MAX
    })
}

/// The answer that gives every partition of `request` the same error.
pub(super) fn commit_error(request: &OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic
            .partitions
            .iter()
            .map(|partition| answer_partition(partition.partition_index, error.code()));
        OffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_topic_id(topic.topic_id)
            .with_partitions(partitions.collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

fn answer_partition(index: i32, error_code: i16) -> OffsetCommitResponsePartition {
    OffsetCommitResponsePartition::default().with_partition_index(index).with_error_code(error_code)
}
