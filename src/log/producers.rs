//! What the log knows of idempotent and transactional producers (Kafka's `ProducerStateManager`): the last five
//! batches of each, its epoch, and the transactions that are open.
//!
//! Owned by the log of its partition. `check` never changes anything; `apply` never refuses: during recovery
//! and replication the leader's decision is taken as it is.

mod checks;
mod producer;

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use crate::base::clock::Timestamp;
use crate::base::{Offset, ProducerEpoch, ProducerId};
use crate::wire::ErrorCode;
use crate::wire::record::{BatchHead, EndTxnMarker};

use self::producer::NO_SEQUENCE;
use super::txn_index::AbortedTransaction;
use super::verification::{Claim, Guard, Query, Verification, Verifications};

pub(super) use self::checks::Check;
pub use self::checks::Origin;
pub(super) use self::producer::{BATCHES_KEPT, KeptBatch, Producer};

/// A producer as DescribeProducers shows it (KIP-664).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerDescription {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    /// -1: none.
    pub last_sequence: i32,
    pub last_timestamp: Timestamp,
    pub coordinator_epoch: i32,
    pub transaction_first: Option<Offset>,
}

/// A change that can be taken back while the write it belongs to may still fail.
#[derive(Debug)]
struct Undo {
    id: ProducerId,
    before: Option<Producer>,
    began: Option<Offset>,
    completed: Option<(Offset, ProducerId)>,
    /// The guard that the change took away.
    verification: Option<Verification>,
}

#[derive(Default, Debug)]
pub(super) struct Producers {
    producers: std::collections::HashMap<ProducerId, Producer, ahash::RandomState>,
    /// First offset → producer of the open transactions.
    open: BTreeMap<Offset, ProducerId>,
    /// First offset → marker's offset of the transactions that ended above the high watermark.
    unreplicated: BTreeMap<Offset, Offset>,
    undo: Vec<Undo>,
    verifications: Verifications,
}

impl Producers {
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// The guard for the first batch of a transaction; `None` if it has been written.
    pub fn begin_verification(&mut self, query: Query, now: Timestamp) -> Result<Option<Guard>, ErrorCode> {
        match self.producers.get(&query.id) {
            Some(producer) if query.epoch < producer.epoch => Err(ErrorCode::InvalidProducerEpoch),
            _ if self.is_in_transaction(query.id, query.epoch) => Ok(None),
            _ => self.verifications.begin(query, now).map(Some).ok_or(ErrorCode::CoordinatorNotAvailable),
        }
    }

    /// The coordinator refused what `guard` was given for; `is_final` unless the same may be asked again.
    pub fn refuse_verification(&mut self, id: ProducerId, guard: Guard, is_final: bool) {
        self.verifications.refuse(id, guard, is_final);
    }

    /// A batch is in the log; its head has its final offsets.
    pub fn apply(&mut self, head: &BatchHead) {
        let id = head.producer_id();
        if !id.is_some() || head.attributes().is_control() {
            return;
        }
        let first = head.base_offset();
        let (producer, before) = entry(&mut self.producers, id);
        producer.enter_epoch(head.producer_epoch());
        producer.keep(KeptBatch {
            last_sequence: head.last_sequence(),
            last_offset: head.last_offset(),
            offset_delta: head.last_offset_delta(),
            timestamp: head.max_timestamp(),
        });
        producer.last_timestamp = head.max_timestamp();
        let begins = head.attributes().is_transactional() && producer.transaction_first.is_none();
        if begins {
            producer.transaction_first = Some(first);
            self.open.insert(first, id);
        }
        let verification = match head.attributes().is_transactional() {
            true => self.verifications.take(id),
            false => None,
        };
        self.undo.push(Undo { id, before, began: begins.then_some(first), completed: None, verification });
    }

    /// A marker is in the log. Returns the transaction if there was one and the marker aborts it.
    pub fn apply_marker(
        &mut self,
        head: &BatchHead,
        marker: EndTxnMarker,
        claim: Claim,
    ) -> Option<AbortedTransaction> {
        let (id, last) = (head.producer_id(), head.base_offset());
        if !id.is_some() {
            return None;
        }
        let (producer, before) = entry(&mut self.producers, id);
        producer.enter_epoch(head.producer_epoch());
        producer.coordinator_epoch = marker.coordinator_epoch;
        producer.last_timestamp = head.max_timestamp();
        let first = producer.transaction_first.take();
        let verification = self.verifications.end(id, head.producer_epoch(), claim);
        if let Some(first) = first {
            self.open.remove(&first);
            self.unreplicated.insert(first, last);
        }
        let completed = first.map(|first| (first, id));
        self.undo.push(Undo { id, before, began: None, completed, verification });
        let first = first.filter(|_| !marker.commit)?;
        // Not the one of `first_unstable`: here what is not replicated counts as decided.
        let last_stable = self.open.keys().next().copied().unwrap_or(last.plus(1));
        Some(AbortedTransaction { producer: id, first, last, last_stable })
    }

    /// The changes since the last call are final.
    pub fn commit(&mut self) {
        self.undo.clear();
        if self.undo.capacity() > 64 {
            self.undo.shrink_to(64);
        }
    }

    /// Takes back the changes since the last commit.
    pub fn rollback(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo.before {
                Some(before) => self.producers.insert(undo.id, before),
                None => self.producers.remove(&undo.id),
            };
            if let Some(began) = undo.began {
                self.open.remove(&began);
            }
            if let Some((first, id)) = undo.completed {
                self.unreplicated.remove(&first);
                self.open.insert(first, id);
            }
            if let Some(verification) = undo.verification {
                self.verifications.restore(undo.id, verification);
            }
        }
    }

    /// Transactions that ended below the high watermark no longer hold the last stable offset.
    pub fn high_watermark_advanced(&mut self, high_watermark: Offset) {
        if !self.unreplicated.is_empty() {
            self.unreplicated.retain(|_, last| *last >= high_watermark);
        }
    }

    /// The first offset whose fate consumers may not rely on yet.
    pub fn first_unstable(&self) -> Option<Offset> {
        let open = self.open.keys().next();
        let unreplicated = self.unreplicated.keys().next();
        open.into_iter().chain(unreplicated).min().copied()
    }

    /// Forgets producers that wrote nothing for `expiration_ms` and have no open transaction.
    pub fn expire(&mut self, wall: Timestamp, expiration_ms: i64) {
        let alive = |producer: &Producer| {
            producer.transaction_first.is_some()
                || wall.0.saturating_sub(producer.last_timestamp.0) < expiration_ms
        };
        if !self.producers.values().all(alive) {
            self.producers.retain(|_, producer| alive(producer));
        }
        self.verifications.expire(wall, expiration_ms);
    }

    pub fn insert(&mut self, id: ProducerId, producer: Producer) {
        if let Some(first) = producer.transaction_first {
            self.open.insert(first, id);
        }
        self.producers.insert(id, producer);
    }

    pub fn iter(&self) -> impl Iterator<Item = (ProducerId, &Producer)> {
        self.producers.iter().map(|(id, producer)| (*id, producer))
    }

    pub fn descriptions(&self) -> impl Iterator<Item = ProducerDescription> {
        self.iter().map(|(id, producer)| ProducerDescription {
            id,
            epoch: producer.epoch,
            last_sequence: producer.last().map_or(NO_SEQUENCE, |kept| kept.last_sequence),
            last_timestamp: producer.last_timestamp,
            coordinator_epoch: producer.coordinator_epoch,
            transaction_first: producer.transaction_first,
        })
    }
}

/// The producer, made if need be, and what it was before (200 bytes copied: no allocation).
fn entry(
    producers: &mut std::collections::HashMap<ProducerId, Producer, ahash::RandomState>,
    id: ProducerId,
) -> (&mut Producer, Option<Producer>) {
    match producers.entry(id) {
        Entry::Occupied(entry) => {
            let before = *entry.get();
            (entry.into_mut(), Some(before))
        }
        Entry::Vacant(entry) => (entry.insert(Producer::NEW), None),
    }
}

#[cfg(test)]
mod tests;
