//! Words that every module shares: id newtypes, the clock, the seeded random source, counters and
//! [`fatal`]. Nothing here knows of a shard's state, or does IO but for the log's last step.

mod budget;
pub mod clock;
mod counter;
pub mod crc32c;
mod fatal;
mod histogram;
mod ids;
pub mod log_queue;
pub mod random;
mod rate;

pub use budget::{Budget, Take};
pub use counter::{Counter, Export, Family, Kind, LIMIT_HITS, PROCESS, ProcessCounters, SharedCounter};
pub use fatal::fatal;
pub use histogram::{BOUNDS_NS, Histogram, Recorded};
pub use ids::{
    BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, ShardId, TopicId,
    TopicName, TopicPartition,
};
pub use rate::{Measured, Rate, TokenBucket, Windows};
