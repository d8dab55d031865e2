//! Who leads and who follows, as the newest image says: each replica of the shard takes its part in one step without
//! a file and without an await. What follows is kept by its leader, for whoever fetches from there.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use super::Shard;
use super::lifecycle::partition_image;
use super::placement::PartitionKey;
use super::replica::Replica;
use crate::base::{BrokerId, LeaderEpoch, clock};
use crate::io::runtime::Notify;
use crate::metadata::{Image, PartitionImage, TopicImage};
use crate::partition::Assignment;

/// The replicas that follow other brokers, and under which leadership.
#[derive(Default)]
pub(super) struct Follows {
    by_leader: RefCell<BTreeMap<BrokerId, BTreeMap<PartitionKey, LeaderEpoch>>>,
    leaders: RefCell<HashMap<PartitionKey, BrokerId, ahash::RandomState>>,
    changes: Cell<u64>,
    changed: Notify,
}

impl Follows {
    fn follow(&self, key: PartitionKey, leader: BrokerId, epoch: LeaderEpoch) {
        let before = self.leaders.borrow_mut().insert(key, leader);
        let mut by_leader = self.by_leader.borrow_mut();
        if let Some(parts) = before.filter(|before| *before != leader).and_then(|id| by_leader.get_mut(&id)) {
            parts.remove(&key);
        }
        if by_leader.entry(leader).or_default().insert(key, epoch) != Some(epoch) || before != Some(leader) {
            self.note_change();
        }
    }

    fn unfollow(&self, key: PartitionKey) {
        let Some(leader) = self.leaders.borrow_mut().remove(&key) else { return };
        if let Some(parts) = self.by_leader.borrow_mut().get_mut(&leader) {
            parts.remove(&key);
        }
        self.note_change();
    }

    fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
        self.changed.notify();
    }
}

impl Shard {
    /// The brokers that some replica of this shard follows, or has followed.
    pub fn followed_brokers(&self) -> Vec<BrokerId> {
        self.follows.by_leader.borrow().keys().copied().collect()
    }

    /// What follows `leader`, and in which of its leaderships.
    pub fn followers_of(&self, leader: BrokerId) -> Vec<(PartitionKey, LeaderEpoch)> {
        let by_leader = self.follows.by_leader.borrow();
        by_leader.get(&leader).into_iter().flatten().map(|(key, epoch)| (*key, *epoch)).collect()
    }

    /// Grows when some replica follows another broker, another leadership, or none any more.
    pub fn follow_changes(&self) -> u64 {
        self.follows.changes.get()
    }

    /// Told of each such change; one task may wait for it.
    pub fn follows_changed(&self) -> &Notify {
        &self.follows.changed
    }

    pub(super) fn unfollow(&self, key: PartitionKey) {
        self.follows.unfollow(key);
    }

    /// Takes note of the brokers that serve.
    pub(super) fn know_brokers(&self, image: &Image) {
        let alive = image.brokers().filter(|broker| broker.serves());
        self.brokers.set_alive(alive.map(|broker| (broker.id, broker.epoch)));
    }

    pub(super) fn update_roles(self: &Rc<Self>, topic: &Arc<TopicImage>) {
        for key in self.mine(topic, 0) {
            if let (Some(replica), Some(image)) = (self.replica(key), partition_image(topic, key)) {
                self.take_role(&replica, image);
            }
        }
    }

    /// Takes from a replica the part that the metadata does not have for it any more: it is to go.
    pub(super) fn give_up_role(self: &Rc<Self>, key: PartitionKey, topic: &TopicImage) {
        if let (Some(replica), Some(image)) = (self.replica(key), partition_image(topic, key)) {
            self.take_role(&replica, image);
            // It may be wanted again before it is gone: what it has must not count then.
            replica.is_leaving.set(true);
        }
        self.follows.unfollow(key);
    }

    /// Gives a replica the part that the metadata has for it. An offline one gets it when it comes back.
    pub(super) fn take_role(self: &Rc<Self>, replica: &Rc<Replica>, image: &PartitionImage) {
        let assignment = Assignment {
            leader: image.leader,
            leader_epoch: image.leader_epoch,
            partition_epoch: image.partition_epoch,
            replicas: &image.replicas,
            isr: &image.isr,
        };
        let key = replica.key;
        if replica.is_leaving.get() {
            return;
        }
        let mut committed = Vec::new();
        let assigned = replica.with(|partition| {
            let assigned = partition.assign(&assignment, &self.brokers, clock::now(), &mut committed);
            (assigned, partition.is_leader(), partition.leader_epoch())
        });
        self.finish_appends(committed);
        let Ok((assigned, leads, epoch)) = assigned else { return };
        let me = self.settings.broker;
        let is_mine = image.replicas.contains(&me);
        match image.leader.filter(|leader| is_mine && !leads && *leader != me) {
            Some(leader) => self.follows.follow(key, leader, epoch),
            None => self.follows.unfollow(key),
        }
        if assigned.is_demoted {
            self.release_fetches(key);
            self.forget_shares(key);
        } else if assigned.high_watermark_moved {
            self.wake_fetches(key);
        }
    }
}
