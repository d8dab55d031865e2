//! Consumer groups of the new protocol (KIP-848), with librdkafka and on the wire. The values are Apache Kafka's.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::{
    ApiVersionsRequest, ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, GroupId,
    IncrementalAlterConfigsRequest, ListGroupsRequest, TopicName, UpdateFeaturesRequest,
};
use kafka_protocol::protocol::StrBytes;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};

use crate::group_rules::coordinator;
use crate::groups::{await_shares, fill};
use crate::harness::client::{Client, Send, poll};
use crate::harness::raw::Raw;
use crate::harness::{Broker, PATIENCE, eventually, shard_counts};

/// Heartbeats every 200 ms, and assignments at once.
const QUICK: &[(&str, &str)] = &[
    ("group.consumer.min.heartbeat.interval.ms", "200"),
    ("group.consumer.heartbeat.interval.ms", "200"),
    ("group.consumer.assignment.interval.ms", "0"),
    ("group.consumer.min.session.timeout.ms", "3000"),
    ("group.consumer.session.timeout.ms", "3000"),
];

fn member(client: &Client, group: &str, more: &[(&str, &str)]) -> BaseConsumer {
    let mut settings = vec![
        ("group.id", group),
        ("group.protocol", "consumer"),
        ("auto.offset.reset", "earliest"),
        ("topic.metadata.refresh.interval.ms", "500"),
    ];
    settings.extend(more);
    client.consumer(&settings)
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_string())
}

fn heartbeat(group: &str, member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(-1)
}

fn joining(group: &str, member: &str, topic: &str) -> ConsumerGroupHeartbeatRequest {
    heartbeat(group, member, 0)
        .with_rebalance_timeout_ms(30_000)
        .with_subscribed_topic_names(Some(vec![TopicName(text(topic))]))
        .with_topic_partitions(Some(Vec::new()))
}

#[test]
fn members_of_the_new_protocol_share_partitions_and_take_over() {
    for shards in shard_counts([1, 3]) {
        let broker = Broker::with(shards, QUICK);
        let client = Client::of(&broker);
        fill(&client, "shared", 6, 60);
        for assignor in ["uniform", "range"] {
            let join = || {
                let consumer = member(&client, assignor, &[("group.remote.assignor", assignor)]);
                consumer.subscribe(&["shared"]).expect("subscribed");
                consumer
            };
            let one = join();
            await_shares(&[&one], &[6]);
            let two = join();
            await_shares(&[&one, &two], &[3, 3]);
            let three = join();
            await_shares(&[&one, &two, &three], &[2, 2, 2]);
            drop(two);
            await_shares(&[&one, &three], &[3, 3]);
            drop(one);
            await_shares(&[&three], &[6]);
        }
    }
}

#[test]
fn a_member_of_the_new_protocol_resumes_where_it_committed_after_a_kill() {
    let mut broker = Broker::with(2, &[QUICK, &[("kuring.durability", "fsync")]].concat());
    let client = Client::of(&broker);
    fill(&client, "resumed", 4, 40);
    let first = member(&client, "g", &[]);
    first.subscribe(&["resumed"]).expect("subscribed");
    assert_eq!(poll(&first, 40).len(), 40);
    first.commit_consumer_state(CommitMode::Sync).expect("committed");
    broker.kill();
    broker.start_again(1);
    // The member goes on as if nothing had been.
    client.send(&client.producer(&[]), "resumed", &[Send::value("later").to(2)]);
    assert_eq!(poll(&first, 1)[0].text(), "later");
    first.commit_consumer_state(CommitMode::Sync).expect("committed");
    drop(first);
    client.send(&client.producer(&[]), "resumed", &[Send::value("last").to(1)]);
    let second = member(&client, "g", &[]);
    second.subscribe(&["resumed"]).expect("subscribed");
    assert_eq!(poll(&second, 1)[0].text(), "last");
}

#[test]
fn a_member_of_the_new_protocol_that_vanishes_is_replaced() {
    let broker = Broker::with(1, QUICK);
    let client = Client::of(&broker);
    fill(&client, "vanished", 4, 4);
    let mut raw = coordinator(&broker, "g");
    let joined = raw.call(1, &joining("g", "silent", "vanished"));
    assert_eq!((joined.error_code, joined.member_epoch), (0, 2));
    let other = member(&client, "g", &[]);
    other.subscribe(&["vanished"]).expect("subscribed");
    let start = Instant::now();
    await_shares(&[&other], &[4]);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[test]
fn topics_that_match_an_expression_are_found_when_they_are_made() {
    let broker = Broker::with(2, QUICK);
    let client = Client::of(&broker);
    fill(&client, "logs-a", 2, 4);
    fill(&client, "other", 1, 1);
    let consumer = member(&client, "g", &[]);
    consumer.subscribe(&["^logs-.*"]).expect("subscribed");
    await_shares(&[&consumer], &[2]);
    let read: BTreeSet<String> = poll(&consumer, 4).iter().map(|got| got.text().to_string()).collect();
    assert_eq!(read.len(), 4);
}

#[test]
fn a_group_changes_from_the_classic_protocol_to_the_new_one_and_back() {
    let broker = Broker::with(2, QUICK);
    let client = Client::of(&broker);
    fill(&client, "moved", 4, 40);
    let classic = client.consumer(&[
        ("group.id", "g"),
        ("auto.offset.reset", "earliest"),
        ("session.timeout.ms", "6000"),
        ("heartbeat.interval.ms", "200"),
        ("partition.assignment.strategy", "cooperative-sticky"),
    ]);
    classic.subscribe(&["moved"]).expect("subscribed");
    await_shares(&[&classic], &[4]);
    let new = member(&client, "g", &[]);
    new.subscribe(&["moved"]).expect("subscribed");
    await_shares(&[&classic, &new], &[2, 2]);
    let mut raw = coordinator(&broker, "g");
    let kind = |raw: &mut Raw| raw.call(5, &ListGroupsRequest::default()).groups[0].group_type.to_string();
    assert_eq!(kind(&mut raw), "consumer");
    drop(new);
    await_shares(&[&classic], &[4]);
    assert_eq!(kind(&mut raw), "classic");
}

#[test]
fn a_static_member_of_the_new_protocol_that_restarts_has_its_partitions_again_and_disturbs_nobody() {
    let broker = Broker::with(2, QUICK);
    let client = Client::of(&broker);
    fill(&client, "static", 4, 4);
    let join = |instance: &str| {
        let consumer = member(&client, "g", &[("group.instance.id", instance)]);
        consumer.subscribe(&["static"]).expect("subscribed");
        consumer
    };
    let share = |consumer: &BaseConsumer| -> BTreeSet<i32> {
        let assignment = consumer.assignment().expect("an assignment");
        assignment.elements().iter().map(|element| element.partition()).collect()
    };
    let (one, two) = (join("one"), join("two"));
    await_shares(&[&one, &two], &[2, 2]);
    let before = share(&two);
    // A static member that closes means to come back.
    drop(two);
    let two = join("two");
    let start = Instant::now();
    while share(&two).is_empty() {
        assert!(start.elapsed() < PATIENCE, "it is back");
        one.poll(Duration::from_millis(20));
        two.poll(Duration::from_millis(20));
        assert_eq!(share(&one).len(), 2, "the other keeps its share");
    }
    assert_eq!(share(&two), before);
}

/// Sets a config of a group; `None` takes the value away.
fn configure(raw: &mut Raw, group: &str, name: &str, value: Option<&str>) {
    const GROUP: i8 = 32;
    let config = AlterableConfig::default()
        .with_name(text(name))
        .with_config_operation(i8::from(value.is_none()))
        .with_value(value.map(text));
    let resource = AlterConfigsResource::default()
        .with_resource_type(GROUP)
        .with_resource_name(text(group))
        .with_configs(vec![config]);
    let response = raw.call(1, &IncrementalAlterConfigsRequest::default().with_resources(vec![resource]));
    let answer = &response.responses[0];
    assert_eq!((answer.error_code, answer.error_message.as_deref()), (0, None), "{name}");
}

#[test]
fn a_groups_own_times_count_while_it_lives_and_after_a_restart() {
    let mut broker = Broker::with(2, QUICK);
    Client::of(&broker).create_topic("t", 1, &[]);
    let mut raw = coordinator(&broker, "g");
    assert_eq!(raw.call(1, &joining("g", "a", "t")).heartbeat_interval_ms, 200);
    let told = |raw: &mut Raw, interval: i32| {
        eventually("the member is told", || {
            let beaten = raw.call(1, &heartbeat("g", "a", 2));
            assert_eq!(beaten.error_code, 0);
            (beaten.heartbeat_interval_ms == interval).then_some(())
        });
    };
    configure(&mut raw, "g", "consumer.heartbeat.interval.ms", Some("700"));
    told(&mut raw, 700);
    configure(&mut raw, "g", "consumer.session.timeout.ms", Some("30000"));
    broker.terminate();
    broker.start_again(2);
    let mut raw = coordinator(&broker, "g");
    told(&mut raw, 700);
    // Longer than the broker's own session time-out.
    std::thread::sleep(Duration::from_secs(4));
    told(&mut raw, 700);
    configure(&mut raw, "g", "consumer.heartbeat.interval.ms", None);
    told(&mut raw, 200);
}

#[test]
fn the_new_protocol_is_there_by_the_feature_of_its_name() {
    const UPGRADE: i8 = 1;
    const SAFE_DOWNGRADE: i8 = 2;
    const UNSUPPORTED_VERSION: i16 = 35;
    let broker = Broker::with(2, QUICK);
    Client::of(&broker).create_topic("t", 1, &[]);
    let mut raw = coordinator(&broker, "g");
    assert_eq!(raw.call(1, &joining("g", "a", "t")).error_code, 0);
    let set = |raw: &mut Raw, level: i16, upgrade: i8| {
        let update = FeatureUpdateKey::default()
            .with_feature(text("group.version"))
            .with_max_version_level(level)
            .with_upgrade_type(upgrade);
        let response = raw.call(1, &UpdateFeaturesRequest::default().with_feature_updates(vec![update]));
        assert_eq!((response.error_code, response.error_message.as_deref()), (0, None));
    };
    let await_code = |raw: &mut Raw, code: i16| {
        eventually("the feature counts", || {
            let asked = ConsumerGroupDescribeRequest::default().with_group_ids(vec![GroupId(text("g"))]);
            let described = raw.call(1, &asked).groups[0].error_code;
            (raw.call(1, &heartbeat("g", "a", 2)).error_code == code && described == code).then_some(())
        });
    };
    set(&mut raw, 0, SAFE_DOWNGRADE);
    await_code(&mut raw, UNSUPPORTED_VERSION);
    set(&mut raw, 1, UPGRADE);
    await_code(&mut raw, 0);
}

#[test]
fn the_wire_says_what_kafkas_does() {
    let broker = Broker::with(1, QUICK);
    let client = Client::of(&broker);
    client.create_topic("t", 2, &[]);
    let mut raw = coordinator(&broker, "g");
    let unknown = raw.call(1, &heartbeat("g", "a", 1));
    assert_eq!(
        (unknown.error_code, unknown.error_message.as_deref()),
        (69, Some("Consumer group g not found."))
    );
    for version in [0, 1] {
        let joined = raw.call(version, &joining("g", "a", "t"));
        assert_eq!((joined.error_code, joined.member_id.as_deref(), joined.member_epoch), (0, Some("a"), 2));
        assert_eq!(joined.heartbeat_interval_ms, 200);
        let assignment = joined.assignment.expect("an assignment");
        assert_eq!(assignment.topic_partitions[0].partitions, [0, 1]);
        let ids = vec![GroupId(text("g"))];
        let asked = ConsumerGroupDescribeRequest::default()
            .with_group_ids(ids)
            .with_include_authorized_operations(true);
        let described = raw.call(version, &asked);
        let group = &described.groups[0];
        assert_eq!((&*group.group_state, group.group_epoch, &*group.assignor_name), ("Stable", 2, "uniform"));
        assert_eq!(group.authorized_operations, 3400);
        let seen = &group.members[0];
        assert_eq!((&*seen.member_id, seen.member_epoch, &*seen.client_host), ("a", 2, "/127.0.0.1"));
        assert_eq!(seen.subscribed_topic_regex.as_deref(), Some(""));
        assert_eq!(&*seen.assignment.topic_partitions[0].topic_name.0, "t");
        assert_eq!(seen.member_type, if version == 0 { -1 } else { 1 });
    }
    let beaten = raw.call(1, &heartbeat("g", "a", 2));
    assert_eq!((beaten.error_code, beaten.member_epoch, beaten.assignment), (0, 2, None));
    assert_eq!(raw.call(1, &heartbeat("g", "a", 1)).error_code, 110);
    let left = raw.call(1, &heartbeat("g", "a", -1));
    assert_eq!((left.error_code, left.member_epoch), (0, -1));
    // How clients find the protocol.
    let versions = raw.call(
        4,
        &ApiVersionsRequest::default()
            .with_client_software_name(text("a"))
            .with_client_software_version(text("1")),
    );
    let supported = versions.supported_features.iter().find(|feature| &*feature.name == "group.version");
    assert_eq!(supported.map(|feature| (feature.min_version, feature.max_version)), Some((0, 1)));
    let finalized = versions.finalized_features.iter().find(|feature| &*feature.name == "group.version");
    assert_eq!(finalized.map(|feature| (feature.min_version_level, feature.max_version_level)), Some((1, 1)));
    let versions = raw.call(
        3,
        &ApiVersionsRequest::default()
            .with_client_software_name(text("a"))
            .with_client_software_version(text("1")),
    );
    let supported = versions.supported_features.iter().any(|feature| &*feature.name == "group.version");
    let finalized = versions.finalized_features.iter().any(|feature| &*feature.name == "group.version");
    assert_eq!((supported, finalized), (false, true), "older clients take no feature that begins at level 0");
}
