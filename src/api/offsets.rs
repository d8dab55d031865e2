//! OffsetCommit 2–10, OffsetFetch 1–10 and OffsetDelete 0. Topics are checked here against the image of this
//! shard; the coordinator on shard 0 keeps the offsets.

use std::sync::Arc;

use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestTopic;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    GroupId, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetFetchRequest, OffsetFetchResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::Client;
use super::answer_room::AnswerRoom;
use super::client::partition_image;
use super::groups::{ask, mismatch};
use crate::base::{LeaderEpoch, PartitionIndex, TopicId};
use crate::coordinator::{Request, Response};
use crate::metadata::{Image, TopicImage};
use crate::wire::ErrorCode;
use crate::wire::header::RequestHeader;
use crate::wire::topic_ids::FIRST_WITH_TOPIC_IDS;

/// From here on OffsetFetch asks for several groups.
const FIRST_FETCH_WITH_GROUPS: i16 = 8;
/// The first version whose answer has an error for the whole group.
const FIRST_FETCH_WITH_GROUP_ERROR: i16 = 2;
const NO_OFFSET: i64 = -1;

pub async fn commit(
    client: &Client,
    header: &RequestHeader,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let (known, mut response) = split_commit(&client.shard.image(), header.version, request);
    if !known.topics.is_empty() {
        let answer = match ask(client, header, Request::Commit(known)).await {
            Response::Commit(answer) => answer,
            other => mismatch(&other),
        };
        merge_commit(&mut response, answer);
    }
    response
}

/// Finds a topic as `version` names it.
fn find<'a>(image: &'a Image, version: i16, name: &str, id: Uuid) -> Result<&'a Arc<TopicImage>, ErrorCode> {
    match version {
        FIRST_WITH_TOPIC_IDS.. => image.topic_by_id(TopicId(id)).ok_or(ErrorCode::UnknownTopicId),
        _ => image.topic(name).ok_or(ErrorCode::UnknownTopicOrPartition),
    }
}

/// What goes to the coordinator, under the names and ids of the topics, and an answer with the errors of what
/// does not: an offset of a partition that is not there would stay for ever.
pub(super) fn split_commit(
    image: &Image,
    version: i16,
    mut request: OffsetCommitRequest,
) -> (OffsetCommitRequest, OffsetCommitResponse) {
    let mut answered = Vec::with_capacity(request.topics.len());
    let mut known = Vec::with_capacity(request.topics.len());
    for OffsetCommitRequestTopic { name, topic_id, partitions, .. } in std::mem::take(&mut request.topics) {
        let found = find(image, version, &name, topic_id);
        // As Kafka: one that is there is not told of when nothing was asked of it.
        if partitions.is_empty() && found.is_ok() {
            continue;
        }
        let (there, missing): (Vec<_>, Vec<_>) = partitions.into_iter().partition(|partition| {
            found.is_ok_and(|topic| {
                partition_image(topic, PartitionIndex(partition.partition_index)).is_some()
            })
        });
        let error = found.err().unwrap_or(ErrorCode::UnknownTopicOrPartition);
        let refused = missing.into_iter().map(|partition| {
            OffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(error.code())
        });
        let (name, topic_id) = match found {
            Ok(topic) => (name_of(topic, name), topic.id.0),
            Err(_) => (name, topic_id),
        };
        answered.push(
            OffsetCommitResponseTopic::default()
                .with_name(name.clone())
                .with_topic_id(topic_id)
                .with_partitions(refused.collect()),
        );
        if !there.is_empty() {
            let entry = OffsetCommitRequestTopic::default().with_name(name).with_topic_id(topic_id);
            known.push(entry.with_partitions(there));
        }
    }
    request.topics = known;
    (request, OffsetCommitResponse::default().with_topics(answered))
}

/// The name by which a request asked, or else the topic's.
fn name_of(topic: &TopicImage, asked: TopicName) -> TopicName {
    match asked.is_empty() {
        true => TopicName(StrBytes::from_string(topic.name.to_string())),
        false => asked,
    }
}

/// The answer when the whole commit meets `error`.
pub(super) fn commit_failed(request: &OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            OffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(error.code())
        });
        OffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_topic_id(topic.topic_id)
            .with_partitions(partitions.collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

/// Both lists have the topics in the order of the request; the coordinator's may lack some.
pub(super) fn merge_commit(response: &mut OffsetCommitResponse, answer: OffsetCommitResponse) {
    let mut topics = response.topics.iter_mut();
    for answered in answer.topics {
        if let Some(topic) = topics.by_ref().find(|topic| topic.name == answered.name) {
            topic.partitions.extend(answered.partitions);
        }
    }
}

pub async fn fetch(
    client: &Client,
    header: &RequestHeader,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    let image = client.shard.image();
    let require_stable = request.require_stable;
    let asked = match header.version {
        ..FIRST_FETCH_WITH_GROUP_ERROR => request.topics.clone(),
        _ => None,
    };
    let mut room = AnswerRoom::new(client);
    let mut groups = Vec::new();
    for mut group in groups_of(header.version, request) {
        let id = group.group_id.clone();
        if room.is_cut() {
            groups.push(beyond(id));
            continue;
        }
        let unknown = identify_topics(&image, header.version, &mut group);
        let answer = match ask(client, header, Request::FetchOffsets { group, require_stable }).await {
            Response::FetchOffsets(answer) => complete(&image, header.version, answer, unknown),
            other => mismatch(&other),
        };
        let has_room = room.add(fetched_bytes(&answer)).await;
        groups.push(if has_room { answer } else { beyond(id) });
    }
    match (asked, groups.first()) {
        (Some(asked), Some(group)) if group.error_code != 0 => spread_error(asked, group.error_code),
        _ => fit_fetch(header.version, groups),
    }
}

/// What a group's answer takes, decoded and encoded, about.
fn fetched_bytes(group: &OffsetFetchResponseGroup) -> usize {
    let partition = |partition: &OffsetFetchResponsePartitions| {
        128 + partition.metadata.as_ref().map_or(0, |metadata| metadata.len())
    };
    let topics = group.topics.iter();
    let topics = topics.map(|topic| 128 + topic.partitions.iter().map(partition).sum::<usize>());
    128 + topics.sum::<usize>()
}

/// The answer of a group for which there is no room any more.
fn beyond(id: GroupId) -> OffsetFetchResponseGroup {
    OffsetFetchResponseGroup::default().with_group_id(id).with_error_code(ErrorCode::InvalidRequest.code())
}

/// The request as versions with several groups have it.
fn groups_of(version: i16, request: OffsetFetchRequest) -> Vec<OffsetFetchRequestGroup> {
    if version >= FIRST_FETCH_WITH_GROUPS {
        return request.groups;
    }
    let topics = request.topics.map(|topics| {
        let topics = topics.into_iter().map(|topic| {
            OffsetFetchRequestTopics::default()
                .with_name(topic.name)
                .with_partition_indexes(topic.partition_indexes)
        });
        topics.collect()
    });
    vec![OffsetFetchRequestGroup::default().with_group_id(request.group_id).with_topics(topics)]
}

/// Gives each topic of the request its name and its id: with the ids of the present topics, offsets of former
/// topics of the same names are not shown. Topics whose id nobody has are taken out and returned.
fn identify_topics(
    image: &Image,
    version: i16,
    group: &mut OffsetFetchRequestGroup,
) -> Vec<OffsetFetchRequestTopics> {
    let mut unknown = Vec::new();
    let Some(topics) = &mut group.topics else { return unknown };
    for mut topic in std::mem::take(topics) {
        match find(image, version, &topic.name, topic.topic_id) {
            Ok(found) => {
                topic.name = name_of(found, topic.name);
                topic.topic_id = found.id.0;
                topics.push(topic);
            }
            Err(ErrorCode::UnknownTopicId) => unknown.push(topic),
            // The coordinator answers a name that nobody has: nothing is committed.
            Err(_) => topics.push(topic),
        }
    }
    unknown
}

/// The coordinator's answer with what it does not know of topic ids.
fn complete(
    image: &Image,
    version: i16,
    mut group: OffsetFetchResponseGroup,
    unknown: Vec<OffsetFetchRequestTopics>,
) -> OffsetFetchResponseGroup {
    if version < FIRST_WITH_TOPIC_IDS || group.error_code != 0 {
        return group;
    }
    // When all topics are asked for, the coordinator has their names alone; a topic without an id cannot be
    // told of.
    group.topics.retain_mut(|topic| {
        if topic.topic_id.is_nil() {
            topic.topic_id = image.topic(&topic.name).map(|found| found.id.0).unwrap_or_default();
        }
        !topic.topic_id.is_nil()
    });
    group.topics.extend(unknown.into_iter().map(|topic| {
        let partitions = topic.partition_indexes.into_iter().map(|index| {
            OffsetFetchResponsePartitions::default()
                .with_partition_index(index)
                .with_committed_offset(NO_OFFSET)
                .with_committed_leader_epoch(LeaderEpoch::NONE.0)
                .with_metadata(Some(StrBytes::new()))
                .with_error_code(ErrorCode::UnknownTopicId.code())
        });
        OffsetFetchResponseTopics::default()
            .with_topic_id(topic.topic_id)
            .with_partitions(partitions.collect())
    }));
    group
}

fn fit_fetch(version: i16, mut groups: Vec<OffsetFetchResponseGroup>) -> OffsetFetchResponse {
    if version >= FIRST_FETCH_WITH_GROUPS {
        return OffsetFetchResponse::default().with_groups(groups);
    }
    let Some(group) = groups.pop() else { return OffsetFetchResponse::default() };
    let topics = group.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|partition| {
            OffsetFetchResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_committed_offset(partition.committed_offset)
                .with_committed_leader_epoch(partition.committed_leader_epoch)
                .with_metadata(partition.metadata)
                .with_error_code(partition.error_code)
        });
        OffsetFetchResponseTopic::default().with_name(topic.name).with_partitions(partitions.collect())
    });
    let response = OffsetFetchResponse::default().with_topics(topics.collect());
    match version {
        FIRST_FETCH_WITH_GROUP_ERROR.. => response.with_error_code(group.error_code),
        _ => response,
    }
}

/// Version 1 has no place for the error of a group: each partition that was asked for gets it.
fn spread_error(asked: Vec<OffsetFetchRequestTopic>, error_code: i16) -> OffsetFetchResponse {
    let topics = asked.into_iter().map(|topic| {
        let partitions = topic.partition_indexes.into_iter().map(|index| {
            OffsetFetchResponsePartition::default()
                .with_partition_index(index)
                .with_committed_offset(NO_OFFSET)
                .with_metadata(Some(StrBytes::new()))
                .with_error_code(error_code)
        });
        OffsetFetchResponseTopic::default().with_name(topic.name).with_partitions(partitions.collect())
    });
    OffsetFetchResponse::default().with_topics(topics.collect())
}

pub async fn delete(
    client: &Client,
    header: &RequestHeader,
    mut request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let image = client.shard.image();
    let mut refused = Vec::new();
    for topic in &mut request.topics {
        let found = image.topic(&topic.name);
        let is_there =
            |index: i32| found.is_some_and(|topic| partition_image(topic, PartitionIndex(index)).is_some());
        let missing = topic.partitions.iter().filter(|partition| !is_there(partition.partition_index));
        let missing: Vec<_> = missing
            .map(|partition| {
                OffsetDeleteResponsePartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(ErrorCode::UnknownTopicOrPartition.code())
            })
            .collect();
        topic.partitions.retain(|partition| is_there(partition.partition_index));
        if !missing.is_empty() {
            refused.push(
                OffsetDeleteResponseTopic::default().with_name(topic.name.clone()).with_partitions(missing),
            );
        }
    }
    request.topics.retain(|topic| !topic.partitions.is_empty());
    match ask(client, header, Request::DeleteOffsets(request)).await {
        Response::DeleteOffsets(mut answer) => {
            if answer.error_code == 0 {
                merge_delete(&mut answer, refused);
            }
            answer
        }
        other => mismatch(&other),
    }
}

fn merge_delete(answer: &mut OffsetDeleteResponse, refused: Vec<OffsetDeleteResponseTopic>) {
    for topic in refused {
        match answer.topics.iter_mut().find(|answered| answered.name == topic.name) {
            Some(answered) => answered.partitions.extend(topic.partitions),
            None => answer.topics.push(topic),
        }
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;

    use super::super::cluster_view::testing;
    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    fn name(name: &'static str) -> TopicName {
        TopicName(StrBytes::from_static_str(name))
    }

    fn committing(topic: &'static str, partitions: &[i32]) -> OffsetCommitRequestTopic {
        let partitions = partitions
            .iter()
            .map(|index| OffsetCommitRequestPartition::default().with_partition_index(*index));
        OffsetCommitRequestTopic::default().with_name(name(topic)).with_partitions(partitions.collect())
    }

    #[test]
    fn commits_of_partitions_that_are_not_there_are_refused_alone() {
        let state = testing::cluster(&[("a", 2), ("b", 1)]);
        let request = OffsetCommitRequest::default().with_topics(vec![
            committing("gone", &[0]),
            committing("a", &[0, 7, 1]),
            committing("b", &[3]),
        ]);
        let (known, mut response) = split_commit(state.image(), 9, request);
        assert_eq!(known.topics.len(), 1);
        assert_eq!(known.topics[0].topic_id, testing::topic_id("a").0);
        let committed = known.topics[0].partitions.iter().map(|partition| {
            OffsetCommitResponsePartition::default().with_partition_index(partition.partition_index)
        });
        let answer = OffsetCommitResponseTopic::default()
            .with_name(name("a"))
            .with_topic_id(testing::topic_id("a").0)
            .with_partitions(committed.collect());
        merge_commit(&mut response, OffsetCommitResponse::default().with_topics(vec![answer]));
        let codes = |at: usize| -> Vec<(i32, i16)> {
            let partitions = response.topics[at].partitions.iter();
            partitions.map(|partition| (partition.partition_index, partition.error_code)).collect()
        };
        assert_eq!(codes(0), [(0, 3)]);
        assert_eq!(codes(1), [(7, 3), (0, 0), (1, 0)]);
        assert_eq!(codes(2), [(3, 3)]);
        for version in 2..=10 {
            assert!(guard::encode(version, CorrelationId(1), &response).is_ok(), "{version}");
        }
    }

    #[test]
    fn topics_are_found_by_id_from_version_10_on() {
        let state = testing::cluster(&[("a", 2)]);
        let unknown = Uuid::from_u128(7);
        let by_id = |id: Uuid, partitions: &[i32]| committing("", partitions).with_topic_id(id);
        let a = testing::topic_id("a").0;
        let request = OffsetCommitRequest::default().with_topics(vec![
            by_id(unknown, &[0]),
            by_id(a, &[0, 7]),
            by_id(Uuid::nil(), &[0]),
        ]);
        let (known, response) = split_commit(state.image(), 10, request);
        assert_eq!(known.topics.len(), 1);
        assert_eq!((&*known.topics[0].name.0, known.topics[0].topic_id), ("a", a));
        assert_eq!(known.topics[0].partitions.len(), 1);
        let answers = response.topics.iter().map(|topic| {
            let partition = topic.partitions.first().unwrap();
            (topic.topic_id, partition.partition_index, partition.error_code)
        });
        assert_eq!(answers.collect::<Vec<_>>(), [(unknown, 0, 100), (a, 7, 3), (Uuid::nil(), 0, 100)]);
    }

    #[test]
    fn fetches_of_unknown_ids_are_answered_beside_the_coordinators() {
        let state = testing::cluster(&[("a", 2)]);
        let (a, unknown) = (testing::topic_id("a").0, Uuid::from_u128(7));
        let by_id =
            |id: Uuid| OffsetFetchRequestTopics::default().with_topic_id(id).with_partition_indexes(vec![1]);
        let mut group = OffsetFetchRequestGroup::default().with_topics(Some(vec![by_id(unknown), by_id(a)]));
        let taken_out = identify_topics(state.image(), 10, &mut group);
        assert_eq!(taken_out, [by_id(unknown)]);
        assert_eq!(group.topics, Some(vec![by_id(a).with_name(name("a"))]));
        // All topics: `a` is here, `gone` is not any more.
        let all = [name("a"), name("gone")].map(|name| OffsetFetchResponseTopics::default().with_name(name));
        let answer = OffsetFetchResponseGroup::default().with_topics(all.to_vec());
        let completed = complete(state.image(), 10, answer.clone(), taken_out.clone());
        assert_eq!(completed.topics.iter().map(|topic| topic.topic_id).collect::<Vec<_>>(), [a, unknown]);
        let refused = &completed.topics[1].partitions[0];
        assert_eq!((refused.partition_index, refused.committed_offset, refused.error_code), (1, -1, 100));
        assert_eq!(complete(state.image(), 9, answer.clone(), Vec::new()), answer);
        let failed = OffsetFetchResponseGroup::default().with_error_code(16);
        assert_eq!(complete(state.image(), 10, failed.clone(), taken_out), failed);
    }

    #[test]
    fn every_version_of_a_fetch_can_be_encoded() {
        let partition = OffsetFetchResponsePartitions::default()
            .with_committed_offset(5)
            .with_committed_leader_epoch(3)
            .with_metadata(Some(StrBytes::from_static_str("note")));
        let topic = OffsetFetchResponseTopics::default()
            .with_name(name("a"))
            .with_topic_id(uuid::Uuid::from_u128(7))
            .with_partitions(vec![partition]);
        let group = OffsetFetchResponseGroup::default().with_topics(vec![topic]).with_error_code(15);
        for version in 1..=10 {
            let response = fit_fetch(version, vec![group.clone()]);
            assert!(guard::encode(version, CorrelationId(1), &response).is_ok(), "{version}");
        }
        let asked = OffsetFetchRequestTopic::default().with_name(name("a")).with_partition_indexes(vec![4]);
        let response = spread_error(vec![asked], 14);
        assert_eq!(response.topics[0].partitions[0].error_code, 14);
        assert!(guard::encode(1, CorrelationId(1), &response).is_ok());
    }

    #[test]
    fn old_fetches_become_one_group() {
        let topic = OffsetFetchRequestTopic::default().with_name(name("a")).with_partition_indexes(vec![4]);
        let request = OffsetFetchRequest::default().with_topics(Some(vec![topic]));
        let groups = groups_of(7, request);
        let topics = groups[0].topics.as_deref().unwrap_or_default();
        assert_eq!((groups.len(), topics[0].partition_indexes.as_slice()), (1, &[4][..]));
        let all = groups_of(7, OffsetFetchRequest::default().with_topics(None));
        assert_eq!(all[0].topics, None);
    }
}
