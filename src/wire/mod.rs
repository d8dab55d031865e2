//! The Kafka protocol without IO: frames, the table of API versions, the hot-path codecs of Produce and
//! Fetch, record batches and error codes.
//!
//! Lives on every shard; holds no state between calls, reads no clock and never trusts a length that came
//! from the network.

pub mod api;
pub mod beat;
pub mod between;
pub mod fetch;
pub mod frame;
pub mod guard;
pub mod header;
pub mod newer;
pub mod parts;
pub mod produce;
pub mod read;
pub mod record;
pub mod share;
pub mod share_offsets;
pub mod topic_ids;
pub mod validate;
pub mod write;

pub use kafka_protocol::messages::ApiKey;

/// Kafka's error codes; "no error" (0) is `None` of an `Option<ErrorCode>`.
pub use kafka_protocol::error::ResponseError as ErrorCode;
