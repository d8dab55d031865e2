//! The ways to the other nodes: a connection per node and lane, dialled when it is needed.
//!
//! A dial is a task of its own: whoever waits for it may have less time than the hello takes (a heartbeat has a tenth of
//! what it takes to replace a controller), and the next one finds what has become of it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use tokio::sync::{Mutex, oneshot};

use super::connection::Connection;
use super::hello::{self, Hello};
use super::roster::Roster;
use super::{Identity, Lane, PeerError, PeerKey, RECEIVE_BYTES_MAX, Refusal, Security, within};
use crate::base::BrokerId;
use crate::base::clock::{self, Monotonic};
use crate::base::random::Random;
use crate::io::chunk::ChunkPool;
use crate::io::net::{Socket, SocketOptions};
use crate::io::runtime::{Queue, spawn};
use crate::io::threads::FileThreads;
use crate::wire::ErrorCode;

/// After a failed attempt the next comes so much later, twice that after the next failure, and so on.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// From the first packet to the end of the hello, whatever the caller's own limit is.
const DIAL_TIME_MAX: Duration = Duration::from_secs(3);

/// All of them; lives on one shard.
pub struct Links {
    identity: Identity,
    security: Security,
    roster: Rc<Roster>,
    /// Names are resolved there.
    threads: FileThreads,
    pool: ChunkPool,
    lines: RefCell<HashMap<(BrokerId, Lane), Rc<Line>>>,
    random: RefCell<Random>,
}

/// The connection of one lane.
#[derive(Default)]
struct Line {
    /// Whoever asks holds the lock until it is answered.
    state: Mutex<State>,
    failures: Cell<u32>,
    /// No attempt before this.
    pause: Cell<Option<Monotonic>>,
}

type Dialled = oneshot::Receiver<Result<Box<Connection>, PeerError>>;

#[derive(Default)]
enum State {
    #[default]
    Closed,
    Dialling(Dialled),
    Open(Box<Connection>),
}

/// One lane to one node.
#[derive(Clone)]
pub struct Link {
    links: Rc<Links>,
    line: Rc<Line>,
    node: BrokerId,
    lane: Lane,
}

/// A call without an answer.
#[derive(Debug)]
pub struct Failed {
    pub error: PeerError,
    /// The other may have got it all the same.
    pub was_sent: bool,
}

impl Links {
    pub fn new(identity: Identity, security: Security, roster: Rc<Roster>, threads: FileThreads) -> Rc<Self> {
        Rc::new(Self {
            identity,
            security,
            roster,
            threads,
            pool: ChunkPool::new(RECEIVE_BYTES_MAX),
            lines: RefCell::default(),
            random: RefCell::new(Random::from_os()),
        })
    }

    /// Costs nothing until something is asked.
    pub fn link(self: &Rc<Self>, node: BrokerId, lane: Lane) -> Link {
        let line = self.lines.borrow_mut().entry((node, lane)).or_default().clone();
        Link { links: self.clone(), line, node, lane }
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub fn roster(&self) -> &Rc<Roster> {
        &self.roster
    }

    async fn dial(&self, node: BrokerId, lane: Lane) -> Result<Connection, PeerError> {
        let (host, port) = self.roster.address(node).ok_or(PeerError::Unknown(node))?;
        let socket = Socket::connect(self.resolve(host, port).await?, &SocketOptions::default()).await?;
        if matches!(self.security, Security::Loopback) && !is_on_this_machine(&socket) {
            let text = format!("{} is not on this machine, and there is no secret.", socket.peer_addr());
            return Err(Refusal::new(ErrorCode::ClusterAuthorizationFailed, text).into());
        }
        let mut connection = Connection::new(socket, &self.pool);
        let secret = self.security.secret();
        // Of a server that is known by its address alone any controller is wanted.
        let wants = BrokerId(node.0.max(-1));
        let hello = Hello { identity: self.identity.clone(), wants, lane }.encode();
        let answer = connection.call(PeerKey::Hello, &hello).await?;
        let (other, talk) = hello::conclude(&hello, &answer, secret)?;
        self.roster.check(&self.identity, &other, node, lane)?;
        let answer = connection.call(PeerKey::Proof, &talk.dialler_proof(secret)).await?;
        hello::conclude_proof(&answer)?;
        connection.trust(talk.seals(secret));
        self.roster.met(&other);
        Ok(connection)
    }

    /// The first address of a name. Looked up anew for each attempt: nodes move.
    async fn resolve(&self, host: String, port: u16) -> Result<SocketAddr, PeerError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(address, port));
        }
        let look_up = move || (host.as_str(), port).to_socket_addrs().map(|mut addresses| addresses.next());
        let found = self.threads.run("resolve", look_up).await?;
        found.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound).into())
    }
}

impl Link {
    /// Asks and waits for the answer; dials first if there is no connection. Whoever asks on the same lane before it
    /// is answered waits its turn, within its own limit. Giving up closes the connection: an answer that comes late
    /// must not be taken for the next one's.
    pub async fn call(&self, key: PeerKey, body: &[u8], limit: Duration) -> Result<Bytes, PeerError> {
        self.call_once(key, body, limit, std::future::pending()).await.map_err(|failed| failed.error)
    }

    /// As [`Link::call`], for what must not be asked twice; given up, too, when `is_hopeless` ends.
    pub async fn call_once(
        &self,
        key: PeerKey,
        body: &[u8],
        limit: Duration,
        is_hopeless: impl Future<Output = ()>,
    ) -> Result<Bytes, Failed> {
        let was_sent = Cell::new(false);
        let asked = within(limit, self.ask(key, body, &was_sent));
        let result = match select(pin!(asked), pin!(is_hopeless)).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(PeerError::Replaced),
        };
        result.map_err(|error| {
            let (node, lane) = (self.node, self.lane);
            tracing::debug!(%node, ?lane, ?key, "peer: {error}");
            Failed { error, was_sent: was_sent.get() }
        })
    }

    async fn ask(&self, key: PeerKey, body: &[u8], was_sent: &Cell<bool>) -> Result<Bytes, PeerError> {
        let mut state = self.line.state.lock().await;
        // Out of the lock while it is in use, so that it is gone when this is given up.
        let mut connection = self.connected(&mut state).await?;
        was_sent.set(true);
        let answer = connection.call(key, body).await?;
        *state = State::Open(connection);
        Ok(answer)
    }

    /// Takes the connection, and waits for it where there is none. Given up, the dial goes on.
    async fn connected(&self, state: &mut State) -> Result<Box<Connection>, PeerError> {
        if let State::Open(_) = state
            && let State::Open(connection) = std::mem::take(state)
            && !connection.has_hung_up()
        {
            return Ok(connection);
        }
        if let State::Closed = state {
            *state = State::Dialling(self.dial()?);
        }
        let State::Dialling(dialled) = state else { return Err(PeerError::Closed) };
        let result = dialled.await;
        *state = State::Closed;
        result.unwrap_or(Err(PeerError::Closed))
    }

    fn dial(&self) -> Result<Dialled, PeerError> {
        if self.line.pause.get().is_some_and(|until| clock::monotonic() < until) {
            return Err(PeerError::Pause);
        }
        let failures = self.line.failures.get();
        let pause = PAUSE_MIN.saturating_mul(1 << failures.min(10)).min(PAUSE_MAX);
        let spread = self.links.random.borrow_mut().below(pause.as_micros() as u64 / 4 + 1);
        self.line.failures.set(failures.saturating_add(1));
        self.line.pause.set(Some(clock::monotonic().plus(pause + Duration::from_micros(spread))));
        let (result, dialled) = oneshot::channel();
        let link = self.clone();
        spawn(Queue::Control, "dial a peer", async move {
            let dialled = within(DIAL_TIME_MAX, link.links.dial(link.node, link.lane)).await.map(Box::new);
            match &dialled {
                Ok(_) => {
                    link.line.failures.set(0);
                    link.line.pause.set(None);
                }
                // The first of a row, and once in a while: a node that is down for a day fills no log.
                Err(error) if failures.is_multiple_of(64) => {
                    tracing::warn!(node = %link.node, lane = ?link.lane, "no connection: {error}");
                }
                Err(_) => {}
            }
            // Nobody may wait any more.
            let _ = result.send(dialled);
        })
        .detach();
        Ok(dialled)
    }
}

impl Security {
    pub(super) fn secret(&self) -> Option<&super::Secret> {
        match self {
            Security::Secret(secret) => Some(secret),
            Security::Loopback | Security::Open => None,
        }
    }
}

pub(super) fn is_on_this_machine(socket: &Socket) -> bool {
    socket.peer_addr().ip().is_loopback() && socket.local_addr().ip().is_loopback()
}
