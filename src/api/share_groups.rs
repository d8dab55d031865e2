//! ShareGroupHeartbeat 1, ShareGroupDescribe 1, DescribeShareGroupOffsets 0–1, AlterShareGroupOffsets 0 and
//! DeleteShareGroupOffsets 0 (KIP-932). A group is kept by the group coordinator, its positions by the share coordinator;
//! what concerns both is done here, step by step, each step as good as the next when one fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use kafka_protocol::messages::alter_share_group_offsets_response::{
    AlterShareGroupOffsetsResponsePartition, AlterShareGroupOffsetsResponseTopic,
};
use kafka_protocol::messages::delete_share_group_offsets_response::DeleteShareGroupOffsetsResponseTopic;
use kafka_protocol::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use kafka_protocol::messages::share_group_describe_response::{DescribedGroup, Member};
use kafka_protocol::messages::{
    AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse, DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse, DescribeShareGroupOffsetsRequest, GroupId, ShareGroupDescribeRequest,
    ShareGroupDescribeResponse, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::answer_room::AnswerRoom;
use super::find_coordinator::make_share_topic;
use super::groups::{GROUP_OPERATIONS, ask, mismatch};
use super::{Client, Outcome, malformed};
use crate::base::{LeaderEpoch, Offset, PartitionIndex, ShardId, TopicId};
use crate::coordinator::share_state::{self, Response as StateResponse};
use crate::coordinator::{NamedPartitions, Request, Response, ShareHeartbeat};
use crate::metadata::{Image, SHARE_VERSION, TopicImage};
use crate::partition::Waterline;
use crate::shard::PartitionKey;
use crate::shard::messages::{
    ControlReply, ControlRequest, OffsetQuery, OffsetTarget, Reply, Request as ShardRequest,
};
use crate::share::{Persisted, ShareKey};
use crate::wire::header::RequestHeader;
use crate::wire::share_offsets::{DescribedOffset, DescribedOffsetGroup, DescribedOffsets};
use crate::wire::{ErrorCode, guard};

/// States of one request that are read or changed together.
const STATES_AT_ONCE: usize = 64;

/// Partitions by topic, with its name.
type Named = BTreeMap<TopicId, NamedPartitions>;

pub async fn heartbeat(
    client: &Client,
    header: &RequestHeader,
    request: ShareGroupHeartbeatRequest,
) -> ShareGroupHeartbeatResponse {
    if client.shard.image().feature(SHARE_VERSION).unwrap_or(0) < 1 {
        return ShareGroupHeartbeatResponse::default().with_error_code(ErrorCode::UnsupportedVersion.code());
    }
    let first = beat(client, header, request.clone()).await;
    if first.lacks_states.is_empty() {
        return first.response;
    }
    // What has no state is not assigned. It is made at once, and the member asks again in the same heartbeat.
    let group = request.group_id.clone();
    if initialize(client, header, &group, first.lacks_states, first.state_epoch).await.is_err() {
        return first.response;
    }
    let again = request.with_member_epoch(first.response.member_epoch);
    let second = beat(client, header, again).await.response;
    if second.error_code != 0 { first.response } else { second }
}

async fn beat(
    client: &Client,
    header: &RequestHeader,
    request: ShareGroupHeartbeatRequest,
) -> ShareHeartbeat {
    match ask(client, header, Request::ShareHeartbeat(request)).await {
        Response::ShareHeartbeat(heartbeat) => *heartbeat,
        other => mismatch(&other),
    }
}

/// Makes the states of partitions and tells the group of it.
async fn initialize(
    client: &Client,
    header: &RequestHeader,
    group: &GroupId,
    partitions: Named,
    state_epoch: i32,
) -> Result<(), ErrorCode> {
    make_share_topic(client).await?;
    let keys: Vec<ShareKey> = keys_of(group, &partitions).collect();
    let make = |key: &ShareKey| share_state::Request::Initialize {
        key: key.clone(),
        state_epoch,
        start: Offset(-1),
    };
    let results = ask_states(client, keys.iter().map(make).collect()).await;
    for (key, result) in keys.iter().zip(results) {
        match changed(result) {
            // Of a group of the name that was deleted while it was being made: nobody knows of it.
            Err(ErrorCode::FencedStateEpoch) => {
                let anew = [share_state::Request::Delete { key: key.clone() }, make(key)];
                for request in anew {
                    ask_states(client, vec![request]).await.into_iter().try_for_each(changed)?;
                }
            }
            result => result?,
        }
    }
    told(ask(client, header, Request::ShareInitialized { group: group.clone(), partitions }).await)
        .map(|_| ())
}

fn keys_of(group: &GroupId, partitions: &Named) -> impl Iterator<Item = ShareKey> {
    let group: Arc<str> = Arc::from(group.0.as_str());
    partitions.iter().flat_map(move |(topic, named)| {
        let group = group.clone();
        let key = move |partition: &PartitionIndex| ShareKey {
            group: group.clone(),
            topic: *topic,
            partition: *partition,
        };
        named.partitions.iter().map(key)
    })
}

/// The epoch of a share group that was changed.
fn told(response: Response) -> Result<i32, ErrorCode> {
    match response {
        Response::ShareChanged(result) => result,
        other => mismatch(&other),
    }
}

fn changed(response: StateResponse) -> Result<(), ErrorCode> {
    match response {
        StateResponse::Changed(result) => result,
        StateResponse::Read(result) => result.map(|_| ()),
    }
}

/// Asks the share coordinator; the answers come in the order of the requests.
async fn ask_states(client: &Client, requests: Vec<share_state::Request>) -> Vec<StateResponse> {
    let ask = |request| async move {
        let request = ShardRequest::Control(ControlRequest::ShareState(Box::new(request)));
        match client.shard.ask(ShardId::CONTROL, request).await {
            Reply::Control(ControlReply::ShareState(response)) => *response,
            _ => crate::base::fatal("a share state request got another request's answer"),
        }
    };
    futures::stream::iter(requests.into_iter().map(ask)).buffered(STATES_AT_ONCE).collect().await
}

/// The owners forget what they know of these positions.
async fn fence(client: &Client, group: &GroupId, keys: impl Iterator<Item = ShareKey>) {
    let group: Arc<str> = Arc::from(group.0.as_str());
    let mut shares = super::shares::Shares::new();
    for key in keys {
        let key = PartitionKey { topic: key.topic, partition: key.partition };
        shares.add(client.shard.owner(key), (), key);
    }
    for share in shares.into_vec() {
        let request = ShardRequest::ShareFence(group.clone(), share.parts);
        drop(client.shard.ask(share.owner, request).await);
    }
}

pub async fn describe(
    client: &Client,
    header: &RequestHeader,
    request: ShareGroupDescribeRequest,
) -> ShareGroupDescribeResponse {
    let operations = if request.include_authorized_operations { GROUP_OPERATIONS } else { i32::MIN };
    let mut room = AnswerRoom::new(client);
    let mut groups = Vec::new();
    for id in request.group_ids {
        if !room.is_cut() {
            let group = match ask(client, header, Request::DescribeShare(id.clone())).await {
                Response::DescribeShare(group) if group.error_code == 0 => {
                    group.with_authorized_operations(operations)
                }
                Response::DescribeShare(group) => group,
                other => mismatch(&other),
            };
            if room.add(described_bytes(&group)).await {
                groups.push(group);
                continue;
            }
        }
        let beyond = DescribedGroup::default()
            .with_group_id(id)
            .with_error_code(ErrorCode::InvalidRequest.code())
            .with_error_message(Some(StrBytes::from_static_str(super::TOO_LONG)));
        groups.push(beyond);
    }
    ShareGroupDescribeResponse::default().with_groups(groups)
}

/// What a group's answer takes, decoded and encoded, about.
fn described_bytes(group: &DescribedGroup) -> usize {
    let member = |member: &Member| {
        let topics = member.assignment.topic_partitions.iter();
        let topics = topics.map(|topic| 128 + topic.topic_name.len() + 8 * topic.partitions.len());
        let names = member.subscribed_topic_names.iter().map(|name| 64 + name.len());
        let client = member.member_id.len() + member.client_id.len() + member.client_host.len();
        let rack = member.rack_id.as_ref().map_or(0, |rack| rack.len());
        512 + client + rack + topics.sum::<usize>() + names.sum::<usize>()
    };
    256 + group.members.iter().map(member).sum::<usize>()
}

/// Deletes what a share group without members has in `__share_group_state`, before the group itself goes.
pub(super) async fn delete_states(
    client: &Client,
    header: &RequestHeader,
    group: &GroupId,
) -> Result<(), ErrorCode> {
    let state = match ask(client, header, Request::ShareState(group.clone())).await {
        Response::ShareState(Ok(state)) if state.is_empty => state,
        // Another kind of group, or one that will not be deleted.
        Response::ShareState(_) => return Ok(()),
        other => mismatch(&other),
    };
    let requests = keys_of(group, &state.partitions).map(|key| share_state::Request::Delete { key });
    for result in ask_states(client, requests.collect()).await {
        changed(result)?;
    }
    fence(client, group, keys_of(group, &state.partitions)).await;
    Ok(())
}

/// Serves DescribeShareGroupOffsets.
pub(super) async fn describe_offsets(client: &Client, header: &RequestHeader, body: &Bytes) -> Outcome {
    let request = match guard::decode::<DescribeShareGroupOffsetsRequest>(header.version, body) {
        Ok(request) => request,
        Err(error) => return malformed(header, error),
    };
    let mut room = AnswerRoom::new(client);
    let mut groups = Vec::new();
    for group in request.groups {
        let id = group.group_id.clone();
        let described = match room.is_cut() {
            true => Err(ErrorCode::InvalidRequest),
            false => describe_offsets_of(client, header, group, &mut room).await,
        };
        groups.push(match described {
            Ok(topics) => DescribedOffsetGroup { id: id.0, error: None, topics },
            Err(code) => DescribedOffsetGroup { id: id.0, error: Some(code), topics: Vec::new() },
        });
    }
    let throttle_ms = client.throttle_request(header);
    let described = DescribedOffsets { throttle_ms, groups };
    described.errors().for_each(|code| client.shard.requests.error_code(header.api, code));
    super::answer(header, described.encode(header.version, header.correlation_id))
}

async fn describe_offsets_of(
    client: &Client,
    header: &RequestHeader,
    group: DescribeShareGroupOffsetsRequestGroup,
    room: &mut AnswerRoom<'_>,
) -> Result<Vec<(StrBytes, TopicId, Vec<DescribedOffset>)>, ErrorCode> {
    /// What a partition takes in memory and in the answer, about.
    const PARTITION_BYTES: usize = 256;
    let id = group.group_id;
    if id.0.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let known = match ask(client, header, Request::ShareState(id.clone())).await {
        Response::ShareState(Ok(state)) => state.partitions,
        // As Kafka, which has nothing to tell of it.
        Response::ShareState(Err(ErrorCode::GroupIdNotFound)) => Named::new(),
        Response::ShareState(Err(code)) => return Err(code),
        other => mismatch(&other),
    };
    let image = client.shard.image();
    let asked = match group.topics {
        None => {
            let topics = known.into_iter();
            let topics = topics.filter(|(topic, _)| image.topic_by_id(*topic).is_some());
            let list = |named: NamedPartitions| -> Vec<i32> {
                named.partitions.into_iter().map(|index| index.0).collect()
            };
            topics.map(|(topic, named)| (named.name.clone(), Some(topic), list(named))).collect::<Vec<_>>()
        }
        Some(topics) => {
            let topics = topics.into_iter().map(|topic| {
                let found = image.topic(&topic.topic_name.0).map(|topic| topic.id);
                (topic.topic_name.0, found, topic.partitions)
            });
            topics.collect()
        }
    };
    let mut described = Vec::with_capacity(asked.len());
    for (name, topic, partitions) in asked {
        if !room.add(PARTITION_BYTES * (1 + partitions.len())).await {
            return Err(ErrorCode::InvalidRequest);
        }
        let Some(topic) = topic else {
            let unknown = partitions.into_iter().map(|index| {
                DescribedOffset::failed(PartitionIndex(index), ErrorCode::UnknownTopicOrPartition)
            });
            described.push((name, TopicId::ZERO, unknown.collect()));
            continue;
        };
        let offsets = offsets_of(client, &id, topic, &partitions).await;
        described.push((name, topic, offsets));
    }
    Ok(described)
}

async fn offsets_of(
    client: &Client,
    group: &GroupId,
    topic: TopicId,
    partitions: &[i32],
) -> Vec<DescribedOffset> {
    let group: Arc<str> = Arc::from(group.0.as_str());
    let key = |index: &i32| ShareKey { group: group.clone(), topic, partition: PartitionIndex(*index) };
    let read = |index: &i32| share_state::Request::Read { key: key(index), leader_epoch: LeaderEpoch::NONE };
    let reads = partitions.iter().map(read).collect();
    let kept = ask_states(client, reads).await;
    let ends = ends_of(client, topic, partitions).await;
    let offsets = partitions.iter().zip(kept).map(|(index, kept)| {
        let partition = PartitionIndex(*index);
        match kept {
            StateResponse::Read(Ok(kept)) => {
                let lag = ends.get(&partition).map_or(-1, |end| lag(&kept, *end));
                DescribedOffset {
                    partition,
                    start: kept.start,
                    leader_epoch: kept.leader_epoch,
                    lag,
                    error: None,
                }
            }
            // Nobody has read it yet.
            StateResponse::Read(Err(ErrorCode::UnknownTopicOrPartition)) => DescribedOffset {
                partition,
                start: Offset(-1),
                leader_epoch: LeaderEpoch(0),
                lag: -1,
                error: None,
            },
            other => {
                let code = changed(other).err().unwrap_or(ErrorCode::UnknownServerError);
                DescribedOffset::failed(partition, code)
            }
        }
    });
    offsets.collect()
}

/// Records that are to be delivered still (KIP-1226); -1 where that is not known.
fn lag(kept: &Persisted, end: Offset) -> i64 {
    match kept.start.0 < 0 || kept.delivery_complete < 0 {
        true => -1,
        false => (end.0 - kept.start.0 - i64::from(kept.delivery_complete)).max(0),
    }
}

async fn ends_of(client: &Client, topic: TopicId, partitions: &[i32]) -> BTreeMap<PartitionIndex, Offset> {
    let mut shares = super::shares::Shares::new();
    for index in partitions {
        let partition = PartitionIndex(*index);
        let key = PartitionKey { topic, partition };
        let query = OffsetQuery {
            key,
            current_leader_epoch: LeaderEpoch::NONE,
            target: OffsetTarget::Latest,
            waterline: Waterline::HighWatermark,
        };
        shares.add(client.shard.owner(key), partition, query);
    }
    let answers = |reply| match reply {
        Reply::Offsets(answers) => Some(answers),
        _ => None,
    };
    let answered = shares.ask(&client.shard, ShardRequest::Offsets, answers).await;
    let found =
        |(partition, answer): (PartitionIndex, Result<crate::shard::messages::OffsetAnswer, ErrorCode>)| {
            Some((partition, answer.ok()?.found?.offset))
        };
    answered.into_iter().filter_map(found).collect()
}

pub async fn alter_offsets(
    client: &Client,
    header: &RequestHeader,
    request: AlterShareGroupOffsetsRequest,
) -> AlterShareGroupOffsetsResponse {
    let group = request.group_id.clone();
    let image = client.shard.image();
    // A new epoch, so that whoever still writes by the old positions is refused.
    let epoch = match told(ask(client, header, Request::ShareBump(group.clone())).await) {
        Ok(epoch) => epoch,
        Err(code) => {
            return AlterShareGroupOffsetsResponse::default()
                .with_error_code(code.code())
                .with_error_message(of_group(code, &group, "is not a share group"));
        }
    };
    let made = make_share_topic(client).await;
    let mut done = Named::new();
    let mut responses = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let name = topic.topic_name.0.clone();
        let found = image.topic(&name);
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for partition in &topic.partitions {
            let index = PartitionIndex(partition.partition_index);
            let start = Offset(partition.start_offset);
            let altered = match found.filter(|topic| has(topic, index)) {
                None => Err(ErrorCode::UnknownTopicOrPartition),
                Some(_) if made.is_err() => Err(ErrorCode::CoordinatorNotAvailable),
                Some(topic) => alter(client, &group, topic, index, epoch, start).await,
            };
            if let (Ok(()), Some(topic)) = (&altered, found) {
                let named = done.entry(topic.id).or_default();
                named.name = name.clone();
                named.partitions.insert(index);
            }
            partitions.push(
                AlterShareGroupOffsetsResponsePartition::default()
                    .with_partition_index(index.0)
                    .with_error_code(super::code(altered.err())),
            );
        }
        responses.push(
            AlterShareGroupOffsetsResponseTopic::default()
                .with_topic_name(topic.topic_name)
                .with_topic_id(found.map_or(TopicId::ZERO, |topic| topic.id).0)
                .with_partitions(partitions),
        );
    }
    let keys: Vec<ShareKey> = keys_of(&group, &done).collect();
    let response = AlterShareGroupOffsetsResponse::default().with_responses(responses);
    if done.is_empty() {
        return response;
    }
    fence(client, &group, keys.into_iter()).await;
    let request = Request::ShareInitialized { group, partitions: done };
    match told(ask(client, header, request).await) {
        Ok(_) => response,
        Err(code) => response.with_error_code(code.code()),
    }
}

/// Kafka's words where it has some of its own; else a client says what the code means.
fn of_group(code: ErrorCode, group: &GroupId, what: &str) -> Option<StrBytes> {
    let is_told = code == ErrorCode::GroupIdNotFound;
    is_told.then(|| StrBytes::from_string(format!("Group {} {what}.", group.0)))
}

fn has(topic: &TopicImage, index: PartitionIndex) -> bool {
    usize::try_from(index.0).is_ok_and(|index| index < topic.partitions.len())
}

async fn alter(
    client: &Client,
    group: &GroupId,
    topic: &TopicImage,
    partition: PartitionIndex,
    state_epoch: i32,
    start: Offset,
) -> Result<(), ErrorCode> {
    let key = ShareKey { group: Arc::from(group.0.as_str()), topic: topic.id, partition };
    let request = share_state::Request::Initialize { key, state_epoch, start };
    let responses = ask_states(client, vec![request]).await;
    responses.into_iter().try_for_each(changed)
}

pub async fn delete_offsets(
    client: &Client,
    header: &RequestHeader,
    request: DeleteShareGroupOffsetsRequest,
) -> DeleteShareGroupOffsetsResponse {
    let group = request.group_id.clone();
    let refuse =
        |code: ErrorCode| {
            DeleteShareGroupOffsetsResponse::default()
                .with_error_code(code.code())
                .with_error_message(of_group(code, &group, "not found"))
        };
    let state = match ask(client, header, Request::ShareState(group.clone())).await {
        Response::ShareState(Ok(state)) if !state.is_empty => return refuse(ErrorCode::NonEmptyGroup),
        Response::ShareState(Ok(state)) => state,
        Response::ShareState(Err(code)) => return refuse(code),
        other => mismatch(&other),
    };
    let image = client.shard.image();
    let mut done = Vec::new();
    let mut responses = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let result = delete_topic(client, &image, &group, &topic.topic_name, &state.partitions).await;
        let response = DeleteShareGroupOffsetsResponseTopic::default().with_topic_name(topic.topic_name);
        responses.push(match result {
            Ok(id) => {
                done.push(id);
                response.with_topic_id(id.0)
            }
            Err((id, code, message)) => response
                .with_topic_id(id.0)
                .with_error_code(code.code())
                .with_error_message(message.map(StrBytes::from_static_str)),
        });
    }
    let response = DeleteShareGroupOffsetsResponse::default().with_responses(responses);
    if done.is_empty() {
        return response;
    }
    match told(ask(client, header, Request::ShareForgotten { group, topics: done }).await) {
        Ok(_) => response,
        Err(code) => response.with_error_code(code.code()),
    }
}

async fn delete_topic(
    client: &Client,
    image: &Image,
    group: &GroupId,
    name: &str,
    partitions: &Named,
) -> Result<TopicId, (TopicId, ErrorCode, Option<&'static str>)> {
    let unknown = ErrorCode::UnknownTopicOrPartition;
    let topic = image.topic(name).ok_or((TopicId::ZERO, unknown, None))?;
    let Some(named) = partitions.get(&topic.id) else {
        return Err((topic.id, unknown, Some("There is no offset information to delete.")));
    };
    let of_topic = Named::from([(topic.id, named.clone())]);
    let requests = keys_of(group, &of_topic).map(|key| share_state::Request::Delete { key }).collect();
    for response in ask_states(client, requests).await {
        changed(response).map_err(|code| (topic.id, code, None))?;
    }
    fence(client, group, keys_of(group, &of_topic)).await;
    Ok(topic.id)
}
