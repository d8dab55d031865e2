//! What members may make the coordinator hold: the metadata of their JoinGroups, the assignments of their leaders'
//! SyncGroups, the ids that were given out; of the newer protocols what they subscribe to and are assigned. One
//! bound for all groups (`kuring.groups.bytes.max`), of which one group may have a quarter.
//!
//! What is held is summed anew only when what has come since the last time could be too much. Nobody who is in is
//! refused for what a rebalance brings: that is counted when it is written, and holds off who comes next.

use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, JoinGroupRequest, ShareGroupHeartbeatRequest, SyncGroupRequest, TopicName,
};

use super::consumer::ConsumerGroup;
use super::group::Group;
use super::interface::Request;
use super::machine::Coordinator;
use super::member::Member;
use super::records::Record;
use super::share_group::ShareGroup;
use crate::base::PartitionIndex;

/// Of the bound, what one group may have.
const GROUP_PART: u64 = 4;
/// A group without members, a member without metadata and a member to be, about.
pub(super) const GROUP_BYTES: usize = 512;
pub(super) const MEMBER_BYTES: usize = 512;
const PENDING_BYTES: usize = 128;
/// A name of a subscription and what goes with it.
pub(super) const NAME_BYTES: usize = 96;
/// A partition that is assigned, wherever that is kept.
pub(super) const PARTITION_BYTES: usize = 96;
/// Joins below are not held against their own group: to sum that costs by its members.
const SMALL_BYTES: usize = GROUP_BYTES + MEMBER_BYTES + (4 << 10);

impl Coordinator {
    /// Whether there is room for what the members would hold after `request`.
    pub(super) fn has_room_for(&mut self, index: PartitionIndex, request: &Request) -> bool {
        let bytes = match request {
            Request::Join(request) => join_bytes(request),
            Request::Sync(request) => sync_bytes(request),
            Request::ConsumerHeartbeat(request) => match self.growth(index, request) {
                0 => return true,
                bytes => bytes,
            },
            Request::ShareHeartbeat(request) => match self.share_growth(index, request) {
                0 => return true,
                bytes => bytes,
            },
            _ => return true,
        };
        let max = self.settings.members_bytes_max;
        if bytes > SMALL_BYTES && (self.bytes_of_group(index, request) + bytes) as u64 > max / GROUP_PART {
            return false;
        }
        let held = self.members_bytes.unwrap_or(usize::MAX).saturating_add(bytes);
        let held = if held as u64 > max { self.held_bytes() + bytes } else { held };
        let fits = held as u64 <= max;
        self.members_bytes = Some(if fits { held } else { held - bytes });
        fits
    }

    /// What a heartbeat would add to its group: nothing if it tells no subscription, which nearly none does.
    fn growth(&self, index: PartitionIndex, request: &ConsumerGroupHeartbeatRequest) -> usize {
        if request.subscribed_topic_names.is_none() && request.subscribed_topic_regex.is_none() {
            return 0;
        }
        let group = self.partitions.get(&index).and_then(|it| it.consumers.get(&request.group_id.0));
        let is_new = |name: &&TopicName| group.is_none_or(|group| !group.is_read(&name.0));
        let names = request.subscribed_topic_names.iter().flatten().filter(is_new);
        let names: usize = names.map(|name| NAME_BYTES + name.len()).sum();
        match group.is_some_and(|group| group.member(&request.member_id).is_some()) {
            true => names,
            false => MEMBER_BYTES + names,
        }
    }

    /// The same of a share group, whose members keep their names each for itself.
    fn share_growth(&self, index: PartitionIndex, request: &ShareGroupHeartbeatRequest) -> usize {
        let Some(names) = &request.subscribed_topic_names else { return 0 };
        let group = self.partitions.get(&index).and_then(|it| it.shares.get(&request.group_id.0));
        let known = group.and_then(|group| group.topic_names_of(&request.member_id));
        let is_new = |name: &&TopicName| known.is_none_or(|known| !known.contains(&name.0));
        let bytes: usize = names.iter().filter(is_new).map(|name| NAME_BYTES + name.len()).sum();
        if known.is_some() { bytes } else { MEMBER_BYTES + bytes }
    }

    /// Counts what is written of a consumer group or a share group, until all is summed anew.
    pub(super) fn count_written(&mut self, records: &[Record]) {
        let Some(held) = &mut self.members_bytes else { return };
        for record in records {
            *held = held.saturating_add(match record {
                Record::Consumer(record) => record.held_bytes(),
                Record::Share(record) => record.held_bytes(),
                Record::Offset { .. } | Record::Group { .. } => 0,
            });
        }
    }

    /// What the group of `request` holds, without what the request would take the place of.
    fn bytes_of_group(&self, index: PartitionIndex, request: &Request) -> usize {
        let Some((partition, id)) = self.partitions.get(&index).zip(request.group_id()) else { return 0 };
        if let Some(group) = partition.consumers.get(id) {
            return group.held_bytes();
        }
        if let Some(group) = partition.shares.get(id) {
            return group.held_bytes();
        }
        let Some(group) = partition.groups.get(id) else { return 0 };
        let replaced = match request {
            Request::Join(request) => group.member(&request.member_id).map_or(0, Member::held_bytes),
            _ => group.members().map(|member| member.assignment.len()).sum(),
        };
        group.held_bytes() - replaced
    }

    fn held_bytes(&self) -> usize {
        let classic = self.partitions.values().flat_map(|partition| partition.groups.values());
        let consumers = self.partitions.values().flat_map(|partition| partition.consumers.values());
        let shares = self.partitions.values().flat_map(|partition| partition.shares.values());
        classic.map(Group::held_bytes).sum::<usize>()
            + shares.map(ShareGroup::held_bytes).sum::<usize>()
            + consumers.map(ConsumerGroup::held_bytes).sum::<usize>()
    }
}

impl Group {
    fn held_bytes(&self) -> usize {
        let members: usize = self.members().map(Member::held_bytes).sum();
        let pending: usize = self.pending_join.iter().map(|id| PENDING_BYTES + id.len()).sum();
        GROUP_BYTES + members + pending
    }
}

impl Member {
    fn held_bytes(&self) -> usize {
        let protocols = self.protocols.iter().map(|protocol| protocol.name.len() + protocol.metadata.len());
        MEMBER_BYTES + protocols.sum::<usize>() + self.assignment.len()
    }
}

fn join_bytes(request: &JoinGroupRequest) -> usize {
    let protocols = request.protocols.iter().map(|protocol| protocol.name.len() + protocol.metadata.len());
    // It may make the group.
    GROUP_BYTES + MEMBER_BYTES + protocols.sum::<usize>()
}

fn sync_bytes(request: &SyncGroupRequest) -> usize {
    request.assignments.iter().map(|assignment| assignment.assignment.len()).sum()
}
