//! The nodes of the cluster: where they are reached, and which directory each has its metadata log in.
//!
//! A node's directory becomes known with the first hello and is then pinned by an entry of the metadata log: from
//! there on a node that comes with another has lost its votes, and nobody speaks with it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Identity, Refusal};
use crate::base::BrokerId;
use crate::wire::ErrorCode;

/// Lives on one shard, beside the links.
pub struct Roster {
    addresses: BTreeMap<BrokerId, (String, u16)>,
    pinned: RefCell<BTreeMap<BrokerId, Uuid>>,
    seen: RefCell<BTreeMap<BrokerId, Uuid>>,
}

impl Roster {
    /// Host and port of each node; this one may be among them.
    pub fn new(addresses: BTreeMap<BrokerId, (String, u16)>) -> Self {
        Self { addresses, pinned: RefCell::default(), seen: RefCell::default() }
    }

    pub fn nodes(&self) -> impl Iterator<Item = BrokerId> {
        self.addresses.keys().copied()
    }

    pub(super) fn address(&self, node: BrokerId) -> Option<(String, u16)> {
        self.addresses.get(&node).cloned()
    }

    /// What the metadata log says of the nodes' directories.
    pub fn pin(&self, directories: BTreeMap<BrokerId, Uuid>) {
        *self.pinned.borrow_mut() = directories;
    }

    /// The directories that nodes have said to have, of those that are not pinned yet.
    pub fn unpinned(&self) -> BTreeMap<BrokerId, Uuid> {
        let pinned = self.pinned.borrow();
        let seen = self.seen.borrow();
        seen.iter().filter(|(node, _)| !pinned.contains_key(node)).map(|(node, id)| (*node, *id)).collect()
    }

    /// Whether all nodes' directories are pinned.
    pub fn is_pinned(&self) -> bool {
        let pinned = self.pinned.borrow();
        self.addresses.keys().all(|node| pinned.contains_key(node))
    }

    /// Whether `own` speaks with `other`, who may still have to prove that it is what it says.
    pub(super) fn check(&self, own: &Identity, other: &Identity) -> Result<(), Refusal> {
        if other.cluster_id != own.cluster_id {
            let text = format!(
                "Node {} is of cluster {}, node {} of cluster {}.",
                own.node, own.cluster_id, other.node, other.cluster_id
            );
            return Err(Refusal::new(ErrorCode::InconsistentClusterId, text));
        }
        if other.node == own.node {
            let text = format!("There is another node {}.", own.node);
            return Err(Refusal::new(ErrorCode::DuplicateBrokerRegistration, text));
        }
        if !self.addresses.contains_key(&other.node) {
            let text = format!("Node {} is not one of the cluster's.", other.node);
            return Err(Refusal::new(ErrorCode::ClusterAuthorizationFailed, text));
        }
        let pinned = self.pinned.borrow().get(&other.node).copied();
        if let Some(pinned) = pinned.filter(|pinned| *pinned != other.directory) {
            let text = format!(
                "Node {} has its metadata log in directory {pinned}, not in {}: a node that has lost its disk \
                 must not vote as the one that it was.",
                other.node, other.directory
            );
            return Err(Refusal::new(ErrorCode::InvalidVoterKey, text));
        }
        Ok(())
    }

    /// Notes a node that has proved itself.
    pub(super) fn met(&self, other: &Identity) {
        self.seen.borrow_mut().insert(other.node, other.directory);
    }
}
