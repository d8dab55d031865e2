//! The properties of transactions, with Kafka's names and defaults.

use super::p;
use crate::config::define::{Definition, Importance, Kind, Valid};
use Importance::{High, Low};
use Kind::{Boolean, Int, Short};
use Valid::{Any, AtLeast};

/// All of them.
pub(super) static TRANSACTIONS: &[Definition] = &[
    p(
        "transaction.max.timeout.ms",
        Int,
        Some("900000"),
        AtLeast(1),
        High,
        "The longest time-out of a transaction that a producer may ask for.",
    ),
    p(
        "transactional.id.expiration.ms",
        Int,
        Some("604800000"),
        AtLeast(1),
        High,
        "A transactional id that was not used for so long, and has no transaction under way, is forgotten.",
    ),
    p(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Int,
        Some("10000"),
        AtLeast(1),
        Low,
        "How often transactions that timed out are looked for; they are aborted.",
    ),
    p(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Int,
        Some("3600000"),
        AtLeast(1),
        Low,
        "How often transactional ids that expired are looked for.",
    ),
    p(
        "transaction.state.log.num.partitions",
        Int,
        Some("50"),
        AtLeast(1),
        High,
        "The partitions of the topic of transactions; not to be changed once it is there.",
    ),
    p(
        "transaction.state.log.replication.factor",
        Short,
        Some("3"),
        AtLeast(1),
        High,
        "The replicas of the topic of transactions; its creation fails while fewer brokers are up.",
    ),
    p(
        "transaction.state.log.min.isr",
        Int,
        Some("2"),
        AtLeast(1),
        High,
        "How many replicas must have a record of the topic of transactions before it counts as written.",
    ),
    p(
        "transaction.state.log.segment.bytes",
        Int,
        Some("104857600"),
        AtLeast(1),
        High,
        "The segment size of the topic of transactions.",
    ),
    p(
        "transaction.partition.verification.enable",
        Boolean,
        Some("true"),
        Any,
        Low,
        "Whether a transactional batch is refused unless its partition was added to the transaction.",
    ),
    p(
        "add.partitions.to.txn.retry.backoff.ms",
        Int,
        Some("20"),
        AtLeast(1),
        High,
        "The pause between attempts to add the partitions of a produce request while the producer's last \
         transaction ends.",
    ),
    p(
        "add.partitions.to.txn.retry.backoff.max.ms",
        Int,
        Some("100"),
        AtLeast(0),
        High,
        "How long a produce request waits for the producer's last transaction to end.",
    ),
];
