//! The hot path's codecs: batches parsed, summed and validated, Produce and Fetch decoded and encoded.
//! `cargo bench --bench wire`.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{self, TopicName};
use kafka_protocol::protocol::{Encodable, StrBytes};
use kuring::base::clock::Timestamp;
use kuring::base::{Offset, PartitionIndex};
use kuring::config::{LogConfig, TopicCompression};
use kuring::wire::fetch::{
    FetchPartitionResponse, FetchRequest, FetchResponse, FetchTopicResponse, SessionId,
};
use kuring::wire::header::CorrelationId;
use kuring::wire::parts::TopicRef;
use kuring::wire::produce::{
    ProducePartitionResponse, ProduceRequest, ProduceResponse, ProduceTopicResponse,
};
use kuring::wire::record::{BatchBuilder, BatchView, Batches, Codec, Compression};
use kuring::wire::validate::{Limits, Validation};

const NOW: Timestamp = Timestamp(1_700_000_000_000);
const RECORD_BYTES: usize = 1024;
const BATCH_RECORDS: usize = 63;
/// Versions that name topics.
const PRODUCE_VERSION: i16 = 12;
const FETCH_VERSION: i16 = 12;
const PARTITIONS: i32 = 50;

/// About 64 KiB of records that compress to a half.
fn batch(codec: Codec) -> Bytes {
    let mut builder = BatchBuilder::new(Offset::ZERO, Compression::of(codec));
    let mut random = kuring::base::random::Random::seeded(1);
    for _ in 0..BATCH_RECORDS {
        let value: Vec<u8> =
            (0..RECORD_BYTES).map(|at| if at % 2 == 0 { random.next_u64() as u8 } else { 7 }).collect();
        builder.append(NOW, Some(b"key"), Some(&value), &[]);
    }
    builder.finish().expect("memory takes everything")
}

fn batches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("batch of 64 KiB");
    let plain = batch(Codec::None);
    group.throughput(Throughput::Bytes(plain.len() as u64));
    group.bench_function("crc", |bencher| {
        let view = BatchView::parse(&plain).expect("it is whole");
        bencher.iter(|| black_box(&view).check_crc());
    });
    group.bench_function("parse", |bencher| {
        bencher.iter(|| Batches::new(black_box(&plain)).filter_map(Result::ok).count());
    });
    group.bench_function("read records", |bencher| {
        let view = BatchView::parse(&plain).expect("it is whole");
        let mut scratch = Vec::new();
        bencher.iter(|| view.records(&mut scratch, 1 << 20).expect("it is plain").count());
    });
    for codec in Codec::ALL {
        let records = batch(codec);
        let config = LogConfig { compression: TopicCompression::Producer, ..LogConfig::default() };
        group.bench_function(format!("validate {}", codec.name()), |bencher| {
            bencher.iter(|| {
                let started =
                    Validation::start(black_box(records.clone()), &config, 13, NOW, Limits::default());
                started.and_then(Validation::run_to_end).expect("it is sound")
            });
        });
    }
    group.finish();
}

fn topic() -> TopicName {
    TopicName(StrBytes::from_static_str("a-topic-of-usual-length"))
}

fn encoded(request: &impl Encodable, version: i16) -> Bytes {
    let mut body = BytesMut::new();
    request.encode(&mut body, version).expect("the version has the fields");
    body.freeze()
}

fn produce(criterion: &mut Criterion) {
    let records = batch(Codec::None);
    let data = PartitionProduceData::default().with_index(0).with_records(Some(records));
    let topics = TopicProduceData::default().with_name(topic()).with_partition_data(vec![data]);
    let request = messages::ProduceRequest::default().with_acks(-1).with_topic_data(vec![topics]);
    let body = encoded(&request, PRODUCE_VERSION);
    criterion.bench_function("Produce request decode, 1 partition", |bencher| {
        bencher.iter(|| ProduceRequest::decode(PRODUCE_VERSION, black_box(&body)).expect("it is sound"));
    });
    let partitions = vec![ProducePartitionResponse::appended(PartitionIndex(0), Offset(77))];
    let topics = vec![ProduceTopicResponse { topic: TopicRef::Name(topic().0), partitions }];
    let response = ProduceResponse { topics, throttle_ms: 0, node_endpoints: Vec::new() };
    criterion.bench_function("Produce response encode, 1 partition", |bencher| {
        bencher.iter(|| black_box(&response).encode(PRODUCE_VERSION, CorrelationId(1)));
    });
}

fn fetch(criterion: &mut Criterion) {
    let partition = |index| FetchPartition::default().with_partition(index).with_partition_max_bytes(1 << 20);
    let topics =
        FetchTopic::default().with_topic(topic()).with_partitions((0..PARTITIONS).map(partition).collect());
    let body = encoded(&messages::FetchRequest::default().with_topics(vec![topics]), FETCH_VERSION);
    criterion.bench_function("Fetch request decode, 50 partitions", |bencher| {
        bencher.iter(|| FetchRequest::decode(FETCH_VERSION, black_box(&body)).expect("it is sound"));
    });
    let partition = |index| FetchPartitionResponse {
        high_watermark: Offset(77),
        records_len: 1024,
        ..FetchPartitionResponse::failed(PartitionIndex(index), None)
    };
    let partitions = (0..PARTITIONS).map(partition).collect();
    let topics = vec![FetchTopicResponse { topic: TopicRef::Name(topic().0), partitions }];
    let response = FetchResponse { session_id: SessionId(1), topics, ..FetchResponse::default() };
    criterion.bench_function("Fetch response encode, 50 partitions", |bencher| {
        bencher.iter(|| black_box(&response).encode(FETCH_VERSION, CorrelationId(1)));
    });
}

criterion_group!(wire, batches, produce, fetch);
criterion_main!(wire);
