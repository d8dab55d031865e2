//! Sleeping until a time: the deadlines of a shard's tasks, of which the ring's sleep ends with the next. They are few
//! (the timing wheel sleeps once for all that it holds).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::base::clock::{self, Monotonic};

/// Who sleeps on this shard, by deadline and order of arrival.
#[derive(Default, Debug)]
pub(super) struct Sleepers {
    by_deadline: RefCell<BTreeMap<(Monotonic, u64), Waker>>,
    next: Cell<u64>,
}

impl Sleepers {
    pub(super) fn until(self: &Rc<Self>, deadline: Monotonic) -> Sleep {
        let number = self.next.get();
        self.next.set(number + 1);
        Sleep { sleepers: self.clone(), key: (deadline, number) }
    }

    pub(super) fn next_deadline(&self) -> Option<Monotonic> {
        self.by_deadline.borrow().first_key_value().map(|(key, _)| key.0)
    }

    /// Wakes those whose time has come.
    pub(super) fn wake(&self, now: Monotonic) {
        loop {
            let mut sleepers = self.by_deadline.borrow_mut();
            let Some(first) = sleepers.first_entry().filter(|first| first.key().0 <= now) else { return };
            let waker = first.remove();
            drop(sleepers);
            waker.wake();
        }
    }
}

/// Ends at its deadline.
pub(super) struct Sleep {
    sleepers: Rc<Sleepers>,
    key: (Monotonic, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if clock::monotonic() >= self.key.0 {
            return Poll::Ready(());
        }
        self.sleepers.by_deadline.borrow_mut().insert(self.key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.sleepers.by_deadline.borrow_mut().remove(&self.key);
    }
}
