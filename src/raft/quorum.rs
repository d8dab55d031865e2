//! [`Quorum`]: the metadata log with its controller, as the rest of the broker sees it.
//!
//! Commands wait in one queue and run one at a time: the driver asks the controller, proposes the records,
//! waits until they are durable and applied, and answers. Per kind of command it keeps how long they waited
//! and how long they ran.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{BasicNode, SnapshotPolicy};
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use super::log_files::{LogError, LogFiles};
use super::log_store::LogStore;
use super::machine::{Applied, Machine};
use super::network::NoPeers;
use super::producer_ids::ProducerIds;
use super::snapshots::{SnapshotError, Snapshots};
use super::types::{Proposal, Types};
use super::vote_file::VoteFile;
use crate::base::clock::{self, Monotonic};
use crate::base::random::Random;
use crate::base::{BrokerId, PROCESS, ProducerId, fatal};
use crate::io::Files;
use crate::io::runtime::{self, Queue, Task};
use crate::io::threads::FileThreads;
use crate::metadata::{
    Command, CommandKind, ConfigRules, Controller, ControllerSettings, IdSource, Image, Record, Refusal,
    Response, encode_records,
};
use crate::wire::ErrorCode;

/// Commands that wait for the driver; more wait at their senders, whose number the connections bound.
const COMMANDS_WAITING_MAX: usize = 256;

/// Producers that may wait for a block of ids at a time; further ones are to ask again.
const PRODUCER_ID_WAITS_MAX: usize = 4096;

/// Records, and bytes of them, in one entry of what a cluster begins with: far from what an entry may hold.
const BEGIN_RECORDS_MAX: usize = 1000;
const BEGIN_BYTES_MAX: usize = 1 << 20;

/// A fresh leader may refuse for a moment; then the command is decided anew.
const RETRIES_MAX: usize = 50;
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The longest time that a histogram tells apart; in microseconds.
const COMMAND_US_MAX: u64 = 600_000_000;

type Raft<F> = openraft::Raft<Types, Machine<F>>;

/// How the quorum is run.
pub struct Settings {
    pub node: BrokerId,
    /// Of the data directory; a log of another cluster is refused.
    pub cluster_id: String,
    /// The log's own directory; made if it is not there.
    pub dir: PathBuf,
    pub controller: ControllerSettings,
    pub ids: IdSource,
    pub random: Random,
    pub timing: Timing,
    /// How long a start waits for its own leadership. One voter needs milliseconds.
    pub leader_wait: Duration,
    /// A snapshot is written after so many entries...
    pub snapshot_entries: u64,
    /// ...or so many bytes of records since the last.
    pub snapshot_bytes: u64,
    /// What a log without a cluster begins with.
    pub begin: Begin,
    /// Called when the log cannot be written any more: nothing can be promised then.
    pub on_failure: Rc<dyn Fn(&str)>,
}

/// How a new cluster begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begin {
    /// With these records, in entries one after the other: a crash between them leaves a log that does not begin
    /// again. Nobody is told of a record before all are there.
    With(Vec<Record>),
    /// Not here: there was a cluster, and this is why it is missing.
    Never(String),
}

impl Settings {
    pub fn new(node: BrokerId, cluster_id: &str, dir: PathBuf) -> Self {
        Self {
            node,
            cluster_id: cluster_id.to_owned(),
            dir,
            controller: ControllerSettings::default(),
            ids: IdSource::Os,
            random: Random::from_os(),
            timing: Timing::default(),
            leader_wait: Duration::from_secs(10),
            snapshot_entries: 10_000,
            snapshot_bytes: 8 << 20,
            begin: Begin::With(Vec::new()),
            on_failure: Rc::new(|reason| fatal(reason)),
        }
    }
}

/// When a leader is given up. A single voter elects itself at once and needs none of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Each beat wakes the shard; 500 ms cost nothing that can be measured.
    pub heartbeat: Duration,
    /// A follower waits between these two before it stands for election.
    pub election_min: Duration,
    pub election_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            election_min: Duration::from_millis(1500),
            election_max: Duration::from_millis(3000),
        }
    }
}

/// Why the metadata cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("metadata directory {path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(
        "{path}: the metadata log starts after entry {log}, the newest readable snapshot ends at {snapshot:?}: \
         entries between them are missing"
    )]
    Gap { path: PathBuf, log: u64, snapshot: Option<u64> },
    #[error("{path} belongs to cluster {found}, not to {expected}")]
    OtherCluster { path: PathBuf, found: String, expected: String },
    #[error("node id {0} is negative")]
    NodeId(BrokerId),
    #[error("the metadata log does not start: {0}")]
    Raft(String),
    #[error("{}: {reason}", path.display())]
    NoCluster { path: PathBuf, reason: String },
    #[error("{}: its beginning was not finished", .0.display())]
    HalfBegun(PathBuf),
}

/// The handle; lives on shard 0.
pub struct Quorum {
    node: BrokerId,
    messages: mpsc::Sender<Message>,
    images: watch::Receiver<Arc<Image>>,
    times: Rc<RefCell<Times>>,
    producer_ids: Mutex<ProducerIds>,
    producer_id_waits: Cell<usize>,
}

/// A place among those who wait for a producer id.
struct Wait<'a>(&'a Cell<usize>);

impl<'a> Wait<'a> {
    /// `None` when there is none.
    fn begin(waits: &'a Cell<usize>) -> Option<Self> {
        if waits.get() >= PRODUCER_ID_WAITS_MAX {
            PROCESS.producer_ids_refused.increment();
            return None;
        }
        waits.set(waits.get() + 1);
        Some(Self(waits))
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Quorum {
    /// Opens the log in `settings.dir`, or starts a new one. When it returns, this node leads and everything
    /// that was ever acknowledged is in [`Quorum::image`].
    pub async fn open<F: Files>(
        files: F,
        threads: FileThreads,
        rules: Rc<dyn ConfigRules>,
        settings: Settings,
    ) -> Result<Rc<Quorum>, OpenError> {
        let node = u64::try_from(settings.node.0).map_err(|_| OpenError::NodeId(settings.node))?;
        let dir = settings.dir.clone();
        let read = move || load(files, dir);
        let stored = threads.run("raft-open", read).await?;
        let applied = Rc::new(RefCell::new(stored.applied));
        let (images_sender, images) = watch::channel(Arc::new(applied.borrow().state.image().clone()));
        let (store, log_task) =
            LogStore::start(threads.clone(), stored.log, stored.loaded, stored.vote_file, stored.vote);
        let first_own = store.last_log_id().map_or(1, |log_id| log_id.index + 1);
        let log = store.clone();
        let machine = Machine::new(applied.clone(), images_sender, stored.snapshots, threads);
        let config = config(&settings).map_err(|error| OpenError::Raft(error.to_string()))?;
        let raft = Raft::new(node, Arc::new(config), NoPeers, store, machine)
            .await
            .map_err(|error| OpenError::Raft(error.to_string()))?;
        lead(&raft, node, first_own, settings.leader_wait).await.map_err(OpenError::Raft)?;
        let times = Rc::new(RefCell::new(Times::default()));
        let (messages, waiting) = mpsc::channel(COMMANDS_WAITING_MAX);
        let mut driver = Driver {
            controller: Controller::new(settings.controller, rules, settings.ids, settings.random),
            raft,
            log,
            applied,
            times: times.clone(),
            log_task,
            snapshot_bytes: settings.snapshot_bytes,
            bytes_since_snapshot: 0,
            on_failure: settings.on_failure,
        };
        driver.check_cluster(&settings.cluster_id, settings.dir, settings.begin).await?;
        runtime::spawn(Queue::Control, "controller", driver.run(waiting)).detach();
        let (producer_ids, producer_id_waits) = (Mutex::new(ProducerIds::default()), Cell::new(0));
        Ok(Rc::new(Quorum { node: settings.node, messages, images, times, producer_ids, producer_id_waits }))
    }

    /// Runs a command after those that wait. When it returns `Ok` the change is on the disk and in
    /// [`Quorum::image`].
    pub async fn submit(&self, command: Command) -> Result<Response, Refusal> {
        let (reply, answer) = oneshot::channel();
        let queued = Queued { command, at: clock::monotonic(), reply };
        self.messages.send(Message::Run(queued)).await.map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// The state as of the last applied command.
    pub fn image(&self) -> Arc<Image> {
        self.images.borrow().clone()
    }

    /// Tells of each new image from here on.
    pub fn subscribe(&self) -> Images {
        Images(self.images.clone())
    }

    /// An id that no producer has or ever had. The registered broker takes them in durable blocks. When too many wait
    /// for one, the answer is COORDINATOR_LOAD_IN_PROGRESS, which is Kafka's to all of them.
    pub async fn allocate_producer_id(&self) -> Result<ProducerId, Refusal> {
        let Some(_wait) = Wait::begin(&self.producer_id_waits) else {
            let text = "Too many producers wait for an id.";
            return Err(Refusal::new(ErrorCode::CoordinatorLoadInProgress, text));
        };
        let mut ids = self.producer_ids.lock().await;
        if let Some(id) = ids.take() {
            return Ok(id);
        }
        let Some(epoch) = self.image().broker(self.node).map(|broker| broker.epoch) else {
            let text = "The broker is not registered yet.";
            return Err(Refusal::new(ErrorCode::CoordinatorLoadInProgress, text));
        };
        let command = Command::AllocateProducerIds { broker: self.node, epoch };
        ids.refill(self.submit(command).await?.producer_ids());
        ids.take().ok_or_else(|| Refusal::new(ErrorCode::UnknownServerError, "The block of ids was empty."))
    }

    /// How long commands waited and ran, for each kind that came so far.
    pub fn command_times(&self) -> Vec<CommandTimes> {
        self.times.borrow().0.values().cloned().collect()
    }

    /// Finishes the commands that wait, refuses later ones and closes the log.
    pub async fn shutdown(&self) {
        let (done, finished) = oneshot::channel();
        if self.messages.send(Message::Stop(done)).await.is_ok() {
            // An error: another call of this function got there first.
            let _ = finished.await;
        }
    }
}

/// A subscription to images. Skips those that came while nobody looked.
#[derive(Clone)]
pub struct Images(watch::Receiver<Arc<Image>>);

impl Images {
    /// Waits for an image newer than the last one seen here; `None` when the quorum was shut down.
    pub async fn changed(&mut self) -> Option<Arc<Image>> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }

    /// The current image, which then counts as seen.
    pub fn current(&mut self) -> Arc<Image> {
        self.0.borrow_and_update().clone()
    }
}

/// Microseconds from a command's arrival to its turn, and from its turn to its answer.
#[derive(Clone, Debug)]
pub struct CommandTimes {
    pub kind: CommandKind,
    pub queue_us: Histogram<u64>,
    pub run_us: Histogram<u64>,
}

#[derive(Default)]
struct Times(BTreeMap<CommandKind, CommandTimes>);

impl Times {
    fn record(&mut self, kind: CommandKind, queue: Duration, run: Duration) {
        let times = self.0.entry(kind).or_insert_with(|| {
            let empty = || match Histogram::new_with_max(COMMAND_US_MAX, 2) {
                Ok(histogram) => histogram,
                Err(error) => unreachable!("the bounds are right: {error:?}"),
            };
            CommandTimes { kind, queue_us: empty(), run_us: empty() }
        });
        times.queue_us.saturating_record(queue.as_micros() as u64);
        times.run_us.saturating_record(run.as_micros() as u64);
    }
}

struct Queued {
    command: Command,
    at: Monotonic,
    reply: oneshot::Sender<Result<Response, Refusal>>,
}

enum Message {
    Run(Queued),
    Stop(oneshot::Sender<()>),
}

/// What was found on the disk.
struct Stored<F: Files> {
    log: LogFiles<F>,
    loaded: super::log_files::Loaded,
    vote_file: VoteFile<F::File>,
    vote: Option<super::types::Vote>,
    snapshots: Snapshots<F>,
    applied: Applied,
}

// `Applied` holds an `Rc`-free state: it may come back from a file thread.
fn load<F: Files>(files: F, dir: PathBuf) -> Result<Stored<F>, OpenError> {
    let io_error = |error| OpenError::Io { path: dir.clone(), error };
    make_dir(&files, &dir).map_err(io_error)?;
    // Names that an earlier process could not make durable.
    files.sync_dir(&dir).map_err(io_error)?;
    let snapshots = Snapshots::new(files.clone(), &dir);
    snapshots.clean_up()?;
    let newest = snapshots.newest()?;
    let applied = match &newest {
        Some((meta, bytes)) => Applied::from_snapshot(meta, bytes).map_err(io_error)?,
        None => Applied::default(),
    };
    let (vote_file, vote) = VoteFile::open(&files, &dir).map_err(io_error)?;
    let (log, loaded) = LogFiles::open(files, &dir)?;
    let snapshot = applied.last.map(|log_id| log_id.index);
    if let Some(purged) = loaded.purged.map(|log_id| log_id.index).filter(|purged| Some(*purged) > snapshot) {
        return Err(OpenError::Gap { path: dir, log: purged, snapshot });
    }
    Ok(Stored { log, loaded, vote_file, vote, snapshots, applied })
}

/// Makes `dir` and what is missing above it, durably. The name of `dir` itself may have been left unsynced by
/// an earlier process.
fn make_dir(files: &impl Files, dir: &Path) -> io::Result<()> {
    let mut made = vec![dir];
    for above in dir.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        if files.exists(above)? {
            break;
        }
        made.push(above);
    }
    files.create_dir_all(dir)?;
    for path in made {
        match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => files.sync_dir(Path::new("."))?,
            Some(parent) => files.sync_dir(parent)?,
            None => {}
        }
    }
    Ok(())
}

fn config(settings: &Settings) -> Result<openraft::Config, openraft::ConfigError> {
    let ms = |duration: Duration| duration.as_millis() as u64;
    let config = openraft::Config {
        cluster_name: settings.cluster_id.clone(),
        heartbeat_interval: ms(settings.timing.heartbeat),
        election_timeout_min: ms(settings.timing.election_min),
        election_timeout_max: ms(settings.timing.election_max),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(settings.snapshot_entries),
        max_in_snapshot_log_to_keep: 0,
        // A restarted leader must not lead on from its old term: its state machines would diverge after a
        // lost tail.
        enable_leader_restore: Some(false),
        enable_pre_vote: Some(true),
        ..openraft::Config::default()
    };
    config.validate()
}

/// Makes this node the leader if it may be one alone, and waits until an entry of its own term, at
/// `first_own` or later, is applied: then all before it are.
async fn lead<F: Files>(raft: &Raft<F>, node: u64, first_own: u64, wait: Duration) -> Result<(), String> {
    let initialized = raft.is_initialized().await.map_err(|error| error.to_string())?;
    if !initialized {
        let members = BTreeMap::from([(node, BasicNode { addr: String::new() })]);
        raft.initialize(members).await.map_err(|error| error.to_string())?;
    } else if raft.voter_ids().eq([node]) {
        // Nobody else could lead: no reason to wait for a time-out.
        raft.trigger().elect(false).await.map_err(|error| error.to_string())?;
    }
    let leads = |metrics: &openraft::RaftMetrics<Types>| {
        metrics.current_leader == Some(node)
            && metrics.last_applied.is_some_and(|applied| applied.index >= first_own)
    };
    let ended = raft
        .wait(Some(wait))
        .metrics(|metrics| metrics.running_state.is_err() || leads(metrics), "leadership")
        .await
        .map_err(|error| error.to_string())?;
    ended.running_state.map_err(|error| error.to_string())?;
    if raft.voter_ids().eq([node]) {
        // Nobody to send heartbeats to, nobody else to elect: the clock of Raft only costs wakes.
        raft.runtime_config().tick(false);
    }
    Ok(())
}

/// Records in parts that an entry may hold. One record is far below that: strings of Kafka's have 32 KiB at most.
fn entries_of(records: Vec<Record>) -> Vec<Vec<Record>> {
    let mut entries: Vec<Vec<Record>> = Vec::new();
    let (mut bytes, mut scratch) = (0, Vec::new());
    for record in records {
        scratch.clear();
        encode_records(std::slice::from_ref(&record), &mut scratch);
        bytes += scratch.len();
        match entries.last_mut() {
            Some(last) if last.len() < BEGIN_RECORDS_MAX && bytes <= BEGIN_BYTES_MAX => last.push(record),
            _ => {
                bytes = scratch.len();
                entries.push(vec![record]);
            }
        }
    }
    entries
}

/// Runs the commands.
struct Driver<F: Files> {
    controller: Controller,
    raft: Raft<F>,
    log: LogStore,
    applied: Rc<RefCell<Applied>>,
    times: Rc<RefCell<Times>>,
    log_task: Task<()>,
    snapshot_bytes: u64,
    bytes_since_snapshot: u64,
    on_failure: Rc<dyn Fn(&str)>,
}

impl<F: Files> Driver<F> {
    /// Gives a new log what it begins with and, last of all, the cluster's id. Refuses the log of another cluster.
    async fn check_cluster(&mut self, expected: &str, path: PathBuf, begin: Begin) -> Result<(), OpenError> {
        let image = self.applied.borrow().state.image().clone();
        let found = image.cluster_id().to_owned();
        if found == expected {
            return Ok(());
        }
        if !found.is_empty() {
            return Err(OpenError::OtherCluster { path, found, expected: expected.to_owned() });
        }
        let records = match begin {
            Begin::With(records) => records,
            Begin::Never(reason) => return Err(OpenError::NoCluster { path, reason }),
        };
        // Records of an attempt before, which these might contradict.
        if image.topic_count() > 0 {
            return Err(OpenError::HalfBegun(path));
        }
        for records in entries_of(records) {
            self.begin(records).await?;
        }
        self.begin(vec![Record::Cluster { id: expected.to_owned() }]).await
    }

    async fn begin(&mut self, records: Vec<Record>) -> Result<(), OpenError> {
        for _ in 0..RETRIES_MAX {
            match self.propose(records.clone(), 0).await {
                Proposed::Applied => return Ok(()),
                Proposed::NotNow => runtime::sleep(RETRY_PAUSE).await,
                Proposed::Refused(refusal) => return Err(OpenError::Raft(refusal.to_string())),
            }
        }
        Err(OpenError::Raft("this node does not come to lead".to_owned()))
    }

    async fn run(mut self, mut waiting: mpsc::Receiver<Message>) {
        let mut stopped = Vec::new();
        while let Some(message) = waiting.recv().await {
            match message {
                Message::Run(queued) => {
                    let kind = queued.command.kind();
                    let started = clock::monotonic();
                    let result = self.run_command(queued.command).await;
                    let run = clock::monotonic().since(started);
                    self.times.borrow_mut().record(kind, started.since(queued.at), run);
                    // Whoever asked may be gone; the change stands all the same.
                    let _ = queued.reply.send(result);
                }
                Message::Stop(done) => {
                    stopped.push(done);
                    waiting.close();
                }
            }
        }
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!("metadata log: {error}");
        }
        drop(self.raft);
        // All that was acknowledged is written; the task would end with the last handle of the log anyway.
        self.log_task.cancel().await;
        for done in stopped {
            let _ = done.send(());
        }
    }

    async fn run_command(&mut self, command: Command) -> Result<Response, Refusal> {
        for _ in 0..RETRIES_MAX {
            let image = self.applied.borrow().state.image().clone();
            let outcome = self.controller.handle(&image, command.clone())?;
            if outcome.records.is_empty() {
                return Ok(outcome.response);
            }
            let bytes = outcome.bytes as u64;
            match self.log.reserve(bytes, command.kind().is_urgent()).await {
                Ok(true) => {}
                Ok(false) => {
                    let text = "The disk of the metadata log is full.";
                    return Err(Refusal::new(ErrorCode::KafkaStorageError, text));
                }
                // The proposal meets the same error and tells it.
                Err(error) => tracing::error!("{error}"),
            }
            match self.propose(outcome.records, bytes).await {
                Proposed::Applied => return Ok(outcome.response),
                Proposed::NotNow => runtime::sleep(RETRY_PAUSE).await,
                Proposed::Refused(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::new(ErrorCode::NotController, "This node does not come to lead."))
    }

    async fn propose(&mut self, records: Vec<Record>, bytes: u64) -> Proposed {
        match self.raft.client_write(Proposal { records: Arc::from(records) }).await {
            Ok(_) => {
                self.note_bytes(bytes).await;
                Proposed::Applied
            }
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(leader))) => match leader.leader_id {
                Some(other) if other != *self.raft.node_id() => {
                    let text = format!("The controller is node {other}.");
                    Proposed::Refused(Refusal::new(ErrorCode::NotController, text))
                }
                _ => Proposed::NotNow,
            },
            Err(RaftError::APIError(error)) => {
                Proposed::Refused(Refusal::new(ErrorCode::UnknownServerError, error.to_string()))
            }
            Err(RaftError::Fatal(error)) => {
                (self.on_failure)(&format!("the metadata log failed: {error}"));
                let text = "The metadata log failed.";
                Proposed::Refused(Refusal::new(ErrorCode::KafkaStorageError, text))
            }
        }
    }

    async fn note_bytes(&mut self, bytes: u64) {
        self.bytes_since_snapshot += bytes;
        if self.bytes_since_snapshot >= self.snapshot_bytes {
            self.bytes_since_snapshot = 0;
            if let Err(error) = self.raft.trigger().snapshot().await {
                tracing::warn!("metadata snapshot: {error}");
            }
        }
    }
}

enum Proposed {
    Applied,
    /// Nothing was proposed; the leadership is in motion.
    NotNow,
    Refused(Refusal),
}

fn stopping() -> Refusal {
    Refusal::new(ErrorCode::NotController, "The broker is shutting down.")
}

#[cfg(test)]
#[path = "quorum_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "crash_tests.rs"]
mod crash_tests;
