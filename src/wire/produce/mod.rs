//! Produce, versions 3 to 13, without copying a record: the request is sliced, the response is written in
//! one piece.

mod request;
mod response;
#[cfg(test)]
mod tests;

pub use request::{Acks, ProducePartition, ProduceRequest, ProduceTopic};
pub use response::{ProducePartitionResponse, ProduceResponse, ProduceTopicResponse};

/// The first version that names topics by id.
const TOPIC_ID_VERSION: i16 = 13;
/// The first version with tagged fields.
const FLEXIBLE_VERSION: i16 = 9;
