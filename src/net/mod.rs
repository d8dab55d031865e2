//! Connections: accepted in one place, handed to the shard with the fewest, served there in request order.
//!
//! [`accept`] owns the listening sockets and the limits on connections, [`connection`] the life of one
//! connection, [`send`] the way of a response into the socket.

pub mod accept;
mod connection;
mod figures;
mod registry;
mod request_log;
mod send;

pub use accept::{Accepted, Gate, Listening, listen};
pub use figures::{Closed, ConnectionFigures, ListenerCounters};
pub use registry::Connections;
pub use request_log::REQUEST_TARGET;
