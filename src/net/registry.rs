//! The connections of one shard: what the idle sweep and the shutdown go through.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use slab::Slab;

use crate::api::{FetchSessions, SessionCache};
use crate::base::Counter;
use crate::base::clock::{self, Monotonic};
use crate::config::ListenerName;
use crate::io::net::SocketCloser;
use crate::io::runtime::{Mailbox, Queue, spawn};
use crate::shard::Shard;

use super::accept::Accepted;
use super::connection;
use super::figures::{Closed, ConnectionFigures, ListenerCounters};
use super::request_log::RequestLog;

/// How often idle connections are looked for, at most.
const IDLE_SWEEP_EVERY: Duration = Duration::from_secs(5);

/// All connections of a shard.
pub struct Connections {
    list: RefCell<Slab<Rc<Entry>>>,
    draining: Cell<bool>,
    sessions: FetchSessions,
    /// In the order of the configured listeners.
    listeners: Vec<(ListenerName, Rc<ListenerCounters>)>,
    closed: [Counter; Closed::ALL.len()],
    pub(super) request_log: RequestLog,
}

/// What others see of a connection.
pub(super) struct Entry {
    pub(super) last_active: Cell<Monotonic>,
    /// A request is being served.
    pub(super) busy: Cell<bool>,
    /// An answer is on its way: a peer that does not take it is as idle as one that asks nothing.
    pub(super) sending: Cell<bool>,
    /// This broker has closed it, and why.
    pub(super) closed: Cell<Option<Closed>>,
    closer: SocketCloser,
}

impl Entry {
    fn close(&self, why: Closed) {
        if self.closed.get().is_none() {
            self.closed.set(Some(why));
        }
        self.closer.close();
    }
}

/// Takes a connection off the list when its task ends, however it ends.
pub(super) struct Registered {
    connections: Rc<Connections>,
    key: usize,
    pub(super) entry: Rc<Entry>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.connections.list.borrow_mut().try_remove(self.key);
    }
}

impl Connections {
    /// Starts to serve what the listeners hand to this shard.
    pub fn start(shard: &Rc<Shard>, mut accepted: Mailbox<Accepted>) -> Rc<Self> {
        let slots = shard.config().fetch_session_slots_max as usize / usize::from(shard.shards());
        let connections = Rc::new(Self {
            list: RefCell::default(),
            draining: Cell::new(false),
            sessions: SessionCache::new(slots.max(1)),
            listeners: shard
                .config()
                .listeners
                .iter()
                .map(|listener| (listener.name.clone(), Rc::default()))
                .collect(),
            closed: Default::default(),
            request_log: RequestLog::new(shard.config()),
        });
        let (taker, owner) = (connections.clone(), shard.clone());
        spawn(Queue::Serve, "new connections", async move {
            let mut batch = Vec::new();
            while accepted.drain_into(&mut batch).await > 0 {
                for accepted in batch.drain(..) {
                    if !taker.draining.get() {
                        connection::start(&owner, &taker, accepted);
                    }
                }
            }
        })
        .detach();
        if let Some(idle_ms) = shard.config().connections_idle_ms_max {
            let idle = Duration::from_millis(idle_ms);
            let (list, owner) = (connections.clone(), shard.clone());
            spawn(Queue::Back, "idle connections", async move {
                loop {
                    owner.sleep_in_background(idle.min(IDLE_SWEEP_EVERY)).await;
                    list.close_idle(idle);
                }
            })
            .detach();
        }
        connections
    }

    pub(super) fn sessions(&self) -> &FetchSessions {
        &self.sessions
    }

    /// The counters of a listener.
    pub(super) fn listener(&self, name: &ListenerName) -> Rc<ListenerCounters> {
        let known = self.listeners.iter().find(|(other, _)| other == name);
        known.map(|(_, counters)| counters.clone()).unwrap_or_default()
    }

    pub(super) fn count_closed(&self, why: Closed) {
        self.closed[why as usize].increment();
    }

    /// A copy of what was counted.
    pub fn figures(&self) -> ConnectionFigures {
        let listeners = self.listeners.iter().map(|(name, counters)| (name.clone(), counters.values()));
        ConnectionFigures {
            listeners: listeners.collect(),
            closed: self.closed.each_ref().map(Counter::get),
            active: self.len(),
            sessions: self.sessions.figures(),
        }
    }

    pub fn len(&self) -> usize {
        self.list.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn register(self: &Rc<Self>, closer: SocketCloser) -> Registered {
        let entry = Rc::new(Entry {
            last_active: Cell::new(clock::monotonic()),
            busy: Cell::new(false),
            sending: Cell::new(false),
            closed: Cell::new(None),
            closer,
        });
        let key = self.list.borrow_mut().insert(entry.clone());
        Registered { connections: self.clone(), key, entry }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Lets requests in service finish and closes the rest. Busy connections close after their answer.
    pub fn drain(&self) {
        self.draining.set(true);
        for (_, entry) in &*self.list.borrow() {
            if !entry.busy.get() {
                entry.close(Closed::Stopping);
            }
        }
    }

    /// Closes what is left, whatever it does.
    pub fn close_all(&self) {
        for (_, entry) in &*self.list.borrow() {
            entry.close(Closed::Stopping);
        }
    }

    fn close_idle(&self, idle: Duration) {
        let now = clock::monotonic();
        for (_, entry) in &*self.list.borrow() {
            let may_be_idle = !entry.busy.get() || entry.sending.get();
            if may_be_idle && now.since(entry.last_active.get()) >= idle {
                entry.close(Closed::Idle);
            }
        }
    }
}
