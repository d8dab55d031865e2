//! ElectLeaders 0–2 (`ReplicationControlManager.electLeaders`). A partition with one replica has no other leader to
//! elect: the answer says whether the one wanted leads.

use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse};

use super::Client;
use super::cluster_view::{text, topic_name};
use crate::base::PartitionIndex;
use crate::metadata::{Image, PartitionImage};
use crate::wire::ErrorCode;

/// Kinds of elections (`ElectionType`).
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

pub async fn handle(client: &Client, request: ElectLeadersRequest) -> ElectLeadersResponse {
    respond(&client.shard.image(), &request)
}

fn respond(image: &Image, request: &ElectLeadersRequest) -> ElectLeadersResponse {
    // Version 0 has no field for it and its default is the preferred.
    if !matches!(request.election_type, PREFERRED | UNCLEAN) {
        return ElectLeadersResponse::default().with_error_code(ErrorCode::InvalidRequest.code());
    }
    let results = match &request.topic_partitions {
        Some(topics) => topics.iter().map(|topic| one_topic(image, request.election_type, topic)).collect(),
        // Of all partitions only those are told that do not have the leader that is wanted.
        None => image
            .topics()
            .map(|topic| {
                let partitions = topic.numbered().filter_map(|(index, partition)| {
                    let code = elect(partition, request.election_type);
                    (code != ErrorCode::ElectionNotNeeded).then(|| answer(index.0, code))
                });
                result(&topic.name, partitions.collect())
            })
            .filter(|topic| !topic.partition_result.is_empty())
            .collect(),
    };
    ElectLeadersResponse::default().with_replica_election_results(results)
}

fn one_topic(image: &Image, election_type: i8, asked: &TopicPartitions) -> ReplicaElectionResult {
    let found = image.topic(&asked.topic);
    let partitions = asked.partitions.iter().map(|index| {
        let partition = found.and_then(|topic| topic.partition(PartitionIndex(*index)));
        match (found, partition) {
            (_, Some(partition)) => answer(*index, elect(partition, election_type)),
            (Some(_), None) => unknown(*index, &format!("No such partition as {}-{index}", &*asked.topic)),
            (None, None) => unknown(*index, &format!("No such topic as {}", &*asked.topic)),
        }
    });
    result(&asked.topic, partitions.collect())
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

    fn codes(response: &ElectLeadersResponse) -> Vec<(String, i32, i16)> {
        let topics = response.replica_election_results.iter();
        let one = |topic: &ReplicaElectionResult| {
            let name = topic.topic.to_string();
            let of = |result: &PartitionResult| (name.clone(), result.partition_id, result.error_code);
            topic.partition_result.iter().map(of).collect::<Vec<_>>()
        };
        topics.flat_map(one).collect()
    }

    #[test]
    fn a_leader_that_leads_needs_no_election_and_one_that_is_gone_cannot_win_it() {
        let state = cluster(&[("here", 2), ("lost", 1)]);
        let topics =
            [("here", vec![1, 7]), ("lost", vec![0]), ("nothing", vec![0])].map(|(topic, partitions)| {
                TopicPartitions::default().with_topic(topic_name(topic)).with_partitions(partitions)
            });
        for (election, not_available) in [(PREFERRED, 80), (UNCLEAN, 83)] {
            let request = ElectLeadersRequest::default()
                .with_election_type(election)
                .with_topic_partitions(Some(topics.to_vec()));
            let response = respond(state.image(), &request);
            let wanted = [("here", 1, 84), ("here", 7, 3), ("lost", 0, not_available), ("nothing", 0, 3)];
            assert_eq!(codes(&response), wanted.map(|(topic, index, code)| (topic.to_owned(), index, code)));
            for version in 0..=2 {
                let response = respond(state.image(), &request);
                assert!(guard::encode(version, CorrelationId(1), &response).is_ok());
            }
            let all = ElectLeadersRequest::default().with_election_type(election).with_topic_partitions(None);
            let wanted = [("lost".to_owned(), 0, not_available)];
            assert_eq!(codes(&respond(state.image(), &all)), wanted);
        }
        let strange = ElectLeadersRequest::default().with_election_type(7);
        assert_eq!(respond(state.image(), &strange).error_code, 42);
    }
}
