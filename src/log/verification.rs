//! Which producers are about to begin a transaction here: their partition was asked for at the transaction
//! coordinator, and nothing was written yet (KIP-890, Kafka's `VerificationStateEntry`).
//!
//! Owned by the log of its partition, in memory only. A guard is worth one beginning: the first transactional
//! batch and the marker of its transaction take it away, so that a batch that comes after the end of its transaction, which
//! nobody would end any more, is refused. Whoever may write can ask for any number of them. So one that the
//! coordinator refuses goes as soon as no other request counts on it; one that is to be asked for again is kept for a
//! while, but makes room for others.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::base::clock::Timestamp;
use crate::base::{ProducerEpoch, ProducerId};

/// Guards that one log gives out at a time (100 bytes each). Nearly all live for milliseconds.
const VERIFICATIONS_MAX: usize = 4096;
/// A request that has a guard uses it or gives it back within this: twice as long as a verification may take. One that
/// has not was lost, with its connection say.
const HELD_MS_MAX: i64 = 60_000;
/// How long a guard that nobody holds keeps its producer's place, while there is room: clients give a batch up after
/// `delivery.timeout.ms`, two minutes.
const IDLE_MS_MAX: i64 = 600_000;
/// Between two looks for guards that were lost, each at all of them.
const LOOK_INTERVAL_MS: i64 = 1_000;

/// Proves that the partition was added to the transaction after this was given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guard(u64);

/// A transactional batch that is about to be appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    pub sequence: i32,
    /// The client speaks transactions v2 (KIP-890).
    pub bumps_epoch: bool,
}

/// What an append says of its transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Claim {
    /// It is not looked at: not of a transaction, or checks are off.
    #[default]
    Unchecked,
    /// A transactional batch; the transaction must be under way in this partition.
    Open,
    /// A transactional batch that may begin the transaction here.
    Begins(Guard),
    /// The end of a transaction.
    Marker {
        /// The transaction had an epoch of its own: the marker's is above all that was written.
        bumps_epoch: bool,
        /// The highest epoch that any coordinator has had, as far as is known.
        coordinator_epoch_max: i32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Verification {
    pub guard: Guard,
    pub bumps_epoch: bool,
    /// The first sequence that was seen, so that a later batch does not overtake it.
    pub lowest_sequence: i32,
    epoch: ProducerEpoch,
    /// When it was asked for last.
    asked_at: Timestamp,
    /// Requests that got the guard and were not refused.
    holders: u32,
    /// Its place in [`Verifications::idle`] while there are none.
    idle: u64,
}

impl Verification {
    fn is_idle(&self) -> bool {
        self.holders == 0
    }
}

#[derive(Default, Debug)]
pub(super) struct Verifications {
    by_producer: HashMap<ProducerId, Verification, ahash::RandomState>,
    /// Those that nobody holds, the longest idle first.
    idle: BTreeMap<u64, ProducerId>,
    /// Numbers guards and places among the idle.
    numbers: u64,
    looked_at: Timestamp,
}

impl Verifications {
    /// The guard of the producer; `None` when too many are given out.
    pub fn begin(&mut self, query: Query, now: Timestamp) -> Option<Guard> {
        let Query { id, epoch, sequence, bumps_epoch } = query;
        if !self.by_producer.contains_key(&id) && !self.make_room(now) {
            return None;
        }
        let verification = match self.by_producer.entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.numbers += 1;
                let guard = Guard(self.numbers);
                entry.insert(Verification {
                    guard,
                    bumps_epoch,
                    lowest_sequence: sequence,
                    epoch,
                    asked_at: now,
                    holders: 0,
                    idle: 0,
                })
            }
        };
        if verification.is_idle() {
            self.idle.remove(&verification.idle);
        }
        verification.asked_at = now;
        verification.holders = verification.holders.saturating_add(1);
        if epoch == verification.epoch {
            verification.lowest_sequence = verification.lowest_sequence.min(sequence);
        } else if epoch > verification.epoch {
            verification.epoch = epoch;
            verification.lowest_sequence = sequence;
        }
        Some(verification.guard)
    }

    /// Whether there is room for one more: the longest idle gives its place up, else those that were lost.
    fn make_room(&mut self, now: Timestamp) -> bool {
        if self.by_producer.len() < VERIFICATIONS_MAX {
            return true;
        }
        if let Some((_, id)) = self.idle.pop_first() {
            self.by_producer.remove(&id);
            return true;
        }
        if now.0.saturating_sub(self.looked_at.0) < LOOK_INTERVAL_MS {
            return false;
        }
        self.looked_at = now;
        self.by_producer.retain(|_, kept| now.0.saturating_sub(kept.asked_at.0) < HELD_MS_MAX);
        self.by_producer.len() < VERIFICATIONS_MAX
    }

    /// One of those that got `guard` was refused. Unless it is to ask again, which must not lose its place to a later
    /// batch, the guard goes with its last holder.
    pub fn refuse(&mut self, id: ProducerId, guard: Guard, is_final: bool) {
        let Entry::Occupied(mut entry) = self.by_producer.entry(id) else { return };
        let verification = entry.get_mut();
        if verification.guard != guard || verification.is_idle() {
            return;
        }
        verification.holders -= 1;
        match (verification.is_idle(), is_final) {
            (false, _) => {}
            (true, true) => drop(entry.remove()),
            (true, false) => {
                self.numbers += 1;
                verification.idle = self.numbers;
                self.idle.insert(self.numbers, id);
            }
        }
    }

    pub fn get(&self, id: ProducerId) -> Option<&Verification> {
        self.by_producer.get(&id)
    }

    pub fn take(&mut self, id: ProducerId) -> Option<Verification> {
        if self.by_producer.is_empty() {
            return None;
        }
        let taken = self.by_producer.remove(&id)?;
        if taken.is_idle() {
            self.idle.remove(&taken.idle);
        }
        Some(taken)
    }

    /// The transaction ended that a marker of `epoch` ends: guards of it and those before are worth nothing. Under
    /// transactions v2 `epoch` is that of the next one, whose first batch may have been asked for already.
    pub fn end(&mut self, id: ProducerId, epoch: ProducerEpoch, claim: Claim) -> Option<Verification> {
        let is_of_next = |kept: &Verification| kept.epoch >= epoch;
        if matches!(claim, Claim::Marker { bumps_epoch: true, .. }) && self.get(id).is_some_and(is_of_next) {
            return None;
        }
        self.take(id)
    }

    /// Takes back what [`Verifications::take`] did.
    pub fn restore(&mut self, id: ProducerId, verification: Verification) {
        if verification.is_idle() {
            self.idle.insert(verification.idle, id);
        }
        self.by_producer.insert(id, verification);
    }

    pub fn expire(&mut self, wall: Timestamp, expiration_ms: i64) {
        let idle = &mut self.idle;
        self.by_producer.retain(|_, kept| {
            let kept_ms = if kept.is_idle() { expiration_ms.min(IDLE_MS_MAX) } else { expiration_ms };
            let stays = wall.0.saturating_sub(kept.asked_at.0) < kept_ms;
            if !stays && kept.is_idle() {
                idle.remove(&kept.idle);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_MS: i64 = 1_000_000;
    const ONE_MORE: i64 = VERIFICATIONS_MAX as i64;

    fn ask(verifications: &mut Verifications, id: i64, after_ms: i64) -> Option<Guard> {
        let id = ProducerId(id);
        let query = Query { id, epoch: ProducerEpoch(0), sequence: 0, bumps_epoch: false };
        verifications.begin(query, Timestamp(START_MS + after_ms))
    }

    fn guard_of(verifications: &Verifications, id: i64) -> Option<Guard> {
        verifications.get(ProducerId(id)).map(|verification| verification.guard)
    }

    /// As many guards as there may be, each held by a request.
    fn full() -> (Verifications, Vec<Guard>) {
        let mut verifications = Verifications::default();
        let guards = (0..ONE_MORE).map(|id| ask(&mut verifications, id, 0).expect("there is room"));
        let guards = guards.collect();
        (verifications, guards)
    }

    #[test]
    fn guards_are_bounded() {
        let (mut verifications, guards) = full();
        assert_eq!(ask(&mut verifications, ONE_MORE, 0), None);
        assert_eq!(ask(&mut verifications, 0, 0), Some(guards[0]));
        verifications.refuse(ProducerId(0), guards[0], true);
        assert_eq!(ask(&mut verifications, ONE_MORE, 0), None, "another request has it, too");
        verifications.refuse(ProducerId(0), guards[0], true);
        assert!(ask(&mut verifications, ONE_MORE, 0).is_some());
    }

    #[test]
    fn a_guard_that_is_to_be_asked_for_again_makes_room_for_others() {
        let (mut verifications, guards) = full();
        for id in [7, 5, 6] {
            verifications.refuse(ProducerId(id), guards[id as usize], false);
        }
        assert_eq!(ask(&mut verifications, 7, 0), Some(guards[7]), "it is held again");
        assert!(ask(&mut verifications, ONE_MORE, 0).is_some());
        assert_eq!(guard_of(&verifications, 5), None, "the longest idle went");
        assert!(ask(&mut verifications, ONE_MORE + 1, 0).is_some());
        assert_eq!(ask(&mut verifications, ONE_MORE + 2, 0), None, "all others are held");
        assert_eq!(guard_of(&verifications, 7), Some(guards[7]));
    }

    #[test]
    fn guards_that_were_lost_make_room_after_a_minute() {
        let (mut verifications, guards) = full();
        assert_eq!(ask(&mut verifications, 0, HELD_MS_MAX - 1), Some(guards[0]));
        assert_eq!(ask(&mut verifications, ONE_MORE, HELD_MS_MAX - 1), None);
        assert!(ask(&mut verifications, ONE_MORE, HELD_MS_MAX + LOOK_INTERVAL_MS).is_some());
        assert_eq!(guard_of(&verifications, 0), Some(guards[0]), "it was asked for meanwhile");
    }

    #[test]
    fn a_guard_that_nobody_asks_for_again_goes_before_the_producer_does() {
        let day = 24 * 60 * 60 * 1000;
        let mut verifications = Verifications::default();
        let idle = ask(&mut verifications, 1, 0).expect("there is room");
        ask(&mut verifications, 2, 0);
        verifications.refuse(ProducerId(1), idle, false);
        verifications.expire(Timestamp(START_MS + IDLE_MS_MAX - 1), day);
        assert_eq!(guard_of(&verifications, 1), Some(idle));
        verifications.expire(Timestamp(START_MS + IDLE_MS_MAX), day);
        assert_eq!(guard_of(&verifications, 1), None);
        assert!(verifications.idle.is_empty());
        assert!(guard_of(&verifications, 2).is_some());
        verifications.expire(Timestamp(START_MS + day), day);
        assert_eq!(guard_of(&verifications, 2), None);
    }

    #[test]
    fn what_an_append_took_and_gave_back_can_make_room_as_before() {
        let (mut verifications, guards) = full();
        verifications.refuse(ProducerId(3), guards[3], false);
        let taken = verifications.take(ProducerId(3)).expect("it is there");
        assert!(verifications.idle.is_empty());
        verifications.restore(ProducerId(3), taken);
        assert!(ask(&mut verifications, ONE_MORE, 0).is_some());
        assert_eq!(guard_of(&verifications, 3), None);
    }
}
