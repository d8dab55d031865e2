//! The vote on disk: one file with two slots, written in turn, so that a write costs one fdatasync and a
//! torn one leaves the vote before it. Blocking: file threads only.
//!
//! A slot is 64 bytes: `CRC-32C u32 BE · length u8 · version u8 · sequence varint · vote · zeros`; the CRC
//! covers all behind it. The slot with the greater sequence counts.

use std::io::{self, IoSlice};
use std::path::Path;

use super::codec;
use super::types::Vote;
use crate::base::crc32c;
use crate::io::{FileHandle, Files, OpenMode};
use crate::metadata::{DecodeError, Reader, Writer};

const SLOT_BYTES: usize = 64;
/// Slots lie a page apart, so that no device writes both at once.
const SLOT_SPACING: u64 = 4096;
const SLOTS: u64 = 2;
const VERSION: u8 = 1;

/// The open file.
pub struct VoteFile<H> {
    file: H,
    sequence: u64,
}

impl<H: FileHandle> VoteFile<H> {
    /// Opens or makes the file; returns the last vote, if one was ever saved.
    pub fn open<F: Files<File = H>>(files: &F, dir: &Path) -> io::Result<(Self, Option<Vote>)> {
        let path = dir.join("vote");
        let is_new = !files.exists(&path)?;
        let file = files.open(&path, OpenMode::Create)?;
        if is_new {
            file.sync_all()?;
            files.sync_dir(dir)?;
        }
        let mut found: Option<(u64, Vote)> = None;
        let mut damaged = 0;
        for slot in 0..SLOTS {
            let mut bytes = [0; SLOT_BYTES];
            let read = file.read_at(&mut bytes, slot * SLOT_SPACING)?;
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            match decode(&bytes[..read]) {
                Ok(entry) if found.as_ref().is_none_or(|(sequence, _)| entry.0 > *sequence) => {
                    found = Some(entry);
                }
                Ok(_) => {}
                Err(Damage::Version(version)) => {
                    return Err(invalid(&path, &format!("version {version} is not known")));
                }
                Err(Damage::Torn) => damaged += 1,
            }
        }
        // One torn slot is a crash during a write; two cannot be.
        if damaged == SLOTS {
            return Err(invalid(&path, "both votes in it are damaged"));
        }
        let (sequence, vote) = match found {
            Some((sequence, vote)) => (sequence, Some(vote)),
            None => (0, None),
        };
        let mut opened = Self { file, sequence };
        if let Some(vote) = &vote {
            // From here on we stand by it, and it may be in the page cache only.
            opened.save(vote)?;
        }
        Ok((opened, vote))
    }

    /// Durable when it returns.
    pub fn save(&mut self, vote: &Vote) -> io::Result<()> {
        self.sequence += 1;
        let slot = self.sequence % SLOTS;
        let bytes = encode(self.sequence, vote);
        self.file.write_all_at(&mut [IoSlice::new(&bytes)], slot * SLOT_SPACING)?;
        self.file.sync_data()
    }
}

enum Damage {
    Torn,
    Version(u8),
}

fn encode(sequence: u64, vote: &Vote) -> [u8; SLOT_BYTES] {
    let mut body = Vec::with_capacity(SLOT_BYTES);
    let mut writer = Writer(&mut body);
    writer.u8(VERSION);
    writer.unsigned(sequence);
    codec::write_vote(&mut writer, vote);
    // Version, three integers of at most 10 bytes and a flag.
    assert!(body.len() <= SLOT_BYTES - 5, "a vote fits into its slot");
    let mut bytes = [0; SLOT_BYTES];
    bytes[4] = body.len() as u8;
    bytes[5..5 + body.len()].copy_from_slice(&body);
    let crc = crc32c::of(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Result<(u64, Vote), Damage> {
    let (crc, rest) = bytes.split_first_chunk::<4>().ok_or(Damage::Torn)?;
    if bytes.len() != SLOT_BYTES || u32::from_be_bytes(*crc) != crc32c::of(rest) {
        return Err(Damage::Torn);
    }
    let body = rest.get(1..1 + usize::from(rest[0])).ok_or(Damage::Torn)?;
    let mut reader = Reader(body);
    match reader.u8() {
        Ok(VERSION) => {}
        Ok(version) => return Err(Damage::Version(version)),
        Err(_) => return Err(Damage::Torn),
    }
    let mut read = || -> Result<(u64, Vote), DecodeError> {
        let entry = (reader.unsigned()?, codec::read_vote(&mut reader)?);
        reader.end()?;
        Ok(entry)
    };
    read().map_err(|_| Damage::Torn)
}

fn invalid(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::types::{LeaderId, Seat};
    use super::*;
    use crate::io::os::OsFiles;

    fn vote(term: u64) -> Vote {
        Vote { leader_id: LeaderId { term, voted_for: Seat(u64::MAX) }, committed: term.is_multiple_of(2) }
    }

    #[test]
    fn the_last_vote_comes_back_and_a_torn_one_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, none) = VoteFile::open(&OsFiles, dir.path()).unwrap();
        assert_eq!(none, None);
        for term in [1, 2, u64::MAX] {
            file.save(&vote(term)).unwrap();
        }
        let reopen = || VoteFile::open(&OsFiles, dir.path());
        assert_eq!(reopen().unwrap().1, Some(vote(u64::MAX)));
        let handle = OsFiles.open(&dir.path().join("vote"), OpenMode::Write).unwrap();
        let damage = |slot: u64| {
            handle.write_all_at(&mut [IoSlice::new(b"x")], slot % SLOTS * SLOT_SPACING + 9).unwrap();
        };
        let (mut file, _) = reopen().unwrap();
        file.save(&vote(3)).unwrap();
        damage(file.sequence);
        let (mut file, last) = reopen().unwrap();
        assert_eq!(last, Some(vote(u64::MAX)));
        file.save(&vote(4)).unwrap();
        assert_eq!(reopen().unwrap().1, Some(vote(4)));
        damage(0);
        damage(1);
        assert_eq!(reopen().err().unwrap().kind(), io::ErrorKind::InvalidData);
    }
}
