//! Partitions come and go with the cluster's image: open, configure, delete, close. All that touches a
//! directory runs on file threads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::Shard;
use super::cleaner::Cleaner;
use super::commit::CommitService;
use super::mesh::ReplyTo;
use super::messages::{CheckpointEntry, Reply};
use super::placement::PartitionKey;
use super::replica::{Replica, ReplicaState};
use crate::base::{Offset, PartitionIndex, TopicPartition, clock, fatal};
use crate::config::{Durability, LogConfig};
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, spawn};
use crate::io::threads::FileThreads;
use crate::log::{DirLock, FoundPartition, Log, LogContext, LogDir, OpenOptions};
use crate::metadata::{ConfigResource, Image, PartitionImage, TopicImage};
use crate::partition::Partition;
use crate::wire::ErrorCode;

/// Logs that one shard opens or closes at the same time.
const LOGS_AT_ONCE_MAX: usize = 64;

/// How often a log that is to go looks whether its last job has come back.
const JOB_POLL: Duration = Duration::from_millis(1);

/// A log directory in service.
pub struct Directory {
    pub log_dir: LogDir<OsFiles>,
    pub commit: CommitService,
    /// Keeps other brokers out.
    pub lock: DirLock,
}

/// The log directories of the process and the threads that do their slow work.
pub struct Directories {
    pub list: Vec<Directory>,
    pub threads: FileThreads,
    pub log_context: Arc<LogContext<OsFiles>>,
    pub cleaner: Cleaner,
    /// What the start found on disk and no shard has opened yet.
    pub start_list: StartList,
    failed: Vec<AtomicBool>,
    /// A shard has told the others to fail it.
    failing: Vec<AtomicBool>,
    /// Has a log that is not closed: the next start recovers.
    unclean: Vec<AtomicBool>,
    /// Held while the checkpoint files are written; true once they were written for the last time.
    checkpoints_final: Mutex<bool>,
}

/// Partitions found on disk at the start, handed out to the shards that own them.
#[derive(Default)]
pub struct StartList(Mutex<HashMap<TopicPartition, StartEntry>>);

/// Where a partition was found.
pub struct StartEntry {
    pub directory: usize,
    pub found: FoundPartition,
    /// The directory was closed cleanly: no recovery.
    pub clean: bool,
}

impl StartList {
    /// # Panics
    /// Never: nothing panics while it holds the lock.
    pub fn new(entries: impl IntoIterator<Item = StartEntry>) -> Self {
        let by_name = entries.into_iter().map(|entry| (entry.found.topic_partition.clone(), entry));
        Self(Mutex::new(by_name.collect()))
    }

    fn take(&self, topic_partition: &TopicPartition) -> Option<StartEntry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(topic_partition)
    }

    /// What no shard wanted: partitions that the metadata does not know.
    pub fn take_rest(&self) -> Vec<StartEntry> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.drain().map(|(_, entry)| entry).collect()
    }
}

impl Directories {
    pub fn new(
        list: Vec<Directory>,
        threads: FileThreads,
        log_context: Arc<LogContext<OsFiles>>,
        start_list: StartList,
    ) -> Self {
        let flags = || list.iter().map(|_| AtomicBool::new(false)).collect();
        let (failed, failing, unclean) = (flags(), flags(), flags());
        let checkpoints_final = Mutex::new(false);
        let cleaner = Cleaner::new(list.len());
        Self { list, threads, log_context, cleaner, start_list, failed, failing, unclean, checkpoints_final }
    }

    pub(super) fn lock_checkpoints(&self) -> MutexGuard<'_, bool> {
        self.checkpoints_final.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn path(&self, directory: usize) -> &Path {
        self.list[directory].log_dir.path()
    }

    pub fn has_failed(&self, directory: usize) -> bool {
        self.failed[directory].load(Ordering::Relaxed)
    }

    /// True for the first failure of the directory: the one that is told to the shards.
    pub(super) fn begin_failure(&self, directory: usize) -> bool {
        !self.failing[directory].swap(true, Ordering::Relaxed)
    }

    /// A log in the directory could not be closed, because it never opened: the marker of a clean shutdown
    /// would spare it the recovery that it needs.
    pub fn is_unclean(&self, directory: usize) -> bool {
        self.unclean[directory].load(Ordering::Relaxed)
    }

    /// Marks a directory; ends the process when no other is left, as Kafka does.
    fn fail(&self, directory: usize) {
        self.failed[directory].store(true, Ordering::Relaxed);
        if (0..self.list.len()).all(|index| self.has_failed(index)) {
            fatal("every log directory has failed");
        }
    }
}

impl Shard {
    /// Makes this shard's partitions what `image` says; answers when they are.
    pub(super) fn publish(self: &Rc<Self>, reply_to: ReplyTo, image: Arc<Image>) {
        let old = self.image.replace(image.clone());
        let changes = image.changes_since(&old);
        let mut gone = Vec::new();
        let mut wanted = Vec::new();
        for topic in &changes.topics_removed {
            gone.extend(self.mine(topic, 0));
        }
        for topic in &changes.topics_added {
            wanted.extend(self.mine(topic, 0).map(|key| (key, topic.clone())));
        }
        for (before, after) in &changes.topics_changed {
            wanted.extend(self.mine(after, before.partitions.len()).map(|key| (key, after.clone())));
            self.update_leaderships(after);
        }
        self.update_configs(&changes.configs_changed);
        if gone.is_empty() && wanted.is_empty() {
            self.mesh.push_reply(reply_to, Reply::Done);
            return;
        }
        let shard = self.clone();
        spawn(Queue::Control, "publish", async move {
            // Deletions first: a topic may be back under its name, and so under its directory's.
            let mut deletions: FuturesUnordered<_> = gone.into_iter().map(|key| shard.delete(key)).collect();
            while deletions.next().await.is_some() {}
            let openings = wanted.into_iter().map(|(key, topic)| shard.open(key, topic));
            let mut openings = futures::stream::iter(openings).buffer_unordered(LOGS_AT_ONCE_MAX);
            while openings.next().await.is_some() {}
            shard.mesh.push_reply(reply_to, Reply::Done);
        })
        .detach();
    }

    /// The keys of the partitions of `topic` from index `first` on that live on this shard.
    fn mine(&self, topic: &Arc<TopicImage>, first: usize) -> impl Iterator<Item = PartitionKey> + use<> {
        let broker = self.settings.broker;
        let shards = self.shards();
        let id = self.id;
        let topic = topic.clone();
        (first..topic.partitions.len()).filter_map(move |index| {
            let key = PartitionKey { topic: topic.id, partition: PartitionIndex(index as i32) };
            let here = topic.partitions[index].replicas.contains(&broker);
            (here && super::owner(key, shards) == id).then_some(key)
        })
    }

    fn update_leaderships(&self, topic: &Arc<TopicImage>) {
        for key in self.mine(topic, 0) {
            if let (Some(replica), Some(image)) = (self.replica(key), partition_image(topic, key)) {
                // An offline replica learns of it when it comes back.
                let _ = replica.with(|partition| partition.set_leader_epoch(image.leader_epoch));
            }
        }
    }

    fn update_configs(self: &Rc<Self>, changed: &[ConfigResource]) {
        let image = self.image();
        let everywhere = changed.iter().any(|resource| match resource {
            ConfigResource::BrokerDefault => true,
            ConfigResource::Broker(broker) => *broker == self.settings.broker,
            _ => false,
        });
        let topics: Vec<Arc<TopicImage>> = if everywhere {
            image.topics().cloned().collect()
        } else {
            let names = changed.iter().filter_map(|resource| match resource {
                ConfigResource::Topic(name) => image.topic(name).cloned(),
                _ => None,
            });
            names.collect()
        };
        for topic in topics {
            let config = self.log_config(&image, &topic);
            for key in self.mine(&topic, 0) {
                let Some(replica) = self.replica(key) else { continue };
                if replica.with(|partition| partition.set_config(config.clone())).is_ok() {
                    self.look_for_jobs(&replica);
                }
            }
        }
    }

    fn log_config(&self, image: &Image, topic: &TopicImage) -> Arc<LogConfig> {
        let broker = image.overrides(&ConfigResource::Broker(self.settings.broker));
        let default = image.overrides(&ConfigResource::BrokerDefault);
        let topic = image.overrides(&ConfigResource::Topic(topic.name.clone()));
        Arc::new(self.settings.config.levels(broker, default).log_config(topic))
    }

    async fn open(self: &Rc<Self>, key: PartitionKey, topic: Arc<TopicImage>) {
        let Some(image) = partition_image(&topic, key).cloned() else { return };
        let topic_partition = TopicPartition { topic: topic.name.clone(), partition: key.partition };
        let config = self.log_config(&self.image(), &topic);
        let directories = self.settings.directories.clone();
        let found = directories.start_list.take(&topic_partition);
        let (same, other): (Option<StartEntry>, Option<StartEntry>) = match found {
            Some(entry) if entry.found.topic_id.is_none_or(|id| id == key.topic) => (Some(entry), None),
            other => (None, other),
        };
        let directory = match &same {
            Some(entry) => entry.directory,
            None => self.emptiest_directory(),
        };
        let replica = Replica::new(key, topic_partition.clone(), directory);
        self.replicas.borrow_mut().insert(key, replica.clone());
        let log_config = config.clone();
        let name = topic_partition.clone();
        let durability = self.settings.config.durability;
        let opened = directories
            .threads
            .run("open log", {
                let directories = directories.clone();
                move || {
                    let mut log = open_log(&directories, directory, name, key, log_config, same, other)?;
                    if durability == Durability::Fsync {
                        sync_recovered(&mut log)?;
                    }
                    Ok::<_, OpenFailure>(log)
                }
            })
            .await;
        if !matches!(*replica.state.borrow(), ReplicaState::Opening) {
            // Its directory has failed or the broker stops.
            if let Ok(log) = opened {
                directories.threads.drop_later(log);
            }
            return;
        }
        match opened {
            Ok(log) => {
                let partition = Partition::lead(log, key.topic, image.leader_epoch, config, durability);
                *replica.state.borrow_mut() = ReplicaState::Online(Box::new(partition));
                self.look_for_jobs(&replica);
            }
            Err(error) => {
                tracing::error!(partition = %topic_partition, "its log cannot be opened: {error}");
                *replica.state.borrow_mut() = ReplicaState::Offline;
            }
        }
    }

    /// The directory with the fewest partitions of this shard; ties go round by shard.
    fn emptiest_directory(&self) -> usize {
        let directories = &self.settings.directories;
        let count = directories.list.len();
        let mut partitions = vec![0usize; count];
        if count > 1 {
            for replica in self.replicas.borrow().values() {
                partitions[replica.directory] += 1;
            }
        }
        let serving = (0..count).filter(|&index| !directories.has_failed(index));
        serving
            .min_by_key(|&index| (partitions[index], (index + count - self.id.index() % count) % count))
            .unwrap_or(0)
    }

    async fn delete(self: &Rc<Self>, key: PartitionKey) {
        let Some(replica) = self.replicas.borrow_mut().remove(&key) else { return };
        self.forget_unflushed(&replica);
        let mut delay = Duration::ZERO;
        // Without one it could not be opened; its files go all the same.
        let log = replica.take(ReplicaState::Closed).map(|mut partition| {
            let mut committed = Vec::new();
            partition.fail_all(ErrorCode::UnknownTopicOrPartition, &mut committed);
            self.finish_appends(committed);
            delay = Duration::from_millis(partition.config().file_delete_delay_ms.max(0) as u64);
            partition.into_log()
        });
        self.release_fetches(key);
        // A job that is late would find another topic's files under its names.
        self.jobs_done(&replica).await;
        let directories = self.settings.directories.clone();
        let directory = replica.directory;
        if log.is_none() && directories.has_failed(directory) {
            return;
        }
        let renamed = directories
            .threads
            .run("rename deleted", {
                let directories = directories.clone();
                let name = replica.topic_partition.clone();
                move || {
                    drop(log);
                    directories.list[directory].log_dir.rename_deleted(&name)
                }
            })
            .await;
        match renamed {
            Ok(path) => self.remove_later(directory, path, delay),
            Err(error) => {
                tracing::error!(partition = %replica.topic_partition, "its directory cannot be renamed: {error}");
            }
        }
    }

    /// Waits until no job of the replica's log, and no slice of its compaction, is on a file thread.
    async fn jobs_done(self: &Rc<Self>, replica: &Replica) {
        while replica.job_runs.get() || replica.cleaning.slice_runs.get() {
            self.sleep(JOB_POLL).await;
        }
    }

    /// Removes the directory of a deleted partition after `delay`.
    pub fn remove_later(self: &Rc<Self>, directory: usize, path: PathBuf, delay: Duration) {
        let shard = self.clone();
        spawn(Queue::Back, "remove deleted", async move {
            shard.sleep(delay).await;
            let directories = shard.settings.directories.clone();
            let removed = {
                let directories = directories.clone();
                directories
                    .clone()
                    .threads
                    .run("remove deleted", move || directories.list[directory].log_dir.remove_deleted(&path))
            };
            if let Err(error) = removed.await {
                tracing::warn!("a deleted partition's directory is still there: {error}");
            }
        })
        .detach();
    }

    pub(super) fn directory_failed(self: &Rc<Self>, directory: usize) {
        self.settings.directories.fail(directory);
        let replicas: Vec<Rc<Replica>> = self.replicas.borrow().values().cloned().collect();
        for replica in replicas.into_iter().filter(|replica| replica.directory == directory) {
            self.forget_unflushed(&replica);
            if let Some(mut partition) = replica.take(ReplicaState::Offline) {
                let mut committed = Vec::new();
                partition.fail_all(ErrorCode::KafkaStorageError, &mut committed);
                self.finish_appends(committed);
                self.release_fetches(replica.key);
                self.settings.directories.threads.drop_later(partition.into_log());
            }
        }
    }

    /// Closes every log and answers with their last checkpoint entries.
    pub(super) fn stop(self: &Rc<Self>, reply_to: ReplyTo) {
        self.stopping.set(true);
        self.end_turn();
        let replicas: Vec<Rc<Replica>> =
            self.replicas.borrow_mut().drain().map(|(_, replica)| replica).collect();
        let shard = self.clone();
        spawn(Queue::Control, "stop", async move {
            let closings = replicas.into_iter().map(|replica| shard.close(replica));
            let entries = futures::stream::iter(closings)
                .buffer_unordered(LOGS_AT_ONCE_MAX)
                .filter_map(|entry| async { entry })
                .collect()
                .await;
            shard.mesh.push_reply(reply_to, Reply::Checkpoint(entries));
        })
        .detach();
    }

    async fn close(self: &Rc<Self>, replica: Rc<Replica>) -> Option<CheckpointEntry> {
        // The log must not be closed under a job, which may roll it or write its index.
        self.jobs_done(&replica).await;
        self.forget_unflushed(&replica);
        let Some(mut partition) = replica.take(ReplicaState::Closed) else {
            self.settings.directories.unclean[replica.directory].store(true, Ordering::Relaxed);
            return None;
        };
        let mut committed = Vec::new();
        partition.fail_all(ErrorCode::NotLeaderOrFollower, &mut committed);
        self.finish_appends(committed);
        self.release_fetches(replica.key);
        let high_watermark = partition.high_watermark();
        let mut log = partition.into_log();
        let closed = self
            .settings
            .directories
            .threads
            .run("close log", move || {
                let closed = log.close(clock::now());
                closed.map(|()| (log.recovery_point(), log.log_start(), log.cleaned()))
            })
            .await;
        match closed {
            Ok((recovery_point, log_start, cleaned)) => Some(CheckpointEntry {
                directory: replica.directory,
                topic_partition: replica.topic_partition.clone(),
                recovery_point,
                high_watermark,
                log_start,
                cleaned,
            }),
            Err(error) => {
                tracing::error!(partition = %replica.topic_partition, "its log was not closed cleanly: {error}");
                self.settings.directories.fail(replica.directory);
                None
            }
        }
    }
}

fn partition_image(topic: &TopicImage, key: PartitionKey) -> Option<&Arc<PartitionImage>> {
    topic.partitions.get(usize::try_from(key.partition.0).ok()?)
}

/// Opens or creates the log of one partition. Blocks: for a file thread.
fn open_log(
    directories: &Directories,
    directory: usize,
    topic_partition: TopicPartition,
    key: PartitionKey,
    config: Arc<LogConfig>,
    same: Option<StartEntry>,
    other: Option<StartEntry>,
) -> Result<Log<OsFiles>, OpenFailure> {
    if let Some(stale) = other {
        // The topic was deleted and created again while this node was down.
        let log_dir = &directories.list[stale.directory].log_dir;
        let path = log_dir.rename_deleted(&topic_partition)?;
        log_dir.remove_deleted(&path)?;
    }
    let options = match same {
        Some(entry) => OpenOptions {
            dir: entry.found.dir,
            topic_partition,
            config,
            recovery_point: entry.found.recovery_point,
            log_start: entry.found.log_start,
            cleaned: entry.found.cleaned,
            clean: entry.clean,
        },
        None => {
            let log_dir = &directories.list[directory].log_dir;
            if log_dir.partition_dir(&topic_partition).exists() {
                // Left by a deletion that failed: a new topic must not inherit its records.
                let path = log_dir.rename_deleted(&topic_partition)?;
                log_dir.remove_deleted(&path)?;
            }
            OpenOptions {
                dir: log_dir.create_partition(&topic_partition, key.topic)?,
                topic_partition,
                config,
                recovery_point: Offset::ZERO,
                log_start: Offset::ZERO,
                cleaned: None,
                clean: true,
            }
        }
    };
    Ok(Log::open(&directories.log_context, options, clock::now())?)
}

/// Makes durable what recovery kept, which may have been in the page cache alone: under
/// `kuring.durability=fsync` nobody is shown a record that a power cut could take. Blocks.
fn sync_recovered(log: &mut Log<OsFiles>) -> Result<(), OpenFailure> {
    if let Some(job) = log.flush_job() {
        log.finish_flush(job.run(), clock::now()).map_err(crate::log::OpenError::from)?;
    }
    Ok(())
}

/// Why a partition's log is not in service.
#[derive(Debug, thiserror::Error)]
enum OpenFailure {
    #[error(transparent)]
    Directory(#[from] crate::log::DirError),
    #[error(transparent)]
    Log(#[from] crate::log::OpenError),
}
