//! A connection on its shard: receive, send, send from a file.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType,
};

use super::SocketOptions;
use super::gathering::{Gathered, Gathering, Rest};
use super::listener::{local_addr, peer_addr};
use crate::io::chunk::ReceiveBuffer;
use crate::io::runtime::{Interest, Readiness, give_way, sleep, watch};

/// After so much the other tasks go first: it takes some 100 µs.
const SENT_PER_TURN_BYTES: usize = 256 * 1024;
/// Between two looks at the first bytes of a connection that have not all come.
const PEEK_PAUSE: Duration = Duration::from_millis(5);
/// The kernel takes at most this many slices per call (`IOV_MAX`).
const SLICES_PER_CALL_MAX: usize = 1024;

/// A TCP connection, bound to the shard that made it.
#[derive(Debug)]
pub struct Socket {
    shared: Rc<Shared>,
}

/// The receiving half: one task.
#[derive(Debug)]
pub struct SocketReader {
    /// While it is looked at together with others. Both ahead of the socket, which they leave while that is open.
    gathered: Option<Gathered>,
    /// While it is waited for by itself.
    readiness: Option<Readiness>,
    shared: Rc<Shared>,
}

/// The sending half: one task.
#[derive(Debug)]
pub struct SocketWriter {
    /// Once it had to wait for room. Ahead of the socket, which it leaves while that is open.
    room: Option<Readiness>,
    shared: Rc<Shared>,
    sent_this_turn: usize,
    sent_bytes: Rc<Cell<u64>>,
}

/// Ends a connection from elsewhere on its shard.
#[derive(Clone, Debug)]
pub struct SocketCloser {
    shared: Rc<Shared>,
}

/// Why a range of a file did not reach the peer. What was sent of it cannot be taken back: after any of
/// these the connection must be closed.
#[derive(Debug, thiserror::Error)]
pub enum SendFileError {
    #[error("the peer: {0}")]
    Peer(#[source] io::Error),
    #[error("the file: {0}")]
    File(#[source] io::Error),
    /// The file is shorter than the range: it was truncated meanwhile.
    #[error("the file ended {missing} bytes short")]
    EndedShort { missing: u64 },
}

#[derive(Debug)]
pub(super) struct Shared {
    descriptor: OwnedFd,
    peer: SocketAddr,
    local: SocketAddr,
    /// It lives on in another descriptor.
    moved: Cell<bool>,
}

impl Socket {
    /// Takes an accepted connection over to this shard.
    pub fn adopt(connection: OwnedFd, options: &SocketOptions) -> io::Result<Self> {
        options.apply(connection.as_fd())?;
        let (peer, local) = (peer_addr(&connection)?, local_addr(&connection)?);
        let shared = Shared { descriptor: connection, peer, local, moved: Cell::new(false) };
        Ok(Self { shared: Rc::new(shared) })
    }

    /// Connects from this shard. Waits as long as the system does (minutes): bound it, dropping the future
    /// gives up.
    pub async fn connect(address: SocketAddr, options: &SocketOptions) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connection = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&connection, &address) {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                let room = watch(connection.as_fd(), Interest::Writable);
                poll_fn(|cx| room.poll_ready(cx)).await?;
                rustix::net::sockopt::socket_error(&connection)??;
            }
            Err(error) => return Err(error.into()),
        }
        Self::adopt(connection, options)
    }

    pub fn peer_addr(&self) -> SocketAddr {
        self.shared.peer
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local
    }

    /// Waits until `first` is full of what the peer has sent, which stays to be received; how much of it there was before
    /// the peer ended. Bound it: a peer may send less and stay.
    pub async fn peek(&self, first: &mut [u8]) -> io::Result<usize> {
        let readable = watch(self.shared.as_fd(), Interest::Readable);
        loop {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            match rustix::net::recv(&*self.shared, &mut *first, flags) {
                Ok((_, bytes)) if bytes == 0 || bytes == first.len() => return Ok(bytes),
                // It stays readable, so nothing tells that more has come.
                Ok(_) => sleep(PEEK_PAUSE).await,
                Err(Errno::AGAIN) => {
                    readable.is_drained();
                    poll_fn(|cx| readable.poll_ready(cx)).await?;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// As [`SocketReader::hand_over`].
    pub fn hand_over(&self) -> io::Result<OwnedFd> {
        self.shared.hand_over()
    }

    /// The connection is shut down and closed when both halves and all closers are gone.
    pub fn split(self) -> (SocketReader, SocketWriter) {
        let reader = SocketReader { gathered: None, readiness: None, shared: self.shared.clone() };
        let writer =
            SocketWriter { room: None, shared: self.shared, sent_this_turn: 0, sent_bytes: Rc::default() };
        (reader, writer)
    }

    pub fn closer(&self) -> SocketCloser {
        SocketCloser { shared: self.shared.clone() }
    }
}

impl SocketReader {
    /// Waits for bytes and appends them to `buffer`: one `recv`, up to the room of a chunk. `Ok(0)` says
    /// that the peer has finished sending. Waits for the pool's budget too. Cancelling it loses nothing.
    pub async fn receive(&mut self, buffer: &mut ReceiveBuffer) -> io::Result<usize> {
        let waiting = Waiting(buffer);
        let shared = &*self.shared;
        match &self.gathered {
            Some(gathered) => poll_fn(|cx| shared.poll_receive(cx, gathered, waiting.0)).await,
            None => {
                let readiness =
                    self.readiness.get_or_insert_with(|| watch(shared.as_fd(), Interest::Readable));
                poll_fn(|cx| shared.poll_receive(cx, &*readiness, waiting.0)).await
            }
        }
    }

    /// [`Self::receive`], where nothing is received and not served, in service or unsent: if the socket is looked at
    /// together with others, what comes may be served in the look, and is not received here.
    pub async fn receive_at_rest(&mut self, buffer: &mut ReceiveBuffer) -> io::Result<usize> {
        let _rests = self.gathered.as_ref().map(Gathered::rest);
        self.receive(buffer).await
    }

    /// From now on receives when a look at `gathering` has found something, not as soon as it has come; `server`, if there
    /// is one, may serve it at rest. Nothing changes when the system has no room for it in the set.
    pub fn gather(&mut self, gathering: &Rc<Gathering>, server: Option<Rc<dyn Rest>>) -> io::Result<()> {
        if self.gathered.is_none() {
            self.gathered = Some(gathering.join(&self.shared, server)?);
            self.readiness = None;
        }
        Ok(())
    }

    pub fn is_gathered(&self) -> bool {
        self.gathered.is_some()
    }

    /// Receives as soon as something has come again. Not yet while a look has received something that was not taken.
    pub fn stand_alone(&mut self) {
        if !self.has_aside() {
            self.gathered = None;
        }
    }

    /// A look has received what [`Self::receive`] has not given out yet.
    pub fn has_aside(&self) -> bool {
        self.gathered.as_ref().is_some_and(Gathered::has_aside)
    }

    /// Whether the peer has finished sending or is gone, though bytes of it have not been received yet.
    pub fn has_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&*self.shared, PollFlags::RDHUP)];
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok()
            && polled[0].revents().intersects(ended)
    }

    /// Another descriptor of the connection, to [`Socket::adopt`] it on another shard. From then on dropping the
    /// halves and closers leaves the connection open: receive and send no more on them.
    pub fn hand_over(&self) -> io::Result<OwnedFd> {
        self.shared.hand_over()
    }

    pub fn peer_addr(&self) -> SocketAddr {
        self.shared.peer
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local
    }

    pub fn closer(&self) -> SocketCloser {
        SocketCloser { shared: self.shared.clone() }
    }
}

impl SocketWriter {
    /// Sends all of `pieces`, without a copy in user space. `more` says that the next send follows at once:
    /// the kernel may hold a short packet back for it. Cancelled in between, an unknown part is sent: close
    /// the connection then.
    pub async fn send(&mut self, mut pieces: &mut [IoSlice<'_>], more: bool) -> io::Result<()> {
        // Drops empty ones at the front: an empty send would not say when there is room.
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let batch = &pieces[..pieces.len().min(SLICES_PER_CALL_MAX)];
            let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            flags.set(SendFlags::MORE, more || batch.len() < pieces.len());
            let no_control = &mut SendAncillaryBuffer::default();
            let sent = match rustix::net::sendmsg(&*self.shared, batch, no_control, flags) {
                Ok(sent) => sent,
                Err(Errno::AGAIN) => {
                    self.room().await?;
                    0
                }
                Err(Errno::INTR) => 0,
                Err(error) => return Err(error.into()),
            };
            IoSlice::advance_slices(&mut pieces, sent);
            self.take_turns(sent).await;
        }
        Ok(())
    }

    /// Sends a range of a file from the page cache without copying it. Blocks the shard for the disk where
    /// the range is not cached: look first ([`crate::io::cached`]).
    pub async fn send_file(
        &mut self,
        file: &impl AsFd,
        position: u64,
        length: u64,
    ) -> Result<(), SendFileError> {
        let (mut position, end) = (position, position + length);
        while position < end {
            let left = end - position;
            let wanted = left.min(SENT_PER_TURN_BYTES as u64) as usize;
            let mut from = position;
            let sent = match rustix::fs::sendfile(&*self.shared, file, Some(&mut from), wanted) {
                Ok(0) => return Err(SendFileError::EndedShort { missing: left }),
                Ok(sent) => sent,
                Err(Errno::INTR) => 0,
                Err(Errno::AGAIN) => {
                    self.room().await.map_err(SendFileError::Peer)?;
                    0
                }
                Err(error) => return Err(whose_error(error)),
            };
            position += sent as u64;
            self.take_turns(sent).await;
        }
        Ok(())
    }

    /// What the kernel has taken so far, for those who watch the peer.
    pub fn sent_bytes(&self) -> Rc<Cell<u64>> {
        self.sent_bytes.clone()
    }

    /// Tells the peer that nothing more comes, after what was sent.
    pub fn finish(&mut self) {
        self.shared.shutdown(Shutdown::Write);
    }

    pub fn peer_addr(&self) -> SocketAddr {
        self.shared.peer
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local
    }

    pub fn closer(&self) -> SocketCloser {
        SocketCloser { shared: self.shared.clone() }
    }

    /// Waits until there may be room, after a send that found none.
    async fn room(&mut self) -> io::Result<()> {
        let shared = &*self.shared;
        let room = self.room.get_or_insert_with(|| watch(shared.as_fd(), Interest::Writable));
        room.is_drained();
        poll_fn(|cx| room.poll_ready(cx)).await
    }

    async fn take_turns(&mut self, sent: usize) {
        self.sent_this_turn += sent;
        self.sent_bytes.set(self.sent_bytes.get() + sent as u64);
        if self.sent_this_turn >= SENT_PER_TURN_BYTES {
            self.sent_this_turn = 0;
            give_way().await;
        }
    }
}

impl SocketCloser {
    /// Shuts both directions down: a receive that waits gives what had arrived and then `Ok(0)`, a send
    /// fails. What was sent before still goes out.
    pub fn close(&self) {
        self.shared.shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn hand_over(&self) -> io::Result<OwnedFd> {
        let descriptor = rustix::io::fcntl_dupfd_cloexec(self, 0)?;
        self.moved.set(true);
        Ok(descriptor)
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        arrivals: &impl Arrivals,
        buffer: &mut ReceiveBuffer,
    ) -> Poll<io::Result<usize>> {
        loop {
            match arrivals.poll_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    buffer.rest();
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => {
                    buffer.rest();
                    return Poll::Pending;
                }
            }
            ready!(buffer.poll_prepare(cx))?;
            let room = buffer.room();
            let room_bytes = room.len();
            let aside = arrivals.take_aside(room);
            if aside > 0 {
                buffer.advance(aside);
                return Poll::Ready(Ok(aside));
            }
            match rustix::net::recv(self, room, RecvFlags::DONTWAIT) {
                Ok((_, bytes)) => {
                    if bytes < room_bytes {
                        arrivals.is_drained();
                    }
                    buffer.advance(bytes);
                    return Poll::Ready(Ok(bytes));
                }
                Err(Errno::AGAIN) => arrivals.is_drained(),
                Err(Errno::INTR) => {}
                Err(error) => {
                    buffer.rest();
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        // It fails when the peer has reset the connection: then it is down already.
        let _ = rustix::net::shutdown(self, how);
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A poll holds the connection open until the ring has let go of it: the peer hears of the end now.
        if !self.moved.get() {
            self.shutdown(Shutdown::Both);
        }
    }
}

/// Who tells that something has come. Edges only: after it has told, all must be received.
trait Arrivals {
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn is_drained(&self);

    /// Moves what somebody else has received into `room`: how many bytes.
    fn take_aside(&self, room: &mut [u8]) -> usize;
}

impl Arrivals for Readiness {
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Readiness::poll_ready(self, cx)
    }

    fn is_drained(&self) {
        Readiness::is_drained(self);
    }

    fn take_aside(&self, _: &mut [u8]) -> usize {
        0
    }
}

impl Arrivals for Gathered {
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Gathered::poll_ready(self, cx).map(Ok)
    }

    fn is_drained(&self) {
        Gathered::is_drained(self);
    }

    fn take_aside(&self, room: &mut [u8]) -> usize {
        Gathered::take_aside(self, room)
    }
}

/// Keeps a buffer from standing in the line for the budget when nobody waits any more.
struct Waiting<'a>(&'a mut ReceiveBuffer);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.give_up_waiting();
    }
}

/// Tells the peer's errors from the file's in a `sendfile`.
fn whose_error(error: Errno) -> SendFileError {
    match error {
        Errno::PIPE
        | Errno::CONNRESET
        | Errno::CONNABORTED
        | Errno::NOTCONN
        | Errno::TIMEDOUT
        | Errno::HOSTUNREACH
        | Errno::HOSTDOWN
        | Errno::NETUNREACH
        | Errno::NETDOWN
        | Errno::NOBUFS => SendFileError::Peer(error.into()),
        error => SendFileError::File(error.into()),
    }
}
