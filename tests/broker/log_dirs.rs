//! Several log directories: where new partitions go, what survives in each, and moves between them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafka_protocol::messages::alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
use kafka_protocol::messages::{AlterReplicaLogDirsRequest, DescribeLogDirsRequest};
use kafka_protocol::protocol::StrBytes;
use rdkafka::admin::{AlterConfig, ResourceSpecifier};

use crate::admin::metric;
use crate::harness::client::{Client, Send, options};
use crate::harness::disk::{JOURNAL, StickyDisk};
use crate::harness::raw::{Answer, Raw, name};
use crate::harness::{Broker, PATIENCE, eventually};

const ALTER: i16 = 2;
const DESCRIBE: i16 = 4;

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const LOG_DIR_NOT_FOUND: i16 = 57;

pub const TWO: (&str, &str) = ("log.dirs", "~/data,~/other");

/// Directories that a replica has left are soon removed. Kafka goes by the broker's delay for them, not the topic's.
const SOON: (&str, &str) = ("log.segment.delete.delay.ms", "300");

/// The directory beside the broker's usual one.
pub fn other(broker: &Broker) -> PathBuf {
    broker.data().with_file_name("other")
}

/// Asks for a move; the error code of the answer.
pub fn alter(broker: &Broker, topic: &str, partition: i32, to: &Path) -> i16 {
    let response = Raw::connect(broker).call(ALTER, &move_of(topic, partition, to));
    assert_eq!(response.results.len(), 1);
    assert_eq!(response.results[0].partitions.len(), 1);
    response.results[0].partitions[0].error_code
}

fn move_of(topic: &str, partition: i32, to: &Path) -> AlterReplicaLogDirsRequest {
    let path = StrBytes::from_string(to.to_string_lossy().into_owned());
    let topic = AlterReplicaLogDirTopic::default().with_name(name(topic)).with_partitions(vec![partition]);
    let dir = AlterReplicaLogDir::default().with_path(path).with_topics(vec![topic]);
    AlterReplicaLogDirsRequest::default().with_dirs(vec![dir])
}

/// (directory, is it the future replica, its lag) of a partition, as the broker describes it.
fn places(broker: &Broker, topic: &str, partition: i32) -> Vec<(PathBuf, bool, i64)> {
    let response = Raw::connect(broker).call(DESCRIBE, &DescribeLogDirsRequest::default().with_topics(None));
    let mut places = Vec::new();
    for result in response.results {
        assert_eq!(result.error_code, 0, "{:?}", result.log_dir);
        let topics = result.topics.iter().filter(|found| found.name == name(topic));
        for found in topics.flat_map(|topic| &topic.partitions) {
            if found.partition_index == partition {
                places.push((PathBuf::from(&*result.log_dir), found.is_future_key, found.offset_lag));
            }
        }
    }
    places
}

/// Sets how fast moves are, from now on and over restarts.
fn limit_moves(client: &Client, bytes_per_second: &str) {
    let change = AlterConfig::new(ResourceSpecifier::Broker(1))
        .set("replica.alter.log.dirs.io.max.bytes.per.second", bytes_per_second);
    let results = client.wait(client.admin().alter_configs([&change], &options()));
    let result = results.expect("the request was sent").remove(0);
    assert!(result.is_ok(), "{result:?}");
}

#[track_caller]
pub fn await_move(broker: &Broker, topic: &str, partition: i32, to: &Path) {
    eventually(&format!("{topic}-{partition} is in {} alone", to.display()), || {
        (places(broker, topic, partition) == [(to.to_path_buf(), false, 0)]).then_some(())
    });
}

/// The directories of a partition below a log directory, whatever state they are in.
fn on_disk(dir: &Path, partition: &str) -> Vec<String> {
    let names =
        std::fs::read_dir(dir).expect("a log directory").map(|entry| entry.expect("a name").file_name());
    let names = names.map(|name| name.into_string().expect("ASCII"));
    let mut found: Vec<String> =
        names.filter(|name| name == partition || name.starts_with(&format!("{partition}."))).collect();
    found.sort();
    found
}

#[test]
fn a_replica_that_leads_with_less_than_it_had_says_so() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::start();
    for topic in ["gone", "kept", "empty"] {
        broker.kuring(&["topic", "create", topic, "-p", "1"], b"");
    }
    let client = Client::of(&broker);
    let producer = client.producer(&[]);
    for topic in ["gone", "kept"] {
        client.send(&producer, topic, &[Send::value("x").to(0)]);
    }
    drop((producer, client));
    let begins_anew = |broker: &mut Broker, gone: &[&str]| {
        broker.terminate();
        for topic in gone {
            std::fs::remove_dir_all(broker.data().join(format!("{topic}-0"))).expect("it was there");
        }
        let before = broker.log().lines().count();
        broker.start_again(2);
        let log = broker.log();
        let lines =
            log.lines().skip(before).filter(|line| line.contains("what only this replica had is lost"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = begins_anew(&mut broker, &["gone"]);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.contains("WARN") && line.contains("gone-0") && line.contains("made anew"), "{line}");
    assert_eq!(begins_anew(&mut broker, &[]), Vec::<String>::new(), "it is as it was");
}

#[test]
fn new_partitions_go_where_the_fewest_are() {
    let broker = Broker::with(2, &[("log.dirs", "~/data,~/other,~/third")]);
    let client = Client::of(&broker);
    client.create_topic("spread", 12, &[]);
    let third = broker.data().with_file_name("third");
    let count = |topic: &str| {
        let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for partition in 0..12 {
            for (dir, ..) in places(&broker, topic, partition) {
                *counts.entry(dir).or_default() += 1;
            }
        }
        [broker.data(), other(&broker), third.clone()].map(|dir| counts.get(&dir).copied().unwrap_or(0))
    };
    assert_eq!(count("spread"), [4, 4, 4]);
    client.create_topic("second", 3, &[]);
    assert_eq!(count("second"), [1, 1, 1]);
}

#[test]
fn the_log_start_survives_in_every_directory() {
    let mut broker = Broker::with(
        2,
        &[
            TWO,
            ("log.flush.start.offset.checkpoint.interval.ms", "200"),
            ("log.flush.offset.checkpoint.interval.ms", "200"),
        ],
    );
    let client = Client::of(&broker);
    client.create_topic("cut", 4, &[]);
    let records: Vec<Send> = (0..400).map(|n| Send::value(n.to_string()).to(n % 4)).collect();
    client.send(&client.producer(&[]), "cut", &records);
    let delete = |client: &Client, add: i64| {
        for partition in 0..4 {
            client.delete_records("cut", partition, add + i64::from(partition));
        }
    };
    let check = |broker: &Broker, add: i64| {
        let client = Client::of(broker);
        for partition in 0..4 {
            let start = add + i64::from(partition);
            assert_eq!(client.offsets("cut", partition), (start, 100), "partition {partition}");
            let first = client.read("cut", &[partition], 1).remove(0);
            assert_eq!((first.offset, first.text()), (start, (4 * start + i64::from(partition)).to_string()));
        }
    };
    delete(&client, 20);
    check(&broker, 20);
    broker.terminate();
    broker.start_again(3);
    check(&broker, 20);

    delete(&Client::of(&broker), 60);
    for dir in [broker.data(), other(&broker)] {
        eventually("the checkpoint has the new log starts", || {
            let text = std::fs::read_to_string(dir.join("log-start-offset-checkpoint")).ok()?;
            let of_topic: Vec<&str> = text.lines().filter(|line| line.starts_with("cut ")).collect();
            let starts = of_topic.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<i64>().ok());
            (of_topic.len() == 2 && starts.into_iter().all(|start| start >= 60)).then_some(())
        });
    }
    broker.kill();
    broker.start_again(2);
    check(&broker, 60);
}

#[test]
fn moves_are_refused_where_kafka_refuses_them() {
    let broker = Broker::with(2, &[TWO]);
    let client = Client::of(&broker);
    client.create_topic("here", 1, &[]);
    assert_eq!(alter(&broker, "here", 0, Path::new("/nowhere")), LOG_DIR_NOT_FOUND);
    assert_eq!(alter(&broker, "absent", 0, &other(&broker)), UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(alter(&broker, "here", 7, &other(&broker)), UNKNOWN_TOPIC_OR_PARTITION);
    let (now, ..) = places(&broker, "here", 0).remove(0);
    assert_eq!(alter(&broker, "here", 0, &now), 0, "it is there already");
    assert_eq!(places(&broker, "here", 0), [(now, false, 0)]);
}

#[test]
fn a_partition_that_does_not_exist_yet_goes_where_it_was_asked_to() {
    let broker = Broker::with(2, &[TWO]);
    let client = Client::of(&broker);
    for (round, to) in [other(&broker), broker.data(), other(&broker), broker.data()].iter().enumerate() {
        let topic = format!("later{round}");
        assert_eq!(alter(&broker, &topic, 0, to), UNKNOWN_TOPIC_OR_PARTITION);
        client.create_topic(&topic, 1, &[]);
        assert_eq!(places(&broker, &topic, 0), [(to.clone(), false, 0)]);
    }
}

/// Numbers from `from` on until told to stop; how many were acknowledged, all of them in order.
fn produce_until(client: &Client, topic: &str, from: u64, stop: &AtomicBool) -> u64 {
    let producer = client.producer(&[
        ("enable.idempotence", "true"),
        ("linger.ms", "1"),
        ("batch.num.messages", "50"),
        ("message.timeout.ms", "20000"),
    ]);
    let mut next = from;
    while !stop.load(Ordering::Relaxed) {
        let records: Vec<Send> =
            (next..next + 200).map(|n| Send::value(format!("{n} {}", "x".repeat(200))).to(0)).collect();
        client.send(&producer, topic, &records);
        next += 200;
    }
    next
}

#[track_caller]
fn check_numbers(broker: &Broker, topic: &str, count: u64) {
    let client = Client::of(broker);
    assert_eq!(client.offsets(topic, 0), (0, count as i64));
    let got = client.read(topic, &[0], count as usize);
    for (number, record) in got.iter().enumerate() {
        assert_eq!(record.offset, number as i64);
        let text = record.text();
        assert_eq!(text.split(' ').next(), Some(number.to_string().as_str()), "at offset {number}");
    }
}

#[test]
fn a_replica_moves_under_load_and_loses_nothing() {
    let mut broker = Broker::with(2, &[TWO, SOON, ("log.segment.bytes", "1048576")]);
    let client = Client::of(&broker);
    client.create_topic("moves", 1, &[]);
    let (start, ..) = places(&broker, "moves", 0).remove(0);
    let (data, other) = (broker.data(), other(&broker));
    let away = if start == data { other.clone() } else { data.clone() };
    let stop = AtomicBool::new(false);
    let count = std::thread::scope(|scope| {
        let (writer_client, stop) = (Client::of(&broker), &stop);
        let writer = scope.spawn(move || produce_until(&writer_client, "moves", 0, stop));
        for to in [&away, &start, &away] {
            std::thread::sleep(Duration::from_millis(600));
            assert_eq!(alter(&broker, "moves", 0, to), 0);
            await_move(&broker, "moves", 0, to);
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("the writer ends by itself")
    });
    assert!(count >= 1000, "only {count} records: the load was none");
    check_numbers(&broker, "moves", count);
    eventually("what it left is removed", || on_disk(&start, "moves-0").is_empty().then_some(()));
    assert_eq!(on_disk(&away, "moves-0"), ["moves-0"]);
    for clean in [true, false] {
        if clean {
            broker.terminate();
        } else {
            broker.kill();
        }
        broker.start_again(3);
        assert_eq!(places(&broker, "moves", 0), [(away.clone(), false, 0)]);
        check_numbers(&broker, "moves", count);
    }
}

#[test]
fn a_move_goes_on_after_a_restart() {
    let mut broker = Broker::with(2, &[TWO, SOON, ("log.segment.bytes", "1048576")]);
    let client = Client::of(&broker);
    client.create_topic("far", 1, &[]);
    let records: Vec<Send> =
        (0..60_000).map(|n: u64| Send::value(format!("{n} {}", "x".repeat(1000))).to(0)).collect();
    client.send(&client.producer(&[("linger.ms", "20"), ("enable.idempotence", "true")]), "far", &records);
    for clean in [false, true] {
        let (from, ..) = places(&broker, "far", 0).remove(0);
        let to = if from == broker.data() { other(&broker) } else { broker.data() };
        limit_moves(&Client::of(&broker), "3000000");
        assert_eq!(alter(&broker, "far", 0, &to), 0);
        if !Broker::is_kafka() {
            // Else a broker that is killed now would not know of the move.
            assert_eq!(on_disk(&to, "far-0").len(), 1, "it was answered before it had begun");
        }
        // At this pace it takes 20 seconds.
        let is_half_way = |broker: &Broker| {
            let places = places(broker, "far", 0);
            places.iter().any(|(dir, is_future, _)| *dir == from && !is_future)
                && places.iter().any(|(dir, is_future, lag)| *dir == to && *is_future && *lag > 0)
        };
        eventually("the copy has begun", || is_half_way(&broker).then_some(()));
        if clean {
            broker.terminate();
        } else {
            broker.kill();
        }
        assert!(!on_disk(&to, "far-0").iter().any(|name| name == "far-0"), "it was in the middle");
        broker.start_again(2);
        eventually("it goes on", || is_half_way(&broker).then_some(()));
        if !Broker::is_kafka() {
            eventually("it is held up by the limit", || {
                (metric(&broker, "kuring_move_throttled_seconds_total") > 0).then_some(())
            });
        }
        limit_moves(&Client::of(&broker), "9223372036854775807");
        await_move(&broker, "far", 0, &to);
        // Of the whole log; the part that was there when the process began is not copied again.
        assert!(Broker::is_kafka() || metric(&broker, "kuring_move_bytes_total") > 1_000_000);
        check_numbers(&broker, "far", 60_000);
        eventually("what it left is removed", || on_disk(&from, "far-0").is_empty().then_some(()));
        assert_eq!(on_disk(&to, "far-0"), ["far-0"]);
    }
}

#[test]
fn a_move_is_answered_when_the_copy_has_its_directory() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::stopped(1, &[TWO, ("kuring.file.threads", "1")]);
    let disk = StickyDisk::new(broker.home().join("journals"));
    broker.set_environment(JOURNAL, &disk.folder().to_string_lossy());
    broker.start_again(1);
    Client::of(&broker).create_topic("slow", 1, &[]);
    let (from, ..) = places(&broker, "slow", 0).remove(0);
    let to = if from == broker.data() { other(&broker) } else { broker.data() };
    let _creator = disk.stick_under(&broker);
    let mut mover = Raw::connect(&broker);
    mover.send(ALTER, &move_of("slow", 0, &to));
    let answer = mover.answer(Duration::from_secs(2));
    disk.stick(false);
    assert_eq!(answer, Answer::Silence, "a broker that is killed now does not know of the move");
    let Answer::Frame(_) = mover.answer(PATIENCE) else { panic!("the disk goes on") };
    assert!(!on_disk(&to, "slow-0").is_empty());
    await_move(&broker, "slow", 0, &to);
}

#[test]
fn a_move_is_cancelled_by_one_to_where_it_is_and_by_deletion() {
    let broker = Broker::with(2, &[TWO, SOON]);
    let client = Client::of(&broker);
    client.create_topic("back", 1, &[]);
    let records: Vec<Send> = (0..30_000).map(|_| Send::value(vec![b'x'; 2000]).to(0)).collect();
    client.send(&client.producer(&[("linger.ms", "20")]), "back", &records);
    let (from, ..) = places(&broker, "back", 0).remove(0);
    let to = if from == broker.data() { other(&broker) } else { broker.data() };
    assert_eq!(alter(&broker, "back", 0, &to), 0);
    assert_eq!(alter(&broker, "back", 0, &from), 0);
    // It may have been done before the second request came: then that moves it back.
    await_move(&broker, "back", 0, &from);
    eventually("the copy is removed", || on_disk(&to, "back-0").is_empty().then_some(()));
    assert_eq!(client.offsets("back", 0), (0, 30_000));

    assert_eq!(alter(&broker, "back", 0, &to), 0);
    client.delete_topic("back").expect("deleted");
    for dir in [&from, &to] {
        eventually("nothing is left of it", || on_disk(dir, "back-0").is_empty().then_some(()));
    }
}

#[test]
fn a_start_finishes_a_move_that_was_interrupted_between_its_renames() {
    const UNIQUE: &str = "0123456789abcdef0123456789abcdef";
    if Broker::is_kafka() {
        return;
    }
    for (renamed, clean) in [(false, true), (true, true), (true, false)] {
        let mut broker = Broker::with(2, &[TWO, SOON]);
        let client = Client::of(&broker);
        client.create_topic("torn", 1, &[]);
        let records: Vec<Send> = (0..100).map(|n| Send::value(n.to_string()).to(0)).collect();
        client.send(&client.producer(&[]), "torn", &records);
        client.delete_records("torn", 0, 10);
        let (from, ..) = places(&broker, "torn", 0).remove(0);
        let to = if from == broker.data() { other(&broker) } else { broker.data() };
        broker.terminate();
        let copy = to.join(format!("torn-0.{UNIQUE}-future"));
        std::fs::create_dir(&copy).expect("made");
        for entry in std::fs::read_dir(from.join("torn-0")).expect("the partition") {
            let entry = entry.expect("a name");
            std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("copied");
        }
        let note = "log.start.offset=10\nlog.end.offset=100\n";
        std::fs::write(copy.join("kuring-moved"), note).expect("written");
        if renamed {
            let left = from.join(format!("torn-0.{UNIQUE}-delete"));
            std::fs::rename(from.join("torn-0"), left).expect("renamed");
        }
        if !clean {
            std::fs::remove_file(to.join(".kafka_cleanshutdown")).expect("it was stopped cleanly");
        }
        for _ in 0..2 {
            broker.start_again(2);
            assert_eq!(places(&broker, "torn", 0), [(to.clone(), false, 0)]);
            assert_eq!(Client::of(&broker).offsets("torn", 0), (10, 100));
            eventually("what it left is removed", || on_disk(&from, "torn-0").is_empty().then_some(()));
            assert_eq!(on_disk(&to, "torn-0"), ["torn-0"]);
            broker.terminate();
        }
        assert!(!to.join("torn-0/kuring-moved").exists(), "the checkpoints have what it tells by now");
    }
}
