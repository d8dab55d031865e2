//! What the command line asks of a cluster beside data: topics and their settings, offsets.

use std::collections::BTreeMap;

use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest,
    IncrementalAlterConfigsRequest, ListOffsetsRequest, MetadataRequest, MetadataResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::cluster::{Cluster, Target};
use super::error::{ClientError, Result};
use crate::base::clock::Timestamp;
use crate::base::{LeaderEpoch, Offset, TopicId, TopicName, TopicPartition};
use crate::wire::ErrorCode;

/// A topic to create; what is `None` the broker's defaults decide.
#[derive(Clone, Debug)]
pub struct NewTopic {
    pub name: String,
    pub partitions: Option<i32>,
    pub replication_factor: Option<i16>,
    pub configs: Vec<(String, String)>,
}

/// One setting of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    pub name: String,
    pub value: Option<String>,
    /// Set on the topic itself, not inherited.
    pub is_own: bool,
    pub is_read_only: bool,
}

/// Where in a partition to look (ListOffsets).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OffsetAt {
    Earliest,
    Latest,
    /// The first record at or after this time.
    Time(Timestamp),
}

/// What ListOffsets found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundOffset {
    /// `None`: no record is that young.
    pub offset: Option<Offset>,
    pub epoch: LeaderEpoch,
}

pub(super) const TOPIC_RESOURCE: i8 = 2;
const SOURCE_TOPIC: i8 = 1;
const OPERATION_SET: i8 = 0;
const OPERATION_DELETE: i8 = 1;

impl Cluster {
    /// Creates one topic. Returns its id, zero from brokers that tell none.
    pub fn create_topic(&mut self, topic: &NewTopic) -> Result<TopicId> {
        let configs = topic
            .configs
            .iter()
            .map(|(name, value)| {
                CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value)))
            })
            .collect();
        let wanted = CreatableTopic::default()
            .with_name(text(&topic.name).into())
            .with_num_partitions(topic.partitions.unwrap_or(-1))
            .with_replication_factor(topic.replication_factor.unwrap_or(-1))
            .with_configs(configs);
        let timeout_ms = self.admin_timeout_ms();
        let response = self.call_controller(|_| {
            CreateTopicsRequest::default().with_topics(vec![wanted.clone()]).with_timeout_ms(timeout_ms)
        })?;
        let what = format!("create topic {}", topic.name);
        let result = response.topics.first().ok_or_else(|| left_out(&what))?;
        check(&what, result.error_code, result.error_message.as_ref())?;
        Ok(TopicId(result.topic_id))
    }

    pub fn delete_topic(&mut self, name: &str) -> Result<()> {
        let timeout_ms = self.admin_timeout_ms();
        let response = self.call_controller(|version| {
            let request = DeleteTopicsRequest::default().with_timeout_ms(timeout_ms);
            match version {
                ..=5 => request.with_topic_names(vec![text(name).into()]),
                _ => {
                    request.with_topics(vec![DeleteTopicState::default().with_name(Some(text(name).into()))])
                }
            }
        })?;
        let what = format!("delete topic {name}");
        let result = response.responses.first().ok_or_else(|| left_out(&what))?;
        check(&what, result.error_code, result.error_message.as_ref())
    }

    /// Raises a topic's partition count to `count`.
    pub fn create_partitions(&mut self, name: &str, count: i32) -> Result<()> {
        let topic = CreatePartitionsTopic::default()
            .with_name(text(name).into())
            .with_count(count)
            .with_assignments(None);
        let timeout_ms = self.admin_timeout_ms();
        let response = self.call_controller(|_| {
            CreatePartitionsRequest::default().with_topics(vec![topic.clone()]).with_timeout_ms(timeout_ms)
        })?;
        let what = format!("add partitions to topic {name}");
        let result = response.results.first().ok_or_else(|| left_out(&what))?;
        check(&what, result.error_code, result.error_message.as_ref())
    }

    /// All settings of a topic, in order of name.
    pub fn topic_configs(&mut self, name: &str) -> Result<Vec<ConfigEntry>> {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(TOPIC_RESOURCE)
            .with_resource_name(text(name))
            .with_configuration_keys(None);
        let response = self.call(&Target::Any, |_| {
            DescribeConfigsRequest::default().with_resources(vec![resource.clone()])
        })?;
        let what = format!("describe the settings of topic {name}");
        let result = response.results.first().ok_or_else(|| left_out(&what))?;
        check(&what, result.error_code, result.error_message.as_ref())?;
        let mut entries: Vec<ConfigEntry> = result
            .configs
            .iter()
            .map(|config| ConfigEntry {
                name: config.name.to_string(),
                value: config.value.as_ref().map(|value| value.to_string()),
                is_own: config.config_source == SOURCE_TOPIC,
                is_read_only: config.read_only,
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Sets settings of a topic, and takes others back to what they inherit.
    pub fn alter_topic_configs(
        &mut self,
        name: &str,
        set: &[(String, String)],
        unset: &[String],
    ) -> Result<()> {
        let what = format!("alter the settings of topic {name}");
        self.alter_configs(&Target::Controller, (TOPIC_RESOURCE, name), set, unset, &what)
    }

    /// Of a resource of some type; `what` is told when it fails.
    pub(super) fn alter_configs(
        &mut self,
        target: &Target,
        (resource_type, name): (i8, &str),
        set: &[(String, String)],
        unset: &[String],
        what: &str,
    ) -> Result<()> {
        let set = set.iter().map(|(name, value)| (OPERATION_SET, name, Some(text(value))));
        let unset = unset.iter().map(|name| (OPERATION_DELETE, name, None));
        let configs = set
            .chain(unset)
            .map(|(operation, name, value)| {
                AlterableConfig::default()
                    .with_name(text(name))
                    .with_config_operation(operation)
                    .with_value(value)
            })
            .collect();
        let resource = AlterConfigsResource::default()
            .with_resource_type(resource_type)
            .with_resource_name(text(name))
            .with_configs(configs);
        let response = self.call(target, |_| {
            IncrementalAlterConfigsRequest::default().with_resources(vec![resource.clone()])
        })?;
        let result = response.responses.first().ok_or_else(|| left_out(what))?;
        check(what, result.error_code, result.error_message.as_ref())
    }

    /// Metadata as the broker gives it: of all topics, or of those named. Creates none.
    pub fn describe(&mut self, topics: Option<&[String]>) -> Result<MetadataResponse> {
        use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
        let topics = topics.map(|names| {
            let topic = |name: &String| MetadataRequestTopic::default().with_name(Some(text(name).into()));
            names.iter().map(topic).collect::<Vec<_>>()
        });
        self.call(&Target::Any, |version| {
            let request = MetadataRequest::default().with_topics(topics.clone());
            // Before version 4 the broker alone decides.
            request.with_allow_auto_topic_creation(version < 4)
        })
    }

    /// Looks up offsets, one request to each leader. Partitions whose leader moves are asked again.
    pub fn list_offsets(
        &mut self,
        partitions: &[TopicPartition],
        at: OffsetAt,
    ) -> Result<BTreeMap<TopicPartition, FoundOffset>> {
        let mut found = BTreeMap::new();
        self.retry(|cluster, deadline| {
            let mut by_node = BTreeMap::new();
            for partition in partitions
                .iter()
                .filter(|partition| !found.contains_key(*partition))
                .cloned()
                .collect::<Vec<_>>()
            {
                let node = cluster.node(&Target::Leader(partition.clone()), deadline)?;
                by_node.entry(node).or_insert_with(Vec::new).push(partition);
            }
            let timeout = cluster.config().network.request_timeout;
            let mut failure = None;
            for (node, partitions) in by_node {
                let response = cluster.call_node(node, timeout, |_| list_offsets_request(&partitions, at))?;
                for topic in &response.topics {
                    let name = TopicName::new(&topic.name.0);
                    for partition in &topic.partitions {
                        let key = TopicPartition::new(name.clone(), partition.partition_index.into());
                        match check(&format!("find the offset of {key}"), partition.error_code, None) {
                            Ok(()) => {
                                let offset = Some(Offset(partition.offset)).filter(|offset| offset.0 >= 0);
                                let epoch = LeaderEpoch(partition.leader_epoch);
                                found.insert(key, FoundOffset { offset, epoch });
                            }
                            Err(error) => failure = Some(error),
                        }
                    }
                }
            }
            failure.map_or(Ok(()), Err)
        })?;
        Ok(found)
    }

    /// Calls the controller; on brokers that forward to it any answer NOT_CONTROLLER is tried again.
    fn call_controller<R: kafka_protocol::protocol::Request>(
        &mut self,
        build: impl FnMut(i16) -> R,
    ) -> Result<R::Response> {
        self.call(&Target::Controller, build)
    }

    pub(super) fn admin_timeout_ms(&self) -> i32 {
        let timeout = self.config().network.request_timeout.min(self.config().call_timeout);
        i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX)
    }
}

fn list_offsets_request(partitions: &[TopicPartition], at: OffsetAt) -> ListOffsetsRequest {
    let timestamp = match at {
        OffsetAt::Earliest => -2,
        OffsetAt::Latest => -1,
        OffsetAt::Time(time) => time.0,
    };
    let mut topics: BTreeMap<&TopicName, Vec<ListOffsetsPartition>> = BTreeMap::new();
    for partition in partitions {
        let entry = ListOffsetsPartition::default()
            .with_partition_index(partition.partition.0)
            .with_current_leader_epoch(-1)
            .with_timestamp(timestamp);
        topics.entry(&partition.topic).or_default().push(entry);
    }
    let topics = topics
        .into_iter()
        .map(|(name, partitions)| {
            ListOffsetsTopic::default().with_name(text(name).into()).with_partitions(partitions)
        })
        .collect();
    ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(topics)
}

pub(super) fn check(what: &str, code: i16, message: Option<&StrBytes>) -> Result<()> {
    match ErrorCode::try_from_code(code) {
        None => Ok(()),
        Some(code) => Err(ClientError::broker(what, code, message.map(|text| text.as_str()))),
    }
}

pub(super) fn left_out(what: &str) -> ClientError {
    ClientError::Malformed { what: what.into(), reason: "it names no result".into() }
}

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
