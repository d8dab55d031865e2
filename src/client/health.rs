//! Whether a cluster is well, from what it says of itself. No IO.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::messages::MetadataResponse;
use kafka_protocol::messages::metadata_response::MetadataResponsePartition;

use super::operate::{ClusterDescription, Quorum};
use super::reassign::UnderWay;
use crate::base::{BrokerId, PartitionIndex, TopicPartition};

/// A voter that has not had all of the leader's log for so long is behind.
const VOTER_BEHIND_MS: i64 = 10_000;

/// What is known of a cluster, gathered for [`Health::of`].
#[derive(Debug)]
pub struct Known {
    pub cluster: ClusterDescription,
    pub topics: MetadataResponse,
    pub under_way: BTreeMap<TopicPartition, UnderWay>,
    /// `min.insync.replicas` by topic.
    pub min_in_sync: BTreeMap<String, usize>,
    /// `None` where brokers do not tell.
    pub quorum: Option<Quorum>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub cluster_id: String,
    pub controller: Option<BrokerId>,
    pub alive: Vec<BrokerId>,
    pub fenced: Vec<BrokerId>,
    /// The quorum's voters, and those of them that are behind; `None` where brokers do not tell.
    pub voters: Option<(usize, Vec<BrokerId>)>,
    pub topics: usize,
    pub partitions: usize,
    /// Without leader.
    pub offline: Vec<TopicPartition>,
    /// With a leader and fewer in-sync replicas than `min.insync.replicas`: writes with acks=all are refused.
    pub under_min_isr: Vec<TopicPartition>,
    /// Fewer in-sync replicas than there are, those that a reassignment adds not counted.
    pub under_replicated: Vec<TopicPartition>,
    pub reassigning: Vec<TopicPartition>,
    /// Led by another than the first replica.
    pub led_elsewhere: Vec<TopicPartition>,
}

/// Each partition's part in [`Health`].
struct Finding {
    offline: bool,
    under_min_isr: bool,
    under_replicated: bool,
    led_elsewhere: bool,
}

impl Health {
    pub fn of(known: &Known) -> Self {
        let brokers = |fenced| {
            let some = known.cluster.brokers.iter().filter(move |broker| broker.fenced == fenced);
            some.map(|broker| broker.id).collect::<Vec<_>>()
        };
        let mut health = Self {
            cluster_id: known.cluster.id.clone(),
            controller: known.quorum.as_ref().map_or(known.cluster.controller, leader),
            alive: brokers(false),
            fenced: brokers(true),
            voters: known.quorum.as_ref().map(|quorum| (quorum.voters.len(), behind(quorum))),
            reassigning: known.under_way.keys().cloned().collect(),
            ..Self::default()
        };
        for topic in &known.topics.topics {
            let Some(name) = topic.name.as_ref().filter(|_| topic.error_code == 0) else { continue };
            health.topics += 1;
            // Of a topic that is gone meanwhile nothing is known.
            let Some(&min_in_sync) = known.min_in_sync.get(&*name.0) else { continue };
            for partition in &topic.partitions {
                let key = TopicPartition::new(&*name.0, PartitionIndex(partition.partition_index));
                let finding = find(partition, known.under_way.get(&key), min_in_sync);
                health.add(key, &finding);
            }
        }
        for list in [
            &mut health.offline,
            &mut health.under_min_isr,
            &mut health.under_replicated,
            &mut health.led_elsewhere,
        ] {
            list.sort();
        }
        health
    }

    fn add(&mut self, partition: TopicPartition, finding: &Finding) {
        self.partitions += 1;
        for (is_so, list) in [
            (finding.offline, &mut self.offline),
            (finding.under_min_isr, &mut self.under_min_isr),
            (finding.under_replicated, &mut self.under_replicated),
            (finding.led_elsewhere, &mut self.led_elsewhere),
        ] {
            if is_so {
                list.push(partition.clone());
            }
        }
    }

    /// What is not as it should be, each in a few words. A reassignment is no fault, and neither is a leader that is not
    /// the first replica.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.controller.is_none() {
            faults.push("there is no controller".to_owned());
        }
        let many = |count: usize, one: &str, more: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{count} {more}"),
        };
        if !self.fenced.is_empty() {
            let listed: Vec<String> = self.fenced.iter().map(BrokerId::to_string).collect();
            let count = many(self.fenced.len(), "broker is fenced", "brokers are fenced");
            faults.push(format!("{count} ({})", listed.join(",")));
        }
        if let Some((_, behind)) = self.voters.as_ref().filter(|(_, behind)| !behind.is_empty()) {
            let listed: Vec<String> = behind.iter().map(BrokerId::to_string).collect();
            let count = many(behind.len(), "voter is behind", "voters are behind");
            faults.push(format!("{count} ({})", listed.join(",")));
        }
        for (list, what) in [
            (&self.offline, "offline"),
            (&self.under_min_isr, "under min ISR"),
            (&self.under_replicated, "under-replicated"),
        ] {
            if !list.is_empty() {
                let verb = many(list.len(), "partition is", "partitions are");
                faults.push(format!("{verb} {what}"));
            }
        }
        faults
    }
}

fn leader(quorum: &Quorum) -> Option<BrokerId> {
    Some(quorum.leader).filter(|id| id.0 >= 0)
}

/// Compared with the leader, whose own entry has the time of the answer.
fn behind(quorum: &Quorum) -> Vec<BrokerId> {
    let leader = quorum.voters.iter().find(|voter| voter.id == quorum.leader);
    let now = leader.and_then(|leader| leader.last_caught_up);
    let Some(now) = now else { return Vec::new() };
    let is_behind = |caught_up: Option<crate::base::clock::Timestamp>| {
        caught_up.is_none_or(|time| now.0.saturating_sub(time.0) > VOTER_BEHIND_MS)
    };
    quorum.voters.iter().filter(|voter| is_behind(voter.last_caught_up)).map(|voter| voter.id).collect()
}

fn find(partition: &MetadataResponsePartition, under_way: Option<&UnderWay>, min_in_sync: usize) -> Finding {
    let in_sync: BTreeSet<i32> = partition.isr_nodes.iter().map(|id| id.0).collect();
    let adding = under_way.map_or(&[][..], |under_way| &under_way.adding);
    let is_added = |id: i32| adding.contains(&BrokerId(id));
    let meant = partition.replica_nodes.iter().filter(|id| !is_added(id.0)).count();
    let offline = partition.leader_id.0 < 0;
    Finding {
        offline,
        under_min_isr: !offline && in_sync.len() < min_in_sync.min(partition.replica_nodes.len()),
        under_replicated: in_sync.len() < meant,
        led_elsewhere: !offline && partition.replica_nodes.first() != Some(&partition.leader_id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Timestamp;
    use crate::base::{LeaderEpoch, Offset, TopicId};
    use crate::client::{ClusterBroker, QuorumReplica};
    use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
    use kafka_protocol::protocol::StrBytes;

    /// Leader, replicas, ISR.
    fn partition(index: i32, leader: i32, replicas: &[i32], isr: &[i32]) -> MetadataResponsePartition {
        let ids = |ids: &[i32]| ids.iter().map(|id| (*id).into()).collect::<Vec<_>>();
        MetadataResponsePartition::default()
            .with_partition_index(index)
            .with_leader_id(leader.into())
            .with_replica_nodes(ids(replicas))
            .with_isr_nodes(ids(isr))
    }

    fn known(fenced: &[i32], partitions: Vec<MetadataResponsePartition>) -> Known {
        let topic = MetadataResponseTopic::default()
            .with_name(Some(StrBytes::from_static_str("t").into()))
            .with_partitions(partitions);
        let broker = |id: i32| ClusterBroker {
            id: BrokerId(id),
            host: "h".into(),
            port: 1,
            rack: None,
            fenced: fenced.contains(&id),
        };
        Known {
            cluster: ClusterDescription {
                id: "cluster".into(),
                controller: Some(BrokerId(1)),
                brokers: (1..=3).map(broker).collect(),
            },
            topics: MetadataResponse::default().with_topics(vec![topic]),
            under_way: BTreeMap::new(),
            min_in_sync: BTreeMap::from([("t".to_owned(), 2)]),
            quorum: None,
        }
    }

    fn indexes(list: &[TopicPartition]) -> Vec<i32> {
        list.iter().map(|partition| partition.partition.0).collect()
    }

    #[test]
    fn partitions_are_told_by_what_they_lack() {
        let health = Health::of(&known(
            &[3],
            vec![
                partition(4, 1, &[1], &[1]),
                partition(3, 2, &[1, 2, 3], &[3, 2, 1]),
                partition(2, 1, &[1, 2, 3], &[1]),
                partition(1, -1, &[3, 2], &[3]),
                partition(0, 1, &[1, 2, 3], &[1, 2]),
            ],
        ));
        assert_eq!((health.topics, health.partitions), (1, 5));
        assert_eq!(indexes(&health.offline), [1]);
        assert_eq!(indexes(&health.under_min_isr), [2], "one replica has no more to ask for");
        assert_eq!(indexes(&health.under_replicated), [0, 1, 2]);
        assert_eq!(indexes(&health.led_elsewhere), [3]);
        let faults = health.faults().join(", ");
        let expected = "1 broker is fenced (3), 1 partition is offline, 1 partition is under min ISR, \
                        3 partitions are under-replicated";
        assert_eq!(faults, expected);
    }

    #[test]
    fn a_replica_that_a_reassignment_adds_is_not_missed() {
        let mut known = known(&[], vec![partition(0, 1, &[3, 1, 2], &[1, 2])]);
        let ids = |ids: &[i32]| ids.iter().copied().map(BrokerId).collect::<Vec<_>>();
        let moving = UnderWay { replicas: ids(&[3, 1, 2]), adding: ids(&[3]), removing: ids(&[2]) };
        assert_eq!(indexes(&Health::of(&known).under_replicated), [0]);
        known.under_way.insert(TopicPartition::new("t", PartitionIndex(0)), moving);
        let health = Health::of(&known);
        assert_eq!((indexes(&health.under_replicated), indexes(&health.reassigning)), (vec![], vec![0]));
        assert!(health.faults().is_empty());
    }

    #[test]
    fn a_voter_that_is_behind_is_a_fault() {
        let voter = |id: i32, caught_up: Option<i64>| QuorumReplica {
            id: BrokerId(id),
            directory: TopicId::ZERO,
            log_end: Offset(7),
            last_fetch: None,
            last_caught_up: caught_up.map(Timestamp),
        };
        let mut known = known(&[], Vec::new());
        known.quorum = Some(Quorum {
            leader: BrokerId(2),
            epoch: LeaderEpoch(4),
            high_watermark: Offset(7),
            voters: vec![
                voter(1, Some(90_000)),
                voter(2, Some(100_001)),
                voter(3, Some(90_001)),
                voter(4, None),
            ],
            observers: vec![voter(9, None)],
        });
        let health = Health::of(&known);
        assert_eq!(health.controller, Some(BrokerId(2)));
        assert_eq!(health.faults(), ["2 voters are behind (1,4)"]);
    }
}
