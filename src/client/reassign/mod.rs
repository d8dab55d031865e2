//! Partitions that move to other brokers: the plan, its file, the throttles while they move. No IO.

mod flow;
mod plan;
mod plan_file;
mod throttle;

use std::collections::BTreeMap;

pub use plan::{Candidate, PlanError, plan};
pub use plan_file::{PlanFileError, Planned, parse, to_json};
pub use throttle::{Throttles, throttles};

use crate::base::{BrokerId, TopicPartition};

/// The replicas of partitions, the one that leads by preference first.
pub type Assignment = BTreeMap<TopicPartition, Vec<BrokerId>>;

/// A partition whose replicas are being changed (ListPartitionReassignments).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// All of them, those added and those to be removed among them.
    pub replicas: Vec<BrokerId>,
    pub adding: Vec<BrokerId>,
    pub removing: Vec<BrokerId>,
}
