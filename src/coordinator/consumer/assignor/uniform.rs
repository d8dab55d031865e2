//! `uniform`: every member gets as many partitions as any other, give or take one, as far as the subscriptions
//! allow it; and of what it had it keeps as much as that leaves.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::rc::Rc;

use super::{Candidate, PartitionCounts, partitions_of, subscribers};
use crate::base::{PartitionIndex, TopicId};
use crate::coordinator::consumer::member::Partitions;

/// Rounds of evening out when subscriptions overlap. One is enough when the readers of a topic read the same; each
/// further one about halves what is left.
const ROUNDS_MAX: usize = 16;
/// What evening out may cost, in looks at a member's size, about a nanosecond each: the coordinator does nothing else
/// meanwhile. 1,000 members that read 10,000 topics take a third of it when one of them reads one topic less.
const STEPS_MAX: usize = 100_000_000;
/// What it costs, in these, to put a member in order and to move a partition.
const STEPS_OF_ENTRY: usize = 64;

pub(super) fn assign(candidates: &[Candidate<'_>], counts: &PartitionCounts) -> Vec<Partitions> {
    let Some(first) = candidates.first() else { return Vec::new() };
    match candidates.iter().all(|candidate| candidate.topics == first.topics) {
        true => assign_alike(candidates, counts),
        false => assign_mixed(candidates, counts, STEPS_MAX),
    }
}

/// All read the same topics: everybody's share is known at once.
fn assign_alike(candidates: &[Candidate<'_>], counts: &PartitionCounts) -> Vec<Partitions> {
    let topics = &candidates[0].topics;
    let mut free: BTreeSet<(TopicId, PartitionIndex)> = topics
        .iter()
        .flat_map(|topic| partitions_of(*topic, counts).map(move |partition| (*topic, partition)))
        .collect();
    let (share, mut larger) = (free.len() / candidates.len(), free.len() % candidates.len());
    let mut targets = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        // Who has more than the share already keeps one of the places with one more.
        let has = held(candidate).filter(|held| free.contains(held)).count();
        let quota = share + usize::from(has > share && larger > 0);
        larger -= quota - share;
        let mut target = Partitions::new();
        for (topic, partition) in held(candidate).filter(|held| free.contains(held)).take(quota) {
            target.entry(topic).or_default().insert(partition);
        }
        for (topic, partitions) in &target {
            for partition in partitions {
                free.remove(&(*topic, *partition));
            }
        }
        targets.push(target);
    }
    let mut free = free.into_iter();
    for target in &mut targets {
        let mut quota = share;
        let has = size(target);
        if has <= share && larger > 0 {
            quota += 1;
            larger -= 1;
        }
        for (topic, partition) in free.by_ref().take(quota.saturating_sub(has)) {
            target.entry(topic).or_default().insert(partition);
        }
    }
    assert_eq!(free.next(), None, "the shares add up to all partitions");
    targets
}

fn held(candidate: &Candidate<'_>) -> impl Iterator<Item = (TopicId, PartitionIndex)> {
    let present = candidate.present.iter();
    present.flat_map(|(topic, partitions)| partitions.iter().map(|partition| (*topic, *partition)))
}

fn size(target: &Partitions) -> usize {
    target.values().map(BTreeSet::len).sum()
}

/// Subscriptions differ: what is free goes to the reader with the least, then partitions move from those with
/// more to those with less, as far as `steps` reach.
pub(super) fn assign_mixed(
    candidates: &[Candidate<'_>],
    counts: &PartitionCounts,
    mut steps: usize,
) -> Vec<Partitions> {
    let readers = subscribers(candidates);
    let mut shares =
        Shares { targets: vec![Partitions::new(); candidates.len()], sizes: vec![0; candidates.len()] };
    let mut taken: BTreeSet<(TopicId, PartitionIndex)> = BTreeSet::new();
    for (at, candidate) in candidates.iter().enumerate() {
        let is_there = |(topic, partition): &(TopicId, PartitionIndex)| {
            candidate.topics.contains(topic) && partition.0 < counts.get(topic).copied().unwrap_or(0)
        };
        for held in held(candidate).filter(is_there) {
            if taken.insert(held) {
                shares.give(at, held);
            }
        }
    }
    // The topics that leave the least choice first.
    let mut topics: Vec<TopicId> = readers.keys().copied().collect();
    let count = |topic: &TopicId| u64::from(counts.get(topic).copied().unwrap_or(0).unsigned_abs());
    topics.sort_by(|one, other| {
        let (one_readers, other_readers) = (readers[one].len() as u64, readers[other].len() as u64);
        let by_load = (count(other) * one_readers).cmp(&(count(one) * other_readers));
        by_load.then(one_readers.cmp(&other_readers)).then(one.cmp(other))
    });
    for topic in &topics {
        let free = partitions_of(*topic, counts).filter(|partition| !taken.contains(&(*topic, *partition)));
        let free: Vec<PartitionIndex> = free.collect();
        if free.is_empty() {
            continue;
        }
        // The reader with the least on top. A heap is made of a list in one go.
        let mut queue: BinaryHeap<Reverse<(usize, usize)>> =
            readers[topic].iter().map(|at| Reverse((shares.sizes[*at], *at))).collect();
        for partition in free {
            let mut least = queue.peek_mut().expect("a topic is in the map for its readers");
            let Reverse((size, at)) = &mut *least;
            shares.give(*at, (*topic, partition));
            *size += 1;
        }
    }
    shares.even_out(&topics, &readers, &mut steps);
    shares.targets
}

struct Shares {
    targets: Vec<Partitions>,
    /// How many partitions each member has.
    sizes: Vec<usize>,
}

impl Shares {
    fn give(&mut self, at: usize, (topic, partition): (TopicId, PartitionIndex)) {
        self.targets[at].entry(topic).or_default().insert(partition);
        self.sizes[at] += 1;
    }

    fn take(&mut self, at: usize, topic: TopicId) -> Option<PartitionIndex> {
        let partitions = self.targets[at].get_mut(&topic)?;
        let partition = partitions.pop_last()?;
        if partitions.is_empty() {
            self.targets[at].remove(&topic);
        }
        self.sizes[at] -= 1;
        Some(partition)
    }

    fn even_out(&mut self, topics: &[TopicId], readers: &BTreeMap<TopicId, Rc<[usize]>>, steps: &mut usize) {
        let mut holders: HashMap<TopicId, Vec<usize>> = HashMap::new();
        for (at, target) in self.targets.iter().enumerate() {
            for topic in target.keys() {
                holders.entry(*topic).or_default().push(at);
            }
        }
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for topic in topics {
                let Some(holders) = holders.get_mut(topic) else { continue };
                let Some(left) = steps.checked_sub(readers[topic].len()) else { return };
                *steps = left;
                moved |= self.even_out_topic(*topic, &readers[topic], holders, steps);
            }
            if !moved {
                return;
            }
        }
    }

    /// Moves partitions of a topic from the reader with the most to the one with the least until they differ by
    /// one at most, as far as the partitions of this topic can do that.
    fn even_out_topic(
        &mut self,
        topic: TopicId,
        readers: &[usize],
        holders: &mut Vec<usize>,
        steps: &mut usize,
    ) -> bool {
        let by_size = |at: &usize| (self.sizes[*at], *at);
        let (least, most) = (readers.iter().map(by_size).min(), holders.iter().map(by_size).max());
        // As it is nearly always after the first round.
        if least.zip(most).is_none_or(|(least, most)| most.0 <= least.0 + 1) {
            return false;
        }
        *steps = steps.saturating_sub(STEPS_OF_ENTRY * readers.len());
        let mut all: BTreeSet<(usize, usize)> = readers.iter().map(by_size).collect();
        let mut givers: BTreeSet<(usize, usize)> = holders.iter().map(by_size).collect();
        let mut moved = false;
        while let (Some(least), Some(most)) = (all.first().copied(), givers.pop_last()) {
            if most.0 <= least.0 + 1 {
                break;
            }
            let Some(partition) = self.take(most.1, topic) else { continue };
            all.remove(&most);
            all.remove(&least);
            givers.remove(&least);
            self.give(least.1, (topic, partition));
            for at in [most.1, least.1] {
                all.insert((self.sizes[at], at));
                if self.targets[at].contains_key(&topic) {
                    givers.insert((self.sizes[at], at));
                }
            }
            if !holders.contains(&least.1) {
                holders.push(least.1);
            }
            *steps = steps.saturating_sub(STEPS_OF_ENTRY);
            moved = true;
        }
        holders.retain(|at| self.targets[*at].contains_key(&topic));
        moved
    }
}
