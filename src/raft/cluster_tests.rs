//! Three quorums on one shard, over real connections on loopback and real files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use super::*;
use crate::io::net::{Acceptor, Listener};
use crate::io::os::OsFiles;
use crate::io::runtime::run_shard;
use crate::metadata::testing::FewRules;
use crate::metadata::{ClusterSettings, CreateTopics, Heartbeat, NewTopic, RegisterBroker, Stamp};
use crate::peer::{self, Answering, Identity, Roster, Secret, Security, Server, Service};
use crate::raft::{ChangingVoters, OpenError};

const NODES: [i32; 3] = [1, 2, 3];
/// Two more that have a port.
const ALL_NODES: [i32; 5] = [1, 2, 3, 4, 5];
const PATIENCE: Duration = Duration::from_secs(40);
/// Long enough for a machine that does much else.
const FAILOVER: Duration = Duration::from_millis(1500);
/// Where no leader is to be lost to such a machine.
const SLOW_FAILOVER: Duration = Duration::from_secs(15);

struct Trio {
    dir: tempfile::TempDir,
    threads: FileThreads,
    ports: BTreeMap<BrokerId, u16>,
    running: BTreeMap<i32, Node>,
    failover: Duration,
    snapshot_entries: u64,
    snapshot_bytes: u64,
    entries_kept: u64,
    /// Of brokers, which have none else.
    session: Option<Duration>,
}

struct Node {
    quorum: Rc<Quorum>,
    server: Rc<Server>,
    acceptor: Acceptor,
}

struct Peers(Rc<Quorum>);

impl Service for Peers {
    fn answer<'a>(&'a self, from: &'a Identity, request: &'a Request) -> Answering<'a> {
        Box::pin(self.0.serve(from, request))
    }
}

fn bind(port: u16) -> Listener {
    let begun = Instant::now();
    loop {
        match Listener::bind(SocketAddr::from(([127, 0, 0, 1], port)), 64) {
            Ok(listener) => return listener,
            Err(error) if begun.elapsed() > PATIENCE => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn directory(node: i32) -> Uuid {
    Uuid::from_u128(1000 + node as u128)
}

impl Trio {
    fn new(threads: FileThreads) -> Self {
        // All are bound before one is let go: no port is given twice.
        let listeners: Vec<Listener> = ALL_NODES.iter().map(|_| bind(0)).collect();
        let ports = ALL_NODES.iter().zip(&listeners);
        let ports = ports.map(|(id, listener)| (BrokerId(*id), listener.local_addr().port()));
        Self {
            dir: tempfile::tempdir().unwrap(),
            threads,
            ports: ports.collect(),
            running: BTreeMap::new(),
            failover: FAILOVER,
            snapshot_entries: 10_000,
            snapshot_bytes: 8 << 20,
            entries_kept: 500,
            session: None,
        }
    }

    async fn started(threads: FileThreads) -> Self {
        let mut trio = Self::new(threads);
        trio.start_all().await;
        trio
    }

    async fn start_all(&mut self) {
        for node in NODES {
            self.start(node).await;
        }
    }

    fn settings(&self, node: i32, directory: Uuid, voters: &[i32]) -> Settings {
        let identity = Identity {
            cluster_id: "cluster".to_owned(),
            node: BrokerId(node),
            directory,
            incarnation: Uuid::new_v4(),
        };
        let addresses =
            voters.iter().map(|id| (BrokerId(*id), ("127.0.0.1".to_owned(), self.ports[&BrokerId(*id)])));
        let roster = Rc::new(Roster::new(addresses.collect(), Vec::new()));
        let security = Security::Secret(Secret::new(vec![9; 32]).unwrap());
        let changing = ChangingVoters {
            are_named: true,
            address: ("127.0.0.1".to_owned(), self.ports[&BrokerId(node)]),
            first: Vec::new(),
            joins_by_itself: false,
            silence_max: Duration::from_secs(300),
        };
        Settings {
            changing: Some(changing),
            peers: Some(Links::new(identity, security, roster, self.threads.clone())),
            timing: Timing::of(self.failover),
            snapshot_entries: self.snapshot_entries,
            snapshot_bytes: self.snapshot_bytes,
            entries_kept: self.entries_kept,
            on_failure: Rc::new(|reason| panic!("{reason}")),
            controller: ControllerSettings {
                cluster: self.session.map(|session_timeout| ClusterSettings {
                    session_timeout,
                    rebalance_interval: None,
                    unclean_interval: Duration::from_secs(300),
                    stamp: Stamp { elr: true, min_isr: 1, unclean_election: false },
                }),
                ..ControllerSettings::default()
            },
            ..Settings::new(BrokerId(node), "cluster", self.dir.path().join(format!("node-{node}")))
        }
    }

    async fn open(&self, settings: Settings) -> Result<Rc<Quorum>, OpenError> {
        Quorum::open(OsFiles, self.threads.clone(), Rc::new(FewRules), settings).await
    }

    async fn start(&mut self, node: i32) {
        let settings = self.settings(node, directory(node), &NODES);
        self.start_with(node, settings).await;
    }

    async fn start_with(&mut self, node: i32, settings: Settings) {
        let Some(links) = settings.peers.clone() else { panic!("it has peers") };
        let listener = bind(self.ports[&BrokerId(node)]);
        let quorum = self.open(settings).await.unwrap();
        let (doorway, arrivals) = peer::arrivals();
        let security = Security::Secret(Secret::new(vec![9; 32]).unwrap());
        let (identity, roster) = (links.identity().clone(), links.roster().clone());
        let server = Server::start(identity, security, roster, arrivals, Rc::new(Peers(quorum.clone())));
        let acceptor = doorway.open(listener).unwrap();
        self.running.insert(node, Node { quorum, server, acceptor });
    }

    /// Cuts its connections, then ends it.
    async fn stop(&mut self, node: i32) {
        let Some(Node { quorum, server, acceptor }) = self.running.remove(&node) else { panic!("it runs") };
        acceptor.stop();
        server.stop();
        quorum.shutdown().await;
    }

    /// Lets it end what it does, with its connections.
    async fn stop_in_order(&mut self, node: i32) {
        let Some(Node { quorum, server, acceptor }) = self.running.remove(&node) else { panic!("it runs") };
        quorum.shutdown().await;
        server.stop();
        acceptor.stop();
    }

    async fn stop_all(mut self) {
        for node in ALL_NODES {
            if self.running.contains_key(&node) {
                self.stop(node).await;
            }
        }
    }

    fn quorum(&self, node: i32) -> &Quorum {
        &self.running[&node].quorum
    }

    /// The one that leads, as soon as one does.
    async fn leader(&self) -> i32 {
        let leads = |node: &&i32| self.quorum(**node).leadership().is_own;
        eventually("one leads", || self.running.keys().find(leads).copied()).await
    }

    /// What it was told is on all that run.
    async fn await_topics(&self, count: usize) {
        for node in self.running.keys() {
            let has_all = || (self.quorum(*node).image().topic_count() == count).then_some(());
            eventually(&format!("node {node} has {count} topics"), has_all).await;
        }
    }

    async fn await_pinned(&self) {
        for node in self.running.keys() {
            let calls = self.quorum(*node);
            let pinned = || {
                let metrics = calls.metrics().borrow_watched();
                let is_pinned =
                    metrics.membership_config.nodes().all(|(_, member)| !member.directory.is_nil());
                is_pinned.then_some(())
            };
            eventually("all directories are in the log", pinned).await;
        }
    }

    /// Registers a broker first if there is none. On a busy machine a leader may be lost at any time.
    async fn create(&self, name: &str) {
        let begun = Instant::now();
        while let Err(refusal) = self.try_to_create(name).await {
            let may_be = [ErrorCode::NotController, ErrorCode::RequestTimedOut];
            assert!(may_be.contains(&refusal.code) && begun.elapsed() < PATIENCE, "{name}: {refusal}");
            runtime::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn try_to_create(&self, name: &str) -> Result<Response, Refusal> {
        let leader = self.quorum(self.leader().await);
        if leader.image().brokers().next().is_none() {
            let request = RegisterBroker {
                id: BrokerId(1),
                cluster_id: "cluster".into(),
                incarnation: Uuid::nil(),
                endpoints: Vec::new(),
                rack: None,
                log_dirs: Vec::new(),
                features: Vec::new(),
                fenced: false,
                previous_epoch: None,
            };
            leader.submit(Command::RegisterBroker(request)).await?;
        }
        leader.submit(create(name)).await
    }
}

fn create(name: &str) -> Command {
    let topic = NewTopic {
        name: name.to_owned(),
        partitions: 1,
        replication_factor: 1,
        assignment: Vec::new(),
        configs: Vec::new(),
    };
    Command::CreateTopics(CreateTopics { topics: vec![topic], validate_only: false })
}

async fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        runtime::sleep(Duration::from_millis(10)).await;
    }
}

fn on_a_shard<Fut: Future<Output = ()> + 'static>(test: impl FnOnce(FileThreads) -> Fut + Send + 'static) {
    let threads = FileThreads::start("cluster-test", 3, 64).unwrap();
    let pool = threads.clone();
    run_shard("cluster-test", move || test(pool));
    threads.stop();
}

#[test]
fn three_nodes_elect_one_and_all_know_what_it_was_told() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::new(threads);
        trio.failover = SLOW_FAILOVER;
        trio.start_all().await;
        for number in 0..20 {
            trio.create(&format!("t{number}")).await;
        }
        trio.await_topics(20).await;
        let leader = trio.leader().await;
        let term = trio.quorum(leader).leadership().term;
        for node in NODES {
            let leadership = trio.quorum(node).leadership();
            assert_eq!((leadership.leader, leadership.term), (Some(BrokerId(leader)), term));
            assert_eq!(leadership.is_own, node == leader);
            let images = [node, leader].map(|node| trio.quorum(node).image());
            assert!(images[0].topics().eq(images[1].topics()));
            assert_eq!(images[0].cluster_id(), "cluster");
            if node != leader {
                let refusal = trio.quorum(node).submit(create("no")).await.unwrap_err();
                assert_eq!(refusal.code, ErrorCode::NotController);
                assert_eq!(refusal.message, format!("The controller is node {leader}."));
            }
        }
        trio.stop_all().await;
    });
}

#[test]
fn two_go_on_without_the_leader_and_it_catches_up_when_it_is_back() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::started(threads).await;
        trio.create("before").await;
        trio.await_pinned().await;
        let mut topics = 1;
        for _ in 0..3 {
            let first = trio.leader().await;
            let term = trio.quorum(first).leadership().term;
            trio.stop(first).await;
            let second = trio.leader().await;
            assert!(second != first && trio.quorum(second).leadership().term > term);
            trio.create(&format!("without-{term}")).await;
            topics += 1;
            trio.await_topics(topics).await;
            trio.start(first).await;
            trio.await_topics(topics).await;
        }
        trio.stop_all().await;
    });
}

#[test]
fn a_leader_that_stops_hands_over_before_its_lease_ends() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::new(threads);
        trio.failover = SLOW_FAILOVER;
        trio.start_all().await;
        trio.create("before").await;
        trio.await_topics(1).await;
        let first = trio.leader().await;
        let begun = Instant::now();
        trio.stop_in_order(first).await;
        trio.leader().await;
        let took = begun.elapsed();
        // Otherwise a follower waits for the end of the lease, and then for its own time-out.
        let lease = Timing::of(trio.failover).election_max;
        assert!(took < lease, "{took:?} of {lease:?}");
        trio.create("after").await;
        trio.await_topics(2).await;
        trio.stop_all().await;
    });
}

#[test]
fn a_node_that_is_far_behind_gets_a_snapshot() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::new(threads);
        (trio.snapshot_entries, trio.entries_kept) = (20, 0);
        trio.start_all().await;
        trio.create("first").await;
        trio.await_topics(1).await;
        let away = NODES.into_iter().find(|node| !trio.quorum(*node).leadership().is_own).unwrap();
        trio.stop(away).await;
        for number in 0..100 {
            trio.create(&format!("t{number}")).await;
        }
        trio.start(away).await;
        trio.await_topics(101).await;
        trio.create("last").await;
        trio.await_topics(102).await;
        // From its own disk.
        trio.stop(away).await;
        trio.start(away).await;
        trio.await_topics(102).await;
        trio.stop_all().await;
    });
}

#[test]
fn a_leader_alone_promises_nothing_and_what_it_took_is_decided_once_the_others_are_back() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::started(threads).await;
        trio.create("before").await;
        trio.await_topics(1).await;
        let leader = trio.leader().await;
        let others: Vec<i32> = NODES.into_iter().filter(|node| *node != leader).collect();
        for node in &others {
            trio.stop(*node).await;
        }
        let mut codes = Vec::new();
        for _ in 0..3 {
            let result = trio.quorum(leader).submit(create("alone")).await;
            codes.push(result.unwrap_err().code);
        }
        let may_be = [ErrorCode::RequestTimedOut, ErrorCode::NotController];
        assert!(codes.iter().all(|code| may_be.contains(code)), "{codes:?}");
        assert_eq!(trio.quorum(leader).image().topic_count(), 1);
        for node in &others {
            trio.start(*node).await;
        }
        // It may have been made after all: a second one of the name would be an error of the whole quorum.
        trio.create("alone").await;
        trio.await_topics(2).await;
        trio.stop_all().await;
    });
}

#[test]
fn a_voter_that_lost_its_disk_is_not_spoken_with() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::new(threads);
        trio.failover = SLOW_FAILOVER;
        trio.start_all().await;
        trio.create("before").await;
        trio.await_pinned().await;
        let wiped = NODES.into_iter().find(|node| !trio.quorum(*node).leadership().is_own).unwrap();
        trio.stop(wiped).await;
        let dir = trio.dir.path().join(format!("node-{wiped}"));
        // Its old log under the name of another directory.
        let strange = trio.settings(wiped, Uuid::from_u128(5), &NODES);
        let error = trio.open(strange).await.err().unwrap();
        assert!(matches!(error, OpenError::Directory { .. }), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::remove_file(dir.with_extension("identity")).unwrap();
        let fresh = trio.settings(wiped, Uuid::from_u128(5), &NODES);
        trio.start_with(wiped, fresh).await;
        let term = trio.quorum(trio.leader().await).leadership().term;
        // It would stand for election by then.
        runtime::sleep(Timing::of(trio.failover).election_max * 5 / 4).await;
        let leader = trio.leader().await;
        assert_eq!(trio.quorum(leader).leadership().term, term, "it disturbs nobody");
        assert_eq!(trio.quorum(wiped).image().topic_count(), 0, "it learns nothing");
        trio.create("after").await;
        trio.stop_all().await;
    });
}

#[test]
fn another_list_of_voters_than_the_logs_is_refused() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::started(threads).await;
        trio.leader().await;
        trio.stop(3).await;
        let settings = trio.settings(3, directory(3), &[2, 3]);
        let error = trio.open(settings).await.err().unwrap();
        assert!(matches!(error, OpenError::Voters { .. }), "{error}");
        trio.stop_all().await;
    });
}

#[test]
fn every_node_writes_a_snapshot_after_so_many_bytes() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::new(threads);
        trio.snapshot_bytes = 2000;
        trio.start_all().await;
        for number in 0..40 {
            trio.create(&format!("a-topic-with-a-rather-long-name-{number}")).await;
        }
        for node in NODES {
            let has_one = || {
                let metrics = trio.quorum(node).metrics().borrow_watched();
                metrics.snapshot.map(|snapshot| snapshot.index)
            };
            eventually(&format!("node {node} has a snapshot"), has_one).await;
        }
        trio.stop_all().await;
    });
}

/// Has the leader's answer to a heartbeat, if there is a leader.
async fn beat(trio: &Trio, id: i32, epoch: crate::base::BrokerEpoch) -> Option<crate::metadata::BrokerState> {
    let leads = |node: &&i32| trio.quorum(**node).leadership().is_own;
    let leader = trio.quorum(*trio.running.keys().find(leads)?);
    let beat = Heartbeat {
        id: BrokerId(id),
        epoch,
        metadata_version: leader.image().version(),
        wants_fence: false,
        wants_shutdown: false,
    };
    leader.submit(Command::Heartbeat(beat)).await.ok().map(Response::broker_state)
}

async fn register(trio: &Trio, id: i32) -> crate::base::BrokerEpoch {
    let request = RegisterBroker {
        id: BrokerId(id),
        cluster_id: "cluster".into(),
        incarnation: Uuid::from_u128(id as u128),
        endpoints: Vec::new(),
        rack: None,
        log_dirs: vec![Uuid::from_u128(5000 + id as u128)],
        features: crate::metadata::own_features(),
        fenced: true,
        previous_epoch: None,
    };
    loop {
        let leader = trio.quorum(trio.leader().await);
        match leader.submit(Command::RegisterBroker(request.clone())).await {
            Ok(response) => return response.broker_epoch(),
            Err(_) => runtime::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// When the heartbeat was sent that the answer was to.
async fn beat_until_unfenced(trio: &Trio, id: i32, epoch: crate::base::BrokerEpoch) -> Instant {
    loop {
        let sent = Instant::now();
        if beat(trio, id, epoch).await.is_some_and(|state| !state.is_fenced) {
            return sent;
        }
        runtime::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_broker_that_is_silent_is_fenced_by_whoever_leads() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::new(threads);
        let session = Duration::from_millis(3000);
        trio.session = Some(session);
        trio.start_all().await;
        let silent = register(&trio, 7).await;
        let heard = register(&trio, 8).await;
        beat_until_unfenced(&trio, 8, heard).await;
        let begun = beat_until_unfenced(&trio, 7, silent).await;
        let is_fenced = |trio: &Trio, node: i32, id: i32| {
            trio.quorum(node).image().broker(BrokerId(id)).is_none_or(|broker| broker.fenced)
        };
        while NODES.iter().any(|node| !is_fenced(&trio, *node, 7)) {
            assert!(begun.elapsed() < PATIENCE, "it is not fenced");
            beat(&trio, 8, heard).await;
            runtime::sleep(Duration::from_millis(100)).await;
        }
        assert!(begun.elapsed() >= session / 2, "{:?}", begun.elapsed());
        let all_know = async |trio: &Trio| {
            beat_until_unfenced(trio, 8, heard).await;
            let know = || trio.running.keys().all(|node| !is_fenced(trio, *node, 8)).then_some(());
            eventually("all know that it is not fenced", know).await;
        };
        all_know(&trio).await;
        // The next leader knows nothing of the sessions, and gives a whole one.
        let leader = trio.leader().await;
        trio.stop(leader).await;
        trio.leader().await;
        let tries = Instant::now();
        loop {
            assert!(tries.elapsed() < PATIENCE, "the machine is too busy for heartbeats");
            let mut was_fenced = false;
            let (mut heard_last, mut silence_longest) = (Instant::now(), Duration::ZERO);
            let begun = Instant::now();
            while begun.elapsed() < session * 2 {
                was_fenced |= trio.running.keys().any(|node| is_fenced(&trio, *node, 8));
                if beat(&trio, 8, heard).await.is_some() {
                    silence_longest = silence_longest.max(heard_last.elapsed());
                    heard_last = Instant::now();
                }
                runtime::sleep(Duration::from_millis(100)).await;
            }
            if silence_longest.max(heard_last.elapsed()) < session / 2 {
                assert!(!was_fenced, "though it was heard of at least each {silence_longest:?}");
                break;
            }
            // The machine does so much else that it was silent: it may have been fenced.
            all_know(&trio).await;
        }
        let begun = Instant::now();
        while trio.running.keys().any(|node| !is_fenced(&trio, *node, 8)) {
            assert!(begun.elapsed() < PATIENCE, "it is not fenced");
            runtime::sleep(Duration::from_millis(100)).await;
        }
        trio.stop_all().await;
    });
}

#[test]
fn a_voter_whose_log_was_emptied_does_not_start() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::started(threads).await;
        trio.create("t").await;
        trio.stop(3).await;
        let dir = trio.dir.path().join("node-3");
        std::fs::remove_dir_all(&dir).unwrap();
        let refused = trio.open(trio.settings(3, directory(3), &NODES)).await;
        assert!(matches!(refused, Err(OpenError::Emptied(_))));
        // It begins anew only when it is told to forget that it has voted, which nobody should.
        std::fs::remove_file(dir.with_extension("identity")).unwrap();
        trio.start(3).await;
        trio.await_topics(1).await;
        trio.stop_all().await;
    });
}

#[path = "observer_tests.rs"]
mod observer_tests;

#[path = "voters_tests.rs"]
mod voters_tests;
