//! Whether this machine lets a shard start, and if not, what to allow.

use rustix::process::Resource;

/// glommio refuses less.
const MEMLOCK_BYTES_MIN: u64 = 512 * 1024;
/// Polls that tell more than once (5.13).
const KERNEL_MIN: (u32, u32) = (5, 13);

/// Why no shard can run here.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    #[error("kernel {0} is too old: io_uring as kuring uses it needs Linux 5.13 or newer")]
    OldKernel(String),
    #[error(
        "io_uring is switched off for this process by the sysctl kernel.io_uring_disabled={0}: \
         set it to 0, or to 1 and run kuring in the group of kernel.io_uring_group"
    )]
    Disabled(String),
    #[error(
        "io_uring_setup is denied ({0}): allow io_uring_setup, io_uring_enter and io_uring_register in the \
         seccomp profile of the container (config/ has one)"
    )]
    Denied(std::io::Error),
    #[error("io_uring_setup fails: {0}")]
    Failed(std::io::Error),
    #[error(
        "only {have} bytes of memory may be locked, {MEMLOCK_BYTES_MIN} are needed: raise `ulimit -l`, \
         LimitMEMLOCK= in systemd or --ulimit memlock= of the container"
    )]
    Memlock { have: u64 },
}

/// Checks what a shard needs of the kernel; raises the soft limit of locked memory if that helps. Without
/// this glommio would panic.
pub fn preflight() -> Result<(), PreflightError> {
    check_kernel()?;
    check_io_uring()?;
    check_memlock()
}

fn check_kernel() -> Result<(), PreflightError> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    match parse_release(&release) {
        Some(version) if version < KERNEL_MIN => Err(PreflightError::OldKernel(release.into_owned())),
        // A release that cannot be read is not a reason to refuse: io_uring_setup tells.
        _ => Ok(()),
    }
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn check_io_uring() -> Result<(), PreflightError> {
    /// `sizeof(struct io_uring_params)` in words.
    const PARAMS_WORDS: usize = 30;
    let mut params = [0u32; PARAMS_WORDS];
    // SAFETY: the kernel reads and writes one `struct io_uring_params` of 120 bytes, which `params` is.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
    if fd >= 0 {
        // SAFETY: the kernel just gave us this descriptor, nobody else knows it.
        drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) });
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let disabled = disabled.trim();
    match error.raw_os_error() {
        Some(libc::EPERM) if !matches!(disabled, "" | "0") => {
            Err(PreflightError::Disabled(disabled.to_owned()))
        }
        Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => Err(PreflightError::Denied(error)),
        _ => Err(PreflightError::Failed(error)),
    }
}

fn check_memlock() -> Result<(), PreflightError> {
    let mut limit = rustix::process::getrlimit(Resource::Memlock);
    let enough = |bytes: Option<u64>| bytes.is_none_or(|bytes| bytes >= MEMLOCK_BYTES_MIN);
    if enough(limit.current) {
        return Ok(());
    }
    let have = limit.current.unwrap_or(u64::MAX);
    if !enough(limit.maximum) {
        return Err(PreflightError::Memlock { have });
    }
    limit.current = limit.maximum;
    rustix::process::setrlimit(Resource::Memlock, limit).map_err(|_| PreflightError::Memlock { have })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_release_is_read() {
        assert_eq!(parse_release("6.18.44-fc"), Some((6, 18)));
        assert_eq!(parse_release("5.4-generic"), Some((5, 4)));
        assert_eq!(parse_release("mystery"), None);
    }

    #[test]
    fn this_machine_passes() {
        preflight().unwrap();
    }
}
