//! What the cleaner knows of the transactions whose batches it passes (Kafka's `CleanedTransactionMetadata`):
//! which batches belong to an aborted one, and which markers nothing is left for.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::base::ProducerId;
use crate::wire::record::{BatchHead, ControlType, Records};

use super::super::AbortedTransaction;

/// An aborted transaction that has begun and whose marker has not come yet.
struct Ongoing {
    transaction: AbortedTransaction,
    /// A batch of it was seen in this pass.
    seen: bool,
}

/// What becomes of a batch as far as transactions say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// Not decided by a transaction.
    Stays,
    /// Data of an aborted transaction, or a marker of which no data is left.
    Obsolete,
}

/// Goes with one pass over the log, in the order of offsets.
#[derive(Default)]
pub(super) struct Transactions {
    /// Not begun yet, by their first offsets.
    coming: VecDeque<AbortedTransaction>,
    aborted: HashMap<ProducerId, Ongoing>,
    /// Producers of which a batch was seen and no marker since.
    committed: HashSet<ProducerId>,
    /// Aborted transactions whose marker stays because batches of it were passed: rows of the new index.
    kept: Vec<AbortedTransaction>,
}

impl Transactions {
    /// `aborted` are the transactions of the range, in any order.
    pub fn new(mut aborted: Vec<AbortedTransaction>) -> Self {
        aborted.sort_by_key(|transaction| transaction.first);
        Self { coming: aborted.into(), ..Self::default() }
    }

    /// Passes a batch; `body` is looked at only if it is a control batch.
    pub fn pass(&mut self, head: &BatchHead, body: &[u8]) -> Fate {
        while let Some(next) = self.coming.front().copied()
            && next.first <= head.last_offset()
        {
            self.coming.pop_front();
            self.aborted.entry(next.producer).or_insert(Ongoing { transaction: next, seen: false });
        }
        if head.attributes().is_control() { self.pass_control(head, body) } else { self.pass_data(head) }
    }

    /// The rows for the transaction index of the segment whose batches were passed since the last call.
    pub fn take_kept(&mut self) -> Vec<AbortedTransaction> {
        std::mem::take(&mut self.kept)
    }

    fn pass_data(&mut self, head: &BatchHead) -> Fate {
        if !head.attributes().is_transactional() {
            return Fate::Stays;
        }
        match self.aborted.get_mut(&head.producer_id()) {
            Some(ongoing) => {
                ongoing.seen = true;
                Fate::Obsolete
            }
            None => {
                self.committed.insert(head.producer_id());
                Fate::Stays
            }
        }
    }

    fn pass_control(&mut self, head: &BatchHead, body: &[u8]) -> Fate {
        // An empty one was cleaned before.
        if head.count() == 0 {
            return Fate::Obsolete;
        }
        let record = Records::new(head, body).next().and_then(Result::ok);
        match record.and_then(|record| record.key).and_then(ControlType::from_key) {
            Some(ControlType::Abort) => match self.aborted.remove(&head.producer_id()) {
                Some(Ongoing { transaction, seen: true }) => {
                    self.kept.push(transaction);
                    Fate::Stays
                }
                _ => Fate::Obsolete,
            },
            Some(ControlType::Commit) if self.committed.remove(&head.producer_id()) => Fate::Stays,
            Some(ControlType::Commit) => Fate::Obsolete,
            _ => Fate::Stays,
        }
    }
}
