//! Random sequences of events against a model that has a value for each offset, and against what was written: a
//! record is with one member at a time, what was accepted is never delivered again, and the state after a reload is
//! the one that was kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::base::clock::Monotonic;
use crate::base::random::Random;
use crate::base::{LeaderEpoch, Offset};

const MEMBERS: [&str; 3] = ["a", "b", "c"];
const LOCK: Duration = Duration::from_secs(30);

/// One record as the model has it.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Model {
    Free(u16),
    /// The member, the delivery, when the lock ends.
    With(usize, u16, Monotonic),
    /// With a member still, in the model's eyes: what it is to become is being written.
    Changing(usize, u16, Monotonic, DeliveryState),
    Done,
}

struct World {
    partition: SharePartition,
    model: BTreeMap<i64, Model>,
    /// What `__share_group_state` has.
    kept: Persisted,
    pending: Vec<(Change, Vec<i64>)>,
    log_end: i64,
    now: Monotonic,
    limits: Limits,
    random: Random,
}

impl World {
    fn new(seed: u64) -> Self {
        let kept = Persisted {
            state_epoch: 1,
            leader_epoch: LeaderEpoch(0),
            start: Offset(-1),
            delivery_complete: -1,
            batches: Vec::new(),
        };
        Self {
            partition: SharePartition::load(&kept, Offset(0)),
            model: BTreeMap::new(),
            kept,
            pending: Vec::new(),
            log_end: 0,
            now: Monotonic::ZERO,
            limits: Limits { delivery_count_max: 3, in_flight_max: 20 },
            random: Random::seeded(seed),
        }
    }

    fn holder(&self, member: usize) -> Holder {
        Holder { member: Arc::from(MEMBERS[member]), session: SessionNumber(member as u64) }
    }

    fn of(&self, offset: i64) -> Model {
        match self.model.get(&offset) {
            Some(model) => *model,
            None if offset < self.partition.start().0 => Model::Done,
            None => Model::Free(0),
        }
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0 | 1 => self.log_end += self.random.below(6) as i64,
            2..=4 => self.fetch(),
            5 | 6 => self.acknowledge(),
            7 => self.finish_write(),
            8 => self.pass_time(),
            _ => match self.random.below(4) {
                0 => self.release(),
                1 => self.reload(),
                _ => self.fetch(),
            },
        }
        self.check();
    }

    fn fetch(&mut self) {
        let Some(from) = self.partition.fetch_from(self.limits) else { return };
        let member = self.random.below(3) as usize;
        let mut spans = Vec::new();
        let mut first = from.0;
        while first < self.log_end && spans.len() < 3 {
            let last = (first + self.random.below(5) as i64).min(self.log_end - 1);
            spans.push(Span { first: Offset(first), last: Offset(last), is_aborted: false });
            first = last + 1;
        }
        let exact = self.random.below(2) == 0;
        let wanted = Wanted { records_max: 1 + self.random.below(8) as i64, exact, batch_size: 4 };
        let until = self.now.plus(LOCK);
        let holder = self.holder(member);
        let acquired = self.partition.acquire(&holder, until, from, &spans, wanted, self.limits);
        let mut count = 0;
        for Acquired { first, last, delivery_count } in acquired {
            for offset in first.0..=last.0 {
                let before = self.of(offset);
                assert_eq!(before, Model::Free(delivery_count - 1), "offset {offset} was not free");
                self.model.insert(offset, Model::With(member, delivery_count, until));
                count += 1;
            }
        }
        assert!(!exact || count <= wanted.records_max, "{count} of {}", wanted.records_max);
    }

    fn acknowledge(&mut self) {
        let member = self.random.below(3) as usize;
        let end = self.partition.end().0;
        if end == 0 {
            return;
        }
        let first = self.random.below(end as u64) as i64;
        let last = (first + self.random.below(4) as i64).min(end - 1);
        let all = [AcknowledgeKind::Gap, AcknowledgeKind::Accept, AcknowledgeKind::Release];
        let all = [all, [AcknowledgeKind::Reject, AcknowledgeKind::Renew, AcknowledgeKind::Accept]].concat();
        let kinds: Vec<_> = (first..=last).map(|_| all[self.random.below(6) as usize]).collect();
        let until = self.now.plus(LOCK);
        let batch = AcknowledgeBatch { first: Offset(first), last: Offset(last), kinds: kinds.clone() };
        let start = self.partition.start().0;
        let is_held = (first.max(start)..=last)
            .all(|offset| matches!(self.of(offset), Model::With(holder, ..) if holder == member));
        let result = self.partition.acknowledge(MEMBERS[member], &[batch], Some(until), self.limits);
        assert_eq!(result.is_ok(), is_held, "{first} to {last} by {member}");
        let Ok(change) = result else { return };
        let mut offsets = Vec::new();
        for (offset, kind) in (first..=last).zip(kinds).filter(|(offset, _)| *offset >= start) {
            let Model::With(holder, count, lock) = self.of(offset) else { continue };
            let to = match kind {
                AcknowledgeKind::Renew => {
                    self.model.insert(offset, Model::With(holder, count, until));
                    continue;
                }
                AcknowledgeKind::Accept => DeliveryState::Acknowledged,
                AcknowledgeKind::Release => self.given_back(count),
                _ => DeliveryState::Archived,
            };
            self.model.insert(offset, Model::Changing(holder, count, lock, to));
            offsets.push(offset);
        }
        assert_eq!(change.is_some(), !offsets.is_empty());
        self.pending.extend(change.map(|change| (change, offsets)));
    }

    fn given_back(&self, count: u16) -> DeliveryState {
        match count >= self.limits.delivery_count_max {
            true => DeliveryState::Archived,
            false => DeliveryState::Available,
        }
    }

    fn finish_write(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let (change, offsets) = self.pending.remove(0);
        let is_written = self.random.below(4) > 0;
        if is_written {
            self.keep(&change);
        }
        self.partition.written(change.id, is_written);
        for offset in offsets {
            let Model::Changing(member, count, lock, to) = self.of(offset) else {
                panic!("offset {offset} was not being changed")
            };
            let after = match (is_written, to) {
                (false, _) => Model::With(member, count, lock),
                (true, DeliveryState::Available) => Model::Free(count),
                (true, _) => Model::Done,
            };
            self.model.insert(offset, after);
        }
    }

    /// As the share coordinator does.
    fn keep(&mut self, change: &Change) {
        let mut states = Runs::default();
        for batch in self.kept.batches.iter().chain(&change.batches) {
            states.set(batch.first, batch.last, (batch.state, batch.delivery_count));
        }
        self.kept.start = self.kept.start.max(change.start);
        states.remove_below(self.kept.start);
        let batches = states.iter().map(|(first, last, (state, delivery_count))| StateBatch {
            first,
            last,
            state: *state,
            delivery_count: *delivery_count,
        });
        self.kept.batches = batches.collect();
    }

    fn pass_time(&mut self) {
        self.now = self.now.plus(Duration::from_secs(self.random.below(40)));
        let expired = self.partition.expire(self.now, self.limits);
        let now = self.now;
        self.take_back(expired, |_, lock| lock <= now);
    }

    fn release(&mut self) {
        let member = self.random.below(3) as usize;
        let holder = self.holder(member);
        let released = self.partition.release(&holder, self.limits);
        self.take_back(released, |of, _| of == member);
    }

    fn take_back(&mut self, change: Option<Change>, is_meant: impl Fn(usize, Monotonic) -> bool) {
        let mut count = 0;
        for offset in self.model.keys().copied().collect::<Vec<_>>() {
            let Model::With(member, deliveries, lock) = self.of(offset) else { continue };
            if is_meant(member, lock) {
                let after = match self.given_back(deliveries) {
                    DeliveryState::Available => Model::Free(deliveries),
                    _ => Model::Done,
                };
                self.model.insert(offset, after);
                count += 1;
            }
        }
        let told: i64 = change
            .iter()
            .flat_map(|change| &change.batches)
            .map(|batch| batch.last.0 - batch.first.0 + 1)
            .sum();
        assert_eq!(told, count);
        if let Some(change) = change {
            self.keep(&change);
        }
    }

    /// The broker dies; what was not written is not known.
    fn reload(&mut self) {
        self.pending.clear();
        self.partition = SharePartition::load(&self.kept, Offset(0));
        self.model.clear();
        let batches = self.kept.batches.clone();
        for batch in batches {
            for offset in batch.first.0..=batch.last.0 {
                let model = match batch.state {
                    DeliveryState::Available => Model::Free(batch.delivery_count),
                    _ => Model::Done,
                };
                self.model.insert(offset, model);
            }
        }
    }

    fn check(&self) {
        let start = self.partition.start().0;
        let undone = |offset: i64| self.of(offset) != Model::Done;
        assert!((0..start).all(|offset| !undone(offset)), "something below the start is not done with");
        let window = start..self.partition.end().0;
        assert_eq!(
            self.partition.in_flight(),
            window.clone().filter(|offset| undone(*offset)).count() as i64
        );
        assert!(window.is_empty() || undone(start), "the window begins with what is done with");
        let next_lock = self.model.values().filter_map(|model| match model {
            Model::With(_, _, lock) => Some(*lock),
            _ => None,
        });
        assert_eq!(self.partition.next_lock_end(), next_lock.min());
    }
}

#[test]
fn the_state_is_that_of_a_model_with_a_value_for_each_record() {
    for seed in 0..300 {
        let mut world = World::new(seed);
        for step in 0..300 {
            let stepped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.step()));
            if let Err(panic) = stepped {
                eprintln!("seed {seed}, step {step}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// What was accepted stays accepted through every crash.
#[test]
fn nothing_that_was_accepted_is_delivered_again() {
    for seed in 1000..1100 {
        let mut world = World::new(seed);
        let mut accepted = std::collections::BTreeSet::new();
        for _ in 0..300 {
            let before: Vec<(Change, Vec<i64>)> = world.pending.clone();
            world.step();
            // Written: no longer pending, and the model has it as done.
            for (change, _) in before
                .iter()
                .filter(|(change, _)| !world.pending.iter().any(|(pending, _)| pending.id == change.id))
            {
                let batches =
                    change.batches.iter().filter(|batch| batch.state == DeliveryState::Acknowledged);
                for offset in batches.flat_map(|batch| batch.first.0..=batch.last.0) {
                    if world.of(offset) == Model::Done {
                        accepted.insert(offset);
                    }
                }
            }
            for offset in &accepted {
                assert_eq!(world.of(*offset), Model::Done, "seed {seed}: offset {offset} came back");
            }
        }
    }
}
