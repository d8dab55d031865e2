//! A log that follows another one: it takes batches as they are, offsets and leader epochs included (Kafka's
//! `appendAsFollower`). *File thread.*

use std::io::{self, IoSlice};
use std::path::PathBuf;

use crate::base::Offset;
use crate::base::clock::Now;
use crate::io::{FileHandle, Files};
use crate::wire::record::{BatchError, BatchHead, HEAD_LEN};

use super::append::marker;
use super::error::Context;
use super::names::{self, FileKind};
use super::segment::SegmentMark;
use super::verification::Claim;
use super::{Log, LogError};

/// What is noted and not yet written.
struct Unwritten {
    from: usize,
    position: u32,
    mark: SegmentMark,
    batches: usize,
}

impl<F: Files> Log<F> {
    /// *File thread.* Appends the whole batches that `bytes` begin with, in formats old and new; returns how many
    /// bytes they have. A damaged batch, or one that does not follow, is an error of kind `InvalidData`: then
    /// nothing of `bytes` since the last roll is in the log.
    pub fn append_as_follower(&mut self, bytes: &[u8], now: Now) -> Result<usize, LogError> {
        let mut taken = 0;
        let mut unwritten = self.unwritten(0);
        let refused = loop {
            let left = &bytes[taken..];
            let head = match BatchHead::of_entry(left) {
                Ok(head) if head.total_len() <= left.len() => head,
                Ok(_) | Err(BatchError::Incomplete { .. }) => break None,
                Err(error) => break Some(error.to_string()),
            };
            let entry = &left[..head.total_len()];
            let marker = match self.check_following(&head, entry) {
                Ok(marker) => marker,
                Err(why) => break Some(why),
            };
            if self.must_roll(&head, now) {
                self.write_following(bytes, taken, &unwritten)?;
                self.roll(now)?;
                unwritten = self.unwritten(taken);
            }
            let start = head.base_offset().max(self.log_end());
            self.epochs.assign(head.leader_epoch(), start);
            self.note(&head, marker, Claim::Unchecked);
            self.active_mut().modified = now.wall;
            unwritten.batches += 1;
            taken += entry.len();
        };
        if let Some(why) = refused {
            self.take_back(&unwritten);
            let source = io::Error::new(io::ErrorKind::InvalidData, why);
            return Err(LogError { what: "append to", path: self.active_path(), source });
        }
        self.write_following(bytes, taken, &unwritten)?;
        self.trim_recent();
        Ok(taken)
    }

    /// *File thread.* Does here what file threads do for a log that a shard owns. A job that is refused is put back
    /// and its error returned.
    pub fn run_jobs(&mut self, now: Now) -> Result<(), LogError> {
        self.upkeep.retry_now();
        while let Some(job) = self.next_job(now) {
            self.finish_or_put_back(job.run(), now)?;
        }
        Ok(())
    }

    /// The log's directory has another name now. No job may be out.
    pub fn relocate(&mut self, dir: PathBuf) {
        self.upkeep.relocate(&dir);
        self.dir = dir;
    }

    /// Takes the place of `before`, of which it is a whole copy: plans that were made there are stale here.
    pub fn succeed(&mut self, before: &Log<F>, high_watermark: Offset) {
        assert_eq!(self.log_end(), before.log_end(), "the copy is not whole");
        self.generation = before.generation + 1;
        self.layout = before.layout + 1;
        self.cleaned = before.cleaned;
        self.config = before.config.clone();
        self.high_watermark_advanced(high_watermark);
    }

    fn check_following(
        &self,
        head: &BatchHead,
        entry: &[u8],
    ) -> Result<Option<crate::wire::record::EndTxnMarker>, String> {
        if !head.is_intact(entry) {
            return Err(format!("the checksum of the batch at offset {} does not match", head.base_offset()));
        }
        if head.last_offset() < self.log_end()
            || head.last_offset() > Offset::MAX
            || head.last_offset_delta() < 0
        {
            return Err(format!("the batch at offset {} does not follow", head.base_offset()));
        }
        if !head.attributes().is_control() || !head.producer_id().is_some() {
            return Ok(None);
        }
        match marker(head, &entry[HEAD_LEN..]) {
            Some(marker) => Ok(Some(marker)),
            None => Err(format!("the batch at offset {} is no marker", head.base_offset())),
        }
    }

    fn unwritten(&self, from: usize) -> Unwritten {
        let active = self.active();
        Unwritten { from, position: active.size, mark: active.mark(), batches: 0 }
    }

    fn write_following(&mut self, bytes: &[u8], to: usize, unwritten: &Unwritten) -> Result<(), LogError> {
        if unwritten.batches == 0 {
            return Ok(());
        }
        let path = self.active_path();
        let bytes = &bytes[unwritten.from..to];
        let written = self
            .active_file()
            .map_err(|(error, _)| error)
            .and_then(|file| file.write_all_at(&mut [IoSlice::new(bytes)], u64::from(unwritten.position)));
        match written.context("append to", &path) {
            Ok(()) => {
                self.producers.commit();
                self.appended_bytes += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.take_back(unwritten);
                if !error.fault().passes() {
                    self.take_offline(&error);
                }
                Err(error)
            }
        }
    }

    fn take_back(&mut self, unwritten: &Unwritten) {
        self.producers.rollback();
        self.active_mut().rollback(&unwritten.mark);
        self.recent.truncate(self.recent.len() - unwritten.batches);
        let end = self.log_end();
        self.epochs.truncate_end(end);
    }

    fn active_path(&self) -> PathBuf {
        names::file(&self.dir, self.active().base, FileKind::Log)
    }
}
