//! One non-blocking TCP connection that carries frames: four bytes of length, then the message. It knows
//! nothing of what the frames say.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::Bytes;
use rustix::event::PollFlags;
use rustix::io::Errno;

/// The length in front of each frame.
pub const LENGTH_BYTES: usize = 4;
/// What one `read` asks for when the frame's end is not known to be further away.
const READ_BYTES: usize = 128 << 10;
/// Frames gathered into one `writev`.
const WRITE_FRAMES_MAX: usize = 64;

/// A connection; dropping it closes it.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    connecting: bool,
    out: VecDeque<Bytes>,
    /// How much of the first frame of `out` is written.
    out_written: usize,
    inbox: Vec<u8>,
    /// How much of `inbox` has been handed out as frames.
    inbox_read: usize,
    frame_bytes_max: usize,
}

impl Connection {
    /// Starts to connect; [`Connection::on_writable`] tells when it is done. A frame from the peer above
    /// `frame_bytes_max` ends the connection.
    pub fn open(address: SocketAddr, frame_bytes_max: usize) -> io::Result<Self> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self {
            stream: TcpStream::from(socket),
            connecting: true,
            out: VecDeque::new(),
            out_written: 0,
            inbox: Vec::new(),
            inbox_read: 0,
            frame_bytes_max,
        })
    }

    /// What to poll for.
    pub fn interest(&self) -> PollFlags {
        if self.connecting || !self.out.is_empty() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    pub fn is_connecting(&self) -> bool {
        self.connecting
    }

    /// Nothing waits to be written.
    pub fn is_written(&self) -> bool {
        self.out.is_empty()
    }

    /// Queues a whole frame, its length in front, and writes what the socket takes.
    pub fn send(&mut self, frame: Bytes) -> io::Result<()> {
        self.out.push_back(frame);
        if self.connecting { Ok(()) } else { self.write_some() }
    }

    /// Finishes connecting, or goes on writing.
    pub fn on_writable(&mut self) -> io::Result<()> {
        if self.connecting {
            rustix::net::sockopt::socket_error(&self.stream)??;
            self.connecting = false;
        }
        self.write_some()
    }

    /// Writes from buffers that the caller keeps, for the load generator; returns how much the socket took.
    /// Not to be mixed with [`Connection::send`] while that has frames waiting.
    pub fn write_borrowed(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        assert!(self.out.is_empty(), "frames would be torn");
        match rustix::io::retry_on_intr(|| rustix::io::writev(&self.stream, slices)) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what has come, up to `READ_BYTES` or the end of a long frame. `Ok(false)`: the peer closed.
    /// Fails when the peer announces a frame above the limit.
    pub fn read_some(&mut self) -> io::Result<bool> {
        if self.inbox_read > 0 {
            self.inbox.drain(..self.inbox_read);
            self.inbox_read = 0;
        }
        let frame = self.frame_length()?.unwrap_or(0);
        let wanted = (LENGTH_BYTES + frame).saturating_sub(self.inbox.len()).max(READ_BYTES);
        self.inbox.reserve(wanted);
        let spare = || rustix::io::read(&self.stream, rustix::buffer::spare_capacity(&mut self.inbox));
        match rustix::io::retry_on_intr(spare) {
            Ok(0) => Ok(false),
            Ok(_) => self.frame_length().map(|_| true),
            Err(Errno::AGAIN) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// The next whole frame without its length. It stays valid until the next [`Connection::read_some`].
    pub fn next_frame(&mut self) -> io::Result<Option<&[u8]>> {
        let Some(length) = self.frame_length()? else { return Ok(None) };
        let start = self.inbox_read + LENGTH_BYTES;
        if self.inbox.len() < start + length {
            return Ok(None);
        }
        self.inbox_read = start + length;
        Ok(Some(&self.inbox[start..start + length]))
    }

    /// The length of the frame that starts at `inbox_read`, when its head is there.
    fn frame_length(&self) -> io::Result<Option<usize>> {
        let Some(head) = self.inbox[self.inbox_read..].first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = i32::from_be_bytes(*head);
        match usize::try_from(length) {
            Ok(length) if length <= self.frame_bytes_max => Ok(Some(length)),
            _ => Err(io::Error::other(format!(
                "it announces a message of {length} bytes, the limit is {}",
                self.frame_bytes_max
            ))),
        }
    }

    fn write_some(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            let mut skip = self.out_written;
            let slices: Vec<IoSlice<'_>> = self
                .out
                .iter()
                .take(WRITE_FRAMES_MAX)
                .map(|frame| IoSlice::new(&frame[std::mem::take(&mut skip)..]))
                .collect();
            match rustix::io::retry_on_intr(|| rustix::io::writev(&self.stream, &slices)) {
                Ok(count) => self.written(count),
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn written(&mut self, mut count: usize) {
        while count > 0 {
            let left = self.out[0].len() - self.out_written;
            if count < left {
                self.out_written += count;
                return;
            }
            count -= left;
            self.out_written = 0;
            self.out.pop_front();
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn pair(frame_bytes_max: usize) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let connection = Connection::open(address, frame_bytes_max).expect("connects");
        (connection, listener.accept().expect("accepts").0)
    }

    fn read_until_frame(connection: &mut Connection) -> Vec<u8> {
        loop {
            if let Some(frame) = connection.next_frame().expect("within the limit") {
                return frame.to_vec();
            }
            assert!(connection.read_some().expect("reads"), "closed");
        }
    }

    #[test]
    fn frames_come_whole_however_they_were_cut() {
        let (mut connection, mut peer) = pair(1 << 20);
        connection.on_writable().expect("connected");
        peer.write_all(b"\0\0\0\x03abc\0\0\0").expect("writes");
        assert_eq!(read_until_frame(&mut connection), b"abc");
        peer.write_all(b"\x02de\0\0\0\0").expect("writes");
        assert_eq!(read_until_frame(&mut connection), b"de");
        assert_eq!(read_until_frame(&mut connection), b"");
        drop(peer);
        while connection.read_some().expect("reads") {}
    }

    #[test]
    fn a_frame_above_the_limit_is_refused_before_memory_is_taken() {
        let (mut connection, mut peer) = pair(1000);
        connection.on_writable().expect("connected");
        peer.write_all(&1001i32.to_be_bytes()).expect("writes");
        let error = loop {
            match connection.read_some() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("1001"), "{error}");
    }

    #[test]
    fn what_the_socket_does_not_take_is_written_later() {
        let (mut connection, mut peer) = pair(1000);
        let frame = Bytes::from(vec![7u8; 9_000_000]);
        connection.send(frame.clone()).expect("queues while connecting");
        connection.send(frame).expect("queues");
        connection.on_writable().expect("connected");
        assert!(!connection.is_written());
        let reader = std::thread::spawn(move || {
            let mut read = vec![0; 18_000_000];
            peer.read_exact(&mut read).expect("all comes");
            assert!(read.iter().all(|&byte| byte == 7));
        });
        while !connection.is_written() {
            connection.on_writable().expect("writes");
            std::thread::yield_now();
        }
        reader.join().expect("reads all");
    }
}
