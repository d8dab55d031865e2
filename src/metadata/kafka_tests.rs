//! A log made as Kafka's controller makes it, record by record.

use super::testing::{
    TOPIC, batch, config, framed, id, ints, new_leader, partition, producer_ids, quota, snapshot, text, topic,
};
use super::*;
use crate::metadata::State;

fn read(records: &[Vec<u8>]) -> Result<KafkaMetadata, KafkaMetadataError> {
    let mut metadata = KafkaMetadata::default();
    metadata.segment(&batch(0, records), Offset::ZERO, Offset::ZERO, true).map(|_| metadata)
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
    let records = [topic("orders", TOPIC), partition(TOPIC, 0, &[1], 9)];
    let mut metadata = KafkaMetadata::of_snapshot(&snapshot(&records)).expect("whole");
    let log = batch(5, &[topic("old", 1), new_leader(TOPIC, 0, 1), new_leader(TOPIC, 0, 1)]);
    metadata.segment(&log, Offset(5), Offset(6), true).expect("readable");
    let state = state(metadata);
    assert!(state.image().topic("old").is_none());
    let epoch = state.image().partition("orders", PartitionIndex(0)).map(|partition| partition.leader_epoch);
    assert_eq!(epoch, Some(LeaderEpoch(11)));
}

#[test]
fn a_snapshot_is_whole_or_it_is_none() {
    let records = [topic("orders", TOPIC), partition(TOPIC, 0, &[1], 9)];
    let whole = snapshot(&records);
    let refused = |bytes: &[u8]| KafkaMetadata::of_snapshot(bytes).err().map(|error| error.to_string());
    assert_eq!(refused(&whole), None);
    assert_eq!(refused(&snapshot(&[])), None);
    for len in 0..whole.len() {
        assert!(refused(&whole[..len]).is_some(), "{len} of {} bytes", whole.len());
    }
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    assert!(refused(&damaged).is_some_and(|error| error.contains("checksum")));
    let behind = [whole.clone(), batch(4, &[topic("more", 2)])].concat();
    assert!(refused(&behind).is_some_and(|error| error.contains("follows the snapshot's footer")));
    assert!(refused(&batch(0, &records)).is_some_and(|error| error.contains("no header")));
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
    let left_out: Vec<(String, u64)> = metadata.expect("readable").left_out().into_iter().collect();
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
fn only_the_last_segment_may_end_in_half_a_batch_and_nothing_sound_may_follow() {
    let first = batch(0, &[topic("orders", TOPIC)]);
    let whole = first.len();
    let bytes = [first, batch(1, &[topic("more", 2)]), batch(2, &[topic("most", 3)])].concat();
    let read = |bytes: &[u8], is_last: bool| {
        let mut metadata = KafkaMetadata::default();
        let end = metadata.segment(bytes, Offset::ZERO, Offset::ZERO, is_last);
        end.map(|end| (end.next.0, end.torn, metadata.topic_count())).map_err(|error| error.to_string())
    };
    assert_eq!(read(&bytes, false), Ok((3, None, 3)));
    let cut = &bytes[..whole + 20];
    assert_eq!(read(cut, true), Ok((1, Some(whole as u64), 1)));
    let wanted = format!("offset 1 is due at byte {whole}");
    assert!(read(cut, false).is_err_and(|error| error.starts_with(&wanted)));
    let preallocated = [&bytes[..whole], &[0; 1000]].concat();
    assert_eq!(read(&preallocated, true), Ok((1, Some(whole as u64), 1)));
    // The batch in the middle is damaged, its length too, and its bytes are gone.
    for at in [whole + 60, whole + 10] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(read(&damaged, true).is_err_and(|error| error.starts_with(&wanted)), "byte {at}");
    }
    let mut hole = bytes.clone();
    hole.drain(whole + 10..whole + 40);
    assert!(read(&hole, true).is_err_and(|error| error.contains("sound batches follow")));
    let gap = [batch(0, &[topic("orders", TOPIC)]), batch(2, &[topic("most", 3)])].concat();
    assert!(read(&gap, true).is_err_and(|error| error.contains("a batch of offset 2 is there")));
    // The last batch of all is the tail that a crash may tear.
    let mut torn = bytes.clone();
    *torn.last_mut().expect("not empty") ^= 1;
    assert_eq!(read(&torn, true).map(|(next, _, topics)| (next, topics)), Ok((2, 2)));
}

#[test]
fn what_contradicts_the_records_before_it_is_refused() {
    let orders = [topic("orders", TOPIC), partition(TOPIC, 0, &[1], 4)];
    let isr = |ids: &[i32]| [vec![1, 0, 1 + 4 * ids.len() as u8], ints(ids)].concat();
    let change = |tagged: Vec<u8>| framed(5, 2, &[0i32.to_be_bytes().to_vec(), id(TOPIC), tagged].concat());
    let mut longer = topic("longer", 2);
    longer.push(0);
    let mut newer = topic("newer", 2);
    newer[2] = 1;
    let wrong = [
        ("a name that is none", topic("../etc", 2)),
        ("the name of the log itself", topic("__cluster_metadata", 2)),
        ("no id", topic("zero", 0)),
        ("the id of another", topic("more", TOPIC)),
        ("the name of another", topic("orders", 2)),
        ("the partition of no topic", partition(2, 0, &[1], 0)),
        ("a partition that is there", partition(TOPIC, 0, &[1], 0)),
        ("a negative partition", partition(TOPIC, -1, &[1], 0)),
        ("a negative epoch", partition(TOPIC, 1, &[1], -1)),
        ("a replica twice", partition(TOPIC, 1, &[1, 1], 0)),
        ("a negative replica", partition(TOPIC, 1, &[-5], 0)),
        ("a leader that is no replica", new_leader(TOPIC, 0, 7)),
        ("a leader that cannot be", new_leader(TOPIC, 0, -3)),
        ("a replica in sync that is none", change(isr(&[1, 7]))),
        ("negative producer ids", producer_ids(-1)),
        ("bytes behind a record", longer),
        ("a version to come", newer),
        ("the end of no transaction", framed(24, 0, &[0])),
        ("a broker without a number", config(4, "one", "log.retention.ms", Some("7"))),
    ];
    assert!(read(&orders).is_ok());
    for (what, record) in wrong {
        let records = [orders.to_vec(), vec![record]].concat();
        let refused = read(&records).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|error| error.starts_with("the record of offset 2: ")), "{what}");
    }
    assert!(read(&[framed(23, 0, &[0]), framed(23, 0, &[0])]).is_err());
    let last = [topic("t", 1), partition(1, 0, &[1], i32::MAX), new_leader(1, 0, 1)];
    assert!(read(&last).err().is_some_and(|error| error.to_string().contains("an epoch is at its end")));
}

#[test]
fn configs_of_nothing_and_groups_configs_that_are_unknown_are_told() {
    let metadata = read(&[
        config(2, "gone", "retention.ms", Some("1000")),
        config(32, "g", "consumer.session.timeout.ms", Some("46000")),
        config(32, "g", "no.such", Some("1")),
    ]);
    let metadata = metadata.expect("readable");
    let left_out: Vec<(String, u64)> = metadata.left_out().into_iter().collect();
    let wanted = [("config no.such", 1), ("configs of topics that are not there", 1)];
    assert_eq!(left_out, wanted.map(|(what, count)| (what.to_owned(), count)));
    let state = state(metadata);
    assert!(state.image().overrides(&ConfigResource::Topic("gone".into())).is_empty());
    assert_eq!(state.image().overrides(&ConfigResource::Group("g".into())).len(), 1);
}

#[test]
fn quotas_are_taken_over() {
    let ann = [("user", Some("ann"))];
    let metadata = read(&[
        quota(&ann, "producer_byte_rate", 1000.0),
        quota(&ann, "consumer_byte_rate", 2000.0),
        quota(&ann, "producer_byte_rate", 0.0),
        quota(&[("user", None), ("client-id", Some("c"))], "request_percentage", 0.5),
        quota(&[("ip", Some("10.0.0.1"))], "connection_creation_rate", 5.0),
        quota(&[("ip", Some("no.address"))], "connection_creation_rate", 5.0),
        quota(&[("group", Some("g"))], "producer_byte_rate", 5.0),
        quota(&ann, "no_such_rate", 5.0),
    ]);
    let metadata = metadata.expect("readable");
    let left_out: Vec<(String, u64)> = metadata.left_out().into_iter().collect();
    let wanted = [("quotas of a kind that kuring does not have", 2), ("quotas of hosts by name", 1)];
    assert_eq!(left_out, wanted.map(|(what, count)| (what.to_owned(), count)));
    let state = state(metadata);
    let quotas = state.image().client_quotas();
    let of = |key, user| quotas.of_client(key, user, "c").map(|found| found.limit.get());
    assert_eq!(of(QuotaKey::ConsumerByteRate, "ann"), Some(2000.0));
    assert_eq!(of(QuotaKey::ProducerByteRate, "ann"), None);
    assert_eq!(of(QuotaKey::RequestPercentage, "bob"), Some(0.5));
    assert!(quotas.has(QuotaKey::ConnectionCreationRate));
}
