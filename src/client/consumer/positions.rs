//! Where the consumer is in each of its partitions. No IO.

use std::collections::BTreeMap;

use crate::base::clock::Monotonic;
use crate::base::{Offset, TopicPartition};
use crate::client::admin::OffsetAt;

/// How a partition's position is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// To be asked of the group's coordinator.
    Committed,
    /// To be asked of the leader.
    Find(OffsetAt),
    At(Offset),
}

#[derive(Debug)]
struct Position {
    state: State,
    /// Where the next fetch begins: behind what is buffered.
    fetch: Option<Offset>,
    end: Option<Offset>,
    committed: Option<Offset>,
    paused_until: Monotonic,
}

#[derive(Default, Debug)]
pub struct Positions {
    partitions: BTreeMap<TopicPartition, Position>,
}

impl Positions {
    /// Replaces all partitions.
    pub fn assign(&mut self, partitions: impl Iterator<Item = (TopicPartition, State)>) {
        self.partitions = partitions.map(|(partition, state)| (partition, Position::new(state))).collect();
    }

    pub fn partitions(&self) -> impl Iterator<Item = &TopicPartition> {
        self.partitions.keys()
    }

    /// Moves a partition; what was fetched and is not given out yet is void.
    pub fn set(&mut self, partition: &TopicPartition, state: State) {
        if let Some(position) = self.partitions.get_mut(partition) {
            *position = Position { committed: position.committed, end: position.end, ..Position::new(state) };
        }
    }

    pub fn in_state(&self, state: State) -> Vec<TopicPartition> {
        self.partitions
            .iter()
            .filter(|(_, p)| p.state == state)
            .map(|(partition, _)| partition.clone())
            .collect()
    }

    /// What is to be asked of the leaders.
    pub fn searches(&self) -> Vec<OffsetAt> {
        let mut searches = Vec::new();
        for position in self.partitions.values() {
            if let State::Find(at) = position.state
                && !searches.contains(&at)
            {
                searches.push(at);
            }
        }
        searches
    }

    pub fn next(&self, partition: &TopicPartition) -> Option<Offset> {
        match self.partitions.get(partition)?.state {
            State::At(offset) => Some(offset),
            _ => None,
        }
    }

    /// Records before `next` have been given out.
    pub fn advance(&mut self, partition: &TopicPartition, next: Offset) {
        if let Some(position) = self.partitions.get_mut(partition)
            && let State::At(offset) = &mut position.state
        {
            *offset = next.max(*offset);
        }
    }

    /// Everything before `end` is buffered.
    pub fn fetched(&mut self, partition: &TopicPartition, end: Offset) {
        if let Some(position) = self.partitions.get_mut(partition) {
            position.fetch = Some(end);
        }
    }

    pub fn fetch_offset(&self, partition: &TopicPartition) -> Option<Offset> {
        self.partitions.get(partition)?.fetch
    }

    /// The partitions to fetch and from where.
    pub fn fetchable(&self, now: Monotonic) -> Vec<(TopicPartition, Offset)> {
        let ready = self.partitions.iter().filter(|(_, position)| now >= position.paused_until);
        ready.filter_map(|(partition, position)| Some((partition.clone(), position.fetch?))).collect()
    }

    pub fn pause_until(&mut self, partition: &TopicPartition, resume: Monotonic) {
        if let Some(position) = self.partitions.get_mut(partition) {
            position.paused_until = resume;
        }
    }

    /// The broker told the end of what may be read.
    pub fn saw_end(&mut self, partition: &TopicPartition, end: Offset) {
        if let Some(position) = self.partitions.get_mut(partition) {
            position.end = Some(end);
        }
    }

    pub fn all_at_end(&self) -> bool {
        let at_end = |position: &Position| match (position.state, position.end) {
            (State::At(next), Some(end)) => next >= end,
            _ => false,
        };
        !self.partitions.is_empty() && self.partitions.values().all(at_end)
    }

    /// Positions that differ from what is committed.
    pub fn to_commit(&self) -> BTreeMap<TopicPartition, Offset> {
        let changed = |(partition, position): (&TopicPartition, &Position)| match position.state {
            State::At(next) if position.committed != Some(next) => Some((partition.clone(), next)),
            _ => None,
        };
        self.partitions.iter().filter_map(changed).collect()
    }

    pub fn committed(&mut self, offsets: &BTreeMap<TopicPartition, Offset>) {
        for (partition, &offset) in offsets {
            if let Some(position) = self.partitions.get_mut(partition) {
                position.committed = Some(offset);
            }
        }
    }
}

impl Position {
    fn new(state: State) -> Self {
        let fetch = if let State::At(offset) = state { Some(offset) } else { None };
        Self { state, fetch, end: None, committed: None, paused_until: Monotonic::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::PartitionIndex;

    fn partition(index: i32) -> TopicPartition {
        TopicPartition::new("t", PartitionIndex(index))
    }

    fn positions(states: &[State]) -> Positions {
        let mut positions = Positions::default();
        positions.assign(states.iter().enumerate().map(|(n, &state)| (partition(n as i32), state)));
        positions
    }

    #[test]
    fn fetching_runs_ahead_of_what_is_given_out() {
        let mut positions = positions(&[State::At(Offset(5))]);
        positions.fetched(&partition(0), Offset(20));
        assert_eq!(positions.fetchable(Monotonic::ZERO), [(partition(0), Offset(20))]);
        assert_eq!(positions.next(&partition(0)), Some(Offset(5)));
        positions.advance(&partition(0), Offset(8));
        assert_eq!(positions.to_commit(), BTreeMap::from([(partition(0), Offset(8))]));
        positions.committed(&positions.to_commit());
        assert!(positions.to_commit().is_empty(), "committed once");
    }

    #[test]
    fn a_moved_position_voids_what_was_fetched() {
        let mut positions = positions(&[State::At(Offset(5))]);
        positions.fetched(&partition(0), Offset(20));
        positions.set(&partition(0), State::Find(OffsetAt::Earliest));
        assert_eq!(positions.fetch_offset(&partition(0)), None);
        assert_eq!(positions.searches(), [OffsetAt::Earliest]);
        positions.set(&partition(0), State::At(Offset(2)));
        assert_eq!(positions.fetchable(Monotonic::ZERO), [(partition(0), Offset(2))]);
    }

    #[test]
    fn the_end_is_reached_when_every_partition_is_there() {
        let mut positions = positions(&[State::At(Offset(5)), State::At(Offset(0))]);
        assert!(!positions.all_at_end(), "nothing is known of the ends");
        positions.saw_end(&partition(0), Offset(5));
        positions.saw_end(&partition(1), Offset(1));
        assert!(!positions.all_at_end());
        positions.advance(&partition(1), Offset(1));
        assert!(positions.all_at_end());
        assert!(!Positions::default().all_at_end());
    }

    #[test]
    fn a_paused_partition_is_not_fetched() {
        let mut positions = positions(&[State::At(Offset(5)), State::Committed]);
        positions.pause_until(&partition(0), Monotonic::from_millis(10));
        assert_eq!(positions.fetchable(Monotonic::from_millis(9)), []);
        assert_eq!(positions.fetchable(Monotonic::from_millis(10)).len(), 1, "the other has no offset");
    }
}
