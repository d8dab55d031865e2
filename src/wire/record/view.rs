//! Batches in a buffer, borrowed.

use zerocopy::FromBytes;

use super::codec::{CodecError, decompress};
use super::head::{BatchHead, Codec, HEAD_LEN, LOG_OVERHEAD, MAGIC};
use super::records::{RecordFormatError, Records};
use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::config::TimestampType;

/// Why the bytes at hand are not a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchError {
    /// The buffer ends inside the batch, which takes `wanted` bytes ([`HEAD_LEN`] while even the head is
    /// not whole). At the end of a file: a torn write; at the end of a fetch: normal.
    #[error("batch is not whole: {wanted} bytes wanted, {left} at hand")]
    Incomplete { wanted: usize, left: usize },
    #[error("batch length {length} is less than a head")]
    Length { length: i32 },
    #[error("batch has format {magic}, only 2 is supported")]
    Magic { magic: i8 },
    #[error("batch checksum is {stored:#010x}, its bytes have {computed:#010x}")]
    Crc { stored: u32, computed: u32 },
}

/// Why the records of a batch cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error(transparent)]
    Format(#[from] RecordFormatError),
}

/// One whole batch: its length and format are checked, its checksum only on request.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    head: &'a BatchHead,
    bytes: &'a [u8],
}

impl<'a> BatchView<'a> {
    /// The batch that `buffer` begins with.
    pub fn parse(buffer: &'a [u8]) -> Result<Self, BatchError> {
        let total = Self::total_len(buffer)?;
        if buffer.len() < total {
            return Err(BatchError::Incomplete { wanted: total, left: buffer.len() });
        }
        let bytes = &buffer[..total];
        match BatchHead::ref_from_prefix(bytes) {
            Ok((head, _)) => Ok(Self { head, bytes }),
            Err(_) => Err(BatchError::Incomplete { wanted: HEAD_LEN, left: bytes.len() }),
        }
    }

    /// Bytes of the whole batch that `buffer` begins with, when at least its head is there.
    pub fn total_len(buffer: &[u8]) -> Result<usize, BatchError> {
        let Ok((head, _)) = BatchHead::ref_from_prefix(buffer) else {
            return Err(BatchError::Incomplete { wanted: HEAD_LEN, left: buffer.len() });
        };
        if head.length() < (HEAD_LEN - LOG_OVERHEAD) as i32 {
            return Err(BatchError::Length { length: head.length() });
        }
        if head.magic() != MAGIC {
            return Err(BatchError::Magic { magic: head.magic() });
        }
        Ok(head.total_len())
    }

    pub fn head(&self) -> &'a BatchHead {
        self.head
    }

    /// The whole batch with its head.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Everything behind the head: the records, compressed if the batch is.
    pub fn body(&self) -> &'a [u8] {
        &self.bytes[HEAD_LEN..]
    }

    /// The records of the batch. A compressed body is decompressed into `scratch`, which is emptied first;
    /// `limit` bounds its decompressed bytes.
    pub fn records<'s>(&self, scratch: &'s mut Vec<u8>, limit: usize) -> Result<Records<'s>, CodecError>
    where
        'a: 's,
    {
        let attributes = self.head.attributes();
        match attributes.codec() {
            None => Err(CodecError::Unknown(attributes.0)),
            Some(Codec::None) => Ok(Records::new(self.head, self.body())),
            Some(codec) => {
                scratch.clear();
                decompress(codec, self.body(), limit, scratch)?;
                Ok(Records::new(self.head, scratch))
            }
        }
    }

    /// The offset of the first record with the batch's maximum timestamp; the base offset under
    /// LogAppendTime, `None` without a timestamp (`RecordBatch.offsetOfMaxTimestamp`). Decompresses.
    pub fn offset_of_max_timestamp(&self, limit: usize) -> Result<Option<Offset>, ReadError> {
        let max = self.head.max_timestamp();
        if max == Timestamp::NONE {
            return Ok(None);
        }
        if self.head.attributes().timestamp_type() == TimestampType::LogAppendTime {
            return Ok(Some(self.head.base_offset()));
        }
        let mut scratch = Vec::new();
        for record in self.records(&mut scratch, limit)? {
            let record = record?;
            if record.timestamp == max {
                return Ok(Some(record.offset));
            }
        }
        Ok(None)
    }

    /// Compares the stored checksum with the bytes: 44 µs per MiB.
    pub fn check_crc(&self) -> Result<(), BatchError> {
        let (stored, computed) = (self.head.crc(), self.head.compute_crc(self.body()));
        if stored == computed { Ok(()) } else { Err(BatchError::Crc { stored, computed }) }
    }
}

/// The batches of a buffer, one after the other; ends with the buffer or after the first error.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    buffer: &'a [u8],
    position: usize,
    failed: bool,
}

impl<'a> Batches<'a> {
    pub fn new(buffer: &'a [u8]) -> Self {
        Self { buffer, position: 0, failed: false }
    }

    /// Bytes of the batches given out so far.
    pub fn position(&self) -> usize {
        self.position
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        let left = &self.buffer[self.position..];
        if self.failed || left.is_empty() {
            return None;
        }
        let batch = BatchView::parse(left);
        match &batch {
            Ok(view) => self.position += view.bytes().len(),
            Err(_) => self.failed = true,
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::base::Offset;

    fn batch(base: i64, body: &[u8]) -> Vec<u8> {
        let mut head = BatchHead::empty();
        head.set_base_offset(Offset(base));
        head.seal(body);
        [head.as_bytes(), body].concat()
    }

    #[test]
    fn batches_of_a_buffer_come_in_order_and_a_torn_tail_is_told() {
        let mut buffer = [batch(0, b"one"), batch(1, b"two!"), batch(2, b"")].concat();
        let whole = buffer.len();
        buffer.extend_from_slice(&batch(3, b"torn")[..40]);

        let mut batches = Batches::new(&buffer);
        for (base, body) in [(0, &b"one"[..]), (1, b"two!"), (2, b"")] {
            let view = batches.next().unwrap().unwrap();
            assert_eq!((view.head().base_offset(), view.body()), (Offset(base), body));
            assert_eq!(view.check_crc(), Ok(()));
        }
        assert_eq!(batches.position(), whole);
        let torn = BatchError::Incomplete { wanted: HEAD_LEN, left: 40 };
        assert_eq!(batches.next().unwrap().unwrap_err(), torn);
        assert!(batches.next().is_none());
    }

    #[test]
    fn flipped_bit_fails_the_checksum() {
        let mut bytes = batch(0, b"payload");
        bytes[65] ^= 1;
        let view = BatchView::parse(&bytes).unwrap();
        assert!(matches!(view.check_crc(), Err(BatchError::Crc { .. })));
    }

    #[test]
    fn impossible_lengths_and_old_formats_are_refused() {
        let mut bytes = batch(0, b"");
        bytes[11] = 48;
        assert_eq!(BatchView::parse(&bytes).unwrap_err(), BatchError::Length { length: 48 });
        bytes[8] = 0xff;
        assert!(matches!(BatchView::parse(&bytes), Err(BatchError::Length { length }) if length < 0));
        let mut bytes = batch(0, b"");
        bytes[16] = 1;
        assert_eq!(BatchView::parse(&bytes).unwrap_err(), BatchError::Magic { magic: 1 });
    }
}
