//! What consumers of the classic protocol say to each other through the coordinator (Kafka's `ConsumerProtocol`): a
//! coordinator that has them in a consumer group speaks for the leader they do not have.

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::super::codec::{Malformed, Reader, Writer};
use super::member::Partitions;
use super::topics::Topics;
use crate::base::PartitionIndex;

/// A `ConsumerProtocolSubscription`, as far as the coordinator needs it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Subscription {
    pub(super) topics: Vec<StrBytes>,
    pub(super) owned: BTreeMap<StrBytes, Vec<PartitionIndex>>,
    pub(super) rack_id: Option<StrBytes>,
}

/// A `ConsumerProtocolAssignment`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Assignment {
    pub(super) partitions: BTreeMap<StrBytes, Vec<PartitionIndex>>,
    /// There is more in it than the coordinator could say: it is an assignor's of the client's own.
    pub(super) has_user_data: bool,
}

pub(super) fn read_subscription(bytes: &[u8]) -> Result<Subscription, Malformed> {
    let mut reader = Reader::new(bytes);
    let version = reader.i16()?;
    let mut subscription = Subscription {
        topics: (0..reader.count()?).map(|_| reader.string()).collect::<Result<_, _>>()?,
        ..Subscription::default()
    };
    // What the client's assignor wants to know.
    reader.nullable_bytes()?;
    // Clients of before the version with the owned partitions may say 1 and end here.
    if version >= 1 && reader.remaining() > 0 {
        subscription.owned = read_partitions(&mut reader)?;
    }
    if version >= 2 && reader.remaining() > 0 {
        reader.i32()?;
    }
    if version >= 3 && reader.remaining() > 0 {
        subscription.rack_id = reader.nullable_string()?.filter(|rack| !rack.is_empty());
    }
    Ok(subscription)
}

/// Nothing is an assignment of nothing.
pub(super) fn read_assignment(bytes: &[u8]) -> Result<Assignment, Malformed> {
    if bytes.is_empty() {
        return Ok(Assignment::default());
    }
    let mut reader = Reader::new(bytes);
    reader.i16()?;
    let partitions = read_partitions(&mut reader)?;
    let has_user_data =
        reader.remaining() > 0 && reader.nullable_bytes()?.is_some_and(|data| !data.is_empty());
    Ok(Assignment { partitions, has_user_data })
}

fn read_partitions(reader: &mut Reader<'_>) -> Result<BTreeMap<StrBytes, Vec<PartitionIndex>>, Malformed> {
    let mut partitions = BTreeMap::new();
    for _ in 0..reader.count()? {
        let topic = reader.string()?;
        let list =
            (0..reader.count()?).map(|_| reader.i32().map(PartitionIndex)).collect::<Result<_, _>>()?;
        partitions.insert(topic, list);
    }
    Ok(partitions)
}

/// By id, without the topics that are not there.
pub(super) fn identified(named: &BTreeMap<StrBytes, Vec<PartitionIndex>>, topics: &Topics) -> Partitions {
    named
        .iter()
        .filter(|(_, partitions)| !partitions.is_empty())
        .filter_map(|(name, partitions)| Some((topics.id(name)?, partitions.iter().copied().collect())))
        .collect()
}

/// A `ConsumerProtocolAssignment` in the version of the member's `subscription`.
pub(super) fn write_assignment(partitions: &Partitions, subscription: &[u8], topics: &Topics) -> Bytes {
    const VERSION_MAX: i16 = 3;
    let version = Reader::new(subscription).i16().unwrap_or(0).clamp(0, VERSION_MAX);
    let named: Vec<_> =
        partitions.iter().filter_map(|(id, partitions)| Some((topics.name(*id)?, partitions))).collect();
    let mut writer = Writer::new(version);
    writer.count(named.len());
    for (name, partitions) in named {
        writer.string(&name).count(partitions.len());
        for partition in partitions {
            writer.i32(partition.0);
        }
    }
    // No user data.
    writer.i32(-1);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_of_every_version_are_read() {
        let name = |text: &'static str| StrBytes::from_static_str(text);
        let plain = [0, 0, 0, 0, 0, 1, 0, 1, b't', 0xff, 0xff, 0xff, 0xff];
        let read = read_subscription(&plain).unwrap();
        assert_eq!(read, Subscription { topics: vec![name("t")], ..Subscription::default() });

        let mut full = vec![0, 3, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 9];
        full.extend([0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 5]);
        full.extend([0, 0, 0, 7, 0, 2, b'r', b'1']);
        let read = read_subscription(&full).unwrap();
        assert_eq!(read.owned, BTreeMap::from([(name("t"), vec![PartitionIndex(4), PartitionIndex(5)])]));
        assert_eq!(read.rack_id, Some(name("r1")));
        assert!(read_subscription(&full[..full.len() - 1]).is_err());
        assert!(read_subscription(&[]).is_err());
    }

    #[test]
    fn an_empty_assignment_is_one_without_partitions() {
        assert_eq!(read_assignment(&[]), Ok(Assignment::default()));
        let written = write_assignment(&Partitions::new(), &[0, 9], &Topics::default());
        assert_eq!(&written[..], [0, 3, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(read_assignment(&written), Ok(Assignment::default()));
    }
}
