//! Which old segments go: by time, by size, and below the log start (Kafka's `UnifiedLog.deleteOldSegments`).
//! *Shard.* The files are renamed and removed by jobs.

use crate::base::Offset;
use crate::base::clock::Now;
use crate::io::Files;

use super::Log;

impl<F: Files> Log<F> {
    /// *Shard.* A sweep. Segments whose records are all below the high watermark, on the disk, and too old, too
    /// many bytes or below the log start, leave the log; the log start moves to the first one that stays.
    pub fn enforce_retention(&mut self, high_watermark: Offset, now: Now) {
        self.upkeep.retention_waits = None;
        let mut size = self.size();
        while let Some(first) = self.segments.front() {
            // Compaction may leave an empty segment at the start.
            let is_empty_active = first.size == 0 && self.segments.len() == 1;
            let end = self.segments.get(1).map_or(first.next, |next| next.base);
            if end > high_watermark || is_empty_active || !self.is_superfluous(size, end, now) {
                break;
            }
            if end > self.flushed {
                // Were it torn in a crash before its removal, recovery would cut the log there, and what
                // was flushed behind it would go too.
                self.request_checkpoint();
                if self.segments.len() == 1 {
                    self.upkeep.wait_for_spare(high_watermark);
                }
                break;
            }
            if self.segments.len() == 1 && !self.roll_to_empty(high_watermark, now) {
                break;
            }
            if let Some(gone) = self.segments.pop_front() {
                size -= u64::from(gone.size);
                self.upkeep.doomed.push(gone.base);
                self.snapshots.retain(|offset| *offset != gone.base);
                self.windows.retain(|window| window.segment() != gone.base);
            }
        }
        let first = self.segments.front().map_or(self.log_start, |segment| segment.base);
        if first > self.log_start {
            self.log_start = first;
            self.epochs.truncate_start(first);
            self.recovery_point = self.recovery_point.max(first);
        }
    }

    /// Whether the oldest segment, of a log of `size` bytes, is to go; `end` is the offset after it.
    fn is_superfluous(&self, size: u64, end: Offset, now: Now) -> bool {
        let Some(first) = self.segments.front() else { return false };
        if end <= self.log_start {
            return true;
        }
        let config = &self.config;
        if !config.cleanup_policy.delete {
            return false;
        }
        let age = now.wall.0.saturating_sub(first.largest_timestamp().0);
        let too_old = config.retention_ms >= 0 && age > config.retention_ms;
        let too_much = u64::try_from(config.retention_bytes)
            .is_ok_and(|retention| size.saturating_sub(u64::from(first.size)) >= retention);
        too_old || too_much
    }

    /// The active segment goes too: an empty one takes its place, in a spare file that a job makes.
    fn roll_to_empty(&mut self, high_watermark: Offset, now: Now) -> bool {
        if self.upkeep.spare.is_none() {
            self.upkeep.wait_for_spare(high_watermark);
            return false;
        }
        self.roll(now).is_ok()
    }
}
