//! Which producers are about to begin a transaction here: their partition was asked for at the transaction
//! coordinator, and nothing was written yet (KIP-890, Kafka's `VerificationStateEntry`).
//!
//! Owned by the log of its partition, in memory only. A guard is worth one beginning: the first transactional
//! batch and every marker take it away, so that a batch that comes after the end of its transaction, which
//! nobody would end any more, is refused. One that the coordinator refuses goes as soon as no other request counts
//! on it, for whoever may write can ask for any number of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::base::clock::Timestamp;
use crate::base::{ProducerEpoch, ProducerId};

/// Guards that one log gives out at a time (100 bytes each). Nearly all live for milliseconds.
pub(super) const VERIFICATIONS_MAX: usize = 4096;

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
    since: Timestamp,
    /// Requests that got the guard and were not refused.
    holders: u32,
}

#[derive(Default, Debug)]
pub(super) struct Verifications {
    by_producer: HashMap<ProducerId, Verification, ahash::RandomState>,
    given: u64,
}

impl Verifications {
    /// The guard of the producer; `None` when too many are given out.
    pub fn begin(&mut self, query: Query, now: Timestamp) -> Option<Guard> {
        let Query { id, epoch, sequence, bumps_epoch } = query;
        let is_full = self.by_producer.len() >= VERIFICATIONS_MAX;
        let verification = match self.by_producer.entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if is_full => return None,
            Entry::Vacant(entry) => {
                self.given += 1;
                let guard = Guard(self.given);
                entry.insert(Verification {
                    guard,
                    bumps_epoch,
                    lowest_sequence: sequence,
                    epoch,
                    since: now,
                    holders: 0,
                })
            }
        };
        verification.holders = verification.holders.saturating_add(1);
        if epoch == verification.epoch {
            verification.lowest_sequence = verification.lowest_sequence.min(sequence);
        } else if epoch > verification.epoch {
            verification.epoch = epoch;
            verification.lowest_sequence = sequence;
        }
        Some(verification.guard)
    }

    /// One of those that got `guard` was refused. Unless it is to ask again, which must not lose its place to a later
    /// batch, the guard goes with its last holder.
    pub fn refuse(&mut self, id: ProducerId, guard: Guard, is_final: bool) {
        let Entry::Occupied(mut entry) = self.by_producer.entry(id) else { return };
        let verification = entry.get_mut();
        if verification.guard != guard {
            return;
        }
        verification.holders = verification.holders.saturating_sub(1);
        if is_final && verification.holders == 0 {
            entry.remove();
        }
    }

    pub fn get(&self, id: ProducerId) -> Option<&Verification> {
        self.by_producer.get(&id)
    }

    pub fn take(&mut self, id: ProducerId) -> Option<Verification> {
        match self.by_producer.is_empty() {
            true => None,
            false => self.by_producer.remove(&id),
        }
    }

    /// Takes back what [`Verifications::take`] did.
    pub fn restore(&mut self, id: ProducerId, verification: Verification) {
        self.by_producer.insert(id, verification);
    }

    pub fn expire(&mut self, wall: Timestamp, expiration_ms: i64) {
        self.by_producer.retain(|_, kept| wall.0.saturating_sub(kept.since.0) < expiration_ms);
    }
}
