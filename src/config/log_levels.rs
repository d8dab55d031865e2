//! How the settings of a topic follow from its overrides and the broker's levels: each topic config has a
//! broker property as its default (Kafka's `LogConfig` and `ServerTopicConfigSynonyms`).

use super::define::Value;
use super::settings::{Levels, Overrides};
use super::{CleanupPolicy, LogConfig, TimestampType, TopicCompression, table::topic};

/// A topic's overrides above the broker's levels.
pub(super) struct LogConfigSource<'a> {
    pub topic: &'a Overrides,
    pub levels: Levels<'a>,
}

impl LogConfigSource<'_> {
    pub fn build(&self) -> LogConfig {
        LogConfig {
            segment_bytes: match self.value("internal.segment.bytes") {
                Value::Integer(bytes) => u32::try_from(bytes).unwrap_or(u32::MAX),
                _ => self.unsigned("segment.bytes"),
            },
            segment_ms: self.integer("segment.ms"),
            segment_jitter_ms: self.integer("segment.jitter.ms"),
            segment_index_bytes: self.unsigned("segment.index.bytes"),
            index_interval_bytes: self.unsigned("index.interval.bytes"),
            retention_bytes: self.integer("retention.bytes"),
            retention_ms: self.integer("retention.ms"),
            file_delete_delay_ms: self.integer("file.delete.delay.ms"),
            flush_messages: self.integer("flush.messages"),
            flush_ms: self.integer("flush.ms"),
            cleanup_policy: self.cleanup_policy(),
            min_cleanable_dirty_ratio: self.ratio("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms: self.integer("min.compaction.lag.ms"),
            max_compaction_lag_ms: self.integer("max.compaction.lag.ms"),
            delete_retention_ms: self.integer("delete.retention.ms"),
            compression: self.compression(),
            max_message_bytes: self.message_bytes_max(),
            max_decompressed_message_bytes: self.unsigned("max.decompressed.message.bytes"),
            decompressed_bytes_max: self.of_broker("kuring.decompression.bytes.max"),
            decompression_ratio_max: self.of_broker("kuring.decompression.ratio.max"),
            batch_records_max: self.of_broker("kuring.batch.records.max"),
            message_timestamp_type: match self.value("message.timestamp.type") {
                Value::String(word) if word == "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            message_timestamp_before_max_ms: self.integer("message.timestamp.before.max.ms"),
            message_timestamp_after_max_ms: self.integer("message.timestamp.after.max.ms"),
            min_insync_replicas: self.level("min.insync.replicas"),
            unclean_leader_election_enable: self.value("unclean.leader.election.enable")
                == Value::Boolean(true),
            preallocate: self.value("preallocate") == Value::Boolean(true),
        }
    }

    pub fn message_bytes_max(&self) -> u32 {
        self.unsigned("max.message.bytes")
    }

    /// The topic's override, else what the broker's levels make of it. Overrides were checked before they
    /// were stored; one that is refused all the same counts as not given.
    pub fn value(&self, name: &str) -> Value {
        let Some(config) = topic::find(name) else { panic!("{name} is not in the table of topic configs") };
        let own = self.topic.get(name).and_then(|text| config.definition.parse(text).ok());
        own.unwrap_or_else(|| broker_value(config, &self.levels))
    }

    fn integer(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Integer(number) => number,
            other => panic!("{name} is {other:?} in the table, not a number"),
        }
    }

    /// The definitions of these names let no negative value pass.
    fn unsigned(&self, name: &str) -> u32 {
        u32::try_from(self.integer(name)).unwrap_or(u32::MAX)
    }

    /// A number that only the broker sets, the same for every topic.
    fn of_broker(&self, name: &str) -> u32 {
        match self.levels.value(name) {
            Value::Integer(number) => u32::try_from(number).unwrap_or(u32::MAX),
            other => panic!("{name} is {other:?} in the table, not a number"),
        }
    }

    fn level(&self, name: &str) -> i32 {
        i32::try_from(self.integer(name)).unwrap_or(i32::MAX)
    }

    fn ratio(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::Double(number) => number,
            other => panic!("{name} is {other:?} in the table, not a number"),
        }
    }

    fn cleanup_policy(&self) -> CleanupPolicy {
        let has = |wanted: &str| match self.value("cleanup.policy") {
            Value::List(words) => words.iter().any(|word| word == wanted),
            _ => false,
        };
        CleanupPolicy { delete: has("delete"), compact: has("compact") }
    }

    fn compression(&self) -> TopicCompression {
        let Value::String(codec) = self.value("compression.type") else { return TopicCompression::Producer };
        match codec.as_str() {
            "uncompressed" => TopicCompression::Uncompressed,
            "gzip" => TopicCompression::Gzip { level: self.level("compression.gzip.level") },
            "snappy" => TopicCompression::Snappy,
            "lz4" => TopicCompression::Lz4 { level: self.level("compression.lz4.level") },
            "zstd" => TopicCompression::Zstd { level: self.level("compression.zstd.level") },
            _ => TopicCompression::Producer,
        }
    }
}

/// What a topic without an override of its own gets from the broker: its synonyms in the order in which
/// they win, in the unit of the topic config.
pub(super) fn broker_value(config: &topic::TopicConfig, levels: &Levels<'_>) -> Value {
    let in_milliseconds = |names: &[(&str, i64)]| {
        let given = names.iter().find_map(|(name, unit_ms)| match levels.value(name) {
            Value::Integer(number) => Some(number.saturating_mul(*unit_ms)),
            _ => None,
        });
        given.unwrap_or(-1)
    };
    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;
    match config.synonym {
        None => config.definition.default_value(),
        Some("log.retention.ms") => {
            let names =
                [("log.retention.ms", 1), ("log.retention.minutes", MINUTE), ("log.retention.hours", HOUR)];
            // Every negative value is "for ever".
            Value::Integer(in_milliseconds(&names).max(-1))
        }
        Some("log.roll.ms") => {
            Value::Integer(in_milliseconds(&[("log.roll.ms", 1), ("log.roll.hours", HOUR)]))
        }
        Some("log.roll.jitter.ms") => {
            Value::Integer(in_milliseconds(&[("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR)]))
        }
        Some("log.flush.interval.ms") => {
            let names = [("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)];
            Value::Integer(in_milliseconds(&names))
        }
        Some(name) => levels.value(name),
    }
}
