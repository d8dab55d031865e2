//! `kuring topic`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;

use super::output::{Failure, Output, table};
use super::{ConnectArguments, name_and_value};
use crate::base::{Offset, PartitionIndex, TopicId, TopicPartition};
use crate::client::{ClientError, Cluster, FoundOffset, NewTopic, OffsetAt, code_name};
use crate::wire::ErrorCode;

#[derive(Subcommand)]
pub enum TopicCommand {
    /// Create a topic
    #[command(after_help = "Examples:
  kuring topic create events
  kuring topic create events --partitions 12 --replication-factor 3
  kuring topic create latest --config cleanup.policy=compact --if-not-exists")]
    Create(CreateArguments),
    /// List the names of the topics
    #[command(after_help = "Examples:
  kuring topic list
  kuring topic list --internal --bootstrap broker1:9092,broker2:9092")]
    List(ListArguments),
    /// Show partitions, leaders, replicas, offsets and settings
    #[command(after_help = "Examples:
  kuring topic describe events
  kuring topic describe            (all topics)
  kuring topic describe events --configs")]
    Describe(DescribeArguments),
    /// Add partitions, set and unset settings
    #[command(after_help = "Examples:
  kuring topic alter events --partitions 24
  kuring topic alter events --set retention.ms=3600000 --unset segment.bytes")]
    Alter(AlterArguments),
    /// Delete topics with all their records
    #[command(after_help = "Examples:
  kuring topic delete events
  kuring topic delete events clicks --if-exists")]
    Delete(DeleteArguments),
}

#[derive(Args)]
pub struct CreateArguments {
    name: String,
    /// Number of partitions; the broker's num.partitions if left out
    #[arg(short, long)]
    partitions: Option<i32>,
    /// Copies of each partition; the broker's default.replication.factor if left out
    #[arg(short, long)]
    replication_factor: Option<i16>,
    /// A setting of the topic; may be repeated
    #[arg(short, long = "config", visible_alias = "set", value_name = "NAME=VALUE", value_parser = name_and_value)]
    configs: Vec<(String, String)>,
    /// A topic that exists is no failure
    #[arg(long)]
    if_not_exists: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Args)]
pub struct ListArguments {
    /// Also list internal topics, such as __consumer_offsets
    #[arg(long)]
    internal: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Args)]
pub struct DescribeArguments {
    /// Topics to describe; all but the internal ones if left out
    names: Vec<String>,
    /// Show all settings, not only those set on the topic
    #[arg(long)]
    configs: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Args)]
pub struct AlterArguments {
    name: String,
    /// The new number of partitions, above the present one
    #[arg(short, long, required_unless_present_any = ["set", "unset"])]
    partitions: Option<i32>,
    /// A setting to set on the topic; may be repeated
    #[arg(long, visible_alias = "config", value_name = "NAME=VALUE", value_parser = name_and_value)]
    set: Vec<(String, String)>,
    /// A setting to inherit again; may be repeated
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Args)]
pub struct DeleteArguments {
    #[arg(required = true)]
    names: Vec<String>,
    /// A topic that does not exist is no failure
    #[arg(long)]
    if_exists: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

pub fn run(command: TopicCommand) -> Result<(), Failure> {
    let mut out = Output::stdout();
    match command {
        TopicCommand::Create(arguments) => create(arguments, &mut out)?,
        TopicCommand::List(arguments) => list(arguments, &mut out)?,
        TopicCommand::Describe(arguments) => describe(arguments, &mut out)?,
        TopicCommand::Alter(arguments) => alter(arguments, &mut out)?,
        TopicCommand::Delete(arguments) => delete(arguments, &mut out)?,
    }
    out.finish()
}

fn create(arguments: CreateArguments, out: &mut Output) -> Result<(), Failure> {
    let mut cluster = arguments.connect.cluster()?;
    let topic = NewTopic {
        name: arguments.name,
        partitions: arguments.partitions,
        replication_factor: arguments.replication_factor,
        configs: arguments.configs,
    };
    match cluster.create_topic(&topic) {
        Ok(TopicId::ZERO) => out.line(format_args!("created {}", topic.name)),
        Ok(id) => out.line(format_args!("created {} with id {id}", topic.name)),
        Err(error) if arguments.if_not_exists && error.code() == Some(ErrorCode::TopicAlreadyExists) => {
            out.line(format_args!("{} exists", topic.name))
        }
        Err(error) => Err(error.into()),
    }
}

fn list(arguments: ListArguments, out: &mut Output) -> Result<(), Failure> {
    let response = arguments.connect.cluster()?.describe(None)?;
    let mut names: Vec<String> = response
        .topics
        .iter()
        .filter(|topic| arguments.internal || !topic.is_internal)
        .filter_map(|topic| Some(topic.name.as_ref()?.0.to_string()))
        .collect();
    names.sort();
    names.iter().try_for_each(|name| out.line(name))
}

fn describe(arguments: DescribeArguments, out: &mut Output) -> Result<(), Failure> {
    let mut cluster = arguments.connect.cluster()?;
    let wanted = (!arguments.names.is_empty()).then_some(arguments.names.as_slice());
    let mut response = cluster.describe(wanted)?;
    response.topics.sort_by(|a, b| a.name.cmp(&b.name));
    for (position, topic) in response.topics.iter().enumerate() {
        let name = topic.name.as_ref().map(|name| name.0.to_string()).unwrap_or_default();
        if let Some(code) = ErrorCode::try_from_code(topic.error_code) {
            return Err(ClientError::broker(format!("topic {name}"), code, None).into());
        }
        if wanted.is_none() && topic.is_internal {
            continue;
        }
        if position > 0 {
            out.line("")?;
        }
        describe_one(&mut cluster, &name, topic, arguments.configs, out)?;
    }
    Ok(())
}

fn describe_one(
    cluster: &mut Cluster,
    name: &str,
    topic: &MetadataResponseTopic,
    all_configs: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    let replicas = topic.partitions.iter().map(|partition| partition.replica_nodes.len()).max().unwrap_or(0);
    let id = match TopicId(topic.topic_id) {
        TopicId::ZERO => String::new(),
        id => format!("id {id}, "),
    };
    out.line(format_args!("{name}: {id}{} partitions, {replicas} replicas", topic.partitions.len()))?;
    let led: Vec<TopicPartition> = topic
        .partitions
        .iter()
        .filter(|partition| partition.error_code == 0 && partition.leader_id.0 >= 0)
        .map(|partition| TopicPartition::new(name, PartitionIndex(partition.partition_index)))
        .collect();
    let first = cluster.list_offsets(&led, OffsetAt::Earliest)?;
    let end = cluster.list_offsets(&led, OffsetAt::Latest)?;
    let mut partitions: Vec<_> = topic.partitions.iter().collect();
    partitions.sort_by_key(|partition| partition.partition_index);
    let rows: Vec<Vec<String>> = partitions
        .into_iter()
        .map(|partition| {
            let key = TopicPartition::new(name, PartitionIndex(partition.partition_index));
            let leader = match ErrorCode::try_from_code(partition.error_code) {
                None => partition.leader_id.0.to_string(),
                Some(code) => code_name(code),
            };
            vec![
                partition.partition_index.to_string(),
                leader,
                ids(&partition.replica_nodes),
                ids(&partition.isr_nodes),
                shown(&first, &key),
                shown(&end, &key),
            ]
        })
        .collect();
    out.write(table(&["PARTITION", "LEADER", "REPLICAS", "ISR", "FIRST", "END"], &rows).as_bytes())?;
    for entry in cluster.topic_configs(name)? {
        if all_configs || entry.is_own {
            let value = entry.value.as_deref().unwrap_or("(not shown)");
            let inherited = if entry.is_own { "" } else { "  (default)" };
            out.line(format_args!("{}={value}{inherited}", entry.name))?;
        }
    }
    Ok(())
}

fn alter(arguments: AlterArguments, out: &mut Output) -> Result<(), Failure> {
    let mut cluster = arguments.connect.cluster()?;
    if !arguments.set.is_empty() || !arguments.unset.is_empty() {
        cluster.alter_topic_configs(&arguments.name, &arguments.set, &arguments.unset)?;
    }
    if let Some(count) = arguments.partitions {
        cluster.create_partitions(&arguments.name, count)?;
    }
    out.line(format_args!("altered {}", arguments.name))
}

fn delete(arguments: DeleteArguments, out: &mut Output) -> Result<(), Failure> {
    let mut cluster = arguments.connect.cluster()?;
    for name in &arguments.names {
        match cluster.delete_topic(name) {
            Ok(()) => out.line(format_args!("deleted {name}"))?,
            Err(error) if arguments.if_exists && error.code() == Some(ErrorCode::UnknownTopicOrPartition) => {
                out.line(format_args!("{name} does not exist"))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn ids(ids: &[kafka_protocol::messages::BrokerId]) -> String {
    let texts: Vec<String> = ids.iter().map(|id| id.0.to_string()).collect();
    texts.join(",")
}

fn shown(offsets: &BTreeMap<TopicPartition, FoundOffset>, partition: &TopicPartition) -> String {
    match offsets.get(partition).and_then(|found| found.offset) {
        Some(Offset(offset)) => offset.to_string(),
        None => "-".to_owned(),
    }
}
