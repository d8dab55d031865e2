//! Transactional batches of a produce request: whose they are, and whether their transaction has their partitions
//! (KIP-890). Those that fail are answered and taken out before anything is queued.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use kafka_protocol::protocol::StrBytes;
use zerocopy::FromBytes;

use super::Client;
use super::shares::{Place, Share};
use super::verification::{Candidate, Operation, Verdict, give_back, produce_failure, verify};
use crate::base::TopicPartition;
use crate::base::clock;
use crate::coordinator::transactions::Producer;
use crate::io::runtime::{Queue, spawn};
use crate::metadata::Image;
use crate::shard::messages::AppendPart;
use crate::wire::ErrorCode;
use crate::wire::produce::{ProducePartitionResponse, ProduceRequest, ProduceResponse};
use crate::wire::record::BatchHead;

/// A verification may take so long however soon the client wants its answer.
const PATIENCE_MIN: Duration = Duration::from_secs(1);
/// And no longer however late it does (Kafka's `request.timeout.ms`, which bounds the same): its batches are in memory
/// all the time.
const PATIENCE_MAX: Duration = Duration::from_secs(30);

/// Whose transaction a request writes to.
#[derive(Clone)]
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

/// Has each transactional batch verified; those that fail are answered and taken out. Takes about `timeout` at most,
/// and ends with the connection.
pub(super) async fn verify_shares(
    client: &Rc<Client>,
    version: i16,
    image: &Image,
    transaction: Transaction,
    timeout: Duration,
    shares: &mut [Share<AppendPart, Place>],
    response: &mut ProduceResponse,
) {
    let operation = Operation::of_produce(version);
    let (places, candidates) = candidates(image, shares);
    let candidates: Rc<[Candidate]> = candidates.into();
    let is_waited_for = Rc::new(Cell::new(true));
    let work =
        verdicts(client.clone(), operation, transaction.clone(), candidates.clone(), is_waited_for.clone());
    let enough = pin!(wait_long_enough(client, timeout));
    let verdicts = match unless(Box::pin(work), enough).await {
        Ok(verdicts) => verdicts,
        Err(late) => {
            is_waited_for.set(false);
            let (client, count) = (client.clone(), candidates.len());
            // The owners have to be told that nobody will use what they gave.
            spawn(Queue::Serve, "late verification", async move {
                give_back(&client, transaction.producer, &candidates, &late.await).await;
            })
            .detach();
            vec![Err(ErrorCode::RequestTimedOut); count]
        }
    };
    // From the last on, so that what is taken out does not move the others.
    for ((share, part), verdict) in places.into_iter().zip(verdicts).rev() {
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

/// Until a verification has taken too long, or nobody waits for it any more.
async fn wait_long_enough(client: &Client, timeout: Duration) {
    let patience = timeout.clamp(PATIENCE_MIN, PATIENCE_MAX);
    let time = pin!(client.shard.sleep(patience));
    if let Either::Left(_) = select(time, pin!(client.line.ended())).await {
        client.shard.counters.append_timeouts.increment();
        if timeout > PATIENCE_MAX {
            client.shard.counters.verifications_late.increment();
        }
    }
}

/// What `work` comes to, unless there is `enough` before; then what is left of it.
async fn unless<T>(
    work: Pin<Box<dyn Future<Output = T>>>,
    enough: impl Future<Output = ()> + Unpin,
) -> Result<T, Pin<Box<dyn Future<Output = T>>>> {
    match select(work, enough).await {
        Either::Left((done, _)) => Ok(done),
        Either::Right(((), work)) => Err(work),
    }
}

async fn verdicts(
    client: Rc<Client>,
    operation: Operation,
    transaction: Transaction,
    candidates: Rc<[Candidate]>,
    is_waited_for: Rc<Cell<bool>>,
) -> Vec<Verdict> {
    let settings = &client.shard.config().transactions;
    let give_up = clock::monotonic().plus(settings.add_retry_max.min(PATIENCE_MAX));
    let goes_on = || operation == Operation::Add && is_waited_for.get() && clock::monotonic() < give_up;
    let ask = || verify(&client, &transaction.id, transaction.producer, operation, &candidates);
    let pause = || client.shard.sleep(settings.add_retry_pause);
    ask_while_busy(ask, pause, goes_on).await
}

/// Asks again after a pause while the last transaction of a quick producer is still on its way to the end, as long as
/// `goes_on` says so.
async fn ask_while_busy<A, P>(
    mut ask: impl FnMut() -> A,
    mut pause: impl FnMut() -> P,
    goes_on: impl Fn() -> bool,
) -> Vec<Verdict>
where
    A: Future<Output = Vec<Verdict>>,
    P: Future<Output = ()>,
{
    loop {
        let verdicts = ask().await;
        if !verdicts.contains(&Err(ErrorCode::ConcurrentTransactions)) || !goes_on() {
            return verdicts;
        }
        pause().await;
        if !goes_on() {
            return verdicts;
        }
    }
}

/// The transactional batches and where they are, in order.
fn candidates(image: &Image, shares: &[Share<AppendPart, Place>]) -> (Vec<At>, Vec<Candidate>) {
    let mut places = Vec::new();
    let mut candidates = Vec::new();
    for (share_at, share) in shares.iter().enumerate() {
        for (part_at, part) in share.parts.iter().enumerate() {
            let Some(head) = transactional_head(&part.records) else { continue };
            let Some(topic) = image.topic_by_id(part.key.topic) else { continue };
            places.push((share_at, part_at));
            candidates.push(Candidate {
                owner: share.owner,
                key: part.key,
                partition: TopicPartition::new(topic.name.clone(), part.key.partition),
                sequence: head.base_sequence(),
            });
        }
    }
    (places, candidates)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::io::runtime::{run_shard, sleep, yield_now};
    use crate::log::Claim;

    #[test]
    fn what_is_not_waited_for_any_more_can_go_on() {
        run_shard("late", || async {
            let is_done = Rc::new(Cell::new(false));
            let work = {
                let is_done = is_done.clone();
                async move {
                    sleep(Duration::from_millis(20)).await;
                    is_done.set(true);
                    7
                }
            };
            let late = match unless(Box::pin(work), pin!(yield_now())).await {
                Err(late) => late,
                Ok(_) => panic!("it takes longer than one turn"),
            };
            assert!(!is_done.get());
            assert_eq!(spawn(Queue::Serve, "rest", late).await, 7);
            let forever = pin!(std::future::pending());
            assert_eq!(unless(Box::pin(async { 8 }), forever).await.ok(), Some(8));
        });
    }

    #[test]
    fn a_busy_coordinator_is_asked_again_while_somebody_waits_for_the_verdict() {
        let busy = || vec![Ok(Claim::Open), Err(ErrorCode::ConcurrentTransactions)];
        let (asked, is_waited_for) = (Cell::new(0), Cell::new(true));
        let ask = || {
            asked.set(asked.get() + 1);
            std::future::ready(if asked.get() < 3 { busy() } else { vec![Ok(Claim::Open)] })
        };
        let pause = || std::future::ready(());
        let verdicts = ask_while_busy(ask, pause, || is_waited_for.get()).now_or_never();
        assert_eq!((verdicts, asked.take()), (Some(vec![Ok(Claim::Open)]), 3));

        // The connection breaks while the coordinator is given its time.
        let pause = || {
            is_waited_for.set(false);
            std::future::ready(())
        };
        let verdicts = ask_while_busy(ask, pause, || is_waited_for.get()).now_or_never();
        assert_eq!((verdicts, asked.take()), (Some(busy()), 1));
    }
}
