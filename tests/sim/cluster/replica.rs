//! A replica as its shard drives it: turns with the files that they need, jobs that finish late, cuts, and what a fetch
//! finds.

use std::sync::Arc;

use bytes::Bytes;
use kuring::base::clock::Now;
use kuring::base::{BrokerId, LeaderEpoch, Offset};
use kuring::config::Durability;
use kuring::io::mem::MemFiles;
use kuring::log::{
    AbortedTransaction, Clean, CleanSettings, CleanStep, FlushJob, FlushOutcome, Job, Log, Outcome, Read,
    ReadError, ReadRequest,
};
use kuring::partition::{
    Committed, Cut, FollowedRecords, FollowerFetch, IsrProposal, NotFollowed, Partition, ReadOutcome,
    Waterline,
};
use kuring::shard::PartitionKey;
use kuring::wire::ErrorCode;
use kuring::wire::fetch::{DivergingEpoch, FetchPartition, FetchedSlice};

use super::checker::Value;
use super::entries::{committed, entries};
use super::messages::Purpose;
use super::planted::Planted;
use crate::home::{InFlight, bytes_of, text};

pub type Answers = Vec<Committed<Purpose>>;
pub type Part = Partition<MemFiles, Purpose>;

/// Bytes that one turn looks at.
const TURN_BYTES: usize = 1 << 20;

pub struct Replica {
    pub partition: Part,
    job: Option<InFlight<Job<MemFiles>, Outcome<MemFiles>>>,
    flush: Option<InFlight<FlushJob<MemFiles>, FlushOutcome>>,
    /// Whom it follows.
    pub follows: Option<(BrokerId, LeaderEpoch)>,
    /// The metadata has it here no more: it goes then.
    pub leaves_at: Option<u64>,
    /// It was cut and has not fetched since.
    pub is_cut: bool,
    /// Where its leader's log starts, as it was last told.
    pub told_start: Offset,
    /// The recovery point that the checkpoint file has.
    pub saved: Offset,
    clean: Option<Box<Clean<MemFiles>>>,
}

/// What a follower's fetch has brought about.
#[derive(Default)]
pub struct Progress {
    pub answers: Answers,
    pub proposals: Vec<(PartitionKey, IsrProposal)>,
}

/// Who asks, and how much.
pub struct Asked<'a> {
    pub key: PartitionKey,
    pub part: &'a FetchPartition,
    pub waterline: Waterline,
    pub bytes_max: u32,
    pub follower: Option<FollowerFetch>,
    /// A replica that follows answers, too.
    pub from_any: bool,
}

impl Replica {
    pub fn new(partition: Part) -> Self {
        Self {
            partition,
            job: None,
            flush: None,
            follows: None,
            leaves_at: None,
            is_cut: false,
            told_start: Offset::ZERO,
            saved: Offset::ZERO,
            clean: None,
        }
    }

    /// Begins to clean a compacted log, or does a slice of that; how many it has brought to an end.
    pub fn advance_clean(&mut self, now: Now) -> Result<usize, String> {
        let Some(clean) = self.clean.take() else {
            let settings =
                CleanSettings { map_bytes: 1 << 16, load_factor: 0.9, buffer_bytes: 4096, slice_bytes: 900 };
            self.clean = self.partition.start_clean(self.saved, settings, now);
            return Ok(0);
        };
        match clean.run() {
            CleanStep::More(clean) => self.clean = Some(clean),
            CleanStep::Group(clean, cleaned) => {
                self.clean = Some(clean);
                if let Err(cleaned) = self.partition.log_mut().exchange(cleaned) {
                    cleaned.discard().map_err(text)?;
                }
            }
            CleanStep::Done { up_to, generation, .. } => {
                self.partition.log_mut().mark_cleaned(up_to, generation);
                return Ok(1);
            }
            CleanStep::Failed(error) => return Err(format!("a log cannot be cleaned: {error}")),
        }
        Ok(0)
    }

    /// Whatever cleans the log lets it be.
    fn give_up_clean(&mut self) -> Result<(), String> {
        self.clean.take().map_or(Ok(()), |clean| clean.discard().map_err(text))
    }

    /// Makes, runs or finishes what file threads do for it.
    pub fn advance_jobs(&mut self, now: Now, wants_flush: bool, answers: &mut Answers) -> Result<(), String> {
        self.job = match self.job.take() {
            None => self.partition.log_mut().next_job(now).map(InFlight::Made),
            Some(InFlight::Made(job)) => Some(InFlight::Run(job.run())),
            Some(InFlight::Run(outcome)) => {
                self.partition.finish_job(outcome, now, answers).map_err(text)?;
                None
            }
        };
        self.flush = match self.flush.take() {
            None if wants_flush => self.partition.start_flush().map(InFlight::Made),
            None => self.partition.flush_due(now).map(InFlight::Made),
            Some(InFlight::Made(job)) => Some(InFlight::Run(job.run())),
            Some(InFlight::Run(outcome)) => {
                self.partition.finish_flush(outcome, now, answers).map_err(text)?;
                None
            }
        };
        Ok(())
    }

    /// Waits for what is under way.
    pub fn finish_jobs(&mut self, now: Now, answers: &mut Answers) -> Result<(), String> {
        while self.job.is_some() || self.flush.is_some() {
            let (job, flush) = (self.job.take(), self.flush.take());
            self.job = match job {
                Some(InFlight::Made(job)) => Some(InFlight::Run(job.run())),
                Some(InFlight::Run(outcome)) => {
                    self.partition.finish_job(outcome, now, answers).map_err(text)?;
                    None
                }
                None => None,
            };
            self.flush = match flush {
                Some(InFlight::Made(job)) => Some(InFlight::Run(job.run())),
                Some(InFlight::Run(outcome)) => {
                    self.partition.finish_flush(outcome, now, answers).map_err(text)?;
                    None
                }
                None => None,
            };
        }
        Ok(())
    }

    /// Writes what is queued.
    pub fn turn(&mut self, now: Now, answers: &mut Answers) -> Result<(), String> {
        loop {
            let turn = self.partition.turn(&mut TURN_BYTES.clone(), now, answers);
            if turn.prepare {
                self.prepare(now)?;
            } else if !turn.more {
                return Ok(());
            }
        }
    }

    fn prepare(&mut self, now: Now) -> Result<(), String> {
        match self.partition.log_mut().prepare_job() {
            Some(job) => self.partition.finish_prepare(job.run(), now).map_err(text),
            // A job of the log makes it.
            None => self.finish_jobs(now, &mut Answers::new()),
        }
    }

    /// Appends what the leader has sent, and takes its high watermark.
    pub fn append(
        &mut self,
        (epoch, at): (LeaderEpoch, Offset),
        records: &Bytes,
        (high_watermark, log_start): (Offset, Offset),
        now: Now,
    ) -> Result<Result<(), NotFollowed>, String> {
        let (mut at, mut left) = (at, &records[..]);
        while !left.is_empty() {
            let records = FollowedRecords { epoch, at, bytes: left };
            let followed = match self.partition.append_following(&records, now) {
                Ok(followed) => followed,
                Err(why) => return Ok(Err(why)),
            };
            if !followed.prepare {
                break;
            }
            (at, left) = (self.partition.log().log_end(), &left[followed.taken..]);
            self.prepare(now)?;
        }
        self.is_cut = false;
        self.told_start = self.told_start.max(log_start);
        let mut answers = Answers::new();
        Ok(self.partition.follow_leader(epoch, high_watermark, log_start, now, &mut answers).map(|_| ()))
    }

    /// Cuts the log of a follower. `None`: there was nothing to cut, or it may not be cut now. Else the replica is another
    /// one, without a part, whose checkpoints are to be written first of all.
    pub fn cut(
        mut self,
        epoch: LeaderEpoch,
        cut: Cut,
        durability: Durability,
        planted: Option<Planted>,
        now: Now,
    ) -> Result<(Replica, bool), String> {
        self.finish_jobs(now, &mut Answers::new())?;
        self.give_up_clean()?;
        let Ok(Some(mut planned)) = self.partition.plan_cut(epoch, cut) else { return Ok((self, false)) };
        if let (Some(Planted::CutNotRechecked), Cut::Diverging { end, .. }) = (planted, cut) {
            planned.to = end.min(planned.end);
        }
        self.partition.fail_all(ErrorCode::NotLeaderOrFollower, &mut Answers::new());
        let (topic_id, config) = (self.partition.topic_id(), Arc::clone(self.partition.config()));
        let mut log = self.partition.into_log();
        let high_watermark = planned.carry_out(&mut log, now).map_err(text)?;
        let partition = Partition::resume(log, topic_id, high_watermark, config, durability);
        let told_start = match cut {
            Cut::Anew(start) => start,
            Cut::Diverging { .. } => self.told_start,
        };
        Ok((Replica { is_cut: true, told_start, ..Replica::new(partition) }, true))
    }

    /// What a fetch finds (the shard's `plan_part`).
    pub fn fetch(
        &mut self,
        asked: &Asked<'_>,
        planted: Option<Planted>,
        now: Now,
        progress: &mut Progress,
    ) -> Result<(FetchedSlice, Vec<AbortedTransaction>), String> {
        let Asked { key, part, bytes_max, .. } = *asked;
        let nothing = |slice| Ok((slice, Vec::new()));
        let checked = match asked.from_any {
            true => self.partition.check_epoch(part.current_leader_epoch),
            false => self.partition.check_leader_epoch(part.current_leader_epoch),
        };
        if let Err(code) = checked {
            return nothing(failed(key, code));
        }
        let follows = !self.partition.is_leader();
        let waterline = match (planted, asked.waterline) {
            (Some(Planted::HighWatermarkByOwnEnd), Waterline::HighWatermark) => Waterline::LogEnd,
            (Some(Planted::FollowerServesItsEnd), Waterline::HighWatermark) if follows => Waterline::LogEnd,
            (Some(Planted::LastStableIgnored), Waterline::LastStable) => Waterline::HighWatermark,
            (_, waterline) => waterline,
        };
        let last_epoch = match planted {
            Some(Planted::TruncationSkipped) => LeaderEpoch::NONE,
            _ => part.last_fetched_epoch,
        };
        let read = self.partition.read(part.fetch_offset, last_epoch, bytes_max, true, waterline);
        if let (Some(follower), Ok(ReadOutcome::Read(_))) = (asked.follower, &read) {
            if let Err(code) = self.partition.note_fetch(follower, now, &mut progress.answers) {
                return nothing(failed(key, code));
            }
            let proposal = self.partition.expand_isr(follower.replica);
            progress.proposals.extend(proposal.map(|proposal| (key, proposal)));
        }
        let found = match read {
            Ok(found) => found,
            Err(error) => {
                return nothing(FetchedSlice {
                    log_start: self.log().log_start(),
                    ..failed(key, error.code())
                });
            }
        };
        let slice = FetchedSlice {
            error: None,
            high_watermark: self.partition.high_watermark(),
            log_start: self.log().log_start(),
            ..failed(key, ErrorCode::UnknownServerError)
        };
        match found {
            ReadOutcome::Diverging { epoch, end } => {
                let diverging = Some(DivergingEpoch { epoch, end_offset: end });
                nothing(FetchedSlice { diverging, ..slice })
            }
            ReadOutcome::Read(read) => match self.bytes(read)? {
                Some((records, _)) if planted == Some(Planted::AbortedNotTold) && follows => {
                    nothing(FetchedSlice { records, ..slice })
                }
                Some((records, aborted)) => Ok((FetchedSlice { records, ..slice }, aborted)),
                None => nothing(slice),
            },
        }
    }

    /// The bytes that were planned, and the aborted transactions among them; `None`: the log was truncated meanwhile.
    fn bytes(
        &mut self,
        mut read: Read<MemFiles>,
    ) -> Result<Option<(Bytes, Vec<AbortedTransaction>)>, String> {
        loop {
            match read {
                Read::Plan(plan) => {
                    let bytes = bytes_of(&plan)?.into();
                    return Ok(Some((bytes, plan.aborted.unwrap_or_default())));
                }
                Read::NeedsDisk(job) => match self.partition.log_mut().finish_read(job.run()) {
                    Ok(next) => read = next,
                    Err(ReadError::Stale) => return Ok(None),
                    Err(error) => return Err(text(error)),
                },
            }
        }
    }

    /// All bytes of the log below `end`.
    pub fn contents(&mut self, end: Offset) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let mut next = self.log().log_start();
        while next < end {
            let request = ReadRequest {
                offset: next,
                bytes_max: 1 << 20,
                upper_bound: end,
                whole_first_batch: true,
                with_aborted: false,
            };
            let read = self.partition.log_mut().read(request).map_err(text)?;
            let (part, _) = self.bytes(read)?.unwrap_or_default();
            match kuring::wire::record::Batches::new(&part).last() {
                Some(last) => next = last.map_err(text)?.head().next_offset(),
                None => return Err(format!("nothing is found at {next}, below {end}")),
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }

    /// What a consumer sees of the whole log that reads committed transactions, some bytes at a time.
    pub fn committed_contents(&mut self, bytes_max: u32) -> Result<Vec<(i64, Value)>, String> {
        let mut seen = Vec::new();
        let mut next = self.log().log_start();
        let end = self.partition.last_stable();
        while next < end {
            let request = ReadRequest {
                offset: next,
                bytes_max,
                upper_bound: end,
                whole_first_batch: true,
                with_aborted: true,
            };
            let read = self.partition.log_mut().read(request).map_err(text)?;
            let (bytes, aborted) = self.bytes(read)?.unwrap_or_default();
            let found = entries(&bytes)?;
            let Some(last) = found.last() else { return Err(format!("nothing is found at {next}")) };
            let visible = committed(&found, &aborted);
            seen.extend(visible.into_iter().filter(|(offset, _)| *offset >= next.0));
            next = Offset(last.offset + 1);
        }
        Ok(seen)
    }

    pub fn log(&self) -> &Log<MemFiles> {
        self.partition.log()
    }
}

pub fn failed(key: PartitionKey, code: ErrorCode) -> FetchedSlice {
    FetchedSlice {
        topic: key.topic,
        index: key.partition,
        error: Some(code),
        high_watermark: Offset(-1),
        log_start: Offset(-1),
        diverging: None,
        records: Bytes::new(),
    }
}
