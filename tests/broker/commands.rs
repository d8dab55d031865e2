//! The command line against a running broker.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::broker::kuring;
use crate::harness::{Broker, eventually};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn json_lines(bytes: &[u8]) -> Vec<Value> {
    text(bytes).lines().map(|line| serde_json::from_str(line).expect("an object on each line")).collect()
}

/// Starts `kuring` and leaves it running.
fn spawn(broker: &Broker, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_kuring"))
        .args(arguments)
        .args(["--bootstrap", broker.bootstrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built for this test")
}

#[test]
fn topics_are_created_described_altered_and_deleted() {
    let broker = Broker::start();
    broker.kuring(&["topic", "create", "a", "--partitions", "3", "--config", "retention.ms=100000"], b"");
    let again = kuring(&["topic", "create", "a"], &["--bootstrap", broker.bootstrap()], b"");
    assert_eq!(again.0.code(), Some(1));
    assert!(again.2.starts_with("kuring: create topic a: TOPIC_ALREADY_EXISTS"), "{}", again.2);
    assert_eq!(text(&broker.kuring(&["topic", "create", "a", "--if-not-exists"], b"")), "a exists\n");
    assert_eq!(text(&broker.kuring(&["topic", "list"], b"")), "a\n");

    let described = text(&broker.kuring(&["topic", "describe", "a"], b""));
    assert!(described.contains("3 partitions, 1 replicas"), "{described}");
    assert!(described.ends_with("retention.ms=100000\n"), "{described}");

    let alter = ["topic", "alter", "a", "--partitions", "5", "--set", "cleanup.policy=delete"];
    broker.kuring(&[&alter[..], &["--unset", "retention.ms"]].concat(), b"");
    let described = text(&broker.kuring(&["topic", "describe", "a"], b""));
    assert!(described.contains("5 partitions"), "{described}");
    assert!(described.ends_with("cleanup.policy=delete\n"), "{described}");

    broker.kuring(&["topic", "delete", "a"], b"");
    assert_eq!(text(&broker.kuring(&["topic", "delete", "a", "--if-exists"], b"")), "a does not exist\n");
    let missing = kuring(&["topic", "describe", "a"], &["--bootstrap", broker.bootstrap()], b"");
    assert_eq!(missing.0.code(), Some(1));
    assert_eq!(missing.2, "kuring: topic a: UNKNOWN_TOPIC_OR_PARTITION\n");
}

#[test]
fn lines_of_any_bytes_come_back_under_every_codec() {
    let broker = Broker::start();
    let mut input = Vec::new();
    for number in 0..5000u32 {
        input.extend(number.to_le_bytes().repeat(5).into_iter().filter(|&byte| byte != b'\n'));
        input.push(b'\n');
    }
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        broker.kuring(&["topic", "create", codec, "-p", "1"], b"");
        broker.kuring(&["produce", codec, "--compression", codec], &input);
        let output = broker.kuring(&["consume", codec, "--from-beginning", "--exit-at-end"], b"");
        assert!(output == input, "{codec}: {} bytes came back of {}", output.len(), input.len());
    }
}

#[test]
fn keys_headers_and_positions_are_kept() {
    let broker = Broker::start();
    broker.kuring(&["topic", "create", "t", "-p", "2"], b"");
    let produce = ["produce", "t", "--key-separator", ":", "--header", "h=1", "--header", "h=2", "-p", "1"];
    broker.kuring(&produce, b"k1:v1\nnokey\nk2:\xff\n");
    let records =
        json_lines(&broker.kuring(&["consume", "t", "--from-beginning", "-e", "--format", "json"], b""));
    let field = |name: &str| records.iter().map(|record| record[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("key"), ["k1".into(), Value::Null, "k2".into()]);
    assert_eq!(field("value"), ["v1".into(), "nokey".into(), Value::Null]);
    assert_eq!(records[2]["value_base64"], "/w==");
    assert_eq!(field("offset"), [0, 1, 2]);
    assert_eq!(field("partition"), [1, 1, 1]);
    assert_eq!(records[0]["headers"][1]["value"], "2");

    let consume = |options: &[&str]| {
        let arguments = [&["consume", "t", "-e", "--key-separator", "="], options].concat();
        text(&broker.kuring(&arguments, b"").escape_ascii().to_string().into_bytes())
    };
    assert_eq!(consume(&["--offset", "1"]), "=nokey\\nk2=\\xff\\n");
    assert_eq!(consume(&["--offset", "-1"]), "k2=\\xff\\n");
    assert_eq!(consume(&["--offset", "@0", "-n", "1"]), "k1=v1\\n");
    assert_eq!(consume(&["--from-beginning", "--partition", "0"]), "");
    assert_eq!(consume(&["--offset", "latest"]), "");
}

#[test]
fn a_group_goes_on_where_it_stopped() {
    let broker = Broker::start();
    broker.kuring(&["topic", "create", "t", "-p", "3"], b"");
    let lines: String = (0..300).map(|number| format!("k{number}:v{number}\n")).collect();
    broker.kuring(&["produce", "t", "--key-separator", ":"], lines.as_bytes());
    let consume = ["consume", "t", "--group", "g", "--from-beginning"];
    let first = text(&broker.kuring(&[&consume[..], &["-n", "100"]].concat(), b""));
    let second = text(&broker.kuring(&[&consume[..], &["-e"]].concat(), b""));
    let mut all: Vec<&str> = first.lines().chain(second.lines()).collect();
    assert_eq!((first.lines().count(), all.len()), (100, 300));
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 300, "each once");
    assert_eq!(text(&broker.kuring(&[&consume[..], &["-e"]].concat(), b"")), "");
}

#[test]
fn members_of_a_group_share_the_partitions_and_a_killed_ones_part_goes_over() {
    let broker = Broker::with(2, &[("group.initial.rebalance.delay.ms", "500")]);
    broker.kuring(&["topic", "create", "t", "-p", "4"], b"");
    let mut members: Vec<Child> = (0..2).map(|_| spawn(&broker, &["consume", "t", "--group", "g"])).collect();
    let (send, receive) = std::sync::mpsc::channel();
    for (number, member) in members.iter_mut().enumerate() {
        let output = BufReader::new(member.stdout.take().expect("piped"));
        let send = send.clone();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|l| drop(send.send((number, l))))
        });
    }
    // Until both have joined, one may have all: send until each has printed something.
    let mut seen = [false; 2];
    for round in 0..60 {
        let lines: String = (0..8).map(|key| format!("{key}:{round}\n")).collect();
        broker.kuring(&["produce", "t", "--key-separator", ":"], lines.as_bytes());
        while let Ok((number, _)) = receive.recv_timeout(Duration::from_millis(200)) {
            seen[number] = true;
        }
        if seen == [true; 2] {
            break;
        }
    }
    let stop = |member: &mut Child| {
        let pid = rustix::process::Pid::from_child(member);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the child is ours");
        member.wait().expect("the child is ours").code()
    };
    assert_eq!(seen, [true; 2]);
    assert_eq!(stop(&mut members[0]), Some(0), "it leaves the group");
    let mut rest = Vec::new();
    for round in 0..60 {
        broker.kuring(&["produce", "t", "-p", "0"], format!("a{round}\n").as_bytes());
        broker.kuring(&["produce", "t", "-p", "3"], format!("b{round}\n").as_bytes());
        while let Ok((_, line)) = receive.recv_timeout(Duration::from_millis(200)) {
            rest.push(line);
        }
        let has = |letter: &str| rest.iter().any(|line| line.starts_with(letter));
        if has("a") && has("b") {
            break;
        }
    }
    let has = |letter: &str| rest.iter().any(|line| line.starts_with(letter));
    assert!(has("a") && has("b"), "the other has all partitions: {rest:?}");
    assert_eq!(stop(&mut members[1]), Some(0));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let broker = Broker::start();
    broker.kuring(&["topic", "create", "t"], b"");
    broker.kuring(&["produce", "t"], "a line\n".repeat(100_000).as_bytes());
    let mut consumer = spawn(&broker, &["consume", "t", "--from-beginning"]);
    let mut first = String::new();
    let mut output = BufReader::new(consumer.stdout.take().expect("piped"));
    output.read_line(&mut first).expect("reads");
    drop(output);
    assert_eq!(first, "a line\n");
    assert_eq!(consumer.wait().expect("the child is ours").code(), Some(0));
}

#[test]
fn records_survive_the_kill_of_the_broker_once_and_in_order() {
    let mut broker = Broker::start();
    broker.kuring(&["topic", "create", "t", "-p", "1"], b"");
    let mut producer = spawn(&broker, &["produce", "t", "--timeout", "60"]);
    let mut stdin = producer.stdin.take().expect("piped");
    let feeder = std::thread::spawn(move || {
        for number in 0..30_000 {
            writeln!(stdin, "{number}").expect("it reads on");
            if number % 1000 == 0 {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
    std::thread::sleep(Duration::from_millis(1200));
    broker.kill();
    broker.start_again(2);
    feeder.join().expect("all lines are taken");
    let output = producer.wait_with_output().expect("the child is ours");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = text(&broker.kuring(&["consume", "t", "--from-beginning", "-e"], b""));
    let expected: String = (0..30_000).map(|number| format!("{number}\n")).collect();
    assert!(read == expected, "{} lines", read.lines().count());
}

#[test]
fn load_runs_report_what_they_did() {
    let broker = Broker::start();
    let run = |arguments: &[&str]| {
        let output = broker.kuring(&[&["perf"], arguments, &["--json", "--quiet"]].concat(), b"");
        json_lines(&output).pop().expect("one object")
    };
    let produced = run(&["produce", "-p", "4", "-n", "20000", "--record-size", "100"]);
    assert_eq!(produced["produced"]["records"], 20000);
    assert_eq!(produced["produced"]["bytes"], 2_000_000);
    let packed = run(&["produce", "-n", "5000", "-z", "lz4", "--idempotent", "--acks", "all"]);
    assert_eq!(packed["produced"]["failed"], 0);
    let consumed = run(&["consume", "--check-crcs"]);
    assert_eq!(consumed["consumed"]["records"], 25000);
    let in_transactions = ["--transactional", "--transaction-duration", "20", "--topic", "x", "-p", "3"];
    let transactional =
        run(&[&["produce", "-d", "0.5", "--rate", "5000", "--batch-size", "4096"], &in_transactions[..]]
            .concat());
    let records = transactional["produced"]["records"].as_u64().expect("a number");
    assert!(records > 0 && transactional["produced"]["failed"] == 0, "{transactional}");
    eventually("all is committed", || {
        let committed = broker.kuring(&["consume", "x", "--from-beginning", "-e", "--read-committed"], b"");
        let lines = committed.iter().filter(|byte| **byte == b'\n').count();
        (lines as u64 == records).then_some(())
    });
    let paced = run(&["produce", "--rate", "2000", "-d", "1", "--linger", "5"]);
    // A machine that stands still for a second leaves some unsent.
    let due = ["records", "unsent"].map(|name| paced["produced"][name].as_u64().expect("a number"));
    assert!((1990..=2010).contains(&due.iter().sum::<u64>()), "{paced}");
    let both = run(&["end-to-end", "--topic", "e", "-p", "2", "--rate", "1000", "-d", "1"]);
    assert_eq!(both["produced"]["records"], both["consumed"]["records"]);
    assert!(both["consumed"]["latency_ms"]["p99"].as_f64().is_some_and(|ms| ms > 0.0));
    let lone = ["--batch-size", "1", "--in-flight", "1", "--idempotent", "--keys", "5"];
    let many = run(
        &[&["produce", "--topic", "m", "-p", "3", "-n", "900", "--connections", "8"], &lone[..]].concat()
    );
    assert_eq!(
        (many["produced"]["requests"].as_u64(), many["produced"]["failed"].as_u64()),
        (Some(900), Some(0))
    );
    let fanned = run(&["end-to-end", "--topic", "f", "--rate", "500", "-d", "1", "--fan-out", "3"]);
    let records = |side: &str| fanned[side]["records"].as_u64().expect("a number");
    assert_eq!(records("consumed"), 3 * records("produced"));
}

/// A proxy in front of the broker, and where clients find it.
struct Trace {
    child: Child,
    address: String,
    /// Kept open: the proxy may have more to say.
    _errors: BufReader<std::process::ChildStderr>,
    lines: std::thread::JoinHandle<Vec<Value>>,
}

impl Trace {
    fn start(broker: &Broker, options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kuring"))
            .args(["trace", "--listen", "127.0.0.1:0", "--upstream", broker.bootstrap()])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built for this test");
        let mut first = String::new();
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        errors.read_line(&mut first).expect("text");
        let address = first.split(' ').nth(4).unwrap_or_else(|| panic!("{first}")).to_owned();
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let lines = std::thread::spawn(move || {
            let parse =
                |line: String| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            out.lines().map(|line| parse(line.expect("text"))).collect()
        });
        Self { child, address, _errors: errors, lines }
    }

    /// Everything printed until the end.
    fn finish(mut self) -> Vec<Value> {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited for");
        self.lines.join().expect("JSON on every line")
    }
}

#[test]
fn a_client_behind_a_trace_stays_behind_it_and_all_it_says_is_told() {
    let broker = Broker::start();
    broker.kuring(&["topic", "create", "t", "-p", "1"], b"");
    let trace = Trace::start(&broker, &[]);
    let behind = ["--bootstrap", &trace.address];
    let (code, _, error) = kuring(&["produce", "t"], &behind, b"one\ntwo\n");
    assert!(code.success(), "{error}");
    let (code, out, error) =
        kuring(&["consume", "t", "--group", "g", "--from-beginning", "-n", "2"], &behind, b"");
    assert!(code.success() && out == b"one\ntwo\n", "{error}");
    let lines = trace.finish();
    let of = |kind: &str, api: &str| {
        lines.iter().filter(|line| line["kind"] == kind && line["api"] == api).collect::<Vec<_>>()
    };
    assert!(lines.iter().all(|line| line.get("undecoded").is_none()), "{lines:?}");
    let produced: u64 = of("request", "Produce")
        .iter()
        .map(|line| {
            line["body"]["topicData"][0]["partitionData"][0]["records"]["records"].as_u64().expect("a number")
        })
        .sum();
    assert_eq!(produced, 2);
    // It asked the proxy and no one else for all of these, though the broker names its own address.
    for api in ["ApiVersions", "Metadata", "Produce", "Fetch", "FindCoordinator", "JoinGroup", "OffsetCommit"]
    {
        let (asked, answered) = (of("request", api), of("response", api));
        assert!(
            !asked.is_empty() && asked.len() >= answered.len(),
            "{api}: {} {}",
            asked.len(),
            answered.len()
        );
        assert!(
            answered.iter().all(|line| line["latency_us"].as_u64().is_some_and(|us| us > 0)),
            "{answered:?}"
        );
    }
    let told = &of("response", "Metadata")[0]["body"]["brokers"][0];
    assert_eq!(format!("{}:{}", told["host"].as_str().expect("text"), told["port"]), broker.bootstrap());
}

#[test]
fn a_trace_prints_what_its_filters_let_through_and_records_when_asked() {
    let broker = Broker::start();
    for topic in ["t", "u"] {
        broker.kuring(&["topic", "create", topic, "-p", "1"], b"");
    }
    let trace = Trace::start(&broker, &["--api", "produce", "--topic", "t", "--records"]);
    for topic in ["t", "u"] {
        let (code, _, error) = kuring(&["produce", topic], &["--bootstrap", &trace.address], b"v\n");
        assert!(code.success(), "{error}");
    }
    let lines = trace.finish();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let records = &lines[0]["body"]["topicData"][0]["partitionData"][0]["records"]["list"];
    assert_eq!((lines[0]["kind"].as_str(), records[0]["value"].as_str()), (Some("request"), Some("v")));
    assert_eq!(lines[1]["kind"], "response");
}

#[test]
fn what_a_trace_cannot_decode_goes_through_as_it_came() {
    let broker = Broker::start();
    let trace = Trace::start(&broker, &[]);
    let mut raw = crate::harness::raw::Raw::connect_to(&trace.address);
    // A version of ApiVersions that nobody knows is answered in version 0.
    let sent = raw.send_as(18, 99, 2, b"\0\0\0");
    let frame = raw.frame();
    assert_eq!(frame[..6], [&sent.to_be_bytes()[..], &[0, 35]].concat());
    // No API of this key: the broker closes, and so does the proxy.
    raw.send_as(999, 0, 1, &[0; 8]);
    assert_eq!(raw.answer(Duration::from_secs(20)), crate::harness::raw::Answer::Closed);
    let lines = trace.finish();
    let told: Vec<_> =
        lines.iter().map(|line| (line["kind"].as_str(), line["undecoded"].is_string())).collect();
    assert_eq!(
        told,
        [(Some("request"), true), (Some("response"), false), (Some("request"), true)],
        "{lines:?}"
    );
    assert_eq!(lines[1]["body"]["errorCode"], 35);
}
