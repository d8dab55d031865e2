//! The other end: takes connections of other nodes in and hands what they ask to a [`Service`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::connection::Connection;
use super::frame::OWN_KEYS_FROM;
use super::hello::{self, Hello};
use super::links::is_on_this_machine;
use super::roster::Roster;
use super::told::Told;
use super::{Identity, Lane, PeerError, PeerKey, RECEIVE_BYTES_MAX, Refusal, Request, Security, within};
use crate::base::{BrokerId, PROCESS, clock};
use crate::io::chunk::ChunkPool;
use crate::io::net::{Acceptor, Listener, Socket, SocketCloser, SocketOptions};
use crate::io::runtime::{Mailbox, Queue, Sender, mailbox, spawn};
use crate::wire::ErrorCode;

/// Connections of peers that have not said who they are. One more, and the oldest of them is closed for it.
const STRANGERS_MAX: usize = 32;
/// How long one may take to say it.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);
/// The length and the key of its first request, which tells what the other end speaks.
const FIRST_BYTES: usize = 6;
/// Connections that are open or on their way to the shard; more are closed at once.
const CONNECTIONS_MAX: usize = 1024;

/// Answers what peers ask.
pub trait Service {
    /// The body of the answer; after an error the connection is closed.
    fn answer<'a>(&'a self, from: &'a Identity, request: &'a Request) -> Answering<'a>;

    /// Takes over the connection of a client of Kafka's.
    ///
    /// # Errors
    /// Why it is closed instead.
    fn take(&self, _client: KafkaClient) -> Result<(), &'static str> {
        Err("it does not begin with a hello")
    }
}

/// A connection that begins with a request of Kafka's where a peer says hello. Nothing of it has been received.
pub struct KafkaClient {
    pub fd: OwnedFd,
    pub peer: SocketAddr,
    /// Both ends are on this machine.
    pub is_local: bool,
}

/// An answer to come.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, PeerError>> + 'a>>;

/// A connection on its way to the shard.
struct Arrival {
    fd: OwnedFd,
    peer: SocketAddr,
    place: Place,
}

/// A connection's part of [`CONNECTIONS_MAX`].
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The accepting end of a listener's connections; any thread.
#[derive(Clone)]
pub struct Doorway(Sender<Arrival>);

/// What came through the [`Doorway`], for the shard that serves it.
pub struct Arrivals(Mailbox<Arrival>);

/// Makes the two.
pub fn arrivals() -> (Doorway, Arrivals) {
    let (sender, mailbox) = mailbox();
    (Doorway(sender), Arrivals(mailbox))
}

impl Doorway {
    /// Starts to accept.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn open(self, listener: Listener) -> std::io::Result<Acceptor> {
        let count = Arc::new(AtomicUsize::new(0));
        listener.accept_with(move |fd, peer| {
            let before = count.fetch_add(1, Ordering::Relaxed);
            let place = Place(count.clone());
            if before >= CONNECTIONS_MAX {
                PROCESS.peers_refused.increment();
                tracing::warn!(%peer, "connection of a peer refused: {CONNECTIONS_MAX} are open");
                return;
            }
            // Refused: the shard has stopped, and the connection is closed with it.
            let _ = self.0.push(Arrival { fd, peer, place });
        })
    }
}

/// The connections that were taken in; lives on one shard.
pub struct Server {
    identity: Identity,
    security: Security,
    roster: Rc<Roster>,
    pool: ChunkPool,
    service: Rc<dyn Service>,
    /// Of whom nothing is known yet, oldest first.
    strangers: RefCell<BTreeMap<u64, Stranger>>,
    /// A node has one connection of each lane: a second one takes the first one's place.
    peers: RefCell<HashMap<(BrokerId, Lane), (u64, SocketCloser)>>,
    next: Cell<u64>,
    told: Told,
    stopped: Cell<bool>,
}

/// Whoever has not said who it is.
struct Stranger {
    from: SocketAddr,
    closer: SocketCloser,
}

impl Server {
    /// Serves whoever comes until [`Server::stop`].
    pub fn start(
        identity: Identity,
        security: Security,
        roster: Rc<Roster>,
        arrivals: Arrivals,
        service: Rc<dyn Service>,
    ) -> Rc<Self> {
        let server = Rc::new(Self {
            identity,
            security,
            roster,
            pool: ChunkPool::new(RECEIVE_BYTES_MAX),
            service,
            strangers: RefCell::default(),
            peers: RefCell::default(),
            next: Cell::new(0),
            told: Told::default(),
            stopped: Cell::new(false),
        });
        let (taker, Arrivals(mut mailbox)) = (server.clone(), arrivals);
        spawn(Queue::Control, "new peers", async move {
            let mut batch = Vec::new();
            while mailbox.drain_into(&mut batch).await > 0 {
                batch.drain(..).for_each(|arrival| taker.take_in(arrival));
            }
        })
        .detach();
        server
    }

    /// Closes all connections and takes no more.
    pub fn stop(&self) {
        self.stopped.set(true);
        self.strangers.borrow().values().for_each(|stranger| stranger.closer.close());
        self.peers.borrow().values().for_each(|(_, closer)| closer.close());
    }

    fn take_in(self: &Rc<Self>, arrival: Arrival) {
        if self.stopped.get() {
            return;
        }
        let Ok(socket) = Socket::adopt(arrival.fd, &SocketOptions::default()) else { return };
        let number = self.next.replace(self.next.get() + 1);
        let mut strangers = self.strangers.borrow_mut();
        if strangers.len() >= STRANGERS_MAX
            && let Some((_, oldest)) = strangers.pop_first()
        {
            PROCESS.strangers_closed.increment();
            let peer = oldest.from;
            tracing::warn!(
                %peer,
                "a connection is closed that has not said hello: {STRANGERS_MAX} others have not either"
            );
            oldest.closer.close();
        }
        strangers.insert(number, Stranger { from: arrival.peer, closer: socket.closer() });
        drop(strangers);
        let (server, peer) = (self.clone(), arrival.peer);
        spawn(Queue::Control, "peer", async move {
            let _place = arrival.place;
            if let Err(error) = server.serve(socket, number).await
                && let Some(left_out) = server.told.of_comer(peer.ip(), &error, clock::monotonic())
            {
                tracing::info!(%peer, "connection of a peer closed: {error}{left_out}");
            }
            server.strangers.borrow_mut().remove(&number);
            server.peers.borrow_mut().retain(|_, (other, _)| *other != number);
        })
        .detach();
    }

    async fn serve(&self, socket: Socket, number: u64) -> Result<(), PeerError> {
        if matches!(self.security, Security::Loopback) && !is_on_this_machine(&socket) {
            let text = "it comes from another machine, and there is no secret";
            return Err(Refusal::new(ErrorCode::ClusterAuthorizationFailed, text).into());
        }
        let mut first = [0; FIRST_BYTES];
        let received = within(HELLO_TIME_MAX, async { Ok(socket.peek(&mut first).await?) }).await?;
        if received < FIRST_BYTES {
            return Ok(());
        }
        let [.., high, low] = first;
        if i16::from_be_bytes([high, low]) < OWN_KEYS_FROM {
            return self.let_go(&socket, number);
        }
        let mut connection = Connection::new(socket, &self.pool);
        let Some((peer, lane)) = within(HELLO_TIME_MAX, self.greet(&mut connection)).await? else {
            return Ok(());
        };
        if self.strangers.borrow_mut().remove(&number).is_none() {
            // It was closed for another one at this moment.
            return Ok(());
        }
        let earlier = self.peers.borrow_mut().insert((peer.node, lane), (number, connection.closer()));
        if let Some((_, earlier)) = earlier {
            earlier.close();
        }
        while let Some(request) = connection.next_request().await? {
            // Whoever has no vote is let in on the brokers' lanes, and is not to stand for election there.
            if lane.is_brokers() && request.key.is_rafts() {
                return Err(PeerError::Malformed("a controller's request on a broker's lane"));
            }
            let answer = self.service.answer(&peer, &request).await?;
            connection.answer(&request, &answer).await?;
        }
        Ok(())
    }

    /// Hands a client of Kafka's on to whoever serves such.
    fn let_go(&self, socket: &Socket, number: u64) -> Result<(), PeerError> {
        if self.strangers.borrow_mut().remove(&number).is_none() {
            return Ok(());
        }
        let (peer, is_local) = (socket.peer_addr(), is_on_this_machine(socket));
        let client = KafkaClient { fd: socket.hand_over()?, peer, is_local };
        self.service.take(client).map_err(PeerError::Malformed)
    }

    /// Who it is and what the connection is for; `None` when it goes away without a word.
    async fn greet(&self, connection: &mut Connection) -> Result<Option<(Identity, Lane)>, PeerError> {
        let secret = self.security.secret();
        let Some(request) = connection.next_request().await? else { return Ok(None) };
        if request.key != PeerKey::Hello {
            return Err(PeerError::Malformed("it does not begin with a hello"));
        }
        let hello = Hello::decode(&request.body)?;
        if let Err(refusal) = self.check(&hello) {
            connection.answer(&request, &hello::refusal(Some(&refusal))).await?;
            return Err(refusal.into());
        }
        let (answer, talk) = hello::accept(&request.body, &self.identity, secret);
        connection.answer(&request, &answer).await?;
        let Some(request) = connection.next_request().await? else { return Ok(None) };
        if request.key != PeerKey::Proof || !talk.is_dialler_proof(secret, &request.body) {
            let text = format!("Node {} does not have the secret of this cluster.", hello.identity.node);
            let refusal = Refusal::new(ErrorCode::ClusterAuthorizationFailed, text);
            connection.answer(&request, &hello::refusal(Some(&refusal))).await?;
            return Err(refusal.into());
        }
        connection.answer(&request, &hello::refusal(None)).await?;
        connection.trust(talk.seals(secret));
        self.roster.met(&hello.identity);
        Ok(Some((hello.identity, hello.lane)))
    }

    fn check(&self, hello: &Hello) -> Result<(), Refusal> {
        self.roster.admit(&self.identity, &hello.identity, hello.lane)?;
        // Below 0: whoever is there.
        if hello.wants.0 >= 0 && hello.wants != self.identity.node {
            let text = format!("This is node {}, not {}.", self.identity.node, hello.wants);
            return Err(Refusal::new(ErrorCode::InvalidVoterKey, text));
        }
        Ok(())
    }
}
