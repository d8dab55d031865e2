//! rust-rdkafka through the scenarios that every client here runs. Arguments: the bootstrap address, then nothing, or
//! "outage" for that scenario alone, or "member" GROUP TOPIC to be a member until it is killed.

mod frame;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::admin::{AdminOptions, AlterConfig, NewPartitions, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders, Timestamp};
use rdkafka::producer::Producer as _;
use rdkafka::{ClientContext, Offset};

use frame::{
    Frame, Member, PATIENCE, Send, at, check_order, eventually, held, poll, put, share, value, values,
};

const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
const SIZES: [usize; 4] = [0, 1, 1_000_000, 20_000_000];
const SIZES_MAX: &str = "25000000";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let mut frame = Frame::new(&arguments[1]);
    match arguments.get(2).map(String::as_str) {
        Some("member") => lost(&frame, &arguments[3], &arguments[4]),
        Some("outage") => {
            frame.scenario("outage", outage);
            frame.exit();
        }
        _ => {}
    }
    frame.scenario("admin", administer);
    for codec in CODECS {
        frame.scenario(&format!("codec-{codec}"), |frame| round_trip(frame, codec));
    }
    frame.scenario("headers-and-nulls", headers_and_nulls);
    frame.scenario("sizes", sizes);
    frame.scenario("too-large", too_large);
    frame.scenario("log-append-time", log_append_time);
    frame.scenario("idempotent", idempotent);
    frame.scenario("transactions", transactions);
    frame.scenario("group-resume", group_resume);
    frame.scenario("group-share", group_share);
    frame.scenario("group-crash", group_crash);
    frame.scenario("group-cooperative", group_cooperative);
    frame.scenario("group-new-protocol", group_new_protocol);
    frame.scenario("group-migration", group_migration);
    frame.scenario("commit-async", commit_async);
    frame.scenario("seek-pause-resume", seek_pause_resume);
    frame.scenario("offsets-by-time", offsets_by_time);
    frame.scenario("delete-records", delete_records);
    frame.scenario("topic-created-again", created_again);
    frame.exit();
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

fn numbered(count: usize, partitions: usize, from: i64) -> Vec<Send> {
    let record =
        |n: usize| Send { partition: (n % partitions) as i32, timestamp: Some(from + n as i64), ..value(n) };
    (0..count).map(record).collect()
}

fn administer(frame: &Frame) {
    let topic = frame.create("admin", 3, &[("retention.ms", "3600000")]);
    assert_eq!(frame.try_create("admin", 1, &[]), Err(RDKafkaErrorCode::TopicAlreadyExists));
    let options = AdminOptions::new();
    let more = NewPartitions::new(&topic, 5);
    let answer = frame.wait(frame.admin.create_partitions([&more], &options)).expect("an answer");
    assert!(answer[0].is_ok(), "{answer:?}");
    eventually("five partitions", || frame.partitions(&topic) == 5);
    let change = AlterConfig::new(ResourceSpecifier::Topic(&topic)).set("cleanup.policy", "compact");
    let answer = frame.wait(frame.admin.alter_configs([&change], &options)).expect("an answer");
    assert!(answer[0].is_ok(), "{answer:?}");
    eventually("the change shows", || {
        let asked = [ResourceSpecifier::Topic(&topic)];
        let answer = frame.wait(frame.admin.describe_configs(&asked, &options)).expect("an answer");
        let config = answer[0].as_ref().expect("described");
        let of = |name: &str| config.get(name).and_then(|entry| entry.value.clone());
        // Not incremental: what is left out is inherited again.
        of("cleanup.policy").as_deref() == Some("compact") && of("retention.ms").as_deref() != Some("3600000")
    });
    let answer = frame.wait(frame.admin.delete_topics(&[&topic], &options)).expect("an answer");
    assert!(answer[0].is_ok(), "{answer:?}");
}

fn round_trip(frame: &Frame, codec: &str) {
    let topic = frame.create(&format!("codec-{codec}"), 4, &[]);
    let start = now_ms();
    let records: Vec<Send> = (0..1000)
        .map(|n: usize| Send {
            partition: (n % 4) as i32,
            key: Some(format!("k{n}").into_bytes()),
            timestamp: Some(start + n as i64),
            ..value(format!("value {n} {}", "x".repeat(n)))
        })
        .collect();
    frame.send(&topic, &records, &[("compression.type", codec), ("linger.ms", "20")]);
    let consumer = frame.consumer("unused", &[]);
    consumer
        .assign(&at(&topic, &[0, 1, 2, 3].map(|partition| (partition, Offset::Beginning))))
        .expect("assigns");
    let mut next = [0, 1, 2, 3];
    for message in poll(&consumer, 1000) {
        let slot = &mut next[message.partition() as usize];
        let wanted: &Send = &records[*slot];
        assert!(message.payload() == wanted.value.as_deref(), "value {slot}");
        assert_eq!(message.key(), wanted.key.as_deref());
        assert_eq!(message.timestamp().to_millis(), wanted.timestamp);
        *slot += 4;
    }
}

fn headers_and_nulls(frame: &Frame) {
    let topic = frame.create("headers", 1, &[]);
    let headers = OwnedHeaders::new()
        .insert(Header { key: "a", value: Some("1") })
        .insert(Header { key: "a", value: None::<&str> })
        .insert(Header { key: "b", value: Some("") });
    let records =
        [Send { headers: Some(headers), ..value("v") }, Send { key: Some(b"k".to_vec()), ..Send::default() }];
    frame.send(&topic, &records, &[]);
    let got = frame.stored(&topic, 2, &[]);
    let found: Vec<(String, Option<Vec<u8>>)> = got[0]
        .headers()
        .expect("headers")
        .iter()
        .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
        .collect();
    let wanted = [("a", Some("1")), ("a", None), ("b", Some(""))];
    let wanted = wanted.map(|(key, value)| (key.to_owned(), value.map(|value| value.as_bytes().to_vec())));
    assert_eq!((got[0].key(), found.as_slice()), (None, wanted.as_slice()));
    assert_eq!((got[1].key(), got[1].payload()), (Some(b"k".as_slice()), None));
}

fn sizes(frame: &Frame) {
    let topic = frame.create("sizes", 1, &[("max.message.bytes", SIZES_MAX)]);
    let sized = |size: usize| vec![(size % 251) as u8; size];
    let records = SIZES.map(|size| Send { value: Some(sized(size)), ..Send::default() });
    frame.send(&topic, &records, &[("message.max.bytes", SIZES_MAX)]);
    let got = frame.stored(&topic, SIZES.len(), &[("fetch.message.max.bytes", "1000")]);
    for (size, message) in SIZES.into_iter().zip(got) {
        assert!(message.payload().unwrap_or_default() == sized(size), "the value of {size} bytes");
    }
}

fn too_large(frame: &Frame) {
    let topic = frame.create("too-large", 1, &[("max.message.bytes", "20000")]);
    let answer = frame.try_send(&topic, &[value("x".repeat(30_000))], &[]);
    let code = answer[0].as_ref().err().and_then(|(error, _)| error.rdkafka_error_code());
    assert_eq!(code, Some(RDKafkaErrorCode::MessageSizeTooLarge));
}

fn log_append_time(frame: &Frame) {
    let topic = frame.create("append-time", 1, &[("message.timestamp.type", "LogAppendTime")]);
    frame.send(&topic, &[Send { timestamp: Some(1000), ..value("v") }], &[]);
    match frame.stored(&topic, 1, &[])[0].timestamp() {
        Timestamp::LogAppendTime(stored) => assert!((stored - now_ms()).abs() < 60_000, "{stored}"),
        other => panic!("{other:?}"),
    }
}

fn idempotent(frame: &Frame) {
    let topic = frame.create("idempotent", 1, &[]);
    let more = [("enable.idempotence", "true"), ("batch.num.messages", "10")];
    let delivered = frame.send(&topic, &numbered(2000, 1, now_ms()), &more);
    assert!(delivered.iter().map(|delivery| delivery.offset).eq(0..2000), "the offsets are not dense");
}

fn transactions(frame: &Frame) {
    let topic = frame.create("txn", 1, &[]);
    let input = frame.create("txn-input", 1, &[]);
    frame.send(&input, &numbered(3, 1, now_ms()), &[]);
    let consumer = frame.member("txn", &input, &[]);
    poll(&consumer, 3);
    let group = consumer.group_metadata().expect("a member");
    let producer = frame.producer(&[("transactional.id", "rdkafka-txn")]);
    producer.init_transactions(PATIENCE).expect("a producer id");
    for outcome in ["committed", "aborted", "committed"] {
        producer.begin_transaction().expect("begins");
        let delivery = put(&producer, &topic, &value(outcome));
        if outcome == "committed" {
            let offsets = consumer.position().expect("a position");
            producer.send_offsets_to_transaction(&offsets, &group, PATIENCE).expect("sends offsets");
            producer.commit_transaction(PATIENCE).expect("commits");
        } else {
            producer.flush(PATIENCE).expect("flushes");
            producer.abort_transaction(PATIENCE).expect("aborts");
        }
        frame.wait(delivery).expect("the producer lives").map_err(|(error, _)| error).expect("delivered");
    }
    let committed = frame.stored(&topic, 2, &[("isolation.level", "read_committed")]);
    assert_eq!(values(&committed), ["committed", "committed"]);
    let all = frame.stored(&topic, 3, &[("isolation.level", "read_uncommitted")]);
    assert_eq!(values(&all), ["committed", "aborted", "committed"]);
    assert_eq!(committed_offset(&consumer, &input).0, Offset::Offset(3));
}

fn committed_offset(consumer: &BaseConsumer, topic: &str) -> (Offset, String) {
    let asked = at(topic, &[(0, Offset::Invalid)]);
    let found = consumer.committed_offsets(asked, PATIENCE).expect("an answer");
    let element = found.find_partition(topic, 0).expect("the partition");
    (element.offset(), element.metadata().to_owned())
}

fn group_resume(frame: &Frame) {
    let topic = frame.create("resume", 3, &[]);
    frame.send(&topic, &numbered(30, 3, now_ms()), &[]);
    let first = frame.member("resume", &topic, &[]);
    poll(&first, 30);
    first.commit_consumer_state(CommitMode::Sync).expect("commits");
    drop(first);
    frame.send(&topic, &[Send { partition: 1, ..value("later") }], &[]);
    assert_eq!(values(&poll(&frame.member("resume", &topic, &[]), 1)), ["later"]);
}

fn group_share(frame: &Frame) {
    let topic = frame.create("share", 4, &[]);
    let (one, two) = (frame.member("share", &topic, &[]), frame.member("share", &topic, &[]));
    share(&[2, 2], &[&one, &two]);
    drop(two);
    share(&[4], &[&one]);
}

const SHORT_SESSION: [(&str, &str); 1] = [("session.timeout.ms", "6000")];

fn lost(frame: &Frame, group: &str, topic: &str) {
    let consumer = frame.member(group, topic, &SHORT_SESSION);
    loop {
        drop(consumer.poll(Duration::from_secs(1)));
    }
}

fn group_crash(frame: &Frame) {
    let topic = frame.create("crash", 4, &[]);
    let other = Member::start("crash", &topic);
    let one = frame.member("crash", &topic, &SHORT_SESSION);
    share(&[2], &[&one]);
    other.kill();
    let killed = Instant::now();
    share(&[4], &[&one]);
    assert!(killed.elapsed() > Duration::from_secs(3), "its session had not ended yet");
}

fn group_cooperative(frame: &Frame) {
    struct Taken(AtomicUsize);
    impl ClientContext for Taken {}
    impl ConsumerContext for Taken {
        fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
            if let Rebalance::Revoke(partitions) = rebalance {
                self.0.fetch_add(partitions.count(), Ordering::Relaxed);
            }
        }
    }
    let topic = frame.create("cooperative", 4, &[]);
    let cooperative = [("partition.assignment.strategy", "cooperative-sticky")];
    let config = [
        ("group.id", "rdkafka-cooperative"),
        ("heartbeat.interval.ms", "200"),
        ("partition.assignment.strategy", "cooperative-sticky"),
    ];
    let one: BaseConsumer<Taken> =
        frame.config(&config).create_with_context(Taken(AtomicUsize::new(0))).expect("a consumer");
    one.subscribe(&[&topic]).expect("subscribes");
    let count = || {
        drop(one.poll(Duration::from_millis(50)));
        one.assignment().expect("an assignment").count()
    };
    eventually("all four", || count() == 4);
    let two = frame.member("cooperative", &topic, &cooperative);
    eventually("two and two", || {
        drop(two.poll(Duration::from_millis(50)));
        count() == 2 && held(&two).len() == 2
    });
    assert_eq!(one.context().0.load(Ordering::Relaxed), 2, "only what goes to the other is taken away");
}

/// A member with KIP-848's protocol, which sets the heartbeats' interval at the broker.
fn modern(frame: &Frame, group: &str, topic: &str) -> BaseConsumer {
    let consumer = frame.consumer(group, &[("group.protocol", "consumer")]);
    consumer.subscribe(&[topic]).expect("subscribes");
    consumer
}

fn group_new_protocol(frame: &Frame) {
    let topic = frame.create("shared-new", 4, &[]);
    frame.send(&topic, &numbered(40, 4, now_ms()), &[]);
    let (one, two) = (modern(frame, "new", &topic), modern(frame, "new", &topic));
    share(&[2, 2], &[&one, &two]);
    for member in [&one, &two] {
        let offsets: Vec<_> = held(member).into_iter().map(|index| (index, Offset::Offset(10))).collect();
        member.commit(&at(&topic, &offsets), CommitMode::Sync).expect("commits");
    }
    drop((one, two));
    let again = modern(frame, "new", &topic);
    share(&[4], &[&again]);
    frame.send(&topic, &[Send { partition: 3, ..value("later") }], &[]);
    assert_eq!(values(&poll(&again, 1)), ["later"]);
}

fn group_migration(frame: &Frame) {
    let topic = frame.create("moved", 4, &[]);
    let one = frame.member("moved", &topic, &[]);
    share(&[4], &[&one]);
    let two = modern(frame, "moved", &topic);
    share(&[2, 2], &[&one, &two]);
    drop(two);
    share(&[4], &[&one]);
}

fn commit_async(frame: &Frame) {
    let topic = frame.create("async", 1, &[]);
    frame.send(&topic, &numbered(10, 1, now_ms()), &[]);
    let consumer = frame.consumer("async", &[]);
    let offsets = at(&topic, &[(0, Offset::Offset(4))]);
    offsets.find_partition(&topic, 0).expect("just added").set_metadata("note");
    consumer.assign(&offsets).expect("assigns");
    consumer.commit(&offsets, CommitMode::Async).expect("queued");
    let reader = frame.consumer("async", &[]);
    eventually("it is committed", || {
        drop(consumer.poll(Duration::from_millis(10)));
        committed_offset(&reader, &topic) == (Offset::Offset(4), "note".to_owned())
    });
}

fn seek_pause_resume(frame: &Frame) {
    let topic = frame.create("seek", 2, &[]);
    let start = now_ms();
    frame.send(&topic, &numbered(20, 2, start), &[]);
    let consumer = frame.consumer("unused", &[]);
    consumer.assign(&at(&topic, &[(0, Offset::Offset(8)), (1, Offset::Beginning)])).expect("assigns");
    let one = at(&topic, &[(1, Offset::Invalid)]);
    consumer.pause(&one).expect("pauses");
    assert_eq!(values(&poll(&consumer, 2)), ["16", "18"]);
    consumer.resume(&one).expect("resumes");
    assert!(poll(&consumer, 10).iter().all(|message| message.partition() == 1), "one is resumed");
    let asked = at(&topic, &[(1, Offset::Offset(start + 19))]);
    let found = consumer.offsets_for_times(asked, PATIENCE).expect("an answer");
    let offset = found.find_partition(&topic, 1).expect("the partition").offset();
    consumer.seek(&topic, 1, offset, PATIENCE).expect("seeks");
    assert_eq!(values(&poll(&consumer, 1)), ["19"]);
}

fn offsets_by_time(frame: &Frame) {
    let topic = frame.create("times", 1, &[("retention.ms", "-1")]);
    for timestamp in [1000, 2000, 3000] {
        frame.send(&topic, &[Send { timestamp: Some(timestamp), ..value("v") }], &[]);
    }
    let consumer = frame.consumer("unused", &[]);
    let offset = |time: i64| {
        let asked = at(&topic, &[(0, Offset::Offset(time))]);
        let found = consumer.offsets_for_times(asked, PATIENCE).expect("an answer");
        found.find_partition(&topic, 0).expect("the partition").offset()
    };
    assert_eq!((offset(1500), offset(3001)), (Offset::Offset(1), Offset::End));
    assert_eq!(consumer.fetch_watermarks(&topic, 0, PATIENCE), Ok((0, 3)));
}

fn delete_records(frame: &Frame) {
    let topic = frame.create("delete-records", 1, &[]);
    frame.send(&topic, &numbered(10, 1, now_ms()), &[]);
    let before = at(&topic, &[(0, Offset::Offset(6))]);
    let answer = frame.wait(frame.admin.delete_records(&before, &AdminOptions::new())).expect("an answer");
    assert_eq!(answer.find_partition(&topic, 0).expect("the partition").offset(), Offset::Offset(6));
    assert_eq!(values(&frame.stored(&topic, 4, &[])), ["6", "7", "8", "9"]);
}

fn created_again(frame: &Frame) {
    let topic = frame.create("again", 1, &[]);
    frame.send(&topic, &numbered(5, 1, now_ms()), &[]);
    let answer = frame.wait(frame.admin.delete_topics(&[&topic], &AdminOptions::new())).expect("an answer");
    assert!(answer[0].is_ok(), "{answer:?}");
    eventually("the name is free", || frame.try_create("again", 1, &[]).is_ok());
    assert_eq!(frame.send(&topic, &[value("new")], &[])[0].offset, 0);
    assert_eq!(values(&frame.stored(&topic, 1, &[])), ["new"]);
}

fn outage(frame: &Frame) {
    let topic = frame.create("outage", 1, &[]);
    let received = Arc::new(Mutex::new(BTreeMap::new()));
    let member = frame.member("outage", &topic, &[]);
    let taken = received.clone();
    std::thread::spawn(move || {
        loop {
            if let Some(Ok(message)) = member.poll(Duration::from_millis(100)) {
                let text = String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
                taken.lock().expect("nobody panics with it").insert(message.offset(), text);
            }
        }
    });
    let producer = frame.producer(&[("enable.idempotence", "true"), ("message.timeout.ms", "150000")]);
    let mut sent = Vec::new();
    while !frame::control("stop").exists() {
        sent.push(put(&producer, &topic, &value(sent.len())));
        if sent.len() == 1 {
            producer.flush(PATIENCE).expect("flushes");
            let name = std::env::var("KURING_CLIENT").expect("KURING_CLIENT");
            std::fs::write(frame::control(&format!("{name}.ready")), b"").expect("writes");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let count = sent.len();
    for delivery in sent {
        let delivered = frame.wait(delivery).expect("the producer lives");
        delivered.map_err(|(error, _): (KafkaError, _)| error).expect("delivered");
    }
    eventually("all is received", || received.lock().expect("nobody panics with it").len() == count);
    let stored = frame.stored(&topic, count, &[]);
    let stored: BTreeMap<i64, String> =
        stored.iter().map(|message| message.offset()).zip(values(&stored)).collect();
    check_order(count, &stored, "stored");
    check_order(count, &received.lock().expect("nobody panics with it"), "received");
}
