//! The queue of commands before the controller: one runs at a time, is decided on the image as it then is, proposed,
//! and answered when its records are durable and applied.
//!
//! In a cluster a command runs only while this node leads, and its records are proposed for that leadership alone: a
//! node that lost it in between writes nothing. One whose fate is not known within [`ClusterLeader::commit_wait`] is
//! answered so, and none is decided after it until it is known.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use hdrhistogram::Histogram;
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use openraft::type_config::alias::OneshotReceiverOf;
use tokio::sync::{mpsc, oneshot};

use super::leadership::{self, Leadership, Metrics, Raft};
use super::log_store::LogStore;
use super::machine::Applied;
use super::quorum::{Begin, OpenError};
use super::raise;
use super::types::{CommittedLeaderId, Proposal, Seat, Types};
use super::voters::Reconfigure;
use crate::base::clock::{self, Monotonic};
use crate::io::Files;
use crate::io::runtime::{self, Task};
use crate::metadata::{
    Command, CommandKind, Controller, KRAFT, KRAFT_VERSION, Record, Refusal, Response, encode_records,
};
use crate::wire::ErrorCode;

/// Records, and bytes of them, in one entry of what a cluster begins with: far from what an entry may hold.
const BEGIN_RECORDS_MAX: usize = 1000;
const BEGIN_BYTES_MAX: usize = 1 << 20;

/// A fresh leader may refuse for a moment; then the command is decided anew.
const RETRIES_MAX: usize = 50;
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The longest time that a histogram tells apart; in microseconds.
const COMMAND_US_MAX: u64 = 600_000_000;

/// After an attempt of the controller's own that failed.
const QUIET_TIME: Duration = Duration::from_millis(100);

type Answer = OneshotReceiverOf<Types, ClientWriteResult<Types>>;

/// Microseconds from a command's arrival to its turn, and from its turn to its answer.
#[derive(Clone, Debug)]
pub struct CommandTimes {
    pub kind: CommandKind,
    pub queue_us: Histogram<u64>,
    pub run_us: Histogram<u64>,
}

#[derive(Default)]
pub struct Times(pub BTreeMap<CommandKind, CommandTimes>);

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

pub struct Queued {
    pub command: Command,
    pub at: Monotonic,
    pub reply: oneshot::Sender<Result<Response, Refusal>>,
}

pub enum Message {
    Run(Queued),
    /// This node has begun to lead.
    Lead,
    Stop(oneshot::Sender<()>),
}

/// Runs the commands.
pub struct Driver<F: Files> {
    pub controller: Controller,
    pub raft: Raft<F>,
    pub metrics: Metrics,
    pub log: LogStore,
    pub applied: Rc<RefCell<Applied>>,
    pub times: Rc<RefCell<Times>>,
    pub log_task: Task<()>,
    pub snapshot_bytes: u64,
    pub bytes_since_snapshot: u64,
    pub on_failure: Rc<dyn Fn(&str)>,
    /// Of a node among others.
    pub cluster: Option<ClusterLeader>,
    /// The controller asks nothing of itself before that.
    pub quiet_until: Monotonic,
}

/// What a leader needs to know in a cluster.
pub struct ClusterLeader {
    pub cluster_id: String,
    pub voters: Rc<dyn Reconfigure>,
    /// The cluster begins as one whose voters may change.
    pub voters_change: bool,
    pub commit_wait: Duration,
    /// How long a stop waits until another leads.
    pub hand_over_wait: Duration,
    /// Proposed, and neither committed nor lost.
    pub undecided: Option<Undecided>,
    /// A leader that has not heard of a quorum for so long keeps nobody alive.
    pub lease: Duration,
    /// Of the leadership for which the controller knows its brokers' sessions.
    pub active_term: Option<u64>,
}

/// A proposal whose fate is to come.
pub struct Undecided(Answer);

impl<F: Files> Driver<F> {
    /// Gives a new log what it begins with and, last of all, the cluster's id. Refuses the log of another cluster.
    pub async fn check_cluster(
        &mut self,
        expected: &str,
        path: PathBuf,
        begin: Begin,
    ) -> Result<(), OpenError> {
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
            let term = Leadership::of(&self.metrics).term;
            match self.propose(term, records.clone(), 0).await {
                Proposed::Applied => return Ok(()),
                Proposed::NotNow => runtime::sleep(RETRY_PAUSE).await,
                Proposed::Refused(refusal) => return Err(OpenError::Raft(refusal.to_string())),
            }
        }
        Err(OpenError::Raft("this node does not come to lead".to_owned()))
    }

    pub async fn run(mut self, mut waiting: mpsc::Receiver<Message>) {
        let mut stopped = Vec::new();
        loop {
            let message = match self.next_turn(&mut waiting).await {
                Turn::Message(message) => message,
                Turn::Due(due) => {
                    self.run_due(due).await;
                    continue;
                }
                Turn::Closed => break,
            };
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
                Message::Lead => {
                    self.activate(Leadership::of(&self.metrics));
                    self.begin_cluster().await;
                }
                Message::Stop(done) => {
                    stopped.push(done);
                    waiting.close();
                }
            }
        }
        self.hand_over().await;
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

    /// What comes first: what the controller asks of itself, then the queue.
    async fn next_turn(&self, waiting: &mut mpsc::Receiver<Message>) -> Turn {
        let of = |message: Option<Message>| message.map_or(Turn::Closed, Turn::Message);
        let Some(due) = self.next_due() else { return of(waiting.recv().await) };
        let now = clock::monotonic();
        if due <= now {
            return Turn::Due(due);
        }
        match select(pin!(waiting.recv()), pin!(runtime::sleep(due.since(now)))).await {
            Either::Left((message, _)) => of(message),
            Either::Right(_) => Turn::Due(due),
        }
    }

    fn next_due(&self) -> Option<Monotonic> {
        let active = self.cluster.as_ref()?.active_term?;
        let leadership = Leadership::of(&self.metrics);
        if !leadership.is_own || leadership.term != active {
            return None;
        }
        let due = self.controller.next_due(self.applied.borrow().state.image())?;
        Some(due.max(self.quiet_until))
    }

    async fn run_due(&mut self, due: Monotonic) {
        let now = clock::monotonic();
        self.controller.sessions().borrow_mut().forgive(due, now);
        let command = self.controller.due(self.applied.borrow().state.image(), now);
        let Some(command) = command else { return };
        let kind = command.kind();
        match &command {
            Command::FenceBroker { id, .. } => tracing::warn!(broker = %id, "a broker's session is over"),
            Command::ElectUnclean => {
                tracing::warn!(
                    "partitions without a leader get one that may lack records, as their settings say"
                );
            }
            other => tracing::info!(kind = other.kind().name(), "the controller acts by itself"),
        }
        let result = match self.has_quorum() {
            true => self.run_command(command).await,
            false => Err(no_quorum()),
        };
        let ended = clock::monotonic();
        self.times.borrow_mut().record(kind, now.since(due), ended.since(now));
        if let Err(refusal) = result {
            tracing::warn!("the controller's own command failed: {refusal}");
            self.quiet_until = ended.plus(QUIET_TIME);
        }
    }

    /// What the controller keeps in memory begins anew with each leadership of this node.
    fn activate(&mut self, leadership: Leadership) {
        let Some(cluster) = &mut self.cluster else { return };
        if leadership.is_own && cluster.active_term != Some(leadership.term) {
            cluster.active_term = Some(leadership.term);
            let applied = self.applied.borrow();
            self.controller.activate(applied.state.image(), clock::monotonic());
        }
    }

    /// Whether a quorum has answered this leader a moment ago: another may lead else.
    fn has_quorum(&self) -> bool {
        let Some(cluster) = &self.cluster else { return true };
        leadership::is_heard(&self.metrics.borrow_watched(), cluster.lease)
    }

    async fn run_command(&mut self, command: Command) -> Result<Response, Refusal> {
        self.await_undecided().await?;
        for _ in 0..RETRIES_MAX {
            // Before the image: one that is decided on a later leadership's image is not proposed for this one.
            let leadership = Leadership::of(&self.metrics);
            if self.cluster.is_some() && !leadership.is_own {
                return Err(not_controller(leadership));
            }
            self.activate(leadership);
            if !self.has_begun() {
                // It may have come before the news that this node leads.
                self.begin_cluster().await;
                if !self.has_begun() {
                    let text = "The cluster has not begun yet.";
                    return Err(Refusal::new(ErrorCode::NotController, text));
                }
            }
            let image = self.applied.borrow().state.image().clone();
            let outcome = self.controller.handle(&image, command.clone(), clock::monotonic())?;
            if let Some(validate_only) = raise::is_asked(&command, &image) {
                // Nobody is told that voters change before the log says where they are.
                match &self.cluster {
                    Some(cluster) => cluster.voters.raise(validate_only).await?,
                    None => return Err(raise::alone()),
                }
            }
            if outcome.records.is_empty() {
                // It is answered out of memory alone: who is cut off from the others keeps nobody alive.
                return match command.kind() == CommandKind::Heartbeat && !self.has_quorum() {
                    true => Err(no_quorum()),
                    false => Ok(outcome.response),
                };
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
            match self.propose(leadership.term, outcome.records, bytes).await {
                Proposed::Applied => return Ok(outcome.response),
                Proposed::NotNow => runtime::sleep(RETRY_PAUSE).await,
                Proposed::Refused(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::new(ErrorCode::NotController, "This node does not come to lead."))
    }

    /// Proposes for the leadership of `term` and no other.
    async fn propose(&mut self, term: u64, records: Vec<Record>, bytes: u64) -> Proposed {
        let proposal = Proposal { records: Arc::from(records) };
        let (responder, mut answer) = ProgressResponder::complete_only();
        let write = self.raft.write(proposal).with_leader(CommittedLeaderId::from(term)).responder(responder);
        if let Err(error) = write.await {
            return self.fail(&error.to_string());
        }
        let decided = match &self.cluster {
            None => Some((&mut answer).await),
            Some(cluster) => match select(&mut answer, pin!(runtime::sleep(cluster.commit_wait))).await {
                Either::Left((result, _)) => Some(result),
                Either::Right(_) => None,
            },
        };
        let Some(result) = decided else {
            if let Some(cluster) = &mut self.cluster {
                cluster.undecided = Some(Undecided(answer));
            }
            return Proposed::Refused(undecided());
        };
        match result {
            Ok(Ok(_)) => {
                self.note_bytes(bytes).await;
                Proposed::Applied
            }
            Ok(Err(ClientWriteError::ForwardToLeader(_))) => match Leadership::of(&self.metrics) {
                leadership if self.cluster.is_some() && leadership.term != term => {
                    Proposed::Refused(not_controller(leadership))
                }
                _ => Proposed::NotNow,
            },
            // Another leader may still commit it: never to be repeated.
            Ok(Err(ClientWriteError::LogEntryDiscarded(_))) => Proposed::Refused(undecided()),
            Ok(Err(error)) => {
                Proposed::Refused(Refusal::new(ErrorCode::UnknownServerError, error.to_string()))
            }
            Err(_) => {
                let running = self.metrics.borrow_watched().running_state.clone();
                match running {
                    Err(error) => self.fail(&error.to_string()),
                    Ok(()) => self.fail("it does not answer"),
                }
            }
        }
    }

    fn fail(&self, error: &str) -> Proposed {
        (self.on_failure)(&format!("the metadata log failed: {error}"));
        Proposed::Refused(Refusal::new(ErrorCode::KafkaStorageError, "The metadata log failed."))
    }

    /// Waits for the fate of an earlier proposal: what comes is decided on what it changed.
    async fn await_undecided(&mut self) -> Result<(), Refusal> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let Some(Undecided(answer)) = &mut cluster.undecided else { return Ok(()) };
        match select(answer, pin!(runtime::sleep(cluster.commit_wait))).await {
            Either::Left(_) => {}
            Either::Right(_) => return Err(undecided()),
        }
        cluster.undecided = None;
        Ok(())
    }

    /// Whether the cluster has its id; a node alone has given it one before it takes commands.
    fn has_begun(&self) -> bool {
        self.cluster.is_none() || !self.applied.borrow().state.image().cluster_id().is_empty()
    }

    /// A cluster that is new gets its id from its first leader.
    async fn begin_cluster(&mut self) {
        let Some(cluster) = self.cluster.as_ref().filter(|_| !self.has_begun()) else { return };
        let mut records = vec![Record::Cluster { id: cluster.cluster_id.clone() }];
        if cluster.voters_change {
            records.push(Record::Feature { name: KRAFT_VERSION.to_owned(), level: KRAFT.max });
        }
        if self.await_undecided().await.is_ok()
            && let Err(error) = self.begin(records).await
        {
            // The next leader does it.
            tracing::info!("the cluster has not begun yet: {error}");
        }
    }

    /// A leader that stops makes the voter that is the furthest lead at once, not only after a lost lease.
    async fn hand_over(&self) {
        let Some(cluster) = &self.cluster else { return };
        if !Leadership::of(&self.metrics).is_own {
            return;
        }
        let Some(successor) = self.furthest() else { return };
        if self.raft.trigger().transfer_leader(successor).await.is_err() {
            return;
        }
        // It may get lost, or be refused: then the others notice by themselves.
        let until = clock::monotonic().plus(cluster.hand_over_wait);
        while Leadership::of(&self.metrics).is_own && clock::monotonic() < until {
            runtime::sleep(RETRY_PAUSE).await;
        }
    }

    fn furthest(&self) -> Option<Seat> {
        let metrics = self.metrics.borrow_watched();
        let voters = metrics.membership_config.voter_ids().filter(|seat| *seat != metrics.id);
        let matched = |seat: &Seat| metrics.replication.as_ref()?.get(seat).copied().flatten();
        voters.max_by_key(matched)
    }

    /// A node alone counts here what it appends; in a cluster every node counts what comes.
    async fn note_bytes(&mut self, bytes: u64) {
        if self.cluster.is_some() {
            return;
        }
        self.bytes_since_snapshot += bytes;
        if self.bytes_since_snapshot >= self.snapshot_bytes {
            self.bytes_since_snapshot = 0;
            if let Err(error) = self.raft.trigger().snapshot().await {
                tracing::warn!("metadata snapshot: {error}");
            }
        }
    }
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

pub fn not_controller(leadership: Leadership) -> Refusal {
    let text = match leadership.leader {
        Some(leader) => format!("The controller is node {leader}."),
        None => "There is no controller at the moment.".to_owned(),
    };
    Refusal::new(ErrorCode::NotController, text)
}

fn no_quorum() -> Refusal {
    Refusal::new(ErrorCode::NotController, "This controller does not hear of the others.")
}

fn undecided() -> Refusal {
    Refusal::new(
        ErrorCode::RequestTimedOut,
        "Whether the change is made is not known: the quorum does not answer.",
    )
}

enum Turn {
    Message(Message),
    /// The controller has something to do by itself, since this time.
    Due(Monotonic),
    Closed,
}

enum Proposed {
    Applied,
    /// Nothing was proposed; the leadership is in motion.
    NotNow,
    Refused(Refusal),
}
