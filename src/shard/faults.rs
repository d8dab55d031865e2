//! What a disk error leads to: a failed write, sync or read ends the service of the log directory on every shard;
//! the partitions in the others do not notice.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shard;
use super::messages::{ControlReply, ControlRequest, Reply, Request};
use super::placement::PartitionKey;
use super::replica::{Replica, ReplicaState};
use crate::base::{ShardId, fatal};
use crate::io::runtime::{Queue, spawn};
use crate::log::{Fault, LogError};
use crate::metadata::Command;
use crate::wire::ErrorCode;

/// Replicas named by one command to the controller.
const LOST_PER_COMMAND: usize = 5_000;

/// How often the controller is told of a loss, and the pause in between.
const REPORTS_MAX: u32 = 30;
const REPORT_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Shard {
    /// A disk error ends the directory's service on every shard; the rest goes on.
    pub(super) fn report_failure(self: &Rc<Self>, replica: &Replica, error: &dyn std::fmt::Display) {
        self.fail_directory(replica.directory(), &format_args!("{}: {error}", replica.topic_partition));
    }

    /// The directory has failed with `error`: its partitions go offline on every shard. Only the first failure is
    /// told.
    pub fn fail_directory(self: &Rc<Self>, directory: usize, error: &dyn std::fmt::Display) {
        if !self.settings.directories.begin_failure(directory) {
            return;
        }
        tracing::error!(
            directory = %self.settings.directories.path(directory).display(),
            "the log directory failed and goes offline: {error}"
        );
        let shard = self.clone();
        spawn(Queue::Control, "directory failure", async move {
            shard.ask_all(|| Request::DirectoryFailed(directory)).await;
            shard.report_lost_directory(directory).await;
            shard.report_lost_replicas().await;
        })
        .detach();
    }

    /// Tells the controller of a cluster that the directory has failed. What it knows to be there is lost with one record;
    /// the rest is told replica by replica.
    async fn report_lost_directory(self: &Rc<Self>, directory: usize) {
        let lost = self.settings.directories.list.get(directory).map(|lost| lost.log_dir.id().0);
        let Some(lost) = lost.filter(|_| self.has_several_directories()) else { return };
        let broker = self.settings.broker;
        let Some(epoch) = self.image().broker(broker).map(|broker| broker.epoch) else { return };
        let command = Command::DirectoryFailed { broker, epoch, directory: lost };
        let request = Request::Control(ControlRequest::Command(command));
        if let Reply::Control(ControlReply::Command(Err(refusal))) = self.ask(ShardId(0), request).await {
            tracing::warn!("the controller does not take the news of a lost directory at once: {refusal}");
        }
    }

    /// Tells the controller which of this broker's replicas are not served because of their disk: they lead no
    /// more, and clients see it in the metadata (KIP-858).
    pub async fn report_lost_replicas(self: &Rc<Self>) {
        let mut lost = Vec::new();
        for reply in self.ask_all(|| Request::LostReplicas).await {
            match reply {
                Reply::LostReplicas(keys) => lost.extend(keys.iter().map(|key| (key.topic, key.partition))),
                _ => fatal("a request for lost replicas got another request's answer"),
            }
        }
        let broker = self.settings.broker;
        for partitions in lost.chunks(LOST_PER_COMMAND) {
            let mut attempts = 0;
            loop {
                let Some(epoch) = self.image().broker(broker).map(|broker| broker.epoch) else { return };
                let command = Command::ReplicasOffline { broker, epoch, partitions: partitions.to_vec() };
                let request = Request::Control(ControlRequest::Command(command));
                let reply = self.ask(ShardId(0), request).await;
                let Reply::Control(ControlReply::Command(Err(refusal))) = reply else { break };
                attempts += 1;
                if attempts == REPORTS_MAX || self.is_stopping() {
                    tracing::error!("the controller does not take the news of a lost directory: {refusal}");
                    return;
                }
                self.sleep(REPORT_AGAIN_AFTER).await;
            }
        }
    }

    pub(super) fn lost_replicas(&self) -> Vec<PartitionKey> {
        let replicas = self.replicas.borrow();
        let lost = replicas.values().filter(|replica| replica.is_offline() && !replica.opens_later.get());
        lost.map(|replica| replica.key).collect()
    }

    /// A read of a log's file failed: what comes of that.
    pub(super) fn note_read_error(self: &Rc<Self>, replica: &Replica, error: &LogError) {
        let counters = &self.settings.directories.counters;
        match error.fault() {
            Fault::Disk => {
                counters.read_errors.fetch_add(1, Ordering::Relaxed);
                self.report_failure(replica, error);
            }
            Fault::Corrupt => {
                counters.corrupt_reads.fetch_add(1, Ordering::Relaxed);
                tracing::error!(partition = %replica.topic_partition, "the log is damaged: {error}");
            }
            Fault::NoSpace | Fault::NoResources => {
                tracing::warn!(partition = %replica.topic_partition, "a read was refused: {error}");
            }
        }
    }

    /// A file of the directory that was promised to a peer could not be read while it was sent.
    pub fn note_send_error(self: &Rc<Self>, directory: usize, error: &std::io::Error) {
        if Fault::of(error) == Fault::Disk {
            self.settings.directories.counters.read_errors.fetch_add(1, Ordering::Relaxed);
            self.fail_directory(directory, &format_args!("sending a segment: {error}"));
        }
    }

    pub(super) fn directory_failed(self: &Rc<Self>, directory: usize) {
        self.settings.directories.fail(directory);
        let replicas: Vec<Rc<Replica>> = self.replicas.borrow().values().cloned().collect();
        for replica in replicas.into_iter().filter(|replica| replica.directory() == directory) {
            self.forget_unflushed(&replica);
            self.unfollow(replica.key);
            if let Some(mut partition) = replica.take(ReplicaState::Offline) {
                let mut committed = Vec::new();
                partition.fail_all(ErrorCode::KafkaStorageError, &mut committed);
                self.finish_appends(committed);
                self.release_fetches(replica.key);
                self.forget_shares(replica.key);
                self.settings.directories.threads.drop_later(partition.into_log());
            }
        }
    }
}
