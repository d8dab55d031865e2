//! What must hold: what was acknowledged or read stays where it was, once and in order, and what the metadata says of a
//! partition can be.

use std::collections::{BTreeMap, BTreeSet};

use kuring::base::{BrokerId, LeaderEpoch, Offset, ProducerId};
use kuring::metadata::{ConfigResource, Image, PartitionImage, TopicImage};
use kuring::shard::PartitionKey;

use super::ledger::Ledger;
use super::world::key_of;

/// A record: its producer's number, and how many that one wrote before.
pub type Value = (u64, u64);

/// What is known of one partition.
#[derive(Default)]
pub struct History {
    /// Acknowledged to its producer, or read by a consumer.
    pub committed: BTreeMap<i64, Value>,
    /// The end of what a coordinator was told is committed here.
    state_end: i64,
    /// What leaders have come to know to be committed.
    pub known_end: Offset,
    /// Operators had records deleted up to here, by the leader's word.
    pub deleted_to: i64,
    /// Its log is bounded by its settings, too.
    pub is_bounded: bool,
    /// A replica was made leader that may lack records, as the topic's settings say: what was committed is not any more.
    pub is_unclean: bool,
    high_watermarks: BTreeMap<LeaderEpoch, Offset>,
    leaders: BTreeMap<LeaderEpoch, Option<BrokerId>>,
}

impl History {
    /// Something of it may have been deleted.
    pub fn is_cut_off(&self) -> bool {
        self.deleted_to > 0 || self.is_bounded
    }

    /// The end of what must not be lost.
    pub fn committed_end(&self) -> i64 {
        self.committed.last_key_value().map_or(0, |(last, _)| last + 1).max(self.state_end)
    }
}

#[derive(Default)]
pub struct Checker {
    pub partitions: BTreeMap<PartitionKey, History>,
    producer_ids: BTreeSet<ProducerId>,
    pub ledger: Ledger,
    /// Times that a follower has served a consumer, and that one began its log anew.
    pub followers_served: usize,
    pub begun_anew: usize,
    /// Times that a compacted log was cleaned.
    pub cleaned: usize,
    pub failure: Option<String>,
    pub records: usize,
    pub elections: usize,
}

impl Checker {
    pub fn fail(&mut self, what: impl Into<String>) {
        self.failure.get_or_insert(what.into());
    }

    pub fn history(&mut self, key: PartitionKey) -> &mut History {
        self.partitions.entry(key).or_default()
    }

    /// These records are there for good.
    pub fn committed(&mut self, key: PartitionKey, records: impl Iterator<Item = (i64, Value)>, how: &str) {
        let history = self.partitions.entry(key).or_default();
        if history.is_unclean {
            return;
        }
        let mut wrong = None;
        for (offset, value) in records {
            let known = *history.committed.entry(offset).or_insert(value);
            if known != value && wrong.is_none() {
                wrong = Some(format!("{how}: {value:?} at offset {offset}, where {known:?} was"));
            }
        }
        if let Some(wrong) = wrong {
            self.fail(wrong);
        }
    }

    pub fn acknowledged(&mut self, key: PartitionKey, first: Offset, values: &[Value]) {
        self.records += values.len();
        self.committed(key, (first.0..).zip(values.iter().copied()), "acknowledged");
    }

    /// A coordinator's record is there for good.
    pub fn state_written(&mut self, key: PartitionKey, last: Offset) {
        let end = &mut self.history(key).state_end;
        *end = (*end).max(last.0 + 1);
    }

    /// A consumer that wants committed transactions alone has read these.
    pub fn read_committed(&mut self, key: PartitionKey, values: impl Iterator<Item = Value>) {
        if self.history(key).is_unclean {
            return;
        }
        for value in values {
            if let Err(wrong) = self.ledger.read(value) {
                self.fail(wrong);
            }
        }
    }

    /// A leader shows consumers what lies below `high_watermark`.
    pub fn serves(
        &mut self,
        key: PartitionKey,
        leader: BrokerId,
        epoch: LeaderEpoch,
        high_watermark: Offset,
    ) {
        let history = self.partitions.entry(key).or_default();
        let known = history.high_watermarks.entry(epoch).or_insert(high_watermark);
        let before = *known;
        *known = before.max(high_watermark);
        let elected = history.leaders.get(&epoch).copied().flatten();
        if before > high_watermark {
            self.fail(format!(
                "the high watermark of epoch {epoch} went back from {before} to {high_watermark}"
            ));
        }
        if elected != Some(leader) {
            self.fail(format!("broker {leader} leads in epoch {epoch}, {elected:?} was elected"));
        }
    }

    pub fn given_out(&mut self, id: ProducerId) {
        if !self.producer_ids.insert(id) {
            self.fail(format!("producer id {id} was given out twice"));
        }
    }

    /// The metadata has changed.
    pub fn image_changed(&mut self, old: &Image, new: &Image) {
        for topic in new.topics() {
            let before = old.topic_by_id(topic.id);
            for (index, partition) in topic.numbered() {
                let before = before.and_then(|topic| topic.partition(index));
                if before.is_none_or(|before| before != partition) {
                    self.partition_changed(
                        (old, new),
                        topic,
                        key_of(topic, index),
                        before.map(|old| &**old),
                        partition,
                    );
                }
            }
        }
    }

    fn partition_changed(
        &mut self,
        (image_before, image): (&Image, &Image),
        topic: &TopicImage,
        key: PartitionKey,
        old: Option<&PartitionImage>,
        new: &PartitionImage,
    ) {
        let has = |members: &[BrokerId], broker: BrokerId| members.contains(&broker);
        let transit = new.transit();
        let is_sound = new.isr.iter().all(|member| has(&new.replicas, *member))
            && new.leader.is_none_or(|leader| has(&new.isr, leader))
            && transit.elr.iter().all(|member| has(&new.replicas, *member) && !has(&new.isr, *member));
        if !is_sound {
            self.fail(format!("the metadata has a partition that cannot be: {new:?}"));
        }
        let elected = *self.history(key).leaders.entry(new.leader_epoch).or_insert(new.leader);
        if elected != new.leader {
            self.fail(format!("epoch {} has the leaders {elected:?} and {:?}", new.leader_epoch, new.leader));
        }
        let Some(old) = old else { return };
        if new.leader_epoch < old.leader_epoch || new.partition_epoch <= old.partition_epoch {
            self.fail(format!("epochs went back: {old:?}, then {new:?}"));
        }
        let Some(leader) = new.leader.filter(|leader| old.leader != Some(*leader)) else { return };
        self.elections += 1;
        let before = old.transit();
        let has_all =
            has(&old.isr, leader) || has(&before.elr, leader) || has(&new.isr, leader) && new.isr.len() > 1;
        // Nobody else was in sync after it, or is eligible: whoever was has come back without being sure of it.
        let epoch = |image: &Image, id| image.broker(id).map(|broker| broker.epoch);
        let is_the_same = |id| epoch(image_before, id) == epoch(image, id);
        let is_eligible = before.elr.iter().any(|member| is_the_same(*member));
        let led_last = !is_eligible && before.last_known.or(old.leader) == Some(leader) && transit.recovering;
        if has_all || led_last {
            return;
        }
        let settings = image.overrides(&ConfigResource::Topic(topic.name.clone()));
        match settings.get("unclean.leader.election.enable").map(String::as_str) {
            Some("true") => self.unclean(key),
            _ => self.fail(format!("broker {leader} leads and was not in sync: {old:?}, then {new:?}")),
        }
    }

    /// What was committed may be lost from here on.
    pub fn unclean(&mut self, key: PartitionKey) {
        let history = self.history(key);
        history.is_unclean = true;
        history.committed.clear();
        history.state_end = 0;
        history.known_end = Offset(i64::MAX);
    }
}
