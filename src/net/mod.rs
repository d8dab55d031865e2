//! Connections: accepted in one place, handed to the shard with the fewest, served there in request order.
//!
//! [`accept`] owns the listening sockets, [`gate`] the limits on connections, [`connection`] the life of one
//! connection, [`send`] the way of a response into the socket, [`watch`] and [`memory`] what a peer may take of
//! time and memory, [`beats`] how connections of a group's members are waited for.

pub mod accept;
mod beats;
mod connection;
mod figures;
mod gate;
mod hold;
mod memory;
mod registry;
mod request_log;
mod send;
mod watch;

pub use accept::{Accepted, Listening, listen};
pub use figures::{Closed, ConnectionFigures, ListenerCounters};
pub use gate::{Gate, GateCounts};
pub use registry::Connections;
pub use request_log::REQUEST_TARGET;
