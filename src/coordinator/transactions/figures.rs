//! What is told of transactions to whoever looks from outside. Reads only.

use super::machine::Coordinator;
use super::state::State;

/// How transactions stand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Transactional ids by the name of their state; states that none is kept in are left out.
    pub ids: Vec<(&'static str, u64)>,
    /// What they hold, about.
    pub bytes: u64,
    /// Decided transactions that wait until what failed is tried again.
    pub retries_waiting: u64,
    /// How often that was so.
    pub retries: u64,
    /// Appends, rounds of markers and waits for producer ids under way.
    pub pending: u64,
    /// How often a partition obeyed a later coordinator, so that a transaction's markers were left to that one.
    pub fenced: u64,
}

impl Coordinator {
    pub fn figures(&self) -> Figures {
        let kept = State::ALL.into_iter().filter(|state| state.is_kept());
        let count = |state| -> u64 { self.partitions.values().map(|partition| partition.count(state)).sum() };
        Figures {
            ids: kept.map(|state| (state.name(), count(state))).collect(),
            bytes: self.bytes() as u64,
            retries_waiting: self.retries.len() as u64,
            retries: self.retried.get(),
            pending: self.pending() as u64,
            fenced: self.fenced.get(),
        }
    }
}
