//! How long the scheduler lets a shard's thread run at a stretch. With a short slice the thread has its turn sooner when
//! it wakes on a core that others keep busy, for the same share of that core: Linux 6.12 and later let a thread that
//! wakes go before one that has a longer slice; older ones do not know of it.

use std::io;
use std::time::Duration;

/// The least that Linux takes.
const SLICE: Duration = Duration::from_micros(100);

/// Gives the calling thread the short slice, unless it is not under the normal scheduler: then whoever started the
/// process knows better.
pub(super) fn shorten() -> io::Result<()> {
    let mut attributes = read()?;
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.sched_runtime = SLICE.as_nanos() as u64;
    // SAFETY: the kernel reads `size` bytes of the structure, which it has filled itself.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn read() -> io::Result<libc::sched_attr> {
    const SIZE: u32 = size_of::<libc::sched_attr>() as u32;
    // SAFETY: it is integers only, for which zeroes are values.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes `SIZE` bytes at most.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) };
    if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_slice_leaves_policy_and_priority_as_they_are() {
        std::thread::spawn(|| {
            let before = read().unwrap();
            shorten().unwrap();
            let after = read().unwrap();
            let same = |attributes: &libc::sched_attr| {
                (attributes.sched_policy, attributes.sched_nice, attributes.sched_flags)
            };
            assert_eq!(same(&after), same(&before));
            // Kernels that know of slices tell them.
            assert!(before.sched_runtime == 0 || after.sched_runtime == SLICE.as_nanos() as u64);
        })
        .join()
        .unwrap();
    }
}
