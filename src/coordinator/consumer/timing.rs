//! The times of a consumer group's members.

use std::time::Duration;

use kafka_protocol::protocol::StrBytes;

use super::group::ConsumerGroup;
use super::member::{Epoch, Member, MemberState};
use crate::coordinator::member::copy_text;
use crate::coordinator::timers::{Session, TimerKey};
use crate::coordinator::turn::Turn;

impl ConsumerGroup {
    fn session_timeout(&self, id: &StrBytes, turn: &Turn<'_>) -> Duration {
        let classic = self.member(id).and_then(|member| member.metadata.classic.as_ref());
        let ms = match classic {
            Some(classic) => classic.session_timeout_ms,
            None => turn.consumer_times(&self.id).session_timeout_ms,
        };
        Duration::from_millis(ms.max(1).unsigned_abs().into())
    }

    /// A sign of life: the member's session begins anew.
    pub(in crate::coordinator) fn heard_of(&mut self, id: &StrBytes, turn: &mut Turn<'_>) {
        let deadline = turn.after(self.session_timeout(id, turn));
        // In memory of its own: the id may lie in a request.
        let key = || TimerKey::Session { group: self.id.clone(), member: copy_text(id) };
        match self.soft.sessions.get_mut(id) {
            Some(session) => session.goes_on(deadline, turn.timers, key),
            None => {
                let mut session = Session::default();
                session.goes_on(deadline, turn.timers, key);
                self.soft.sessions.insert(id.clone(), session);
            }
        }
    }

    /// Begins what goes with the member's state: who has to give partitions back has its time for it.
    pub(in crate::coordinator) fn time_state(&self, id: &StrBytes, turn: &mut Turn<'_>) {
        let key = TimerKey::Revoke { group: self.id.clone(), member: id.clone() };
        let Some(member) = self.member(id) else { return };
        // Members of the classic protocol are waited for with their JoinGroup.
        if has_to_revoke(member) && !member.uses_classic_protocol() {
            let ms = member.metadata.rebalance_timeout_ms.max(1).unsigned_abs();
            turn.set_timer(key, Duration::from_millis(ms.into()));
        } else {
            turn.timers.cancel(&key);
        }
    }

    pub(in crate::coordinator) fn forget(&mut self, id: &StrBytes, turn: &mut Turn<'_>) {
        self.soft.sessions.remove(id);
        for key in keys_of(&self.id, id) {
            turn.timers.cancel(&key);
        }
    }

    /// The whole group goes away.
    pub(in crate::coordinator) fn cancel_timers(&self, turn: &mut Turn<'_>) {
        let ids = self.members().map(|member| &member.id).chain(self.soft.sessions.keys());
        for key in ids.flat_map(|id| keys_of(&self.id, id)) {
            turn.timers.cancel(&key);
        }
    }

    /// Starts all timers, after the group was loaded or made of a classic one.
    pub(in crate::coordinator) fn start_timers(&mut self, turn: &mut Turn<'_>) {
        let ids: Vec<StrBytes> = self.members().map(|member| member.id.clone()).collect();
        for id in ids {
            self.heard_of(&id, turn);
            self.time_state(&id, turn);
        }
    }

    /// A member that joined by the classic protocol has its rebalance time-out to sync in.
    pub(in crate::coordinator) fn expect_sync(&self, id: &StrBytes, turn: &mut Turn<'_>) {
        let Some(member) = self.member(id) else { return };
        let ms = member.metadata.rebalance_timeout_ms.max(1).unsigned_abs();
        let (group, member) = (self.id.clone(), id.clone());
        turn.timers.cancel(&TimerKey::MemberJoin { group: group.clone(), member: member.clone() });
        turn.set_timer(TimerKey::MemberSync { group, member }, Duration::from_millis(ms.into()));
    }

    /// The member that is out now that this timer fired, if any; a session that went on is armed anew.
    pub(in crate::coordinator) fn is_out(&mut self, key: &TimerKey, turn: &mut Turn<'_>) -> Option<StrBytes> {
        match key {
            TimerKey::Session { member, .. } => {
                let session = self.soft.sessions.get_mut(member)?;
                if !session.is_over(key, turn.now.monotonic, turn.timers) {
                    return None;
                }
                self.member(member).map(|member| member.id.clone())
            }
            TimerKey::Revoke { member, .. } => {
                let found = self.member(member)?;
                has_to_revoke(found).then(|| found.id.clone())
            }
            TimerKey::MemberJoin { member, .. } | TimerKey::MemberSync { member, .. } => {
                let found = self.member(member)?;
                found.uses_classic_protocol().then(|| found.id.clone())
            }
            TimerKey::Join { .. } | TimerKey::Sync { .. } | TimerKey::Sweep => None,
        }
    }
}

/// A static member that left for now has nothing to give back.
fn has_to_revoke(member: &Member) -> bool {
    member.position.state == MemberState::UnrevokedPartitions
        && member.position.epoch != Epoch::STATIC_LEAVING
}

pub(super) fn keys_of(group: &StrBytes, member: &StrBytes) -> [TimerKey; 4] {
    let (group, member) = (|| group.clone(), || member.clone());
    [
        TimerKey::Session { group: group(), member: member() },
        TimerKey::Revoke { group: group(), member: member() },
        TimerKey::MemberJoin { group: group(), member: member() },
        TimerKey::MemberSync { group: group(), member: member() },
    ]
}
