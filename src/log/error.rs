//! What can go wrong with a log, one enum per subject.

use std::io;
use std::path::{Path, PathBuf};

use crate::wire::ErrorCode;

/// An operation of the file system failed. After one on a write or sync path the log is offline: its file's
/// contents are unknown, and the caller takes the whole directory offline.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}", path.display())]
pub struct LogError {
    pub what: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

pub(super) trait Context<T> {
    /// Says what was attempted on which path.
    fn context(self, what: &'static str, path: &Path) -> Result<T, LogError>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: &'static str, path: &Path) -> Result<T, LogError> {
        self.map_err(|source| LogError { what, path: path.to_path_buf(), source })
    }
}

/// Why a fetch got no plan.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the offset is outside of the log")]
    OutOfRange,
    /// The log was truncated between the plan and its completion: ask again.
    #[error("the log was truncated meanwhile")]
    Stale,
    #[error(transparent)]
    Storage(#[from] LogError),
}

impl ReadError {
    /// What the client is told; `Stale` makes it ask again.
    pub fn code(&self) -> ErrorCode {
        match self {
            ReadError::OutOfRange => ErrorCode::OffsetOutOfRange,
            ReadError::Stale => ErrorCode::NotLeaderOrFollower,
            ReadError::Storage(_) => ErrorCode::KafkaStorageError,
        }
    }
}
