//! One partition on its owner shard: the queue of appends, the high watermark, what acknowledgements wait
//! for. A state machine over [`Log`]: it never spawns, never reads a clock, never waits for the disk. The
//! shard calls [`Partition::enqueue`] for each batch, [`Partition::turn`] once per turn, and runs the jobs
//! it is given on file threads.
//!
//! It leads or it follows, as [`Partition::assign`] is told. With one replica the high watermark is the log end;
//! under `kuring.durability=fsync` it is what `fdatasync` covers, so that no consumer sees and no producer is told
//! of a record that a power cut could take. With several the followers have a part in it ([`Leadership`]), and a
//! follower goes by what its leader says.

mod append;
mod follow;
mod leadership;
mod read;
mod role;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

pub use append::{Acks, AppendFailure, Committed, QueuedAppend, Turn};
pub use follow::{Cut, Followed, FollowedRecords, NotFollowed, PlannedCut, Position};
pub use leadership::{AlteredIsr, Assignment, Brokers, FollowerFetch, IsrProposal, Leadership};
pub use read::{EpochEnd, ReadOutcome, Waterline};
pub use role::Assigned;
pub use slots::{Slots, UNFINISHED_MAX};

use crate::base::clock::Now;
use crate::base::{LeaderEpoch, Offset, TopicId};
use crate::config::{Durability, LogConfig};
use crate::io::Files;
use crate::log::{
    Clean, CleanSettings, Cleanable, FlushJob, FlushOutcome, Guard, Log, LogError, Outcome, PrepareOutcome,
    VerificationQuery,
};
use crate::wire::ErrorCode;

/// One replica. `T` names the request that an append belongs to.
pub struct Partition<F: Files, T> {
    log: Log<F>,
    topic_id: TopicId,
    /// Of whoever leads; [`LeaderEpoch::NONE`] until it was told.
    leader_epoch: LeaderEpoch,
    role: role::Role,
    config: Arc<LogConfig>,
    durability: Durability,
    high_watermark: Offset,
    queue: VecDeque<append::Queued<T>>,
    /// Written, waiting for the high watermark to pass them, and for this replica's disk alone; ascending, but for
    /// batches that were there already, which wait for those before them.
    uncommitted: VecDeque<append::Waiting<T>>,
    unsynced: VecDeque<append::Waiting<T>>,
    flushing: bool,
    /// What is queued waits until a file of the log was opened or made.
    preparing: bool,
    /// Shared with the other partitions of the shard.
    slots: Slots,
}

impl<F: Files, T> Partition<F, T> {
    /// A replica over an open log, which waits to be told its part ([`Partition::assign`]). `high_watermark` is what
    /// was known of it when the log was closed.
    pub fn resume(
        mut log: Log<F>,
        topic_id: TopicId,
        high_watermark: Offset,
        config: Arc<LogConfig>,
        durability: Durability,
    ) -> Self {
        let high_watermark = high_watermark.min(log.log_end()).max(log.log_start());
        log.high_watermark_advanced(high_watermark);
        Self {
            log,
            topic_id,
            leader_epoch: LeaderEpoch::NONE,
            role: role::Role::Idle,
            config,
            durability,
            high_watermark,
            queue: VecDeque::new(),
            uncommitted: VecDeque::new(),
            unsynced: VecDeque::new(),
            flushing: false,
            preparing: false,
            slots: Slots::default(),
        }
    }

    /// Shares the places for half decompressed batches with the other partitions of the shard.
    pub fn share_slots(&mut self, slots: Slots) {
        self.slots = slots;
    }

    pub fn topic_id(&self) -> TopicId {
        self.topic_id
    }

    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    pub fn log(&self) -> &Log<F> {
        &self.log
    }

    /// For the driver's jobs ([`Log::next_job`], retention, checkpoints).
    pub fn log_mut(&mut self) -> &mut Log<F> {
        &mut self.log
    }

    /// Ends the partition's life on this shard, for closing or deleting its log.
    pub fn into_log(self) -> Log<F> {
        self.log
    }

    pub fn config(&self) -> &Arc<LogConfig> {
        &self.config
    }

    pub fn set_config(&mut self, config: Arc<LogConfig>) {
        self.log.set_config(config.clone());
        self.config = config;
    }

    /// The end of what consumers may read.
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// The end of what `read_committed` consumers may read.
    pub fn last_stable(&self) -> Offset {
        match self.log.first_unstable() {
            Some(unstable) => unstable.min(self.high_watermark),
            None => self.high_watermark,
        }
    }

    /// The start of a flush that is due: by `flush.messages` and `flush.ms`, or because appends wait for it.
    /// At most one is under way; the next covers all that came meanwhile.
    pub fn flush_due(&mut self, now: Now) -> Option<FlushJob<F>> {
        if self.flushing {
            return None;
        }
        let wanted = match self.durability {
            Durability::Fsync => self.log.flushed() < self.log.log_end(),
            Durability::PageCache => self.log.flush_due(now),
        };
        if wanted { self.start_flush() } else { None }
    }

    /// The start of a flush, due or not; `None` when one is under way or there is nothing to flush.
    pub fn start_flush(&mut self) -> Option<FlushJob<F>> {
        if self.flushing {
            return None;
        }
        let job = self.log.flush_job()?;
        self.flushing = true;
        Some(job)
    }

    /// The start of a flush of what has been dirty for long, and a checkpoint behind it: a start after a crash reads no more
    /// again than what came since.
    pub fn start_overdue_flush(&mut self) -> Option<FlushJob<F>> {
        self.log.request_checkpoint();
        self.start_flush()
    }

    /// Takes the result of a flush; true when the high watermark moved. An error takes the directory
    /// offline: what the file holds is not known any more.
    pub fn finish_flush(
        &mut self,
        outcome: FlushOutcome,
        now: Now,
        committed: &mut Vec<Committed<T>>,
    ) -> Result<bool, LogError> {
        self.flushing = false;
        self.log.finish_flush(outcome, now)?;
        Ok(self.advance_high_watermark(now, committed))
    }

    /// Takes the outcome of a job of the log's upkeep, which may have made records durable; true when the high
    /// watermark moved. An error takes the directory offline.
    pub fn finish_job(
        &mut self,
        outcome: Outcome<F>,
        now: Now,
        committed: &mut Vec<Committed<T>>,
    ) -> Result<bool, LogError> {
        self.preparing = false;
        self.log.finish(outcome, now)?;
        Ok(self.advance_high_watermark(now, committed))
    }

    /// What compaction can clean of the log, when the checkpoint file has the recovery point `saved`.
    pub fn cleanable(&self, saved: Offset, now: Now) -> Option<Cleanable> {
        self.log.cleanable(self.last_stable().min(saved), now)
    }

    /// Begins to clean the log; `None`: there is nothing to clean.
    pub fn start_clean(&self, saved: Offset, settings: CleanSettings, now: Now) -> Option<Box<Clean<F>>> {
        self.log.start_clean(self.last_stable().min(saved), settings, now)
    }

    /// Takes what a [`PrepareJob`](crate::log::PrepareJob) provided: what is queued may have its turn. An error takes the directory
    /// offline.
    pub fn finish_prepare(&mut self, outcome: PrepareOutcome<F>, now: Now) -> Result<(), LogError> {
        self.preparing = false;
        self.log.finish_prepare(outcome, now)
    }

    /// Whether batches wait for a turn.
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    pub fn is_flushing(&self) -> bool {
        self.flushing
    }

    /// While they are held no flush begins. None may be under way.
    pub fn hold_flushes(&mut self, hold: bool) {
        self.flushing = hold;
    }

    /// Goes on with `log`, a whole copy of its log on the disk; returns the old one. No job and no flush may be
    /// out.
    pub fn replace_log(&mut self, mut log: Log<F>, now: Now, committed: &mut Vec<Committed<T>>) -> Log<F> {
        // It may have moved since the copy was made.
        let _ = log.advance_log_start(self.log.log_start());
        log.succeed(&self.log, self.high_watermark);
        if self.is_leader() {
            log.begin_epoch(self.leader_epoch);
        }
        let old = std::mem::replace(&mut self.log, log);
        self.preparing = false;
        self.advance_high_watermark(now, committed);
        old
    }

    /// Removes records below `offset` (DeleteRecords; -1 stands for the high watermark); answers the new
    /// log start.
    pub fn delete_records(&mut self, offset: Offset) -> Result<Offset, ErrorCode> {
        if !self.is_leader() {
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        let policy = self.config.cleanup_policy;
        if policy.compact && !policy.delete {
            return Err(ErrorCode::PolicyViolation);
        }
        let target = if offset.0 == -1 { self.high_watermark } else { offset };
        if target.0 < 0 || target > self.high_watermark {
            return Err(ErrorCode::OffsetOutOfRange);
        }
        self.log.advance_log_start(target)
    }

    /// [`Log::begin_verification`], of a leader: a follower writes no batch that a guard could be for.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER, and the log's.
    pub fn begin_verification(
        &mut self,
        query: VerificationQuery,
        now: Now,
    ) -> Result<Option<Guard>, ErrorCode> {
        match self.is_leader() {
            true => self.log.begin_verification(query, now),
            false => Err(ErrorCode::NotLeaderOrFollower),
        }
    }

    /// The least log start of the replicas that are alive, as far as they have said it (`Partition.lowWatermarkIfLeader`).
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER.
    pub fn low_watermark(&self) -> Result<Offset, ErrorCode> {
        let own = self.log.log_start();
        match &self.role {
            role::Role::Alone => Ok(own),
            role::Role::Leader(leadership) => {
                Ok(leadership.low_watermark().map_or(own, |least| least.min(own)))
            }
            role::Role::Idle | role::Role::Follower { .. } => Err(ErrorCode::NotLeaderOrFollower),
        }
    }

    /// Fails everything that waits here with `code`: the partition is deleted or its disk is lost.
    pub fn fail_all(&mut self, code: ErrorCode, committed: &mut Vec<Committed<T>>) {
        self.fail_uncommitted(code, committed);
        self.fail_queued(code, committed);
    }

    /// Moves the high watermark as far as its rule allows and releases what waited for it; true when it moved.
    fn advance_high_watermark(&mut self, now: Now, committed: &mut Vec<Committed<T>>) -> bool {
        let reached = match &self.role {
            role::Role::Alone => self.durable_end(),
            role::Role::Leader(leadership) => {
                let min = self.min_in_sync(leadership);
                match leadership.high_watermark(self.durable_end(), min, now.monotonic) {
                    Some(reached) => reached,
                    None => self.high_watermark,
                }
            }
            role::Role::Follower { high_watermark } => self.durable_end().min(*high_watermark),
            role::Role::Idle => self.high_watermark,
        };
        let moved = reached > self.high_watermark;
        if moved {
            self.high_watermark = reached;
            self.log.high_watermark_advanced(reached);
        }
        self.release_committed(committed);
        moved
    }

    /// The end of what this replica vouches for.
    fn durable_end(&self) -> Offset {
        match self.durability {
            Durability::PageCache => self.log.log_end(),
            Durability::Fsync => self.log.flushed(),
        }
    }
}
