//! Transactional batches of a produce request: whose they are, and whether their transaction has their partitions
//! (KIP-890). Those that fail are answered and taken out before anything is queued.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use kafka_protocol::protocol::StrBytes;
use zerocopy::FromBytes;

use super::Client;
use super::shares::{Place, Share};
use super::verification::{Candidate, Operation, produce_failure, verify};
use crate::base::TopicPartition;
use crate::base::clock;
use crate::coordinator::transactions::Producer;
use crate::log::Claim;
use crate::metadata::Image;
use crate::shard::messages::AppendPart;
use crate::wire::ErrorCode;
use crate::wire::produce::{ProducePartitionResponse, ProduceRequest, ProduceResponse};
use crate::wire::record::BatchHead;

/// A verification may take so long however soon the client wants its answer.
const PATIENCE_MIN: Duration = Duration::from_secs(1);

/// Whose transaction a request writes to.
pub(super) struct Transaction {
    id: StrBytes,
    producer: Producer,
}

/// The place of a batch among the shares of a request.
type At = (usize, usize);

/// The transaction of the request's transactional batches, if it has any: of one producer, with its
/// transactional id.
pub(super) fn find_transaction(request: &ProduceRequest) -> Result<Option<Transaction>, ErrorCode> {
    let mut found = None;
    let batches = request.topics.iter().flat_map(|topic| &topic.partitions);
    for head in batches.filter_map(|partition| transactional_head(partition.records.as_ref()?)) {
        let Some(id) = &request.transactional_id else {
            return Err(ErrorCode::TransactionalIdAuthorizationFailed);
        };
        let producer = Producer { id: head.producer_id(), epoch: head.producer_epoch() };
        let first = found.get_or_insert_with(|| Transaction { id: id.clone(), producer });
        if first.producer != producer {
            return Err(ErrorCode::InvalidProducerIdMapping);
        }
    }
    Ok(found)
}

/// The head of a transactional batch. Looks at one byte of any other.
fn transactional_head(records: &Bytes) -> Option<BatchHead> {
    /// The low byte of the attributes, and its bit.
    const ATTRIBUTES_AT: usize = 22;
    const TRANSACTIONAL: u8 = 1 << 4;
    if records.get(ATTRIBUTES_AT)? & TRANSACTIONAL == 0 {
        return None;
    }
    BatchHead::read_from_prefix(records).ok().map(|(head, _)| head)
}

/// Has each transactional batch verified; those that fail are answered and taken out. Takes about `timeout` at most.
pub(super) async fn verify_shares(
    client: &Rc<Client>,
    version: i16,
    image: &Image,
    transaction: &Transaction,
    timeout: Duration,
    shares: &mut [Share<AppendPart, Place>],
    response: &mut ProduceResponse,
) {
    let operation = Operation::of_produce(version);
    let verdicts = {
        let verdicts = pin!(verdicts(client, operation, image, transaction, shares));
        in_time(client, timeout.max(PATIENCE_MIN), verdicts).await
    };
    let mut verdicts = verdicts.unwrap_or_else(|| {
        client.shard.counters.append_timeouts.increment();
        let candidates = candidates(image, shares).into_iter();
        candidates.map(|candidate| (candidate.at, Err(ErrorCode::RequestTimedOut))).collect()
    });
    // From the last on, so that what is taken out does not move the others.
    verdicts.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
    for ((share, part), verdict) in verdicts {
        let share = &mut shares[share];
        match verdict {
            Ok(claim) => share.parts[part].claim = claim,
            Err(error) => {
                share.parts.remove(part);
                let place = share.places.remove(part);
                let partition = &mut response.topics[place.topic].partitions[place.partition];
                let (code, message) = produce_failure(error, operation);
                *partition = ProducePartitionResponse::failed(partition.index, code);
                partition.error_message = message;
            }
        }
    }
}

/// What `future` comes to, if it does in time.
async fn in_time<T>(
    client: &Rc<Client>,
    patience: Duration,
    future: impl Future<Output = T> + Unpin,
) -> Option<T> {
    match select(future, pin!(client.shard.sleep(patience))).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

async fn verdicts(
    client: &Client,
    operation: Operation,
    image: &Image,
    transaction: &Transaction,
    shares: &[Share<AppendPart, Place>],
) -> Vec<(At, Result<Claim, ErrorCode>)> {
    let settings = &client.shard.config().transactions;
    let give_up = clock::monotonic().plus(settings.add_retry_max);
    loop {
        let candidates = candidates(image, shares);
        let verified = verify(client, &transaction.id, transaction.producer, operation, candidates).await;
        // The last transaction of a quick producer may still be on its way to the end.
        let is_busy = verified.iter().any(|(_, verdict)| *verdict == Err(ErrorCode::ConcurrentTransactions));
        if !is_busy || operation != Operation::Add || clock::monotonic() >= give_up {
            return verified;
        }
        client.shard.sleep(settings.add_retry_pause).await;
    }
}

fn candidates(image: &Image, shares: &[Share<AppendPart, Place>]) -> Vec<Candidate<At>> {
    let mut candidates = Vec::new();
    for (share_at, share) in shares.iter().enumerate() {
        for (part_at, part) in share.parts.iter().enumerate() {
            let Some(head) = transactional_head(&part.records) else { continue };
            let Some(topic) = image.topic_by_id(part.key.topic) else { continue };
            candidates.push(Candidate {
                at: (share_at, part_at),
                owner: share.owner,
                key: part.key,
                partition: TopicPartition::new(topic.name.clone(), part.key.partition),
                sequence: head.base_sequence(),
            });
        }
    }
    candidates
}
