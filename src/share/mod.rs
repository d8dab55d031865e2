//! Share groups (KIP-932) on one partition: which member has which records, and what is kept of that.
//!
//! A [`SharePartition`] is the state of one partition for one group. It lives on the shard that owns the partition
//! and is a state machine without IO: batches of the log, acknowledgements, the time and what became of its writes
//! go in; what was acquired and what is to be written come out. Never here: a clock, a lock, a record's bytes.

mod partition;
mod persisted;
mod runs;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod table_tests;

use std::sync::Arc;

pub use partition::{
    AcknowledgeBatch, AcknowledgeKind, Acquired, Change, ChangeId, Holder, Limits, RANGES_MAX, SessionNumber,
    SharePartition, Span, Wanted,
};
pub use persisted::{DeliveryState, Persisted, StateBatch};
pub use runs::Runs;

use crate::base::{PartitionIndex, TopicId};

/// A partition as one group has it (`SharePartitionKey`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShareKey {
    pub group: Arc<str>,
    pub topic: TopicId,
    pub partition: PartitionIndex,
}

impl ShareKey {
    /// The text whose hash names the partition of `__share_group_state` (`SharePartitionKey.asCoordinatorKey`).
    pub fn coordinator_key(&self) -> String {
        format!("{}:{}:{}", self.group, self.topic, self.partition)
    }
}
