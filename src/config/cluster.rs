//! What the file says of the other nodes: the controllers of `controller.quorum.voters`, how nodes prove who they
//! are, and how fast a lost controller is replaced. Resolves no name and reads no secret.

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
const AUTO_JOIN: &str = "controller.quorum.auto.join.enable";
const SECRET_FILE: &str = "kuring.peers.secret.file";
const PLAINTEXT: &str = "kuring.peers.plaintext";
const CLIENTS_PLAINTEXT: &str = "kuring.controller.clients.plaintext";
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

/// Properties that say something to a node among others only.
pub(super) const WITHOUT_EFFECT_ALONE: [&str; 13] = [
    SECRET_FILE,
    PLAINTEXT,
    CLIENTS_PLAINTEXT,
    FAILOVER_MS,
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

const SERVERS_MAX: usize = 32;

/// Of [`ClusterConfig::leader_silence_max`].
const LEADER_SILENCE_MIN: Duration = Duration::from_secs(5);

/// A node among others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterConfig {
    /// Their ids differ. This node too, unless it observes; it may be the only one that is no broker.
    pub voters: Vec<VoterAddress>,
    /// Where controllers are, whatever their ids: host and port.
    pub servers: Vec<(String, u16)>,
    /// It has the role broker alone: it follows the metadata log and has no vote.
    pub observes: bool,
    /// The voters come and go; `None` where they are those of `voters`, and on a node that observes.
    pub changing: Option<ChangingConfig>,
    pub security: PeerSecurity,
    /// Kafka's tools may come to the controller's listener from other machines.
    pub clients_plaintext: bool,
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

impl ClusterConfig {
    /// A lost controller is replaced before this time, or its voters are no majority: only then is it missed.
    pub fn leader_silence_max(&self) -> Duration {
        LEADER_SILENCE_MIN.max(self.failover.saturating_mul(4))
    }
}

/// A controller whose file does not name the voters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangingConfig {
    /// Where the others reach it; no host where its listener has none.
    pub address: (String, u16),
    /// It asks for a vote by itself.
    pub joins_by_itself: bool,
    /// It names nobody but itself: unless it was told who votes, it is a node alone.
    pub may_be_alone: bool,
    /// Why it must not be one of several machines as it is, which a node alone need not hear. Its
    /// [`ClusterConfig::security`] is then [`PeerSecurity::Loopback`], though it listens elsewhere, too.
    pub fault: Option<String>,
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

/// Whether the command line makes the node one among others.
pub(super) fn names_others(overrides: &[(String, String)]) -> bool {
    let last =
        |name| overrides.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.as_str());
    let lists = [VOTERS, SERVERS].into_iter().filter_map(last);
    let roles = last(ROLES).is_some_and(|roles| !roles.contains(','));
    roles || lists.into_iter().any(|list| list.contains(','))
}

/// What the settings make of this node; `None` when it is alone.
pub(super) fn cluster(
    s: &Settings,
    node: BrokerId,
    controllers: &[Listener],
) -> Result<Option<ClusterConfig>, Fault> {
    let voters: Vec<VoterAddress> =
        s.list(VOTERS).unwrap_or_default().iter().map(|text| voter(text)).collect::<Result<_, _>>()?;
    let observes = !is_controller(s);
    let servers = if voters.is_empty() || observes { servers(s)? } else { Vec::new() };
    let mut changing = match voters.is_empty() && !servers.is_empty() && !observes {
        true => changing(s, node, controllers)?,
        false => None,
    };
    if s.flag(AUTO_JOIN) && changing.is_none() {
        let reason = format!("wanted: false where {VOTERS} names the voters, and on a broker alone");
        return Err(fault(AUTO_JOIN, &reason));
    }
    // One controller and many brokers are a cluster, too.
    if voters.len() < 2 && is_broker(s) && !observes && changing.is_none() {
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
    match (observes, &changing) {
        (true, _) => check_observer(s, node, &voters, &servers)?,
        (false, None) => check_voter(node, &voters, controllers)?,
        (false, Some(_)) => {}
    }
    let hosts = voters.iter().map(|voter| &voter.host).chain(servers.iter().map(|(host, _)| host));
    let security = security(s, hosts.chain(controllers.iter().map(|listener| &listener.host)));
    let security = match (security, &mut changing) {
        (Err(fault), Some(changing)) if changing.may_be_alone => {
            changing.fault = Some(format!("{}: {}", fault.name, fault.reason));
            PeerSecurity::Loopback
        }
        (security, _) => security?,
    };
    let duration = |name| Duration::from_millis(s.number(name));
    Ok(Some(ClusterConfig {
        voters,
        servers,
        observes,
        clients_plaintext: security == PeerSecurity::Open || s.flag(CLIENTS_PLAINTEXT),
        changing,
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

/// Whether the node has the role controller, and so a listener for the others.
pub(super) fn is_controller(s: &Settings) -> bool {
    has_role(s, "controller")
}

/// Whether it has the role broker, and so partitions and listeners for clients.
pub(super) fn is_broker(s: &Settings) -> bool {
    has_role(s, "broker")
}

fn has_role(s: &Settings, role: &str) -> bool {
    s.list(ROLES).unwrap_or_default().iter().any(|given| given == role)
}

fn check_voter(node: BrokerId, voters: &[VoterAddress], controllers: &[Listener]) -> Result<(), Fault> {
    let Some(own) = voters.iter().find(|voter| voter.node == node) else {
        return Err(fault(VOTERS, &format!("this node, {node}, is not among them")));
    };
    match controllers.first() {
        None => Err(fault(LISTENERS, "a voter needs a listener for controllers")),
        Some(listener) if listener.port != own.port => {
            let reason = format!(
                "node {node} is at port {}, its first controller listener at {}",
                own.port, listener.port
            );
            Err(fault(VOTERS, &reason))
        }
        Some(_) => Ok(()),
    }
}

fn changing(s: &Settings, node: BrokerId, controllers: &[Listener]) -> Result<Option<ChangingConfig>, Fault> {
    let Some(listener) = controllers.first() else {
        return Err(fault(LISTENERS, "a controller needs a listener for the others"));
    };
    let told = listener.advertised.as_ref();
    let told = told.map_or((&listener.host, 0), |it| (&it.host, it.port));
    let address = (told.0.clone(), if told.1 == 0 { listener.port } else { told.1 });
    if address.1 == 0 {
        return Err(fault(LISTENERS, "the others must know the port of a controller's listener: 0 is any"));
    }
    Ok(Some(ChangingConfig {
        address,
        joins_by_itself: s.flag(AUTO_JOIN),
        may_be_alone: is_broker(s) && check_alone(s, node, controllers).is_ok(),
        fault: None,
    }))
}

/// As `KafkaConfig.validateValues` does.
fn check_observer(
    s: &Settings,
    node: BrokerId,
    voters: &[VoterAddress],
    servers: &[(String, u16)],
) -> Result<(), Fault> {
    if voters.iter().any(|voter| voter.node == node) {
        let reason =
            format!("this node, {node}, is among them and has the role broker alone: it has no vote");
        return Err(fault(VOTERS, &reason));
    }
    if voters.is_empty() && servers.is_empty() {
        let reason = format!("neither this nor {VOTERS} is set: a broker alone needs controllers");
        return Err(fault(SERVERS, &reason));
    }
    match s.list(LISTENERS).unwrap_or_default().is_empty() {
        true => Err(fault(LISTENERS, "not set; wanted: the name of the controllers' listener")),
        false => Ok(()),
    }
}

/// Host and port of each of `controller.quorum.bootstrap.servers`.
fn servers(s: &Settings) -> Result<Vec<(String, u16)>, Fault> {
    let servers: Vec<_> = s
        .list(SERVERS)
        .unwrap_or_default()
        .iter()
        .map(|text| host_and_port(text).ok_or_else(|| fault(SERVERS, &format!("{text:?} is not host:port"))))
        .collect::<Result<_, _>>()?;
    match servers.len() {
        0..=SERVERS_MAX => Ok(servers),
        count => Err(fault(SERVERS, &format!("{count} servers; wanted: at most {SERVERS_MAX}"))),
    }
}

fn security<'a>(s: &Settings, mut hosts: impl Iterator<Item = &'a String>) -> Result<PeerSecurity, Fault> {
    if let Some(path) = s.text(SECRET_FILE).filter(|path| !path.is_empty()) {
        return Ok(PeerSecurity::SecretFile(PathBuf::from(path)));
    }
    let Some(open) = hosts.find(|host| !is_loopback(host)) else {
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
    let alone = "of one voter, a broker too, this node is that one";
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

/// A node alone has both roles; in a cluster it may have one.
pub(super) fn check_roles(s: &Settings) -> Result<(), Fault> {
    let (broker, controller) = (is_broker(s), is_controller(s));
    match broker || controller {
        true => Ok(()),
        false => Err(fault(ROLES, "wanted: broker, controller, or both")),
    }
}

/// `id@host:port`, the host perhaps an IPv6 address in brackets.
fn voter(text: &str) -> Result<VoterAddress, Fault> {
    let parsed = text.split_once('@').and_then(|(id, address)| {
        let (host, port) = host_and_port(address)?;
        let node = id.parse::<i32>().ok().filter(|id| *id >= 0).map(BrokerId)?;
        Some(VoterAddress { node, host, port })
    });
    parsed.ok_or_else(|| fault(VOTERS, &format!("{text:?} is not id@host:port")))
}

fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some((host, port.parse().ok()?))
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

    fn load(text: &str) -> Result<Option<ClusterConfig>, ConfigError> {
        let source = Source { path: "server.properties", text: &format!("{FIRST}{text}") };
        BrokerConfig::load(Some(source), &[]).map(|loaded| loaded.config.cluster)
    }

    fn refusal(text: &str) -> String {
        load(text).err().map_or_else(|| "none".to_owned(), |error| error.to_string())
    }

    #[test]
    fn three_voters_on_one_machine_need_no_secret() {
        let cluster = load(THREE).unwrap().unwrap();
        let nodes: Vec<(i32, &str, u16)> =
            cluster.voters.iter().map(|voter| (voter.node.0, voter.host.as_str(), voter.port)).collect();
        assert_eq!(nodes, [(1, "127.0.0.1", 9093), (2, "localhost", 9094), (3, "::1", 9095)]);
        assert_eq!(cluster.security, PeerSecurity::Loopback);
        assert_eq!(cluster.failover, Duration::from_millis(900));
        let times = (cluster.session_timeout, cluster.heartbeat_interval, cluster.registration_timeout);
        assert_eq!(times, (Duration::from_secs(9), Duration::from_secs(2), Duration::from_secs(60)));
        let given = load(&format!("{THREE}broker.session.timeout.ms=3000\n")).unwrap().unwrap();
        assert_eq!(given.session_timeout, Duration::from_secs(3));
        assert_eq!(given.rebalance_interval, Some(Duration::from_secs(300)));
        assert_eq!(given.unclean_interval, Duration::from_secs(300));
        let never = load(&format!("{THREE}auto.leader.rebalance.enable=false\n")).unwrap().unwrap();
        assert_eq!(never.rebalance_interval, None);
        assert!(!never.selects_by_rack);
        assert_eq!(never.fetch_wait_max, Duration::from_millis(500));
        for wait in ["-1", "1001"] {
            let text = format!("{THREE}replica.lag.time.max.ms=1000\nreplica.fetch.wait.max.ms={wait}\n");
            assert!(refusal(&text).contains("replica.lag.time.max.ms, which is 1000"), "{}", refusal(&text));
        }
        let selector = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector\n";
        assert!(load(&format!("{THREE}{selector}")).unwrap().unwrap().selects_by_rack);
        let one = "controller.quorum.voters=1@127.0.0.1:9093";
        assert_eq!(load(one).unwrap(), None, "one voter is a node alone");
    }

    const OBSERVER: &str = "node.id=7\nlog.dirs=/data\nlisteners=PLAINTEXT://:9092\nprocess.roles=broker\n\
                            controller.listener.names=CONTROLLER\n";

    fn load_observer(text: &str) -> Result<ClusterConfig, String> {
        let source = Source { path: "server.properties", text: &format!("{OBSERVER}{text}") };
        let loaded = BrokerConfig::load(Some(source), &[]).map_err(|error| error.to_string())?;
        loaded.config.cluster.ok_or_else(|| "it is alone".to_owned())
    }

    #[test]
    fn a_broker_alone_finds_controllers_by_either_list_and_is_none_of_them() {
        let by_voters = load_observer(THREE).unwrap();
        assert!(by_voters.observes && by_voters.voters.len() == 3);
        let by_servers =
            load_observer("controller.quorum.bootstrap.servers=localhost:9093,[::1]:9094").unwrap();
        let places = [("localhost".to_owned(), 9093), ("::1".to_owned(), 9094)];
        assert_eq!((by_servers.servers.as_slice(), by_servers.voters.len()), (&places[..], 0));
        assert_eq!(by_servers.security, PeerSecurity::Loopback);
        let one = load_observer("controller.quorum.voters=1@127.0.0.1:9093").unwrap();
        assert!(one.observes, "one controller and many brokers are a cluster, too");
        for (text, reason) in [
            ("controller.quorum.voters=7@127.0.0.1:9093", "this node, 7, is among them"),
            ("", "a broker alone needs controllers"),
            ("controller.quorum.bootstrap.servers=localhost", "is not host:port"),
            ("controller.quorum.bootstrap.servers=far.example:9093", "kuring.peers.secret.file"),
            (
                "controller.quorum.voters=1@127.0.0.1:9093\nlisteners=PLAINTEXT://:9092,CONTROLLER://:9093",
                "must not be in listeners",
            ),
            ("controller.quorum.voters=1@127.0.0.1:9093\ncontroller.listener.names=", "not set; wanted"),
        ] {
            let refusal = load_observer(text).err();
            assert!(refusal.as_ref().is_some_and(|it| it.contains(reason)), "{text}: {refusal:?}");
        }
    }

    const CONTROLLER: &str = "node.id=7\nmetadata.log.dir=/meta\nlisteners=CONTROLLER://127.0.0.1:9093\n\
                              process.roles=controller\ncontroller.listener.names=CONTROLLER\n\
                              controller.quorum.voters=7@127.0.0.1:9093,8@127.0.0.1:9094\n";

    fn load_controller(text: &str) -> Result<BrokerConfig, String> {
        let source = Source { path: "server.properties", text: &format!("{CONTROLLER}{text}") };
        BrokerConfig::load(Some(source), &[]).map(|loaded| loaded.config).map_err(|error| error.to_string())
    }

    #[test]
    fn a_controller_alone_has_the_metadata_log_and_no_listener_for_clients() {
        let config = load_controller("log.dirs=/data,/more").unwrap();
        assert!(!config.is_broker && config.listeners.is_empty());
        assert_eq!((config.controller_listeners.len(), config.shards), (1, Some(1)));
        assert_eq!(config.log_dirs, [PathBuf::from("/meta")], "it keeps no partitions");
        let cluster = config.cluster.unwrap();
        assert!(!cluster.observes && cluster.voters.len() == 2);
        assert_eq!(load_controller("kuring.shards=2").unwrap().shards, Some(2), "who asks for more has more");
        let only = load_controller("controller.quorum.voters=7@127.0.0.1:9093").unwrap();
        assert!(only.cluster.is_some(), "one controller and many brokers are a cluster, too");
        let told = load_controller("advertised.listeners=PLAINTEXT://h:2,CONTROLLER://outside:1").unwrap();
        let advertised =
            told.controller_listeners[0].advertised.as_ref().map(|it| (it.host.as_str(), it.port));
        assert_eq!(advertised, Some(("outside", 1)));
        for (text, reason) in [
            (
                "listeners=PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093",
                "listeners = \"PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093\": PLAINTEXT is none of \
                 controller.listener.names",
            ),
            ("controller.listener.names=", "CONTROLLER is none of controller.listener.names"),
            ("controller.listener.names=OTHER", "CONTROLLER is none of controller.listener.names"),
            ("controller.quorum.voters=8@127.0.0.1:9094", "this node, 7, is not among them"),
            ("controller.quorum.voters=7@127.0.0.1:9095", "its first controller listener at 9093"),
            ("controller.quorum.voters=7@far.example:9093", "kuring.peers.secret.file"),
        ] {
            let refusal = load_controller(text).err();
            assert!(refusal.as_ref().is_some_and(|it| it.contains(reason)), "{text}: {refusal:?}");
        }
    }

    #[test]
    fn where_no_voters_are_named_they_come_and_go() {
        const SERVERS: &str = "controller.quorum.bootstrap.servers";
        let changing = |text: &str| {
            let cluster = load(text).unwrap().unwrap();
            (cluster.changing.unwrap(), cluster.servers.len(), cluster.security)
        };
        let (among, count, _) = changing(&format!("{SERVERS}=localhost:9093,localhost:9094"));
        assert_eq!((among.may_be_alone, count), (false, 2));
        assert_eq!((among.address, among.joins_by_itself), (("127.0.0.1".to_owned(), 9093), false));
        let (joining, ..) =
            changing(&format!("{SERVERS}=localhost:9094\ncontroller.quorum.auto.join.enable=true"));
        assert!(joining.joins_by_itself && !joining.may_be_alone);
        let (own, ..) = changing(&format!("{SERVERS}=localhost:9093"));
        assert!(own.may_be_alone && own.fault.is_none());
        // As Kafka's own server.properties: alone it needs no secret.
        let all = format!("{SERVERS}=localhost:9093\nlisteners=PLAINTEXT://:9092,CONTROLLER://:9093");
        let (own, _, security) = changing(&all);
        assert!(
            own.may_be_alone && own.fault.is_some_and(|fault| fault.contains("kuring.peers.secret.file"))
        );
        assert_eq!(security, PeerSecurity::Loopback);
        let reason = refusal(&format!("{THREE}controller.quorum.auto.join.enable=true"));
        assert!(reason.contains("wanted: false where controller.quorum.voters"), "{reason}");
        let far = format!("{SERVERS}=far.example:9093,localhost:9093");
        assert!(refusal(&far).contains("kuring.peers.secret.file"));
    }

    #[test]
    fn over_a_network_nodes_need_a_secret_or_somebodys_word_that_it_is_safe() {
        let far = "controller.quorum.voters=1@127.0.0.1:9093,2@far.example:9093\n";
        assert!(refusal(far).contains("kuring.peers.secret.file"), "{}", refusal(far));
        let open = load(&format!("{far}kuring.peers.plaintext=true")).unwrap().unwrap();
        assert_eq!(open.security, PeerSecurity::Open);
        assert!(open.clients_plaintext, "everyone there is trusted");
        let secret = load(&format!("{far}kuring.peers.secret.file=/etc/kuring/peers")).unwrap().unwrap();
        assert_eq!(secret.security, PeerSecurity::SecretFile("/etc/kuring/peers".into()));
        assert!(!secret.clients_plaintext, "who has no secret comes from this machine");
        let both = "kuring.peers.secret.file=/etc/kuring/peers
kuring.controller.clients.plaintext=true";
        assert!(load(&format!("{far}{both}")).unwrap().unwrap().clients_plaintext);
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
            (
                "replica.selector.class=my.Selector",
                "wanted: one of: org.apache.kafka.common.replica.RackAwareReplicaSelector",
            ),
        ] {
            let refusal = refusal(text);
            assert!(refusal.contains(reason), "{text}: {refusal}");
        }
    }

    #[test]
    fn a_node_alone_says_what_it_has_no_use_for() {
        for name in WITHOUT_EFFECT_ALONE {
            let value = match name {
                SECRET_FILE => "/etc/kuring/peers",
                SELECTOR => "org.apache.kafka.common.replica.RackAwareReplicaSelector",
                PLAINTEXT | CLIENTS_PLAINTEXT | AUTO_REBALANCE => "true",
                _ => "500",
            };
            let source = Source { path: "server.properties", text: &format!("{FIRST}{name}={value}\n") };
            let loaded = BrokerConfig::load(Some(source), &[]).unwrap();
            let [warning] = &loaded.warnings[..] else { panic!("{name}: {:?}", loaded.warnings) };
            assert!(warning.contains(&format!("{name} is ignored")), "{warning}");
        }
    }
}
