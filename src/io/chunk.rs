//! The memory that connections receive into: page-aligned chunks from a pool per shard, within a budget,
//! and [`ReceiveBuffer`], which borrows one only while bytes of a connection are in it.
//!
//! Payload is sliced from a chunk without a copy ([`bytes::Bytes`]); the chunk goes back to the pool it came
//! from when the last slice is dropped, on whatever thread. That costs a lock that is almost always free,
//! once per chunk: about 20 ns for 32 KiB and more.
//!
//! Never here: sockets, framing.

mod receive;

use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rustix::mm::{MapFlags, ProtFlags};

pub use self::receive::ReceiveBuffer;

/// Sizes that the pool keeps; a connection moves between them with the sizes of its receives. Longer frames
/// get a chunk of their own size, which is not kept.
const CLASS_BYTES: [usize; CLASSES] = [32 * 1024, 256 * 1024, 1024 * 1024];
const CLASSES: usize = 3;
const PAGE_BYTES: usize = 4096;

/// A shard's pool; cheap to clone, any thread.
#[derive(Clone, Debug)]
pub struct ChunkPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    budget_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    in_use_bytes: usize,
    free: [FreeList; CLASSES],
    /// Buffers that wait for the budget, the oldest first.
    line: BTreeMap<Ticket, Waiter>,
    next_ticket: u64,
    /// What the buffers in `line` hold meanwhile: partial frames that outgrew their chunks.
    held_in_line_bytes: usize,
    muted: u64,
}

#[derive(Default, Debug)]
struct FreeList {
    chunks: Vec<Memory>,
    /// The fewest that lay here since the last trim: nobody has needed them.
    unused: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Ticket(u64);

#[derive(Debug)]
struct Waiter {
    waker: Waker,
    wants_bytes: usize,
    holds_bytes: usize,
    /// It was woken because its turn has come; it keeps its place until it looks.
    called: bool,
}

impl ChunkPool {
    /// `budget_bytes` limits what buffers and slices hold together. One frame that is longer than all of it
    /// is still admitted when nothing else is held.
    pub fn new(budget_bytes: usize) -> Self {
        Self { shared: Arc::new(Shared { budget_bytes, state: Mutex::default() }) }
    }

    /// Held by buffers and slices.
    pub fn in_use_bytes(&self) -> usize {
        self.shared.lock().in_use_bytes
    }

    /// Lies ready for the next receive.
    pub fn idle_bytes(&self) -> usize {
        self.shared.lock().idle_bytes()
    }

    /// How often a connection had to wait for the budget.
    pub fn muted(&self) -> u64 {
        self.shared.lock().muted
    }

    /// Gives the system back what nobody has used since the last call.
    pub fn trim(&self) {
        let mut state = self.shared.lock();
        let mut surplus = Vec::new();
        for list in &mut state.free {
            // The last ones are the warm ones.
            surplus.extend(list.chunks.drain(..list.unused));
            list.unused = list.chunks.len();
        }
        drop(state);
        drop(surplus);
    }

    /// A chunk of at least `bytes`, once the budget has room. `ticket` is the caller's place in the line,
    /// `holds_bytes` what it keeps while it waits.
    fn poll_take(
        &self,
        cx: &mut Context<'_>,
        bytes: usize,
        holds_bytes: usize,
        ticket: &mut Option<Ticket>,
    ) -> Poll<io::Result<Arc<Chunk>>> {
        let (class, capacity) = class_for(bytes);
        let mut state = self.shared.lock();
        if let Some(waiter) = ticket.and_then(|ticket| state.line.remove(&ticket)) {
            state.held_in_line_bytes -= waiter.holds_bytes;
        }
        let in_turn = match *ticket {
            Some(ticket) => state.line.first_key_value().is_none_or(|(first, _)| ticket < *first),
            None => state.line.is_empty(),
        };
        if !in_turn
            || !state.admits(self.shared.budget_bytes, capacity, holds_bytes, state.held_in_line_bytes)
        {
            let place = match *ticket {
                Some(ticket) => ticket,
                None => {
                    state.muted += 1;
                    state.next_ticket += 1;
                    *ticket.insert(Ticket(state.next_ticket))
                }
            };
            let waker = cx.waker().clone();
            let waiter = Waiter { waker, wants_bytes: capacity, holds_bytes, called: false };
            state.line.insert(place, waiter);
            state.held_in_line_bytes += holds_bytes;
            let next = state.next_in_line(self.shared.budget_bytes);
            drop(state);
            next.inspect(Waker::wake_by_ref);
            return Poll::Pending;
        }
        *ticket = None;
        state.in_use_bytes += capacity;
        let memory = class.and_then(|class| state.free[class].take());
        let surplus = match memory {
            Some(_) => Vec::new(),
            None => state.make_room(self.shared.budget_bytes, capacity),
        };
        let next = state.next_in_line(self.shared.budget_bytes);
        drop(state);
        drop(surplus);
        next.inspect(Waker::wake_by_ref);
        let memory = match memory {
            Some(memory) => memory,
            None => match Memory::map(capacity) {
                Ok(memory) => memory,
                Err(error) => {
                    self.shared.release(capacity, None);
                    return Poll::Ready(Err(error));
                }
            },
        };
        Poll::Ready(Ok(Arc::new(Chunk { memory: Some(memory), home: self.shared.clone() })))
    }

    /// Takes a buffer that is dropped out of the line.
    fn leave_line(&self, ticket: Ticket) {
        let mut state = self.shared.lock();
        if let Some(waiter) = state.line.remove(&ticket) {
            state.held_in_line_bytes -= waiter.holds_bytes;
        }
        let next = state.next_in_line(self.shared.budget_bytes);
        drop(state);
        next.inspect(Waker::wake_by_ref);
    }
}

fn class_for(bytes: usize) -> (Option<usize>, usize) {
    match CLASS_BYTES.iter().position(|class| bytes <= *class) {
        Some(class) => (Some(class), CLASS_BYTES[class]),
        None => (None, bytes.next_multiple_of(PAGE_BYTES)),
    }
}

impl State {
    /// Whether a chunk may be taken by a waiter that holds `holds_bytes`, the others in line
    /// `others_hold_bytes`: there is room, or those who wait hold all there is, so that no room would come.
    fn admits(
        &self,
        budget_bytes: usize,
        capacity: usize,
        holds_bytes: usize,
        others_hold_bytes: usize,
    ) -> bool {
        self.in_use_bytes + capacity <= budget_bytes || self.in_use_bytes == holds_bytes + others_hold_bytes
    }

    /// Calls the first in line if there is room for it now.
    fn next_in_line(&mut self, budget_bytes: usize) -> Option<Waker> {
        let (_, first) = self.line.first_key_value()?;
        let others_hold = self.held_in_line_bytes - first.holds_bytes;
        if first.called || !self.admits(budget_bytes, first.wants_bytes, first.holds_bytes, others_hold) {
            return None;
        }
        let mut first = self.line.first_entry()?;
        first.get_mut().called = true;
        Some(first.get().waker.clone())
    }

    fn idle_bytes(&self) -> usize {
        self.free.iter().zip(CLASS_BYTES).map(|(list, bytes)| list.chunks.len() * bytes).sum()
    }

    /// Takes idle chunks of other sizes out, so that they and what is in use stay within the budget.
    fn make_room(&mut self, budget_bytes: usize, capacity: usize) -> Vec<Memory> {
        let mut surplus = Vec::new();
        let mut over = (self.in_use_bytes + self.idle_bytes()).saturating_sub(budget_bytes).min(capacity);
        for list in &mut self.free {
            while over > 0
                && let Some(memory) = list.take()
            {
                over = over.saturating_sub(memory.capacity);
                surplus.push(memory);
            }
        }
        surplus
    }
}

impl FreeList {
    fn take(&mut self) -> Option<Memory> {
        let memory = self.chunks.pop();
        self.unused = self.unused.min(self.chunks.len());
        memory
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, capacity: usize, memory: Option<Memory>) {
        let mut state = self.lock();
        state.in_use_bytes -= capacity;
        let class = CLASS_BYTES.iter().position(|class| *class == capacity);
        let unmapped = match class {
            Some(class) => {
                state.free[class].chunks.extend(memory);
                None
            }
            None => memory,
        };
        let next = state.next_in_line(self.budget_bytes);
        drop(state);
        drop(unmapped);
        next.inspect(Waker::wake_by_ref);
    }
}

/// A chunk on loan. The one [`ReceiveBuffer`] that took it writes behind what it has given out; the slices
/// read only what was written before they were made.
#[derive(Debug)]
struct Chunk {
    /// Taken out by `Drop` alone.
    memory: Option<Memory>,
    home: Arc<Shared>,
}

impl Chunk {
    fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.capacity)
    }

    fn start(&self) -> *mut u8 {
        match &self.memory {
            Some(memory) => memory.start.as_ptr(),
            None => unreachable!("only drop takes the memory out"),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let capacity = self.capacity();
        self.home.release(capacity, self.memory.take());
    }
}

/// Anonymous pages of our own: zero at first, the system's only when touched.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: `Memory` owns its pages alone, like a `Box<[u8]>`; reading and writing through `start` is up to
// `ReceiveBuffer` and its slices, who state their own reasons.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared `Memory` gives out nothing but the address.
unsafe impl Sync for Memory {}

impl Memory {
    fn map(capacity: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), capacity, protection, flags) }?;
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, capacity }),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the pages are ours, and nobody has a reference into them: slices keep the chunk alive.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.capacity) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests;
