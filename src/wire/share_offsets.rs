//! The response to DescribeShareGroupOffsets, versions 0 and 1: kafka-protocol 0.18 knows the first only.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::api::find;
use super::header::CorrelationId;
use super::write::{EncodeError, Writer};
use super::{ApiKey, ErrorCode};
use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicId};

/// From here on the lag is told (KIP-1226).
const LAG_VERSION: i16 = 1;

#[derive(Clone, PartialEq, Debug)]
pub struct DescribedOffsets {
    pub throttle_ms: i32,
    pub groups: Vec<DescribedOffsetGroup>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct DescribedOffsetGroup {
    pub id: StrBytes,
    pub error: Option<ErrorCode>,
    pub topics: Vec<(StrBytes, TopicId, Vec<DescribedOffset>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescribedOffset {
    pub partition: PartitionIndex,
    /// -1: the group has not begun to read.
    pub start: Offset,
    pub leader_epoch: LeaderEpoch,
    /// -1: not known.
    pub lag: i64,
    pub error: Option<ErrorCode>,
}

impl DescribedOffset {
    pub fn failed(partition: PartitionIndex, error: ErrorCode) -> Self {
        Self { partition, start: Offset(-1), leader_epoch: LeaderEpoch(0), lag: -1, error: Some(error) }
    }
}

impl DescribedOffsets {
    pub fn encode(&self, version: i16, correlation_id: CorrelationId) -> Result<Bytes, EncodeError> {
        let api = find(ApiKey::DescribeShareGroupOffsets as i16).expect("the API table has it");
        let mut writer = Writer::response(api, version, correlation_id);
        writer.i32(self.throttle_ms);
        writer.count(self.groups.len());
        for group in &self.groups {
            writer.string(&group.id);
            writer.count(group.topics.len());
            for (name, id, partitions) in &group.topics {
                writer.string(name);
                writer.slice(id.0.as_bytes());
                writer.count(partitions.len());
                for partition in partitions {
                    writer.i32(partition.partition.0);
                    writer.i64(partition.start.0);
                    writer.i32(partition.leader_epoch.0);
                    if version >= LAG_VERSION {
                        writer.i64(partition.lag);
                    }
                    write_error(&mut writer, partition.error);
                    writer.no_tagged_fields();
                }
                writer.no_tagged_fields();
            }
            write_error(&mut writer, group.error);
            writer.no_tagged_fields();
        }
        writer.no_tagged_fields();
        writer.finish(0)
    }

    /// Every code in it, `None` for none.
    pub fn errors(&self) -> impl Iterator<Item = Option<ErrorCode>> {
        let of_group = |group: &DescribedOffsetGroup| {
            let partitions = group.topics.iter().flat_map(|(.., partitions)| partitions);
            let codes: Vec<_> = partitions.map(|partition| partition.error).collect();
            std::iter::once(group.error).chain(codes)
        };
        self.groups.iter().flat_map(of_group)
    }
}

fn write_error(writer: &mut Writer, error: Option<ErrorCode>) {
    writer.i16(error.map_or(0, |error| error.code()));
    writer.nullable_string(error.map(|error| error.to_string()).as_deref());
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::DescribeShareGroupOffsetsResponse;
    use kafka_protocol::protocol::Decodable as _;

    use super::*;

    #[test]
    fn the_answer_is_what_the_codec_reads_and_later_has_the_lag() {
        let described = DescribedOffset {
            partition: PartitionIndex(3),
            start: Offset(17),
            leader_epoch: LeaderEpoch(2),
            lag: 9,
            error: None,
        };
        let failed = DescribedOffset::failed(PartitionIndex(4), ErrorCode::UnknownTopicOrPartition);
        let topics = vec![(StrBytes::from_static_str("t"), TopicId::ZERO, vec![described, failed])];
        let group = DescribedOffsetGroup { id: StrBytes::from_static_str("g"), error: None, topics };
        let response = DescribedOffsets { throttle_ms: 0, groups: vec![group] };
        let first = response.encode(0, CorrelationId(1)).expect("encoded");
        let mut body = first.slice(9..);
        let read = DescribeShareGroupOffsetsResponse::decode(&mut body, 0).expect("decoded");
        let partitions = &read.groups[0].topics[0].partitions;
        assert_eq!((partitions[0].start_offset, partitions[0].error_code), (17, 0));
        assert_eq!((partitions[1].start_offset, partitions[1].error_code), (-1, 3));
        let second = response.encode(1, CorrelationId(1)).expect("encoded");
        assert_eq!(second.len(), first.len() + 2 * 8);
        assert_eq!(response.errors().flatten().collect::<Vec<_>>(), [ErrorCode::UnknownTopicOrPartition]);
    }
}
