//! The lengths of Produce and Fetch, flexible versions only, and their answers. No IO.

use std::io;

/// Reads the fields of a request in place.
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn position(&self) -> usize {
        self.at
    }

    pub fn take(&mut self, len: usize) -> io::Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| io::Error::other("a request ends inside a field"))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    pub fn i16(&mut self) -> io::Result<i16> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub fn i32(&mut self) -> io::Result<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> io::Result<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn varint(&mut self) -> io::Result<u32> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }

    /// The length of a compact string, array or byte string; null counts as empty.
    pub fn compact_len(&mut self) -> io::Result<usize> {
        Ok((self.varint()? as usize).saturating_sub(1))
    }

    pub fn compact(&mut self) -> io::Result<&'a [u8]> {
        let len = self.compact_len()?;
        self.take(len)
    }

    pub fn tags(&mut self) -> io::Result<()> {
        for _ in 0..self.varint()? {
            self.varint()?;
            let len = self.varint()? as usize;
            self.take(len)?;
        }
        Ok(())
    }
}

/// The head of a request.
pub struct Header {
    pub api: i16,
    pub version: i16,
    pub correlation: i32,
}

pub const PRODUCE: i16 = 0;
pub const FETCH: i16 = 1;
/// From these on topics are named by id.
const PRODUCE_TOPIC_ID: i16 = 13;
const FETCH_TOPIC_ID: i16 = 13;
const FETCH_NO_REPLICA: i16 = 15;

/// Reads the three numbers that every request begins with.
pub fn header(cursor: &mut Cursor<'_>) -> io::Result<Header> {
    Ok(Header { api: cursor.i16()?, version: cursor.i16()?, correlation: cursor.i32()? })
}

/// Skips the rest of the header of a flexible request.
pub fn skip_client(cursor: &mut Cursor<'_>) -> io::Result<()> {
    let len = cursor.i16()?.max(0) as usize;
    cursor.take(len)?;
    cursor.tags()
}

/// A topic as a request names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopicAt<'a> {
    Name(&'a [u8]),
    Id(u128),
}

fn topic<'a>(cursor: &mut Cursor<'a>, by_id: bool) -> io::Result<TopicAt<'a>> {
    if by_id {
        Ok(TopicAt::Id(u128::from_be_bytes(cursor.array()?)))
    } else {
        cursor.compact().map(TopicAt::Name)
    }
}

/// One partition of a Produce request; the records lie at `at..at + len` of the frame.
pub struct Produced<'a> {
    pub topic: TopicAt<'a>,
    pub partition: i32,
    pub at: usize,
    pub len: usize,
}

/// Walks a Produce request; returns its acks.
pub fn produce<'a>(
    cursor: &mut Cursor<'a>,
    version: i16,
    mut take: impl FnMut(Produced<'a>),
) -> io::Result<i16> {
    skip_client(cursor)?;
    cursor.compact()?;
    let acks = cursor.i16()?;
    cursor.i32()?;
    for _ in 0..cursor.compact_len()? {
        let topic = topic(cursor, version >= PRODUCE_TOPIC_ID)?;
        for _ in 0..cursor.compact_len()? {
            let partition = cursor.i32()?;
            let len = cursor.compact_len()?;
            let at = cursor.position();
            cursor.take(len)?;
            cursor.tags()?;
            take(Produced { topic, partition, at, len });
        }
        cursor.tags()?;
    }
    cursor.tags()?;
    Ok(acks)
}

/// One partition of a Fetch request.
pub struct Fetched<'a> {
    pub topic: TopicAt<'a>,
    pub partition: i32,
    pub offset: i64,
    pub bytes_max: usize,
}

/// Walks a Fetch request; returns how long it waits, in milliseconds, and the most bytes it takes.
pub fn fetch<'a>(
    cursor: &mut Cursor<'a>,
    version: i16,
    mut take: impl FnMut(Fetched<'a>),
) -> io::Result<(u64, usize)> {
    skip_client(cursor)?;
    if version < FETCH_NO_REPLICA {
        cursor.i32()?;
    }
    let wait_ms = cursor.i32()?.max(0) as u64;
    cursor.i32()?;
    let bytes_max = cursor.i32()?.max(0) as usize;
    // Isolation level, session id and epoch.
    cursor.take(1 + 4 + 4)?;
    for _ in 0..cursor.compact_len()? {
        let topic = topic(cursor, version >= FETCH_TOPIC_ID)?;
        for _ in 0..cursor.compact_len()? {
            let partition = cursor.i32()?;
            cursor.i32()?;
            let offset = cursor.i64()?;
            cursor.take(4 + 8)?;
            let bytes_max = cursor.i32()?.max(0) as usize;
            cursor.tags()?;
            take(Fetched { topic, partition, offset, bytes_max });
        }
        cursor.tags()?;
    }
    Ok((wait_ms, bytes_max))
}

/// Begins an answer of a flexible version: room for the length, then the correlation id and no tags.
pub fn begin(out: &mut Vec<u8>, correlation: i32) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&correlation.to_be_bytes());
    out.push(0);
    start
}

/// Writes the length of the answer that began at `start` and has `total` bytes with its length.
pub fn set_len(out: &mut [u8], start: usize, total: usize) {
    out[start..start + 4].copy_from_slice(&(total as i32 - 4).to_be_bytes());
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn put_topic(out: &mut Vec<u8>, topic: TopicAt<'_>) {
    match topic {
        TopicAt::Id(id) => out.extend_from_slice(&id.to_be_bytes()),
        TopicAt::Name(name) => {
            put_varint(out, name.len() as u32 + 1);
            out.extend_from_slice(name);
        }
    }
}

/// The answer for one partition of a Produce request.
pub fn put_produced(out: &mut Vec<u8>, partition: i32, error: i16, offset: i64) {
    out.extend_from_slice(&partition.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    // Append time and log start; no record errors, no message, no tags.
    out.extend_from_slice(&(-1i64).to_be_bytes());
    out.extend_from_slice(&0i64.to_be_bytes());
    out.extend_from_slice(&[1, 0, 0]);
}

/// The answer for one partition of a Fetch request, up to its records of `len` bytes, which are followed by
/// a byte of no tags.
pub fn put_fetched(out: &mut Vec<u8>, partition: i32, error: i16, end: i64, len: usize) {
    out.extend_from_slice(&partition.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    // High watermark, last stable offset, log start.
    out.extend_from_slice(&end.to_be_bytes());
    out.extend_from_slice(&end.to_be_bytes());
    out.extend_from_slice(&0i64.to_be_bytes());
    // No aborted transactions, no preferred replica.
    out.push(1);
    out.extend_from_slice(&(-1i32).to_be_bytes());
    put_varint(out, len as u32 + 1);
}
