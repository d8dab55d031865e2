//! The watchdog: one plain thread per process that wakes every shard in turn and sees whether it answers.
//!
//! It exists for two reasons. The executor can park although tasks are ready; any event ends that, and the
//! watchdog's wake is one. And a shard that is stuck in one task is reported with its name and the task that ran last.
//!
//! A wake costs the shard about what a request costs, and one that it answers without having polled anything else
//! shows that there was nothing to run: hence two pauses that grow. The first wake comes when nothing was polled between
//! two looks, 2 ms apart: 2 to 4 ms after the last poll. When 8 such wakes in a row were not needed the looks go 4,
//! then 8 ms apart; a wake that found waiting tasks brings the 2 ms back. (Batches of a producer every 5 ms then cost a
//! third of the wakes and a quarter of the system calls.) Then the pauses double up to every 100 ms. At the longest the
//! shard counts as idle, and its next poll calls the watchdog back. A poll of the background queue, or of another quiet task, does not:
//! sweeps that run on an idle shard belong there.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::base::clock::{self, Monotonic};
use crate::base::fatal;

/// Between looks at a shard that has work and was found parked beside it lately.
const FIRST_MIN: Duration = Duration::from_millis(2);
/// Between looks at a shard that has work, when no wake has been needed for long.
const FIRST_MAX: Duration = Duration::from_millis(8);
/// So many wakes that nobody needed, one after the other, double the time between looks.
const UNNEEDED_MIN: u32 = 8;
/// Between wakes of an idle shard.
const PERIOD_IDLE: Duration = Duration::from_millis(100);
/// A silence this long is counted and logged.
const STALL_REPORTED: Duration = Duration::from_millis(500);
/// After this much silence the wakes get rare: each one in the queue holds one of the executor's 32,767
/// references to the task.
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// What the watchdog has seen of one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StallReport {
    pub shard: String,
    /// From a wake of the watchdog to the shard's answer, the longest so far.
    pub longest: Duration,
    /// How often the shard was silent for over 500 ms.
    pub stalls: u64,
    /// How many wakes found tasks that ran before the answer: the shard had parked beside them, or was just at work.
    pub rescues: u64,
    /// For how long it has owed an answer now.
    pub silent: Duration,
    /// The name of the task that was polled last.
    pub last_activity: &'static str,
}

/// The running shards' reports.
pub fn stalls() -> Vec<StallReport> {
    let shards = registry().lock();
    shards.iter().map(|pulse| pulse.report()).collect()
}

/// Starts the counts of [`stalls`] again.
pub fn reset_stalls() {
    for pulse in registry().lock().iter() {
        pulse.longest_ns.store(0, Ordering::Relaxed);
        pulse.stalls.store(0, Ordering::Relaxed);
        pulse.rescues.store(0, Ordering::Relaxed);
    }
}

/// Puts the calling shard under watch; starts the thread when it is the first.
/// `waker` is that of any task of the shard; the one that answers replaces it.
pub(super) fn watch(name: &str, waker: Waker) -> Arc<Pulse> {
    let pulse = Arc::new(Pulse {
        name: name.to_owned(),
        waker: Mutex::new(Some(waker)),
        asked_ns: AtomicU64::new(0),
        polls: AtomicU64::new(0),
        polls_at_answer: AtomicU64::new(0),
        label: AtomicU32::new(0),
        taken_for_idle: AtomicBool::new(false),
        longest_ns: AtomicU64::new(0),
        stalls: AtomicU64::new(0),
        rescues: AtomicU64::new(0),
    });
    registry().lock().push(pulse.clone());
    watchdog_thread().unpark();
    pulse
}

pub(super) fn forget(pulse: &Arc<Pulse>) {
    registry().lock().retain(|other| !Arc::ptr_eq(other, pulse));
    pulse.lock_waker().take();
}

/// The counters that a shard and the watchdog share. The shard alone writes `polls`, `polls_at_answer` and `label`.
#[derive(Debug)]
pub(super) struct Pulse {
    name: String,
    waker: Mutex<Option<Waker>>,
    /// When the watchdog asked; 0 when it has its answer.
    asked_ns: AtomicU64,
    polls: AtomicU64,
    /// What `polls` was when the shard answered last.
    polls_at_answer: AtomicU64,
    /// Index into [`Labels`].
    label: AtomicU32,
    /// Set by the watchdog when it goes over to the long period, cleared by the poll that calls it back.
    taken_for_idle: AtomicBool,
    longest_ns: AtomicU64,
    stalls: AtomicU64,
    rescues: AtomicU64,
}

impl Pulse {
    /// For a task with this name; a quiet one does not call the watchdog.
    pub(super) fn activity(self: &Arc<Self>, name: &'static str, quiet: bool) -> Activity {
        Activity { pulse: self.clone(), label: label_of(name), quiet }
    }

    /// Counts a poll, and calls the watchdog back if it takes the shard for idle. Only on the shard.
    pub(super) fn note_poll(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.taken_for_idle.load(Ordering::Relaxed) {
            self.taken_for_idle.store(false, Ordering::Relaxed);
            watchdog_thread().unpark();
        }
    }

    /// The shard's side: answers each wake of the watchdog, for ever.
    pub(super) async fn answer(self: Arc<Self>) {
        poll_fn(|cx| {
            {
                let mut waker = self.lock_waker();
                if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
            }
            self.polls_at_answer.store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
            // Release: who sees the answer sees the polls before it.
            let asked = self.asked_ns.swap(0, Ordering::Release);
            if asked != 0 {
                let silence = clock::monotonic().as_nanos().saturating_sub(asked);
                self.longest_ns.fetch_max(silence, Ordering::Relaxed);
            }
            Poll::<()>::Pending
        })
        .await;
    }

    fn wake(&self) {
        if let Some(waker) = self.lock_waker().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn report(&self) -> StallReport {
        let asked = self.asked_ns.load(Ordering::Relaxed);
        let silence = match asked {
            0 => 0,
            asked => clock::monotonic().as_nanos().saturating_sub(asked),
        };
        StallReport {
            shard: self.name.clone(),
            longest: Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed).max(silence)),
            stalls: self.stalls.load(Ordering::Relaxed),
            rescues: self.rescues.load(Ordering::Relaxed),
            silent: Duration::from_nanos(silence),
            last_activity: label_name(self.label.load(Ordering::Relaxed)),
        }
    }

    fn lock_waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes polls of one task.
#[derive(Debug)]
pub(super) struct Activity {
    pulse: Arc<Pulse>,
    label: u32,
    quiet: bool,
}

impl Activity {
    /// Two loads and two stores without a lock prefix.
    pub(super) fn note(&self) {
        let pulse = &*self.pulse;
        pulse.label.store(self.label, Ordering::Relaxed);
        if !self.quiet {
            pulse.note_poll();
        }
    }
}

/// What the watchdog knows of one shard between two rounds.
struct Watch {
    pulse: Arc<Pulse>,
    polls: u64,
    /// From a poll to the first wake after it, at least.
    first: Duration,
    /// Wakes in a row that nobody needed.
    unneeded: u32,
    /// From the last wake to the next; doubles with each answer since the last other poll.
    period: Duration,
    /// What the shard had polled when it was asked, until its answer is seen.
    polls_at_wake: Option<u64>,
    wake_at: Monotonic,
    reported: bool,
}

impl Watch {
    /// Wakes the shard if it is time and returns when it is time again.
    fn round(&mut self, now: Monotonic) -> Monotonic {
        let pulse = self.pulse.clone();
        let asked = pulse.asked_ns.load(Ordering::Acquire);
        if asked == 0 {
            self.learn();
        }
        let polls = pulse.polls.load(Ordering::Relaxed);
        if polls != self.polls {
            self.polls = polls;
            self.period = self.first;
            // It has just polled something: not parked, so the next look is soon enough. This spares a loaded
            // shard the wakes, 500 a second at the cost of a request each.
            self.wake_at = now.plus(self.first);
        }
        let silence = Duration::from_nanos(if asked == 0 { 0 } else { now.as_nanos().saturating_sub(asked) });
        self.report(silence);
        if now >= self.wake_at {
            if asked == 0 {
                self.period = (self.period * 2).min(PERIOD_IDLE);
                self.polls_at_wake = Some(polls);
                pulse.asked_ns.store(now.as_nanos().max(1), Ordering::Relaxed);
            }
            if self.period == PERIOD_IDLE {
                pulse.taken_for_idle.store(true, Ordering::Relaxed);
            }
            pulse.wake();
            self.wake_at = now.plus(if silence > SILENT_AFTER { PERIOD_IDLE } else { self.period });
        }
        self.wake_at
    }

    /// From the answer to the last wake: whether it was needed. A shard that was just at work passes for one
    /// that was parked, which costs a few wakes and never a delay.
    fn learn(&mut self) {
        let Some(before) = self.polls_at_wake.take() else { return };
        if self.pulse.polls_at_answer.load(Ordering::Relaxed) == before {
            self.unneeded += 1;
            if self.unneeded >= UNNEEDED_MIN {
                self.unneeded = 0;
                self.first = (self.first * 2).min(FIRST_MAX);
            }
        } else {
            self.unneeded = 0;
            self.pulse.rescues.fetch_add(1, Ordering::Relaxed);
            self.first = FIRST_MIN;
        }
    }

    fn report(&mut self, silence: Duration) {
        let stalled = silence >= STALL_REPORTED;
        if stalled && !self.reported {
            self.pulse.stalls.fetch_add(1, Ordering::Relaxed);
            let report = self.pulse.report();
            tracing::warn!(
                shard = report.shard,
                last_activity = report.last_activity,
                silent_ms = silence.as_millis() as u64,
                "a shard does not answer"
            );
        }
        self.reported = stalled;
    }
}

fn run() -> ! {
    let mut watches: Vec<Watch> = Vec::new();
    loop {
        let now = clock::monotonic();
        update(&mut watches, now);
        let next = watches.iter_mut().map(|watch| watch.round(now)).min();
        match next {
            Some(next) => std::thread::park_timeout(next.since(clock::monotonic())),
            None => std::thread::park(),
        }
    }
}

/// Follows the registry: shards come and go rarely, so the comparison is all that most rounds cost.
fn update(watches: &mut Vec<Watch>, now: Monotonic) {
    let shards = registry().lock();
    let unchanged = watches.len() == shards.len()
        && watches.iter().zip(shards.iter()).all(|(watch, pulse)| Arc::ptr_eq(&watch.pulse, pulse));
    if unchanged {
        return;
    }
    watches.retain(|watch| shards.iter().any(|pulse| Arc::ptr_eq(&watch.pulse, pulse)));
    for pulse in shards.iter() {
        if !watches.iter().any(|watch| Arc::ptr_eq(&watch.pulse, pulse)) {
            watches.push(Watch {
                pulse: pulse.clone(),
                polls: 0,
                first: FIRST_MIN,
                unneeded: 0,
                period: FIRST_MIN,
                polls_at_wake: None,
                wake_at: now,
                reported: false,
            });
        }
    }
    watches.sort_by_key(|watch| shards.iter().position(|pulse| Arc::ptr_eq(&watch.pulse, pulse)));
}

struct Registry(Mutex<Vec<Arc<Pulse>>>);

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Pulse>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn registry() -> &'static Registry {
    static REGISTRY: Registry = Registry(Mutex::new(Vec::new()));
    &REGISTRY
}

fn watchdog_thread() -> &'static Thread {
    static THREAD: OnceLock<Thread> = OnceLock::new();
    THREAD.get_or_init(|| {
        let watch = || {
            let Err(panic) = std::panic::catch_unwind(|| run());
            fatal(format_args!("the watchdog panicked: {}", super::panic_text(&*panic)));
        };
        match std::thread::Builder::new().name("watchdog".into()).spawn(watch) {
            Ok(handle) => handle.thread().clone(),
            Err(error) => fatal(format_args!("no thread for the watchdog: {error}")),
        }
    })
}

/// Names of tasks by number, so that a poll stores one word. Bounded by the names in the program's text.
struct Labels(Mutex<Vec<&'static str>>);

static LABELS: Labels = Labels(Mutex::new(Vec::new()));

fn label_of(name: &'static str) -> u32 {
    let mut names = LABELS.0.lock().unwrap_or_else(PoisonError::into_inner);
    if names.is_empty() {
        names.push("nothing");
    }
    let known = names.iter().position(|other| *other == name);
    let index = known.unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    index as u32
}

fn label_name(label: u32) -> &'static str {
    let names = LABELS.0.lock().unwrap_or_else(PoisonError::into_inner);
    names.get(label as usize).copied().unwrap_or("nothing")
}
