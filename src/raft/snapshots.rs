//! Snapshots of the metadata on disk. Blocking: file threads only.
//!
//! A file is `kuringMS · version u8 · head length u32 BE · head · state · CRC-32C u32 BE` of all before; it
//! is written aside, synced and renamed, so a whole name has whole contents. The two newest are kept: the
//! older one is for the case that the newer one turns out unreadable.

use std::io;
use std::path::{Path, PathBuf};

use super::codec;
use super::types::SnapshotMeta;
use crate::base::crc32c;
use crate::io::Files;
use crate::metadata::{DecodeError, Reader, Writer};

const MAGIC: &[u8; 8] = b"kuringMS";
const SUFFIX: &str = ".snapshot";
const SNAPSHOTS_KEPT: usize = 2;
pub const SNAPSHOT_BYTES_MAX: usize = 1 << 30;

/// Why no snapshot can be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("metadata snapshot {path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("metadata snapshot {path} is damaged: {what}")]
    Damaged { path: PathBuf, what: String },
}

impl SnapshotError {
    /// Whether it is only for want of space.
    pub fn is_full(&self) -> bool {
        matches!(self, SnapshotError::Io { error, .. } if super::log_files::is_full(error))
    }
}

/// The snapshots in a directory.
#[derive(Clone)]
pub struct Snapshots<F> {
    files: F,
    dir: PathBuf,
}

impl<F: Files> Snapshots<F> {
    pub fn new(files: F, dir: &Path) -> Self {
        Self { files, dir: dir.to_owned() }
    }

    /// Makes a snapshot durable and takes away what it makes superfluous. Does nothing if there is a newer
    /// one: an older state must not take its place.
    pub fn write(&self, meta: &SnapshotMeta, state: &[u8]) -> Result<(), SnapshotError> {
        let index = meta.last_log_id.as_ref().map_or(0, |log_id| log_id.index);
        let newest = self.names()?.last().map(|(index, _)| *index);
        if newest.is_some_and(|newest| newest > index) {
            return Ok(());
        }
        let path = self.dir.join(format!("{index:020}{SUFFIX}"));
        self.files.write_atomically(&path, &encode(meta, state)).map_err(|error| io_error(&path, error))?;
        let names = self.names()?;
        for (_, old) in names.iter().rev().skip(SNAPSHOTS_KEPT) {
            self.files.remove_file(old).map_err(|error| io_error(old, error))?;
        }
        Ok(())
    }

    /// The newest readable snapshot. A damaged one is told in the log and passed over; the caller sees from
    /// the index whether the log still reaches back to the older one.
    pub fn newest(&self) -> Result<Option<(SnapshotMeta, Vec<u8>)>, SnapshotError> {
        let mut damaged = None;
        for (_, path) in self.names()?.iter().rev() {
            match self.read(path) {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(error) => {
                    tracing::error!("{error}");
                    damaged.get_or_insert(error);
                }
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    /// Takes away what a crash left half written.
    pub fn clean_up(&self) -> Result<(), SnapshotError> {
        let entries = self.files.list(&self.dir).map_err(|error| io_error(&self.dir, error))?;
        for entry in entries.iter().filter(|entry| entry.name.ends_with(".tmp")) {
            let path = self.dir.join(&entry.name);
            self.files.remove_file(&path).map_err(|error| io_error(&path, error))?;
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<(u64, PathBuf)>, SnapshotError> {
        let entries = self.files.list(&self.dir).map_err(|error| io_error(&self.dir, error))?;
        let mut names: Vec<(u64, PathBuf)> = entries
            .iter()
            .filter_map(|entry| {
                Some((entry.name.strip_suffix(SUFFIX)?.parse().ok()?, self.dir.join(&entry.name)))
            })
            .collect();
        names.sort();
        Ok(names)
    }

    fn read(&self, path: &Path) -> Result<(SnapshotMeta, Vec<u8>), SnapshotError> {
        let contents =
            self.files.read_small(path, SNAPSHOT_BYTES_MAX).map_err(|error| io_error(path, error))?;
        decode(&contents).map_err(|what| SnapshotError::Damaged { path: path.to_owned(), what })
    }
}

fn encode(meta: &SnapshotMeta, state: &[u8]) -> Vec<u8> {
    let mut head = Vec::new();
    codec::write_snapshot_meta(&mut Writer(&mut head), meta);
    let mut bytes = Vec::with_capacity(MAGIC.len() + 9 + head.len() + state.len());
    bytes.extend_from_slice(MAGIC);
    bytes.push(codec::version_of(meta.last_membership.membership()));
    bytes.extend_from_slice(&(head.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(state);
    let crc = crc32c::of(&bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes
}

fn decode(contents: &[u8]) -> Result<(SnapshotMeta, Vec<u8>), String> {
    let cut = || "it ends early".to_owned();
    let (body, crc) = contents.split_last_chunk::<4>().ok_or_else(cut)?;
    if crc32c::of(body) != u32::from_be_bytes(*crc) {
        return Err("the CRC differs".to_owned());
    }
    let rest = body.strip_prefix(MAGIC).ok_or_else(|| "it is no snapshot".to_owned())?;
    let (version, rest) = rest.split_first().ok_or_else(cut)?;
    if !codec::is_known(*version) {
        return Err(format!("version {version} is not known: written by a newer kuring?"));
    }
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    let (head, state) = rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or_else(cut)?;
    let mut reader = Reader(head);
    let meta = codec::read_snapshot_meta(&mut reader, *version)
        .and_then(|meta| reader.end().map(|()| meta))
        .map_err(|error: DecodeError| error.to_string())?;
    Ok((meta, state.to_vec()))
}

fn io_error(path: &Path, error: io::Error) -> SnapshotError {
    SnapshotError::Io { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::super::types::{CommittedLeaderId, LogId};
    use super::*;
    use crate::io::os::OsFiles;

    fn meta(index: u64) -> SnapshotMeta {
        let last_log_id = Some(LogId { leader_id: CommittedLeaderId::from(3), index });
        SnapshotMeta { last_log_id, ..SnapshotMeta::default() }
    }

    #[test]
    fn the_two_newest_are_kept_and_an_older_one_never_replaces_a_newer() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(OsFiles, dir.path());
        assert!(snapshots.newest().unwrap().is_none());
        for index in [5, 9, 20] {
            snapshots.write(&meta(index), &index.to_be_bytes()).unwrap();
        }
        snapshots.write(&meta(7), b"older").unwrap();
        let indexes: Vec<u64> = snapshots.names().unwrap().into_iter().map(|(index, _)| index).collect();
        assert_eq!(indexes, [9, 20]);
        assert_eq!(snapshots.newest().unwrap().unwrap(), (meta(20), 20u64.to_be_bytes().to_vec()));
    }

    #[test]
    fn a_damaged_snapshot_is_passed_over_and_with_no_other_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(OsFiles, dir.path());
        for index in [5, 9] {
            snapshots.write(&meta(index), b"state").unwrap();
        }
        let damage = |index: u64| {
            let path = dir.path().join(format!("{index:020}{SUFFIX}"));
            let mut contents = std::fs::read(&path).unwrap();
            contents[20] ^= 1;
            std::fs::write(path, contents).unwrap();
        };
        damage(9);
        assert_eq!(snapshots.newest().unwrap().unwrap().0, meta(5));
        damage(5);
        assert!(matches!(snapshots.newest(), Err(SnapshotError::Damaged { .. })));
    }

    #[test]
    fn what_a_crash_left_half_written_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(OsFiles, dir.path());
        std::fs::write(dir.path().join("00000000000000000009.snapshot.tmp"), b"half").unwrap();
        snapshots.clean_up().unwrap();
        assert!(snapshots.newest().unwrap().is_none());
        assert_eq!(OsFiles.list(dir.path()).unwrap(), []);
    }
}
