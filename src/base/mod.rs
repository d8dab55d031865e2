//! Words that every module shares: id newtypes, the clock, the seeded random source, counters and
//! [`fatal`]. Nothing here does IO or knows of a shard's state.

pub mod clock;
mod counter;
mod fatal;
mod ids;
pub mod random;

pub use counter::Counter;
pub use fatal::fatal;
pub use ids::{
    BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, ShardId, TopicId,
    TopicName, TopicPartition,
};
