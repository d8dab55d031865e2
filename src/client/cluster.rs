//! A cluster as seen from one thread: the connections, the metadata cache, and calls that wait for their
//! answer and are tried again while that can help.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::{FindCoordinatorRequest, MetadataRequest};
use kafka_protocol::protocol::{Request, StrBytes};

use super::backoff::Backoff;
use super::error::{ClientError, Result, code_name};
use super::metadata::Metadata;
use super::network::{Event, Lost, Network, NetworkConfig, NodeId, Token, decode};
use crate::base::clock::{Monotonic, monotonic};
use crate::base::random::Random;
use crate::base::{BrokerId, TopicName, TopicPartition};
use crate::wire::ErrorCode;

#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// `host:port`, separated by commas.
    pub bootstrap: String,
    pub network: NetworkConfig,
    /// How long a call is tried before its last error is told (`default.api.timeout.ms`).
    pub call_timeout: Duration,
    /// How long brokers that refuse the connection are tried before that error is told.
    pub refused_timeout: Duration,
    /// `metadata.max.age.ms`.
    pub metadata_age_max: Duration,
    /// The first and the longest wait before a retry (`retry.backoff.ms`, `retry.backoff.max.ms`).
    pub retry_backoff: (Duration, Duration),
    /// Whether a topic that does not exist may be created by asking for it.
    pub create_topics: bool,
}

impl ClusterConfig {
    pub fn new(bootstrap: &str) -> Self {
        Self {
            bootstrap: bootstrap.to_owned(),
            network: NetworkConfig::default(),
            call_timeout: Duration::from_secs(60),
            refused_timeout: Duration::from_secs(3),
            metadata_age_max: Duration::from_secs(300),
            retry_backoff: (Duration::from_millis(100), Duration::from_secs(1)),
            create_topics: true,
        }
    }
}

/// Whom a call goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The broker with the fewest requests in flight.
    Any,
    Broker(BrokerId),
    Controller,
    Leader(TopicPartition),
}

/// What FindCoordinator is asked for.
const GROUP: i8 = 0;
const TRANSACTIONAL_ID: i8 = 1;

/// One thread's view of a cluster.
pub struct Cluster {
    pub network: Network,
    pub metadata: Metadata,
    config: ClusterConfig,
    bootstrap: Vec<NodeId>,
    random: Random,
    refreshing: Option<Token>,
}

impl Cluster {
    /// Reads the bootstrap addresses; connects to nobody yet.
    pub fn new(config: ClusterConfig) -> Result<Self> {
        let mut network = Network::new(config.network.clone());
        let mut bootstrap = Vec::new();
        for address in config.bootstrap.split(',').map(str::trim).filter(|address| !address.is_empty()) {
            let (host, port) = split_address(address)?;
            let id = NodeId::Bootstrap(bootstrap.len());
            network.set_address(id, host, port);
            bootstrap.push(id);
        }
        if bootstrap.is_empty() {
            let reason = "no host:port in it".to_owned();
            return Err(ClientError::Resolve { address: config.bootstrap, reason });
        }
        let metadata = Metadata::new(config.metadata_age_max, config.retry_backoff);
        Ok(Self { network, metadata, config, bootstrap, random: Random::from_os(), refreshing: None })
    }

    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// Calls `target` and waits for the answer. Lost connections and missing leaders are tried again until
    /// `call_timeout`; `build` makes the request for the version that is spoken. Error codes inside the
    /// answer are the caller's, see [`Cluster::retry`].
    pub fn call<R: Request>(
        &mut self,
        target: &Target,
        mut build: impl FnMut(i16) -> R,
    ) -> Result<R::Response> {
        let timeout = self.config.network.request_timeout;
        self.retry(|cluster, deadline| {
            let node = cluster.node(target, deadline)?;
            cluster.call_node(node, timeout, &mut build)
        })
    }

    /// Runs `attempt` until it succeeds, fails for good, or the time is over; then the last error is told.
    /// Waits grow between attempts, and the metadata is refreshed before the next.
    pub fn retry<T>(&mut self, mut attempt: impl FnMut(&mut Self, Monotonic) -> Result<T>) -> Result<T> {
        let start = monotonic();
        let deadline = start.plus(self.config.call_timeout);
        let (first, max) = self.config.retry_backoff;
        let mut backoff = Backoff::new(first, max);
        loop {
            let error = match attempt(self, deadline) {
                Ok(done) => return Ok(done),
                Err(error) if error.is_retriable() => error,
                Err(error) => return Err(error),
            };
            let wait = backoff.failed(&mut self.random);
            let now = monotonic();
            let refused = matches!(error, ClientError::Connect { .. })
                && now.since(start) > self.config.refused_timeout.min(self.config.call_timeout);
            if refused || now.plus(wait) >= deadline {
                return Err(error);
            }
            tracing::debug!(%error, "trying again");
            std::thread::sleep(wait);
            self.metadata.refresh();
        }
    }

    /// One call to one node, which is waited for.
    pub fn call_node<R: Request>(
        &mut self,
        node: NodeId,
        timeout: Duration,
        build: impl FnOnce(i16) -> R,
    ) -> Result<R::Response> {
        let deadline = monotonic().plus(self.config.network.connect_timeout);
        self.wait_ready(node, deadline)?;
        let version = self.network.version::<R>(node)?;
        let request = build(version);
        let token = self.network.send_within(node, version, &request, monotonic(), timeout)?;
        let (version, body) = self.wait_answer(token)?;
        decode::<R>(version, body)
    }

    /// The node of a target, found with the help of the metadata.
    pub fn node(&mut self, target: &Target, deadline: Monotonic) -> Result<NodeId> {
        match target {
            Target::Any => self.any_node(deadline),
            Target::Broker(broker) => {
                if !self.network.knows(NodeId::Broker(*broker)) {
                    self.refresh_metadata(deadline)?;
                }
                let unknown = || ClientError::Lost {
                    address: format!("broker {broker}"),
                    reason: "the cluster does not list it".into(),
                };
                self.network
                    .knows(NodeId::Broker(*broker))
                    .then_some(NodeId::Broker(*broker))
                    .ok_or_else(unknown)
            }
            Target::Controller => {
                if self.metadata.controller().is_none() || self.metadata.is_due(monotonic()) {
                    self.refresh_metadata(deadline)?;
                }
                let none = || ClientError::broker("find the controller", ErrorCode::NotController, None);
                self.metadata.controller().map(NodeId::Broker).ok_or_else(none)
            }
            Target::Leader(partition) => {
                self.metadata.want(&partition.topic);
                if self.metadata.leader(partition).is_none() || self.metadata.is_due(monotonic()) {
                    self.refresh_metadata(deadline)?;
                }
                match (self.metadata.topic(&partition.topic), self.metadata.leader(partition)) {
                    (_, Some(leader)) => Ok(NodeId::Broker(leader.broker)),
                    (Some(Err(code)), None) => {
                        Err(ClientError::broker(format!("topic {}", partition.topic), code, None))
                    }
                    (known, None) => {
                        let exists = known.is_some_and(|topic| {
                            topic.is_ok_and(|topic| {
                                topic.partitions.iter().any(|p| p.index == partition.partition)
                            })
                        });
                        let code = if exists {
                            ErrorCode::LeaderNotAvailable
                        } else {
                            ErrorCode::UnknownTopicOrPartition
                        };
                        Err(ClientError::broker(format!("partition {partition}"), code, None))
                    }
                }
            }
        }
    }

    /// Asks for the wanted topics now and waits for the answer.
    pub fn refresh_metadata(&mut self, deadline: Monotonic) -> Result<()> {
        let node = self.any_node(deadline)?;
        let timeout = self.config.network.request_timeout;
        let create = self.config.create_topics;
        let request = self.metadata.request(create);
        let response =
            self.call_node::<MetadataRequest>(node, timeout, |version| for_version(request, version))?;
        self.apply_metadata(&response);
        Ok(())
    }

    /// Waits until the topic is known, with its partition count above zero.
    pub fn topic(&mut self, topic: &TopicName) -> Result<()> {
        self.metadata.want(topic);
        self.retry(|cluster, deadline| {
            if !matches!(cluster.metadata.topic(topic), Some(Ok(_))) || cluster.metadata.is_due(monotonic()) {
                cluster.refresh_metadata(deadline)?;
            }
            match cluster.metadata.topic(topic) {
                Some(Ok(_)) => Ok(()),
                Some(Err(code)) => Err(ClientError::broker(format!("topic {topic}"), code, None)),
                None => Err(ClientError::broker(
                    format!("topic {topic}"),
                    ErrorCode::UnknownTopicOrPartition,
                    None,
                )),
            }
        })
    }

    /// The coordinator of a group.
    pub fn coordinator(&mut self, group: &str) -> Result<NodeId> {
        self.find_coordinator(GROUP, "group", group)
    }

    /// The coordinator of a transactional id.
    pub fn transaction_coordinator(&mut self, id: &str) -> Result<NodeId> {
        self.find_coordinator(TRANSACTIONAL_ID, "transactional id", id)
    }

    fn find_coordinator(&mut self, key_type: i8, kind: &str, name: &str) -> Result<NodeId> {
        let key = StrBytes::from_string(name.to_owned());
        self.retry(|cluster, deadline| {
            let node = cluster.node(&Target::Any, deadline)?;
            let timeout = cluster.config.network.request_timeout;
            let response = cluster.call_node::<FindCoordinatorRequest>(node, timeout, |version| {
                let request = FindCoordinatorRequest::default();
                let request = if version > 0 { request.with_key_type(key_type) } else { request };
                match version {
                    0..=3 => request.with_key(key.clone()),
                    _ => request.with_coordinator_keys(vec![key.clone()]),
                }
            })?;
            let found = response.coordinators.first();
            let (code, id) =
                found.map_or((response.error_code, response.node_id), |c| (c.error_code, c.node_id));
            let (host, port) = found.map_or((&response.host, response.port), |c| (&c.host, c.port));
            if let Some(code) = ErrorCode::try_from_code(code) {
                return Err(ClientError::broker(
                    format!("find the coordinator of {kind} {name}"),
                    code,
                    None,
                ));
            }
            let node = NodeId::Broker(BrokerId(id.0));
            cluster.network.set_address(node, host, u16::try_from(port).unwrap_or(0));
            Ok(node)
        })
    }

    /// Sends what is due by itself, waits up to `timeout` for events, and returns those of the caller's own
    /// requests. Refreshes of the metadata happen in here.
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<Event>> {
        let now = monotonic();
        self.start_refresh(now);
        let timeout = if self.refreshing.is_none() {
            timeout.min(self.metadata.due_in(now).max(Duration::from_millis(5)))
        } else {
            timeout
        };
        let events = self.network.poll(timeout, now)?;
        let mut others = Vec::with_capacity(events.len());
        for event in events {
            match event {
                Event::Answer { token, version, body } if Some(token) == self.refreshing => {
                    self.refreshing = None;
                    match decode::<MetadataRequest>(version, body) {
                        Ok(response) => self.apply_metadata(&response),
                        Err(_) => self.metadata.failed(&mut self.random, monotonic()),
                    }
                }
                Event::Lost(Lost { token, .. }) if Some(token) == self.refreshing => {
                    self.refreshing = None;
                    self.metadata.failed(&mut self.random, monotonic());
                }
                other => others.push(other),
            }
        }
        Ok(others)
    }

    /// Waits until a request can be sent to `node`.
    pub fn wait_ready(&mut self, node: NodeId, deadline: Monotonic) -> Result<()> {
        loop {
            let now = monotonic();
            if self.network.ready(node, now) {
                return Ok(());
            }
            if let Some(error) = self.network.failure(node) {
                return Err(error);
            }
            if now >= deadline {
                let after = self.config.network.connect_timeout;
                return Err(ClientError::TimedOut {
                    what: format!("connecting to {}", self.network.address(node)),
                    after,
                });
            }
            let events = self.network.poll(deadline.since(now).min(Duration::from_millis(100)), now)?;
            self.network.put_back(events);
        }
    }

    fn wait_answer(&mut self, wanted: Token) -> Result<(i16, Bytes)> {
        let mut others = Vec::new();
        let answer = loop {
            // The network ends every request by its own time-out.
            let events = self.network.poll(Duration::from_secs(1), monotonic())?;
            let mut answer = None;
            for event in events {
                match event {
                    Event::Answer { token, version, body } if token == wanted => {
                        answer = Some(Ok((version, body)))
                    }
                    Event::Lost(Lost { token, address, reason }) if token == wanted => {
                        answer = Some(Err(ClientError::Lost { address, reason }));
                    }
                    other => others.push(other),
                }
            }
            if let Some(answer) = answer {
                break answer;
            }
        };
        self.network.put_back(others);
        answer
    }

    /// The broker with the fewest requests in flight among those connected; else one that can be connected.
    fn any_node(&mut self, deadline: Monotonic) -> Result<NodeId> {
        let mut last = None;
        let mut nodes: Vec<NodeId> = self.metadata.brokers().keys().map(|&id| NodeId::Broker(id)).collect();
        let bootstrap = self.bootstrap.clone();
        let order: HashMap<NodeId, u64> =
            nodes.iter().chain(&bootstrap).map(|&node| (node, self.random.below(1 << 32))).collect();
        let now = monotonic();
        let by_load = |cluster: &mut Self, node: NodeId| {
            (!cluster.network.ready(node, now), cluster.network.in_flight(node), order[&node])
        };
        nodes.sort_by_cached_key(|&node| by_load(self, node));
        for node in nodes.into_iter().chain(bootstrap) {
            let deadline = deadline.min(monotonic().plus(self.config.network.connect_timeout));
            match self.wait_ready(node, deadline) {
                Ok(()) => return Ok(node),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is at least one bootstrap address"))
    }

    fn start_refresh(&mut self, now: Monotonic) {
        if self.refreshing.is_some() || !self.metadata.is_due(now) {
            return;
        }
        let brokers: Vec<NodeId> = self.metadata.brokers().keys().map(|&id| NodeId::Broker(id)).collect();
        let ready =
            brokers.into_iter().chain(self.bootstrap.clone()).find(|&node| self.network.ready(node, now));
        let Some(node) = ready else { return };
        let sent = self.network.version::<MetadataRequest>(node).and_then(|version| {
            let request = for_version(self.metadata.request(self.config.create_topics), version);
            self.network.send(node, version, &request, now)
        });
        match sent {
            Ok(token) => self.refreshing = Some(token),
            Err(_) => self.metadata.failed(&mut self.random, now),
        }
    }

    fn apply_metadata(&mut self, response: &kafka_protocol::messages::MetadataResponse) {
        if let Some(code) = ErrorCode::try_from_code(response.error_code) {
            tracing::debug!("metadata: {}", code_name(code));
            return self.metadata.failed(&mut self.random, monotonic());
        }
        self.metadata.apply(response, &mut self.random, monotonic());
        for (&id, broker) in self.metadata.brokers() {
            self.network.set_address(NodeId::Broker(id), &broker.host, broker.port);
        }
    }
}

/// Versions before 4 have no say in whether topics are created; version 0 asks for all with an empty list.
fn for_version(mut request: MetadataRequest, version: i16) -> MetadataRequest {
    if version < 4 {
        request.allow_auto_topic_creation = true;
    }
    request
}

fn split_address(address: &str) -> Result<(&str, u16)> {
    let malformed = || ClientError::Resolve { address: address.into(), reason: "host:port is wanted".into() };
    let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Err(malformed());
    }
    Ok((host, port.parse().map_err(|_| malformed())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_addresses_are_host_and_port() {
        assert_eq!(split_address("a:9092").expect("parses"), ("a", 9092));
        assert_eq!(split_address("[::1]:9092").expect("parses"), ("::1", 9092));
        for wrong in ["a", "a:", ":9092", "a:99999", "a:b"] {
            let error = split_address(wrong).expect_err(wrong);
            assert!(error.to_string().contains("host:port"), "{error}");
        }
        assert!(Cluster::new(ClusterConfig::new(" , ")).is_err());
    }

    #[test]
    fn a_refused_connection_is_told_with_its_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        drop(listener);
        let mut config = ClusterConfig::new(&address);
        config.refused_timeout = Duration::from_millis(10);
        let mut cluster = Cluster::new(config).expect("an address");
        let error = cluster.topic(&"t".into()).expect_err("nobody listens").to_string();
        assert!(error.starts_with(&format!("cannot connect to {address}: ")), "{error}");
    }
}
