//! The names of everything that `/metrics` exports and that is not a counter declared where it is counted.

use crate::base::{Export, Family, LIMIT_HITS, ProcessCounters};
use crate::net::ListenerCounters;
use crate::shard::Counters;

crate::families! {
    /// Memory of the process that is in RAM.
    PROCESS_RESIDENT: gauge "process_resident_memory_bytes" [];
    /// Processor time of the process, user and system.
    PROCESS_CPU: counter "process_cpu_seconds_total" [];
    /// Open descriptors.
    PROCESS_OPEN_FILES: gauge "process_open_fds" [];
    /// The limit on open descriptors.
    PROCESS_OPEN_FILES_MAX: gauge "process_max_fds" [];
    /// Threads of the process.
    PROCESS_THREADS: gauge "process_threads" [];
    /// When the process started, seconds since 1970.
    PROCESS_START: gauge "process_start_time_seconds" [];

    /// 1, with the version in a label.
    BUILD: gauge "kuring_build_info" ["version"];
    /// 1 for the state that the broker is in, 0 for the others: starting, serving, stopping.
    BROKER_STATE: gauge "kuring_broker_state" ["state"];
    /// Descriptors that the partitions and connections there are may need; compare process_max_fds.
    OPEN_FILES_NEEDED: gauge "kuring_open_files_needed" [];
    /// How long the figures of this answer took to gather.
    SCRAPE: gauge "kuring_scrape_seconds" [];

    /// 1 when the shard gave its figures within a second, else 0, and what follows leaves it out.
    SHARD_UP: gauge "kuring_shard_up" ["shard"];
    /// Time in which the shard ran tasks or looked after IO; its rate is the busy ratio.
    SHARD_BUSY: counter "kuring_shard_busy_seconds_total" ["shard"];
    /// Polls of tasks.
    SHARD_TASKS_RUN: counter "kuring_shard_tasks_run_total" ["shard"];
    /// Time in which tasks of the queue (serve, control, back) ran.
    QUEUE_BUSY: counter "kuring_shard_queue_busy_seconds_total" ["shard", "queue"];
    /// Turns that the queue got.
    QUEUE_TURNS: counter "kuring_shard_queue_turns_total" ["shard", "queue"];
    /// How often a task of the shard ran for over 500 ms.
    SHARD_STALLS: counter "kuring_shard_stalls_total" ["shard"];
    /// The longest time in which the shard did not look after IO since the start.
    SHARD_STALL_LONGEST: gauge "kuring_shard_stall_longest_seconds" ["shard"];
    /// Deadlines on the shard's timing wheel.
    SHARD_DEADLINES: gauge "kuring_shard_deadlines" ["shard"];

    /// Requests begun, by API.
    REQUESTS: counter "kuring_requests_total" ["api"];
    /// Errors in answers, by API and Kafka's name of the error: one for each partition, topic or resource.
    REQUEST_ERRORS: counter "kuring_request_errors_total" ["api", "error"];
    /// Time in a phase of a request: queue (received, not begun), local (handled), remote (parked for data, the
    /// disk, other members or the controller), throttle (what a quota makes its client wait), send, total.
    REQUEST_PHASE: histogram "kuring_request_phase_seconds" ["api", "phase"];

    /// Connections that are open.
    CONNECTIONS: gauge "kuring_connections" ["listener"];
    /// Connections that ended, by reason.
    CONNECTIONS_CLOSED: counter "kuring_connections_closed_total" ["reason"];
    /// Connections that bring nothing but heartbeats of group members, and are looked at together every few ms.
    CONNECTIONS_GATHERED: gauge "kuring_connections_gathered" [];
    /// Open fetch sessions.
    FETCH_SESSIONS: gauge "kuring_fetch_sessions" [];
    /// Partitions in the open fetch sessions.
    FETCH_SESSION_PARTITIONS: gauge "kuring_fetch_session_partitions" [];

    /// Open share sessions.
    SHARE_SESSIONS: gauge "kuring_share_sessions" [];
    /// Partitions that are in memory for share groups, one for each group.
    SHARE_PARTITIONS: gauge "kuring_share_partitions" [];

    /// Fetches that wait for more to read.
    FETCHES_WAITING: gauge "kuring_fetches_waiting" [];
    /// DeleteRecords requests that wait for replicas.
    DELETIONS_WAITING: gauge "kuring_record_deletions_waiting" [];
    /// Produce requests that wait for the disk or for replicas.
    APPENDS_WAITING: gauge "kuring_appends_waiting" [];
    /// Received requests held in memory.
    RECEIVE: gauge "kuring_receive_bytes" ["shard"];
    /// Receive memory that lies ready.
    RECEIVE_IDLE: gauge "kuring_receive_idle_bytes" ["shard"];
    /// What each shard may hold of received requests.
    RECEIVE_MAX: gauge "kuring_receive_max_bytes" [];
    /// Decoded requests and answers that their peers have not taken.
    SERVE: gauge "kuring_serve_bytes" ["shard"];
    /// What each shard may hold of them.
    SERVE_MAX: gauge "kuring_serve_max_bytes" [];
    /// How many more requests the shard may send to the other shard that it has sent most.
    MESH_CREDITS: gauge "kuring_mesh_credits" ["shard"];
    /// Requests to shards, itself included, that the shard waits for.
    MESH_CALLS: gauge "kuring_mesh_calls" ["shard"];
    /// Jobs that wait for a file thread.
    FILE_JOBS_WAITING: gauge "kuring_file_jobs_waiting" [];
    /// Reads of what is not in the page cache that wait for a thread.
    COLD_READS_WAITING: gauge "kuring_cold_reads_waiting" [];

    /// 1 while the log directory serves, 0 once it has failed.
    DIRECTORY_ONLINE: gauge "kuring_log_directory_online" ["directory"];
    /// Log directories that have failed.
    DIRECTORIES_OFFLINE: gauge "kuring_log_directories_offline" [];
    /// Log directories that refuse writes because their disk is full.
    DIRECTORIES_FULL: gauge "kuring_log_directories_full" [];
    /// How often a log directory has become full.
    TIMES_FULL: counter "kuring_log_directory_full_total" [];
    /// Batches refused because the disk of their log directory was full.
    APPENDS_REFUSED_FULL: counter "kuring_appends_refused_full_total" [];
    /// Log directories without the reserve (kuring.reserve.bytes) that they should have.
    RESERVES_MISSING: gauge "kuring_log_reserves_missing" [];
    /// Bytes of disk that logs hold reserved ahead of their ends, within kuring.preallocated.bytes.
    PREALLOCATED: gauge "kuring_log_preallocated_bytes" [];
    /// How often a log wanted to reserve more than kuring.preallocated.bytes leaves.
    PREALLOCATIONS_REFUSED: counter "kuring_log_preallocations_refused_total" [];
    /// Reads that a disk answered with an error.
    READ_ERRORS: counter "kuring_log_read_errors_total" [];
    /// Fetches and look-ups that met a damaged batch.
    CORRUPT_READS: counter "kuring_log_corrupt_reads_total" [];
    /// Bytes that the scrub has read.
    SCRUBBED: counter "kuring_scrub_bytes_total" [];
    /// Damaged places that the scrub has found.
    SCRUB_FINDINGS: counter "kuring_scrub_findings_total" [];
    /// Directories of partitions without a topic that were removed.
    STRAYS_REMOVED: counter "kuring_strays_removed_total" [];
    /// Bytes that moves of replicas between log directories have copied.
    MOVED: counter "kuring_move_bytes_total" [];
    /// Time in which those moves were held up by replica.alter.log.dirs.io.max.bytes.per.second.
    MOVES_THROTTLED: counter "kuring_move_throttled_seconds_total" [];
    /// Bytes of the segments in the directory.
    LOG_BYTES: gauge "kuring_log_bytes" ["directory"];
    /// Segments in the directory.
    LOG_SEGMENTS: gauge "kuring_log_segments" ["directory"];
    /// Offsets between the starts and the ends of the logs in the directory.
    LOG_OFFSETS: gauge "kuring_log_offsets" ["directory"];
    /// Partitions in the directory, by state: online, offline.
    PARTITIONS: gauge "kuring_partitions" ["directory", "state"];
    /// Partitions whose logs are being opened.
    PARTITIONS_OPENING: gauge "kuring_partitions_opening" [];
    /// Partitions that this broker leads.
    PARTITIONS_LED: gauge "kuring_partitions_led" [];
    /// Partitions of the cluster without a leader, and partitions led here whose log is offline.
    PARTITIONS_OFFLINE: gauge "kuring_partitions_offline" [];
    /// Partitions led here with fewer in-sync replicas than replicas.
    PARTITIONS_UNDER_REPLICATED: gauge "kuring_partitions_under_replicated" [];
    /// Written bytes that no flush has begun to cover.
    UNFLUSHED: gauge "kuring_log_unflushed_bytes" [];
    /// How long flushes took.
    FLUSHES: histogram "kuring_log_flush_seconds" [];

    /// Cleanings of logs (compaction), by outcome: done, aborted (the log had changed), failed.
    CLEANER_RUNS: counter "kuring_cleaner_runs_total" ["outcome"];
    /// Bytes that the cleaner has read and written.
    CLEANER_BYTES: counter "kuring_cleaner_bytes_total" ["direction"];
    /// Time in which the cleaner's threads worked.
    CLEANER_BUSY: counter "kuring_cleaner_busy_seconds_total" [];
    /// Time in which the cleaner was held up by its budgets.
    CLEANER_THROTTLED: counter "kuring_cleaner_throttled_seconds_total" [];
    /// Dirty part of the dirtiest log at the cleaner's last look.
    CLEANER_DIRTIEST: gauge "kuring_cleaner_dirtiest_ratio" [];
    /// Part of the memory for keys that the last cleaning used.
    CLEANER_MEMORY: gauge "kuring_cleaner_memory_used_ratio" [];
    /// Part of the last cleaning's bytes that stayed.
    CLEANER_KEPT: gauge "kuring_cleaner_kept_ratio" [];
    /// How long the last cleaning took.
    CLEANER_LAST: gauge "kuring_cleaner_last_run_seconds" [];
    /// Time since the cleaner last looked for something to clean.
    CLEANER_SINCE_LOOK: gauge "kuring_cleaner_since_look_seconds" [];
    /// Partitions that cannot be cleaned, at the cleaner's last look.
    UNCLEANABLE: gauge "kuring_cleaner_uncleanable_partitions" ["directory"];
    /// Dirty bytes of partitions that cannot be cleaned.
    UNCLEANABLE_BYTES: gauge "kuring_cleaner_uncleanable_bytes" ["directory"];

    /// Bytes of the topic's logs on this broker (kuring.metrics.logs=topic).
    TOPIC_BYTES: gauge "kuring_topic_log_bytes" ["topic"];
    /// Segments of the topic's logs on this broker (kuring.metrics.logs=topic).
    TOPIC_SEGMENTS: gauge "kuring_topic_log_segments" ["topic"];
    /// Offsets between the starts and the ends of the topic's logs (kuring.metrics.logs=topic).
    TOPIC_OFFSETS: gauge "kuring_topic_log_offsets" ["topic"];
    /// The topic's partitions on this broker (kuring.metrics.logs=topic).
    TOPIC_PARTITIONS: gauge "kuring_topic_partitions" ["topic"];
    /// Bytes of the partition's log (kuring.metrics.logs=partition).
    PARTITION_BYTES: gauge "kuring_partition_log_bytes" ["topic", "partition"];
    /// Segments of the partition's log (kuring.metrics.logs=partition).
    PARTITION_SEGMENTS: gauge "kuring_partition_log_segments" ["topic", "partition"];
    /// The first offset that may be read (kuring.metrics.logs=partition).
    PARTITION_START: gauge "kuring_partition_log_start_offset" ["topic", "partition"];
    /// The offset of the next record (kuring.metrics.logs=partition).
    PARTITION_END: gauge "kuring_partition_log_end_offset" ["topic", "partition"];
    /// The end of what consumers may read (kuring.metrics.logs=partition).
    PARTITION_HIGH_WATERMARK: gauge "kuring_partition_high_watermark_offset" ["topic", "partition"];

    /// Topics of the cluster.
    TOPICS: gauge "kuring_metadata_topics" [];
    /// Partitions of the cluster.
    CLUSTER_PARTITIONS: gauge "kuring_metadata_partitions" [];
    /// Brokers that are registered and not fenced.
    BROKERS_ACTIVE: gauge "kuring_metadata_brokers_active" [];
    /// Brokers that are registered and fenced.
    BROKERS_FENCED: gauge "kuring_metadata_brokers_fenced" [];
    /// The entry of the metadata log that was applied last.
    METADATA_APPLIED: gauge "kuring_metadata_applied_offset" [];
    /// Commands that the controller carried out.
    COMMANDS: counter "kuring_controller_commands_total" ["command"];
    /// Time of the controller's commands: queue (waited for their turn), run.
    COMMAND_TIME: counter "kuring_controller_command_seconds_total" ["command", "phase"];

    /// Consumer groups that this broker coordinates, by state.
    GROUPS: gauge "kuring_groups" ["state"];
    /// Records between a group's committed offsets and the high watermarks, per topic: the largest of them, as
    /// many as kuring.metrics.lag.max says.
    GROUP_LAG: gauge "kuring_group_lag_records" ["group", "topic"];
    /// Pairs of group and topic whose lag is not told.
    GROUP_LAG_LEFT_OUT: gauge "kuring_group_lag_left_out" [];

    /// Transactional ids that this broker coordinates, by the state of their last transaction. Prepared ones wait for
    /// markers.
    TRANSACTIONAL_IDS: gauge "kuring_transactional_ids" ["state"];
    /// What they and their transactions hold, about, of kuring.transactions.bytes.max.
    TRANSACTION_BYTES: gauge "kuring_transactions_bytes" [];
    /// Records, rounds of markers and requests for producer ids that are on their way.
    TRANSACTIONS_PENDING: gauge "kuring_transactions_pending" [];
    /// Transactions whose end is decided and whose markers, or the record that they are complete, could not be written:
    /// they are tried again.
    TRANSACTION_RETRIES_WAITING: gauge "kuring_transaction_retries_waiting" [];
    /// How often that was so.
    TRANSACTION_RETRIES: counter "kuring_transaction_retries_total" [];
    /// Ends of transactions that were not carried through, because a partition obeys a later coordinator.
    TRANSACTIONS_FENCED: counter "kuring_transactions_fenced_total" [];
}

/// Limits that are counted where no [`counters!`](crate::counters) struct is, with their help.
pub(super) const CONNECTIONS_REFUSED: &str = "connections";
pub(super) const CONNECTIONS_PER_IP: &str = "connections_per_ip";
pub(super) const CREATION_RATE: &str = "connection_creation_rate";
pub(super) const IP_CREATION_RATE: &str = "connection_creation_rate_of_ip";
pub(super) const CONNECTIONS_DISPLACED: &str = "connections_displaced";
pub(super) const SERVE_MEMORY: &str = "serve_memory";
pub(super) const RECEIVE_MEMORY: &str = "receive_memory";
pub(super) const MESH_CREDIT: &str = "mesh_credits";
pub(super) const FILE_JOBS: &str = "file_jobs";
pub(super) const FETCH_SESSION_SLOTS: &str = "fetch_sessions";

const LIMITS: [(&str, &str); 10] = [
    (
        CONNECTIONS_REFUSED,
        "A connection waited, or was closed at a controller's listener: max.connections, of the broker or a listener, or \
         the descriptors were used up.",
    ),
    (CONNECTIONS_PER_IP, "A connection was closed: over max.connections.per.ip or its override."),
    (
        CREATION_RATE,
        "A connection waited for max.connection.creation.rate, of the broker or a listener, or was closed for it at a \
         controller's listener.",
    ),
    (
        IP_CREATION_RATE,
        "A connection was closed after a while: its address has the quota connection_creation_rate.",
    ),
    (CONNECTIONS_DISPLACED, "A connection made room for one of the inter-broker listener."),
    (SERVE_MEMORY, "A request waited because its shard held kuring.memory.serve.bytes."),
    (RECEIVE_MEMORY, "A connection waited because its shard held kuring.memory.receive.bytes of requests."),
    (MESH_CREDIT, "A request waited because its shard had sent another as many as it may."),
    (FILE_JOBS, "A job found the queue of the file threads, or of those that read for clients, full."),
    (FETCH_SESSION_SLOTS, "A fetch session made room for another."),
];

/// Every family that is exported, in the order in which they are.
pub fn families() -> Vec<&'static Family> {
    let totals = exports().filter_map(|export| match export {
        Export::Total(family) => Some(family),
        Export::Limit { .. } => None,
    });
    FAMILIES.iter().copied().chain(totals).chain([&LIMIT_HITS]).collect()
}

/// Every limit whose hits are counted, with what a hit means.
pub fn limits() -> Vec<(&'static str, &'static str)> {
    let declared = exports().filter_map(|export| match export {
        Export::Limit { name, help } => Some((*name, help.trim_start())),
        Export::Total(_) => None,
    });
    let mut limits: Vec<_> = declared.chain(LIMITS).collect();
    limits.sort_unstable();
    limits
}

/// Every struct of counters: a new one goes here.
fn exports() -> impl Iterator<Item = &'static Export> {
    [Counters::EXPORTS, ListenerCounters::EXPORTS, ProcessCounters::EXPORTS].into_iter().flatten()
}
