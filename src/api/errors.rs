//! Which error codes an answer carries, for the count of errors by API, and where it tells a throttle time. One line
//! for each response; Kafka's `AbstractResponse.errorCounts` is the same, but for NONE, which is not counted here.

use kafka_protocol::messages::{
    AddOffsetsToTxnResponse, AddPartitionsToTxnResponse, AddRaftVoterResponse, AlterClientQuotasResponse,
    AlterConfigsResponse, AlterPartitionReassignmentsResponse, AlterReplicaLogDirsResponse,
    AlterShareGroupOffsetsResponse, ApiVersionsResponse, ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse, CreatePartitionsResponse, CreateTopicsResponse, DeleteGroupsResponse,
    DeleteRecordsResponse, DeleteShareGroupOffsetsResponse, DeleteTopicsResponse,
    DescribeClientQuotasResponse, DescribeClusterResponse, DescribeConfigsResponse, DescribeGroupsResponse,
    DescribeLogDirsResponse, DescribeProducersResponse, DescribeQuorumResponse,
    DescribeTopicPartitionsResponse, DescribeTransactionsResponse, DescribeUserScramCredentialsResponse,
    ElectLeadersResponse, EndTxnResponse, FindCoordinatorResponse, HeartbeatResponse,
    IncrementalAlterConfigsResponse, InitProducerIdResponse, JoinGroupResponse, LeaveGroupResponse,
    ListConfigResourcesResponse, ListGroupsResponse, ListOffsetsResponse, ListPartitionReassignmentsResponse,
    ListTransactionsResponse, MetadataResponse, OffsetCommitResponse, OffsetDeleteResponse,
    OffsetFetchResponse, OffsetForLeaderEpochResponse, RemoveRaftVoterResponse, ShareGroupDescribeResponse,
    ShareGroupHeartbeatResponse, SyncGroupResponse, UnregisterBrokerResponse, UpdateFeaturesResponse,
    WriteTxnMarkersResponse,
};

/// An answer that may carry errors.
pub(super) trait ErrorCodes {
    /// Tells every code in it, 0 for none.
    fn each_error(&self, tell: &mut impl FnMut(i16));

    /// No quota holds it up.
    const IS_EXEMPT: bool = false;

    /// Tells how long its client has to wait.
    fn set_throttle_ms(&mut self, ms: i32);
}

/// The fields that lead to a code; all but the last are lists.
macro_rules! follow {
    ($tell:ident, $value:expr, $field:ident) => {
        $tell($value.$field)
    };
    ($tell:ident, $value:expr, $list:ident . $($rest:tt)+) => {
        for item in &$value.$list {
            follow!($tell, item, $($rest)+);
        }
    };
}

macro_rules! error_codes {
    ($($response:ty: $([$($path:tt)+])+;)+) => {
        $(impl ErrorCodes for $response {
            fn each_error(&self, tell: &mut impl FnMut(i16)) {
                $(follow!(tell, self, $($path)+);)+
            }

            fn set_throttle_ms(&mut self, ms: i32) {
                self.throttle_time_ms = ms;
            }
        })+
    };
}

error_codes! {
    AddOffsetsToTxnResponse: [error_code];
    AddPartitionsToTxnResponse: [error_code]
        [results_by_topic_v3_and_below.results_by_partition.partition_error_code]
        [results_by_transaction.topic_results.results_by_partition.partition_error_code];
    AlterClientQuotasResponse: [entries.error_code];
    AlterConfigsResponse: [responses.error_code];
    AlterPartitionReassignmentsResponse: [error_code] [responses.partitions.error_code];
    AlterReplicaLogDirsResponse: [results.partitions.error_code];
    AlterShareGroupOffsetsResponse: [error_code] [responses.partitions.error_code];
    ApiVersionsResponse: [error_code];
    ConsumerGroupDescribeResponse: [groups.error_code];
    ConsumerGroupHeartbeatResponse: [error_code];
    CreatePartitionsResponse: [results.error_code];
    CreateTopicsResponse: [topics.error_code];
    DeleteGroupsResponse: [results.error_code];
    DeleteRecordsResponse: [topics.partitions.error_code];
    DeleteShareGroupOffsetsResponse: [error_code] [responses.error_code];
    DeleteTopicsResponse: [responses.error_code];
    DescribeClientQuotasResponse: [error_code];
    DescribeClusterResponse: [error_code];
    DescribeConfigsResponse: [results.error_code];
    DescribeGroupsResponse: [groups.error_code];
    DescribeLogDirsResponse: [error_code] [results.error_code];
    DescribeProducersResponse: [topics.partitions.error_code];
    DescribeTopicPartitionsResponse: [topics.error_code] [topics.partitions.error_code];
    DescribeTransactionsResponse: [transaction_states.error_code];
    DescribeUserScramCredentialsResponse: [error_code] [results.error_code];
    ElectLeadersResponse: [error_code] [replica_election_results.partition_result.error_code];
    EndTxnResponse: [error_code];
    FindCoordinatorResponse: [error_code] [coordinators.error_code];
    HeartbeatResponse: [error_code];
    IncrementalAlterConfigsResponse: [responses.error_code];
    InitProducerIdResponse: [error_code];
    JoinGroupResponse: [error_code];
    LeaveGroupResponse: [error_code] [members.error_code];
    ListConfigResourcesResponse: [error_code];
    ListGroupsResponse: [error_code];
    ListPartitionReassignmentsResponse: [error_code];
    ListTransactionsResponse: [error_code];
    ListOffsetsResponse: [topics.partitions.error_code];
    MetadataResponse: [error_code] [topics.error_code] [topics.partitions.error_code];
    OffsetCommitResponse: [topics.partitions.error_code];
    OffsetDeleteResponse: [error_code] [topics.partitions.error_code];
    OffsetFetchResponse: [error_code] [topics.partitions.error_code] [groups.error_code]
        [groups.topics.partitions.error_code];
    OffsetForLeaderEpochResponse: [topics.partitions.error_code];
    ShareGroupDescribeResponse: [groups.error_code];
    ShareGroupHeartbeatResponse: [error_code];
    SyncGroupResponse: [error_code];
    UnregisterBrokerResponse: [error_code];
    UpdateFeaturesResponse: [error_code] [results.error_code];
}

/// What brokers ask of each other, and what the quorum answers for its own members first of all.
macro_rules! exempt_error_codes {
    ($($response:ty: $([$($path:tt)+])+;)+) => {
        $(impl ErrorCodes for $response {
            const IS_EXEMPT: bool = true;

            fn each_error(&self, tell: &mut impl FnMut(i16)) {
                $(follow!(tell, self, $($path)+);)+
            }

            fn set_throttle_ms(&mut self, _: i32) {}
        })+
    };
}

exempt_error_codes! {
    AddRaftVoterResponse: [error_code];
    DescribeQuorumResponse: [error_code] [topics.partitions.error_code];
    RemoveRaftVoterResponse: [error_code];
    WriteTxnMarkersResponse: [markers.topics.partitions.error_code];
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};

    use super::*;

    #[test]
    fn codes_are_found_at_every_level() {
        let partition = MetadataResponsePartition::default().with_error_code(5);
        let topic = MetadataResponseTopic::default()
            .with_error_code(0)
            .with_partitions(vec![partition.clone(), partition]);
        let response = MetadataResponse::default().with_topics(vec![topic]);
        let mut codes = Vec::new();
        response.each_error(&mut |code| codes.push(code));
        assert_eq!(codes, [0, 0, 5, 5]);
    }
}
