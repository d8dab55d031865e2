//! The files of Kafka's metadata log as bytes: a segment holds every offset from its own to its end, a snapshot begins
//! with its header and ends with its footer (`Snapshots`, `RecordsSnapshotReader`). What is not so is damaged; nothing
//! is passed over. No IO.

use bytes::Bytes;
use uuid::Uuid;

use super::KafkaMetadataError;
use crate::base::{BrokerId, Offset};
use crate::wire::read::{DecodeError, Reader};
use crate::wire::record::{BatchView, ControlType, HEAD_LEN, MAGIC};

/// Where the format's number stands in a batch.
const MAGIC_AT: usize = 16;
/// An endpoint of a voter: two empty names, a port, no tagged fields.
const ENDPOINT_LEN_MIN: usize = 5;
/// A voter: its id, its directory's, no endpoints, two versions with no tagged fields behind them, and none of its own.
const VOTER_LEN_MIN: usize = 27;

/// How a segment ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentEnd {
    /// The offset behind its last batch.
    pub next: Offset,
    /// The byte from which on the rest is of no use.
    pub torn: Option<u64>,
}

/// Takes the batches of a file one after the other.
pub(super) struct Walk<'a> {
    bytes: &'a [u8],
    position: usize,
    next: Offset,
}

pub(super) enum Step<'a> {
    Batch(BatchView<'a>),
    End,
    /// What stands here is no batch, or not the one that it was.
    Unreadable(String),
}

impl<'a> Walk<'a> {
    pub(super) fn new(bytes: &'a [u8], first: Offset) -> Self {
        Self { bytes, position: 0, next: first }
    }

    /// The offset that is due.
    pub(super) fn next_offset(&self) -> Offset {
        self.next
    }

    pub(super) fn position(&self) -> u64 {
        self.position as u64
    }

    /// An error where this stands.
    pub(super) fn damaged(&self, what: impl Into<String>) -> KafkaMetadataError {
        KafkaMetadataError::Damaged { offset: self.next, position: self.position(), what: what.into() }
    }

    /// A batch that is sound and not the one that is due is an error: offsets are missing.
    pub(super) fn step(&mut self) -> Result<Step<'a>, KafkaMetadataError> {
        let rest = &self.bytes[self.position..];
        if rest.is_empty() {
            return Ok(Step::End);
        }
        let batch = match BatchView::parse(rest).and_then(|batch| batch.check_crc().map(|()| batch)) {
            Ok(batch) => batch,
            Err(error) => return Ok(Step::Unreadable(error.to_string())),
        };
        let head = batch.head();
        if head.base_offset() != self.next {
            return Err(self.damaged(format!("a batch of offset {} is there", head.base_offset())));
        }
        // Nothing compacts this log: a batch has all of its records.
        if head.count() < 1 || head.last_offset_delta() != head.count() - 1 || head.next_offset() <= self.next
        {
            let (count, delta) = (head.count(), head.last_offset_delta());
            return Err(
                self.damaged(format!("a batch of {count} records with a last offset delta of {delta}"))
            );
        }
        self.next = head.next_offset();
        self.position += batch.bytes().len();
        Ok(Step::Batch(batch))
    }

    /// Whether a sound batch of this log stands behind what is unreadable here: then this is no tail.
    pub(super) fn has_batches_behind(&self) -> bool {
        let rest = &self.bytes[self.position..];
        (1..rest.len().saturating_sub(HEAD_LEN - 1)).any(|start| {
            let candidate = &rest[start..];
            i8::from_be_bytes([candidate[MAGIC_AT]]) == MAGIC
                && BatchView::parse(candidate)
                    .is_ok_and(|batch| batch.head().base_offset() >= self.next && batch.check_crc().is_ok())
        })
    }
}

/// What a control batch says: kinds and values.
pub(super) fn controls(batch: &BatchView<'_>) -> Result<Vec<(ControlType, Bytes)>, String> {
    let mut scratch = Vec::new();
    let records =
        batch.records(&mut scratch, super::DECOMPRESSED_BYTES_MAX).map_err(|error| error.to_string())?;
    records
        .map(|record| {
            let record = record.map_err(|error| error.to_string())?;
            let kind = record.key.and_then(ControlType::from_key);
            let kind =
                kind.ok_or_else(|| format!("the control record of offset {} says no kind", record.offset))?;
            Ok((kind, Bytes::copy_from_slice(record.value.unwrap_or_default())))
        })
        .collect()
}

/// Who votes, as a `VotersRecord` says it (KIP-853).
pub(super) fn voters(record: &Bytes) -> Result<Vec<BrokerId>, DecodeError> {
    let mut reader = Reader::new(record);
    let _version = reader.i16()?;
    let count = reader.elements(true, VOTER_LEN_MIN)?;
    let mut voters = Vec::with_capacity(count);
    for _ in 0..count {
        voters.push(BrokerId(reader.i32()?));
        reader.skip(size_of::<Uuid>())?;
        for _ in 0..reader.elements(true, ENDPOINT_LEN_MIN)? {
            let (_listener, _host) = (reader.string(true)?, reader.string(true)?);
            reader.skip(size_of::<u16>())?;
            reader.skip_tagged_fields(true)?;
        }
        // The versions of Raft's protocol that it has.
        reader.skip(2 * size_of::<i16>())?;
        reader.skip_tagged_fields(true)?;
        reader.skip_tagged_fields(true)?;
    }
    Ok(voters)
}
