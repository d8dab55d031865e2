//! `kuring consume`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::output::{Failure, Output};
use super::{ConnectArguments, interrupt_flag, json};
use crate::base::clock::Timestamp;
use crate::base::{Offset, PartitionIndex, TopicName, TopicPartition};
use crate::client::consumer::{Consumer, ConsumerConfig, ConsumerRecord, Start};
use crate::client::{ClientError, OffsetAt};
use crate::wire::ErrorCode;

/// Records taken from the consumer at a time.
const RECORDS_MAX: usize = 500;
const POLL_WAIT: Duration = Duration::from_millis(500);

#[derive(Args)]
#[command(after_help = "Examples:
  kuring consume events                              (new records, until interrupted)
  kuring consume words --from-beginning --exit-at-end > words.txt
  kuring consume events --offset -10 -n 10           (the last ten)
  kuring consume events --offset @1700000000000      (since this time, in milliseconds)
  kuring consume events --group billing --from-beginning --format json

In text each value is followed by a newline and is otherwise as it was written, any bytes. In json each
record is one object; what is no UTF-8 stands as base64 under value_base64 or key_base64.
Exit codes: 0 done, interrupted, or the reader of standard output went away; 1 failed; 2 wrong usage.")]
pub struct ConsumeArguments {
    topic: String,
    /// Begin with the oldest record (with --group: where the group has not committed)
    #[arg(long, conflicts_with = "offset")]
    from_beginning: bool,
    /// Where to begin: a number, earliest, latest, -N (the last N of each partition) or @MILLISECONDS
    #[arg(short, long, value_name = "OFFSET", value_parser = parse_offset, conflicts_with = "group", allow_hyphen_values = true)]
    offset: Option<From>,
    /// Partitions to read; may be repeated; all if left out
    #[arg(short, long, value_name = "INDEX", conflicts_with = "group")]
    partition: Vec<i32>,
    /// Share the partitions with the other members of this group and commit what was printed
    #[arg(short, long)]
    group: Option<String>,
    /// Stop after so many records
    #[arg(short = 'n', long = "count", value_name = "COUNT")]
    count: Option<u64>,
    /// Stop at the end of every partition instead of waiting for new records
    #[arg(short, long)]
    exit_at_end: bool,
    #[arg(short, long, default_value = "text")]
    format: Format,
    /// In text, print keys before values with this between
    #[arg(short, long, value_name = "TEXT")]
    key_separator: Option<String>,
    /// Leave out records of transactions that are open or aborted
    #[arg(long)]
    read_committed: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    Absolute(Offset),
    /// So many before the end.
    Last(i64),
    Find(OffsetAt),
}

fn parse_offset(text: &str) -> Result<From, String> {
    let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number >= 0);
    let parsed = match text {
        "earliest" | "beginning" => Some(From::Find(OffsetAt::Earliest)),
        "latest" | "end" => Some(From::Find(OffsetAt::Latest)),
        _ => match text.split_at_checked(1) {
            Some(("@", time)) => number(time).map(|time| From::Find(OffsetAt::Time(Timestamp(time)))),
            Some(("-", count)) => number(count).map(From::Last),
            _ => number(text).map(|offset| From::Absolute(Offset(offset))),
        },
    };
    parsed.ok_or_else(|| "a number, earliest, latest, -N or @MILLISECONDS is wanted".to_owned())
}

pub fn run(arguments: ConsumeArguments) -> Result<(), Failure> {
    let interrupt = interrupt_flag()?;
    let mut config = ConsumerConfig::new(arguments.connect.config());
    config.group = arguments.group.clone();
    config.reset = Some(if arguments.from_beginning { OffsetAt::Earliest } else { OffsetAt::Latest });
    config.read_committed = arguments.read_committed;
    let mut consumer = Consumer::new(config)?;
    consumer.set_interrupt(interrupt.clone());
    let outcome =
        start(&mut consumer, &arguments).and_then(|()| print(&mut consumer, &arguments, &interrupt));
    // Also after a failure: what was printed is committed and the others need not wait for a time-out.
    let closed = consumer.close().map_err(Failure::from);
    match outcome {
        Ok(()) => closed,
        failed => failed,
    }
}

fn start(consumer: &mut Consumer, arguments: &ConsumeArguments) -> Result<(), Failure> {
    let topic = TopicName::new(&arguments.topic);
    if arguments.group.is_some() {
        return Ok(consumer.subscribe(vec![topic])?);
    }
    consumer.cluster().topic(&topic)?;
    let count = consumer.cluster().metadata.partition_count(&topic).map_or(0, |count| count.get() as i32);
    let mut wanted = arguments.partition.clone();
    if wanted.is_empty() {
        wanted = (0..count).collect();
    }
    if let Some(missing) = wanted.iter().find(|index| !(0..count).contains(*index)) {
        let what = format!("partition {missing} of topic {topic}");
        return Err(ClientError::broker(what, ErrorCode::UnknownTopicOrPartition, None).into());
    }
    let partitions: Vec<TopicPartition> =
        wanted.into_iter().map(|index| TopicPartition::new(topic.clone(), PartitionIndex(index))).collect();
    let default = if arguments.from_beginning { OffsetAt::Earliest } else { OffsetAt::Latest };
    let starts = match arguments.offset.unwrap_or(From::Find(default)) {
        From::Absolute(offset) => partitions.into_iter().map(|p| (p, Start::At(offset))).collect(),
        From::Find(at) => partitions.into_iter().map(|p| (p, Start::Find(at))).collect(),
        From::Last(count) => {
            let first = consumer.cluster().list_offsets(&partitions, OffsetAt::Earliest)?;
            let end = consumer.cluster().list_offsets(&partitions, OffsetAt::Latest)?;
            let at = |partition: &TopicPartition| {
                let first = first.get(partition)?.offset?;
                Some(end.get(partition)?.offset?.plus(-count).max(first))
            };
            partitions
                .into_iter()
                .map(|p| (p.clone(), at(&p).map_or(Start::Find(OffsetAt::Latest), Start::At)))
                .collect()
        }
    };
    consumer.assign(starts);
    Ok(())
}

fn print(
    consumer: &mut Consumer,
    arguments: &ConsumeArguments,
    interrupt: &AtomicBool,
) -> Result<(), Failure> {
    let mut out = Output::stdout();
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 && !interrupt.load(Ordering::Relaxed) {
        let wanted = RECORDS_MAX.min(usize::try_from(left).unwrap_or(RECORDS_MAX));
        let records = match consumer.poll(POLL_WAIT, wanted) {
            Ok(records) => records,
            Err(ClientError::Interrupted) => break,
            Err(error) => {
                out.flush()?;
                return Err(error.into());
            }
        };
        for record in &records {
            match arguments.format {
                Format::Text => text(record, arguments.key_separator.as_deref(), &mut out)?,
                Format::Json => out.line(json::record(record))?,
            }
        }
        left -= records.len() as u64;
        let at_end = consumer.is_at_end();
        // What follows at once goes out together.
        if records.len() < wanted || at_end || left == 0 {
            out.flush()?;
        }
        if at_end && arguments.exit_at_end {
            break;
        }
    }
    out.finish()
}

fn text(record: &ConsumerRecord, key_separator: Option<&str>, out: &mut Output) -> Result<(), Failure> {
    if let Some(separator) = key_separator {
        out.write(record.key.as_deref().unwrap_or_default())?;
        out.write(separator.as_bytes())?;
    }
    out.write(record.value.as_deref().unwrap_or_default())?;
    out.write(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_in_all_their_forms() {
        assert_eq!(parse_offset("17"), Ok(From::Absolute(Offset(17))));
        assert_eq!(parse_offset("-5"), Ok(From::Last(5)));
        assert_eq!(parse_offset("@99"), Ok(From::Find(OffsetAt::Time(Timestamp(99)))));
        assert_eq!(parse_offset("earliest"), Ok(From::Find(OffsetAt::Earliest)));
        assert_eq!(parse_offset("end"), Ok(From::Find(OffsetAt::Latest)));
        for wrong in ["", "x", "@", "-", "--5", "1.5"] {
            assert!(parse_offset(wrong).is_err(), "{wrong}");
        }
    }
}
