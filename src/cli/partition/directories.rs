//! Replicas whose plan names a log directory: AlterReplicaLogDirs moves them there once they are on their brokers.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::clock::{Monotonic, monotonic};
use crate::base::{BrokerId, TopicPartition};
use crate::cli::output::{Failure, Output};
use crate::client::{ClientError, Cluster, LogPlace};
use crate::wire::ErrorCode;

/// A replica's broker has not begun to make its log yet: between two attempts.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// The directories that replicas are to be in.
pub type Directories = BTreeMap<(TopicPartition, BrokerId), String>;

/// Where a replica is, seen from where it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    Done,
    InProgress,
    /// It is on its way to another directory.
    Elsewhere(String),
    /// It is in another directory and stays there.
    Stays(String),
    Missing,
}

/// Begins the moves; waits until `deadline` for replicas that are not there yet.
pub fn begin(
    cluster: &mut Cluster,
    wanted: &Directories,
    deadline: Monotonic,
    out: &mut Output,
) -> Result<(), Failure> {
    let mut left = wanted.clone();
    let mut failed = 0;
    loop {
        for (broker, logs) in by_broker(&left) {
            for (partition, result) in cluster.move_logs(broker, &logs)? {
                match result {
                    Err(error) if error.code() == Some(ErrorCode::ReplicaNotAvailable) => continue,
                    Ok(()) => {
                        out.line(format_args!("{partition} on broker {broker}: goes to its directory"))?
                    }
                    Err(error) => {
                        failed += 1;
                        out.line(format_args!("{error} (on broker {broker})"))?;
                    }
                }
                left.remove(&(partition, broker));
            }
        }
        if left.is_empty() || monotonic() >= deadline {
            break;
        }
        std::thread::sleep(TRY_EVERY);
    }
    for (partition, broker) in left.keys() {
        out.line(format_args!(
            "{partition} on broker {broker}: it is not there yet, and not on its way to its directory"
        ))?;
    }
    match failed + left.len() {
        0 => Ok(()),
        count => Err(Failure::Told(format!("{count} replicas do not go to their directories"))),
    }
}

/// Gives up moves that are in progress: to where the log is already. How many there were.
pub fn cancel(cluster: &mut Cluster, wanted: &Directories) -> Result<usize, ClientError> {
    let mut count = 0;
    for (broker, logs) in by_broker(wanted) {
        let places = cluster.log_places(broker)?;
        let back = |partition: &TopicPartition| {
            let place = places.get(partition).filter(|place| place.future.is_some())?;
            Some((partition.clone(), place.current.clone()?))
        };
        let back: BTreeMap<TopicPartition, String> = logs.keys().filter_map(back).collect();
        count += back.len();
        if !back.is_empty() {
            cluster.move_logs(broker, &back)?.into_values().collect::<Result<(), ClientError>>()?;
        }
    }
    Ok(count)
}

/// How far each is. One on a broker that does not answer is an error.
pub fn look(
    cluster: &mut Cluster,
    wanted: &Directories,
) -> Result<BTreeMap<(TopicPartition, BrokerId), Move>, ClientError> {
    let mut found = BTreeMap::new();
    for (broker, logs) in by_broker(wanted) {
        let places = cluster.log_places(broker)?;
        for (partition, directory) in logs {
            let state = state(places.get(&partition), &directory);
            found.insert((partition, broker), state);
        }
    }
    Ok(found)
}

fn by_broker(directories: &Directories) -> BTreeMap<BrokerId, BTreeMap<TopicPartition, String>> {
    let mut brokers: BTreeMap<BrokerId, BTreeMap<TopicPartition, String>> = BTreeMap::new();
    for ((partition, broker), directory) in directories {
        brokers.entry(*broker).or_default().insert(partition.clone(), directory.clone());
    }
    brokers
}

fn state(place: Option<&LogPlace>, wanted: &str) -> Move {
    match place.map(|place| (place.current.as_deref(), place.future.as_deref())) {
        None | Some((None, None)) => Move::Missing,
        Some((_, Some(future))) if future == wanted => Move::InProgress,
        Some((_, Some(future))) => Move::Elsewhere(future.to_owned()),
        Some((Some(current), None)) if current == wanted => Move::Done,
        Some((Some(current), None)) => Move::Stays(current.to_owned()),
    }
}

pub fn in_words(state: &Move) -> String {
    match state {
        Move::Done => "in its directory".to_owned(),
        Move::InProgress => "on its way to its directory".to_owned(),
        Move::Elsewhere(other) => format!("on its way to {other}, which is not planned"),
        Move::Stays(current) => format!("in {current}, which is not planned, and not on its way"),
        Move::Missing => "in no log directory that works".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_told_by_where_it_is_and_where_it_goes() {
        let place = |current: Option<&str>, future: Option<&str>| LogPlace {
            current: current.map(str::to_owned),
            future: future.map(str::to_owned),
        };
        for (place, expected) in [
            (Some(place(Some("/b"), None)), Move::Done),
            (Some(place(Some("/a"), Some("/b"))), Move::InProgress),
            (Some(place(Some("/b"), Some("/c"))), Move::Elsewhere("/c".to_owned())),
            (Some(place(Some("/a"), None)), Move::Stays("/a".to_owned())),
            (Some(place(None, None)), Move::Missing),
            (None, Move::Missing),
        ] {
            assert_eq!(state(place.as_ref(), "/b"), expected, "{place:?}");
        }
    }
}
