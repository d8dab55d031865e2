//! The limits on connections: how many, of whom, how fast, by the rules of Kafka's `ConnectionQuotas`. One gate for
//! the process, shared by the accepting threads; a shard touches it only when a connection ends.
//!
//! Over `max.connections` or `max.connection.creation.rate` the accepting thread of the listener waits, and those
//! behind stay in the backlog; over `max.connections.per.ip` the connection is closed. One that comes faster than its
//! address may ([`super::hold`]) is held for a while, in one of the places, and then closed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::hold::IpLimits;
use crate::base::PROCESS;
use crate::base::clock::{self, Monotonic};
use crate::config::{ConnectionLimits, ListenerName};
use crate::metadata::ClientQuotas;
use crate::shard::QuotaMeters;

/// Clients that a controller's listener has at a time. They are tools.
const CONTROLLER_CLIENTS_MAX: u32 = 64;

/// Counts connections and says who may come in.
#[derive(Clone)]
pub struct Gate(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// A place is free, a limit has changed, or the gate has closed.
    changed: Condvar,
}

struct State {
    limits: ConnectionLimits,
    ip_limits: Option<IpLimits>,
    /// The listener whose connections `max.connections` does not keep out: the inter-broker one, if there are others.
    protected: Option<ListenerName>,
    /// Connections that the limit on open files leaves room for beside the logs.
    descriptors: u32,
    per_shard: Vec<u32>,
    /// Which shards take connections.
    open: Vec<bool>,
    per_ip: HashMap<IpAddr, u32>,
    per_listener: HashMap<ListenerName, u32>,
    total: u32,
    rate: Rate,
    rate_per_listener: HashMap<ListenerName, Rate>,
    closed: bool,
    counts: GateCounts,
}

/// What has passed the gate, and what each limit has kept out, since the start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct GateCounts {
    pub accepted: u64,
    /// Closed: `max.connections.per.ip` and its overrides.
    pub over_ip: u64,
    /// Held and then closed: `connection_creation_rate` of the address.
    pub over_ip_rate: u64,
    /// Made to wait, or closed at a controller's listener: `max.connections`, the broker's or a listener's, or the
    /// descriptors.
    pub waited_for_place: u64,
    /// Made to wait, or closed at a controller's listener: `max.connection.creation.rate`, the broker's or a listener's.
    pub waited_for_rate: u64,
    /// Connections of other listeners closed for one of the inter-broker listener.
    pub displaced: u64,
}

/// Connections of one second.
#[derive(Clone, Copy, Default)]
struct Rate {
    second: Monotonic,
    created: u32,
}

impl Rate {
    /// How long the next one has to wait. A rate of 0 lets one a second in, as Kafka does.
    fn wait(&mut self, limit: u32, now: Monotonic) -> Duration {
        if self.created == 0 || now.since(self.second) >= Duration::from_secs(1) {
            *self = Self { second: now, created: 0 };
        }
        match self.created < limit.max(1) {
            true => Duration::ZERO,
            false => Duration::from_secs(1).saturating_sub(now.since(self.second)),
        }
    }
}

/// A connection's place in the counts; given back when it is dropped.
pub struct Pass {
    gate: Gate,
    shard: usize,
    ip: IpAddr,
    listener: ListenerName,
    /// It came in over `max.connections`: one of another listener is to go.
    displaces: bool,
}

impl Gate {
    /// `only` names the shards that take connections, if not all do (`kuring.connection.shards`). `protected` is the
    /// inter-broker listener, if there are others beside it.
    pub fn new(
        limits: ConnectionLimits,
        shards: u16,
        only: Option<&[usize]>,
        protected: Option<ListenerName>,
    ) -> Self {
        let open = (0..usize::from(shards)).map(|shard| only.is_none_or(|only| only.contains(&shard)));
        let state = State {
            limits,
            ip_limits: None,
            protected,
            descriptors: u32::MAX,
            per_shard: vec![0; usize::from(shards)],
            open: open.collect(),
            per_ip: HashMap::new(),
            per_listener: HashMap::new(),
            total: 0,
            rate: Rate::default(),
            rate_per_listener: HashMap::new(),
            closed: false,
            counts: GateCounts::default(),
        };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// Keeps connections to `descriptors` in all, whatever the limits say: a log that finds no descriptor left
    /// takes its directory offline.
    pub fn keep_to_descriptors(&self, descriptors: u32) {
        self.state().descriptors = descriptors;
    }

    /// New limits, for connections to come.
    pub fn set_limits(&self, limits: ConnectionLimits) {
        self.state().limits = limits;
        self.0.changed.notify_all();
    }

    /// New quotas of addresses, for connections to come.
    pub fn set_quotas(&self, quotas: &ClientQuotas, meters: &Arc<QuotaMeters>) {
        let ip_limits = IpLimits::of(quotas, meters);
        self.state().ip_limits = ip_limits;
    }

    /// Lets nobody in any more; those who wait are sent away.
    pub fn close(&self) {
        self.state().closed = true;
        self.0.changed.notify_all();
    }

    pub fn counts(&self) -> GateCounts {
        self.state().counts
    }

    /// Connections that are in.
    pub fn connections(&self) -> u32 {
        self.state().total
    }

    /// How long a connection from `ip` is to be held before it is closed, if it comes too soon, and a place for that
    /// time. Without one it is closed at once.
    pub(super) fn hold(&self, listener: &ListenerName, ip: IpAddr) -> Option<(Duration, Option<Pass>)> {
        let limits = self.state().ip_limits.clone()?;
        let time = limits.hold(ip, clock::monotonic())?;
        let mut state = self.state();
        state.counts.over_ip_rate += 1;
        let has_place = state.has_place(listener) && state.total < state.limits.total;
        if !has_place {
            return Some((time, None));
        }
        let pass = self.admit(state, None, listener, ip.to_canonical());
        Some((time, pass))
    }

    /// A place for a connection from `ip`. Waits for one on the calling thread; `None` when it is to be closed.
    pub(super) fn enter(&self, listener: &ListenerName, ip: IpAddr) -> Option<Pass> {
        let ip = ip.to_canonical();
        let mut state = self.state();
        let (mut waited_for_place, mut waited_for_rate) = (false, false);
        loop {
            if state.closed {
                return None;
            }
            let rate_wait = state.rate_wait(listener, clock::monotonic());
            if !state.has_place(listener) {
                if !std::mem::replace(&mut waited_for_place, true) {
                    state.counts.waited_for_place += 1;
                    tracing::info!(peer = %ip, "a connection waits: max.connections or the descriptors are used up");
                }
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else if !rate_wait.is_zero() {
                if !std::mem::replace(&mut waited_for_rate, true) {
                    state.counts.waited_for_rate += 1;
                }
                let waited = self.0.changed.wait_timeout(state, rate_wait);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                break;
            }
        }
        state.count_rate(listener);
        self.admit(state, None, listener, ip)
    }

    /// A place on shard 0 for a client of a listener for controllers. Waits for none: the other controllers come in there,
    /// too, and on that shard.
    pub fn enter_at_controller(&self, listener: &ListenerName, ip: IpAddr) -> Option<Pass> {
        if self.hold(listener, ip).is_some() {
            return None;
        }
        let mut state = self.state();
        let there = state.per_listener.get(listener).copied().unwrap_or(0);
        if state.closed {
            return None;
        }
        if there >= CONTROLLER_CLIENTS_MAX {
            PROCESS.controller_clients_refused.increment();
            return None;
        }
        if !state.has_place(listener) || state.total >= state.limits.total {
            state.counts.waited_for_place += 1;
            return None;
        }
        if !state.rate_wait(listener, clock::monotonic()).is_zero() {
            state.counts.waited_for_rate += 1;
            return None;
        }
        state.count_rate(listener);
        self.admit(state, Some(0), listener, ip.to_canonical())
    }

    /// On that shard, or the one with the fewest.
    fn admit(
        &self,
        mut state: MutexGuard<'_, State>,
        shard: Option<usize>,
        listener: &ListenerName,
        ip: IpAddr,
    ) -> Option<Pass> {
        if state.per_ip.get(&ip).copied().unwrap_or(0) >= state.limits.of(ip) {
            state.counts.over_ip += 1;
            tracing::info!(peer = %ip, "connection refused: over max.connections.per.ip");
            return None;
        }
        let displaces = state.total >= state.limits.total;
        // Shard 0 has the controller and the coordinators beside it: a connection there counts double.
        let fewest = || {
            (0..state.per_shard.len())
                .filter(|&shard| state.open[shard])
                .min_by_key(|&shard| (state.per_shard[shard] + 1) * if shard == 0 { 2 } else { 1 })
        };
        let shard = shard.or_else(fewest)?;
        state.per_shard[shard] += 1;
        state.total += 1;
        state.counts.accepted += 1;
        state.counts.displaced += u64::from(displaces);
        *state.per_ip.entry(ip).or_insert(0) += 1;
        *state.per_listener.entry(listener.clone()).or_insert(0) += 1;
        Some(Pass { gate: self.clone(), shard, ip, listener: listener.clone(), displaces })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_place(&self, listener: &ListenerName) -> bool {
        let there = self.per_listener.get(listener).copied().unwrap_or(0);
        let is_protected = self.protected.as_ref() == Some(listener);
        there < self.limits.of_listener(listener).total
            && self.total < self.descriptors
            && (is_protected || self.total < self.limits.total)
    }

    fn rate_wait(&mut self, listener: &ListenerName, now: Monotonic) -> Duration {
        let of_listener = self.limits.of_listener(listener).creation_per_second;
        let rate = self.rate_per_listener.entry(listener.clone()).or_default();
        let wait = rate.wait(of_listener, now);
        match self.protected.as_ref() == Some(listener) {
            true => wait,
            false => wait.max(self.rate.wait(self.limits.creation_per_second, now)),
        }
    }

    fn count_rate(&mut self, listener: &ListenerName) {
        self.rate.created = self.rate.created.saturating_add(1);
        let rate = self.rate_per_listener.entry(listener.clone()).or_default();
        rate.created = rate.created.saturating_add(1);
    }
}

impl Pass {
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Counts the connection as another shard's; false when that one takes none.
    pub(super) fn move_to(&mut self, shard: usize) -> bool {
        let mut state = self.gate.state();
        if !state.open.get(shard).copied().unwrap_or(false) {
            return false;
        }
        state.per_shard[self.shard] -= 1;
        state.per_shard[shard] += 1;
        self.shard = shard;
        true
    }

    /// The least recently used connection of another listener is to be closed for this one
    /// (`SocketServer.closeExcessConnections`).
    pub fn displaces(&self) -> bool {
        self.displaces
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.total -= 1;
        state.per_shard[self.shard] -= 1;
        if let Some(count) = state.per_ip.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                state.per_ip.remove(&self.ip);
            }
        }
        if let Some(count) = state.per_listener.get_mut(&self.listener) {
            *count -= 1;
        }
        drop(state);
        self.gate.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::*;
    use crate::config::ListenerLimits;

    fn limits(total: u32, per_ip: u32) -> ConnectionLimits {
        ConnectionLimits {
            total,
            per_ip,
            per_ip_overrides: Default::default(),
            creation_per_second: u32::MAX,
            per_listener: Default::default(),
        }
    }

    fn name(name: &str) -> ListenerName {
        ListenerName::new(name)
    }

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const A_WHILE: Duration = Duration::from_millis(50);
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Enters on a thread of its own, as a listener does.
    fn enter_elsewhere(gate: &Gate, listener: &'static str) -> std::sync::mpsc::Receiver<Option<Pass>> {
        let (sender, receiver) = channel();
        let gate = gate.clone();
        std::thread::spawn(move || sender.send(gate.enter(&name(listener), HERE)));
        receiver
    }

    #[test]
    fn few_connections_spread_evenly_and_shard_zero_gets_half() {
        let gate = Gate::new(limits(100, 100), 3, None, None);
        let passes: Vec<Pass> = (0..10).filter_map(|_| gate.enter(&name("a"), HERE)).collect();
        let mut counts = [0; 3];
        for pass in &passes {
            counts[pass.shard()] += 1;
        }
        assert_eq!(counts, [2, 4, 4]);
        assert_eq!(gate.counts().accepted, 10);
    }

    #[test]
    fn clients_of_a_controller_are_few_wait_for_nothing_and_live_on_shard_zero() {
        let gate = Gate::new(limits(200, 200), 3, Some(&[1, 2]), None);
        let enter = || gate.enter_at_controller(&name("c"), HERE);
        let refused_before = PROCESS.controller_clients_refused.get();
        let mut passes: Vec<Pass> = std::iter::from_fn(enter).collect();
        assert_eq!(passes.len() as u32, CONTROLLER_CLIENTS_MAX);
        assert!(PROCESS.controller_clients_refused.get() > refused_before);
        assert!(passes.iter().all(|pass| pass.shard() == 0));
        assert!(gate.enter(&name("a"), HERE).is_some(), "they keep nobody else out");
        passes.pop();
        assert!(enter().is_some());
        gate.set_limits(limits(62, 200));
        passes.pop();
        assert!(enter().is_none(), "nor do they wait");
        assert_eq!(gate.counts().waited_for_place, 1);
        gate.set_limits(limits(200, 200));
        gate.close();
        assert!(enter().is_none());
    }

    #[test]
    fn a_connection_that_moves_makes_room_on_its_old_shard() {
        let gate = Gate::new(limits(100, 100), 3, Some(&[1, 2]), None);
        let mut first = gate.enter(&name("a"), HERE).unwrap();
        assert_eq!(first.shard(), 1);
        assert!(!first.move_to(0), "shard 0 takes none");
        assert!(first.move_to(2));
        let second = gate.enter(&name("a"), HERE).unwrap();
        assert_eq!((first.shard(), second.shard()), (2, 1));
        drop(first);
        assert_eq!(gate.enter(&name("a"), HERE).unwrap().shard(), 2);
    }

    #[test]
    fn above_the_most_connections_the_next_one_waits_for_a_place() {
        let gate = Gate::new(limits(1, 100), 1, None, None);
        let first = gate.enter(&name("a"), HERE);
        let second = enter_elsewhere(&gate, "a");
        assert_eq!(second.recv_timeout(A_WHILE).map(|_| ()), Err(RecvTimeoutError::Timeout));
        drop(first);
        assert!(second.recv_timeout(PATIENCE).unwrap().is_some());
        assert_eq!(gate.counts().waited_for_place, 1);
    }

    #[test]
    fn who_waits_comes_in_when_the_limit_is_raised_and_goes_when_the_gate_closes() {
        let gate = Gate::new(limits(0, 100), 1, None, None);
        let first = enter_elsewhere(&gate, "a");
        assert!(first.recv_timeout(A_WHILE).is_err());
        gate.set_limits(limits(1, 100));
        let first = first.recv_timeout(PATIENCE).unwrap();
        assert!(first.is_some());
        let second = enter_elsewhere(&gate, "a");
        assert!(second.recv_timeout(A_WHILE).is_err());
        gate.close();
        assert!(second.recv_timeout(PATIENCE).unwrap().is_none());
    }

    #[test]
    fn a_listener_at_its_limit_does_not_keep_another_ones_connections_out() {
        let of_listener = ListenerLimits { total: 1, ..ListenerLimits::NONE };
        let limits = ConnectionLimits { per_listener: [(name("a"), of_listener)].into(), ..limits(9, 9) };
        let gate = Gate::new(limits, 1, None, None);
        let _first = gate.enter(&name("a"), HERE);
        let second = enter_elsewhere(&gate, "a");
        assert!(second.recv_timeout(A_WHILE).is_err());
        assert!(gate.enter(&name("b"), HERE).is_some());
        gate.close();
    }

    #[test]
    fn a_broker_comes_in_above_the_limit_and_displaces_a_client() {
        let gate = Gate::new(limits(1, 9), 1, None, Some(name("between")));
        let client = gate.enter(&name("clients"), HERE).unwrap();
        assert!(!client.displaces());
        let broker = gate.enter(&name("between"), HERE).unwrap();
        assert!(broker.displaces());
        assert_eq!(gate.counts().displaced, 1);
    }

    #[test]
    fn connections_leave_descriptors_for_the_logs() {
        let gate = Gate::new(limits(100, 100), 1, None, None);
        gate.keep_to_descriptors(1);
        let _first = gate.enter(&name("a"), HERE);
        assert!(enter_elsewhere(&gate, "a").recv_timeout(A_WHILE).is_err());
        gate.close();
    }

    #[test]
    fn one_address_cannot_take_every_place() {
        let gate = Gate::new(limits(10, 1), 2, None, None);
        let _first = gate.enter(&name("a"), HERE);
        assert!(gate.enter(&name("a"), HERE).is_none());
        assert!(gate.enter(&name("a"), IpAddr::from([10, 0, 0, 1])).is_some());
        assert_eq!(gate.counts().over_ip, 1);
    }

    #[test]
    fn an_address_that_comes_too_fast_is_held_in_a_place_if_there_is_one() {
        use crate::base::Windows;
        use crate::config::QuotaSettings;
        use crate::metadata::{QuotaEntity, QuotaKey, QuotaLimit, QuotaName, Record, State as Metadata};

        let mut metadata = Metadata::default();
        let entity = QuotaEntity { ip: Some(QuotaName::Default), ..QuotaEntity::default() };
        let limit = Some(QuotaLimit::new(1.0));
        let record = Record::ClientQuota { entity, key: QuotaKey::ConnectionCreationRate, limit };
        metadata.apply(1, &[record]).unwrap();
        let windows = Windows::new(1, 3600);
        let settings = QuotaSettings { windows, controller_windows: windows, clients_max: 10 };
        let meters = Arc::new(QuotaMeters::new(&settings));
        let gate = Gate::new(limits(2, 100), 1, None, None);
        assert!(gate.hold(&name("a"), HERE).is_none(), "nothing is limited");
        gate.set_quotas(metadata.image().client_quotas(), &meters);
        // With one window the first ones come at an endless rate.
        let (time, first) = gate.hold(&name("a"), HERE).unwrap();
        assert!(!time.is_zero() && first.is_some());
        let _client = gate.enter(&name("a"), HERE).unwrap();
        assert!(gate.hold(&name("a"), HERE).unwrap().1.is_none(), "all places are taken");
        assert_eq!((gate.counts().over_ip_rate, gate.connections()), (2, 2));
        drop(first);
        assert_eq!(gate.connections(), 1);
        gate.set_quotas(&ClientQuotas::default(), &meters);
        assert!(gate.hold(&name("a"), HERE).is_none());
    }

    #[test]
    fn connections_above_the_rate_wait_for_the_next_second() {
        let rate = ConnectionLimits { creation_per_second: 2, ..limits(9, 9) };
        let gate = Gate::new(rate, 1, None, None);
        let passes: Vec<Option<Pass>> = (0..2).map(|_| gate.enter(&name("a"), HERE)).collect();
        assert!(passes.iter().all(Option::is_some));
        let third = enter_elsewhere(&gate, "b");
        assert!(third.recv_timeout(A_WHILE).is_err());
        assert!(third.recv_timeout(PATIENCE).unwrap().is_some());
        assert_eq!(gate.counts().waited_for_rate, 1);
    }
}
