//! The listening sockets: one plain thread each accepts and hands the descriptor to the shard with the
//! fewest connections. The kernel's own spreading (SO_REUSEPORT) is uneven when connections are few.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::beats::Run;
use super::gate::{Gate, Pass};
use crate::base::BrokerId;
use crate::config::ListenerName;
use crate::io::chunk::Standing;
use crate::io::net::{Acceptor, Listener};
use crate::io::runtime::Sender;

/// A new connection on its way to its shard.
pub struct Accepted {
    pub fd: OwnedFd,
    pub peer: SocketAddr,
    pub listener: ListenerName,
    pub pass: Pass,
    /// It comes from another shard.
    pub(super) moved: Option<Moved>,
    /// It is not served, but closed after that time.
    pub(super) held: Option<Duration>,
}

impl Accepted {
    /// One that was accepted elsewhere, for the shard that `pass` says.
    pub fn new(fd: OwnedFd, peer: SocketAddr, listener: ListenerName, pass: Pass) -> Self {
        Self { fd, peer, listener, pass, moved: None, held: None }
    }
}

/// What a connection takes along to another shard.
#[derive(Clone, Copy, Default)]
pub(super) struct Moved {
    /// How often it has moved.
    pub moves: u32,
    pub standing: Standing,
    /// The heartbeats that it has brought in a row.
    pub beats: Run,
    /// Who has proved to be at the other end, if that is a broker.
    pub broker: Option<BrokerId>,
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

    /// Accepts that failed for want of descriptors or memory; the connection waited in the backlog.
    pub fn failures(&self) -> u64 {
        self.acceptor.failures()
    }

    /// Accepts no more; returns when the thread has ended. It may wait at the gate: close that first.
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
        let (held, pass) = match gate.hold(&listener_name, peer.ip()) {
            Some((time, pass)) => (Some(time), pass),
            None => (None, gate.enter(&listener_name, peer.ip())),
        };
        let Some(pass) = pass else { return };
        let shard = pass.shard();
        let accepted = Accepted { fd, peer, listener: listener_name.clone(), pass, moved: None, held };
        if shards[shard].push(accepted).is_err() {
            tracing::debug!(%peer, "connection dropped: its shard has stopped");
        }
    })?;
    Ok(Listening { acceptor, name })
}
