//! The file of `kafka-reassign-partitions`, version 1: which replicas each partition is to have, and in which log
//! directories.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Assignment;
use crate::base::{BrokerId, PartitionIndex, TopicPartition};

const VERSION: i64 = 1;
/// The broker chooses the directory.
const ANY_DIRECTORY: &str = "any";

/// What a file asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Planned {
    pub replicas: Assignment,
    /// Of the replicas whose directory is not left to the broker.
    pub directories: BTreeMap<(TopicPartition, BrokerId), String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanFileError {
    #[error("not a plan: {0}")]
    Malformed(String),
    #[error("version {0} of plans is not known")]
    Version(i64),
    #[error("it names no partition")]
    Empty,
    #[error("partition {0} is named twice")]
    Twice(TopicPartition),
    #[error("partition {0} has no replicas")]
    NoReplicas(TopicPartition),
    #[error("partition {0} has broker {1} twice")]
    BrokerTwice(TopicPartition, BrokerId),
    #[error("partition {partition} has {replicas} replicas and {directories} log_dirs")]
    Directories { partition: TopicPartition, replicas: usize, directories: usize },
}

#[derive(Serialize, Deserialize)]
struct Entry {
    topic: String,
    partition: i32,
    replicas: Vec<i32>,
    log_dirs: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct File {
    version: Option<i64>,
    #[serde(default)]
    partitions: Vec<Entry>,
}

/// One line for each partition.
pub fn to_json(assignment: &Assignment) -> String {
    let entry = |(partition, replicas): (&TopicPartition, &Vec<BrokerId>)| {
        let entry = Entry {
            topic: partition.topic.to_string(),
            partition: partition.partition.0,
            replicas: replicas.iter().map(|id| id.0).collect(),
            log_dirs: Some(vec![ANY_DIRECTORY.to_owned(); replicas.len()]),
        };
        serde_json::to_string(&entry).unwrap_or_default()
    };
    let entries: Vec<String> = assignment.iter().map(entry).collect();
    format!("{{\"version\":{VERSION},\"partitions\":[\n{}\n]}}", entries.join(",\n"))
}

/// Reads and checks a file.
pub fn parse(text: &str) -> Result<Planned, PlanFileError> {
    let malformed = |error: serde_json::Error| PlanFileError::Malformed(error.to_string());
    let file: File = serde_json::from_str(text).map_err(malformed)?;
    match file.version {
        None | Some(VERSION) => {}
        Some(other) => return Err(PlanFileError::Version(other)),
    }
    if file.partitions.is_empty() {
        return Err(PlanFileError::Empty);
    }
    let mut planned = Planned::default();
    for entry in file.partitions {
        add(&mut planned, entry)?;
    }
    Ok(planned)
}

fn add(planned: &mut Planned, entry: Entry) -> Result<(), PlanFileError> {
    let partition = TopicPartition::new(&*entry.topic, PartitionIndex(entry.partition));
    let replicas: Vec<BrokerId> = entry.replicas.into_iter().map(BrokerId).collect();
    if replicas.is_empty() {
        return Err(PlanFileError::NoReplicas(partition));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = replicas.iter().find(|id| !seen.insert(**id)) {
        return Err(PlanFileError::BrokerTwice(partition, *twice));
    }
    if let Some(directories) = entry.log_dirs {
        if directories.len() != replicas.len() {
            let (replicas, directories) = (replicas.len(), directories.len());
            return Err(PlanFileError::Directories { partition, replicas, directories });
        }
        let named = replicas.iter().zip(directories).filter(|(_, directory)| directory != ANY_DIRECTORY);
        planned.directories.extend(named.map(|(id, directory)| ((partition.clone(), *id), directory)));
    }
    if planned.replicas.contains_key(&partition) {
        return Err(PlanFileError::Twice(partition));
    }
    planned.replicas.insert(partition, replicas);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(topic: &str, index: i32) -> TopicPartition {
        TopicPartition::new(topic, PartitionIndex(index))
    }

    #[test]
    fn a_plan_is_written_as_kafka_writes_it_and_comes_back() {
        let ids = |ids: &[i32]| ids.iter().copied().map(BrokerId).collect::<Vec<_>>();
        let assignment =
            Assignment::from([(partition("a", 1), ids(&[3, 1])), (partition("a\"", 0), ids(&[2]))]);
        let text = to_json(&assignment);
        let expected = r#"{"version":1,"partitions":[
{"topic":"a","partition":1,"replicas":[3,1],"log_dirs":["any","any"]},
{"topic":"a\"","partition":0,"replicas":[2],"log_dirs":["any"]}
]}"#;
        assert_eq!(text, expected);
        assert_eq!(parse(&text), Ok(Planned { replicas: assignment, directories: BTreeMap::new() }));
    }

    #[test]
    fn directories_and_the_version_may_be_left_out_and_more_may_be_there() {
        let text = r#"{"comment":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"x":null},
            {"topic":"t","partition":1,"replicas":[1,2],"log_dirs":["any","/d"]}]}"#;
        let planned = parse(text).unwrap();
        assert_eq!(planned.replicas.len(), 2);
        let expected = ((partition("t", 1), BrokerId(2)), "/d".to_owned());
        assert_eq!(planned.directories.into_iter().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn what_kafkas_tool_refuses_is_refused() {
        let of = |entries: &str| parse(&format!(r#"{{"version":1,"partitions":[{entries}]}}"#)).unwrap_err();
        let one = r#"{"topic":"t","partition":0,"replicas":[1]}"#;
        assert_eq!(of(""), PlanFileError::Empty);
        assert_eq!(parse(r#"{"version":1}"#), Err(PlanFileError::Empty));
        assert_eq!(of(&format!("{one},{one}")), PlanFileError::Twice(partition("t", 0)));
        let none = r#"{"topic":"t","partition":0,"replicas":[]}"#;
        assert_eq!(of(none), PlanFileError::NoReplicas(partition("t", 0)));
        let twice = r#"{"topic":"t","partition":0,"replicas":[2,1,2]}"#;
        assert_eq!(of(twice), PlanFileError::BrokerTwice(partition("t", 0), BrokerId(2)));
        let fewer = r#"{"topic":"t","partition":0,"replicas":[2,1],"log_dirs":["any"]}"#;
        assert_eq!(of(fewer).to_string(), "partition t-0 has 2 replicas and 1 log_dirs");
        assert_eq!(parse(r#"{"version":2,"partitions":[]}"#), Err(PlanFileError::Version(2)));
        assert!(matches!(of(r#"{"topic":"t","partition":"x"}"#), PlanFileError::Malformed(_)));
        assert!(matches!(parse("no"), Err(PlanFileError::Malformed(_))));
    }
}
