//! The memory that connections receive into: page-aligned chunks from a pool per shard, within a budget,
//! and [`ReceiveBuffer`], which borrows one only while bytes of a connection are in it.
//!
//! A peer decides how long its frame stays partial, and so how long a chunk is held. The budget is therefore shared
//! out by kinds of frames ([`accounts`]), and when memory gets tight a buffer takes no more than what has come
//! warrants: up to 1 KiB without a chunk, so that a small request never waits. Who has stalled is closed by the
//! connections' own watch ([`ChunkPool::poll_pressure`]).
//!
//! Payload is sliced from a chunk without a copy ([`bytes::Bytes`]); the chunk goes back to the pool it came
//! from when the last slice is dropped, on whatever thread. That costs a lock that is almost always free,
//! once per chunk: about 20 ns for 32 KiB and more.
//!
//! Never here: sockets, framing.

mod accounts;
mod receive;

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rustix::mm::{MapFlags, ProtFlags};

use self::accounts::{Accounts, Called, Lane, SHORT_BYTES_MAX, Share, Ticket};
pub use self::receive::{ReceiveBuffer, ReceiveState, Standing};

/// Sizes that the pool keeps; a connection moves between them with the sizes of its receives. Longer frames
/// get a chunk of their own size, which is not kept.
const CLASS_BYTES: [usize; CLASSES] = [SHORT_BYTES_MAX, 256 * 1024, 1024 * 1024];
const CLASSES: usize = 3;
const PAGE_BYTES: usize = 4096;

/// Short, long and large frames, each of connections that have brought one of the kind to its end and of the others.
pub const FRAME_KINDS: usize = 6;

/// A shard's pool; cheap to clone, any thread.
#[derive(Clone, Debug)]
pub struct ChunkPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    accounts: Accounts,
    free: [FreeList; CLASSES],
    /// Whoever wants to know that somebody waits.
    on_pressure: Option<Waker>,
}

#[derive(Default, Debug)]
struct FreeList {
    chunks: Vec<Memory>,
    /// The fewest that lay here since the last trim: nobody has needed them.
    unused: usize,
}

/// What a buffer asks of the pool.
#[derive(Clone, Copy, Debug)]
struct Wish {
    /// At least so much.
    bytes: usize,
    /// The length of the frame that it is for, as far as it is known.
    frame_bytes: usize,
    /// What the buffer keeps while it waits.
    holds: Option<Share>,
    /// Nothing beyond it, even if it is a size that the pool does not keep.
    exact: bool,
    /// The connection has brought a short frame to its end; a long one.
    is_proven: [bool; 2],
}

impl ChunkPool {
    /// `budget_bytes` limits what buffers and slices hold together. One frame that is longer than its share
    /// of it is still admitted when no other such is there.
    pub fn new(budget_bytes: usize) -> Self {
        let accounts = Accounts::new(budget_bytes);
        let state = State { accounts, free: Default::default(), on_pressure: None };
        Self { shared: Arc::new(Shared { state: Mutex::new(state) }) }
    }

    /// Held by buffers and slices.
    pub fn in_use_bytes(&self) -> usize {
        self.shared.lock().accounts.in_use()
    }

    /// Lies ready for the next receive.
    pub fn idle_bytes(&self) -> usize {
        self.shared.lock().idle_bytes()
    }

    /// How often a connection had to wait for the budget.
    pub fn muted(&self) -> u64 {
        self.shared.lock().accounts.muted
    }

    /// What those who wait for the budget want.
    pub fn wanted_bytes(&self) -> usize {
        self.shared.lock().accounts.wanted_bytes()
    }

    /// By kind of frames, where all memory is held by those who wait for more of it: how much was given to them so
    /// far. The same number again says that they are stuck ([`ReceiveState::kind`] tells who belongs to which).
    pub fn stuck(&self) -> [Option<u64>; FRAME_KINDS] {
        self.shared.lock().accounts.stuck()
    }

    /// Ready when somebody waits for the budget. For one task.
    pub fn poll_pressure(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        if state.accounts.somebody_waits() {
            return Poll::Ready(());
        }
        state.on_pressure = Some(cx.waker().clone());
        Poll::Pending
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

    /// Whoever asks should ask for little.
    fn is_tight(&self) -> bool {
        self.shared.lock().accounts.is_tight()
    }

    /// A part is kept for short frames, so that a little can be received without a chunk.
    fn has_reserve(&self) -> bool {
        self.shared.lock().accounts.has_reserve()
    }

    /// A chunk as wished, once the budget has room. `ticket` is the caller's place in the line.
    fn poll_take(
        &self,
        cx: &mut Context<'_>,
        wish: Wish,
        ticket: &mut Option<Ticket>,
    ) -> Poll<io::Result<Arc<Chunk>>> {
        let (class, bytes) = class_for(wish.bytes, wish.exact);
        let mut state = self.shared.lock();
        let lane = state.accounts.lane_of(bytes.max(wish.frame_bytes), wish.is_proven);
        let wish = accounts::Wish {
            wants: Share { lane, bytes },
            whole_bytes: wish.frame_bytes.next_multiple_of(PAGE_BYTES),
            holds: wish.holds,
        };
        let Some(share) = state.accounts.take(wish, ticket, cx.waker()) else {
            let on_pressure = state.on_pressure.take();
            let next = state.accounts.call_next();
            drop(state);
            on_pressure.into_iter().for_each(Waker::wake);
            wake(next);
            return Poll::Pending;
        };
        let class = class.filter(|class| CLASS_BYTES[*class] == share.bytes);
        let memory = class.and_then(|class| state.free[class].take());
        let surplus = match memory {
            Some(_) => Vec::new(),
            None => state.make_room(share.bytes),
        };
        let next = state.accounts.call_next();
        drop(state);
        drop(surplus);
        wake(next);
        let memory = match memory {
            Some(memory) => memory,
            None => match Memory::map(share.bytes) {
                Ok(memory) => memory,
                Err(error) => {
                    self.shared.release(share, None);
                    return Poll::Ready(Err(error));
                }
            },
        };
        Poll::Ready(Ok(Arc::new(Chunk { memory: Some(memory), lane: share.lane, home: self.shared.clone() })))
    }

    /// Takes a buffer that is dropped out of the line.
    fn leave_line(&self, ticket: Ticket) {
        let mut state = self.shared.lock();
        state.accounts.leave(ticket);
        let next = state.accounts.call_next();
        drop(state);
        wake(next);
    }
}

fn wake(called: Called) {
    called.into_iter().flatten().for_each(Waker::wake);
}

fn class_for(bytes: usize, exact: bool) -> (Option<usize>, usize) {
    match CLASS_BYTES.iter().position(|class| bytes <= *class) {
        Some(class) if !exact => (Some(class), CLASS_BYTES[class]),
        _ => {
            let bytes = bytes.next_multiple_of(PAGE_BYTES);
            (CLASS_BYTES.iter().position(|class| *class == bytes), bytes)
        }
    }
}

impl State {
    fn idle_bytes(&self) -> usize {
        self.free.iter().zip(CLASS_BYTES).map(|(list, bytes)| list.chunks.len() * bytes).sum()
    }

    /// Takes idle chunks of other sizes out, so that they and what is in use stay within the budget.
    fn make_room(&mut self, capacity: usize) -> Vec<Memory> {
        let mut surplus = Vec::new();
        let with_idle = self.accounts.in_use() + self.idle_bytes();
        let mut over = with_idle.saturating_sub(self.accounts.budget_bytes).min(capacity);
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

    fn release(&self, share: Share, memory: Option<Memory>) {
        let mut state = self.lock();
        state.accounts.give_back(share);
        let class = CLASS_BYTES.iter().position(|class| *class == share.bytes);
        let unmapped = match class {
            Some(class) => {
                state.free[class].chunks.extend(memory);
                None
            }
            None => memory,
        };
        let next = state.accounts.call_next();
        drop(state);
        drop(unmapped);
        wake(next);
    }
}

/// A chunk on loan. The one [`ReceiveBuffer`] that took it writes behind what it has given out; the slices
/// read only what was written before they were made.
#[derive(Debug)]
struct Chunk {
    /// Taken out by `Drop` alone.
    memory: Option<Memory>,
    lane: Lane,
    home: Arc<Shared>,
}

impl Chunk {
    fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.capacity)
    }

    fn share(&self) -> Share {
        Share { lane: self.lane, bytes: self.capacity() }
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
        let share = self.share();
        self.home.release(share, self.memory.take());
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
