//! A connection on its shard: receive, send, send from a file.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use super::SocketOptions;
use super::gathering::{Gathered, Gathering};
use super::listener::{local_addr, peer_addr};
use crate::io::chunk::ReceiveBuffer;
use crate::io::runtime::yield_if_needed;

/// After so much the other tasks get a turn if theirs is due.
const SENT_PER_TURN_BYTES: usize = 256 * 1024;
/// The kernel takes at most this many slices per call (`IOV_MAX`).
const SLICES_PER_CALL_MAX: usize = 1024;
/// Bytes of a file read to wait with: what waits for room offers something to send.
const OFFERED_BYTES: usize = 64;

/// A TCP connection, bound to the shard that made it.
#[derive(Debug)]
pub struct Socket {
    shared: Rc<Shared>,
}

/// The receiving half: one task.
#[derive(Debug)]
pub struct SocketReader {
    /// While it is looked at together with others. Ahead of the socket, which it leaves while that is open.
    gathered: Option<Gathered>,
    shared: Rc<Shared>,
}

/// The sending half: one task.
#[derive(Debug)]
pub struct SocketWriter {
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
    /// Owns the descriptor. Borrowed only inside a poll.
    stream: RefCell<TcpStream>,
    /// The stream's own, for calls that need no borrow of it.
    descriptor: RawFd,
    peer: SocketAddr,
    local: SocketAddr,
    /// It lives on in another descriptor.
    moved: Cell<bool>,
}

impl Socket {
    /// Takes an accepted connection over to this shard.
    pub fn adopt(connection: OwnedFd, options: &SocketOptions) -> io::Result<Self> {
        // SAFETY: the descriptor is open and, by `into_raw_fd`, owned by the stream alone from here on.
        let stream = unsafe { TcpStream::from_raw_fd(connection.into_raw_fd()) };
        Self::over(stream, options)
    }

    /// Connects from this shard. Waits as long as the system does (minutes): bound it, dropping the future
    /// gives up.
    pub async fn connect(address: SocketAddr, options: &SocketOptions) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        Self::over(stream, options)
    }

    fn over(stream: TcpStream, options: &SocketOptions) -> io::Result<Self> {
        // SAFETY: `stream` owns the descriptor and outlives this borrow.
        let descriptor = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
        options.apply(descriptor)?;
        let (peer, local) = (peer_addr(descriptor)?, local_addr(descriptor)?);
        let descriptor = stream.as_raw_fd();
        Ok(Self {
            shared: Rc::new(Shared {
                stream: RefCell::new(stream),
                descriptor,
                peer,
                local,
                moved: Cell::new(false),
            }),
        })
    }

    pub fn peer_addr(&self) -> SocketAddr {
        self.shared.peer
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local
    }

    /// The connection is shut down and closed when both halves and all closers are gone.
    pub fn split(self) -> (SocketReader, SocketWriter) {
        let reader = SocketReader { gathered: None, shared: self.shared.clone() };
        (reader, SocketWriter { shared: self.shared, sent_this_turn: 0, sent_bytes: Rc::default() })
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
        poll_fn(|cx| match &self.gathered {
            Some(gathered) => self.shared.poll_receive_gathered(cx, gathered, waiting.0),
            None => self.shared.poll_receive(cx, waiting.0),
        })
        .await
    }

    /// From now on receives when a look at `gathering` has found something, not as soon as it has come. Nothing
    /// changes when the system has no room for it in the set.
    pub fn gather(&mut self, gathering: &Rc<Gathering>) -> io::Result<()> {
        if self.gathered.is_none() {
            self.gathered = Some(gathering.join(&self.shared)?);
        }
        Ok(())
    }

    /// Receives as soon as something has come again.
    pub fn stand_alone(&mut self) {
        self.gathered = None;
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
        let descriptor = rustix::io::fcntl_dupfd_cloexec(&*self.shared, 0)?;
        self.shared.moved.set(true);
        Ok(descriptor)
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
                Err(Errno::AGAIN) => self.wait_writable(&pieces[0]).await?,
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
                    let mut offered = [0; OFFERED_BYTES];
                    let offered = &mut offered[..wanted.min(OFFERED_BYTES)];
                    match rustix::io::pread(file, &mut *offered, position) {
                        Ok(0) => return Err(SendFileError::EndedShort { missing: left }),
                        Ok(read) => {
                            self.wait_writable(&offered[..read]).await.map_err(SendFileError::Peer)?
                        }
                        Err(Errno::INTR) => 0,
                        Err(error) => return Err(SendFileError::File(error.into())),
                    }
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

    /// Waits until there is room, offering the next bytes: how many of them went.
    async fn wait_writable(&mut self, next: &[u8]) -> io::Result<usize> {
        let mut armed = false;
        poll_fn(|cx| {
            if armed {
                // Woken, for room or for nothing: the caller tries again with all it has.
                return Poll::Ready(Ok(0));
            }
            let mut stream = self.shared.stream.borrow_mut();
            // Tries to send; arms POLLOUT if there is no room.
            let sent = Pin::new(&mut *stream).poll_write(cx, next);
            armed = sent.is_pending();
            sent
        })
        .await
    }

    async fn take_turns(&mut self, sent: usize) {
        self.sent_this_turn += sent;
        self.sent_bytes.set(self.sent_bytes.get() + sent as u64);
        if self.sent_this_turn >= SENT_PER_TURN_BYTES {
            self.sent_this_turn = 0;
            yield_if_needed().await;
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
    fn poll_receive(&self, cx: &mut Context<'_>, buffer: &mut ReceiveBuffer) -> Poll<io::Result<usize>> {
        ready!(buffer.poll_prepare(cx))?;
        let mut stream = self.stream.borrow_mut();
        // Receives without waiting, or arms POLLIN. If it got less than the room, POLLIN is armed for the
        // next time already: no call is spent on EAGAIN.
        let received = Pin::new(&mut *stream).poll_read(cx, buffer.room());
        match received {
            Poll::Ready(Ok(bytes)) => buffer.advance(bytes),
            Poll::Ready(Err(_)) | Poll::Pending => buffer.rest(),
        }
        received
    }

    fn poll_receive_gathered(
        &self,
        cx: &mut Context<'_>,
        gathered: &Gathered,
        buffer: &mut ReceiveBuffer,
    ) -> Poll<io::Result<usize>> {
        loop {
            if gathered.poll_ready(cx).is_pending() {
                buffer.rest();
                return Poll::Pending;
            }
            ready!(buffer.poll_prepare(cx))?;
            let room = buffer.room();
            let room_bytes = room.len();
            match rustix::net::recv(self, room, RecvFlags::DONTWAIT) {
                Ok((_, bytes)) => {
                    if bytes < room_bytes {
                        gathered.is_drained();
                    }
                    buffer.advance(bytes);
                    return Poll::Ready(Ok(bytes));
                }
                Err(Errno::AGAIN) => gathered.is_drained(),
                Err(Errno::INTR) => {}
                Err(error) => {
                    buffer.rest();
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
    }

    fn shutdown(&self, how: Shutdown) {
        // It fails when the peer has reset the connection: then it is down already.
        let _ = rustix::net::shutdown(self, how);
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `stream` closes the descriptor when it is dropped with `self`, not before.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // An armed poll holds the connection open until the ring has cancelled it: the peer hears of the end
        // now.
        if !self.moved.get() {
            self.shutdown(Shutdown::Both);
        }
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
