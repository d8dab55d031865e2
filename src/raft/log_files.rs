//! The Raft log on disk. Blocking: file threads only.
//!
//! A row of segment files named by the index of their first entry. A file starts with `kuringML` and a
//! frame that holds `version u8 · first index · log id of the entry before`; each entry is a frame: `length
//! u32 BE · CRC-32C u32 BE · bytes`. The log id before the first segment is what was purged.
//!
//! Every change is durable when its call returns, so an unreadable tail of the last segment was never
//! acknowledged and is cut off; unreadable bytes anywhere else are an error.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use super::codec;
use super::types::{Entry, LogId};
use crate::base::crc32c;
use crate::io::{FileHandle, Files, OpenMode};
use crate::metadata::{DecodeError, Reader, Writer};

const MAGIC: &[u8; 8] = b"kuringML";
const VERSION: u8 = 1;
const FRAME_HEAD_BYTES: usize = 8;
const SUFFIX: &str = ".raftlog";

/// A file with a broken head that is longer than any head had entries: damaged, not torn.
const HEAD_BYTES_MAX: u64 = 128;

/// The next append goes to a new file once one is this long.
const SEGMENT_BYTES: u64 = 4 << 20;

/// Disk space is reserved in such steps, so that an append does not meet a full disk.
const RESERVE_BYTES: u64 = 1 << 20;

/// Reserved space that only commands which give space back may use: enough to delete thousands of topics.
const LAST_BYTES: u64 = 512 << 10;

/// More than the controller's limit for one entry: what is longer is no length.
const FRAME_BYTES_MAX: usize = 32 << 20;

/// Why the log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("metadata log {path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("metadata log {path} is damaged at byte {position}: {what}")]
    Damaged { path: PathBuf, position: u64, what: String },
}

/// What was on disk.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The last entry that is no longer kept.
    pub purged: Option<LogId>,
    /// All kept entries, without gaps.
    pub entries: Vec<Entry>,
}

/// The open log. After an error nothing may be written any more: the caller gives up.
pub struct LogFiles<F: Files> {
    files: F,
    dir: PathBuf,
    /// At least one once something was appended; the last is written to.
    segments: VecDeque<Segment<F::File>>,
}

struct Segment<H> {
    path: PathBuf,
    file: H,
    first: u64,
    /// Where each entry's frame starts.
    positions: Vec<u64>,
    length: u64,
    /// Up to here the disk has given its blocks.
    reserved: u64,
}

impl<H> Segment<H> {
    /// The index after the last entry.
    fn next(&self) -> u64 {
        self.first + self.positions.len() as u64
    }
}

impl<F: Files> LogFiles<F> {
    /// Opens the log in `dir`, which exists, and reads all of it.
    pub fn open(files: F, dir: &Path) -> Result<(Self, Loaded), LogError> {
        let mut log = Self { files, dir: dir.to_owned(), segments: VecDeque::new() };
        let names = log.segment_names()?;
        let mut loaded = Loaded::default();
        for (position, (first, path)) in names.iter().enumerate() {
            log.load(*first, path, position + 1 == names.len(), &mut loaded)?;
        }
        Ok((log, loaded))
    }

    /// Appends frames made by [`frame`], the first of index `first`; `before` is the log id of the entry
    /// before it. Durable when it returns.
    pub fn append(&mut self, first: u64, before: Option<LogId>, frames: &[Vec<u8>]) -> Result<(), LogError> {
        let bytes: usize = frames.iter().map(Vec::len).sum();
        match self.segments.back() {
            None => self.start_segment(first, before, bytes as u64)?,
            Some(segment) if segment.length >= SEGMENT_BYTES => {
                match self.start_segment(first, before, bytes as u64) {
                    // The old file has room that was reserved for these bytes.
                    Err(LogError::Io { path, error }) if is_full(&error) => self.remove_if_there(&path)?,
                    other => other?,
                }
            }
            Some(_) => {}
        }
        let Some(segment) = self.segments.back_mut() else { return Ok(()) };
        assert_eq!(segment.next(), first, "the metadata log has no gaps");
        let mut slices: Vec<IoSlice<'_>> = frames.iter().map(|frame| IoSlice::new(frame)).collect();
        let start = segment.length;
        let written = segment.file.write_all_at(&mut slices, start);
        written.and_then(|()| segment.file.sync_data()).map_err(|error| io_error(&segment.path, error))?;
        for frame in frames {
            segment.positions.push(segment.length);
            segment.length += frame.len() as u64;
        }
        Ok(())
    }

    /// Sees to it that `bytes` more can be appended however full the disk gets; the last of the reserve is for
    /// what is `urgent`. Returns how many bytes further appends that are not have, or `None` when the disk is
    /// full.
    pub fn reserve(&mut self, bytes: u64, urgent: bool) -> Result<Option<u64>, LogError> {
        let Some(segment) = self.segments.back_mut() else { return Ok(Some(0)) };
        let kept_back = if urgent { 0 } else { LAST_BYTES };
        let needed = segment.length + bytes + kept_back;
        if segment.reserved < needed {
            let ends = [needed + RESERVE_BYTES + LAST_BYTES - kept_back, needed];
            let mut got = None;
            for end in ends {
                match segment.file.preallocate(segment.length, end - segment.length) {
                    Ok(()) => {
                        got = Some(end);
                        break;
                    }
                    Err(error) if is_full(&error) => {}
                    Err(error) => return Err(io_error(&segment.path, error)),
                }
            }
            match got {
                Some(end) => segment.reserved = end,
                None => return Ok(None),
            }
        }
        Ok(Some(segment.reserved.saturating_sub(segment.length + LAST_BYTES)))
    }

    /// Takes away all entries from `index` on. Newest first, so that a crash leaves no gap.
    pub fn truncate_from(&mut self, index: u64) -> Result<(), LogError> {
        while self.segments.len() > 1
            && let Some(segment) = self.segments.pop_back_if(|segment| segment.first >= index)
        {
            self.remove(segment)?;
        }
        let Some(segment) = self.segments.back_mut() else { return Ok(()) };
        let kept = usize::try_from(index.saturating_sub(segment.first)).unwrap_or(usize::MAX);
        if let Some(length) = segment.positions.get(kept).copied() {
            let cut = segment.file.truncate(length).and_then(|()| segment.file.sync_all());
            cut.map_err(|error| io_error(&segment.path, error))?;
            segment.positions.truncate(kept);
            segment.length = length;
            // A truncation gives back what was reserved behind it.
            segment.reserved = length;
        }
        Ok(())
    }

    /// Takes away whole files of entries up to `upto`; beyond the end of the log it starts a new one there.
    pub fn purge(&mut self, upto: LogId) -> Result<(), LogError> {
        let next = upto.index + 1;
        let end = self.segments.back().map_or(0, Segment::next);
        if end < next {
            if self.segments.back().is_some_and(|segment| segment.first == next) {
                return Ok(());
            }
            self.start_segment(next, Some(upto), 0)?;
        }
        while self.segments.get(1).is_some_and(|segment| segment.first <= next) {
            if let Some(segment) = self.segments.pop_front() {
                self.remove(segment)?;
            }
        }
        Ok(())
    }

    fn segment_names(&self) -> Result<Vec<(u64, PathBuf)>, LogError> {
        let entries = self.files.list(&self.dir).map_err(|error| io_error(&self.dir, error))?;
        let mut names: Vec<(u64, PathBuf)> = entries
            .iter()
            .filter(|entry| !entry.is_dir)
            .filter_map(|entry| {
                let first = entry.name.strip_suffix(SUFFIX)?.parse().ok()?;
                Some((first, self.dir.join(&entry.name)))
            })
            .collect();
        names.sort();
        Ok(names)
    }

    fn load(&mut self, first: u64, path: &Path, is_last: bool, loaded: &mut Loaded) -> Result<(), LogError> {
        let file = self.files.open(path, OpenMode::Write).map_err(|error| io_error(path, error))?;
        let contents = read_all(&file).map_err(|error| io_error(path, error))?;
        let damaged = |position: usize, what: String| LogError::Damaged {
            path: path.to_owned(),
            position: position as u64,
            what,
        };
        let (before, head_bytes) = match read_head(&contents, first) {
            Ok(head) => head,
            // The crash came before the file was durable, so nothing was acknowledged in it.
            Err(HeadError::Broken) if is_last && contents.len() as u64 <= HEAD_BYTES_MAX => {
                drop(file);
                return self.remove_file(path);
            }
            Err(HeadError::Broken) => return Err(damaged(0, "the head is unreadable".into())),
            Err(HeadError::Version(version)) => {
                return Err(damaged(
                    0,
                    format!("version {version} is not known: written by a newer kuring?"),
                ));
            }
        };
        let expected = self.segments.back().map(Segment::next);
        if let Some(expected) = expected.filter(|expected| *expected != first) {
            if expected > first {
                return Err(damaged(0, format!("it starts at {first}, the one before ends at {expected}")));
            }
            // A crash while the log was started anew behind an installed snapshot.
            for segment in std::mem::take(&mut self.segments) {
                self.remove(segment)?;
            }
        }
        if self.segments.is_empty() {
            *loaded = Loaded { purged: before, entries: Vec::new() };
        }
        let mut segment = Segment {
            path: path.to_owned(),
            file,
            first,
            positions: Vec::new(),
            length: head_bytes as u64,
            reserved: 0,
        };
        let mut rest = &contents[head_bytes..];
        while !rest.is_empty() {
            let position = contents.len() - rest.len();
            let entry = match next_frame(&mut rest) {
                Some(bytes) => {
                    codec::decode_entry(bytes).map_err(|error| damaged(position, error.to_string()))?
                }
                None if is_last => {
                    let cut = segment.file.truncate(position as u64);
                    cut.map_err(|error| io_error(path, error))?;
                    break;
                }
                None => return Err(damaged(position, "an entry is unreadable".into())),
            };
            if entry.log_id.index != segment.next() {
                let what = format!("entry {} where {} is due", entry.log_id.index, segment.next());
                return Err(damaged(position, what));
            }
            loaded.entries.push(entry);
            segment.positions.push(position as u64);
            segment.length = (contents.len() - rest.len()) as u64;
        }
        if is_last {
            // From here on we stand by what we read. It may be in the page cache only: of a killed process,
            // or of one whose sync failed, and then the kernel holds the pages for clean. So write it again.
            let whole = &contents[..segment.length as usize];
            let kept = segment.file.write_all_at(&mut [IoSlice::new(whole)], 0);
            let kept = kept.and_then(|()| segment.file.sync_all());
            kept.map_err(|error| io_error(path, error))?;
        }
        self.segments.push_back(segment);
        Ok(())
    }

    /// `room`: bytes that will be appended at once.
    fn start_segment(&mut self, first: u64, before: Option<LogId>, room: u64) -> Result<(), LogError> {
        let path = self.dir.join(format!("{first:020}{SUFFIX}"));
        let head = head(first, before);
        let reserved = head.len() as u64 + room + RESERVE_BYTES + LAST_BYTES;
        let make = || -> io::Result<F::File> {
            let file = self.files.open(&path, OpenMode::CreateNew)?;
            file.preallocate(0, reserved)?;
            file.write_all_at(&mut [IoSlice::new(&head)], 0)?;
            file.sync_all()?;
            self.files.sync_dir(&self.dir)?;
            Ok(file)
        };
        let file = make().map_err(|error| io_error(&path, error))?;
        let length = head.len() as u64;
        self.segments.push_back(Segment { path, file, first, positions: Vec::new(), length, reserved });
        Ok(())
    }

    fn remove(&self, segment: Segment<F::File>) -> Result<(), LogError> {
        let path = segment.path.clone();
        drop(segment);
        self.remove_file(&path)
    }

    fn remove_if_there(&self, path: &Path) -> Result<(), LogError> {
        match self.files.exists(path) {
            Ok(true) => self.remove_file(path),
            Ok(false) => Ok(()),
            Err(error) => Err(io_error(path, error)),
        }
    }

    /// Each removal is durable before the next, so that no gap can remain.
    fn remove_file(&self, path: &Path) -> Result<(), LogError> {
        let removed = self.files.remove_file(path).and_then(|()| self.files.sync_dir(&self.dir));
        removed.map_err(|error| io_error(path, error))
    }
}

/// Whether the disk, or the quota on it, is used up.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The stored form of an entry with its length and CRC.
pub fn frame(entry: &Entry) -> Vec<u8> {
    framed(|bytes| codec::encode_entry(entry, bytes))
}

fn framed(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![0; FRAME_HEAD_BYTES];
    encode(&mut bytes);
    let length = bytes.len() - FRAME_HEAD_BYTES;
    assert!(length <= FRAME_BYTES_MAX, "the controller bounds its entries");
    let crc = crc32c::of(&bytes[FRAME_HEAD_BYTES..]);
    bytes[..4].copy_from_slice(&(length as u32).to_be_bytes());
    bytes[4..8].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// Takes a frame off the front; `None`: there is no whole, intact one.
fn next_frame<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, tail) = rest.split_first_chunk::<4>()?;
    let (crc, tail) = tail.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    // A length of 0 is what a hole in a torn file reads as; its CRC would fit.
    if length == 0 || length > FRAME_BYTES_MAX {
        return None;
    }
    let (bytes, tail) = tail.split_at_checked(length)?;
    if crc32c::of(bytes) != u32::from_be_bytes(*crc) {
        return None;
    }
    *rest = tail;
    Some(bytes)
}

fn head(first: u64, before: Option<LogId>) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend(framed(|bytes| {
        let mut writer = Writer(bytes);
        writer.u8(VERSION);
        writer.unsigned(first);
        codec::write_log_id_option(&mut writer, &before);
    }));
    head
}

enum HeadError {
    Broken,
    Version(u8),
}

/// The log id before the first entry, and how long the head is.
fn read_head(contents: &[u8], first: u64) -> Result<(Option<LogId>, usize), HeadError> {
    let mut rest = contents.strip_prefix(MAGIC).ok_or(HeadError::Broken)?;
    let mut reader = Reader(next_frame(&mut rest).ok_or(HeadError::Broken)?);
    let length = contents.len() - rest.len();
    match reader.u8() {
        Ok(VERSION) => {}
        Ok(version) => return Err(HeadError::Version(version)),
        Err(_) => return Err(HeadError::Broken),
    }
    let mut fields = || -> Result<(u64, Option<LogId>), DecodeError> {
        let fields = (reader.unsigned()?, codec::read_log_id_option(&mut reader)?);
        reader.end()?;
        Ok(fields)
    };
    match fields() {
        Ok((index, before)) if index == first => Ok((before, length)),
        _ => Err(HeadError::Broken),
    }
}

fn read_all(file: &impl FileHandle) -> io::Result<Vec<u8>> {
    let mut contents = vec![0; file.len()? as usize];
    let read = file.read_at(&mut contents, 0)?;
    contents.truncate(read);
    Ok(contents)
}

fn io_error(path: &Path, error: io::Error) -> LogError {
    LogError::Io { path: path.to_owned(), error }
}

#[cfg(test)]
#[path = "log_files_tests.rs"]
mod tests;
