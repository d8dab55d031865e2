//! What the log knows of idempotent and transactional producers (Kafka's `ProducerStateManager` and
//! `ProducerAppendInfo`): the last five batches of each, its epoch, and the transactions that are open.
//!
//! Owned by the log of its partition. `check` never changes anything; `apply` never refuses: during recovery
//! and replication the leader's decision is taken as it is.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use crate::base::clock::Timestamp;
use crate::base::{Offset, ProducerEpoch, ProducerId};
use crate::wire::ErrorCode;
use crate::wire::record::{BatchHead, EndTxnMarker, increment_sequence};

use super::txn_index::AbortedTransaction;
use super::verification::{Claim, Guard, Query, Verification, Verifications};

/// Batches remembered per producer; clients have at most as many requests in flight.
pub const BATCHES_KEPT: usize = 5;

const NO_EPOCH: ProducerEpoch = ProducerEpoch(-1);
const NO_SEQUENCE: i32 = -1;

/// Who appends decides how much is checked (Kafka's `AppendOrigin`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    Client,
    /// Offset commits and markers of this broker's coordinators: no sequences.
    Coordinator,
}

/// One remembered batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeptBatch {
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

    fn first_sequence(&self) -> i32 {
        // Backwards over the wrap at i32::MAX.
        let first = i64::from(self.last_sequence) - i64::from(self.offset_delta);
        if first >= 0 { first as i32 } else { (first + i64::from(i32::MAX) + 1) as i32 }
    }

    pub fn first_offset(&self) -> Offset {
        Offset(self.last_offset.0 - i64::from(self.offset_delta))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Producer {
    pub epoch: ProducerEpoch,
    pub coordinator_epoch: i32,
    pub last_timestamp: Timestamp,
    pub transaction_first: Option<Offset>,
    kept: [KeptBatch; BATCHES_KEPT],
    kept_len: u8,
}

impl Producer {
    const NEW: Producer = Producer {
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

    fn enter_epoch(&mut self, epoch: ProducerEpoch) {
        if self.epoch != epoch {
            self.kept_len = 0;
            self.epoch = epoch;
        }
    }

    fn keep(&mut self, batch: KeptBatch) {
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

/// What a check of a batch says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Check {
    Append,
    /// Already in the log: the first answer is given again.
    Duplicate {
        first: Offset,
        last: Offset,
        timestamp: Timestamp,
    },
}

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

    fn is_in_transaction(&self, id: ProducerId, epoch: ProducerEpoch) -> bool {
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
    pub fn apply_marker(&mut self, head: &BatchHead, marker: EndTxnMarker) -> Option<AbortedTransaction> {
        let (id, last) = (head.producer_id(), head.base_offset());
        if !id.is_some() {
            return None;
        }
        let (producer, before) = entry(&mut self.producers, id);
        producer.enter_epoch(head.producer_epoch());
        producer.coordinator_epoch = marker.coordinator_epoch;
        producer.last_timestamp = head.max_timestamp();
        let first = producer.transaction_first.take();
        let verification = self.verifications.take(id);
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
mod tests {
    use super::*;
    use crate::wire::record::Attributes;

    fn head(id: i64, epoch: i16, sequence: i32, offset: i64, records: i32) -> BatchHead {
        let mut head = BatchHead::empty();
        head.set_producer(ProducerId(id), ProducerEpoch(epoch), sequence);
        head.set_base_offset(Offset(offset));
        head.set_last_offset_delta(records - 1);
        head.set_count(records);
        head.set_max_timestamp(Timestamp(1000 + offset));
        head
    }

    fn transactional(mut head: BatchHead) -> BatchHead {
        head.set_attributes(Attributes::default().with_transactional(true));
        head
    }

    fn query(epoch: i16, sequence: i32, bumps_epoch: bool) -> Query {
        Query { id: ProducerId(1), epoch: ProducerEpoch(epoch), sequence, bumps_epoch }
    }

    fn begin(
        producers: &mut Producers,
        epoch: i16,
        sequence: i32,
        bumps_epoch: bool,
    ) -> Result<Option<Guard>, ErrorCode> {
        producers.begin_verification(query(epoch, sequence, bumps_epoch), Timestamp(1000))
    }

    fn append(producers: &mut Producers, head: &BatchHead) -> Result<Check, ErrorCode> {
        let check = producers.check(head, Origin::Client, Claim::Unchecked)?;
        if check == Check::Append {
            producers.apply(head);
            producers.commit();
        }
        Ok(check)
    }

    #[test]
    fn the_last_five_batches_are_recognised_and_older_ones_are_out_of_order() {
        let mut producers = Producers::default();
        for batch in 0..6 {
            let next = head(1, 0, batch * 2, i64::from(batch) * 10, 2);
            assert_eq!(append(&mut producers, &next), Ok(Check::Append));
        }
        for batch in 1..6i64 {
            let again = head(1, 0, batch as i32 * 2, 500, 2);
            let first = Offset(batch * 10);
            let expected =
                Check::Duplicate { first, last: first.plus(1), timestamp: Timestamp(1000 + first.0) };
            assert_eq!(append(&mut producers, &again), Ok(expected));
        }
        let outside = head(1, 0, 0, 500, 2);
        assert_eq!(append(&mut producers, &outside), Err(ErrorCode::OutOfOrderSequenceNumber));
        let overlapping = head(1, 0, 10, 500, 1);
        assert_eq!(append(&mut producers, &overlapping), Err(ErrorCode::OutOfOrderSequenceNumber));
        let gap = head(1, 0, 13, 500, 1);
        assert_eq!(append(&mut producers, &gap), Err(ErrorCode::OutOfOrderSequenceNumber));
    }

    #[test]
    fn sequence_wraps_to_zero() {
        let mut producers = Producers::default();
        append(&mut producers, &head(1, 0, i32::MAX - 1, 0, 2)).unwrap();
        assert_eq!(append(&mut producers, &head(1, 0, 0, 2, 1)), Ok(Check::Append));

        append(&mut producers, &head(2, 0, i32::MAX, 3, 3)).unwrap();
        let again = append(&mut producers, &head(2, 0, i32::MAX, 9, 3)).unwrap();
        assert!(matches!(again, Check::Duplicate { first: Offset(3), last: Offset(5), .. }));
        assert_eq!(append(&mut producers, &head(2, 0, 2, 6, 1)), Ok(Check::Append));
    }

    #[test]
    fn a_new_epoch_starts_at_zero_and_fences_the_old_one() {
        let mut producers = Producers::default();
        assert_eq!(
            append(&mut producers, &head(1, 3, 77, 0, 1)),
            Ok(Check::Append),
            "unknown: starts anywhere"
        );
        assert_eq!(append(&mut producers, &head(1, 4, 78, 1, 1)), Err(ErrorCode::OutOfOrderSequenceNumber));
        assert_eq!(append(&mut producers, &head(1, 4, 0, 1, 1)), Ok(Check::Append));
        assert_eq!(append(&mut producers, &head(1, 3, 78, 2, 1)), Err(ErrorCode::InvalidProducerEpoch));
        let coordinators = head(1, 4, -1, 2, 1);
        assert_eq!(producers.check(&coordinators, Origin::Coordinator, Claim::Unchecked), Ok(Check::Append));
    }

    #[test]
    fn open_transactions_hold_the_first_unstable_offset_until_replicated() {
        let mut producers = Producers::default();
        append(&mut producers, &transactional(head(1, 0, 0, 10, 1))).unwrap();
        append(&mut producers, &transactional(head(2, 0, 0, 11, 1))).unwrap();
        assert_eq!(append(&mut producers, &head(2, 0, 1, 12, 1)), Err(ErrorCode::InvalidTxnState));
        let marker = EndTxnMarker { commit: true, coordinator_epoch: 7 };
        let end = head(1, 0, -1, 12, 1);
        assert_eq!(producers.check_marker(&end, marker, Claim::Unchecked), Ok(()));
        assert_eq!(producers.apply_marker(&end, marker), None, "a commit");
        assert_eq!(producers.first_unstable(), Some(Offset(10)));
        producers.high_watermark_advanced(Offset(12));
        assert_eq!(producers.first_unstable(), Some(Offset(10)));
        producers.high_watermark_advanced(Offset(13));
        assert_eq!(producers.first_unstable(), Some(Offset(11)));
        let zombie = EndTxnMarker { coordinator_epoch: 6, ..marker };
        assert_eq!(
            producers.check_marker(&end, zombie, Claim::Unchecked),
            Err(ErrorCode::TransactionCoordinatorFenced)
        );
    }

    #[test]
    fn an_abort_marker_tells_the_transaction_and_what_is_stable_then() {
        let mut producers = Producers::default();
        append(&mut producers, &transactional(head(1, 0, 0, 10, 1))).unwrap();
        append(&mut producers, &transactional(head(2, 0, 0, 11, 1))).unwrap();
        let marker = EndTxnMarker { commit: false, coordinator_epoch: 7 };
        let aborted = |producer, first, last, last_stable| AbortedTransaction {
            producer: ProducerId(producer),
            first: Offset(first),
            last: Offset(last),
            last_stable: Offset(last_stable),
        };
        assert_eq!(producers.apply_marker(&head(2, 0, -1, 12, 1), marker), Some(aborted(2, 11, 12, 10)));
        assert_eq!(producers.apply_marker(&head(1, 0, -1, 13, 1), marker), Some(aborted(1, 10, 13, 14)));
        assert_eq!(producers.apply_marker(&head(1, 0, -1, 14, 1), marker), None, "no transaction");
    }

    #[test]
    fn rollback_restores_what_was() {
        let mut producers = Producers::default();
        append(&mut producers, &transactional(head(1, 0, 0, 10, 1))).unwrap();
        let before: Vec<_> = producers.descriptions().collect();
        producers.apply(&head(1, 0, 1, 11, 1));
        producers.apply(&transactional(head(2, 0, 0, 12, 1)));
        producers.apply_marker(&head(1, 0, -1, 13, 1), EndTxnMarker { commit: false, coordinator_epoch: 1 });
        producers.rollback();
        assert_eq!(producers.descriptions().collect::<Vec<_>>(), before);
    }

    #[test]
    fn rollback_gives_back_the_guard_of_a_transaction_that_did_not_begin() {
        let mut producers = Producers::default();
        let guard = begin(&mut producers, 0, 3, false).unwrap().unwrap();
        let claim = Claim::Begins(guard);
        let first = transactional(head(1, 0, 3, 10, 1));
        producers.apply(&first);
        producers.apply(&transactional(head(1, 0, 4, 11, 1)));
        producers.rollback();
        let later = transactional(head(1, 0, 4, 10, 1));
        assert_eq!(
            producers.check(&later, Origin::Client, claim),
            Err(ErrorCode::OutOfOrderSequenceNumber),
            "not before the one that failed with it"
        );
        assert_eq!(producers.check(&first, Origin::Client, claim), Ok(Check::Append));
        producers.apply_marker(&head(1, 0, -1, 10, 1), EndTxnMarker { commit: false, coordinator_epoch: 1 });
        producers.rollback();
        assert_eq!(producers.check(&first, Origin::Client, claim), Ok(Check::Append), "nor was it ended");
        producers.apply(&first);
        producers.commit();
        producers.rollback();
        assert_eq!(producers.check(&later, Origin::Client, Claim::Open), Ok(Check::Append));
    }

    #[test]
    fn idle_producers_expire_unless_a_transaction_is_open() {
        let mut producers = Producers::default();
        append(&mut producers, &head(1, 0, 0, 0, 1)).unwrap();
        append(&mut producers, &transactional(head(2, 0, 0, 1, 1))).unwrap();
        producers.expire(Timestamp(1000 + 99), 100);
        assert_eq!(producers.len(), 2);
        producers.expire(Timestamp(1000 + 100), 100);
        assert_eq!(producers.descriptions().map(|producer| producer.id.0).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_transaction_begins_with_a_guard_and_goes_on_without() {
        let mut producers = Producers::default();
        let first = transactional(head(1, 0, 0, 10, 1));
        let check =
            |producers: &Producers, head: &BatchHead, claim| producers.check(head, Origin::Client, claim);
        assert_eq!(check(&producers, &first, Claim::Open), Err(ErrorCode::InvalidTxnState));
        let begin = |producers: &mut Producers, epoch, sequence| begin(producers, epoch, sequence, false);
        let guard = begin(&mut producers, 0, 0).unwrap().unwrap();
        assert_eq!(begin(&mut producers, 0, 0), Ok(Some(guard)), "asked again");
        assert_eq!(check(&producers, &first, Claim::Begins(guard)), Ok(Check::Append));
        // The transaction ends before the batch is there.
        let marker = EndTxnMarker { commit: false, coordinator_epoch: 1 };
        producers.apply_marker(&head(1, 0, -1, 10, 1), marker);
        assert_eq!(check(&producers, &first, Claim::Begins(guard)), Err(ErrorCode::InvalidTxnState));
        let guard = begin(&mut producers, 0, 0).unwrap().unwrap();
        producers.apply(&first);
        assert_eq!(begin(&mut producers, 0, 1), Ok(None), "under way");
        let second = transactional(head(1, 0, 1, 11, 1));
        assert_eq!(check(&producers, &second, Claim::Open), Ok(Check::Append));
        assert_eq!(check(&producers, &second, Claim::Begins(guard)), Ok(Check::Append));
        let zombie = transactional(head(1, -1, 1, 11, 1));
        assert_eq!(check(&producers, &zombie, Claim::Open), Err(ErrorCode::InvalidProducerEpoch));
        assert_eq!(begin(&mut producers, -1, 0), Err(ErrorCode::InvalidProducerEpoch));
    }

    #[test]
    fn a_batch_does_not_overtake_the_one_that_was_verified_before_it() {
        let mut producers = Producers::default();
        let begin = |producers: &mut Producers, sequence, bumps| begin(producers, 0, sequence, bumps);
        let guard = begin(&mut producers, 3, false).unwrap().unwrap();
        begin(&mut producers, 5, false).unwrap();
        let claim = Claim::Begins(guard);
        let overtaking = transactional(head(1, 0, 5, 0, 1));
        assert_eq!(
            producers.check(&overtaking, Origin::Client, claim),
            Err(ErrorCode::OutOfOrderSequenceNumber)
        );
        let next = transactional(head(1, 0, 3, 0, 1));
        assert_eq!(producers.check(&next, Origin::Client, claim), Ok(Check::Append));
        let mut producers = Producers::default();
        let claim = Claim::Begins(begin(&mut producers, 3, true).unwrap().unwrap());
        assert_eq!(
            producers.check(&next, Origin::Client, claim),
            Err(ErrorCode::OutOfOrderSequenceNumber),
            "under transactions v2 an unknown producer begins with 0"
        );
    }

    #[test]
    fn a_late_marker_does_not_end_the_next_transaction() {
        let mut producers = Producers::default();
        let marker = EndTxnMarker { commit: true, coordinator_epoch: 1 };
        let end = head(1, 1, -1, 10, 1);
        let check = |producers: &Producers, claim| producers.check_marker(&end, marker, claim);
        let bumped = Claim::Marker { bumps_epoch: true, coordinator_epoch_max: 1 };
        append(&mut producers, &transactional(head(1, 0, 0, 0, 1))).unwrap();
        assert_eq!(check(&producers, bumped), Ok(()));
        producers.apply_marker(&end, marker);
        assert_eq!(check(&producers, bumped), Ok(()), "written twice");
        append(&mut producers, &transactional(head(1, 1, 0, 11, 1))).unwrap();
        assert_eq!(check(&producers, bumped), Err(ErrorCode::InvalidProducerEpoch));
        assert_eq!(check(&producers, Claim::Unchecked), Ok(()));
    }

    #[test]
    fn a_coordinator_epoch_that_nobody_had_fences_nobody() {
        let mut producers = Producers::default();
        let end = head(1, 0, -1, 10, 1);
        let marker = |coordinator_epoch| EndTxnMarker { commit: false, coordinator_epoch };
        let check = |producers: &Producers, epoch| {
            let claim = Claim::Marker { bumps_epoch: false, coordinator_epoch_max: 3 };
            producers.check_marker(&end, marker(epoch), claim)
        };
        assert_eq!(check(&producers, i32::MAX), Err(ErrorCode::TransactionCoordinatorFenced));
        assert_eq!(check(&producers, 3), Ok(()));
        producers.apply_marker(&end, marker(2));
        assert_eq!(check(&producers, 1), Err(ErrorCode::TransactionCoordinatorFenced), "a zombie's");
        assert_eq!(check(&producers, 4), Err(ErrorCode::TransactionCoordinatorFenced));
        // Written before this was looked at, or when the topic of transactions was another one.
        producers.apply_marker(&end, marker(i32::MAX));
        assert_eq!(check(&producers, 0), Ok(()));
        assert_eq!(
            check(&producers, i32::MAX),
            Ok(()),
            "as DescribeProducers tells it to who ends it by hand"
        );
    }

    #[test]
    fn a_transaction_does_not_begin_while_the_one_before_it_is_open() {
        let mut producers = Producers::default();
        append(&mut producers, &transactional(head(1, 0, 0, 0, 1))).unwrap();
        let next = transactional(head(1, 1, 0, 1, 1));
        for origin in [Origin::Client, Origin::Coordinator] {
            let check = producers.check(&next, origin, Claim::Unchecked);
            assert_eq!(check, Err(ErrorCode::ConcurrentTransactions));
        }
        producers.apply_marker(&head(1, 1, -1, 1, 1), EndTxnMarker { commit: true, coordinator_epoch: 1 });
        assert_eq!(append(&mut producers, &next), Ok(Check::Append));
    }

    #[test]
    fn a_hanging_transaction_is_ended_with_the_next_one_that_the_coordinator_knows_of() {
        let mut producers = Producers::default();
        append(&mut producers, &transactional(head(1, 0, 0, 0, 1))).unwrap();
        let next = transactional(head(1, 1, 0, 1, 1));
        let guard = begin(&mut producers, 1, 0, true).unwrap().unwrap();
        let check = |producers: &Producers, claim| producers.check(&next, Origin::Client, claim);
        assert_eq!(check(&producers, Claim::Open), Err(ErrorCode::InvalidTxnState));
        assert_eq!(check(&producers, Claim::Begins(guard)), Ok(Check::Append));
        producers.apply(&next);
        producers.commit();
        assert_eq!(producers.first_unstable(), Some(Offset(0)));
        producers.apply_marker(&head(1, 2, -1, 2, 1), EndTxnMarker { commit: false, coordinator_epoch: 1 });
        producers.commit();
        assert!(producers.open.is_empty(), "both have ended");
    }

    #[test]
    fn the_guard_of_a_refused_verification_goes_when_nobody_else_counts_on_it() {
        let mut producers = Producers::default();
        let first = transactional(head(1, 0, 0, 10, 1));
        let is_good = |producers: &Producers, guard| {
            producers.check(&first, Origin::Client, Claim::Begins(guard)) == Ok(Check::Append)
        };
        let guard = begin(&mut producers, 0, 0, false).unwrap().unwrap();
        begin(&mut producers, 0, 0, false).unwrap();
        producers.refuse_verification(ProducerId(1), guard, true);
        assert!(is_good(&producers, guard), "another request has it, too");
        producers.refuse_verification(ProducerId(1), guard, true);
        assert!(!is_good(&producers, guard));
        let guard = begin(&mut producers, 0, 0, false).unwrap().unwrap();
        producers.refuse_verification(ProducerId(1), guard, false);
        assert!(is_good(&producers, guard), "it will be asked again");
    }
}
