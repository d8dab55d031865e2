//! A shard's table entry for one partition: where its files are and whether it can serve.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use super::appends::AppendToken;
use super::checkpoint::Told;
use super::cleaner::CleaningState;
use super::messages::CheckpointOffsets;
use super::moves::Move;
use super::placement::PartitionKey;
use crate::base::clock::{self, Monotonic};
use crate::base::{Offset, TopicPartition};
use crate::io::os::OsFiles;
use crate::log::FoundPartition;
use crate::metadata;
use crate::partition::Partition;
use crate::wire::ErrorCode;

pub(super) type LivePartition = Partition<OsFiles, AppendToken>;

pub(super) struct Replica {
    pub(super) key: PartitionKey,
    pub(super) topic_partition: TopicPartition,
    /// Index of its log directory.
    directory: Cell<usize>,
    /// On its way to another directory, or the copy waits for the next start.
    pub(super) moving: RefCell<Option<Rc<Move>>>,
    /// Its queue gets no turn: the last step of a move.
    pub(super) held: Cell<bool>,
    pub(super) state: RefCell<ReplicaState>,
    /// In the list of this turn.
    pub(super) is_dirty: Cell<bool>,
    /// A job of its log is on a file thread.
    pub(super) job_runs: Cell<bool>,
    pub(super) cleaning: CleaningState,
    /// A file thread opens its log again, or a file that its appends wait for.
    pub(super) prepare_runs: Cell<bool>,
    /// It could not be opened for want of room or descriptors, and will be.
    pub(super) opens_later: Cell<bool>,
    /// The metadata has it on this broker no more: it takes no part until it is deleted.
    pub(super) is_leaving: Cell<bool>,
    /// What it lacks of what it is taken to have, until it has followed another one.
    pub(super) lack: Cell<Option<Lack>>,
    /// May write while its directory is full.
    pub(super) uses_reserve: bool,
    /// What the checkpoint files are to say of it.
    pub(super) told: Told,
    /// What the start found of it: its checkpoint entry for as long as its log is not open.
    found: RefCell<Option<Box<FoundPartition>>>,
    /// Bytes appended since the last flush began.
    pub(super) unflushed_bytes: Cell<u64>,
    /// How many of them the system has been asked to write.
    pub(super) written_back_bytes: Cell<u64>,
    /// A file thread asks for that.
    pub(super) write_back_runs: Cell<bool>,
    /// When the first of them was appended.
    pub(super) unflushed_since: Cell<Monotonic>,
    /// In the sweep's list of those with unflushed bytes.
    pub(super) is_swept: Cell<bool>,
    pub(super) last_used: Cell<Monotonic>,
}

/// What is gone of a replica's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lack {
    /// The partition was there before this process, and no log of it was found.
    All,
    /// It ends before what was known to be committed.
    Below(Offset),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::All => f.write_str("a log that was made anew, for none was found"),
            Lack::Below(committed) => {
                write!(f, "a log that ends before {committed}, up to where it was committed")
            }
        }
    }
}

pub(super) enum ReplicaState {
    /// A file thread opens its log.
    Opening,
    Online(Box<LivePartition>),
    /// Its directory has failed, or its log cannot be opened.
    Offline,
    /// Closed or deleted; what still holds the entry finds nothing.
    Closed,
}

impl Replica {
    pub(super) fn new(
        key: PartitionKey,
        topic_partition: TopicPartition,
        directory: usize,
        found: Option<FoundPartition>,
    ) -> Rc<Self> {
        let uses_reserve = metadata::is_internal_topic(&topic_partition.topic);
        Rc::new(Self {
            key,
            topic_partition,
            directory: Cell::new(directory),
            moving: RefCell::default(),
            held: Cell::new(false),
            state: RefCell::new(ReplicaState::Opening),
            is_dirty: Cell::new(false),
            job_runs: Cell::new(false),
            cleaning: CleaningState::default(),
            prepare_runs: Cell::new(false),
            opens_later: Cell::new(false),
            is_leaving: Cell::new(false),
            lack: Cell::new(None),
            uses_reserve,
            told: Told::default(),
            found: RefCell::new(found.map(Box::new)),
            unflushed_bytes: Cell::new(0),
            written_back_bytes: Cell::new(0),
            write_back_runs: Cell::new(false),
            unflushed_since: Cell::new(Monotonic::ZERO),
            is_swept: Cell::new(false),
            last_used: Cell::new(clock::monotonic()),
        })
    }

    /// The number of its log directory.
    pub(super) fn directory(&self) -> usize {
        self.directory.get()
    }

    pub(super) fn set_directory(&self, directory: usize) {
        self.directory.set(directory);
    }

    pub(super) fn moving(&self) -> Option<Rc<Move>> {
        self.moving.borrow().clone()
    }

    /// A file thread works on its log.
    pub(super) fn is_busy(&self) -> bool {
        self.job_runs.get() || self.prepare_runs.get() || self.cleaning.slice_runs.get()
    }

    /// Runs `act` on the partition if it can serve, else says why not.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut LivePartition) -> R) -> Result<R, ErrorCode> {
        match &mut *self.state.borrow_mut() {
            ReplicaState::Online(partition) => Ok(act(partition)),
            ReplicaState::Opening => Err(ErrorCode::NotLeaderOrFollower),
            ReplicaState::Offline => Err(ErrorCode::KafkaStorageError),
            ReplicaState::Closed => Err(ErrorCode::UnknownTopicOrPartition),
        }
    }

    /// What the start found of it, as long as its log was not opened: else its offsets would fall out of the
    /// checkpoint files, and records deleted by DeleteRecords would come back with its log.
    pub(super) fn found_offsets(&self) -> Option<CheckpointOffsets> {
        self.found.borrow().as_deref().map(CheckpointOffsets::from)
    }

    /// Its log is open: from here on it speaks for itself.
    pub(super) fn go_online(&self, partition: LivePartition) {
        *self.state.borrow_mut() = ReplicaState::Online(Box::new(partition));
        *self.found.borrow_mut() = None;
    }

    pub(super) fn is_offline(&self) -> bool {
        matches!(*self.state.borrow(), ReplicaState::Offline)
    }

    /// Takes the partition out, leaving `next`.
    pub(super) fn take(&self, next: ReplicaState) -> Option<LivePartition> {
        match std::mem::replace(&mut *self.state.borrow_mut(), next) {
            ReplicaState::Online(partition) => Some(*partition),
            _ => None,
        }
    }
}
