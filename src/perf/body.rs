//! Records made once and sent many times. Every record has the same size, so that a batch of `n` records is
//! the beginning of a batch of more.

use super::ProduceLoad;
use crate::base::random::Random;
use crate::client::{ClientError, Result};
use crate::wire::record::{Compression, Compressor, HEAD_LEN, write_record};

/// Bytes at the start of a value that end-to-end runs overwrite with the time the record was due.
pub const STAMP_BYTES: usize = 8;
/// Different bodies, sent in turn.
const BODIES: usize = 16;
/// Bounds the memory of all bodies.
const BODIES_BYTES_MAX: usize = 64 << 20;

/// The bodies of all workers.
#[derive(Debug)]
pub struct Bodies {
    bodies: Vec<Body>,
    compression: Compression,
}

#[derive(Clone, Debug)]
pub struct Body {
    plain: Vec<u8>,
    /// Where each record ends in `plain`.
    ends: Vec<usize>,
    /// Where each record's value begins in `plain`.
    values: Vec<usize>,
    /// All records, compressed.
    compressed: Option<Vec<u8>>,
}

impl Bodies {
    pub fn make(load: &ProduceLoad) -> Result<Self> {
        let count = (BODIES_BYTES_MAX / load.batch_bytes.max(1)).clamp(1, BODIES);
        let mut random = Random::seeded(1);
        let mut bodies = Vec::with_capacity(count);
        for _ in 0..count {
            let mut body = Body::random(load.record_bytes, load.batch_bytes, load.keys, &mut random);
            if load.compression != Compression::NONE {
                body.compressed = Some(compress(load.compression, &body.plain)?);
            }
            bodies.push(body);
        }
        Ok(Self { bodies, compression: load.compression })
    }

    /// The most records of a batch.
    pub fn records_max(&self) -> usize {
        self.bodies[0].ends.len()
    }

    pub fn get(&self, turn: usize) -> &Body {
        &self.bodies[turn % self.bodies.len()]
    }

    pub fn compression(&self) -> Compression {
        self.compression
    }
}

impl Body {
    /// As many records as fit into a batch, at least one. Values are upper-case letters, as those of Kafka's
    /// own load generator: they compress, but not to nothing.
    fn random(record_bytes: usize, batch_bytes: usize, keys: Option<u64>, random: &mut Random) -> Self {
        let mut body = Body { plain: Vec::new(), ends: Vec::new(), values: Vec::new(), compressed: None };
        let mut value = vec![0; record_bytes];
        loop {
            for byte in &mut value {
                *byte = b'A' + random.below(26) as u8;
            }
            let before = body.plain.len();
            let key = keys.map(|keys| random.below(keys.max(1)).to_be_bytes());
            let key = key.as_ref().map(|key| &key[..]);
            write_record(&mut body.plain, 0, body.ends.len() as i32, key, Some(&value), &[]);
            if body.plain.len() + HEAD_LEN > batch_bytes && !body.ends.is_empty() {
                body.plain.truncate(before);
                return body;
            }
            // A header count of one byte follows the value.
            body.values.push(body.plain.len() - 1 - record_bytes);
            body.ends.push(body.plain.len());
        }
    }

    /// The first `count` records, uncompressed.
    pub fn plain(&self, count: usize) -> &[u8] {
        &self.plain[..self.ends[count - 1]]
    }

    /// All records compressed, if `count` is all of them.
    pub fn whole_compressed(&self, count: usize) -> Option<&[u8]> {
        self.compressed.as_deref().filter(|_| count == self.ends.len())
    }

    /// Writes a stamp into the value of a record.
    pub fn stamp(&mut self, record: usize, stamp: u64) {
        let at = self.values[record];
        self.plain[at..at + STAMP_BYTES].copy_from_slice(&stamp.to_be_bytes());
    }
}

pub fn compress(compression: Compression, plain: &[u8]) -> Result<Vec<u8>> {
    let compressed = Compressor::new(compression).and_then(|mut compressor| {
        compressor.write(plain)?;
        compressor.finish()
    });
    compressed.map_err(|error| ClientError::Encode { what: "a batch".into(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::record::{BatchHead, Records};

    #[test]
    fn the_beginning_of_a_body_is_a_body() {
        let mut body = Body::random(100, 2000, Some(7), &mut Random::seeded(1));
        assert!(body.plain.len() + HEAD_LEN <= 2000 && body.plain.len() + HEAD_LEN > 1880);
        body.stamp(3, 0x0102_0304_0506_0708);
        for count in 1..=body.ends.len() {
            let mut head = BatchHead::empty();
            head.set_count(count as i32);
            let records: Vec<_> =
                Records::new(&head, body.plain(count)).collect::<Result<_, _>>().expect("whole");
            assert_eq!(records.len(), count);
            assert!(records.iter().all(|record| record.value.is_some_and(|value| value.len() == 100)));
            if count > 3 {
                assert_eq!(records[3].value.map(|value| &value[..8]), Some(&[1, 2, 3, 4, 5, 6, 7, 8][..]));
            }
        }
    }

    #[test]
    fn a_record_above_the_batch_size_is_alone() {
        let body = Body::random(5000, 2000, None, &mut Random::seeded(1));
        assert_eq!(body.ends.len(), 1);
    }
}
