//! Key → the last offset that has it, in bounded memory (Kafka's `SkimpyOffsetMap`): keys are represented by
//! 128 bits of hash, so an entry takes 24 bytes however long the key is.
//!
//! Two keys with one hash would lose a record. The hash is two SipHash values under random keys of the map's own,
//! so nobody can choose such keys, and by chance it does not happen.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::base::Offset;

/// Bytes of an entry.
pub(super) const SLOT_BYTES: u64 = 24;

const FREE: i64 = -1;

#[derive(Clone, Copy)]
struct Slot {
    hash: (u64, u64),
    /// [`FREE`]: nobody's.
    offset: i64,
}

/// Open addressing with linear probing; never grows.
pub(super) struct OffsetMap {
    slots: Vec<Slot>,
    used: usize,
    /// Entries that it takes.
    used_max: usize,
    hashers: (RandomState, RandomState),
}

impl OffsetMap {
    /// A map that takes at most `bytes` of memory, of which entries fill at most the share `load_factor`; smaller
    /// if `keys` are all that can come.
    pub fn new(bytes: u64, load_factor: f64, keys: u64) -> Self {
        // Full tables are slow, and one that has no free slot would search for ever.
        let load_factor = load_factor.clamp(0.01, 0.99);
        let wanted = ((keys as f64 / load_factor).ceil() as u64).saturating_add(1);
        let slots = (bytes / SLOT_BYTES).min(wanted).max(2) as usize;
        let used_max = ((slots as f64 * load_factor) as usize).clamp(1, slots - 1);
        let free = Slot { hash: (0, 0), offset: FREE };
        Self {
            slots: vec![free; slots],
            used: 0,
            used_max,
            hashers: (RandomState::new(), RandomState::new()),
        }
    }

    /// Notes that `key` has a record at `offset`; false when the map is full and the key is not in it.
    pub fn put(&mut self, key: &[u8], offset: Offset) -> bool {
        let hash = self.hash(key);
        let place = self.find(hash);
        let slot = &mut self.slots[place];
        if slot.offset == FREE {
            if self.used == self.used_max {
                return false;
            }
            self.used += 1;
        }
        *slot = Slot { hash, offset: slot.offset.max(offset.0) };
        true
    }

    /// The last offset that was noted for `key`.
    pub fn get(&self, key: &[u8]) -> Option<Offset> {
        let slot = self.slots[self.find(self.hash(key))];
        (slot.offset != FREE).then_some(Offset(slot.offset))
    }

    /// Entries as a share of all slots.
    pub fn utilization(&self) -> f64 {
        self.used as f64 / self.slots.len() as f64
    }

    fn hash(&self, key: &[u8]) -> (u64, u64) {
        let one = |state: &RandomState| {
            let mut hasher = state.build_hasher();
            hasher.write(key);
            hasher.finish()
        };
        (one(&self.hashers.0), one(&self.hashers.1))
    }

    /// The slot that has the hash, or the free one where it would go.
    fn find(&self, hash: (u64, u64)) -> usize {
        let count = self.slots.len();
        // The hash as a fraction of the table's length.
        let mut place = ((u128::from(hash.0) * count as u128) >> 64) as usize;
        loop {
            let slot = &self.slots[place];
            if slot.offset == FREE || slot.hash == hash {
                return place;
            }
            place = if place + 1 == count { 0 } else { place + 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_answers_as_a_map_of_whole_keys_until_it_is_full(
            keys in prop::collection::vec(0u16..200, 0..400), bytes in 48u64..4000, factor in 0.1f64..1.0,
        ) {
            let mut map = OffsetMap::new(bytes, factor, u64::MAX);
            prop_assert!(map.slots.len() as u64 * SLOT_BYTES <= bytes.max(48));
            let mut expected = HashMap::new();
            for (offset, key) in keys.iter().enumerate() {
                let taken = map.put(&key.to_be_bytes(), Offset(offset as i64));
                prop_assert_eq!(taken, expected.contains_key(key) || expected.len() < map.used_max);
                if taken {
                    expected.insert(*key, Offset(offset as i64));
                }
            }
            for key in 0..200u16 {
                prop_assert_eq!(map.get(&key.to_be_bytes()), expected.get(&key).copied());
            }
        }
    }

    #[test]
    fn it_is_no_larger_than_what_can_come() {
        let mut map = OffsetMap::new(128 << 20, 0.9, 100);
        assert!(map.slots.len() < 120);
        for key in 0..100u8 {
            assert!(map.put(&[key], Offset(i64::from(key))));
        }
        assert!(map.utilization() > 0.8);
    }
}
