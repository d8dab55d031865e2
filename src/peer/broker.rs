//! A connection to the listener on which another broker serves its clients: it is greeted as [`super::greet`] says,
//! then it answers Kafka's requests, one at a time.

use std::future::Future;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};

use super::greet::{Ends, Greetings};
use super::{PeerError, PeerKey, frame, within};
use crate::base::BrokerId;
use crate::io::chunk::{ChunkPool, ReceiveBuffer};
use crate::io::net::{Socket, SocketOptions, SocketReader, SocketWriter};
use crate::wire::header::CorrelationId;
use crate::wire::write::EncodeError;

const LENGTH_BYTES: usize = 4;

/// The longest answer: a fetch has `replica.fetch.response.max.bytes` at most, or one batch that is longer.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// From the first packet to the end of the greeting.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);

pub struct BrokerConnection {
    reader: SocketReader,
    writer: SocketWriter,
    buffer: ReceiveBuffer,
    correlation: i32,
}

impl BrokerConnection {
    /// Connects and greets. Answers are received into memory of `pool`.
    pub async fn open(
        address: SocketAddr,
        broker: BrokerId,
        greetings: &Greetings,
        pool: &ChunkPool,
    ) -> Result<Self, PeerError> {
        within(CONNECT_TIME_MAX, async {
            let socket = Socket::connect(address, &SocketOptions::default()).await?;
            let (own, other) = (socket.local_addr().ip(), socket.peer_addr().ip());
            let ends = Ends { is_local: own.is_loopback() && other.is_loopback() };
            let (reader, writer) = socket.split();
            let buffer = ReceiveBuffer::new(pool.clone());
            let mut connection = Self { reader, writer, buffer, correlation: 0 };
            let (dialling, hello) = greetings.begin(broker, ends)?;
            let answer = connection.exchange(&hello).await?;
            let proof = dialling.answered(answer)?;
            let answer = connection.exchange(&proof).await?;
            dialling.concluded(answer)?;
            Ok(connection)
        })
        .await
    }

    /// Whether the broker has closed it while nothing was asked.
    pub fn has_hung_up(&self) -> bool {
        self.reader.has_hung_up()
    }

    /// Sends the whole frame that `request` makes, and gives the frame of its answer without its length. Cancelled in
    /// between, the connection is of no more use; after an error neither.
    pub async fn ask(
        &mut self,
        limit: Duration,
        request: impl FnOnce(CorrelationId) -> Result<Bytes, EncodeError>,
    ) -> Result<Bytes, PeerError> {
        self.ask_nudging(limit, request, std::future::pending()).await
    }

    /// The same; when `nudge` is ready before the answer is there the broker is told to wait for nothing more.
    pub async fn ask_nudging(
        &mut self,
        limit: Duration,
        request: impl FnOnce(CorrelationId) -> Result<Bytes, EncodeError>,
        nudge: impl Future<Output = ()>,
    ) -> Result<Bytes, PeerError> {
        self.correlation = self.correlation.wrapping_add(1);
        let asked = CorrelationId(self.correlation);
        let frame = request(asked).map_err(|_| PeerError::Malformed("a request that cannot be said"))?;
        let Self { reader, writer, buffer, .. } = self;
        let answer = within(limit, async {
            writer.send(&mut [IoSlice::new(&frame)], false).await?;
            let mut answer = pin!(receive(reader, buffer));
            if let Either::Left((answer, _)) = select(answer.as_mut(), pin!(nudge)).await {
                return answer;
            }
            let nudge = frame::request(PeerKey::Nudge, asked.0, &[], None);
            writer.send(&mut [IoSlice::new(&nudge)], false).await?;
            answer.await
        });
        let answer = answer.await?;
        match answer.first_chunk() {
            Some(correlation) if i32::from_be_bytes(*correlation) == asked.0 => Ok(answer),
            _ => Err(PeerError::Malformed("an answer to another request")),
        }
    }

    async fn exchange(&mut self, frame: &[u8]) -> Result<Bytes, PeerError> {
        self.writer.send(&mut [IoSlice::new(frame)], false).await?;
        receive(&mut self.reader, &mut self.buffer).await
    }
}

/// The next frame without its length.
async fn receive(reader: &mut SocketReader, buffer: &mut ReceiveBuffer) -> Result<Bytes, PeerError> {
    loop {
        if let Some(length) = length(buffer)? {
            if buffer.filled().len() >= LENGTH_BYTES + length {
                buffer.skip(LENGTH_BYTES);
                return Ok(buffer.take(length));
            }
            buffer.reserve(LENGTH_BYTES + length);
        }
        if reader.receive(buffer).await? == 0 {
            return Err(PeerError::Closed);
        }
    }
}

/// The length of the frame at the front, as soon as it is there.
fn length(buffer: &ReceiveBuffer) -> Result<Option<usize>, PeerError> {
    let Some(prefix) = buffer.filled().first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    match usize::try_from(i32::from_be_bytes(*prefix)) {
        Ok(length) if (4..=ANSWER_BYTES_MAX).contains(&length) => Ok(Some(length)),
        _ => Err(PeerError::Malformed("a frame of a length that cannot be")),
    }
}
