//! Client quotas of three processes: each broker grants the whole of a quota, as in Kafka, whichever node was told of it
//! and whoever the controller is; what brokers ask of each other is under none.

use std::time::{Duration, Instant};

use kafka_protocol::messages::CreateTopicsRequest;
use kafka_protocol::messages::create_topics_request::CreatableTopic;

use super::cluster::Cluster;
use super::cluster_elections::{await_replicas, create};
use super::harness::client::{Client, Send};
use super::harness::raw::{Raw, name};
use super::harness::{Broker, eventually};
use super::quotas::{QUICK, THROTTLING_QUOTA_EXCEEDED, described, produced_at, set};

const LIMIT: f64 = 500_000.0;
const ENOUGH: f64 = 1e12;

/// Every node that runs has these quotas.
fn await_quotas(cluster: &Cluster, expected: &[&str]) {
    for (index, node) in cluster.running() {
        let mut raw = Raw::connect(node).named("other");
        eventually(&format!("node {} has {expected:?}", index + 1), || {
            (described(&mut raw, 1, false, vec![]) == expected).then_some(())
        });
    }
}

#[test]
fn a_quota_that_any_node_was_told_holds_on_each_and_outlives_the_controller() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    let topics = [1, 2, 3].map(|id| format!("paced-{id}"));
    for (topic, id) in topics.iter().zip(1..) {
        create(&cluster, topic, &[&[id][..]; 4]);
    }
    let controller = cluster.controller();
    let mut other = Raw::connect(&cluster.nodes[(controller + 1) % 3]).named("other");
    set(&mut other, &[("client-id", None)], &[("producer_byte_rate", Some(LIMIT))]);
    set(&mut other, &[("client-id", Some("other"))], &[("producer_byte_rate", Some(ENOUGH))]);
    let all = ["client-id=*: producer_byte_rate=500000", "client-id=other: producer_byte_rate=1000000000000"];
    await_quotas(&cluster, &all);
    cluster.nodes[controller].kill();
    let successor = cluster.controller();
    await_quotas(&cluster, &all);
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3]);
    // The next controller knows it, and it can be changed there.
    let mut changer = Raw::connect(&cluster.nodes[successor]);
    set(&mut changer, &[("client-id", Some("other"))], &[("producer_byte_rate", None)]);
    await_quotas(&cluster, &all[..1]);
    std::thread::scope(|scope| {
        for (node, topic) in cluster.nodes.iter().zip(&topics) {
            scope.spawn(move || {
                let client = Client::of(node);
                // Between the bursts, as on one node.
                let times = [11, 23].map(Duration::from_secs);
                let [first, second] = produced_at(&client, topic, 4, times);
                let rate = (second - first) / 12.0;
                println!("{topic}: {rate} bytes a second, {LIMIT} may be");
                assert!((0.9 * LIMIT..1.1 * LIMIT).contains(&rate), "{topic}: {rate}");
            });
        }
    });
}

#[test]
fn replication_is_under_no_quota_of_clients() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "copied", &[&[1, 2, 3]]);
    await_replicas(&cluster, "copied", &[1, 2, 3]);
    let mut raw = Raw::connect(&cluster.nodes[1]);
    // Of whoever there is, but for the one that sends: eight MiB would take hours.
    for anybody in [&[("user", None)][..], &[("client-id", None)]] {
        let all = [("consumer_byte_rate", Some(1000.0)), ("producer_byte_rate", Some(1000.0))];
        set(&mut raw, anybody, &all);
        set(&mut raw, anybody, &[("request_percentage", Some(0.01))]);
    }
    let sender = [("user", None), ("client-id", Some("rdkafka"))];
    let enough = [("producer_byte_rate", Some(ENOUGH)), ("request_percentage", Some(ENOUGH))];
    set(&mut raw, &sender, &enough);
    for (index, node) in cluster.running() {
        let mut raw = Raw::connect(node).named("rdkafka");
        eventually(&format!("node {} has the quotas", index + 1), || {
            (described(&mut raw, 1, false, vec![]).len() == 3).then_some(())
        });
    }
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    let records: Vec<Send> = (0..128).map(|_| Send::value(vec![b'x'; 1 << 16]).to(0)).collect();
    client.send(&client.producer(&[("acks", "all"), ("client.id", "rdkafka")]), "copied", &records);
}

#[test]
fn whoever_makes_too_many_partitions_is_told_so_through_any_node() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start_with(&QUICK);
    cluster.await_brokers(&[1, 2, 3]);
    let controller = cluster.controller();
    let nodes = [1, 2, 0].map(|next| &cluster.nodes[(controller + next) % 3]);
    let mut other = Raw::connect(nodes[0]);
    set(&mut other, &[("user", None)], &[("controller_mutation_rate", Some(2.0))]);
    for (_, node) in cluster.running() {
        let mut raw = Raw::connect(node);
        eventually("the node has it", || (described(&mut raw, 1, false, vec![]).len() == 1).then_some(()));
    }
    let make = |topic: &str, partitions| {
        let topic = CreatableTopic::default()
            .with_name(name(topic))
            .with_num_partitions(partitions)
            .with_replication_factor(1);
        CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000)
    };
    let mut maker = Raw::connect(nodes[0]).named("maker");
    // A burst of six, two more each second; it is the controller that counts, whoever forwards.
    let first = maker.call(7, &make("first", 100));
    assert_eq!((first.topics[0].error_code, first.throttle_time_ms), (0, 0));
    for node in nodes {
        let mut maker = Raw::connect(node).named("maker");
        let refused = maker.call(7, &make("second", 1));
        let answered = Instant::now();
        assert_eq!(refused.topics[0].error_code, THROTTLING_QUOTA_EXCEEDED);
        let told = refused.throttle_time_ms;
        // A hundred of which six were there are back after 47 seconds.
        assert!((1_000..=47_000).contains(&told), "{told}");
        println!("to wait {told} ms, told after {:?}", answered.elapsed());
    }
    // An older version does not know the error: it is served, and told to wait.
    let mut old = Raw::connect(nodes[1]).named("maker");
    let served = old.call(5, &make("old", 1));
    assert_eq!(served.topics[0].error_code, 0);
    assert!(served.throttle_time_ms > 1_000, "{}", served.throttle_time_ms);
}
