//! What a follower's Fetch has that a consumer's has not: the connection must be of the broker that it names, and lives on
//! the shard of its partitions. Each shard of a follower fetches for its own replicas, so that where both brokers have as
//! many shards nothing of it crosses them.

use super::Client;
use crate::base::{BrokerId, ShardId};
use crate::shard::messages::Follower;
use crate::shard::{PartitionKey, Shard};
use crate::wire::ErrorCode;
use crate::wire::fetch::{FetchRequest, SessionEpoch};
use crate::wire::parts::TopicRef;

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

/// The shard that owns all partitions of a request that names all it wants; `None` where there is none, or
/// `kuring.connection.moves` has connections stay.
pub(super) fn home(shard: &Shard, request: &FetchRequest) -> Option<ShardId> {
    if !request.session_epoch.is_full() || !shard.config().connection_moves {
        return None;
    }
    let owners = request.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(move |partition| match &topic.topic {
            TopicRef::Id(id) => Some(shard.owner(PartitionKey { topic: *id, partition: partition.index })),
            TopicRef::Name(_) => None,
        })
    });
    of_all(owners)
}

/// What all of them are, if they are one.
fn of_all<T: PartialEq>(mut each: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = each.next()??;
    each.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

/// Has the request answered at once and without a session, which would be of the shard that its connection leaves: the
/// follower names all again.
pub(super) fn send_home(request: &mut FetchRequest) {
    request.session_epoch = SessionEpoch::FINAL;
    request.max_wait_ms = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_home_where_all_of_it_is_one_shards() {
        let of = |owners: &[Option<u16>]| of_all(owners.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[Some(1)]), Some(1));
        assert_eq!(of(&[Some(1), Some(1)]), Some(1));
        assert_eq!(of(&[Some(1), Some(0)]), None);
        assert_eq!(of(&[Some(1), None]), None);
    }
}
