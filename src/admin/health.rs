//! `/health` and `/ready`: what was gathered, judged, as JSON with the reasons.

use std::time::Duration;

use serde::Serialize;

use super::gather::Gathered;
use super::{Phase, Sources};
use crate::base::BrokerId;
use crate::config::ClusterConfig;
use crate::io::runtime::StallReport;
use crate::metadata::Image;

/// A silence of the watchdog's that counts as a shard that does not run.
const SILENCE_MAX_MS: u128 = 1000;

/// The answer of `/health`: whether the process lives and its shards run.
#[derive(Serialize, PartialEq, Debug)]
pub(super) struct Health {
    pub(super) healthy: bool,
    state: &'static str,
    shards: usize,
    /// Why it is not.
    reasons: Vec<String>,
}

/// The answer of `/ready`: whether clients are served or, by a controller alone, brokers.
#[derive(Serialize, PartialEq, Debug)]
pub(super) struct Readiness {
    pub(super) ready: bool,
    state: &'static str,
    /// Why it is not.
    reasons: Vec<String>,
    partitions: Partitions,
    /// Some of the offline partitions; they do not make the broker unready, the others are served.
    offline: Vec<Offline>,
}

#[derive(Serialize, PartialEq, Default, Debug)]
struct Partitions {
    online: u64,
    opening: u64,
    offline: u64,
}

#[derive(Serialize, PartialEq, Debug)]
struct Offline {
    partition: String,
    reason: String,
}

/// `pings` by shard, `stalls` as the watchdog reports them.
pub(super) fn health(phase: Phase, pings: &[bool], stalls: &[StallReport]) -> Health {
    let mut reasons = Vec::new();
    // Stopping shards end one after the other.
    if phase != Phase::Stopping {
        for shard in pings.iter().enumerate().filter(|(_, answers)| !**answers).map(|(shard, _)| shard) {
            let name = format!("shard-{shard}");
            let stall = stalls.iter().find(|stall| stall.shard == name);
            reasons.push(match stall {
                Some(stall) => format!(
                    "{name} does not answer: silent for {} ms, task that ran last: {}",
                    stall.silent.as_millis(),
                    stall.last_activity
                ),
                None => format!("{name} does not run"),
            });
        }
        for stall in stalls.iter().filter(|stall| stall.silent.as_millis() >= SILENCE_MAX_MS) {
            let is_told = reasons.iter().any(|reason| reason.starts_with(&format!("{} ", stall.shard)));
            if !is_told {
                reasons.push(format!("{} is silent for {} ms", stall.shard, stall.silent.as_millis()));
            }
        }
    }
    Health { healthy: reasons.is_empty(), state: phase.name(), shards: pings.len(), reasons }
}

/// Before there are shards to ask, and while they stop.
pub(super) fn not_serving(phase: Phase) -> Readiness {
    Readiness {
        ready: false,
        state: phase.name(),
        reasons: vec![format!("the node is {}", phase.name())],
        partitions: Partitions::default(),
        offline: Vec::new(),
    }
}

pub(super) fn readiness(phase: Phase, sources: &Sources, gathered: &Gathered) -> Readiness {
    let mut readiness = match phase {
        Phase::Serving => Readiness { ready: true, reasons: Vec::new(), ..not_serving(phase) },
        _ => not_serving(phase),
    };
    let reasons = &mut readiness.reasons;
    match &gathered.control {
        None => reasons.push("shard-0, which has the metadata, does not answer".to_owned()),
        Some(control) => {
            let node = sources.config.node_id;
            reasons.extend(match sources.config.is_broker {
                true => broker_reason(&control.image, node).map(str::to_owned),
                false => {
                    let silence_max = sources.config.cluster.as_ref().map(ClusterConfig::leader_silence_max);
                    controller_reason(&control.image, node, control.silence, silence_max)
                }
            });
        }
    }
    let partitions = &mut readiness.partitions;
    for (shard, report) in gathered.shards.iter().enumerate() {
        let Some(report) = report else {
            reasons.push(format!("shard-{shard} does not answer"));
            continue;
        };
        partitions.opening += report.figures.partitions_opening as u64;
        for sums in &report.figures.directories {
            partitions.online += sums.online;
            partitions.offline += sums.offline;
        }
        readiness.offline.extend(report.figures.offline.iter().map(|(partition, directory)| Offline {
            partition: partition.to_string(),
            reason: match sources.directories.has_failed(*directory) {
                true => {
                    format!("log directory {} has failed", sources.directories.path(*directory).display())
                }
                false => "its log cannot be opened, the broker's log says why".to_owned(),
            },
        }));
    }
    if partitions.opening > 0 {
        reasons.push(format!("{} partitions are being opened", partitions.opening));
    }
    readiness.ready = reasons.is_empty();
    readiness
}

/// Why the node does not serve as a broker.
fn broker_reason(image: &Image, node: BrokerId) -> Option<&'static str> {
    match image.broker(node) {
        None => Some("the broker is not registered"),
        Some(broker) if broker.fenced => Some("the broker is fenced"),
        Some(_) => None,
    }
}

/// Why the node does not serve as a controller that is no broker.
fn controller_reason(
    image: &Image,
    node: BrokerId,
    silence: Duration,
    silence_max: Option<Duration>,
) -> Option<String> {
    // As it has started now, or its phase would be another.
    if image.controller(node).is_none() {
        return Some("the controller is not registered".to_owned());
    }
    let is_silent = silence_max.is_some_and(|max| silence >= max);
    is_silent.then(|| {
        format!("no leader of the metadata log with a majority was heard of for {} s", silence.as_secs())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(shard: &str, silent_ms: u64) -> StallReport {
        StallReport {
            shard: shard.to_owned(),
            longest: Duration::from_secs(5),
            stalls: 1,
            silent: Duration::from_millis(silent_ms),
            last_activity: "flush",
        }
    }

    #[test]
    fn a_shard_that_does_not_answer_is_named_with_what_it_did_last() {
        let health = health(Phase::Serving, &[true, false], &[stall("shard-0", 1), stall("shard-1", 1500)]);
        assert!(!health.healthy);
        assert_eq!(
            health.reasons,
            ["shard-1 does not answer: silent for 1500 ms, task that ran last: flush"]
        );
    }

    #[test]
    fn a_long_stall_of_the_past_is_no_illness() {
        assert!(health(Phase::Serving, &[true], &[stall("shard-0", 2)]).healthy);
        assert!(health(Phase::Starting, &[], &[]).healthy);
        assert!(health(Phase::Stopping, &[false], &[]).healthy);
    }
}
