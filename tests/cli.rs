//! The command line as a user has it: the built binary, its output and its exit codes. Here is what needs no
//! broker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kuring::base::clock::Timestamp;
use kuring::base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};
use kuring::wire::record::{BatchBuilder, Codec, Compression, EndTxnMarker};

fn kuring(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kuring")).args(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

#[test]
fn every_command_answers_help_with_examples_and_wrong_usage_with_2() {
    let commands: [&[&str]; 21] = [
        &["topic", "create"],
        &["topic", "list"],
        &["topic", "describe"],
        &["topic", "alter"],
        &["topic", "delete"],
        &["cluster", "status"],
        &["cluster", "brokers"],
        &["cluster", "quorum"],
        &["partition", "elect"],
        &["partition", "reassign", "plan"],
        &["partition", "reassign", "execute"],
        &["partition", "reassign", "verify"],
        &["partition", "reassign", "cancel"],
        &["produce"],
        &["consume"],
        &["dump-log"],
        &["perf", "produce"],
        &["perf", "consume"],
        &["perf", "end-to-end"],
        &["trace"],
        &["completions"],
    ];
    for command in commands {
        let help = kuring(&[command, &["--help"]].concat());
        assert_eq!(help.status.code(), Some(0), "{command:?}");
        let help = text(&help.stdout);
        assert!(help.contains("Example") && help.contains("kuring "), "{command:?}: {help}");
        let wrong = kuring(&[command, &["--no-such-option"]].concat());
        assert_eq!(wrong.status.code(), Some(2), "{command:?}");
        assert!(wrong.stdout.is_empty());
    }
    assert_eq!(kuring(&[]).status.code(), Some(2));
    assert!(text(&kuring(&["--help"]).stdout).contains("Exit codes: 0"));
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = kuring(&["completions", shell]);
        assert!(script.status.success());
        assert!(text(&script.stdout).contains("dump-log"), "{shell}");
    }
}

#[test]
fn a_broker_that_is_not_there_is_one_line_and_exit_code_1() {
    let address = free_address();
    let commands: [&[&str]; 4] =
        [&["topic", "list"], &["produce", "t"], &["consume", "t"], &["perf", "produce", "--quiet"]];
    for command in commands {
        let output = kuring(&[command, &["--bootstrap", &address, "--timeout", "1"]].concat());
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        let error = text(&output.stderr);
        let expected = format!("kuring: cannot connect to {address}: Connection refused");
        assert!(error.starts_with(&expected) && error.lines().count() == 1, "{command:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn trace_refuses_what_it_cannot_do() {
    let listen = ["trace", "--listen", "127.0.0.1:0"];
    let told = |arguments: &[&str]| {
        let output = kuring(arguments);
        (output.status.code(), text(&output.stderr))
    };
    let (code, error) = told(&[&listen[..], &["--upstream", "127.0.0.1:1", "--api", "nope"]].concat());
    assert_eq!((code, error.as_str()), (Some(1), "kuring: there is no API named nope\n"));
    let (code, error) =
        told(&[&listen[..], &["--upstream", "127.0.0.1:1", "--upstream", "127.0.0.1:2"]].concat());
    assert_eq!(
        (code, error.as_str()),
        (Some(1), "kuring: 1 --listen for 2 --upstream: each needs the other\n")
    );
    let (code, error) = told(&["trace", "--listen", "nowhere", "--upstream", "127.0.0.1:1"]);
    assert!(code == Some(2) && error.contains("HOST:PORT is wanted"), "{error}");
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = holder.local_addr().expect("bound").to_string();
    let (code, error) = told(&["trace", "--listen", &taken, "--upstream", "127.0.0.1:1"]);
    assert!(code == Some(1) && error.starts_with("kuring: cannot listen: "), "{error}");
}

struct Log {
    dir: tempfile::TempDir,
}

impl Log {
    /// A segment of three batches that begins at offset 10.
    fn new() -> Self {
        let mut plain = BatchBuilder::new(Offset(10), Compression::NONE).with_leader_epoch(LeaderEpoch(3));
        plain.append(Timestamp(1000), Some(b"key"), Some(b"v\xff"), &[]);
        plain.append(Timestamp(1001), None, None, &[]);
        let mut packed = BatchBuilder::new(Offset(12), Compression::of(Codec::Zstd));
        packed = packed.with_producer(ProducerId(77), ProducerEpoch(2), 5).with_transactional();
        packed.append(Timestamp(1002), None, Some(&[b'a'; 500]), &[]);
        let marker = EndTxnMarker { commit: true, coordinator_epoch: 9 };
        let marker = marker.to_batch(ProducerId(77), ProducerEpoch(2), Timestamp(1003));
        let mut marker = marker.to_vec();
        marker[..8].copy_from_slice(&13i64.to_be_bytes());
        let log = Self { dir: tempfile::tempdir().expect("a directory") };
        let batches = [plain.finish().expect("encodes"), packed.finish().expect("encodes"), marker.into()];
        fs::write(log.path("log"), batches.concat()).expect("writes");
        log
    }

    fn path(&self, extension: &str) -> PathBuf {
        self.dir.path().join(format!("{:020}.{extension}", 10))
    }
}

fn dump(path: &Path, options: &[&str]) -> (Option<i32>, String, String) {
    let path = path.to_str().expect("text");
    let output = kuring(&[&["dump-log"], options, &[path]].concat());
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn dump_log_shows_batches_and_records() {
    let log = Log::new();
    let (code, out, _) = dump(&log.path("log"), &["--records"]);
    assert_eq!(code, Some(0));
    for expected in [
        "offsets 10..11 position 0 size",
        "count 2 epoch 3 codec none CreateTime 1000..1001",
        "offset 10 timestamp 1000 key \"key\" value \"v\\xff\"",
        "offset 11 timestamp 1001 key null value null",
        "codec zstd",
        "producer 77 epoch 2 sequence 5..5 transactional",
        "offset 13 timestamp 1003 Commit coordinator-epoch 9",
        "3 batches, 4 records, next offset 14",
    ] {
        assert!(out.contains(expected), "{expected:?} is not in {out}");
    }
    assert_eq!(dump(&log.path("log"), &["--verify"]), (Some(0), String::new(), String::new()));
}

#[test]
fn dump_log_finds_a_changed_byte_and_a_cut_off_end() {
    let log = Log::new();
    let whole = fs::read(log.path("log")).expect("reads");
    let mut changed = whole.clone();
    changed[70] ^= 1;
    fs::write(log.path("log"), &changed).expect("writes");
    let (code, out, error) = dump(&log.path("log"), &["--verify"]);
    assert_eq!(code, Some(1));
    assert!(out.contains("PROBLEM: position 0: batch checksum is"), "{out}");
    assert!(error.contains("problem"), "{error}");

    fs::write(log.path("log"), &whole[..whole.len() - 1]).expect("writes");
    let (code, out, _) = dump(&log.path("log"), &["--verify"]);
    assert_eq!(code, Some(1));
    assert!(out.contains("batch is not whole"), "{out}");
}

#[test]
fn dump_log_compares_indexes_with_the_log() {
    let log = Log::new();
    let first_len = {
        let bytes = fs::read(log.path("log")).expect("reads");
        12 + i32::from_be_bytes(bytes[8..12].try_into().expect("four bytes"))
    };
    let entry = |offset: i32, position: i32| [offset.to_be_bytes(), position.to_be_bytes()].concat();
    // Relative offset 2 is offset 12, the second batch; a preallocated index ends in zeros.
    fs::write(log.path("index"), [entry(2, first_len), vec![0; 80]].concat()).expect("writes");
    assert_eq!(dump(&log.path("index"), &["--verify"]), (Some(0), String::new(), String::new()));
    assert!(dump(&log.path("index"), &[]).1.contains(&format!("offset 12 position {first_len}")));
    fs::write(log.path("index"), entry(2, 0)).expect("writes");
    let (code, out, _) = dump(&log.path("index"), &["--verify"]);
    assert_eq!(code, Some(1));
    assert!(out.contains("offset 12 points to position 0, where 10..11 are"), "{out}");

    let time = |timestamp: i64, offset: i32| [&timestamp.to_be_bytes()[..], &offset.to_be_bytes()].concat();
    fs::write(log.path("timeindex"), time(1001, 1)).expect("writes");
    assert_eq!(dump(&log.path("timeindex"), &["--verify"]).0, Some(0));
    fs::write(log.path("timeindex"), time(1000, 1)).expect("writes");
    assert!(dump(&log.path("timeindex"), &["--verify"]).1.contains("a batch up to there has 1001"));
}

#[test]
fn dump_log_reads_snapshots_and_leader_epochs() {
    let log = Log::new();
    let mut entries = 1i32.to_be_bytes().to_vec();
    entries.extend(77i64.to_be_bytes());
    entries.extend(2i16.to_be_bytes());
    entries.extend(5i32.to_be_bytes());
    entries.extend(12i64.to_be_bytes());
    entries.extend(0i32.to_be_bytes());
    entries.extend(1002i64.to_be_bytes());
    entries.extend(9i32.to_be_bytes());
    entries.extend((-1i64).to_be_bytes());
    let crc = crc32c::crc32c(&entries);
    let snapshot = [&1i16.to_be_bytes()[..], &crc.to_be_bytes(), &entries].concat();
    fs::write(log.path("snapshot"), &snapshot).expect("writes");
    let (code, out, _) = dump(&log.path("snapshot"), &[]);
    assert_eq!(code, Some(0));
    assert!(out.contains("producer 77 epoch 2 last-sequence 5 last-offset 12 offset-delta 0"), "{out}");
    fs::write(log.path("snapshot"), &snapshot[..snapshot.len() - 1]).expect("writes");
    assert_eq!(dump(&log.path("snapshot"), &["--verify"]).0, Some(1));

    let epochs = log.dir.path().join("leader-epoch-checkpoint");
    fs::write(&epochs, "0\n2\n0 10\n3 12\n").expect("writes");
    let (code, out, _) = dump(&epochs, &[]);
    assert_eq!(code, Some(0));
    assert!(out.contains("epoch 3 begins at offset 12"), "{out}");
    fs::write(&epochs, "0\n1\n3 12\n2 14\n").expect("writes");
    assert_eq!(dump(&epochs, &["--verify"]).0, Some(1));
}
