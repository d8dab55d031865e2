//! Records as JSON: text where the bytes are UTF-8, else base64 under a name of its own.

use serde_json::{Map, Value, json};

use crate::client::consumer::ConsumerRecord;

/// One record as one object.
pub fn record(record: &ConsumerRecord) -> Value {
    let mut object = Map::new();
    object.insert("topic".into(), json!(record.partition.topic.as_str()));
    object.insert("partition".into(), json!(record.partition.partition.0));
    object.insert("offset".into(), json!(record.offset.0));
    object.insert("timestamp".into(), json!(record.timestamp.0));
    put_bytes(&mut object, "key", record.key.as_deref());
    put_bytes(&mut object, "value", record.value.as_deref());
    if !record.headers.is_empty() {
        let headers = record.headers.iter().map(|(key, value)| header(key, value.as_deref())).collect();
        object.insert("headers".into(), Value::Array(headers));
    }
    Value::Object(object)
}

fn header(key: &[u8], value: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    put_bytes(&mut object, "key", Some(key));
    put_bytes(&mut object, "value", value);
    Value::Object(object)
}

/// Puts bytes under `name`, or as base64 under `name_base64` when they are no UTF-8. Null stays null.
pub fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => object.insert(name.into(), Value::Null),
        Some((_, Ok(text))) => object.insert(name.into(), json!(text)),
        Some((bytes, Err(_))) => object.insert(format!("{name}_base64"), json!(base64(bytes))),
    };
}

/// Standard base64 with padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let three = [chunk[0], *chunk.get(1).unwrap_or(&0), *chunk.get(2).unwrap_or(&0)];
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for position in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * position) & 63) as usize];
            text.push(if position <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }

    #[test]
    fn bytes_that_are_no_text_are_named_so() {
        let mut object = Map::new();
        put_bytes(&mut object, "key", None);
        put_bytes(&mut object, "value", Some(b"\xff"));
        assert_eq!(Value::Object(object).to_string(), r#"{"key":null,"value_base64":"/w=="}"#);
    }
}
