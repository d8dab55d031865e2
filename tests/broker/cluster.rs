//! Three processes that form one metadata quorum, through the internal `kuring.cluster.unfinished`: metadata is
//! replicated and outlives the controller.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use super::harness::broker::kuring;
use super::harness::{Broker, PATIENCE, eventually};

const CLUSTER_ID: &str = "kuringTestCluster0000Q";
/// Longer than the default: three nodes share two processors with all other tests.
const FAILOVER_MS: &str = "2000";

pub(super) struct Cluster {
    pub(super) nodes: Vec<Broker>,
}

impl Cluster {
    /// Three formatted nodes with ports of their own, not yet started.
    fn formatted() -> Self {
        // All are bound at once, so that no port is given twice.
        let bound: Vec<TcpListener> =
            (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let ports: Vec<u16> =
            bound.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect();
        drop(bound);
        let voters: Vec<String> =
            ports.iter().zip(1..).map(|(port, id)| format!("{id}@127.0.0.1:{port}")).collect();
        let nodes = ports.iter().zip(1..).map(|(port, id)| {
            let id = format!("{id}");
            let listeners = format!("PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}");
            let voters = voters.join(",");
            let settings = [
                ("node.id", id.as_str()),
                ("listeners", &listeners),
                ("advertised.listeners", "PLAINTEXT://127.0.0.1:0"),
                ("controller.listener.names", "CONTROLLER"),
                ("controller.quorum.voters", &voters),
                ("kuring.cluster.unfinished", "true"),
                ("kuring.quorum.failover.ms", FAILOVER_MS),
                ("kuring.peers.secret.file", "~/secret"),
            ];
            let node = Broker::stopped(1, &settings);
            std::fs::create_dir_all(node.data()).expect("a directory");
            let properties = format!("version=1\ncluster.id={CLUSTER_ID}\nnode.id={id}\n");
            std::fs::write(node.data().join("meta.properties"), properties).expect("written");
            let secret = node.home().join("secret");
            std::fs::write(&secret, "what all three nodes know and nobody else\n").expect("written");
            std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("it is ours");
            node
        });
        Self { nodes: nodes.collect() }
    }

    pub(super) fn start() -> Self {
        let mut cluster = Self::formatted();
        cluster.start_stopped();
        cluster
    }

    /// Starts those that do not run, all at once: one alone waits for a controller.
    pub(super) fn start_stopped(&mut self) {
        std::thread::scope(|scope| {
            for node in self.nodes.iter_mut().filter(|node| !node.runs()) {
                scope.spawn(|| node.start_again(1));
            }
        });
    }

    pub(super) fn running(&self) -> impl Iterator<Item = (usize, &Broker)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.runs())
    }

    /// Creates a topic at whichever node is the controller; which one that is, and how long it took.
    fn create(&self, topic: &str) -> (usize, Duration) {
        let begun = Instant::now();
        let controller = eventually(&format!("somebody creates {topic}"), || {
            self.running().find_map(|(index, node)| {
                let arguments = ["topic", "create", topic, "-p", "3", "--if-not-exists"];
                let (status, _, errors) = kuring(&arguments, &["--bootstrap", node.bootstrap()], b"");
                let may_be = ["NOT_CONTROLLER", "REQUEST_TIMED_OUT"];
                assert!(status.success() || may_be.iter().any(|code| errors.contains(code)), "{errors}");
                status.success().then_some(index)
            })
        });
        (controller, begun.elapsed())
    }

    /// Every node that runs tells of these topics.
    fn await_topics(&self, expected: &[&str]) {
        let expected: String = expected.iter().map(|topic| format!("{topic}\n")).collect();
        for (index, node) in self.running() {
            eventually(&format!("node {} has {expected:?}", index + 1), || {
                let (status, output, errors) =
                    kuring(&["topic", "list"], &["--bootstrap", node.bootstrap()], b"");
                assert!(status.success(), "{errors}");
                (String::from_utf8_lossy(&output) == expected).then_some(())
            });
        }
    }
}

#[test]
fn what_the_controller_was_told_is_on_every_node_and_outlives_it() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start();
    let (mut controller, _) = cluster.create("a");
    cluster.await_topics(&["a"]);
    let mut topics = vec!["a"];
    for topic in ["b", "c"] {
        cluster.nodes[controller].kill();
        let killed = controller;
        let (next, took) = cluster.create(topic);
        assert_ne!(next, killed);
        println!("controller {} killed, {} takes changes after {took:?}", killed + 1, next + 1);
        topics.push(topic);
        cluster.await_topics(&topics);
        cluster.start_stopped();
        cluster.await_topics(&topics);
        controller = next;
    }
    // All at once: what was acknowledged is on the disks.
    cluster.nodes.iter_mut().for_each(Broker::kill);
    cluster.start_stopped();
    cluster.await_topics(&topics);
    cluster.create("d");
    topics.push("d");
    cluster.await_topics(&topics);
    for node in &mut cluster.nodes {
        let (status, took) = node.terminate();
        assert!(status.success() && took < PATIENCE, "{status} after {took:?}");
    }
}

#[test]
fn a_node_that_was_not_told_its_cluster_does_not_make_one_up() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::formatted();
    let node = &mut cluster.nodes[0];
    std::fs::remove_file(node.data().join("meta.properties")).expect("it was written");
    assert!(!node.try_start_again());
    eventually("it says why", || node.log().contains("has no meta.properties").then_some(()));
}
