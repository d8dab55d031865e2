//! What administrators ask for: DescribeTransactions and ListTransactions (KIP-664).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;

use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::list_transactions_response::TransactionState as ListedTransaction;
use kafka_protocol::messages::{ProducerId as WireProducerId, TopicName, TransactionalId};
use kafka_protocol::protocol::StrBytes;

use super::interface::{ListCursor, Response};
use super::machine::Coordinator;
use super::partition::{Entry, Step, Then};
use super::state::{State, Transaction};
use crate::base::clock::Timestamp;
use crate::base::{PartitionIndex, ProducerId};
use crate::wire::ErrorCode;

/// Transactional ids that one call looks at.
const LISTED_MAX: usize = 2048;

/// Which transactions are asked for: made once, however many ids are looked at. A request may name 200,000 producers.
#[derive(Clone, PartialEq, Debug)]
pub struct ListFilter {
    states: Option<BTreeSet<State>>,
    producers: Option<HashSet<ProducerId, ahash::RandomState>>,
    longer_than_ms: Option<i64>,
}

impl ListFilter {
    /// All whose transaction began more than so many ms ago; those that have none began at the beginning of time, as in
    /// Kafka. All there are when `longer_than_ms` is negative.
    pub fn new(longer_than_ms: i64) -> Self {
        let longer_than_ms = (longer_than_ms >= 0).then_some(longer_than_ms);
        Self { states: None, producers: None, longer_than_ms }
    }

    /// Only those in this state, or another that is named. False if there is no such state: of those there are none.
    pub fn add_state(&mut self, name: &str) -> bool {
        let states = self.states.get_or_insert_default();
        match State::from_name(name) {
            Some(state) => {
                states.insert(state);
                true
            }
            None => false,
        }
    }

    /// Only this producer's, or another's that is named.
    pub fn add_producer(&mut self, id: ProducerId) {
        self.producers.get_or_insert_default().insert(id);
    }

    fn lets_through(&self, transaction: &Transaction, now: Timestamp) -> bool {
        let age_ms = now.0.saturating_sub(transaction.started_at.0);
        self.states.as_ref().is_none_or(|states| states.contains(&transaction.state))
            && self.producers.as_ref().is_none_or(|producers| producers.contains(&transaction.producer_id))
            && self.longer_than_ms.is_none_or(|longer_than_ms| age_ms > longer_than_ms)
    }
}

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
    pub(super) fn list(&self, filter: &ListFilter, after: Option<&ListCursor>, now: Timestamp) -> Response {
        if self.partitions.values().any(|partition| partition.is_loading) {
            return Response::List(Err(ErrorCode::CoordinatorLoadInProgress));
        }
        let mut listed = Vec::new();
        let mut last = None;
        let mut next = None;
        for (looked_at, (partition, id, entry)) in self.entries_behind(after).enumerate() {
            if looked_at == LISTED_MAX {
                next = last;
                break;
            }
            last = Some(ListCursor { partition, id: id.clone() });
            if let Some(transaction) =
                shown(entry).filter(|transaction| filter.lets_through(transaction, now))
            {
                listed.push(
                    ListedTransaction::default()
                        .with_transactional_id(TransactionalId(id.clone()))
                        .with_producer_id(WireProducerId(transaction.producer_id.0))
                        .with_transaction_state(StrBytes::from_static_str(transaction.state.name())),
                );
            }
        }
        Response::List(Ok((listed, next)))
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
