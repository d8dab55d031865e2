//! Who leads and who follows, as the newest image says: each replica of the shard takes its part in one step without
//! a file and without an await. What follows is kept by its leader, for whoever fetches from there.

use std::cell::RefCell;
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
    by_leader: RefCell<BTreeMap<BrokerId, Followed>>,
    leaders: RefCell<HashMap<PartitionKey, BrokerId, ahash::RandomState>>,
    changed: Notify,
}

/// What follows one broker.
#[derive(Default)]
struct Followed {
    parts: BTreeMap<PartitionKey, LeaderEpoch>,
    changes: u64,
}

impl Follows {
    fn follow(&self, key: PartitionKey, leader: BrokerId, epoch: LeaderEpoch) {
        let before = self.leaders.borrow_mut().insert(key, leader);
        if let Some(before) = before.filter(|before| *before != leader) {
            self.leave(key, before);
        }
        let mut by_leader = self.by_leader.borrow_mut();
        let followed = by_leader.entry(leader).or_default();
        if followed.parts.insert(key, epoch) != Some(epoch) {
            followed.changes += 1;
            self.changed.notify();
        }
    }

    fn unfollow(&self, key: PartitionKey) {
        if let Some(leader) = self.leaders.borrow_mut().remove(&key) {
            self.leave(key, leader);
        }
    }

    fn leave(&self, key: PartitionKey, leader: BrokerId) {
        if let Some(followed) = self.by_leader.borrow_mut().get_mut(&leader) {
            followed.parts.remove(&key);
            followed.changes += 1;
            self.changed.notify();
        }
    }

    fn of(&self, leader: BrokerId) -> Vec<(PartitionKey, LeaderEpoch)> {
        let by_leader = self.by_leader.borrow();
        let parts = by_leader.get(&leader).into_iter().flat_map(|followed| &followed.parts);
        parts.map(|(key, epoch)| (*key, *epoch)).collect()
    }

    fn changes(&self, leader: BrokerId) -> u64 {
        self.by_leader.borrow().get(&leader).map_or(0, |followed| followed.changes)
    }
}

/// What a replica is told of its partition.
pub fn assignment(image: &PartitionImage) -> Assignment<'_> {
    Assignment {
        leader: image.leader,
        leader_epoch: image.leader_epoch,
        partition_epoch: image.partition_epoch,
        replicas: &image.replicas,
        isr: &image.isr,
    }
}

/// Whom the replica on broker `me` follows that has been told of its part, and whether it `leads` by that.
pub fn followed(image: &PartitionImage, me: BrokerId, leads: bool) -> Option<BrokerId> {
    let is_mine = image.replicas.contains(&me);
    image.leader.filter(|leader| is_mine && !leads && *leader != me)
}

impl Shard {
    /// The brokers that some replica of this shard follows, or has followed.
    pub fn followed_brokers(&self) -> Vec<BrokerId> {
        self.follows.by_leader.borrow().keys().copied().collect()
    }

    /// What follows `leader`, and in which of its leaderships.
    pub fn followers_of(&self, leader: BrokerId) -> Vec<(PartitionKey, LeaderEpoch)> {
        self.follows.of(leader)
    }

    /// Grows when something begins or ceases to follow `leader`, or follows another leadership of it.
    pub fn follow_changes(&self, leader: BrokerId) -> u64 {
        self.follows.changes(leader)
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
        let assignment = assignment(image);
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
        match followed(image, me, leads) {
            Some(leader) => {
                // It gets what it lacks from there.
                replica.lack.set(None);
                self.follows.follow(key, leader, epoch);
            }
            None => self.follows.unfollow(key),
        }
        // Somebody has led before: there may have been records.
        if leads
            && epoch > LeaderEpoch(0)
            && let Some(lack) = replica.lack.take()
        {
            let partition = &replica.topic_partition;
            tracing::warn!(%partition, %epoch, "it leads with {lack}: what only this replica had is lost");
        }
        if assigned.is_demoted {
            self.release_fetches(key);
            self.forget_shares(key);
        } else if assigned.high_watermark_moved {
            self.wake_fetches(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{PartitionIndex, TopicId};

    #[test]
    fn a_change_is_one_of_the_brokers_that_it_concerns() {
        let key =
            |index| PartitionKey { topic: TopicId(uuid::Uuid::nil()), partition: PartitionIndex(index) };
        let (one, two) = (BrokerId(1), BrokerId(2));
        let follows = Follows::default();
        let changes = || (follows.changes(one), follows.changes(two));
        follows.follow(key(0), one, LeaderEpoch(1));
        follows.follow(key(1), one, LeaderEpoch(1));
        assert_eq!(changes(), (2, 0));
        follows.follow(key(0), one, LeaderEpoch(1));
        assert_eq!(changes(), (2, 0), "that was known");
        follows.follow(key(0), one, LeaderEpoch(2));
        assert_eq!(changes(), (3, 0));
        follows.follow(key(0), two, LeaderEpoch(3));
        assert_eq!(changes(), (4, 1));
        assert_eq!(follows.of(one), [(key(1), LeaderEpoch(1))]);
        assert_eq!(follows.of(two), [(key(0), LeaderEpoch(3))]);
        follows.unfollow(key(0));
        follows.unfollow(key(0));
        assert_eq!((changes(), follows.of(two)), ((4, 2), vec![]));
    }
}
