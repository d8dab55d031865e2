//! TCP: a listener that accepts on a plain thread of its own, and the sockets of a shard.
//!
//! Receives go into chunks that an idle connection does not hold ([`super::chunk`]); sends are vectored or
//! straight from the page cache (`sendfile`). glommio is used for nothing but to wait until a socket is
//! readable or writable; those in a [`Gathering`] it does not know.
//!
//! Never here: framing, time-outs, TLS, the decision which shard gets a connection.

mod gathering;
mod listener;
mod socket;

use std::io;
use std::os::fd::AsFd;

use rustix::net::sockopt;

pub use self::gathering::{Gathering, Look, Rest};
pub use self::listener::{Acceptor, Listener};
pub use self::socket::{SendFileError, Socket, SocketCloser, SocketReader, SocketWriter};

/// Kafka's `socket.*.buffer.bytes`; `None` leaves the system's default and its auto-tuning.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SocketOptions {
    pub send_buffer_bytes: Option<usize>,
    pub receive_buffer_bytes: Option<usize>,
}

impl SocketOptions {
    fn apply(&self, socket: impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd();
        rustix::io::ioctl_fionbio(socket, true)?;
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        if let Some(bytes) = self.send_buffer_bytes {
            sockopt::set_socket_send_buffer_size(socket, bytes)?;
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            sockopt::set_socket_recv_buffer_size(socket, bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
