//! What waits while a group is being written.
//!
//! A consumer group changes only when its records are written, so the next request to it has to wait for that.
//! A classic group does not: its state runs ahead of its records. Both wait while a group changes its kind or is
//! deleted.

use std::collections::{HashMap, VecDeque};

use kafka_protocol::protocol::StrBytes;

use super::interface::{Client, ReplyToken, Request};

/// Requests to one partition's groups that may wait; further ones are refused.
const WAITING_MAX: usize = 64 << 10;

/// The group that a write belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Gated {
    pub(super) group: StrBytes,
    /// The group changes its kind, or goes.
    pub(super) is_exclusive: bool,
}

pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) client: Client,
    pub(super) token: ReplyToken,
}

#[derive(Default)]
struct Gate {
    writes: usize,
    exclusive: usize,
    waiting: VecDeque<Box<Waiting>>,
}

/// The gates of one partition's groups; none for a group without writes.
#[derive(Default)]
pub(super) struct Gates {
    by_group: HashMap<StrBytes, Gate>,
    waiting: usize,
}

impl Gates {
    pub(super) fn enter(&mut self, gated: &Gated) {
        let gate = self.by_group.entry(gated.group.clone()).or_default();
        gate.writes += 1;
        gate.exclusive += usize::from(gated.is_exclusive);
    }

    /// The write is over. Returns whether somebody can go on.
    pub(super) fn leave(&mut self, gated: &Gated) -> bool {
        let Some(gate) = self.by_group.get_mut(&gated.group) else { return false };
        gate.writes -= 1;
        gate.exclusive -= usize::from(gated.is_exclusive);
        if gate.writes > 0 {
            return false;
        }
        if gate.waiting.is_empty() {
            self.by_group.remove(&gated.group);
            return false;
        }
        true
    }

    /// Whether no write of the group is under way and nobody waits for one.
    pub(super) fn is_open(&self, group: &StrBytes) -> bool {
        !self.by_group.contains_key(group)
    }

    /// Whether a write of the group is under way.
    pub(super) fn is_shut(&self, group: &StrBytes) -> bool {
        self.by_group.get(group).is_some_and(|gate| gate.writes > 0)
    }

    /// Whether the group is changing its kind or going.
    pub(super) fn is_exclusive(&self, group: &StrBytes) -> bool {
        self.by_group.get(group).is_some_and(|gate| gate.exclusive > 0)
    }

    /// Whether others wait already: who comes now has to wait behind them.
    pub(super) fn has_queue(&self, group: &StrBytes) -> bool {
        self.by_group.get(group).is_some_and(|gate| !gate.waiting.is_empty())
    }

    pub(super) fn wait(&mut self, group: &StrBytes, waiting: Waiting) -> Result<(), Box<Waiting>> {
        let waiting = Box::new(waiting);
        if self.waiting >= WAITING_MAX {
            return Err(waiting);
        }
        self.waiting += 1;
        self.by_group.entry(group.clone()).or_default().waiting.push_back(waiting);
        Ok(())
    }

    /// Lets who was about to be served wait once more, before all others.
    pub(super) fn wait_first(&mut self, group: &StrBytes, waiting: Waiting) {
        self.waiting += 1;
        self.by_group.entry(group.clone()).or_default().waiting.push_front(Box::new(waiting));
    }

    /// Takes out who waits under this token.
    pub(super) fn take(&mut self, group: &StrBytes, token: ReplyToken) -> Option<Box<Waiting>> {
        let gate = self.by_group.get_mut(group)?;
        let at = gate.waiting.iter().position(|waiting| waiting.token == token)?;
        self.waiting -= 1;
        gate.waiting.remove(at)
    }

    /// The next that may go on.
    pub(super) fn next(&mut self, group: &StrBytes) -> Option<Box<Waiting>> {
        let gate = self.by_group.get_mut(group).filter(|gate| gate.writes == 0)?;
        let next = gate.waiting.pop_front();
        self.waiting -= usize::from(next.is_some());
        if gate.waiting.is_empty() {
            self.by_group.remove(group);
        }
        next
    }

    /// Everybody who waits: the partition goes away.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<Waiting>> + use<> {
        self.waiting = 0;
        std::mem::take(&mut self.by_group).into_values().flat_map(|gate| gate.waiting)
    }
}
