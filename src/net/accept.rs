//! The listening sockets: one plain thread each accepts and hands the descriptor to the shard with the
//! fewest connections. The kernel's own spreading (SO_REUSEPORT) is uneven when connections are few.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::clock::{self, Monotonic};
use crate::config::{ConnectionLimits, ListenerName};
use crate::io::net::{Acceptor, Listener};
use crate::io::runtime::Sender;

/// How long a peer that is over the creation rate waits at most before it is accepted.
const RATE_WAIT_MAX: Duration = Duration::from_secs(1);

/// A new connection on its way to its shard.
pub struct Accepted {
    pub fd: OwnedFd,
    pub peer: SocketAddr,
    pub listener: ListenerName,
    pub pass: Pass,
}

/// Counts connections per shard and per address, and refuses what is over the limits. Shared by the
/// accepting threads; a shard touches it only when a connection ends.
#[derive(Clone)]
pub struct Gate(Arc<Mutex<GateState>>);

struct GateState {
    limits: ConnectionLimits,
    /// Connections that the limit on open files leaves room for beside the logs.
    descriptors: u32,
    per_shard: Vec<u32>,
    /// Which shards take connections.
    open: Vec<bool>,
    per_ip: HashMap<IpAddr, u32>,
    total: u32,
    refused: u64,
    /// Second in which `created` connections were accepted.
    second: Monotonic,
    created: u32,
}

/// A connection's place in the counts; given back when it is dropped.
pub struct Pass {
    gate: Gate,
    shard: usize,
    ip: IpAddr,
}

impl Gate {
    /// `only` names the shards that take connections, if not all do (`kuring.connection.shards`).
    pub fn new(limits: ConnectionLimits, shards: u16, only: Option<&[usize]>) -> Self {
        let open = (0..usize::from(shards)).map(|shard| only.is_none_or(|only| only.contains(&shard)));
        Self(Arc::new(Mutex::new(GateState {
            limits,
            descriptors: u32::MAX,
            per_shard: vec![0; usize::from(shards)],
            open: open.collect(),
            per_ip: HashMap::new(),
            total: 0,
            refused: 0,
            second: clock::monotonic(),
            created: 0,
        })))
    }

    /// Keeps connections to `descriptors` in all, whatever the limits say: a log that finds no descriptor left
    /// takes its directory offline.
    pub fn keep_to_descriptors(&self, descriptors: u32) {
        self.state().descriptors = descriptors;
    }

    /// New limits, for connections to come.
    pub fn set_limits(&self, limits: ConnectionLimits) {
        self.state().limits = limits;
    }

    /// Connections refused so far.
    pub fn refused(&self) -> u64 {
        self.state().refused
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from `ip`, on the shard with the fewest; `None` when it is over a limit.
    fn admit(&self, ip: IpAddr) -> Option<Pass> {
        let ip = ip.to_canonical();
        let mut state = self.state();
        let from_ip = state.per_ip.get(&ip).copied().unwrap_or(0);
        if state.total >= state.limits.total.min(state.descriptors) || from_ip >= state.limits.of(ip) {
            state.refused += 1;
            return None;
        }
        // Shard 0 has the controller and the coordinators beside it: a connection there counts double.
        let shard = (0..state.per_shard.len())
            .filter(|&shard| state.open[shard])
            .min_by_key(|&shard| (state.per_shard[shard] + 1) * if shard == 0 { 2 } else { 1 })?;
        state.per_shard[shard] += 1;
        state.total += 1;
        *state.per_ip.entry(ip).or_insert(0) += 1;
        Some(Pass { gate: self.clone(), shard, ip })
    }

    /// How long the accepting thread should wait to stay within `max.connection.creation.rate`.
    fn rate_wait(&self) -> Duration {
        let now = clock::monotonic();
        let mut state = self.state();
        let limit = state.limits.creation_per_second;
        if now.since(state.second) >= Duration::from_secs(1) {
            state.second = now;
            state.created = 0;
        }
        state.created += 1;
        if state.created <= limit {
            return Duration::ZERO;
        }
        Duration::from_secs(1).saturating_sub(now.since(state.second)).min(RATE_WAIT_MAX)
    }
}

impl Pass {
    pub fn shard(&self) -> usize {
        self.shard
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
    }
}

/// A listener in service. Dropping it does not stop it: [`Listening::stop`] does.
pub struct Listening {
    acceptor: Acceptor,
    pub name: ListenerName,
}

impl Listening {
    pub fn local_addr(&self) -> SocketAddr {
        self.acceptor.local_addr()
    }

    /// Accepts no more; returns when the thread has ended.
    pub fn stop(self) {
        self.acceptor.stop();
    }
}

/// Starts to accept on a bound listener.
///
/// # Errors
/// When no thread can be made.
pub fn listen(
    name: ListenerName,
    listener: Listener,
    gate: Gate,
    shards: Vec<Sender<Accepted>>,
) -> std::io::Result<Listening> {
    let listener_name = name.clone();
    let acceptor = listener.accept_with(move |fd, peer| {
        let wait = gate.rate_wait();
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        let Some(pass) = gate.admit(peer.ip()) else {
            tracing::info!(%peer, "connection refused: over max.connections, max.connections.per.ip or the descriptors");
            return;
        };
        let shard = pass.shard();
        let accepted = Accepted { fd, peer, listener: listener_name.clone(), pass };
        if shards[shard].push(accepted).is_err() {
            tracing::debug!(%peer, "connection dropped: its shard has stopped");
        }
    })?;
    Ok(Listening { acceptor, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(total: u32, per_ip: u32) -> ConnectionLimits {
        ConnectionLimits {
            total,
            per_ip,
            per_ip_overrides: Default::default(),
            creation_per_second: u32::MAX,
        }
    }

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn few_connections_spread_evenly_and_shard_zero_gets_half() {
        let gate = Gate::new(limits(100, 100), 3, None);
        let passes: Vec<Pass> = (0..10).filter_map(|_| gate.admit(HERE)).collect();
        let mut counts = [0; 3];
        for pass in &passes {
            counts[pass.shard()] += 1;
        }
        assert_eq!(counts, [2, 4, 4]);
    }

    #[test]
    fn a_closed_connection_makes_room_for_another() {
        let gate = Gate::new(limits(2, 100), 1, None);
        let first = gate.admit(HERE);
        let _second = gate.admit(HERE);
        assert!(gate.admit(HERE).is_none());
        drop(first);
        assert!(gate.admit(HERE).is_some());
        assert_eq!(gate.refused(), 1);
    }

    #[test]
    fn connections_leave_descriptors_for_the_logs() {
        let gate = Gate::new(limits(100, 100), 1, None);
        gate.keep_to_descriptors(1);
        let _first = gate.admit(HERE);
        assert!(gate.admit(HERE).is_none());
    }

    #[test]
    fn one_address_cannot_take_every_place() {
        let gate = Gate::new(limits(10, 1), 2, None);
        let _first = gate.admit(HERE);
        assert!(gate.admit(HERE).is_none());
        assert!(gate.admit(IpAddr::from([10, 0, 0, 1])).is_some());
    }
}
