//! Reads a partition of `__consumer_offsets` into the coordinator when this node has become its leader.
//! Runs on shard 0; the files are read on the file threads.

use std::rc::Rc;
use std::time::Duration;

use super::coordinator_log::{LoadError, read_log};
use super::group_driver::{Driver, LoadId};
use crate::base::clock;
use crate::base::{PartitionIndex, TopicName};
use crate::io::runtime::{Queue, spawn};
use crate::shard::PartitionKey;
use crate::wire::record::{BatchView, EndTxnMarker};

/// Partitions that are read at the same time.
const LOADERS_MAX: usize = 16;
/// A batch larger than this when decompressed is not one of a coordinator's.
const DECOMPRESSED_MAX: usize = 256 << 20;
/// Pauses between attempts to read a partition: the first, doubled each time, the longest.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// How long requests wait for a partition before they are told COORDINATOR_LOAD_IN_PROGRESS.
const PATIENCE: Duration = Duration::from_millis(500);

impl Driver {
    /// Starts another loader unless enough are at work.
    pub(super) fn start_loader(self: &Rc<Self>) {
        if self.loaders.get() < LOADERS_MAX {
            self.loaders.set(self.loaders.get() + 1);
            spawn(Queue::Control, "coordinator load", self.clone().load_queued()).detach();
        }
    }

    async fn load_queued(self: Rc<Self>) {
        loop {
            let next = self.loads.borrow_mut().pop_front();
            let Some((key, load)) = next else { break };
            self.load_partition(key, load).await;
        }
        self.loaders.set(self.loaders.get() - 1);
    }

    /// Reads one partition until its end; tries again as long as this node is to lead it.
    async fn load_partition(self: &Rc<Self>, key: PartitionKey, load: LoadId) {
        let started = clock::monotonic();
        let mut pause = RETRY_AFTER;
        loop {
            match self.read_to_end(key, load).await {
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(partition = %key.partition, %error, "__consumer_offsets cannot be loaded yet");
                }
            }
            self.release(key.partition);
            self.shard.sleep(pause).await;
            pause = RETRY_AFTER_MAX.min(pause * 2);
            if self.shard.is_stopping() || !self.is_current(key.partition, load) {
                return;
            }
            self.drive(|coordinator, now| coordinator.load(key.partition, now));
        }
        if !self.is_current(key.partition, load) {
            return;
        }
        self.drive(|coordinator, now| coordinator.loaded(key.partition, now));
        self.release(key.partition);
        self.forget_deleted_topics(key);
        let took = clock::monotonic().since(started);
        tracing::debug!(partition = %key.partition, ?took, "loaded");
    }

    /// Topics that were deleted while nobody looked.
    fn forget_deleted_topics(self: &Rc<Self>, key: PartitionKey) {
        let image = self.image();
        self.drive(|coordinator, now| {
            let mut gone: Vec<TopicName> = coordinator.committed_topics(key.partition);
            gone.retain(|topic| image.topic(topic).is_none());
            if !gone.is_empty() {
                coordinator.topics_deleted(&gone, now);
            }
        });
    }

    async fn read_to_end(self: &Rc<Self>, key: PartitionKey, load: LoadId) -> Result<(), LoadError> {
        let started = clock::monotonic();
        let goes_on = || {
            if clock::monotonic().since(started) > PATIENCE {
                self.release(key.partition);
            }
            self.is_current(key.partition, load)
        };
        read_log(&self.shard, key, goes_on, |batch| self.replay(key.partition, batch)).await
    }

    fn replay(self: &Rc<Self>, partition: PartitionIndex, batch: &BatchView<'_>) -> Result<(), LoadError> {
        let (attributes, producer) = (batch.head().attributes(), batch.head().producer_id());
        let mut scratch = Vec::new();
        let records = batch
            .records(&mut scratch, DECOMPRESSED_MAX)
            .map_err(|error| LoadError::broken(batch, &error))?;
        for record in records {
            let record = record.map_err(|error| LoadError::broken(batch, &error))?;
            let Some(key) = record.key else { continue };
            self.drive(|coordinator, _| {
                if attributes.is_control() {
                    let marker = record.value.and_then(|value| EndTxnMarker::from_record(key, value));
                    if let Some(marker) = marker {
                        coordinator.replay_marker(partition, producer, marker.commit);
                    }
                } else if attributes.is_transactional() {
                    coordinator.replay_in_transaction(partition, producer, key, record.value);
                } else {
                    coordinator.replay(partition, key, record.value);
                }
            });
        }
        Ok(())
    }
}
