//! CreatePartitions 0–3: every topic that was asked for is answered (`ControllerApis.createPartitions`).

use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse};

use super::Client;
use super::cluster_view::{message, topic_name};
use crate::base::BrokerId;
use crate::metadata::{Command, CreatePartitions, MorePartitions, Refusal};
use crate::wire::header::RequestHeader;

/// The first version whose clients know THROTTLING_QUOTA_EXCEEDED.
const STRICT_SINCE: i16 = 3;

pub async fn handle(
    client: &Client,
    header: &RequestHeader,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let topics: Vec<MorePartitions> = request.topics.iter().map(more_partitions).collect();
    let mut names: Vec<String> = topics.iter().map(|topic| topic.name.clone()).collect();
    let command = CreatePartitions { topics, validate_only: request.validate_only };
    let results = match client.mutate(header, STRICT_SINCE, Command::CreatePartitions(command)).await {
        Ok(response) => response.partitions_created(),
        Err(refusal) => {
            names.sort();
            names.dedup();
            names.into_iter().map(|name| (name, Err(refusal.clone()))).collect()
        }
    };
    CreatePartitionsResponse::default().with_results(results.into_iter().map(answer).collect())
}

fn more_partitions(topic: &CreatePartitionsTopic) -> MorePartitions {
    let assignment = topic.assignments.as_ref().map(|partitions| {
        let replicas =
            |ids: &[kafka_protocol::messages::BrokerId]| ids.iter().map(|id| BrokerId(id.0)).collect();
        partitions.iter().map(|partition| replicas(&partition.broker_ids)).collect()
    });
    MorePartitions { name: topic.name.to_string(), count: topic.count, assignment }
}

fn answer((name, result): (String, Result<(), Refusal>)) -> CreatePartitionsTopicResult {
    let answer = CreatePartitionsTopicResult::default().with_name(topic_name(&name));
    match result {
        Ok(()) => answer,
        Err(refusal) => {
            answer.with_error_code(refusal.code.code()).with_error_message(message(&refusal.message))
        }
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::create_partitions_request::CreatePartitionsAssignment;

    use super::super::cluster_view::broker_ids;
    use super::*;
    use crate::wire::header::CorrelationId;
    use crate::wire::{ErrorCode, guard};

    #[test]
    fn an_assignment_is_taken_over_and_a_missing_one_left_to_the_controller() {
        let partition =
            CreatePartitionsAssignment::default().with_broker_ids(broker_ids(&[BrokerId(4), BrokerId(5)]));
        let topic = CreatePartitionsTopic::default().with_name(topic_name("t")).with_count(9);
        let chosen = more_partitions(&topic.clone().with_assignments(None));
        assert_eq!(chosen, MorePartitions { name: "t".into(), count: 9, assignment: None });
        let manual = more_partitions(&topic.with_assignments(Some(vec![partition])));
        assert_eq!(manual.assignment, Some(vec![vec![BrokerId(4), BrokerId(5)]]));
    }

    #[test]
    fn every_version_can_be_encoded() {
        let refusal = Refusal::new(ErrorCode::InvalidPartitions, "fewer");
        let answers = vec![answer(("a".into(), Ok(()))), answer(("b".into(), Err(refusal)))];
        let response = CreatePartitionsResponse::default().with_results(answers);
        for version in 0..=3 {
            assert!(guard::encode(version, CorrelationId(1), &response).is_ok());
        }
    }
}
