//! A member of a classic consumer group: joining, dividing the partitions when it leads, committing, leaving.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, OffsetCommitRequest, OffsetFetchRequest,
    SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;

use super::ConsumerConfig;
use super::heartbeat::{Heartbeats, Membership, Rejoin};
use super::offsets::{Committer, check_commit, commit_request, fetch_request, fetched};
use crate::base::{Offset, TopicName, TopicPartition};
use crate::client::assignor::{Assignor, Members, PartitionCounts, Subscription};
use crate::client::cluster::Cluster;
use crate::client::error::{ClientError, Result};
use crate::client::metadata::Metadata;
use crate::client::network::NodeId;
use crate::client::protocol::{
    decode_assignment, decode_subscription, encode_assignment, encode_sticky_user_data, encode_subscription,
};
use crate::wire::ErrorCode;

const PROTOCOL_TYPE: &str = "consumer";
/// How much longer than the rebalance itself its answer may take.
const JOIN_GRACE: Duration = Duration::from_secs(5);
/// How often joining is tried in a row before its error is told.
const JOIN_ATTEMPTS_MAX: u32 = 20;

pub struct Member {
    config: ConsumerConfig,
    group: String,
    topics: Vec<TopicName>,
    member: String,
    generation: i32,
    coordinator: Option<NodeId>,
    owned: Vec<TopicPartition>,
    joined: bool,
    /// Of the leader: what it divided. Another count later means to divide again.
    divided: Option<PartitionCounts>,
    heartbeats: Heartbeats,
}

/// What a rebalance brought.
pub struct Change {
    pub assigned: Vec<TopicPartition>,
}

impl Member {
    pub fn new(config: &ConsumerConfig, topics: Vec<TopicName>) -> Result<Self> {
        let group = config.group.clone().unwrap_or_default();
        Ok(Self {
            heartbeats: Heartbeats::start(config, &group)?,
            config: config.clone(),
            group,
            topics,
            member: String::new(),
            generation: -1,
            coordinator: None,
            owned: Vec::new(),
            joined: false,
            divided: None,
        })
    }

    /// Has a generation, though that may be over.
    pub fn is_member(&self) -> bool {
        self.joined
    }

    pub fn is_stable(&self) -> bool {
        self.joined && self.heartbeats.polled().is_none()
    }

    /// Whether [`Member::join`] must come before anything else.
    pub fn must_join(&mut self, metadata: &Metadata) -> bool {
        match self.heartbeats.polled() {
            Some(Rejoin::Lost) => {
                self.forget_membership();
                return true;
            }
            Some(Rejoin::Rebalance) => return true,
            None => {}
        }
        let changed =
            self.divided.as_ref().is_some_and(|divided| *divided != counts(divided.keys(), metadata));
        !self.joined || changed
    }

    /// Joins the group and waits until the partitions are divided: up to `poll_interval_max`.
    pub fn join(&mut self, cluster: &mut Cluster) -> Result<Change> {
        self.heartbeats.set(None);
        self.joined = false;
        let mut attempts = 0;
        loop {
            let error = match self.try_join(cluster) {
                Ok(assigned) => {
                    self.owned = assigned.clone();
                    self.joined = true;
                    let membership = Membership { member: self.member.clone(), generation: self.generation };
                    self.heartbeats.set(Some(membership));
                    return Ok(Change { assigned });
                }
                Err(error) => error,
            };
            attempts += 1;
            tracing::debug!(%error, attempts, "joining again");
            let again = match error.code() {
                Some(ErrorCode::MemberIdRequired | ErrorCode::RebalanceInProgress) => true,
                Some(ErrorCode::UnknownMemberId | ErrorCode::IllegalGeneration) => {
                    self.forget_membership();
                    true
                }
                Some(ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable) => {
                    self.coordinator = None;
                    std::thread::sleep(self.config.cluster.retry_backoff.0);
                    true
                }
                _ if error.is_retriable() => {
                    self.coordinator = None;
                    std::thread::sleep(self.config.cluster.retry_backoff.0);
                    true
                }
                _ => false,
            };
            if !again || attempts > JOIN_ATTEMPTS_MAX {
                return Err(error);
            }
        }
    }

    /// Commits offsets; fails when the generation is over.
    pub fn commit(
        &mut self,
        cluster: &mut Cluster,
        offsets: &BTreeMap<TopicPartition, Offset>,
    ) -> Result<()> {
        if offsets.is_empty() {
            return Ok(());
        }
        let timeout = self.config.cluster.network.request_timeout;
        cluster.retry(|cluster, _| {
            let node = self.coordinator(cluster)?;
            let committer =
                Committer { group: &self.group, member: &self.member, generation: self.generation };
            let answer = cluster
                .call_node::<OffsetCommitRequest>(node, timeout, |_| commit_request(&committer, offsets))
                .and_then(|response| check_commit(&self.group, &response));
            answer.inspect_err(|error| self.note_failure(error))
        })
    }

    /// The committed offsets of `partitions`; those without one are left out.
    pub fn committed(
        &mut self,
        cluster: &mut Cluster,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, Offset>> {
        let timeout = self.config.cluster.network.request_timeout;
        cluster.retry(|cluster, _| {
            let node = self.coordinator(cluster)?;
            let answer = cluster
                .call_node::<OffsetFetchRequest>(node, timeout, |version| {
                    fetch_request(&self.group, partitions, version)
                })
                .and_then(|response| fetched(&self.group, &response));
            answer.inspect_err(|error| self.note_failure(error))
        })
    }

    /// Tells the coordinator that the member goes, so that the others need not wait for its session to end.
    pub fn leave(&mut self, cluster: &mut Cluster) {
        self.heartbeats.set(None);
        if self.member.is_empty() {
            return;
        }
        let timeout = self.config.cluster.network.request_timeout;
        let left = self.coordinator(cluster).and_then(|node| {
            cluster.call_node::<LeaveGroupRequest>(node, timeout, |version| {
                leave_request(&self.group, &self.member, version)
            })
        });
        if let Err(error) = left {
            tracing::debug!(%error, "leaving the group");
        }
    }

    fn try_join(&mut self, cluster: &mut Cluster) -> Result<Vec<TopicPartition>> {
        let node = self.coordinator(cluster)?;
        let request = self.join_request()?;
        let timeout = self.config.poll_interval_max + JOIN_GRACE;
        let response = cluster.call_node::<JoinGroupRequest>(node, timeout, |version| {
            // Before version 1 the session time-out bounds the rebalance too.
            if version == 0 { request.clone().with_rebalance_timeout_ms(-1) } else { request }
        })?;
        if ErrorCode::try_from_code(response.error_code) == Some(ErrorCode::MemberIdRequired) {
            self.member = response.member_id.to_string();
        }
        self.check("join", response.error_code)?;
        self.member = response.member_id.to_string();
        self.generation = response.generation_id;
        let protocol = response.protocol_name.as_ref().map(|name| name.to_string()).unwrap_or_default();
        let assignments = self.divide(cluster, &response, &protocol)?;
        let timeout = self.config.poll_interval_max + JOIN_GRACE;
        let response = cluster.call_node::<SyncGroupRequest>(node, timeout, |version| {
            let request = SyncGroupRequest::default()
                .with_group_id(text(&self.group).into())
                .with_generation_id(self.generation)
                .with_member_id(text(&self.member))
                .with_assignments(assignments);
            match version {
                ..=4 => request,
                _ => request
                    .with_protocol_type(Some(StrBytes::from_static_str(PROTOCOL_TYPE)))
                    .with_protocol_name(Some(text(&protocol))),
            }
        })?;
        self.check("sync", response.error_code)?;
        decode_assignment(response.assignment)
    }

    fn join_request(&self) -> Result<JoinGroupRequest> {
        let mut protocols = Vec::new();
        for assignor in &self.config.assignors {
            let sticky = *assignor == Assignor::Sticky && self.generation >= 0;
            let subscription = Subscription {
                topics: self.topics.clone(),
                owned: self.owned.clone(),
                generation: self.generation,
                user_data: sticky.then(|| encode_sticky_user_data(&self.owned, self.generation)),
            };
            let metadata = encode_subscription(&subscription)?;
            let name = StrBytes::from_static_str(assignor.name());
            protocols.push(JoinGroupRequestProtocol::default().with_name(name).with_metadata(metadata));
        }
        Ok(JoinGroupRequest::default()
            .with_group_id(text(&self.group).into())
            .with_session_timeout_ms(millis(self.config.session_timeout))
            .with_rebalance_timeout_ms(millis(self.config.poll_interval_max))
            .with_member_id(text(&self.member))
            .with_protocol_type(StrBytes::from_static_str(PROTOCOL_TYPE))
            .with_protocols(protocols))
    }

    /// Of the leader: what each member gets. Others send nothing.
    fn divide(
        &mut self,
        cluster: &mut Cluster,
        response: &JoinGroupResponse,
        protocol: &str,
    ) -> Result<Vec<SyncGroupRequestAssignment>> {
        self.divided = None;
        if response.leader != response.member_id || response.skip_assignment {
            return Ok(Vec::new());
        }
        let assignor = Assignor::from_name(protocol).ok_or_else(|| ClientError::Malformed {
            what: "JoinGroup".into(),
            reason: format!("assignor {protocol:?} was not offered"),
        })?;
        let mut members = Members::new();
        for member in &response.members {
            members.insert(member.member_id.to_string(), decode_subscription(member.metadata.clone())?);
        }
        for topic in members.values().flat_map(|subscription| &subscription.topics) {
            cluster.metadata.want(topic);
        }
        cluster.retry(|cluster, deadline| cluster.refresh_metadata(deadline))?;
        let topics = members.values().flat_map(|subscription| &subscription.topics);
        let counts = counts(topics, &cluster.metadata);
        let assignment = assignor.assign(&members, &counts);
        self.divided = Some(counts);
        let assignments = assignment.into_iter().map(|(member, partitions)| {
            let assignment = encode_assignment(&partitions, None)?;
            Ok(SyncGroupRequestAssignment::default()
                .with_member_id(text(&member))
                .with_assignment(assignment))
        });
        assignments.collect()
    }

    fn coordinator(&mut self, cluster: &mut Cluster) -> Result<NodeId> {
        match self.coordinator {
            Some(node) => Ok(node),
            None => {
                let node = cluster.coordinator(&self.group)?;
                self.coordinator = Some(node);
                Ok(node)
            }
        }
    }

    fn note_failure(&mut self, error: &ClientError) {
        match error.code() {
            Some(ErrorCode::UnknownMemberId | ErrorCode::IllegalGeneration) => {
                self.forget_membership();
            }
            None | Some(ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable) => {
                self.coordinator = None
            }
            Some(_) => {}
        }
    }

    fn forget_membership(&mut self) {
        self.member = String::new();
        self.generation = -1;
        self.joined = false;
    }

    fn check(&self, step: &str, code: i16) -> Result<()> {
        match ErrorCode::try_from_code(code) {
            None => Ok(()),
            Some(code) => Err(ClientError::broker(format!("{step} group {}", self.group), code, None)),
        }
    }
}

pub fn leave_request(group: &str, member: &str, version: i16) -> LeaveGroupRequest {
    let request = LeaveGroupRequest::default().with_group_id(text(group).into());
    match version {
        ..=2 => request.with_member_id(text(member)),
        _ => request.with_members(vec![MemberIdentity::default().with_member_id(text(member))]),
    }
}

fn counts<'a>(topics: impl Iterator<Item = &'a TopicName>, metadata: &Metadata) -> PartitionCounts {
    topics.filter_map(|topic| Some((topic.clone(), metadata.partition_count(topic)?.get()))).collect()
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
