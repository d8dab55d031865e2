//! The compression codecs of batches, as streams: nothing here holds more than a block of decompressed
//! bytes unless the caller asks for all of them, and then within a limit.

use std::io::{self, Cursor, Read, Write};

use super::head::Codec;
use crate::config::TopicCompression;

/// A codec with its level. Levels are Kafka's (`compression.gzip.level`, …); LZ4 and Snappy have one speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compression {
    pub codec: Codec,
    pub level: i32,
}

impl Compression {
    pub const NONE: Compression = Compression { codec: Codec::None, level: 0 };

    /// The codec at Kafka's default level.
    pub fn of(codec: Codec) -> Self {
        let level = match codec {
            Codec::Gzip => -1,
            Codec::Lz4 => 9,
            Codec::Zstd => 3,
            Codec::None | Codec::Snappy => 0,
        };
        Self { codec, level }
    }

    /// What a topic stores of batches that arrive with `source`.
    pub fn for_topic(topic: TopicCompression, source: Codec) -> Self {
        match topic {
            TopicCompression::Producer => Self::of(source),
            TopicCompression::Uncompressed => Self::NONE,
            TopicCompression::Gzip { level } => Self { codec: Codec::Gzip, level },
            TopicCompression::Snappy => Self::of(Codec::Snappy),
            TopicCompression::Lz4 { level } => Self { codec: Codec::Lz4, level },
            TopicCompression::Zstd { level } => Self { codec: Codec::Zstd, level },
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    #[error("{} stream is broken: {source}", .codec.name())]
    Broken { codec: Codec, source: io::Error },
    #[error("decompressed records exceed {limit} bytes")]
    TooLarge { limit: usize },
    #[error("attributes {0:#06x} name no codec")]
    Unknown(i16),
}

/// A reader of the decompressed body of a batch.
pub enum Decompressor<B: AsRef<[u8]>> {
    None(Cursor<B>),
    Gzip(Box<flate2::bufread::MultiGzDecoder<Cursor<B>>>),
    Snappy(SnappyReader<B>),
    Lz4(Box<lz4_flex::frame::FrameDecoder<Cursor<B>>>),
    Zstd(zstd::stream::read::Decoder<'static, Cursor<B>>),
}

/// The largest window a zstd frame may ask for, as a power of two: what zstd's level 22 writes.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

impl<B: AsRef<[u8]>> Decompressor<B> {
    /// Prepares to read `body`, the bytes behind a batch's head.
    pub fn new(codec: Codec, body: B) -> Result<Self, CodecError> {
        let broken = |source| CodecError::Broken { codec, source };
        Ok(match codec {
            Codec::None => Self::None(Cursor::new(body)),
            Codec::Gzip => Self::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(Cursor::new(body)))),
            Codec::Snappy => Self::Snappy(SnappyReader::new(body)),
            Codec::Lz4 => {
                check_lz4_frame(body.as_ref()).map_err(broken)?;
                Self::Lz4(Box::new(lz4_flex::frame::FrameDecoder::new(Cursor::new(body))))
            }
            Codec::Zstd => {
                let mut decoder =
                    zstd::stream::read::Decoder::with_buffer(Cursor::new(body)).map_err(broken)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(broken)?;
                Self::Zstd(decoder)
            }
        })
    }
}

impl<B: AsRef<[u8]>> Read for Decompressor<B> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::None(reader) => reader.read(out),
            Self::Gzip(reader) => reader.read(out),
            Self::Snappy(reader) => reader.read(out),
            Self::Lz4(reader) => reader.read(out),
            Self::Zstd(reader) => reader.read(out),
        }
    }
}

/// Decompresses `body` onto the end of `out`, at most `limit` bytes of it.
pub fn decompress(codec: Codec, body: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let start = out.len();
    let reader = Decompressor::new(codec, body)?;
    // One byte more than allowed shows that there is more.
    let mut bounded = reader.take(limit as u64 + 1);
    bounded.read_to_end(out).map_err(|source| CodecError::Broken { codec, source })?;
    if out.len() - start > limit {
        out.truncate(start);
        return Err(CodecError::TooLarge { limit });
    }
    Ok(())
}

/// Java's clients read only LZ4 frames of version 1 with independent blocks
/// (`org.apache.kafka.common.compress.Lz4BlockInputStream`); storing others would block them.
fn check_lz4_frame(body: &[u8]) -> io::Result<()> {
    const MAGIC: [u8; 4] = 0x184d_2204_u32.to_le_bytes();
    const VERSION_MASK: u8 = 0xc0;
    const VERSION_1: u8 = 0x40;
    const BLOCKS_INDEPENDENT: u8 = 0x20;
    match body {
        [a, b, c, d, flags, ..]
            if [*a, *b, *c, *d] == MAGIC
                && flags & VERSION_MASK == VERSION_1
                && flags & BLOCKS_INDEPENDENT != 0 =>
        {
            Ok(())
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not an LZ4 frame with independent blocks")),
    }
}

/// The header of the block framing that Java's snappy library (xerial) puts around raw snappy: the magic,
/// then two version numbers.
const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const XERIAL_HEADER_LEN: usize = 16;
const XERIAL_BLOCK_LEN: usize = 32 << 10;

/// Reads snappy block by block; a body without the framing is a single raw block.
pub struct SnappyReader<B> {
    body: B,
    position: usize,
    framed: bool,
    block: Vec<u8>,
    given: usize,
}

/// No block of the framing or of raw snappy may decompress to more: both sides work on whole blocks, so
/// this is memory that a single length asks for.
const SNAPPY_BLOCK_LEN_MAX: usize = 128 << 20;

/// Snappy cannot shrink data further: a claim beyond it is a lie, seen before allocation.
const SNAPPY_RATIO_MAX: usize = 64;

impl<B: AsRef<[u8]>> SnappyReader<B> {
    fn new(body: B) -> Self {
        let framed = body.as_ref().len() >= XERIAL_HEADER_LEN && body.as_ref().starts_with(&XERIAL_MAGIC);
        let position = if framed { XERIAL_HEADER_LEN } else { 0 };
        Self { body, position, framed, block: Vec::new(), given: 0 }
    }

    /// Decompresses the next block; false at the end.
    fn next_block(&mut self) -> io::Result<bool> {
        let bad = |what: &'static str| io::Error::new(io::ErrorKind::InvalidData, what);
        let left = &self.body.as_ref()[self.position..];
        if left.is_empty() {
            return Ok(false);
        }
        let (prefix_len, compressed) = if self.framed {
            let prefix = left.first_chunk::<4>().ok_or_else(|| bad("block length is cut off"))?;
            let len =
                usize::try_from(i32::from_be_bytes(*prefix)).map_err(|_| bad("negative block length"))?;
            (4, left[4..].get(..len).ok_or_else(|| bad("block is cut off"))?)
        } else {
            (0, left)
        };
        let len = snap::raw::decompress_len(compressed).map_err(io::Error::other)?;
        if len > SNAPPY_BLOCK_LEN_MAX || len > compressed.len().saturating_mul(SNAPPY_RATIO_MAX) {
            return Err(bad("block claims an impossible length"));
        }
        self.block.resize(len, 0);
        snap::raw::Decoder::new().decompress(compressed, &mut self.block).map_err(io::Error::other)?;
        self.position += prefix_len + compressed.len();
        self.given = 0;
        Ok(true)
    }
}

impl<B: AsRef<[u8]>> Read for SnappyReader<B> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.given == self.block.len() {
            if !self.next_block()? {
                return Ok(0);
            }
        }
        let count = out.len().min(self.block.len() - self.given);
        out[..count].copy_from_slice(&self.block[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

/// Compresses records that come in pieces.
pub enum Compressor {
    None(Vec<u8>),
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Snappy { out: Vec<u8>, block: Vec<u8> },
    Lz4(Box<lz4_flex::frame::FrameEncoder<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Compressor {
    pub fn new(compression: Compression) -> Result<Self, CodecError> {
        let broken = |source| CodecError::Broken { codec: compression.codec, source };
        Ok(match compression.codec {
            Codec::None => Self::None(Vec::new()),
            Codec::Gzip => {
                let level = match compression.level {
                    level @ 0..=9 => flate2::Compression::new(level.unsigned_abs()),
                    _ => flate2::Compression::default(),
                };
                Self::Gzip(flate2::write::GzEncoder::new(Vec::new(), level))
            }
            Codec::Snappy => {
                let mut out = Vec::with_capacity(XERIAL_HEADER_LEN);
                out.extend_from_slice(&XERIAL_MAGIC);
                // Version and the least version that can read it: both 1.
                out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
                Self::Snappy { out, block: Vec::with_capacity(XERIAL_BLOCK_LEN) }
            }
            Codec::Lz4 => {
                let info = lz4_flex::frame::FrameInfo::new()
                    .block_size(lz4_flex::frame::BlockSize::Max64KB)
                    .block_mode(lz4_flex::frame::BlockMode::Independent);
                Self::Lz4(Box::new(lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new())))
            }
            Codec::Zstd => {
                Self::Zstd(zstd::stream::write::Encoder::new(Vec::new(), compression.level).map_err(broken)?)
            }
        })
    }

    /// Takes more uncompressed bytes.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), CodecError> {
        let codec = self.codec();
        let written = match self {
            Self::None(out) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            Self::Gzip(encoder) => encoder.write_all(bytes),
            Self::Snappy { out, block } => {
                while !bytes.is_empty() {
                    let room = XERIAL_BLOCK_LEN - block.len();
                    let (now, later) = bytes.split_at(room.min(bytes.len()));
                    block.extend_from_slice(now);
                    bytes = later;
                    if block.len() == XERIAL_BLOCK_LEN {
                        write_snappy_block(out, block)?;
                    }
                }
                Ok(())
            }
            Self::Lz4(encoder) => encoder.write_all(bytes),
            Self::Zstd(encoder) => encoder.write_all(bytes),
        };
        written.map_err(|source| CodecError::Broken { codec, source })
    }

    /// Compressed bytes written out so far; what the codec still holds back is not counted.
    pub fn len(&self) -> usize {
        match self {
            Self::None(out) => out.len(),
            Self::Gzip(encoder) => encoder.get_ref().len(),
            Self::Snappy { out, .. } => out.len(),
            Self::Lz4(encoder) => encoder.get_ref().len(),
            Self::Zstd(encoder) => encoder.get_ref().len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The compressed body.
    pub fn finish(self) -> Result<Vec<u8>, CodecError> {
        let codec = self.codec();
        let finished = match self {
            Self::None(out) => Ok(out),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Snappy { mut out, mut block } => {
                write_snappy_block(&mut out, &mut block)?;
                Ok(out)
            }
            Self::Lz4(encoder) => encoder.finish().map_err(io::Error::other),
            Self::Zstd(encoder) => encoder.finish(),
        };
        finished.map_err(|source| CodecError::Broken { codec, source })
    }

    fn codec(&self) -> Codec {
        match self {
            Self::None(_) => Codec::None,
            Self::Gzip(_) => Codec::Gzip,
            Self::Snappy { .. } => Codec::Snappy,
            Self::Lz4(_) => Codec::Lz4,
            Self::Zstd(_) => Codec::Zstd,
        }
    }
}

fn write_snappy_block(out: &mut Vec<u8>, block: &mut Vec<u8>) -> Result<(), CodecError> {
    if block.is_empty() {
        return Ok(());
    }
    let broken = |source| CodecError::Broken { codec: Codec::Snappy, source: io::Error::other(source) };
    let prefix = out.len();
    out.resize(prefix + 4 + snap::raw::max_compress_len(block.len()), 0);
    let len = snap::raw::Encoder::new().compress(block, &mut out[prefix + 4..]).map_err(broken)?;
    out.truncate(prefix + 4 + len);
    // A block of 32 KiB never nears 4 GiB.
    out[prefix..prefix + 4].copy_from_slice(&(len as u32).to_be_bytes());
    block.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compress(codec: Codec, pieces: &[&[u8]]) -> Vec<u8> {
        let mut compressor = Compressor::new(Compression::of(codec)).unwrap();
        for piece in pieces {
            compressor.write(piece).unwrap();
        }
        compressor.finish().unwrap()
    }

    fn decompressed(codec: Codec, body: &[u8], limit: usize) -> Result<Vec<u8>, CodecError> {
        let mut out = Vec::new();
        decompress(codec, body, limit, &mut out).map(|()| out)
    }

    proptest! {
        #[test]
        fn bytes_come_back_through_every_codec(
            data in proptest::collection::vec(any::<u8>(), 0..100_000),
            split in 0usize..100_000,
        ) {
            let (first, second) = data.split_at(split.min(data.len()));
            for codec in Codec::ALL {
                let body = compress(codec, &[first, second]);
                prop_assert_eq!(&decompressed(codec, &body, data.len()).unwrap(), &data);
            }
        }

        #[test]
        fn garbage_never_panics(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            for codec in Codec::ALL {
                let _ = decompressed(codec, &data, 1 << 20);
                let framed = [&XERIAL_MAGIC[..], &[0, 0, 0, 1, 0, 0, 0, 1], &data].concat();
                let _ = decompressed(codec, &framed, 1 << 20);
            }
        }
    }

    #[test]
    fn bomb_stops_at_the_limit() {
        let zeros = vec![0; 4 << 20];
        for codec in Codec::ALL {
            let body = compress(codec, &[&zeros]);
            assert!(matches!(decompressed(codec, &body, 1 << 20), Err(CodecError::TooLarge { .. })));
            assert_eq!(decompressed(codec, &body, 4 << 20).unwrap().len(), 4 << 20);
        }
    }

    #[test]
    fn raw_snappy_without_framing_is_read() {
        let raw = snap::raw::Encoder::new().compress_vec(b"hello hello hello hello").unwrap();
        assert_eq!(decompressed(Codec::Snappy, &raw, 100).unwrap(), b"hello hello hello hello");
    }

    #[test]
    fn snappy_block_with_a_lying_length_is_refused_before_allocation() {
        // A raw block that claims 2^32 - 1 bytes.
        let body = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0];
        assert!(matches!(decompressed(Codec::Snappy, &body, 1 << 30), Err(CodecError::Broken { .. })));
    }

    #[test]
    fn truncated_streams_are_errors() {
        let data: Vec<u8> = (0..50_000u32).flat_map(|n| (n * n).to_be_bytes()).collect();
        for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            let body = compress(codec, &[&data]);
            let outcome = decompressed(codec, &body[..body.len() / 2], 1 << 20);
            assert!(matches!(outcome, Err(CodecError::Broken { .. })), "{codec:?}");
        }
    }

    #[test]
    fn lz4_frames_with_linked_blocks_are_refused() {
        let info = lz4_flex::frame::FrameInfo::new().block_mode(lz4_flex::frame::BlockMode::Linked);
        let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(b"linked").unwrap();
        let body = encoder.finish().unwrap();
        assert!(matches!(decompressed(Codec::Lz4, &body, 100), Err(CodecError::Broken { .. })));
    }
}
