//! Batches and records of a `.log` file.

use super::Report;
use crate::base::Offset;
use crate::cli::output::Failure;
use crate::wire::record::{BatchHead, BatchView, ControlType, EndTxnMarker, Record, legacy_records};

/// The most that the records of one batch may take after decompression.
const DECOMPRESSED_BYTES_MAX: usize = 1 << 30;

pub fn dump(bytes: &[u8], base: Option<Offset>, report: &mut Report<'_>) -> Result<(), Failure> {
    let mut position = 0;
    let mut next = base.unwrap_or(Offset::ZERO);
    let (mut batches, mut records) = (0u64, 0i64);
    while position < bytes.len() {
        // A preallocated file ends in zeros: no batch has length 0.
        if bytes[position..].iter().all(|&byte| byte == 0) {
            report.line(format_args!("{} bytes of zeros at position {position}", bytes.len() - position))?;
            break;
        }
        if let Ok(head) = BatchHead::of_entry(&bytes[position..])
            && head.is_legacy()
        {
            let Some(message) = bytes.get(position..position + head.total_len()) else {
                report.problem(format_args!("position {position}: the message is not whole"))?;
                return Ok(());
            };
            records += dump_message(&head, message, (position, next), report)?;
            next = head.next_offset();
            batches += 1;
            position += message.len();
            continue;
        }
        let view = match BatchView::parse(&bytes[position..]) {
            Ok(view) => view,
            Err(error) => {
                report.problem(format_args!("position {position}: {error}"))?;
                return Ok(());
            }
        };
        let head = view.head();
        report.line(format_args!("{}", line(head, position)))?;
        if let Err(error) = view.check_crc() {
            report.problem(format_args!("position {position}: {error}"))?;
        }
        if head.base_offset() < next {
            let base = head.base_offset();
            report
                .problem(format_args!("position {position}: batch begins at {base}, {next} was expected"))?;
        }
        if head.last_offset_delta() < head.count() - 1 {
            let (count, delta) = (head.count(), head.last_offset_delta());
            report.problem(format_args!(
                "position {position}: {count} records do not fit a last offset delta of {delta}"
            ))?;
        }
        next = head.next_offset();
        batches += 1;
        records += i64::from(head.count());
        if report.records || report.verify {
            dump_records(&view, position, report)?;
        }
        position += view.bytes().len();
    }
    report.line(format_args!("{batches} batches, {records} records, next offset {next}"))
}

/// A message of format 0 or 1; returns how many records it holds, as far as that is looked for.
fn dump_message(
    head: &BatchHead,
    message: &[u8],
    (position, next): (usize, Offset),
    report: &mut Report<'_>,
) -> Result<i64, Failure> {
    let (codec, kind) = (head.attributes().codec(), head.attributes().timestamp_type());
    report.line(format_args!(
        "offset {} position {position} size {} format {} codec {} {kind:?} {} crc {:#010x}",
        head.base_offset(),
        message.len(),
        head.magic(),
        codec.map_or("unknown", |codec| codec.name()),
        head.max_timestamp().0,
        head.crc(),
    ))?;
    if !head.is_intact(message) {
        report.problem(format_args!("position {position}: the checksum does not match"))?;
    }
    if head.base_offset() < next {
        let offset = head.base_offset();
        report
            .problem(format_args!("position {position}: message has offset {offset}, {next} was expected"))?;
    }
    if !report.records && !report.verify {
        return Ok(1);
    }
    let mut scratch = Vec::new();
    let records = match legacy_records(message, &mut scratch, DECOMPRESSED_BYTES_MAX) {
        Ok(records) => records,
        Err(error) => {
            report.problem(format_args!("position {position}: {error}"))?;
            return Ok(0);
        }
    };
    if report.records {
        for record in &records {
            report.line(format_args!("{}", record_line(record, false)))?;
        }
    }
    Ok(records.len() as i64)
}

fn line(head: &BatchHead, position: usize) -> String {
    let attributes = head.attributes();
    let codec = attributes.codec().map_or("unknown", |codec| codec.name());
    let mut line = format!(
        "offsets {}..{} position {position} size {} count {} epoch {} codec {codec} {:?} {}..{} crc {:#010x}",
        head.base_offset(),
        head.last_offset(),
        head.total_len(),
        head.count(),
        head.leader_epoch(),
        attributes.timestamp_type(),
        head.base_timestamp().0,
        head.max_timestamp().0,
        head.crc(),
    );
    if head.producer_id().is_some() {
        let (id, epoch) = (head.producer_id(), head.producer_epoch());
        line += &format!(
            " producer {id} epoch {epoch} sequence {}..{}",
            head.base_sequence(),
            head.last_sequence()
        );
    }
    for (on, word) in [
        (attributes.is_transactional(), " transactional"),
        (attributes.is_control(), " control"),
        (attributes.has_delete_horizon(), " delete-horizon"),
    ] {
        if on {
            line += word;
        }
    }
    line
}

fn dump_records(view: &BatchView<'_>, position: usize, report: &mut Report<'_>) -> Result<(), Failure> {
    let mut scratch = Vec::new();
    let records = match view.records(&mut scratch, DECOMPRESSED_BYTES_MAX) {
        Ok(records) => records,
        Err(error) => return report.problem(format_args!("position {position}: {error}")),
    };
    let mut last_delta = -1;
    for record in records {
        let record = match record {
            Ok(record) => record,
            Err(error) => return report.problem(format_args!("position {position}: {error}")),
        };
        if record.offset_delta <= last_delta || record.offset_delta > view.head().last_offset_delta() {
            let delta = record.offset_delta;
            report.problem(format_args!(
                "position {position}: record has offset delta {delta} after {last_delta}"
            ))?;
        }
        last_delta = record.offset_delta;
        if report.records {
            let control = view.head().attributes().is_control();
            report.line(format_args!("{}", record_line(&record, control)))?;
        }
    }
    Ok(())
}

fn record_line(record: &Record<'_>, control: bool) -> String {
    let mut line = format!("  offset {} timestamp {}", record.offset, record.timestamp.0);
    if control {
        let (key, value) = (record.key.unwrap_or_default(), record.value.unwrap_or_default());
        line += &match (ControlType::from_key(key), EndTxnMarker::from_record(key, value)) {
            (Some(kind), Some(marker)) => format!(" {kind:?} coordinator-epoch {}", marker.coordinator_epoch),
            (Some(kind), None) => format!(" {kind:?}"),
            (None, _) => " control record without key".to_owned(),
        };
        return line;
    }
    line += &format!(" key {} value {}", shown(record.key), shown(record.value));
    for header in record.headers {
        line += &format!(" header {}={}", shown(Some(header.key)), shown(header.value));
    }
    line
}

/// Bytes as a quoted text; what is not printable ASCII is escaped.
fn shown(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(|| "null".to_owned(), |bytes| format!("\"{}\"", bytes.escape_ascii()))
}
