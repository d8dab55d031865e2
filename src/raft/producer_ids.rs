//! Producer ids for this broker, from blocks that the controller gives out durably.

use crate::base::ProducerId;
use crate::metadata::ProducerIdBlock;

/// What is left of the current block. A block that is not used up when the process ends is lost, never used
/// again.
#[derive(Default, Debug)]
pub struct ProducerIds {
    next: i64,
    end: i64,
}

impl ProducerIds {
    /// `None`: a new block is needed.
    pub fn take(&mut self) -> Option<ProducerId> {
        if self.next == self.end {
            return None;
        }
        let id = ProducerId(self.next);
        self.next += 1;
        Some(id)
    }

    pub fn refill(&mut self, block: ProducerIdBlock) {
        assert_eq!(self.next, self.end, "a block is used up before the next");
        self.next = block.first.0;
        self.end = block.first.0 + i64::from(block.count);
    }
}
