//! DescribeProducers 0 (KIP-664): the idempotent and transactional producers that partitions know of. Any replica tells,
//! as `Partition.activeProducerState` does: `kafka-transactions find-hanging --broker-id` asks for all that a broker has.

use std::collections::HashMap;

use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse, ProducerId};
use kafka_protocol::protocol::StrBytes;

use super::Client;
use super::answer_room::AnswerRoom;
use super::client::find_replica;
use super::shares::{Place, Shares};
use crate::base::PartitionIndex;
use crate::log::ProducerDescription;
use crate::metadata::{Image, TopicImage, check_topic_name};
use crate::shard::PartitionKey;
use crate::shard::messages::{Described, Reply, Request};
use crate::wire::ErrorCode;

/// What a producer takes in an answer, decoded and encoded, about.
const PRODUCER_BYTES: usize = 128;

pub async fn handle(client: &Client, request: DescribeProducersRequest) -> DescribeProducersResponse {
    let image = client.shard.image();
    let mut response = DescribeProducersResponse::default();
    let mut shares = Shares::new();
    // By partition, the places of a response that name it: each is looked up once.
    let mut places: HashMap<PartitionKey, Vec<Place>> = HashMap::new();
    for topic in request.topics {
        let known = check(&image, &topic.name);
        let mut partitions = Vec::with_capacity(topic.partition_indexes.len());
        for index in topic.partition_indexes {
            let mut answer =
                PartitionResponse::default().with_partition_index(index).with_error_message(None);
            let found = known.as_ref().map(|image| find_replica(&client.shard, image, PartitionIndex(index)));
            match found {
                Err((code, message)) => {
                    answer.error_code = code.code();
                    answer.error_message = Some(message.clone());
                }
                Ok(Ok(found)) => {
                    let place = Place { topic: response.topics.len(), partition: partitions.len() };
                    let named = places.entry(found.key).or_default();
                    if named.is_empty() {
                        shares.add(found.owner, (), found.key);
                    }
                    named.push(place);
                }
                Ok(Err(code)) => answer.error_code = code.code(),
            }
            partitions.push(answer);
        }
        let topic = TopicResponse::default().with_name(topic.name);
        response.topics.push(topic.with_partitions(partitions));
    }
    let mut room = AnswerRoom::new(client);
    // One owner after the other: nobody makes more than there is room for.
    for share in shares.into_vec() {
        let mut rest = share.parts;
        while !rest.is_empty() {
            let producers_max = room.left() / PRODUCER_BYTES;
            let request = Request::Producers { keys: rest.clone(), producers_max };
            let Reply::Producers(mut known) = client.shard.ask(share.owner, request).await else {
                crate::base::fatal("a request between shards got another one's answer");
            };
            if known.is_empty() {
                if room.widen().await {
                    continue;
                }
                known = rest.iter().map(|_| Ok(None)).collect();
            }
            for (key, producers) in rest.drain(..known.len()).zip(known) {
                for Place { topic, partition } in places.remove(&key).unwrap_or_default() {
                    tell(&mut response.topics[topic].partitions[partition], &producers, &mut room).await;
                }
            }
        }
    }
    response
}

/// `None`: there was no room for them.
async fn tell(answer: &mut PartitionResponse, producers: &Described, room: &mut AnswerRoom<'_>) {
    match producers {
        Ok(Some(producers)) if room.add(producers.len() * PRODUCER_BYTES).await => {
            answer.active_producers = producers.iter().map(state).collect();
        }
        Ok(_) => {
            answer.error_code = ErrorCode::InvalidRequest.code();
            answer.error_message = Some(StrBytes::from_static_str(super::TOO_LONG));
        }
        Err(code) => answer.error_code = code.code(),
    }
}

/// What Kafka says in words is wrong with a topic; of a partition it gives the code alone.
fn check<'a>(image: &'a Image, topic: &str) -> Result<&'a TopicImage, (ErrorCode, StrBytes)> {
    if let Err(error) = check_topic_name(topic) {
        return Err((ErrorCode::InvalidTopicException, StrBytes::from_string(error.to_string())));
    }
    match image.topic(topic) {
        Some(found) => Ok(found),
        None => {
            let message = StrBytes::from_static_str("This server does not host this topic-partition.");
            Err((ErrorCode::UnknownTopicOrPartition, message))
        }
    }
}

fn state(producer: &ProducerDescription) -> ProducerState {
    ProducerState::default()
        .with_producer_id(ProducerId(producer.id.0))
        .with_producer_epoch(i32::from(producer.epoch.0))
        .with_last_sequence(producer.last_sequence)
        .with_last_timestamp(producer.last_timestamp.0)
        .with_coordinator_epoch(producer.coordinator_epoch)
        .with_current_txn_start_offset(producer.transaction_first.map_or(-1, |first| first.0))
}
