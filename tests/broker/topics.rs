//! Topics as administrators see them: create, describe, grow, configure, delete.

use kafka_protocol::messages::IncrementalAlterConfigsRequest;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::protocol::StrBytes;
use rdkafka::admin::{
    AlterConfig, ConfigSource, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::error::RDKafkaErrorCode;

use crate::harness::client::{Client, Send, options};
use crate::harness::raw::Raw;
use crate::harness::{Broker, PATIENCE, eventually, shard_counts};

const TOPIC: i8 = 2;
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INVALID_CONFIG: i16 = 40;

fn create(client: &Client, topic: NewTopic<'_>) -> Result<(), RDKafkaErrorCode> {
    let results =
        client.wait(client.admin().create_topics([&topic], &options())).expect("the request was sent");
    results.into_iter().next().expect("one result").map(drop).map_err(|(_, code)| code)
}

fn config(client: &Client, topic: &str, name: &str) -> (Option<String>, ConfigSource) {
    let resource = ResourceSpecifier::Topic(topic);
    let results =
        client.wait(client.admin().describe_configs([&resource], &options())).expect("the request was sent");
    let resource = results.into_iter().next().expect("one result").expect("described");
    let entry = resource.entries.into_iter().find(|entry| entry.name == name);
    let entry = entry.unwrap_or_else(|| panic!("no config {name}"));
    (entry.value, entry.source)
}

/// One step of IncrementalAlterConfigs; its error code.
fn step(raw: &mut Raw, topic: &str, operation: i8, name: &str, value: &str) -> i16 {
    let config = AlterableConfig::default()
        .with_name(StrBytes::from_string(name.to_string()))
        .with_config_operation(operation)
        .with_value((operation != DELETE).then(|| StrBytes::from_string(value.to_string())));
    let resource = AlterConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(StrBytes::from_string(topic.to_string()))
        .with_configs(vec![config]);
    let response = raw.call(1, &IncrementalAlterConfigsRequest::default().with_resources(vec![resource]));
    response.responses[0].error_code
}

#[test]
fn a_topic_is_created_listed_and_deleted() {
    for shards in shard_counts([1, 2, 3, 8]) {
        let broker = Broker::with(shards, &[]);
        let client = Client::of(&broker);
        client.create_topic("one", 1, &[]);
        client.create_topic("many", 40, &[]);
        let admin = client.admin();
        let names = || {
            let metadata = admin.inner().fetch_metadata(None, PATIENCE).expect("metadata");
            let mut names: Vec<(String, usize)> = metadata
                .topics()
                .iter()
                .filter(|topic| !topic.name().starts_with("__"))
                .map(|topic| (topic.name().to_string(), topic.partitions().len()))
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(), [("many".to_string(), 40), ("one".to_string(), 1)], "{shards} shards");
        assert_eq!(client.delete_topic("many"), Ok(()));
        eventually("it is gone", || (names() == [("one".to_string(), 1)]).then_some(()));
        assert_eq!(client.delete_topic("many"), Err(RDKafkaErrorCode::UnknownTopicOrPartition));
    }
}

#[test]
fn what_cannot_be_created_is_refused_with_kafkas_code() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("there", 1, &[]);
    let fixed =
        |name, partitions, replicas| NewTopic::new(name, partitions, TopicReplication::Fixed(replicas));
    let refused = |topic| create(&client, topic).expect_err("refused");
    assert_eq!(refused(fixed("there", 1, 1)), RDKafkaErrorCode::TopicAlreadyExists);
    assert_eq!(refused(fixed("replicas", 1, 2)), RDKafkaErrorCode::InvalidReplicationFactor);
    assert_eq!(refused(fixed("replicas", 1, 0)), RDKafkaErrorCode::InvalidReplicationFactor);
    assert_eq!(refused(fixed("partitions", 0, 1)), RDKafkaErrorCode::InvalidPartitions);
    let too_long = "n".repeat(250);
    for name in ["", ".", "..", "a b", "a/b", "ü", &too_long] {
        assert_eq!(refused(fixed(name, 1, 1)), RDKafkaErrorCode::InvalidTopic, "{name:?}");
    }
    assert_eq!(refused(fixed("option", 1, 1).set("no.such.config", "1")), RDKafkaErrorCode::InvalidConfig);
    assert_eq!(refused(fixed("option", 1, 1).set("segment.bytes", "many")), RDKafkaErrorCode::InvalidConfig);
    assert_eq!(refused(fixed("option", 1, 1).set("retention.ms", "-2")), RDKafkaErrorCode::InvalidConfig);
    assert_eq!(refused(fixed("option", 1, 1).set("cleanup.policy", "burn")), RDKafkaErrorCode::InvalidConfig);
    // Names that differ only in `.` and `_` would share metric names.
    client.create_topic("a.b", 1, &[]);
    assert_eq!(refused(fixed("a_b", 1, 1)), RDKafkaErrorCode::InvalidTopic);
    assert_eq!(create(&client, fixed(&too_long[1..], 1, 1)), Ok(()));
}

#[test]
fn replicas_may_be_assigned_by_hand() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    let assigned = |name, replicas| NewTopic::new(name, 2, TopicReplication::Variable(replicas));
    assert_eq!(create(&client, assigned("by-hand", &[&[1], &[1]])), Ok(()));
    client.await_partitions("by-hand", 2);
    assert_eq!(
        create(&client, assigned("nobody", &[&[1], &[77]])),
        Err(RDKafkaErrorCode::InvalidReplicaAssignment)
    );
}

#[test]
fn validation_alone_creates_nothing() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    let topic = NewTopic::new("tried", 1, TopicReplication::Fixed(1));
    let options = options().validate_only(true);
    let results =
        client.wait(client.admin().create_topics([&topic], &options)).expect("the request was sent");
    assert_eq!(results, [Ok("tried".to_string())]);
    let bad = NewTopic::new("tried", 1, TopicReplication::Fixed(3));
    let results = client.wait(client.admin().create_topics([&bad], &options)).expect("the request was sent");
    assert_eq!(results, [Err(("tried".to_string(), RDKafkaErrorCode::InvalidReplicationFactor))]);
    assert_eq!(client.delete_topic("tried"), Err(RDKafkaErrorCode::UnknownTopicOrPartition));
}

#[test]
fn partitions_are_added_and_never_taken_away() {
    for shards in shard_counts([1, 3]) {
        let broker = Broker::with(shards, &[]);
        let client = Client::of(&broker);
        client.create_topic("growing", 2, &[]);
        client.send(&client.producer(&[]), "growing", &[Send::value("kept").to(1)]);
        let grow = |count| {
            let change = NewPartitions::new("growing", count);
            let results = client.wait(client.admin().create_partitions([&change], &options())).expect("sent");
            results.into_iter().next().expect("one result").map(drop).map_err(|(_, code)| code)
        };
        assert_eq!(grow(6), Ok(()));
        client.await_partitions("growing", 6);
        assert_eq!(grow(6), Err(RDKafkaErrorCode::InvalidPartitions));
        assert_eq!(grow(3), Err(RDKafkaErrorCode::InvalidPartitions));
        let sent = client.send(&client.producer(&[]), "growing", &[Send::value("new").to(5)]);
        assert_eq!(sent, [(5, 0)]);
        assert_eq!(client.read("growing", &[1], 1)[0].text(), "kept");
    }
}

#[test]
fn configs_say_their_value_and_where_it_is_from() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("configured", 1, &[("retention.ms", "3600000")]);
    assert_eq!(
        config(&client, "configured", "retention.ms"),
        (Some("3600000".into()), ConfigSource::DynamicTopic)
    );
    assert_eq!(
        config(&client, "configured", "segment.bytes"),
        (Some("1073741824".into()), ConfigSource::Default)
    );
    assert_eq!(
        config(&client, "configured", "cleanup.policy"),
        (Some("delete".into()), ConfigSource::Default)
    );
    assert_eq!(
        config(&client, "configured", "max.message.bytes"),
        (Some("1048588".into()), ConfigSource::Default)
    );

    // AlterConfigs names the whole set: what it leaves out is the default again.
    let change = AlterConfig::new(ResourceSpecifier::Topic("configured")).set("max.message.bytes", "2000");
    client.wait(client.admin().alter_configs([&change], &options())).expect("the request was sent");
    eventually("the change shows", || {
        (config(&client, "configured", "max.message.bytes")
            == (Some("2000".into()), ConfigSource::DynamicTopic))
            .then_some(())
    });
    assert_eq!(
        config(&client, "configured", "retention.ms"),
        (Some("604800000".into()), ConfigSource::Default)
    );

    // It has its effect at once.
    let producer = client.producer(&[]);
    let result = client.try_send(&producer, "configured", &[Send::value(vec![0; 3_000])]).remove(0);
    assert_eq!(
        result.map_err(|error| error.rdkafka_error_code()),
        Err(Some(RDKafkaErrorCode::MessageSizeTooLarge))
    );
}

#[test]
fn a_list_grows_and_shrinks_by_steps() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("steps", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let shows = |name: &str, value: &str, source: ConfigSource| {
        eventually(&format!("{name} is {value}"), || {
            let (found, from) = config(&client, "steps", name);
            (found.as_deref() == Some(value) && from == source).then_some(())
        });
    };
    assert_eq!(step(&mut raw, "steps", APPEND, "cleanup.policy", "compact"), 0);
    shows("cleanup.policy", "delete,compact", ConfigSource::DynamicTopic);
    assert_eq!(step(&mut raw, "steps", APPEND, "cleanup.policy", "compact"), 0, "what is there stays once");
    shows("cleanup.policy", "delete,compact", ConfigSource::DynamicTopic);
    assert_eq!(step(&mut raw, "steps", SUBTRACT, "cleanup.policy", "delete"), 0);
    shows("cleanup.policy", "compact", ConfigSource::DynamicTopic);
    assert_eq!(step(&mut raw, "steps", DELETE, "cleanup.policy", ""), 0);
    shows("cleanup.policy", "delete", ConfigSource::Default);
    assert_eq!(step(&mut raw, "steps", SET, "segment.ms", "60000"), 0);
    shows("segment.ms", "60000", ConfigSource::DynamicTopic);
    assert_eq!(step(&mut raw, "steps", SET, "max.message.bytes", "x"), INVALID_CONFIG);
    assert_eq!(step(&mut raw, "steps", SET, "no.such.config", "1"), INVALID_CONFIG);
    assert_eq!(step(&mut raw, "steps", APPEND, "segment.ms", "1"), INVALID_CONFIG, "not a list");
    assert_eq!(step(&mut raw, "absent", SET, "segment.ms", "60000"), UNKNOWN_TOPIC_OR_PARTITION);
    shows("segment.ms", "60000", ConfigSource::DynamicTopic);
}

#[test]
fn a_brokers_settings_are_a_topics_defaults() {
    let broker = Broker::with(2, &[("log.retention.ms", "7200000"), ("message.max.bytes", "50000")]);
    let client = Client::of(&broker);
    client.create_topic("inherits", 1, &[]);
    assert_eq!(
        config(&client, "inherits", "retention.ms"),
        (Some("7200000".into()), ConfigSource::StaticBroker)
    );
    assert_eq!(
        config(&client, "inherits", "max.message.bytes"),
        (Some("50000".into()), ConfigSource::StaticBroker)
    );
    let result =
        client.try_send(&client.producer(&[]), "inherits", &[Send::value(vec![0; 60_000])]).remove(0);
    assert_eq!(
        result.map_err(|error| error.rdkafka_error_code()),
        Err(Some(RDKafkaErrorCode::MessageSizeTooLarge))
    );
}

#[test]
fn records_below_an_offset_are_deleted_on_request() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("shortened", 1, &[]);
    let records: Vec<Send> = (0..10).map(|n| Send::value(n.to_string()).to(0)).collect();
    client.send(&client.producer(&[("linger.ms", "0")]), "shortened", &records);
    client.delete_records("shortened", 0, 4);
    assert_eq!(client.offsets("shortened", 0), (4, 10));
    assert_eq!(client.read("shortened", &[0], 6)[0].text(), "4");
}

#[test]
fn old_segments_go_by_size_and_the_newest_stays() {
    let broker = Broker::with(
        2,
        &[
            ("log.initial.task.delay.ms", "0"),
            ("log.retention.check.interval.ms", "200"),
            ("log.segment.delete.delay.ms", "100"),
        ],
    );
    let client = Client::of(&broker);
    // Kafka 4 takes no segment.bytes below 1 MiB.
    client.create_topic("short", 1, &[("segment.bytes", "1048576"), ("retention.bytes", "2097152")]);
    let producer = client.producer(&[("linger.ms", "0"), ("batch.num.messages", "10")]);
    let records: Vec<Send> = (0..600).map(|n| Send::value(vec![n as u8; 10_000]).to(0)).collect();
    client.send(&producer, "short", &records);
    let (first, next) = eventually("segments are deleted", || {
        Some(client.offsets("short", 0)).filter(|(first, _)| *first > 0)
    });
    assert_eq!(next, 600);
    let got = client.read("short", &[0], 1);
    assert_eq!((got[0].offset, got[0].value.as_ref().map(|value| value[0])), (first, Some(first as u8)));
}
