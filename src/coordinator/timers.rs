//! The deadlines of groups, on a timing wheel. The driver arms one timer for the earliest of them; a heartbeat touches
//! nothing here (see [`Session`]).

use std::collections::{HashMap, VecDeque};

use kafka_protocol::protocol::StrBytes;

use crate::base::clock::Monotonic;
use crate::timer::{self, Wheel};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum TimerKey {
    /// A member's session, or the time that a member to be has for its second JoinGroup.
    Session { group: StrBytes, member: StrBytes },
    /// The end of the join phase.
    Join { group: StrBytes },
    /// The end of the sync phase.
    Sync { group: StrBytes },
    /// The time that a member of a consumer group has to give partitions back.
    Revoke { group: StrBytes, member: StrBytes },
    /// The time that a member of the classic protocol in a consumer group has to join again.
    MemberJoin { group: StrBytes, member: StrBytes },
    /// The time that it has for SyncGroup after that.
    MemberSync { group: StrBytes, member: StrBytes },
    /// The next look for expired offsets.
    Sweep,
}

impl TimerKey {
    pub(super) fn group(&self) -> Option<&StrBytes> {
        match self {
            TimerKey::Session { group, .. }
            | TimerKey::Join { group }
            | TimerKey::Sync { group }
            | TimerKey::Revoke { group, .. }
            | TimerKey::MemberJoin { group, .. }
            | TimerKey::MemberSync { group, .. } => Some(group),
            TimerKey::Sweep => None,
        }
    }
}

pub(super) struct Timers {
    wheel: Wheel<TimerKey>,
    armed: HashMap<TimerKey, Armed>,
    /// Taken off the wheel and not handed out yet.
    expired: VecDeque<TimerKey>,
}

/// When a member's session ends. A sign of life moves that on and nothing else: the timer that was armed for an earlier
/// time looks here when it fires, and is armed again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Session {
    ends: Option<Monotonic>,
    /// There is a timer, which was armed for this time or fires soon.
    armed: Option<Monotonic>,
}

impl Session {
    /// A sign of life of the member whose timer `key` names: the session ends at `deadline` from now on.
    pub(super) fn goes_on(
        &mut self,
        deadline: Monotonic,
        timers: &mut Timers,
        key: impl FnOnce() -> TimerKey,
    ) {
        self.ends = Some(deadline);
        if self.armed.is_none_or(|armed| armed > deadline) {
            timers.set(key(), deadline);
            self.armed = Some(deadline);
        }
    }

    /// Its timer fired: whether it is over. One that went on has its timer armed anew.
    pub(super) fn is_over(&mut self, key: &TimerKey, now: Monotonic, timers: &mut Timers) -> bool {
        self.armed = self.ends.filter(|ends| *ends > now);
        match self.armed {
            Some(ends) => timers.set(key.clone(), ends),
            None => return true,
        }
        false
    }

    /// Its timer was cancelled.
    pub(super) fn disarm(&mut self) {
        self.armed = None;
    }
}

#[derive(Clone, Copy)]
struct Armed {
    deadline: Monotonic,
    place: timer::TimerKey,
}

impl Timers {
    pub(super) fn new(now: Monotonic) -> Self {
        Self { wheel: Wheel::new(now), armed: HashMap::new(), expired: VecDeque::new() }
    }

    /// Arms `key`, in place of what it was armed to before.
    pub(super) fn set(&mut self, key: TimerKey, deadline: Monotonic) {
        let place = self.wheel.insert(deadline, key.clone());
        if let Some(old) = self.armed.insert(key, Armed { deadline, place }) {
            self.wheel.cancel(old.place);
        }
    }

    /// Arms `key` unless it is already armed to an earlier time.
    pub(super) fn set_at_most(&mut self, key: TimerKey, deadline: Monotonic) {
        if self.armed.get(&key).is_none_or(|armed| armed.deadline > deadline) {
            self.set(key, deadline);
        }
    }

    pub(super) fn cancel(&mut self, key: &TimerKey) {
        if let Some(old) = self.armed.remove(key) {
            self.wheel.cancel(old.place);
        }
    }

    /// When [`Timers::pop_due`] is to be called: at the earliest timer or a little before.
    pub(super) fn next_deadline(&self) -> Option<Monotonic> {
        self.wheel.next_deadline()
    }

    /// Takes a timer whose time has come.
    pub(super) fn pop_due(&mut self, now: Monotonic) -> Option<TimerKey> {
        if self.expired.is_empty() {
            let mut expired = Vec::new();
            self.wheel.advance(now, &mut expired);
            self.expired.extend(expired);
        }
        while let Some(key) = self.expired.pop_front() {
            // One that fired before it may have cancelled it, or armed it anew.
            if self.armed.get(&key).is_some_and(|armed| armed.deadline <= now) {
                self.cancel(&key);
                return Some(key);
            }
        }
        None
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.armed.len()
    }
}
