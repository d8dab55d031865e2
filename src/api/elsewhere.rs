//! Transactions that reach over several brokers: markers for partitions that others lead, partitions of transactions
//! that others coordinate. Lives on shard 0, beside the transaction coordinator.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use futures::future::{join, join_all};
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{ProducerId as WireProducerId, TopicName, TransactionalId};
use kafka_protocol::protocol::StrBytes;

use super::brokers::Brokers;
use super::client::partition_image;
use super::internal_topics::TRANSACTION_STATE;
use super::markers::{self, Results, Round, Writer};
use super::questions::{Question, Questions};
use crate::base::{BrokerId, PartitionIndex, ProducerId, TopicPartition};
use crate::coordinator::transactions::{Marker, Producer, Request, Response};
use crate::metadata::Image;
use crate::shard::Shard;
use crate::wire::ErrorCode;
use crate::wire::between::{self, PartitionErrors};
use crate::wire::header::CorrelationId;
use crate::wire::newer::TxnMarker;
use crate::wire::read::DecodeError;
use crate::wire::write::EncodeError;

pub(super) struct Elsewhere {
    shard: Rc<Shard>,
    markers: Rc<Questions<Marking>>,
    additions: Rc<Questions<Addition>>,
}

impl Elsewhere {
    /// `None` on a node alone.
    pub(super) fn new(shard: &Rc<Shard>) -> Option<Self> {
        let brokers = Brokers::new(shard)?;
        let (markers, additions) = (Questions::new(&brokers), Questions::new(&brokers));
        Some(Self { shard: shard.clone(), markers, additions })
    }

    /// The other broker that coordinates what is kept in this partition of `__transaction_state`.
    pub(super) fn coordinator(&self, partition: PartitionIndex) -> Option<BrokerId> {
        let image = self.shard.image();
        let topic = image.topic(TRANSACTION_STATE)?;
        self.other(partition_image(topic, partition)?.leader)
    }

    fn other(&self, leader: Option<BrokerId>) -> Option<BrokerId> {
        leader.filter(|leader| *leader != self.shard.settings().broker)
    }

    /// Writes markers as [`markers::write`] does, those of other leaders' partitions there.
    pub(super) async fn write(&self, image: &Image, rounds: Vec<Round>) -> Vec<Results> {
        let (mut here, mut there) = (Vec::with_capacity(rounds.len()), Vec::new());
        for (number, Round { marker, partitions }) in rounds.into_iter().enumerate() {
            let (own, of_others) = self.by_leader(image, partitions);
            here.push(Round { marker, partitions: own });
            there.extend(of_others.into_iter().map(|(broker, partitions)| async move {
                (number, self.markers.ask(broker, Marking { marker, partitions }).await)
            }));
        }
        let here = markers::write(&self.shard, image, Writer::Own, here);
        let (mut results, there) = join(here, join_all(there)).await;
        for (number, written) in there {
            results[number].extend(written);
        }
        results
    }

    /// Those that this broker leads or nobody, and those of each other one.
    fn by_leader(
        &self,
        image: &Image,
        partitions: BTreeSet<TopicPartition>,
    ) -> (BTreeSet<TopicPartition>, BTreeMap<BrokerId, BTreeSet<TopicPartition>>) {
        let mut of_others: BTreeMap<BrokerId, BTreeSet<TopicPartition>> = BTreeMap::new();
        let mut own = BTreeSet::new();
        for partition in partitions {
            let found = image.topic(&partition.topic).and_then(|it| partition_image(it, partition.partition));
            match self.other(found.and_then(|found| found.leader)) {
                Some(broker) => of_others.entry(broker).or_default().insert(partition),
                None => own.insert(partition),
            };
        }
        (own, of_others)
    }

    /// Asks the coordinator on another broker to add partitions, or whether they were added.
    pub(super) async fn ask(&self, coordinator: BrokerId, request: Request) -> Response {
        let addition = match request {
            Request::AddPartitions { id, producer, partitions, .. } => {
                Addition { id, producer, partitions, verify_only: false }
            }
            Request::VerifyPartitions { id, producer, partitions } => {
                Addition { id, producer, partitions, verify_only: true }
            }
            other => crate::base::fatal(format_args!("only clients bring this to a coordinator: {other:?}")),
        };
        self.additions.ask(coordinator, addition).await
    }
}

/// The end of a transaction on partitions that another broker leads.
struct Marking {
    marker: Marker,
    partitions: BTreeSet<TopicPartition>,
}

impl Question for Marking {
    type Answer = Results;
    type Key = ProducerId;

    fn key(&self) -> ProducerId {
        self.marker.producer.id
    }

    fn weight(&self) -> usize {
        self.partitions.len()
    }

    fn write(questions: &[Self], correlation: CorrelationId) -> Result<Bytes, EncodeError> {
        let markers = questions.iter().map(|Marking { marker, partitions }| {
            let topics = by_topic(partitions).into_iter().map(|(name, indexes)| {
                WritableTxnMarkerTopic::default().with_name(name).with_partition_indexes(indexes)
            });
            let written = WritableTxnMarker::default()
                .with_producer_id(WireProducerId(marker.producer.id.0))
                .with_producer_epoch(marker.producer.epoch.0)
                .with_transaction_result(marker.commit)
                .with_topics(topics.collect())
                .with_coordinator_epoch(marker.coordinator_epoch);
            TxnMarker { marker: written, transaction_version: marker.version.level() as i8 }
        });
        between::write_txn_markers(correlation, &markers.collect::<Vec<_>>())
    }

    fn read(questions: &[Self], answer: &Bytes) -> Result<Vec<Results>, DecodeError> {
        let mut told = between::read_txn_markers(answer)?;
        let results = questions.iter().map(|question| {
            let errors = told.remove(&WireProducerId(question.key().0)).unwrap_or_default();
            let result = |partition: &TopicPartition| match errors.get(partition) {
                Some(None) => Ok(()),
                Some(Some(error)) => Err(*error),
                None => Err(ErrorCode::UnknownServerError),
            };
            question.partitions.iter().map(|partition| (partition.clone(), result(partition))).collect()
        });
        Ok(results.collect())
    }

    fn failed(&self, error: ErrorCode) -> Results {
        self.partitions.iter().map(|partition| (partition.clone(), Err(error))).collect()
    }
}

/// Partitions for a transaction that another broker coordinates.
struct Addition {
    id: StrBytes,
    producer: Producer,
    partitions: BTreeSet<TopicPartition>,
    /// They are to be there already.
    verify_only: bool,
}

impl Addition {
    fn answer(&self, errors: &PartitionErrors) -> Response {
        let of = |partition: &TopicPartition| {
            errors.get(partition).copied().unwrap_or(Some(ErrorCode::UnknownServerError))
        };
        let is_missing = |error: &ErrorCode| self.verify_only && *error == ErrorCode::TransactionAbortable;
        let failed: Vec<ErrorCode> =
            self.partitions.iter().filter_map(of).filter(|error| !is_missing(error)).collect();
        // Where one is not there the others are told that nothing was tried.
        let cause = failed.iter().find(|error| **error != ErrorCode::OperationNotAttempted);
        match (cause.or(failed.first()), self.verify_only) {
            (Some(error), _) => self.failed(*error),
            (None, false) => Response::AddPartitions(Ok(())),
            (None, true) => {
                let missing = self.partitions.iter().filter(|partition| of(partition).is_some());
                Response::VerifyPartitions(Ok(missing.cloned().collect()))
            }
        }
    }
}

impl Question for Addition {
    type Answer = Response;
    type Key = StrBytes;

    fn key(&self) -> StrBytes {
        self.id.clone()
    }

    fn weight(&self) -> usize {
        self.partitions.len()
    }

    fn write(questions: &[Self], correlation: CorrelationId) -> Result<Bytes, EncodeError> {
        let transactions = questions.iter().map(|question| {
            let topics = by_topic(&question.partitions).into_iter().map(|(name, indexes)| {
                AddPartitionsToTxnTopic::default().with_name(name).with_partitions(indexes)
            });
            AddPartitionsToTxnTransaction::default()
                .with_transactional_id(TransactionalId(question.id.clone()))
                .with_producer_id(WireProducerId(question.producer.id.0))
                .with_producer_epoch(question.producer.epoch.0)
                .with_verify_only(question.verify_only)
                .with_topics(topics.collect())
        });
        between::add_partitions_to_txn(correlation, transactions.collect())
    }

    fn read(questions: &[Self], answer: &Bytes) -> Result<Vec<Response>, DecodeError> {
        let told = between::read_add_partitions_to_txn(answer)?;
        let answers = questions.iter().map(|question| match told.error {
            // Kafka's word for it: a producer is not to hear that brokers do not know each other.
            Some(ErrorCode::ClusterAuthorizationFailed) => question.failed(ErrorCode::InvalidTxnState),
            Some(error) => question.failed(error),
            None => match told.transactions.get(&*question.id) {
                Some(errors) => question.answer(errors),
                None => question.failed(ErrorCode::UnknownServerError),
            },
        });
        Ok(answers.collect())
    }

    fn failed(&self, error: ErrorCode) -> Response {
        match self.verify_only {
            true => Response::VerifyPartitions(Err(error)),
            false => Response::AddPartitions(Err(error)),
        }
    }
}

fn by_topic(partitions: &BTreeSet<TopicPartition>) -> Vec<(TopicName, Vec<i32>)> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        topics.entry(&partition.topic).or_default().push(partition.partition.0);
    }
    let wire = |(name, indexes): (&str, _)| (TopicName(StrBytes::from_string(name.to_owned())), indexes);
    topics.into_iter().map(wire).collect()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::AddPartitionsToTxnResponse;
    use kafka_protocol::messages::WriteTxnMarkersResponse;
    use kafka_protocol::messages::add_partitions_to_txn_response::{
        AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
    };
    use kafka_protocol::messages::write_txn_markers_response::{
        WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
    };

    use super::*;
    use crate::base::ProducerEpoch;
    use crate::coordinator::transactions::TransactionVersion;
    use crate::wire::guard;

    fn at(index: i32) -> TopicPartition {
        TopicPartition::new("t", PartitionIndex(index))
    }

    fn producer(id: i64) -> Producer {
        Producer { id: ProducerId(id), epoch: ProducerEpoch(4) }
    }

    fn marking(id: i64, indexes: &[i32]) -> Marking {
        let version = TransactionVersion::V2;
        let marker = Marker { producer: producer(id), commit: true, coordinator_epoch: 3, version };
        Marking { marker, partitions: indexes.iter().copied().map(at).collect() }
    }

    #[test]
    fn each_marker_finds_its_own_results_and_what_was_not_told_of_has_failed() {
        let partition = |index, code| {
            WritableTxnMarkerPartitionResult::default().with_partition_index(index).with_error_code(code)
        };
        let result = |id, partitions| {
            let name = TopicName(StrBytes::from_static_str("t"));
            let topic = WritableTxnMarkerTopicResult::default().with_name(name).with_partitions(partitions);
            WritableTxnMarkerResult::default().with_producer_id(WireProducerId(id)).with_topics(vec![topic])
        };
        let results = vec![result(2, vec![partition(0, 52)]), result(1, vec![partition(0, 0)])];
        let response = WriteTxnMarkersResponse::default().with_markers(results);
        let frame = guard::encode(1, CorrelationId(1), &response).unwrap().slice(4..);
        let questions = [marking(1, &[0, 1]), marking(2, &[0]), marking(3, &[0])];
        let read = Marking::read(&questions, &frame).unwrap();
        assert_eq!(read[0], [(at(0), Ok(())), (at(1), Err(ErrorCode::UnknownServerError))]);
        assert_eq!(read[1], [(at(0), Err(ErrorCode::TransactionCoordinatorFenced))]);
        assert_eq!(read[2], [(at(0), Err(ErrorCode::UnknownServerError))]);
        let failed = questions[1].failed(ErrorCode::NetworkException);
        assert_eq!(failed, [(at(0), Err(ErrorCode::NetworkException))]);
    }

    fn addition(verify_only: bool) -> Addition {
        let partitions = [0, 1].map(at).into();
        Addition { id: StrBytes::from_static_str("id"), producer: producer(1), partitions, verify_only }
    }

    /// What two partitions are told, with these codes, and of the whole.
    fn answered(verify_only: bool, error: i16, codes: [i16; 2]) -> Response {
        let partitions = codes.into_iter().zip(0..).map(|(code, index)| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(index)
                .with_partition_error_code(code)
        });
        let topic = AddPartitionsToTxnTopicResult::default()
            .with_name(TopicName(StrBytes::from_static_str("t")))
            .with_results_by_partition(partitions.collect());
        let result = AddPartitionsToTxnResult::default()
            .with_transactional_id(TransactionalId(StrBytes::from_static_str("id")))
            .with_topic_results(vec![topic]);
        let response = AddPartitionsToTxnResponse::default()
            .with_error_code(error)
            .with_results_by_transaction(vec![result]);
        let frame = guard::encode(5, CorrelationId(1), &response).unwrap().slice(4..);
        Addition::read(&[addition(verify_only)], &frame).unwrap().remove(0)
    }

    #[test]
    fn partitions_are_added_all_or_none() {
        assert_eq!(answered(false, 0, [0, 0]), Response::AddPartitions(Ok(())));
        let unknown = Response::AddPartitions(Err(ErrorCode::UnknownTopicOrPartition));
        assert_eq!(answered(false, 0, [55, 3]), unknown, "not OPERATION_NOT_ATTEMPTED");
        assert_eq!(answered(false, 31, [0, 0]), Response::AddPartitions(Err(ErrorCode::InvalidTxnState)));
        let fenced = Response::AddPartitions(Err(ErrorCode::ProducerFenced));
        assert_eq!(answered(false, 0, [90, 90]), fenced);
    }

    #[test]
    fn those_that_were_not_added_are_told() {
        let missing =
            |indexes: &[i32]| Response::VerifyPartitions(Ok(indexes.iter().copied().map(at).collect()));
        assert_eq!(answered(true, 0, [0, 0]), missing(&[]));
        assert_eq!(answered(true, 0, [0, 120]), missing(&[1]));
        let busy = Response::VerifyPartitions(Err(ErrorCode::ConcurrentTransactions));
        assert_eq!(answered(true, 0, [51, 51]), busy);
    }
}
