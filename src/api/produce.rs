//! Produce. [`begin`] parses in place, splits by owner shard and queues every batch at its owner; what it
//! returns waits for the owners' answers. Two requests of a connection are begun one after the other, so
//! their batches reach each owner in order.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use zerocopy::FromBytes;

use super::client::{Target, find_partition, find_topic};
use super::shares::{Place, Share, Shares};
use super::verification::{Candidate, Operation, produce_failure, verify};
use super::{Client, CloseReason, Outcome, answer, malformed};
use crate::base::clock;
use crate::base::{LeaderEpoch, PartitionIndex, TopicPartition};
use crate::coordinator::transactions::Producer;
use crate::log::{Claim, Origin};
use crate::metadata::Image;
use crate::partition::{Acks, AppendFailure};
use crate::shard::PendingReply;
use crate::shard::messages::{AppendAnswer, AppendPart, AppendReply, AppendRequest, Reply, Request};
use crate::wire::ErrorCode;
use crate::wire::header::RequestHeader;
use crate::wire::parts::{CurrentLeader, TopicRef};
use crate::wire::produce::{
    self, ProducePartitionResponse, ProduceRequest, ProduceResponse, ProduceTopic, ProduceTopicResponse,
};
use crate::wire::record::BatchHead;

/// Kafka's own clients may write to internal topics with this client id alone (`AdminUtils`).
const ADMIN_CLIENT_ID: &[u8] = b"__admin_client";

struct SentShare {
    pending: PendingReply,
    places: Vec<Place>,
}

/// Begins a produce request: when this returns, its batches stand in their owners' queues.
pub async fn begin(
    client: &Rc<Client>,
    header: &RequestHeader,
    body: Bytes,
) -> Pin<Box<dyn Future<Output = Outcome>>> {
    let request = match ProduceRequest::decode(header.version, &body) {
        Ok(request) => request,
        Err(error) => return done(malformed(header, error)),
    };
    drop(body);
    let acks = match request.acks {
        produce::Acks::None => Acks::None,
        produce::Acks::Leader => Acks::Leader,
        produce::Acks::All => Acks::All,
        produce::Acks::Invalid(_) => {
            let response = refuse_all(&request, ErrorCode::InvalidRequiredAcks);
            count_errors(client, header, &response);
            return done(answer(header, response.encode(header.version, header.correlation_id)));
        }
    };
    let transaction = match find_transaction(&request) {
        Ok(transaction) => transaction,
        Err(code) if acks == Acks::None => {
            return done(Outcome::Close(CloseReason::UnacknowledgedFailure(code)));
        }
        Err(code) => {
            let response = refuse_all(&request, code);
            count_errors(client, header, &response);
            return done(answer(header, response.encode(header.version, header.correlation_id)));
        }
    };
    let image = client.shard.image();
    let may_write_internal = header.client_id.as_deref() == Some(ADMIN_CLIENT_ID);
    let (mut response, shares) = split(client, &image, request.topics, may_write_internal);
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let mut shares = shares.into_vec();
    if let Some(transaction) = transaction {
        verify_shares(client, header.version, &image, &transaction, &mut shares, &mut response).await;
    }
    let mut sent = Vec::with_capacity(shares.len());
    for Share { owner, parts, places } in shares {
        if parts.is_empty() {
            continue;
        }
        let bytes = parts.iter().map(|part| part.records.len() as u64).sum();
        client.leaning.borrow_mut().note(owner, bytes);
        let append =
            AppendRequest { parts, acks, origin: Origin::Client, produce_version: header.version, timeout };
        let pending = client.shard.send(owner, Request::Append(append)).await;
        sent.push(SentShare { pending, places });
    }
    let header = header.clone();
    let client = client.clone();
    Box::pin(async move {
        let mut longest_wait = Duration::ZERO;
        for SentShare { pending, places } in sent {
            let Reply::Append(AppendReply { parts, spent, waited }) = pending.await else {
                crate::base::fatal("an append got another request's answer");
            };
            drop(spent);
            longest_wait = longest_wait.max(waited);
            for (Place { topic, partition }, result) in places.into_iter().zip(parts) {
                let partition = &mut response.topics[topic].partitions[partition];
                *partition = partition_response(partition.index, result);
            }
        }
        client.note_waited(longest_wait);
        count_errors(&client, &header, &response);
        if acks == Acks::None {
            return match first_error(&response) {
                None => Outcome::Silent,
                Some(code) => Outcome::Close(CloseReason::UnacknowledgedFailure(code)),
            };
        }
        name_leaders(&client, &mut response);
        answer(&header, response.encode(header.version, header.correlation_id))
    })
}

/// Whose transaction a request writes to.
struct Transaction {
    id: StrBytes,
    producer: Producer,
}

/// The transaction of the request's transactional batches, if it has any: of one producer, with its
/// transactional id.
fn find_transaction(request: &ProduceRequest) -> Result<Option<Transaction>, ErrorCode> {
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

/// Has each transactional batch verified before it is queued (KIP-890); those that fail are answered and taken
/// out. The connection's next requests wait, so that batches reach their partitions in order.
async fn verify_shares(
    client: &Client,
    version: i16,
    image: &Image,
    transaction: &Transaction,
    shares: &mut [Share<AppendPart, Place>],
    response: &mut ProduceResponse,
) {
    // What was queued before this request is not held up.
    client.shard.end_turn();
    let operation = Operation::of_produce(version);
    let settings = &client.shard.config().transactions;
    let give_up = clock::monotonic().plus(settings.add_retry_max);
    let mut verdicts = loop {
        let candidates = candidates(image, shares);
        let verified = verify(client, &transaction.id, transaction.producer, operation, candidates).await;
        // The last transaction of a quick producer may still be on its way to the end.
        let is_busy = verified.iter().any(|(_, verdict)| *verdict == Err(ErrorCode::ConcurrentTransactions));
        if !is_busy || operation != Operation::Add || clock::monotonic() >= give_up {
            break verified;
        }
        client.shard.sleep(settings.add_retry_pause).await;
    };
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

fn candidates(image: &Image, shares: &[Share<AppendPart, Place>]) -> Vec<Candidate<(usize, usize)>> {
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

fn done(outcome: Outcome) -> Pin<Box<dyn Future<Output = Outcome>>> {
    Box::pin(std::future::ready(outcome))
}

/// A response with a place for every partition, and what goes to which owner.
fn split(
    client: &Client,
    image: &Image,
    topics: Vec<ProduceTopic>,
    may_write_internal: bool,
) -> (ProduceResponse, Shares<AppendPart>) {
    let mut response = ProduceResponse { topics: Vec::with_capacity(topics.len()), ..Default::default() };
    let mut shares = Shares::new();
    for (topic_at, ProduceTopic { topic, partitions }) in topics.into_iter().enumerate() {
        let found = find_topic(image, &topic);
        let mut answers = Vec::with_capacity(partitions.len());
        for (partition_at, partition) in partitions.into_iter().enumerate() {
            let target = match &found {
                Ok(found) if found.is_internal() && !may_write_internal => {
                    Err(ErrorCode::InvalidTopicException)
                }
                Ok(found) => find_partition(&client.shard, found, partition.index),
                Err(code) => Err(*code),
            };
            match target {
                Ok(Target { key, owner }) => {
                    answers.push(ProducePartitionResponse::failed(partition.index, None));
                    let place = Place { topic: topic_at, partition: partition_at };
                    let records = partition.records.unwrap_or_default();
                    shares.add(owner, place, AppendPart { key, records, claim: Claim::Open });
                }
                Err(code) => answers.push(ProducePartitionResponse::failed(partition.index, code)),
            }
        }
        response.topics.push(ProduceTopicResponse { topic, partitions: answers });
    }
    (response, shares)
}

fn refuse_all(request: &ProduceRequest, code: ErrorCode) -> ProduceResponse {
    let topics = request.topics.iter().map(|topic| ProduceTopicResponse {
        topic: topic.topic.clone(),
        partitions: topic
            .partitions
            .iter()
            .map(|partition| ProducePartitionResponse::failed(partition.index, code))
            .collect(),
    });
    ProduceResponse { topics: topics.collect(), ..Default::default() }
}

fn partition_response(
    index: PartitionIndex,
    result: Result<AppendAnswer, AppendFailure>,
) -> ProducePartitionResponse {
    match result {
        Ok(appended) => {
            let mut response = ProducePartitionResponse::appended(index, appended.base_offset);
            response.log_append_time = appended.log_append_time;
            response.log_start_offset = appended.log_start;
            response
        }
        Err(AppendFailure::Code(code)) => ProducePartitionResponse::failed(index, code),
        Err(AppendFailure::Records(error)) => {
            let mut response = ProducePartitionResponse::failed(index, error.code);
            response.error_message = error.message;
            response.record_errors = error.record_errors;
            response
        }
    }
}

fn count_errors(client: &Client, header: &RequestHeader, response: &ProduceResponse) {
    for partition in response.topics.iter().flat_map(|topic| &topic.partitions) {
        client.shard.requests.error_code(header.api, partition.error);
    }
}

fn first_error(response: &ProduceResponse) -> Option<ErrorCode> {
    response.topics.iter().flat_map(|topic| &topic.partitions).find_map(|partition| partition.error)
}

/// Tells who leads where a partition is not led here any more (KIP-951).
fn name_leaders(client: &Client, response: &mut ProduceResponse) {
    let moved =
        |partition: &ProducePartitionResponse| partition.error == Some(ErrorCode::NotLeaderOrFollower);
    if !response.topics.iter().any(|topic| topic.partitions.iter().any(moved)) {
        return;
    }
    let image = client.shard.image();
    for topic in &mut response.topics {
        for partition in topic.partitions.iter_mut().filter(|partition| moved(partition)) {
            partition.current_leader = current_leader(&image, &topic.topic, partition.index);
        }
    }
}

/// The leader of a partition as the image has it.
pub(super) fn current_leader(
    image: &Image,
    topic: &TopicRef,
    partition: PartitionIndex,
) -> Option<CurrentLeader> {
    let topic = find_topic(image, topic).ok()?;
    let partition = super::client::partition_image(topic, partition)?;
    let epoch: LeaderEpoch = partition.leader_epoch;
    Some(CurrentLeader { id: partition.leader?, epoch })
}
