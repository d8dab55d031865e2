//! AlterPartitionReassignments 0–1 and ListPartitionReassignments 0 (KIP-455), as far as one node allows: a partition
//! stays where it is, which is done at once, so that none is ever under way
//! (`ReplicationControlManager.alterPartitionReassignments`).

use std::collections::BTreeSet;

use kafka_protocol::messages::alter_partition_reassignments_request::ReassignablePartition;
use kafka_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};

use super::Client;
use super::answer_room::AnswerRoom;
use super::cluster_view::text;
use crate::base::{BrokerId, PartitionIndex};
use crate::metadata::{Image, Refusal};
use crate::wire::ErrorCode;

/// What a partition's part of the answer takes beside its message, about.
const RESULT_BYTES: usize = 96;

pub async fn alter(
    client: &Client,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    let image = client.shard.image();
    let mut room = AnswerRoom::new(client);
    // Version 0 has no field for it and its default is true.
    let may_change_factor = request.allow_replication_factor_change;
    let mut responses = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in &topic.partitions {
            let mut answer = too_long(wanted);
            if !room.is_cut() {
                let made = respond(&image, &topic.name, wanted, may_change_factor);
                let message = made.error_message.as_ref().map_or(0, |message| message.len());
                if room.add(RESULT_BYTES + message).await {
                    answer = made;
                }
            }
            partitions.push(answer);
        }
        responses
            .push(ReassignableTopicResponse::default().with_name(topic.name).with_partitions(partitions));
    }
    AlterPartitionReassignmentsResponse::default()
        .with_allow_replication_factor_change(may_change_factor)
        .with_error_message(None)
        .with_responses(responses)
}

/// None is under way.
pub async fn list(_: &Client, _: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse {
    ListPartitionReassignmentsResponse::default().with_error_message(None)
}

fn too_long(wanted: &ReassignablePartition) -> ReassignablePartitionResponse {
    ReassignablePartitionResponse::default()
        .with_partition_index(wanted.partition_index)
        .with_error_code(ErrorCode::InvalidRequest.code())
        .with_error_message(None)
}

fn respond(
    image: &Image,
    topic: &str,
    wanted: &ReassignablePartition,
    may_change_factor: bool,
) -> ReassignablePartitionResponse {
    let answer = ReassignablePartitionResponse::default()
        .with_partition_index(wanted.partition_index)
        .with_error_message(None);
    match reassign(image, topic, wanted, may_change_factor) {
        Ok(()) => answer,
        Err(refusal) => {
            answer.with_error_code(refusal.code.code()).with_error_message(Some(text(&refusal.message)))
        }
    }
}

fn reassign(
    image: &Image,
    topic: &str,
    wanted: &ReassignablePartition,
    may_change_factor: bool,
) -> Result<(), Refusal> {
    let index = wanted.partition_index;
    let unknown = |message: String| Refusal::new(ErrorCode::UnknownTopicOrPartition, message);
    let found =
        image.topic(topic).ok_or_else(|| unknown(format!("Unable to find a topic named {topic}.")))?;
    let partition = found.partition(PartitionIndex(index));
    let partition = partition.ok_or_else(|| unknown(format!("Unable to find partition {topic}:{index}.")))?;
    let Some(replicas) = &wanted.replicas else {
        let message = "No partition reassignment is in progress.";
        return Err(Refusal::new(ErrorCode::NoReassignmentInProgress, message));
    };
    let replicas: Vec<BrokerId> = replicas.iter().map(|id| BrokerId(id.0)).collect();
    check(image, &replicas)?;
    if !may_change_factor && replicas.len() != partition.replicas.len() {
        let (old, new) = (partition.replicas.len(), replicas.len());
        let message = format!("The replication factor is changed from {old} to {new}");
        return Err(Refusal::new(ErrorCode::InvalidReplicationFactor, message));
    }
    let (old, new): (BTreeSet<_>, BTreeSet<_>) =
        (partition.replicas.iter().collect(), replicas.iter().collect());
    if old != new {
        let message = "This version moves no partition to another broker.";
        return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
    }
    Ok(())
}

/// As Kafka's `validateManualPartitionAssignment`.
fn check(image: &Image, replicas: &[BrokerId]) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
    if replicas.is_empty() {
        return refuse("The manual partition assignment includes an empty replica list.".to_owned());
    }
    let mut seen = BTreeSet::new();
    for id in replicas.iter().copied().collect::<BTreeSet<_>>() {
        if image.broker(id).is_none() {
            return refuse(format!(
                "The manual partition assignment includes broker {id}, but no such broker is registered."
            ));
        }
    }
    match replicas.iter().find(|id| !seen.insert(**id)) {
        Some(id) => {
            refuse(format!("The manual partition assignment includes the broker {id} more than once."))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster_view::broker_ids;
    use super::super::cluster_view::testing::cluster;
    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    #[test]
    fn a_partition_may_be_told_to_stay_and_nothing_else() {
        let state = cluster(&[("t", 1)]);
        let ids = |ids: &[i32]| Some(broker_ids(&ids.iter().map(|id| BrokerId(*id)).collect::<Vec<_>>()));
        let code = |topic: &str, index: i32, replicas: Option<Vec<_>>, may_change: bool| {
            let partition =
                ReassignablePartition::default().with_partition_index(index).with_replicas(replicas);
            let answer = respond(state.image(), topic, &partition, may_change);
            let code = answer.error_code;
            let topic = ReassignableTopicResponse::default().with_partitions(vec![answer]);
            let response = AlterPartitionReassignmentsResponse::default().with_responses(vec![topic]);
            assert!(guard::encode(1, CorrelationId(1), &response).is_ok());
            code
        };
        assert_eq!(code("t", 0, ids(&[1, 2]), true), 0);
        assert_eq!(code("t", 0, ids(&[2, 1]), false), 0);
        assert_eq!(code("t", 0, ids(&[1]), false), 38);
        for wrong in [ids(&[]), ids(&[1, 1]), ids(&[1, 77]), ids(&[1, 3])] {
            assert_eq!(code("t", 0, wrong, true), 39);
        }
        assert_eq!(code("t", 0, None, true), 85);
        assert_eq!((code("t", 9, ids(&[1]), true), code("u", 0, ids(&[1]), true)), (3, 3));
    }

    #[test]
    fn an_empty_list_can_be_encoded() {
        let response = ListPartitionReassignmentsResponse::default().with_error_message(None);
        assert!(guard::encode(0, CorrelationId(1), &response).is_ok());
        let response = AlterPartitionReassignmentsResponse::default();
        assert!(guard::encode(0, CorrelationId(1), &response).is_ok());
    }
}
