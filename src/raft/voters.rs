//! Who votes on the metadata log, as it changes while the cluster runs (KIP-853): the leader's part. Lives on shard 0.
//!
//! Each change is one entry, and no two of them differ by more than one voter, so that any two majorities meet; openraft
//! takes it only from a leader whose own term has begun and whose last change is committed. A change is there as a whole or
//! not at all, whoever is lost meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, select};
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, EntryPayload, Instant as _, Precondition};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::commands::not_controller;
use super::leadership::{Leadership, Metrics, Raft};
use super::log_store::LogStore;
use super::machine::Applied;
use super::raise;
use super::types::{Member, Membership, Seat, StoredMembership, Types};
use crate::base::clock::{self, Monotonic};
use crate::base::{BrokerId, TopicId};
use crate::io::Files;
use crate::io::runtime;
use crate::metadata::{KRAFT_VERSION, Refusal};
use crate::peer::{Address, Links};
use crate::wire::ErrorCode;

/// How often whoever adds a voter looks whether it has caught up.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One node's metadata log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VoterKey {
    pub node: BrokerId,
    pub directory: Uuid,
}

/// As Kafka's `ReplicaKey` prints itself.
impl fmt::Display for VoterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplicaKey(id={}, directoryId={})", self.node, TopicId(self.directory))
    }
}

/// What is asked of the leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VoterChange {
    /// It is waited so long for the node to have all of the log.
    Add(VoterKey, Duration),
    Remove(VoterKey),
    /// Whoever votes as that node from another directory is removed: its disk was replaced.
    Replace(VoterKey),
}

/// A controller asks for the log, and says where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    pub key: VoterKey,
    pub address: Address,
    /// It has a log already.
    pub seat: Option<Seat>,
}

/// The leader's part, whatever files it has.
pub trait Reconfigure {
    fn change(&self, change: VoterChange) -> Changing<'_, ()>;
    /// Has the log say of each voter where it is: what is there before `kraft.version` 1 is. Or looks only whether it could.
    fn raise(&self, validate_only: bool) -> Changing<'_, ()>;
    /// Gives a log to a controller that has none.
    fn join(&self, join: Join) -> Changing<'_, Seat>;
    /// Now and then: takes members out that have no vote and are gone.
    fn forget_silent(&self) -> Pin<Box<dyn Future<Output = ()> + '_>>;
}

pub type Changing<'a, T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + 'a>>;

/// The leader's part.
pub struct Voters<F: Files> {
    pub raft: Raft<F>,
    pub links: Rc<Links>,
    pub metrics: Metrics,
    pub log: LogStore,
    pub applied: Rc<RefCell<Applied>>,
    /// A change may take so long to be committed.
    pub commit_wait: Duration,
    /// So long a leader that is to go waits until another leads.
    pub hand_over_wait: Duration,
    pub silence_max: Duration,
    /// Since when each member without a vote has not been heard of.
    pub silent: RefCell<BTreeMap<Seat, Monotonic>>,
    /// Somebody's request to change the voters is under way.
    pub is_changing: Cell<bool>,
    /// Held while an entry is made and committed.
    pub turn: Mutex<()>,
}

/// A request that is under way; one at a time.
struct Pending<'a>(&'a Cell<bool>);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<F: Files> Reconfigure for Voters<F> {
    fn change(&self, change: VoterChange) -> Changing<'_, ()> {
        Box::pin(async move {
            let is_add = matches!(change, VoterChange::Add(..));
            self.check_leads()?;
            if self.is_changing.replace(true) {
                let what = if is_add { "add voter" } else { "add or remove voter" };
                let text = format!("Request timed out waiting for leader to handle previous {what} request");
                return Err(Refusal::new(ErrorCode::RequestTimedOut, text));
            }
            let _pending = Pending(&self.is_changing);
            self.check_version(if is_add { "adding" } else { "removing" })?;
            match change {
                VoterChange::Add(key, wait) => self.add(key, wait).await,
                VoterChange::Remove(key) => self.remove(key).await,
                VoterChange::Replace(key) => self.remove_others(key).await,
            }
        })
    }

    fn raise(&self, validate_only: bool) -> Changing<'_, ()> {
        Box::pin(async move {
            let observed = self.observed();
            let members = {
                let applied = self.applied.borrow();
                raise::members(observed.membership(), applied.state.image(), &self.links)?
            };
            if validate_only || observed.nodes().all(|(seat, member)| members.get(seat) == Some(member)) {
                return Ok(());
            }
            let _turn = self.turn.lock().await;
            self.set(members, &observed).await
        })
    }

    fn join(&self, join: Join) -> Changing<'_, Seat> {
        Box::pin(self.take_in(join))
    }

    fn forget_silent(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move {
            let gone = self.gone();
            if gone.is_empty() {
                return;
            }
            let forgotten = self.append(|membership| {
                let left = with(membership, |voters, nodes| {
                    nodes.retain(|seat, _| voters.contains(seat) || !gone.contains(seat));
                });
                Ok(Some(left))
            });
            if let Err(refusal) = forgotten.await {
                tracing::debug!("members that are gone are not forgotten yet: {refusal}");
            }
        })
    }
}

impl<F: Files> Voters<F> {
    fn check_leads(&self) -> Result<(), Refusal> {
        let leadership = Leadership::of(&self.metrics);
        if leadership.is_own { Ok(()) } else { Err(not_controller(leadership)) }
    }

    fn check_version(&self, change: &str) -> Result<(), Refusal> {
        if self.applied.borrow().state.image().voters_change() {
            return Ok(());
        }
        let text = format!("Cluster doesn't support {change} voter because the {KRAFT_VERSION} feature is 0");
        Err(Refusal::new(ErrorCode::UnsupportedVersion, text))
    }

    fn gone(&self) -> BTreeSet<Seat> {
        let now = clock::monotonic();
        let metrics = self.metrics.borrow_watched();
        let mut silent = self.silent.borrow_mut();
        let Some(answers) = &metrics.heartbeat else {
            silent.clear();
            return BTreeSet::new();
        };
        let config = &metrics.membership_config;
        let voters: BTreeSet<Seat> = config.voter_ids().collect();
        let learners: BTreeSet<Seat> =
            config.nodes().map(|(seat, _)| *seat).filter(|seat| !voters.contains(seat)).collect();
        silent.retain(|seat, _| learners.contains(seat));
        for seat in learners {
            let answered = answers.get(&seat).copied().flatten();
            match answered.is_some_and(|answered| answered.elapsed() < self.hand_over_wait) {
                true => silent.remove(&seat),
                false => Some(*silent.entry(seat).or_insert(now)),
            };
        }
        let is_gone = |since: &Monotonic| now.since(*since) > self.silence_max;
        silent.iter().filter(|(_, since)| is_gone(since)).map(|(seat, _)| *seat).collect()
    }

    fn observed(&self) -> Rc<StoredMembership> {
        Rc::new((*self.metrics.borrow_watched().membership_config).clone())
    }

    async fn add(&self, key: VoterKey, wait: Duration) -> Result<(), Refusal> {
        let until = clock::monotonic().plus(wait);
        loop {
            self.check_leads()?;
            let observed = self.observed();
            if voters(observed.membership()).any(|(_, member)| member.node == key.node) {
                let text = format!(
                    "The voter id for {key} is already part of the set of voters {}.",
                    Keys(observed.membership())
                );
                return Err(Refusal::new(ErrorCode::DuplicateVoter, text));
            }
            let seat = seat_of(observed.membership(), key);
            let obstacle = match seat {
                Some(seat) if self.has_all(seat) => break,
                Some(_) => format!("Aborted add voter operation for {key} since it is lagging behind"),
                None => format!("New voter {key} is not ready to receive requests"),
            };
            if clock::monotonic() >= until {
                return Err(Refusal::new(ErrorCode::RequestTimedOut, obstacle));
            }
            runtime::sleep(LOOK_EVERY).await;
        }
        self.append(|membership| {
            let Some(seat) = seat_of(membership, key) else { return Ok(None) };
            Ok(Some(with(membership, |voters, _| {
                voters.insert(seat);
            })))
        })
        .await
    }

    /// Whether the node has what the leader has; a leader that goes on writing is always a little ahead.
    fn has_all(&self, seat: Seat) -> bool {
        let metrics = self.metrics.borrow_watched();
        let matched = metrics.replication.as_ref().and_then(|matched| matched.get(&seat).copied().flatten());
        // What is applied the metrics tell later.
        matched.map(|log_id| log_id.index) >= self.applied.borrow().last.map(|log_id| log_id.index)
    }

    async fn remove(&self, key: VoterKey) -> Result<(), Refusal> {
        let observed = self.observed();
        let membership = observed.membership();
        let seat = voters(membership).find(|(_, member)| is_at(member, key)).map(|(seat, _)| *seat);
        let count = voters(membership).count();
        let Some(seat) = seat.filter(|_| count > 1) else {
            let text = format!("Cannot remove voter {key} from the set of voters {}", Keys(membership));
            return Err(Refusal::new(ErrorCode::VoterNotFound, text));
        };
        if seat == self.metrics.borrow_watched().id {
            self.hand_over(seat).await?;
        }
        // It keeps its log and goes on following: it may be a broker, too.
        self.append(|membership| {
            Ok(Some(with(membership, |voters, _| {
                voters.remove(&seat);
            })))
        })
        .await
    }

    async fn remove_others(&self, key: VoterKey) -> Result<(), Refusal> {
        let observed = self.observed();
        let other = voters(observed.membership())
            .find(|(_, member)| member.node == key.node && member.directory != key.directory)
            .map(|(_, member)| VoterKey { directory: member.directory, ..key });
        match other {
            Some(other) => self.remove(other).await,
            None => Ok(()),
        }
    }

    /// The leader that is to go has another one lead, which takes it out.
    async fn hand_over(&self, own: Seat) -> Result<(), Refusal> {
        let furthest = {
            let metrics = self.metrics.borrow_watched();
            let matched = |seat: &Seat| metrics.replication.as_ref()?.get(seat).copied().flatten();
            metrics.membership_config.voter_ids().filter(|seat| *seat != own).max_by_key(matched)
        };
        if let Some(furthest) = furthest {
            let _ = self.raft.trigger().transfer_leader(furthest).await;
        }
        let until = clock::monotonic().plus(self.hand_over_wait);
        while clock::monotonic() < until {
            // Whoever asked finds the next leader.
            self.check_leads()?;
            runtime::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    async fn take_in(&self, join: Join) -> Result<Seat, Refusal> {
        self.check_leads()?;
        self.check_version("adding")?;
        let Join { key, address, seat } = join;
        let observed = self.observed();
        // Whoever has a seat and has lost its log is given another one: what it said is not known any more.
        let known = observed.nodes().find(|(known, member)| is_at(member, key) && Some(**known) == seat);
        if let Some((seat, member)) = known {
            if member.address.as_ref() != Some(&address) {
                let moved = Member { address: Some(address), ..member.clone() };
                self.move_to(*seat, moved, &observed).await?;
            }
            return Ok(*seat);
        }
        let given = Cell::new(Seat(0));
        self.append(|membership| {
            if let Some((_, voter)) = voters(membership).find(|(_, member)| member.node == key.node) {
                let text = format!(
                    "Node {} votes with its log in directory {}, and asks for one in {}: that voter has to be removed \
                     first.",
                    key.node,
                    TopicId(voter.directory),
                    TopicId(key.directory)
                );
                return Err(Refusal::new(ErrorCode::InvalidVoterKey, text));
            }
            let is_free = |seat: &Seat| membership.get_node(seat).is_none();
            // The log only grows, so each is greater than all before.
            let next = self.log.last_log_id().map_or(1, |last| last.index + 1);
            let seat = seat.filter(is_free).unwrap_or(Seat(Seat::LATER | next));
            given.set(seat);
            let (node, directory) = (key.node, key.directory);
            Ok(Some(with(membership, |_, nodes| {
                nodes.retain(|_, member| member.node != node);
                nodes.insert(seat, Member { node, directory, address: Some(address.clone()) });
            })))
        })
        .await?;
        Ok(given.get())
    }

    /// The node is elsewhere now (Kafka's UpdateRaftVoter).
    async fn move_to(&self, seat: Seat, member: Member, observed: &StoredMembership) -> Result<(), Refusal> {
        let _turn = self.turn.lock().await;
        tracing::info!(node = %member.node, "a controller has another address: {:?}", member.address);
        self.set(BTreeMap::from([(seat, member)]), observed).await
    }

    /// Says other things of members; who votes is what `observed` says, or nothing is done.
    async fn set(&self, members: BTreeMap<Seat, Member>, observed: &StoredMembership) -> Result<(), Refusal> {
        let observed = Precondition::LastMembershipLogId { last_membership_log_id: *observed.log_id() };
        let changing = self.raft.change_membership_if(ChangeMembers::SetNodes(members), true, [observed]);
        match select(pin!(changing), pin!(runtime::sleep(self.commit_wait))).await {
            Either::Left((Ok(_), _)) => Ok(()),
            Either::Left((Err(error), _)) => Err(refused(error)),
            Either::Right(_) => Err(uncommitted()),
        }
    }

    /// Makes the entry that `change` makes of the membership as it then is.
    async fn append(
        &self,
        change: impl FnOnce(&Membership) -> Result<Option<Membership>, Refusal>,
    ) -> Result<(), Refusal> {
        let _turn = self.turn.lock().await;
        self.check_leads()?;
        let observed = self.observed();
        let Some(next) = change(observed.membership())? else { return Ok(()) };
        tracing::info!("the voters on the metadata log: {}; members: {}", Keys(&next), next.nodes().count());
        let observed = Precondition::LastMembershipLogId { last_membership_log_id: *observed.log_id() };
        let appending = self.raft.append_membership(next, EntryPayload::Blank, [observed]);
        match select(pin!(appending), pin!(runtime::sleep(self.commit_wait))).await {
            Either::Left((Ok(_), _)) => Ok(()),
            Either::Left((Err(error), _)) => Err(refused(error)),
            Either::Right(_) => Err(uncommitted()),
        }
    }
}

fn refused(error: RaftError<Types, ClientWriteError<Types>>) -> Refusal {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => {
            Refusal::new(ErrorCode::NotController, "This node does not lead any more.")
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_),
        ))
        | RaftError::APIError(
            ClientWriteError::PreconditionFailed(_) | ClientWriteError::LogEntryDiscarded(_),
        ) => uncommitted(),
        error => Refusal::new(ErrorCode::UnknownServerError, error.to_string()),
    }
}

fn uncommitted() -> Refusal {
    let text = "Request timed out waiting for voters to commit the latest voter change";
    Refusal::new(ErrorCode::RequestTimedOut, text)
}

fn voters(membership: &Membership) -> impl Iterator<Item = (&Seat, &Member)> {
    let ids: BTreeSet<Seat> = membership.voter_ids().collect();
    membership.nodes().filter(move |(seat, _)| ids.contains(seat))
}

fn is_at(member: &Member, key: VoterKey) -> bool {
    member.node == key.node && member.directory == key.directory
}

fn seat_of(membership: &Membership, key: VoterKey) -> Option<Seat> {
    membership.nodes().find(|(_, member)| is_at(member, key)).map(|(seat, _)| *seat)
}

/// A changed copy.
fn with(
    membership: &Membership,
    change: impl FnOnce(&mut BTreeSet<Seat>, &mut BTreeMap<Seat, Member>),
) -> Membership {
    let mut voters: BTreeSet<Seat> = membership.voter_ids().collect();
    let mut nodes = membership.nodes().map(|(seat, member)| (*seat, member.clone())).collect();
    change(&mut voters, &mut nodes);
    match Membership::new(vec![voters], nodes) {
        Ok(changed) => changed,
        Err(error) => unreachable!("each voter has its node: {error}"),
    }
}

/// As a Java set prints itself.
struct Keys<'a>(&'a Membership);

impl fmt::Display for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = voters(self.0)
            .map(|(_, member)| VoterKey { node: member.node, directory: member.directory }.to_string());
        write!(f, "[{}]", keys.collect::<Vec<_>>().join(", "))
    }
}
