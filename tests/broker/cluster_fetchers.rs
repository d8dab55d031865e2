//! What followers of three processes ask for while their leaders have nothing to send.

use super::admin::metric;
use super::cluster::Cluster;
use super::cluster_elections::{await_replicas, create};
use super::harness::batch::Batch;
use super::harness::broker::off_owner;
use super::harness::raw::Raw;
use super::harness::{Broker, eventually};

const NOT_LEADER_OR_FOLLOWER: i16 = 6;

/// Longer than a test waits for anything.
const PATIENT: &[(&str, &str)] =
    &[("replica.fetch.wait.max.ms", "300000"), ("replica.lag.time.max.ms", "300000")];

/// Two connections that are accepted on one of two shards each are where they belong in one case of four.
const ROUNDS_MAX: i64 = 20;

/// A fetch waits at the leader for what the follower has asked for; a partition that comes meanwhile does not wait with it.
#[test]
fn a_partition_that_comes_to_follow_a_broker_does_not_wait_for_records_of_the_others() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start_with(PATIENT);
    cluster.await_brokers(&[1, 2, 3]);
    for topic in ["first", "second", "third"] {
        create(&cluster, topic, &[&[1, 2], &[1, 3]]);
        await_replicas(&cluster, topic, &[1, 2]);
        let mut raw = Raw::connect(&cluster.nodes[0]);
        for partition in [0, 1] {
            assert_eq!(produce(&mut raw, topic, partition), 0, "{topic}-{partition}");
        }
    }
}

/// Has a record replicated by broker 1, when that leads; the offset.
fn produce(raw: &mut Raw, topic: &str, partition: i32) -> i64 {
    let batch = Batch::now(&["a"]).encode();
    let produced = eventually("broker 1 leads", || {
        let produced = raw.produce(topic, partition, -1, batch.clone());
        (produced.error_code != NOT_LEADER_OR_FOLLOWER).then_some(produced)
    });
    assert_eq!(produced.error_code, 0, "{topic}-{partition}");
    produced.base_offset
}

/// A connection is accepted wherever there is room, and a follower's goes to the shard of what it fetches.
#[test]
fn the_connection_of_a_followers_shard_lives_with_its_partitions() {
    if Broker::is_kafka() || off_owner() {
        return;
    }
    let mut cluster = Cluster::start_with(&[("kuring.shards", "2")]);
    cluster.await_brokers(&[1, 2, 3]);
    // Of three partitions in a row one lies on the first shard and two on the second.
    let both: &[&[i32]] = &[&[1, 2, 3], &[1, 2, 3], &[1, 2, 3]];
    create(&cluster, "t", both);
    await_replicas(&cluster, "t", &[1, 2, 3]);
    let mut raw = Raw::connect(&cluster.nodes[0]);
    let mut others = Vec::new();
    for round in 0..ROUNDS_MAX {
        for partition in 0..both.len() as i32 {
            assert_eq!(produce(&mut raw, "t", partition), round, "partition {partition}");
        }
        if metric(&cluster.nodes[0], "kuring_connections_moved_total") > 0 {
            return;
        }
        // All had the luck to be accepted there: once more, and with one connection more it is the other shard's turn.
        others.push(Raw::connect(&cluster.nodes[0]));
        let (status, _) = cluster.nodes[1].terminate();
        assert!(status.success(), "{status}");
        cluster.start_stopped();
        cluster.await_brokers(&[1, 2, 3]);
    }
    panic!("no connection has moved");
}
