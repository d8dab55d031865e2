//! The types that openraft is made of here.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use openraft::type_config::alias::{
    CommittedLeaderIdOf, EntryOf, LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf,
};
use uuid::Uuid;

use super::runtime::ShardRuntime;
use crate::base::BrokerId;
use crate::metadata::Record;
use crate::peer::Address;

openraft::declare_raft_types!(
    /// openraft's associated types.
    pub Types:
        D = Proposal,
        R = (),
        NodeId = Seat,
        Node = Member,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, Seat>,
        AsyncRuntime = ShardRuntime,
);

/// A term and who was voted for in it: at most one node leads in a term, so that the term is the controller's epoch.
pub type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, Seat>;
/// Of an entry: the term alone.
pub type CommittedLeaderId = CommittedLeaderIdOf<Types>;
pub type LogId = LogIdOf<Types>;
pub type Vote = VoteOf<Types>;
pub type Entry = EntryOf<Types>;
pub type Membership = openraft::Membership<Seat, Member>;
pub type StoredMembership = StoredMembershipOf<Types>;
pub type SnapshotMeta = SnapshotMetaOf<Types>;

/// Whether whoever has the vote `own` still takes what a leader with `other` says. Votes are ordered in part only.
pub fn yields_to(own: &Vote, other: &Vote) -> bool {
    matches!(own.partial_cmp(other), Some(Ordering::Less | Ordering::Equal))
}

/// Whose log it is: a number that is never given to another log, because a vote in it counts for ever. A first
/// voter's is its node id, later ones begin at [`Seat::LATER`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Seat(pub u64);

impl Seat {
    /// Node ids are below.
    pub const LATER: u64 = 1 << 32;

    /// Of a voter that the cluster begins with; `None` for a negative id.
    pub fn first_of(node: BrokerId) -> Option<Seat> {
        u64::try_from(node.0).ok().map(Seat)
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who sits there.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Member {
    pub node: BrokerId,
    /// Where its log is; nil until the leader has met it.
    pub directory: Uuid,
    /// Where other controllers reach it; `None` where their configuration says it.
    pub address: Option<Address>,
}

/// The records of one command: applied together or not at all. A clone shares them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    pub records: Arc<[Record]>,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records", self.records.len())
    }
}

/// For openraft's test of stores, which makes entries up.
#[cfg(test)]
impl From<u64> for Proposal {
    fn from(number: u64) -> Self {
        Self { records: Arc::from([Record::Feature { name: number.to_string(), level: 1 }]) }
    }
}
