//! Kafka's property names as checked structs, and the levels of dynamic configuration. Pure: texts come
//! in, values and errors go out; no file is opened, no name resolved. Lives on no shard.
//!
//! [`BrokerConfig::load`] reads a `server.properties`; [`Levels`] joins it with the dynamic values of the
//! metadata log and a topic's overrides into a [`LogConfig`] and into the rows of DescribeConfigs; [`Scope`]
//! checks and applies changes of the dynamic values.

mod absent;
mod alter;
mod broker;
mod cluster;
mod define;
mod describe;
mod groups;
mod limits;
mod listeners;
mod log;
mod log_levels;
mod properties;
mod quotas;
mod settings;
mod shares;
mod table;
mod transactions;

#[cfg(test)]
mod broker_tests;
#[cfg(test)]
mod dynamic_tests;

pub use alter::{AlterError, Alteration, Operation, Scope};
pub use broker::{
    AdminListener, BrokerConfig, ConfigError, Durability, EventLog, GroupSettings, Loaded, LogFormat,
    MetricsOfLogs, Place, Source,
};
pub use cluster::{ChangingConfig, ClusterConfig, PeerSecurity, VoterAddress};
pub use define::{Definition, Importance, InvalidValue, Kind, Update, Valid, Value};
pub use describe::{ConfigSource, Row, Synonym};
pub use groups::{Assignor, ConsumerGroupBounds, ConsumerGroupSettings, ConsumerGroupTimes, MigrationPolicy};
pub use limits::{ConnectionLimits, ListenerLimits, ServingLimits};
pub use listeners::{Endpoint, Listener, ListenerName, SecurityProtocol};
pub use log::{CleanerSettings, CleanupPolicy, LogConfig, TimestampType, TopicCompression};
pub use quotas::QuotaSettings;
pub use settings::{Levels, Overrides, Settings};
pub use shares::{ShareGroupConfig, ShareGroupSettings, ShareReset, ShareStateSettings};
pub use table::default_value;
pub use transactions::TransactionSettings;
