//! The Raft log that orders the cluster's metadata: an adapter around openraft with our own runtime, log
//! files, snapshots and state machine, and [`Quorum`], the façade the rest of the broker sees.
//!
//! Lives on shard 0. Everything that waits for the disk runs on the file threads. openraft decides; here is
//! what it decides over: records in [`crate::metadata`]'s form, stored in our own versioned files.
//!
//! Never here: what a command means (that is `metadata`), and Kafka's protocol.

mod codec;
mod commands;
mod describe;
mod leadership;
mod log_files;
mod log_store;
mod machine;
mod network;
mod producer_ids;
mod quorum;
mod runtime;
mod serve;
mod snapshots;
mod sync;
mod types;
mod vote_file;
mod wire;

pub use commands::CommandTimes;
pub use describe::{QuorumDescription, ReplicaDescription};
pub use leadership::Leadership;
pub use log_files::LogError;
pub use producer_ids::ProducerIds;
pub use quorum::{Begin, Images, Leaderships, OpenError, Quorum, Settings, Timing};
pub use snapshots::SnapshotError;
