//! The limits on connections, and on the memory and time that their requests may take, as checked structs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::ListenerName;
use super::define::Value;
use super::settings::{Levels, Settings};
use super::table;

/// Limits on connections. All of them dynamic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionLimits {
    /// The next one waits.
    pub total: u32,
    /// The next one is closed.
    pub per_ip: u32,
    pub per_ip_overrides: BTreeMap<IpAddr, u32>,
    /// More of them wait.
    pub creation_per_second: u32,
    /// What is set for single listeners.
    pub per_listener: BTreeMap<ListenerName, ListenerLimits>,
}

/// Limits on the connections of one listener; the next one waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerLimits {
    pub total: u32,
    pub creation_per_second: u32,
}

impl ListenerLimits {
    pub const NONE: Self = Self { total: u32::MAX, creation_per_second: u32::MAX };
}

impl ConnectionLimits {
    /// How many connections this address may have.
    pub fn of(&self, address: IpAddr) -> u32 {
        self.per_ip_overrides.get(&address).copied().unwrap_or(self.per_ip)
    }

    pub fn of_listener(&self, listener: &ListenerName) -> ListenerLimits {
        self.per_listener.get(listener).copied().unwrap_or(ListenerLimits::NONE)
    }
}

impl Levels<'_> {
    /// The limits on connections.
    pub fn connection_limits(&self) -> ConnectionLimits {
        let overrides = match self.value("max.connections.per.ip.overrides") {
            Value::String(text) => super::broker::parse_ip_limits(&text).unwrap_or_default(),
            _ => BTreeMap::new(),
        };
        let mut per_listener = BTreeMap::new();
        for (listener, name, value) in self.given_of_listeners() {
            let limits = per_listener.entry(listener).or_insert(ListenerLimits::NONE);
            match name {
                "max.connections" => limits.total = number(&value),
                _ => limits.creation_per_second = number(&value),
            }
        }
        ConnectionLimits {
            total: number(&self.value("max.connections")),
            per_ip: number(&self.value("max.connections.per.ip")),
            per_ip_overrides: overrides,
            creation_per_second: number(&self.value("max.connection.creation.rate")),
            per_listener,
        }
    }

    /// The properties of single listeners that are given on any level, those that count last.
    fn given_of_listeners(&self) -> Vec<(ListenerName, &'static str, Value)> {
        let mut given: Vec<_> = self
            .fixed
            .given_of_listeners()
            .map(|(listener, name, value)| (listener.clone(), name, value.clone()))
            .collect();
        for (name, text) in self.cluster.iter().chain(self.broker) {
            if let Some((listener, definition)) = table::find_of_listener(name)
                && let Ok(value) = definition.parse(text)
            {
                given.push((listener, definition.name, value));
            }
        }
        given
    }
}

/// The definitions let no negative number pass.
fn number(value: &Value) -> u32 {
    match value {
        Value::Integer(number) => u32::try_from(*number).unwrap_or(0),
        other => panic!("a limit is {other:?} in the table, not a number"),
    }
}

/// What the connections of one shard may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServingLimits {
    /// Of received requests, per shard, by `kuring.memory.receive.bytes` alone.
    pub receive_bytes_max: u64,
    /// Of received requests, all shards together (`queued.max.request.bytes`).
    pub queued_bytes_max: Option<u64>,
    /// Of answers and decoded requests, per shard.
    pub serve_bytes_max: u64,
    /// Of requests in service, per connection.
    pub connection_bytes_max: u64,
    /// Produce requests in service, per connection.
    pub connection_requests_max: usize,
    /// `None`: for ever, here and below.
    pub first_request_time_max: Option<Duration>,
    pub request_time_max: Option<Duration>,
    pub response_time_max: Option<Duration>,
    /// Bytes per second.
    pub rate_min: u32,
    /// How long a connection may stall while others wait for the memory that it holds.
    pub stall_time_max: Duration,
    pub idle_time_max: Option<Duration>,
}

impl ServingLimits {
    pub(super) fn new(s: &Settings) -> Self {
        let time = |name: &str| u64::try_from(s.integer(name)).ok().map(Duration::from_millis);
        Self {
            receive_bytes_max: s.number("kuring.memory.receive.bytes"),
            queued_bytes_max: u64::try_from(s.integer("queued.max.request.bytes"))
                .ok()
                .filter(|max| *max > 0),
            serve_bytes_max: s.number("kuring.memory.serve.bytes"),
            connection_bytes_max: s.number("kuring.memory.connection.bytes"),
            connection_requests_max: s.number("kuring.connection.requests.max"),
            first_request_time_max: time("kuring.connection.first.request.ms"),
            request_time_max: time("kuring.connection.request.ms"),
            response_time_max: time("kuring.connection.response.ms"),
            rate_min: s.number("kuring.connection.rate.min"),
            stall_time_max: Duration::from_millis(s.number("kuring.memory.stall.ms")),
            idle_time_max: time("connections.max.idle.ms"),
        }
    }

    /// What one of `shards` shards may hold of received requests.
    pub fn receive_bytes(&self, shards: u16) -> u64 {
        let share = self.queued_bytes_max.map_or(u64::MAX, |total| total / u64::from(shards.max(1)));
        self.receive_bytes_max.min(share)
    }
}
