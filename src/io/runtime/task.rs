//! Tasks of a shard and their queues: spawn, yield, sleep.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use glommio::{Latency, Shares, TaskQueueHandle};

use super::panic_text;
use super::watchdog::{self, Activity, Pulse};
use crate::base::clock::{self, Monotonic};
use crate::base::fatal;

/// Who shares the shard's time. Each has its shares when all have work; what one does not use goes to the
/// others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// Connections, appends, fetches: 1000 shares.
    Serve,
    /// Raft, heartbeats, coordination: 300 shares, but a wake from another thread interrupts the others.
    Control,
    /// Compaction, recovery, cold reads, sweeps of an idle shard: 100 shares. Yield every 100 µs, see
    /// [`TimeSlice`]. Not for what somebody waits for: see the watchdog.
    Back,
}

impl Queue {
    fn shares(self) -> usize {
        match self {
            Queue::Serve => 1000,
            Queue::Control => 300,
            Queue::Back => 100,
        }
    }

    /// A queue whose latency matters is interrupted for: each wake from another thread costs the waker a
    /// write to an eventfd even when the shard is awake, and the running task its turn. So only
    /// [`Queue::Control`], which is rarely woken, has it; the others are served when the shard polls, which
    /// the preempt timer bounds.
    fn latency(self) -> Latency {
        match self {
            Queue::Control => Latency::Matters(Duration::from_millis(1)),
            Queue::Serve | Queue::Back => Latency::NotImportant,
        }
    }

    pub const ALL: [Queue; 3] = [Queue::Serve, Queue::Control, Queue::Back];

    pub fn name(self) -> &'static str {
        match self {
            Queue::Serve => "serve",
            Queue::Control => "control",
            Queue::Back => "back",
        }
    }
}

/// A spawned task: a future of its result. Dropping it cancels the task.
#[must_use = "a dropped task is cancelled: keep it, await it or detach it"]
#[derive(Debug)]
pub struct Task<T>(glommio::Task<T>);

impl<T> Task<T> {
    /// Lets the task run until it ends by itself. It is not dropped when the shard ends before.
    pub fn detach(self) {
        drop(self.0.detach());
    }

    /// Drops the task's future and waits until that has happened. The result, if there was one already.
    pub async fn cancel(self) -> Option<T> {
        self.0.cancel().await
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(cx)
    }
}

/// Starts a task on this thread's shard. Never polls it before returning. `name` is for the watchdog's
/// reports; a panic inside ends the process with it. Panics on a thread that is no shard.
pub fn spawn<T: 'static>(
    queue: Queue,
    name: &'static str,
    future: impl Future<Output = T> + 'static,
) -> Task<T> {
    spawn_watched(queue, name, queue == Queue::Back, future)
}

/// [`spawn`] for a task that is woken for work in the background too: its polls do not call the watchdog. It
/// calls [`note_work`] when it has woken something that somebody waits for.
pub fn spawn_quiet<T: 'static>(
    queue: Queue,
    name: &'static str,
    future: impl Future<Output = T> + 'static,
) -> Task<T> {
    spawn_watched(queue, name, true, future)
}

/// Tells the watchdog that this shard has work, as a poll outside the background does.
pub fn note_work() {
    context(|context| context.pulse.note_poll());
}

fn spawn_watched<T: 'static>(
    queue: Queue,
    name: &'static str,
    quiet: bool,
    future: impl Future<Output = T> + 'static,
) -> Task<T> {
    let (handle, activity) = context(|context| (context.queue(queue), context.pulse.activity(name, quiet)));
    let watched = Watched { future, name, activity };
    match glommio::spawn_local_into(watched, handle) {
        Ok(task) => Task(task),
        Err(error) => unreachable!("the queue was made with the shard: {error}"),
    }
}

/// Lets the other queues have their turn. IO is polled when the preempt timer is due or nothing is left to
/// run, so a loop that waits for IO must not consist of this alone.
pub async fn yield_now() {
    glommio::executor().yield_task_queue_now().await;
}

/// Yields if the task has had its turn: a few ns if it has not.
pub async fn yield_if_needed() {
    glommio::executor().yield_if_needed().await;
}

/// Whether the task has had its turn.
pub fn need_yield() -> bool {
    glommio::executor().need_preempt()
}

pub async fn sleep(duration: Duration) {
    glommio::timer::Timer::new(duration).await;
}

/// Returns at once when `deadline` has passed.
pub async fn sleep_until(deadline: Monotonic) {
    let left = deadline.since(clock::monotonic());
    if !left.is_zero() {
        sleep(left).await;
    }
}

/// Yields every so often by the clock, for work in [`Queue::Back`] that must let others in sooner than the
/// preempt timer would.
#[derive(Debug)]
pub struct TimeSlice {
    length: Duration,
    started: Monotonic,
}

impl TimeSlice {
    /// The slice of background work.
    pub const BACK: Duration = Duration::from_micros(100);

    pub fn start(length: Duration) -> Self {
        Self { length, started: clock::monotonic() }
    }

    /// Call between pieces of work: yields once the slice is used up. Reads the clock, about 25 ns.
    pub async fn yield_if_spent(&mut self) {
        if clock::monotonic().since(self.started) >= self.length {
            yield_now().await;
            self.started = clock::monotonic();
        }
    }
}

thread_local! {
    static CONTEXT: RefCell<Option<Rc<ShardContext>>> = const { RefCell::new(None) };
}

/// What [`spawn`] needs of its shard.
#[derive(Debug)]
pub(super) struct ShardContext {
    queues: [TaskQueueHandle; 3],
    pulse: Arc<Pulse>,
    answering: RefCell<Option<Task<()>>>,
    /// The executor's own counts start again whenever they are read.
    work: Cell<Work>,
}

/// What the executor of this thread's shard has done since it started.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Work {
    /// Running tasks and looking after IO; the rest of the time it slept.
    pub busy: Duration,
    pub tasks_run: u64,
    /// In the order of [`Queue::ALL`].
    pub queues: [QueueWork; 3],
}

/// Of one task queue.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QueueWork {
    pub busy: Duration,
    /// How often it got its turn.
    pub turns: u64,
}

/// The work of this thread's shard so far. Panics on a thread that is no shard.
pub fn work() -> Work {
    context(|context| {
        let executor = glommio::executor();
        let mut work = context.work.get();
        let stats = executor.executor_stats();
        work.busy += stats.total_runtime();
        work.tasks_run += stats.tasks_executed();
        for (queue, handle) in work.queues.iter_mut().zip(context.queues) {
            // The queues live as long as their shard.
            let Ok(stats) = executor.task_queue_stats(handle) else { continue };
            queue.busy += stats.runtime();
            queue.turns += stats.queue_selected();
        }
        context.work.set(work);
        work
    })
}

impl ShardContext {
    fn queue(&self, queue: Queue) -> TaskQueueHandle {
        self.queues[queue as usize]
    }
}

fn context<R>(read: impl FnOnce(&ShardContext) -> R) -> R {
    CONTEXT.with_borrow(|context| match context {
        Some(context) => read(context),
        None => panic!("this thread is no shard"),
    })
}

/// Makes the queues of the shard that runs on this thread and puts it under the watchdog.
pub(super) async fn enter(name: &str) -> Rc<ShardContext> {
    // The watchdog must be able to wake the shard from the start: the task that answers it may itself be what
    // the executor forgets to run.
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let executor = glommio::executor();
    let queues = Queue::ALL.map(|queue| {
        executor.create_task_queue(Shares::Static(queue.shares()), queue.latency(), queue.name())
    });
    let pulse = watchdog::watch(name, waker);
    let context =
        Rc::new(ShardContext { queues, pulse, answering: RefCell::new(None), work: Cell::default() });
    CONTEXT.set(Some(context.clone()));
    let answering = glommio::spawn_local_into(context.pulse.clone().answer(), context.queue(Queue::Control));
    match answering {
        Ok(task) => *context.answering.borrow_mut() = Some(Task(task)),
        Err(error) => unreachable!("the queue was made three lines above: {error}"),
    }
    context
}

/// Takes the shard out of the watchdog's care.
pub(super) async fn leave(context: Rc<ShardContext>) {
    watchdog::forget(&context.pulse);
    let answering = context.answering.borrow_mut().take();
    if let Some(answering) = answering {
        answering.cancel().await;
    }
    CONTEXT.set(None);
}

/// Counts each poll for the watchdog and ends the process on a panic: glommio would end the shard alone.
struct Watched<F> {
    future: F,
    name: &'static str,
    activity: Activity,
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `future` is pinned with its struct: it is never moved out, `Watched` has no `Drop` and is
        // `Unpin` only if `F` is. The other fields are not pinned.
        let this = unsafe { self.get_unchecked_mut() };
        this.activity.note();
        // SAFETY: as above.
        let future = unsafe { Pin::new_unchecked(&mut this.future) };
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(poll) => poll,
            Err(panic) => end_process(this.name, &*panic),
        }
    }
}

#[cold]
fn end_process(name: &str, panic: &(dyn Any + Send)) -> ! {
    fatal(format_args!("task {name} panicked: {}", panic_text(panic)))
}
