//! The APIs that kuring serves and their versions: one table, read by ApiVersions, by the header parser and
//! by tests.
//!
//! The ranges are those of Apache Kafka 4.4. The minimums must be, because clients choose their behaviour by
//! them; a maximum is also what our codecs really encode. For versions that kafka-protocol 0.18 does not know these are
//! [`super::newer`], [`super::topic_ids`], [`super::share`] and [`super::share_offsets`].

use super::ApiKey;

/// One served API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Api {
    pub key: ApiKey,
    /// Kafka's name of the API, for logs and metrics.
    pub name: &'static str,
    /// The least version that ApiVersions advertises.
    pub min: i16,
    /// The greatest version advertised and served.
    pub max: i16,
    /// The least version that is answered. Differs from `min` for Produce alone: old librdkafka turns
    /// compression off unless it sees 0 there (Kafka's `PRODUCE_API_VERSIONS_RESPONSE_MIN_VERSION`).
    pub min_served: i16,
    /// The first version with compact lengths and tagged fields (KIP-482), or [`NEVER`].
    pub flexible: i16,
}

/// [`Api::flexible`] of an API that has no flexible version.
pub const NEVER: i16 = i16::MAX;

/// Every API that is advertised, ascending by key.
pub const APIS: &[Api] = &[
    Api { min_served: 3, ..api(ApiKey::Produce, "Produce", 0, 13, 9) },
    api(ApiKey::Fetch, "Fetch", 4, 18, 12),
    api(ApiKey::ListOffsets, "ListOffsets", 1, 11, 6),
    api(ApiKey::Metadata, "Metadata", 0, 13, 9),
    api(ApiKey::OffsetCommit, "OffsetCommit", 2, 10, 8),
    api(ApiKey::OffsetFetch, "OffsetFetch", 1, 10, 6),
    api(ApiKey::FindCoordinator, "FindCoordinator", 0, 6, 3),
    api(ApiKey::JoinGroup, "JoinGroup", 0, 9, 6),
    api(ApiKey::Heartbeat, "Heartbeat", 0, 4, 4),
    api(ApiKey::LeaveGroup, "LeaveGroup", 0, 5, 4),
    api(ApiKey::SyncGroup, "SyncGroup", 0, 5, 4),
    api(ApiKey::DescribeGroups, "DescribeGroups", 0, 6, 5),
    api(ApiKey::ListGroups, "ListGroups", 0, 5, 3),
    api(ApiKey::ApiVersions, "ApiVersions", 0, 4, 3),
    api(ApiKey::CreateTopics, "CreateTopics", 2, 7, 5),
    api(ApiKey::DeleteTopics, "DeleteTopics", 1, 6, 4),
    api(ApiKey::DeleteRecords, "DeleteRecords", 0, 2, 2),
    api(ApiKey::InitProducerId, "InitProducerId", 0, 5, 2),
    api(ApiKey::OffsetForLeaderEpoch, "OffsetForLeaderEpoch", 2, 4, 4),
    api(ApiKey::AddPartitionsToTxn, "AddPartitionsToTxn", 0, 5, 3),
    api(ApiKey::AddOffsetsToTxn, "AddOffsetsToTxn", 0, 4, 3),
    api(ApiKey::EndTxn, "EndTxn", 0, 5, 3),
    api(ApiKey::WriteTxnMarkers, "WriteTxnMarkers", 1, 2, 1),
    api(ApiKey::TxnOffsetCommit, "TxnOffsetCommit", 0, 6, 3),
    api(ApiKey::DescribeConfigs, "DescribeConfigs", 1, 4, 4),
    api(ApiKey::AlterConfigs, "AlterConfigs", 0, 2, 2),
    api(ApiKey::AlterReplicaLogDirs, "AlterReplicaLogDirs", 1, 2, 2),
    api(ApiKey::DescribeLogDirs, "DescribeLogDirs", 1, 4, 2),
    api(ApiKey::CreatePartitions, "CreatePartitions", 0, 3, 2),
    api(ApiKey::DeleteGroups, "DeleteGroups", 0, 3, 2),
    api(ApiKey::ElectLeaders, "ElectLeaders", 0, 2, 2),
    api(ApiKey::IncrementalAlterConfigs, "IncrementalAlterConfigs", 0, 1, 1),
    api(ApiKey::AlterPartitionReassignments, "AlterPartitionReassignments", 0, 1, 0),
    api(ApiKey::ListPartitionReassignments, "ListPartitionReassignments", 0, 0, 0),
    api(ApiKey::OffsetDelete, "OffsetDelete", 0, 0, NEVER),
    api(ApiKey::DescribeClientQuotas, "DescribeClientQuotas", 0, 1, 1),
    api(ApiKey::AlterClientQuotas, "AlterClientQuotas", 0, 1, 1),
    api(ApiKey::DescribeUserScramCredentials, "DescribeUserScramCredentials", 0, 0, 0),
    api(ApiKey::DescribeQuorum, "DescribeQuorum", 0, 2, 0),
    api(ApiKey::UpdateFeatures, "UpdateFeatures", 0, 2, 0),
    api(ApiKey::DescribeCluster, "DescribeCluster", 0, 2, 0),
    api(ApiKey::DescribeProducers, "DescribeProducers", 0, 0, 0),
    api(ApiKey::UnregisterBroker, "UnregisterBroker", 0, 0, 0),
    api(ApiKey::DescribeTransactions, "DescribeTransactions", 0, 0, 0),
    api(ApiKey::ListTransactions, "ListTransactions", 0, 2, 0),
    api(ApiKey::ConsumerGroupHeartbeat, "ConsumerGroupHeartbeat", 0, 1, 0),
    api(ApiKey::ConsumerGroupDescribe, "ConsumerGroupDescribe", 0, 1, 0),
    api(ApiKey::ListConfigResources, "ListConfigResources", 0, 1, 0),
    api(ApiKey::DescribeTopicPartitions, "DescribeTopicPartitions", 0, 0, 0),
    api(ApiKey::ShareGroupHeartbeat, "ShareGroupHeartbeat", 1, 1, 0),
    api(ApiKey::ShareGroupDescribe, "ShareGroupDescribe", 1, 1, 0),
    api(ApiKey::ShareFetch, "ShareFetch", 1, 2, 0),
    api(ApiKey::ShareAcknowledge, "ShareAcknowledge", 1, 2, 0),
    api(ApiKey::AddRaftVoter, "AddRaftVoter", 0, 1, 0),
    api(ApiKey::RemoveRaftVoter, "RemoveRaftVoter", 0, 0, 0),
    api(ApiKey::DescribeShareGroupOffsets, "DescribeShareGroupOffsets", 0, 1, 0),
    api(ApiKey::AlterShareGroupOffsets, "AlterShareGroupOffsets", 0, 0, 0),
    api(ApiKey::DeleteShareGroupOffsets, "DeleteShareGroupOffsets", 0, 0, 0),
];

/// Why a request cannot be served. Kafka closes the connection for all but ApiVersions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnsupportedApi {
    #[error("API key {key} is not served")]
    Key { key: i16 },
    #[error("version {version} of {} is not served, only {} to {}", .api.name, .api.min_served, .api.max)]
    Version { api: &'static Api, version: i16 },
}

/// Finds the API of a request, or why it is not served.
pub fn lookup(key: i16, version: i16) -> Result<&'static Api, UnsupportedApi> {
    let api = find(key).ok_or(UnsupportedApi::Key { key })?;
    if version < api.min_served || version > api.max {
        return Err(UnsupportedApi::Version { api, version });
    }
    Ok(api)
}

/// Finds an API by its key, whatever the version.
pub fn find(key: i16) -> Option<&'static Api> {
    // 30 entries: a binary search of five steps.
    APIS.binary_search_by_key(&key, |api| api.key as i16).ok().map(|index| &APIS[index])
}

/// One more than the greatest key that has a place in [`POSITIONS`].
const KEYS_MAX: usize = 128;

/// By key: the place in [`APIS`].
static POSITIONS: [u8; KEYS_MAX] = positions();

const fn positions() -> [u8; KEYS_MAX] {
    let mut positions = [u8::MAX; KEYS_MAX];
    let mut place = 0;
    while place < APIS.len() {
        positions[APIS[place].key as usize] = place as u8;
        place += 1;
    }
    positions
}

impl Api {
    /// Its place in [`APIS`], for tables with an entry for each: one load.
    pub fn position(&self) -> usize {
        usize::from(POSITIONS[self.key as usize])
    }

    /// The version in which kafka-protocol 0.18 knows the messages of `version`. ListOffsets 11 has the fields
    /// of 10: its news is one more timestamp that stands for something else (KIP-1023). DescribeShareGroupOffsets 1 has
    /// a longer answer.
    pub fn codec_version(&self, version: i16) -> i16 {
        match (self.key, version) {
            (ApiKey::ListOffsets, 11) => 10,
            // Requests as before; the responses have codecs of our own.
            (ApiKey::DescribeShareGroupOffsets, 1) => 0,
            (ApiKey::DeleteGroups, 3) => 2,
            // The responses as before; the requests have codecs of our own.
            (ApiKey::WriteTxnMarkers, 2) => 1,
            (ApiKey::AddRaftVoter, 1) => 0,
            _ => version,
        }
    }

    /// Whether a controller serves it, too (KIP-919): of what Kafka's controllers advertise what is told of the cluster and
    /// changes it.
    pub fn is_controllers(&self) -> bool {
        matches!(
            self.key,
            ApiKey::ApiVersions
                | ApiKey::CreateTopics
                | ApiKey::DeleteTopics
                | ApiKey::CreatePartitions
                | ApiKey::DescribeConfigs
                | ApiKey::AlterConfigs
                | ApiKey::IncrementalAlterConfigs
                | ApiKey::ElectLeaders
                | ApiKey::AlterPartitionReassignments
                | ApiKey::ListPartitionReassignments
                | ApiKey::AlterClientQuotas
                | ApiKey::DescribeQuorum
                | ApiKey::UpdateFeatures
                | ApiKey::DescribeCluster
                | ApiKey::UnregisterBroker
                | ApiKey::AddRaftVoter
                | ApiKey::RemoveRaftVoter
        )
    }

    /// The longest request that is read, header and all, where that is less than `socket.request.max.bytes`.
    pub fn request_bytes_max(&self) -> usize {
        match self.key {
            ApiKey::Produce => usize::MAX,
            // A hundred times what the largest clusters need.
            ApiKey::Fetch | ApiKey::OffsetCommit | ApiKey::OffsetFetch | ApiKey::SyncGroup => 16 << 20,
            // A few names of 32 KiB each, which is what a string may have, and a client id of the same length.
            ApiKey::ApiVersions
            | ApiKey::Heartbeat
            | ApiKey::InitProducerId
            | ApiKey::ListGroups
            | ApiKey::DescribeQuorum
            | ApiKey::DescribeCluster
            | ApiKey::UnregisterBroker
            | ApiKey::AddRaftVoter
            | ApiKey::RemoveRaftVoter
            | ApiKey::ListConfigResources => 128 << 10,
            // Lists of names or partitions.
            _ => 8 << 20,
        }
    }

    /// The version of the request header: 2 has tagged fields.
    pub fn request_header_version(&self, version: i16) -> i16 {
        if version >= self.flexible { 2 } else { 1 }
    }

    /// The version of the response header: 1 has tagged fields. ApiVersions always answers with 0, so that
    /// a client which guessed too high can read the answer (KIP-511).
    pub fn response_header_version(&self, version: i16) -> i16 {
        if self.key != ApiKey::ApiVersions && version >= self.flexible { 1 } else { 0 }
    }
}

const fn api(key: ApiKey, name: &'static str, min: i16, max: i16, flexible: i16) -> Api {
    Api { key, name, min, max, min_served: min, flexible }
}

#[cfg(test)]
mod tests {
    use super::super::topic_ids::FIRST_WITH_TOPIC_IDS;
    use super::*;

    #[test]
    fn table_is_sorted_by_key_and_its_ranges_are_not_empty() {
        assert!(APIS.windows(2).all(|pair| (pair[0].key as i16) < pair[1].key as i16));
        assert!(APIS.iter().all(|api| api.min <= api.min_served && api.min_served <= api.max));
    }

    #[test]
    fn versions_lie_within_what_the_message_codecs_encode() {
        for api in APIS {
            let codec = api.key.valid_versions();
            // Requests that `wire::topic_ids` decodes; the codec does have their responses.
            let own = matches!(api.key, ApiKey::OffsetCommit | ApiKey::OffsetFetch);
            // Requests and responses that `wire::share` and `wire::newer` have codecs for.
            let of_shares =
                matches!(api.key, ApiKey::ShareFetch | ApiKey::ShareAcknowledge | ApiKey::TxnOffsetCommit);
            let max = match (own, of_shares) {
                (true, _) => FIRST_WITH_TOPIC_IDS,
                (_, true) => api.max,
                _ => codec.max,
            };
            assert!(api.min_served >= codec.min && api.codec_version(api.max) <= max, "{} {codec}", api.name);
        }
    }

    #[test]
    fn header_versions_agree_with_the_message_codecs() {
        for api in APIS {
            for version in api.min_served..=api.max {
                assert_eq!(api.request_header_version(version), api.key.request_header_version(version));
                assert_eq!(api.response_header_version(version), api.key.response_header_version(version));
            }
        }
    }

    #[test]
    fn produce_is_advertised_from_zero_and_served_from_three() {
        assert_eq!(find(0).map(|api| api.min), Some(0));
        assert!(matches!(lookup(0, 2), Err(UnsupportedApi::Version { .. })));
        assert!(lookup(0, 3).is_ok());
    }

    #[test]
    fn every_api_knows_its_place() {
        assert!(APIS.iter().enumerate().all(|(place, api)| api.position() == place));
    }

    #[test]
    fn unknown_keys_and_versions_are_told_apart() {
        assert_eq!(lookup(999, 0), Err(UnsupportedApi::Key { key: 999 }));
        assert_eq!(lookup(-1, 0), Err(UnsupportedApi::Key { key: -1 }));
        assert!(matches!(lookup(18, 99), Err(UnsupportedApi::Version { .. })));
        assert!(matches!(lookup(18, -1), Err(UnsupportedApi::Version { .. })));
    }
}
