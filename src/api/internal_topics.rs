//! The topics that the brokers make for themselves, and topics made because somebody asked for them.

use crate::config::BrokerConfig;
use crate::metadata::{NewTopic, is_internal_topic};

pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";
pub const TRANSACTION_STATE: &str = "__transaction_state";
pub const SHARE_GROUP_STATE: &str = "__share_group_state";
const CLUSTER_METADATA: &str = "__cluster_metadata";

/// The topic that keeps committed offsets and groups (`OffsetConfig`).
pub fn consumer_offsets(config: &BrokerConfig) -> NewTopic {
    let groups = &config.groups;
    let set = |name: &str, value: String| (name.to_owned(), Some(value));
    NewTopic {
        name: CONSUMER_OFFSETS.to_owned(),
        partitions: groups.offsets_topic_partitions,
        replication_factor: groups.offsets_topic_replication_factor,
        assignment: Vec::new(),
        configs: vec![
            set("cleanup.policy", "compact".to_owned()),
            set("compression.type", "producer".to_owned()),
            set("segment.bytes", groups.offsets_topic_segment_bytes.to_string()),
        ],
    }
}

/// The topic that keeps transactional ids (`TransactionStateManager.transactionTopicConfigs`).
pub fn transaction_state(config: &BrokerConfig) -> NewTopic {
    let transactions = &config.transactions;
    let set = |name: &str, value: String| (name.to_owned(), Some(value));
    NewTopic {
        name: TRANSACTION_STATE.to_owned(),
        partitions: transactions.topic_partitions,
        replication_factor: transactions.topic_replication_factor,
        assignment: Vec::new(),
        configs: vec![
            set("unclean.leader.election.enable", "false".to_owned()),
            set("compression.type", "uncompressed".to_owned()),
            set("cleanup.policy", "compact".to_owned()),
            set("min.insync.replicas", transactions.topic_in_sync_replicas_min.to_string()),
            set("segment.bytes", transactions.topic_segment_bytes.to_string()),
        ],
    }
}

/// The topic that keeps the states of share partitions (`ShareCoordinatorService.shareGroupStateTopicConfigs`). It is cut
/// off where nobody needs it any more, not compacted.
pub fn share_group_state(config: &BrokerConfig) -> NewTopic {
    let states = &config.share_states;
    let set = |name: &str, value: String| (name.to_owned(), Some(value));
    NewTopic {
        name: SHARE_GROUP_STATE.to_owned(),
        partitions: states.topic_partitions,
        replication_factor: states.topic_replication_factor,
        assignment: Vec::new(),
        configs: vec![
            set("cleanup.policy", "delete".to_owned()),
            set("compression.type", "producer".to_owned()),
            set("segment.bytes", states.topic_segment_bytes.to_string()),
            set("retention.ms", "-1".to_owned()),
            set("min.insync.replicas", states.topic_in_sync_replicas_min.to_string()),
        ],
    }
}

/// The topic to be made when `name` was asked for and is not there; `None` for an internal topic that no
/// service here uses, and for the name of Kafka's metadata log.
pub(super) fn auto_created(name: &str, config: &BrokerConfig) -> Option<NewTopic> {
    if name == CONSUMER_OFFSETS {
        return Some(consumer_offsets(config));
    }
    if name == TRANSACTION_STATE {
        return Some(transaction_state(config));
    }
    if name == SHARE_GROUP_STATE {
        return Some(share_group_state(config));
    }
    (!is_internal_topic(name) && name != CLUSTER_METADATA).then(|| NewTopic {
        name: name.to_owned(),
        partitions: -1,
        replication_factor: -1,
        assignment: Vec::new(),
        configs: Vec::new(),
    })
}
