//! Requests to share groups: which group they find, what is written and answered; and the times of members.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::share_group_describe_response::DescribedGroup;
use kafka_protocol::messages::{GroupId, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse};
use kafka_protocol::protocol::StrBytes;

use super::group::ShareGroup;
use super::heartbeat::{Draft, Refusal, invalid};
use super::records::{NamedPartitions, ShareRecord, States};
use crate::base::clock::Now;
use crate::base::{PartitionIndex, TopicId};
use crate::config::ShareGroupConfig;
use crate::coordinator::consumer::Epoch;
use crate::coordinator::gate::Gated;
use crate::coordinator::interface::{Client, ReplyToken, Response};
use crate::coordinator::machine::Coordinator;
use crate::coordinator::member::copy_text;
use crate::coordinator::partition::Partition;
use crate::coordinator::records::Record;
use crate::coordinator::timers::{Session, TimerKey};
use crate::coordinator::turn::{Then, Turn, Write};
use crate::metadata::ConfigResource;
use crate::wire::ErrorCode;

/// How long after a failed write a timer fires again.
const TIMER_RETRY: Duration = Duration::from_millis(500);

/// The answer to a heartbeat, and what has to be done before the group can assign all it is to.
#[derive(Clone, PartialEq, Debug)]
pub struct ShareHeartbeat {
    pub response: ShareGroupHeartbeatResponse,
    /// These partitions have no state in `__share_group_state`; it is to be made under `state_epoch`, and then told.
    pub lacks_states: BTreeMap<TopicId, NamedPartitions>,
    pub state_epoch: i32,
}

impl ShareHeartbeat {
    pub(in crate::coordinator) fn failed(error: ErrorCode) -> Self {
        let response = ShareGroupHeartbeatResponse::default().with_error_code(error.code());
        Self { response, lacks_states: BTreeMap::new(), state_epoch: 0 }
    }
}

/// What there is to know of a share group for whoever reads or changes its positions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShareGroupState {
    pub is_empty: bool,
    pub epoch: i32,
    pub partitions: BTreeMap<TopicId, NamedPartitions>,
}

/// What follows when the records of a share group are written.
#[derive(Debug)]
pub(in crate::coordinator) struct Applied {
    group: StrBytes,
    /// Whose session begins anew.
    heard_of: Option<StrBytes>,
    /// Who is not a member any more.
    removed: Option<StrBytes>,
    /// What fired: it fires again if the write fails.
    timer: Option<TimerKey>,
    /// The topics were looked at again: must be done once more if the write fails.
    looked_at_topics: bool,
}

impl Applied {
    fn to(group: StrBytes) -> Self {
        Self { group, heard_of: None, removed: None, timer: None, looked_at_topics: false }
    }

    /// The records are written and applied, or could not be.
    pub(in crate::coordinator) fn complete(
        self,
        partition: &mut Partition,
        result: Result<(), ErrorCode>,
        turn: &mut Turn<'_>,
    ) {
        let group = partition.shares.get_mut(&self.group);
        if let Err(error) = result {
            tracing::warn!(group = %self.group, %error, "a share group could not be written");
            if let Some(group) = group {
                group.soft.is_outdated |= self.looked_at_topics;
            }
            if let Some(timer) = self.timer {
                turn.set_timer(timer, TIMER_RETRY);
            }
            return;
        }
        let Some(group) = group else { return };
        if let Some(id) = &self.removed {
            group.soft.sessions.remove(id);
            turn.timers.cancel(&session(&self.group, id));
        }
        if let Some(id) = &self.heard_of {
            group.heard_of(id, turn);
        }
    }
}

fn session(group: &StrBytes, member: &StrBytes) -> TimerKey {
    TimerKey::Session { group: group.clone(), member: member.clone() }
}

impl Turn<'_> {
    /// The settings of a share group.
    fn share_config(&self, group: &str) -> ShareGroupConfig {
        let own = self.topics.image().overrides(&ConfigResource::Group(group.to_owned()));
        self.settings.share.of_group(own)
    }
}

impl ShareGroup {
    /// A sign of life: the member's session begins anew.
    fn heard_of(&mut self, id: &StrBytes, turn: &mut Turn<'_>) {
        let ms = turn.share_config(&self.id).session_timeout_ms.max(1).unsigned_abs();
        let deadline = turn.after(Duration::from_millis(ms.into()));
        let key = || TimerKey::Session { group: self.id.clone(), member: id.clone() };
        match self.soft.sessions.get_mut(id) {
            Some(session) => session.goes_on(deadline, turn.timers, key),
            None => {
                let mut session = Session::default();
                session.goes_on(deadline, turn.timers, key);
                self.soft.sessions.insert(id.clone(), session);
            }
        }
    }

    /// Starts all sessions, after the group was loaded.
    pub(in crate::coordinator) fn start_timers(&mut self, turn: &mut Turn<'_>) {
        // Topics may have come and gone meanwhile.
        self.soft.is_outdated = true;
        let ids: Vec<StrBytes> = self.members.keys().cloned().collect();
        ids.iter().for_each(|id| self.heard_of(id, turn));
    }

    /// The whole group goes away.
    pub(in crate::coordinator) fn cancel_timers(&self, turn: &mut Turn<'_>) {
        let ids = self.members.keys().chain(self.soft.sessions.keys());
        ids.for_each(|id| turn.timers.cancel(&session(&self.id, id)));
    }

    /// Whether the member's session is over now that its timer fired; one that went on is armed anew.
    fn is_out(&mut self, member: &StrBytes, key: &TimerKey, turn: &mut Turn<'_>) -> bool {
        let Some(session) = self.soft.sessions.get_mut(member) else { return false };
        session.is_over(key, turn.now.monotonic, turn.timers) && self.members.contains_key(member)
    }
}

impl Coordinator {
    pub(in crate::coordinator) fn share_heartbeat(
        &mut self,
        index: PartitionIndex,
        request: &ShareGroupHeartbeatRequest,
        client: &Client,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        if let Err(refusal) = invalid(request, client) {
            return Some(refused(refusal));
        }
        let (partition, mut turn) = self.parts(index, now)?;
        let id = &request.group_id.0;
        let interval_ms = turn.share_config(id).heartbeat_interval_ms;
        let epoch = Epoch(request.member_epoch);
        let is_other = partition.groups.contains_key(id) || partition.consumers.contains_key(id);
        let founded;
        let (group, founds) = match partition.shares.get_mut(id) {
            Some(group) if group.is_quiet(request, client) => {
                group.heard_of(&copy_text(&request.member_id), &mut turn);
                let response = ShareGroupHeartbeatResponse::default()
                    .with_member_id(Some(request.member_id.clone()))
                    .with_member_epoch(request.member_epoch)
                    .with_heartbeat_interval_ms(interval_ms);
                return Some(told(response, BTreeMap::new(), 0));
            }
            Some(group) => (&*group, false),
            None if is_other => {
                let message = format!("Group {id} is not a share group.");
                return Some(refused(Refusal::new(ErrorCode::GroupIdNotFound, message)));
            }
            None if epoch == Epoch::ZERO => {
                founded = ShareGroup::new(copy_text(id));
                (&founded, true)
            }
            None => {
                let message = format!("Share group {id} not found.");
                return Some(refused(Refusal::new(ErrorCode::GroupIdNotFound, message)));
            }
        };
        let mut draft = Draft::of(group);
        let mut applied = Applied::to(draft.group.id.clone());
        let result = match epoch == Epoch::LEAVING {
            true => {
                applied.removed = Some(copy_text(&request.member_id));
                draft.leave(&request.member_id, turn.topics)
            }
            false => {
                applied.heard_of = Some(copy_text(&request.member_id));
                applied.looked_at_topics = draft.group.soft.is_outdated;
                let members_max = turn.settings.share.members_max;
                draft.heartbeat(request, client, members_max, turn.topics, now.wall)
            }
        };
        let response = match result {
            Ok(response) => response.with_heartbeat_interval_ms(interval_ms),
            Err(refusal) => return Some(refused(refusal)),
        };
        let lacking = match epoch == Epoch::LEAVING {
            true => BTreeMap::new(),
            false => draft.group.without_state(turn.topics),
        };
        if let Some(group) = partition.shares.get_mut(id) {
            // It need not be looked at again, unless the write fails.
            group.soft.is_outdated &= !applied.looked_at_topics;
            group.soft.lacks_states = !lacking.is_empty();
        }
        let state_epoch = draft.group.epoch.0;
        let response = told(response, lacking, state_epoch);
        if draft.records.is_empty() {
            applied.complete(partition, Ok(()), &mut turn);
            return Some(response);
        }
        let write = share_write(draft.records, applied, founds);
        self.submit_all(index, [Write { reply: Some((token, response)), ..write }], now);
        None
    }

    /// The states of these partitions are there.
    pub(in crate::coordinator) fn share_initialized(
        &mut self,
        index: PartitionIndex,
        id: &GroupId,
        partitions: BTreeMap<TopicId, NamedPartitions>,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        self.change_states(index, id, token, now, |states| {
            for (topic, named) in partitions {
                let known = states.initialized.entry(topic).or_default();
                known.name = copy_text(&named.name);
                known.partitions.extend(named.partitions);
            }
        })
    }

    /// The states of these topics are no more.
    pub(in crate::coordinator) fn share_forgotten(
        &mut self,
        index: PartitionIndex,
        id: &GroupId,
        topics: &[TopicId],
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        self.change_states(index, id, token, now, |states| {
            states.initialized.retain(|topic, _| !topics.contains(topic));
            states.initializing.retain(|topic, _| !topics.contains(topic));
        })
    }

    fn change_states(
        &mut self,
        index: PartitionIndex,
        id: &GroupId,
        token: ReplyToken,
        now: Now,
        change: impl FnOnce(&mut States),
    ) -> Option<Response> {
        let (partition, turn) = self.parts(index, now)?;
        let Some(group) = partition.shares.get(&id.0) else {
            return Some(Response::ShareChanged(Err(ErrorCode::GroupIdNotFound)));
        };
        let mut states = group.states.clone();
        change(&mut states);
        // Those of deleted topics went with them.
        states.initialized.retain(|topic, _| turn.topics.image().topic_by_id(*topic).is_some());
        let record = ShareRecord::States { group: group.id.clone(), value: Some(Box::new(states)) };
        let (applied, epoch) = (Applied::to(group.id.clone()), group.epoch.0);
        let reply = Some((token, Response::ShareChanged(Ok(epoch))));
        let write = share_write(vec![record], applied, false);
        self.submit_all(index, [Write { reply, ..write }], now);
        None
    }

    /// A new epoch for a group without members, for states that are to be made anew under it. One that is not there is made,
    /// as by Kafka: its positions are set before anybody reads.
    pub(in crate::coordinator) fn share_bump(
        &mut self,
        index: PartitionIndex,
        id: &GroupId,
        token: ReplyToken,
        now: Now,
    ) -> Option<Response> {
        let (partition, _) = self.parts(index, now)?;
        let is_other = partition.groups.contains_key(&id.0) || partition.consumers.contains_key(&id.0);
        let founded;
        let (group, founds) = match partition.shares.get(&id.0) {
            Some(group) => (group, false),
            None if is_other => return Some(Response::ShareChanged(Err(ErrorCode::GroupIdNotFound))),
            None if id.0.is_empty() => return Some(Response::ShareChanged(Err(ErrorCode::InvalidGroupId))),
            None => {
                founded = ShareGroup::new(copy_text(&id.0));
                (&founded, true)
            }
        };
        if !group.is_empty() {
            return Some(Response::ShareChanged(Err(ErrorCode::NonEmptyGroup)));
        }
        let mut draft = Draft::of(group);
        draft.bump(group.metadata_hash);
        let reply = Some((token, Response::ShareChanged(Ok(draft.group.epoch.0))));
        let applied = Applied::to(draft.group.id);
        let write = share_write(draft.records, applied, founds);
        self.submit_all(index, [Write { reply, ..write }], now);
        None
    }

    /// A timer of a member of a share group fired.
    pub(in crate::coordinator) fn share_timer(&mut self, index: PartitionIndex, key: &TimerKey, now: Now) {
        let TimerKey::Session { group: id, member } = key else { return };
        let Some((partition, mut turn)) = self.parts(index, now) else { return };
        let Some(group) = partition.shares.get_mut(id) else { return };
        if !group.is_out(member, key, &mut turn) {
            return;
        }
        tracing::debug!(group = %id, %member, "a share group member's session is over");
        let mut draft = Draft::of(group);
        draft.remove(member, turn.topics);
        let mut applied = Applied::to(draft.group.id);
        applied.removed = Some(member.clone());
        applied.timer = Some(key.clone());
        self.submit_all(index, [share_write(draft.records, applied, false)], now);
    }
}

impl Partition {
    pub(in crate::coordinator) fn describe_share(&self, id: &GroupId, turn: &Turn<'_>) -> DescribedGroup {
        if let Some(group) = self.shares.get(&id.0) {
            return group.describe(turn.topics);
        }
        let is_other = self.groups.contains_key(&id.0) || self.consumers.contains_key(&id.0);
        let message = match is_other {
            true => format!("Group {} is not a share group.", id.0),
            false => format!("Group {} not found.", id.0),
        };
        DescribedGroup::default()
            .with_group_id(id.clone())
            .with_error_code(ErrorCode::GroupIdNotFound.code())
            .with_error_message(Some(StrBytes::from_string(message)))
    }

    pub(in crate::coordinator) fn share_state(&self, id: &GroupId) -> Result<ShareGroupState, ErrorCode> {
        let group = self.shares.get(&id.0).ok_or(ErrorCode::GroupIdNotFound)?;
        Ok(ShareGroupState {
            is_empty: group.is_empty(),
            epoch: group.epoch.0,
            partitions: group.states.initialized.clone(),
        })
    }

    /// What deletes a share group without members.
    pub(in crate::coordinator) fn delete_share(&self, id: &StrBytes) -> Result<Write, ErrorCode> {
        let group = self.shares.get(id).ok_or(ErrorCode::GroupIdNotFound)?;
        if !group.is_empty() {
            return Err(ErrorCode::NonEmptyGroup);
        }
        // Whoever comes meanwhile waits until it is gone.
        Ok(share_write(group.tombstones(), Applied::to(group.id.clone()), true))
    }

    /// Applies one record of a share group. Returns the classic group that ends with it.
    pub(in crate::coordinator) fn apply_share(
        &mut self,
        record: ShareRecord,
    ) -> Option<crate::coordinator::group::Group> {
        let id = record.group().clone();
        let ends = matches!(record, ShareRecord::Group { value: None, .. });
        if let Some(group) = self.shares.get_mut(&id) {
            group.apply(record);
            if ends {
                self.shares.remove(&id);
            }
            return None;
        }
        if record.is_tombstone() {
            return None;
        }
        // A classic group of the name was only one that keeps offsets.
        let classic = self.groups.remove(&id);
        let mut group = ShareGroup::new(id.clone());
        group.apply(record);
        self.shares.insert(id, group);
        classic
    }
}

fn share_write(records: Vec<ShareRecord>, applied: Applied, is_exclusive: bool) -> Write {
    let gate = Some(Gated { group: applied.group.clone(), is_exclusive });
    let records = records.into_iter().map(Record::Share).collect();
    Write { records, replay: true, reply: None, then: Then::Share(Box::new(applied)), gate }
}

fn told(
    response: ShareGroupHeartbeatResponse,
    lacks_states: BTreeMap<TopicId, NamedPartitions>,
    state_epoch: i32,
) -> Response {
    Response::ShareHeartbeat(Box::new(ShareHeartbeat { response, lacks_states, state_epoch }))
}

fn refused(refusal: Refusal) -> Response {
    let response = ShareGroupHeartbeatResponse::default()
        .with_error_code(refusal.code.code())
        .with_error_message(Some(StrBytes::from_string(refusal.message)));
    told(response, BTreeMap::new(), 0)
}
