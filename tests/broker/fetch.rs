//! Fetch as consumers depend on it: waiting, limits, sessions, offsets by time. The values are Apache Kafka's.

use std::time::{Duration, Instant};

use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_response::FetchResponse;

use crate::admin::metric;
use crate::harness::batch::{Batch, Codec, read_all};
use crate::harness::client::{Client, Send};
use crate::harness::raw::{FETCH, Raw, fetch};
use crate::harness::{Broker, eventually, shard_counts};

const OFFSET_OUT_OF_RANGE: i16 = 1;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const FETCH_SESSION_ID_NOT_FOUND: i16 = 70;
const INVALID_FETCH_SESSION_EPOCH: i16 = 71;
const UNKNOWN_TOPIC_ID: i16 = 100;
const INCONSISTENT_TOPIC_ID: i16 = 103;

/// The number of record bytes that came, over all partitions.
fn bytes_in(response: &FetchResponse) -> usize {
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    partitions.filter_map(|partition| partition.records.as_ref()).map(|records| records.len()).sum()
}

fn partitions_in(response: &FetchResponse) -> Vec<i32> {
    let mut all: Vec<i32> = response
        .responses
        .iter()
        .flat_map(|topic| &topic.partitions)
        .map(|data| data.partition_index)
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn an_empty_fetch_is_answered_when_its_wait_is_over() {
    for shards in shard_counts([1, 2, 3, 8]) {
        let broker = Broker::with(shards, &[]);
        Client::of(&broker).create_topic("empty", 16, &[]);
        let mut raw = Raw::connect(&broker);
        let all: Vec<(i32, i64)> = (0..16).map(|partition| (partition, 0)).collect();
        for wait_ms in [0, 1, 50, 300] {
            let start = Instant::now();
            let response = raw.call(FETCH, &fetch("empty", &all).with_max_wait_ms(wait_ms));
            let took = start.elapsed();
            assert_eq!(partitions_in(&response).len(), 16);
            assert_eq!(bytes_in(&response), 0);
            assert!(
                took >= Duration::from_millis(wait_ms as u64),
                "{shards} shards: {took:?} of {wait_ms} ms"
            );
            assert!(
                took < Duration::from_millis(wait_ms as u64 + 1500),
                "{shards} shards: {took:?} of {wait_ms} ms"
            );
        }
    }
}

#[test]
fn a_waiting_fetch_returns_with_the_first_record() {
    for shards in shard_counts([1, 2, 3, 8]) {
        let broker = Broker::with(shards, &[]);
        Client::of(&broker).create_topic("waited", 8, &[]);
        let mut reader = Raw::connect(&broker);
        let mut writer = Raw::connect(&broker);
        for partition in 0..8 {
            let start = Instant::now();
            let offsets: Vec<(i32, i64)> =
                (0..8).map(|index| (index, i64::from(index < partition))).collect();
            reader.send(FETCH, &fetch("waited", &offsets).with_max_wait_ms(20_000));
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(writer.produce("waited", partition, 1, Batch::now(&["x"]).encode()).error_code, 0);
            let (_, response) = reader.receive::<FetchRequest>(FETCH);
            assert!(bytes_in(&response) > 0, "{shards} shards, partition {partition}");
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "{shards} shards, partition {partition}: slowly"
            );
        }
    }
}

#[test]
fn a_fetch_waits_for_its_minimum_of_bytes() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("minimum", 2, &[]);
    let mut reader = Raw::connect(&broker);
    let mut writer = Raw::connect(&broker);
    let batch = Batch::now(&["0123456789"]).encode();
    let request =
        fetch("minimum", &[(0, 0), (1, 0)]).with_max_wait_ms(20_000).with_min_bytes(3 * batch.len() as i32);
    let start = Instant::now();
    reader.send(FETCH, &request);
    for partition in [0, 1, 0] {
        std::thread::sleep(Duration::from_millis(50));
        writer.produce("minimum", partition, 1, batch.clone());
    }
    let (_, response) = reader.receive::<FetchRequest>(FETCH);
    assert_eq!(bytes_in(&response), 3 * batch.len());
    assert!(start.elapsed() < Duration::from_secs(10));
    // What never comes ends the wait all the same, with what there is.
    let short = fetch("minimum", &[(0, 0), (1, 0)]).with_max_wait_ms(200).with_min_bytes(1 << 20);
    assert_eq!(bytes_in(&reader.call(FETCH, &short)), 3 * batch.len());
}

#[test]
fn what_lies_in_the_next_segment_is_not_waited_for() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("rolled", 1, &[("segment.bytes", "1048576")]);
    let mut raw = Raw::connect(&broker);
    // Ten of them fill a segment.
    let batch = Batch::now(&["x".repeat(100_000).as_str()]).encode();
    for _ in 0..15 {
        assert_eq!(raw.produce("rolled", 0, -1, batch.clone()).error_code, 0);
    }
    let start = Instant::now();
    let request = fetch("rolled", &[(0, 9)]).with_max_wait_ms(20_000).with_min_bytes(3 * batch.len() as i32);
    assert!(bytes_in(&raw.call(FETCH, &request)) >= batch.len());
    assert!(start.elapsed() < Duration::from_secs(10), "its wait was waited out");
}

#[test]
fn a_batch_that_does_not_fit_behind_another_partitions_is_left_out() {
    for shards in shard_counts([1, 2, 3, 8]) {
        let broker = Broker::with(shards, &[]);
        Client::of(&broker).create_topic("fits", 2, &[]);
        let mut raw = Raw::connect(&broker);
        let long = "y".repeat(1000);
        raw.produce("fits", 0, 1, Batch::now(&["x"]).encode());
        raw.produce("fits", 1, 1, Batch::now(&[&long]).encode());
        let limited = |offsets: &[(i32, i64)]| {
            let mut request = fetch("fits", offsets);
            for partition in &mut request.topics[0].partitions {
                partition.partition_max_bytes = 200;
            }
            request
        };
        let bytes = bytes_in(&raw.call(FETCH, &limited(&[(0, 0), (1, 0)])));
        assert!((1..200).contains(&bytes), "{shards} shards: {bytes} bytes, a part of a batch among them");
        let alone = bytes_in(&raw.call(FETCH, &limited(&[(1, 0)])));
        assert!(alone > 1000, "{shards} shards: the first batch comes whole, not {alone} bytes of it");
    }
}

#[test]
fn a_fetch_from_inside_a_batch_returns_that_batch() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("inside", 1, &[]);
    let mut raw = Raw::connect(&broker);
    for codec in [Codec::None, Codec::Lz4] {
        raw.produce("inside", 0, -1, Batch::now(&["a", "b", "c", "d"]).with_codec(codec).encode());
    }
    for (offset, base) in [(0, 0), (1, 0), (3, 0), (4, 4), (6, 4), (7, 4)] {
        let response = raw.call(FETCH, &fetch("inside", &[(0, offset)]));
        let records = response.responses[0].partitions[0].records.clone().expect("records");
        let batches = read_all(&records);
        assert_eq!(batches[0].base_offset, base, "fetch from {offset}");
        assert_eq!(batches.last().map(|batch| batch.last_offset), Some(7));
        assert_eq!(batches[0].values[1], Some(b"b".to_vec()));
    }
}

#[test]
fn a_fetch_beyond_the_log_is_out_of_range_and_one_at_its_end_is_not() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("range", 1, &[]);
    let mut raw = Raw::connect(&broker);
    raw.produce("range", 0, -1, Batch::now(&["a", "b"]).encode());
    let mut code = |offset| {
        let response = raw.call(FETCH, &fetch("range", &[(0, offset)]).with_max_wait_ms(10));
        let partition = response.responses[0].partitions[0].clone();
        (partition.error_code, partition.high_watermark)
    };
    assert_eq!(code(2), (0, 2));
    assert_eq!(code(3), (OFFSET_OUT_OF_RANGE, -1));
    assert_eq!(code(-1), (OFFSET_OUT_OF_RANGE, -1));
    let response = raw.call(FETCH, &fetch("range", &[(1, 0)]));
    assert_eq!(response.responses[0].partitions[0].error_code, UNKNOWN_TOPIC_OR_PARTITION);
    let response = raw.call(FETCH, &fetch("nowhere", &[(0, 0)]));
    assert_eq!(response.responses[0].partitions[0].error_code, UNKNOWN_TOPIC_OR_PARTITION);
}

#[test]
fn an_epoch_that_the_log_never_had_is_out_of_range_and_one_that_ended_earlier_diverges() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("epochs", 1, &[]);
    let mut raw = Raw::connect(&broker);
    raw.produce("epochs", 0, -1, Batch::now(&["a", "b"]).encode());
    let mut answer = |offset, epoch| {
        let mut request = fetch("epochs", &[(0, offset)]).with_max_wait_ms(10);
        request.topics[0].partitions[0].last_fetched_epoch = epoch;
        let partition = raw.call(FETCH, &request).responses[0].partitions[0].clone();
        let diverging = partition.diverging_epoch;
        (partition.error_code, diverging.epoch, diverging.end_offset)
    };
    assert_eq!(answer(1, 0), (0, -1, -1));
    assert_eq!(answer(5, 0), (0, 0, 2));
    assert_eq!(answer(1, 9), (OFFSET_OUT_OF_RANGE, -1, -1));
    assert_eq!(answer(-1, 0), (OFFSET_OUT_OF_RANGE, -1, -1));
}

#[test]
fn the_first_batch_comes_whole_however_small_the_limits() {
    for shards in shard_counts([1, 8]) {
        let broker = Broker::with(shards, &[]);
        Client::of(&broker).create_topic("limits", 4, &[]);
        let mut raw = Raw::connect(&broker);
        let value = "v".repeat(10_000);
        let batch = Batch::now(&[&value]).encode();
        for partition in [0, 1, 2, 3] {
            for _ in 0..3 {
                raw.produce("limits", partition, 1, batch.clone());
            }
        }
        let all = [(0, 0), (1, 0), (2, 0), (3, 0)];
        let mut small = fetch("limits", &all).with_max_bytes(1);
        let response = raw.call(FETCH, &small);
        assert_eq!(bytes_in(&response), batch.len(), "one batch in all, {shards} shards");
        small.max_bytes = 1 << 20;
        small.topics[0].partitions.iter_mut().for_each(|partition| partition.partition_max_bytes = 1);
        let response = raw.call(FETCH, &small);
        assert!(bytes_in(&response) >= batch.len(), "{shards} shards");
        // A partition's own limit cuts at a byte, not at a batch, once something whole came.
        let mut two = fetch("limits", &all);
        two.topics[0].partitions.iter_mut().for_each(|partition| partition.partition_max_bytes = 25_000);
        let response = raw.call(FETCH, &two);
        for data in &response.responses[0].partitions {
            let len = data.records.as_ref().map_or(0, |records| records.len());
            assert!((2 * batch.len()..=25_000).contains(&len), "{len} bytes, {shards} shards");
        }
    }
}

#[test]
fn without_a_session_every_partition_is_in_every_answer() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("full", 3, &[]);
    let mut raw = Raw::connect(&broker);
    for _ in 0..3 {
        let response = raw.call(FETCH, &fetch("full", &[(0, 0), (1, 0), (2, 0)]).with_max_wait_ms(10));
        assert_eq!(response.session_id, 0);
        assert_eq!(partitions_in(&response), [0, 1, 2]);
    }
}

#[test]
fn a_session_answers_with_what_changed() {
    for shards in shard_counts([1, 2, 3, 8]) {
        let broker = Broker::with(shards, &[]);
        Client::of(&broker).create_topic("session", 4, &[]);
        let mut raw = Raw::connect(&broker);
        let first =
            fetch("session", &[(0, 0), (1, 0), (2, 0), (3, 0)]).with_max_wait_ms(10).with_session_epoch(0);
        let response = raw.call(FETCH, &first);
        let id = response.session_id;
        assert!(id > 0, "{shards} shards");
        assert_eq!(partitions_in(&response), [0, 1, 2, 3]);

        let next = |epoch| {
            let mut request =
                fetch("session", &[]).with_max_wait_ms(10).with_session_id(id).with_session_epoch(epoch);
            request.topics.clear();
            request
        };
        assert_eq!(partitions_in(&raw.call(FETCH, &next(1))), [0; 0], "nothing changed, {shards} shards");
        Raw::connect(&broker).produce("session", 2, -1, Batch::now(&["a"]).encode());
        let response = raw.call(FETCH, &next(2));
        assert_eq!((partitions_in(&response), response.session_id), (vec![2], id), "{shards} shards");
        // The position has not moved, so the record comes again; a moved one has nothing.
        assert_eq!(partitions_in(&raw.call(FETCH, &next(3))), [2]);
        let mut moved =
            fetch("session", &[(2, 1)]).with_max_wait_ms(10).with_session_id(id).with_session_epoch(4);
        assert_eq!(bytes_in(&raw.call(FETCH, &moved)), 0);
        // A repeated epoch and an unknown session are refused, each with its code.
        moved.session_epoch = 4;
        assert_eq!(raw.call(FETCH, &moved).error_code, INVALID_FETCH_SESSION_EPOCH);
        moved.session_id = id.wrapping_add(12_345);
        assert_eq!(raw.call(FETCH, &moved).error_code, FETCH_SESSION_ID_NOT_FOUND);
    }
}

#[test]
fn offsets_are_found_by_time() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("times", 1, &[("retention.ms", "-1")]);
    let mut raw = Raw::connect(&broker);
    let empty = raw.list_offset(7, "times", -3);
    assert_eq!((empty.error_code, empty.offset, empty.timestamp), (0, -1, -1), "max timestamp of nothing");
    // Offsets 0 to 5 at times 1000, 2000, 5000, 3000, 3000, 4000: not in order, as producers do.
    let producer = client.producer(&[("linger.ms", "0"), ("max.in.flight", "1")]);
    for time in [1_000, 2_000, 5_000, 3_000, 3_000, 4_000] {
        client.send(&producer, "times", &[Send::value("x").to(0).at(time)]);
    }
    for version in [1, 4, 6, 8] {
        let mut at = |time| {
            let found = raw.list_offset(version, "times", time);
            assert_eq!(found.error_code, 0);
            (found.offset, found.timestamp)
        };
        assert_eq!(at(0), (0, 1_000), "version {version}");
        assert_eq!(at(1_000), (0, 1_000));
        assert_eq!(at(1_001), (1, 2_000));
        assert_eq!(at(2_500), (2, 5_000));
        assert_eq!(at(5_000), (2, 5_000));
        assert_eq!(at(5_001), (-1, -1), "version {version}");
        assert_eq!(at(-1), (6, -1));
        assert_eq!(at(-2), (0, -1));
    }
    let max = raw.list_offset(7, "times", -3);
    assert_eq!((max.error_code, max.offset, max.timestamp), (0, 2, 5_000));
}

#[test]
fn time_search_looks_inside_compressed_batches() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    let mut raw = Raw::connect(&broker);
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let topic = format!("inner-{codec:?}");
        client.create_topic(&topic, 1, &[("retention.ms", "-1")]);
        let mut batch = Batch::of(&["a", "b", "c"], 1_000).with_codec(codec);
        batch.records[1].timestamp_delta = 10;
        batch.records[2].timestamp_delta = 20;
        assert_eq!(raw.produce(&topic, 0, -1, batch.encode()).error_code, 0, "{codec:?}");
        for (time, offset) in [(1_000, 0), (1_005, 1), (1_010, 1), (1_011, 2), (1_021, -1), (-3, 2)] {
            assert_eq!(raw.list_offset(7, &topic, time).offset, offset, "{codec:?} at {time}");
        }
    }
}

#[test]
fn a_topic_created_again_is_another_topic() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("again", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let old = raw.topic_id("again");
    raw.produce("again", 0, -1, Batch::now(&["old"]).encode());
    let by_id = |id| {
        let mut request = fetch("again", &[(0, 0)]).with_max_wait_ms(10);
        request.topics[0].topic = Default::default();
        request.topics[0].topic_id = id;
        request
    };
    let session = raw.call(13, &by_id(old).with_session_epoch(0)).session_id;
    assert!(session > 0);

    client.delete_topic("again").expect("deleted");
    eventually("the name is free again", || client.try_create_topic("again", 1, &[]).ok());
    client.await_partitions("again", 1);
    let new = eventually("it has a new id", || Some(raw.topic_id("again")).filter(|id| *id != old));
    let response = raw.call(13, &by_id(old));
    assert_eq!(response.responses[0].partitions[0].error_code, UNKNOWN_TOPIC_ID);
    let response = raw.call(13, &by_id(new));
    let partition = &response.responses[0].partitions[0];
    assert_eq!((partition.error_code, partition.high_watermark), (0, 0), "nothing of the old topic");
    // The session still names the old topic: it must say so each time, and must not spin in silence.
    let mut next = by_id(old).with_session_id(session).with_session_epoch(1);
    next.topics.clear();
    let response = raw.call(13, &next);
    assert_eq!(response.error_code, 0);
    // Kafka, whose session remembers the name too, says the second; a client does the same for both.
    let code = response.responses[0].partitions[0].error_code;
    assert!([UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID].contains(&code), "{code}");
    assert_eq!(raw.list_offset(7, "again", -1).offset, 0);
    assert_eq!(raw.produce("again", 0, -1, Batch::now(&["new"]).encode()).base_offset, 0);
}

#[test]
fn a_peer_that_leaves_behind_a_parked_fetch_is_noticed_whatever_it_had_sent_after_it() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[]);
    Client::of(&broker).create_topic("quiet", 1, &[]);
    let waiting = || metric(&broker, "kuring_fetches_waiting");
    for behind in [0, 100, 4000, 60_000] {
        let mut raw = Raw::connect(&broker);
        let mut request = fetch("quiet", &[(0, 0)]);
        request.max_wait_ms = 3_600_000;
        raw.send(FETCH, &request);
        eventually("the fetch is parked", || (waiting() == 1).then_some(()));
        // The beginning of a request that is not looked at before the fetch is answered.
        let mut begun = 80_000_i32.to_be_bytes().to_vec();
        begun.resize(behind.max(4), 0);
        raw.send_bytes(&begun[..behind]);
        drop(raw);
        eventually("its fetch does not wait any more", || (waiting() == 0).then_some(()));
    }
}
