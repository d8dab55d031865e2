//! What fetches and offset queries ask of a partition.

use super::Partition;
use crate::base::{LeaderEpoch, Offset};
use crate::io::Files;
use crate::log::{OffsetMetadata, Read, ReadError, ReadRequest};
use crate::wire::ErrorCode;

/// How far a reader may read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waterline {
    /// A consumer with `read_uncommitted`.
    HighWatermark,
    /// A consumer with `read_committed`.
    LastStable,
    /// A follower.
    LogEnd,
}

/// The answer for one partition of a fetch.
pub enum ReadOutcome<F: Files> {
    Read(Read<F>),
    /// The reader's log has diverged: it truncates to this end and asks again (KIP-595).
    Diverging {
        epoch: LeaderEpoch,
        end: Offset,
    },
}

/// The end of a leader epoch (KIP-101): the largest epoch not above the asked one and where it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochEnd {
    pub epoch: LeaderEpoch,
    pub end: Offset,
}

impl<F: Files, T> Partition<F, T> {
    /// The offset a reader of `waterline` may not reach.
    pub fn upper_bound(&self, waterline: Waterline) -> Offset {
        match waterline {
            Waterline::HighWatermark => self.high_watermark,
            Waterline::LastStable => self.last_stable(),
            Waterline::LogEnd => self.log.log_end(),
        }
    }

    /// The end that a client is told (ListOffsets).
    ///
    /// # Errors
    /// OFFSET_NOT_AVAILABLE: it leads and does not know yet how much of what it has is committed.
    pub fn latest(&self, waterline: Waterline) -> Result<Offset, ErrorCode> {
        match waterline != Waterline::LogEnd && self.lags_behind_leadership() {
            true => Err(ErrorCode::OffsetNotAvailable),
            false => Ok(self.upper_bound(waterline)),
        }
    }

    /// A plan for a fetch from `offset`: a range of a file, no bytes. `last_fetched_epoch` is the epoch of
    /// the reader's last record, -1 for "not told".
    pub fn read(
        &mut self,
        offset: Offset,
        last_fetched_epoch: LeaderEpoch,
        bytes_max: u32,
        whole_first_batch: bool,
        waterline: Waterline,
    ) -> Result<ReadOutcome<F>, ReadError> {
        if last_fetched_epoch != LeaderEpoch::NONE {
            let (epoch, end) = self.log.epoch_end(last_fetched_epoch);
            // An epoch that this log does not know ends nowhere (`Partition.readRecords`).
            if end.0 < 0 || offset < self.log.log_start() {
                return Err(ReadError::OutOfRange);
            }
            if epoch < last_fetched_epoch || end < offset {
                return Ok(ReadOutcome::Diverging { epoch, end });
            }
        }
        let upper_bound = self.upper_bound(waterline);
        let with_aborted = waterline == Waterline::LastStable;
        self.log
            .read(ReadRequest { offset, bytes_max, upper_bound, whole_first_batch, with_aborted })
            .map(ReadOutcome::Read)
    }

    /// How many bytes lie between `start` and what the reader may reach; `None` when they lie in different
    /// segments, which is enough for any reader.
    pub fn bytes_available(&self, start: &OffsetMetadata, waterline: Waterline) -> Option<u64> {
        let bound = self.upper_bound(waterline);
        if bound <= start.offset {
            return Some(0);
        }
        start.bytes_until(&self.log.offset_metadata(bound)?)
    }

    /// OffsetForLeaderEpoch; `None` fields are -1 on the wire.
    pub fn epoch_end(&self, epoch: LeaderEpoch) -> EpochEnd {
        let (epoch, end) = self.log.epoch_end(epoch);
        EpochEnd { epoch, end }
    }
}
