//! Which partition of `__consumer_offsets` keeps a group.

use crate::base::PartitionIndex;

/// The partition that keeps `group_id`: Java's `String.hashCode` over UTF-16 units, its absolute value
/// modulo `partition_count` (Kafka's `GroupCoordinatorService.partitionFor`).
pub fn partition_for(group_id: &str, partition_count: i32) -> PartitionIndex {
    assert!(partition_count > 0, "a topic has partitions");
    let hash =
        group_id.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // The one value without a positive counterpart maps to 0, as in Kafka's `Utils.abs`.
    PartitionIndex(hash.checked_abs().unwrap_or(0) % partition_count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partition_of_a_group_is_kafkas() {
        // Values of `Math.abs(id.hashCode()) % 50` in Java.
        assert_eq!(partition_for("", 50), PartitionIndex(0));
        assert_eq!(partition_for("a", 50), PartitionIndex(47));
        assert_eq!(partition_for("test-group", 50), PartitionIndex(12));
        assert_eq!(partition_for("console-consumer-12345", 1), PartitionIndex(0));
    }

    #[test]
    fn letters_outside_the_basic_plane_hash_as_two_units() {
        // "😀" is D83D DE00: 0xD83D * 31 + 0xDE00 = 1772899.
        assert_eq!(partition_for("😀", 1_000_000), PartitionIndex(772_899));
    }

    #[test]
    fn the_hash_without_a_positive_counterpart_is_partition_zero() {
        // A well known string whose Java hash is Integer.MIN_VALUE.
        assert_eq!(partition_for("polygenelubricants", 50), PartitionIndex(0));
    }
}
