//! The produce requests of one connection whose batches cannot be queued at once: they are queued one after the other,
//! in request order, by a task of their own, while the connection is served on. Lives on the connection's shard.
//!
//! It has no bound of its own: a connection has at most `kuring.connection.requests.max` produce requests in service.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use crate::io::runtime::{Queue, spawn};

/// Queues the batches of one request.
pub(super) type Step = Pin<Box<dyn Future<Output = ()>>>;

/// The line of one connection.
#[derive(Default)]
pub struct Line {
    waiting: RefCell<VecDeque<Step>>,
    is_busy: Cell<bool>,
}

impl Line {
    /// Whether what comes now has to wait for what came before it.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy.get()
    }

    /// Has `step` done behind all that came before it; at once if that takes no waiting. `turn` is called after each
    /// step that had to wait, to have written what it queued.
    pub(super) async fn join(self: &Rc<Self>, mut step: Step, turn: impl Fn() + 'static) {
        if self.is_busy() {
            self.waiting.borrow_mut().push_back(step);
            return;
        }
        let now = std::future::poll_fn(|context| Poll::Ready(step.as_mut().poll(context))).await;
        if now.is_pending() {
            self.is_busy.set(true);
            spawn(Queue::Serve, "produce line", self.clone().run(step, turn)).detach();
        }
    }

    async fn run(self: Rc<Self>, first: Step, turn: impl Fn()) {
        let mut next = Some(first);
        while let Some(step) = next {
            step.await;
            turn();
            next = self.waiting.borrow_mut().pop_front();
        }
        self.is_busy.set(false);
    }
}
