//! Who may commit and read offsets of a consumer group.

use kafka_protocol::messages::OffsetCommitRequest;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::protocol::StrBytes;

use super::group::ConsumerGroup;
use super::member::{Epoch, Member};
use crate::base::{PartitionIndex, TopicId};
use crate::coordinator::requests::FIRST_TXN_COMMIT_WITH_EVERY_ERROR;
use crate::wire::ErrorCode;

/// Before this a commit of a member of the new protocol could not say its epoch.
const FIRST_COMMIT_WITH_EPOCH: i16 = 9;

impl ConsumerGroup {
    pub(in crate::coordinator) fn check_commit(
        &self,
        request: &OffsetCommitRequest,
        api_version: i16,
    ) -> Result<(), ErrorCode> {
        // A consumer that assigns its partitions itself, or an administrator.
        if request.generation_id_or_member_epoch < 0 && self.is_empty() {
            return Ok(());
        }
        let member = self.member(&request.member_id).ok_or(ErrorCode::UnknownMemberId)?;
        if !member.uses_classic_protocol() && api_version < FIRST_COMMIT_WITH_EPOCH {
            return Err(ErrorCode::UnsupportedVersion);
        }
        check_epoch(member, request)
    }

    /// TxnOffsetCommit: a member is checked only where the request names one (KIP-447), and old clients know no stale
    /// epochs.
    pub(in crate::coordinator) fn check_commit_in_transaction(
        &self,
        request: &OffsetCommitRequest,
        api_version: i16,
    ) -> Result<(), ErrorCode> {
        let epoch = request.generation_id_or_member_epoch;
        let names_nobody = request.member_id.is_empty() && request.group_instance_id.is_none();
        if epoch < 0 && (self.is_empty() || (epoch == -1 && names_nobody)) {
            return Ok(());
        }
        let member = self.member(&request.member_id).ok_or(ErrorCode::UnknownMemberId)?;
        check_epoch(member, request).map_err(|error| match api_version {
            FIRST_TXN_COMMIT_WITH_EVERY_ERROR.. => error,
            _ => ErrorCode::IllegalGeneration,
        })
    }

    pub(in crate::coordinator) fn check_fetch(
        &self,
        group: &OffsetFetchRequestGroup,
    ) -> Result<(), ErrorCode> {
        let id: Option<&StrBytes> = group.member_id.as_ref();
        if id.is_none() && group.member_epoch < 0 {
            return Ok(());
        }
        let member = id.and_then(|id| self.member(id)).ok_or(ErrorCode::UnknownMemberId)?;
        match Epoch(group.member_epoch) == member.position.epoch {
            true => Ok(()),
            false => Err(wrong_epoch(member)),
        }
    }
}

fn check_epoch(member: &Member, request: &OffsetCommitRequest) -> Result<(), ErrorCode> {
    let epoch = Epoch(request.generation_id_or_member_epoch);
    if epoch == member.position.epoch {
        return Ok(());
    }
    // It may not have heard of its last steps: what it has had since before them it may commit (KIP-1251).
    let has_had =
        |topic: TopicId, partition| member.assigned_in(topic, partition).is_some_and(|since| epoch >= since);
    let mut named = request.topics.iter().flat_map(|topic| {
        let id = TopicId(topic.topic_id);
        topic.partitions.iter().map(move |partition| (id, PartitionIndex(partition.partition_index)))
    });
    match epoch < member.position.epoch && named.all(|(topic, partition)| has_had(topic, partition)) {
        true => Ok(()),
        false => Err(wrong_epoch(member)),
    }
}

fn wrong_epoch(member: &Member) -> ErrorCode {
    match member.uses_classic_protocol() {
        true => ErrorCode::IllegalGeneration,
        false => ErrorCode::StaleMemberEpoch,
    }
}
