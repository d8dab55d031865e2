//! The end of a transaction that is decided: markers to all of its partitions, then the record that it is complete.
//! Nothing of it is ever given up: what fails is tried again, ever more rarely, but for what a later coordinator is to
//! do (Kafka's `TransactionMarkerRequestCompletionHandler`).

use std::time::Duration;

use kafka_protocol::protocol::StrBytes;

use super::super::interface::Ticket;
use super::interface::{Effect, Marker, Producer};
use super::machine::{Coordinator, Place};
use super::partition::{Entry, Step, Then};
use super::state::State;
use crate::base::clock::{Monotonic, Now};
use crate::base::{PartitionIndex, TopicPartition};
use crate::wire::ErrorCode;

/// How long to wait before what failed is tried again: at first, doubled each time, and at most.
const RETRY_AFTER: Duration = Duration::from_millis(100);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// What is tried again in one turn.
const RETRIES_PER_TURN: usize = 256;
/// So many failures in a row are worth a warning, no more often than this.
const FAILURES_TO_WARN: u32 = 3;
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

impl Coordinator {
    /// The end of a round of markers. What failed is sent again.
    pub fn markers_written(
        &mut self,
        ticket: Ticket,
        results: Vec<(TopicPartition, Result<(), ErrorCode>)>,
        now: Now,
    ) {
        let Some(place) = self.tickets.remove(&ticket) else { return };
        let Some(entry) = self.entry_at(&place) else { return };
        let Step::Markers { missing } = &mut entry.step else {
            unreachable!("a ticket belongs to the one round of markers of its transactional id")
        };
        let (mut failure, mut fenced) = (None, None);
        for (partition, result) in results {
            match result {
                Ok(()) => {
                    missing.remove(&partition);
                }
                // Whoever has the higher epoch has ended it there.
                Err(ErrorCode::InvalidProducerEpoch) => {
                    tracing::warn!(%partition, transactional_id = %place.id, "a newer producer overtook a marker");
                    missing.remove(&partition);
                }
                // Nothing of a transaction can have been written there.
                Err(ErrorCode::UnsupportedForMessageFormat | ErrorCode::UnsupportedVersion) => {
                    tracing::warn!(%partition, transactional_id = %place.id, "a partition takes no markers");
                    missing.remove(&partition);
                }
                Err(ErrorCode::TransactionCoordinatorFenced) => fenced = Some(partition),
                Err(error) => failure = Some((partition, error)),
            }
        }
        if let Some(partition) = fenced {
            return self.leave_to_a_later_coordinator(&place, &partition);
        }
        // One that was not told of counts as failed.
        let untold = missing.first().map(|partition| (partition.clone(), ErrorCode::UnknownServerError));
        match failure.or(untold) {
            None => self.complete(place.partition, &place.id, now),
            Some((partition, error)) => self.try_again(place, Some(&partition), error, now),
        }
    }

    /// A partition has heard of the producer from a coordinator with a higher epoch than this one will ever have, so no
    /// attempt can succeed. Whoever loads the partition of `__transaction_state` next goes on; until then the id is busy.
    fn leave_to_a_later_coordinator(&mut self, place: &Place, partition: &TopicPartition) {
        let Some(entry) = self.entry_at(place) else { return };
        entry.step = Step::Fenced;
        self.fenced.increment();
        tracing::warn!(
            %partition, transactional_id = %place.id, coordinator_epoch = place.epoch,
            "a partition obeys a later coordinator: the transaction waits until its partition of \
             __transaction_state is loaded in a higher leader epoch"
        );
    }

    /// Puts off what failed. `partition` is one that has no marker; `None` when the record could not be appended.
    pub(super) fn try_again(
        &mut self,
        place: Place,
        partition: Option<&TopicPartition>,
        error: ErrorCode,
        now: Now,
    ) {
        let Some(entry) = self.entry_at(&place) else { return };
        let failures = entry.failures;
        entry.failures = failures.saturating_add(1);
        let pause = RETRY_AFTER_MAX.min(RETRY_AFTER * (1 << failures.min(10)));
        let transactional_id = place.id.clone();
        self.retried.increment();
        let number = self.next_retry;
        self.next_retry += 1;
        self.retries.insert((now.monotonic.plus(pause), number), place);
        if failures + 1 < FAILURES_TO_WARN || self.next_warning > now.monotonic {
            return;
        }
        self.next_warning = now.monotonic.plus(WARNING_INTERVAL);
        let waiting = self.retries.len();
        match partition {
            Some(partition) => tracing::warn!(
                %partition, %error, %transactional_id, waiting,
                "a marker cannot be written: nothing behind its transaction can be read committed"
            ),
            None => tracing::warn!(
                %error, %transactional_id, waiting,
                "the record that a transaction is complete cannot be written"
            ),
        }
    }

    /// Tries again what is due.
    pub(super) fn retry_due(&mut self, now: Now) {
        for _ in 0..RETRIES_PER_TURN {
            let first = self.retries.first_entry().filter(|first| first.key().0 <= now.monotonic);
            let Some(place) = first.map(|first| first.remove()) else { return };
            match self.entry_at(&place).map(|entry| &entry.step) {
                Some(Step::Markers { .. }) => self.send_markers(place.partition, &place.id, now),
                Some(Step::Completion) => self.complete(place.partition, &place.id, now),
                _ => {}
            }
        }
    }

    /// What was put off is tried again at the next [`Coordinator::advance`]: why it failed may be gone.
    pub fn hurry(&mut self, now: Now) {
        let put_off = std::mem::take(&mut self.retries);
        self.retries.extend(put_off.into_iter().map(|((_, number), place)| ((now.monotonic, number), place)));
    }

    pub(super) fn next_retry_at(&self) -> Option<Monotonic> {
        self.retries.first_key_value().map(|((at, _), _)| *at)
    }

    /// Tells the partitions the end of a transaction that is decided.
    pub(super) fn send_markers(&mut self, index: PartitionIndex, id: &StrBytes, now: Now) {
        let ticket = self.ticket();
        let Some(partition) = self.partitions.get_mut(&index) else { return };
        let Some(Entry { current: Some(current), step, .. }) = partition.entries.get_mut(id) else { return };
        let missing = match std::mem::replace(step, Step::Nothing) {
            Step::Markers { missing } => missing,
            _ => current.partitions.clone(),
        };
        if missing.is_empty() {
            return self.complete(index, id, now);
        }
        *step = Step::Markers { missing: missing.clone() };
        let marker = Marker {
            producer: Producer::of(current),
            commit: current.state == State::PrepareCommit,
            coordinator_epoch: partition.epoch,
            version: current.client_version,
        };
        self.tickets.insert(ticket, Place { partition: index, epoch: partition.epoch, id: id.clone() });
        self.effects.push(Effect::WriteMarkers { marker, partitions: missing, ticket });
    }

    /// Every partition has its marker.
    fn complete(&mut self, index: PartitionIndex, id: &StrBytes, now: Now) {
        let entry = self.partitions.get(&index).and_then(|partition| partition.entries.get(id));
        let Some(current) = entry.and_then(|entry| entry.current.as_ref()) else { return };
        let target = current.completed(now.wall);
        self.append(index, id, Some(target), Then::Complete);
    }
}
