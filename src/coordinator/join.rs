//! JoinGroup: who may join a generation and what that starts (Kafka's `classicGroupJoin*`).

use std::time::Duration;

use kafka_protocol::messages::JoinGroupRequest;
use kafka_protocol::protocol::StrBytes;

use super::group::{Group, State};
use super::interface::{Client, ReplyToken, join_error, sync_error};
use super::member::{Member, copy_protocols, copy_text};
use super::timers::{Session, TimerKey};
use super::turn::{Renamed, Then, Turn, Write};
use crate::wire::ErrorCode;

/// A new member cannot send heartbeats while it waits, so its first JoinGroup has a limit of its own.
pub(super) const NEW_MEMBER_JOIN_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// From here on a member without an id is told one first (KIP-394).
pub(super) const FIRST_VERSION_WITH_REQUIRED_ID: i16 = 4;
/// From here on a returning static leader can be told to leave the assignment as it is.
const FIRST_VERSION_THAT_SKIPS_ASSIGNMENT: i16 = 9;
/// More of a client's id than this would not fit the member id made of it.
const CLIENT_ID_IN_MEMBER_ID_MAX: usize = 1024;

/// The join was refused, and that is answered.
#[derive(Debug)]
pub(super) struct Refused;

impl Group {
    pub(super) fn join(
        &mut self,
        request: JoinGroupRequest,
        client: &Client,
        token: ReplyToken,
        turn: &mut Turn<'_>,
    ) -> Result<Option<Write>, Refused> {
        let is_new = request.member_id.is_empty();
        let refusal = self.join_refusal(&request, turn);
        match refusal {
            Some(error) => {
                if error == ErrorCode::GroupMaxSizeReached {
                    self.drop_member(&request.member_id, turn);
                }
                let answers_with_id = error != ErrorCode::GroupMaxSizeReached && !is_new;
                let member_id = if answers_with_id { request.member_id } else { StrBytes::new() };
                turn.reply_join(token, join_error(member_id, error));
                Err(Refused)
            }
            None if is_new => Ok(self.join_new(request, client, token, turn)),
            None => Ok(self.join_known(request, client, token, turn)),
        }
    }

    fn join_refusal(&self, request: &JoinGroupRequest, turn: &Turn<'_>) -> Option<ErrorCode> {
        if self.state() == State::Dead {
            return Some(ErrorCode::CoordinatorNotAvailable);
        }
        if !self.has_room_for(&request.member_id, turn.settings.members_max as usize) {
            return Some(ErrorCode::GroupMaxSizeReached);
        }
        let names = request.protocols.iter().map(|protocol| &protocol.name);
        if !self.supports(&request.protocol_type, names) {
            return Some(ErrorCode::InconsistentGroupProtocol);
        }
        if request.member_id.is_empty() {
            return None;
        }
        if self.pending_join.contains(&request.member_id) {
            // An id that was given out for a dynamic member names no static one.
            return request.group_instance_id.as_ref().map(|_| ErrorCode::UnknownMemberId);
        }
        self.check_member(&request.member_id, request.group_instance_id.as_ref()).err()
    }

    /// While members rejoin, those that wait count, so that the last to come are left out; else all count.
    fn has_room_for(&self, member_id: &StrBytes, size_max: usize) -> bool {
        match self.state() {
            State::Empty | State::Dead => true,
            State::PreparingRebalance => {
                let waits = self.member(member_id).is_some_and(|member| member.awaiting_join.is_some());
                waits || self.awaiting_join() < size_max
            }
            State::CompletingRebalance | State::Stable => {
                self.member(member_id).is_some() || self.len() < size_max
            }
        }
    }

    fn join_new(
        &mut self,
        request: JoinGroupRequest,
        client: &Client,
        token: ReplyToken,
        turn: &mut Turn<'_>,
    ) -> Option<Write> {
        let prefix = request.group_instance_id.as_ref().unwrap_or(&client.id);
        let member_id = StrBytes::from_string(format!("{}-{}", shortened(prefix), turn.uuid()));
        let existing = request.group_instance_id.as_ref().and_then(|id| self.static_member(id)).cloned();
        match existing {
            Some(old) => self.replace_static(request, client, old, member_id, token, turn),
            None if request.group_instance_id.is_some()
                || client.api_version < FIRST_VERSION_WITH_REQUIRED_ID =>
            {
                self.add_and_rebalance(request, client, member_id, token, turn)
            }
            None => {
                tracing::debug!(group = %self.id, member = %member_id, "gave out a member id");
                self.pending_join.insert(member_id.clone());
                let key = TimerKey::Session { group: self.id.clone(), member: member_id.clone() };
                turn.set_timer(key, Duration::from_millis(request.session_timeout_ms.max(0) as u64));
                turn.reply_join(token, join_error(member_id, ErrorCode::MemberIdRequired));
                None
            }
        }
    }

    fn join_known(
        &mut self,
        request: JoinGroupRequest,
        client: &Client,
        token: ReplyToken,
        turn: &mut Turn<'_>,
    ) -> Option<Write> {
        let id = request.member_id.clone();
        if self.pending_join.contains(&id) {
            let id = copy_text(&id);
            return self.add_and_rebalance(request, client, id, token, turn);
        }
        let member = self.member(&id).expect("a known member passed the check");
        let offers_the_same = member.protocols.len() == request.protocols.len()
            && member
                .protocols
                .iter()
                .zip(&request.protocols)
                .all(|(old, new)| old.name == new.name && old.metadata == new.metadata);
        let only_wants_to_know = match self.state() {
            // It may not have received the answer to its first JoinGroup.
            State::CompletingRebalance => offers_the_same,
            // A leader that joins again has seen something that asks for a new assignment.
            State::Stable => offers_the_same && !self.is_leader(&id),
            State::Empty | State::PreparingRebalance | State::Dead => false,
        };
        if only_wants_to_know {
            turn.reply_join(token, self.join_response(&id));
            return None;
        }
        self.update_from(&id, &request, token, turn);
        self.rebalance_or_complete_join("a member joins again", turn)
    }

    fn add_and_rebalance(
        &mut self,
        request: JoinGroupRequest,
        client: &Client,
        member_id: StrBytes,
        token: ReplyToken,
        turn: &mut Turn<'_>,
    ) -> Option<Write> {
        let member = Member {
            id: member_id.clone(),
            instance_id: request.group_instance_id.as_ref().map(copy_text),
            client_id: StrBytes::from_string(shortened(&client.id).to_owned()),
            client_host: copy_text(&client.host),
            rebalance_timeout_ms: request.rebalance_timeout_ms,
            session_timeout_ms: request.session_timeout_ms,
            protocols: copy_protocols(&request.protocols),
            assignment: bytes::Bytes::new(),
            awaiting_join: Some(token),
            awaiting_sync: None,
            is_new: true,
            session: Session::default(),
        };
        if self.state() == State::PreparingRebalance
            && let Some(delay) = &mut self.initial_delay
        {
            delay.member_added = true;
        }
        self.add(member, copy_text(&request.protocol_type));
        self.touch(&member_id, NEW_MEMBER_JOIN_TIMEOUT, turn);
        self.rebalance_or_complete_join("a new member joins", turn)
    }

    fn update_from(
        &mut self,
        id: &StrBytes,
        request: &JoinGroupRequest,
        token: ReplyToken,
        turn: &mut Turn<'_>,
    ) {
        let replaced = self.update(
            id,
            copy_protocols(&request.protocols),
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            Some(token),
        );
        // The same member asks a second time: its client gave up on the first request.
        if let Some(token) = replaced {
            turn.reply_join(token, join_error(id.clone(), ErrorCode::RebalanceInProgress));
        }
    }

    /// A static member is back without its id: it takes the place of its former self, which is fenced.
    fn replace_static(
        &mut self,
        request: JoinGroupRequest,
        client: &Client,
        old: StrBytes,
        new: StrBytes,
        token: ReplyToken,
        turn: &mut Turn<'_>,
    ) -> Option<Write> {
        let old_leader = self.leader.clone().unwrap_or_default();
        let [join_token, sync_token] = self.rename(&old, new.clone());
        if let Some(token) = join_token {
            turn.reply_join(token, join_error(old.clone(), ErrorCode::FencedInstanceId));
        }
        if let Some(token) = sync_token {
            turn.reply_sync(token, sync_error(ErrorCode::FencedInstanceId));
        }
        turn.timers.cancel(&TimerKey::Session { group: self.id.clone(), member: old.clone() });

        let member = self.member(&new).expect("it has just been renamed");
        let renamed = Renamed {
            group: self.id.clone(),
            old,
            new: new.clone(),
            old_protocols: member.protocols.clone(),
            old_rebalance_timeout_ms: member.rebalance_timeout_ms,
            old_session_timeout_ms: member.session_timeout_ms,
            old_leader,
            skips_assignment: client.api_version >= FIRST_VERSION_THAT_SKIPS_ASSIGNMENT,
        };
        self.update_from(&new, &request, token, turn);
        let session = self.member(&new).expect("it has just been updated").session_timeout();
        self.touch(&new, session, turn);

        match self.state() {
            State::Stable if self.protocol == self.select_protocol() => {
                // Nothing changes for the others: only the new id has to be kept.
                let record = self.to_record(|member| member.assignment.clone());
                Some(Write::group(record, Then::Renamed(Box::new(renamed))))
            }
            // The leader may already work on an assignment for the former id.
            State::Stable | State::CompletingRebalance => {
                self.prepare_rebalance("a static member is back", turn)
            }
            State::PreparingRebalance => self.complete_join_if_all_are_in(turn),
            State::Empty | State::Dead => unreachable!("a group in this state has no members"),
        }
    }

    /// The new id of a static member is written, or could not be.
    pub(super) fn renamed(&mut self, renamed: Renamed, result: Result<(), ErrorCode>, turn: &mut Turn<'_>) {
        // Replaced again or gone in the meantime: then its request is answered too.
        if self.member(&renamed.new).is_none() {
            return;
        }
        match result {
            Ok(()) => {
                // A rebalance has begun since: its end answers the request.
                if self.state() != State::Stable {
                    return;
                }
                let Some(token) = self.take_join(&renamed.new) else { return };
                let is_leader = self.is_leader(&renamed.new);
                let mut response = self.join_response(&renamed.new);
                if renamed.skips_assignment {
                    response.skip_assignment = is_leader;
                } else {
                    // Seeing itself lead it would assign: an older client is shown its former self.
                    response.leader = renamed.old_leader;
                    response.members = Vec::new();
                }
                turn.reply_join(token, response);
            }
            Err(error) => {
                tracing::warn!(group = %self.id, member = %renamed.new, %error, "a static member's new id was not kept");
                let token = self.take_join(&renamed.new);
                turn.timers
                    .cancel(&TimerKey::Session { group: self.id.clone(), member: renamed.new.clone() });
                let [_, sync_token] = self.rename(&renamed.new, renamed.old.clone());
                self.update(
                    &renamed.old,
                    renamed.old_protocols,
                    renamed.old_rebalance_timeout_ms,
                    renamed.old_session_timeout_ms,
                    None,
                );
                let session = self.member(&renamed.old).expect("it has just been updated").session_timeout();
                self.touch(&renamed.old, session, turn);
                if let Some(token) = token {
                    turn.reply_join(token, join_error(StrBytes::new(), error));
                }
                if let Some(token) = sync_token {
                    turn.reply_sync(token, sync_error(error));
                }
            }
        }
    }
}

/// At most [`CLIENT_ID_IN_MEMBER_ID_MAX`] bytes of `text`, whole characters.
fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(CLIENT_ID_IN_MEMBER_ID_MAX)]
}
