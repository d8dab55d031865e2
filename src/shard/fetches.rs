//! The owner's half of a fetch: plan file ranges, park what must wait, wake it by the high watermark. No
//! byte of a record is touched here; the connection's shard sends the ranges.

use std::rc::Rc;
use std::time::Duration;

use super::appends::AppendToken;
use super::mesh::{CallHandle, ReplyTo};
use super::messages::{
    FetchPart, FetchReply, FetchRequest, FetchedData, FetchedPart, Follower, HurryFetch, Reads, Reply,
    Request,
};
use super::parked::{Asker, Parked, Watch, asker};
use super::placement::PartitionKey;
use super::replica::LivePartition;
use super::{NO_OFFSET, ReplicationEnd, Shard};
use crate::base::clock;
use crate::base::{BrokerId, Offset, ShardId};
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, spawn};
use crate::log::{OffsetMetadata, Read, ReadError, ReadJob, ReadPlan};
use crate::partition::{Committed, FollowerFetch, IsrProposal, ReadOutcome, Waterline};
use crate::wire::ErrorCode;

/// What a request would return now.
struct Planned {
    parts: Vec<FetchedPart>,
    starts: Vec<OffsetMetadata>,
    bytes: u64,
    urgent: bool,
    /// Parts whose position must be looked up on the disk first.
    cold: Vec<(usize, ReadJob<OsFiles>)>,
    /// What a follower's progress has brought about.
    progress: Progress,
}

#[derive(Default)]
struct Progress {
    committed: Vec<Committed<AppendToken>>,
    moved: Vec<PartitionKey>,
    proposals: Vec<(PartitionKey, IsrProposal)>,
}

impl Shard {
    pub(super) fn fetch(self: &Rc<Self>, reply_to: ReplyTo, request: FetchRequest) {
        let mut planned = self.plan(&request, true);
        if request.follower.is_some() {
            self.followers_progressed(std::mem::take(&mut planned.progress));
            self.wake_deletions_of(request.parts.iter().map(|part| part.key));
        }
        self.answer_or_park(Duration::ZERO, reply_to, request, planned);
    }

    /// Answers or parks a fetch that has been parked for `waited`.
    fn answer_or_park(
        self: &Rc<Self>,
        waited: Duration,
        reply_to: ReplyTo,
        request: FetchRequest,
        mut planned: Planned,
    ) {
        if !planned.cold.is_empty() {
            let mut reply_to = reply_to;
            self.mesh.park(&mut reply_to);
            let shard = self.clone();
            // Not in the background queue: a client waits, and the work itself is a file thread's.
            spawn(Queue::Serve, "cold fetch", async move {
                let cold = std::mem::take(&mut planned.cold);
                for (index, job) in cold {
                    planned.parts[index] = shard.read_cold(&request, index, job).await;
                }
                shard.answer_fetch(reply_to, planned.parts, waited);
            })
            .detach();
            return;
        }
        match request.wait {
            Some(wait) if planned.bytes < wait.bytes_min && !planned.urgent && !self.stopping.get() => {
                let mut parked =
                    Parked::new(reply_to, request, wait.bytes_min, planned.starts, clock::monotonic());
                // A plan ends with its segment: what lies in the next one is there and need not be waited for
                // (`DelayedFetch.tryComplete`).
                if self.has_enough(&mut parked, planned.bytes > 0) {
                    self.answer_fetch(parked.reply_to, planned.parts, waited);
                } else {
                    self.park_fetch(wait.until, parked);
                }
            }
            _ => self.answer_fetch(reply_to, planned.parts, waited),
        }
    }

    fn park_fetch(self: &Rc<Self>, until: clock::Monotonic, mut parked: Parked) {
        self.mesh.park(&mut parked.reply_to);
        self.counters.fetches_parked.increment();
        let refused = self.parked.borrow_mut().park(until, parked).err();
        match refused {
            None => self.timers.consider(until),
            Some(parked) => {
                self.counters.fetches_refused.increment();
                self.complete_fetch(*parked);
            }
        }
    }

    fn followers_progressed(self: &Rc<Self>, progress: Progress) {
        self.finish_appends(progress.committed);
        for key in progress.moved {
            self.wake_fetches(key);
        }
        for (key, proposal) in progress.proposals {
            self.counters.isr_expands.increment();
            self.propose_isr(key, proposal);
        }
    }

    /// Answers the consumers' fetches that watch `key` and now have enough.
    pub(super) fn wake_fetches(self: &Rc<Self>, key: PartitionKey) {
        self.wake_shares(key);
        self.wake(Watch::Committed(key), key);
    }

    /// Answers the followers that watch a partition whose log has grown in this turn.
    pub(super) fn wake_followers(self: &Rc<Self>) {
        if self.grown.borrow().is_empty() {
            return;
        }
        let grown = std::mem::take(&mut *self.grown.borrow_mut());
        for key in grown {
            self.wake(Watch::Appended(key), key);
        }
    }

    fn wake(self: &Rc<Self>, watch: Watch, key: PartitionKey) {
        if !self.parked.borrow().purgatory.is_watched(&watch) {
            return;
        }
        let mut completed = Vec::new();
        self.parked.borrow_mut().purgatory.check(
            &watch,
            |_, parked| self.has_enough_now(parked, key),
            &mut completed,
        );
        self.complete_fetches(completed);
    }

    /// Answers all fetches that watch `key`, whatever there is: the partition goes away.
    pub(super) fn release_fetches(self: &Rc<Self>, key: PartitionKey) {
        let mut completed = Vec::new();
        for watch in [Watch::Committed(key), Watch::Appended(key)] {
            self.parked.borrow_mut().purgatory.drain_key(&watch, &mut completed);
        }
        self.complete_fetches(completed);
        self.wake_deletions_of([key]);
    }

    /// From here on no fetch waits, nor who has records deleted: the broker stops, and its connections are to end.
    pub fn release_all_fetches(self: &Rc<Self>) {
        self.stopping.set(true);
        super::mesh::end_calls();
        self.release_shares();
        let keys: Vec<PartitionKey> = self.replicas.borrow().keys().copied().collect();
        for key in keys {
            self.release_fetches(key);
        }
        self.release_deletions();
    }

    /// Answers the fetches whose wait is over; whether there was one.
    pub(super) fn expire_fetches(self: &Rc<Self>, now: clock::Monotonic) {
        let mut expired = Vec::new();
        self.parked.borrow_mut().purgatory.advance(now, &mut expired);
        self.complete_fetches(expired);
    }

    pub(super) fn hurry_kept(self: &Rc<Self>, hurry: &HurryFetch) {
        let parked = self.parked.borrow_mut().take(hurry.asker);
        match parked {
            Some(parked) => self.complete_fetch(parked),
            None if self.hurry_deletion(hurry.asker) => {}
            None => self.hurry_share_wait(hurry.asker),
        }
    }

    /// Whether a call of this shard is not answered yet.
    pub fn awaits(&self, call: CallHandle) -> bool {
        self.mesh.awaits(call.0)
    }

    /// Asks `owner` to answer now what it keeps of this shard.
    pub async fn hurry(self: &Rc<Self>, owner: ShardId, call: CallHandle) {
        let asker = Asker { shard: self.id, call: call.0 };
        drop(self.send(owner, Request::HurryFetch(HurryFetch { asker })).await);
    }

    fn complete_fetches(self: &Rc<Self>, completed: Vec<Parked>) {
        for parked in completed {
            self.parked.borrow_mut().forget(&parked);
            self.complete_fetch(parked);
        }
    }

    fn complete_fetch(self: &Rc<Self>, parked: Parked) {
        debug_assert!(asker(&parked.reply_to).shard.0 < self.shards());
        let request = FetchRequest { wait: None, ..parked.request };
        // How far a follower is was noted when it came.
        let planned = self.plan(&request, false);
        self.answer_or_park(clock::monotonic().since(parked.since), parked.reply_to, request, planned);
    }

    /// Whether a fetch that is about to wait would return enough, if `some` is there at all. Notes what each
    /// partition has, so that an append asks only for its own.
    fn has_enough(&self, parked: &mut Parked, some: bool) -> bool {
        for index in 0..parked.request.parts.len() {
            let enough = self.look_at_part(parked, index);
            if some && enough {
                return true;
            }
        }
        false
    }

    /// The same after the high watermark of `key` has moved.
    fn has_enough_now(&self, parked: &mut Parked, key: PartitionKey) -> bool {
        // The last stable offset need not have moved with it.
        let may_be_held = parked.request.follower.is_some() && self.throttles(ReplicationEnd::Leader);
        if parked.bytes_min <= 1 && parked.request.waterline != Waterline::LastStable && !may_be_held {
            return true;
        }
        parked.parts_of(key).any(|index| self.look_at_part(parked, index))
    }

    /// Looks at one partition of a waiting fetch; whether all together now have enough, or this one something to
    /// tell.
    fn look_at_part(&self, parked: &mut Parked, index: usize) -> bool {
        let part = parked.request.parts[index];
        let Some(replica) = self.replica(part.key) else { return true };
        let start = &parked.starts[index];
        let follower = parked.request.follower;
        let bytes = replica.with(|partition| {
            let is_held =
                follower.is_some_and(|follower| self.holds_back_from(follower.broker, part.key, partition));
            match is_held {
                true => Some(0),
                false => partition.bytes_available(start, parked.request.waterline),
            }
        });
        match bytes {
            // Another segment, or an error to tell.
            Ok(None) | Err(_) => true,
            Ok(Some(bytes)) => parked.set_available(index, bytes.min(u64::from(part.bytes_max))),
        }
    }

    /// `notes`: how far a follower is is noted.
    fn plan(self: &Rc<Self>, request: &FetchRequest, notes: bool) -> Planned {
        let mut planned = Planned {
            parts: Vec::with_capacity(request.parts.len()),
            starts: Vec::with_capacity(request.parts.len()),
            bytes: 0,
            urgent: false,
            cold: Vec::new(),
            progress: Progress::default(),
        };
        for (index, part) in request.parts.iter().enumerate() {
            let left = u64::from(request.bytes_max).saturating_sub(planned.bytes) as u32;
            // The first partition with data may exceed the limits by its first batch, or a consumer would
            // never get past a batch that is larger than what it asks for.
            let whole_first_batch = planned.bytes == 0;
            let asked = Asked { part, bytes_left: left, whole_first_batch };
            let progress = notes.then_some(&mut planned.progress);
            let (fetched, start, cold) = self.plan_part(request, &asked, progress);
            planned.bytes += u64::from(fetched.bytes());
            planned.urgent |= fetched.is_urgent();
            planned.parts.push(fetched);
            planned.starts.push(start);
            planned.cold.extend(cold.map(|job| (index, job)));
        }
        planned
    }

    fn plan_part(
        self: &Rc<Self>,
        request: &FetchRequest,
        asked: &Asked<'_>,
        progress: Option<&mut Progress>,
    ) -> (FetchedPart, OffsetMetadata, Option<ReadJob<OsFiles>>) {
        let Asked { part, bytes_left, whole_first_batch } = *asked;
        let waterline = request.waterline;
        let start = OffsetMetadata { offset: part.offset, segment: part.offset, position: 0 };
        let Some(replica) = self.replica(part.key) else {
            return (failed(ErrorCode::UnknownTopicOrPartition), start, None);
        };
        replica.last_used.set(clock::monotonic());
        let outcome = replica.with(|partition| {
            let checked = match request.reads {
                Reads::Leader => partition.check_leader_epoch(part.current_leader_epoch),
                Reads::Any | Reads::Nearer(_) => partition.check_epoch(part.current_leader_epoch),
            };
            if let Err(code) = checked {
                return (failed(code), start, None);
            }
            if let Reads::Nearer(brokers) = &request.reads
                && let Some(replica) = partition.nearer_replica(brokers, part.offset)
            {
                return (FetchHead::of(partition).elsewhere(replica), start, None);
            }
            let bytes_max = part.bytes_max.min(bytes_left);
            let read =
                partition.read(part.offset, part.last_fetched_epoch, bytes_max, whole_first_batch, waterline);
            if let (Some(follower), Ok(ReadOutcome::Read(_)), Some(progress)) =
                (request.follower, &read, progress)
            {
                match note_fetch(partition, part, follower, progress) {
                    Ok(()) => {}
                    Err(code) => return (failed(code), start, None),
                }
            }
            let head = FetchHead::of(partition);
            let is_held = request
                .follower
                .is_some_and(|follower| self.holds_back_from(follower.broker, part.key, partition));
            match read {
                Ok(ReadOutcome::Read(read)) if is_held => {
                    self.counters.replication_held_leader.increment();
                    let start = if let Read::Plan(plan) = read { plan.start } else { start };
                    (head.empty(waterline), start, None)
                }
                Ok(ReadOutcome::Read(Read::Plan(plan))) => {
                    let start = plan.start;
                    (head.data(plan), start, None)
                }
                Ok(ReadOutcome::Read(Read::NeedsDisk(job))) => (head.empty(waterline), start, Some(job)),
                Ok(ReadOutcome::Diverging { epoch, end }) => {
                    let FetchHead { high_watermark, last_stable, log_start } = head;
                    (
                        FetchedPart::Diverging { epoch, end, high_watermark, last_stable, log_start },
                        start,
                        None,
                    )
                }
                Err(error) => {
                    if let ReadError::Storage(error) = &error {
                        self.note_read_error(&replica, error);
                    }
                    (head.failed(&error), start, None)
                }
            }
        });
        match outcome {
            Ok(outcome) => outcome,
            Err(code) => (failed(code), start, None),
        }
    }

    /// Looks a position up on the disk, as often as the log asks for it.
    async fn read_cold(
        self: &Rc<Self>,
        request: &FetchRequest,
        index: usize,
        job: ReadJob<OsFiles>,
    ) -> FetchedPart {
        let mut job = job;
        loop {
            let outcome = self.settings.directories.readers.run("cold read plan", move || job.run()).await;
            let Some(replica) = self.replica(request.parts[index].key) else {
                return failed(ErrorCode::UnknownTopicOrPartition);
            };
            let next = replica.with(|partition| {
                let head = FetchHead::of(partition);
                match partition.log_mut().finish_read(outcome) {
                    Ok(Read::Plan(plan)) => Ok(head.data(plan)),
                    Ok(Read::NeedsDisk(job)) => Err(Box::new(job)),
                    // Truncated meanwhile: an empty answer, and the reader asks again.
                    Err(ReadError::Stale) => Ok(head.empty(request.waterline)),
                    Err(error) => {
                        if let ReadError::Storage(error) = &error {
                            self.note_read_error(&replica, error);
                        }
                        Ok(head.failed(&error))
                    }
                }
            });
            match next {
                Ok(Ok(fetched)) => return fetched,
                Ok(Err(another)) => job = *another,
                Err(code) => return failed(code),
            }
        }
    }

    fn answer_fetch(&self, reply_to: ReplyTo, parts: Vec<FetchedPart>, waited: Duration) {
        self.mesh.push_reply(reply_to, Reply::Fetch(FetchReply { parts, waited }));
    }
}

/// What a fetch asks of one partition, as far as there is room in its answer.
#[derive(Clone, Copy)]
struct Asked<'a> {
    part: &'a FetchPart,
    bytes_left: u32,
    whole_first_batch: bool,
}

/// Takes note of how far the follower is.
fn note_fetch(
    partition: &mut LivePartition,
    part: &FetchPart,
    follower: Follower,
    progress: &mut Progress,
) -> Result<(), ErrorCode> {
    let fetch = FollowerFetch {
        replica: follower.broker,
        broker_epoch: follower.epoch,
        offset: part.offset,
        log_start: part.log_start,
    };
    if partition.note_fetch(fetch, clock::now(), &mut progress.committed)? {
        progress.moved.push(part.key);
    }
    let proposal = partition.expand_isr(follower.broker);
    progress.proposals.extend(proposal.map(|proposal| (part.key, proposal)));
    Ok(())
}

/// What stands at the head of a partition's answer.
struct FetchHead {
    high_watermark: Offset,
    last_stable: Offset,
    log_start: Offset,
}

impl FetchHead {
    fn of(partition: &LivePartition) -> Self {
        Self {
            high_watermark: partition.high_watermark(),
            last_stable: partition.last_stable(),
            log_start: partition.log().log_start(),
        }
    }

    fn elsewhere(self, replica: BrokerId) -> FetchedPart {
        let Self { high_watermark, last_stable, log_start } = self;
        FetchedPart::Elsewhere { replica, high_watermark, last_stable, log_start }
    }

    fn data(self, plan: ReadPlan<OsFiles>) -> FetchedPart {
        FetchedPart::Data(FetchedData {
            high_watermark: self.high_watermark,
            last_stable: self.last_stable,
            log_start: self.log_start,
            range: plan.range,
            first_batch_bytes: plan.first_batch_bytes,
            aborted: plan.aborted,
        })
    }

    fn empty(self, waterline: Waterline) -> FetchedPart {
        FetchedPart::Data(FetchedData {
            high_watermark: self.high_watermark,
            last_stable: self.last_stable,
            log_start: self.log_start,
            range: None,
            first_batch_bytes: 0,
            aborted: (waterline == Waterline::LastStable).then(Vec::new),
        })
    }

    fn failed(self, error: &ReadError) -> FetchedPart {
        FetchedPart::Failed {
            code: error.code(),
            log_start: self.log_start,
            high_watermark: self.high_watermark,
        }
    }
}

fn failed(code: ErrorCode) -> FetchedPart {
    FetchedPart::Failed { code, log_start: NO_OFFSET, high_watermark: NO_OFFSET }
}
