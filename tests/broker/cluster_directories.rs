//! Log directories of three processes: replicas that follow move between them as those that lead do, and a replica comes to be
//! in the directory that it was given before.

use std::path::PathBuf;

use rdkafka::producer::FutureProducer;

use super::cluster::Cluster;
use super::cluster_elections::{await_replicas, create, reassign};
use super::cluster_replication::log_in;
use super::harness::client::{Client, Send};
use super::harness::{Broker, eventually};
use super::log_dirs::{TWO, alter, await_move, other};

const NONE: i16 = 0;
const REPLICA_NOT_AVAILABLE: i16 = 9;
const TOPIC: &str = "moved";

/// Sends so many records, each acknowledged by all that are in sync.
fn send(client: &Client, producer: &FutureProducer, count: usize) {
    let records: Vec<Send> = (0..count).map(|number| Send::value(format!("value {number}")).to(0)).collect();
    client.send(producer, TOPIC, &records);
}

fn cluster(replicas: &[i32]) -> (Cluster, Client) {
    let cluster = Cluster::start_with(&[TWO]);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, TOPIC, &[replicas]);
    await_replicas(&cluster, TOPIC, replicas);
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    (cluster, client)
}

/// The directory of the replica on the node, and the one where it is not.
fn directories_of(node: &Broker) -> (PathBuf, PathBuf) {
    let (first, second) = (node.data(), other(node));
    match first.join(format!("{TOPIC}-0")).exists() {
        true => (first, second),
        false => (second, first),
    }
}

#[test]
fn a_replica_that_follows_moves_under_load_and_can_lead_afterwards() {
    if Broker::is_kafka() {
        return;
    }
    let (mut cluster, client) = cluster(&[1, 2]);
    let producer = client.producer(&[("acks", "all"), ("message.timeout.ms", "60000")]);
    send(&client, &producer, 500);
    for number in [1, 0] {
        let node = &cluster.nodes[number];
        let (_, to) = directories_of(node);
        assert_eq!(alter(node, TOPIC, 0, &to), NONE, "node {}", number + 1);
        send(&client, &producer, 250);
        await_move(node, TOPIC, 0, &to);
        send(&client, &producer, 250);
    }
    let log = |node: &Broker| log_in(&directories_of(node).0.join(format!("{TOPIC}-0"))).expect("a log");
    eventually("both have the same", || (log(&cluster.nodes[0]) == log(&cluster.nodes[1])).then_some(()));
    cluster.nodes[0].kill();
    let left = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    assert_eq!(left.read(TOPIC, &[0], 1500).len(), 1500);
    send(&left, &left.producer(&[("message.timeout.ms", "60000")]), 10);
    cluster.start_stopped();
    await_replicas(&cluster, TOPIC, &[1, 2]);
}

/// What `kafka-reassign-partitions` does with `log_dirs`: it names the directory first, and reassigns then.
#[test]
fn a_replica_that_a_reassignment_brings_goes_to_the_directory_that_was_named() {
    if Broker::is_kafka() {
        return;
    }
    let (cluster, client) = cluster(&[1, 2]);
    send(&client, &client.producer(&[("acks", "all")]), 100);
    let node = &cluster.nodes[2];
    // Both directories are empty: without a word it would be the first.
    let to = other(node);
    assert_eq!(alter(node, TOPIC, 0, &to), REPLICA_NOT_AVAILABLE);
    assert_eq!(reassign(&cluster, TOPIC, Some(&[1, 3])), NONE);
    await_replicas(&cluster, TOPIC, &[1, 3]);
    await_move(node, TOPIC, 0, &to);
    assert_eq!(alter(node, TOPIC, 0, &to), NONE, "it is there");
    assert_eq!(alter(node, TOPIC, 0, &node.data()), NONE);
    await_move(node, TOPIC, 0, &node.data());
    assert_eq!(client.read(TOPIC, &[0], 100).len(), 100);
}
