//! The properties of client quotas and of throttled replication, with Kafka's names and defaults, and kuring's own. Client
//! quotas themselves are in the cluster's metadata.

use super::p;
use crate::config::define::{Definition, Importance, Kind, Valid};
use Importance::{Low, Medium};
use Kind::{Int, Long};
use Valid::AtLeast;

/// All of them.
pub(super) static QUOTAS: &[Definition] = &[
    p(
        "quota.window.num",
        Int,
        Some("11"),
        AtLeast(1),
        Low,
        "How many windows the rates of client quotas are taken over; of more than 1000 the oldest are not looked at.",
    ),
    p(
        "quota.window.size.seconds",
        Int,
        Some("1"),
        AtLeast(1),
        Low,
        "The length of a window of client quotas.",
    ),
    p(
        "controller.quota.window.num",
        Int,
        Some("11"),
        AtLeast(1),
        Low,
        "How many windows of controller_mutation_rate may be used up at once; of more than 1000 that many.",
    ),
    p(
        "controller.quota.window.size.seconds",
        Int,
        Some("1"),
        AtLeast(1),
        Low,
        "The length of a window of controller_mutation_rate.",
    ),
    p(
        "replication.quota.window.num",
        Int,
        Some("11"),
        AtLeast(1),
        Low,
        "How many windows the rates of throttled replication are taken over; of more than 1000 the oldest are not looked \
         at.",
    ),
    p(
        "replication.quota.window.size.seconds",
        Int,
        Some("1"),
        AtLeast(1),
        Low,
        "The length of a window of throttled replication.",
    ),
    p(
        "leader.replication.throttled.rate",
        Long,
        Some("9223372036854775807"),
        AtLeast(0),
        Medium,
        "How many bytes a second this broker sends to followers of the partitions in \
         leader.replication.throttled.replicas; above it those that are not in sync wait.",
    )
    .dynamic(),
    p(
        "follower.replication.throttled.rate",
        Long,
        Some("9223372036854775807"),
        AtLeast(0),
        Medium,
        "How many bytes a second this broker fetches of the partitions in follower.replication.throttled.replicas; above \
         it replicas that are not in sync wait.",
    )
    .dynamic(),
    p(
        "kuring.quota.clients.max",
        Int,
        Some("50000"),
        AtLeast(1),
        Low,
        "How many users and client ids, or pairs of them, are measured apart for each quota; those that come when \
         there are so many, and none of them has been silent for all windows, are measured together.",
    ),
];
