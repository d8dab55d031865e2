//! A log directory (an entry of `log.dirs`): whose it is, which partitions it holds, and the files that speak of
//! all of them. *File thread.*
//!
//! The files are Kafka's: `meta.properties`, `.lock`, `.kafka_cleanshutdown`, `recovery-point-offset-checkpoint`,
//! `replication-offset-checkpoint`, `log-start-offset-checkpoint`, `cleaner-offset-checkpoint`, and
//! `partition.metadata` in each partition.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::base::clock::Timestamp;
use crate::base::{BrokerEpoch, BrokerId, Offset, TopicId, TopicPartition};
use crate::io::Files;
use crate::io::lock::FileLock;

use super::checkpoint;
use super::error::Context;
use super::names::{self, PartitionDir};
use super::recovery;
use super::{Fault, Gaps, LogError};

const META_FILE: &str = "meta.properties";
const CLEAN_FILE: &str = ".kafka_cleanshutdown";
const CLEAN_BYTES_MAX: usize = 4096;
const LOCK_FILE: &str = ".lock";
const PARTITION_FILE: &str = "partition.metadata";

/// Fewer directories are looked into by the calling thread alone.
const LOOKED_INTO_TOGETHER_MIN: usize = 256;

/// Beyond the processors, for those that wait for the disk.
const LOOKING_THREADS: usize = 8;

/// `meta.properties` and `partition.metadata` are a few lines; more is damage.
const PROPERTIES_BYTES_MAX: usize = 64 << 10;

/// Why a log directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("{} is in use by another broker, of kuring or Apache Kafka", path.display())]
    Locked { path: PathBuf },
    #[error("{}: {problem}", path.display())]
    Properties { path: PathBuf, problem: String },
    #[error("{} belongs to {theirs}, not to {ours}", path.display())]
    Foreign { path: PathBuf, ours: String, theirs: String },
}

impl DirError {
    /// A service of the directory could not be started.
    pub fn service(path: &Path, source: io::Error) -> Self {
        LogError { what: "serve", path: path.to_path_buf(), source }.into()
    }

    /// What it means for the directory.
    pub fn fault(&self) -> Fault {
        match self {
            DirError::Log(error) => error.fault(),
            _ => Fault::Corrupt,
        }
    }
}

/// The files with an offset per partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checkpoint {
    RecoveryPoint,
    HighWatermark,
    LogStart,
    Cleaner,
}

impl Checkpoint {
    fn file(self) -> &'static str {
        match self {
            Checkpoint::RecoveryPoint => "recovery-point-offset-checkpoint",
            Checkpoint::HighWatermark => "replication-offset-checkpoint",
            Checkpoint::LogStart => "log-start-offset-checkpoint",
            Checkpoint::Cleaner => "cleaner-offset-checkpoint",
        }
    }
}

/// The identity of a log directory (`directory.id`, KIP-858); printed as Kafka prints ids.
pub type DirectoryId = TopicId;

/// `meta.properties`, version 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaProperties {
    pub cluster_id: String,
    pub node_id: BrokerId,
    pub directory_id: DirectoryId,
}

/// A partition's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundPartition {
    pub topic_partition: TopicPartition,
    /// `None`: no `partition.metadata`; the directory was made by something old or was not finished.
    pub topic_id: Option<TopicId>,
    pub dir: PathBuf,
    pub recovery_point: Offset,
    pub high_watermark: Offset,
    pub log_start: Offset,
    /// `None`: compaction has never cleaned it.
    pub cleaned: Option<Offset>,
    pub gaps: Gaps,
    /// The note of a move between log directories.
    pub moved: Option<Moved>,
}

/// What a move between log directories has noted in the new one: all of the partition is there, and on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    pub log_start: Offset,
    pub log_end: Offset,
}

impl FoundPartition {
    /// The log start of the checkpoint or, if that is behind, of the note.
    pub fn first_offset(&self) -> Offset {
        self.moved.map_or(self.log_start, |moved| moved.log_start.max(self.log_start))
    }

    /// There is a note of a move that is needed no more.
    pub fn is_note_in_checkpoints(&self) -> bool {
        self.moved
            .is_some_and(|moved| moved.log_start <= self.log_start && moved.log_end <= self.recovery_point)
    }

    /// The recovery point of the checkpoint or, if that is behind, of the note.
    pub fn durable_to(&self) -> Offset {
        self.moved.map_or(self.recovery_point, |moved| moved.log_end.max(self.recovery_point))
    }
}

/// What a log directory holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The last shutdown was clean. The marker is gone now.
    pub clean: bool,
    /// Of the registration under which it was, if the marker says so.
    pub clean_epoch: Option<BrokerEpoch>,
    pub partitions: Vec<FoundPartition>,
    /// Copies of partitions that are on their way here.
    pub futures: Vec<FoundPartition>,
    /// Directories whose deletion was begun: [`LogDir::remove_deleted`] them.
    pub deleted: Vec<PathBuf>,
}

/// An open log directory.
#[derive(Debug)]
pub struct LogDir<F: Files> {
    files: F,
    path: PathBuf,
    meta: MetaProperties,
}

/// Keeps other brokers, Apache Kafka's too, out of a directory as long as it lives.
#[derive(Debug)]
pub struct DirLock {
    _lock: FileLock,
}

impl DirLock {
    /// Makes the directory if need be and locks it. On the operating system's files only.
    pub fn acquire(path: &Path) -> Result<DirLock, DirError> {
        std::fs::create_dir_all(path).context("create", path)?;
        let lock = path.join(LOCK_FILE);
        match FileLock::try_take(&lock).context("lock", &lock)? {
            Some(lock) => Ok(DirLock { _lock: lock }),
            None => Err(DirError::Locked { path: path.to_path_buf() }),
        }
    }
}

impl MetaProperties {
    /// `None`: the directory is new.
    pub fn read<F: Files>(files: &F, dir: &Path) -> Result<Option<MetaProperties>, DirError> {
        let path = dir.join(META_FILE);
        let Some(properties) = read_properties(files, &path, '=')? else { return Ok(None) };
        match get(&properties, &path, "version")? {
            1 => {}
            other => return Err(problem(&path, format!("version {other}; only 1 is supported"))),
        }
        let cluster_id: String = get(&properties, &path, "cluster.id")?;
        let node_id = BrokerId(get(&properties, &path, "node.id")?);
        // Directories of Kafka before 3.7 have none.
        let directory_id = match properties.contains_key("directory.id") {
            true => get(&properties, &path, "directory.id")?,
            false => TopicId::ZERO,
        };
        Ok(Some(MetaProperties { cluster_id, node_id, directory_id }))
    }

    fn write<F: Files>(&self, files: &F, dir: &Path) -> Result<(), LogError> {
        let path = dir.join(META_FILE);
        let MetaProperties { cluster_id, node_id, directory_id } = self;
        let text =
            format!("cluster.id={cluster_id}\ndirectory.id={directory_id}\nnode.id={node_id}\nversion=1\n");
        files.write_atomically(&path, text.as_bytes()).context("write", &path)
    }
}

impl<F: Files> LogDir<F> {
    /// Makes a directory that has no `meta.properties` that one, with an id of its own where `directory_id` is `None`; its id.
    /// Take the [`DirLock`] first.
    pub fn format(
        files: &F,
        path: &Path,
        cluster_id: &str,
        node_id: BrokerId,
        directory_id: Option<DirectoryId>,
    ) -> Result<DirectoryId, DirError> {
        recovery::create_dir(files, path)?;
        let directory_id = directory_id.unwrap_or_else(|| TopicId(uuid::Uuid::new_v4()));
        let meta = MetaProperties { cluster_id: cluster_id.to_owned(), node_id, directory_id };
        meta.write(files, path)?;
        Ok(directory_id)
    }

    /// Opens a directory for the node `node_id` of the cluster `cluster_id`, a new one if there is none, and
    /// lists its partitions. Take the [`DirLock`] first. The clean-shutdown marker is removed: what comes now
    /// is not clean until it says so.
    pub fn open(
        files: F,
        path: &Path,
        cluster_id: &str,
        node_id: BrokerId,
    ) -> Result<(LogDir<F>, Found), DirError> {
        recovery::create_dir(&files, path)?;
        let known = MetaProperties::read(&files, path)?;
        let meta = match known {
            Some(meta) if meta.cluster_id != cluster_id => {
                return Err(foreign(path, "cluster", cluster_id, &meta.cluster_id));
            }
            Some(meta) if meta.node_id != node_id => {
                return Err(foreign(path, "node", &node_id.to_string(), &meta.node_id.to_string()));
            }
            Some(meta) if !meta.directory_id.is_zero() => meta,
            _ => {
                let directory_id = TopicId(uuid::Uuid::new_v4());
                let meta = MetaProperties { cluster_id: cluster_id.to_owned(), node_id, directory_id };
                meta.write(&files, path)?;
                meta
            }
        };
        let dir = LogDir { files, path: path.to_path_buf(), meta };
        let found = dir.list()?;
        Ok((dir, found))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn meta(&self) -> &MetaProperties {
        &self.meta
    }

    pub fn id(&self) -> DirectoryId {
        self.meta.directory_id
    }

    pub(super) fn files(&self) -> &F {
        &self.files
    }

    /// Where the partition's files are or would be.
    pub fn partition_dir(&self, topic_partition: &TopicPartition) -> PathBuf {
        self.path.join(topic_partition.to_string())
    }

    /// Makes the directory of a partition and its `partition.metadata`; durable when it returns.
    pub fn create_partition(
        &self,
        topic_partition: &TopicPartition,
        topic_id: TopicId,
    ) -> Result<PathBuf, DirError> {
        let dir = self.partition_dir(topic_partition);
        self.create_in(&dir, topic_id)?;
        Ok(dir)
    }

    pub(super) fn create_in(&self, dir: &Path, topic_id: TopicId) -> Result<(), DirError> {
        self.files.create_dir_all(dir).context("create", dir)?;
        let path = dir.join(PARTITION_FILE);
        let text = format!("version: 0\ntopic_id: {topic_id}");
        self.files.write_atomically(&path, text.as_bytes()).context("write", &path)?;
        self.sync()
    }

    /// Begins the deletion of a partition: its directory is called `topic-N.<unique>-delete` now, and the name is
    /// free. Jobs of its log must be done.
    pub fn rename_deleted(&self, topic_partition: &TopicPartition) -> Result<PathBuf, DirError> {
        self.rename(topic_partition, "-delete")
    }

    /// Puts a partition aside that this broker has no business with.
    pub fn mark_stray(&self, topic_partition: &TopicPartition) -> Result<PathBuf, DirError> {
        self.rename(topic_partition, "-stray")
    }

    /// Strays that were put aside before `before`; on the operating system's files only.
    pub fn old_strays(&self, before: Timestamp) -> io::Result<Vec<PathBuf>> {
        let mut old = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_stray = name.to_str().and_then(PartitionDir::parse) == Some(PartitionDir::Stray);
            // Renaming a directory changes its `ctime`.
            if is_stray && entry.metadata()?.ctime().saturating_mul(1000) <= before.0 {
                old.push(entry.path());
            }
        }
        Ok(old)
    }

    /// Removes a directory that [`LogDir::rename_deleted`] made.
    pub fn remove_deleted(&self, dir: &Path) -> Result<(), DirError> {
        match self.files.remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LogError { what: "remove", path: dir.to_path_buf(), source: error }.into())
            }
            _ => self.sync(),
        }
    }

    /// Replaces a checkpoint file.
    pub fn write_checkpoint(
        &self,
        checkpoint: Checkpoint,
        entries: &[(TopicPartition, Offset)],
    ) -> Result<(), DirError> {
        let path = self.path.join(checkpoint.file());
        let text = checkpoint::encode_offsets(entries);
        Ok(self.files.write_atomically(&path, text.as_bytes()).context("write", &path)?)
    }

    /// The file was written once.
    pub fn has_checkpoint(&self, checkpoint: Checkpoint) -> bool {
        self.files.exists(&self.path.join(checkpoint.file())).unwrap_or(true)
    }

    /// The last step of a clean shutdown: all logs are closed, all checkpoints are written.
    pub fn mark_clean_shutdown(&self, epoch: BrokerEpoch) -> Result<(), DirError> {
        let path = self.path.join(CLEAN_FILE);
        let text = format!("{{\"version\":0,\"brokerEpoch\":{epoch}}}");
        Ok(self.files.write_atomically(&path, text.as_bytes()).context("write", &path)?)
    }

    fn sync(&self) -> Result<(), DirError> {
        Ok(self.files.sync_dir(&self.path).context("sync", &self.path)?)
    }

    fn rename(&self, topic_partition: &TopicPartition, suffix: &str) -> Result<PathBuf, DirError> {
        let to = self.path.join(names::marked_dir(topic_partition, suffix));
        self.rename_to(&self.partition_dir(topic_partition), to)
    }

    pub(super) fn rename_to(&self, from: &Path, to: PathBuf) -> Result<PathBuf, DirError> {
        self.files.rename(from, &to).context("rename", from)?;
        self.sync()?;
        Ok(to)
    }

    fn list(&self) -> Result<Found, DirError> {
        let clean_path = self.path.join(CLEAN_FILE);
        let clean = self.files.exists(&clean_path).context("look for", &clean_path)?;
        let clean_epoch = match clean {
            true => self.files.read_small(&clean_path, CLEAN_BYTES_MAX).ok().and_then(|text| epoch_of(&text)),
            false => None,
        };
        let recovery_points = self.read_checkpoint(Checkpoint::RecoveryPoint)?.unwrap_or_default();
        let high_watermarks = self.read_checkpoint(Checkpoint::HighWatermark)?.unwrap_or_default();
        let log_starts = self.read_checkpoint(Checkpoint::LogStart)?.unwrap_or_default();
        let cleaned = self.read_checkpoint(Checkpoint::Cleaner)?.unwrap_or_default();
        let noted = Noted { recovery_points, high_watermarks, log_starts, cleaned };
        let (mut partitions, mut futures, mut deleted) = (Vec::new(), Vec::new(), Vec::new());
        let entries = self.files.list(&self.path).context("list", &self.path)?;
        let dirs: Vec<_> = entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name).collect();
        for (name, found) in self.look_into(&dirs, &noted)? {
            match PartitionDir::parse(name) {
                Some(PartitionDir::Delete) => deleted.push(self.path.join(name)),
                Some(PartitionDir::Future(_)) => futures.extend(found),
                _ => partitions.extend(found),
            }
        }
        if clean {
            self.files.remove_file(&clean_path).context("remove", &clean_path)?;
            self.sync()?;
        }
        Ok(Found { clean, clean_epoch, partitions, futures, deleted })
    }

    /// What each of the directories in `names` has of a partition, in their order. By several threads where they are many:
    /// two files of each are opened, which may have to be found on the disk.
    fn look_into<'a>(
        &self,
        names: &'a [String],
        noted: &Noted,
    ) -> Result<Vec<(&'a str, Option<FoundPartition>)>, DirError> {
        let look = |name: &'a String| Ok((name.as_str(), self.look_into_one(name, noted)?));
        if names.len() < LOOKED_INTO_TOGETHER_MIN {
            return names.iter().map(look).collect();
        }
        let part = names.len().div_ceil(LOOKING_THREADS);
        std::thread::scope(|scope| {
            let look = &look;
            let parts: Vec<_> = names
                .chunks(part)
                .map(|part| scope.spawn(move || part.iter().map(look).collect::<Result<Vec<_>, _>>()))
                .collect();
            let mut all = Vec::with_capacity(names.len());
            for part in parts {
                all.append(&mut part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(all)
        })
    }

    fn look_into_one(&self, name: &str, noted: &Noted) -> Result<Option<FoundPartition>, DirError> {
        let Some(PartitionDir::Live(topic_partition) | PartitionDir::Future(topic_partition)) =
            PartitionDir::parse(name)
        else {
            return Ok(None);
        };
        let dir = self.path.join(name);
        let offset = |offsets: &HashMap<TopicPartition, Offset>| {
            offsets.get(&topic_partition).copied().unwrap_or(Offset::ZERO)
        };
        let moved = self.read_note(&dir)?;
        let has_recovery_point = moved.is_some() || noted.recovery_points.contains_key(&topic_partition);
        Ok(Some(FoundPartition {
            topic_id: self.read_partition_metadata(&dir)?,
            moved,
            dir,
            recovery_point: offset(&noted.recovery_points),
            high_watermark: offset(&noted.high_watermarks),
            log_start: offset(&noted.log_starts),
            cleaned: noted.cleaned.get(&topic_partition).copied(),
            gaps: match has_recovery_point {
                true => Gaps::BelowRecoveryPoint,
                false => Gaps::Anywhere,
            },
            topic_partition,
        }))
    }

    /// `None`: there is no such file, or it is damaged.
    fn read_checkpoint(
        &self,
        checkpoint: Checkpoint,
    ) -> Result<Option<HashMap<TopicPartition, Offset>>, DirError> {
        let path = self.path.join(checkpoint.file());
        let bytes = match self.files.read_small(&path, checkpoint::OFFSETS_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LogError { what: "read", path, source }.into()),
        };
        match checkpoint::decode_offsets(&bytes) {
            Ok(entries) => Ok(Some(entries.into_iter().collect())),
            // Without it everything counts as dirty: a cleaning more.
            Err(source) if checkpoint == Checkpoint::Cleaner => {
                tracing::warn!(path = %path.display(), %source, "the cleaner's checkpoint is of no use");
                Ok(None)
            }
            Err(error) => {
                // As `LogManager.loadLogs`: recovery reads all of the logs, and they start with their first segment.
                tracing::error!(path = %path.display(), "the checkpoint file is of no use and taken for empty: {error}");
                Ok(None)
            }
        }
    }

    fn read_partition_metadata(&self, dir: &Path) -> Result<Option<TopicId>, DirError> {
        let path = dir.join(PARTITION_FILE);
        let Some(properties) = read_properties(&self.files, &path, ':')? else { return Ok(None) };
        match get(&properties, &path, "version")? {
            0 => get(&properties, &path, "topic_id").map(Some),
            other => Err(problem(&path, format!("version {other}; only 0 is supported"))),
        }
    }
}

/// What the checkpoint files say of the partitions.
struct Noted {
    recovery_points: HashMap<TopicPartition, Offset>,
    high_watermarks: HashMap<TopicPartition, Offset>,
    log_starts: HashMap<TopicPartition, Offset>,
    cleaned: HashMap<TopicPartition, Offset>,
}

fn problem(path: &Path, problem: impl Into<String>) -> DirError {
    DirError::Properties { path: path.to_path_buf(), problem: problem.into() }
}

fn foreign(path: &Path, what: &str, ours: &str, theirs: &str) -> DirError {
    let [ours, theirs] = [ours, theirs].map(|id| format!("{what} {id}"));
    DirError::Foreign { path: path.to_path_buf(), ours, theirs }
}

/// `name<separator>value` lines; `#` and `!` begin comments. `None`: no such file.
fn read_properties<F: Files>(
    files: &F,
    path: &Path,
    separator: char,
) -> Result<Option<HashMap<String, String>>, DirError> {
    let bytes = match files.read_small(path, PROPERTIES_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(LogError { what: "read", path: path.to_path_buf(), source }.into()),
    };
    let text = std::str::from_utf8(&bytes).map_err(|_| problem(path, "is not text"))?;
    let mut properties = HashMap::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let (name, value) =
            line.split_once(separator).ok_or_else(|| problem(path, format!("`{line}` is not a property")))?;
        properties.insert(name.trim().to_owned(), value.trim().to_owned());
    }
    Ok(Some(properties))
}

fn get<T: FromStr>(properties: &HashMap<String, String>, path: &Path, name: &str) -> Result<T, DirError> {
    let value = properties.get(name).ok_or_else(|| problem(path, format!("`{name}` is missing")))?;
    value.parse().map_err(|_| problem(path, format!("`{name}` cannot be `{value}`")))
}

/// What the marker of a clean shutdown says of the broker's registration, as Kafka and kuring write it.
fn epoch_of(marker: &[u8]) -> Option<BrokerEpoch> {
    let (_, after) = std::str::from_utf8(marker).ok()?.split_once("\"brokerEpoch\"")?;
    let number = after.trim_start().strip_prefix(':')?.trim_start();
    let end = number.find(|letter: char| letter != '-' && !letter.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().ok().filter(|epoch| *epoch >= 0).map(BrokerEpoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::PartitionIndex;
    use crate::io::mem::{Crash, MemFiles};
    use crate::io::os::OsFiles;

    fn open(files: &MemFiles) -> Result<(LogDir<MemFiles>, Found), DirError> {
        LogDir::open(files.clone(), Path::new("/data"), "kuring-cluster", BrokerId(1))
    }

    #[test]
    fn a_directory_comes_back_as_it_was_left() {
        let files = MemFiles::new(1);
        let (dir, found) = open(&files).unwrap();
        let empty =
            Found { clean: false, clean_epoch: None, partitions: vec![], futures: vec![], deleted: vec![] };
        assert_eq!(found, empty);
        let topic_id = TopicId(uuid::Uuid::from_u128(77));
        let (kept, gone) =
            (TopicPartition::new("a-b", PartitionIndex(2)), TopicPartition::new("x", PartitionIndex(0)));
        dir.create_partition(&kept, topic_id).unwrap();
        dir.create_partition(&gone, topic_id).unwrap();
        let deleted = dir.rename_deleted(&gone).unwrap();
        dir.write_checkpoint(Checkpoint::RecoveryPoint, &[(kept.clone(), Offset(9))]).unwrap();
        dir.write_checkpoint(Checkpoint::HighWatermark, &[(kept.clone(), Offset(8))]).unwrap();
        dir.write_checkpoint(Checkpoint::LogStart, &[(kept.clone(), Offset(3))]).unwrap();
        dir.write_checkpoint(Checkpoint::Cleaner, &[(kept.clone(), Offset(6))]).unwrap();
        dir.mark_clean_shutdown(BrokerEpoch(5)).unwrap();
        files.crash(Crash::Machine);

        let (again, found) = open(&files).unwrap();
        assert_eq!(again.id(), dir.id());
        let partition = FoundPartition {
            dir: dir.partition_dir(&kept),
            topic_partition: kept,
            topic_id: Some(topic_id),
            recovery_point: Offset(9),
            high_watermark: Offset(8),
            log_start: Offset(3),
            cleaned: Some(Offset(6)),
            gaps: Gaps::BelowRecoveryPoint,
            moved: None,
        };
        assert_eq!(
            found,
            Found {
                clean: true,
                clean_epoch: Some(BrokerEpoch(5)),
                partitions: vec![partition],
                futures: vec![],
                deleted: vec![deleted.clone()]
            }
        );
        again.remove_deleted(&deleted).unwrap();
        files.crash(Crash::Machine);
        let (_, found) = open(&files).unwrap();
        assert!(!found.clean && found.clean_epoch.is_none(), "the marker counts once");
        assert!(found.deleted.is_empty());
    }

    #[test]
    fn many_partitions_are_looked_into_by_threads_and_found_in_order() {
        let files = MemFiles::new(1);
        let (dir, _) = open(&files).unwrap();
        let count = 2 * LOOKED_INTO_TOGETHER_MIN as u32 + 3;
        let partition = |number| TopicPartition::new("t", PartitionIndex(number as i32));
        let id = |number| TopicId(uuid::Uuid::from_u128(u128::from(number)));
        for number in 1..=count {
            dir.create_partition(&partition(number), id(number)).unwrap();
        }
        let deleted = dir.rename_deleted(&partition(7)).unwrap();
        let future = dir.create_future(&partition(7), id(7)).unwrap();
        dir.write_checkpoint(Checkpoint::RecoveryPoint, &[(partition(count), Offset(9))]).unwrap();
        let (_, found) = open(&files).unwrap();
        assert_eq!((found.deleted, found.partitions.len()), (vec![deleted], count as usize - 1));
        assert_eq!(found.futures.iter().map(|found| &found.dir).collect::<Vec<_>>(), [&future]);
        let listed: Vec<_> = files.list(dir.path()).unwrap();
        let listed = listed.iter().map(|entry| dir.path().join(&entry.name));
        let listed: Vec<_> =
            listed.filter(|dir| found.partitions.iter().any(|found| found.dir == *dir)).collect();
        assert_eq!(found.partitions.iter().map(|found| found.dir.clone()).collect::<Vec<_>>(), listed);
        for found in &found.partitions {
            let number = found.topic_partition.partition.0 as u32;
            assert_eq!(found.topic_id, Some(id(number)), "{}", found.topic_partition);
            assert_eq!(found.recovery_point, Offset(if number == count { 9 } else { 0 }));
        }
        // What one of the threads finds wrong is told.
        let damaged = dir.partition_dir(&partition(count / 2)).join(PARTITION_FILE);
        files.write_atomically(&damaged, b"version: 7\n").unwrap();
        assert!(open(&files).unwrap_err().to_string().contains("version 7"));
    }

    #[test]
    fn a_foreign_or_damaged_directory_is_refused() {
        let files = MemFiles::new(1);
        let (dir, _) = open(&files).unwrap();
        let other = LogDir::open(files.clone(), dir.path(), "kuring-cluster", BrokerId(2));
        assert!(matches!(other, Err(DirError::Foreign { .. })));
        let other = LogDir::open(files.clone(), dir.path(), "other", BrokerId(1));
        assert_eq!(
            other.unwrap_err().to_string(),
            "/data belongs to cluster kuring-cluster, not to cluster other"
        );
        files.write_atomically(&dir.path().join(META_FILE), b"version=1\ncluster.id=c\n").unwrap();
        assert_eq!(open(&files).unwrap_err().to_string(), "/data/meta.properties: `node.id` is missing");
    }

    #[test]
    fn a_damaged_checkpoint_file_counts_as_empty() {
        let files = MemFiles::new(1);
        let (dir, _) = open(&files).unwrap();
        let partition = TopicPartition::new("t", PartitionIndex(0));
        dir.create_partition(&partition, TopicId(uuid::Uuid::from_u128(7))).unwrap();
        dir.write_checkpoint(Checkpoint::RecoveryPoint, &[(partition.clone(), Offset(9))]).unwrap();
        files.write_atomically(&dir.path().join("log-start-offset-checkpoint"), b"0\n1\n").unwrap();
        let (_, found) = open(&files).unwrap();
        assert_eq!(found.partitions[0].log_start, Offset::ZERO);
        assert_eq!(found.partitions[0].recovery_point, Offset(9), "the other files still count");
        assert_eq!(found.partitions[0].gaps, Gaps::BelowRecoveryPoint);
        files.remove_file(&dir.path().join("recovery-point-offset-checkpoint")).unwrap();
        assert_eq!(open(&files).unwrap().1.partitions[0].gaps, Gaps::Anywhere);
        let other = TopicPartition::new("t", PartitionIndex(1));
        dir.write_checkpoint(Checkpoint::RecoveryPoint, &[(other, Offset(9))]).unwrap();
        assert_eq!(open(&files).unwrap().1.partitions[0].gaps, Gaps::Anywhere, "without a line of its own");
    }

    #[test]
    fn a_second_broker_is_kept_out() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("data");
        let lock = DirLock::acquire(&path).unwrap();
        assert!(matches!(DirLock::acquire(&path), Err(DirError::Locked { .. })));
        drop(lock);
        DirLock::acquire(&path).unwrap();
        let (dir, _) = LogDir::open(OsFiles, &path, "c", BrokerId(1)).unwrap();
        assert_eq!(MetaProperties::read(&OsFiles, &path).unwrap().as_ref(), Some(dir.meta()));
    }
}
