//! Connections between the nodes of a cluster: who dials proves who it is, asks, and is answered in order.
//!
//! [`Links`] are the ways to the others, a connection per node and [`Lane`], dialled when something is asked and
//! dialled anew, with growing pauses, after a failure. [`Server`] takes connections in: nothing but a hello is read
//! from one before the node at the other end has said who it is and, where nodes share a secret, has proved it.
//! Both live on one shard. A peer that is dead, slow or lies costs its own connections and nothing else: every
//! length is checked before memory is taken for it, every wait has an end, and all of it together has a budget.
//!
//! Never here: what is asked. That is `raft`'s, and the controller's.

mod broker;
mod connection;
mod frame;
mod greet;
mod hello;
mod links;
mod roster;
mod secret;
mod serve;
mod told;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use uuid::Uuid;

pub use self::broker::BrokerConnection;
pub use self::frame::{FRAME_BYTES_MAX, PeerKey, Request};
pub use self::greet::{
    Answer, Dialling, Ends, Greeter, Greetings, own_answer, own_key, own_request, read_own,
};
pub use self::links::{Failed, Link, Links};
pub use self::roster::{Address, Roster};
pub use self::secret::{Secret, SecretError};
pub use self::serve::{Answering, Arrivals, Doorway, KafkaClient, Server, Service, arrivals};
use crate::base::BrokerId;
use crate::io::runtime;
use crate::wire::ErrorCode;

/// Bytes that all connections with peers together receive into. A frame of the greatest length is let in all the
/// same when no other is there.
const RECEIVE_BYTES_MAX: usize = 64 << 20;

/// Who a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub cluster_id: String,
    pub node: BrokerId,
    /// Of its metadata log: a node that lost its disk comes back with another.
    pub directory: Uuid,
    /// Another one for each start of the process.
    pub incarnation: Uuid,
}

/// What a connection is for. Answers come in the order of requests: what must not wait for something slow has a
/// connection of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// Entries of the metadata log, each answered when it is on the disk.
    Append,
    /// The leader's signs of life.
    Beat,
    Vote,
    Snapshot,
    /// From a broker to the controller.
    Control,
    /// A broker's signs of life: nothing that may take long is before them.
    Session,
    /// What clients want of the controller, from the node that they asked.
    Forward,
    /// From a broker to another one's listener for brokers: a follower, a coordinator.
    Fetch,
    /// From a node that has no vote to the leader, for the metadata log.
    Observe,
    /// For controllers that join and changes of who votes, each of which may take long.
    Voters,
}

impl Lane {
    const ALL: [Lane; 10] = [
        Lane::Append,
        Lane::Beat,
        Lane::Vote,
        Lane::Snapshot,
        Lane::Control,
        Lane::Session,
        Lane::Forward,
        Lane::Fetch,
        Lane::Observe,
        Lane::Voters,
    ];

    /// Whether the metadata log itself goes there, or votes on it.
    fn is_rafts(self) -> bool {
        matches!(self, Lane::Append | Lane::Beat | Lane::Vote | Lane::Snapshot)
    }

    /// Whether it is for what any broker may ask of a controller.
    fn is_brokers(self) -> bool {
        matches!(self, Lane::Control | Lane::Session | Lane::Forward | Lane::Observe | Lane::Voters)
    }
}

/// How nodes know each other.
#[derive(Clone, Debug)]
pub enum Security {
    /// Both ends prove that they have it, and each frame that it comes from there.
    Secret(Secret),
    /// Both ends are on this machine.
    Loopback,
    Open,
}

/// Why a node does not speak with another.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub code: ErrorCode,
    pub message: String,
}

impl Refusal {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Why a peer has not answered. After any of these the connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the last attempt to connect failed a moment ago")]
    Pause,
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("closed by the peer")]
    Closed,
    #[error("another node does by now what this one was asked for")]
    Replaced,
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    #[error("the peer does not speak as it should: {0}")]
    Malformed(&'static str),
    #[error("node {0} is not one of the cluster's")]
    Unknown(BrokerId),
}

/// Gives `future` up when the time is over.
async fn within<T>(
    limit: Duration,
    future: impl Future<Output = Result<T, PeerError>>,
) -> Result<T, PeerError> {
    match select(pin!(future), pin!(runtime::sleep(limit))).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err(PeerError::TimedOut(limit)),
    }
}

#[cfg(test)]
mod tests;
