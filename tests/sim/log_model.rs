//! What a log must look like from outside: a list of batches.

use kuring::base::{LeaderEpoch, Offset, ProducerId};
use kuring::log::Batch;
use zerocopy::IntoBytes;

/// A batch that was appended.
#[derive(Clone)]
pub struct ModelBatch {
    pub first: i64,
    pub next: i64,
    pub epoch: LeaderEpoch,
    pub producer: Option<(ProducerId, i32)>,
    /// Where it lies among the bytes of all.
    pub position: usize,
    pub length: usize,
    /// Of its records.
    pub timestamps: Vec<i64>,
    /// What was sent, to send it again.
    pub sent: Batch,
}

impl ModelBatch {
    fn new(position: usize, sent: Batch, appended: &Batch, timestamps: Vec<i64>) -> Self {
        let head = &appended.head;
        let producer = head.producer_id().is_some().then(|| (head.producer_id(), head.last_sequence()));
        Self {
            first: head.base_offset().0,
            next: head.next_offset().0,
            epoch: head.leader_epoch(),
            producer,
            position,
            length: head.as_bytes().len() + appended.body.len(),
            timestamps,
            sent,
        }
    }
}

/// All batches that were ever appended and not truncated, those that retention took included.
#[derive(Default)]
pub struct Model {
    batches: Vec<ModelBatch>,
    /// Of all batches, one after the other.
    bytes: Vec<u8>,
    /// The log's end.
    pub end: i64,
    /// Where the log starts for clients.
    pub start: i64,
    /// The furthest it ever was: of older records, which a crash may bring back, the epochs are forgotten.
    pub start_max: i64,
    /// What the log promised to be on the disk.
    pub durable: i64,
    /// The checkpoint files as last written.
    pub recovery_point: i64,
    pub start_checkpoint: i64,
}

impl Model {
    /// `sent` was appended; `appended` is what the log made of it.
    pub fn push(&mut self, sent: Batch, appended: &Batch, timestamps: Vec<i64>) {
        let batch = ModelBatch::new(self.bytes.len(), sent, appended, timestamps);
        self.end = batch.next;
        self.bytes.extend_from_slice(appended.head.as_bytes());
        self.bytes.extend_from_slice(&appended.body);
        self.batches.push(batch);
    }

    /// The last end of a batch at or before `offset`.
    pub fn whole_before(&self, offset: i64) -> i64 {
        self.batches.iter().rfind(|batch| batch.next <= offset).map_or(0, |batch| batch.next)
    }

    /// The log ends at `end` now.
    pub fn cut(&mut self, end: i64) {
        self.batches.truncate(self.batches.partition_point(|batch| batch.next <= end));
        self.bytes.truncate(self.batches.last().map_or(0, |last| last.position + last.length));
        self.end = end;
        self.start = self.start.min(end);
        self.start_max = self.start_max.min(end);
        self.durable = self.durable.min(end);
    }

    /// The bytes from the batch that holds `offset` up to the last batch below `bound`.
    pub fn bytes(&self, offset: i64, bound: i64) -> &[u8] {
        let first = self.batches.partition_point(|batch| batch.next <= offset);
        let end = self.batches.partition_point(|batch| batch.next <= bound);
        match self.batches.get(first..end) {
            Some([first, .., last]) => &self.bytes[first.position..last.position + last.length],
            Some([only]) => &self.bytes[only.position..only.position + only.length],
            _ => &[],
        }
    }

    /// The batch that holds `offset`.
    pub fn batch_at(&self, offset: i64) -> Option<&ModelBatch> {
        let place = self.batches.partition_point(|batch| batch.next <= offset);
        self.batches.get(place).filter(|batch| batch.first <= offset)
    }

    /// The last batch of a producer.
    pub fn last_of(&self, producer: ProducerId) -> Option<&ModelBatch> {
        let is_its = |batch: &&ModelBatch| batch.producer.is_some_and(|(id, _)| id == producer);
        self.batches.iter().rfind(is_its)
    }

    /// The first record that clients may read whose timestamp is not below `time`.
    pub fn first_at_or_after(&self, time: i64) -> Option<(i64, i64)> {
        let records = self.batches.iter().flat_map(|batch| (batch.first..).zip(&batch.timestamps));
        let found = records.filter(|(offset, _)| *offset >= self.start).find(|(_, stamp)| **stamp >= time);
        found.map(|(offset, stamp)| (offset, *stamp))
    }

    /// The first record with the greatest timestamp from offset `from` on.
    pub fn youngest(&self, from: i64) -> Option<(i64, i64)> {
        let records = self.batches.iter().flat_map(|batch| (batch.first..).zip(&batch.timestamps));
        let readable = records.filter(|(offset, _)| *offset >= from);
        // Of equals the first.
        let youngest = readable.max_by_key(|(offset, stamp)| (**stamp, std::cmp::Reverse(*offset)));
        youngest.map(|(offset, stamp)| (offset, *stamp))
    }

    /// The offset after the last record of `epoch`, for epochs that have records and are not the last.
    pub fn epoch_end(&self, epoch: LeaderEpoch) -> Option<Offset> {
        let readable = || self.batches.iter().filter(|batch| batch.first >= self.start_max);
        if !readable().any(|batch| batch.epoch == epoch) {
            return None;
        }
        readable().find(|batch| batch.epoch > epoch).map(|batch| Offset(batch.first))
    }
}
