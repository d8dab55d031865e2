//! Which shard owns a partition: a pure rule, so that every shard knows it without asking.

use crate::base::{PartitionIndex, ShardId, TopicId};

/// A partition as shards name it to each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PartitionKey {
    pub topic: TopicId,
    pub partition: PartitionIndex,
}

/// The owner of `key` among `shards` shards.
///
/// The partitions of a topic go round `2 × shards − 1` slots, from a start that the topic's id gives. Shard
/// 0 has one slot and every other shard two: shard 0 also hosts the controller and the coordinators and
/// gets half the partitions of the others. Nothing is stored, so that a start with another number of
/// shards just deals them out anew.
pub fn owner(key: PartitionKey, shards: u16) -> ShardId {
    debug_assert!(shards > 0);
    let slots = u64::from(shards) * 2 - 1;
    let (high, low) = key.topic.0.as_u64_pair();
    let slot = (high ^ low).wrapping_add(key.partition.0 as u64) % slots;
    ShardId(slot.div_ceil(2) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners_of(topic: TopicId, partitions: i32, shards: u16) -> Vec<usize> {
        let mut counts = vec![0; usize::from(shards)];
        for partition in 0..partitions {
            counts[owner(PartitionKey { topic, partition: PartitionIndex(partition) }, shards).index()] += 1;
        }
        counts
    }

    #[test]
    fn shard_zero_gets_half_of_what_the_others_get() {
        let topic = TopicId(uuid::Uuid::from_u128(77));
        assert_eq!(owners_of(topic, 15, 1), [15]);
        assert_eq!(owners_of(topic, 15, 2), [5, 10]);
        assert_eq!(owners_of(topic, 15, 3), [3, 6, 6]);
        assert_eq!(owners_of(topic, 15, 8), [1, 2, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn single_partition_topics_spread_over_the_shards() {
        let mut counts = [0; 3];
        for id in 0..500u128 {
            let topic = TopicId(uuid::Uuid::from_u128(id.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c)));
            let key = PartitionKey { topic, partition: PartitionIndex(0) };
            counts[owner(key, 3).index()] += 1;
        }
        assert!(counts[0] > 70 && counts[1] > 150 && counts[2] > 150, "{counts:?}");
    }
}
