//! Cases that broke other brokers in public, as far as no other test here has them; docs/TESTING.md lists them all.

use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    ApiVersionsRequest, CreatePartitionsRequest, CreateTopicsRequest, DescribeProducersRequest,
    OffsetForLeaderEpochRequest,
};
use kafka_protocol::protocol::StrBytes;

use crate::harness::batch::Batch;
use crate::harness::client::Client;
use crate::harness::raw::{Raw, name};
use crate::harness::{Broker, eventually};

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const INVALID_PARTITIONS: i16 = 37;
const POLICY_VIOLATION: i16 = 44;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn topic(topic: &str, partitions: i32) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
}

#[test]
fn a_created_topic_is_answered_with_all_its_configs_from_version_5() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    for version in 2..=7 {
        let config =
            CreatableTopicConfig::default().with_name(text("retention.ms")).with_value(Some(text("1234567")));
        let topic = topic(&format!("t{version}"), 3).with_configs(vec![config]);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        let response = raw.call(version, &request);
        let created = &response.topics[0];
        assert_eq!(created.error_code, 0, "version {version}");
        if version < 5 {
            continue;
        }
        assert_eq!((created.num_partitions, created.replication_factor), (3, 1), "version {version}");
        let configs = created.configs.as_ref().expect("configs");
        assert!(configs.len() > 25, "version {version}: {}", configs.len());
        let of = |name: &str| {
            let found = configs.iter().find(|config| &*config.name == name);
            let found = found.unwrap_or_else(|| panic!("version {version}: no {name}"));
            (found.value.as_deref().map(str::to_owned), found.config_source)
        };
        // 1 is the topic's own, 5 the default.
        assert_eq!(of("retention.ms"), (Some("1234567".to_owned()), 1));
        assert_eq!(of("cleanup.policy"), (Some("delete".to_owned()), 5));
    }
}

#[test]
fn every_topic_that_is_to_grow_has_its_own_answer() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    for topic in ["grows", "shrinks", "stays"] {
        client.create_topic(topic, 2, &[]);
    }
    let more = |topic: &str, count: i32| {
        CreatePartitionsTopic::default().with_name(name(topic)).with_count(count).with_assignments(None)
    };
    let topics = vec![more("grows", 4), more("shrinks", 1), more("missing", 4), more("stays", 2)];
    let request = CreatePartitionsRequest::default().with_topics(topics).with_timeout_ms(10_000);
    let response = Raw::connect(&broker).call(3, &request);
    let mut codes: Vec<(String, i16)> =
        response.results.iter().map(|result| (result.name.0.to_string(), result.error_code)).collect();
    codes.sort();
    let wanted = [
        ("grows", 0),
        ("missing", UNKNOWN_TOPIC_OR_PARTITION),
        ("shrinks", INVALID_PARTITIONS),
        ("stays", INVALID_PARTITIONS),
    ];
    assert_eq!(codes, wanted.map(|(topic, code)| (topic.to_owned(), code)));
    client.await_partitions("grows", 4);
}

#[test]
fn a_command_too_large_for_the_metadata_log_is_refused_and_the_controller_goes_on() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    let create = |raw: &mut Raw, topics: Vec<CreatableTopic>| {
        let request = CreateTopicsRequest::default().with_topics(topics).with_timeout_ms(10_000);
        raw.call(7, &request).topics.iter().map(|topic| topic.error_code).collect::<Vec<_>>()
    };
    // Kafka's controller takes no more than 10,000 records at once either.
    let refused = create(&mut raw, vec![topic("huge", 10_001)]);
    assert_eq!(refused, [POLICY_VIOLATION]);
    assert_eq!(create(&mut raw, vec![topic("small", 1)]), [0]);
}

fn producers(raw: &mut Raw, topic: &str) -> usize {
    let asked = TopicRequest::default().with_name(name(topic)).with_partition_indexes(vec![0]);
    let response = raw.call(0, &DescribeProducersRequest::default().with_topics(vec![asked]));
    let partition = &response.topics[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    partition.active_producers.len()
}

#[test]
fn an_idle_producer_is_forgotten_after_its_time_and_may_go_on_where_it_was() {
    let settings =
        [("producer.id.expiration.ms", "1000"), ("producer.id.expiration.check.interval.ms", "100")];
    let broker = Broker::with(1, &settings);
    let client = Client::of(&broker);
    client.create_topic("t", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let id = raw.producer_id();
    let send = |raw: &mut Raw, sequence: i32| {
        raw.produce("t", 0, -1, Batch::now(&["v"]).with_producer(id, 0, sequence).encode()).error_code
    };
    assert_eq!((send(&mut raw, 0), producers(&mut raw, "t")), (0, 1));
    eventually("it is forgotten", || (producers(&mut raw, "t") == 0).then_some(()));
    // An unknown producer starts anywhere: its client went on counting.
    assert_eq!((send(&mut raw, 7), producers(&mut raw, "t")), (0, 1));
    assert_eq!(send(&mut raw, 8), 0);
}

#[test]
fn the_end_of_an_epoch_is_never_below_what_consumers_saw_of_it() {
    let mut broker = Broker::start();
    Client::of(&broker).create_topic("t", 1, &[]);
    let mut ends = Vec::new();
    for _ in 0..3 {
        let mut raw = Raw::connect(&broker);
        for _ in 0..10 {
            assert_eq!(raw.produce("t", 0, -1, Batch::now(&["v"]).encode()).error_code, 0);
        }
        ends.push(raw.list_offset(7, "t", -1));
        broker.kill();
        broker.start_again(1);
    }
    let mut raw = Raw::connect(&broker);
    for end in &ends {
        let partition = OffsetForLeaderPartition::default()
            .with_partition(0)
            .with_current_leader_epoch(-1)
            .with_leader_epoch(end.leader_epoch);
        let topic = OffsetForLeaderTopic::default().with_topic(name("t")).with_partitions(vec![partition]);
        let request =
            OffsetForLeaderEpochRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
        // Kafka listens before it leads again.
        let found = eventually("the partition is led", || {
            let found = raw.call(4, &request).topics[0].partitions[0].clone();
            (found.error_code != NOT_LEADER_OR_FOLLOWER).then_some(found)
        });
        assert_eq!(
            (found.error_code, found.leader_epoch, found.end_offset),
            (0, end.leader_epoch, end.offset)
        );
    }
    assert_eq!(ends.iter().map(|end| end.offset).collect::<Vec<_>>(), [10, 20, 30]);
    assert!(ends.windows(2).all(|pair| pair[0].leader_epoch < pair[1].leader_epoch), "{ends:?}");
}

#[test]
fn clients_are_not_asked_for_telemetry_that_nobody_takes() {
    let broker = Broker::start();
    let request = ApiVersionsRequest::default()
        .with_client_software_name(text("raw"))
        .with_client_software_version(text("1"));
    let response = Raw::connect(&broker).call(4, &request);
    // GetTelemetrySubscriptions and PushTelemetry: a broker without a receiver does not have them.
    assert!(response.api_keys.iter().all(|api| !matches!(api.api_key, 71 | 72)), "{:?}", response.api_keys);
}
