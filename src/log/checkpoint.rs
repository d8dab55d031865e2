//! Kafka's checkpoint files: a version line, a line with the number of entries, one line per entry. The file that
//! holds the epochs of a partition, and those of a log directory that hold an offset per partition.

use std::fmt::Write;
use std::str::FromStr;

use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicPartition};

use super::EpochStart;

/// In a partition's directory.
pub(super) const EPOCHS_FILE: &str = "leader-epoch-checkpoint";

/// Longer ones are taken for damage: a hundred thousand epochs.
pub(super) const EPOCHS_BYTES_MAX: usize = 4 << 20;

/// Two hundred thousand partitions with the longest names.
pub(super) const OFFSETS_BYTES_MAX: usize = 64 << 20;

/// Why a checkpoint file is not one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("is not text")]
    NotText,
    #[error("line 1: version `0` expected, found `{found}`")]
    Version { found: String },
    #[error("line 2: the number of entries expected, found `{found}`")]
    Count { found: String },
    #[error("{expected} entries announced, {found} found")]
    WrongCount { expected: usize, found: usize },
    #[error("line {line}: `{text}` is not an entry")]
    Entry { line: usize, text: String },
}

pub(super) fn encode_epochs(starts: &[EpochStart]) -> String {
    let mut text = head(starts.len());
    for entry in starts {
        let _ = writeln!(text, "{} {}", entry.epoch, entry.start);
    }
    text
}

pub(super) fn decode_epochs(bytes: &[u8]) -> Result<Vec<EpochStart>, CheckpointError> {
    decode(bytes, |fields| match fields {
        [epoch, start] => {
            Some(EpochStart { epoch: LeaderEpoch(natural(epoch)?), start: Offset(natural(start)?) })
        }
        _ => None,
    })
}

pub(super) fn encode_offsets(entries: &[(TopicPartition, Offset)]) -> String {
    let mut text = head(entries.len());
    for (TopicPartition { topic, partition }, offset) in entries {
        let _ = writeln!(text, "{topic} {partition} {offset}");
    }
    text
}

pub(super) fn decode_offsets(bytes: &[u8]) -> Result<Vec<(TopicPartition, Offset)>, CheckpointError> {
    decode(bytes, |fields| match fields {
        [topic, partition, offset] => {
            let partition = PartitionIndex(natural(partition)?);
            let offset = natural(offset).map(Offset).filter(|offset| *offset <= Offset::MAX)?;
            Some((TopicPartition::new(*topic, partition), offset))
        }
        _ => None,
    })
}

fn head(entries: usize) -> String {
    format!("0\n{entries}\n")
}

fn natural<T: FromStr + PartialOrd + Default>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number| *number >= T::default())
}

fn decode<T>(bytes: &[u8], entry: impl Fn(&[&str]) -> Option<T>) -> Result<Vec<T>, CheckpointError> {
    let text = std::str::from_utf8(bytes).map_err(|_| CheckpointError::NotText)?;
    let mut lines = text.lines();
    let version = lines.next().unwrap_or_default();
    if version != "0" {
        return Err(CheckpointError::Version { found: version.to_owned() });
    }
    let count = lines.next().unwrap_or_default();
    let expected: usize = count.parse().map_err(|_| CheckpointError::Count { found: count.to_owned() })?;
    let mut entries = Vec::new();
    for (number, line) in lines.enumerate() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let parsed = entry(&fields)
            .ok_or_else(|| CheckpointError::Entry { line: number + 3, text: line.to_owned() })?;
        entries.push(parsed);
    }
    if entries.len() == expected {
        Ok(entries)
    } else {
        Err(CheckpointError::WrongCount { expected, found: entries.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_come_back() {
        let entries = [("a-b", 3, 17), ("t", 0, 0)]
            .map(|(t, p, o)| (TopicPartition::new(t, PartitionIndex(p)), Offset(o)));
        let text = encode_offsets(&entries);
        assert_eq!(text, "0\n2\na-b 3 17\nt 0 0\n");
        assert_eq!(decode_offsets(text.as_bytes()).unwrap(), entries);
        let epochs = [EpochStart { epoch: LeaderEpoch(4), start: Offset(9) }];
        assert_eq!(decode_epochs(encode_epochs(&epochs).as_bytes()).unwrap(), epochs);
    }

    #[test]
    fn damage_is_told() {
        let error = |text: &str| decode_offsets(text.as_bytes()).unwrap_err();
        assert_eq!(error(""), CheckpointError::Version { found: String::new() });
        assert_eq!(error("1\n0\n"), CheckpointError::Version { found: "1".into() });
        assert_eq!(error("0\nx\n"), CheckpointError::Count { found: "x".into() });
        assert_eq!(error("0\n2\nt 0 0\n"), CheckpointError::WrongCount { expected: 2, found: 1 });
        assert_eq!(error("0\n1\nt 0 -1\n"), CheckpointError::Entry { line: 3, text: "t 0 -1".into() });
        assert!(decode_offsets(b"0\n1\nt 0 4611686018427387904\n").is_ok());
        assert!(decode_offsets(b"0\n1\nt 0 4611686018427387905\n").is_err(), "no log ends there");
        assert_eq!(decode_epochs(&[0xff]), Err(CheckpointError::NotText));
    }
}
