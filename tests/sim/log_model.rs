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
    pub bytes: Vec<u8>,
    /// Of its records.
    pub timestamps: Vec<i64>,
    /// What was sent, to send it again.
    pub sent: Batch,
}

impl ModelBatch {
    pub fn new(sent: Batch, appended: &Batch, timestamps: Vec<i64>) -> Self {
        let head = &appended.head;
        let producer = head.producer_id().is_some().then(|| (head.producer_id(), head.last_sequence()));
        Self {
            first: head.base_offset().0,
            next: head.next_offset().0,
            epoch: head.leader_epoch(),
            producer,
            bytes: [head.as_bytes(), &appended.body].concat(),
            timestamps,
            sent,
        }
    }
}

/// All batches that were ever appended and not truncated, those that retention took included.
#[derive(Default)]
pub struct Model {
    pub batches: Vec<ModelBatch>,
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
    /// The log ends at `end` now.
    pub fn cut(&mut self, end: i64) {
        self.batches.retain(|batch| batch.next <= end);
        self.end = end;
        self.start = self.start.min(end);
        self.start_max = self.start_max.min(end);
        self.durable = self.durable.min(end);
    }

    /// The bytes from the batch that holds `offset` up to the last batch below `bound`.
    pub fn bytes(&self, offset: i64, bound: i64) -> Vec<u8> {
        let wanted = self.batches.iter().filter(|batch| batch.next > offset && batch.next <= bound);
        wanted.flat_map(|batch| batch.bytes.iter().copied()).collect()
    }

    /// The batch that holds `offset`.
    pub fn batch_at(&self, offset: i64) -> Option<&ModelBatch> {
        self.batches.iter().find(|batch| batch.first <= offset && offset < batch.next)
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

    /// The offset after the last record of `epoch`, for epochs that have records and are not the last.
    pub fn epoch_end(&self, epoch: LeaderEpoch) -> Option<Offset> {
        let readable = || self.batches.iter().filter(|batch| batch.first >= self.start_max);
        if !readable().any(|batch| batch.epoch == epoch) {
            return None;
        }
        readable().find(|batch| batch.epoch > epoch).map(|batch| Offset(batch.first))
    }
}
