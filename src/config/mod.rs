//! Kafka's property names as checked structs, and the levels of dynamic configuration.

mod log;

pub use log::{CleanupPolicy, LogConfig, TimestampType, TopicCompression};
