//! The connections of one shard: what the idle sweep and the shutdown go through.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use slab::Slab;

use crate::api::{FetchSessions, SessionCache};
use crate::base::Counter;
use crate::base::clock::{self, Monotonic};
use crate::config::ListenerName;
use crate::io::chunk::{FRAME_KINDS, ReceiveState};
use crate::io::net::SocketCloser;
use crate::io::runtime::{Mailbox, Queue, Sender, spawn, yield_if_needed};
use crate::shard::Shard;

use super::accept::Accepted;
use super::beats::BeatingConnections;
use super::connection;
use super::figures::{Closed, ConnectionFigures, ListenerCounters};
use super::memory::ServeMemory;
use super::request_log::RequestLog;
use super::watch::{self, Phase, Verdict, Watch};

/// All connections of a shard.
pub struct Connections {
    list: RefCell<Slab<Rc<Entry>>>,
    draining: Cell<bool>,
    sessions: FetchSessions,
    memory: ServeMemory,
    /// The ways to all shards, this one too.
    shards: Vec<Sender<Accepted>>,
    /// In the order of the configured listeners.
    listeners: Vec<(ListenerName, Rc<ListenerCounters>)>,
    closed: [Counter; Closed::ALL.len()],
    /// By kind of frames, since when all its memory has been held by those who wait for more, and what had been given
    /// then.
    stuck: Cell<[Option<(u64, Monotonic)>; FRAME_KINDS]>,
    pub(super) request_log: RequestLog,
    beating: Rc<BeatingConnections>,
}

/// What others see of a connection.
pub(super) struct Entry {
    pub(super) watch: Watch,
    /// Bytes of answers that it holds until the peer has taken them.
    pub(super) answer_bytes: Cell<usize>,
    /// They are beyond the shard's memory for answers.
    pub(super) is_beyond: Cell<bool>,
    received: Rc<ReceiveState>,
    sent_bytes: Rc<Cell<u64>>,
    /// Of `sent_bytes`, what the watch has been told.
    seen_bytes: Cell<u64>,
    listener: ListenerName,
    /// This broker has closed it, and why.
    pub(super) closed: Cell<Option<Closed>>,
    closer: SocketCloser,
}

/// A connection's ends, for those who watch it.
pub(super) struct Ends {
    pub(super) received: Rc<ReceiveState>,
    pub(super) sent_bytes: Rc<Cell<u64>>,
    pub(super) listener: ListenerName,
    pub(super) closer: SocketCloser,
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

impl Entry {
    fn close(&self, why: Closed) {
        if self.closed.get().is_none() {
            self.closed.set(Some(why));
        }
        self.closer.close();
        self.received.close();
    }

    /// Whether a request is being served or answered.
    fn is_busy(&self) -> bool {
        matches!(self.watch.phase(), Phase::Serving | Phase::Parked | Phase::Sending)
    }

    /// What it holds that others may wait for and its peer could give back.
    fn relievable_bytes(&self) -> usize {
        match self.watch.phase() {
            Phase::Idle | Phase::Receiving | Phase::Parked | Phase::Muted => self.received.held_bytes(),
            Phase::Sending => self.answer_bytes.get(),
            Phase::Serving => 0,
        }
    }

    /// Tells the watch what has happened since the last time.
    fn look(&self, now: Monotonic) {
        let sent = self.sent_bytes.get();
        let more = sent - self.seen_bytes.replace(sent);
        if more > 0 {
            self.watch.moved(more as usize, now);
        }
        if self.received.waits() {
            self.watch.excuse(now);
        }
    }
}

impl Connections {
    /// Starts to serve what the listeners, and the other of `shards`, hand to this shard.
    pub fn start(
        shard: &Rc<Shard>,
        mut accepted: Mailbox<Accepted>,
        shards: Vec<Sender<Accepted>>,
    ) -> Rc<Self> {
        let slots = shard.config().fetch_session_slots_max as usize / usize::from(shard.shards());
        let config = shard.config();
        // Kafka's tools come to those of controllers, where these are open.
        let of_controllers = config.cluster.iter().flat_map(|_| &config.controller_listeners);
        let listeners = config.listeners.iter().chain(of_controllers);
        let connections = Rc::new(Self {
            list: RefCell::default(),
            draining: Cell::new(false),
            sessions: SessionCache::new(slots.max(1)),
            memory: ServeMemory::of(shard.serve_memory()),
            shards,
            listeners: listeners.map(|listener| (listener.name.clone(), Rc::default())).collect(),
            closed: Default::default(),
            stuck: Cell::default(),
            request_log: RequestLog::new(shard.config()),
            beating: BeatingConnections::start(shard),
        });
        let (taker, owner) = (connections.clone(), shard.clone());
        spawn(Queue::Serve, "new connections", async move {
            let mut batch = Vec::new();
            while accepted.drain_into(&mut batch).await > 0 {
                for accepted in batch.drain(..) {
                    if taker.draining.get() {
                        taker.drop_on_its_way(&accepted);
                        continue;
                    }
                    if let Some(time) = accepted.held {
                        let time = owner.sleep(time);
                        spawn(Queue::Back, "held connection", async move {
                            time.await;
                            drop(accepted);
                        })
                        .detach();
                        continue;
                    }
                    if accepted.moved.is_none() && accepted.pass.displaces() {
                        taker.close_least_recently_used(&accepted.listener);
                    }
                    connection::start(&owner, &taker, accepted);
                    // Thousands may come at once.
                    yield_if_needed().await;
                }
            }
        })
        .detach();
        if let Some(every) = watch::sweep_every(&shard.config().serving_limits) {
            let (list, owner) = (connections.clone(), shard.clone());
            spawn(Queue::Back, "connection times", async move {
                loop {
                    owner.sleep(every).await;
                    list.close_late(&owner);
                }
            })
            .detach();
        }
        start_relief(&connections, shard);
        connections
    }

    pub(super) fn sessions(&self) -> &FetchSessions {
        &self.sessions
    }

    pub(super) fn beating(&self) -> &Rc<BeatingConnections> {
        &self.beating
    }

    /// Gives a connection to the shard that its pass says.
    pub(super) fn hand_over(&self, connection: Accepted) {
        if let Err(refused) = self.shards[connection.pass.shard()].push(connection) {
            tracing::debug!(peer = %refused.0.peer, "connection dropped: its shard has stopped");
            self.drop_on_its_way(&refused.0);
        }
    }

    /// A connection ends between two shards.
    fn drop_on_its_way(&self, connection: &Accepted) {
        if connection.moved.is_some() {
            self.listener(&connection.listener).ended.increment();
            self.count_closed(Closed::Stopping);
        }
    }

    pub(super) fn memory(&self) -> &ServeMemory {
        &self.memory
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
            gathered: self.beating.gathered(),
            sessions: self.sessions.figures(),
        }
    }

    pub fn len(&self) -> usize {
        self.list.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn register(self: &Rc<Self>, ends: Ends) -> Registered {
        let Ends { received, sent_bytes, listener, closer } = ends;
        let entry = Rc::new(Entry {
            watch: Watch::new(clock::monotonic()),
            answer_bytes: Cell::new(0),
            is_beyond: Cell::new(false),
            received,
            sent_bytes,
            seen_bytes: Cell::new(0),
            listener,
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
            if !entry.is_busy() {
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

    /// Closes the connections whose time is up, silently, as Kafka does.
    fn close_late(&self, shard: &Shard) {
        let now = clock::monotonic();
        let counters = &shard.counters;
        for (_, entry) in &*self.list.borrow() {
            if entry.closed.get().is_some() {
                continue;
            }
            entry.look(now);
            let Some(verdict) = entry.watch.verdict(&shard.config().serving_limits, now) else { continue };
            let (counter, why) = match verdict {
                Verdict::Idle => (&counters.idle_connections, Closed::Idle),
                Verdict::NoFirstRequest => (&counters.late_first_requests, Closed::Limit),
                Verdict::SlowRequest => (&counters.requests_too_slow, Closed::Limit),
                Verdict::SlowResponse => (&counters.responses_too_slow, Closed::Limit),
            };
            counter.increment();
            entry.close(why);
        }
    }

    fn close_least_recently_used(&self, spared: &ListenerName) {
        let list = self.list.borrow();
        let others = list.iter().map(|(_, entry)| entry).filter(|entry| entry.listener != *spared);
        if let Some(entry) = others.min_by_key(|entry| entry.watch.last_active().get()) {
            entry.close(Closed::Limit);
        }
    }

    /// Takes memory from those who hold it and do not move, the longest first, until what others wait for is free.
    fn relieve(&self, shard: &Shard) {
        let now = clock::monotonic();
        let limits = &shard.config().serving_limits;
        let mut wanted_bytes = shard.chunks().wanted_bytes();
        let mut answers_wanted = shard.serve_memory().missing();
        let mut beyond_wanted = usize::from(shard.serve_beyond().somebody_waits());
        let list = self.list.borrow();
        let mut stalled: Vec<&Rc<Entry>> = Vec::new();
        for (_, entry) in &*list {
            if entry.closed.get().is_some() {
                // What it holds is on its way home.
                wanted_bytes = wanted_bytes.saturating_sub(entry.received.held_bytes());
                answers_wanted = answers_wanted.saturating_sub(entry.answer_bytes.get());
                continue;
            }
            entry.look(now);
            let held = entry.relievable_bytes();
            if held > 0 && !entry.received.waits() && entry.watch.has_stalled(held, limits, now) {
                stalled.push(entry);
            }
        }
        stalled.sort_by_key(|entry| entry.watch.stall_since());
        for entry in stalled {
            let wanted = match entry.watch.phase() {
                Phase::Sending if entry.is_beyond.get() => &mut beyond_wanted,
                Phase::Sending => &mut answers_wanted,
                _ => &mut wanted_bytes,
            };
            if *wanted == 0 {
                continue;
            }
            *wanted = wanted.saturating_sub(entry.relievable_bytes());
            shard.counters.stalled_connections.increment();
            entry.close(Closed::Limit);
        }
        self.unblock(shard, now);
    }

    /// Where all memory for a kind of frames has been held for long by those who wait for more of it, half of them
    /// have to go: those with the longest frames.
    fn unblock(&self, shard: &Shard, now: Monotonic) {
        let mut since = self.stuck.get();
        for (kind, grants) in shard.chunks().stuck().into_iter().enumerate() {
            since[kind] = match (since[kind], grants) {
                (_, None) => None,
                (Some((before, since)), Some(grants)) if before == grants => Some((grants, since)),
                (_, Some(grants)) => Some((grants, now)),
            };
            let Some((_, begin)) = since[kind] else { continue };
            if now.since(begin) < shard.config().serving_limits.stall_time_max {
                continue;
            }
            let list = self.list.borrow();
            let entries = list.iter().map(|(_, entry)| entry);
            let mut waiting: Vec<_> = entries
                .filter(|entry| entry.closed.get().is_none() && entry.received.waits())
                .filter(|entry| entry.received.kind() == Some(kind))
                .collect();
            waiting.sort_by_key(|entry| std::cmp::Reverse(entry.received.frame_bytes()));
            for entry in &waiting[..waiting.len().div_ceil(2)] {
                shard.counters.connections_crowded_out.increment();
                entry.close(Closed::Limit);
            }
        }
        self.stuck.set(since);
    }
}

/// Starts the task that looks for stalled connections as long as others wait for memory.
fn start_relief(connections: &Rc<Connections>, shard: &Rc<Shard>) {
    let (connections, shard) = (connections.clone(), shard.clone());
    let every = (shard.config().serving_limits.stall_time_max / 4).max(Duration::from_millis(1));
    spawn(Queue::Control, "memory relief", async move {
        loop {
            std::future::poll_fn(|context| {
                let receives = shard.chunks().poll_pressure(context);
                let answers = shard.serve_memory().poll_pressure(context);
                let beyond = shard.serve_beyond().poll_pressure(context);
                if receives.is_pending() {
                    // Nobody is stuck, and until somebody waits again nobody looks.
                    connections.stuck.set(Default::default());
                }
                let any = receives.is_ready() || answers.is_ready() || beyond.is_ready();
                if any { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            shard.sleep(every).await;
            connections.relieve(&shard);
        }
    })
    .detach();
}
