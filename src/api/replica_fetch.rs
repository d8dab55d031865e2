//! What a follower's Fetch has that a consumer's has not: the connection must be of the broker that it names.

use super::Client;
use crate::base::BrokerId;
use crate::shard::messages::Follower;
use crate::wire::ErrorCode;
use crate::wire::fetch::FetchRequest;

/// The follower that asks; `None` for a consumer.
///
/// # Errors
/// Whoever has not proved to be that broker.
pub(super) fn follower(client: &Client, request: &FetchRequest) -> Result<Option<Follower>, ErrorCode> {
    if request.replica_id == BrokerId(-1) {
        return Ok(None);
    }
    match client.broker() {
        Some(broker) if broker == request.replica_id => {
            Ok(Some(Follower { broker, epoch: request.replica_epoch }))
        }
        Some(_) => Err(ErrorCode::ClusterAuthorizationFailed),
        // It says that it is a broker, and is none that this one knows.
        None => Err(ErrorCode::NotLeaderOrFollower),
    }
}
