//! The controllers of the cluster: where they are reached, and which directory each has its metadata log in.
//!
//! A controller's directory becomes known with the first hello and is then pinned by an entry of the metadata log: from
//! there on a node that comes with another has lost its votes, and nobody speaks with it. Nodes that are no controllers
//! have no votes to lose: they are let in for what a broker asks, wherever they come from.

use std::cell::RefCell;
use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Identity, Lane, Refusal};
use crate::base::BrokerId;
use crate::wire::ErrorCode;

/// Stands for the first of the servers by which a node finds controllers that it does not know by their ids.
const FIRST_SERVER: i32 = -2;

/// Host and port.
pub type Address = (String, u16);

/// Lives on one shard, beside the links.
pub struct Roster {
    /// Of the configuration, or of the metadata log where controllers come and go.
    controllers: RefCell<BTreeMap<BrokerId, Address>>,
    /// What other controllers have told, beside that: the log here may be far behind.
    told: RefCell<BTreeMap<BrokerId, Address>>,
    servers: Vec<Address>,
    /// The configuration says where the controllers are.
    is_named: bool,
    pinned: RefCell<BTreeMap<BrokerId, Uuid>>,
    /// The same of all that have a place in the metadata log, with a vote or not.
    members: RefCell<BTreeMap<BrokerId, Uuid>>,
    seen: RefCell<BTreeMap<BrokerId, Uuid>>,
}

impl Roster {
    /// Where each controller is; this node may be among them. `servers` are addresses of controllers whose ids are not known.
    pub fn new(controllers: BTreeMap<BrokerId, Address>, servers: Vec<Address>) -> Self {
        let (is_named, controllers) = (!controllers.is_empty(), RefCell::new(controllers));
        let (told, pinned, members, seen) = Default::default();
        Self { controllers, told, servers, is_named, pinned, members, seen }
    }

    /// Whether the configuration says where the controllers are.
    pub fn is_named(&self) -> bool {
        self.is_named
    }

    /// Where each controller is.
    pub fn controllers(&self) -> BTreeMap<BrokerId, Address> {
        let mut all = self.told.borrow().clone();
        all.extend(self.controllers.borrow().clone());
        all
    }

    /// The names of the servers for [`super::Links::link`]: whatever controller answers there is welcome.
    pub fn servers(&self) -> impl Iterator<Item = BrokerId> + use<> {
        (0..self.servers.len() as i32).map(|number| BrokerId(FIRST_SERVER - number))
    }

    /// Takes over what another controller tells of where they are.
    pub fn learn(&self, told: BTreeMap<BrokerId, Address>) {
        *self.told.borrow_mut() = told;
    }

    /// Takes over what the metadata log says.
    pub fn set(&self, controllers: BTreeMap<BrokerId, Address>) {
        *self.controllers.borrow_mut() = controllers;
    }

    /// Where a controller is that is about to be in the metadata log.
    pub fn hint(&self, node: BrokerId, address: &Address) {
        self.told.borrow_mut().entry(node).or_insert_with(|| address.clone());
    }

    fn is_controller(&self, node: BrokerId) -> bool {
        self.controllers.borrow().contains_key(&node) || self.told.borrow().contains_key(&node)
    }

    pub(super) fn address(&self, node: BrokerId) -> Option<Address> {
        match usize::try_from(FIRST_SERVER.saturating_sub(node.0)) {
            Ok(number) => self.servers.get(number).cloned(),
            Err(_) => {
                let known = self.controllers.borrow().get(&node).cloned();
                known.or_else(|| self.told.borrow().get(&node).cloned())
            }
        }
    }

    /// What the metadata log says of the directories of those that vote.
    pub fn pin(&self, directories: BTreeMap<BrokerId, Uuid>) {
        *self.pinned.borrow_mut() = directories;
    }

    /// And of all that have a place in it, with a vote or not: the log is sent to no other one.
    pub fn pin_members(&self, directories: BTreeMap<BrokerId, Uuid>) {
        *self.members.borrow_mut() = directories;
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
        self.controllers.borrow().keys().all(|node| pinned.contains_key(node))
    }

    /// Whether `own` lets `other` ask what `lane` is for.
    pub(super) fn admit(&self, own: &Identity, other: &Identity, lane: Lane) -> Result<(), Refusal> {
        check_ids(own, other)?;
        match self.is_controller(other.node) {
            // Whoever has lost its disk may have its old self taken out.
            true if lane == Lane::Voters => Ok(()),
            true => self.check_directory(other),
            false if lane.is_brokers() => Ok(()),
            false => {
                let text = format!("Node {} is no controller of the cluster.", other.node);
                Err(Refusal::new(ErrorCode::ClusterAuthorizationFailed, text))
            }
        }
    }

    /// Whether `own` asks `other`, found where the controller `wanted` should be, which may be one of the servers.
    pub(super) fn check(
        &self,
        own: &Identity,
        other: &Identity,
        wanted: BrokerId,
        lane: Lane,
    ) -> Result<(), Refusal> {
        check_ids(own, other)?;
        if wanted.0 >= 0 && other.node != wanted {
            let text = format!("Node {} answers where node {wanted} should.", other.node);
            return Err(Refusal::new(ErrorCode::InvalidVoterKey, text));
        }
        // Whoever had no vote and has a new disk may say so; until it has, nothing is sent to it as the one that it was.
        let member = self.members.borrow().get(&other.node).copied();
        match member.filter(|member| lane.is_rafts() && *member != other.directory) {
            Some(member) => Err(other_directory(other, member)),
            None => self.check_directory(other),
        }
    }

    fn check_directory(&self, other: &Identity) -> Result<(), Refusal> {
        let pinned = self.pinned.borrow().get(&other.node).copied();
        match pinned.filter(|pinned| *pinned != other.directory) {
            None => Ok(()),
            Some(pinned) => Err(other_directory(other, pinned)),
        }
    }

    /// Notes a controller that has proved itself.
    pub(super) fn met(&self, other: &Identity) {
        if self.is_controller(other.node) {
            self.seen.borrow_mut().insert(other.node, other.directory);
        }
    }
}

fn other_directory(other: &Identity, known: Uuid) -> Refusal {
    let text = format!(
        "Node {} has its metadata log in directory {known}, not in {}: a node that has lost its disk must not vote as \
         the one that it was.",
        other.node, other.directory
    );
    Refusal::new(ErrorCode::InvalidVoterKey, text)
}

/// Both are of one cluster, and not the same node.
fn check_ids(own: &Identity, other: &Identity) -> Result<(), Refusal> {
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
    Ok(())
}
