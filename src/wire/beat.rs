//! Heartbeats of group members that say nothing but that they live, and the answers that nothing is new. Nearly all
//! requests are these where there are thousands of members, so they are read and answered without the structures of
//! kafka-protocol. What says more, or cannot be read, is left to [`super::guard`].

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::header::RequestHeader;
use super::parts::read_string;
use super::read::Reader;
use super::write::{EncodeError, Writer};

/// From here on Heartbeat names the static member.
const FIRST_HEARTBEAT_WITH_INSTANCE: i16 = 3;
/// From here on it may be put off.
const FIRST_HEARTBEAT_WITH_THROTTLE: i16 = 1;
/// From here on ConsumerGroupHeartbeat can tell an expression.
const FIRST_CONSUMER_HEARTBEAT_WITH_REGEX: i16 = 1;
/// "Not told" in a request.
const NOT_TOLD: i32 = -1;

/// A sign of life. Its texts share the message's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beat {
    pub group: StrBytes,
    pub member: StrBytes,
    /// Of a static member.
    pub instance: Option<StrBytes>,
    /// The generation of a classic group, the member's epoch of the newer protocol.
    pub epoch: i32,
}

impl Beat {
    /// Reads a Heartbeat.
    pub fn of_classic(header: &RequestHeader, body: &Bytes) -> Option<Self> {
        let flexible = header.version >= header.api.flexible;
        let mut reader = Reader::new(body);
        let group = read_string(&mut reader, flexible).ok()??;
        let epoch = reader.i32().ok()?;
        let member = read_string(&mut reader, flexible).ok()??;
        let instance = match header.version {
            FIRST_HEARTBEAT_WITH_INSTANCE.. => read_string(&mut reader, flexible).ok()?,
            _ => None,
        };
        reader.skip_tagged_fields(flexible).ok()?;
        Some(Self { group, member, instance, epoch })
    }

    /// Reads a ConsumerGroupHeartbeat that tells neither what its member subscribes to nor what it has.
    pub fn of_consumer(header: &RequestHeader, body: &Bytes) -> Option<Self> {
        let mut reader = Reader::new(body);
        let group = read_string(&mut reader, true).ok()??;
        let member = read_string(&mut reader, true).ok()??;
        let epoch = reader.i32().ok()?;
        let instance = read_string(&mut reader, true).ok()?;
        let rack = reader.string_bytes(true).ok()?;
        let rebalance_timeout_ms = reader.i32().ok()?;
        let topic_names = reader.count(true, 1).ok()?;
        let topic_regex = match header.version {
            FIRST_CONSUMER_HEARTBEAT_WITH_REGEX.. => reader.string_bytes(true).ok()?,
            _ => None,
        };
        // A list that is there is not read through.
        if rack.is_some()
            || topic_names.is_some()
            || topic_regex.is_some()
            || rebalance_timeout_ms != NOT_TOLD
        {
            return None;
        }
        let assignor = reader.string_bytes(true).ok()?;
        let owned = reader.count(true, 1).ok()?;
        if assignor.is_some() || owned.is_some() {
            return None;
        }
        reader.skip_tagged_fields(true).ok()?;
        Some(Self { group, member, instance, epoch })
    }

    /// The whole answer to a Heartbeat: no error.
    pub fn classic_answer(header: &RequestHeader) -> Result<Bytes, EncodeError> {
        let mut writer = Writer::response(header.api, header.version, header.correlation_id);
        if header.version >= FIRST_HEARTBEAT_WITH_THROTTLE {
            writer.i32(0);
        }
        writer.i16(0);
        writer.no_tagged_fields();
        writer.finish(0)
    }

    /// The whole answer to a ConsumerGroupHeartbeat: no error, no new assignment.
    pub fn consumer_answer(&self, header: &RequestHeader, interval_ms: i32) -> Result<Bytes, EncodeError> {
        let mut writer = Writer::response(header.api, header.version, header.correlation_id);
        writer.i32(0);
        writer.i16(0);
        writer.nullable_string(None);
        writer.nullable_string(Some(&self.member));
        writer.i32(self.epoch);
        writer.i32(interval_ms);
        // No assignment.
        writer.slice(&(-1i8).to_be_bytes());
        writer.no_tagged_fields();
        writer.finish(0)
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
    use kafka_protocol::messages::{
        ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupId, HeartbeatRequest,
        HeartbeatResponse,
    };
    use kafka_protocol::protocol::{Encodable, Request};

    use super::super::header::CorrelationId;
    use super::super::{api, guard};
    use super::*;

    fn text(text: &'static str) -> StrBytes {
        StrBytes::from_static_str(text)
    }

    fn header<R: Request>(version: i16) -> RequestHeader {
        let api = api::find(R::KEY).unwrap();
        RequestHeader { api, version, correlation_id: CorrelationId(77), client_id: None }
    }

    fn body(request: &impl Encodable, version: i16) -> Bytes {
        let mut body = bytes::BytesMut::new();
        request.encode(&mut body, version).unwrap();
        body.freeze()
    }

    fn beat(instance: Option<&'static str>) -> Beat {
        Beat { group: text("g"), member: text("m-1"), instance: instance.map(text), epoch: 7 }
    }

    #[test]
    fn heartbeats_of_every_version_are_read_and_answered_as_the_whole_codec_does() {
        for version in 0..=4 {
            let header = header::<HeartbeatRequest>(version);
            let instance = (version >= 3).then_some("i");
            let request = HeartbeatRequest::default()
                .with_group_id(GroupId(text("g")))
                .with_member_id(text("m-1"))
                .with_generation_id(7)
                .with_group_instance_id(instance.map(text));
            assert_eq!(Beat::of_classic(&header, &body(&request, version)), Some(beat(instance)));
            let whole = guard::encode(version, CorrelationId(77), &HeartbeatResponse::default());
            assert_eq!(Beat::classic_answer(&header), whole);
        }
        for version in 0..=1 {
            let header = header::<ConsumerGroupHeartbeatRequest>(version);
            let request = quiet().with_instance_id(Some(text("i")));
            assert_eq!(Beat::of_consumer(&header, &body(&request, version)), Some(beat(Some("i"))));
            assert_eq!(Beat::of_consumer(&header, &body(&quiet(), version)), Some(beat(None)));
            let answer = ConsumerGroupHeartbeatResponse::default()
                .with_member_id(Some(text("m-1")))
                .with_member_epoch(7)
                .with_heartbeat_interval_ms(5000);
            let whole = guard::encode(version, CorrelationId(77), &answer);
            assert_eq!(beat(None).consumer_answer(&header, 5000), whole);
        }
    }

    fn quiet() -> ConsumerGroupHeartbeatRequest {
        ConsumerGroupHeartbeatRequest::default()
            .with_group_id(GroupId(text("g")))
            .with_member_id(text("m-1"))
            .with_member_epoch(7)
            .with_rebalance_timeout_ms(-1)
    }

    #[test]
    fn a_heartbeat_that_tells_more_or_is_broken_is_left_to_the_whole_codec() {
        let header = header::<ConsumerGroupHeartbeatRequest>(1);
        let telling = [
            quiet().with_rack_id(Some(text("r"))),
            quiet().with_rebalance_timeout_ms(1),
            quiet().with_subscribed_topic_names(Some(vec![])),
            quiet().with_subscribed_topic_regex(Some(text("a.*"))),
            quiet().with_server_assignor(Some(text("range"))),
            quiet().with_topic_partitions(Some(vec![])),
            quiet().with_topic_partitions(Some(vec![TopicPartitions::default().with_partitions(vec![1])])),
        ];
        for request in telling {
            assert_eq!(Beat::of_consumer(&header, &body(&request, 1)), None, "{request:?}");
        }
        let whole = body(&quiet(), 1);
        for length in 0..whole.len() {
            assert_eq!(Beat::of_consumer(&header, &whole.slice(..length)), None);
        }
    }
}
