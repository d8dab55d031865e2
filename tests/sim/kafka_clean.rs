//! The same files compacted by Apache Kafka's broker and here: the same batches must be left, and Kafka's tools must
//! find nothing wrong with ours. Like [`crate::kafka`] only with `KURING_TEST_KAFKA_FILES=1`.

use std::path::Path;
use std::time::{Duration, Instant};

use kuring::base::clock::{Monotonic, Now, Timestamp};
use kuring::base::random::Random;
use kuring::base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};
use kuring::config::{CleanupPolicy, LogConfig};
use kuring::io::os::OsFiles;
use kuring::log::{Batch, CleanSettings, CleanStep, Log, Origin};
use kuring::wire::record::{BatchBuilder, Batches, Codec, Compression, EndTxnMarker};

use crate::kafka::{copy, files, is_wanted, kafka_real, open_with};

/// What is compared of a batch: all but when its tombstones may go, which is a matter of the clock.
#[derive(PartialEq, Eq, Debug)]
struct Left {
    base: i64,
    last: i64,
    epoch: i32,
    attributes: i16,
    max_timestamp: i64,
    producer: (i64, i16, i32),
    records: Vec<Record>,
}

/// Offset, timestamp, key, length of the value.
type Record = (i64, i64, Option<Vec<u8>>, Option<usize>);

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 10_000,
        index_interval_bytes: 500,
        cleanup_policy: CleanupPolicy { compact: true, delete: false },
        ..LogConfig::default()
    }
}

fn now() -> Now {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Now { monotonic: Monotonic::ZERO, wall: Timestamp(since.as_millis() as i64) }
}

fn settle(log: &mut Log<OsFiles>) {
    while let Some(job) = log.next_job(now()) {
        log.finish(job.run(), now()).unwrap();
    }
}

/// Keys, tombstones, idempotent producers, transactions committed and aborted. Returns where the active segment is.
fn write(dir: &Path) -> i64 {
    let mut log = open_with(dir, config(), 0, false);
    let mut random = Random::seeded(3);
    let start = now().wall.0 - 60_000;
    let mut sequences = [0; 4];
    for number in 0..400i64 {
        let codec = Codec::ALL[random.below(5) as usize];
        let mut builder = BatchBuilder::new(Offset::ZERO, Compression::of(codec));
        let (count, producer) = (1 + random.below(4) as i32, random.below(5) as usize);
        if let Some(sequence) = sequences.get_mut(producer) {
            builder = builder.with_producer(ProducerId(70 + producer as i64), ProducerEpoch(1), *sequence);
            *sequence += count;
        }
        let is_transactional = (2..4).contains(&producer);
        if is_transactional {
            builder = builder.with_transactional();
        }
        for _ in 0..count {
            let key = format!("k{}", random.below(40));
            let value: Vec<u8> = (0..random.below(200)).map(|_| random.next_u64() as u8).collect();
            let value = (random.below(6) > 0).then_some(value);
            builder.append(Timestamp(start + number), Some(key.as_bytes()), value.as_deref(), &[]);
        }
        let mut batches = vec![Batch::from_bytes(&builder.finish().unwrap()).unwrap()];
        if is_transactional {
            let marker = EndTxnMarker { commit: random.below(2) == 0, coordinator_epoch: 4 };
            let id = ProducerId(70 + producer as i64);
            let marker = marker.to_batch(id, ProducerEpoch(1), Timestamp(start + number));
            batches.push(Batch::from_bytes(&marker).unwrap());
        }
        let results = log.append(&mut batches, LeaderEpoch(number as i32 / 200), Origin::Client, now());
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        let end = log.log_end();
        log.high_watermark_advanced(end);
        settle(&mut log);
    }
    assert!(log.segment_count() > 5);
    log.close(now()).unwrap();
    log.end_metadata().segment.0
}

fn clean(dir: &Path) {
    let mut log = open_with(dir, config(), i64::MAX, true);
    settle(&mut log);
    let end = log.log_end();
    log.high_watermark_advanced(end);
    let settings =
        CleanSettings { map_bytes: 1 << 20, load_factor: 0.9, buffer_bytes: 1 << 16, slice_bytes: 1 << 14 };
    let mut clean = log.start_clean(end, settings, now()).expect("there is something to clean");
    loop {
        clean = match clean.run() {
            CleanStep::More(clean) => clean,
            CleanStep::Group(clean, cleaned) => {
                assert!(log.exchange(cleaned).is_ok());
                settle(&mut log);
                clean
            }
            CleanStep::Done { up_to, generation, .. } => break log.mark_cleaned(up_to, generation),
            CleanStep::Failed(error) => panic!("{error}"),
        };
    }
    log.close(now()).unwrap();
}

/// The batches below `bound`.
fn left(dir: &Path, bound: i64) -> Vec<Left> {
    let mut found = Vec::new();
    for path in files(dir, "log") {
        let bytes = std::fs::read(path).unwrap();
        for batch in Batches::new(&bytes) {
            let batch = batch.unwrap();
            batch.check_crc().unwrap();
            let head = batch.head();
            if head.base_offset().0 >= bound {
                continue;
            }
            let mut scratch = Vec::new();
            let records = batch.records(&mut scratch, 1 << 20).unwrap().map(|record| {
                let record = record.unwrap();
                let value = record.value.map(<[u8]>::len);
                (record.offset.0, record.timestamp.0, record.key.map(<[u8]>::to_vec), value)
            });
            found.push(Left {
                base: head.base_offset().0,
                last: head.last_offset().0,
                epoch: head.leader_epoch().0,
                attributes: head.attributes().0,
                max_timestamp: head.max_timestamp().0,
                producer: (head.producer_id().0, head.producer_epoch().0, head.base_sequence()),
                records: records.collect(),
            });
        }
    }
    found
}

#[test]
fn kafka_and_we_leave_the_same_batches_of_the_same_files() {
    if !is_wanted() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let ours = temporary.path().join("t-0");
    let active = write(&ours);
    let home = temporary.path().join("kafka");
    let home_text = home.display().to_string();
    let cleaner = ["log.cleaner.backoff.ms=100", "log.cleaner.min.cleanable.ratio=0.01"];
    let start = || kafka_real(&[&["start", &home_text][..], &cleaner].concat()).trim().to_owned();
    let bootstrap = start();
    let create = ["tool", "topics", "--create", "--topic", "t", "--config", "cleanup.policy=compact"];
    kafka_real(&[&create[..], &["--bootstrap-server", &bootstrap]].concat());
    kafka_real(&["stop", &home_text]);
    let theirs = home.join("data/t-0");
    for entry in std::fs::read_dir(&theirs).unwrap() {
        let path = entry.unwrap().path();
        if !path.ends_with("partition.metadata") {
            std::fs::remove_file(path).unwrap();
        }
    }
    copy(&ours, &theirs);
    start();
    let began = Instant::now();
    let checkpoint = home.join("data/cleaner-offset-checkpoint");
    let line = format!("t 0 {active}");
    while !std::fs::read_to_string(&checkpoint).is_ok_and(|text| text.lines().any(|found| found == line)) {
        assert!(began.elapsed() < Duration::from_secs(120), "Kafka did not clean up to {active}");
        std::thread::sleep(Duration::from_millis(200));
    }
    kafka_real(&["stop", &home_text]);
    let before = left(&ours, active).len();
    clean(&ours);
    let (ours_left, theirs_left) = (left(&ours, active), left(&theirs, active));
    assert!(ours_left.len() < before / 2, "{} of {before} batches are left", ours_left.len());
    for (one, other) in ours_left.iter().zip(&theirs_left) {
        assert_eq!(one, other, "ours and Kafka's");
    }
    assert_eq!(ours_left.len(), theirs_left.len());
    let with = |bit: i16| ours_left.iter().filter(|left| left.attributes & bit != 0).count();
    assert!(with(0x40) > 0 && with(0x20) > 0, "there are horizons and markers among them");
    assert!(ours_left.iter().any(|left| left.records.is_empty()), "and empty batches");
    let aborted = |dir: &Path| -> Vec<u8> {
        files(dir, "txnindex").iter().flat_map(|path| std::fs::read(path).unwrap()).collect()
    };
    assert_eq!(aborted(&ours), aborted(&theirs), "the transaction indexes");
    for kind in ["log", "index", "timeindex", "txnindex"] {
        let paths = files(&ours, kind).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let text = kafka_real(&["tool", "dump-log", "--deep-iteration", "--files", &paths.join(",")]);
        let bad = ["isvalid: false", "Found", "ismatch", "Exception", "out of order"];
        assert!(!bad.iter().any(|word| text.contains(word)), "{kind}: {text}");
    }
}
