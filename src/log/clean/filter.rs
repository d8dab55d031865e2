//! What remains of a batch (Kafka's `MemoryRecords.filterTo` and the filter of its `Cleaner`). Pure.

use std::collections::HashMap;

use bytes::Bytes;
use zerocopy::IntoBytes;

use crate::base::clock::Timestamp;
use crate::base::{Offset, ProducerEpoch, ProducerId};
use crate::config::TimestampType;
use crate::wire::record::{
    Attributes, BatchBuilder, BatchHead, BatchView, Codec, CodecError, Compression, Header,
    ReadError as RecordsError, Record, Records, decompress,
};

use super::offset_map::OffsetMap;
use super::transactions::Fate;

/// The last record of a producer that is still known: its batch stays, if empty, for its sequence or its epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LastRecord {
    /// `None`: it left only markers.
    pub offset: Option<Offset>,
    pub epoch: ProducerEpoch,
}

/// What one pass goes by.
pub(super) struct Rules<'a> {
    /// The last offset of each key of the records from the first dirty one to below `mapped_end`.
    pub map: &'a OffsetMap,
    /// Records from here on stay.
    pub mapped_end: Offset,
    pub last_records: &'a HashMap<ProducerId, LastRecord>,
    pub now: Timestamp,
    /// `delete.retention.ms`
    pub delete_retention_ms: i64,
    /// Of the records of a batch.
    pub decompressed_bytes_max: usize,
}

/// What is written of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Nothing,
    /// The batch as it is.
    Unchanged,
    Replaced(Bytes),
}

impl Rules<'_> {
    /// Judges a batch whose checksum was compared. `is_last`: no batch of the range follows, so it stays, empty if
    /// need be, or the offsets up to its end would be lost.
    pub fn judge(
        &self,
        batch: &BatchView<'_>,
        fate: Fate,
        is_last: bool,
        scratch: &mut Vec<u8>,
    ) -> Result<Verdict, RecordsError> {
        let head = batch.head();
        let horizon = delete_horizon(head);
        let is_control = head.attributes().is_control();
        let stays_empty = is_last || self.is_last_of_producer(head);
        // A marker of which nothing is left stays till its horizon, so that slow readers see the transaction's end.
        let obsolete = fate == Fate::Obsolete && (!is_control || horizon.is_some_and(|end| end <= self.now));
        if obsolete || head.count() == 0 {
            return Ok(match (stays_empty, head.count()) {
                (false, _) => Verdict::Nothing,
                (true, 0) => Verdict::Unchanged,
                (true, _) => Verdict::Replaced(empty(head)),
            });
        }
        let mut kept = Vec::with_capacity(head.count().max(0) as usize);
        let mut tombstones = false;
        let body = uncompressed(batch, self.decompressed_bytes_max, scratch)?;
        for record in Records::new(head, body) {
            let record = record?;
            let stays = is_control || self.stays(&record, horizon);
            tombstones |= stays && record.value.is_none();
            kept.push(stays);
        }
        let new_horizon = match horizon {
            None if tombstones || (is_control && fate == Fate::Obsolete) => {
                Some(Timestamp(self.now.0.saturating_add(self.delete_retention_ms)))
            }
            _ => None,
        };
        Ok(match (kept.contains(&true), kept.contains(&false) || new_horizon.is_some()) {
            (true, false) => Verdict::Unchanged,
            (true, true) => {
                let records = Records::new(head, body).zip(kept);
                let records = records.filter_map(|(record, stays)| record.ok().filter(|_| stays));
                Verdict::Replaced(rebuild(head, records, new_horizon.or(horizon))?)
            }
            (false, _) if stays_empty => Verdict::Replaced(empty(head)),
            (false, _) => Verdict::Nothing,
        })
    }

    fn stays(&self, record: &Record<'_>, horizon: Option<Timestamp>) -> bool {
        if record.offset >= self.mapped_end {
            return true;
        }
        // Without a key there is nothing to keep it for; Kafka drops such records too.
        let Some(key) = record.key else { return false };
        let is_latest = self.map.get(key).is_none_or(|latest| record.offset >= latest);
        is_latest && (record.value.is_some() || horizon.is_none_or(|end| self.now < end))
    }

    fn is_last_of_producer(&self, head: &BatchHead) -> bool {
        let id = head.producer_id();
        id.is_some()
            && self.last_records.get(&id).is_some_and(|last| match last.offset {
                Some(offset) => head.last_offset() == offset,
                None => head.attributes().is_control() && head.producer_epoch() == last.epoch,
            })
    }
}

/// The records of a batch; compressed ones are decompressed into `scratch`.
pub(super) fn uncompressed<'a>(
    batch: &BatchView<'a>,
    bytes_max: usize,
    scratch: &'a mut Vec<u8>,
) -> Result<&'a [u8], CodecError> {
    let attributes = batch.head().attributes();
    match attributes.codec() {
        None => Err(CodecError::Unknown(attributes.0)),
        Some(Codec::None) => Ok(batch.body()),
        Some(codec) => {
            scratch.clear();
            decompress(codec, batch.body(), bytes_max, scratch)?;
            Ok(scratch)
        }
    }
}

/// When tombstones and the marker of the batch may go (KIP-534).
pub(super) fn delete_horizon(head: &BatchHead) -> Option<Timestamp> {
    head.attributes().has_delete_horizon().then(|| head.base_timestamp())
}

/// The batch without its records: offsets, producer and sequences stay.
fn empty(head: &BatchHead) -> Bytes {
    let attributes = head.attributes();
    let mut empty = BatchHead::empty();
    empty.set_base_offset(head.base_offset());
    empty.set_leader_epoch(head.leader_epoch());
    empty.set_last_offset_delta(head.last_offset_delta());
    empty.set_max_timestamp(head.max_timestamp());
    empty.set_producer(head.producer_id(), head.producer_epoch(), head.base_sequence());
    let kept = Attributes::default()
        .with_timestamp_type(attributes.timestamp_type())
        .with_transactional(attributes.is_transactional())
        .with_control(attributes.is_control());
    empty.set_attributes(kept);
    empty.seal(&[]);
    Bytes::copy_from_slice(empty.as_bytes())
}

/// The batch with some of its records, in its own codec.
fn rebuild<'r>(
    head: &BatchHead,
    records: impl Iterator<Item = Record<'r>>,
    horizon: Option<Timestamp>,
) -> Result<Bytes, CodecError> {
    let attributes = head.attributes();
    let codec = attributes.codec().ok_or(CodecError::Unknown(attributes.0))?;
    let mut builder = BatchBuilder::new(head.base_offset(), Compression::of(codec))
        .with_leader_epoch(head.leader_epoch())
        .with_producer(head.producer_id(), head.producer_epoch(), head.base_sequence());
    if attributes.is_transactional() {
        builder = builder.with_transactional();
    }
    if attributes.is_control() {
        builder = builder.with_control();
    }
    if attributes.timestamp_type() == TimestampType::LogAppendTime {
        builder = builder.with_log_append_time(head.max_timestamp());
    }
    if let Some(horizon) = horizon {
        builder = builder.with_delete_horizon(horizon);
    }
    let mut headers: Vec<Header<'_>> = Vec::new();
    for record in records {
        headers.clear();
        headers.extend(record.headers);
        builder.append_at(record.offset, record.timestamp, record.key, record.value, &headers);
    }
    builder.set_last_offset(head.last_offset());
    builder.finish()
}
