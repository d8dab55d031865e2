//! What crosses between shards: typed requests and their answers. Payload bytes are shared, never copied;
//! an append's answer carries them home to the shard whose receive buffer they live in.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::cleaner::{CleanEnd, CleanRequest, CleanableLogs};
use super::placement::PartitionKey;
use crate::base::clock::{Monotonic, Timestamp};
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, Offset, ProducerId, TopicPartition};
use crate::config::ShareGroupConfig;
use crate::coordinator::transactions::Producer;
use crate::coordinator::{self, share_state, transactions};
use crate::io::os::OsFiles;
use crate::log::{AbortedTransaction, Claim, FileRange, Guard, Origin, ProducerDescription, TimestampOffset};
use crate::metadata::{self, Image, Refusal};
use crate::partition::{Acks, AppendFailure, EpochEnd, Waterline};
use crate::raft::{QuorumDescription, VoterChange};
use crate::share::{AcknowledgeBatch, Acquired, Holder, Wanted};
use crate::wire::ErrorCode;

/// A request to the shard that owns something.
pub enum Request {
    Append(AppendRequest),
    Fetch(FetchRequest),
    /// Answers what is kept for the same asker, a fetch or a deletion of records, now, with what there is.
    HurryFetch(HurryFetch),
    /// Acknowledgements of records, and more of them, for a member of a share group.
    ShareFetch(ShareFetchRequest),
    /// Answered when a share fetch may find something.
    ShareWait(ShareWait),
    /// How much there is to read for a share fetch.
    ShareSize(ShareSize),
    ShareRelease(ShareRelease),
    /// The positions of a group in these partitions were changed.
    ShareFence(Arc<str>, Vec<PartitionKey>),
    Offsets(Vec<OffsetQuery>),
    EpochEnds(Vec<EpochQuery>),
    /// Answered when every replica has done it, or the time is over.
    DeleteRecords(Vec<(PartitionKey, Offset)>, Duration),
    /// Moves to other log directories, by their numbers; answered when they have begun.
    AlterDirectories(Vec<(PartitionKey, usize)>),
    /// Of the first of the partitions, as many as have no more than `producers_max` together; at least the first, if that
    /// has no more.
    Producers {
        keys: Vec<PartitionKey>,
        producers_max: usize,
    },
    /// Whether transactional batches begin their transaction in their partition.
    Verify(Vec<VerifyQuery>),
    /// The coordinator does not have these partitions in the transaction.
    RefuseVerified(Vec<RefusedGuard>),
    LogSizes,
    /// The cluster's new image; answered when this shard's partitions are as it says.
    Publish(Arc<Image>),
    /// A log directory has failed: its partitions go offline.
    DirectoryFailed(usize),
    /// The replicas that are not served because of their disk.
    LostReplicas,
    /// Tells the offsets that have changed, for the checkpoint files.
    Checkpoint,
    /// Which logs are dirty.
    FindCleanable,
    /// Compacts a log; answered when it is done.
    Clean(CleanRequest),
    /// Whether the shard takes a connection over that costs so much of a core, in percent.
    TakeOver(u32),
    /// How busy the shard is, in percent of a core, with what it has promised to take over.
    BusyShare,
    /// To shard 0: the controller and the coordinators.
    Control(ControlRequest),
    /// Closes every log; nothing is served after it.
    Stop,
}

/// The answers, each under its request's name.
pub enum Reply {
    Append(AppendReply),
    Fetch(FetchReply),
    /// In the order of the request's parts.
    ShareFetch(Vec<ShareAnswer>),
    /// Bytes.
    ShareSize(u64),
    Offsets(Vec<Result<OffsetAnswer, ErrorCode>>),
    EpochEnds(Vec<Result<EpochEnd, ErrorCode>>),
    DeleteRecords(Vec<Result<Offset, ErrorCode>>),
    AlterDirectories(Vec<Result<(), ErrorCode>>),
    Producers(Vec<Described>),
    /// No guard where the transaction is under way.
    Verify(Vec<Result<Option<Guard>, ErrorCode>>),
    LogSizes(Vec<LogSize>),
    /// To a stop: what the checkpoint files are to say.
    Checkpoint(Vec<CheckpointEntry>),
    Cleanable(CleanableLogs),
    Cleaned(CleanEnd),
    LostReplicas(Vec<PartitionKey>),
    TakeOver(bool),
    /// `None`: not measured yet.
    BusyShare(Option<u32>),
    Control(ControlReply),
    /// For requests that have nothing to tell.
    Done,
}

/// The producers of a partition; `None` where there was no room for them.
pub type Described = Result<Option<Vec<ProducerDescription>>, ErrorCode>;

pub struct AppendRequest {
    pub parts: Vec<AppendPart>,
    pub acks: Acks,
    pub origin: Origin,
    pub produce_version: i16,
    /// REQUEST_TIMED_OUT for what is not committed by then.
    pub timeout: Duration,
}

pub struct AppendPart {
    pub key: PartitionKey,
    /// The leadership that it is for; -1: any.
    pub epoch: LeaderEpoch,
    pub records: Bytes,
    pub claim: Claim,
}

pub struct AppendReply {
    /// In the order of the request's parts.
    pub parts: Vec<Result<AppendAnswer, AppendFailure>>,
    /// The payload, home again: dropping it here frees the receive buffer where it was borrowed.
    pub spent: Vec<Bytes>,
    /// How long it waited for more than its turn: for the disk, for replicas.
    pub waited: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendAnswer {
    pub base_offset: Offset,
    /// [`Timestamp::NONE`] unless the topic stamps on append.
    pub log_append_time: Timestamp,
    pub log_start: Offset,
}

pub struct FetchRequest {
    pub parts: Vec<FetchPart>,
    /// Who asks, if it is not a consumer.
    pub follower: Option<Follower>,
    pub reads: Reads,
    pub waterline: Waterline,
    pub bytes_max: u32,
    /// `None`: answer at once.
    pub wait: Option<FetchWait>,
}

/// From which replicas a fetch may read (KIP-392).
#[derive(Clone, Debug, Default)]
pub enum Reads {
    #[default]
    Leader,
    /// A consumer may read from a follower, too.
    Any,
    /// The same, and it had better read from one of these brokers than from a leader here.
    Nearer(Arc<[BrokerId]>),
}

/// A broker that follows this one, in its present registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Follower {
    pub broker: BrokerId,
    pub epoch: BrokerEpoch,
}

#[derive(Clone, Copy, Debug)]
pub struct FetchPart {
    pub key: PartitionKey,
    pub offset: Offset,
    pub bytes_max: u32,
    /// -1: not checked.
    pub current_leader_epoch: LeaderEpoch,
    /// -1: not told.
    pub last_fetched_epoch: LeaderEpoch,
    /// The follower's; -1 from a consumer.
    pub log_start: Offset,
}

/// Park the fetch until it would return `bytes_min`, an error, or `until` has come.
#[derive(Clone, Copy, Debug)]
pub struct FetchWait {
    pub bytes_min: u64,
    pub until: Monotonic,
}

pub struct HurryFetch {
    pub(super) asker: super::parked::Asker,
}

pub struct FetchReply {
    /// In the order of the request's parts.
    pub parts: Vec<FetchedPart>,
    /// How long it was parked.
    pub waited: Duration,
}

pub enum FetchedPart {
    Data(FetchedData),
    Diverging {
        epoch: LeaderEpoch,
        end: Offset,
        high_watermark: Offset,
        last_stable: Offset,
        log_start: Offset,
    },
    /// Nothing is read: the reader had better ask this follower.
    Elsewhere {
        replica: BrokerId,
        high_watermark: Offset,
        last_stable: Offset,
        log_start: Offset,
    },
    Failed {
        code: ErrorCode,
        log_start: Offset,
        high_watermark: Offset,
    },
}

pub struct FetchedData {
    pub high_watermark: Offset,
    pub last_stable: Offset,
    pub log_start: Offset,
    /// `None`: nothing to read yet.
    pub range: Option<FileRange<OsFiles>>,
    /// Length of the first batch of `range`, the least that makes progress.
    pub first_batch_bytes: u32,
    /// For a reader below the last stable offset.
    pub aborted: Option<Vec<AbortedTransaction>>,
}

impl FetchedPart {
    pub fn bytes(&self) -> u32 {
        match self {
            FetchedPart::Data(FetchedData { range: Some(range), .. }) => range.length,
            _ => 0,
        }
    }

    /// An answer that must not wait: an error, a reader that has to truncate or to go elsewhere.
    pub fn is_urgent(&self) -> bool {
        !matches!(self, FetchedPart::Data(_))
    }
}

/// One member's share fetch. It does not wait for records.
pub struct ShareFetchRequest {
    pub group: Arc<str>,
    pub holder: Holder,
    pub config: ShareGroupConfig,
    pub parts: Vec<ShareFetchPart>,
    /// Of all parts together.
    pub wanted: Wanted,
    pub bytes_max: u32,
}

pub struct ShareFetchPart {
    pub key: PartitionKey,
    pub acknowledgements: Vec<AcknowledgeBatch>,
    /// Records are wanted, too.
    pub fetches: bool,
}

/// The answer for one partition of a share fetch.
pub struct ShareAnswer {
    pub acknowledged: Result<(), ErrorCode>,
    pub fetched: Result<SharedRecords, ErrorCode>,
}

impl Default for ShareAnswer {
    fn default() -> Self {
        Self { acknowledged: Ok(()), fetched: Ok(SharedRecords::default()) }
    }
}

/// What a member got of one partition.
#[derive(Default)]
pub struct SharedRecords {
    /// Whole batches; what was not acquired is to be skipped.
    pub records: Bytes,
    /// Ascending.
    pub acquired: Vec<Acquired>,
}

pub struct ShareWait {
    pub group: Arc<str>,
    pub keys: Vec<PartitionKey>,
    pub config: ShareGroupConfig,
    pub until: Monotonic,
}

pub struct ShareSize {
    pub group: Arc<str>,
    pub keys: Vec<PartitionKey>,
    pub config: ShareGroupConfig,
    /// Whether there is more than that does not matter.
    pub bytes_wanted: u32,
}

/// The end of a share session.
pub struct ShareRelease {
    pub group: Arc<str>,
    pub holder: Holder,
    pub keys: Vec<PartitionKey>,
}

/// What ListOffsets asks of one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffsetQuery {
    pub key: PartitionKey,
    pub current_leader_epoch: LeaderEpoch,
    pub target: OffsetTarget,
    pub waterline: Waterline,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OffsetTarget {
    Earliest,
    Latest,
    /// One that depends on a remote tier: there is none.
    Tiered,
    /// The record with the largest timestamp (KIP-734).
    MaxTimestamp,
    /// The first record at or after a time.
    At(Timestamp),
}

/// `found` is `None` where no record answers (offset and timestamp -1 on the wire).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffsetAnswer {
    pub found: Option<TimestampOffset>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochQuery {
    pub key: PartitionKey,
    pub current_leader_epoch: LeaderEpoch,
    pub epoch: LeaderEpoch,
}

/// A transactional batch that is about to be appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifyQuery {
    pub key: PartitionKey,
    pub producer: Producer,
    pub sequence: i32,
    /// The client speaks transactions v2 (KIP-890).
    pub bumps_epoch: bool,
}

/// What the answer to a [`VerifyQuery`] was good for, and is no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusedGuard {
    pub key: PartitionKey,
    pub producer: ProducerId,
    pub guard: Guard,
    /// The same is not to be asked again.
    pub is_final: bool,
}

/// The size of one partition's log, for DescribeLogDirs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSize {
    pub directory: usize,
    pub topic_partition: TopicPartition,
    pub bytes: u64,
    /// It is a copy on its way here, so many records behind.
    pub future_lag: Option<i64>,
}

/// One line in each of a directory's checkpoint files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointEntry {
    pub directory: usize,
    pub topic_partition: TopicPartition,
    pub offsets: CheckpointOffsets,
}

/// What the checkpoint files say of one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointOffsets {
    /// `None`: it was lost, and nothing was made durable since that could take its place.
    pub recovery_point: Option<Offset>,
    pub high_watermark: Offset,
    pub log_start: Offset,
    /// `None`: it was never compacted.
    pub cleaned: Option<Offset>,
}

/// What only shard 0 can answer.
pub enum ControlRequest {
    /// A change of the metadata: durable and applied on every shard when it is answered.
    Command(metadata::Command),
    /// A producer id that no one had before, ever.
    ProducerId,
    /// What the leader of the metadata log tells of its voters, wherever it is.
    DescribeQuorum,
    /// Another set of voters, wherever the metadata log is led.
    ChangeVoters(VoterChange),
    /// To the group coordinator.
    Group(Box<coordinator::Request>, coordinator::Client),
    /// To the transaction coordinator.
    Transaction(Box<transactions::Request>),
    /// To the coordinator of the transactional id, here or on another broker: of the partitions of a transaction alone.
    TransactionAnywhere(Box<transactions::Request>),
    /// To the share coordinator of the share partition, here or on another broker.
    ShareState(Box<share_state::Request>),
    /// To the share coordinator of this node.
    ShareStateHere(Box<share_state::Request>),
}

pub enum ControlReply {
    Command(Result<metadata::Response, Refusal>),
    ProducerId(Result<ProducerId, Refusal>),
    /// `None`: nobody leads.
    Quorum(Option<QuorumDescription>),
    VotersChanged(Result<(), Refusal>),
    Group(Box<coordinator::Response>),
    Transaction(Box<transactions::Response>),
    ShareState(Box<share_state::Response>),
}
