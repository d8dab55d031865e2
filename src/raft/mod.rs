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
mod feed;
mod feed_wire;
mod first_voters;
mod join;
mod leadership;
mod log_files;
mod log_store;
mod machine;
mod network;
mod observer;
mod producer_ids;
mod quorum;
mod raise;
mod runtime;
mod seat_file;
mod serve;
mod snapshots;
mod sync;
mod types;
mod vote_file;
mod voters;
mod wire;
mod word;

pub use commands::CommandTimes;
pub use describe::{QuorumDescription, ReplicaDescription};
pub use first_voters::{
    FirstVoter, first_voters_path, parse_first_voters, read_first_voters, write_first_voters,
};
pub use join::{change_request, read_changed};
pub use leadership::Leadership;
pub use log_files::LogError;
pub use producer_ids::ProducerIds;
pub use quorum::{
    Begin, ChangingVoters, Images, Leaderships, OpenError, Quorum, Settings, Timing, identity_path,
};
pub use snapshots::SnapshotError;
pub use voters::{VoterChange, VoterKey};
