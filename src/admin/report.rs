//! From what was gathered to the text of `/metrics`: pure, but for the process's own figures.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::desk::{ControlReport, ShardReport};
use super::exposition::{Exposition, seconds};
use super::gather::Gathered;
use super::{Phase, Sources, lag, names};
use crate::base::{Export, LIMIT_HITS, PROCESS, ProcessCounters, Recorded, clock};
use crate::io::limits;
use crate::io::runtime::{self, Queue};
use crate::net::{Closed, ListenerCounters};
use crate::shard::{Counters, Detail, LogFigures, Phase as RequestPhase};
use crate::wire::ErrorCode;

/// The text when the broker has come so far that there are shards to ask.
pub(super) fn serving(phase: Phase, sources: &Sources, gathered: &Gathered, took: Duration) -> String {
    let mut text = Exposition::new(names::families());
    process(&mut text, phase);
    text.add(&names::SCRAPE, &[], took.as_secs_f64());
    let reports: Vec<&ShardReport> = gathered.shards.iter().flatten().collect();
    let mut limits: BTreeMap<&'static str, u64> =
        names::limits().into_iter().map(|(name, _)| (name, 0)).collect();
    shards(&mut text, gathered);
    requests(&mut text, &reports);
    connections(&mut text, &reports);
    counters(&mut text, &reports, &mut limits);
    memory(&mut text, sources, &reports, &mut limits);
    logs(&mut text, sources, &reports);
    cleaner(&mut text, sources);
    details(&mut text, &reports);
    if let Some(control) = &gathered.control {
        cluster(&mut text, sources, control, &reports);
        lag::add(&mut text, sources.config.metrics_lag_max, &control.committed, &reports);
    }
    for (name, hits) in limits {
        text.add(&LIMIT_HITS, &[name], hits);
    }
    text.finish()
}

/// The text before that.
pub(super) fn starting(phase: Phase) -> String {
    let mut text = Exposition::new(names::families());
    process(&mut text, phase);
    text.finish()
}

fn process(text: &mut Exposition, phase: Phase) {
    let mut number = |family, value: std::io::Result<u64>| {
        // What the system does not tell is left out.
        if let Ok(value) = value {
            text.add(family, &[], value);
        }
    };
    number(&names::PROCESS_RESIDENT, limits::resident_bytes());
    number(&names::PROCESS_OPEN_FILES, limits::open_files_now());
    number(&names::PROCESS_THREADS, limits::threads());
    number(&names::PROCESS_OPEN_FILES_MAX, Ok(limits::open_files_max()));
    if let Ok(time) = limits::cpu_time() {
        text.add(&names::PROCESS_CPU, &[], time.as_secs_f64());
    }
    let now = clock::now();
    let started_ms = now.wall.0 - i64::try_from(now.monotonic.as_millis()).unwrap_or(0);
    text.add(&names::PROCESS_START, &[], started_ms as f64 / 1e3);
    text.add(&names::BUILD, &[env!("CARGO_PKG_VERSION")], 1);
    for other in Phase::ALL {
        text.add(&names::BROKER_STATE, &[other.name()], u8::from(other == phase));
    }
}

fn shards(text: &mut Exposition, gathered: &Gathered) {
    for (number, report) in gathered.shards.iter().enumerate() {
        let shard = number.to_string();
        text.add(&names::SHARD_UP, &[&shard], u8::from(report.is_some()));
        let Some(ShardReport { figures, .. }) = report else { continue };
        text.add(&names::SHARD_BUSY, &[&shard], figures.work.busy.as_secs_f64());
        text.add(&names::SHARD_TASKS_RUN, &[&shard], figures.work.tasks_run);
        for (queue, work) in Queue::ALL.iter().zip(figures.work.queues) {
            text.add(&names::QUEUE_BUSY, &[&shard, queue.name()], work.busy.as_secs_f64());
            text.add(&names::QUEUE_TURNS, &[&shard, queue.name()], work.turns);
        }
        text.add(&names::SHARD_DEADLINES, &[&shard], figures.deadlines);
        text.add(&names::RECEIVE, &[&shard], figures.receive_bytes);
        text.add(&names::RECEIVE_IDLE, &[&shard], figures.receive_idle_bytes);
        text.add(&names::SERVE, &[&shard], figures.serve_bytes);
        text.add(&names::MESH_CREDITS, &[&shard], figures.mesh_credits);
        text.add(&names::MESH_CALLS, &[&shard], figures.mesh_calls);
    }
    let mut stalls = runtime::stalls();
    stalls.sort_by(|one, other| one.shard.cmp(&other.shard));
    for stall in stalls {
        let Some(shard) = stall.shard.strip_prefix("shard-") else { continue };
        text.add(&names::SHARD_STALLS, &[shard], stall.stalls);
        text.add(&names::SHARD_STALL_LONGEST, &[shard], stall.longest.as_secs_f64());
    }
}

fn requests(text: &mut Exposition, reports: &[&ShardReport]) {
    let recorded = || reports.iter().flat_map(|report| &report.figures.requests);
    // By key, as the table of APIs is.
    let mut apis: BTreeMap<i16, (&'static str, u64, [Recorded; RequestPhase::ALL.len()])> = BTreeMap::new();
    let mut errors: BTreeMap<(i16, i16), (&'static str, u64)> = BTreeMap::new();
    for one in recorded() {
        let key = one.api.key as i16;
        let sums = apis.entry(key).or_insert((one.api.name, 0, Default::default()));
        sums.1 += one.begun;
        for (sum, phase) in sums.2.iter_mut().zip(&one.phases) {
            sum.merge(phase);
        }
        for (code, count) in &one.errors {
            errors.entry((key, *code)).or_insert((one.api.name, 0)).1 += count;
        }
    }
    for (api, begun, phases) in apis.values() {
        text.add(&names::REQUESTS, &[api], begun);
        for (phase, recorded) in RequestPhase::ALL.iter().zip(phases) {
            text.add_histogram(&names::REQUEST_PHASE, &[api, phase.name()], recorded);
        }
    }
    for ((_, code), (api, count)) in &errors {
        text.add(&names::REQUEST_ERRORS, &[api, &error_name(*code)], count);
    }
}

/// Kafka's name of an error, or its number where it is not known.
fn error_name(code: i16) -> String {
    match ErrorCode::try_from_code(code) {
        None | Some(ErrorCode::Unknown(_)) => code.to_string(),
        Some(error) => kafka_name(&format!("{error:?}")),
    }
}

/// `NotLeaderOrFollower` as `NOT_LEADER_OR_FOLLOWER`.
fn kafka_name(variant: &str) -> String {
    let mut name = String::with_capacity(variant.len() + 8);
    for letter in variant.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

fn connections(text: &mut Exposition, reports: &[&ShardReport]) {
    let mut listeners: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (name, values) in reports.iter().flat_map(|report| &report.connections.listeners) {
        add_all(listeners.entry(name.as_str()).or_default(), values);
    }
    for (name, values) in &listeners {
        for (export, value) in ListenerCounters::EXPORTS.iter().zip(values) {
            if let Export::Total(family) = export {
                text.add(family, &[name], value);
            }
        }
        if let [created, ended, ..] = values[..] {
            text.add(&names::CONNECTIONS, &[name], created.saturating_sub(ended));
        }
    }
    for (place, reason) in Closed::ALL.iter().enumerate() {
        let closed: u64 = reports.iter().map(|report| report.connections.closed[place]).sum();
        text.add(&names::CONNECTIONS_CLOSED, &[reason.name()], closed);
    }
    let gathered = reports.iter().map(|report| report.connections.gathered).sum::<usize>();
    text.add(&names::CONNECTIONS_GATHERED, &[], gathered);
    let sessions = || reports.iter().map(|report| report.connections.sessions);
    text.add(&names::FETCH_SESSIONS, &[], sessions().map(|session| session.sessions).sum::<usize>());
    let partitions = sessions().map(|session| session.partitions).sum::<usize>();
    text.add(&names::FETCH_SESSION_PARTITIONS, &[], partitions);
}

fn counters(text: &mut Exposition, reports: &[&ShardReport], limits: &mut BTreeMap<&'static str, u64>) {
    let mut sums = vec![0; Counters::EXPORTS.len()];
    for report in reports {
        add_all(&mut sums, &report.figures.counters);
    }
    let process = ProcessCounters::EXPORTS.iter().zip(PROCESS.values());
    for (export, value) in Counters::EXPORTS.iter().zip(sums).chain(process) {
        match export {
            Export::Total(family) => text.add(family, &[], value),
            Export::Limit { name, .. } => *limits.entry(name).or_default() += value,
        }
    }
}

fn memory(
    text: &mut Exposition,
    sources: &Sources,
    reports: &[&ShardReport],
    limits: &mut BTreeMap<&'static str, u64>,
) {
    let sum = |of: fn(&ShardReport) -> u64| reports.iter().map(|report| of(report)).sum::<u64>();
    text.add(&names::FETCHES_WAITING, &[], sum(|report| report.figures.fetches_parked as u64));
    text.add(&names::DELETIONS_WAITING, &[], sum(|report| report.figures.deletions_waiting as u64));
    text.add(&names::SHARE_SESSIONS, &[], sum(|report| report.figures.share_sessions as u64));
    text.add(&names::SHARE_PARTITIONS, &[], sum(|report| report.figures.share_partitions as u64));
    text.add(&names::APPENDS_WAITING, &[], sum(|report| report.figures.appends_waiting as u64));
    let limits_of_shard = &sources.config.serving_limits;
    let shards = u16::try_from(reports.len()).unwrap_or(u16::MAX);
    text.add(&names::RECEIVE_MAX, &[], limits_of_shard.receive_bytes(shards));
    text.add(&names::SERVE_MAX, &[], limits_of_shard.serve_bytes_max);
    text.add(&names::FILE_JOBS_WAITING, &[], sources.directories.threads.queued());
    text.add(&names::COLD_READS_WAITING, &[], sources.directories.readers.queued());
    text.add(&names::UNFLUSHED, &[], sum(|report| report.figures.unflushed_bytes));
    text.add(&names::OPEN_FILES_NEEDED, &[], sources.open_files_needed);
    let gate = sources.gate.counts();
    for (name, hits) in [
        (names::CONNECTIONS_REFUSED, gate.waited_for_place),
        (names::CONNECTIONS_PER_IP, gate.over_ip),
        (names::IP_CREATION_RATE, gate.over_ip_rate),
        (names::CREATION_RATE, gate.waited_for_rate),
        (names::CONNECTIONS_DISPLACED, gate.displaced),
        (names::SERVE_MEMORY, sum(|report| report.figures.serve_waits)),
    ] {
        *limits.entry(name).or_default() += hits;
    }
    *limits.entry(names::RECEIVE_MEMORY).or_default() += sum(|report| report.figures.receive_muted);
    *limits.entry(names::MESH_CREDIT).or_default() += sum(|report| report.figures.mesh_credit_waits);
    *limits.entry(names::FILE_JOBS).or_default() +=
        sources.directories.threads.over_limit() + sources.directories.readers.over_limit();
    *limits.entry(names::FETCH_SESSION_SLOTS).or_default() +=
        sum(|report| report.connections.sessions.evictions);
}

fn logs(text: &mut Exposition, sources: &Sources, reports: &[&ShardReport]) {
    for index in 0..sources.directories.count() {
        let path = sources.directories.path(index).display().to_string();
        let has_failed = sources.directories.has_failed(index);
        let mut sums = LogFigures::default();
        for part in reports.iter().filter_map(|report| report.figures.directories.get(index)) {
            sums.online += part.online;
            sums.offline += part.offline;
            sums.bytes += part.bytes;
            sums.segments += part.segments;
            sums.offsets += part.offsets;
        }
        text.add(&names::DIRECTORY_ONLINE, &[&path], u8::from(!has_failed));
        text.add(&names::LOG_BYTES, &[&path], sums.bytes);
        text.add(&names::LOG_SEGMENTS, &[&path], sums.segments);
        text.add(&names::LOG_OFFSETS, &[&path], sums.offsets);
        text.add(&names::PARTITIONS, &[&path, "online"], sums.online);
        text.add(&names::PARTITIONS, &[&path, "offline"], sums.offline);
    }
    let disks = sources.directories.counts();
    text.add(&names::DIRECTORIES_OFFLINE, &[], disks.offline_directories);
    text.add(&names::DIRECTORIES_FULL, &[], disks.full_directories);
    text.add(&names::TIMES_FULL, &[], disks.times_full);
    text.add(&names::APPENDS_REFUSED_FULL, &[], disks.appends_refused_for_space);
    text.add(&names::RESERVES_MISSING, &[], disks.reserves_missing);
    text.add(&names::PREALLOCATED, &[], disks.preallocated_bytes);
    text.add(&names::PREALLOCATIONS_REFUSED, &[], disks.preallocations_refused);
    text.add(&names::READ_ERRORS, &[], disks.read_errors);
    text.add(&names::CORRUPT_READS, &[], disks.corrupt_reads);
    text.add(&names::SCRUBBED, &[], disks.scrubbed_bytes);
    text.add(&names::SCRUB_FINDINGS, &[], disks.scrub_findings);
    text.add(&names::STRAYS_REMOVED, &[], disks.strays_removed);
    text.add(&names::MOVED, &[], disks.moved_bytes);
    text.add(&names::MOVES_THROTTLED, &[], disks.moves_throttled_ms as f64 / 1e3);
    let opening: usize = reports.iter().map(|report| report.figures.partitions_opening).sum();
    text.add(&names::PARTITIONS_OPENING, &[], opening);
    let mut flushes = Recorded::default();
    for report in reports {
        flushes.merge(&report.figures.flushes);
    }
    text.add_histogram(&names::FLUSHES, &[], &flushes);
}

fn cleaner(text: &mut Exposition, sources: &Sources) {
    let counters = &sources.directories.cleaner.counters;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let share = |percent: &AtomicU64| get(percent) as f64 / 1e2;
    let seconds = |ms: &AtomicU64| get(ms) as f64 / 1e3;
    text.add(&names::CLEANER_RUNS, &["done"], get(&counters.runs));
    text.add(&names::CLEANER_RUNS, &["aborted"], get(&counters.runs_aborted));
    text.add(&names::CLEANER_RUNS, &["failed"], get(&counters.runs_failed));
    text.add(&names::CLEANER_BYTES, &["read"], get(&counters.read_bytes));
    text.add(&names::CLEANER_BYTES, &["written"], get(&counters.written_bytes));
    text.add(&names::CLEANER_BUSY, &[], seconds(&counters.busy_ms));
    text.add(&names::CLEANER_THROTTLED, &[], seconds(&counters.throttled_ms));
    text.add(&names::CLEANER_DIRTIEST, &[], share(&counters.max_dirty_percent));
    text.add(&names::CLEANER_MEMORY, &[], share(&counters.buffer_utilization_percent));
    text.add(&names::CLEANER_KEPT, &[], share(&counters.recopy_percent));
    text.add(&names::CLEANER_LAST, &[], seconds(&counters.last_clean_ms));
    if let Some(ms) = counters.since_last_look_ms(clock::wall()) {
        text.add(&names::CLEANER_SINCE_LOOK, &[], ms as f64 / 1e3);
    }
    for index in 0..sources.directories.list.len() {
        let path = sources.directories.path(index).display().to_string();
        text.add(&names::UNCLEANABLE, &[&path], counters.uncleanable_partitions(index));
        text.add(&names::UNCLEANABLE_BYTES, &[&path], counters.uncleanable_bytes(index));
    }
}

fn details(text: &mut Exposition, reports: &[&ShardReport]) {
    let mut topics: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for part in reports.iter().flat_map(|report| &report.figures.details) {
        let topic = part.topic.as_str();
        match part.detail {
            Detail::Topic { partitions } => {
                let sums = topics.entry(topic).or_default();
                let values = [part.bytes, part.segments, part.offsets, partitions];
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            Detail::Partition { index, start, end, high_watermark } => {
                let labels = [topic, &index.0.to_string()];
                text.add(&names::PARTITION_BYTES, &labels, part.bytes);
                text.add(&names::PARTITION_SEGMENTS, &labels, part.segments);
                text.add(&names::PARTITION_START, &labels, start.0);
                text.add(&names::PARTITION_END, &labels, end.0);
                text.add(&names::PARTITION_HIGH_WATERMARK, &labels, high_watermark.0);
            }
        }
    }
    for (topic, [bytes, segments, offsets, partitions]) in topics {
        text.add(&names::TOPIC_BYTES, &[topic], bytes);
        text.add(&names::TOPIC_SEGMENTS, &[topic], segments);
        text.add(&names::TOPIC_OFFSETS, &[topic], offsets);
        text.add(&names::TOPIC_PARTITIONS, &[topic], partitions);
    }
}

fn cluster(text: &mut Exposition, sources: &Sources, control: &ControlReport, reports: &[&ShardReport]) {
    let me = Some(sources.config.node_id);
    let image = &control.image;
    let (mut led, mut leaderless, mut under_replicated) = (0u64, 0u64, 0u64);
    for partition in image.topics().flat_map(|topic| &topic.partitions) {
        // Those that are lost here are counted by their logs.
        let lost_here = partition.is_lost_on(sources.config.node_id);
        leaderless += u64::from(partition.leader.is_none() && !lost_here);
        if partition.leader == me {
            led += 1;
            under_replicated += u64::from(partition.isr.len() < partition.replicas.len());
        }
    }
    let offline_here: u64 =
        reports.iter().flat_map(|report| &report.figures.directories).map(|sums| sums.offline).sum();
    text.add(&names::PARTITIONS_LED, &[], led);
    text.add(&names::PARTITIONS_OFFLINE, &[], leaderless + offline_here);
    text.add(&names::PARTITIONS_UNDER_REPLICATED, &[], under_replicated);
    text.add(&names::TOPICS, &[], image.topic_count());
    text.add(&names::CLUSTER_PARTITIONS, &[], image.partition_count());
    let fenced = image.brokers().filter(|broker| broker.fenced).count();
    text.add(&names::BROKERS_FENCED, &[], fenced);
    text.add(&names::BROKERS_ACTIVE, &[], image.brokers().count() - fenced);
    text.add(&names::METADATA_APPLIED, &[], image.version());
    for command in &control.commands {
        let kind = command.kind.name();
        text.add(&names::COMMANDS, &[kind], command.count);
        text.add(&names::COMMAND_TIME, &[kind, "queue"], seconds(command.queue_us * 1000));
        text.add(&names::COMMAND_TIME, &[kind, "run"], seconds(command.run_us * 1000));
    }
    for (state, count) in &control.groups {
        text.add(&names::GROUPS, &[state], count);
    }
    let transactions = &control.transactions;
    for (state, count) in &transactions.ids {
        text.add(&names::TRANSACTIONAL_IDS, &[state], count);
    }
    text.add(&names::TRANSACTION_BYTES, &[], transactions.bytes);
    text.add(&names::TRANSACTIONS_PENDING, &[], transactions.pending);
    text.add(&names::TRANSACTION_RETRIES_WAITING, &[], transactions.retries_waiting);
    text.add(&names::TRANSACTION_RETRIES, &[], transactions.retries);
    text.add(&names::TRANSACTIONS_FENCED, &[], transactions.fenced);
}

fn add_all(sums: &mut Vec<u64>, values: &[u64]) {
    sums.resize(values.len().max(sums.len()), 0);
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_kafkas_names() {
        assert_eq!(error_name(1), "OFFSET_OUT_OF_RANGE");
        assert_eq!(error_name(-1), "UNKNOWN_SERVER_ERROR");
        assert_eq!(error_name(9999), "9999");
    }
}
