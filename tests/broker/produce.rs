//! Produce as clients see it: every codec and level of acknowledgement, what is refused and with which code, order.

use std::time::{Duration, Instant};

use kafka_protocol::messages::ProduceRequest;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::admin::metric;
use crate::harness::batch::{Batch, Codec, read_all, seal};
use crate::harness::client::{Client, Send};
use crate::harness::raw::{Answer, FETCH, PRODUCE, Raw, fetch, produce};
use crate::harness::{Broker, PATIENCE, eventually, now_ms, shard_counts};

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const CORRUPT_MESSAGE: i16 = 2;
const MESSAGE_TOO_LARGE: i16 = 10;
const INVALID_REQUIRED_ACKS: i16 = 21;
const INVALID_TIMESTAMP: i16 = 32;
const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
const INVALID_PRODUCER_EPOCH: i16 = 47;
const INVALID_RECORD: i16 = 87;

/// The same data with each number of shards: some connection and partition then live on different ones.
const SHARDS: [usize; 4] = [1, 2, 3, 8];

#[test]
fn every_codec_returns_what_went_in() {
    for shards in shard_counts(SHARDS) {
        let broker = Broker::with(shards, &[]);
        let client = Client::of(&broker);
        let start = now_ms();
        for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
            let topic = format!("codec-{codec}");
            client.create_topic(&topic, 8, &[]);
            let producer = client.producer(&[("compression.type", codec), ("linger.ms", "20")]);
            let records: Vec<Send> = (0..400)
                .map(|index| {
                    Send::value(format!("value {index} ").repeat(index % 50))
                        .key(format!("key {index}"))
                        .to(index as i32 % 8)
                        .at(start + index as i64)
                })
                .collect();
            let sent = client.send(&producer, &topic, &records);
            for (partition, got) in (0..).zip(client.read_each(&topic, 8, 400)) {
                let of_partition: Vec<usize> = (0..400).filter(|index| sent[*index].0 == partition).collect();
                assert_eq!(got.len(), of_partition.len(), "{codec}, {shards} shards");
                for (got, index) in got.iter().zip(of_partition) {
                    assert_eq!(got.offset, sent[index].1, "{codec}, {shards} shards");
                    assert_eq!(got.key, records[index].key);
                    assert_eq!(
                        got.value.clone().unwrap_or_default(),
                        records[index].value.clone().unwrap_or_default()
                    );
                    assert_eq!(got.timestamp, records[index].timestamp);
                }
            }
        }
    }
}

#[test]
fn null_and_empty_and_headers_are_kept_apart() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("shapes", 1, &[]);
    let records = [
        Send::value("").to(0),
        Send { partition: Some(0), ..Send::default() },
        Send { partition: Some(0), key: Some(b"tombstone".to_vec()), ..Send::default() },
        Send::value("v").key("").to(0),
        Send::value("h")
            .to(0)
            .header("a", Some(b"1"))
            .header("a", Some(b"2"))
            .header("none", None)
            .header("", Some(b"")),
        Send::value([0xff, 0x00, 0xfe]).key([0x00]).to(0),
    ];
    client.send(&client.producer(&[]), "shapes", &records);
    let got = client.read("shapes", &[0], records.len());
    for (got, sent) in got.iter().zip(&records) {
        assert_eq!(got.key, sent.key);
        assert_eq!(got.value, sent.value);
        assert_eq!(got.headers, sent.headers);
    }
}

#[test]
fn each_level_of_acks_stores_the_records() {
    for shards in shard_counts(SHARDS) {
        let broker = Broker::with(shards, &[]);
        let client = Client::of(&broker);
        client.create_topic("acks", 8, &[]);
        for (round, acks) in ["0", "1", "all"].into_iter().enumerate() {
            let producer = client.producer(&[("acks", acks)]);
            let records: Vec<Send> =
                (0..80).map(|index| Send::value(format!("{acks} {index}")).to(index % 8)).collect();
            client.send(&producer, "acks", &records);
            let wanted = 10 * (round as i64 + 1);
            eventually("the records are stored", || {
                (client.all_offsets("acks", 8) == [(0, wanted); 8]).then_some(())
            });
        }
        let all = client.read("acks", &[5], 30);
        let wanted =
            ["0", "1", "all"].iter().flat_map(|acks| (0..10).map(move |n| format!("{acks} {}", 8 * n + 5)));
        assert_eq!(all.iter().map(|got| got.text()).collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    }
}

#[test]
fn no_more_replicas_are_waited_for_than_there_are() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("born", 1, &[("min.insync.replicas", "2")]);
    client.create_topic("changed", 1, &[]);
    let mut raw = Raw::connect(&broker);
    for demanded in ["2", "7"] {
        raw.set_topic_config("changed", "min.insync.replicas", Some(demanded));
        for topic in ["born", "changed"] {
            let answer = raw.produce(topic, 0, -1, Batch::now(&["whole"]).encode());
            assert_eq!(answer.error_code, 0, "{topic}, {demanded} demanded");
        }
    }
    assert_eq!(
        (client.offsets("born", 0), client.offsets("changed", 0)),
        ((0, 2), (0, 2)),
        "consumers see it"
    );
}

#[test]
fn a_record_above_the_limit_is_too_large_and_one_below_is_not() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("default", 1, &[]);
    client.create_topic("small", 1, &[("max.message.bytes", "10000")]);
    client.create_topic("large", 1, &[("max.message.bytes", "30000000")]);
    let producer = client.producer(&[("message.max.bytes", "31000000"), ("linger.ms", "0")]);
    let send = |topic: &str, len: usize| {
        let result = client.try_send(&producer, topic, &[Send::value(vec![b'x'; len]).to(0)]).remove(0);
        result.map(|(_, offset)| offset).map_err(|error| error.rdkafka_error_code())
    };
    let too_large = Err(Some(RDKafkaErrorCode::MessageSizeTooLarge));
    assert_eq!(send("default", 1_000_000), Ok(0));
    assert_eq!(send("default", 1_048_588), too_large);
    assert_eq!(send("small", 9_900), Ok(0));
    assert_eq!(send("small", 10_000), too_large);
    assert_eq!(send("large", 20_000_000), Ok(0));
    assert_eq!(client.offsets("default", 0), (0, 1));
    let got = client.read("large", &[0], 1);
    assert_eq!(got[0].value.as_ref().map(Vec::len), Some(20_000_000));
    // By the byte: the limit is on the whole batch.
    let mut raw = Raw::connect(&broker);
    let fits = Batch::now(&[&"x".repeat(10_000 - 61 - 20)]).encode();
    let padding = 10_000 - fits.len();
    let exact = Batch::now(&[&"x".repeat(10_000 - 61 - 20 + padding)]).encode();
    let above = Batch::now(&[&"x".repeat(10_000 - 61 - 20 + padding + 1)]).encode();
    assert_eq!((exact.len(), above.len()), (10_000, 10_001));
    assert_eq!(raw.produce("small", 0, 1, exact).error_code, 0);
    assert_eq!(raw.produce("small", 0, 1, above).error_code, MESSAGE_TOO_LARGE);
}

#[test]
fn an_idempotent_producer_is_stored_once_and_in_order() {
    for shards in shard_counts(SHARDS) {
        let broker = Broker::with(shards, &[]);
        let client = Client::of(&broker);
        client.create_topic("once", 4, &[]);
        let producer = client.producer(&[("enable.idempotence", "true"), ("batch.num.messages", "7")]);
        let records: Vec<Send> = (0..400).map(|index| Send::value(index.to_string()).to(index % 4)).collect();
        client.send(&producer, "once", &records);
        for (partition, got) in (0..).zip(client.read_each("once", 4, 400)) {
            let numbers: Vec<String> = got.iter().map(|got| got.text()).collect();
            let wanted: Vec<String> = (0..100).map(|n| (4 * n + partition).to_string()).collect();
            assert_eq!(numbers, wanted, "{shards} shards");
        }
        assert_eq!(client.all_offsets("once", 4), [(0, 100); 4]);
    }
}

#[test]
fn a_repeated_batch_gets_its_first_answer_and_a_gap_is_refused() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("sequence", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let id = raw.producer_id();
    let mut send = |epoch, sequence, count: usize| {
        let values = vec!["v"; count];
        let batch = Batch::now(&values).with_producer(id, epoch, sequence).encode();
        let response = raw.produce("sequence", 0, -1, batch);
        (response.error_code, response.base_offset)
    };
    for batch in 0..6 {
        assert_eq!(send(0, 2 * batch, 2), (0, 2 * i64::from(batch)));
    }
    // The last five are remembered, the one before them is too old to be known again.
    for batch in 1..6 {
        assert_eq!(send(0, 2 * batch, 2), (0, 2 * i64::from(batch)), "batch {batch} again");
    }
    assert_eq!(send(0, 0, 2).0, OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(send(0, 14, 2).0, OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(send(1, 5, 2).0, OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch starts at 0");
    assert_eq!(send(1, 0, 2), (0, 12));
    assert_eq!(send(0, 12, 2).0, INVALID_PRODUCER_EPOCH);
    assert_eq!(send(1, 2, 1), (0, 14));
}

#[test]
fn sequences_wrap_to_zero() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("wrap", 1, &[]);
    let mut raw = Raw::connect(&broker);
    // A producer that the broker does not know may start anywhere.
    let mut send = |sequence, count: usize| {
        let batch = Batch::now(&vec!["v"; count]).with_producer(4_000_000, 0, sequence).encode();
        let response = raw.produce("wrap", 0, -1, batch);
        (response.error_code, response.base_offset)
    };
    assert_eq!(send(i32::MAX - 2, 2), (0, 0));
    assert_eq!(send(i32::MAX, 3), (0, 2));
    assert_eq!(send(2, 1), (0, 5));
}

#[test]
fn wrong_batches_are_refused_each_with_its_code() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("wrong", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let good = Batch::now(&["a", "b"]).encode();
    let patched = |at: usize, bytes: &[u8], sealed: bool| {
        let mut batch = good.to_vec();
        batch[at..at + bytes.len()].copy_from_slice(bytes);
        if sealed {
            seal(&mut batch);
        }
        batch.into()
    };
    let cases = [
        ("a flipped bit", patched(good.len() - 1, &[0x55], false), CORRUPT_MESSAGE),
        ("a wrong checksum", patched(17, &[1, 2, 3, 4], false), CORRUPT_MESSAGE),
        ("a count above the last delta", patched(57, &3_i32.to_be_bytes(), true), INVALID_RECORD),
        ("a last delta above the count", patched(23, &5_i32.to_be_bytes(), true), INVALID_RECORD),
        ("a count of zero", patched(57, &0_i32.to_be_bytes(), true), INVALID_RECORD),
        ("a base offset", patched(0, &7_i64.to_be_bytes(), true), INVALID_RECORD),
        ("a control batch", patched(21, &0x20_i16.to_be_bytes(), true), INVALID_RECORD),
        ("a producer without a sequence", patched(43, &9_i64.to_be_bytes(), true), INVALID_RECORD),
        ("no batch at all", bytes::Bytes::new(), INVALID_RECORD),
        ("two batches", [good.clone(), good.clone()].concat().into(), INVALID_RECORD),
        ("a length beyond the end", patched(8, &10_000_i32.to_be_bytes(), false), INVALID_RECORD),
        ("a length below the head", patched(8, &10_i32.to_be_bytes(), false), CORRUPT_MESSAGE),
    ];
    for (what, batch, code) in cases {
        assert_eq!(raw.produce("wrong", 0, -1, batch).error_code, code, "{what}");
    }
    assert_eq!(raw.produce("wrong", 1, -1, good.clone()).error_code, UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(raw.produce("wrong", 0, 2, good.clone()).error_code, INVALID_REQUIRED_ACKS);
    assert_eq!(raw.produce("wrong", 0, -1, good).base_offset, 0, "none of them was stored");
}

#[test]
fn a_wrong_batch_with_acks_0_closes_the_connection() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("unanswered", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let good = Batch::now(&["a"]).encode();
    raw.send(PRODUCE, &produce("unanswered", 0, 0, good.clone()));
    eventually("stored", || (raw.list_offset(7, "unanswered", -1).offset == 1).then_some(()));
    let mut bad = good.to_vec();
    bad[17] ^= 0xff;
    raw.send(PRODUCE, &produce("unanswered", 0, 0, bad.into()));
    assert_eq!(raw.answer(PATIENCE), Answer::Closed);
}

#[test]
fn timestamps_are_the_topics_choice() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("append", 1, &[("message.timestamp.type", "LogAppendTime")]);
    client.create_topic(
        "bounded",
        1,
        &[("message.timestamp.before.max.ms", "60000"), ("message.timestamp.after.max.ms", "60000")],
    );
    let mut raw = Raw::connect(&broker);
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis()
            as i64;
    for codec in [Codec::None, Codec::Gzip, Codec::Zstd] {
        let response = raw.produce("append", 0, -1, Batch::now(&["a", "b"]).with_codec(codec).encode());
        assert_eq!(response.error_code, 0);
        assert!(
            (response.log_append_time_ms - now).abs() < 60_000,
            "{codec:?}: {}",
            response.log_append_time_ms
        );
    }
    let records = raw.call(FETCH, &fetch("append", &[(0, 0)])).responses[0].partitions[0].records.clone();
    for batch in read_all(&records.expect("records")) {
        assert!((batch.max_timestamp - now).abs() < 60_000, "{batch:?}");
    }
    let mut code =
        |timestamp| raw.produce("bounded", 0, -1, Batch::of(&["a"], timestamp).encode()).error_code;
    assert_eq!(code(now), 0);
    assert_eq!(code(now - 120_000), INVALID_TIMESTAMP);
    assert_eq!(code(now + 120_000), INVALID_TIMESTAMP);
}

#[test]
fn a_keyless_record_on_a_compacted_topic_is_named_in_the_answer() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("compacted", 1, &[("cleanup.policy", "compact")]);
    let mut raw = Raw::connect(&broker);
    for codec in [Codec::None, Codec::Gzip] {
        let mut batch = Batch::now(&["a", "b", "c"]).with_codec(codec);
        batch.records[0].key = Some(b"k".to_vec());
        batch.records[2].key = Some(b"k".to_vec());
        let response = raw.produce("compacted", 0, -1, batch.encode());
        assert_eq!(response.error_code, INVALID_RECORD, "{codec:?}");
        let indexes: Vec<i32> = response.record_errors.iter().map(|error| error.batch_index).collect();
        assert_eq!(indexes, [1], "{codec:?}");
        batch.records[1].key = Some(b"k".to_vec());
        assert_eq!(raw.produce("compacted", 0, -1, batch.encode()).error_code, 0);
    }
}

#[test]
fn pipelined_batches_of_mixed_codecs_keep_their_order() {
    for shards in shard_counts(SHARDS) {
        let broker = Broker::with(shards, &[]);
        Client::of(&broker).create_topic("pipeline", 8, &[("message.timestamp.type", "LogAppendTime")]);
        let mut raw = Raw::connect(&broker);
        let codecs = [Codec::Zstd, Codec::None, Codec::Gzip, Codec::None, Codec::Lz4];
        let padding = "p".repeat(2_000);
        for partition in 0..8 {
            let mut sent = Vec::new();
            for round in 0..40 {
                let values: Vec<String> =
                    (0..20).map(|n| format!("{:06} {padding}", 20 * round + n)).collect();
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                let batch = Batch::now(&values).with_codec(codecs[round % codecs.len()]).encode();
                sent.push(raw.send(PRODUCE, &produce("pipeline", partition, 1, batch)));
                // Five in flight, as producers without idempotence have.
                if sent.len() > 4 {
                    assert_eq!(raw.receive::<ProduceRequest>(PRODUCE).0, sent.remove(0));
                }
            }
            for correlation in sent {
                assert_eq!(raw.receive::<ProduceRequest>(PRODUCE).0, correlation);
            }
            let mut next = 0;
            while next < 800 {
                let response = raw.call(FETCH, &fetch("pipeline", &[(partition, next)]));
                let records = response.responses[0].partitions[0].records.clone().expect("records");
                for batch in read_all(&records) {
                    for (index, value) in batch.values.iter().enumerate() {
                        let text = String::from_utf8_lossy(value.as_deref().unwrap_or_default()).into_owned();
                        let wanted = format!("{:06}", batch.base_offset + index as i64);
                        assert_eq!(&text[..6], wanted, "partition {partition}, {shards} shards");
                    }
                    next = batch.last_offset + 1;
                }
            }
        }
    }
}

#[test]
fn a_topic_with_a_codec_of_its_own_stores_that() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("recoded", 1, &[("compression.type", "zstd")]);
    let mut raw = Raw::connect(&broker);
    for codec in [Codec::None, Codec::Gzip, Codec::Zstd] {
        raw.produce("recoded", 0, -1, Batch::now(&["a", "b", "c"]).with_codec(codec).encode());
    }
    let records = raw.call(FETCH, &fetch("recoded", &[(0, 0)])).responses[0].partitions[0].records.clone();
    let records = records.expect("records");
    let batches = read_all(&records);
    assert_eq!(batches.iter().map(|batch| batch.base_offset).collect::<Vec<_>>(), [0, 3, 6]);
    assert!(batches.iter().all(|batch| batch.values == [b"a", b"b", b"c"].map(|value| Some(value.to_vec()))));
    assert_eq!(records[22] & 7, Codec::Zstd as u8);
}

#[test]
fn a_producer_outlives_the_brokers_restart() {
    let mut broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("outlive", 2, &[]);
    let producer = client.producer(&[("enable.idempotence", "true"), ("message.timeout.ms", "50000")]);
    client.send(&producer, "outlive", &[Send::value("before").to(0)]);
    broker.terminate();
    let waiting: Vec<Send> = (0..50).map(|n| Send::value(n.to_string()).to(0)).collect();
    let restart = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        broker.start_again(3);
        broker
    });
    let sent = client.send(&producer, "outlive", &waiting);
    let broker = restart.join().expect("started again");
    assert_eq!(sent.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), (1..51).collect::<Vec<_>>());
    assert_eq!(Client::of(&broker).offsets("outlive", 0), (0, 51));
}

#[test]
fn an_unknown_topic_is_made_on_first_use_unless_that_is_off() {
    let broker = Broker::with(2, &[("num.partitions", "3")]);
    let client = Client::of(&broker);
    client.send(&client.producer(&[]), "made", &[Send::value("a")]);
    client.await_partitions("made", 3);

    let broker = Broker::with(2, &[("auto.create.topics.enable", "false")]);
    let client = Client::of(&broker);
    let producer = client.producer(&[("topic.metadata.propagation.max.ms", "500")]);
    let result = client.try_send(&producer, "unmade", &[Send::value("a")]).remove(0);
    let code = result.map_err(|error: KafkaError| error.rdkafka_error_code());
    assert_eq!(code, Err(Some(RDKafkaErrorCode::UnknownTopicOrPartition)));
}

#[test]
fn written_bytes_that_wait_for_a_sync_stay_bounded() {
    if Broker::is_kafka() {
        return;
    }
    const PARTITIONS: i32 = 32;
    const BOUND: u64 = 4 << 20;
    let broker = Broker::with(2, &[("kuring.unflushed.bytes", "4194304")]);
    let client = Client::of(&broker);
    client.create_topic("spread", PARTITIONS, &[]);
    let producer = client.producer(&[]);
    // So little of each file that none of them is written back for itself, for half a minute.
    let records: Vec<Send> =
        (0..20 * PARTITIONS).map(|n| Send::value(vec![b'v'; 50_000]).to(n % PARTITIONS)).collect();
    client.send(&producer, "spread", &records);
    let start = Instant::now();
    while metric(&broker, "kuring_log_unflushed_bytes") > BOUND {
        assert!(start.elapsed() < Duration::from_secs(10), "over 4 MiB wait to be synced");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(metric(&broker, "kuring_log_flush_seconds_count") > 0);
}
