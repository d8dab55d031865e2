//! Registration, fencing and producer id blocks.

use std::collections::BTreeSet;

use super::super::command::{ProducerIdBlock, Refusal, RegisterBroker, Response};
use super::super::features::FEATURES;
use super::super::image::{BrokerImage, ControllerImage, Image};
use super::super::record::{BrokerChange, Record, Stamp};
use super::{Controller, Decision, heartbeats};
use crate::base::clock::Monotonic;
use crate::base::{BrokerEpoch, BrokerId, ProducerId};
use crate::wire::ErrorCode;

/// Ids per block, as in Kafka's `ProducerIdsBlock`.
const PRODUCER_IDS_PER_BLOCK: u32 = 1000;

/// Kafka's `DirectoryId`s below this stand for something else than a directory.
const RESERVED_DIRECTORIES: u128 = 100;

/// The registration of the only broker there is. It replaces an earlier one of the same id: two processes with one id
/// are kept apart by the lock on the data directory.
pub(super) fn register(image: &Image, request: RegisterBroker) -> Result<Decision, Refusal> {
    check_cluster(image, &request)?;
    let epoch = next_epoch(image);
    let fenced = request.fenced;
    // It is its own controller: what it can work at is known.
    let broker = BrokerImage { features: Vec::new(), ..broker_of(request, epoch, fenced) };
    let mut records = vec![Record::BrokerRegistered(broker)];
    records.extend(first_features(image));
    Ok(Decision { records, response: Response::BrokerRegistered { epoch } })
}

impl Controller {
    /// The registration of one of several (`ClusterControlManager.registerBroker`). Another process than before begins
    /// fenced, and what the one before it led has gone to others first.
    pub(super) fn register_among_others(
        &mut self,
        image: &Image,
        request: RegisterBroker,
        stamp: &Stamp,
        now: Monotonic,
    ) -> Result<Decision, Refusal> {
        check_cluster(image, &request)?;
        check_directories(image, &request)?;
        check_features(image, &request)?;
        let (id, mut records) = (request.id, Vec::new());
        let mut sessions = self.sessions.borrow_mut();
        let known = image.broker(id);
        let epoch = match known {
            // It asks again because it has not heard the answer.
            Some(known) if known.incarnation == request.incarnation => {
                let registered = broker_of(request, known.epoch, known.fenced);
                let registered = BrokerImage { shutting_down: known.shutting_down, ..registered };
                if **known != registered {
                    records.push(Record::BrokerRegistered(registered));
                }
                known.epoch
            }
            Some(known) if !known.shutting_down && sessions.is_alive(known, now) => {
                return Err(Refusal::new(
                    ErrorCode::DuplicateBrokerRegistration,
                    format!("Another process is broker {id}, or was a moment ago."),
                ));
            }
            known => {
                let epoch = next_epoch(image);
                if let Some(known) = known {
                    let is_unclean = request.previous_epoch != Some(known.epoch);
                    if is_unclean || !known.fenced {
                        records.push(Record::BrokerChanged(BrokerChange {
                            id,
                            epoch: known.epoch,
                            fenced: Some(true),
                            shutting_down: None,
                            is_unclean,
                            rules: *stamp,
                        }));
                    }
                }
                records.push(Record::BrokerRegistered(broker_of(request, epoch, true)));
                records.extend(first_features(image));
                epoch
            }
        };
        sessions.registered(id, epoch, now);
        Ok(Decision { records, response: Response::BrokerRegistered { epoch } })
    }

    pub(super) fn set_fenced(
        &self,
        image: &Image,
        id: BrokerId,
        epoch: BrokerEpoch,
        fenced: bool,
    ) -> Result<Decision, Refusal> {
        let broker = check_epoch(image, id, epoch)?;
        let record = match (self.settings.cluster, broker.fenced, fenced) {
            (_, true, true) | (_, false, false) => None,
            (Some(cluster), ..) => Some(heartbeats::fence(broker, fenced, cluster.stamp)),
            (None, false, true) => Some(Record::BrokerFenced { id, epoch }),
            (None, true, false) => Some(Record::BrokerUnfenced { id, epoch }),
        };
        Ok(Decision { records: record.into_iter().collect(), response: Response::Done })
    }
}

impl Controller {
    /// A broker is gone for good: nobody waits for it any more (`ReplicationControlManager.unregisterBroker`).
    pub(super) fn unregister(&self, image: &Image, id: BrokerId) -> Result<Decision, Refusal> {
        let Some(broker) = image.broker(id) else {
            let text = format!("Broker ID {id} is not currently registered");
            return Err(Refusal::new(ErrorCode::BrokerIdNotRegistered, text));
        };
        let epoch = broker.epoch;
        let mut records = Vec::new();
        match self.settings.cluster {
            // What it alone has waits for its return, whatever it brings.
            Some(cluster) => records.push(Record::BrokerChanged(BrokerChange {
                id,
                epoch,
                fenced: Some(true),
                shutting_down: None,
                is_unclean: true,
                rules: cluster.stamp,
            })),
            None if broker.serves() => {
                let text = format!("Broker {id} is the cluster's only one, and it runs.");
                return Err(Refusal::new(ErrorCode::InvalidRequest, text));
            }
            None => {}
        }
        records.push(Record::BrokerRemoved { id, epoch });
        Ok(Decision { records, response: Response::Done })
    }
}

/// A controller says where it is and what it can work at (`ClusterControlManager.registerController`).
pub(super) fn register_controller(image: &Image, controller: ControllerImage) -> Decision {
    let is_known = image.controller(controller.id).is_some_and(|known| **known == controller);
    let records = match is_known {
        true => Vec::new(),
        false => vec![Record::ControllerRegistered(controller)],
    };
    Decision { records, response: Response::Done }
}

fn check_cluster(image: &Image, request: &RegisterBroker) -> Result<(), Refusal> {
    if request.cluster_id == image.cluster_id() {
        return Ok(());
    }
    Err(Refusal::new(
        ErrorCode::InconsistentClusterId,
        format!("The cluster's id is {}, not {}.", image.cluster_id(), request.cluster_id),
    ))
}

fn check_directories(image: &Image, request: &RegisterBroker) -> Result<(), Refusal> {
    let refuse = |text: String| Err(Refusal::new(ErrorCode::InvalidRegistration, text));
    if request.log_dirs.is_empty() {
        return refuse(format!("Broker {} has no log directory.", request.id));
    }
    let mut seen = BTreeSet::new();
    for directory in &request.log_dirs {
        if directory.as_u128() < RESERVED_DIRECTORIES {
            return refuse(format!("{directory} cannot be the id of a log directory."));
        }
        if !seen.insert(directory) {
            return refuse(format!("Broker {} has log directory {directory} twice.", request.id));
        }
        let mut others = image.brokers().filter(|other| other.id != request.id);
        if let Some(other) = others.find(|other| other.log_dirs.contains(directory)) {
            return refuse(format!("Log directory {directory} is broker {}'s.", other.id));
        }
    }
    Ok(())
}

/// A broker must be able to work at every level that is finalized (`processRegistrationFeature`).
fn check_features(image: &Image, request: &RegisterBroker) -> Result<(), Refusal> {
    let finalized = image.features().map(|(name, level)| {
        let range = request.features.iter().find(|range| range.name == name);
        (name, level, range.map_or((0, 0), |range| (range.min, range.max)))
    });
    let others = request.features.iter().filter(|range| image.feature(&range.name).is_none());
    let others = others.map(|range| (range.name.as_str(), 0, (range.min, range.max)));
    for (name, level, (min, max)) in finalized.chain(others) {
        if !(min..=max).contains(&level) {
            let text = format!(
                "Unable to register because the broker does not support finalized version {level} of {name}. The broker \
                 wants a version between {min} and {max}, inclusive."
            );
            return Err(Refusal::new(ErrorCode::UnsupportedVersion, text));
        }
    }
    Ok(())
}

/// The entry's own index is at least this, so the next registration's epoch is greater; and whoever has an image of
/// this version or a later one has the registration.
fn next_epoch(image: &Image) -> BrokerEpoch {
    BrokerEpoch(image.version() as i64 + 1)
}

fn broker_of(request: RegisterBroker, epoch: BrokerEpoch, fenced: bool) -> BrokerImage {
    BrokerImage {
        id: request.id,
        epoch,
        incarnation: request.incarnation,
        endpoints: request.endpoints,
        rack: request.rack,
        fenced,
        shutting_down: false,
        log_dirs: request.log_dirs,
        features: request.features,
    }
}

/// The first broker of a new cluster speaks the newest there is.
fn first_features(image: &Image) -> impl Iterator<Item = Record> {
    let is_first = image.brokers().next().is_none();
    let initial = FEATURES.iter().filter(move |feature| is_first && feature.initial > 0);
    initial.map(|feature| Record::Feature { name: feature.name.to_owned(), level: feature.initial })
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

pub(super) fn check_epoch(image: &Image, id: BrokerId, epoch: BrokerEpoch) -> Result<&BrokerImage, Refusal> {
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
    use super::super::testing::{Cluster, range_of};
    use super::*;
    use crate::base::PartitionIndex;

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
            features: Vec::new(),
            fenced: false,
            previous_epoch: None,
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
            cluster.controller.handle(cluster.state.image(), lost(), cluster.now).unwrap().records,
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
    fn a_broker_that_cannot_work_at_a_finalized_level_is_refused() {
        use super::super::super::features::TRANSACTION_VERSION;
        use super::super::super::image::FeatureRange;
        let mut cluster = Cluster::of_many(1);
        let code = |cluster: &mut Cluster, change: fn(&mut Vec<FeatureRange>)| {
            let mut request = cluster.registration(2, None);
            change(&mut request.features);
            let registered = cluster.run(Command::RegisterBroker(request));
            registered.map(drop).map_err(|refusal| refusal.code)
        };
        let new = |min, max| FeatureRange { name: "new".to_owned(), min, max };
        let refused = Err(ErrorCode::UnsupportedVersion);
        assert_eq!(
            code(&mut cluster, |features| range_of(features, TRANSACTION_VERSION).max = 1),
            refused,
            "it is at 2"
        );
        assert_eq!(
            code(&mut cluster, |features| features.truncate(2)),
            refused,
            "it does not know it at all"
        );
        assert_eq!(code(&mut cluster, |features| range_of(features, TRANSACTION_VERSION).min = 3), refused);
        assert_eq!(
            code(&mut cluster, |features| {
                let range = FeatureRange { name: "new".to_owned(), min: 1, max: 2 };
                features.push(range);
            }),
            refused,
            "it cannot be without what is not finalized"
        );
        let mut request = cluster.registration(2, None);
        request.features.push(new(0, 2));
        range_of(&mut request.features, TRANSACTION_VERSION).max = 9;
        cluster.run(Command::RegisterBroker(request.clone())).unwrap();
        let known = cluster.state.image().broker(BrokerId(2)).unwrap().features.clone();
        assert_eq!(known, request.features);
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
        let command = Command::FenceBroker { id, epoch };
        let outcome = cluster.controller.handle(cluster.state.image(), command, cluster.now);
        assert_eq!(outcome.unwrap().records, []);
    }
}
