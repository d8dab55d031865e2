//! The network between nodes and to clients: messages are late, lost, and cut off in one direction or both. What a
//! client says to one node comes in order, as over a connection; all else overtakes each other.

use std::collections::{BTreeMap, BTreeSet};

use kuring::base::random::Random;

use super::messages::Place;

/// Microseconds that every message takes.
const DELAY_MIN_US: u64 = 100;

pub struct Network {
    /// From the first node nothing comes to the second.
    cut: BTreeSet<(usize, usize)>,
    pub loss_percent: u64,
    pub delay_max_us: u64,
    /// When the last message of a connection arrives.
    last: BTreeMap<(Place, Place), u64>,
}

impl Network {
    pub fn new() -> Self {
        let mut network =
            Self { cut: BTreeSet::new(), loss_percent: 0, delay_max_us: 0, last: BTreeMap::new() };
        network.heal();
        network
    }

    pub fn heal(&mut self) {
        self.cut.clear();
        (self.loss_percent, self.delay_max_us) = (0, 1_000);
    }

    /// Nothing comes from the one node to the other any more.
    pub fn cut(&mut self, from: usize, to: usize) {
        if from != to {
            self.cut.insert((from, to));
        }
    }

    pub fn cut_both(&mut self, one: usize, other: usize) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// The node is alone.
    pub fn isolate(&mut self, node: usize, nodes: usize) {
        (0..nodes).for_each(|other| self.cut_both(node, other));
    }

    pub fn mend(&mut self, node: usize) {
        self.cut.retain(|(from, to)| *from != node && *to != node);
    }

    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.contains(&(from, to))
    }

    /// Whether the nodes hear each other.
    pub fn connects(&self, one: usize, other: usize) -> bool {
        !self.is_cut(one, other) && !self.is_cut(other, one)
    }

    /// When a message that is sent now arrives; `None`: never.
    pub fn arrival(&mut self, from: Place, to: Place, now: u64, random: &mut Random) -> Option<u64> {
        let is_cut = match (from, to) {
            (Place::Node(from), Place::Node(to)) if from == to => return Some(now + DELAY_MIN_US),
            (Place::Node(from), Place::Node(to)) => self.is_cut(from, to),
            _ => false,
        };
        if is_cut || random.below(100) < self.loss_percent {
            return None;
        }
        let mut at = now + DELAY_MIN_US + random.below(self.delay_max_us);
        if matches!(from, Place::Client(_)) || matches!(to, Place::Client(_)) {
            let last = self.last.entry((from, to)).or_default();
            at = at.max(*last + 1);
            *last = at;
        }
        Some(at)
    }
}
