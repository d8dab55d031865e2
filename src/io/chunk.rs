//! The memory that connections receive into: page-aligned chunks from a pool per shard, within a budget,
//! and [`ReceiveBuffer`], which borrows one only while bytes of a connection are in it.
//!
//! A peer decides how long its frame stays partial, and so how long a chunk is held. A part of the budget is
//! therefore kept for short frames, and when memory gets tight a buffer takes no more than what has come warrants;
//! who has stalled is closed by the connections' own watch ([`ChunkPool::poll_pressure`]).
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

pub use self::receive::{ReceiveBuffer, ReceiveState};

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
    /// What long frames leave to short ones, so that those get through whatever the others do.
    reserve_bytes: usize,
    state: Mutex<State>,
}

/// The two kinds of chunks: the smallest, for all that is short, and the others. Each has a line of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lane {
    Short = 0,
    Long = 1,
}

impl Lane {
    fn of(capacity: usize) -> Self {
        if capacity <= CLASS_BYTES[0] { Lane::Short } else { Lane::Long }
    }
}

#[derive(Default, Debug)]
struct State {
    /// By lane.
    in_use_bytes: [usize; 2],
    free: [FreeList; CLASSES],
    /// Buffers that wait for the budget, by the lane that they wait for.
    lines: [Line; 2],
    next_ticket: u64,
    muted: u64,
    /// Whoever wants to know that somebody waits.
    on_pressure: Option<Waker>,
}

/// Buffers that wait, the oldest first.
#[derive(Default, Debug)]
struct Line {
    waiters: BTreeMap<Ticket, Waiter>,
    /// What they hold meanwhile, by lane: partial frames that outgrew their chunks.
    held_bytes: [usize; 2],
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

/// What a buffer asks of the pool.
#[derive(Clone, Copy, Debug)]
struct Wish {
    /// At least so much.
    bytes: usize,
    /// What the buffer keeps while it waits.
    holds_bytes: usize,
    /// Nothing beyond it, even if it is a size that the pool does not keep.
    exact: bool,
}

/// Budgets below leave nothing to spare for a reserve.
const RESERVE_BUDGET_MIN: usize = 4 << 20;

impl ChunkPool {
    /// `budget_bytes` limits what buffers and slices hold together. One frame that is longer than all of it
    /// is still admitted when no other long one is there.
    pub fn new(budget_bytes: usize) -> Self {
        let reserve_bytes = if budget_bytes < RESERVE_BUDGET_MIN { 0 } else { budget_bytes / 4 };
        Self { shared: Arc::new(Shared { budget_bytes, reserve_bytes, state: Mutex::default() }) }
    }

    /// Held by buffers and slices.
    pub fn in_use_bytes(&self) -> usize {
        self.shared.lock().in_use()
    }

    /// Lies ready for the next receive.
    pub fn idle_bytes(&self) -> usize {
        self.shared.lock().idle_bytes()
    }

    /// How often a connection had to wait for the budget.
    pub fn muted(&self) -> u64 {
        self.shared.lock().muted
    }

    /// What those who wait for the budget want.
    pub fn wanted_bytes(&self) -> usize {
        let state = self.shared.lock();
        state.lines.iter().flat_map(|line| line.waiters.values()).map(|waiter| waiter.wants_bytes).sum()
    }

    /// Ready when somebody waits for the budget. For one task.
    pub fn poll_pressure(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        if state.lines.iter().any(|line| !line.waiters.is_empty()) {
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

    /// Over half of the budget is held, or somebody waits: whoever asks should ask for little.
    fn is_tight(&self) -> bool {
        let state = self.shared.lock();
        self.shared.reserve_bytes > 0
            && (state.in_use() > self.shared.budget_bytes / 2
                || state.lines.iter().any(|line| !line.waiters.is_empty()))
    }

    /// A chunk as wished, once the budget has room. `ticket` is the caller's place in the line.
    fn poll_take(
        &self,
        cx: &mut Context<'_>,
        wish: Wish,
        ticket: &mut Option<Ticket>,
    ) -> Poll<io::Result<Arc<Chunk>>> {
        let (class, capacity) = class_for(wish.bytes, wish.exact);
        let lane = Lane::of(capacity);
        let mut state = self.shared.lock();
        if let Some(ticket) = *ticket {
            state.lines.iter_mut().for_each(|line| line.leave(ticket));
        }
        let line = &state.lines[lane as usize];
        let in_turn = match *ticket {
            Some(ticket) => line.waiters.first_key_value().is_none_or(|(first, _)| ticket < *first),
            None => line.waiters.is_empty(),
        };
        if !in_turn || !state.admits(&self.shared, capacity, wish.holds_bytes) {
            let place = match *ticket {
                Some(ticket) => ticket,
                None => {
                    state.muted += 1;
                    state.next_ticket += 1;
                    *ticket.insert(Ticket(state.next_ticket))
                }
            };
            let waker = cx.waker().clone();
            let waiter =
                Waiter { waker, wants_bytes: capacity, holds_bytes: wish.holds_bytes, called: false };
            state.lines[lane as usize].enter(place, waiter);
            let on_pressure = state.on_pressure.take();
            let next = state.next_in_lines(&self.shared);
            drop(state);
            on_pressure.into_iter().for_each(Waker::wake);
            next.into_iter().flatten().for_each(Waker::wake);
            return Poll::Pending;
        }
        *ticket = None;
        state.in_use_bytes[lane as usize] += capacity;
        let memory = class.and_then(|class| state.free[class].take());
        let surplus = match memory {
            Some(_) => Vec::new(),
            None => state.make_room(self.shared.budget_bytes, capacity),
        };
        let next = state.next_in_lines(&self.shared);
        drop(state);
        drop(surplus);
        next.into_iter().flatten().for_each(Waker::wake);
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
        state.lines.iter_mut().for_each(|line| line.leave(ticket));
        let next = state.next_in_lines(&self.shared);
        drop(state);
        next.into_iter().flatten().for_each(Waker::wake);
    }
}

fn class_for(bytes: usize, exact: bool) -> (Option<usize>, usize) {
    match CLASS_BYTES.iter().position(|class| bytes <= *class) {
        Some(0) => (Some(0), CLASS_BYTES[0]),
        Some(class) if !exact => (Some(class), CLASS_BYTES[class]),
        _ => (None, bytes.next_multiple_of(PAGE_BYTES)),
    }
}

impl Line {
    fn enter(&mut self, ticket: Ticket, waiter: Waiter) {
        self.held_bytes[Lane::of(waiter.holds_bytes) as usize] += waiter.holds_bytes;
        self.waiters.insert(ticket, waiter);
    }

    fn leave(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            self.held_bytes[Lane::of(waiter.holds_bytes) as usize] -= waiter.holds_bytes;
        }
    }
}

impl State {
    fn in_use(&self) -> usize {
        self.in_use_bytes.iter().sum()
    }

    /// Whether a chunk may be taken by one who holds `holds_bytes` and does not stand in line: there is room, or
    /// those who wait hold all there is, so that no room would come.
    fn admits(&self, shared: &Shared, capacity: usize, holds_bytes: usize) -> bool {
        let lane = Lane::of(capacity);
        let in_use = self.in_use();
        let held: usize = self.lines.iter().flat_map(|line| line.held_bytes).sum::<usize>() + holds_bytes;
        let fits = in_use + capacity <= shared.budget_bytes;
        if in_use == held || shared.reserve_bytes == 0 {
            return fits || in_use == held;
        }
        let in_use_of_lane = self.in_use_bytes[lane as usize];
        let holds_of_lane = if Lane::of(holds_bytes) == lane { holds_bytes } else { 0 };
        let held_of_lane = self.lines[lane as usize].held_bytes[lane as usize] + holds_of_lane;
        let long_max = shared.budget_bytes - shared.reserve_bytes;
        match lane {
            Lane::Short if in_use_of_lane + capacity <= shared.reserve_bytes => true,
            Lane::Short => fits || (held_of_lane > 0 && in_use_of_lane == held_of_lane),
            Lane::Long => (fits && in_use_of_lane + capacity <= long_max) || in_use_of_lane == held_of_lane,
        }
    }

    /// Calls the first of each line if there is room for it now.
    fn next_in_lines(&mut self, shared: &Shared) -> [Option<Waker>; 2] {
        [Lane::Short, Lane::Long].map(|lane| self.next_in_line(shared, lane))
    }

    fn next_in_line(&mut self, shared: &Shared, lane: Lane) -> Option<Waker> {
        let (ticket, first) = self.lines[lane as usize].waiters.first_key_value()?;
        if first.called {
            return None;
        }
        let ticket = *ticket;
        let mut first = self.lines[lane as usize].waiters.remove(&ticket)?;
        self.lines[lane as usize].held_bytes[Lane::of(first.holds_bytes) as usize] -= first.holds_bytes;
        first.called = self.admits(shared, first.wants_bytes, first.holds_bytes);
        let waker = first.called.then(|| first.waker.clone());
        self.lines[lane as usize].enter(ticket, first);
        waker
    }

    fn idle_bytes(&self) -> usize {
        self.free.iter().zip(CLASS_BYTES).map(|(list, bytes)| list.chunks.len() * bytes).sum()
    }

    /// Takes idle chunks of other sizes out, so that they and what is in use stay within the budget.
    fn make_room(&mut self, budget_bytes: usize, capacity: usize) -> Vec<Memory> {
        let mut surplus = Vec::new();
        let mut over = (self.in_use() + self.idle_bytes()).saturating_sub(budget_bytes).min(capacity);
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
        state.in_use_bytes[Lane::of(capacity) as usize] -= capacity;
        let class = CLASS_BYTES.iter().position(|class| *class == capacity);
        let unmapped = match class {
            Some(class) => {
                state.free[class].chunks.extend(memory);
                None
            }
            None => memory,
        };
        let next = state.next_in_lines(self);
        drop(state);
        drop(unmapped);
        next.into_iter().flatten().for_each(Waker::wake);
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
