//! One member of a consumer group, as its records have it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::protocol::StrBytes;

use super::super::member::Protocol;
use super::super::room::{MEMBER_BYTES, NAME_BYTES};
use crate::base::{PartitionIndex, TopicId};

/// Counts the changes of a group: of its subscriptions (the group's epoch), of its target assignment, and how far
/// a member has come (the member's). All three are points on the same line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Epoch(pub i32);

impl Epoch {
    /// A member that joins; a group that was just made.
    pub const ZERO: Epoch = Epoch(0);
    /// A member that leaves.
    pub const LEAVING: Epoch = Epoch(-1);
    /// A static member that leaves and means to come back.
    pub const STATIC_LEAVING: Epoch = Epoch(-2);

    pub fn next(self) -> Epoch {
        Epoch(self.0.checked_add(1).unwrap_or(1))
    }
}

impl std::fmt::Display for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Partitions by topic; no topic is without partitions.
pub type Partitions = BTreeMap<TopicId, BTreeSet<PartitionIndex>>;

/// Partitions of a member, each with the epoch in which it was assigned (KIP-1251).
pub type Owned = BTreeMap<TopicId, BTreeMap<PartitionIndex, Epoch>>;

/// How far a member is on its way to the target (KIP-848's reconciliation).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum MemberState {
    #[default]
    Stable,
    /// It has to give partitions back.
    UnrevokedPartitions,
    /// It waits for partitions that others have not given back.
    UnreleasedPartitions,
    /// Written by a later version.
    Unknown,
}

impl MemberState {
    pub(super) fn code(self) -> i8 {
        match self {
            MemberState::Stable => 0,
            MemberState::UnrevokedPartitions => 1,
            MemberState::UnreleasedPartitions => 2,
            MemberState::Unknown => 127,
        }
    }

    pub(super) fn from_code(code: i8) -> Self {
        match code {
            0 => MemberState::Stable,
            1 => MemberState::UnrevokedPartitions,
            2 => MemberState::UnreleasedPartitions,
            _ => MemberState::Unknown,
        }
    }
}

/// What a member says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberMetadata {
    /// Set for a static member.
    pub instance_id: Option<StrBytes>,
    pub rack_id: Option<StrBytes>,
    pub client_id: StrBytes,
    pub client_host: StrBytes,
    /// Sorted, each once. Members of a group with the same subscription share the list.
    pub topic_names: Arc<[StrBytes]>,
    /// Empty for none.
    pub topic_regex: StrBytes,
    pub rebalance_timeout_ms: i32,
    pub assignor: Option<StrBytes>,
    /// Set for a member of the classic protocol.
    pub classic: Option<ClassicMetadata>,
}

/// What a member of the classic protocol says beside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClassicMetadata {
    pub session_timeout_ms: i32,
    pub(in crate::coordinator) protocols: Vec<Protocol>,
}

impl Default for MemberMetadata {
    fn default() -> Self {
        Self {
            instance_id: None,
            rack_id: None,
            client_id: StrBytes::new(),
            client_host: StrBytes::new(),
            topic_names: Arc::default(),
            topic_regex: StrBytes::new(),
            rebalance_timeout_ms: -1,
            assignor: None,
            classic: None,
        }
    }
}

/// Where a member is: what it has, and what it still has to give back.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Position {
    pub epoch: Epoch,
    /// A member that did not hear of its new epoch comes again with this one.
    pub previous_epoch: Epoch,
    pub state: MemberState,
    pub assigned: Owned,
    pub revoking: Owned,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    pub id: StrBytes,
    pub metadata: MemberMetadata,
    pub position: Position,
}

impl Member {
    pub fn new(id: StrBytes) -> Self {
        Self { id, metadata: MemberMetadata::default(), position: Position::default() }
    }

    pub fn is_reconciled_to(&self, epoch: Epoch) -> bool {
        self.position.state == MemberState::Stable && self.position.epoch == epoch
    }

    pub fn uses_classic_protocol(&self) -> bool {
        self.metadata.classic.is_some()
    }

    /// The epoch in which it got a partition that it has or is giving back.
    pub fn assigned_in(&self, topic: TopicId, partition: PartitionIndex) -> Option<Epoch> {
        [&self.position.assigned, &self.position.revoking]
            .into_iter()
            .find_map(|owned| owned.get(&topic)?.get(&partition).copied())
    }
}

impl MemberMetadata {
    /// What it takes, about, without the names.
    fn own_bytes(&self) -> usize {
        let texts = [&self.client_id, &self.client_host, &self.topic_regex];
        let texts = texts.into_iter().chain(&self.instance_id).chain(&self.rack_id).chain(&self.assignor);
        let protocols = self.classic.iter().flat_map(|classic| &classic.protocols);
        let protocols = protocols.map(|protocol| protocol.name.len() + protocol.metadata.len());
        texts.map(|text| text.len()).sum::<usize>() + protocols.sum::<usize>()
    }

    /// The same with the names.
    pub(super) fn held_bytes(&self) -> usize {
        self.own_bytes() + self.topic_names.iter().map(|name| NAME_BYTES + name.len()).sum::<usize>()
    }
}

impl Member {
    /// What it takes, about, without the names that it shares with others and without partitions.
    pub(super) fn own_bytes(&self) -> usize {
        MEMBER_BYTES + 4 * self.id.len() + self.metadata.own_bytes()
    }
}

pub(super) fn partitions_of(partitions: &Partitions) -> usize {
    partitions.values().map(BTreeSet::len).sum()
}

pub(super) fn sorted_names(mut names: Vec<StrBytes>) -> Arc<[StrBytes]> {
    names.sort_unstable();
    names.dedup();
    names.into()
}

/// The partitions without the epochs.
pub(super) fn without_epochs(owned: &Owned) -> Partitions {
    owned.iter().map(|(topic, partitions)| (*topic, partitions.keys().copied().collect())).collect()
}
