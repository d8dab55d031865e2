//! The life of one connection: receive, take whole frames, serve them, answer in request order.
//!
//! A turn of it: one receive brings as many frames as have come; Produce requests are begun one after the
//! other, so that their batches reach the owners in request order, and wait together; any other request
//! waits until all before it are answered and is served alone. Then the turn ends: what was queued on this
//! shard is written, and the answers that are there leave in one send.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::{Either, select};

use super::accept::{Accepted, Pass};
use super::figures::{Closed, ListenerCounters};
use super::registry::{Connections, Registered};
use super::request_log::{self, Line};
use super::send::{self, SendError};
use crate::api::{self, Client, Outcome, Piece};
use crate::base::clock::{self, Monotonic};
use crate::io::chunk::ReceiveBuffer;
use crate::io::net::{Socket, SocketOptions, SocketReader, SocketWriter};
use crate::io::runtime::{Queue, spawn, yield_if_needed};
use crate::shard::Shard;
use crate::wire::api::Api;
use crate::wire::frame::{self, FrameError, FrameStep, PREFIX_LEN};
use crate::wire::header::{self, HeaderError, Request};
use crate::wire::{self, ApiKey, ErrorCode};

/// Produce requests taken from one connection before its oldest is answered.
const PRODUCES_IN_FLIGHT_MAX: usize = 8;

/// Longer frames are slices of a receive chunk; up to here [`ReceiveBuffer::take`] has copied them.
const KEPT_FRAME_BYTES_MAX: usize = 4096;

/// Bytes of answers that gather before they are sent though more could join them.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("closed by the peer")]
    Peer,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Send(#[from] SendError),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Header(#[from] HeaderError),
    #[error("{0}")]
    Api(api::CloseReason),
    #[error("the broker stops")]
    Draining,
}

/// An answer to come.
struct Pending {
    future: Pin<Box<dyn Future<Output = Outcome>>>,
    times: Times,
}

/// A request in service: what it is, when it came and began, and what the log would say of it.
struct Times {
    api: &'static Api,
    received: Monotonic,
    begun: Monotonic,
    log: Option<Box<request_log::Entry>>,
}

/// An answer on its way out.
struct Unsent {
    api: &'static Api,
    received: Monotonic,
    answered: Monotonic,
    log: Option<Box<request_log::Entry>>,
}

impl End {
    fn reason(&self) -> Closed {
        match self {
            End::Peer => Closed::Peer,
            End::Io(_) | End::Send(SendError::Peer(_)) => Closed::Lost,
            End::Send(_) => Closed::LogFile,
            End::Frame(_) | End::Header(_) => Closed::Invalid,
            End::Api(api::CloseReason::Malformed { .. } | api::CloseReason::NoHandler { .. }) => {
                Closed::Invalid
            }
            End::Api(_) => Closed::Request,
            End::Draining => Closed::Stopping,
        }
    }
}

struct Connection {
    shard: Rc<Shard>,
    connections: Rc<Connections>,
    client: Rc<Client>,
    reader: SocketReader,
    writer: SocketWriter,
    buffer: ReceiveBuffer,
    registered: Registered,
    /// Produce requests in request order.
    in_flight: VecDeque<Pending>,
    /// Answers to send, and how many bytes of them are encoded.
    answers: Vec<Piece>,
    answer_bytes: usize,
    /// The requests that they answer.
    unsent: Vec<Unsent>,
    /// When the last bytes came.
    received: Monotonic,
    /// Nothing has been done since then: a request that begins now does so at that time, to a µs.
    is_fresh: bool,
    /// The last reading of the clock: each costs more than all that is recorded of a request.
    now: Monotonic,
    listener: Rc<ListenerCounters>,
    _pass: Pass,
}

/// Starts to serve an accepted connection on its shard.
pub(super) fn start(shard: &Rc<Shard>, connections: &Rc<Connections>, accepted: Accepted) {
    let config = shard.config();
    let options = SocketOptions {
        send_buffer_bytes: config.socket_send_buffer_bytes.map(|bytes| bytes as usize),
        receive_buffer_bytes: config.socket_receive_buffer_bytes.map(|bytes| bytes as usize),
    };
    let socket = match Socket::adopt(accepted.fd, &options) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::debug!(peer = %accepted.peer, "a connection was gone before it was served: {error}");
            return;
        }
    };
    let registered = connections.register(socket.closer());
    let listener = connections.listener(&accepted.listener);
    listener.created.increment();
    let (reader, writer) = socket.split();
    let connection = Connection {
        shard: shard.clone(),
        connections: connections.clone(),
        client: Rc::new(Client::new(
            shard.clone(),
            accepted.listener,
            accepted.peer,
            connections.sessions().clone(),
        )),
        reader,
        writer,
        buffer: ReceiveBuffer::new(shard.chunks().clone()),
        registered,
        in_flight: VecDeque::new(),
        answers: Vec::new(),
        answer_bytes: 0,
        unsent: Vec::new(),
        received: clock::monotonic(),
        is_fresh: false,
        now: clock::monotonic(),
        listener,
        _pass: accepted.pass,
    };
    spawn(Queue::Serve, "connection", connection.run(accepted.peer)).detach();
}

impl Connection {
    async fn run(mut self, peer: std::net::SocketAddr) {
        let end = match self.serve().await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        match &end {
            End::Peer | End::Draining => tracing::debug!(%peer, "connection ended: {end}"),
            End::Io(_) | End::Send(SendError::Peer(_)) => tracing::debug!(%peer, "connection lost: {end}"),
            End::Send(_) => tracing::error!(%peer, "connection closed: {end}"),
            End::Frame(_) | End::Header(_) | End::Api(_) => tracing::info!(%peer, "connection closed: {end}"),
        }
        self.listener.ended.increment();
        self.connections.count_closed(self.registered.entry.closed.get().unwrap_or(end.reason()));
        // What is on its way is written all the same; nobody waits for its answer.
        self.shard.end_turn();
    }

    async fn serve(&mut self) -> Result<std::convert::Infallible, End> {
        loop {
            while let Some(frame) = self.next_frame()? {
                self.serve_frame(frame).await?;
                // A chunk holds thousands of small requests.
                yield_if_needed().await;
            }
            self.shard.end_turn();
            self.take_ready_answers()?;
            self.send_answers().await?;
            yield_if_needed().await;
            self.wait().await?;
        }
    }

    /// The next whole frame without its length prefix; `None` when more must be received.
    fn next_frame(&mut self) -> Result<Option<Bytes>, End> {
        let length_max = self.shard.config().socket_request_bytes_max as usize;
        match frame::next(self.buffer.filled(), length_max) {
            FrameStep::Complete { len } => {
                drop(self.buffer.take(PREFIX_LEN));
                Ok(Some(self.buffer.take(len)))
            }
            FrameStep::NeedMore { total } => {
                self.buffer.reserve(total);
                Ok(None)
            }
            FrameStep::Invalid(error) => Err(error.into()),
        }
    }

    async fn serve_frame(&mut self, frame: Bytes) -> Result<(), End> {
        self.shard.counters.requests.increment();
        let begun = if self.is_fresh { self.received } else { clock::monotonic() };
        self.is_fresh = false;
        let received = self.received;
        let frame_bytes = frame.len();
        self.registered.entry.busy.set(true);
        let mut request = match header::parse(&frame)? {
            Request::Known { header, body } if api::may_overlap(header.api) => {
                while self.in_flight.len() >= PRODUCES_IN_FLIGHT_MAX {
                    self.shard.end_turn();
                    self.settle_front().await?;
                }
                self.shard.requests.begun(header.api);
                let log = self.connections.request_log.begin(&header, frame_bytes);
                let times = Times { api: header.api, received, begun, log };
                let future = api::produce::begin(&self.client, &header, body).await;
                self.in_flight.push_back(Pending { future, times });
                return Ok(());
            }
            request => request,
        };
        if frame.len() > KEPT_FRAME_BYTES_MAX {
            // It may wait long, and what comes of it (a fetch session, a group's member) longer still: a
            // slice of the receive chunk would keep all of that from the others.
            request = header::parse(&Bytes::copy_from_slice(&frame))?;
        }
        drop(frame);
        self.settle_all().await?;
        match request {
            Request::Known { header, body } => {
                let client = self.client.clone();
                self.shard.requests.begun(header.api);
                let log = self.connections.request_log.begin(&header, frame_bytes);
                let times = Times { api: header.api, received, begun, log };
                let outcome = self.serve_alone(api::serve(&client, &header, body), header.api).await?;
                self.take_answer(outcome, times)?;
            }
            Request::UnknownApiVersions { correlation_id } => {
                if let Some(api) = wire::api::find(ApiKey::ApiVersions as i16) {
                    self.shard.requests.begun(api);
                    self.shard.requests.error_code(api, Some(ErrorCode::UnsupportedVersion));
                }
                self.push_answer(vec![Piece::Bytes(header::unsupported_api_versions(correlation_id))]);
            }
        }
        // Not yet sent: more answers may join it in this turn.
        if self.answer_bytes >= ANSWER_BYTES_MAX {
            self.send_answers().await?;
        }
        Ok(())
    }

    /// Runs the handler of a request that nothing may overlap. Meanwhile the next bytes are received once,
    /// so that a peer that goes away is noticed while its fetch is parked. One that has only finished sending
    /// looks the same: where the answer comes soon it gets it.
    async fn serve_alone(
        &mut self,
        handler: impl Future<Output = Outcome>,
        api: &Api,
    ) -> Result<Outcome, End> {
        let mut handler = pin!(handler);
        if let Some(outcome) = poll_once(handler.as_mut()).await {
            return Ok(outcome);
        }
        let waits_since = clock::monotonic();
        let outcome = self.await_alone(handler, api).await?;
        if api.key != ApiKey::Fetch {
            // A fetch's owners tell how long it was parked; these wait for the controller, the coordinator or the
            // owners, whose own work is the lesser part.
            self.client.note_waited(clock::monotonic().since(waits_since));
        }
        Ok(outcome)
    }

    async fn await_alone(
        &mut self,
        mut handler: Pin<&mut impl Future<Output = Outcome>>,
        api: &Api,
    ) -> Result<Outcome, End> {
        self.send_answers().await?;
        if !self.buffer.filled().is_empty() {
            return Ok(handler.await);
        }
        let received = match select(handler.as_mut(), pin!(self.reader.receive(&mut self.buffer))).await {
            Either::Left((outcome, _)) => return Ok(outcome),
            Either::Right((received, _)) => received?,
        };
        if received == 0 && matches!(api.key, ApiKey::Fetch | ApiKey::JoinGroup | ApiKey::SyncGroup) {
            return Err(End::Peer);
        }
        self.note_received(received);
        self.is_fresh = false;
        Ok(handler.await)
    }

    /// Waits for bytes, or for the oldest answer when there is one to come.
    async fn wait(&mut self) -> Result<(), End> {
        let entry = &self.registered.entry;
        entry.busy.set(!self.in_flight.is_empty());
        entry.last_active.set(self.now);
        if self.in_flight.is_empty() && self.connections.is_draining() {
            return Err(End::Draining);
        }
        let received = if self.in_flight.is_empty() {
            self.reader.receive(&mut self.buffer).await?
        } else if self.in_flight.len() >= PRODUCES_IN_FLIGHT_MAX {
            return self.settle_front().await;
        } else {
            let front = std::future::poll_fn(|context| poll_front(&mut self.in_flight, context));
            let first = match select(front, pin!(self.reader.receive(&mut self.buffer))).await {
                Either::Left((outcome, _)) => Either::Left(outcome),
                Either::Right((received, _)) => Either::Right(received?),
            };
            match first {
                Either::Left((outcome, times)) => return self.take_answer(outcome, times),
                Either::Right(received) => received,
            }
        };
        if received == 0 {
            // A half-closed peer still reads its answers.
            self.settle_all().await?;
            self.send_answers().await?;
            return Err(End::Peer);
        }
        self.note_received(received);
        Ok(())
    }

    fn note_received(&mut self, bytes: usize) {
        self.now = clock::monotonic();
        self.received = self.now;
        self.is_fresh = true;
        self.shard.counters.bytes_in.add(bytes as u64);
        self.listener.bytes_in.add(bytes as u64);
    }

    async fn settle_all(&mut self) -> Result<(), End> {
        if !self.in_flight.is_empty() {
            self.shard.end_turn();
        }
        while !self.in_flight.is_empty() {
            self.settle_front().await?;
        }
        Ok(())
    }

    async fn settle_front(&mut self) -> Result<(), End> {
        self.take_ready_answers()?;
        if self.in_flight.is_empty() {
            return Ok(());
        }
        self.send_answers().await?;
        let front = std::future::poll_fn(|context| poll_front(&mut self.in_flight, context));
        let (outcome, times) = front.await;
        self.take_answer(outcome, times)
    }

    /// Takes the answers that are there, from the oldest on, without waiting.
    fn take_ready_answers(&mut self) -> Result<(), End> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        while !self.in_flight.is_empty() {
            match poll_front(&mut self.in_flight, &mut context) {
                Poll::Ready((outcome, times)) => self.take_answer(outcome, times)?,
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    fn take_answer(&mut self, outcome: Outcome, times: Times) -> Result<(), End> {
        let Times { api, received, begun, mut log } = times;
        self.now = clock::monotonic();
        let answered = self.now;
        let waited = self.client.take_waited();
        let local = answered.since(begun).saturating_sub(waited);
        self.shard.requests.answered(api, begun.since(received), local, waited);
        if let Some(log) = &mut log {
            (log.queue, log.local, log.remote) = (begun.since(received), local, waited);
        }
        match outcome {
            Outcome::Answer(pieces) => {
                if let Some(log) = &mut log {
                    log.response_bytes = pieces.iter().map(Piece::sent_len).sum();
                }
                self.push_answer(pieces);
                self.unsent.push(Unsent { api, received, answered, log });
                Ok(())
            }
            Outcome::Silent => {
                self.finish(Unsent { api, received, answered, log }, answered);
                Ok(())
            }
            Outcome::Close(reason) => Err(End::Api(reason)),
        }
    }

    fn push_answer(&mut self, pieces: Vec<Piece>) {
        self.answer_bytes += pieces.iter().map(Piece::len).sum::<usize>();
        self.answers.extend(pieces);
    }

    async fn send_answers(&mut self) -> Result<(), End> {
        if self.answers.is_empty() {
            return Ok(());
        }
        self.answer_bytes = 0;
        let entry = self.registered.entry.clone();
        entry.last_active.set(self.now);
        entry.sending.set(true);
        let (listener, answers) = (&self.listener, &mut self.answers);
        let sent = send::send(&self.shard, listener, &mut self.writer, answers, &entry.last_active).await;
        if let Err(SendError::File { directory, error }) = &sent {
            self.shard.note_send_error(*directory, error);
        }
        sent?;
        entry.sending.set(false);
        self.now = clock::monotonic();
        let now = self.now;
        let mut unsent = std::mem::take(&mut self.unsent);
        unsent.drain(..).for_each(|request| self.finish(request, now));
        // Its memory is kept.
        self.unsent = unsent;
        Ok(())
    }

    /// A request's answer has left.
    fn finish(&self, request: Unsent, now: Monotonic) {
        let Unsent { api, received, answered, log } = request;
        let (send, total) = (now.since(answered), now.since(received));
        self.shard.requests.sent(api, send, total);
        let Some(entry) = &log else { return };
        let request_log = &self.connections.request_log;
        let is_slow = request_log.is_slow(api.key, entry, total);
        if is_slow {
            self.shard.counters.slow_requests.increment();
        }
        let from = (self.client.peer, &self.client.listener);
        request_log.finish(Line { api: api.name, entry, from, send, total, is_slow }, now);
    }
}

/// Polls the oldest answer; removes it when it is there. The queue must not be empty.
fn poll_front(in_flight: &mut VecDeque<Pending>, context: &mut Context<'_>) -> Poll<(Outcome, Times)> {
    let Some(front) = in_flight.front_mut() else { return Poll::Pending };
    match front.future.as_mut().poll(context) {
        Poll::Ready(outcome) => match in_flight.pop_front() {
            Some(Pending { times, .. }) => Poll::Ready((outcome, times)),
            None => unreachable!("it was polled three lines above"),
        },
        Poll::Pending => Poll::Pending,
    }
}

/// Polls `future` once, with the caller's waker.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
