//! One step of a member towards its target: give partitions back, wait for those that others have, take them
//! (KIP-848; Kafka's `CurrentAssignmentBuilder`).

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::error::ResponseError as ErrorCode;

use super::member::{Epoch, MemberState, Owned, Partitions, Position};
use super::requests::Refusal;
use crate::base::{PartitionIndex, TopicId};

/// Where a member is to go, and what stands in its way.
pub(super) struct Goal<'a> {
    pub(super) epoch: Epoch,
    pub(super) target: &'a Partitions,
    /// The topics it subscribes to now; it may have nothing else, whatever the target says.
    pub(super) subscribed: &'a BTreeSet<TopicId>,
    pub(super) subscription_changed: bool,
    /// What the member says it has; `None` when it does not say.
    pub(super) reported: Option<&'a Partitions>,
    /// Whether anybody has the partition.
    pub(super) is_owned: &'a dyn Fn(TopicId, PartitionIndex) -> bool,
}

/// The member's next position, which may be the one it has.
pub(super) fn reconcile(position: &Position, goal: &Goal<'_>) -> Result<Position, Refusal> {
    match position.state {
        MemberState::Stable if position.epoch != goal.epoch => Ok(step(position, position.epoch, goal)),
        MemberState::UnrevokedPartitions if !still_has(&position.revoking, goal) => {
            Ok(step(position, position.epoch, goal))
        }
        MemberState::Stable | MemberState::UnrevokedPartitions if goal.subscription_changed => {
            Ok(drop_unsubscribed(position, goal))
        }
        MemberState::Stable | MemberState::UnrevokedPartitions => Ok(position.clone()),
        MemberState::UnreleasedPartitions => Ok(step(position, position.epoch, goal)),
        MemberState::Unknown if goal.reported.is_none_or(|reported| !reported.is_empty()) => {
            Err(Refusal::new(
                ErrorCode::FencedMemberEpoch,
                "The consumer group member is in a unknown state. The member must abandon all its \
                 partitions and rejoin.",
            ))
        }
        MemberState::Unknown => Ok(step(position, goal.epoch, goal)),
    }
}

/// Whether the member says, or lets think, that it still has one of these.
fn still_has(revoked: &Owned, goal: &Goal<'_>) -> bool {
    let Some(reported) = goal.reported else { return true };
    reported.iter().any(|(topic, partitions)| {
        revoked
            .get(topic)
            .is_some_and(|revoked| partitions.iter().any(|partition| revoked.contains_key(partition)))
    })
}

fn step(position: &Position, epoch: Epoch, goal: &Goal<'_>) -> Position {
    let nothing = BTreeMap::new();
    let none = BTreeSet::new();
    let (mut assigned, mut revoking, mut gained) = (Owned::new(), Owned::new(), Owned::new());
    let mut is_waiting = false;
    let topics: BTreeSet<TopicId> = goal.target.keys().chain(position.assigned.keys()).copied().collect();
    for topic in topics {
        let target = goal.target.get(&topic).filter(|_| goal.subscribed.contains(&topic)).unwrap_or(&none);
        let has = position.assigned.get(&topic).unwrap_or(&nothing);
        let giving_back = position.revoking.get(&topic).unwrap_or(&nothing);
        for (partition, since) in has {
            let side = if target.contains(partition) { &mut assigned } else { &mut revoking };
            side.entry(topic).or_default().insert(*partition, *since);
        }
        for partition in target.iter().filter(|partition| !has.contains_key(partition)) {
            // What it is giving back itself it can have again.
            if (goal.is_owned)(topic, *partition) && !giving_back.contains_key(partition) {
                is_waiting = true;
            } else {
                gained.entry(topic).or_default().insert(*partition, goal.epoch);
            }
        }
    }
    if !revoking.is_empty() && still_has(&revoking, goal) {
        return moved(position, MemberState::UnrevokedPartitions, epoch, assigned, revoking);
    }
    for (topic, partitions) in gained {
        assigned.entry(topic).or_default().extend(partitions);
    }
    let state = if is_waiting { MemberState::UnreleasedPartitions } else { MemberState::Stable };
    moved(position, state, goal.epoch, assigned, Owned::new())
}

/// The member subscribes to less: what it may not have any more goes, also while it is on its way.
fn drop_unsubscribed(position: &Position, goal: &Goal<'_>) -> Position {
    let (kept, dropped): (Owned, Owned) = position
        .assigned
        .iter()
        .map(|(topic, partitions)| (*topic, partitions.clone()))
        .partition(|(topic, _)| goal.subscribed.contains(topic));
    if dropped.is_empty() {
        return position.clone();
    }
    let mut revoking = position.revoking.clone();
    for (topic, partitions) in dropped {
        revoking.entry(topic).or_default().extend(partitions);
    }
    if still_has(&revoking, goal) {
        moved(position, MemberState::UnrevokedPartitions, position.epoch, kept, revoking)
    } else {
        // It had given them back before it was asked.
        moved(position, position.state, position.epoch, kept, position.revoking.clone())
    }
}

fn moved(
    position: &Position,
    state: MemberState,
    epoch: Epoch,
    assigned: Owned,
    revoking: Owned,
) -> Position {
    // Who comes again with the epoch before the last step did not hear of it.
    Position { epoch, previous_epoch: position.epoch, state, assigned, revoking }
}
