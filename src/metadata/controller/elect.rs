//! Elections by command and by time (`ReplicationControlManager.electLeaders`, `maybeBalancePartitionLeaders`,
//! `maybeElectUncleanLeaders`).

use std::collections::BTreeMap;

use super::super::command::{ElectLeaders, ElectionKind, Response};
use super::super::elections::{self, Election, Rules, Target};
use super::super::image::{Image, PartitionImage, TopicImage};
use super::super::record::{Record, Stamp};
use super::super::state::TopicSettings;
use super::{Decision, partitions};
use crate::base::{BrokerId, PartitionIndex, TopicId};
use crate::wire::ErrorCode;

/// Elections that the controller makes by itself in one go (Kafka's `MAX_ELECTIONS_PER_IMBALANCE`).
pub(super) const ELECTIONS_PER_TURN_MAX: usize = 1_000;

pub(super) fn elect_leaders(image: &Image, request: &ElectLeaders, stamp: &Stamp) -> Decision {
    let mut settings = TopicSettings::new(image, stamp);
    let mut records = Vec::new();
    // One that is named again is elected once.
    let mut known: BTreeMap<(TopicId, PartitionIndex), Result<(), ErrorCode>> = BTreeMap::new();
    let mut results = Vec::new();
    for (name, indexes) in &request.topics {
        let topic = image.topic(name);
        for index in indexes {
            let found = topic.and_then(|topic| Some((topic, topic.partition(*index)?)));
            let Some((topic, partition)) = found else {
                results.push(Err(ErrorCode::UnknownTopicOrPartition));
                continue;
            };
            let result = *known.entry((topic.id, *index)).or_insert_with(|| {
                let min_isr = settings.of(&topic.name).0;
                let record = elect(image, (topic, *index), partition, request.kind, min_isr, stamp.elr)?;
                records.push(record);
                Ok(())
            });
            results.push(result);
        }
    }
    Decision { records, response: Response::LeadersElected(results) }
}

fn elect(
    image: &Image,
    (topic, index): (&TopicImage, PartitionIndex),
    partition: &PartitionImage,
    kind: ElectionKind,
    min_isr: usize,
    elr: bool,
) -> Result<Record, ErrorCode> {
    let (is_needed, election, not_available) = match kind {
        ElectionKind::Preferred => {
            (!has_preferred_leader(partition), Election::Preferred, ErrorCode::PreferredLeaderNotAvailable)
        }
        ElectionKind::Unclean => {
            (partition.leader.is_none(), Election::Unclean, ErrorCode::EligibleLeadersNotAvailable)
        }
    };
    if !is_needed {
        return Err(ErrorCode::ElectionNotNeeded);
    }
    let serves = |broker: BrokerId| partitions::serves(image, partition, broker);
    let rules = Rules { election, elr, min_isr, serves: &serves };
    let target = Target::of(partition, partition.transit());
    let change = elections::change(partition, partition.transit(), target, &rules).ok_or(not_available)?;
    Ok(partitions::changed(topic.id, index, partition, change))
}

/// The first replicas lead, where they may and others do.
pub(super) fn balance(image: &Image, stamp: &Stamp) -> Vec<Record> {
    let mut settings = TopicSettings::new(image, stamp);
    each(image)
        .filter(|(_, _, partition)| !has_preferred_leader(partition))
        .filter_map(|(topic, index, partition)| {
            let min_isr = settings.of(&topic.name).0;
            elect(image, (topic, index), partition, ElectionKind::Preferred, min_isr, stamp.elr).ok()
        })
        .take(ELECTIONS_PER_TURN_MAX)
        .collect()
}

/// Somebody leads, where nobody does and the topic's settings say that any is better than none.
pub(super) fn elect_unclean(image: &Image, stamp: &Stamp) -> Vec<Record> {
    let mut settings = TopicSettings::new(image, stamp);
    each(image)
        .filter(|(_, _, partition)| partition.leader.is_none())
        .filter_map(|(topic, index, partition)| {
            let (min_isr, election) = settings.of(&topic.name);
            if election != Election::Unclean {
                return None;
            }
            elect(image, (topic, index), partition, ElectionKind::Unclean, min_isr, stamp.elr).ok()
        })
        .take(ELECTIONS_PER_TURN_MAX)
        .collect()
}

fn each(image: &Image) -> impl Iterator<Item = (&TopicImage, PartitionIndex, &PartitionImage)> {
    image
        .topics()
        .flat_map(|topic| topic.numbered().map(move |(index, partition)| (&**topic, index, &**partition)))
}

fn has_preferred_leader(partition: &PartitionImage) -> bool {
    partition.leader.is_some() && partition.leader == partition.replicas.first().copied()
}

#[cfg(test)]
#[path = "elect_tests.rs"]
mod tests;
