//! `kuring produce`: each line of standard input, without its newline, is the value of a record.

use std::io::{BufRead, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueEnum};

use super::output::Failure;
use super::{ConnectArguments, name_and_value};
use crate::base::{PartitionIndex, TopicName};
use crate::client::producer::{Acks, Delivery, Producer, ProducerConfig, ProducerRecord};
use crate::wire::record::{Codec, Compression};

#[derive(Args)]
#[command(after_help = "Examples:
  kuring produce words < /usr/share/dict/words
  printf 'user1\\tlogin\\n' | kuring produce events --key-separator $'\\t'
  kuring produce events --compression zstd --acks 1 --header source=import < events.txt

A line is taken as it is: any bytes, only the newline is cut off. Standard output stays empty.
Exit codes: 0 all records are written, 1 some are not, 2 wrong usage.")]
pub struct ProduceArguments {
    topic: String,
    /// What ends the key at the start of each line; a line without it has no key
    #[arg(short, long, value_name = "TEXT")]
    key_separator: Option<String>,
    /// A header of every record; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_and_value)]
    headers: Vec<(String, String)>,
    /// The partition for all records; by key or in turn if left out
    #[arg(short, long)]
    partition: Option<i32>,
    #[arg(short = 'z', long, default_value = "none")]
    compression: CompressionName,
    /// When a record counts as written: sent (0), on the leader (1), on all in-sync replicas (all)
    #[arg(short, long, default_value = "all")]
    acks: AcksName,
    /// Milliseconds that a batch waits for more lines
    #[arg(long, value_name = "MS", default_value_t = 5)]
    linger: u64,
    /// Bytes of a batch before compression
    #[arg(long, value_name = "BYTES", default_value_t = 65536)]
    batch_size: usize,
    /// Leave out producer ids: retries may then write records twice
    #[arg(long)]
    no_idempotence: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum CompressionName {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl CompressionName {
    pub fn compression(self) -> Compression {
        Compression::of(match self {
            CompressionName::None => Codec::None,
            CompressionName::Gzip => Codec::Gzip,
            CompressionName::Snappy => Codec::Snappy,
            CompressionName::Lz4 => Codec::Lz4,
            CompressionName::Zstd => Codec::Zstd,
        })
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum AcksName {
    #[value(name = "0")]
    None,
    #[value(name = "1")]
    Leader,
    #[value(name = "all", alias = "-1")]
    All,
}

impl AcksName {
    pub fn acks(self) -> Acks {
        match self {
            AcksName::None => Acks::None,
            AcksName::Leader => Acks::Leader,
            AcksName::All => Acks::All,
        }
    }
}

/// What became of the records so far.
#[derive(Default)]
struct Outcome {
    failed: u64,
    first_error: Option<String>,
}

pub fn run(arguments: ProduceArguments) -> Result<(), Failure> {
    let mut config = ProducerConfig::new(arguments.connect.config());
    config.acks = arguments.acks.acks();
    config.compression = arguments.compression.compression();
    config.linger = Duration::from_millis(arguments.linger);
    config.batch_bytes = arguments.batch_size;
    config.request_bytes_max = config.request_bytes_max.max(config.batch_bytes);
    config.idempotent = !arguments.no_idempotence;
    config.delivery_timeout = Duration::from_secs(arguments.connect.timeout);
    config.block_max = config.delivery_timeout;

    // Says at once when nobody listens or the topic cannot be, also for empty input.
    let topic = TopicName::new(&arguments.topic);
    arguments.connect.cluster()?.topic(&topic)?;

    let outcome = Arc::new(Mutex::new(Outcome::default()));
    let told = outcome.clone();
    let producer = Producer::start(config, move |delivery| note(&told, delivery))?;
    let lines = LineReader::new(std::io::stdin().lock());
    let sent = send_lines(&arguments, &topic, &producer, lines);
    producer.close();
    let (read, failure) = match sent {
        Ok(read) => (read, None),
        Err((read, failure)) => (read, Some(failure)),
    };
    let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = &outcome.first_error {
        return Err(Failure::Told(format!("{} of {read} records are not written: {error}", outcome.failed)));
    }
    failure.map_or(Ok(()), Err)
}

fn note(outcome: &Mutex<Outcome>, delivery: Delivery) {
    if let Err(error) = delivery.outcome {
        let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.failed += delivery.count as u64;
        outcome.first_error.get_or_insert_with(|| error.to_string());
    }
}

/// Sends every line; returns how many were taken.
fn send_lines(
    arguments: &ProduceArguments,
    topic: &TopicName,
    producer: &Producer,
    mut lines: LineReader<impl Read>,
) -> Result<u64, (u64, Failure)> {
    let headers: Vec<(Bytes, Option<Bytes>)> = arguments
        .headers
        .iter()
        .map(|(name, value)| (Bytes::from(name.clone()), Some(Bytes::from(value.clone()))))
        .collect();
    let separator =
        arguments.key_separator.as_ref().map(|text| text.as_bytes()).filter(|text| !text.is_empty());
    let mut sent = 0;
    loop {
        let line = match lines.next() {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(sent),
            Err(error) => return Err((sent, Failure::Told(format!("cannot read standard input: {error}")))),
        };
        let (key, value) = split_key(line, separator);
        let record = ProducerRecord {
            topic: topic.clone(),
            partition: arguments.partition.map(PartitionIndex),
            key,
            value: Some(value),
            headers: headers.clone(),
            timestamp: None,
        };
        producer.send(&record).map_err(|error| (sent, Failure::from(error)))?;
        sent += 1;
    }
}

fn split_key(line: Bytes, separator: Option<&[u8]>) -> (Option<Bytes>, Bytes) {
    let found =
        separator.and_then(|s| Some((line.windows(s.len()).position(|window| window == s)?, s.len())));
    match found {
        Some((at, len)) => (Some(line.slice(..at)), line.slice(at + len..)),
        None => (None, line),
    }
}

/// Lines of any bytes. Unlike text readers it keeps a carriage return and needs no UTF-8.
struct LineReader<R> {
    input: std::io::BufReader<R>,
}

impl<R: Read> LineReader<R> {
    fn new(input: R) -> Self {
        Self { input: std::io::BufReader::with_capacity(256 << 10, input) }
    }

    fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        let mut line = Vec::new();
        if self.input.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        line.pop_if(|last| *last == b'\n');
        Ok(Some(line.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bytes_and_the_last_needs_no_newline() {
        let mut lines = LineReader::new(&b"a\xff\r\n\n\0b"[..]);
        let mut next = || lines.next().expect("reads").map(|line| line.to_vec());
        assert_eq!(next(), Some(b"a\xff\r".to_vec()));
        assert_eq!(next(), Some(b"".to_vec()));
        assert_eq!(next(), Some(b"\0b".to_vec()));
        assert_eq!(next(), None);
    }

    #[test]
    fn the_key_ends_at_the_first_separator() {
        let line = Bytes::from_static(b"k::v::w");
        assert_eq!(split_key(line.clone(), Some(b"::")), (Some("k".into()), "v::w".into()));
        assert_eq!(split_key(line.clone(), Some(b"#")), (None, line.clone()));
        assert_eq!(split_key(line.clone(), None), (None, line));
        assert_eq!(split_key(Bytes::from_static(b":v"), Some(b":")), (Some("".into()), "v".into()));
    }
}
