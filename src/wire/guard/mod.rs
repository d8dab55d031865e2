//! The gate to the message codecs of kafka-protocol, which allocate from counts on the wire before they
//! look whether the bytes are there: a five-byte request can ask for 300 GB. Every request passes a walk
//! over its schema first, which allocates nothing; only then the codec runs. A request with known tagged fields is not for
//! this gate: the codec reads them without a look at their length, and what follows elsewhere than the walk did. Of those
//! that are served only Fetch has any, and it has a decoder of its own.

mod schema;
#[cfg(test)]
mod tests;

use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::{Encodable, HeaderVersion, Request};

use super::api::{self, Api};
use super::frame::PREFIX_LEN;
use super::header::CorrelationId;
use super::read::{DecodeError, ELEMENTS_MAX, Reader};
use super::write::EncodeError;
use schema::{Field, Kind};

/// Decodes the body of a request of the API `T` in `version`. Strings and bytes share the frame's memory.
/// What follows the last field is ignored, as Kafka does.
pub fn decode<T: Request>(version: i16, body: &Bytes) -> Result<T, DecodeError> {
    let api = check(T::KEY, version, body)?.api;
    T::decode(&mut body.clone(), api.codec_version(version))
        .map_err(|error| DecodeError::Message(error.to_string()))
}

/// The whole frame of a response: size prefix, header and body.
pub fn encode<T: Encodable + HeaderVersion>(
    version: i16,
    correlation_id: CorrelationId,
    response: &T,
) -> Result<Bytes, EncodeError> {
    let mut frame = BytesMut::with_capacity(256);
    frame.extend_from_slice(&[0; PREFIX_LEN]);
    frame.extend_from_slice(&correlation_id.0.to_be_bytes());
    if T::header_version(version) >= 1 {
        frame.extend_from_slice(&[0]);
    }
    response.encode(&mut frame, version).map_err(|error| EncodeError::Message(error.to_string()))?;
    let len = frame.len() - PREFIX_LEN;
    let prefix = i32::try_from(len).map_err(|_| EncodeError::TooLarge(len))?;
    frame[..PREFIX_LEN].copy_from_slice(&prefix.to_be_bytes());
    Ok(frame.freeze())
}

/// A request that passed the walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Checked {
    pub api: &'static Api,
    /// The bytes that its fields take.
    pub len: usize,
}

/// Walks a request of API `key` in `version`. Passes only if every count and length fits in what is there.
pub(super) fn check(key: i16, version: i16, body: &Bytes) -> Result<Checked, DecodeError> {
    let unknown = DecodeError::Version { key, version };
    let api = api::lookup(key, version).map_err(|_| unknown.clone())?;
    let fields = schema::of(api.key).ok_or(unknown)?;
    let mut walk = Walk { version, flexible: version >= api.flexible, elements_left: ELEMENTS_MAX };
    let mut reader = Reader::new(body);
    walk.fields(fields, &mut reader)?;
    Ok(Checked { api, len: reader.position() })
}

struct Walk {
    version: i16,
    flexible: bool,
    elements_left: usize,
}

impl Walk {
    /// The fields of one structure and the tagged fields behind them. Recursion ends with the schema, which
    /// is at most four deep.
    fn fields(&mut self, fields: &[Field], reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        for field in fields {
            if field.is_in(self.version) {
                self.value(field.kind, reader)?;
            }
        }
        if self.flexible {
            self.tagged_fields(reader)?;
        }
        Ok(())
    }

    fn value(&mut self, kind: Kind, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        match kind {
            Kind::Fixed(len) => reader.skip(len),
            Kind::String => reader.string_bytes(self.flexible).map(|_| ()),
            Kind::Bytes => reader.bytes(self.flexible).map(|_| ()),
            Kind::Array(fields) => {
                let count = self.count(self.len_min_of_fields(fields), reader)?;
                (0..count).try_for_each(|_| self.fields(fields, reader))
            }
            Kind::ArrayOf(kind) => {
                let count = self.count(self.len_min(*kind), reader)?;
                (0..count).try_for_each(|_| self.value(*kind, reader))
            }
            Kind::NullableStruct(fields) => match reader.i8()? {
                0.. => self.fields(fields, reader),
                _ => Ok(()),
            },
        }
    }

    fn tagged_fields(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let before = reader.clone();
        reader.skip_tagged_fields(true)?;
        let count = before.clone().varint()?;
        self.spend(count as usize, reader.left())
    }

    /// An array's count, 0 for null.
    fn count(&mut self, element_len_min: usize, reader: &mut Reader<'_>) -> Result<usize, DecodeError> {
        // An element without fields in this version would make any count fit.
        let count = reader.count(self.flexible, element_len_min.max(1))?.unwrap_or(0);
        self.spend(count, reader.left())?;
        Ok(count)
    }

    fn spend(&mut self, elements: usize, left: usize) -> Result<(), DecodeError> {
        match self.elements_left.checked_sub(elements) {
            Some(elements_left) => self.elements_left = elements_left,
            None => return Err(DecodeError::Count { count: elements as u64, left }),
        }
        Ok(())
    }

    /// The fewest bytes that a structure takes on the wire.
    fn len_min_of_fields(&self, fields: &[Field]) -> usize {
        let in_version = fields.iter().filter(|field| field.is_in(self.version));
        in_version.map(|field| self.len_min(field.kind)).sum::<usize>() + usize::from(self.flexible)
    }

    fn len_min(&self, kind: Kind) -> usize {
        match kind {
            Kind::Fixed(len) => len,
            Kind::String if !self.flexible => 2,
            Kind::Bytes | Kind::Array(_) | Kind::ArrayOf(_) if !self.flexible => 4,
            Kind::String | Kind::Bytes | Kind::Array(_) | Kind::ArrayOf(_) | Kind::NullableStruct(_) => 1,
        }
    }
}
