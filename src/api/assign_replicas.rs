//! AssignReplicasToDirs 0 (KIP-858) between a broker and the controller, both ends of it. Pure.
//!
//! A frame of `peer` has the key, the version and the correlation of Kafka's headers; the rest of them is in the
//! bodies here.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::assign_replicas_to_dirs_request as asked;
use kafka_protocol::messages::assign_replicas_to_dirs_response as told;
use kafka_protocol::messages::{AssignReplicasToDirsRequest, AssignReplicasToDirsResponse};
use kafka_protocol::protocol::Encodable as _;
use uuid::Uuid;

use super::cluster_view::broker_id;
use crate::base::{BrokerEpoch, BrokerId, PartitionIndex, TopicId};
use crate::metadata::{AssignDirectories, Refusal};
use crate::wire::ErrorCode;
use crate::wire::read::{DecodeError, Reader};
use crate::wire::write::EncodeError;

const VERSION: i16 = 0;
/// No client id, no tagged fields.
const REQUEST_HEADER_REST: [u8; 3] = [0xff, 0xff, 0];
/// No tagged fields.
const ANSWER_HEADER_REST: [u8; 1] = [0];

/// An id, an empty list, no tagged fields.
const GROUP_LEN_MIN: usize = 16 + 1 + 1;

type Replica = (TopicId, PartitionIndex);

/// The replicas of one topic after the other, as they come.
fn by_topic(replicas: &[Replica]) -> impl Iterator<Item = (Uuid, &[Replica])> {
    replicas.chunk_by(|(one, _), (other, _)| one == other).map(|chunk| (chunk[0].0.0, chunk))
}

/// What a broker sends.
///
/// # Errors
/// Never: it has only numbers.
pub fn request(assignment: &AssignDirectories) -> Result<Vec<u8>, EncodeError> {
    let partition = |(_, index): &Replica| asked::PartitionData::default().with_partition_index(index.0);
    let directories = assignment.directories.iter().map(|(directory, replicas)| {
        let topics = by_topic(replicas).map(|(topic, replicas)| {
            asked::TopicData::default()
                .with_topic_id(topic)
                .with_partitions(replicas.iter().map(partition).collect())
        });
        asked::DirectoryData::default().with_id(*directory).with_topics(topics.collect())
    });
    let request = AssignReplicasToDirsRequest::default()
        .with_broker_id(broker_id(assignment.broker))
        .with_broker_epoch(assignment.epoch.0)
        .with_directories(directories.collect());
    let mut body = BytesMut::from(&REQUEST_HEADER_REST[..]);
    request.encode(&mut body, VERSION).map_err(|error| EncodeError::Message(error.to_string()))?;
    Ok(body.to_vec())
}

/// What the controller reads.
pub fn read_request(body: &Bytes) -> Result<AssignDirectories, DecodeError> {
    let mut reader = Reader::new(body);
    reader.nullable_string(false)?;
    reader.skip_tagged_fields(true)?;
    let (broker, epoch) = (BrokerId(reader.i32()?), BrokerEpoch(reader.i64()?));
    let mut directories = Vec::new();
    for _ in 0..reader.elements(true, GROUP_LEN_MIN)? {
        let (directory, mut replicas) = (reader.topic_id()?.0, Vec::new());
        for _ in 0..reader.elements(true, GROUP_LEN_MIN)? {
            let topic = reader.topic_id()?;
            for _ in 0..reader.elements(true, 4 + 1)? {
                replicas.push((topic, PartitionIndex(reader.i32()?)));
                reader.skip_tagged_fields(true)?;
            }
            reader.skip_tagged_fields(true)?;
        }
        reader.skip_tagged_fields(true)?;
        directories.push((directory, replicas));
    }
    reader.skip_tagged_fields(true)?;
    Ok(AssignDirectories { broker, epoch, directories })
}

/// What the controller answers; the results are in the order of the replicas.
///
/// # Errors
/// Never: it has only numbers.
pub fn answer(
    assignment: &AssignDirectories,
    result: &Result<Vec<Result<(), ErrorCode>>, Refusal>,
) -> Result<Vec<u8>, EncodeError> {
    let response = match result {
        Ok(results) => {
            let mut codes = results.iter().map(|result| result.err().map_or(0, |code| code.code()));
            let directories = assignment.directories.iter().map(|(directory, replicas)| {
                let topics = by_topic(replicas).map(|(topic, replicas)| {
                    let partitions = replicas.iter().zip(&mut codes).map(|((_, index), code)| {
                        told::PartitionData::default().with_partition_index(index.0).with_error_code(code)
                    });
                    told::TopicData::default().with_topic_id(topic).with_partitions(partitions.collect())
                });
                told::DirectoryData::default().with_id(*directory).with_topics(topics.collect())
            });
            AssignReplicasToDirsResponse::default().with_directories(directories.collect())
        }
        Err(refusal) => AssignReplicasToDirsResponse::default().with_error_code(refusal.code.code()),
    };
    let mut body = BytesMut::from(&ANSWER_HEADER_REST[..]);
    response.encode(&mut body, VERSION).map_err(|error| EncodeError::Message(error.to_string()))?;
    Ok(body.to_vec())
}

/// What the broker reads: a result for each replica, in the order of the answer.
pub fn read_answer(body: &Bytes) -> Result<Result<Vec<Result<(), ErrorCode>>, ErrorCode>, DecodeError> {
    let mut reader = Reader::new(body);
    reader.skip_tagged_fields(true)?;
    reader.i32()?;
    let refused = result_of(reader.i16()?);
    let mut results = Vec::new();
    for _ in 0..reader.elements(true, GROUP_LEN_MIN)? {
        reader.topic_id()?;
        for _ in 0..reader.elements(true, GROUP_LEN_MIN)? {
            reader.topic_id()?;
            for _ in 0..reader.elements(true, 4 + 2 + 1)? {
                reader.i32()?;
                results.push(result_of(reader.i16()?));
                reader.skip_tagged_fields(true)?;
            }
            reader.skip_tagged_fields(true)?;
        }
        reader.skip_tagged_fields(true)?;
    }
    reader.skip_tagged_fields(true)?;
    Ok(refused.map(|()| results))
}

fn result_of(code: i16) -> Result<(), ErrorCode> {
    match code {
        0 => Ok(()),
        code => Err(ErrorCode::try_from_code(code).unwrap_or(ErrorCode::UnknownServerError)),
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::Decodable as _;

    use super::*;

    fn assignment() -> AssignDirectories {
        let topic = |number| TopicId(Uuid::from_u128(number));
        let replica = |number, index| (topic(number), PartitionIndex(index));
        let first = vec![replica(1, 0), replica(1, 4), replica(2, 0)];
        let directories = vec![
            (Uuid::from_u128(700), first),
            (Uuid::from_u128(701), vec![replica(1, 2)]),
            (Uuid::from_u128(702), Vec::new()),
        ];
        AssignDirectories { broker: BrokerId(3), epoch: BrokerEpoch(77), directories }
    }

    #[test]
    fn an_assignment_comes_back_as_it_was_and_no_part_of_it_passes() {
        let body = Bytes::from(request(&assignment()).unwrap());
        assert_eq!(read_request(&body), Ok(assignment()));
        for end in 0..body.len() {
            assert!(read_request(&body.slice(..end)).is_err(), "{end}");
        }
    }

    #[test]
    fn it_is_kafkas_request() {
        let body = Bytes::from(request(&assignment()).unwrap());
        let mut rest = body.slice(REQUEST_HEADER_REST.len()..);
        let read = AssignReplicasToDirsRequest::decode(&mut rest, VERSION).unwrap();
        assert!(rest.is_empty());
        assert_eq!((read.broker_id.0, read.broker_epoch, read.directories.len()), (3, 77, 3));
        let topics = &read.directories[0].topics;
        assert_eq!(
            (topics.len(), topics[0].topic_id, topics[1].partitions.len()),
            (2, Uuid::from_u128(1), 1)
        );
        assert_eq!(topics[0].partitions[1].partition_index, 4);
    }

    #[test]
    fn each_replica_has_its_answer() {
        let results =
            vec![Ok(()), Err(ErrorCode::UnknownTopicId), Ok(()), Err(ErrorCode::NotLeaderOrFollower)];
        let body = Bytes::from(answer(&assignment(), &Ok(results.clone())).unwrap());
        assert_eq!(read_answer(&body), Ok(Ok(results)));
        for end in 0..body.len() {
            assert!(read_answer(&body.slice(..end)).is_err(), "{end}");
        }
        let mut rest = body.slice(ANSWER_HEADER_REST.len()..);
        let read = AssignReplicasToDirsResponse::decode(&mut rest, VERSION).unwrap();
        assert_eq!((rest.len(), read.directories[0].topics[0].partitions[1].error_code), (0, 100));
        assert_eq!(read.directories[1].id, Uuid::from_u128(701));
        let refusal = Refusal::new(ErrorCode::StaleBrokerEpoch, "no");
        let body = Bytes::from(answer(&assignment(), &Err(refusal)).unwrap());
        assert_eq!(read_answer(&body), Ok(Err(ErrorCode::StaleBrokerEpoch)));
    }
}
