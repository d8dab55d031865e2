//! `kuring cluster status`.

use std::time::Duration;

use serde_json::{Value, json};

use super::StatusArguments;
use crate::base::clock::{Monotonic, monotonic};
use crate::base::{BrokerId, TopicPartition};
use crate::cli::ConnectArguments;
use crate::cli::output::{Failure, Output};
use crate::client::health::{Health, Known};
use crate::client::{ClientError, Quorum};
use crate::wire::ErrorCode;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Partitions named for each kind of fault; JSON has all.
const NAMED_MAX: usize = 10;

pub fn run(arguments: &StatusArguments, out: &mut Output) -> Result<(), Failure> {
    let deadline = arguments.wait.map(|seconds| monotonic().plus(Duration::from_secs(seconds)));
    let health = wait(arguments, deadline)?;
    let faults = health.faults();
    if arguments.json {
        out.line(as_json(&health, &faults))?;
    } else {
        out.write(as_text(&health).as_bytes())?;
    }
    out.flush()?;
    if faults.is_empty() {
        return Ok(());
    }
    Err(Failure::Told(format!("not all is well: {}", faults.join(", "))))
}

/// Looks until all is well or the time is over; then what was found last is told.
fn wait(arguments: &StatusArguments, deadline: Option<Monotonic>) -> Result<Health, ClientError> {
    loop {
        let found = look(&arguments.connect);
        let is_well = found.as_ref().is_ok_and(|health| health.faults().is_empty());
        let is_over = deadline.is_none_or(|deadline| monotonic().plus(LOOK_EVERY) > deadline);
        if is_well || is_over {
            return found;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Connects anew: nodes may be where they were not a moment ago.
fn look(connect: &ConnectArguments) -> Result<Health, ClientError> {
    let mut cluster = connect.cluster()?;
    let description = cluster.describe_cluster()?;
    let quorum = optional(cluster.describe_quorum())?;
    let under_way = cluster.reassignments()?;
    let topics = cluster.describe_topics()?;
    let names = topics.topics.iter().filter_map(|topic| Some(topic.name.as_ref()?.0.to_string()));
    let min_in_sync = cluster.min_in_sync(&names.collect::<Vec<_>>())?;
    Ok(Health::of(&Known { cluster: description, topics, under_way, min_in_sync, quorum }))
}

/// Nothing where brokers do not have the API.
fn optional(quorum: Result<Quorum, ClientError>) -> Result<Option<Quorum>, ClientError> {
    match quorum {
        Ok(quorum) => Ok(Some(quorum)),
        Err(ClientError::NoCommonVersion { .. }) => Ok(None),
        Err(error) if error.code() == Some(ErrorCode::UnsupportedVersion) => Ok(None),
        Err(error) => Err(error),
    }
}

fn as_text(health: &Health) -> String {
    let mut rows = vec![
        ("cluster", health.cluster_id.clone()),
        ("controller", controller(health)),
        ("brokers", with_ids(format!("{} alive", health.alive.len()), "fenced", &health.fenced)),
    ];
    if let Some((voters, behind)) = &health.voters {
        rows.push(("quorum", with_ids(format!("{voters} voting"), "behind", behind)));
    }
    rows.push(("topics", format!("{}, {} partitions", health.topics, health.partitions)));
    for (what, list) in lists(health) {
        rows.push((what, named(list)));
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// Who it is, which need not be a broker.
fn controller(health: &Health) -> String {
    let is_broker = |id: &BrokerId| health.alive.contains(id) || health.fenced.contains(id);
    match health.controller {
        None => "none".to_owned(),
        Some(id) if is_broker(&id) => format!("broker {id}"),
        Some(id) => format!("node {id}"),
    }
}

fn lists(health: &Health) -> [(&'static str, &[TopicPartition]); 5] {
    [
        ("offline", &health.offline),
        ("under min ISR", &health.under_min_isr),
        ("under-replicated", &health.under_replicated),
        ("being reassigned", &health.reassigning),
        ("not led by the first replica", &health.led_elsewhere),
    ]
}

fn with_ids(first: String, what: &str, ids: &[BrokerId]) -> String {
    let listed: Vec<String> = ids.iter().map(BrokerId::to_string).collect();
    match ids {
        [] => format!("{first}, 0 {what}"),
        _ => format!("{first}, {} {what} ({})", ids.len(), listed.join(",")),
    }
}

/// How many, and the first of them.
fn named(partitions: &[TopicPartition]) -> String {
    let mut text = partitions.len().to_string();
    for (position, partition) in partitions.iter().take(NAMED_MAX).enumerate() {
        text += &format!("{}{partition}", if position == 0 { ": " } else { " " });
    }
    if partitions.len() > NAMED_MAX {
        text += &format!(" and {} more", partitions.len() - NAMED_MAX);
    }
    text
}

fn as_json(health: &Health, faults: &[String]) -> Value {
    let ids = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
    let names = |list: &[TopicPartition]| list.iter().map(TopicPartition::to_string).collect::<Vec<_>>();
    json!({
        "cluster_id": health.cluster_id,
        "controller": health.controller.map(|id| id.0),
        "alive": ids(&health.alive),
        "fenced": ids(&health.fenced),
        "voters": health.voters.as_ref().map(|(voters, _)| voters),
        "voters_behind": health.voters.as_ref().map(|(_, behind)| ids(behind)),
        "topics": health.topics,
        "partitions": health.partitions,
        "offline": names(&health.offline),
        "under_min_isr": names(&health.under_min_isr),
        "under_replicated": names(&health.under_replicated),
        "reassigning": names(&health.reassigning),
        "led_elsewhere": names(&health.led_elsewhere),
        "faults": faults,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::PartitionIndex;

    #[test]
    fn what_is_wrong_is_named_and_a_long_list_is_cut() {
        let partitions = |count| (0..count).map(|index| TopicPartition::new("t", PartitionIndex(index)));
        let health = Health {
            cluster_id: "c".into(),
            alive: vec![BrokerId(1)],
            fenced: vec![BrokerId(2), BrokerId(3)],
            topics: 1,
            partitions: 12,
            offline: partitions(12).collect(),
            under_min_isr: partitions(2).collect(),
            ..Health::default()
        };
        let expected = "cluster                       c
controller                    none
brokers                       1 alive, 2 fenced (2,3)
topics                        1, 12 partitions
offline                       12: t-0 t-1 t-2 t-3 t-4 t-5 t-6 t-7 t-8 t-9 and 2 more
under min ISR                 2: t-0 t-1
under-replicated              0
being reassigned              0
not led by the first replica  0
";
        assert_eq!(as_text(&health), expected);
        assert_eq!(as_json(&health, &health.faults())["under_min_isr"], json!(["t-0", "t-1"]));
    }
}
