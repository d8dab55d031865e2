//! What transactions need of the broker properties (`transaction.*`, `transactional.*`).

use std::time::Duration;

use super::settings::Settings;

/// The settings of the transaction coordinator, of its topic, and of the checks before an append.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionSettings {
    pub timeout_ms_max: i32,
    pub id_expiration_ms: i64,
    /// How often transactions that timed out are looked for.
    pub abort_interval: Duration,
    /// How often ids that expired are looked for.
    pub expiry_interval: Duration,
    pub topic_partitions: i32,
    pub topic_replication_factor: i16,
    pub topic_segment_bytes: i32,
    pub topic_in_sync_replicas_min: i32,
    /// Whether a batch is refused unless its partition was added to the transaction (KIP-890).
    pub verifies_partitions: bool,
    /// Pause between attempts to add a partition while the last transaction ends, and for how long.
    pub add_retry_pause: Duration,
    pub add_retry_max: Duration,
    /// What transactional ids and their transactions may hold.
    pub bytes_max: u64,
}

impl TransactionSettings {
    pub(super) fn new(s: &Settings) -> Self {
        let duration = |name: &str| Duration::from_millis(s.number(name));
        Self {
            timeout_ms_max: s.number("transaction.max.timeout.ms"),
            id_expiration_ms: s.integer("transactional.id.expiration.ms"),
            abort_interval: duration("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            expiry_interval: duration("transaction.remove.expired.transaction.cleanup.interval.ms"),
            topic_partitions: s.number("transaction.state.log.num.partitions"),
            topic_replication_factor: s.number("transaction.state.log.replication.factor"),
            topic_segment_bytes: s.number("transaction.state.log.segment.bytes"),
            topic_in_sync_replicas_min: s.number("transaction.state.log.min.isr"),
            verifies_partitions: s.flag("transaction.partition.verification.enable"),
            add_retry_pause: duration("add.partitions.to.txn.retry.backoff.ms"),
            add_retry_max: duration("add.partitions.to.txn.retry.backoff.max.ms"),
            bytes_max: s.number("kuring.transactions.bytes.max"),
        }
    }
}
