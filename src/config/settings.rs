//! The values that were given for broker properties, and the levels on which they may be given: a topic's
//! own overrides aside, a broker's dynamic values win over the dynamic defaults of all brokers, these over
//! the file, and the file over Kafka's default (KIP-226).

use super::define::Value;
use super::log_levels::LogConfigSource;
use super::table;
use super::{CleanerSettings, ListenerName, LogConfig};
use std::collections::BTreeMap;
use std::time::Duration;

/// More threads than this are not made: they would only wait for the disk together.
const CLEANER_THREADS_MAX: u64 = 64;

/// Values of one level by name, as the metadata log keeps them.
pub type Overrides = BTreeMap<String, String>;

/// What the file and the command line set, checked.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
    /// Those of single listeners.
    of_listeners: BTreeMap<(ListenerName, &'static str), Value>,
}

impl Settings {
    pub(super) fn set(&mut self, name: &'static str, value: Value) {
        self.values.insert(name, value);
    }

    pub(super) fn set_of_listener(&mut self, listener: ListenerName, name: &'static str, value: Value) {
        self.of_listeners.insert((listener, name), value);
    }

    /// What was set for single listeners.
    pub(super) fn given_of_listeners(&self) -> impl Iterator<Item = (&ListenerName, &'static str, &Value)> {
        self.of_listeners.iter().map(|((listener, name), value)| (listener, *name, value))
    }

    /// The value if it was set.
    pub fn given(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// The value that was set, else the default.
    pub fn value(&self, name: &str) -> Value {
        match self.given(name) {
            Some(value) => value.clone(),
            None => default_of(name),
        }
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Boolean(flag) => flag,
            other => panic!("{name} is {other:?} in the table, not a boolean"),
        }
    }

    pub(super) fn integer(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Integer(number) => number,
            other => panic!("{name} is {other:?} in the table, not a number"),
        }
    }

    /// For properties whose definition bounds them to the range of `T`.
    pub(super) fn number<T: TryFrom<i64>>(&self, name: &str) -> T {
        let number = self.integer(name);
        match T::try_from(number) {
            Ok(number) => number,
            Err(_) => panic!("the definition of {name} lets {number} pass"),
        }
    }

    /// A time to wait for company: none at 0, nor at -1, where what is there at the same time is enough.
    pub(super) fn linger(&self, name: &str) -> Option<Duration> {
        let ms = u64::try_from(self.integer(name)).ok().filter(|ms| *ms > 0)?;
        Some(Duration::from_millis(ms))
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        match self.value(name) {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => panic!("{name} is {other:?} in the table, not a text"),
        }
    }

    pub(super) fn list(&self, name: &str) -> Option<Vec<String>> {
        match self.value(name) {
            Value::Null => None,
            Value::List(items) => Some(items),
            other => panic!("{name} is {other:?} in the table, not a list"),
        }
    }
}

fn default_of(name: &str) -> Value {
    match table::default_value(name) {
        Some(value) => value.clone(),
        None => panic!("{name} is not in the table of broker properties"),
    }
}

/// The levels below a topic's own overrides, for one broker.
#[derive(Clone, Copy, Debug)]
pub struct Levels<'a> {
    /// Dynamic values of this broker.
    pub broker: &'a Overrides,
    /// Dynamic defaults of all brokers.
    pub cluster: &'a Overrides,
    /// The file and the command line.
    pub fixed: &'a Settings,
}

impl Levels<'_> {
    /// The value that counts. A dynamic value was checked before it was stored; one that is refused all
    /// the same (it was stored by a version that knew more) counts as not given.
    pub fn value(&self, name: &str) -> Value {
        match self.given(name) {
            Some(value) => value,
            None => default_of(name),
        }
    }

    fn given(&self, name: &str) -> Option<Value> {
        let dynamic = |level: &Overrides| {
            let text = level.get(name)?;
            table::find(name)?.parse(text).ok()
        };
        dynamic(self.broker).or_else(|| dynamic(self.cluster)).or_else(|| self.fixed.given(name).cloned())
    }

    /// The settings of a topic with these overrides.
    pub fn log_config(&self, topic: &Overrides) -> LogConfig {
        LogConfigSource { topic, levels: *self }.build()
    }

    /// `max.message.bytes` of a topic with these overrides.
    pub fn message_bytes_max(&self, topic: &Overrides) -> u32 {
        LogConfigSource { topic, levels: *self }.message_bytes_max()
    }

    /// What moves between log directories may copy, all together.
    pub fn move_bytes_per_second(&self) -> u64 {
        self.bytes_per_second("replica.alter.log.dirs.io.max.bytes.per.second")
    }

    /// What throttled partitions may send to followers.
    pub fn leader_bytes_per_second(&self) -> u64 {
        self.bytes_per_second("leader.replication.throttled.rate")
    }

    /// What throttled replicas may fetch.
    pub fn follower_bytes_per_second(&self) -> u64 {
        self.bytes_per_second("follower.replication.throttled.rate")
    }

    fn bytes_per_second(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Integer(number) => u64::try_from(number).unwrap_or(0),
            other => panic!("{name} is {other:?} in the table, not a number"),
        }
    }

    /// What compaction may take.
    pub fn cleaner(&self) -> CleanerSettings {
        let integer = |name| match self.value(name) {
            Value::Integer(number) => u64::try_from(number).unwrap_or(0),
            other => panic!("{name} is {other:?} in the table, not a number"),
        };
        let double = |name| match self.value(name) {
            Value::Double(number) => number,
            other => panic!("{name} is {other:?} in the table, not a number"),
        };
        CleanerSettings {
            enabled: self.value("log.cleaner.enable") == Value::Boolean(true),
            threads: integer("log.cleaner.threads").min(CLEANER_THREADS_MAX) as usize,
            bytes_per_second: double("log.cleaner.io.max.bytes.per.second"),
            map_bytes: integer("log.cleaner.dedupe.buffer.size"),
            map_load_factor: double("log.cleaner.io.buffer.load.factor"),
            buffer_bytes: integer("log.cleaner.io.buffer.size"),
            backoff_ms: integer("log.cleaner.backoff.ms"),
            cpu_percent: integer("kuring.cleaner.cpu.percent"),
        }
    }
}
