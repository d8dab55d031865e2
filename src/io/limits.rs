//! Open files and memory of this process.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::Resource;

use super::cgroup;

/// Descriptors this process may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFiles {
    /// The soft limit as it was.
    pub before: u64,
    /// The soft limit now. `u64::MAX` is none.
    pub soft: u64,
    pub hard: u64,
}

/// Raises the soft limit of open files to the hard one.
pub fn raise_open_files() -> io::Result<OpenFiles> {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    let before = limit.current.unwrap_or(u64::MAX);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        rustix::process::setrlimit(Resource::Nofile, limit)?;
    }
    let now = rustix::process::getrlimit(Resource::Nofile);
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    Ok(OpenFiles { before, soft: number(now.current), hard: number(now.maximum) })
}

/// Gives memory that was freed back to the system, from the middle of the heap too, which the allocator never does by
/// itself. It holds each arena while it looks through it: for moments when no shard serves.
pub fn give_back_freed_memory() {
    // SAFETY: touches nothing but what the allocator holds free.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Memory of this process that is in RAM.
pub fn resident_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm"))?;
    // SAFETY: reads a constant of the system.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Ok(pages * u64::try_from(page_bytes).map_err(io::Error::other)?)
}

/// Descriptors that are open now.
pub fn open_files_now() -> io::Result<u64> {
    // One of them is that of the directory itself.
    Ok((std::fs::read_dir("/proc/self/fd")?.count() as u64).saturating_sub(1))
}

/// The soft limit of open files.
pub fn open_files_max() -> u64 {
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

pub fn threads() -> io::Result<u64> {
    Ok(std::fs::read_dir("/proc/self/task")?.count() as u64)
}

/// Processor time of all threads so far, the kernel's share included.
pub fn cpu_time() -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is what the call fills in.
    match unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) } {
        0 => {
            let seconds = u64::try_from(time.tv_sec).map_err(io::Error::other)?;
            Ok(Duration::new(seconds, u32::try_from(time.tv_nsec).map_err(io::Error::other)?))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// The machine's memory, or what the cgroup grants of it.
pub fn memory_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let machine = parse_total(&text);
    let machine = machine.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo"))?;
    Ok(cgroup::memory_limit(Path::new("/")).map_or(machine, |limit| limit.min(machine)))
}

fn parse_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_raised_to_the_hard_limit() {
        let raised = raise_open_files().unwrap();
        assert_eq!(raised.soft, raised.hard);
        assert!(raised.before <= raised.soft);
        assert_eq!(raise_open_files().unwrap().before, raised.soft);
    }

    #[test]
    fn what_the_process_uses_is_counted() {
        let before = open_files_now().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        // Other tests open and close files meanwhile.
        assert!(open_files_now().unwrap() > 0 && before > 0 && before < open_files_max());
        drop(file);
        assert!(threads().unwrap() >= 1);
        let started = cpu_time().unwrap();
        while cpu_time().unwrap() == started {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn memory_is_what_the_system_says() {
        assert_eq!(parse_total("MemTotal:        4018736 kB\nMemFree: 1 kB\n"), Some(4_018_736 * 1024));
        let resident = resident_bytes().unwrap();
        assert!(resident > 1 << 20 && resident < memory_bytes().unwrap());
    }
}
