//! The reserve of a log directory: a file of blocks that nobody uses. When the disk is full it is removed, so that
//! the metadata log and the internal topics can go on; when there is room it is made again. *File thread.*

use std::io;
use std::path::{Path, PathBuf};

use crate::io::{FileHandle, Files, OpenMode};

use super::error::Fault;

/// In the log directory; Kafka leaves files there alone.
const RESERVE_FILE: &str = ".kuring-reserve";
const PROBE_FILE: &str = ".kuring-reserve.probe";

/// Room beyond the reserve that tells a disk with space from one that would be full again at once: a quarter of
/// the reserve, and no less than this.
const HEADROOM_BYTES_MIN: u64 = 1 << 20;

/// The reserve of one directory. It takes a file system with `fallocate`; on others it is an empty promise.
#[derive(Debug)]
pub struct Reserve<F: Files> {
    files: F,
    path: PathBuf,
    probe: PathBuf,
    bytes: u64,
}

impl<F: Files> Reserve<F> {
    /// `bytes` of 0: none is kept.
    pub fn new(files: F, directory: &Path, bytes: u64) -> Self {
        Self { files, path: directory.join(RESERVE_FILE), probe: directory.join(PROBE_FILE), bytes }
    }

    /// Makes the reserve unless it is there; false: there is no room for it and some more, and nothing is held. Where
    /// fewer than the `free_bytes` that it needs are known to be there it is not tried: that would take what is left
    /// from others meanwhile.
    pub fn take(&self, free_bytes: Option<u64>) -> io::Result<bool> {
        if free_bytes.is_some_and(|free| free < self.needed_bytes()) {
            return Ok(false);
        }
        if !self.allocate(&self.path, self.bytes)? {
            return Ok(false);
        }
        let has_room = self.allocate(&self.probe, self.headroom_bytes())?;
        self.remove(&self.probe)?;
        if !has_room {
            self.remove(&self.path)?;
        }
        Ok(has_room)
    }

    /// Free bytes without which there is no room for it and some more.
    pub fn needed_bytes(&self) -> u64 {
        self.bytes + self.headroom_bytes()
    }

    fn headroom_bytes(&self) -> u64 {
        (self.bytes / 4).max(HEADROOM_BYTES_MIN)
    }

    /// Gives the blocks back to the disk; false: there were none.
    pub fn release(&self) -> io::Result<bool> {
        self.remove(&self.path)
    }

    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<bool> {
        if bytes == 0 {
            return Ok(true);
        }
        let made = self.files.open(path, OpenMode::Create).and_then(|file| {
            file.preallocate(0, bytes)?;
            // With the length of its blocks it is what it looks like.
            file.truncate(bytes)
        });
        match made {
            Ok(()) => Ok(true),
            Err(error) if Fault::of(&error) == Fault::NoSpace => {
                self.remove(path)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// False: it was not there.
    fn remove(&self, path: &Path) -> io::Result<bool> {
        match self.files.remove_file(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::mem::{self, MemFiles, Operation};

    #[test]
    fn a_reserve_without_room_beside_it_is_not_held() {
        let files = MemFiles::new(1);
        files.create_dir_all(Path::new("/d")).unwrap();
        let reserve = Reserve::new(files.clone(), Path::new("/d"), 8 << 20);
        let full = |after| {
            files.set_fault(Some(mem::Fault {
                operation: Some(Operation::Preallocate),
                after,
                error: rustix::io::Errno::NOSPC,
                sticky: true,
            }));
        };
        for after in [0, 1] {
            full(after);
            assert!(!reserve.take(None).unwrap());
            assert!(files.list(Path::new("/d")).unwrap().is_empty());
        }
        files.set_fault(None);
        assert!(reserve.take(Some(10 << 20)).unwrap());
        assert!(reserve.take(None).unwrap(), "it is there already");
        assert_eq!(files.list(Path::new("/d")).unwrap().len(), 1);
        assert!(reserve.release().unwrap());
        assert!(!reserve.release().unwrap());
        assert!(files.list(Path::new("/d")).unwrap().is_empty());
    }

    #[test]
    fn what_is_left_of_a_full_disk_is_not_taken_from_others_to_see_whether_it_is_enough() {
        let files = MemFiles::new(1);
        files.create_dir_all(Path::new("/d")).unwrap();
        let reserve = Reserve::new(files.clone(), Path::new("/d"), 8 << 20);
        let error = rustix::io::Errno::IO;
        files.set_fault(Some(mem::Fault { operation: None, after: 0, error, sticky: true }));
        assert!(!reserve.take(Some((10 << 20) - 1)).unwrap(), "nothing is touched");
        assert!(reserve.take(Some(10 << 20)).is_err(), "that would be enough");
    }
}
