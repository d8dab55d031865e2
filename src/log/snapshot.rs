//! Producer snapshots: Kafka's `.snapshot` files (its message `ProducerSnapshot`, version 1).

use crate::base::clock::Timestamp;
use crate::base::{Offset, ProducerEpoch, ProducerId};

use super::producers::{KeptBatch, Producer, Producers};

const VERSION: i16 = 1;

/// Version, checksum and count.
const HEAD_BYTES: usize = 10;

/// The checksum covers what follows it.
const CRC_COVERS_FROM: usize = 6;

const ENTRY_BYTES: usize = 46;

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
    let mut bytes = Vec::with_capacity(HEAD_BYTES + producers.len() * ENTRY_BYTES);
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(producers.len() as i32).to_be_bytes());
    for (id, producer) in producers.iter() {
        let last = producer.last();
        bytes.extend_from_slice(&id.0.to_be_bytes());
        bytes.extend_from_slice(&producer.epoch.0.to_be_bytes());
        bytes.extend_from_slice(&last.map_or(-1, |last| last.last_sequence).to_be_bytes());
        bytes.extend_from_slice(&last.map_or(-1, |last| last.last_offset.0).to_be_bytes());
        bytes.extend_from_slice(&last.map_or(0, |last| last.offset_delta).to_be_bytes());
        bytes.extend_from_slice(&producer.last_timestamp.0.to_be_bytes());
        bytes.extend_from_slice(&producer.coordinator_epoch.to_be_bytes());
        bytes.extend_from_slice(&producer.transaction_first.map_or(-1, |first| first.0).to_be_bytes());
    }
    let crc = crc32c::crc32c(&bytes[CRC_COVERS_FROM..]);
    bytes[2..6].copy_from_slice(&crc.to_be_bytes());
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Result<Vec<(ProducerId, Producer)>, SnapshotError> {
    let mut reader = Reader(bytes);
    if i16::from_be_bytes(reader.take()?) != VERSION {
        return Err(SnapshotError::Version);
    }
    let crc = u32::from_be_bytes(reader.take()?);
    if crc != crc32c::crc32c(reader.0) {
        return Err(SnapshotError::Crc);
    }
    let count = i32::from_be_bytes(reader.take()?);
    if usize::try_from(count).ok().and_then(|count| count.checked_mul(ENTRY_BYTES)) != Some(reader.0.len()) {
        return Err(SnapshotError::Length);
    }
    let mut producers = Vec::with_capacity(count as usize);
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
        producers.push((id, Producer::from_snapshot(epoch, coordinator_epoch, timestamp, open, last)));
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
}
