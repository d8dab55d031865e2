//! A node among others: its listener for controllers, its links, its part in the quorum, its registration.
//!
//! Unfinished, and reached through `kuring.cluster.unfinished` alone: the metadata is replicated, the partitions are
//! not; brokers send no heartbeats; changes are taken by the controller's node only.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::StartError;
use super::broker::bind_to;
use super::import;
use super::publish::Publisher;
use crate::api::broker_registration;
use crate::base::{BrokerEpoch, BrokerId, clock};
use crate::config::{BrokerConfig, ClusterConfig, PeerSecurity};
use crate::io::Files;
use crate::io::net::{Acceptor, Listener};
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, sleep, spawn};
use crate::io::threads::FileThreads;
use crate::metadata::{Command, Refusal, RegisterBroker, Response};
use crate::peer::{
    self, Answering, Greetings, Identity, Lane, Links, PeerError, PeerKey, Request, Roster, Secret, Security,
    Server, Service,
};
use crate::raft::Quorum;
use crate::shard::Directories;
use crate::wire::ErrorCode;

/// A secret that others may read is none.
const OTHERS_MODE: u32 = 0o077;
const SECRET_BYTES_MAX: usize = 8 << 10;

/// How long a start waits for a controller that takes its registration
/// (Kafka's `initial.broker.registration.timeout.ms`).
const REGISTRATION_TIME_MAX: Duration = Duration::from_secs(60);
const REGISTRATION_CALL_MAX: Duration = Duration::from_secs(5);
const REGISTRATION_PAUSE: Duration = Duration::from_millis(50);

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
    pub(super) failover: Duration,
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
            "kuring.cluster.unfinished: PARTITIONS ARE NOT REPLICATED, a lost node takes its data with it"
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
            failover: self.config.failover,
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

    /// Lets the other controllers in: the quorum can form.
    pub(super) fn serve(&mut self, quorum: &Rc<Quorum>) -> Result<(), StartError> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let (doorway, arrivals) = peer::arrivals();
        let service = Rc::new(Controllers { quorum: quorum.clone() });
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
        quorum: &Quorum,
        registration: RegisterBroker,
    ) -> Result<BrokerEpoch, StartError> {
        let until = clock::monotonic().plus(REGISTRATION_TIME_MAX);
        let mut images = quorum.subscribe();
        let failed =
            |what: String| Err(StartError::Cluster(format!("this broker is not registered: {what}")));
        let mut obstacle = "there is no controller".to_owned();
        while clock::monotonic() < until {
            match self.try_to_register(quorum, &registration).await {
                Ok(Ok(epoch)) => {
                    // What this broker is told to be is in the image in which it is registered, or in a later one.
                    let is_known = |image: &crate::metadata::Image| {
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
                Ok(Err(code @ (ErrorCode::NotController | ErrorCode::RequestTimedOut))) => {
                    obstacle = code.to_string();
                }
                Ok(Err(code)) => return failed(code.to_string()),
                Err(error) => obstacle = error.to_string(),
            }
            sleep(REGISTRATION_PAUSE).await;
        }
        failed(format!("{obstacle}, for {REGISTRATION_TIME_MAX:?}"))
    }

    async fn try_to_register(
        &self,
        quorum: &Quorum,
        registration: &RegisterBroker,
    ) -> Result<Result<BrokerEpoch, ErrorCode>, PeerError> {
        let leadership = quorum.leadership();
        if leadership.is_own {
            return Ok(submit(quorum, registration.clone()).await.map_err(|refusal| refusal.code));
        }
        let Some(leader) = leadership.leader.filter(|leader| *leader != registration.id) else {
            return Ok(Err(ErrorCode::NotController));
        };
        let request = broker_registration::request(registration)
            .map_err(|_| PeerError::Malformed("a registration that cannot be said"))?;
        let link = self.links.link(leader, Lane::Control);
        let answer = link.call(PeerKey::BrokerRegistration, &request, REGISTRATION_CALL_MAX).await?;
        broker_registration::read_answer(&answer)
            .map_err(|_| PeerError::Malformed("an answer to a registration that does not decode"))
    }

    /// Brings every image of the quorum to the shards: changes come from other nodes too.
    pub(super) fn follow_images(quorum: &Quorum, publisher: Rc<Publisher>) {
        let mut images = quorum.subscribe();
        spawn(Queue::Control, "images", async move {
            while let Some(image) = images.changed().await {
                publisher.publish(image).await;
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

async fn submit(quorum: &Quorum, registration: RegisterBroker) -> Result<BrokerEpoch, Refusal> {
    match quorum.submit(Command::RegisterBroker(registration)).await? {
        Response::BrokerRegistered { epoch } => Ok(epoch),
        _ => Err(Refusal::new(ErrorCode::UnknownServerError, "It got another command's answer.")),
    }
}

/// Answers the other nodes.
struct Controllers {
    quorum: Rc<Quorum>,
}

impl Controllers {
    async fn answer(&self, from: &Identity, request: &Request) -> Result<Vec<u8>, PeerError> {
        if request.key != PeerKey::BrokerRegistration {
            return self.quorum.serve(request).await;
        }
        let registration = broker_registration::read_request(&request.body)
            .map_err(|_| PeerError::Malformed("a registration that does not decode"))?;
        let result = match registration.id == from.node {
            true => submit(&self.quorum, registration).await,
            false => {
                Err(Refusal::new(ErrorCode::ClusterAuthorizationFailed, "A node registers itself only."))
            }
        };
        broker_registration::answer(&result)
            .map_err(|_| PeerError::Malformed("an answer that cannot be said"))
    }
}

impl Service for Controllers {
    fn answer<'a>(&'a self, from: &'a Identity, request: &'a Request) -> Answering<'a> {
        Box::pin(Controllers::answer(self, from, request))
    }
}
