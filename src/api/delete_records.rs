//! DeleteRecords 0–2 (KIP-107): moves the start of logs forward (`ReplicaManager.deleteRecords`). It is answered when all
//! replicas that are alive have done so, or with REQUEST_TIMED_OUT when the request's time is over.

use std::time::Duration;

use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};

use super::Client;
use super::shares::{Place, Shares, find};
use crate::base::Offset;
use crate::metadata::is_internal_topic;
use crate::shard::messages::{Reply, Request};
use crate::wire::ErrorCode;

/// The low watermark of a partition that nothing was deleted from.
const NO_LOW_WATERMARK: i64 = -1;

pub async fn handle(client: &Client, request: DeleteRecordsRequest) -> DeleteRecordsResponse {
    let image = client.shard.image();
    let mut response = DeleteRecordsResponse::default();
    let mut shares = Shares::new();
    for topic in request.topics {
        let is_internal = is_internal_topic(&topic.name);
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in topic.partitions {
            let mut answer = DeleteRecordsPartitionResult::default()
                .with_partition_index(asked.partition_index)
                .with_low_watermark(NO_LOW_WATERMARK);
            match find(&client.shard, &image, &topic.name, asked.partition_index) {
                Ok(_) if is_internal => answer.error_code = ErrorCode::InvalidTopicException.code(),
                Ok(found) => {
                    let place = Place { topic: response.topics.len(), partition: partitions.len() };
                    shares.add(found.owner, place, (found.key, Offset(asked.offset)));
                }
                Err(code) => answer.error_code = code.code(),
            }
            partitions.push(answer);
        }
        // Kafka leaves out a topic of which nothing is asked.
        if !partitions.is_empty() {
            let topic = DeleteRecordsTopicResult::default().with_name(topic.name);
            response.topics.push(topic.with_partitions(partitions));
        }
    }
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let ask = |parts| Request::DeleteRecords(parts, timeout);
    let answers = shares.ask(&client.shard, ask, |reply| match reply {
        Reply::DeleteRecords(starts) => Some(starts),
        _ => None,
    });
    for (Place { topic, partition }, start) in answers.await {
        let answer = &mut response.topics[topic].partitions[partition];
        match start {
            Ok(start) => answer.low_watermark = start.0,
            Err(code) => answer.error_code = code.code(),
        }
    }
    response
}
