//! What can go wrong with a log, one enum per subject.

use std::io;
use std::path::{Path, PathBuf};

use crate::wire::ErrorCode;

/// An operation of the file system failed. What that means for the log and its directory says [`LogError::fault`].
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}", path.display())]
pub struct LogError {
    pub what: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

/// What `what` of a failed sync begins with: see [`LogError::fault`].
pub(super) const SYNC: &str = "sync";

/// What an error of the file system means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The disk or the quota on it is used up: refuse, and try again when there is room.
    NoSpace,
    /// The process or the machine has no descriptors or no memory left: refuse, and try again.
    NoResources,
    /// What was read is not what was written; the disk itself answers.
    Corrupt,
    /// The disk is not to be trusted any more: its directory goes offline.
    Disk,
}

impl Fault {
    /// Nothing is lost, and the same may succeed later.
    pub fn passes(self) -> bool {
        matches!(self, Fault::NoSpace | Fault::NoResources)
    }

    /// Of an operation that was not a sync.
    pub fn of(error: &io::Error) -> Self {
        use rustix::io::Errno;
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => return Fault::NoSpace,
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => return Fault::Corrupt,
            _ => {}
        }
        match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Fault::NoResources,
            _ => Fault::Disk,
        }
    }
}

impl LogError {
    /// A failed sync is the disk's fault whatever it says, a full disk too: what the file holds is not known any
    /// more, and no later sync would tell. Except that there was no descriptor to begin it with.
    pub fn fault(&self) -> Fault {
        use rustix::io::Errno;
        let began = !matches!(Errno::from_io_error(&self.source), Some(Errno::MFILE | Errno::NFILE));
        if self.what.starts_with(SYNC) && began { Fault::Disk } else { Fault::of(&self.source) }
    }
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
            ReadError::Storage(error) if error.fault() == Fault::Corrupt => ErrorCode::CorruptMessage,
            ReadError::Storage(_) => ErrorCode::KafkaStorageError,
        }
    }
}
