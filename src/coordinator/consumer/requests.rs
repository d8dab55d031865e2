//! Requests to consumer groups: which group they find, and what is written and answered.

use std::fmt::Display;
use std::time::Duration;

use kafka_protocol::messages::consumer_group_describe_response::DescribedGroup;
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupId, HeartbeatRequest,
    HeartbeatResponse, JoinGroupRequest, LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;

use super::draft::Draft;
use super::group::ConsumerGroup;
use super::heartbeat;
use super::member::Epoch;
use super::timing::keys_of;
use crate::base::clock::Now;
use crate::base::{PROCESS, PartitionIndex};
use crate::config::Assignor;
use crate::coordinator::gate::{Gated, Waiting};
use crate::coordinator::group::{Group, State};
use crate::coordinator::interface::{Client, ReplyToken, Request, Response, join_error, sync_error};
use crate::coordinator::machine::Coordinator;
use crate::coordinator::member::copy_text;
use crate::coordinator::partition::Partition;
use crate::coordinator::records::Record;
use crate::coordinator::timers::TimerKey;
use crate::coordinator::turn::{Then, Turn, Write};
use crate::wire::ErrorCode;

/// How long after a failed write a timer fires again.
const TIMER_RETRY: Duration = Duration::from_millis(500);
/// Between two turns that match expressions of one group again.
const REGEX_PAUSE: Duration = Duration::from_secs(1);
/// How long after a failed write expressions are matched again.
const REGEX_RETRY: Duration = Duration::from_secs(10);

/// Why a request to a consumer group is refused, with Kafka's words for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::coordinator) struct Refusal {
    pub(in crate::coordinator) code: ErrorCode,
    message: String,
}

impl Refusal {
    pub(super) fn new(code: ErrorCode, message: impl Display) -> Self {
        Self { code, message: message.to_string() }
    }

    fn heartbeat(self) -> Response {
        Response::ConsumerHeartbeat(
            ConsumerGroupHeartbeatResponse::default()
                .with_error_code(self.code.code())
                .with_error_message(Some(StrBytes::from_string(self.message))),
        )
    }
}

/// What follows when the records of a consumer group are written.
#[derive(Debug)]
pub(in crate::coordinator) struct Applied {
    pub(in crate::coordinator) group: StrBytes,
    /// Whose sessions begin anew.
    pub(super) heard_of: Vec<StrBytes>,
    /// Who took a step.
    pub(super) moved: Option<StrBytes>,
    /// Who is not a member any more.
    pub(super) removed: Vec<StrBytes>,
    /// Who joined by the classic protocol and has to sync.
    pub(super) joined: Option<StrBytes>,
    /// What fired: it fires again if the write fails.
    timer: Option<TimerKey>,
    /// The topics were looked at again: must be done once more if the write fails.
    pub(super) looked_at_topics: bool,
    /// The members of a classic group came along: all their times begin.
    pub(super) took_over: bool,
    /// There was no consumer group: nobody may make a group of the other kind meanwhile.
    founds: bool,
    /// Expressions were matched again.
    pub(super) matched_regexes: bool,
    /// The JoinGroup that waits for the end of the group.
    pub(in crate::coordinator) waits_for_end: Option<ReplyToken>,
    pub(super) becomes: Option<Box<ClassicGroup>>,
}

/// The classic group that a consumer group becomes.
#[derive(Debug)]
pub(in crate::coordinator) struct ClassicGroup {
    pub(super) group: Group,
    /// Members left or changed, so the others have to join again.
    pub(super) rebalances: bool,
}

impl Applied {
    fn to(group: StrBytes) -> Self {
        Self {
            group,
            heard_of: Vec::new(),
            moved: None,
            removed: Vec::new(),
            joined: None,
            timer: None,
            looked_at_topics: false,
            took_over: false,
            founds: false,
            matched_regexes: false,
            waits_for_end: None,
            becomes: None,
        }
    }

    /// The records are written and applied, or could not be.
    pub(in crate::coordinator) fn complete(
        self,
        partition: &mut Partition,
        result: Result<(), ErrorCode>,
        turn: &mut Turn<'_>,
    ) -> Option<Write> {
        if let Err(error) = result {
            tracing::warn!(group = %self.group, %error, "a consumer group could not be written");
            if let Some(group) = partition.consumers.get_mut(&self.group) {
                group.soft.is_outdated |= self.looked_at_topics;
                if self.matched_regexes {
                    group.soft.regexes_rest_until = turn.after(REGEX_RETRY);
                }
            }
            if let Some(token) = self.waits_for_end
                && let Some(waiting) = partition.gates.take(&self.group, token)
            {
                turn.reply(token, waiting.request.failed(error));
            }
            if let Some(timer) = self.timer {
                turn.set_timer(timer, TIMER_RETRY);
            }
            return None;
        }
        if let Some(becomes) = self.becomes {
            // Its members have other timers from now on.
            for id in becomes.group.member_ids().iter().chain(&self.removed) {
                for key in keys_of(&self.group, id) {
                    turn.timers.cancel(&key);
                }
            }
            return become_classic(*becomes, partition, turn);
        }
        let group = partition.consumers.get_mut(&self.group)?;
        if self.matched_regexes {
            group.soft.regexes_rest_until = turn.after(REGEX_PAUSE);
        }
        for id in &self.removed {
            group.forget(id, turn);
        }
        if self.took_over {
            group.start_timers(turn);
        }
        for id in &self.heard_of {
            group.heard_of(id, turn);
        }
        if let Some(id) = &self.joined {
            group.expect_sync(id, turn);
        }
        if let Some(id) = &self.moved {
            group.time_state(id, turn);
        }
        None
    }
}

fn become_classic(becomes: ClassicGroup, partition: &mut Partition, turn: &mut Turn<'_>) -> Option<Write> {
    let ClassicGroup { mut group, rebalances } = becomes;
    for id in group.member_ids() {
        group.heard_of(&id, turn);
    }
    let write = match rebalances {
        true => group.prepare_rebalance("the group came back from the new protocol", turn),
        false => None,
    };
    partition.groups.insert(group.id.clone(), group);
    write
}

/// Whether a heartbeat tells nothing and there is nothing new to its member.
fn is_quiet(group: &ConsumerGroup, request: &ConsumerGroupHeartbeatRequest, client: &Client) -> bool {
    heartbeat::beat_of(request).is_some_and(|beat| group.is_quiet(&beat, client.id.as_bytes(), &client.host))
}

/// What a draft led to.
struct Worked<R> {
    /// Records of the classic group that it takes the place of.
    first: Vec<Record>,
    records: Vec<Record>,
    result: Result<R, Refusal>,
    applied: Applied,
}

impl Partition {
    fn work<R>(
        &mut self,
        id: &StrBytes,
        turn: &mut Turn<'_>,
        act: impl FnOnce(&mut Draft<'_>, &mut Turn<'_>, &mut Applied) -> Result<R, Refusal>,
    ) -> Option<Worked<R>> {
        let group = self.consumers.get_mut(id)?;
        let mut applied = Applied::to(group.id.clone());
        let mut draft = Draft::of(group);
        let result = act(&mut draft, turn, &mut applied);
        let records = match &result {
            Ok(_) => draft.finish(),
            Err(_) => {
                drop(draft);
                Vec::new()
            }
        };
        // It need not be looked at again, unless the write fails.
        group.soft.is_outdated &= !(applied.looked_at_topics && result.is_ok());
        let records = records.into_iter().map(Record::Consumer).collect();
        Some(Worked { first: Vec::new(), records, result, applied })
    }

    /// A heartbeat of a member that joins a group which is not there, or a classic one.
    fn found(
        &mut self,
        request: &ConsumerGroupHeartbeatRequest,
        client: &Client,
        turn: &mut Turn<'_>,
    ) -> Result<Worked<ConsumerGroupHeartbeatResponse>, Refusal> {
        let id = copy_text(&request.group_id.0);
        let mut group = ConsumerGroup::founded(id.clone());
        let mut applied = Applied { founds: true, ..Applied::to(id.clone()) };
        let mut first = Vec::new();
        let mut draft = Draft::of(&mut group);
        if let Some(classic) = self.groups.get(&id) {
            // Without members there is nothing to take over but the offsets, which stay where they are.
            if classic.state() != State::Empty {
                draft.take_over(classic, turn)?;
            }
            first.push(Record::Group { group: id, value: None });
            applied.took_over = true;
        }
        let result = draft.heartbeat(request, client, turn, &mut applied);
        let records = draft.finish().into_iter().map(Record::Consumer).collect();
        Ok(Worked { first, records, result, applied })
    }
}

impl Coordinator {
    pub(in crate::coordinator) fn consumer_heartbeat(
        &mut self,
        index: PartitionIndex,
        request: ConsumerGroupHeartbeatRequest,
        client: &Client,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        if let Err(refusal) = heartbeat::invalid(&request, client, &self.settings.consumer.assignors) {
            return Some(refusal.heartbeat());
        }
        let (partition, mut turn) = self.parts(index, now)?;
        let id = &request.group_id.0;
        let epoch = Epoch(request.member_epoch);
        if epoch > Epoch::ZERO
            && let Some(group) = partition.consumers.get(id)
            && group.has_regexes_due(&request.member_id, &turn)
        {
            self.refresh_regexes(index, request, client, token, now);
            return None;
        }
        let worked = match partition.consumers.get_mut(id) {
            Some(group) if is_quiet(group, &request, client) => {
                group.heard_of(&request.member_id, &mut turn);
                let response = ConsumerGroupHeartbeatResponse::default()
                    .with_member_id(Some(request.member_id))
                    .with_member_epoch(request.member_epoch)
                    .with_heartbeat_interval_ms(turn.consumer_times(&group.id).heartbeat_interval_ms);
                return Some(Response::ConsumerHeartbeat(response));
            }
            Some(_) if epoch == Epoch::LEAVING || epoch == Epoch::STATIC_LEAVING => {
                partition.work(id, &mut turn, |draft, turn, applied| draft.leave(&request, turn, applied))
            }
            Some(_) => partition
                .work(id, &mut turn, |draft, turn, applied| draft.heartbeat(&request, client, turn, applied)),
            None if epoch == Epoch::ZERO && !partition.shares.contains_key(id) => {
                match partition.found(&request, client, &mut turn) {
                    Ok(worked) => Some(worked),
                    Err(refusal) => return Some(refusal.heartbeat()),
                }
            }
            None => {
                let is_other = partition.groups.contains_key(id) || partition.shares.contains_key(id);
                let message = match (is_other, epoch < Epoch::ZERO) {
                    (true, _) => format!("Group {id} is not a consumer group."),
                    (false, true) => format!("Group {id} not found."),
                    (false, false) => format!("Consumer group {id} not found."),
                };
                return Some(Refusal::new(ErrorCode::GroupIdNotFound, message).heartbeat());
            }
        };
        let worked = worked.expect("the group is there");
        match worked.result {
            Err(refusal) => {
                if refusal.code == ErrorCode::InvalidRegularExpression {
                    PROCESS.expressions_refused.increment();
                }
                Some(refusal.heartbeat())
            }
            Ok(response) => {
                let response = Response::ConsumerHeartbeat(response);
                self.submit_worked(index, worked.first, worked.records, worked.applied, token, response, now)
            }
        }
    }

    /// Matches expressions again before a heartbeat, in a write of its own: the heartbeat is served after it, though
    /// it failed.
    fn refresh_regexes(
        &mut self,
        index: PartitionIndex,
        request: ConsumerGroupHeartbeatRequest,
        client: &Client,
        token: ReplyToken,
        now: Now,
    ) {
        let Some((partition, mut turn)) = self.parts(index, now) else { return };
        let id = request.group_id.0.clone();
        let worked = partition.work(&id, &mut turn, |draft, turn, applied| {
            draft.refresh_regexes(turn, applied);
            Ok(())
        });
        let Worked { records, applied, .. } = worked.expect("the group is there");
        assert!(!records.is_empty(), "an expression is due");
        let request = Request::ConsumerHeartbeat(request);
        partition.gates.wait_first(&id, Waiting { request, client: client.clone(), token });
        self.submit_all(index, [consumer_write(records, applied)], now);
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one outcome")]
    fn submit_worked(
        &mut self,
        index: PartitionIndex,
        mut records: Vec<Record>,
        more: Vec<Record>,
        applied: Applied,
        token: ReplyToken,
        response: Response,
        now: Now,
    ) -> Option<Response> {
        records.extend(more);
        if records.is_empty() {
            let (partition, mut turn) = self.parts(index, now)?;
            applied.complete(partition, Ok(()), &mut turn);
            return Some(response);
        }
        let write = consumer_write(records, applied);
        self.submit_all(index, [Write { reply: Some((token, response)), ..write }], now);
        None
    }

    /// JoinGroup to a consumer group that has members.
    pub(in crate::coordinator) fn join_consumer(
        &mut self,
        index: PartitionIndex,
        request: JoinGroupRequest,
        client: &Client,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, mut turn) = self.parts(index, now)?;
        let worked = partition.work(&request.group_id.0, &mut turn, |draft, turn, applied| {
            draft.join_classic(&request, client, turn, applied)
        })?;
        match worked.result {
            Err(refusal) => Some(Response::Join(join_error(request.member_id, refusal.code))),
            Ok(response) => {
                let response = Response::Join(response);
                self.submit_worked(index, worked.first, worked.records, worked.applied, token, response, now)
            }
        }
    }

    pub(in crate::coordinator) fn leave_consumer(
        &mut self,
        index: PartitionIndex,
        request: &LeaveGroupRequest,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, mut turn) = self.parts(index, now)?;
        let worked = partition.work(&request.group_id.0, &mut turn, |draft, turn, applied| {
            draft.leave_classic(request, turn, applied)
        })?;
        match worked.result {
            Err(refusal) => {
                let response = LeaveGroupResponse::default().with_error_code(refusal.code.code());
                Some(Response::Leave(response))
            }
            Ok(response) => {
                let response = Response::Leave(response);
                self.submit_worked(index, worked.first, worked.records, worked.applied, token, response, now)
            }
        }
    }

    /// A timer of a member of a consumer group fired.
    pub(in crate::coordinator) fn consumer_timer(&mut self, index: PartitionIndex, key: &TimerKey, now: Now) {
        let Some((partition, mut turn)) = self.parts(index, now) else { return };
        let Some(id) = key.group() else { return };
        let Some(group) = partition.consumers.get_mut(id) else { return };
        let Some(member) = group.is_out(key, &mut turn) else { return };
        tracing::debug!(group = %id, %member, timer = ?key, "a member's time is over");
        let worked = partition.work(id, &mut turn, |draft, turn, applied| {
            draft.fence(std::slice::from_ref(&member), turn, applied)
        });
        if let Some(Worked { records, mut applied, result: Ok(()), .. }) = worked {
            applied.timer = Some(key.clone());
            self.submit_all(index, [consumer_write(records, applied)], now);
        }
    }
}

pub(in crate::coordinator) fn consumer_write(mut records: Vec<Record>, applied: Applied) -> Write {
    if let Some(becomes) = &applied.becomes {
        records.push(becomes.group.to_record(|member| member.assignment.clone()));
    }
    let changes_kind = applied.founds || applied.becomes.is_some();
    let gate = Some(Gated { group: applied.group.clone(), is_exclusive: changes_kind });
    Write { records, replay: true, reply: None, then: Then::Consumer(Box::new(applied)), gate }
}

impl Partition {
    pub(in crate::coordinator) fn sync_consumer(
        &mut self,
        request: &SyncGroupRequest,
        turn: &mut Turn<'_>,
    ) -> Option<Response> {
        let group = self.consumers.get_mut(&request.group_id.0)?;
        let response = group.sync_classic(request, turn);
        Some(Response::Sync(response.unwrap_or_else(|refusal| sync_error(refusal.code))))
    }

    pub(in crate::coordinator) fn heartbeat_consumer(
        &mut self,
        request: &HeartbeatRequest,
        turn: &mut Turn<'_>,
    ) -> Option<Response> {
        let group = self.consumers.get_mut(&request.group_id.0)?;
        let code = group.heartbeat_classic(request, turn).err().map_or(0, |refusal| refusal.code.code());
        Some(Response::Heartbeat(HeartbeatResponse::default().with_error_code(code)))
    }

    pub(in crate::coordinator) fn describe_consumer(
        &self,
        id: &GroupId,
        default: Assignor,
        turn: &Turn<'_>,
    ) -> DescribedGroup {
        if let Some(group) = self.consumers.get(&id.0) {
            return group.describe(default, turn.topics);
        }
        let message = match self.groups.contains_key(&id.0) || self.shares.contains_key(&id.0) {
            true => format!("Group {} is not a consumer group.", id.0),
            false => format!("Group {} not found.", id.0),
        };
        DescribedGroup::default()
            .with_group_id(id.clone())
            .with_error_code(ErrorCode::GroupIdNotFound.code())
            .with_error_message(Some(StrBytes::from_string(message)))
    }

    /// What deletes a consumer group without members.
    pub(in crate::coordinator) fn delete_consumer(
        &mut self,
        id: &StrBytes,
        mut records: Vec<Record>,
        waits_for_end: Option<ReplyToken>,
    ) -> Result<Write, ErrorCode> {
        let group = self.consumers.get(id).ok_or(ErrorCode::GroupIdNotFound)?;
        if !group.is_empty() {
            return Err(ErrorCode::NonEmptyGroup);
        }
        records.extend(group.tombstones().into_iter().map(Record::Consumer));
        let mut write = consumer_write(records, Applied { waits_for_end, ..Applied::to(group.id.clone()) });
        // Whoever comes meanwhile waits until it is gone.
        if let Some(gate) = &mut write.gate {
            gate.is_exclusive = true;
        }
        Ok(write)
    }
}
