//! Walks a message by its schema: writes it as JSON, notes which topics it names, and replaces the addresses of brokers
//! in it. Every count and length is compared with the bytes that are there before anything is made of it.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Mutex;

use bytes::Bytes;

use super::address::Address;
use super::json::Json;
use super::records;
use super::schema::{Field, Kind, Message};
use super::secrets::{HIDDEN, is_open_config, is_secret_config, is_secret_field};
use super::{Config, TOPIC_IDS_MAX};
use crate::base::TopicId;
use crate::wire::read::{DecodeError, Reader};

/// Topics that one message is remembered to name.
const TOPICS_MAX: usize = 10_000;

/// KRaft's log (`Uuid.METADATA_TOPIC_ID`): its records have the configs and the hashes of passwords.
const METADATA_TOPIC: &str = "__cluster_metadata";
const METADATA_TOPIC_ID: TopicId = TopicId(uuid::Uuid::from_u128(1));

/// The first version of Produce that begins with a transactional id.
const PRODUCE_TRANSACTIONAL: i16 = 3;

#[derive(Clone, Debug)]
pub struct Decoded {
    pub json: String,
    pub mentions: Mentions,
    /// The message with other addresses of brokers in it, when it had any that was replaced.
    pub rewritten: Option<Bytes>,
    /// Bytes behind the last field.
    pub left: usize,
    /// It sets configs whose values are not shown: what its answer says of them must not be either.
    pub has_secrets: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mentions {
    pub topics: BTreeSet<String>,
    /// Of a Produce request: with 0 there is no response.
    pub acks: Option<i16>,
}

/// The names of topic ids, learned from responses that have both.
#[derive(Default)]
pub struct TopicNames {
    names: Mutex<HashMap<TopicId, String>>,
}

impl TopicNames {
    fn learn(&self, id: TopicId, name: &str) {
        let mut names = self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if names.len() < TOPIC_IDS_MAX || names.contains_key(&id) {
            names.insert(id, name.to_owned());
        }
    }

    fn of(&self, id: TopicId) -> Option<String> {
        self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&id).cloned()
    }
}

/// Finds what stands in for a broker's address.
pub type Replace<'a> = &'a dyn Fn(&Address) -> Option<Address>;

/// What a message is read with.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub config: &'a Config,
    pub names: &'a TopicNames,
    pub replace: Replace<'a>,
    /// It answers what has secrets, and a reason may repeat them: Kafka's name the value that was wrong.
    pub hides_reasons: bool,
}

pub fn decode(
    message: &Message,
    version: i16,
    body: &Bytes,
    context: Context<'_>,
) -> Result<Decoded, DecodeError> {
    let Context { config, names, replace, hides_reasons } = context;
    let mut walk = Walk {
        version,
        flexible: version >= message.flexible,
        json: Json::new(config.line_bytes_max),
        with_records: config.records,
        hides_reasons,
        has_secrets: false,
        sets_configs: matches!(message.name, "AlterConfigs" | "IncrementalAlterConfigs"),
        around: Around::default(),
        mentions: Mentions::default(),
        names,
        replace,
        out: Vec::new(),
        copied: 0,
    };
    let mut cursor = Cursor::new(body);
    walk.structure(&message.fields, &mut cursor)?;
    let left = cursor.reader.left();
    let rewritten = (walk.copied > 0).then(|| {
        walk.out.extend_from_slice(&body[walk.copied..]);
        Bytes::from(walk.out)
    });
    let (json, has_secrets) = (walk.json.into_text(), walk.has_secrets);
    Ok(Decoded { json, mentions: walk.mentions, rewritten, left, has_secrets })
}

/// The acknowledgements that a Produce request asks for, also when what follows them cannot be read.
pub fn acks(message: &Message, version: i16, body: &Bytes) -> Option<i16> {
    let mut reader = Reader::new(body);
    if version >= PRODUCE_TRANSACTIONAL {
        reader.string_bytes(version >= message.flexible).ok()?;
    }
    reader.i16().ok()
}

struct Cursor<'a> {
    input: &'a Bytes,
    reader: Reader<'a>,
}

impl<'a> Cursor<'a> {
    fn new(input: &'a Bytes) -> Self {
        Self { input, reader: Reader::new(input) }
    }
}

struct Walk<'a> {
    version: i16,
    flexible: bool,
    json: Json,
    with_records: bool,
    hides_reasons: bool,
    has_secrets: bool,
    /// It is a request that sets configs.
    sets_configs: bool,
    around: Around,
    mentions: Mentions,
    names: &'a TopicNames,
    replace: Replace<'a>,
    /// The input up to `copied` with its replacements. Nothing is replaced while `copied` is 0: no address stands at a
    /// message's very start.
    out: Vec<u8>,
    copied: usize,
}

/// What the structures around a field have told of it.
#[derive(Clone, Copy, Default)]
struct Around {
    /// Whose configs these are.
    resource: Option<i8>,
    /// The config is a password.
    is_sensitive: bool,
    /// The topic is the metadata log.
    is_metadata: bool,
}

/// What a structure has told of itself so far.
#[derive(Default)]
struct Seen {
    /// A config's value: where it stands.
    value: Option<Range<usize>>,
    topic_id: Option<TopicId>,
    topic: Option<String>,
    /// A host and where it stands: from its length's start to its end.
    host: Option<(String, usize, usize)>,
}

impl Walk<'_> {
    fn structure(&mut self, fields: &[Field], cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
        self.json.open('{');
        let around = self.around;
        let (mut seen, version) = (Seen::default(), self.version);
        for field in fields.iter().filter(|field| field.tag.is_none() && field.is_in(version)) {
            self.json.key(field.name);
            self.field(field, &mut seen, cursor)?;
        }
        if self.flexible {
            self.tagged(fields, &mut seen, cursor)?;
        }
        match (seen.topic_id, seen.topic) {
            (Some(id), Some(name)) => self.names.learn(id, &name),
            (Some(id), None) => {
                if let Some(name) = self.names.of(id) {
                    self.json.key("(topic)");
                    self.json.string(&name);
                    self.mention(name);
                }
            }
            _ => {}
        }
        self.json.close('}');
        self.around = around;
        Ok(())
    }

    fn field(&mut self, field: &Field, seen: &mut Seen, cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
        let start = cursor.reader.position();
        match (field.name, &field.kind) {
            ("host", Kind::String) => {
                let text = self.string(cursor)?;
                seen.host = text.map(|text| (text, start, cursor.reader.position()));
            }
            ("port", Kind::Int32) => {
                let port = cursor.reader.i32()?;
                self.json.plain(port);
                if let (Some((host, start, end)), Ok(port)) = (seen.host.take(), u16::try_from(port)) {
                    self.replace_address(Address { host, port }, start, end, cursor);
                }
            }
            ("topicId", Kind::Uuid) => {
                let id = cursor.reader.topic_id()?;
                self.json.string(&id.to_string());
                self.around.is_metadata |= id == METADATA_TOPIC_ID;
                seen.topic_id = (id != TopicId::ZERO).then_some(id);
            }
            ("topic" | "name" | "topicName", Kind::String) => {
                let text = self.string(cursor)?.filter(|text| !text.is_empty());
                seen.topic.clone_from(&text);
                self.around.is_metadata |= text.as_deref() == Some(METADATA_TOPIC);
                text.into_iter().for_each(|text| self.mention(text));
            }
            ("acks", Kind::Int16) => {
                let acks = cursor.reader.i16()?;
                self.json.plain(acks);
                self.mentions.acks = Some(acks);
            }
            ("resourceType", Kind::Int8) => {
                let kind = cursor.reader.i8()?;
                self.json.plain(kind);
                self.around.resource = Some(kind);
            }
            ("value", Kind::String) => {
                let start = self.json.position();
                self.string(cursor)?;
                let place = start..self.json.position();
                if self.is_secret(seen.topic.as_deref()) {
                    self.has_secrets = true;
                    self.json.replace(place, HIDDEN);
                } else {
                    seen.value = Some(place);
                }
            }
            ("isSensitive", Kind::Bool) => {
                let is_sensitive = cursor.reader.bool()?;
                self.json.plain(is_sensitive);
                self.around.is_sensitive |= is_sensitive;
                if let Some(place) = seen.value.take().filter(|_| is_sensitive) {
                    self.json.replace(place, HIDDEN);
                }
            }
            ("errorMessage", Kind::String) if self.hides_reasons => {
                let start = self.json.position();
                self.string(cursor)?;
                self.json.replace(start..self.json.position(), HIDDEN);
            }
            (name, Kind::Bytes) if is_secret_field(name) => match cursor.reader.bytes(self.flexible)? {
                Some(bytes) => self.json.length(bytes.len()),
                None => self.json.null(),
            },
            (name, kind) => self.value(name, kind, cursor)?,
        }
        Ok(())
    }

    fn value(&mut self, name: &str, kind: &Kind, cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
        match kind {
            Kind::Bool => self.json.plain(cursor.reader.bool()?),
            Kind::Int8 => self.json.plain(cursor.reader.i8()?),
            Kind::Int16 => self.json.plain(cursor.reader.i16()?),
            Kind::Uint16 => self.json.plain(cursor.reader.i16()?.cast_unsigned()),
            Kind::Int32 => self.json.plain(cursor.reader.i32()?),
            Kind::Uint32 => self.json.plain(cursor.reader.i32()?.cast_unsigned()),
            Kind::Int64 => self.json.plain(cursor.reader.i64()?),
            Kind::Float64 => {
                let value = f64::from_bits(cursor.reader.i64()?.cast_unsigned());
                if value.is_finite() { self.json.plain(value) } else { self.json.string(&value.to_string()) }
            }
            Kind::Uuid => self.json.string(&cursor.reader.topic_id()?.to_string()),
            Kind::String => {
                let text = self.string(cursor)?;
                if let Some(text) = text.filter(|_| name.contains("opic") || name == "resourceName") {
                    self.mention(text);
                }
            }
            Kind::Bytes => self.json.nullable(cursor.reader.bytes(self.flexible)?.as_deref()),
            Kind::Records => match cursor.reader.bytes(self.flexible)? {
                Some(bytes) => {
                    // Those of a snapshot are of the metadata log.
                    let each = self.with_records && !self.around.is_metadata && name != "unalignedRecords";
                    records::write(&bytes, each, &mut self.json);
                }
                None => self.json.null(),
            },
            Kind::Array(element) => self.array(name, element, cursor)?,
            Kind::Struct(fields) => self.structure(fields, cursor)?,
            Kind::NullableStruct(fields) => match cursor.reader.i8()? {
                0.. => self.structure(fields, cursor)?,
                _ => self.json.null(),
            },
        }
        Ok(())
    }

    fn array(&mut self, name: &str, element: &Kind, cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
        // Every element takes a byte at least.
        let Some(count) = cursor.reader.count(self.flexible, 1)? else {
            self.json.null();
            return Ok(());
        };
        self.json.open('[');
        let mut left_out = 0;
        for _ in 0..count {
            if self.json.is_full() {
                left_out += 1;
                self.json.hide();
                let walked = self.value(name, element, cursor);
                self.json.show();
                walked?;
            } else {
                self.value(name, element, cursor)?;
            }
        }
        if left_out > 0 {
            self.json.note(&format!("({left_out} more)"));
        }
        self.json.close(']');
        Ok(())
    }

    fn tagged(
        &mut self,
        fields: &[Field],
        seen: &mut Seen,
        cursor: &mut Cursor<'_>,
    ) -> Result<(), DecodeError> {
        let count = cursor.reader.varint()?;
        let mut left_out = 0u32;
        for _ in 0..count {
            let tag = cursor.reader.varint()?;
            let size_at = cursor.reader.position();
            let len = cursor.reader.varint()? as usize;
            let slice = cursor.reader.slice(len)?;
            let known = fields.iter().find(|field| field.tag == Some(tag) && field.is_in(self.version));
            let Some(field) = known else {
                if self.json.is_full() {
                    left_out += 1;
                    continue;
                }
                self.json.key(&format!("(tag {tag})"));
                self.json.bytes(&slice);
                continue;
            };
            self.json.key(field.name);
            let (out, copied) = (std::mem::take(&mut self.out), std::mem::take(&mut self.copied));
            let walked = self.field(field, seen, &mut Cursor::new(&slice));
            let inner_copied = std::mem::replace(&mut self.copied, copied);
            let mut inner = std::mem::replace(&mut self.out, out);
            walked?;
            if inner_copied > 0 {
                inner.extend_from_slice(&slice[inner_copied..]);
                self.out.extend_from_slice(&cursor.input[self.copied..size_at]);
                put_varint(inner.len() as u32, &mut self.out);
                self.out.extend_from_slice(&inner);
                self.copied = cursor.reader.position();
            }
        }
        if left_out > 0 {
            self.json.key("(tags)");
            self.json.note(&format!("({left_out} more)"));
        }
        Ok(())
    }

    /// Whether the value of the config of this name must not be shown.
    fn is_secret(&self, config: Option<&str>) -> bool {
        let name = config.unwrap_or_default();
        self.around.is_sensitive
            || is_secret_config(name)
            || (self.sets_configs && !is_open_config(self.around.resource, name))
    }

    /// Reads a string and writes it.
    fn string(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<String>, DecodeError> {
        let Some(bytes) = cursor.reader.string_bytes(self.flexible)? else {
            self.json.null();
            return Ok(None);
        };
        match std::str::from_utf8(&bytes) {
            Ok(text) => {
                self.json.string(text);
                Ok(Some(text.to_owned()))
            }
            Err(_) => {
                self.json.bytes(&bytes);
                Ok(None)
            }
        }
    }

    /// The port was just read; the host stands from `start` to `end`.
    fn replace_address(&mut self, old: Address, start: usize, end: usize, cursor: &Cursor<'_>) {
        let Some(new) = (self.replace)(&old).filter(|new| *new != old) else { return };
        let port_end = cursor.reader.position();
        self.out.extend_from_slice(&cursor.input[self.copied..start]);
        if self.flexible {
            put_varint(new.host.len() as u32 + 1, &mut self.out);
        } else {
            // An address of ours in text has at most 45 letters.
            self.out.extend_from_slice(&(new.host.len() as i16).to_be_bytes());
        }
        self.out.extend_from_slice(new.host.as_bytes());
        self.out.extend_from_slice(&cursor.input[end..port_end - size_of::<i32>()]);
        self.out.extend_from_slice(&i32::from(new.port).to_be_bytes());
        self.copied = port_end;
    }

    fn mention(&mut self, topic: String) {
        if self.mentions.topics.len() < TOPICS_MAX {
            self.mentions.topics.insert(topic);
        }
    }
}

fn put_varint(mut value: u32, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
