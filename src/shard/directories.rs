//! The log directories of the process: which serve, what was found in them, and the room on their disks. Shared
//! by all shards; what changes is atomic.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::checkpoint::Checkpoints;
use super::cleaner::Cleaner;
use super::commit::CommitService;
use super::messages::{CheckpointEntry, CheckpointOffsets};
use super::space::Space;
use super::throttle::Throttle;
use crate::base::clock::Timestamp;
use crate::base::{TopicId, TopicPartition, fatal};
use crate::io::os::OsFiles;
use crate::io::threads::FileThreads;
use crate::log::{DirLock, FoundPartition, Gaps, LogContext, LogDir};

/// Partitions that do not exist yet and have a place: more are not remembered.
const PREFERRED_MAX: usize = 10_000;

/// A log directory that was opened.
pub struct Directory {
    pub log_dir: LogDir<OsFiles>,
    pub commit: CommitService,
    /// Keeps other brokers out.
    pub lock: DirLock,
    /// For the logs in it.
    pub context: Arc<LogContext<OsFiles>>,
    pub space: Space,
}

/// The log directories of the process and the threads that do their slow work.
pub struct Directories {
    /// Those that could be opened. The numbers from here on stand for the others, which never serve.
    pub list: Vec<Directory>,
    /// Paths of those that failed at the start.
    pub never_opened: Vec<PathBuf>,
    pub threads: FileThreads,
    /// For what readers wait for. A cold read may take as long as the disk's queue is, and an append that needs a file,
    /// or the metadata log, must not stand behind it; nor a reader behind syncs.
    pub readers: FileThreads,
    pub cleaner: Cleaner,
    /// What the start found on disk and no shard has opened yet.
    pub start_list: StartList,
    /// The copies among that: of partitions on their way to another directory.
    pub futures: StartList,
    /// Partitions in each directory, copies on their way there among them.
    partitions: Mutex<Vec<usize>>,
    /// Where partitions that do not exist yet are to go (AlterReplicaLogDirs).
    preferred: Mutex<HashMap<TopicPartition, usize>>,
    /// The one that holds the metadata log too: without it nothing can be promised.
    metadata: Option<usize>,
    failed: Vec<AtomicBool>,
    /// A shard has told the others to fail it.
    failing: Vec<AtomicBool>,
    /// Has a log that is not closed: the next start recovers.
    unclean: Vec<AtomicBool>,
    /// The broker is to end: no log is opened any more, and recovery gives up.
    stopping: Arc<AtomicBool>,
    pub(super) checkpoints: Checkpoints,
    pub(super) counters: DiskCounters,
    /// Of moves from one to another.
    moves: Mutex<Throttle>,
    /// The system does not let this process ask for write-back without a sync.
    lacks_write_back: AtomicBool,
}

/// Figures of all directories that are not a shard's.
#[derive(Default)]
pub(super) struct DiskCounters {
    pub read_errors: AtomicU64,
    pub scrubbed_bytes: AtomicU64,
    pub scrub_findings: AtomicU64,
    pub corrupt_reads: AtomicU64,
    pub strays_removed: AtomicU64,
    /// Bytes copied by moves, and the time that those were held up by their limit.
    pub moved_bytes: AtomicU64,
    pub moves_throttled_ms: AtomicU64,
}

/// The figures of the directories, to be shown. Counts since the start, except where it says "now".
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiskCounts {
    /// Now; those that failed at the start are among them.
    pub offline_directories: u64,
    /// Directories that refuse writes, now.
    pub full_directories: u64,
    /// How often a directory has become full.
    pub times_full: u64,
    /// Batches refused because their directory was full.
    pub appends_refused_for_space: u64,
    /// Directories without the reserve that they should have, now.
    pub reserves_missing: u64,
    /// Bytes that logs hold reserved ahead of their ends, now, and how often one wanted more.
    pub preallocated_bytes: u64,
    pub preallocations_refused: u64,
    /// Reads that the disk answered with an error.
    pub read_errors: u64,
    /// Fetches and look-ups that met a damaged batch.
    pub corrupt_reads: u64,
    pub scrubbed_bytes: u64,
    pub scrub_findings: u64,
    pub strays_removed: u64,
    /// Bytes that moves between directories have copied, and the time that the limit on them has held them up.
    pub moved_bytes: u64,
    pub moves_throttled_ms: u64,
}

/// Partitions found on disk at the start, handed out to the shards that own them.
#[derive(Default)]
pub struct StartList(Mutex<HashMap<TopicPartition, Vec<StartEntry>>>);

/// Where a partition was found.
#[derive(Clone)]
pub struct StartEntry {
    pub directory: usize,
    pub found: FoundPartition,
    /// The directory was closed cleanly: no recovery.
    pub clean: bool,
}

impl From<StartEntry> for CheckpointEntry {
    fn from(entry: StartEntry) -> Self {
        let offsets = CheckpointOffsets::from(&entry.found);
        Self { directory: entry.directory, topic_partition: entry.found.topic_partition, offsets }
    }
}

impl From<&FoundPartition> for CheckpointOffsets {
    fn from(found: &FoundPartition) -> Self {
        Self {
            // With a line the next start would take the gaps that this one believes for losses.
            recovery_point: (found.gaps == Gaps::BelowRecoveryPoint).then(|| found.durable_to()),
            high_watermark: found.high_watermark,
            log_start: found.first_offset(),
            cleaned: found.cleaned,
        }
    }
}

impl StartEntry {
    fn may_be(&self, topic: TopicId) -> bool {
        self.found.topic_id.is_none_or(|id| id == topic)
    }
}

impl StartList {
    pub fn new(entries: impl IntoIterator<Item = StartEntry>) -> Self {
        let mut by_name: HashMap<_, Vec<StartEntry>> = HashMap::new();
        for entry in entries {
            by_name.entry(entry.found.topic_partition.clone()).or_default().push(entry);
        }
        Self(Mutex::new(by_name))
    }

    /// Two directories that could be the same partition's: nobody can say which one is right.
    pub fn duplicate(&self) -> Option<(StartEntry, StartEntry)> {
        self.lock().values().find_map(|entries| {
            let pairs = entries
                .iter()
                .enumerate()
                .flat_map(|(index, first)| entries[index + 1..].iter().map(move |second| (first, second)));
            let mut same = pairs.filter(|(first, second)| match second.found.topic_id {
                Some(id) => first.may_be(id),
                None => true,
            });
            same.next().map(|(first, second)| (first.clone(), second.clone()))
        })
    }

    /// The entry of this very topic, and those of earlier ones of the name.
    pub(super) fn take(
        &self,
        name: &TopicPartition,
        topic: TopicId,
    ) -> (Option<StartEntry>, Vec<StartEntry>) {
        let mut entries = self.lock().remove(name).unwrap_or_default();
        let same = entries.iter().position(|entry| entry.may_be(topic));
        (same.map(|index| entries.swap_remove(index)), entries)
    }

    /// Whether [`StartList::take`] finds an entry of this very topic; with `moved` only one that a move has made whole.
    pub(super) fn has(&self, name: &TopicPartition, topic: TopicId, moved: bool) -> bool {
        let list = self.lock();
        let mut entries = list.get(name).into_iter().flatten();
        entries.find(|entry| entry.may_be(topic)).is_some_and(|entry| !moved || entry.found.moved.is_some())
    }

    /// Leaves entries to [`StartList::take_rest`].
    pub(super) fn put_back(&self, entries: Vec<StartEntry>) {
        for entry in entries {
            self.lock().entry(entry.found.topic_partition.clone()).or_default().push(entry);
        }
    }

    /// How many partitions nobody has taken.
    pub fn len(&self) -> usize {
        self.lock().values().map(Vec::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// What no shard wanted: partitions that the metadata does not know.
    pub fn take_rest(&self) -> Vec<StartEntry> {
        self.lock().drain().flat_map(|(_, entries)| entries).collect()
    }

    fn entries(&self) -> Vec<StartEntry> {
        self.lock().values().flatten().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TopicPartition, Vec<StartEntry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directories {
    /// `metadata` is the number of the directory that the metadata log is in, if it is in one of them; `stopping` is
    /// the flag that recovery looks at.
    pub fn new(
        list: Vec<Directory>,
        never_opened: Vec<PathBuf>,
        metadata: Option<usize>,
        threads: FileThreads,
        readers: FileThreads,
        (start_list, futures): (StartList, StartList),
        stopping: Arc<AtomicBool>,
    ) -> Self {
        let flags = || list.iter().map(|_| AtomicBool::new(false)).collect();
        let (failed, failing, unclean) = (flags(), flags(), flags());
        let cleaner = Cleaner::new(list.len());
        let partitions = Mutex::new(vec![0; list.len()]);
        let found = [&start_list, &futures].into_iter().flat_map(StartList::entries);
        let checkpoints = Checkpoints::new(list.len(), found.map(CheckpointEntry::from));
        Self {
            list,
            never_opened,
            threads,
            readers,
            cleaner,
            start_list,
            futures,
            partitions,
            preferred: Mutex::default(),
            metadata,
            failed,
            failing,
            unclean,
            stopping,
            checkpoints,
            counters: DiskCounters::default(),
            moves: Mutex::new(Throttle::new()),
            lacks_write_back: AtomicBool::new(false),
        }
    }

    pub fn path(&self, directory: usize) -> &Path {
        match self.list.get(directory) {
            Some(directory) => directory.log_dir.path(),
            None => &self.never_opened[directory - self.list.len()],
        }
    }

    /// The number of the directory that a client calls `path`.
    pub fn number_of(&self, path: &Path) -> Option<usize> {
        (0..self.count()).find(|&number| std::path::absolute(self.path(number)).is_ok_and(|own| own == path))
    }

    /// Remembers where a partition that does not exist yet is to go. False when too many are remembered.
    pub fn prefer(&self, topic_partition: TopicPartition, directory: usize) -> bool {
        let mut preferred = lock(&self.preferred);
        let has_room = preferred.len() < PREFERRED_MAX || preferred.contains_key(&topic_partition);
        if has_room {
            preferred.insert(topic_partition, directory);
        }
        has_room
    }

    /// The directory of a new partition: the one that was asked for, else the one with the fewest, full ones last
    /// (`LogManager.nextLogDirs`); it is counted there. Ties go round by shard.
    pub(super) fn place(&self, topic_partition: &TopicPartition, shard: usize) -> usize {
        let wanted = lock(&self.preferred).remove(topic_partition).filter(|&number| !self.has_failed(number));
        let mut partitions = lock(&self.partitions);
        let count = self.list.len();
        let turn = |number: usize| (number + count - shard % count) % count;
        let serving = (0..count).filter(|&number| !self.has_failed(number));
        let fewest = serving.min_by_key(|&number| (self.is_full(number), partitions[number], turn(number)));
        let number = wanted.or(fewest).unwrap_or(0);
        partitions[number] += 1;
        number
    }

    /// A partition comes (1) or goes (-1).
    pub(super) fn count_partition(&self, directory: usize, change: isize) {
        if let Some(partitions) = lock(&self.partitions).get_mut(directory) {
            *partitions = partitions.saturating_add_signed(change);
        }
    }

    pub(super) fn moves_throttle(&self) -> MutexGuard<'_, Throttle> {
        lock(&self.moves)
    }

    /// How many there are, opened or not.
    pub fn count(&self) -> usize {
        self.list.len() + self.never_opened.len()
    }

    /// The number of the directory with the metadata log, if it is one of these.
    pub fn metadata(&self) -> Option<usize> {
        self.metadata
    }

    pub fn has_failed(&self, directory: usize) -> bool {
        self.failed.get(directory).is_none_or(|failed| failed.load(Ordering::Relaxed))
    }

    /// Whether one of them does not serve.
    pub fn any_failed(&self) -> bool {
        (0..self.count()).any(|directory| self.has_failed(directory))
    }

    /// The disk has refused a write for want of room, and has not got room since.
    pub fn is_full(&self, directory: usize) -> bool {
        self.list.get(directory).is_some_and(|directory| directory.space.is_full())
    }

    /// True for the first failure of the directory: the one that is told to the shards.
    pub(super) fn begin_failure(&self, directory: usize) -> bool {
        self.failing.get(directory).is_some_and(|failing| !failing.swap(true, Ordering::Relaxed))
    }

    /// A log in the directory could not be closed, or was never opened: the marker of a clean shutdown would spare
    /// it the recovery that it needs.
    pub fn is_unclean(&self, directory: usize) -> bool {
        self.unclean[directory].load(Ordering::Relaxed)
    }

    pub fn mark_unclean(&self, directory: usize) {
        if let Some(unclean) = self.unclean.get(directory) {
            unclean.store(true, Ordering::Relaxed);
        }
    }

    /// Whether write-back cannot be asked for: then only a sync has the system write.
    pub(super) fn lacks_write_back(&self) -> bool {
        self.lacks_write_back.load(Ordering::Relaxed)
    }

    /// True for the first time.
    pub(super) fn note_no_write_back(&self) -> bool {
        !self.lacks_write_back.swap(true, Ordering::Relaxed)
    }

    /// From here on no log is opened.
    pub fn stop_opening(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// What the start found has been put aside: the checkpoint files are to forget it.
    pub fn forget_found(&self, entry: &StartEntry) {
        self.checkpoints.forget_found(entry.directory, &entry.found.topic_partition);
    }

    /// Marks a directory; ends the process when no other is left or the metadata log is in it, as Kafka does.
    pub(super) fn fail(&self, directory: usize) {
        let Some(failed) = self.failed.get(directory) else { return };
        failed.store(true, Ordering::Relaxed);
        if self.metadata == Some(directory) {
            fatal(format_args!(
                "{} has failed, and the metadata log is in it",
                self.path(directory).display()
            ));
        }
        if (0..self.list.len()).all(|index| self.has_failed(index)) {
            fatal("every log directory has failed");
        }
    }

    /// Removes strays that were put aside before `before`. Blocks: for a file thread.
    pub fn remove_strays(&self, before: Timestamp) {
        for (index, directory) in self.list.iter().enumerate() {
            if self.has_failed(index) {
                continue;
            }
            let strays = directory.log_dir.old_strays(before).unwrap_or_else(|error| {
                tracing::warn!(path = %self.path(index).display(), "strays cannot be listed: {error}");
                Vec::new()
            });
            for path in strays {
                match directory.log_dir.remove_deleted(&path) {
                    Ok(()) => {
                        self.counters.strays_removed.fetch_add(1, Ordering::Relaxed);
                        tracing::info!(path = %path.display(), "a stray partition is removed");
                    }
                    Err(error) => tracing::warn!("a stray partition is still there: {error}"),
                }
            }
        }
    }

    pub fn counts(&self) -> DiskCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sum = |of: fn(&Space) -> u64| self.list.iter().map(|directory| of(&directory.space)).sum();
        let preallocation = self.list.first().map(|directory| &directory.context.preallocation);
        DiskCounts {
            offline_directories: (0..self.count()).filter(|&index| self.has_failed(index)).count() as u64,
            full_directories: sum(|space| u64::from(space.is_full())),
            times_full: sum(Space::times_full),
            appends_refused_for_space: sum(Space::appends_refused),
            reserves_missing: sum(|space| u64::from(!space.has_reserve())),
            preallocated_bytes: preallocation.map_or(0, |all| all.held()),
            preallocations_refused: preallocation.map_or(0, |all| all.refused()),
            read_errors: get(&self.counters.read_errors),
            corrupt_reads: get(&self.counters.corrupt_reads),
            scrubbed_bytes: get(&self.counters.scrubbed_bytes),
            scrub_findings: get(&self.counters.scrub_findings),
            strays_removed: get(&self.counters.strays_removed),
            moved_bytes: get(&self.counters.moved_bytes),
            moves_throttled_ms: get(&self.counters.moves_throttled_ms),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
