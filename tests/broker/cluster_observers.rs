//! Brokers beside the three that vote on the metadata log: they follow it from whoever leads, serve as any broker does, and
//! hold nothing up when they go.

use std::collections::BTreeSet;

use kafka_protocol::messages::UnregisterBrokerRequest;

use super::cluster::{Cluster, KILLS, create_through, format_node, partitions};
use super::cluster_elections::{await_replicas, create};
use super::harness::client::{Client, Send};
use super::harness::raw::Raw;
use super::harness::{Broker, eventually};
use super::quorum::{ids, quorum_now};

/// Three that vote, and node 4, which knows them by an address or by their ids.
fn four(knows_ids: bool) -> Cluster {
    let mut cluster = Cluster::start_for_kills();
    cluster.add_observer(knows_ids, &KILLS);
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3, 4]);
    cluster
}

fn send(node: &Broker, topic: &str, text: &str) {
    let client = Client::of(node);
    let producer = client.producer(&[("acks", "all")]);
    client.send(&producer, topic, &[Send::value(text).to(0)]);
}

#[test]
fn a_broker_without_a_vote_serves_and_follows_whoever_leads() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = four(false);
    for (_, node) in cluster.running() {
        eventually("the one that has no vote is told apart, and has all", || {
            let told = quorum_now(node)?;
            assert_eq!(ids(&told.current_voters), BTreeSet::from([1, 2, 3]));
            let [observer] = &told.observers[..] else { return None };
            let is_whole = observer.replica_id.0 == 4
                && !observer.replica_directory_id.is_nil()
                && observer.log_end_offset == told.high_watermark
                && observer.last_caught_up_timestamp > 0;
            is_whole.then_some(())
        });
    }
    create(&cluster, "t", &[&[4, 1, 2]]);
    await_replicas(&cluster, "t", &[4, 1, 2]);
    send(&cluster.nodes[3], "t", "one");
    // A controller is lost, and the next: changes go through the observer to whoever leads.
    for round in 0..2 {
        let killed = cluster.controller();
        cluster.nodes[killed].kill();
        let topic = format!("through-4-{round}");
        eventually("the observer takes a change to the next controller", || {
            let code = create_through(&mut Raw::connect(&cluster.nodes[3]), &topic, 1, 1);
            [0, 36].contains(&code).then_some(())
        });
        send(&cluster.nodes[3], "t", "more");
        cluster.start_stopped();
        cluster.await_brokers(&[1, 2, 3, 4]);
    }
    let client = Client::of(&cluster.nodes[3]);
    assert_eq!(
        client.read("t", &[0], 3).iter().map(|got| got.text()).collect::<Vec<_>>(),
        ["one", "more", "more"]
    );
    // All at once: it starts with what the controllers have.
    cluster.nodes.iter_mut().for_each(Broker::kill);
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3, 4]);
    await_replicas(&cluster, "t", &[4, 1, 2]);
    assert_eq!(Client::of(&cluster.nodes[3]).read("t", &[0], 3).len(), 3);
    let (status, _) = cluster.nodes[3].terminate();
    assert!(status.success(), "{status}");
}

#[test]
fn a_broker_without_a_vote_may_lose_its_disk_or_go_for_good() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = four(true);
    create(&cluster, "t", &[&[4, 1, 2]]);
    await_replicas(&cluster, "t", &[4, 1, 2]);
    send(&cluster.nodes[0], "t", "one");
    cluster.nodes[3].kill();
    cluster.await_brokers(&[1, 2, 3]);
    // Nobody waits for it.
    create(&cluster, "without", &[&[1, 2, 3]]);
    send(&cluster.nodes[0], "t", "two");
    std::fs::remove_dir_all(cluster.nodes[3].data()).expect("its data are gone");
    format_node(&cluster.nodes[3], "4", "~/data");
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3, 4]);
    await_replicas(&cluster, "t", &[4, 1, 2]);
    cluster.nodes[3].kill();
    cluster.await_brokers(&[1, 2, 3]);
    eventually("it is taken out", || {
        let request = UnregisterBrokerRequest::default().with_broker_id(4.into());
        let code = Raw::connect(&cluster.nodes[0]).call(0, &request).error_code;
        assert!([0, 7, 41, 102].contains(&code), "{code}");
        [0, 102].contains(&code).then_some(())
    });
    eventually("nobody has it in sync", || {
        let found = partitions(&mut Raw::connect(&cluster.nodes[0]), "t").ok()?;
        found[0].isr_nodes.iter().all(|node| node.0 != 4).then_some(())
    });
    create(&cluster, "after", &[&[3, 2, 1]]);
}
