//! Steps through the batches of a segment's file with blocking reads: on file threads only.

use std::io;

use crate::base::Offset;
use crate::io::FileHandle;
use crate::wire::record::{BatchError, BatchHead, HEAD_LEN};

/// Read at once when whole batches are wanted.
const CHUNK_WHOLE_BYTES: usize = 1 << 20;

/// Read at once when only heads are.
const CHUNK_HEADS_BYTES: usize = 4096;

/// A batch in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub position: u32,
    pub head: BatchHead,
}

impl Found {
    pub fn end(&self) -> u32 {
        self.position + self.head.total_len() as u32
    }
}

/// What lies at the current position.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Batch(Found),
    End,
    /// Not a whole batch that may follow; says why.
    Bad(&'static str),
}

/// A walk over the batches of one file.
pub(super) struct Scan<'a, H> {
    file: &'a H,
    position: u32,
    end: u32,
    /// The least base offset that may come.
    expected: Offset,
    chunk_bytes: usize,
    buffer: Vec<u8>,
    buffer_position: u32,
}

impl<'a, H: FileHandle> Scan<'a, H> {
    /// Looks at heads only, from `position` to `end` of the file; base offsets are at least `expected`.
    pub fn heads(file: &'a H, position: u32, end: u32, expected: Offset) -> Self {
        Self::new(file, position, end, expected, CHUNK_HEADS_BYTES)
    }

    /// Ready to read every byte.
    pub fn whole(file: &'a H, position: u32, end: u32, expected: Offset) -> Self {
        Self::new(file, position, end, expected, CHUNK_WHOLE_BYTES)
    }

    /// Ready to read every byte, `chunk_bytes` at once.
    pub fn in_chunks(file: &'a H, position: u32, end: u32, expected: Offset, chunk_bytes: usize) -> Self {
        Self::new(file, position, end, expected, chunk_bytes.max(HEAD_LEN))
    }

    fn new(file: &'a H, position: u32, end: u32, expected: Offset, chunk_bytes: usize) -> Self {
        Self { file, position, end, expected, chunk_bytes, buffer: Vec::new(), buffer_position: position }
    }

    pub fn position(&self) -> u32 {
        self.position
    }

    /// The next batch: length, format and order of offsets are checked, the checksum is not.
    pub fn next(&mut self) -> io::Result<Step> {
        // A damaged index may have sent us beyond the end.
        let left = self.end.saturating_sub(self.position);
        if left == 0 {
            return Ok(Step::End);
        }
        let bytes = self.bytes(self.position, HEAD_LEN.min(left as usize))?;
        let head = match BatchHead::of_entry(bytes) {
            Ok(head) => head,
            Err(BatchError::Length { .. }) => return Ok(Step::Bad("the length is less than a head's")),
            Err(BatchError::Magic { .. } | BatchError::Crc { .. }) => {
                return Ok(Step::Bad("the format is neither 0, 1 nor 2"));
            }
            Err(BatchError::Incomplete { .. }) => return Ok(Step::Bad("the file ends inside a head")),
        };
        if head.total_len() > left as usize {
            return Ok(Step::Bad("the file ends inside a batch"));
        }
        if head.base_offset() < self.expected || head.last_offset_delta() < 0 {
            return Ok(Step::Bad("the offsets go backwards"));
        }
        if head.last_offset() > Offset::MAX {
            return Ok(Step::Bad("the offsets are above those a log can have"));
        }
        let found = Found { position: self.position, head };
        self.position = found.end();
        self.expected = head.next_offset();
        Ok(Step::Batch(found))
    }

    /// Everything behind the head of `found`, which is of format 2.
    pub fn body(&mut self, found: &Found) -> io::Result<&[u8]> {
        let length = found.head.total_len() - HEAD_LEN;
        self.bytes(found.position + HEAD_LEN as u32, length)
    }

    /// All bytes of `found`, fewer if the file is shorter than it was.
    pub fn entry(&mut self, found: &Found) -> io::Result<&[u8]> {
        self.bytes(found.position, found.head.total_len())
    }

    /// Compares checksum and bytes of `found`.
    pub fn is_intact(&mut self, found: &Found) -> io::Result<bool> {
        let entry = self.entry(found)?;
        Ok(found.head.is_intact(entry))
    }

    /// `length` bytes from `position` on, fewer if the file ends before.
    fn bytes(&mut self, position: u32, length: usize) -> io::Result<&[u8]> {
        let buffered = position.checked_sub(self.buffer_position).map(|skip| skip as usize);
        let skip = match buffered {
            Some(skip) if skip + length <= self.buffer.len() => skip,
            _ => {
                let wanted = length.max(self.chunk_bytes).min((self.end - position) as usize);
                self.buffer.resize(wanted, 0);
                let read = self.file.read_at(&mut self.buffer, u64::from(position))?;
                self.buffer.truncate(read);
                self.buffer_position = position;
                0
            }
        };
        Ok(&self.buffer[skip..self.buffer.len().min(skip + length)])
    }
}

/// The first batch from `position` on whose last offset is at least `offset` (Kafka's `searchForOffsetWithSize`).
pub(super) fn find(
    file: &impl FileHandle,
    position: u32,
    end: u32,
    offset: Offset,
) -> io::Result<Option<Found>> {
    let mut scan = Scan::heads(file, position, end, Offset(i64::MIN));
    loop {
        match scan.next()? {
            Step::Batch(found) if found.head.last_offset() >= offset => return Ok(Some(found)),
            Step::Batch(_) => {}
            Step::End => return Ok(None),
            Step::Bad(why) => {
                let text = format!("at {}: {why}", scan.position());
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
    }
}
