//! The broker killed by SIGKILL under load, each time with the disk left as a loss of power would have left it.
//!
//! A few kills here; `KURING_CRASH_KILLS=200 cargo test --test broker crash -- --nocapture` runs as many per test.
//! Kills come at random moments and, by the journal of `src/io/journal.rs`, inside rolls, swaps of compaction,
//! retention, checkpoints and recovery itself. A failure prints its seed; `KURING_SEED` runs the same damage again,
//! though not the same timing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{
    FetchRequest, FetchResponse, ProduceRequest, ProduceResponse, ResponseHeader,
};
use kafka_protocol::protocol::{Decodable as _, HeaderVersion as _};
use kuring::base::random::Random;

use crate::harness::batch::{Batch, Record, read_all};
use crate::harness::client::Client;
use crate::harness::disk::{Disk, JOURNAL, Loss};
use crate::harness::raw::{Answer, FETCH, PRODUCE, Raw, fetch, produce};
use crate::harness::report::process_report;
use crate::harness::{Broker, PATIENCE, now_ms};

const PARTITIONS: i32 = 3;
/// Deleted by size and by time.
const PLAIN: &str = "plain";
const COMPACTED: &str = "compacted";
/// Kafka's error code.
const OFFSET_OUT_OF_RANGE: i16 = 1;
const KEYS: u64 = 20;

/// A kill inside something fires within this time or comes from outside.
const TRIGGER_PATIENCE: Duration = Duration::from_secs(3);

/// What to be in the middle of, and what the journal says there.
const MOMENTS: [(&str, &str); 10] = [
    ("append", ""),
    ("append", "sync "),
    ("roll", ".spare"),
    ("roll", ".snapshot"),
    ("retention", ".log.deleted"),
    ("checkpoint", "offset-checkpoint"),
    ("checkpoint", "leader-epoch-checkpoint"),
    ("compaction", ".cleaned"),
    ("compaction swap", ".swap"),
    ("recovery", ""),
];

fn kills() -> usize {
    std::env::var("KURING_CRASH_KILLS").map_or(6, |kills| kills.parse().expect("a number of kills"))
}

fn seed() -> u64 {
    match std::env::var("KURING_SEED") {
        Ok(seed) => seed.parse().expect("KURING_SEED is a number"),
        Err(_) => Random::from_os().next_u64() >> 16,
    }
}

#[test]
fn what_was_acknowledged_under_fsync_survives_any_loss_of_power() {
    Crashes::run(true);
}

#[test]
fn without_fsync_a_clean_prefix_survives_any_loss_of_power() {
    Crashes::run(false);
}

/// Records of one partition, by the round they were written in and their number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Number {
    round: usize,
    number: u64,
}

/// What a partition of [`PLAIN`] must have.
#[derive(Default)]
struct Plain {
    /// By offset.
    acknowledged: HashMap<i64, Number>,
    /// At the last look, when all of it was durable.
    end: i64,
}

struct Crashes {
    seed: u64,
    fsync: bool,
    random: Random,
    broker: Broker,
    disk: Disk,
    round: usize,
    /// The moment that the first round takes.
    first: usize,
    plain: Vec<Plain>,
    /// Of [`COMPACTED`]: the last acknowledged number of each key, counted through all rounds.
    compacted: HashMap<u64, u64>,
    counts: HashMap<&'static str, usize>,
    loss: Loss,
    /// Acknowledged records that were looked for after a start, through all rounds.
    checked: usize,
}

impl Crashes {
    fn run(fsync: bool) {
        if Broker::is_kafka() {
            return;
        }
        let mut crashes = Self::new(seed(), fsync);
        for round in 0..kills() {
            crashes.round = round;
            crashes.crash();
        }
        crashes.start();
        crashes.check();
        println!(
            "seed {}: {} starts, kills by moment {:?}, lost {:?}, {} acknowledged records looked for",
            crashes.seed,
            crashes.disk.starts(),
            crashes.counts,
            crashes.loss,
            crashes.checked
        );
        let acknowledged: usize = crashes.plain.iter().map(|plain| plain.acknowledged.len()).sum();
        assert!(
            acknowledged > 20 * kills(),
            "only {acknowledged} records were acknowledged: the load was none"
        );
    }

    fn new(seed: u64, fsync: bool) -> Self {
        println!("seed {seed}");
        let settings = [
            ("kuring.durability", if fsync { "fsync" } else { "page-cache" }),
            ("log.retention.check.interval.ms", "100"),
            ("log.flush.offset.checkpoint.interval.ms", "150"),
            ("log.flush.start.offset.checkpoint.interval.ms", "150"),
            ("log.cleaner.backoff.ms", "100"),
        ];
        let mut broker = Broker::stopped(2, &settings);
        let mut disk = Disk::new(broker.data(), broker.data().with_file_name("journals"));
        broker.set_environment(JOURNAL, &disk.start().to_string_lossy());
        broker.start_again(2);
        let client = Client::of(&broker);
        let settings = [
            ("segment.bytes", "1048576"),
            ("segment.ms", "300"),
            ("retention.bytes", "1500000"),
            ("file.delete.delay.ms", "50"),
            ("flush.messages", if fsync { "9223372036854775807" } else { "500" }),
        ];
        client.create_topic(PLAIN, PARTITIONS, &settings);
        let settings = [
            ("cleanup.policy", "compact"),
            ("segment.ms", "200"),
            ("min.cleanable.dirty.ratio", "0.01"),
            ("file.delete.delay.ms", "50"),
        ];
        client.create_topic(COMPACTED, 1, &settings);
        let mut random = Random::seeded(seed);
        Self {
            seed,
            fsync,
            first: random.below(MOMENTS.len() as u64) as usize,
            random,
            broker,
            disk,
            round: 0,
            plain: (0..PARTITIONS).map(|_| Plain::default()).collect(),
            compacted: HashMap::new(),
            counts: HashMap::new(),
            loss: Loss::default(),
            checked: 0,
        }
    }

    /// Starts the broker if it is not running, checks what it has, lets it work, kills it, damages its disk.
    fn crash(&mut self) {
        let (moment, text) = MOMENTS[(self.first + self.round) % MOMENTS.len()];
        if moment == "recovery" && self.round > 0 {
            // Twice: what the first start had begun to repair is lost again.
            for _ in 0..2 {
                let folder = self.disk.start();
                self.disk.kill_at(1 + self.random.below(30), "");
                self.broker.set_environment(JOURNAL, &folder.to_string_lossy());
                let started = self.broker.try_start_again();
                self.broker.kill();
                self.lose_power(if started { "start" } else { moment });
            }
            return;
        }
        self.start();
        self.check();
        let stop = AtomicBool::new(false);
        let patience = match text {
            "" => Duration::from_millis(100 + self.random.below(900)),
            _ => TRIGGER_PATIENCE,
        };
        let count = 1 + self.random.below(if text == "sync " { 100 } else { 3 });
        let mut fired = false;
        let (round, offset) = (self.round, self.compacted.values().max().map_or(0, |last| last + 1));
        let (broker, disk) = (&mut self.broker, &self.disk);
        let mut connections: Vec<Raw> = (0..=PARTITIONS).map(|_| Raw::connect(broker)).collect();
        let (plain, compacted) = std::thread::scope(|scope| {
            let last = connections.pop().expect("one more than partitions");
            let writers: Vec<_> = (0..)
                .zip(connections)
                .map(|(partition, raw)| {
                    let stop = &stop;
                    scope.spawn(move || write_plain(raw, partition, round, stop))
                })
                .collect();
            let compactor = scope.spawn(|| write_compacted(last, offset, &stop));
            let start = Instant::now();
            if !text.is_empty() {
                // Some load comes first.
                std::thread::sleep(Duration::from_millis(150));
                disk.kill_at(count, text);
            }
            while start.elapsed() < patience && !fired {
                std::thread::sleep(Duration::from_millis(1));
                fired = !broker.is_alive();
            }
            broker.kill();
            stop.store(true, Ordering::Relaxed);
            let plain: Vec<_> =
                writers.into_iter().map(|writer| writer.join().expect("it only counts")).collect();
            (plain, compactor.join().expect("it only counts"))
        });
        for (partition, acknowledged) in plain.into_iter().enumerate() {
            self.plain[partition].acknowledged.extend(acknowledged);
        }
        self.compacted.extend(compacted);
        assert!(fired || text.is_empty() || !self.broker.log().contains("panicked"), "{}", self.broker.log());
        self.lose_power(if fired { moment } else { "append" });
    }

    fn start(&mut self) {
        if !self.broker.is_alive() {
            let folder = self.disk.start();
            self.broker.set_environment(JOURNAL, &folder.to_string_lossy());
            self.broker.start_again(1 + self.random.below(3) as usize);
        }
    }

    fn lose_power(&mut self, moment: &'static str) {
        *self.counts.entry(moment).or_default() += 1;
        let loss = self.disk.lose_power(&mut self.random);
        self.loss.names += loss.names;
        self.loss.files += loss.files;
        self.loss.bytes += loss.bytes;
    }

    fn check(&mut self) {
        let context = format!("seed {}, round {}", self.seed, self.round);
        let client = Client::of(&self.broker);
        client.await_partitions(PLAIN, PARTITIONS);
        for (partition, plain) in (0..).zip(&mut self.plain) {
            let context = format!("{context}, partition {partition}");
            let (start, end, stored) = read_plain(&self.broker, &client, partition, &context);
            assert!(end >= plain.end, "{context}: {} was on the disk, the log ends at {end}", plain.end);
            self.checked += plain.acknowledged.len();
            for (offset, number) in &plain.acknowledged {
                let found = (*offset - start).try_into().ok().and_then(|index: usize| stored.get(index));
                match found {
                    Some(found) => assert_eq!(found, number, "{context}: offset {offset}"),
                    None => assert!(
                        *offset < start || !self.fsync,
                        "{context}: {offset} was acknowledged, the log has {start} to {end}"
                    ),
                }
            }
            // What is lost is lost: other records get those offsets.
            plain.acknowledged.retain(|offset, _| (start..end).contains(offset));
            plain.end = end;
            for pair in stored.windows(2) {
                let follows = match pair[0].round == pair[1].round {
                    true => pair[1].number == pair[0].number + 1,
                    false => pair[1].round > pair[0].round && pair[1].number == 0,
                };
                assert!(follows, "{context}: {:?} after {:?}", pair[1], pair[0]);
            }
        }
        let found = read_compacted(&self.broker, &client, &context);
        for (key, number) in &mut self.compacted {
            let last = found.get(key).copied();
            assert!(
                !self.fsync || last.is_some_and(|last| last >= *number),
                "{context}: key {key} has {last:?}, {number} was acknowledged"
            );
            *number = last.unwrap_or(0);
        }
    }
}

/// Batches of all sizes until the broker is dead; offset and number of each record that was acknowledged.
fn write_plain(mut raw: Raw, partition: i32, round: usize, stop: &AtomicBool) -> Vec<(i64, Number)> {
    let mut random = Random::seeded(round as u64 * 100 + partition as u64);
    let (mut number, mut acknowledged) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let count = 1 + random.below(6);
        let length = [10, 300, 3000, 40_000][random.below(4) as usize];
        let values: Vec<String> =
            (number..number + count).map(|number| format!("{round}:{number}:{:length$}", "")).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let Some(base) = send(&mut raw, PLAIN, partition, Batch::now(&values)) else { break };
        let numbers = (number..number + count).map(|number| Number { round, number });
        acknowledged.extend((base..).zip(numbers));
        number += count;
    }
    acknowledged
}

fn write_compacted(mut raw: Raw, from: u64, stop: &AtomicBool) -> HashMap<u64, u64> {
    let mut acknowledged = HashMap::new();
    let mut next = from;
    while !stop.load(Ordering::Relaxed) {
        let record = |number: u64| Record {
            timestamp_delta: 0,
            key: Some((number % KEYS).to_string().into_bytes()),
            value: Some(format!("{}:{number}:{:500}", number % KEYS, "").into_bytes()),
        };
        let numbers = next..next + 7;
        let batch = Batch { records: numbers.clone().map(record).collect(), ..Batch::of(&[], now_ms()) };
        if send(&mut raw, COMPACTED, 0, batch).is_none() {
            break;
        }
        acknowledged.extend(numbers.map(|number| (number % KEYS, number)));
        next += 7;
    }
    acknowledged
}

/// The base offset of an acknowledged batch; nothing when the broker is dead.
fn send(raw: &mut Raw, topic: &str, partition: i32, batch: Batch) -> Option<i64> {
    raw.send::<ProduceRequest>(PRODUCE, &produce(topic, partition, -1, batch.encode()));
    let Answer::Frame(mut frame) = raw.answer(Duration::from_secs(20)) else { return None };
    ResponseHeader::decode(&mut frame, ProduceResponse::header_version(PRODUCE)).expect("a header");
    let response = ProduceResponse::decode(&mut frame, PRODUCE).expect("a response");
    let answer = &response.responses[0].partition_responses[0];
    assert_eq!(answer.error_code, 0, "{topic} {partition}: {answer:?}");
    Some(answer.base_offset)
}

/// One partition's part of the answer to a fetch. When it is late it is told what the broker is doing; one that does not
/// come at all is a hang, not a machine that is too busy.
fn fetch_of(broker: &Broker, raw: &mut Raw, topic: &str, at: (i32, i64), context: &str) -> PartitionData {
    raw.send::<FetchRequest>(FETCH, &fetch(topic, &[at]));
    let begun = Instant::now();
    let mut answer = raw.answer(PATIENCE);
    if answer == Answer::Silence {
        let metrics = crate::admin::try_get(broker.admin(), "/metrics").map(|(_, text)| text);
        let report = process_report(broker);
        println!(
            "{context}: a fetch of {topic} {at:?} waits\n{report}\n--- metrics\n{}",
            metrics.as_deref().unwrap_or("no answer of the admin listener"),
        );
        answer = raw.answer(4 * PATIENCE);
        println!("{context}: the answer to the fetch of {topic} {at:?} took {:?}", begun.elapsed());
    }
    let Answer::Frame(mut frame) = answer else {
        panic!("{context}: a fetch of {topic} {at:?} got {answer:?} after {:?}", begun.elapsed())
    };
    ResponseHeader::decode(&mut frame, FetchResponse::header_version(FETCH)).expect("a header");
    let response = FetchResponse::decode(&mut frame, FETCH).expect("a response");
    response.responses[0].partitions[0].clone()
}

/// Where a partition starts and ends, and every record between, dense.
fn read_plain(broker: &Broker, client: &Client, partition: i32, context: &str) -> (i64, i64, Vec<Number>) {
    let mut raw = Raw::connect(broker);
    let mut stored = Vec::new();
    let (mut start, end) = client.offsets(PLAIN, partition);
    let mut next = start;
    while next < end {
        let answer = fetch_of(broker, &mut raw, PLAIN, (partition, next), context);
        if answer.error_code == OFFSET_OUT_OF_RANGE {
            // Retention was quicker than the reader.
            let now = client.offsets(PLAIN, partition).0;
            assert!(now > next, "{context}: {next} is out of {now} to {end}");
            stored.clear();
            (start, next) = (now, now);
            continue;
        }
        assert_eq!(answer.error_code, 0, "{context}: fetch of {next} in {start} to {end}");
        let before = next;
        for batch in read_all(answer.records.as_deref().unwrap_or_default()) {
            // Retention cuts between batches only.
            assert_eq!(batch.base_offset, next, "{context}: not dense");
            next = batch.last_offset + 1;
            stored.extend(batch.values.into_iter().map(|value| {
                let value = value.expect("every record has one");
                let text = std::str::from_utf8(&value).expect("it was text");
                let mut fields = text.split(':').map(str::parse);
                let (Some(Ok(round)), Some(Ok(number))) = (fields.next(), fields.next()) else {
                    panic!("{context}: {text:?} at {before}")
                };
                Number { round: round as usize, number }
            }));
        }
        assert!(next > before, "{context}: nothing at {next} of {end}");
    }
    assert_eq!(stored.len() as i64, end - start, "{context}");
    (start, end, stored)
}

/// The last number of each key. What is left is a prefix without a hole, fsync or not: no offset below its end is
/// answered by nothing, and what is missing between two records has a later record of its key. (After a
/// kill a number that was not acknowledged comes again.)
fn read_compacted(broker: &Broker, client: &Client, context: &str) -> HashMap<u64, u64> {
    let (mut next, end) = client.offsets(COMPACTED, 0);
    let mut raw = Raw::connect(broker);
    let mut found = HashMap::new();
    let mut missing: Vec<u64> = Vec::new();
    let mut last: Option<(i64, u64)> = None;
    while next < end {
        let answer = fetch_of(broker, &mut raw, COMPACTED, (0, next), context);
        assert_eq!(answer.error_code, 0, "{context}: fetch of {next} of {end}");
        let before = next;
        for batch in read_all(answer.records.as_deref().unwrap_or_default()) {
            assert!(batch.last_offset >= next, "{context}: {next} was asked, {} came", batch.last_offset);
            next = batch.last_offset + 1;
            for (offset, value) in batch.offsets.into_iter().zip(batch.values) {
                let value = value.expect("every record has one");
                let text = std::str::from_utf8(&value).expect("it was text");
                let mut fields = text.split(':').map(str::parse);
                let (Some(Ok(key)), Some(Ok(number))) = (fields.next(), fields.next()) else {
                    panic!("{context}: {text:?} at {before}")
                };
                found.insert(key, number);
                // Numbers and offsets run side by side but for where a round begins.
                if let Some((last_offset, last_number)) = last.replace((offset, number))
                    && number.checked_sub(last_number) == u64::try_from(offset - last_offset).ok()
                {
                    missing.extend(last_number + 1..number);
                }
            }
        }
        assert!(next > before, "{context}: nothing at {next} of {end}");
    }
    for number in missing {
        let last = found.get(&(number % KEYS)).copied();
        assert!(
            last.is_some_and(|last| last >= number),
            "{context}: {number} is missing, its key has {last:?}"
        );
    }
    found
}
