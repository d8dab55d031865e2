//! [`Quorum`]: the metadata log with its controller, as the rest of the broker sees it.
//!
//! A node alone leads when [`Quorum::open`] returns. In a cluster every node has a quorum: its image follows the
//! leader's, and only the leader's takes commands. A node without a vote has one that observes ([`Quorum::observe`]).

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use openraft::SnapshotPolicy;
use openraft::async_runtime::WatchReceiver as _;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use uuid::Uuid;

use super::commands::{ClusterLeader, CommandTimes, Driver, Message, Queued, Times, not_controller};
use super::describe::{self, Followers, QuorumDescription};
use super::feed::Feed;
use super::first_voters::FirstVoter;
use super::join::{self, Joined, Seeker};
use super::leadership::{self, Leadership, Metrics, Raft};
use super::log_files::{LogError, LogFiles};
use super::log_store::LogStore;
use super::machine::{Applied, Machine};
use super::network::PeerNetworks;
use super::observer::Observer;
use super::producer_ids::ProducerIds;
use super::raise;
use super::seat_file::{KnownSeat, SeatFile};
use super::serve::{self, RaftCalls, Serve};
use super::snapshots::{SnapshotError, Snapshots};
use super::types::{Member, Seat};
use super::vote_file::VoteFile;
use super::voters::{Join, Reconfigure, VoterChange, VoterKey, Voters};
use super::word::Word;
use crate::base::clock::{self, Monotonic};
use crate::base::random::Random;
use crate::base::{BrokerId, PROCESS, ProducerId, fatal};
use crate::io::Files;
use crate::io::runtime::{self, Queue};
use crate::io::threads::FileThreads;
use crate::metadata::{
    Command, ConfigRules, Controller, ControllerSettings, IdSource, Image, Record, Refusal, Response,
    Sessions,
};
use crate::peer::{Address, Identity, Links, PeerError, PeerKey, Request};
use crate::wire::ErrorCode;

/// Commands that wait for the driver; more wait at their senders, whose number the connections bound.
const COMMANDS_WAITING_MAX: usize = 256;

/// Producers that may wait for a block of ids at a time; further ones are to ask again.
const PRODUCER_ID_WAITS_MAX: usize = 4096;

/// They stay in memory, too.
const ENTRIES_KEPT: u64 = 500;

const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(60);

/// In a cluster a proposal may stay undecided so long, and longer by four lost leases.
const COMMIT_WAIT_MIN: Duration = Duration::from_secs(2);

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
    /// The ways to the other voters; `None` for a node alone.
    pub peers: Option<Rc<Links>>,
    /// In a cluster: this node's part where voters come and go, now or later.
    pub changing: Option<ChangingVoters>,
    /// How long a start waits for its own leadership. One voter needs milliseconds.
    pub leader_wait: Duration,
    /// A snapshot is written after so many entries...
    pub snapshot_entries: u64,
    /// ...or so many bytes of records since the last.
    pub snapshot_bytes: u64,
    /// What a log without a cluster begins with; in a cluster the first leader begins with nothing.
    pub begin: Begin,
    /// In a cluster: entries that are kept behind a snapshot, for followers that are a little behind.
    pub entries_kept: u64,
    /// Called when the log cannot be written any more: nothing can be promised then.
    pub on_failure: Rc<dyn Fn(&str)>,
}

/// Of a node whose cluster's voters come and go, or may be raised to that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangingVoters {
    /// The configuration names the voters: these, until the log says that they change.
    pub are_named: bool,
    /// Where other controllers reach this one.
    pub address: Address,
    /// Those that the cluster begins with; none where this node was not told.
    pub first: Vec<FirstVoter>,
    /// This node asks for a vote when it has all of the log.
    pub joins_by_itself: bool,
    /// The leader forgets a member without a vote that it has not heard of for so long.
    pub silence_max: Duration,
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
            peers: None,
            changing: None,
            leader_wait: Duration::from_secs(10),
            snapshot_entries: 10_000,
            snapshot_bytes: 8 << 20,
            begin: Begin::With(Vec::new()),
            entries_kept: ENTRIES_KEPT,
            on_failure: Rc::new(|reason| fatal(reason)),
        }
    }
}

/// When a leader is given up. A single voter elects itself at once and needs none of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Each beat wakes the shard; 500 ms cost nothing that can be measured.
    pub heartbeat: Duration,
    /// A follower waits between these two before it stands for election; the greater is also how long the others
    /// hold a leader for alive.
    pub election_min: Duration,
    pub election_max: Duration,
}

impl Timing {
    /// With which a lost leader is replaced within about `failover`.
    pub fn of(failover: Duration) -> Self {
        Self { heartbeat: failover / 10, election_min: failover * 3 / 10, election_max: failover * 9 / 20 }
    }
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
    #[error("the metadata log has the voters {found}, controller.quorum.voters has {expected}")]
    Voters { found: String, expected: String },
    #[error(
        "this node's metadata log was in directory {pinned} and is now in {found}: a voter that lost its log must not \
         vote as the one that it was"
    )]
    Directory { pinned: Uuid, found: Uuid },
    #[error(
        "{} says that this node has voted, and its metadata log is empty: somebody has emptied it. A voter that forgets its \
         votes must not vote as the one that it was",
        .0.display()
    )]
    Emptied(PathBuf),
    #[error("{}: {reason}", path.display())]
    Identity { path: PathBuf, reason: String },
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
    images: watch::Receiver<Arc<Image>>,
    producer_ids: Mutex<ProducerIds>,
    producer_id_waits: Cell<usize>,
    part: Part,
}

/// This node's part in the quorum.
enum Part {
    Votes(Voting),
    Observes(Rc<Observer>, watch::Receiver<Leadership>),
}

/// Of a node that has the log, and may come to lead.
struct Voting {
    messages: mpsc::Sender<Message>,
    times: Rc<RefCell<Times>>,
    metrics: Metrics,
    calls: Rc<dyn Serve>,
    /// Of the controller, while this node leads.
    sessions: Rc<RefCell<Sessions>>,
    /// While this node leads, too; nobody's on a node alone.
    followers: Rc<RefCell<Followers>>,
    /// When another leader spoke last, or who leads has changed.
    heard: Rc<Cell<Monotonic>>,
    /// As [`ClusterLeader::lease`]; `None` for a node alone.
    lease: Option<Duration>,
    /// What nodes without a vote are given; a node alone has none beside it.
    feed: Option<Rc<Feed>>,
    voters: Option<Rc<dyn Reconfigure>>,
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
    /// Opens the log in `settings.dir`, or starts a new one. When it returns, a node alone leads and everything
    /// that was ever acknowledged is in [`Quorum::image`]; one of several has its log and waits for the others,
    /// whose requests go to [`Quorum::serve`].
    pub async fn open<F: Files>(
        files: F,
        threads: FileThreads,
        rules: Rc<dyn ConfigRules>,
        settings: Settings,
    ) -> Result<Rc<Quorum>, OpenError> {
        let dir = settings.dir.clone();
        let (kept, file_threads, feed_threads) = (files.clone(), threads.clone(), threads.clone());
        let read = move || load(files, dir);
        let stored = threads.run("raft-open", read).await?;
        let found = stored.applied.state.image().cluster_id();
        if settings.peers.is_some() && !found.is_empty() && found != settings.cluster_id {
            let (found, expected) = (found.to_owned(), settings.cluster_id);
            return Err(OpenError::OtherCluster { path: settings.dir, found, expected });
        }
        let identity = SeatFile { files: kept, path: identity_path(&settings.dir) };
        if settings.peers.is_some() && stored.is_new && stored.known.is_some_and(|known| !known.is_joining) {
            return Err(OpenError::Emptied(identity.path));
        }
        let seeker = settings.changing.as_ref().zip(settings.peers.as_ref()).map(|(changing, links)| {
            let key = VoterKey { node: settings.node, directory: links.identity().directory };
            let join = Join { key, address: changing.address.clone(), seat: None };
            Seeker::new(links.clone(), join)
        });
        let first = settings.changing.as_ref().map_or(&[][..], |changing| &changing.first);
        let are_named = settings.changing.as_ref().is_none_or(|changing| changing.are_named);
        // What is in the log and not known to be committed counts here: who votes is the same with it and without.
        let is_raised = stored.applied.state.image().voters_change() || raise::is_in(&stored.loaded.entries);
        let is_fixed = are_named && !is_raised;
        let (seat, mut seeker) = match seeker {
            None => (first_seat(settings.node)?, None),
            Some(mut seeker) => {
                let is_first = first.iter().any(|voter| voter.key == seeker.join.key);
                let seat = match stored.known.filter(|_| !stored.is_new) {
                    Some(known) => known.seat,
                    None if !stored.is_new || is_first || is_fixed => first_seat(settings.node)?,
                    // One that was given before is not taken: something may have been written there, and is lost.
                    None => {
                        let joins =
                            settings.changing.as_ref().is_some_and(|changing| changing.joins_by_itself);
                        let seat = seeker.find_seat(joins).await;
                        identity.write(&file_threads, &seeker.join.key, seat, true).await?;
                        seat
                    }
                };
                seeker.join.seat = Some(seat);
                (seat, Some(seeker))
            }
        };
        let applied = Rc::new(RefCell::new(stored.applied));
        let (images_sender, images) = watch::channel(Arc::new(applied.borrow().state.image().clone()));
        let (store, log_task) =
            LogStore::start(threads.clone(), stored.log, stored.loaded, stored.vote_file, stored.vote);
        let first_own = store.last_log_id().map_or(1, |log_id| log_id.index + 1);
        let log = store.clone();
        let roster = settings.peers.as_ref().map(|links| links.roster().clone());
        let machine = Machine::new(applied.clone(), images_sender, stored.snapshots, threads, roster);
        let config = config(&settings).map_err(|error| OpenError::Raft(error.to_string()))?;
        let networks = PeerNetworks {
            links: settings.peers.clone(),
            append_time_max: settings.timing.election_max.saturating_mul(2),
        };
        let raft: Raft<F> = Raft::new(seat, Arc::new(config), networks, store, machine)
            .await
            .map_err(|error| OpenError::Raft(error.to_string()))?;
        let metrics = raft.metrics();
        let (messages, waiting) = mpsc::channel(COMMANDS_WAITING_MAX);
        let followers: Rc<RefCell<Followers>> = Rc::default();
        let heard = Rc::new(Cell::new(clock::monotonic()));
        match &settings.peers {
            None => {
                let member = Member { node: settings.node, ..Member::default() };
                let led = leadership::lead(&raft, seat, member, first_own, settings.leader_wait).await;
                led.map_err(OpenError::Raft)?;
            }
            Some(links) => {
                let on_failure = settings.on_failure.clone();
                leadership::start_watching(metrics.clone(), messages.clone(), heard.clone(), on_failure);
                match is_fixed {
                    true => leadership::form(&raft, links).await?,
                    false => leadership::form_changing(&raft, links, seat, first).await?,
                }
                let key = VoterKey { node: settings.node, directory: links.identity().directory };
                let has_entries = metrics.borrow_watched().last_log_index.is_some();
                match stored.known.is_none_or(|known| known.is_joining) {
                    // An empty log beside this file has lost its entries.
                    true if has_entries => identity.write(&file_threads, &key, seat, false).await?,
                    true => identity.write_later(&raft, file_threads, key, seat, settings.on_failure.clone()),
                    false => {}
                }
                if is_fixed {
                    leadership::start_pinning(raft.clone(), links.clone());
                }
                leadership::start_trimming(raft.clone(), log.clone(), settings.snapshot_bytes);
                describe::start_noting(metrics.clone(), followers.clone());
            }
        }
        let calls: Rc<dyn Serve> = Rc::new(RaftCalls::new(raft.clone(), heard.clone()));
        let times = Rc::new(RefCell::new(Times::default()));
        let commit_wait = COMMIT_WAIT_MIN.max(settings.timing.election_max.saturating_mul(4));
        let hand_over_wait = settings.timing.election_max;
        let feed = settings.peers.as_ref().map(|links| {
            Rc::new(Feed {
                log: log.clone(),
                applied: applied.clone(),
                metrics: metrics.clone(),
                roster: links.roster().clone(),
                threads: feed_threads,
                followers: followers.clone(),
                snapshot: RefCell::default(),
            })
        });
        let voters: Option<Rc<dyn Reconfigure>> = settings.peers.as_ref().map(|links| {
            let voters = Voters {
                raft: raft.clone(),
                links: links.clone(),
                metrics: metrics.clone(),
                log: log.clone(),
                applied: applied.clone(),
                commit_wait,
                hand_over_wait,
                silence_max: settings
                    .changing
                    .as_ref()
                    .map_or(Duration::MAX, |changing| changing.silence_max),
                silent: RefCell::default(),
                is_changing: Cell::new(false),
                turn: Mutex::new(()),
            };
            Rc::new(voters) as Rc<dyn Reconfigure>
        });
        if let (Some(seeker), Some(voters), Some(changing)) = (seeker.take(), &voters, &settings.changing) {
            let fixed = is_fixed.then(|| applied.clone());
            let every = settings.timing.election_max;
            seeker.start(metrics.clone(), voters.clone(), fixed, every, changing.joins_by_itself);
        }
        let cluster = voters.clone().map(|voters| ClusterLeader {
            cluster_id: settings.cluster_id.clone(),
            voters,
            voters_change: !are_named,
            commit_wait,
            hand_over_wait,
            undecided: None,
            lease: settings.timing.election_max.saturating_mul(2),
            active_term: None,
        });
        let lease = cluster.as_ref().map(|cluster| cluster.lease);
        let is_alone = cluster.is_none();
        let controller = Controller::new(settings.controller, rules, settings.ids, settings.random);
        let sessions = controller.sessions();
        let mut driver = Driver {
            controller,
            raft,
            metrics: metrics.clone(),
            log,
            applied,
            times: times.clone(),
            log_task,
            snapshot_bytes: settings.snapshot_bytes,
            bytes_since_snapshot: 0,
            on_failure: settings.on_failure,
            cluster,
            quiet_until: Monotonic::ZERO,
        };
        if is_alone {
            driver.check_cluster(&settings.cluster_id, settings.dir, settings.begin).await?;
        }
        runtime::spawn(Queue::Control, "controller", driver.run(waiting)).detach();
        let voting =
            Voting { messages, times, metrics, calls, sessions, followers, heard, lease, feed, voters };
        Ok(Self::new(settings.node, images, Part::Votes(voting)))
    }

    /// Follows the log of the controllers that `links` leads to, without a vote and without a file. It returns at once;
    /// the image fills when a leader is found. A leader that is silent is given up after a while that `timing` gives.
    pub fn observe(links: Rc<Links>, timing: Timing, on_failure: Rc<dyn Fn(&str)>) -> Rc<Quorum> {
        let node = links.identity().node;
        let (observer, images, leadership) = Observer::start(links, timing.election_max, on_failure);
        Self::new(node, images, Part::Observes(observer, leadership))
    }

    fn new(node: BrokerId, images: watch::Receiver<Arc<Image>>, part: Part) -> Rc<Self> {
        let (producer_ids, producer_id_waits) = (Mutex::new(ProducerIds::default()), Cell::new(0));
        Rc::new(Self { node, images, producer_ids, producer_id_waits, part })
    }

    /// Who leads, as far as this node knows. Alone it is this node.
    pub fn leadership(&self) -> Leadership {
        match &self.part {
            Part::Votes(voting) => Leadership::of(&voting.metrics),
            Part::Observes(_, leadership) => *leadership.borrow(),
        }
    }

    /// How long nobody has led this controller for sure: it has heard of no leader or, while it leads itself, of no
    /// majority. Zero for a node alone, and for one that is no controller.
    pub fn silence(&self) -> Duration {
        match &self.part {
            Part::Votes(voting) if voting.lease.is_some() => {
                leadership::silence(&voting.metrics.borrow_watched(), voting.heard.get(), clock::monotonic())
            }
            Part::Votes(_) | Part::Observes(..) => Duration::ZERO,
        }
    }

    /// The quorum as this node sees it while it leads and hears of the others; `None` where another one does, or may.
    pub fn describe(&self) -> Option<QuorumDescription> {
        let Part::Votes(voting) = &self.part else { return None };
        if !self.leadership().is_own {
            return None;
        }
        let metrics = voting.metrics.borrow_watched();
        if voting.lease.is_some_and(|lease| !leadership::is_heard(&metrics, lease)) {
            return None;
        }
        let mut followers = voting.followers.borrow_mut();
        followers.note(&metrics);
        Some(QuorumDescription::new(&metrics, &followers, clock::now()))
    }

    /// Answers another node.
    pub async fn serve(&self, from: &Identity, request: &Request) -> Result<Vec<u8>, PeerError> {
        let Part::Votes(voting) = &self.part else {
            return Err(PeerError::Malformed("a controller's request to a node that is none"));
        };
        match (request.key, &voting.feed, &voting.voters) {
            (PeerKey::FetchLog, Some(feed), _) => feed.answer(from, &request.body).await,
            (PeerKey::Join, Some(feed), Some(voters)) => {
                let join = join::read_join(&request.body).map_err(serve::unreadable)?;
                if (join.key.node, join.key.directory) != (from.node, from.directory) {
                    return Err(PeerError::Malformed("a join for another node"));
                }
                let result = voters.join(join).await;
                let word = Word::of(self.leadership(), &feed.roster);
                Ok(join::joined_answer(&Joined { word, result }))
            }
            (PeerKey::ChangeVoters, _, Some(voters)) => {
                let change = join::read_change(&request.body).map_err(serve::unreadable)?;
                Ok(join::changed_answer(&voters.change(change).await))
            }
            _ => voting.calls.serve(from.node, request).await,
        }
    }

    /// Adds a voter, or removes one, if this node leads. After RequestTimedOut it may have been done all the same.
    pub async fn change_voters(&self, change: VoterChange) -> Result<(), Refusal> {
        match &self.part {
            Part::Votes(Voting { voters: Some(voters), .. }) => voters.change(change).await,
            _ => Err(not_controller(self.leadership())),
        }
    }

    /// Runs a command after those that wait. When it returns `Ok` the change is on the disk and in
    /// [`Quorum::image`].
    pub async fn submit(&self, command: Command) -> Result<Response, Refusal> {
        let voting = match &self.part {
            Part::Votes(voting) => voting,
            Part::Observes(observer, _) if observer.has_ended() => return Err(stopping()),
            Part::Observes(..) => return Err(not_controller(self.leadership())),
        };
        let (reply, answer) = oneshot::channel();
        let at = clock::monotonic();
        if let Command::Heartbeat(beat) = &command {
            // Now, not when its turn comes: a queue that is long fences nobody.
            voting.sessions.borrow_mut().touch(beat.id, beat.epoch, at);
        }
        let queued = Queued { command, at, reply };
        voting.messages.send(Message::Run(queued)).await.map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Whether it takes no commands any more.
    pub fn is_closed(&self) -> bool {
        match &self.part {
            Part::Votes(voting) => voting.messages.is_closed(),
            Part::Observes(observer, _) => observer.has_ended(),
        }
    }

    #[cfg(test)]
    fn metrics(&self) -> &Metrics {
        match &self.part {
            Part::Votes(voting) => &voting.metrics,
            Part::Observes(..) => panic!("an observer has none"),
        }
    }

    /// Tells of each change of who leads.
    pub fn watch_leadership(&self) -> Leaderships {
        match &self.part {
            Part::Votes(voting) => Leaderships(Told::Metrics(voting.metrics.clone())),
            Part::Observes(_, leadership) => Leaderships(Told::Leadership(leadership.clone())),
        }
    }

    /// The state as of the last applied command.
    pub fn image(&self) -> Arc<Image> {
        self.images.borrow().clone()
    }

    /// Tells of each new image from here on.
    pub fn subscribe(&self) -> Images {
        Images(self.images.clone())
    }

    /// An id that no producer has or ever had. The registered broker takes them in durable blocks, which the controller
    /// gives to whatever is submitted with `submit`. When too many wait for one, the answer is
    /// COORDINATOR_LOAD_IN_PROGRESS, which is Kafka's to all of them.
    pub async fn allocate_producer_id(
        &self,
        submit: impl AsyncFnOnce(Command) -> Result<Response, Refusal>,
    ) -> Result<ProducerId, Refusal> {
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
        ids.refill(submit(command).await?.producer_ids());
        ids.take().ok_or_else(|| Refusal::new(ErrorCode::UnknownServerError, "The block of ids was empty."))
    }

    /// How long commands waited and ran, for each kind that came so far.
    pub fn command_times(&self) -> Vec<CommandTimes> {
        match &self.part {
            Part::Votes(voting) => voting.times.borrow().0.values().cloned().collect(),
            Part::Observes(..) => Vec::new(),
        }
    }

    /// Finishes the commands that wait, refuses later ones and closes the log.
    pub async fn shutdown(&self) {
        let voting = match &self.part {
            Part::Votes(voting) => voting,
            Part::Observes(observer, _) => return observer.end(),
        };
        let (done, finished) = oneshot::channel();
        if voting.messages.send(Message::Stop(done)).await.is_ok() {
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

/// A subscription to who leads.
pub struct Leaderships(Told);

enum Told {
    Metrics(Metrics),
    Leadership(watch::Receiver<Leadership>),
}

impl Leaderships {
    /// Waits for the next change of anything about it; `None` when the quorum was shut down.
    pub async fn changed(&mut self) -> Option<Leadership> {
        match &mut self.0 {
            Told::Metrics(metrics) => {
                metrics.changed().await.ok()?;
                Some(Leadership::of(metrics))
            }
            Told::Leadership(leadership) => {
                leadership.changed().await.ok()?;
                Some(*leadership.borrow_and_update())
            }
        }
    }
}

/// What was found on the disk.
struct Stored<F: Files> {
    log: LogFiles<F>,
    loaded: super::log_files::Loaded,
    vote_file: VoteFile<F::File>,
    vote: Option<super::types::Vote>,
    snapshots: Snapshots<F>,
    applied: Applied,
    /// Nothing was ever written.
    is_new: bool,
    /// What lies beside the log.
    known: Option<KnownSeat>,
}

fn first_seat(node: BrokerId) -> Result<Seat, OpenError> {
    Seat::first_of(node).ok_or(OpenError::NodeId(node))
}

/// Beside the log's directory, so that it stays when that is emptied.
pub fn identity_path(dir: &Path) -> PathBuf {
    dir.with_extension("identity")
}

// `Applied` holds an `Rc`-free state: it may come back from a file thread.
fn load<F: Files>(files: F, dir: PathBuf) -> Result<Stored<F>, OpenError> {
    let io_error = |error| OpenError::Io { path: dir.clone(), error };
    make_dir(&files, &dir).map_err(io_error)?;
    // Names that an earlier process could not make durable.
    files.sync_dir(&dir).map_err(io_error)?;
    let identity = SeatFile { files: files.clone(), path: identity_path(&dir) };
    let known = identity.read()?;
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
    let is_new = vote.is_none() && newest.is_none() && loaded.entries.is_empty() && loaded.purged.is_none();
    Ok(Stored { log, loaded, vote_file, vote, snapshots, applied, is_new, known })
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
        // Alone nobody is behind.
        max_in_snapshot_log_to_keep: if settings.peers.is_some() { settings.entries_kept } else { 0 },
        // Of the whole transfer; each part of it has a limit of its own.
        install_snapshot_timeout: ms(SNAPSHOT_TIME_MAX),
        backoff: "20ms 40ms 80ms 160ms 320ms 500ms".to_owned(),
        // A restarted leader must not lead on from its old term: its state machines would diverge after a
        // lost tail.
        enable_leader_restore: Some(false),
        enable_pre_vote: Some(true),
        ..openraft::Config::default()
    };
    config.validate()
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

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod cluster_tests;
