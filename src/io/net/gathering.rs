//! Sockets that are looked at together: on which something small comes now and then, and a few milliseconds do not
//! matter. A socket that is waited for by itself has a poll in the executor's ring and wakes its shard for each request;
//! of these nothing is in the ring, and one look finds all that has come (edge-triggered epoll). One set per shard,
//! used by that shard alone.
//!
//! Never here: when to look, and who belongs in it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use slab::Slab;

use super::socket::Shared;

/// Sockets that one call of a look tells of.
const EVENTS_PER_CALL: usize = 64;

/// The sockets of one shard that are looked at together.
#[derive(Debug)]
pub struct Gathering {
    epoll: OwnedFd,
    members: RefCell<Slab<Rc<Member>>>,
    /// Who waits for the first socket.
    looker: RefCell<Option<Waker>>,
}

/// What is known of one socket.
#[derive(Default, Debug)]
struct Member {
    /// Something may be there to receive.
    is_ready: Cell<bool>,
    /// The peer has finished or is gone: no edge comes any more.
    has_ended: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A socket's place among the others; left when it is dropped.
#[derive(Debug)]
pub(super) struct Gathered {
    gathering: Rc<Gathering>,
    key: usize,
    member: Rc<Member>,
    shared: Rc<Shared>,
}

impl Gathering {
    pub fn new() -> io::Result<Rc<Self>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Rc::new(Self { epoll, members: RefCell::default(), looker: RefCell::default() }))
    }

    pub fn len(&self) -> usize {
        self.members.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until there is a socket to look at. One task may wait.
    pub async fn occupied(&self) {
        poll_fn(|cx| {
            if !self.is_empty() {
                return Poll::Ready(());
            }
            self.looker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Wakes the tasks of all sockets on which something has come since the last look: how many there are. Never
    /// waits.
    pub fn look(&self) -> io::Result<usize> {
        let mut woken = 0;
        loop {
            let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_PER_CALL];
            let (events, _) = match epoll::wait(&self.epoll, &mut events, Some(&Timespec::default())) {
                Ok(found) => found,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let found = events.len();
            let members = self.members.borrow();
            for event in events.iter() {
                // One that has just left may still be told of.
                let (flags, key) = (event.flags, event.data.u64() as usize);
                let Some(member) = members.get(key) else { continue };
                member.is_ready.set(true);
                if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
                    member.has_ended.set(true);
                }
                if let Some(waker) = member.waker.take() {
                    waker.wake();
                }
            }
            woken += found;
            if found < EVENTS_PER_CALL {
                return Ok(woken);
            }
        }
    }

    pub(super) fn join(self: &Rc<Self>, shared: &Rc<Shared>) -> io::Result<Gathered> {
        let member = Rc::<Member>::default();
        let key = self.members.borrow_mut().insert(member.clone());
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        // What is there already is told of by the next look.
        if let Err(error) = epoll::add(&self.epoll, &**shared, EventData::new_u64(key as u64), events) {
            self.members.borrow_mut().remove(key);
            return Err(error.into());
        }
        if let Some(looker) = self.looker.take() {
            looker.wake();
        }
        Ok(Gathered { gathering: self.clone(), key, member, shared: shared.clone() })
    }
}

impl Gathered {
    /// Whether it is time to receive; else the task is woken when it is.
    pub(super) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.member.is_ready.get() {
            return Poll::Ready(());
        }
        self.member.waker.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// All that had come has been received: what comes next makes an edge.
    pub(super) fn is_drained(&self) {
        self.member.is_ready.set(self.member.has_ended.get());
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        // Expressly: a descriptor that the connection was handed over as would keep it in the set.
        let _ = epoll::delete(&self.gathering.epoll, &*self.shared);
        self.gathering.members.borrow_mut().remove(self.key);
    }
}
