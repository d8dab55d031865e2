//! Accepting: one plain thread per listener, because the kernel's spreading over several is uneven for few
//! connections and a shard that accepts would do it late when it is busy.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::base::{PROCESS, fatal};
use crate::io::runtime::panic_text;

/// Wait after an accept that failed for want of descriptors or memory: the connection stays in the backlog,
/// and trying at once fails 850,000 times a second.
const BACK_OFF: Duration = Duration::from_millis(100);

/// A bound and listening socket.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Fails with `AddrInUse` when another process listens there. `backlog` is capped by `net.core.somaxconn`.
    pub fn bind(address: SocketAddr, backlog: i32) -> io::Result<Self> {
        // The standard library sets SO_REUSEADDR and not SO_REUSEPORT: as it should be.
        let listener = TcpListener::bind(address)?;
        // A second call only changes the backlog.
        rustix::net::listen(&listener, backlog)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// With the port the system chose if it was 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Starts the thread that calls `on` for each connection. It must not block for long: meanwhile nobody is
    /// accepted. A panic in it ends the process.
    pub fn accept_with(self, on: impl FnMut(OwnedFd, SocketAddr) + Send + 'static) -> io::Result<Acceptor> {
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let failures = Arc::new(AtomicU64::new(0));
        let address = self.address;
        let accepting =
            Accepting { listener: self.listener, stop: stop.clone(), failures: failures.clone(), on };
        let thread =
            std::thread::Builder::new().name(format!("accept-{}", address.port())).spawn(move || {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| accepting.run())) {
                    fatal(format_args!("accepting on {address} panicked: {}", panic_text(&*panic)));
                }
            })?;
        Ok(Acceptor { address, stop, failures, thread: Some(thread) })
    }
}

/// The accepting thread. Dropping it stops it.
#[derive(Debug)]
pub struct Acceptor {
    address: SocketAddr,
    stop: Arc<OwnedFd>,
    failures: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts that failed for want of descriptors or memory.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Closes the listening socket; the callback is not called any more once this has returned.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let Err(error) = rustix::io::write(&*self.stop, &1u64.to_ne_bytes()) {
            fatal(format_args!("the accepting thread cannot be told to stop: {error}"));
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            fatal("the accepting thread panicked");
        }
    }
}

struct Accepting<F> {
    listener: TcpListener,
    stop: Arc<OwnedFd>,
    failures: Arc<AtomicU64>,
    on: F,
}

impl<F: FnMut(OwnedFd, SocketAddr)> Accepting<F> {
    fn run(mut self) {
        loop {
            if self.stopped_while_waiting(true, None) {
                return;
            }
            match rustix::net::acceptfrom_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((connection, peer)) => {
                    if let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
                        (self.on)(connection, canonical(peer));
                    }
                }
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    PROCESS.accepts_failed.increment();
                    if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
                        tracing::warn!(%error, "a connection cannot be accepted, it waits");
                    }
                    if self.stopped_while_waiting(false, Some(BACK_OFF)) {
                        return;
                    }
                }
                // Gone before it was accepted, or another error of this one connection.
                Err(_) => {}
            }
        }
    }

    /// Waits for a connection, if wanted, or the time-out; says whether it is over.
    fn stopped_while_waiting(&self, connections: bool, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut fds = [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        let watched = if connections { &mut fds[..] } else { &mut fds[..1] };
        match rustix::event::poll(watched, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => !fds[0].revents().is_empty(),
            Err(error) => fatal(format_args!("poll of the listening socket: {error}")),
        }
    }
}

/// IPv4 peers of an IPv6 listener in their own form.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The address the socket has on this side.
pub(super) fn local_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getsockname(socket)?;
    SocketAddr::try_from(address).map(canonical).map_err(io::Error::from)
}

/// The address at the other end; an error when it has gone already.
pub(super) fn peer_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
    SocketAddr::try_from(address).map(canonical).map_err(io::Error::from)
}
