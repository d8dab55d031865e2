//! What a shard's connections hold beside the bytes they receive: decoded requests in service and answers that
//! their peers have not taken, within `kuring.memory.serve.bytes`.
//!
//! Whoever is over it is not refused: its requests wait, and while they do the connection is not read. An answer
//! that is there is always counted, whatever the budget says.

use std::rc::Rc;

use crate::base::Budget;

/// The budget of one shard.
#[derive(Clone, Debug)]
pub(super) struct ServeMemory(Rc<Budget>);

/// A part of the budget; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    memory: ServeMemory,
    bytes: usize,
}

impl ServeMemory {
    pub(super) fn of(budget: &Rc<Budget>) -> Self {
        Self(budget.clone())
    }

    /// Nothing is left: no request is to be begun.
    pub(super) fn is_used_up(&self) -> bool {
        self.0.in_use() > self.0.max()
    }

    /// Holds `bytes`, whatever is left.
    pub(super) fn charge(&self, bytes: usize) -> Charge {
        self.0.take_now(bytes);
        Charge { memory: self.clone(), bytes }
    }

    /// The most that one may have of it; what takes more is beyond it, one at a time.
    pub(super) fn part_max(&self) -> usize {
        self.0.max() / 4
    }

    /// Waits until `bytes` more are within the budget; more than all of it when nothing else is held.
    pub(super) async fn take(&self, bytes: usize) -> Charge {
        self.0.take(bytes).await;
        Charge { memory: self.clone(), bytes }
    }
}

impl Charge {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.memory.0.take_now(bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.0.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_request_waits_until_the_answers_before_it_are_taken() {
        let budget = Rc::new(Budget::new(100));
        let memory = ServeMemory::of(&budget);
        let mut answer = memory.charge(80);
        answer.add(30);
        assert!(memory.is_used_up());
        let mut request = pin!(memory.take(30));
        assert!(request.as_mut().now_or_never().is_none());
        drop(answer);
        assert_eq!(request.now_or_never().map(|charge| charge.bytes()), Some(30));
        assert_eq!((budget.in_use(), budget.waits()), (0, 1));
    }
}
