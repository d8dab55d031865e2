//! Files, directories and sockets: the only place that talks to the kernel and the only one with
//! `unsafe`. Production uses [`os`] and [`net`]; tests and the simulator use the fault-injecting [`mem`].
//!
//! File operations are plain blocking calls behind [`Files`] and [`FileHandle`]. Which thread makes them
//! is the caller's affair: an append, and a read that the page cache answers, run on the shard; all that can wait for the
//! disk (open, fsync, truncate, rename, unlink, recovery) runs on [`threads::FileThreads`].

pub mod cached;
mod cgroup;
pub mod chunk;
pub mod cpu;
mod journal;
pub mod limits;
pub mod lock;
pub mod mem;
pub mod net;
pub mod os;
pub mod runtime;
pub mod signal;
pub mod threads;

use std::io;
use std::io::IoSlice;
use std::path::{Path, PathBuf};

use crate::base::clock::Timestamp;

/// How to open a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// Must exist; reads only.
    Read,
    /// Must exist; reads and writes.
    Write,
    /// Reads and writes; created when it is not there.
    Create,
    /// Reads and writes; must not exist.
    CreateNew,
}

/// One name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DirEntry {
    pub name: String,
    pub is_dir: bool,
}

/// A file system. Cheap to clone; every call may block.
pub trait Files: Clone + Send + Sync + 'static {
    type File: FileHandle;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Self::File>;
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Names that are not UTF-8 are left out: no file of Kafka's has one.
    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>>;
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Replaces `to` if it is there; durable after [`Files::sync_dir`] of the parents.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in `path` durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Reads a whole small file of at most `bytes_max`; longer is an error of kind `InvalidData`.
    fn read_small(&self, path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
        let file = self.open(path, OpenMode::Read)?;
        let length = file.len()?;
        if length > bytes_max as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: {length} bytes, at most {bytes_max} expected", path.display()),
            ));
        }
        let mut contents = vec![0; length as usize];
        let read = file.read_at(&mut contents, 0)?;
        contents.truncate(read);
        Ok(contents)
    }

    /// Replaces `path` by `contents` so that a crash leaves the old file or the new one, whole: writes
    /// `path.tmp`, syncs it, renames it, syncs the directory.
    fn write_atomically(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let file = self.open(&temporary, OpenMode::Create)?;
        file.truncate(0)?;
        file.write_all_at(&mut [IoSlice::new(contents)], 0)?;
        file.sync_all()?;
        self.rename(&temporary, path)?;
        match path.parent() {
            Some(parent) => self.sync_dir(parent),
            None => Ok(()),
        }
    }
}

/// An open file, shared between threads by `Arc`. Positions are in bytes from the start.
pub trait FileHandle: Send + Sync + 'static {
    /// Writes all of `buffers`, one after the other, from `position` on. Buffered: into the page cache.
    /// The slices are advanced over what was written and not restored.
    fn write_all_at(&self, buffers: &mut [IoSlice<'_>], position: u64) -> io::Result<()>;

    /// Reads until `buffer` is full or the file ends; returns how many bytes it read.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Like [`FileHandle::read_at`], only what is in the page cache: `None` when the first byte is not.
    /// May return fewer bytes than the file has. Never waits for the disk.
    fn read_cached_at(&self, buffer: &mut [u8], position: u64) -> io::Result<Option<usize>>;

    /// The length by descriptor, right also after a rename.
    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    fn truncate(&self, length: u64) -> io::Result<()>;

    /// When its contents changed last (`mtime`), by the machine's clock.
    fn modified(&self) -> io::Result<Timestamp>;

    /// Sets that time; the next write changes it again.
    fn set_modified(&self, time: Timestamp) -> io::Result<()>;

    /// Reserves disk blocks without changing the length (`FALLOC_FL_KEEP_SIZE`).
    fn preallocate(&self, position: u64, length: u64) -> io::Result<()>;

    /// Has the system begin to write what is dirty, and waits for none of it. What is on the disk is known after a sync
    /// only, which also has the errors of this.
    fn begin_write_back(&self) -> io::Result<()>;

    /// `fdatasync`. After an error the file's contents since the last success are unknown: never retry.
    fn sync_data(&self) -> io::Result<()>;

    /// `fsync`.
    fn sync_all(&self) -> io::Result<()>;
}
