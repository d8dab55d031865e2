//! What the file says of the other nodes: the controllers of `controller.quorum.voters`, how nodes prove who they
//! are, and how fast a lost controller is replaced. Resolves no name and reads no secret.
//!
//! Clusters are not offered yet: without the internal `kuring.cluster.unfinished` a node is alone, and a file that
//! names others is refused.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::listeners::{Fault, Listener};
use super::settings::Settings;
use crate::base::BrokerId;

const VOTERS: &str = "controller.quorum.voters";
const SERVERS: &str = "controller.quorum.bootstrap.servers";
const LISTENERS: &str = "controller.listener.names";
const ROLES: &str = "process.roles";
const UNFINISHED: &str = "kuring.cluster.unfinished";
const SECRET_FILE: &str = "kuring.peers.secret.file";
const PLAINTEXT: &str = "kuring.peers.plaintext";
const FAILOVER_MS: &str = "kuring.quorum.failover.ms";
const SESSION_TIMEOUT_MS: &str = "broker.session.timeout.ms";
const HEARTBEAT_INTERVAL_MS: &str = "broker.heartbeat.interval.ms";
const REPLICA_LAG_TIME_MAX_MS: &str = "replica.lag.time.max.ms";
const FETCH_WAIT_MAX_MS: &str = "replica.fetch.wait.max.ms";
const REGISTRATION_TIMEOUT_MS: &str = "initial.broker.registration.timeout.ms";
const AUTO_REBALANCE: &str = "auto.leader.rebalance.enable";
const REBALANCE_INTERVAL_S: &str = "leader.imbalance.check.interval.seconds";
const UNCLEAN_INTERVAL_MS: &str = "unclean.leader.election.interval.ms";
const SELECTOR: &str = "replica.selector.class";

/// Kafka's properties that say something to a node among others only.
pub(super) const WITHOUT_EFFECT_ALONE: [&str; 9] = [
    SESSION_TIMEOUT_MS,
    HEARTBEAT_INTERVAL_MS,
    REGISTRATION_TIMEOUT_MS,
    REPLICA_LAG_TIME_MAX_MS,
    AUTO_REBALANCE,
    REBALANCE_INTERVAL_S,
    UNCLEAN_INTERVAL_MS,
    SELECTOR,
    FETCH_WAIT_MAX_MS,
];

/// More voters only make every change slower.
const VOTERS_MAX: usize = 9;

/// A node among others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterConfig {
    /// This node too; at least two, their ids differ.
    pub voters: Vec<VoterAddress>,
    pub security: PeerSecurity,
    /// A lost controller is replaced within about this time.
    pub failover: Duration,
    /// A broker that is not heard of for so long is fenced.
    pub session_timeout: Duration,
    pub heartbeat_interval: Duration,
    /// A start waits so long for a controller that takes its registration.
    pub registration_timeout: Duration,
    /// A follower that has not had all of its leader's records for so long is out of sync.
    pub replica_lag_max: Duration,
    /// A leader waits so long for something to send to a follower.
    pub fetch_wait_max: Duration,
    /// How often the controller has the first replicas lead again; `None` for never.
    pub rebalance_interval: Option<Duration>,
    /// How often it looks for partitions without a leader that may have one which lacks records.
    pub unclean_interval: Duration,
    /// Leaders send consumers to a replica in their rack (KIP-392).
    pub selects_by_rack: bool,
}

/// One of `controller.quorum.voters`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VoterAddress {
    pub node: BrokerId,
    pub host: String,
    pub port: u16,
}

/// How nodes know each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerSecurity {
    /// By a secret that lies in this file on all of them.
    SecretFile(PathBuf),
    /// They all run on this machine: a connection from elsewhere is closed.
    Loopback,
    /// Not at all: the network is trusted.
    Open,
}

/// What the settings make of this node; `None` when it is alone.
pub(super) fn cluster(
    s: &Settings,
    node: BrokerId,
    controllers: &[Listener],
) -> Result<Option<ClusterConfig>, Fault> {
    if !s.flag(UNFINISHED) {
        let early = [SECRET_FILE, PLAINTEXT, FAILOVER_MS].into_iter().find(|name| s.given(name).is_some());
        if let Some(name) = early {
            return Err(fault(name, "kuring has no setting of this name"));
        }
        check_alone(s, node, controllers)?;
        return Ok(None);
    }
    let voters: Vec<VoterAddress> =
        s.list(VOTERS).unwrap_or_default().iter().map(|text| voter(text)).collect::<Result<_, _>>()?;
    if voters.len() < 2 {
        check_alone(s, node, controllers)?;
        return Ok(None);
    }
    if voters.len() > VOTERS_MAX {
        return Err(fault(VOTERS, &format!("{} voters; wanted: at most {VOTERS_MAX}", voters.len())));
    }
    let ids: BTreeSet<BrokerId> = voters.iter().map(|voter| voter.node).collect();
    if ids.len() < voters.len() {
        return Err(fault(VOTERS, "a node id appears twice"));
    }
    let Some(own) = voters.iter().find(|voter| voter.node == node) else {
        return Err(fault(VOTERS, &format!("this node, {node}, is not among them")));
    };
    match controllers.first() {
        None => return Err(fault(LISTENERS, "a voter needs a listener for controllers")),
        Some(listener) if listener.port != own.port => {
            let reason = format!(
                "node {node} is at port {}, its first controller listener at {}",
                own.port, listener.port
            );
            return Err(fault(VOTERS, &reason));
        }
        Some(_) => {}
    }
    let security = security(s, &voters, controllers)?;
    let duration = |name| Duration::from_millis(s.number(name));
    Ok(Some(ClusterConfig {
        voters,
        security,
        failover: duration(FAILOVER_MS),
        session_timeout: duration(SESSION_TIMEOUT_MS),
        heartbeat_interval: duration(HEARTBEAT_INTERVAL_MS),
        registration_timeout: duration(REGISTRATION_TIMEOUT_MS),
        replica_lag_max: duration(REPLICA_LAG_TIME_MAX_MS),
        fetch_wait_max: fetch_wait_max(s)?,
        rebalance_interval: s
            .flag(AUTO_REBALANCE)
            .then(|| Duration::from_secs(s.number(REBALANCE_INTERVAL_S))),
        unclean_interval: duration(UNCLEAN_INTERVAL_MS),
        selects_by_rack: s.given(SELECTOR).is_some(),
    }))
}

/// A follower that was made to wait for longer would be out of sync.
fn fetch_wait_max(s: &Settings) -> Result<Duration, Fault> {
    let (wait, lag) = (s.integer(FETCH_WAIT_MAX_MS), s.integer(REPLICA_LAG_TIME_MAX_MS));
    match u64::try_from(wait) {
        Ok(ms) if wait <= lag => Ok(Duration::from_millis(ms)),
        _ => {
            let reason = format!("wanted: from 0 to {REPLICA_LAG_TIME_MAX_MS}, which is {lag}");
            Err(fault(FETCH_WAIT_MAX_MS, &reason))
        }
    }
}

fn security(s: &Settings, voters: &[VoterAddress], controllers: &[Listener]) -> Result<PeerSecurity, Fault> {
    if let Some(path) = s.text(SECRET_FILE).filter(|path| !path.is_empty()) {
        return Ok(PeerSecurity::SecretFile(PathBuf::from(path)));
    }
    let hosts =
        voters.iter().map(|voter| &voter.host).chain(controllers.iter().map(|listener| &listener.host));
    let Some(open) = hosts.into_iter().find(|host| !is_loopback(host)) else {
        return Ok(PeerSecurity::Loopback);
    };
    match s.flag(PLAINTEXT) {
        true => Ok(PeerSecurity::Open),
        false => {
            let shown = if open.is_empty() { "every interface" } else { open };
            let reason = format!(
                "not set, and {shown} is not this machine alone: anyone could speak as a controller; wanted: a \
                 file with the secret of all nodes, or {PLAINTEXT}=true in a network that is trusted"
            );
            Err(fault(SECRET_FILE, &reason))
        }
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Until clusters come, the quorum may consist of this node only.
fn check_alone(s: &Settings, node: BrokerId, controllers: &[Listener]) -> Result<(), Fault> {
    let alone = "this version runs a single node and cannot join others; wanted: this node only";
    for text in s.list(VOTERS).unwrap_or_default() {
        if voter(&text)?.node != node {
            return Err(fault(VOTERS, &format!("{text} is not this node, {node}: {alone}")));
        }
    }
    let servers = s.list(SERVERS).unwrap_or_default();
    for server in &servers {
        let port = server.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        match port {
            None => return Err(fault(SERVERS, &format!("{server:?} is not host:port"))),
            Some(port)
                if !controllers.is_empty() && controllers.iter().all(|listener| listener.port != port) =>
            {
                let reason = format!("{server} is no controller listener of this node: {alone}");
                return Err(fault(SERVERS, &reason));
            }
            Some(_) => {}
        }
    }
    match servers.len() {
        0 | 1 => Ok(()),
        _ => Err(fault(SERVERS, alone)),
    }
}

/// Every node has both roles so far.
pub(super) fn check_roles(s: &Settings) -> Result<(), Fault> {
    let roles = s.list(ROLES).unwrap_or_default();
    match ["broker", "controller"].iter().all(|role| roles.iter().any(|given| given == role)) {
        true => Ok(()),
        false => Err(fault(
            ROLES,
            "a node with one role needs a cluster, which this version does not form; wanted: broker,controller",
        )),
    }
}

/// `id@host:port`, the host perhaps an IPv6 address in brackets.
fn voter(text: &str) -> Result<VoterAddress, Fault> {
    let parsed = text.split_once('@').and_then(|(id, address)| {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let node = id.parse::<i32>().ok().filter(|id| *id >= 0).map(BrokerId)?;
        Some(VoterAddress { node, host, port: port.parse().ok()? })
    });
    parsed.ok_or_else(|| fault(VOTERS, &format!("{text:?} is not id@host:port")))
}

fn fault(name: &'static str, reason: &str) -> Fault {
    Fault { name, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BrokerConfig, ConfigError, Source};

    const FIRST: &str = "node.id=1\nlog.dirs=/data\nlisteners=PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093\n\
                         controller.listener.names=CONTROLLER\n";
    const THREE: &str = "controller.quorum.voters=1@127.0.0.1:9093,2@localhost:9094,3@[::1]:9095\n";
    const ON: &str = "kuring.cluster.unfinished=true\n";

    fn load(text: &str) -> Result<Option<ClusterConfig>, ConfigError> {
        let source = Source { path: "server.properties", text: &format!("{FIRST}{text}") };
        BrokerConfig::load(Some(source), &[]).map(|loaded| loaded.config.cluster)
    }

    fn refusal(text: &str) -> String {
        load(text).err().map_or_else(|| "none".to_owned(), |error| error.to_string())
    }

    #[test]
    fn three_voters_on_one_machine_need_no_secret() {
        let cluster = load(&format!("{THREE}{ON}")).unwrap().unwrap();
        let nodes: Vec<(i32, &str, u16)> =
            cluster.voters.iter().map(|voter| (voter.node.0, voter.host.as_str(), voter.port)).collect();
        assert_eq!(nodes, [(1, "127.0.0.1", 9093), (2, "localhost", 9094), (3, "::1", 9095)]);
        assert_eq!(cluster.security, PeerSecurity::Loopback);
        assert_eq!(cluster.failover, Duration::from_millis(900));
        let times = (cluster.session_timeout, cluster.heartbeat_interval, cluster.registration_timeout);
        assert_eq!(times, (Duration::from_secs(9), Duration::from_secs(2), Duration::from_secs(60)));
        let given = load(&format!("{THREE}{ON}broker.session.timeout.ms=3000\n")).unwrap().unwrap();
        assert_eq!(given.session_timeout, Duration::from_secs(3));
        assert_eq!(given.rebalance_interval, Some(Duration::from_secs(300)));
        assert_eq!(given.unclean_interval, Duration::from_secs(300));
        let never = load(&format!("{THREE}{ON}auto.leader.rebalance.enable=false\n")).unwrap().unwrap();
        assert_eq!(never.rebalance_interval, None);
        assert!(!never.selects_by_rack);
        assert_eq!(never.fetch_wait_max, Duration::from_millis(500));
        for wait in ["-1", "1001"] {
            let text = format!("{THREE}{ON}replica.lag.time.max.ms=1000\nreplica.fetch.wait.max.ms={wait}\n");
            assert!(refusal(&text).contains("replica.lag.time.max.ms, which is 1000"), "{}", refusal(&text));
        }
        let selector = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector\n";
        assert!(load(&format!("{THREE}{ON}{selector}")).unwrap().unwrap().selects_by_rack);
        let one = format!("controller.quorum.voters=1@127.0.0.1:9093\n{ON}");
        assert_eq!(load(&one).unwrap(), None, "one voter is a node alone");
    }

    #[test]
    fn over_a_network_nodes_need_a_secret_or_somebodys_word_that_it_is_safe() {
        let far = format!("controller.quorum.voters=1@127.0.0.1:9093,2@far.example:9093\n{ON}");
        assert!(refusal(&far).contains("kuring.peers.secret.file"), "{}", refusal(&far));
        let open = load(&format!("{far}kuring.peers.plaintext=true")).unwrap().unwrap();
        assert_eq!(open.security, PeerSecurity::Open);
        let secret = load(&format!("{far}kuring.peers.secret.file=/etc/kuring/peers")).unwrap().unwrap();
        assert_eq!(secret.security, PeerSecurity::SecretFile("/etc/kuring/peers".into()));
    }

    #[test]
    fn a_list_of_voters_that_cannot_be_is_refused_with_its_reason() {
        for (text, reason) in [
            ("controller.quorum.voters=2@127.0.0.1:9094,3@127.0.0.1:9095", "this node, 1, is not among them"),
            ("controller.quorum.voters=1@127.0.0.1:9093,1@127.0.0.1:9094", "appears twice"),
            (
                "controller.quorum.voters=1@127.0.0.1:9099,2@127.0.0.1:9094",
                "its first controller listener at 9093",
            ),
            ("controller.quorum.voters=1@127.0.0.1:9093,x@127.0.0.1:9094", "is not id@host:port"),
            ("controller.quorum.voters=1@127.0.0.1:9093,-2@127.0.0.1:9094", "is not id@host:port"),
            ("process.roles=controller", "wanted: broker,controller"),
            (
                "replica.selector.class=my.Selector",
                "wanted: one of: org.apache.kafka.common.replica.RackAwareReplicaSelector",
            ),
        ] {
            let refusal = refusal(&format!("{text}\n{ON}"));
            assert!(refusal.contains(reason), "{text}: {refusal}");
        }
    }

    #[test]
    fn a_node_alone_says_that_it_needs_no_session() {
        let source =
            Source { path: "server.properties", text: &format!("{FIRST}broker.session.timeout.ms=3000\n") };
        let loaded = BrokerConfig::load(Some(source), &[]).unwrap();
        let [warning] = &loaded.warnings[..] else { panic!("{:?}", loaded.warnings) };
        assert!(warning.contains("broker.session.timeout.ms is ignored"), "{warning}");
    }

    #[test]
    fn without_the_switch_nothing_of_a_cluster_is_there() {
        assert!(refusal(THREE).contains("cannot join others"));
        for name in [SECRET_FILE, PLAINTEXT, FAILOVER_MS] {
            let value = if name == PLAINTEXT { "true" } else { "500" };
            let refusal = refusal(&format!("{name}={value}"));
            assert!(refusal.ends_with("kuring has no setting of this name"), "{refusal}");
        }
    }
}
