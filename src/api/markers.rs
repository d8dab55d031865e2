//! Writes the ends of transactions to their partitions that this broker leads: one message per owner shard, and for the
//! offsets topic through the group coordinator, which then knows what the transaction's commits have come to.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use kafka_protocol::protocol::StrBytes;

use super::client::{Target, find_partition, partition_image};
use super::coordinator_appends::{coordinator_epoch_max, failure_code, marker_claim};
use super::internal_topics::CONSUMER_OFFSETS;
use super::shares::{Share, Shares};
use crate::base::clock;
use crate::base::{LeaderEpoch, PartitionIndex, ShardId, TopicPartition};
use crate::coordinator::transactions::Marker;
use crate::coordinator::{self, Response};
use crate::io::runtime::yield_if_needed;
use crate::log::Origin;
use crate::metadata::Image;
use crate::partition::Acks;
use crate::shard::messages::{AppendPart, AppendRequest, ControlReply, ControlRequest, Reply, Request};
use crate::shard::{PartitionKey, Shard};
use crate::wire::ErrorCode;
use crate::wire::record::EndTxnMarker;

/// Kafka's `request.timeout.ms`.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Markers are not looked at by version.
const PRODUCE_VERSION: i16 = 13;
/// Markers in one message, so that no shard is kept by it for long.
const PARTS_MAX: usize = 512;

/// What became of one marker in each of its partitions.
pub(super) type Results = Vec<(TopicPartition, Result<(), ErrorCode>)>;

/// Who writes a marker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Writer {
    /// The coordinator of this broker.
    Own,
    /// That of another one, which may know of a newer leadership than this broker does.
    Peer,
    /// Whoever is none: its word for a coordinator's epoch is good only up to those that there have been.
    Administrator,
}

/// The end of one transaction, and where it is to be written.
pub(super) struct Round {
    pub marker: Marker,
    pub partitions: BTreeSet<TopicPartition>,
}

/// Puts those together that go to the same partitions: they would wait for the same. Any others would hold each other
/// up, and one partition that does not answer all of them.
pub(super) fn gather<T>(rounds: Vec<(T, Round)>) -> Vec<Vec<(T, Round)>> {
    let mut gathered: BTreeMap<BTreeSet<TopicPartition>, Vec<(T, Round)>> = BTreeMap::new();
    for (with, round) in rounds {
        match gathered.get_mut(&round.partitions) {
            Some(rounds) => rounds.push((with, round)),
            None => {
                gathered.insert(round.partitions.clone(), vec![(with, round)]);
            }
        }
    }
    gathered.into_values().collect()
}

/// The partition as the shards know it.
pub(super) fn find(image: &Image, partition: &TopicPartition) -> Option<PartitionKey> {
    let topic = image.topic(&partition.topic)?;
    partition_image(topic, partition.partition)?;
    Some(PartitionKey { topic: topic.id, partition: partition.partition })
}

/// Appends each marker to each of its partitions and waits until all are committed or have failed.
pub(super) async fn write(
    shard: &Rc<Shard>,
    image: &Image,
    writer: Writer,
    rounds: Vec<Round>,
) -> Vec<Results> {
    let mut results: Vec<Results> = rounds.iter().map(|_| Results::new()).collect();
    let mut shares: Shares<AppendPart, (usize, TopicPartition)> = Shares::new();
    let mut offsets = Vec::new();
    let coordinator_epoch_max = match writer {
        Writer::Own | Writer::Administrator => coordinator_epoch_max(image),
        Writer::Peer => i32::MAX,
    };
    for (number, Round { marker, partitions }) in rounds.into_iter().enumerate() {
        let claim = marker_claim(marker.version, coordinator_epoch_max);
        let batch = encode(marker);
        for partition in partitions {
            let topic = image.topic(&partition.topic).ok_or(ErrorCode::UnknownTopicOrPartition);
            match topic.and_then(|topic| find_partition(shard, topic, partition.partition)) {
                Err(error) => results[number].push((partition, Err(error))),
                Ok(_) if &*partition.topic == CONSUMER_OFFSETS => offsets.push((number, marker, partition)),
                Ok(Target { key, owner }) => {
                    let epoch = LeaderEpoch::NONE;
                    let part = AppendPart { key, epoch, records: batch.clone(), claim };
                    shares.add(owner, (number, partition), part);
                }
            }
        }
        yield_if_needed().await;
    }
    let shares = join_all(shares.into_vec().into_iter().map(|share| write_share(shard, share)));
    let offsets = join_all(offsets.into_iter().map(|(number, marker, partition)| async move {
        let result = end_on_offsets(shard, partition.partition, marker).await;
        (number, partition, result)
    }));
    let (shares, offsets) = futures::future::join(shares, offsets).await;
    for (number, partition, result) in shares.into_iter().flatten().chain(offsets) {
        results[number].push((partition, result));
    }
    results
}

fn encode(marker: Marker) -> Bytes {
    let end = EndTxnMarker { commit: marker.commit, coordinator_epoch: marker.coordinator_epoch };
    end.to_batch(marker.producer.id, marker.producer.epoch, clock::wall())
}

/// What the owner of the share says to each of its markers.
async fn write_share(
    shard: &Rc<Shard>,
    share: Share<AppendPart, (usize, TopicPartition)>,
) -> Vec<(usize, TopicPartition, Result<(), ErrorCode>)> {
    let Share { owner, mut parts, places } = share;
    let mut results = Vec::with_capacity(parts.len());
    while !parts.is_empty() {
        let rest = parts.split_off(PARTS_MAX.min(parts.len()));
        let request = AppendRequest {
            parts: std::mem::replace(&mut parts, rest),
            acks: Acks::All,
            origin: Origin::Coordinator,
            produce_version: PRODUCE_VERSION,
            timeout: TIMEOUT,
        };
        let Reply::Append(reply) = shard.ask(owner, Request::Append(request)).await else {
            crate::base::fatal("an append got another request's answer");
        };
        results.extend(reply.parts.into_iter().map(|result| result.map(|_| ()).map_err(failure_code)));
    }
    places.into_iter().zip(results).map(|((number, partition), result)| (number, partition, result)).collect()
}

async fn end_on_offsets(
    shard: &Rc<Shard>,
    partition: PartitionIndex,
    marker: Marker,
) -> Result<(), ErrorCode> {
    // Nobody's client: the coordinator looks at neither.
    let nobody = coordinator::Client { api_version: 0, id: StrBytes::new(), host: StrBytes::new() };
    let request = Box::new(coordinator::Request::EndTransaction { partition, marker });
    let request = Request::Control(ControlRequest::Group(request, nobody));
    match shard.ask(ShardId::CONTROL, request).await {
        Reply::Control(ControlReply::Group(response)) => match *response {
            Response::EndTransaction(Ok(())) => Ok(()),
            // What asks for the coordinator means nothing to whoever writes markers.
            Response::EndTransaction(Err(
                ErrorCode::CoordinatorNotAvailable
                | ErrorCode::CoordinatorLoadInProgress
                | ErrorCode::NotCoordinator,
            )) => Err(ErrorCode::NotLeaderOrFollower),
            Response::EndTransaction(Err(error)) => Err(error),
            other => crate::base::fatal(format_args!("a marker got another's answer: {other:?}")),
        },
        _ => crate::base::fatal("a marker got another request's answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{ProducerEpoch, ProducerId};
    use crate::coordinator::transactions::{Producer, TransactionVersion};

    fn round(producer: i64, names: &[&str]) -> (i64, Round) {
        let marker = Marker {
            producer: Producer { id: ProducerId(producer), epoch: ProducerEpoch(0) },
            commit: true,
            coordinator_epoch: 0,
            version: TransactionVersion::V2,
        };
        let partitions = names.iter().map(|name| TopicPartition::new(*name, PartitionIndex(0))).collect();
        (producer, Round { marker, partitions })
    }

    #[test]
    fn a_partition_that_does_not_answer_holds_up_its_own_transactions_alone() {
        let rounds = vec![
            round(1, &["slow"]),
            round(2, &["quick"]),
            round(3, &["slow"]),
            round(4, &["quick", "slow"]),
            round(5, &["quick"]),
        ];
        let gathered = gather(rounds);
        let numbers: Vec<Vec<i64>> =
            gathered.iter().map(|rounds| rounds.iter().map(|(number, _)| *number).collect()).collect();
        assert_eq!(numbers, [vec![2, 5], vec![4], vec![1, 3]]);
        for rounds in gathered {
            assert!(rounds.iter().all(|(_, round)| round.partitions == rounds[0].1.partitions));
        }
    }
}
