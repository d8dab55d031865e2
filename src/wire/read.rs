//! A checked cursor over the bytes of one message. Every length is compared with what remains before
//! anything is sliced; nothing is allocated from a count.

use bytes::Bytes;

use crate::base::TopicId;

/// Topics and partitions that one Produce or Fetch request may name, and array elements and tagged fields of any
/// other, all arrays together, so that no request holds its shard for long: each becomes up to some hundred bytes
/// in memory, whatever it takes on the wire. Ten times what a client of the largest clusters asks for.
pub const ELEMENTS_MAX: usize = 200_000;

/// The longest string of a message (`MessageDataGenerator`: above it a field "had invalid length").
pub const STRING_BYTES_MAX: usize = i16::MAX as usize;

/// Why bytes are not the message they should be. The connection they came from is closed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("message ends inside a field: {wanted} bytes wanted, {left} left")]
    Truncated { wanted: usize, left: usize },
    #[error("length or count {0} is negative")]
    Negative(i64),
    #[error("null where a value is required")]
    Null,
    #[error("count {count} cannot fit in the {left} bytes left")]
    Count { count: u64, left: usize },
    #[error("more than {ELEMENTS_MAX} topics and partitions")]
    Elements,
    #[error("variable-length integer is longer than its type")]
    Varint,
    #[error("string of {0} bytes is longer than {STRING_BYTES_MAX}")]
    StringLength(usize),
    #[error("string is not UTF-8")]
    Utf8,
    #[error("version {version} of API {key} has no decoder")]
    Version { key: i16, version: i16 },
    #[error("message does not decode: {0}")]
    Message(String),
}

/// Reads big-endian fields, legacy and compact lengths, and slices without copying.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a Bytes,
    position: usize,
    elements_left: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a Bytes) -> Self {
        Self { bytes, position: 0, elements_left: ELEMENTS_MAX }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes not yet read.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.position
    }

    pub fn skip(&mut self, count: usize) -> Result<(), DecodeError> {
        self.take(count).map(|_| ())
    }

    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        Ok(self.array::<1>()?[0] != 0)
    }

    pub fn i8(&mut self) -> Result<i8, DecodeError> {
        Ok(i8::from_be_bytes(self.array()?))
    }

    pub fn i16(&mut self) -> Result<i16, DecodeError> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub fn topic_id(&mut self) -> Result<TopicId, DecodeError> {
        Ok(TopicId(uuid::Uuid::from_bytes(self.array()?)))
    }

    /// An unsigned variable-length integer of at most five bytes.
    pub fn varint(&mut self) -> Result<u32, DecodeError> {
        let mut value: u32 = 0;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.array::<1>()?[0];
            if shift == 28 && byte > 0x0f {
                return Err(DecodeError::Varint);
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Varint)
    }

    /// The length of an array whose elements take at least `element_len_min` bytes each; `None` is null.
    /// The count is proved to fit in what is left, so a vector of that capacity costs no more than a small
    /// multiple of the message.
    pub fn count(&mut self, flexible: bool, element_len_min: usize) -> Result<Option<usize>, DecodeError> {
        let count = if flexible { self.compact_len()? } else { nullable_len(i64::from(self.i32()?))? };
        let Some(count) = count else { return Ok(None) };
        match count.checked_mul(element_len_min) {
            Some(total) if total <= self.left() => Ok(Some(count)),
            _ => Err(DecodeError::Count { count: count as u64, left: self.left() }),
        }
    }

    /// The length of an array that must be there, counted against [`ELEMENTS_MAX`] for the whole message.
    pub fn elements(&mut self, flexible: bool, element_len_min: usize) -> Result<usize, DecodeError> {
        let count = self.count(flexible, element_len_min)?.ok_or(DecodeError::Null)?;
        self.elements_left = self.elements_left.checked_sub(count).ok_or(DecodeError::Elements)?;
        Ok(count)
    }

    /// A length-prefixed run of bytes (`bytes`, `records`), sliced without copying; `None` is null.
    pub fn bytes(&mut self, flexible: bool) -> Result<Option<Bytes>, DecodeError> {
        let len = if flexible { self.compact_len()? } else { nullable_len(i64::from(self.i32()?))? };
        len.map(|len| self.slice(len)).transpose()
    }

    /// Kafka's generated readers take no string above 32,767 bytes, though a compact length could say more.
    fn string_len(&mut self, flexible: bool) -> Result<Option<usize>, DecodeError> {
        if !flexible {
            return nullable_len(i64::from(self.i16()?));
        }
        let len = self.compact_len()?;
        match len {
            Some(len) if len > STRING_BYTES_MAX => Err(DecodeError::StringLength(len)),
            len => Ok(len),
        }
    }

    /// The raw bytes of a nullable string.
    pub fn string_bytes(&mut self, flexible: bool) -> Result<Option<Bytes>, DecodeError> {
        let len = self.string_len(flexible)?;
        len.map(|len| self.slice(len)).transpose()
    }

    /// A nullable string, borrowed from the message.
    pub fn nullable_string(&mut self, flexible: bool) -> Result<Option<&'a str>, DecodeError> {
        let Some(len) = self.string_len(flexible)? else { return Ok(None) };
        let raw = self.take(len)?;
        std::str::from_utf8(raw).map(Some).map_err(|_| DecodeError::Utf8)
    }

    /// A string that must not be null, borrowed from the message.
    pub fn string(&mut self, flexible: bool) -> Result<&'a str, DecodeError> {
        self.nullable_string(flexible)?.ok_or(DecodeError::Null)
    }

    /// The tagged fields that end every structure of a flexible version (KIP-482). Calls `known` with each
    /// tag and a reader bounded to the field's own bytes; what `known` leaves unread is skipped.
    pub fn tagged_fields(
        &mut self,
        mut known: impl FnMut(u32, &mut Reader<'_>) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        let count = self.varint()?;
        // Each takes a tag and a length, a byte each at least.
        if count as usize > self.left() / 2 {
            return Err(DecodeError::Count { count: u64::from(count), left: self.left() });
        }
        for _ in 0..count {
            let tag = self.varint()?;
            let len = self.varint()? as usize;
            let field = self.slice(len)?;
            known(tag, &mut Reader::new(&field))?;
        }
        Ok(())
    }

    /// Skips the tagged fields of a structure that has none we know; reads nothing unless `flexible`.
    pub fn skip_tagged_fields(&mut self, flexible: bool) -> Result<(), DecodeError> {
        if !flexible {
            return Ok(());
        }
        let count = self.varint()?;
        if count as usize > self.left() / 2 {
            return Err(DecodeError::Count { count: u64::from(count), left: self.left() });
        }
        for _ in 0..count {
            self.varint()?;
            let len = self.varint()? as usize;
            self.skip(len)?;
        }
        Ok(())
    }

    /// A slice of the message that shares its memory.
    pub fn slice(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        let start = self.position;
        self.skip(len)?;
        Ok(self.bytes.slice(start..start + len))
    }

    /// Everything not yet read, sharing the message's memory.
    pub fn rest(self) -> Bytes {
        self.bytes.slice(self.position..)
    }

    /// A compact length: 0 is null, else one more than the length.
    fn compact_len(&mut self) -> Result<Option<usize>, DecodeError> {
        Ok((self.varint()? as usize).checked_sub(1))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let left = self.left();
        if len > left {
            return Err(DecodeError::Truncated { wanted: len, left });
        }
        let taken = &self.bytes[self.position..self.position + len];
        self.position += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let left = self.left();
        let Some(array) = self.bytes[self.position..].first_chunk::<N>() else {
            return Err(DecodeError::Truncated { wanted: N, left });
        };
        self.position += N;
        Ok(*array)
    }
}

/// A legacy length: -1 is null, everything below an error.
fn nullable_len(len: i64) -> Result<Option<usize>, DecodeError> {
    match len {
        -1 => Ok(None),
        len => usize::try_from(len).map(Some).map_err(|_| DecodeError::Negative(len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint_of(bytes: &'static [u8]) -> Result<u32, DecodeError> {
        Reader::new(&Bytes::from_static(bytes)).varint()
    }

    #[test]
    fn varint_of_more_than_32_bits_is_refused() {
        assert_eq!(varint_of(&[0x00]), Ok(0));
        assert_eq!(varint_of(&[0xff, 0x7f]), Ok(16383));
        assert_eq!(varint_of(&[0xff, 0xff, 0xff, 0xff, 0x0f]), Ok(u32::MAX));
        assert_eq!(varint_of(&[0xff, 0xff, 0xff, 0xff, 0x1f]), Err(DecodeError::Varint));
        assert_eq!(varint_of(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00]), Err(DecodeError::Varint));
        assert_eq!(varint_of(&[0x80]), Err(DecodeError::Truncated { wanted: 1, left: 0 }));
    }

    #[test]
    fn count_larger_than_the_message_is_refused() {
        let huge = Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff, 1, 2, 3, 4]);
        assert!(matches!(Reader::new(&huge).count(false, 4), Err(DecodeError::Count { .. })));
        let negative = Bytes::from_static(&[0xff, 0xff, 0xff, 0xfe]);
        assert_eq!(Reader::new(&negative).count(false, 4), Err(DecodeError::Negative(-2)));
        let null = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff]);
        assert_eq!(Reader::new(&null).count(false, 4), Ok(None));
        let two = Bytes::from_static(&[3, 0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(Reader::new(&two).count(true, 4), Ok(Some(2)));
    }

    #[test]
    fn strings_end_where_kafkas_readers_let_them_end() {
        let text = |len: usize| {
            let mut bytes = Vec::new();
            let mut rest = len as u32 + 1;
            while rest >= 0x80 {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
            bytes.resize(bytes.len() + len, b'x');
            Bytes::from(bytes)
        };
        let longest = text(STRING_BYTES_MAX);
        assert_eq!(Reader::new(&longest).string(true).map(str::len), Ok(STRING_BYTES_MAX));
        let longer = text(STRING_BYTES_MAX + 1);
        assert_eq!(Reader::new(&longer).string(true), Err(DecodeError::StringLength(STRING_BYTES_MAX + 1)));
        let bytes = Reader::new(&longer).string_bytes(true);
        assert_eq!(bytes, Err(DecodeError::StringLength(STRING_BYTES_MAX + 1)));
    }

    #[test]
    fn tagged_field_cannot_read_past_its_own_length() {
        let bytes = Bytes::from_static(&[1, 7, 2, 0xaa, 0xbb, 0xcc]);
        let mut reader = Reader::new(&bytes);
        let outcome = reader.tagged_fields(|tag, field| {
            assert_eq!((tag, field.left()), (7, 2));
            field.i32().map(|_| ())
        });
        assert_eq!(outcome, Err(DecodeError::Truncated { wanted: 4, left: 2 }));
    }

    #[test]
    fn huge_number_of_tagged_fields_is_refused_at_once() {
        let bytes = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0]);
        assert!(matches!(Reader::new(&bytes).skip_tagged_fields(true), Err(DecodeError::Count { .. })));
    }
}
