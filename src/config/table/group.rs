//! The configs of single groups, with Kafka's names. Each stands in for a property of the broker, and is held to what
//! bounds that.

use super::p;
use crate::config::define::{Definition, Importance, Kind, Valid};
use Importance::Medium;
use Kind::{Boolean, Int, String};
use Valid::{Any, AtLeast, OneOf};

/// A config of a group.
pub struct GroupConfig {
    pub definition: Definition,
    /// The broker's property that counts for groups without a value, where there is one.
    pub of_broker: Option<&'static str>,
}

/// All of them.
pub static GROUP: &[GroupConfig] = &[
    GroupConfig {
        definition: p(
            "consumer.session.timeout.ms",
            Int,
            Some("45000"),
            AtLeast(1),
            Medium,
            "How long a member of a consumer group of the new protocol may be silent.",
        ),
        of_broker: Some("group.consumer.session.timeout.ms"),
    },
    GroupConfig {
        definition: p(
            "consumer.heartbeat.interval.ms",
            Int,
            Some("5000"),
            AtLeast(1),
            Medium,
            "How often members of a consumer group of the new protocol are told to send heartbeats.",
        ),
        of_broker: Some("group.consumer.heartbeat.interval.ms"),
    },
    GroupConfig {
        definition: p(
            "consumer.assignment.interval.ms",
            Int,
            Some("1000"),
            AtLeast(0),
            Medium,
            "The least time between two target assignments of a consumer group of the new protocol.",
        ),
        of_broker: Some("group.consumer.assignment.interval.ms"),
    },
    GroupConfig {
        definition: p(
            "share.session.timeout.ms",
            Int,
            Some("45000"),
            AtLeast(1),
            Medium,
            "How long a member of the share group may be silent.",
        ),
        of_broker: Some("group.share.session.timeout.ms"),
    },
    GroupConfig {
        definition: p(
            "share.heartbeat.interval.ms",
            Int,
            Some("5000"),
            AtLeast(1),
            Medium,
            "How often members of the share group are told to send heartbeats.",
        ),
        of_broker: Some("group.share.heartbeat.interval.ms"),
    },
    GroupConfig {
        definition: p(
            "share.record.lock.duration.ms",
            Int,
            Some("30000"),
            AtLeast(1000),
            Medium,
            "How long a member of the share group has a record before it is given to another.",
        ),
        of_broker: Some("group.share.record.lock.duration.ms"),
    },
    GroupConfig {
        definition: p(
            "share.delivery.count.limit",
            Int,
            Some("5"),
            AtLeast(2),
            Medium,
            "A record that was delivered so often to the share group is not delivered again.",
        ),
        of_broker: Some("group.share.delivery.count.limit"),
    },
    GroupConfig {
        definition: p(
            "share.partition.max.record.locks",
            Int,
            Some("2000"),
            AtLeast(100),
            Medium,
            "Records of a partition that may be with the members of the share group before no new ones are delivered.",
        ),
        of_broker: Some("group.share.partition.max.record.locks"),
    },
    GroupConfig {
        definition: p(
            "share.auto.offset.reset",
            String,
            Some("latest"),
            Any,
            Medium,
            "Where the share group begins in a partition that it has no position in: `earliest`, `latest`, or \
             `by_duration:` with an age in the form of ISO 8601.",
        ),
        of_broker: None,
    },
    GroupConfig {
        definition: p(
            "share.isolation.level",
            String,
            Some("read_uncommitted"),
            OneOf(&["read_committed", "read_uncommitted"]),
            Medium,
            "Whether the share group gets records of transactions that are not committed.",
        ),
        of_broker: None,
    },
    GroupConfig {
        definition: p(
            "share.renew.acknowledge.enable",
            Boolean,
            Some("true"),
            Any,
            Medium,
            "Whether members of the share group may ask for more time.",
        ),
        of_broker: None,
    },
];

/// Pairs of which the first must be above the second: a member has to be heard of before its session ends.
pub static ABOVE: &[[&str; 2]] = &[
    ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"],
    ["share.session.timeout.ms", "share.heartbeat.interval.ms"],
];

/// The config of this name, if kuring has it.
pub fn find(name: &str) -> Option<&'static GroupConfig> {
    GROUP.iter().find(|config| config.definition.name == name)
}
