//! The names of Kafka's files: `BASE.log`, `BASE.index`, … with a base offset of 20 digits, their temporary
//! suffixes, and the names of partition directories.

use std::path::{Path, PathBuf};

use crate::base::{Offset, PartitionIndex, TopicPartition};

/// What a file of a partition directory holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FileKind {
    Log,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
    /// Producer state at the offset in the name.
    Snapshot,
    /// A future segment, prepared while the segment of the offset in the name was active. Kafka knows no such
    /// file and leaves it alone.
    Spare,
}

impl FileKind {
    const ALL: [FileKind; 6] = [
        FileKind::Log,
        FileKind::OffsetIndex,
        FileKind::TimeIndex,
        FileKind::TransactionIndex,
        FileKind::Snapshot,
        FileKind::Spare,
    ];

    /// All files that a segment may have, in the order in which they go: the log file last, for what a crash leaves of a
    /// segment is never a log without its past.
    pub const OF_SEGMENT: [FileKind; 5] = [
        FileKind::Snapshot,
        FileKind::OffsetIndex,
        FileKind::TimeIndex,
        FileKind::TransactionIndex,
        FileKind::Log,
    ];

    fn extension(self) -> &'static str {
        match self {
            FileKind::Log => "log",
            FileKind::OffsetIndex => "index",
            FileKind::TimeIndex => "timeindex",
            FileKind::TransactionIndex => "txnindex",
            FileKind::Snapshot => "snapshot",
            FileKind::Spare => "spare",
        }
    }
}

/// What is in progress with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Live,
    /// To be unlinked.
    Deleted,
    /// An unfinished output of compaction.
    Cleaned,
    /// A finished output of compaction that has yet to take its place.
    Swap,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileName {
    pub base: Offset,
    pub kind: FileKind,
    pub stage: Stage,
}

impl FileName {
    /// `None`: not a file of this kind, leave it alone.
    pub fn parse(name: &str) -> Option<FileName> {
        let mut parts = name.split('.');
        let digits = parts.next()?;
        if digits.len() != 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let base = digits.parse().ok().map(Offset).filter(|base| *base <= Offset::MAX)?;
        let extension = parts.next()?;
        let kind = FileKind::ALL.into_iter().find(|kind| kind.extension() == extension)?;
        let stage = match parts.next() {
            None => Stage::Live,
            Some("deleted") => Stage::Deleted,
            Some("cleaned") => Stage::Cleaned,
            Some("swap") => Stage::Swap,
            Some(_) => return None,
        };
        parts.next().is_none().then_some(FileName { base, kind, stage })
    }
}

pub(super) fn file(dir: &Path, base: Offset, kind: FileKind) -> PathBuf {
    dir.join(format!("{:020}.{}", base.0, kind.extension()))
}

/// `path` with `.deleted` behind it.
pub(super) fn deleted(path: &Path) -> PathBuf {
    suffixed(path, ".deleted")
}

/// `path` with `.cleaned` behind it.
pub(super) fn cleaned(path: &Path) -> PathBuf {
    suffixed(path, ".cleaned")
}

/// `path` with `.swap` behind it.
pub(super) fn swap(path: &Path) -> PathBuf {
    suffixed(path, ".swap")
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// What the name of a directory below a log directory says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PartitionDir {
    /// `topic-N`
    Live(TopicPartition),
    /// `topic-N.<uuid>-delete`: its removal has begun.
    Delete,
    /// `topic-N.<uuid>-stray`: not this broker's any more, kept for the operator.
    Stray,
    /// `topic-N.<uuid>-future`: on its way here from another log directory.
    Future(TopicPartition),
}

impl PartitionDir {
    /// `None`: not a partition's.
    pub fn parse(name: &str) -> Option<PartitionDir> {
        const DELETE: fn(TopicPartition) -> PartitionDir = |_| PartitionDir::Delete;
        const STRAY: fn(TopicPartition) -> PartitionDir = |_| PartitionDir::Stray;
        for (suffix, kind) in [("-delete", DELETE), ("-stray", STRAY), ("-future", PartitionDir::Future)] {
            // A topic may be called `x.y-delete` too: what counts is the partition number before the unique id.
            if let Some(rest) = name.strip_suffix(suffix)
                && let Some((live, unique)) = rest.rsplit_once('.')
                && unique.len() == 32
                && unique.bytes().all(|byte| byte.is_ascii_hexdigit())
                && let Some(live) = topic_partition(live)
            {
                return Some(kind(live));
            }
        }
        // Not a partition that anybody asks for: the metadata log of the Kafka node whose directory this was.
        topic_partition(name).filter(|live| live.topic.as_str() != KAFKA_METADATA).map(PartitionDir::Live)
    }
}

const KAFKA_METADATA: &str = "__cluster_metadata";

/// The longest name of a topic.
const TOPIC_CHARS_MAX: usize = 249;

fn topic_partition(name: &str) -> Option<TopicPartition> {
    let (topic, number) = name.rsplit_once('-')?;
    let topic_ok = !topic.is_empty()
        && topic.len() <= TOPIC_CHARS_MAX
        && topic != "."
        && topic != ".."
        && topic.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    let number_ok =
        number.bytes().all(|byte| byte.is_ascii_digit()) && (number == "0" || !number.starts_with('0'));
    let partition: i32 = number.parse().ok()?;
    (topic_ok && number_ok).then(|| TopicPartition::new(topic, PartitionIndex(partition)))
}

/// `topic-N.<32 hex digits><suffix>`, cut so that the file system takes it (Kafka's `LocalLog.logDirNameWithSuffix`).
pub(super) fn marked_dir(topic_partition: &TopicPartition, suffix: &str) -> String {
    const NAME_BYTES_MAX: usize = 255;
    let unique = uuid::Uuid::new_v4().simple().to_string();
    let partition = topic_partition.partition.to_string();
    let room = NAME_BYTES_MAX - partition.len() - unique.len() - suffix.len() - 2;
    let topic = &topic_partition.topic.as_str()[..topic_partition.topic.len().min(room)];
    format!("{topic}-{partition}.{unique}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_kafkas() {
        let name = file(Path::new("/d/t-0"), Offset(170), FileKind::TimeIndex);
        assert_eq!(name, Path::new("/d/t-0/00000000000000000170.timeindex"));
        let parsed = FileName::parse("00000000000000000170.log.swap").unwrap();
        assert_eq!(parsed, FileName { base: Offset(170), kind: FileKind::Log, stage: Stage::Swap });
        assert_eq!(FileName::parse("170.log"), None);
        assert_eq!(FileName::parse("leader-epoch-checkpoint"), None);
        assert_eq!(FileName::parse("99999999999999999999.log"), None);
        assert_eq!(FileName::parse("09223372036854775807.log"), None, "no log gets there");
    }

    #[test]
    fn partition_directories_are_told_apart() {
        let live =
            |name, partition| Some(PartitionDir::Live(TopicPartition::new(name, PartitionIndex(partition))));
        assert_eq!(PartitionDir::parse("a-b-3"), live("a-b", 3));
        assert_eq!(PartitionDir::parse("a.b-delete-3"), live("a.b-delete", 3));
        assert_eq!(PartitionDir::parse("a-03"), None);
        assert_eq!(PartitionDir::parse("-3"), None);
        assert_eq!(PartitionDir::parse("a"), None);
        let t = TopicPartition::new("x-1", PartitionIndex(12));
        assert_eq!(PartitionDir::parse(&marked_dir(&t, "-delete")), Some(PartitionDir::Delete));
        assert_eq!(PartitionDir::parse(&marked_dir(&t, "-stray")), Some(PartitionDir::Stray));
        let long = TopicPartition::new("x".repeat(249).as_str(), PartitionIndex(12));
        assert_eq!(marked_dir(&long, "-delete").len(), 255);
    }
}
