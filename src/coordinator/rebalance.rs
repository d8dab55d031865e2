//! The join phase of a generation: when it begins, how long it lasts, how it ends; and what ends when a
//! deadline passes (Kafka's `prepareRebalance`, `completeClassicGroupJoin` and the expirations).

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::SyncGroupResponse;
use kafka_protocol::protocol::StrBytes;

use super::group::{Group, InitialDelay, State};
use super::interface::{join_error, sync_error};
use super::timers::TimerKey;
use super::turn::{Then, Turn, Write};
use crate::wire::ErrorCode;

impl Group {
    /// Moves the end of a member's session to `timeout` from now.
    pub(super) fn touch(&mut self, id: &StrBytes, timeout: Duration, turn: &mut Turn<'_>) {
        let deadline = turn.after(timeout);
        let group = self.id.clone();
        let member = self.member_mut(id).expect("only a member has a session");
        let key = || TimerKey::Session { group, member: member.id.clone() };
        member.session.goes_on(deadline, turn.timers, key);
    }

    /// A sign of life of a member.
    pub(super) fn heard_of(&mut self, id: &StrBytes, turn: &mut Turn<'_>) {
        let timeout = self.member(id).expect("only a member has a session").session_timeout();
        self.touch(id, timeout, turn);
    }

    /// Begins a rebalance, or when one is on, ends its join phase if nobody is missing.
    pub(super) fn rebalance_or_complete_join(&mut self, reason: &str, turn: &mut Turn<'_>) -> Option<Write> {
        if self.state().can_rebalance() {
            self.prepare_rebalance(reason, turn)
        } else {
            self.complete_join_if_all_are_in(turn)
        }
    }

    /// Ends the join phase if nobody is missing. The first rebalance of a group waits for its delay.
    pub(super) fn complete_join_if_all_are_in(&mut self, turn: &mut Turn<'_>) -> Option<Write> {
        let waits_for_more = self.state() != State::PreparingRebalance
            || self.previous_state() == State::Empty
            || !self.have_all_joined();
        if waits_for_more { None } else { self.complete_join(turn) }
    }

    pub(super) fn prepare_rebalance(&mut self, reason: &str, turn: &mut Turn<'_>) -> Option<Write> {
        // Who waits for an assignment of the old generation has to rejoin.
        if self.state() == State::CompletingRebalance {
            self.drop_assignments(ErrorCode::RebalanceInProgress, turn);
        }
        self.pending_sync.clear();
        turn.timers.cancel(&TimerKey::Sync { group: self.id.clone() });

        let is_first = self.state() == State::Empty;
        self.transition(State::PreparingRebalance, turn.now.wall);
        tracing::debug!(group = %self.id, generation = self.generation, reason, "rebalance begins");
        if !is_first {
            return self.complete_join_or_wait(turn);
        }
        // A group of its first members: give the others a moment to come.
        let delay = turn.initial_rebalance_delay();
        let remaining = self.rebalance_timeout().saturating_sub(delay);
        self.initial_delay = Some(InitialDelay { delay, remaining, member_added: false });
        turn.set_timer(TimerKey::Join { group: self.id.clone() }, delay);
        None
    }

    fn complete_join_or_wait(&mut self, turn: &mut Turn<'_>) -> Option<Write> {
        if self.have_all_joined() {
            return self.complete_join(turn);
        }
        turn.set_timer(TimerKey::Join { group: self.id.clone() }, self.rebalance_timeout());
        None
    }

    /// The join phase has lasted its time. The first one is put off again while members keep coming.
    pub(super) fn join_phase_expired(&mut self, turn: &mut Turn<'_>) -> Option<Write> {
        if self.state() != State::PreparingRebalance {
            return None;
        }
        match &mut self.initial_delay {
            Some(delay) if delay.member_added && !delay.remaining.is_zero() => {
                let next = turn.initial_rebalance_delay().min(delay.remaining);
                *delay = InitialDelay {
                    delay: next,
                    remaining: delay.remaining.saturating_sub(delay.delay),
                    member_added: false,
                };
                turn.set_timer(TimerKey::Join { group: self.id.clone() }, next);
                None
            }
            _ => self.complete_join(turn),
        }
    }

    /// Ends the join phase: dynamic members that did not rejoin are out, static ones stay, and the next
    /// generation begins.
    fn complete_join(&mut self, turn: &mut Turn<'_>) -> Option<Write> {
        turn.timers.cancel(&TimerKey::Join { group: self.id.clone() });
        self.initial_delay = None;
        let missing: Vec<StrBytes> = self
            .members()
            .filter(|member| member.awaiting_join.is_none() && member.instance_id.is_none())
            .map(|member| member.id.clone())
            .collect();
        for id in &missing {
            tracing::debug!(group = %self.id, member = %id, "did not rejoin in time");
            self.drop_member(id, turn);
        }

        if self.len() > 0 && !self.elect_joined_leader() {
            // Only static members, and none is back: wait until their sessions end or one comes.
            turn.set_timer(TimerKey::Join { group: self.id.clone() }, self.rebalance_timeout());
            return None;
        }
        self.next_generation(turn.now.wall);
        if self.state() == State::Empty {
            tracing::debug!(group = %self.id, generation = self.generation, "group is empty");
            return Some(Write::group(self.to_record(|_| Bytes::new()), Then::Nothing));
        }
        tracing::debug!(group = %self.id, generation = self.generation, members = self.len(), "generation begins");
        for id in self.member_ids() {
            if let Some(token) = self.take_join(&id) {
                turn.reply_join(token, self.join_response(&id));
            }
            self.heard_of(&id, turn);
            if let Some(member) = self.member_mut(&id) {
                member.is_new = false;
            }
            self.pending_sync.insert(id);
        }
        turn.set_timer(TimerKey::Sync { group: self.id.clone() }, self.rebalance_timeout());
        None
    }

    /// Who has not sent SyncGroup by now is out, and the others rebalance.
    pub(super) fn sync_phase_expired(&mut self, turn: &mut Turn<'_>) -> Option<Write> {
        let is_on = matches!(self.state(), State::CompletingRebalance | State::Stable);
        if !is_on || self.pending_sync.is_empty() {
            return None;
        }
        for id in std::mem::take(&mut self.pending_sync) {
            tracing::debug!(group = %self.id, member = %id, "did not sync in time");
            self.drop_member(&id, turn);
        }
        self.prepare_rebalance("members did not sync in time", turn)
    }

    /// A session timer fired. Heartbeats since it was armed only moved the member's own deadline.
    pub(super) fn session_timer_fired(&mut self, id: &StrBytes, turn: &mut Turn<'_>) -> Option<Write> {
        if self.pending_join.contains(id) {
            tracing::debug!(group = %self.id, member = %id, "a member to be did not come");
            self.remove(id);
            return self.complete_join_after_loss(turn);
        }
        let key = TimerKey::Session { group: self.id.clone(), member: id.clone() };
        let member = self.member_mut(id)?;
        if !member.session.is_over(&key, turn.now.monotonic, turn.timers) {
            return None;
        }
        let member = self.member(id)?;
        if member.has_satisfied_heartbeat() || self.state() == State::Dead {
            return None;
        }
        tracing::debug!(group = %self.id, member = %id, "session expired");
        self.drop_member(id, turn);
        match self.state() {
            State::Stable | State::CompletingRebalance => {
                self.rebalance_or_complete_join("a member's session expired", turn)
            }
            State::PreparingRebalance => self.complete_join_after_loss(turn),
            State::Empty | State::Dead => None,
        }
    }

    fn complete_join_after_loss(&mut self, turn: &mut Turn<'_>) -> Option<Write> {
        if self.state() == State::PreparingRebalance && self.have_all_joined() {
            self.complete_join(turn)
        } else {
            None
        }
    }

    /// Removes a member and answers what it waits for: it may be alive and then joins anew.
    pub(super) fn drop_member(&mut self, id: &StrBytes, turn: &mut Turn<'_>) {
        turn.timers.cancel(&TimerKey::Session { group: self.id.clone(), member: id.clone() });
        let Some(member) = self.remove(id) else { return };
        if let Some(token) = member.awaiting_join {
            turn.reply_join(token, join_error(StrBytes::new(), ErrorCode::UnknownMemberId));
        }
        if let Some(token) = member.awaiting_sync {
            turn.reply_sync(token, sync_error(ErrorCode::UnknownMemberId));
        }
    }

    /// Forgets all assignments and tells `error` to who waits for one.
    pub(super) fn drop_assignments(&mut self, error: ErrorCode, turn: &mut Turn<'_>) {
        for id in self.member_ids() {
            if let Some(member) = self.member_mut(&id) {
                member.assignment = Bytes::new();
            }
            self.answer_sync(&id, sync_error(error), turn);
        }
    }

    /// Answers a member that waits in SyncGroup. While it waited its session could not run out, so it
    /// starts again.
    pub(super) fn answer_sync(&mut self, id: &StrBytes, response: SyncGroupResponse, turn: &mut Turn<'_>) {
        if let Some(token) = self.take_sync(id) {
            turn.reply_sync(token, response);
            self.heard_of(id, turn);
        }
    }

    /// Answers everything that waits on the group with `error` and cancels its timers: it goes away.
    pub(super) fn abandon(&mut self, error: ErrorCode, turn: &mut Turn<'_>) {
        for id in self.member_ids() {
            if let Some(token) = self.take_join(&id) {
                turn.reply_join(token, join_error(id.clone(), error));
            }
            if let Some(token) = self.take_sync(&id) {
                turn.reply_sync(token, sync_error(error));
            }
            turn.timers.cancel(&TimerKey::Session { group: self.id.clone(), member: id });
        }
        for member in std::mem::take(&mut self.pending_join) {
            turn.timers.cancel(&TimerKey::Session { group: self.id.clone(), member });
        }
        turn.timers.cancel(&TimerKey::Join { group: self.id.clone() });
        turn.timers.cancel(&TimerKey::Sync { group: self.id.clone() });
    }
}
