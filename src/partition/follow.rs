//! What a replica that follows makes of its leader's answers: records as they are, a high watermark, a log start.
//! Where its log parts from the leader's it is cut, by the epochs of both (KIP-101, KIP-279): never to the high
//! watermark.

use super::role::Role;
use super::{Committed, Partition};
use crate::base::clock::Now;
use crate::base::{LeaderEpoch, Offset};
use crate::io::Files;
use crate::log::{Log, LogError};
use crate::wire::record::{BatchError, BatchHead};

/// Where a follower stands: what it says of itself with a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// It wants what comes from here on.
    pub end: Offset,
    /// Of its last record; [`LeaderEpoch::NONE`] where there is none.
    pub last_epoch: LeaderEpoch,
    pub log_start: Offset,
    pub high_watermark: Offset,
}

/// Records from the leader of `epoch`, asked for at the offset `at`.
#[derive(Clone, Copy, Debug)]
pub struct FollowedRecords<'a> {
    pub epoch: LeaderEpoch,
    pub at: Offset,
    /// Whole batches, perhaps a part of one behind them.
    pub bytes: &'a [u8],
}

/// What became of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Followed {
    /// Bytes of the batches that are in the log now.
    pub taken: usize,
    /// The rest waits for a file: run [`Log::prepare_job`](crate::log::Log::prepare_job).
    pub prepare: bool,
}

/// Where a follower's log is to be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// The leader's records of epochs up to this one end here.
    Diverging { epoch: LeaderEpoch, end: Offset },
    /// Nothing of it is the leader's any more: it begins anew.
    Anew(Offset),
}

/// A [`Cut`] that takes something away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedCut {
    pub cut: Cut,
    /// Where the log ends afterwards, or before that if a batch lies across.
    pub to: Offset,
    /// As of before.
    pub end: Offset,
    pub high_watermark: Offset,
}

impl PlannedCut {
    /// *File thread.* Cuts the log; what is left of the high watermark.
    pub fn carry_out<F: Files>(self, log: &mut Log<F>, now: Now) -> Result<Offset, LogError> {
        match self.cut {
            Cut::Diverging { .. } => log.truncate_to(self.to, now)?,
            Cut::Anew(at) => log.restart_at(at, now)?,
        }
        Ok(self.high_watermark.min(log.log_end()).max(log.log_start()))
    }
}

/// Why they are not in the log.
#[derive(Debug, thiserror::Error)]
pub enum NotFollowed {
    #[error("the replica has another part, another epoch or another end by now")]
    Stale,
    /// The log is empty, and the first batch begins before it does (Kafka's `UnexpectedAppendOffsetException`): the
    /// log is to begin with the batch.
    #[error("the first batch begins at offset {0}, before the log")]
    Before(Offset),
    #[error("the log takes nothing")]
    Refused,
    #[error(transparent)]
    Log(#[from] LogError),
}

impl<F: Files, T> Partition<F, T> {
    /// Where it stands, as the follower of the leader of `epoch`. `None` while its end is not on the disk and has to
    /// be: what a follower says it has it must not lose.
    pub fn position(&self, epoch: LeaderEpoch) -> Result<Option<Position>, NotFollowed> {
        self.check_following(epoch)?;
        let end = self.log.log_end();
        let position = Position {
            end,
            last_epoch: self.log.latest_epoch().unwrap_or(LeaderEpoch::NONE),
            log_start: self.log.log_start(),
            high_watermark: self.high_watermark,
        };
        Ok((self.durable_end() >= end).then_some(position))
    }

    /// Appends what there is room for without a file to be opened or made.
    pub fn append_following(
        &mut self,
        records: &FollowedRecords<'_>,
        now: Now,
    ) -> Result<Followed, NotFollowed> {
        self.check_following(records.epoch)?;
        let end = self.log.log_end();
        if end != records.at {
            return Err(NotFollowed::Stale);
        }
        let first = match BatchHead::of_entry(records.bytes) {
            Ok(first) => first,
            // Less than a batch: the leader sends one whole if its answer has room for nothing else.
            Err(BatchError::Incomplete { .. }) => return Ok(Followed { taken: 0, prepare: false }),
            Err(_) => {
                // It says what is wrong.
                let taken = self.log.append_as_follower(records.bytes, now)?;
                return Ok(Followed { taken, prepare: false });
            }
        };
        if first.base_offset() < end && first.last_offset() >= end && self.log.log_start() == end {
            return Err(NotFollowed::Before(first.base_offset()));
        }
        let ready = self.log.followable(records.bytes, now).map_err(|_| NotFollowed::Refused)?;
        let taken = match ready.bytes {
            0 => 0,
            bytes => self.log.append_as_follower(&records.bytes[..bytes], now)?,
        };
        Ok(Followed { taken, prepare: !ready.is_all })
    }

    /// Takes the leader's high watermark and log start; true when this replica's high watermark moved.
    pub fn follow_leader(
        &mut self,
        epoch: LeaderEpoch,
        leaders: Offset,
        log_start: Offset,
        now: Now,
        committed: &mut Vec<Committed<T>>,
    ) -> Result<bool, NotFollowed> {
        self.check_following(epoch)?;
        self.role = Role::Follower { high_watermark: leaders };
        let moved = self.advance_high_watermark(now, committed);
        if log_start > self.log.log_start() && log_start <= self.high_watermark {
            // It was compared with the end two lines above: the high watermark is not beyond it.
            let _ = self.log.advance_log_start(log_start);
        }
        Ok(moved)
    }

    /// Where to cut this log, when the leader's says that its records of epochs up to `epoch` end at `end`
    /// (`AbstractFetcherThread.getOffsetTruncationState`). The next fetch shows whether that was enough.
    pub fn cut_for(&self, epoch: LeaderEpoch, end: Offset) -> Offset {
        let own_end = self.log.log_end();
        let (known, end_of_known) = self.log.epoch_end(epoch);
        match known {
            LeaderEpoch::NONE => end.min(own_end),
            same if same == epoch => end_of_known.min(end).min(own_end),
            // This log has nothing of that epoch: all it has of later ones is not the leader's.
            _ => end_of_known.min(own_end),
        }
    }

    /// What a follower of the leadership has to take away; `None`: nothing.
    pub fn plan_cut(&mut self, epoch: LeaderEpoch, cut: Cut) -> Result<Option<PlannedCut>, NotFollowed> {
        self.check_following(epoch)?;
        let (end, high_watermark) = (self.log.log_end(), self.high_watermark);
        let to = match cut {
            Cut::Diverging { epoch, end } => self.cut_for(epoch, end),
            Cut::Anew(at) => at,
        };
        if to >= end && matches!(cut, Cut::Diverging { .. }) {
            // There is nothing behind it but what this log takes for the beginning of an epoch.
            self.log.forget_begun_epoch();
            return Ok(None);
        }
        Ok(Some(PlannedCut { cut, to, end, high_watermark }))
    }

    fn check_following(&self, epoch: LeaderEpoch) -> Result<(), NotFollowed> {
        let follows = matches!(self.role, Role::Follower { .. }) && epoch == self.leader_epoch;
        if follows { Ok(()) } else { Err(NotFollowed::Stale) }
    }
}
