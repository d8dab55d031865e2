//! Tasks of a shard and their queues: spawn, yield, sleep. glommio runs the queues by their shares; when nothing can run
//! its last task, the caretaker, sleeps in the shard's [`Ring`].

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use glommio::{Latency, Shares, TaskQueueHandle};

use super::doorbell::Doorbell;
use super::panic_text;
use super::ring::{Interest, Readiness, Ring};
use super::sleep::Sleepers;
use super::tasks::{Membership, TaskId, TaskWaker, Tasks};
use super::watchdog::{self, Activity, Pulse};
use crate::base::clock::{self, Monotonic};
use crate::base::fatal;

/// IO, deadlines and wakes from other threads are looked after so often while tasks run without a pause.
const ATTENDED_EVERY: Duration = Duration::from_micros(100);
/// Far below what glommio can count for a queue whose task does not return.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// Who shares the shard's time. Each has its shares when all have work; what one does not use goes to the
/// others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// Connections, appends, fetches: 1000 shares.
    Serve,
    /// Raft, heartbeats, coordination: 300 shares, but once a task of it can run the others' turn is over.
    Control,
    /// Compaction, recovery, cold reads, sweeps of an idle shard: 100 shares. Yield every 100 µs, see
    /// [`TimeSlice`].
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
pub struct Task<T> {
    /// None once it is detached or cancelled.
    task: Option<glommio::Task<T>>,
    tasks: Rc<Tasks>,
    id: TaskId,
}

impl<T> Task<T> {
    /// Lets the task run until it ends by itself. It is not dropped when the shard ends before.
    pub fn detach(mut self) {
        if let Some(task) = self.task.take() {
            drop(task.detach());
        }
    }

    /// Drops the task's future and waits until that has happened. The result, if there was one already.
    pub async fn cancel(mut self) -> Option<T> {
        let task = self.task.take()?;
        self.tasks.note_cancelled(self.id);
        task.cancel().await
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.tasks.note_cancelled(self.id);
        }
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut self.task {
            Some(task) => Pin::new(task).poll(cx),
            None => Poll::Pending,
        }
    }
}

/// Starts a task on this thread's shard. Never polls it before returning. `name` is for the watchdog's
/// reports; a panic inside ends the process with it. Panics on a thread that is no shard.
pub fn spawn<T: 'static>(
    queue: Queue,
    name: &'static str,
    future: impl Future<Output = T> + 'static,
) -> Task<T> {
    context(|context| spawn_with(context, queue, name, future))
}

fn spawn_with<T: 'static>(
    context: &Rc<ShardContext>,
    queue: Queue,
    name: &'static str,
    future: impl Future<Output = T> + 'static,
) -> Task<T> {
    let watched = Watched::new(context, queue, name, future);
    let (tasks, id) = (context.tasks.clone(), watched.place.id());
    match glommio::spawn_local_into(watched, context.queue(queue)) {
        Ok(task) => Task { task: Some(task), tasks, id },
        Err(error) => unreachable!("the queue was made with the shard: {error}"),
    }
}

/// Lets the other queues have their turn.
pub async fn yield_now() {
    glommio::executor().yield_task_queue_now().await;
}

/// Yields if the task has had its turn: one look at the clock if it has not.
pub async fn yield_if_needed() {
    if need_yield() {
        yield_now().await;
    }
}

/// Lets those go first that can run by now, between two pieces of work of some 100 µs: also those whose news has come since
/// the task began, which a task that does not return would keep waiting until its turn is over.
pub async fn give_way() {
    if context(|context| context.others_wait(clock::monotonic())) {
        yield_now().await;
    }
}

/// Whether the task's queue has had its turn.
pub fn need_yield() -> bool {
    context(|context| context.turn_is_over(clock::monotonic()))
}

pub async fn sleep(duration: Duration) {
    sleep_until(clock::monotonic().plus(duration)).await;
}

/// Returns at once when `deadline` has passed.
pub async fn sleep_until(deadline: Monotonic) {
    context(|context| context.sleepers.until(deadline)).await;
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

/// What the tasks of a shard share.
#[derive(Debug)]
pub(super) struct ShardContext {
    queues: [TaskQueueHandle; 3],
    pub(super) tasks: Rc<Tasks>,
    pub(super) sleepers: Rc<Sleepers>,
    pub(super) ring: Rc<Ring>,
    pub(super) doorbell: Arc<Doorbell>,
    /// The doorbell's inbox while it is answered.
    rung_for: RefCell<Vec<Arc<TaskWaker>>>,
    pulse: Arc<Pulse>,
    /// How long a queue runs before the others get their turn.
    slice: Duration,
    /// How long to look for news before sleeping.
    spin: Duration,
    turn: Cell<Option<Turn>>,
    attended: Cell<Monotonic>,
    started: Monotonic,
    slept: Cell<Duration>,
    polls: Cell<u64>,
    /// The executor's own counts start again whenever they are read.
    work: Cell<Work>,
    is_ending: Cell<bool>,
}

/// Since when which queue runs.
#[derive(Clone, Copy, Debug)]
struct Turn {
    queue: Queue,
    since: Monotonic,
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
        work.busy = clock::monotonic().since(context.started).saturating_sub(context.slept.get());
        work.tasks_run = context.polls.get();
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

    /// A task of `queue` is about to be polled.
    fn begin_poll(&self, queue: Queue) {
        self.polls.set(self.polls.get() + 1);
        if self.turn.get().is_none_or(|turn| turn.queue != queue) {
            self.turn.set(Some(Turn { queue, since: clock::monotonic() }));
        }
    }

    /// A task of `queue` was polled: looks after IO if it is time, and ends the queue's turn if others wait for theirs.
    fn end_poll(&self, queue: Queue) {
        let now = clock::monotonic();
        let unattended = now.since(self.attended.get());
        self.pulse.note_alive(now, unattended);
        if unattended >= ATTENDED_EVERY {
            self.attend(now);
        }
        let is_preempted = queue != Queue::Control && self.tasks.runnable_of(Queue::Control) > 0;
        if self.tasks.runnable() > self.tasks.runnable_of(queue) && (is_preempted || self.turn_is_over(now)) {
            self.end_turn();
        }
    }

    fn others_wait(&self, now: Monotonic) -> bool {
        if now.since(self.attended.get()) >= ATTENDED_EVERY {
            self.attend(now);
        }
        self.tasks.runnable() > 0
    }

    fn turn_is_over(&self, now: Monotonic) -> bool {
        self.turn.get().is_some_and(|turn| now.since(turn.since) >= self.slice)
    }

    /// glommio takes another queue when the task that runs returns.
    fn end_turn(&self) {
        self.turn.set(None);
        let executor = glommio::executor();
        let mut yielding = pin!(executor.yield_task_queue_now());
        let _ = yielding.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Wakes whoever has news, without waiting for any.
    fn attend(&self, now: Monotonic) {
        or_fatal(self.ring.poll());
        self.deliver(now);
    }

    /// Wakes whoever has news that the shard knows of without a call to the system.
    fn deliver(&self, now: Monotonic) {
        self.attended.set(now);
        self.sleepers.wake(now);
        self.answer_bell();
        or_fatal(self.ring.deliver());
    }

    fn answer_bell(&self) {
        if self.doorbell.has_rung() {
            let mut woken = self.rung_for.take();
            self.doorbell.take(&mut woken);
            for task in woken.drain(..) {
                task.answer(&self.tasks);
            }
            self.rung_for.replace(woken);
        }
    }

    /// Nothing of the other queues can run, or glommio gives this one its turn: looks after IO, and sleeps if it is so.
    fn care(&self) {
        let now = clock::monotonic();
        self.deliver(now);
        if self.tasks.runnable() > 0 || self.is_ending.get() {
            // Many ended turns in a row would keep what is new from being seen.
            or_fatal(self.ring.poll());
            return;
        }
        if self.finds_news_spinning(now) {
            return;
        }
        if !self.doorbell.fall_asleep() {
            self.answer_bell();
            return;
        }
        let now = clock::monotonic();
        let at_most = self.sleepers.next_deadline().map_or(SLEEP_MAX, |next| next.since(now).min(SLEEP_MAX));
        self.pulse.fall_asleep();
        or_fatal(self.ring.sleep(at_most));
        let woken = clock::monotonic();
        self.pulse.wake_up(woken);
        self.doorbell.is_awake();
        self.slept.set(self.slept.get() + woken.since(now));
        self.turn.set(None);
        self.deliver(woken);
    }

    fn finds_news_spinning(&self, since: Monotonic) -> bool {
        while !self.spin.is_zero() {
            let now = clock::monotonic();
            if now.since(since) >= self.spin {
                break;
            }
            self.attend(now);
            if self.tasks.runnable() > 0 {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}

fn or_fatal(result: io::Result<()>) {
    if let Err(error) = result {
        fatal(format_args!("the ring of a shard: {error}"));
    }
}

fn context<R>(read: impl FnOnce(&Rc<ShardContext>) -> R) -> R {
    CONTEXT.with_borrow(|context| match context {
        Some(context) => read(context),
        None => panic!("this thread is no shard"),
    })
}

/// The tasks of this thread's shard, if it is one.
pub(super) fn with_tasks<R>(read: impl FnOnce(&Tasks) -> R) -> Option<R> {
    // A waker may be dropped or used while the thread ends.
    let read = CONTEXT.try_with(|context| context.borrow().as_ref().map(|context| read(&context.tasks)));
    read.ok().flatten()
}

/// A place in the ring of this thread's shard. Panics on a thread that is no shard.
pub(crate) fn watch(descriptor: BorrowedFd<'_>, interest: Interest) -> Readiness {
    context(|context| context.ring.watch(descriptor, interest))
}

/// Makes the queues and the ring of the shard that runs on this thread and puts it under the watchdog.
pub(super) async fn enter(name: &str, slice: Duration, spin: Duration) -> io::Result<Rc<ShardContext>> {
    // What is woken through glommio itself, where the shard does not answer otherwise.
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let executor = glommio::executor();
    let queues = Queue::ALL.map(|queue| {
        executor.create_task_queue(Shares::Static(queue.shares()), Latency::NotImportant, queue.name())
    });
    let care = executor.create_task_queue(Shares::Static(1), Latency::NotImportant, "care");
    let doorbell = Arc::new(Doorbell::new()?);
    let ring = Rc::new(Ring::new(&doorbell)?);
    let started = clock::monotonic();
    let context = Rc::new(ShardContext {
        queues,
        tasks: Rc::new(Tasks::new(doorbell.clone())),
        sleepers: Rc::default(),
        ring,
        doorbell,
        rung_for: RefCell::default(),
        pulse: watchdog::watch(name, waker),
        slice,
        spin,
        turn: Cell::new(None),
        attended: Cell::new(started),
        started,
        slept: Cell::default(),
        polls: Cell::default(),
        work: Cell::default(),
        is_ending: Cell::new(false),
    });
    CONTEXT.set(Some(context.clone()));
    match glommio::spawn_local_into(take_care(context.clone()), care) {
        Ok(caretaker) => drop(caretaker.detach()),
        Err(error) => unreachable!("the queue was made above: {error}"),
    }
    Ok(context)
}

/// The task that is always ready: what else can run goes before it.
async fn take_care(context: Rc<ShardContext>) {
    while !context.is_ending.get() {
        context.care();
        glommio::executor().yield_task_queue_now().await;
    }
    CONTEXT.set(None);
}

/// Polls the shard's own future to its end inside the task that glommio has made for it.
pub(super) fn root<F: Future>(context: &Rc<ShardContext>, future: F) -> impl Future<Output = F::Output> {
    Watched::new(context, Queue::Serve, "root", future)
}

impl ShardContext {
    /// The shard's own future has ended: nothing is waited for any more.
    pub(super) fn end(&self) {
        watchdog::forget(&self.pulse);
        self.is_ending.set(true);
    }
}

/// A task as the executor sees it: its wakes are counted, IO is looked after between polls, the watchdog hears of each,
/// and a panic ends the process: glommio would end the shard alone.
struct Watched<F> {
    future: F,
    name: &'static str,
    activity: Activity,
    context: Rc<ShardContext>,
    place: Membership,
}

impl<F: Future> Watched<F> {
    fn new(context: &Rc<ShardContext>, queue: Queue, name: &'static str, future: F) -> Self {
        let place = context.tasks.join(queue);
        Self { future, name, activity: Activity::named(name), context: context.clone(), place }
    }
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `future` is pinned with its struct: it is never moved out, `Watched` has no `Drop` and is
        // `Unpin` only if `F` is. The other fields are not pinned.
        let this = unsafe { self.get_unchecked_mut() };
        let queue = this.place.queue();
        this.context.begin_poll(queue);
        this.place.begin_poll(cx.waker());
        this.activity.note(&this.context.pulse);
        let cx = &mut Context::from_waker(this.place.waker());
        // SAFETY: as above.
        let future = unsafe { Pin::new_unchecked(&mut this.future) };
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(poll) => {
                this.context.end_poll(queue);
                poll
            }
            Err(panic) => end_process(this.name, &*panic),
        }
    }
}

#[cold]
fn end_process(name: &str, panic: &(dyn Any + Send)) -> ! {
    fatal(format_args!("task {name} panicked: {}", panic_text(panic)))
}
