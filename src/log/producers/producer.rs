//! One producer as the log remembers it: its epoch, its last batches, its open transaction.

use crate::base::clock::Timestamp;
use crate::base::{Offset, ProducerEpoch};

/// Batches remembered per producer; clients have at most as many requests in flight.
pub(in crate::log) const BATCHES_KEPT: usize = 5;

pub(super) const NO_EPOCH: ProducerEpoch = ProducerEpoch(-1);
pub(super) const NO_SEQUENCE: i32 = -1;

/// One remembered batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::log) struct KeptBatch {
    pub last_sequence: i32,
    pub last_offset: Offset,
    pub offset_delta: i32,
    pub timestamp: Timestamp,
}

impl KeptBatch {
    const NONE: KeptBatch = KeptBatch {
        last_sequence: NO_SEQUENCE,
        last_offset: Offset(-1),
        offset_delta: 0,
        timestamp: Timestamp::NONE,
    };

    pub(super) fn first_sequence(&self) -> i32 {
        // Backwards over the wrap at i32::MAX.
        let first = i64::from(self.last_sequence) - i64::from(self.offset_delta);
        if first >= 0 { first as i32 } else { (first + i64::from(i32::MAX) + 1) as i32 }
    }

    pub fn first_offset(&self) -> Offset {
        Offset(self.last_offset.0 - i64::from(self.offset_delta))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::log) struct Producer {
    pub epoch: ProducerEpoch,
    pub coordinator_epoch: i32,
    pub last_timestamp: Timestamp,
    pub transaction_first: Option<Offset>,
    kept: [KeptBatch; BATCHES_KEPT],
    kept_len: u8,
}

impl Producer {
    pub(super) const NEW: Producer = Producer {
        epoch: NO_EPOCH,
        coordinator_epoch: -1,
        last_timestamp: Timestamp::NONE,
        transaction_first: None,
        kept: [KeptBatch::NONE; BATCHES_KEPT],
        kept_len: 0,
    };

    /// Oldest first.
    pub fn kept(&self) -> &[KeptBatch] {
        &self.kept[..usize::from(self.kept_len)]
    }

    pub fn last(&self) -> Option<&KeptBatch> {
        self.kept().last()
    }

    pub(super) fn enter_epoch(&mut self, epoch: ProducerEpoch) {
        if self.epoch != epoch {
            self.kept_len = 0;
            self.epoch = epoch;
        }
    }

    pub(super) fn keep(&mut self, batch: KeptBatch) {
        if usize::from(self.kept_len) == BATCHES_KEPT {
            self.kept.rotate_left(1);
            self.kept_len -= 1;
        }
        self.kept[usize::from(self.kept_len)] = batch;
        self.kept_len += 1;
    }

    /// A producer as an entry of a snapshot has it: with one batch.
    pub fn from_snapshot(
        epoch: ProducerEpoch,
        coordinator_epoch: i32,
        last_timestamp: Timestamp,
        transaction_first: Option<Offset>,
        last: Option<KeptBatch>,
    ) -> Self {
        let mut producer =
            Producer { epoch, coordinator_epoch, last_timestamp, transaction_first, ..Producer::NEW };
        if let Some(last) = last {
            producer.keep(last);
        }
        producer
    }

    /// The same producer one entry of a snapshot later.
    pub fn followed_by(self, next: Producer) -> Self {
        let mut producer = Producer { kept: self.kept, kept_len: self.kept_len, ..next };
        if let Some(last) = next.last() {
            producer.keep(*last);
        }
        producer
    }
}
