//! What DescribeConfigs says: the rows of a topic, of a group, of a broker, and of the dynamic defaults of all
//! brokers, with the sources of Kafka's `ConfigHelper`.

use super::define::{Definition, Kind, Update, Value};
use super::log_levels::LogConfigSource;
use super::settings::{Levels, Overrides};
use super::table::{self, group, topic};

/// Where a value comes from. The numbers are those of the protocol (`DescribeConfigsResponse.ConfigSource`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i8)]
pub enum ConfigSource {
    Topic = 1,
    DynamicBroker = 2,
    DynamicDefaultBroker = 3,
    StaticBroker = 4,
    Default = 5,
    Group = 8,
}

impl ConfigSource {
    pub fn wire_id(self) -> i8 {
        self as i8
    }
}

/// One config of a resource.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub name: &'static str,
    /// `None` is Kafka's null: not set and without default.
    pub value: Option<String>,
    pub source: ConfigSource,
    pub read_only: bool,
    pub kind: Kind,
    pub documentation: &'static str,
    /// Every value that is given on any level, the one that counts first.
    pub synonyms: Vec<Synonym>,
}

/// A value given on some level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Synonym {
    pub name: &'static str,
    pub value: String,
    pub source: ConfigSource,
}

impl Levels<'_> {
    /// The rows of a topic with these overrides, of those names that `wanted` picks.
    pub fn describe_topic(&self, topic: &Overrides, wanted: impl Fn(&str) -> bool) -> Vec<Row> {
        let source = LogConfigSource { topic, levels: *self };
        let row = |config: &topic::TopicConfig| {
            let Definition { name, kind, documentation, .. } = config.definition;
            let value = source.value(name).text();
            let mut synonyms = config.synonym.map_or_else(Vec::new, |synonym| self.given_values(synonym));
            if let (true, Some(value)) = (topic.contains_key(name), &value) {
                synonyms.insert(0, Synonym { name, value: value.clone(), source: ConfigSource::Topic });
            }
            Row {
                name,
                value,
                source: first_source(&synonyms),
                read_only: false,
                kind,
                documentation,
                synonyms,
            }
        };
        let shown =
            |config: &&topic::TopicConfig| !config.definition.internal && wanted(config.definition.name);
        topic::TOPIC.iter().filter(shown).map(row).collect()
    }

    /// The rows of a group with these overrides, of those names that `wanted` picks.
    pub fn describe_group(&self, overrides: &Overrides, wanted: impl Fn(&str) -> bool) -> Vec<Row> {
        let row = |config: &group::GroupConfig| {
            let Definition { name, kind, documentation, .. } = config.definition;
            let given = overrides.get(name).and_then(|text| config.definition.parse(text).ok());
            let mut synonyms = match (config.of_broker, config.definition.default) {
                (Some(of_broker), _) => self.given_values(of_broker),
                (None, Some(value)) => {
                    vec![Synonym { name, value: value.to_owned(), source: ConfigSource::Default }]
                }
                (None, None) => Vec::new(),
            };
            if let Some(value) = given.and_then(|value| value.text()) {
                synonyms.insert(0, Synonym { name, value, source: ConfigSource::Group });
            }
            Row {
                name,
                value: synonyms.first().map(|synonym| synonym.value.clone()),
                source: first_source(&synonyms),
                read_only: false,
                kind,
                documentation,
                synonyms,
            }
        };
        group::GROUP.iter().filter(|config| wanted(config.definition.name)).map(row).collect()
    }

    /// The rows of this broker.
    pub fn describe_broker(&self, wanted: impl Fn(&str) -> bool) -> Vec<Row> {
        let row = |definition: &Definition| {
            let synonyms = self.given_values(definition.name);
            broker_row(definition, self.value(definition.name).text(), synonyms)
        };
        shown_of_brokers(wanted).map(row).collect()
    }

    /// The rows of the dynamic defaults of all brokers: only what is set there.
    pub fn describe_cluster(&self, wanted: impl Fn(&str) -> bool) -> Vec<Row> {
        let row = |definition: &Definition| {
            let mut synonyms = self.given_values(definition.name);
            synonyms.retain(|synonym| synonym.source == ConfigSource::DynamicDefaultBroker);
            let value = Some(synonyms.first()?.value.clone());
            Some(broker_row(definition, value, synonyms))
        };
        shown_of_brokers(wanted).filter_map(row).collect()
    }

    /// Every value given for a broker property or a synonym of it, level by level. What a synonym says
    /// before the property itself is given does not count, so Kafka.
    fn given_values(&self, name: &'static str) -> Vec<Synonym> {
        let names = table::synonyms(name);
        let dynamic = |level: &Overrides, source| {
            let given =
                |name: &&'static str| Some(Synonym { name, value: level.get(*name)?.clone(), source });
            names.iter().filter_map(given).collect::<Vec<_>>()
        };
        let mut values = dynamic(self.broker, ConfigSource::DynamicBroker);
        values.extend(dynamic(self.cluster, ConfigSource::DynamicDefaultBroker));
        for name in names {
            let value = self.fixed.given(name).and_then(|value| value.text());
            values.extend(value.map(|value| Synonym { name, value, source: ConfigSource::StaticBroker }));
        }
        for name in names {
            let value = table::default_value(name).and_then(Value::text);
            values.extend(value.map(|value| Synonym { name, value, source: ConfigSource::Default }));
        }
        let own = values.iter().position(|synonym| synonym.name == name);
        values.split_off(own.unwrap_or(values.len()))
    }
}

fn shown_of_brokers(wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = &'static Definition> {
    table::broker_properties().filter(move |definition| !definition.internal && wanted(definition.name))
}

fn broker_row(definition: &Definition, value: Option<String>, synonyms: Vec<Synonym>) -> Row {
    Row {
        name: definition.name,
        value,
        source: first_source(&synonyms),
        read_only: definition.update == Update::ReadOnly,
        kind: definition.kind,
        documentation: definition.documentation,
        synonyms,
    }
}

fn first_source(synonyms: &[Synonym]) -> ConfigSource {
    synonyms.first().map_or(ConfigSource::Default, |synonym| synonym.source)
}
