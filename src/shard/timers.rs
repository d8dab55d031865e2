//! The shard's timing wheel and the one timer of the executor that drives it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Shard;
use super::appends::AppendInFlight;
use super::shares;
use crate::base::clock::{self, Monotonic};
use crate::io::runtime::{Notify, Queue, sleep_until, spawn};
use crate::timer::{TimerKey, Wheel};

/// How long the timer sleeps when nothing is due.
const IDLE_SLEEP: Duration = Duration::from_secs(3600);

/// What a deadline is for.
pub(super) enum Timer {
    AppendTimeout(Weak<AppendInFlight>),
    Wake(Rc<WakeState>),
    /// A member's lock on records of a share partition ends.
    ShareLocks(Weak<shares::Entry>),
}

/// A sleeping task.
pub(super) struct WakeState {
    fired: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

pub(super) struct Timers {
    wheel: RefCell<Wheel<Timer>>,
    /// When the timer task will look next.
    armed_until: Cell<Monotonic>,
    rearm: Notify,
}

impl Timers {
    pub(super) fn new(now: Monotonic) -> Self {
        Self {
            wheel: RefCell::new(Wheel::new(now)),
            armed_until: Cell::new(Monotonic::ZERO),
            rearm: Notify::new(),
        }
    }

    pub(super) fn insert(&self, deadline: Monotonic, timer: Timer) -> TimerKey {
        let key = self.wheel.borrow_mut().insert(deadline, timer);
        self.consider(deadline);
        key
    }

    /// Deadlines that are set.
    pub(super) fn len(&self) -> usize {
        self.wheel.borrow().len()
    }

    pub(super) fn cancel(&self, key: TimerKey) {
        self.wheel.borrow_mut().cancel(key);
    }

    /// Makes sure that the timer looks by `deadline`.
    pub(super) fn consider(&self, deadline: Monotonic) {
        if deadline < self.armed_until.get() {
            self.armed_until.set(deadline);
            self.rearm.notify();
        }
    }
}

/// Starts the task that advances the wheel and what is kept.
pub(super) fn start(shard: &Rc<Shard>) {
    let shard = shard.clone();
    spawn(Queue::Control, "wheel", async move {
        loop {
            let now = clock::monotonic();
            let mut expired = Vec::new();
            shard.timers.wheel.borrow_mut().advance(now, &mut expired);
            shard.expire_fetches(now);
            shard.expire_deletions(now);
            for timer in expired {
                shard.fire(timer);
            }
            let next = [
                shard.timers.wheel.borrow().next_deadline(),
                shard.parked.borrow().purgatory.next_deadline(),
                shard.deletions.borrow().purgatory.next_deadline(),
            ];
            let until = next.into_iter().flatten().min().unwrap_or(now.plus(IDLE_SLEEP));
            shard.timers.armed_until.set(until);
            let mut sleep = pin!(sleep_until(until));
            std::future::poll_fn(|context| {
                if shard.timers.rearm.poll_notified(context).is_ready() {
                    return Poll::Ready(());
                }
                sleep.as_mut().poll(context)
            })
            .await;
        }
    })
    .detach();
}

impl Shard {
    fn fire(self: &Rc<Self>, timer: Timer) {
        match timer {
            Timer::AppendTimeout(in_flight) => {
                if let Some(in_flight) = in_flight.upgrade() {
                    self.append_timed_out(&in_flight);
                }
            }
            Timer::ShareLocks(entry) => {
                if let Some(entry) = entry.upgrade() {
                    self.share_locks_ended(&entry);
                }
            }
            Timer::Wake(state) => {
                state.fired.set(true);
                if let Some(waker) = state.waker.borrow_mut().take() {
                    waker.wake();
                }
            }
        }
    }

    /// Sleeps on the wheel: to the millisecond, never early.
    pub fn sleep(self: &Rc<Self>, duration: Duration) -> Sleep {
        self.sleep_until(clock::monotonic().plus(duration))
    }

    /// Sleeps on the wheel until `deadline`.
    pub fn sleep_until(self: &Rc<Self>, deadline: Monotonic) -> Sleep {
        let state = Rc::new(WakeState { fired: Cell::new(false), waker: RefCell::new(None) });
        let key = self.timers.insert(deadline, Timer::Wake(state.clone()));
        Sleep { shard: self.clone(), key, state }
    }
}

/// Ready at its deadline; dropping it cancels the timer.
pub struct Sleep {
    shard: Rc<Shard>,
    key: TimerKey,
    state: Rc<WakeState>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.state.fired.get() {
            return Poll::Ready(());
        }
        *self.state.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // A fired timer's key may belong to another by now.
        if !self.state.fired.get() {
            self.shard.timers.cancel(self.key);
        }
    }
}
