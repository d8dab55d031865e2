//! A shard's figures at one moment, copied for whoever looks from outside: everything in them may leave the
//! shard. Costs nothing until it is asked for.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use ahash::AHashSet;

use super::replica::{Replica, ReplicaState};
use super::requests::ApiRecorded;
use super::{Counters, Shard};
use crate::base::{Offset, PartitionIndex, Recorded, ShardId, TopicName, TopicPartition};
use crate::config::MetricsOfLogs;
use crate::io::runtime::{self, Work, yield_if_needed};

/// Offline partitions that are named.
const OFFLINE_NAMED_MAX: usize = 10;

/// What is wanted beside the sums.
#[derive(Clone, Debug)]
pub struct WantedFigures {
    pub logs: MetricsOfLogs,
    /// The high watermarks of these topics' partitions.
    pub high_watermarks_of: Arc<AHashSet<TopicName>>,
}

/// One shard's.
#[derive(Clone, Debug)]
pub struct Figures {
    pub shard: ShardId,
    pub work: Work,
    /// In the order of [`Counters::EXPORTS`].
    pub counters: Vec<u64>,
    pub requests: Vec<ApiRecorded>,
    /// By log directory, in the order of `log.dirs`.
    pub directories: Vec<LogFigures>,
    pub partitions_opening: usize,
    /// Some of the partitions that are offline, with the numbers of their directories.
    pub offline: Vec<(TopicPartition, usize)>,
    pub details: Vec<PartitionFigures>,
    pub high_watermarks: Vec<(TopicName, PartitionIndex, Offset)>,
    pub fetches_parked: usize,
    pub deletions_waiting: usize,
    pub share_sessions: usize,
    pub share_partitions: usize,
    pub appends_waiting: usize,
    pub deadlines: usize,
    pub unflushed_bytes: u64,
    pub flushes: Recorded,
    pub receive_bytes: usize,
    pub receive_idle_bytes: usize,
    pub receive_muted: u64,
    /// Of the peer with the fewest.
    pub mesh_credits: usize,
    pub mesh_credit_waits: u64,
    pub serve_bytes: usize,
    pub serve_waits: u64,
    pub mesh_calls: usize,
}

/// The logs of some partitions together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LogFigures {
    pub online: u64,
    pub offline: u64,
    pub bytes: u64,
    pub segments: u64,
    /// Offsets from the logs' starts to their ends.
    pub offsets: u64,
}

/// One partition's, or several of one topic together: then the offsets are sums.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionFigures {
    pub topic: TopicName,
    pub detail: Detail,
    pub bytes: u64,
    pub segments: u64,
    pub offsets: u64,
}

/// Which part of a topic figures are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// The partitions that this shard has.
    Topic {
        partitions: u64,
    },
    Partition {
        index: PartitionIndex,
        start: Offset,
        end: Offset,
        high_watermark: Offset,
    },
}

impl Shard {
    /// Gathers the figures; lets others in between the partitions.
    pub async fn figures(self: &Rc<Self>, wanted: &WantedFigures) -> Figures {
        let (mesh_credits, mesh_calls) = self.mesh.load();
        let mut figures = Figures {
            shard: self.id,
            work: runtime::work(),
            counters: self.counters.values(),
            requests: self.requests.recorded(),
            directories: vec![LogFigures::default(); self.settings.directories.count()],
            partitions_opening: 0,
            offline: Vec::new(),
            details: Vec::new(),
            high_watermarks: Vec::new(),
            fetches_parked: self.parked.borrow().purgatory.len(),
            deletions_waiting: self.deletions.borrow().purgatory.len(),
            share_sessions: self.share_sessions(),
            share_partitions: self.share_partitions(),
            appends_waiting: self.appends_waiting.get(),
            deadlines: self.timers.len(),
            unflushed_bytes: self.unflushed_bytes.get(),
            flushes: self.flushes.recorded(),
            receive_bytes: self.chunks.in_use_bytes(),
            receive_idle_bytes: self.chunks.idle_bytes(),
            receive_muted: self.chunks.muted(),
            mesh_credits,
            mesh_credit_waits: self.mesh.credit_waits(),
            serve_bytes: self.serve_memory.in_use(),
            serve_waits: self.serve_memory.waits() + self.serve_beyond.waits(),
            mesh_calls,
        };
        debug_assert_eq!(figures.counters.len(), Counters::EXPORTS.len());
        let replicas: Vec<Rc<Replica>> = self.replicas.borrow().values().cloned().collect();
        let mut places = HashMap::new();
        for replica in replicas {
            figures.add(&replica, wanted, &mut places);
            yield_if_needed().await;
        }
        figures
    }
}

impl Figures {
    /// `places` is where the entries of topics are, when they have one each.
    fn add(&mut self, replica: &Replica, wanted: &WantedFigures, places: &mut HashMap<TopicName, usize>) {
        let state = replica.state.borrow();
        let sums = &mut self.directories[replica.directory()];
        let name = &replica.topic_partition;
        let partition = match &*state {
            ReplicaState::Online(partition) => partition,
            ReplicaState::Opening => {
                self.partitions_opening += 1;
                return;
            }
            ReplicaState::Offline => {
                sums.offline += 1;
                if self.offline.len() < OFFLINE_NAMED_MAX {
                    self.offline.push((name.clone(), replica.directory()));
                }
                return;
            }
            ReplicaState::Closed => return,
        };
        let log = partition.log();
        let (start, end, high_watermark) = (log.log_start(), log.log_end(), partition.high_watermark());
        let offsets = u64::try_from(end.0 - start.0).unwrap_or(0);
        let (bytes, segments) = (log.size(), log.segment_count() as u64);
        sums.online += 1;
        sums.bytes += bytes;
        sums.segments += segments;
        sums.offsets += offsets;
        if wanted.high_watermarks_of.contains(&name.topic) {
            self.high_watermarks.push((name.topic.clone(), name.partition, high_watermark));
        }
        let detail = match wanted.logs {
            MetricsOfLogs::Broker => return,
            MetricsOfLogs::Topic => {
                if let Some(place) = places.get(&name.topic) {
                    let entry = &mut self.details[*place];
                    if let Detail::Topic { partitions } = &mut entry.detail {
                        *partitions += 1;
                    }
                    entry.bytes += bytes;
                    entry.segments += segments;
                    entry.offsets += offsets;
                    return;
                }
                places.insert(name.topic.clone(), self.details.len());
                Detail::Topic { partitions: 1 }
            }
            MetricsOfLogs::Partition => {
                Detail::Partition { index: name.partition, start, end, high_watermark }
            }
        };
        self.details.push(PartitionFigures { topic: name.topic.clone(), detail, bytes, segments, offsets });
    }
}
