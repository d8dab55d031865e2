//! ListOffsets 1–11: the offset of a time, or of an end of the log (`ReplicaManager.fetchOffset`).

use std::collections::{HashMap, HashSet};

use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};

use super::Client;
use super::shares::{Place, Shares, find};
use crate::base::LeaderEpoch;
use crate::base::clock::Timestamp;
use crate::partition::Waterline;
use crate::shard::messages::{OffsetAnswer, OffsetQuery, OffsetTarget, Reply, Request};
use crate::wire::ErrorCode;

/// The replica id of whoever is no replica.
const CONSUMER: i32 = -1;

/// Timestamps that stand for something else (`ListOffsetsRequest`).
mod special {
    pub const LATEST: i64 = -1;
    pub const EARLIEST: i64 = -2;
    /// KIP-734.
    pub const MAX_TIMESTAMP: i64 = -3;
    /// The first offset on this node's own disk (KIP-405): the first of all, without tiers.
    pub const EARLIEST_LOCAL: i64 = -4;
    /// The last offset in the remote tier (KIP-1005).
    pub const LATEST_TIERED: i64 = -5;
    /// The first offset that the remote tier still lacks (KIP-1023): none, without tiers.
    pub const EARLIEST_PENDING_UPLOAD: i64 = -6;
}

/// Of a partition that is asked for more than once.
struct WasAnswered(bool);

pub async fn handle(client: &Client, version: i16, request: ListOffsetsRequest) -> ListOffsetsResponse {
    let image = client.shard.image();
    let waterline = waterline(request.replica_id.0, request.isolation_level);
    let mut repeated = repeated(&request);
    let mut response = ListOffsetsResponse::default();
    let mut shares = Shares::new();
    for topic in &request.topics {
        let mut partitions: Vec<ListOffsetsPartitionResponse> = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let index = asked.partition_index;
            let is_repeated = match repeated.get_mut(&(&**topic.name, index)) {
                Some(WasAnswered(true)) => continue,
                Some(was_answered) => {
                    *was_answered = WasAnswered(true);
                    true
                }
                None => false,
            };
            let query = || {
                let waterline = waterline?;
                if is_repeated {
                    return Err(ErrorCode::InvalidRequest);
                }
                let target = target(asked.timestamp, version)?;
                let found = find(&client.shard, &image, &topic.name, index)?;
                let current_leader_epoch = LeaderEpoch(asked.current_leader_epoch);
                Ok((found.owner, OffsetQuery { key: found.key, current_leader_epoch, target, waterline }))
            };
            let mut answer = ListOffsetsPartitionResponse::default().with_partition_index(index);
            match query() {
                Ok((owner, query)) => {
                    let place = Place { topic: response.topics.len(), partition: partitions.len() };
                    shares.add(owner, place, query);
                }
                Err(code) => answer.error_code = code.code(),
            }
            partitions.push(answer);
        }
        // Kafka leaves out a topic of which nothing is asked.
        if !partitions.is_empty() {
            let topic = ListOffsetsTopicResponse::default().with_name(topic.name.clone());
            response.topics.push(topic.with_partitions(partitions));
        }
    }
    let answers = shares.ask(&client.shard, Request::Offsets, |reply| match reply {
        Reply::Offsets(answers) => Some(answers),
        _ => None,
    });
    for (Place { topic, partition }, answer) in answers.await {
        fill(&mut response.topics[topic].partitions[partition], version, answer);
    }
    response
}

/// How far whoever asks may see. A replica, and Kafka's debugging consumer (-2), see the whole log.
fn waterline(replica_id: i32, isolation_level: i8) -> Result<Waterline, ErrorCode> {
    match isolation_level {
        0 if replica_id == CONSUMER => Ok(Waterline::HighWatermark),
        1 if replica_id == CONSUMER => Ok(Waterline::LastStable),
        0 | 1 => Ok(Waterline::LogEnd),
        // Kafka's answer to a level that does not exist.
        _ => Err(ErrorCode::UnknownServerError),
    }
}

/// The partitions that are asked for more than once: each has one answer, an error.
fn repeated(request: &ListOffsetsRequest) -> HashMap<(&str, i32), WasAnswered> {
    let mut seen = HashSet::new();
    let mut repeated = HashMap::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            let key = (&**topic.name, partition.partition_index);
            if !seen.insert(key) {
                repeated.insert(key, WasAnswered(false));
            }
        }
    }
    repeated
}

fn target(timestamp: i64, version: i16) -> Result<OffsetTarget, ErrorCode> {
    match timestamp {
        special::LATEST => Ok(OffsetTarget::Latest),
        special::EARLIEST => Ok(OffsetTarget::Earliest),
        special::MAX_TIMESTAMP if version >= 7 => Ok(OffsetTarget::MaxTimestamp),
        special::EARLIEST_LOCAL if version >= 8 => Ok(OffsetTarget::Earliest),
        special::LATEST_TIERED if version >= 9 => Ok(OffsetTarget::Tiered),
        special::EARLIEST_PENDING_UPLOAD if version >= 11 => Ok(OffsetTarget::Tiered),
        0.. => Ok(OffsetTarget::At(Timestamp(timestamp))),
        _ => Err(ErrorCode::UnsupportedVersion),
    }
}

fn fill(response: &mut ListOffsetsPartitionResponse, version: i16, answer: Result<OffsetAnswer, ErrorCode>) {
    match answer {
        Ok(OffsetAnswer { found: Some(found) }) => {
            response.offset = found.offset.0;
            response.timestamp = found.timestamp.0;
            if version >= 4 {
                response.leader_epoch = found.leader_epoch.unwrap_or(LeaderEpoch::NONE).0;
            }
        }
        Ok(OffsetAnswer { found: None }) => {}
        // The name that it had before.
        Err(ErrorCode::OffsetNotAvailable) if version < 5 => {
            response.error_code = ErrorCode::LeaderNotAvailable.code();
        }
        Err(code) => response.error_code = code.code(),
    }
}
