//! The broker properties that kuring has: Kafka's own names, types, defaults and ranges (Apache Kafka
//! 4.4), and kuring's own with the prefix `kuring.`. What is not here kuring does not have; see
//! [`super::absent`] for what becomes of such a property.

use super::define::{Definition, Importance, Kind, Update, Valid};
use Importance::{High, Low, Medium};
use Kind::{Boolean, Double, Int, List, Long, Short, String};
use Valid::{Any, AtLeast, Between, BetweenOrMinusOne, NotEmpty, OneOf};

pub(super) const CODECS: &[&str] = &["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"];
pub(super) const CLEANUP_POLICIES: &[&str] = &["compact", "delete"];
pub(super) const TIMESTAMP_TYPES: &[&str] = &["CreateTime", "LogAppendTime"];
const PROTOCOLS: &[&str] = &["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"];
const PROTOCOL_MAP: &str = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT";

/// The definition of a broker property, if kuring has it.
pub fn find(name: &str) -> Option<&'static Definition> {
    BROKER.iter().find(|definition| definition.name == name)
}

/// The other names under which a value may be given, in the order in which they win, the most precise
/// first. A name without synonyms stands alone.
pub fn synonyms(name: &'static str) -> &'static [&'static str] {
    match name {
        "log.retention.ms" | "log.retention.minutes" | "log.retention.hours" => {
            &["log.retention.ms", "log.retention.minutes", "log.retention.hours"]
        }
        "log.roll.ms" | "log.roll.hours" => &["log.roll.ms", "log.roll.hours"],
        "log.roll.jitter.ms" | "log.roll.jitter.hours" => &["log.roll.jitter.ms", "log.roll.jitter.hours"],
        // It falls back on the scheduler's interval, not the other way round.
        "log.flush.interval.ms" => &["log.flush.interval.ms", "log.flush.scheduler.interval.ms"],
        _ => match find(name) {
            Some(definition) => std::slice::from_ref(&definition.name),
            None => &[],
        },
    }
}

/// Every broker property that kuring has.
pub static BROKER: &[Definition] = &[
    // The node.
    p("node.id", Int, None, AtLeast(0), High, "The number of this node, unique in the cluster."),
    p("broker.id", Int, Some("-1"), Any, High, "The former name of node.id; if both are set they must agree."),
    p(
        "process.roles",
        List,
        Some("broker,controller"),
        OneOf(&["broker", "controller"]),
        High,
        "What this process is. kuring runs both roles in one process; a node with only one of them needs a \
         cluster, which this version does not form.",
    ),
    p("broker.rack", String, None, Any, Medium, "Where the machine stands; replicas of a partition avoid sharing it."),
    p(
        "controller.listener.names",
        List,
        Some(""),
        Any,
        High,
        "The listeners that are for controllers. Their traffic does not exist on a single node, so kuring does \
         not open them yet.",
    ),
    p(
        "controller.quorum.voters",
        List,
        Some(""),
        Any,
        High,
        "The controllers as id@host:port. For the present it may name this node only.",
    ),
    p(
        "controller.quorum.bootstrap.servers",
        List,
        Some(""),
        Any,
        High,
        "Where controllers are found, as host:port. For the present it may name this node only.",
    ),
    p("log.dir", List, Some("/tmp/kafka-logs"), NotEmpty, High, "Where data is kept when log.dirs is not set."),
    p(
        "log.dirs",
        List,
        None,
        NotEmpty,
        High,
        "The directories of the data, best one per disk. A new partition goes to the directory with the fewest.",
    ),
    p("metadata.log.dir", String, None, Any, High, "Where the metadata log is; the first of log.dirs if not set."),
    // Listeners and sockets.
    p(
        "listeners",
        List,
        Some("PLAINTEXT://:9092"),
        NotEmpty,
        High,
        "The addresses to listen on, as NAME://host:port. No host means every interface.",
    ),
    p(
        "advertised.listeners",
        List,
        None,
        NotEmpty,
        High,
        "The addresses that clients are told to connect to, as NAME://host:port; those of listeners if not set.",
    ),
    p(
        "listener.security.protocol.map",
        String,
        Some(PROTOCOL_MAP),
        Any,
        Low,
        "The protocol of each listener name, as NAME:PROTOCOL pairs. This version speaks PLAINTEXT only.",
    ),
    p(
        "inter.broker.listener.name",
        String,
        None,
        Any,
        Medium,
        "The listener that other brokers use to reach this one.",
    ),
    p(
        "security.inter.broker.protocol",
        String,
        Some("PLAINTEXT"),
        OneOf(PROTOCOLS),
        Medium,
        "The protocol between brokers, when inter.broker.listener.name is not set.",
    ),
    p(
        "socket.send.buffer.bytes",
        Int,
        Some("102400"),
        Any,
        High,
        "SO_SNDBUF of a connection; -1 leaves it to the system.",
    ),
    p(
        "socket.receive.buffer.bytes",
        Int,
        Some("102400"),
        Any,
        High,
        "SO_RCVBUF of a connection; -1 leaves it to the system.",
    ),
    p(
        "socket.request.max.bytes",
        Int,
        Some("104857600"),
        AtLeast(1),
        High,
        "The largest request; a connection that announces more is closed.",
    ),
    p(
        "socket.listen.backlog.size",
        Int,
        Some("50"),
        AtLeast(1),
        Medium,
        "How many connections may wait to be accepted; the system's somaxconn bounds it.",
    ),
    p(
        "max.connections",
        Int,
        Some("2147483647"),
        AtLeast(0),
        Medium,
        "The most connections of the broker; one above it waits until another ends.",
    )
    .dynamic(),
    p(
        "max.connections.per.ip",
        Int,
        Some("2147483647"),
        AtLeast(0),
        Medium,
        "The most connections of one address; one above it is closed.",
    )
    .dynamic(),
    p(
        "max.connections.per.ip.overrides",
        String,
        Some(""),
        Any,
        Medium,
        "Other limits for some addresses, as address:count pairs.",
    )
    .dynamic(),
    p(
        "max.connection.creation.rate",
        Int,
        Some("2147483647"),
        AtLeast(0),
        Medium,
        "How many connections per second the broker accepts; more of them wait.",
    )
    .dynamic(),
    p(
        "connections.max.idle.ms",
        Long,
        Some("600000"),
        Any,
        Medium,
        "A connection that is silent for so long is closed; -1 never.",
    ),
    p(
        "fetch.max.bytes",
        Int,
        Some("57671680"),
        AtLeast(1024),
        Medium,
        "The most bytes of a fetch response, whatever the client asks for; a first batch above it is still sent.",
    ),
    p(
        "max.incremental.fetch.session.cache.slots",
        Int,
        Some("1000"),
        AtLeast(0),
        Medium,
        "How many incremental fetch sessions (KIP-227) the broker remembers.",
    ),
    p(
        "max.request.partition.size.limit",
        Int,
        Some("2000"),
        AtLeast(1),
        Medium,
        "The most partitions in one DescribeTopicPartitions response.",
    ),
    // Topics.
    p(
        "auto.create.topics.enable",
        Boolean,
        Some("true"),
        Any,
        High,
        "Whether a topic that a client asks for and that is not there is created.",
    ),
    p("delete.topic.enable", Boolean, Some("true"), Any, High, "Whether topics can be deleted."),
    p("num.partitions", Int, Some("1"), AtLeast(1), Medium, "The partitions of a topic that is created without a number."),
    p(
        "default.replication.factor",
        Int,
        Some("1"),
        Any,
        Medium,
        "The replicas of a topic that is created without a number.",
    ),
    // Defaults of the topic configs.
    p("compression.type", String, Some("producer"), OneOf(CODECS), High, "How stored batches are compressed; `producer` keeps what came.")
        .dynamic(),
    p("compression.gzip.level", Int, Some("-1"), BetweenOrMinusOne(1, 9), Medium, "The effort of gzip, where the broker compresses.")
        .dynamic(),
    p("compression.lz4.level", Int, Some("9"), Between(1, 17), Medium, "The effort of lz4, where the broker compresses.")
        .dynamic(),
    p("compression.zstd.level", Int, Some("3"), Between(-131072, 22), Medium, "The effort of zstd, where the broker compresses.")
        .dynamic(),
    p("message.max.bytes", Int, Some("1048588"), AtLeast(0), High, "The largest record batch that is accepted, as it is stored.")
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
    p("log.cleanup.policy", List, Some("delete"), OneOf(CLEANUP_POLICIES), Medium, "What becomes of old records: `delete` by age and size, `compact` by key, or both.")
        .dynamic(),
    p("log.retention.ms", Long, None, Any, High, "How long records are kept, in milliseconds; -1 for ever.").dynamic(),
    p("log.retention.minutes", Int, None, Any, High, "How long records are kept, in minutes; log.retention.ms wins."),
    p(
        "log.retention.hours",
        Int,
        Some("168"),
        Any,
        High,
        "How long records are kept, in hours; log.retention.ms and log.retention.minutes win.",
    ),
    p("log.retention.bytes", Long, Some("-1"), Any, High, "How large a partition may become before its oldest segments go; -1 without limit.")
        .dynamic(),
    p("log.segment.bytes", Int, Some("1073741824"), AtLeast(1048576), High, "The size at which a new segment file is started.")
        .dynamic(),
    p("log.roll.ms", Long, None, Any, High, "The age at which a new segment is started, in milliseconds.").dynamic(),
    p("log.roll.hours", Int, Some("168"), AtLeast(1), High, "The age at which a new segment is started, in hours; log.roll.ms wins."),
    p("log.roll.jitter.ms", Long, None, Any, High, "At most so much is taken off log.roll.ms at random, so that segments do not all roll at once.")
        .dynamic(),
    p("log.roll.jitter.hours", Int, Some("0"), AtLeast(0), High, "The same in hours; log.roll.jitter.ms wins."),
    p("log.index.size.max.bytes", Int, Some("10485760"), AtLeast(4), Medium, "The size at which an offset index is full and a new segment is started.")
        .dynamic(),
    p("log.index.interval.bytes", Int, Some("4096"), AtLeast(0), Medium, "How many bytes of records lie between two entries of the index.")
        .dynamic(),
    p("log.segment.delete.delay.ms", Long, Some("60000"), AtLeast(0), High, "How long a deleted segment's file stays before it is removed.")
        .dynamic(),
    p("log.flush.interval.messages", Long, Some("9223372036854775807"), AtLeast(1), High, "After so many records a partition is flushed to the disk.")
        .dynamic(),
    p("log.flush.interval.ms", Long, None, Any, High, "After so long an unflushed partition is flushed to the disk; log.flush.scheduler.interval.ms if not set.")
        .dynamic(),
    p("log.preallocate", Boolean, Some("false"), Any, Medium, "Whether a new segment's file gets its whole size at once.").dynamic(),
    p("log.message.timestamp.type", String, Some("CreateTime"), OneOf(TIMESTAMP_TYPES), Medium, "Whose clock stamps records: the producer's or the broker's.")
        .dynamic(),
    p("log.message.timestamp.before.max.ms", Long, Some("9223372036854775807"), AtLeast(0), Medium, "How far a record's timestamp may lie in the past.")
        .dynamic(),
    p("log.message.timestamp.after.max.ms", Long, Some("3600000"), AtLeast(0), Medium, "How far a record's timestamp may lie in the future.")
        .dynamic(),
    p("log.cleaner.delete.retention.ms", Long, Some("86400000"), AtLeast(0), Medium, "How long a compacted topic keeps tombstones.").dynamic(),
    p("log.cleaner.min.compaction.lag.ms", Long, Some("0"), AtLeast(0), Medium, "A record younger than this is not compacted away.").dynamic(),
    p("log.cleaner.max.compaction.lag.ms", Long, Some("9223372036854775807"), AtLeast(1), Medium, "A record older than this is compacted whatever the dirty ratio.")
        .dynamic(),
    p("log.cleaner.min.cleanable.ratio", Double, Some("0.5"), Between(0, 1), Medium, "The share of uncompacted bytes at which compaction starts.")
        .dynamic(),
    p("log.local.retention.ms", Long, Some("-2"), AtLeast(-2), Medium, "Belongs to tiered storage, which kuring does not have; without effect."),
    p("log.local.retention.bytes", Long, Some("-2"), AtLeast(-2), Medium, "Belongs to tiered storage, which kuring does not have; without effect."),
    p("log.remote.copy.lag.ms", Long, Some("0"), AtLeast(-1), Medium, "Belongs to tiered storage, which kuring does not have; without effect."),
    p("log.remote.copy.lag.bytes", Long, Some("-1"), AtLeast(-1), Medium, "Belongs to tiered storage, which kuring does not have; without effect."),
    // The log's housekeeping.
    p("log.retention.check.interval.ms", Long, Some("300000"), AtLeast(1), Medium, "How often segments are looked at for retention."),
    p("log.initial.task.delay.ms", Long, Some("30000"), AtLeast(0), Low, "How long after the start the housekeeping of logs begins.").internal(),
    p("log.flush.scheduler.interval.ms", Long, Some("9223372036854775807"), Any, High, "How often partitions are looked at for flush.ms."),
    p("log.flush.offset.checkpoint.interval.ms", Int, Some("60000"), AtLeast(0), High, "How often the recovery points are written down."),
    p("log.flush.start.offset.checkpoint.interval.ms", Int, Some("60000"), AtLeast(0), High, "How often the log start offsets are written down."),
    p("replica.high.watermark.checkpoint.interval.ms", Long, Some("5000"), Any, High, "How often the high watermarks are written down."),
    p("producer.id.expiration.ms", Int, Some("86400000"), AtLeast(1), Low, "How long a partition remembers a producer that is silent."),
    p("producer.id.expiration.check.interval.ms", Int, Some("600000"), AtLeast(1), Low, "How often partitions look for such producers.").internal(),
    // Groups.
    p("group.min.session.timeout.ms", Int, Some("6000"), Any, Medium, "The shortest session time-out that a member of a group may ask for."),
    p("group.max.session.timeout.ms", Int, Some("1800000"), Any, Medium, "The longest session time-out that a member of a group may ask for."),
    p("group.initial.rebalance.delay.ms", Int, Some("3000"), Any, Medium, "How long the first rebalance of an empty group waits for more members."),
    p("group.max.size", Int, Some("2147483647"), AtLeast(1), Medium, "The most members of a group."),
    p("offset.metadata.max.bytes", Int, Some("4096"), Any, High, "The longest metadata text of a committed offset."),
    p("offsets.commit.timeout.ms", Int, Some("5000"), AtLeast(1), High, "How long a commit waits until the offsets topic has it."),
    p("offsets.retention.minutes", Int, Some("10080"), AtLeast(1), High, "How long the offsets of an empty group are kept."),
    p("offsets.retention.check.interval.ms", Long, Some("600000"), AtLeast(1), High, "How often expired offsets are looked for."),
    p("offsets.topic.num.partitions", Int, Some("50"), AtLeast(1), High, "The partitions of the offsets topic; not to be changed once it is there."),
    p("offsets.topic.replication.factor", Short, Some("3"), AtLeast(1), High, "The replicas of the offsets topic; its creation fails while fewer brokers are up."),
    p("offsets.topic.segment.bytes", Int, Some("104857600"), AtLeast(1), High, "The segment size of the offsets topic."),
    // Kuring's own.
    p("kuring.shards", Int, Some("0"), Between(0, 1024), High, "How many shards (threads, one per core) serve; 0 for one per core that the process may use."),
    p("kuring.cpus", String, Some(""), Any, Medium, "The cores to use, as in 0-3,8; empty for those that the process may use. For nodes that share a host."),
    p("kuring.durability", String, Some("page-cache"), OneOf(&["page-cache", "fsync"]), High, "When a write is acknowledged: in the page cache, as Kafka does, or after it is synced to the disk."),
    p("kuring.unflushed.bytes", Long, Some("1073741824"), AtLeast(1 << 20), Medium, "How many written bytes per data directory may wait to be synced."),
    p("kuring.file.threads", Int, Some("4"), Between(1, 256), Medium, "The threads for file operations that may wait for the disk."),
    p("kuring.open.files", Int, Some("0"), AtLeast(0), Low, "How many segment files stay open; 0 for as many as the limit on open files leaves beside connections."),
    p("kuring.memory.receive.bytes", Long, Some("134217728"), AtLeast(4 << 20), Medium, "How many bytes of received requests a shard holds before it stops reading."),
    p("kuring.memory.connection.bytes", Long, Some("16777216"), AtLeast(1 << 20), Medium, "How many bytes of received requests one connection may hold before it is not read; a single larger request still passes."),
    p("kuring.watchdog.stall.ms", Long, Some("1000"), AtLeast(10), Low, "A shard that makes no progress for so long is reported."),
];

const fn p(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    valid: Valid,
    importance: Importance,
    documentation: &'static str,
) -> Definition {
    Definition {
        name,
        kind,
        default,
        valid,
        importance,
        update: Update::ReadOnly,
        internal: false,
        documentation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid_by_its_own_definition() {
        for definition in BROKER {
            definition.default_value();
            assert!(!definition.documentation.is_empty(), "{}", definition.name);
        }
    }

    #[test]
    fn names_are_unique() {
        for (index, definition) in BROKER.iter().enumerate() {
            assert!(BROKER[..index].iter().all(|other| other.name != definition.name), "{}", definition.name);
        }
    }

    #[test]
    fn synonyms_list_the_most_precise_name_first() {
        assert_eq!(synonyms("log.retention.hours")[0], "log.retention.ms");
        assert_eq!(synonyms("log.flush.interval.ms")[1], "log.flush.scheduler.interval.ms");
        assert_eq!(synonyms("log.flush.scheduler.interval.ms"), ["log.flush.scheduler.interval.ms"]);
        assert_eq!(synonyms("num.partitions"), ["num.partitions"]);
    }
}
