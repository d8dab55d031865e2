//! The records inside a batch's uncompressed body, borrowed from it.

use super::head::BatchHead;
use super::varint;
use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::config::TimestampType;

/// Why the body of a batch is not the records its head announces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordFormatError {
    #[error("batch ends inside a record")]
    Truncated,
    #[error("record length {0} is impossible")]
    Length(i32),
    #[error("record of {len} bytes exceeds max.decompressed.message.bytes={len_max}")]
    TooLong { len: i32, len_max: usize },
    #[error("variable-length integer does not end")]
    Varint,
    #[error("a field of the record leaves its bounds")]
    Field,
    #[error("record has {0} headers")]
    HeaderCount(i32),
    #[error("record is longer than its fields")]
    Surplus,
    #[error("bytes are left behind the {count} records that the batch head counts")]
    MoreThanCounted { count: i32 },
    #[error("batch head counts {count} records, {found} are there")]
    FewerThanCounted { count: i32, found: i32 },
}

/// One record. Key, value and headers borrow from the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    pub offset: Offset,
    /// The batch's append time where the batch has LogAppendTime.
    pub timestamp: Timestamp,
    pub key: Option<&'a [u8]>,
    /// `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    pub headers: Headers<'a>,
    /// As stored, relative to the batch's base offset.
    pub offset_delta: i32,
    /// As stored, relative to the batch's base timestamp.
    pub timestamp_delta: i64,
}

/// One header of a record. Kafka means the key to be UTF-8; nothing checks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
}

/// The headers of a record, in order, duplicates kept. Checked when the record was parsed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Headers<'a> {
    raw: &'a [u8],
    count: u32,
}

impl Headers<'_> {
    pub fn len(&self) -> usize {
        self.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        if self.count == 0 {
            return None;
        }
        self.count -= 1;
        let mut position = 0;
        let header = read_header(self.raw, &mut position).ok()?;
        self.raw = &self.raw[position..];
        Some(header)
    }
}

/// Iterates over the records of an uncompressed body; ends after the first error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    head: &'a BatchHead,
    body: &'a [u8],
    position: usize,
    given: i32,
    failed: bool,
}

impl<'a> Records<'a> {
    /// `body` is what follows `head`, decompressed if the batch is compressed.
    pub fn new(head: &'a BatchHead, body: &'a [u8]) -> Self {
        Self { head, body, position: 0, given: 0, failed: false }
    }

    fn read(&mut self) -> Result<Record<'a>, RecordFormatError> {
        let mut record = parse(self.body, &mut self.position)?;
        record.offset = Offset(self.head.base_offset().0.saturating_add(i64::from(record.offset_delta)));
        record.timestamp = match self.head.attributes().timestamp_type() {
            TimestampType::LogAppendTime => self.head.max_timestamp(),
            TimestampType::CreateTime => {
                Timestamp(self.head.base_timestamp().0.wrapping_add(record.timestamp_delta))
            }
        };
        Ok(record)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, RecordFormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let count = self.head.count();
        let outcome = match (self.given >= count, self.position == self.body.len()) {
            (true, true) => return None,
            (true, false) => Err(RecordFormatError::MoreThanCounted { count }),
            (false, true) => Err(RecordFormatError::FewerThanCounted { count, found: self.given }),
            (false, false) => self.read(),
        };
        self.given += 1;
        self.failed = outcome.is_err();
        Some(outcome)
    }
}

/// Reads the record at `*position` and moves on. Offset and timestamp are left for the caller.
pub(super) fn parse<'a>(body: &'a [u8], position: &mut usize) -> Result<Record<'a>, RecordFormatError> {
    let len = varint::read_i32(body, position).ok_or(RecordFormatError::Varint)?;
    let len_unsigned = usize::try_from(len).map_err(|_| RecordFormatError::Length(len))?;
    let left = body.len() - *position;
    if len_unsigned > left {
        return Err(RecordFormatError::Truncated);
    }
    let fields = &body[*position..*position + len_unsigned];
    *position += len_unsigned;

    // Byte 0 holds attributes, none of which is in use.
    let mut at = 1;
    let timestamp_delta = varint::read_i64(fields, &mut at).ok_or(RecordFormatError::Varint)?;
    let offset_delta = varint::read_i32(fields, &mut at).ok_or(RecordFormatError::Varint)?;
    let key = read_field(fields, &mut at)?;
    let value = read_field(fields, &mut at)?;
    let count = varint::read_i32(fields, &mut at).ok_or(RecordFormatError::Varint)?;
    let count = u32::try_from(count).map_err(|_| RecordFormatError::HeaderCount(count))?;
    let raw = &fields[at..];
    // A header takes two bytes at least, so the walk is bounded by the record.
    for _ in 0..count {
        read_header(fields, &mut at)?;
    }
    if at != fields.len() {
        return Err(RecordFormatError::Surplus);
    }
    Ok(Record {
        offset: Offset::ZERO,
        timestamp: Timestamp::NONE,
        key,
        value,
        headers: Headers { raw, count },
        offset_delta,
        timestamp_delta,
    })
}

/// What [`skim`] takes note of.
#[derive(Clone, Copy)]
pub(super) struct Skimmed {
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub has_key: bool,
}

/// [`parse`] for who asks only whether a record is sound: the same rules, and nothing is kept of its fields.
#[inline]
pub(super) fn skim(fields: &[u8]) -> Result<Skimmed, RecordFormatError> {
    let mut at = 1;
    let timestamp_delta = varint::read_i64(fields, &mut at).ok_or(RecordFormatError::Varint)?;
    let offset_delta = varint::read_i32(fields, &mut at).ok_or(RecordFormatError::Varint)?;
    let has_key = skip_field(fields, &mut at)?;
    skip_field(fields, &mut at)?;
    let count = varint::read_i32(fields, &mut at).ok_or(RecordFormatError::Varint)?;
    for _ in 0..u32::try_from(count).map_err(|_| RecordFormatError::HeaderCount(count))? {
        read_header(fields, &mut at)?;
    }
    if at != fields.len() {
        return Err(RecordFormatError::Surplus);
    }
    Ok(Skimmed { timestamp_delta, offset_delta, has_key })
}

/// Whether there is a field at all.
#[inline(always)]
fn skip_field(fields: &[u8], at: &mut usize) -> Result<bool, RecordFormatError> {
    let len = varint::read_i32(fields, at).ok_or(RecordFormatError::Varint)?;
    let Ok(len) = usize::try_from(len) else { return Ok(false) };
    if len > fields.len() - *at {
        return Err(RecordFormatError::Field);
    }
    *at += len;
    Ok(true)
}

fn read_header<'a>(fields: &'a [u8], at: &mut usize) -> Result<Header<'a>, RecordFormatError> {
    let key = read_field(fields, at)?.ok_or(RecordFormatError::Field)?;
    let value = read_field(fields, at)?;
    Ok(Header { key, value })
}

/// A length and that many bytes; a negative length is null.
fn read_field<'a>(fields: &'a [u8], at: &mut usize) -> Result<Option<&'a [u8]>, RecordFormatError> {
    let len = varint::read_i32(fields, at).ok_or(RecordFormatError::Varint)?;
    let Ok(len) = usize::try_from(len) else { return Ok(None) };
    if len > fields.len() - *at {
        return Err(RecordFormatError::Field);
    }
    let field = &fields[*at..*at + len];
    *at += len;
    Ok(Some(field))
}
