//! The configs of single groups, with Kafka's names. Each stands in for a property of the broker, and is held to what
//! bounds that.

use super::p;
use crate::config::define::{Definition, Importance, Kind, Valid};
use Importance::Medium;
use Kind::Int;
use Valid::AtLeast;

/// A config of a group.
pub struct GroupConfig {
    pub definition: Definition,
    /// The broker's property that counts for groups without a value.
    pub of_broker: &'static str,
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
        of_broker: "group.consumer.session.timeout.ms",
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
        of_broker: "group.consumer.heartbeat.interval.ms",
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
        of_broker: "group.consumer.assignment.interval.ms",
    },
];

/// Pairs of which the first must be above the second: a member has to be heard of before its session ends.
pub static ABOVE: &[[&str; 2]] = &[["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]];

/// The config of this name, if kuring has it.
pub fn find(name: &str) -> Option<&'static GroupConfig> {
    GROUP.iter().find(|config| config.definition.name == name)
}
