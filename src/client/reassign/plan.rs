//! Which replicas move so that brokers carry the same: each topic's replicas, and those of all topics together, are dealt
//! out over the brokers as evenly as the racks allow, by the fewest moves there are; then the first replicas, without
//! copying anything.
//!
//! Both are flows of least cost: from partitions by racks to a topic's share of each broker and on to the broker. A replica
//! that stays costs nothing. Shares are between the whole numbers around what an even division gives, so that a flow always
//! exists: the division itself, in fractions, is one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::Assignment;
use super::flow::{ArcId, Flow, Node};
use crate::base::{BrokerId, TopicName, TopicPartition};

/// A broker that may get replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub id: BrokerId,
    pub rack: Option<String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("broker {0} is named twice")]
    BrokerTwice(BrokerId),
    #[error("broker {0} has no rack, others have one")]
    NoRack(BrokerId),
    #[error("partition {partition} has {replicas} replicas, more than the {brokers} brokers")]
    TooFewBrokers { partition: TopicPartition, replicas: usize, brokers: usize },
    #[error("no plan was found")]
    None,
}

/// What a sum of fractions may be off.
const ROUNDING: f64 = 1e-6;

/// The replicas that all these partitions should have, each as many as now. Replicas on other brokers than the candidates
/// go away from there.
pub fn plan(present: &Assignment, candidates: &[Candidate]) -> Result<Assignment, PlanError> {
    let brokers = Brokers::new(candidates)?;
    for (partition, replicas) in present {
        if replicas.len() > candidates.len() {
            let (replicas, brokers) = (replicas.len(), candidates.len());
            return Err(PlanError::TooFewBrokers { partition: partition.clone(), replicas, brokers });
        }
    }
    let placed = place(present, &brokers)?;
    order(&placed, &brokers)
}

/// The brokers in order, each in its rack; without racks all are in one.
struct Brokers {
    ids: Vec<BrokerId>,
    /// Positions in `ids`.
    racks: Vec<Vec<usize>>,
    /// The position of each broker's rack.
    rack_of: Vec<usize>,
}

impl Brokers {
    fn new(candidates: &[Candidate]) -> Result<Self, PlanError> {
        let mut sorted: Vec<&Candidate> = candidates.iter().collect();
        sorted.sort_by_key(|candidate| candidate.id);
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(PlanError::BrokerTwice(twice[0].id));
        }
        if sorted.iter().any(|candidate| candidate.rack.is_some())
            && let Some(without) = sorted.iter().find(|candidate| candidate.rack.is_none())
        {
            return Err(PlanError::NoRack(without.id));
        }
        let names: BTreeSet<&Option<String>> = sorted.iter().map(|candidate| &candidate.rack).collect();
        let mut racks = vec![Vec::new(); names.len()];
        let mut rack_of = Vec::with_capacity(sorted.len());
        for (position, candidate) in sorted.iter().enumerate() {
            let rack = names.iter().take_while(|name| **name < &candidate.rack).count();
            racks[rack].push(position);
            rack_of.push(rack);
        }
        Ok(Self { ids: sorted.iter().map(|candidate| candidate.id).collect(), racks, rack_of })
    }

    fn position(&self, id: BrokerId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    /// How many replicas of a partition with so many may be in each rack: as evenly as their sizes allow.
    fn in_racks(&self, replicas: usize) -> Vec<RangeInclusive<i32>> {
        let fit = |level: usize| self.racks.iter().map(|rack| rack.len().min(level)).sum::<usize>();
        let level = (0..=replicas).find(|level| fit(*level) >= replicas).unwrap_or(replicas);
        let bounds = |rack: &Vec<usize>| {
            let (least, most) = (rack.len().min(level.saturating_sub(1)), rack.len().min(level));
            least as i32..=most as i32
        };
        self.racks.iter().map(bounds).collect()
    }

    /// The share of each broker of so many partitions with so many replicas each, if they could be divided.
    fn shares(&self, partitions: usize, replicas: usize) -> Vec<f64> {
        let bounds = self.in_racks(replicas);
        let wanted = (partitions * replicas) as f64;
        let load = |rack: usize, level: f64| {
            let (least, most) = (*bounds[rack].start() as f64, *bounds[rack].end() as f64);
            (level * self.racks[rack].len() as f64).clamp(least * partitions as f64, most * partitions as f64)
        };
        // The sum grows with the level, and a broker has each partition at most once.
        let (mut low, mut high) = (0.0, partitions as f64);
        for _ in 0..100 {
            let level = (low + high) / 2.0;
            let sum: f64 = (0..self.racks.len()).map(|rack| load(rack, level)).sum();
            if sum < wanted { low = level } else { high = level }
        }
        self.rack_of.iter().map(|rack| load(*rack, high) / self.racks[*rack].len() as f64).collect()
    }
}

/// The whole numbers around it.
fn around(share: f64) -> RangeInclusive<i32> {
    (share + ROUNDING).floor() as i32..=(share - ROUNDING).ceil() as i32
}

/// Shares of the brokers, by their positions, of each topic.
type ByTopic<T> = BTreeMap<TopicName, Vec<T>>;

/// The last steps of a flow: from a topic's share of each broker to the broker, and on to the end of the network, where
/// `total` is wanted. `now` is what flows there at first. The nodes of the shares.
fn shares_of_brokers(
    flow: &mut Flow,
    shares: &ByTopic<f64>,
    now: &ByTopic<i32>,
    total: i32,
) -> ByTopic<Node> {
    let end = flow.node();
    flow.supply(end, -total);
    let count = shares.values().next().map_or(0, Vec::len);
    let brokers: Vec<Node> = (0..count).map(|_| flow.node()).collect();
    let mut sums = vec![(0.0, 0); count];
    let mut nodes = ByTopic::new();
    for (topic, of_topic) in shares {
        let mut made = Vec::with_capacity(count);
        for (position, share) in of_topic.iter().enumerate() {
            let node = flow.node();
            let now = now.get(topic).and_then(|now| now.get(position)).copied().unwrap_or(0);
            let arc = flow.arc(node, brokers[position], around(*share), 0, now);
            sums[position].0 += share;
            sums[position].1 += flow.amount(arc);
            made.push(node);
        }
        nodes.insert(topic.clone(), made);
    }
    for (broker, (share, now)) in brokers.into_iter().zip(sums) {
        flow.arc(broker, end, around(share), 0, now);
    }
    nodes
}

/// The partitions of each topic.
fn by_topic(assignment: &Assignment) -> BTreeMap<TopicName, Vec<&Vec<BrokerId>>> {
    let mut topics: BTreeMap<TopicName, Vec<&Vec<BrokerId>>> = BTreeMap::new();
    for (partition, replicas) in assignment {
        topics.entry(partition.topic.clone()).or_default().push(replicas);
    }
    topics
}

/// Which brokers have each partition; those that stay come first, in their order.
fn place(present: &Assignment, brokers: &Brokers) -> Result<Assignment, PlanError> {
    let mut shares = ByTopic::new();
    let mut now = ByTopic::new();
    let mut total = 0;
    for (topic, partitions) in by_topic(present) {
        let mut with: BTreeMap<usize, usize> = BTreeMap::new();
        let mut counts = vec![0; brokers.ids.len()];
        for replicas in &partitions {
            *with.entry(replicas.len()).or_default() += 1;
            replicas.iter().filter_map(|id| brokers.position(*id)).for_each(|at| counts[at] += 1);
        }
        let mut sum = vec![0.0; brokers.ids.len()];
        for (replicas, partitions) in with {
            total += replicas * partitions;
            sum.iter_mut().zip(brokers.shares(partitions, replicas)).for_each(|(sum, share)| *sum += share);
        }
        shares.insert(topic.clone(), sum);
        now.insert(topic, counts);
    }
    let mut flow = Flow::default();
    let nodes = shares_of_brokers(&mut flow, &shares, &now, total as i32);
    let ways: Vec<Vec<(usize, ArcId)>> = present
        .iter()
        .map(|(partition, replicas)| add_partition(&mut flow, brokers, replicas, &nodes[&partition.topic]))
        .collect();
    flow.solve().map_err(|_| PlanError::None)?;
    let placed = present.iter().zip(ways).map(|((partition, replicas), ways)| {
        let chosen: Vec<BrokerId> = ways
            .into_iter()
            .filter(|(_, arc)| flow.amount(*arc) > 0)
            .map(|(at, _)| brokers.ids[at])
            .collect();
        (partition.clone(), in_place(replicas, chosen))
    });
    Ok(placed.collect())
}

/// A partition's ways by the racks to its topic's share of each broker, by the brokers' positions.
fn add_partition(
    flow: &mut Flow,
    brokers: &Brokers,
    replicas: &[BrokerId],
    shares: &[Node],
) -> Vec<(usize, ArcId)> {
    let partition = flow.node();
    flow.supply(partition, replicas.len() as i32);
    let mut ways = Vec::with_capacity(shares.len());
    for (rack, bounds) in brokers.racks.iter().zip(brokers.in_racks(replicas.len())) {
        let in_rack = flow.node();
        let mut there = 0;
        for &at in rack {
            let stays = replicas.contains(&brokers.ids[at]);
            let (cost, now) = if stays { (0, 1) } else { (1, 0) };
            there += now;
            ways.push((at, flow.arc(in_rack, shares[at], 0..=1, cost, now)));
        }
        flow.arc(partition, in_rack, bounds, 0, there);
    }
    ways
}

/// New replicas take the places of those that go.
fn in_place(present: &[BrokerId], chosen: Vec<BrokerId>) -> Vec<BrokerId> {
    let mut new = chosen.iter().filter(|id| !present.contains(id)).copied();
    let places = present.iter().map(|id| if chosen.contains(id) { Some(*id) } else { new.next() });
    places.flatten().collect()
}

/// Has each broker lead as many partitions as others that have as many: the first replica leads by preference.
fn order(placed: &Assignment, brokers: &Brokers) -> Result<Assignment, PlanError> {
    let mut shares = ByTopic::new();
    let mut now = ByTopic::new();
    for (topic, partitions) in by_topic(placed) {
        let mut sum = vec![0.0; brokers.ids.len()];
        let mut counts = vec![0; brokers.ids.len()];
        for replicas in partitions {
            for at in replicas.iter().filter_map(|id| brokers.position(*id)) {
                sum[at] += 1.0 / replicas.len() as f64;
            }
            replicas.iter().take(1).filter_map(|id| brokers.position(*id)).for_each(|at| counts[at] += 1);
        }
        shares.insert(topic.clone(), sum);
        now.insert(topic, counts);
    }
    let mut flow = Flow::default();
    let leading = placed.values().filter(|replicas| !replicas.is_empty()).count();
    let nodes = shares_of_brokers(&mut flow, &shares, &now, leading as i32);
    let mut ways = Vec::with_capacity(placed.len());
    for (partition, replicas) in placed {
        let node = flow.node();
        flow.supply(node, i32::from(!replicas.is_empty()));
        let of_topic = &nodes[&partition.topic];
        let way = |(position, id): (usize, &BrokerId)| {
            let share = of_topic[brokers.position(*id)?];
            let (cost, now) = if position == 0 { (0, 1) } else { (1, 0) };
            Some(flow.arc(node, share, 0..=1, cost, now))
        };
        ways.push(replicas.iter().enumerate().filter_map(way).collect::<Vec<ArcId>>());
    }
    flow.solve().map_err(|_| PlanError::None)?;
    let ordered = placed.iter().zip(ways).map(|((partition, replicas), ways)| {
        let mut replicas = replicas.clone();
        if let Some(first) = ways.iter().position(|arc| flow.amount(*arc) > 0) {
            replicas[..=first].rotate_right(1);
        }
        (partition.clone(), replicas)
    });
    Ok(ordered.collect())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
