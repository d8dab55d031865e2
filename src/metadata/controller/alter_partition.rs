//! AlterPartition: a leader tells who is in sync (`ReplicationControlManager.alterPartition`).

use std::collections::BTreeSet;

use super::super::command::{AlterIsr, AlterPartition, AlteredPartition, Refusal, Response};
use super::super::elections::{self, Rules, Target};
use super::super::image::{Image, PartitionImage};
use super::super::record::{Record, Stamp};
use super::super::state::TopicSettings;
use super::brokers::check_epoch;
use super::partitions::serves;
use super::{Decision, partitions};
use crate::base::{BrokerEpoch, BrokerId};
use crate::wire::ErrorCode;

/// Of a member whose registration its leader does not know.
const UNKNOWN_EPOCH: BrokerEpoch = BrokerEpoch(-1);

pub(super) fn alter_partitions(
    image: &Image,
    request: AlterPartition,
    stamp: &Stamp,
) -> Result<Decision, Refusal> {
    check_epoch(image, request.broker, request.epoch)?;
    let mut settings = TopicSettings::new(image, stamp);
    let mut records = Vec::new();
    let mut seen = BTreeSet::new();
    let results = request.partitions.iter().map(|wanted| {
        if !seen.insert((wanted.topic, wanted.index)) {
            return Err(ErrorCode::InvalidRequest);
        }
        let (record, altered) = alter(image, request.broker, wanted, stamp, &mut settings)?;
        records.extend(record);
        altered
    });
    let response = Response::PartitionsAltered(results.collect());
    Ok(Decision { records, response })
}

type Altered = Result<AlteredPartition, ErrorCode>;

fn alter(
    image: &Image,
    leader: BrokerId,
    wanted: &AlterIsr,
    stamp: &Stamp,
    settings: &mut TopicSettings<'_>,
) -> Result<(Option<Record>, Altered), ErrorCode> {
    let topic = image.topic_by_id(wanted.topic).ok_or(ErrorCode::UnknownTopicId)?;
    let partition = topic.partition(wanted.index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    check(image, partition, leader, wanted)?;
    let is_in = |broker: &BrokerId| wanted.isr.iter().any(|(member, _)| member == broker);
    let target = Target {
        isr: partition.replicas.iter().copied().filter(is_in).collect(),
        recovering: wanted.recovering,
        ..Target::of(partition, partition.transit())
    };
    let (min_isr, election) = settings.of(&topic.name);
    let serves = |broker: BrokerId| serves(image, partition, broker);
    let rules = Rules { election, elr: stamp.elr, min_isr, serves: &serves };
    let Some(change) = elections::change(partition, partition.transit(), target, &rules) else {
        return Ok((None, Ok(answer(partition))));
    };
    let after = change.clone().apply_to(partition);
    let record = partitions::changed(wanted.topic, wanted.index, partition, change);
    let altered = match after.leader == Some(leader) {
        true => Ok(answer(&after)),
        // A reassignment is done with it, and the leader has no part in what comes.
        false => Err(ErrorCode::NewLeaderElected),
    };
    Ok((Some(record), altered))
}

/// What stands against it, in the order in which Kafka looks.
fn check(
    image: &Image,
    partition: &PartitionImage,
    leader: BrokerId,
    wanted: &AlterIsr,
) -> Result<(), ErrorCode> {
    if wanted.leader_epoch > partition.leader_epoch || wanted.partition_epoch > partition.partition_epoch {
        // The leader knows of changes that this controller does not.
        return Err(ErrorCode::NotController);
    }
    if wanted.leader_epoch < partition.leader_epoch {
        return Err(ErrorCode::FencedLeaderEpoch);
    }
    if partition.leader != Some(leader) {
        return Err(ErrorCode::InvalidRequest);
    }
    if wanted.partition_epoch < partition.partition_epoch {
        return Err(ErrorCode::InvalidUpdateVersion);
    }
    let members: BTreeSet<BrokerId> = wanted.isr.iter().map(|(member, _)| *member).collect();
    let is_sound = members.len() == wanted.isr.len()
        && members.contains(&leader)
        && members.iter().all(|member| partition.replicas.contains(member))
        && (!wanted.recovering || members.len() == 1)
        && (partition.transit().recovering || !wanted.recovering);
    if !is_sound {
        return Err(ErrorCode::InvalidRequest);
    }
    let is_eligible = |(member, epoch): &(BrokerId, BrokerEpoch)| {
        let known = image.broker(*member).map(|broker| broker.epoch);
        serves(image, partition, *member) && (*epoch == UNKNOWN_EPOCH || known == Some(*epoch))
    };
    match wanted.isr.iter().all(is_eligible) {
        true => Ok(()),
        false => Err(ErrorCode::IneligibleReplica),
    }
}

fn answer(partition: &PartitionImage) -> AlteredPartition {
    AlteredPartition {
        leader: partition.leader,
        leader_epoch: partition.leader_epoch,
        isr: partition.isr.clone(),
        partition_epoch: partition.partition_epoch,
        recovering: partition.transit().recovering,
    }
}

#[cfg(test)]
#[path = "alter_partition_tests.rs"]
mod tests;
