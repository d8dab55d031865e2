//! A hierarchical timing wheel with a tick of 1 ms: six levels of 64 slots, each level 64 times coarser than
//! the one below. Insert and cancel are O(1); an entry moves down at most five times before it fires. One
//! slab holds all entries, the slots are lists within it.

use slab::Slab;

use crate::base::clock::Monotonic;

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 6;
/// Ticks that the levels span, over two years. What lies further goes round once more.
const SPAN_TICKS: u64 = 1 << (SLOT_BITS * LEVELS as u32);
/// [`Wheel::next_deadline`] looks at so many entries of a coarse slot before it takes the slot's start.
const LOOKED_AT: usize = 16;
const NONE: u32 = u32::MAX;

/// Timers on values of one kind.
#[derive(Debug)]
pub struct Wheel<T> {
    entries: Slab<Entry<T>>,
    levels: Box<[Level; LEVELS]>,
    /// Deadlines that had passed when they were inserted.
    due: List,
    /// All ticks up to this one have fired.
    elapsed: u64,
    next_serial: u64,
}

/// Names one timer, for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerKey {
    index: u32,
    serial: u64,
}

#[derive(Debug)]
struct Entry<T> {
    tick: u64,
    serial: u64,
    place: Place,
    previous: u32,
    next: u32,
    value: T,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Due,
    Slot { level: u8, slot: u8 },
}

#[derive(Debug)]
struct Level {
    /// A bit for each slot that has entries.
    occupied: u64,
    slots: [List; SLOTS],
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: List = List { first: NONE, last: NONE };
}

/// The next slot to be emptied: everything in it is due at `start` or moves down then.
#[derive(Clone, Copy, Debug)]
struct Next {
    level: usize,
    slot: usize,
    start: u64,
}

impl<T> Wheel<T> {
    pub fn new(now: Monotonic) -> Self {
        const EMPTY: Level = Level { occupied: 0, slots: [List::EMPTY; SLOTS] };
        Self {
            entries: Slab::new(),
            levels: Box::new([EMPTY; LEVELS]),
            due: List::EMPTY,
            elapsed: now.as_millis(),
            next_serial: 0,
        }
    }

    /// Fires at the first [`Wheel::advance`] whose time is not before `deadline`, to the millisecond above.
    pub fn insert(&mut self, deadline: Monotonic, value: T) -> TimerKey {
        let tick = deadline.as_nanos().div_ceil(1_000_000);
        let serial = self.next_serial;
        self.next_serial += 1;
        let entry = Entry { tick, serial, place: Place::Due, previous: NONE, next: NONE, value };
        let index = self.entries.insert(entry);
        assert!(index < NONE as usize, "more timers than a u32 can count");
        self.link(index as u32);
        TimerKey { index: index as u32, serial }
    }

    /// The value, unless the timer has fired or was cancelled.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.serial != key.serial {
            return None;
        }
        self.unlink(key.index);
        Some(self.entries.remove(key.index as usize).value)
    }

    /// Appends what is due at `now` to `expired`, earlier ticks first. Costs by what fires and moves down,
    /// not by the time that has passed.
    pub fn advance(&mut self, now: Monotonic, expired: &mut Vec<T>) {
        let now = now.as_millis();
        let due = std::mem::replace(&mut self.due, List::EMPTY);
        self.expire(due, expired);
        while let Some(next) = self.next_slot().filter(|next| next.start <= now) {
            // Never back: the caller's clock does not.
            self.elapsed = self.elapsed.max(next.start);
            let level = &mut self.levels[next.level];
            let list = std::mem::replace(&mut level.slots[next.slot], List::EMPTY);
            level.occupied &= !(1 << next.slot);
            self.empty_slot(list, expired);
        }
        self.elapsed = self.elapsed.max(now);
    }

    /// When to call [`Wheel::advance`] at the latest. Exact for what is near; for what is far it may be
    /// earlier than the first deadline, never later.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        if self.due.first != NONE {
            return Some(Monotonic::from_millis(self.elapsed));
        }
        let next = self.next_slot()?;
        let list = self.levels[next.level].slots[next.slot];
        let slot_ticks = 1 << (SLOT_BITS * next.level as u32);
        // An entry that lies beyond the span is in the slot only to be linked anew.
        let tick = self.earliest(list).filter(|tick| *tick < next.start + slot_ticks);
        Some(Monotonic::from_millis(tick.unwrap_or(next.start)))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn expire(&mut self, list: List, expired: &mut Vec<T>) {
        let mut index = list.first;
        while index != NONE {
            let entry = self.entries.remove(index as usize);
            expired.push(entry.value);
            index = entry.next;
        }
    }

    /// Fires what is due in a list taken out of its slot and links the rest anew, further down.
    fn empty_slot(&mut self, list: List, expired: &mut Vec<T>) {
        let mut index = list.first;
        while index != NONE {
            let entry = &self.entries[index as usize];
            let next = entry.next;
            if entry.tick <= self.elapsed {
                expired.push(self.entries.remove(index as usize).value);
            } else {
                self.link(index);
            }
            index = next;
        }
    }

    /// The earliest occupied slot. Lower levels come first: all they hold is due before the next slot of a
    /// higher level begins.
    fn next_slot(&self) -> Option<Next> {
        self.levels.iter().enumerate().find_map(|(level, slots)| {
            if slots.occupied == 0 {
                return None;
            }
            let shift = SLOT_BITS * level as u32;
            let current = (self.elapsed >> shift) % SLOTS as u64;
            let ahead = slots.occupied.rotate_right(current as u32).trailing_zeros();
            let slot = (current as usize + ahead as usize) % SLOTS;
            let turn_ticks = 1 << (shift + SLOT_BITS);
            let turn_start = self.elapsed & !(turn_ticks - 1);
            let mut start = turn_start + ((slot as u64) << shift);
            if start <= self.elapsed {
                // Only the top level goes round: the slot belongs to its next turn.
                start += turn_ticks;
            }
            Some(Next { level, slot, start })
        })
    }

    fn earliest(&self, list: List) -> Option<u64> {
        let mut earliest = u64::MAX;
        let mut index = list.first;
        for _ in 0..LOOKED_AT {
            if index == NONE {
                return Some(earliest);
            }
            let entry = &self.entries[index as usize];
            earliest = earliest.min(entry.tick);
            index = entry.next;
        }
        (index == NONE).then_some(earliest)
    }

    fn place_of(&self, tick: u64) -> Place {
        if tick <= self.elapsed {
            return Place::Due;
        }
        // The current slot of the top level stays free: it would be taken for the next one.
        let tick = tick.min(self.elapsed + SPAN_TICKS - SPAN_TICKS / SLOTS as u64);
        // The level is that of the highest digit, to the base of 64, in which the tick differs from now.
        let differs = (tick ^ self.elapsed).min(SPAN_TICKS - 1) | (SLOTS as u64 - 1);
        let level = (u64::BITS - 1 - differs.leading_zeros()) / SLOT_BITS;
        let slot = (tick >> (level * SLOT_BITS)) % SLOTS as u64;
        Place::Slot { level: level as u8, slot: slot as u8 }
    }

    fn link(&mut self, index: u32) {
        let place = self.place_of(self.entries[index as usize].tick);
        let list = match place {
            Place::Due => &mut self.due,
            Place::Slot { level, slot } => {
                let level = &mut self.levels[usize::from(level)];
                level.occupied |= 1 << slot;
                &mut level.slots[usize::from(slot)]
            }
        };
        let last = std::mem::replace(&mut list.last, index);
        if last == NONE {
            list.first = index;
        }
        let entry = &mut self.entries[index as usize];
        (entry.place, entry.previous, entry.next) = (place, last, NONE);
        if last != NONE {
            self.entries[last as usize].next = index;
        }
    }

    fn unlink(&mut self, index: u32) {
        let entry = &self.entries[index as usize];
        let (place, previous, next) = (entry.place, entry.previous, entry.next);
        if previous != NONE {
            self.entries[previous as usize].next = next;
        }
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        let list = match place {
            Place::Due => &mut self.due,
            Place::Slot { level, slot } => &mut self.levels[usize::from(level)].slots[usize::from(slot)],
        };
        if previous == NONE {
            list.first = next;
        }
        if next == NONE {
            list.last = previous;
        }
        if list.first == NONE
            && let Place::Slot { level, slot } = place
        {
            self.levels[usize::from(level)].occupied &= !(1 << slot);
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

    fn fired(wheel: &mut Wheel<u64>, now: Monotonic) -> Vec<u64> {
        let mut expired = Vec::new();
        wheel.advance(now, &mut expired);
        expired
    }

    #[test]
    fn timer_never_fires_early_and_at_most_a_tick_late() {
        let mut wheel = Wheel::new(ms(10));
        wheel.insert(Monotonic::from_nanos(12_000_001), 1);
        assert!(fired(&mut wheel, Monotonic::from_nanos(12_999_999)).is_empty());
        assert_eq!(wheel.next_deadline(), Some(ms(13)));
        assert_eq!(fired(&mut wheel, ms(13)), [1]);
        assert_eq!(wheel.next_deadline(), None);
    }

    #[test]
    fn past_deadline_fires_at_the_next_advance() {
        let mut wheel = Wheel::new(ms(1_000));
        wheel.insert(ms(5), 1);
        wheel.insert(ms(1_000), 2);
        assert_eq!(wheel.next_deadline(), Some(ms(1_000)));
        assert_eq!(fired(&mut wheel, ms(1_000)), [1, 2]);
    }

    #[test]
    fn key_of_a_timer_that_fired_does_not_cancel_its_successor() {
        let mut wheel = Wheel::new(ms(0));
        let old = wheel.insert(ms(1), 1);
        assert_eq!(fired(&mut wheel, ms(1)), [1]);
        let new = wheel.insert(ms(5), 2);
        assert_eq!(wheel.cancel(old), None);
        assert_eq!(wheel.cancel(new), Some(2));
        assert_eq!(wheel.cancel(new), None);
        assert!(wheel.is_empty());
    }

    #[test]
    fn deadline_beyond_the_span_goes_round() {
        for start in [0, 12_345, SPAN_TICKS - 1, SPAN_TICKS * 3 + 77] {
            let mut wheel = Wheel::new(ms(start));
            let deadline = start + SPAN_TICKS * 2 + 5;
            wheel.insert(ms(deadline), 1);
            assert!(fired(&mut wheel, ms(start + SPAN_TICKS)).is_empty());
            assert!(fired(&mut wheel, ms(deadline - 1)).is_empty());
            assert_eq!(fired(&mut wheel, ms(deadline)), [1]);
        }
    }

    #[test]
    fn next_deadline_of_a_far_timer_is_exact_while_few_share_its_slot() {
        let mut wheel = Wheel::new(ms(0));
        wheel.insert(ms(30_500), 1);
        assert_eq!(wheel.next_deadline(), Some(ms(30_500)));
        for index in 0..100 {
            wheel.insert(ms(30_600 + index), index);
        }
        let bound = wheel.next_deadline().unwrap();
        assert!(bound <= ms(30_500) && bound > ms(20_000));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert { after: u64 },
        Cancel { which: prop::sample::Index },
        Advance { by: u64 },
        AdvanceToNext,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let distance = prop_oneof![0..70u64, 0..5_000u64, 0..10_000_000u64, 0..SPAN_TICKS * 3];
        let step = prop_oneof![
            4 => distance.clone().prop_map(|after| Step::Insert { after }),
            1 => any::<prop::sample::Index>().prop_map(|which| Step::Cancel { which }),
            1 => distance.prop_map(|by| Step::Advance { by }),
            2 => Just(Step::AdvanceToNext),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn wheel_does_what_an_ordered_map_does(start in 0..SPAN_TICKS * 2, steps in steps()) {
            let mut wheel = Wheel::new(ms(start));
            let mut model: BTreeMap<(u64, u64), TimerKey> = BTreeMap::new();
            let (mut now, mut serial) = (start, 0);
            for step in steps {
                let to = match step {
                    Step::Insert { after } => {
                        let key = wheel.insert(ms(now + after), serial);
                        model.insert((now + after, serial), key);
                        serial += 1;
                        continue;
                    }
                    Step::Cancel { which } => {
                        if !model.is_empty() {
                            let (tick, value) = *model.keys().nth(which.index(model.len())).unwrap();
                            let key = model.remove(&(tick, value)).unwrap();
                            prop_assert_eq!(wheel.cancel(key), Some(value));
                            prop_assert_eq!(wheel.cancel(key), None);
                        }
                        continue;
                    }
                    Step::Advance { by } => now + by,
                    Step::AdvanceToNext => wheel.next_deadline().map_or(now, Monotonic::as_millis),
                };
                let bound = wheel.next_deadline();
                prop_assert_eq!(bound.is_some(), !model.is_empty());
                if let Some(((first, _), _)) = model.first_key_value() {
                    prop_assert!(bound.unwrap().as_millis() <= (*first).max(now));
                }
                now = to.max(now);
                let later = model.split_off(&(now + 1, 0));
                let due = std::mem::replace(&mut model, later);
                let mut expired = Vec::new();
                wheel.advance(ms(now), &mut expired);
                let ticks: Vec<u64> = expired
                    .iter()
                    .map(|value| due.keys().find(|(_, other)| other == value).map_or(0, |(tick, _)| *tick))
                    .collect();
                prop_assert!(ticks.is_sorted(), "{:?}", ticks);
                expired.sort_unstable();
                let mut wanted: Vec<u64> = due.keys().map(|(_, value)| *value).collect();
                wanted.sort_unstable();
                prop_assert_eq!(expired, wanted);
                prop_assert_eq!(wheel.len(), model.len());
            }
        }
    }
}
