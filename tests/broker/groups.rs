//! Consumer groups of librdkafka: join, share, leave, commit, resume. The values are Apache Kafka's.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kafka_protocol::messages::FindCoordinatorRequest;
use kafka_protocol::protocol::StrBytes;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::harness::client::{Client, Send, poll};
use crate::harness::raw::Raw;
use crate::harness::{Broker, PATIENCE, eventually, shard_counts};

fn member(client: &Client, group: &str, more: &[(&str, &str)]) -> BaseConsumer {
    let mut settings = vec![
        ("group.id", group),
        ("auto.offset.reset", "earliest"),
        ("session.timeout.ms", "6000"),
        ("heartbeat.interval.ms", "200"),
    ];
    settings.extend(more);
    client.consumer(&settings)
}

pub fn fill(client: &Client, topic: &str, partitions: i32, count: usize) {
    client.create_topic(topic, partitions, &[]);
    let records: Vec<Send> =
        (0..count).map(|n| Send::value(n.to_string()).to(n as i32 % partitions)).collect();
    client.send(&client.producer(&[]), topic, &records);
}

fn committed(consumer: &BaseConsumer, topic: &str, partition: i32) -> (Offset, String) {
    let mut asked = TopicPartitionList::new();
    asked.add_partition(topic, partition);
    let found = consumer.committed_offsets(asked, PATIENCE).expect("committed offsets");
    let element = found.find_partition(topic, partition).expect("the partition asked for");
    (element.offset(), element.metadata().to_string())
}

fn commit(consumer: &BaseConsumer, topic: &str, partition: i32, offset: i64, metadata: &str) {
    let mut offsets = TopicPartitionList::new();
    let mut element = offsets.add_partition(topic, partition);
    element.set_offset(Offset::Offset(offset)).expect("a valid offset");
    element.set_metadata(metadata);
    consumer.commit(&offsets, CommitMode::Sync).expect("committed");
}

/// Polls all members until they share the partitions as `wanted` counts say, each partition once.
pub fn await_shares(members: &[&BaseConsumer], wanted: &[usize]) {
    eventually(&format!("the members share {wanted:?}"), || {
        for member in members {
            member.poll(Duration::from_millis(20));
        }
        let assignments: Vec<BTreeSet<i32>> = members
            .iter()
            .map(|member| {
                let assignment = member.assignment().expect("an assignment");
                assignment.elements().iter().map(|element| element.partition()).collect()
            })
            .collect();
        let mut shares: Vec<usize> = assignments.iter().map(BTreeSet::len).collect();
        shares.sort_unstable();
        let distinct: BTreeSet<i32> = assignments.iter().flatten().copied().collect();
        (shares == wanted && distinct.len() == wanted.iter().sum::<usize>()).then_some(())
    });
}

#[test]
fn the_first_coordinator_request_on_a_fresh_node_succeeds() {
    for shards in shard_counts([1, 2, 8]) {
        let broker = Broker::with(shards, &[]);
        let mut raw = Raw::connect(&broker);
        eventually("a coordinator", || {
            let keys = vec![StrBytes::from_static_str("g")];
            let response = raw.call(4, &FindCoordinatorRequest::default().with_coordinator_keys(keys));
            let found = &response.coordinators[0];
            // Not available is what Kafka says while it makes the offsets topic: clients retry that.
            assert!([0, 15].contains(&found.error_code), "{found:?}");
            (found.error_code == 0).then(|| assert_eq!(found.node_id.0, 1))
        });
    }
}

#[test]
fn a_lone_member_reads_everything_and_resumes_where_it_committed() {
    // Without the three seconds in which others may come.
    let at_once = [("group.initial.rebalance.delay.ms", "0")];
    for shards in shard_counts([1, 2, 3, 8]) {
        let broker = Broker::with(shards, &at_once);
        let client = Client::of(&broker);
        fill(&client, "resumed", 4, 40);
        let first = member(&client, "g", &[]);
        first.subscribe(&["resumed"]).expect("subscribed");
        let got = poll(&first, 40);
        assert_eq!(got.iter().map(|got| got.text()).collect::<BTreeSet<_>>().len(), 40);
        first.commit_consumer_state(CommitMode::Sync).expect("committed");
        drop(first);

        client.send(&client.producer(&[]), "resumed", &[Send::value("later").to(2)]);
        let second = member(&client, "g", &[]);
        second.subscribe(&["resumed"]).expect("subscribed");
        assert_eq!(poll(&second, 1)[0].text(), "later", "{shards} shards");
    }
}

#[test]
fn members_share_the_partitions_and_take_over_from_one_that_leaves() {
    for strategy in ["range", "roundrobin", "cooperative-sticky"] {
        let broker = Broker::start();
        let client = Client::of(&broker);
        fill(&client, "shared", 6, 6);
        let join = || {
            let consumer = member(&client, "g", &[("partition.assignment.strategy", strategy)]);
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

#[test]
fn commits_keep_their_metadata_and_survive_a_restart_and_a_kill() {
    let mut broker = Broker::with(2, &[("kuring.durability", "fsync")]);
    let client = Client::of(&broker);
    fill(&client, "kept", 2, 10);
    let consumer = member(&client, "g", &[]);
    assert_eq!(committed(&consumer, "kept", 0).0, Offset::Invalid);
    commit(&consumer, "kept", 0, 3, "three of five");
    assert_eq!(committed(&consumer, "kept", 0), (Offset::Offset(3), "three of five".to_string()));
    broker.terminate();
    broker.start_again(3);
    assert_eq!(committed(&consumer, "kept", 0), (Offset::Offset(3), "three of five".to_string()));
    commit(&consumer, "kept", 0, 4, "four");
    commit(&consumer, "kept", 1, 5, "");
    broker.kill();
    broker.start_again(1);
    let consumer = member(&client, "g", &[]);
    assert_eq!(committed(&consumer, "kept", 0), (Offset::Offset(4), "four".to_string()));
    assert_eq!(committed(&consumer, "kept", 1).0, Offset::Offset(5));
    assert_eq!(committed(&member(&client, "another", &[]), "kept", 0).0, Offset::Invalid);
}

#[test]
fn automatic_commits_happen() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    fill(&client, "automatic", 1, 10);
    let consumer =
        member(&client, "g", &[("enable.auto.commit", "true"), ("auto.commit.interval.ms", "100")]);
    consumer.subscribe(&["automatic"]).expect("subscribed");
    poll(&consumer, 10);
    let observer = member(&client, "g", &[]);
    eventually("the position is committed", || {
        consumer.poll(Duration::from_millis(20));
        (committed(&observer, "automatic", 0).0 == Offset::Offset(10)).then_some(())
    });
}

#[test]
fn a_member_that_vanishes_is_replaced_when_its_session_ends() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    fill(&client, "vanished", 4, 4);
    // Polled never again: librdkafka leaves the group by itself when max.poll.interval.ms is over.
    let silent = member(&client, "g", &[("max.poll.interval.ms", "6000")]);
    silent.subscribe(&["vanished"]).expect("subscribed");
    await_shares(&[&silent], &[4]);
    let other = member(&client, "g", &[]);
    other.subscribe(&["vanished"]).expect("subscribed");
    let start = Instant::now();
    await_shares(&[&other], &[4]);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_group_is_listed_and_goes_on_after_a_restart() {
    let mut broker = Broker::start();
    let client = Client::of(&broker);
    fill(&client, "listed", 2, 10);
    let consumer = member(&client, "g-listed", &[]);
    consumer.subscribe(&["listed"]).expect("subscribed");
    poll(&consumer, 10);
    let groups = consumer.fetch_group_list(None, PATIENCE).expect("groups");
    let group = groups.groups().iter().find(|group| group.name() == "g-listed").expect("the group is listed");
    assert_eq!((group.state(), group.members().len()), ("Stable", 1));
    consumer.commit_consumer_state(CommitMode::Sync).expect("committed");
    broker.terminate();
    broker.start_again(2);
    client.send(&client.producer(&[]), "listed", &[Send::value("after")]);
    assert_eq!(poll(&consumer, 1)[0].text(), "after");
}
