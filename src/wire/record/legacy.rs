//! Messages of formats 0 and 1, which brokers before 0.11 wrote. Kafka 4.x still reads them from disk: fetches
//! return them as they are, compaction turns them into batches of format 2, nothing writes them any more.
//!
//! A message is one record, or the wrapper of a compressed set of messages. To whoever walks a file it is shown as
//! a [`BatchHead`] of its format with what they have in common: [`BatchHead::of_entry`].

use bytes::Bytes;

use super::builder::BatchBuilder;
use super::codec::{CodecError, Compression, decompress};
use super::head::{Attributes, BatchHead, Codec, HEAD_LEN, LOG_OVERHEAD, MAGIC};
use super::records::{Headers, Record, RecordFormatError};
use super::view::{BatchError, ReadError};
use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::config::TimestampType;

/// Bytes to tell what an entry of a file is: up to its format.
const MAGIC_AT: usize = 16;

const CRC_AT: usize = 12;
const ATTRIBUTES_AT: usize = 17;
const TIMESTAMP_AT: usize = 18;

/// Offset, length, checksum, format, attributes, and the lengths of key and value.
const MESSAGE_LEN_MIN_0: usize = 26;
/// The same and a timestamp.
const MESSAGE_LEN_MIN_1: usize = 34;

impl BatchHead {
    /// The head of the batch, or of the message of an old format, that `bytes` begin with. A message has only
    /// offset, length, format, checksum, codec and timestamp; its offset is that of its last record.
    pub fn of_entry(bytes: &[u8]) -> Result<BatchHead, BatchError> {
        let incomplete = |wanted| BatchError::Incomplete { wanted, left: bytes.len() };
        let Some(magic) = bytes.get(MAGIC_AT) else { return Err(incomplete(HEAD_LEN)) };
        let (least, head) = match *magic as i8 {
            MAGIC => {
                let head = bytes.first_chunk::<HEAD_LEN>().ok_or_else(|| incomplete(HEAD_LEN))?;
                (HEAD_LEN, BatchHead::from_bytes(head))
            }
            0 if bytes.len() < MESSAGE_LEN_MIN_0 => return Err(incomplete(MESSAGE_LEN_MIN_0)),
            1 if bytes.len() < MESSAGE_LEN_MIN_1 => return Err(incomplete(MESSAGE_LEN_MIN_1)),
            0 => (MESSAGE_LEN_MIN_0, message_head(bytes, Timestamp::NONE)),
            1 => (MESSAGE_LEN_MIN_1, message_head(bytes, Timestamp(read_i64(bytes, TIMESTAMP_AT)))),
            magic => return Err(BatchError::Magic { magic }),
        };
        if head.length() < (least - LOG_OVERHEAD) as i32 {
            return Err(BatchError::Length { length: head.length() });
        }
        Ok(head)
    }

    /// A message of format 0 or 1.
    pub fn is_legacy(&self) -> bool {
        self.magic() < MAGIC
    }

    /// Compares the checksum with the bytes of the whole entry, whatever its format.
    pub fn is_intact(&self, entry: &[u8]) -> bool {
        if entry.len() != self.total_len() {
            return false;
        }
        let computed = match self.is_legacy() {
            true => crc32fast::hash(&entry[MAGIC_AT..]),
            false => self.compute_crc(&entry[HEAD_LEN..]),
        };
        computed == self.crc()
    }
}

fn message_head(bytes: &[u8], timestamp: Timestamp) -> BatchHead {
    let attributes = Attributes(i16::from(bytes[ATTRIBUTES_AT]));
    let kind = attributes.timestamp_type();
    let codec = attributes.codec().unwrap_or(Codec::None);
    BatchHead::of_message(
        bytes[MAGIC_AT] as i8,
        Offset(read_i64(bytes, 0)),
        read_i32(bytes, 8),
        read_i32(bytes, CRC_AT) as u32,
        Attributes::default().with_codec(codec).with_timestamp_type(kind),
        timestamp,
    )
}

fn read_i64(bytes: &[u8], at: usize) -> i64 {
    bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | i64::from(*byte))
}

fn read_i32(bytes: &[u8], at: usize) -> i32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | i32::from(*byte))
}

/// The records of a whole message, those of its compressed set if it is a wrapper: into `scratch`, which is
/// emptied first and takes at most `limit` bytes.
pub fn legacy_records<'a>(
    entry: &'a [u8],
    scratch: &'a mut Vec<u8>,
    limit: usize,
) -> Result<Vec<Record<'a>>, ReadError> {
    let wrapper = message(entry, &mut 0)?;
    if wrapper.codec == Codec::None {
        return Ok(vec![wrapper.record(wrapper.offset, wrapper.timestamp)]);
    }
    let compressed = wrapper.value.ok_or(RecordFormatError::Field)?;
    scratch.clear();
    decompress_set(&wrapper, compressed, limit, scratch)?;
    let mut messages = Vec::new();
    let mut position = 0;
    while position < scratch.len() {
        let inner = message(scratch, &mut position)?;
        if inner.codec != Codec::None {
            return Err(RecordFormatError::Field.into());
        }
        messages.push(inner);
    }
    let Some(last) = messages.last().map(|last| last.offset) else { return Ok(Vec::new()) };
    // Format 1 counts from the first record that the set was made with; the wrapper has the last one's offset.
    let first = if wrapper.magic == 0 { 0 } else { wrapper.offset.0.saturating_sub(last.0) };
    let records = messages.iter().map(|inner| {
        let timestamp = match wrapper.timestamp_type {
            TimestampType::LogAppendTime => wrapper.timestamp,
            TimestampType::CreateTime => inner.timestamp,
        };
        inner.record(Offset(first.saturating_add(inner.offset.0)), timestamp)
    });
    Ok(records.collect())
}

/// The message as a batch of format 2 in its own codec: what compaction makes of it, as Kafka's does
/// (`MemoryRecords.filterTo`).
pub fn upgrade_message(entry: &[u8], limit: usize) -> Result<Bytes, ReadError> {
    let mut scratch = Vec::new();
    let wrapper = message(entry, &mut 0)?;
    let records = legacy_records(entry, &mut scratch, limit)?;
    let rises = records.windows(2).all(|pair| pair[0].offset < pair[1].offset);
    if !rises || records.last().is_some_and(|last| last.offset > wrapper.offset) {
        return Err(RecordFormatError::Field.into());
    }
    let first = records.first().map_or(wrapper.offset, |record| record.offset);
    let mut builder = BatchBuilder::new(first, Compression::of(wrapper.codec));
    if wrapper.timestamp_type == TimestampType::LogAppendTime {
        builder = builder.with_log_append_time(wrapper.timestamp);
    }
    for record in &records {
        builder.append_at(record.offset, record.timestamp, record.key, record.value, &[]);
    }
    builder.set_last_offset(wrapper.offset);
    Ok(builder.finish()?)
}

struct Message<'a> {
    magic: i8,
    offset: Offset,
    codec: Codec,
    timestamp_type: TimestampType,
    timestamp: Timestamp,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    fn record(&self, offset: Offset, timestamp: Timestamp) -> Record<'a> {
        let headers = Headers::default();
        Record {
            offset,
            timestamp,
            key: self.key,
            value: self.value,
            headers,
            offset_delta: 0,
            timestamp_delta: 0,
        }
    }
}

/// Reads the message at `position` and moves it on.
fn message<'a>(bytes: &'a [u8], position: &mut usize) -> Result<Message<'a>, ReadError> {
    let left = &bytes[*position..];
    let head = match BatchHead::of_entry(left) {
        Ok(head) if head.is_legacy() => head,
        Ok(_) => return Err(RecordFormatError::Field.into()),
        Err(_) => return Err(RecordFormatError::Truncated.into()),
    };
    let entry = left.get(..head.total_len()).ok_or(RecordFormatError::Truncated)?;
    *position += entry.len();
    let attributes = Attributes(i16::from(entry[ATTRIBUTES_AT]));
    let mut fields = match head.magic() {
        0 => &entry[TIMESTAMP_AT..],
        _ => &entry[TIMESTAMP_AT + 8..],
    };
    let (key, value) = (field(&mut fields)?, field(&mut fields)?);
    if !fields.is_empty() {
        return Err(RecordFormatError::Surplus.into());
    }
    Ok(Message {
        magic: head.magic(),
        offset: head.base_offset(),
        codec: attributes.codec().ok_or(CodecError::Unknown(attributes.0))?,
        timestamp_type: attributes.timestamp_type(),
        timestamp: head.max_timestamp(),
        key,
        value,
    })
}

/// A length, -1 for null, and so many bytes.
fn field<'a>(fields: &mut &'a [u8]) -> Result<Option<&'a [u8]>, RecordFormatError> {
    let (length, rest) = fields.split_first_chunk::<4>().ok_or(RecordFormatError::Truncated)?;
    *fields = rest;
    let length = i32::from_be_bytes(*length);
    if length == -1 {
        return Ok(None);
    }
    let length = usize::try_from(length).map_err(|_| RecordFormatError::Length(length))?;
    let (field, rest) = rest.split_at_checked(length).ok_or(RecordFormatError::Field)?;
    *fields = rest;
    Ok(Some(field))
}

fn decompress_set(
    wrapper: &Message<'_>,
    compressed: &[u8],
    limit: usize,
    scratch: &mut Vec<u8>,
) -> Result<(), CodecError> {
    if wrapper.magic == 0
        && wrapper.codec == Codec::Lz4
        && let Some(mended) = lz4_frame_of_format_0(compressed)
    {
        return decompress(Codec::Lz4, &mended, limit, scratch);
    }
    decompress(wrapper.codec, compressed, limit, scratch)
}

/// Producers of format 0 computed the checksum in the head of an LZ4 frame over its magic number too (KAFKA-3160).
/// The frame with the right one; `None` where it is no frame with a plain head.
fn lz4_frame_of_format_0(compressed: &[u8]) -> Option<Vec<u8>> {
    const CONTENT_SIZE: u8 = 0x08;
    const DESCRIPTOR_AT: usize = 4;
    let flags = *compressed.get(DESCRIPTOR_AT)?;
    let length = if flags & CONTENT_SIZE == 0 { 2 } else { 10 };
    let descriptor = compressed.get(DESCRIPTOR_AT..DESCRIPTOR_AT + length)?;
    let checksum = (xxh32_short(descriptor) >> 8) as u8;
    let mut mended = compressed.to_vec();
    *mended.get_mut(DESCRIPTOR_AT + length)? = checksum;
    Some(mended)
}

/// XXH32 of fewer than 16 bytes with seed 0.
fn xxh32_short(bytes: &[u8]) -> u32 {
    const PRIME: [u32; 5] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d, 0x27d4_eb2f, 0x1656_67b1];
    assert!(bytes.len() < 16, "longer input is hashed in stripes");
    let mut hash = PRIME[4].wrapping_add(bytes.len() as u32);
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        hash = hash.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(PRIME[2]));
        hash = hash.rotate_left(17).wrapping_mul(PRIME[3]);
    }
    for byte in rest {
        hash = hash.wrapping_add(u32::from(*byte).wrapping_mul(PRIME[4]));
        hash = hash.rotate_left(11).wrapping_mul(PRIME[0]);
    }
    hash = (hash ^ (hash >> 15)).wrapping_mul(PRIME[1]);
    hash = (hash ^ (hash >> 13)).wrapping_mul(PRIME[2]);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::super::BatchView;
    use super::*;

    const SEGMENTS: [&[u8]; 2] = [
        include_bytes!("../../../tests/fixtures/legacy/old-0/00000000000000000000.log"),
        include_bytes!("../../../tests/fixtures/legacy/old-0/00000000000000000011.log"),
    ];

    fn entries() -> Vec<&'static [u8]> {
        let mut entries = Vec::new();
        for mut left in SEGMENTS {
            while !left.is_empty() {
                let (entry, rest) = left.split_at(BatchHead::of_entry(left).unwrap().total_len());
                entries.push(entry);
                left = rest;
            }
        }
        entries
    }

    #[test]
    fn a_message_becomes_a_batch_of_the_same_records() {
        let entries = entries();
        assert_eq!(entries.len(), 13);
        for entry in entries {
            let head = BatchHead::of_entry(entry).unwrap();
            let upgraded = upgrade_message(entry, 1 << 20).unwrap();
            let view = BatchView::parse(&upgraded).unwrap();
            view.check_crc().unwrap();
            assert_eq!(view.head().last_offset(), head.last_offset());
            assert_eq!(view.head().max_timestamp(), head.max_timestamp());
            let (mut scratch, mut old_scratch) = (Vec::new(), Vec::new());
            let records = view.records(&mut scratch, 1 << 20).unwrap().map(Result::unwrap);
            let fields = |record: &Record<'_>| {
                let bytes = |field: Option<&[u8]>| field.map(<[u8]>::to_vec);
                (record.offset, record.timestamp, bytes(record.key), bytes(record.value))
            };
            let records: Vec<_> = records.map(|record| fields(&record)).collect();
            let old: Vec<_> =
                legacy_records(entry, &mut old_scratch, 1 << 20).unwrap().iter().map(fields).collect();
            assert_eq!(records, old);
        }
    }

    #[test]
    fn damaged_and_cut_messages_are_refused_without_a_panic() {
        for entry in entries() {
            let head = BatchHead::of_entry(entry).unwrap();
            assert!(head.is_intact(entry));
            for length in 0..entry.len() {
                assert!(legacy_records(&entry[..length], &mut Vec::new(), 1 << 20).is_err());
                assert!(!head.is_intact(&entry[..length]));
            }
            for at in 12..entry.len() {
                let mut damaged = entry.to_vec();
                damaged[at] ^= 0x21;
                let intact = BatchHead::of_entry(&damaged).is_ok_and(|head| head.is_intact(&damaged));
                assert!(!intact, "byte {at}");
                let _ = legacy_records(&damaged, &mut Vec::new(), 1 << 20);
            }
        }
    }

    #[test]
    fn the_hash_is_xxh32() {
        // From the reference implementation's tests of short inputs, seed 0.
        assert_eq!(xxh32_short(b""), 0x02cc_5d05);
        assert_eq!(xxh32_short(b"a"), 0x550d_7456);
        assert_eq!(xxh32_short(b"abc"), 0x32d1_53ff);
    }
}
