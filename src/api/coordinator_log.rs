//! How the coordinators of shard 0 write and read the partitions of their topics.
//!
//! Appends of one coordinator go from one task, so that they reach the partition's owner in the coordinator's
//! order; what is queued for one partition when the task comes round becomes one batch.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::internal_topics::TRANSACTION_STATE;
use crate::base::clock;
use crate::base::{LeaderEpoch, Offset, PartitionIndex, ShardId, TopicId};
use crate::coordinator::transactions::TransactionVersion;
use crate::coordinator::{Content, KeyValue, Ticket};
use crate::io::FileHandle;
use crate::io::runtime::{Notify, Queue, spawn, yield_if_needed};
use crate::log::{Claim, Origin};
use crate::metadata::Image;
use crate::partition::{Acks, AppendFailure, Waterline};
use crate::shard::messages::{
    AppendPart, AppendRequest, FetchPart, FetchRequest, FetchedPart, Reply, Request,
};
use crate::shard::{PartitionKey, PendingReply, Shard};
use crate::wire::ErrorCode;
use crate::wire::record::{BatchBuilder, BatchView, Batches, Compression, EndTxnMarker};

/// Appends of one partition are gathered into a batch up to this.
const BATCH_BYTES_MAX: usize = 512 << 10;
/// Coordinators' batches are not looked at by version.
const PRODUCE_VERSION: i16 = 13;
/// Read at once from one partition (Kafka's buffers are five times that).
const READ_BYTES: u32 = 1 << 20;
/// How often a log that is read is looked at whether all of it is committed.
const COMMIT_POLL: Duration = Duration::from_millis(5);

/// A coordinator whose appends [`send_appends`] sends.
pub(super) trait Appending: 'static {
    fn shard(&self) -> &Rc<Shard>;

    fn appends(&self) -> &Appends;

    /// The topic, if it is there.
    fn topic(&self) -> Option<TopicId>;

    /// Under which leadership a partition is written; none when it is not led here.
    fn epoch(&self, partition: PartitionIndex) -> Option<LeaderEpoch>;

    /// How long an append may wait until it is committed.
    fn timeout(&self) -> Duration;

    /// Appends succeeded, in a batch that begins at this offset, or failed together.
    fn appended(self: &Rc<Self>, tickets: &[Ticket], result: Result<Offset, ErrorCode>);
}

/// What waits to be appended.
pub(super) struct Appends {
    queue: RefCell<VecDeque<Queued>>,
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

impl Appends {
    pub fn new() -> Self {
        Self { queue: RefCell::default(), ready: Notify::new() }
    }

    pub fn push(&self, partition: PartitionIndex, content: Content, ticket: Ticket) {
        self.queue.borrow_mut().push_back(Queued { partition, content, ticket });
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
}

/// Sends what is queued, for ever.
pub(super) async fn send_appends<C: Appending>(coordinator: Rc<C>) {
    loop {
        coordinator.appends().ready.notified().await;
        for share in take_appends(&coordinator) {
            send_share(&coordinator, share).await;
        }
    }
}

/// Gathers what is queued, one list per owner.
fn take_appends<C: Appending>(coordinator: &Rc<C>) -> Vec<Share> {
    let queued = std::mem::take(&mut *coordinator.appends().queue.borrow_mut());
    let Some(topic) = coordinator.topic() else {
        for append in queued {
            coordinator.appended(&[append.ticket], Err(ErrorCode::UnknownTopicOrPartition));
        }
        return Vec::new();
    };
    let mut shares: Vec<Share> = Vec::new();
    for Queued { partition, content, ticket } in queued {
        // What is queued is of the present leadership: the end of one takes it away.
        let Some(epoch) = coordinator.epoch(partition) else {
            coordinator.appended(&[ticket], Err(ErrorCode::NotLeaderOrFollower));
            continue;
        };
        let key = PartitionKey { topic, partition };
        let owner = coordinator.shard().owner(key);
        let at = shares.iter().position(|share| share.owner == owner).unwrap_or_else(|| {
            shares.push(Share { owner, parts: Vec::new() });
            shares.len() - 1
        });
        put(coordinator.shard(), &mut shares[at].parts, (key, epoch), content).tickets.push(ticket);
    }
    shares
}

/// Adds to the last batch of the partition if it fits, else begins a new one.
fn put<'a>(
    shard: &Shard,
    parts: &'a mut Vec<Part>,
    (key, epoch): (PartitionKey, LeaderEpoch),
    content: Content,
) -> &'a mut Part {
    let now = clock::wall();
    let new = |batch, claim| Part { key, epoch, batch, claim, tickets: Vec::new() };
    let builder = || BatchBuilder::new(Offset::ZERO, Compression::NONE);
    match content {
        Content::Records(records) => {
            let size = |record: &KeyValue| record.key.len() + record.value.as_ref().map_or(0, Bytes::len);
            let bytes: usize = records.iter().map(size).sum();
            let fits = |part: &Part| match &part.batch {
                Batch::Open(batch) => batch.uncompressed_len() + bytes <= BATCH_BYTES_MAX,
                Batch::Made(_) => false,
            };
            let at = parts.iter().rposition(|part| part.key == key).filter(|at| fits(&parts[*at]));
            let at = at.unwrap_or_else(|| {
                parts.push(new(Batch::Open(builder()), Claim::Unchecked));
                parts.len() - 1
            });
            if let Batch::Open(batch) = &mut parts[at].batch {
                append_all(batch, &records, now);
            }
            &mut parts[at]
        }
        Content::InTransaction { records, producer, claim } => {
            let mut batch = builder().with_producer(producer.id, producer.epoch, -1).with_transactional();
            append_all(&mut batch, &records, now);
            // A batch of its own, to which nothing is added.
            parts.push(new(Batch::Made(finish(batch)), claim));
            parts.last_mut().expect("it was just pushed")
        }
        Content::Marker(marker) => {
            let claim = marker_claim(marker.version, coordinator_epoch_max(&shard.image()));
            let end = EndTxnMarker { commit: marker.commit, coordinator_epoch: marker.coordinator_epoch };
            let batch = end.to_batch(marker.producer.id, marker.producer.epoch, now);
            parts.push(new(Batch::Made(batch), claim));
            parts.last_mut().expect("it was just pushed")
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

fn append_all(batch: &mut BatchBuilder, records: &[KeyValue], now: clock::Timestamp) {
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

/// Why a partition could not be read for now.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("{0}")]
    Answer(ErrorCode),
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error("the batch at offset {0} is broken: {1}")]
    Batch(Offset, String),
}

impl LoadError {
    /// The partition is not led as it was thought, or not yet: the shard that owns it has another image.
    pub fn is_of_leadership(&self) -> bool {
        use ErrorCode::{FencedLeaderEpoch, NotLeaderOrFollower, UnknownLeaderEpoch};
        matches!(self, Self::Answer(NotLeaderOrFollower | FencedLeaderEpoch | UnknownLeaderEpoch))
    }

    pub fn broken(batch: &BatchView<'_>, error: &dyn std::fmt::Display) -> Self {
        LoadError::Batch(batch.head().base_offset(), error.to_string())
    }
}

/// Reads a partition, as its leader in this epoch, from its start to its end and gives each batch to `each`; where it
/// `awaits_commit`, returns only when all of that is committed. Ends early when `goes_on`, asked before each read, says
/// no.
pub(super) async fn read_log(
    shard: &Rc<Shard>,
    (key, epoch): (PartitionKey, LeaderEpoch),
    awaits_commit: bool,
    mut goes_on: impl FnMut() -> bool,
    mut each: impl FnMut(&BatchView<'_>) -> Result<(), LoadError>,
) -> Result<(), LoadError> {
    let mut next = Offset::ZERO;
    while goes_on() {
        let bytes = match read_more(shard, (key, epoch), &mut next).await? {
            More::Bytes(bytes) => bytes,
            More::End { high_watermark } if awaits_commit && high_watermark < next => {
                shard.sleep(COMMIT_POLL).await;
                continue;
            }
            More::End { .. } => return Ok(()),
        };
        let before = next;
        for batch in Batches::new(&bytes) {
            // The last batch of a read may be cut; the next read begins with it.
            let Ok(batch) = batch else { break };
            // A read begins with the batch that holds its offset, which may lie before it.
            if batch.head().next_offset() > next {
                each(&batch)?;
                next = batch.head().next_offset();
            }
            yield_if_needed().await;
        }
        if next == before {
            return Err(LoadError::Batch(before, "no whole batch is there".to_owned()));
        }
    }
    Ok(())
}

/// What comes next in a log.
enum More {
    Bytes(Vec<u8>),
    End { high_watermark: Offset },
}

/// The bytes from `next` on.
async fn read_more(
    shard: &Rc<Shard>,
    (key, epoch): (PartitionKey, LeaderEpoch),
    next: &mut Offset,
) -> Result<More, LoadError> {
    loop {
        let part = FetchPart {
            key,
            offset: *next,
            bytes_max: READ_BYTES,
            current_leader_epoch: epoch,
            last_fetched_epoch: LeaderEpoch::NONE,
            log_start: Offset(-1),
        };
        let request = FetchRequest {
            parts: vec![part],
            follower: None,
            waterline: Waterline::LogEnd,
            bytes_max: READ_BYTES,
            wait: None,
        };
        let Reply::Fetch(mut reply) = shard.ask(shard.owner(key), Request::Fetch(request)).await else {
            crate::base::fatal("a fetch got another request's answer");
        };
        match reply.parts.pop() {
            Some(FetchedPart::Data(data)) => {
                let Some(range) = data.range else {
                    return Ok(More::End { high_watermark: data.high_watermark });
                };
                let directory = range.file.directory();
                let threads = &shard.settings().directories.readers;
                let read = threads.run("coordinator load", move || {
                    let mut bytes = vec![0; range.length as usize];
                    let count = range.file.read_at(&mut bytes, range.position)?;
                    bytes.truncate(count);
                    Ok::<_, std::io::Error>(bytes)
                });
                let read = read.await;
                if let Err(error) = &read {
                    shard.note_send_error(directory, error);
                }
                return Ok(More::Bytes(read?));
            }
            // What lay before was deleted.
            Some(FetchedPart::Failed { code: ErrorCode::OffsetOutOfRange, log_start, .. })
                if log_start > *next =>
            {
                *next = log_start;
            }
            Some(FetchedPart::Failed { code, .. }) => return Err(LoadError::Answer(code)),
            Some(FetchedPart::Diverging { .. }) | None => {
                return Err(LoadError::Answer(ErrorCode::UnknownServerError));
            }
        }
    }
}
