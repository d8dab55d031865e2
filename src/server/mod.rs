//! The only wiring: configuration to directories, shards, metadata, services and listeners, and back down.
//!
//! The main thread reads the configuration, opens the log directories and binds the listeners, so that
//! what is wrong with them is said before anything runs; then each shard gets its thread. Shard 0 opens
//! the metadata, publishes the first image, and says that the broker is ready.

mod broker;
mod cluster;
mod control;
mod directories;
mod format;
mod heartbeats;
mod import;
mod logging;
mod plan;
mod publish;
mod road;
mod strays;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::base::{clock, log_queue};
use crate::config::{BrokerConfig, Loaded, Source};
use crate::io::signal;
pub use format::{Done, FirstQuorum, FormatError, Formatted, format, new_cluster_id};

/// Exit code for a configuration or a machine that kuring cannot start with.
const EXIT_CANNOT_START: u8 = 1;

/// How long the log's last lines may take to be written: nobody may be reading.
const LAST_LINES_MAX: Duration = Duration::from_secs(1);

/// Runs a broker until it is told to stop: `kuring serve`.
pub fn serve(config: Option<PathBuf>, set: Vec<(String, String)>) -> ExitCode {
    // The process's clock starts here; the ready line tells the time since.
    clock::monotonic();
    if let Err(error) = signal::block() {
        eprintln!("kuring: signals cannot be blocked: {error}");
        return ExitCode::from(EXIT_CANNOT_START);
    }
    let result = start(config, &set);
    log_queue::flush(LAST_LINES_MAX);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kuring: {error}");
            ExitCode::from(EXIT_CANNOT_START)
        }
    }
}

/// What keeps a broker from starting, in one line.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("{path}: {error}", path = path.display())]
    ReadConfig { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    #[error(transparent)]
    Preflight(#[from] crate::io::runtime::PreflightError),
    #[error(transparent)]
    Directory(#[from] crate::log::DirError),
    #[error("the log directories belong to different clusters or nodes: {0}")]
    Identity(String),
    #[error(
        "{partition} is in {} and in {}: one of them has been left behind by a move between directories, remove it; \
         most likely the one of the directory that failed",
        one.display(),
        two.display()
    )]
    Duplicate { partition: String, one: PathBuf, two: PathBuf },
    #[error(
        "{} has no meta.properties: a node of a cluster must be told the cluster's id, as `kuring format` does, \
         before it starts in an empty directory",
        .0.display()
    )]
    NotFormatted(PathBuf),
    #[error("none of the log directories can be used")]
    NoDirectory,
    #[error("{} cannot be used, and the metadata log is in it", .0.display())]
    NoMetadataDirectory(PathBuf),
    #[error("listener {listener} cannot be bound to {address}: {error}")]
    Bind { listener: String, address: String, error: std::io::Error },
    #[error(
        "kuring.admin.listener cannot be bound to {address}: {error}; another port, 0 for any, or nothing turns it off"
    )]
    BindAdmin { address: String, error: std::io::Error },
    #[error("{0}")]
    LogLevel(String),
    #[error("metadata: {0}")]
    Metadata(String),
    #[error("cluster: {0}")]
    Cluster(String),
    #[error("{what}: {error}")]
    Io { what: &'static str, error: std::io::Error },
    #[error("{0}")]
    Cpu(String),
    #[error("kuring.connection.shards names none of the {shards} shards")]
    NoShardForConnections { shards: u16 },
}

/// Reads the configuration.
fn load(path: Option<&Path>, set: &[(String, String)]) -> Result<Loaded, StartError> {
    let text = match path {
        None => None,
        Some(path) => Some(
            std::fs::read_to_string(path)
                .map_err(|error| StartError::ReadConfig { path: path.to_path_buf(), error })?,
        ),
    };
    let source = match (path, &text) {
        (Some(path), Some(text)) => Some(Source { path: path.to_str().unwrap_or("the file"), text }),
        _ => None,
    };
    Ok(BrokerConfig::load(source, set)?)
}

fn start(path: Option<PathBuf>, set: &[(String, String)]) -> Result<(), StartError> {
    let Loaded { config, warnings } = load(path.as_deref(), set)?;
    logging::start(&config.event_log).map_err(StartError::LogLevel)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    crate::io::runtime::preflight()?;
    broker::run(config)
}
