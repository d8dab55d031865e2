//! Registration, fencing and producer id blocks.

use super::super::command::{ProducerIdBlock, Refusal, RegisterBroker, Response};
use super::super::elections::{self, Election, Rules, Target, Transit};
use super::super::features::FEATURES;
use super::super::image::{BrokerImage, Image, LOST_DIRECTORY};
use super::super::record::{PartitionChange, Record};
use super::Decision;
use crate::base::{BrokerEpoch, BrokerId, PartitionIndex, ProducerId, TopicId};
use crate::wire::ErrorCode;

/// Ids per block, as in Kafka's `ProducerIdsBlock`.
const PRODUCER_IDS_PER_BLOCK: u32 = 1000;

/// A registration replaces an earlier one of the same id: two processes with one id are kept apart by the
/// lock on the data directory.
pub(super) fn register(image: &Image, request: RegisterBroker) -> Result<Decision, Refusal> {
    if request.cluster_id != image.cluster_id() {
        return Err(Refusal::new(
            ErrorCode::InconsistentClusterId,
            format!("The cluster's id is {}, not {}.", image.cluster_id(), request.cluster_id),
        ));
    }
    // The entry's own index is at least this, so the next registration's epoch is greater.
    let epoch = BrokerEpoch(image.version() as i64 + 1);
    let broker = BrokerImage {
        id: request.id,
        epoch,
        incarnation: request.incarnation,
        endpoints: request.endpoints,
        rack: request.rack,
        fenced: request.fenced,
        log_dirs: request.log_dirs,
    };
    let mut records = vec![Record::BrokerRegistered(broker)];
    if image.brokers().next().is_none() {
        // The first broker of a new cluster: it speaks the newest there is.
        records.extend(
            FEATURES
                .iter()
                .filter(|feature| feature.initial > 0)
                .map(|feature| Record::Feature { name: feature.name.to_owned(), level: feature.initial }),
        );
    }
    Ok(Decision { records, response: Response::BrokerRegistered { epoch } })
}

pub(super) fn set_fenced(
    image: &Image,
    id: BrokerId,
    epoch: BrokerEpoch,
    fenced: bool,
) -> Result<Decision, Refusal> {
    let broker = check_epoch(image, id, epoch)?;
    let record = match (broker.fenced, fenced) {
        (false, true) => Some(Record::BrokerFenced { id, epoch }),
        (true, false) => Some(Record::BrokerUnfenced { id, epoch }),
        _ => None,
    };
    Ok(Decision { records: record.into_iter().collect(), response: Response::Done })
}

pub(super) fn allocate_producer_ids(
    image: &Image,
    broker: BrokerId,
    epoch: BrokerEpoch,
) -> Result<Decision, Refusal> {
    check_epoch(image, broker, epoch)?;
    let first = image.next_producer_id();
    let Some(next) = first.0.checked_add(i64::from(PRODUCER_IDS_PER_BLOCK)).map(ProducerId) else {
        return Err(Refusal::new(ErrorCode::UnknownServerError, "All producer ids are used up."));
    };
    Ok(Decision {
        records: vec![Record::ProducerIds { broker, epoch, next }],
        response: Response::ProducerIds(ProducerIdBlock { first, count: PRODUCER_IDS_PER_BLOCK }),
    })
}

/// Replicas on a lost directory leave the ISRs that others are in, and what they led goes to the first that is in
/// sync and alive, or has no leader.
pub(super) fn replicas_offline(
    image: &Image,
    id: BrokerId,
    epoch: BrokerEpoch,
    partitions: &[(TopicId, PartitionIndex)],
) -> Result<Decision, Refusal> {
    check_epoch(image, id, epoch)?;
    let records = partitions.iter().filter_map(|&(topic, index)| {
        let partition = image.topic_by_id(topic)?.partition(index)?;
        if !partition.replicas.contains(&id) || partition.is_lost_on(id) {
            return None;
        }
        let serves = |other: BrokerId| {
            other != id
                && image.broker(other).is_some_and(|broker| !broker.fenced)
                && !partition.is_lost_on(other)
        };
        let transit = Transit::default();
        let mut target = Target::of(partition, &transit);
        target.isr.retain(|other| *other != id);
        let rules = Rules { election: Election::Online, elr: false, min_isr: 1, serves: &serves };
        let change = elections::change(partition, &transit, target, &rules).unwrap_or_default();
        Some(Record::PartitionChanged(PartitionChange {
            topic,
            index,
            leader: change.leader,
            isr: change.isr,
            replicas: None,
            directories: Some(partition.directories_with(id, LOST_DIRECTORY)),
        }))
    });
    Ok(Decision { records: records.collect(), response: Response::Done })
}

fn check_epoch(image: &Image, id: BrokerId, epoch: BrokerEpoch) -> Result<&BrokerImage, Refusal> {
    let Some(broker) = image.broker(id) else {
        return Err(Refusal::new(
            ErrorCode::BrokerIdNotRegistered,
            format!("Broker {id} is not registered."),
        ));
    };
    if broker.epoch != epoch {
        return Err(Refusal::new(
            ErrorCode::StaleBrokerEpoch,
            format!("Broker {id} has epoch {}, not {epoch}.", broker.epoch),
        ));
    }
    Ok(broker)
}

#[cfg(test)]
mod tests {
    use super::super::super::command::{Command, CreateTopics, NewTopic};
    use super::super::testing::Cluster;
    use super::*;

    #[test]
    fn each_registration_has_a_greater_epoch() {
        let mut cluster = Cluster::of(1);
        let first = cluster.register(1);
        let second = cluster.register(1);
        assert!(second > first);
        let stale = Command::AllocateProducerIds { broker: BrokerId(1), epoch: first };
        assert_eq!(cluster.run(stale).unwrap_err().code, ErrorCode::StaleBrokerEpoch);
        let unknown = Command::FenceBroker { id: BrokerId(9), epoch: first };
        assert_eq!(cluster.run(unknown).unwrap_err().code, ErrorCode::BrokerIdNotRegistered);
    }

    #[test]
    fn a_broker_of_another_cluster_is_refused() {
        let mut cluster = Cluster::of(0);
        let request = RegisterBroker {
            id: BrokerId(1),
            cluster_id: "other".into(),
            incarnation: uuid::Uuid::nil(),
            endpoints: Vec::new(),
            rack: None,
            log_dirs: Vec::new(),
            fenced: false,
        };
        let refusal = cluster.run(Command::RegisterBroker(request)).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InconsistentClusterId);
    }

    #[test]
    fn a_lost_replica_has_no_leader_until_its_broker_registers_anew() {
        let mut cluster = Cluster::of(1);
        let epoch = cluster.register(1);
        let topic = NewTopic {
            name: "t".into(),
            partitions: 2,
            replication_factor: 1,
            assignment: Vec::new(),
            configs: Vec::new(),
        };
        cluster
            .run(Command::CreateTopics(CreateTopics { topics: vec![topic], validate_only: false }))
            .unwrap();
        let id = cluster.state.image().topic("t").unwrap().id;
        let broker = BrokerId(1);
        let lost = || Command::ReplicasOffline { broker, epoch, partitions: vec![(id, PartitionIndex(1))] };
        cluster.run(lost()).unwrap();
        let partition = |cluster: &Cluster, index| {
            cluster.state.image().partition("t", PartitionIndex(index)).unwrap().clone()
        };
        let before = partition(&cluster, 1);
        assert_eq!((before.leader, before.is_lost_on(broker)), (None, true));
        assert_eq!(*before.isr, [broker], "it stays in sync with itself");
        assert_eq!(partition(&cluster, 0).leader, Some(broker));
        assert_eq!(
            cluster.controller.handle(cluster.state.image(), lost()).unwrap().records,
            [],
            "told once"
        );
        cluster.run(Command::FenceBroker { id: broker, epoch }).unwrap();
        cluster.run(Command::UnfenceBroker { id: broker, epoch }).unwrap();
        assert_eq!(partition(&cluster, 0).leader, Some(broker));
        assert_eq!(partition(&cluster, 1).leader, None, "the same process has not got it back");
        cluster.register(1);
        let after = partition(&cluster, 1);
        assert_eq!((after.leader, after.is_lost_on(broker)), (Some(broker), false));
        assert!(after.leader_epoch > before.leader_epoch);
    }

    #[test]
    fn producer_id_blocks_never_overlap() {
        let mut cluster = Cluster::of(1);
        let epoch = cluster.register(1);
        let mut next = 0;
        for _ in 0..5 {
            let command = Command::AllocateProducerIds { broker: BrokerId(1), epoch };
            let block = cluster.run(command).unwrap().producer_ids();
            assert_eq!(block, ProducerIdBlock { first: ProducerId(next), count: 1000 });
            next += 1000;
        }
    }

    #[test]
    fn fencing_twice_changes_nothing() {
        let mut cluster = Cluster::of(1);
        let epoch = cluster.register(1);
        let id = BrokerId(1);
        cluster.run(Command::FenceBroker { id, epoch }).unwrap();
        let outcome = cluster.controller.handle(cluster.state.image(), Command::FenceBroker { id, epoch });
        assert_eq!(outcome.unwrap().records, []);
    }
}
