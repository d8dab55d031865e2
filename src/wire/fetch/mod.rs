//! Fetch, versions 4 to 18. The response is encoded around the records, which are sent from their files. A follower
//! speaks the other half of it, in versions that name topics by id.

mod following;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use following::{FetchAnswer, FetchedSlice};
pub use request::{
    FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, IsolationLevel, SessionEpoch, SessionId,
};
pub use response::{
    AbortedTransaction, DivergingEpoch, EncodedFetch, FetchPartitionResponse, FetchResponse,
    FetchTopicResponse, Piece,
};

/// The first version with tagged fields.
const FLEXIBLE_VERSION: i16 = 12;
/// The first version that says where the consumer is, and in which it may be sent to another replica (KIP-392).
pub const ANY_REPLICA_VERSION: i16 = 11;
/// The first version that names topics by id.
pub const TOPIC_ID_VERSION: i16 = 13;
