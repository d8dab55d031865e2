//! Writes the end of a transaction to its partitions: one message per owner shard, and for the offsets topic
//! through the group coordinator, which then knows what the transaction's commits have come to.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use kafka_protocol::protocol::StrBytes;

use super::client::partition_image;
use super::coordinator_log::{failure_code, marker_claim};
use super::internal_topics::CONSUMER_OFFSETS;
use crate::base::clock;
use crate::base::{PartitionIndex, ShardId, TopicPartition};
use crate::coordinator::transactions::Marker;
use crate::coordinator::{self, Response};
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

type Results = Vec<(TopicPartition, Result<(), ErrorCode>)>;

/// The partition as the shards know it.
pub(super) fn find(image: &Image, partition: &TopicPartition) -> Option<PartitionKey> {
    let topic = image.topic(&partition.topic)?;
    partition_image(topic, partition.partition)?;
    Some(PartitionKey { topic: topic.id, partition: partition.partition })
}

/// Appends the marker to each of the partitions and waits until it is committed.
pub(super) async fn write(
    shard: &Rc<Shard>,
    image: &Image,
    marker: Marker,
    partitions: BTreeSet<TopicPartition>,
) -> Results {
    let mut results = Results::with_capacity(partitions.len());
    let mut offsets = Vec::new();
    let mut shares: Vec<(ShardId, Vec<(TopicPartition, PartitionKey)>)> = Vec::new();
    for partition in partitions {
        let Some(key) = find(image, &partition) else {
            results.push((partition, Err(ErrorCode::UnknownTopicOrPartition)));
            continue;
        };
        if &*partition.topic == CONSUMER_OFFSETS {
            offsets.push(partition);
            continue;
        }
        let owner = shard.owner(key);
        match shares.iter_mut().find(|(to, _)| *to == owner) {
            Some((_, share)) => share.push((partition, key)),
            None => shares.push((owner, vec![(partition, key)])),
        }
    }
    let shares = join_all(shares.into_iter().map(|(owner, share)| write_share(shard, owner, marker, share)));
    let offsets = join_all(offsets.into_iter().map(|partition| async {
        let result = end_on_offsets(shard, partition.partition, marker).await;
        (partition, result)
    }));
    let (shares, offsets) = futures::future::join(shares, offsets).await;
    results.extend(shares.into_iter().flatten());
    results.extend(offsets);
    results
}

async fn write_share(
    shard: &Rc<Shard>,
    owner: ShardId,
    marker: Marker,
    share: Vec<(TopicPartition, PartitionKey)>,
) -> Results {
    let end = EndTxnMarker { commit: marker.commit, coordinator_epoch: marker.coordinator_epoch };
    let batch = end.to_batch(marker.producer.id, marker.producer.epoch, clock::wall());
    let claim = marker_claim(marker.version);
    let part = |key| AppendPart { key, records: batch.clone(), claim };
    let request = AppendRequest {
        parts: share.iter().map(|(_, key)| part(*key)).collect(),
        acks: Acks::All,
        origin: Origin::Coordinator,
        produce_version: PRODUCE_VERSION,
        timeout: TIMEOUT,
    };
    let Reply::Append(reply) = shard.ask(owner, Request::Append(request)).await else {
        crate::base::fatal("an append got another request's answer");
    };
    let written = reply.parts.into_iter().map(|result| result.map(|_| ()).map_err(failure_code));
    share.into_iter().map(|(partition, _)| partition).zip(written).collect()
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
