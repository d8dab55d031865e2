//! The watchdog: one plain thread per process that looks at every shard. One that is stuck in a task is reported with
//! its name and the task that runs.
//!
//! A look reads what the shard has noted and wakes nobody. Only a shard that is silent for long is woken, once and past
//! its own ring: glommio can park although tasks are ready, when it is preempted at a bad moment, and any event ends that.
//! Here it is preempted once a second, and never yet at such a moment.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::thread::Thread;
use std::time::Duration;

use crate::base::clock::{self, Monotonic};
use crate::base::fatal;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(50);
/// A silence this long is counted and logged.
const STALL_REPORTED: Duration = Duration::from_millis(500);

/// What is known of how one shard keeps up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StallReport {
    pub shard: String,
    /// The longest time in which it did not look after IO, so far.
    pub longest: Duration,
    /// How often the shard was silent for over 500 ms.
    pub stalls: u64,
    /// For how long the task that runs has not returned.
    pub silent: Duration,
    /// The name of the task that was polled last.
    pub last_activity: &'static str,
}

/// The running shards' reports.
pub fn stalls() -> Vec<StallReport> {
    let shards = registry().lock();
    shards.iter().map(|pulse| pulse.report()).collect()
}

/// Puts a shard under watch; starts the thread when it is the first. `waker` is glommio's own of any task of the shard.
pub(super) fn watch(name: &str, waker: Waker) -> Arc<Pulse> {
    let pulse = Arc::new(Pulse {
        name: name.to_owned(),
        waker: Mutex::new(Some(waker)),
        alive_ns: AtomicU64::new(clock::monotonic().as_nanos()),
        is_asleep: AtomicBool::new(false),
        label: AtomicU32::new(0),
        longest_ns: AtomicU64::new(0),
        stalls: AtomicU64::new(0),
    });
    registry().lock().push(pulse.clone());
    watchdog_thread().unpark();
    pulse
}

pub(super) fn forget(pulse: &Arc<Pulse>) {
    registry().lock().retain(|other| !Arc::ptr_eq(other, pulse));
    pulse.lock_waker().take();
}

/// What a shard notes of itself. The shard alone writes all but `stalls`.
#[derive(Debug)]
pub(super) struct Pulse {
    name: String,
    waker: Mutex<Option<Waker>>,
    /// When a task returned last, or the shard woke.
    alive_ns: AtomicU64,
    is_asleep: AtomicBool,
    /// Index into [`Labels`].
    label: AtomicU32,
    longest_ns: AtomicU64,
    stalls: AtomicU64,
}

impl Pulse {
    /// A task returned at `now`, and IO was not looked after for `unattended`.
    pub(super) fn note_alive(&self, now: Monotonic, unattended: Duration) {
        self.alive_ns.store(now.as_nanos(), Ordering::Relaxed);
        let unattended = unattended.as_nanos() as u64;
        if unattended > self.longest_ns.load(Ordering::Relaxed) {
            self.longest_ns.store(unattended, Ordering::Relaxed);
        }
    }

    pub(super) fn fall_asleep(&self) {
        self.is_asleep.store(true, Ordering::Relaxed);
    }

    pub(super) fn wake_up(&self, now: Monotonic) {
        self.alive_ns.store(now.as_nanos(), Ordering::Relaxed);
        // Release: who sees it awake sees since when.
        self.is_asleep.store(false, Ordering::Release);
    }

    fn silence(&self, now: Monotonic) -> Duration {
        if self.is_asleep.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        now.since(Monotonic::from_nanos(self.alive_ns.load(Ordering::Relaxed)))
    }

    fn report(&self) -> StallReport {
        let silent = self.silence(clock::monotonic());
        StallReport {
            shard: self.name.clone(),
            longest: Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed)).max(silent),
            stalls: self.stalls.load(Ordering::Relaxed),
            silent,
            last_activity: label_name(self.label.load(Ordering::Relaxed)),
        }
    }

    /// Says that it is silent, and wakes it past its ring.
    fn complain(&self, silence: Duration) {
        self.stalls.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            shard = self.name,
            last_activity = label_name(self.label.load(Ordering::Relaxed)),
            silent_ms = silence.as_millis() as u64,
            "a shard does not answer"
        );
        if let Some(waker) = self.lock_waker().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn lock_waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names the task that is polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    label: u32,
}

impl Activity {
    pub(super) fn named(name: &'static str) -> Self {
        Self { label: label_of(name) }
    }

    /// It is being polled on the shard of `pulse`.
    pub(super) fn note(self, pulse: &Pulse) {
        pulse.label.store(self.label, Ordering::Relaxed);
    }
}

fn run() -> ! {
    // Those that were complained about and have not moved since.
    let mut silent: Vec<Arc<Pulse>> = Vec::new();
    loop {
        let shards = registry().lock().clone();
        if shards.is_empty() {
            silent.clear();
            std::thread::park();
            continue;
        }
        for pulse in &shards {
            let silence = pulse.silence(clock::monotonic());
            let known = silent.iter().position(|other| Arc::ptr_eq(other, pulse));
            match (silence >= STALL_REPORTED, known) {
                (true, None) => {
                    pulse.complain(silence);
                    silent.push(pulse.clone());
                }
                (false, Some(known)) => drop(silent.swap_remove(known)),
                _ => {}
            }
        }
        silent.retain(|pulse| shards.iter().any(|other| Arc::ptr_eq(other, pulse)));
        drop(shards);
        std::thread::sleep(PERIOD);
    }
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
