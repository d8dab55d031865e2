//! How many bytes of blocks all logs together may hold reserved ahead of their appends: what is reserved is lost
//! to everybody else on the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bound, shared by the logs of a process. A log that gets nothing appends without: only slower.
#[derive(Debug)]
pub struct Preallocation {
    bytes_max: u64,
    held: AtomicU64,
    refused: AtomicU64,
}

impl Preallocation {
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, held: AtomicU64::new(0), refused: AtomicU64::new(0) })
    }

    /// Bytes that logs hold now; at most a step per log more than what lies behind their ends.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// How often a log wanted more than the bound leaves.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn try_add(&self, bytes: u64) -> bool {
        let fits = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        let added = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if !added {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        added
    }
}

/// What one log holds of it; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    of: Arc<Preallocation>,
    bytes: u64,
}

impl Held {
    pub fn new(of: &Arc<Preallocation>) -> Self {
        Self { of: Arc::clone(of), bytes: 0 }
    }

    /// Holds `bytes` in all from now on; false, and unchanged, when the bound does not leave so much.
    pub fn set(&mut self, bytes: u64) -> bool {
        if bytes > self.bytes {
            if !self.of.try_add(bytes - self.bytes) {
                return false;
            }
        } else {
            self.of.held.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_together_hold_no_more_than_the_bound() {
        let all = Preallocation::new(100);
        let (mut one, mut two) = (Held::new(&all), Held::new(&all));
        assert!(one.set(60));
        assert!(!two.set(41));
        assert!(two.set(40));
        assert_eq!((all.held(), all.refused()), (100, 1));
        assert!(one.set(10), "less is always right");
        assert!(two.set(90));
        drop(two);
        assert_eq!(all.held(), 10);
    }
}
