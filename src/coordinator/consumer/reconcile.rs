//! One step of a member towards its target: give partitions back, wait for those that others have, take them
//! (KIP-848; Kafka's `CurrentAssignmentBuilder`).

use std::collections::{BTreeMap, BTreeSet};

use super::member::{Epoch, MemberState, Owned, Partitions, Position};
use super::requests::Refusal;
use crate::base::{PartitionIndex, TopicId};
use crate::wire::ErrorCode;

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

#[cfg(test)]
mod tests {
    use MemberState::{
        Stable, Unknown, UnreleasedPartitions as Unreleased, UnrevokedPartitions as Unrevoked,
    };

    use super::*;

    const T: TopicId = TopicId(uuid::Uuid::from_u128(1));

    fn partitions(list: &[i32]) -> Partitions {
        match list {
            [] => Partitions::new(),
            list => Partitions::from([(T, list.iter().copied().map(PartitionIndex).collect())]),
        }
    }

    /// In the epoch that each was assigned in.
    fn owned(list: &[(i32, i32)]) -> Owned {
        match list {
            [] => Owned::new(),
            list => {
                let each = list.iter().map(|(index, epoch)| (PartitionIndex(*index), Epoch(*epoch)));
                Owned::from([(T, each.collect())])
            }
        }
    }

    fn at(state: MemberState, epoch: i32, assigned: &[(i32, i32)], revoking: &[(i32, i32)]) -> Position {
        Position {
            epoch: Epoch(epoch),
            previous_epoch: Epoch(epoch),
            state,
            assigned: owned(assigned),
            revoking: owned(revoking),
        }
    }

    struct Case {
        name: &'static str,
        from: Position,
        /// The target's epoch and partitions.
        target: (i32, &'static [i32]),
        /// What the member says it has.
        reported: Option<&'static [i32]>,
        /// What others have.
        taken: &'static [i32],
        is_subscribed: bool,
        /// `None` when the member is fenced.
        to: Option<Position>,
    }

    /// Every state with every event: a target that is there, gives, takes, and gives what others have; what the
    /// member says; and a subscription that ends.
    #[test]
    fn every_state_meets_every_event() {
        let one = &[(0, 5)][..];
        let both = &[(0, 5), (1, 5)][..];
        let case = |name, from, target, reported, taken, to| Case {
            name,
            from,
            target,
            reported,
            taken,
            is_subscribed: true,
            to: Some(to),
        };
        let same = at(Stable, 5, both, &[]);
        let revoking = at(Unrevoked, 5, one, &[(1, 5)]);
        let waiting = at(Unreleased, 5, one, &[]);
        let mut cases = vec![
            case("stable, no news", same.clone(), (5, &[0, 1]), None, &[], same.clone()),
            case(
                "stable, a new epoch alone",
                same.clone(),
                (6, &[0, 1]),
                None,
                &[],
                at(Stable, 6, both, &[]),
            ),
            case(
                "stable, one is free",
                same.clone(),
                (6, &[0, 1, 2]),
                None,
                &[],
                at(Stable, 6, &[(0, 5), (1, 5), (2, 6)], &[]),
            ),
            case(
                "stable, one is with another",
                same.clone(),
                (6, &[0, 1, 2]),
                None,
                &[2],
                at(Unreleased, 6, both, &[]),
            ),
            case(
                "stable, one is taken away",
                same.clone(),
                (6, &[0]),
                None,
                &[],
                at(Unrevoked, 5, one, &[(1, 5)]),
            ),
            case(
                "stable, one is taken away that it has not any more",
                same.clone(),
                (6, &[0]),
                Some(&[0]),
                &[],
                at(Stable, 6, one, &[]),
            ),
            case(
                "stable, one goes and one comes",
                same.clone(),
                (6, &[0, 2]),
                None,
                &[],
                at(Unrevoked, 5, one, &[(1, 5)]),
            ),
            case("unrevoked, it says nothing", revoking.clone(), (6, &[0, 2]), None, &[], revoking.clone()),
            case(
                "unrevoked, it still has it",
                revoking.clone(),
                (6, &[0, 2]),
                Some(&[0, 1]),
                &[],
                revoking.clone(),
            ),
            case(
                "unrevoked, it has given it back",
                revoking.clone(),
                (6, &[0, 2]),
                Some(&[0]),
                &[],
                at(Stable, 6, &[(0, 5), (2, 6)], &[]),
            ),
            case(
                "unrevoked, given back, the next is with another",
                revoking.clone(),
                (6, &[0, 2]),
                Some(&[0]),
                &[2],
                at(Unreleased, 6, one, &[]),
            ),
            case(
                "unrevoked, given back, more is taken away",
                revoking.clone(),
                (7, &[]),
                Some(&[0]),
                &[],
                at(Unrevoked, 5, &[], &[(0, 5)]),
            ),
            case(
                "unrevoked, what it gives back is its own again",
                revoking.clone(),
                (7, &[0, 1]),
                Some(&[0]),
                &[1],
                at(Stable, 7, &[(0, 5), (1, 7)], &[]),
            ),
            case(
                "unreleased, still with another",
                waiting.clone(),
                (5, &[0, 1]),
                None,
                &[1],
                waiting.clone(),
            ),
            case(
                "unreleased, released",
                waiting.clone(),
                (5, &[0, 1]),
                None,
                &[],
                at(Stable, 5, &[(0, 5), (1, 5)], &[]),
            ),
            case(
                "unreleased, not its own any more",
                waiting.clone(),
                (6, &[0]),
                None,
                &[1],
                at(Stable, 6, one, &[]),
            ),
            case(
                "unreleased, what it has is taken away",
                waiting.clone(),
                (6, &[1]),
                None,
                &[1],
                at(Unrevoked, 5, &[], &[(0, 5)]),
            ),
            case(
                "unknown, it has nothing",
                at(Unknown, 5, both, &[]),
                (6, &[0]),
                Some(&[]),
                &[],
                at(Stable, 6, one, &[]),
            ),
        ];
        for reported in [None, Some(&[0][..])] {
            let from = at(Unknown, 5, both, &[]);
            let name = "unknown, it has something";
            cases.push(Case {
                name,
                from,
                target: (6, &[0]),
                reported,
                taken: &[],
                is_subscribed: true,
                to: None,
            });
        }
        let unsubscribed = |name, from, target, reported, to| Case {
            name,
            from,
            target,
            reported,
            taken: &[],
            is_subscribed: false,
            to: Some(to),
        };
        cases.extend([
            unsubscribed(
                "stable, it reads the topic no more",
                same.clone(),
                (5, &[0, 1]),
                None,
                at(Unrevoked, 5, &[], both),
            ),
            unsubscribed(
                "stable, it reads the topic no more and has nothing",
                same,
                (5, &[0, 1]),
                Some(&[]),
                at(Stable, 5, &[], &[]),
            ),
            unsubscribed(
                "unrevoked, it reads the topic no more",
                revoking,
                (6, &[0, 2]),
                None,
                at(Unrevoked, 5, &[], both),
            ),
            unsubscribed(
                "unreleased, it reads the topic no more",
                waiting,
                (5, &[0, 1]),
                None,
                at(Unrevoked, 5, &[], one),
            ),
        ]);
        for case in cases {
            let (target, reported) = (partitions(case.target.1), case.reported.map(partitions));
            let subscribed = if case.is_subscribed { BTreeSet::from([T]) } else { BTreeSet::new() };
            let own: Vec<PartitionIndex> = [&case.from.assigned, &case.from.revoking]
                .iter()
                .flat_map(|it| it.values())
                .flat_map(BTreeMap::keys)
                .copied()
                .collect();
            let is_owned =
                |_, partition: PartitionIndex| case.taken.contains(&partition.0) || own.contains(&partition);
            let goal = Goal {
                epoch: Epoch(case.target.0),
                target: &target,
                subscribed: &subscribed,
                subscription_changed: !case.is_subscribed,
                reported: reported.as_ref(),
                is_owned: &is_owned,
            };
            let mut to = reconcile(&case.from, &goal).ok();
            let expected = case.to.map(|to| Position { previous_epoch: Epoch(5), ..to });
            if let Some(to) = &mut to {
                to.previous_epoch = Epoch(5);
            }
            assert_eq!(to, expected, "{}", case.name);
        }
    }
}
