//! A sorted map whose clones share what they have in common, so that publishing an image costs a few
//! reference counts and changing one entry copies one chunk, not the map.
//!
//! Two levels: a spine of chunks, each a sorted array of at most [`CHUNK_ENTRIES_MAX`] entries. With
//! 100,000 entries a change copies about 1,000 pointers and 100 entries. Two maps that descend from each
//! other are compared by pointer, chunk by chunk ([`SortedMap::diff`]).

use std::borrow::Borrow;
use std::sync::Arc;

/// A chunk that outgrows this is split in two.
const CHUNK_ENTRIES_MAX: usize = 128;

/// Neighbours that together hold no more than this become one chunk when one of them shrinks.
const CHUNK_ENTRIES_MERGED_MAX: usize = CHUNK_ENTRIES_MAX / 2;

type Chunk<K, V> = Vec<(K, V)>;

/// A persistent sorted map: `clone` is one reference count.
#[derive(Debug)]
pub struct SortedMap<K, V> {
    /// No chunk is empty; keys ascend within and across chunks.
    chunks: Arc<Vec<Arc<Chunk<K, V>>>>,
    len: usize,
}

impl<K, V> Clone for SortedMap<K, V> {
    fn clone(&self) -> Self {
        Self { chunks: self.chunks.clone(), len: self.len }
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self { chunks: Arc::default(), len: 0 }
    }
}

impl<K: Ord + Clone, V: Clone> SortedMap<K, V> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let chunk = self.chunks.get(self.chunk_of(key)?)?;
        let position = chunk.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
        Some(&chunk[position].1)
    }

    /// Entries in ascending order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|(key, value)| (key, value))
    }

    /// Entries whose key is `first` or greater, in ascending order.
    pub fn iter_from<Q: Ord + ?Sized>(&self, first: &Q) -> impl Iterator<Item = (&K, &V)>
    where
        K: Borrow<Q>,
    {
        let start = self.chunk_of(first).unwrap_or(0);
        let skipped =
            self.chunks.get(start).map_or(0, |chunk| chunk.partition_point(|(key, _)| key.borrow() < first));
        let tail = self.chunks.get(start..).unwrap_or_default();
        tail.iter().flat_map(|chunk| chunk.iter()).skip(skipped).map(|(key, value)| (key, value))
    }

    /// Returns the value that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let index = self.chunk_of(&key);
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some(index) = index.or((!chunks.is_empty()).then_some(0)) else {
            chunks.push(Arc::new(vec![(key, value)]));
            self.len = 1;
            return None;
        };
        let chunk = Arc::make_mut(&mut chunks[index]);
        match chunk.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(position) => return Some(std::mem::replace(&mut chunk[position].1, value)),
            Err(position) => chunk.insert(position, (key, value)),
        }
        self.len += 1;
        if chunk.len() > CHUNK_ENTRIES_MAX {
            let upper = chunk.split_off(chunk.len() / 2);
            chunks.insert(index + 1, Arc::new(upper));
        }
        None
    }

    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let index = self.chunk_of(key)?;
        let position = self.chunks[index].binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(&mut chunks[index]);
        let (_, value) = chunk.remove(position);
        self.len -= 1;
        if chunk.is_empty() {
            chunks.remove(index);
        } else if let Some(next) = chunks.get(index + 1)
            && chunks[index].len() + next.len() <= CHUNK_ENTRIES_MERGED_MAX
        {
            let next = chunks.remove(index + 1);
            Arc::make_mut(&mut chunks[index]).extend(next.iter().cloned());
        }
        Some(value)
    }

    /// Calls `each` with (key, value in `old`, value in `new`) for every key outside the chunks that both
    /// share; entries in a copied chunk are visited whether they differ or not.
    pub fn diff<'a>(old: &'a Self, new: &'a Self, mut each: impl FnMut(&'a K, Option<&'a V>, Option<&'a V>)) {
        let (mut old, mut new) = (Cursor::new(&old.chunks), Cursor::new(&new.chunks));
        loop {
            if let (Some(a), Some(b)) = (old.whole_chunk(), new.whole_chunk())
                && Arc::ptr_eq(a, b)
            {
                old.skip_chunk();
                new.skip_chunk();
                continue;
            }
            match (old.entry(), new.entry()) {
                (None, None) => return,
                (Some((key, value)), None) => {
                    each(key, Some(value), None);
                    old.advance();
                }
                (None, Some((key, value))) => {
                    each(key, None, Some(value));
                    new.advance();
                }
                (Some((a, before)), Some((b, after))) => match a.cmp(b) {
                    std::cmp::Ordering::Less => {
                        each(a, Some(before), None);
                        old.advance();
                    }
                    std::cmp::Ordering::Greater => {
                        each(b, None, Some(after));
                        new.advance();
                    }
                    std::cmp::Ordering::Equal => {
                        each(b, Some(before), Some(after));
                        old.advance();
                        new.advance();
                    }
                },
            }
        }
    }

    /// The last chunk whose first key is not greater than `key`; `None` when there is none.
    fn chunk_of<Q: Ord + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        // No chunk is empty, so each has a first key.
        self.chunks.partition_point(|chunk| chunk[0].0.borrow() <= key).checked_sub(1)
    }
}

/// A place in a map during a comparison.
struct Cursor<'a, K, V> {
    chunks: &'a [Arc<Chunk<K, V>>],
    chunk: usize,
    position: usize,
}

impl<'a, K, V> Cursor<'a, K, V> {
    fn new(chunks: &'a [Arc<Chunk<K, V>>]) -> Self {
        Self { chunks, chunk: 0, position: 0 }
    }

    /// The current chunk if nothing of it was visited yet.
    fn whole_chunk(&self) -> Option<&'a Arc<Chunk<K, V>>> {
        if self.position == 0 { self.chunks.get(self.chunk) } else { None }
    }

    fn skip_chunk(&mut self) {
        self.chunk += 1;
    }

    fn entry(&self) -> Option<(&'a K, &'a V)> {
        let (key, value) = &self.chunks.get(self.chunk)?[self.position];
        Some((key, value))
    }

    fn advance(&mut self) {
        self.position += 1;
        if self.position == self.chunks[self.chunk].len() {
            self.chunk += 1;
            self.position = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::base::random::Random;

    /// Applies `steps` random changes to both maps; keys are few so that removals hit.
    fn change(
        map: &mut SortedMap<u32, u64>,
        model: &mut BTreeMap<u32, u64>,
        random: &mut Random,
        steps: usize,
    ) {
        for _ in 0..steps {
            let key = random.below(2000) as u32;
            if random.below(5) < 3 {
                let value = random.next_u64();
                assert_eq!(map.insert(key, value), model.insert(key, value));
            } else {
                assert_eq!(map.remove(&key), model.remove(&key));
            }
        }
    }

    #[test]
    fn behaves_like_a_btree_map_and_old_clones_do_not_change() {
        for seed in 0..20 {
            let mut random = Random::seeded(seed);
            let (mut map, mut model) = (SortedMap::default(), BTreeMap::new());
            change(&mut map, &mut model, &mut random, 3000);
            let (kept, kept_model) = (map.clone(), model.clone());
            change(&mut map, &mut model, &mut random, 3000);
            for (map, model) in [(&map, &model), (&kept, &kept_model)] {
                assert_eq!(map.len(), model.len(), "seed {seed}");
                assert!(map.iter().eq(model.iter()), "seed {seed}");
                for first in [0, 1, 777, 1999, 5000] {
                    assert!(map.iter_from(&first).eq(model.range(first..)), "seed {seed}");
                }
                assert_eq!(map.get(&777), model.get(&777));
            }
            // What the comparison reports, applied to the old map, gives the new one.
            let mut rebuilt = kept_model.clone();
            SortedMap::diff(&kept, &map, |key, before, after| {
                assert_eq!(before, kept_model.get(key));
                match after {
                    Some(value) => rebuilt.insert(*key, *value),
                    None => rebuilt.remove(key),
                };
            });
            assert_eq!(rebuilt, model, "seed {seed}");
        }
    }

    #[test]
    fn a_comparison_after_one_change_visits_one_chunk() {
        let mut map = SortedMap::default();
        for key in 0..100_000u32 {
            map.insert(key, ());
        }
        let old = map.clone();
        map.insert(50_000, ());
        map.remove(&7);
        let mut visited = 0;
        SortedMap::diff(&old, &map, |_, _, _| visited += 1);
        assert!(visited <= 2 * CHUNK_ENTRIES_MAX, "{visited}");
    }
}
