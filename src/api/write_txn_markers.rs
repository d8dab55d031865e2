//! WriteTxnMarkers 1–2: a coordinator ends a transaction on the partitions that this broker leads; administrators
//! abort a transaction that hangs with it (KIP-664). A coordinator epoch above those of all coordinators there have
//! been is refused: it would be obeyed by the partition for ever. Other brokers are believed what they say of it.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use indexmap::map::Entry;
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{ProducerId, TopicName, WriteTxnMarkersResponse};
use kafka_protocol::protocol::StrBytes;

use super::markers::{self, Results, Round, Writer};
use super::{Client, code, transactions};
use crate::base::{PartitionIndex, TopicPartition};
use crate::coordinator::transactions::{Marker, TransactionVersion};
use crate::io::runtime::yield_if_needed;
use crate::wire::newer::TxnMarker;

pub async fn handle(client: &Client, asked: Vec<TxnMarker>) -> WriteTxnMarkersResponse {
    let producers: Vec<ProducerId> = asked.iter().map(|it| it.marker.producer_id).collect();
    let rounds: Vec<Round> = asked.into_iter().map(round).collect();
    let writer = client.broker().map_or(Writer::Administrator, |_| Writer::Peer);
    let results = markers::write(&client.shard, &client.shard.image(), writer, rounds).await;
    // Kafka answers each producer once.
    let mut merged: IndexMap<ProducerId, WritableTxnMarkerResult, ahash::RandomState> = IndexMap::default();
    for (producer, results) in producers.into_iter().zip(results) {
        let topics = topics(results);
        match merged.entry(producer) {
            Entry::Occupied(mut known) => known.get_mut().topics.extend(topics),
            Entry::Vacant(vacant) => {
                let result = WritableTxnMarkerResult::default().with_producer_id(producer);
                vacant.insert(result.with_topics(topics));
            }
        }
        yield_if_needed().await;
    }
    WriteTxnMarkersResponse::default().with_markers(merged.into_values().collect())
}

fn round(TxnMarker { marker, transaction_version }: TxnMarker) -> Round {
    let named = marker.topics.iter().flat_map(|topic| {
        let name = &topic.name;
        topic.partition_indexes.iter().map(|index| TopicPartition::new(&*name.0, PartitionIndex(*index)))
    });
    let partitions = named.collect();
    let marker = Marker {
        producer: transactions::producer(marker.producer_id, marker.producer_epoch),
        commit: marker.transaction_result,
        coordinator_epoch: marker.coordinator_epoch,
        version: TransactionVersion::from_level(i16::from(transaction_version)),
    };
    Round { marker, partitions }
}

fn topics(results: Results) -> Vec<WritableTxnMarkerTopicResult> {
    let mut topics: BTreeMap<String, Vec<WritableTxnMarkerPartitionResult>> = BTreeMap::new();
    for (partition, result) in results {
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
    topics.collect()
}
