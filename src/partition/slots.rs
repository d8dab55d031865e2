//! How many batches of one shard may lie half decompressed: each holds what its codec needs, up to 128 MiB, however
//! small it is itself, and a client may send one to every partition.

use std::cell::Cell;
use std::rc::Rc;

/// Compressed batches of one shard that may be unfinished at the end of a turn. A further one begins anew when there is
/// a place.
pub const UNFINISHED_MAX: usize = 2;

/// The places of one shard, shared by its partitions.
#[derive(Clone, Debug)]
pub struct Slots(Rc<Cell<usize>>);

/// A place; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Slot(Slots);

impl Default for Slots {
    fn default() -> Self {
        Self(Rc::new(Cell::new(UNFINISHED_MAX)))
    }
}

impl Slots {
    pub(super) fn take(&self) -> Option<Slot> {
        let left = self.0.get().checked_sub(1)?;
        self.0.set(left);
        Some(Slot(self.clone()))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Slots(free) = &self.0;
        free.set(free.get() + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_it_is_dropped() {
        let slots = Slots::default();
        let taken: Vec<Slot> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken.len(), UNFINISHED_MAX);
        drop(taken);
        assert!(slots.clone().take().is_some());
    }
}
