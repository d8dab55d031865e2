//! What a shard counts of its connections: by listener, and why they ended.

use crate::api::SessionFigures;
use crate::base::Counter;
use crate::config::ListenerName;

crate::counters! {
    /// Of one listener, on one shard.
    pub struct ListenerCounters of Counter {
        /// Connections that came by the listener.
        pub created: total "kuring_connections_created_total" ["listener"],
        /// Connections of the listener that ended.
        pub ended: total "kuring_connections_ended_total" ["listener"],
        /// Bytes received from clients of the listener.
        pub bytes_in: total "kuring_listener_received_bytes_total" ["listener"],
        /// Bytes sent to clients of the listener.
        pub bytes_out: total "kuring_listener_sent_bytes_total" ["listener"],
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Closed {
    /// The peer has finished.
    Peer,
    /// A network error.
    Lost,
    /// Nothing was asked, or an answer not taken, for `connections.max.idle.ms`.
    Idle,
    /// A limit on a peer's time or on memory: `kuring_limit_hits_total` says which.
    Limit,
    /// The peer sent what is no request, or one that is not served.
    Invalid,
    /// A request ended it: an append with acks=0 failed.
    Request,
    /// A log file could not be read.
    LogFile,
    /// The broker stops.
    Stopping,
}

impl Closed {
    pub const ALL: [Closed; 8] = [
        Closed::Peer,
        Closed::Lost,
        Closed::Idle,
        Closed::Limit,
        Closed::Invalid,
        Closed::Request,
        Closed::LogFile,
        Closed::Stopping,
    ];

    /// As the label of the metric has it.
    pub fn name(self) -> &'static str {
        match self {
            Closed::Peer => "peer",
            Closed::Lost => "lost",
            Closed::Idle => "idle",
            Closed::Limit => "limit",
            Closed::Invalid => "invalid_request",
            Closed::Request => "failed_request",
            Closed::LogFile => "log_file",
            Closed::Stopping => "stopping",
        }
    }
}

/// A copy of one shard's figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionFigures {
    /// By listener: the values of [`ListenerCounters::EXPORTS`].
    pub listeners: Vec<(ListenerName, Vec<u64>)>,
    /// By reason, in the order of [`Closed::ALL`].
    pub closed: [u64; Closed::ALL.len()],
    pub active: usize,
    /// Of them, those that are looked at together.
    pub gathered: usize,
    pub sessions: SessionFigures,
}
