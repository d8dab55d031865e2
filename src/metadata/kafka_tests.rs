//! A log made as Kafka's controller makes it, record by record.

use super::*;
use crate::base::clock::Timestamp;
use crate::metadata::State;
use crate::wire::record::{BatchBuilder, Compression};

const TOPIC: u128 = 0x1234;

fn framed(key: u8, version: u8, body: &[u8]) -> Vec<u8> {
    [&[1, key, version], body].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&[text.len() as u8 + 1], text.as_bytes()].concat()
}

fn id(id: u128) -> Vec<u8> {
    id.to_be_bytes().to_vec()
}

fn ints(values: &[i32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
    [&[values.len() as u8 + 1], bytes.as_slice()].concat()
}

fn topic(name: &str, topic: u128) -> Vec<u8> {
    framed(2, 0, &[text(name), id(topic), vec![0]].concat())
}

fn partition(topic: u128, index: i32, replicas: &[i32], epoch: i32) -> Vec<u8> {
    let directories = [vec![replicas.len() as u8 + 1], id(77).repeat(replicas.len())].concat();
    let fields = [
        index.to_be_bytes().to_vec(),
        id(topic),
        ints(replicas),
        ints(replicas),
        ints(&[]),
        ints(&[]),
        replicas[0].to_be_bytes().to_vec(),
        epoch.to_be_bytes().to_vec(),
        3i32.to_be_bytes().to_vec(),
        directories,
        vec![0],
    ];
    framed(3, 1, &fields.concat())
}

fn new_leader(topic: u128, index: i32, leader: i32) -> Vec<u8> {
    let tagged = [vec![1, 1, 4], leader.to_be_bytes().to_vec()].concat();
    framed(5, 0, &[index.to_be_bytes().to_vec(), id(topic), tagged].concat())
}

fn config(kind: u8, resource: &str, name: &str, value: Option<&str>) -> Vec<u8> {
    let value = value.map_or(vec![0], text);
    framed(4, 0, &[vec![kind], text(resource), text(name), value, vec![0]].concat())
}

fn producer_ids(next: i64) -> Vec<u8> {
    let fields =
        [1i32.to_be_bytes().to_vec(), 5i64.to_be_bytes().to_vec(), next.to_be_bytes().to_vec(), vec![0]];
    framed(15, 0, &fields.concat())
}

fn batch(base: i64, records: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Offset(base), Compression::NONE);
    for record in records {
        builder.append(Timestamp(1), None, Some(record), &[]);
    }
    builder.finish().expect("encodes").to_vec()
}

fn read(records: &[Vec<u8>]) -> Result<KafkaMetadata, KafkaMetadataError> {
    let mut metadata = KafkaMetadata::default();
    metadata.apply(&batch(0, records), Offset::ZERO).map(|()| metadata)
}

fn state(metadata: KafkaMetadata) -> State {
    let mut state = State::default();
    state.apply(1, &metadata.into_records(BrokerId(1)).expect("one node's")).expect("applies");
    state
}

#[test]
fn topics_partitions_configs_and_producer_ids_are_taken_over() {
    let metadata = read(&[
        framed(12, 0, &[text("metadata.version"), vec![0, 25, 0]].concat()),
        topic("orders", TOPIC),
        partition(TOPIC, 0, &[1], 4),
        partition(TOPIC, 1, &[1], 4),
        new_leader(TOPIC, 1, 1),
        config(2, "orders", "retention.ms", Some("1000")),
        config(2, "orders", "segment.bytes", Some("2000000")),
        config(2, "orders", "segment.bytes", None),
        config(4, "", "log.retention.ms", Some("7")),
        producer_ids(3000),
        producer_ids(2000),
    ]);
    let state = state(metadata.expect("readable"));
    let image = state.image();
    let topic = image.topic("orders").expect("taken over");
    assert_eq!(topic.id, TopicId(Uuid::from_u128(TOPIC)));
    let epochs: Vec<i32> = topic.partitions.iter().map(|partition| partition.leader_epoch.0).collect();
    assert_eq!(epochs, [4, 5]);
    assert_eq!(*topic.partitions[0].directories, [Uuid::from_u128(77)]);
    let overrides = image.overrides(&ConfigResource::Topic("orders".into()));
    assert_eq!(overrides.iter().collect::<Vec<_>>(), [(&"retention.ms".to_owned(), &"1000".to_owned())]);
    let defaults = image.overrides(&ConfigResource::BrokerDefault);
    assert_eq!(defaults.get("log.retention.ms").map(String::as_str), Some("7"));
    assert_eq!(image.next_producer_id(), ProducerId(3000));
}

#[test]
fn a_topic_that_was_removed_and_made_again_has_its_new_id_and_no_old_config() {
    let metadata = read(&[
        topic("orders", TOPIC),
        partition(TOPIC, 0, &[1], 0),
        config(2, "orders", "retention.ms", Some("1000")),
        framed(9, 0, &[id(TOPIC), vec![0]].concat()),
        topic("orders", 99),
        partition(99, 0, &[1], 0),
    ]);
    let state = state(metadata.expect("readable"));
    assert_eq!(state.image().topic("orders").map(|topic| topic.id), Some(TopicId(Uuid::from_u128(99))));
    assert!(state.image().overrides(&ConfigResource::Topic("orders".into())).is_empty());
}

#[test]
fn a_partition_that_a_stop_left_without_a_replica_in_sync_can_be_led() {
    // No ISR and no leader: the replica is only eligible.
    let tagged = [vec![2, 0, 1, 1, 1, 4], (-1i32).to_be_bytes().to_vec()].concat();
    let fenced = framed(5, 2, &[0i32.to_be_bytes().to_vec(), id(TOPIC), tagged].concat());
    let metadata = read(&[topic("orders", TOPIC), partition(TOPIC, 0, &[1], 4), fenced]);
    let state = state(metadata.expect("readable"));
    let partition = state.image().partition("orders", PartitionIndex(0)).expect("taken over");
    assert_eq!((&*partition.isr, partition.leader, partition.leader_epoch.0), (&[BrokerId(1)][..], None, 5));
}

#[test]
fn what_a_snapshot_covers_is_not_applied_again() {
    let mut metadata = KafkaMetadata::default();
    metadata
        .apply(&batch(0, &[topic("orders", TOPIC), partition(TOPIC, 0, &[1], 9)]), Offset::ZERO)
        .expect("readable");
    let log = batch(5, &[topic("old", 1), new_leader(TOPIC, 0, 1), new_leader(TOPIC, 0, 1)]);
    metadata.apply(&log, Offset(6)).expect("readable");
    let state = state(metadata);
    assert!(state.image().topic("old").is_none());
    let epoch = state.image().partition("orders", PartitionIndex(0)).map(|partition| partition.leader_epoch);
    assert_eq!(epoch, Some(LeaderEpoch(11)));
}

#[test]
fn a_transaction_of_the_controller_counts_when_it_ends() {
    let (begin, end, abort) = (framed(23, 0, &[0]), framed(24, 0, &[0]), framed(25, 0, &[0, 0]));
    let metadata = read(&[
        begin.clone(),
        topic("kept", 1),
        end,
        begin.clone(),
        topic("aborted", 2),
        abort,
        begin,
        topic("open", 3),
    ]);
    let names = state(metadata.expect("readable"))
        .image()
        .topics()
        .map(|topic| topic.name.to_string())
        .collect::<Vec<_>>();
    assert_eq!(names, ["kept"]);
}

#[test]
fn what_kuring_has_nothing_like_is_told_and_what_is_unknown_is_refused() {
    let metadata = read(&[
        framed(18, 0, &[1, 2, 3]),
        framed(18, 0, &[]),
        topic("orders", TOPIC),
        config(2, "orders", "no.such.config", Some("1")),
        config(2, "orders", "retention.ms", Some("soon")),
    ]);
    let left_out: Vec<(String, u64)> = metadata.expect("readable").left_out().clone().into_iter().collect();
    let wanted = [("ACLs", 2), ("config no.such.config", 1), ("config retention.ms", 1)];
    assert_eq!(left_out, wanted.map(|(what, count)| (what.to_owned(), count)));
    assert!(
        read(&[framed(99, 0, &[])]).err().is_some_and(|error| error.to_string().contains("not known: 99"))
    );
    assert!(read(&[vec![2, 2, 0]]).err().is_some_and(|error| error.to_string().contains("frame version 2")));
    assert!(read(&[new_leader(TOPIC, 0, 1)]).is_err());
    let two_nodes = read(&[topic("orders", TOPIC), partition(TOPIC, 0, &[1, 2], 0)]).expect("readable");
    assert!(matches!(two_nodes.into_records(BrokerId(1)), Err(KafkaMetadataError::OtherReplicas(_))));
    let gap = read(&[topic("orders", TOPIC), partition(TOPIC, 1, &[1], 0)]).expect("readable");
    assert!(matches!(gap.into_records(BrokerId(1)), Err(KafkaMetadataError::Gap(_))));
}

#[test]
fn a_log_that_was_cut_off_counts_up_to_there_and_a_damaged_one_not_at_all() {
    let mut bytes = batch(0, &[topic("orders", TOPIC)]);
    let whole = bytes.len();
    bytes.extend(batch(1, &[topic("more", 2)]));
    let mut metadata = KafkaMetadata::default();
    metadata.apply(&bytes[..bytes.len() - 1], Offset::ZERO).expect("readable");
    assert_eq!(metadata.topic_count(), 1);
    bytes[whole - 1] ^= 1;
    assert!(KafkaMetadata::default().apply(&bytes, Offset::ZERO).is_err());
}
