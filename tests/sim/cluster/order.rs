//! What is looked at while a run goes on and when it ends: those in sync have what was committed, and in the end all
//! replicas are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kuring::base::{BrokerId, Offset};
use kuring::metadata::PartitionImage;
use kuring::shard::PartitionKey;
use kuring::wire::record::Batches;

use super::broker::Broker;
use super::checker::Value;
use super::clients::Client;
use super::entries::{Entry, Transactions, entries};
use super::ledger::Fate;
use super::replica::Replica;
use super::world::{Node, SECOND, STATE_TOPIC, TOPIC, World, key_of};
use crate::home::ensure;

const CONVERGE_US: u64 = 30 * SECOND;

impl World {
    pub fn partitions(&self) -> Vec<(PartitionKey, Arc<PartitionImage>)> {
        let topics = [TOPIC, STATE_TOPIC].into_iter().filter_map(|name| self.quorum.image().topic(name));
        let parts = topics.flat_map(|topic| {
            topic.numbered().map(|(index, partition)| (key_of(topic, index), partition.clone()))
        });
        parts.collect()
    }

    /// Whether it is one of those that clients write to.
    pub fn is_data(&self, key: PartitionKey) -> bool {
        self.quorum.image().topic(TOPIC).is_some_and(|topic| topic.id == key.topic)
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
            self.look_at_starts(key, &partition);
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

    /// No log begins above what is committed of it, or above what somebody has had deleted; no follower knows of more
    /// that is committed than its leader does.
    fn look_at_starts(&mut self, key: PartitionKey, partition: &PartitionImage) {
        let history = self.checker.history(key);
        let known_end = history.known_end;
        let (bounded, deleted_to, is_unclean) = (history.is_bounded, history.deleted_to, history.is_unclean);
        for id in &partition.replicas {
            let Some(replica) = self.in_service(*id).and_then(|broker| broker.replicas.get(&key)) else {
                continue;
            };
            let (start, own) = (replica.log().log_start(), replica.partition.high_watermark());
            if start > own || (!bounded && !is_unclean && start.0 > deleted_to) {
                self.checker.fail(format!(
                    "broker {id} begins at {start}, committed is {own}, deleted up to {deleted_to}"
                ));
            }
            if own > known_end {
                self.checker
                    .fail(format!("broker {id} has the high watermark {own}, leaders had {known_end}"));
            }
        }
    }

    /// The same with a look at the records, and at what every replica takes for decided.
    pub fn read_committed(&mut self) -> Result<(), String> {
        for (key, partition) in self.partitions() {
            if !self.is_data(key) {
                continue;
            }
            let known = self.checker.history(key).committed.clone();
            let is_unclean = self.checker.history(key).is_unclean;
            for member in &partition.replicas {
                let Some(replica) = self.in_service(*member).and_then(|broker| broker.replicas.get_mut(&key))
                else {
                    continue;
                };
                let (start, end) = (replica.log().log_start(), replica.log().log_end());
                let mut found = entries(&replica.contents(end)?)?;
                // A batch that was deleted in part is there.
                found.retain(|entry| entry.offset >= start.0);
                let transactions = Transactions::of(&found);
                check_stable(replica, transactions).map_err(|wrong| format!("broker {member}: {wrong}"))?;
                if is_unclean || !partition.isr.contains(member) {
                    continue;
                }
                for (offset, value) in found.iter().filter_map(|entry| Some((entry.offset, entry.value()?))) {
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
            match client {
                Client::Producer(producer) => producer.stops = true,
                Client::Transactor(transactor) => transactor.stops = true,
                Client::Consumer(_) => {}
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
        self.read_committed()?;
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
                let stable = replica.partition.last_stable();
                if stable != end && !self.is_unclean(key) {
                    return format!("broker {id} ends at {end}, stable is what lies below {stable}");
                }
                let leaders = partition.leader.and_then(|leader| self.bounds_of(leader, key));
                let start = replica.log().log_start();
                if leaders.is_some_and(|(first, last)| start < first || end != last) {
                    return format!("broker {id} has {start} to {end}, its leader {leaders:?}");
                }
            }
        }
        String::new()
    }

    fn bounds_of(&self, id: BrokerId, key: PartitionKey) -> Option<(Offset, Offset)> {
        let broker = self.nodes[id.0 as usize].broker.as_ref()?;
        let log = broker.replicas.get(&key)?.log();
        Some((log.log_start(), log.log_end()))
    }

    fn is_unclean(&self, key: PartitionKey) -> bool {
        self.checker.partitions.get(&key).is_some_and(|history| history.is_unclean)
    }

    /// The producers that wait for an answer which is to come.
    fn unanswered(&self) -> Vec<String> {
        let waiting = self.clients.iter().filter_map(|client| match client {
            Client::Producer(producer) => {
                let history = self.checker.partitions.get(&producer.key);
                let is_given_up =
                    history.is_some_and(|history| history.is_unclean || producer.is_forgotten(history));
                (!producer.is_done() && !is_given_up).then(|| producer.obstacle())
            }
            Client::Transactor(transactor) => {
                let is_unclean = self.checker.partitions.keys().any(|key| self.is_unclean(*key));
                (!transactor.is_done() && !is_unclean).then(|| transactor.obstacle())
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
        // One that has just come back may still be known as the process before.
        let is_it = |id: BrokerId, epoch| {
            self.nodes[id.0 as usize].broker.as_ref().is_some_and(|broker| broker.epoch() == Some(epoch))
        };
        let serving =
            image.brokers().filter(|broker| broker.serves() && is_it(broker.id, broker.epoch)).count();
        if serving < self.nodes.len() {
            return format!("{serving} brokers serve");
        }
        for (key, partition) in self.partitions() {
            let transit = partition.transit();
            let is_whole = partition.leader.is_some() && partition.isr.len() == partition.replicas.len();
            if !is_whole || !transit.adding.is_empty() || !transit.removing.is_empty() {
                let logs: Vec<String> = partition.replicas.iter().map(|id| self.extent(*id, key)).collect();
                return format!("{key:?} is {partition:?}: {logs:?}");
            }
        }
        String::new()
    }

    /// What a broker has of a partition.
    fn extent(&self, id: BrokerId, key: PartitionKey) -> String {
        let broker = self.nodes[id.0 as usize].broker.as_ref();
        let Some(replica) = broker.and_then(|broker| broker.replicas.get(&key)) else {
            return format!("{id} has nothing");
        };
        let (log, committed) = (replica.log(), replica.partition.high_watermark());
        let (start, end, epoch) = (log.log_start(), log.log_end(), replica.partition.leader_epoch());
        format!("{id} has {start} to {end}, committed {committed}, epoch {epoch}, {:?}", log.epochs())
    }

    /// All replicas are the same, with all that was committed, each record once and in order.
    fn compare_logs(&mut self) -> Result<(), String> {
        let mut decided = BTreeMap::new();
        for (key, partition) in self.partitions() {
            let mut logs = Vec::new();
            for id in &partition.replicas {
                let Some(replica) = self.in_service(*id).and_then(|broker| broker.replicas.get_mut(&key))
                else {
                    return Err(format!("broker {id} has no replica"));
                };
                let end = replica.log().log_end();
                logs.push((*id, replica.log().log_start(), replica.contents(end)?));
            }
            // Each may have deleted more than the others.
            let start = logs.iter().map(|(_, start, _)| *start).max().unwrap_or(Offset::ZERO);
            let from = |contents: &[u8]| -> Result<Vec<u8>, String> {
                let mut kept = Vec::new();
                for batch in Batches::new(contents) {
                    let batch = batch.map_err(|error| error.to_string())?;
                    if batch.head().next_offset() > start {
                        kept.extend_from_slice(batch.bytes());
                    }
                }
                Ok(kept)
            };
            if !self.is_data(key) {
                // Each is cleaned by itself: the last record of each key is the same.
                let first = last_records(&logs[0].2)?;
                for (id, _, contents) in &logs[1..] {
                    let found = last_records(contents)?;
                    ensure!(
                        found == first,
                        "of {key:?} brokers {} and {id} have {first:?} and {found:?}",
                        logs[0].0
                    );
                }
                continue;
            }
            let first = from(&logs[0].2)?;
            for (id, _, contents) in &logs[1..] {
                ensure!(from(contents)? == first, "the logs of brokers {} and {id} differ", logs[0].0);
            }
            let found = entries(&first)?;
            self.compare_history(key, start, &found)?;
            decided.insert(key, (start, Transactions::of(&found)));
        }
        self.compare_transactions(&decided)
    }

    fn compare_history(&mut self, key: PartitionKey, start: Offset, found: &[Entry]) -> Result<(), String> {
        let history = self.checker.history(key);
        if history.is_unclean {
            return Ok(());
        }
        let values = found.iter().filter_map(|entry| Some((entry.offset, entry.value()?)));
        let by_offset: BTreeMap<i64, Value> = values.clone().collect();
        for (offset, value) in history.committed.range(start.0..) {
            ensure!(
                by_offset.get(offset) == Some(value),
                "{value:?} at {offset} is lost: {:?}",
                by_offset.get(offset)
            );
        }
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for (offset, (producer, number)) in values {
            let before = last.insert(producer, number);
            let is_of_transaction = self.checker.ledger.is_of_transaction(&(producer, number));
            let is_next = match before {
                // What comes first may have been deleted, and a transaction may have been given up.
                Some(before) if is_of_transaction => number > before,
                Some(before) => number == before + 1,
                None => number == 0 || start.0 > 0 || is_of_transaction,
            };
            ensure!(is_next, "producer {producer}: {number} at {offset}, behind {before:?}");
        }
        Ok(())
    }

    /// Each transaction is there whole, or nothing of it is.
    fn compare_transactions(
        &mut self,
        decided: &BTreeMap<PartitionKey, (Offset, Result<Transactions, String>)>,
    ) -> Result<(), String> {
        let mut visible = BTreeSet::new();
        let mut partial = BTreeSet::new();
        for (key, (start, transactions)) in decided {
            let history = self.checker.history(*key);
            if history.is_unclean || start.0 > 0 {
                partial.insert(*key);
            }
            if !history.is_unclean {
                let transactions = transactions.as_ref().map_err(Clone::clone)?;
                visible.extend(transactions.decided.iter().map(|(_, value)| *value));
            }
        }
        for (id, known) in &self.checker.ledger.transactions {
            let looked_at: Vec<_> = known.records.iter().filter(|(key, _)| !partial.contains(key)).collect();
            let seen = looked_at.iter().filter(|(_, value)| visible.contains(value)).count();
            let is_right = match known.fate {
                Fate::Open | Fate::Aborted => seen == 0,
                Fate::Committed => seen == looked_at.len(),
                Fate::Asked => seen == 0 || seen == looked_at.len(),
            };
            ensure!(is_right, "of transaction {id:?} {seen} of {} are committed: {known:?}", looked_at.len());
        }
        Ok(())
    }
}

/// Of each key the offset and the value of the last record.
type LastRecords = BTreeMap<Vec<u8>, (Offset, Option<Vec<u8>>)>;

fn last_records(contents: &[u8]) -> Result<LastRecords, String> {
    let mut last = BTreeMap::new();
    for batch in Batches::new(contents) {
        let batch = batch.map_err(|error| error.to_string())?;
        let mut scratch = Vec::new();
        for record in batch.records(&mut scratch, 1 << 20).map_err(|error| error.to_string())? {
            let record = record.map_err(|error| error.to_string())?;
            let value = record.value.map(<[u8]>::to_vec);
            last.insert(record.key.unwrap_or_default().to_vec(), (record.offset, value));
        }
    }
    Ok(last)
}

/// A replica knows which transactions are open in its log, and tells consumers of those that were aborted.
fn check_stable(replica: &mut Replica, transactions: Result<Transactions, String>) -> Result<(), String> {
    let (start, own) = (replica.log().log_start(), replica.partition.high_watermark());
    let transactions = transactions?;
    let (open, unreplicated) = (transactions.first_open(), transactions.first_unreplicated(own));
    let told = replica.log().first_unstable().map(|offset| offset.0);
    // After a restart those that have ended may be taken for certain before their markers are, as in Kafka. What was
    // deleted may have begun one.
    let latest = open.unwrap_or(i64::MAX);
    let earliest = if start.0 > 0 { 0 } else { latest.min(unreplicated.unwrap_or(i64::MAX)) };
    let is_right = (earliest..=latest).contains(&told.unwrap_or(i64::MAX));
    ensure!(
        is_right,
        "the first unstable offset is {told:?}, {open:?} is open, {unreplicated:?} not replicated"
    );
    let stable = replica.partition.last_stable();
    let seen = replica.committed_contents(700)?;
    let decided = transactions.decided.iter().filter(|(offset, _)| (start.0..stable.0).contains(offset));
    let expected: Vec<(i64, Value)> = decided.copied().collect();
    ensure!(seen == expected, "committed below {stable} is {expected:?}, and {seen:?} is seen");
    Ok(())
}
