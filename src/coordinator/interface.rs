//! What goes into the coordinator and what comes out of it.

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::messages::consumer_group_describe_response::DescribedGroup as DescribedConsumerGroup;
use kafka_protocol::messages::describe_groups_response::DescribedGroup;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::offset_fetch_response::OffsetFetchResponseGroup;
use kafka_protocol::messages::share_group_describe_response::DescribedGroup as DescribedShareGroup;
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupId, HeartbeatRequest,
    HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    ListGroupsRequest, ListGroupsResponse, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest,
    OffsetDeleteResponse, ShareGroupHeartbeatRequest, SyncGroupRequest, SyncGroupResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::offsets;
use super::share_group::{NamedPartitions, ShareGroupState, ShareHeartbeat};
use super::transactions::{Marker, Producer};
use crate::base::{PartitionIndex, TopicId};
use crate::log::Claim;
use crate::wire::ErrorCode;

/// Names a waiting request; chosen by the caller, handed back in [`Effect::Reply`] exactly once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReplyToken(pub u64);

/// Names an append; handed back to [`super::Coordinator::appended`] exactly once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Who sent a request, for the rules that depend on it and for what group metadata stores.
#[derive(Clone, Debug)]
pub struct Client {
    pub api_version: i16,
    pub id: StrBytes,
    /// As Java prints an address: `/127.0.0.1`.
    pub host: StrBytes,
}

/// A request for one group (the handlers split the requests that name several).
#[derive(Clone, Debug)]
pub enum Request {
    Join(JoinGroupRequest),
    Sync(SyncGroupRequest),
    Heartbeat(HeartbeatRequest),
    Leave(LeaveGroupRequest),
    Commit(OffsetCommitRequest),
    /// Within a transaction: it counts when the transaction is committed. Answered as a commit.
    CommitInTransaction {
        commit: OffsetCommitRequest,
        producer: Producer,
        claim: Claim,
    },
    /// The end of a transaction on a partition of the offsets topic.
    EndTransaction {
        partition: PartitionIndex,
        marker: Marker,
    },
    /// `require_stable` waits for commits that are being appended.
    FetchOffsets {
        group: OffsetFetchRequestGroup,
        require_stable: bool,
    },
    DeleteOffsets(OffsetDeleteRequest),
    Describe(GroupId),
    Delete(GroupId),
    ConsumerHeartbeat(ConsumerGroupHeartbeatRequest),
    DescribeConsumer(GroupId),
    ShareHeartbeat(ShareGroupHeartbeatRequest),
    DescribeShare(GroupId),
    /// What a share group has positions of.
    ShareState(GroupId),
    /// The states of these partitions were made.
    ShareInitialized {
        group: GroupId,
        partitions: BTreeMap<TopicId, NamedPartitions>,
    },
    /// The states of these topics were deleted.
    ShareForgotten {
        group: GroupId,
        topics: Vec<TopicId>,
    },
    /// A new epoch for a share group without members.
    ShareBump(GroupId),
    /// Every group of this node; belongs to no partition.
    List(ListGroupsRequest),
}

/// The answer to the [`Request`] of the same name.
#[derive(Clone, PartialEq, Debug)]
pub enum Response {
    EndTransaction(Result<(), ErrorCode>),
    Join(JoinGroupResponse),
    Sync(SyncGroupResponse),
    Heartbeat(HeartbeatResponse),
    Leave(LeaveGroupResponse),
    Commit(OffsetCommitResponse),
    FetchOffsets(OffsetFetchResponseGroup),
    DeleteOffsets(OffsetDeleteResponse),
    Describe(DescribedGroup),
    /// The error of the deletion, if any.
    Delete(Option<ErrorCode>),
    ConsumerHeartbeat(ConsumerGroupHeartbeatResponse),
    DescribeConsumer(DescribedConsumerGroup),
    ShareHeartbeat(Box<ShareHeartbeat>),
    DescribeShare(DescribedShareGroup),
    ShareState(Result<ShareGroupState, ErrorCode>),
    /// To what changes a share group: its epoch.
    ShareChanged(Result<i32, ErrorCode>),
    List(ListGroupsResponse),
}

impl Request {
    /// The group it is for; `None` when it is for the whole node.
    pub fn group_id(&self) -> Option<&StrBytes> {
        match self {
            Request::Join(request) => Some(&request.group_id.0),
            Request::Sync(request) => Some(&request.group_id.0),
            Request::Heartbeat(request) => Some(&request.group_id.0),
            Request::Leave(request) => Some(&request.group_id.0),
            Request::Commit(request) | Request::CommitInTransaction { commit: request, .. } => {
                Some(&request.group_id.0)
            }
            Request::FetchOffsets { group, .. } => Some(&group.group_id.0),
            Request::DeleteOffsets(request) => Some(&request.group_id.0),
            Request::ConsumerHeartbeat(request) => Some(&request.group_id.0),
            Request::ShareHeartbeat(request) => Some(&request.group_id.0),
            Request::Describe(id)
            | Request::Delete(id)
            | Request::DescribeConsumer(id)
            | Request::DescribeShare(id)
            | Request::ShareState(id)
            | Request::ShareBump(id) => Some(&id.0),
            Request::ShareInitialized { group, .. } | Request::ShareForgotten { group, .. } => Some(&group.0),
            Request::List(_) | Request::EndTransaction { .. } => None,
        }
    }

    /// The answer when the request as a whole meets `error`.
    pub(super) fn failed(&self, error: ErrorCode) -> Response {
        let code = error.code();
        match self {
            Request::Join(_) => Response::Join(join_error(StrBytes::new(), error)),
            Request::Sync(_) => Response::Sync(sync_error(error)),
            Request::Heartbeat(_) => Response::Heartbeat(HeartbeatResponse::default().with_error_code(code)),
            Request::Leave(request) if error == ErrorCode::UnknownMemberId => {
                let members = request.members.iter().map(|member| {
                    MemberResponse::default()
                        .with_member_id(member.member_id.clone())
                        .with_group_instance_id(member.group_instance_id.clone())
                        .with_error_code(code)
                });
                Response::Leave(LeaveGroupResponse::default().with_members(members.collect()))
            }
            Request::Leave(_) => Response::Leave(LeaveGroupResponse::default().with_error_code(code)),
            Request::Commit(request) | Request::CommitInTransaction { commit: request, .. } => {
                Response::Commit(offsets::commit_error(request, error))
            }
            Request::EndTransaction { .. } => Response::EndTransaction(Err(error)),
            Request::FetchOffsets { group, .. } => Response::FetchOffsets(
                OffsetFetchResponseGroup::default()
                    .with_group_id(group.group_id.clone())
                    .with_error_code(code),
            ),
            Request::DeleteOffsets(_) => {
                Response::DeleteOffsets(OffsetDeleteResponse::default().with_error_code(code))
            }
            Request::Describe(id) => {
                Response::Describe(DescribedGroup::default().with_group_id(id.clone()).with_error_code(code))
            }
            Request::Delete(_) => Response::Delete(Some(error)),
            Request::ConsumerHeartbeat(_) => Response::ConsumerHeartbeat(consumer_heartbeat_error(error)),
            Request::DescribeConsumer(id) => Response::DescribeConsumer(
                DescribedConsumerGroup::default().with_group_id(id.clone()).with_error_code(code),
            ),
            Request::ShareHeartbeat(_) => Response::ShareHeartbeat(Box::new(ShareHeartbeat::failed(error))),
            Request::DescribeShare(id) => Response::DescribeShare(
                DescribedShareGroup::default().with_group_id(id.clone()).with_error_code(code),
            ),
            Request::ShareState(_) => Response::ShareState(Err(error)),
            Request::ShareInitialized { .. } | Request::ShareForgotten { .. } | Request::ShareBump(_) => {
                Response::ShareChanged(Err(error))
            }
            Request::List(_) => Response::List(ListGroupsResponse::default().with_error_code(code)),
        }
    }
}

impl Response {
    /// The same answer once the append it stood on has failed with `error`.
    pub(super) fn spoiled(self, error: ErrorCode) -> Response {
        let code = error.code();
        match self {
            Response::Commit(mut response) => {
                for topic in &mut response.topics {
                    topic.partitions.iter_mut().for_each(|partition| partition.error_code = code);
                }
                Response::Commit(response)
            }
            Response::EndTransaction(_) => Response::EndTransaction(Err(error)),
            Response::Join(_) => Response::Join(join_error(StrBytes::new(), error)),
            Response::Sync(_) => Response::Sync(sync_error(error)),
            Response::Heartbeat(_) => Response::Heartbeat(HeartbeatResponse::default().with_error_code(code)),
            Response::Leave(_) => Response::Leave(LeaveGroupResponse::default().with_error_code(code)),
            Response::FetchOffsets(group) => Response::FetchOffsets(
                OffsetFetchResponseGroup::default().with_group_id(group.group_id).with_error_code(code),
            ),
            Response::DeleteOffsets(_) => {
                Response::DeleteOffsets(OffsetDeleteResponse::default().with_error_code(code))
            }
            Response::Describe(group) => Response::Describe(
                DescribedGroup::default().with_group_id(group.group_id).with_error_code(code),
            ),
            Response::Delete(_) => Response::Delete(Some(error)),
            Response::ConsumerHeartbeat(_) => Response::ConsumerHeartbeat(consumer_heartbeat_error(error)),
            Response::DescribeConsumer(group) => Response::DescribeConsumer(
                DescribedConsumerGroup::default().with_group_id(group.group_id).with_error_code(code),
            ),
            Response::ShareHeartbeat(_) => Response::ShareHeartbeat(Box::new(ShareHeartbeat::failed(error))),
            Response::DescribeShare(group) => Response::DescribeShare(
                DescribedShareGroup::default().with_group_id(group.group_id).with_error_code(code),
            ),
            Response::ShareState(_) => Response::ShareState(Err(error)),
            Response::ShareChanged(_) => Response::ShareChanged(Err(error)),
            Response::List(_) => Response::List(ListGroupsResponse::default().with_error_code(code)),
        }
    }
}

pub(super) fn join_error(member_id: StrBytes, error: ErrorCode) -> JoinGroupResponse {
    // Versions that have no null there get an empty text (`api::groups`).
    JoinGroupResponse::default()
        .with_member_id(member_id)
        .with_protocol_name(None)
        .with_error_code(error.code())
}

fn consumer_heartbeat_error(error: ErrorCode) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse::default().with_error_code(error.code())
}

pub(super) fn sync_error(error: ErrorCode) -> SyncGroupResponse {
    SyncGroupResponse::default().with_error_code(error.code())
}

/// One record for the log; no value is a tombstone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Option<Bytes>,
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    Reply {
        token: ReplyToken,
        response: Response,
    },
    /// Append to this partition of `__consumer_offsets`, in the order of the effects, as one batch that
    /// counts as written when it is committed (acks=all); then call
    /// [`super::Coordinator::appended`] with `ticket`.
    Append {
        partition: PartitionIndex,
        content: Content,
        ticket: Ticket,
    },
}

/// What a coordinator appends.
#[derive(Clone, PartialEq, Debug)]
pub enum Content {
    Records(Vec<KeyValue>),
    /// Records of a transaction: a batch of their own.
    InTransaction {
        records: Vec<KeyValue>,
        producer: Producer,
        claim: Claim,
    },
    Marker(Marker),
}
