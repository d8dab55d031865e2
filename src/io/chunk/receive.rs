//! The receive buffer of one connection.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::{CLASS_BYTES, Chunk, ChunkPool, Ticket, Wish};

/// Frames up to this size are copied out: as cheap as a slice, and a small request that waits long (a fetch,
/// a join) does not hold a chunk.
const COPIED_BYTES_MAX: usize = 4096;
/// So much of a partial frame is put aside while the connection waits, instead of a chunk.
const SET_ASIDE_BYTES_MAX: usize = 1024;
/// A frame up to this gets its memory when its length is known; a longer one as its bytes come.
const TRUSTED_BYTES_MAX: usize = 1 << 20;
/// The same while memory is tight.
const TRUSTED_WHEN_TIGHT_BYTES_MAX: usize = 64 << 10;
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
    /// What is received, while there is no chunk.
    aside: Vec<u8>,
    /// The frame at the front has so many bytes.
    frame_bytes: usize,
    class: usize,
    small_receives: u8,
    ticket: Option<Ticket>,
    /// Memory is tight: no more is received than can be put aside, until the frame's length is known.
    sparing: bool,
    state: Rc<ReceiveState>,
}

/// What others on the shard see of a buffer.
#[derive(Default, Debug)]
pub struct ReceiveState {
    waits: Cell<bool>,
    held_bytes: Cell<usize>,
}

impl ReceiveState {
    /// It waits for the budget.
    pub fn waits(&self) -> bool {
        self.waits.get()
    }

    /// The chunk that it holds.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.get()
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
            frame_bytes: 0,
            class: 0,
            small_receives: 0,
            ticket: None,
            sparing: false,
            state: Rc::default(),
        }
    }

    /// What others may watch.
    pub fn state(&self) -> Rc<ReceiveState> {
        self.state.clone()
    }

    /// Received and not yet taken.
    pub fn filled(&self) -> &[u8] {
        match &self.chunk {
            // SAFETY: `start..end` lies in the chunk and was written; only `room` gives out a `&mut` into
            // the chunk, behind `end` and borrowing `self` mutably.
            Some(chunk) => unsafe {
                std::slice::from_raw_parts(chunk.start().add(self.start), self.end - self.start)
            },
            None => &self.aside,
        }
    }

    /// Whether what is received fits aside, so that no chunk is held while the connection waits for more.
    pub fn can_put_aside(&self) -> bool {
        self.filled().len() <= SET_ASIDE_BYTES_MAX
    }

    /// Cuts the first `length` bytes off. No copy above 4 KiB. Panics when there are fewer.
    pub fn take(&mut self, length: usize) -> Bytes {
        let filled = self.filled();
        assert!(length <= filled.len(), "{length} bytes taken of {}", filled.len());
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
        self.frame_bytes = 0;
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
        self.frame_bytes = 0;
        if self.chunk.is_none() {
            self.aside.drain(..length);
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
        self.frame_bytes = length;
    }

    /// Makes sure that there is room to receive into, which may have to wait for the pool's budget.
    pub(in crate::io) fn poll_prepare(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.start == self.end
            && let Some(chunk) = &mut self.chunk
        {
            self.cut = Bytes::new();
            if Arc::get_mut(chunk).is_some() {
                // All slices are gone: from the beginning.
                (self.start, self.end) = (0, 0);
            } else if chunk.capacity() - self.end < chunk.capacity() / 4 {
                self.set_chunk(None);
            }
        }
        let filled = self.filled().len();
        let (position, capacity) = match &self.chunk {
            Some(chunk) => (self.start, chunk.capacity()),
            None => (0, 0),
        };
        if self.frame_bytes > SET_ASIDE_BYTES_MAX {
            self.sparing = false;
        }
        let mut needs = self.needs(filled, capacity - position, TRUSTED_BYTES_MAX);
        if position + needs <= capacity {
            return Poll::Ready(Ok(()));
        }
        let tight = self.pool.is_tight();
        if tight {
            needs = self.needs(filled, capacity - position, TRUSTED_WHEN_TIGHT_BYTES_MAX);
            if position + needs <= capacity {
                return Poll::Ready(Ok(()));
            }
        }
        let bytes = if tight { needs } else { needs.max(CLASS_BYTES[self.class]) };
        let wish = Wish { bytes, holds_bytes: capacity, exact: tight };
        let taken = self.pool.poll_take(cx, wish, &mut self.ticket);
        self.state.waits.set(taken.is_pending());
        let chunk = ready!(taken)?;
        let filled = self.filled();
        // SAFETY: the new chunk is ours alone, holds `needs` bytes and does not overlap `filled`.
        unsafe { std::ptr::copy_nonoverlapping(filled.as_ptr(), chunk.start(), filled.len()) };
        (self.start, self.end) = (0, filled.len());
        self.cut = Bytes::new();
        self.aside = Vec::new();
        self.sparing = tight && self.frame_bytes <= SET_ASIDE_BYTES_MAX;
        self.set_chunk(Some(chunk));
        Poll::Ready(Ok(()))
    }

    fn set_chunk(&mut self, chunk: Option<Arc<Chunk>>) {
        self.state.held_bytes.set(chunk.as_ref().map_or(0, |chunk| chunk.capacity()));
        self.chunk = chunk;
    }

    /// What a chunk must hold, of which `usable` bytes are there from the frame's start on. Else a few peers
    /// that send nothing but a large length would hold the whole budget.
    fn needs(&self, filled: usize, usable: usize, trusted_bytes_max: usize) -> usize {
        let whole = self.frame_bytes.max(filled + 1);
        if whole <= trusted_bytes_max {
            whole
        } else if usable >= trusted_bytes_max && usable > filled {
            filled + 1
        } else {
            whole.min((filled * GROWTH).max(trusted_bytes_max))
        }
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
                if self.sparing {
                    // Not empty: what is filled is less than a frame that can be put aside.
                    room = room.min((SET_ASIDE_BYTES_MAX + self.start).saturating_sub(self.end).max(1));
                }
                std::slice::from_raw_parts_mut(chunk.start().add(self.end), room)
            },
            None => &mut [],
        }
    }

    /// Says that `received` bytes of the room are filled.
    pub(in crate::io) fn advance(&mut self, received: usize) {
        let Some(chunk) = &self.chunk else { unreachable!("bytes were received into a chunk") };
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
        if self.chunk.is_none() || filled.len() > SET_ASIDE_BYTES_MAX {
            return;
        }
        let aside = filled.to_vec();
        self.aside = aside;
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
