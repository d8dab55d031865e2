//! How the coordinators of shard 0 write the partitions of their topics.
//!
//! Appends of one coordinator go from one task, so that they reach the partition's owner in the coordinator's
//! order. What is queued for one partition when the task comes round becomes one batch, which is appended, or refused,
//! as one: nobody waits for others to come, as with Kafka's adaptive linger. Where a linger is set, the task waits for
//! that; a transaction's records are never kept waiting.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;

use super::internal_topics::TRANSACTION_STATE;
use crate::base::clock::{self, Timestamp};
use crate::base::{LeaderEpoch, Offset, PartitionIndex, ShardId, TopicId};
use crate::coordinator::transactions::TransactionVersion;
use crate::coordinator::{Content, KeyValue, Ticket};
use crate::io::runtime::{Notify, Queue, spawn};
use crate::log::{Claim, Origin};
use crate::metadata::{ConfigResource, Image};
use crate::partition::{Acks, AppendFailure};
use crate::shard::messages::{AppendPart, AppendRequest, Reply, Request};
use crate::shard::{PartitionKey, PendingReply, Shard};
use crate::wire::ErrorCode;
use crate::wire::record::{BatchBuilder, Compression, EndTxnMarker};

/// Appends of one partition are gathered into a batch up to this, or up to the topic's `max.message.bytes`.
const BATCH_BYTES_MAX: usize = 512 << 10;
/// Appends that wait for a linger; at one more all are sent.
const LINGERING_MAX: usize = 1024;
/// What a record takes in a batch beside its key and value, at most.
const RECORD_BYTES: usize = 32;
/// Coordinators' batches are not looked at by version.
const PRODUCE_VERSION: i16 = 13;

/// A coordinator whose appends [`send_appends`] sends.
pub(super) trait Appending: 'static {
    /// The topic, for who looks up its configs.
    const TOPIC: &'static str;

    fn shard(&self) -> &Rc<Shard>;

    fn appends(&self) -> &Appends;

    /// The topic, if it is there.
    fn topic(&self) -> Option<TopicId>;

    /// Under which leadership a partition is written; none when it is not led here.
    fn epoch(&self, partition: PartitionIndex) -> Option<LeaderEpoch>;

    /// How long records wait for others to share their batch, if at all.
    fn linger(&self) -> Option<Duration> {
        None
    }

    /// How long an append may wait until it is committed.
    fn timeout(&self) -> Duration;

    /// Appends succeeded, in a batch that begins at this offset, or failed together.
    fn appended(self: &Rc<Self>, tickets: &[Ticket], result: Result<Offset, ErrorCode>);
}

/// What waits to be appended.
pub(super) struct Appends {
    queue: RefCell<VecDeque<Queued>>,
    bytes: Cell<usize>,
    /// What is queued may not wait for more.
    is_urgent: Cell<bool>,
    /// The version of the image, and the topic's `max.message.bytes` by it.
    message_bytes_max: Cell<Option<(u64, usize)>>,
    ready: Notify,
}

struct Queued {
    partition: PartitionIndex,
    content: Content,
    ticket: Ticket,
}

/// What one owner is to append, and whom to tell.
struct Share {
    owner: ShardId,
    parts: Vec<Part>,
}

struct Part {
    key: PartitionKey,
    epoch: LeaderEpoch,
    batch: Batch,
    claim: Claim,
    tickets: Vec<Ticket>,
}

enum Batch {
    /// More records may come to it.
    Open(BatchBuilder),
    Made(Bytes),
}

/// What the batches of one round have in common.
struct Round<'a> {
    image: &'a Image,
    batch_bytes_max: usize,
    now: Timestamp,
}

impl Appends {
    pub fn new() -> Self {
        Self {
            queue: RefCell::default(),
            bytes: Cell::new(0),
            is_urgent: Cell::new(false),
            message_bytes_max: Cell::new(None),
            ready: Notify::new(),
        }
    }

    pub fn push(&self, partition: PartitionIndex, content: Content, ticket: Ticket) {
        let mut queue = self.queue.borrow_mut();
        let is_urgent = match &content {
            Content::Records(records) => {
                self.bytes.set(self.bytes.get() + bytes_of(records));
                self.bytes.get() >= BATCH_BYTES_MAX || queue.len() >= LINGERING_MAX
            }
            Content::InTransaction { .. } | Content::Marker(_) => true,
        };
        self.is_urgent.set(self.is_urgent.get() || is_urgent);
        queue.push_back(Queued { partition, content, ticket });
        self.ready.notify();
    }

    /// Takes out what is queued for a partition.
    pub fn take_of(&self, partition: PartitionIndex) -> Vec<Ticket> {
        let mut taken = Vec::new();
        self.queue.borrow_mut().retain(|queued| {
            let stays = queued.partition != partition;
            if !stays {
                taken.push(queued.ticket);
            }
            stays
        });
        taken
    }

    fn take(&self) -> VecDeque<Queued> {
        self.bytes.set(0);
        self.is_urgent.set(false);
        std::mem::take(&mut *self.queue.borrow_mut())
    }

    /// Waits until something is queued and then, where there is a linger, until that is over or what is queued may not
    /// wait.
    async fn gathered<L: Future<Output = ()>>(&self, linger: impl FnOnce() -> Option<L>) {
        self.ready.notified().await;
        let Some(linger) = linger() else { return };
        let mut linger = pin!(linger);
        poll_fn(|context| {
            while !self.is_urgent.get() {
                if self.ready.poll_notified(context).is_pending() {
                    return linger.as_mut().poll(context);
                }
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// Sends what is queued, for ever.
pub(super) async fn send_appends<C: Appending>(coordinator: Rc<C>) {
    loop {
        let linger = || coordinator.linger().map(|linger| coordinator.shard().sleep(linger));
        coordinator.appends().gathered(linger).await;
        for share in take_appends(&coordinator) {
            send_share(&coordinator, share).await;
        }
    }
}

/// Gathers what is queued, one list per owner.
fn take_appends<C: Appending>(coordinator: &Rc<C>) -> Vec<Share> {
    let queued = coordinator.appends().take();
    let Some(topic) = coordinator.topic() else {
        for append in queued {
            coordinator.appended(&[append.ticket], Err(ErrorCode::UnknownTopicOrPartition));
        }
        return Vec::new();
    };
    let shard = coordinator.shard();
    let image = shard.image();
    let batch_bytes_max = BATCH_BYTES_MAX.min(message_bytes_max(coordinator, &image));
    let round = Round { image: &image, batch_bytes_max, now: clock::wall() };
    let mut shares: Vec<Share> = Vec::new();
    for Queued { partition, content, ticket } in queued {
        // What is queued is of the present leadership: the end of one takes it away.
        let Some(epoch) = coordinator.epoch(partition) else {
            coordinator.appended(&[ticket], Err(ErrorCode::NotLeaderOrFollower));
            continue;
        };
        let key = PartitionKey { topic, partition };
        let owner = shard.owner(key);
        let at = shares.iter().position(|share| share.owner == owner).unwrap_or_else(|| {
            shares.push(Share { owner, parts: Vec::new() });
            shares.len() - 1
        });
        round.put(&mut shares[at].parts, (key, epoch), content).tickets.push(ticket);
    }
    shares
}

/// `max.message.bytes` of the topic: a batch above it is refused, though each of its writes alone would be taken.
fn message_bytes_max<C: Appending>(coordinator: &Rc<C>, image: &Image) -> usize {
    let known = &coordinator.appends().message_bytes_max;
    if let Some((version, bytes)) = known.get()
        && version == image.version()
    {
        return bytes;
    }
    let shard = coordinator.shard();
    let broker = image.overrides(&ConfigResource::Broker(shard.settings().broker));
    let default = image.overrides(&ConfigResource::BrokerDefault);
    let topic = image.overrides(&ConfigResource::Topic(C::TOPIC.into()));
    let bytes = shard.config().levels(broker, default).message_bytes_max(topic) as usize;
    known.set(Some((image.version(), bytes)));
    bytes
}

impl Round<'_> {
    /// Adds to the last batch of the partition if it fits, else begins a new one.
    fn put<'a>(
        &self,
        parts: &'a mut Vec<Part>,
        (key, epoch): (PartitionKey, LeaderEpoch),
        content: Content,
    ) -> &'a mut Part {
        let new = |batch, claim| Part { key, epoch, batch, claim, tickets: Vec::new() };
        let builder = || BatchBuilder::new(Offset::ZERO, Compression::NONE);
        match content {
            Content::Records(records) => {
                let bytes = bytes_of(&records);
                let fits = |part: &Part| match &part.batch {
                    Batch::Open(batch) => batch.uncompressed_len() + bytes <= self.batch_bytes_max,
                    Batch::Made(_) => false,
                };
                let at = parts.iter().rposition(|part| part.key == key).filter(|at| fits(&parts[*at]));
                let at = at.unwrap_or_else(|| {
                    parts.push(new(Batch::Open(builder()), Claim::Unchecked));
                    parts.len() - 1
                });
                if let Batch::Open(batch) = &mut parts[at].batch {
                    append_all(batch, &records, self.now);
                }
                &mut parts[at]
            }
            Content::InTransaction { records, producer, claim } => {
                let mut batch = builder().with_producer(producer.id, producer.epoch, -1).with_transactional();
                append_all(&mut batch, &records, self.now);
                // A batch of its own, to which nothing is added.
                parts.push(new(Batch::Made(finish(batch)), claim));
                parts.last_mut().expect("it was just pushed")
            }
            Content::Marker(marker) => {
                let claim = marker_claim(marker.version, coordinator_epoch_max(self.image));
                let end = EndTxnMarker { commit: marker.commit, coordinator_epoch: marker.coordinator_epoch };
                let batch = end.to_batch(marker.producer.id, marker.producer.epoch, self.now);
                parts.push(new(Batch::Made(batch), claim));
                parts.last_mut().expect("it was just pushed")
            }
        }
    }
}

/// The highest epoch that any coordinator of transactions has had: each has that of its partition's leader.
pub(super) fn coordinator_epoch_max(image: &Image) -> i32 {
    let partitions = image.topic(TRANSACTION_STATE).into_iter().flat_map(|topic| &topic.partitions);
    // 0 where there is none: that of the first.
    partitions.map(|partition| partition.leader_epoch.0).fold(0, i32::max)
}

/// How the owner looks at the epochs of a marker.
pub(super) fn marker_claim(version: TransactionVersion, coordinator_epoch_max: i32) -> Claim {
    Claim::Marker { bumps_epoch: version.bumps_epoch(), coordinator_epoch_max }
}

/// What records take in a batch, at most.
fn bytes_of(records: &[KeyValue]) -> usize {
    let size = |record: &KeyValue| record.key.len() + record.value.as_ref().map_or(0, Bytes::len);
    records.iter().map(|record| RECORD_BYTES + size(record)).sum()
}

fn append_all(batch: &mut BatchBuilder, records: &[KeyValue], now: Timestamp) {
    for KeyValue { key, value } in records {
        batch.append(now, Some(key), value.as_deref(), &[]);
    }
}

fn finish(batch: BatchBuilder) -> Bytes {
    batch.finish().expect("a batch without compression has nothing that fails")
}

async fn send_share<C: Appending>(coordinator: &Rc<C>, share: Share) {
    let shard = coordinator.shard();
    let mut parts = Vec::with_capacity(share.parts.len());
    let mut tickets = Vec::with_capacity(share.parts.len());
    for Part { key, epoch, batch, claim, tickets: of_part } in share.parts {
        let records = match batch {
            Batch::Open(batch) => finish(batch),
            Batch::Made(bytes) => bytes,
        };
        parts.push(AppendPart { key, epoch, records, claim });
        tickets.push(of_part);
    }
    let request = AppendRequest {
        parts,
        acks: Acks::All,
        origin: Origin::Coordinator,
        produce_version: PRODUCE_VERSION,
        timeout: coordinator.timeout(),
    };
    let pending = shard.send(share.owner, Request::Append(request)).await;
    if share.owner == shard.id() {
        shard.end_turn();
    }
    spawn(Queue::Control, "coordinator append", finish_share(coordinator.clone(), pending, tickets)).detach();
}

async fn finish_share<C: Appending>(coordinator: Rc<C>, pending: PendingReply, tickets: Vec<Vec<Ticket>>) {
    let Reply::Append(reply) = pending.await else {
        crate::base::fatal("an append got another request's answer");
    };
    for (tickets, result) in tickets.iter().zip(reply.parts) {
        coordinator.appended(tickets, result.map(|answer| answer.base_offset).map_err(failure_code));
    }
}

pub(super) fn failure_code(failure: AppendFailure) -> ErrorCode {
    match failure {
        AppendFailure::Code(code) => code,
        AppendFailure::Records(error) => error.code,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, pending, ready};
    use std::task::{Context, Waker};

    use super::*;
    use crate::base::{ProducerEpoch, ProducerId};
    use crate::coordinator::transactions::{Marker, Producer};

    const PRODUCER: Producer = Producer { id: ProducerId(7), epoch: ProducerEpoch(1) };

    fn commit(bytes: usize) -> Content {
        Content::Records(records(bytes))
    }

    fn records(bytes: usize) -> Vec<KeyValue> {
        let value = Some(Bytes::from(vec![1; bytes]));
        vec![KeyValue { key: Bytes::from_static(b"key"), value }]
    }

    fn in_transaction() -> Content {
        Content::InTransaction { records: records(10), producer: PRODUCER, claim: Claim::Open }
    }

    fn marker() -> Content {
        Content::Marker(Marker {
            producer: PRODUCER,
            commit: true,
            coordinator_epoch: 0,
            version: TransactionVersion::V2,
        })
    }

    /// The appends that one round makes of what is queued for these partitions: the partition, the tickets, the bytes.
    fn round(batch_bytes_max: usize, queued: Vec<(i32, Content)>) -> Vec<(i32, Vec<u64>, usize)> {
        let appends = Appends::new();
        for (ticket, (partition, content)) in queued.into_iter().enumerate() {
            appends.push(PartitionIndex(partition), content, Ticket(ticket as u64));
        }
        let image = Image::default();
        let round = Round { image: &image, batch_bytes_max, now: Timestamp(5) };
        let mut parts = Vec::new();
        for Queued { partition, content, ticket } in appends.take() {
            let key = PartitionKey { topic: TopicId::ZERO, partition };
            round.put(&mut parts, (key, LeaderEpoch(0)), content).tickets.push(ticket);
        }
        let made = parts.into_iter().map(|part| {
            let bytes = match part.batch {
                Batch::Open(batch) => finish(batch).len(),
                Batch::Made(bytes) => bytes.len(),
            };
            (part.key.partition.0, part.tickets.iter().map(|ticket| ticket.0).collect(), bytes)
        });
        made.collect()
    }

    fn tickets(made: Vec<(i32, Vec<u64>, usize)>) -> Vec<(i32, Vec<u64>)> {
        made.into_iter().map(|(partition, tickets, _)| (partition, tickets)).collect()
    }

    #[test]
    fn commits_that_are_ready_together_are_one_append_to_each_partition() {
        let queued = (0..100).map(|number| (number % 4, commit(100))).collect();
        let made = tickets(round(BATCH_BYTES_MAX, queued));
        let expected: Vec<(i32, Vec<u64>)> = (0..4)
            .map(|partition| (partition, (0..25).map(|row| 4 * row + partition as u64).collect()))
            .collect();
        assert_eq!(made, expected, "25 commits in each, in their order");
    }

    #[test]
    fn one_that_is_alone_is_one_append() {
        assert_eq!(tickets(round(BATCH_BYTES_MAX, vec![(3, commit(100))])), [(3, vec![0])]);
    }

    #[test]
    fn what_a_transaction_writes_shares_no_batch_and_is_not_overtaken() {
        let queued = vec![
            (0, commit(10)),
            (0, commit(10)),
            (0, in_transaction()),
            (1, commit(10)),
            (0, in_transaction()),
            (0, commit(10)),
            (0, marker()),
            (0, commit(10)),
            (0, commit(10)),
        ];
        let expected = [
            (0, vec![0, 1]),
            (0, vec![2]),
            (1, vec![3]),
            (0, vec![4]),
            (0, vec![5]),
            (0, vec![6]),
            (0, vec![7, 8]),
        ];
        assert_eq!(tickets(round(BATCH_BYTES_MAX, queued)), expected);
    }

    #[test]
    fn a_batch_is_not_made_longer_than_the_topic_takes() {
        let bytes_max = 1000;
        let queued = [400, 400, 400, 5000, 10, 100, 880].map(|bytes| (0, commit(bytes))).to_vec();
        let made = round(bytes_max, queued);
        let grouped: Vec<&[u64]> = made.iter().map(|(_, tickets, _)| &tickets[..]).collect();
        // What is too long by itself fails alone.
        assert_eq!(grouped, [&[0, 1][..], &[2], &[3], &[4, 5], &[6]]);
        for (_, tickets, bytes) in made {
            assert!(bytes <= bytes_max || tickets == [3], "{tickets:?}: {bytes}");
        }
    }

    #[test]
    fn many_short_records_are_not_made_longer_than_the_topic_takes() {
        let made = round(10_000, (0..2000).map(|_| (0, commit(0))).collect());
        assert!(made.len() > 1 && made.iter().all(|(_, _, bytes)| *bytes <= 10_000));
    }

    #[test]
    fn what_is_queued_is_sent_at_once_where_there_is_no_linger() {
        let appends = Appends::new();
        let mut gathered = pin!(appends.gathered(|| None::<Ready<()>>));
        let mut context = Context::from_waker(Waker::noop());
        assert!(gathered.as_mut().poll(&mut context).is_pending(), "there is nothing");
        appends.push(PartitionIndex(0), commit(10), Ticket(0));
        assert!(gathered.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn what_is_queued_waits_for_the_linger_unless_it_is_a_transactions_or_enough() {
        let mut context = Context::from_waker(Waker::noop());
        let full = commit(BATCH_BYTES_MAX);
        for hurried in [in_transaction(), marker(), full] {
            let appends = Appends::new();
            let mut gathered = pin!(appends.gathered(|| Some(pending::<()>())));
            for ticket in 0..3 {
                appends.push(PartitionIndex(0), commit(10), Ticket(ticket));
                assert!(gathered.as_mut().poll(&mut context).is_pending(), "it lingers");
            }
            appends.push(PartitionIndex(1), hurried, Ticket(3));
            assert!(gathered.as_mut().poll(&mut context).is_ready());
            assert_eq!(appends.take().len(), 4);
            let mut next = pin!(appends.gathered(|| Some(pending::<()>())));
            appends.push(PartitionIndex(0), commit(10), Ticket(4));
            assert!(next.as_mut().poll(&mut context).is_pending(), "the next ones linger again");
        }
        let appends = Appends::new();
        appends.push(PartitionIndex(0), commit(10), Ticket(0));
        let mut gathered = pin!(appends.gathered(|| Some(ready(()))));
        assert!(gathered.as_mut().poll(&mut context).is_ready(), "the linger is over");
    }
}
