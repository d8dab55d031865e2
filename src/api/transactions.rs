//! The APIs of transactional producers and of those who watch them: AddPartitionsToTxn 0–5, AddOffsetsToTxn
//! 0–4, EndTxn 0–5, DescribeTransactions 0, ListTransactions 0–2. The coordinator on shard 0 decides; here the
//! forms of the versions are brought to one and back.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    DescribeTransactionsRequest, DescribeTransactionsResponse, EndTxnRequest, EndTxnResponse,
    ListTransactionsRequest, ListTransactionsResponse, ProducerId as WireProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;

use super::answer_room::AnswerRoom;
use super::internal_topics::CONSUMER_OFFSETS;
use super::{Client, code, markers};
use crate::base::{PartitionIndex, ProducerEpoch, ProducerId, ShardId, TopicPartition};
use crate::coordinator::transactions::{ListFilter, Producer, Request, Response, TransactionVersion};
use crate::coordinator::{compile_expression, partition_for};
use crate::io::runtime::yield_if_needed;
use crate::metadata::Image;
use crate::shard::messages::{ControlReply, ControlRequest, Reply, Request as ShardRequest};
use crate::wire::ErrorCode;
use crate::wire::header::RequestHeader;

/// From here on AddPartitionsToTxn names several transactions, and comes from brokers.
const FIRST_ADD_WITH_BATCH: i16 = 4;
/// From here on EndTxn raises the producer's epoch (KIP-890).
const FIRST_END_WITH_BUMP: i16 = 5;
/// From here on clients know PRODUCER_FENCED, in AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.
const FIRST_WITH_FENCED: i16 = 2;
/// What one transaction takes in an answer beside its id, or one of its topics beside its name, decoded and encoded.
const LISTED_BYTES: usize = 128;

/// Asks the coordinator of this node.
pub(super) async fn ask(client: &Client, request: Request) -> Response {
    let request = ShardRequest::Control(ControlRequest::Transaction(Box::new(request)));
    match client.shard.ask(ShardId::CONTROL, request).await {
        Reply::Control(ControlReply::Transaction(response)) => *response,
        _ => crate::base::fatal("a transaction request got another request's answer"),
    }
}

/// Asks the coordinator of the transactional id, on whichever broker it is, of the partitions of a transaction.
pub(super) async fn ask_anywhere(client: &Client, request: Request) -> Response {
    let request = ShardRequest::Control(ControlRequest::TransactionAnywhere(Box::new(request)));
    match client.shard.ask(ShardId::CONTROL, request).await {
        Reply::Control(ControlReply::Transaction(response)) => *response,
        _ => crate::base::fatal("a transaction request got another request's answer"),
    }
}

/// The coordinator answers each request in its kind.
pub(super) fn mismatch(response: &Response) -> ! {
    crate::base::fatal(format_args!("a transaction request got another's answer: {response:?}"))
}

/// Old clients know only INVALID_PRODUCER_EPOCH, and do the same about it.
pub(super) fn fit_fenced(error: ErrorCode, knows_fenced: bool) -> ErrorCode {
    match error {
        ErrorCode::ProducerFenced if !knows_fenced => ErrorCode::InvalidProducerEpoch,
        error => error,
    }
}

pub(super) fn producer(id: WireProducerId, epoch: i16) -> Producer {
    Producer { id: ProducerId(id.0), epoch: ProducerEpoch(epoch) }
}

pub async fn add_partitions(
    client: &Client,
    header: &RequestHeader,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    let version = header.version;
    let image = client.shard.image();
    if version < FIRST_ADD_WITH_BATCH {
        let transaction = AddPartitionsToTxnTransaction::default()
            .with_transactional_id(request.v3_and_below_transactional_id)
            .with_producer_id(request.v3_and_below_producer_id)
            .with_producer_epoch(request.v3_and_below_producer_epoch)
            .with_topics(request.v3_and_below_topics);
        let result = add_one(client, &image, version, transaction).await;
        return AddPartitionsToTxnResponse::default()
            .with_results_by_topic_v3_and_below(result.topic_results);
    }
    if !client.is_alone() && client.broker().is_none() {
        let code = ErrorCode::ClusterAuthorizationFailed.code();
        return AddPartitionsToTxnResponse::default().with_error_code(code);
    }
    let transactions = request.transactions.into_iter();
    let results = join_all(transactions.map(|transaction| add_one(client, &image, version, transaction)));
    AddPartitionsToTxnResponse::default().with_results_by_transaction(results.await)
}

async fn add_one(
    client: &Client,
    image: &Image,
    version: i16,
    transaction: AddPartitionsToTxnTransaction,
) -> AddPartitionsToTxnResult {
    let id = transaction.transactional_id.0;
    let topics = transaction.topics;
    let answer = |of: &dyn Fn(&TopicPartition) -> Option<ErrorCode>| {
        AddPartitionsToTxnResult::default()
            .with_transactional_id(TransactionalId(id.clone()))
            .with_topic_results(topics.iter().map(|topic| topic_result(topic, of)).collect())
    };
    let partitions = partitions_of(&topics);
    let is_there = |partition: &TopicPartition| markers::find(image, partition).is_some();
    if !partitions.iter().all(is_there) {
        // One that is not there, and nothing is added.
        return answer(&|partition| match is_there(partition) {
            true => Some(ErrorCode::OperationNotAttempted),
            false => Some(ErrorCode::UnknownTopicOrPartition),
        });
    }
    let producer = producer(transaction.producer_id, transaction.producer_epoch);
    if transaction.verify_only {
        let request = Request::VerifyPartitions { id: id.clone(), producer, partitions };
        return match ask(client, request).await {
            Response::VerifyPartitions(Ok(missing)) => {
                answer(&|partition| missing.contains(partition).then_some(ErrorCode::TransactionAbortable))
            }
            Response::VerifyPartitions(Err(error)) => answer(&|_| Some(error)),
            other => mismatch(&other),
        };
    }
    let version_of_client = match version {
        FIRST_ADD_WITH_BATCH.. => TransactionVersion::V2,
        _ => TransactionVersion::V0,
    };
    let request = Request::AddPartitions { id: id.clone(), producer, partitions, version: version_of_client };
    match ask(client, request).await {
        Response::AddPartitions(result) => {
            let error = result.err().map(|error| fit_fenced(error, version >= FIRST_WITH_FENCED));
            answer(&|_| error)
        }
        other => mismatch(&other),
    }
}

fn partitions_of(topics: &[AddPartitionsToTxnTopic]) -> BTreeSet<TopicPartition> {
    let named = topics.iter().flat_map(|topic| topic.partitions.iter().map(|index| (&topic.name, *index)));
    named.map(|(name, index)| TopicPartition::new(&*name.0, PartitionIndex(index))).collect()
}

fn topic_result(
    topic: &AddPartitionsToTxnTopic,
    of: &dyn Fn(&TopicPartition) -> Option<ErrorCode>,
) -> AddPartitionsToTxnTopicResult {
    let partitions = topic.partitions.iter().map(|index| {
        let partition = TopicPartition::new(&*topic.name.0, PartitionIndex(*index));
        AddPartitionsToTxnPartitionResult::default()
            .with_partition_index(*index)
            .with_partition_error_code(code(of(&partition)))
    });
    AddPartitionsToTxnTopicResult::default()
        .with_name(topic.name.clone())
        .with_results_by_partition(partitions.collect())
}

/// The partition of the offsets topic that keeps a group.
pub(super) fn offsets_partition(client: &Client, image: &Image, group: &str) -> TopicPartition {
    let there = image.topic(CONSUMER_OFFSETS).map(|topic| topic.partitions.len() as i32);
    let count = there.filter(|count| *count > 0);
    let count = count.unwrap_or(client.shard.config().groups.offsets_topic_partitions);
    TopicPartition::new(CONSUMER_OFFSETS, partition_for(group, count))
}

pub async fn add_offsets(
    client: &Client,
    header: &RequestHeader,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse {
    let partition = offsets_partition(client, &client.shard.image(), &request.group_id);
    let request = Request::AddPartitions {
        id: request.transactional_id.0,
        producer: producer(request.producer_id, request.producer_epoch),
        partitions: BTreeSet::from([partition]),
        // With transactions v2 the commit itself adds its partition.
        version: TransactionVersion::V0,
    };
    match ask(client, request).await {
        Response::AddPartitions(result) => {
            let error = result.err().map(|error| fit_fenced(error, header.version >= FIRST_WITH_FENCED));
            AddOffsetsToTxnResponse::default().with_error_code(code(error))
        }
        other => mismatch(&other),
    }
}

pub async fn end(client: &Client, header: &RequestHeader, request: EndTxnRequest) -> EndTxnResponse {
    let bumps = header.version >= FIRST_END_WITH_BUMP;
    let request = Request::End {
        id: request.transactional_id.0,
        producer: producer(request.producer_id, request.producer_epoch),
        commit: request.committed,
        version: if bumps { TransactionVersion::V2 } else { TransactionVersion::V0 },
    };
    match ask(client, request).await {
        Response::End(result) => fit_end(header.version, result),
        other => mismatch(&other),
    }
}

fn fit_end(version: i16, result: Result<Producer, ErrorCode>) -> EndTxnResponse {
    match result {
        Ok(next) if version >= FIRST_END_WITH_BUMP => EndTxnResponse::default()
            .with_producer_id(WireProducerId(next.id.0))
            .with_producer_epoch(next.epoch.0),
        Ok(_) => EndTxnResponse::default(),
        Err(error) => {
            let error = fit_fenced(error, version >= FIRST_WITH_FENCED);
            EndTxnResponse::default().with_error_code(error.code())
        }
    }
}

pub async fn describe(client: &Client, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse {
    let mut room = AnswerRoom::new(client);
    let mut states = Vec::with_capacity(request.transactional_ids.len());
    for id in request.transactional_ids {
        let too_long = TransactionState::default()
            .with_transactional_id(id.clone())
            .with_error_code(ErrorCode::InvalidRequest.code());
        if room.is_cut() {
            states.push(too_long);
            continue;
        }
        let state = match ask(client, Request::Describe(id.0)).await {
            Response::Describe(state) => state,
            other => mismatch(&other),
        };
        let topic = |topic: &TopicData| LISTED_BYTES + topic.topic.len() + 8 * topic.partitions.len();
        let bytes = state.transactional_id.len() + state.topics.iter().map(topic).sum::<usize>();
        let fits = room.add(LISTED_BYTES + bytes).await;
        states.push(if fits { state } else { too_long });
    }
    DescribeTransactionsResponse::default().with_transaction_states(states)
}

/// Asks for some at a time, so that the coordinator serves others in between.
pub async fn list(client: &Client, request: ListTransactionsRequest) -> ListTransactionsResponse {
    let failed = |code: ErrorCode| ListTransactionsResponse::default().with_error_code(code.code());
    let pattern = request.transactional_id_pattern.as_deref().filter(|pattern| !pattern.is_empty());
    let Ok(pattern) = pattern.map(compile_expression).transpose() else {
        return failed(ErrorCode::InvalidRegularExpression);
    };
    let (filter, unknown_states) = filter_of(&request).await;
    let filter = Arc::new(filter);
    let mut room = AnswerRoom::new(client);
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let (listed, next) = match ask(client, Request::List { filter: filter.clone(), after }).await {
            Response::List(Ok(listed)) => listed,
            Response::List(Err(error)) => return failed(error),
            other => mismatch(&other),
        };
        let mut bytes = 0;
        for transaction in listed {
            let id = &transaction.transactional_id;
            if pattern.as_ref().is_none_or(|pattern| pattern.is_match(id)) {
                bytes += LISTED_BYTES + id.len();
                all.push(transaction);
            }
            // An id may have 32 KiB, and each byte of it may take an expression a µs.
            yield_if_needed().await;
        }
        if !room.add(bytes).await {
            return failed(ErrorCode::InvalidRequest);
        }
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    ListTransactionsResponse::default()
        .with_transaction_states(all)
        .with_unknown_state_filters(unknown_states)
}

/// What a request asks for by state, producer and age, and the states that there are none of.
async fn filter_of(request: &ListTransactionsRequest) -> (ListFilter, Vec<StrBytes>) {
    let mut filter = ListFilter::new(request.duration_filter);
    let mut unknown = Vec::new();
    for name in &request.state_filters {
        if !filter.add_state(name) {
            unknown.push(name.clone());
        }
        yield_if_needed().await;
    }
    for id in &request.producer_id_filters {
        filter.add_producer(ProducerId(id.0));
        yield_if_needed().await;
    }
    (filter, unknown)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::TopicName;
    use kafka_protocol::messages::list_transactions_response::TransactionState as Listed;
    use kafka_protocol::protocol::{Encodable, HeaderVersion};

    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    fn encodes(version: i16, response: &(impl Encodable + HeaderVersion)) {
        let encoded = guard::encode(version, CorrelationId(1), response);
        assert!(encoded.is_ok(), "version {version}: {encoded:?}");
    }

    #[test]
    fn every_version_can_be_encoded() {
        let topic = AddPartitionsToTxnTopic::default()
            .with_name(TopicName(StrBytes::from_static_str("t")))
            .with_partitions(vec![0, 1]);
        let result = topic_result(&topic, &|partition| {
            (partition.partition.0 == 1).then_some(ErrorCode::OperationNotAttempted)
        });
        assert_eq!(result.results_by_partition[1].partition_error_code, 55);
        for version in 0..=5 {
            let response = AddPartitionsToTxnResponse::default();
            encodes(
                version,
                &match version {
                    FIRST_ADD_WITH_BATCH.. => response.with_results_by_transaction(vec![
                        AddPartitionsToTxnResult::default().with_topic_results(vec![result.clone()]),
                    ]),
                    _ => response.with_results_by_topic_v3_and_below(vec![result.clone()]),
                },
            );
            let next = Producer { id: ProducerId(7), epoch: ProducerEpoch(1) };
            encodes(version, &fit_end(version, Ok(next)));
            encodes(version, &fit_end(version, Err(ErrorCode::ProducerFenced)));
        }
        for version in 0..=4 {
            encodes(version, &AddOffsetsToTxnResponse::default().with_error_code(51));
        }
        let listed = Listed::default().with_transactional_id(TransactionalId(StrBytes::new()));
        for version in 0..=2 {
            encodes(
                version,
                &ListTransactionsResponse::default().with_transaction_states(vec![listed.clone()]),
            );
        }
        let described = TransactionState::default().with_error_code(105);
        encodes(0, &DescribeTransactionsResponse::default().with_transaction_states(vec![described]));
    }

    #[test]
    fn old_clients_are_told_of_a_fenced_producer_in_their_words() {
        let fenced = |version| fit_end(version, Err(ErrorCode::ProducerFenced)).error_code;
        assert_eq!((fenced(1), fenced(2)), (47, 90));
    }
}
