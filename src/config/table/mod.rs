//! The tables: the broker properties and the configs of topics and groups that kuring has, with Kafka's names, types,
//! defaults and ranges (Apache Kafka 4.4), and kuring's own with the prefix `kuring.`. What is not
//! here kuring does not have; see `absent` for what becomes of such a property.

mod cluster;
pub(super) mod group;
mod limits;
mod log;
mod quota;
mod server;
mod shares;
pub(super) mod topic;
mod transactions;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::ListenerName;
use super::define::{Definition, Importance, Kind, Update, Valid, Value};

pub(super) const CODECS: &[&str] = &["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"];
pub(super) const CLEANUP_POLICIES: &[&str] = &["compact", "delete"];
pub(super) const TIMESTAMP_TYPES: &[&str] = &["CreateTime", "LogAppendTime"];

/// Every broker property that kuring has.
pub fn broker_properties() -> impl Iterator<Item = &'static Definition> {
    let kafkas = server::SERVER.iter().chain(transactions::TRANSACTIONS).chain(shares::SHARES);
    kafkas.chain(quota::QUOTAS).chain(limits::LIMITS).chain(log::LOG).chain(cluster::CLUSTER)
}

/// The properties that may be set for one listener, as `listener.name.NAME.PROPERTY`.
const OF_LISTENERS: &[&str] = &["max.connections", "max.connection.creation.rate"];

/// The listener and the definition of a property of one listener, if kuring has it.
pub fn find_of_listener(name: &str) -> Option<(ListenerName, &'static Definition)> {
    let (listener, property) = name.strip_prefix("listener.name.")?.split_once('.')?;
    let is_known = !listener.is_empty() && OF_LISTENERS.contains(&property);
    is_known.then(|| find(property)).flatten().map(|definition| (ListenerName::new(listener), definition))
}

/// The definition of a broker property, if kuring has it.
pub fn find(name: &str) -> Option<&'static Definition> {
    BY_NAME.get(name).map(|(definition, _)| *definition)
}

/// The default of a broker property, if kuring has it.
pub fn default_value(name: &str) -> Option<&'static Value> {
    BY_NAME.get(name).map(|(_, value)| value)
}

/// A start asks for a topic's settings once per partition: no search and no parsing then.
static BY_NAME: LazyLock<HashMap<&'static str, (&'static Definition, Value)>> = LazyLock::new(|| {
    broker_properties()
        .map(|definition| (definition.name, (definition, definition.default_value())))
        .collect()
});

/// The other names under which a value may be given, in the order in which they win, the most precise
/// first. A name without synonyms stands alone.
pub fn synonyms(name: &'static str) -> &'static [&'static str] {
    match name {
        "log.retention.ms" | "log.retention.minutes" | "log.retention.hours" => {
            &["log.retention.ms", "log.retention.minutes", "log.retention.hours"]
        }
        "log.roll.ms" | "log.roll.hours" => &["log.roll.ms", "log.roll.hours"],
        "log.roll.jitter.ms" | "log.roll.jitter.hours" => &["log.roll.jitter.ms", "log.roll.jitter.hours"],
        // It falls back on the scheduler's interval, not the other way round.
        "log.flush.interval.ms" => &["log.flush.interval.ms", "log.flush.scheduler.interval.ms"],
        _ => match find(name) {
            Some(definition) => std::slice::from_ref(&definition.name),
            None => &[],
        },
    }
}

pub(super) const fn p(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    valid: Valid,
    importance: Importance,
    documentation: &'static str,
) -> Definition {
    Definition {
        name,
        kind,
        default,
        valid,
        importance,
        update: Update::ReadOnly,
        internal: false,
        documentation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid_by_its_own_definition() {
        for definition in broker_properties() {
            definition.default_value();
            assert!(!definition.documentation.is_empty(), "{}", definition.name);
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names = std::collections::HashSet::new();
        for definition in broker_properties() {
            assert!(names.insert(definition.name), "{}", definition.name);
        }
    }

    #[test]
    fn synonyms_list_the_most_precise_name_first() {
        assert_eq!(synonyms("log.retention.hours")[0], "log.retention.ms");
        assert_eq!(synonyms("log.flush.interval.ms")[1], "log.flush.scheduler.interval.ms");
        assert_eq!(synonyms("log.flush.scheduler.interval.ms"), ["log.flush.scheduler.interval.ms"]);
        assert_eq!(synonyms("num.partitions"), ["num.partitions"]);
    }
}
