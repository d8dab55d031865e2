//! What the consumer groups of the new protocol need (`group.consumer.*`).

use std::ops::RangeInclusive;

use super::settings::{Overrides, Settings};
use super::shares;

/// A server-side assignor (`group.consumer.assignors`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assignor {
    Uniform,
    Range,
}

impl Assignor {
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Assignor::Uniform, Assignor::Range].into_iter().find(|assignor| assignor.name() == name)
    }
}

/// Which way a group with members may change its protocol (`group.consumer.migration.policy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MigrationPolicy {
    Disabled,
    Upgrade,
    Downgrade,
    Bidirectional,
}

impl MigrationPolicy {
    pub const NAMES: &[&str] = &["disabled", "upgrade", "downgrade", "bidirectional"];

    fn from_name(name: &str) -> Self {
        match name {
            "upgrade" => MigrationPolicy::Upgrade,
            "downgrade" => MigrationPolicy::Downgrade,
            "bidirectional" => MigrationPolicy::Bidirectional,
            _ => MigrationPolicy::Disabled,
        }
    }

    pub fn allows_upgrade(self) -> bool {
        matches!(self, MigrationPolicy::Upgrade | MigrationPolicy::Bidirectional)
    }

    pub fn allows_downgrade(self) -> bool {
        matches!(self, MigrationPolicy::Downgrade | MigrationPolicy::Bidirectional)
    }
}

/// The times of one consumer group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConsumerGroupTimes {
    pub session_timeout_ms: i32,
    /// How often members are told to send heartbeats.
    pub heartbeat_interval_ms: i32,
    /// The least time between two target assignments.
    pub assignment_interval_ms: i32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerGroupSettings {
    pub members_max: i32,
    /// The first is the default.
    pub assignors: Vec<Assignor>,
    pub migration_policy: MigrationPolicy,
    /// Of a group without configs of its own.
    pub times: ConsumerGroupTimes,
    pub bounds: ConsumerGroupBounds,
}

/// What the times of single groups are held to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerGroupBounds {
    pub session_timeout_ms: RangeInclusive<i32>,
    pub heartbeat_interval_ms: RangeInclusive<i32>,
    pub assignment_interval_ms: RangeInclusive<i32>,
}

/// Kafka's.
impl Default for ConsumerGroupBounds {
    fn default() -> Self {
        Self {
            session_timeout_ms: 45_000..=60_000,
            heartbeat_interval_ms: 5_000..=15_000,
            assignment_interval_ms: 0..=15_000,
        }
    }
}

impl ConsumerGroupSettings {
    /// The times of a group with these configs. A value that was stored when the bounds were others counts as the
    /// bound it is beyond.
    pub fn times_of(&self, overrides: &Overrides) -> ConsumerGroupTimes {
        let value = |name: &str, of_broker: i32, bounds: &RangeInclusive<i32>| {
            let given: Option<i32> = overrides.get(name).and_then(|text| text.trim().parse().ok());
            given.map_or(of_broker, |given| given.clamp(*bounds.start(), *bounds.end()))
        };
        let (times, bounds) = (&self.times, &self.bounds);
        ConsumerGroupTimes {
            session_timeout_ms: value(
                "consumer.session.timeout.ms",
                times.session_timeout_ms,
                &bounds.session_timeout_ms,
            ),
            heartbeat_interval_ms: value(
                "consumer.heartbeat.interval.ms",
                times.heartbeat_interval_ms,
                &bounds.heartbeat_interval_ms,
            ),
            assignment_interval_ms: value(
                "consumer.assignment.interval.ms",
                times.assignment_interval_ms,
                &bounds.assignment_interval_ms,
            ),
        }
    }
}

/// Names of a time, its least and its greatest value.
pub(super) const BOUNDED: &[[&str; 3]] = &[
    [
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ],
    [
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ],
    [
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ],
];

/// The least and the greatest value of a property of a consumer or share group.
pub(super) fn bounds_of(name: &str, s: &Settings) -> Option<RangeInclusive<i64>> {
    let mut all = BOUNDED.iter().chain(shares::BOUNDED);
    let [_, least, greatest] = all.find(|[bounded, ..]| *bounded == name)?;
    Some(s.integer(least)..=s.integer(greatest))
}

pub(super) fn consumer_group_settings(s: &Settings) -> ConsumerGroupSettings {
    let assignors = s.list("group.consumer.assignors").unwrap_or_default();
    let policy = s.text("group.consumer.migration.policy").unwrap_or_default();
    ConsumerGroupSettings {
        members_max: s.number("group.consumer.max.size"),
        assignors: assignors.iter().filter_map(|name| Assignor::from_name(name)).collect(),
        migration_policy: MigrationPolicy::from_name(&policy.to_lowercase()),
        times: ConsumerGroupTimes {
            session_timeout_ms: s.number("group.consumer.session.timeout.ms"),
            heartbeat_interval_ms: s.number("group.consumer.heartbeat.interval.ms"),
            assignment_interval_ms: s.number("group.consumer.assignment.interval.ms"),
        },
        bounds: ConsumerGroupBounds {
            session_timeout_ms: s.number("group.consumer.min.session.timeout.ms")
                ..=s.number("group.consumer.max.session.timeout.ms"),
            heartbeat_interval_ms: s.number("group.consumer.min.heartbeat.interval.ms")
                ..=s.number("group.consumer.max.heartbeat.interval.ms"),
            assignment_interval_ms: s.number("group.consumer.min.assignment.interval.ms")
                ..=s.number("group.consumer.max.assignment.interval.ms"),
        },
    }
}
