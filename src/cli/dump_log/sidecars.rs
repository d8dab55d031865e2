//! The files beside a `.log`: indexes, producer snapshots, leader epochs.

use bytes::Buf;

use super::{Report, log_beside};
use crate::base::Offset;
use crate::base::crc32c;
use crate::cli::output::Failure;
use crate::wire::record::BatchView;

const OFFSET_ENTRY_BYTES: usize = 8;
const TIME_ENTRY_BYTES: usize = 12;
const SNAPSHOT_HEAD_BYTES: usize = 10;
const SNAPSHOT_ENTRY_BYTES: usize = 46;
/// Where the snapshot's checksum begins to cover: behind version and checksum.
const SNAPSHOT_CRC_FROM: usize = 6;

pub fn offset_index(bytes: &[u8], base: Option<Offset>, report: &mut Report<'_>) -> Result<(), Failure> {
    let base = base.unwrap_or(Offset::ZERO);
    let log = if report.verify { log_beside(report.path) } else { None };
    check_size(bytes, OFFSET_ENTRY_BYTES, report)?;
    let mut last: Option<(i32, i32)> = None;
    for entry in bytes.chunks_exact(OFFSET_ENTRY_BYTES) {
        let mut entry = entry;
        let (relative, position) = (entry.get_i32(), entry.get_i32());
        // A preallocated index ends in zeros, and no entry points to the start of the file.
        if (relative, position) == (0, 0) {
            break;
        }
        let offset = base.plus(i64::from(relative));
        report.line(format_args!("offset {offset} position {position}"))?;
        if last.is_some_and(|last| last.0 >= relative || last.1 >= position) {
            report.problem(format_args!("entry of offset {offset} is not above the one before it"))?;
        }
        last = Some((relative, position));
        if let Some(log) = &log {
            check_position(log, offset, position, report)?;
        }
    }
    Ok(())
}

/// An entry's position must be the start of the batch that holds its offset.
fn check_position(log: &[u8], offset: Offset, position: i32, report: &mut Report<'_>) -> Result<(), Failure> {
    let at = usize::try_from(position).ok().and_then(|position| log.get(position..));
    let head = at.and_then(|bytes| BatchView::parse(bytes).ok()).map(|view| *view.head());
    match head {
        Some(head) if (head.base_offset()..=head.last_offset()).contains(&offset) => Ok(()),
        Some(head) => report.problem(format_args!(
            "offset {offset} points to position {position}, where {}..{} are",
            head.base_offset(),
            head.last_offset()
        )),
        None => {
            report.problem(format_args!("offset {offset} points to position {position}, where no batch is"))
        }
    }
}

pub fn time_index(bytes: &[u8], base: Option<Offset>, report: &mut Report<'_>) -> Result<(), Failure> {
    let base = base.unwrap_or(Offset::ZERO);
    let log = if report.verify { log_beside(report.path) } else { None };
    check_size(bytes, TIME_ENTRY_BYTES, report)?;
    let mut last: Option<(i64, i32)> = None;
    for entry in bytes.chunks_exact(TIME_ENTRY_BYTES) {
        let mut entry = entry;
        let (timestamp, relative) = (entry.get_i64(), entry.get_i32());
        if (timestamp, relative) == (0, 0) {
            break;
        }
        let offset = base.plus(i64::from(relative));
        report.line(format_args!("timestamp {timestamp} offset {offset}"))?;
        if last.is_some_and(|last| last.0 > timestamp || last.1 >= relative) {
            report.problem(format_args!("entry of timestamp {timestamp} is not above the one before it"))?;
        }
        last = Some((timestamp, relative));
        if let Some(log) = &log
            && let Some(later) = later_timestamp(log, offset, timestamp)
        {
            report.problem(format_args!(
                "timestamp {timestamp} stands for the offsets up to {offset}, but a batch up to there has {later}"
            ))?;
        }
    }
    Ok(())
}

/// The largest timestamp of the batches that end at or before `offset`, if it is above `timestamp`.
fn later_timestamp(log: &[u8], offset: Offset, timestamp: i64) -> Option<i64> {
    let mut position = 0;
    let mut largest = i64::MIN;
    while let Ok(view) = BatchView::parse(&log[position..]) {
        if view.head().last_offset() > offset {
            break;
        }
        largest = largest.max(view.head().max_timestamp().0);
        position += view.bytes().len();
    }
    (largest > timestamp).then_some(largest)
}

pub fn producer_snapshot(bytes: &[u8], report: &mut Report<'_>) -> Result<(), Failure> {
    if bytes.len() < SNAPSHOT_HEAD_BYTES {
        return report.problem(format_args!("{} bytes are no producer snapshot", bytes.len()));
    }
    let mut rest = bytes;
    let (version, crc, count) = (rest.get_i16(), rest.get_u32(), rest.get_i32());
    let computed = crc32c::of(&bytes[SNAPSHOT_CRC_FROM..]);
    if version != 1 {
        report.problem(format_args!("version {version}, only 1 is known"))?;
    }
    if crc != computed {
        report.problem(format_args!("checksum is {crc:#010x}, its bytes have {computed:#010x}"))?;
    }
    if i64::from(count) * SNAPSHOT_ENTRY_BYTES as i64 != rest.len() as i64 {
        return report.problem(format_args!("{count} entries do not take {} bytes", rest.len()));
    }
    for _ in 0..count {
        let (id, epoch, sequence, offset) = (rest.get_i64(), rest.get_i16(), rest.get_i32(), rest.get_i64());
        let (delta, timestamp) = (rest.get_i32(), rest.get_i64());
        let (coordinator_epoch, transaction) = (rest.get_i32(), rest.get_i64());
        let transaction =
            if transaction < 0 { String::new() } else { format!(" transaction-from {transaction}") };
        report.line(format_args!(
            "producer {id} epoch {epoch} last-sequence {sequence} last-offset {offset} offset-delta {delta} \
             timestamp {timestamp} coordinator-epoch {coordinator_epoch}{transaction}"
        ))?;
    }
    Ok(())
}

pub fn leader_epochs(bytes: &[u8], report: &mut Report<'_>) -> Result<(), Failure> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    if lines.next() != Some("0") {
        report.problem(format_args!("the first line is not the version 0"))?;
    }
    let count = lines.next().and_then(|line| line.parse::<usize>().ok());
    let mut entries = 0;
    let mut last: Option<(i32, i64)> = None;
    for line in lines {
        let parsed =
            line.split_once(' ').and_then(|(epoch, start)| Some((epoch.parse().ok()?, start.parse().ok()?)));
        let Some((epoch, start)) = parsed else {
            report.problem(format_args!("line {line:?} is not an epoch and an offset"))?;
            continue;
        };
        entries += 1;
        report.line(format_args!("epoch {epoch} begins at offset {start}"))?;
        if last.is_some_and(|last| last.0 >= epoch || last.1 > start) {
            report.problem(format_args!("epoch {epoch} at {start} is not above the one before it"))?;
        }
        last = Some((epoch, start));
    }
    if count != Some(entries) {
        report.problem(format_args!("the second line does not say that there are {entries} epochs"))?;
    }
    Ok(())
}

fn check_size(bytes: &[u8], entry: usize, report: &mut Report<'_>) -> Result<(), Failure> {
    if bytes.len().is_multiple_of(entry) {
        return Ok(());
    }
    report.problem(format_args!("{} bytes are not whole entries of {entry}", bytes.len()))
}
