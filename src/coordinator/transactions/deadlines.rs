//! When transactional ids have to be looked at: in order, so that nobody goes through all of them. A sweep takes some
//! hundred that are due at a time.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use kafka_protocol::protocol::StrBytes;

use super::machine::{Coordinator, Place};
use super::requests::PENDING_MAX;
use super::state::Transaction;
use crate::base::PartitionIndex;
use crate::base::clock::{Monotonic, Now, Timestamp};

/// Ids that one turn of a sweep looks at.
const SWEPT_MAX: usize = 256;
/// Between two turns of a sweep.
const TURN_PAUSE: Duration = Duration::from_millis(10);

/// Why an id is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Its transaction times out.
    TimeOut,
    /// It was not used for `transactional.id.expiration.ms`.
    Expiry,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Due {
    at: Timestamp,
    id: StrBytes,
}

/// The deadlines of one partition's ids.
pub(super) struct Deadlines {
    expiration_ms: i64,
    timeouts: BTreeSet<Due>,
    expiries: BTreeSet<Due>,
}

impl Deadlines {
    pub(super) fn new(expiration_ms: i64) -> Self {
        Self { expiration_ms, timeouts: BTreeSet::new(), expiries: BTreeSet::new() }
    }

    /// An id has changed, come or gone.
    pub(super) fn change(
        &mut self,
        id: &StrBytes,
        before: Option<&Transaction>,
        after: Option<&Transaction>,
    ) {
        let before = before.and_then(|transaction| self.deadline(transaction));
        let after = after.and_then(|transaction| self.deadline(transaction));
        if before == after {
            return;
        }
        if let Some((kind, at)) = before {
            self.of(kind).remove(&Due { at, id: id.clone() });
        }
        if let Some((kind, at)) = after {
            self.of(kind).insert(Due { at, id: id.clone() });
        }
    }

    fn deadline(&self, transaction: &Transaction) -> Option<(Kind, Timestamp)> {
        let timeout = transaction.times_out_after().map(|at| (Kind::TimeOut, at));
        timeout.or_else(|| transaction.expires_at(self.expiration_ms).map(|at| (Kind::Expiry, at)))
    }

    fn of(&mut self, kind: Kind) -> &mut BTreeSet<Due> {
        match kind {
            Kind::TimeOut => &mut self.timeouts,
            Kind::Expiry => &mut self.expiries,
        }
    }

    /// Those that may be due at `now` and come behind `after`, in order.
    fn passed(&self, kind: Kind, after: Option<&Due>, now: Timestamp) -> impl Iterator<Item = &Due> {
        let due = match kind {
            Kind::TimeOut => &self.timeouts,
            Kind::Expiry => &self.expiries,
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        due.range::<Due, _>((from, Bound::Unbounded)).take_while(move |due| due.at <= now)
    }
}

/// A round through all ids that are due, in turns; then a pause.
#[derive(Clone)]
pub(super) struct Sweep {
    kind: Kind,
    interval: Duration,
    pub(super) next: Monotonic,
    /// Where the next turn goes on.
    after: Option<(PartitionIndex, Due)>,
}

impl Sweep {
    pub(super) fn new(kind: Kind, interval: Duration, now: Monotonic) -> Self {
        Self { kind, interval, next: now.plus(interval), after: None }
    }
}

impl Coordinator {
    /// One turn of a sweep: ids for which nothing is under way, and the sweep as it goes on.
    pub(super) fn sweep(&self, mut sweep: Sweep, now: Now) -> (Vec<Place>, Sweep) {
        let mut places = Vec::new();
        if self.pending() >= PENDING_MAX {
            sweep.next = now.monotonic.plus(TURN_PAUSE);
            return (places, sweep);
        }
        let after = sweep.after.take();
        let mut last = None;
        let mut looked_at = 0;
        let first = after.as_ref().map_or(PartitionIndex(0), |(partition, _)| *partition);
        for (index, partition) in self.partitions.range(first..).filter(|(_, it)| !it.is_loading) {
            let after = after.as_ref().filter(|(partition, _)| partition == index).map(|(_, due)| due);
            for due in partition.deadlines.passed(sweep.kind, after, now.wall) {
                if looked_at == SWEPT_MAX {
                    sweep.after = last;
                    sweep.next = now.monotonic.plus(TURN_PAUSE);
                    return (places, sweep);
                }
                looked_at += 1;
                last = Some((*index, due.clone()));
                if partition.entries.get(&due.id).is_some_and(|entry| entry.is_idle()) {
                    places.push(Place { partition: *index, epoch: partition.epoch, id: due.id.clone() });
                }
            }
        }
        sweep.next = now.monotonic.plus(sweep.interval);
        (places, sweep)
    }
}
