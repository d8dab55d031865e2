//! What followers of three processes ask for while their leaders have nothing to send.

use super::cluster::Cluster;
use super::cluster_elections::{await_replicas, create};
use super::harness::batch::Batch;
use super::harness::raw::Raw;
use super::harness::{Broker, eventually};

const NOT_LEADER_OR_FOLLOWER: i16 = 6;

/// Longer than a test waits for anything.
const PATIENT: &[(&str, &str)] =
    &[("replica.fetch.wait.max.ms", "300000"), ("replica.lag.time.max.ms", "300000")];

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
            let batch = Batch::now(&["a"]).encode();
            let produced = eventually("broker 1 leads", || {
                let produced = raw.produce(topic, partition, -1, batch.clone());
                (produced.error_code != NOT_LEADER_OR_FOLLOWER).then_some(produced)
            });
            assert_eq!((produced.error_code, produced.base_offset), (0, 0), "{topic}-{partition}");
        }
    }
}
