//! Which producers are about to begin a transaction here: their partition was asked for at the transaction
//! coordinator, and nothing was written yet (KIP-890, Kafka's `VerificationStateEntry`).
//!
//! Owned by the log of its partition, in memory only. A guard is worth one beginning: the first transactional
//! batch and every marker take it away, so that a batch that comes after the end of its transaction, which
//! nobody would end any more, is refused.

use std::collections::HashMap;

use crate::base::clock::Timestamp;
use crate::base::{ProducerEpoch, ProducerId};

/// Proves that the partition was added to the transaction after this was given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guard(u64);

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
    /// A marker of a transaction that had an epoch of its own: its epoch is above all that was written.
    EpochBumped,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Verification {
    pub guard: Guard,
    pub bumps_epoch: bool,
    /// The first sequence that was seen, so that a later batch does not overtake it.
    pub lowest_sequence: i32,
    epoch: ProducerEpoch,
    since: Timestamp,
}

#[derive(Default, Debug)]
pub(super) struct Verifications {
    by_producer: HashMap<ProducerId, Verification, ahash::RandomState>,
    given: u64,
}

impl Verifications {
    pub fn begin(
        &mut self,
        id: ProducerId,
        epoch: ProducerEpoch,
        sequence: i32,
        bumps_epoch: bool,
        now: Timestamp,
    ) -> Guard {
        let given = &mut self.given;
        let verification = self.by_producer.entry(id).or_insert_with(|| {
            *given += 1;
            let guard = Guard(*given);
            Verification { guard, bumps_epoch, lowest_sequence: sequence, epoch, since: now }
        });
        if epoch == verification.epoch {
            verification.lowest_sequence = verification.lowest_sequence.min(sequence);
        } else if epoch > verification.epoch {
            verification.epoch = epoch;
            verification.lowest_sequence = sequence;
        }
        verification.guard
    }

    pub fn get(&self, id: ProducerId) -> Option<&Verification> {
        self.by_producer.get(&id)
    }

    pub fn clear(&mut self, id: ProducerId) {
        if !self.by_producer.is_empty() {
            self.by_producer.remove(&id);
        }
    }

    pub fn expire(&mut self, wall: Timestamp, expiration_ms: i64) {
        self.by_producer.retain(|_, kept| wall.0.saturating_sub(kept.since.0) < expiration_ms);
    }
}
