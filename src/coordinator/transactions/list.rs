//! What administrators ask for: DescribeTransactions and ListTransactions (KIP-664).

use std::collections::BTreeMap;
use std::ops::Bound;

use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::list_transactions_response::TransactionState as ListedTransaction;
use kafka_protocol::messages::{
    ListTransactionsRequest, ListTransactionsResponse, ProducerId as WireProducerId, TopicName,
    TransactionalId,
};
use kafka_protocol::protocol::StrBytes;

use super::interface::{ListCursor, Response};
use super::machine::Coordinator;
use super::partition::{Entry, Step, Then};
use super::state::{State, Transaction};
use crate::base::PartitionIndex;
use crate::base::clock::Timestamp;
use crate::wire::ErrorCode;

/// Transactional ids that one call looks at.
const LISTED_MAX: usize = 2048;

pub(super) fn describe(id: &StrBytes, entry: Option<&Entry>) -> TransactionState {
    let described = TransactionState::default().with_transactional_id(TransactionalId(id.clone()));
    let Some(transaction) = entry.and_then(shown) else {
        return described.with_error_code(ErrorCode::TransactionalIdNotFound.code());
    };
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for partition in &transaction.partitions {
        topics.entry(&partition.topic).or_default().push(partition.partition.0);
    }
    let topics = topics.into_iter().map(|(topic, partitions)| {
        let name = TopicName(StrBytes::from_string(topic.to_owned()));
        TopicData::default().with_topic(name).with_partitions(partitions)
    });
    described
        .with_producer_id(WireProducerId(transaction.producer_id.0))
        .with_producer_epoch(transaction.epoch.0)
        .with_transaction_state(StrBytes::from_static_str(transaction.state.name()))
        .with_transaction_timeout_ms(transaction.timeout_ms)
        .with_transaction_start_time_ms(transaction.started_at.0)
        .with_topics(topics.collect())
}

/// The state to tell: none of an id that is on its way in or out.
fn shown(entry: &Entry) -> Option<&Transaction> {
    match entry.step {
        Step::Append { then: Then::Expire, .. } => None,
        _ => entry.current.as_ref(),
    }
}

impl Coordinator {
    /// The transactions behind `after` that are asked for, of some ids at a time.
    pub(super) fn list(
        &self,
        request: &ListTransactionsRequest,
        after: Option<&ListCursor>,
        now: Timestamp,
    ) -> Response {
        if self.partitions.values().any(|partition| partition.is_loading) {
            let code = ErrorCode::CoordinatorLoadInProgress.code();
            let response = ListTransactionsResponse::default().with_error_code(code);
            return Response::List { response, next: None };
        }
        let (known, unknown): (Vec<_>, Vec<_>) =
            request.state_filters.iter().partition(|name| State::from_name(name).is_some());
        let states: Vec<State> = known.into_iter().filter_map(|name| State::from_name(name)).collect();
        let is_asked_for = |transaction: &Transaction| {
            let producer = WireProducerId(transaction.producer_id.0);
            (request.state_filters.is_empty() || states.contains(&transaction.state))
                && (request.producer_id_filters.is_empty() || request.producer_id_filters.contains(&producer))
                && (request.duration_filter < 0
                    || now.0.saturating_sub(transaction.started_at.0) > request.duration_filter)
        };
        let mut listed = Vec::new();
        let mut last = None;
        let mut next = None;
        for (looked_at, (partition, id, entry)) in self.entries_behind(after).enumerate() {
            if looked_at == LISTED_MAX {
                next = last;
                break;
            }
            last = Some(ListCursor { partition, id: id.clone() });
            if let Some(transaction) = shown(entry).filter(|transaction| is_asked_for(transaction)) {
                listed.push(
                    ListedTransaction::default()
                        .with_transactional_id(TransactionalId(id.clone()))
                        .with_producer_id(WireProducerId(transaction.producer_id.0))
                        .with_transaction_state(StrBytes::from_static_str(transaction.state.name())),
                );
            }
        }
        let response = ListTransactionsResponse::default()
            .with_transaction_states(listed)
            .with_unknown_state_filters(unknown.into_iter().cloned().collect());
        Response::List { response, next }
    }

    fn entries_behind(
        &self,
        after: Option<&ListCursor>,
    ) -> impl Iterator<Item = (PartitionIndex, &StrBytes, &Entry)> {
        let first = after.map_or(PartitionIndex(0), |after| after.partition);
        self.partitions.range(first..).flat_map(move |(index, partition)| {
            let from = match after {
                Some(after) if after.partition == *index => Bound::Excluded(&after.id),
                _ => Bound::Unbounded,
            };
            let entries = partition.entries.range::<StrBytes, _>((from, Bound::Unbounded));
            entries.map(move |(id, entry)| (*index, id, entry))
        })
    }
}
