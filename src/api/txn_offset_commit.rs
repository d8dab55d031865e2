//! TxnOffsetCommit 0–5: offsets that count when the producer's transaction commits (KIP-98, KIP-447). Topics are
//! checked here, the transaction by [`super::verification`]; the group coordinator holds the offsets.

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::txn_offset_commit_request::TxnOffsetCommitRequestTopic;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, TxnOffsetCommitRequest, TxnOffsetCommitResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::client::{find_partition, partition_image};
use super::verification::{Candidate, Operation, verify};
use super::{Client, groups, offsets, transactions};
use crate::coordinator::transactions::Producer;
use crate::coordinator::{Request, Response};
use crate::log::Claim;
use crate::metadata::Image;
use crate::wire::ErrorCode;
use crate::wire::header::RequestHeader;

/// From here on clients do not stumble over COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296).
const FIRST_WITH_LOAD_IN_PROGRESS: i16 = 2;
/// The version of OffsetCommit whose form the coordinator is given: topics by name.
const COMMIT_VERSION: i16 = 9;
/// A coordinator's batch has no sequence.
const NO_SEQUENCE: i32 = -1;

pub async fn handle(
    client: &Client,
    header: &RequestHeader,
    request: TxnOffsetCommitRequest,
) -> TxnOffsetCommitResponse {
    let image = client.shard.image();
    let transactional_id = request.transactional_id.0.clone();
    let producer = transactions::producer(request.producer_id, request.producer_epoch);
    let (known, mut response) = offsets::split_commit(&image, COMMIT_VERSION, commit_of(request));
    if !known.topics.is_empty() {
        let claim = match known.group_id.is_empty() {
            true => Err(ErrorCode::InvalidGroupId),
            false => {
                let operation = Operation::of_offset_commit(header.version);
                claim(client, &image, &transactional_id, producer, operation, &known.group_id).await
            }
        };
        let answer = match claim {
            Err(error) => offsets::commit_failed(&known, told(error)),
            Ok(claim) => {
                let request = Request::CommitInTransaction { commit: known, producer, claim };
                match groups::ask(client, header, request).await {
                    Response::Commit(answer) => answer,
                    other => groups::mismatch(&other),
                }
            }
        };
        offsets::merge_commit(&mut response, answer);
    }
    fit(header.version, response)
}

/// Whether the transaction has, or takes in, the partition that keeps the group.
async fn claim(
    client: &Client,
    image: &Image,
    transactional_id: &StrBytes,
    producer: Producer,
    operation: Operation,
    group: &str,
) -> Result<Claim, ErrorCode> {
    if !producer.id.is_some() {
        return Err(ErrorCode::InvalidProducerIdMapping);
    }
    let partition = transactions::offsets_partition(client, image, group);
    let topic = image.topic(&partition.topic).ok_or(ErrorCode::NotCoordinator)?;
    partition_image(topic, partition.partition).ok_or(ErrorCode::NotCoordinator)?;
    let target = find_partition(&client.shard, topic, partition.partition)?;
    let candidate = Candidate { owner: target.owner, key: target.key, partition, sequence: NO_SEQUENCE };
    let verdicts = verify(client, transactional_id, producer, operation, &[candidate]).await;
    verdicts.into_iter().next().unwrap_or(Err(ErrorCode::UnknownServerError))
}

/// How a failed verification is told (Kafka's `CoordinatorOperationExceptionHelper`).
fn told(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::UnknownTopicOrPartition | ErrorCode::NotEnoughReplicas | ErrorCode::RequestTimedOut => {
            ErrorCode::CoordinatorNotAvailable
        }
        ErrorCode::NotLeaderOrFollower | ErrorCode::KafkaStorageError => ErrorCode::NotCoordinator,
        error => error,
    }
}

/// The commit that it would be outside of a transaction.
fn commit_of(request: TxnOffsetCommitRequest) -> OffsetCommitRequest {
    let topics =
        request.topics.into_iter().map(|TxnOffsetCommitRequestTopic { name, partitions, .. }| {
            let partitions = partitions.into_iter().map(|partition| {
                OffsetCommitRequestPartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_committed_offset(partition.committed_offset)
                    .with_committed_leader_epoch(partition.committed_leader_epoch)
                    .with_committed_metadata(partition.committed_metadata)
            });
            OffsetCommitRequestTopic::default().with_name(name).with_partitions(partitions.collect())
        });
    OffsetCommitRequest::default()
        .with_group_id(request.group_id)
        .with_generation_id_or_member_epoch(request.generation_id)
        .with_member_id(request.member_id)
        .with_group_instance_id(request.group_instance_id)
        .with_topics(topics.collect())
}

fn fit(version: i16, response: OffsetCommitResponse) -> TxnOffsetCommitResponse {
    let load = ErrorCode::CoordinatorLoadInProgress.code();
    let topics = response.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|partition| {
            let error = match partition.error_code {
                code if code == load && version < FIRST_WITH_LOAD_IN_PROGRESS => {
                    ErrorCode::CoordinatorNotAvailable.code()
                }
                code => code,
            };
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(error)
        });
        TxnOffsetCommitResponseTopic::default().with_name(topic.name).with_partitions(partitions.collect())
    });
    TxnOffsetCommitResponse::default().with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::offset_commit_response::{
        OffsetCommitResponsePartition, OffsetCommitResponseTopic,
    };

    use super::*;
    use crate::base::PartitionIndex;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    #[test]
    fn every_version_can_be_encoded_and_old_ones_do_not_hear_of_loading() {
        let partition = OffsetCommitResponsePartition::default().with_error_code(14);
        let topic = OffsetCommitResponseTopic::default().with_partitions(vec![partition]);
        let response = OffsetCommitResponse::default().with_topics(vec![topic]);
        for version in 0..=5 {
            let fitted = fit(version, response.clone());
            let code = fitted.topics[0].partitions[0].error_code;
            assert_eq!(code, if version < 2 { 15 } else { 14 });
            assert!(guard::encode(version, CorrelationId(1), &fitted).is_ok());
        }
    }

    #[test]
    fn a_commit_keeps_its_member_and_its_offsets() {
        let partition =
            kafka_protocol::messages::txn_offset_commit_request::TxnOffsetCommitRequestPartition::default()
                .with_partition_index(3)
                .with_committed_offset(7)
                .with_committed_leader_epoch(2);
        let topic = TxnOffsetCommitRequestTopic::default().with_partitions(vec![partition]);
        let request = TxnOffsetCommitRequest::default().with_generation_id(4).with_topics(vec![topic]);
        let commit = commit_of(request);
        assert_eq!(commit.generation_id_or_member_epoch, 4);
        assert_eq!(commit.retention_time_ms, -1);
        let partition = &commit.topics[0].partitions[0];
        assert_eq!(
            (
                PartitionIndex(partition.partition_index),
                partition.committed_offset,
                partition.committed_leader_epoch
            ),
            (PartitionIndex(3), 7, 2)
        );
    }
}
