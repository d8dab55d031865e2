//! A batch of one partition while the producer has it: open for records, then closed and sent, perhaps more
//! than once.

use bytes::Bytes;
use zerocopy::FromBytes;

use super::{ProducerRecord, Sequence};
use crate::base::clock::{Monotonic, Timestamp};
use crate::base::{Offset, ProducerEpoch, ProducerId};
use crate::client::error::{ClientError, Result};
use crate::wire::record::{BatchBuilder, BatchHead, Compression, Header};

/// Names a batch of one producer; later batches have higher numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchId(pub u64);

#[derive(Debug)]
pub struct Batch {
    pub id: BatchId,
    pub created: Monotonic,
    /// How often it was sent.
    pub attempts: u32,
    pub retry_at: Monotonic,
    /// Given when it is first sent; kept by retries, so that the broker can tell them from new records.
    pub sequence: Option<Sequence>,
    count: i32,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Open(BatchBuilder),
    Full(BatchBuilder),
    /// As sent, and under which sequence.
    Encoded(Bytes, Option<Sequence>),
}

impl Batch {
    pub fn new(id: BatchId, compression: Compression, created: Monotonic) -> Self {
        Self {
            id,
            created,
            attempts: 0,
            retry_at: Monotonic::ZERO,
            sequence: None,
            count: 0,
            content: Content::Open(BatchBuilder::new(Offset::ZERO, compression)),
        }
    }

    /// Adds a record, unless the batch has one already and would exceed `bytes_max`, counted before
    /// compression.
    pub fn append(&mut self, record: &ProducerRecord, timestamp: Timestamp, bytes_max: usize) -> bool {
        let Content::Open(builder) = &mut self.content else { return false };
        if !builder.is_empty() && builder.uncompressed_len() + size_bound(record) > bytes_max {
            return false;
        }
        let headers: Vec<Header<'_>> =
            record.headers.iter().map(|(key, value)| Header { key, value: value.as_deref() }).collect();
        builder.append(timestamp, record.key.as_deref(), record.value.as_deref(), &headers);
        self.count += 1;
        true
    }

    /// Takes no more records.
    pub fn close(&mut self) {
        if let Content::Open(builder) = &mut self.content {
            let empty = BatchBuilder::new(Offset::ZERO, Compression::NONE);
            self.content = Content::Full(std::mem::replace(builder, empty));
        }
    }

    pub fn is_closed(&self) -> bool {
        !matches!(self.content, Content::Open(_))
    }

    pub fn count(&self) -> i32 {
        self.count
    }

    /// Bytes as it would be sent now; compression lowers them when it is first encoded.
    pub fn bytes(&self) -> usize {
        match &self.content {
            Content::Open(builder) | Content::Full(builder) => builder.uncompressed_len(),
            Content::Encoded(bytes, _) => bytes.len(),
        }
    }

    /// The bytes to send, under the current sequence. Closes the batch; compresses it the first time.
    pub fn encode(&mut self) -> Result<Bytes> {
        self.close();
        let bytes = match &self.content {
            Content::Encoded(bytes, sequence) if *sequence == self.sequence => return Ok(bytes.clone()),
            Content::Encoded(bytes, _) => resequenced(bytes, self.sequence),
            Content::Open(builder) | Content::Full(builder) => {
                let mut builder = builder.clone();
                if let Some(sequence) = self.sequence {
                    builder = builder.with_producer(sequence.producer, sequence.epoch, sequence.base);
                }
                builder.finish().map_err(|error| ClientError::Encode {
                    what: "a batch".into(),
                    reason: error.to_string(),
                })?
            }
        };
        self.content = Content::Encoded(bytes.clone(), self.sequence);
        Ok(bytes)
    }
}

/// The same records under another sequence.
fn resequenced(batch: &[u8], sequence: Option<Sequence>) -> Bytes {
    let none = Sequence { producer: ProducerId::NONE, epoch: ProducerEpoch(-1), base: -1 };
    let Sequence { producer, epoch, base } = sequence.unwrap_or(none);
    let mut bytes = batch.to_vec();
    let (head, body) = BatchHead::mut_from_prefix(&mut bytes).expect("a batch begins with its head");
    head.set_producer(producer, epoch, base);
    head.seal(body);
    bytes.into()
}

/// At most so many bytes does a record take in a batch.
pub fn size_bound(record: &ProducerRecord) -> usize {
    let length = |field: &Option<Bytes>| field.as_ref().map_or(0, Bytes::len);
    // Lengths, deltas and counts are varints of at most 5 (timestamp: 10) bytes.
    let headers: usize = record.headers.iter().map(|(key, value)| 10 + key.len() + length(value)).sum();
    36 + length(&record.key) + length(&record.value) + headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::record::{BatchView, Codec, Records};

    #[test]
    fn what_went_in_is_what_is_sent() {
        let mut batch = Batch::new(BatchId(0), Compression::NONE, Monotonic::ZERO);
        let mut record = ProducerRecord::new("t", Some(Bytes::from_static(b"\xff\0value")));
        record.key = Some(Bytes::from_static(b"key"));
        record.headers = vec![
            (Bytes::from_static(b"h"), None),
            (Bytes::from_static(b"h"), Some(Bytes::from_static(b"2"))),
        ];
        assert!(batch.append(&record, Timestamp(1000), 500));
        assert!(batch.append(&ProducerRecord::new("t", None), Timestamp(900), 500));
        batch.sequence = Some(Sequence { producer: ProducerId(7), epoch: ProducerEpoch(1), base: 42 });
        let bytes = batch.encode().expect("encodes");
        assert!(!batch.append(&record, Timestamp(1000), 500), "closed");

        let view = BatchView::parse(&bytes).expect("a batch");
        view.check_crc().expect("sealed");
        assert_eq!((view.head().producer_id(), view.head().base_sequence()), (ProducerId(7), 42));
        assert_eq!(view.head().max_timestamp(), Timestamp(1000));
        let records: Vec<_> =
            Records::new(view.head(), view.body()).collect::<Result<_, _>>().expect("whole");
        assert_eq!(records[0].key, Some(&b"key"[..]));
        assert_eq!(records[0].value, Some(&b"\xff\0value"[..]));
        let headers: Vec<_> = records[0].headers.map(|header| (header.key, header.value)).collect();
        assert_eq!(headers, [(&b"h"[..], None), (&b"h"[..], Some(&b"2"[..]))]);
        assert_eq!((records[1].timestamp, records[1].value), (Timestamp(900), None));
    }

    #[test]
    fn another_sequence_changes_the_head_only() {
        let mut batch = Batch::new(BatchId(0), Compression::of(Codec::Zstd), Monotonic::ZERO);
        assert!(batch.append(&ProducerRecord::new("t", Some(vec![b'a'; 5000].into())), Timestamp(1), 9000));
        let first = batch.encode().expect("encodes");
        assert!(first.len() < 1000, "compressed");
        batch.sequence = Some(Sequence { producer: ProducerId(7), epoch: ProducerEpoch(1), base: 42 });
        let second = batch.encode().expect("encodes");
        let view = BatchView::parse(&second).expect("a batch");
        view.check_crc().expect("sealed");
        assert_eq!(view.head().base_sequence(), 42);
        assert_eq!(view.body(), BatchView::parse(&first).expect("a batch").body());
    }

    #[test]
    fn a_full_batch_takes_no_more_but_one_large_record_fits_alone() {
        let mut batch = Batch::new(BatchId(0), Compression::NONE, Monotonic::ZERO);
        let large = ProducerRecord::new("t", Some(Bytes::from(vec![0; 1000])));
        assert!(batch.append(&large, Timestamp(0), 100));
        assert!(!batch.append(&ProducerRecord::new("t", None), Timestamp(0), 100));
    }
}
