//! The properties of a node among others. What is made of them: [`super::super::cluster`].

use super::p;
use crate::config::define::{Definition, Importance, Kind, Valid};
use Importance::{High, Medium};
use Kind::{Boolean, Int, Long, String};
use Valid::{Any, AtLeast, Between};

/// All of them.
pub(super) static CLUSTER: &[Definition] = &[
    p(
        "controller.quorum.auto.join.enable",
        Boolean,
        Some("false"),
        Any,
        High,
        "A controller that has no vote asks for one when it has all of the metadata log. Where voters come and go alone.",
    ),
    p(
        "kuring.peers.secret.file",
        String,
        Some(""),
        Any,
        High,
        "A file that only kuring's user may read, with the secret of all nodes: 32 bytes or more.",
    ),
    p(
        "kuring.peers.plaintext",
        Boolean,
        Some("false"),
        Any,
        High,
        "Nodes believe each other without a secret: everyone in the network is trusted.",
    ),
    p(
        "kuring.controller.clients.plaintext",
        Boolean,
        Some("false"),
        Any,
        High,
        "Kafka's tools (--bootstrap-controller) reach this controller from other machines, too, and nobody asks who they \
         are. Without it they reach it from its own machine or, where kuring.peers.plaintext is set, from everywhere.",
    ),
    p(
        "kuring.quorum.failover.ms",
        Int,
        Some("900"),
        Between(300, 60_000),
        High,
        "A lost controller is replaced within about this time. Less makes more elections by mistake.",
    ),
    p(
        "broker.session.timeout.ms",
        Int,
        Some("9000"),
        AtLeast(1),
        Medium,
        "A broker of a cluster that is not heard of for so long is fenced: others lead.",
    ),
    p(
        "broker.heartbeat.interval.ms",
        Int,
        Some("2000"),
        AtLeast(1),
        Medium,
        "How often a broker of a cluster says that it is there.",
    ),
    p(
        "initial.broker.registration.timeout.ms",
        Int,
        Some("60000"),
        AtLeast(1),
        Medium,
        "How long the start of a broker waits for a controller that takes its registration.",
    ),
    p(
        "replica.lag.time.max.ms",
        Int,
        Some("30000"),
        AtLeast(1),
        High,
        "A follower that has not had all of its leader's records for so long is out of sync.",
    ),
    p(
        "replica.fetch.wait.max.ms",
        Int,
        Some("500"),
        Any,
        High,
        "How long a leader waits for something to send to a follower; at most replica.lag.time.max.ms.",
    ),
    p(
        "auto.leader.rebalance.enable",
        Boolean,
        Some("true"),
        Any,
        High,
        "The controller of a cluster has the first replicas lead again, where others do.",
    ),
    p(
        "leader.imbalance.check.interval.seconds",
        Long,
        Some("300"),
        AtLeast(1),
        High,
        "How often the controller looks for partitions that are not led by their first replicas.",
    ),
    p(
        "unclean.leader.election.interval.ms",
        Long,
        Some("300000"),
        AtLeast(1),
        Medium,
        "How often the controller looks for partitions without a leader where unclean.leader.election.enable is true.",
    ),
];
