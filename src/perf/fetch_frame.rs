//! Fetch answers walked in place: the records stay in the receive buffer. No IO.

use bytes::Buf;

use crate::base::{Offset, PartitionIndex};
use crate::client::{ClientError, Result};
use crate::wire::ErrorCode;

const SESSION_VERSION: i16 = 7;
const LOG_START_VERSION: i16 = 5;
const PREFERRED_REPLICA_VERSION: i16 = 11;
const FLEXIBLE_VERSION: i16 = 12;
const TOPIC_ID_VERSION: i16 = 13;

/// One partition of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct PartitionAnswer<'a> {
    pub index: PartitionIndex,
    pub error: Option<ErrorCode>,
    pub high_watermark: Offset,
    pub records: &'a [u8],
}

/// Walks a Fetch answer (without its length) and calls `take` for each partition. Returns its correlation id.
pub fn walk<'a>(
    frame: &'a [u8],
    version: i16,
    take: impl FnMut(PartitionAnswer<'a>) -> Result<()>,
) -> Result<i32> {
    Walker { rest: frame, version }.walk(take)
}

struct Walker<'a> {
    rest: &'a [u8],
    version: i16,
}

impl<'a> Walker<'a> {
    fn walk(mut self, mut take: impl FnMut(PartitionAnswer<'a>) -> Result<()>) -> Result<i32> {
        let correlation = self.i32()?;
        self.tags()?;
        self.skip(4)?;
        if self.version >= SESSION_VERSION {
            let code = self.i16()?;
            if let Some(code) = ErrorCode::try_from_code(code) {
                return Err(ClientError::broker("fetch", code, None));
            }
            self.skip(4)?;
        }
        for _ in 0..self.count()? {
            if self.version >= TOPIC_ID_VERSION {
                self.skip(16)?;
            } else {
                let len = self.string_len()?;
                self.skip(len)?;
            }
            for _ in 0..self.count()? {
                let partition = self.partition()?;
                take(partition)?;
            }
            self.tags()?;
        }
        Ok(correlation)
    }

    fn partition(&mut self) -> Result<PartitionAnswer<'a>> {
        let index = PartitionIndex(self.i32()?);
        let error = ErrorCode::try_from_code(self.i16()?);
        let high_watermark = Offset(self.rest.try_get_i64().map_err(|_| cut_off())?);
        // The last stable offset.
        self.skip(8)?;
        if self.version >= LOG_START_VERSION {
            self.skip(8)?;
        }
        // Aborted transactions.
        for _ in 0..self.count()? {
            self.skip(16)?;
            self.tags()?;
        }
        if self.version >= PREFERRED_REPLICA_VERSION {
            self.skip(4)?;
        }
        let len = self.count()?;
        let (records, rest) = self.rest.split_at_checked(len).ok_or_else(cut_off)?;
        self.rest = rest;
        self.tags()?;
        Ok(PartitionAnswer { index, error, high_watermark, records })
    }

    fn flexible(&self) -> bool {
        self.version >= FLEXIBLE_VERSION
    }

    /// An array's or the records' length; null counts as none.
    fn count(&mut self) -> Result<usize> {
        if self.flexible() {
            return Ok((self.varint()? as usize).saturating_sub(1));
        }
        Ok(usize::try_from(self.i32()?).unwrap_or(0))
    }

    fn string_len(&mut self) -> Result<usize> {
        if self.flexible() {
            return Ok((self.varint()? as usize).saturating_sub(1));
        }
        Ok(usize::try_from(self.i16()?).unwrap_or(0))
    }

    fn tags(&mut self) -> Result<()> {
        if !self.flexible() {
            return Ok(());
        }
        for _ in 0..self.varint()? {
            self.varint()?;
            let len = self.varint()? as usize;
            self.skip(len)?;
        }
        Ok(())
    }

    fn varint(&mut self) -> Result<u32> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.rest.try_get_u8().map_err(|_| cut_off())?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(cut_off())
    }

    fn i16(&mut self) -> Result<i16> {
        self.rest.try_get_i16().map_err(|_| cut_off())
    }

    fn i32(&mut self) -> Result<i32> {
        self.rest.try_get_i32().map_err(|_| cut_off())
    }

    fn skip(&mut self, count: usize) -> Result<()> {
        self.rest = self.rest.get(count..).ok_or_else(cut_off)?;
        Ok(())
    }
}

fn cut_off() -> ClientError {
    ClientError::Malformed { what: "Fetch".into(), reason: "it ends inside a field".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{Bytes, BytesMut};
    use kafka_protocol::messages::fetch_response::{
        AbortedTransaction, EpochEndOffset, FetchableTopicResponse, PartitionData,
    };
    use kafka_protocol::messages::{FetchRequest, FetchResponse, ResponseHeader};
    use kafka_protocol::protocol::{Encodable, HeaderVersion, StrBytes};

    #[test]
    fn answers_of_every_version_are_walked() {
        for version in 4..=17 {
            let mut partition = PartitionData::default()
                .with_partition_index(3)
                .with_high_watermark(99)
                .with_aborted_transactions(Some(vec![AbortedTransaction::default()]))
                .with_records(Some(Bytes::from(vec![9; 300])));
            if version >= FLEXIBLE_VERSION {
                partition = partition.with_diverging_epoch(EpochEndOffset::default().with_epoch(4));
            }
            let failed = PartitionData::default().with_partition_index(4).with_error_code(1);
            let mut topic = FetchableTopicResponse::default().with_partitions(vec![partition, failed]);
            if version < TOPIC_ID_VERSION {
                topic = topic.with_topic(StrBytes::from_static_str("topic").into());
            }
            let response = FetchResponse::default().with_responses(vec![topic]);
            let mut frame = BytesMut::new();
            let header_version =
                <FetchRequest as kafka_protocol::protocol::Request>::Response::header_version(version);
            ResponseHeader::default()
                .with_correlation_id(55)
                .encode(&mut frame, header_version)
                .expect("encodes");
            response.encode(&mut frame, version).expect("encodes");
            let mut answers = Vec::new();
            let correlation = walk(&frame, version, |answer| {
                answers.push((answer.index.0, answer.error, answer.high_watermark.0, answer.records.len()));
                Ok(())
            });
            assert_eq!(correlation.expect("walks"), 55);
            assert_eq!(answers[0], (3, None, 99, 300), "version {version}");
            assert_eq!((answers[1].0, answers[1].1), (4, Some(ErrorCode::OffsetOutOfRange)));
            for cut in 0..frame.len() - 8 {
                // Cut off anywhere it is refused, or ends where the lists may end; it never panics.
                let _ = walk(&frame[..cut], version, |_| Ok(()));
            }
        }
    }
}
