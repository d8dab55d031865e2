//! The cluster's metadata without IO: the image every shard reads, the records that change it, and the
//! controller that turns commands into records. `raft` orders and stores the records.
//!
//! Lives on shard 0 ([`State`], [`Controller`]); only the immutable [`Image`] goes to the other shards.
//! Only [`State::apply`] changes state: the controller looks at an image and proposes records, it never
//! acts. `docs/METADATA.md` maps each record to its Kafka and its ZooKeeper ancestor.

mod assignment;
mod changes;
mod codec;
mod command;
mod command_codec;
mod controller;
pub mod elections;
mod features;
mod forms;
mod image;
mod kafka;
mod names;
mod quota_codec;
mod quotas;
mod record;
mod sorted_map;
mod state;

pub use changes::Changes;
pub use codec::{DecodeError, Reader, Writer, decode_records, encode_records};
pub use command::{
    AlterClientQuotas, AlterConfigs, AlterIsr, AlterPartition, AlterReassignments, AlteredPartition,
    AssignDirectories, BrokerState, Command, CommandKind, ConfigChange, ConfigEdit, ConfigOp,
    CreatePartitions, CreateTopics, CreatedTopic, DeleteTopics, DeletedTopic, ElectLeaders, ElectionKind,
    FeatureUpdate, Heartbeat, MorePartitions, MutationQuota, NewTopic, ProducerIdBlock, QuotaChange,
    QuotaTarget, Reassignment, Refusal, RegisterBroker, Response, TopicRef, UpdateFeatures, UpgradeType,
};
pub use command_codec::{decode_command, decode_result, encode_command, encode_result};
pub use controller::{
    ClusterSettings, ConfigRules, Controller, ControllerSettings, IdSource, Outcome, Sessions,
};
pub use features::{
    FEATURES, Feature, GROUP_VERSION, KRAFT, KRAFT_VERSION, METADATA_VERSION, SHARE_VERSION,
    TRANSACTION_VERSION, below_initial, own_features,
};
pub use image::{
    BrokerImage, ConfigResource, ControllerImage, Endpoint, FeatureRange, Image, LOST_DIRECTORY, Overrides,
    PartitionImage, TopicImage,
};
pub use kafka::{KafkaMetadata, KafkaMetadataError, SegmentEnd};
pub use names::{TopicNameError, check_topic_name, is_internal_topic};
pub use quotas::{ClientQuotas, OfClient, QuotaEntity, QuotaKey, QuotaLimit, QuotaLimits, QuotaName, Scope};
pub use record::{BrokerChange, PartitionChange, Record, Stamp};
pub use state::{ApplyError, State};

#[cfg(test)]
pub(crate) use controller::testing;
#[cfg(test)]
pub(crate) use kafka::testing as kafka_testing;
