//! Which handler serves which API: one table, ascending by key, complete for all that is advertised.
//!
//! A handler's future is boxed: the largest would else make room for itself in every connection that waits.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use kafka_protocol::protocol::{Encodable, HeaderVersion, Request};

use super::errors::ErrorCodes;
use super::{
    Client, Outcome, alter_replica_log_dirs, answer, api_versions, client_quotas, configs, create_partitions,
    create_topics, delete_records, delete_topics, describe_cluster, describe_log_dirs, describe_producers,
    describe_quorum, describe_topic_partitions, elect_leaders, fetch, find_coordinator, groups,
    init_producer_id, list_offsets, malformed, metadata, offset_for_leader_epoch, offsets, produce,
    raft_voters, reassignments, scram_credentials, share_fetch, share_groups, transactions,
    txn_offset_commit, unregister_broker, update_features, write_txn_markers,
};
use crate::wire::header::RequestHeader;
use crate::wire::read::DecodeError;
use crate::wire::{ApiKey, guard, newer, topic_ids};

/// A request in service.
pub(super) type Serving<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

pub(super) type Handler = for<'a> fn(&'a Rc<Client>, &'a RequestHeader, Bytes) -> Serving<'a>;

/// The handler of an API.
pub(super) fn handler(key: ApiKey) -> Option<Handler> {
    let handler: Handler = match key {
        ApiKey::Produce => {
            |client, header, body| Box::pin(async move { produce::begin(client, header, body).await.await })
        }
        ApiKey::Fetch => {
            |client, header, body| Box::pin(async move { fetch::handle(client, header, &body).await })
        }
        ApiKey::ListOffsets => |client, header, body| {
            typed(client, header, body, move |request| list_offsets::handle(client, header.version, request))
        },
        ApiKey::Metadata => |client, header, body| {
            typed(client, header, body, move |request| metadata::handle(client, header, request))
        },
        ApiKey::OffsetCommit => |client, header, body| {
            let decoded = topic_ids::offset_commit(header.version, &body);
            serve(client, header, decoded, move |request| offsets::commit(client, header, request))
        },
        ApiKey::OffsetFetch => |client, header, body| {
            let decoded = topic_ids::offset_fetch(header.version, &body);
            serve(client, header, decoded, move |request| offsets::fetch(client, header, request))
        },
        ApiKey::FindCoordinator => |client, header, body| {
            typed(client, header, body, move |request| {
                find_coordinator::handle(client, header.version, request)
            })
        },
        ApiKey::JoinGroup => |client, header, body| {
            typed(client, header, body, move |request| groups::join(client, header, request))
        },
        ApiKey::Heartbeat => |client, header, body| {
            typed(client, header, body, move |request| groups::heartbeat(client, header, request))
        },
        ApiKey::LeaveGroup => |client, header, body| {
            typed(client, header, body, move |request| groups::leave(client, header, request))
        },
        ApiKey::SyncGroup => |client, header, body| {
            typed(client, header, body, move |request| groups::sync(client, header, request))
        },
        ApiKey::DescribeGroups => |client, header, body| {
            typed(client, header, body, move |request| groups::describe(client, header, request))
        },
        ApiKey::ListGroups => |client, header, body| {
            typed(client, header, body, move |request| groups::list(client, header, request))
        },
        ApiKey::ApiVersions => |client, header, body| {
            typed(client, header, body, move |request| api_versions::handle(client, header.version, request))
        },
        ApiKey::CreateTopics => |client, header, body| {
            typed(client, header, body, move |request| create_topics::handle(client, header, request))
        },
        ApiKey::DeleteTopics => |client, header, body| {
            typed(client, header, body, move |request| delete_topics::handle(client, header, request))
        },
        ApiKey::DeleteRecords => |client, header, body| {
            typed(client, header, body, move |request| delete_records::handle(client, request))
        },
        ApiKey::InitProducerId => |client, header, body| {
            typed(client, header, body, move |request| {
                init_producer_id::handle(client, header.version, request)
            })
        },
        ApiKey::AddPartitionsToTxn => |client, header, body| {
            typed(client, header, body, move |request| transactions::add_partitions(client, header, request))
        },
        ApiKey::AddOffsetsToTxn => |client, header, body| {
            typed(client, header, body, move |request| transactions::add_offsets(client, header, request))
        },
        ApiKey::EndTxn => |client, header, body| {
            typed(client, header, body, move |request| transactions::end(client, header, request))
        },
        ApiKey::WriteTxnMarkers => |client, header, body| {
            let decoded = newer::write_txn_markers(header.version, &body);
            serve(client, header, decoded, move |markers| write_txn_markers::handle(client, markers))
        },
        ApiKey::TxnOffsetCommit => |client, header, body| {
            Box::pin(async move { txn_offset_commit::handle(client, header, &body).await })
        },
        ApiKey::DescribeQuorum => |client, header, body| {
            typed(client, header, body, move |request| {
                describe_quorum::handle(client, header.version, request)
            })
        },
        ApiKey::UpdateFeatures => |client, header, body| {
            typed(client, header, body, move |request| {
                update_features::handle(client, header.version, request)
            })
        },
        ApiKey::DescribeTransactions => |client, header, body| {
            typed(client, header, body, move |request| transactions::describe(client, request))
        },
        ApiKey::ListTransactions => |client, header, body| {
            typed(client, header, body, move |request| transactions::list(client, request))
        },
        ApiKey::OffsetForLeaderEpoch => |client, header, body| {
            typed(client, header, body, move |request| offset_for_leader_epoch::handle(client, request))
        },
        ApiKey::DescribeConfigs => |client, header, body| {
            typed(client, header, body, move |request| configs::handle_describe(client, request))
        },
        ApiKey::AlterConfigs => |client, header, body| {
            typed(client, header, body, move |request| configs::handle_alter(client, request))
        },
        ApiKey::AlterReplicaLogDirs => |client, header, body| {
            typed(client, header, body, move |request| alter_replica_log_dirs::handle(client, request))
        },
        ApiKey::DescribeLogDirs => |client, header, body| {
            typed(client, header, body, move |request| {
                describe_log_dirs::handle(client, header.version, request)
            })
        },
        ApiKey::CreatePartitions => |client, header, body| {
            typed(client, header, body, move |request| create_partitions::handle(client, header, request))
        },
        ApiKey::DeleteGroups => {
            |client, header, body| Box::pin(async move { groups::delete(client, header, &body).await })
        }
        ApiKey::ElectLeaders => |client, header, body| {
            typed(client, header, body, move |request| elect_leaders::handle(client, request))
        },
        ApiKey::AlterPartitionReassignments => |client, header, body| {
            typed(client, header, body, move |request| reassignments::alter(client, request))
        },
        ApiKey::ListPartitionReassignments => |client, header, body| {
            typed(client, header, body, move |request| reassignments::list(client, request))
        },
        ApiKey::IncrementalAlterConfigs => |client, header, body| {
            typed(client, header, body, move |request| configs::handle_incremental_alter(client, request))
        },
        ApiKey::OffsetDelete => |client, header, body| {
            typed(client, header, body, move |request| offsets::delete(client, header, request))
        },
        ApiKey::DescribeClientQuotas => |client, header, body| {
            typed(client, header, body, move |request| client_quotas::describe(client, request))
        },
        ApiKey::AlterClientQuotas => |client, header, body| {
            typed(client, header, body, move |request| client_quotas::alter(client, request))
        },
        ApiKey::DescribeUserScramCredentials => {
            |client, header, body| typed(client, header, body, scram_credentials::describe)
        }
        ApiKey::DescribeCluster => |client, header, body| {
            typed(client, header, body, move |request| {
                describe_cluster::handle(client, header.version, request)
            })
        },
        ApiKey::DescribeProducers => |client, header, body| {
            typed(client, header, body, move |request| describe_producers::handle(client, request))
        },
        ApiKey::UnregisterBroker => |client, header, body| {
            typed(client, header, body, move |request| unregister_broker::handle(client, request))
        },
        ApiKey::ConsumerGroupHeartbeat => |client, header, body| {
            typed(client, header, body, move |request| groups::consumer_heartbeat(client, header, request))
        },
        ApiKey::ConsumerGroupDescribe => |client, header, body| {
            typed(client, header, body, move |request| groups::describe_consumers(client, header, request))
        },
        ApiKey::ListConfigResources => |client, header, body| {
            typed(client, header, body, move |request| configs::handle_list(client, header.version, request))
        },
        ApiKey::DescribeTopicPartitions => |client, header, body| {
            typed(client, header, body, move |request| describe_topic_partitions::handle(client, request))
        },
        ApiKey::AddRaftVoter => |client, header, body| {
            let decoded = newer::add_raft_voter(header.version, &body);
            serve(client, header, decoded, move |request| raft_voters::add(client, request))
        },
        ApiKey::RemoveRaftVoter => |client, header, body| {
            typed(client, header, body, move |request| raft_voters::remove(client, request))
        },
        ApiKey::ShareGroupHeartbeat => |client, header, body| {
            typed(client, header, body, move |request| share_groups::heartbeat(client, header, request))
        },
        ApiKey::ShareGroupDescribe => |client, header, body| {
            typed(client, header, body, move |request| share_groups::describe(client, header, request))
        },
        ApiKey::ShareFetch => {
            |client, header, body| Box::pin(async move { share_fetch::fetch(client, header, &body).await })
        }
        ApiKey::ShareAcknowledge => |client, header, body| {
            Box::pin(async move { share_fetch::acknowledge(client, header, &body).await })
        },
        ApiKey::DescribeShareGroupOffsets => |client, header, body| {
            Box::pin(async move { share_groups::describe_offsets(client, header, &body).await })
        },
        ApiKey::AlterShareGroupOffsets => |client, header, body| {
            typed(client, header, body, move |request| share_groups::alter_offsets(client, header, request))
        },
        ApiKey::DeleteShareGroupOffsets => |client, header, body| {
            typed(client, header, body, move |request| share_groups::delete_offsets(client, header, request))
        },
        _ => return None,
    };
    Some(handler)
}

/// Decodes, handles and encodes a request that kafka-protocol decodes.
fn typed<'a, Q, S, F>(
    client: &'a Rc<Client>,
    header: &'a RequestHeader,
    body: Bytes,
    handle: impl FnOnce(Q) -> F + 'a,
) -> Serving<'a>
where
    Q: Request + 'a,
    S: Encodable + HeaderVersion + ErrorCodes,
    F: Future<Output = S> + 'a,
{
    serve(client, header, guard::decode::<Q>(header.version, &body), handle)
}

/// Handles a request and encodes its answer, which is of kafka-protocol's types.
fn serve<'a, Q, S, F>(
    client: &'a Rc<Client>,
    header: &'a RequestHeader,
    decoded: Result<Q, DecodeError>,
    handle: impl FnOnce(Q) -> F + 'a,
) -> Serving<'a>
where
    Q: 'a,
    S: Encodable + HeaderVersion + ErrorCodes,
    F: Future<Output = S> + 'a,
{
    Box::pin(async move {
        let request = match decoded {
            Ok(request) => request,
            Err(error) => return malformed(header, error),
        };
        let mut response = handle(request).await;
        if !S::IS_EXEMPT {
            response.set_throttle_ms(client.throttle_request(header));
        }
        response.each_error(&mut |code| client.shard.requests.error(header.api, code));
        let version = header.api.codec_version(header.version);
        answer(header, guard::encode(version, header.correlation_id, &response))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api::APIS;

    #[test]
    fn every_advertised_api_has_a_handler() {
        let without: Vec<_> =
            APIS.iter().filter(|api| handler(api.key).is_none()).map(|api| api.name).collect();
        assert_eq!(without, [""; 0]);
    }

    #[test]
    fn nothing_is_served_that_is_not_advertised() {
        let advertised = |key: i16| APIS.iter().any(|api| api.key as i16 == key);
        let served =
            (0..1000).filter_map(|key| ApiKey::try_from(key).ok()).filter(|key| handler(*key).is_some());
        let hidden: Vec<i16> = served.map(|key| key as i16).filter(|key| !advertised(*key)).collect();
        assert_eq!(hidden, [0; 0]);
    }
}
