//! A replica's part in its partition: it leads, alone or with followers, or it follows. What the metadata says is
//! taken in one step that waits for nothing; nobody asks the log what it is.

use super::{
    AlteredIsr, Assignment, Brokers, Committed, FollowerFetch, IsrProposal, Leadership, Partition, Waterline,
};
use crate::base::clock::Now;
use crate::base::{BrokerId, LeaderEpoch, Offset};
use crate::io::Files;
use crate::wire::ErrorCode;

#[derive(Debug)]
pub(super) enum Role {
    /// It was not told yet.
    Idle,
    /// It leads and there is no other replica.
    Alone,
    Leader(Box<Leadership>),
    /// What the leader has told of its high watermark.
    Follower {
        high_watermark: Offset,
    },
}

/// What the metadata's word has changed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Assigned {
    /// Consumers may read further than before.
    pub high_watermark_moved: bool,
    /// It leads no more.
    pub is_demoted: bool,
}

impl<F: Files, T> Partition<F, T> {
    pub fn is_leader(&self) -> bool {
        matches!(self.role, Role::Alone | Role::Leader(_))
    }

    /// Whether it leads, and other replicas follow.
    pub fn has_followers(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// Takes what the metadata says. What is older than what is known is passed over.
    pub fn assign(
        &mut self,
        assignment: &Assignment<'_>,
        brokers: &Brokers,
        now: Now,
        committed: &mut Vec<Committed<T>>,
    ) -> Assigned {
        if assignment.leader_epoch < self.leader_epoch {
            return Assigned::default();
        }
        let is_newer = assignment.leader_epoch > self.leader_epoch;
        self.leader_epoch = assignment.leader_epoch;
        let led = self.is_leader();
        let leads = assignment.leader == Some(brokers.me());
        match leads {
            true if is_newer || !led => self.become_leader(assignment, brokers, now, committed),
            true => self.go_on_leading(assignment, brokers, now),
            false if led || matches!(self.role, Role::Idle) => self.become_follower(committed),
            false => {}
        }
        Assigned {
            high_watermark_moved: self.advance_high_watermark(now, committed),
            is_demoted: led && !leads,
        }
    }

    fn become_leader(
        &mut self,
        assignment: &Assignment<'_>,
        brokers: &Brokers,
        now: Now,
        committed: &mut Vec<Committed<T>>,
    ) {
        let led = self.is_leader();
        if led {
            // It came under the leadership before: whoever loads the log for this one must not miss it, so that it is
            // to be brought again.
            self.fail_queued(ErrorCode::NotLeaderOrFollower, committed);
        }
        self.log.begin_epoch(assignment.leader_epoch);
        self.role = self.leading(assignment, brokers, now);
        if matches!(self.role, Role::Alone) && !led {
            // What recovery kept is all there is: with one replica it is committed, synced or not.
            self.high_watermark = self.log.log_end();
            self.log.high_watermark_advanced(self.high_watermark);
        }
    }

    fn go_on_leading(&mut self, assignment: &Assignment<'_>, brokers: &Brokers, now: Now) {
        let end = self.log.log_end();
        match &mut self.role {
            Role::Leader(leadership) if assignment.replicas.len() > 1 => {
                leadership.set_assignment(assignment, end, now.monotonic);
            }
            Role::Alone if assignment.replicas.len() == 1 => {}
            _ => self.role = self.leading(assignment, brokers, now),
        }
    }

    fn leading(&self, assignment: &Assignment<'_>, brokers: &Brokers, now: Now) -> Role {
        match assignment.replicas {
            [_] => Role::Alone,
            _ => {
                let end = self.log.log_end();
                Role::Leader(Box::new(Leadership::new(brokers, assignment, end, now.monotonic)))
            }
        }
    }

    /// Whatever waits here is refused: another one answers for it from here on, or nobody.
    fn become_follower(&mut self, committed: &mut Vec<Committed<T>>) {
        self.fail_all(ErrorCode::NotLeaderOrFollower, committed);
        // An epoch that this broker began and wrote nothing in is not one of its records.
        self.log.forget_begun_epoch();
        self.role = Role::Follower { high_watermark: self.high_watermark };
    }

    /// Whether it leads and what is committed is not known to reach up to where it began: another may have committed more
    /// before (`Partition.fetchOffsetForTimestamp`).
    pub fn lags_behind_leadership(&self) -> bool {
        match &self.role {
            Role::Leader(leadership) => leadership.start() > self.high_watermark,
            Role::Alone | Role::Idle | Role::Follower { .. } => false,
        }
    }

    /// Whether it leads and the replica on that broker is in sync, as the metadata says.
    pub fn has_in_sync(&self, replica: BrokerId) -> bool {
        match &self.role {
            Role::Leader(leadership) => leadership.isr().contains(&replica),
            Role::Alone | Role::Idle | Role::Follower { .. } => false,
        }
    }

    /// How many must be in sync for a record to be committed: no more than there are replicas, whatever
    /// `min.insync.replicas` says (`Partition.effectiveMinIsr`).
    pub(super) fn min_in_sync(&self, leadership: &Leadership) -> usize {
        let configured = usize::try_from(self.config.min_insync_replicas).unwrap_or(0);
        configured.min(leadership.replica_count())
    }

    /// Whether what is written now would not be committed. It never is so where there is one replica.
    pub(super) fn lacks_replicas(&self) -> bool {
        match &self.role {
            Role::Leader(leadership) => leadership.isr().len() < self.min_in_sync(leadership),
            Role::Alone | Role::Idle | Role::Follower { .. } => false,
        }
    }

    /// Takes note of a follower's fetch, once it is known that its log does not part from this one; true when the high
    /// watermark moved.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER, and those of [`Leadership::fetched`].
    pub fn note_fetch(
        &mut self,
        fetch: FollowerFetch,
        now: Now,
        committed: &mut Vec<Committed<T>>,
    ) -> Result<bool, ErrorCode> {
        let leader_end = self.upper_bound(Waterline::LogEnd);
        match &mut self.role {
            Role::Leader(leadership) => leadership.fetched(fetch, leader_end, now.monotonic)?,
            Role::Alone => return Err(ErrorCode::UnknownLeaderEpoch),
            Role::Idle | Role::Follower { .. } => return Err(ErrorCode::NotLeaderOrFollower),
        }
        Ok(self.advance_high_watermark(now, committed))
    }

    /// Those in sync and a follower that has just fetched, for the controller, if it has come to be in sync.
    pub fn expand_isr(&mut self, follower: BrokerId) -> Option<IsrProposal> {
        match &mut self.role {
            Role::Leader(leadership) => leadership.expand(follower, self.high_watermark),
            _ => None,
        }
    }

    /// Those in sync without whoever is not any more, for the controller; to be asked from time to time.
    pub fn shrink_isr(&mut self, now: Now) -> Option<IsrProposal> {
        let end = self.log.log_end();
        match &mut self.role {
            Role::Leader(leadership) => leadership.shrink(end, now.monotonic),
            _ => None,
        }
    }

    /// Whether it still waits for the controller's word on a proposal.
    pub fn is_proposed(&self, proposal: &IsrProposal) -> bool {
        match &self.role {
            Role::Leader(leadership) => leadership.is_proposed(proposal),
            _ => false,
        }
    }

    /// Takes the controller's answer to a proposal; true when the high watermark moved.
    pub fn isr_altered(
        &mut self,
        proposal: &IsrProposal,
        answer: Result<AlteredIsr, ErrorCode>,
        now: Now,
        committed: &mut Vec<Committed<T>>,
    ) -> bool {
        let Role::Leader(leadership) = &mut self.role else { return false };
        leadership.altered(proposal, answer);
        self.advance_high_watermark(now, committed)
    }

    /// Checks the epoch a client believes in (KIP-320), -1 is not checked; and that this replica leads.
    pub fn check_leader_epoch(&self, current: LeaderEpoch) -> Result<(), ErrorCode> {
        self.check_epoch(current)?;
        match self.is_leader() {
            true => Ok(()),
            false => Err(ErrorCode::NotLeaderOrFollower),
        }
    }

    /// The same of a replica that may follow, for consumers that read from any (KIP-392).
    pub fn check_epoch(&self, current: LeaderEpoch) -> Result<(), ErrorCode> {
        match current {
            LeaderEpoch::NONE => {}
            epoch if epoch < self.leader_epoch => return Err(ErrorCode::FencedLeaderEpoch),
            epoch if epoch > self.leader_epoch => return Err(ErrorCode::UnknownLeaderEpoch),
            _ => {}
        }
        match self.role {
            Role::Alone | Role::Leader(_) | Role::Follower { .. } => Ok(()),
            Role::Idle => Err(ErrorCode::NotLeaderOrFollower),
        }
    }

    /// The replica on one of `brokers` that a consumer had better read from; `None` where this one does not lead, or none
    /// of them has what lies at `offset`.
    pub fn nearer_replica(&self, brokers: &[BrokerId], offset: Offset) -> Option<BrokerId> {
        match &self.role {
            Role::Leader(leadership) => leadership.nearer_replica(brokers, offset),
            Role::Alone | Role::Idle | Role::Follower { .. } => None,
        }
    }
}
