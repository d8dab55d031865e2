//! Wakes a task of a shard from any thread.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

/// One task waits, any thread notifies. A notification that comes before the wait is kept, but only one:
/// the waiter looks at the state that it guards, not at the count. Cheap to clone.
#[derive(Clone, Default, Debug)]
pub struct Notify {
    shared: Arc<Shared>,
}

#[derive(Default, Debug)]
struct Shared {
    notified: AtomicBool,
    waiter: AtomicWaker,
}

impl Notify {
    pub fn new() -> Self {
        Self::default()
    }

    /// A notification that nobody has seen yet makes this one a single atomic swap.
    pub fn notify(&self) {
        if !self.shared.notified.swap(true, Ordering::AcqRel) {
            self.shared.waiter.wake();
        }
    }

    /// Waits for the next notification. Only one task may wait at a time; a second would take the first
    /// one's place.
    pub async fn notified(&self) {
        poll_fn(|cx| self.poll_notified(cx)).await;
    }

    /// [`Notify::notified`] for hand-written futures.
    pub fn poll_notified(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.notified.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        self.shared.waiter.register(cx.waker());
        // It may have come between the look and the registration.
        if self.shared.notified.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }
}
