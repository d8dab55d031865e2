//! The bytes that members of a classic consumer group show each other (Kafka's `ConsumerProtocol`): a two-byte
//! version, then the structure. The broker never looks inside.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::consumer_protocol_assignment::TopicPartition as AssignedTopic;
use kafka_protocol::messages::consumer_protocol_subscription::TopicPartition as OwnedTopic;
use kafka_protocol::messages::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};

use super::assignor::Subscription;
use super::error::{ClientError, Result};
use crate::base::{PartitionIndex, TopicName, TopicPartition};

/// The newest version this module writes and reads.
const VERSION_MAX: i16 = 3;
/// Versions 0–1 do not know the owner's generation.
const GENERATION_UNKNOWN: i32 = -1;

/// What a member puts into its JoinGroup.
pub fn encode_subscription(subscription: &Subscription) -> Result<Bytes> {
    let mut topics: Vec<_> = subscription.topics.iter().map(|topic| text(topic)).collect();
    topics.sort();
    let owned = by_topic(&subscription.owned)
        .map(|(topic, partitions)| {
            OwnedTopic::default().with_topic(text(topic).into()).with_partitions(partitions)
        })
        .collect();
    let message = ConsumerProtocolSubscription::default()
        .with_topics(topics)
        .with_user_data(subscription.user_data.clone())
        .with_owned_partitions(owned)
        .with_generation_id(subscription.generation);
    versioned("subscription", |out| message.encode(out, VERSION_MAX).map_err(|e| e.to_string()))
}

pub fn decode_subscription(bytes: Bytes) -> Result<Subscription> {
    let (version, mut rest) = split_version("subscription", bytes)?;
    let message = ConsumerProtocolSubscription::decode(&mut rest, version)
        .map_err(|error| malformed("subscription", error.to_string()))?;
    let mut owned = Vec::new();
    for topic in message.owned_partitions {
        let name = TopicName::new(&topic.topic.0);
        owned.extend(topic.partitions.iter().map(|&p| TopicPartition::new(name.clone(), PartitionIndex(p))));
    }
    Ok(Subscription {
        topics: message.topics.iter().map(|topic| TopicName::new(topic)).collect(),
        owned,
        generation: if version >= 2 { message.generation_id } else { GENERATION_UNKNOWN },
        user_data: message.user_data,
    })
}

/// What the leader of a group puts into its SyncGroup for one member.
pub fn encode_assignment(partitions: &[TopicPartition], user_data: Option<Bytes>) -> Result<Bytes> {
    let assigned = by_topic(partitions)
        .map(|(topic, partitions)| {
            AssignedTopic::default().with_topic(text(topic).into()).with_partitions(partitions)
        })
        .collect();
    let message =
        ConsumerProtocolAssignment::default().with_assigned_partitions(assigned).with_user_data(user_data);
    versioned("assignment", |out| message.encode(out, VERSION_MAX).map_err(|e| e.to_string()))
}

/// Empty bytes are an empty assignment: a member that joined too late gets them.
pub fn decode_assignment(bytes: Bytes) -> Result<Vec<TopicPartition>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let (version, mut rest) = split_version("assignment", bytes)?;
    let message = ConsumerProtocolAssignment::decode(&mut rest, version)
        .map_err(|error| malformed("assignment", error.to_string()))?;
    let mut partitions = Vec::new();
    for topic in message.assigned_partitions {
        let name = TopicName::new(&topic.topic.0);
        partitions
            .extend(topic.partitions.iter().map(|&p| TopicPartition::new(name.clone(), PartitionIndex(p))));
    }
    Ok(partitions)
}

/// The sticky assignor's user data (`StickyAssignor`, schema version 1): the last assignment and the
/// generation it is from. Unlike the structures above it has no version in front.
pub fn encode_sticky_user_data(owned: &[TopicPartition], generation: i32) -> Bytes {
    let topics: Vec<_> = by_topic(owned).collect();
    let mut out = BytesMut::new();
    out.put_i32(topics.len() as i32);
    for (topic, partitions) in topics {
        out.put_i16(topic.len() as i16);
        out.put_slice(topic.as_bytes());
        out.put_i32(partitions.len() as i32);
        for partition in partitions {
            out.put_i32(partition);
        }
    }
    out.put_i32(generation);
    out.freeze()
}

/// The assignment and generation of [`encode_sticky_user_data`]; `None` when the bytes are something else,
/// which counts as no previous assignment.
pub fn decode_sticky_user_data(mut bytes: Bytes) -> Option<(Vec<TopicPartition>, i32)> {
    let mut owned = Vec::new();
    let topics = bytes.try_get_i32().ok()?;
    for _ in 0..topics {
        let length = usize::try_from(bytes.try_get_i16().ok()?).ok()?;
        if bytes.len() < length {
            return None;
        }
        let topic = TopicName::new(std::str::from_utf8(&bytes.split_to(length)).ok()?);
        let partitions = bytes.try_get_i32().ok()?;
        for _ in 0..partitions {
            owned.push(TopicPartition::new(topic.clone(), PartitionIndex(bytes.try_get_i32().ok()?)));
        }
    }
    let generation = bytes.try_get_i32().unwrap_or(GENERATION_UNKNOWN);
    Some((owned, generation))
}

fn versioned(
    what: &str,
    encode: impl FnOnce(&mut BytesMut) -> std::result::Result<(), String>,
) -> Result<Bytes> {
    let mut out = BytesMut::new();
    out.put_i16(VERSION_MAX);
    encode(&mut out).map_err(|reason| ClientError::Encode { what: what.into(), reason })?;
    Ok(out.freeze())
}

/// A newer version than ours is read as our newest: the format only grows at its end.
fn split_version(what: &str, mut bytes: Bytes) -> Result<(i16, Bytes)> {
    match bytes.try_get_i16() {
        Ok(version) if version >= 0 => Ok((version.min(VERSION_MAX), bytes)),
        Ok(version) => Err(malformed(what, format!("version {version}"))),
        Err(_) => Err(malformed(what, "shorter than its version".into())),
    }
}

fn malformed(what: &str, reason: String) -> ClientError {
    ClientError::Malformed { what: format!("a group member's {what}"), reason }
}

fn by_topic(partitions: &[TopicPartition]) -> impl Iterator<Item = (&TopicName, Vec<i32>)> {
    let mut topics: std::collections::BTreeMap<&TopicName, Vec<i32>> = Default::default();
    for partition in partitions {
        topics.entry(&partition.topic).or_default().push(partition.partition.0);
    }
    topics.into_iter()
}

fn text(name: &str) -> StrBytes {
    StrBytes::from_string(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(topic: &str, index: i32) -> TopicPartition {
        TopicPartition::new(topic, PartitionIndex(index))
    }

    #[test]
    fn a_subscription_comes_back_with_its_version_in_front() {
        let subscription = Subscription {
            topics: vec!["a".into(), "b".into()],
            owned: vec![partition("a", 0), partition("a", 2), partition("b", 1)],
            generation: 7,
            user_data: Some(Bytes::from_static(b"data")),
        };
        let bytes = encode_subscription(&subscription).expect("encodes");
        assert_eq!(&bytes[..2], [0, 3]);
        assert_eq!(decode_subscription(bytes).expect("decodes"), subscription);
    }

    #[test]
    fn the_oldest_subscription_is_read() {
        let bytes = Bytes::from_static(b"\0\0\0\0\0\x01\0\x01t\xff\xff\xff\xff");
        let subscription = decode_subscription(bytes).expect("decodes");
        assert_eq!(subscription.topics, ["t".into()]);
        assert_eq!((subscription.owned, subscription.generation, subscription.user_data), (vec![], -1, None));
    }

    #[test]
    fn an_assignment_comes_back_and_empty_bytes_are_empty() {
        let partitions = vec![partition("a", 0), partition("a", 2), partition("b", 1)];
        let bytes = encode_assignment(&partitions, None).expect("encodes");
        assert_eq!(decode_assignment(bytes).expect("decodes"), partitions);
        assert_eq!(decode_assignment(Bytes::new()).expect("decodes"), []);
        assert!(decode_assignment(Bytes::from_static(b"\0")).is_err());
    }

    #[test]
    fn sticky_user_data_comes_back_and_garbage_is_nothing() {
        let owned = vec![partition("a", 0), partition("b", 1)];
        let bytes = encode_sticky_user_data(&owned, 4);
        assert_eq!(decode_sticky_user_data(bytes.clone()), Some((owned, 4)));
        assert_eq!(decode_sticky_user_data(bytes.slice(..7)), None);
        assert_eq!(decode_sticky_user_data(Bytes::from_static(b"\x7f\xff\xff\xff")), None);
    }
}
