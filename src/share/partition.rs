//! The state of one partition for one group (Kafka's `SharePartition`): a window of offsets, each available, with a
//! member, or done with.
//!
//! Below `start` all is done with; from `end` on nothing was delivered yet. In between every offset has a state. What a
//! member has it has until its lock ends. An acknowledgement moves records only when it is written: until then they
//! are on their way, and nobody else gets them.

use std::sync::Arc;

use super::persisted::{DeliveryState, Persisted, StateBatch};
use super::runs::Runs;
use crate::base::Offset;
use crate::base::clock::Monotonic;
use crate::wire::ErrorCode;

/// Ranges of different states that one share partition may be cut into; an acknowledgement that cuts it further is
/// refused. As many batches have to fit into one record of `__share_group_state`.
pub const RANGES_MAX: usize = 32_768;

/// One share session of the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionNumber(pub u64);

/// Who has a record: a member, by the session it got it in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    pub member: Arc<str>,
    pub session: SessionNumber,
}

/// A change on its way to `__share_group_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangeId(u64);

/// What is to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    pub id: ChangeId,
    /// Ascending.
    pub batches: Vec<StateBatch>,
    pub start: Offset,
    pub delivery_complete: i32,
}

/// The group's limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// A record that was delivered so often is not delivered again (`group.share.delivery.count.limit`).
    pub delivery_count_max: u16,
    /// Beyond so many records that are not done with no new ones are delivered
    /// (`group.share.partition.max.record.locks`).
    pub in_flight_max: i64,
}

impl Limits {
    /// Up to so many deliveries all records of a batch may have failed because of one of them
    /// (`SharePartition.throttleRecordsDelivery`): from here on fewer are delivered at once.
    fn suspicious_count(self) -> u16 {
        self.delivery_count_max.div_ceil(2).max(2)
    }

    /// How many records of a batch with `batch_records` are delivered at once, when the first of them has been delivered
    /// `delivery_count` times: half as many with each time, at the last time one alone, so that a record that nobody can
    /// process takes no other with it. `None`: all.
    fn at_once(self, delivery_count: u16, batch_records: i64) -> Option<i64> {
        if self.is_last(delivery_count) {
            return Some(1);
        }
        let halvings = delivery_count.checked_sub(self.suspicious_count())? + 1;
        Some((batch_records.checked_shr(halvings.into()).unwrap_or(0)).max(1))
    }

    /// Whether the next delivery is the last one. With a limit of 2 it would be every second.
    fn is_last(self, delivery_count: u16) -> bool {
        self.delivery_count_max > 2 && delivery_count + 1 == self.delivery_count_max
    }
}

/// What a fetch wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    pub records_max: i64,
    /// Not one more than that; else the batch in which they end is delivered whole.
    pub exact: bool,
    /// The client wants to be told of about so many records at once.
    pub batch_size: i64,
}

/// The offsets of a batch of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub first: Offset,
    pub last: Offset,
    /// Of an aborted transaction: nobody is to get it.
    pub is_aborted: bool,
}

/// Records that a member has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acquired {
    pub first: Offset,
    pub last: Offset,
    pub delivery_count: u16,
}

/// What a member did with a record (`AcknowledgeType`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AcknowledgeKind {
    /// There is no record at the offset.
    Gap,
    Accept,
    Release,
    Reject,
    /// It needs more time.
    Renew,
}

impl AcknowledgeKind {
    pub fn from_wire(id: i8) -> Option<Self> {
        match id {
            0 => Some(AcknowledgeKind::Gap),
            1 => Some(AcknowledgeKind::Accept),
            2 => Some(AcknowledgeKind::Release),
            3 => Some(AcknowledgeKind::Reject),
            4 => Some(AcknowledgeKind::Renew),
            _ => None,
        }
    }
}

/// What a member says of `first..=last`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcknowledgeBatch {
    pub first: Offset,
    pub last: Offset,
    /// One for all, or one for each offset.
    pub kinds: Vec<AcknowledgeKind>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Lock {
    holder: Holder,
    until: Monotonic,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// Nobody has it.
    Rest(DeliveryState),
    Acquired(Lock),
    /// A member is done with it, and that is being written.
    Changing {
        change: ChangeId,
        to: DeliveryState,
        lock: Lock,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Slot {
    state: State,
    delivery_count: u16,
}

impl Slot {
    fn rest(state: DeliveryState, delivery_count: u16) -> Self {
        Self { state: State::Rest(state), delivery_count }
    }

    fn is_available(&self) -> bool {
        self.state == State::Rest(DeliveryState::Available)
    }

    fn is_done(&self) -> bool {
        matches!(self.state, State::Rest(state) if state.is_final())
    }

    /// What becomes of it when it is given back.
    fn given_back(&self, limits: Limits) -> DeliveryState {
        match self.delivery_count >= limits.delivery_count_max {
            true => DeliveryState::Archived,
            false => DeliveryState::Available,
        }
    }
}

/// One kind for a range of offsets.
struct Segment {
    first: Offset,
    last: Offset,
    kind: AcknowledgeKind,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharePartition {
    start: Offset,
    end: Offset,
    slots: Runs<Slot>,
    next_change: u64,
}

impl SharePartition {
    /// The share partition as it was kept. `start` is where a group begins that has no position.
    pub fn load(kept: &Persisted, start: Offset) -> Self {
        let start = if kept.start.0 < 0 { start } else { kept.start };
        let mut partition = Self { start, end: start, slots: Runs::default(), next_change: 0 };
        for batch in kept.batches.iter().filter(|batch| batch.last >= start && batch.first <= batch.last) {
            let first = batch.first.max(start);
            partition.look_at(batch.last);
            partition.slots.set(first, batch.last, Slot::rest(batch.state, batch.delivery_count));
        }
        partition.advance();
        partition
    }

    pub fn start(&self) -> Offset {
        self.start
    }

    /// From here on nothing was delivered.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Records that are not done with.
    pub fn in_flight(&self) -> i64 {
        self.slots.iter().filter(|(.., slot)| !slot.is_done()).map(|(first, last, _)| len(first, last)).sum()
    }

    /// Records from the start on that are done with, or will be when what is under way is written.
    fn delivery_complete(&self) -> i32 {
        let is_done = |slot: &Slot| match &slot.state {
            State::Rest(state) | State::Changing { to: state, .. } => state.is_final(),
            State::Acquired(_) => false,
        };
        let done = self.slots.iter().filter(|(.., slot)| is_done(slot));
        i32::try_from(done.map(|(first, last, _)| len(first, last)).sum::<i64>()).unwrap_or(i32::MAX)
    }

    /// From where the log is to be read for the next fetch; `None`: all there is is with members or done with, and
    /// too much of it is with members to deliver more.
    pub fn fetch_from(&self, limits: Limits) -> Option<Offset> {
        let available = self.slots.iter().find(|(.., slot)| slot.is_available()).map(|(first, ..)| first);
        available.or_else(|| (self.in_flight() < limits.in_flight_max).then_some(self.end))
    }

    /// Gives a member records of `spans`, which the log was found to have from `from` on, ascending.
    pub fn acquire(
        &mut self,
        holder: &Holder,
        until: Monotonic,
        from: Offset,
        spans: &[Span],
        wanted: Wanted,
        limits: Limits,
    ) -> Vec<Acquired> {
        let mut acquired = Vec::new();
        let mut left = wanted.records_max;
        let mut in_flight = self.in_flight();
        let mut next = from;
        for span in spans {
            if left <= 0 {
                break;
            }
            // What lies before it is not there: compacted, or never was.
            self.archive(next, Offset(span.first.0 - 1));
            next = span.last.plus(1);
            if span.is_aborted {
                self.look_at(span.last);
                self.archive(span.first, span.last);
                continue;
            }
            let lock = Lock { holder: holder.clone(), until };
            let mut take = Take {
                lock: &lock,
                left,
                wanted,
                limits,
                batch_records: len(span.first, span.last),
                at_once: None,
                acquired: &mut acquired,
            };
            let first_new = self.end.max(span.first);
            self.take(span.first, span.last.min(Offset(first_new.0 - 1)), &mut take);
            if first_new <= span.last && take.left > 0 && take.at_once.is_none() {
                if in_flight >= limits.in_flight_max {
                    break;
                }
                let last = match wanted.exact {
                    true => span.last.min(first_new.plus(take.left - 1)),
                    false => span.last,
                };
                self.look_at(last);
                in_flight += len(first_new, last);
                self.take(first_new, last, &mut take);
            }
            left = if take.at_once.is_some() { 0 } else { take.left };
        }
        self.advance();
        acquired
    }

    /// Acquires what is available of a range, all of it unless the number of records is exact.
    fn take(&mut self, first: Offset, last: Offset, take: &mut Take<'_>) {
        let available: Vec<(Offset, Offset, u16)> = self
            .slots
            .within(first.max(self.start), last)
            .filter(|(.., slot)| slot.is_available())
            .map(|(first, last, slot)| (first, last, slot.delivery_count))
            .collect();
        for (first, last, delivery_count) in available {
            if (take.wanted.exact && take.left <= 0) || take.at_once == Some(0) {
                return;
            }
            // The limit may have been lowered.
            if delivery_count >= take.limits.delivery_count_max {
                self.slots.set(first, last, Slot::rest(DeliveryState::Archived, delivery_count));
                continue;
            }
            let at_once = take.limits.at_once(delivery_count, take.batch_records);
            if at_once.is_some() && take.at_once.is_none() && !take.acquired.is_empty()
                || take.limits.is_last(delivery_count) && !take.acquired.is_empty()
            {
                // They come by themselves, with the next fetch.
                (take.left, take.at_once) = (0, Some(0));
                return;
            }
            take.at_once = take.at_once.or(at_once);
            let mut last = match take.wanted.exact {
                true => last.min(first.plus(take.left - 1)),
                false => last,
            };
            if let Some(at_once) = &mut take.at_once {
                last = last.min(first.plus(*at_once - 1));
                *at_once -= len(first, last);
            }
            let delivery_count = delivery_count + 1;
            self.slots.set(first, last, Slot { state: State::Acquired(take.lock.clone()), delivery_count });
            take.left -= len(first, last);
            match take.acquired.last_mut() {
                Some(before)
                    if before.last.plus(1) == first
                        && before.delivery_count == delivery_count
                        && len(before.first, before.last) < take.wanted.batch_size =>
                {
                    before.last = last;
                }
                _ => take.acquired.push(Acquired { first, last, delivery_count }),
            }
        }
    }

    /// Nobody gets what is available of a range, or was never delivered.
    fn archive(&mut self, first: Offset, last: Offset) {
        let first = first.max(self.start);
        if last < first {
            return;
        }
        self.look_at(last);
        let available: Vec<(Offset, Offset, u16)> = self
            .slots
            .within(first, last)
            .filter(|(.., slot)| slot.is_available())
            .map(|(first, last, slot)| (first, last, slot.delivery_count))
            .collect();
        for (first, last, delivery_count) in available {
            self.slots.set(first, last, Slot::rest(DeliveryState::Archived, delivery_count));
        }
    }

    /// Makes the window reach to `last`.
    fn look_at(&mut self, last: Offset) {
        if last >= self.end {
            self.slots.set(self.end, last, Slot::rest(DeliveryState::Available, 0));
            self.end = last.plus(1);
        }
    }

    /// What a member says of its records; all of it or nothing. `renewed_until` is `None` where the group does not
    /// renew locks. What it leads to is to be written; `None`: nothing.
    ///
    /// # Errors
    /// INVALID_RECORD_STATE: the member does not have one of them. INVALID_REQUEST: they were never delivered, or
    /// [`RANGES_MAX`].
    pub fn acknowledge(
        &mut self,
        member: &str,
        batches: &[AcknowledgeBatch],
        renewed_until: Option<Monotonic>,
        limits: Limits,
    ) -> Result<Option<Change>, ErrorCode> {
        let segments = self.segments(batches)?;
        if self.slots.len() + segments.len() > RANGES_MAX {
            return Err(ErrorCode::InvalidRequest);
        }
        for segment in &segments {
            if segment.last >= self.end || (segment.kind == AcknowledgeKind::Renew && renewed_until.is_none())
            {
                return Err(ErrorCode::InvalidRequest);
            }
            let mut slots = self.slots.within(segment.first, segment.last);
            let has_all = slots.all(
                |(.., slot)| matches!(&slot.state, State::Acquired(lock) if &*lock.holder.member == member),
            );
            if !has_all {
                return Err(ErrorCode::InvalidRecordState);
            }
        }
        let id = self.next_id();
        let mut written = Vec::new();
        for segment in segments {
            let slots: Vec<(Offset, Offset, Slot)> = self
                .slots
                .within(segment.first, segment.last)
                .map(|(first, last, slot)| (first, last, slot.clone()))
                .collect();
            for (first, last, slot) in slots {
                let State::Acquired(mut lock) = slot.state.clone() else { continue };
                let to = match segment.kind {
                    AcknowledgeKind::Renew => {
                        lock.until = renewed_until.unwrap_or(lock.until);
                        self.slots.set(first, last, Slot { state: State::Acquired(lock), ..slot });
                        continue;
                    }
                    AcknowledgeKind::Accept => DeliveryState::Acknowledged,
                    AcknowledgeKind::Gap | AcknowledgeKind::Reject => DeliveryState::Archived,
                    AcknowledgeKind::Release => slot.given_back(limits),
                };
                push(&mut written, first, last, to, slot.delivery_count);
                self.slots.set(first, last, Slot { state: State::Changing { change: id, to, lock }, ..slot });
            }
        }
        Ok(self.change(id, written))
    }

    /// What the batches say in ascending order, without what is done with for good.
    fn segments(&self, batches: &[AcknowledgeBatch]) -> Result<Vec<Segment>, ErrorCode> {
        let mut segments: Vec<Segment> = Vec::new();
        for batch in batches {
            let count = batch.kinds.len() as i64;
            let is_right = batch.first.0 >= 0
                && batch.first <= batch.last
                && (count == 1 || batch.last.0.checked_sub(batch.first.0) == Some(count - 1));
            if !is_right {
                return Err(ErrorCode::InvalidRequest);
            }
            if count == 1 {
                segments.push(Segment { first: batch.first, last: batch.last, kind: batch.kinds[0] });
                continue;
            }
            for (at, kind) in batch.kinds.iter().enumerate() {
                let offset = batch.first.plus(at as i64);
                match segments.last_mut().filter(|_| at > 0) {
                    Some(before) if before.kind == *kind => before.last = offset,
                    _ => segments.push(Segment { first: offset, last: offset, kind: *kind }),
                }
            }
        }
        segments.sort_by_key(|segment| segment.first);
        if segments.windows(2).any(|pair| pair[1].first <= pair[0].last) {
            // The second finds that the first has it already.
            return Err(ErrorCode::InvalidRecordState);
        }
        segments.retain_mut(|segment| {
            segment.first = segment.first.max(self.start);
            segment.first <= segment.last
        });
        Ok(segments)
    }

    /// A change was written, or could not be: then its member has the records as before. Whether there may be
    /// something to fetch now that was not before.
    pub fn written(&mut self, id: ChangeId, is_written: bool) -> bool {
        let of_change = |slot: &Slot| matches!(&slot.state, State::Changing { change, .. } if *change == id);
        let slots: Vec<(Offset, Offset, Slot)> = self
            .slots
            .iter()
            .filter(|(.., slot)| of_change(slot))
            .map(|(first, last, slot)| (first, last, slot.clone()))
            .collect();
        for (first, last, slot) in slots {
            let State::Changing { to, lock, .. } = slot.state else { continue };
            let state = if is_written { State::Rest(to) } else { State::Acquired(lock) };
            self.slots.set(first, last, Slot { state, delivery_count: slot.delivery_count });
        }
        self.advance();
        is_written
    }

    /// Nobody has any of it, and nothing is being written.
    pub fn is_idle(&self) -> bool {
        self.slots.iter().all(|(.., slot)| matches!(slot.state, State::Rest(_)))
    }

    /// When the first lock ends.
    pub fn next_lock_end(&self) -> Option<Monotonic> {
        let locks = self.slots.iter().filter_map(|(.., slot)| match &slot.state {
            State::Acquired(lock) => Some(lock.until),
            _ => None,
        });
        locks.min()
    }

    /// Takes back what members have had for too long. It is free at once; that it is written does not matter to
    /// anyone who waits.
    pub fn expire(&mut self, now: Monotonic, limits: Limits) -> Option<Change> {
        self.take_back(|lock| lock.until <= now, limits)
    }

    /// The member's session is over: what it got in that session is free again.
    pub fn release(&mut self, holder: &Holder, limits: Limits) -> Option<Change> {
        self.take_back(|lock| lock.holder == *holder, limits)
    }

    fn take_back(&mut self, is_meant: impl Fn(&Lock) -> bool, limits: Limits) -> Option<Change> {
        let slots: Vec<(Offset, Offset, Slot)> = self
            .slots
            .iter()
            .filter(|(.., slot)| matches!(&slot.state, State::Acquired(lock) if is_meant(lock)))
            .map(|(first, last, slot)| (first, last, slot.clone()))
            .collect();
        let id = self.next_id();
        let mut written = Vec::new();
        for (first, last, slot) in slots {
            let to = slot.given_back(limits);
            push(&mut written, first, last, to, slot.delivery_count);
            self.slots.set(first, last, Slot::rest(to, slot.delivery_count));
        }
        self.advance();
        self.change(id, written)
    }

    /// The log begins at `log_start` now: what lies below is gone, whoever has it.
    pub fn log_start_moved(&mut self, log_start: Offset) {
        if log_start > self.start {
            self.slots.remove_below(log_start);
            self.start = log_start;
            self.end = self.end.max(log_start);
            self.advance();
        }
    }

    fn next_id(&mut self) -> ChangeId {
        self.next_change += 1;
        ChangeId(self.next_change)
    }

    fn change(&self, id: ChangeId, batches: Vec<StateBatch>) -> Option<Change> {
        let delivery_complete = self.delivery_complete();
        (!batches.is_empty()).then_some(Change { id, batches, start: self.start, delivery_complete })
    }

    /// What is done with at the front is done with for good.
    fn advance(&mut self) {
        let undone = self.slots.iter().find(|(.., slot)| !slot.is_done()).map(|(first, ..)| first);
        let start = undone.unwrap_or(self.end);
        if start > self.start {
            self.slots.remove_below(start);
            self.start = start;
        }
    }
}

/// An acquisition under way.
struct Take<'a> {
    lock: &'a Lock,
    /// Records that are still wanted.
    left: i64,
    wanted: Wanted,
    limits: Limits,
    /// Of the whole batch.
    batch_records: i64,
    /// How many more are delivered at once, where one of them has failed often.
    at_once: Option<i64>,
    acquired: &'a mut Vec<Acquired>,
}

fn len(first: Offset, last: Offset) -> i64 {
    last.0 - first.0 + 1
}

fn push(
    batches: &mut Vec<StateBatch>,
    first: Offset,
    last: Offset,
    state: DeliveryState,
    delivery_count: u16,
) {
    match batches.last_mut() {
        Some(before)
            if before.last.plus(1) == first
                && before.state == state
                && before.delivery_count == delivery_count =>
        {
            before.last = last;
        }
        _ => batches.push(StateBatch { first, last, state, delivery_count }),
    }
}
