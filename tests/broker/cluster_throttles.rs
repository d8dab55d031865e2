//! Throttled replication between three processes, as `kafka-reassign-partitions --throttle` sets it and takes it away.

use super::admin::metric;
use super::cluster::Cluster;
use super::cluster_elections::{await_replicas, create, reassign, under_way};
use super::harness::client::{Client, Send};
use super::harness::raw::Raw;
use super::harness::{Broker, eventually};

const TOPIC: &str = "throttled";
const NONE: i16 = 0;
/// Of a throttle that lets a request pass in each round of windows, of 1 MiB at most.
const SLOW: &str = "1000";
/// Longer than the test lasts.
const WINDOWS: &[(&str, &str)] = &[("replication.quota.window.size.seconds", "60")];

/// Partition 0 is on brokers 1 and 2, and has 8 MiB, several fetches of a follower.
fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::start_with(WINDOWS);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, TOPIC, &[&[1, 2]]);
    await_replicas(&cluster, TOPIC, &[1, 2]);
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    send(&client, 128);
    (cluster, client)
}

/// Records of 64 KiB, each acknowledged by all that are in sync.
fn send(client: &Client, count: usize) {
    let records: Vec<Send> = (0..count).map(|_| Send::value(vec![b'x'; 1 << 16]).to(0)).collect();
    client.send(&client.producer(&[("acks", "all")]), TOPIC, &records);
}

fn await_held(cluster: &Cluster, client: &Client, held: (usize, &str)) {
    let (node, counter) = held;
    eventually("somebody is held back", || (metric(&cluster.nodes[node], counter) > 0).then_some(()));
    // The one that is in sync is not: what it has to acknowledge is acknowledged.
    send(client, 32);
    assert!(!under_way(&cluster.nodes[0]).is_empty(), "the new replica does not come to be in sync");
}

#[test]
fn a_leader_holds_back_followers_that_are_not_in_sync() {
    if Broker::is_kafka() {
        return;
    }
    let (cluster, client) = cluster();
    for (index, node) in cluster.running() {
        Raw::connect(node).set_broker_config(
            index as i32 + 1,
            "leader.replication.throttled.rate",
            Some(SLOW),
        );
    }
    let mut raw = Raw::connect(&cluster.nodes[0]);
    raw.set_topic_config(TOPIC, "leader.replication.throttled.replicas", Some("0:1,0:2"));
    assert_eq!(reassign(&cluster, TOPIC, Some(&[1, 2, 3])), NONE);
    await_held(&cluster, &client, (0, "kuring_replication_held_leader_total"));
    assert_eq!(metric(&cluster.nodes[2], "kuring_replication_held_follower_total"), 0);
    raw.set_topic_config(TOPIC, "leader.replication.throttled.replicas", None);
    await_replicas(&cluster, TOPIC, &[1, 2, 3]);
    for (index, node) in cluster.running() {
        Raw::connect(node).set_broker_config(index as i32 + 1, "leader.replication.throttled.rate", None);
    }
}

#[test]
fn a_follower_leaves_out_what_is_throttled_until_the_rate_is_another() {
    if Broker::is_kafka() {
        return;
    }
    let (cluster, client) = cluster();
    Raw::connect(&cluster.nodes[2]).set_broker_config(3, "follower.replication.throttled.rate", Some(SLOW));
    Raw::connect(&cluster.nodes[1]).set_topic_config(
        TOPIC,
        "follower.replication.throttled.replicas",
        Some("*"),
    );
    assert_eq!(reassign(&cluster, TOPIC, Some(&[1, 2, 3])), NONE);
    await_held(&cluster, &client, (2, "kuring_replication_held_follower_total"));
    assert_eq!(metric(&cluster.nodes[0], "kuring_replication_held_leader_total"), 0);
    Raw::connect(&cluster.nodes[2]).set_broker_config(
        3,
        "follower.replication.throttled.rate",
        Some("1000000000"),
    );
    await_replicas(&cluster, TOPIC, &[1, 2, 3]);
}
