//! What clients ask about the offsets of partitions: by time, ends, leader epochs, deleted records, producers,
//! sizes. Each on topics that are spread over all shards. The values are Apache Kafka's.

use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    DeleteRecordsRequest, DescribeLogDirsRequest, DescribeProducersRequest, ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
};
use rdkafka::consumer::Consumer as _;
use rdkafka::{Offset, TopicPartitionList};

use crate::harness::batch::{Batch, Codec, Record};
use crate::harness::client::{Client, Send};
use crate::harness::raw::{Raw, name};
use crate::harness::{Broker, PATIENCE, shard_counts};

const PARTITIONS: i32 = 7;
/// Old records must outlive the test.
const KEPT: (&str, &str) = ("retention.ms", "-1");

const OFFSET_OUT_OF_RANGE: i16 = 1;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INVALID_TOPIC: i16 = 17;
const UNSUPPORTED_VERSION: i16 = 35;
const INVALID_REQUEST: i16 = 42;
const POLICY_VIOLATION: i16 = 44;
const FENCED_LEADER_EPOCH: i16 = 74;
const UNKNOWN_LEADER_EPOCH: i16 = 75;

/// A batch whose records have these timestamps.
fn at_times(times: &[i64], codec: Codec) -> Batch {
    let values: Vec<String> = times.iter().map(|time| format!("at {time}")).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let mut batch = Batch::of(&values, times[0]).with_codec(codec);
    for (record, time) in batch.records.iter_mut().zip(times) {
        *record = Record { timestamp_delta: time - times[0], ..record.clone() };
    }
    batch
}

/// What librdkafka finds in each partition for `time`: `None` for the end.
fn by_time(client: &Client, topic: &str, time: i64) -> Vec<Option<i64>> {
    let mut asked = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        asked.add_partition_offset(topic, partition, Offset::Offset(time)).expect("a valid time");
    }
    let found = client.consumer(&[]).offsets_for_times(asked, PATIENCE).expect("offsets by time");
    let offset = |partition| {
        let element = found.find_partition(topic, partition).expect("each partition is answered");
        element.error().expect("no error");
        match element.offset() {
            Offset::Offset(offset) => Some(offset),
            Offset::End => None,
            other => panic!("{other:?}"),
        }
    };
    (0..PARTITIONS).map(offset).collect()
}

/// (partition, error, timestamp, offset, leader epoch), by partition.
fn list_offsets(
    raw: &mut Raw,
    version: i16,
    topic: &str,
    asked: &[(i32, i64, i32)],
) -> Vec<(i32, i16, i64, i64, i32)> {
    let partitions = asked.iter().map(|(partition, timestamp, epoch)| {
        ListOffsetsPartition::default()
            .with_partition_index(*partition)
            .with_current_leader_epoch(*epoch)
            .with_timestamp(*timestamp)
    });
    let topic = ListOffsetsTopic::default().with_name(name(topic)).with_partitions(partitions.collect());
    let request = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
    let response = raw.call(version, &request);
    let mut answers: Vec<_> = response
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .map(|p| (p.partition_index, p.error_code, p.timestamp, p.offset, p.leader_epoch))
        .collect();
    answers.sort_unstable();
    answers
}

/// (partition, error, low watermark), by partition.
fn delete_records(raw: &mut Raw, topic: &str, below: &[(i32, i64)]) -> Vec<(i32, i16, i64)> {
    let partitions = below.iter().map(|(partition, offset)| {
        DeleteRecordsPartition::default().with_partition_index(*partition).with_offset(*offset)
    });
    let topic = DeleteRecordsTopic::default().with_name(name(topic)).with_partitions(partitions.collect());
    let request = DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    let response = raw.call(2, &request);
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    let mut answers: Vec<_> =
        partitions.map(|p| (p.partition_index, p.error_code, p.low_watermark)).collect();
    answers.sort_unstable();
    answers
}

#[test]
fn the_youngest_record_is_one_that_is_left_after_a_deletion() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("youngest", 1, &[KEPT]);
    let mut raw = Raw::connect(&broker);
    for times in [&[1000, 5000, 2000][..], &[3000], &[2500, 3000]] {
        assert_eq!(raw.produce("youngest", 0, -1, at_times(times, Codec::None).encode()).error_code, 0);
    }
    let mut youngest_from = |log_start: i64| {
        assert_eq!(delete_records(&mut raw, "youngest", &[(0, log_start)]), [(0, 0, log_start)]);
        let (_, error, timestamp, offset, _) = list_offsets(&mut raw, 7, "youngest", &[(0, -3, -1)])[0];
        (error, timestamp, offset)
    };
    assert_eq!(youngest_from(1), (0, 5000, 1));
    // Kafka answers with the record that was deleted, and from 6 on too; here it is the youngest of those that can be read.
    let deleted = Broker::is_kafka().then_some((0, 5000, 1));
    assert_eq!(youngest_from(2), deleted.unwrap_or((0, 3000, 3)));
    assert_eq!(youngest_from(3), deleted.unwrap_or((0, 3000, 3)));
    assert_eq!(youngest_from(4), deleted.unwrap_or((0, 3000, 5)));
    assert_eq!(youngest_from(6), deleted.unwrap_or((0, -1, -1)));
}

#[test]
fn offsets_by_time_are_those_of_single_records_of_compressed_batches() {
    for shards in shard_counts([1, 3]) {
        let broker = Broker::with(shards, &[]);
        let client = Client::of(&broker);
        client.create_topic("timed", PARTITIONS, &[KEPT]);
        let mut raw = Raw::connect(&broker);
        let codecs = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];
        // The last partition stays empty.
        for (partition, codec) in (0..PARTITIONS - 1).zip(codecs.into_iter().cycle()) {
            for times in [&[1000, 3000, 2000][..], &[3500, 2500, 3500], &[9000, 4000, 9000, 5000], &[6000]] {
                let batch = at_times(times, codec).encode();
                assert_eq!(raw.produce("timed", partition, -1, batch).error_code, 0, "{codec:?}");
            }
        }
        let expected = [
            (0, Some(0)),
            (1000, Some(0)),
            (1001, Some(1)),
            (3000, Some(1)),
            (3001, Some(3)),
            (3500, Some(3)),
            (3501, Some(6)),
            (5000, Some(6)),
            (9000, Some(6)),
            (9001, None),
        ];
        for (time, offset) in expected {
            let mut all = vec![offset; PARTITIONS as usize - 1];
            all.push(None);
            assert_eq!(by_time(&client, "timed", time), all, "{shards} shards at {time}");
        }
        for partition in 0..PARTITIONS {
            let (end, youngest) = if partition == PARTITIONS - 1 {
                (0, (partition, 0, -1, -1, -1))
            } else {
                (11, (partition, 0, 9000, 6, 0))
            };
            assert_eq!(client.offsets("timed", partition), (0, end));
            assert_eq!(list_offsets(&mut raw, 7, "timed", &[(partition, -3, -1)]), [youngest]);
        }
    }
}

#[test]
fn deleted_records_are_gone_for_every_question_and_after_a_restart_on_other_shards() {
    for shards in shard_counts([1, 3]) {
        let mut broker = Broker::with(shards, &[]);
        let client = Client::of(&broker);
        client.create_topic("cut", PARTITIONS, &[KEPT]);
        let producer = client.producer(&[("compression.type", "lz4"), ("linger.ms", "50")]);
        let records: Vec<Send> = (0..10 * PARTITIONS)
            .map(|number| {
                Send::value(format!("{number}"))
                    .to(number % PARTITIONS)
                    .at(1000 + i64::from(number / PARTITIONS))
            })
            .collect();
        client.send(&producer, "cut", &records);
        for partition in 0..PARTITIONS {
            client.delete_records("cut", partition, 1 + i64::from(partition));
        }
        let check = |client: &Client| {
            let starts: Vec<i64> = (1..=i64::from(PARTITIONS)).collect();
            let ends: Vec<_> = starts.iter().map(|start| (*start, 10)).collect();
            assert_eq!(client.all_offsets("cut", PARTITIONS), ends, "{shards} shards");
            let count = starts.iter().map(|start| 10 - start).sum::<i64>();
            let each = client.read_each("cut", PARTITIONS, count as usize);
            for (left, start) in each.iter().zip(starts) {
                let offsets: Vec<i64> = left.iter().map(|record| record.offset).collect();
                assert_eq!(offsets, (start..10).collect::<Vec<_>>(), "{shards} shards");
            }
            let starts: Vec<_> = (0..PARTITIONS).map(|partition| Some(1 + i64::from(partition))).collect();
            assert_eq!(by_time(client, "cut", 1000), starts, "{shards} shards");
            assert_eq!(by_time(client, "cut", 1009), vec![Some(9); PARTITIONS as usize]);
        };
        check(&client);
        broker.terminate();
        broker.start_again(4 - shards);
        check(&Client::of(&broker));
        let mut raw = Raw::connect(&broker);
        assert_eq!(delete_records(&mut raw, "cut", &[(0, -1), (1, 0)]), [(0, 0, 10), (1, 0, 2)]);
        let client = Client::of(&broker);
        assert_eq!(client.offsets("cut", 0), (10, 10));
        assert_eq!(by_time(&client, "cut", 0)[0], None);
    }
}

#[test]
fn records_are_deleted_only_where_that_is_allowed() {
    let broker = Broker::with(3, &[]);
    let client = Client::of(&broker);
    client.create_topic("plain", 3, &[KEPT]);
    client.create_topic("compacted", 2, &[("cleanup.policy", "compact")]);
    client.create_topic("both", 1, &[("cleanup.policy", "compact,delete"), KEPT]);
    let mut raw = Raw::connect(&broker);
    for topic in ["plain", "both"] {
        assert_eq!(raw.produce(topic, 0, -1, keyed(&["a", "b"]).encode()).error_code, 0);
    }
    let asked = [(0, 3), (1, 0), (2, -2), (3, 0), (-1, 0)];
    let expected = [
        (-1, UNKNOWN_TOPIC_OR_PARTITION, -1),
        (0, OFFSET_OUT_OF_RANGE, -1),
        (1, 0, 0),
        (2, OFFSET_OUT_OF_RANGE, -1),
        (3, UNKNOWN_TOPIC_OR_PARTITION, -1),
    ];
    assert_eq!(delete_records(&mut raw, "plain", &asked), expected);
    assert_eq!(delete_records(&mut raw, "plain", &[(0, 2)]), [(0, 0, 2)]);
    assert_eq!(delete_records(&mut raw, "plain", &[(0, 1)]), [(0, 0, 2)], "never back");
    assert_eq!(delete_records(&mut raw, "both", &[(0, 1)]), [(0, 0, 1)]);
    let refused = [(0, POLICY_VIOLATION, -1), (1, POLICY_VIOLATION, -1)];
    assert_eq!(delete_records(&mut raw, "compacted", &[(0, 0), (1, 100)]), refused);
    assert_eq!(delete_records(&mut raw, "none", &[(0, 0)]), [(0, UNKNOWN_TOPIC_OR_PARTITION, -1)]);
    assert_eq!(delete_records(&mut raw, "plain", &[]), []);
}

/// Each value is its record's key, too.
fn keyed(values: &[&str]) -> Batch {
    let mut batch = Batch::now(values);
    for record in &mut batch.records {
        record.key.clone_from(&record.value);
    }
    batch
}

#[test]
fn special_timestamps_are_answered_from_the_version_that_has_them() {
    let broker = Broker::with(3, &[]);
    Client::of(&broker).create_topic("special", 3, &[KEPT]);
    let mut raw = Raw::connect(&broker);
    for partition in 0..3 {
        let batch = at_times(&[1000, 1004, 1002], Codec::Zstd).encode();
        assert_eq!(raw.produce("special", partition, -1, batch).error_code, 0);
    }
    let refused = (UNSUPPORTED_VERSION, -1, -1, -1);
    for version in 1..=11 {
        let epoch = if version >= 4 { 0 } else { -1 };
        let since = |first, answer| if version >= first { answer } else { refused };
        let expected = [
            (-1, (0, -1, 3, epoch)),
            (-2, (0, -1, 0, epoch)),
            (-3, since(7, (0, 1004, 1, epoch))),
            (-4, since(8, (0, -1, 0, epoch))),
            (-5, since(9, (0, -1, -1, -1))),
            (-6, since(11, (0, -1, -1, -1))),
            (-7, refused),
            (i64::MIN, refused),
            (1001, (0, 1004, 1, epoch)),
            (i64::MAX, (0, -1, -1, -1)),
        ];
        for (timestamp, answer) in expected {
            for partition in 0..3 {
                let found = list_offsets(&mut raw, version, "special", &[(partition, timestamp, -1)]);
                let (error, time, offset, epoch) = answer;
                let expected = (partition, error, time, offset, epoch);
                assert_eq!(found, [expected], "version {version}, timestamp {timestamp}");
            }
        }
    }
}

#[test]
fn a_question_about_offsets_that_is_wrong_gets_its_own_error() {
    let broker = Broker::with(3, &[]);
    Client::of(&broker).create_topic("asked", 3, &[]);
    let mut raw = Raw::connect(&broker);
    let failed = |partition, error| (partition, error, -1, -1, -1);
    let answers = list_offsets(&mut raw, 10, "asked", &[(0, -1, 5), (1, -1, 0), (2, -1, -2), (3, -1, -1)]);
    let expected = [
        failed(0, UNKNOWN_LEADER_EPOCH),
        (1, 0, -1, 0, 0),
        failed(2, FENCED_LEADER_EPOCH),
        failed(3, UNKNOWN_TOPIC_OR_PARTITION),
    ];
    assert_eq!(answers, expected);
    let answers = list_offsets(&mut raw, 10, "asked", &[(0, -1, -1), (1, -1, -1), (0, -2, -1), (0, 5, -1)]);
    assert_eq!(answers, [failed(0, INVALID_REQUEST), (1, 0, -1, 0, 0)], "a partition twice");
    assert_eq!(list_offsets(&mut raw, 10, "none", &[(0, -1, -1)]), [failed(0, UNKNOWN_TOPIC_OR_PARTITION)]);
    assert_eq!(list_offsets(&mut raw, 10, "asked", &[]), []);
}

#[test]
fn the_end_of_a_leader_epoch_is_found_and_of_others_nothing() {
    let broker = Broker::with(3, &[]);
    Client::of(&broker).create_topic("epochs", 4, &[]);
    let mut raw = Raw::connect(&broker);
    for partition in 0..4 {
        let values = vec!["x"; partition as usize];
        if partition > 0 {
            assert_eq!(raw.produce("epochs", partition, -1, Batch::now(&values).encode()).error_code, 0);
        }
    }
    let asked =
        [(0, -1, 0), (1, 0, 0), (2, -1, 7), (3, -1, 0), (3, 9, 0), (3, -2, 0), (9, -1, 0), (1, -1, -1)];
    let partitions = asked.map(|(partition, current, epoch)| {
        OffsetForLeaderPartition::default()
            .with_partition(partition)
            .with_current_leader_epoch(current)
            .with_leader_epoch(epoch)
    });
    let topic =
        OffsetForLeaderTopic::default().with_topic(name("epochs")).with_partitions(partitions.to_vec());
    for version in 2..=4 {
        let request = OffsetForLeaderEpochRequest::default().with_topics(vec![topic.clone()]);
        let request = if version > 2 { request.with_replica_id((-1).into()) } else { request };
        let response = raw.call(version, &request);
        let answers: Vec<_> = response.topics[0]
            .partitions
            .iter()
            .map(|p| (p.partition, p.error_code, p.leader_epoch, p.end_offset))
            .collect();
        let expected = [
            (0, 0, 0, 0),
            (1, 0, 0, 1),
            (2, 0, -1, -1),
            (3, 0, 0, 3),
            (3, UNKNOWN_LEADER_EPOCH, -1, -1),
            (3, FENCED_LEADER_EPOCH, -1, -1),
            (9, UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
            (1, 0, -1, -1),
        ];
        assert_eq!(answers, expected, "version {version}");
    }
}

#[test]
fn producers_are_described_with_their_last_batch() {
    let broker = Broker::with(3, &[]);
    Client::of(&broker).create_topic("written", 3, &[KEPT]);
    let mut raw = Raw::connect(&broker);
    let id = raw.producer_id();
    for (sequence, times) in [(0, &[500, 700, 600][..]), (3, &[400])] {
        let batch = at_times(times, Codec::None).with_producer(id, 0, sequence).encode();
        assert_eq!(raw.produce("written", 1, -1, batch).error_code, 0);
    }
    let mut describe = |topic: &str, partitions: &[i32]| {
        let topic =
            TopicRequest::default().with_name(name(topic)).with_partition_indexes(partitions.to_vec());
        let mut response = raw.call(0, &DescribeProducersRequest::default().with_topics(vec![topic]));
        response.topics.remove(0).partitions
    };
    let found = describe("written", &[0, 1, 5]);
    let errors: Vec<i16> = found.iter().map(|partition| partition.error_code).collect();
    assert_eq!(errors, [0, 0, UNKNOWN_TOPIC_OR_PARTITION]);
    assert!(found[0].active_producers.is_empty() && found[2].active_producers.is_empty());
    let [producer] = &found[1].active_producers[..] else { panic!("{found:?}") };
    assert_eq!((producer.producer_id.0, producer.producer_epoch, producer.last_sequence), (id, 0, 3));
    assert_eq!((producer.last_timestamp, producer.coordinator_epoch), (400, -1));
    assert_eq!(producer.current_txn_start_offset, -1);
    let unknown = describe("none", &[0]);
    assert_eq!(unknown[0].error_code, UNKNOWN_TOPIC_OR_PARTITION);
    assert!(unknown[0].error_message.is_some());
    assert_eq!(describe("no name", &[0])[0].error_code, INVALID_TOPIC);
}

#[test]
fn more_producers_than_a_short_answer_holds_are_described_too() {
    // Of short answers there is room for 128 producers in this.
    let broker = Broker::with(2, &[("kuring.memory.serve.bytes", "1048576")]);
    Client::of(&broker).create_topic("busy", 4, &[KEPT]);
    let mut raw = Raw::connect(&broker);
    let first = raw.producer_id();
    let expected = [100, 0, 300, 20];
    let mut id = first;
    for (partition, count) in (0..).zip(expected) {
        for _ in 0..count {
            let batch = Batch::now(&["x"]).with_producer(id, 0, 0).encode();
            assert_eq!(raw.produce("busy", partition, -1, batch).error_code, 0);
            id += 1;
        }
    }
    for _ in 0..2 {
        let topic = TopicRequest::default().with_name(name("busy")).with_partition_indexes(vec![0, 1, 2, 3]);
        let response = raw.call(0, &DescribeProducersRequest::default().with_topics(vec![topic]));
        let found: Vec<(i16, usize)> = response.topics[0]
            .partitions
            .iter()
            .map(|partition| (partition.error_code, partition.active_producers.len()))
            .collect();
        assert_eq!(found, expected.map(|count| (0, count)));
    }
}

#[test]
fn log_directories_are_described_with_the_sizes_of_all_shards_logs() {
    for shards in shard_counts([1, 3]) {
        let broker = Broker::with(shards, &[]);
        let client = Client::of(&broker);
        client.create_topic("small", PARTITIONS, &[]);
        client.create_topic("other", 1, &[]);
        let mut raw = Raw::connect(&broker);
        let mut expected = Vec::new();
        for partition in 0..PARTITIONS {
            let batch = Batch::now(&vec!["x"; 1 + partition as usize]).encode();
            expected.push((partition, batch.len() as i64, 0, false));
            assert_eq!(raw.produce("small", partition, -1, batch).error_code, 0);
        }
        for version in 1..=4 {
            let all: Vec<i32> = (0..PARTITIONS + 3).collect();
            let topic = DescribableLogDirTopic::default().with_topic(name("small")).with_partitions(all);
            let request = DescribeLogDirsRequest::default().with_topics(Some(vec![topic]));
            let response = raw.call(version, &request);
            assert_eq!((response.error_code, response.results.len()), (0, 1));
            let result = &response.results[0];
            assert_eq!((result.error_code, result.topics.len()), (0, 1), "{shards} shards");
            assert_eq!(std::path::Path::new(&*result.log_dir), broker.data());
            let mut found: Vec<_> = result.topics[0]
                .partitions
                .iter()
                .map(|p| (p.partition_index, p.partition_size, p.offset_lag, p.is_future_key))
                .collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{shards} shards");
            let sizes_are_told = result.total_bytes > 0 && result.usable_bytes > 0;
            assert_eq!(sizes_are_told, version >= 4);
            assert!(result.usable_bytes <= result.total_bytes);
        }
        let mut topics_in = |topics| {
            let response = raw.call(4, &DescribeLogDirsRequest::default().with_topics(topics));
            // Kafka has made the topic of committed offsets by now.
            response.results[0].topics.iter().filter(|topic| !topic.name.starts_with("__")).count()
        };
        assert_eq!(topics_in(None), 2);
        assert_eq!(topics_in(Some(Vec::new())), 0);
    }
}
