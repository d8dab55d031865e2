//! The deadlines of groups. The driver arms one timer for the earliest of them; a heartbeat touches
//! nothing here (see [`super::member::Member`]).

use std::collections::{BTreeSet, HashMap};

use kafka_protocol::protocol::StrBytes;

use crate::base::clock::Monotonic;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum TimerKey {
    /// A member's session, or the time that a member to be has for its second JoinGroup.
    Session { group: StrBytes, member: StrBytes },
    /// The end of the join phase.
    Join { group: StrBytes },
    /// The end of the sync phase.
    Sync { group: StrBytes },
    /// The next look for expired offsets.
    Sweep,
}

#[derive(Default)]
pub(super) struct Timers {
    deadlines: HashMap<TimerKey, Monotonic>,
    queue: BTreeSet<(Monotonic, TimerKey)>,
}

impl Timers {
    /// Arms `key`, in place of what it was armed to before.
    pub(super) fn set(&mut self, key: TimerKey, deadline: Monotonic) {
        if let Some(old) = self.deadlines.insert(key.clone(), deadline) {
            self.queue.remove(&(old, key.clone()));
        }
        self.queue.insert((deadline, key));
    }

    /// Arms `key` unless it is already armed to an earlier time.
    pub(super) fn set_at_most(&mut self, key: TimerKey, deadline: Monotonic) {
        if self.deadlines.get(&key).is_none_or(|armed| *armed > deadline) {
            self.set(key, deadline);
        }
    }

    pub(super) fn cancel(&mut self, key: &TimerKey) {
        if let Some(old) = self.deadlines.remove(key) {
            self.queue.remove(&(old, key.clone()));
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Monotonic> {
        self.queue.first().map(|(deadline, _)| *deadline)
    }

    /// Takes the earliest timer whose time has come.
    pub(super) fn pop_due(&mut self, now: Monotonic) -> Option<TimerKey> {
        let (deadline, _) = self.queue.first()?;
        if *deadline > now {
            return None;
        }
        let (_, key) = self.queue.pop_first()?;
        self.deadlines.remove(&key);
        Some(key)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}
