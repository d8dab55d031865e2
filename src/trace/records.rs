//! The records of a Produce request or a Fetch response: what they sum up to and, when asked for, each of them.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::json::Json;
use crate::wire::record::{BatchHead, BatchView, Batches, Record};

/// What the records of one batch may take after decompression.
const DECOMPRESSED_BYTES_MAX: usize = 64 << 20;

/// Writes one object.
pub fn write(bytes: &Bytes, each: bool, json: &mut Json) {
    let (mut batches, mut records, mut whole) = (0u64, 0i64, 0usize);
    let mut codecs = BTreeSet::new();
    let mut ends = None;
    let mut last: Option<BatchHead> = None;
    for batch in Batches::new(bytes).map_while(Result::ok) {
        let head = batch.head();
        batches += 1;
        records += i64::from(head.count());
        whole += batch.bytes().len();
        codecs.insert(head.attributes().codec().map_or("unknown", |codec| codec.name()));
        let (first, _) = ends.unwrap_or((head.base_offset(), head.last_offset()));
        ends = Some((first, head.last_offset()));
        last = Some(*head);
    }
    json.open('{');
    number("batches", batches, json);
    number("records", records, json);
    number("bytes", bytes.len(), json);
    if let (Some((first, end)), Some(head)) = (ends, last) {
        number("firstOffset", first, json);
        number("lastOffset", end, json);
        json.key("codecs");
        json.open('[');
        codecs.into_iter().for_each(|codec| json.string(codec));
        json.close(']');
        if head.producer_id().0 >= 0 {
            number("producerId", head.producer_id().0, json);
            number("producerEpoch", head.producer_epoch().0, json);
            number("lastSequence", head.last_sequence(), json);
            number("transactional", head.attributes().is_transactional(), json);
        }
    }
    // A fetch response ends where its limit cut it off, or has messages of an old format.
    if whole < bytes.len() {
        number("bytesNotInWholeBatches", bytes.len() - whole, json);
    }
    if each {
        json.key("list");
        json.open('[');
        for batch in Batches::new(bytes).map_while(Result::ok) {
            list(&batch, json);
        }
        json.close(']');
    }
    json.close('}');
}

fn list(batch: &BatchView<'_>, json: &mut Json) {
    let mut scratch = Vec::new();
    match batch.records(&mut scratch, DECOMPRESSED_BYTES_MAX) {
        Ok(records) => {
            for outcome in records {
                if json.is_full() {
                    return json.note("(more)");
                }
                match outcome {
                    Ok(entry) => record(&entry, batch.head().attributes().is_control(), json),
                    Err(error) => return json.string(&error.to_string()),
                }
            }
        }
        Err(error) => json.string(&error.to_string()),
    }
}

fn record(record: &Record<'_>, is_control: bool, json: &mut Json) {
    json.open('{');
    number("offset", record.offset, json);
    number("timestamp", record.timestamp.0, json);
    if is_control {
        number("control", true, json);
    }
    for (name, bytes) in [("key", record.key), ("value", record.value)] {
        json.key(name);
        json.nullable(bytes);
    }
    if !record.headers.is_empty() {
        json.key("headers");
        json.open('[');
        for header in record.headers {
            if json.is_full() {
                json.note("(more)");
                break;
            }
            json.open('{');
            json.key("key");
            json.bytes(header.key);
            json.key("value");
            json.nullable(header.value);
            json.close('}');
        }
        json.close(']');
    }
    json.close('}');
}

fn number(name: &str, value: impl std::fmt::Display, json: &mut Json) {
    json.key(name);
    json.plain(value);
}
