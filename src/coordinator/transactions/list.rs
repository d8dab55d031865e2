//! What administrators ask for: DescribeTransactions and ListTransactions (KIP-664).

use std::collections::BTreeMap;

use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::list_transactions_response::TransactionState as ListedTransaction;
use kafka_protocol::messages::{
    ListTransactionsRequest, ListTransactionsResponse, ProducerId as WireProducerId, TopicName,
    TransactionalId,
};
use kafka_protocol::protocol::StrBytes;

use super::machine::{Coordinator, Entry, Step, Then};
use super::state::{State, Transaction};
use crate::base::clock::Timestamp;
use crate::wire::ErrorCode;

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
    pub(super) fn list(&self, request: &ListTransactionsRequest, now: Timestamp) -> ListTransactionsResponse {
        if self.partitions.values().any(|partition| partition.is_loading) {
            let code = ErrorCode::CoordinatorLoadInProgress.code();
            return ListTransactionsResponse::default().with_error_code(code);
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
        let entries = self.partitions.values().flat_map(|partition| &partition.entries);
        let listed = entries
            .filter_map(|(id, entry)| Some((id, shown(entry)?)))
            .filter(|(_, transaction)| is_asked_for(transaction))
            .map(|(id, transaction)| {
                ListedTransaction::default()
                    .with_transactional_id(TransactionalId(id.clone()))
                    .with_producer_id(WireProducerId(transaction.producer_id.0))
                    .with_transaction_state(StrBytes::from_static_str(transaction.state.name()))
            });
        ListTransactionsResponse::default()
            .with_transaction_states(listed.collect())
            .with_unknown_state_filters(unknown.into_iter().cloned().collect())
    }
}
