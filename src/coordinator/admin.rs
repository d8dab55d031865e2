//! What administrators ask for: ListGroups, DescribeGroups, DeleteGroups and OffsetDelete; and the sweep
//! that does the same by age.

use kafka_protocol::messages::describe_groups_response::DescribedGroup;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{GroupId, ListGroupsRequest, OffsetDeleteRequest, OffsetDeleteResponse};
use kafka_protocol::protocol::StrBytes;

use super::consumer::ConsumerGroup;
use super::gate::Gated;
use super::group::{CONSUMER_PROTOCOL_TYPE, Group, State};
use super::member::copy_text;
use super::partition::{Partition, tombstones};
use super::records::{OffsetKey, Record};
use super::turn::{Then, Write};
use crate::base::PartitionIndex;
use crate::base::clock::Timestamp;
use crate::wire::ErrorCode;

const CLASSIC_GROUP_TYPE: &str = "classic";
const CONSUMER_GROUP_TYPE: &str = "consumer";
/// DescribeGroups from here on says that a group is not there instead of calling it dead (KIP-1043).
const FIRST_VERSION_WITH_NOT_FOUND: i16 = 6;

pub(super) fn list_consumer(group: &ConsumerGroup) -> ListedGroup {
    ListedGroup::default()
        .with_group_id(GroupId(group.id.clone()))
        .with_protocol_type(StrBytes::from_static_str(CONSUMER_PROTOCOL_TYPE))
        .with_group_state(StrBytes::from_static_str(group.state_name()))
        .with_group_type(StrBytes::from_static_str(CONSUMER_GROUP_TYPE))
}

pub(super) fn list(group: &Group) -> ListedGroup {
    ListedGroup::default()
        .with_group_id(GroupId(group.id.clone()))
        .with_protocol_type(group.protocol_type.clone().unwrap_or_default())
        .with_group_state(StrBytes::from_static_str(group.state().name()))
        .with_group_type(StrBytes::from_static_str(CLASSIC_GROUP_TYPE))
}

/// Filters compare without regard to case; an empty one lets all pass, an unknown word none.
pub(super) fn is_asked_for(request: &ListGroupsRequest, group: &ListedGroup) -> bool {
    let state = group.group_state.as_str();
    let state_passes = request.states_filter.is_empty()
        || request.states_filter.iter().any(|asked| asked.trim().eq_ignore_ascii_case(state));
    let type_passes = request.types_filter.is_empty()
        || request.types_filter.iter().any(|asked| asked.trim().eq_ignore_ascii_case(&group.group_type));
    state_passes && type_passes
}

impl Partition {
    pub(super) fn describe(&self, id: &GroupId, api_version: i16) -> DescribedGroup {
        let described = DescribedGroup::default().with_group_id(id.clone());
        let Some(group) = self.groups.get(&id.0) else {
            let is_consumer = self.consumers.contains_key(&id.0) || self.shares.contains_key(&id.0);
            let described = described.with_group_state(StrBytes::from_static_str(State::Dead.name()));
            let not_found = match is_consumer {
                true => format!("Group {} is not a classic group.", id.0),
                false => format!("Group {} not found.", id.0),
            };
            return match api_version {
                FIRST_VERSION_WITH_NOT_FOUND.. => described
                    .with_error_code(ErrorCode::GroupIdNotFound.code())
                    .with_error_message(Some(StrBytes::from_string(not_found))),
                _ => described,
            };
        };
        // Outside of a stable generation the protocol is not settled.
        let protocol = group.protocol.as_ref().filter(|_| group.state() == State::Stable);
        described
            .with_group_state(StrBytes::from_static_str(group.state().name()))
            .with_protocol_type(group.protocol_type.clone().unwrap_or_default())
            .with_protocol_data(protocol.cloned().unwrap_or_default())
            .with_members(group.members().map(|member| member.describe(protocol)).collect())
    }

    /// What deletes a group with its offsets. Until that is written, nobody can use the group.
    pub(super) fn delete_group(&mut self, id: &StrBytes) -> Result<Write, ErrorCode> {
        if self.consumers.contains_key(id) {
            let records = tombstones(self.offsets_of_group(id));
            return self.delete_consumer(id, records, None);
        }
        if self.shares.contains_key(id) {
            return self.delete_share(id);
        }
        self.groups.get(id).ok_or(ErrorCode::GroupIdNotFound)?.check_delete()?;
        let records = tombstones(self.offsets_of_group(id));
        Ok(self.bury(id, records))
    }

    fn bury(&mut self, id: &StrBytes, mut records: Vec<Record>) -> Write {
        let group = self.groups.get_mut(id).expect("the caller found the group");
        group.bury();
        let group = group.id.clone();
        records.push(Record::Group { group: group.clone(), value: None });
        let gate = Some(Gated { group: group.clone(), is_exclusive: false });
        Write { records, replay: true, reply: None, then: Then::Buried { group }, gate }
    }

    /// The tombstones that an OffsetDelete asks for, and its answer. Topics that members read are refused.
    pub(super) fn delete_offsets(
        &self,
        request: &OffsetDeleteRequest,
    ) -> Result<(Vec<Record>, OffsetDeleteResponse), ErrorCode> {
        let id = &request.group_id.0;
        let consumers = self.consumers.get(id);
        let classic = self.groups.get(id);
        match classic {
            Some(group) => group.check_offset_delete()?,
            None if consumers.is_some() => {}
            None => return Err(ErrorCode::GroupIdNotFound),
        }
        let is_subscribed = |topic: &StrBytes| {
            classic.is_some_and(|group| group.is_subscribed(topic))
                || consumers.is_some_and(|group| group.is_subscribed(topic))
        };
        let mut existing = self.offsets_of_group(id);
        let mut records = Vec::new();
        let mut topics = Vec::with_capacity(request.topics.len());
        for topic in &request.topics {
            let error = match is_subscribed(&topic.name.0) {
                true => ErrorCode::GroupSubscribedToTopic.code(),
                false => 0,
            };
            for partition in topic.partitions.iter().filter(|_| error == 0) {
                let key = OffsetKey {
                    group: copy_text(id),
                    topic: copy_text(&topic.name),
                    partition: PartitionIndex(partition.partition_index),
                };
                // Each is deleted once, however often it is named.
                if existing.remove(&key) {
                    records.push(Record::Offset { key, value: None });
                }
            }
            let partitions = topic.partitions.iter().map(|partition| {
                OffsetDeleteResponsePartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(error)
            });
            topics.push(
                OffsetDeleteResponseTopic::default()
                    .with_name(topic.name.clone())
                    .with_partitions(partitions.collect()),
            );
        }
        Ok((records, OffsetDeleteResponse::default().with_topics(topics)))
    }

    /// What deletes the offsets that expired, and the empty groups that have none left.
    pub(super) fn sweep(&mut self, retention_ms: i64, now: Timestamp) -> Vec<Write> {
        let mut writes = Vec::new();
        let ids: Vec<StrBytes> = self.groups.keys().cloned().collect();
        for id in ids {
            let group = &self.groups[&id];
            if group.state() == State::Dead {
                continue;
            }
            let (records, all_expired) = self.expired_offset_tombstones(
                &id,
                |topic| group.is_subscribed(topic),
                |committed_at| group.retention_starts(committed_at),
                retention_ms,
                now,
            );
            let is_unused = group.state() == State::Empty && group.pending_join.is_empty();
            if all_expired && is_unused {
                writes.push(self.bury(&id, records));
            } else if !records.is_empty() {
                writes.push(Write::state(records));
            }
        }
        let ids: Vec<StrBytes> = self.consumers.keys().cloned().collect();
        for id in ids {
            let group = &self.consumers[&id];
            // Each offset counts from its commit, but never one of a topic that members read.
            let (records, all_expired) = self.expired_offset_tombstones(
                &id,
                |topic| group.is_subscribed(topic),
                Some,
                retention_ms,
                now,
            );
            let is_unused = group.is_empty() && !self.gates.is_shut(&id) && !self.gates.has_queue(&id);
            if all_expired && is_unused {
                writes.extend(self.delete_consumer(&id, records, None));
            } else if !records.is_empty() {
                writes.push(Write::state(records));
            }
        }
        writes
    }
}
