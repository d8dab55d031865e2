//! What every command about partitions needs: who serves a replica, and the record of a change.

use uuid::Uuid;

use super::super::elections::Change;
use super::super::image::{Image, PartitionImage};
use super::super::record::{PartitionChange, Record};
use crate::base::{BrokerId, PartitionIndex, TopicId};

/// Whether the broker serves its replica of the partition.
pub(super) fn serves(image: &Image, partition: &PartitionImage, broker: BrokerId) -> bool {
    image.broker(broker).is_some_and(|broker| broker.serves()) && !partition.is_lost_on(broker)
}

/// Has the partition be what the change makes of it.
pub(super) fn changed(
    topic: TopicId,
    index: PartitionIndex,
    partition: &PartitionImage,
    change: Change,
) -> Record {
    let directories = change.replicas.is_some().then(|| change.clone().apply_to(partition).directories);
    record(topic, index, change, directories)
}

/// The same, with the broker's replica in this directory.
pub(super) fn changed_in(
    topic: TopicId,
    index: PartitionIndex,
    partition: &PartitionImage,
    change: Change,
    (broker, directory): (BrokerId, Uuid),
) -> Record {
    let directories = change.clone().apply_to(partition).directories_with(broker, directory);
    record(topic, index, change, Some(directories))
}

fn record(topic: TopicId, index: PartitionIndex, change: Change, directories: Option<Box<[Uuid]>>) -> Record {
    Record::PartitionChanged(PartitionChange {
        topic,
        index,
        leader: change.leader,
        isr: change.isr,
        replicas: change.replicas,
        directories,
        transit: change.transit,
    })
}
