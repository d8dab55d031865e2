//! The types that openraft is made of here.

use std::fmt;
use std::sync::Arc;

use openraft::type_config::alias::{EntryOf, LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf};

use super::runtime::ShardRuntime;
use crate::metadata::Record;

openraft::declare_raft_types!(
    /// openraft's associated types.
    pub Types:
        D = Proposal,
        R = (),
        NodeId = u64,
        Node = openraft::BasicNode,
        AsyncRuntime = ShardRuntime,
);

/// A term and the node that led it. With `advanced` ids two nodes may win the same term; the greater id
/// then stands.
pub type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, u64>;
pub type LogId = LogIdOf<Types>;
pub type Vote = VoteOf<Types>;
pub type Entry = EntryOf<Types>;
pub type Membership = openraft::Membership<u64, openraft::BasicNode>;
pub type StoredMembership = StoredMembershipOf<Types>;
pub type SnapshotMeta = SnapshotMetaOf<Types>;

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
