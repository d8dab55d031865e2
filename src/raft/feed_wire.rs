//! What an observer asks for the metadata log, and what it gets, as bytes. Pure; a length or count is believed only as far
//! as the bytes are there.
//! ```text
//! FetchLog  have (log id)? · (index · offset of a snapshot's part)? · wait ms
//!           → word · kind · what it says
//! ```

use std::time::Duration;

use super::codec::{self, decode_entry, encode_entry, read_log_id_option, write_log_id_option};
use super::snapshots::SNAPSHOT_BYTES_MAX;
use super::types::{Entry, LogId, SnapshotMeta};
use super::word::Word;
use crate::metadata::{DecodeError, Reader, Writer};

/// Entries of one answer: as many as fit into this, and one in any case.
const ENTRIES_BYTES_MAX: usize = 1 << 20;
/// Bytes of a snapshot in one answer; few in tests, so that theirs has parts.
pub const PART_BYTES_MAX: usize = if cfg!(test) { 500 } else { 1 << 20 };

const NOT_HERE: u8 = 0;
const ENTRIES: u8 = 1;
const SNAPSHOT: u8 = 2;
const OTHER_LOG: u8 = 3;

/// What an observer wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchLog {
    /// The last entry that it has applied.
    pub have: Option<LogId>,
    /// The snapshot that it is receiving: the index of the last entry in it, and where it goes on.
    pub snapshot: Option<(u64, usize)>,
    /// How long an answer without entries may be waited with.
    pub wait: Duration,
}

/// What it gets.
#[derive(Clone, PartialEq, Debug)]
pub struct Fed<'a> {
    pub word: Word,
    pub part: Part<'a>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Part<'a> {
    /// Whoever was asked does not lead.
    NotHere,
    /// The next ones; perhaps none.
    Entries(Vec<Entry>),
    /// The entries are not there any more: a part of what they come to.
    Snapshot { meta: SnapshotMeta, length: usize, crc: u32, offset: usize, bytes: &'a [u8] },
    /// What the observer has is not in this log.
    OtherLog,
}

pub fn request(wanted: &FetchLog) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = Writer(&mut body);
    write_log_id_option(&mut writer, &wanted.have);
    writer.bool(wanted.snapshot.is_some());
    if let Some((index, offset)) = wanted.snapshot {
        writer.unsigned(index);
        writer.unsigned(offset as u64);
    }
    writer.unsigned(wanted.wait.as_millis() as u64);
    body
}

pub fn read_request(body: &[u8]) -> Result<FetchLog, DecodeError> {
    let mut reader = Reader(body);
    let have = read_log_id_option(&mut reader)?;
    let snapshot = match reader.bool()? {
        true => Some((reader.unsigned()?, read_size(&mut reader)?)),
        false => None,
    };
    let wait = Duration::from_millis(reader.unsigned()?);
    reader.end()?;
    Ok(FetchLog { have, snapshot, wait })
}

/// Entries that do not fit are left out.
pub fn answer(fed: &Fed<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = Writer(&mut body);
    fed.word.write(&mut writer);
    match &fed.part {
        Part::NotHere => writer.u8(NOT_HERE),
        Part::OtherLog => writer.u8(OTHER_LOG),
        Part::Entries(entries) => {
            writer.u8(ENTRIES);
            write_entries(&mut body, entries);
        }
        Part::Snapshot { meta, length, crc, offset, bytes } => {
            writer.u8(SNAPSHOT);
            codec::send_snapshot_meta(&mut writer, meta);
            writer.unsigned(*length as u64);
            writer.unsigned(u64::from(*crc));
            writer.unsigned(*offset as u64);
            body.extend_from_slice(bytes);
        }
    }
    body
}

/// Each with its length; the body ends with the last.
fn write_entries(body: &mut Vec<u8>, entries: &[Entry]) {
    let (begin, mut one) = (body.len(), Vec::new());
    for entry in entries {
        one.clear();
        encode_entry(entry, &mut one);
        if body.len() > begin && body.len() - begin + one.len() > ENTRIES_BYTES_MAX {
            return;
        }
        Writer(body).unsigned(one.len() as u64);
        body.extend_from_slice(&one);
    }
}

pub fn read_answer(body: &[u8]) -> Result<Fed<'_>, DecodeError> {
    let mut reader = Reader(body);
    let word = Word::read(&mut reader)?;
    let part = match reader.u8()? {
        NOT_HERE => Part::NotHere,
        OTHER_LOG => Part::OtherLog,
        ENTRIES => Part::Entries(read_entries(&mut reader)?),
        SNAPSHOT => {
            let meta = codec::receive_snapshot_meta(&mut reader)?;
            let (length, crc, offset) =
                (read_size(&mut reader)?, read_size(&mut reader)?, read_size(&mut reader)?);
            let crc = u32::try_from(crc).map_err(|_| DecodeError::Value("checksum"))?;
            let bytes = std::mem::take(&mut reader.0);
            let end = offset.checked_add(bytes.len());
            if length > SNAPSHOT_BYTES_MAX || end.is_none_or(|end| end > length) {
                return Err(DecodeError::Value("size of a snapshot"));
            }
            Part::Snapshot { meta, length, crc, offset, bytes }
        }
        _ => return Err(DecodeError::Value("kind of answer")),
    };
    reader.end()?;
    Ok(Fed { word, part })
}

fn read_entries(reader: &mut Reader<'_>) -> Result<Vec<Entry>, DecodeError> {
    let mut entries: Vec<Entry> = Vec::new();
    while !reader.0.is_empty() {
        let length = read_size(reader)?;
        let entry = decode_entry(reader.bytes(length)?)?;
        let before = entries.last().map(|before| before.log_id.index);
        if before.is_some_and(|before| before.checked_add(1) != Some(entry.log_id.index)) {
            return Err(DecodeError::Value("row of entries"));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn read_size(reader: &mut Reader<'_>) -> Result<usize, DecodeError> {
    usize::try_from(reader.unsigned()?).map_err(|_| DecodeError::Value("size"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use openraft::EntryPayload;

    use super::super::types::{CommittedLeaderId, Proposal};
    use super::*;
    use crate::base::BrokerId;
    use crate::metadata::Record;

    fn log_id(index: u64) -> LogId {
        LogId { leader_id: CommittedLeaderId::from(3), index }
    }

    fn entry(index: u64, bytes: usize) -> Entry {
        let records = vec![Record::Feature { name: "x".repeat(bytes), level: 1 }];
        Entry { log_id: log_id(index), payload: EntryPayload::Normal(Proposal { records: records.into() }) }
    }

    fn fed(part: Part<'_>) -> Fed<'_> {
        let controllers =
            BTreeMap::from([(BrokerId(1), ("one".to_owned(), 9093)), (BrokerId(0), ("::1".to_owned(), 1))]);
        Fed { word: Word { term: 7, leader: Some(BrokerId(0)), controllers }, part }
    }

    #[test]
    fn requests_come_back_as_they_were_and_no_part_of_one_passes() {
        for (have, snapshot) in [(None, None), (Some(log_id(9)), Some((500, 1 << 20)))] {
            let wanted = FetchLog { have, snapshot, wait: Duration::from_millis(300) };
            let body = request(&wanted);
            assert_eq!(read_request(&body), Ok(wanted));
            for end in 0..body.len() {
                assert!(read_request(&body[..end]).is_err(), "{end}");
            }
            assert!(read_request(&[body, vec![0]].concat()).is_err());
        }
    }

    #[test]
    fn answers_come_back_as_they_were() {
        let meta = SnapshotMeta { last_log_id: Some(log_id(3)), ..SnapshotMeta::default() };
        let part = Part::Snapshot { meta, length: 12, crc: 5, offset: 2, bytes: b"0123456789" };
        for part in [Part::NotHere, Part::OtherLog, Part::Entries(vec![entry(4, 3), entry(5, 9)]), part] {
            let said = fed(part);
            let body = answer(&said);
            assert_eq!(read_answer(&body), Ok(said));
            for end in 0..body.len().min(40) {
                // Without its last bytes a snapshot's part is a shorter one.
                if let Ok(less) = read_answer(&body[..end]) {
                    assert!(matches!(less.part, Part::Entries(_) | Part::Snapshot { .. }), "{end}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_left_for_the_next_answer_and_one_entry_always_fits() {
        let entries = |sizes: &[usize]| {
            let entries = sizes.iter().zip(1..).map(|(bytes, index)| entry(index, *bytes)).collect();
            match read_answer(&answer(&fed(Part::Entries(entries)))).unwrap().part {
                Part::Entries(entries) => entries.len(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(entries(&[10, 700 << 10, 200 << 10, 200 << 10, 1]), 3);
        assert_eq!(entries(&[3 << 20, 1]), 1);
    }

    #[test]
    fn entries_with_a_gap_and_snapshots_beyond_their_length_are_refused() {
        let gap = answer(&fed(Part::Entries(vec![entry(4, 3), entry(6, 9)])));
        assert_eq!(read_answer(&gap), Err(DecodeError::Value("row of entries")));
        let meta = SnapshotMeta::default();
        for (length, offset) in [(9, 0), (12, 3), (SNAPSHOT_BYTES_MAX + 1, 0)] {
            let part = Part::Snapshot { meta: meta.clone(), length, crc: 5, offset, bytes: b"0123456789" };
            let refused = read_answer(&answer(&fed(part))).err();
            assert_eq!(refused, Some(DecodeError::Value("size of a snapshot")));
        }
    }
}
