//! A request for many partitions on its way to the controller, in parts that one command may have.

use std::ops::Range;

/// Partitions of one command: far below the records that one may make.
pub(super) const PARTITIONS_PER_COMMAND: usize = 2_000;

/// Partitions of one topic, by its position and theirs.
pub(super) type Part = (usize, Range<usize>);

/// Puts the first `counts[n]` partitions of each topic into parts for one command after the other, all in order.
pub(super) fn batches(counts: &[usize]) -> Vec<Vec<Part>> {
    let mut batches: Vec<Vec<Part>> = Vec::new();
    let mut room = 0;
    for (topic, &count) in counts.iter().enumerate() {
        let mut first = 0;
        while first < count {
            if room == 0 {
                batches.push(Vec::new());
                room = PARTITIONS_PER_COMMAND;
            }
            let end = count.min(first + room);
            room -= end - first;
            // There is a last one: room was made for it above, or by a topic before.
            if let Some(batch) = batches.last_mut() {
                batch.push((topic, first..end));
            }
            first = end;
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_topics_go_together_and_a_large_one_in_parts() {
        assert!(batches(&[]).is_empty() && batches(&[0, 0]).is_empty());
        assert_eq!(batches(&[1, 0, 2]), [vec![(0, 0..1), (2, 0..2)]]);
        assert_eq!(
            batches(&[1999, 3, 2000]),
            [vec![(0, 0..1999), (1, 0..1)], vec![(1, 1..3), (2, 0..1998)], vec![(2, 1998..2000)]]
        );
        assert_eq!(batches(&[2000, 1]), [vec![(0, 0..2000)], vec![(1, 0..1)]]);
    }
}
