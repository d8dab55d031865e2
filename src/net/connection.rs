//! The life of one connection: receive, take whole frames, serve them, answer in request order.
//!
//! A turn of it: one receive brings as many frames as have come; Produce requests are begun one after the
//! other, so that their batches reach the owners in request order, and wait together; any other request
//! waits until all before it are answered and is served alone. Then the turn ends: what was queued on this
//! shard is written, and the answers that are there leave in one send.

mod greeting;
mod moving;
mod mute;

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};

use super::accept::{Accepted, Moved};
use super::beats::{Beats, Resting};
use super::figures::{Closed, ListenerCounters};
use super::gate::Pass;
use super::memory::Charge;
use super::registry::{Connections, Ends, Registered};
use super::request_log::{self, Line};
use super::send::{self, Held, SendError};
use super::watch::Phase;
use crate::api::{self, Client, Outcome, Piece};
use crate::base::clock::{self, Monotonic};
use crate::io::chunk::ReceiveBuffer;
use crate::io::net::{Rest, Socket, SocketOptions, SocketReader, SocketWriter};
use crate::io::runtime::{Queue, spawn, yield_if_needed};
use crate::peer;
use crate::shard::Shard;
use crate::wire::api::{Api, UnsupportedApi};
use crate::wire::frame::{self, FrameError, FrameStep, PREFIX_LEN};
use crate::wire::header::{self, HeaderError, Request};
use crate::wire::read::ELEMENTS_MAX;
use crate::wire::{self, ApiKey, ErrorCode};

/// Longer frames are slices of a receive chunk; up to here [`ReceiveBuffer::take`] has copied them.
const KEPT_FRAME_BYTES_MAX: usize = api::UNCHARGED_BYTES_MAX;

/// How often a connection of which no more is received looks whether its peer is still there.
const HANG_UP_POLL: Duration = Duration::from_secs(1);

/// Bytes of answers that gather before they are sent though more could join them.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Bytes that an element of a decoded request takes at most, about.
const ELEMENT_BYTES: usize = 200;

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
    #[error("half of kuring.memory.serve.bytes is held: no long group request may wait")]
    Memory,
    #[error("the broker stops")]
    Draining,
    #[error("closed by this broker")]
    Closed,
    #[error("it goes over to the shard of its partitions")]
    Moved(OwnedFd),
    #[error("as a broker: {0}")]
    Greeting(#[from] peer::PeerError),
}

/// An answer to come.
struct Pending {
    future: Pin<Box<dyn Future<Output = Outcome>>>,
    times: Times,
    /// What it holds of the connection's budget.
    bytes: usize,
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
            End::Frame(_) | End::Header(_) | End::Greeting(_) => Closed::Invalid,
            End::Api(api::CloseReason::Malformed { .. } | api::CloseReason::NoHandler { .. }) => {
                Closed::Invalid
            }
            End::Api(_) => Closed::Request,
            End::Memory => Closed::Limit,
            // Why it was closed is known better where that was done.
            End::Draining | End::Closed | End::Moved(_) => Closed::Stopping,
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
    in_flight_bytes: usize,
    /// Answers to send, and what they hold of the shard's memory.
    answers: Vec<Piece>,
    charge: Option<Charge>,
    held: Held,
    /// The requests that they answer.
    unsent: Vec<Unsent>,
    /// When the last bytes came.
    received: Monotonic,
    /// Nothing has been done since then: a request that begins now does so at that time, to a µs.
    is_fresh: bool,
    /// The last reading of the clock: each costs more than all that is recorded of a request.
    now: Monotonic,
    listener: Rc<ListenerCounters>,
    pass: Pass,
    beats: Beats,
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
            if accepted.moved.is_some() {
                connections.listener(&accepted.listener).ended.increment();
                connections.count_closed(Closed::Lost);
            }
            return;
        }
    };
    let listener = connections.listener(&accepted.listener);
    if accepted.moved.is_none() {
        listener.created.increment();
    }
    let closer = socket.closer();
    let (reader, writer) = socket.split();
    let Moved { moves, standing, beats, broker } = accepted.moved.unwrap_or_default();
    let buffer = ReceiveBuffer::of(shard.chunks().clone(), standing);
    let registered = connections.register(Ends {
        received: buffer.state(),
        sent_bytes: writer.sent_bytes(),
        listener: accepted.listener.clone(),
        closer,
    });
    if accepted.moved.is_some() {
        registered.entry.watch.set_known();
    }
    let connection = Connection {
        shard: shard.clone(),
        connections: connections.clone(),
        client: Rc::new(Client::new(
            shard.clone(),
            accepted.listener,
            accepted.peer,
            connections.sessions().clone(),
            moves,
            broker,
        )),
        reader,
        writer,
        buffer,
        registered,
        in_flight: VecDeque::new(),
        in_flight_bytes: 0,
        answers: Vec::new(),
        charge: None,
        held: Held::default(),
        unsent: Vec::new(),
        received: clock::monotonic(),
        is_fresh: false,
        now: clock::monotonic(),
        listener,
        pass: accepted.pass,
        beats: Beats::new(connections.beating().clone(), beats),
    };
    spawn(Queue::Serve, "connection", connection.run(accepted.peer)).detach();
}

impl Connection {
    async fn run(mut self, peer: std::net::SocketAddr) {
        let end = match self.serve().await {
            Ok(never) => match never {},
            Err(End::Moved(fd)) => return self.hand_over(fd),
            Err(end) => end,
        };
        match &end {
            End::Peer | End::Draining | End::Closed | End::Moved(_) => {
                tracing::debug!(%peer, "connection ended: {end}");
            }
            End::Io(_) | End::Send(SendError::Peer(_)) => tracing::debug!(%peer, "connection lost: {end}"),
            End::Send(_) => tracing::error!(%peer, "connection closed: {end}"),
            End::Frame(_) | End::Header(_) | End::Api(_) | End::Memory => {
                self.count(&end);
                tracing::info!(%peer, "connection closed: {end}");
            }
            End::Greeting(_) => self.tell_of_refused(peer.ip(), &end),
        }
        self.listener.ended.increment();
        self.connections.count_closed(self.registered.entry.closed.get().unwrap_or(end.reason()));
        self.client.end();
        // What is queued is written all the same; nobody waits for its answer.
        self.shard.end_turn();
    }

    /// Counts an end by a limit.
    fn count(&self, end: &End) {
        let counters = &self.shard.counters;
        let counter = match end {
            End::Frame(FrameError::TooLongForApi { .. }) => &counters.requests_too_long,
            End::Frame(_) => &counters.frames_refused,
            End::Header(HeaderError::Malformed(_)) | End::Api(api::CloseReason::Malformed { .. }) => {
                &counters.requests_malformed
            }
            End::Memory => &counters.group_requests_refused,
            _ => return,
        };
        counter.increment();
    }

    fn enter(&self, phase: Phase) {
        self.registered.entry.watch.enter(phase, self.now);
    }

    async fn serve(&mut self) -> Result<std::convert::Infallible, End> {
        loop {
            // What is not begun when the connection is closed or the broker stops stays so: its answer would reach
            // nobody, and of several batches in the log that were never answered the next start knows few.
            while self.end_to_come().is_none()
                && !self.is_mute()
                && let Some(frame) = self.next_frame()?
            {
                self.serve_frame(frame).await?;
                // A chunk holds thousands of small requests.
                yield_if_needed().await;
            }
            self.shard.end_turn();
            self.take_ready_answers()?;
            self.send_answers().await?;
            yield_if_needed().await;
            self.look_where_it_leans();
            if self.is_mute() && self.end_to_come().is_none() {
                let has_requests = !self.buffer.filled().is_empty();
                self.stay_mute(has_requests).await?;
                continue;
            }
            self.wait().await?;
        }
    }

    /// Why no more requests are begun, though some may have come.
    fn end_to_come(&self) -> Option<End> {
        if self.connections.is_draining() {
            return Some(End::Draining);
        }
        self.registered.entry.closed.get().map(|_| End::Closed)
    }

    /// The next whole frame without its length prefix; `None` when more must be received.
    fn next_frame(&mut self) -> Result<Option<Bytes>, End> {
        let length_max = self.shard.config().socket_request_bytes_max as usize;
        match frame::next(self.buffer.filled(), length_max) {
            FrameStep::Complete { len } => {
                self.buffer.skip(PREFIX_LEN);
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
        let mut begun = if self.is_fresh { self.received } else { clock::monotonic() };
        self.is_fresh = false;
        let received = self.received;
        let frame_bytes = frame.len();
        self.enter(Phase::Serving);
        if peer::own_key(&frame).is_some() && self.hear(&frame).await? {
            return Ok(());
        }
        let parsed = header::parse(&frame)?;
        if let Request::Known { header, .. } = &parsed {
            if !self.client.may_ask(header.api) {
                return Err(HeaderError::from(UnsupportedApi::Key { key: header.api.key as i16 }).into());
            }
            self.beats.note(header.api.key, received);
            if !self.beats.are_all() {
                self.reader.stand_alone();
            }
        }
        let mut request = match parsed {
            Request::Known { header, body } if api::may_overlap(header.api) => {
                self.make_room_in_flight(frame_bytes).await?;
                if self.is_mute()
                    || !self.in_flight.is_empty() && self.client.comes_to_its_quota(&header, frame_bytes)
                {
                    self.stay_mute(true).await?;
                    begun = clock::monotonic();
                }
                self.shard.requests.begun(header.api);
                let log = self.connections.request_log.begin(&header, frame_bytes);
                let times = Times { api: header.api, received, begun, log };
                let future = api::produce::begin(&self.client, &header, body).await;
                self.in_flight.push_back(Pending { future, times, bytes: frame_bytes });
                self.in_flight_bytes += frame_bytes;
                return Ok(());
            }
            request => request,
        };
        self.settle_all().await?;
        if self.is_mute() {
            // For one of those that were before it.
            self.stay_mute(true).await?;
            begun = clock::monotonic();
        }
        // Until it has memory it stays in the receive chunk, where it is counted.
        let charge = match &request {
            Request::Known { header, .. } => self.charge_request(header.api.key, frame_bytes).await?,
            Request::UnknownApiVersions { .. } => None,
        };
        if frame.len() > KEPT_FRAME_BYTES_MAX {
            // It may wait long, and what comes of it (a fetch session, a group's member) longer still: a
            // slice of the receive chunk would keep all of that from the others.
            request = header::parse(&Bytes::copy_from_slice(&frame))?;
        }
        drop(frame);
        match request {
            Request::Known { header, body } => {
                let client = self.client.clone();
                client.note_charged(charge.as_ref().map_or(0, Charge::bytes));
                self.shard.requests.begun(header.api);
                let log = self.connections.request_log.begin(&header, frame_bytes);
                let times = Times { api: header.api, received, begun, log };
                let outcome = match api::answer_at_once(&client, &header, &body) {
                    Some(answer) => Outcome::Answer(vec![Piece::Bytes(answer)]),
                    None => self.serve_alone(api::serve(&client, &header, body), header.api).await?,
                };
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
        drop(charge);
        // Not yet sent: more answers may join it in this turn.
        if self.client.is_beyond() {
            self.send_answers().await?;
            self.client.come_back();
        } else if self.charge.as_ref().is_some_and(|charge| charge.bytes() >= ANSWER_BYTES_MAX) {
            self.send_answers().await?;
        }
        Ok(())
    }

    /// Settles the oldest produce requests until one of `bytes` may be begun beside the others.
    async fn make_room_in_flight(&mut self, bytes: usize) -> Result<(), End> {
        let requests_max = self.shard.config().serving_limits.connection_requests_max;
        if self.in_flight.len() >= requests_max || !self.fits_in_flight(bytes) {
            self.count_full_pipeline();
        }
        while self.in_flight.len() >= requests_max || !self.fits_in_flight(bytes) {
            self.shard.end_turn();
            self.settle_front().await?;
        }
        Ok(())
    }

    /// The connection is not read until its oldest request is answered.
    fn count_full_pipeline(&self) {
        let counters = &self.shard.counters;
        let requests_max = self.shard.config().serving_limits.connection_requests_max;
        match self.in_flight.len() >= requests_max {
            true => counters.pipelines_full.increment(),
            false => counters.connections_muted.increment(),
        }
    }

    /// Whether `bytes` more of requests in service are within the connection's budget; one alone always is.
    fn fits_in_flight(&self, bytes: usize) -> bool {
        let max = self.shard.config().serving_limits.connection_bytes_max;
        self.in_flight.is_empty() || (self.in_flight_bytes + bytes) as u64 <= max
    }

    /// What a request of `length` bytes holds of the shard's memory while it is in service. Waits until there is
    /// some; meanwhile the connection is not read.
    async fn charge_request(&mut self, key: ApiKey, length: usize) -> Result<Option<Charge>, End> {
        let memory = self.connections.memory().clone();
        if memory.is_used_up() {
            drop(self.take_memory(0).await?);
        }
        if length <= KEPT_FRAME_BYTES_MAX {
            return Ok(None);
        }
        match key {
            ApiKey::JoinGroup | ApiKey::SyncGroup if self.shard.is_serve_memory_tight() => Err(End::Memory),
            ApiKey::JoinGroup | ApiKey::SyncGroup => Ok(Some(memory.charge(length))),
            _ => {
                let bytes = match key {
                    ApiKey::Fetch => api::fetch_memory_of(length),
                    _ => 2 * length + (length / 2).min(ELEMENTS_MAX) * ELEMENT_BYTES,
                };
                if bytes <= memory.part_max() {
                    return Ok(Some(self.take_memory(bytes).await?));
                }
                // Those behind it are not to wait until all others have ended.
                let client = self.client.clone();
                self.wait_for_memory(pin!(client.go_beyond())).await?;
                Ok(None)
            }
        }
    }

    /// Waits until `bytes` of the shard's memory are there, or the peer goes away.
    async fn take_memory(&mut self, bytes: usize) -> Result<Charge, End> {
        let memory = self.connections.memory().clone();
        self.wait_for_memory(pin!(memory.take(bytes))).await
    }

    async fn wait_for_memory<T>(&mut self, mut taken: Pin<&mut impl Future<Output = T>>) -> Result<T, End> {
        if let Some(taken) = poll_once(taken.as_mut()).await {
            return Ok(taken);
        }
        // This connection's own answers may be what fills it.
        self.send_answers().await?;
        self.await_beside_peer(taken, true).await
    }

    /// Runs the handler of a request that nothing may overlap. Meanwhile the next bytes are received, if few,
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
            // It came together with the request.
            self.client.note_more();
        }
        use ApiKey::{DeleteRecords, Fetch, JoinGroup, SyncGroup};
        let may_last = matches!(api.key, DeleteRecords | Fetch | JoinGroup | SyncGroup);
        if may_last {
            self.enter(Phase::Parked);
        }
        let outcome = self.await_beside_peer(handler.as_mut(), may_last).await;
        self.enter(Phase::Serving);
        outcome
    }

    /// Waits for `what`, and receives meanwhile what can be put aside: a chunk would be kept from others. That the peer
    /// has finished ends the connection if `with_peer` says so.
    async fn await_beside_peer<T>(
        &mut self,
        what: Pin<&mut impl Future<Output = T>>,
        with_peer: bool,
    ) -> Result<T, End> {
        self.buffer.spare(true);
        let outcome = self.await_sparingly(what, with_peer).await;
        self.buffer.spare(false);
        outcome
    }

    async fn await_sparingly<T>(
        &mut self,
        mut what: Pin<&mut impl Future<Output = T>>,
        with_peer: bool,
    ) -> Result<T, End> {
        while self.buffer.has_room_aside() {
            let received = match select(what.as_mut(), pin!(self.reader.receive(&mut self.buffer))).await {
                Either::Left((done, _)) => return Ok(done),
                Either::Right((received, _)) => received?,
            };
            if received == 0 {
                if with_peer {
                    return Err(End::Peer);
                }
                break;
            }
            self.note_received(received);
            self.client.note_more();
            self.is_fresh = false;
        }
        let state = self.buffer.state();
        loop {
            let closed = pin!(std::future::poll_fn(|context| state.poll_closed(context)));
            let pause = pin!(self.shard.sleep(HANG_UP_POLL));
            match select(what.as_mut(), select(closed, pause)).await {
                Either::Left((done, _)) => return Ok(done),
                Either::Right((Either::Left(_), _)) => return Err(End::Peer),
                // Nothing more is received, so its end does not show otherwise.
                Either::Right((Either::Right(_), _)) if with_peer && self.reader.has_hung_up() => {
                    return Err(End::Peer);
                }
                Either::Right(_) => {}
            }
        }
    }

    /// Waits for bytes, or for the oldest answer when there is one to come.
    async fn wait(&mut self) -> Result<(), End> {
        let moves_to = self.client.leaning.borrow().moves_to();
        self.buffer.stop_at_frame(moves_to.is_some());
        if let Some(shard) = moves_to
            && self.buffer.filled().is_empty()
            && !self.reader.has_aside()
        {
            self.settle_all().await?;
            self.send_answers().await?;
            if let Some(fd) = self.leave_for(shard) {
                return Err(End::Moved(fd));
            }
        }
        if let Some(end) = self.end_to_come() {
            self.settle_all().await?;
            self.send_answers().await?;
            return Err(end);
        }
        match (self.in_flight.is_empty(), self.buffer.filled().is_empty()) {
            (true, true) => self.enter(Phase::Idle),
            (true, false) => self.enter(Phase::Receiving),
            (false, _) => self.enter(Phase::Serving),
        }
        let requests_max = self.shard.config().serving_limits.connection_requests_max;
        if let Some(gathering) = self.beats.gathering() {
            let server = if self.reader.is_gathered() { None } else { self.resting() };
            if let Err(error) = self.reader.gather(gathering, server) {
                tracing::debug!(peer = %self.client.peer, "a connection wakes its shard alone: {error}");
            }
        } else if self.beats.are_all() {
            // The others have gone.
            self.reader.stand_alone();
        }
        let received = if self.in_flight.is_empty() && self.buffer.filled().is_empty() {
            self.reader.receive_at_rest(&mut self.buffer).await?
        } else if self.in_flight.is_empty() {
            self.reader.receive(&mut self.buffer).await?
        } else if self.in_flight.len() >= requests_max || !self.fits_in_flight(1) {
            self.count_full_pipeline();
            return self.settle_front().await;
        } else {
            let front = std::future::poll_fn(|context| {
                poll_front(&mut self.in_flight, &mut self.in_flight_bytes, context)
            });
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

    /// What serves heartbeats while the connection rests, where the coordinator is.
    fn resting(&self) -> Option<Rc<dyn Rest>> {
        self.shard.control()?;
        let (entry, listener) = (self.registered.entry.clone(), self.listener.clone());
        Some(Rc::new(Resting::new(self.client.clone(), self.connections.clone(), entry, listener)))
    }

    fn note_received(&mut self, bytes: usize) {
        self.now = clock::monotonic();
        self.registered.entry.watch.moved(bytes, self.now);
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
        let front = std::future::poll_fn(|context| {
            poll_front(&mut self.in_flight, &mut self.in_flight_bytes, context)
        });
        let (outcome, times) = front.await;
        self.take_answer(outcome, times)
    }

    /// Takes the answers that are there, from the oldest on, without waiting.
    fn take_ready_answers(&mut self) -> Result<(), End> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        while !self.in_flight.is_empty() {
            match poll_front(&mut self.in_flight, &mut self.in_flight_bytes, &mut context) {
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
        if let Some(throttle) = self.client.take_throttle() {
            self.shard.requests.throttled(api, throttle);
        }
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
        let before = self.held.bytes();
        pieces.iter().for_each(|piece| self.held.add(piece));
        // One that is beyond the shard's memory is not counted in it.
        let bytes = if self.client.is_beyond() { 0 } else { self.held.bytes() - before };
        match &mut self.charge {
            Some(charge) => charge.add(bytes),
            None => self.charge = Some(self.connections.memory().charge(bytes)),
        }
        self.answers.extend(pieces);
    }

    async fn send_answers(&mut self) -> Result<(), End> {
        if self.answers.is_empty() {
            return Ok(());
        }
        let charge = self.charge.take();
        let held = std::mem::take(&mut self.held);
        let entry = self.registered.entry.clone();
        entry.answer_bytes.set(held.bytes());
        entry.is_beyond.set(self.client.is_beyond());
        let before = entry.watch.phase();
        self.enter(Phase::Sending);
        let (listener, answers) = (&self.listener, &mut self.answers);
        let sent = send::send(&self.shard, listener, &mut self.writer, answers, &entry.watch).await;
        entry.answer_bytes.set(0);
        entry.is_beyond.set(false);
        drop(charge);
        if let Err(SendError::File { directory, error }) = &sent {
            self.shard.note_send_error(*directory, error);
        }
        sent?;
        self.now = clock::monotonic();
        self.enter(before);
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
fn poll_front(
    in_flight: &mut VecDeque<Pending>,
    in_flight_bytes: &mut usize,
    context: &mut Context<'_>,
) -> Poll<(Outcome, Times)> {
    let Some(front) = in_flight.front_mut() else { return Poll::Pending };
    match front.future.as_mut().poll(context) {
        Poll::Ready(outcome) => match in_flight.pop_front() {
            Some(Pending { times, bytes, .. }) => {
                *in_flight_bytes -= bytes;
                Poll::Ready((outcome, times))
            }
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
