//! `kuring partition elect`.

use super::{ElectArguments, Kind};
use crate::base::{PartitionIndex, TopicPartition};
use crate::cli::output::{Failure, Output};
use crate::client::{Cluster, Election};
use crate::wire::ErrorCode;

pub fn run(arguments: ElectArguments, out: &mut Output) -> Result<(), Failure> {
    let mut cluster = arguments.connect.cluster()?;
    let election = match arguments.kind {
        Kind::Preferred => Election::Preferred,
        Kind::Unclean => Election::Unclean,
    };
    let wanted = match &arguments.topic {
        Some(topic) => Some(partitions(&mut cluster, topic, &arguments.partition)?),
        None => None,
    };
    let results = cluster.elect_leaders(election, wanted.as_deref())?;
    let (mut failed, count) = (0, results.len());
    for (partition, result) in results {
        match result {
            Ok(()) => out.line(format_args!("{partition}: elected"))?,
            Err(error) if error.code() == Some(ErrorCode::ElectionNotNeeded) => {
                out.line(format_args!("{partition}: not needed"))?;
            }
            Err(error) => {
                failed += 1;
                out.line(error)?;
            }
        }
    }
    if count == 0 {
        out.line("no election is needed")?;
    }
    out.flush()?;
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Told(format!("{failed} of {count} elections failed"))),
    }
}

/// Those that are named, or all of the topic.
fn partitions(cluster: &mut Cluster, topic: &str, named: &[i32]) -> Result<Vec<TopicPartition>, Failure> {
    if named.is_empty() {
        return Ok(cluster.assignment(&[topic.to_owned()])?.into_keys().collect());
    }
    Ok(named.iter().map(|index| TopicPartition::new(topic, PartitionIndex(*index))).collect())
}
