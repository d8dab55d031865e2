//! What an operator asks of a cluster: its brokers and their logs, its quorum, elections, reassignments, throttles.

use std::collections::BTreeMap;

use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_quorum_request::{PartitionData, TopicData};
use kafka_protocol::messages::describe_quorum_response::ReplicaState;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest, DescribeClusterRequest,
    DescribeConfigsRequest, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeQuorumRequest,
    ElectLeadersRequest, ListPartitionReassignmentsRequest, MetadataRequest, MetadataResponse,
};
use kafka_protocol::protocol::Request;

use super::admin::{TOPIC_RESOURCE, check, left_out, text};
use super::cluster::{Cluster, Target};
use super::error::{ClientError, Result};
use super::reassign::{Assignment, UnderWay};
use crate::base::clock::Timestamp;
use crate::base::{BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicName, TopicPartition};
use crate::wire::ErrorCode;

/// Topics in one request for configs.
const TOPICS_PER_REQUEST: usize = 500;
const BROKER_RESOURCE: i8 = 4;
const MIN_IN_SYNC: &str = "min.insync.replicas";
const METADATA_TOPIC: &str = "__cluster_metadata";

/// A cluster and its brokers, in order of their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDescription {
    pub id: String,
    /// Where requests to the controller go. Kafka's brokers name any of them, for all forward.
    pub controller: Option<BrokerId>,
    pub brokers: Vec<ClusterBroker>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterBroker {
    pub id: BrokerId,
    pub host: String,
    pub port: i32,
    pub rack: Option<String>,
    /// Known to the cluster, and not alive or not yet caught up. Brokers before version 2 of the API show none that is.
    pub fenced: bool,
}

/// The logs of one broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerLogs {
    pub bytes: u64,
    pub directories: usize,
    /// Of these, those that failed.
    pub offline: usize,
}

/// The directory of a replica's log, and that to which it is being moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPlace {
    pub current: Option<String>,
    pub future: Option<String>,
}

/// The controllers and who follows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quorum {
    pub leader: BrokerId,
    pub epoch: LeaderEpoch,
    pub high_watermark: Offset,
    pub voters: Vec<QuorumReplica>,
    pub observers: Vec<QuorumReplica>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumReplica {
    pub id: BrokerId,
    /// Zero before version 2 of the API.
    pub directory: TopicId,
    pub log_end: Offset,
    /// On the leader's clock; `None` where it does not know.
    pub last_fetch: Option<Timestamp>,
    pub last_caught_up: Option<Timestamp>,
}

/// Who is to lead (`ElectionType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Election {
    /// The first replica, if it is in sync.
    Preferred,
    /// Any replica that is alive, of partitions without leader.
    Unclean,
}

impl Cluster {
    /// The cluster as its controller sees it.
    pub fn describe_cluster(&mut self) -> Result<ClusterDescription> {
        let request = |version| DescribeClusterRequest::default().with_include_fenced_brokers(version >= 2);
        self.ask_controller(request, |response| {
            check("describe the cluster", response.error_code, response.error_message.as_ref())?;
            let mut brokers: Vec<ClusterBroker> = response
                .brokers
                .iter()
                .map(|broker| ClusterBroker {
                    id: BrokerId(broker.broker_id.0),
                    host: broker.host.to_string(),
                    port: broker.port,
                    rack: broker.rack.as_ref().map(|rack| rack.to_string()),
                    fenced: broker.is_fenced,
                })
                .collect();
            brokers.sort_by_key(|broker| broker.id);
            let controller = Some(BrokerId(response.controller_id.0)).filter(|id| id.0 >= 0);
            Ok(ClusterDescription { id: response.cluster_id.to_string(), controller, brokers })
        })
    }

    /// All topics as the controller sees them.
    pub fn describe_topics(&mut self) -> Result<MetadataResponse> {
        let request = |version: i16| {
            // Before version 4 the broker alone decides; all that are asked for are there anyway.
            MetadataRequest::default().with_topics(None).with_allow_auto_topic_creation(version < 4)
        };
        self.ask_controller(request, |response| {
            check("describe all topics", response.error_code, None)?;
            Ok(response)
        })
    }

    /// The replicas of all partitions.
    pub fn assignments(&mut self) -> Result<Assignment> {
        let mut assignment = Assignment::new();
        for topic in self.describe_topics()?.topics {
            let name = topic.name.unwrap_or_default();
            for partition in topic.partitions {
                let key = TopicPartition::new(&*name.0, PartitionIndex(partition.partition_index));
                assignment.insert(key, ids(&partition.replica_nodes));
            }
        }
        Ok(assignment)
    }

    /// Those of these topics. Fails for one that is not there.
    pub fn assignment(&mut self, topics: &[String]) -> Result<Assignment> {
        let mut all = self.assignments()?;
        for name in topics {
            if !all.keys().any(|partition| *partition.topic == **name) {
                let code = ErrorCode::UnknownTopicOrPartition;
                return Err(ClientError::broker(format!("topic {name}"), code, None));
            }
        }
        all.retain(|partition, _| topics.iter().any(|name| **name == *partition.topic));
        Ok(all)
    }

    /// `min.insync.replicas` of these topics. One that is gone meanwhile is left out.
    pub fn min_in_sync(&mut self, topics: &[String]) -> Result<BTreeMap<String, usize>> {
        let mut found = BTreeMap::new();
        for some in topics.chunks(TOPICS_PER_REQUEST) {
            let resource = |name: &String| {
                DescribeConfigsResource::default()
                    .with_resource_type(TOPIC_RESOURCE)
                    .with_resource_name(text(name))
                    .with_configuration_keys(Some(vec![text(MIN_IN_SYNC)]))
            };
            let request =
                |_| DescribeConfigsRequest::default().with_resources(some.iter().map(resource).collect());
            let response = self.ask_controller(request, Ok)?;
            for result in response.results {
                if result.error_code == ErrorCode::UnknownTopicOrPartition.code() {
                    continue;
                }
                let what = format!("describe {MIN_IN_SYNC} of topic {}", &*result.resource_name);
                check(&what, result.error_code, result.error_message.as_ref())?;
                let config = result.configs.iter().find(|config| &*config.name == MIN_IN_SYNC);
                let value = config.and_then(|config| config.value.as_ref()?.parse().ok());
                found.insert(result.resource_name.to_string(), value.ok_or_else(|| left_out(&what))?);
            }
        }
        Ok(found)
    }

    /// Where a broker's logs are.
    pub fn log_places(&mut self, broker: BrokerId) -> Result<BTreeMap<TopicPartition, LogPlace>> {
        let mut places: BTreeMap<TopicPartition, LogPlace> = BTreeMap::new();
        for directory in self.describe_log_dirs(broker)?.results {
            for topic in &directory.topics {
                for partition in &topic.partitions {
                    let key = TopicPartition::new(&*topic.name.0, PartitionIndex(partition.partition_index));
                    let place = places.entry(key).or_default();
                    let slot = if partition.is_future_key { &mut place.future } else { &mut place.current };
                    *slot = Some(directory.log_dir.to_string());
                }
            }
        }
        Ok(places)
    }

    /// Has a broker move logs to other directories of its own; what became of each.
    pub fn move_logs(
        &mut self,
        broker: BrokerId,
        to: &BTreeMap<TopicPartition, String>,
    ) -> Result<BTreeMap<TopicPartition, Result<()>>> {
        let mut directories: BTreeMap<&String, BTreeMap<&TopicName, Vec<i32>>> = BTreeMap::new();
        for (partition, directory) in to {
            let topics = directories.entry(directory).or_default();
            topics.entry(&partition.topic).or_default().push(partition.partition.0);
        }
        let topic = |(name, partitions): (&TopicName, Vec<i32>)| {
            AlterReplicaLogDirTopic::default().with_name(text(name).into()).with_partitions(partitions)
        };
        let directory = |(path, topics): (&String, BTreeMap<&TopicName, Vec<i32>>)| {
            AlterReplicaLogDir::default()
                .with_path(text(path))
                .with_topics(topics.into_iter().map(topic).collect())
        };
        let directories: Vec<AlterReplicaLogDir> = directories.into_iter().map(directory).collect();
        let response = self.call(&Target::Broker(broker), |_| {
            AlterReplicaLogDirsRequest::default().with_dirs(directories.clone())
        })?;
        let mut results = BTreeMap::new();
        for topic in &response.results {
            for result in &topic.partitions {
                let key = TopicPartition::new(&*topic.topic_name.0, PartitionIndex(result.partition_index));
                let outcome = check(&key.to_string(), result.error_code, None);
                results.insert(key, outcome);
            }
        }
        Ok(results)
    }

    fn describe_log_dirs(&mut self, broker: BrokerId) -> Result<DescribeLogDirsResponse> {
        let request = |_| DescribeLogDirsRequest::default().with_topics(None);
        let response = self.call(&Target::Broker(broker), request)?;
        check(&format!("describe the log directories of broker {broker}"), response.error_code, None)?;
        Ok(response)
    }

    /// What a broker's logs take.
    pub fn broker_logs(&mut self, broker: BrokerId) -> Result<BrokerLogs> {
        let response = self.describe_log_dirs(broker)?;
        let mut logs = BrokerLogs { directories: response.results.len(), ..BrokerLogs::default() };
        for directory in &response.results {
            logs.offline += usize::from(directory.error_code != 0);
            let partitions = directory.topics.iter().flat_map(|topic| &topic.partitions);
            let bytes = partitions.map(|partition| u64::try_from(partition.partition_size).unwrap_or(0));
            logs.bytes = bytes.fold(logs.bytes, u64::saturating_add);
        }
        Ok(logs)
    }

    /// The metadata quorum as its leader sees it.
    pub fn describe_quorum(&mut self) -> Result<Quorum> {
        const WHAT: &str = "describe the quorum";
        let request = |_| {
            let partitions = vec![PartitionData::default().with_partition_index(0)];
            let topic =
                TopicData::default().with_topic_name(text(METADATA_TOPIC).into()).with_partitions(partitions);
            DescribeQuorumRequest::default().with_topics(vec![topic])
        };
        self.ask_controller(request, |response| {
            check(WHAT, response.error_code, response.error_message.as_ref())?;
            let found = response.topics.first().and_then(|topic| topic.partitions.first());
            let found = found.ok_or_else(|| left_out(WHAT))?;
            check(WHAT, found.error_code, found.error_message.as_ref())?;
            Ok(Quorum {
                leader: BrokerId(found.leader_id.0),
                epoch: LeaderEpoch(found.leader_epoch),
                high_watermark: Offset(found.high_watermark),
                voters: quorum_replicas(&found.current_voters),
                observers: quorum_replicas(&found.observers),
            })
        })
    }

    /// Has leaders elected, of all partitions that need it with `None`; what became of each that was asked for or needed
    /// it.
    pub fn elect_leaders(
        &mut self,
        election: Election,
        partitions: Option<&[TopicPartition]>,
    ) -> Result<BTreeMap<TopicPartition, Result<()>>> {
        let mut topics: BTreeMap<&TopicName, Vec<i32>> = BTreeMap::new();
        for partition in partitions.into_iter().flatten() {
            topics.entry(&partition.topic).or_default().push(partition.partition.0);
        }
        let topics = partitions.map(|_| {
            let topic = |(name, partitions): (&TopicName, Vec<i32>)| {
                TopicPartitions::default().with_topic(text(name).into()).with_partitions(partitions)
            };
            topics.into_iter().map(topic).collect::<Vec<_>>()
        });
        let timeout_ms = self.admin_timeout_ms();
        let kind = match election {
            Election::Preferred => 0,
            Election::Unclean => 1,
        };
        let request = |_| {
            ElectLeadersRequest::default()
                .with_election_type(kind)
                .with_topic_partitions(topics.clone())
                .with_timeout_ms(timeout_ms)
        };
        self.ask_controller(request, |response| {
            check("elect leaders", response.error_code, None)?;
            let mut results = BTreeMap::new();
            for topic in &response.replica_election_results {
                for result in &topic.partition_result {
                    let key = TopicPartition::new(&*topic.topic.0, PartitionIndex(result.partition_id));
                    let outcome = check(&key.to_string(), result.error_code, result.error_message.as_ref());
                    results.insert(key, outcome);
                }
            }
            Ok(results)
        })
    }

    /// Begins reassignments, gives up those with `None`; what became of each.
    pub fn reassign(
        &mut self,
        changes: &BTreeMap<TopicPartition, Option<Vec<BrokerId>>>,
        may_change_factor: bool,
    ) -> Result<BTreeMap<TopicPartition, Result<()>>> {
        let mut topics: BTreeMap<&TopicName, Vec<ReassignablePartition>> = BTreeMap::new();
        for (partition, replicas) in changes {
            let replicas = replicas.as_ref().map(|ids| ids.iter().map(|id| id.0.into()).collect());
            let change = ReassignablePartition::default()
                .with_partition_index(partition.partition.0)
                .with_replicas(replicas);
            topics.entry(&partition.topic).or_default().push(change);
        }
        let topic = |(name, partitions): (&TopicName, Vec<ReassignablePartition>)| {
            ReassignableTopic::default().with_name(text(name).into()).with_partitions(partitions)
        };
        let topics: Vec<ReassignableTopic> = topics.into_iter().map(topic).collect();
        let timeout_ms = self.admin_timeout_ms();
        let request = |_| {
            AlterPartitionReassignmentsRequest::default()
                .with_allow_replication_factor_change(may_change_factor)
                .with_topics(topics.clone())
                .with_timeout_ms(timeout_ms)
        };
        self.ask_controller(request, |response| {
            check("alter reassignments", response.error_code, response.error_message.as_ref())?;
            let mut results = BTreeMap::new();
            for topic in &response.responses {
                for result in &topic.partitions {
                    let key = TopicPartition::new(&*topic.name.0, PartitionIndex(result.partition_index));
                    let outcome = check(&key.to_string(), result.error_code, result.error_message.as_ref());
                    results.insert(key, outcome);
                }
            }
            Ok(results)
        })
    }

    /// All partitions whose replicas are being changed.
    pub fn reassignments(&mut self) -> Result<BTreeMap<TopicPartition, UnderWay>> {
        let timeout_ms = self.admin_timeout_ms();
        let request =
            |_| ListPartitionReassignmentsRequest::default().with_topics(None).with_timeout_ms(timeout_ms);
        self.ask_controller(request, |response| {
            check("list reassignments", response.error_code, response.error_message.as_ref())?;
            let mut found = BTreeMap::new();
            for topic in &response.topics {
                for partition in &topic.partitions {
                    let key = TopicPartition::new(&*topic.name.0, PartitionIndex(partition.partition_index));
                    let under_way = UnderWay {
                        replicas: ids(&partition.replicas),
                        adding: ids(&partition.adding_replicas),
                        removing: ids(&partition.removing_replicas),
                    };
                    found.insert(key, under_way);
                }
            }
            Ok(found)
        })
    }

    /// Sets settings of one broker, and takes others back. Only the broker itself takes that, so it must be alive.
    pub fn alter_broker_configs(
        &mut self,
        broker: BrokerId,
        set: &[(String, String)],
        unset: &[String],
    ) -> Result<()> {
        let what = format!("alter the settings of broker {broker}");
        self.alter_configs(&Target::Broker(broker), (BROKER_RESOURCE, &broker.to_string()), set, unset, &what)
    }

    /// Asks the controller and reads its answer; what may be another way next time is asked again. To be used for what
    /// may be done twice.
    fn ask_controller<R: Request, T>(
        &mut self,
        mut build: impl FnMut(i16) -> R,
        mut read: impl FnMut(R::Response) -> Result<T>,
    ) -> Result<T> {
        let timeout = self.config().network.request_timeout;
        self.retry(|cluster, deadline| {
            let node = cluster.node(&Target::Controller, deadline)?;
            read(cluster.call_node(node, timeout, &mut build)?)
        })
    }
}

fn ids(ids: &[kafka_protocol::messages::BrokerId]) -> Vec<BrokerId> {
    ids.iter().map(|id| BrokerId(id.0)).collect()
}

/// In order of their ids.
fn quorum_replicas(states: &[ReplicaState]) -> Vec<QuorumReplica> {
    let mut replicas: Vec<QuorumReplica> = states.iter().map(quorum_replica).collect();
    replicas.sort_by_key(|replica| replica.id);
    replicas
}

fn quorum_replica(state: &ReplicaState) -> QuorumReplica {
    let time = |ms: i64| Some(Timestamp(ms)).filter(|time| time.0 >= 0);
    QuorumReplica {
        id: BrokerId(state.replica_id.0),
        directory: TopicId(state.replica_directory_id),
        log_end: Offset(state.log_end_offset),
        last_fetch: time(state.last_fetch_timestamp),
        last_caught_up: time(state.last_caught_up_timestamp),
    }
}
