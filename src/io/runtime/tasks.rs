//! The tasks of a shard as far as waking goes: who can run. glommio does not tell whether anything can, and a shard that
//! sleeps in its own ring must know. So each task has a waker of ours over glommio's, counted from its wake to its poll;
//! a wake from another thread goes through the [`Doorbell`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use slab::Slab;

use super::doorbell::Doorbell;
use super::task::Queue;

/// Names a task of a shard; never the same for two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TaskId {
    key: u32,
    serial: u32,
}

/// The tasks of one shard that have not ended.
#[derive(Debug)]
pub(super) struct Tasks {
    doorbell: Arc<Doorbell>,
    entries: RefCell<Slab<Entry>>,
    serial: Cell<u32>,
    /// Tasks that were woken and not polled since, in the order of [`Queue::ALL`].
    runnable: [Cell<u32>; 3],
}

#[derive(Debug)]
struct Entry {
    serial: u32,
    queue: Queue,
    is_woken: bool,
    /// glommio's, once it was polled.
    waker: Option<Waker>,
}

/// The waker of a task, for any thread.
#[derive(Debug)]
pub(super) struct TaskWaker {
    doorbell: Arc<Doorbell>,
    id: TaskId,
    /// It is in the doorbell's inbox.
    is_rung_for: AtomicBool,
}

/// A task's own place among the [`Tasks`]; left when it is dropped.
#[derive(Debug)]
pub(super) struct Membership {
    tasks: Rc<Tasks>,
    id: TaskId,
    queue: Queue,
    waker: Waker,
}

impl Tasks {
    pub(super) fn new(doorbell: Arc<Doorbell>) -> Self {
        Self { doorbell, entries: RefCell::default(), serial: Cell::default(), runnable: Default::default() }
    }

    /// A place for a task that is about to be spawned, and so can run.
    pub(super) fn join(self: &Rc<Self>, queue: Queue) -> Membership {
        let serial = self.serial.get();
        self.serial.set(serial.wrapping_add(1));
        let key = self.entries.borrow_mut().insert(Entry { serial, queue, is_woken: true, waker: None });
        let id = TaskId { key: key as u32, serial };
        self.count(queue, 1);
        let waker = TaskWaker { doorbell: self.doorbell.clone(), id, is_rung_for: AtomicBool::new(false) };
        Membership { tasks: self.clone(), id, queue, waker: Arc::new(waker).into() }
    }

    /// Tasks that can run.
    pub(super) fn runnable(&self) -> u32 {
        self.runnable.iter().map(Cell::get).sum()
    }

    pub(super) fn runnable_of(&self, queue: Queue) -> u32 {
        self.runnable[queue as usize].get()
    }

    /// Only on the shard. A task that has ended is passed over.
    pub(super) fn wake(&self, id: TaskId) {
        self.note_woken(id, |entry| {
            if let Some(waker) = &entry.waker {
                waker.wake_by_ref();
            }
        });
    }

    /// glommio is about to schedule it by itself: it is cancelled.
    pub(super) fn note_cancelled(&self, id: TaskId) {
        self.note_woken(id, |_| {});
    }

    fn note_woken(&self, id: TaskId, then: impl FnOnce(&Entry)) {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(id.key as usize) else { return };
        if entry.serial == id.serial && !entry.is_woken {
            entry.is_woken = true;
            self.count(entry.queue, 1);
            then(entry);
        }
    }

    fn count(&self, queue: Queue, by: i32) {
        let count = &self.runnable[queue as usize];
        count.set(count.get().wrapping_add_signed(by));
    }
}

impl Membership {
    pub(super) fn id(&self) -> TaskId {
        self.id
    }

    pub(super) fn queue(&self) -> Queue {
        self.queue
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// It is being polled, and glommio wakes it by `waker`.
    pub(super) fn begin_poll(&self, waker: &Waker) {
        let mut entries = self.tasks.entries.borrow_mut();
        // The place is this task's as long as the membership lasts.
        let Some(entry) = entries.get_mut(self.id.key as usize) else { return };
        if std::mem::take(&mut entry.is_woken) {
            self.tasks.count(self.queue, -1);
        }
        match &mut entry.waker {
            Some(known) => known.clone_from(waker),
            None => entry.waker = Some(waker.clone()),
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let entry = self.tasks.entries.borrow_mut().remove(self.id.key as usize);
        if entry.is_woken {
            self.tasks.count(self.queue, -1);
        }
    }
}

impl TaskWaker {
    /// Wakes the task out of the doorbell's inbox; on its shard.
    pub(super) fn answer(&self, tasks: &Tasks) {
        // Before the wake: one that comes from here on is a new one. It takes part in the order of the swaps, so that
        // the poll sees what those have done who found the waker rung for already.
        self.is_rung_for.swap(false, Ordering::AcqRel);
        tasks.wake(self.id);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_here = super::task::with_tasks(|tasks| {
            let is_here = Arc::ptr_eq(&tasks.doorbell, &self.doorbell);
            if is_here {
                tasks.wake(self.id);
            }
            is_here
        });
        if !is_here.unwrap_or(false) && !self.is_rung_for.swap(true, Ordering::AcqRel) {
            self.doorbell.ring(self.clone());
        }
    }
}
