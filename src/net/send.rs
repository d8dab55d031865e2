//! A response on its way into the socket: encoded pieces by `sendmsg`, large file ranges by `sendfile`,
//! small ones read from the page cache into the same `sendmsg`.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::rc::Rc;

use bytes::Bytes;

use super::figures::ListenerCounters;
use super::watch::{Phase, Watch};
use crate::api::Piece;
use crate::base::clock;
use crate::io::net::{SendFileError, SocketWriter};
use crate::io::os::OsFiles;
use crate::io::{FileHandle, cached};
use crate::log::FileRange;
use crate::shard::Shard;

/// Ranges from here on go by `sendfile`; below, the system call costs more than the copy (50 × 1 KiB: 400 µs by
/// sendfile, 60–80 µs read and sent together; 1 × 64 KiB: equal).
const SENDFILE_BYTES_MIN: u32 = 64 << 10;

/// File bytes sent between two looks at the page cache, which are up to three system calls.
const PROBE_EVERY: u64 = 1 << 20;

/// What the disk is asked for behind a stretch that was not in the page cache: whoever reads old records goes on
/// reading them.
const READ_AHEAD_BYTES: u64 = 2 << 20;

/// Pieces that wait for one `sendmsg` at most.
const PIECES_PER_SEND_MAX: usize = 512;

/// Bytes read from files that wait for one `sendmsg` at most.
const READ_BYTES_PER_SEND_MAX: usize = 256 << 10;

/// Why a response did not reach the peer.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("peer: {0}")]
    Peer(std::io::Error),
    /// The disk's fault, not the peer's: it is logged as such.
    #[error("log file: {error}")]
    File { directory: usize, error: std::io::Error },
    #[error("log file: ended {missing} bytes short of what was promised")]
    EndedShort { missing: u64 },
}

/// What of answers is held in memory until the peer has taken it.
#[derive(Default, Debug)]
pub(super) struct Held {
    encoded: usize,
    /// Ranges of files that are read, a few at a time.
    read: usize,
}

impl Held {
    pub(super) fn add(&mut self, piece: &Piece) {
        match piece {
            Piece::Bytes(bytes) => self.encoded += bytes.len(),
            Piece::File(range) => self.add_range(range.length),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.encoded + self.read.min(READ_BYTES_PER_SEND_MAX + SENDFILE_BYTES_MIN as usize)
    }

    fn add_range(&mut self, length: u32) {
        if length < SENDFILE_BYTES_MIN {
            self.read += length as usize;
        }
    }
}

/// Sends `pieces` in order, all of them; `watch` follows what the peer takes.
pub(super) async fn send(
    shard: &Rc<Shard>,
    listener: &ListenerCounters,
    socket: &mut SocketWriter,
    pieces: &mut Vec<Piece>,
    watch: &Watch,
) -> Result<(), SendError> {
    let mut waiting: Vec<Bytes> = Vec::with_capacity(pieces.len());
    let mut read_bytes = 0;
    // What is read is held until the peer has taken it; the system call costs more, and nothing else.
    let sendfile_bytes_min = if shard.is_serve_memory_tight() { 0 } else { SENDFILE_BYTES_MIN };
    for piece in pieces.drain(..) {
        match piece {
            Piece::Bytes(bytes) => waiting.push(bytes),
            Piece::File(range) if range.length < sendfile_bytes_min => {
                read_bytes += range.length as usize;
                waiting.push(read_small(shard, range, watch).await?);
            }
            Piece::File(range) => {
                send_waiting(shard, listener, socket, &mut waiting, true).await?;
                send_range(shard, listener, socket, range, watch).await?;
                read_bytes = 0;
            }
        }
        if waiting.len() >= PIECES_PER_SEND_MAX || read_bytes >= READ_BYTES_PER_SEND_MAX {
            send_waiting(shard, listener, socket, &mut waiting, true).await?;
            watch.last_active().set(clock::monotonic());
            read_bytes = 0;
        }
    }
    send_waiting(shard, listener, socket, &mut waiting, false).await
}

async fn send_waiting(
    shard: &Shard,
    listener: &ListenerCounters,
    socket: &mut SocketWriter,
    waiting: &mut Vec<Bytes>,
    more: bool,
) -> Result<(), SendError> {
    if waiting.is_empty() {
        return Ok(());
    }
    let length: usize = waiting.iter().map(Bytes::len).sum();
    let mut slices: Vec<IoSlice<'_>> = waiting.iter().map(|bytes| IoSlice::new(bytes)).collect();
    socket.send(&mut slices, more).await.map_err(SendError::Peer)?;
    shard.counters.bytes_out.add(length as u64);
    listener.bytes_out.add(length as u64);
    waiting.clear();
    Ok(())
}

async fn read_small(shard: &Rc<Shard>, range: FileRange<OsFiles>, watch: &Watch) -> Result<Bytes, SendError> {
    let mut buffer = vec![0; range.length as usize];
    let read = range.file.read_cached_at(&mut buffer, range.position).map_err(file_error(&range))?;
    if read == Some(buffer.len()) {
        return Ok(buffer.into());
    }
    // Not in the page cache: a file thread waits for the disk.
    let threads = &shard.settings().directories.readers;
    let failed = file_error(&range);
    watch.enter(Phase::Serving, clock::monotonic());
    let (buffer, read) = threads
        .run("cold read", move || {
            let read = range.file.read_at(&mut buffer, range.position);
            (buffer, read)
        })
        .await;
    watch.enter(Phase::Sending, clock::monotonic());
    let read = read.map_err(failed)?;
    match buffer.len() - read {
        0 => Ok(buffer.into()),
        missing => Err(SendError::EndedShort { missing: missing as u64 }),
    }
}

async fn send_range(
    shard: &Rc<Shard>,
    listener: &ListenerCounters,
    socket: &mut SocketWriter,
    range: FileRange<OsFiles>,
    watch: &Watch,
) -> Result<(), SendError> {
    let end = range.position + u64::from(range.length);
    let mut position = range.position;
    while position < end {
        let length = PROBE_EVERY.min(end - position);
        if !in_page_cache(&range, position, length)? {
            let file = range.file.clone();
            let threads = &shard.settings().directories.readers;
            // Our disk's time, not the peer's.
            watch.enter(Phase::Serving, clock::monotonic());
            let read = threads
                .run("cold read", move || {
                    let file = file.as_fd();
                    cached::read_ahead(&file, position, length + READ_AHEAD_BYTES);
                    cached::warm(&file, position, length)
                })
                .await;
            watch.enter(Phase::Sending, clock::monotonic());
            read.map_err(file_error(&range))?;
        }
        socket.send_file(&**range.file, position, length).await.map_err(|error| match error {
            SendFileError::Peer(error) => SendError::Peer(error),
            SendFileError::File(error) => file_error(&range)(error),
            SendFileError::EndedShort { missing } => SendError::EndedShort { missing },
        })?;
        position += length;
        watch.last_active().set(clock::monotonic());
        shard.counters.bytes_out.add(length);
        listener.bytes_out.add(length);
    }
    Ok(())
}

/// At the tail of a log, the first and the last byte are looked for: 1.2 µs. Elsewhere every page is, too, which costs
/// 3–6 µs more for 256 KiB: memory that ran short may have taken any of them.
fn in_page_cache(range: &FileRange<OsFiles>, position: u64, length: u64) -> Result<bool, SendError> {
    if !range.at_tail {
        return cached::is_ready(&range.file.as_fd(), position, length).map_err(file_error(range));
    }
    let mut byte = [0];
    for at in [position, position + length - 1] {
        if range.file.read_cached_at(&mut byte, at).map_err(file_error(range))?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An error of the range's file: its directory has to answer for it.
fn file_error(range: &FileRange<OsFiles>) -> impl FnOnce(std::io::Error) -> SendError + use<> {
    let directory = range.file.directory();
    move |error| SendError::File { directory, error }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::clock::Timestamp;
    use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicPartition};
    use crate::log::{Batch, Gaps, Log, LogContext, OpenOptions, Origin, Read, ReadRequest};
    use crate::wire::record::{BatchBuilder, Compression};

    /// A log in `dir` with a batch of 16 MiB that is on the disk, and the range of a fetch of it.
    fn range_of_a_long_batch(dir: &std::path::Path) -> FileRange<OsFiles> {
        let now = clock::now();
        let options = OpenOptions {
            dir: dir.join("t-0"),
            topic_partition: TopicPartition::new("t", PartitionIndex(0)),
            config: Arc::default(),
            recovery_point: Offset::ZERO,
            log_start: Offset::ZERO,
            cleaned: None,
            gaps: Gaps::BelowRecoveryPoint,
            clean: false,
        };
        let mut log = Log::open(&Arc::new(LogContext::new(OsFiles)), options, now).unwrap();
        let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE);
        builder.append(Timestamp(1), None, Some(&vec![1; 16 << 20]), &[]);
        let mut batches = [Batch::from_bytes(&builder.finish().unwrap()).unwrap()];
        assert!(log.append(&mut batches, LeaderEpoch(0), Origin::Coordinator, now)[0].is_ok());
        let flushed = log.flush_job().unwrap().run();
        log.finish_flush(flushed, now).unwrap();
        let request = ReadRequest {
            offset: Offset::ZERO,
            bytes_max: 1,
            upper_bound: log.log_end(),
            whole_first_batch: true,
            with_aborted: false,
        };
        let Read::Plan(plan) = log.read(request).unwrap() else { panic!("it has just been appended") };
        plan.range.unwrap()
    }

    #[test]
    fn a_hole_between_the_ends_of_a_range_is_seen_except_at_the_tail() {
        // Not in a tmpfs, whose pages cannot be dropped.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let at_tail = range_of_a_long_batch(dir.path());
        assert!(at_tail.at_tail);
        let old = FileRange { at_tail: false, ..at_tail.clone() };
        let is_there = |range| in_page_cache(range, 0, u64::from(at_tail.length)).unwrap();
        assert!(is_there(&at_tail) && is_there(&old));
        // Some MiB: the kernel drops whole folios.
        cached::forget(&old.file.as_fd(), 4 << 20, 8 << 20);
        assert!(is_there(&at_tail), "its ends are");
        assert!(!is_there(&old));
        cached::warm(&old.file.as_fd(), 4 << 20, 8 << 20).unwrap();
        assert!(is_there(&old));
    }

    #[test]
    fn of_ranges_that_are_read_no_more_is_held_than_waits_for_one_send() {
        let mut held = Held::default();
        held.add(&Piece::Bytes(Bytes::from_static(b"head")));
        held.add_range(60 << 10);
        held.add_range(SENDFILE_BYTES_MIN);
        assert_eq!(held.bytes(), 4 + (60 << 10));
        (0..900).for_each(|_| held.add_range(60 << 10));
        assert_eq!(held.bytes(), 4 + (256 << 10) + (64 << 10));
    }
}
