//! [`Files`] on the operating system, through rustix: no `unsafe` here.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::ReadWriteFlags;

use super::cached;
use super::journal::journal;
use super::{DirEntry, FileHandle, Files, OpenMode};
use crate::base::clock::Timestamp;

/// The kernel takes at most this many buffers per call (`IOV_MAX`).
const BUFFERS_PER_CALL_MAX: usize = 1024;

/// The operating system's file system.
#[derive(Clone, Copy, Default, Debug)]
pub struct OsFiles;

/// An open descriptor; closed on drop, which may block for long if the file is large and unlinked.
#[derive(Debug)]
pub struct OsFile(File);

impl AsFd for OsFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The size of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeBytes {
    pub total: u64,
    /// What a process without privileges may still fill.
    pub usable: u64,
}

/// The size of the volume that `path` lies on. Blocks if the volume does.
pub fn volume_bytes(path: &Path) -> io::Result<VolumeBytes> {
    let volume = rustix::fs::statvfs(path)?;
    Ok(VolumeBytes {
        total: volume.f_blocks.saturating_mul(volume.f_frsize),
        usable: volume.f_bavail.saturating_mul(volume.f_frsize),
    })
}

impl Files for OsFiles {
    type File = OsFile;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<OsFile> {
        let mut options = File::options();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true);
            }
            OpenMode::Create => {
                options.write(true).create(true).truncate(false);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true);
            }
        }
        let Some(journal) = journal() else { return open_quietly(options, path).map(OsFile) };
        let is_new = matches!(mode, OpenMode::Create | OpenMode::CreateNew) && !path.try_exists()?;
        let file = open_quietly(options, path)?;
        if is_new {
            journal.created(path)?;
        }
        Ok(OsFile(file))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let is_new = journal().is_some() && !path.try_exists()?;
        std::fs::create_dir_all(path)?;
        match journal() {
            Some(journal) if is_new => journal.created(path),
            _ => Ok(()),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                entries.push(DirEntry { name, is_dir: entry.file_type()?.is_dir() });
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let rename = || std::fs::rename(from, to);
        match journal() {
            None => rename(),
            Some(journal) => {
                journal.changing(&format!("rename {} {}", from.display(), to.display()), to, rename)
            }
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let remove = || std::fs::remove_file(path);
        match journal() {
            None => remove(),
            Some(journal) => journal.changing(&format!("remove {}", path.display()), path, remove),
        }
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let Some(journal) = journal() else { return File::open(path)?.sync_all() };
        let lines = journal.lines();
        File::open(path)?.sync_all()?;
        journal.synced_dir(path, lines)
    }
}

/// Opens a file so that reads leave the time of the last access alone. Else, under `relatime`, each read behind a write
/// changes the inode: a part in the file system's journal, and a wait for it now and then, on a shard too.
fn open_quietly(mut options: OpenOptions, path: &Path) -> io::Result<File> {
    match options.custom_flags(OFlags::NOATIME.bits() as i32).open(path) {
        // Only the owner of a file may ask for that.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error()) => {
            options.custom_flags(0).open(path)
        }
        opened => opened,
    }
}

impl OsFile {
    fn sync(&self, sync: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let Some(journal) = journal() else { return sync(&self.0) };
        let covered = journal.covered(&self.0)?;
        sync(&self.0)?;
        journal.synced(&covered)
    }
}

impl FileHandle for OsFile {
    fn write_all_at(&self, mut buffers: &mut [IoSlice<'_>], mut position: u64) -> io::Result<()> {
        IoSlice::advance_slices(&mut buffers, 0);
        while !buffers.is_empty() {
            let batch = &buffers[..buffers.len().min(BUFFERS_PER_CALL_MAX)];
            match rustix::io::pwritev(&self.0, batch, position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    position += written as u64;
                    IoSlice::advance_slices(&mut buffers, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match rustix::io::pread(&self.0, &mut buffer[filled..], position + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(filled)
    }

    fn read_cached_at(&self, buffer: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        let mut target = [io::IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&self.0, &mut target, position, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(Some(read)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            // Some file systems know no RWF_NOWAIT for reads: then every read may wait.
            Err(rustix::io::Errno::OPNOTSUPP) => self.read_at(target[0].as_mut(), position).map(Some),
            Err(error) => Err(error.into()),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)?;
        match journal() {
            None => Ok(()),
            Some(journal) => journal.truncated(&self.0, length),
        }
    }

    fn modified(&self) -> io::Result<Timestamp> {
        let modified = self.0.metadata()?.modified()?;
        // A time before 1970 is as good as none.
        let since = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
    }

    fn set_modified(&self, time: Timestamp) -> io::Result<()> {
        let since = Duration::from_millis(time.0.max(0) as u64);
        self.0.set_modified(SystemTime::UNIX_EPOCH + since)
    }

    fn preallocate(&self, position: u64, length: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, position, length) {
            // A file system without it only loses speed.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn begin_write_back(&self) -> io::Result<()> {
        cached::begin_write_back(&self.0)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(File::sync_data)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync(File::sync_all)
    }
}

/// Syncs the whole file system that `file` lies on (`syncfs`). Since Linux 5.8 it reports write-back errors
/// that came since the file was opened.
pub fn sync_file_system(file: &OsFile) -> io::Result<()> {
    let sync = || rustix::fs::syncfs(&file.0).map_err(Into::into);
    match journal() {
        None => sync(),
        Some(journal) => journal.sync_file_system(&file.0, sync),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectored_write_takes_more_buffers_than_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let file = OsFiles.open(&dir.path().join("f"), OpenMode::CreateNew).unwrap();
        let pieces: Vec<Vec<u8>> = (0..3000).map(|i| vec![i as u8; i % 7]).collect();
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        file.write_all_at(&mut slices, 5).unwrap();
        let whole = pieces.concat();
        let mut back = vec![0; whole.len() + 5];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), back.len());
        assert_eq!(&back[5..], &whole);
    }

    #[test]
    fn reads_leave_the_time_of_the_last_access_alone() {
        // Not in a tmpfs, which keeps none.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = OsFiles.open(&dir.path().join("f"), OpenMode::CreateNew).unwrap();
        file.write_all_at(&mut [IoSlice::new(b"abc")], 0).unwrap();
        // Before the last change: the next read would note itself.
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        file.0.set_times(std::fs::FileTimes::new().set_accessed(long_ago)).unwrap();
        let mut bytes = [0; 3];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 3);
        assert_eq!(file.read_cached_at(&mut bytes, 0).unwrap(), Some(3));
        assert_eq!(file.0.metadata().unwrap().accessed().unwrap(), long_ago);
    }

    #[test]
    fn the_time_of_the_last_change_can_be_set() {
        let dir = tempfile::tempdir().unwrap();
        let file = OsFiles.open(&dir.path().join("f"), OpenMode::CreateNew).unwrap();
        let time = Timestamp(1_234_567_890_123);
        file.set_modified(time).unwrap();
        assert_eq!(file.modified().unwrap(), time);
        file.write_all_at(&mut [IoSlice::new(b"x")], 0).unwrap();
        assert!(file.modified().unwrap() > time);
    }

    #[test]
    fn write_atomically_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        OsFiles.write_atomically(&path, b"one and more").unwrap();
        OsFiles.write_atomically(&path, b"two").unwrap();
        assert_eq!(OsFiles.read_small(&path, 100).unwrap(), b"two");
        assert_eq!(OsFiles.read_small(&path, 2).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(OsFiles.list(dir.path()).unwrap().len(), 1);
    }
}
