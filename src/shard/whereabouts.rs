//! In which log directory each replica is, on the way to the controller (AssignReplicasToDirs, KIP-858): it knows then
//! what is lost with a directory, and one record says so. Only of brokers among others, and of those that have several
//! directories. One request is under way from a shard; what comes meanwhile goes with the next.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use uuid::Uuid;

use super::Shard;
use super::lifecycle::partition_image;
use super::messages::{ControlReply, ControlRequest, Reply, Request};
use super::placement::PartitionKey;
use super::replica::Replica;
use crate::base::{PartitionIndex, ShardId, TopicId, fatal};
use crate::io::runtime::{Queue, spawn};
use crate::metadata::{AssignDirectories, Command};

/// Replicas of one request at most (Kafka's `MAX_BATCH_SIZE` is 2,250).
const REPLICAS_PER_REQUEST_MAX: usize = 2_000;

/// The pause after a request that no controller has taken.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What waits for the next request.
#[derive(Default)]
pub(super) struct Whereabouts {
    waiting: RefCell<BTreeSet<PartitionKey>>,
    is_running: Cell<bool>,
}

impl Shard {
    /// The replica is in another directory than before, or nobody knows yet in which.
    pub(super) fn tell_directory(self: &Rc<Self>, replica: &Replica) {
        if !self.has_several_directories() || self.untold_directory(replica).is_none() {
            return;
        }
        self.whereabouts.waiting.borrow_mut().insert(replica.key);
        if !self.whereabouts.is_running.replace(true) {
            let shard = self.clone();
            spawn(Queue::Back, "tell directories", async move { shard.tell_directories().await }).detach();
        }
    }

    /// Whether the controller is told of directories at all.
    pub(super) fn has_several_directories(&self) -> bool {
        self.settings.greetings.is_some() && self.settings.directories.list.len() > 1
    }

    /// The replica's directory, if the metadata has it elsewhere.
    fn untold_directory(&self, replica: &Replica) -> Option<Uuid> {
        let directory = self.settings.directories.list.get(replica.directory())?.log_dir.id().0;
        let image = self.image();
        let partition = partition_image(image.topic_by_id(replica.key.topic)?, replica.key)?;
        let broker = self.settings.broker;
        let is_here = partition.replicas.contains(&broker);
        (is_here && partition.directory_of(broker) != directory).then_some(directory)
    }

    async fn tell_directories(self: &Rc<Self>) {
        loop {
            let batch: Vec<PartitionKey> = {
                let mut waiting = self.whereabouts.waiting.borrow_mut();
                let next = waiting.iter().nth(REPLICAS_PER_REQUEST_MAX).copied();
                let rest = next.map(|next| waiting.split_off(&next)).unwrap_or_default();
                std::mem::replace(&mut *waiting, rest).into_iter().collect()
            };
            if batch.is_empty() || self.is_stopping() {
                self.whereabouts.is_running.set(false);
                return;
            }
            if !self.bring_directories(&batch).await {
                self.whereabouts.waiting.borrow_mut().extend(batch);
                self.sleep(AGAIN_AFTER).await;
            }
        }
    }

    /// True when the controller has taken it.
    async fn bring_directories(self: &Rc<Self>, batch: &[PartitionKey]) -> bool {
        let broker = self.settings.broker;
        let Some(epoch) = self.image().broker(broker).map(|broker| broker.epoch) else { return false };
        let mut by_directory: BTreeMap<Uuid, Vec<(TopicId, PartitionIndex)>> = BTreeMap::new();
        for key in batch {
            let Some(replica) = self.replica(*key).filter(|replica| !replica.is_offline()) else { continue };
            if let Some(directory) = self.untold_directory(&replica) {
                by_directory.entry(directory).or_default().push((key.topic, key.partition));
            }
        }
        if by_directory.is_empty() {
            return true;
        }
        let directories = by_directory.into_iter().collect();
        let command = Command::AssignDirectories(AssignDirectories { broker, epoch, directories });
        match self.ask(ShardId::CONTROL, Request::Control(ControlRequest::Command(command))).await {
            Reply::Control(ControlReply::Command(Ok(response))) => {
                let refused = response.directories_assigned().iter().filter(|result| result.is_err()).count();
                if refused > 0 {
                    // They are gone, or on other brokers, by what the controller knows.
                    tracing::debug!(
                        refused,
                        "directories of replicas that the controller does not have here"
                    );
                }
                true
            }
            Reply::Control(ControlReply::Command(Err(refusal))) => {
                tracing::debug!("nobody has taken in which directories replicas are: {refusal}");
                false
            }
            _ => fatal("the directories of replicas got another request's answer"),
        }
    }
}
