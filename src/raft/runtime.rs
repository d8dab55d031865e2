//! openraft's runtime on a shard's executor: tasks go to the control queue, time is the shard's.

use std::fmt;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use openraft::{AsyncRuntime, OptionalSend};

use super::sync;
use crate::base::clock::{self, Monotonic};
use crate::io::runtime::{self, Queue};

/// Works only on a shard: the executor is started by `io::runtime`, never from here.
#[derive(Debug)]
pub struct ShardRuntime;

impl AsyncRuntime for ShardRuntime {
    type JoinError = JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Moment;
    type TimeoutError = TimedOut;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = rand::rngs::ThreadRng;
    type Mpsc = sync::Mpsc;
    type Watch = sync::Watch;
    type Oneshot = sync::Oneshot;
    type Mutex<T: OptionalSend + 'static> = sync::Mutex<T>;

    /// The task goes on when the handle is dropped. openraft reports a task that panicked as fatal to its
    /// caller, so the panic must not end the process before that.
    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let task = async move {
            let result = AssertUnwindSafe(future).catch_unwind().await;
            // Nobody may be waiting any more.
            let _ = sender.send(result.map_err(|_| JoinError::Panicked));
        };
        runtime::spawn(Queue::Control, "raft", task).detach();
        JoinHandle(receiver)
    }

    fn sleep(duration: Duration) -> Sleep {
        Box::pin(runtime::sleep(duration))
    }

    fn sleep_until(deadline: Moment) -> Sleep {
        Self::sleep(deadline - Moment::now())
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Moment, future: F) -> Timeout<F> {
        Self::timeout(deadline - Moment::now(), future)
    }

    fn is_panic(error: &JoinError) -> bool {
        matches!(error, JoinError::Panicked)
    }

    fn thread_rng() -> rand::rngs::ThreadRng {
        rand::rng()
    }

    fn new(_threads: usize) -> Self {
        Self
    }

    fn block_on<F, T>(&mut self, _future: F) -> T
    where
        F: Future<Output = T>,
    {
        panic!("a shard is started by io::runtime, not by openraft")
    }
}

pub type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// The result of a spawned task.
pub struct JoinHandle<T>(tokio::sync::oneshot::Receiver<Result<T, JoinError>>);

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|result| result.unwrap_or(Err(JoinError::Cancelled)))
    }
}

/// Why a task has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error("the task panicked")]
    Panicked,
    #[error("the task was cancelled")]
    Cancelled,
}

/// The time was up before the future was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct TimedOut;

/// A future that is given up when the time is up.
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimedOut>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(value) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        self.sleep.as_mut().poll(cx).map(|()| Err(TimedOut))
    }
}

/// Nanoseconds since the process started, negative for a time before that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(i64);

impl Moment {
    pub fn at(now: Monotonic) -> Self {
        Self(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX))
    }

    fn nanos(duration: Duration) -> i64 {
        i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
    }
}

impl openraft::Instant for Moment {
    fn now() -> Self {
        Self::at(clock::monotonic())
    }
}

use openraft::Instant as _;

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(Self::nanos(duration)))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_sub(Self::nanos(duration)))
    }
}

impl SubAssign<Duration> for Moment {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub<Moment> for Moment {
    type Output = Duration;

    /// Zero when `earlier` is later.
    fn sub(self, earlier: Moment) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use openraft::testing::runtime::Suite;

    use super::*;
    use crate::io::runtime::run_shard;

    type Checks = Suite<ShardRuntime>;

    /// openraft's own checks of a runtime, those that need no `block_on`.
    #[test]
    fn openraft_accepts_the_runtime() {
        run_shard("raft-runtime", || async {
            Checks::test_spawn_join_handle().await;
            Checks::test_thread_rng().await;
            Checks::test_sleep().await;
            Checks::test_instant().await;
            Checks::test_instant_arithmetic().await;
            Checks::test_instant_sub_instant().await;
            Checks::test_instant_saturating_duration_since().await;
            Checks::test_instant_ord().await;
            Checks::test_sleep_until().await;
            Checks::test_timeout().await;
            Checks::test_timeout_at().await;
            Checks::test_mpsc_recv_empty().await;
            Checks::test_mpsc_recv_channel_closed().await;
            Checks::test_mpsc_weak_sender_wont_prevent_channel_close().await;
            Checks::test_mpsc_weak_sender_upgrade().await;
            Checks::test_mpsc_send().await;
            Checks::test_mpsc_send_to_closed_channel().await;
            Checks::test_mpsc_backpressure().await;
            Checks::test_watch_init_value().await;
            Checks::test_watch_overwrite_init_value().await;
            Checks::test_watch_send_error_no_receiver().await;
            Checks::test_watch_send_if_modified().await;
            Checks::test_watch_wait_until_ge().await;
            Checks::test_watch_wait_until().await;
            Checks::test_watch_changed_marks_as_seen().await;
            Checks::test_watch_borrow_and_update_marks_seen().await;
            Checks::test_watch_changed_returns_immediately_when_unseen().await;
            Checks::test_watch_multiple_borrow_then_changed().await;
            Checks::test_watch_wait_loop_pattern().await;
            Checks::test_watch_multiple_receivers().await;
            Checks::test_watch_subscribe().await;
            Checks::test_watch_send_if_different().await;
            Checks::test_watch_send_if_greater().await;
            Checks::test_oneshot_drop_tx().await;
            Checks::test_oneshot().await;
            Checks::test_oneshot_send_from_another_task().await;
            Checks::test_oneshot_send_to_dropped_rx().await;
            Checks::test_mutex_contention().await;
            Checks::test_mutex().await;
            Checks::test_mutex_lock_owned().await;
        });
    }
}
