//! Appending: producer checks, offsets, rolling, one vectored write per segment. *Shard.*

use std::io::{self, IoSlice};

use bytes::Bytes;
use zerocopy::IntoBytes;

use crate::base::clock::{Now, Timestamp};
use crate::base::random::Random;
use crate::base::{LeaderEpoch, Offset};
use crate::config::TimestampType;
use crate::io::{FileHandle, Files, OpenMode};
use crate::wire::ErrorCode;
use crate::wire::record::{BatchHead, BatchView, EndTxnMarker, HEAD_LEN, Records};

use super::error::Context;
use super::jobs::Rolled;
use super::names::{self, FileKind};
use super::producers::{Check, Origin};
use super::read::Recent;
use super::segment::{Segment, SegmentFile, SegmentMark};
use super::verification::Claim;
use super::{Log, LogError, index, snapshot};

/// A validated batch: the head is patched by the append, the body goes to the file as it is.
#[derive(Clone, Debug)]
pub struct Batch {
    pub head: BatchHead,
    pub body: Bytes,
    pub claim: Claim,
}

impl Batch {
    /// Splits the bytes of a whole batch; the body is a slice of them. `None` if they are not exactly one batch.
    pub fn from_bytes(bytes: &Bytes) -> Option<Batch> {
        let view = BatchView::parse(bytes).ok()?;
        (view.bytes().len() == bytes.len()).then(|| Batch {
            head: *view.head(),
            body: bytes.slice(HEAD_LEN..),
            claim: Claim::Unchecked,
        })
    }
}

/// Where a batch lies now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    pub first: Offset,
    pub last: Offset,
    /// -1 unless the topic stamps its records itself.
    pub log_append_time: Timestamp,
    pub log_start: Offset,
    /// It was there already (idempotent producer): nothing was written.
    pub duplicate: bool,
}

/// What a write puts at risk: everything since the last successful one.
struct Pending {
    /// The first batch and the first result that belong to it.
    from: usize,
    first_offset: Offset,
    position: u32,
    mark: SegmentMark,
    batches: usize,
}

impl<F: Files> Log<F> {
    /// *Shard.* Appends validated batches, whatever connections they came from, in order; one result each. Their
    /// heads get offsets and `leader_epoch`. When a write fails, all batches of that write are refused and the
    /// log is as before; after an error other than a full disk it is offline too.
    pub fn append(
        &mut self,
        batches: &mut [Batch],
        leader_epoch: LeaderEpoch,
        origin: Origin,
        now: Now,
    ) -> Vec<Result<Appended, ErrorCode>> {
        let mut results = Vec::with_capacity(batches.len());
        let mut pending = self.start_write(0);
        for number in 0..batches.len() {
            let batch = &batches[number];
            let marker = match self.admit(batch, origin) {
                Ok(Admitted::Append(marker)) => marker,
                Ok(Admitted::Known(appended)) => {
                    results.push(Ok(appended));
                    continue;
                }
                Err(code) => {
                    results.push(Err(code));
                    continue;
                }
            };
            if self.must_roll(&batch.head, now) {
                let written = self.write(&batches[..number], pending, &mut results);
                let rolled = written && self.roll_for_append(now);
                pending = self.start_write(number);
                if !rolled {
                    // It was admitted after batches that are not there now.
                    results.push(Err(ErrorCode::KafkaStorageError));
                    continue;
                }
            }
            pending.batches += 1;
            self.active_mut().modified = now.wall;
            let Batch { head, claim, .. } = &mut batches[number];
            let claim = *claim;
            head.set_base_offset(self.log_end());
            head.set_leader_epoch(leader_epoch);
            results.push(Ok(self.note(head, marker, claim)));
        }
        self.write(batches, pending, &mut results);
        results
    }

    /// Whether the batch is to be appended.
    fn admit(&self, batch: &Batch, origin: Origin) -> Result<Admitted, ErrorCode> {
        if self.offline || self.is_held_up() {
            return Err(ErrorCode::KafkaStorageError);
        }
        if batch.head.total_len() > self.config.segment_bytes as usize {
            return Err(ErrorCode::RecordListTooLarge);
        }
        // Behind the last of all offsets there is none.
        if i64::from(batch.head.last_offset_delta()) > Offset::MAX.0 - self.log_end().0 {
            return Err(ErrorCode::KafkaStorageError);
        }
        if batch.head.attributes().is_control() && batch.head.producer_id().is_some() {
            let marker = marker(&batch.head, &batch.body).ok_or(ErrorCode::InvalidRecord)?;
            self.producers.check_marker(&batch.head, marker, batch.claim)?;
            return Ok(Admitted::Append(Some(marker)));
        }
        match self.producers.check(&batch.head, origin, batch.claim)? {
            Check::Append => Ok(Admitted::Append(None)),
            Check::Duplicate { first, last, timestamp } => Ok(Admitted::Known(Appended {
                first,
                last,
                log_append_time: timestamp,
                log_start: self.log_start,
                duplicate: true,
            })),
        }
    }

    /// Takes note of a batch that is about to be written.
    pub(super) fn note(&mut self, head: &BatchHead, marker: Option<EndTxnMarker>, claim: Claim) -> Appended {
        let active = self.active();
        let (first, next) = (head.base_offset(), head.next_offset());
        let recent = Recent { first, next, segment: active.base, position: active.size };
        match marker {
            Some(marker) => {
                if let Some(aborted) = self.producers.apply_marker(head, marker, claim) {
                    self.active_mut().note_aborted(aborted);
                }
            }
            None => self.producers.apply(head),
        }
        let index_interval = self.config.index_interval_bytes;
        self.active_mut().note(head, index_interval);
        self.recent.push_back(recent);
        Appended {
            first: head.base_offset(),
            last: head.last_offset(),
            log_append_time: match head.attributes().timestamp_type() {
                TimestampType::LogAppendTime => head.max_timestamp(),
                TimestampType::CreateTime => Timestamp::NONE,
            },
            log_start: self.log_start,
            duplicate: false,
        }
    }

    fn start_write(&self, from: usize) -> Pending {
        let active = self.active();
        Pending { from, first_offset: active.next, position: active.size, mark: active.mark(), batches: 0 }
    }

    /// Writes what was noted since `pending` began; `batches` and `results` end with the last of them. On an
    /// error takes the notes back and returns false.
    fn write(
        &mut self,
        batches: &[Batch],
        pending: Pending,
        results: &mut [Result<Appended, ErrorCode>],
    ) -> bool {
        if pending.batches == 0 {
            return true;
        }
        let is_new =
            |result: &Result<Appended, ErrorCode>| matches!(result, Ok(appended) if !appended.duplicate);
        let mut slices = Vec::with_capacity(pending.batches * 2);
        let mut bytes = 0;
        for (batch, result) in batches[pending.from..].iter().zip(&results[pending.from..]) {
            if is_new(result) {
                slices.push(IoSlice::new(batch.head.as_bytes()));
                slices.push(IoSlice::new(&batch.body));
                bytes += batch.head.total_len() as u64;
            }
        }
        let written = self.active_file().and_then(|file| {
            let position = u64::from(pending.position);
            file.write_all_at(&mut slices, position).map_err(|error| {
                // Nothing of it may be taken for a batch after a crash.
                (error, file.truncate(position).is_ok())
            })
        });
        let Err((error, truncated)) = written else {
            self.producers.commit();
            self.appended_bytes += bytes;
            let epoch = batches[pending.from..].iter().zip(&results[pending.from..]);
            if let Some((batch, _)) = epoch.into_iter().find(|(_, result)| is_new(result)) {
                self.epochs.assign(batch.head.leader_epoch(), pending.first_offset);
            }
            self.trim_recent();
            return true;
        };
        self.producers.rollback();
        self.active_mut().rollback(&pending.mark);
        self.recent.truncate(self.recent.len() - pending.batches);
        for result in &mut results[pending.from..] {
            if matches!(result, Ok(appended) if appended.first >= pending.first_offset) {
                *result = Err(ErrorCode::KafkaStorageError);
            }
        }
        self.upkeep.surplus_cut();
        let path = names::file(&self.dir, self.active().base, FileKind::Log);
        let error = LogError { what: "append to", path, source: error };
        if error.fault().passes() && truncated {
            self.note_refusal(&error);
        } else {
            self.take_offline(&error);
        }
        false
    }

    fn roll_for_append(&mut self, now: Now) -> bool {
        let rolled = self.roll(now);
        match &rolled {
            Ok(()) => {}
            Err(error) if error.fault().passes() => self.note_refusal(error),
            Err(error) => self.take_offline(error),
        }
        rolled.is_ok()
    }

    /// The active segment's file; opens it if it was released.
    pub(super) fn active_file(&mut self) -> Result<std::sync::Arc<SegmentFile<F>>, (io::Error, bool)> {
        if let Some(file) = &self.active().file {
            return Ok(std::sync::Arc::clone(file));
        }
        let path = names::file(&self.dir, self.active().base, FileKind::Log);
        let file = self.context.files.open(&path, OpenMode::Write).map_err(|error| (error, true))?;
        self.counts.reopened += 1;
        let file = SegmentFile::new(&self.context, file);
        self.active_mut().file = Some(std::sync::Arc::clone(&file));
        Ok(file)
    }

    /// Kafka's `LogSegment.shouldRoll`.
    pub(super) fn must_roll(&self, head: &BatchHead, now: Now) -> bool {
        self.must_roll_after(0, 0, head, now)
    }

    /// The same once the active segment has `bytes` and at most `rows` index rows more.
    pub(super) fn must_roll_after(&self, bytes: u64, rows: u32, head: &BatchHead, now: Now) -> bool {
        let active = self.active();
        let config = &self.config;
        let size = u64::from(active.size) + bytes;
        if size == 0 {
            return false;
        }
        let index_full = active.index.len() + rows >= config.segment_index_bytes / 8
            || active.times.len() + rows + 1 >= config.segment_index_bytes / 12;
        size + head.total_len() as u64 > u64::from(config.segment_bytes)
            || active.age_ms(head.max_timestamp(), now.wall) > self.segment_ms() - self.jitter_ms()
            || index_full
            || index::relative(active.base, active.next.plus(i64::from(head.last_offset_delta()))).is_none()
    }

    /// A compacted segment is rolled early enough for `max.compaction.lag.ms` (Kafka's `LogConfig.maxSegmentMs`).
    fn segment_ms(&self) -> i64 {
        let config = &self.config;
        match config.cleanup_policy.compact && config.max_compaction_lag_ms > 0 {
            true => config.segment_ms.min(config.max_compaction_lag_ms),
            false => config.segment_ms,
        }
    }

    /// Spreads the rolls of partitions that began together; the same for a segment at each call.
    fn jitter_ms(&self) -> i64 {
        let bound = self.config.segment_jitter_ms;
        if bound <= 0 {
            return 0;
        }
        let name = crc32fast::hash(self.topic_partition.topic.as_bytes());
        let seed = u64::from(name) << 32
            ^ self.active().base.0 as u64
            ^ u64::from(self.topic_partition.partition.0 as u32);
        Random::seeded(seed).below(bound as u64) as i64
    }

    /// A new active segment at the log's end, in the spare file if there is one. The slow part is left to a job.
    pub(super) fn roll(&mut self, now: Now) -> Result<(), LogError> {
        let base = self.log_end();
        let path = names::file(&self.dir, base, FileKind::Log);
        let (file, spare) = match self.upkeep.spare.take() {
            Some(spare) => (spare.file, Some(spare.path)),
            None => {
                let file = self.context.files.open(&path, OpenMode::CreateNew).context("create", &path)?;
                self.counts.rolls_unprepared += 1;
                (SegmentFile::new(&self.context, file), None)
            }
        };
        self.counts.rolls += 1;
        let appended_bytes = self.appended_bytes;
        let snapshot = snapshot::encode(&self.producers);
        let old = self.active_mut();
        old.note_newest();
        let rolled = Rolled { old: old.base, new: base, spare, snapshot, appended_bytes };
        self.upkeep.segment_rolled(rolled, appended_bytes);
        self.segments.push_back(Segment::new(base, file, now.wall));
        Ok(())
    }
}

enum Admitted {
    Append(Option<EndTxnMarker>),
    Known(Appended),
}

/// The marker that a control batch holds.
pub(super) fn marker(head: &BatchHead, body: &[u8]) -> Option<EndTxnMarker> {
    let record = Records::new(head, body).next()?.ok()?;
    EndTxnMarker::from_record(record.key?, record.value?)
}
