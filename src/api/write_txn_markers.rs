//! WriteTxnMarkers 1: a coordinator ends a transaction on the partitions that this broker leads; administrators
//! abort a transaction that hangs with it (KIP-664).

use std::collections::BTreeMap;

use futures::future::join_all;
use indexmap::IndexMap;
use indexmap::map::Entry;
use kafka_protocol::messages::write_txn_markers_request::WritableTxnMarker;
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{ProducerId, TopicName, WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use kafka_protocol::protocol::StrBytes;

use super::{Client, code, markers, transactions};
use crate::base::{PartitionIndex, TopicPartition};
use crate::coordinator::transactions::{Marker, TransactionVersion};
use crate::metadata::Image;

pub async fn handle(client: &Client, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse {
    let image = client.shard.image();
    let results = join_all(request.markers.into_iter().map(|marker| write(client, &image, marker))).await;
    // Kafka answers each producer once.
    let mut merged: IndexMap<ProducerId, WritableTxnMarkerResult, ahash::RandomState> = IndexMap::default();
    for result in results {
        match merged.entry(result.producer_id) {
            Entry::Occupied(mut known) => known.get_mut().topics.extend(result.topics),
            Entry::Vacant(vacant) => {
                vacant.insert(result);
            }
        }
    }
    WriteTxnMarkersResponse::default().with_markers(merged.into_values().collect())
}

async fn write(client: &Client, image: &Image, marker: WritableTxnMarker) -> WritableTxnMarkerResult {
    let named = marker.topics.iter().flat_map(|topic| {
        let name = &topic.name;
        topic.partition_indexes.iter().map(|index| TopicPartition::new(&*name.0, PartitionIndex(*index)))
    });
    let partitions = named.collect();
    let written = Marker {
        producer: transactions::producer(marker.producer_id, marker.producer_epoch),
        commit: marker.transaction_result,
        coordinator_epoch: marker.coordinator_epoch,
        // This version does not say.
        version: TransactionVersion::V0,
    };
    let mut topics: BTreeMap<String, Vec<WritableTxnMarkerPartitionResult>> = BTreeMap::new();
    for (partition, result) in markers::write(&client.shard, image, written, partitions).await {
        topics.entry(partition.topic.to_string()).or_default().push(
            WritableTxnMarkerPartitionResult::default()
                .with_partition_index(partition.partition.0)
                .with_error_code(code(result.err())),
        );
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        WritableTxnMarkerTopicResult::default()
            .with_name(TopicName(StrBytes::from_string(name)))
            .with_partitions(partitions)
    });
    WritableTxnMarkerResult::default().with_producer_id(marker.producer_id).with_topics(topics.collect())
}
