//! What members may make the coordinator hold: the metadata of their JoinGroups, the assignments of their leaders'
//! SyncGroups, the ids that were given out. One bound for all groups (`kuring.groups.bytes.max`), of which one group
//! may have a quarter.
//!
//! What is held is summed anew only when what has come since the last time could be too much.

use kafka_protocol::messages::{JoinGroupRequest, SyncGroupRequest};

use super::group::Group;
use super::interface::Request;
use super::machine::Coordinator;
use super::member::Member;
use crate::base::PartitionIndex;

/// Of the bound, what one group may have.
const GROUP_PART: u64 = 4;
/// A group without members, a member without metadata and a member to be, about.
const GROUP_BYTES: usize = 512;
const MEMBER_BYTES: usize = 512;
const PENDING_BYTES: usize = 128;
/// Joins below are not held against their own group: to sum that costs by its members.
const SMALL_BYTES: usize = GROUP_BYTES + MEMBER_BYTES + (4 << 10);

impl Coordinator {
    /// Whether there is room for what the members would hold after `request`.
    pub(super) fn has_room_for(&mut self, index: PartitionIndex, request: &Request) -> bool {
        let bytes = match request {
            Request::Join(request) => join_bytes(request),
            Request::Sync(request) => sync_bytes(request),
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

    /// What the group of `request` holds, without what the request would take the place of.
    fn bytes_of_group(&self, index: PartitionIndex, request: &Request) -> usize {
        let groups = self.partitions.get(&index).map(|partition| &partition.groups);
        let id = request.group_id();
        let Some(group) = groups.zip(id).and_then(|(groups, id)| groups.get(id)) else { return 0 };
        let replaced = match request {
            Request::Join(request) => group.member(&request.member_id).map_or(0, Member::held_bytes),
            _ => group.members().map(|member| member.assignment.len()).sum(),
        };
        group.held_bytes() - replaced
    }

    fn held_bytes(&self) -> usize {
        let groups = self.partitions.values().flat_map(|partition| partition.groups.values());
        groups.map(Group::held_bytes).sum()
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
