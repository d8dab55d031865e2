//! The executor of a shard: the only façade over glommio's executor, used by every module that spawns,
//! sleeps or is woken from another thread. A shard is one thread with one executor; nothing here is shared
//! between shards except [`Notify`], [`Sender`] and the watchdog's counters.
//!
//! glommio runs the tasks; the shard sleeps, and hears of its sockets, deadlines and other threads, in a ring of its own
//! (docs/decisions/0010). All shards started here are watched (see [`stalls`]).
//!
//! Never here: sockets, files, anything that blocks.

mod doorbell;
mod mailbox;
mod notify;
mod preflight;
mod ring;
mod sleep;
mod slice;
mod task;
mod tasks;
mod watchdog;

use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::FutureExt;
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};

pub use self::mailbox::{Closed, Mailbox, Sender, mailbox};
pub use self::notify::Notify;
pub use self::preflight::{PreflightError, preflight};
pub(crate) use self::ring::{Interest, Readiness};
pub(crate) use self::task::watch;
pub use self::task::{
    Queue, QueueWork, Task, TimeSlice, Work, give_way, need_yield, sleep, sleep_until, spawn, work,
    yield_if_needed, yield_now,
};
pub use self::watchdog::{StallReport, stalls};

use crate::base::{clock, fatal};

/// What interrupts a busy shard waits about twice this long.
const PREEMPT_DEFAULT: Duration = Duration::from_millis(1);
/// No DMA buffers are used, so glommio gets its minimum.
const IO_MEMORY_BYTES: usize = 64 * 1024;
/// How long a shard's first task may take to run before another executor is made for it.
const START_PATIENCE: Duration = Duration::from_millis(100);
const START_ATTEMPTS_MAX: usize = 50;
/// Entries of each of the executor's rings, which nothing is sent through.
const RING_ENTRIES: usize = 32;
/// How often glommio looks at its own rings, which only ever have this very timer.
const GLOMMIO_POLLS_EVERY: Duration = Duration::from_secs(1);

/// Describes a shard to be started. May be sent to the thread that starts it.
#[derive(Clone, Debug)]
pub struct ShardBuilder {
    name: String,
    cpu: Option<usize>,
    preempt: Duration,
    spin_before_park: Duration,
}

impl ShardBuilder {
    /// `name` is the thread's and the watchdog's.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), cpu: None, preempt: PREEMPT_DEFAULT, spin_before_park: Duration::ZERO }
    }

    /// Pins the shard to a core; `None` lets it float.
    pub fn cpu(mut self, cpu: Option<usize>) -> Self {
        self.cpu = cpu;
        self
    }

    /// Polls for so long before it sleeps. Only for a pinned shard; others never spin.
    pub fn spin_before_park(mut self, spin: Duration) -> Self {
        self.spin_before_park = spin;
        self
    }

    /// How long a task queue runs before the others and IO get their turn.
    pub fn preempt(mut self, every: Duration) -> Self {
        self.preempt = every;
        self
    }

    /// Starts the shard's thread and runs the future that `make` returns there; the shard ends with it.
    /// Tasks that are still alive then are never dropped: cancel what owns something first. A panic in the
    /// future ends the process. Fails when the thread, the pinning or the rings cannot be had.
    pub fn spawn<F, Fut, T>(self, make: F) -> io::Result<ShardThread<T>>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let name = self.name.clone();
        self.spawn_catching(make, move |panic| {
            fatal(format_args!("shard {name} panicked: {}", panic_text(&*panic)))
        })
    }

    fn spawn_catching<F, Fut, T, P>(self, make: F, on_panic: P) -> io::Result<ShardThread<T>>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
        P: FnOnce(Box<dyn std::any::Any + Send>) -> T + Send + 'static,
    {
        // Deadlines on this shard are later than this, so the clock's zero is before all of them.
        clock::monotonic();
        let (started, start) = std::sync::mpsc::sync_channel(START_ATTEMPTS_MAX);
        let work = Arc::new(Mutex::new(Some((make, on_panic))));
        let mut threads = Vec::new();
        while threads.len() < START_ATTEMPTS_MAX {
            let attempt = threads.len();
            let (builder, started, shared) = (self.clone(), started.clone(), work.clone());
            let thread = std::thread::Builder::new().name(self.name.clone());
            threads.push(thread.spawn(move || builder.attempt(attempt, &started, &shared))?);
            match start.recv_timeout(START_PATIENCE) {
                Ok(Ok(attempt)) => return Ok(ShardThread { thread: threads.swap_remove(attempt) }),
                Ok(Err(error)) => {
                    take(&work);
                    return Err(error);
                }
                // An executor of glommio's that takes itself for idle before its first task has run (a preemption
                // was due) sleeps for ever: nobody knows a waker of it yet. It is left behind.
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        take(&work);
        Err(io::Error::other("the shard's thread does not start"))
    }

    /// Runs the work on this thread unless another attempt has begun it.
    fn attempt<F, Fut, T, P>(
        self,
        attempt: usize,
        started: &SyncSender<io::Result<usize>>,
        work: &Mutex<Option<(F, P)>>,
    ) -> Option<T>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
        P: FnOnce(Box<dyn std::any::Any + Send>) -> T + Send + 'static,
    {
        let executor = match self.make_executor() {
            Ok(executor) => executor,
            Err(error) => {
                let _ = started.send(Err(error));
                return None;
            }
        };
        executor.run(async move {
            let (make, on_panic) = take(work)?;
            let context = match task::enter(&self.name, self.preempt, self.spin_before_park).await {
                Ok(context) => context,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return None;
                }
            };
            let _ = started.send(Ok(attempt));
            let guarded = AssertUnwindSafe(async { make().await }).catch_unwind();
            let outcome = task::root(&context, guarded).await;
            context.end();
            match outcome {
                Ok(value) => Some(value),
                Err(panic) => Some(on_panic(panic)),
            }
        })
    }

    fn make_executor(&self) -> io::Result<LocalExecutor> {
        // Without it all goes on, with longer waits where others want the core.
        if let Err(error) = slice::shorten() {
            tracing::debug!("{} keeps the scheduler's slice: {error}", self.name);
        }
        if let Some(cpu) = self.cpu {
            pin_thread(cpu)?;
        }
        LocalExecutorBuilder::new(Placement::Unbound)
            .name(&self.name)
            .io_memory(IO_MEMORY_BYTES)
            .ring_depth(RING_ENTRIES)
            .preempt_timer(GLOMMIO_POLLS_EVERY)
            .make()
            .map_err(|error| io::Error::other(format!("io_uring executor: {error}")))
    }
}

fn take<W>(work: &Mutex<Option<W>>) -> Option<W> {
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A running shard.
#[derive(Debug)]
pub struct ShardThread<T> {
    thread: JoinHandle<Option<T>>,
}

impl<T> ShardThread<T> {
    /// Waits for the shard's end.
    pub fn join(self) -> T {
        match self.thread.join() {
            Ok(Some(value)) => value,
            Ok(None) => unreachable!("spawn returned an error for a shard that did not start"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Runs one future on a floating shard of its own and waits for it: for tests and small tools. A panic in
/// the future itself is the caller's.
pub fn run_shard<F, Fut, T>(name: &str, make: F) -> T
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
    T: Send + 'static,
{
    match ShardBuilder::new(name).spawn_catching(make, |panic| std::panic::resume_unwind(panic)) {
        Ok(shard) => shard.join(),
        Err(error) => panic!("shard {name} does not start: {error}"),
    }
}

fn pin_thread(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no CPU {cpu}")));
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| io::Error::other(format!("pinning to CPU {cpu}: {error}")))
}

/// The words of a panic, as far as it has any.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    match panic.downcast_ref::<&'static str>() {
        Some(text) => text,
        None => panic.downcast_ref::<String>().map_or("(no message)", String::as_str),
    }
}

#[cfg(test)]
mod tests;
