//! One partition of `__transaction_state`: its transactional ids, and what is under way for each.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::protocol::StrBytes;

use super::super::interface::ReplyToken;
use super::deadlines::Deadlines;
use super::records::Record;
use super::state::{State, Transaction};
use crate::base::TopicPartition;

/// What a transactional id takes beside its name, and a partition of a transaction beside its topic's, about.
const ENTRY_BYTES: usize = 512;
const PARTITION_BYTES: usize = 96;

pub(super) struct Partition {
    /// The leader epoch: markers carry it, so that those of an earlier coordinator are told apart.
    pub(super) epoch: i32,
    /// Its log is being read; requests are put off.
    pub(super) is_loading: bool,
    pub(super) entries: BTreeMap<StrBytes, Entry>,
    pub(super) deadlines: Deadlines,
    /// How many ids are in each state, by its number.
    counts: [u64; State::ALL.len()],
    bytes: usize,
    /// Records that were not understood while the log was read.
    pub(super) skipped: u64,
}

pub(super) struct Entry {
    /// As the last record has it; `None` before the first one is written.
    pub(super) current: Option<Transaction>,
    pub(super) step: Step,
    /// How often in a row what must not be given up has failed.
    pub(super) failures: u32,
    /// Its transaction timed out, and the producer id that this takes was asked for.
    pub(super) waits_for_id: bool,
    bytes: usize,
    /// What the record on its way holds beside it.
    pending_bytes: usize,
}

/// What is under way for a transactional id; at most one thing at a time.
pub(super) enum Step {
    Nothing,
    /// A record is being appended; `None` is a tombstone.
    Append {
        target: Option<Transaction>,
        then: Then,
    },
    /// These partitions have not told that they have their marker.
    Markers {
        missing: BTreeSet<TopicPartition>,
    },
    /// Every partition has its marker; the record that says so could not be appended.
    Completion,
    /// A partition obeys a later coordinator. The markers are left to that one: here the id is done with.
    Fenced,
}

/// What follows when a record was appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    Init {
        token: ReplyToken,
    },
    Add {
        token: ReplyToken,
    },
    End {
        token: ReplyToken,
    },
    /// A producer was fenced in the middle of its transaction, by its successor or by its time-out.
    Fence {
        token: Option<ReplyToken>,
    },
    Complete,
    Expire,
}

impl Entry {
    /// Nothing is under way for it, and nothing asked for.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.step, Step::Nothing) && !self.waits_for_id
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Partition {
    /// To be loaded.
    pub(super) fn new(epoch: i32, expiration_ms: i64) -> Self {
        Self {
            epoch,
            is_loading: true,
            entries: BTreeMap::new(),
            deadlines: Deadlines::new(expiration_ms),
            counts: [0; State::ALL.len()],
            bytes: 0,
            skipped: 0,
        }
    }

    /// What the ids, their transactions and the records on their way hold, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many ids are in `state`.
    pub(super) fn count(&self, state: State) -> u64 {
        self.counts[state.id() as usize]
    }

    /// The entry of `id`, made if need be.
    pub(super) fn entry(&mut self, id: &StrBytes) -> &mut Entry {
        if !self.entries.contains_key(id) {
            // A copy of its own: this one may keep a whole request.
            let key = StrBytes::from_string(id.to_string());
            let bytes = bytes_of_id(&key);
            self.bytes += bytes;
            let entry = Entry {
                current: None,
                step: Step::Nothing,
                failures: 0,
                waits_for_id: false,
                bytes,
                pending_bytes: 0,
            };
            self.entries.insert(key, entry);
        }
        self.entries.get_mut(id).expect("it was there or inserted above")
    }

    /// A record of `id` is on its way: what it will be is held beside what it is.
    pub(super) fn begin_append(&mut self, id: &StrBytes, target: Option<Transaction>, then: Then) {
        let bytes = target.as_ref().map_or(0, |target| bytes_of(id, target));
        let entry = self.entry(id);
        entry.pending_bytes = bytes;
        entry.step = Step::Append { target, then };
        self.bytes += bytes;
    }

    /// The record of `id` is written or failed; `None` if the id is gone.
    pub(super) fn end_append(&mut self, id: &StrBytes) -> Option<(Option<Transaction>, Then)> {
        let entry = self.entries.get_mut(id)?;
        let Step::Append { target, then } = std::mem::replace(&mut entry.step, Step::Nothing) else {
            unreachable!("a ticket belongs to the one append of its transactional id")
        };
        self.bytes -= std::mem::take(&mut entry.pending_bytes);
        Some((target, then))
    }

    pub(super) fn remove(&mut self, id: &StrBytes) {
        let Some(entry) = self.entries.remove(id) else { return };
        self.bytes -= entry.bytes + entry.pending_bytes;
        self.deadlines.change(id, entry.current.as_ref(), None);
        if let Some(before) = entry.current {
            self.counts[before.state.id() as usize] -= 1;
        }
    }

    /// Applies a record, loaded or just appended.
    pub(super) fn apply(&mut self, record: Record) {
        let Record { id, value } = record;
        let Some(value) = value else { return self.remove(&id) };
        self.entry(&id);
        let id = self.entries.get_key_value(&id).map_or(id, |(key, _)| key.clone());
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let bytes = bytes_of(&id, &value);
        self.bytes = self.bytes - entry.bytes + bytes;
        entry.bytes = bytes;
        self.deadlines.change(&id, entry.current.as_ref(), Some(&value));
        self.counts[value.state.id() as usize] += 1;
        if let Some(before) = entry.current.replace(value) {
            self.counts[before.state.id() as usize] -= 1;
        }
        entry.failures = 0;
    }
}

/// What a transactional id holds without a transaction, about.
pub(super) fn bytes_of_id(id: &StrBytes) -> usize {
    ENTRY_BYTES + id.len()
}

/// What a transactional id holds in this state, about.
pub(super) fn bytes_of(id: &StrBytes, transaction: &Transaction) -> usize {
    let partitions = transaction.partitions.iter().map(|it| PARTITION_BYTES + it.topic.len());
    bytes_of_id(id) + partitions.sum::<usize>()
}
