//! Probes of the page cache: what is not there must not be read on a shard. And advice to it.

use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

/// `cachestat(2)`, Linux 6.5; the number is the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;
const PAGE_BYTES: u64 = 4096;
/// Read at a time by [`warm`].
const WARM_BYTES: usize = 256 * 1024;

#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether a range that lies within the file can be sent without a wait for the disk: the page cache has all of it, and the
/// disk has brought it. Pages that were asked for ahead are there, and counted by [`is_cached`], before they have come; a
/// `sendfile` waits for them. They come in order, so the ends tell: 1.2 µs more.
pub fn is_ready(file: &impl AsFd, position: u64, length: u64) -> io::Result<bool> {
    Ok(length == 0
        || is_cached(file, position, length)?
            && is_byte_cached(file, position + length - 1)?
            && is_byte_cached(file, position)?)
}

/// Whether the page cache has all of a range that lies within the file, or will have it once the disk has brought it: 3–6 µs
/// for 256 KiB. An older kernel is asked for the first and the last byte only.
pub fn is_cached(file: &impl AsFd, position: u64, length: u64) -> io::Result<bool> {
    static MISSING: AtomicBool = AtomicBool::new(false);
    if length == 0 {
        return Ok(true);
    }
    if !MISSING.load(Ordering::Relaxed) {
        match cached_pages(file.as_fd(), position, length) {
            Ok(pages) => {
                let wanted = (position + length - 1) / PAGE_BYTES - position / PAGE_BYTES + 1;
                return Ok(pages >= wanted);
            }
            // ENOSYS: not there. EPERM: a seccomp profile that does not know it. EOPNOTSUPP: hugetlbfs.
            Err(Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP) => MISSING.store(true, Ordering::Relaxed),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(is_byte_cached(file, position)? && is_byte_cached(file, position + length - 1)?)
}

/// Takes a range out of the page cache, as far as it is clean: for a reader that nobody follows.
pub fn forget(file: &impl AsFd, position: u64, length: u64) {
    // Only advice: a file system that does not take it keeps its pages.
    let _ = rustix::fs::fadvise(file, position, NonZeroU64::new(length), rustix::fs::Advice::DontNeed);
}

/// Reads a range into the page cache and waits for it: file threads only.
pub fn warm(file: &impl AsFd, position: u64, length: u64) -> io::Result<()> {
    let (mut position, end) = (position, position + length);
    let mut scratch = vec![0; WARM_BYTES.min(length as usize)];
    while position < end {
        let wanted = (end - position).min(scratch.len() as u64) as usize;
        match rustix::io::pread(file, &mut scratch[..wanted], position) {
            Ok(0) => return Ok(()),
            Ok(read) => position += read as u64,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Asks the disk for a range, which may reach beyond the file, without waiting for it: file threads only, the
/// asking itself may wait for room in the disk's queue.
pub fn read_ahead(file: &impl AsFd, position: u64, length: u64) {
    // Advice: what cannot be taken costs the reader a wait later.
    let _ = rustix::fs::fadvise(file, position, NonZeroU64::new(length), rustix::fs::Advice::WillNeed);
}

/// Has the system begin to write what is dirty of a file, without waiting for the disk: file threads only, the asking itself
/// may wait for room in the disk's queue. What has come of it is known after a sync, and the errors of it.
pub fn begin_write_back(file: &impl AsFd) -> io::Result<()> {
    let descriptor = file.as_fd().as_raw_fd();
    // SAFETY: the call takes numbers only, and the descriptor is borrowed for as long.
    let result = unsafe { libc::sync_file_range(descriptor, 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the error says that this process may not make the call at all, whatever the file: EPERM of a seccomp profile
/// that does not have it, ENOSYS of a kernel.
pub fn is_refused_call(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PERM | Errno::NOSYS))
}

fn cached_pages(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<u64, Errno> {
    count_pages(file, offset, length).map(|counts| counts.cached)
}

fn count_pages(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<Counts, Errno> {
    let range = Range { offset, length };
    let mut counts = Counts::default();
    // SAFETY: the kernel reads one `cachestat_range` and writes one `cachestat`, laid out as these.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &range, &mut counts, 0) };
    match result {
        0 => Ok(counts),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

fn is_byte_cached(file: &impl AsFd, position: u64) -> io::Result<bool> {
    let mut byte = [0];
    match rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], position, ReadWriteFlags::NOWAIT) {
        Ok(_) | Err(Errno::OPNOTSUPP) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_the_disk_was_asked_for_is_not_ready_before_it_has_come() {
        const BYTES: u64 = 32 << 20;
        const CHUNK: u64 = 256 << 10;
        // Not in a tmpfs, whose pages cannot be dropped.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; BYTES as usize]).unwrap();
        file.sync_all().unwrap();
        assert!(is_ready(&file, 0, BYTES).unwrap());
        let is_seen_on_its_way = || {
            forget(&file, 0, BYTES);
            read_ahead(&file, 0, BYTES);
            let mut chunks = (0..BYTES / CHUNK).rev().map(|chunk| chunk * CHUNK);
            let on_its_way =
                |at| is_cached(&file, at, CHUNK).unwrap() && !is_ready(&file, at, CHUNK).unwrap();
            let seen = chunks.any(on_its_way);
            warm(&file, 0, BYTES).unwrap();
            assert!(is_ready(&file, 0, BYTES).unwrap());
            seen
        };
        // A disk may be quicker than the look, once.
        assert!((0..50).any(|_| is_seen_on_its_way()));
    }

    #[test]
    fn write_back_that_was_begun_cleans_the_pages_without_a_sync() {
        const BYTES: u64 = 4 << 20;
        // Not in a tmpfs, which has nothing to write to.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; BYTES as usize]).unwrap();
        let Ok(before) = count_pages(file.as_fd(), 0, BYTES) else { return };
        assert!(before.dirty > 0, "the system has written all of it by itself");
        begin_write_back(&file).unwrap();
        let begun = std::time::Instant::now();
        while count_pages(file.as_fd(), 0, BYTES).unwrap().dirty > 0 {
            // By itself the system begins after half a minute.
            assert!(begun.elapsed() < std::time::Duration::from_secs(20));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn a_call_that_may_not_be_made_is_told_from_a_disk_that_fails() {
        let refused = [Errno::PERM, Errno::NOSYS];
        assert!(refused.iter().all(|errno| is_refused_call(&(*errno).into())));
        let failed = [Errno::IO, Errno::NOSPC, Errno::SPIPE, Errno::BADF];
        assert!(!failed.iter().any(|errno| is_refused_call(&(*errno).into())));
        assert!(!is_refused_call(&io::Error::from(io::ErrorKind::PermissionDenied)), "not the system's word");
    }

    #[test]
    fn range_is_cached_after_it_was_written_and_cold_after_it_was_dropped() {
        // Not in a tmpfs, whose pages cannot be dropped.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; 300_000]).unwrap();
        assert!(is_cached(&file, 0, 300_000).unwrap());
        assert!(is_cached(&file, 299_999, 1).unwrap());
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(!is_cached(&file, 0, 300_000).unwrap());
        warm(&file, 0, 300_000).unwrap();
        assert!(is_cached(&file, 0, 300_000).unwrap());
        assert!(is_cached(&file, 5, 0).unwrap());
    }
}
