//! OffsetForLeaderEpoch 2–4 (KIP-101, KIP-320): where the records of a leader epoch end, for consumers that
//! look for a truncation and for followers that carry one out.

use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use super::Client;
use super::shares::{Place, Shares, find};
use crate::base::LeaderEpoch;
use crate::shard::messages::{EpochQuery, Reply, Request};

pub async fn handle(client: &Client, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse {
    let image = client.shard.image();
    let mut response = OffsetForLeaderEpochResponse::default();
    let mut shares = Shares::new();
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in topic.partitions {
            // The defaults say "not known".
            let mut answer = EpochEndOffset::default().with_partition(asked.partition);
            match find(&client.shard, &image, &topic.topic, asked.partition) {
                Ok(found) => {
                    let query = EpochQuery {
                        key: found.key,
                        current_leader_epoch: LeaderEpoch(asked.current_leader_epoch),
                        epoch: LeaderEpoch(asked.leader_epoch),
                    };
                    let place = Place { topic: response.topics.len(), partition: partitions.len() };
                    shares.add(found.owner, place, query);
                }
                Err(code) => answer.error_code = code.code(),
            }
            partitions.push(answer);
        }
        let topic = OffsetForLeaderTopicResult::default().with_topic(topic.topic);
        response.topics.push(topic.with_partitions(partitions));
    }
    let answers = shares.ask(&client.shard, Request::EpochEnds, |reply| match reply {
        Reply::EpochEnds(ends) => Some(ends),
        _ => None,
    });
    for (Place { topic, partition }, end) in answers.await {
        let answer = &mut response.topics[topic].partitions[partition];
        match end {
            Ok(end) => {
                answer.leader_epoch = end.epoch.0;
                answer.end_offset = end.end.0;
            }
            Err(code) => answer.error_code = code.code(),
        }
    }
    response
}
