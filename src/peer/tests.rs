//! Two nodes and strangers on loopback, in one process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::*;
use crate::base::PROCESS;
use crate::io::net::{Acceptor, Listener};
use crate::io::runtime::{run_shard, sleep};
use crate::io::threads::FileThreads;

const ONE: BrokerId = BrokerId(1);
const TWO: BrokerId = BrokerId(2);
const LIMIT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);

fn identity(node: BrokerId) -> Identity {
    Identity {
        cluster_id: "cluster".to_owned(),
        node,
        directory: Uuid::from_u128(node.0 as u128),
        incarnation: Uuid::new_v4(),
    }
}

fn secret(byte: u8) -> Security {
    Security::Secret(Secret::new(vec![byte; 32]).unwrap())
}

/// Sends the body back; keeps silent about RaftTransfer.
#[derive(Default)]
struct Echo {
    asked: Cell<usize>,
    /// Clients of Kafka's, where they are taken.
    taken: RefCell<Option<Vec<KafkaClient>>>,
}

impl Service for Echo {
    fn answer<'a>(&'a self, from: &'a Identity, request: &'a Request) -> Answering<'a> {
        assert_eq!(from.node, ONE);
        self.asked.set(self.asked.get() + 1);
        Box::pin(async move {
            match request.key {
                PeerKey::RaftTransfer => std::future::pending().await,
                PeerKey::RaftSnapshot => Err(PeerError::Malformed("for the test")),
                _ => Ok(request.body.to_vec()),
            }
        })
    }

    fn take(&self, client: KafkaClient) -> Result<(), &'static str> {
        self.taken.borrow_mut().as_mut().map(|taken| taken.push(client)).ok_or("nobody takes it")
    }
}

/// Node 2 as it runs.
struct Node {
    acceptor: Acceptor,
    server: Rc<Server>,
    roster: Rc<Roster>,
    service: Rc<Echo>,
}

impl Node {
    fn start(address: SocketAddr, security: Security) -> Self {
        let listener = Listener::bind(address, 64).unwrap();
        let (doorway, arrivals) = arrivals();
        let roster = Rc::new(Roster::new([(ONE, ("127.0.0.1".to_owned(), 1))].into(), Vec::new()));
        let service = Rc::new(Echo::default());
        let server = Server::start(identity(TWO), security, roster.clone(), arrivals, service.clone());
        Self { acceptor: doorway.open(listener).unwrap(), server, roster, service }
    }

    fn address(&self) -> SocketAddr {
        self.acceptor.local_addr()
    }

    fn stop(self) {
        self.server.stop();
        self.acceptor.stop();
    }
}

/// Node 1's links to node 2 at `address`.
fn links(identity: Identity, security: Security, address: SocketAddr, threads: &FileThreads) -> Rc<Links> {
    let addresses = BTreeMap::from([(TWO, ("localhost".to_owned(), address.port()))]);
    Links::new(identity, security, Rc::new(Roster::new(addresses, Vec::new())), threads.clone())
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn on_a_shard<Fut: Future<Output = ()> + 'static>(test: impl FnOnce(FileThreads) -> Fut + Send + 'static) {
    let threads = FileThreads::start("peer-test", 1, 64).unwrap();
    let pool = threads.clone();
    run_shard("peer-test", move || test(pool));
    threads.stop();
}

async fn refusal_of(links: &Rc<Links>) -> ErrorCode {
    match links.link(TWO, Lane::Beat).call(PeerKey::RaftVote, b"x", LIMIT).await {
        Err(PeerError::Refused(refusal)) => refusal.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nodes_that_know_each_other_talk_with_and_without_a_secret() {
    on_a_shard(|threads| async move {
        for security in [Security::Loopback, Security::Open, secret(1)] {
            let node = Node::start(any_port(), security.clone());
            let links = links(identity(ONE), security, node.address(), &threads);
            let long = vec![7; 5 << 20];
            for body in [&b"one"[..], b"", &long, b"two"] {
                for lane in [Lane::Append, Lane::Beat] {
                    let answer = links.link(TWO, lane).call(PeerKey::RaftAppend, body, LIMIT).await.unwrap();
                    assert!(answer == body, "{} bytes", answer.len());
                }
            }
            let link = links.link(TWO, Lane::Vote);
            let calls = (0..50u8).map(|number| {
                let link = link.clone();
                async move { link.call(PeerKey::RaftVote, &[number], LIMIT).await.unwrap()[0] == number }
            });
            assert!(futures::future::join_all(calls).await.into_iter().all(|is_right| is_right));
            let met = BTreeMap::from([(ONE, Uuid::from_u128(1))]);
            assert_eq!(node.roster.unpinned(), met);
            node.stop();
        }
    });
}

#[test]
fn who_does_not_know_the_secret_is_refused_and_asks_nothing() {
    on_a_shard(|threads| async move {
        let pairs = [(secret(1), secret(2)), (secret(1), Security::Open), (Security::Open, secret(1))];
        for (theirs, ours) in pairs {
            let node = Node::start(any_port(), theirs);
            let links = links(identity(ONE), ours, node.address(), &threads);
            assert_eq!(refusal_of(&links).await, ErrorCode::ClusterAuthorizationFailed);
            assert_eq!(node.service.asked.get(), 0);
            assert!(node.roster.unpinned().is_empty());
            node.stop();
        }
    });
}

#[test]
fn strangers_and_nodes_with_another_disk_are_refused_with_the_reason() {
    on_a_shard(|threads| async move {
        let node = Node::start(any_port(), Security::Loopback);
        let at = node.address();
        let dial = |identity| links(identity, Security::Loopback, at, &threads);
        let other_cluster = Identity { cluster_id: "other".to_owned(), ..identity(ONE) };
        assert_eq!(refusal_of(&dial(other_cluster)).await, ErrorCode::InconsistentClusterId);
        assert_eq!(refusal_of(&dial(identity(BrokerId(9)))).await, ErrorCode::ClusterAuthorizationFailed);
        assert_eq!(refusal_of(&dial(identity(TWO))).await, ErrorCode::DuplicateBrokerRegistration);
        node.roster.pin([(ONE, Uuid::from_u128(99))].into());
        assert_eq!(refusal_of(&dial(identity(ONE))).await, ErrorCode::InvalidVoterKey);
        node.roster.pin([(ONE, Uuid::from_u128(1))].into());
        let welcome = dial(identity(ONE));
        // What the dialler knows of the other's disk counts as well.
        welcome.roster().pin([(TWO, Uuid::from_u128(99))].into());
        assert_eq!(refusal_of(&welcome).await, ErrorCode::InvalidVoterKey);
        // Also where the other has no vote: it would be sent what its log is not.
        let sending = dial(identity(ONE));
        sending.roster().pin_members([(TWO, Uuid::from_u128(99))].into());
        assert_eq!(refusal_of(&sending).await, ErrorCode::InvalidVoterKey);
        sending.roster().pin_members([(TWO, identity(TWO).directory)].into());
        // Another node at the address of node 2.
        let addresses = BTreeMap::from([(BrokerId(3), ("127.0.0.1".to_owned(), at.port()))]);
        let lost = Links::new(
            identity(ONE),
            Security::Loopback,
            Rc::new(Roster::new(addresses, Vec::new())),
            threads.clone(),
        );
        match lost.link(BrokerId(3), Lane::Beat).call(PeerKey::RaftVote, b"", LIMIT).await {
            Err(PeerError::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::InvalidVoterKey),
            other => panic!("{other:?}"),
        }
        assert_eq!(node.service.asked.get(), 0);
        node.stop();
    });
}

#[test]
fn a_node_that_is_no_controller_asks_what_brokers_may_and_does_not_vote() {
    on_a_shard(|threads| async move {
        let node = Node::start(any_port(), secret(1));
        // Node 2 knows nobody: node 1 is any broker.
        node.roster.set(BTreeMap::new());
        let by_address = vec![("localhost".to_owned(), node.address().port())];
        let roster = Rc::new(Roster::new(BTreeMap::new(), by_address));
        let links = Links::new(identity(ONE), secret(1), roster, threads.clone());
        let server = links.roster().servers().next().unwrap();
        let link = links.link(server, Lane::Observe);
        assert_eq!(link.call(PeerKey::FetchLog, b"log", LIMIT).await.unwrap(), &b"log"[..]);
        let vote = link.call(PeerKey::RaftVote, b"", LIMIT).await;
        assert!(matches!(vote, Err(PeerError::Closed | PeerError::Io(_))), "{vote:?}");
        match links.link(server, Lane::Vote).call(PeerKey::RaftVote, b"", LIMIT).await {
            Err(PeerError::Refused(refusal)) => {
                assert_eq!(refusal.code, ErrorCode::ClusterAuthorizationFailed);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(node.service.asked.get(), 1);
        assert!(node.roster.unpinned().is_empty(), "its directory matters to nobody");
        node.stop();
    });
}

#[test]
fn a_client_of_kafkas_is_given_away_with_all_that_it_has_sent() {
    on_a_shard(|threads| async move {
        let node = Node::start(any_port(), secret(1));
        let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0, 0];
        let knock = || TcpStream::connect(node.address()).unwrap();
        // Where nobody takes it, it is closed.
        let mut refused = knock();
        refused.write_all(&request).unwrap();
        refused.set_nonblocking(true).unwrap();
        let begun = Instant::now();
        while !matches!(refused.read(&mut [0]), Ok(0)) {
            assert!(begun.elapsed() < LIMIT);
            sleep(Duration::from_millis(2)).await;
        }
        *node.service.taken.borrow_mut() = Some(Vec::new());
        let mut client = knock();
        // Of two bytes nobody knows what they are.
        for part in [&request[..2], &request[2..5], &request[5..]] {
            client.write_all(part).unwrap();
            sleep(Duration::from_millis(20)).await;
        }
        let begun = Instant::now();
        let taken = loop {
            if let Some(taken) = node.service.taken.borrow_mut().as_mut().and_then(Vec::pop) {
                break taken;
            }
            assert!(begun.elapsed() < LIMIT);
            sleep(Duration::from_millis(2)).await;
        };
        assert!(taken.is_local && taken.peer == client.local_addr().unwrap());
        let mut other = TcpStream::from(taken.fd);
        let mut received = [0; 14];
        other.read_exact(&mut received).unwrap();
        assert_eq!(received, request);
        other.write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer", "it is open");
        assert_eq!(node.service.asked.get(), 0);
        // Peers come in as before.
        let links = links(identity(ONE), secret(1), node.address(), &threads);
        assert!(links.link(TWO, Lane::Beat).call(PeerKey::RaftVote, b"", LIMIT).await.is_ok());
        node.stop();
    });
}

#[test]
fn a_peer_that_does_not_answer_costs_its_lane_the_callers_limit_and_no_more() {
    on_a_shard(|threads| async move {
        let node = Node::start(any_port(), secret(1));
        let links = links(identity(ONE), secret(1), node.address(), &threads);
        let slow = links.link(TWO, Lane::Vote);
        slow.call(PeerKey::RaftVote, b"", LIMIT).await.unwrap();
        let begun = Instant::now();
        let (silent, beat) = futures::join!(slow.call(PeerKey::RaftTransfer, b"", SHORT), async {
            let answer = links.link(TWO, Lane::Beat).call(PeerKey::RaftAppend, b"beat", LIMIT).await;
            (answer, begun.elapsed())
        });
        assert!(matches!(silent, Err(PeerError::TimedOut(_))), "{silent:?}");
        assert!(begun.elapsed() < LIMIT / 4);
        assert_eq!(beat.0.unwrap(), &b"beat"[..]);
        // A late answer would be taken for this one's: it goes over another connection.
        assert_eq!(slow.call(PeerKey::RaftVote, b"next", LIMIT).await.unwrap(), &b"next"[..]);
        node.stop();
    });
}

#[test]
fn a_node_that_comes_back_is_reached_again_and_one_that_is_away_is_not_asked_all_the_time() {
    on_a_shard(|threads| async move {
        let node = Node::start(any_port(), Security::Loopback);
        let address = node.address();
        let links = links(identity(ONE), Security::Loopback, address, &threads);
        let link = links.link(TWO, Lane::Beat);
        link.call(PeerKey::RaftVote, b"", LIMIT).await.unwrap();
        node.stop();
        let mut pauses = 0;
        for _ in 0..200 {
            match link.call(PeerKey::RaftVote, b"", LIMIT).await {
                Err(PeerError::Pause) => pauses += 1,
                Err(_) => {}
                Ok(_) => panic!("nobody is there"),
            }
        }
        assert!(pauses > 150, "{pauses}");
        let node = Node::start(address, Security::Loopback);
        let begun = Instant::now();
        while link.call(PeerKey::RaftVote, b"", LIMIT).await.is_err() {
            assert!(begun.elapsed() < LIMIT);
            sleep(Duration::from_millis(5)).await;
        }
        node.stop();
    });
}

/// Leads one connection to `to`, after a while.
fn long_way(to: SocketAddr, delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind(any_port()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        std::thread::sleep(delay);
        let far = TcpStream::connect(to).unwrap();
        std::thread::scope(|scope| {
            // Ends with either end.
            scope.spawn(|| drop(std::io::copy(&mut &near, &mut &far)));
            let _ = std::io::copy(&mut &far, &mut &near);
        });
    });
    address
}

#[test]
fn a_connection_that_takes_longer_than_its_caller_waits_is_there_for_the_next_one() {
    on_a_shard(|threads| async move {
        let node = Node::start(any_port(), secret(1));
        let way = long_way(node.address(), 3 * SHORT);
        let links = links(identity(ONE), secret(1), way, &threads);
        let link = links.link(TWO, Lane::Beat);
        let given_up = link.call(PeerKey::RaftVote, b"first", SHORT).await;
        assert!(matches!(given_up, Err(PeerError::TimedOut(_))), "{given_up:?}");
        assert_eq!(link.call(PeerKey::RaftVote, b"second", LIMIT).await.unwrap(), &b"second"[..]);
        assert_eq!(node.service.asked.get(), 1, "what was given up is not asked");
        node.stop();
    });
}

#[test]
fn an_error_of_the_service_closes_the_connection() {
    on_a_shard(|threads| async move {
        let node = Node::start(any_port(), Security::Loopback);
        let links = links(identity(ONE), Security::Loopback, node.address(), &threads);
        let link = links.link(TWO, Lane::Snapshot);
        let closed = link.call(PeerKey::RaftSnapshot, b"", LIMIT).await;
        assert!(matches!(closed, Err(PeerError::Closed | PeerError::Io(_))), "{closed:?}");
        assert!(link.call(PeerKey::RaftVote, b"", LIMIT).await.is_ok());
        node.stop();
    });
}

#[test]
fn strangers_that_say_nothing_or_rubbish_keep_nobody_out() {
    on_a_shard(|threads| async move {
        let node = Node::start(any_port(), secret(1));
        let address = node.address();
        let talk = move || {
            let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
            for first in
                [&i32::MAX.to_be_bytes()[..], &(-1i32).to_be_bytes(), b"\0\0\x10\x01", b"\0\0\0\x08GET /..."]
            {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                stream.write_all(first).unwrap();
                // Nothing, or a reset for what it has not read.
                assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "{first:?} is answered");
            }
            silent
        };
        let closed_before = PROCESS.strangers_closed.get();
        let silent = threads.run("strangers", talk).await;
        let links = links(identity(ONE), secret(1), address, &threads);
        let answer = links.link(TWO, Lane::Beat).call(PeerKey::RaftVote, b"in", LIMIT).await;
        assert_eq!(answer.unwrap(), &b"in"[..]);
        assert_eq!(node.service.asked.get(), 1);
        assert!(PROCESS.strangers_closed.get() >= closed_before + 50);
        drop(silent);
        node.stop();
    });
}
