//! What is looked at while a run goes on and when it ends: those in sync have what was committed, and in the end all
//! replicas are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use kuring::base::{BrokerId, Offset};
use kuring::metadata::PartitionImage;
use kuring::shard::PartitionKey;

use super::broker::Broker;
use super::checker::Value;
use super::clients::{Client, values};
use super::world::{Node, SECOND, TOPIC, World, key_of};
use crate::home::ensure;

const CONVERGE_US: u64 = 30 * SECOND;

impl World {
    pub fn partitions(&self) -> Vec<(PartitionKey, Arc<PartitionImage>)> {
        let Some(topic) = self.quorum.image().topic(TOPIC) else { return Vec::new() };
        topic.numbered().map(|(index, partition)| (key_of(topic, index), partition.clone())).collect()
    }

    /// The first partition as the metadata has it.
    pub fn partition(&self) -> Arc<PartitionImage> {
        self.partitions()[0].1.clone()
    }

    /// The node that leads the first partition.
    pub fn leader(&self) -> Option<usize> {
        self.partition().leader.map(|leader| leader.0 as usize)
    }

    /// The broker of a replica, as the process that the metadata knows.
    fn in_service(&mut self, id: BrokerId) -> Option<&mut Broker> {
        let epoch = self.quorum.image().broker(id)?.epoch;
        let broker = self.nodes[id.0 as usize].broker.as_mut()?;
        (broker.epoch() == Some(epoch)).then_some(broker)
    }

    /// Whoever is in sync has what was committed.
    pub fn look_at_isr(&mut self) {
        for (key, partition) in self.partitions() {
            let committed = self.checker.history(key).committed_end();
            for member in &partition.isr {
                let Some(broker) = self.in_service(*member) else { continue };
                let Some(replica) = broker.replicas.get(&key) else { continue };
                let end = replica.log().log_end().0;
                if end < committed {
                    let text =
                        format!("broker {member} is in sync and ends at {end}, {committed} was committed");
                    self.checker.fail(text);
                }
            }
        }
    }

    /// The same with a look at the records.
    pub fn read_committed(&mut self) -> Result<(), String> {
        for (key, partition) in self.partitions() {
            let committed = self.checker.history(key).committed_end();
            for member in &partition.isr {
                let Some(replica) = self.in_service(*member).and_then(|broker| broker.replicas.get_mut(&key))
                else {
                    continue;
                };
                let end = Offset(committed.min(replica.log().log_end().0));
                let found = values(&replica.contents(end)?)?;
                let known = self.checker.history(key).committed.clone();
                for (offset, value) in found {
                    ensure!(
                        known.get(&offset).is_none_or(|known| *known == value),
                        "broker {member} has {value:?} at offset {offset}, not {:?}",
                        known.get(&offset)
                    );
                }
            }
        }
        Ok(())
    }

    /// Nodes that have come back and caught up everywhere are not lost any more.
    pub fn find_recovered(&mut self) {
        for node in self.lost.keys().copied().collect::<Vec<_>>() {
            let id = BrokerId(node as i32);
            let serves = self.quorum.image().broker(id).is_some_and(|broker| broker.serves());
            let is_behind =
                |partition: &PartitionImage| partition.replicas.contains(&id) && !partition.isr.contains(&id);
            let is_behind = self.partitions().iter().any(|(_, partition)| is_behind(partition));
            if serves && !is_behind && self.in_service(id).is_some() {
                self.lost.remove(&node);
            }
        }
    }

    /// Ends all faults, and waits until everything is in order again.
    pub fn converge(&mut self) -> Result<(), String> {
        self.network.heal();
        for node in 0..self.nodes.len() {
            let (slow, paused) = (&mut self.nodes[node].is_slow, self.time);
            *slow = false;
            self.nodes[node].paused_until = paused;
            self.start_after(node, 0);
        }
        let mut before = String::new();
        let is_so = |world: &World| {
            before = world.obstacle();
            before.is_empty()
        };
        ensure!(self.run_until(CONVERGE_US, is_so)?, "it does not come into order: {before}");
        for client in &mut self.clients {
            if let Client::Producer(producer) = client {
                producer.stops = true;
            }
        }
        let all_done = |world: &World| world.unanswered().is_empty();
        ensure!(self.run_until(CONVERGE_US, all_done)?, "no answer: {:?}", self.unanswered());
        self.run_for(SECOND)?;
        let all_committed = |world: &World| {
            before = world.uncommitted();
            before.is_empty()
        };
        ensure!(self.run_until(CONVERGE_US, all_committed)?, "{before}");
        self.compare_logs()
    }

    /// A replica with a high watermark that is not at its end; empty: there is none.
    fn uncommitted(&self) -> String {
        for (key, partition) in self.partitions() {
            for id in &partition.replicas {
                let broker = self.nodes[id.0 as usize].broker.as_ref();
                let Some(replica) = broker.and_then(|broker| broker.replicas.get(&key)) else { continue };
                let (end, high_watermark) = (replica.log().log_end(), replica.partition.high_watermark());
                if end != high_watermark {
                    return format!("broker {id} ends at {end}, its high watermark is {high_watermark}");
                }
            }
        }
        String::new()
    }

    /// The producers that wait for an answer which is to come.
    fn unanswered(&self) -> Vec<String> {
        let waiting = self.clients.iter().filter_map(|client| match client {
            Client::Producer(producer) => {
                let history = self.checker.partitions.get(&producer.key);
                let is_unclean = history.is_some_and(|history| history.is_unclean);
                (!producer.is_done() && !is_unclean).then(|| producer.obstacle())
            }
            Client::Consumer(_) => None,
        });
        waiting.collect()
    }

    /// What is not in order; empty: nothing.
    fn obstacle(&self) -> String {
        let runs = |node: &&Node| node.broker.as_ref().is_some_and(|broker| !broker.stops);
        let running = self.nodes.iter().filter(runs).count();
        if running < self.nodes.len() {
            return format!("{running} nodes run");
        }
        let image = self.quorum.image();
        let serving = image.brokers().filter(|broker| broker.serves()).count();
        if serving < self.nodes.len() {
            return format!("{serving} brokers serve");
        }
        for (key, partition) in self.partitions() {
            let transit = partition.transit();
            let is_whole = partition.leader.is_some() && partition.isr.len() == partition.replicas.len();
            if !is_whole || !transit.adding.is_empty() || !transit.removing.is_empty() {
                return format!("{key:?} is {partition:?}");
            }
        }
        String::new()
    }

    /// All replicas are the same, with all that was committed, each record once and in order.
    fn compare_logs(&mut self) -> Result<(), String> {
        for (key, partition) in self.partitions() {
            let mut logs = Vec::new();
            for id in &partition.replicas {
                let Some(replica) = self.in_service(*id).and_then(|broker| broker.replicas.get_mut(&key))
                else {
                    return Err(format!("broker {id} has no replica"));
                };
                let end = replica.log().log_end();
                logs.push((*id, replica.contents(end)?));
            }
            for (id, contents) in &logs[1..] {
                ensure!(*contents == logs[0].1, "the logs of brokers {} and {id} differ", logs[0].0);
            }
            let found = values(&logs[0].1)?;
            self.compare_history(key, &found)?;
        }
        Ok(())
    }

    fn compare_history(&mut self, key: PartitionKey, found: &[(i64, Value)]) -> Result<(), String> {
        let history = self.checker.history(key);
        if history.is_unclean {
            return Ok(());
        }
        let by_offset: BTreeMap<i64, Value> = found.iter().copied().collect();
        for (offset, value) in &history.committed {
            ensure!(
                by_offset.get(offset) == Some(value),
                "{value:?} at {offset} is lost: {:?}",
                by_offset.get(offset)
            );
        }
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for (offset, (producer, number)) in found {
            let expected = last.get(producer).map_or(0, |last| last + 1);
            ensure!(*number == expected, "producer {producer}: {number} at {offset}, {expected} should come");
            last.insert(*producer, *number);
        }
        Ok(())
    }
}
