//! The hot paths, each run so many times as it is told: `perf/instructions` counts what they cost under
//! callgrind. What needs a ring is not here, because valgrind has none: these are the parts between the
//! system calls.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{self, TopicName};
use kafka_protocol::protocol::{Encodable, StrBytes};
use kuring::base::clock::{Monotonic, Now, Timestamp};
use kuring::base::random::Random;
use kuring::base::{BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition};
use kuring::config::{Durability, LogConfig, TopicCompression};
use kuring::io::os::OsFiles;
use kuring::log::{Claim, Gaps, Log, LogContext, OpenOptions, Origin};
use kuring::partition::{Acks, Assignment, Brokers, Partition, QueuedAppend, Waterline};
use kuring::timer::Wheel;
use kuring::wire::fetch::{
    FetchPartitionResponse, FetchRequest, FetchResponse, FetchTopicResponse, SessionId,
};
use kuring::wire::header::CorrelationId;
use kuring::wire::parts::TopicRef;
use kuring::wire::produce::{
    ProducePartitionResponse, ProduceRequest, ProduceResponse, ProduceTopicResponse,
};
use kuring::wire::record::{BatchBuilder, Codec, Compression};
use kuring::wire::validate::{Limits, Validation};

const NOW: Now = Now { monotonic: Monotonic::ZERO, wall: Timestamp(1_700_000_000_000) };
const RECORD_BYTES: usize = 1024;
const VERSION: i16 = 12;
const RANGES: i32 = 50;
/// Timers that are in the wheel while others come and go, and how far ahead they lie.
const TIMERS: u64 = 10_000;
const SPAN_MS: u64 = 60_000;

type Named = (&'static str, fn(u64));

/// In the order of a request's way.
const PATHS: [Named; 11] = [
    ("produce-decode", produce_decode),
    ("validate-64k", |times| validate(Codec::None, times)),
    ("validate-64k-lz4", |times| validate(Codec::Lz4, times)),
    ("append-64k", |times| append(63, times)),
    ("append-1k", |times| append(1, times)),
    ("produce-encode", produce_encode),
    ("fetch-decode-50", fetch_decode),
    ("read-tail", read_tail),
    ("fetch-encode-50", fetch_encode),
    ("wheel-insert-cancel", wheel_insert_cancel),
    ("wheel-advance", wheel_advance),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [name, times] => {
            let path = PATHS.iter().find(|(known, _)| known == name);
            match (path, times.parse()) {
                (Some((_, run)), Ok(times)) => return run(times),
                _ => eprintln!("counts: no path {name}, or {times} is no number"),
            }
        }
        [] => return PATHS.iter().for_each(|(name, _)| println!("{name}")),
        _ => eprintln!("usage: counts [PATH TIMES]"),
    }
    std::process::exit(2);
}

fn batch(codec: Codec, records: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Offset::ZERO, Compression::of(codec));
    let mut random = Random::seeded(1);
    for _ in 0..records {
        let value: Vec<u8> =
            (0..RECORD_BYTES).map(|at| if at % 2 == 0 { random.next_u64() as u8 } else { 7 }).collect();
        builder.append(NOW.wall, Some(b"key"), Some(&value), &[]);
    }
    builder.finish().expect("memory takes everything")
}

fn topic() -> TopicName {
    TopicName(StrBytes::from_static_str("a-topic-of-usual-length"))
}

fn encoded(request: &impl Encodable) -> Bytes {
    let mut body = BytesMut::new();
    request.encode(&mut body, VERSION).expect("the version has the fields");
    body.freeze()
}

fn produce_decode(times: u64) {
    let data = PartitionProduceData::default().with_index(0).with_records(Some(batch(Codec::None, 63)));
    let topics = TopicProduceData::default().with_name(topic()).with_partition_data(vec![data]);
    let body = encoded(&messages::ProduceRequest::default().with_acks(-1).with_topic_data(vec![topics]));
    for _ in 0..times {
        black_box(ProduceRequest::decode(VERSION, black_box(&body)).expect("it is sound"));
    }
}

fn validate(codec: Codec, times: u64) {
    let records = batch(codec, 63);
    let config = LogConfig { compression: TopicCompression::Producer, ..LogConfig::default() };
    for _ in 0..times {
        let records = black_box(records.clone());
        let started = Validation::start(records, &config, 13, NOW.wall, Limits::of(&config));
        black_box(started.and_then(Validation::run_to_end).expect("it is sound"));
    }
}

fn partition(dir: &Path) -> Partition<OsFiles, u64> {
    let config = Arc::new(LogConfig::default());
    let options = OpenOptions {
        dir: dir.join("t-0"),
        topic_partition: TopicPartition::new("t", PartitionIndex(0)),
        config: Arc::clone(&config),
        recovery_point: Offset::ZERO,
        log_start: Offset::ZERO,
        cleaned: None,
        gaps: Gaps::BelowRecoveryPoint,
        clean: false,
    };
    let log = Log::open(&Arc::new(LogContext::new(OsFiles)), options, NOW).expect("it is empty");
    let id = TopicId(uuid::Uuid::from_u128(7));
    let mut partition = Partition::resume(log, id, Offset::ZERO, config, Durability::PageCache);
    let me = BrokerId(1);
    let assignment = Assignment {
        leader: Some(me),
        leader_epoch: LeaderEpoch(0),
        partition_epoch: 0,
        replicas: &[me],
        isr: &[me],
    };
    partition.assign(&assignment, &Brokers::new(me, Duration::MAX), NOW, &mut Vec::new());
    partition
}

/// One batch from the queue into the file and its acknowledgement.
fn append_one(partition: &mut Partition<OsFiles, u64>, records: &Bytes, token: u64) {
    let append = QueuedAppend {
        records: records.clone(),
        produce_version: VERSION,
        acks: Acks::All,
        origin: Origin::Client,
        claim: Claim::Unchecked,
        token,
    };
    partition.enqueue(append);
    let mut committed = Vec::new();
    loop {
        let turn = partition.turn(&mut (1 << 20), NOW, &mut committed);
        if turn.prepare {
            let job = partition.log_mut().prepare_job().expect("it asked for one");
            partition.finish_prepare(job.run(), NOW).expect("the disk works");
            continue;
        }
        assert!(!turn.more);
        assert!(matches!(committed.as_slice(), [one] if one.token == token && one.result.is_ok()));
        return;
    }
}

fn append(records: usize, times: u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut partition = partition(dir.path());
    let records = batch(Codec::None, records);
    for token in 0..times {
        append_one(&mut partition, &records, token);
    }
}

fn read_tail(times: u64) {
    const BATCHES: u64 = 500;
    let dir = tempfile::tempdir().expect("a directory");
    let mut partition = partition(dir.path());
    let records = batch(Codec::None, 1);
    for token in 0..BATCHES {
        append_one(&mut partition, &records, token);
    }
    for turn in 0..times {
        let offset = Offset((BATCHES - 1 - turn % 50) as i64);
        let read = partition.read(offset, LeaderEpoch::NONE, 1 << 20, true, Waterline::HighWatermark);
        black_box(read.expect("the offset is there"));
    }
}

fn produce_encode(times: u64) {
    let partitions = vec![ProducePartitionResponse::appended(PartitionIndex(0), Offset(77))];
    let topics = vec![ProduceTopicResponse { topic: TopicRef::Name(topic().0), partitions }];
    let response = ProduceResponse { topics, throttle_ms: 0, node_endpoints: Vec::new() };
    for _ in 0..times {
        black_box(
            black_box(&response).encode(VERSION, CorrelationId(1)).expect("the version has the fields"),
        );
    }
}

fn fetch_decode(times: u64) {
    let partition = |index| FetchPartition::default().with_partition(index).with_partition_max_bytes(1 << 20);
    let topics =
        FetchTopic::default().with_topic(topic()).with_partitions((0..RANGES).map(partition).collect());
    let body = encoded(&messages::FetchRequest::default().with_topics(vec![topics]));
    for _ in 0..times {
        black_box(FetchRequest::decode(VERSION, black_box(&body)).expect("it is sound"));
    }
}

fn fetch_encode(times: u64) {
    let partition = |index| FetchPartitionResponse {
        high_watermark: Offset(77),
        records_len: 1024,
        ..FetchPartitionResponse::failed(PartitionIndex(index), None)
    };
    let partitions = (0..RANGES).map(partition).collect();
    let topics = vec![FetchTopicResponse { topic: TopicRef::Name(topic().0), partitions }];
    let response = FetchResponse { session_id: SessionId(1), topics, ..FetchResponse::default() };
    for _ in 0..times {
        black_box(
            black_box(&response).encode(VERSION, CorrelationId(1)).expect("the version has the fields"),
        );
    }
}

fn full_wheel(random: &mut Random) -> Wheel<u64> {
    let mut wheel = Wheel::new(Monotonic::ZERO);
    for _ in 0..TIMERS {
        wheel.insert(Monotonic::from_millis(1 + random.below(SPAN_MS)), 0);
    }
    wheel
}

fn wheel_insert_cancel(times: u64) {
    let mut random = Random::seeded(1);
    let mut wheel = full_wheel(&mut random);
    for _ in 0..times {
        let key = wheel.insert(Monotonic::from_millis(1 + random.below(SPAN_MS)), 1);
        black_box(wheel.cancel(key));
    }
}

fn wheel_advance(times: u64) {
    let mut random = Random::seeded(1);
    let mut wheel = full_wheel(&mut random);
    let mut expired = Vec::new();
    for now_ms in 1..=times {
        wheel.advance(Monotonic::from_millis(now_ms), &mut expired);
        for value in expired.drain(..) {
            wheel.insert(Monotonic::from_millis(now_ms + 1 + random.below(SPAN_MS)), value);
        }
    }
}
