//! ElectLeaders 0–2 (`ReplicationControlManager.electLeaders`). A partition with one replica has no other leader to
//! elect: the answer says whether the one wanted leads.

use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse};

use super::Client;
use super::answer_room::AnswerRoom;
use super::cluster_view::{text, topic_name};
use crate::base::PartitionIndex;
use crate::metadata::{Image, PartitionImage, TopicImage};
use crate::wire::ErrorCode;

/// Kinds of elections (`ElectionType`).
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

/// What a partition's part of the answer takes beside its message, about.
const RESULT_BYTES: usize = 96;

pub async fn handle(client: &Client, request: ElectLeadersRequest) -> ElectLeadersResponse {
    // Version 0 has no field for it and its default is the preferred.
    let election = request.election_type;
    if !matches!(election, PREFERRED | UNCLEAN) {
        return ElectLeadersResponse::default().with_error_code(ErrorCode::InvalidRequest.code());
    }
    let image = client.shard.image();
    let mut room = AnswerRoom::new(client);
    let mut results = Vec::new();
    match request.topic_partitions {
        Some(topics) => {
            for topic in topics {
                let asked = topic.partitions.iter().copied();
                let partitions =
                    in_room(&mut room, asked, |index| one(&image, election, &topic.topic, index));
                results.push(result(&topic.topic, partitions.await));
            }
        }
        // Of all partitions only those are told that do not have the leader that is wanted.
        None => {
            for topic in image.topics() {
                let told = without_wanted_leader(topic, election);
                if !told.is_empty() {
                    let make = |index| one(&image, election, &topic.name, index);
                    results.push(result(&topic.name, in_room(&mut room, told.into_iter(), make).await));
                }
            }
        }
    }
    ElectLeadersResponse::default().with_replica_election_results(results)
}

/// Makes the parts of an answer while there is room for them.
async fn in_room(
    room: &mut AnswerRoom<'_>,
    partitions: impl Iterator<Item = i32>,
    make: impl Fn(i32) -> PartitionResult,
) -> Vec<PartitionResult> {
    let mut results = Vec::new();
    for index in partitions {
        let too_long = || {
            PartitionResult::default()
                .with_partition_id(index)
                .with_error_code(ErrorCode::InvalidRequest.code())
                .with_error_message(None)
        };
        if room.is_cut() {
            results.push(too_long());
            continue;
        }
        let made = make(index);
        let bytes = RESULT_BYTES + made.error_message.as_ref().map_or(0, |message| message.len());
        results.push(if room.add(bytes).await { made } else { too_long() });
    }
    results
}

fn without_wanted_leader(topic: &TopicImage, election: i8) -> Vec<i32> {
    let is_told = |partition: &PartitionImage| elect(partition, election) != ErrorCode::ElectionNotNeeded;
    topic.numbered().filter(|(_, partition)| is_told(partition)).map(|(index, _)| index.0).collect()
}

fn one(image: &Image, election: i8, topic: &str, index: i32) -> PartitionResult {
    let found = image.topic(topic);
    match (found, found.and_then(|topic| topic.partition(PartitionIndex(index)))) {
        (_, Some(partition)) => answer(index, elect(partition, election)),
        (Some(_), None) => unknown(index, &format!("No such partition as {topic}-{index}")),
        (None, None) => unknown(index, &format!("No such topic as {topic}")),
    }
}

fn elect(partition: &PartitionImage, election_type: i8) -> ErrorCode {
    match (partition.leader, election_type) {
        (Some(leader), PREFERRED) if partition.replicas.first() == Some(&leader) => {
            ErrorCode::ElectionNotNeeded
        }
        (Some(_), UNCLEAN) => ErrorCode::ElectionNotNeeded,
        (_, PREFERRED) => ErrorCode::PreferredLeaderNotAvailable,
        _ => ErrorCode::EligibleLeadersNotAvailable,
    }
}

fn answer(index: i32, code: ErrorCode) -> PartitionResult {
    let message = match code {
        ErrorCode::ElectionNotNeeded => "Leader election not needed for topic partition.",
        ErrorCode::PreferredLeaderNotAvailable => "The preferred leader was not available.",
        _ => "Eligible topic partition leaders are not available.",
    };
    PartitionResult::default()
        .with_partition_id(index)
        .with_error_code(code.code())
        .with_error_message(Some(text(message)))
}

fn unknown(index: i32, message: &str) -> PartitionResult {
    PartitionResult::default()
        .with_partition_id(index)
        .with_error_code(ErrorCode::UnknownTopicOrPartition.code())
        .with_error_message(Some(text(message)))
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
    fn a_leader_that_leads_needs_no_election_and_one_that_is_gone_cannot_win_it() {
        let state = cluster(&[("here", 2), ("lost", 1)]);
        for (election, not_available) in [(PREFERRED, 80), (UNCLEAN, 83)] {
            let wanted = [("here", 1, 84), ("here", 7, 3), ("lost", 0, not_available), ("nothing", 0, 3)];
            for (topic, index, code) in wanted {
                let made = one(state.image(), election, topic, index);
                assert_eq!((made.partition_id, made.error_code), (index, code), "{topic}");
                let response = ElectLeadersResponse::default()
                    .with_replica_election_results(vec![result(topic, vec![made])]);
                for version in 0..=2 {
                    assert!(guard::encode(version, CorrelationId(1), &response).is_ok());
                }
            }
            let told: Vec<Vec<i32>> =
                state.image().topics().map(|topic| without_wanted_leader(topic, election)).collect();
            assert_eq!(told, [vec![], vec![0]]);
        }
    }
}
