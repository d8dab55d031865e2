//! The effective settings of one topic: Kafka's topic configs as a checked struct.

/// What happens to old segments (`cleanup.policy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanupPolicy {
    pub delete: bool,
    pub compact: bool,
}

/// How stored batches are compressed (`compression.type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopicCompression {
    /// `producer`: keep what the client sent.
    Producer,
    Uncompressed,
    Gzip {
        level: i32,
    },
    Snappy,
    Lz4 {
        level: i32,
    },
    Zstd {
        level: i32,
    },
}

/// Which clock stamps records (`message.timestamp.type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimestampType {
    CreateTime,
    LogAppendTime,
}

/// What compaction may take, all its threads together (`log.cleaner.*`). All but `enabled` and `cpu_percent` are
/// dynamic.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CleanerSettings {
    pub enabled: bool,
    /// Partitions cleaned at the same time.
    pub threads: usize,
    /// Read and written.
    pub bytes_per_second: f64,
    pub map_bytes: u64,
    pub map_load_factor: f64,
    pub buffer_bytes: u64,
    /// Before it looks again when nothing was to be cleaned.
    pub backoff_ms: u64,
    /// Of a core, for each thread.
    pub cpu_percent: u64,
}

/// Every setting of a topic that the log and the partition act on. Sizes in bytes, times in milliseconds;
/// -1 is "no limit" where Kafka says so.
#[derive(Clone, PartialEq, Debug)]
pub struct LogConfig {
    pub segment_bytes: u32,
    pub segment_ms: i64,
    pub segment_jitter_ms: i64,
    pub segment_index_bytes: u32,
    pub index_interval_bytes: u32,
    pub retention_bytes: i64,
    pub retention_ms: i64,
    pub file_delete_delay_ms: i64,
    pub flush_messages: i64,
    pub flush_ms: i64,
    pub cleanup_policy: CleanupPolicy,
    pub min_cleanable_dirty_ratio: f64,
    pub min_compaction_lag_ms: i64,
    pub max_compaction_lag_ms: i64,
    pub delete_retention_ms: i64,
    pub compression: TopicCompression,
    pub max_message_bytes: u32,
    /// The most that a batch may hold once decompressed.
    pub max_decompressed_message_bytes: u32,
    /// Bounds on what one batch of a client may make the broker do: the bytes it decompresses to, how many
    /// times its own size that may be, its records.
    pub decompressed_bytes_max: u32,
    pub decompression_ratio_max: u32,
    pub batch_records_max: u32,
    pub message_timestamp_type: TimestampType,
    pub message_timestamp_before_max_ms: i64,
    pub message_timestamp_after_max_ms: i64,
    pub min_insync_replicas: i32,
    pub unclean_leader_election_enable: bool,
    pub preallocate: bool,
}

/// Kafka 4.x's defaults.
impl Default for LogConfig {
    fn default() -> Self {
        const DAY_MS: i64 = 24 * 60 * 60 * 1000;
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 7 * DAY_MS,
            segment_jitter_ms: 0,
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            retention_bytes: -1,
            retention_ms: 7 * DAY_MS,
            file_delete_delay_ms: 60_000,
            flush_messages: i64::MAX,
            flush_ms: i64::MAX,
            cleanup_policy: CleanupPolicy { delete: true, compact: false },
            min_cleanable_dirty_ratio: 0.5,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            delete_retention_ms: DAY_MS,
            compression: TopicCompression::Producer,
            max_message_bytes: 1_048_588,
            max_decompressed_message_bytes: 2_147_483_639,
            decompressed_bytes_max: 256 << 20,
            decompression_ratio_max: 256,
            batch_records_max: 4 << 20,
            message_timestamp_type: TimestampType::CreateTime,
            message_timestamp_before_max_ms: i64::MAX,
            message_timestamp_after_max_ms: 60 * 60 * 1000,
            min_insync_replicas: 1,
            unclean_leader_election_enable: false,
            preallocate: false,
        }
    }
}
