//! `range`: each topic's partitions are cut into one run for each of its readers, in the order of the members. When
//! all read the same topics of the same size, a member gets the same numbers of each, which joins of topics need.

use super::{Candidate, PartitionCounts, subscribers};
use crate::base::PartitionIndex;
use crate::coordinator::consumer::member::Partitions;

pub(super) fn assign(candidates: &[Candidate<'_>], counts: &PartitionCounts) -> Vec<Partitions> {
    let mut targets = vec![Partitions::new(); candidates.len()];
    // Static members first, by what stays with them; the others by the id they have for now.
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|at| {
        let candidate = &candidates[*at];
        (candidate.instance_id.is_none(), candidate.instance_id, candidate.id)
    });
    let mut rank = vec![0; candidates.len()];
    for (place, at) in order.into_iter().enumerate() {
        rank[at] = place;
    }
    for (topic, readers) in subscribers(candidates) {
        let mut readers = readers.to_vec();
        readers.sort_unstable_by_key(|at| rank[*at]);
        let count = counts.get(&topic).copied().unwrap_or(0);
        let readers_count = i32::try_from(readers.len()).unwrap_or(i32::MAX);
        let (share, longer) = (count / readers_count, count % readers_count);
        let mut next = 0;
        for (place, at) in (0..).zip(readers) {
            let end = next + share + i32::from(place < longer);
            if next < end {
                targets[at].insert(topic, (next..end).map(PartitionIndex).collect());
            }
            next = end;
        }
    }
    targets
}
