//! Registration, fencing and producer id blocks.

use super::super::command::{ProducerIdBlock, Refusal, RegisterBroker, Response};
use super::super::image::{BrokerImage, Image};
use super::super::record::Record;
use super::Decision;
use crate::base::{BrokerEpoch, BrokerId, ProducerId};
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
    Ok(Decision {
        records: vec![Record::BrokerRegistered(broker)],
        response: Response::BrokerRegistered { epoch },
    })
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
    use super::super::super::command::Command;
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
