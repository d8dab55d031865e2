//! A queue into a shard: many senders on any thread, one receiver that drains it in batches. It has no
//! limit of its own: who sends holds a credit first, so the credits given out bound it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

/// Makes a queue. The receiving end may travel to its shard before it is first used.
pub fn mailbox<T: Send>() -> (Sender<T>, Mailbox<T>) {
    let shared = Arc::new(Shared {
        inbox: Mutex::new(Inbox { items: Vec::new(), open: true }),
        receiver: AtomicWaker::new(),
        senders: AtomicUsize::new(1),
    });
    (Sender { shared: shared.clone() }, Mailbox { shared })
}

/// The mailbox is gone, its shard has stopped. Gives the item back.
#[derive(Debug, thiserror::Error)]
#[error("the receiving shard has stopped")]
pub struct Closed<T>(pub T);

/// The sending end; any thread.
#[derive(Debug)]
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// The receiving end; one task of one shard.
#[derive(Debug)]
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    inbox: Mutex<Inbox<T>>,
    receiver: AtomicWaker,
    senders: AtomicUsize,
}

#[derive(Debug)]
struct Inbox<T> {
    items: Vec<T>,
    open: bool,
}

impl<T> Sender<T> {
    /// About 20 ns; the first item into an empty queue also wakes the receiver (about 1 µs when it sleeps).
    /// Items of one sender stay in order.
    pub fn push(&self, item: T) -> Result<(), Closed<T>> {
        let was_empty = {
            let mut inbox = self.shared.lock();
            if !inbox.open {
                return Err(Closed(item));
            }
            inbox.items.push(item);
            inbox.items.len() == 1
        };
        if was_empty {
            self.shared.receiver.wake();
        }
        Ok(())
    }

    /// Items that nobody has taken yet.
    pub fn len(&self) -> usize {
        self.shared.lock().items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self { shared: self.shared.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.receiver.wake();
        }
    }
}

impl<T> Mailbox<T> {
    /// Waits until there is something, then appends all of it to `out`. Returns how much; 0 says that the
    /// queue is empty and every sender is gone. Cancelling it loses nothing.
    pub async fn drain_into(&mut self, out: &mut Vec<T>) -> usize {
        poll_fn(|cx| self.poll_drain_into(cx, out)).await
    }

    /// [`Mailbox::drain_into`] for hand-written futures.
    pub fn poll_drain_into(&mut self, cx: &mut Context<'_>, out: &mut Vec<T>) -> Poll<usize> {
        let drained = self.try_drain_into(out);
        if drained > 0 {
            return Poll::Ready(drained);
        }
        self.shared.receiver.register(cx.waker());
        // Read before the second look: a sender pushes first and goes afterwards.
        let all_gone = self.shared.senders.load(Ordering::Acquire) == 0;
        let drained = self.try_drain_into(out);
        if drained > 0 || all_gone { Poll::Ready(drained) } else { Poll::Pending }
    }

    /// Takes what is there.
    pub fn try_drain_into(&mut self, out: &mut Vec<T>) -> usize {
        let mut inbox = self.shared.lock();
        let drained = inbox.items.len();
        if out.is_empty() {
            // The two vectors take turns: no allocation once both have grown.
            std::mem::swap(&mut inbox.items, out);
        } else {
            out.append(&mut inbox.items);
        }
        drained
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let left = {
            let mut inbox = self.shared.lock();
            inbox.open = false;
            std::mem::take(&mut inbox.items)
        };
        // The waker must not outlive its shard in a sender's hands.
        drop(self.shared.receiver.take());
        drop(left);
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Inbox<T>> {
        // Nothing that runs under the lock can leave it half done.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
