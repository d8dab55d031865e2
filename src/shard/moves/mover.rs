//! The task of one move: fills the copy, and gives it the place of the replica when it has caught up.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::disk::{copy_some, open_copy, switch_directories};
use super::{Copy, End, Failure, Move, Planned};
use crate::base::{Offset, clock};
use crate::log::{Fault, Read, ReadError, ReadRequest};
use crate::shard::Shard;
use crate::shard::directories::{Directories, StartEntry};
use crate::shard::lifecycle::JOB_POLL;
use crate::shard::replica::{Replica, ReplicaState};

/// Copied by one job of a file thread.
const COPY_BYTES: u32 = 1 << 20;

/// How often a move looks whether the cleaning that was under way is given up.
const CLEANING_POLL: Duration = Duration::from_millis(10);

/// A move that a full disk refuses is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The task of one move.
pub(super) struct Mover {
    pub shard: Rc<Shard>,
    pub replica: Rc<Replica>,
    pub under_way: Rc<Move>,
}

impl Mover {
    pub async fn run(self, found: Option<StartEntry>) {
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
        shard.tell_directory(replica);
        self.directories().count_partition(from, -1);
        shard.forget_unflushed(replica);
        let mut new = Some(log);
        let mut committed = Vec::new();
        let old = replica.with(|partition| {
            let log = new.take()?;
            Some(partition.replace_log(*log, clock::now(), &mut committed))
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
