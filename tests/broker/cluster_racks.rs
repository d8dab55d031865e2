//! Three processes in three racks: consumers that say theirs read from the replica there (KIP-392).

use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::protocol::StrBytes;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::Consumer as _;

use super::admin::metric;
use super::cluster::Cluster;
use super::cluster_elections::{await_replicas, create};
use super::harness::batch::Batch;
use super::harness::client::{Client, Got, Send, poll};
use super::harness::raw::{FETCH, Raw, fetch};
use super::harness::{Broker, eventually};

const TOPIC: &str = "near";
const RACKS: &[(&str, &str)] = &[
    ("broker.rack", "r{node}"),
    ("replica.selector.class", "org.apache.kafka.common.replica.RackAwareReplicaSelector"),
];

const NONE: i16 = 0;
const OFFSET_OUT_OF_RANGE: i16 = 1;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const FENCED_LEADER_EPOCH: i16 = 74;
const NOBODY: i32 = -1;
const WITH_RACKS: i16 = 11;

/// What the node answers to a consumer in the rack that wants partition 0 from `offset` on.
fn read(node: &Broker, version: i16, rack: &str, offset: i64, epoch: i32) -> PartitionData {
    let mut request = fetch(TOPIC, &[(0, offset)]).with_max_wait_ms(0);
    if version >= WITH_RACKS {
        request.rack_id = StrBytes::from_string(rack.to_owned());
    }
    request.topics[0].partitions[0].current_leader_epoch = epoch;
    let mut answer = Raw::connect(node).call(version, &request);
    answer.responses.remove(0).partitions.remove(0)
}

fn records_of(part: &PartitionData) -> &[u8] {
    part.records.as_deref().unwrap_or_default()
}

/// Partition 0 is led by broker 1 and followed by broker 2, and has three records that both know to be committed.
fn cluster(settings: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::start_with(settings);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, TOPIC, &[&[1, 2]]);
    await_replicas(&cluster, TOPIC, &[1, 2]);
    let batch = Batch::now(&["a", "b", "c"]).encode();
    let produced = eventually("broker 1 leads", || {
        let produced = Raw::connect(&cluster.nodes[0]).produce(TOPIC, 0, -1, batch.clone());
        (produced.error_code != NOT_LEADER_OR_FOLLOWER).then_some(produced)
    });
    assert_eq!((produced.error_code, produced.base_offset), (NONE, 0));
    eventually("the follower knows what is committed", || {
        let part = read(&cluster.nodes[1], FETCH, "", 0, -1);
        (part.high_watermark == 3).then_some(())
    });
    cluster
}

#[test]
fn a_leader_sends_a_consumer_to_the_replica_in_its_rack() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = cluster(RACKS);
    let [leader, follower, other] = &cluster.nodes[..] else { panic!("three nodes") };
    let sent = read(leader, FETCH, "r2", 0, -1);
    assert_eq!((sent.error_code, sent.preferred_read_replica.0, sent.high_watermark), (NONE, 2, 3));
    assert!(records_of(&sent).is_empty(), "it is to read there");
    let near = read(follower, FETCH, "r2", 0, -1);
    assert_eq!((near.error_code, near.preferred_read_replica.0), (NONE, NOBODY));
    for rack in ["r1", "r3", "elsewhere", ""] {
        let served = read(leader, FETCH, rack, 0, -1);
        assert_eq!((served.error_code, served.preferred_read_replica.0), (NONE, NOBODY), "{rack:?}");
        assert_eq!(records_of(&served), records_of(&near), "{rack:?}");
    }
    assert!(!records_of(&near).is_empty());
    // The follower's rules are the leader's; a version that knows nothing of it is served by leaders alone.
    assert_eq!(read(follower, FETCH, "r2", 3, -1).error_code, NONE);
    assert_eq!(read(follower, FETCH, "r2", 1000, -1).error_code, OFFSET_OUT_OF_RANGE);
    assert_eq!(
        read(leader, FETCH, "r2", 1000, -1).error_code,
        OFFSET_OUT_OF_RANGE,
        "the follower has it not"
    );
    assert_eq!(read(follower, WITH_RACKS - 1, "", 0, -1).error_code, NOT_LEADER_OR_FOLLOWER);
    assert_eq!(read(other, FETCH, "r3", 0, -1).error_code, NOT_LEADER_OR_FOLLOWER);
    let reassigned = read(follower, FETCH, "r2", 0, 0);
    assert!([NONE, FENCED_LEADER_EPOCH].contains(&reassigned.error_code), "{reassigned:?}");
    // One that is not in sync is nobody's.
    let mut cluster = cluster;
    cluster.nodes[1].kill();
    eventually("the leader serves again", || {
        let served = read(&cluster.nodes[0], FETCH, "r2", 0, -1);
        (served.preferred_read_replica.0 == NOBODY && !records_of(&served).is_empty()).then_some(())
    });
}

#[test]
fn without_a_selector_a_leader_serves_all_and_a_follower_whoever_asks_it() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = cluster(&RACKS[..1]);
    let served = read(&cluster.nodes[0], FETCH, "r2", 0, -1);
    assert_eq!((served.error_code, served.preferred_read_replica.0), (NONE, NOBODY));
    assert_eq!(records_of(&served), records_of(&read(&cluster.nodes[1], FETCH, "r2", 0, -1)));
}

/// librdkafka goes to the follower, sees what comes later there, and goes on at the leader when the follower is gone.
#[test]
fn a_consumer_reads_in_its_rack_and_from_the_leader_when_that_is_lost() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = cluster(RACKS);
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    let producer = client.producer(&[("acks", "all")]);
    let consumer = client.consumer(&[("client.rack", "r2"), ("auto.offset.reset", "earliest")]);
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset(TOPIC, 0, rdkafka::Offset::Beginning).expect("a valid offset");
    consumer.assign(&assignment).expect("assign");
    let texts = |got: Vec<Got>| got.iter().map(Got::text).collect::<Vec<_>>();
    assert_eq!(texts(poll(&consumer, 3)), ["a", "b", "c"]);
    for round in 0..5 {
        let value = format!("later {round}");
        client.send(&producer, TOPIC, &[Send::value(value.as_str()).to(0)]);
        assert_eq!(texts(poll(&consumer, 1)), [value]);
    }
    // It leads nothing: what it has sent it has sent to the consumer.
    assert!(metric(&cluster.nodes[1], "kuring_fetch_bytes_total") > 0, "the follower has served it");
    cluster.nodes[1].kill();
    client.send(&producer, TOPIC, &[Send::value("last").to(0)]);
    assert_eq!(texts(poll(&consumer, 1)), ["last"]);
}
