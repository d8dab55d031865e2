//! In which log directories replicas are, and what is lost with one (`ReplicationControlManager.handleAssignReplicasToDirs`,
//! `handleDirectoriesOffline`).

use uuid::Uuid;

use super::super::command::{AssignDirectories, Refusal, Response};
use super::super::elections::{self, Rules, Target};
use super::super::image::{Image, LOST_DIRECTORY, PartitionImage, TopicImage};
use super::super::record::{Record, Stamp};
use super::super::state::TopicSettings;
use super::brokers::check_epoch;
use super::{Decision, partitions};
use crate::base::{BrokerEpoch, BrokerId, PartitionIndex, TopicId};
use crate::wire::ErrorCode;

pub(super) fn assign(image: &Image, request: &AssignDirectories, stamp: &Stamp) -> Result<Decision, Refusal> {
    let broker = check_epoch(image, request.broker, request.epoch)?;
    let mut settings = TopicSettings::new(image, stamp);
    let mut records = Vec::new();
    let mut results = Vec::new();
    for (directory, replicas) in &request.directories {
        // One that has failed meanwhile has lost what it is told to have.
        let directory = if broker.log_dirs.contains(directory) { *directory } else { LOST_DIRECTORY };
        let placing = Placing { image, broker: broker.id, directory, elr: stamp.elr };
        for (topic, index) in replicas {
            let found = find(image, broker.id, *topic, *index);
            results.push(found.map(|(topic, partition)| {
                if partition.directory_of(broker.id) != directory {
                    records.push(placing.record(&mut settings, topic, *index, partition));
                }
            }));
        }
    }
    Ok(Decision { records, response: Response::DirectoriesAssigned(results) })
}

/// What a broker has lost with a disk, told replica by replica.
pub(super) fn replicas_offline(
    image: &Image,
    id: BrokerId,
    epoch: BrokerEpoch,
    partitions: &[(TopicId, PartitionIndex)],
    stamp: &Stamp,
) -> Result<Decision, Refusal> {
    check_epoch(image, id, epoch)?;
    let mut settings = TopicSettings::new(image, stamp);
    let placing = Placing { image, broker: id, directory: LOST_DIRECTORY, elr: stamp.elr };
    let records = partitions.iter().filter_map(|&(topic, index)| {
        let (topic, partition) = find(image, id, topic, index).ok()?;
        let is_known = partition.is_lost_on(id);
        (!is_known).then(|| placing.record(&mut settings, topic, index, partition))
    });
    Ok(Decision { records: records.collect(), response: Response::Done })
}

fn find(
    image: &Image,
    broker: BrokerId,
    topic: TopicId,
    index: PartitionIndex,
) -> Result<(&TopicImage, &PartitionImage), ErrorCode> {
    let topic = image.topic_by_id(topic).ok_or(ErrorCode::UnknownTopicId)?;
    let partition = topic.partition(index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    match partition.replicas.contains(&broker) {
        true => Ok((&**topic, &**partition)),
        false => Err(ErrorCode::NotLeaderOrFollower),
    }
}

/// Replicas of a broker come to be in a directory, or are lost with it.
struct Placing<'a> {
    image: &'a Image,
    broker: BrokerId,
    directory: Uuid,
    elr: bool,
}

impl Placing<'_> {
    /// A replica on a lost directory leaves the ISR that others are in, and what it led goes to the first that is in
    /// sync and alive, or has no leader; one that was thought lost may lead again.
    fn record(
        &self,
        settings: &mut TopicSettings<'_>,
        topic: &TopicImage,
        index: PartitionIndex,
        partition: &PartitionImage,
    ) -> Record {
        let Self { image, directory, elr, .. } = *self;
        let is_lost = directory == LOST_DIRECTORY;
        let serves = |broker: BrokerId| match broker == self.broker {
            true => !is_lost && image.broker(broker).is_some_and(|broker| broker.serves()),
            false => partitions::serves(image, partition, broker),
        };
        let mut target = Target::of(partition, partition.transit());
        if is_lost {
            target.isr.retain(|member| *member != self.broker);
            // What is lost with a disk is lost: it is not eligible.
            target.unclean = Some(self.broker);
        }
        let (min_isr, election) = settings.of(&topic.name);
        let rules = Rules { election, elr, min_isr, serves: &serves };
        let change = elections::change(partition, partition.transit(), target, &rules).unwrap_or_default();
        partitions::changed_in(topic.id, index, partition, change, (self.broker, directory))
    }
}

/// The broker has lost a directory, with whatever is known to be in it.
pub(super) fn fail(
    image: &Image,
    id: BrokerId,
    epoch: BrokerEpoch,
    directory: Uuid,
    stamp: &Stamp,
) -> Result<Decision, Refusal> {
    let broker = check_epoch(image, id, epoch)?;
    let record = Record::DirectoryFailed { broker: id, epoch, directory, rules: *stamp };
    // Told twice it is lost once.
    let records = broker.log_dirs.contains(&directory).then_some(record).into_iter().collect();
    Ok(Decision { records, response: Response::Done })
}

#[cfg(test)]
mod tests {
    use super::super::super::command::Command;
    use super::super::super::state::State;
    use super::super::testing::Cluster;
    use super::*;

    /// Broker 1 has two directories, and `both` has its replica in the first.
    fn cluster() -> (Cluster, TopicId, [Uuid; 2]) {
        let mut cluster = Cluster::of_many(2);
        let directories = [Uuid::from_u128(7001), Uuid::from_u128(7002)];
        cluster.pass(11);
        let mut request = cluster.registration(1, None);
        request.log_dirs = directories.to_vec();
        let epoch = cluster.run(Command::RegisterBroker(request)).unwrap().broker_epoch();
        assert!(!cluster.beat(1, epoch, |_| {}).unwrap().is_fenced);
        let second = cluster.state.image().broker(BrokerId(2)).unwrap().epoch;
        cluster.beat(2, second, |_| {}).unwrap();
        let topic = cluster.put("both", &[1, 2], &[1, 2], 1);
        (cluster, topic, directories)
    }

    fn assign(cluster: &mut Cluster, directory: Uuid, topic: TopicId, index: i32) -> Result<(), ErrorCode> {
        let broker = cluster.state.image().broker(BrokerId(1)).unwrap();
        let request = AssignDirectories {
            broker: broker.id,
            epoch: broker.epoch,
            directories: vec![(directory, vec![(topic, PartitionIndex(index))])],
        };
        cluster.run(Command::AssignDirectories(request)).unwrap().directories_assigned().remove(0)
    }

    fn fail(cluster: &mut Cluster, directory: Uuid) {
        let broker = cluster.state.image().broker(BrokerId(1)).unwrap();
        let (broker, epoch) = (broker.id, broker.epoch);
        cluster.run(Command::DirectoryFailed { broker, epoch, directory }).unwrap();
    }

    fn directory(cluster: &Cluster, name: &str) -> Uuid {
        cluster.state.image().topic(name).unwrap().partitions[0].directory_of(BrokerId(1))
    }

    #[test]
    fn what_is_lost_with_a_directory_is_led_by_others_and_the_rest_stays() {
        let (mut cluster, both, [first, second]) = cluster();
        let other = cluster.put("other", &[1, 2], &[1, 2], 1);
        let alone = cluster.put("a-topic", &[1], &[1], 1);
        assert_eq!(assign(&mut cluster, first, both, 0), Ok(()));
        assert_eq!(assign(&mut cluster, first, alone, 0), Ok(()));
        assert_eq!(assign(&mut cluster, second, other, 0), Ok(()));
        assert_eq!((directory(&cluster, "both"), directory(&cluster, "other")), (first, second));
        let version = cluster.state.image().version();
        assert_eq!(assign(&mut cluster, first, both, 0), Ok(()));
        let before = cluster.state.image().topic("both").unwrap().partitions[0].partition_epoch;
        fail(&mut cluster, first);
        assert_eq!(cluster.state_of("both"), (Some(2), vec![2], vec![]));
        assert_eq!(cluster.state_of("other"), (Some(1), vec![1, 2], vec![]));
        assert_eq!(cluster.state_of("a-topic"), (None, vec![], vec![1]), "nobody else has it");
        assert_eq!(directory(&cluster, "both"), LOST_DIRECTORY);
        assert!(cluster.state.image().topic("both").unwrap().partitions[0].partition_epoch > before);
        assert_eq!(cluster.state.image().broker(BrokerId(1)).unwrap().log_dirs, [second]);
        assert!(cluster.state.image().version() > version);
        // The state is whole in a snapshot.
        let copy = State::decode(1, &cluster.state.encode()).unwrap();
        assert_eq!(copy.image().topic("both"), cluster.state.image().topic("both"));
        // Told again it changes nothing.
        let image = cluster.state.image().clone();
        fail(&mut cluster, first);
        assert_eq!(cluster.state.image().topic("both"), image.topic("both"));
    }

    #[test]
    fn what_is_told_of_a_directory_that_has_failed_is_lost() {
        let (mut cluster, both, [first, second]) = cluster();
        fail(&mut cluster, first);
        assert_eq!(cluster.state_of("both").0, Some(1), "nobody knows where it is");
        assert_eq!(assign(&mut cluster, first, both, 0), Ok(()));
        assert_eq!(cluster.state_of("both"), (Some(2), vec![2], vec![]));
        // It was moved in time, and the news of that were late.
        assert_eq!(assign(&mut cluster, second, both, 0), Ok(()));
        assert_eq!(directory(&cluster, "both"), second);
        cluster.alter_isr("both", &[1, 2]).unwrap();
        assert_eq!(cluster.state_of("both"), (Some(2), vec![1, 2], vec![]));
    }

    #[test]
    fn a_sole_replica_that_was_moved_in_time_leads_again() {
        let (mut cluster, _, [first, second]) = cluster();
        let alone = cluster.put("a-topic", &[1], &[1], 1);
        assign(&mut cluster, first, alone, 0).unwrap();
        fail(&mut cluster, first);
        assert_eq!(cluster.state_of("a-topic").0, None);
        assign(&mut cluster, second, alone, 0).unwrap();
        assert_eq!(cluster.state_of("a-topic"), (Some(1), vec![1], vec![]));
    }

    #[test]
    fn what_is_not_the_brokers_is_refused_with_kafkas_codes() {
        let (mut cluster, both, [first, _]) = cluster();
        let elsewhere = cluster.put("elsewhere", &[2], &[2], 2);
        let nowhere = TopicId(Uuid::from_u128(1));
        assert_eq!(assign(&mut cluster, first, nowhere, 0), Err(ErrorCode::UnknownTopicId));
        assert_eq!(assign(&mut cluster, first, both, 1), Err(ErrorCode::UnknownTopicOrPartition));
        assert_eq!(assign(&mut cluster, first, elsewhere, 0), Err(ErrorCode::NotLeaderOrFollower));
        let stale = AssignDirectories { broker: BrokerId(1), epoch: BrokerEpoch(1), directories: Vec::new() };
        let refusal = cluster.run(Command::AssignDirectories(stale)).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::StaleBrokerEpoch);
    }
}
