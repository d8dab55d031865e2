//! The owner's half of ShareFetch and ShareAcknowledge: acknowledgements are written, then records are read and given
//! to the member. A fetch that finds nothing waits with a request of its own, which gives nothing out: so nothing is
//! lost with a client that goes while it waits.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;

use super::mesh::ReplyTo;
use super::messages::{
    FetchPart, FetchRequest, FetchedData, FetchedPart, Reads, Reply, Request, ShareAnswer, ShareFetchPart,
    ShareFetchRequest, ShareRelease, ShareSize, ShareWait, SharedRecords,
};
use super::parked::{Asker, asker};
use super::placement::PartitionKey;
use super::shares::{Entry, Waiter, limits, waterline};
use super::{NO_OFFSET, Shard};
use crate::base::clock;
use crate::base::{LeaderEpoch, Offset, ProducerId};
use crate::config::ShareGroupConfig;
use crate::io::FileHandle;
use crate::io::runtime::{Queue, spawn};
use crate::log::AbortedTransaction;
use crate::share::{Holder, Span, Wanted};
use crate::wire::ErrorCode;
use crate::wire::record::Batches;

/// Fetches that wait for records on one shard; a further one is answered at once.
const WAITING_MAX: usize = 65_536;

/// Read at once from one partition, unless its first batch is longer.
const READ_BYTES_MAX: u32 = 1 << 20;

/// Looked at in one log to see how much there is: twice what is waited for, for the last batch of it may not be whole.
const SIZED_BYTES_MAX: u32 = 2 << 20;

/// Read for one request.
const REQUEST_BYTES_MAX: u32 = 4 << 20;

impl Shard {
    pub(super) fn share_fetch(self: &Rc<Self>, mut reply_to: ReplyTo, request: ShareFetchRequest) {
        // The disk is waited for, and shard 0.
        self.mesh.park(&mut reply_to);
        let shard = self.clone();
        spawn(Queue::Serve, "share fetch", async move {
            let answers = shard.serve_share_fetch(request).await;
            shard.mesh.push_reply(reply_to, Reply::ShareFetch(answers));
        })
        .detach();
    }

    async fn serve_share_fetch(self: &Rc<Self>, request: ShareFetchRequest) -> Vec<ShareAnswer> {
        let mut answers: Vec<ShareAnswer> = Vec::with_capacity(request.parts.len());
        let mut writes = Vec::new();
        for (at, part) in request.parts.iter().enumerate() {
            let mut answer = ShareAnswer::default();
            if !part.acknowledgements.is_empty() {
                answer.acknowledged = match self.acknowledge_share(&request, part).await {
                    Ok(Some((entry, change))) => {
                        writes.push((at, self.write_share(&entry, change)));
                        Ok(())
                    }
                    Ok(None) => Ok(()),
                    Err(code) => Err(code),
                };
            }
            answers.push(answer);
        }
        let (places, writes): (Vec<usize>, Vec<_>) = writes.into_iter().unzip();
        for (at, result) in places.into_iter().zip(join_all(writes).await) {
            answers[at].acknowledged = result;
        }
        self.fetch_shares(&request, &mut answers).await;
        answers
    }

    async fn acknowledge_share(
        self: &Rc<Self>,
        request: &ShareFetchRequest,
        part: &ShareFetchPart,
    ) -> Result<Option<(Rc<Entry>, crate::share::Change)>, ErrorCode> {
        let entry = self.share_entry(&request.group, part.key, request.config).await?;
        let config = &request.config;
        let renewed =
            config.renews_locks.then(|| clock::monotonic().plus(lock_duration(config.lock_duration_ms)));
        let change = entry.with(|loaded| {
            let (member, limits) = (&request.holder.member, limits(config));
            loaded.partition.acknowledge(member, &part.acknowledgements, renewed, limits)
        })??;
        self.counters.share_acknowledgements.increment();
        self.arm_share_locks(&entry);
        Ok(change.map(|change| (entry, change)))
    }

    /// Gives the member what there is, up to what it wants of all partitions together.
    async fn fetch_shares(self: &Rc<Self>, request: &ShareFetchRequest, answers: &mut [ShareAnswer]) {
        let mut wanted = request.wanted;
        let mut bytes_left = request.bytes_max.min(REQUEST_BYTES_MAX);
        let mut taken = 0;
        for (part, answer) in request.parts.iter().zip(answers) {
            if !part.fetches || wanted.records_max <= 0 || bytes_left == 0 {
                continue;
            }
            let entry = match self.share_entry(&request.group, part.key, request.config).await {
                Ok(entry) => entry,
                Err(code) => {
                    answer.fetched = Err(code);
                    continue;
                }
            };
            if !self.may_share(&entry) {
                continue;
            }
            if taken == 0 {
                // Once for all of it: who has a part and waits for more could wait for ever.
                taken = REQUEST_BYTES_MAX as usize;
                self.shares.reads.take(taken).await;
            }
            answer.fetched = self.fetch_share(&entry, request, wanted, bytes_left, part.key).await;
            if let Ok(SharedRecords { records, acquired }) = &answer.fetched {
                let count: i64 = acquired.iter().map(|range| range.last.0 - range.first.0 + 1).sum();
                wanted.records_max -= count;
                bytes_left = bytes_left.saturating_sub(records.len() as u32);
                self.counters.share_acquired_records.add(u64::try_from(count).unwrap_or(0));
            }
        }
        self.shares.reads.give_back(taken);
    }

    async fn fetch_share(
        self: &Rc<Self>,
        entry: &Rc<Entry>,
        request: &ShareFetchRequest,
        wanted: Wanted,
        bytes_left: u32,
        key: PartitionKey,
    ) -> Result<SharedRecords, ErrorCode> {
        if entry.is_fetched.replace(true) {
            return Ok(SharedRecords::default());
        }
        let result = self.read_and_acquire(entry, request, wanted, bytes_left, key).await;
        entry.is_fetched.set(false);
        self.share_changed(entry);
        result
    }

    async fn read_and_acquire(
        self: &Rc<Self>,
        entry: &Rc<Entry>,
        request: &ShareFetchRequest,
        wanted: Wanted,
        bytes_left: u32,
        key: PartitionKey,
    ) -> Result<SharedRecords, ErrorCode> {
        let config = &request.config;
        let limits = limits(config);
        // Twice when records were deleted from where it would begin.
        for _ in 0..2 {
            let Some(from) = entry.with(|loaded| loaded.partition.fetch_from(limits))? else { break };
            let part = FetchPart {
                key,
                offset: from,
                bytes_max: bytes_left.min(READ_BYTES_MAX),
                current_leader_epoch: LeaderEpoch::NONE,
                last_fetched_epoch: LeaderEpoch::NONE,
                log_start: NO_OFFSET,
            };
            let data = match self.read_plan(part, config).await? {
                Found::Data(data) => *data,
                Found::Before(log_start) => {
                    entry.with(|loaded| loaded.partition.log_start_moved(log_start))?;
                    continue;
                }
                Found::Nothing => break,
            };
            entry.with(|loaded| loaded.partition.log_start_moved(data.log_start))?;
            let bytes = self.read_range(&data).await?;
            let batches = Read::of(&bytes, from, data.aborted.as_deref().unwrap_or_default());
            if batches.spans.is_empty() && !bytes.is_empty() {
                return Err(ErrorCode::CorruptMessage);
            }
            let until = clock::monotonic().plus(lock_duration(config.lock_duration_ms));
            let acquired = entry.with(|loaded| {
                loaded.partition.acquire(&request.holder, until, from, &batches.spans, wanted, limits)
            })?;
            let records = match (acquired.first(), acquired.last()) {
                (Some(first), Some(last)) => batches.slice(&bytes, first.first, last.last),
                _ => Bytes::new(),
            };
            return Ok(SharedRecords { records, acquired });
        }
        Ok(SharedRecords::default())
    }

    async fn read_plan(
        self: &Rc<Self>,
        part: FetchPart,
        config: &ShareGroupConfig,
    ) -> Result<Found, ErrorCode> {
        let from = part.offset;
        let fetch = FetchRequest {
            follower: None,
            reads: Reads::Leader,
            bytes_max: part.bytes_max,
            parts: vec![part],
            waterline: waterline(config),
            wait: None,
        };
        let Reply::Fetch(mut reply) = self.ask(self.id, Request::Fetch(fetch)).await else {
            crate::base::fatal("a fetch got another request's answer");
        };
        match reply.parts.pop() {
            Some(FetchedPart::Data(data)) if data.range.is_some() => Ok(Found::Data(Box::new(data))),
            Some(FetchedPart::Data(_) | FetchedPart::Diverging { .. } | FetchedPart::Elsewhere { .. })
            | None => Ok(Found::Nothing),
            Some(FetchedPart::Failed { code: ErrorCode::OffsetOutOfRange, log_start, .. }) => {
                // Behind the end there is nothing yet: a crash took it.
                Ok(if log_start > from { Found::Before(log_start) } else { Found::Nothing })
            }
            Some(FetchedPart::Failed { code, .. }) => Err(code),
        }
    }

    async fn read_range(self: &Rc<Self>, data: &FetchedData) -> Result<Bytes, ErrorCode> {
        let Some(range) = &data.range else { return Ok(Bytes::new()) };
        let directory = range.file.directory();
        // The first batch is read whole, or nobody would ever get past it.
        let length = range.length.max(data.first_batch_bytes) as usize;
        let (file, position) = (range.file.clone(), range.position);
        let threads = &self.settings.directories.readers;
        let read = threads.run("share read", move || {
            let mut bytes = vec![0; length];
            let count = file.read_at(&mut bytes, position)?;
            bytes.truncate(count);
            Ok::<_, std::io::Error>(bytes)
        });
        match read.await {
            Ok(bytes) => Ok(Bytes::from(bytes)),
            Err(error) => {
                self.note_send_error(directory, &error);
                Err(ErrorCode::KafkaStorageError)
            }
        }
    }

    pub(super) fn share_size(self: &Rc<Self>, mut reply_to: ReplyTo, size: ShareSize) {
        self.mesh.park(&mut reply_to);
        let shard = self.clone();
        spawn(Queue::Serve, "share size", async move {
            let bytes = shard.size_of_shares(&size).await;
            shard.mesh.push_reply(reply_to, Reply::ShareSize(bytes));
        })
        .detach();
    }

    /// What the logs have from where the share partitions would read on, wherever there is something to give.
    async fn size_of_shares(self: &Rc<Self>, size: &ShareSize) -> u64 {
        let limits = limits(&size.config);
        let mut bytes = 0;
        for key in &size.keys {
            // One that cannot be loaded is told of by the fetch.
            let Ok(entry) = self.share_entry(&size.group, *key, size.config).await else { continue };
            if bytes >= u64::from(size.bytes_wanted) {
                break;
            }
            let Ok(Some(offset)) = entry.with(|loaded| loaded.partition.fetch_from(limits)) else { continue };
            let part = FetchPart {
                key: *key,
                offset,
                bytes_max: SIZED_BYTES_MAX,
                current_leader_epoch: LeaderEpoch::NONE,
                last_fetched_epoch: LeaderEpoch::NONE,
                log_start: NO_OFFSET,
            };
            if let Ok(Found::Data(data)) = self.read_plan(part, &size.config).await {
                bytes += data.range.as_ref().map_or(0, |range| u64::from(range.length));
            }
        }
        bytes
    }

    /// Answers when one of the share partitions may have something to give, at `until` at the latest.
    pub(super) fn share_wait(self: &Rc<Self>, mut reply_to: ReplyTo, wait: ShareWait) {
        let asker = asker(&reply_to);
        self.mesh.park(&mut reply_to);
        if self.shares.waiting.borrow().len() >= WAITING_MAX {
            self.counters.share_fetches_refused.increment();
            self.mesh.push_reply(reply_to, Reply::Done);
            return;
        }
        // At once, so that one who is in a hurry finds it.
        let waiter = Rc::new(Waiter::default());
        self.shares.waiting.borrow_mut().insert(asker, waiter.clone());
        let shard = self.clone();
        spawn(Queue::Serve, "share wait", async move {
            shard.wait_for_shares(asker, &waiter, wait).await;
            shard.mesh.push_reply(reply_to, Reply::Done);
        })
        .detach();
    }

    async fn wait_for_shares(self: &Rc<Self>, asker: Asker, waiter: &Rc<Waiter>, wait: ShareWait) {
        let mut entries = Vec::with_capacity(wait.keys.len());
        for key in &wait.keys {
            // One that cannot be loaded has been told of; it is not waited for.
            if let Ok(entry) = self.share_entry(&wait.group, *key, wait.config).await {
                entry.watch(waiter);
                entries.push(entry);
            }
        }
        let may_share = entries.iter().any(|entry| self.may_share(entry));
        if !may_share && !self.is_stopping() {
            let mut sleep = pin!(self.sleep_until(wait.until));
            std::future::poll_fn(|context| match waiter.poll(context) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => sleep.as_mut().poll(context),
            })
            .await;
        }
        self.shares.waiting.borrow_mut().remove(&asker);
    }

    /// A share wait is to be answered now.
    pub(super) fn hurry_share_wait(&self, asker: Asker) {
        if let Some(waiter) = self.shares.waiting.borrow().get(&asker) {
            waiter.wake();
        }
    }

    /// A session is over: what its member got in it is free again.
    pub(super) fn release_share(self: &Rc<Self>, release: ShareRelease) {
        let ShareRelease { group, holder, keys } = release;
        for key in keys {
            self.release_share_of(&group, &holder, key);
        }
    }

    fn release_share_of(self: &Rc<Self>, group: &Arc<str>, holder: &Holder, log: PartitionKey) {
        let key = crate::share::ShareKey { group: group.clone(), topic: log.topic, partition: log.partition };
        let Some(entry) = self.shares.get(&key) else { return };
        let limits = entry.limits();
        if let Ok(change) = entry.with(|loaded| loaded.partition.release(holder, limits)) {
            self.write_share_later(&entry, change);
        }
    }
}

enum Found {
    Data(Box<FetchedData>),
    /// The log begins behind the offset.
    Before(Offset),
    Nothing,
}

/// The whole batches of a read.
struct Read {
    spans: Vec<Span>,
    /// Where each begins in the bytes, and where the last ends.
    positions: Vec<usize>,
}

impl Read {
    fn of(bytes: &[u8], from: Offset, aborted: &[AbortedTransaction]) -> Self {
        let mut read = Self { spans: Vec::new(), positions: Vec::new() };
        let mut aborted = Aborted { left: aborted, producers: Vec::new() };
        let mut position = 0;
        for batch in Batches::new(bytes) {
            // The last batch of a read may be cut.
            let Ok(batch) = batch else { break };
            let head = batch.head();
            let is_aborted = aborted.contains(
                head.producer_id(),
                head.last_offset(),
                head.attributes().is_transactional(),
                head.attributes().is_control(),
            );
            // A read begins with the batch that holds its offset, which may lie before it.
            if head.last_offset() >= from {
                let (first, last) = (head.base_offset(), head.last_offset());
                read.spans.push(Span { first, last, is_aborted });
                read.positions.push(position);
            }
            position += head.total_len();
        }
        read.positions.push(position);
        read
    }

    /// The batches that hold `first..=last`.
    fn slice(&self, bytes: &Bytes, first: Offset, last: Offset) -> Bytes {
        let begin = self.spans.partition_point(|span| span.last < first);
        let end = self.spans.partition_point(|span| span.first <= last);
        bytes.slice(self.positions[begin]..self.positions[end])
    }
}

/// The transactions that turn out aborted as a log is walked.
struct Aborted<'a> {
    /// By their first records, those that were not reached.
    left: &'a [AbortedTransaction],
    producers: Vec<ProducerId>,
}

impl Aborted<'_> {
    fn contains(
        &mut self,
        producer: ProducerId,
        last: Offset,
        is_transactional: bool,
        is_control: bool,
    ) -> bool {
        while let Some((next, rest)) = self.left.split_first()
            && next.first <= last
        {
            self.producers.push(next.producer);
            self.left = rest;
        }
        let Some(at) = self.producers.iter().position(|aborted| *aborted == producer) else { return false };
        if is_control {
            // Its marker ends it.
            self.producers.swap_remove(at);
            return false;
        }
        is_transactional
    }
}

fn lock_duration(ms: i32) -> Duration {
    Duration::from_millis(ms.max(1).unsigned_abs().into())
}
