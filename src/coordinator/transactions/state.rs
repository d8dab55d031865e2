//! What is kept of a transactional id, and the steps by which it changes (Kafka's `TransactionMetadata`).
//! Each step makes the next value out of the present one and changes nothing.

use std::collections::BTreeSet;

use crate::base::clock::Timestamp;
use crate::base::{ProducerEpoch, ProducerId, TopicPartition};
use crate::wire::ErrorCode;

/// "None" for an epoch.
pub(super) const NO_EPOCH: ProducerEpoch = ProducerEpoch(-1);
/// From here on no producer gets an epoch: one more is needed to fence the last one.
const EPOCH_EXHAUSTED: ProducerEpoch = ProducerEpoch(i16::MAX - 1);

/// The level of the feature `transaction.version`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum TransactionVersion {
    #[default]
    V0,
    /// Records may have tagged fields.
    V1,
    /// Every transaction has an epoch of its own, and a produce request adds its partitions (KIP-890).
    V2,
}

impl TransactionVersion {
    /// A level that is not known counts as the highest one that is.
    pub fn from_level(level: i16) -> Self {
        match level {
            ..=0 => Self::V0,
            1 => Self::V1,
            2.. => Self::V2,
        }
    }

    pub fn level(self) -> i16 {
        match self {
            Self::V0 => 0,
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    /// Whether the end of a transaction raises the producer's epoch.
    pub fn bumps_epoch(self) -> bool {
        self == Self::V2
    }
}

/// Where a transaction stands. The numbers and names are Kafka's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    /// There was none yet since the producer was initialized.
    Empty,
    Ongoing,
    /// Its end is decided, the markers are on their way.
    PrepareCommit,
    PrepareAbort,
    CompleteCommit,
    CompleteAbort,
    /// The id has expired: until its tombstone is written.
    Dead,
    /// Passed through within one step when a producer is fenced in the middle of a transaction; never kept.
    PrepareEpochFence,
}

impl State {
    pub const ALL: [State; 8] = [
        State::Empty,
        State::Ongoing,
        State::PrepareCommit,
        State::PrepareAbort,
        State::CompleteCommit,
        State::CompleteAbort,
        State::Dead,
        State::PrepareEpochFence,
    ];

    pub fn id(self) -> i8 {
        match self {
            State::Empty => 0,
            State::Ongoing => 1,
            State::PrepareCommit => 2,
            State::PrepareAbort => 3,
            State::CompleteCommit => 4,
            State::CompleteAbort => 5,
            State::Dead => 6,
            State::PrepareEpochFence => 7,
        }
    }

    pub fn from_id(id: i8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.id() == id)
    }

    pub fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::Ongoing => "Ongoing",
            State::PrepareCommit => "PrepareCommit",
            State::PrepareAbort => "PrepareAbort",
            State::CompleteCommit => "CompleteCommit",
            State::CompleteAbort => "CompleteAbort",
            State::Dead => "Dead",
            State::PrepareEpochFence => "PrepareEpochFence",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether a transaction may come from `previous` to this state.
    pub fn may_follow(self, previous: State) -> bool {
        use State::{CompleteAbort, CompleteCommit, Empty, Ongoing, PrepareAbort, PrepareCommit};
        match self {
            State::Empty => matches!(previous, Empty | CompleteCommit | CompleteAbort),
            State::Ongoing => matches!(previous, Ongoing | Empty | CompleteCommit | CompleteAbort),
            State::PrepareCommit => previous == Ongoing,
            // A transaction to which nothing was added can be aborted too (KIP-890).
            State::PrepareAbort => {
                matches!(
                    previous,
                    Ongoing | State::PrepareEpochFence | Empty | CompleteCommit | CompleteAbort
                )
            }
            State::CompleteCommit => previous == PrepareCommit,
            State::CompleteAbort => previous == PrepareAbort,
            State::Dead => matches!(previous, Empty | CompleteCommit | CompleteAbort),
            State::PrepareEpochFence => previous == Ongoing,
        }
    }

    /// The end is decided and not everybody has been told.
    pub fn is_prepared(self) -> bool {
        matches!(self, State::PrepareCommit | State::PrepareAbort)
    }

    /// Whether a record may have it.
    pub fn is_kept(self) -> bool {
        !matches!(self, State::Dead | State::PrepareEpochFence)
    }

    /// Whether an id in this state may expire.
    pub fn may_expire(self) -> bool {
        State::Dead.may_follow(self)
    }
}

/// A transactional id (`TransactionLogValue`, but for `last_epoch`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    pub producer_id: ProducerId,
    /// The producer id before the last step.
    pub previous_producer_id: ProducerId,
    /// The id that takes over when the transaction is complete; none while there are epochs left.
    pub next_producer_id: ProducerId,
    pub epoch: ProducerEpoch,
    /// The epoch before this one when its own producer asked for a new one: recognises the question asked again.
    /// Lost by a restart, as in Kafka, whose record has no place for it.
    pub last_epoch: ProducerEpoch,
    pub timeout_ms: i32,
    pub state: State,
    pub partitions: BTreeSet<TopicPartition>,
    /// [`Timestamp::NONE`] before the first transaction of an epoch.
    pub started_at: Timestamp,
    pub updated_at: Timestamp,
    /// What the client spoke when it last changed the transaction.
    pub client_version: TransactionVersion,
}

impl Transaction {
    /// A new transactional id, before its producer has an epoch.
    pub fn created(producer_id: ProducerId, timeout_ms: i32, now: Timestamp) -> Self {
        Self {
            producer_id,
            previous_producer_id: ProducerId::NONE,
            next_producer_id: ProducerId::NONE,
            epoch: NO_EPOCH,
            last_epoch: NO_EPOCH,
            timeout_ms,
            state: State::Empty,
            partitions: BTreeSet::new(),
            started_at: Timestamp::NONE,
            updated_at: now,
            client_version: TransactionVersion::V0,
        }
    }

    /// Whether this producer id has no epoch left to give.
    pub fn is_exhausted(&self) -> bool {
        is_exhausted(self.epoch)
    }

    /// The last moment of the transaction under way. None where another coordinator decides the end (KIP-939).
    pub fn times_out_after(&self) -> Option<Timestamp> {
        let may = self.state == State::Ongoing && self.timeout_ms != i32::MAX;
        may.then(|| Timestamp(self.started_at.0.saturating_add(i64::from(self.timeout_ms))))
    }

    pub fn is_timed_out(&self, now: Timestamp) -> bool {
        self.times_out_after().is_some_and(|last| last < now)
    }

    /// When an id that is not used any more is forgotten.
    pub fn expires_at(&self, expiration_ms: i64) -> Option<Timestamp> {
        self.state.may_expire().then(|| Timestamp(self.updated_at.0.saturating_add(expiration_ms)))
    }

    /// A producer starts, or its own next epoch when it says which one it had (KIP-360).
    pub fn initialized(
        &self,
        expected: Option<ProducerEpoch>,
        timeout_ms: i32,
        now: Timestamp,
    ) -> Result<Self, ErrorCode> {
        if self.is_exhausted() {
            // Kafka fails where it should not come to: a retry with an epoch before the last one.
            return Err(ErrorCode::UnknownServerError);
        }
        let bumped = ProducerEpoch(self.epoch.0 + 1);
        let (epoch, last_epoch) = match expected {
            None => (bumped, NO_EPOCH),
            Some(expected) if self.epoch == NO_EPOCH || expected == self.epoch => (bumped, self.epoch),
            // It was answered before, and the answer was lost.
            Some(expected) if expected == self.last_epoch => (self.epoch, self.last_epoch),
            Some(_) => return Err(ErrorCode::ProducerFenced),
        };
        Ok(Self { epoch, last_epoch, ..self.emptied(timeout_ms, now) })
    }

    /// The epochs of the producer id are used up: another id.
    pub fn rotated(
        &self,
        producer_id: ProducerId,
        keeps_last_epoch: bool,
        timeout_ms: i32,
        now: Timestamp,
    ) -> Self {
        let last_epoch = if keeps_last_epoch { self.epoch } else { NO_EPOCH };
        Self { producer_id, epoch: ProducerEpoch(0), last_epoch, ..self.emptied(timeout_ms, now) }
    }

    fn emptied(&self, timeout_ms: i32, now: Timestamp) -> Self {
        Self {
            timeout_ms,
            partitions: BTreeSet::new(),
            started_at: Timestamp::NONE,
            updated_at: now,
            ..self.next(State::Empty)
        }
    }

    /// Partitions are added; the first ones begin the transaction.
    pub fn with_partitions(
        &self,
        added: &BTreeSet<TopicPartition>,
        version: TransactionVersion,
        now: Timestamp,
    ) -> Self {
        let started_at = if self.state == State::Ongoing { self.started_at } else { now };
        let mut partitions = self.partitions.clone();
        partitions.extend(added.iter().cloned());
        Self { partitions, started_at, updated_at: now, client_version: version, ..self.next(State::Ongoing) }
    }

    /// The end is decided. `next_producer_id` is one if the version bumps epochs and there is none left.
    pub fn prepared(
        &self,
        commit: bool,
        version: TransactionVersion,
        next_producer_id: ProducerId,
        now: Timestamp,
    ) -> Self {
        let (epoch, last_epoch) = match version.bumps_epoch() {
            true => (ProducerEpoch(self.epoch.0.saturating_add(1)), self.epoch),
            false => (self.epoch, self.last_epoch),
        };
        // Nothing was added to it.
        let started_at = if self.state == State::Ongoing { self.started_at } else { now };
        Self {
            epoch,
            last_epoch,
            next_producer_id,
            started_at,
            updated_at: now,
            client_version: version,
            ..self.next(if commit { State::PrepareCommit } else { State::PrepareAbort })
        }
    }

    /// The transaction is aborted over its producer's head, which finds its epoch taken. Nobody is given the
    /// epoch that the markers carry.
    pub fn fenced(&self, version: TransactionVersion, next_producer_id: ProducerId, now: Timestamp) -> Self {
        assert!(State::PrepareEpochFence.may_follow(self.state), "only what is under way is fenced");
        if version.bumps_epoch() {
            return self.prepared(false, version, next_producer_id, now);
        }
        let epoch = ProducerEpoch(self.epoch.0.saturating_add(1));
        Self { epoch, last_epoch: NO_EPOCH, ..self.prepared(false, version, ProducerId::NONE, now) }
    }

    /// Every partition has its marker.
    pub fn completed(&self, now: Timestamp) -> Self {
        let (producer_id, epoch) = match self.client_version.bumps_epoch() && self.next_producer_id.is_some()
        {
            true => (self.next_producer_id, ProducerEpoch(0)),
            false => (self.producer_id, self.epoch),
        };
        let state =
            if self.state == State::PrepareCommit { State::CompleteCommit } else { State::CompleteAbort };
        Self {
            producer_id,
            epoch,
            next_producer_id: ProducerId::NONE,
            partitions: BTreeSet::new(),
            updated_at: now,
            ..self.next(state)
        }
    }

    fn next(&self, state: State) -> Self {
        assert!(state.may_follow(self.state), "a transaction goes from {:?} to {state:?}", self.state);
        Self { state, previous_producer_id: self.producer_id, ..self.clone() }
    }
}

pub(super) fn is_exhausted(epoch: ProducerEpoch) -> bool {
    epoch >= EPOCH_EXHAUSTED
}
