//! Moves of replicas between log directories (AlterReplicaLogDirs, KIP-113). A copy, the *future* replica, grows in
//! the other directory while the current one serves; when it has caught up, it takes its place.
//!
//! The copy is a log of its own that only file threads touch. The shard plans what is read, and for the last step it
//! holds the appends of the partition back: the rest is copied and made durable, a note says so, the directories
//! change their names, and the queue goes on with the new log. Whenever the process dies, one of the two is whole
//! and known to be (`log::LogDir::note_moved`). A move survives a restart and goes on then.

mod disk;
mod mover;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, select};

pub(super) use self::disk::{finish_interrupted, put_copy_aside};
use self::mover::Mover;
use super::Shard;
use super::checkpoint::Told;
use super::directories::StartEntry;
use super::mesh::ReplyTo;
use super::messages::{CheckpointEntry, CheckpointOffsets, Reply};
use super::placement::PartitionKey;
use super::replica::{Replica, ReplicaState};
use crate::base::{Offset, TopicPartition};
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, spawn};
use crate::log::{DirError, FileRange, Log, LogError, OpenError};
use crate::metadata::ConfigResource;
use crate::wire::ErrorCode;

/// So much of a copy may be in the page cache alone; also what its recovery rereads at most.
const UNFLUSHED_BYTES_MAX: u64 = 32 << 20;

/// What moves have to begin before who asked for them is told that they have not yet.
const MOVE_BEGIN_TIME_MAX: Duration = Duration::from_secs(20);

/// How often the note of a move that has ended looks whether it is still needed.
const SAVED_POLL: Duration = Duration::from_millis(500);

/// One replica's move.
pub(super) struct Move {
    /// Where to.
    pub(super) directory: usize,
    cancelled: Cell<bool>,
    /// The last step is under way: the move cannot be cancelled any more.
    switches: Cell<bool>,
    /// Another move was asked for during the last step: where to.
    next: Cell<Option<usize>>,
    /// The copy has its directory: a start finds it, and the move goes on.
    has_copy: Cell<bool>,
    /// Dropped when it has, or the move has ended.
    awaited: RefCell<Vec<oneshot::Sender<()>>>,
    /// The copy is closed and stays for the next start.
    ended: Cell<bool>,
    progress: Cell<Progress>,
    /// What the checkpoint files are to say of the copy.
    pub(super) told: Told,
}

/// How far a copy is.
#[derive(Clone, Copy, Default)]
struct Progress {
    recovery_point: Offset,
    log_start: Offset,
    log_end: Offset,
    bytes: u64,
}

impl Move {
    fn to(directory: usize) -> Rc<Self> {
        Rc::new(Self {
            directory,
            cancelled: Cell::new(false),
            switches: Cell::new(false),
            next: Cell::new(None),
            has_copy: Cell::new(false),
            awaited: RefCell::default(),
            ended: Cell::new(false),
            progress: Cell::default(),
            told: Told::default(),
        })
    }

    fn note_copy(&self) {
        self.has_copy.set(true);
        self.awaited.take();
    }

    fn note_end(&self) {
        self.ended.set(true);
        self.awaited.take();
    }

    /// Ready when the copy has its directory or the move has ended; `None`: that is so already.
    fn beginning(&self) -> Option<oneshot::Receiver<()>> {
        if self.has_copy.get() || self.ended.get() {
            return None;
        }
        let (awaited, beginning) = oneshot::channel();
        self.awaited.borrow_mut().push(awaited);
        Some(beginning)
    }

    pub(super) fn log_end(&self) -> Offset {
        self.progress.get().log_end
    }

    pub(super) fn bytes(&self) -> u64 {
        self.progress.get().bytes
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    pub(super) fn checkpoint_entry(&self, topic_partition: &TopicPartition) -> CheckpointEntry {
        let topic_partition = topic_partition.clone();
        CheckpointEntry { directory: self.directory, topic_partition, offsets: self.offsets() }
    }

    pub(super) fn offsets(&self) -> CheckpointOffsets {
        let Progress { recovery_point, log_start, log_end, .. } = self.progress.get();
        CheckpointOffsets {
            recovery_point: Some(recovery_point),
            high_watermark: log_end,
            log_start,
            // What compaction has done is known once the copy takes its place.
            cleaned: None,
        }
    }

    fn note(&self, log: &Log<OsFiles>) {
        self.progress.set(Progress {
            recovery_point: log.recovery_point(),
            log_start: log.log_start(),
            log_end: log.log_end(),
            bytes: log.size(),
        });
    }
}

/// Why a move is over.
enum End {
    Moved,
    /// The copy is not wanted any more.
    Cancelled,
    /// The copy stays where it is: the broker stops, or the current replica is offline.
    Left,
    Failed(Failure),
}

/// What went wrong, and whose fault it is.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("reading the current replica: {0}")]
    Source(#[source] LogError),
    #[error("copying: {0}")]
    Copy(#[source] LogError),
    #[error("opening the copy: {0}")]
    Open(#[from] OpenError),
    #[error("renaming in the directory it leaves: {0}")]
    Leave(#[source] DirError),
    #[error("in the directory it goes to: {0}")]
    Arrive(#[source] DirError),
}

/// A copy in progress: the log and where its directory is.
struct Copy {
    log: Box<Log<OsFiles>>,
    dir: PathBuf,
}

impl Shard {
    /// Has replicas moved to directories; answers when the moves have begun such that they outlast the process.
    pub(super) fn alter_directories(
        self: &Rc<Self>,
        mut reply_to: ReplyTo,
        targets: Vec<(PartitionKey, usize)>,
    ) {
        let mut begun = Vec::with_capacity(targets.len());
        let mut beginnings = Vec::with_capacity(targets.len());
        for (key, to) in targets {
            let answer = self.alter_directory(key, to);
            let moving = answer.ok().and_then(|()| self.replica(key)).and_then(|replica| replica.moving());
            beginnings.push(moving.and_then(|moving| moving.beginning()));
            begun.push(answer);
        }
        self.mesh.park(&mut reply_to);
        let shard = self.clone();
        spawn(Queue::Control, "alter directories", async move {
            let late = await_beginnings(beginnings, shard.sleep(MOVE_BEGIN_TIME_MAX)).await;
            for place in late {
                begun[place] = Err(ErrorCode::RequestTimedOut);
                shard.counters.moves_begun_late.increment();
            }
            shard.mesh.push_reply(reply_to, Reply::AlterDirectories(begun));
        })
        .detach();
    }

    /// Has the replica moved to the directory `to` (`ReplicaManager.alterReplicaLogDirs`).
    fn alter_directory(self: &Rc<Self>, key: PartitionKey, to: usize) -> Result<(), ErrorCode> {
        let replica = self.replica(key).ok_or(ErrorCode::ReplicaNotAvailable)?;
        let directories = &self.settings.directories;
        if directories.has_failed(to) {
            return Err(ErrorCode::KafkaStorageError);
        }
        match *replica.state.borrow() {
            ReplicaState::Online(_) => {}
            ReplicaState::Offline => return Err(ErrorCode::KafkaStorageError),
            ReplicaState::Opening | ReplicaState::Closed => return Err(ErrorCode::ReplicaNotAvailable),
        }
        if let Some(under_way) = replica.moving() {
            if under_way.directory == to {
                under_way.next.set(None);
                return Ok(());
            }
            if under_way.switches.get() {
                under_way.next.set(Some(to));
                return Ok(());
            }
            under_way.cancelled.set(true);
            replica.moving.take();
        }
        if replica.directory() == to {
            return Ok(());
        }
        if directories.any_failed() {
            // As Kafka: the partition may be in the one that is away.
            return Err(ErrorCode::KafkaStorageError);
        }
        self.start_move(&replica, to, None);
        Ok(())
    }

    /// Removes the note of a move that has ended in `dir`, once what it tells is in the directory's checkpoint files.
    pub(super) fn forget_move_later(self: &Rc<Self>, replica: Rc<Replica>, dir: PathBuf) {
        let shard = self.clone();
        spawn(Queue::Back, "moved replica", async move {
            let (directories, directory) = (shard.settings.directories.clone(), replica.directory());
            while !replica.told.is_saved(&directories.checkpoints, directory) {
                shard.sleep(SAVED_POLL).await;
                // The next start finds the note otherwise, and goes by it.
                let is_there = replica.with(|partition| partition.log().dir() == dir);
                if is_there != Ok(true) || shard.is_stopping() || directories.has_failed(directory) {
                    return;
                }
            }
            let threads = directories.threads.clone();
            let forgotten = threads
                .run("forget move", move || directories.list[directory].log_dir.forget_moved(&dir))
                .await;
            if let Err(error) = forgotten {
                tracing::warn!("the note of a move is still there: {error}");
            }
        })
        .detach();
    }

    fn move_bytes_per_second(&self) -> u64 {
        let image = self.image();
        let broker = image.overrides(&ConfigResource::Broker(self.settings.broker));
        let default = image.overrides(&ConfigResource::BrokerDefault);
        self.settings.config.levels(broker, default).move_bytes_per_second()
    }

    /// Starts a move, or goes on with the one whose copy the start has found.
    pub(super) fn start_move(self: &Rc<Self>, replica: &Rc<Replica>, to: usize, found: Option<StartEntry>) {
        let under_way = Move::to(to);
        *replica.moving.borrow_mut() = Some(under_way.clone());
        self.settings.directories.count_partition(to, 1);
        let mover = Mover { shard: self.clone(), replica: replica.clone(), under_way };
        spawn(Queue::Back, "move replica", mover.run(found)).detach();
    }
}

/// The places of those that have not come when `time_out` has.
async fn await_beginnings(
    beginnings: Vec<Option<oneshot::Receiver<()>>>,
    time_out: impl Future<Output = ()>,
) -> Vec<usize> {
    let mut time_out = pin!(time_out);
    let mut is_over = false;
    let mut late = Vec::new();
    for (place, beginning) in beginnings.into_iter().enumerate() {
        let Some(mut beginning) = beginning else { continue };
        if !is_over {
            is_over = matches!(select(&mut beginning, time_out.as_mut()).await, Either::Right(_));
        }
        // Nothing is sent: the other end is dropped.
        if is_over && beginning.try_recv() == Ok(None) {
            late.push(place);
        }
    }
    late
}

/// What there is to copy.
struct Planned {
    log_start: Offset,
    log_end: Offset,
    range: Option<FileRange<OsFiles>>,
    /// Little, if anything, comes behind it.
    is_last: bool,
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::{pending, ready};

    use super::*;

    #[test]
    fn all_who_asked_for_a_move_hear_that_it_has_begun() {
        let moves = [Move::to(1), Move::to(1)];
        let first = vec![None, moves[0].beginning(), moves[1].beginning()];
        let again = vec![moves[0].beginning()];
        moves[0].note_copy();
        moves[1].note_end();
        assert!(await_beginnings(first, pending()).now_or_never().unwrap().is_empty());
        assert!(await_beginnings(again, pending()).now_or_never().unwrap().is_empty());
        assert!(moves[0].beginning().is_none());
    }

    #[test]
    fn a_move_that_does_not_begin_in_time_is_told_and_no_other() {
        let moves = [Move::to(1), Move::to(1), Move::to(1)];
        let beginnings = moves.iter().map(|under_way| under_way.beginning()).collect();
        moves[1].note_copy();
        assert_eq!(await_beginnings(beginnings, ready(())).now_or_never().unwrap(), [0, 2]);
    }
}
