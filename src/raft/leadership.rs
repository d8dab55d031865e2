//! Who leads the metadata log, and how a log gets its first members.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{Fatal, InitializeError, RaftError};
use openraft::type_config::alias::WatchReceiverOf;
use openraft::{ChangeMembers, Instant as _, RaftMetrics, ServerState};
use tokio::sync::mpsc;

use super::commands::Message;
use super::first_voters::FirstVoter;
use super::log_store::LogStore;
use super::machine::Machine;
use super::quorum::OpenError;
use super::types::{Member, Membership, Seat, StoredMembership, Types};
use crate::base::BrokerId;
use crate::base::clock::{self, Monotonic};
use crate::io::Files;
use crate::io::runtime::{self, Queue};
use crate::peer::{Address, Links, Roster};

/// How often a leader looks whether it has met a node whose directory is not in the log yet.
const PIN_EVERY: Duration = Duration::from_millis(200);

/// Entries behind a snapshot that are kept for followers that are a little behind: at most so many bytes.
const KEPT_BYTES_MAX: usize = 16 << 20;

pub type Raft<F> = openraft::Raft<Types, Machine<F>>;
pub type Metrics = WatchReceiverOf<Types, RaftMetrics<Types>>;

/// Who leads, as far as this node knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leadership {
    /// Of the leadership: the controller's epoch.
    pub term: u64,
    pub leader: Option<BrokerId>,
    /// It is this node, and all entries of earlier terms are applied.
    pub is_own: bool,
}

impl Leadership {
    pub fn of(metrics: &Metrics) -> Self {
        let metrics = metrics.borrow_watched();
        let member = |seat: Seat| metrics.membership_config.get_node(&seat);
        let leader = metrics.current_leader.and_then(member).map(|member| member.node);
        let term = metrics.current_term;
        let is_own = metrics.state == ServerState::Leader
            && metrics.current_leader == Some(metrics.id)
            && metrics.last_applied.is_some_and(|applied| applied.leader_id.term == term);
        Self { term, leader, is_own }
    }
}

/// Whether a majority has answered this leader within `lease`; else another may lead. Who votes alone is a majority, and
/// openraft notes the answers of others only.
pub fn is_heard(metrics: &RaftMetrics<Types>, lease: Duration) -> bool {
    let is_answered = metrics.last_quorum_acked.is_some_and(|acked| acked.elapsed() < lease);
    is_answered || metrics.membership_config.voter_ids().eq([metrics.id])
}

/// How long nobody has led this node for sure, who was heard of last at `heard`: another one with a majority behind it,
/// or itself.
pub fn silence(metrics: &RaftMetrics<Types>, heard: Monotonic, now: Monotonic) -> Duration {
    let leads = metrics.current_leader == Some(metrics.id);
    match metrics.last_quorum_acked {
        _ if leads && metrics.membership_config.voter_ids().eq([metrics.id]) => Duration::ZERO,
        Some(acked) if leads => acked.elapsed().min(now.since(heard)),
        _ => now.since(heard),
    }
}

/// Makes this node the leader if it may be one alone, and waits until an entry of its own term, at
/// `first_own` or later, is applied: then all before it are.
pub async fn lead<F: Files>(
    raft: &Raft<F>,
    seat: Seat,
    member: Member,
    first_own: u64,
    wait: Duration,
) -> Result<(), String> {
    let initialized = raft.is_initialized().await.map_err(|error| error.to_string())?;
    if !initialized {
        let members = BTreeMap::from([(seat, member)]);
        raft.initialize(members).await.map_err(|error| error.to_string())?;
    } else if raft.voter_ids().eq([seat]) {
        // Nobody else could lead: no reason to wait for a time-out.
        raft.trigger().elect(false).await.map_err(|error| error.to_string())?;
    }
    let leads = |metrics: &RaftMetrics<Types>| {
        metrics.current_leader == Some(seat)
            && metrics.last_applied.is_some_and(|applied| applied.index >= first_own)
    };
    let ended = raft
        .wait(Some(wait))
        .metrics(|metrics| metrics.running_state.is_err() || leads(metrics), "leadership")
        .await
        .map_err(|error| error.to_string())?;
    ended.running_state.map_err(|error| error.to_string())?;
    if raft.voter_ids().eq([seat]) {
        // Nobody to send heartbeats to, nobody else to elect: the clock of Raft only costs wakes.
        raft.runtime_config().tick(false);
    }
    Ok(())
}

/// Gives a new log the voters of the configuration as its first entry, which is the same on all of them: directories
/// come later. A log that has members must have these.
pub async fn form<F: Files>(raft: &Raft<F>, links: &Links) -> Result<(), OpenError> {
    let failed = |error: String| OpenError::Raft(error);
    let first: BTreeMap<Seat, Member> = members(links.roster().controllers().into_keys())?;
    if !raft.is_initialized().await.map_err(|error| failed(error.to_string()))? {
        return match raft.initialize(first).await {
            // The leader's first entries were here before.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(failed(error.to_string())),
        };
    }
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let found: Vec<BrokerId> = metrics.membership_config.nodes().map(|(_, member)| member.node).collect();
    let expected: Vec<BrokerId> = links.roster().controllers().into_keys().collect();
    if found != expected {
        return Err(OpenError::Voters { found: list(&found), expected: list(&expected) });
    }
    let own = links.identity();
    let pinned = metrics.membership_config.get_node(&metrics.id).map(|member| member.directory);
    match pinned.filter(|pinned| !pinned.is_nil() && *pinned != own.directory) {
        Some(pinned) => Err(OpenError::Directory { pinned, found: own.directory }),
        None => Ok(()),
    }
}

/// The same where voters come and go: `first` are those that a new cluster begins with, of which this node may be one.
/// A log that has members is taken as it is.
pub async fn form_changing<F: Files>(
    raft: &Raft<F>,
    links: &Links,
    seat: Seat,
    first: &[FirstVoter],
) -> Result<(), OpenError> {
    let failed = |error: String| OpenError::Raft(error);
    let own = links.identity();
    let is_first = |voter: &FirstVoter| (voter.key.node, voter.key.directory) == (own.node, own.directory);
    if !raft.is_initialized().await.map_err(|error| failed(error.to_string()))? {
        // Whoever is none of them waits for the leader, which knows it.
        if !first.iter().any(is_first) {
            return Ok(());
        }
        let members = first.iter().map(|FirstVoter { key, address }| {
            let seat = Seat::first_of(key.node).ok_or(OpenError::NodeId(key.node))?;
            let address = Some(address.clone());
            Ok((seat, Member { node: key.node, directory: key.directory, address }))
        });
        let members: BTreeMap<Seat, Member> = members.collect::<Result<_, OpenError>>()?;
        let voters = vec![members.keys().copied().collect()];
        if let Ok(membership) = Membership::new(voters, members.clone()) {
            pin(links.roster(), &StoredMembership::new(None, membership), true);
        }
        match raft.initialize(members).await {
            // The leader's first entries were here before.
            Ok(()) => return Ok(()),
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    let metrics = raft.metrics();
    let membership = metrics.borrow_watched().membership_config.clone();
    // What is in the log and not known to be committed counts here: without it nobody would be found.
    pin(links.roster(), &membership, true);
    let found = membership.get_node(&seat).map(|member| member.directory);
    if let Some(pinned) = found.filter(|found| *found != own.directory) {
        return Err(OpenError::Directory { pinned, found: own.directory });
    }
    if membership.voter_ids().eq([seat]) {
        // Nobody else could lead: no reason to wait for a time-out.
        raft.trigger().elect(false).await.map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

fn members(nodes: impl Iterator<Item = BrokerId>) -> Result<BTreeMap<Seat, Member>, OpenError> {
    nodes
        .map(|node| {
            let seat = Seat::first_of(node).ok_or(OpenError::NodeId(node))?;
            Ok((seat, Member { node, ..Member::default() }))
        })
        .collect()
}

fn list(nodes: &[BrokerId]) -> String {
    let texts: Vec<String> = nodes.iter().map(BrokerId::to_string).collect();
    texts.join(", ")
}

/// What the log says of its members, for whoever checks hellos and dials: which directory each has and, where it is
/// known to the log, where it is. What a configuration says of that counts until the voters change (`voters_change`).
pub fn pin(roster: &Roster, membership: &StoredMembership, voters_change: bool) {
    let voters: BTreeSet<Seat> = membership.voter_ids().collect();
    let known = |(_, member): &(&Seat, &Member)| !member.directory.is_nil();
    let directory = |(_, member): (&Seat, &Member)| (member.node, member.directory);
    let of_voters = membership.nodes().filter(known).filter(|(seat, _)| voters.contains(seat));
    roster.pin(of_voters.map(directory).collect());
    roster.pin_members(membership.nodes().filter(known).map(directory).collect());
    if roster.is_named() && !voters_change {
        return;
    }
    let placed = membership.nodes().filter_map(|(_, member)| Some((member.node, member.address.clone()?)));
    let placed: BTreeMap<BrokerId, Address> = placed.collect();
    if !placed.is_empty() {
        roster.set(placed);
    }
}

/// While it leads, writes the directories of the nodes that it has met into the log, until all are there.
pub fn start_pinning<F: Files>(raft: Raft<F>, links: Rc<Links>) {
    runtime::spawn(Queue::Control, "pin directories", async move {
        let metrics = raft.metrics();
        while !links.roster().is_pinned() {
            runtime::sleep(PIN_EVERY).await;
            if metrics.borrow_watched().running_state.is_err() {
                return;
            }
            if !Leadership::of(&metrics).is_own {
                continue;
            }
            let mut met = links.roster().unpinned();
            if met.is_empty() {
                continue;
            }
            met.insert(links.identity().node, links.identity().directory);
            let config = metrics.borrow_watched().membership_config.clone();
            let seats = config.nodes().filter_map(|(seat, member)| {
                // What is pinned stays.
                let directory = *met.get(&member.node).filter(|_| member.directory.is_nil())?;
                Some((*seat, Member { directory, ..member.clone() }))
            });
            let seats: BTreeMap<Seat, Member> = seats.collect();
            if seats.is_empty() {
                continue;
            }
            if let Err(error) = raft.change_membership(ChangeMembers::SetNodes(seats), false).await {
                tracing::debug!("directories are not pinned yet: {error}");
            }
        }
    })
    .detach();
}

/// Keeps the log small on every node of a cluster: a snapshot after so many bytes of entries, whoever appended them, and
/// behind a snapshot no more of them than [`KEPT_BYTES_MAX`], which stay in memory, too.
pub fn start_trimming<F: Files>(raft: Raft<F>, log: LogStore, snapshot_bytes: u64) {
    runtime::spawn(Queue::Control, "trim metadata log", async move {
        let mut metrics = raft.metrics();
        let (mut counted, mut known) = (log.appended(), None);
        while metrics.changed().await.is_ok() {
            let (snapshot, has_failed) = {
                let metrics = metrics.borrow_watched();
                (metrics.snapshot, metrics.running_state.is_err())
            };
            if has_failed {
                return;
            }
            if log.appended() - counted >= snapshot_bytes {
                counted = log.appended();
                if let Err(error) = raft.trigger().snapshot().await {
                    tracing::warn!("metadata snapshot: {error}");
                }
            }
            if snapshot == known {
                continue;
            }
            known = snapshot;
            let surplus = snapshot.and_then(|snapshot| log.surplus(snapshot.index, KEPT_BYTES_MAX));
            if let Some(upto) = surplus
                && let Err(error) = raft.trigger().purge_log(upto).await
            {
                tracing::warn!("metadata log: {error}");
            }
        }
    })
    .detach();
}

/// Tells the commands' driver of each leadership of this node, and `on_failure` when the log has failed. A change counts
/// as a word of a leader's: it takes a majority.
pub fn start_watching(
    mut metrics: Metrics,
    messages: mpsc::Sender<Message>,
    heard: Rc<Cell<Monotonic>>,
    on_failure: Rc<dyn Fn(&str)>,
) {
    runtime::spawn(Queue::Control, "leadership", async move {
        let mut known = Leadership { term: 0, leader: None, is_own: false };
        while metrics.changed().await.is_ok() {
            let state = metrics.borrow_watched().running_state.clone();
            match state {
                Ok(()) => {}
                Err(Fatal::Stopped) => return,
                Err(error) => return on_failure(&format!("the metadata log failed: {error}")),
            }
            let now = Leadership::of(&metrics);
            if (now.term, now.leader, now.is_own) == (known.term, known.leader, known.is_own) {
                continue;
            }
            if now.leader != known.leader || now.term != known.term {
                heard.set(clock::monotonic());
                match now.leader {
                    Some(leader) => tracing::info!(controller = %leader, term = now.term, "the controller"),
                    None => tracing::info!(term = now.term, "no controller"),
                }
            }
            if now.is_own && messages.send(Message::Lead).await.is_err() {
                return;
            }
            known = now;
        }
    })
    .detach();
}
