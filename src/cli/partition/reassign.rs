//! `kuring partition reassign`: what `kafka-reassign-partitions` does, with its files and its throttles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use super::directories::{self, Move};
use super::{CancelArguments, ExecuteArguments, PlanArguments, VerifyArguments};
use crate::base::clock::monotonic;
use crate::base::{BrokerId, TopicName, TopicPartition};
use crate::cli::output::{Failure, Output};
use crate::client::reassign::{self as planning, Assignment, Candidate, Planned, Throttles, UnderWay};
use crate::client::{ClientError, Cluster, ClusterDescription};
use crate::wire::ErrorCode;

/// Between two looks of `verify --wait`.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LEADER_RATE: &str = "leader.replication.throttled.rate";
const FOLLOWER_RATE: &str = "follower.replication.throttled.rate";
const LEADER_REPLICAS: &str = "leader.replication.throttled.replicas";
const FOLLOWER_REPLICAS: &str = "follower.replication.throttled.replicas";

pub fn plan(arguments: &PlanArguments, out: &mut Output) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = arguments.topics.iter().find(|topic| !seen.insert(*topic)) {
        return Err(Failure::Told(format!("topic {twice} is named twice")));
    }
    let mut cluster = arguments.connect.cluster()?;
    let present = cluster.assignment(&arguments.topics)?;
    if let Some(moving) = cluster.reassignments()?.keys().find(|moving| present.contains_key(*moving)) {
        return Err(Failure::Told(format!(
            "{moving} is being reassigned: wait until that is done, or cancel it"
        )));
    }
    let candidates = candidates(&cluster.describe_cluster()?, arguments)?;
    let planned = planning::plan(&present, &candidates).map_err(|error| {
        let hint = match error {
            planning::PlanError::NoRack(_) => " (--ignore-racks plans without racks)",
            _ => "",
        };
        Failure::Told(format!("{error}{hint}"))
    })?;
    let changed: Assignment =
        planned.into_iter().filter(|(partition, replicas)| present[partition] != *replicas).collect();
    if changed.is_empty() {
        eprintln!("all is balanced: nothing moves");
        return Ok(());
    }
    let before: Assignment =
        changed.keys().map(|partition| (partition.clone(), present[partition].clone())).collect();
    if let Some(path) = &arguments.rollback {
        save(path, &before)?;
    }
    out.line(planning::to_json(&changed))?;
    out.flush()?;
    eprintln!("{}", summary(&before, &changed));
    Ok(())
}

/// The brokers that are named, with their racks.
fn candidates(cluster: &ClusterDescription, arguments: &PlanArguments) -> Result<Vec<Candidate>, Failure> {
    let one = |id: &i32| {
        let id = BrokerId(*id);
        let broker = cluster.brokers.iter().find(|broker| broker.id == id);
        let broker = broker.ok_or_else(|| Failure::Told(format!("there is no broker {id}")))?;
        if broker.fenced {
            return Err(Failure::Told(format!("broker {id} is fenced")));
        }
        let rack = broker.rack.clone().filter(|_| !arguments.ignore_racks);
        Ok(Candidate { id, rack })
    };
    arguments.brokers.iter().map(one).collect()
}

fn summary(before: &Assignment, after: &Assignment) -> String {
    let copied = |(partition, replicas): (&TopicPartition, &Vec<BrokerId>)| {
        replicas.iter().filter(|id| !before[partition].contains(id)).count()
    };
    let copies: usize = after.iter().map(copied).sum();
    format!("{} partitions change, {copies} replicas are copied", after.len())
}

/// A file that is there is not overwritten: it may be the way back from another plan.
fn save(path: &Path, assignment: &Assignment) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Told(format!("{}: {error}", path.display()));
    let mut file = fs::File::create_new(path).map_err(failed)?;
    writeln!(file, "{}", planning::to_json(assignment)).map_err(failed)
}

/// The plan in a file.
fn read_plan(path: &Path) -> Result<Planned, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Told(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    planning::parse(&text).map_err(|error| failed(&error))
}

pub fn execute(arguments: &ExecuteArguments, out: &mut Output) -> Result<(), Failure> {
    let Planned { replicas: wanted, directories } = read_plan(&arguments.file)?;
    let mut cluster = arguments.connect.cluster()?;
    let under_way = cluster.reassignments()?;
    if let Some(moving) = under_way.keys().next().filter(|_| !arguments.additional) {
        return Err(Failure::Told(format!(
            "{moving} is being reassigned: with --additional the plan is executed beside that, or instead of it"
        )));
    }
    check_brokers(&cluster.describe_cluster()?, &wanted)?;
    let present = present(&mut cluster, &wanted)?;
    out.line("The assignment as it is, for going back:")?;
    out.line(planning::to_json(&present))?;
    out.flush()?;
    if let Some(rate) = arguments.throttle {
        let throttles = planning::throttles(&under_way, &present, &wanted);
        set_throttles(&mut cluster, &throttles, rate)?;
        out.line(format_args!("throttled to {rate} bytes/s: run verify until all is done, it ends that"))?;
    }
    let changes = wanted.into_iter().map(|(partition, replicas)| (partition, Some(replicas))).collect();
    let results = cluster.reassign(&changes, !arguments.disallow_replication_factor_change)?;
    tell(&changes, results, "begun", out)?;
    if directories.is_empty() {
        return Ok(());
    }
    let deadline = monotonic().plus(cluster.config().call_timeout);
    directories::begin(&mut cluster, &directories, deadline, out)?;
    out.flush()
}

fn check_brokers(cluster: &ClusterDescription, wanted: &Assignment) -> Result<(), Failure> {
    let is_known = |id: &&BrokerId| cluster.brokers.iter().any(|broker| broker.id == **id && !broker.fenced);
    match wanted.values().flatten().find(|id| !is_known(id)) {
        None => Ok(()),
        Some(id) => Err(Failure::Told(format!("there is no broker {id} that is alive"))),
    }
}

/// The replicas of the plan's partitions as they are.
fn present(cluster: &mut Cluster, wanted: &Assignment) -> Result<Assignment, Failure> {
    let mut all = cluster.assignment(&topics(wanted))?;
    let one = |partition: &TopicPartition| match all.remove(partition) {
        Some(replicas) => Ok((partition.clone(), replicas)),
        None => Err(Failure::Told(format!("there is no partition {partition}"))),
    };
    wanted.keys().map(one).collect()
}

fn topics(assignment: &Assignment) -> Vec<String> {
    let names: BTreeSet<&TopicName> = assignment.keys().map(|partition| &partition.topic).collect();
    names.into_iter().map(TopicName::to_string).collect()
}

fn set_throttles(cluster: &mut Cluster, throttles: &Throttles, rate: i64) -> Result<(), ClientError> {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    for (topic, (leaders, followers)) in &throttles.topics {
        let lists = [pair(LEADER_REPLICAS, leaders), pair(FOLLOWER_REPLICAS, followers)];
        cluster.alter_topic_configs(topic, &lists, &[])?;
    }
    let rate = rate.to_string();
    for broker in &throttles.brokers {
        let rates = [pair(LEADER_RATE, &rate), pair(FOLLOWER_RATE, &rate)];
        cluster.alter_broker_configs(*broker, &rates, &[])?;
    }
    Ok(())
}

/// Of the plan's topics and of all brokers: which had a part in it is not known any more. Those that are not alive keep
/// theirs, for nobody else can take it from them.
fn clear_throttles(cluster: &mut Cluster, plan: &Assignment, out: &mut Output) -> Result<(), Failure> {
    let rates = [LEADER_RATE.to_owned(), FOLLOWER_RATE.to_owned()];
    let lists = [LEADER_REPLICAS.to_owned(), FOLLOWER_REPLICAS.to_owned()];
    let brokers = cluster.describe_cluster()?.brokers;
    for broker in brokers.iter().filter(|broker| !broker.fenced) {
        cluster.alter_broker_configs(broker.id, &[], &rates)?;
    }
    for topic in topics(plan) {
        match cluster.alter_topic_configs(&topic, &[], &lists) {
            Err(error) if error.code() == Some(ErrorCode::UnknownTopicOrPartition) => {}
            other => other?,
        }
    }
    out.line("no throttle is left")?;
    let fenced: Vec<String> =
        brokers.iter().filter(|broker| broker.fenced).map(|broker| broker.id.to_string()).collect();
    if !fenced.is_empty() {
        out.line(format_args!("but on brokers that are fenced: {}", fenced.join(",")))?;
    }
    Ok(())
}

/// A line for each partition; fails when one of them did.
fn tell(
    changes: &BTreeMap<TopicPartition, Option<Vec<BrokerId>>>,
    mut results: BTreeMap<TopicPartition, Result<(), ClientError>>,
    done: &str,
    out: &mut Output,
) -> Result<(), Failure> {
    let mut failed = 0;
    for partition in changes.keys() {
        match results.remove(partition) {
            Some(Ok(())) => out.line(format_args!("{partition}: {done}"))?,
            Some(Err(error)) => {
                failed += 1;
                out.line(error)?;
            }
            None => {
                failed += 1;
                out.line(format_args!("{partition}: the answer does not tell of it"))?;
            }
        }
    }
    out.flush()?;
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Told(format!("{failed} of {} partitions failed", changes.len()))),
    }
}

/// How far a partition is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Done,
    /// Brokers that are added yet.
    InProgress(Vec<BrokerId>),
    /// Not on its way: the replicas it has.
    Other(Vec<BrokerId>),
    Missing,
}

pub fn verify(arguments: &VerifyArguments, out: &mut Output) -> Result<(), Failure> {
    let plan = read_plan(&arguments.file)?;
    let mut cluster = arguments.connect.cluster()?;
    let deadline = arguments.wait.map(|seconds| monotonic().plus(Duration::from_secs(seconds)));
    let found = loop {
        let found = look(&mut cluster, &plan)?;
        let is_over = deadline.is_none_or(|deadline| monotonic().plus(LOOK_EVERY) > deadline);
        if is_over || found.in_progress() == 0 {
            break found;
        }
        std::thread::sleep(LOOK_EVERY);
    };
    for (partition, stage) in &found.partitions {
        out.line(format_args!("{partition}: {}", in_words(stage)))?;
    }
    for ((partition, broker), state) in &found.moves {
        out.line(format_args!("{partition} on broker {broker}: {}", directories::in_words(state)))?;
    }
    let is_any_move =
        found.moves.values().any(|state| matches!(state, Move::InProgress | Move::Elsewhere(_)));
    if !found.is_any_under_way && !is_any_move && !arguments.preserve_throttles {
        clear_throttles(&mut cluster, &plan.replicas, out)?;
    }
    out.flush()?;
    match (found.in_progress(), found.failed()) {
        (0, 0) => Ok(()),
        (moving, failed) => Err(Failure::Told(format!("in progress: {moving}, not as planned: {failed}"))),
    }
}

/// How far a plan is.
struct Found {
    partitions: BTreeMap<TopicPartition, Stage>,
    moves: BTreeMap<(TopicPartition, BrokerId), Move>,
    /// Of this plan or of another.
    is_any_under_way: bool,
}

impl Found {
    fn in_progress(&self) -> usize {
        let partitions = self.partitions.values().filter(|stage| matches!(stage, Stage::InProgress(_)));
        partitions.count() + self.moves.values().filter(|state| **state == Move::InProgress).count()
    }

    fn failed(&self) -> usize {
        let is_failed = |stage: &&Stage| matches!(stage, Stage::Other(_) | Stage::Missing);
        let is_astray = |state: &&Move| !matches!(state, Move::Done | Move::InProgress);
        self.partitions.values().filter(is_failed).count() + self.moves.values().filter(is_astray).count()
    }
}

fn look(cluster: &mut Cluster, plan: &Planned) -> Result<Found, ClientError> {
    let under_way = cluster.reassignments()?;
    let partitions = progress(&plan.replicas, &under_way, &cluster.assignments()?);
    let moves = directories::look(cluster, &plan.directories)?;
    Ok(Found { partitions, moves, is_any_under_way: !under_way.is_empty() })
}

fn progress(
    plan: &Assignment,
    under_way: &BTreeMap<TopicPartition, UnderWay>,
    found: &Assignment,
) -> BTreeMap<TopicPartition, Stage> {
    let of_one = |partition: &TopicPartition, wanted: &Vec<BrokerId>| {
        if let Some(under_way) = under_way.get(partition) {
            return Stage::InProgress(under_way.adding.clone());
        }
        match found.get(partition) {
            None => Stage::Missing,
            Some(replicas) if replicas == wanted => Stage::Done,
            Some(replicas) => Stage::Other(replicas.clone()),
        }
    };
    plan.iter().map(|(partition, wanted)| (partition.clone(), of_one(partition, wanted))).collect()
}

fn in_words(progress: &Stage) -> String {
    let listed = |ids: &[BrokerId]| ids.iter().map(BrokerId::to_string).collect::<Vec<_>>().join(",");
    match progress {
        Stage::Done => "done".to_owned(),
        Stage::InProgress(adding) if adding.is_empty() => "in progress".to_owned(),
        Stage::InProgress(adding) => format!("in progress, not yet in sync: {}", listed(adding)),
        Stage::Other(replicas) => {
            format!("not as planned, and not being reassigned: its replicas are {}", listed(replicas))
        }
        Stage::Missing => "there is no such partition".to_owned(),
    }
}

pub fn cancel(arguments: &CancelArguments, out: &mut Output) -> Result<(), Failure> {
    let plan = read_plan(&arguments.file)?;
    let mut cluster = arguments.connect.cluster()?;
    let under_way = cluster.reassignments()?;
    let replicas = &plan.replicas;
    let changes: BTreeMap<TopicPartition, Option<Vec<BrokerId>>> =
        replicas.keys().filter(|key| under_way.contains_key(*key)).map(|key| (key.clone(), None)).collect();
    let moves = directories::cancel(&mut cluster, &plan.directories)?;
    if moves > 0 {
        out.line(format_args!("moves between directories given up: {moves}"))?;
    }
    if changes.is_empty() && moves == 0 {
        out.line("nothing of the plan is under way")?;
    } else if !changes.is_empty() {
        let mut results = cluster.reassign(&changes, true)?;
        // It was done meanwhile.
        let is_over = |result: &Result<(), ClientError>| {
            result.as_ref().is_err_and(|error| error.code() == Some(ErrorCode::NoReassignmentInProgress))
        };
        results.values_mut().filter(|result| is_over(result)).for_each(|result| *result = Ok(()));
        tell(&changes, results, "given up", out)?;
    }
    if !arguments.preserve_throttles {
        clear_throttles(&mut cluster, replicas, out)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::PartitionIndex;

    fn ids(ids: &[i32]) -> Vec<BrokerId> {
        ids.iter().copied().map(BrokerId).collect()
    }

    #[test]
    fn a_partition_is_done_on_its_way_or_neither() {
        let key = |index| TopicPartition::new("t", PartitionIndex(index));
        let plan: Assignment = (0..4).map(|index| (key(index), ids(&[1, 2]))).collect();
        let moving = UnderWay { replicas: ids(&[1, 2, 3]), adding: ids(&[2]), removing: ids(&[3]) };
        let under_way = BTreeMap::from([(key(1), moving)]);
        let found = Assignment::from([
            (key(0), ids(&[1, 2])),
            (key(1), ids(&[1, 2, 3])),
            // Another order is another assignment.
            (key(2), ids(&[2, 1])),
        ]);
        let told: Vec<String> = progress(&plan, &under_way, &found).values().map(in_words).collect();
        let expected = [
            "done",
            "in progress, not yet in sync: 2",
            "not as planned, and not being reassigned: its replicas are 2,1",
            "there is no such partition",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_plan_is_summed_up() {
        let key = |index| TopicPartition::new("t", PartitionIndex(index));
        let before = Assignment::from([(key(0), ids(&[1, 2])), (key(1), ids(&[1, 2]))]);
        let after = Assignment::from([(key(0), ids(&[2, 1])), (key(1), ids(&[4, 3]))]);
        assert_eq!(summary(&before, &after), "2 partitions change, 2 replicas are copied");
    }
}
