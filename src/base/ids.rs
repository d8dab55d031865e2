//! Identifiers as types, so that two bare integers never stand side by side.

use std::fmt;
use std::sync::Arc;

macro_rules! integer_id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }
    };
}

integer_id! {
    /// The position of a record in its partition; the first is 0.
    Offset(i64)
}
integer_id! {
    /// The number of a partition within its topic.
    PartitionIndex(i32)
}
integer_id! {
    /// Counts the leaderships of a partition; -1 on the wire stands for "not known".
    LeaderEpoch(i32)
}
integer_id! {
    /// A node of the cluster (`node.id`).
    BrokerId(i32)
}
integer_id! {
    /// One registration of a broker with the controller; a restart gets a higher one.
    BrokerEpoch(i64)
}
integer_id! {
    /// An executor pinned to one core. Shard 0 also hosts the controller and the coordinators.
    ShardId(u16)
}
integer_id! {
    /// An idempotent or transactional producer; -1 on the wire stands for "none".
    ProducerId(i64)
}
integer_id! {
    /// Counts the incarnations of one producer id.
    ProducerEpoch(i16)
}

impl Offset {
    pub const ZERO: Offset = Offset(0);
    /// What lies above it in a file or a replica's answer is damage: no log gets there by appends (a billion a second take
    /// 146 years), and below it no sum of offsets overflows.
    pub const MAX: Offset = Offset(1 << 62);

    /// The offset `count` records further on.
    pub fn plus(self, count: i64) -> Offset {
        Offset(self.0 + count)
    }
}

impl LeaderEpoch {
    /// "Not known" on the wire and in files.
    pub const NONE: LeaderEpoch = LeaderEpoch(-1);
}

impl ProducerId {
    /// A batch without a producer.
    pub const NONE: ProducerId = ProducerId(-1);

    pub fn is_some(self) -> bool {
        self.0 >= 0
    }
}

impl ShardId {
    /// The shard of the controller and the coordinators.
    pub const CONTROL: ShardId = ShardId(0);

    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A topic's name. Cheap to clone and to send to another shard.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

impl TopicName {
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::ops::Deref for TopicName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for TopicName {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// A topic's identity; survives neither deletion nor re-creation under the same name (KIP-516).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TopicId(pub uuid::Uuid);

impl TopicId {
    /// "Not known" on the wire.
    pub const ZERO: TopicId = TopicId(uuid::Uuid::nil());

    pub fn is_zero(self) -> bool {
        self.0.is_nil()
    }
}

/// Kafka prints ids as unpadded URL-safe base64, also in `partition.metadata`
/// (`org.apache.kafka.common.Uuid`).
impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let bits = self.0.as_u128();
        for index in 0..22 {
            let shift = 122 - 6 * index;
            let six = if shift >= 0 { bits >> shift } else { bits << -shift };
            let letter = ALPHABET[(six & 63) as usize];
            fmt::Write::write_char(f, char::from(letter))?;
        }
        Ok(())
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for TopicId {
    type Err = InvalidTopicId;

    fn from_str(text: &str) -> Result<Self, InvalidTopicId> {
        let mut bits: u128 = 0;
        if text.len() != 22 {
            return Err(InvalidTopicId);
        }
        for (index, byte) in text.bytes().enumerate() {
            let six = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'-' => 62,
                b'_' => 63,
                _ => return Err(InvalidTopicId),
            };
            if index < 21 {
                bits = bits << 6 | u128::from(six);
            } else if six & 15 == 0 {
                bits = bits << 2 | u128::from(six >> 4);
            } else {
                return Err(InvalidTopicId);
            }
        }
        Ok(TopicId(uuid::Uuid::from_u128(bits)))
    }
}

/// The text is not 22 letters of URL-safe base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a topic id: 22 letters of URL-safe base64 are wanted")]
pub struct InvalidTopicId;

/// A partition by name. On disk its directory is `topic-partition`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    pub topic: TopicName,
    pub partition: PartitionIndex,
}

impl TopicPartition {
    pub fn new(topic: impl Into<TopicName>, partition: PartitionIndex) -> Self {
        Self { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

impl fmt::Debug for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_id_text_is_kafkas() {
        let id = TopicId(uuid::Uuid::from_u128(0x0000_0000_0000_0000_0000_0000_0000_0001));
        assert_eq!(id.to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        let id = TopicId(uuid::Uuid::from_u128(u128::MAX));
        assert_eq!(id.to_string(), "_____________________w");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("_____________________x".parse::<TopicId>(), Err(InvalidTopicId));
    }
}
