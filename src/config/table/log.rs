//! The broker properties of the log: the defaults of topic configs, and the log's housekeeping.

use super::{CLEANUP_POLICIES, CODECS, TIMESTAMP_TYPES, p};
use crate::config::define::{Definition, Importance, Kind, Valid};
use Importance::{High, Low, Medium};
use Kind::{Boolean, Double, Int, List, Long, String};
use Valid::{Any, AtLeast, Between, BetweenOrMinusOne, OneOf};

/// All of them.
pub(super) static LOG: &[Definition] = &[
    // Defaults of the topic configs.
    p(
        "compression.type",
        String,
        Some("producer"),
        OneOf(CODECS),
        High,
        "How stored batches are compressed; `producer` keeps what came.",
    )
    .dynamic(),
    p(
        "compression.gzip.level",
        Int,
        Some("-1"),
        BetweenOrMinusOne(1, 9),
        Medium,
        "The effort of gzip, where the broker compresses.",
    )
    .dynamic(),
    p(
        "compression.lz4.level",
        Int,
        Some("9"),
        Between(1, 17),
        Medium,
        "The effort of lz4, where the broker compresses.",
    )
    .dynamic(),
    p(
        "compression.zstd.level",
        Int,
        Some("3"),
        Between(-131072, 22),
        Medium,
        "The effort of zstd, where the broker compresses.",
    )
    .dynamic(),
    p(
        "message.max.bytes",
        Int,
        Some("1048588"),
        AtLeast(0),
        High,
        "The largest record batch that is accepted, as it is stored.",
    )
    .dynamic(),
    p(
        "max.decompressed.message.bytes",
        Int,
        Some("2147483639"),
        Between(1, 2147483639),
        Medium,
        "The largest size that a record batch may have once decompressed.",
    )
    .dynamic(),
    p(
        "min.insync.replicas",
        Int,
        Some("1"),
        AtLeast(1),
        High,
        "How many replicas must be in sync for a write with acks=all to be accepted.",
    )
    .dynamic(),
    p(
        "unclean.leader.election.enable",
        Boolean,
        Some("false"),
        Any,
        High,
        "Whether a replica that is behind may become leader when no other is left; records are lost then.",
    )
    .dynamic(),
    p(
        "log.cleanup.policy",
        List,
        Some("delete"),
        OneOf(CLEANUP_POLICIES),
        Medium,
        "What becomes of old records: `delete` by age and size, `compact` by key, or both.",
    )
    .dynamic(),
    p("log.retention.ms", Long, None, Any, High, "How long records are kept, in milliseconds; -1 for ever.")
        .dynamic(),
    p(
        "log.retention.minutes",
        Int,
        None,
        Any,
        High,
        "How long records are kept, in minutes; log.retention.ms wins.",
    ),
    p(
        "log.retention.hours",
        Int,
        Some("168"),
        Any,
        High,
        "How long records are kept, in hours; log.retention.ms and log.retention.minutes win.",
    ),
    p(
        "log.retention.bytes",
        Long,
        Some("-1"),
        Any,
        High,
        "How large a partition may become before its oldest segments go; -1 without limit.",
    )
    .dynamic(),
    p(
        "log.segment.bytes",
        Int,
        Some("1073741824"),
        AtLeast(1048576),
        High,
        "The size at which a new segment file is started.",
    )
    .dynamic(),
    p("log.roll.ms", Long, None, Any, High, "The age at which a new segment is started, in milliseconds.")
        .dynamic(),
    p(
        "log.roll.hours",
        Int,
        Some("168"),
        AtLeast(1),
        High,
        "The age at which a new segment is started, in hours; log.roll.ms wins.",
    ),
    p(
        "log.roll.jitter.ms",
        Long,
        None,
        Any,
        High,
        "At most so much is taken off log.roll.ms at random, so that segments do not all roll at once.",
    )
    .dynamic(),
    p(
        "log.roll.jitter.hours",
        Int,
        Some("0"),
        AtLeast(0),
        High,
        "The same in hours; log.roll.jitter.ms wins.",
    ),
    p(
        "log.index.size.max.bytes",
        Int,
        Some("10485760"),
        AtLeast(4),
        Medium,
        "The size at which an offset index is full and a new segment is started.",
    )
    .dynamic(),
    p(
        "log.index.interval.bytes",
        Int,
        Some("4096"),
        AtLeast(0),
        Medium,
        "How many bytes of records lie between two entries of the index.",
    )
    .dynamic(),
    p(
        "log.segment.delete.delay.ms",
        Long,
        Some("60000"),
        AtLeast(0),
        High,
        "How long a deleted segment's file stays before it is removed.",
    )
    .dynamic(),
    p(
        "log.flush.interval.messages",
        Long,
        Some("9223372036854775807"),
        AtLeast(1),
        High,
        "After so many records a partition is flushed to the disk.",
    )
    .dynamic(),
    p(
        "log.flush.interval.ms",
        Long,
        None,
        Any,
        High,
        "After so long an unflushed partition is flushed to the disk; log.flush.scheduler.interval.ms if \
         not set.",
    )
    .dynamic(),
    p(
        "log.preallocate",
        Boolean,
        Some("false"),
        Any,
        Medium,
        "Whether a new segment's file gets its whole size at once.",
    )
    .dynamic(),
    p(
        "log.message.timestamp.type",
        String,
        Some("CreateTime"),
        OneOf(TIMESTAMP_TYPES),
        Medium,
        "Whose clock stamps records: the producer's or the broker's.",
    )
    .dynamic(),
    p(
        "log.message.timestamp.before.max.ms",
        Long,
        Some("9223372036854775807"),
        AtLeast(0),
        Medium,
        "How far a record's timestamp may lie in the past.",
    )
    .dynamic(),
    p(
        "log.message.timestamp.after.max.ms",
        Long,
        Some("3600000"),
        AtLeast(0),
        Medium,
        "How far a record's timestamp may lie in the future.",
    )
    .dynamic(),
    p(
        "log.cleaner.delete.retention.ms",
        Long,
        Some("86400000"),
        AtLeast(0),
        Medium,
        "How long a compacted topic keeps tombstones.",
    )
    .dynamic(),
    p(
        "log.cleaner.min.compaction.lag.ms",
        Long,
        Some("0"),
        AtLeast(0),
        Medium,
        "A record younger than this is not compacted away.",
    )
    .dynamic(),
    p(
        "log.cleaner.max.compaction.lag.ms",
        Long,
        Some("9223372036854775807"),
        AtLeast(1),
        Medium,
        "A record older than this is compacted whatever the dirty ratio.",
    )
    .dynamic(),
    p(
        "log.cleaner.min.cleanable.ratio",
        Double,
        Some("0.5"),
        Between(0, 1),
        Medium,
        "The share of uncompacted bytes at which compaction starts.",
    )
    .dynamic(),
    // The cleaner.
    p(
        "log.cleaner.enable",
        Boolean,
        Some("true"),
        Any,
        Medium,
        "Whether compacted topics are compacted; without it they grow for ever, also the one of committed \
         offsets.",
    ),
    p(
        "log.cleaner.threads",
        Int,
        Some("1"),
        AtLeast(0),
        Medium,
        "How many partitions are compacted at the same time, each on a thread of its own; 64 at most.",
    )
    .dynamic(),
    p(
        "log.cleaner.io.max.bytes.per.second",
        Double,
        Some("1.7976931348623157E308"),
        Any,
        Medium,
        "How many bytes compaction reads and writes in a second, all its threads together.",
    )
    .dynamic(),
    p(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        Long,
        Some("9223372036854775807"),
        AtLeast(0),
        Medium,
        "How many bytes moves of replicas between the log directories of this broker copy in a second, all \
         together. They copy a mebibyte at once.",
    )
    .dynamic(),
    p(
        "log.cleaner.dedupe.buffer.size",
        Long,
        Some("134217728"),
        AtLeast(1 << 20),
        Medium,
        "The memory for the keys of the part of a log that is being compacted, all threads together; it is \
         taken while one runs, and no more of it than there are records.",
    )
    .dynamic(),
    p(
        "log.cleaner.io.buffer.size",
        Int,
        Some("524288"),
        AtLeast(0),
        Medium,
        "The memory for reading and writing, all threads together; half is for each.",
    )
    .dynamic(),
    p(
        "log.cleaner.io.buffer.load.factor",
        Double,
        Some("0.9"),
        Between(0, 1),
        Medium,
        "How full the memory for the keys may become: more keys per round, slower to look up.",
    )
    .dynamic(),
    p(
        "log.cleaner.backoff.ms",
        Long,
        Some("15000"),
        AtLeast(0),
        Medium,
        "How long compaction waits before it looks again when no log was dirty enough.",
    )
    .dynamic(),
    p(
        "log.local.retention.ms",
        Long,
        Some("-2"),
        AtLeast(-2),
        Medium,
        "Belongs to tiered storage, which kuring does not have; without effect.",
    ),
    p(
        "log.local.retention.bytes",
        Long,
        Some("-2"),
        AtLeast(-2),
        Medium,
        "Belongs to tiered storage, which kuring does not have; without effect.",
    ),
    p(
        "log.remote.copy.lag.ms",
        Long,
        Some("0"),
        AtLeast(-1),
        Medium,
        "Belongs to tiered storage, which kuring does not have; without effect.",
    ),
    p(
        "log.remote.copy.lag.bytes",
        Long,
        Some("-1"),
        AtLeast(-1),
        Medium,
        "Belongs to tiered storage, which kuring does not have; without effect.",
    ),
    // The log's housekeeping.
    p(
        "log.retention.check.interval.ms",
        Long,
        Some("300000"),
        AtLeast(1),
        Medium,
        "How often segments are looked at for retention.",
    ),
    p(
        "log.initial.task.delay.ms",
        Long,
        Some("30000"),
        AtLeast(0),
        Low,
        "How long after the start the housekeeping of logs begins.",
    )
    .internal(),
    p(
        "log.flush.scheduler.interval.ms",
        Long,
        Some("9223372036854775807"),
        Any,
        High,
        "What log.flush.interval.ms is if that is not set; kuring looks for what is due every few seconds.",
    ),
    p(
        "log.flush.offset.checkpoint.interval.ms",
        Int,
        Some("60000"),
        AtLeast(0),
        High,
        "How often the recovery points are written down.",
    ),
    p(
        "log.flush.start.offset.checkpoint.interval.ms",
        Int,
        Some("60000"),
        AtLeast(0),
        High,
        "How often the log start offsets are written down.",
    ),
    p(
        "replica.high.watermark.checkpoint.interval.ms",
        Long,
        Some("5000"),
        Any,
        High,
        "How often the high watermarks are written down.",
    ),
    p(
        "producer.id.expiration.ms",
        Int,
        Some("86400000"),
        AtLeast(1),
        Low,
        "How long a partition remembers a producer that is silent.",
    ),
    p(
        "producer.id.expiration.check.interval.ms",
        Int,
        Some("600000"),
        AtLeast(1),
        Low,
        "How often partitions look for such producers.",
    )
    .internal(),
];
