//! Which worker deals with which partition on which broker, settled before the run.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use kafka_protocol::messages::{FetchRequest, InitProducerIdRequest, ProduceRequest, TransactionalId};
use kafka_protocol::protocol::StrBytes;

use super::Setting;
use crate::base::clock::monotonic;
use crate::base::{
    BrokerId, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicId, TopicName,
    TopicPartition,
};
use crate::client::producer::Sequence;
use crate::client::{ClientError, Cluster, NewTopic, NodeId, OffsetAt, Result, Target};
use crate::wire::ErrorCode;

/// Longer than any transaction of a run.
const TRANSACTION_TIMEOUT_MS: i32 = 600_000;
/// From here on a produce request adds its partitions to its transaction.
const FIRST_PRODUCE_WITH_ADD: i16 = 12;

pub struct Plan {
    pub topic: TopicName,
    pub topic_id: TopicId,
    pub client_id: String,
    pub produce_version: i16,
    pub fetch_version: i16,
    pub response_bytes_max: usize,
    pub workers: Vec<Share>,
}

/// The part of one worker.
#[derive(Clone, Debug, Default)]
pub struct Share {
    pub links: Vec<LinkPlan>,
}

/// The partitions that one worker reaches through one connection.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    pub address: SocketAddr,
    pub partitions: Vec<PartitionPlan>,
}

#[derive(Clone, Debug)]
pub struct PartitionPlan {
    pub index: PartitionIndex,
    pub leader_epoch: LeaderEpoch,
    pub first: Offset,
    pub end: Offset,
}

impl Plan {
    /// Makes the topic if it is not there, finds leaders and offsets and shares the partitions out. More
    /// threads than partitions share partitions when producing; `exclusive` leaves the surplus out.
    pub fn make(setting: &Setting, threads: usize, exclusive: bool) -> Result<Self> {
        let mut cluster = Cluster::new(setting.cluster.clone())?;
        let topic = TopicName::new(&setting.topic);
        make_topic(&mut cluster, setting)?;
        cluster.topic(&topic)?;
        let count = cluster.metadata.partition_count(&topic).map_or(0, |count| count.get());
        let partitions: Vec<TopicPartition> = (0..count)
            .map(|index| TopicPartition::new(topic.clone(), PartitionIndex(index as i32)))
            .collect();
        let first = cluster.list_offsets(&partitions, OffsetAt::Earliest)?;
        let end = cluster.list_offsets(&partitions, OffsetAt::Latest)?;
        let node = cluster
            .node(&Target::Leader(partitions[0].clone()), monotonic().plus(Duration::from_secs(10)))?;
        cluster.wait_ready(node, monotonic().plus(Duration::from_secs(10)))?;
        let mut plan = Plan {
            topic: topic.clone(),
            topic_id: cluster.metadata.topic_id(&topic),
            client_id: setting.cluster.network.client_id.clone(),
            produce_version: cluster.network.version::<ProduceRequest>(node)?,
            fetch_version: cluster.network.version::<FetchRequest>(node)?,
            response_bytes_max: setting.cluster.network.response_bytes_max,
            workers: Vec::new(),
        };
        let threads = if exclusive { threads.min(partitions.len()) } else { threads }.max(1);
        let mut addresses = BTreeMap::new();
        for worker in 0..threads {
            let mut links: BTreeMap<BrokerId, LinkPlan> = BTreeMap::new();
            // Every partition of the worker's remainder class; with more workers than partitions, one each.
            let own = partitions.iter().enumerate().filter(|(index, _)| {
                index % threads == worker % threads && threads <= partitions.len()
                    || threads > partitions.len() && *index == worker % partitions.len()
            });
            for (_, partition) in own {
                let no_leader = || {
                    ClientError::broker(format!("partition {partition}"), ErrorCode::LeaderNotAvailable, None)
                };
                let leader = cluster.metadata.leader(partition).ok_or_else(no_leader)?;
                let address = match addresses.get(&leader.broker) {
                    Some(address) => *address,
                    None => {
                        let address = resolve(&cluster.network.address(NodeId::Broker(leader.broker)))?;
                        addresses.insert(leader.broker, address);
                        address
                    }
                };
                let offset = |found: &BTreeMap<_, crate::client::FoundOffset>| {
                    found.get(partition).and_then(|found| found.offset).unwrap_or_default()
                };
                let partition = PartitionPlan {
                    index: partition.partition,
                    leader_epoch: leader.epoch,
                    first: offset(&first),
                    end: offset(&end),
                };
                let link = links
                    .entry(leader.broker)
                    .or_insert_with(|| LinkPlan { address, partitions: Vec::new() });
                link.partitions.push(partition);
            }
            let mut links: Vec<LinkPlan> = links.into_values().collect();
            if let Some(connections) = setting.connections.filter(|_| !exclusive) {
                links = spread(links, connections.div_ceil(threads));
            }
            plan.workers.push(Share { links });
        }
        Ok(plan)
    }
}

/// Deals the partitions of each connection out to more of them, `count` in sum. More connections than
/// partitions share partitions.
fn spread(links: Vec<LinkPlan>, count: usize) -> Vec<LinkPlan> {
    let mut spread = Vec::new();
    for (number, link) in links.iter().enumerate() {
        let own = (count / links.len() + usize::from(number < count % links.len())).max(1);
        for nth in 0..own {
            let partitions = if own <= link.partitions.len() {
                link.partitions.iter().skip(nth).step_by(own).cloned().collect()
            } else {
                vec![link.partitions[nth % link.partitions.len()].clone()]
            };
            spread.push(LinkPlan { address: link.address, partitions });
        }
    }
    spread
}

/// Who a connection produces as.
#[derive(Clone, Debug)]
pub struct Identity {
    pub sequence: Sequence,
    pub transactional_id: Option<String>,
}

/// `count` producers, transactional ones with an id of their own.
pub fn identities(
    setting: &Setting,
    plan: &Plan,
    count: usize,
    is_transactional: bool,
) -> Result<Vec<Identity>> {
    let mut cluster = Cluster::new(setting.cluster.clone())?;
    let mut ids = Vec::new();
    if is_transactional {
        check_transactions(&mut cluster, plan)?;
    }
    for number in 0..count {
        // Of this run alone: the last one may have left a transaction open.
        let transactional_id =
            is_transactional.then(|| format!("{}-{}-{number}", plan.topic, std::process::id()));
        let node = match &transactional_id {
            Some(id) => Some(cluster.transaction_coordinator(id)?),
            None => None,
        };
        // A broker that has just started may have none to give yet.
        let response = cluster.retry(|cluster, deadline| {
            let node = node.map_or_else(|| cluster.node(&Target::Any, deadline), Ok)?;
            let response = cluster.call_node(node, deadline.since(monotonic()), |_| {
                let timeout_ms = if is_transactional { TRANSACTION_TIMEOUT_MS } else { i32::MAX };
                let id = transactional_id.clone().map(|id| TransactionalId(StrBytes::from_string(id)));
                InitProducerIdRequest::default()
                    .with_transactional_id(id)
                    .with_transaction_timeout_ms(timeout_ms)
                    .with_producer_id((-1).into())
                    .with_producer_epoch(-1)
            })?;
            match ErrorCode::try_from_code(response.error_code) {
                Some(code) => Err(ClientError::broker("get a producer id", code, None)),
                None => Ok(response),
            }
        })?;
        let epoch = ProducerEpoch(response.producer_epoch);
        let sequence = Sequence { producer: ProducerId(response.producer_id.0), epoch, base: 0 };
        ids.push(Identity { sequence, transactional_id });
    }
    Ok(ids)
}

/// A connection ends its transactions where it produces, by the requests of transactions v2.
fn check_transactions(cluster: &mut Cluster, plan: &Plan) -> Result<()> {
    let brokers = cluster.describe(Some(&[]))?.brokers.len();
    let failed = |reason: String| ClientError::Encode { what: "transactions".into(), reason };
    if brokers != 1 {
        return Err(failed(format!("the load generator makes them with one broker, not with {brokers}")));
    }
    match plan.produce_version {
        FIRST_PRODUCE_WITH_ADD.. => Ok(()),
        version => Err(failed(format!("Produce {version} does not add partitions to them (KIP-890)"))),
    }
}

fn make_topic(cluster: &mut Cluster, setting: &Setting) -> Result<()> {
    let described = cluster.describe(Some(std::slice::from_ref(&setting.topic)))?;
    let code = described.topics.first().and_then(|topic| ErrorCode::try_from_code(topic.error_code));
    if code != Some(ErrorCode::UnknownTopicOrPartition) {
        return Ok(());
    }
    let topic = NewTopic {
        name: setting.topic.clone(),
        partitions: Some(setting.partitions),
        replication_factor: setting.replication_factor,
        configs: Vec::new(),
    };
    match cluster.create_topic(&topic) {
        Err(error) if error.code() != Some(ErrorCode::TopicAlreadyExists) => Err(error),
        _ => Ok(()),
    }
}

fn resolve(address: &str) -> Result<SocketAddr> {
    let failed = |reason: String| ClientError::Resolve { address: address.to_owned(), reason };
    let mut found = address.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
    found.next().ok_or_else(|| failed("the name has no address".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_the_partitions_out() {
        let partition = |index| PartitionPlan {
            index: PartitionIndex(index),
            leader_epoch: LeaderEpoch(0),
            first: Offset::ZERO,
            end: Offset::ZERO,
        };
        let link =
            || LinkPlan { address: ([127, 0, 0, 1], 1).into(), partitions: (0..5).map(partition).collect() };
        let indexes = |links: Vec<LinkPlan>| -> Vec<Vec<i32>> {
            let of = |link: LinkPlan| link.partitions.iter().map(|partition| partition.index.0).collect();
            links.into_iter().map(of).collect()
        };
        assert_eq!(indexes(spread(vec![link()], 2)), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(indexes(spread(vec![link()], 7)), [[0], [1], [2], [3], [4], [0], [1]]);
        assert_eq!(spread(vec![link(), link()], 1).len(), 2);
    }
}
