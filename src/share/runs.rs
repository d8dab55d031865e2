//! Ranges of offsets, each with a value: neighbours with equal values are one range.

use std::collections::BTreeMap;

use crate::base::Offset;

/// The ranges, ascending and without overlap. There may be gaps between them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runs<V> {
    /// First offset → last offset and value.
    runs: BTreeMap<Offset, (Offset, V)>,
}

impl<V> Default for Runs<V> {
    fn default() -> Self {
        Self { runs: BTreeMap::new() }
    }
}

impl<V: Clone + PartialEq> Runs<V> {
    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// First offset, last offset and value of every range, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Offset, Offset, &V)> {
        self.runs.iter().map(|(first, (last, value))| (*first, *last, value))
    }

    /// The ranges within `first..=last`, cut to it.
    pub fn within(&self, first: Offset, last: Offset) -> impl Iterator<Item = (Offset, Offset, &V)> {
        let before = self.runs.range(..first).next_back().filter(|(_, (end, _))| *end >= first);
        let from = before.map_or(first, |(start, _)| *start);
        let to = last.max(from);
        self.runs
            .range(from..=to)
            .map(move |(start, (end, value))| ((*start).max(first), (*end).min(last), value))
            .filter(|(start, end, _)| start <= end)
    }

    /// Gives `first..=last` this value, whatever it had.
    ///
    /// # Panics
    /// When the range is empty.
    pub fn set(&mut self, first: Offset, last: Offset, value: V) {
        assert!(first <= last, "a range has an offset");
        self.cut(first);
        self.cut(last.plus(1));
        let covered: Vec<Offset> = self.runs.range(first..=last).map(|(start, _)| *start).collect();
        for start in covered {
            self.runs.remove(&start);
        }
        let (mut start, mut end) = (first, last);
        if let Some((before, (before_end, before_value))) = self.runs.range(..first).next_back()
            && before_end.plus(1) == first
            && *before_value == value
        {
            start = *before;
        }
        if let Some((after_end, after_value)) = self.runs.get(&last.plus(1))
            && *after_value == value
        {
            end = *after_end;
            self.runs.remove(&last.plus(1));
        }
        self.runs.insert(start, (end, value));
    }

    /// Forgets what lies below `offset`.
    pub fn remove_below(&mut self, offset: Offset) {
        self.cut(offset);
        self.runs = self.runs.split_off(&offset);
    }

    /// Makes a range begin at `at`, if one covers it.
    fn cut(&mut self, at: Offset) {
        let Some((_, (end, value))) = self.runs.range_mut(..at).next_back() else { return };
        if *end < at {
            return;
        }
        let (rest_end, rest_value) = (*end, value.clone());
        *end = Offset(at.0 - 1);
        self.runs.insert(at, (rest_end, rest_value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    fn shown(runs: &Runs<char>) -> Vec<(i64, i64, char)> {
        runs.iter().map(|(first, last, value)| (first.0, last.0, *value)).collect()
    }

    #[test]
    fn equal_neighbours_are_one_range() {
        let mut runs = Runs::default();
        runs.set(Offset(0), Offset(9), 'a');
        runs.set(Offset(10), Offset(19), 'a');
        assert_eq!(shown(&runs), [(0, 19, 'a')]);
        runs.set(Offset(5), Offset(6), 'b');
        assert_eq!(shown(&runs), [(0, 4, 'a'), (5, 6, 'b'), (7, 19, 'a')]);
        let within = runs.within(Offset(6), Offset(8)).map(|(first, last, value)| (first.0, last.0, *value));
        assert_eq!(within.collect::<Vec<_>>(), [(6, 6, 'b'), (7, 8, 'a')]);
        runs.set(Offset(5), Offset(6), 'a');
        assert_eq!(shown(&runs), [(0, 19, 'a')]);
        runs.remove_below(Offset(7));
        assert_eq!(shown(&runs), [(7, 19, 'a')]);
    }

    #[test]
    fn ranges_say_what_a_value_for_each_offset_says() {
        let mut random = Random::seeded(7);
        for _ in 0..200 {
            let (mut runs, mut plain) = (Runs::default(), [None; 40]);
            for _ in 0..30 {
                let first = (random.next_u64() % 40) as i64;
                let last = first + (random.next_u64() % (40 - first as u64)) as i64;
                let value = char::from(b'a' + (random.next_u64() % 3) as u8);
                if random.below(8) == 0 {
                    runs.remove_below(Offset(first));
                    plain[..first as usize].fill(None);
                    continue;
                }
                runs.set(Offset(first), Offset(last), value);
                plain[first as usize..=last as usize].fill(Some(value));
            }
            for (offset, expected) in plain.iter().enumerate() {
                let at = Offset(offset as i64);
                let found = runs.within(at, at).next().map(|(.., value)| *value);
                assert_eq!(found, *expected, "offset {offset} of {runs:?}");
            }
            let ranges = shown(&runs);
            let merged = ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0 || pair[0].2 != pair[1].2);
            assert!(merged, "{ranges:?}");
        }
    }
}
