//! How far the groups are behind: committed offsets against high watermarks, summed over a topic's partitions,
//! the largest first and no more than asked for, because nobody bounds the number of groups.

use std::collections::HashMap;

use super::desk::ShardReport;
use super::exposition::Exposition;
use super::names;
use crate::base::{Offset, PartitionIndex};
use crate::coordinator::Committed;

/// Adds the lag of at most `pairs_max` pairs of group and topic.
pub(super) fn add(
    text: &mut Exposition,
    pairs_max: usize,
    committed: &[Committed],
    reports: &[&ShardReport],
) {
    if pairs_max == 0 {
        return;
    }
    let ends = reports.iter().flat_map(|report| &report.figures.high_watermarks);
    let ends: HashMap<(&str, PartitionIndex), Offset> =
        ends.map(|(topic, index, end)| ((topic.as_str(), *index), *end)).collect();
    let mut lags: Vec<(u64, &Committed)> =
        committed.iter().filter_map(|committed| Some((lag(committed, &ends)?, committed))).collect();
    lags.sort_by(|(one, _), (other, _)| other.cmp(one));
    text.add(&names::GROUP_LAG_LEFT_OUT, &[], lags.len().saturating_sub(pairs_max));
    for (lag, Committed { group, topic, .. }) in lags.iter().take(pairs_max) {
        text.add(&names::GROUP_LAG, &[group, topic], lag);
    }
}

/// `None` when none of the partitions is online here.
fn lag(committed: &Committed, ends: &HashMap<(&str, PartitionIndex), Offset>) -> Option<u64> {
    let known = committed.offsets.iter().filter_map(|(index, offset)| {
        let end = ends.get(&(committed.topic.as_str(), *index))?;
        // Behind a deleted and newly made topic an offset may be ahead.
        Some(u64::try_from(end.0.saturating_sub(offset.0)).unwrap_or(0))
    });
    known.reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::StrBytes;

    use super::*;

    #[test]
    fn lag_is_summed_over_the_partitions_that_are_here() {
        let offsets = [(0, 5), (1, 12), (2, 7)].map(|(index, at)| (PartitionIndex(index), Offset(at)));
        let committed = Committed {
            group: StrBytes::from_static_str("g"),
            topic: StrBytes::from_static_str("t"),
            offsets: offsets.to_vec(),
        };
        let ends = [(0, 15), (1, 10)].map(|(index, at)| (("t", PartitionIndex(index)), Offset(at)));
        assert_eq!(lag(&committed, &HashMap::from(ends)), Some(10));
        assert_eq!(lag(&committed, &HashMap::new()), None);
    }

    #[test]
    fn offsets_that_no_log_has_do_not_overflow() {
        let offsets = [0, 1, 2].map(|index| (PartitionIndex(index), Offset(i64::MIN)));
        let committed = Committed {
            group: StrBytes::from_static_str("g"),
            topic: StrBytes::from_static_str("t"),
            offsets: offsets.to_vec(),
        };
        let ends = [0, 1, 2].map(|index| (("t", PartitionIndex(index)), Offset(5)));
        assert_eq!(lag(&committed, &HashMap::from(ends)), Some(u64::MAX));
    }
}
