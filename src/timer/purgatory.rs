//! Operations that wait until one of their keys (partitions, groups) lets them complete or their time runs
//! out: delayed produce and fetch (Kafka's `DelayedOperationPurgatory`). An operation leaves once, by
//! whatever comes first.
//!
//! All lists lie in slabs: nothing is allocated per operation once the slabs have grown, and an operation
//! leaves in O(keys it watches).

use std::hash::Hash;

use ahash::AHashMap;
use slab::Slab;

use super::{TimerKey, Wheel};
use crate::base::clock::Monotonic;

const NONE: u32 = u32::MAX;

/// The waiting operations of one kind on one shard.
#[derive(Debug)]
pub struct Purgatory<K, Op> {
    operations: Slab<Operation<Op>>,
    watches: Slab<Watch<K>>,
    keys: AHashMap<K, Watchers>,
    wheel: Wheel<u32>,
    waiting_max: usize,
    refused: u64,
    next_serial: u64,
}

/// Names one operation, for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WaitKey {
    index: u32,
    serial: u64,
}

/// Too many operations wait already. Gives this one back: it is to be answered at once.
#[derive(Debug, thiserror::Error)]
#[error("too many operations wait")]
pub struct Full<Op>(pub Op);

#[derive(Debug)]
struct Operation<Op> {
    op: Op,
    serial: u64,
    timer: TimerKey,
    first_watch: u32,
}

/// One operation on one key: in the key's list, and in the chain of its operation.
#[derive(Debug)]
struct Watch<K> {
    key: K,
    operation: u32,
    sibling: u32,
    previous: u32,
    next: u32,
}

/// A key's list, the oldest first.
#[derive(Clone, Copy, Debug)]
struct Watchers {
    first: u32,
    last: u32,
}

impl<K: Eq + Hash + Clone, Op> Purgatory<K, Op> {
    /// `waiting_max` limits the operations.
    pub fn new(now: Monotonic, waiting_max: usize) -> Self {
        Self {
            operations: Slab::new(),
            watches: Slab::new(),
            keys: AHashMap::new(),
            wheel: Wheel::new(now),
            waiting_max,
            refused: 0,
            next_serial: 0,
        }
    }

    /// Lets `op` wait for any of `keys` until `deadline`. Without keys it only waits for its time. A key
    /// that comes twice counts once.
    pub fn watch(
        &mut self,
        deadline: Monotonic,
        keys: impl IntoIterator<Item = K>,
        op: Op,
    ) -> Result<WaitKey, Full<Op>> {
        if self.operations.len() >= self.waiting_max {
            self.refused += 1;
            return Err(Full(op));
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let slot = self.operations.vacant_entry();
        let index = slot.key() as u32;
        let timer = self.wheel.insert(deadline, index);
        slot.insert(Operation { op, serial, timer, first_watch: NONE });
        for key in keys {
            self.add_watch(index, key);
        }
        Ok(WaitKey { index, serial })
    }

    /// Something has happened to `key`: asks each operation that watches it, the oldest first, and appends
    /// those that are `ready` to `completed`.
    pub fn check(
        &mut self,
        key: &K,
        mut ready: impl FnMut(WaitKey, &mut Op) -> bool,
        completed: &mut Vec<Op>,
    ) {
        let mut index = self.keys.get(key).map_or(NONE, |watchers| watchers.first);
        while index != NONE {
            let watch = &self.watches[index as usize];
            index = watch.next;
            let operation = &mut self.operations[watch.operation as usize];
            let wait_key = WaitKey { index: watch.operation, serial: operation.serial };
            // It has one watch on this key, so the next one in the list stays when it leaves.
            if ready(wait_key, &mut operation.op) {
                completed.extend(self.remove(wait_key));
            }
        }
    }

    /// Asks each operation, whatever it watches, as [`Purgatory::check`] does.
    pub fn check_all(&mut self, mut ready: impl FnMut(&mut Op) -> bool, completed: &mut Vec<Op>) {
        let all = self.operations.iter_mut();
        let found = all.filter_map(|(index, operation)| {
            let key = WaitKey { index: index as u32, serial: operation.serial };
            ready(&mut operation.op).then_some(key)
        });
        let found: Vec<WaitKey> = found.collect();
        completed.extend(found.into_iter().filter_map(|key| self.remove(key)));
    }

    /// Whether anything waits for `key`: a look-up, cheaper than preparing a [`Purgatory::check`].
    pub fn is_watched(&self, key: &K) -> bool {
        self.keys.contains_key(key)
    }

    /// The operation, if it still waits.
    pub fn get_mut(&mut self, key: WaitKey) -> Option<&mut Op> {
        let operation = self.operations.get_mut(key.index as usize)?;
        (operation.serial == key.serial).then_some(&mut operation.op)
    }

    /// Takes an operation out. `None` says that it has left already.
    pub fn remove(&mut self, key: WaitKey) -> Option<Op> {
        let operation = self.operations.get(key.index as usize)?;
        if operation.serial != key.serial {
            return None;
        }
        let operation = self.operations.remove(key.index as usize);
        self.wheel.cancel(operation.timer);
        self.drop_watches(operation.first_watch);
        Some(operation.op)
    }

    /// Takes out all that watch `key`: it will not become ready here any more.
    pub fn drain_key(&mut self, key: &K, completed: &mut Vec<Op>) {
        self.check(key, |_, _| true, completed);
    }

    /// Takes out the operations whose time has run out.
    pub fn advance(&mut self, now: Monotonic, expired: &mut Vec<Op>) {
        let mut indexes = Vec::new();
        self.wheel.advance(now, &mut indexes);
        for index in indexes {
            // The timer is cancelled with its operation, so the index is still its own.
            let operation = self.operations.remove(index as usize);
            self.drop_watches(operation.first_watch);
            expired.push(operation.op);
        }
    }

    /// When to call [`Purgatory::advance`] at the latest.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        self.wheel.next_deadline()
    }

    /// Operations that wait.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// How many found no place.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn add_watch(&mut self, operation: u32, key: K) {
        let previous = self.keys.get(&key).map_or(NONE, |watchers| watchers.last);
        // One call adds all watches of an operation, so its earlier one on this key is the last in the list.
        if previous != NONE && self.watches[previous as usize].operation == operation {
            return;
        }
        let owner = &mut self.operations[operation as usize];
        let watch = Watch { key: key.clone(), operation, sibling: owner.first_watch, previous, next: NONE };
        let index = self.watches.insert(watch);
        assert!(index < NONE as usize, "more watches than a u32 can count");
        let index = index as u32;
        owner.first_watch = index;
        if previous != NONE {
            self.watches[previous as usize].next = index;
        }
        self.keys.entry(key).or_insert(Watchers { first: index, last: index }).last = index;
    }

    fn drop_watches(&mut self, first: u32) {
        let mut index = first;
        while index != NONE {
            let watch = self.watches.remove(index as usize);
            if watch.previous != NONE {
                self.watches[watch.previous as usize].next = watch.next;
            }
            if watch.next != NONE {
                self.watches[watch.next as usize].previous = watch.previous;
            }
            if watch.previous == NONE && watch.next == NONE {
                self.keys.remove(&watch.key);
            } else if watch.previous == NONE || watch.next == NONE {
                let Some(watchers) = self.keys.get_mut(&watch.key) else {
                    unreachable!("the key of a watch has a list")
                };
                if watch.previous == NONE {
                    watchers.first = watch.next;
                } else {
                    watchers.last = watch.previous;
                }
            }
            index = watch.sibling;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Monotonic {
        Monotonic::from_millis(ms)
    }

    #[test]
    fn operation_completes_once_by_any_of_its_keys() {
        let mut purgatory = Purgatory::new(ms(0), 10);
        let key = purgatory.watch(ms(50), ["a", "b", "a"], 1).unwrap();
        purgatory.watch(ms(60), ["b"], 2).unwrap();
        let mut done = Vec::new();
        purgatory.check(&"a", |_, _| false, &mut done);
        assert!(done.is_empty());
        purgatory.check(&"b", |wait_key, _| wait_key == key, &mut done);
        assert_eq!(done, [1]);
        assert!(!purgatory.is_watched(&"a"));
        assert!(purgatory.is_watched(&"b"));
        assert_eq!(purgatory.remove(key), None);
        done.clear();
        purgatory.advance(ms(59), &mut done);
        assert!(done.is_empty());
        assert_eq!(purgatory.next_deadline(), Some(ms(60)));
        purgatory.advance(ms(60), &mut done);
        assert_eq!(done, [2]);
        assert!(purgatory.is_empty() && !purgatory.is_watched(&"b"));
    }

    #[test]
    fn oldest_is_asked_first_and_state_is_kept_between_checks() {
        let mut purgatory = Purgatory::new(ms(0), 10);
        for needed in [3, 1, 2] {
            purgatory.watch(ms(50), [0], (needed, needed)).unwrap();
        }
        let mut done = Vec::new();
        let mut order = Vec::new();
        for _ in 0..3 {
            purgatory.check(
                &0,
                |_, (left, name)| {
                    order.push(*name);
                    *left -= 1;
                    *left == 0
                },
                &mut done,
            );
        }
        assert_eq!(order, [3, 1, 2, 3, 2, 3]);
        assert_eq!(done, [(0, 1), (0, 2), (0, 3)]);
    }

    #[test]
    fn one_too_many_is_given_back_and_counted() {
        let mut purgatory = Purgatory::new(ms(0), 1);
        let first = purgatory.watch(ms(50), [1], "first").unwrap();
        assert_eq!(purgatory.watch(ms(50), [1], "second").unwrap_err().0, "second");
        assert_eq!(purgatory.refused(), 1);
        assert_eq!(purgatory.get_mut(first), Some(&mut "first"));
        let mut done = Vec::new();
        purgatory.drain_key(&1, &mut done);
        assert_eq!(done, ["first"]);
        assert_eq!(purgatory.get_mut(first), None);
        purgatory.watch(ms(50), [1], "third").unwrap();
    }

    #[derive(Clone, Debug)]
    enum Step {
        Watch {
            keys: Vec<u8>,
            after: u64,
        },
        /// Completes those whose number is divisible.
        Check {
            key: u8,
            by: u64,
        },
        Remove {
            which: prop::sample::Index,
        },
        Advance {
            by: u64,
        },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (prop::collection::vec(0..6u8, 0..5), 0..200u64)
                .prop_map(|(keys, after)| Step::Watch { keys, after }),
            2 => (0..6u8, 1..4u64).prop_map(|(key, by)| Step::Check { key, by }),
            1 => any::<prop::sample::Index>().prop_map(|which| Step::Remove { which }),
            1 => (0..100u64).prop_map(|by| Step::Advance { by }),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn purgatory_does_what_a_list_does(steps in steps()) {
            let mut purgatory = Purgatory::new(ms(0), 20);
            let mut model: BTreeMap<u64, (WaitKey, Vec<u8>, u64)> = BTreeMap::new();
            let (mut now, mut number) = (0, 0);
            for step in steps {
                let (mut left, mut wanted) = (Vec::new(), Vec::new());
                match step {
                    Step::Watch { keys, after } => {
                        number += 1;
                        let watched = purgatory.watch(ms(now + after), keys.clone(), number);
                        prop_assert_eq!(watched.is_ok(), model.len() < 20);
                        if let Ok(key) = watched {
                            model.insert(number, (key, keys, now + after));
                        }
                    }
                    Step::Check { key, by } => {
                        let watching = model.iter().filter(|(_, (_, keys, _))| keys.contains(&key));
                        wanted.extend(watching.map(|(number, _)| *number).filter(|number| number % by == 0));
                        purgatory.check(&key, |_, number| *number % by == 0, &mut left);
                    }
                    Step::Remove { which } => {
                        if !model.is_empty() {
                            let number = *model.keys().nth(which.index(model.len())).unwrap();
                            wanted.push(number);
                            left.extend(purgatory.remove(model[&number].0));
                        }
                    }
                    Step::Advance { by } => {
                        now += by;
                        let due = model.iter().filter(|(_, (_, _, deadline))| *deadline <= now);
                        wanted.extend(due.map(|(number, _)| *number));
                        purgatory.advance(ms(now), &mut left);
                        left.sort_unstable();
                    }
                }
                prop_assert_eq!(&left, &wanted);
                model.retain(|number, _| !left.contains(number));
                prop_assert_eq!(purgatory.len(), model.len());
                for key in 0..6 {
                    let watched = model.values().any(|(_, keys, _)| keys.contains(&key));
                    prop_assert_eq!(purgatory.is_watched(&key), watched);
                }
            }
            prop_assert_eq!(purgatory.watches.is_empty(), model.values().all(|(_, keys, _)| keys.is_empty()));
        }
    }
}
