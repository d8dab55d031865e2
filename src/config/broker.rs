//! The broker's checked settings: what the file and the command line say, or why they cannot be used.

use super::absent::{self, Absent};
use super::cluster::{self, ClusterConfig};
use super::define::{Definition, Value};
use super::groups::{BOUNDED, ConsumerGroupSettings, consumer_group_settings};
use super::listeners::{Fault, ListenerTexts, Listeners};
use super::properties;
use super::settings::{Levels, Overrides, Settings};
use super::shares;
use super::table;
use super::{
    ConnectionLimits, Listener, ListenerName, LogConfig, QuotaSettings, ServingLimits, ShareGroupSettings,
    ShareStateSettings, TransactionSettings,
};
use crate::base::{BrokerId, Windows};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A properties file: where it lies and what it says.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub path: &'a str,
    pub text: &'a str,
}

impl Source<'static> {
    /// What `kuring serve` uses without `--config`.
    pub const LAPTOP: Source<'static> =
        Source { path: "config/laptop.properties", text: include_str!("../../config/laptop.properties") };
}

/// When a write is acknowledged (`kuring.durability`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Once it is in the page cache, as Kafka does.
    PageCache,
    /// Once it is synced to the disk.
    Fsync,
}

/// Where metrics and health are served (`kuring.admin.listener`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdminListener {
    pub host: String,
    /// 0: any free one.
    pub port: u16,
    /// Somebody asked for it; the default may give way to another node on the same host.
    pub is_given: bool,
}

/// The process's log (`kuring.log.level`, `kuring.log.format`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventLog {
    /// A filter of `tracing`; not checked here.
    pub level: String,
    pub format: LogFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    Text,
    Json,
}

/// How closely `/metrics` looks at logs (`kuring.metrics.logs`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MetricsOfLogs {
    Broker,
    Topic,
    Partition,
}

/// Every setting of the broker, checked. What is dynamic is here as it stands in the file; the value that
/// counts comes from [`BrokerConfig::levels`].
#[derive(Clone, PartialEq, Debug)]
pub struct BrokerConfig {
    pub node_id: BrokerId,
    /// It keeps partitions and serves clients. Else it is a controller and nothing more.
    pub is_broker: bool,
    pub rack: Option<String>,
    /// At least one, without repeats. Of a node that is no broker that of the metadata log alone.
    pub log_dirs: Vec<PathBuf>,
    pub metadata_log_dir: PathBuf,

    /// At least one, unless it is no broker. Those of controllers are not among them.
    pub listeners: Vec<Listener>,
    /// Named by `controller.listener.names`; opened in a cluster.
    pub controller_listeners: Vec<Listener>,
    pub inter_broker_listener: ListenerName,
    /// The other nodes; `None` for a node alone.
    pub cluster: Option<ClusterConfig>,
    /// `None` leaves it to the system.
    pub socket_send_buffer_bytes: Option<u32>,
    /// `None` leaves it to the system.
    pub socket_receive_buffer_bytes: Option<u32>,
    pub socket_request_bytes_max: u32,
    pub socket_listen_backlog: u32,
    pub connection_limits: ConnectionLimits,
    /// What the connections of one shard may take.
    pub serving_limits: ServingLimits,
    pub fetch_bytes_max: u32,
    pub fetch_session_slots_max: u32,
    pub describe_partitions_max: u32,

    pub auto_create_topics: bool,
    pub delete_topics: bool,
    pub num_partitions: i32,
    pub default_replication_factor: i16,
    /// The settings of a topic without overrides, by the file alone.
    pub log: LogConfig,

    pub retention_check_interval_ms: u64,
    /// The first housekeeping of logs comes so long after the start.
    pub log_initial_task_delay_ms: u64,
    pub recovery_point_checkpoint_interval_ms: u64,
    pub log_start_offset_checkpoint_interval_ms: u64,
    pub high_watermark_checkpoint_interval_ms: u64,
    pub producer_id_expiration_ms: i64,
    pub producer_id_expiration_check_interval_ms: u64,

    pub groups: GroupSettings,
    pub transactions: TransactionSettings,
    pub share_states: ShareStateSettings,
    pub quotas: QuotaSettings,
    /// Of throttled replication.
    pub replication_windows: Windows,

    /// `None`: one per core that the process may use, or one where that is no broker's.
    pub shards: Option<u16>,
    /// The cores to use; `None`: those that the process may use.
    pub cpus: Option<Vec<usize>>,
    /// The shards that take connections; `None`: all.
    pub connection_shards: Option<Vec<usize>>,
    /// Whether producers' connections go over to the shard of their partitions.
    pub connection_moves: bool,
    pub durability: Durability,
    /// All log directories together.
    pub unflushed_bytes_max: u64,
    /// Per log directory; 0 for none.
    pub reserve_bytes: u64,
    /// All logs together.
    pub preallocated_bytes_max: u64,
    /// 0: no scrub.
    pub scrub_bytes_per_second: u64,
    /// `None`: strays are kept for ever.
    pub stray_retention_ms: Option<u64>,
    pub file_threads: usize,

    /// `None`: no metrics, no health.
    pub admin_listener: Option<AdminListener>,
    pub metrics_of_logs: MetricsOfLogs,
    /// Pairs of group and topic.
    pub metrics_lag_max: usize,
    pub event_log: EventLog,
    /// One request in so many gets a line; 0: none.
    pub request_log_sample: u64,
    /// `None`: none gets one for being slow.
    pub request_log_slow_ms: Option<u64>,

    /// What was set, for [`BrokerConfig::levels`] and DescribeConfigs.
    pub settings: Settings,
}

/// What the group coordinator needs (`group.*`, `offsets.*`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSettings {
    pub session_timeout_ms_min: i32,
    pub session_timeout_ms_max: i32,
    pub initial_rebalance_delay_ms: i32,
    pub members_max: i32,
    pub members_bytes_max: u64,
    pub offset_metadata_bytes_max: i32,
    pub offsets_commit_timeout_ms: i32,
    /// How long records wait for others to share a batch with, if at all.
    pub append_linger: Option<Duration>,
    pub offsets_retention_ms: i64,
    pub offsets_retention_check_interval_ms: i64,
    pub offsets_topic_partitions: i32,
    pub offsets_topic_replication_factor: i16,
    pub offsets_topic_segment_bytes: i32,
    pub consumer: ConsumerGroupSettings,
    pub share: ShareGroupSettings,
}

/// A configuration that can be used, and what an operator should know about it.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    pub config: BrokerConfig,
    /// One line each.
    pub warnings: Vec<String>,
}

/// Where a value was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    File {
        path: String,
        line: usize,
    },
    /// `--set name=value`.
    CommandLine,
    /// Nowhere: it is the default, or missing.
    NotSet,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line } => write!(f, "{path}:{line}"),
            Place::CommandLine => f.write_str("--set"),
            Place::NotSet => f.write_str("configuration"),
        }
    }
}

/// Why the broker cannot start with this configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    pub place: Place,
    pub name: String,
    /// `None` if it was not given.
    pub value: Option<String>,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.name)?;
        if let Some(value) = &self.value {
            write!(f, " = {value:?}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for ConfigError {}

impl BrokerConfig {
    /// Reads `file` ([`Source::LAPTOP`] if there is none) and puts `overrides` on top.
    pub fn load(file: Option<Source<'_>>, overrides: &[(String, String)]) -> Result<Loaded, ConfigError> {
        let mut given = Given::default();
        given.read(file.unwrap_or(Source::LAPTOP))?;
        for (name, value) in overrides {
            given.values.insert(name.clone(), (value.clone(), Place::CommandLine));
        }
        let is_alone = !cluster::names_others(overrides);
        if file.is_none() && !is_alone {
            // The laptop's file has one replica of everything: among others Kafka's defaults hold.
            given.values.retain(|name, (_, place)| *place == Place::CommandLine || !is_of_replicas(name));
        }
        given.check()
    }

    /// The levels below a topic's overrides, with the dynamic values that the metadata log has.
    pub fn levels<'a>(&'a self, broker: &'a Overrides, cluster: &'a Overrides) -> Levels<'a> {
        Levels { broker, cluster, fixed: &self.settings }
    }

    /// The listener of this name.
    pub fn listener(&self, name: &ListenerName) -> Option<&Listener> {
        self.listeners.iter().find(|listener| listener.name == *name)
    }
}

fn is_of_replicas(name: &str) -> bool {
    ["replication.factor", "min.isr", "min.insync.replicas"].iter().any(|end| name.ends_with(end))
}

/// What was given, by name, with where; and what is to be said about it.
#[derive(Default)]
struct Given {
    values: BTreeMap<String, (String, Place)>,
    warnings: Vec<String>,
}

impl Given {
    fn read(&mut self, source: Source<'_>) -> Result<(), ConfigError> {
        let place = |line| Place::File { path: source.path.to_owned(), line };
        let properties = properties::parse(source.text).map_err(|malformed| ConfigError {
            place: place(malformed.line),
            name: "properties file".to_owned(),
            value: None,
            reason: malformed.reason.to_owned(),
        })?;
        let mut lines: HashMap<String, usize> = HashMap::new();
        for property in properties {
            if let Some(earlier) = lines.insert(property.name.clone(), property.line) {
                self.warnings.push(format!(
                    "{}: {} was already set in line {earlier}; this one counts",
                    place(property.line),
                    property.name
                ));
            }
            self.values.insert(property.name, (property.value, place(property.line)));
        }
        Ok(())
    }

    fn check(mut self) -> Result<Loaded, ConfigError> {
        let mut settings = Settings::default();
        for (name, (text, place)) in &self.values {
            if let Some((listener, definition)) = table::find_of_listener(name) {
                let value = definition.parse(text).map_err(|_| self.invalid_of(name, definition))?;
                settings.set_of_listener(listener, definition.name, value);
                continue;
            }
            match table::find(name) {
                Some(definition) => {
                    let value = definition.parse(text).map_err(|_| self.invalid(definition))?;
                    settings.set(definition.name, value);
                }
                None => match absent::judge(name) {
                    Absent::Refused { harmless, .. } if harmless.contains(&text.trim()) => {}
                    Absent::Refused { reason, .. } => return Err(self.error(name, reason)),
                    Absent::Ignored(reason) => {
                        self.warnings.push(format!("{place}: {name} is ignored: {reason}"));
                    }
                },
            }
        }
        let config = self.build(settings)?;
        for name in cluster::WITHOUT_EFFECT_ALONE {
            if let (None, Some((_, place))) = (&config.cluster, self.values.get(name)) {
                self.warnings.push(format!("{place}: {name} is ignored: a node alone has no use for it"));
            }
        }
        if !config.is_broker
            && let Some((_, place)) = ["log.dirs", "log.dir"].iter().find_map(|name| self.values.get(*name))
            && config.settings.given("metadata.log.dir").is_some()
        {
            self.warnings.push(format!(
                "{place}: log.dirs is ignored: a controller alone keeps the metadata log only"
            ));
        }
        let is_default = config.settings.given("metadata.log.dir").is_none() || config.is_broker;
        if is_default
            && config.settings.given("log.dirs").is_none()
            && config.settings.given("log.dir").is_none()
        {
            let line =
                "log.dirs is not set: data goes to /tmp/kafka-logs, which many systems empty when they start";
            self.warnings.push(line.to_owned());
        }
        Ok(Loaded { config, warnings: self.warnings })
    }

    fn build(&self, mut settings: Settings) -> Result<BrokerConfig, ConfigError> {
        let node_id = self.node_id(&settings)?;
        // As in Kafka, either name stands for the other.
        settings.set("node.id", Value::Integer(node_id.0.into()));
        settings.set("broker.id", Value::Integer(node_id.0.into()));
        // Kafka wants it said; a file that does not say it means this.
        if settings.given("process.roles").is_none() {
            let roles = ["broker", "controller"].map(str::to_owned);
            settings.set("process.roles", Value::List(roles.to_vec()));
        }
        let s = &settings;
        let at_fault = |fault: Fault| self.error(fault.name, &fault.reason);
        cluster::check_roles(s).map_err(at_fault)?;
        let is_broker = cluster::is_broker(s);
        let (mut log_dirs, metadata_log_dir) = self.directories(s)?;
        if !is_broker {
            log_dirs = vec![metadata_log_dir.clone()];
        }
        let Listeners { listeners, controller_listeners, inter_broker } = self.listeners(s)?;
        let cluster = cluster::cluster(s, node_id, &controller_listeners).map_err(at_fault)?;
        self.check_ranges(s)?;
        let none = Overrides::new();
        let levels = Levels { broker: &none, cluster: &none, fixed: s };
        let log = levels.log_config(&none);
        if log.min_compaction_lag_ms > log.max_compaction_lag_ms {
            return Err(self.error(
                "log.cleaner.min.compaction.lag.ms",
                "above log.cleaner.max.compaction.lag.ms; wanted: at most that",
            ));
        }
        let overrides = s.text("max.connections.per.ip.overrides").unwrap_or_default();
        if parse_ip_limits(&overrides).is_none() {
            return Err(self.error(
                "max.connections.per.ip.overrides",
                "wanted: address:count pairs with commas between, the addresses as numbers",
            ));
        }
        let connection_limits = levels.connection_limits();
        if connection_limits.per_ip == 0 && connection_limits.per_ip_overrides.is_empty() {
            return Err(self.error(
                "max.connections.per.ip",
                "0 shuts everyone out; wanted: at least 1, or max.connections.per.ip.overrides beside it",
            ));
        }
        let admin_listener = self.admin_listener(s)?;
        let buffer = |name: &str| u32::try_from(s.integer(name)).ok().filter(|bytes| *bytes > 0);
        Ok(BrokerConfig {
            node_id,
            is_broker,
            rack: s.text("broker.rack").filter(|rack| !rack.is_empty()),
            log_dirs,
            metadata_log_dir,
            listeners,
            controller_listeners,
            inter_broker_listener: inter_broker,
            cluster,
            socket_send_buffer_bytes: buffer("socket.send.buffer.bytes"),
            socket_receive_buffer_bytes: buffer("socket.receive.buffer.bytes"),
            socket_request_bytes_max: s.number("socket.request.max.bytes"),
            socket_listen_backlog: s.number("socket.listen.backlog.size"),
            connection_limits,
            serving_limits: ServingLimits::new(s),
            fetch_bytes_max: s.number("fetch.max.bytes"),
            fetch_session_slots_max: s.number("max.incremental.fetch.session.cache.slots"),
            describe_partitions_max: s.number("max.request.partition.size.limit"),
            auto_create_topics: s.flag("auto.create.topics.enable"),
            delete_topics: s.flag("delete.topic.enable"),
            num_partitions: s.number("num.partitions"),
            default_replication_factor: s.number("default.replication.factor"),
            log,
            retention_check_interval_ms: s.number("log.retention.check.interval.ms"),
            log_initial_task_delay_ms: s.number("log.initial.task.delay.ms"),
            recovery_point_checkpoint_interval_ms: s.number("log.flush.offset.checkpoint.interval.ms"),
            log_start_offset_checkpoint_interval_ms: s
                .number("log.flush.start.offset.checkpoint.interval.ms"),
            high_watermark_checkpoint_interval_ms: s.number("replica.high.watermark.checkpoint.interval.ms"),
            producer_id_expiration_ms: s.integer("producer.id.expiration.ms"),
            producer_id_expiration_check_interval_ms: s.number("producer.id.expiration.check.interval.ms"),
            groups: group_settings(s),
            transactions: TransactionSettings::new(s),
            share_states: ShareStateSettings::new(s),
            quotas: QuotaSettings::new(s),
            replication_windows: Windows::new(
                s.number("replication.quota.window.num"),
                s.number("replication.quota.window.size.seconds"),
            ),
            shards: Some(s.number::<u16>("kuring.shards"))
                .filter(|shards| *shards > 0)
                // Shard 0 does all that a controller does.
                .or((!is_broker).then_some(1)),
            cpus: self.numbers(s, "kuring.cpus")?,
            unflushed_bytes_max: s.number("kuring.unflushed.bytes"),
            connection_shards: self.numbers(s, "kuring.connection.shards")?,
            connection_moves: s.flag("kuring.connection.moves"),
            durability: match s.text("kuring.durability").as_deref() {
                Some("fsync") => Durability::Fsync,
                _ => Durability::PageCache,
            },
            reserve_bytes: s.number("kuring.reserve.bytes"),
            preallocated_bytes_max: s.number("kuring.preallocated.bytes"),
            scrub_bytes_per_second: s.number("kuring.scrub.bytes.per.second"),
            stray_retention_ms: u64::try_from(s.number::<i64>("kuring.stray.retention.ms")).ok(),
            file_threads: s.number("kuring.file.threads"),
            admin_listener,
            metrics_of_logs: match s.text("kuring.metrics.logs").as_deref() {
                Some("partition") => MetricsOfLogs::Partition,
                Some("topic") => MetricsOfLogs::Topic,
                _ => MetricsOfLogs::Broker,
            },
            metrics_lag_max: s.number("kuring.metrics.lag.max"),
            event_log: EventLog {
                level: s.text("kuring.log.level").unwrap_or_default(),
                format: match s.text("kuring.log.format").as_deref() {
                    Some("json") => LogFormat::Json,
                    _ => LogFormat::Text,
                },
            },
            request_log_sample: s.number("kuring.request.log.sample"),
            request_log_slow_ms: Some(s.number("kuring.request.log.slow.ms")).filter(|ms| *ms > 0),
            settings,
        })
    }

    fn node_id(&self, s: &Settings) -> Result<BrokerId, ConfigError> {
        let number = |name: &str| match s.given(name) {
            Some(Value::Integer(number)) => i32::try_from(*number).ok(),
            _ => None,
        };
        match (number("node.id"), number("broker.id").filter(|id| *id >= 0)) {
            (Some(node), Some(broker)) if node != broker => {
                Err(self
                    .error("broker.id", "differs from node.id; wanted: the same number, or node.id alone"))
            }
            (Some(id), _) | (None, Some(id)) => Ok(BrokerId(id)),
            (None, None) => Err(self.error("node.id", "missing; wanted: the number of this node, from 0")),
        }
    }

    fn directories(&self, s: &Settings) -> Result<(Vec<PathBuf>, PathBuf), ConfigError> {
        let name = if s.given("log.dirs").is_some() { "log.dirs" } else { "log.dir" };
        let mut directories: Vec<PathBuf> = Vec::new();
        for text in s.list(name).unwrap_or_default() {
            let directory = PathBuf::from(text);
            if !directories.contains(&directory) {
                directories.push(directory);
            }
        }
        let metadata = match s.text("metadata.log.dir") {
            Some(text) if text.is_empty() => {
                return Err(self.error("metadata.log.dir", "wanted: the path of a directory"));
            }
            Some(text) => PathBuf::from(text),
            None => match directories.first() {
                Some(first) => first.clone(),
                None => return Err(self.error(name, "wanted: the path of at least one directory")),
            },
        };
        Ok((directories, metadata))
    }

    fn listeners(&self, s: &Settings) -> Result<Listeners, ConfigError> {
        ListenerTexts {
            listeners: &s.list("listeners").unwrap_or_default(),
            advertised: s.list("advertised.listeners").as_deref(),
            protocol_map: &s.text("listener.security.protocol.map").unwrap_or_default(),
            protocol_map_is_set: s.given("listener.security.protocol.map").is_some(),
            controller_names: &s.list("controller.listener.names").unwrap_or_default(),
            inter_broker_name: s.text("inter.broker.listener.name").as_deref(),
            inter_broker_protocol: &s.text("security.inter.broker.protocol").unwrap_or_default(),
            inter_broker_protocol_is_set: s.given("security.inter.broker.protocol").is_some(),
            is_controller: cluster::is_controller(s),
            is_broker: cluster::is_broker(s),
        }
        .check()
        .map_err(|fault| self.error(fault.name, &fault.reason))
    }

    /// Ranges that Kafka leaves open in its definitions and checks elsewhere, or not at all.
    fn check_ranges(&self, s: &Settings) -> Result<(), ConfigError> {
        const ONE_OR_MORE: &[&str] = &[
            "log.roll.ms",
            "log.flush.scheduler.interval.ms",
            "replica.high.watermark.checkpoint.interval.ms",
            "group.min.session.timeout.ms",
            "group.max.session.timeout.ms",
        ];
        const ZERO_OR_MORE: &[&str] = &[
            "log.roll.jitter.ms",
            "log.flush.interval.ms",
            "group.initial.rebalance.delay.ms",
            "offset.metadata.max.bytes",
        ];
        let below = |name: &&&str, low: i64| match s.value(name) {
            Value::Integer(number) => number < low,
            _ => false,
        };
        if let Some(name) = ONE_OR_MORE.iter().find(|name| below(name, 1)) {
            return Err(self.error(name, "wanted: a whole number from 1"));
        }
        if let Some(name) = ZERO_OR_MORE.iter().find(|name| below(name, 0)) {
            return Err(self.error(name, "wanted: a whole number from 0"));
        }
        for name in ["log.retention.ms", "log.retention.minutes", "log.retention.hours"] {
            if s.value(name) == Value::Integer(0) {
                return Err(self.error(name, "wanted: a whole number from 1, or -1 to keep records for ever"));
            }
        }
        for name in ["socket.send.buffer.bytes", "socket.receive.buffer.bytes"] {
            if s.integer(name) < -1 || s.integer(name) == 0 {
                return Err(self.error(name, "wanted: a whole number from 1, or -1 for the system's choice"));
            }
        }
        let queued = s.integer("queued.max.request.bytes");
        if queued > 0 && queued < s.integer("socket.request.max.bytes") {
            return Err(self.error(
                "queued.max.request.bytes",
                "below socket.request.max.bytes; wanted: at least that, or -1",
            ));
        }
        if s.integer("group.min.session.timeout.ms") > s.integer("group.max.session.timeout.ms") {
            return Err(self.error("group.min.session.timeout.ms", "above group.max.session.timeout.ms"));
        }
        for [name, least, greatest] in BOUNDED.iter().chain(shares::BOUNDED) {
            if s.integer(name) < s.integer(least) {
                return Err(self.error(name, &format!("below {least}")));
            }
            if s.integer(name) > s.integer(greatest) {
                return Err(self.error(name, &format!("above {greatest}")));
            }
        }
        if !(1..=i64::from(i16::MAX)).contains(&s.integer("default.replication.factor")) {
            return Err(self.error("default.replication.factor", "wanted: a whole number from 1 to 32767"));
        }
        Ok(())
    }

    /// A list as `0-3,8`; `None` when it is empty.
    fn numbers(&self, s: &Settings, name: &'static str) -> Result<Option<Vec<usize>>, ConfigError> {
        let text = s.text(name).unwrap_or_default();
        if text.is_empty() {
            return Ok(None);
        }
        match parse_numbers(&text) {
            Some(numbers) => Ok(Some(numbers)),
            None => Err(self.error(name, "wanted: numbers and ranges of numbers, as in 0-3,8")),
        }
    }

    fn admin_listener(&self, s: &Settings) -> Result<Option<AdminListener>, ConfigError> {
        const NAME: &str = "kuring.admin.listener";
        let text = s.text(NAME).unwrap_or_default();
        if text.is_empty() {
            return Ok(None);
        }
        let parsed = text.rsplit_once(':').and_then(|(host, port)| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Some((host.to_owned(), port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
        });
        match parsed {
            Some((host, port)) => Ok(Some(AdminListener { host, port, is_given: s.given(NAME).is_some() })),
            None => Err(self.error(NAME, "wanted: host:port, as in 127.0.0.1:9644, or nothing for none")),
        }
    }

    fn invalid(&self, definition: &Definition) -> ConfigError {
        self.invalid_of(definition.name, definition)
    }

    fn invalid_of(&self, name: &str, definition: &Definition) -> ConfigError {
        self.error(name, &format!("wanted: {}", definition.wanted()))
    }

    fn error(&self, name: &str, reason: &str) -> ConfigError {
        let (value, place) = match self.values.get(name) {
            Some((value, place)) => (Some(value.clone()), place.clone()),
            None => (None, Place::NotSet),
        };
        // What may hold a password is not shown.
        let is_secret = ["password", "secret", "jaas", "key"].iter().any(|word| name.contains(word));
        let value = value.map(|value| if is_secret { "[hidden]".to_owned() } else { value });
        ConfigError { place, name: name.to_owned(), value, reason: reason.to_owned() }
    }
}

fn group_settings(s: &Settings) -> GroupSettings {
    const MINUTE_MS: i64 = 60_000;
    GroupSettings {
        session_timeout_ms_min: s.number("group.min.session.timeout.ms"),
        session_timeout_ms_max: s.number("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms: s.number("group.initial.rebalance.delay.ms"),
        members_max: s.number("group.max.size"),
        members_bytes_max: s.number("kuring.groups.bytes.max"),
        offset_metadata_bytes_max: s.number("offset.metadata.max.bytes"),
        offsets_commit_timeout_ms: s.number("offsets.commit.timeout.ms"),
        append_linger: s.linger("group.coordinator.append.linger.ms"),
        offsets_retention_ms: s.integer("offsets.retention.minutes") * MINUTE_MS,
        offsets_retention_check_interval_ms: s.integer("offsets.retention.check.interval.ms"),
        offsets_topic_partitions: s.number("offsets.topic.num.partitions"),
        offsets_topic_replication_factor: s.number("offsets.topic.replication.factor"),
        offsets_topic_segment_bytes: s.number("offsets.topic.segment.bytes"),
        consumer: consumer_group_settings(s),
        share: ShareGroupSettings::new(s),
    }
}

/// `address:count` pairs; an IPv6 address may stand in brackets. `None` if it is anything else.
pub(super) fn parse_ip_limits(text: &str) -> Option<BTreeMap<IpAddr, u32>> {
    let mut limits = BTreeMap::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (address, count) = pair.rsplit_once(':')?;
        let address = address.trim().trim_start_matches('[').trim_end_matches(']');
        let count: i32 = count.trim().parse().ok()?;
        limits.insert(address.parse().ok()?, u32::try_from(count).ok()?);
    }
    Some(limits)
}

/// `0-3,8` as sorted numbers; `None` if it is anything else.
fn parse_numbers(text: &str) -> Option<Vec<usize>> {
    const NUMBERS_MAX: usize = 4096;
    let mut numbers = std::collections::BTreeSet::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        if first > last || last >= NUMBERS_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers.into_iter().collect())
}
