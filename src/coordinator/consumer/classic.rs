//! Members of the classic protocol in a consumer group (KIP-848's migration): JoinGroup is how they take the next
//! step, SyncGroup how they learn what they have, and Heartbeat tells them when to join again.

use std::time::Duration;

use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    SyncGroupRequest, SyncGroupResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::draft::Draft;
use super::group::ConsumerGroup;
use super::heartbeat::{check_instance, unknown_instance};
use super::member::{
    ClassicMetadata, Epoch, Member, MemberMetadata, MemberState, sorted_names, without_epochs,
};
use super::protocol::{Subscription, identified, read_subscription, write_assignment};
use super::requests::{Applied, Refusal};
use crate::coordinator::group::CONSUMER_PROTOCOL_TYPE;
use crate::coordinator::interface::Client;
use crate::coordinator::join::FIRST_VERSION_WITH_REQUIRED_ID;
use crate::coordinator::member::{copy_protocols, copy_text};
use crate::coordinator::timers::TimerKey;
use crate::coordinator::turn::Turn;
use crate::wire::ErrorCode;

impl Draft<'_> {
    pub(super) fn join_classic(
        &mut self,
        request: &JoinGroupRequest,
        client: &Client,
        turn: &mut Turn<'_>,
        applied: &mut Applied,
    ) -> Result<JoinGroupResponse, Refusal> {
        let is_new = request.member_id.is_empty();
        let id = match is_new {
            true => StrBytes::from_string(uuid_text(turn)),
            false => copy_text(&request.member_id),
        };
        let instance_id = request.group_instance_id.as_ref();
        let size_max = turn.settings.consumer.members_max;
        self.check_room(&request.member_id, instance_id, size_max)?;
        let names = request.protocols.iter().map(|protocol| &protocol.name);
        if request.protocol_type.as_str() != CONSUMER_PROTOCOL_TYPE || !self.supports(names) {
            return Err(Refusal::new(
                ErrorCode::InconsistentGroupProtocol,
                format!("Member {id}'s protocols are not supported."),
            ));
        }
        if is_new && instance_id.is_none() && client.api_version >= FIRST_VERSION_WITH_REQUIRED_ID {
            return Ok(JoinGroupResponse::default()
                .with_member_id(id)
                .with_protocol_name(None)
                .with_error_code(ErrorCode::MemberIdRequired.code()));
        }
        let subscription = read_subscription(&request.protocols[0].metadata).map_err(|_| {
            Refusal::new(
                ErrorCode::UnknownServerError,
                "Malformed embedded consumer protocol in subscription deserialization.",
            )
        })?;
        // The last member of the new protocol comes back as one of the classic: the group follows it.
        let replaced = instance_id.and_then(|instance_id| self.static_member(instance_id)).cloned();
        let goes_back = replaced.as_ref().is_some_and(|replaced| {
            self.can_become_classic_with(std::slice::from_ref(&replaced.id), self.len(), turn)
        });
        let member = match (replaced, instance_id) {
            (None, None) => self.member(&id).cloned().unwrap_or_else(|| Member::new(id.clone())),
            (None, Some(_)) if is_new => Member::new(id.clone()),
            (None, Some(instance_id)) => return Err(unknown_instance(instance_id)),
            (Some(former), Some(_)) if is_new => self.replace(&former, &id, applied),
            (Some(member), Some(instance_id)) => {
                check_instance(&member, &id, instance_id)?;
                member
            }
            (Some(_), None) => unreachable!("only a static member is replaced"),
        };
        let metadata = told(&member.metadata, request, &subscription, client);
        let reported = identified(&subscription.owned, turn.topics);
        let subscription_changed = self.take_metadata(&member, metadata, turn, applied)?;
        if !goes_back {
            self.update_target(turn);
        }
        let member = match goes_back && subscription_changed {
            // It is asked to join again anyway.
            true => self.member(&id).expect("it was put").clone(),
            false => self.step(&id, Some(&reported), turn, applied)?,
        };
        if goes_back {
            self.become_classic(&[], Some(&id), subscription_changed, turn, applied)?;
        } else {
            applied.heard_of.push(id.clone());
            applied.joined = Some(id.clone());
        }
        Ok(JoinGroupResponse::default()
            .with_member_id(id)
            .with_generation_id(member.position.epoch.0)
            .with_protocol_type(Some(StrBytes::from_static_str(CONSUMER_PROTOCOL_TYPE)))
            .with_protocol_name(request.protocols.first().map(|protocol| copy_text(&protocol.name))))
    }

    /// LeaveGroup, each member with an answer of its own.
    pub(super) fn leave_classic(
        &mut self,
        request: &LeaveGroupRequest,
        turn: &mut Turn<'_>,
        applied: &mut Applied,
    ) -> Result<LeaveGroupResponse, Refusal> {
        let mut leaving: Vec<StrBytes> = Vec::new();
        let mut members = Vec::with_capacity(request.members.len());
        for leaver in &request.members {
            let found = self.leaver(leaver);
            members.push(
                MemberResponse::default()
                    // As it was asked, also by an administrator who knows only the instance.
                    .with_member_id(leaver.member_id.clone())
                    .with_group_instance_id(leaver.group_instance_id.clone())
                    .with_error_code(found.as_ref().err().map_or(0, |refusal| refusal.code.code())),
            );
            if let Ok(id) = found
                && !leaving.contains(&id)
            {
                leaving.push(id);
            }
        }
        if !leaving.is_empty() {
            self.fence(&leaving, turn, applied)?;
        }
        Ok(LeaveGroupResponse::default().with_members(members))
    }

    fn leaver(&self, leaver: &MemberIdentity) -> Result<StrBytes, Refusal> {
        let member = match &leaver.group_instance_id {
            None => self.member(&leaver.member_id).ok_or_else(|| self.no_member(&leaver.member_id))?,
            Some(instance_id) => {
                let member = self.static_member(instance_id).ok_or_else(|| unknown_instance(instance_id))?;
                // An administrator removes it without knowing its id.
                if !leaver.member_id.is_empty() {
                    check_instance(member, &leaver.member_id, instance_id)?;
                }
                member
            }
        };
        Ok(member.id.clone())
    }
}

impl ConsumerGroup {
    fn classic_member(
        &self,
        id: &StrBytes,
        instance_id: Option<&StrBytes>,
        generation: i32,
    ) -> Result<&Member, Refusal> {
        let member = match instance_id {
            None => self.member(id).ok_or_else(|| {
                let message = format!("Member {id} is not a member of group {}.", self.id);
                Refusal::new(ErrorCode::UnknownMemberId, message)
            })?,
            Some(instance_id) => {
                let member = self.static_member(instance_id).ok_or_else(|| unknown_instance(instance_id))?;
                check_instance(member, id, instance_id)?;
                member
            }
        };
        check_classic(member)?;
        match member.position.epoch == Epoch(generation) {
            true => Ok(member),
            false => Err(Refusal::new(
                ErrorCode::IllegalGeneration,
                format!(
                    "The request generation id {generation} is not equal to the member epoch {} of member {id}.",
                    member.position.epoch
                ),
            )),
        }
    }

    pub(super) fn sync_classic(
        &mut self,
        request: &SyncGroupRequest,
        turn: &mut Turn<'_>,
    ) -> Result<SyncGroupResponse, Refusal> {
        let id = &request.member_id;
        let member =
            self.classic_member(id, request.group_instance_id.as_ref(), request.generation_id)?.clone();
        let protocols = member.metadata.classic.as_ref().map(|classic| &classic.protocols);
        let protocol = protocols.and_then(|protocols| protocols.first());
        let differs = |asked: &Option<StrBytes>, own: Option<&str>| {
            asked.as_ref().is_some_and(|asked| own != Some(asked.as_str()))
        };
        if differs(&request.protocol_type, Some(CONSUMER_PROTOCOL_TYPE))
            || differs(&request.protocol_name, protocol.map(|protocol| protocol.name.as_str()))
        {
            return Err(Refusal::new(ErrorCode::InconsistentGroupProtocol, "Another protocol."));
        }
        // A newer target is there: it is to join for that. One that gives partitions back has done so. Of a target
        // that is put off it hears with a heartbeat: told so here it would join again at once, over and over.
        if self.target_epoch > member.position.epoch
            && member.position.state != MemberState::UnrevokedPartitions
        {
            self.expect_join(&member, turn);
            return Err(Refusal::new(ErrorCode::RebalanceInProgress, "A new rebalance is triggered."));
        }
        turn.timers.cancel(&TimerKey::MemberSync { group: self.id.clone(), member: id.clone() });
        self.heard_of(id, turn);
        let metadata = protocol.map(|protocol| protocol.metadata.clone()).unwrap_or_default();
        let assigned = without_epochs(&member.position.assigned);
        Ok(SyncGroupResponse::default()
            .with_protocol_type(request.protocol_type.clone())
            .with_protocol_name(request.protocol_name.clone())
            .with_assignment(write_assignment(&assigned, &metadata, turn.topics)))
    }

    pub(super) fn heartbeat_classic(
        &mut self,
        request: &HeartbeatRequest,
        turn: &mut Turn<'_>,
    ) -> Result<(), Refusal> {
        let id = &request.member_id;
        let member =
            self.classic_member(id, request.group_instance_id.as_ref(), request.generation_id)?.clone();
        self.heard_of(id, turn);
        let position = &member.position;
        let has_to_join = position.epoch < self.epoch
            || position.state == MemberState::UnrevokedPartitions
            || (position.state == MemberState::UnreleasedPartitions && !self.waits_for_release(&member));
        if has_to_join {
            self.expect_join(&member, turn);
            return Err(Refusal::new(ErrorCode::RebalanceInProgress, "The member has to join again."));
        }
        Ok(())
    }

    /// The member has its rebalance time-out to come back in.
    fn expect_join(&self, member: &Member, turn: &mut Turn<'_>) {
        let key = TimerKey::MemberJoin { group: self.id.clone(), member: member.id.clone() };
        let timeout =
            Duration::from_millis(member.metadata.rebalance_timeout_ms.max(1).unsigned_abs().into());
        turn.timers.set_at_most(key, turn.after(timeout));
    }
}

fn check_classic(member: &Member) -> Result<(), Refusal> {
    match member.uses_classic_protocol() {
        true => Ok(()),
        false => Err(Refusal::new(
            ErrorCode::UnknownMemberId,
            format!("Member {} does not use the classic protocol.", member.id),
        )),
    }
}

fn told(
    old: &MemberMetadata,
    request: &JoinGroupRequest,
    subscription: &Subscription,
    client: &Client,
) -> MemberMetadata {
    MemberMetadata {
        instance_id: request.group_instance_id.as_ref().map(copy_text).or_else(|| old.instance_id.clone()),
        rack_id: subscription.rack_id.clone().or_else(|| old.rack_id.clone()),
        client_id: copy_text(&client.id),
        client_host: copy_text(&client.host),
        topic_names: sorted_names(subscription.topics.iter().map(copy_text).collect()),
        topic_regex: StrBytes::new(),
        rebalance_timeout_ms: request.rebalance_timeout_ms,
        assignor: old.assignor.clone(),
        classic: Some(ClassicMetadata {
            session_timeout_ms: request.session_timeout_ms,
            protocols: copy_protocols(&request.protocols),
        }),
    }
}

/// A member id as Kafka's coordinator makes it for a consumer group.
fn uuid_text(turn: &mut Turn<'_>) -> String {
    crate::base::TopicId(turn.uuid()).to_string()
}
