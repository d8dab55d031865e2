//! Tests of the log's files: what was written comes back, torn tails go, damage is told.

use std::sync::Arc;

use openraft::EntryPayload;

use super::super::types::{CommittedLeaderId, Proposal};
use super::*;
use crate::io::os::OsFiles;
use crate::metadata::Record;

fn log_id(index: u64) -> LogId {
    LogId { leader_id: CommittedLeaderId::from(1 + index / 10), index }
}

/// `bytes` is about how long the entry becomes.
fn entry(index: u64, bytes: usize) -> Entry {
    let records = Arc::from([Record::Cluster { id: "x".repeat(bytes) }]);
    Entry { log_id: log_id(index), payload: EntryPayload::Normal(Proposal { records }) }
}

fn append(log: &mut LogFiles<OsFiles>, indexes: std::ops::Range<u64>, bytes: usize) {
    let before = indexes.start.checked_sub(1).map(log_id);
    let frames: Vec<Vec<u8>> = indexes.clone().map(|index| frame(&entry(index, bytes))).collect();
    log.append(indexes.start, before, &frames).unwrap();
}

fn reopen(dir: &Path) -> (LogFiles<OsFiles>, Loaded) {
    LogFiles::open(OsFiles, dir).unwrap()
}

fn indexes(loaded: &Loaded) -> Vec<u64> {
    loaded.entries.iter().map(|entry| entry.log_id.index).collect()
}

fn file_names(dir: &Path) -> Vec<String> {
    OsFiles.list(dir).unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn entries_come_back_over_several_files() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, loaded) = reopen(dir.path());
    assert!(loaded.entries.is_empty() && loaded.purged.is_none());
    for start in (0..30).step_by(3) {
        append(&mut log, start..start + 3, 1 << 20);
    }
    assert!(file_names(dir.path()).len() > 4);
    let (mut log, loaded) = reopen(dir.path());
    assert_eq!(indexes(&loaded), (0..30).collect::<Vec<u64>>());
    assert_eq!(loaded.entries[29].log_id, log_id(29));
    append(&mut log, 30..31, 5);
    assert_eq!(indexes(&reopen(dir.path()).1).len(), 31);
}

#[test]
fn a_torn_tail_is_cut_off_wherever_it_was_torn() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = reopen(dir.path());
    append(&mut log, 0..3, 40);
    let path = dir.path().join(&file_names(dir.path())[0]);
    let whole = std::fs::read(&path).unwrap();
    let third = log.segments[0].positions[2] as usize;
    for length in third..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let (mut log, loaded) = reopen(dir.path());
        assert_eq!(indexes(&loaded), [0, 1], "cut at {length}");
        // The log goes on where the intact part ended.
        append(&mut log, 2..3, 20);
        assert_eq!(indexes(&reopen(dir.path()).1), [0, 1, 2]);
    }
    // A hole where a page was not written.
    let mut holed = whole.clone();
    holed[third..].fill(0);
    std::fs::write(&path, holed).unwrap();
    assert_eq!(indexes(&reopen(dir.path()).1), [0, 1]);
}

#[test]
fn damage_before_the_tail_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = reopen(dir.path());
    for start in 0..6 {
        append(&mut log, start..start + 1, 3 << 20);
    }
    let first = dir.path().join(&file_names(dir.path())[0]);
    let whole = std::fs::read(&first).unwrap();
    for position in [3, 20, whole.len() / 2] {
        let mut damaged = whole.clone();
        damaged[position] ^= 1;
        std::fs::write(&first, damaged).unwrap();
        let error = LogFiles::open(OsFiles, dir.path()).err().unwrap();
        assert!(matches!(error, LogError::Damaged { .. }), "{error}");
    }
    std::fs::write(&first, whole).unwrap();
    assert_eq!(indexes(&reopen(dir.path()).1).len(), 6);
}

#[test]
fn a_file_whose_head_was_torn_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = reopen(dir.path());
    append(&mut log, 0..3, 40);
    std::fs::write(dir.path().join(format!("{:020}{SUFFIX}", 3)), b"kuringM").unwrap();
    let (mut log, loaded) = reopen(dir.path());
    assert_eq!(indexes(&loaded), [0, 1, 2]);
    append(&mut log, 3..4, 1);
    assert_eq!(file_names(dir.path()).len(), 1);
}

#[test]
fn truncation_reaches_over_files() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = reopen(dir.path());
    for start in 0..8 {
        append(&mut log, start..start + 1, 3 << 20);
    }
    log.truncate_from(3).unwrap();
    assert_eq!(indexes(&reopen(dir.path()).1), [0, 1, 2]);
    append(&mut log, 3..5, 10);
    assert_eq!(indexes(&reopen(dir.path()).1), [0, 1, 2, 3, 4]);
    log.truncate_from(0).unwrap();
    let (mut log, loaded) = reopen(dir.path());
    assert_eq!(indexes(&loaded), [0u64; 0]);
    append(&mut log, 0..2, 10);
    assert_eq!(indexes(&reopen(dir.path()).1), [0, 1]);
}

#[test]
fn purging_drops_whole_files_and_remembers_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = reopen(dir.path());
    for start in 0..8 {
        append(&mut log, start..start + 1, 3 << 20);
    }
    log.purge(log_id(4)).unwrap();
    let (_, loaded) = reopen(dir.path());
    assert_eq!(loaded.purged, Some(log_id(3)));
    assert_eq!(indexes(&loaded), [4, 5, 6, 7]);
    // Up to the end and beyond it.
    log.purge(log_id(7)).unwrap();
    log.purge(log_id(100)).unwrap();
    log.purge(log_id(100)).unwrap();
    let (mut log, loaded) = reopen(dir.path());
    assert_eq!((loaded.purged, indexes(&loaded)), (Some(log_id(100)), vec![]));
    append(&mut log, 101..103, 5);
    assert_eq!(indexes(&reopen(dir.path()).1), [101, 102]);
}

#[test]
fn a_log_started_anew_takes_the_place_of_the_old_one_also_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = reopen(dir.path());
    append(&mut log, 0..3, 10);
    // As if the crash came before the old file was removed.
    log.start_segment(101, Some(log_id(100)), 0).unwrap();
    let (_, loaded) = reopen(dir.path());
    assert_eq!((loaded.purged, indexes(&loaded)), (Some(log_id(100)), vec![]));
    assert_eq!(file_names(dir.path()).len(), 1);
}
