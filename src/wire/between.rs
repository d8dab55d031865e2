//! What brokers ask each other, from the asker's side: WriteTxnMarkers 2 and AddPartitionsToTxn 5. The requests are
//! written, the answers are walked: nothing is allocated from a count that the bytes do not bear out.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use kafka_protocol::messages::{AddPartitionsToTxnRequest, ProducerId};
use kafka_protocol::protocol::Encodable as _;

use super::ApiKey;
use super::ErrorCode;
use super::api::{Api, find};
use super::header::CorrelationId;
use super::newer::TxnMarker;
use super::read::{DecodeError, Reader};
use super::write::{EncodeError, Writer};
use crate::base::{PartitionIndex, TopicPartition};

/// What each broker answers to each of its partitions; `None` is no error.
pub type PartitionErrors = BTreeMap<TopicPartition, Option<ErrorCode>>;

/// The client id of a broker that asks as a coordinator, or asks one.
const CLIENT_ID: &str = "kuring-broker";

const MARKERS_VERSION: i16 = 2;
const ADD_VERSION: i16 = 5;

/// Both are flexible.
const FLEXIBLE: bool = true;
/// An index and a code.
const PARTITION_LEN_MIN: usize = 4 + 2 + 1;
const TOPIC_LEN_MIN: usize = 1 + 1 + 1;
const MARKER_LEN_MIN: usize = 8 + 1 + 1;
const TRANSACTION_LEN_MIN: usize = 1 + 1 + 1;

/// The frame that asks a broker to end transactions.
pub fn write_txn_markers(correlation_id: CorrelationId, markers: &[TxnMarker]) -> Result<Bytes, EncodeError> {
    let api = api(ApiKey::WriteTxnMarkers);
    let mut writer = Writer::request(api, MARKERS_VERSION, correlation_id, CLIENT_ID);
    writer.count(markers.len());
    for TxnMarker { marker, transaction_version } in markers {
        writer.i64(marker.producer_id.0);
        writer.i16(marker.producer_epoch);
        writer.i8(i8::from(marker.transaction_result));
        writer.count(marker.topics.len());
        for topic in &marker.topics {
            writer.string(&topic.name.0);
            writer.count(topic.partition_indexes.len());
            topic.partition_indexes.iter().for_each(|index| writer.i32(*index));
            writer.no_tagged_fields();
        }
        writer.i32(marker.coordinator_epoch);
        writer.i8(*transaction_version);
        writer.no_tagged_fields();
    }
    writer.no_tagged_fields();
    writer.finish(0)
}

/// The answer to it, a frame without its length: for each producer what became of its marker.
pub fn read_txn_markers(frame: &Bytes) -> Result<BTreeMap<ProducerId, PartitionErrors>, DecodeError> {
    let mut reader = after_header(frame, api(ApiKey::WriteTxnMarkers), MARKERS_VERSION)?;
    let mut producers: BTreeMap<ProducerId, PartitionErrors> = BTreeMap::new();
    for _ in 0..reader.elements(FLEXIBLE, MARKER_LEN_MIN)? {
        let producer = ProducerId(reader.i64()?);
        let errors = partition_errors(&mut reader)?;
        reader.skip_tagged_fields(FLEXIBLE)?;
        producers.entry(producer).or_default().extend(errors);
    }
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(producers)
}

/// The frame that asks a coordinator to add partitions to transactions, or whether they were added.
pub fn add_partitions_to_txn(
    correlation_id: CorrelationId,
    transactions: Vec<AddPartitionsToTxnTransaction>,
) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::request(api(ApiKey::AddPartitionsToTxn), ADD_VERSION, correlation_id, CLIENT_ID);
    let mut body = BytesMut::new();
    let request = AddPartitionsToTxnRequest::default().with_transactions(transactions);
    request.encode(&mut body, ADD_VERSION).map_err(|error| EncodeError::Message(error.to_string()))?;
    writer.slice(&body);
    writer.finish(0)
}

/// What a coordinator answers to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddedPartitions {
    /// Of the request as a whole.
    pub error: Option<ErrorCode>,
    /// By transactional id.
    pub transactions: BTreeMap<String, PartitionErrors>,
}

/// The answer to [`add_partitions_to_txn`], a frame without its length.
pub fn read_add_partitions_to_txn(frame: &Bytes) -> Result<AddedPartitions, DecodeError> {
    let mut reader = after_header(frame, api(ApiKey::AddPartitionsToTxn), ADD_VERSION)?;
    // The throttle time.
    reader.skip(4)?;
    let error = error(&mut reader)?;
    let mut transactions: BTreeMap<String, PartitionErrors> = BTreeMap::new();
    for _ in 0..reader.elements(FLEXIBLE, TRANSACTION_LEN_MIN)? {
        let id = reader.string(FLEXIBLE)?.to_owned();
        let errors = partition_errors(&mut reader)?;
        reader.skip_tagged_fields(FLEXIBLE)?;
        transactions.entry(id).or_default().extend(errors);
    }
    reader.skip_tagged_fields(FLEXIBLE)?;
    Ok(AddedPartitions { error, transactions })
}

/// Topics by name, their partitions with a code each: both answers have them alike.
fn partition_errors(reader: &mut Reader<'_>) -> Result<PartitionErrors, DecodeError> {
    let mut errors = PartitionErrors::new();
    for _ in 0..reader.elements(FLEXIBLE, TOPIC_LEN_MIN)? {
        let topic = crate::base::TopicName::new(reader.string(FLEXIBLE)?);
        for _ in 0..reader.elements(FLEXIBLE, PARTITION_LEN_MIN)? {
            let index = PartitionIndex(reader.i32()?);
            let error = error(reader)?;
            reader.skip_tagged_fields(FLEXIBLE)?;
            errors.insert(TopicPartition::new(topic.clone(), index), error);
        }
        reader.skip_tagged_fields(FLEXIBLE)?;
    }
    Ok(errors)
}

fn after_header<'a>(frame: &'a Bytes, api: &Api, version: i16) -> Result<Reader<'a>, DecodeError> {
    let mut reader = Reader::new(frame);
    // The correlation, which whoever has received the frame has looked at.
    reader.skip(4)?;
    reader.skip_tagged_fields(api.response_header_version(version) >= 1)?;
    Ok(reader)
}

fn error(reader: &mut Reader<'_>) -> Result<Option<ErrorCode>, DecodeError> {
    Ok(match reader.i16()? {
        0 => None,
        code => Some(ErrorCode::try_from_code(code).unwrap_or(ErrorCode::UnknownServerError)),
    })
}

fn api(key: ApiKey) -> &'static Api {
    find(key as i16).expect("the API table has it")
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
    use kafka_protocol::messages::add_partitions_to_txn_response::{
        AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
    };
    use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
    use kafka_protocol::messages::write_txn_markers_response::{
        WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
    };
    use kafka_protocol::messages::{
        AddPartitionsToTxnResponse, TopicName, TransactionalId, WriteTxnMarkersResponse,
    };
    use kafka_protocol::protocol::StrBytes;

    use super::*;
    use crate::wire::header::{Request, parse};
    use crate::wire::{guard, newer};

    fn name(topic: &str) -> TopicName {
        TopicName(StrBytes::from_string(topic.to_owned()))
    }

    fn at(topic: &str, index: i32) -> TopicPartition {
        TopicPartition::new(topic, PartitionIndex(index))
    }

    /// What the other broker reads of a frame.
    fn body(frame: &Bytes, key: ApiKey, version: i16) -> Bytes {
        match parse(&frame.slice(4..)) {
            Ok(Request::Known { header, body }) => {
                assert_eq!((header.api.key, header.version), (key, version));
                assert_eq!(header.correlation_id, CorrelationId(7));
                body
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn markers_are_read_by_the_other_broker_as_they_were_written() {
        let topics = ["a", "b"].map(|topic| {
            WritableTxnMarkerTopic::default().with_name(name(topic)).with_partition_indexes(vec![0, 3])
        });
        let marker = |producer: i64, commit: bool| TxnMarker {
            marker: WritableTxnMarker::default()
                .with_producer_id(ProducerId(producer))
                .with_producer_epoch(9)
                .with_transaction_result(commit)
                .with_topics(topics.to_vec())
                .with_coordinator_epoch(5),
            transaction_version: 2,
        };
        let markers = vec![marker(1, true), marker(2, false)];
        let frame = write_txn_markers(CorrelationId(7), &markers).unwrap();
        let body = body(&frame, ApiKey::WriteTxnMarkers, MARKERS_VERSION);
        assert_eq!(newer::write_txn_markers(MARKERS_VERSION, &body), Ok(markers));
    }

    #[test]
    fn what_became_of_markers_is_read() {
        let partition = |index, code| {
            WritableTxnMarkerPartitionResult::default().with_partition_index(index).with_error_code(code)
        };
        let topic = WritableTxnMarkerTopicResult::default()
            .with_name(name("a"))
            .with_partitions(vec![partition(0, 0), partition(3, 6)]);
        let result =
            WritableTxnMarkerResult::default().with_producer_id(ProducerId(1)).with_topics(vec![topic]);
        let response = WriteTxnMarkersResponse::default().with_markers(vec![result]);
        // Version 2 is version 1, which the codec knows.
        let frame = guard::encode(1, CorrelationId(7), &response).unwrap().slice(4..);
        let errors = BTreeMap::from([(at("a", 0), None), (at("a", 3), Some(ErrorCode::NotLeaderOrFollower))]);
        assert_eq!(read_txn_markers(&frame), Ok(BTreeMap::from([(ProducerId(1), errors)])));
        for len in 0..frame.len() {
            assert!(read_txn_markers(&frame.slice(..len)).is_err(), "{len}");
        }
    }

    #[test]
    fn partitions_are_added_and_the_answer_is_read() {
        let id = TransactionalId(StrBytes::from_static_str("id"));
        let topic = AddPartitionsToTxnTopic::default().with_name(name("a")).with_partitions(vec![0, 3]);
        let transaction = AddPartitionsToTxnTransaction::default()
            .with_transactional_id(id.clone())
            .with_producer_id(ProducerId(1))
            .with_producer_epoch(9)
            .with_verify_only(true)
            .with_topics(vec![topic]);
        let frame = add_partitions_to_txn(CorrelationId(7), vec![transaction.clone()]).unwrap();
        let body = body(&frame, ApiKey::AddPartitionsToTxn, ADD_VERSION);
        let read = guard::decode::<AddPartitionsToTxnRequest>(ADD_VERSION, &body).unwrap();
        assert_eq!(read.transactions, [transaction]);

        let partition = |index, code| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(index)
                .with_partition_error_code(code)
        };
        let topic = AddPartitionsToTxnTopicResult::default()
            .with_name(name("a"))
            .with_results_by_partition(vec![partition(0, 0), partition(3, 120)]);
        let result =
            AddPartitionsToTxnResult::default().with_transactional_id(id).with_topic_results(vec![topic]);
        let response = AddPartitionsToTxnResponse::default()
            .with_error_code(31)
            .with_results_by_transaction(vec![result]);
        let frame = guard::encode(ADD_VERSION, CorrelationId(7), &response).unwrap().slice(4..);
        let errors =
            BTreeMap::from([(at("a", 0), None), (at("a", 3), Some(ErrorCode::TransactionAbortable))]);
        let expected = AddedPartitions {
            error: Some(ErrorCode::ClusterAuthorizationFailed),
            transactions: BTreeMap::from([("id".to_owned(), errors)]),
        };
        assert_eq!(read_add_partitions_to_txn(&frame), Ok(expected));
        for len in 0..frame.len() {
            assert!(read_add_partitions_to_txn(&frame.slice(..len)).is_err(), "{len}");
        }
    }
}
