//! A node among others: its listener for controllers, its links, its part in the quorum, its registration.
//!
//! Unfinished, and reached through `kuring.cluster.unfinished` alone: the metadata is replicated, brokers that are gone
//! are fenced and others lead, the partitions are replicated and coordinators go with them; reassignments and more are
//! missing.

use std::collections::BTreeMap;
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
use crate::config::{BrokerConfig, ClusterConfig, PeerSecurity};
use crate::io::Files;
use crate::io::net::{Acceptor, Listener};
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, sleep, spawn};
use crate::io::threads::FileThreads;
use crate::metadata::{
    self, Command, ControllerImage, Endpoint, Image, Refusal, RegisterBroker, Response, decode_command,
    encode_result,
};
use crate::peer::{
    self, Answering, Greetings, Identity, Links, PeerError, PeerKey, Request, Roster, Secret, Security,
    Server, Service,
};
use crate::raft::{Quorum, QuorumDescription};
use crate::shard::{ControllerNote, Directories, Shard};
use crate::wire::ErrorCode;

/// A secret that others may read is none.
const OTHERS_MODE: u32 = 0o077;
const SECRET_BYTES_MAX: usize = 8 << 10;

const REGISTRATION_PAUSE: Duration = Duration::from_millis(50);
/// Nobody waits for it.
const CONTROLLER_REGISTRATION_PAUSE: Duration = Duration::from_secs(1);

/// What can be wrong is looked at before anything runs.
pub(super) struct Prepared {
    listener: Listener,
    security: Security,
    config: ClusterConfig,
    incarnation: uuid::Uuid,
}

/// The node's part in the cluster; lives on shard 0.
pub(super) struct Cluster {
    links: Rc<Links>,
    security: Security,
    listener: Option<Listener>,
    serving: Option<(Acceptor, Rc<Server>)>,
    pub(super) config: ClusterConfig,
}

impl Prepared {
    /// `None` for a node alone.
    pub(super) fn new(config: &BrokerConfig) -> Result<Option<Self>, StartError> {
        let (Some(cluster), Some(listener)) = (&config.cluster, config.controller_listeners.first()) else {
            return Ok(None);
        };
        let security = match &cluster.security {
            PeerSecurity::Loopback => Security::Loopback,
            PeerSecurity::Open => {
                tracing::warn!(
                    listener = %listener.name,
                    "kuring.peers.plaintext: whoever reaches this listener can speak as a controller"
                );
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
        tracing::warn!(
            "kuring.cluster.unfinished: FOR TESTS ALONE, replication is not finished: a lost node may take its data with it"
        );
        let listener = bind_to(listener, config)?;
        let incarnation = uuid::Uuid::new_v4();
        Ok(Some(Self { listener, security, config: cluster.clone(), incarnation }))
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
        let links = Links::new(identity, self.security.clone(), Rc::new(Roster::new(addresses)), threads);
        Ok(Cluster {
            links,
            security: self.security,
            listener: Some(self.listener),
            serving: None,
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

    pub(super) fn road(&self, shard: &Rc<Shard>, quorum: &Rc<Quorum>) -> Rc<Road> {
        // Two that get lost, and the third one comes within the session.
        let beat_time = self.config.session_timeout / 4;
        Road::new(shard.clone(), quorum.clone(), self.links(), self.config.failover, beat_time)
    }

    /// Lets the other controllers in: the quorum can form.
    pub(super) fn serve(&mut self, shard: &Rc<Shard>, quorum: &Rc<Quorum>) -> Result<(), StartError> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let (doorway, arrivals) = peer::arrivals();
        let service = Rc::new(Controllers { shard: shard.clone(), quorum: quorum.clone() });
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
        let identity = self.links.identity();
        let own = self.config.voters.iter().find(|voter| voter.node == identity.node);
        let endpoints = config.controller_listeners.first().zip(own).map(|(listener, own)| Endpoint {
            listener: listener.name.as_str().to_owned(),
            host: own.host.clone(),
            port: own.port,
            security_protocol: listener.protocol.wire_id(),
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

    /// Brings every image of the quorum to the shards: changes come from other nodes too. What becomes of a broker the
    /// others are told soon: one that stops waits until all know.
    pub(super) fn follow_images(quorum: &Quorum, publisher: Rc<Publisher>, heartbeats: Rc<Heartbeats>) {
        let mut images = quorum.subscribe();
        let mut before = images.current();
        spawn(Queue::Control, "images", async move {
            while let Some(image) = images.changed().await {
                publisher.send(image.clone()).await;
                if image.changes_since(&before).brokers_changed {
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

    /// Takes no more connections and closes those that are open.
    pub(super) async fn stop(self, threads: &FileThreads) {
        let Some((acceptor, server)) = self.serving else { return };
        threads.run("stop listening", || acceptor.stop()).await;
        server.stop();
    }
}

/// Answers the other nodes.
struct Controllers {
    shard: Rc<Shard>,
    quorum: Rc<Quorum>,
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
            _ => self.quorum.serve(from.node, request).await,
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
}
