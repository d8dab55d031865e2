//! Which partition a record goes to: murmur2 of the key as every Kafka client has it, or for records without
//! a key the uniform sticky partitioner (KIP-794).

use std::num::NonZeroU32;

use crate::base::PartitionIndex;
use crate::base::random::Random;

/// The partition of `key` among `partitions`, as Kafka's `BuiltInPartitioner.partitionForKey`.
pub fn partition_of_key(key: &[u8], partitions: NonZeroU32) -> PartitionIndex {
    let positive = murmur2(key) & 0x7fff_ffff;
    PartitionIndex((positive % partitions.get()) as i32)
}

/// MurmurHash2 with Kafka's seed (`Utils.murmur2`).
pub fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const MIX: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ data.len() as u32;
    let (words, tail) = data.as_chunks::<4>();
    for &word in words {
        let mut mixed = u32::from_le_bytes(word).wrapping_mul(MIX);
        mixed ^= mixed >> 24;
        hash = hash.wrapping_mul(MIX) ^ mixed.wrapping_mul(MIX);
    }
    if !tail.is_empty() {
        for (index, &byte) in tail.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * index);
        }
        hash = hash.wrapping_mul(MIX);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MIX);
    hash ^ (hash >> 15)
}

/// Keeps records without a key on one partition until `bytes_max` went there, then draws the next one, so
/// that batches fill and every partition gets the same bytes over time.
#[derive(Debug)]
pub struct UniformSticky {
    bytes_max: usize,
    current: Option<PartitionIndex>,
    bytes: usize,
    random: Random,
}

impl UniformSticky {
    /// `bytes_max` is the batch size of the producer.
    pub fn new(bytes_max: usize, random: Random) -> Self {
        Self { bytes_max, current: None, bytes: 0, random }
    }

    /// The partition of the next record. `available` are the partitions that have a leader now; when none
    /// has, any of the `partitions` is drawn and the record waits there.
    pub fn next(&mut self, available: &[PartitionIndex], partitions: NonZeroU32) -> PartitionIndex {
        if let Some(current) = self.current
            && (available.is_empty() || available.contains(&current))
        {
            return current;
        }
        let drawn = match available {
            [] => PartitionIndex(self.random.below(u64::from(partitions.get())) as i32),
            some => some[self.random.below(some.len() as u64) as usize],
        };
        self.current = Some(drawn);
        self.bytes = 0;
        drawn
    }

    /// Tells that a record of `bytes` went to the current partition, and whether it closed a batch there.
    /// Switching happens at a batch's end; twice the limit switches in any case.
    pub fn appended(&mut self, bytes: usize, batch_closed: bool) {
        self.bytes += bytes;
        if (self.bytes >= self.bytes_max && batch_closed) || self.bytes >= 2 * self.bytes_max {
            self.current = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).expect("not zero")
    }

    /// The values that Kafka's own `UtilsTest.testMurmur2` holds its hash to.
    #[test]
    fn murmur2_is_kafkas() {
        for (key, hash) in [
            ("21", -973932308),
            ("foobar", -790332482),
            ("a-little-bit-long-string", -985981536),
            ("a-little-bit-longer-string", -1486304829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
            ("abc", 479470107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn a_key_stays_on_its_partition() {
        assert_eq!(partition_of_key(b"21", partitions(7)), PartitionIndex((-973932308i32 & i32::MAX) % 7));
        assert_eq!(partition_of_key(b"", partitions(1)), PartitionIndex(0));
    }

    #[test]
    fn records_without_a_key_stick_until_a_batch_is_full() {
        let mut sticky = UniformSticky::new(100, Random::seeded(3));
        let available: Vec<_> = (0..5).map(PartitionIndex).collect();
        let first = sticky.next(&available, partitions(5));
        sticky.appended(60, false);
        assert_eq!(sticky.next(&available, partitions(5)), first);
        sticky.appended(60, false);
        assert_eq!(sticky.next(&available, partitions(5)), first, "the batch is still open");
        sticky.appended(60, true);
        let draws: Vec<_> = (0..20)
            .map(|_| {
                sticky.appended(200, true);
                sticky.next(&available, partitions(5))
            })
            .collect();
        assert!(draws.iter().any(|&p| p != first));
    }

    #[test]
    fn a_partition_without_leader_is_left() {
        let mut sticky = UniformSticky::new(100, Random::seeded(3));
        assert_eq!(sticky.next(&[PartitionIndex(1)], partitions(3)), PartitionIndex(1));
        assert_eq!(sticky.next(&[PartitionIndex(2)], partitions(3)), PartitionIndex(2));
        assert_eq!(sticky.next(&[], partitions(3)), PartitionIndex(2), "kept while nothing is better");
    }

    #[test]
    fn bytes_spread_evenly_over_time() {
        let mut sticky = UniformSticky::new(16384, Random::seeded(9));
        let available: Vec<_> = (0..4).map(PartitionIndex).collect();
        let mut bytes = [0usize; 4];
        for _ in 0..400_000 {
            let partition = sticky.next(&available, partitions(4));
            bytes[partition.0 as usize] += 100;
            sticky.appended(100, bytes[partition.0 as usize] % 16384 < 100);
        }
        for got in bytes {
            assert!((8_000_000..12_000_000).contains(&got), "{bytes:?}");
        }
    }
}
