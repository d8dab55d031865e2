//! Writes the frames of the requests and responses that have codecs of our own.

use bytes::{BufMut, Bytes, BytesMut};

use super::api::Api;
use super::frame::PREFIX_LEN;
use super::header::CorrelationId;

/// A response that cannot be sent. Both are the caller's mistake, not the client's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("response of {0} bytes exceeds what a frame can say")]
    TooLarge(usize),
    #[error("response does not encode: {0}")]
    Message(String),
}

/// A frame in the making: size prefix, response header, then big-endian fields with legacy or compact
/// lengths.
#[derive(Debug)]
pub struct Writer {
    out: BytesMut,
    flexible: bool,
}

impl Writer {
    /// Starts the answer to a request of `api` in `version`.
    pub fn response(api: &Api, version: i16, correlation_id: CorrelationId) -> Self {
        let mut writer = Self { out: BytesMut::with_capacity(256), flexible: version >= api.flexible };
        writer.i32(0);
        writer.i32(correlation_id.0);
        if api.response_header_version(version) >= 1 {
            writer.varint(0);
        }
        writer
    }

    /// Starts a request of `api` in `version`.
    pub fn request(api: &Api, version: i16, correlation_id: CorrelationId, client_id: &str) -> Self {
        let mut writer = Self { out: BytesMut::with_capacity(256), flexible: false };
        writer.i32(0);
        writer.i16(api.key as i16);
        writer.i16(version);
        writer.i32(correlation_id.0);
        // The client id keeps its legacy length in every header.
        writer.string(client_id);
        writer.flexible = version >= api.flexible;
        if api.request_header_version(version) >= 2 {
            writer.varint(0);
        }
        writer
    }

    /// Bytes written so far, prefix and all.
    pub fn position(&self) -> usize {
        self.out.len()
    }

    /// The whole frame. `elsewhere` counts bytes of it that the caller sends from another place.
    pub fn finish(mut self, elsewhere: usize) -> Result<Bytes, EncodeError> {
        let len = self.out.len() - PREFIX_LEN + elsewhere;
        let prefix = i32::try_from(len).map_err(|_| EncodeError::TooLarge(len))?;
        self.out[..PREFIX_LEN].copy_from_slice(&prefix.to_be_bytes());
        Ok(self.out.freeze())
    }

    pub fn i8(&mut self, value: i8) {
        self.out.put_i8(value);
    }

    pub fn i16(&mut self, value: i16) {
        self.out.put_i16(value);
    }

    pub fn i32(&mut self, value: i32) {
        self.out.put_i32(value);
    }

    pub fn i64(&mut self, value: i64) {
        self.out.put_i64(value);
    }

    pub fn slice(&mut self, bytes: &[u8]) {
        self.out.put_slice(bytes);
    }

    pub fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.out.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.put_u8(value as u8);
    }

    /// The length of an array, or of bytes that follow.
    ///
    /// # Panics
    /// From 2^31 - 1 on, which no response comes near.
    pub fn count(&mut self, count: usize) {
        let count = u32::try_from(count).expect("response arrays are bounded far below 2^31");
        match self.flexible {
            true => self.varint(count + 1),
            false => self.i32(i32::try_from(count).expect("response arrays are bounded far below 2^31")),
        }
    }

    pub fn null_count(&mut self) {
        match self.flexible {
            true => self.varint(0),
            false => self.i32(-1),
        }
    }

    pub fn string(&mut self, text: &str) {
        // A legacy string holds 32,767 bytes. Names are shorter; of a message the rest is dropped.
        let text = &text[..text.floor_char_boundary(i16::MAX as usize)];
        match self.flexible {
            true => self.varint(text.len() as u32 + 1),
            false => self.i16(text.len() as i16),
        }
        self.slice(text.as_bytes());
    }

    pub fn nullable_string(&mut self, text: Option<&str>) {
        match (text, self.flexible) {
            (Some(text), _) => self.string(text),
            (None, true) => self.varint(0),
            (None, false) => self.i16(-1),
        }
    }

    /// Ends a structure that has no tagged field; writes nothing in a version without them.
    pub fn no_tagged_fields(&mut self) {
        if self.flexible {
            self.varint(0);
        }
    }
}
