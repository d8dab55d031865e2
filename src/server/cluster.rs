//! A node among others: its listener for controllers, its links, its part in the quorum, its registration.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::StartError;
use super::broker::bind_to;
use super::control::submit_here;
use super::heartbeats::Heartbeats;
use super::import;
use super::publish::Publisher;
use super::road::Road;
use crate::api::{assign_replicas, broker_heartbeat, broker_registration};
use crate::base::{BrokerEpoch, BrokerId, clock};
use crate::config::{BrokerConfig, ChangingConfig, ClusterConfig, ListenerName, PeerSecurity};
use crate::io::Files;
use crate::io::net::{Acceptor, Listener};
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, Sender, sleep, spawn};
use crate::io::threads::FileThreads;
use crate::metadata::{
    self, Command, ControllerImage, Endpoint, Image, Refusal, RegisterBroker, Response, decode_command,
    encode_result,
};
use crate::net::{Accepted, Gate};
use crate::peer::{
    self, Answering, Greetings, Identity, KafkaClient, Links, PeerError, PeerKey, Request, Roster, Secret,
    Security, Server, Service,
};
use crate::raft::{self, ChangingVoters, FirstVoter, Quorum, QuorumDescription};
use crate::shard::{ControllerNote, Directories, Shard};
use crate::wire::ErrorCode;

/// A secret that others may read is none.
const OTHERS_MODE: u32 = 0o077;
const SECRET_BYTES_MAX: usize = 8 << 10;

/// A controller without a vote that is not heard of for so long is a member no more, until it is back
/// (`LeaderState.OBSERVER_SESSION_TIMEOUT_MS`).
const OBSERVER_SILENCE_MAX: Duration = Duration::from_secs(300);

const REGISTRATION_PAUSE: Duration = Duration::from_millis(50);
/// Nobody waits for it.
const CONTROLLER_REGISTRATION_PAUSE: Duration = Duration::from_secs(1);

/// What can be wrong is looked at before anything runs.
pub(super) struct Prepared {
    /// Where the others come in; an observer has none.
    listener: Option<Listener>,
    security: Security,
    config: ClusterConfig,
    /// Who votes first, where voters come and go; none where this node was not told.
    first: Vec<FirstVoter>,
    incarnation: uuid::Uuid,
}

/// The node's part in the cluster; lives on shard 0.
pub(super) struct Cluster {
    links: Rc<Links>,
    security: Security,
    listener: Option<Listener>,
    address: Option<SocketAddr>,
    serving: Option<(Acceptor, Rc<Server>)>,
    clients: Option<Rc<Clients>>,
    first: Vec<FirstVoter>,
    pub(super) config: ClusterConfig,
}

/// A node that names no controller but itself is alone, unless `kuring format` told it who votes.
pub(super) fn settle(config: &mut BrokerConfig) -> Result<(), StartError> {
    let changing = config.cluster.as_ref().and_then(|cluster| cluster.changing.as_ref());
    let Some(changing) = changing.filter(|changing| changing.may_be_alone) else { return Ok(()) };
    match (first_voters(config)?, &changing.fault) {
        (None, _) => config.cluster = None,
        (Some(first), Some(fault)) => match keep_to_this_machine(&first, config.node_id, fault) {
            Ok(warning) => tracing::warn!("{warning}"),
            Err(refusal) => return Err(StartError::Cluster(refusal)),
        },
        (Some(_), None) => {}
    }
    Ok(())
}

/// What becomes of a controller whose file does not say how it knows the others: the first of a cluster needs nobody. As
/// Kafka's own `server.properties` it serves, and lets nodes of its machine in; the warning says so.
pub(super) fn keep_to_this_machine(
    first: &[FirstVoter],
    own: BrokerId,
    fault: &str,
) -> Result<String, String> {
    match first {
        [only] if only.key.node == own => {
            Ok(format!("nodes on other machines cannot join this one as it is set up: {fault}"))
        }
        _ => Err(fault.to_owned()),
    }
}

fn first_voters(config: &BrokerConfig) -> Result<Option<Vec<FirstVoter>>, StartError> {
    raft::read_first_voters(&OsFiles, &config.metadata_log_dir).map_err(StartError::Cluster)
}

/// Where others reach this controller.
pub(super) fn own_address(changing: &ChangingConfig) -> peer::Address {
    let (host, port) = changing.address.clone();
    match host.is_empty() {
        true => (rustix::system::uname().nodename().to_string_lossy().into_owned(), port),
        false => (host, port),
    }
}

impl Prepared {
    /// `None` for a node alone.
    pub(super) fn new(config: &BrokerConfig) -> Result<Option<Self>, StartError> {
        let Some(cluster) = &config.cluster else { return Ok(None) };
        let security = match &cluster.security {
            PeerSecurity::Loopback => Security::Loopback,
            PeerSecurity::Open => {
                tracing::warn!("kuring.peers.plaintext: whoever reaches a controller can speak as one");
                Security::Open
            }
            PeerSecurity::SecretFile(path) => Security::Secret(read_secret(path).map_err(|what| {
                StartError::Cluster(format!("kuring.peers.secret.file {}: {what}", path.display()))
            })?),
        };
        if import::is_beside(&OsFiles, &config.metadata_log_dir) {
            let text = "the metadata of a Kafka node can be taken over by a single node only";
            return Err(StartError::Cluster(text.to_owned()));
        }
        let listener = config.controller_listeners.first().map(|listener| bind_to(listener, config));
        let listener = listener.transpose()?;
        let first = match cluster.changing {
            Some(_) => first_voters(config)?.unwrap_or_default(),
            None => Vec::new(),
        };
        let incarnation = uuid::Uuid::new_v4();
        Ok(Some(Self { listener, security, config: cluster.clone(), first, incarnation }))
    }

    fn identity(
        &self,
        config: &BrokerConfig,
        cluster_id: &str,
        directories: &Directories,
    ) -> Result<Identity, StartError> {
        let Some(metadata) = directories.metadata().and_then(|index| directories.list.get(index)) else {
            return Err(StartError::Cluster("metadata.log.dir is not one of log.dirs".to_owned()));
        };
        Ok(Identity {
            cluster_id: cluster_id.to_owned(),
            node: config.node_id,
            directory: metadata.log_dir.id().0,
            incarnation: self.incarnation,
        })
    }

    /// How this broker makes itself known to the others, on every shard.
    pub(super) fn greetings(
        &self,
        config: &BrokerConfig,
        cluster_id: &str,
        directories: &Directories,
    ) -> Result<Arc<Greetings>, StartError> {
        let identity = self.identity(config, cluster_id, directories)?;
        Ok(Arc::new(Greetings::new(identity, self.security.clone())))
    }

    /// Joins what was prepared with what the directories say of this node.
    pub(super) fn into_cluster(
        self,
        config: &BrokerConfig,
        cluster_id: &str,
        directories: &Directories,
    ) -> Result<Cluster, StartError> {
        let identity = self.identity(config, cluster_id, directories)?;
        let addresses: BTreeMap<BrokerId, (String, u16)> =
            self.config.voters.iter().map(|voter| (voter.node, (voter.host.clone(), voter.port))).collect();
        let threads: FileThreads = directories.threads.clone();
        let own = self.config.changing.as_ref().map(own_address);
        let servers = self.config.servers.iter().filter(|server| Some(*server) != own.as_ref()).cloned();
        let roster = Rc::new(Roster::new(addresses, servers.collect()));
        let links = Links::new(identity, self.security.clone(), roster, threads);
        Ok(Cluster {
            links,
            security: self.security,
            address: self.listener.as_ref().map(Listener::local_addr),
            listener: self.listener,
            serving: None,
            clients: None,
            first: self.first,
            config: self.config,
        })
    }
}

fn read_secret(path: &Path) -> Result<Secret, String> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(path).map_err(|error| error.to_string())?.permissions().mode();
    if mode & OTHERS_MODE != 0 {
        return Err(format!("others may read it (mode {:o}); wanted: chmod 600", mode & 0o777));
    }
    let contents = OsFiles.read_small(path, SECRET_BYTES_MAX).map_err(|error| error.to_string())?;
    Secret::new(contents).map_err(|error| error.to_string())
}

impl Cluster {
    pub(super) fn links(&self) -> Rc<Links> {
        self.links.clone()
    }

    /// How the quorum begins, and how this node has its part in it, where voters come and go, now or later.
    pub(super) fn changing(&self) -> Option<ChangingVoters> {
        let changing = self.config.changing.as_ref();
        Some(ChangingVoters {
            are_named: changing.is_none(),
            address: self.own_address()?,
            first: self.first.clone(),
            joins_by_itself: changing.is_some_and(|changing| changing.joins_by_itself),
            silence_max: OBSERVER_SILENCE_MAX,
        })
    }

    /// Where the others reach this controller.
    fn own_address(&self) -> Option<peer::Address> {
        match &self.config.changing {
            Some(changing) => Some(own_address(changing)),
            None => {
                let mut voters = self.config.voters.iter();
                let own = voters.find(|voter| voter.node == self.links.identity().node);
                own.map(|own| (own.host.clone(), own.port))
            }
        }
    }

    pub(super) fn road(&self, shard: &Rc<Shard>, quorum: &Rc<Quorum>) -> Rc<Road> {
        // Two that get lost, and the third one comes within the session.
        let beat_time = self.config.session_timeout / 4;
        let search_time = self.config.leader_silence_max();
        Road::new(shard.clone(), quorum.clone(), self.links(), search_time, beat_time)
    }

    /// Lets the other controllers in: the quorum can form.
    pub(super) fn serve(
        &mut self,
        shard: &Rc<Shard>,
        quorum: &Rc<Quorum>,
        clients: Clients,
    ) -> Result<(), StartError> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let (doorway, arrivals) = peer::arrivals();
        let service =
            Rc::new(Controllers { shard: shard.clone(), quorum: quorum.clone(), clients: Rc::new(clients) });
        self.clients = Some(service.clients.clone());
        let (identity, roster) = (self.links.identity().clone(), self.links.roster().clone());
        let server = Server::start(identity, self.security.clone(), roster, arrivals, service);
        let acceptor =
            doorway.open(listener).map_err(|error| StartError::Io { what: "a listener's thread", error })?;
        self.serving = Some((acceptor, server));
        Ok(())
    }

    /// Tells the controller that this broker is here, as soon as there is one, and waits until that is known here.
    pub(super) async fn register(
        &self,
        road: &Road,
        registration: &RegisterBroker,
    ) -> Result<BrokerEpoch, StartError> {
        let until = clock::monotonic().plus(self.config.registration_timeout);
        let mut images = road.quorum().subscribe();
        let failed =
            |what: String| Err(StartError::Cluster(format!("this broker is not registered: {what}")));
        let mut obstacle = "there is no controller".to_owned();
        while clock::monotonic() < until {
            match road.register(registration).await {
                Ok(Ok(epoch)) => {
                    // What this broker is told to be is in the image in which it is registered, or in a later one.
                    let is_known = |image: &Image| {
                        image.broker(registration.id).is_some_and(|broker| broker.epoch >= epoch)
                    };
                    let mut image = images.current();
                    while !is_known(&image) {
                        match images.changed().await {
                            Some(newer) => image = newer,
                            None => return failed("the metadata log was closed".to_owned()),
                        }
                    }
                    return Ok(epoch);
                }
                Ok(Err(
                    code @ (ErrorCode::NotController
                    | ErrorCode::RequestTimedOut
                    | ErrorCode::DuplicateBrokerRegistration),
                )) => obstacle = code.to_string(),
                Ok(Err(code)) => return failed(code.to_string()),
                Err(error) => obstacle = error.to_string(),
            }
            sleep(REGISTRATION_PAUSE).await;
        }
        failed(format!("{obstacle}, for {:?}", self.config.registration_timeout))
    }

    /// Tells the cluster where this controller is and what it can work at, until somebody takes it.
    pub(super) fn register_controller(&self, road: Rc<Road>, config: &BrokerConfig) {
        if self.config.observes {
            return;
        }
        let identity = self.links.identity();
        let endpoints = config.controller_listeners.first().zip(self.own_address());
        let endpoints = endpoints.map(|(listener, (host, port))| {
            // Who wants it to be told otherwise has it in `advertised.listeners`.
            let told = listener.advertised_endpoint(port, &host);
            let (host, port) = told.map_or((host, port), |told| (told.host, told.port));
            Endpoint {
                listener: listener.name.as_str().to_owned(),
                host,
                port,
                security_protocol: listener.protocol.wire_id(),
            }
        });
        let controller = ControllerImage {
            id: identity.node,
            incarnation: identity.incarnation,
            endpoints: endpoints.into_iter().collect(),
            features: metadata::own_features(),
        };
        spawn(Queue::Control, "controller registration", async move {
            while !road.quorum().is_closed() {
                match road.submit(Command::RegisterController(controller.clone())).await {
                    Ok(_) => return,
                    Err(refusal) => tracing::info!("this controller is not registered yet: {refusal}"),
                }
                sleep(CONTROLLER_REGISTRATION_PAUSE).await;
            }
        })
        .detach();
    }

    /// Waits until the cluster knows this controller as it has started now; `None` when the quorum is closed.
    pub(super) async fn registered(&self, quorum: &Quorum) -> Option<Arc<Image>> {
        let own = self.links.identity();
        let mut images = quorum.subscribe();
        let mut image = images.current();
        while image.controller(own.node).is_none_or(|known| known.incarnation != own.incarnation) {
            image = images.changed().await?;
        }
        Some(image)
    }

    /// Where the other controllers come in.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Brings every image of the quorum to the shards: changes come from other nodes too. What becomes of a broker the
    /// others are told soon: one that stops waits until all know. A node that is no broker has nothing to tell.
    pub(super) fn follow_images(
        quorum: &Quorum,
        publisher: Rc<Publisher>,
        heartbeats: Option<Rc<Heartbeats>>,
    ) {
        let mut images = quorum.subscribe();
        let mut before = images.current();
        spawn(Queue::Control, "images", async move {
            while let Some(image) = images.changed().await {
                publisher.send(image.clone()).await;
                if let Some(heartbeats) = &heartbeats
                    && image.changes_since(&before).brokers_changed
                {
                    let (publisher, heartbeats, image) =
                        (publisher.clone(), heartbeats.clone(), image.clone());
                    spawn(Queue::Control, "tell of brokers", async move {
                        publisher.publish(image).await;
                        heartbeats.hurry();
                    })
                    .detach();
                }
                before = image;
            }
        })
        .detach();
    }

    /// Notes who the controller is, for whoever asks.
    pub(super) fn follow_leadership(quorum: &Quorum, note: Arc<ControllerNote>) {
        let mut leaderships = quorum.watch_leadership();
        note.note(quorum.leadership().leader);
        spawn(Queue::Control, "controller's name", async move {
            while let Some(leadership) = leaderships.changed().await {
                note.note(leadership.leader);
            }
        })
        .detach();
    }

    /// Lets clients of Kafka's in, too: they find services from here on.
    pub(super) fn open_to_clients(&self) {
        if let Some(clients) = &self.clients {
            clients.are_served.set(true);
        }
    }

    /// Takes no more connections and closes those that are open.
    pub(super) async fn stop(self, threads: &FileThreads) {
        let Some((acceptor, server)) = self.serving else { return };
        threads.run("stop listening", || acceptor.stop()).await;
        server.stop();
    }
}

/// Where clients of Kafka's go that come to the controllers' listener.
pub(super) struct Clients {
    listener: ListenerName,
    from_elsewhere: bool,
    gate: Gate,
    /// To shard 0.
    connections: Sender<Accepted>,
    are_served: Cell<bool>,
}

impl Clients {
    /// `None` without such a listener.
    pub(super) fn new(config: &BrokerConfig, gate: Gate, connections: Sender<Accepted>) -> Option<Self> {
        let listener = config.controller_listeners.first()?.name.clone();
        let from_elsewhere = config.cluster.as_ref()?.clients_plaintext;
        Some(Self { listener, from_elsewhere, gate, connections, are_served: Cell::new(false) })
    }

    fn take(&self, client: KafkaClient) -> Result<(), &'static str> {
        if !self.are_served.get() {
            return Err("a client before this controller serves any");
        }
        if !client.is_local && !self.from_elsewhere {
            return Err("a client from another machine, and kuring.controller.clients.plaintext is not set");
        }
        let Some(pass) = self.gate.enter_at_controller(&self.listener, client.peer.ip()) else {
            return Err("too many clients");
        };
        let accepted = Accepted::new(client.fd, client.peer, self.listener.clone(), pass);
        // Refused: the shard has stopped, and the connection is closed with it.
        let _ = self.connections.push(accepted);
        Ok(())
    }
}

/// Answers the other nodes.
struct Controllers {
    shard: Rc<Shard>,
    quorum: Rc<Quorum>,
    clients: Rc<Clients>,
}

impl Controllers {
    async fn answer(&self, from: &Identity, request: &Request) -> Result<Vec<u8>, PeerError> {
        match request.key {
            PeerKey::BrokerRegistration => {
                let registration = broker_registration::read_request(&request.body)
                    .map_err(|_| PeerError::Malformed("a registration that does not decode"))?;
                let result = self.submit(from, Command::RegisterBroker(registration)).await;
                broker_registration::answer(&result.map(Response::broker_epoch))
                    .map_err(|_| PeerError::Malformed("an answer that cannot be said"))
            }
            PeerKey::BrokerHeartbeat => {
                let beat = broker_heartbeat::read_request(&request.body)
                    .map_err(|_| PeerError::Malformed("a heartbeat that does not decode"))?;
                let result = self.submit(from, Command::Heartbeat(beat)).await;
                broker_heartbeat::answer(&result.map(Response::broker_state))
                    .map_err(|_| PeerError::Malformed("an answer that cannot be said"))
            }
            PeerKey::AssignReplicasToDirs => {
                let assignment = assign_replicas::read_request(&request.body)
                    .map_err(|_| PeerError::Malformed("directories of replicas that do not decode"))?;
                let result = self.submit(from, Command::AssignDirectories(assignment.clone())).await;
                assign_replicas::answer(&assignment, &result.map(Response::directories_assigned))
                    .map_err(|_| PeerError::Malformed("an answer that cannot be said"))
            }
            PeerKey::Command => {
                let result = match decode_command(&request.body) {
                    Ok(command) => self.submit(from, command).await,
                    Err(error) => {
                        tracing::warn!(node = %from.node, "a command does not decode: {error}");
                        let text = format!("The controller does not understand the command: {error}.");
                        Err(Refusal::new(ErrorCode::UnsupportedVersion, text))
                    }
                };
                Ok(encode_result(self.quorum.image().version(), &result))
            }
            PeerKey::DescribeQuorum => Ok(QuorumDescription::encode(self.quorum.describe().as_ref())),
            _ => self.quorum.serve(from, request).await,
        }
    }

    /// What a broker says of a broker it says of itself.
    async fn submit(&self, from: &Identity, command: Command) -> Result<Response, Refusal> {
        let of = match &command {
            Command::RegisterBroker(request) => Some(request.id),
            Command::Heartbeat(beat) => Some(beat.id),
            Command::AlterPartition(request) => Some(request.broker),
            Command::AssignDirectories(request) => Some(request.broker),
            Command::RegisterController(controller) => Some(controller.id),
            Command::AllocateProducerIds { broker, .. }
            | Command::ReplicasOffline { broker, .. }
            | Command::DirectoryFailed { broker, .. } => Some(*broker),
            _ => None,
        };
        if of.is_some_and(|id| id != from.node) {
            let text = "A node speaks for itself only.";
            return Err(Refusal::new(ErrorCode::ClusterAuthorizationFailed, text));
        }
        submit_here(&self.shard, &self.quorum, command).await
    }
}

impl Service for Controllers {
    fn answer<'a>(&'a self, from: &'a Identity, request: &'a Request) -> Answering<'a> {
        Box::pin(Controllers::answer(self, from, request))
    }

    fn take(&self, client: KafkaClient) -> Result<(), &'static str> {
        self.clients.take(client)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::config::ConnectionLimits;
    use crate::io::runtime::mailbox;

    #[test]
    fn clients_from_other_machines_come_by_leave_and_nobody_before_there_are_services() {
        let limits = ConnectionLimits {
            total: 1,
            per_ip: 10,
            per_ip_overrides: BTreeMap::new(),
            creation_per_second: u32::MAX,
            per_listener: Default::default(),
        };
        let gate = Gate::new(limits, 1, None, None);
        let (connections, mut arrived) = mailbox();
        let listener = ListenerName::new("CONTROLLER");
        let mut clients =
            Clients { listener, from_elsewhere: false, gate, connections, are_served: Cell::new(false) };
        let come = |clients: &Clients, is_local| {
            let (fd, _) = UnixStream::pair().unwrap();
            clients.take(KafkaClient { fd: fd.into(), peer: SocketAddr::from(([10, 0, 0, 7], 1)), is_local })
        };
        assert!(come(&clients, true).is_err());
        clients.are_served.set(true);
        assert!(come(&clients, false).is_err_and(|why| why.contains("kuring.controller.clients.plaintext")));
        assert!(come(&clients, true).is_ok());
        let mut taken = Vec::new();
        assert_eq!(arrived.try_drain_into(&mut taken), 1);
        assert!(come(&clients, true).is_err(), "there is one place");
        drop(taken);
        clients.from_elsewhere = true;
        assert!(come(&clients, false).is_ok());
    }
}
