//! Record batches (format 2) built and read byte by byte, so that a test may also build wrong ones.

use std::io::{Read as _, Write as _};

use bytes::{BufMut as _, Bytes, BytesMut};

use super::now_ms;

const HEAD_LEN: usize = 61;
/// Where the part that the checksum covers begins: attributes.
const CRC_FROM: usize = 21;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    None = 0,
    Gzip = 1,
    Snappy = 2,
    Lz4 = 3,
    Zstd = 4,
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub codec: Codec,
    pub base_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub is_transactional: bool,
    pub records: Vec<Record>,
}

#[derive(Clone, Debug, Default)]
pub struct Record {
    pub timestamp_delta: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
}

/// A stored batch as a consumer gets it.
#[derive(Debug)]
pub struct Stored {
    pub base_offset: i64,
    pub last_offset: i64,
    pub leader_epoch: i32,
    pub max_timestamp: i64,
    pub offsets: Vec<i64>,
    pub values: Vec<Option<Vec<u8>>>,
}

impl Batch {
    /// One record for each value, without keys, producer or compression, all at `timestamp`.
    pub fn of(values: &[&str], timestamp: i64) -> Self {
        let record = |value: &&str| Record { value: Some(value.as_bytes().to_vec()), ..Record::default() };
        Self {
            codec: Codec::None,
            base_timestamp: timestamp,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            is_transactional: false,
            records: values.iter().map(record).collect(),
        }
    }

    /// [`Batch::of`] at the present time: old records may be deleted while a test runs.
    pub fn now(values: &[&str]) -> Self {
        Self::of(values, now_ms())
    }

    pub fn with_codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    pub fn with_producer(mut self, id: i64, epoch: i16, sequence: i32) -> Self {
        (self.producer_id, self.producer_epoch, self.base_sequence) = (id, epoch, sequence);
        self
    }

    pub fn transactional(mut self) -> Self {
        self.is_transactional = true;
        self
    }

    pub fn encode(&self) -> Bytes {
        let mut records = Vec::new();
        for (index, record) in self.records.iter().enumerate() {
            let mut body = vec![0];
            put_varint(&mut body, record.timestamp_delta);
            put_varint(&mut body, index as i64);
            put_bytes(&mut body, record.key.as_deref());
            put_bytes(&mut body, record.value.as_deref());
            put_varint(&mut body, 0);
            put_varint(&mut records, body.len() as i64);
            records.extend(body);
        }
        let records = compress(self.codec, &records);
        let deltas = self.records.iter().map(|record| record.timestamp_delta);
        let mut batch = BytesMut::with_capacity(HEAD_LEN + records.len());
        batch.put_i64(0);
        batch.put_i32((HEAD_LEN - 12 + records.len()) as i32);
        batch.put_i32(-1);
        batch.put_u8(2);
        batch.put_u32(0);
        batch.put_i16(self.codec as i16 | i16::from(self.is_transactional) << 4);
        batch.put_i32(self.records.len() as i32 - 1);
        batch.put_i64(self.base_timestamp);
        batch.put_i64(self.base_timestamp + deltas.max().unwrap_or(0));
        batch.put_i64(self.producer_id);
        batch.put_i16(self.producer_epoch);
        batch.put_i32(self.base_sequence);
        batch.put_i32(self.records.len() as i32);
        batch.put_slice(&records);
        seal(&mut batch);
        batch.freeze()
    }
}

/// Writes the checksum of what the batch holds now.
pub fn seal(batch: &mut [u8]) {
    let crc = crc32c::crc32c(&batch[CRC_FROM..]);
    batch[17..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
}

/// The whole batches of a fetch response; a cut one at the end is left out, as clients do.
pub fn read_all(mut bytes: &[u8]) -> Vec<Stored> {
    let mut found = Vec::new();
    while bytes.len() >= HEAD_LEN {
        let len = 12 + be_i32(bytes, 8) as usize;
        if bytes.len() < len {
            break;
        }
        let (batch, rest) = bytes.split_at(len);
        found.push(read(batch));
        bytes = rest;
    }
    found
}

fn read(batch: &[u8]) -> Stored {
    assert_eq!(batch[16], 2, "the magic of a stored batch");
    let crc = u32::from_be_bytes(batch[17..CRC_FROM].try_into().expect("four bytes"));
    assert_eq!(crc, crc32c::crc32c(&batch[CRC_FROM..]), "the checksum of a stored batch");
    let records = decompress(be_i16(batch, 21) & 7, &batch[HEAD_LEN..]);
    let mut rest = records.as_slice();
    let records: Vec<_> = (0..be_i32(batch, 57)).map(|_| read_record(&mut rest)).collect();
    assert!(rest.is_empty(), "{} bytes after the last record", rest.len());
    let base_offset = be_i64(batch, 0);
    Stored {
        base_offset,
        last_offset: base_offset + i64::from(be_i32(batch, 23)),
        leader_epoch: be_i32(batch, 12),
        max_timestamp: be_i64(batch, 35),
        offsets: records.iter().map(|(delta, _)| base_offset + delta).collect(),
        values: records.into_iter().map(|(_, value)| value).collect(),
    }
}

/// The offset delta and the value.
fn read_record(rest: &mut &[u8]) -> (i64, Option<Vec<u8>>) {
    let len = take_varint(rest) as usize;
    let (mut record, after) = rest.split_at(len);
    *rest = after;
    record = &record[1..];
    take_varint(&mut record);
    let delta = take_varint(&mut record);
    take_bytes(&mut record);
    (delta, take_bytes(&mut record).map(<[u8]>::to_vec))
}

fn compress(codec: Codec, records: &[u8]) -> Vec<u8> {
    match codec {
        Codec::None => records.to_vec(),
        Codec::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(records).expect("writes to memory");
            encoder.finish().expect("writes to memory")
        }
        Codec::Snappy => snap::raw::Encoder::new().compress_vec(records).expect("fits in memory"),
        Codec::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(records).expect("writes to memory");
            encoder.finish().expect("writes to memory")
        }
        Codec::Zstd => zstd::encode_all(records, 1).expect("reads from memory"),
    }
}

fn decompress(codec: i16, records: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match codec {
        0 => plain.extend(records),
        1 => drop(flate2::read::GzDecoder::new(records).read_to_end(&mut plain).expect("gzip")),
        2 => plain = snap::raw::Decoder::new().decompress_vec(records).expect("snappy"),
        3 => drop(lz4_flex::frame::FrameDecoder::new(records).read_to_end(&mut plain).expect("lz4")),
        4 => plain = zstd::decode_all(records).expect("zstd"),
        other => panic!("codec {other}"),
    }
    plain
}

fn put_varint(buffer: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        buffer.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    buffer.push(rest as u8);
}

fn put_bytes(buffer: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => {
            put_varint(buffer, bytes.len() as i64);
            buffer.extend(bytes);
        }
        None => put_varint(buffer, -1),
    }
}

fn take_varint(rest: &mut &[u8]) -> i64 {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = rest[0];
        *rest = &rest[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take_varint(rest)).ok()?;
    let (bytes, after) = rest.split_at(len);
    *rest = after;
    Some(bytes)
}

fn be_i16(bytes: &[u8], at: usize) -> i16 {
    i16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn be_i32(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be_i64(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
