//! CreateTopics 2–7 (`ControllerApis.createTopics`).

use std::collections::HashMap;

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use kafka_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse};
use kafka_protocol::protocol::StrBytes;

use super::Client;
use super::answer_room::AnswerRoom;
use super::cluster_view::{message, topic_name};
use super::configs;
use crate::base::{BrokerId, PartitionIndex};
use crate::config::{Levels, Overrides};
use crate::metadata::{Command, CreateTopics, CreatedTopic, NewTopic, Refusal};
use crate::wire::ErrorCode;
use crate::wire::header::RequestHeader;

/// The first version that shows the new topic's configs.
const CONFIGS_FROM: i16 = 5;

/// The first version whose clients know THROTTLING_QUOTA_EXCEEDED.
const STRICT_SINCE: i16 = 6;

/// What a config takes in an answer, decoded and encoded, about.
const CONFIG_BYTES: usize = 256;

pub async fn handle(
    client: &Client,
    header: &RequestHeader,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    let version = header.version;
    let topics: Vec<NewTopic> = request.topics.iter().map(new_topic).collect();
    let command = CreateTopics { topics: topics.clone(), validate_only: request.validate_only };
    let results = match client.mutate(header, STRICT_SINCE, Command::CreateTopics(command)).await {
        Ok(response) => response.topics_created(),
        Err(refusal) => refuse_all(&topics, &refusal),
    };
    let image = client.shard.image();
    let levels = configs::levels(&image, client.shard.config());
    let by_name: HashMap<&str, &NewTopic> = topics.iter().map(|topic| (topic.name.as_str(), topic)).collect();
    let mut room = AnswerRoom::new(client);
    let mut answers = Vec::with_capacity(results.len());
    for (name, result) in results {
        let topic = by_name.get(name.as_str()).copied();
        let mut answer = respond(version, &levels, topic, &name, result);
        let bytes = answer.configs.as_ref().map_or(0, |configs| configs.len() * CONFIG_BYTES);
        if !room.add(bytes).await {
            // The topic is there all the same.
            answer.topic_config_error_code = ErrorCode::InvalidRequest.code();
            answer.configs = None;
        }
        answers.push(answer);
    }
    CreateTopicsResponse::default().with_topics(answers)
}

fn new_topic(topic: &CreatableTopic) -> NewTopic {
    let assignment = topic.assignments.iter().map(|partition| {
        let replicas = partition.broker_ids.iter().map(|id| BrokerId(id.0)).collect();
        (PartitionIndex(partition.partition_index), replicas)
    });
    let config = |name: &StrBytes, value: &Option<StrBytes>| {
        (name.to_string(), value.as_ref().map(|value| value.to_string()))
    };
    NewTopic {
        name: topic.name.to_string(),
        partitions: topic.num_partitions,
        replication_factor: topic.replication_factor,
        assignment: assignment.collect(),
        configs: topic.configs.iter().map(|entry| config(&entry.name, &entry.value)).collect(),
    }
}

fn refuse_all(topics: &[NewTopic], refusal: &Refusal) -> Vec<(String, Result<CreatedTopic, Refusal>)> {
    let mut names: Vec<&String> = topics.iter().map(|topic| &topic.name).collect();
    names.sort();
    names.dedup();
    names.into_iter().map(|name| (name.clone(), Err(refusal.clone()))).collect()
}

fn respond(
    version: i16,
    levels: &Levels<'_>,
    topic: Option<&NewTopic>,
    name: &str,
    result: Result<CreatedTopic, Refusal>,
) -> CreatableTopicResult {
    let answer = CreatableTopicResult::default().with_name(topic_name(name));
    match result {
        Ok(created) => {
            let rows = topic.filter(|_| version >= CONFIGS_FROM);
            let rows = rows.map(|topic| levels.describe_topic(&overrides(topic), |_| true));
            let shown = rows.unwrap_or_default().into_iter().map(|row| {
                CreatableTopicConfigs::default()
                    .with_name(StrBytes::from_static_str(row.name))
                    .with_value(row.value.map(StrBytes::from_string))
                    .with_read_only(row.read_only)
                    .with_config_source(row.source.wire_id())
            });
            answer
                // kafka-protocol's default is an empty text.
                .with_error_message(None)
                .with_topic_id(created.id.0)
                .with_num_partitions(created.partitions)
                .with_replication_factor(created.replication_factor)
                .with_configs(Some(shown.collect()))
        }
        Err(refusal) => answer
            .with_error_code(refusal.code.code())
            .with_error_message(message(&refusal.message))
            .with_num_partitions(-1)
            .with_replication_factor(-1)
            .with_configs(Some(Vec::new())),
    }
}

fn overrides(topic: &NewTopic) -> Overrides {
    topic.configs.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?))).collect()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopicConfig};
    use kafka_protocol::protocol::{Decodable, HeaderVersion};

    use super::super::cluster_view::{broker_ids, text};
    use super::*;
    use crate::base::TopicId;
    use crate::config::BrokerConfig;
    use crate::metadata::Image;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    #[test]
    fn every_field_of_the_request_reaches_the_command() {
        let assignment = CreatableReplicaAssignment::default()
            .with_partition_index(3)
            .with_broker_ids(broker_ids(&[BrokerId(7), BrokerId(8)]));
        let config =
            CreatableTopicConfig::default().with_name(text("retention.ms")).with_value(Some(text("5")));
        let topic = CreatableTopic::default()
            .with_name(topic_name("t"))
            .with_num_partitions(-1)
            .with_replication_factor(-1)
            .with_assignments(vec![assignment])
            .with_configs(vec![
                config,
                CreatableTopicConfig::default().with_name(text("x")).with_value(None),
            ]);
        let expected = NewTopic {
            name: "t".into(),
            partitions: -1,
            replication_factor: -1,
            assignment: vec![(PartitionIndex(3), vec![BrokerId(7), BrokerId(8)])],
            configs: vec![("retention.ms".into(), Some("5".into())), ("x".into(), None)],
        };
        assert_eq!(new_topic(&topic), expected);
    }

    #[test]
    fn all_configs_are_shown_from_version_5_on() {
        let loaded = BrokerConfig::load(None, &[]).unwrap();
        let topic = NewTopic {
            name: "t".into(),
            partitions: 2,
            replication_factor: 1,
            assignment: Vec::new(),
            configs: vec![("retention.ms".into(), Some("77".into()))],
        };
        let id = TopicId(uuid::Uuid::from_u128(9));
        for version in 2..=7 {
            let image = Image::default();
            let levels = configs::levels(&image, &loaded.config);
            let created = CreatedTopic { id, partitions: 2, replication_factor: 1 };
            let refused = Err(Refusal::new(ErrorCode::TopicAlreadyExists, "there"));
            let response = CreateTopicsResponse::default().with_topics(vec![
                respond(version, &levels, Some(&topic), "t", Ok(created)),
                respond(version, &levels, None, "u", refused),
            ]);
            let frame = guard::encode(version, CorrelationId(1), &response).unwrap();
            let head = if CreateTopicsResponse::header_version(version) >= 1 { 9 } else { 8 };
            let back = CreateTopicsResponse::decode(&mut frame.slice(head..), version).unwrap();
            assert_eq!((back.topics[0].error_code, back.topics[1].error_code), (0, 36));
            assert_eq!(back.topics[0].error_message, None);
            let configs = back.topics[0].configs.clone().unwrap_or_default();
            assert_eq!(configs.len() > 20, version >= CONFIGS_FROM, "version {version}");
            if let Some(row) = configs.iter().find(|row| &*row.name == "retention.ms") {
                assert_eq!((row.value.as_deref(), row.config_source), (Some("77"), 1));
            }
        }
    }
}
