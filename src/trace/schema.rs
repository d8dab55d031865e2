//! The fields of every request and response of Apache Kafka 4.4, version by version, from `messages.txt`, which
//! `tests/clients/java/Schemas.java` writes from Kafka's message definitions. Parsed once, when a trace begins.

use std::collections::HashMap;

/// One line for each message: `KEY NAME request|response MIN-MAX FLEXIBLE FIELDS`.
///
/// A field is `name`, `@since-until` where it is not in all versions, `#tag` where it is tagged, then `:` and its kind:
/// a word, `[kind]` for an array, `{fields}` for a structure, `?{fields}` for one that may be null.
const MESSAGES: &str = include_str!("messages.txt");

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    Request,
    Response,
}

/// All versions of one request or response.
#[derive(Debug)]
pub struct Message {
    pub name: &'static str,
    pub min: i16,
    pub max: i16,
    /// The first version with compact lengths and tagged fields (KIP-482).
    pub flexible: i16,
    pub fields: Vec<Field>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    pub name: &'static str,
    pub since: i16,
    pub until: i16,
    pub tag: Option<u32>,
    pub kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Bool,
    Int8,
    Int16,
    Uint16,
    Int32,
    Uint32,
    Int64,
    Float64,
    Uuid,
    /// Strings, bytes, records and arrays may all be null here: who sends null where it must not is shown so.
    String,
    Bytes,
    Records,
    Array(Box<Kind>),
    Struct(Vec<Field>),
    NullableStruct(Vec<Field>),
}

impl Field {
    pub fn is_in(&self, version: i16) -> bool {
        self.since <= version && version <= self.until
    }
}

impl Message {
    pub fn has(&self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }
}

pub struct Schemas {
    messages: HashMap<(i16, Direction), Message>,
}

impl Schemas {
    /// # Panics
    /// If `messages.txt` is malformed, which a test rules out.
    pub fn new() -> Self {
        let messages = MESSAGES.lines().filter(|line| !line.starts_with('#')).map(parse_line).collect();
        Self { messages }
    }

    pub fn find(&self, key: i16, direction: Direction) -> Option<&Message> {
        self.messages.get(&(key, direction))
    }

    /// The key of an API by its name, in any case.
    pub fn key_of(&self, name: &str) -> Option<i16> {
        let found = self.messages.iter().find(|(_, message)| message.name.eq_ignore_ascii_case(name));
        found.map(|((key, _), _)| *key)
    }
}

fn parse_line(line: &'static str) -> ((i16, Direction), Message) {
    let mut words = line.splitn(6, ' ');
    let mut word = || words.next().expect("six words");
    let key = word().parse().expect("a key");
    let name = word();
    let direction = if word() == "request" { Direction::Request } else { Direction::Response };
    let (min, max) = range(word());
    let flexible = word().parse().expect("a version");
    let mut parser = Parser { rest: word() };
    let fields = parser.fields();
    assert!(parser.rest.is_empty(), "{name}: {} is left over", parser.rest);
    ((key, direction), Message { name, min, max, flexible, fields })
}

/// `3-13`, `3-` or `3`.
fn range(text: &str) -> (i16, i16) {
    let number = |text: &str| text.parse::<i16>().expect("a version");
    match text.split_once('-') {
        Some((min, "")) => (number(min), i16::MAX),
        Some((min, max)) => (number(min), number(max)),
        None => (number(text), number(text)),
    }
}

struct Parser {
    rest: &'static str,
}

impl Parser {
    /// Up to the bracket that closes them, or the end.
    fn fields(&mut self) -> Vec<Field> {
        let mut fields = Vec::new();
        while !self.rest.is_empty() && !self.rest.starts_with('}') {
            if !self.eat(' ') {
                fields.push(self.field());
            }
        }
        fields
    }

    fn field(&mut self) -> Field {
        let name = self.until(&[':', '@', '#']);
        let (since, until) = if self.eat('@') { range(self.until(&[':', '#'])) } else { (0, i16::MAX) };
        let tag = self.eat('#').then(|| self.until(&[':']).parse().expect("a tag"));
        assert!(self.eat(':'), "{name} has no kind");
        Field { name, since, until, tag, kind: self.kind() }
    }

    fn kind(&mut self) -> Kind {
        if self.eat('[') {
            let element = self.kind();
            assert!(self.eat(']'), "an array without end");
            return Kind::Array(Box::new(element));
        }
        let nullable = self.eat('?');
        if self.eat('{') {
            let fields = self.fields();
            assert!(self.eat('}'), "a structure without end");
            return if nullable { Kind::NullableStruct(fields) } else { Kind::Struct(fields) };
        }
        match self.until(&[' ', ']', '}']) {
            "bool" => Kind::Bool,
            "int8" => Kind::Int8,
            "int16" => Kind::Int16,
            "uint16" => Kind::Uint16,
            "int32" => Kind::Int32,
            "uint32" => Kind::Uint32,
            "int64" => Kind::Int64,
            "float64" => Kind::Float64,
            "uuid" => Kind::Uuid,
            "string" => Kind::String,
            "bytes" => Kind::Bytes,
            "records" => Kind::Records,
            other => panic!("no kind {other}"),
        }
    }

    fn eat(&mut self, wanted: char) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn until(&mut self, ends: &[char]) -> &'static str {
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ApiKey;
    use crate::wire::api::APIS;

    #[test]
    fn every_api_that_the_message_codecs_know_has_a_request_and_a_response() {
        let schemas = Schemas::new();
        for key in ApiKey::iter() {
            let versions = key.valid_versions();
            for direction in [Direction::Request, Direction::Response] {
                let message = schemas.find(key as i16, direction).unwrap_or_else(|| panic!("{key:?}"));
                for version in versions.min..=versions.max {
                    assert!(message.has(version), "{key:?} {version} {direction:?}");
                    let flexible = key.request_header_version(version) >= 2;
                    assert_eq!(version >= message.flexible, flexible, "{key:?} {version} {direction:?}");
                }
            }
        }
    }

    #[test]
    fn every_api_that_kuring_serves_is_known_by_its_name() {
        let schemas = Schemas::new();
        for api in APIS {
            assert_eq!(schemas.key_of(api.name), Some(api.key as i16));
            assert!(
                schemas.find(api.key as i16, Direction::Response).is_some_and(|message| message.has(api.max))
            );
        }
        assert_eq!(schemas.key_of("metadata"), Some(3));
        assert_eq!(schemas.key_of("nothing"), None);
    }

    #[test]
    fn fields_are_parsed_with_versions_tags_and_nesting() {
        let line = "3 Some request 0-13 9 a:int32 list@2-:[{id@10-12:uuid n:string}] t@9-#0:?{x:int8} more:[[int64]]";
        let ((key, direction), message) = parse_line(line);
        assert_eq!(
            (key, direction, message.min, message.max, message.flexible),
            (3, Direction::Request, 0, 13, 9)
        );
        let [a, list, tagged, more] = message.fields.as_slice() else { panic!("{:?}", message.fields) };
        assert_eq!((a.name, a.since, a.until, &a.kind), ("a", 0, i16::MAX, &Kind::Int32));
        assert_eq!((list.since, list.until), (2, i16::MAX));
        let Kind::Array(element) = &list.kind else { panic!("{list:?}") };
        let Kind::Struct(inner) = &**element else { panic!("{element:?}") };
        assert_eq!((inner[0].since, inner[0].until, inner[1].name), (10, 12, "n"));
        assert_eq!(tagged.tag, Some(0));
        assert!(matches!(&tagged.kind, Kind::NullableStruct(fields) if fields[0].kind == Kind::Int8));
        assert_eq!(more.kind, Kind::Array(Box::new(Kind::Array(Box::new(Kind::Int64)))));
    }
}
