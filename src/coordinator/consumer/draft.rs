//! Working out a change of a group before it is written.

use std::ops::Deref;

use super::group::ConsumerGroup;
use super::records::ConsumerRecord;

/// A group with changes that are not written yet. [`Draft::put`] applies a record, so that what follows sees it;
/// when the draft ends, all are taken back, and [`Draft::finish`] hands them out. Costs what changes, not what the
/// group holds.
pub(in crate::coordinator) struct Draft<'a> {
    group: &'a mut ConsumerGroup,
    records: Vec<ConsumerRecord>,
    /// What takes back each of `records`.
    undo: Vec<ConsumerRecord>,
}

impl<'a> Draft<'a> {
    pub(in crate::coordinator) fn of(group: &'a mut ConsumerGroup) -> Self {
        Self { group, records: Vec::new(), undo: Vec::new() }
    }

    pub(super) fn put(&mut self, record: ConsumerRecord) {
        let undo = self.group.apply(record.clone());
        self.undo.push(undo);
        self.records.push(record);
    }

    /// Takes the changes back and hands out their records.
    pub(in crate::coordinator) fn finish(mut self) -> Vec<ConsumerRecord> {
        std::mem::take(&mut self.records)
    }
}

impl Deref for Draft<'_> {
    type Target = ConsumerGroup;

    fn deref(&self) -> &ConsumerGroup {
        self.group
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        for record in std::mem::take(&mut self.undo).into_iter().rev() {
            self.group.apply(record);
        }
    }
}
