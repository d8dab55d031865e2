//! Record batches as clients send them and as files hold them.

use std::task::Poll;

use bytes::Bytes;
use kuring::base::Offset;
use kuring::base::clock::Timestamp;
use kuring::config::{CleanupPolicy, LogConfig, TimestampType, TopicCompression};
use kuring::wire::record::{
    BatchHead, BatchView, Batches, Codec, Compression, Compressor, HEAD_LEN, MAGIC, decompress,
};
use kuring::wire::validate::{Limits, ValidatedBatch, Validation};
use zerocopy::{FromBytes, IntoBytes};

use super::input::Input;

/// What any decompression here may hold.
const DECOMPRESSED_MAX: usize = 1 << 20;

const NOW: Timestamp = Timestamp(1_700_000_000_000);

/// A buffer of batches, every record read.
pub fn batches(data: &[u8]) {
    let mut input = Input::new(data);
    let seals = input.flag();
    let bytes = match seals {
        true => sealed(input.rest()),
        false => input.rest().to_vec(),
    };
    let mut batches = Batches::new(&bytes);
    let mut scratch = Vec::new();
    for batch in batches.by_ref().map_while(Result::ok) {
        let head = batch.head();
        assert_eq!(batch.bytes().len(), head.total_len());
        let intact = batch.check_crc().is_ok();
        if let Ok(records) = batch.records(&mut scratch, DECOMPRESSED_MAX) {
            let mut count = 0;
            for record in records.map_while(Result::ok) {
                count += 1;
                assert_eq!(record.headers.count(), record.headers.len());
            }
            assert!(count <= head.count().max(0));
        }
        if intact {
            let _ = batch.offset_of_max_timestamp(DECOMPRESSED_MAX);
        }
    }
    assert!(batches.position() <= bytes.len());
}

/// The compressed bodies alone.
pub fn codecs(data: &[u8]) {
    let mut input = Input::new(data);
    let codec = Codec::ALL[input.below(Codec::ALL.len())];
    let body = input.rest();
    let mut plain = Vec::new();
    if decompress(codec, body, DECOMPRESSED_MAX, &mut plain).is_err() {
        return;
    }
    assert!(plain.len() <= DECOMPRESSED_MAX);
    let mut compressor = Compressor::new(Compression::of(codec)).expect("the default level exists");
    compressor.write(&plain).expect("memory takes everything");
    let again = compressor.finish().expect("memory takes everything");
    let mut back = Vec::new();
    decompress(codec, &again, DECOMPRESSED_MAX, &mut back).expect("our own stream is whole");
    assert_eq!(back, plain);
}

/// A batch as a producer sends it. What is accepted must be readable, numbered from 0, and accepted again.
pub fn validation(data: &[u8]) {
    let mut input = Input::new(data);
    let version = [3, 7, 13][input.below(3)];
    let config = LogConfig {
        cleanup_policy: CleanupPolicy { delete: true, compact: input.flag() },
        compression: [
            TopicCompression::Producer,
            TopicCompression::Uncompressed,
            TopicCompression::Gzip { level: 1 },
            TopicCompression::Snappy,
            TopicCompression::Lz4 { level: 9 },
            TopicCompression::Zstd { level: 1 },
        ][input.below(6)],
        message_timestamp_type: match input.flag() {
            true => TimestampType::LogAppendTime,
            false => TimestampType::CreateTime,
        },
        max_message_bytes: [1_048_588, 200][input.below(2)],
        ..LogConfig::default()
    };
    let limits =
        Limits { decompressed_bytes_max: DECOMPRESSED_MAX, record_errors_max: 5, ..Limits::default() };
    let budget = 1 + usize::from(input.byte());
    let records = Bytes::from(match input.below(3) {
        0 => input.rest().to_vec(),
        1 => sealed(input.rest()),
        _ => {
            let codec = Codec::ALL[input.below(Codec::ALL.len())];
            compressed(codec, input.rest())
        }
    });

    let start = |records| Validation::start(records, &config, version, NOW, limits);
    let whole = start(records.clone()).and_then(Validation::run_to_end);
    let pieces = start(records).and_then(|mut validation| {
        loop {
            if let Poll::Ready(outcome) = validation.step(budget) {
                return outcome;
            }
        }
    });
    let valid = match (whole, pieces) {
        (Ok(whole), Ok(pieces)) => {
            assert_eq!((whole.head.as_bytes(), &whole.body), (pieces.head.as_bytes(), &pieces.body));
            assert_eq!(whole.max_timestamp_delta, pieces.max_timestamp_delta);
            whole
        }
        (Err(whole), Err(pieces)) => {
            assert_eq!(whole.code, pieces.code);
            return;
        }
        (whole, pieces) => panic!("whole {whole:?}, in pieces {pieces:?}"),
    };
    check_readable(&valid, &config);
    if config.message_timestamp_type == TimestampType::CreateTime {
        let again = Bytes::from([valid.head.as_bytes(), &valid.body].concat());
        let again = Validation::start(again, &config, 13, NOW, limits).and_then(Validation::run_to_end);
        let again = again.expect("what was accepted is accepted again");
        assert_eq!((again.head.as_bytes(), &again.body), (valid.head.as_bytes(), &valid.body));
    }
}

fn check_readable(valid: &ValidatedBatch, config: &LogConfig) {
    let bytes = [valid.head.as_bytes(), &valid.body].concat();
    assert!(bytes.len() <= config.max_message_bytes as usize);
    let view = BatchView::parse(&bytes).expect("an accepted batch is whole");
    view.check_crc().expect("an accepted batch is intact");
    let mut scratch = Vec::new();
    let records = view.records(&mut scratch, DECOMPRESSED_MAX).expect("an accepted batch decompresses");
    let mut next = 0;
    let mut max = Timestamp::NONE;
    for record in records {
        let record = record.expect("an accepted batch is readable");
        assert_eq!(record.offset, Offset(next));
        next += 1;
        max = max.max(record.timestamp);
        assert!(record.key.is_some() || !config.cleanup_policy.compact);
    }
    assert_eq!(next, valid.head.next_offset().0);
    assert_eq!(max, valid.head.max_timestamp());
}

/// `bytes` as one batch whose length, format and checksum are right.
pub fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().max(HEAD_LEN), 0);
    let (head, body) = padded.split_at(HEAD_LEN);
    let mut head = BatchHead::read_from_bytes(head).expect("it has the length of a head");
    head.seal(body);
    let mut sealed = [head.as_bytes(), body].concat();
    sealed[16] = MAGIC as u8;
    sealed
}

/// A head of the input's with the rest compressed behind it.
fn compressed(codec: Codec, bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().max(HEAD_LEN), 0);
    let (head, plain) = padded.split_at(HEAD_LEN);
    let mut head = BatchHead::read_from_bytes(head).expect("it has the length of a head");
    head.set_attributes(head.attributes().with_codec(codec));
    let mut compressor = Compressor::new(Compression::of(codec)).expect("the default level exists");
    compressor.write(plain).expect("memory takes everything");
    let body = compressor.finish().expect("memory takes everything");
    head.seal(&body);
    let mut batch = [head.as_bytes(), &body].concat();
    batch[16] = MAGIC as u8;
    batch
}
