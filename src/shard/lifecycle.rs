//! Partitions come and go with the cluster's image: open, configure, delete, close. All that touches a
//! directory runs on file threads.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::oneshot;
use futures::stream::FuturesUnordered;

use super::Shard;
use super::directories::{Directories, Directory, StartEntry};
use super::mesh::ReplyTo;
use super::messages::{CheckpointEntry, CheckpointOffsets, Reply};
use super::moves;
use super::placement::PartitionKey;
use super::replica::{Lack, Replica, ReplicaState};
use crate::base::{Offset, PartitionIndex, TopicId, TopicPartition, clock};
use crate::config::{Durability, LogConfig};
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, spawn, yield_if_needed};
use crate::log::{DirError, Fault, Gaps, Log, LogDir, OpenOptions};
use crate::metadata::{ConfigResource, Image, PartitionImage, TopicImage};
use crate::partition::Partition;
use crate::wire::ErrorCode;

/// Logs that one shard opens or closes at the same time.
const LOGS_AT_ONCE_MAX: usize = 64;

/// A log that could not be opened for want of room or descriptors is tried again after this.
const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How often a log that is to go looks whether its last job has come back.
pub(super) const JOB_POLL: Duration = Duration::from_millis(1);

impl Shard {
    /// Makes this shard's partitions what `image` says; answers when they are. Who leads is so at once. What has to wait
    /// for a disk, logs that come and go, waits for that of the images before: a topic may be back under its name.
    pub(super) fn publish(self: &Rc<Self>, reply_to: ReplyTo, image: Arc<Image>) {
        let old = self.image.replace(image.clone());
        self.know_brokers(&image);
        self.know_quotas(&old, &image);
        let changes = image.changes_since(&old);
        self.know_throttles(&changes, &image, old.version() == 0);
        // The first image tells of what was there before this process.
        let is_new = old.version() > 0;
        let mut gone = Vec::new();
        let mut wanted = Vec::new();
        for topic in &changes.topics_removed {
            gone.extend(self.mine(topic, 0));
        }
        for topic in &changes.topics_added {
            wanted.extend(self.mine(topic, 0).map(|key| (key, topic.clone())));
        }
        for (before, after) in &changes.topics_changed {
            wanted.extend(self.come_to_me(before, after).into_iter().map(|key| (key, after.clone())));
            self.update_roles(after);
            for key in self.come_to_me(after, before) {
                self.give_up_role(key, after);
                gone.push(key);
            }
        }
        // Followers may have gone, leaderships may have moved.
        self.wake_all_deletions();
        let configured = self.topics_configured_by(&changes.configs_changed);
        if gone.is_empty() && wanted.is_empty() && configured.is_empty() {
            self.mesh.push_reply(reply_to, Reply::Done);
            return;
        }
        let shard = self.clone();
        let (done, ended) = oneshot::channel();
        let before = self.publishing.replace(Some(ended));
        spawn(Queue::Control, "publish", async move {
            if let Some(before) = before {
                // An error: it has ended all the same.
                let _ = before.await;
            }
            for topic in configured {
                shard.update_config(&topic);
                // A default of all brokers concerns every topic there is.
                yield_if_needed().await;
            }
            // Deletions first: a topic may be back under its name, and so under its directory's.
            let mut deletions: FuturesUnordered<_> = gone.into_iter().map(|key| shard.delete(key)).collect();
            if !deletions.is_empty() {
                while deletions.next().await.is_some() {}
                // What the checkpoint files say of them must not meet a topic that comes under a name of theirs.
                shard.write_checkpoints().await;
            }
            let mut openings = Vec::with_capacity(wanted.len());
            let mut makes_some = false;
            for (key, topic) in wanted {
                let made = shard.place_new(key, &topic, is_new);
                makes_some |= made.is_some();
                openings.push((key, topic, made));
                yield_if_needed().await;
            }
            if makes_some {
                // Whether each has its line is asked again.
                let _ = shard.save_lines().await;
            }
            let openings =
                openings.into_iter().map(|(key, topic, made)| shard.open(key, topic, made, is_new));
            let mut openings = futures::stream::iter(openings).buffer_unordered(LOGS_AT_ONCE_MAX);
            while openings.next().await.is_some() {}
            let _ = done.send(());
            shard.mesh.push_reply(reply_to, Reply::Done);
        })
        .detach();
    }

    /// The keys of the partitions of `topic` from index `first` on that live on this shard.
    pub(super) fn mine(
        &self,
        topic: &Arc<TopicImage>,
        first: usize,
    ) -> impl Iterator<Item = PartitionKey> + use<> {
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

    /// The keys of the partitions that live on this shard in `after`, and did not in `before`. Of the same topic: most
    /// partitions are the same in both.
    fn come_to_me(&self, before: &TopicImage, after: &TopicImage) -> Vec<PartitionKey> {
        let broker = self.settings.broker;
        let has = |partition: &PartitionImage| partition.replicas.contains(&broker);
        let comes = |index: &usize| match (before.partitions.get(*index), &after.partitions[*index]) {
            (Some(old), new) if Arc::ptr_eq(old, new) => false,
            (Some(old), new) => has(new) && !has(old),
            (None, new) => has(new),
        };
        let come = (0..after.partitions.len()).filter(comes);
        let keys =
            come.map(|index| PartitionKey { topic: after.id, partition: PartitionIndex(index as i32) });
        keys.filter(|key| self.owner(*key) == self.id).collect()
    }

    /// The topics whose settings these resources have a part in.
    fn topics_configured_by(&self, changed: &[ConfigResource]) -> Vec<Arc<TopicImage>> {
        let image = self.image();
        let everywhere = changed.iter().any(|resource| match resource {
            ConfigResource::BrokerDefault => true,
            ConfigResource::Broker(broker) => *broker == self.settings.broker,
            _ => false,
        });
        if everywhere {
            return image.topics().cloned().collect();
        }
        let names = changed.iter().filter_map(|resource| match resource {
            ConfigResource::Topic(name) => image.topic(name).cloned(),
            _ => None,
        });
        names.collect()
    }

    fn update_config(self: &Rc<Self>, topic: &Arc<TopicImage>) {
        let config = self.log_config(&self.image(), topic);
        for key in self.mine(topic, 0) {
            let Some(replica) = self.replica(key) else { continue };
            if replica.with(|partition| partition.set_config(config.clone())).is_ok() {
                self.look_for_jobs(&replica);
            }
        }
    }

    /// Most partitions have the same settings as the one before: they share them.
    fn log_config(&self, image: &Image, topic: &TopicImage) -> Arc<LogConfig> {
        let broker = image.overrides(&ConfigResource::Broker(self.settings.broker));
        let default = image.overrides(&ConfigResource::BrokerDefault);
        let topic = image.overrides(&ConfigResource::Topic(topic.name.clone()));
        let config = self.settings.config.levels(broker, default).log_config(topic);
        let mut last = self.last_log_config.borrow_mut();
        match &*last {
            Some(last) if **last == config => Arc::clone(last),
            _ => Arc::clone(last.insert(Arc::new(config))),
        }
    }

    /// Gives a partition of which nothing is there its place, and tells of it. `is_new`: the topic came while this
    /// process ran.
    fn place_new(&self, key: PartitionKey, topic: &TopicImage, is_new: bool) -> Option<Rc<Replica>> {
        let directories = &self.settings.directories;
        if partition_image(topic, key).is_none() || directories.is_stopping() || self.stopping.get() {
            return None;
        }
        let name = TopicPartition { topic: topic.name.clone(), partition: key.partition };
        let is_there = directories.start_list.has(&name, key.topic, false)
            || directories.futures.has(&name, key.topic, true);
        if is_there || (!is_new && directories.any_failed()) {
            return None;
        }
        let directory = directories.place(&name, self.id.index());
        let replica = Replica::new(key, name, directory, None);
        self.replicas.borrow_mut().insert(key, replica.clone());
        self.tell_new(&replica);
        Some(replica)
    }

    /// Opens the log of a partition, or makes the one of [`Shard::place_new`].
    async fn open(
        self: &Rc<Self>,
        key: PartitionKey,
        topic: Arc<TopicImage>,
        made: Option<Rc<Replica>>,
        is_new: bool,
    ) {
        let directories = self.settings.directories.clone();
        if partition_image(&topic, key).is_none() || directories.is_stopping() || self.stopping.get() {
            // What was found stays in the start list, for the last checkpoints.
            return;
        }
        let topic_partition = TopicPartition { topic: topic.name.clone(), partition: key.partition };
        let (same, stale) = directories.start_list.take(&topic_partition, key.topic);
        let (future, others) = directories.futures.take(&topic_partition, key.topic);
        directories.futures.put_back(others);
        let is_moved = future.as_ref().is_some_and(|future| future.found.moved.is_some());
        let found = if is_moved { &future } else { &same };
        let found = found.as_ref().map(|entry| (entry.directory, entry.found.clone()));
        let is_lost = made.is_none() && found.is_none() && !is_new && directories.any_failed();
        let replica = made.unwrap_or_else(|| {
            let directory = match &found {
                Some((directory, _)) => {
                    directories.count_partition(*directory, 1);
                    *directory
                }
                None if is_lost => (0..directories.count())
                    .find(|&number| directories.has_failed(number))
                    .unwrap_or_default(),
                None => directories.place(&topic_partition, self.id.index()),
            };
            let replica = Replica::new(key, topic_partition, directory, found.map(|(_, found)| found));
            self.replicas.borrow_mut().insert(key, replica.clone());
            replica
        });
        if is_lost {
            // It may be there: an empty log elsewhere would take its place (`LogManager.getOrCreateLog`).
            *replica.state.borrow_mut() = ReplicaState::Offline;
            return;
        }
        let source = Source { same, future, stale };
        replica.lack.set((source.makes() && !is_new).then_some(Lack::All));
        if !self.open_replica(&replica, &topic, &source).await {
            self.open_later(replica, topic, source);
        }
    }

    /// Has a file thread open the replica's log; false when it was refused, by a full disk or for want of
    /// descriptors, and is to be tried again.
    async fn open_replica(
        self: &Rc<Self>,
        replica: &Rc<Replica>,
        topic: &Arc<TopicImage>,
        source: &Source,
    ) -> bool {
        let directories = self.settings.directories.clone();
        let durability = self.settings.config.durability;
        let opening = Opening {
            directory: replica.directory(),
            topic_partition: replica.topic_partition.clone(),
            key: replica.key,
            config: self.log_config(&self.image(), topic),
            source: source.clone(),
        };
        let config = opening.config.clone();
        let saved = if source.makes() { self.save_line(replica).await } else { Ok(()) };
        let opened = match saved {
            Ok(()) => {
                let directories = directories.clone();
                let open = move || {
                    let mut log = opening.run(&directories)?;
                    if durability == Durability::Fsync {
                        sync_recovered(&mut log)?;
                    }
                    Ok::<_, OpenFailure>(log)
                };
                self.settings.directories.threads.run("open log", open).await
            }
            Err(error) => Err(error.into()),
        };
        let waits = matches!(*replica.state.borrow(), ReplicaState::Opening | ReplicaState::Offline);
        if !waits || directories.has_failed(replica.directory()) {
            // Its directory has failed or the broker stops.
            if let Ok(log) = opened {
                directories.threads.drop_later(log);
            }
            return true;
        }
        let error = match opened {
            Ok(log) => {
                let image = self.image();
                let topic = image.topic_by_id(replica.key.topic).unwrap_or(topic);
                let found = replica.found_offsets().map(|found| found.high_watermark);
                let high_watermark = found.unwrap_or_else(|| log.log_start());
                if high_watermark > log.log_end() {
                    replica.lack.set(Some(Lack::Below(high_watermark)));
                }
                let key = replica.key;
                let mut partition = Partition::resume(log, key.topic, high_watermark, config, durability);
                partition.share_slots(self.slots.clone());
                let dir = partition.log().dir().to_path_buf();
                replica.go_online(partition);
                if let Some(image) = partition_image(topic, key) {
                    self.take_role(replica, image);
                }
                self.tell_directory(replica);
                source.put_aside().for_each(|entry| directories.forget_found(entry));
                self.look_for_jobs(replica);
                if source.was_moved() {
                    self.forget_move_later(replica.clone(), dir);
                }
                if let Some(future) = source.future_of_current() {
                    self.start_move(replica, future.directory, Some(future.clone()));
                }
                return true;
            }
            Err(error) => error,
        };
        *replica.state.borrow_mut() = ReplicaState::Offline;
        tracing::error!(partition = %replica.topic_partition, "its log cannot be opened: {error}");
        match error.fault() {
            Fault::Disk if !directories.is_stopping() => self.report_failure(replica, &error),
            Fault::NoSpace => self.note_full(replica.directory()),
            Fault::Disk | Fault::Corrupt | Fault::NoResources => {}
        }
        !error.fault().passes()
    }

    /// Has a log that is to be made in the checkpoint files, unless it has to wait for room or descriptors. A disk that
    /// fails fails the making, too.
    async fn save_line(self: &Rc<Self>, replica: &Replica) -> Result<(), DirError> {
        let is_saved = || replica.told.is_saved(&self.settings.directories.checkpoints, replica.directory());
        if is_saved() {
            return Ok(());
        }
        match self.save_lines().await {
            Err(error) if error.fault().passes() && !is_saved() => Err(error),
            _ => Ok(()),
        }
    }

    /// Tries to open a log that was refused until it is open, or nobody wants it any more.
    fn open_later(self: &Rc<Self>, replica: Rc<Replica>, topic: Arc<TopicImage>, source: Source) {
        replica.opens_later.set(true);
        let shard = self.clone();
        spawn(Queue::Back, "open log again", async move {
            loop {
                shard.sleep(OPEN_AGAIN_AFTER).await;
                let directories = &shard.settings.directories;
                if !replica.is_offline()
                    || shard.stopping.get()
                    || directories.is_stopping()
                    || directories.has_failed(replica.directory())
                {
                    return;
                }
                replica.prepare_runs.set(true);
                let done = shard.open_replica(&replica, &topic, &source).await;
                replica.prepare_runs.set(false);
                if done {
                    replica.opens_later.set(false);
                    if replica.is_offline() {
                        shard.report_lost_replicas().await;
                    }
                    return;
                }
            }
        })
        .detach();
    }

    async fn delete(self: &Rc<Self>, key: PartitionKey) {
        let Some(replica) = self.replicas.borrow_mut().remove(&key) else { return };
        self.unfollow(key);
        self.withdraw_offsets(&replica);
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
        self.forget_shares(key);
        // A job that is late would find another topic's files under its names.
        self.jobs_done(&replica).await;
        let directories = self.settings.directories.clone();
        let directory = replica.directory();
        directories.count_partition(directory, -1);
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
        while replica.is_busy() {
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

    /// Closes every log and answers with their last checkpoint entries.
    pub(super) fn stop(self: &Rc<Self>, reply_to: ReplyTo) {
        self.stopping.set(true);
        super::mesh::end_calls();
        self.end_turn();
        let replicas: Vec<Rc<Replica>> =
            self.replicas.borrow_mut().drain().map(|(_, replica)| replica).collect();
        let shard = self.clone();
        spawn(Queue::Control, "stop", async move {
            let closings = replicas.into_iter().map(|replica| shard.close(replica));
            let entries = futures::stream::iter(closings)
                .buffer_unordered(LOGS_AT_ONCE_MAX)
                .collect::<Vec<Vec<CheckpointEntry>>>()
                .await;
            shard.mesh.push_reply(reply_to, Reply::Checkpoint(entries.concat()));
        })
        .detach();
    }

    /// Closes the replica's log, and the copy of one that moves; their checkpoint entries.
    async fn close(self: &Rc<Self>, replica: Rc<Replica>) -> Vec<CheckpointEntry> {
        while replica.moving().is_some_and(|moving| !moving.has_ended()) {
            self.sleep(JOB_POLL).await;
        }
        let copy = replica.moving().map(|moving| moving.checkpoint_entry(&replica.topic_partition));
        self.close_log(replica).await.into_iter().chain(copy).collect()
    }

    async fn close_log(self: &Rc<Self>, replica: Rc<Replica>) -> Option<CheckpointEntry> {
        // The log must not be closed under a job, which may roll it or write its index.
        self.unfollow(replica.key);
        self.jobs_done(&replica).await;
        self.forget_unflushed(&replica);
        let Some(mut partition) = replica.take(ReplicaState::Closed) else {
            self.settings.directories.mark_unclean(replica.directory());
            let known = replica.found_offsets().or_else(|| replica.told.offsets());
            return known.map(|offsets| CheckpointEntry {
                directory: replica.directory(),
                topic_partition: replica.topic_partition.clone(),
                offsets,
            });
        };
        let mut committed = Vec::new();
        partition.fail_all(ErrorCode::NotLeaderOrFollower, &mut committed);
        self.finish_appends(committed);
        self.release_fetches(replica.key);
        self.forget_shares(replica.key);
        let high_watermark = partition.high_watermark();
        let mut log = partition.into_log();
        let closed = self
            .settings
            .directories
            .threads
            .run("close log", move || {
                let closed = log.close(clock::now());
                (closed, log.recovery_point_to_save(), log.log_start(), log.cleaned())
            })
            .await;
        let (closed, recovery_point, log_start, cleaned) = closed;
        if let Err(error) = closed {
            tracing::error!(partition = %replica.topic_partition, "its log was not closed cleanly: {error}");
            self.settings.directories.mark_unclean(replica.directory());
            if !error.fault().passes() {
                self.settings.directories.fail(replica.directory());
                return None;
            }
        }
        Some(CheckpointEntry {
            directory: replica.directory(),
            topic_partition: replica.topic_partition.clone(),
            offsets: CheckpointOffsets { recovery_point, high_watermark, log_start, cleaned },
        })
    }
}

pub(super) fn partition_image(topic: &TopicImage, key: PartitionKey) -> Option<&Arc<PartitionImage>> {
    topic.partitions.get(usize::try_from(key.partition.0).ok()?)
}

/// What the start found of a partition.
#[derive(Clone)]
struct Source {
    same: Option<StartEntry>,
    /// A copy on its way to another directory.
    future: Option<StartEntry>,
    /// Of earlier topics of the name.
    stale: Vec<StartEntry>,
}

impl Source {
    /// A move that has ended has left its note.
    fn was_moved(&self) -> bool {
        [&self.same, &self.future].into_iter().flatten().any(|entry| entry.found.moved.is_some())
    }

    /// There is no log to be opened.
    fn makes(&self) -> bool {
        self.same.is_none() && !self.was_moved()
    }

    /// What is not under its name any more once the log is open.
    fn put_aside(&self) -> impl Iterator<Item = &StartEntry> {
        let (same, future) = (self.same.as_ref(), self.future.as_ref());
        let was_moved = future.is_some_and(|future| future.found.moved.is_some());
        let left = same.filter(|_| was_moved).or(future.filter(|_| same.is_none() && !was_moved));
        self.stale.iter().chain(left)
    }

    /// The copy of a move that is to go on.
    fn future_of_current(&self) -> Option<&StartEntry> {
        self.future.as_ref().filter(|future| self.same.is_some() && future.found.moved.is_none())
    }
}

/// All it takes to open the log of one partition on a file thread.
struct Opening {
    directory: usize,
    topic_partition: TopicPartition,
    key: PartitionKey,
    config: Arc<LogConfig>,
    source: Source,
}

impl Opening {
    /// Opens or creates the log. Blocks: for a file thread.
    fn run(self, directories: &Directories) -> Result<Log<OsFiles>, OpenFailure> {
        if directories.is_stopping() {
            return Err(OpenFailure::Stopping);
        }
        let Self { directory, topic_partition, key, config, source } = self;
        for stale in source.stale {
            // The topic was deleted and created again while this node was down, or the directory was offline.
            put_aside(&directories.list[stale.directory].log_dir, &topic_partition)?;
        }
        let home = &directories.list[directory];
        let current = match (source.same, source.future) {
            (same, Some(future)) if future.found.moved.is_some() => {
                Some(moves::finish_interrupted(directories, same, future)?)
            }
            (None, Some(future)) if future.found.dir.exists() => {
                // What it was a copy of is gone, and nobody knows how much of that it has.
                let path = moves::put_copy_aside(directories, &future)?;
                tracing::warn!(path = %path.display(), "the copy of a partition that is not there is put aside");
                None
            }
            (same, _) => same,
        };
        let Some(entry) = current else {
            // Left by a deletion or a creation that failed: a new topic must not inherit its records.
            put_aside(&home.log_dir, &topic_partition)?;
            return create(home, topic_partition, key.topic, config);
        };
        if entry.found.is_note_in_checkpoints() {
            home.log_dir.forget_moved(&entry.found.dir)?;
        }
        let options = OpenOptions {
            log_start: entry.found.first_offset(),
            recovery_point: entry.found.durable_to(),
            dir: entry.found.dir,
            topic_partition,
            config,
            cleaned: entry.found.cleaned,
            gaps: entry.found.gaps,
            clean: entry.clean,
        };
        Ok(Log::open(&home.context, options, clock::now())?)
    }
}

/// Makes the log of a new partition, or leaves nothing behind. Blocks: for a file thread.
fn create(
    home: &Directory,
    topic_partition: TopicPartition,
    topic: TopicId,
    config: Arc<LogConfig>,
) -> Result<Log<OsFiles>, OpenFailure> {
    let dir = home.log_dir.partition_dir(&topic_partition);
    let options = OpenOptions {
        dir: dir.clone(),
        topic_partition: topic_partition.clone(),
        config,
        recovery_point: Offset::ZERO,
        log_start: Offset::ZERO,
        cleaned: None,
        gaps: Gaps::BelowRecoveryPoint,
        clean: true,
    };
    let made = home.log_dir.create_partition(&topic_partition, topic).map_err(OpenFailure::from);
    let opened = made.and_then(|_| Ok(Log::open(&home.context, options, clock::now())?));
    if opened.is_err()
        && let Err(left) = home.log_dir.remove_deleted(&dir)
    {
        tracing::warn!("what was made of a new partition is still there: {left}");
    }
    opened
}

/// Renames what has the name of a partition that is to be made: `-stray`, for whoever may want it back.
fn put_aside(log_dir: &LogDir<OsFiles>, topic_partition: &TopicPartition) -> Result<(), DirError> {
    if log_dir.partition_dir(topic_partition).exists() {
        let path = log_dir.mark_stray(topic_partition)?;
        tracing::warn!(path = %path.display(), "a directory of the name of a new partition is put aside");
    }
    Ok(())
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
    #[error("the broker stops")]
    Stopping,
}

impl OpenFailure {
    fn fault(&self) -> Fault {
        match self {
            OpenFailure::Directory(error) => error.fault(),
            OpenFailure::Log(error) => error.fault(),
            OpenFailure::Stopping => Fault::Corrupt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::BrokerId;
    use crate::log::{DirLock, LogContext};
    use crate::shard::{CommitService, Space};

    #[test]
    fn a_creation_that_fails_leaves_nothing_of_the_partition() {
        let folder = tempfile::tempdir().unwrap();
        let home = Directory {
            lock: DirLock::acquire(folder.path()).unwrap(),
            log_dir: LogDir::open(OsFiles, folder.path(), "cluster", BrokerId(1)).unwrap().0,
            commit: CommitService::start(folder.path()).unwrap(),
            context: Arc::new(LogContext::new(OsFiles)),
            space: Space::new(folder.path(), 0),
        };
        let name = TopicPartition::new("t", PartitionIndex(0));
        let dir = home.log_dir.partition_dir(&name);
        // In the way of the last of its files.
        std::fs::create_dir_all(dir.join("00000000000000000000.timeindex")).unwrap();
        let topic = TopicId(uuid::Uuid::from_u128(7));
        assert!(create(&home, name.clone(), topic, Arc::default()).is_err());
        assert!(!dir.exists(), "the next attempt would take it for another topic's and put it aside");
        assert!(create(&home, name, topic, Arc::default()).is_ok());
    }
}
