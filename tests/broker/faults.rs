//! Full and failing disks under a running broker. The small disks are real file systems: a tmpfs, and an ext4 on a
//! loop device, mounted in a mount namespace of the broker's own, so that they go when it goes. That takes root, or
//! for the tmpfs a kernel that gives user namespaces to everybody; where neither is there, and `CI` is not set, these
//! tests say so and do nothing. With `CI` they fail.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    DeleteRecordsRequest, DescribeLogDirsRequest, ListOffsetsRequest, MetadataRequest,
    OffsetForLeaderEpochRequest,
};
use rdkafka::Offset;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::RDKafkaErrorCode;

use crate::admin::{metric, metric_with};
use crate::harness::batch::Batch;
use crate::harness::broker::Broker;
use crate::harness::client::{Client, Send};
use crate::harness::raw::{FETCH, Raw, fetch, name};
use crate::harness::{PATIENCE, eventually};

const KAFKA_STORAGE_ERROR: i16 = 56;
const LEADER_NOT_AVAILABLE: i16 = 5;

/// Whether a broker can be run in a mount namespace of its own: by root, or in a user namespace.
fn namespaces(needs_root: bool) -> Option<Vec<&'static str>> {
    let root = rustix::process::geteuid().is_root();
    let mut unshare = vec!["unshare", "--mount", "--propagation", "private"];
    if !root {
        unshare.extend(["--user", "--map-root-user"]);
    }
    let works = (root || !needs_root)
        && Command::new(unshare[0])
            .args(&unshare[1..])
            .args(["sh", "-c", "mount -t tmpfs tmpfs /mnt"])
            .status()
            .is_ok_and(|status| status.success());
    if works {
        return Some(unshare);
    }
    assert!(std::env::var_os("CI").is_none(), "CI must be able to mount file systems: run it as root");
    eprintln!("NOT TESTED: file systems cannot be mounted here, not even in a namespace");
    None
}

/// A broker whose data directory `small` (beside `data`) is a file system of its own, mounted by `mount`, in which
/// `$0` stands for the directory.
fn broker_on(unshare: &[&str], mount: &str, settings: &[(&str, &str)]) -> Broker {
    let mut prefix: Vec<String> = unshare.iter().map(|word| (*word).to_owned()).collect();
    let script = format!("mkdir -p ~/small && ({mount}) && exec \"$0\" \"$@\"");
    prefix.extend(["sh", "-c", &script].map(str::to_owned));
    Broker::behind(&prefix, 2, settings)
}

/// Files of the broker's namespace, seen from here.
fn inside(broker: &Broker, path: &Path) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{}/root", broker.pid()));
    root.join(path.strip_prefix("/").expect("an absolute path"))
}

/// Sends numbered records until one is refused or `count` are in; how many were acknowledged.
fn fill(client: &Client, topic: &str, from: u64, count: u64) -> (u64, Option<RDKafkaErrorCode>) {
    let producer = client.producer(&[
        ("enable.idempotence", "true"),
        ("message.timeout.ms", "3000"),
        ("message.send.max.retries", "2"),
        ("linger.ms", "0"),
    ]);
    for number in from..from + count {
        let mut value = format!("{number:020}").into_bytes();
        value.resize(64 << 10, b'.');
        let result = client.try_send(&producer, topic, &[Send::value(value).to(0)]).remove(0);
        if let Err(error) = result {
            return (number - from, error.rdkafka_error_code());
        }
    }
    (count, None)
}

fn numbers(client: &Client, topic: &str, count: usize) -> Vec<u64> {
    let got = client.read(topic, &[0], count);
    got.iter().map(|got| got.text()[..20].parse().expect("a number")).collect()
}

#[test]
fn a_full_disk_refuses_writes_and_takes_them_again_once_a_topic_is_deleted() {
    if Broker::is_kafka() {
        return;
    }
    let Some(unshare) = namespaces(false) else { return };
    let settings = [
        ("log.dirs", "~/small"),
        ("kuring.reserve.bytes", "2097152"),
        ("log.retention.check.interval.ms", "500"),
        ("log.initial.task.delay.ms", "100"),
        ("log.segment.delete.delay.ms", "100"),
        ("offsets.topic.num.partitions", "2"),
        ("log.segment.bytes", "4194304"),
    ];
    let mut broker = broker_on(&unshare, "mount -t tmpfs -o size=32m tmpfs ~/small", &settings);
    let client = Client::of(&broker);
    client.create_topic("kept", 1, &[]);
    client.create_topic("ballast", 1, &[]);
    let (kept, error) = fill(&client, "kept", 0, 50);
    assert_eq!((kept, error), (50, None));
    // An internal topic from before the disk is full.
    let consumer = client.consumer(&[("group.id", "steady")]);
    commit(&consumer, "kept", 10);

    let (ballast, error) = fill(&client, "ballast", 0, 10_000);
    assert!(error.is_some(), "32 MiB took {ballast} records of 64 KiB");
    assert!(broker.is_alive());
    assert!(broker.log().contains("the disk is full"), "the log must tell");
    assert_eq!(metric(&broker, "kuring_log_directories_full"), 1);
    assert_eq!(metric(&broker, "kuring_log_directory_full_total"), 1);
    assert!(metric(&broker, "kuring_appends_refused_full_total") > 0);
    // Another topic on the same disk is refused too, by its own error.
    assert_eq!(produce_code(&broker, "kept"), KAFKA_STORAGE_ERROR);

    // Reads.
    assert_eq!(numbers(&client, "kept", 50), (0..50).collect::<Vec<_>>());
    assert_eq!(numbers(&client, "ballast", ballast as usize), (0..ballast).collect::<Vec<_>>());
    assert_eq!(client.offsets("ballast", 0), (0, ballast as i64), "a refused record is in the log");
    // Internal topics and administration live on the reserve.
    commit(&consumer, "kept", 20);
    client.create_topic("made-when-full", 1, &[]);
    client.delete_records("kept", 0, 5);
    assert_eq!(client.offsets("kept", 0).0, 5);

    client.delete_topic("ballast").expect("deleted");
    eventually("writes are accepted again, without a restart", || {
        (produce_code(&broker, "made-when-full") == 0).then_some(())
    });
    let (more, error) = fill(&client, "kept", 50, 20);
    assert_eq!((more, error), (20, None));
    let got: Vec<u64> = client
        .read_from("kept", &[0], Offset::Offset(5), 65)
        .iter()
        .map(|got| got.text()[..20].parse().expect("a number"))
        .collect();
    assert_eq!(got, (5..70).collect::<Vec<_>>(), "lost or twice");
    assert_eq!(client.offsets("kept", 0), (5, 70));
    assert!(broker.log().contains("room again"));
    assert_eq!(metric(&broker, "kuring_log_directories_full"), 0);
    let (status, _) = broker.terminate();
    assert!(status.success(), "{status}");
}

#[test]
fn a_topic_made_on_a_full_disk_opens_when_there_is_room_and_leaves_no_strays() {
    if Broker::is_kafka() {
        return;
    }
    let Some(unshare) = namespaces(false) else { return };
    let settings = [("log.dirs", "~/small"), ("metadata.log.dir", "~/data"), ("kuring.reserve.bytes", "0")];
    let broker = broker_on(&unshare, "mount -t tmpfs -o size=4m tmpfs ~/small", &settings);
    let client = Client::of(&broker);
    let small = inside(&broker, &broker.home().join("small"));
    let filler = small.join("filler");
    fill_up(&filler);
    client.try_create_topic("late", 1, &[]).expect("the metadata log has room");
    let attempts = || broker.log().matches("its log cannot be opened").count();
    eventually("it is tried again and again", || (attempts() >= 3).then_some(()));
    std::fs::remove_file(&filler).expect("it was made above");
    eventually("it opens", || (produce_code(&broker, "late") == 0).then_some(()));
    let names = std::fs::read_dir(&small).expect("the directory").map(|entry| entry.expect("a name"));
    let strays: Vec<PathBuf> =
        names.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with("-stray")).collect();
    assert!(strays.is_empty(), "{strays:?}");
}

#[test]
fn the_cleaner_takes_no_room_of_a_full_disk_and_goes_on_when_there_is_some() {
    if Broker::is_kafka() {
        return;
    }
    let Some(unshare) = namespaces(false) else { return };
    let settings = [
        ("log.dirs", "~/small"),
        ("metadata.log.dir", "~/data"),
        ("kuring.reserve.bytes", "2097152"),
        ("kuring.preallocated.bytes", "0"),
        ("log.cleaner.backoff.ms", "100"),
        ("log.flush.offset.checkpoint.interval.ms", "100"),
    ];
    let broker = broker_on(&unshare, "mount -t tmpfs -o size=24m tmpfs ~/small", &settings);
    let client = Client::of(&broker);
    let settings = [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "1048576"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("min.compaction.lag.ms", "3600000"),
    ];
    client.create_topic("compacted", 1, &settings);
    client.create_topic("ballast", 1, &[]);
    // A few closed segments of one key: cleaned they take next to nothing.
    let records: Vec<Send> = (0..60)
        .map(|_| Send { key: Some(b"key".to_vec()), ..Send::value(vec![b'x'; 64 << 10]).to(0) })
        .collect();
    client.send(&client.producer(&[]), "compacted", &records);
    let cleanings = || metric(&broker, "kuring_cleaner_runs_total");
    let filler = inside(&broker, &broker.home().join("small/filler"));
    fill_up(&filler);
    assert!(fill(&client, "ballast", 0, 100).1.is_some());
    eventually("it is noticed", || broker.log().contains("the disk is full").then_some(()));
    assert_eq!(cleanings(), 0);
    Raw::connect(&broker).set_topic_config("compacted", "min.compaction.lag.ms", Some("0"));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(cleanings(), 0, "it took of what the reserve had left");
    std::fs::remove_file(&filler).expect("it was made above");
    eventually("there is room, and it is cleaned", || (cleanings() > 0).then_some(()));
}

#[test]
fn producers_that_wait_out_a_full_disk_lose_nothing_and_repeat_nothing() {
    if Broker::is_kafka() {
        return;
    }
    let Some(unshare) = namespaces(false) else { return };
    let settings = [
        ("log.dirs", "~/small"),
        ("kuring.reserve.bytes", "1048576"),
        ("log.segment.bytes", "2097152"),
        ("kuring.preallocated.bytes", "0"),
    ];
    let broker = broker_on(&unshare, "mount -t tmpfs -o size=24m tmpfs ~/small", &settings);
    let client = Client::of(&broker);
    client.create_topic("patient", 2, &[]);
    let filler = inside(&broker, &broker.home().join("small/filler"));
    let stop = Instant::now() + Duration::from_secs(8);
    let sent = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|partition| {
                let client = Client::of(&broker);
                scope.spawn(move || {
                    let producer = client.producer(&[
                        ("enable.idempotence", "true"),
                        ("message.timeout.ms", "60000"),
                        ("linger.ms", "1"),
                    ]);
                    let mut next = 0u64;
                    while Instant::now() < stop {
                        let records: Vec<Send> =
                            (next..next + 50).map(|n| Send::value(n.to_string()).to(partition)).collect();
                        client.send(&producer, "patient", &records);
                        next += 50;
                    }
                    next
                })
            })
            .collect();
        // Twice the disk fills up under them and has room again.
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(800));
            fill_up(&filler);
            std::thread::sleep(Duration::from_millis(1500));
            std::fs::remove_file(&filler).expect("it was made above");
            std::thread::sleep(Duration::from_millis(700));
        }
        writers
            .into_iter()
            .map(|writer| writer.join().expect("no record was refused for good"))
            .collect::<Vec<_>>()
    });
    assert!(broker.log().contains("the disk is full"), "the filler did not fill it");
    for (partition, count) in (0..).zip(sent) {
        assert_eq!(client.offsets("patient", partition), (0, count as i64), "partition {partition}");
        let got = client.read("patient", &[partition], count as usize);
        for (number, got) in got.iter().enumerate() {
            assert_eq!((got.offset, got.text()), (number as i64, number.to_string()));
        }
    }
}

#[test]
fn a_broker_starts_on_a_full_disk_and_serves_what_is_there() {
    if Broker::is_kafka() {
        return;
    }
    let Some(unshare) = namespaces(true) else { return };
    let settings = [
        ("log.dirs", "~/small"),
        ("kuring.reserve.bytes", "2097152"),
        ("log.segment.bytes", "2097152"),
        ("log.segment.delete.delay.ms", "100"),
    ];
    let mount = "(test -e ~/disk || (truncate -s 48M ~/disk && mkfs.ext4 -q -F ~/disk)) \
                 && mount -o loop ~/disk ~/small";
    let mut broker = broker_on(&unshare, mount, &settings);
    let client = Client::of(&broker);
    client.create_topic("ballast", 1, &[]);
    client.create_topic("kept", 1, &[]);
    assert_eq!(fill(&client, "kept", 0, 10), (10, None));
    let (ballast, error) = fill(&client, "ballast", 0, 10_000);
    assert!(error.is_some());
    broker.terminate();
    let disk = broker.home().join("disk");
    eventually("the loop device is free again", || {
        let used = Command::new("losetup").arg("-j").arg(&disk).output().expect("losetup");
        used.stdout.is_empty().then_some(())
    });
    broker.start_again(2);
    assert_eq!(numbers(&client, "kept", 10), (0..10).collect::<Vec<_>>());
    assert_eq!(client.offsets("ballast", 0), (0, ballast as i64));
    let (_, error) = fill(&client, "ballast", ballast, 10_000);
    assert!(error.is_some(), "the disk has grown");
    assert!(broker.is_alive());
    client.delete_topic("ballast").expect("deleted");
    eventually("writes are accepted again", || (produce_code(&broker, "kept") == 0).then_some(()));
    let (_, next) = client.offsets("kept", 0);
    assert_eq!(client.read("kept", &[0], next as usize).len(), next as usize);
}

#[test]
fn a_directory_that_fails_takes_only_its_partitions_with_it() {
    if Broker::is_kafka() {
        return;
    }
    let Some(unshare) = namespaces(true) else { return };
    let settings = [
        ("log.dirs", "~/data,~/small"),
        ("log.segment.bytes", "1048576"),
        ("kuring.reserve.bytes", "1048576"),
    ];
    let mount = "mkdir ~/below && mount -t tmpfs -o size=66m tmpfs ~/below && truncate -s 64M ~/below/disk \
                 && mkfs.ext4 -q -F ~/below/disk && mount -o loop ~/below/disk ~/small";
    let mut broker = broker_on(&unshare, mount, &settings);
    let client = Client::of(&broker);
    client.create_topic("spread", 8, &[]);
    let producer = client.producer(&[]);
    for partition in 0..8 {
        let records: Vec<Send> = (0..40).map(|_| Send::value(vec![b'x'; 64 << 10]).to(partition)).collect();
        client.send(&producer, "spread", &records);
    }
    let small = inside(&broker, &broker.home().join("small"));
    let on_small: BTreeSet<i32> = (0..8).filter(|n| small.join(format!("spread-{n}")).exists()).collect();
    assert!(!on_small.is_empty() && on_small.len() < 8, "both directories are used: {on_small:?}");
    let lost = *on_small.first().expect("checked above");
    let alive: Vec<i32> = (0..8).filter(|n| !on_small.contains(n)).collect();

    // What is read from now on is not in the page cache, the disk below is gone, and it has no room to come back.
    forget(&small);
    let below = inside(&broker, &broker.home().join("below"));
    std::fs::OpenOptions::new()
        .write(true)
        .open(below.join("disk"))
        .and_then(|disk| disk.set_len(0))
        .expect("the image is ours");
    fill_up(&below.join("filler"));
    // The reader of the lost partition gets its error, not an end of its connection.
    let consumer = client.consumer(&[]);
    let mut assignment = rdkafka::TopicPartitionList::new();
    assignment.add_partition_offset("spread", lost, Offset::Beginning).expect("an offset");
    consumer.assign(&assignment).expect("assign");
    eventually("the directory goes offline", || {
        let _ = consumer.poll(Duration::from_millis(100));
        broker.log().contains("goes offline").then_some(())
    });

    for &partition in &on_small {
        // The line is written before the other shards have heard of it.
        eventually("the partition's shard has left the directory", || {
            (list_code(&mut Raw::connect(&broker), "spread", partition, -1) == KAFKA_STORAGE_ERROR)
                .then_some(())
        });
        assert_storage_errors(&broker, "spread", partition);
    }
    for &partition in &alive {
        assert_eq!(client.offsets("spread", partition), (0, 40));
        client.send(&producer, "spread", &[Send::value("more").to(partition)]);
        assert_eq!(client.read("spread", &[partition], 41).len(), 41);
    }
    let (leader, error, offline) = eventually("the metadata tells of the lost partition", || {
        let found = metadata(&broker, "spread", lost);
        (found.0 == -1).then_some(found)
    });
    assert_eq!((leader, error, offline), (-1, LEADER_NOT_AVAILABLE, vec![1]));
    let described = log_dirs(&broker);
    let (failed, serving): (Vec<_>, Vec<_>) =
        described.into_iter().partition(|(path, _)| path.ends_with("small"));
    assert_eq!(failed[0].1, KAFKA_STORAGE_ERROR);
    assert_eq!(serving[0].1, 0);
    assert_eq!(metric(&broker, "kuring_log_directories_offline"), 1);
    assert_eq!(metric(&broker, "kuring_log_directory_online"), 1, "of two");
    assert!(metric(&broker, "kuring_log_read_errors_total") > 0);
    let lost = metric_with(&broker, "kuring_partitions", &[("state", "offline")]);
    // With those of the offsets that lay there.
    assert!(lost >= on_small.len() as u64, "{lost}");
    client.create_topic("after", 4, &[]);
    for partition in 0..4 {
        client.send(&producer, "after", &[Send::value("x").to(partition)]);
    }
    assert!(broker.is_alive());
}

#[test]
fn a_directory_that_cannot_be_opened_leaves_the_others_serving() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::with(2, &[("log.dirs", "~/data,~/second"), ("kuring.reserve.bytes", "0")]);
    let client = Client::of(&broker);
    client.create_topic("spread", 6, &[]);
    let producer = client.producer(&[]);
    for partition in 0..6 {
        client.send(&producer, "spread", &[Send::value("x").to(partition)]);
    }
    broker.terminate();
    let (second, away) = (broker.home().join("second"), broker.home().join("away"));
    let on_second: BTreeSet<i32> = (0..6).filter(|n| second.join(format!("spread-{n}")).exists()).collect();
    assert!(!on_second.is_empty() && on_second.len() < 6, "{on_second:?}");
    std::fs::rename(&second, &away).expect("ours");
    std::fs::write(&second, "not a directory").expect("ours");
    broker.start_again(2);
    assert!(broker.log().contains("the log directory is offline"));
    for partition in 0..6 {
        if on_second.contains(&partition) {
            assert_storage_errors(&broker, "spread", partition);
            assert_eq!(metadata(&broker, "spread", partition), (-1, LEADER_NOT_AVAILABLE, vec![1]));
        } else {
            assert_eq!(client.offsets("spread", partition), (0, 1));
            assert_eq!(metadata(&broker, "spread", partition).0, 1);
        }
    }
    let errors: Vec<i16> = log_dirs(&broker).into_iter().map(|(_, error)| error).collect();
    assert_eq!(errors, [0, KAFKA_STORAGE_ERROR]);
    client.create_topic("new", 4, &[]);
    for partition in 0..4 {
        client.send(&producer, "new", &[Send::value("x").to(partition)]);
    }
    broker.terminate();
    std::fs::remove_file(&second).expect("ours");
    std::fs::rename(&away, &second).expect("ours");
    broker.start_again(3);
    for partition in 0..6 {
        assert_eq!(client.offsets("spread", partition), (0, 1), "partition {partition} is back");
        assert_eq!(metadata(&broker, "spread", partition), (1, 0, vec![]));
    }
}

#[test]
fn a_partition_in_two_directories_and_a_foreign_directory_are_refused() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::with(2, &[("log.dirs", "~/data,~/second"), ("kuring.reserve.bytes", "0")]);
    Client::of(&broker).create_topic("twice", 1, &[]);
    broker.terminate();
    let homes = [broker.home().join("data/twice-0"), broker.home().join("second/twice-0")];
    let (from, to) = if homes[0].exists() { (&homes[0], &homes[1]) } else { (&homes[1], &homes[0]) };
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("cp");
    assert!(copied.success());
    let log_dirs = format!("log.dirs={0}/data,{0}/second", broker.home().display());
    let start = || {
        let arguments = ["serve", "--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", &log_dirs];
        crate::harness::broker::kuring(&arguments, &[], b"")
    };
    let (status, _, errors) = start();
    assert!(!status.success());
    for path in [from, to] {
        assert!(errors.contains(&path.display().to_string()), "{errors}");
    }
    std::fs::remove_dir_all(to).expect("ours");
    let meta = broker.home().join("second/meta.properties");
    let text = std::fs::read_to_string(&meta).expect("written by the start");
    std::fs::write(&meta, text.replace("node.id=1", "node.id=2")).expect("ours");
    let (status, _, errors) = start();
    assert!(!status.success());
    assert!(errors.contains("second") && errors.contains("node 2"), "{errors}");
    std::fs::write(&meta, text).expect("ours");
    broker.start_again(2);
    assert_eq!(Client::of(&broker).offsets("twice", 0), (0, 0));
}

#[test]
fn deleted_records_stay_deleted_over_a_start_in_which_the_log_could_not_be_opened() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::with(2, &[("log.flush.offset.checkpoint.interval.ms", "100")]);
    let client = Client::of(&broker);
    client.create_topic("cut", 1, &[]);
    let records: Vec<Send> = (0..10).map(|n| Send::value(n.to_string()).to(0)).collect();
    client.send(&client.producer(&[("linger.ms", "0")]), "cut", &records);
    client.delete_records("cut", 0, 4);
    broker.terminate();
    // Longer than a segment can be: the log is refused, the directory is not.
    let segment = broker.data().join("cut-0/00000000000000000000.log");
    let file = std::fs::OpenOptions::new().write(true).open(&segment).expect("the segment");
    let length = file.metadata().expect("it is open").len();
    file.set_len(3 << 30).expect("a sparse file");
    broker.start_again(2);
    assert_eq!(produce_code(&broker, "cut"), KAFKA_STORAGE_ERROR);
    assert_eq!(metadata(&broker, "cut", 0), (-1, LEADER_NOT_AVAILABLE, vec![1]));
    std::thread::sleep(Duration::from_millis(500));
    broker.terminate();
    file.set_len(length).expect("ours");
    broker.start_again(2);
    assert_eq!(client.offsets("cut", 0), (4, 10));
}

#[test]
fn partitions_that_no_topic_has_are_put_aside_and_removed_in_time() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::with(2, &[("kuring.stray.retention.ms", "0")]);
    Client::of(&broker).create_topic("known", 1, &[]);
    broker.terminate();
    let data = broker.data();
    let ghost = data.join("ghost-0");
    let copied = Command::new("cp").arg("-a").args([&data.join("known-0"), &ghost]).status().expect("cp");
    assert!(copied.success());
    broker.start_again(2);
    assert!(!ghost.exists());
    eventually("the stray is removed", || {
        let names = std::fs::read_dir(&data).expect("the directory").flatten();
        let mut strays = names.filter(|entry| entry.file_name().to_string_lossy().ends_with("-stray"));
        strays.next().is_none().then_some(())
    });
    eventually("the log says so", || broker.log().contains("put aside").then_some(()));
    eventually("it is counted", || (metric(&broker, "kuring_strays_removed_total") == 1).then_some(()));
    assert_eq!(Client::of(&broker).offsets("known", 0), (0, 0));
}

#[test]
fn a_new_topic_has_nothing_of_a_directory_that_lies_under_its_name() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(2, &[]);
    let client = Client::of(&broker);
    client.create_topic("old", 1, &[]);
    client.send(&client.producer(&[]), "old", &[Send::value("theirs").to(0), Send::value("too").to(0)]);
    let data = broker.data();
    let copied = Command::new("cp").arg("-a").args([&data.join("old-0"), &data.join("new-0")]).status();
    assert!(copied.expect("cp").success());
    client.create_topic("new", 1, &[]);
    client.send(&client.producer(&[]), "new", &[Send::value("ours").to(0)]);
    assert_eq!(client.offsets("new", 0), (0, 1));
    assert_eq!(client.read("new", &[0], 1)[0].value.as_deref(), Some(&b"ours"[..]));
    let names = std::fs::read_dir(&data).expect("the directory").flatten();
    let strays = names.filter(|entry| entry.file_name().to_string_lossy().ends_with("-stray"));
    assert_eq!(strays.count(), 1, "whoever misses it finds it there");
}

#[test]
fn beside_the_metadata_of_a_kafka_node_partitions_that_no_topic_has_are_left_alone() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::with(2, &[("kuring.stray.retention.ms", "0")]);
    Client::of(&broker).create_topic("known", 1, &[]);
    broker.terminate();
    let data = broker.data();
    let ghost = data.join("ghost-0");
    let copied = Command::new("cp").arg("-a").args([&data.join("known-0"), &ghost]).status().expect("cp");
    assert!(copied.success());
    std::fs::create_dir(data.join("__cluster_metadata-0")).expect("ours");
    broker.start_again(2);
    assert!(ghost.exists());
    eventually("the log says so", || broker.log().contains("they are left alone").then_some(()));
    assert_eq!(Client::of(&broker).offsets("known", 0), (0, 0));
}

#[test]
fn the_scrub_finds_a_changed_byte_and_the_partition_goes_on() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(2, &[("kuring.scrub.bytes.per.second", "100000000")]);
    let client = Client::of(&broker);
    client.create_topic("changed", 1, &[]);
    client.send(&client.producer(&[]), "changed", &[Send::value(vec![b'x'; 1000]).to(0)]);
    let segment = broker.data().join("changed-0/00000000000000000000.log");
    let file = std::fs::OpenOptions::new().write(true).open(&segment).expect("the segment");
    std::os::unix::fs::FileExt::write_at(&file, b"y", 500).expect("ours");
    let start = Instant::now();
    while !broker.log().contains("the scrub found damage") {
        // A round begins every ten seconds.
        assert!(start.elapsed() < 4 * PATIENCE, "nothing found");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(metric(&broker, "kuring_scrub_findings_total") > 0);
    assert!(metric(&broker, "kuring_scrub_bytes_total") > 1000);
    let name = segment.display().to_string();
    let (status, output, _) = crate::harness::broker::kuring(&["dump-log", "--verify", &name], &[], b"");
    assert!(!status.success() && String::from_utf8_lossy(&output).contains("PROBLEM"));
    client.send(&client.producer(&[]), "changed", &[Send::value("more").to(0)]);
    assert_eq!(client.offsets("changed", 0), (0, 2));
}

/// Fills the disk to the last byte with a file.
fn fill_up(path: &Path) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).expect("the disk has room for a name");
    for size in [64 << 10, 4 << 10, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
}

/// Writes everything below `path` to its disk and takes it out of the page cache.
fn forget(path: &Path) {
    for entry in std::fs::read_dir(path).expect("a directory").flatten() {
        if entry.path().is_dir() {
            forget(&entry.path());
        } else if let Ok(file) = std::fs::File::open(entry.path()) {
            file.sync_all().expect("the disk still works");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken");
        }
    }
}

/// Commits `offset` for the consumer's group.
fn commit(consumer: &rdkafka::consumer::BaseConsumer, topic: &str, offset: i64) {
    let mut offsets = rdkafka::TopicPartitionList::new();
    offsets.add_partition_offset(topic, 0, Offset::Offset(offset)).expect("an offset");
    let start = Instant::now();
    while let Err(error) = consumer.commit(&offsets, rdkafka::consumer::CommitMode::Sync) {
        assert!(start.elapsed() < PATIENCE, "committing {offset}: {error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let committed = consumer.committed_offsets(offsets, PATIENCE).expect("the commit");
    assert_eq!(committed.elements()[0].offset(), Offset::Offset(offset));
}

fn produce_code(broker: &Broker, topic: &str) -> i16 {
    produce_code_to(broker, topic, 0)
}

fn produce_code_to(broker: &Broker, topic: &str, partition: i32) -> i16 {
    Raw::connect(broker).produce(topic, partition, -1, Batch::now(&["probe"]).encode()).error_code
}

fn list_code(raw: &mut Raw, topic: &str, partition: i32, timestamp: i64) -> i16 {
    let partition = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_current_leader_epoch(-1)
        .with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default().with_name(name(topic)).with_partitions(vec![partition]);
    let list = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
    raw.call(7, &list).topics[0].partitions[0].error_code
}

/// Whatever is asked of the partition, it is answered with KAFKA_STORAGE_ERROR.
#[track_caller]
fn assert_storage_errors(broker: &Broker, topic: &str, partition: i32) {
    let mut raw = Raw::connect(broker);
    let topics = vec![DeleteRecordsTopic::default().with_name(name(topic)).with_partitions(vec![
        DeleteRecordsPartition::default().with_partition_index(partition).with_offset(1),
    ])];
    let delete = DeleteRecordsRequest::default().with_topics(topics).with_timeout_ms(10_000);
    let topics = vec![OffsetForLeaderTopic::default().with_topic(name(topic)).with_partitions(vec![
            OffsetForLeaderPartition::default()
                .with_partition(partition)
                .with_current_leader_epoch(-1)
                .with_leader_epoch(0),
        ])];
    let epochs = OffsetForLeaderEpochRequest::default().with_replica_id((-1).into()).with_topics(topics);
    let listed = [-1, -2, -3, 0].map(|timestamp| list_code(&mut raw, topic, partition, timestamp));
    let codes = [
        ("Produce", produce_code_to(broker, topic, partition)),
        ("Fetch", raw.call(FETCH, &fetch(topic, &[(partition, 0)])).responses[0].partitions[0].error_code),
        ("ListOffsets of the end", listed[0]),
        ("ListOffsets of the start", listed[1]),
        ("ListOffsets of the youngest", listed[2]),
        ("ListOffsets by time", listed[3]),
        ("DeleteRecords", raw.call(2, &delete).topics[0].partitions[0].error_code),
        ("OffsetForLeaderEpoch", raw.call(4, &epochs).topics[0].partitions[0].error_code),
    ];
    for (api, code) in codes {
        assert_eq!(code, KAFKA_STORAGE_ERROR, "{api} of partition {partition}");
    }
}

/// Leader, error and offline replicas of a partition.
fn metadata(broker: &Broker, topic: &str, partition: i32) -> (i32, i16, Vec<i32>) {
    let asked = MetadataRequestTopic::default().with_name(Some(name(topic)));
    let request = MetadataRequest::default().with_topics(Some(vec![asked]));
    let response = Raw::connect(broker).call(12, &request);
    let found = response.topics[0].partitions.iter().find(|found| found.partition_index == partition);
    let found = found.expect("the partition is there");
    (found.leader_id.0, found.error_code, found.offline_replicas.iter().map(|id| id.0).collect())
}

/// Path and error of each log directory.
fn log_dirs(broker: &Broker) -> Vec<(String, i16)> {
    let response = Raw::connect(broker).call(4, &DescribeLogDirsRequest::default().with_topics(None));
    response.results.iter().map(|result| (result.log_dir.to_string(), result.error_code)).collect()
}
