//! Records that are deleted on three processes: whoever asked is told when no replica that is alive has them any more.

use std::time::{Duration, Instant};

use kafka_protocol::messages::DeleteRecordsRequest;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};

use super::admin::metric;
use super::cluster::Cluster;
use super::cluster_elections::{NONE, await_replicas, create, reassign};
use super::harness::batch::Batch;
use super::harness::raw::{FETCH, Raw, fetch, name};
use super::harness::{Broker, eventually};

const TOPIC: &str = "deleted";
const OFFSET_OUT_OF_RANGE: i16 = 1;
const REQUEST_TIMED_OUT: i16 = 7;

fn deletion(below: i64, timeout_ms: i32) -> DeleteRecordsRequest {
    let partition = DeleteRecordsPartition::default().with_partition_index(0).with_offset(below);
    let topic = DeleteRecordsTopic::default().with_name(name(TOPIC)).with_partitions(vec![partition]);
    DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(timeout_ms)
}

/// The code, and the low watermark.
fn delete(node: &Broker, below: i64, timeout_ms: i32) -> (i16, i64) {
    let answer = Raw::connect(node).call(2, &deletion(below, timeout_ms));
    let partition = &answer.topics[0].partitions[0];
    (partition.error_code, partition.low_watermark)
}

/// What a replica, whatever its part, says to a consumer that wants this offset.
fn read(node: &Broker, offset: i64) -> i16 {
    let answer = Raw::connect(node).call(FETCH, &fetch(TOPIC, &[(0, offset)]).with_max_wait_ms(0));
    answer.responses[0].partitions[0].error_code
}

#[test]
fn deleted_records_are_gone_from_every_replica_when_it_is_answered() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, TOPIC, &[&[1, 2, 3]]);
    await_replicas(&cluster, TOPIC, &[1, 2, 3]);
    let leader = &cluster.nodes[0];
    for value in 0..10 {
        let batch = Batch::now(&[format!("{value}").as_str()]).encode();
        eventually("broker 1 leads", || {
            (Raw::connect(leader).produce(TOPIC, 0, -1, batch.clone()).error_code == NONE).then_some(())
        });
    }
    assert_eq!(delete(leader, 4, 60_000), (NONE, 4));
    let codes: Vec<[i16; 2]> = cluster.running().map(|(_, node)| [3, 4].map(|at| read(node, at))).collect();
    assert_eq!(codes, [[OFFSET_OUT_OF_RANGE, NONE]; 3]);
    assert_eq!(delete(leader, 11, 60_000), (OFFSET_OUT_OF_RANGE, -1));
    assert_eq!(delete(leader, 2, 60_000), (NONE, 4), "that is done");

    // One that does not say that it has deleted them is waited for until it counts as gone.
    cluster.nodes[2].stand_still(true);
    assert_eq!(delete(leader, -1, 100), (REQUEST_TIMED_OUT, -1));
    cluster.await_brokers(&[1, 2]);
    eventually("nobody waits for it any more", || (delete(leader, -1, 1_000) == (NONE, 10)).then_some(()));
    cluster.nodes[2].stand_still(false);
    eventually("it has heard of it", || (read(&cluster.nodes[2], 9) == OFFSET_OUT_OF_RANGE).then_some(()));
}

#[test]
fn a_deletion_ends_with_its_time_or_with_the_connection_of_who_asked() {
    if Broker::is_kafka() {
        return;
    }
    // Whoever stands still counts as alive.
    let cluster = Cluster::start_with(&[("broker.session.timeout.ms", "60000")]);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, TOPIC, &[&[1, 2, 3]]);
    await_replicas(&cluster, TOPIC, &[1, 2, 3]);
    let leader = &cluster.nodes[0];
    let batch = Batch::now(&["a", "b", "c"]).encode();
    eventually("broker 1 leads", || {
        (Raw::connect(leader).produce(TOPIC, 0, -1, batch.clone()).error_code == NONE).then_some(())
    });
    let waits = |count| (metric(leader, "kuring_record_deletions_waiting") == count).then_some(());
    cluster.nodes[2].stand_still(true);
    let mut client = Raw::connect(leader);
    client.send(2, &deletion(2, 600_000));
    eventually("it waits for broker 3", || waits(1));
    drop(client);
    eventually("it is forgotten with its connection", || waits(0));
    let begun = Instant::now();
    assert_eq!(delete(leader, 2, 1_000), (REQUEST_TIMED_OUT, -1));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    waits(0).expect("its time is over");
    let mut client = Raw::connect(leader);
    let sent = client.send(2, &deletion(2, 600_000));
    eventually("it waits for broker 3", || waits(1));
    cluster.nodes[2].stand_still(false);
    let (answered, answer) = client.receive::<DeleteRecordsRequest>(2);
    let partition = &answer.topics[0].partitions[0];
    assert_eq!((answered, partition.error_code, partition.low_watermark), (sent, NONE, 2));
}

#[test]
fn a_new_replica_of_a_log_that_starts_within_a_batch_comes_to_be_in_sync() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, TOPIC, &[&[1, 2]]);
    await_replicas(&cluster, TOPIC, &[1, 2]);
    let batch = Batch::now(&["a", "b", "c"]).encode();
    eventually("broker 1 leads", || {
        (Raw::connect(&cluster.nodes[0]).produce(TOPIC, 0, -1, batch.clone()).error_code == NONE)
            .then_some(())
    });
    assert_eq!(delete(&cluster.nodes[0], 1, 60_000), (NONE, 1));
    assert_eq!(reassign(&cluster, TOPIC, Some(&[1, 2, 3])), NONE);
    await_replicas(&cluster, TOPIC, &[1, 2, 3]);
    eventually("it starts where the leader does", || {
        ([0, 1].map(|at| read(&cluster.nodes[2], at)) == [OFFSET_OUT_OF_RANGE, NONE]).then_some(())
    });
}
