//! Moves of replicas between log directories (AlterReplicaLogDirs, KIP-113). A copy, the *future* replica, grows in
//! the other directory while the current one serves; when it has caught up, it takes its place.
//!
//! The copy is a log of its own that only file threads touch. The shard plans what is read, and for the last step it
//! holds the appends of the partition back: the rest is copied and made durable, a note says so, the directories
//! change their names, and the queue goes on with the new log. Whenever the process dies, one of the two is whole
//! and known to be (`log::LogDir::note_moved`). A move survives a restart and goes on then.

mod disk;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, select};

use self::disk::{copy_some, open_copy, switch_directories};
pub(super) use self::disk::{finish_interrupted, put_copy_aside};
use super::Shard;
use super::checkpoint::Told;
use super::directories::{Directories, StartEntry};
use super::lifecycle::JOB_POLL;
use super::mesh::ReplyTo;
use super::messages::{CheckpointEntry, CheckpointOffsets, Reply};
use super::placement::PartitionKey;
use super::replica::{Replica, ReplicaState};
use crate::base::{Offset, TopicPartition, clock};
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, spawn};
use crate::log::{DirError, Fault, FileRange, Log, LogError, OpenError, Read, ReadError, ReadRequest};
use crate::metadata::ConfigResource;
use crate::wire::ErrorCode;

/// Copied by one job of a file thread.
const COPY_BYTES: u32 = 1 << 20;

/// So much of a copy may be in the page cache alone; also what its recovery rereads at most.
const UNFLUSHED_BYTES_MAX: u64 = 32 << 20;

/// What moves have to begin before who asked for them is told that they have not yet.
const MOVE_BEGIN_TIME_MAX: Duration = Duration::from_secs(20);

/// How often a move looks whether the cleaning that was under way is given up.
const CLEANING_POLL: Duration = Duration::from_millis(10);

/// How often the note of a move that has ended looks whether it is still needed.
const SAVED_POLL: Duration = Duration::from_millis(500);

/// A move that a full disk refuses is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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
                shard.sleep_in_background(SAVED_POLL).await;
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

/// The task of one move.
struct Mover {
    shard: Rc<Shard>,
    replica: Rc<Replica>,
    under_way: Rc<Move>,
}

/// What there is to copy.
struct Planned {
    log_start: Offset,
    log_end: Offset,
    range: Option<FileRange<OsFiles>>,
    /// Little, if anything, comes behind it.
    is_last: bool,
}

impl Mover {
    async fn run(self, found: Option<StartEntry>) {
        let name = &self.replica.topic_partition;
        let to = self.under_way.directory;
        let path = self.directories().path(to).display().to_string();
        tracing::info!(partition = %name, to = %path, "the replica moves to another log directory");
        let mut copy = None;
        let end = match self.move_all(found, &mut copy).await {
            Ok(end) => end,
            Err(failure) => End::Failed(failure),
        };
        // A copy that stays has its entry in the checkpoints.
        let stays = matches!(end, End::Left) && !self.directories().has_failed(to);
        if !matches!(end, End::Moved) && !stays {
            self.directories().count_partition(to, -1);
            self.under_way.told.withdraw(&self.directories().checkpoints, name, to);
        }
        match end {
            End::Moved => tracing::info!(partition = %name, to = %path, "the replica has moved"),
            End::Cancelled => {
                tracing::info!(partition = %name, to = %path, "the move of the replica is cancelled");
                self.discard(copy).await;
            }
            End::Left => self.leave(copy).await,
            End::Failed(failure) => {
                tracing::error!(partition = %name, to = %path, "the move of the replica failed: {failure}");
                if self.fail(&failure) {
                    self.discard(copy).await;
                } else {
                    self.drop_later(copy);
                }
            }
        }
        self.under_way.note_end();
        let is_current = |moving: &Rc<Move>| Rc::ptr_eq(moving, &self.under_way);
        if !stays && self.replica.moving().as_ref().is_some_and(is_current) {
            self.replica.moving.take();
        }
        if let Some(next) = self.under_way.next.take() {
            let _ = self.shard.alter_directory(self.replica.key, next);
        }
    }

    fn directories(&self) -> &Arc<Directories> {
        &self.shard.settings.directories
    }

    async fn on_thread<R: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Directories) -> R + Send + 'static,
    ) -> R {
        let directories = self.directories().clone();
        let threads = directories.threads.clone();
        threads.run(name, move || work(&directories)).await
    }

    async fn move_all(&self, found: Option<StartEntry>, kept: &mut Option<Copy>) -> Result<End, Failure> {
        let mut copy = match self.open(found).await? {
            Ok(copy) => copy,
            Err(end) => return Ok(end),
        };
        self.under_way.note_copy();
        // The sync of what was copied so far comes before the appends are held.
        let mut is_synced = false;
        loop {
            self.under_way.note(&copy.log);
            self.keep_pace().await;
            if let Some(end) = self.is_over() {
                *kept = Some(copy);
                return Ok(end);
            }
            let planned = match self.plan(copy.log.log_end()).await {
                Ok(planned) => planned,
                Err(stopped) => {
                    *kept = Some(copy);
                    return stopped.map(|()| End::Left);
                }
            };
            let is_near = planned.is_last;
            if is_near && is_synced {
                return self.switch(copy, kept).await;
            }
            is_synced = is_near;
            copy = match self.copy(copy, planned, is_near).await {
                Ok(copy) => copy,
                Err((copy, Failure::Copy(error))) if error.fault().passes() => {
                    tracing::warn!(partition = %self.replica.topic_partition, "the move waits for room: {error}");
                    self.shard.sleep(RETRY_AFTER).await;
                    copy
                }
                Err((copy, failure)) => {
                    *kept = Some(copy);
                    return Err(failure);
                }
            };
        }
    }

    /// Waits as `replica.alter.log.dirs.io.max.bytes.per.second` says, or until the move is over.
    async fn keep_pace(&self) {
        let directories = self.directories().clone();
        while self.is_over().is_none() {
            let limit = self.shard.move_bytes_per_second();
            let wait = directories.moves_throttle().wait(limit, clock::monotonic());
            let Some(wait) = wait else { return };
            self.shard.sleep(wait).await;
            directories.counters.moves_throttled_ms.fetch_add(wait.as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Opens the copy, a new one or the one that was found, and cuts what the current replica does not have.
    async fn open(&self, found: Option<StartEntry>) -> Result<Result<Copy, End>, Failure> {
        // No cleaning begins during a move: of what was copied before it the log would not know that it is dirty.
        while self.replica.cleaning.runs.get() {
            if let Some(end) = self.is_over() {
                return Ok(Err(end));
            }
            self.shard.sleep(CLEANING_POLL).await;
        }
        let current = self.replica.with(|partition| {
            let log = partition.log();
            (log.log_start(), log.config().clone())
        });
        let Ok((log_start, config)) = current else { return Ok(Err(End::Left)) };
        let (to, key) = (self.under_way.directory, self.replica.key);
        let name = self.replica.topic_partition.clone();
        let opened = self
            .on_thread("open future log", move |directories| {
                open_copy(directories, to, key, name, config, log_start, found)
            })
            .await?;
        let Some(epoch) = opened.log.latest_epoch() else { return Ok(Ok(opened)) };
        let known = self.replica.with(|partition| {
            let (_, end) = partition.log().epoch_end(epoch);
            end.0.min(partition.log().log_end().0)
        });
        let Ok(known) = known else { return Ok(Err(End::Left)) };
        let mut copy = opened;
        self.on_thread("cut future log", move |_| {
            let cut = match known {
                // An epoch that the current replica does not know: nothing of it can be trusted.
                ..0 => copy.log.restart_at(log_start, clock::now()),
                end => copy.log.truncate_to(Offset(end), clock::now()),
            };
            cut.map(|()| Ok(copy)).map_err(Failure::Copy)
        })
        .await
    }

    /// Whether the move is to end before it is done.
    fn is_over(&self) -> Option<End> {
        if self.under_way.cancelled.get() || matches!(*self.replica.state.borrow(), ReplicaState::Closed) {
            // On the way down replicas are closed too, but not before their moves have ended.
            return Some(if self.shard.is_stopping() { End::Left } else { End::Cancelled });
        }
        let failed = self.directories().has_failed(self.under_way.directory);
        (failed || self.shard.is_stopping() || self.replica.is_offline()).then_some(End::Left)
    }

    /// What follows `offset` in the current replica; an error says how the move ends: without one, it is left.
    async fn plan(&self, offset: Offset) -> Result<Planned, Result<(), Failure>> {
        loop {
            let planned = self.replica.with(|partition| {
                let log = partition.log_mut();
                let (log_start, log_end) = (log.log_start(), log.log_end());
                let request = ReadRequest {
                    offset,
                    bytes_max: COPY_BYTES,
                    upper_bound: log_end,
                    whole_first_batch: true,
                    with_aborted: false,
                };
                (log_start, log.end_metadata(), log.read(request))
            });
            let Ok((log_start, end, mut read)) = planned else { return Err(Ok(())) };
            let log_end = end.offset;
            loop {
                match read {
                    Ok(Read::Plan(plan)) => {
                        let is_last = match &plan.range {
                            // A plan ends with its segment, too.
                            Some(range) => plan.start.segment == end.segment && range.length < COPY_BYTES,
                            None => true,
                        };
                        return Ok(Planned { log_start, log_end, range: plan.range, is_last });
                    }
                    Ok(Read::NeedsDisk(job)) => {
                        let outcome = self.on_thread("read for a move", move |_| job.run()).await;
                        match self.replica.with(|partition| partition.log_mut().finish_read(outcome)) {
                            Ok(next) => read = next,
                            Err(_) => return Err(Ok(())),
                        }
                    }
                    Err(ReadError::OutOfRange) => {
                        return Ok(Planned { log_start, log_end, range: None, is_last: false });
                    }
                    Err(ReadError::Stale) => break,
                    Err(ReadError::Storage(error)) => return Err(Err(Failure::Source(error))),
                }
            }
        }
    }

    async fn copy(&self, mut copy: Copy, planned: Planned, sync: bool) -> Result<Copy, (Copy, Failure)> {
        let bytes = planned.range.as_ref().map_or(0, |range| u64::from(range.length));
        self.directories().moves_throttle().spend(bytes);
        self.directories().counters.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
        let (copy, copied) = self
            .on_thread("copy log", move |_| {
                let copied = copy_some(&mut copy.log, &planned, sync);
                (copy, copied)
            })
            .await;
        match copied {
            Ok(()) => Ok(copy),
            Err(failure) => Err((copy, failure)),
        }
    }

    /// The last step.
    async fn switch(&self, copy: Copy, kept: &mut Option<Copy>) -> Result<End, Failure> {
        let replica = &self.replica;
        self.under_way.switches.set(true);
        replica.held.set(true);
        // Nothing else may work on the log from here on.
        while replica.is_busy() || replica.with(|partition| partition.is_flushing()) == Ok(true) {
            self.shard.sleep(JOB_POLL).await;
        }
        replica.job_runs.set(true);
        let held = replica.with(|partition| partition.hold_flushes(true));
        let switched = match held {
            Ok(()) => self.switch_held(copy, kept).await,
            Err(_) => {
                *kept = Some(copy);
                Ok(self.is_over().unwrap_or(End::Left))
            }
        };
        // After a switch it is another log's.
        let _ = replica.with(|partition| partition.hold_flushes(false));
        replica.job_runs.set(false);
        replica.held.set(false);
        self.under_way.switches.set(false);
        self.shard.resume(replica);
        self.shard.look_for_jobs(replica);
        switched
    }

    async fn switch_held(&self, mut copy: Copy, kept: &mut Option<Copy>) -> Result<End, Failure> {
        let replica = &self.replica;
        let whole = loop {
            let planned = match self.plan(copy.log.log_end()).await {
                Ok(planned) => planned,
                Err(stopped) => {
                    *kept = Some(copy);
                    return stopped.map(|()| End::Left);
                }
            };
            if planned.range.is_none() && copy.log.log_end() == planned.log_end {
                break planned;
            }
            copy = match self.copy(copy, planned, false).await {
                Ok(copy) => copy,
                Err((copy, failure)) => {
                    *kept = Some(copy);
                    return Err(failure);
                }
            };
        };
        let (from, to) = (replica.directory(), self.under_way.directory);
        let name = replica.topic_partition.clone();
        let switched = self
            .on_thread("switch log directories", move |directories| {
                let mut copy = copy;
                let switched = copy_some(&mut copy.log, &whole, true)
                    .and_then(|()| switch_directories(directories, (from, to), &name, &mut copy));
                (copy, switched)
            })
            .await;
        let (copy, left) = match switched {
            (copy, Ok(left)) => (copy, left),
            (copy, Err(failure)) => {
                *kept = Some(copy);
                return Err(failure);
            }
        };
        self.take_over(copy, from, left).await;
        Ok(End::Moved)
    }

    /// The copy is the partition's log from here on.
    async fn take_over(&self, copy: Copy, from: usize, left: PathBuf) {
        let (replica, shard) = (&self.replica, &self.shard);
        let Copy { log, dir } = copy;
        replica.set_directory(self.under_way.directory);
        self.directories().count_partition(from, -1);
        shard.forget_unflushed(replica);
        let mut new = Some(log);
        let mut committed = Vec::new();
        let old = replica.with(|partition| {
            let log = new.take()?;
            Some(partition.replace_log(*log, &mut committed))
        });
        shard.tell_moved(replica, from, &self.under_way);
        shard.finish_appends(committed);
        let delay = replica.with(|partition| partition.config().file_delete_delay_ms).unwrap_or(0);
        // Its plans name places in the old segments.
        shard.release_fetches(replica.key);
        self.directories().threads.drop_later((old.ok().flatten(), new));
        shard.remove_later(from, left, Duration::from_millis(delay.max(0) as u64));
        shard.forget_move_later(replica.clone(), dir);
    }

    /// Removes the copy.
    async fn discard(&self, copy: Option<Copy>) {
        let Some(Copy { log, dir }) = copy else { return };
        let (to, name) = (self.under_way.directory, self.replica.topic_partition.clone());
        let discarded = self
            .on_thread("discard future log", move |directories| {
                drop(log);
                directories.list[to].log_dir.discard_future(&dir, &name)
            })
            .await;
        match discarded {
            Ok(path) => self.shard.remove_later(to, path, Duration::ZERO),
            Err(error) => tracing::error!("the copy of a cancelled move cannot be renamed: {error}"),
        }
    }

    /// Closes the copy; the next start goes on with it.
    async fn leave(&self, copy: Option<Copy>) {
        let Some(Copy { mut log, .. }) = copy else { return };
        let to = self.under_way.directory;
        if self.directories().has_failed(to) {
            self.directories().threads.drop_later(log);
            return;
        }
        let (log, closed) = self
            .on_thread("close future log", move |_| {
                let closed = log.close(clock::now());
                (log, closed)
            })
            .await;
        self.under_way.note(&log);
        if let Err(error) = closed {
            tracing::error!("the copy of a move was not closed cleanly: {error}");
            self.directories().mark_unclean(to);
        }
    }

    fn drop_later(&self, copy: Option<Copy>) {
        self.directories().mark_unclean(self.under_way.directory);
        self.directories().threads.drop_later(copy.map(|copy| copy.log));
    }

    /// Fails the directory that is to blame; whether the one with the copy is good.
    fn fail(&self, failure: &Failure) -> bool {
        let (from, to) = (self.replica.directory(), self.under_way.directory);
        let (directory, fault) = match failure {
            Failure::Source(error) => {
                self.shard.note_read_error(&self.replica, error);
                return true;
            }
            Failure::Copy(error) => (to, error.fault()),
            Failure::Open(error) => (to, error.fault()),
            Failure::Leave(error) => (from, error.fault()),
            Failure::Arrive(error) => (to, error.fault()),
        };
        if fault == Fault::Disk {
            self.shard.fail_directory(directory, failure);
        }
        fault != Fault::Disk || directory != to
    }
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
