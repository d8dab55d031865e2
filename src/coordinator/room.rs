//! What members may make the coordinator hold: the metadata of their JoinGroups, the assignments of their leaders'
//! SyncGroups, the ids that were given out; of the newer protocols what they subscribe to and are assigned. One
//! bound for all groups (`kuring.groups.bytes.max`), of which one group may have a quarter.
//!
//! What is held is summed anew only when what has come since the last time could be too much, and then not for each who
//! is refused: a sum goes through all members, so it pays for many refusals. Nobody who is in is refused for what a
//! rebalance brings: that is counted when it is written, and holds off who comes next.

use std::time::Duration;

use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, JoinGroupRequest, ShareGroupHeartbeatRequest, SyncGroupRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::consumer::ConsumerGroup;
use super::group::Group;
use super::interface::Request;
use super::machine::Coordinator;
use super::member::Member;
use super::partition::Partition;
use super::records::Record;
use super::share_group::ShareGroup;
use crate::base::PartitionIndex;
use crate::base::clock::Monotonic;

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
/// Members that a sum has gone through for each who may then be refused without another one.
const VISITS_PER_REFUSAL: usize = 64;
/// The next one is summed for again after this time, however many have been refused: some may have gone.
const SUM_KEPT: Duration = Duration::from_millis(100);

/// What the members of all groups hold.
#[derive(Default)]
pub(super) struct Room {
    /// At most; `None` until it has been summed.
    held: Option<usize>,
    /// When it was summed for somebody who was refused all the same.
    refused_at: Option<Monotonic>,
    /// How many more are refused by that sum.
    refusals_left: usize,
}

impl Room {
    /// It has to be summed anew: groups have come or gone.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether who does not fit is refused by the last sum.
    fn refuses_unseen(&mut self, now: Monotonic) -> bool {
        let is_recent = self.refused_at.is_some_and(|at| now.since(at) < SUM_KEPT);
        if !is_recent || self.refusals_left == 0 {
            return false;
        }
        self.refusals_left -= 1;
        true
    }
}

impl Coordinator {
    /// Whether there is room for what the members would hold after `request`.
    pub(super) fn has_room_for(&mut self, index: PartitionIndex, request: &Request, now: Monotonic) -> bool {
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
        let held = self.room.held.unwrap_or(usize::MAX).saturating_add(bytes);
        if held as u64 <= max {
            self.room.held = Some(held);
            return true;
        }
        if self.room.refuses_unseen(now) {
            return false;
        }
        let before = self.held_bytes();
        let fits = (before + bytes) as u64 <= max;
        self.room.held = Some(if fits { before + bytes } else { before });
        self.room.refused_at = (!fits).then_some(now);
        self.room.refusals_left = if fits { 0 } else { self.member_count() / VISITS_PER_REFUSAL };
        fits
    }

    /// What a heartbeat would add to its group: nothing if it tells no subscription, which nearly none does.
    fn growth(&self, index: PartitionIndex, request: &ConsumerGroupHeartbeatRequest) -> usize {
        if request.subscribed_topic_names.is_none() && request.subscribed_topic_regex.is_none() {
            return 0;
        }
        let group = self.partitions.get(&index).and_then(|it| it.consumers.get(&request.group_id.0));
        let names = request.subscribed_topic_names.as_ref().map_or(0, |names| {
            let names: Vec<StrBytes> = names.iter().map(|name| name.0.clone()).collect();
            match group {
                Some(group) => group.growth_by_names(&request.member_id, names),
                None => bytes_of_names(&names),
            }
        });
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
        let Some(held) = &mut self.room.held else { return };
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

    /// What a sum goes through.
    fn member_count(&self) -> usize {
        let of = |partition: &Partition| {
            let classic = partition.groups.values().map(|group| 1 + group.len()).sum::<usize>();
            let consumers = partition.consumers.values().map(|group| 1 + group.len()).sum::<usize>();
            classic + consumers + partition.shares.values().map(|group| 1 + group.len()).sum::<usize>()
        };
        self.partitions.values().map(of).sum()
    }
}

/// A list of names that is kept once.
pub(super) fn bytes_of_names(names: &[StrBytes]) -> usize {
    names.iter().map(|name| NAME_BYTES + name.len()).sum()
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
