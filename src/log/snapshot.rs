//! Producer snapshots: Kafka's `.snapshot` files (its message `ProducerSnapshot`, version 1).
//!
//! Kafka has one entry for each producer, with its last batch. Here the batches before it that are remembered have
//! entries too, oldest first: a connection may have several produce requests in service, so several batches may be in
//! the log whose answers never arrived, and after a restart each of them must be known when it comes again. Kafka reads
//! such a file as its own: of a producer's entries it keeps the last.

use crate::base::clock::Timestamp;
use crate::base::crc32c;
use crate::base::{Offset, ProducerEpoch, ProducerId};

use super::producers::{BATCHES_KEPT, KeptBatch, Producer, Producers};

const VERSION: i16 = 1;

/// Version, checksum and count.
const HEAD_BYTES: usize = 10;

/// The checksum covers what follows it.
const CRC_COVERS_FROM: usize = 6;

const ENTRY_BYTES: usize = 46;

/// Where there are more producers, only their last batches are written, as by Kafka: a shard makes the bytes.
const PRODUCERS_WITH_EARLIER_MAX: usize = 20_000;

/// A snapshot file of more is not read: two million producers.
pub(super) const SNAPSHOT_BYTES_MAX: usize = 100 << 20;

/// Why a snapshot file cannot be used; the state is rebuilt from an older one and the log.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SnapshotError {
    #[error("unknown version")]
    Version,
    #[error("checksum does not match")]
    Crc,
    #[error("wrong length")]
    Length,
}

pub(super) fn encode(producers: &Producers) -> Vec<u8> {
    let with_earlier = producers.len() <= PRODUCERS_WITH_EARLIER_MAX;
    let entries_max = producers.len() * if with_earlier { BATCHES_KEPT } else { 1 };
    let mut bytes = Vec::with_capacity(HEAD_BYTES + entries_max * ENTRY_BYTES);
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&[0; HEAD_BYTES - 2]);
    for (id, producer) in producers.iter() {
        let earlier = match producer.kept().split_last() {
            Some((_, earlier)) if with_earlier => earlier,
            _ => &[],
        };
        for kept in earlier {
            // Never younger than the last entry: who drops producers by age must not be left with this one.
            let timestamp = kept.timestamp.min(producer.last_timestamp);
            put_entry(&mut bytes, id, producer, Some(kept), timestamp, None);
        }
        let (last, first) = (producer.last(), producer.transaction_first);
        put_entry(&mut bytes, id, producer, last, producer.last_timestamp, first);
    }
    let count = (bytes.len() - HEAD_BYTES) / ENTRY_BYTES;
    bytes[CRC_COVERS_FROM..HEAD_BYTES].copy_from_slice(&(count as i32).to_be_bytes());
    let crc = crc32c::of(&bytes[CRC_COVERS_FROM..]);
    bytes[2..6].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn put_entry(
    bytes: &mut Vec<u8>,
    id: ProducerId,
    producer: &Producer,
    batch: Option<&KeptBatch>,
    timestamp: Timestamp,
    transaction_first: Option<Offset>,
) {
    bytes.extend_from_slice(&id.0.to_be_bytes());
    bytes.extend_from_slice(&producer.epoch.0.to_be_bytes());
    bytes.extend_from_slice(&batch.map_or(-1, |batch| batch.last_sequence).to_be_bytes());
    bytes.extend_from_slice(&batch.map_or(-1, |batch| batch.last_offset.0).to_be_bytes());
    bytes.extend_from_slice(&batch.map_or(0, |batch| batch.offset_delta).to_be_bytes());
    bytes.extend_from_slice(&timestamp.0.to_be_bytes());
    bytes.extend_from_slice(&producer.coordinator_epoch.to_be_bytes());
    bytes.extend_from_slice(&transaction_first.map_or(-1, |first| first.0).to_be_bytes());
}

pub(super) fn decode(bytes: &[u8]) -> Result<Vec<(ProducerId, Producer)>, SnapshotError> {
    let mut reader = Reader(bytes);
    if i16::from_be_bytes(reader.take()?) != VERSION {
        return Err(SnapshotError::Version);
    }
    let crc = u32::from_be_bytes(reader.take()?);
    if crc != crc32c::of(reader.0) {
        return Err(SnapshotError::Crc);
    }
    let count = i32::from_be_bytes(reader.take()?);
    if usize::try_from(count).ok().and_then(|count| count.checked_mul(ENTRY_BYTES)) != Some(reader.0.len()) {
        return Err(SnapshotError::Length);
    }
    let mut producers: Vec<(ProducerId, Producer)> = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let id = ProducerId(i64::from_be_bytes(reader.take()?));
        let epoch = ProducerEpoch(i16::from_be_bytes(reader.take()?));
        let last_sequence = i32::from_be_bytes(reader.take()?);
        let last_offset = Offset(i64::from_be_bytes(reader.take()?));
        let offset_delta = i32::from_be_bytes(reader.take()?);
        let timestamp = Timestamp(i64::from_be_bytes(reader.take()?));
        let coordinator_epoch = i32::from_be_bytes(reader.take()?);
        let transaction_first = i64::from_be_bytes(reader.take()?);
        let last =
            (last_offset.0 >= 0).then_some(KeptBatch { last_sequence, last_offset, offset_delta, timestamp });
        let open = (transaction_first >= 0).then_some(Offset(transaction_first));
        let producer = Producer::from_snapshot(epoch, coordinator_epoch, timestamp, open, last);
        match producers.last_mut() {
            Some((known, before)) if *known == id && before.epoch == epoch => {
                *before = before.followed_by(producer);
            }
            _ => producers.push((id, producer)),
        }
    }
    Ok(producers)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SnapshotError::Length)?;
        self.0 = rest;
        Ok(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::record::{Attributes, BatchHead};

    #[test]
    fn snapshot_comes_back_and_damage_is_told() {
        let mut producers = Producers::default();
        for id in 0..3 {
            let mut head = BatchHead::empty();
            head.set_producer(ProducerId(id), ProducerEpoch(2), 5);
            head.set_base_offset(Offset(100 + id));
            head.set_max_timestamp(Timestamp(7));
            head.set_attributes(Attributes::default().with_transactional(id == 1));
            producers.apply(&head);
        }
        let bytes = encode(&producers);
        assert_eq!(bytes.len(), 10 + 3 * 46);
        let mut back = Producers::default();
        decode(&bytes).unwrap().into_iter().for_each(|(id, producer)| back.insert(id, producer));
        assert_eq!(back.first_unstable(), Some(Offset(101)));
        for (id, producer) in producers.iter() {
            assert!(back.iter().any(|other| other == (id, producer)));
        }
        for position in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[position] ^= 0x10;
            assert!(decode(&damaged).is_err(), "byte {position}");
            assert!(decode(&bytes[..position]).is_err());
        }
    }

    #[test]
    fn of_each_producer_the_last_five_batches_come_back_in_order() {
        let mut producers = Producers::default();
        for sequence in 0..7 {
            for id in [4, 9] {
                let mut head = BatchHead::empty();
                head.set_producer(ProducerId(id), ProducerEpoch(0), sequence);
                head.set_base_offset(Offset(i64::from(sequence) * 10 + id));
                head.set_max_timestamp(Timestamp(90 + i64::from(sequence)));
                head.set_attributes(Attributes::default().with_transactional(id == 9));
                producers.apply(&head);
            }
        }
        let bytes = encode(&producers);
        assert_eq!(bytes.len(), 10 + 2 * BATCHES_KEPT * 46);
        let back = decode(&bytes).unwrap();
        assert_eq!(back.len(), 2);
        for (id, producer) in &back {
            assert!(producers.iter().any(|(known, had)| known == *id && had == producer), "{producer:?}");
        }
        // What Kafka makes of it: the last entry counts.
        let last = &bytes[bytes.len() - 46..];
        let (id, offset) = (last[7], i64::from_be_bytes(last[14..22].try_into().unwrap()));
        assert_eq!(offset, 60 + i64::from(id));
    }

    #[test]
    fn an_earlier_batch_is_never_younger_than_the_last() {
        let mut producers = Producers::default();
        for (sequence, timestamp) in [(0, 500), (1, 7)] {
            let mut head = BatchHead::empty();
            head.set_producer(ProducerId(1), ProducerEpoch(0), sequence);
            head.set_max_timestamp(Timestamp(timestamp));
            producers.apply(&head);
        }
        let [(_, producer)] = decode(&encode(&producers)).unwrap()[..] else { panic!("one producer") };
        assert!(producer.kept().iter().map(|kept| kept.timestamp).eq([Timestamp(7), Timestamp(7)]));
    }
}
