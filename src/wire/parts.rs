//! Structures that Produce and Fetch share.

use kafka_protocol::protocol::StrBytes;

use super::read::{DecodeError, Reader};
use super::write::Writer;
use crate::base::{BrokerId, LeaderEpoch, TopicId};

/// How a message names a topic: by name, in newer versions by id (KIP-516). Cloning shares the message's
/// memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TopicRef {
    Name(StrBytes),
    Id(TopicId),
}

impl TopicRef {
    /// Reads a name, or an id where `by_id`.
    pub(super) fn read(reader: &mut Reader<'_>, by_id: bool, flexible: bool) -> Result<Self, DecodeError> {
        if by_id {
            return Ok(Self::Id(reader.topic_id()?));
        }
        read_string(reader, flexible)?.map(Self::Name).ok_or(DecodeError::Null)
    }

    /// The caller answers in the form that it was asked in.
    pub(super) fn write(&self, writer: &mut Writer) {
        match self {
            Self::Name(name) => writer.string(name),
            Self::Id(id) => writer.slice(id.0.as_bytes()),
        }
    }
}

/// A nullable string that shares the message's memory.
pub(super) fn read_string(reader: &mut Reader<'_>, flexible: bool) -> Result<Option<StrBytes>, DecodeError> {
    let Some(raw) = reader.string_bytes(flexible)? else { return Ok(None) };
    StrBytes::from_utf8(raw).map(Some).map_err(|_| DecodeError::Utf8)
}

/// Who leads a partition, told with an error so that the client needs no Metadata request (KIP-951).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CurrentLeader {
    pub id: BrokerId,
    pub epoch: LeaderEpoch,
}

impl CurrentLeader {
    /// Bytes of the tagged field's value.
    const LEN: u32 = 9;

    /// Writes tag, length and value.
    pub(super) fn write_tagged(&self, writer: &mut Writer, tag: u32) {
        writer.varint(tag);
        writer.varint(Self::LEN);
        writer.i32(self.id.0);
        writer.i32(self.epoch.0);
        writer.no_tagged_fields();
    }
}

/// Where a leader listens (KIP-951).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeEndpoint {
    pub id: BrokerId,
    pub host: String,
    pub port: i32,
    pub rack: Option<String>,
}

/// Writes the tagged fields of a response: the endpoints under tag 0 where the version has them and there
/// are any.
pub(super) fn write_endpoints(writer: &mut Writer, endpoints: &[NodeEndpoint], has_field: bool) {
    if !has_field || endpoints.is_empty() {
        writer.no_tagged_fields();
        return;
    }
    writer.varint(1);
    writer.varint(0);
    let len: usize = endpoints.iter().map(endpoint_len).sum();
    writer.varint((compact_len(endpoints.len()) + len) as u32);
    writer.count(endpoints.len());
    for endpoint in endpoints {
        writer.i32(endpoint.id.0);
        writer.string(&endpoint.host);
        writer.i32(endpoint.port);
        writer.nullable_string(endpoint.rack.as_deref());
        writer.no_tagged_fields();
    }
}

fn endpoint_len(endpoint: &NodeEndpoint) -> usize {
    let rack = endpoint.rack.as_ref().map_or(1, |rack| compact_len(rack.len()) + rack.len());
    4 + compact_len(endpoint.host.len()) + endpoint.host.len() + 4 + rack + 1
}

/// Bytes of a compact length, which stands one higher.
fn compact_len(len: usize) -> usize {
    let bits = usize::BITS - (len + 1).leading_zeros();
    bits.div_ceil(7) as usize
}
