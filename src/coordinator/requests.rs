//! Where each request goes: the checks that need no group, the group it is for, and whether its answer is
//! ready or waits.

use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, LeaveGroupRequest, ListGroupsRequest,
    ListGroupsResponse, OffsetCommitRequest, OffsetDeleteRequest, SyncGroupRequest,
};

use super::admin;
use super::codec::STRING_BYTES_MAX;
use super::gate::Waiting;
use super::group::{Group, State};
use super::interface::{Client, ReplyToken, Request, Response, join_error};
use super::join::Refused;
use super::machine::Coordinator;
use super::member::copy_text;
use super::offsets;
use super::partition::Partition;
use super::records::Record;
use super::share_group::ShareGroup;
use super::transactions::Marker;
use super::turn::{Then, Turn, Write};
use crate::base::clock::Now;
use crate::base::{PROCESS, PartitionIndex};
use crate::config::Assignor;
use crate::wire::ErrorCode;

/// Appends of one partition that may be under way; what would add to them is refused.
const APPENDS_PENDING_MAX: usize = 4096;

impl Coordinator {
    /// The answer, or `None` when it comes as an effect, now or later.
    pub(super) fn serve(
        &mut self,
        request: Request,
        client: &Client,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        if let Request::List(request) = &request {
            return Some(Response::List(self.list(request)));
        }
        if let Request::EndTransaction { partition, marker } = request {
            return self.end_transaction(partition, marker, token, now);
        }
        if let Some(error) = self.refusal(&request, client) {
            return Some(refuse(&request, error));
        }
        let index = self.partition_of(request.group_id().map_or("", |id| id.as_str()));
        let Some(partition) = self.partitions.get_mut(&index) else {
            return Some(request.failed(ErrorCode::NotCoordinator));
        };
        if partition.is_loading {
            return Some(match request {
                // The member is believed until its group is known.
                Request::Heartbeat(_) => Response::Heartbeat(HeartbeatResponse::default()),
                other => other.failed(ErrorCode::CoordinatorLoadInProgress),
            });
        }
        if partition.pending.len() >= APPENDS_PENDING_MAX && may_append(&request) {
            PROCESS.group_requests_refused.increment();
            return Some(request.failed(ErrorCode::CoordinatorNotAvailable));
        }
        if partition.has_to_wait(&request)
            && let Some(id) = request.group_id().cloned()
        {
            let waiting = Waiting { request, client: client.clone(), token };
            let Err(refused) = partition.gates.wait(&id, waiting) else { return None };
            PROCESS.group_requests_refused.increment();
            return Some(refused.request.failed(ErrorCode::CoordinatorNotAvailable));
        }
        self.serve_now(index, request, client, token, now)
    }

    /// Serves a request whose group is not being written.
    pub(super) fn serve_now(
        &mut self,
        index: PartitionIndex,
        request: Request,
        client: &Client,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        if !self.has_room_for(index, &request, now.monotonic) {
            PROCESS.members_refused.increment();
            return Some(request.failed(ErrorCode::GroupMaxSizeReached));
        }
        let partition = self.partitions.get(&index);
        let is_share = partition.zip(request.group_id()).is_some_and(|(it, id)| it.shares.contains_key(id));
        if is_share && let Some(error) = refused_by_share_group(&request) {
            return Some(refuse(&request, error));
        }
        match request {
            Request::Join(mut request) => {
                // Version 0 has one time-out for both.
                if client.api_version == 0 {
                    request.rebalance_timeout_ms = request.session_timeout_ms;
                }
                self.join(index, request, client, token, now)
            }
            Request::Sync(request) => self.sync(index, request, token, now),
            Request::Heartbeat(request) => self.heartbeat(index, &request, now),
            Request::Leave(request) => self.leave(index, request, token, now),
            Request::Commit(request) => self.commit(index, request, client, token, now),
            Request::CommitInTransaction { commit, producer, claim } => {
                let then = Then::InTransaction { producer, claim };
                self.commit_in_transaction(index, commit, client.api_version, then, token, now)
            }
            Request::FetchOffsets { group, require_stable } => {
                self.fetch_offsets(index, group, require_stable, token, now)
            }
            Request::DeleteOffsets(request) => self.delete_offsets(index, request, token, now),
            Request::Describe(id) => {
                let (partition, _) = self.parts(index, now)?;
                Some(Response::Describe(partition.describe(&id, client.api_version)))
            }
            Request::Delete(id) => {
                let (partition, _) = self.parts(index, now)?;
                match partition.delete_group(&id) {
                    Ok(write) => self.submit_with_reply(index, write, token, Response::Delete(None), now),
                    Err(error) => Some(Response::Delete(Some(error))),
                }
            }
            Request::ConsumerHeartbeat(request) => {
                self.consumer_heartbeat(index, request, client, token, now)
            }
            Request::DescribeConsumer(id) => {
                let default = self.default_assignor();
                let (partition, turn) = self.parts(index, now)?;
                Some(Response::DescribeConsumer(partition.describe_consumer(&id, default, &turn)))
            }
            Request::ShareHeartbeat(request) => self.share_heartbeat(index, &request, client, token, now),
            Request::DescribeShare(id) => {
                let (partition, turn) = self.parts(index, now)?;
                Some(Response::DescribeShare(partition.describe_share(&id, &turn)))
            }
            Request::ShareState(id) => {
                let (partition, _) = self.parts(index, now)?;
                Some(Response::ShareState(partition.share_state(&id)))
            }
            Request::ShareInitialized { group, partitions } => {
                self.share_initialized(index, &group, partitions, token, now)
            }
            Request::ShareForgotten { group, topics } => {
                self.share_forgotten(index, &group, &topics, token, now)
            }
            Request::ShareBump(id) => self.share_bump(index, &id, token, now),
            Request::List(_) | Request::EndTransaction { .. } => unreachable!("it was answered above"),
        }
    }

    fn default_assignor(&self) -> Assignor {
        self.settings.consumer.assignors.first().copied().unwrap_or(Assignor::Uniform)
    }

    /// What is wrong with a request whatever state its group is in.
    fn refusal(&self, request: &Request, client: &Client) -> Option<ErrorCode> {
        let id = request.group_id()?;
        // Offsets can be kept under an empty id: old consumers without a group do.
        let needs_id = matches!(
            request,
            Request::Join(_)
                | Request::Sync(_)
                | Request::Heartbeat(_)
                | Request::Leave(_)
                | Request::CommitInTransaction { .. }
                | Request::DeleteOffsets(_)
        );
        if (needs_id && id.is_empty()) || id.len() > STRING_BYTES_MAX {
            return Some(ErrorCode::InvalidGroupId);
        }
        let Request::Join(join) = request else { return None };
        let limits = self.settings.session_timeout_ms_min..=self.settings.session_timeout_ms_max;
        if !limits.contains(&join.session_timeout_ms) {
            return Some(ErrorCode::InvalidSessionTimeout);
        }
        // All of these are written to the log.
        let names = join.protocols.iter().map(|protocol| &protocol.name);
        let mut texts = names
            .chain([&join.protocol_type, &join.member_id, &client.host, &client.id])
            .chain(&join.group_instance_id);
        texts.any(|text| text.len() > STRING_BYTES_MAX).then_some(ErrorCode::InvalidRequest)
    }

    /// JoinGroup to a consumer group that all have left: it is ended, then the member makes a classic one.
    fn join_in_place_of_consumer(
        &mut self,
        index: PartitionIndex,
        request: JoinGroupRequest,
        client: &Client,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, _) = self.parts(index, now)?;
        if !request.member_id.is_empty() {
            return Some(Response::Join(join_error(request.member_id, ErrorCode::UnknownMemberId)));
        }
        let id = copy_text(&request.group_id.0);
        let write = match partition.delete_consumer(&id, Vec::new(), Some(token)) {
            Ok(write) => write,
            Err(error) => return Some(Response::Join(join_error(request.member_id, error))),
        };
        let waiting = Waiting { request: Request::Join(request), client: client.clone(), token };
        if let Err(refused) = partition.gates.wait(&id, waiting) {
            PROCESS.group_requests_refused.increment();
            return Some(refused.request.failed(ErrorCode::CoordinatorNotAvailable));
        }
        self.submit_all(index, [write], now);
        None
    }

    /// JoinGroup, which may make the group. A new group is written at once, so that it is there after a
    /// restart even while its first generation is still gathering.
    fn join(
        &mut self,
        index: PartitionIndex,
        request: JoinGroupRequest,
        client: &Client,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, mut turn) = self.parts(index, now)?;
        if let Some(group) = partition.consumers.get(&request.group_id.0) {
            if !group.is_empty() {
                return self.join_consumer(index, request, client, token, now);
            }
            return self.join_in_place_of_consumer(index, request, client, token, now);
        }
        let write = if let Some(group) = partition.groups.get_mut(&request.group_id.0) {
            group.join(request, client, token, &mut turn).unwrap_or(None)
        } else if request.member_id.is_empty() {
            let id = copy_text(&request.group_id.0);
            let mut group = Group::new(id.clone(), now.wall);
            let record = group.to_record(|_| bytes::Bytes::new());
            match group.join(request, client, token, &mut turn) {
                Err(Refused) => None,
                Ok(write) => {
                    partition.groups.insert(id.clone(), group);
                    Some(write.unwrap_or_else(|| Write::group(record, Then::Created { group: id })))
                }
            }
        } else {
            return Some(Response::Join(join_error(request.member_id, ErrorCode::UnknownMemberId)));
        };
        self.submit_all(index, write, now);
        None
    }

    fn sync(
        &mut self,
        index: PartitionIndex,
        request: SyncGroupRequest,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, mut turn) = self.parts(index, now)?;
        if let Some(response) = partition.sync_consumer(&request, &mut turn) {
            return Some(response);
        }
        let Some(group) = partition.groups.get_mut(&request.group_id.0) else {
            return Some(Request::Sync(request).failed(ErrorCode::UnknownMemberId));
        };
        let write = group.sync(request, token, &mut turn);
        self.submit_all(index, write, now);
        None
    }

    fn heartbeat(&mut self, index: PartitionIndex, request: &HeartbeatRequest, now: Now) -> Option<Response> {
        let (partition, mut turn) = self.parts(index, now)?;
        if let Some(response) = partition.heartbeat_consumer(request, &mut turn) {
            return Some(response);
        }
        let result = match partition.groups.get_mut(&request.group_id.0) {
            Some(group) => {
                let instance_id = request.group_instance_id.as_ref();
                group.heartbeat(&request.member_id, instance_id, request.generation_id, &mut turn)
            }
            None => Err(ErrorCode::UnknownMemberId),
        };
        let code = result.err().map_or(0, |error| error.code());
        Some(Response::Heartbeat(HeartbeatResponse::default().with_error_code(code)))
    }

    fn leave(
        &mut self,
        index: PartitionIndex,
        request: LeaveGroupRequest,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, mut turn) = self.parts(index, now)?;
        if partition.consumers.contains_key(&request.group_id.0) {
            return self.leave_consumer(index, &request, token, now);
        }
        let Some(group) = partition.groups.get_mut(&request.group_id.0) else {
            return Some(Request::Leave(request).failed(ErrorCode::UnknownMemberId));
        };
        let (response, write) = group.leave(&request, &mut turn);
        match write {
            Some(write) => self.submit_with_reply(index, write, token, Response::Leave(response), now),
            None => Some(Response::Leave(response)),
        }
    }

    fn commit(
        &mut self,
        index: PartitionIndex,
        request: OffsetCommitRequest,
        client: &Client,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, mut turn) = self.parts(index, now)?;
        if let Err(error) = check_commit(partition, &request, client, &mut turn) {
            return Some(Request::Commit(request).failed(error));
        }
        let metadata_max = usize::try_from(self.settings.offset_metadata_bytes_max).unwrap_or(0);
        let (records, response) = offsets::commit(&request, metadata_max, now.wall);
        self.submit_records(index, records, token, Response::Commit(response), now)
    }

    fn commit_in_transaction(
        &mut self,
        index: PartitionIndex,
        request: OffsetCommitRequest,
        api_version: i16,
        then: Then,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, _) = self.parts(index, now)?;
        if let Err(error) = check_commit_in_transaction(partition, &request, api_version) {
            return Some(Request::Commit(request).failed(error));
        }
        let metadata_max = usize::try_from(self.settings.offset_metadata_bytes_max).unwrap_or(0);
        let (records, response) = offsets::commit(&request, metadata_max, now.wall);
        if records.is_empty() {
            return Some(Response::Commit(response));
        }
        let write = Write { records, replay: false, reply: None, then, gate: None };
        self.submit_with_reply(index, write, token, Response::Commit(response), now)
    }

    /// The marker is appended whatever groups there are: what the transaction wrote may have been deleted.
    fn end_transaction(
        &mut self,
        index: PartitionIndex,
        marker: Marker,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let Some((partition, _)) = self.parts(index, now) else {
            return Some(Response::EndTransaction(Err(ErrorCode::NotCoordinator)));
        };
        if partition.is_loading {
            return Some(Response::EndTransaction(Err(ErrorCode::CoordinatorLoadInProgress)));
        }
        let then = Then::EndTransaction(marker);
        let write = Write { records: Vec::new(), replay: false, reply: None, then, gate: None };
        self.submit_with_reply(index, write, token, Response::EndTransaction(Ok(())), now)
    }

    fn fetch_offsets(
        &mut self,
        index: PartitionIndex,
        group: OffsetFetchRequestGroup,
        require_stable: bool,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, _) = self.parts(index, now)?;
        if let Some(Err(error)) = partition.consumers.get(&group.group_id.0).map(|it| it.check_fetch(&group))
        {
            return Some(Request::FetchOffsets { group, require_stable }.failed(error));
        }
        if require_stable && !partition.pending.is_empty() {
            let then = Then::Fetch { token, group };
            self.submit_all(
                index,
                [Write { records: Vec::new(), replay: false, reply: None, then, gate: None }],
                now,
            );
            return None;
        }
        Some(Response::FetchOffsets(match require_stable {
            true => partition.fetch_stable(&group),
            false => partition.offsets.fetch(&group),
        }))
    }

    fn delete_offsets(
        &mut self,
        index: PartitionIndex,
        request: OffsetDeleteRequest,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, _) = self.parts(index, now)?;
        match partition.delete_offsets(&request) {
            Ok((records, response)) => {
                self.submit_records(index, records, token, Response::DeleteOffsets(response), now)
            }
            Err(error) => Some(Request::DeleteOffsets(request).failed(error)),
        }
    }

    fn list(&self, request: &ListGroupsRequest) -> ListGroupsResponse {
        if self.partitions.values().any(|partition| partition.is_loading) {
            let code = ErrorCode::CoordinatorLoadInProgress.code();
            return ListGroupsResponse::default().with_error_code(code);
        }
        let partitions = self.partitions.values();
        let classic = partitions.clone().flat_map(|partition| partition.groups.values().map(admin::list));
        let consumers =
            partitions.clone().flat_map(|partition| partition.consumers.values().map(admin::list_consumer));
        let shares = partitions.flat_map(|partition| partition.shares.values().map(ShareGroup::list));
        let asked_for =
            classic.chain(consumers).chain(shares).filter(|group| admin::is_asked_for(request, group));
        ListGroupsResponse::default().with_groups(asked_for.collect())
    }

    /// Answers at once when nothing is to be written.
    fn submit_records(
        &mut self,
        index: PartitionIndex,
        records: Vec<Record>,
        token: ReplyToken,
        response: Response,
        now: Now,
    ) -> Option<Response> {
        match records.is_empty() {
            true => Some(response),
            false => self.submit_with_reply(index, Write::state(records), token, response, now),
        }
    }

    fn submit_with_reply(
        &mut self,
        index: PartitionIndex,
        write: Write,
        token: ReplyToken,
        response: Response,
        now: Now,
    ) -> Option<Response> {
        let write = Write { reply: Some((token, response)), ..write };
        self.submit_all(index, [write], now);
        None
    }
}

/// The answer to a request that is wrong in itself; a joining member is told its own id.
fn refuse(request: &Request, error: ErrorCode) -> Response {
    match request {
        Request::Join(join) => Response::Join(join_error(join.member_id.clone(), error)),
        other => other.failed(error),
    }
}

/// What requests of other protocols find where a share group has the id.
fn refused_by_share_group(request: &Request) -> Option<ErrorCode> {
    match request {
        Request::Join(_) => Some(ErrorCode::InconsistentGroupProtocol),
        Request::Sync(_) | Request::Heartbeat(_) | Request::Leave(_) => Some(ErrorCode::UnknownMemberId),
        Request::Commit(_) | Request::CommitInTransaction { .. } | Request::DeleteOffsets(_) => {
            Some(ErrorCode::GroupIdNotFound)
        }
        _ => None,
    }
}

fn may_append(request: &Request) -> bool {
    matches!(
        request,
        Request::Join(_)
            | Request::Sync(_)
            | Request::Leave(_)
            | Request::Commit(_)
            | Request::CommitInTransaction { .. }
            | Request::DeleteOffsets(_)
            | Request::Delete(_)
            | Request::ConsumerHeartbeat(_)
            | Request::ShareHeartbeat(_)
            | Request::ShareInitialized { .. }
            | Request::ShareForgotten { .. }
            | Request::ShareBump(_)
    )
}

/// From here on TxnOffsetCommit tells of groups that are not there and of stale epochs (KIP-1319).
pub(super) const FIRST_TXN_COMMIT_WITH_EVERY_ERROR: i16 = 6;

/// Who may commit within a transaction: members are checked only where the request names one (KIP-447).
fn check_commit_in_transaction(
    partition: &Partition,
    request: &OffsetCommitRequest,
    api_version: i16,
) -> Result<(), ErrorCode> {
    let generation = request.generation_id_or_member_epoch;
    if let Some(group) = partition.consumers.get(&request.group_id.0) {
        return group.check_commit_in_transaction(request, api_version);
    }
    let Some(group) = partition.groups.get(&request.group_id.0) else {
        return match generation {
            ..0 => Ok(()),
            _ if api_version >= FIRST_TXN_COMMIT_WITH_EVERY_ERROR => Err(ErrorCode::GroupIdNotFound),
            _ => Err(ErrorCode::IllegalGeneration),
        };
    };
    let (member, instance) = (&request.member_id, request.group_instance_id.as_ref());
    group.check_commit_in_transaction(member, instance, generation)
}

impl Partition {
    /// Whether a request has to wait until its group is written.
    fn has_to_wait(&self, request: &Request) -> bool {
        let (asks_classic, asks_consumer) = match request {
            Request::ConsumerHeartbeat(_)
            | Request::ShareHeartbeat(_)
            | Request::ShareInitialized { .. }
            | Request::ShareForgotten { .. }
            | Request::ShareBump(_) => (true, true),
            Request::Join(_) | Request::Sync(_) | Request::Heartbeat(_) | Request::Leave(_) => (false, true),
            Request::Delete(_) => (false, true),
            _ => return false,
        };
        let Some(id) = request.group_id() else { return false };
        let changes_by_records = self.consumers.contains_key(id) || self.shares.contains_key(id);
        let waits_for_any = if changes_by_records { asks_consumer } else { asks_classic };
        self.gates.has_queue(id)
            || match waits_for_any {
                true => self.gates.is_shut(id),
                false => self.gates.is_exclusive(id),
            }
    }
}

/// Who may commit; a commit is also a sign of life.
fn check_commit(
    partition: &mut Partition,
    request: &OffsetCommitRequest,
    client: &Client,
    turn: &mut Turn<'_>,
) -> Result<(), ErrorCode> {
    /// From here on a group that is not there has an error of its own.
    const FIRST_VERSION_WITH_NOT_FOUND: i16 = 9;
    let generation = request.generation_id_or_member_epoch;
    if let Some(group) = partition.consumers.get(&request.group_id.0) {
        return group.check_commit(request, client.api_version);
    }
    let Some(group) = partition.groups.get_mut(&request.group_id.0) else {
        return match generation {
            // A consumer that assigns its partitions itself: the record makes its group.
            ..0 => Ok(()),
            _ if client.api_version >= FIRST_VERSION_WITH_NOT_FOUND => Err(ErrorCode::GroupIdNotFound),
            _ => Err(ErrorCode::IllegalGeneration),
        };
    };
    group.check_commit(&request.member_id, request.group_instance_id.as_ref(), generation)?;
    if matches!(group.state(), State::Stable | State::PreparingRebalance) {
        group.heard_of(&request.member_id, turn);
    }
    Ok(())
}
