//! Control records: what the broker itself writes among the records of a partition.

use bytes::Bytes;

use super::builder::BatchBuilder;
use super::codec::Compression;
use crate::base::clock::Timestamp;
use crate::base::{Offset, ProducerEpoch, ProducerId};

/// The kind of a control record, in its key (`org.apache.kafka.common.record.ControlRecordType`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlType {
    Abort,
    Commit,
    LeaderChange,
    SnapshotHeader,
    SnapshotFooter,
    KraftVersion,
    KraftVoters,
    /// Written by something newer; readers skip it.
    Unknown(i16),
}

impl ControlType {
    pub fn id(self) -> i16 {
        match self {
            Self::Abort => 0,
            Self::Commit => 1,
            Self::LeaderChange => 2,
            Self::SnapshotHeader => 3,
            Self::SnapshotFooter => 4,
            Self::KraftVersion => 5,
            Self::KraftVoters => 6,
            Self::Unknown(id) => id,
        }
    }

    /// Reads the key of a control record: a version, then the kind. `None` if the key is cut off.
    pub fn from_key(key: &[u8]) -> Option<Self> {
        let [_, _, high, low, ..] = key else { return None };
        Some(match i16::from_be_bytes([*high, *low]) {
            0 => Self::Abort,
            1 => Self::Commit,
            2 => Self::LeaderChange,
            3 => Self::SnapshotHeader,
            4 => Self::SnapshotFooter,
            5 => Self::KraftVersion,
            6 => Self::KraftVoters,
            id => Self::Unknown(id),
        })
    }

    /// The key of a control record of version 0.
    pub fn to_key(self) -> [u8; 4] {
        let [high, low] = self.id().to_be_bytes();
        [0, 0, high, low]
    }
}

/// The end of a producer's transaction on one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndTxnMarker {
    pub commit: bool,
    pub coordinator_epoch: i32,
}

impl EndTxnMarker {
    /// Reads a control record; `None` if it is not the end of a transaction or is cut off.
    pub fn from_record(key: &[u8], value: &[u8]) -> Option<Self> {
        let commit = match ControlType::from_key(key)? {
            ControlType::Commit => true,
            ControlType::Abort => false,
            _ => return None,
        };
        // A version, then the epoch.
        let epoch = value.get(2..6)?.try_into().ok()?;
        Some(Self { commit, coordinator_epoch: i32::from_be_bytes(epoch) })
    }

    /// The control batch that writes this marker; base offset and leader epoch are the log's to patch.
    pub fn to_batch(self, id: ProducerId, epoch: ProducerEpoch, now: Timestamp) -> Bytes {
        let kind = if self.commit { ControlType::Commit } else { ControlType::Abort };
        let mut value = [0; 6];
        value[2..].copy_from_slice(&self.coordinator_epoch.to_be_bytes());
        let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE)
            .with_producer(id, epoch, -1)
            .with_transactional()
            .with_control();
        builder.append(now, Some(&kind.to_key()), Some(&value), &[]);
        builder.finish().expect("a batch without compression has nothing that fails")
    }
}

#[cfg(test)]
mod tests {
    use super::super::BatchView;
    use super::*;

    #[test]
    fn marker_comes_back_from_its_batch() {
        let marker = EndTxnMarker { commit: true, coordinator_epoch: 12 };
        let batch = marker.to_batch(ProducerId(9), ProducerEpoch(1), Timestamp(1000));
        let view = BatchView::parse(&batch).unwrap();
        view.check_crc().unwrap();
        assert!(view.head().attributes().is_control() && view.head().attributes().is_transactional());
        assert_eq!(view.head().base_sequence(), -1);
        let mut scratch = Vec::new();
        let record = view.records(&mut scratch, 0).unwrap().next().unwrap().unwrap();
        assert_eq!(record.key, Some(&[0, 0, 0, 1][..]));
        assert_eq!(record.value, Some(&[0, 0, 0, 0, 0, 12][..]));
        assert_eq!(EndTxnMarker::from_record(record.key.unwrap(), record.value.unwrap()), Some(marker));
    }

    #[test]
    fn short_and_unknown_control_records_are_not_markers() {
        assert_eq!(ControlType::from_key(&[0, 0, 0]), None);
        assert_eq!(ControlType::from_key(&[0, 0, 0, 99]), Some(ControlType::Unknown(99)));
        assert_eq!(EndTxnMarker::from_record(&[0, 0, 0, 1], &[0, 0, 1]), None);
        assert_eq!(EndTxnMarker::from_record(&[0, 0, 0, 2], &[0; 6]), None);
    }
}
