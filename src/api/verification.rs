//! Before transactional batches are appended: asks their owners whether the transaction is under way there, and
//! the coordinator whether it has the partitions, or with transactions v2 to take them in (KIP-890, Kafka's
//! `AddPartitionsToTxnManager`). Runs on the connection's shard.

use std::collections::BTreeSet;

use kafka_protocol::protocol::StrBytes;

use super::Client;
use super::shares::{Share, Shares};
use super::transactions::{ask_anywhere, mismatch};
use crate::base::{ShardId, TopicPartition};
use crate::coordinator::transactions::{Producer, Request, Response, TransactionVersion};
use crate::log::Claim;
use crate::shard::PartitionKey;
use crate::shard::messages::{RefusedGuard, Reply, Request as ShardRequest, VerifyQuery};
use crate::wire::ErrorCode;

/// What the version of a request lets the broker do and say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// The client does not know TRANSACTION_ABORTABLE.
    Verify,
    VerifyOrAbort,
    /// Transactions v2: partitions are added.
    Add,
}

impl Operation {
    pub fn of_produce(version: i16) -> Self {
        match version {
            ..=10 => Self::Verify,
            11 => Self::VerifyOrAbort,
            12.. => Self::Add,
        }
    }

    pub fn of_offset_commit(version: i16) -> Self {
        match version {
            ..=3 => Self::Verify,
            4 => Self::VerifyOrAbort,
            5.. => Self::Add,
        }
    }
}

/// A batch that is to be appended.
pub(super) struct Candidate {
    pub owner: ShardId,
    pub key: PartitionKey,
    pub partition: TopicPartition,
    pub sequence: i32,
}

/// What a batch may claim when it is appended, or why it must not be.
pub(super) type Verdict = Result<Claim, ErrorCode>;

/// The verdicts on the candidates, in their order. Whoever does not use those that they are given, which may have come
/// too late, is to [`give_back`] what is in them.
pub(super) async fn verify(
    client: &Client,
    id: &StrBytes,
    producer: Producer,
    operation: Operation,
    candidates: &[Candidate],
) -> Vec<Verdict> {
    if operation != Operation::Add && !client.shard.config().transactions.verifies_partitions {
        return candidates.iter().map(|_| Ok(Claim::Unchecked)).collect();
    }
    let mut shares = Shares::new();
    for (at, Candidate { owner, key, sequence, .. }) in candidates.iter().enumerate() {
        let bumps_epoch = operation == Operation::Add;
        shares.add(*owner, at, VerifyQuery { key: *key, producer, sequence: *sequence, bumps_epoch });
    }
    let answers = shares.ask(&client.shard, ShardRequest::Verify, |reply| match reply {
        Reply::Verify(answers) => Some(answers),
        _ => None,
    });
    let mut verdicts: Vec<Verdict> = candidates.iter().map(|_| Ok(Claim::Open)).collect();
    let mut beginning = Vec::new();
    for (at, answer) in answers.await {
        match answer {
            Ok(None) => {}
            Ok(Some(guard)) => beginning.push((at, guard)),
            Err(error) => verdicts[at] = Err(error),
        }
    }
    if beginning.is_empty() {
        return verdicts;
    }
    let partitions = beginning.iter().map(|(at, _)| candidates[*at].partition.clone()).collect();
    let missing = ask_coordinator(client, id, producer, operation, partitions).await;
    let counters = &client.shard.counters;
    counters.verifications.add(beginning.len() as u64);
    let mut refused = Shares::new();
    for (at, guard) in beginning {
        let Candidate { owner, key, partition, .. } = &candidates[at];
        verdicts[at] = match &missing {
            Ok(missing) if missing.contains(partition) => Err(not_added(operation)),
            Ok(_) => Ok(Claim::Begins(guard)),
            Err(error) => Err(*error),
        };
        if let Err(error) = verdicts[at] {
            counters.verifications_failed.increment();
            let is_final = !is_asked_again(error);
            refused.add(*owner, (), RefusedGuard { key: *key, producer: producer.id, guard, is_final });
        }
    }
    tell_refused(client, refused).await;
    verdicts
}

/// Nothing will be appended with these verdicts; the same batches may come again.
pub(super) async fn give_back(
    client: &Client,
    producer: Producer,
    candidates: &[Candidate],
    verdicts: &[Verdict],
) {
    let mut refused = Shares::new();
    for (Candidate { owner, key, .. }, verdict) in candidates.iter().zip(verdicts) {
        if let Ok(Claim::Begins(guard)) = *verdict {
            refused.add(
                *owner,
                (),
                RefusedGuard { key: *key, producer: producer.id, guard, is_final: false },
            );
        }
    }
    tell_refused(client, refused).await;
}

/// Tells the owners whose guards are good for nothing.
async fn tell_refused(client: &Client, refused: Shares<RefusedGuard, ()>) {
    for Share { owner, parts, .. } in refused.into_vec() {
        match client.shard.ask(owner, ShardRequest::RefuseVerified(parts)).await {
            Reply::Done => {}
            _ => crate::base::fatal("a refused guard got another request's answer"),
        }
    }
}

/// Whether a producer that is told so sends the same batch again.
fn is_asked_again(error: ErrorCode) -> bool {
    matches!(
        error,
        ErrorCode::ConcurrentTransactions
            | ErrorCode::CoordinatorLoadInProgress
            | ErrorCode::CoordinatorNotAvailable
            | ErrorCode::NotCoordinator
            | ErrorCode::NetworkException
    )
}

/// The partitions that are not in the transaction.
async fn ask_coordinator(
    client: &Client,
    id: &StrBytes,
    producer: Producer,
    operation: Operation,
    partitions: BTreeSet<TopicPartition>,
) -> Result<BTreeSet<TopicPartition>, ErrorCode> {
    let id = id.clone();
    let request = match operation {
        Operation::Add => {
            Request::AddPartitions { id, producer, partitions, version: TransactionVersion::V2 }
        }
        Operation::Verify | Operation::VerifyOrAbort => {
            Request::VerifyPartitions { id, producer, partitions }
        }
    };
    let result = match ask_anywhere(client, request).await {
        Response::AddPartitions(result) => result.map(|()| BTreeSet::new()),
        Response::VerifyPartitions(result) => result,
        other => mismatch(&other),
    };
    result.map_err(|error| match error {
        // What producers expect of a write.
        ErrorCode::ProducerFenced => ErrorCode::InvalidProducerEpoch,
        error => error,
    })
}

fn not_added(operation: Operation) -> ErrorCode {
    match operation {
        Operation::Verify => ErrorCode::InvalidTxnState,
        Operation::VerifyOrAbort | Operation::Add => ErrorCode::TransactionAbortable,
    }
}

/// What a produce request is told when its batch could not be verified, and why in words: errors that old clients
/// would not try again become one that they do.
pub(super) fn produce_failure(error: ErrorCode, operation: Operation) -> (ErrorCode, Option<String>) {
    let name = match error {
        ErrorCode::InvalidTxnState => {
            return (error, Some("Partition was not added to the transaction".to_owned()));
        }
        ErrorCode::CoordinatorLoadInProgress => "COORDINATOR_LOAD_IN_PROGRESS",
        ErrorCode::CoordinatorNotAvailable => "COORDINATOR_NOT_AVAILABLE",
        ErrorCode::NotCoordinator => "NOT_COORDINATOR",
        ErrorCode::NetworkException => "NETWORK_EXCEPTION",
        ErrorCode::ConcurrentTransactions if operation != Operation::Add => "CONCURRENT_TRANSACTIONS",
        error => return (error, None),
    };
    let message =
        format!("Unable to verify the partition has been added to the transaction. Underlying error: {name}");
    (ErrorCode::NotEnoughReplicas, Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_tell_what_a_client_understands() {
        let of_produce: Vec<_> = [9, 10, 11, 12, 13].map(Operation::of_produce).into();
        use Operation::{Add, Verify, VerifyOrAbort};
        assert_eq!(of_produce, [Verify, Verify, VerifyOrAbort, Add, Add]);
        assert_eq!([3, 4, 5].map(Operation::of_offset_commit), [Verify, VerifyOrAbort, Add]);
    }

    #[test]
    fn errors_that_old_clients_would_not_try_again_become_one_that_they_do() {
        let told = |error, operation| produce_failure(error, operation).0;
        use ErrorCode::*;
        for error in [CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, NetworkException] {
            assert_eq!(told(error, Operation::Add), NotEnoughReplicas);
        }
        assert_eq!(told(ConcurrentTransactions, Operation::Verify), NotEnoughReplicas);
        assert_eq!(told(ConcurrentTransactions, Operation::Add), ConcurrentTransactions);
        assert_eq!(told(InvalidProducerEpoch, Operation::Verify), InvalidProducerEpoch);
        let (_, message) = produce_failure(NotCoordinator, Operation::Verify);
        assert!(message.is_some_and(|message| message.ends_with("NOT_COORDINATOR")));
    }
}
