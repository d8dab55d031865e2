//! AlterPartitionReassignments (KIP-455): a partition goes to other replicas
//! (`ReplicationControlManager.alterPartitionReassignments`).
//!
//! The state of one that is under way is in the partition alone, in its replicas, `adding` and `removing`: whoever is the
//! controller when the last new replica comes to be in sync ends it, with that very change (`elections`).

use std::collections::BTreeSet;

use super::super::command::{AlterReassignments, Reassignment, Refusal, Response};
use super::super::elections::{self, Election, Rules, Target, Transit};
use super::super::image::{Image, PartitionImage, TopicImage};
use super::super::record::{Record, Stamp};
use super::super::state::TopicSettings;
use super::{Decision, partitions};
use crate::base::BrokerId;
use crate::wire::ErrorCode;

pub(super) fn alter_reassignments(image: &Image, request: &AlterReassignments, stamp: &Stamp) -> Decision {
    let mut settings = TopicSettings::new(image, stamp);
    let mut records = Vec::new();
    let mut seen = BTreeSet::new();
    let mut results = Vec::new();
    for (name, wanted) in &request.topics {
        let topic = image.topic(name);
        for wanted in wanted {
            let found = topic.and_then(|topic| Some((topic, topic.partition(wanted.index)?)));
            results.push(match found {
                None => Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, String::new())),
                Some((topic, _)) if !seen.insert((topic.id, wanted.index)) => {
                    let text = "The request names the partition more than once.";
                    Err(Refusal::new(ErrorCode::InvalidRequest, text))
                }
                Some((topic, partition)) => {
                    let (min_isr, election) = settings.of(&topic.name);
                    let partition = Assigned { topic, partition, min_isr, election };
                    partition
                        .alter(image, wanted, request.may_change_factor, stamp.elr)
                        .map(|record| records.extend(record))
                }
            });
        }
    }
    Decision { records, response: Response::ReassignmentsAltered(results) }
}

/// A partition, with what the settings of its topic say.
struct Assigned<'a> {
    topic: &'a TopicImage,
    partition: &'a PartitionImage,
    min_isr: usize,
    /// How a leader is elected where nobody leads.
    election: Election,
}

impl Assigned<'_> {
    /// The record that it takes; none where nothing is to be done.
    fn alter(
        &self,
        image: &Image,
        wanted: &Reassignment,
        may_change_factor: bool,
        elr: bool,
    ) -> Result<Option<Record>, Refusal> {
        let partition = self.partition;
        let serves = |broker: BrokerId| partitions::serves(image, partition, broker);
        let (target, election) = match &wanted.replicas {
            Some(replicas) => {
                check(image, replicas)?;
                if !may_change_factor {
                    check_factor(partition, replicas)?;
                }
                (towards(partition, replicas), Election::Online)
            }
            None => (self.back(wanted, &serves)?, self.election),
        };
        let rules = Rules { election, elr, min_isr: self.min_isr, serves: &serves };
        let change = elections::change(partition, partition.transit(), target, &rules);
        Ok(change.map(|change| partitions::changed(self.topic.id, wanted.index, partition, change)))
    }

    /// To the replicas from before.
    fn back(&self, wanted: &Reassignment, serves: &dyn Fn(BrokerId) -> bool) -> Result<Target, Refusal> {
        let transit = self.partition.transit();
        if !is_under_way(transit) {
            let text = "No partition reassignment is in progress.";
            return Err(Refusal::new(ErrorCode::NoReassignmentInProgress, text));
        }
        let target = before(self.partition);
        if !target.isr.is_empty() {
            return Ok(target);
        }
        if self.election != Election::Unclean {
            let text = format!(
                "Unable to revert partition assignment for {}:{} because it would require an unclean leader election.",
                self.topic.name, wanted.index
            );
            return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, text));
        }
        let first = target.replicas.iter().copied().find(|broker| serves(*broker));
        let first = first.or(target.replicas.first().copied());
        Ok(Target { isr: first.into_iter().collect(), recovering: true, ..target })
    }
}

pub(super) fn is_under_way(transit: &Transit) -> bool {
    !transit.adding.is_empty() || !transit.removing.is_empty()
}

/// All replicas of both, the wanted ones first, until those are in sync. What was there before the first reassignment
/// stays known as that, however often the aim changes: only such replicas are not `adding`.
fn towards(partition: &PartitionImage, wanted: &[BrokerId]) -> Target {
    let transit = partition.transit();
    let is_original = |id: &BrokerId| partition.replicas.contains(id) && !transit.adding.contains(id);
    let removing: BTreeSet<BrokerId> =
        partition.replicas.iter().copied().filter(|id| !wanted.contains(id)).collect();
    let replicas: Vec<BrokerId> = wanted.iter().copied().chain(removing.iter().copied()).collect();
    let adding: BTreeSet<BrokerId> = replicas.iter().copied().filter(|id| !is_original(id)).collect();
    Target {
        isr: in_order(&replicas, &partition.isr),
        adding: adding.into_iter().collect(),
        removing: removing.into_iter().collect(),
        replicas,
        ..Target::of(partition, transit)
    }
}

/// The replicas that were there before the reassignment.
fn before(partition: &PartitionImage) -> Target {
    let transit = partition.transit();
    let replicas: Vec<BrokerId> =
        partition.replicas.iter().copied().filter(|id| !transit.adding.contains(id)).collect();
    Target {
        isr: in_order(&replicas, &partition.isr),
        replicas,
        adding: Vec::new(),
        removing: Vec::new(),
        ..Target::of(partition, transit)
    }
}

fn in_order(replicas: &[BrokerId], members: &[BrokerId]) -> Vec<BrokerId> {
    replicas.iter().copied().filter(|id| members.contains(id)).collect()
}

/// As `validateManualPartitionAssignment`.
fn check(image: &Image, replicas: &[BrokerId]) -> Result<(), Refusal> {
    let refuse = |what: String| {
        let text = format!("The manual partition assignment includes {what}");
        Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, text))
    };
    if replicas.is_empty() {
        return refuse("an empty replica list.".to_owned());
    }
    let mut sorted = replicas.to_vec();
    sorted.sort_unstable();
    for (position, id) in sorted.iter().enumerate() {
        if image.broker(*id).is_none() {
            return refuse(format!("broker {id}, but no such broker is registered."));
        }
        if position > 0 && sorted[position - 1] == *id {
            return refuse(format!("the broker {id} more than once."));
        }
    }
    Ok(())
}

/// As `validatePartitionReplicationFactorUnchanged`: the factor is that of the last aim.
fn check_factor(partition: &PartitionImage, wanted: &[BrokerId]) -> Result<(), Refusal> {
    let removing = &partition.transit().removing;
    let (old, new) = (partition.replicas.iter().filter(|id| !removing.contains(id)).count(), wanted.len());
    match old == new {
        true => Ok(()),
        false => Err(Refusal::new(
            ErrorCode::InvalidReplicationFactor,
            format!("The replication factor is changed from {old} to {new}"),
        )),
    }
}

#[cfg(test)]
#[path = "reassign_tests.rs"]
mod tests;
