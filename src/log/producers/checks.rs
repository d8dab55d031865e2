//! Whether a batch or a marker may be appended, by what is known of its producer (Kafka's `ProducerAppendInfo`).
//! Nothing is changed here.

use crate::base::clock::Timestamp;
use crate::base::{Offset, ProducerEpoch, ProducerId};
use crate::log::verification::Claim;
use crate::wire::ErrorCode;
use crate::wire::record::{BatchHead, EndTxnMarker, increment_sequence};

use super::Producers;
use super::producer::{KeptBatch, NO_EPOCH, Producer};

/// Who appends decides how much is checked (Kafka's `AppendOrigin`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    Client,
    /// Offset commits and markers of this broker's coordinators: no sequences.
    Coordinator,
}

/// What a check of a batch says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::log) enum Check {
    Append,
    /// Already in the log: the first answer is given again.
    Duplicate {
        first: Offset,
        last: Offset,
        timestamp: Timestamp,
    },
}

impl Producers {
    pub(super) fn is_in_transaction(&self, id: ProducerId, epoch: ProducerEpoch) -> bool {
        let producer = self.producers.get(&id);
        producer.is_some_and(|producer| producer.transaction_first.is_some() && producer.epoch == epoch)
    }

    /// Whether a transactional batch belongs to a transaction that somebody will end (KIP-890).
    fn check_claim(&self, head: &BatchHead, claim: Claim) -> Result<(), ErrorCode> {
        let (id, epoch) = (head.producer_id(), head.producer_epoch());
        if !head.attributes().is_transactional() || self.is_in_transaction(id, epoch) {
            return Ok(());
        }
        if self.producers.get(&id).is_some_and(|producer| epoch < producer.epoch) {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        let current = self.verifications.get(id).map(|verification| verification.guard);
        match claim {
            Claim::Unchecked => Ok(()),
            Claim::Begins(guard) if current == Some(guard) => Ok(()),
            Claim::Begins(_) | Claim::Open | Claim::Marker { .. } => Err(ErrorCode::InvalidTxnState),
        }
    }

    /// Whether the batch may be appended.
    pub fn check(&self, head: &BatchHead, origin: Origin, claim: Claim) -> Result<Check, ErrorCode> {
        let id = head.producer_id();
        if !id.is_some() {
            return Ok(Check::Append);
        }
        let verification = self.verifications.get(id).filter(|_| origin == Origin::Client);
        let Some(producer) = self.producers.get(&id) else {
            self.check_claim(head, claim)?;
            let first = head.base_sequence();
            return match verification {
                // A producer whose every transaction has its own epoch begins each with 0.
                Some(verification) if verification.bumps_epoch && first != 0 => {
                    Err(ErrorCode::OutOfOrderSequenceNumber)
                }
                Some(verification) if first > verification.lowest_sequence => {
                    Err(ErrorCode::OutOfOrderSequenceNumber)
                }
                _ => Ok(Check::Append),
            };
        };
        let (epoch, first) = (head.producer_epoch(), head.base_sequence());
        if origin == Origin::Client && epoch == producer.epoch {
            let same = |kept: &&KeptBatch| {
                kept.first_sequence() == first && kept.last_sequence == head.last_sequence()
            };
            if let Some(kept) = producer.kept().iter().find(same) {
                return Ok(Check::Duplicate {
                    first: kept.first_offset(),
                    last: kept.last_offset,
                    timestamp: kept.timestamp,
                });
            }
        }
        self.check_claim(head, claim)?;
        if epoch < producer.epoch {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        if epoch > producer.epoch
            && producer.transaction_first.is_some()
            && head.attributes().is_transactional()
            && !matches!(claim, Claim::Begins(_))
        {
            // The marker of the transaction before, which was decided already, is still to come: it would end both. Not
            // so where the coordinator has just said that the new one has this partition: it says so when all markers
            // of the one before are written. Whose marker has not come by then hangs, and the next one ends both, as in
            // Kafka.
            return Err(ErrorCode::ConcurrentTransactions);
        }
        if verification.is_some_and(|verification| first > verification.lowest_sequence) {
            return Err(ErrorCode::OutOfOrderSequenceNumber);
        }
        if origin == Origin::Client && producer.epoch != NO_EPOCH {
            let wanted = match producer.last() {
                Some(last) if epoch == producer.epoch => increment_sequence(last.last_sequence, 1),
                _ => 0,
            };
            if first != wanted {
                return Err(ErrorCode::OutOfOrderSequenceNumber);
            }
        }
        if producer.transaction_first.is_some()
            && !head.attributes().is_transactional()
            && !head.attributes().is_control()
        {
            return Err(ErrorCode::InvalidTxnState);
        }
        Ok(Check::Append)
    }

    /// Whether the coordinator that sent the marker is still the one in charge (KIP-98), and the marker not one
    /// of a transaction before the present one (KIP-1228).
    pub fn check_marker(
        &self,
        head: &BatchHead,
        marker: EndTxnMarker,
        claim: Claim,
    ) -> Result<(), ErrorCode> {
        const EPOCH_MAX: ProducerEpoch = ProducerEpoch(i16::MAX);
        let epoch = head.producer_epoch();
        let (bumps_epoch, coordinator_epoch_max) = match claim {
            Claim::Marker { bumps_epoch, coordinator_epoch_max } => (bumps_epoch, coordinator_epoch_max),
            Claim::Unchecked | Claim::Open | Claim::Begins(_) => (false, i32::MAX),
        };
        let producer = self.producers.get(&head.producer_id());
        let is_late = |producer: &Producer| {
            bumps_epoch
                && epoch == producer.epoch
                && epoch != EPOCH_MAX
                && producer.transaction_first.is_some()
        };
        if producer.is_some_and(|producer| epoch < producer.epoch || is_late(producer)) {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        let known = producer.map_or(-1, |producer| producer.coordinator_epoch);
        let is_nobodys = |epoch: i32| epoch > coordinator_epoch_max;
        // An epoch that no coordinator ever had fences nobody: else one such marker would keep every later transaction
        // of the producer from ending here. It was left by whoever may write, or by a topic of transactions that was
        // deleted since.
        match marker.coordinator_epoch {
            epoch if epoch < known && !is_nobodys(known) => Err(ErrorCode::TransactionCoordinatorFenced),
            epoch if epoch > known && is_nobodys(epoch) => Err(ErrorCode::TransactionCoordinatorFenced),
            _ => Ok(()),
        }
    }
}
