//! The fields of every request that passes the gate, as far as lengths go: derived from Kafka 4.2's message
//! definitions (`clients/src/main/resources/common/message/*Request.json`). Tests hold them against the codecs
//! version by version.

use crate::wire::ApiKey;

/// One field and the versions that have it.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub kind: Kind,
    since: i16,
    until: i16,
}

impl Field {
    pub fn is_in(&self, version: i16) -> bool {
        self.since <= version && version <= self.until
    }
}

/// How a field's length is told.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// This many bytes.
    Fixed(usize),
    /// Nullable or not.
    String,
    /// Nullable or not.
    Bytes,
    /// Of structures.
    Array(&'static [Field]),
    /// Of anything else.
    ArrayOf(&'static Kind),
    /// Behind a byte that is negative for null.
    NullableStruct(&'static [Field]),
}

/// The schema of a request's body; `None` for APIs with codecs of their own and those not served.
pub fn of(key: ApiKey) -> Option<&'static [Field]> {
    Some(match key {
        ApiKey::ListOffsets => LIST_OFFSETS,
        ApiKey::Metadata => METADATA,
        ApiKey::OffsetCommit => OFFSET_COMMIT,
        ApiKey::OffsetFetch => OFFSET_FETCH,
        ApiKey::FindCoordinator => FIND_COORDINATOR,
        ApiKey::JoinGroup => JOIN_GROUP,
        ApiKey::Heartbeat => HEARTBEAT,
        ApiKey::LeaveGroup => LEAVE_GROUP,
        ApiKey::SyncGroup => SYNC_GROUP,
        ApiKey::DescribeGroups => DESCRIBE_GROUPS,
        ApiKey::ListGroups => LIST_GROUPS,
        ApiKey::ConsumerGroupHeartbeat => CONSUMER_GROUP_HEARTBEAT,
        ApiKey::ConsumerGroupDescribe => CONSUMER_GROUP_DESCRIBE,
        ApiKey::ShareGroupHeartbeat => SHARE_GROUP_HEARTBEAT,
        ApiKey::ShareGroupDescribe => CONSUMER_GROUP_DESCRIBE,
        ApiKey::DescribeShareGroupOffsets => DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey::AlterShareGroupOffsets => ALTER_SHARE_GROUP_OFFSETS,
        ApiKey::DeleteShareGroupOffsets => DELETE_SHARE_GROUP_OFFSETS,
        ApiKey::ApiVersions => API_VERSIONS,
        ApiKey::CreateTopics => CREATE_TOPICS,
        ApiKey::DeleteTopics => DELETE_TOPICS,
        ApiKey::DeleteRecords => DELETE_RECORDS,
        ApiKey::InitProducerId => INIT_PRODUCER_ID,
        ApiKey::OffsetForLeaderEpoch => OFFSET_FOR_LEADER_EPOCH,
        ApiKey::AddPartitionsToTxn => ADD_PARTITIONS_TO_TXN,
        ApiKey::AddOffsetsToTxn => ADD_OFFSETS_TO_TXN,
        ApiKey::EndTxn => END_TXN,
        ApiKey::WriteTxnMarkers => WRITE_TXN_MARKERS,
        ApiKey::TxnOffsetCommit => TXN_OFFSET_COMMIT,
        ApiKey::DescribeConfigs => DESCRIBE_CONFIGS,
        ApiKey::AlterConfigs => ALTER_CONFIGS,
        ApiKey::AlterReplicaLogDirs => ALTER_REPLICA_LOG_DIRS,
        ApiKey::DescribeLogDirs => TOPICS_WITH_PARTITIONS,
        ApiKey::CreatePartitions => CREATE_PARTITIONS,
        ApiKey::DeleteGroups => DELETE_GROUPS,
        ApiKey::ElectLeaders => ELECT_LEADERS,
        ApiKey::AlterPartitionReassignments => ALTER_PARTITION_REASSIGNMENTS,
        ApiKey::ListPartitionReassignments => LIST_PARTITION_REASSIGNMENTS,
        ApiKey::IncrementalAlterConfigs => INCREMENTAL_ALTER_CONFIGS,
        ApiKey::OffsetDelete => OFFSET_DELETE,
        ApiKey::DescribeClientQuotas => DESCRIBE_CLIENT_QUOTAS,
        ApiKey::AlterClientQuotas => ALTER_CLIENT_QUOTAS,
        ApiKey::DescribeUserScramCredentials => DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey::DescribeQuorum => DESCRIBE_QUORUM,
        ApiKey::UpdateFeatures => UPDATE_FEATURES,
        ApiKey::DescribeCluster => DESCRIBE_CLUSTER,
        ApiKey::DescribeProducers => TOPICS_WITH_PARTITIONS,
        ApiKey::UnregisterBroker => UNREGISTER_BROKER,
        ApiKey::DescribeTransactions => DESCRIBE_TRANSACTIONS,
        ApiKey::ListTransactions => LIST_TRANSACTIONS,
        ApiKey::AddRaftVoter => ADD_RAFT_VOTER,
        ApiKey::RemoveRaftVoter => REMOVE_RAFT_VOTER,
        ApiKey::ListConfigResources => LIST_CONFIG_RESOURCES,
        ApiKey::DescribeTopicPartitions => DESCRIBE_TOPIC_PARTITIONS,
        _ => return None,
    })
}

const BOOL: Kind = Kind::Fixed(1);
const INT8: Kind = Kind::Fixed(1);
const INT16: Kind = Kind::Fixed(2);
const INT32: Kind = Kind::Fixed(4);
const INT64: Kind = Kind::Fixed(8);
const UUID: Kind = Kind::Fixed(16);
const STRING: Kind = Kind::String;
const STRINGS: Kind = Kind::ArrayOf(&STRING);
const INT32S: Kind = Kind::ArrayOf(&INT32);

const fn all(kind: Kind) -> Field {
    Field { kind, since: i16::MIN, until: i16::MAX }
}

const fn since(version: i16, kind: Kind) -> Field {
    Field { kind, since: version, until: i16::MAX }
}

const fn until(version: i16, kind: Kind) -> Field {
    Field { kind, since: i16::MIN, until: version }
}

const LIST_OFFSETS: &[Field] = &[
    all(INT32),
    since(2, INT8),
    all(Kind::Array(&[all(STRING), all(Kind::Array(&[all(INT32), since(4, INT32), all(INT64)]))])),
    since(10, INT32),
];

const ALTER_REPLICA_LOG_DIRS: &[Field] =
    &[all(Kind::Array(&[all(STRING), all(Kind::Array(&[all(STRING), all(INT32S)]))]))];

const METADATA: &[Field] = &[
    all(Kind::Array(&[since(10, UUID), all(STRING)])),
    since(4, BOOL),
    Field { kind: BOOL, since: 8, until: 10 },
    since(8, BOOL),
];

const OFFSET_COMMIT: &[Field] = &[
    all(STRING),
    all(INT32),
    all(STRING),
    since(7, STRING),
    until(4, INT64),
    all(Kind::Array(&[
        until(9, STRING),
        since(10, UUID),
        all(Kind::Array(&[all(INT32), all(INT64), since(6, INT32), all(STRING)])),
    ])),
];

const OFFSET_FETCH: &[Field] = &[
    until(7, STRING),
    until(7, Kind::Array(TOPIC_WITH_PARTITIONS)),
    since(
        8,
        Kind::Array(&[
            all(STRING),
            since(9, STRING),
            since(9, INT32),
            all(Kind::Array(&[until(9, STRING), since(10, UUID), all(INT32S)])),
        ]),
    ),
    since(7, BOOL),
];

const FIND_COORDINATOR: &[Field] = &[until(3, STRING), since(1, INT8), since(4, STRINGS)];

const JOIN_GROUP: &[Field] = &[
    all(STRING),
    all(INT32),
    since(1, INT32),
    all(STRING),
    since(5, STRING),
    all(STRING),
    all(Kind::Array(&[all(STRING), all(Kind::Bytes)])),
    since(8, STRING),
];

const HEARTBEAT: &[Field] = &[all(STRING), all(INT32), all(STRING), since(3, STRING)];

const LEAVE_GROUP: &[Field] =
    &[all(STRING), until(2, STRING), since(3, Kind::Array(&[all(STRING), all(STRING), since(5, STRING)]))];

const SYNC_GROUP: &[Field] = &[
    all(STRING),
    all(INT32),
    all(STRING),
    since(3, STRING),
    since(5, STRING),
    since(5, STRING),
    all(Kind::Array(&[all(STRING), all(Kind::Bytes)])),
];

const DESCRIBE_GROUPS: &[Field] = &[all(STRINGS), since(3, BOOL)];

const LIST_GROUPS: &[Field] = &[since(4, STRINGS), since(5, STRINGS)];

const CONSUMER_GROUP_HEARTBEAT: &[Field] = &[
    all(STRING),
    all(STRING),
    all(INT32),
    all(STRING),
    all(STRING),
    all(INT32),
    all(STRINGS),
    since(1, STRING),
    all(STRING),
    all(Kind::Array(&[all(UUID), all(INT32S)])),
];

const CONSUMER_GROUP_DESCRIBE: &[Field] = &[all(STRINGS), all(BOOL)];

const SHARE_GROUP_HEARTBEAT: &[Field] = &[all(STRING), all(STRING), all(INT32), all(STRING), all(STRINGS)];

const DESCRIBE_SHARE_GROUP_OFFSETS: &[Field] =
    &[all(Kind::Array(&[all(STRING), all(Kind::Array(TOPIC_WITH_PARTITIONS))]))];

const ALTER_SHARE_GROUP_OFFSETS: &[Field] =
    &[all(STRING), all(Kind::Array(&[all(STRING), all(Kind::Array(&[all(INT32), all(INT64)]))]))];

const DELETE_SHARE_GROUP_OFFSETS: &[Field] = &[all(STRING), all(Kind::Array(&[all(STRING)]))];

const API_VERSIONS: &[Field] = &[since(3, STRING), since(3, STRING)];

const CREATE_TOPICS: &[Field] = &[
    all(Kind::Array(&[
        all(STRING),
        all(INT32),
        all(INT16),
        all(Kind::Array(&[all(INT32), all(INT32S)])),
        all(Kind::Array(&[all(STRING), all(STRING)])),
    ])),
    all(INT32),
    all(BOOL),
];

const DELETE_TOPICS: &[Field] =
    &[since(6, Kind::Array(&[all(STRING), all(UUID)])), until(5, STRINGS), all(INT32)];

const DELETE_RECORDS: &[Field] =
    &[all(Kind::Array(&[all(STRING), all(Kind::Array(&[all(INT32), all(INT64)]))])), all(INT32)];

const INIT_PRODUCER_ID: &[Field] = &[all(STRING), all(INT32), since(3, INT64), since(3, INT16)];

const OFFSET_FOR_LEADER_EPOCH: &[Field] = &[
    since(3, INT32),
    all(Kind::Array(&[all(STRING), all(Kind::Array(&[all(INT32), all(INT32), all(INT32)]))])),
];

const ADD_PARTITIONS_TO_TXN: &[Field] = &[
    since(
        4,
        Kind::Array(&[
            all(STRING),
            all(INT64),
            all(INT16),
            all(BOOL),
            all(Kind::Array(TOPIC_WITH_PARTITIONS)),
        ]),
    ),
    until(3, STRING),
    until(3, INT64),
    until(3, INT16),
    until(3, Kind::Array(TOPIC_WITH_PARTITIONS)),
];

const ADD_OFFSETS_TO_TXN: &[Field] = &[all(STRING), all(INT64), all(INT16), all(STRING)];

const END_TXN: &[Field] = &[all(STRING), all(INT64), all(INT16), all(BOOL)];

const WRITE_TXN_MARKERS: &[Field] = &[all(Kind::Array(&[
    all(INT64),
    all(INT16),
    all(BOOL),
    all(Kind::Array(TOPIC_WITH_PARTITIONS)),
    all(INT32),
    since(2, INT8),
]))];

const TXN_OFFSET_COMMIT: &[Field] = &[
    all(STRING),
    all(STRING),
    all(INT64),
    all(INT16),
    since(3, INT32),
    since(3, STRING),
    since(3, STRING),
    all(Kind::Array(&[
        until(5, STRING),
        since(6, UUID),
        all(Kind::Array(&[all(INT32), all(INT64), since(2, INT32), all(STRING)])),
    ])),
];

const DESCRIBE_CLIENT_QUOTAS: &[Field] =
    &[all(Kind::Array(&[all(STRING), all(INT8), all(STRING)])), all(BOOL)];

const DESCRIBE_USER_SCRAM_CREDENTIALS: &[Field] = &[all(Kind::Array(&[all(STRING)]))];

const ALTER_CLIENT_QUOTAS: &[Field] = &[
    all(Kind::Array(&[
        all(Kind::Array(&[all(STRING), all(STRING)])),
        all(Kind::Array(&[all(STRING), all(INT64), all(BOOL)])),
    ])),
    all(BOOL),
];

const DESCRIBE_QUORUM: &[Field] = &[all(Kind::Array(&[all(STRING), all(Kind::Array(&[all(INT32)]))]))];

const UPDATE_FEATURES: &[Field] = &[
    all(INT32),
    all(Kind::Array(&[all(STRING), all(INT16), until(0, BOOL), since(1, INT8)])),
    since(1, BOOL),
];

const DESCRIBE_TRANSACTIONS: &[Field] = &[all(STRINGS)];

const LIST_TRANSACTIONS: &[Field] =
    &[all(STRINGS), all(Kind::ArrayOf(&INT64)), since(1, INT64), since(2, STRING)];

const DESCRIBE_CONFIGS: &[Field] =
    &[all(Kind::Array(&[all(INT8), all(STRING), all(STRINGS)])), all(BOOL), since(3, BOOL)];

const ALTER_CONFIGS: &[Field] =
    &[all(Kind::Array(&[all(INT8), all(STRING), all(Kind::Array(&[all(STRING), all(STRING)]))])), all(BOOL)];

const CREATE_PARTITIONS: &[Field] =
    &[all(Kind::Array(&[all(STRING), all(INT32), all(Kind::Array(&[all(INT32S)]))])), all(INT32), all(BOOL)];

const DELETE_GROUPS: &[Field] = &[all(STRINGS)];

const ELECT_LEADERS: &[Field] = &[since(1, INT8), all(Kind::Array(TOPIC_WITH_PARTITIONS)), all(INT32)];

const ALTER_PARTITION_REASSIGNMENTS: &[Field] = &[
    all(INT32),
    since(1, BOOL),
    all(Kind::Array(&[all(STRING), all(Kind::Array(&[all(INT32), all(INT32S)]))])),
];

const LIST_PARTITION_REASSIGNMENTS: &[Field] = &[all(INT32), all(Kind::Array(TOPIC_WITH_PARTITIONS))];

const INCREMENTAL_ALTER_CONFIGS: &[Field] = &[
    all(Kind::Array(&[all(INT8), all(STRING), all(Kind::Array(&[all(STRING), all(INT8), all(STRING)]))])),
    all(BOOL),
];

const OFFSET_DELETE: &[Field] =
    &[all(STRING), all(Kind::Array(&[all(STRING), all(Kind::Array(&[all(INT32)]))]))];

const DESCRIBE_CLUSTER: &[Field] = &[all(BOOL), since(1, INT8), since(2, BOOL)];

const UNREGISTER_BROKER: &[Field] = &[all(INT32)];

const ADD_RAFT_VOTER: &[Field] = &[
    all(STRING),
    all(INT32),
    all(INT32),
    all(UUID),
    all(Kind::Array(&[all(STRING), all(STRING), all(INT16)])),
    since(1, BOOL),
];

const REMOVE_RAFT_VOTER: &[Field] = &[all(STRING), all(INT32), all(UUID)];

const LIST_CONFIG_RESOURCES: &[Field] = &[since(1, Kind::ArrayOf(&INT8))];

const DESCRIBE_TOPIC_PARTITIONS: &[Field] =
    &[all(Kind::Array(&[all(STRING)])), all(INT32), all(Kind::NullableStruct(&[all(STRING), all(INT32)]))];

const TOPIC_WITH_PARTITIONS: &[Field] = &[all(STRING), all(INT32S)];

const TOPICS_WITH_PARTITIONS: &[Field] = &[all(Kind::Array(TOPIC_WITH_PARTITIONS))];
