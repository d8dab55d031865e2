//! A leadership over several replicas: how far each follower is, who is in sync, and what both make of the high
//! watermark. Pure, and without a log: the partition says where its own ends.
//!
//! The high watermark is the least end of the leader, of the replicas that are in sync or are about to be, and of
//! those that have caught up though nobody has said so yet: it waits for them, or they would run after it for ever
//! (Kafka's `Partition.maybeIncrementLeaderHW`). Who leaves or joins the replicas in sync is the controller's to say
//! ([`IsrProposal`]); until it has, whoever may be among them counts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::base::clock::Monotonic;
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, Offset};
use crate::wire::ErrorCode;

/// The end of a follower that has not fetched yet.
const UNKNOWN_END: Offset = Offset(-1);

/// What the metadata says of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assignment<'a> {
    pub leader: Option<BrokerId>,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: i32,
    pub replicas: &'a [BrokerId],
    pub isr: &'a [BrokerId],
}

/// The brokers as the partitions of one shard know them; shared by all of these.
#[derive(Clone, Debug)]
pub struct Brokers(Rc<Known>);

#[derive(Debug)]
struct Known {
    me: BrokerId,
    lag_max: Duration,
    /// Those that may be in sync, by their registrations.
    alive: RefCell<BTreeMap<BrokerId, BrokerEpoch>>,
}

impl Brokers {
    /// `me` is the broker of the shard; who is not up to date for `lag_max` (`replica.lag.time.max.ms`) is out of sync.
    pub fn new(me: BrokerId, lag_max: Duration) -> Self {
        Self(Rc::new(Known { me, lag_max, alive: RefCell::default() }))
    }

    pub fn me(&self) -> BrokerId {
        self.0.me
    }

    pub fn lag_max(&self) -> Duration {
        self.0.lag_max
    }

    /// Whoever is registered and serves.
    pub fn set_alive(&self, alive: impl IntoIterator<Item = (BrokerId, BrokerEpoch)>) {
        *self.0.alive.borrow_mut() = alive.into_iter().collect();
    }

    fn epoch_of(&self, broker: BrokerId) -> Option<BrokerEpoch> {
        self.0.alive.borrow().get(&broker).copied()
    }
}

/// What a follower says of itself with a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FollowerFetch {
    pub replica: BrokerId,
    pub broker_epoch: BrokerEpoch,
    /// It has everything below.
    pub offset: Offset,
    pub log_start: Offset,
}

/// The replicas in sync as a leader would have them; the controller decides (AlterPartition).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IsrProposal {
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: i32,
    /// With the registrations that they are meant in; -1 where that is not known.
    pub isr: Vec<(BrokerId, BrokerEpoch)>,
}

impl IsrProposal {
    /// Whether the controller has decided with this code, or knows more than this broker: then the metadata has the
    /// last word. Else the proposal is brought again.
    pub fn is_decided_by(code: ErrorCode) -> bool {
        matches!(
            code,
            ErrorCode::IneligibleReplica
                | ErrorCode::OperationNotAttempted
                | ErrorCode::UnknownTopicId
                | ErrorCode::UnknownTopicOrPartition
                | ErrorCode::FencedLeaderEpoch
                | ErrorCode::InvalidUpdateVersion
                | ErrorCode::InvalidRequest
                | ErrorCode::NewLeaderElected
        )
    }
}

/// What the controller has made of a proposal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlteredIsr {
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: i32,
    pub isr: Vec<BrokerId>,
}

/// How far one follower is (Kafka's `ReplicaState`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Progress {
    replica: BrokerId,
    broker_epoch: BrokerEpoch,
    end: Offset,
    log_start: Offset,
    fetched: Monotonic,
    leader_end_when_fetched: Offset,
    /// `None`: never in this leadership.
    caught_up: Option<Monotonic>,
}

impl Progress {
    fn of(replica: BrokerId, in_sync: bool, leader_end: Offset, now: Monotonic) -> Self {
        Self {
            replica,
            broker_epoch: BrokerEpoch(-1),
            end: UNKNOWN_END,
            log_start: UNKNOWN_END,
            fetched: now,
            leader_end_when_fetched: leader_end,
            // It has the time of one lag to show itself.
            caught_up: in_sync.then_some(now),
        }
    }

    fn is_in_sync(&self, leader_end: Offset, lag_max: Duration, now: Monotonic) -> bool {
        self.end == leader_end || self.caught_up.is_some_and(|at| now.since(at) <= lag_max)
    }
}

/// One leadership of this broker over a partition that has other replicas.
#[derive(Debug)]
pub struct Leadership {
    brokers: Brokers,
    epoch: LeaderEpoch,
    /// Where the log ended when it began.
    start: Offset,
    partition_epoch: i32,
    /// As the metadata says.
    isr: Vec<BrokerId>,
    /// As the controller was asked to have them.
    proposed: Option<Vec<BrokerId>>,
    followers: Box<[Progress]>,
}

impl Leadership {
    /// `end` is where the log ends: the leadership's records begin there.
    pub fn new(brokers: &Brokers, assignment: &Assignment<'_>, end: Offset, now: Monotonic) -> Self {
        let mut leadership = Self {
            brokers: brokers.clone(),
            epoch: assignment.leader_epoch,
            start: end,
            partition_epoch: assignment.partition_epoch,
            isr: assignment.isr.to_vec(),
            proposed: None,
            followers: Box::default(),
        };
        leadership.set_replicas(assignment.replicas, end, now);
        leadership
    }

    pub fn isr(&self) -> &[BrokerId] {
        &self.isr
    }

    pub fn replica_count(&self) -> usize {
        self.followers.len() + 1
    }

    /// Where the leadership's own records begin.
    pub fn start(&self) -> Offset {
        self.start
    }

    /// The least log start of the followers that are alive, as far as they have said it.
    pub fn low_watermark(&self) -> Option<Offset> {
        let alive =
            self.followers.iter().filter(|progress| self.brokers.epoch_of(progress.replica).is_some());
        alive.map(|progress| progress.log_start).min()
    }

    /// The same leadership with other replicas, or others of them in sync. What is older than what is known is
    /// passed over; true if it was not.
    pub fn set_assignment(&mut self, assignment: &Assignment<'_>, end: Offset, now: Monotonic) -> bool {
        if assignment.partition_epoch <= self.partition_epoch {
            return false;
        }
        self.partition_epoch = assignment.partition_epoch;
        self.isr = assignment.isr.to_vec();
        self.proposed = None;
        self.set_replicas(assignment.replicas, end, now);
        true
    }

    fn set_replicas(&mut self, replicas: &[BrokerId], end: Offset, now: Monotonic) {
        let known = std::mem::take(&mut self.followers);
        let others = replicas.iter().filter(|replica| **replica != self.brokers.me());
        let progress = others.map(|&replica| {
            let known = known.iter().find(|progress| progress.replica == replica).copied();
            known.unwrap_or_else(|| Progress::of(replica, self.isr.contains(&replica), end, now))
        });
        self.followers = progress.collect();
    }

    /// Notes how far a follower is. `leader_end` is where the log ended before the fetch was answered.
    ///
    /// # Errors
    /// UNKNOWN_LEADER_EPOCH for one that is not assigned here: it may know more than this broker.
    /// NOT_LEADER_OR_FOLLOWER for one of an earlier registration.
    pub fn fetched(
        &mut self,
        fetch: FollowerFetch,
        leader_end: Offset,
        now: Monotonic,
    ) -> Result<(), ErrorCode> {
        let known = self.brokers.epoch_of(fetch.replica);
        if known.is_some_and(|known| fetch.broker_epoch < known) {
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        let Some(progress) = self.followers.iter_mut().find(|progress| progress.replica == fetch.replica)
        else {
            return Err(ErrorCode::UnknownLeaderEpoch);
        };
        // Kafka's `Replica.updateFetchStateOrThrow`.
        if fetch.offset >= leader_end {
            progress.caught_up = progress.caught_up.max(Some(now));
        } else if fetch.offset >= progress.leader_end_when_fetched {
            progress.caught_up = progress.caught_up.max(Some(progress.fetched));
        }
        progress.end = fetch.offset;
        progress.log_start = fetch.log_start;
        progress.broker_epoch = fetch.broker_epoch;
        progress.fetched = now;
        progress.leader_end_when_fetched = leader_end;
        Ok(())
    }

    /// What all have that must have it, for a log that ends at `own_end` (on the disk, where that counts); `None` while
    /// fewer than `isr_min` are in sync: what is appended meanwhile is not committed.
    pub fn high_watermark(&self, own_end: Offset, isr_min: usize, now: Monotonic) -> Option<Offset> {
        if self.isr.len() < isr_min {
            return None;
        }
        let counts = |progress: &&Progress| {
            self.may_be_in_sync(progress.replica)
                || (self.is_eligible(progress) && progress.is_in_sync(own_end, self.brokers.lag_max(), now))
        };
        let ends = self.followers.iter().filter(counts).map(|progress| progress.end);
        Some(ends.min().map_or(own_end, |least| least.min(own_end)))
    }

    /// Of the followers on `brokers` that are in sync and have what lies at `offset` the one that has the most, and among
    /// several the one that last had everything (Kafka's `ReplicaManager.findPreferredReadReplica`, `ReplicaView`).
    pub fn nearer_replica(&self, brokers: &[BrokerId], offset: Offset) -> Option<BrokerId> {
        let has_it = |progress: &&Progress| {
            brokers.contains(&progress.replica)
                && self.isr.contains(&progress.replica)
                && (progress.log_start..=progress.end).contains(&offset)
        };
        let fit = self.followers.iter().filter(has_it);
        fit.max_by_key(|progress| (progress.end, progress.caught_up, progress.replica))
            .map(|progress| progress.replica)
    }

    fn may_be_in_sync(&self, replica: BrokerId) -> bool {
        self.isr.contains(&replica) || self.proposed.iter().flatten().any(|proposed| *proposed == replica)
    }

    /// It may join those in sync: it is alive, and it is the same process that has fetched.
    fn is_eligible(&self, progress: &Progress) -> bool {
        self.brokers.epoch_of(progress.replica) == Some(progress.broker_epoch)
    }

    /// The replicas in sync with `follower`, if it has come to be in sync and nothing else is asked already.
    pub fn expand(&mut self, follower: BrokerId, high_watermark: Offset) -> Option<IsrProposal> {
        if self.proposed.is_some() || self.isr.contains(&follower) {
            return None;
        }
        let progress = self.followers.iter().find(|progress| progress.replica == follower)?;
        let has_all = progress.end >= high_watermark && progress.end >= self.start;
        if !has_all || !self.is_eligible(progress) {
            return None;
        }
        let isr = self.isr.iter().copied().chain([follower]).collect();
        Some(self.propose(isr))
    }

    /// The replicas in sync without those that are not any more, if there are such and nothing else is asked already.
    pub fn shrink(&mut self, own_end: Offset, now: Monotonic) -> Option<IsrProposal> {
        if self.proposed.is_some() {
            return None;
        }
        let lags = |replica: BrokerId| {
            let progress = self.followers.iter().find(|progress| progress.replica == replica);
            progress.is_some_and(|progress| !progress.is_in_sync(own_end, self.brokers.lag_max(), now))
        };
        let isr: Vec<BrokerId> = self.isr.iter().copied().filter(|replica| !lags(*replica)).collect();
        (isr.len() < self.isr.len()).then(|| self.propose(isr))
    }

    fn propose(&mut self, isr: Vec<BrokerId>) -> IsrProposal {
        let with_epoch = isr.iter().map(|&broker| {
            let follower = self.followers.iter().find(|progress| progress.replica == broker);
            let fetched = follower.map(|progress| progress.broker_epoch).filter(|epoch| epoch.0 >= 0);
            (broker, fetched.or_else(|| self.brokers.epoch_of(broker)).unwrap_or(BrokerEpoch(-1)))
        });
        let proposal = IsrProposal {
            leader_epoch: self.epoch,
            partition_epoch: self.partition_epoch,
            isr: with_epoch.collect(),
        };
        self.proposed = Some(isr);
        proposal
    }

    /// Whether the controller's word on `proposal` is waited for.
    pub fn is_proposed(&self, proposal: &IsrProposal) -> bool {
        let is_last = proposal.partition_epoch == self.partition_epoch && proposal.leader_epoch == self.epoch;
        self.proposed.is_some() && is_last
    }

    /// Takes the controller's answer to `proposal`; true if those in sync are others now. An answer to a proposal that
    /// is not the last one changes nothing: the metadata has said more meanwhile.
    pub fn altered(&mut self, proposal: &IsrProposal, answer: Result<AlteredIsr, ErrorCode>) -> bool {
        if !self.is_proposed(proposal) {
            return false;
        }
        match answer {
            Ok(altered) if altered.leader_epoch == self.epoch => {
                self.isr = altered.isr;
                self.partition_epoch = altered.partition_epoch;
                self.proposed = None;
                true
            }
            // Never carried out.
            Err(ErrorCode::IneligibleReplica | ErrorCode::OperationNotAttempted) => {
                self.proposed = None;
                false
            }
            // It is not known whether it was, or the metadata is ahead of this broker: that has the last word.
            Ok(_) | Err(_) => false,
        }
    }
}

#[cfg(test)]
#[path = "leadership_tests.rs"]
mod tests;
