//! AlterPartitionReassignments 0–1 and ListPartitionReassignments 0 (KIP-455, KIP-860): the controller begins and gives
//! up reassignments (`ControllerApis.handleAlterPartitionReassignments`); this node's image tells which are under way.
//! A long request goes to the controller in parts.

use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::messages::list_partition_reassignments_response::{
    OngoingPartitionReassignment, OngoingTopicReassignment,
};
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};

use super::Client;
use super::answer_room::AnswerRoom;
use super::batches::{Part, batches};
use super::cluster_view::{broker_ids, text, topic_name};
use crate::base::{BrokerId, PartitionIndex};
use crate::metadata::{AlterReassignments, Command, PartitionImage, Reassignment, Refusal, TopicImage};
use crate::wire::ErrorCode;

/// What a partition's part of the answer takes beside its message, about.
const RESULT_BYTES: usize = 96;

/// Beside the names in a message.
const MESSAGE_BYTES: usize = 128;

pub async fn alter(
    client: &Client,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    // Version 0 has no field for it and its default is true.
    let may_change_factor = request.allow_replication_factor_change;
    let topics = &request.topics;
    let mut room = AnswerRoom::new(client);
    let fitting = fit(&mut room, topics).await;
    let mut told: Vec<Vec<ReassignablePartitionResponse>> = topics.iter().map(|_| Vec::new()).collect();
    let mut refusal: Option<Refusal> = None;
    let mut is_any_done = false;
    for batch in batches(&fitting) {
        if refusal.is_none() {
            match reassign(client, may_change_factor, topics, &batch).await {
                Ok(results) => {
                    is_any_done = true;
                    let image = client.shard.image();
                    let asked = batch.iter().flat_map(|(topic, part)| part.clone().map(|at| (*topic, at)));
                    for ((topic, at), result) in asked.zip(results) {
                        let ReassignableTopic { name, partitions, .. } = &topics[topic];
                        let is_there = image.topic(name).is_some();
                        told[topic].push(answer(name, is_there, &partitions[at], result));
                    }
                    continue;
                }
                Err(refused) => refusal = Some(refused),
            }
        }
        if let Some(refusal) = &refusal {
            for (topic, part) in batch {
                let partitions = &topics[topic].partitions[part];
                told[topic].extend(partitions.iter().map(|wanted| refused(wanted, refusal)));
            }
        }
    }
    let mut responses = Vec::with_capacity(told.len());
    for ((topic, fitting), mut told) in request.topics.into_iter().zip(fitting).zip(told) {
        told.extend(topic.partitions[fitting..].iter().map(too_long));
        responses.push(ReassignableTopicResponse::default().with_name(topic.name).with_partitions(told));
    }
    let response = AlterPartitionReassignmentsResponse::default()
        .with_allow_replication_factor_change(may_change_factor)
        .with_error_message(None)
        .with_responses(responses);
    match refusal.filter(|_| !is_any_done) {
        Some(refusal) => {
            response.with_error_code(refusal.code.code()).with_error_message(Some(text(&refusal.message)))
        }
        None => response,
    }
}

/// How many of each topic's partitions the answer has room for.
async fn fit(room: &mut AnswerRoom<'_>, topics: &[ReassignableTopic]) -> Vec<usize> {
    let mut counts = Vec::with_capacity(topics.len());
    for topic in topics {
        let mut fitting = 0;
        while fitting < topic.partitions.len()
            && !room.is_cut()
            && room.add(RESULT_BYTES + MESSAGE_BYTES + topic.name.len()).await
        {
            fitting += 1;
        }
        counts.push(fitting);
    }
    counts
}

async fn reassign(
    client: &Client,
    may_change_factor: bool,
    topics: &[ReassignableTopic],
    batch: &[Part],
) -> Result<Vec<Result<(), Refusal>>, Refusal> {
    let topics = batch.iter().map(|(topic, part)| {
        let ReassignableTopic { name, partitions, .. } = &topics[*topic];
        (name.to_string(), partitions[part.clone()].iter().map(reassignment).collect())
    });
    let topics = topics.collect();
    let command = Command::AlterReassignments(AlterReassignments { may_change_factor, topics });
    Ok(client.command(command).await?.reassignments_altered())
}

fn reassignment(wanted: &ReassignablePartition) -> Reassignment {
    let replicas = wanted.replicas.as_ref();
    Reassignment {
        index: PartitionIndex(wanted.partition_index),
        replicas: replicas.map(|ids| ids.iter().map(|id| BrokerId(id.0)).collect()),
    }
}

fn answer(
    topic: &str,
    is_there: bool,
    wanted: &ReassignablePartition,
    result: Result<(), Refusal>,
) -> ReassignablePartitionResponse {
    let index = wanted.partition_index;
    match result {
        Ok(()) => {
            ReassignablePartitionResponse::default().with_partition_index(index).with_error_message(None)
        }
        // Kafka sends no words that every client has for the code (`ApiError.fromThrowable`).
        Err(refusal) if refusal.code == ErrorCode::NoReassignmentInProgress => {
            refused(wanted, &refusal).with_error_message(None)
        }
        Err(mut refusal) => {
            if refusal.message.is_empty() {
                refusal.message = match is_there {
                    true => format!("Unable to find partition {topic}:{index}."),
                    false => format!("Unable to find a topic named {topic}."),
                };
            }
            refused(wanted, &refusal)
        }
    }
}

fn refused(wanted: &ReassignablePartition, refusal: &Refusal) -> ReassignablePartitionResponse {
    ReassignablePartitionResponse::default()
        .with_partition_index(wanted.partition_index)
        .with_error_code(refusal.code.code())
        .with_error_message(Some(text(&refusal.message)))
}

fn too_long(wanted: &ReassignablePartition) -> ReassignablePartitionResponse {
    ReassignablePartitionResponse::default()
        .with_partition_index(wanted.partition_index)
        .with_error_code(ErrorCode::InvalidRequest.code())
        .with_error_message(None)
}

/// Those that are under way, of the partitions that were asked for.
pub async fn list(
    client: &Client,
    request: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    let image = client.shard.image();
    let mut room = AnswerRoom::new(client);
    let mut topics = Vec::new();
    let response = ListPartitionReassignmentsResponse::default().with_error_message(None);
    let found: Vec<OngoingTopicReassignment> = match request.topics {
        None => image.topics().filter_map(|topic| under_way(topic, None)).collect(),
        Some(asked) => asked
            .iter()
            .filter_map(|asked| under_way(image.topic(&asked.name)?, Some(&asked.partition_indexes)))
            .collect(),
    };
    for topic in found {
        let replicas = |part: &OngoingPartitionReassignment| {
            4 * (part.replicas.len() + part.adding_replicas.len() + part.removing_replicas.len())
        };
        let bytes: usize = topic.partitions.iter().map(|part| RESULT_BYTES + replicas(part)).sum();
        if !room.add(topic.name.len() + bytes).await {
            return response
                .with_error_code(ErrorCode::InvalidRequest.code())
                .with_error_message(Some(text(super::TOO_LONG)));
        }
        topics.push(topic);
    }
    response.with_topics(topics)
}

fn under_way(topic: &TopicImage, asked: Option<&[i32]>) -> Option<OngoingTopicReassignment> {
    let one = |index: PartitionIndex, partition: &PartitionImage| {
        let transit = partition.transit();
        let is_under_way = !transit.adding.is_empty() || !transit.removing.is_empty();
        is_under_way.then(|| {
            OngoingPartitionReassignment::default()
                .with_partition_index(index.0)
                .with_replicas(broker_ids(&partition.replicas))
                .with_adding_replicas(broker_ids(&transit.adding))
                .with_removing_replicas(broker_ids(&transit.removing))
        })
    };
    let partitions: Vec<OngoingPartitionReassignment> = match asked {
        None => topic.numbered().filter_map(|(index, partition)| one(index, partition)).collect(),
        Some(asked) => {
            let known = asked.iter().filter_map(|index| {
                let index = PartitionIndex(*index);
                Some((index, topic.partition(index)?))
            });
            known.filter_map(|(index, partition)| one(index, partition)).collect()
        }
    };
    let name = topic_name(&topic.name);
    (!partitions.is_empty())
        .then(|| OngoingTopicReassignment::default().with_name(name).with_partitions(partitions))
}

#[cfg(test)]
mod tests {
    use super::super::cluster_view::testing::{cluster, topic_id};
    use super::*;
    use crate::metadata::elections::Transit;
    use crate::metadata::{PartitionChange, Record};
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    #[test]
    fn every_answer_has_kafkas_words_and_can_be_encoded() {
        let wanted = ReassignablePartition::default().with_partition_index(7);
        let unknown = || Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, ""));
        let other = Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, "why"));
        let none = Err(Refusal::new(ErrorCode::NoReassignmentInProgress, "why"));
        for (is_there, result, code, words) in [
            (true, Ok(()), 0, None),
            (true, unknown(), 3, Some("Unable to find partition t:7.")),
            (false, unknown(), 3, Some("Unable to find a topic named t.")),
            (true, other, 39, Some("why")),
            (true, none, 85, None),
        ] {
            let made = answer("t", is_there, &wanted, result);
            assert_eq!((made.partition_index, made.error_code), (7, code));
            assert_eq!(made.error_message.as_deref(), words);
            let topic = ReassignableTopicResponse::default().with_partitions(vec![made, too_long(&wanted)]);
            let response = AlterPartitionReassignmentsResponse::default().with_responses(vec![topic]);
            for version in 0..=1 {
                assert!(guard::encode(version, CorrelationId(1), &response).is_ok());
            }
        }
    }

    #[test]
    fn those_under_way_are_listed() {
        let mut state = cluster(&[("t", 3), ("u", 1)]);
        let brokers = |ids: &[i32]| ids.iter().copied().map(BrokerId).collect::<Vec<_>>();
        let change = |index| {
            Record::PartitionChanged(PartitionChange {
                topic: topic_id("t"),
                index: PartitionIndex(index),
                leader: None,
                isr: None,
                replicas: Some(brokers(&[1, 3, 2]).into()),
                directories: None,
                transit: Some(Transit {
                    adding: brokers(&[3]),
                    removing: brokers(&[2]),
                    ..Transit::default()
                }),
            })
        };
        state.apply(2, &[change(0), change(2)]).unwrap();
        let image = state.image();
        let list = |topic: &str, asked: Option<&[i32]>| {
            let found = under_way(image.topic(topic).unwrap(), asked)?;
            let response = ListPartitionReassignmentsResponse::default().with_topics(vec![found.clone()]);
            assert!(guard::encode(0, CorrelationId(1), &response).is_ok());
            Some(found.partitions.iter().map(|partition| partition.partition_index).collect::<Vec<_>>())
        };
        assert_eq!(list("t", None), Some(vec![0, 2]));
        assert_eq!(list("t", Some(&[1, 2, 9])), Some(vec![2]));
        assert_eq!(list("t", Some(&[1])), None);
        assert_eq!(list("u", None), None);
        let found = under_way(image.topic("t").unwrap(), Some(&[0])).unwrap().partitions.remove(0);
        assert_eq!(found.replicas, broker_ids(&brokers(&[1, 3, 2])));
        assert_eq!(found.adding_replicas, broker_ids(&brokers(&[3])));
        assert_eq!(found.removing_replicas, broker_ids(&brokers(&[2])));
    }
}
