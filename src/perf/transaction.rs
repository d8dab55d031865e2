//! The transactions of one connection that produces: when one is to end, and the request that ends it. No IO.
//!
//! They are those of transactions v2 (KIP-890): a produce request adds its partition, and each end gives the producer
//! its next epoch. All batches of a transaction are answered before it is ended.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::{EndTxnRequest, EndTxnResponse, ResponseHeader, TransactionalId};
use kafka_protocol::protocol::{Decodable, HeaderVersion, StrBytes};

use super::plan::Identity;
use crate::base::clock::Monotonic;
use crate::base::{ProducerEpoch, ProducerId};
use crate::client::producer::Sequence;
use crate::client::{ClientError, Result, code_name, decode, encode};
use crate::wire::ErrorCode;

/// The first version that gives the next epoch.
const END_VERSION: i16 = 5;

pub struct Transactions {
    id: StrBytes,
    client_id: String,
    duration: Duration,
    producer: Sequence,
    /// When the first batch of the present one was sent.
    began: Option<Monotonic>,
    /// The request that ends it is on its way.
    ending: Option<i32>,
}

impl Transactions {
    pub fn new(identity: &Identity, client_id: &str, duration: Duration) -> Option<Self> {
        let id = identity.transactional_id.as_ref()?;
        Some(Self {
            id: StrBytes::from_string(id.clone()),
            client_id: client_id.to_owned(),
            duration,
            producer: identity.sequence,
            began: None,
            ending: None,
        })
    }

    /// Whether another batch may be sent.
    pub fn may_send(&self, now: Monotonic) -> bool {
        self.ending.is_none() && !self.is_due(now)
    }

    pub fn note_sent(&mut self, now: Monotonic) {
        self.began.get_or_insert(now);
    }

    pub fn is_due(&self, now: Monotonic) -> bool {
        self.began.is_some_and(|began| now.since(began) >= self.duration)
    }

    /// Something was sent and is not committed.
    pub fn is_open(&self) -> bool {
        self.began.is_some()
    }

    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// The frame that commits.
    pub fn end(&mut self, correlation: i32) -> Result<Bytes> {
        self.ending = Some(correlation);
        let request = EndTxnRequest::default()
            .with_transactional_id(TransactionalId(self.id.clone()))
            .with_producer_id(self.producer.producer.0.into())
            .with_producer_epoch(self.producer.epoch.0)
            .with_committed(true);
        encode(&request, END_VERSION, correlation, &self.client_id)
    }

    /// Takes the answer; how the next transaction's batches begin, or `None` when the end is to be asked for again.
    pub fn ended(&mut self, frame: &[u8]) -> Result<Option<Sequence>> {
        let malformed = |reason: String| ClientError::Malformed { what: "EndTxn".into(), reason };
        let mut body = Bytes::copy_from_slice(frame);
        let header_version = EndTxnResponse::header_version(END_VERSION);
        let header = ResponseHeader::decode(&mut body, header_version)
            .map_err(|error| malformed(error.to_string()))?;
        if self.ending.take() != Some(header.correlation_id) {
            return Err(malformed(format!("correlation id {} was not expected", header.correlation_id)));
        }
        let response = decode::<EndTxnRequest>(END_VERSION, body)?;
        match ErrorCode::try_from_code(response.error_code) {
            None => {}
            // Kafka's clients wait, too, until what is under way is done.
            Some(code) if code.is_retriable() || code == ErrorCode::ConcurrentTransactions => {
                return Ok(None);
            }
            Some(code) => {
                tracing::debug!(transactional_id = %self.id, code = code_name(code), "a commit was refused");
                return Err(ClientError::broker("commit a transaction", code, None));
            }
        }
        self.began = None;
        self.producer = Sequence {
            producer: ProducerId(response.producer_id.0),
            epoch: ProducerEpoch(response.producer_epoch),
            base: 0,
        };
        Ok(Some(self.producer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use kafka_protocol::protocol::Encodable;

    fn answer(correlation: i32, error: i16, epoch: i16) -> Bytes {
        let mut frame = BytesMut::new();
        let header = ResponseHeader::default().with_correlation_id(correlation);
        header.encode(&mut frame, EndTxnResponse::header_version(END_VERSION)).expect("encodes");
        let response = EndTxnResponse::default()
            .with_error_code(error)
            .with_producer_id(7.into())
            .with_producer_epoch(epoch);
        response.encode(&mut frame, END_VERSION).expect("encodes");
        frame.freeze()
    }

    #[test]
    fn a_transaction_lasts_its_time_and_the_next_one_has_another_epoch() {
        let sequence = Sequence { producer: ProducerId(7), epoch: ProducerEpoch(0), base: 0 };
        let identity = Identity { sequence, transactional_id: Some("t".into()) };
        let mut transactions = Transactions::new(&identity, "c", Duration::from_millis(50)).expect("an id");
        let at = |ms| Monotonic::ZERO.plus(Duration::from_millis(ms));
        assert!(transactions.may_send(at(1000)) && !transactions.is_open());
        transactions.note_sent(at(1000));
        transactions.note_sent(at(1040));
        assert!(transactions.may_send(at(1049)) && !transactions.may_send(at(1050)));
        transactions.end(3).expect("encodes");
        assert!(transactions.is_ending());
        assert_eq!(transactions.ended(&answer(3, 51, 0)).expect("retriable"), None);
        assert!(transactions.is_open() && !transactions.is_ending());
        transactions.end(4).expect("encodes");
        let next = Sequence { epoch: ProducerEpoch(1), ..sequence };
        assert_eq!(transactions.ended(&answer(4, 0, 1)).expect("ended"), Some(next));
        assert!(transactions.may_send(at(1051)) && !transactions.is_open());
        transactions.end(5).expect("encodes");
        assert!(transactions.ended(&answer(5, 90, 0)).is_err(), "fenced");
    }
}
