//! A pool of plain threads for everything that can wait for the disk: open, close, fsync, truncate, rename,
//! unlink, recovery. A shard awaits the result or forgets the job.
//!
//! Never here: glommio, anything of a shard. Jobs do not wait for one another: with all threads waiting the
//! pool would stand still.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use futures::channel::oneshot;

use super::runtime::panic_text;
use crate::base::fatal;

/// The pool's handle; cheap to clone, any thread.
#[derive(Clone, Debug)]
pub struct FileThreads {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: &'static str,
    /// Limit of jobs that wait for a thread; only [`FileThreads::run`] respects it.
    queue_max: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default, Debug)]
struct State {
    queue: VecDeque<Job>,
    /// Callers of [`FileThreads::run`] that found the queue full, oldest first.
    waiting: VecDeque<Waker>,
    over_limit: u64,
    stopping: bool,
    threads: Vec<JoinHandle<()>>,
}

struct Job {
    label: &'static str,
    work: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.label)
    }
}

impl FileThreads {
    /// One thread keeps the order of jobs, more do not.
    pub fn start(name: &'static str, threads: usize, queue_max: usize) -> std::io::Result<Self> {
        Self::start_at(name, threads, queue_max, 0)
    }

    /// Threads that step back, by `nice` of 0 to 19, where others want the core.
    pub fn start_at(
        name: &'static str,
        threads: usize,
        queue_max: usize,
        nice: i32,
    ) -> std::io::Result<Self> {
        assert!(threads > 0 && queue_max > 0, "the pool {name} could never do anything");
        let shared =
            Arc::new(Shared { name, queue_max, state: Mutex::new(State::default()), work: Condvar::new() });
        let pool = Self { shared };
        for index in 0..threads {
            let shared = pool.shared.clone();
            let builder = std::thread::Builder::new().name(format!("{name}-{index}"));
            let work = move || {
                // On Linux a thread has a nice value of its own. Without the right to it all goes on, less kindly.
                if nice != 0
                    && let Err(error) = rustix::process::setpriority_process(None, nice)
                {
                    tracing::debug!("{name} keeps its priority: {error}");
                }
                shared.work_until_stopped();
            };
            match builder.spawn(work) {
                Ok(thread) => pool.shared.lock().threads.push(thread),
                Err(error) => {
                    pool.stop();
                    return Err(error);
                }
            }
        }
        Ok(pool)
    }

    /// Does `job` on a thread of the pool and gives its result to whoever awaits the future, on any shard.
    /// The job is queued by this call; if the queue is full, by the awaiting of the future once there is
    /// room. Dropping the future does not take back a queued job. A panic in the job ends the process.
    pub fn run<T, J>(&self, label: &'static str, job: J) -> impl Future<Output = T> + Send + use<T, J>
    where
        T: Send + 'static,
        J: FnOnce() -> T + Send + 'static,
    {
        let (reply, result) = oneshot::channel();
        let job = Job {
            label,
            work: Box::new(move || {
                // Nobody may be waiting any more.
                let _ = reply.send(job());
            }),
        };
        let shared = self.shared.clone();
        let mut refused = shared.try_push(job).err();
        async move {
            poll_fn(|cx| shared.poll_push(cx, &mut refused)).await;
            match result.await {
                Ok(value) => value,
                // A job that panics ends the process, and a stopping pool does its queue first.
                Err(oneshot::Canceled) => fatal(format_args!("{label} on {} was lost", shared.name)),
            }
        }
    }

    /// Does `job` some time; nobody waits. Never refused: what a caller submits is bounded by what it owns
    /// (open files, segments). Jobs above the queue's limit are counted.
    pub fn submit(&self, label: &'static str, job: impl FnOnce() + Send + 'static) {
        self.shared.push(Job { label, work: Box::new(job) });
    }

    /// Drops `value` on a thread of the pool: closing an unlinked file can take 200 ms per GiB.
    pub fn drop_later<T: Send + 'static>(&self, value: T) {
        self.submit("drop", move || drop(value));
    }

    /// [`FileThreads::run`] for plain threads: waits for the result here, whatever the queue's length.
    pub fn run_blocking<T: Send + 'static>(
        &self,
        label: &'static str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (reply, result) = std::sync::mpsc::sync_channel(1);
        self.submit(label, move || {
            let _ = reply.send(job());
        });
        match result.recv() {
            Ok(value) => value,
            Err(_) => fatal(format_args!("{label} on {} was lost", self.shared.name)),
        }
    }

    /// Jobs that wait for a thread.
    pub fn queued(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// How many jobs found the queue at its limit.
    pub fn over_limit(&self) -> u64 {
        self.shared.lock().over_limit
    }

    /// Does what is queued, then ends the threads and waits for them. Later jobs are done by the thread
    /// that brings them. Must not be called from a job.
    pub fn stop(&self) {
        let threads = {
            let mut state = self.shared.lock();
            state.stopping = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.work.notify_all();
        for thread in threads {
            if thread.join().is_err() {
                fatal(format_args!("a thread of {} panicked", self.shared.name));
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) {
        let mut state = self.lock();
        if state.stopping {
            drop(state);
            return self.execute(job);
        }
        if state.queue.len() >= self.queue_max {
            state.over_limit += 1;
        }
        state.queue.push_back(job);
        drop(state);
        self.work.notify_one();
    }

    fn try_push(&self, job: Job) -> Result<(), Job> {
        let mut state = self.lock();
        if state.stopping {
            drop(state);
            self.execute(job);
            return Ok(());
        }
        // Those who wait go first.
        if state.queue.len() >= self.queue_max || !state.waiting.is_empty() {
            state.over_limit += 1;
            return Err(job);
        }
        state.queue.push_back(job);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    fn poll_push(&self, cx: &mut Context<'_>, refused: &mut Option<Job>) -> Poll<()> {
        let Some(job) = refused.take() else { return Poll::Ready(()) };
        let mut state = self.lock();
        if state.stopping {
            drop(state);
            self.execute(job);
            return Poll::Ready(());
        }
        if state.queue.len() >= self.queue_max {
            // Few wait; a future that is polled again must not stand in the line twice.
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push_back(cx.waker().clone());
            }
            *refused = Some(job);
            return Poll::Pending;
        }
        state.queue.push_back(job);
        drop(state);
        self.work.notify_one();
        Poll::Ready(())
    }

    fn work_until_stopped(&self) {
        while let Some(job) = self.next_job() {
            self.execute(job);
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                let woken = state.waiting.pop_front();
                drop(state);
                if let Some(waker) = woken {
                    waker.wake();
                }
                return Some(job);
            }
            // A caller whose future was dropped after its wake leaves others behind it.
            let left = std::mem::take(&mut state.waiting);
            if !left.is_empty() {
                drop(state);
                left.into_iter().for_each(Waker::wake);
                state = self.lock();
                continue;
            }
            if state.stopping {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn execute(&self, job: Job) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(job.work)) {
            fatal(format_args!("{} on {} panicked: {}", job.label, self.name, panic_text(&*panic)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::io::runtime::run_shard;

    #[test]
    fn result_comes_back_to_the_shard() {
        let pool = FileThreads::start("pool", 2, 16).unwrap();
        let there = pool.clone();
        let name = run_shard("asks", move || async move {
            there.run("name", || std::thread::current().name().map(str::to_owned)).await
        });
        assert!(name.unwrap().starts_with("pool-"));
        assert_eq!(pool.run_blocking("sum", || 1 + 1), 2);
        pool.stop();
    }

    #[test]
    fn one_thread_keeps_the_order_and_stop_does_the_queue() {
        let pool = FileThreads::start("ordered", 1, 1_000).unwrap();
        let done = Arc::new(Mutex::new(Vec::new()));
        for number in 0..200 {
            let done = done.clone();
            pool.submit("note", move || done.lock().unwrap().push(number));
        }
        pool.stop();
        assert_eq!(*done.lock().unwrap(), (0..200).collect::<Vec<_>>());
        assert_eq!(pool.run_blocking("after the end", || 7), 7);
    }

    #[test]
    fn full_queue_holds_runners_back_and_loses_none() {
        let pool = FileThreads::start("small", 2, 4).unwrap();
        let (there, running) = (pool.clone(), Arc::new(AtomicU32::new(0)));
        let counted = running.clone();
        run_shard("many", move || async move {
            let jobs = (0..200).map(|_| {
                let running = counted.clone();
                there.run("slow", move || {
                    std::thread::sleep(Duration::from_micros(100));
                    running.fetch_add(1, Ordering::Relaxed);
                })
            });
            let jobs: Vec<_> = jobs.collect();
            assert!(there.queued() <= 4);
            futures::future::join_all(jobs).await;
        });
        assert_eq!(running.load(Ordering::Relaxed), 200);
        assert!(pool.over_limit() > 100);
        pool.stop();
    }

    #[test]
    fn abandoned_waiters_do_not_keep_others_waiting() {
        let pool = FileThreads::start("gone", 1, 1).unwrap();
        let there = pool.clone();
        run_shard("gone", move || async move {
            let slow = || std::thread::sleep(Duration::from_millis(10));
            let first = there.run("slow", slow);
            let second = there.run("slow", slow);
            let mut abandoned: Vec<_> = (0..3).map(|_| Box::pin(there.run("slow", slow))).collect();
            for job in &mut abandoned {
                assert!(futures::poll!(job).is_pending());
            }
            let mut last = Box::pin(there.run("slow", slow));
            assert!(futures::poll!(&mut last).is_pending());
            drop(abandoned);
            futures::join!(first, second, last);
        });
        pool.stop();
    }
}
