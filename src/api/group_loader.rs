//! Reads a partition of `__consumer_offsets` into the coordinator when this node has become its leader.
//! Runs on shard 0; the files are read on the file threads.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::group_driver::{Driver, LoadId};
use crate::base::clock;
use crate::base::{LeaderEpoch, Offset, ProducerId, TopicName};
use crate::io::FileHandle;
use crate::io::runtime::{Queue, spawn, yield_if_needed};
use crate::partition::Waterline;
use crate::shard::PartitionKey;
use crate::shard::messages::{FetchPart, FetchRequest, FetchedPart, Reply, Request};
use crate::wire::ErrorCode;
use crate::wire::record::{BatchView, Batches, EndTxnMarker};

/// Partitions that are read at the same time.
const LOADERS_MAX: usize = 16;
/// Read at once from one partition (`offsets.load.buffer.size` is five times that).
const READ_BYTES: u32 = 1 << 20;
/// A batch larger than this when decompressed is not one of a coordinator's.
const DECOMPRESSED_MAX: usize = 256 << 20;
/// Pauses between attempts to read a partition: the first, doubled each time, the longest.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// How long requests wait for a partition before they are told COORDINATOR_LOAD_IN_PROGRESS.
const PATIENCE: Duration = Duration::from_millis(500);

/// Why a partition could not be read for now.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error("{0}")]
    Answer(ErrorCode),
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error("the batch at offset {0} is broken: {1}")]
    Batch(Offset, String),
}

/// Key and value of a record of a transaction that has not ended yet.
type Held = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// How far a partition has been read.
struct Progress {
    key: PartitionKey,
    next: Offset,
    /// Offsets that were committed in transactions count from the end of the transaction.
    open: HashMap<ProducerId, Held>,
}

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
            let mut progress = Progress { key, next: Offset::ZERO, open: HashMap::new() };
            match self.read_to_end(&mut progress, load).await {
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

    async fn read_to_end(self: &Rc<Self>, progress: &mut Progress, load: LoadId) -> Result<(), LoadError> {
        let started = clock::monotonic();
        while self.is_current(progress.key.partition, load) {
            if clock::monotonic().since(started) > PATIENCE {
                self.release(progress.key.partition);
            }
            let Some(bytes) = self.read_more(progress).await? else { return Ok(()) };
            let before = progress.next;
            for batch in Batches::new(&bytes) {
                // The last batch of a read may be cut; the next read begins with it.
                let Ok(batch) = batch else { break };
                self.replay(progress, &batch)?;
                yield_if_needed().await;
            }
            if progress.next == before {
                return Err(LoadError::Batch(before, "no whole batch is there".to_owned()));
            }
        }
        Ok(())
    }

    /// The bytes from `progress.next` on; `None` at the end.
    async fn read_more(self: &Rc<Self>, progress: &mut Progress) -> Result<Option<Vec<u8>>, LoadError> {
        loop {
            let part = FetchPart {
                key: progress.key,
                offset: progress.next,
                bytes_max: READ_BYTES,
                current_leader_epoch: LeaderEpoch::NONE,
                last_fetched_epoch: LeaderEpoch::NONE,
            };
            let request = FetchRequest {
                parts: vec![part],
                waterline: Waterline::LogEnd,
                bytes_max: READ_BYTES,
                wait: None,
            };
            let owner = self.shard.owner(progress.key);
            let Reply::Fetch(mut reply) = self.shard.ask(owner, Request::Fetch(request)).await else {
                crate::base::fatal("a fetch got another request's answer");
            };
            match reply.parts.pop() {
                Some(FetchedPart::Data(data)) => {
                    let Some(range) = data.range else { return Ok(None) };
                    let directory = range.file.directory();
                    let threads = &self.shard.settings().directories.threads;
                    let read = threads.run("coordinator load", move || {
                        let mut bytes = vec![0; range.length as usize];
                        let count = range.file.read_at(&mut bytes, range.position)?;
                        bytes.truncate(count);
                        Ok::<_, std::io::Error>(bytes)
                    });
                    let read = read.await;
                    if let Err(error) = &read {
                        self.shard.note_send_error(directory, error);
                    }
                    return Ok(Some(read?));
                }
                // What lay before was deleted.
                Some(FetchedPart::Failed { code: ErrorCode::OffsetOutOfRange, log_start, .. })
                    if log_start > progress.next =>
                {
                    progress.next = log_start;
                }
                Some(FetchedPart::Failed { code, .. }) => return Err(LoadError::Answer(code)),
                Some(FetchedPart::Diverging { .. }) | None => {
                    return Err(LoadError::Answer(ErrorCode::UnknownServerError));
                }
            }
        }
    }

    fn replay(self: &Rc<Self>, progress: &mut Progress, batch: &BatchView<'_>) -> Result<(), LoadError> {
        let head = batch.head();
        // A read begins with the batch that holds its offset, which may lie before it.
        if head.next_offset() <= progress.next {
            return Ok(());
        }
        let broken = |error: &dyn std::fmt::Display| LoadError::Batch(head.base_offset(), error.to_string());
        let mut scratch = Vec::new();
        let records = batch.records(&mut scratch, DECOMPRESSED_MAX).map_err(|error| broken(&error))?;
        let attributes = head.attributes();
        for record in records {
            let record = record.map_err(|error| broken(&error))?;
            let Some(key) = record.key else { continue };
            if attributes.is_control() {
                self.end_transaction(progress, head.producer_id(), key, record.value);
            } else if attributes.is_transactional() {
                let held = progress.open.entry(head.producer_id()).or_default();
                held.push((key.to_vec(), record.value.map(<[u8]>::to_vec)));
            } else {
                let partition = progress.key.partition;
                self.drive(|coordinator, _| coordinator.replay(partition, key, record.value));
            }
        }
        progress.next = head.next_offset();
        Ok(())
    }

    fn end_transaction(
        self: &Rc<Self>,
        progress: &mut Progress,
        producer: ProducerId,
        key: &[u8],
        value: Option<&[u8]>,
    ) {
        let Some(marker) = value.and_then(|value| EndTxnMarker::from_record(key, value)) else { return };
        let held = progress.open.remove(&producer).unwrap_or_default();
        if !marker.commit {
            return;
        }
        let partition = progress.key.partition;
        self.drive(|coordinator, _| {
            for (key, value) in &held {
                coordinator.replay(partition, key, value.as_deref());
            }
        });
    }
}
