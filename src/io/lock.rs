//! Files as locks between processes. The lock is of `fcntl`'s kind, which is what Java's `FileChannel.lock` takes: a
//! Kafka broker and kuring keep each other out. It belongs to the open file (`F_OFD_SETLK`, Linux 3.15), not to the
//! process, so that a second open of the same file in one process is refused as well and its close takes nothing away.
//! `flock` would not do: Java's lock and it do not see each other.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// An exclusive lock on a whole file; the end of the process gives it back, too.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// Makes the file if need be; `None`: somebody has it.
    pub fn try_take(path: &Path) -> io::Result<Option<FileLock>> {
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        let whole = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0,
            // To the end, wherever that is.
            l_len: 0,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open, and `whole` is read during the call only.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) } {
            0 => Ok(Some(FileLock { _file: file })),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                // POSIX lets a system say it so.
                error if error.raw_os_error() == Some(libc::EACCES) => Ok(None),
                error => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, fcntl_lock};

    use super::*;

    #[test]
    fn a_lock_is_had_once_and_comes_back_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".lock");
        let first = FileLock::try_take(&path).unwrap().unwrap();
        assert!(FileLock::try_take(&path).unwrap().is_none());
        assert!(FileLock::try_take(&path).unwrap().is_none(), "the attempt took the lock away");
        drop(first);
        assert!(FileLock::try_take(&path).unwrap().is_some());
    }

    /// `fcntl_lock` is what Java's `FileChannel.tryLock` calls.
    #[test]
    fn the_locks_of_java_are_seen_and_see_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".lock");
        let lock_as_java = |file: &File| fcntl_lock(file, FlockOperation::NonBlockingLockExclusive);
        let java = File::options().create(true).truncate(false).write(true).open(&path).unwrap();
        lock_as_java(&java).unwrap();
        assert!(FileLock::try_take(&path).unwrap().is_none());
        fcntl_lock(&java, FlockOperation::Unlock).unwrap();
        let ours = FileLock::try_take(&path).unwrap().unwrap();
        assert!(lock_as_java(&java).is_err());
        drop(ours);
        lock_as_java(&java).unwrap();
    }
}
