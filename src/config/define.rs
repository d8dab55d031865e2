//! What a property is: its name, type, default, valid values, and how it may change. One [`Definition`]
//! per property, in the tables of [`super::table`]; the rules of
//! Kafka's `ConfigDef`, its error texts included, because clients show them.

use std::fmt;

/// Kafka's data type of a property (`ConfigDef.Type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Boolean,
    String,
    Short,
    Int,
    Long,
    Double,
    List,
}

impl Kind {
    /// The number of DescribeConfigs' `ConfigType` (KIP-569).
    pub fn wire_id(self) -> i8 {
        match self {
            Kind::Boolean => 1,
            Kind::String => 2,
            Kind::Int => 3,
            Kind::Short => 4,
            Kind::Long => 5,
            Kind::Double => 6,
            Kind::List => 7,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Boolean => "BOOLEAN",
            Kind::String => "STRING",
            Kind::Short => "SHORT",
            Kind::Int => "INT",
            Kind::Long => "LONG",
            Kind::Double => "DOUBLE",
            Kind::List => "LIST",
        }
    }
}

/// The values that a property takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Valid {
    Any,
    AtLeast(i64),
    Between(i64, i64),
    /// -1 or the range.
    BetweenOrMinusOne(i64, i64),
    /// One of the words; of a list, every element.
    OneOf(&'static [&'static str]),
    /// A list with at least one element.
    NotEmpty,
    /// `*` or `partition:broker` pairs (`ThrottledReplicaListValidator`).
    ThrottledReplicas,
}

/// How much an operator should care.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Importance {
    High,
    Medium,
    Low,
}

/// Where a property may be changed while the broker runs (KIP-226).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    ReadOnly,
    /// At the broker's level and as the default of all brokers.
    ClusterWide,
}

/// One property.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Definition {
    pub name: &'static str,
    pub kind: Kind,
    /// As text; `None` is Kafka's null.
    pub default: Option<&'static str>,
    pub valid: Valid,
    pub importance: Importance,
    pub update: Update,
    /// Not shown by DescribeConfigs.
    pub internal: bool,
    pub documentation: &'static str,
}

impl Definition {
    pub(super) const fn dynamic(mut self) -> Self {
        self.update = Update::ClusterWide;
        self
    }

    pub(super) const fn internal(mut self) -> Self {
        self.internal = true;
        self
    }

    /// Parses and checks one value as Kafka does; blanks around it do not count.
    pub fn parse(&self, text: &str) -> Result<Value, InvalidValue> {
        let trimmed = text.trim_matches(|letter: char| letter <= ' ');
        let value = match self.kind {
            Kind::Boolean if trimmed.eq_ignore_ascii_case("true") => Value::Boolean(true),
            Kind::Boolean if trimmed.eq_ignore_ascii_case("false") => Value::Boolean(false),
            Kind::Boolean => {
                return Err(self.invalid(text, "Expected value to be either true or false"));
            }
            Kind::String => Value::String(trimmed.to_owned()),
            Kind::Short => self.integer(text, trimmed, i64::from(i16::MIN), i64::from(i16::MAX))?,
            Kind::Int => self.integer(text, trimmed, i64::from(i32::MIN), i64::from(i32::MAX))?,
            Kind::Long => self.integer(text, trimmed, i64::MIN, i64::MAX)?,
            Kind::Double => match trimmed.parse() {
                Ok(number) => Value::Double(number),
                Err(_) => return Err(self.not_a_number(text)),
            },
            Kind::List if trimmed.is_empty() => Value::List(Vec::new()),
            Kind::List => Value::List(trimmed.split(',').map(|item| item.trim().to_owned()).collect()),
        };
        self.check(&value)?;
        Ok(match value {
            // Kafka drops repeated elements of a list that draws from a fixed set.
            Value::List(items) if matches!(self.valid, Valid::OneOf(_)) => {
                Value::List(without_repeats(items))
            }
            other => other,
        })
    }

    /// The default, parsed.
    pub fn default_value(&self) -> Value {
        match self.default {
            None => Value::Null,
            Some(text) => match self.parse(text) {
                Ok(value) => value,
                Err(invalid) => panic!("the table's own default: {invalid}"),
            },
        }
    }

    /// What would be right, in words, for the message that stops a start.
    pub fn wanted(&self) -> String {
        let number = match self.kind {
            Kind::Double => "a number",
            _ => "a whole number",
        };
        match (self.valid, self.kind) {
            (Valid::AtLeast(low), _) => {
                let high = match self.kind {
                    Kind::Short => i64::from(i16::MAX),
                    Kind::Int => i64::from(i32::MAX),
                    _ => i64::MAX,
                };
                format!("{number} from {low} to {high}")
            }
            (Valid::Between(low, high), _) => format!("{number} from {low} to {high}"),
            (Valid::BetweenOrMinusOne(low, high), _) => format!("{number} from {low} to {high}, or -1"),
            (Valid::OneOf(words), Kind::List) => {
                format!("a comma-separated list out of: {}", words.join(", "))
            }
            (Valid::OneOf(words), _) => format!("one of: {}", words.join(", ")),
            (Valid::ThrottledReplicas, _) => "* or a list of partition:broker pairs".to_owned(),
            (Valid::NotEmpty, _) => "a comma-separated list with no empty element".to_owned(),
            (Valid::Any, Kind::Boolean) => "true or false".to_owned(),
            (Valid::Any, Kind::String) => "a text".to_owned(),
            (Valid::Any, Kind::List) => "a comma-separated list".to_owned(),
            (Valid::Any, Kind::Short) => format!("{number} from {} to {}", i16::MIN, i16::MAX),
            (Valid::Any, Kind::Int) => format!("{number} from {} to {}", i32::MIN, i32::MAX),
            (Valid::Any, Kind::Long | Kind::Double) => number.to_owned(),
        }
    }

    fn integer(&self, text: &str, trimmed: &str, low: i64, high: i64) -> Result<Value, InvalidValue> {
        match trimmed.parse::<i64>() {
            Ok(number) if (low..=high).contains(&number) => Ok(Value::Integer(number)),
            _ => Err(self.not_a_number(text)),
        }
    }

    fn check(&self, value: &Value) -> Result<(), InvalidValue> {
        let shown = || value.to_string();
        match (self.valid, value) {
            (Valid::AtLeast(low), Value::Integer(number)) if *number < low => {
                Err(self.invalid(&shown(), &format!("Value must be at least {low}")))
            }
            (Valid::Between(low, _), Value::Integer(number)) if *number < low => {
                Err(self.invalid(&shown(), &format!("Value must be at least {low}")))
            }
            (Valid::Between(_, high), Value::Integer(number)) if *number > high => {
                Err(self.invalid(&shown(), &format!("Value must be no more than {high}")))
            }
            (Valid::Between(low, _), Value::Double(number)) if *number < low as f64 => {
                Err(self.invalid(&shown(), &format!("Value must be at least {low}")))
            }
            (Valid::Between(_, high), Value::Double(number)) if *number > high as f64 => {
                Err(self.invalid(&shown(), &format!("Value must be no more than {high}")))
            }
            (Valid::BetweenOrMinusOne(low, high), Value::Integer(number))
                if *number != -1 && !(low..=high).contains(number) =>
            {
                let reason = format!("Value must be between {low} and {high} or equal to -1");
                Err(self.invalid(&shown(), &reason))
            }
            (Valid::OneOf(words), Value::String(word)) if !words.contains(&word.as_str()) => {
                Err(self.invalid(word, &format!("String must be one of: {}", words.join(", "))))
            }
            (Valid::OneOf(words), Value::List(items)) => {
                match items.iter().find(|item| !words.contains(&item.as_str())) {
                    None => Ok(()),
                    Some(item) if item.is_empty() => Err(self.empty_element()),
                    Some(item) => {
                        Err(self.invalid(item, &format!("String must be one of: {}", words.join(", "))))
                    }
                }
            }
            (Valid::NotEmpty, Value::List(items)) if items.is_empty() => Err(InvalidValue(format!(
                "Configuration '{}' must not be empty. Valid values include: any non-empty value",
                self.name
            ))),
            (Valid::NotEmpty, Value::List(items)) if items.iter().any(String::is_empty) => {
                Err(self.empty_element())
            }
            (Valid::ThrottledReplicas, Value::List(items)) if !throttled_replicas_are_valid(items) => {
                let reason = format!(
                    "{} must be the literal '*' or a list of replicas in the following format: \
                     [partitionId]:[brokerId],[partitionId]:[brokerId],...",
                    self.name
                );
                Err(self.invalid(&format!("[{}]", items.join(", ")), &reason))
            }
            _ => Ok(()),
        }
    }

    fn invalid(&self, value: &str, reason: &str) -> InvalidValue {
        InvalidValue(format!("Invalid value {value} for configuration {}: {reason}", self.name))
    }

    fn not_a_number(&self, text: &str) -> InvalidValue {
        self.invalid(text, &format!("Not a number of type {}", self.kind.name()))
    }

    fn empty_element(&self) -> InvalidValue {
        InvalidValue(format!("Configuration '{}' values must not be empty.", self.name))
    }
}

/// Why a value is refused, in the words of Kafka's `ConfigException`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub String);

/// A parsed value. Shown as Kafka shows it (`ConfigDef.convertToString`).
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Null,
    Boolean(bool),
    Integer(i64),
    Double(f64),
    String(String),
    List(Vec<String>),
}

impl Value {
    /// The text that DescribeConfigs carries; `None` for null.
    pub fn text(&self) -> Option<String> {
        match self {
            Value::Null => None,
            other => Some(other.to_string()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Boolean(flag) => flag.fmt(f),
            Value::Integer(number) => number.fmt(f),
            Value::Double(number) => f.write_str(&java_double(*number)),
            Value::String(text) => f.write_str(text),
            Value::List(items) => f.write_str(&items.join(",")),
        }
    }
}

/// As Java's `Double.toString`: with a fraction always, and with an exponent from 10^7 on and below 10^-3.
fn java_double(number: f64) -> String {
    let is_plain = number == 0.0 || !number.is_finite() || (1e-3..1e7).contains(&number.abs());
    if is_plain {
        return format!("{number:?}");
    }
    let text = format!("{number:E}");
    match text.split_once('E') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0E{exponent}"),
        _ => text,
    }
}

fn without_repeats(items: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::with_capacity(items.len());
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

fn throttled_replicas_are_valid(items: &[String]) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_pair = |item: &String| {
        item.split_once(':').is_some_and(|(partition, broker)| is_number(partition) && is_number(broker))
    };
    matches!(items, [star] if star == "*") || items.iter().all(is_pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn define(kind: Kind, valid: Valid) -> Definition {
        Definition {
            name: "x.y",
            kind,
            default: None,
            valid,
            importance: Importance::Low,
            update: Update::ReadOnly,
            internal: false,
            documentation: "",
        }
    }

    fn refusal(definition: Definition, text: &str) -> String {
        definition.parse(text).unwrap_err().to_string()
    }

    #[test]
    fn refusals_use_kafkas_words() {
        let int = define(Kind::Int, Valid::AtLeast(1));
        assert_eq!(refusal(int, "abc"), "Invalid value abc for configuration x.y: Not a number of type INT");
        assert_eq!(refusal(int, "0"), "Invalid value 0 for configuration x.y: Value must be at least 1");
        assert_eq!(
            refusal(int, "99999999999"),
            "Invalid value 99999999999 for configuration x.y: Not a number of type INT"
        );
        let level = define(Kind::Int, Valid::BetweenOrMinusOne(1, 9));
        assert_eq!(
            refusal(level, "0"),
            "Invalid value 0 for configuration x.y: Value must be between 1 and 9 or equal to -1"
        );
        let ratio = define(Kind::Double, Valid::Between(0, 1));
        assert_eq!(
            refusal(ratio, "2"),
            "Invalid value 2.0 for configuration x.y: Value must be no more than 1"
        );
        let flag = define(Kind::Boolean, Valid::Any);
        assert_eq!(
            refusal(flag, "yes"),
            "Invalid value yes for configuration x.y: Expected value to be either true or false"
        );
        let policy = define(Kind::List, Valid::OneOf(&["compact", "delete"]));
        assert_eq!(
            refusal(policy, "delete,x"),
            "Invalid value x for configuration x.y: String must be one of: compact, delete"
        );
        let throttled = define(Kind::List, Valid::ThrottledReplicas);
        assert_eq!(
            refusal(throttled, "x"),
            "Invalid value [x] for configuration x.y: x.y must be the literal '*' or a list of replicas in \
             the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
        );
    }

    #[test]
    fn values_are_read_as_java_reads_them() {
        let int = define(Kind::Int, Valid::Any);
        assert_eq!(int.parse(" +5 "), Ok(Value::Integer(5)));
        assert_eq!(define(Kind::Boolean, Valid::Any).parse("TRUE"), Ok(Value::Boolean(true)));
        let policy = define(Kind::List, Valid::OneOf(&["compact", "delete"]));
        assert_eq!(policy.parse("compact , delete,compact").unwrap().to_string(), "compact,delete");
        assert_eq!(policy.parse(""), Ok(Value::List(Vec::new())));
        let double = |text| define(Kind::Double, Valid::Any).parse(text).unwrap().to_string();
        for text in ["1.0", "0.5", "1.7976931348623157E308", "1.0E8", "1.5E-4"] {
            assert_eq!(double(text), text);
        }
        assert_eq!(double("1"), "1.0");
    }
}
