//! The Kafka protocol without IO: frames, the table of API versions, the hot-path codecs of Produce and
//! Fetch, record batches and error codes.

/// Kafka's error codes; "no error" (0) is `None` of an `Option<ErrorCode>`.
pub use kafka_protocol::error::ResponseError as ErrorCode;
