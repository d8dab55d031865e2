//! One connection: whole frames in and out.

use std::io::IoSlice;
use std::time::Duration;

use bytes::Bytes;

use super::frame::{self, HELLO_BYTES_MAX};
use super::hello::Seals;
use super::{FRAME_BYTES_MAX, PeerError, PeerKey, Request, within};
use crate::io::chunk::{ChunkPool, ReceiveBuffer};
use crate::io::net::{Socket, SocketCloser, SocketReader, SocketWriter};

const LENGTH_BYTES: usize = 4;
/// A peer that takes nothing for so long is given up.
const SEND_TIME_MAX: Duration = Duration::from_secs(10);
/// So is one that has begun a frame and brings nothing more of it.
const FRAME_PAUSE_MAX: Duration = Duration::from_secs(10);

pub(super) struct Connection {
    reader: SocketReader,
    writer: SocketWriter,
    buffer: ReceiveBuffer,
    seals: Option<Seals>,
    /// Grows with the hello.
    frame_bytes_max: usize,
    correlation: i32,
}

impl Connection {
    pub(super) fn new(socket: Socket, pool: &ChunkPool) -> Self {
        let (reader, writer) = socket.split();
        let buffer = ReceiveBuffer::new(pool.clone());
        Self { reader, writer, buffer, seals: None, frame_bytes_max: HELLO_BYTES_MAX, correlation: 0 }
    }

    /// The other end is known: longer frames are taken, and each has its code if there is a secret.
    pub(super) fn trust(&mut self, seals: Option<Seals>) {
        self.seals = seals;
        self.frame_bytes_max = FRAME_BYTES_MAX;
    }

    pub(super) fn has_hung_up(&self) -> bool {
        self.reader.has_hung_up()
    }

    pub(super) fn closer(&self) -> SocketCloser {
        self.reader.closer()
    }

    /// Asks and waits for the answer. Cancelled in between, the connection is of no more use.
    pub(super) async fn call(&mut self, key: PeerKey, body: &[u8]) -> Result<Bytes, PeerError> {
        self.correlation = self.correlation.wrapping_add(1);
        let seal = self.seals.as_mut().map(|seals| &mut seals.requests);
        let frame = frame::request(key, self.correlation, body, seal);
        self.send(&frame).await?;
        let answer = self.next_frame().await?.ok_or(PeerError::Closed)?;
        let seal = self.seals.as_mut().map(|seals| &mut seals.answers);
        frame::parse_answer(answer, self.correlation, seal)
    }

    /// The next request; `None` when the peer has finished.
    pub(super) async fn next_request(&mut self) -> Result<Option<Request>, PeerError> {
        let Some(frame) = self.next_frame().await? else { return Ok(None) };
        let seal = self.seals.as_mut().map(|seals| &mut seals.requests);
        frame::parse_request(frame, seal).map(Some)
    }

    pub(super) async fn answer(&mut self, request: &Request, body: &[u8]) -> Result<(), PeerError> {
        let seal = self.seals.as_mut().map(|seals| &mut seals.answers);
        let frame = frame::answer(request.correlation, body, seal);
        self.send(&frame).await
    }

    async fn send(&mut self, frame: &[u8]) -> Result<(), PeerError> {
        let writer = &mut self.writer;
        within(SEND_TIME_MAX, async { Ok(writer.send(&mut [IoSlice::new(frame)], false).await?) }).await
    }

    async fn next_frame(&mut self) -> Result<Option<Bytes>, PeerError> {
        loop {
            if let Some(length) = frame::length(self.buffer.filled(), self.frame_bytes_max)? {
                if self.buffer.filled().len() >= LENGTH_BYTES + length {
                    self.buffer.skip(LENGTH_BYTES);
                    return Ok(Some(self.buffer.take(length)));
                }
                self.buffer.reserve(LENGTH_BYTES + length);
            }
            let has_begun = !self.buffer.filled().is_empty();
            let (reader, buffer) = (&mut self.reader, &mut self.buffer);
            let receive = async { Ok(reader.receive(buffer).await?) };
            let received = match has_begun {
                true => within(FRAME_PAUSE_MAX, receive).await?,
                false => receive.await?,
            };
            match received {
                0 if has_begun => return Err(PeerError::Closed),
                0 => return Ok(None),
                _ => {}
            }
        }
    }
}
