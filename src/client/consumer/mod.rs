//! The consumer: positions, fetches, and for a group membership and committed offsets.
//!
//! Everything runs in [`Consumer::poll`] on the caller's thread, except heartbeats, which have their own so
//! that a slow reader of the records does not lose its membership.

mod fetch;
mod group;
mod heartbeat;
mod offsets;
mod positions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::FetchRequest;

use super::admin::OffsetAt;
use super::assignor::Assignor;
use super::cluster::{Cluster, ClusterConfig};
use super::error::{ClientError, Result};
use super::network::{Event, Lost, NodeId, Token, decode};
use crate::base::clock::{Monotonic, Timestamp, monotonic};
use crate::base::{Offset, TopicName, TopicPartition};
use crate::wire::ErrorCode;

use fetch::Fetched;
use group::{Change, Member};
use positions::{Positions, State};

/// Names and defaults follow Kafka's consumer.
#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    pub cluster: ClusterConfig,
    /// `group.id`; needed to subscribe and to commit.
    pub group: Option<String>,
    /// `auto.offset.reset`: where to begin without a committed offset, and when the position is gone.
    /// `None` fails instead.
    pub reset: Option<OffsetAt>,
    /// `auto.commit.interval.ms`; `None` commits only by [`Consumer::commit`].
    pub auto_commit: Option<Duration>,
    /// `session.timeout.ms`.
    pub session_timeout: Duration,
    /// `heartbeat.interval.ms`.
    pub heartbeat_interval: Duration,
    /// `max.poll.interval.ms`: a member that polls less often leaves its group.
    pub poll_interval_max: Duration,
    /// `partition.assignment.strategy`, the preferred first.
    pub assignors: Vec<Assignor>,
    /// `fetch.min.bytes` and `fetch.max.wait.ms`.
    pub fetch_bytes_min: i32,
    pub fetch_wait_max: Duration,
    /// `fetch.max.bytes`.
    pub fetch_bytes_max: i32,
    /// `max.partition.fetch.bytes`.
    pub partition_bytes_max: i32,
    /// `isolation.level=read_committed`.
    pub read_committed: bool,
    /// `check.crcs`.
    pub check_crcs: bool,
}

impl ConsumerConfig {
    pub fn new(mut cluster: ClusterConfig) -> Self {
        // Reading must not make a topic.
        cluster.create_topics = false;
        Self {
            cluster,
            group: None,
            reset: Some(OffsetAt::Latest),
            auto_commit: Some(Duration::from_secs(5)),
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            poll_interval_max: Duration::from_secs(300),
            assignors: vec![Assignor::Range, Assignor::Sticky, Assignor::RoundRobin],
            fetch_bytes_min: 1,
            fetch_wait_max: Duration::from_millis(500),
            fetch_bytes_max: 50 << 20,
            partition_bytes_max: 1 << 20,
            read_committed: false,
            check_crcs: true,
        }
    }
}

/// Where to begin in a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    At(Offset),
    Find(OffsetAt),
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRecord {
    pub partition: TopicPartition,
    pub offset: Offset,
    pub timestamp: Timestamp,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

/// Reads records; used by one thread.
pub struct Consumer {
    config: ConsumerConfig,
    cluster: Cluster,
    positions: Positions,
    member: Option<Member>,
    in_flight: BTreeMap<NodeId, (Token, Vec<(TopicPartition, Offset)>)>,
    fetched: VecDeque<Fetched>,
    commit_at: Monotonic,
}

impl Consumer {
    pub fn new(config: ConsumerConfig) -> Result<Self> {
        let cluster = Cluster::new(config.cluster.clone())?;
        Ok(Self {
            config,
            cluster,
            positions: Positions::default(),
            member: None,
            in_flight: BTreeMap::new(),
            fetched: VecDeque::new(),
            commit_at: Monotonic::ZERO,
        })
    }

    /// Once the flag is set, every wait inside the consumer ends soon with [`ClientError::Interrupted`].
    pub fn set_interrupt(&mut self, interrupt: Arc<AtomicBool>) {
        self.cluster.network.set_interrupt(interrupt);
    }

    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Reads these partitions, without a group.
    pub fn assign(&mut self, partitions: Vec<(TopicPartition, Start)>) {
        for (partition, _) in &partitions {
            self.cluster.metadata.want(&partition.topic);
        }
        self.fetched.clear();
        self.positions.assign(partitions.into_iter().map(|(partition, start)| match start {
            Start::At(offset) => (partition, State::At(offset)),
            Start::Find(at) => (partition, State::Find(at)),
        }));
    }

    /// Reads topics as a member of the configured group.
    pub fn subscribe(&mut self, topics: Vec<TopicName>) -> Result<()> {
        for topic in &topics {
            self.cluster.topic(topic)?;
        }
        self.member = Some(Member::new(&self.config, topics)?);
        self.commit_at = monotonic().plus(self.config.auto_commit.unwrap_or_default());
        Ok(())
    }

    /// The partitions read now.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.positions.partitions().cloned().collect()
    }

    /// The offset of the next record that [`Consumer::poll`] returns from a partition.
    pub fn position(&self, partition: &TopicPartition) -> Option<Offset> {
        self.positions.next(partition)
    }

    /// Every partition has been read up to what the broker showed last; false without partitions.
    pub fn is_at_end(&self) -> bool {
        let waiting = self.member.as_ref().is_some_and(|member| !member.is_stable());
        !waiting && self.fetched.iter().all(Fetched::is_done) && self.positions.all_at_end()
    }

    /// Waits up to `timeout` for records and returns at most `records_max`. What an earlier call returned
    /// counts as dealt with: it may be committed in here.
    pub fn poll(&mut self, timeout: Duration, records_max: usize) -> Result<Vec<ConsumerRecord>> {
        let deadline = monotonic().plus(timeout);
        loop {
            self.keep_membership()?;
            self.commit_when_due()?;
            let records = self.take_fetched(records_max)?;
            self.find_positions()?;
            self.send_fetches()?;
            if !records.is_empty() {
                return Ok(records);
            }
            let left = deadline.since(monotonic());
            if left.is_zero() {
                return Ok(Vec::new());
            }
            for event in self.cluster.poll(left.min(Duration::from_millis(100)))? {
                self.take(event)?;
            }
        }
    }

    /// Commits the positions of the group's partitions.
    pub fn commit(&mut self) -> Result<()> {
        let Some(member) = &mut self.member else { return Ok(()) };
        let offsets = self.positions.to_commit();
        member.commit(&mut self.cluster, &offsets)?;
        self.positions.committed(&offsets);
        Ok(())
    }

    /// Commits, if that is automatic, and leaves the group.
    pub fn close(mut self) -> Result<()> {
        self.cluster.network.clear_interrupt();
        let mut outcome = Ok(());
        if self.config.auto_commit.is_some() {
            outcome = self.commit();
        }
        if let Some(member) = &mut self.member {
            member.leave(&mut self.cluster);
        }
        outcome
    }

    fn keep_membership(&mut self) -> Result<()> {
        let Some(member) = &mut self.member else { return Ok(()) };
        if !member.must_join(&self.cluster.metadata) {
            return Ok(());
        }
        if self.config.auto_commit.is_some() && member.is_member() {
            let offsets = self.positions.to_commit();
            // The new owner begins at what is committed; without it some records come twice.
            if let Err(error) = member.commit(&mut self.cluster, &offsets) {
                tracing::warn!(%error, "no commit before the rebalance");
            }
        }
        // Eager rebalancing: nothing is owned while the group is being divided.
        self.fetched.clear();
        self.positions.assign(std::iter::empty());
        let Change { assigned } = member.join(&mut self.cluster)?;
        self.positions.assign(assigned.into_iter().map(|partition| (partition, State::Committed)));
        Ok(())
    }

    fn commit_when_due(&mut self) -> Result<()> {
        let now = monotonic();
        let (Some(interval), Some(_)) = (self.config.auto_commit, &self.member) else { return Ok(()) };
        if now < self.commit_at {
            return Ok(());
        }
        self.commit_at = now.plus(interval);
        match self.commit() {
            Err(error) if error.is_retriable() || error.code() == Some(ErrorCode::RebalanceInProgress) => {
                tracing::warn!(%error, "no commit this time");
                Ok(())
            }
            other => other,
        }
    }

    fn take_fetched(&mut self, records_max: usize) -> Result<Vec<ConsumerRecord>> {
        let mut records = Vec::new();
        while records.len() < records_max {
            let Some(first) = self.fetched.front_mut() else { break };
            match first.next(self.config.check_crcs)? {
                Some(record) => {
                    self.positions.advance(first.partition(), record.offset.plus(1));
                    records.push(record);
                }
                None => {
                    self.positions.advance(first.partition(), first.end());
                    self.fetched.pop_front();
                }
            }
        }
        Ok(records)
    }

    /// Finds where to begin in partitions that have no offset yet: what is committed, else by the reset rule.
    fn find_positions(&mut self) -> Result<()> {
        let uncommitted: Vec<TopicPartition> = self.positions.in_state(State::Committed);
        if !uncommitted.is_empty()
            && let Some(member) = &mut self.member
        {
            let committed = member.committed(&mut self.cluster, &uncommitted)?;
            for partition in uncommitted {
                let state = match (committed.get(&partition), self.config.reset) {
                    (Some(&offset), _) => State::At(offset),
                    (None, Some(at)) => State::Find(at),
                    (None, None) => return Err(ClientError::NoOffset(partition)),
                };
                self.positions.set(&partition, state);
            }
        }
        for at in self.positions.searches() {
            let partitions = self.positions.in_state(State::Find(at));
            let found = self.cluster.list_offsets(&partitions, at)?;
            let none: Vec<TopicPartition> =
                found.iter().filter(|(_, found)| found.offset.is_none()).map(|(p, _)| p.clone()).collect();
            for (partition, found) in found {
                if let Some(offset) = found.offset {
                    self.positions.set(&partition, State::At(offset));
                }
            }
            // No record is that young: the next one will be.
            for partition in none {
                self.positions.set(&partition, State::Find(OffsetAt::Latest));
            }
        }
        Ok(())
    }

    /// Sends a fetch to every leader that has none in flight.
    fn send_fetches(&mut self) -> Result<()> {
        let now = monotonic();
        let mut by_node: BTreeMap<NodeId, Vec<(TopicPartition, Offset)>> = BTreeMap::new();
        let buffered: BTreeSet<&TopicPartition> = self
            .fetched
            .iter()
            .filter(|f| f.bytes_left() > self.config.partition_bytes_max as usize)
            .map(Fetched::partition)
            .collect();
        for (partition, offset) in self.positions.fetchable(now) {
            if buffered.contains(&partition) {
                continue;
            }
            match self.cluster.metadata.leader(&partition) {
                Some(leader) => {
                    by_node.entry(NodeId::Broker(leader.broker)).or_default().push((partition, offset))
                }
                None => self.cluster.metadata.refresh(),
            }
        }
        for (node, partitions) in by_node {
            if self.in_flight.contains_key(&node) || !self.cluster.network.ready(node, now) {
                continue;
            }
            let version = self.cluster.network.version::<FetchRequest>(node)?;
            let request = fetch::request(&self.config, &self.cluster.metadata, &partitions, version);
            let token = self.cluster.network.send(node, version, &request, now)?;
            self.in_flight.insert(node, (token, partitions));
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<()> {
        let token = match &event {
            Event::Answer { token, .. } | Event::Lost(Lost { token, .. }) => *token,
        };
        let Some((&node, _)) = self.in_flight.iter().find(|(_, (sent, _))| *sent == token) else {
            return Ok(());
        };
        let Some((_, asked)) = self.in_flight.remove(&node) else { return Ok(()) };
        match event {
            Event::Lost(_) => self.cluster.metadata.refresh(),
            Event::Answer { version, body, .. } => {
                let response = decode::<FetchRequest>(version, body)?;
                if let Some(code) = ErrorCode::try_from_code(response.error_code) {
                    let error = ClientError::broker("fetch", code, None);
                    return if error.is_retriable() { self.retry_fetch(&asked, error) } else { Err(error) };
                }
                for (partition, outcome) in fetch::outcomes(&self.cluster.metadata, response) {
                    let Some((_, offset)) = asked.iter().find(|(asked, _)| *asked == partition) else {
                        continue;
                    };
                    self.take_partition(partition, *offset, outcome)?;
                }
            }
        }
        Ok(())
    }

    fn take_partition(
        &mut self,
        partition: TopicPartition,
        offset: Offset,
        outcome: Result<fetch::Data, ErrorCode>,
    ) -> Result<()> {
        // Another assignment or position since the fetch was sent.
        if self.positions.fetch_offset(&partition) != Some(offset) {
            return Ok(());
        }
        match outcome {
            Ok(data) => {
                let end =
                    if self.config.read_committed { data.last_stable_offset } else { data.high_watermark };
                self.positions.saw_end(&partition, end);
                let fetched = Fetched::new(partition, offset, data, self.config.read_committed)?;
                self.positions.fetched(fetched.partition(), fetched.end());
                if fetched.bytes_left() > 0 {
                    self.fetched.push_back(fetched);
                }
                Ok(())
            }
            Err(ErrorCode::OffsetOutOfRange) => match self.config.reset {
                Some(at) => {
                    self.fetched.retain(|fetched| *fetched.partition() != partition);
                    self.positions.set(&partition, State::Find(at));
                    Ok(())
                }
                None => Err(ClientError::broker(
                    format!("fetch {partition} at {offset}"),
                    ErrorCode::OffsetOutOfRange,
                    None,
                )),
            },
            Err(code) => {
                let error = ClientError::broker(format!("fetch {partition}"), code, None);
                if error.is_retriable() {
                    self.retry_fetch(&[(partition, offset)], error)
                } else {
                    Err(error)
                }
            }
        }
    }

    fn retry_fetch(&mut self, partitions: &[(TopicPartition, Offset)], error: ClientError) -> Result<()> {
        tracing::debug!(%error, "fetching again");
        let resume = monotonic().plus(self.config.cluster.retry_backoff.0);
        for (partition, _) in partitions {
            self.positions.pause_until(partition, resume);
        }
        self.cluster.metadata.refresh();
        Ok(())
    }
}
