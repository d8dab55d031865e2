//! The owner's half of the questions about a partition: offsets, epochs, producers, sizes.

use std::rc::Rc;

use super::Shard;
use super::mesh::ReplyTo;
use super::messages::{
    Described, EpochQuery, LogSize, OffsetAnswer, OffsetQuery, OffsetTarget, RefusedGuard, Reply, VerifyQuery,
};
use super::placement::PartitionKey;
use super::replica::LivePartition;
use crate::base::Offset;
use crate::base::clock::{self, Timestamp};
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, spawn};
use crate::log::{
    Guard, OffsetLookup, ReadError, TimeJob, TimestampOffset, TimestampTarget, VerificationQuery,
};
use crate::partition::{EpochEnd, Waterline};
use crate::wire::ErrorCode;

/// Looks at the disk for one answer, if compaction exchanges segments meanwhile.
const LOOKS_MAX: usize = 5;

enum Found {
    Now(OffsetAnswer),
    OnDisk { job: TimeJob<OsFiles>, bound: Bound },
}

/// How far whoever asks for an offset may see.
#[derive(Clone, Copy)]
struct Bound {
    end: Offset,
    /// What a client is told that asks for the end, or for what may lie behind it.
    latest: Result<Offset, ErrorCode>,
}

impl Bound {
    fn of(partition: &LivePartition, waterline: Waterline) -> Self {
        Self { end: partition.upper_bound(waterline), latest: partition.latest(waterline) }
    }

    /// What was found, if it may be seen (`ReplicaManager.fetchOffset`).
    fn answer(self, found: Option<TimestampOffset>) -> Result<OffsetAnswer, ErrorCode> {
        let found = found.filter(|found| found.offset < self.end);
        if found.is_none() {
            self.latest?;
        }
        Ok(OffsetAnswer { found })
    }
}

impl Shard {
    pub(super) fn find_offsets(self: &Rc<Self>, reply_to: ReplyTo, queries: Vec<OffsetQuery>) {
        let mut answers = Vec::with_capacity(queries.len());
        let mut on_disk = Vec::new();
        for query in &queries {
            match self.find_offset(query) {
                Ok(Found::Now(answer)) => answers.push(Ok(answer)),
                Ok(Found::OnDisk { job, bound }) => {
                    on_disk.push((answers.len(), job, bound));
                    answers.push(Ok(OffsetAnswer { found: None }));
                }
                Err(code) => answers.push(Err(code)),
            }
        }
        if on_disk.is_empty() {
            self.mesh.push_reply(reply_to, Reply::Offsets(answers));
            return;
        }
        let shard = self.clone();
        spawn(Queue::Serve, "offset by time", async move {
            for (index, job, bound) in on_disk {
                answers[index] = shard.find_on_disk(&queries[index], job, bound).await;
            }
            shard.mesh.push_reply(reply_to, Reply::Offsets(answers));
        })
        .detach();
    }

    async fn find_on_disk(
        self: &Rc<Self>,
        query: &OffsetQuery,
        mut job: TimeJob<OsFiles>,
        mut bound: Bound,
    ) -> Result<OffsetAnswer, ErrorCode> {
        for _ in 0..LOOKS_MAX {
            let layout = job.layout();
            let threads = &self.settings.directories.readers;
            let (found, learnt) = threads.run("offset by time", move || job.look()).await;
            let replica = self.replica(query.key).ok_or(ErrorCode::UnknownTopicOrPartition)?;
            let is_current = replica.with(|partition| {
                learnt.into_iter().for_each(|youngest| partition.log_mut().learn(youngest));
                partition.log().is_current(layout)
            })?;
            if is_current {
                return match found {
                    Ok(found) => bound.answer(found),
                    Err(error) => {
                        self.note_read_error(&replica, &error);
                        Err(ReadError::Storage(error).code())
                    }
                };
            }
            match self.find_offset(query)? {
                Found::Now(answer) => return Ok(answer),
                Found::OnDisk { job: next, bound: below } => (job, bound) = (next, below),
            }
        }
        // Retriable: the client asks again.
        Err(ErrorCode::NotLeaderOrFollower)
    }

    fn find_offset(&self, query: &OffsetQuery) -> Result<Found, ErrorCode> {
        let replica = self.replica(query.key).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        replica.with(|partition| {
            partition.check_leader_epoch(query.current_leader_epoch)?;
            let bound = Bound::of(partition, query.waterline);
            let log = partition.log();
            let plain = |offset: Offset, leader_epoch| {
                let found = TimestampOffset { timestamp: Timestamp::NONE, offset, leader_epoch };
                Found::Now(OffsetAnswer { found: Some(found) })
            };
            let target = match query.target {
                OffsetTarget::Earliest => return Ok(plain(log.log_start(), log.epoch_of(log.log_start()))),
                // The leader's epoch, whoever wrote the last record below the bound (`Partition`).
                OffsetTarget::Latest => return Ok(plain(bound.latest?, Some(partition.leader_epoch()))),
                OffsetTarget::Tiered => return Ok(Found::Now(OffsetAnswer { found: None })),
                OffsetTarget::MaxTimestamp => TimestampTarget::Max,
                OffsetTarget::At(timestamp) => TimestampTarget::FirstAtOrAfter(timestamp),
            };
            Ok(match log.offset_for(target) {
                OffsetLookup::Ready(found) => Found::Now(bound.answer(found)?),
                OffsetLookup::NeedsDisk(job) => Found::OnDisk { job, bound },
            })
        })?
    }

    pub(super) fn epoch_end(&self, query: &EpochQuery) -> Result<EpochEnd, ErrorCode> {
        let replica = self.replica(query.key).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        replica.with(|partition| {
            partition.check_leader_epoch(query.current_leader_epoch)?;
            Ok(partition.epoch_end(query.epoch))
        })?
    }

    /// The producers of the first of `keys`, up to one that would make them more than `producers_max`.
    pub(super) fn producers(&self, keys: &[PartitionKey], producers_max: usize) -> Vec<Described> {
        while_there_is_room(keys, producers_max, |key, takes| {
            let replica = self.replica(*key).ok_or(ErrorCode::UnknownTopicOrPartition)?;
            replica.with(|partition| {
                let log = partition.log();
                takes(log.producer_count()).then(|| log.producers().collect())
            })
        })
    }

    pub(super) fn verify(&self, query: &VerifyQuery) -> Result<Option<Guard>, ErrorCode> {
        let replica = self.replica(query.key).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let VerifyQuery { producer, sequence, bumps_epoch, .. } = *query;
        let query = VerificationQuery { id: producer.id, epoch: producer.epoch, sequence, bumps_epoch };
        let verified = replica.with(|partition| partition.begin_verification(query, clock::now()))?;
        if verified == Err(ErrorCode::CoordinatorNotAvailable) {
            self.counters.verifications_refused.increment();
        }
        verified
    }

    /// A log that is gone has no guards.
    pub(super) fn refuse_verified(&self, refused: &RefusedGuard) {
        let RefusedGuard { key, producer, guard, is_final } = *refused;
        if let Some(replica) = self.replica(key) {
            let _ = replica.with(|partition| {
                partition.log_mut().refuse_verification(producer, guard, is_final);
            });
        }
    }

    pub(super) fn log_sizes(&self) -> Vec<LogSize> {
        let replicas = self.replicas.borrow();
        let mut sizes = Vec::with_capacity(replicas.len());
        for replica in replicas.values() {
            let current = replica.with(|partition| (partition.log().size(), partition.log().log_end()));
            let Ok((bytes, end)) = current else { continue };
            let topic_partition = &replica.topic_partition;
            let size = |directory, bytes, future_lag| LogSize {
                directory,
                topic_partition: topic_partition.clone(),
                bytes,
                future_lag,
            };
            sizes.push(size(replica.directory(), bytes, None));
            if let Some(moving) = replica.moving() {
                sizes.push(size(moving.directory, moving.bytes(), Some(end.0 - moving.log_end().0)));
            }
        }
        sizes
    }
}

/// Describes one after the other, until one does not get the room that it takes.
fn while_there_is_room<K>(
    keys: &[K],
    producers_max: usize,
    mut describe: impl FnMut(&K, &mut dyn FnMut(usize) -> bool) -> Described,
) -> Vec<Described> {
    let mut left = producers_max;
    let mut takes = |count: usize| match left.checked_sub(count) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    let described = keys.iter().map(|key| describe(key, &mut takes));
    described.take_while(|described| !matches!(described, Ok(None))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_that_there_is_no_room_for_are_not_looked_at() {
        let partitions = [Ok(3), Err(ErrorCode::KafkaStorageError), Ok(2), Ok(4), Ok(1)];
        let mut looked_at = Vec::new();
        let described = while_there_is_room(&partitions, 6, |partition, takes| {
            let count = (*partition)?;
            let has_room = takes(count);
            looked_at.extend(has_room.then_some(count));
            Ok(has_room.then(Vec::new))
        });
        assert_eq!(looked_at, [3, 2]);
        assert_eq!(described.len(), 3, "the partition without room and those behind it are asked for again");
        assert!(matches!(described[1], Err(ErrorCode::KafkaStorageError)));
        let all = while_there_is_room(&[4, 2], 6, |count, takes| Ok(takes(*count).then(Vec::new)));
        assert_eq!(all.len(), 2, "they fit");
    }
}
