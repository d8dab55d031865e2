//! DeleteRecords at the owner: the log start moves at once, and followers take it over with their next answers. Whoever
//! asked is told when all replicas that are alive have (Kafka's `DelayedDeleteRecords`): from then on none of them serves
//! what was deleted, whoever leads.
//!
//! What waits is looked at when a follower has said how far it is, when brokers or leaderships change, and when its
//! time is over. Its asker may give it up.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::Shard;
use super::mesh::ReplyTo;
use super::messages::Reply;
use super::parked::{Asker, Keep, Kept};
use super::placement::PartitionKey;
use crate::base::Offset;
use crate::base::clock::{self, Monotonic};
use crate::wire::ErrorCode;

/// Requests that wait on one shard at most, and the partitions that they name.
const WAITING_MAX: usize = 1024;
const PARTS_MAX: usize = 1 << 20;

pub(super) type Deletions = Keep<Deletion>;

/// Nothing waits yet.
pub(super) fn waiting(now: Monotonic) -> Deletions {
    Keep::new(now, WAITING_MAX, PARTS_MAX)
}

/// A request.
pub(super) struct Deletion {
    reply_to: ReplyTo,
    /// In the order of the request, what is told of each partition.
    answers: Vec<Option<Result<Offset, ErrorCode>>>,
    /// Of the others: their places, and the offset below which all is to go.
    open: HashMap<PartitionKey, Vec<(usize, Offset)>, ahash::RandomState>,
}

impl Kept for Deletion {
    type Key = PartitionKey;

    fn reply_to(&self) -> &ReplyTo {
        &self.reply_to
    }

    fn keys(&self) -> Vec<PartitionKey> {
        self.open.keys().copied().collect()
    }

    fn parts(&self) -> usize {
        self.answers.len()
    }
}

impl Deletion {
    /// Takes how far all replicas of a partition are; whether nothing is to be waited for any more.
    fn note(&mut self, key: PartitionKey, low_watermark: Result<Offset, ErrorCode>) -> bool {
        if let Some(parts) = self.open.get_mut(&key) {
            parts.retain(|(place, below)| {
                let is_open = low_watermark.is_ok_and(|reached| reached < *below);
                if !is_open {
                    self.answers[*place] = Some(low_watermark);
                }
                is_open
            });
            if parts.is_empty() {
                self.open.remove(&key);
            }
        }
        self.open.is_empty()
    }
}

impl Shard {
    pub(super) fn delete_records(
        self: &Rc<Self>,
        reply_to: ReplyTo,
        targets: &[(PartitionKey, Offset)],
        timeout: Duration,
    ) {
        let mut deletion =
            Deletion { reply_to, answers: vec![None; targets.len()], open: HashMap::default() };
        for (place, &(key, offset)) in targets.iter().enumerate() {
            match self.begin_deletion(key, offset) {
                Ok(start) => {
                    let below = if offset.0 == -1 { start } else { offset };
                    deletion.open.entry(key).or_default().push((place, below));
                }
                Err(code) => deletion.answers[place] = Some(Err(code)),
            }
        }
        if self.look_at_deletion(&mut deletion) || timeout.is_zero() || self.is_stopping() {
            return self.answer_deletion(deletion);
        }
        self.mesh.park(&mut deletion.reply_to);
        let until = clock::monotonic().plus(timeout);
        let refused = self.deletions.borrow_mut().park(until, deletion).err();
        match refused {
            None => self.timers.consider(until),
            Some(refused) => {
                self.counters.deletions_refused.increment();
                self.answer_deletion(*refused);
            }
        }
    }

    /// Moves the start of a log; where it is then.
    fn begin_deletion(self: &Rc<Self>, key: PartitionKey, offset: Offset) -> Result<Offset, ErrorCode> {
        let replica = self.replica(key).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let start = replica.with(|partition| partition.delete_records(offset))??;
        self.look_for_jobs(&replica);
        Ok(start)
    }

    /// How far all replicas of a partition are that are alive.
    fn low_watermark(&self, key: PartitionKey) -> Result<Offset, ErrorCode> {
        let replica = self.replica(key).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        replica.with(|partition| partition.low_watermark())?
    }

    /// Whether nothing is to be waited for any more.
    fn look_at_deletion(&self, deletion: &mut Deletion) -> bool {
        for key in deletion.keys() {
            deletion.note(key, self.low_watermark(key));
        }
        deletion.open.is_empty()
    }

    /// Something may have become of these partitions' followers, or of the partitions. Costs nothing while nobody waits.
    pub(super) fn wake_deletions_of(&self, keys: impl IntoIterator<Item = PartitionKey>) {
        if self.deletions.borrow().purgatory.is_empty() {
            return;
        }
        let mut completed = Vec::new();
        for key in keys.into_iter().filter(|key| self.deletions.borrow().purgatory.is_watched(key)) {
            let low_watermark = self.low_watermark(key);
            let mut deletions = self.deletions.borrow_mut();
            deletions.purgatory.check(&key, |_, deletion| deletion.note(key, low_watermark), &mut completed);
        }
        self.complete_deletions(completed);
    }

    /// The same of all.
    pub(super) fn wake_all_deletions(&self) {
        let mut completed = Vec::new();
        let look = |deletion: &mut Deletion| self.look_at_deletion(deletion);
        self.deletions.borrow_mut().purgatory.check_all(look, &mut completed);
        self.complete_deletions(completed);
    }

    /// Answers those whose time is over.
    pub(super) fn expire_deletions(&self, now: Monotonic) {
        let mut expired = Vec::new();
        self.deletions.borrow_mut().purgatory.advance(now, &mut expired);
        self.complete_deletions(expired);
    }

    /// Answers all: the broker stops.
    pub(super) fn release_deletions(&self) {
        let mut all = Vec::new();
        self.deletions.borrow_mut().purgatory.check_all(|_| true, &mut all);
        self.complete_deletions(all);
    }

    /// Nobody waits for the answer any more; whether one is kept for this asker.
    pub(super) fn hurry_deletion(&self, asker: Asker) -> bool {
        let taken = self.deletions.borrow_mut().take(asker);
        taken.map(|deletion| self.answer_deletion(deletion)).is_some()
    }

    fn complete_deletions(&self, completed: Vec<Deletion>) {
        for deletion in completed {
            self.deletions.borrow_mut().forget(&deletion);
            self.answer_deletion(deletion);
        }
    }

    fn answer_deletion(&self, deletion: Deletion) {
        let Deletion { reply_to, answers, .. } = deletion;
        let answers = answers.into_iter().map(|answer| answer.unwrap_or(Err(ErrorCode::RequestTimedOut)));
        self.mesh.push_reply(reply_to, Reply::DeleteRecords(answers.collect()));
    }
}
