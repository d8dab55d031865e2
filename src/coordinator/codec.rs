//! Kafka's primitive types as the records of `__consumer_offsets` use them. Nothing is allocated from a
//! count before the bytes for it are known to be there.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::protocol::StrBytes;

use crate::base::TopicId;

/// Kafka's limit for a string of any form, in bytes of UTF-8.
pub(super) const STRING_BYTES_MAX: usize = i16::MAX as usize;

/// The bytes are not what their version promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed at byte {0}")]
pub struct Malformed(pub usize);

/// Reads from the front of a slice. Strings and bytes are copied, so that nothing pins the read buffer.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Strings, bytes and arrays in the compact form, and tagged fields (KIP-482).
    flexible: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, flexible: false }
    }

    pub(super) fn set_flexible(&mut self, flexible: bool) {
        self.flexible = flexible;
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    fn malformed<T>(&self) -> Result<T, Malformed> {
        Err(Malformed(self.position))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        match self.bytes[self.position..].get(..count) {
            Some(slice) => {
                self.position += count;
                Ok(slice)
            }
            None => self.malformed(),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn i8(&mut self) -> Result<i8, Malformed> {
        self.array().map(i8::from_be_bytes)
    }

    pub(super) fn i16(&mut self) -> Result<i16, Malformed> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    pub(super) fn topic_id(&mut self) -> Result<TopicId, Malformed> {
        self.array().map(|bytes| TopicId(uuid::Uuid::from_bytes(bytes)))
    }

    pub(super) fn varint(&mut self) -> Result<u32, Malformed> {
        let mut value = 0u32;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array()?;
            value |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.malformed()
    }

    /// A length or count; `None` is null.
    fn length(&mut self, short: bool) -> Result<Option<usize>, Malformed> {
        let length = match (self.flexible, short) {
            (true, _) => i64::from(self.varint()?) - 1,
            (false, true) => i64::from(self.i16()?),
            (false, false) => i64::from(self.i32()?),
        };
        match length {
            -1 => Ok(None),
            // Each element has at least a byte.
            length if length >= 0 && length as u64 <= self.remaining() as u64 => Ok(Some(length as usize)),
            _ => self.malformed(),
        }
    }

    pub(super) fn nullable_string(&mut self) -> Result<Option<StrBytes>, Malformed> {
        let Some(length) = self.length(true)? else { return Ok(None) };
        let at = self.position;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| Malformed(at))?;
        Ok(Some(StrBytes::from_string(text.to_owned())))
    }

    pub(super) fn string(&mut self) -> Result<StrBytes, Malformed> {
        match self.nullable_string()? {
            Some(text) => Ok(text),
            None => self.malformed(),
        }
    }

    pub(super) fn nullable_bytes(&mut self) -> Result<Option<Bytes>, Malformed> {
        match self.length(false)? {
            Some(length) => self.take(length).map(Bytes::copy_from_slice).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn bytes(&mut self) -> Result<Bytes, Malformed> {
        match self.nullable_bytes()? {
            Some(bytes) => Ok(bytes),
            None => self.malformed(),
        }
    }

    /// The count of an array that may be null.
    pub(super) fn nullable_count(&mut self) -> Result<Option<usize>, Malformed> {
        self.length(false)
    }

    pub(super) fn count(&mut self) -> Result<usize, Malformed> {
        match self.length(false)? {
            Some(count) => Ok(count),
            None => self.malformed(),
        }
    }

    /// Reads the tagged fields of a flexible structure and gives each to `known`; does nothing else.
    pub(super) fn tagged_fields(&mut self, mut known: impl FnMut(u32, &'a [u8])) -> Result<(), Malformed> {
        if !self.flexible {
            return Ok(());
        }
        for _ in 0..self.varint()? {
            let tag = self.varint()?;
            let length = self.varint()? as usize;
            known(tag, self.take(length)?);
        }
        Ok(())
    }
}

/// Writes a key or a value behind the version of its schema.
pub(super) struct Writer(BytesMut);

impl Writer {
    pub(super) fn new(version: i16) -> Self {
        let mut buffer = BytesMut::with_capacity(64);
        buffer.put_i16(version);
        Self(buffer)
    }

    pub(super) fn i8(&mut self, value: i8) -> &mut Self {
        self.0.put_i8(value);
        self
    }

    pub(super) fn i16(&mut self, value: i16) -> &mut Self {
        self.0.put_i16(value);
        self
    }

    pub(super) fn i32(&mut self, value: i32) -> &mut Self {
        self.0.put_i32(value);
        self
    }

    pub(super) fn i64(&mut self, value: i64) -> &mut Self {
        self.0.put_i64(value);
        self
    }

    pub(super) fn topic_id(&mut self, id: TopicId) -> &mut Self {
        self.0.put_slice(id.0.as_bytes());
        self
    }

    /// At most [`STRING_BYTES_MAX`]: the coordinator refuses a request with a longer one.
    pub(super) fn string(&mut self, text: &str) -> &mut Self {
        let length = i16::try_from(text.len()).expect("strings are checked when a request comes in");
        self.0.put_i16(length);
        self.0.put_slice(text.as_bytes());
        self
    }

    pub(super) fn compact_string(&mut self, text: &str) -> &mut Self {
        let length = u32::try_from(text.len()).expect("strings are checked when a request comes in");
        self.varint(length + 1);
        self.0.put_slice(text.as_bytes());
        self
    }

    pub(super) fn compact_nullable_string(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.compact_string(text),
            None => self.varint(0),
        }
    }

    pub(super) fn compact_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.compact_count(Some(bytes.len()));
        self.0.put_slice(bytes);
        self
    }

    /// The count of a compact array; `None` is null.
    pub(super) fn compact_count(&mut self, count: Option<usize>) -> &mut Self {
        let count = count.map_or(Some(0), |count| u32::try_from(count).ok()?.checked_add(1));
        self.varint(count.expect("a request is shorter than 2 GiB"))
    }

    pub(super) fn varint(&mut self, mut value: u32) -> &mut Self {
        while value >= 0x80 {
            self.0.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.put_u8(value as u8);
        self
    }

    /// The tagged fields that end a flexible structure, ascending by tag.
    pub(super) fn tagged_fields(&mut self, fields: &[(u32, &[u8])]) -> &mut Self {
        self.varint(fields.len() as u32);
        for (tag, bytes) in fields {
            self.varint(*tag).varint(bytes.len() as u32);
            self.0.put_slice(bytes);
        }
        self
    }

    /// The count of an array.
    pub(super) fn count(&mut self, count: usize) -> &mut Self {
        self.i32(i32::try_from(count).expect("a request is shorter than 2 GiB"))
    }

    pub(super) fn nullable_string(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.string(text),
            None => {
                self.0.put_i16(-1);
                self
            }
        }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let length = i32::try_from(bytes.len()).expect("a request is shorter than 2 GiB");
        self.0.put_i32(length);
        self.0.put_slice(bytes);
        self
    }

    /// Without the version of a schema: a part of a value.
    pub(super) fn part() -> Self {
        Self(BytesMut::new())
    }

    pub(super) fn finish(self) -> Bytes {
        self.0.freeze()
    }
}
