//! A connection to the broker that leads: it is greeted, then it answers Fetch.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};

use crate::base::BrokerId;
use crate::io::chunk::{ChunkPool, ReceiveBuffer};
use crate::io::net::{Socket, SocketOptions, SocketReader, SocketWriter};
use crate::io::runtime::sleep;
use crate::peer::{Ends, Greetings, PeerError};
use crate::wire::fetch::{FetchAnswer, FetchRequest};
use crate::wire::header::CorrelationId;

/// What followers speak to their leaders: topics by id, the replica's registration, its high watermark.
const VERSION: i16 = 18;

const CLIENT_ID: &str = "kuring-follower";

const LENGTH_BYTES: usize = 4;

/// A leader's answer has `replica.fetch.response.max.bytes` at most, or one batch that is longer.
const ANSWER_BYTES_MAX: usize = 256 << 20;

const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);

/// Beside the time that the leader may wait (`replica.socket.timeout.ms`).
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

pub(super) struct Connection {
    reader: SocketReader,
    writer: SocketWriter,
    buffer: ReceiveBuffer,
    correlation: i32,
}

impl Connection {
    /// Connects and greets.
    pub(super) async fn open(
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
            let answer = connection.call(&hello).await?;
            let proof = dialling.answered(answer)?;
            let answer = connection.call(&proof).await?;
            dialling.concluded(answer)?;
            Ok(connection)
        })
        .await
    }

    /// One request and its answer. Cancelled in between, the connection is of no more use.
    pub(super) async fn fetch(&mut self, request: &FetchRequest) -> Result<FetchAnswer, PeerError> {
        self.correlation = self.correlation.wrapping_add(1);
        let correlation_id = CorrelationId(self.correlation);
        let frame = request
            .encode(VERSION, correlation_id, CLIENT_ID)
            .map_err(|_| PeerError::Malformed("a fetch that cannot be said"))?;
        let limit = ANSWER_TIME_MAX + Duration::from_millis(request.max_wait_ms.max(0) as u64);
        let answer = within(limit, self.call(&frame)).await?;
        let (answered, answer) = FetchAnswer::decode(VERSION, &answer)
            .map_err(|_| PeerError::Malformed("an answer to a fetch that does not decode"))?;
        match answered == correlation_id {
            true => Ok(answer),
            false => Err(PeerError::Malformed("an answer to another fetch")),
        }
    }

    async fn call(&mut self, frame: &[u8]) -> Result<Bytes, PeerError> {
        self.writer.send(&mut [IoSlice::new(frame)], false).await?;
        loop {
            if let Some(length) = self.length()? {
                if self.buffer.filled().len() >= LENGTH_BYTES + length {
                    self.buffer.skip(LENGTH_BYTES);
                    return Ok(self.buffer.take(length));
                }
                self.buffer.reserve(LENGTH_BYTES + length);
            }
            if self.reader.receive(&mut self.buffer).await? == 0 {
                return Err(PeerError::Closed);
            }
        }
    }

    /// The length of the frame at the front, as soon as it is there.
    fn length(&self) -> Result<Option<usize>, PeerError> {
        let Some(prefix) = self.buffer.filled().first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        match usize::try_from(i32::from_be_bytes(*prefix)) {
            Ok(length) if (4..=ANSWER_BYTES_MAX).contains(&length) => Ok(Some(length)),
            _ => Err(PeerError::Malformed("a frame of a length that cannot be")),
        }
    }
}

async fn within<T>(
    limit: Duration,
    future: impl Future<Output = Result<T, PeerError>>,
) -> Result<T, PeerError> {
    match select(pin!(future), pin!(sleep(limit))).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err(PeerError::TimedOut(limit)),
    }
}
