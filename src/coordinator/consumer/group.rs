//! A consumer group: what its records have made of it, and what is counted along (Kafka's `ConsumerGroup`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kafka_protocol::protocol::StrBytes;

use super::member::{
    Epoch, Member, MemberMetadata, MemberState, Owned, Partitions, Position, partitions_of, sorted_names,
};
use super::records::{ConsumerRecord, GroupEpoch, ResolvedRegex, TargetEpoch};
use super::topics::Topics;
use crate::base::clock::{Monotonic, Timestamp};
use crate::base::{PartitionIndex, TopicId};
use crate::coordinator::room::{GROUP_BYTES, NAME_BYTES, PARTITION_BYTES, bytes_of_names};
use crate::coordinator::timers::Session;

/// The assignment of who has none.
static NOTHING: Partitions = Partitions::new();

#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::coordinator) struct ConsumerGroup {
    pub(in crate::coordinator) id: StrBytes,
    pub(super) epoch: Epoch,
    pub(super) metadata_hash: i64,
    members: BTreeMap<StrBytes, Member>,
    pub(super) target_epoch: Epoch,
    /// When the target was made; 0 if that is not known.
    pub(super) target_at: Timestamp,
    targets: HashMap<StrBytes, Partitions>,
    regexes: BTreeMap<StrBytes, ResolvedRegex>,
    /// The log has the subscribed topics' partitions as Kafka before 4.1 kept them.
    pub(super) has_partition_metadata: bool,
    counts: Counts,
    pub(super) soft: Soft,
}

/// What follows from the members.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Counts {
    /// Instance id → member id.
    static_members: HashMap<StrBytes, StrBytes>,
    /// How many members have a partition or are giving it back: one, but for broken logs.
    owners: HashMap<TopicId, HashMap<PartitionIndex, usize>>,
    /// Each list of names that members subscribe to once, with how many do.
    subscriptions: HashMap<Arc<[StrBytes]>, usize>,
    topics: BTreeMap<StrBytes, usize>,
    regexes: BTreeMap<StrBytes, usize>,
    assignors: BTreeMap<StrBytes, usize>,
    classic_members: usize,
    classic_protocols: HashMap<StrBytes, usize>,
}

/// What is not in the log.
#[derive(Clone, Debug)]
pub(super) struct Soft {
    pub(super) sessions: HashMap<StrBytes, Session>,
    /// A topic that members subscribe to may have changed.
    pub(super) is_outdated: bool,
    /// No expression is matched again before.
    pub(super) regexes_rest_until: Monotonic,
}

/// Two groups are the same when their logs say the same.
impl PartialEq for Soft {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Soft {}

impl ConsumerGroup {
    pub(in crate::coordinator) fn new(id: StrBytes) -> Self {
        Self {
            id,
            epoch: Epoch::ZERO,
            metadata_hash: 0,
            members: BTreeMap::new(),
            target_epoch: Epoch::ZERO,
            target_at: Timestamp(0),
            targets: HashMap::new(),
            regexes: BTreeMap::new(),
            has_partition_metadata: false,
            counts: Counts::default(),
            soft: Soft { sessions: HashMap::new(), is_outdated: true, regexes_rest_until: Monotonic::ZERO },
        }
    }

    /// A group as it is before its first member: the first epoch that is written is 2, as Kafka's.
    pub(super) fn founded(id: StrBytes) -> Self {
        Self { epoch: Epoch(1), ..Self::new(id) }
    }

    /// Applies a record; returns the one that takes it back.
    pub(in crate::coordinator) fn apply(&mut self, record: ConsumerRecord) -> ConsumerRecord {
        match record {
            ConsumerRecord::Group { group, value } => {
                let old = GroupEpoch { epoch: self.epoch, metadata_hash: self.metadata_hash };
                let value = value.unwrap_or(GroupEpoch { epoch: Epoch::ZERO, metadata_hash: 0 });
                (self.epoch, self.metadata_hash) = (value.epoch, value.metadata_hash);
                ConsumerRecord::Group { group, value: Some(old) }
            }
            ConsumerRecord::PartitionMetadata { group, is_there } => {
                let old = std::mem::replace(&mut self.has_partition_metadata, is_there);
                ConsumerRecord::PartitionMetadata { group, is_there: old }
            }
            ConsumerRecord::TargetEpoch { group, value } => {
                let old = TargetEpoch { epoch: self.target_epoch, at: self.target_at };
                let value = value.unwrap_or(TargetEpoch { epoch: Epoch::ZERO, at: Timestamp(0) });
                (self.target_epoch, self.target_at) = (value.epoch, value.at);
                ConsumerRecord::TargetEpoch { group, value: Some(old) }
            }
            ConsumerRecord::Target { group, member, value } => {
                let old = match value {
                    Some(target) => self.targets.insert(member.clone(), target),
                    None => self.targets.remove(&member),
                };
                ConsumerRecord::Target { group, member, value: old }
            }
            ConsumerRecord::Regex { group, regex, value } => {
                let old = match value {
                    Some(resolved) => self.regexes.insert(regex.clone(), resolved),
                    None => self.regexes.remove(&regex),
                };
                ConsumerRecord::Regex { group, regex, value: old }
            }
            ConsumerRecord::Member { group, member, value } => {
                let old = self.set_metadata(&member, value.map(|value| *value));
                ConsumerRecord::Member { group, member, value: old.map(Box::new) }
            }
            ConsumerRecord::Position { group, member, value } => {
                let old = self.set_position(&member, value.map(|value| *value));
                ConsumerRecord::Position { group, member, value: old.map(Box::new) }
            }
        }
    }

    fn set_metadata(&mut self, id: &StrBytes, metadata: Option<MemberMetadata>) -> Option<MemberMetadata> {
        let old = self.members.remove(id);
        if let Some(old) = &old {
            self.counts.remove_metadata(old);
        }
        match (metadata, old) {
            (Some(mut metadata), old) => {
                let was_there = old.is_some();
                let mut member = old.unwrap_or_else(|| Member::new(id.clone()));
                metadata.topic_names = self.counts.shared(metadata.topic_names);
                let old = std::mem::replace(&mut member.metadata, metadata);
                self.counts.add_metadata(&member);
                self.members.insert(id.clone(), member);
                was_there.then_some(old)
            }
            (None, Some(old)) => {
                self.counts.remove_position(&old.position);
                Some(old.metadata)
            }
            (None, None) => None,
        }
    }

    fn set_position(&mut self, id: &StrBytes, position: Option<Position>) -> Option<Position> {
        if position.is_none() && !self.members.contains_key(id) {
            return None;
        }
        let counts = &mut self.counts;
        let member = self.members.entry(id.clone()).or_insert_with(|| {
            let member = Member::new(id.clone());
            counts.add_metadata(&member);
            member
        });
        counts.remove_position(&member.position);
        let old = std::mem::replace(&mut member.position, position.unwrap_or_default());
        counts.add_position(&member.position);
        (old != Position::default()).then_some(old)
    }

    pub(in crate::coordinator) fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.values()
    }

    pub(in crate::coordinator) fn member(&self, id: &StrBytes) -> Option<&Member> {
        self.members.get(id)
    }

    pub(super) fn static_member(&self, instance_id: &StrBytes) -> Option<&Member> {
        self.members.get(self.counts.static_members.get(instance_id)?)
    }

    pub(in crate::coordinator) fn len(&self) -> usize {
        self.members.len()
    }

    pub(in crate::coordinator) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn target(&self, member: &StrBytes) -> &Partitions {
        self.targets.get(member).unwrap_or(&NOTHING)
    }

    /// `None` for a member that no target was made for yet.
    pub(super) fn target_of(&self, member: &StrBytes) -> Option<&Partitions> {
        self.targets.get(member)
    }

    pub(super) fn regexes(&self) -> &BTreeMap<StrBytes, ResolvedRegex> {
        &self.regexes
    }

    /// The expressions that members subscribe to, with how many do.
    pub(super) fn regex_subscribers(&self) -> &BTreeMap<StrBytes, usize> {
        &self.counts.regexes
    }

    pub(super) fn is_owned(&self, topic: TopicId, partition: PartitionIndex) -> bool {
        self.counts.owners.get(&topic).is_some_and(|partitions| partitions.contains_key(&partition))
    }

    /// Kafka's name of the group's state.
    pub(in crate::coordinator) fn state_name(&self) -> &'static str {
        if self.members.is_empty() {
            "Empty"
        } else if self.epoch > self.target_epoch {
            "Assigning"
        } else if self.members.values().all(|member| member.is_reconciled_to(self.target_epoch)) {
            "Stable"
        } else {
            "Reconciling"
        }
    }

    /// Every topic that a member subscribes to, by name or by an expression.
    pub(super) fn subscribed_topics(&self) -> BTreeSet<StrBytes> {
        let resolved = self.regexes.iter().filter(|(regex, _)| self.counts.regexes.contains_key(*regex));
        let resolved = resolved.flat_map(|(_, resolved)| &resolved.topics);
        self.counts.topics.keys().chain(resolved).cloned().collect()
    }

    pub(in crate::coordinator) fn is_subscribed(&self, topic: &StrBytes) -> bool {
        self.counts.topics.contains_key(topic)
            || self
                .counts
                .regexes
                .keys()
                .any(|regex| self.regexes.get(regex).is_some_and(|resolved| resolved.topics.contains(topic)))
    }

    /// A topic changed: the next heartbeat looks what that means.
    pub(in crate::coordinator) fn topics_changed(&mut self, names: &BTreeSet<StrBytes>) {
        self.soft.is_outdated |= names.iter().any(|name| self.is_subscribed(name));
    }

    /// The ids of the topics that `metadata` subscribes to; those that are not there are left out.
    pub(super) fn topic_ids(&self, metadata: &MemberMetadata, topics: &Topics) -> BTreeSet<TopicId> {
        let resolved = self.regexes.get(&metadata.topic_regex).filter(|_| !metadata.topic_regex.is_empty());
        let resolved = resolved.into_iter().flat_map(|resolved| &resolved.topics);
        metadata.topic_names.iter().chain(resolved).filter_map(|name| topics.id(name)).collect()
    }

    /// The assignor that most of the members that name one want.
    pub(super) fn preferred_assignor(&self) -> Option<&StrBytes> {
        let most = self.counts.assignors.values().max()?;
        self.counts.assignors.iter().find(|(_, count)| *count == most).map(|(name, _)| name)
    }

    pub(super) fn classic_members(&self) -> usize {
        self.counts.classic_members
    }

    /// Whether a member of the classic protocol with these can take part: something must be left that all of its
    /// kind offer.
    pub(super) fn supports<'a>(&self, mut names: impl Iterator<Item = &'a StrBytes>) -> bool {
        if self.is_empty() {
            return names.next().is_some();
        }
        names.any(|name| {
            self.counts.classic_protocols.get(name).copied().unwrap_or(0) == self.counts.classic_members
        })
    }

    /// What it would hold more, about, if `member` subscribed to these topics instead of what it does: nothing for what
    /// others subscribe to as well.
    pub(in crate::coordinator) fn growth_by_names(&self, member: &StrBytes, names: Vec<StrBytes>) -> usize {
        let names = sorted_names(names);
        if self.counts.subscriptions.contains_key(&names) {
            return 0;
        }
        let old = self.members.get(member).map(|member| &member.metadata.topic_names);
        // Kept for this member alone, it goes.
        let old = old.filter(|old| self.counts.subscriptions.get(*old) == Some(&1));
        bytes_of_names(&names).saturating_sub(old.map_or(0, |old| bytes_of_names(old)))
    }

    /// What it holds, about. Members with the same subscription share it.
    pub(in crate::coordinator) fn held_bytes(&self) -> usize {
        let members: usize = self.members.values().map(Member::own_bytes).sum();
        let subscriptions: usize = self.counts.subscriptions.keys().map(|it| bytes_of_names(it)).sum();
        let targets: usize = self.targets.values().map(partitions_of).sum();
        let owned: usize = self.counts.owners.values().map(HashMap::len).sum();
        let resolved = self.regexes.values().flat_map(|resolved| &resolved.topics);
        let resolved: usize = resolved.map(|name| NAME_BYTES + name.len()).sum();
        GROUP_BYTES + members + subscriptions + resolved + PARTITION_BYTES * (targets + owned)
    }

    /// Whether partitions of its target are still with others.
    pub(super) fn waits_for_release(&self, member: &Member) -> bool {
        member.position.state == MemberState::UnreleasedPartitions
            && self.target(&member.id).iter().any(|(topic, partitions)| {
                let assigned = member.position.assigned.get(topic);
                let is_assigned =
                    |partition| assigned.is_some_and(|assigned| assigned.contains_key(partition));
                partitions
                    .iter()
                    .any(|partition| !is_assigned(partition) && self.is_owned(*topic, *partition))
            })
    }

    /// What takes the whole group away.
    pub(super) fn tombstones(&self) -> Vec<ConsumerRecord> {
        let group = || self.id.clone();
        let members = || self.members.keys().cloned();
        let mut records: Vec<ConsumerRecord> = members()
            .map(|member| ConsumerRecord::Position { group: group(), member, value: None })
            .collect();
        let targets: BTreeSet<StrBytes> = members().chain(self.targets.keys().cloned()).collect();
        records.extend(targets.into_iter().map(|member| ConsumerRecord::Target {
            group: group(),
            member,
            value: None,
        }));
        records.push(ConsumerRecord::TargetEpoch { group: group(), value: None });
        records.extend(members().map(|member| ConsumerRecord::Member {
            group: group(),
            member,
            value: None,
        }));
        records.extend(self.regexes.keys().map(|regex| ConsumerRecord::Regex {
            group: group(),
            regex: regex.clone(),
            value: None,
        }));
        if self.has_partition_metadata {
            records.push(ConsumerRecord::PartitionMetadata { group: group(), is_there: false });
        }
        records.push(ConsumerRecord::Group { group: group(), value: None });
        records
    }

    /// Partitions that several members have: there must be none.
    #[cfg(test)]
    pub(in crate::coordinator) fn shared_partitions(&self) -> usize {
        self.counts.owners.values().flat_map(HashMap::values).filter(|count| **count > 1).count()
    }
}

impl Counts {
    /// The same names, in the list of a member that subscribes to them already if there is one.
    fn shared(&self, names: Arc<[StrBytes]>) -> Arc<[StrBytes]> {
        self.subscriptions.get_key_value(&names).map_or(names, |(known, _)| known.clone())
    }

    fn add_metadata(&mut self, member: &Member) {
        let metadata = &member.metadata;
        if let Some(instance_id) = &metadata.instance_id {
            self.static_members.insert(instance_id.clone(), member.id.clone());
        }
        *self.subscriptions.entry(metadata.topic_names.clone()).or_default() += 1;
        for topic in &*metadata.topic_names {
            count(&mut self.topics, topic);
        }
        if !metadata.topic_regex.is_empty() {
            count(&mut self.regexes, &metadata.topic_regex);
        }
        if let Some(assignor) = &metadata.assignor {
            count(&mut self.assignors, assignor);
        }
        if let Some(classic) = &metadata.classic {
            self.classic_members += 1;
            for name in classic.protocols.iter().map(|protocol| &protocol.name).collect::<BTreeSet<_>>() {
                *self.classic_protocols.entry(name.clone()).or_default() += 1;
            }
        }
    }

    fn remove_metadata(&mut self, member: &Member) {
        let metadata = &member.metadata;
        if let Some(instance_id) = &metadata.instance_id
            && self.static_members.get(instance_id) == Some(&member.id)
        {
            self.static_members.remove(instance_id);
        }
        if let Some(count) = self.subscriptions.get_mut(&metadata.topic_names) {
            *count -= 1;
            if *count == 0 {
                self.subscriptions.remove(&metadata.topic_names);
            }
        }
        for topic in &*metadata.topic_names {
            discount(&mut self.topics, topic);
        }
        if !metadata.topic_regex.is_empty() {
            discount(&mut self.regexes, &metadata.topic_regex);
        }
        if let Some(assignor) = &metadata.assignor {
            discount(&mut self.assignors, assignor);
        }
        if let Some(classic) = &metadata.classic {
            self.classic_members -= 1;
            for name in classic.protocols.iter().map(|protocol| &protocol.name).collect::<BTreeSet<_>>() {
                if let Some(count) = self.classic_protocols.get_mut(name) {
                    *count -= 1;
                    if *count == 0 {
                        self.classic_protocols.remove(name);
                    }
                }
            }
        }
    }

    fn add_position(&mut self, position: &Position) {
        for (topic, partition) in all(position) {
            *self.owners.entry(topic).or_default().entry(partition).or_default() += 1;
        }
    }

    fn remove_position(&mut self, position: &Position) {
        for (topic, partition) in all(position) {
            let Some(partitions) = self.owners.get_mut(&topic) else { continue };
            if let Some(count) = partitions.get_mut(&partition) {
                *count -= 1;
                if *count == 0 {
                    partitions.remove(&partition);
                }
            }
            if partitions.is_empty() {
                self.owners.remove(&topic);
            }
        }
    }
}

fn all(position: &Position) -> impl Iterator<Item = (TopicId, PartitionIndex)> {
    let each = |owned: &'_ Owned| -> Vec<(TopicId, PartitionIndex)> {
        owned
            .iter()
            .flat_map(|(topic, partitions)| partitions.keys().map(move |partition| (*topic, *partition)))
            .collect()
    };
    each(&position.assigned).into_iter().chain(each(&position.revoking))
}

fn count(counts: &mut BTreeMap<StrBytes, usize>, name: &StrBytes) {
    *counts.entry(name.clone()).or_default() += 1;
}

fn discount(counts: &mut BTreeMap<StrBytes, usize>, name: &StrBytes) {
    if let Some(count) = counts.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            counts.remove(name);
        }
    }
}
