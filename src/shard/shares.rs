//! The share partitions of this shard's logs: loaded when somebody asks for them, woken by appends and by each other's
//! changes, written through the share coordinator on shard 0. What they decide is in [`crate::share`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Shard;
use super::messages::{ControlReply, ControlRequest, OffsetQuery, OffsetTarget, Reply, Request};
use super::parked::Asker;
use super::placement::PartitionKey;
use super::timers::Timer;
use crate::base::clock::{self, Monotonic, Timestamp};
use crate::base::{Budget, LeaderEpoch, Offset, ShardId};
use crate::config::{ShareGroupConfig, ShareReset};
use crate::coordinator::share_state::{self, StateWrite};
use crate::io::runtime::{Queue, spawn};
use crate::partition::Waterline;
use crate::share::{Change, Limits, SessionNumber, ShareKey, SharePartition};
use crate::timer::TimerKey;
use crate::wire::ErrorCode;

/// Share partitions that one shard has in memory; beyond that those that nobody uses make room, else the next one is
/// refused.
const SHARE_PARTITIONS_MAX: usize = 65_536;

/// Bytes of records that one shard reads for share fetches at the same time.
const READS_BYTES_MAX: usize = 64 << 20;

type Table<K, V> = RefCell<HashMap<K, V, ahash::RandomState>>;

pub(super) struct Shares {
    entries: Table<ShareKey, Rc<Entry>>,
    by_log: Table<PartitionKey, Vec<Rc<Entry>>>,
    /// Fetches that wait for records, by who asked.
    pub(super) waiting: Table<Asker, Rc<Waiter>>,
    pub(super) reads: Budget,
    /// Share sessions of this shard's connections.
    sessions: Cell<usize>,
    next_session: Cell<u64>,
}

/// One share partition.
pub(super) struct Entry {
    key: ShareKey,
    state: RefCell<State>,
    /// As the last request had it.
    config: Cell<ShareGroupConfig>,
    /// A fetch reads the log for it: others look elsewhere.
    pub(super) is_fetched: Cell<bool>,
    waiters: RefCell<Vec<Weak<Waiter>>>,
    lock_timer: Cell<Option<(Monotonic, TimerKey)>>,
}

enum State {
    Loading,
    Ready(Box<Loaded>),
    /// It could not be loaded, or was fenced: the next request loads it anew.
    Gone(ErrorCode),
}

pub(super) struct Loaded {
    pub(super) partition: SharePartition,
    state_epoch: i32,
    leader_epoch: LeaderEpoch,
}

/// Who waits, for a share partition to be loaded or for records.
#[derive(Default)]
pub(super) struct Waiter {
    is_woken: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Waiter {
    pub(super) fn wake(&self) {
        self.is_woken.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_woken.get() {
            return Poll::Ready(());
        }
        *self.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Shares {
    pub(super) fn new() -> Self {
        Self {
            entries: RefCell::default(),
            by_log: RefCell::default(),
            waiting: RefCell::default(),
            reads: Budget::new(READS_BYTES_MAX),
            sessions: Cell::new(0),
            next_session: Cell::new(0),
        }
    }

    /// How many share partitions are in memory.
    pub(super) fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    pub(super) fn get(&self, key: &ShareKey) -> Option<Rc<Entry>> {
        self.entries.borrow().get(key).cloned()
    }

    fn of_log(&self, key: PartitionKey) -> Vec<Rc<Entry>> {
        let by_log = self.by_log.borrow();
        by_log.get(&key).cloned().unwrap_or_default()
    }

    fn insert(&self, entry: &Rc<Entry>) {
        self.entries.borrow_mut().insert(entry.key.clone(), entry.clone());
        self.by_log.borrow_mut().entry(entry.log()).or_default().push(entry.clone());
    }

    /// Whoever holds the entry finds that it is gone; the next request loads it anew.
    fn remove(&self, entry: &Rc<Entry>, why: ErrorCode) {
        *entry.state.borrow_mut() = State::Gone(why);
        let mut entries = self.entries.borrow_mut();
        if entries.get(&entry.key).is_some_and(|known| Rc::ptr_eq(known, entry)) {
            entries.remove(&entry.key);
        }
        drop(entries);
        let mut by_log = self.by_log.borrow_mut();
        if let Some(of_log) = by_log.get_mut(&entry.log()) {
            of_log.retain(|known| !Rc::ptr_eq(known, entry));
            if of_log.is_empty() {
                by_log.remove(&entry.log());
            }
        }
        drop(by_log);
        entry.wake();
    }

    /// Forgets those that nobody uses. What they know is kept, but for what came back from members in the last moment.
    fn forget_idle(&self) {
        let idle: Vec<Rc<Entry>> =
            self.entries.borrow().values().filter(|entry| entry.is_idle()).cloned().collect();
        for entry in idle {
            self.remove(&entry, ErrorCode::CoordinatorNotAvailable);
        }
    }
}

impl Entry {
    fn log(&self) -> PartitionKey {
        PartitionKey { topic: self.key.topic, partition: self.key.partition }
    }

    /// Runs `act` on the share partition if it is there, else says why not.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Loaded) -> R) -> Result<R, ErrorCode> {
        match &mut *self.state.borrow_mut() {
            State::Ready(loaded) => Ok(act(loaded)),
            State::Loading => Err(ErrorCode::CoordinatorLoadInProgress),
            State::Gone(code) => Err(*code),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        limits(&self.config.get())
    }

    /// Has `waiter` woken when something changes.
    pub(super) fn watch(&self, waiter: &Rc<Waiter>) {
        let mut waiters = self.waiters.borrow_mut();
        waiters.retain(|waiter| waiter.strong_count() > 0);
        waiters.push(Rc::downgrade(waiter));
    }

    fn wake(&self) {
        for waiter in self.waiters.take() {
            if let Some(waiter) = waiter.upgrade() {
                waiter.wake();
            }
        }
    }

    fn is_idle(&self) -> bool {
        let has_waiters = self.waiters.borrow().iter().any(|waiter| waiter.strong_count() > 0);
        !has_waiters && !self.is_fetched.get() && self.with(|loaded| loaded.partition.is_idle()) == Ok(true)
    }
}

pub(super) fn limits(config: &ShareGroupConfig) -> Limits {
    Limits {
        delivery_count_max: u16::try_from(config.delivery_count_max).unwrap_or(u16::MAX),
        in_flight_max: config.record_locks_max.into(),
    }
}

pub(super) fn waterline(config: &ShareGroupConfig) -> Waterline {
    if config.reads_committed { Waterline::LastStable } else { Waterline::HighWatermark }
}

impl Shard {
    /// How many share partitions this shard has in memory.
    pub fn share_partitions(&self) -> usize {
        self.shares.len()
    }

    /// How many share sessions this shard's connections have.
    pub fn share_sessions(&self) -> usize {
        self.shares.sessions.get()
    }

    /// A number for a new share session; `None` when there are as many as this shard may have
    /// (`group.share.max.share.sessions`, dealt out over the shards).
    pub fn open_share_session(&self) -> Option<SessionNumber> {
        let sessions_max = usize::try_from(self.config().groups.share.sessions_max).unwrap_or(0);
        if self.shares.sessions.get() >= sessions_max.div_ceil(usize::from(self.shards())) {
            self.counters.share_sessions_refused.increment();
            return None;
        }
        self.shares.sessions.set(self.shares.sessions.get() + 1);
        let number = self.shares.next_session.get();
        self.shares.next_session.set(number + 1);
        // No two shards give out the same.
        Some(SessionNumber(u64::from(self.id.0) << 48 | number))
    }

    pub fn close_share_session(&self) {
        self.shares.sessions.set(self.shares.sessions.get() - 1);
    }

    /// The share partition of a group, loaded.
    pub(super) async fn share_entry(
        self: &Rc<Self>,
        group: &Arc<str>,
        log: PartitionKey,
        config: ShareGroupConfig,
    ) -> Result<Rc<Entry>, ErrorCode> {
        let key = ShareKey { group: group.clone(), topic: log.topic, partition: log.partition };
        loop {
            let Some(entry) = self.shares.get(&key) else {
                return self.load_share(key, config).await;
            };
            entry.config.set(config);
            match entry.with(|_| ()) {
                Ok(()) => return Ok(entry),
                Err(ErrorCode::CoordinatorLoadInProgress) => {
                    let waiter = Rc::new(Waiter::default());
                    entry.watch(&waiter);
                    std::future::poll_fn(|context| waiter.poll(context)).await;
                    entry.with(|_| ())?;
                }
                Err(code) => return Err(code),
            }
        }
    }

    async fn load_share(
        self: &Rc<Self>,
        key: ShareKey,
        config: ShareGroupConfig,
    ) -> Result<Rc<Entry>, ErrorCode> {
        if self.shares.len() >= SHARE_PARTITIONS_MAX {
            self.shares.forget_idle();
            if self.shares.len() >= SHARE_PARTITIONS_MAX {
                self.counters.share_partitions_refused.increment();
                return Err(ErrorCode::CoordinatorNotAvailable);
            }
        }
        let entry = Rc::new(Entry {
            key,
            state: RefCell::new(State::Loading),
            config: Cell::new(config),
            is_fetched: Cell::new(false),
            waiters: RefCell::default(),
            lock_timer: Cell::new(None),
        });
        self.shares.insert(&entry);
        match self.read_share_state(&entry, config).await {
            // It may have been fenced meanwhile.
            Ok(loaded) if matches!(*entry.state.borrow(), State::Loading) => {
                *entry.state.borrow_mut() = State::Ready(Box::new(loaded));
                entry.wake();
                Ok(entry)
            }
            Ok(_) => entry.with(|_| ()).map(|()| entry.clone()),
            Err(code) => {
                self.shares.remove(&entry, code);
                Err(code)
            }
        }
    }

    async fn read_share_state(
        self: &Rc<Self>,
        entry: &Rc<Entry>,
        config: ShareGroupConfig,
    ) -> Result<Loaded, ErrorCode> {
        let log = entry.log();
        let replica = self.replica(log).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let leader_epoch = replica.with(|partition| partition.leader_epoch())?;
        let request = share_state::Request::Read { key: entry.key.clone(), leader_epoch };
        let share_state::Response::Read(kept) = self.ask_share_state(request).await else {
            crate::base::fatal("a read of a share state got another request's answer");
        };
        let kept = kept.map_err(|code| match code {
            // Who leads by now has it.
            ErrorCode::FencedLeaderEpoch => ErrorCode::NotLeaderOrFollower,
            code => code,
        })?;
        let start = match kept.start.0 {
            ..0 => self.first_share_offset(log, config.reset).await?,
            _ => kept.start,
        };
        let partition = SharePartition::load(&kept, start);
        Ok(Loaded { partition, state_epoch: kept.state_epoch, leader_epoch })
    }

    /// Where a group begins that has no position (`share.auto.offset.reset`).
    async fn first_share_offset(
        self: &Rc<Self>,
        key: PartitionKey,
        reset: ShareReset,
    ) -> Result<Offset, ErrorCode> {
        let target = match reset {
            ShareReset::Earliest => OffsetTarget::Earliest,
            ShareReset::Latest => OffsetTarget::Latest,
            ShareReset::ByDuration(age) => {
                let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
                OffsetTarget::At(Timestamp(clock::wall().0.saturating_sub(age_ms).max(0)))
            }
        };
        for target in [target, OffsetTarget::Latest] {
            let query = OffsetQuery {
                key,
                current_leader_epoch: LeaderEpoch::NONE,
                target,
                waterline: Waterline::HighWatermark,
            };
            let Reply::Offsets(answers) = self.ask(self.id, Request::Offsets(vec![query])).await else {
                crate::base::fatal("a question for an offset got another request's answer");
            };
            // No record is young enough: the end.
            if let Some(found) = answers.into_iter().next().transpose()?.and_then(|answer| answer.found) {
                return Ok(found.offset);
            }
        }
        Err(ErrorCode::UnknownServerError)
    }

    async fn ask_share_state(self: &Rc<Self>, request: share_state::Request) -> share_state::Response {
        let request = Request::Control(ControlRequest::ShareState(Box::new(request)));
        match self.ask(ShardId::CONTROL, request).await {
            Reply::Control(ControlReply::ShareState(response)) => *response,
            _ => crate::base::fatal("a share state request got another request's answer"),
        }
    }

    /// Has a change written and completes it.
    pub(super) fn write_share(
        self: &Rc<Self>,
        entry: &Rc<Entry>,
        change: Change,
    ) -> impl Future<Output = Result<(), ErrorCode>> + use<> {
        let (shard, entry) = (self.clone(), entry.clone());
        async move {
            let id = change.id;
            let (state_epoch, leader_epoch) =
                entry.with(|loaded| (loaded.state_epoch, loaded.leader_epoch))?;
            let write = StateWrite {
                key: entry.key.clone(),
                state_epoch,
                leader_epoch,
                start: change.start,
                delivery_complete: change.delivery_complete,
                batches: change.batches,
            };
            let request = share_state::Request::Write(Box::new(write));
            let share_state::Response::Changed(result) = shard.ask_share_state(request).await else {
                crate::base::fatal("a write of a share state got another request's answer");
            };
            entry.with(|loaded| loaded.partition.written(id, result.is_ok()))?;
            match result {
                Ok(()) => shard.share_changed(&entry),
                // Somebody else writes it, or it is no more.
                Err(
                    ErrorCode::FencedStateEpoch | ErrorCode::FencedLeaderEpoch | ErrorCode::InvalidRequest,
                ) => shard.shares.remove(&entry, ErrorCode::NotLeaderOrFollower),
                Err(_) => shard.arm_share_locks(&entry),
            }
            result.map_err(|code| match code {
                ErrorCode::FencedStateEpoch | ErrorCode::FencedLeaderEpoch | ErrorCode::InvalidRequest => {
                    ErrorCode::NotLeaderOrFollower
                }
                code => code,
            })
        }
    }

    /// [`Shard::write_share`] of what nobody waits for.
    pub(super) fn write_share_later(self: &Rc<Self>, entry: &Rc<Entry>, change: Option<Change>) {
        if let Some(change) = change {
            let write = self.write_share(entry, change);
            spawn(Queue::Serve, "share state", async move {
                // A failure was told to the log; the records are free here all the same.
                let _ = write.await;
            })
            .detach();
        }
        self.share_changed(entry);
    }

    /// Records may be free that were not: who waits looks again.
    pub(super) fn share_changed(self: &Rc<Self>, entry: &Rc<Entry>) {
        self.arm_share_locks(entry);
        if self.may_share(entry) {
            entry.wake();
        }
    }

    /// Whether a fetch would find something.
    pub(super) fn may_share(&self, entry: &Entry) -> bool {
        let (limits, waterline) = (entry.limits(), waterline(&entry.config.get()));
        let from = entry.with(|loaded| loaded.partition.fetch_from(limits));
        let Ok(from) = from else { return true };
        let Some(from) = from.filter(|_| !entry.is_fetched.get()) else { return false };
        let Some(replica) = self.replica(entry.log()) else { return true };
        replica.with(|partition| from < partition.upper_bound(waterline)).unwrap_or(true)
    }

    /// The end of what can be read of a partition has moved.
    pub(super) fn wake_shares(self: &Rc<Self>, key: PartitionKey) {
        if self.shares.by_log.borrow().is_empty() {
            return;
        }
        for entry in self.shares.of_log(key) {
            if self.may_share(&entry) {
                entry.wake();
            }
        }
    }

    /// The partition goes away, or its disk is lost.
    pub(super) fn forget_shares(self: &Rc<Self>, key: PartitionKey) {
        for entry in self.shares.of_log(key) {
            self.shares.remove(&entry, ErrorCode::NotLeaderOrFollower);
        }
    }

    /// A group's positions were changed: what is known of them is out of date.
    pub(super) fn fence_shares(self: &Rc<Self>, group: &Arc<str>, logs: &[PartitionKey]) {
        for log in logs {
            let key = ShareKey { group: group.clone(), topic: log.topic, partition: log.partition };
            if let Some(entry) = self.shares.get(&key) {
                self.shares.remove(&entry, ErrorCode::NotLeaderOrFollower);
            }
        }
    }

    /// Nobody waits from here on.
    pub(super) fn release_shares(&self) {
        self.shares.waiting.borrow().values().for_each(|waiter| waiter.wake());
    }

    /// Sets the timer to the end of the first lock.
    pub(super) fn arm_share_locks(self: &Rc<Self>, entry: &Rc<Entry>) {
        let next = entry.with(|loaded| loaded.partition.next_lock_end()).ok().flatten();
        let armed = entry.lock_timer.get();
        if armed.map(|(until, _)| until) == next {
            return;
        }
        if let Some((_, timer)) = armed {
            self.timers.cancel(timer);
        }
        let timer = next.map(|until| {
            // Never in the past, so that a lock of no length cannot keep the wheel busy.
            let at = until.max(clock::monotonic().plus(Duration::from_millis(1)));
            (until, self.timers.insert(at, Timer::ShareLocks(Rc::downgrade(entry))))
        });
        entry.lock_timer.set(timer);
    }

    pub(super) fn share_locks_ended(self: &Rc<Self>, entry: &Rc<Entry>) {
        entry.lock_timer.set(None);
        let limits = entry.limits();
        let change = entry.with(|loaded| loaded.partition.expire(clock::monotonic(), limits));
        let Ok(change) = change else { return };
        if change.is_some() {
            self.counters.share_locks_expired.increment();
        }
        self.write_share_later(entry, change);
    }
}
