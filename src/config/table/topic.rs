//! The topic configs: all of Apache Kafka 4.4's, with the broker property that each takes its default from.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::{CLEANUP_POLICIES, CODECS, TIMESTAMP_TYPES};
use crate::config::define::{Definition, Importance, Kind, Update, Valid};
use Kind::{Boolean, Double, Int, List, Long, String};
use Valid::{Any, AtLeast, Between, BetweenOrMinusOne, OneOf, ThrottledReplicas};

/// A topic config and where its default comes from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TopicConfig {
    pub definition: Definition,
    /// The broker property that holds the default of all topics; the first of its own synonyms.
    pub synonym: Option<&'static str>,
    pub support: Support,
}

/// What kuring does with the config.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Support {
    /// As Kafka.
    Full,
    /// Every value is taken and changes nothing, as in a Kafka without the feature it belongs to.
    NoEffect,
    /// Only the default may be set: another value would promise what kuring does not keep. The text says
    /// why.
    DefaultOnly(&'static str),
}

/// The config of this name.
pub fn find(name: &str) -> Option<&'static TopicConfig> {
    BY_NAME.get(name).copied()
}

static BY_NAME: LazyLock<HashMap<&'static str, &'static TopicConfig>> =
    LazyLock::new(|| TOPIC.iter().map(|config| (config.definition.name, config)).collect());

const TIERED: &str = "Belongs to tiered storage, which kuring does not have; without effect.";

/// Every topic config.
pub static TOPIC: &[TopicConfig] = &[
    t(
        "cleanup.policy",
        List,
        "delete",
        OneOf(CLEANUP_POLICIES),
        "What becomes of old records: `delete` removes them by age and size, `compact` keeps the last one \
         of each key; both together do both.",
    )
    .like("log.cleanup.policy"),
    t(
        "compression.type",
        String,
        "producer",
        OneOf(CODECS),
        "How stored batches are compressed; `producer` keeps what the producer sent.",
    )
    .like("compression.type"),
    t(
        "compression.gzip.level",
        Int,
        "-1",
        BetweenOrMinusOne(1, 9),
        "The effort of gzip when compression.type is gzip; -1 is the codec's default.",
    )
    .like("compression.gzip.level"),
    t("compression.lz4.level", Int, "9", Between(1, 17), "The effort of lz4 when compression.type is lz4.")
        .like("compression.lz4.level"),
    t(
        "compression.zstd.level",
        Int,
        "3",
        Between(-131072, 22),
        "The effort of zstd when compression.type is zstd.",
    )
    .like("compression.zstd.level"),
    t(
        "delete.retention.ms",
        Long,
        "86400000",
        AtLeast(0),
        "How long a compacted topic keeps tombstones, so that a reader from the start sees them.",
    )
    .like("log.cleaner.delete.retention.ms"),
    t(
        "errors.deadletterqueue.group.enable",
        Boolean,
        "false",
        Any,
        "Whether share groups may write their dead letters to this topic.",
    )
    .default_only("errors.deadletterqueue.group.enable cannot be enabled: this broker has no share groups"),
    t(
        "file.delete.delay.ms",
        Long,
        "60000",
        AtLeast(0),
        "How long a deleted segment's file stays before it is removed.",
    )
    .like("log.segment.delete.delay.ms"),
    t(
        "flush.messages",
        Long,
        "9223372036854775807",
        AtLeast(1),
        "After so many records a partition is flushed to the disk.",
    )
    .like("log.flush.interval.messages"),
    t(
        "flush.ms",
        Long,
        "9223372036854775807",
        AtLeast(0),
        "After so long unflushed records are flushed to the disk.",
    )
    .like("log.flush.interval.ms"),
    t(
        "follower.replication.throttled.replicas",
        List,
        "",
        ThrottledReplicas,
        "The replicas whose replication is throttled on the follower's side, as partition:broker pairs or *.",
    ),
    t(
        "index.interval.bytes",
        Int,
        "4096",
        AtLeast(0),
        "How many bytes of records lie between two entries of the index.",
    )
    .like("log.index.interval.bytes"),
    TopicConfig {
        definition: Definition {
            name: "internal.segment.bytes",
            kind: Int,
            default: None,
            valid: AtLeast(1),
            importance: Importance::Low,
            update: Update::ClusterWide,
            internal: true,
            documentation: "For tests: a segment size below the least that segment.bytes takes.",
        },
        synonym: None,
        support: Support::Full,
    },
    t(
        "leader.replication.throttled.replicas",
        List,
        "",
        ThrottledReplicas,
        "The replicas whose replication is throttled on the leader's side, as partition:broker pairs or *.",
    ),
    t("local.retention.bytes", Long, "-2", AtLeast(-2), TIERED).like("log.local.retention.bytes").no_effect(),
    t("local.retention.ms", Long, "-2", AtLeast(-2), TIERED).like("log.local.retention.ms").no_effect(),
    t(
        "max.compaction.lag.ms",
        Long,
        "9223372036854775807",
        AtLeast(1),
        "A record older than this is compacted whatever the dirty ratio.",
    )
    .like("log.cleaner.max.compaction.lag.ms"),
    t(
        "max.decompressed.message.bytes",
        Int,
        "2147483639",
        Between(1, 2147483639),
        "The largest size that a record batch may have once decompressed.",
    )
    .like("max.decompressed.message.bytes"),
    t(
        "max.message.bytes",
        Int,
        "1048588",
        AtLeast(0),
        "The largest record batch that is accepted, as it is stored.",
    )
    .like("message.max.bytes"),
    t(
        "message.timestamp.after.max.ms",
        Long,
        "3600000",
        AtLeast(0),
        "How far a record's timestamp may lie in the future; without meaning for LogAppendTime.",
    )
    .like("log.message.timestamp.after.max.ms"),
    t(
        "message.timestamp.before.max.ms",
        Long,
        "9223372036854775807",
        AtLeast(0),
        "How far a record's timestamp may lie in the past; without meaning for LogAppendTime.",
    )
    .like("log.message.timestamp.before.max.ms"),
    t(
        "message.timestamp.type",
        String,
        "CreateTime",
        OneOf(TIMESTAMP_TYPES),
        "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).",
    )
    .like("log.message.timestamp.type"),
    t(
        "min.cleanable.dirty.ratio",
        Double,
        "0.5",
        Between(0, 1),
        "The share of uncompacted bytes at which compaction starts.",
    )
    .like("log.cleaner.min.cleanable.ratio"),
    t("min.compaction.lag.ms", Long, "0", AtLeast(0), "A record younger than this is not compacted away.")
        .like("log.cleaner.min.compaction.lag.ms"),
    t(
        "min.insync.replicas",
        Int,
        "1",
        AtLeast(1),
        "How many replicas must be in sync for a write with acks=all to be accepted.",
    )
    .like("min.insync.replicas"),
    t("preallocate", Boolean, "false", Any, "Whether a new segment's file gets its whole size at once.")
        .like("log.preallocate"),
    t("remote.copy.lag.bytes", Long, "-1", AtLeast(-1), TIERED).like("log.remote.copy.lag.bytes").no_effect(),
    t("remote.copy.lag.ms", Long, "0", AtLeast(-1), TIERED).like("log.remote.copy.lag.ms").no_effect(),
    t("remote.log.copy.disable", Boolean, "false", Any, TIERED).no_effect(),
    t("remote.log.delete.on.disable", Boolean, "false", Any, TIERED).no_effect(),
    t("remote.storage.enable", Boolean, "false", Any, "Whether segments are copied to tiered storage.")
        .default_only(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote \
         log storage.",
        ),
    t(
        "retention.bytes",
        Long,
        "-1",
        Any,
        "How large a partition may become before its oldest segments go; -1 without limit.",
    )
    .like("log.retention.bytes"),
    t("retention.ms", Long, "604800000", AtLeast(-1), "How long records are kept; -1 for ever.")
        .like("log.retention.ms"),
    t(
        "segment.bytes",
        Int,
        "1073741824",
        AtLeast(1048576),
        "The size at which a new segment file is started.",
    )
    .like("log.segment.bytes"),
    t(
        "segment.index.bytes",
        Int,
        "10485760",
        AtLeast(4),
        "The size at which an offset index is full and a new segment is started.",
    )
    .like("log.index.size.max.bytes"),
    t(
        "segment.jitter.ms",
        Long,
        "0",
        AtLeast(0),
        "At most so much is taken off segment.ms at random, so that segments do not all roll at once.",
    )
    .like("log.roll.jitter.ms"),
    t(
        "segment.ms",
        Long,
        "604800000",
        AtLeast(1),
        "The age at which a new segment is started even if it is not full.",
    )
    .like("log.roll.ms"),
    t(
        "unclean.leader.election.enable",
        Boolean,
        "false",
        Any,
        "Whether a replica that is behind may become leader when no other is left; records are lost then.",
    )
    .like("unclean.leader.election.enable"),
];

const fn t(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    valid: Valid,
    documentation: &'static str,
) -> TopicConfig {
    TopicConfig {
        definition: Definition {
            name,
            kind,
            default: Some(default),
            valid,
            importance: Importance::Medium,
            update: Update::ClusterWide,
            internal: false,
            documentation,
        },
        synonym: None,
        support: Support::Full,
    }
}

impl TopicConfig {
    const fn like(mut self, synonym: &'static str) -> Self {
        self.synonym = Some(synonym);
        self
    }

    const fn no_effect(mut self) -> Self {
        self.support = Support::NoEffect;
        self
    }

    const fn default_only(mut self, reason: &'static str) -> Self {
        self.support = Support::DefaultOnly(reason);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid_and_agrees_with_the_brokers() {
        for config in TOPIC {
            let own = config.definition.default_value();
            if let Some(synonym) = config.synonym {
                let broker = super::super::find(synonym).unwrap();
                assert!(
                    broker.default.is_none() || broker.default_value() == own,
                    "{}",
                    config.definition.name
                );
            }
        }
    }

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(
            TOPIC.is_sorted_by_key(|config| config
                .definition
                .name
                .replace("compression.type", "compression.a"))
        );
    }
}
