//! Produce. [`begin`] parses in place, splits by owner shard and queues every batch at its owner; what it
//! returns waits for the owners' answers. Two requests of a connection are queued one after the other, so
//! their batches reach each owner in order: those that must wait, because a transaction is looked at first or one
//! before them waits, in the connection's [`Line`](super::line::Line).

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::channel::oneshot;

use super::client::{Target, find_partition, find_topic};
use super::shares::{Place, Share, Shares};
use super::throttle::Timed;
use super::transactional::{Transaction, find_transaction, verify_shares};
use super::verification::{Operation, produce_failure};
use super::{Client, CloseReason, Outcome, answer, malformed};
use crate::base::clock;
use crate::base::{LeaderEpoch, PartitionIndex};
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

/// Kafka's own clients may write to internal topics with this client id alone (`AdminUtils`).
const ADMIN_CLIENT_ID: &[u8] = b"__admin_client";

/// A request whose batches are to be queued.
struct Plan {
    version: i16,
    acks: Acks,
    timeout: Duration,
    image: Arc<Image>,
    transaction: Option<Transaction>,
    shares: Vec<Share<AppendPart, Place>>,
    /// With what is known already.
    response: ProduceResponse,
}

/// A request whose batches stand in their owners' queues.
struct Queued {
    sent: Vec<SentShare>,
    response: ProduceResponse,
    /// How long its transaction was looked for.
    verified: Duration,
}

struct SentShare {
    pending: PendingReply,
    places: Vec<Place>,
}

/// Begins a produce request: when this returns, its batches stand in their owners' queues, or it has its place in the
/// connection's line.
pub async fn begin(
    client: &Rc<Client>,
    header: &RequestHeader,
    body: Bytes,
) -> Pin<Box<dyn Future<Output = Outcome>>> {
    if !client.is_timed(header) {
        return begin_untimed(client, header, body).await;
    }
    let mut beginning = Timed::new(client, Duration::ZERO, Box::pin(begin_untimed(client, header, body)));
    let future = (&mut beginning).await;
    let written = clock::monotonic();
    // The write is the greater part of it: not left to a turn in which others have theirs.
    client.shard.end_turn();
    let spent = beginning.spent() + clock::monotonic().since(written);
    Box::pin(Timed::new(client, spent, future))
}

async fn begin_untimed(
    client: &Rc<Client>,
    header: &RequestHeader,
    body: Bytes,
) -> Pin<Box<dyn Future<Output = Outcome>>> {
    let request = match ProduceRequest::decode(header.version, &body) {
        Ok(request) => request,
        Err(error) => return done(malformed(header, error)),
    };
    client.count_produce(header, request_bytes(header, &body));
    drop(body);
    let acks = match request.acks {
        produce::Acks::None => Acks::None,
        produce::Acks::Leader => Acks::Leader,
        produce::Acks::All => Acks::All,
        produce::Acks::Invalid(_) => {
            let response = refuse_all(&request, ErrorCode::InvalidRequiredAcks);
            count_errors(client, header, &response);
            return done(acknowledge(client, header, response));
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
            return done(acknowledge(client, header, response));
        }
    };
    let image = client.shard.image();
    let may_write_internal = header.client_id.as_deref() == Some(ADMIN_CLIENT_ID);
    let (response, shares) = split(client, &image, request.topics, may_write_internal);
    let plan = Plan {
        version: header.version,
        acks,
        timeout: Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)),
        image,
        transaction,
        shares: shares.into_vec(),
        response,
    };
    let (client, header) = (client.clone(), header.clone());
    if plan.transaction.is_none() && !client.line.is_busy() {
        let queued = queue(&client, plan).await;
        return Box::pin(async move { finish(&client, &header, acks, queued).await });
    }
    let (tell, queued) = oneshot::channel();
    let (line, shard) = (client.line.clone(), client.shard.clone());
    let queueing = {
        let client = client.clone();
        // Nobody listens when the connection has ended; what is queued is written all the same.
        async move { drop(tell.send(queue(&client, plan).await)) }
    };
    line.join(Box::pin(queueing), move || shard.end_turn()).await;
    Box::pin(async move {
        match queued.await {
            Ok(queued) => finish(&client, &header, acks, queued).await,
            // It was dropped with the connection, or with the shard.
            Err(oneshot::Canceled) => std::future::pending().await,
        }
    })
}

/// Gives each owner its batches, once it is known that their transaction has their partitions.
async fn queue(client: &Rc<Client>, plan: Plan) -> Queued {
    let Plan { version, acks, timeout, image, transaction, mut shares, mut response } = plan;
    let mut verified = Duration::ZERO;
    if let Some(transaction) = transaction {
        let start = clock::monotonic();
        verify_shares(client, version, &image, transaction, timeout, &mut shares, &mut response).await;
        verified = clock::monotonic().since(start);
    }
    let mut sent = Vec::with_capacity(shares.len());
    for Share { owner, parts, places } in shares {
        if parts.is_empty() {
            continue;
        }
        let bytes = parts.iter().map(|part| part.records.len() as u64).sum();
        client.leaning.borrow_mut().note(owner, bytes);
        let append = AppendRequest { parts, acks, origin: Origin::Client, produce_version: version, timeout };
        let pending = client.shard.send(owner, Request::Append(append)).await;
        sent.push(SentShare { pending, places });
    }
    Queued { sent, response, verified }
}

/// Waits for the owners' answers.
async fn finish(client: &Rc<Client>, header: &RequestHeader, acks: Acks, queued: Queued) -> Outcome {
    let Queued { sent, mut response, verified } = queued;
    let mut longest_wait = Duration::ZERO;
    for SentShare { pending, places } in sent {
        let Reply::Append(AppendReply { parts, spent, waited }) = pending.await else {
            crate::base::fatal("an append got another request's answer");
        };
        drop(spent);
        longest_wait = longest_wait.max(waited);
        for (Place { topic, partition }, result) in places.into_iter().zip(parts) {
            let partition = &mut response.topics[topic].partitions[partition];
            *partition = partition_response(partition.index, header.version, result);
        }
    }
    client.note_waited(verified + longest_wait);
    count_errors(client, header, &response);
    if acks == Acks::None {
        client.throttle_produce(header, false);
        return match first_error(&response) {
            None => Outcome::Silent,
            Some(code) => Outcome::Close(CloseReason::UnacknowledgedFailure(code)),
        };
    }
    name_leaders(client, &mut response);
    acknowledge(client, header, response)
}

fn acknowledge(client: &Client, header: &RequestHeader, mut response: ProduceResponse) -> Outcome {
    response.throttle_ms = client.throttle_produce(header, true);
    answer(header, response.encode(header.version, header.correlation_id))
}

/// The length of the request without its prefix, which is what a quota counts; but for tagged fields of the header.
fn request_bytes(header: &RequestHeader, body: &Bytes) -> usize {
    const FIXED: usize = 10;
    let tags = usize::from(header.version >= header.api.flexible);
    FIXED + header.client_id.as_ref().map_or(0, Bytes::len) + tags + body.len()
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
                    shares.add(
                        owner,
                        place,
                        AppendPart { key, epoch: LeaderEpoch::NONE, records, claim: Claim::Open },
                    );
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
    version: i16,
    result: Result<AppendAnswer, AppendFailure>,
) -> ProducePartitionResponse {
    match result {
        Ok(appended) => {
            let mut response = ProducePartitionResponse::appended(index, appended.base_offset);
            response.log_append_time = appended.log_append_time;
            response.log_start_offset = appended.log_start;
            response
        }
        Err(AppendFailure::Code(code)) => {
            let (code, message) = match code {
                ErrorCode::ConcurrentTransactions => produce_failure(code, Operation::of_produce(version)),
                code => (code, None),
            };
            let mut response = ProducePartitionResponse::failed(index, code);
            response.error_message = message;
            response
        }
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
