//! How other threads wake tasks of a shard: they put the task's waker into the shard's inbox and, where the shard sleeps,
//! ring its bell (an eventfd that its ring polls).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;

use super::tasks::TaskWaker;
use crate::base::fatal;

/// One per shard, held by every waker of its tasks.
#[derive(Debug)]
pub(super) struct Doorbell {
    woken: Mutex<Vec<Arc<TaskWaker>>>,
    /// There is something in the inbox.
    has_rung: AtomicBool,
    /// The shard sleeps, or is about to.
    is_asleep: AtomicBool,
    bell: OwnedFd,
}

impl Doorbell {
    pub(super) fn new() -> io::Result<Self> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            woken: Mutex::default(),
            has_rung: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            bell,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// From any thread. A call to the system only where the shard sleeps.
    pub(super) fn ring(&self, task: Arc<TaskWaker>) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        // Either this sees that the shard sleeps, or the shard sees the ring before it does: both store first and look
        // then, in the one order that all threads agree on.
        self.has_rung.store(true, Ordering::SeqCst);
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            match rustix::io::write(&self.bell, &1u64.to_ne_bytes()) {
                // A counter that is full stands for a bell that nobody could have missed.
                Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
                Err(error) => fatal(format_args!("a shard cannot be woken: {error}")),
            }
        }
    }

    pub(super) fn has_rung(&self) -> bool {
        self.has_rung.load(Ordering::Relaxed)
    }

    /// The shard is about to sleep: false if it must not, for it was rung for.
    pub(super) fn fall_asleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        let may_sleep = !self.has_rung.load(Ordering::SeqCst);
        if !may_sleep {
            self.is_asleep.store(false, Ordering::Relaxed);
        }
        may_sleep
    }

    pub(super) fn is_awake(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// Takes the inbox into `out`, which is empty.
    pub(super) fn take(&self, out: &mut Vec<Arc<TaskWaker>>) {
        self.has_rung.store(false, Ordering::SeqCst);
        std::mem::swap(out, &mut self.woken.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
