//! SyncGroup, Heartbeat and LeaveGroup of a classic group.

use std::collections::HashMap;

use bytes::Bytes;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse};
use kafka_protocol::protocol::StrBytes;

use super::group::{Group, State};
use super::interface::{ReplyToken, sync_error};
use super::member::{Member, copy_text};
use super::timers::TimerKey;
use super::turn::{Then, Turn, Write};
use crate::wire::ErrorCode;

impl Group {
    /// Parks the request until the leader's assignment is written; the leader's own starts that.
    pub(super) fn sync(
        &mut self,
        request: SyncGroupRequest,
        token: ReplyToken,
        turn: &mut Turn<'_>,
    ) -> Option<Write> {
        if let Err(error) = self.check_sync(&request) {
            turn.reply_sync(token, sync_error(error));
            return None;
        }
        let id = &request.member_id;
        self.forget_pending_sync(id, turn);
        if self.state() == State::Stable {
            turn.reply_sync(token, self.sync_response(id));
            return None;
        }
        let member = self.member_mut(id).expect("the check found the member");
        if let Some(replaced) = member.awaiting_sync.replace(token) {
            // The same member asks a second time: its client gave up on the first request.
            turn.reply_sync(replaced, sync_error(ErrorCode::RebalanceInProgress));
        }
        self.is_leader(id).then(|| self.write_assignment(&request))
    }

    fn check_sync(&self, request: &SyncGroupRequest) -> Result<(), ErrorCode> {
        match self.state() {
            State::Dead => return Err(ErrorCode::CoordinatorNotAvailable),
            State::Empty => return Err(ErrorCode::UnknownMemberId),
            State::PreparingRebalance | State::CompletingRebalance | State::Stable => {}
        }
        self.check_member(&request.member_id, request.group_instance_id.as_ref())?;
        if request.generation_id != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        let differs = |asked: &Option<StrBytes>, own: &Option<StrBytes>| match (asked, own) {
            (Some(asked), Some(own)) => asked != own,
            _ => false,
        };
        if differs(&request.protocol_type, &self.protocol_type)
            || differs(&request.protocol_name, &self.protocol)
        {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        match self.state() {
            State::PreparingRebalance => Err(ErrorCode::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    fn forget_pending_sync(&mut self, id: &StrBytes, turn: &mut Turn<'_>) {
        self.pending_sync.shift_remove(id);
        if self.pending_sync.is_empty() {
            turn.timers.cancel(&TimerKey::Sync { group: self.id.clone() });
        }
    }

    /// Members that the leader gave nothing get an empty assignment; who is no member gets none.
    fn write_assignment(&self, request: &SyncGroupRequest) -> Write {
        let copy = |given: &SyncGroupRequestAssignment| Bytes::copy_from_slice(&given.assignment);
        let assignments: HashMap<StrBytes, Bytes> = request
            .assignments
            .iter()
            .filter_map(|given| Some((self.member(&given.member_id)?.id.clone(), copy(given))))
            .collect();
        let of_member = |member: &Member| assignments.get(&member.id).cloned().unwrap_or_default();
        let record = self.to_record(of_member);
        let leader = copy_text(&request.member_id);
        let (group, generation) = (self.id.clone(), self.generation);
        Write::group(record, Then::Assigned { group, generation, leader, assignments })
    }

    /// The leader's assignment is written, or could not be. Only the generation it was made for cares.
    pub(super) fn assigned(
        &mut self,
        generation: i32,
        leader: &StrBytes,
        mut assignments: HashMap<StrBytes, Bytes>,
        result: Result<(), ErrorCode>,
        turn: &mut Turn<'_>,
    ) -> Option<Write> {
        if self.state() != State::CompletingRebalance || self.generation != generation {
            return None;
        }
        if let Err(error) = result {
            tracing::warn!(group = %self.id, member = %leader, %error, "the assignment could not be written");
            self.drop_assignments(error, turn);
            return self.rebalance_or_complete_join("the assignment could not be written", turn);
        }
        self.transition(State::Stable, turn.now.wall);
        for id in self.member_ids() {
            if let Some(member) = self.member_mut(&id) {
                member.assignment = assignments.remove(&id).unwrap_or_default();
            }
            let response = self.sync_response(&id);
            self.answer_sync(&id, response, turn);
        }
        None
    }

    fn sync_response(&self, id: &StrBytes) -> SyncGroupResponse {
        let assignment = self.member(id).map(|member| member.assignment.clone()).unwrap_or_default();
        SyncGroupResponse::default()
            .with_protocol_type(self.protocol_type.clone())
            .with_protocol_name(self.protocol.clone())
            .with_assignment(assignment)
    }

    pub(super) fn heartbeat(
        &mut self,
        member: &StrBytes,
        instance_id: Option<&StrBytes>,
        generation: i32,
        turn: &mut Turn<'_>,
    ) -> Result<(), ErrorCode> {
        if self.state() == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.check_member(member, instance_id)?;
        if generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        self.heard_of(member, turn);
        match self.state() {
            State::PreparingRebalance => Err(ErrorCode::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Removes members, each with an answer of its own.
    pub(super) fn leave(
        &mut self,
        request: &LeaveGroupRequest,
        turn: &mut Turn<'_>,
    ) -> (LeaveGroupResponse, Option<Write>) {
        if self.state() == State::Dead {
            let error = ErrorCode::CoordinatorNotAvailable.code();
            return (LeaveGroupResponse::default().with_error_code(error), None);
        }
        let mut members = Vec::with_capacity(request.members.len());
        let mut has_left = false;
        for leaver in &request.members {
            let result = self.leave_one(leaver, turn);
            has_left |= result.is_ok();
            members.push(
                MemberResponse::default()
                    .with_member_id(leaver.member_id.clone())
                    .with_group_instance_id(leaver.group_instance_id.clone())
                    .with_error_code(result.err().map_or(0, |error| error.code())),
            );
        }
        let write = match self.state() {
            State::Stable | State::CompletingRebalance if has_left => {
                self.rebalance_or_complete_join("a member left", turn)
            }
            State::PreparingRebalance if has_left => self.complete_join_if_all_are_in(turn),
            _ => None,
        };
        (LeaveGroupResponse::default().with_members(members), write)
    }

    fn leave_one(&mut self, leaver: &MemberIdentity, turn: &mut Turn<'_>) -> Result<(), ErrorCode> {
        let instance_id = leaver.group_instance_id.as_ref();
        let id = if leaver.member_id.is_empty() {
            // An administrator removes a static member by its instance id.
            let member = instance_id.and_then(|instance_id| self.static_member(instance_id));
            member.ok_or(ErrorCode::UnknownMemberId)?.clone()
        } else {
            if !self.pending_join.contains(&leaver.member_id) {
                self.check_member(&leaver.member_id, instance_id)?;
            }
            leaver.member_id.clone()
        };
        self.drop_member(&id, turn);
        Ok(())
    }
}
