//! Opens the log directories: locks, identity, what is in them.
//!
//! A directory that the disk does not give is left out with a line in the log, and the broker serves from the
//! others, as Kafka does. What would be a mistake to go on with ends the start: a directory of another cluster or
//! node, one that another broker has locked, one partition in two directories, no directory left, the metadata
//! log's lost.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::StartError;
use crate::base::BrokerEpoch;
use crate::config::BrokerConfig;
use crate::io::os::OsFiles;
use crate::io::threads::FileThreads;
use crate::log::{DirError, DirLock, DirectoryId, Found, LogContext, LogDir, MetaProperties, Preallocation};
use crate::shard::{CommitService, Directories, Directory, Space, StartEntry, StartList};

/// Jobs that wait for a file thread before whoever asks has to wait.
const FILE_JOBS_MAX: usize = 4096;

pub(super) struct Opened {
    pub(super) directories: Arc<Directories>,
    pub(super) cluster_id: String,
    pub(super) partitions: usize,
    /// Of the broker's registration before the last stop, which was clean in all directories.
    pub(super) previous_epoch: Option<BrokerEpoch>,
    /// Left over from topics deleted before the last stop.
    pub(super) deleted: Vec<(usize, PathBuf)>,
    /// Of the metadata log's directory, where it is none of the others.
    _metadata_lock: Option<DirLock>,
}

/// A directory that is ours and says whose it is.
struct Locked {
    path: PathBuf,
    lock: DirLock,
    meta: Option<MetaProperties>,
}

/// Opens the directories of `log.dirs`. A new one takes the cluster's id from the others; when all are new the
/// cluster is, too.
pub(super) fn open(config: &BrokerConfig) -> Result<Opened, StartError> {
    let threads = FileThreads::start("files", config.file_threads, FILE_JOBS_MAX)
        .map_err(|error| StartError::Io { what: "file threads", error })?;
    let readers = FileThreads::start("readers", config.file_threads, FILE_JOBS_MAX)
        .map_err(|error| StartError::Io { what: "reading threads", error })?;
    let mut never_opened = Vec::new();
    let locked = lock_all(config, &mut never_opened)?;
    let metadata_lock = match is_log_dir(&config.metadata_log_dir, config) {
        true => None,
        false => Some(DirLock::acquire(&config.metadata_log_dir)?),
    };
    if config.cluster.is_some() && locked.iter().all(|locked| locked.meta.is_none()) {
        // Nodes that each make an id up would each be a cluster; and an empty disk may be a lost one.
        return Err(StartError::NotFormatted(config.metadata_log_dir.clone()));
    }
    let cluster_id = cluster_id(&locked)?;
    let shared = Shared {
        cluster_id: &cluster_id,
        config,
        threads: &threads,
        preallocation: Preallocation::new(config.preallocated_bytes_max),
        stop: Arc::default(),
    };
    let mut list = Vec::new();
    let mut entries = Vec::new();
    let mut futures = Vec::new();
    let mut deleted = Vec::new();
    let mut clean_epochs = BTreeSet::new();
    for Locked { path, lock, .. } in locked {
        let index = list.len();
        let (directory, found) = match shared.open(&path, lock, index) {
            Ok(opened) => opened,
            Err(error) => {
                leave_out(path, error, &mut never_opened)?;
                continue;
            }
        };
        let entry = |partition| StartEntry { directory: index, found: partition, clean: found.clean };
        entries.extend(found.partitions.into_iter().map(entry));
        futures.extend(found.futures.into_iter().map(entry));
        clean_epochs.insert(found.clean_epoch);
        deleted.extend(found.deleted.into_iter().map(|path| (index, path)));
        list.push(directory);
    }
    let partitions = entries.len();
    let start_list = StartList::new(entries);
    if let Some((one, two)) = start_list.duplicate() {
        return Err(StartError::Duplicate {
            partition: one.found.topic_partition.to_string(),
            one: one.found.dir,
            two: two.found.dir,
        });
    }
    let metadata = list.iter().position(|directory| directory.log_dir.path() == config.metadata_log_dir);
    if never_opened.contains(&config.metadata_log_dir) {
        return Err(StartError::NoMetadataDirectory(config.metadata_log_dir.clone()));
    }
    if list.is_empty() {
        return Err(StartError::NoDirectory);
    }
    let stop = shared.stop.clone();
    // One that has all comes first.
    futures.sort_by_key(|entry: &StartEntry| entry.found.moved.is_none());
    let found = (start_list, StartList::new(futures));
    let directories = Directories::new(list, never_opened, metadata, threads, readers, found, stop);
    let directories = Arc::new(directories);
    // Replicas of a directory that is not there may have been lost with it.
    let is_whole = clean_epochs.len() == 1 && !directories.any_failed();
    let previous_epoch = clean_epochs.pop_first().flatten().filter(|_| is_whole);
    let opened = Opened {
        directories,
        cluster_id,
        partitions,
        previous_epoch,
        deleted,
        _metadata_lock: metadata_lock,
    };
    Ok(opened)
}

/// Whether it is one of `log.dirs`, by whatever path.
fn is_log_dir(path: &Path, config: &BrokerConfig) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let wanted = real(path);
    config.log_dirs.iter().any(|dir| real(dir) == wanted)
}

fn lock_all(config: &BrokerConfig, never_opened: &mut Vec<PathBuf>) -> Result<Vec<Locked>, StartError> {
    let mut locked = Vec::new();
    let mut by_id: HashMap<DirectoryId, PathBuf> = HashMap::new();
    for path in &config.log_dirs {
        let opened = DirLock::acquire(path)
            .and_then(|lock| MetaProperties::read(&OsFiles, path).map(|meta| (lock, meta)));
        let (lock, meta) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                leave_out(path.clone(), error, never_opened)?;
                continue;
            }
        };
        if let Some(meta) = meta.as_ref().filter(|meta| !meta.directory_id.is_zero())
            && let Some(other) = by_id.insert(meta.directory_id, path.clone())
        {
            let (one, two) = (other.display(), path.display());
            return Err(StartError::Identity(format!("{one} and {two} have the same directory.id")));
        }
        locked.push(Locked { path: path.clone(), lock, meta });
    }
    Ok(locked)
}

/// Goes on without a directory, unless its error says that going on would be a mistake.
fn leave_out(path: PathBuf, error: DirError, never_opened: &mut Vec<PathBuf>) -> Result<(), StartError> {
    if matches!(error, DirError::Locked { .. } | DirError::Foreign { .. }) {
        return Err(error.into());
    }
    tracing::error!(directory = %path.display(), "the log directory is offline: {error}");
    never_opened.push(path);
    Ok(())
}

/// What all directories are opened with.
struct Shared<'a> {
    cluster_id: &'a str,
    config: &'a BrokerConfig,
    threads: &'a FileThreads,
    preallocation: Arc<Preallocation>,
    stop: Arc<AtomicBool>,
}

impl Shared<'_> {
    fn open(&self, path: &Path, lock: DirLock, index: usize) -> Result<(Directory, Found), DirError> {
        let (log_dir, found) = LogDir::open(OsFiles, path, self.cluster_id, self.config.node_id)?;
        let commit = CommitService::start(path).map_err(|error| DirError::service(path, error))?;
        let closing = self.threads.clone();
        let context = LogContext {
            files: OsFiles,
            directory: index,
            preallocation: self.preallocation.clone(),
            stop: self.stop.clone(),
            dispose: Box::new(move |file| closing.drop_later(file)),
            producer_id_expiration_ms: self.config.producer_id_expiration_ms,
        };
        let space = Space::new(path, self.config.reserve_bytes);
        Ok((Directory { log_dir, commit, lock, context: Arc::new(context), space }, found))
    }
}

/// The id in the directories' `meta.properties`, or a new one when none has it yet.
fn cluster_id(locked: &[Locked]) -> Result<String, StartError> {
    let mut found: Option<&str> = None;
    for meta in locked.iter().filter_map(|locked| locked.meta.as_ref()) {
        let id = meta.cluster_id.as_str();
        match found {
            Some(other) if other != id => return Err(StartError::Identity(format!("{other} and {id}"))),
            _ => found = Some(id),
        }
    }
    Ok(found.map_or_else(super::new_cluster_id, str::to_owned))
}
