//! TxnOffsetCommit 0–6: offsets that count when the producer's transaction commits (KIP-98, KIP-447). Topics are
//! checked here, the transaction by [`super::verification`]; the group coordinator holds the offsets.

use bytes::Bytes;
use kafka_protocol::messages::OffsetCommitResponse;
use kafka_protocol::protocol::StrBytes;

use super::client::{find_partition, partition_image};
use super::errors::ErrorCodes as _;
use super::verification::{Candidate, Operation, verify};
use super::{Client, Outcome, answer, groups, malformed, offsets, transactions};
use crate::coordinator::transactions::Producer;
use crate::coordinator::{Request, Response};
use crate::log::Claim;
use crate::metadata::Image;
use crate::wire::ErrorCode;
use crate::wire::header::RequestHeader;
use crate::wire::newer::{self, FIRST_TXN_COMMIT_WITH_TOPIC_IDS, TxnOffsetCommit};
use crate::wire::topic_ids::FIRST_WITH_TOPIC_IDS;

/// From here on clients do not stumble over COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296).
const FIRST_WITH_LOAD_IN_PROGRESS: i16 = 2;
/// The last version of OffsetCommit that names topics.
const COMMIT_VERSION_WITH_NAMES: i16 = FIRST_WITH_TOPIC_IDS - 1;
/// A coordinator's batch has no sequence.
const NO_SEQUENCE: i32 = -1;

pub async fn handle(client: &Client, header: &RequestHeader, body: &Bytes) -> Outcome {
    let version = header.version;
    let mut response = match newer::txn_offset_commit(version, body) {
        Ok(request) => fit(version, commit(client, header, request).await),
        Err(error) => return malformed(header, error),
    };
    response.set_throttle_ms(client.throttle_request(header));
    response.each_error(&mut |code| client.shard.requests.error(header.api, code));
    answer(header, newer::encode_txn_offset_commit(version, header.correlation_id, &response))
}

async fn commit(client: &Client, header: &RequestHeader, request: TxnOffsetCommit) -> OffsetCommitResponse {
    let image = client.shard.image();
    let TxnOffsetCommit { transactional_id, producer_id, producer_epoch, commit } = request;
    let producer = transactions::producer(producer_id, producer_epoch);
    let commit_version = match header.version {
        FIRST_TXN_COMMIT_WITH_TOPIC_IDS.. => FIRST_WITH_TOPIC_IDS,
        _ => COMMIT_VERSION_WITH_NAMES,
    };
    let (known, mut response) = offsets::split_commit(&image, commit_version, commit);
    if known.topics.is_empty() {
        return response;
    }
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
    response
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

/// What clients of `version` understand.
fn fit(version: i16, mut response: OffsetCommitResponse) -> OffsetCommitResponse {
    if version >= FIRST_WITH_LOAD_IN_PROGRESS {
        return response;
    }
    for partition in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
        if partition.error_code == ErrorCode::CoordinatorLoadInProgress.code() {
            partition.error_code = ErrorCode::CoordinatorNotAvailable.code();
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::offset_commit_response::{
        OffsetCommitResponsePartition, OffsetCommitResponseTopic,
    };

    use super::*;
    use crate::wire::header::CorrelationId;

    #[test]
    fn every_version_can_be_encoded_and_old_ones_do_not_hear_of_loading() {
        let partition = OffsetCommitResponsePartition::default().with_error_code(14);
        let topic = OffsetCommitResponseTopic::default().with_partitions(vec![partition]);
        let response = OffsetCommitResponse::default().with_topics(vec![topic]);
        for version in 0..=6 {
            let fitted = fit(version, response.clone());
            let code = fitted.topics[0].partitions[0].error_code;
            assert_eq!(code, if version < 2 { 15 } else { 14 });
            assert!(newer::encode_txn_offset_commit(version, CorrelationId(1), &fitted).is_ok());
        }
    }
}
