//! Connections to many brokers driven by one `poll(2)`: connecting, the ApiVersions exchange, correlation
//! ids, pipelined requests, time-outs. One thread owns a `Network`.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, RequestHeader, ResponseHeader,
};
use kafka_protocol::protocol::{
    Decodable, Encodable, HeaderVersion, Message, Request, StrBytes, VersionRange,
    encode_request_header_into_buffer,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::backoff::Backoff;
use super::connection::Connection;
use super::error::{ClientError, Result};
use crate::base::BrokerId;
use crate::base::clock::{Monotonic, monotonic};
use crate::base::random::Random;
use crate::wire::ErrorCode;

#[derive(Clone, Debug)]
pub struct NetworkConfig {
    pub client_id: String,
    /// Time for the connection and its ApiVersions exchange (`socket.connection.setup.timeout.ms`).
    pub connect_timeout: Duration,
    /// A request not answered in this time loses its connection (`request.timeout.ms`).
    pub request_timeout: Duration,
    /// The first and the longest wait before a broker is tried again (`reconnect.backoff.ms`, `.max.ms`).
    pub reconnect_backoff: (Duration, Duration),
    /// A larger answer loses its connection.
    pub response_bytes_max: usize,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            client_id: "kuring".into(),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            reconnect_backoff: (Duration::from_millis(50), Duration::from_secs(1)),
            response_bytes_max: 128 << 20,
        }
    }
}

/// Whom a request goes to: a broker, or an address the user named, of which the broker is not known yet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NodeId {
    Bootstrap(usize),
    Broker(BrokerId),
}

/// Names a request until its [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(u64);

/// How a request ended.
#[derive(Debug)]
pub enum Event {
    /// The answer's body, to be read with [`decode`].
    Answer { token: Token, version: i16, body: Bytes },
    /// No answer will come; whether the request was carried out is not known.
    Lost(Lost),
}

#[derive(Debug)]
pub struct Lost {
    pub token: Token,
    pub address: String,
    pub reason: String,
}

/// All connections of one thread.
pub struct Network {
    config: NetworkConfig,
    nodes: BTreeMap<NodeId, Node>,
    next_token: u64,
    random: Random,
    wake: Option<Arc<OwnedFd>>,
    interrupt: Option<Arc<AtomicBool>>,
    events: Vec<Event>,
}

struct Node {
    host: String,
    port: u16,
    link: Link,
    backoff: Backoff,
    retry_at: Monotonic,
    /// Counts attempts, to go round the addresses of a name.
    attempts: usize,
    failure: Option<Failure>,
}

/// Why a node is not reached.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The connection had been open.
    pub was_open: bool,
    pub reason: String,
}

enum Link {
    Closed,
    Opening {
        connection: Connection,
        deadline: Monotonic,
        sent: Option<i16>,
    },
    Open {
        connection: Connection,
        versions: BTreeMap<i16, VersionRange>,
        next_correlation: i32,
        waiting: VecDeque<Waiting>,
    },
}

struct Waiting {
    token: Token,
    correlation: i32,
    api: ApiKey,
    version: i16,
    deadline: Monotonic,
}

/// How often a wait looks at the interrupt flag.
const INTERRUPT_WAIT: Duration = Duration::from_millis(100);
/// The correlation id of the ApiVersions exchange.
const OPENING_CORRELATION: i32 = -1;

impl Network {
    pub fn new(config: NetworkConfig) -> Self {
        Self {
            config,
            nodes: BTreeMap::new(),
            next_token: 0,
            random: Random::from_os(),
            wake: None,
            interrupt: None,
            events: Vec::new(),
        }
    }

    /// [`Network::poll`] also returns when this eventfd is written.
    pub fn set_wake(&mut self, wake: Arc<OwnedFd>) {
        self.wake = Some(wake);
    }

    /// Once the flag is set, [`Network::poll`] fails with [`ClientError::Interrupted`] within 100 ms.
    pub fn set_interrupt(&mut self, interrupt: Arc<AtomicBool>) {
        self.interrupt = Some(interrupt);
    }

    /// Lets the last requests of an interrupted user through.
    pub fn clear_interrupt(&mut self) {
        self.interrupt = None;
    }

    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// Makes a node known, or moves it; a connection to its old address is closed.
    pub fn set_address(&mut self, id: NodeId, host: &str, port: u16) {
        if self.nodes.get(&id).is_some_and(|node| node.host == host && node.port == port) {
            return;
        }
        self.close(id, "the broker moved");
        let (first, max) = self.config.reconnect_backoff;
        let node = Node {
            host: host.to_owned(),
            port,
            link: Link::Closed,
            backoff: Backoff::new(first, max),
            retry_at: Monotonic::ZERO,
            attempts: 0,
            failure: None,
        };
        self.nodes.insert(id, node);
    }

    pub fn knows(&self, id: NodeId) -> bool {
        self.nodes.contains_key(&id)
    }

    pub fn address(&self, id: NodeId) -> String {
        self.nodes.get(&id).map_or_else(|| format!("{id:?}"), Node::address)
    }

    /// Whether a request can be sent at once. Starts connecting when the node has no connection and its
    /// back-off is over.
    pub fn ready(&mut self, id: NodeId, now: Monotonic) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        match node.link {
            Link::Open { .. } => true,
            Link::Opening { .. } => false,
            Link::Closed => {
                if now >= node.retry_at {
                    self.open(id, now);
                }
                false
            }
        }
    }

    /// Everything sent to the node has been taken by its socket: the peer keeps up.
    pub fn is_written(&self, id: NodeId) -> bool {
        self.nodes.get(&id).and_then(Node::connection).is_none_or(Connection::is_written)
    }

    /// Why the last attempt to reach the node failed, while it is not reached.
    pub fn failure(&self, id: NodeId) -> Option<ClientError> {
        let node = self.nodes.get(&id)?;
        let Failure { was_open, reason } = node.failure.clone()?;
        let address = node.address();
        Some(if was_open {
            ClientError::Lost { address, reason }
        } else {
            ClientError::Connect { address, reason }
        })
    }

    /// Requests sent to the node and not yet answered.
    pub fn in_flight(&self, id: NodeId) -> usize {
        match self.nodes.get(&id).map(|node| &node.link) {
            Some(Link::Open { waiting, .. }) => waiting.len(),
            _ => 0,
        }
    }

    /// The newest version of `R` that both sides speak, once the node is ready.
    pub fn version<R: Request>(&self, id: NodeId) -> Result<i16> {
        let versions = match self.nodes.get(&id).map(|node| &node.link) {
            Some(Link::Open { versions, .. }) => versions,
            _ => return Err(self.not_connected(id)),
        };
        let common = versions.get(&R::KEY).map(|theirs| theirs.intersect(&R::VERSIONS));
        match common {
            Some(range) if !range.is_empty() => Ok(range.max),
            _ => {
                let api =
                    ApiKey::try_from(R::KEY).expect("kafka-protocol knows the keys of its own messages");
                Err(ClientError::NoCommonVersion { address: self.address(id), api })
            }
        }
    }

    /// Sends a request to a node that is ready; its end comes as an [`Event`].
    pub fn send<R: Request>(
        &mut self,
        id: NodeId,
        version: i16,
        request: &R,
        now: Monotonic,
    ) -> Result<Token> {
        let timeout = self.config.request_timeout;
        self.send_within(id, version, request, now, timeout)
    }

    /// The same with a time-out of its own: JoinGroup may take as long as a rebalance.
    pub fn send_within<R: Request>(
        &mut self,
        id: NodeId,
        version: i16,
        request: &R,
        now: Monotonic,
        timeout: Duration,
    ) -> Result<Token> {
        let api = ApiKey::try_from(R::KEY).expect("kafka-protocol knows the keys of its own messages");
        let token = Token(self.next_token);
        self.write(id, version, request, |correlation| {
            Some(Waiting { token, correlation, api, version, deadline: now.plus(timeout) })
        })?;
        self.next_token += 1;
        Ok(token)
    }

    /// Sends a request that is never answered (Produce with acks=0).
    pub fn send_unanswered<R: Request>(&mut self, id: NodeId, version: i16, request: &R) -> Result<()> {
        self.write(id, version, request, |_| None)
    }

    /// Waits until a request ends, the wake-up is written or `timeout` is over, and returns what ended.
    pub fn poll(&mut self, timeout: Duration, now: Monotonic) -> Result<Vec<Event>> {
        if self.interrupt.as_ref().is_some_and(|interrupt| interrupt.load(Ordering::Relaxed)) {
            return Err(ClientError::Interrupted);
        }
        let timeout = if self.interrupt.is_some() { timeout.min(INTERRUPT_WAIT) } else { timeout };
        let timeout =
            if self.events.is_empty() { timeout.min(self.next_deadline(now)) } else { Duration::ZERO };
        let ids: Vec<NodeId> =
            self.nodes.iter().filter(|(_, n)| n.connection().is_some()).map(|(&id, _)| id).collect();
        let returned: Vec<PollFlags> = {
            let connections = ids.iter().filter_map(|id| self.nodes[id].connection());
            let mut fds: Vec<PollFd<'_>> =
                connections.map(|c| PollFd::from_borrowed_fd(c.as_fd(), c.interest())).collect();
            if let Some(wake) = &self.wake {
                fds.push(PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN));
            }
            let wait =
                Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
            match rustix::event::poll(&mut fds, Some(&wait)) {
                Ok(_) => fds.iter().map(PollFd::revents).collect(),
                // A signal: the caller looks why.
                Err(rustix::io::Errno::INTR) => vec![PollFlags::empty(); fds.len()],
                Err(error) => return Err(ClientError::Io(error.into())),
            }
        };
        if let Some(wake) = &self.wake
            && returned.len() > ids.len()
            && returned[ids.len()].contains(PollFlags::IN)
        {
            // Non-blocking; the count read is of no interest.
            let _ = rustix::io::read(&**wake, &mut [0u8; 8]);
        }
        let now = monotonic();
        for (id, flags) in ids.into_iter().zip(returned) {
            if !flags.is_empty() {
                self.handle(id, flags, now);
            }
        }
        self.expire(now);
        Ok(std::mem::take(&mut self.events))
    }

    /// Gives events back that a caller took and does not want; the next [`Network::poll`] returns them first.
    pub fn put_back(&mut self, mut events: Vec<Event>) {
        events.append(&mut self.events);
        self.events = events;
    }

    /// Ends the node's connection; what was in flight is lost.
    pub fn close(&mut self, id: NodeId, reason: &str) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let address = node.address();
        if let Link::Open { waiting, .. } = std::mem::replace(&mut node.link, Link::Closed) {
            for request in waiting {
                let lost = Lost { token: request.token, address: address.clone(), reason: reason.to_owned() };
                self.events.push(Event::Lost(lost));
            }
        }
    }

    fn write<R: Request>(
        &mut self,
        id: NodeId,
        version: i16,
        request: &R,
        waiting_entry: impl FnOnce(i32) -> Option<Waiting>,
    ) -> Result<()> {
        let not_connected = self.not_connected(id);
        let Some(Node { link: Link::Open { connection, next_correlation, waiting, .. }, .. }) =
            self.nodes.get_mut(&id)
        else {
            return Err(not_connected);
        };
        let correlation = *next_correlation;
        let frame = encode(request, version, correlation, &self.config.client_id)?;
        *next_correlation = next_correlation.wrapping_add(1).max(0);
        waiting.extend(waiting_entry(correlation));
        if let Err(error) = connection.send(frame) {
            self.fail(id, error.to_string());
        }
        Ok(())
    }

    fn not_connected(&self, id: NodeId) -> ClientError {
        let closed = || ClientError::Lost { address: self.address(id), reason: "not connected".into() };
        self.failure(id).unwrap_or_else(closed)
    }

    fn open(&mut self, id: NodeId, now: Monotonic) {
        let frame_bytes_max = self.config.response_bytes_max;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.attempts += 1;
        let opened = node.resolve().and_then(|address| {
            Connection::open(address, frame_bytes_max).map_err(|error| error.to_string())
        });
        match opened {
            Ok(connection) => {
                let deadline = now.plus(self.config.connect_timeout);
                node.link = Link::Opening { connection, deadline, sent: None };
            }
            Err(reason) => self.fail(id, reason),
        }
    }

    fn handle(&mut self, id: NodeId, flags: PollFlags, now: Monotonic) {
        if let Err(reason) = self.advance(id, flags, now) {
            self.fail(id, reason);
        }
    }

    /// Does what the socket is ready for. The error is why the connection cannot go on.
    fn advance(&mut self, id: NodeId, flags: PollFlags, now: Monotonic) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(&id) else { return Ok(()) };
        let Some(connection) = node.connection_mut() else { return Ok(()) };
        if connection.is_connecting() || flags.contains(PollFlags::OUT) {
            connection.on_writable().map_err(|error| error.to_string())?;
        }
        if let Link::Opening { connection, sent: sent @ None, .. } = &mut node.link {
            let version = ApiVersionsRequest::VERSIONS.max;
            send_api_versions(connection, version, &self.config.client_id)?;
            *sent = Some(version);
        }
        let mut open = true;
        if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
            && let Some(connection) = node.connection_mut()
        {
            open = connection.read_some().map_err(|error| error.to_string())?;
        }
        self.take_frames(id, now)?;
        if open { Ok(()) } else { Err("the broker closed it".into()) }
    }

    fn take_frames(&mut self, id: NodeId, _now: Monotonic) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(&id) else { return Ok(()) };
        if let Link::Opening { connection, sent: Some(sent), .. } = &mut node.link {
            let Some(frame) = connection.next_frame().map_err(|error| error.to_string())? else {
                return Ok(());
            };
            match read_api_versions(frame, *sent)? {
                Versions::Known(versions) => node.opened(versions),
                Versions::AskAgain(version) => {
                    send_api_versions(connection, version, &self.config.client_id)?;
                    *sent = version;
                }
            }
        }
        if let Link::Open { connection, waiting, .. } = &mut node.link {
            while let Some(frame) = connection.next_frame().map_err(|error| error.to_string())? {
                let request = waiting.pop_front().ok_or("an answer came that nothing asked for")?;
                let mut body = Bytes::copy_from_slice(frame);
                let header_version = request.api.response_header_version(request.version);
                let header = ResponseHeader::decode(&mut body, header_version).map_err(|e| e.to_string())?;
                if header.correlation_id != request.correlation {
                    let came = header.correlation_id;
                    waiting.push_front(request);
                    return Err(format!("answers are out of order: correlation id {came}"));
                }
                self.events.push(Event::Answer { token: request.token, version: request.version, body });
            }
        }
        Ok(())
    }

    fn fail(&mut self, id: NodeId, reason: String) {
        let was_open = self.nodes.get(&id).is_some_and(|node| matches!(node.link, Link::Open { .. }));
        self.close(id, &reason);
        let now = monotonic();
        if let Some(node) = self.nodes.get_mut(&id) {
            node.retry_at = now.plus(node.backoff.failed(&mut self.random));
            node.failure = Some(Failure { was_open, reason });
        }
    }

    fn next_deadline(&self, now: Monotonic) -> Duration {
        let deadlines = self.nodes.values().filter_map(|node| match &node.link {
            Link::Closed => None,
            Link::Opening { deadline, .. } => Some(*deadline),
            Link::Open { waiting, .. } => waiting.iter().map(|request| request.deadline).min(),
        });
        deadlines.min().map_or(Duration::MAX, |deadline| deadline.since(now))
    }

    fn expire(&mut self, now: Monotonic) {
        let late: Vec<(NodeId, &str)> = self
            .nodes
            .iter()
            .filter_map(|(&id, node)| match &node.link {
                Link::Opening { deadline, .. } if *deadline <= now => Some((id, "no connection in time")),
                Link::Open { waiting, .. } if waiting.iter().any(|request| request.deadline <= now) => {
                    Some((id, "a request was not answered in time"))
                }
                _ => None,
            })
            .collect();
        for (id, reason) in late {
            self.fail(id, reason.to_owned());
        }
    }
}

impl Node {
    fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn resolve(&self) -> Result<SocketAddr, String> {
        let found = (self.host.as_str(), self.port).to_socket_addrs().map_err(|error| error.to_string())?;
        let addresses: Vec<SocketAddr> = found.collect();
        match addresses.len() {
            0 => Err("the name has no address".into()),
            count => Ok(addresses[(self.attempts - 1) % count]),
        }
    }

    fn connection(&self) -> Option<&Connection> {
        match &self.link {
            Link::Closed => None,
            Link::Opening { connection, .. } | Link::Open { connection, .. } => Some(connection),
        }
    }

    fn connection_mut(&mut self) -> Option<&mut Connection> {
        match &mut self.link {
            Link::Closed => None,
            Link::Opening { connection, .. } | Link::Open { connection, .. } => Some(connection),
        }
    }

    fn opened(&mut self, versions: BTreeMap<i16, VersionRange>) {
        self.link = match std::mem::replace(&mut self.link, Link::Closed) {
            Link::Opening { connection, .. } => {
                Link::Open { connection, versions, next_correlation: 0, waiting: VecDeque::new() }
            }
            other => other,
        };
        self.backoff.succeeded();
        self.failure = None;
    }
}

enum Versions {
    Known(BTreeMap<i16, VersionRange>),
    /// The broker does not know our version of ApiVersions: ask in this one.
    AskAgain(i16),
}

fn send_api_versions(connection: &mut Connection, version: i16, client_id: &str) -> Result<(), String> {
    let mut request = ApiVersionsRequest::default();
    if version >= 3 {
        request.client_software_name = StrBytes::from_static_str("kuring");
        request.client_software_version = StrBytes::from_static_str(env!("CARGO_PKG_VERSION"));
    }
    let frame =
        encode(&request, version, OPENING_CORRELATION, client_id).map_err(|error| error.to_string())?;
    connection.send(frame).map_err(|error| error.to_string())
}

/// Reads the answer to ApiVersions. A broker that does not know the version we sent answers in version 0
/// with error 35, and since KIP-511 with its own range of this key.
fn read_api_versions(frame: &[u8], sent: i16) -> Result<Versions, String> {
    let malformed = |error: &dyn std::fmt::Display| format!("malformed ApiVersions: {error}");
    let mut body = Bytes::copy_from_slice(frame);
    let correlation = body.try_get_i32().map_err(|error| malformed(&error))?;
    if correlation != OPENING_CORRELATION {
        return Err(malformed(&format_args!("correlation id {correlation}")));
    }
    let code = body.first_chunk::<2>().map_or(0, |code| i16::from_be_bytes(*code));
    let refused = ErrorCode::try_from_code(code) == Some(ErrorCode::UnsupportedVersion);
    let version = if refused { 0 } else { sent };
    let response = ApiVersionsResponse::decode(&mut body, version).map_err(|error| malformed(&error))?;
    let ranges: BTreeMap<i16, VersionRange> = response
        .api_keys
        .iter()
        .map(|key| (key.api_key, VersionRange { min: key.min_version, max: key.max_version }))
        .collect();
    if refused {
        let theirs = ranges.get(&(ApiKey::ApiVersions as i16)).map_or(0, |range| range.max);
        return if theirs < sent {
            Ok(Versions::AskAgain(theirs.max(0)))
        } else {
            Err(malformed(&"it refuses its own version"))
        };
    }
    match ErrorCode::try_from_code(code) {
        None => Ok(Versions::Known(ranges)),
        Some(code) => Err(format!("ApiVersions: {}", super::code_name(code))),
    }
}

/// A whole request frame, its length in front.
pub fn encode<R: Encodable + HeaderVersion + Request>(
    request: &R,
    version: i16,
    correlation: i32,
    client_id: &str,
) -> Result<Bytes> {
    let failed = |reason: String| ClientError::Encode { what: what::<R>(), reason };
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(Some(StrBytes::from_string(client_id.to_owned())));
    let size = request.compute_size(version).map_err(|error| failed(error.to_string()))?;
    let mut frame = BytesMut::with_capacity(size + client_id.len() + 32);
    frame.put_i32(0);
    encode_request_header_into_buffer(&mut frame, &header).map_err(|error| failed(error.to_string()))?;
    request.encode(&mut frame, version).map_err(|error| failed(error.to_string()))?;
    let length = i32::try_from(frame.len() - 4).map_err(|error| failed(error.to_string()))?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame.freeze())
}

/// Reads the body of an answer to `R`.
pub fn decode<R: Request>(version: i16, mut body: Bytes) -> Result<R::Response> {
    R::Response::decode(&mut body, version)
        .map_err(|error| ClientError::Malformed { what: what::<R>(), reason: error.to_string() })
}

fn what<R: Request>() -> String {
    ApiKey::try_from(R::KEY).map_or_else(|()| format!("key {}", R::KEY), |api| format!("{api:?}"))
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
