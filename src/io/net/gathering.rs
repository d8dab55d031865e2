//! Sockets that are looked at together: on which something small comes now and then, and a few milliseconds do not
//! matter. A socket that is waited for by itself has a poll in the executor's ring and wakes its shard for each request;
//! of these nothing is in the ring, and one look finds all that has come (edge-triggered epoll). What can be served
//! where it is found is ([`Rest`]): the socket's task sleeps on. One set per shard, used by that shard alone.
//!
//! Never here: when to look, who belongs in it, what a request is.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use slab::Slab;

use super::socket::Shared;

/// Sockets that one look tells of.
const EVENTS_PER_LOOK: usize = 64;

/// What comes on a socket at rest is served in the look up to here. More is no small thing, and the task's.
const SERVED_BYTES_MAX: usize = 512;

/// Serves what comes on one socket while its task rests.
pub trait Rest {
    /// Serves `received`, which is all that has come, and gives the answer to `send`, once; true when that is done.
    /// False if it must not be served here or `send` says no: the task receives it then, as if nobody had looked.
    fn serve(&self, received: &[u8], send: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

/// What a look has found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Look {
    /// Sockets on which something has come.
    pub found: usize,
    /// Of them, those whose tasks were woken for it.
    pub woken: usize,
    /// There may be more: look again.
    pub is_cut: bool,
}

/// The sockets of one shard that are looked at together.
#[derive(Debug)]
pub struct Gathering {
    epoll: OwnedFd,
    members: RefCell<Slab<Rc<Member>>>,
    /// Who waits for the first socket.
    looker: RefCell<Option<Waker>>,
}

/// What is known of one socket.
struct Member {
    /// Something may be there to receive.
    is_ready: Cell<bool>,
    /// The peer has finished or is gone: no edge comes any more.
    has_ended: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// The task waits for nothing but the next request.
    is_at_rest: Cell<bool>,
    server: Option<Rc<dyn Rest>>,
    /// Was received by a look and not served.
    aside: RefCell<Vec<u8>>,
    shared: Rc<Shared>,
}

impl fmt::Debug for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Member").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// A socket's place among the others; left when it is dropped.
#[derive(Debug)]
pub(super) struct Gathered {
    gathering: Rc<Gathering>,
    key: usize,
    member: Rc<Member>,
}

/// While it exists a look may serve what comes.
pub(super) struct AtRest(Rc<Member>);

impl Drop for AtRest {
    fn drop(&mut self) {
        self.0.is_at_rest.set(false);
    }
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

    /// Looks for sockets on which something has come: serves those at rest, and wakes the tasks of the others. Never
    /// waits.
    pub fn look(&self) -> io::Result<Look> {
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_PER_LOOK];
        let (events, _) = match epoll::wait(&self.epoll, &mut events, Some(&Timespec::default())) {
            Ok(found) => found,
            Err(Errno::INTR) => return Ok(Look { is_cut: true, ..Look::default() }),
            Err(error) => return Err(error.into()),
        };
        let found = events.len();
        let mut woken = 0;
        let members = self.members.borrow();
        for event in events.iter() {
            // One that has just left may still be told of.
            let (flags, key) = (event.flags, event.data.u64() as usize);
            let Some(member) = members.get(key) else { continue };
            if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
                member.has_ended.set(true);
            }
            if member.serve_at_rest() {
                continue;
            }
            woken += 1;
            member.is_ready.set(true);
            if let Some(waker) = member.waker.take() {
                waker.wake();
            }
        }
        Ok(Look { found, woken, is_cut: found == EVENTS_PER_LOOK })
    }

    pub(super) fn join(
        self: &Rc<Self>,
        shared: &Rc<Shared>,
        server: Option<Rc<dyn Rest>>,
    ) -> io::Result<Gathered> {
        let member = Rc::new(Member {
            is_ready: Cell::new(false),
            has_ended: Cell::new(false),
            waker: RefCell::default(),
            is_at_rest: Cell::new(false),
            server,
            aside: RefCell::default(),
            shared: shared.clone(),
        });
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
        Ok(Gathered { gathering: self.clone(), key, member })
    }
}

impl Member {
    /// Receives and serves what has come; false when the task is to see to it.
    fn serve_at_rest(&self) -> bool {
        let rests = self.is_at_rest.get() && !self.has_ended.get() && self.aside.borrow().is_empty();
        let Some(server) = self.server.as_ref().filter(|_| rests) else { return false };
        let mut room = [0; SERVED_BYTES_MAX];
        let bytes = match rustix::net::recv(&*self.shared, &mut room[..], RecvFlags::DONTWAIT) {
            Ok((_, bytes)) if bytes > 0 => bytes,
            // Told of once more.
            Err(Errno::AGAIN) => return true,
            // An end or an error, which the task finds too.
            _ => return false,
        };
        let mut send = |answer: &[u8]| self.send_at_rest(answer);
        if bytes < SERVED_BYTES_MAX && server.serve(&room[..bytes], &mut send) {
            return true;
        }
        self.aside.borrow_mut().extend_from_slice(&room[..bytes]);
        false
    }

    /// Sends all of a short answer, or nothing.
    fn send_at_rest(&self, answer: &[u8]) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&*self.shared, answer, flags) {
            Ok(sent) if sent < answer.len() => {
                // The kernel takes an answer of some bytes whole or not at all. What would follow this one could not be
                // read.
                self.shared.shutdown(Shutdown::Both);
                false
            }
            Ok(_) => true,
            // No room, or an error: the task meets it too.
            Err(_) => false,
        }
    }
}

impl Gathered {
    /// From now on, until it is dropped, a look may serve what comes: nothing is received and not served, in service or
    /// unsent.
    pub(super) fn rest(&self) -> AtRest {
        self.member.is_at_rest.set(true);
        AtRest(self.member.clone())
    }

    /// A look has received what was not taken yet.
    pub(super) fn has_aside(&self) -> bool {
        !self.member.aside.borrow().is_empty()
    }

    /// Moves what a look has received into `room`, as much as there is room for: how many bytes. 0: there is nothing.
    pub(super) fn take_aside(&self, room: &mut [u8]) -> usize {
        let mut aside = self.member.aside.borrow_mut();
        let bytes = aside.len().min(room.len());
        room[..bytes].copy_from_slice(&aside[..bytes]);
        aside.drain(..bytes);
        if aside.is_empty() {
            // There are thousands of these.
            *aside = Vec::new();
        }
        bytes
    }

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
        let _ = epoll::delete(&self.gathering.epoll, &*self.member.shared);
        self.gathering.members.borrow_mut().remove(self.key);
    }
}
