//! Opens the log directories: locks, identity, what is in them.

use std::path::PathBuf;
use std::sync::Arc;

use super::StartError;
use crate::config::BrokerConfig;
use crate::io::os::OsFiles;
use crate::io::threads::FileThreads;
use crate::log::{DirLock, LogContext, LogDir, MetaProperties};
use crate::shard::{CommitService, Directories, Directory, StartEntry, StartList};

/// Jobs that wait for a file thread before whoever asks has to wait.
const FILE_JOBS_MAX: usize = 4096;

pub(super) struct Opened {
    pub(super) directories: Arc<Directories>,
    pub(super) cluster_id: String,
    pub(super) partitions: usize,
    /// Left over from topics deleted before the last stop.
    pub(super) deleted: Vec<(usize, PathBuf)>,
}

/// Opens every directory of `log.dirs`. A new one takes the cluster's id from the others; when all are new
/// the cluster is, too.
pub(super) fn open(config: &BrokerConfig) -> Result<Opened, StartError> {
    let threads = FileThreads::start("files", config.file_threads, FILE_JOBS_MAX)
        .map_err(|error| StartError::Io { what: "file threads", error })?;
    let cluster_id = cluster_id(config)?;
    let mut list = Vec::new();
    let mut entries = Vec::new();
    let mut deleted = Vec::new();
    for (index, path) in config.log_dirs.iter().enumerate() {
        let lock = DirLock::acquire(path)?;
        let (log_dir, found) = LogDir::open(OsFiles, path, &cluster_id, config.node_id)?;
        entries.extend(found.partitions.into_iter().map(|partition| StartEntry {
            directory: index,
            found: partition,
            clean: found.clean,
        }));
        deleted.extend(found.deleted.into_iter().map(|path| (index, path)));
        let commit = CommitService::start(path)
            .map_err(|error| StartError::Io { what: "commit service of a log directory", error })?;
        list.push(Directory { log_dir, commit, lock });
    }
    let closing = threads.clone();
    let context = LogContext {
        files: OsFiles,
        dispose: Box::new(move |file| closing.drop_later(file)),
        producer_id_expiration_ms: config.producer_id_expiration_ms,
    };
    let partitions = entries.len();
    let directories = Directories::new(list, threads, Arc::new(context), StartList::new(entries));
    Ok(Opened { directories: Arc::new(directories), cluster_id, partitions, deleted })
}

/// The id in the directories' `meta.properties`, or a new one when none has it yet.
fn cluster_id(config: &BrokerConfig) -> Result<String, StartError> {
    let mut found: Option<String> = None;
    for path in &config.log_dirs {
        let Some(id) = MetaProperties::read(&OsFiles, path)?.map(|meta| meta.cluster_id) else { continue };
        match &found {
            Some(other) if *other != id => return Err(StartError::Identity(format!("{other} and {id}"))),
            _ => found = Some(id),
        }
    }
    Ok(found.unwrap_or_else(|| crate::base::TopicId(uuid::Uuid::new_v4()).to_string()))
}
