//! The ring of a shard: what its sockets wait for, and the shard's sleep. One system call submits the polls that were
//! asked for, sleeps until one has news, a deadline has come or another thread rings the bell, and brings all the news
//! at once. glommio's own rings are not asked to sleep: there each sleep costs nine calls (docs/decisions/0010).
//!
//! Polls tell of edges: a socket is said to be ready once for what has come, so who is told takes all of it.
//!
//! Never here: which task runs, and the clock.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use slab::Slab;

use super::doorbell::Doorbell;

/// Polls that can be asked for before a call submits them.
const ENTRIES: u32 = 256;
/// News that the kernel keeps without an allocation. It keeps the polls of a ring in buckets, one for 32 of these.
const COMPLETIONS: u32 = 4096;
/// The user data of requests whose end nobody waits for, and of the bell's poll.
const NOBODY: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
/// `IORING_ENTER_GETEVENTS`.
const GET_EVENTS: u32 = 1;

/// The ring of the shard on this thread.
pub(super) struct Ring {
    ring: RefCell<IoUring>,
    polls: RefCell<Slab<Rc<Polled>>>,
    bell: RawFd,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("polls", &self.polls.borrow().len()).finish_non_exhaustive()
    }
}

/// One descriptor that is polled.
#[derive(Default, Debug)]
struct Polled {
    is_ready: Cell<bool>,
    /// The peer has finished or is gone: no edge comes any more.
    has_ended: Cell<bool>,
    /// A poll is in the kernel, or on its way.
    is_armed: Cell<bool>,
    /// Nobody waits any more; the place is free when the kernel has let go of the poll.
    is_released: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// What a descriptor is polled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    /// Something to receive, again and again.
    Readable,
    /// Room to send, once each time that it is waited for.
    Writable,
}

impl Interest {
    fn flags(self) -> u32 {
        let flags = match self {
            Interest::Readable => libc::POLLIN | libc::POLLRDHUP,
            Interest::Writable => libc::POLLOUT,
        };
        flags as u32
    }
}

/// A descriptor's place in the ring; left when it is dropped.
#[derive(Debug)]
pub(crate) struct Readiness {
    ring: Rc<Ring>,
    descriptor: RawFd,
    interest: Interest,
    key: usize,
    polled: Rc<Polled>,
}

impl Ring {
    /// For the shard on this thread, which `doorbell` wakes.
    pub(super) fn new(doorbell: &Doorbell) -> io::Result<Self> {
        let ring = Self {
            ring: RefCell::new(build()?),
            polls: RefCell::default(),
            bell: doorbell.descriptor().as_raw_fd(),
        };
        ring.arm_bell()?;
        Ok(ring)
    }

    /// The bell is rung by writing; nobody reads it: each write is an edge.
    fn arm_bell(&self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(Fd(self.bell), libc::POLLIN as u32).multi(true);
        self.push(poll.build().user_data(BELL))
    }

    fn push(&self, entry: squeue::Entry) -> io::Result<()> {
        let mut ring = self.ring.borrow_mut();
        loop {
            // SAFETY: the requests pushed here are polls and their removal: they name a descriptor and no memory. One
            // that was closed meanwhile, or stands for another file by now, makes a poll that fails or is removed by the
            // next request; its news goes to a place that nobody waits at.
            if unsafe { ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            interrupted_is_ok(ring.submit())?;
        }
    }

    /// Sleeps until there is news, but no longer than `at_most`. Whether there is any tells [`Ring::deliver`].
    pub(super) fn sleep(&self, at_most: Duration) -> io::Result<()> {
        let timeout = Timespec::from(at_most);
        let arguments = SubmitArgs::new().timespec(&timeout);
        interrupted_is_ok(self.ring.borrow().submitter().submit_with_args(1, &arguments))
    }

    /// Submits what was asked for and has the kernel tell what it knows; no system call where there is neither.
    pub(super) fn poll(&self) -> io::Result<()> {
        let mut ring = self.ring.borrow_mut();
        let (to_submit, is_due) = {
            let queue = ring.submission();
            (queue.len() as u32, queue.taskrun() || queue.cq_overflow())
        };
        if to_submit == 0 && !is_due {
            return Ok(());
        }
        // SAFETY: no argument is passed, so the kernel reads no memory but the ring's own.
        interrupted_is_ok(unsafe { ring.submitter().enter::<libc::sigset_t>(to_submit, 0, GET_EVENTS, None) })
    }

    /// Wakes the tasks of all that has news.
    pub(super) fn deliver(&self) -> io::Result<()> {
        let mut is_bell_spent = false;
        loop {
            let Some(entry) = self.ring.borrow_mut().completion().next() else { break };
            match entry.user_data() {
                NOBODY => {}
                BELL => is_bell_spent |= !cqueue::more(entry.flags()),
                key => self.deliver_one(key as usize, entry.result(), cqueue::more(entry.flags())),
            }
        }
        if is_bell_spent { self.arm_bell() } else { Ok(()) }
    }

    fn deliver_one(&self, key: usize, result: i32, goes_on: bool) {
        let Some(polled) = self.polls.borrow().get(key).cloned() else { return };
        if !goes_on {
            polled.is_armed.set(false);
            if polled.is_released.get() {
                self.polls.borrow_mut().remove(key);
                return;
            }
        }
        let ended = i32::from(libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR);
        if result < 0 || result & ended != 0 {
            polled.has_ended.set(true);
        }
        polled.is_ready.set(true);
        let waker = polled.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A place for a descriptor, which must stay open as long as the place is held.
    pub(super) fn watch(self: &Rc<Self>, descriptor: BorrowedFd<'_>, interest: Interest) -> Readiness {
        let polled = Rc::<Polled>::default();
        let key = self.polls.borrow_mut().insert(polled.clone());
        Readiness { ring: self.clone(), descriptor: descriptor.as_raw_fd(), interest, key, polled }
    }
}

impl Readiness {
    /// Whether it is time to try; else the task is woken when it is.
    ///
    /// # Errors
    /// The kernel takes no poll.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.polled.is_ready.get() {
            return Poll::Ready(Ok(()));
        }
        if !self.polled.is_armed.get() {
            let poll = opcode::PollAdd::new(Fd(self.descriptor), self.interest.flags());
            let poll = poll.multi(self.interest == Interest::Readable).build().user_data(self.key as u64);
            if let Err(error) = self.ring.push(poll) {
                return Poll::Ready(Err(error));
            }
            self.polled.is_armed.set(true);
        }
        let mut waker = self.polled.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// All that there was has been taken: what comes next makes an edge.
    pub(crate) fn is_drained(&self) {
        self.polled.is_ready.set(self.polled.has_ended.get());
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        drop(self.polled.waker.take());
        if !self.polled.is_armed.get() {
            self.ring.polls.borrow_mut().remove(self.key);
            return;
        }
        self.polled.is_released.set(true);
        let removal = opcode::PollRemove::new(self.key as u64).build().user_data(NOBODY);
        // Else the poll stays until the descriptor has news, and keeps its place as long.
        let _ = self.ring.push(removal);
    }
}

/// With news told when the shard asks for it, where the kernel can (6.1); else whenever it enters the kernel.
fn build() -> io::Result<IoUring> {
    let tells_when_asked = IoUring::builder()
        .setup_cqsize(COMPLETIONS)
        .setup_single_issuer()
        .setup_defer_taskrun()
        // Else nothing says that there is news to be told, and a shard that does not sleep never asks for it.
        .setup_taskrun_flag()
        .build(ENTRIES);
    match tells_when_asked {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().setup_cqsize(COMPLETIONS).build(ENTRIES)
        }
        ring => ring,
    }
}

fn interrupted_is_ok(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            // The time has come, a signal has, or the kernel has no room for more until its news is taken.
            Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error),
        },
    }
}
