//! The group APIs of both protocols: JoinGroup 0–9, SyncGroup 0–5, Heartbeat 0–4, LeaveGroup 0–5, DescribeGroups 0–6,
//! ListGroups 0–5, DeleteGroups 0–3, ConsumerGroupHeartbeat 0–1, ConsumerGroupDescribe 0–1. The coordinator on shard 0 decides; here the forms of the versions are
//! brought to one and back.

use std::collections::HashSet;
use std::future::Future;

use bytes::Bytes;
use futures::future::join_all;
use kafka_protocol::messages::consumer_group_describe_response::{
    Assignment, DescribedGroup as DescribedConsumerGroup, Member as DescribedConsumer,
};
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse, DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest,
    DescribeGroupsResponse, GroupId, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse,
    SyncGroupRequest, SyncGroupResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::answer_room::AnswerRoom;
use super::errors::ErrorCodes as _;
use super::{Client, Outcome, answer, code, malformed, share_groups};
use crate::base::ShardId;
use crate::coordinator::{self, Request, Response};
use crate::metadata::GROUP_VERSION;
use crate::shard::messages::{ControlReply, ControlRequest, Reply, Request as ShardRequest};
use crate::wire::beat::Beat;
use crate::wire::header::RequestHeader;
use crate::wire::read::STRING_BYTES_MAX;
use crate::wire::{ApiKey, ErrorCode, guard, newer};

/// All operations that Kafka allows on a group while no authorizer is set, one bit each: READ, DELETE,
/// DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS.
pub(super) const GROUP_OPERATIONS: i32 = 3400;
/// The level of `group.version` from which on there is the new protocol.
const FIRST_LEVEL_WITH_NEW_PROTOCOL: i16 = 1;
/// From here on LeaveGroup names several members.
const FIRST_LEAVE_WITH_MEMBERS: i16 = 3;
/// From here on SyncGroup must say which protocol the member believes in (KIP-559).
const FIRST_SYNC_WITH_PROTOCOL: i16 = 5;
/// From here on JoinGroup may answer without a protocol.
const FIRST_JOIN_WITH_NULL_PROTOCOL: i16 = 7;

/// Whether the cluster speaks the new protocol of consumer groups.
fn has_new_protocol(client: &Client) -> bool {
    client.shard.image().feature(GROUP_VERSION).is_some_and(|level| level >= FIRST_LEVEL_WITH_NEW_PROTOCOL)
}

/// Asks the coordinator of this node.
pub(super) async fn ask(client: &Client, header: &RequestHeader, request: Request) -> Response {
    let asker = coordinator::Client {
        api_version: header.version,
        id: client_id(header.client_id.as_deref().unwrap_or_default()),
        host: client.host().clone(),
    };
    let request = ControlRequest::Group(Box::new(request), asker);
    match client.shard.ask(ShardId::CONTROL, ShardRequest::Control(request)).await {
        Reply::Control(ControlReply::Group(response)) => *response,
        _ => crate::base::fatal("a group request got another request's answer"),
    }
}

/// Opaque bytes on the wire; member ids, descriptions and the log have it as text, which may take three bytes for one and
/// must not get longer than a string can be.
fn client_id(raw: &[u8]) -> StrBytes {
    let mut text = String::from_utf8_lossy(raw).into_owned();
    text.truncate(text.floor_char_boundary(STRING_BYTES_MAX));
    StrBytes::from_string(text)
}

/// The coordinator answers each request in its kind.
pub(super) fn mismatch(response: &Response) -> ! {
    crate::base::fatal(format_args!("a group request got another's answer: {response:?}"))
}

pub async fn join(client: &Client, header: &RequestHeader, request: JoinGroupRequest) -> JoinGroupResponse {
    match ask(client, header, Request::Join(request)).await {
        Response::Join(response) => fit_join(header.version, response),
        other => mismatch(&other),
    }
}

fn fit_join(version: i16, mut response: JoinGroupResponse) -> JoinGroupResponse {
    if version < FIRST_JOIN_WITH_NULL_PROTOCOL {
        response.protocol_name.get_or_insert_default();
    }
    response
}

pub async fn sync(client: &Client, header: &RequestHeader, request: SyncGroupRequest) -> SyncGroupResponse {
    let names_protocol = request.protocol_type.is_some() && request.protocol_name.is_some();
    if header.version >= FIRST_SYNC_WITH_PROTOCOL && !names_protocol {
        return SyncGroupResponse::default().with_error_code(ErrorCode::InconsistentGroupProtocol.code());
    }
    match ask(client, header, Request::Sync(request)).await {
        Response::Sync(response) => response,
        other => mismatch(&other),
    }
}

/// The answer to a heartbeat to whose member nothing is new, on the coordinator's own shard; others go the whole way.
pub(super) fn answer_beat(client: &Client, header: &RequestHeader, body: &Bytes) -> Option<Bytes> {
    let control = client.shard.control()?;
    let encoded = match header.api.key {
        ApiKey::Heartbeat => {
            let beat = Beat::of_classic(header, body)?;
            control.classic_beat(&beat).then(|| Beat::classic_answer(header))?
        }
        ApiKey::ConsumerGroupHeartbeat if has_new_protocol(client) => {
            let beat = Beat::of_consumer(header, body)?;
            let id = header.client_id.as_deref().unwrap_or_default();
            let interval_ms = control.consumer_beat(&beat, id, client.host())?;
            beat.consumer_answer(header, interval_ms)
        }
        _ => return None,
    };
    encoded.ok()
}

pub async fn heartbeat(
    client: &Client,
    header: &RequestHeader,
    request: HeartbeatRequest,
) -> HeartbeatResponse {
    match ask(client, header, Request::Heartbeat(request)).await {
        Response::Heartbeat(response) => response,
        other => mismatch(&other),
    }
}

pub async fn leave(
    client: &Client,
    header: &RequestHeader,
    mut request: LeaveGroupRequest,
) -> LeaveGroupResponse {
    if header.version < FIRST_LEAVE_WITH_MEMBERS {
        let member_id = std::mem::take(&mut request.member_id);
        request.members = vec![MemberIdentity::default().with_member_id(member_id)];
    }
    match ask(client, header, Request::Leave(request)).await {
        Response::Leave(response) => fit_leave(header.version, response),
        other => mismatch(&other),
    }
}

/// An old answer has one error: that of its one member, unless the whole request met one.
fn fit_leave(version: i16, response: LeaveGroupResponse) -> LeaveGroupResponse {
    if version >= FIRST_LEAVE_WITH_MEMBERS {
        return response;
    }
    let of_member = response.members.first().map_or(0, |member| member.error_code);
    let error_code = if response.error_code != 0 { response.error_code } else { of_member };
    LeaveGroupResponse::default().with_error_code(error_code)
}

pub async fn describe(
    client: &Client,
    header: &RequestHeader,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let operations = if request.include_authorized_operations { GROUP_OPERATIONS } else { i32::MIN };
    let mut room = AnswerRoom::new(client);
    let mut groups = Vec::new();
    // One that is named again is answered again, as Kafka does.
    for id in request.groups {
        if !room.is_cut() {
            let group = match ask(client, header, Request::Describe(id.clone())).await {
                Response::Describe(group) => fit_description(operations, group),
                other => mismatch(&other),
            };
            if room.add(described_bytes(&group)).await {
                groups.push(group);
                continue;
            }
        }
        groups.push(beyond(id));
    }
    DescribeGroupsResponse::default().with_groups(groups)
}

/// What a group's answer takes, decoded and encoded, about.
fn described_bytes(group: &DescribedGroup) -> usize {
    let member = |member: &DescribedGroupMember| {
        let texts = member.member_id.len() + member.client_id.len() + member.client_host.len();
        512 + texts + member.member_metadata.len() + member.member_assignment.len()
    };
    256 + group.members.iter().map(member).sum::<usize>()
}

/// The answer of a group for which there is no room any more.
fn beyond(id: GroupId) -> DescribedGroup {
    DescribedGroup::default()
        .with_group_id(id)
        .with_error_code(ErrorCode::InvalidRequest.code())
        .with_error_message(Some(StrBytes::from_static_str(super::TOO_LONG)))
        .with_authorized_operations(i32::MIN)
}

fn fit_description(operations: i32, group: DescribedGroup) -> DescribedGroup {
    match group.error_code {
        0 => group.with_authorized_operations(operations),
        _ => group.with_authorized_operations(i32::MIN),
    }
}

pub async fn consumer_heartbeat(
    client: &Client,
    header: &RequestHeader,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    if !has_new_protocol(client) {
        return ConsumerGroupHeartbeatResponse::default()
            .with_error_code(ErrorCode::UnsupportedVersion.code());
    }
    match ask(client, header, Request::ConsumerHeartbeat(request)).await {
        Response::ConsumerHeartbeat(response) => response,
        other => mismatch(&other),
    }
}

pub async fn describe_consumers(
    client: &Client,
    header: &RequestHeader,
    request: ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let operations = if request.include_authorized_operations { GROUP_OPERATIONS } else { i32::MIN };
    if !has_new_protocol(client) {
        let refused = |id| {
            DescribedConsumerGroup::default()
                .with_group_id(id)
                .with_error_code(ErrorCode::UnsupportedVersion.code())
        };
        let groups = request.group_ids.into_iter().map(refused).collect();
        return fit_described(header.version, ConsumerGroupDescribeResponse::default().with_groups(groups));
    }
    let mut room = AnswerRoom::new(client);
    let mut groups = Vec::new();
    for id in request.group_ids {
        if !room.is_cut() {
            let group = match ask(client, header, Request::DescribeConsumer(id.clone())).await {
                Response::DescribeConsumer(group) if group.error_code == 0 => {
                    group.with_authorized_operations(operations)
                }
                Response::DescribeConsumer(group) => group,
                other => mismatch(&other),
            };
            if room.add(described_consumer_bytes(&group)).await {
                groups.push(group);
                continue;
            }
        }
        let beyond = DescribedConsumerGroup::default()
            .with_group_id(id)
            .with_error_code(ErrorCode::InvalidRequest.code())
            .with_error_message(Some(StrBytes::from_static_str(super::TOO_LONG)));
        groups.push(beyond);
    }
    fit_described(header.version, ConsumerGroupDescribeResponse::default().with_groups(groups))
}

/// What a group's answer takes, decoded and encoded, about.
fn described_consumer_bytes(group: &DescribedConsumerGroup) -> usize {
    let topics = |assignment: &Assignment| {
        let topics = assignment.topic_partitions.iter();
        topics.map(|topic| 128 + topic.topic_name.len() + 8 * topic.partitions.len()).sum::<usize>()
    };
    let member = |member: &DescribedConsumer| {
        let texts = [&member.instance_id, &member.rack_id, &member.subscribed_topic_regex];
        let texts = texts.into_iter().flatten().map(|text| text.len()).sum::<usize>();
        let names = member.subscribed_topic_names.iter().map(|name| 64 + name.len()).sum::<usize>();
        let client = member.member_id.len() + member.client_id.len() + member.client_host.len();
        512 + client + texts + names + topics(&member.assignment) + topics(&member.target_assignment)
    };
    256 + group.members.iter().map(member).sum::<usize>()
}

/// Version 0 has no place for what protocol a member uses.
fn fit_described(version: i16, mut response: ConsumerGroupDescribeResponse) -> ConsumerGroupDescribeResponse {
    const UNKNOWN_MEMBER_TYPE: i8 = -1;
    if version == 0 {
        let members = response.groups.iter_mut().flat_map(|group| &mut group.members);
        members.for_each(|member| member.member_type = UNKNOWN_MEMBER_TYPE);
    }
    response
}

pub async fn list(client: &Client, header: &RequestHeader, request: ListGroupsRequest) -> ListGroupsResponse {
    match ask(client, header, Request::List(request)).await {
        Response::List(response) => response,
        other => mismatch(&other),
    }
}

pub async fn delete(client: &Client, header: &RequestHeader, body: &Bytes) -> Outcome {
    let mut response = match guard::decode::<DeleteGroupsRequest>(header.version, body) {
        Ok(request) => delete_all(client, header, request).await,
        Err(error) => return malformed(header, error),
    };
    response.set_throttle_ms(client.throttle_request(header));
    response.each_error(&mut |code| client.shard.requests.error(header.api, code));
    answer(header, newer::encode_delete_groups(header.version, header.correlation_id, &response))
}

async fn delete_all(
    client: &Client,
    header: &RequestHeader,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    // Each once, as Kafka does.
    let mut seen = HashSet::new();
    let names = request.groups_names.into_iter().filter(|name| seen.insert(name.clone())).collect();
    let results = for_each(names, |id| async move {
        // A share group's positions lie elsewhere, and go first.
        let states = share_groups::delete_states(client, header, &id).await;
        if let Err(error) = states {
            return DeletableGroupResult::default().with_group_id(id).with_error_code(error.code());
        }
        match ask(client, header, Request::Delete(id.clone())).await {
            Response::Delete(error) => {
                DeletableGroupResult::default().with_group_id(id).with_error_code(code(error))
            }
            other => mismatch(&other),
        }
    });
    DeleteGroupsResponse::default().with_results(results.await)
}

/// Asks about several groups at the same time; the answers come in the order of the groups.
async fn for_each<T, F: Future<Output = T>>(ids: Vec<GroupId>, ask: impl Fn(GroupId) -> F) -> Vec<T> {
    /// Questions of one request that are under way together.
    const GROUPS_AT_ONCE: usize = 64;
    let mut answers = Vec::with_capacity(ids.len());
    let mut ids = ids.into_iter();
    loop {
        let some: Vec<F> = ids.by_ref().take(GROUPS_AT_ONCE).map(&ask).collect();
        if some.is_empty() {
            return answers;
        }
        answers.extend(join_all(some).await);
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
    use kafka_protocol::messages::leave_group_response::MemberResponse;
    use kafka_protocol::messages::list_groups_response::ListedGroup;
    use kafka_protocol::protocol::{Encodable, HeaderVersion};

    use super::*;
    use crate::wire::header::CorrelationId;

    fn text(text: &'static str) -> StrBytes {
        StrBytes::from_static_str(text)
    }

    fn encodes(version: i16, response: &(impl Encodable + HeaderVersion)) {
        let encoded = guard::encode(version, CorrelationId(1), response);
        assert!(encoded.is_ok(), "version {version}: {encoded:?}");
    }

    #[test]
    fn a_client_id_of_other_bytes_than_text_is_never_longer_than_a_string() {
        assert_eq!(&*client_id(b"client"), "client");
        let id = client_id(&[0xff; STRING_BYTES_MAX]);
        assert!(
            id.len() <= STRING_BYTES_MAX && id.chars().all(|letter| letter == char::REPLACEMENT_CHARACTER)
        );
    }

    #[test]
    fn every_version_of_a_join_can_be_encoded() {
        let error = JoinGroupResponse::default().with_error_code(79).with_member_id(text("m"));
        let member = JoinGroupResponseMember::default().with_member_id(text("m"));
        let full = JoinGroupResponse::default()
            .with_protocol_type(Some(text("consumer")))
            .with_protocol_name(Some(text("range")))
            .with_leader(text("m"))
            .with_member_id(text("m"))
            .with_members(vec![member]);
        for version in 0..=9 {
            encodes(version, &fit_join(version, error.clone()));
            encodes(version, &fit_join(version, full.clone()));
        }
        let with_instance = JoinGroupResponseMember::default().with_group_instance_id(Some(text("i")));
        let static_member = full.with_members(vec![with_instance]);
        // An old client in a group with a static member is told of it without the instance id.
        (0..=9).for_each(|version| encodes(version, &fit_join(version, static_member.clone())));
    }

    #[test]
    fn every_version_of_the_other_answers_can_be_encoded() {
        let sync = SyncGroupResponse::default()
            .with_protocol_type(Some(text("consumer")))
            .with_protocol_name(Some(text("range")));
        (0..=5).for_each(|version| encodes(version, &sync));
        (0..=4).for_each(|version| encodes(version, &HeartbeatResponse::default().with_error_code(27)));
        let left = MemberResponse::default()
            .with_member_id(text("m"))
            .with_group_instance_id(Some(text("i")))
            .with_error_code(25);
        let leave = LeaveGroupResponse::default().with_members(vec![left]);
        for version in 0..=5 {
            encodes(version, &fit_leave(version, leave.clone()));
        }
        let member = DescribedGroupMember::default().with_group_instance_id(Some(text("i")));
        let described = DescribedGroup::default().with_group_state(text("Stable")).with_members(vec![member]);
        let response =
            DescribeGroupsResponse::default().with_groups(vec![fit_description(i32::MIN, described)]);
        (0..=6).for_each(|version| encodes(version, &response));
        let listed = ListedGroup::default().with_group_state(text("Stable")).with_group_type(text("classic"));
        (0..=5).for_each(|version| {
            encodes(version, &ListGroupsResponse::default().with_groups(vec![listed.clone()]))
        });
        let deleted = DeletableGroupResult::default().with_error_code(68);
        (0..=2).for_each(|version| {
            encodes(version, &DeleteGroupsResponse::default().with_results(vec![deleted.clone()]));
        });
    }

    #[test]
    fn every_version_of_the_new_protocols_answers_can_be_encoded() {
        use kafka_protocol::messages::consumer_group_describe_response::{DescribedGroup, Member};
        use kafka_protocol::messages::consumer_group_heartbeat_response::Assignment;
        let heartbeat = ConsumerGroupHeartbeatResponse::default()
            .with_member_id(Some(text("m")))
            .with_assignment(Some(Assignment::default()));
        let member = Member::default().with_subscribed_topic_regex(Some(StrBytes::new())).with_member_type(1);
        let described = DescribedGroup::default().with_members(vec![member]);
        for version in 0..=1 {
            encodes(version, &heartbeat);
            encodes(version, &ConsumerGroupHeartbeatResponse::default().with_error_code(110));
            let response = ConsumerGroupDescribeResponse::default().with_groups(vec![described.clone()]);
            encodes(version, &fit_described(version, response));
        }
    }

    #[test]
    fn an_old_leave_tells_the_error_of_its_member() {
        let left = MemberResponse::default().with_error_code(25);
        let response = LeaveGroupResponse::default().with_members(vec![left]);
        assert_eq!(fit_leave(2, response.clone()).error_code, 25);
        assert_eq!(fit_leave(3, response.clone()).error_code, 0);
        assert_eq!(fit_leave(0, response.with_error_code(16)).error_code, 16);
    }
}
