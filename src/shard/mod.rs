//! A shard: one executor on one core with its partitions, its timing wheel and its lanes to the other
//! shards. Nothing here is shared with another shard; what crosses is a message of [`messages`].
//!
//! [`Shard::send`] is the one road to a partition, whichever shard owns it: the owner's part of it runs at
//! once when that is this shard, and through the mesh when it is another. A turn ends with
//! [`Shard::end_turn`], which writes every batch that was queued in it, one write per partition.

mod addresses;
mod appends;
mod checkpoint;
mod cleaner;
mod commit;
mod deletions;
mod directories;
mod faults;
mod fetches;
mod figures;
mod follow;
mod intake;
pub mod isr;
mod jobs;
mod lifecycle;
mod mesh;
pub mod messages;
mod moves;
mod parked;
mod placement;
mod pump;
mod queries;
mod quotas;
mod replica;
mod replication_quotas;
mod requests;
pub mod roles;
mod scrub;
mod share_fetch;
mod shares;
mod space;
mod throttle;
mod timers;
mod whereabouts;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

pub use crate::partition::Cut;
pub use checkpoint::write_last_checkpoints;
pub use cleaner::{Cleaner, CleanerCounters, start_cleaner};
pub use commit::CommitService;
pub use directories::{Directories, Directory, DiskCounts, StartEntry, StartList};
pub use figures::{Detail, Figures, LogFigures, PartitionFigures, WantedFigures};
pub use follow::{NotAppended, Received};
pub use mesh::{CallHandle, Lanes, PendingReply, ReplyTo, lanes};
pub use placement::{PartitionKey, owner};
pub use quotas::QuotaMeters;
pub use replication_quotas::{ReplicationEnd, ReplicationMeters};
pub use requests::{ApiRecorded, Phase, RequestFigures};
pub use space::Space;

use futures::channel::oneshot;

use self::messages::{ControlRequest, Reply, Request};
use self::replica::Replica;
use crate::base::{BrokerId, Budget, Counter, Histogram, Offset, ShardId};
use crate::config::{BrokerConfig, LogConfig};
use crate::io::chunk::ChunkPool;
use crate::io::runtime::{Notify, work};
use crate::metadata::Image;
use crate::partition::{Brokers, Slots};
use crate::peer::Greetings;
use crate::wire::beat::Beat;

/// What a shard is made of, the same for every shard of the process.
#[derive(Clone)]
pub struct Settings {
    pub broker: BrokerId,
    pub config: Arc<BrokerConfig>,
    pub directories: Arc<Directories>,
    /// How this broker makes itself known to others; `None` where it is alone.
    pub greetings: Option<Arc<Greetings>>,
    pub controller: Arc<ControllerNote>,
    /// How fast clients with quotas are.
    pub quotas: Arc<QuotaMeters>,
    /// How fast throttled partitions are replicated.
    pub replication: Arc<ReplicationMeters>,
}

/// Who the controller of a cluster is, as far as this node knows; shard 0 notes it. Nobody, on a node alone.
#[derive(Debug)]
pub struct ControllerNote(AtomicI32);

impl Default for ControllerNote {
    fn default() -> Self {
        Self(AtomicI32::new(NO_CONTROLLER))
    }
}

const NO_CONTROLLER: i32 = -1;

impl ControllerNote {
    pub fn note(&self, node: Option<BrokerId>) {
        self.0.store(node.map_or(NO_CONTROLLER, |node| node.0), Ordering::Relaxed);
    }

    pub fn node(&self) -> Option<BrokerId> {
        Some(BrokerId(self.0.load(Ordering::Relaxed))).filter(|node| node.0 != NO_CONTROLLER)
    }
}

crate::counters! {
    /// Figures of one shard. A new line here is exported; `docs/METRICS.md` tells how.
    pub struct Counters of Counter {
        /// Bytes received from clients, whatever they are.
        pub bytes_in: total "kuring_network_received_bytes_total",
        /// Bytes sent to clients, whatever they are.
        pub bytes_out: total "kuring_network_sent_bytes_total",
        /// Request frames received, the malformed ones too.
        pub requests: total "kuring_network_request_frames_total",
        /// Connections that went over to another shard: producers' and followers' to that of their partitions, group
        /// members' to the coordinator's.
        pub connections_moved: total "kuring_connections_moved_total",
        /// Heartbeats of group members that were answered in the look that found them, without their connection's task.
        pub beats_at_rest: total "kuring_heartbeats_at_rest_total",
        /// Batches that were appended or refused.
        pub appended_batches: total "kuring_append_batches_total",
        /// Records appended to logs.
        pub appended_records: total "kuring_append_records_total",
        /// Bytes of record batches appended to logs.
        pub appended_bytes: total "kuring_append_bytes_total",
        /// Records that followers of this shard have got from their leaders.
        pub replicated_records: total "kuring_replica_append_records_total",
        /// Bytes of record batches that followers of this shard have got from their leaders.
        pub replicated_bytes: total "kuring_replica_append_bytes_total",
        /// Times that a leader found followers that had fallen behind.
        pub isr_shrinks: total "kuring_isr_shrinks_total",
        /// Times that a leader found a follower that has come to be in sync.
        pub isr_expands: total "kuring_isr_expands_total",
        /// Times that a follower's log was cut where it parted from its leader's.
        pub truncations: total "kuring_replica_truncations_total",
        /// Of those, the ones that took records below the follower's high watermark: records were lost.
        pub truncations_below_high_watermark: total "kuring_replica_truncations_below_high_watermark_total",
        /// Bytes of record batches that fetches were answered with.
        pub fetched_bytes: total "kuring_fetch_bytes_total",
        /// Fetches that waited for more to read.
        pub fetches_parked: total "kuring_fetch_parked_total",
        /// A fetch found as many waiting on its shard as may wait and was answered at once.
        pub fetches_refused: limit "parked_fetches",
        /// Records that members of share groups got.
        pub share_acquired_records: total "kuring_share_acquired_records_total",
        /// Acknowledgements of records by members of share groups, one for each partition of a request.
        pub share_acknowledgements: total "kuring_share_acknowledgements_total",
        /// Times that locks on records ended before their members acknowledged them.
        pub share_locks_expired: total "kuring_share_locks_expired_total",
        /// A share fetch found as many waiting on its shard as may wait and was answered at once.
        pub share_fetches_refused: limit "share_fetches",
        /// A share group's partition was asked for while as many as may be were in memory, all of them in use.
        pub share_partitions_refused: limit "share_partitions",
        /// A share session was to be opened while as many as may be were open.
        pub share_sessions_refused: limit "share_sessions",
        /// Produce requests after which their clients had to wait, because of producer_byte_rate.
        pub throttled_producer_byte_rate: total "kuring_throttled_producer_byte_rate_total",
        /// Fetches that were answered empty, or after which their clients had to wait, because of consumer_byte_rate.
        pub throttled_consumer_byte_rate: total "kuring_throttled_consumer_byte_rate_total",
        /// Requests after which their clients had to wait, because of request_percentage.
        pub throttled_request_percentage: total "kuring_throttled_request_percentage_total",
        /// Requests after which their clients had to wait, because of controller_mutation_rate.
        pub throttled_controller_mutation_rate: total "kuring_throttled_controller_mutation_rate_total",
        /// Times that a leader gave a follower nothing of a partition, because of leader.replication.throttled.rate.
        pub replication_held_leader: total "kuring_replication_held_leader_total",
        /// Times that a follower did not ask for a partition, because of follower.replication.throttled.rate.
        pub replication_held_follower: total "kuring_replication_held_follower_total",
        /// Requests that took kuring.request.log.slow.ms or longer.
        pub slow_requests: total "kuring_slow_requests_total",
        /// A DeleteRecords request found as many waiting on its shard as may wait: it was answered with
        /// REQUEST_TIMED_OUT at once.
        pub deletions_refused: limit "record_deletions",
        /// Produce requests whose acknowledgement did not come in their time.
        pub append_timeouts: total "kuring_append_timeouts_total",
        /// A connection was silent for connections.max.idle.ms.
        pub idle_connections: limit "idle_connections",
        /// A connection brought no first request in kuring.connection.first.request.ms.
        pub late_first_requests: limit "first_requests",
        /// A request did not come to its end in kuring.connection.request.ms.
        pub requests_too_slow: limit "slow_requests",
        /// An answer was not taken in kuring.connection.response.ms.
        pub responses_too_slow: limit "slow_responses",
        /// A connection did not move for kuring.memory.stall.ms while others waited for the memory that it held.
        pub stalled_connections: limit "stalled_connections",
        /// A connection held a part of a request and waited for memory, as all did that held the rest of it.
        pub connections_crowded_out: limit "crowded_connections",
        /// The length of a request was none, or above socket.request.max.bytes.
        pub frames_refused: limit "request_bytes",
        /// A request was longer than its API ever needs.
        pub requests_too_long: limit "request_bytes_of_api",
        /// A request had counts or lengths beyond what was there or may be.
        pub requests_malformed: limit "request_elements",
        /// A produce request waited because its connection had kuring.connection.requests.max in service.
        pub pipelines_full: limit "connection_requests",
        /// A connection was not read because it held kuring.memory.connection.bytes of requests in service.
        pub connections_muted: limit "connection_memory",
        /// A long group request came while half of kuring.memory.serve.bytes was held.
        pub group_requests_refused: limit "group_request_memory",
        /// An answer would have been longer than ANSWER_BYTES_MAX: the rest of it are errors.
        pub answers_cut: limit "answer_bytes",
        /// A move between log directories had not begun after MOVE_BEGIN_TIME_MAX: who asked for it was told so.
        pub moves_begun_late: limit "move_begin",
        /// A partition that does not exist yet was given a log directory while PREFERRED_MAX others had one.
        pub directories_not_preferred: limit "preferred_directories",
        /// Batches and offset commits whose transaction was looked for at its coordinator.
        pub verifications: total "kuring_transaction_verifications_total",
        /// Of those, the ones that were refused.
        pub verifications_failed: total "kuring_transaction_verifications_failed_total",
        /// A transactional batch came while its log had given out as many guards as it may.
        pub verifications_refused: limit "verifications",
        /// A transaction was not found at its coordinator in the longest time that a produce request may wait for it.
        pub verifications_late: limit "verification_time",
        /// A batch decompressed to more than kuring.decompression.bytes.max or kuring.decompression.ratio.max allow.
        pub batches_too_large_decompressed: limit "decompressed_bytes",
        /// A compressed batch waited because as many of its shard as may be were half done.
        pub decompressions_postponed: limit "decompressions",
        /// A batch had more records than kuring.batch.records.max.
        pub batches_with_too_many_records: limit "batch_records",
    }
}

/// The services of shard 0, wired in by the server: the controller and the coordinators.
pub trait Control {
    /// Answers through `answer`, at once or later.
    fn handle(self: Rc<Self>, request: ControlRequest, answer: Answer);

    /// Serves a Heartbeat of a classic group if its answer is no error.
    fn classic_beat(&self, beat: &Beat) -> bool;

    /// Serves a ConsumerGroupHeartbeat if nothing has to be told or written; the interval that it is answered.
    fn consumer_beat(&self, beat: &Beat, client_id: &[u8], client_host: &str) -> Option<i32>;
}

/// The way back for an answer that is not given at once.
pub struct Answer {
    shard: Rc<Shard>,
    reply_to: ReplyTo,
}

impl Answer {
    /// The request stays here for a while: its asker may send others in its place.
    pub fn park(&mut self) {
        self.shard.mesh.park(&mut self.reply_to);
    }

    pub fn send(self, reply: Reply) {
        self.shard.mesh.push_reply(self.reply_to, reply);
    }
}

/// One shard's state. Lives on its executor and never leaves it.
pub struct Shard {
    id: ShardId,
    settings: Settings,
    mesh: mesh::Mesh,
    image: RefCell<Arc<Image>>,
    quotas: quotas::ShardQuotas,
    throttles: replication_quotas::Throttles,
    /// Ends with the openings and deletions of the last image that had some.
    publishing: RefCell<Option<oneshot::Receiver<()>>>,
    replicas: RefCell<HashMap<PartitionKey, Rc<Replica>, ahash::RandomState>>,
    /// The settings that the last log was given.
    last_log_config: RefCell<Option<Arc<LogConfig>>>,
    parked: RefCell<parked::ParkedFetches>,
    deletions: RefCell<deletions::Deletions>,
    shares: shares::Shares,
    timers: timers::Timers,
    /// Replicas with something in their queue.
    dirty: RefCell<Vec<Rc<Replica>>>,
    /// The brokers, for the partitions that have other replicas.
    brokers: Brokers,
    /// Who is to be in sync, on the way to the controller.
    proposals: isr::Proposals,
    /// In which directories replicas are, on the way to the controller.
    whereabouts: whereabouts::Whereabouts,
    /// What follows other brokers.
    follows: roles::Follows,
    /// Partitions with followers that were appended to in this turn.
    grown: RefCell<Vec<PartitionKey>>,
    /// Appends that came in this turn.
    fresh_appends: RefCell<Vec<Rc<appends::AppendInFlight>>>,
    continue_turns: Notify,
    /// For batches that lie half decompressed.
    slots: Slots,
    control: OnceCell<Rc<dyn Control>>,
    chunks: ChunkPool,
    /// Decoded requests and answers that their peers have not taken, bytes.
    serve_memory: Rc<Budget>,
    /// For the one request or answer that is beyond it.
    serve_beyond: Rc<Budget>,
    stopping: Cell<bool>,
    /// Bytes appended and not yet under a flush, all replicas together.
    unflushed_bytes: Cell<u64>,
    /// Replicas that had unflushed bytes at the last sweep or got some since.
    unflushed: RefCell<Vec<Rc<Replica>>>,
    /// The first replica came into `unflushed`.
    sweep_wanted: Notify,
    intake: RefCell<intake::Intake>,
    outlet: RefCell<intake::Outlet>,
    pub counters: Counters,
    pub requests: RequestFigures,
    /// How long flushes took.
    flushes: Histogram,
    /// Produce requests whose answers wait for more than their turn.
    appends_waiting: Cell<usize>,
}

impl Shard {
    /// Makes the shard and starts its tasks: the pump of its lanes, the wheel's timer, the sweeps.
    pub fn start(lanes: Lanes, settings: Settings) -> Rc<Self> {
        let id = lanes.me;
        let (mesh, requests, replies) = mesh::Mesh::new(lanes);
        let receive_bytes = settings.config.serving_limits.receive_bytes(mesh.shards());
        let chunks = ChunkPool::new(usize::try_from(receive_bytes).unwrap_or(usize::MAX));
        let serve_bytes = settings.config.serving_limits.serve_bytes_max;
        let serve_memory = Rc::new(Budget::new(usize::try_from(serve_bytes).unwrap_or(usize::MAX)));
        let lag_max =
            settings.config.cluster.as_ref().map_or(Duration::MAX, |cluster| cluster.replica_lag_max);
        let brokers = Brokers::new(settings.broker, lag_max);
        let shard = Rc::new(Self {
            id,
            settings,
            mesh,
            image: RefCell::new(Arc::new(Image::default())),
            quotas: quotas::ShardQuotas::default(),
            throttles: replication_quotas::Throttles::default(),
            publishing: RefCell::default(),
            replicas: RefCell::default(),
            last_log_config: RefCell::default(),
            parked: RefCell::new(parked::ParkedFetches::of_fetches(crate::base::clock::monotonic())),
            deletions: RefCell::new(deletions::waiting(crate::base::clock::monotonic())),
            shares: shares::Shares::new(),
            timers: timers::Timers::new(crate::base::clock::monotonic()),
            dirty: RefCell::default(),
            brokers,
            proposals: isr::Proposals::default(),
            whereabouts: whereabouts::Whereabouts::default(),
            follows: roles::Follows::default(),
            grown: RefCell::default(),
            fresh_appends: RefCell::default(),
            continue_turns: Notify::new(),
            slots: Slots::default(),
            control: OnceCell::new(),
            chunks,
            serve_memory,
            serve_beyond: Rc::new(Budget::new(1)),
            stopping: Cell::new(false),
            unflushed_bytes: Cell::new(0),
            unflushed: RefCell::default(),
            sweep_wanted: Notify::new(),
            intake: RefCell::default(),
            outlet: RefCell::default(),
            counters: Counters::new(),
            requests: RequestFigures::new(),
            flushes: Histogram::default(),
            appends_waiting: Cell::new(0),
        });
        pump::start(&shard, requests, replies);
        timers::start(&shard);
        jobs::start_sweeps(&shard);
        scrub::start(&shard);
        if shard.settings.greetings.is_some() {
            isr::start_sweep(&shard);
        }
        shard
    }

    pub fn id(&self) -> ShardId {
        self.id
    }

    pub fn shards(&self) -> u16 {
        self.mesh.shards()
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn config(&self) -> &Arc<BrokerConfig> {
        &self.settings.config
    }

    /// The cluster as this shard knows it now.
    pub fn image(&self) -> Arc<Image> {
        self.image.borrow().clone()
    }

    pub fn owner(&self, key: PartitionKey) -> ShardId {
        placement::owner(key, self.mesh.shards())
    }

    pub fn chunks(&self) -> &ChunkPool {
        &self.chunks
    }

    pub fn serve_memory(&self) -> &Rc<Budget> {
        &self.serve_memory
    }

    /// The place of the one request or answer of this shard that takes more than its part of
    /// [`Shard::serve_memory`], and is not counted there.
    pub fn serve_beyond(&self) -> &Rc<Budget> {
        &self.serve_beyond
    }

    /// Over half of [`Shard::serve_memory`] is held: what may stay for long should not.
    pub fn is_serve_memory_tight(&self) -> bool {
        self.serve_memory.in_use() > self.serve_memory.max() / 2
    }

    /// The broker is on its way down.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Whether this shard has been so busy that the connection that asks had better leave it.
    pub fn lets_go(&self) -> bool {
        self.outlet.borrow_mut().lets_go(work().busy, crate::base::clock::monotonic())
    }

    /// That connection leaves.
    pub fn has_let_go(&self) {
        self.outlet.borrow_mut().has_let_go();
    }

    /// The least busy of the other shards, as far as they know how busy they are.
    pub async fn least_busy(self: &Rc<Self>) -> Option<ShardId> {
        let shares = self.ask_all(|| Request::BusyShare).await;
        let shares = (0..).map(ShardId).zip(shares).filter(|(shard, _)| *shard != self.id);
        let known = shares.filter_map(|(shard, reply)| match reply {
            Reply::BusyShare(share) => Some((share?, shard)),
            _ => crate::base::fatal("a question between shards got another one's answer"),
        });
        known.min_by_key(|(share, _)| *share).map(|(_, shard)| shard)
    }

    /// The services, on the shard that has them.
    pub fn control(&self) -> Option<&Rc<dyn Control>> {
        self.control.get()
    }

    /// Shard 0's services; set once by the server before anything is published.
    pub fn set_control(&self, control: Rc<dyn Control>) {
        assert!(self.control.set(control).is_ok(), "the control services are wired once");
    }

    /// Sends `request` to `to` and returns what waits for its answer. Waits itself only for a credit.
    /// Two sends of one task to one shard arrive in their order.
    pub async fn send(self: &Rc<Self>, to: ShardId, request: Request) -> PendingReply {
        if to != self.id {
            self.mesh.credit(to).await;
        }
        let (reply_to, pending) = self.mesh.open_call();
        if to == self.id {
            self.handle(reply_to, request);
        } else {
            self.mesh.push_request(to, reply_to, request);
        }
        pending
    }

    /// Sends `request` and waits for its answer; ends the turn if this shard is the owner.
    pub async fn ask(self: &Rc<Self>, to: ShardId, request: Request) -> Reply {
        let pending = self.send(to, request).await;
        if to == self.id {
            self.end_turn();
        }
        pending.await
    }

    /// Sends one request to every shard and waits for all answers, in the order of the shards.
    pub async fn ask_all(self: &Rc<Self>, make: impl Fn() -> Request) -> Vec<Reply> {
        let pending = self.send_all(make).await;
        let mut replies = Vec::with_capacity(pending.len());
        for reply in pending {
            replies.push(reply.await);
        }
        replies
    }

    /// Sends one request to every shard; what waits for the answers, in the order of the shards.
    pub async fn send_all(self: &Rc<Self>, make: impl Fn() -> Request) -> Vec<PendingReply> {
        let mut pending = Vec::with_capacity(usize::from(self.shards()));
        for to in 0..self.shards() {
            pending.push(self.send(ShardId(to), make()).await);
        }
        self.end_turn();
        pending
    }

    /// The owner's part of every request.
    fn handle(self: &Rc<Self>, reply_to: ReplyTo, request: Request) {
        match request {
            Request::Append(append) => self.append(reply_to, append),
            Request::Fetch(fetch) => self.fetch(reply_to, fetch),
            Request::HurryFetch(hurry) => {
                self.hurry_kept(&hurry);
                self.mesh.push_reply(reply_to, Reply::Done);
            }
            Request::ShareFetch(request) => self.share_fetch(reply_to, request),
            Request::ShareWait(wait) => self.share_wait(reply_to, wait),
            Request::ShareSize(size) => self.share_size(reply_to, size),
            Request::ShareRelease(release) => {
                self.release_share(release);
                self.mesh.push_reply(reply_to, Reply::Done);
            }
            Request::ShareFence(group, keys) => {
                self.fence_shares(&group, &keys);
                self.mesh.push_reply(reply_to, Reply::Done);
            }
            Request::TakeOver(cost_percent) => {
                let takes = self.intake.borrow_mut().takes(
                    cost_percent,
                    work().busy,
                    crate::base::clock::monotonic(),
                );
                self.mesh.push_reply(reply_to, Reply::TakeOver(takes));
            }
            Request::BusyShare => {
                let now = crate::base::clock::monotonic();
                let share = self.intake.borrow_mut().busy_percent(work().busy, now);
                self.mesh.push_reply(reply_to, Reply::BusyShare(share));
            }
            Request::Offsets(queries) => self.find_offsets(reply_to, queries),
            Request::EpochEnds(queries) => {
                let ends = queries.iter().map(|query| self.epoch_end(query)).collect();
                self.mesh.push_reply(reply_to, Reply::EpochEnds(ends));
            }
            Request::DeleteRecords(targets, timeout) => self.delete_records(reply_to, &targets, timeout),
            Request::AlterDirectories(targets) => self.alter_directories(reply_to, targets),
            Request::Producers { keys, producers_max } => {
                let producers = self.producers(&keys, producers_max);
                self.mesh.push_reply(reply_to, Reply::Producers(producers));
            }
            Request::Verify(queries) => {
                let verified = queries.iter().map(|query| self.verify(query)).collect();
                self.mesh.push_reply(reply_to, Reply::Verify(verified));
            }
            Request::RefuseVerified(guards) => {
                guards.iter().for_each(|guard| self.refuse_verified(guard));
                self.mesh.push_reply(reply_to, Reply::Done);
            }
            Request::LogSizes => self.mesh.push_reply(reply_to, Reply::LogSizes(self.log_sizes())),
            Request::Checkpoint => self.tell_checkpoints(reply_to),
            Request::FindCleanable => self.find_cleanable(reply_to),
            Request::Clean(request) => self.clean(reply_to, request),
            Request::Publish(image) => self.publish(reply_to, image),
            Request::DirectoryFailed(directory) => {
                self.directory_failed(directory);
                self.mesh.push_reply(reply_to, Reply::Done);
            }
            Request::LostReplicas => {
                self.mesh.push_reply(reply_to, Reply::LostReplicas(self.lost_replicas()))
            }
            Request::Stop => self.stop(reply_to),
            Request::Control(request) => {
                let answer = Answer { shard: self.clone(), reply_to };
                match self.control.get() {
                    Some(control) => control.clone().handle(request, answer),
                    None => crate::base::fatal("a control request came to a shard without the services"),
                }
            }
        }
    }

    fn replica(&self, key: PartitionKey) -> Option<Rc<Replica>> {
        self.replicas.borrow().get(&key).cloned()
    }
}

/// The log start and the high watermark where they are not known.
const NO_OFFSET: Offset = Offset(-1);
