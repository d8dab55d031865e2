//! Logs of a Kafka node that are whole, torn and holed; a takeover that is cut off anywhere.

use std::cell::Cell;
use std::io::IoSlice;
use std::time::Duration;

use super::*;
use crate::base::random::Random;
use crate::io::mem::{Crash, Fault, MemFiles};
use crate::io::runtime::run_shard;
use crate::io::{FileHandle, OpenMode};
use crate::metadata::ConfigResource;
use crate::metadata::kafka_testing::{TOPIC, batch, new_leader, partition, snapshot, topic, voters};
use crate::metadata::testing::FewRules;

const NODE: BrokerId = BrokerId(1);

fn place(files: &MemFiles) -> Place<MemFiles> {
    Place { files: files.clone(), dir: "/data".into(), own: "/data/kuring-metadata".into() }
}

fn put(files: &MemFiles, path: &Path, bytes: &[u8]) {
    let parent = path.parent().expect("in a directory");
    files.create_dir_all(parent).unwrap();
    let file = files.open(path, OpenMode::CreateNew).unwrap();
    file.write_all_at(&mut [IoSlice::new(bytes)], 0).unwrap();
    file.sync_all().unwrap();
    for dir in parent.ancestors() {
        files.sync_dir(dir).unwrap();
    }
}

/// A node's log with these files in it.
fn node(contents: &[(&str, Vec<u8>)]) -> MemFiles {
    let files = MemFiles::new(1);
    for (name, bytes) in contents {
        put(&files, &Path::new("/data").join(KAFKA_METADATA_DIR).join(name), bytes);
    }
    files
}

fn one(name: &str, id: u128) -> [Vec<u8>; 2] {
    [topic(name, id), partition(id, 0, &[1], 4)]
}

/// The names of the topics, or why they cannot be told.
fn topics(contents: &[(&str, Vec<u8>)]) -> Result<Vec<String>, String> {
    let files = node(contents);
    let records = read(&files, &Path::new("/data").join(KAFKA_METADATA_DIR), NODE)?;
    let mut state = State::default();
    state.apply(1, &records).expect("applies");
    Ok(state.image().topics().map(|topic| topic.name.to_string()).collect())
}

const FIRST: &str = "00000000000000000000.log";
const SECOND: &str = "00000000000000000002.log";
const THIRD: &str = "00000000000000000004.log";
const SNAPSHOT: &str = "00000000000000000002-0000000001.checkpoint";
const NEWER: &str = "00000000000000000004-0000000002.checkpoint";

fn segments() -> [(&'static str, Vec<u8>); 3] {
    [(FIRST, batch(0, &one("a", TOPIC))), (SECOND, batch(2, &one("b", 2))), (THIRD, batch(4, &one("c", 3)))]
}

#[test]
fn the_log_is_read_from_its_start_or_from_the_newest_whole_snapshot() {
    let [first, second, third] = segments();
    assert_eq!(topics(&[first, second.clone(), third.clone()]), Ok(vec!["a".into(), "b".into(), "c".into()]));
    let old = (SNAPSHOT, snapshot(&one("a", TOPIC)));
    let new = (NEWER, snapshot(&[one("a", TOPIC), one("newer", 9)].concat()));
    // What is on its way and what is on its way out do not count.
    let others = ["00000000000000000009-0000000002.checkpoint.part", "00000000000000000000.log.deleted"];
    let others = others.map(|name| (name, b"nothing".to_vec()));
    let contents = [vec![old.clone(), new.clone(), second.clone(), third.clone()], others.to_vec()].concat();
    assert_eq!(topics(&contents), Ok(vec!["a".into(), "c".into(), "newer".into()]));
    // A newer one that is not whole is passed over while the log has what it had.
    let torn = (NEWER, new.1[..new.1.len() - 1].to_vec());
    let contents = [old, torn, second, third];
    assert_eq!(topics(&contents), Ok(vec!["a".into(), "b".into(), "c".into()]));
    // A snapshot that was fetched from another may be ahead of the log.
    let ahead = [new, (FIRST, batch(0, &one("a", TOPIC)))];
    assert_eq!(topics(&ahead), Ok(vec!["a".into(), "newer".into()]));
}

#[test]
fn what_is_missing_stops_the_start_with_file_and_offset() {
    let [first, second, third] = segments();
    let refused = |contents: &[(&str, Vec<u8>)], wanted: &[&str]| {
        let error = topics(contents).expect_err("refused");
        assert!(wanted.iter().all(|wanted| error.contains(wanted)), "{error}");
    };
    refused(&[("leader-epoch-checkpoint", Vec::new())], &["no segment"]);
    refused(&[second.clone(), third.clone()], &[SECOND, "begins at offset 2", "beyond 0"]);
    refused(&[first.clone(), third.clone()], &[THIRD, "begins at offset 4", "ends at 2"]);
    let whole = snapshot(&one("a", TOPIC));
    refused(&[(SNAPSHOT, whole[..50].to_vec()), second.clone(), third.clone()], &[SECOND, "beyond 0"]);
    refused(&[(SNAPSHOT, whole.clone()), third.clone()], &[THIRD, "begins at offset 4", "beyond 2"]);
    // A torn middle, in the middle of the log and of its last segment.
    let torn = (SECOND, second.1[..second.1.len() - 1].to_vec());
    refused(&[first.clone(), torn, third.clone()], &[SECOND, "offset 2 is due at byte 0"]);
    let mut middle = batch(0, &one("a", TOPIC));
    let len = middle.len();
    middle[len - 1] ^= 1;
    middle.extend(batch(2, &one("b", 2)));
    refused(&[(FIRST, middle)], &[FIRST, "offset 0 is due at byte 0", "sound batches follow"]);
    // It was longer once.
    refused(&[first.clone(), (NEWER, whole[..50].to_vec())], &["ends at offset 2", "reached 4"]);
    let records = [one("a", TOPIC).to_vec(), vec![new_leader(77, 0, 1)]].concat();
    refused(&[(FIRST, batch(0, &records))], &[FIRST, "the record of offset 2"]);
}

#[test]
fn a_log_whose_last_segment_is_gone_is_refused_by_what_lies_beside_it() {
    let [first, second, third] = segments();
    let witnesses = [
        // Of a clean stop, of a segment whose records are gone, of a later leader.
        ("00000000000000000006.snapshot", Vec::new(), "reached 6"),
        ("00000000000000000004.index", Vec::new(), "reached 5"),
        ("00000000000000000004.timeindex", Vec::new(), "reached 5"),
        ("leader-epoch-checkpoint", b"0\n2\n1 0\n3 5\n".to_vec(), "reached 5"),
    ];
    for (name, bytes, wanted) in witnesses {
        let whole = [first.clone(), second.clone(), third.clone(), (name, bytes.clone())];
        assert_eq!(topics(&whole).map(|topics| topics.len()), Ok(3), "{name}");
        let refused = topics(&[first.clone(), second.clone(), (name, bytes)]).expect_err(name);
        assert!(
            ["ends at offset 4", name, wanted].iter().all(|wanted| refused.contains(wanted)),
            "{refused}"
        );
    }
    // What is behind the last record is no loss.
    let before = ("00000000000000000004.snapshot", Vec::new());
    let old = ("00000000000000000000.index", Vec::new());
    assert_eq!(topics(&[first, second, before, old]).map(|topics| topics.len()), Ok(2));
}

#[test]
fn a_log_that_several_controllers_keep_is_refused() {
    let log = |voters: Vec<Vec<u8>>| (FIRST, [batch(0, &one("a", TOPIC)), voters.concat()].concat());
    let noted = |voters: &str| {
        let text = format!(r#"{{"leaderId":1,"leaderEpoch":2,"votedId":-1,{voters}"data_version":0}}"#);
        (QUORUM_STATE_FILE, text.into_bytes())
    };
    let three = noted(r#""currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}],"#);
    let several = [
        vec![log(Vec::new()), three.clone()],
        vec![log(vec![voters(2, &[1]), voters(3, &[1, 2, 3])])],
        // The log knows better.
        vec![log(vec![voters(2, &[1, 2, 3])]), noted(r#""currentVoters":[{"voterId":1}],"#)],
    ];
    for contents in several {
        let refused = topics(&contents).expect_err("refused");
        assert!(refused.contains("the controllers 1, 2, 3 keep this log together"), "{refused}");
    }
    let alone = [
        vec![log(Vec::new())],
        vec![log(Vec::new()), noted(r#""currentVoters":[{"voterId":1}],"#)],
        // A broker's copy, and a quorum that was made one of this node alone.
        vec![log(Vec::new()), noted(r#""currentVoters":[{"voterId":3000}],"#)],
        vec![log(vec![voters(2, &[1, 2, 3]), voters(3, &[1])]), noted("")],
        vec![log(vec![voters(2, &[1, 2, 3]), voters(3, &[1])]), three],
    ];
    for contents in alone {
        assert_eq!(topics(&contents), Ok(vec!["a".into()]));
    }
    let garbled = topics(&[log(Vec::new()), (QUORUM_STATE_FILE, b"half".to_vec())]).expect_err("refused");
    assert!(garbled.contains(QUORUM_STATE_FILE), "{garbled}");
}

#[test]
fn the_torn_tail_of_the_last_segment_is_cut_off_as_kafka_does() {
    let [first, second, _] = segments();
    let torn = (SECOND, second.1[..second.1.len() - 1].to_vec());
    assert_eq!(topics(&[first, torn]), Ok(vec!["a".into()]));
}

/// What `tests/fixtures/kafka-metadata/make` had Kafka write.
fn of_kafka() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kafka-metadata");
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<(String, Vec<u8>)> = entries
        .filter(|path| {
            path.extension().is_some_and(|extension| extension == "log" || extension == "checkpoint")
        })
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

fn records_of(contents: &[(String, Vec<u8>)]) -> Result<Vec<Record>, String> {
    let contents: Vec<(&str, Vec<u8>)> =
        contents.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    read(&node(&contents), &Path::new("/data").join(KAFKA_METADATA_DIR), NODE)
}

#[test]
fn what_kafka_itself_wrote_is_the_same_with_its_snapshots_and_without() {
    let files = of_kafka();
    let is_snapshot = |name: &str| snapshot_offset(name).is_some();
    assert!(files.iter().filter(|(name, _)| is_snapshot(name)).count() > 1, "{:?}", files.len());
    let with = records_of(&files).expect("whole");
    let mut state = State::default();
    state.apply(1, &with).expect("applies");
    let image = state.image();
    let topics: Vec<(String, usize)> =
        image.topics().map(|topic| (topic.name.to_string(), topic.partitions.len())).collect();
    assert_eq!(
        topics,
        [("gone", 2), ("late", 1), ("orders", 3)].map(|(name, count)| (name.to_owned(), count))
    );
    let overrides = |resource| {
        image.overrides(&resource).iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
    };
    assert_eq!(overrides(ConfigResource::Topic("orders".into())), ["retention.ms=1000"]);
    assert_eq!(overrides(ConfigResource::BrokerDefault), ["log.retention.ms=7000", "min.insync.replicas=1"]);
    let log: Vec<(String, Vec<u8>)> = files.iter().filter(|(name, _)| !is_snapshot(name)).cloned().collect();
    assert_eq!(records_of(&log), Ok(with.clone()));
    // Each snapshot alone does, with the log behind it.
    for snapshot in files.iter().filter(|(name, _)| is_snapshot(name)) {
        let contents = [log.clone(), vec![snapshot.clone()]].concat();
        assert_eq!(records_of(&contents), Ok(with.clone()), "{}", snapshot.0);
        let bytes = &snapshot.1;
        for len in 0..bytes.len() {
            assert!(KafkaMetadata::of_snapshot(&bytes[..len]).is_err(), "{len} bytes of {}", snapshot.0);
        }
    }
}

/// Wherever the end of the log is torn, it is read up to there; wherever a byte of it is another, it is not read, or
/// what was in the last batch is left out.
#[test]
fn what_kafka_itself_wrote_is_read_up_to_where_it_is_torn_and_not_where_it_is_damaged() {
    let (name, whole) = of_kafka().into_iter().rfind(|(name, _)| name.ends_with(".log")).expect("a segment");
    let topics = |bytes: &[u8]| {
        let mut metadata = KafkaMetadata::default();
        let end = metadata.segment(bytes, Offset::ZERO, Offset::ZERO, true);
        end.map(|end| (end, metadata.topic_count()))
    };
    assert_eq!(segment_offset(&name), Some(Offset::ZERO));
    let (all, _) = topics(&whole).expect("whole");
    assert_eq!(all.torn, None);
    let mut ends = std::collections::BTreeSet::new();
    for len in (0..whole.len()).step_by(7) {
        let (end, _) = topics(&whole[..len]).expect("torn");
        assert!(end.next <= all.next && end.torn.is_none_or(|torn| torn < len as u64));
        ends.insert(end.next);
    }
    let last = ends.last().copied().expect("some");
    for at in (0..whole.len()).step_by(61) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        match topics(&damaged) {
            // The base offset and the leader's epoch are outside the checksum; nothing is read from the latter.
            Ok((end, _)) if end.torn.is_none() => assert_eq!(end, all),
            Ok((end, _)) => assert!(end.next >= last, "byte {at}"),
            Err(_) => {}
        }
    }
}

/// One start: the takeover, and kuring's own log after it. What it has, or why there was no start.
async fn start(files: &MemFiles, threads: &FileThreads, failing: bool) -> Result<Vec<String>, String> {
    let place = place(files);
    let failed = Rc::new(Cell::new(false));
    let settings = |dir: PathBuf| {
        let failed = failed.clone();
        Settings {
            random: Random::seeded(7),
            leader_wait: Duration::from_millis(if failing { 100 } else { 10_000 }),
            on_failure: Rc::new(move |_| failed.set(true)),
            ..Settings::new(NODE, "cluster", dir)
        }
    };
    let begin = take_over(place.clone(), threads, Rc::new(FewRules), settings, NODE).await?;
    let settings = Settings { begin, ..settings(place.own) };
    let quorum = Quorum::open(files.clone(), threads.clone(), Rc::new(FewRules), settings).await;
    let quorum = quorum.map_err(|error| error.to_string())?;
    let names = quorum.image().topics().map(|topic| topic.name.to_string()).collect();
    quorum.shutdown().await;
    match failed.get() {
        true => Err("the log failed".to_owned()),
        false => Ok(names),
    }
}

fn on_a_shard<Fut: Future<Output = ()> + 'static>(test: impl FnOnce(FileThreads) -> Fut + Send + 'static) {
    let threads = FileThreads::start("takeover-files", 1, 64).unwrap();
    let pool = threads.clone();
    run_shard("takeover-test", move || test(pool));
    threads.stop();
}

#[test]
fn a_takeover_that_is_cut_off_anywhere_is_done_by_the_next_start() {
    on_a_shard(|threads| async move {
        let wanted: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        for after in 0.. {
            let crash = if after % 2 == 0 { Crash::Machine } else { Crash::Process };
            let files = node(&segments());
            let error = rustix::io::Errno::IO;
            files.set_fault(Some(Fault { operation: None, after, error, sticky: true }));
            let first = start(&files, &threads, true).await;
            files.set_fault(None);
            files.crash(crash);
            let second = start(&files, &threads, false).await;
            assert_eq!(second, Ok(wanted.clone()), "cut off after {after} operations: {first:?}");
            if first.is_ok() {
                assert!(after > 20, "{after}");
                break;
            }
        }
    });
}

#[test]
fn a_lost_log_of_kurings_own_is_not_made_good_by_kafkas() {
    on_a_shard(|threads| async move {
        let files = node(&segments());
        assert_eq!(start(&files, &threads, false).await.map(|topics| topics.len()), Ok(3));
        // Kafka's log is not looked at any more.
        files.remove_file(&Path::new("/data").join(KAFKA_METADATA_DIR).join(SECOND)).unwrap();
        assert_eq!(start(&files, &threads, false).await.map(|topics| topics.len()), Ok(3));
        files.remove_dir_all(Path::new("/data/kuring-metadata")).unwrap();
        let refused = start(&files, &threads, false).await.expect_err("refused");
        assert!(
            refused.contains("/data/kuring-metadata is missing") && refused.contains(MARK_FILE),
            "{refused}"
        );
        // Its log alone, of what is in it.
        put(&files, Path::new("/data/kuring-metadata/something"), b"else");
        let refused = start(&files, &threads, false).await.expect_err("refused");
        assert!(refused.contains("has no cluster in it"), "{refused}");
    });
}

#[test]
fn a_directory_without_kafkas_log_begins_a_new_cluster() {
    on_a_shard(|threads| async move {
        let files = MemFiles::new(1);
        files.create_dir_all(Path::new("/data")).unwrap();
        assert_eq!(start(&files, &threads, false).await, Ok(Vec::new()));
        assert!(!files.exists(&Path::new("/data").join(MARK_FILE)).unwrap());
    });
}
