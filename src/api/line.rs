//! The produce requests of one connection whose batches cannot be queued at once: they are queued one after the other,
//! in request order, by a task of their own, while the connection is served on. Lives on the connection's shard.
//!
//! It has no bound of its own: a connection has at most `kuring.connection.requests.max` produce requests in service.
//! It ends with its connection: what has not begun is dropped then, unwritten and unanswered.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use crate::io::runtime::{Notify, Queue, spawn};

/// Queues the batches of one request.
pub(super) type Step = Pin<Box<dyn Future<Output = ()>>>;

/// The line of one connection.
#[derive(Default)]
pub struct Line {
    waiting: RefCell<VecDeque<Step>>,
    is_busy: Cell<bool>,
    has_ended: Cell<bool>,
    /// For the step that is under way.
    end: Notify,
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

    /// The connection is gone: nobody waits for an answer any more.
    pub(super) fn end(&self) {
        self.has_ended.set(true);
        self.end.notify();
        // A step holds the connection, and that its line: nothing of it may be borrowed meanwhile.
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        drop(waiting);
    }

    /// Waits until the connection is gone. For the step that is under way.
    pub(super) async fn ended(&self) {
        while !self.has_ended.get() {
            self.end.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::channel::oneshot;

    use super::*;
    use crate::io::runtime::{run_shard, yield_now};

    /// Notes that it is dropped.
    struct Noted(Rc<RefCell<Vec<&'static str>>>, &'static str);

    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.borrow_mut().push(self.1);
        }
    }

    #[test]
    fn steps_come_one_after_the_other() {
        run_shard("line", || async {
            let line = Rc::new(Line::default());
            let notes = Rc::new(RefCell::new(Vec::new()));
            let (go, gone) = oneshot::channel::<()>();
            let note = |name| notes.borrow_mut().push(name);
            let first = {
                let noted = Noted(notes.clone(), "first");
                async move {
                    gone.await.ok();
                    drop(noted);
                }
            };
            line.join(Box::pin(first), || {}).await;
            let second = Noted(notes.clone(), "second");
            line.join(Box::pin(async move { drop(second) }), || {}).await;
            assert!(line.is_busy() && notes.borrow().is_empty());
            go.send(()).ok();
            while line.is_busy() {
                yield_now().await;
            }
            note("end");
            assert_eq!(*notes.borrow(), ["first", "second", "end"]);
        });
    }

    #[test]
    fn what_waits_in_a_line_goes_with_its_connection_and_what_is_under_way_hears_of_it() {
        run_shard("line", || async {
            let line = Rc::new(Line::default());
            let notes = Rc::new(RefCell::new(Vec::new()));
            let first = {
                let (noted, line) = (Noted(notes.clone(), "told"), line.clone());
                async move {
                    line.ended().await;
                    drop(noted);
                }
            };
            line.join(Box::pin(first), || {}).await;
            let begun = Rc::new(Cell::new(false));
            let second = {
                let (noted, begun) = (Noted(notes.clone(), "dropped"), begun.clone());
                async move {
                    begun.set(true);
                    drop(noted);
                }
            };
            line.join(Box::pin(second), || {}).await;
            yield_now().await;
            assert!(notes.borrow().is_empty());
            line.end();
            assert_eq!(*notes.borrow(), ["dropped"]);
            while line.is_busy() {
                yield_now().await;
            }
            assert_eq!(*notes.borrow(), ["dropped", "told"]);
            assert!(!begun.get());
            assert_eq!(Rc::strong_count(&line), 1, "nobody keeps it");
        });
    }
}
