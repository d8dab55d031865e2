//! JSON text in the order in which a message has its fields, with a bound: elements of arrays and letters of strings
//! beyond it are counted, not written. What is beyond it then are brackets and the names of fields.

use std::ops::Range;

/// Longer bytes are told by their length.
pub const BYTES_SHOWN_MAX: usize = 1024;

/// The JSON of one message while it is written. Commas are its business.
pub struct Json {
    text: String,
    bytes_max: usize,
    /// Depth of what is being left out; 0 writes.
    hidden: usize,
}

impl Json {
    pub fn new(bytes_max: usize) -> Self {
        Self { text: String::new(), bytes_max, hidden: 0 }
    }

    pub fn into_text(self) -> String {
        self.text
    }

    /// Whether there is room for another element.
    pub fn is_full(&self) -> bool {
        self.text.len() >= self.bytes_max
    }

    /// Where the next value begins.
    pub fn position(&self) -> usize {
        self.text.len()
    }

    /// Puts a string in the place of a value that is there already. What is being left out is not there.
    pub fn replace(&mut self, place: Range<usize>, value: &str) {
        if !place.is_empty() && self.text.get(place.clone()) != Some("null") {
            let mut text = String::new();
            push_string(&mut text, value, usize::MAX);
            self.text.replace_range(place, &text);
        }
    }

    /// Until [`Json::show`], nothing is written.
    pub fn hide(&mut self) {
        self.hidden += 1;
    }

    pub fn show(&mut self) {
        self.hidden -= 1;
    }

    pub fn open(&mut self, bracket: char) {
        self.value(|text| text.push(bracket));
    }

    pub fn close(&mut self, bracket: char) {
        if self.hidden == 0 {
            self.text.push(bracket);
        }
    }

    pub fn key(&mut self, name: &str) {
        self.value(|text| {
            push_string(text, name, usize::MAX);
            text.push(':');
        });
    }

    pub fn null(&mut self) {
        self.value(|text| text.push_str("null"));
    }

    /// A number or a boolean.
    pub fn plain(&mut self, value: impl std::fmt::Display) {
        self.value(|text| text.push_str(&value.to_string()));
    }

    pub fn string(&mut self, value: &str) {
        let room = self.room();
        self.value(|text| push_string(text, value, room));
    }

    /// A few words of our own, which are told also beyond the bound.
    pub fn note(&mut self, words: &str) {
        self.value(|text| push_string(text, words, usize::MAX));
    }

    pub fn nullable(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bytes(bytes),
            None => self.null(),
        }
    }

    /// As text where they are UTF-8, else as an object with their hexadecimal digits; long ones by their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if bytes.len() > BYTES_SHOWN_MAX {
            return self.length(bytes.len());
        }
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains(|c: char| c.is_control() && !c.is_whitespace()) => self.string(text),
            _ if 2 * bytes.len() > self.room() => self.length(bytes.len()),
            _ => self.value(|text| {
                text.push_str("{\"hex\":\"");
                for byte in bytes {
                    text.push_str(&format!("{byte:02x}"));
                }
                text.push_str("\"}");
            }),
        }
    }

    /// JSON of another of this kind.
    pub fn raw(&mut self, json: &str) {
        self.value(|text| text.push_str(json));
    }

    pub fn length(&mut self, len: usize) {
        self.value(|text| text.push_str(&format!("{{\"bytes\":{len}}}")));
    }

    /// Bytes that may still be written.
    fn room(&self) -> usize {
        self.bytes_max.saturating_sub(self.text.len())
    }

    fn value(&mut self, write: impl FnOnce(&mut String)) {
        if self.hidden > 0 {
            return;
        }
        if !self.text.is_empty() && !self.text.ends_with(['[', '{', ':']) {
            self.text.push(',');
        }
        write(&mut self.text);
    }
}

/// What does not fit into `room` bytes is left out, and then the string's end tells how long it is.
fn push_string(text: &mut String, value: &str, room: usize) {
    let start = text.len();
    text.push('"');
    for c in value.chars() {
        if text.len() - start >= room {
            text.push_str(&format!("… ({} bytes)", value.len()));
            break;
        }
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            c if c.is_control() => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_separated_and_escaped() {
        let mut json = Json::new(1000);
        json.open('{');
        json.key("a\"b\n");
        json.open('[');
        json.plain(1);
        json.plain(true);
        json.null();
        json.string("ends with [");
        json.string("\u{1}");
        json.close(']');
        json.key("c");
        json.bytes(b"\xff\x00");
        json.key("d");
        json.bytes(&[b'x'; BYTES_SHOWN_MAX + 1]);
        json.close('}');
        let text = json.into_text();
        let wanted = serde_json::json!({
            "a\"b\n": [1, true, null, "ends with [", "\u{1}"], "c": {"hex": "ff00"}, "d": {"bytes": 1025},
        });
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), wanted, "{text}");
    }

    #[test]
    fn a_string_is_cut_where_the_bound_is_and_says_how_long_it_is() {
        let mut json = Json::new(100);
        json.open('[');
        json.string(&"\u{1}".repeat(5000));
        json.string("more");
        json.bytes(b"\xff\xfe");
        json.close(']');
        let text = json.into_text();
        assert!(text.len() < 250, "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(value[0].as_str().is_some_and(|text| text.ends_with("… (5000 bytes)")), "{value}");
        assert_eq!((&value[1], &value[2]), (&"… (4 bytes)".into(), &serde_json::json!({"bytes": 2})));
    }

    #[test]
    fn a_value_is_replaced_where_it_stands() {
        let mut json = Json::new(1000);
        json.open('{');
        for (name, value) in [("a", Some("secret")), ("b", None)] {
            json.key(name);
            let start = json.position();
            match value {
                Some(value) => json.string(value),
                None => json.null(),
            }
            json.replace(start..json.position(), "[hidden]");
        }
        json.close('}');
        assert_eq!(json.into_text(), r#"{"a":"[hidden]","b":null}"#);
    }
}
