use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::base::{ProducerEpoch, ProducerId};
use crate::config::{CleanupPolicy, TopicCompression};
use crate::wire::record::{BatchBuilder, Compression};

const NOW: Timestamp = Timestamp(1_700_000_000_000);

fn records_of(codec: Codec, values: &[&[u8]]) -> BatchBuilder {
    let mut builder = BatchBuilder::new(Offset(0), Compression::of(codec));
    for (index, value) in values.iter().enumerate() {
        builder.append(Timestamp(NOW.0 - 10 + index as i64), Some(b"key"), Some(value), &[]);
    }
    builder
}

fn batch(codec: Codec) -> Bytes {
    records_of(codec, &[b"one", b"two", b"three"]).finish().unwrap()
}

fn validate(records: Bytes, config: &LogConfig) -> Result<ValidatedBatch, RecordError> {
    Validation::start(records, config, 9, NOW, Limits::of(config))?.run_to_end()
}

fn code_of(records: Bytes, config: &LogConfig) -> ErrorCode {
    validate(records, config).unwrap_err().code
}

/// Changes the head of a batch and seals it again.
fn with_head(batch: &Bytes, change: impl FnOnce(&mut BatchHead)) -> Bytes {
    let (mut head, body) = BatchHead::read_from_prefix(batch).unwrap();
    change(&mut head);
    head.seal(body);
    [head.as_bytes(), body].concat().into()
}

fn joined(batch: &ValidatedBatch) -> Bytes {
    [batch.head.as_bytes(), &batch.body].concat().into()
}

fn values_of(batch: &ValidatedBatch) -> Vec<Vec<u8>> {
    let bytes = joined(batch);
    let view = BatchView::parse(&bytes).unwrap();
    view.check_crc().unwrap();
    let mut scratch = Vec::new();
    let records = view.records(&mut scratch, 1 << 30).unwrap();
    records
        .enumerate()
        .map(|(index, record)| {
            let record = record.unwrap();
            assert_eq!(record.offset_delta, index as i32);
            record.value.unwrap().to_vec()
        })
        .collect()
}

fn compacted() -> LogConfig {
    LogConfig { cleanup_policy: CleanupPolicy { delete: false, compact: true }, ..LogConfig::default() }
}

#[test]
fn batch_of_every_codec_passes_with_the_clients_bytes() {
    for codec in Codec::ALL {
        let records = batch(codec);
        let validated = validate(records.clone(), &LogConfig::default()).unwrap();
        assert_eq!(joined(&validated), records);
        assert_eq!(validated.body.as_ptr(), records[HEAD_LEN..].as_ptr(), "{codec:?} is not a slice");
        assert_eq!((validated.codec(), validated.max_timestamp_delta), (codec, 2));
        assert_eq!(validated.len(), records.len());
    }
}

#[test]
fn validation_in_small_steps_comes_to_the_same_end() {
    let value = vec![7; 100_000];
    for codec in Codec::ALL {
        let records = records_of(codec, &[&value, b"x", &value]).finish().unwrap();
        let mut validation =
            Validation::start(records.clone(), &LogConfig::default(), 9, NOW, Limits::default()).unwrap();
        let mut steps = 1;
        let outcome = loop {
            match validation.step(1000) {
                Poll::Ready(outcome) => break outcome,
                Poll::Pending => steps += 1,
            }
        };
        assert_eq!(joined(&outcome.unwrap()), records);
        assert!(steps > 5, "{codec:?} took {steps} steps");
    }
}

#[test]
fn exactly_one_batch_is_taken() {
    let config = LogConfig::default();
    let one = batch(Codec::None);
    assert_eq!(code_of(Bytes::new(), &config), ErrorCode::InvalidRecord);
    assert_eq!(code_of(one.slice(..40), &config), ErrorCode::InvalidRecord);
    assert_eq!(code_of(one.slice(..one.len() - 1), &config), ErrorCode::InvalidRecord);
    assert_eq!(code_of([&one[..], &one[..]].concat().into(), &config), ErrorCode::InvalidRecord);
    // A torn second batch is cut off.
    let torn = Bytes::from([&one[..], &one[..30]].concat());
    assert_eq!(joined(&validate(torn, &config).unwrap()), one);
}

#[test]
fn old_and_impossible_formats_are_told_apart() {
    let config = LogConfig::default();
    for (magic, code) in [
        (0, ErrorCode::InvalidRecord),
        (1, ErrorCode::InvalidRecord),
        (3, ErrorCode::CorruptMessage),
        (255, ErrorCode::CorruptMessage),
    ] {
        let mut records = batch(Codec::None).to_vec();
        records[16] = magic;
        assert_eq!(code_of(records.into(), &config), code, "{magic}");
    }
    let mut records = batch(Codec::None).to_vec();
    records[8..12].copy_from_slice(&10i32.to_be_bytes());
    assert_eq!(code_of(records.into(), &config), ErrorCode::CorruptMessage);
}

#[test]
fn flipped_bit_is_a_corrupt_message() {
    let whole = batch(Codec::Lz4);
    for at in [21, 40, 60, 61, whole.len() - 1] {
        let mut records = whole.to_vec();
        records[at] ^= 4;
        let code = code_of(records.into(), &LogConfig::default());
        // A bit of the count or the offsets is found before the checksum is computed.
        assert!(matches!(code, ErrorCode::CorruptMessage | ErrorCode::InvalidRecord), "{at} {code}");
    }
    let mut records = whole.to_vec();
    *records.last_mut().unwrap() ^= 1;
    assert_eq!(code_of(records.into(), &LogConfig::default()), ErrorCode::CorruptMessage);
}

#[test]
fn head_must_be_a_clients() {
    let config = LogConfig::default();
    let whole = batch(Codec::None);
    type Change = fn(&mut BatchHead);
    let changes: [(&str, Change); 8] = [
        ("base offset", |head| head.set_base_offset(Offset(1))),
        ("count 0", |head| head.set_count(0)),
        ("negative count", |head| head.set_count(-3)),
        ("count and offsets differ", |head| head.set_last_offset_delta(3)),
        ("negative delta", |head| head.set_last_offset_delta(-1)),
        ("control", |head| head.set_attributes(head.attributes().with_control(true))),
        ("no sequence", |head| head.set_producer(ProducerId(1), ProducerEpoch(0), -1)),
        ("transaction without producer", |head| {
            head.set_attributes(head.attributes().with_transactional(true))
        }),
    ];
    for (name, change) in changes {
        assert_eq!(code_of(with_head(&whole, change), &config), ErrorCode::InvalidRecord, "{name}");
    }
    let append_time = with_head(&whole, |head| {
        head.set_attributes(head.attributes().with_timestamp_type(TimestampType::LogAppendTime))
    });
    assert_eq!(code_of(append_time, &config), ErrorCode::InvalidTimestamp);
    let producer = with_head(&whole, |head| head.set_producer(ProducerId(1), ProducerEpoch(0), 0));
    assert!(validate(producer, &config).is_ok());
}

#[test]
fn more_or_fewer_records_than_counted_are_refused() {
    for codec in Codec::ALL {
        for count in [2, 4] {
            let records = with_head(&batch(codec), |head| {
                head.set_count(count);
                head.set_last_offset_delta(count - 1);
            });
            assert_eq!(
                code_of(records, &LogConfig::default()),
                ErrorCode::InvalidRecord,
                "{codec:?} {count}"
            );
        }
    }
}

#[test]
fn batch_above_the_limit_is_too_large() {
    let records = batch(Codec::None);
    let fits = LogConfig { max_message_bytes: records.len() as u32, ..LogConfig::default() };
    assert!(validate(records.clone(), &fits).is_ok());
    let small = LogConfig { max_message_bytes: records.len() as u32 - 1, ..LogConfig::default() };
    assert_eq!(code_of(records.clone(), &small), ErrorCode::MessageTooLarge);
    let segment = LogConfig { segment_bytes: records.len() as u32 - 1, ..LogConfig::default() };
    assert_eq!(code_of(records, &segment), ErrorCode::RecordListTooLarge);
}

#[test]
fn keyless_records_of_a_compacted_topic_are_named() {
    for codec in Codec::ALL {
        let mut builder = records_of(codec, &[b"fine"]);
        builder.append(NOW, None, Some(b"keyless"), &[]);
        builder.append(NOW, Some(b"k"), None, &[]);
        builder.append(NOW, None, None, &[]);
        let records = builder.finish().unwrap();
        assert!(validate(records.clone(), &LogConfig::default()).is_ok());
        let error = validate(records, &compacted()).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRecord);
        let places: Vec<i32> = error.record_errors.iter().map(|(index, _)| *index).collect();
        assert_eq!(places, [1, 3], "{codec:?}");
    }
}

#[test]
fn number_of_named_records_is_bounded() {
    let mut builder = records_of(Codec::None, &[]);
    (0..5000).for_each(|_| builder.append(NOW, None, Some(b"v"), &[]));
    let error = validate(builder.finish().unwrap(), &compacted()).unwrap_err();
    assert_eq!(error.record_errors.len(), Limits::default().record_errors_max);
    assert!(error.message.unwrap().contains("5000"));
}

#[test]
fn create_time_must_lie_within_bounds() {
    let config = LogConfig {
        message_timestamp_before_max_ms: 1000,
        message_timestamp_after_max_ms: 500,
        ..LogConfig::default()
    };
    let one = |timestamp: i64| {
        let mut builder = BatchBuilder::new(Offset(0), Compression::NONE);
        builder.append(Timestamp(timestamp), Some(b"k"), None, &[]);
        builder.finish().unwrap()
    };
    for timestamp in [NOW.0 - 1000, NOW.0, NOW.0 + 500, -1] {
        assert!(validate(one(timestamp), &config).is_ok(), "{timestamp}");
    }
    for timestamp in [NOW.0 - 1001, NOW.0 + 501, i64::MAX, 0] {
        let error = validate(one(timestamp), &config).unwrap_err();
        assert_eq!((error.code, error.record_errors.len()), (ErrorCode::InvalidTimestamp, 1));
    }
    let append_time = LogConfig { message_timestamp_type: TimestampType::LogAppendTime, ..config };
    assert!(validate(one(5), &append_time).is_ok());
}

#[test]
fn append_time_is_written_into_the_head_and_sealed() {
    let config = LogConfig { message_timestamp_type: TimestampType::LogAppendTime, ..LogConfig::default() };
    for codec in Codec::ALL {
        let records = batch(codec);
        let validated = validate(records.clone(), &config).unwrap();
        assert_eq!(validated.head.attributes().timestamp_type(), TimestampType::LogAppendTime);
        assert_eq!((validated.head.max_timestamp(), validated.max_timestamp_delta), (NOW, 0));
        assert_eq!(validated.body.as_ptr(), records[HEAD_LEN..].as_ptr());
        assert_eq!(values_of(&validated), [&b"one"[..], b"two", b"three"]);
    }
}

#[test]
fn wrong_maximum_timestamp_is_corrected() {
    let records = with_head(&batch(Codec::None), |head| head.set_max_timestamp(Timestamp(5)));
    let validated = validate(records, &LogConfig::default()).unwrap();
    assert_eq!(validated.head.max_timestamp(), Timestamp(NOW.0 - 8));
    assert_eq!(joined(&validated), batch(Codec::None));
}

#[test]
fn topic_with_its_own_codec_stores_in_that_codec() {
    let targets = [
        (TopicCompression::Uncompressed, Codec::None),
        (TopicCompression::Gzip { level: 6 }, Codec::Gzip),
        (TopicCompression::Snappy, Codec::Snappy),
        (TopicCompression::Lz4 { level: 9 }, Codec::Lz4),
        (TopicCompression::Zstd { level: 3 }, Codec::Zstd),
    ];
    for source in Codec::ALL {
        for (compression, target) in targets {
            let config = LogConfig { compression, ..LogConfig::default() };
            let records = batch(source);
            let validated = validate(records.clone(), &config).unwrap();
            assert_eq!(validated.codec(), target);
            assert_eq!(values_of(&validated), [&b"one"[..], b"two", b"three"]);
            if source == target {
                assert_eq!(joined(&validated), records);
            }
        }
    }
}

#[test]
fn batch_that_grows_over_the_limit_when_recompressed_is_too_large() {
    let zeros = vec![0; 900_000];
    let records = records_of(Codec::Zstd, &[&zeros, &zeros]).finish().unwrap();
    let config = LogConfig { compression: TopicCompression::Uncompressed, ..LogConfig::default() };
    assert_eq!(code_of(records, &config), ErrorCode::MessageTooLarge);
}

#[test]
fn zstd_needs_produce_version_seven() {
    let start = |version| {
        Validation::start(batch(Codec::Zstd), &LogConfig::default(), version, NOW, Limits::default())
    };
    assert_eq!(start(6).map(|_| ()).unwrap_err().code, ErrorCode::UnsupportedCompressionType);
    assert!(start(7).is_ok());
    let unknown = with_head(&batch(Codec::None), |head| {
        head.set_attributes(crate::wire::record::Attributes(7));
    });
    assert_eq!(code_of(unknown, &LogConfig::default()), ErrorCode::UnsupportedCompressionType);
}

#[test]
fn bomb_is_refused_at_the_limit() {
    let zeros = vec![0; 3 << 20];
    for codec in [Codec::Gzip, Codec::Lz4, Codec::Zstd, Codec::Snappy] {
        let records = records_of(codec, &[&zeros]).finish().unwrap();
        let limits = Limits { decompressed_bytes_max: 1 << 20, ..Limits::default() };
        let validation = Validation::start(records, &LogConfig::default(), 9, NOW, limits).unwrap();
        assert_eq!(validation.run_to_end().unwrap_err().code, ErrorCode::InvalidRecord, "{codec:?}");
    }
}

#[test]
fn bomb_is_refused_by_its_ratio_though_its_size_is_allowed() {
    let zeros = vec![0; 24 << 20];
    let records = records_of(Codec::Zstd, &[&zeros]).finish().unwrap();
    let config = LogConfig { max_message_bytes: 32 << 20, ..LogConfig::default() };
    let error = validate(records.clone(), &config).unwrap_err();
    assert_eq!((error.code, error.bound), (ErrorCode::InvalidRecord, Some(BatchBound::Decompression)));
    let lenient = LogConfig { decompression_ratio_max: 1 << 20, ..config };
    assert!(validate(records, &lenient).is_ok());
    let small = records_of(Codec::Zstd, &[&zeros[..8 << 20]]).finish().unwrap();
    assert!(validate(small, &LogConfig { decompression_ratio_max: 1, ..LogConfig::default() }).is_ok());
}

#[test]
fn batch_of_too_many_records_is_refused_before_it_is_read() {
    let config = LogConfig { batch_records_max: 2, ..LogConfig::default() };
    let three = records_of(Codec::None, &[b"a", b"b", b"c"]).finish().unwrap();
    assert_eq!(validate(three, &config).unwrap_err().bound, Some(BatchBound::Records));
    let two = records_of(Codec::None, &[b"a", b"b"]).finish().unwrap();
    assert!(validate(two, &config).is_ok());
}

#[test]
fn record_above_the_decompressed_limit_is_refused_when_compressed() {
    let config = LogConfig { max_decompressed_message_bytes: 100, ..LogConfig::default() };
    for codec in Codec::ALL {
        let records = records_of(codec, &[b"small", &[7; 200]]).finish().unwrap();
        let refused = codec != Codec::None;
        let outcome = validate(records, &config);
        assert_eq!(outcome.is_err_and(|error| error.code == ErrorCode::InvalidRecord), refused, "{codec:?}");
    }
}

#[test]
fn records_with_wrong_offsets_are_renumbered() {
    for codec in Codec::ALL {
        let mut builder = BatchBuilder::new(Offset(0), Compression::of(codec));
        builder.append_at(Offset(1), NOW, None, Some(b"a"), &[Header { key: b"h", value: None }]);
        builder.append_at(Offset(5), NOW, None, Some(b"b"), &[]);
        builder.set_last_offset(Offset(1));
        let validated = validate(builder.finish().unwrap(), &LogConfig::default()).unwrap();
        assert_eq!(values_of(&validated), [b"a", b"b"]);
        assert_eq!(validated.codec(), codec);
    }
}

#[test]
fn broken_stream_with_a_right_checksum_is_invalid() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let whole = batch(codec);
        let (mut head, body) = BatchHead::read_from_prefix(&whole).unwrap();
        let cut = &body[..body.len() / 2];
        head.seal(cut);
        let records = Bytes::from([head.as_bytes(), cut].concat());
        assert_eq!(code_of(records, &LogConfig::default()), ErrorCode::InvalidRecord, "{codec:?}");
    }
}

proptest! {
    /// Damage behind the head with the checksum made right again: nothing panics, and what passes reads.
    #[test]
    fn hostile_bodies_never_panic_and_what_passes_can_be_read(
        codec in 0i16..5, at: prop::sample::Index, bytes in proptest::collection::vec(any::<u8>(), 1..20),
        step in 1usize..200,
    ) {
        let whole = batch(Codec::from_id(codec).unwrap());
        let (mut head, body) = BatchHead::read_from_prefix(&whole).unwrap();
        let mut body = body.to_vec();
        let at = at.index(body.len());
        let len = bytes.len().min(body.len() - at);
        body[at..at + len].copy_from_slice(&bytes[..len]);
        head.seal(&body);
        let records = Bytes::from([head.as_bytes(), &body[..]].concat());
        let config = LogConfig { message_timestamp_after_max_ms: i64::MAX, ..LogConfig::default() };
        let mut validation = Validation::start(records, &config, 9, NOW, Limits::default()).unwrap();
        let outcome = loop {
            if let Poll::Ready(outcome) = validation.step(step) {
                break outcome;
            }
        };
        if let Ok(validated) = outcome {
            let bytes = joined(&validated);
            let view = BatchView::parse(&bytes).unwrap();
            prop_assert!(view.check_crc().is_ok());
            let mut scratch = Vec::new();
            let records = view.records(&mut scratch, 1 << 30).unwrap();
            prop_assert_eq!(records.filter(|record| record.is_ok()).count(), 3);
        }
    }
}
