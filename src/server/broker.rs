//! The life of the broker: its threads, its start on shard 0, its stop.

use std::cell::OnceCell;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use futures::future::{Either, select};

use super::StartError;
use super::cluster::{self, Clients, Cluster, Prepared};
use super::control::Services;
use super::directories::{self, Opened};
use super::heartbeats::Heartbeats;
use super::import;
use super::plan::{Plan, raise_open_files};
use super::publish::Publisher;
use super::road::Road;
use super::strays;
use crate::admin::{self, Admin, ControlSources, Desk, Line, Phase};
use crate::api::{configs, group_driver, share_driver, txn_driver};
use crate::base::{BrokerEpoch, BrokerId, clock, fatal};
use crate::config::{self, BrokerConfig};
use crate::io::limits;
use crate::io::net::Listener;
use crate::io::os::OsFiles;
use crate::io::runtime::{Mailbox, Queue, Sender, ShardBuilder, mailbox, sleep, spawn};
use crate::io::signal;
use crate::metadata::{self, ClusterSettings, Command, ControllerSettings, Image, RegisterBroker, Stamp};
use crate::net::{Accepted, Connections, Gate, Listening, listen};
use crate::raft::{self, Quorum};
use crate::replica::Fetchers;
use crate::shard::messages::{CheckpointEntry, Reply, Request};
use crate::shard::{
    Directories, Lanes, QuotaMeters, ReplicationMeters, Settings, Shard, lanes, start_cleaner,
    write_last_checkpoints,
};

/// How long a stop waits for requests in service before their connections are cut.
const DRAIN_MAX: Duration = Duration::from_millis(1000);

/// How often a stop looks whether the connections have ended.
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// The metadata log's directory beside the partitions'.
pub(super) const METADATA_DIR: &str = "kuring-metadata";

/// A listener that is bound and accepts nothing yet.
struct Bound {
    listener: Listener,
    config: config::Listener,
}

/// What shard 0 tells another shard to do when the broker stops.
struct StopOrders {
    drain: oneshot::Receiver<()>,
    drained: oneshot::Sender<()>,
    exit: oneshot::Receiver<()>,
}

/// Shard 0's ends of [`StopOrders`].
struct StopLine {
    drain: oneshot::Sender<()>,
    drained: oneshot::Receiver<()>,
    exit: oneshot::Sender<()>,
}

/// Starts the broker and returns when it has stopped.
pub(super) fn run(mut config: BrokerConfig) -> Result<(), StartError> {
    cluster::settle(&mut config)?;
    let plan = Plan::new(&config)?;
    let bound = bind(&config)?;
    let prepared = Prepared::new(&config)?;
    let admin = start_admin(&config)?;
    let opened = directories::open(&config)?;
    let open_files = raise_open_files(&config, opened.partitions);
    let (stop, stops) = mpsc::unbounded();
    signal::on_stop(move |name| {
        let _ = stop.unbounded_send(name);
    })
    .map_err(|error| StartError::Io { what: "signals", error })?;

    let shards = plan.shards();
    if let Some(only) = &config.connection_shards
        && !only.iter().any(|&shard| shard < usize::from(shards))
    {
        return Err(StartError::NoShardForConnections { shards });
    }
    let greetings = match &prepared {
        Some(prepared) => Some(prepared.greetings(&config, &opened.cluster_id, &opened.directories)?),
        None => None,
    };
    let quotas = Arc::new(QuotaMeters::new(&config.quotas));
    let replication = Arc::new(ReplicationMeters::new(config.replication_windows, clock::monotonic()));
    let settings = Settings {
        broker: config.node_id,
        config: Arc::new(config),
        directories: opened.directories.clone(),
        greetings,
        controller: Arc::default(),
        quotas,
        replication,
    };
    let (senders, mailboxes): (Vec<Sender<Accepted>>, Vec<Mailbox<Accepted>>) =
        (0..shards).map(|_| mailbox()).unzip();
    let (admin_lines, desks): (Vec<Line>, Vec<Desk>) = (0..shards).map(|_| admin::desk()).unzip();
    let ends = lanes(shards).into_iter().zip(mailboxes).zip(desks);
    let shards_of = |((lanes, accepted), desk)| Ends { lanes, accepted, desk, shards: senders.clone() };
    let mut ends = ends.map(shards_of);
    let Some(first_ends) = ends.next() else {
        return Err(StartError::Cpu("no core to run a shard on".into()));
    };
    let gate = Gate::new(
        settings.config.connection_limits.clone(),
        shards,
        settings.config.connection_shards.as_deref(),
        (settings.config.listeners.len() > 1).then(|| settings.config.inter_broker_listener.clone()),
    );
    gate.keep_to_descriptors(open_files.connections);
    let mut threads = Vec::new();
    let mut lines = Vec::new();
    for (number, ends) in ends.enumerate() {
        let (orders, line) = stop_line();
        lines.push(line);
        let settings = settings.clone();
        let name = format!("shard-{}", number + 1);
        let thread = ShardBuilder::new(name)
            .cpu(plan.cores[number + 1])
            .spawn(move || run_shard(ends, settings, orders))
            .map_err(|error| StartError::Io { what: "a shard's executor", error })?;
        threads.push(thread);
    }
    admin.connect(admin::Sources {
        config: settings.config.clone(),
        directories: settings.directories.clone(),
        gate: gate.clone(),
        lines: admin_lines,
        open_files_needed: open_files.need,
    });
    let leader = Leader { settings, opened, bound, prepared, senders, lines, shards, gate, admin };
    let first = ShardBuilder::new("shard-0")
        .cpu(plan.cores[0])
        .spawn(move || leader.run(first_ends, stops))
        .map_err(|error| StartError::Io { what: "a shard's executor", error })?;
    let result = first.join();
    if result.is_ok() {
        for thread in threads {
            thread.join();
        }
    }
    result
}

fn stop_line() -> (StopOrders, StopLine) {
    let (drain, drain_order) = oneshot::channel();
    let (drained_report, drained) = oneshot::channel();
    let (exit, exit_order) = oneshot::channel();
    (
        StopOrders { drain: drain_order, drained: drained_report, exit: exit_order },
        StopLine { drain, drained, exit },
    )
}

/// Binds every listener before anything else starts: a port in use is the commonest mistake.
fn bind(config: &BrokerConfig) -> Result<Vec<Bound>, StartError> {
    let mut bound = Vec::new();
    for listener in &config.listeners {
        bound.push(Bound { listener: bind_to(listener, config)?, config: listener.clone() });
    }
    Ok(bound)
}

pub(super) fn bind_to(listener: &config::Listener, config: &BrokerConfig) -> Result<Listener, StartError> {
    let host = if listener.host.is_empty() { "::" } else { &listener.host };
    let mut listening = resolve(host, listener.port)
        .and_then(|address| Listener::bind(address, config.socket_listen_backlog as i32));
    if listening.is_err() && listener.host.is_empty() {
        // A machine without IPv6.
        listening = resolve("0.0.0.0", listener.port)
            .and_then(|address| Listener::bind(address, config.socket_listen_backlog as i32));
    }
    listening.map_err(|error| StartError::Bind {
        listener: listener.name.as_str().to_owned(),
        address: format!("{host}:{}", listener.port),
        error,
    })
}

/// Opens the admin listener first of all, so that the start can be watched. Two nodes on one host share the
/// default port: the second says so and goes without, because nobody asked for it; an address that somebody
/// has set must be had.
fn start_admin(config: &BrokerConfig) -> Result<Admin, StartError> {
    let Some(listener) = &config.admin_listener else { return Ok(Admin::off()) };
    let address = format!("{}:{}", listener.host, listener.port);
    match Admin::start(listener) {
        Ok(admin) => {
            if let Some(address) = admin.address() {
                tracing::info!(%address, "admin listener: /metrics, /health, /ready");
            }
            Ok(admin)
        }
        Err(error) if listener.is_given => Err(StartError::BindAdmin { address, error }),
        Err(error) => {
            tracing::warn!(
                address,
                "NO METRICS AND NO HEALTH: the default of kuring.admin.listener cannot be bound: {error}; set \
                 it to an address of this node's own"
            );
            Ok(Admin::off())
        }
    }
}

fn resolve(host: &str, port: u16) -> std::io::Result<SocketAddr> {
    (host, port)
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, "the host name has no address"))
}

/// Says which features this cluster lacks because it is older than they are.
fn tell_features(image: &Image) {
    let below: Vec<String> = metadata::below_initial(image)
        .iter()
        .map(|(feature, level)| format!("{} is {level}, {} in a new cluster", feature.name, feature.initial))
        .collect();
    if !below.is_empty() {
        tracing::info!(
            "features are off or at an old level, and stay so until kafka-features.sh raises them (upgrade --feature \
             NAME=LEVEL): {}",
            below.join("; ")
        );
    }
}

/// What a shard takes with it of what was made before it.
struct Ends {
    lanes: Lanes,
    accepted: Mailbox<Accepted>,
    desk: Desk,
    /// Where connections are handed over to.
    shards: Vec<Sender<Accepted>>,
}

/// The root of every shard but the first.
async fn run_shard(ends: Ends, settings: Settings, orders: StopOrders) {
    let shard = Shard::start(ends.lanes, settings);
    let connections = Connections::start(&shard, ends.accepted, ends.shards);
    ends.desk.serve(&shard, &connections, Rc::default());
    start_fetchers(&shard);
    if orders.drain.await.is_ok() {
        drain(&shard, &connections).await;
        let _ = orders.drained.send(());
        let _ = orders.exit.await;
    }
}

/// Has the shard's followers fetch, where there are other brokers and this is one.
fn start_fetchers(shard: &Rc<Shard>) {
    if let Some(greetings) = shard.settings().greetings.clone().filter(|_| shard.config().is_broker) {
        Fetchers::start(shard, greetings);
    }
}

/// Lets connections finish what is in service, then cuts the rest.
async fn drain(shard: &Rc<Shard>, connections: &Connections) {
    connections.drain();
    shard.release_all_fetches();
    let deadline = clock::monotonic().plus(DRAIN_MAX);
    while !connections.is_empty() && clock::monotonic() < deadline {
        sleep(DRAIN_POLL).await;
    }
    connections.close_all();
}

/// The root of shard 0.
struct Leader {
    settings: Settings,
    opened: Opened,
    bound: Vec<Bound>,
    /// Of a node among others.
    prepared: Option<Prepared>,
    senders: Vec<Sender<Accepted>>,
    lines: Vec<StopLine>,
    shards: u16,
    gate: Gate,
    admin: Admin,
}

impl Leader {
    async fn run(
        mut self,
        ends: Ends,
        mut stops: mpsc::UnboundedReceiver<&'static str>,
    ) -> Result<(), StartError> {
        let shard = Shard::start(ends.lanes, self.settings.clone());
        let connections = Connections::start(&shard, ends.accepted, ends.shards);
        let control = Rc::new(OnceCell::new());
        ends.desk.serve(&shard, &connections, control.clone());
        start_fetchers(&shard);
        let config = shard.config().clone();
        let mut cluster = match self.prepared.take() {
            Some(prepared) => {
                let (id, directories) = (&self.opened.cluster_id, &self.opened.directories);
                Some(prepared.into_cluster(&config, id, directories)?)
            }
            None => None,
        };
        let opening = self.open_quorum(&config, cluster.as_ref());
        let quorum = match config.cluster.as_ref().is_some_and(|cluster| cluster.changing.is_some()) {
            false => opening.await?,
            // It may wait for whoever leads to give it a log.
            true => match select(pin!(opening), stops.next()).await {
                Either::Left((opened, _)) => opened?,
                Either::Right((signal, _)) => {
                    tracing::info!(signal, "stopping before there is a metadata log");
                    return Ok(());
                }
            },
        };
        let mut road = None;
        if let Some(cluster) = &mut cluster {
            if let Some(clients) = Clients::new(&config, self.gate.clone(), self.senders[0].clone()) {
                cluster.serve(&shard, &quorum, clients)?;
            }
            Cluster::follow_leadership(&quorum, self.settings.controller.clone());
            road = Some(cluster.road(&shard, &quorum));
        }
        let gate = self.gate.clone();
        let groups = group_driver::Driver::start(&shard);
        let transactions = txn_driver::Driver::start(&shard);
        let shares = share_driver::Driver::start(&shard);
        // It is empty: this is the only place that fills it.
        let _ = control.set(ControlSources {
            quorum: quorum.clone(),
            groups: groups.clone(),
            transactions: transactions.clone(),
        });
        let publisher =
            Publisher::new(shard.clone(), gate.clone(), groups.clone(), transactions.clone(), shares.clone());
        let services = Services {
            shard: shard.clone(),
            quorum: quorum.clone(),
            road: road.clone(),
            publisher: publisher.clone(),
            groups: groups.clone(),
            transactions: transactions.clone(),
            shares: shares.clone(),
        };
        shard.set_control(Rc::new(services));

        if let (false, Some(own), Some(road)) = (config.is_broker, &cluster, &road) {
            own.register_controller(road.clone(), &config);
            Cluster::follow_images(&quorum, publisher.clone(), None);
            own.open_to_clients();
            self.control(own, &quorum, &publisher, &mut stops).await;
            self.admin.set_phase(Phase::Stopping);
            gate.close();
            self.stop(&shard, &connections, (&quorum, cluster), Vec::new(), None).await;
            tracing::info!("stopped");
            return Ok(());
        }
        let registration = self.registration(&config, cluster.as_ref());
        let registering = self.register(&quorum, &registration, cluster.as_ref().zip(road.as_deref()));
        let epoch = match cluster.is_some() {
            false => registering.await?,
            // The others may be long in coming.
            true => match select(pin!(registering), stops.next()).await {
                Either::Left((registered, _)) => registered?,
                Either::Right((signal, _)) => {
                    tracing::info!(signal, "stopping before there is a controller");
                    quorum.shutdown().await;
                    return Ok(());
                }
            },
        };
        let mut heartbeats = None;
        if let (Some(cluster), Some(road)) = (&cluster, road) {
            cluster.register_controller(road.clone(), &config);
            let started = Heartbeats::start(road, publisher.clone(), registration, epoch, &cluster.config);
            Cluster::follow_images(&quorum, publisher.clone(), Some(started.clone()));
            heartbeats = Some(started);
        }
        if let Some(signal) = self.open_logs(&publisher, &quorum, &mut stops).await {
            tracing::info!(signal, "stopping before the logs are open");
            transactions.stop();
            shares.stop();
            groups.stop();
            if let Some(heartbeats) = heartbeats {
                heartbeats.end();
            }
            self.stop(&shard, &connections, (&quorum, cluster), Vec::new(), Some(epoch)).await;
            tracing::info!("stopped");
            return Ok(());
        }
        shard.report_lost_replicas().await;
        strays::put_aside(&shard, &quorum.image()).await;
        self.remove_deleted(&shard);
        shard.make_reserves();
        // Of 100,000 partitions the start leaves 60 MiB of holes.
        self.opened.directories.threads.run("give memory back", limits::give_back_freed_memory).await;
        let listening = self.listen(&gate)?;
        start_checkpoints(&shard);
        start_cleaner(&shard);
        strays::start_removal(&shard);
        // A broker among others leads, and is shown to clients, from here on.
        let is_in_service = match &heartbeats {
            None => true,
            Some(heartbeats) => {
                let coming = heartbeats.come_into_service();
                matches!(select(pin!(coming), stops.next()).await, Either::Left(_))
            }
        };
        if is_in_service {
            cluster.iter().for_each(Cluster::open_to_clients);
            self.admin.set_phase(Phase::Serving);
            let addresses: Vec<String> = listening.iter().map(|it| it.local_addr().to_string()).collect();
            let addresses = format!("bootstrap {}", addresses.join(","));
            announce(config.node_id, &addresses, self.shards, &self.admin);
            tell_features(&quorum.image());

            // The thread that waits for signals has logged which one came.
            if stops.next().await.is_none() {
                tracing::error!("stopping: the thread that waits for signals has ended");
            }
        }
        self.admin.set_phase(Phase::Stopping);
        let mut epoch = epoch;
        if let (Some(heartbeats), Some(cluster)) = (heartbeats, &cluster) {
            heartbeats.shut_down(cluster.config.failover).await;
            epoch = heartbeats.epoch();
        }
        transactions.stop();
        shares.stop();
        groups.stop();
        gate.close();
        self.stop(&shard, &connections, (&quorum, cluster), listening, Some(epoch)).await;
        tracing::info!("stopped");
        Ok(())
    }

    /// The time of a node that is no broker until it is told to stop. It serves once the cluster knows it, as it has started
    /// now: whoever leads has heard of it then, and it has what that one has written.
    async fn control(
        &self,
        cluster: &Cluster,
        quorum: &Quorum,
        publisher: &Rc<Publisher>,
        stops: &mut mpsc::UnboundedReceiver<&'static str>,
    ) {
        let partitions = self.opened.directories.start_list.len();
        if partitions > 0 {
            tracing::warn!(
                partitions,
                "there are partitions on disk, and this node is no broker: they are left alone"
            );
        }
        self.opened.directories.threads.run("give memory back", limits::give_back_freed_memory).await;
        let coming = async {
            match cluster.registered(quorum).await {
                Some(image) => publisher.publish(image).await,
                // It is closed by a signal alone, which is waited for beside this.
                None => std::future::pending().await,
            }
        };
        if let Either::Right((signal, _)) = select(pin!(coming), stops.next()).await {
            tracing::info!(signal, "stopping before there is a controller");
            return;
        }
        self.admin.set_phase(Phase::Serving);
        let listener = cluster.local_addr().map(|address| format!("controller {address}"));
        announce(self.settings.broker, &listener.unwrap_or_default(), self.shards, &self.admin);
        // Before the first broker comes the cluster has none.
        Some(quorum.image())
            .filter(|image| image.brokers().next().is_some())
            .iter()
            .for_each(|it| tell_features(it));
        if stops.next().await.is_none() {
            tracing::error!("stopping: the thread that waits for signals has ended");
        }
    }

    async fn open_quorum(
        &self,
        config: &BrokerConfig,
        cluster: Option<&Cluster>,
    ) -> Result<Rc<Quorum>, StartError> {
        if let Some(cluster) = cluster.filter(|cluster| cluster.config.observes) {
            let timing = raft::Timing::of(cluster.config.failover);
            return Ok(Quorum::observe(cluster.links(), timing, Rc::new(|reason| fatal(reason))));
        }
        let settings = |dir| {
            let mut settings = raft::Settings::new(config.node_id, &self.opened.cluster_id, dir);
            settings.controller = ControllerSettings {
                default_partitions: config.num_partitions,
                default_replication_factor: config.default_replication_factor,
                delete_topic_enable: config.delete_topics,
                quota_windows: config.quotas.controller_windows,
                cluster: config.cluster.as_ref().map(|cluster| ClusterSettings {
                    session_timeout: cluster.session_timeout,
                    rebalance_interval: cluster.rebalance_interval,
                    unclean_interval: cluster.unclean_interval,
                    stamp: Stamp {
                        elr: true,
                        min_isr: config.log.min_insync_replicas,
                        unclean_election: config.log.unclean_leader_election_enable,
                    },
                }),
            };
            settings
        };
        let dir = &config.metadata_log_dir;
        let place = import::Place { files: OsFiles, dir: dir.clone(), own: dir.join(METADATA_DIR) };
        let (own, threads) = (place.own.clone(), &self.opened.directories.threads);
        let rules = configs::Rules::shared(config);
        let mut settings_of_own = settings(own);
        match cluster {
            // There is no Kafka node's metadata: it was looked for.
            Some(cluster) => {
                settings_of_own.peers = Some(cluster.links());
                settings_of_own.changing = cluster.changing();
                settings_of_own.timing = raft::Timing::of(cluster.config.failover);
            }
            None => {
                settings_of_own.begin =
                    import::take_over(place, threads, rules.clone(), settings, config.node_id)
                        .await
                        .map_err(StartError::Metadata)?;
            }
        }
        Quorum::open(OsFiles, threads.clone(), rules, settings_of_own)
            .await
            .map_err(|error| StartError::Metadata(error.to_string()))
    }

    /// What the controller is told of this broker, with its endpoints as clients reach them.
    fn registration(&self, config: &BrokerConfig, cluster: Option<&Cluster>) -> RegisterBroker {
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let endpoints = self.bound.iter().filter_map(|bound| {
            let port = bound.listener.local_addr().port();
            let endpoint = bound.config.advertised_endpoint(port, &hostname)?;
            Some(metadata::Endpoint {
                listener: bound.config.name.as_str().to_owned(),
                host: endpoint.host,
                port: endpoint.port,
                security_protocol: bound.config.protocol.wire_id(),
            })
        });
        RegisterBroker {
            id: config.node_id,
            cluster_id: self.opened.cluster_id.clone(),
            incarnation: cluster
                .map_or_else(uuid::Uuid::new_v4, |cluster| cluster.links().identity().incarnation),
            endpoints: endpoints.collect(),
            rack: config.rack.clone(),
            log_dirs: self.opened.directories.list.iter().map(|dir| dir.log_dir.id().0).collect(),
            features: metadata::own_features(),
            fenced: cluster.is_some(),
            previous_epoch: self.opened.previous_epoch,
        }
    }

    async fn register(
        &self,
        quorum: &Quorum,
        registration: &RegisterBroker,
        cluster: Option<(&Cluster, &Road)>,
    ) -> Result<BrokerEpoch, StartError> {
        if let Some((cluster, road)) = cluster {
            return cluster.register(road, registration).await;
        }
        match quorum.submit(Command::RegisterBroker(registration.clone())).await {
            Ok(metadata::Response::BrokerRegistered { epoch }) => Ok(epoch),
            Ok(_) => fatal("a registration got another command's answer"),
            Err(refusal) => Err(StartError::Metadata(refusal.message)),
        }
    }

    /// Publishes the first image, with which every shard opens its logs; the signal, if one came before all were
    /// open: recovery is given up then.
    async fn open_logs(
        &self,
        publisher: &Rc<Publisher>,
        quorum: &Quorum,
        stops: &mut mpsc::UnboundedReceiver<&'static str>,
    ) -> Option<&'static str> {
        let publish = publisher.publish(quorum.image());
        match select(pin!(publish), stops.next()).await {
            Either::Left(_) => None,
            Either::Right((signal, publish)) => {
                self.opened.directories.stop_opening();
                publish.await;
                Some(signal.unwrap_or("end of the signal thread"))
            }
        }
    }

    fn remove_deleted(&mut self, shard: &Rc<Shard>) {
        for (directory, path) in self.opened.deleted.drain(..) {
            shard.remove_later(directory, path, Duration::ZERO);
        }
    }

    fn listen(&mut self, gate: &Gate) -> Result<Vec<Listening>, StartError> {
        let mut listening = Vec::new();
        for bound in self.bound.drain(..) {
            let started = listen(bound.config.name, bound.listener, gate.clone(), self.senders.clone());
            listening.push(started.map_err(|error| StartError::Io { what: "a listener's thread", error })?);
        }
        Ok(listening)
    }

    async fn stop(
        self,
        shard: &Rc<Shard>,
        connections: &Connections,
        (quorum, cluster): (&Quorum, Option<Cluster>),
        listening: Vec<Listening>,
        epoch: Option<BrokerEpoch>,
    ) {
        let directories = self.opened.directories.clone();
        directories.threads.run("stop listening", || listening.into_iter().for_each(Listening::stop)).await;
        let mut drained = Vec::new();
        let mut exits = Vec::new();
        for line in self.lines {
            let _ = line.drain.send(());
            drained.push(line.drained);
            exits.push(line.exit);
        }
        drain(shard, connections).await;
        for report in drained {
            let _ = report.await;
        }
        let mut entries = Vec::new();
        for reply in shard.ask_all(|| Request::Stop).await {
            match reply {
                Reply::Checkpoint(mut part) => entries.append(&mut part),
                _ => fatal("a stop got another request's answer"),
            }
        }
        // Of partitions that were never opened.
        let futures = directories.futures.take_rest();
        for entry in directories.start_list.take_rest().into_iter().chain(futures) {
            directories.mark_unclean(entry.directory);
            entries.push(entry.into());
        }
        let files = directories.clone();
        directories.threads.run("last checkpoints", move || close(&files, &entries, epoch)).await;
        quorum.shutdown().await;
        if let Some(cluster) = cluster {
            cluster.stop(&directories.threads).await;
        }
        for exit in exits {
            let _ = exit.send(());
        }
    }
}

/// The last checkpoints and, of a broker, the marker that spares the next start its recovery.
fn close(directories: &Directories, entries: &[CheckpointEntry], epoch: Option<BrokerEpoch>) {
    if let Err(error) = write_last_checkpoints(directories, entries) {
        tracing::error!("the last checkpoints were not written, the next start recovers: {error}");
        return;
    }
    let Some(epoch) = epoch else { return };
    for (index, directory) in directories.list.iter().enumerate() {
        if directories.has_failed(index) || directories.is_unclean(index) {
            continue;
        }
        if let Err(error) = directory.log_dir.mark_clean_shutdown(epoch) {
            tracing::error!("no clean-shutdown marker, the next start recovers: {error}");
        }
    }
}

fn start_checkpoints(shard: &Rc<Shard>) {
    let config = shard.config();
    let every = config
        .recovery_point_checkpoint_interval_ms
        .min(config.log_start_offset_checkpoint_interval_ms)
        .min(config.high_watermark_checkpoint_interval_ms);
    let every = Duration::from_millis(every.max(100));
    let shard = shard.clone();
    spawn(Queue::Back, "checkpoints", async move {
        loop {
            shard.sleep(every).await;
            if shard.is_stopping() {
                return;
            }
            shard.write_checkpoints().await;
        }
    })
    .detach();
}

/// The one line that says the node serves, where.
fn announce(node: BrokerId, addresses: &str, shards: u16, admin: &Admin) {
    let plural = if shards == 1 { "" } else { "s" };
    let admin = admin.address().map(|address| format!("admin {address}, ")).unwrap_or_default();
    println!(
        "kuring ready: node {node}, {shards} shard{plural}, {addresses}, {admin}{} ms",
        clock::monotonic().as_millis()
    );
}
