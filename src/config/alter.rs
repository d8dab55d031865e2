//! Changes of dynamic configs: the operations of KIP-339, and whether the result is valid. The answers are
//! those of a real Kafka 4.4, but that what has no effect here cannot be changed. Changes nothing itself:
//! the new overrides go into the metadata log.

use super::broker::parse_ip_limits;
use super::define::{Definition, Kind, Update, Value};
use super::groups::bounds_of;
use super::settings::{Overrides, Settings};
use super::shares::ShareReset;
use super::table;
use super::table::group;
use super::table::topic::{self, Support};

/// One step of IncrementalAlterConfigs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alteration {
    pub name: String,
    pub operation: Operation,
    /// Not looked at for [`Operation::Delete`].
    pub value: Option<String>,
}

/// What a step does with the value (`AlterConfigOp.OpType`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Set,
    /// Back to the default.
    Delete,
    /// Adds to a list what is not in it.
    Append,
    /// Takes out of a list.
    Subtract,
}

impl Operation {
    /// From the protocol's number.
    pub fn from_wire(id: i8) -> Option<Self> {
        match id {
            0 => Some(Operation::Set),
            1 => Some(Operation::Delete),
            2 => Some(Operation::Append),
            3 => Some(Operation::Subtract),
            _ => None,
        }
    }
}

/// Why a change is refused; the kind chooses the error code.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AlterError {
    /// INVALID_CONFIG.
    #[error("{0}")]
    InvalidConfig(String),
    /// INVALID_REQUEST.
    #[error("{0}")]
    InvalidRequest(String),
}

/// Whose configs are changed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scope<'a> {
    Topic,
    /// One broker's dynamic values, or the dynamic defaults of all.
    Broker,
    /// One group's, within the bounds that the broker's file sets.
    Group(&'a Settings),
}

impl Scope<'_> {
    /// The overrides after the steps (IncrementalAlterConfigs).
    pub fn alter(self, current: &Overrides, steps: &[Alteration]) -> Result<Overrides, AlterError> {
        check_names_and_nulls(
            steps.iter().map(|step| {
                (step.name.as_str(), step.operation == Operation::Delete || step.value.is_some())
            }),
        )?;
        let mut overrides = current.clone();
        for step in steps {
            let given = step.value.as_deref().unwrap_or_default();
            let value = match step.operation {
                Operation::Delete => {
                    overrides.remove(&step.name);
                    continue;
                }
                Operation::Set => given.to_owned(),
                Operation::Append => {
                    let mut items = self.list(&overrides, step)?;
                    for item in elements(given) {
                        if !items.contains(&item) {
                            items.push(item);
                        }
                    }
                    items.join(",")
                }
                Operation::Subtract => {
                    let mut items = self.list(&overrides, step)?;
                    let taken = elements(given);
                    items.retain(|item| !taken.contains(item));
                    items.join(",")
                }
            };
            overrides.insert(step.name.clone(), value);
        }
        self.validate(&overrides)?;
        Ok(overrides)
    }

    /// The overrides when these replace all there were (AlterConfigs).
    pub fn replace(self, values: &[(String, Option<String>)]) -> Result<Overrides, AlterError> {
        check_names_and_nulls(values.iter().map(|(name, value)| (name.as_str(), value.is_some())))?;
        let given = |(name, value): &(String, Option<String>)| Some((name.clone(), value.clone()?));
        let overrides = values.iter().filter_map(given).collect();
        self.validate(&overrides)?;
        Ok(overrides)
    }

    /// Whether these overrides may stand; for a topic also when it is created.
    pub fn validate(self, overrides: &Overrides) -> Result<(), AlterError> {
        match self {
            Scope::Topic => validate_topic(overrides),
            Scope::Broker => validate_broker(overrides),
            Scope::Group(broker) => validate_group(overrides, broker),
        }
    }

    /// The list that a step adds to or takes from: the override, else Kafka's default.
    fn list(self, overrides: &Overrides, step: &Alteration) -> Result<Vec<String>, AlterError> {
        let definition = self.definition(&step.name);
        let Some(definition) = definition.filter(|definition| definition.kind == Kind::List) else {
            let verb = if step.operation == Operation::Append { "append" } else { "subtract" };
            let name = &step.name;
            return Err(AlterError::InvalidConfig(match self {
                Scope::Topic | Scope::Group(_) => {
                    format!("Can't {} to key {name} because its type is not LIST.", verb.to_uppercase())
                }
                Scope::Broker => format!("Config value {verb} is not allowed for config key: {name}"),
            }));
        };
        let current = overrides.get(definition.name).map(String::as_str).or(definition.default);
        Ok(elements(current.unwrap_or_default()))
    }

    /// What is known of the config of this name.
    pub fn definition(self, name: &str) -> Option<&'static Definition> {
        match self {
            Scope::Topic => topic::find(name).map(|config| &config.definition),
            Scope::Broker => find_of_broker(name),
            Scope::Group(_) => group::find(name).map(|config| &config.definition),
        }
    }
}

/// No name twice, no value missing.
fn check_names_and_nulls<'a>(steps: impl Iterator<Item = (&'a str, bool)>) -> Result<(), AlterError> {
    let mut names = std::collections::HashSet::new();
    let mut without_value = Vec::new();
    for (name, has_value) in steps {
        if !names.insert(name) {
            return Err(AlterError::InvalidRequest("Error due to duplicate config keys".to_owned()));
        }
        if !has_value {
            without_value.push(name);
        }
    }
    match without_value.is_empty() {
        true => Ok(()),
        false => Err(AlterError::InvalidRequest(format!(
            "Null value not supported for : {}",
            without_value.join(", ")
        ))),
    }
}

fn elements(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

fn validate_topic(overrides: &Overrides) -> Result<(), AlterError> {
    let refuse = |text: String| Err(AlterError::InvalidConfig(text));
    if let Some(name) = overrides.keys().find(|name| topic::find(name).is_none()) {
        return refuse(format!("Unknown topic config name: {name}"));
    }
    let mut lags = [0, i64::MAX];
    for (name, text) in overrides {
        let Some(config) = topic::find(name) else { continue };
        let value = match config.definition.parse(text) {
            Ok(value) => value,
            Err(invalid) => return refuse(invalid.to_string()),
        };
        if let Support::DefaultOnly(reason) = config.support
            && value != config.definition.default_value()
        {
            return refuse(reason.to_owned());
        }
        match (name.as_str(), value) {
            ("min.compaction.lag.ms", Value::Integer(lag)) => lags[0] = lag,
            ("max.compaction.lag.ms", Value::Integer(lag)) => lags[1] = lag,
            _ => {}
        }
    }
    let [min, max] = lags;
    match min > max {
        true => refuse(format!(
            "conflict topic config setting min.compaction.lag.ms ({min}) > max.compaction.lag.ms ({max})"
        )),
        false => Ok(()),
    }
}

fn validate_group(overrides: &Overrides, broker: &Settings) -> Result<(), AlterError> {
    let refuse = |text: String| Err(AlterError::InvalidConfig(text));
    if let Some(name) = overrides.keys().find(|name| group::find(name).is_none()) {
        return refuse(format!("Unknown group config name: {name}"));
    }
    for (name, text) in overrides {
        let Some(config) = group::find(name) else { continue };
        let value = match config.definition.parse(text) {
            Ok(value) => value,
            Err(invalid) => return refuse(invalid.to_string()),
        };
        if let ("share.auto.offset.reset", Value::String(reset)) = (name.as_str(), &value)
            && ShareReset::parse(reset).is_none()
        {
            return refuse(format!(
                "Invalid value {reset} for configuration {name}: Invalid value `{reset}` for configuration {name}. \
                 The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS.>'."
            ));
        }
        let bounds = config.of_broker.and_then(|of_broker| bounds_of(of_broker, broker));
        if let (Value::Integer(number), Some(bounds)) = (value, bounds)
            && !bounds.contains(&number)
        {
            let (least, greatest) = bounds.into_inner();
            return refuse(format!("{name} must be in the range {least} to {greatest} inclusive."));
        }
    }
    // Checked above, or the broker's own, which are numbers.
    let number = |name: &str| match (overrides.get(name), group::find(name)) {
        (Some(text), _) => text.trim().parse().unwrap_or(i64::MAX),
        (None, config) => {
            config.and_then(|config| config.of_broker).map_or(i64::MAX, |name| broker.integer(name))
        }
    };
    let is_given = |names: &&[&str; 2]| names.iter().any(|name| overrides.contains_key(*name));
    match group::ABOVE.iter().filter(is_given).find(|[above, below]| number(above) <= number(below)) {
        Some([above, below]) => refuse(format!("{above} must be greater than {below}")),
        None => Ok(()),
    }
}

/// The definition of a property of the broker or of one of its listeners.
fn find_of_broker(name: &str) -> Option<&'static Definition> {
    table::find(name).or_else(|| table::find_of_listener(name).map(|(_, definition)| definition))
}

fn validate_broker(overrides: &Overrides) -> Result<(), AlterError> {
    let refuse = |text: String| Err(AlterError::InvalidRequest(text));
    let is_fixed =
        |name: &&str| find_of_broker(name).is_none_or(|definition| definition.update == Update::ReadOnly);
    let fixed: Vec<_> = overrides.keys().map(String::as_str).filter(is_fixed).collect();
    if !fixed.is_empty() {
        return refuse(format!("Cannot update these configs dynamically: [{}]", fixed.join(", ")));
    }
    for (name, text) in overrides {
        let Some(definition) = find_of_broker(name) else { continue };
        let value = match definition.parse(text) {
            Ok(value) => value,
            Err(invalid) => return refuse(invalid.to_string()),
        };
        // Kafka checks these outside of its definitions, in these words.
        let fault = match (definition.name, &value) {
            ("log.roll.ms", Value::Integer(..1)) => "must be greater than or equal to 1",
            ("log.roll.jitter.ms" | "log.flush.interval.ms", Value::Integer(..0)) => {
                "must be greater than or equal to 0"
            }
            ("log.retention.ms", Value::Integer(0)) => {
                "must be unlimited (-1) or, greater than or equal to 1"
            }
            ("max.connections.per.ip", Value::Integer(0))
                if overrides.get("max.connections.per.ip.overrides").is_none_or(String::is_empty) =>
            {
                "can be set to zero only if max.connections.per.ip.overrides property is set."
            }
            ("max.connections.per.ip.overrides", Value::String(text)) if parse_ip_limits(text).is_none() => {
                "must be address:count pairs with commas between, the addresses as numbers"
            }
            _ => continue,
        };
        return refuse(format!("requirement failed: {name} {fault}"));
    }
    Ok(())
}
