//! The log's files and Apache Kafka's: its tools read ours, we open its own. These need Java and Kafka's jars, so
//! they do nothing unless asked: `KURING_TEST_KAFKA_FILES=1 cargo test --test sim kafka`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use kuring::base::clock::{Monotonic, Now, Timestamp};
use kuring::base::random::Random;
use kuring::base::{LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition};
use kuring::config::LogConfig;
use kuring::io::FileHandle;
use kuring::io::os::OsFiles;
use kuring::log::{Batch, Gaps, Log, LogContext, OpenOptions, Origin, Read, ReadRequest};
use kuring::wire::record::{BatchBuilder, Batches, Codec, Compression, EndTxnMarker};

/// Whether a real Kafka is to be used.
pub fn is_wanted() -> bool {
    let wanted = std::env::var_os("KURING_TEST_KAFKA_FILES").is_some();
    if !wanted {
        eprintln!("not run: KURING_TEST_KAFKA_FILES is not set");
    }
    wanted
}

fn now() -> Now {
    Now { monotonic: Monotonic::ZERO, wall: Timestamp(1_700_000_000_000) }
}

fn open(dir: &Path, recovery_point: i64, clean: bool) -> Log<OsFiles> {
    let config = LogConfig { segment_bytes: 10_000, index_interval_bytes: 500, ..LogConfig::default() };
    open_with(dir, config, recovery_point, clean)
}

pub fn open_with(dir: &Path, config: LogConfig, recovery_point: i64, clean: bool) -> Log<OsFiles> {
    let options = OpenOptions {
        dir: dir.to_path_buf(),
        topic_partition: TopicPartition::new("t", PartitionIndex(0)),
        config: Arc::new(config),
        recovery_point: Offset(recovery_point),
        log_start: Offset::ZERO,
        cleaned: None,
        gaps: Gaps::BelowRecoveryPoint,
        clean,
    };
    Log::open(&Arc::new(LogContext::new(OsFiles)), options, now()).unwrap()
}

pub fn kafka_real(arguments: &[&str]) -> String {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/kafka-real");
    let output = Command::new(program).args(arguments).output().expect("kafka-real");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "kafka-real {arguments:?}: {text}");
    text
}

pub fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    files.sort();
    files
}

fn write(dir: &Path) -> i64 {
    let mut log = open(dir, 0, false);
    let mut sequence = 0;
    let mut random = Random::seeded(1);
    for number in 0..300i64 {
        let codec = Codec::ALL[number as usize % 5];
        let builder = BatchBuilder::new(Offset::ZERO, Compression::of(codec));
        let mut builder = match number % 3 {
            0 => builder.with_producer(ProducerId(77), ProducerEpoch(2), sequence),
            1 => builder,
            _ => builder
                .with_producer(ProducerId(78), ProducerEpoch(0), number as i32 / 3 * 4)
                .with_transactional(),
        };
        sequence += if number % 3 == 0 { 4 } else { 0 };
        for record in 0..4 {
            let time = 1_700_000_000_000 + number * 7 - record * 3;
            let value: Vec<u8> = (0..150).map(|_| random.next_u64() as u8).collect();
            builder.append(Timestamp(time), Some(b"key"), Some(&value), &[]);
        }
        let mut batches = vec![Batch::from_bytes(&builder.finish().unwrap()).unwrap()];
        if number % 3 == 2 {
            let marker = EndTxnMarker { commit: number % 2 == 0, coordinator_epoch: 4 };
            let marker = marker.to_batch(ProducerId(78), ProducerEpoch(0), Timestamp(1_700_000_000_000));
            batches.push(Batch::from_bytes(&marker).unwrap());
        }
        let results = log.append(&mut batches, LeaderEpoch(number as i32 / 100), Origin::Client, now());
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        while let Some(job) = log.next_job(now()) {
            log.finish(job.run(), now()).unwrap();
        }
        if number % 40 == 0 {
            log.request_checkpoint();
        }
    }
    assert!(log.segment_count() > 5);
    log.close(now()).unwrap();
    log.log_end().0
}

#[test]
fn kafkas_tools_find_nothing_wrong_with_our_files() {
    if !is_wanted() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("t-0");
    let end = write(&dir);
    let list =
        |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(",");
    let logs = kafka_real(&["tool", "dump-log", "--deep-iteration", "--files", &list(&files(&dir, "log"))]);
    assert!(!logs.contains("isvalid: false") && !logs.contains("Found"), "{logs}");
    assert!(logs.contains(&format!("lastOffset: {}", end - 1)), "{logs}");
    for extension in ["index", "timeindex"] {
        let paths = files(&dir, extension);
        assert!(paths.iter().any(|path| path.metadata().unwrap().len() > 0));
        let list = list(&paths);
        for arguments in [vec!["--index-sanity-check"], vec!["--verify-index-only"], vec![]] {
            let text = kafka_real(&[&["tool", "dump-log", "--files", &list][..], &arguments].concat());
            let bad = ["Mismatch", "mismatch", "Found", "Exception", "out of order"];
            assert!(!bad.iter().any(|word| text.contains(word)), "{extension} {arguments:?}: {text}");
        }
    }
    let snapshots = kafka_real(&["tool", "dump-log", "--files", &list(&files(&dir, "snapshot"))]);
    assert!(snapshots.contains("producerId: 77 producerEpoch: 2"), "{snapshots}");
    assert!(!snapshots.contains("Exception"), "{snapshots}");
}

#[test]
fn a_directory_that_kafka_wrote_opens_with_all_records() {
    if !is_wanted() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let home = temporary.path().join("kafka");
    let home_text = home.display().to_string();
    let properties = ["log.segment.bytes=1048576", "log.index.interval.bytes=1000"];
    let bootstrap = kafka_real(&[&["start", &home_text][..], &properties].concat());
    let bootstrap = bootstrap.trim();
    kafka_real(&["tool", "topics", "--bootstrap-server", bootstrap, "--create", "--topic", "t"]);
    let count = 20_000;
    let arguments = [
        "tool",
        "producer-perf",
        "--topic",
        "t",
        "--num-records",
        &count.to_string(),
        "--record-size",
        "300",
        "--throughput",
        "-1",
        "--bootstrap-server",
        bootstrap,
    ];
    kafka_real(&arguments);
    let killed = temporary.path().join("killed");
    copy(&home.join("data/t-0"), &killed);
    kafka_real(&["stop", &home_text]);
    let stopped = temporary.path().join("stopped");
    copy(&home.join("data/t-0"), &stopped);
    for (dir, clean) in [(stopped.clone(), true), (stopped, false), (killed, false)] {
        let mut log = open(&dir, 0, clean);
        assert_eq!(log.log_end(), Offset(count), "{} {clean}", dir.display());
        assert!(log.segment_count() > 3);
        assert!(log.producers().count() > 0, "{} {clean}", dir.display());
        let mut next = 0;
        while next < count {
            next = read(&mut log, next, count);
        }
    }
}

#[test]
fn kafka_serves_a_partition_that_we_wrote() {
    if !is_wanted() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let home = temporary.path().join("kafka");
    let home_text = home.display().to_string();
    let bootstrap = kafka_real(&["start", &home_text]);
    kafka_real(&["tool", "topics", "--bootstrap-server", bootstrap.trim(), "--create", "--topic", "t"]);
    kafka_real(&["stop", &home_text]);
    let dir = home.join("data/t-0");
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if !path.ends_with("partition.metadata") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let end = write(&dir);
    let bootstrap = kafka_real(&["start", &home_text]);
    let bootstrap = bootstrap.trim();
    let offsets = kafka_real(&["tool", "get-offsets", "--bootstrap-server", bootstrap, "--topic", "t"]);
    assert!(offsets.contains(&format!("t:0:{end}")), "{offsets}");
    let consumed = kafka_real(&[
        "tool",
        "console-consumer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        "t",
        "--from-beginning",
        "--max-messages",
        "1200",
        "--formatter-property",
        "print.value=false",
        "--formatter-property",
        "print.offset=true",
    ]);
    assert_eq!(consumed.matches("Offset:").count(), 1200, "{consumed}");
    let log = std::fs::read_to_string(home.join("server.log")).unwrap();
    kafka_real(&["stop", &home_text]);
    let is_complaint =
        |line: &&str| line.contains("=t-0") && (line.contains("WARN") || line.contains("ERROR"));
    let complaints: Vec<&str> = log.lines().filter(is_complaint).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert!(log.contains(&format!("{end:020}.snapshot")), "the producer snapshot was not loaded");
}

/// Reads some batches and checks them; returns the offset after them.
fn read(log: &mut Log<OsFiles>, offset: i64, bound: i64) -> i64 {
    let request = ReadRequest {
        offset: Offset(offset),
        bytes_max: 100_000,
        upper_bound: Offset(bound),
        whole_first_batch: true,
        with_aborted: false,
    };
    let mut read = log.read(request).unwrap();
    let range = loop {
        match read {
            Read::Plan(plan) => break plan.range.unwrap(),
            Read::NeedsDisk(job) => read = log.finish_read(job.run()).unwrap(),
        }
    };
    let mut bytes = vec![0; range.length as usize];
    range.file.read_at(&mut bytes, range.position).unwrap();
    let mut next = offset;
    for batch in Batches::new(&bytes).map_while(Result::ok) {
        batch.check_crc().unwrap();
        assert_eq!(batch.head().base_offset().0, next);
        next = batch.head().next_offset().0;
    }
    assert!(next > offset);
    next
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if let Some(name) = path.file_name() {
            std::fs::copy(&path, to.join(name)).unwrap();
        }
    }
}
