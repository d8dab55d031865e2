//! The receive buffer of one connection.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;

use super::{CLASS_BYTES, Chunk, ChunkPool, Lane, SHORT_BYTES_MAX, Share, Ticket, Wish};

/// Frames up to this size are copied out: as cheap as a slice, and a small request that waits long (a fetch,
/// a join) does not hold a chunk.
const COPIED_BYTES_MAX: usize = 4096;
/// So much of a partial frame is put aside while the connection waits, instead of a chunk.
const SET_ASIDE_BYTES_MAX: usize = 1024;
/// A frame up to this gets its memory when its length is known; a longer one as its bytes come.
const TRUSTED_BYTES_MAX: usize = 1 << 20;
/// The same while memory is tight, from a connection that has brought such a frame to its end before.
const TRUSTED_WHEN_TIGHT_BYTES_MAX: usize = 64 << 10;
/// From others.
const LENT_BYTES_MAX: usize = 8 << 10;
/// A long frame's next chunk is so many times what has come of it: a third of it is copied at most.
const GROWTH: usize = 4;
/// After so many small receives in a row a connection goes down to smaller chunks.
const SMALL_RECEIVES: u8 = 16;

/// Bytes that were received and not yet taken. Holds no memory while it is empty and the connection waits.
#[derive(Debug)]
pub struct ReceiveBuffer {
    pool: ChunkPool,
    chunk: Option<Arc<Chunk>>,
    /// In the chunk: the first byte not taken, the end of what was received.
    start: usize,
    end: usize,
    /// A slice of the chunk from `start` on, to cut the next frames from without an allocation for each.
    cut: Bytes,
    /// What is received, while there is no chunk: up to `aside_end`, behind it is room.
    aside: Vec<u8>,
    aside_end: usize,
    /// The frame at the front has so many bytes.
    frame_bytes: usize,
    class: usize,
    small_receives: u8,
    ticket: Option<Ticket>,
    /// Frames have come to their end: of the short kind, more than a little; of the long kind.
    proven_short: bool,
    proven_long: bool,
    /// No chunk is to be taken, only what can be put aside.
    sparing: bool,
    /// Nothing behind the frame at the front is to be received.
    stops_at_frame: bool,
    state: Rc<ReceiveState>,
}

/// What a connection's receives have shown so far, for its next buffer.
#[derive(Clone, Copy, Default, Debug)]
pub struct Standing {
    proven_short: bool,
    proven_long: bool,
    class: usize,
}

/// What others on the shard see of a buffer.
#[derive(Default)]
pub struct ReceiveState {
    waits: Cell<bool>,
    held: Cell<Option<Share>>,
    frame_bytes: Cell<usize>,
    closed: Cell<bool>,
    waits_for_close: Cell<Option<Waker>>,
}

impl fmt::Debug for ReceiveState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ReceiveState").field("held", &self.held).field("waits", &self.waits).finish()
    }
}

impl ReceiveState {
    /// It waits for the budget.
    pub fn waits(&self) -> bool {
        self.waits.get()
    }

    /// The chunk that it holds.
    pub fn held_bytes(&self) -> usize {
        self.held.get().map_or(0, |share| share.bytes)
    }

    /// The kind of frames that it is counted with, below [`super::FRAME_KINDS`] unless it is counted with none.
    pub fn kind(&self) -> Option<usize> {
        self.held.get().map(|share| share.lane as usize)
    }

    /// The whole length of the frame that it waits for the rest of.
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes.get()
    }

    /// Ends a wait for the budget: its connection is closed.
    pub fn close(&self) {
        self.closed.set(true);
        if let Some(waker) = self.waits_for_close.take() {
            waker.wake();
        }
    }

    /// Ready when it is closed. For the connection's task.
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.closed.get() {
            return Poll::Ready(());
        }
        self.waits_for_close.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl ReceiveBuffer {
    pub fn new(pool: ChunkPool) -> Self {
        Self {
            pool,
            chunk: None,
            start: 0,
            end: 0,
            cut: Bytes::new(),
            aside: Vec::new(),
            aside_end: 0,
            frame_bytes: 0,
            class: 0,
            small_receives: 0,
            ticket: None,
            proven_short: false,
            proven_long: false,
            sparing: false,
            stops_at_frame: false,
            state: Rc::default(),
        }
    }

    /// For a connection that is known already.
    pub fn of(pool: ChunkPool, standing: Standing) -> Self {
        let Standing { proven_short, proven_long, class } = standing;
        let mut buffer = Self::new(pool);
        (buffer.proven_short, buffer.proven_long, buffer.class) = (proven_short, proven_long, class);
        buffer
    }

    pub fn standing(&self) -> Standing {
        Standing { proven_short: self.proven_short, proven_long: self.proven_long, class: self.class }
    }

    /// Whether to receive no more than the rest of the frame at the front, so that the buffer gets empty.
    pub fn stop_at_frame(&mut self, stops: bool) {
        self.stops_at_frame = stops;
    }

    /// What others may watch.
    pub fn state(&self) -> Rc<ReceiveState> {
        self.state.clone()
    }

    /// The connection is known to bring its frames to their end.
    #[cfg(test)]
    pub(super) fn trust(&mut self) {
        (self.proven_short, self.proven_long) = (true, true);
    }

    /// Received and not yet taken.
    pub fn filled(&self) -> &[u8] {
        match &self.chunk {
            // SAFETY: `start..end` lies in the chunk and was written; only `room` gives out a `&mut` into
            // the chunk, behind `end` and borrowing `self` mutably.
            Some(chunk) => unsafe {
                std::slice::from_raw_parts(chunk.start().add(self.start), self.end - self.start)
            },
            None => &self.aside[..self.aside_end],
        }
    }

    /// From now on receives no more than can be put aside, so that no chunk is held; or again as much as comes.
    pub fn spare(&mut self, sparing: bool) {
        self.sparing = sparing;
        if sparing {
            self.rest();
        }
    }

    /// Whether more can be put aside.
    pub fn has_room_aside(&self) -> bool {
        self.filled().len() < SET_ASIDE_BYTES_MAX
    }

    /// Cuts the first `length` bytes off. No copy above 4 KiB. Panics when there are fewer.
    pub fn take(&mut self, length: usize) -> Bytes {
        let filled = self.filled();
        assert!(length <= filled.len(), "{length} bytes taken of {}", filled.len());
        self.proven_short |= length > SET_ASIDE_BYTES_MAX;
        self.proven_long |= length > SHORT_BYTES_MAX;
        let filled = self.filled();
        if length <= COPIED_BYTES_MAX {
            let taken = Bytes::copy_from_slice(&filled[..length]);
            self.skip(length);
            return taken;
        }
        // More than is ever put aside, so it lies in a chunk.
        let Some(chunk) = &self.chunk else { unreachable!("{length} bytes are never put aside") };
        if self.cut.len() < length {
            self.cut = Bytes::from_owner(Written { chunk: chunk.clone(), start: self.start, end: self.end });
        }
        let taken = self.cut.split_to(length);
        self.start += length;
        self.set_frame_bytes(0);
        if self.cut.is_empty() {
            // An empty rest would keep the chunk.
            self.cut = Bytes::new();
        }
        taken
    }

    /// Drops the first `length` bytes. Panics when there are fewer.
    pub fn skip(&mut self, length: usize) {
        let filled = self.filled().len();
        assert!(length <= filled, "{length} bytes skipped of {filled}");
        self.set_frame_bytes(0);
        if self.chunk.is_none() {
            self.aside.drain(..length);
            self.aside_end -= length;
            return;
        }
        self.start += length;
        // A rest that does not start where the next frame does is of no use.
        let rest = self.cut.len().saturating_sub(length);
        if rest == 0 {
            self.cut = Bytes::new();
        } else {
            bytes::Buf::advance(&mut self.cut, length);
        }
    }

    /// Says that the frame at the front has `length` bytes in all, so that the next receives bring a chunk
    /// that holds it whole. Check the length against the limit first.
    pub fn reserve(&mut self, length: usize) {
        self.set_frame_bytes(length);
    }

    fn set_frame_bytes(&mut self, length: usize) {
        self.frame_bytes = length;
        self.state.frame_bytes.set(length);
    }

    /// Makes sure that there is room to receive into, which may have to wait for the pool's budget.
    pub(in crate::io) fn poll_prepare(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.start == self.end
            && let Some(chunk) = &mut self.chunk
        {
            self.cut = Bytes::new();
            if chunk.lane == Lane::Beyond {
                // It was for one frame.
                self.set_chunk(None);
            } else if Arc::get_mut(chunk).is_some() {
                // All slices are gone: from the beginning.
                (self.start, self.end) = (0, 0);
            } else if chunk.capacity() - self.end < chunk.capacity() / 4 {
                self.set_chunk(None);
            }
        }
        let tight = match self.needs_if_no_room(TRUSTED_BYTES_MAX) {
            None => {
                self.give_up_waiting();
                return Poll::Ready(Ok(()));
            }
            Some(_) => self.sparing || self.pool.is_tight(),
        };
        let trusted = if tight { self.trusted_when_tight() } else { TRUSTED_BYTES_MAX };
        if tight {
            // If it is little it goes aside, and who asks for more then holds nothing.
            self.rest();
            if self.receives_aside() {
                return Poll::Ready(Ok(()));
            }
        }
        let Some(needs) = self.needs_if_no_room(trusted) else {
            // It may have waited for more than it must have now.
            self.give_up_waiting();
            return Poll::Ready(Ok(()));
        };
        let wish = Wish {
            bytes: if tight { needs } else { needs.max(CLASS_BYTES[self.class]) },
            frame_bytes: self.frame_bytes.max(needs),
            holds: self.chunk.as_ref().map(|chunk| chunk.share()),
            exact: tight,
            is_proven: [self.proven_short, self.proven_long],
        };
        let taken = self.pool.poll_take(cx, wish, &mut self.ticket);
        if taken.is_pending() && self.pool.has_reserve() && self.receives_aside() {
            return Poll::Ready(Ok(()));
        }
        self.state.waits.set(taken.is_pending());
        if taken.is_pending() && self.state.poll_closed(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let chunk = ready!(taken)?;
        let filled = self.filled();
        // SAFETY: the new chunk is ours alone, holds `needs` bytes and does not overlap `filled`.
        unsafe { std::ptr::copy_nonoverlapping(filled.as_ptr(), chunk.start(), filled.len()) };
        (self.start, self.end) = (0, filled.len());
        self.cut = Bytes::new();
        (self.aside, self.aside_end) = (Vec::new(), 0);
        self.set_chunk(Some(chunk));
        Poll::Ready(Ok(()))
    }

    /// Makes room aside if nothing more than that may be needed.
    fn receives_aside(&mut self) -> bool {
        if self.chunk.is_some() || self.frame_bytes > SET_ASIDE_BYTES_MAX || !self.has_room_aside() {
            return false;
        }
        self.aside.resize(SET_ASIDE_BYTES_MAX, 0);
        self.give_up_waiting();
        true
    }

    fn is_proven(&self) -> bool {
        if self.frame_bytes > SHORT_BYTES_MAX { self.proven_long } else { self.proven_short }
    }

    fn trusted_when_tight(&self) -> usize {
        if self.is_proven() { TRUSTED_WHEN_TIGHT_BYTES_MAX } else { LENT_BYTES_MAX }
    }

    fn set_chunk(&mut self, chunk: Option<Arc<Chunk>>) {
        self.state.held.set(chunk.as_ref().map(|chunk| chunk.share()));
        self.chunk = chunk;
    }

    /// What a chunk must hold if the present one does not. A frame above `trusted_bytes_max` gets memory as its bytes
    /// come: else a few peers that send nothing but a large length would hold the whole budget.
    fn needs_if_no_room(&self, trusted_bytes_max: usize) -> Option<usize> {
        let filled = self.filled().len();
        let (position, capacity) = match &self.chunk {
            Some(chunk) => (self.start, chunk.capacity()),
            None => (0, 0),
        };
        let usable = capacity - position;
        let whole = self.frame_bytes.max(filled + 1);
        let needs = if whole <= trusted_bytes_max {
            whole
        } else if usable >= trusted_bytes_max && usable > filled {
            filled + 1
        } else {
            whole.min((filled * GROWTH).max(trusted_bytes_max))
        };
        (position + needs > capacity).then_some(needs)
    }

    /// Leaves the line for the budget: whoever stands behind must not wait for one that does not look.
    pub(in crate::io) fn give_up_waiting(&mut self) {
        self.state.waits.set(false);
        if let Some(ticket) = self.ticket.take() {
            self.pool.leave_line(ticket);
        }
    }

    /// Where the next bytes go; not empty after [`ReceiveBuffer::poll_prepare`].
    pub(in crate::io) fn room(&mut self) -> &mut [u8] {
        match &self.chunk {
            // SAFETY: `end..capacity` lies in the chunk, all its pages are initialised (zero at first), and
            // no slice reaches behind `end`: each was made of bytes already received. One buffer at a time
            // has the chunk, and it is borrowed mutably here.
            Some(chunk) => unsafe {
                let mut room = chunk.capacity() - self.end;
                if chunk.lane == Lane::Beyond || self.stops_at_frame {
                    // Nothing of the next frame, which would keep the chunk.
                    room = room.min((self.start + self.frame_bytes).saturating_sub(self.end).max(1));
                }
                std::slice::from_raw_parts_mut(chunk.start().add(self.end), room)
            },
            None if self.stops_at_frame => {
                let rest = self.frame_bytes.saturating_sub(self.aside_end).max(1);
                let end = self.aside.len().min(self.aside_end + rest);
                &mut self.aside[self.aside_end..end]
            }
            None => &mut self.aside[self.aside_end..],
        }
    }

    /// Says that `received` bytes of the room are filled.
    pub(in crate::io) fn advance(&mut self, received: usize) {
        let Some(chunk) = &self.chunk else {
            assert!(self.aside_end + received <= self.aside.len(), "{received} bytes received aside");
            self.aside_end += received;
            return;
        };
        let room = chunk.capacity() - self.end;
        assert!(received <= room, "{received} bytes received into {room}");
        self.end += received;
        if received == room {
            self.class = (self.class + 1).min(CLASS_BYTES.len() - 1);
            self.small_receives = 0;
        } else if self.class > 0 && self.end <= CLASS_BYTES[self.class - 1] / 2 {
            self.small_receives += 1;
            if self.small_receives == SMALL_RECEIVES {
                self.class -= 1;
                self.small_receives = 0;
            }
        } else {
            self.small_receives = 0;
        }
    }

    /// Gives the chunk up if the connection is about to wait and little or nothing is in it.
    pub(in crate::io) fn rest(&mut self) {
        let filled = self.filled();
        if filled.len() > SET_ASIDE_BYTES_MAX {
            return;
        }
        if self.chunk.is_none() {
            self.aside.truncate(self.aside_end);
            self.aside.shrink_to_fit();
            return;
        }
        self.aside = filled.to_vec();
        self.aside_end = self.aside.len();
        self.cut = Bytes::new();
        self.set_chunk(None);
        (self.start, self.end) = (0, 0);
    }
}

impl Drop for ReceiveBuffer {
    fn drop(&mut self) {
        self.give_up_waiting();
    }
}

/// Bytes of a chunk that are written and will not change while this exists.
struct Written {
    chunk: Arc<Chunk>,
    start: usize,
    end: usize,
}

impl AsRef<[u8]> for Written {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the buffer writes only behind `end` as long as this `Arc` exists, and begins again at 0
        // only when it has the chunk alone.
        unsafe { std::slice::from_raw_parts(self.chunk.start().add(self.start), self.end - self.start) }
    }
}
