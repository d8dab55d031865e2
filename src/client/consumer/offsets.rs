//! Committing offsets to a group's coordinator and reading them back: requests and answers. No IO.

use std::collections::BTreeMap;

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse,
};
use kafka_protocol::protocol::StrBytes;

use crate::base::{Offset, TopicName, TopicPartition};
use crate::client::error::{ClientError, Result};
use crate::wire::ErrorCode;

/// Who commits.
pub struct Committer<'a> {
    pub group: &'a str,
    pub member: &'a str,
    pub generation: i32,
}

pub fn commit_request(
    committer: &Committer<'_>,
    offsets: &BTreeMap<TopicPartition, Offset>,
) -> OffsetCommitRequest {
    let mut topics: BTreeMap<&TopicName, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
    for (partition, offset) in offsets {
        let entry = OffsetCommitRequestPartition::default()
            .with_partition_index(partition.partition.0)
            .with_committed_offset(offset.0)
            .with_committed_leader_epoch(-1)
            .with_committed_metadata(Some(StrBytes::default()));
        topics.entry(&partition.topic).or_default().push(entry);
    }
    let topics = topics
        .into_iter()
        .map(|(name, partitions)| {
            OffsetCommitRequestTopic::default().with_name(text(name).into()).with_partitions(partitions)
        })
        .collect();
    OffsetCommitRequest::default()
        .with_group_id(text(committer.group).into())
        .with_generation_id_or_member_epoch(committer.generation)
        .with_member_id(text(committer.member))
        .with_retention_time_ms(-1)
        .with_topics(topics)
}

/// The first partition's error, if any has one.
pub fn check_commit(group: &str, response: &OffsetCommitResponse) -> Result<()> {
    for topic in &response.topics {
        for partition in &topic.partitions {
            if let Some(code) = ErrorCode::try_from_code(partition.error_code) {
                let what =
                    format!("commit of group {group} for {}-{}", topic.name.0, partition.partition_index);
                return Err(ClientError::broker(what, code, None));
            }
        }
    }
    Ok(())
}

pub fn fetch_request(group: &str, partitions: &[TopicPartition], version: i16) -> OffsetFetchRequest {
    let mut topics: BTreeMap<&TopicName, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        topics.entry(&partition.topic).or_default().push(partition.partition.0);
    }
    if version <= 7 {
        let topic = |(name, indexes): (&TopicName, Vec<i32>)| {
            OffsetFetchRequestTopic::default().with_name(text(name).into()).with_partition_indexes(indexes)
        };
        return OffsetFetchRequest::default()
            .with_group_id(text(group).into())
            .with_require_stable(version == 7)
            .with_topics(Some(topics.into_iter().map(topic).collect()));
    }
    let topic = |(name, indexes): (&TopicName, Vec<i32>)| {
        OffsetFetchRequestTopics::default().with_name(text(name).into()).with_partition_indexes(indexes)
    };
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(text(group).into())
        .with_member_id(None)
        .with_member_epoch(-1)
        .with_topics(Some(topics.into_iter().map(topic).collect()));
    OffsetFetchRequest::default().with_require_stable(true).with_groups(vec![group])
}

/// What is committed; partitions without an offset are left out.
pub fn fetched(group: &str, response: &OffsetFetchResponse) -> Result<BTreeMap<TopicPartition, Offset>> {
    let check = |code: i16| match ErrorCode::try_from_code(code) {
        None => Ok(()),
        Some(code) => Err(ClientError::broker(format!("committed offsets of group {group}"), code, None)),
    };
    check(response.error_code)?;
    let mut offsets = BTreeMap::new();
    let mut add = |topic: &str, index: i32, offset: i64| {
        if offset >= 0 {
            offsets.insert(TopicPartition::new(topic, index.into()), Offset(offset));
        }
    };
    for topic in &response.topics {
        for partition in &topic.partitions {
            check(partition.error_code)?;
            add(&topic.name.0, partition.partition_index, partition.committed_offset);
        }
    }
    for group in &response.groups {
        check(group.error_code)?;
        for topic in &group.topics {
            for partition in &topic.partitions {
                check(partition.error_code)?;
                add(&topic.name.0, partition.partition_index, partition.committed_offset);
            }
        }
    }
    Ok(offsets)
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
