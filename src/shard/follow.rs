//! What this shard's followers make of their leaders' answers: append, wait for a file where one is needed, cut the
//! log where it parts from the leader's. The appends are this shard's, as a leader's are; the cut is a file thread's,
//! and meanwhile the replica serves nothing. Who asks the leaders is the fetchers' business, and theirs alone:
//! two of them never work on one replica.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::Shard;
use super::lifecycle::{JOB_POLL, partition_image};
use super::messages::CheckpointOffsets;
use super::placement::PartitionKey;
use super::replica::{Replica, ReplicaState};
use crate::base::{LeaderEpoch, Offset, clock};
use crate::io::os::OsFiles;
use crate::log::{Fault, Log};
use crate::partition::{Cut, FollowedRecords, NotFollowed, Partition, PlannedCut, Position};
use crate::wire::ErrorCode;

/// Checkpoint files that could not be written are tried again after this.
const SAVE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a leader has answered for one partition.
#[derive(Clone, Debug)]
pub struct Received {
    /// The leadership that it was asked in.
    pub epoch: LeaderEpoch,
    /// The offset that was asked for.
    pub at: Offset,
    pub records: Bytes,
    pub high_watermark: Offset,
    pub log_start: Offset,
}

/// Why a follower is not further than before.
#[derive(Debug, thiserror::Error)]
pub enum NotAppended {
    #[error("the replica is not here any more")]
    Gone,
    #[error("the replica is on its way to another log directory")]
    Moving,
    #[error("the replica cannot be served: {0}")]
    Unavailable(ErrorCode),
    #[error(transparent)]
    NotFollowed(#[from] NotFollowed),
}

impl Shard {
    /// Where a follower of the leadership stands; `None` while it waits for its disk.
    pub fn follow_position(
        &self,
        key: PartitionKey,
        epoch: LeaderEpoch,
    ) -> Result<Option<Position>, NotAppended> {
        let replica = self.replica(key).ok_or(NotAppended::Gone)?;
        Ok(replica.with(|partition| partition.position(epoch)).map_err(NotAppended::Unavailable)??)
    }

    /// Appends what the leader has sent and takes its high watermark; waits for files, never for a disk.
    pub async fn follow_append(
        self: &Rc<Self>,
        key: PartitionKey,
        received: &Received,
    ) -> Result<(), NotAppended> {
        let replica = self.replica(key).ok_or(NotAppended::Gone)?;
        let Received { epoch, mut at, .. } = *received;
        let mut left = &received.records[..];
        while !left.is_empty() {
            while replica.held.get() {
                self.sleep(JOB_POLL).await;
            }
            let records = FollowedRecords { epoch, at, bytes: left };
            let appended = replica.with(|partition| {
                let before = partition.log().log_end();
                let followed = partition.append_following(&records, clock::now());
                (followed, before, partition.log().log_end(), partition.log().is_offline())
            });
            let (followed, before, end, offline) = appended.map_err(NotAppended::Unavailable)?;
            if offline {
                self.report_failure(&replica, &"an append failed");
            }
            self.look_for_full_disk(&replica);
            let followed = followed?;
            if end > before {
                self.counters.replicated_records.add(u64::try_from(end.0 - before.0).unwrap_or(0));
                self.counters.replicated_bytes.add(followed.taken as u64);
                self.note_unflushed(&replica, followed.taken as u64);
                self.look_for_jobs(&replica);
            }
            if !followed.prepare {
                break;
            }
            (at, left) = (end, &left[followed.taken..]);
            self.provide_file(&replica).await;
        }
        let mut committed = Vec::new();
        let told = replica.with(|partition| {
            let (high_watermark, log_start) = (received.high_watermark, received.log_start);
            partition.follow_leader(epoch, high_watermark, log_start, clock::now(), &mut committed)
        });
        self.finish_appends(committed);
        if told.map_err(NotAppended::Unavailable)?? {
            self.wake_fetches(key);
        }
        Ok(())
    }

    /// Has a file thread open or make what the next append needs.
    async fn provide_file(self: &Rc<Self>, replica: &Rc<Replica>) {
        let job = match replica.prepare_runs.get() {
            true => None,
            false => replica.with(|partition| partition.log_mut().prepare_job()).ok().flatten(),
        };
        let Some(job) = job else { return self.sleep(JOB_POLL).await };
        replica.prepare_runs.set(true);
        let outcome = self.settings.directories.threads.run("prepare log", move || job.run()).await;
        replica.prepare_runs.set(false);
        if let Ok(Err(error)) = replica.with(|partition| partition.finish_prepare(outcome, clock::now())) {
            self.report_failure(replica, &error);
        }
        self.look_for_full_disk(replica);
    }

    /// Cuts the log of a follower of the leadership. When it returns, the checkpoint files promise nothing that is not
    /// there any more.
    pub async fn follow_cut(
        self: &Rc<Self>,
        key: PartitionKey,
        epoch: LeaderEpoch,
        cut: Cut,
    ) -> Result<(), NotAppended> {
        let replica = self.replica(key).ok_or(NotAppended::Gone)?;
        if replica.held.get() || replica.moving().is_some_and(|moving| !moving.has_ended()) {
            return Err(NotAppended::Moving);
        }
        replica.held.set(true);
        while replica.is_busy() || replica.with(|partition| partition.is_flushing()) == Ok(true) {
            self.sleep(JOB_POLL).await;
        }
        // No job, no flush and no compaction begins from here on.
        replica.job_runs.set(true);
        let done = self.cut_held(&replica, epoch, cut).await;
        replica.job_runs.set(false);
        replica.held.set(false);
        self.look_for_jobs(&replica);
        done
    }

    async fn cut_held(
        self: &Rc<Self>,
        replica: &Rc<Replica>,
        epoch: LeaderEpoch,
        cut: Cut,
    ) -> Result<(), NotAppended> {
        let planned = replica.with(|partition| partition.plan_cut(epoch, cut));
        let Some(planned) = planned.map_err(NotAppended::Unavailable)?? else { return Ok(()) };
        let PlannedCut { to, end, high_watermark, .. } = planned;
        let Some(mut partition) = replica.take(ReplicaState::Opening) else { return Err(NotAppended::Gone) };
        self.counters.truncations.increment();
        if to < high_watermark {
            self.counters.truncations_below_high_watermark.increment();
            tracing::warn!(
                partition = %replica.topic_partition,
                "records from offset {to} to the high watermark {high_watermark} are lost: the leader does not have them"
            );
        } else {
            tracing::info!(partition = %replica.topic_partition, "cut from offset {end} to {to}, where it parts from its leader");
        }
        self.forget_unflushed(replica);
        let mut committed = Vec::new();
        // There is none: it follows.
        partition.fail_all(ErrorCode::NotLeaderOrFollower, &mut committed);
        self.finish_appends(committed);
        self.release_fetches(replica.key);
        let (topic_id, config) = (partition.topic_id(), partition.config().clone());
        let mut log = partition.into_log();
        let threads = self.settings.directories.threads.clone();
        let (log, done) = threads
            .run("cut log", move || {
                let done = planned.carry_out(&mut log, clock::now());
                (log, done)
            })
            .await;
        let high_watermark = match done {
            Ok(high_watermark) => high_watermark,
            Err(error) => {
                self.lose(replica, log);
                match error.fault() {
                    Fault::Disk => self.report_failure(replica, &error),
                    fault => {
                        tracing::error!(partition = %replica.topic_partition, ?fault, "not cut: {error}")
                    }
                }
                return Err(NotAppended::Unavailable(ErrorCode::KafkaStorageError));
            }
        };
        self.save_cut(replica, &log, high_watermark).await;
        if !matches!(*replica.state.borrow(), ReplicaState::Opening) {
            // Its directory has failed, or the topic was deleted.
            threads.drop_later(log);
            return Err(NotAppended::Gone);
        }
        let durability = self.settings.config.durability;
        let mut partition = Partition::resume(log, topic_id, high_watermark, config, durability);
        partition.share_slots(self.slots.clone());
        replica.go_online(partition);
        let image = self.image();
        if let Some(image) = image.topic_by_id(topic_id).and_then(|topic| partition_image(topic, replica.key))
        {
            self.take_role(replica, image);
        }
        Ok(())
    }

    /// Takes a replica out of service whose log is in an unknown state.
    fn lose(&self, replica: &Replica, log: Log<OsFiles>) {
        if matches!(*replica.state.borrow(), ReplicaState::Opening) {
            drop(replica.take(ReplicaState::Offline));
        }
        self.settings.directories.threads.drop_later(log);
    }

    /// Has the checkpoint files say what is left of the log, before anything new is in it: a start would take the
    /// beginning of new records for the rest of the old ones.
    async fn save_cut(self: &Rc<Self>, replica: &Replica, log: &Log<OsFiles>, high_watermark: Offset) {
        let offsets = CheckpointOffsets {
            recovery_point: log.recovery_point_to_save(),
            high_watermark,
            log_start: log.log_start(),
            cleaned: log.cleaned(),
        };
        self.tell_cut(replica, offsets);
        while self.save_lines().await.is_err() {
            if self.is_stopping() || self.settings.directories.has_failed(replica.directory()) {
                return;
            }
            self.sleep(SAVE_AGAIN_AFTER).await;
        }
    }
}
