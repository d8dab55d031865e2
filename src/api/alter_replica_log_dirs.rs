//! AlterReplicaLogDirs 1–2 (KIP-113): moves replicas of this broker, whoever leads, to other log directories
//! (`ReplicaManager.alterReplicaLogDirs`). The answer comes when the move has begun; DescribeLogDirs shows how it
//! goes.

use std::collections::BTreeMap;
use std::path::Path;

use kafka_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use kafka_protocol::messages::{AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, TopicName};

use super::Client;
use super::client::find_replica;
use super::shares::{Place, Shares};
use crate::base::{PartitionIndex, TopicPartition};
use crate::shard::Directories;
use crate::shard::messages::{Reply, Request};
use crate::wire::ErrorCode;

/// Of a name in a directory.
const NAME_BYTES_MAX: usize = 255;

/// What stands behind the partition in the name of a copy: `.<32 digits>-future`.
const FUTURE_MARK_BYTES: usize = 40;

pub async fn handle(client: &Client, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse {
    let image = client.shard.image();
    let directories = &client.shard.settings().directories;
    let mut response = AlterReplicaLogDirsResponse::default();
    let mut shares = Shares::new();
    for ((topic, index), to) in wanted(directories, request) {
        let is_new = response.results.last().is_none_or(|last| last.topic_name != topic);
        if is_new {
            let result = AlterReplicaLogDirTopicResult::default().with_topic_name(topic.clone());
            response.results.push(result);
        }
        let Some(last) = response.results.len().checked_sub(1) else { continue };
        let partitions = &mut response.results[last].partitions;
        let mut answer = AlterReplicaLogDirPartitionResult::default().with_partition_index(index);
        let target = destination(directories, &topic, index, to).and_then(|to| {
            let topic_image = image.topic(&topic).ok_or(ErrorCode::UnknownTopicOrPartition);
            let found =
                topic_image.and_then(|found| find_replica(&client.shard, found, PartitionIndex(index)));
            found.map(|found| (found, to)).map_err(|code| {
                // It goes there when it comes to be.
                let name = TopicPartition::new(&**topic, PartitionIndex(index));
                if !directories.prefer(name, to) {
                    client.shard.counters.directories_not_preferred.increment();
                    tracing::warn!("too many partitions that do not exist have a directory to go to");
                }
                match code {
                    ErrorCode::NotLeaderOrFollower => ErrorCode::ReplicaNotAvailable,
                    code => code,
                }
            })
        });
        match target {
            Ok((found, to)) => {
                let place = Place { topic: last, partition: partitions.len() };
                shares.add(found.owner, place, (found.key, to));
            }
            Err(code) => answer.error_code = code.code(),
        }
        partitions.push(answer);
    }
    let answers = shares.ask(&client.shard, Request::AlterDirectories, |reply| match reply {
        Reply::AlterDirectories(begun) => Some(begun),
        _ => None,
    });
    for (Place { topic, partition }, begun) in answers.await {
        if let Err(code) = begun {
            response.results[topic].partitions[partition].error_code = code.code();
        }
    }
    response
}

/// Each partition and the number of the directory that it was named with last, as in Kafka's map; `None`: there is
/// no such directory.
fn wanted(
    directories: &Directories,
    request: AlterReplicaLogDirsRequest,
) -> BTreeMap<(TopicName, i32), Option<usize>> {
    let mut wanted = BTreeMap::new();
    for dir in request.dirs {
        let to = directories.number_of(Path::new(&*dir.path));
        for topic in dir.topics {
            wanted.extend(topic.partitions.iter().map(|&index| ((topic.name.clone(), index), to)));
        }
    }
    wanted
}

fn destination(
    directories: &Directories,
    topic: &TopicName,
    index: i32,
    to: Option<usize>,
) -> Result<usize, ErrorCode> {
    if topic.len() + 1 + index.to_string().len() + FUTURE_MARK_BYTES > NAME_BYTES_MAX {
        return Err(ErrorCode::InvalidTopicException);
    }
    let to = to.ok_or(ErrorCode::LogDirNotFound)?;
    if directories.has_failed(to) { Err(ErrorCode::KafkaStorageError) } else { Ok(to) }
}
