//! Stop, kill, start again: what was there is there, once and in order.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kafka_protocol::messages::{ProduceResponse, ResponseHeader};
use kafka_protocol::protocol::{Decodable as _, HeaderVersion as _};

use crate::harness::batch::{Batch, read_all};
use crate::harness::client::{Client, Send};
use crate::harness::disk::{JOURNAL, StickyDisk};
use crate::harness::raw::{Answer, FETCH, PRODUCE, Raw, fetch, produce};
use crate::harness::{Broker, PATIENCE, eventually};

/// Kafka's error code.
const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;

fn texts(client: &Client, topic: &str, partition: i32, count: usize) -> Vec<String> {
    client.read(topic, &[partition], count).iter().map(|got| got.text()).collect()
}

/// `count` records over 8 partitions, numbered on from those that are there.
fn append(client: &Client, topic: &str, from: usize, count: usize) {
    let records: Vec<Send> = (from..from + count)
        .map(|n| Send::value(n.to_string()).key(n.to_string()).to(n as i32 % 8))
        .collect();
    client.send(&client.producer(&[("compression.type", "lz4")]), topic, &records);
}

#[track_caller]
fn check(client: &Client, topic: &str, count: usize) {
    let wanted =
        [0, 1, 2, 3, 4, 5, 6, 7].map(|partition| (partition..count).step_by(8).collect::<Vec<usize>>());
    let ends: Vec<_> = wanted.iter().map(|wanted| (0, wanted.len() as i64)).collect();
    assert_eq!(client.all_offsets(topic, 8), ends);
    for (partition, got) in client.read_each(topic, 8, count).iter().enumerate() {
        let got: Vec<String> = got.iter().map(|got| got.text()).collect();
        let wanted: Vec<String> = wanted[partition].iter().map(|n| n.to_string()).collect();
        assert_eq!(got, wanted, "partition {partition}");
    }
}

#[test]
fn the_same_data_is_served_with_1_then_8_then_3_shards() {
    let mut broker = Broker::with(1, &[]);
    let client = Client::of(&broker);
    client.create_topic("moved", 8, &[("retention.ms", "86400000")]);
    append(&client, "moved", 0, 800);
    let id = Raw::connect(&broker).topic_id("moved");
    for (round, shards) in [8, 3, 1, 2].into_iter().enumerate() {
        let (status, _) = broker.terminate();
        assert!(status.success(), "{status}");
        broker.start_again(shards);
        check(&client, "moved", 800 + 80 * round);
        assert_eq!(Raw::connect(&broker).topic_id("moved"), id, "a topic keeps its id");
        append(&client, "moved", 800 + 80 * round, 80);
        check(&client, "moved", 880 + 80 * round);
    }
}

#[test]
fn a_killed_broker_serves_what_it_had_with_any_number_of_shards() {
    let mut broker = Broker::with(8, &[]);
    let client = Client::of(&broker);
    client.create_topic("killed", 8, &[]);
    append(&client, "killed", 0, 800);
    for (round, shards) in [1, 3, 8].into_iter().enumerate() {
        // The process dies, the kernel lives: what was written stays in the page cache.
        broker.kill();
        broker.start_again(shards);
        check(&client, "killed", 800 + 80 * round);
        append(&client, "killed", 800 + 80 * round, 80);
    }
    check(&client, "killed", 1040);
}

#[test]
fn a_log_is_not_closed_while_a_file_thread_works_on_it() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::stopped(1, &[("kuring.file.threads", "2")]);
    let disk = StickyDisk::new(broker.home().join("journals"));
    broker.set_environment(JOURNAL, &disk.folder().to_string_lossy());
    broker.start_again(1);
    Client::of(&broker).create_topic("filling", 1, &[("segment.bytes", "1048576")]);
    let mut raw = Raw::connect(&broker);
    // From here on its file is open.
    assert_eq!(raw.produce("filling", 0, 1, Batch::now(&["first"]).encode()).error_code, 0);
    disk.stick_at_once();
    // More than three quarters of a segment: a file for the next one is asked for, and does not come.
    let value = "x".repeat(900_000);
    assert_eq!(raw.produce("filling", 0, 1, Batch::now(&[&value]).encode()).error_code, 0);
    let status = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(3));
            disk.stick(false);
        });
        broker.terminate().0
    });
    assert!(status.success(), "{status}\n{}", broker.log());
    assert!(broker.data().join(".kafka_cleanshutdown").exists(), "{}", broker.log());
}

#[test]
fn sigterm_ends_it_cleanly_and_quickly_with_a_thousand_partitions() {
    let mut broker = Broker::with(2, &[]);
    let client = Client::of(&broker);
    for topic in 0..10 {
        client.create_topic(&format!("t{topic}"), 100, &[]);
    }
    let producer = client.producer(&[]);
    let records: Vec<Send> = (0..300).map(|n| Send::value("x").to(n % 100)).collect();
    for topic in 0..10 {
        client.send(&producer, &format!("t{topic}"), &records);
    }
    let (status, took) = broker.terminate();
    assert!(status.success(), "{status}");
    if !Broker::is_kafka() {
        // The promise is 2 s for the release build on an idle machine; this is neither.
        assert!(took < Duration::from_secs(6), "{took:?}");
    }
    assert!(broker.data().join(".kafka_cleanshutdown").exists(), "the clean marker is missing");
    broker.start_again(3);
    assert_eq!(client.offsets("t7", 42), (0, 3));
    if !Broker::is_kafka() {
        assert!(
            !broker.data().join(".kafka_cleanshutdown").exists(),
            "the marker must not outlive the start"
        );
    }
}

#[test]
fn a_directory_with_a_log_that_could_not_be_opened_is_not_called_clean() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("broken", 1, &[]);
    append_to(&client, "broken", 1);
    broker.terminate();
    let marker = broker.data().join(".kafka_cleanshutdown");
    assert!(marker.exists());
    let segment = broker.data().join("broken-0/00000000000000000000.log");
    let file = std::fs::File::options().write(true).open(segment).expect("the segment is there");
    let length = file.metadata().expect("it is open").len();
    // More than a segment can have.
    file.set_len(3 << 30).expect("a hole takes no room");
    broker.start_again(2);
    eventually("it is told", || broker.log().contains("its log cannot be opened").then_some(()));
    let (status, _) = broker.terminate();
    assert!(status.success(), "{status}");
    assert!(!marker.exists(), "the next start would recover nothing");
    file.set_len(length).expect("the hole goes");
    broker.start_again(2);
    assert_eq!(client.offsets("broken", 0), (0, 1));
}

#[test]
fn each_start_begins_a_new_leader_epoch() {
    let mut broker = Broker::start();
    Client::of(&broker).create_topic("epochs", 1, &[]);
    let mut epochs = Vec::new();
    for round in 0..3 {
        let mut raw = Raw::connect(&broker);
        assert_eq!(raw.produce("epochs", 0, -1, Batch::now(&["a"]).encode()).base_offset, round);
        let response = raw.call(FETCH, &fetch("epochs", &[(0, round)]));
        let records = response.responses[0].partitions[0].records.clone().expect("records");
        epochs.push(read_all(&records)[0].leader_epoch);
        if round == 1 {
            broker.kill()
        } else {
            broker.terminate();
        }
        broker.start_again(2);
        Client::of(&broker).await_partitions("epochs", 1);
    }
    assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
}

#[test]
fn the_ready_line_tells_node_shards_and_address() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(3, &[]);
    let line = broker.ready_line();
    assert!(line.starts_with("kuring ready: node 1, 3 shards, bootstrap 127.0.0.1:"), "{line}");
    assert!(line.ends_with(" ms"), "{line}");
}

#[test]
fn topics_configs_and_deletions_survive() {
    let mut broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("stays", 3, &[("max.message.bytes", "5000")]);
    client.create_topic("goes", 3, &[]);
    client.send(&client.producer(&[]), "goes", &[Send::value("x").to(0)]);
    client.delete_topic("goes").expect("deleted");
    broker.kill();
    broker.start_again(2);
    client.await_partitions("stays", 3);
    let result = client.try_send(&client.producer(&[]), "stays", &[Send::value(vec![0; 6_000])]).remove(0);
    assert!(result.is_err(), "the topic's limit is forgotten");
    assert!(client.delete_topic("goes").is_err(), "a deleted topic came back");
    client.create_topic("goes", 1, &[]);
    assert_eq!(client.offsets("goes", 0), (0, 0));
}

#[test]
fn producer_ids_never_repeat() {
    let mut broker = Broker::start();
    let mut seen = std::collections::HashSet::new();
    for round in 0..5 {
        for _ in 0..5 {
            let mut raw = Raw::connect(&broker);
            for _ in 0..3 {
                let id = raw.producer_id();
                assert!(seen.insert(id), "{id} again in round {round}");
            }
        }
        broker.kill();
        broker.start_again([1, 8, 3, 2, 2][round]);
    }
}

#[test]
fn a_sequence_is_remembered_over_a_restart_and_a_kill() {
    let mut broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("remembered", 1, &[]);
    let send = |broker: &Broker, sequence| {
        let batch = Batch::now(&["a", "b"]).with_producer(3_000_000, 0, sequence).encode();
        let response = Raw::connect(broker).produce("remembered", 0, -1, batch);
        (response.error_code, response.base_offset)
    };
    assert_eq!(send(&broker, 0), (0, 0));
    broker.terminate();
    broker.start_again(2);
    assert_eq!(send(&broker, 2), (0, 2));
    assert_eq!(send(&broker, 2), (0, 2), "a repeated batch gets its first answer");
    broker.kill();
    broker.start_again(2);
    assert_eq!(send(&broker, 2), (0, 2), "a repeated batch gets its first answer");
    assert_eq!(send(&broker, 4), (0, 4));
    assert_eq!(send(&broker, 9).0, OUT_OF_ORDER_SEQUENCE_NUMBER);
}

#[test]
fn the_last_five_batches_of_a_producer_are_remembered_over_a_restart_and_a_kill() {
    // Kafka serves one request of a connection at a time: it remembers one batch over a clean stop.
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("five", 1, &[]);
    let send = |broker: &Broker, sequence: i32| {
        let batch = Batch::now(&["a", "b"]).with_producer(3_000_000, 0, sequence).encode();
        let response = Raw::connect(broker).produce("five", 0, -1, batch);
        (response.error_code, response.base_offset)
    };
    for sequence in (0..12).step_by(2) {
        assert_eq!(send(&broker, sequence), (0, i64::from(sequence)));
    }
    for round in 0..3 {
        if round == 1 {
            broker.kill();
        } else {
            broker.terminate();
        }
        broker.start_again(2);
        for sequence in (2..12).step_by(2) {
            assert_eq!(send(&broker, sequence), (0, i64::from(sequence)), "the first answer, round {round}");
        }
        assert_eq!(send(&broker, 0).0, OUT_OF_ORDER_SEQUENCE_NUMBER);
    }
    assert_eq!(send(&broker, 12), (0, 12));
}

#[test]
fn a_broker_that_stops_has_answered_what_it_has_appended() {
    const PARTITIONS: i32 = 16;
    // Kafka may leave one request of a connection unanswered.
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("answered", PARTITIONS, &[]);
    let mut next = [0; PARTITIONS as usize];
    for round in 0..6 {
        let address = broker.bootstrap().to_owned();
        std::thread::scope(|scope| {
            let writers: Vec<_> = next
                .iter_mut()
                .zip(0..)
                .map(|(next, partition)| {
                    let address = &address;
                    scope.spawn(move || *next = pipeline_until_closed(address, partition, *next))
                })
                .collect();
            std::thread::sleep(Duration::from_millis(300 + 7 * round));
            broker.terminate();
            writers.into_iter().for_each(|writer| writer.join().expect("the writer ends by itself"));
        });
        broker.start_again(2);
        let ends = client.all_offsets("answered", PARTITIONS).into_iter().map(|(_, end)| end);
        assert!(ends.eq(next.iter().map(|next| i64::from(*next))), "round {round}: answered up to {next:?}");
    }
    assert!(next.iter().all(|next| *next > 6), "the load was none: {next:?}");
}

/// An idempotent producer with five requests in flight: what comes after the last record that was answered.
fn pipeline_until_closed(address: &str, partition: i32, from: i32) -> i32 {
    const IN_FLIGHT: i32 = 5;
    let mut raw = Raw::connect_to(address);
    let (mut sent, mut answered) = (from, from);
    loop {
        while sent < answered + IN_FLIGHT {
            let batch = Batch::now(&["x"]).with_producer(4_000_000 + i64::from(partition), 0, sent);
            raw.send(PRODUCE, &produce("answered", partition, -1, batch.encode()));
            sent += 1;
        }
        let mut frame = match raw.answer(PATIENCE) {
            Answer::Frame(frame) => frame,
            Answer::Closed => return answered,
            Answer::Silence => panic!("neither an answer nor the end"),
        };
        ResponseHeader::decode(&mut frame, ProduceResponse::header_version(PRODUCE)).expect("a header");
        let response = ProduceResponse::decode(&mut frame, PRODUCE).expect("a response");
        let appended = &response.responses[0].partition_responses[0];
        assert_eq!((appended.error_code, appended.base_offset), (0, i64::from(answered)));
        answered += 1;
    }
}

#[test]
fn a_torn_tail_is_cut_at_the_last_whole_batch() {
    let mut broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("torn", 1, &[]);
    let mut raw = Raw::connect(&broker);
    for _ in 0..5 {
        raw.produce("torn", 0, -1, Batch::now(&["a", "b"]).encode());
    }
    broker.kill();
    let file = broker.data().join("torn-0/00000000000000000000.log");
    let mut bytes = std::fs::read(&file).expect("the partition's log");
    // Files may be preallocated: the data end is where the fifth batch ends.
    let end = 5 * Batch::now(&["a", "b"]).encode().len();
    bytes.truncate(end - 3);
    std::fs::write(&file, &bytes).expect("ours");
    broker.start_again(2);
    assert_eq!(client.offsets("torn", 0), (0, 8));
    assert_eq!(Raw::connect(&broker).produce("torn", 0, -1, Batch::now(&["c"]).encode()).base_offset, 8);
    assert_eq!(texts(&client, "torn", 0, 9), ["a", "b", "a", "b", "a", "b", "a", "b", "c"]);
}

#[test]
fn a_second_broker_on_the_same_data_is_refused() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::start();
    let data = format!("log.dirs={}", broker.data().display());
    let arguments = ["serve", "--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", &data];
    let (status, _, errors) = crate::harness::broker::kuring(&arguments, &[], b"");
    assert!(!status.success());
    assert!(!errors.trim().is_empty(), "it must say why");
}

#[test]
fn every_record_acknowledged_under_fsync_is_there_after_a_kill_in_order_and_once() {
    const PARTITIONS: i32 = 6;
    if Broker::is_kafka() {
        return;
    }
    for (round, shards) in [2, 8, 1].into_iter().enumerate() {
        let mut broker = Broker::with(shards, &[("kuring.durability", "fsync")]);
        let client = Client::of(&broker);
        client.create_topic("durable", PARTITIONS, &[]);
        let (stop, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
        let acknowledged: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..PARTITIONS)
                .map(|partition| {
                    let (client, stop, taken) = (Client::of(&broker), &stop, &taken);
                    scope.spawn(move || write_until(&client, partition, stop, taken))
                })
                .collect();
            eventually("the load has begun", || (taken.load(Ordering::Relaxed) > 100).then_some(()));
            // Each round kills at another moment of the load.
            std::thread::sleep(Duration::from_millis(700 + 350 * round as u64));
            broker.kill();
            stop.store(true, Ordering::Relaxed);
            writers.into_iter().map(|writer| writer.join().expect("the writer ends by itself")).collect()
        });
        broker.start_again([3, 2, 8][round]);
        let ends = client.all_offsets("durable", PARTITIONS);
        let count: i64 = ends.iter().map(|(_, next)| next).sum();
        let each = client.read_each("durable", PARTITIONS, count as usize);
        for (partition, acknowledged) in acknowledged.iter().enumerate() {
            let (first, next) = ends[partition];
            assert_eq!(first, 0);
            let stored: Vec<u64> =
                each[partition].iter().map(|got| got.text().parse().expect("a number")).collect();
            assert_eq!(stored.len() as i64, next);
            assert!(stored.is_sorted_by(|a, b| a < b), "partition {partition}: out of order or twice");
            assert!(
                stored.iter().enumerate().all(|(index, number)| index as u64 == *number),
                "partition {partition}: a gap"
            );
            let last = acknowledged.last().map_or(0, |last| last + 1);
            assert!(next as u64 >= last, "partition {partition}: {last} acknowledged, {next} stored");
        }
    }
}

/// Numbers from 0 on, many in flight; those that were acknowledged until the broker died.
fn write_until(client: &Client, partition: i32, stop: &AtomicBool, taken: &AtomicUsize) -> Vec<u64> {
    let producer = client.producer(&[
        ("enable.idempotence", "true"),
        ("linger.ms", "1"),
        ("batch.num.messages", "20"),
        ("message.timeout.ms", "3000"),
    ]);
    let (mut next, mut acknowledged) = (0, Vec::new());
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(20) {
        let records: Vec<Send> =
            (next..next + 100).map(|n: u64| Send::value(n.to_string()).to(partition)).collect();
        let results = client.try_send(&producer, "durable", &records);
        acknowledged
            .extend((next..).zip(&results).filter(|(_, result)| result.is_ok()).map(|(number, _)| number));
        taken.fetch_add(results.iter().filter(|result| result.is_ok()).count(), Ordering::Relaxed);
        if results.iter().any(Result::is_err) {
            break;
        }
        next += 100;
    }
    acknowledged
}

#[test]
fn real_text_goes_in_and_comes_back_byte_for_byte() {
    if Broker::is_kafka() {
        return;
    }
    let text = std::fs::read("/var/lib/dpkg/status").expect("Debian's package database");
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("packages", 1, &[]);
    broker.kuring(&["produce", "packages", "--compression", "zstd"], &text);
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    eventually("all lines are there", || (client.offsets("packages", 0) == (0, lines as i64)).then_some(()));
    let mut back = Vec::with_capacity(text.len());
    for got in client.read("packages", &[0], lines) {
        back.extend(got.value.unwrap_or_default());
        back.push(b'\n');
    }
    assert!(back == text, "{} bytes went in, {} came back, not the same", text.len(), back.len());
    let own = broker.kuring(&["consume", "packages", "--from-beginning", "-n", &lines.to_string()], b"");
    assert!(own == text, "kuring consume differs");
}

#[test]
fn a_topic_does_not_inherit_what_the_checkpoints_say_of_the_one_that_had_its_name() {
    let mut broker = Broker::with(2, &[("log.flush.start.offset.checkpoint.interval.ms", "3000")]);
    let client = Client::of(&broker);
    client.create_topic("again", 1, &[]);
    let producer = client.producer(&[]);
    let records: Vec<Send> = (0..20).map(|n| Send::value(n.to_string()).to(0)).collect();
    client.send(&producer, "again", &records);
    client.delete_records("again", 0, 15);
    let checkpoint = broker.data().join("log-start-offset-checkpoint");
    eventually("the log start is in its checkpoint", || {
        std::fs::read_to_string(&checkpoint).ok().filter(|text| text.contains("again 0 15"))
    });
    // Within the next three seconds nothing writes that file but the deletion.
    client.delete_topic("again").expect("it is there");
    client.create_topic("again", 1, &[]);
    client.send(&client.producer(&[]), "again", &records[..10]);
    broker.kill();
    broker.start_again(2);
    let wanted: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    assert_eq!(client.offsets("again", 0), (0, 10));
    assert_eq!(texts(&client, "again", 0, 10), wanted);
}

#[test]
fn an_idle_broker_leaves_its_checkpoint_files_alone() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(2, &[("log.flush.offset.checkpoint.interval.ms", "100")]);
    let client = Client::of(&broker);
    client.create_topic("idle", 4, &[]);
    append_to(&client, "idle", 4);
    let files = ["recovery-point", "replication", "log-start"]
        .map(|name| broker.data().join(format!("{name}-offset-checkpoint")));
    let written = || {
        let time = |path: &PathBuf| std::fs::metadata(path).and_then(|file| file.modified());
        files.each_ref().map(|path| time(path).expect("the file is there"))
    };
    eventually("all has been written", || {
        let high_watermarks = std::fs::read_to_string(&files[1]).expect("written");
        high_watermarks.contains("idle 3 1\n").then_some(())
    });
    let mut before = written();
    // The start itself moves recovery points for a while.
    eventually("half a second without a write", || {
        std::thread::sleep(Duration::from_millis(500));
        let earlier = std::mem::replace(&mut before, written());
        (earlier == before).then_some(())
    });
    append_to(&client, "idle", 1);
    eventually("the record is told of", || {
        let high_watermarks = std::fs::read_to_string(&files[1]).expect("written");
        high_watermarks.contains("idle 0 2\n").then_some(())
    });
    let after = written();
    assert_eq!(after[2], before[2], "no log start has changed");
}

/// A record for each of the first partitions.
fn append_to(client: &Client, topic: &str, partitions: i32) {
    let records: Vec<Send> = (0..partitions).map(|partition| Send::value("x").to(partition)).collect();
    client.send(&client.producer(&[]), topic, &records);
}
