//! A share group: its members, the target assignment, and which partitions have a state.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::share_group_describe_response::{
    Assignment, DescribedGroup, Member as DescribedMember, TopicPartitions,
};
use kafka_protocol::messages::{GroupId, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::assignor;
use super::records::{MemberMetadata, NamedPartitions, Position, ShareRecord, States};
use crate::base::{PartitionIndex, TopicId};
use crate::coordinator::consumer::{Epoch, Partitions, Topics};
use crate::coordinator::room::{GROUP_BYTES, PARTITION_BYTES};
use crate::coordinator::timers::Session;

/// The protocol type and the group type of share groups in ListGroups.
const SHARE_TYPE: &str = "share";

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Member {
    pub(super) metadata: MemberMetadata,
    pub(super) position: Position,
}

/// What is not in the log.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Soft {
    pub(super) sessions: HashMap<StrBytes, Session>,
    /// Topics that members subscribe to came, went or grew.
    pub(super) is_outdated: bool,
    /// Partitions that members subscribe to have no state yet.
    pub(super) lacks_states: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::coordinator) struct ShareGroup {
    pub(in crate::coordinator) id: StrBytes,
    pub(super) epoch: Epoch,
    pub(super) metadata_hash: i64,
    pub(super) target_epoch: Epoch,
    pub(super) members: BTreeMap<StrBytes, Member>,
    pub(super) target: BTreeMap<StrBytes, Partitions>,
    pub(super) states: States,
    pub(super) soft: Soft,
}

impl ShareGroup {
    pub(in crate::coordinator) fn new(id: StrBytes) -> Self {
        Self {
            id,
            epoch: Epoch::ZERO,
            metadata_hash: 0,
            target_epoch: Epoch::ZERO,
            members: BTreeMap::new(),
            target: BTreeMap::new(),
            states: States::default(),
            soft: Soft::default(),
        }
    }

    /// Applies one record, of the log or just written.
    pub(in crate::coordinator) fn apply(&mut self, record: ShareRecord) {
        match record {
            ShareRecord::Member { member, value: Some(value), .. } => {
                self.members.entry(member).or_default().metadata = *value;
            }
            ShareRecord::Member { member, value: None, .. } => {
                self.members.remove(&member);
            }
            ShareRecord::Group { value: Some(value), .. } => {
                self.epoch = value.epoch;
                self.metadata_hash = value.metadata_hash;
            }
            // Whoever has the group forgets it.
            ShareRecord::Group { value: None, .. } => {}
            ShareRecord::TargetEpoch { value, .. } => {
                self.target_epoch = value.map_or(Epoch::ZERO, |value| value.epoch);
            }
            ShareRecord::Target { member, value: Some(value), .. } => {
                self.target.insert(member, value);
            }
            ShareRecord::Target { member, value: None, .. } => {
                self.target.remove(&member);
            }
            ShareRecord::Position { member, value, .. } => {
                if let Some(member) = self.members.get_mut(&member) {
                    member.position = value.map_or_else(Position::default, |value| *value);
                }
            }
            ShareRecord::States { value, .. } => {
                self.states = value.map_or_else(States::default, |value| *value)
            }
        }
    }

    pub(in crate::coordinator) fn len(&self) -> usize {
        self.members.len()
    }

    pub(in crate::coordinator) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(in crate::coordinator) fn state_name(&self) -> &'static str {
        if self.is_empty() { "Empty" } else { "Stable" }
    }

    /// What deletes a group without members.
    pub(in crate::coordinator) fn tombstones(&self) -> Vec<ShareRecord> {
        let group = || self.id.clone();
        vec![
            ShareRecord::States { group: group(), value: None },
            ShareRecord::TargetEpoch { group: group(), value: None },
            ShareRecord::Group { group: group(), value: None },
        ]
    }

    /// What the members and the states have the coordinator hold, about.
    pub(in crate::coordinator) fn held_bytes(&self) -> usize {
        let members = self.members.values().map(|member| member.metadata.held_bytes());
        let assigned =
            self.members.values().map(|member| &member.position.assigned).chain(self.target.values());
        let states = self.states.initialized.values().map(|named| named.partitions.len());
        let partitions = assigned.map(count).sum::<usize>() + states.sum::<usize>();
        GROUP_BYTES + members.sum::<usize>() + PARTITION_BYTES * partitions
    }

    /// What a member subscribes to.
    pub(in crate::coordinator) fn topic_names_of(&self, member: &StrBytes) -> Option<&BTreeSet<StrBytes>> {
        self.members.get(member).map(|member| &member.metadata.topic_names)
    }

    /// Every topic that a member subscribes to.
    pub(super) fn topic_names(&self) -> BTreeSet<StrBytes> {
        self.members.values().flat_map(|member| &member.metadata.topic_names).cloned().collect()
    }

    /// The cluster changed in these topics.
    pub(in crate::coordinator) fn topics_changed(&mut self, names: &BTreeSet<StrBytes>) {
        let mut subscribed = self.members.values().flat_map(|member| &member.metadata.topic_names);
        self.soft.is_outdated |= subscribed.any(|name| names.contains(name));
    }

    /// The partitions that can be assigned: of topics that members subscribe to, with a state.
    pub(super) fn assignable(&self, topics: &Topics) -> Partitions {
        let mut assignable = Partitions::new();
        for name in self.topic_names() {
            let Some(topic) = topics.image().topic(&name) else { continue };
            let Some(named) = self.states.initialized.get(&topic.id) else { continue };
            let count = topic.partitions.len() as i32;
            let partitions: BTreeSet<PartitionIndex> =
                named.partitions.range(PartitionIndex(0)..PartitionIndex(count)).copied().collect();
            if !partitions.is_empty() {
                assignable.insert(topic.id, partitions);
            }
        }
        assignable
    }

    /// The partitions that members subscribe to and that have no state.
    pub(super) fn without_state(&self, topics: &Topics) -> BTreeMap<TopicId, NamedPartitions> {
        let mut lacking = BTreeMap::new();
        for name in self.topic_names() {
            let Some(topic) = topics.image().topic(&name) else { continue };
            let known = self.states.initialized.get(&topic.id);
            let is_known =
                |index: &PartitionIndex| known.is_some_and(|named| named.partitions.contains(index));
            let partitions: BTreeSet<PartitionIndex> = (0..topic.partitions.len() as i32)
                .map(PartitionIndex)
                .filter(|index| !is_known(index))
                .collect();
            if !partitions.is_empty() {
                lacking.insert(topic.id, NamedPartitions { name, partitions });
            }
        }
        lacking
    }

    pub(in crate::coordinator) fn list(&self) -> ListedGroup {
        ListedGroup::default()
            .with_group_id(GroupId(self.id.clone()))
            .with_protocol_type(StrBytes::from_static_str(SHARE_TYPE))
            .with_group_state(StrBytes::from_static_str(self.state_name()))
            .with_group_type(StrBytes::from_static_str(SHARE_TYPE))
    }

    pub(in crate::coordinator) fn describe(&self, topics: &Topics) -> DescribedGroup {
        let member = |(id, member): (&StrBytes, &Member)| {
            let Member { metadata, position } = member;
            DescribedMember::default()
                .with_member_id(id.clone())
                .with_rack_id(metadata.rack_id.clone())
                .with_member_epoch(position.epoch.0)
                .with_client_id(metadata.client_id.clone())
                .with_client_host(metadata.client_host.clone())
                .with_subscribed_topic_names(metadata.topic_names.iter().cloned().map(TopicName).collect())
                .with_assignment(assignment(&position.assigned, topics))
        };
        DescribedGroup::default()
            .with_group_id(GroupId(self.id.clone()))
            .with_group_state(StrBytes::from_static_str(self.state_name()))
            .with_group_epoch(self.epoch.0)
            .with_assignment_epoch(self.target_epoch.0)
            .with_assignor_name(StrBytes::from_static_str(assignor::NAME))
            .with_members(self.members.iter().map(member).collect())
    }
}

/// How many partitions there are.
pub(super) fn count(partitions: &Partitions) -> usize {
    partitions.values().map(BTreeSet::len).sum()
}

/// Without the topics that are no more.
fn assignment(partitions: &Partitions, topics: &Topics) -> Assignment {
    let named = partitions.iter().filter_map(|(id, partitions)| {
        let name = topics.name(*id)?;
        let partitions = partitions.iter().map(|partition| partition.0).collect();
        Some(
            TopicPartitions::default()
                .with_topic_id(id.0)
                .with_topic_name(TopicName(name))
                .with_partitions(partitions),
        )
    });
    Assignment::default().with_topic_partitions(named.collect())
}
