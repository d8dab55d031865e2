//! Partitions of three processes: what one has been told and has acknowledged is on all of them, byte for byte, and is
//! lost by no single failure.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::fetch_request::ReplicaState;
use kafka_protocol::messages::{BrokerId, CreateTopicsRequest, FetchRequest};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;

use super::admin::metric;
use super::cluster::{Cluster, partitions};
use super::harness::batch::Batch;
use super::harness::client::Client;
use super::harness::raw::{Raw, name};
use super::harness::{Broker, eventually};

const TOPIC: &str = "replicated";

/// The segments of the partition's log on one node, joined.
fn log_of(node: &Broker, partition: i32) -> Vec<u8> {
    let directory = node.data().join(format!("{TOPIC}-{partition}"));
    log_in(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
}

/// The segments in a partition's directory, joined.
pub(super) fn log_in(directory: &Path) -> std::io::Result<Vec<u8>> {
    let mut segments: Vec<_> = std::fs::read_dir(directory)?
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    segments.sort();
    let parts: Vec<Vec<u8>> = segments.iter().map(|path| written(path)).collect::<Result<_, _>>()?;
    Ok(parts.concat())
}

/// What was written of a segment: blocks that were reserved for it hold zeros.
fn written(path: &Path) -> std::io::Result<Vec<u8>> {
    let bytes = std::fs::read(path)?;
    let mut end = 0;
    while let Some(head) = bytes.get(end..end + 12) {
        let length = i32::from_be_bytes(head[8..12].try_into().expect("four bytes")) as usize;
        if length == 0 || bytes.len() < end + 12 + length {
            break;
        }
        end += 12 + length;
    }
    Ok(bytes[..end].to_vec())
}

/// Waits until all that run have the same bytes of each partition, and some.
fn await_equal(cluster: &Cluster, count: i32) {
    for partition in 0..count {
        eventually(&format!("partition {partition} is the same everywhere"), || {
            let mut logs = cluster.running().map(|(_, node)| log_of(node, partition));
            let first = logs.next()?;
            logs.all(|log| log == first).then_some(())
        });
    }
}

/// The brokers in sync with each partition, as a node that runs says it.
fn isr_of(cluster: &Cluster) -> Vec<Vec<i32>> {
    let (_, node) = cluster.running().next().expect("one runs");
    let mut found = partitions(&mut Raw::connect(node), TOPIC).expect("the topic is there");
    found.sort_by_key(|partition| partition.partition_index);
    let ids = |nodes: &[kafka_protocol::messages::BrokerId]| {
        let mut ids: Vec<i32> = nodes.iter().map(|node| node.0).collect();
        ids.sort_unstable();
        ids
    };
    found.iter().map(|partition| ids(&partition.isr_nodes)).collect()
}

/// Sends records until each of them is acknowledged; `values` by partition is what was.
fn produce(
    client: &Client,
    producer: &FutureProducer,
    numbers: std::ops::Range<u32>,
    partitions: i32,
    acknowledged: &mut BTreeMap<i32, Vec<String>>,
) {
    let sends = numbers.map(|number| {
        let partition = (number % partitions as u32) as i32;
        let value = format!("value {number}");
        let producer = producer.clone();
        async move {
            let record = FutureRecord::<(), _>::to(TOPIC).partition(partition).payload(&value);
            let sent = producer.send(record, Timeout::After(Duration::from_secs(60))).await;
            sent.unwrap_or_else(|(error, _)| panic!("{value}: {error}"));
            (partition, value.clone())
        }
    });
    for (partition, value) in client.wait(futures::future::join_all(sends)) {
        acknowledged.entry(partition).or_default().push(value);
    }
}

/// Each value is there, once: the producer is idempotent.
fn check(client: &Client, acknowledged: &BTreeMap<i32, Vec<String>>) {
    for (partition, values) in acknowledged {
        let mut found: Vec<String> =
            client.read(TOPIC, &[*partition], values.len()).iter().map(|got| got.text()).collect();
        let mut values = values.clone();
        found.sort();
        values.sort();
        assert_eq!(found, values, "partition {partition}");
    }
}

/// Creates the topic with three replicas, at whichever node is the controller.
fn create(cluster: &Cluster, partitions: i32) {
    eventually("somebody creates the topic", || {
        cluster.running().find_map(|(_, node)| {
            let topic = CreatableTopic::default()
                .with_name(name(TOPIC))
                .with_num_partitions(partitions)
                .with_replication_factor(3);
            let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000);
            let answer = Raw::connect(node).call(7, &request);
            // One who is there already was created by an attempt that was not answered in time.
            matches!(answer.topics[0].error_code, 0 | 36).then_some(())
        })
    });
}

#[test]
fn what_is_acknowledged_is_on_all_replicas_and_they_are_equal() {
    if Broker::is_kafka() {
        return;
    }
    let count = 3;
    let cluster = Cluster::start();
    create(&cluster, count);
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    client.await_partitions(TOPIC, count);
    let producer = client.producer(&[("acks", "all"), ("message.timeout.ms", "60000")]);
    let mut acknowledged = BTreeMap::new();
    for round in 0..4 {
        produce(&client, &producer, round * 300..(round + 1) * 300, count, &mut acknowledged);
    }
    // Nothing is acknowledged that is not on every replica, all of which are in sync.
    for partition in 0..count {
        let logs: Vec<Vec<u8>> = cluster.running().map(|(_, node)| log_of(node, partition)).collect();
        assert!(!logs[0].is_empty() && logs.iter().all(|log| *log == logs[0]), "partition {partition}");
    }
    check(&client, &acknowledged);
    await_equal(&cluster, count);
    let copied = |name| cluster.running().map(|(_, node)| metric(node, name)).sum::<u64>();
    assert_eq!(copied("kuring_replica_append_records_total"), 2 * 1200);
    assert!(copied("kuring_replica_append_bytes_total") > 2 * 1200 * "value 0".len() as u64);
}

#[test]
fn a_follower_that_stands_still_is_out_of_sync_until_it_goes_on() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start_with(&[("replica.lag.time.max.ms", "1500")]);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, 3);
    let victim = (cluster.controller() + 1) % 3;
    let id = victim as i32 + 1;
    let found = partitions(&mut Raw::connect(&cluster.nodes[victim]), TOPIC).expect("the topic is there");
    let led = found.iter().find(|partition| partition.leader_id.0 != id).expect("one of three leads each");
    let (partition, leader) = (led.partition_index, &cluster.nodes[led.leader_id.0 as usize - 1]);
    let mut raw = Raw::connect(leader);
    let is_in_sync = |raw: &mut Raw| {
        let found = partitions(raw, TOPIC).expect("the topic is there");
        let found = found.iter().find(|found| found.partition_index == partition).expect("it is there");
        found.isr_nodes.contains(&BrokerId(id))
    };
    cluster.nodes[victim].stand_still(true);
    eventually("it has fallen behind", || {
        let answer = raw.produce(TOPIC, partition, 1, Batch::now(&["x"]).encode());
        (answer.error_code == 0 && !is_in_sync(&mut raw)).then_some(())
    });
    cluster.nodes[victim].stand_still(false);
    eventually("it is in sync again", || is_in_sync(&mut raw).then_some(()));
    assert!(metric(leader, "kuring_isr_shrinks_total") > 0);
    assert!(metric(leader, "kuring_isr_expands_total") > 0);
    await_equal(&cluster, 3);
}

/// Whoever says that it is a replica, and has not proved it, gets nothing.
#[test]
fn a_stranger_does_not_fetch_as_a_replica() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start();
    create(&cluster, 1);
    for (_, node) in cluster.running() {
        let state = ReplicaState::default().with_replica_id(BrokerId(1)).with_replica_epoch(1_000_000);
        let request = FetchRequest::default().with_replica_state(state).with_max_wait_ms(0);
        let answer = Raw::connect(node).call(17, &request);
        assert_eq!(answer.error_code, 6, "NOT_LEADER_OR_FOLLOWER");
    }
}

#[test]
fn no_acknowledged_record_is_lost_with_its_leader_and_all_replicas_become_equal() {
    if Broker::is_kafka() {
        return;
    }
    let count = 3;
    let mut cluster = Cluster::start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, count);
    Raw::connect(&cluster.nodes[0]).set_topic_config(TOPIC, "min.insync.replicas", Some("2"));
    let mut acknowledged = BTreeMap::new();
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    let settings = [("enable.idempotence", "true"), ("message.timeout.ms", "60000")];
    let producer = client.producer(&settings);
    client.await_partitions(TOPIC, count);
    produce(&client, &producer, 0..600, count, &mut acknowledged);
    await_equal(&cluster, count);
    assert_eq!(isr_of(&cluster), vec![vec![1, 2, 3]; 3]);

    for round in 1..=2_u32 {
        let victim = {
            let (_, node) = cluster.running().next().expect("all run");
            let found = partitions(&mut Raw::connect(node), TOPIC).expect("the topic is there");
            found[0].leader_id.0 as usize - 1
        };
        // In the middle of its work.
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let mut acknowledged = BTreeMap::new();
                produce(&client, &producer, round * 600..(round + 1) * 600, count, &mut acknowledged);
                acknowledged
            });
            std::thread::sleep(Duration::from_millis(20));
            cluster.nodes[victim].kill();
            let sent = sending.join().expect("all was acknowledged");
            for (partition, values) in sent {
                acknowledged.entry(partition).or_default().extend(values);
            }
        });
        let left = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
        check(&left, &acknowledged);
        await_equal(&cluster, count);
        cluster.start_stopped();
        cluster.await_brokers(&[1, 2, 3]);
        await_equal(&cluster, count);
        eventually("it is in sync again", || (isr_of(&cluster) == vec![vec![1, 2, 3]; 3]).then_some(()));
        check(&client, &acknowledged);
    }
}
