//! ElectLeaders 0–2 (KIP-183, KIP-460): the controller elects the first replicas, or any for partitions without a
//! leader (`ControllerApis.handleElectLeaders`). A long request goes to it in parts.

use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse};

use super::Client;
use super::answer_room::AnswerRoom;
use super::batches::{Part, batches};
use super::cluster_view::{text, topic_name};
use crate::base::PartitionIndex;
use crate::metadata::{Command, ElectLeaders, ElectionKind, Image, PartitionImage, Refusal};
use crate::wire::ErrorCode;

/// What a partition's part of the answer takes beside its message, about.
const RESULT_BYTES: usize = 96;

/// Beside the names in a message.
const MESSAGE_BYTES: usize = 64;

/// Partitions by the names of their topics.
type Wanted = Vec<(String, Vec<i32>)>;

pub async fn handle(client: &Client, request: ElectLeadersRequest) -> ElectLeadersResponse {
    let asked: Option<Wanted> = request
        .topic_partitions
        .map(|topics| topics.into_iter().map(|topic| (topic.topic.to_string(), topic.partitions)).collect());
    // Version 0 has no field for it and its default is the preferred.
    let kind = match request.election_type {
        0 => ElectionKind::Preferred,
        1 => ElectionKind::Unclean,
        other => {
            let text = format!("Unknown election type {other}");
            let refusal = Refusal::new(ErrorCode::InvalidRequest, text);
            return refuse(client, asked.unwrap_or_default(), &refusal).await;
        }
    };
    let is_all = asked.is_none();
    let wanted = asked.unwrap_or_else(|| without_wanted_leader(&client.shard.image(), kind));
    let mut room = AnswerRoom::new(client);
    let fitting = fit(&mut room, &wanted).await;
    let mut told: Vec<Vec<PartitionResult>> = wanted.iter().map(|_| Vec::new()).collect();
    let mut refusal: Option<Refusal> = None;
    let mut is_any_done = false;
    for batch in batches(&fitting) {
        if refusal.is_none() {
            match elect(client, kind, &wanted, &batch).await {
                Ok(results) => {
                    is_any_done = true;
                    let image = client.shard.image();
                    let asked = batch.iter().flat_map(|(topic, part)| part.clone().map(|at| (*topic, at)));
                    for ((topic, at), result) in asked.zip(results) {
                        let (name, partitions) = &wanted[topic];
                        // Of all partitions only those are told for which something was done, or could not be.
                        if !is_all || result != Err(ErrorCode::ElectionNotNeeded) {
                            let is_there = image.topic(name).is_some();
                            told[topic].push(answer(name, is_there, partitions[at], result));
                        }
                    }
                    continue;
                }
                Err(refused) => refusal = Some(refused),
            }
        }
        if let Some(refusal) = &refusal {
            for (topic, part) in batch {
                told[topic].extend(wanted[topic].1[part].iter().map(|index| refused(*index, refusal)));
            }
        }
    }
    let mut results = Vec::with_capacity(wanted.len());
    for (((name, partitions), fitting), mut told) in wanted.iter().zip(fitting).zip(told) {
        told.extend(partitions[fitting..].iter().map(|index| too_long(*index)));
        if !is_all || !told.is_empty() {
            results.push(result(name, told));
        }
    }
    let code = refusal.filter(|_| !is_any_done).map_or(0, |refusal| refusal.code.code());
    ElectLeadersResponse::default().with_error_code(code).with_replica_election_results(results)
}

/// How many of each topic's partitions the answer has room for.
async fn fit(room: &mut AnswerRoom<'_>, wanted: &Wanted) -> Vec<usize> {
    let mut counts = Vec::with_capacity(wanted.len());
    for (topic, partitions) in wanted {
        let mut fitting = 0;
        while fitting < partitions.len()
            && !room.is_cut()
            && room.add(RESULT_BYTES + MESSAGE_BYTES + topic.len()).await
        {
            fitting += 1;
        }
        counts.push(fitting);
    }
    counts
}

async fn elect(
    client: &Client,
    kind: ElectionKind,
    wanted: &Wanted,
    batch: &[Part],
) -> Result<Vec<Result<(), ErrorCode>>, Refusal> {
    let topics = batch.iter().map(|(topic, part)| {
        let (name, partitions) = &wanted[*topic];
        (name.clone(), partitions[part.clone()].iter().copied().map(PartitionIndex).collect())
    });
    let command = Command::ElectLeaders(ElectLeaders { kind, topics: topics.collect() });
    Ok(client.command(command).await?.leaders_elected())
}

/// Nothing of it is done.
async fn refuse(client: &Client, wanted: Wanted, refusal: &Refusal) -> ElectLeadersResponse {
    let mut room = AnswerRoom::new(client);
    let fitting = fit(&mut room, &wanted).await;
    let results = wanted.iter().zip(fitting).map(|((topic, partitions), fitting)| {
        let (told, rest) = partitions.split_at(fitting);
        let told = told.iter().map(|index| refused(*index, refusal));
        result(topic, told.chain(rest.iter().map(|index| too_long(*index))).collect())
    });
    ElectLeadersResponse::default()
        .with_error_code(refusal.code.code())
        .with_replica_election_results(results.collect())
}

/// Of all partitions those that do not have the leader that is wanted.
fn without_wanted_leader(image: &Image, kind: ElectionKind) -> Wanted {
    let is_wanted = |partition: &PartitionImage| match kind {
        ElectionKind::Preferred => {
            partition.leader.is_some() && partition.leader == partition.replicas.first().copied()
        }
        ElectionKind::Unclean => partition.leader.is_some(),
    };
    let topics = image.topics().map(|topic| {
        let others = topic.numbered().filter(|(_, partition)| !is_wanted(partition));
        (topic.name.to_string(), others.map(|(index, _)| index.0).collect::<Vec<i32>>())
    });
    topics.filter(|(_, partitions)| !partitions.is_empty()).collect()
}

fn answer(topic: &str, is_there: bool, index: i32, result: Result<(), ErrorCode>) -> PartitionResult {
    let answer = PartitionResult::default().with_partition_id(index);
    let Err(code) = result else { return answer.with_error_message(None) };
    let message = match code {
        ErrorCode::ElectionNotNeeded => "Leader election not needed for topic partition.".to_owned(),
        ErrorCode::PreferredLeaderNotAvailable => "The preferred leader was not available.".to_owned(),
        ErrorCode::EligibleLeadersNotAvailable => {
            "Eligible topic partition leaders are not available.".to_owned()
        }
        _ if is_there => format!("No such partition as {topic}-{index}"),
        _ => format!("No such topic as {topic}"),
    };
    answer.with_error_code(code.code()).with_error_message(Some(text(&message)))
}

fn refused(index: i32, refusal: &Refusal) -> PartitionResult {
    PartitionResult::default()
        .with_partition_id(index)
        .with_error_code(refusal.code.code())
        .with_error_message(Some(text(&refusal.message)))
}

fn too_long(index: i32) -> PartitionResult {
    PartitionResult::default()
        .with_partition_id(index)
        .with_error_code(ErrorCode::InvalidRequest.code())
        .with_error_message(None)
}

fn result(topic: &str, partitions: Vec<PartitionResult>) -> ReplicaElectionResult {
    ReplicaElectionResult::default().with_topic(topic_name(topic)).with_partition_result(partitions)
}

#[cfg(test)]
mod tests {
    use super::super::cluster_view::testing::cluster;
    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    #[test]
    fn of_all_partitions_those_are_asked_for_that_do_not_have_the_wanted_leader() {
        let state = cluster(&[("here", 2), ("lost", 1)]);
        for kind in [ElectionKind::Preferred, ElectionKind::Unclean] {
            assert_eq!(without_wanted_leader(state.image(), kind), [("lost".to_owned(), vec![0])]);
        }
    }

    #[test]
    fn every_answer_has_kafkas_words_and_can_be_encoded() {
        let rows = [
            (true, Ok(()), 0, None),
            (true, Err(ErrorCode::ElectionNotNeeded), 84, Some("Leader election not needed")),
            (true, Err(ErrorCode::PreferredLeaderNotAvailable), 80, Some("The preferred leader was not")),
            (true, Err(ErrorCode::EligibleLeadersNotAvailable), 83, Some("Eligible topic partition leaders")),
            (true, Err(ErrorCode::UnknownTopicOrPartition), 3, Some("No such partition as t-7")),
            (false, Err(ErrorCode::UnknownTopicOrPartition), 3, Some("No such topic as t")),
        ];
        for (is_there, outcome, code, words) in rows {
            let made = answer("t", is_there, 7, outcome);
            assert_eq!((made.partition_id, made.error_code), (7, code));
            match (words, &made.error_message) {
                (None, None) => {}
                (Some(words), Some(message)) => assert!(message.starts_with(words), "{message}"),
                other => panic!("{other:?}"),
            }
            let results = vec![result("t", vec![made])];
            let response = ElectLeadersResponse::default().with_replica_election_results(results);
            for version in 0..=2 {
                assert!(guard::encode(version, CorrelationId(1), &response).is_ok());
            }
        }
    }
}
