//! A small Kafka client: what the command line and the load generator share.
//!
//! Works with any Kafka broker. It runs on plain threads with non-blocking sockets and `poll(2)`, never on a
//! shard and never on its runtime: the broker does not use it. Its decisions (partitioning, batching,
//! sequences, assignment, metadata) are state machines that take `now`; [`network`] and the drivers do the IO.

mod admin;
pub mod assignor;
mod backoff;
mod cluster;
mod connection;
pub mod consumer;
mod error;
pub mod health;
mod metadata;
mod network;
mod operate;
pub mod partitioner;
pub mod producer;
pub mod protocol;
pub mod reassign;

pub use admin::{ConfigEntry, FoundOffset, NewTopic, OffsetAt};
pub use backoff::Backoff;
pub use cluster::{Cluster, ClusterConfig, Target};
pub use connection::Connection;
pub use error::{ClientError, Result, code_name};
pub use metadata::{Broker, Leader, Metadata, PartitionMetadata, TopicMetadata};
pub use network::{Event, Lost, Network, NetworkConfig, NodeId, Token, decode, encode};
pub use operate::{BrokerLogs, ClusterBroker, ClusterDescription, Election, LogPlace, Quorum, QuorumReplica};
