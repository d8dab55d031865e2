//! DescribeLogDirs 1–4 (KIP-113, KIP-827): the size of logs, by directory, and the room on its volume.
//!
//! All shards are asked, then a file thread sorts their answers and asks the volumes: with many partitions
//! both take longer than a shard may.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::Client;
use crate::base::{self, PartitionIndex};
use crate::io::os::{VolumeBytes, volume_bytes};
use crate::shard::Directories;
use crate::shard::messages::{LogSize, Reply, Request};
use crate::wire::ErrorCode;

pub async fn handle(
    client: &Client,
    version: i16,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    let wanted = Wanted::of(&request);
    let mut sizes = Vec::new();
    for reply in client.shard.ask_all(|| Request::LogSizes).await {
        let Reply::LogSizes(of_shard) = reply else {
            crate::base::fatal("a request for log sizes got another request's answer");
        };
        sizes.extend(of_shard.into_iter().filter(|size| wanted.has(size)));
    }
    let directories = client.shard.settings().directories.clone();
    let threads = directories.threads.clone();
    let results = threads.run("describe log directories", move || describe(version, &directories, sizes));
    DescribeLogDirsResponse::default().with_results(results.await)
}

/// Which partitions are asked for.
enum Wanted {
    All,
    These(HashMap<base::TopicName, HashSet<PartitionIndex>>),
}

impl Wanted {
    fn of(request: &DescribeLogDirsRequest) -> Self {
        let Some(topics) = &request.topics else { return Self::All };
        let mut wanted: HashMap<_, HashSet<_>> = HashMap::new();
        for topic in topics {
            let partitions = topic.partitions.iter().copied().map(PartitionIndex);
            wanted.entry(base::TopicName::new(&topic.topic)).or_default().extend(partitions);
        }
        Self::These(wanted)
    }

    fn has(&self, size: &LogSize) -> bool {
        match self {
            Self::All => true,
            Self::These(wanted) => wanted
                .get(&size.topic_partition.topic)
                .is_some_and(|partitions| partitions.contains(&size.topic_partition.partition)),
        }
    }
}

/// Blocks: for a file thread.
fn describe(
    version: i16,
    directories: &Arc<Directories>,
    mut sizes: Vec<LogSize>,
) -> Vec<DescribeLogDirsResult> {
    sizes.sort_unstable_by(|a, b| (a.directory, &a.topic_partition).cmp(&(b.directory, &b.topic_partition)));
    let mut of_directory = sizes.chunk_by(|a, b| a.directory == b.directory).peekable();
    let results = (0..directories.count()).map(|directory| {
        let sizes = of_directory.next_if(|sizes| sizes[0].directory == directory).unwrap_or_default();
        let path = directories.path(directory);
        let result = DescribeLogDirsResult::default().with_log_dir(shown(path));
        if directories.has_failed(directory) {
            return result.with_error_code(ErrorCode::KafkaStorageError.code());
        }
        let result = result.with_topics(topics(sizes));
        if version < 4 {
            return result;
        }
        match volume_bytes(path) {
            Ok(VolumeBytes { total, usable }) => {
                result.with_total_bytes(clamp(total)).with_usable_bytes(clamp(usable))
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), "the volume does not tell its size: {error}");
                result
            }
        }
    });
    results.collect()
}

/// `sizes` of one directory in the order of their partitions.
fn topics(sizes: &[LogSize]) -> Vec<DescribeLogDirsTopic> {
    let by_topic = sizes.chunk_by(|a, b| a.topic_partition.topic == b.topic_partition.topic);
    let topic = |sizes: &[LogSize]| {
        // A leader lags behind nobody; a copy on its way to another directory does.
        let partitions = sizes.iter().map(|size| {
            DescribeLogDirsPartition::default()
                .with_partition_index(size.topic_partition.partition.0)
                .with_partition_size(clamp(size.bytes))
                .with_offset_lag(size.future_lag.unwrap_or(0))
                .with_is_future_key(size.future_lag.is_some())
        });
        let name = StrBytes::from_string(sizes[0].topic_partition.topic.to_string());
        DescribeLogDirsTopic::default().with_name(TopicName(name)).with_partitions(partitions.collect())
    };
    by_topic.map(topic).collect()
}

/// The absolute path, as Kafka tells it.
fn shown(path: &Path) -> StrBytes {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    StrBytes::from_string(path.display().to_string())
}

fn clamp(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
