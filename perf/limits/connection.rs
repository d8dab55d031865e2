//! One connection: what it has received, and what of its answers is not sent.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::cold;
use super::store::{PartitionAt, Range as FileRange, Store};
use super::wire::{self, Cursor, FETCH, Header, PRODUCE};

const BUFFER_BYTES_MIN: usize = 16 << 10;
const BUFFER_BYTES_MAX: usize = 1 << 20;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const FRAME_BYTES_MAX: usize = 128 << 20;
/// Shorter ranges are cheaper copied than sent by a call of their own.
const SENDFILE_BYTES_MIN: usize = 64 << 10;

pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// What of the buffer is received and not yet handled.
    filled: Range<usize>,
    /// The last receive left no room: there is more than the buffer takes at once.
    was_full: bool,
    /// Answers not yet sent, the file ranges between them.
    unsent: VecDeque<Part>,
    /// A Fetch that waits for something to read.
    parked: Option<Parked>,
    wants_writing: bool,
}

enum Part {
    Bytes { bytes: Vec<u8>, sent: usize },
    File(FileRange),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Bytes { bytes, .. } => bytes.len(),
            Part::File(range) => range.len,
        }
    }
}

struct Parked {
    frame: Vec<u8>,
    deadline: Instant,
}

/// What one turn has received for partitions and must answer after the write.
#[derive(Default)]
struct Appends {
    /// In the order of the requests.
    parts: Vec<(PartitionAt, Range<usize>)>,
    /// Frames to answer.
    frames: Vec<Range<usize>>,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: vec![0; BUFFER_BYTES_MIN],
            filled: 0..0,
            was_full: false,
            unsent: VecDeque::new(),
            parked: None,
            wants_writing: false,
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.parked.as_ref().map(|parked| parked.deadline)
    }

    /// The events to ask for, if they are others than before. A peer that does not read is not read either.
    pub fn changed_interest(&mut self) -> Option<EventFlags> {
        let wants_writing = !self.unsent.is_empty();
        if wants_writing == self.wants_writing {
            return None;
        }
        self.wants_writing = wants_writing;
        Some(if wants_writing { EventFlags::OUT } else { EventFlags::IN })
    }

    /// Does what the descriptor is ready for. An error ends the connection.
    pub fn turn(&mut self, flags: EventFlags, store: &mut Store) -> io::Result<()> {
        if flags.contains(EventFlags::OUT) {
            self.send()?;
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) && self.unsent.is_empty() {
            self.receive()?;
            self.handle(store)?;
            self.send()?;
        }
        Ok(())
    }

    /// Tries the parked Fetch again.
    pub fn wake(&mut self, store: &mut Store, now: Instant) -> io::Result<()> {
        let Some(parked) = self.parked.take() else { return Ok(()) };
        let last = parked.deadline <= now;
        if !self.fetch(&parked.frame, store, last)? {
            self.parked = Some(parked);
            return Ok(());
        }
        // What came behind it has waited.
        self.handle(store)?;
        self.send()
    }

    /// Receives what is there, at most what the buffer holds.
    fn receive(&mut self) -> io::Result<()> {
        self.make_room();
        let room = &mut self.buffer[self.filled.end..];
        match rustix::net::recv(&self.stream, room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, count)) => {
                self.filled.end += count;
                self.was_full = self.filled.end == self.buffer.len();
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes room behind what is received: it moves to the front when little is left, and a buffer that is
    /// too small for what comes grows.
    fn make_room(&mut self) {
        if self.filled.is_empty() {
            self.filled = 0..0;
        }
        let filled = self.filled.len();
        let missing = self.frame_len().map_or(0, |len| len.saturating_sub(filled));
        let room = self.buffer.len() - self.filled.end;
        if room < missing.max(self.buffer.len() / 2) && self.filled.start > 0 {
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..filled;
        }
        let wanted = if self.was_full && self.buffer.len() < BUFFER_BYTES_MAX {
            self.buffer.len() * 4
        } else {
            self.buffer.len()
        };
        self.buffer.resize(wanted.max(filled + missing), 0);
    }

    /// The length of the first frame with its length field.
    fn frame_len(&self) -> Option<usize> {
        let length = self.buffer[self.filled.clone()].first_chunk::<4>()?;
        Some(4 + u32::from_be_bytes(*length) as usize)
    }

    /// Handles every whole frame: one write per partition and turn, then the answers.
    fn handle(&mut self, store: &mut Store) -> io::Result<()> {
        let mut appends = Appends::default();
        while let Some(len) = self.frame_len() {
            if len > FRAME_BYTES_MAX {
                return Err(io::Error::other("a frame is too long"));
            }
            if self.filled.len() < len || self.parked.is_some() {
                break;
            }
            let frame = self.filled.start + 4..self.filled.start + len;
            self.filled.start += len;
            let header = wire::header(&mut Cursor::new(&self.buffer[frame.clone()]))?;
            match header.api {
                PRODUCE => self.produce(frame, store, &mut appends)?,
                FETCH => {
                    self.flush(store, &mut appends)?;
                    let bytes = self.buffer[frame].to_vec();
                    if !self.fetch(&bytes, store, false)? {
                        let deadline = self.fetch_deadline(&bytes)?;
                        self.parked = Some(Parked { frame: bytes, deadline });
                    }
                }
                _ => {
                    self.flush(store, &mut appends)?;
                    let answer = cold::answer(&self.buffer[frame], store)?;
                    self.put(answer);
                }
            }
        }
        self.flush(store, &mut appends)
    }

    fn produce(&mut self, frame: Range<usize>, store: &Store, appends: &mut Appends) -> io::Result<()> {
        let bytes = &self.buffer[frame.clone()];
        let mut cursor = Cursor::new(bytes);
        let Header { version, .. } = wire::header(&mut cursor)?;
        let mut unknown = false;
        wire::produce(&mut cursor, version, |produced| {
            match store.find(produced.topic, produced.partition) {
                Some(at) => {
                    let start = frame.start + produced.at;
                    appends.parts.push((at, start..start + produced.len));
                }
                None => unknown = true,
            }
        })?;
        if unknown {
            return Err(io::Error::other("there is no such partition"));
        }
        appends.frames.push(frame);
        Ok(())
    }

    /// Writes what was gathered and answers it.
    fn flush(&mut self, store: &mut Store, appends: &mut Appends) -> io::Result<()> {
        if appends.frames.is_empty() {
            return Ok(());
        }
        let mut offsets = Vec::with_capacity(appends.parts.len());
        let mut ranges = Vec::with_capacity(appends.parts.len());
        let mut parts = appends.parts.as_slice();
        while let Some((at, _)) = parts.first().cloned() {
            // Neighbours for the same partition are one write.
            let count = parts.iter().take_while(|(other, _)| *other == at).count();
            ranges.clear();
            ranges.extend(parts[..count].iter().map(|(_, range)| range.clone()));
            store.append(at, &mut self.buffer, &ranges, &mut offsets)?;
            parts = &parts[count..];
        }
        let mut out = Vec::new();
        let mut offsets = offsets.into_iter();
        for frame in appends.frames.drain(..) {
            answer_produce(&self.buffer[frame], &mut offsets, &mut out)?;
        }
        appends.parts.clear();
        self.put(out);
        Ok(())
    }

    fn fetch_deadline(&self, frame: &[u8]) -> io::Result<Instant> {
        let mut cursor = Cursor::new(frame);
        let header = wire::header(&mut cursor)?;
        let (wait_ms, _) = wire::fetch(&mut cursor, header.version, |_| {})?;
        Ok(Instant::now() + Duration::from_millis(wait_ms))
    }

    /// Answers a Fetch. False if there is nothing to read; `last` answers even so.
    fn fetch(&mut self, frame: &[u8], store: &Store, last: bool) -> io::Result<bool> {
        let mut cursor = Cursor::new(frame);
        let header = wire::header(&mut cursor)?;
        let mut wanted = Vec::new();
        let (_, mut room) = wire::fetch(&mut cursor, header.version, |fetched| wanted.push(fetched))?;
        let mut ranges = Vec::with_capacity(wanted.len());
        let mut total = 0;
        for fetched in &wanted {
            let at = store.find(fetched.topic, fetched.partition);
            let range =
                at.and_then(|at| store.read(at, fetched.offset, fetched.bytes_max.min(room), total == 0));
            let len = range.as_ref().map_or(0, |range| range.len);
            total += len;
            room = room.saturating_sub(len);
            ranges.push((at, range));
        }
        if total == 0 && !last {
            return Ok(false);
        }
        self.answer_fetch(&header, &wanted, ranges, store)?;
        Ok(true)
    }

    fn answer_fetch(
        &mut self,
        header: &Header,
        wanted: &[wire::Fetched<'_>],
        ranges: Vec<(Option<PartitionAt>, Option<FileRange>)>,
        store: &Store,
    ) -> io::Result<()> {
        let mut out = Vec::new();
        wire::begin(&mut out, header.correlation);
        // No throttling, no error, no session.
        out.extend_from_slice(&[0; 4 + 2 + 4]);
        let topics = wanted.chunk_by(|one, other| one.topic == other.topic).count();
        wire::put_varint(&mut out, topics as u32 + 1);
        let mut parts = Vec::new();
        let mut ranges = ranges.into_iter();
        for topic in wanted.chunk_by(|one, other| one.topic == other.topic) {
            wire::put_topic(&mut out, topic[0].topic);
            wire::put_varint(&mut out, topic.len() as u32 + 1);
            for fetched in topic {
                let (at, range) = ranges.next().unwrap_or((None, None));
                let len = range.as_ref().map_or(0, |range| range.len);
                let error = if at.is_some() { 0 } else { UNKNOWN_TOPIC_OR_PARTITION };
                let end = at.map_or(-1, |at| store.end(at));
                wire::put_fetched(&mut out, fetched.partition, error, end, len);
                match range {
                    Some(range) if range.len >= SENDFILE_BYTES_MIN => {
                        parts.push(Part::Bytes { bytes: std::mem::take(&mut out), sent: 0 });
                        parts.push(Part::File(range));
                    }
                    Some(range) => read_into(&mut out, &range)?,
                    None => {}
                }
                out.push(0);
            }
            out.push(0);
        }
        out.push(0);
        parts.push(Part::Bytes { bytes: out, sent: 0 });
        let total: usize = parts.iter().map(Part::len).sum();
        if let Some(Part::Bytes { bytes, .. }) = parts.first_mut() {
            wire::set_len(bytes, 0, total);
        }
        self.unsent.extend(parts);
        Ok(())
    }

    fn put(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.unsent.push_back(Part::Bytes { bytes, sent: 0 });
        }
    }

    /// Sends until everything is gone or the socket takes no more.
    fn send(&mut self) -> io::Result<()> {
        while let Some(part) = self.unsent.pop_front() {
            let more = !self.unsent.is_empty();
            match part {
                Part::Bytes { bytes, mut sent } => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    let flags = if more { flags | SendFlags::MORE } else { flags };
                    match rustix::net::send(&self.stream, &bytes[sent..], flags) {
                        Ok(count) => sent += count,
                        Err(Errno::AGAIN | Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                    if sent < bytes.len() {
                        self.unsent.push_front(Part::Bytes { bytes, sent });
                        return Ok(());
                    }
                }
                Part::File(mut range) => {
                    match rustix::fs::sendfile(
                        &self.stream,
                        &range.file,
                        Some(&mut range.position),
                        range.len,
                    ) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        // The call has moved the position.
                        Ok(count) => range.len -= count,
                        Err(Errno::AGAIN | Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                    if range.len > 0 {
                        self.unsent.push_front(Part::File(range));
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn read_into(out: &mut Vec<u8>, range: &FileRange) -> io::Result<()> {
    let from = out.len();
    out.resize(from + range.len, 0);
    let read = rustix::io::pread(&range.file, &mut out[from..], range.position)?;
    if read == range.len { Ok(()) } else { Err(io::Error::other("a file is shorter than it was")) }
}

/// Answers one Produce request whose parts have the next offsets; acks=0 gets none.
fn answer_produce(
    frame: &[u8],
    offsets: &mut impl Iterator<Item = i64>,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let mut cursor = Cursor::new(frame);
    let header = wire::header(&mut cursor)?;
    let mut parts = Vec::new();
    let acks = wire::produce(&mut cursor, header.version, |produced| {
        parts.push((produced.topic, produced.partition, offsets.next().unwrap_or(-1)));
    })?;
    if acks == 0 {
        return Ok(());
    }
    let start = wire::begin(out, header.correlation);
    let topics = parts.chunk_by(|one, other| one.0 == other.0).count();
    wire::put_varint(out, topics as u32 + 1);
    for topic in parts.chunk_by(|one, other| one.0 == other.0) {
        wire::put_topic(out, topic[0].0);
        wire::put_varint(out, topic.len() as u32 + 1);
        for (_, partition, offset) in topic {
            wire::put_produced(out, *partition, 0, *offset);
        }
        out.push(0);
    }
    // No throttling, no tags.
    out.extend_from_slice(&[0; 5]);
    let total = out.len() - start;
    wire::set_len(out, start, total);
    Ok(())
}
