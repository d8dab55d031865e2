//! How many shards, on which cores; and whether the process may open as many files as it will.

use super::StartError;
use crate::config::BrokerConfig;
use crate::io::{cpu, limits};

/// Descriptors beside those of logs and connections: rings, eventfds, directories, standard streams.
const OTHER_FILES: u64 = 256;

/// The shards of a process: one entry each, the core it is pinned to.
pub(super) struct Plan {
    pub(super) cores: Vec<Option<usize>>,
}

impl Plan {
    pub(super) fn new(config: &BrokerConfig) -> Result<Self, StartError> {
        let mut cpus =
            cpu::available().map_err(|error| StartError::Io { what: "the cores cannot be listed", error })?;
        if let Some(list) = &config.cpus {
            cpus = cpus.restricted_to(list).map_err(|error| StartError::Cpu(error.to_string()))?;
        }
        let shards = config.shards.map_or_else(|| cpus.shard_count(), usize::from);
        Ok(Self { cores: (0..shards).map(|shard| cpus.pin(shard, shards)).collect() })
    }

    pub(super) fn shards(&self) -> u16 {
        self.cores.len() as u16
    }
}

/// What there is of open files.
pub(super) struct OpenFiles {
    /// What the partitions and the connections may need.
    pub(super) need: u64,
    /// How many connections the limit allows: three quarters of it, the rest is the logs'.
    pub(super) connections: u32,
}

/// Raises the limit on open files and says when it is less than what `partitions` and the connections may need.
pub(super) fn raise_open_files(config: &BrokerConfig, partitions: usize) -> OpenFiles {
    let connections = u64::from(config.connection_limits.total.min(10_000));
    let need = OTHER_FILES + 4 * partitions as u64 + connections;
    let connections = match limits::raise_open_files() {
        Ok(files) => {
            if files.soft < need {
                tracing::warn!(
                    limit = files.soft,
                    need,
                    "the limit on open files is low: raise LimitNOFILE or ulimit -n"
                );
            }
            u32::try_from(files.soft - files.soft / 4).unwrap_or(u32::MAX)
        }
        Err(error) => {
            tracing::warn!("the limit on open files was not raised: {error}");
            u32::MAX
        }
    };
    OpenFiles { need, connections }
}
