//! A shard's own counter: a plain cell, no atomics, read by the shard that owns it.

use std::cell::Cell;

/// Counts events on one shard.
#[derive(Default, Debug)]
pub struct Counter(Cell<u64>);

impl Counter {
    pub fn increment(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.set(self.0.get().wrapping_add(count));
    }

    pub fn get(&self) -> u64 {
        self.0.get()
    }
}
