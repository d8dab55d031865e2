//! The admin listener: metrics as a scraper reads them, health, readiness.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::harness::batch::Batch;
use crate::harness::broker::kuring;
use crate::harness::client::{Client, Send, poll};
use crate::harness::raw::{Answer, FETCH, Raw, fetch};
use crate::harness::{Broker, PATIENCE, eventually, now_ms};

/// The status and the body that a GET is answered with.
pub fn get(address: &str, path: &str) -> (u16, String) {
    try_get(address, path).expect("an answer of the admin listener")
}

pub fn try_get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// How often a limit was hit; `docs/LIMITS.md` has the names.
pub fn limit_hits(broker: &Broker, limit: &str) -> f64 {
    Scrape::of(broker.admin()).sum("kuring_limit_hits_total", &[("limit", limit)])
}

/// The sum of all series of a metric.
pub fn metric(broker: &Broker, name: &str) -> u64 {
    metric_with(broker, name, &[])
}

/// The sum of the series of a metric that have all these labels.
pub fn metric_with(broker: &Broker, name: &str, labels: &[(&str, &str)]) -> u64 {
    Scrape::of(broker.admin()).sum(name, labels) as u64
}

/// The same with what is behind the point.
pub fn figure(broker: &Broker, name: &str, labels: &[(&str, &str)]) -> f64 {
    Scrape::of(broker.admin()).sum(name, labels)
}

/// Series with their labels as written, as `prometheus_parse` reads them.
struct Scrape(prometheus_parse::Scrape);

impl Scrape {
    fn of(address: &str) -> Self {
        let (status, text) = get(address, "/metrics");
        assert_eq!(status, 200, "{text}");
        check_form(&text);
        let lines = text.lines().map(|line| Ok(line.to_owned()));
        Self(prometheus_parse::Scrape::parse(lines).expect("a text that Prometheus understands"))
    }

    /// The sum of the series of this name that have all these labels.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted = self.0.samples.iter().filter(|sample| {
            sample.metric == name
                && labels.iter().all(|(label, value)| sample.labels.get(label) == Some(value))
        });
        wanted
            .map(|sample| match &sample.value {
                prometheus_parse::Value::Counter(value)
                | prometheus_parse::Value::Gauge(value)
                | prometheus_parse::Value::Untyped(value) => *value,
                other => panic!("{name} is {other:?}"),
            })
            .sum()
    }

    /// How much a histogram has recorded.
    fn recorded(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.sum(&format!("{name}_count"), labels)
    }
}

/// What the format asks for beyond what the parser looks at: HELP and TYPE once and before the series, all series of
/// a family together, none twice.
fn check_form(text: &str) {
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut current, mut seen) = ("", std::collections::HashSet::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(kinds.insert(name, kind).is_none(), "{name} is told twice");
            current = name;
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let name = series.split('{').next().unwrap_or(series);
            let base = match kinds.get(current) {
                Some(&"histogram") => {
                    let suffix =
                        name.strip_prefix(current).unwrap_or_else(|| panic!("{line} under {current}"));
                    assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}");
                    current
                }
                _ => name,
            };
            assert_eq!(base, current, "{line}");
            assert!(seen.insert(series), "{series} is there twice");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(kinds.len() > 50, "only {} families", kinds.len());
}

#[test]
fn metrics_tell_what_clients_did() {
    if Broker::is_kafka() {
        return;
    }
    let broker =
        Broker::with(2, &[("kuring.metrics.logs", "partition"), ("group.initial.rebalance.delay.ms", "0")]);
    let address = broker.admin();
    let before = Scrape::of(address);
    assert_eq!(before.sum("kuring_append_records_total", &[]), 0.0);

    let client = Client::of(&broker);
    client.create_topic("seen", 3, &[]);
    let records: Vec<Send> = (0..300).map(|number| Send::value([b'x'; 1000]).to(number % 3)).collect();
    client.send(&client.producer(&[]), "seen", &records);
    let consumer = client.consumer(&[("group.id", "watchers"), ("auto.offset.reset", "earliest")]);
    consumer.subscribe(&["seen"]).expect("subscribed");
    assert_eq!(poll(&consumer, 300).len(), 300);
    let mut half = TopicPartitionList::new();
    half.add_partition_offset("seen", 0, Offset::Offset(40)).expect("a valid offset");
    half.add_partition_offset("seen", 1, Offset::Offset(100)).expect("a valid offset");
    consumer.commit(&half, CommitMode::Sync).expect("committed");

    let after = Scrape::of(address);
    let topic = [("topic", "seen")];
    // The committed offsets are records too.
    assert!(after.sum("kuring_append_records_total", &[]) >= 300.0);
    assert!(after.sum("kuring_append_bytes_total", &[]) >= 300_000.0);
    assert!(after.sum("kuring_fetch_bytes_total", &[]) >= 300_000.0);
    assert!(after.sum("kuring_listener_received_bytes_total", &[("listener", "PLAINTEXT")]) >= 300_000.0);
    assert!(after.sum("kuring_listener_sent_bytes_total", &[("listener", "PLAINTEXT")]) >= 300_000.0);
    let received = after.sum("kuring_network_received_bytes_total", &[]);
    assert_eq!(received, after.sum("kuring_listener_received_bytes_total", &[]));
    assert_eq!(after.sum("kuring_partition_log_end_offset", &topic), 300.0);
    assert_eq!(after.sum("kuring_partition_log_start_offset", &topic), 0.0);
    assert!(after.sum("kuring_partition_log_bytes", &topic) >= 300_000.0);
    assert_eq!(after.sum("kuring_partition_log_segments", &topic), 3.0);
    assert!(after.sum("kuring_log_segments", &[]) >= 3.0);
    assert!(after.sum("kuring_log_offsets", &[]) >= 300.0);
    assert_eq!(after.sum("kuring_partition_high_watermark_offset", &topic), 300.0);
    assert!(after.sum("kuring_log_bytes", &[]) >= 300_000.0);
    assert_eq!(after.sum("kuring_group_lag_records", &[("group", "watchers"), ("topic", "seen")]), 60.0);
    assert_eq!(after.sum("kuring_groups", &[]), 1.0);
    assert_eq!(after.sum("kuring_metadata_topics", &[]), 2.0);
    assert_eq!(after.sum("kuring_metadata_partitions", &[]), 3.0 + 4.0);
    assert_eq!(after.sum("kuring_metadata_brokers_active", &[]), 1.0);
    let applied = |scrape: &Scrape| scrape.sum("kuring_metadata_applied_offset", &[]);
    assert!(applied(&after) > applied(&before));
    let created = [("command", "create_topics")];
    assert!(after.sum("kuring_controller_commands_total", &created) >= 2.0);
    assert!(after.sum("kuring_controller_command_seconds_total", &created) > 0.0);
    assert_eq!(
        after.sum("kuring_partitions", &[("state", "online")]),
        after.sum("kuring_partitions_led", &[])
    );
    assert_eq!(after.sum("kuring_partitions_offline", &[]), 0.0);

    let mut begun = 0.0;
    for api in ["Produce", "Fetch", "Metadata", "JoinGroup", "OffsetCommit", "CreateTopics"] {
        let of_api = [("api", api)];
        assert!(after.sum("kuring_requests_total", &of_api) >= 1.0, "{api}");
        begun += after.sum("kuring_requests_total", &of_api);
        for phase in ["queue", "local", "remote", "send", "total"] {
            let labels = [("api", api), ("phase", phase)];
            assert!(after.recorded("kuring_request_phase_seconds", &labels) >= 1.0, "{api} {phase}");
        }
    }
    assert!(after.sum("kuring_network_request_frames_total", &[]) >= begun);
    assert!(after.sum("kuring_connections_created_total", &[]) >= 2.0);
    assert_eq!(after.sum("kuring_shard_up", &[]), 2.0);
    for grows in [
        "kuring_shard_busy_seconds_total",
        "kuring_shard_tasks_run_total",
        "kuring_shard_queue_busy_seconds_total",
        "kuring_shard_queue_turns_total",
        "process_cpu_seconds_total",
    ] {
        assert!(after.sum(grows, &[]) > before.sum(grows, &[]), "{grows}");
    }
    assert!(after.sum("kuring_scrape_seconds", &[]) > 0.0);
    assert_eq!(after.sum("kuring_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    let resident = after.sum("process_resident_memory_bytes", &[]);
    assert!(resident > 1e6 && resident < 1e9, "{resident}");
    let files = after.sum("process_open_fds", &[]);
    assert!(files > 10.0 && files < after.sum("process_max_fds", &[]), "{files}");
    assert!(after.sum("kuring_open_files_needed", &[]) > 0.0);
    assert!(after.sum("process_threads", &[]) >= 2.0);
    let age_ms = now_ms() as f64 - 1e3 * after.sum("process_start_time_seconds", &[]);
    assert!((0.0..3_600_000.0).contains(&age_ms), "{age_ms}");
}

#[test]
fn what_is_exported_is_what_the_document_lists() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::start();
    let (_, text) = get(broker.admin(), "/metrics");
    let exported: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let document = include_str!("../../docs/METRICS.md");
    let (_, table) = document.split_once("<!-- metrics -->").expect("the table of metrics");
    let (table, _) = table.split_once("<!-- end of metrics -->").expect("its end");
    let listed: Vec<&str> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(exported, listed);
}

#[test]
fn errors_and_connections_are_counted_by_kind() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[("auto.create.topics.enable", "false")]);
    let address = broker.admin();
    let mut raw = Raw::connect(&broker);
    raw.send_bytes(&[0, 0, 0, 8, 0x7f, 0xff, 0, 0, 0, 0, 0, 1]);
    assert_eq!(raw.answer(PATIENCE), Answer::Closed);
    let invalid = eventually("the connection is counted", || {
        let scrape = Scrape::of(address);
        Some(scrape.sum("kuring_connections_closed_total", &[("reason", "invalid_request")]))
            .filter(|closed| *closed > 0.0)
    });
    assert_eq!(invalid, 1.0);
    let answer = Raw::connect(&broker).produce("nowhere", 0, 1, Batch::now(&["x"]).encode());
    assert_eq!(answer.error_code, 3);
    let labels = [("api", "Produce"), ("error", "UNKNOWN_TOPIC_OR_PARTITION")];
    assert_eq!(Scrape::of(address).sum("kuring_request_errors_total", &labels), 1.0);
}

#[test]
fn readiness_and_health_are_told_as_json() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::start();
    let address = broker.admin();
    let json = |path: &str| {
        let (status, body) = get(address, path);
        (status, serde_json::from_str::<serde_json::Value>(&body).expect("JSON"))
    };
    let (status, ready) = json("/ready");
    assert_eq!((status, &ready["ready"], &ready["state"]), (200, &true.into(), &"serving".into()), "{ready}");
    assert_eq!(ready["reasons"], serde_json::json!([]));
    let (status, health) = json("/health");
    assert_eq!((status, &health["healthy"], &health["shards"]), (200, &true.into(), &2.into()), "{health}");
    assert_eq!(get(address, "/elsewhere").0, 404);
    let scrape = Scrape::of(address);
    assert_eq!(scrape.sum("kuring_broker_state", &[("state", "serving")]), 1.0);
    assert_eq!(scrape.sum("kuring_broker_state", &[]), 1.0);
}

#[test]
fn an_admin_port_that_is_taken_stops_the_start_only_if_it_was_asked_for() {
    if Broker::is_kafka() {
        return;
    }
    let first = Broker::start();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = format!("log.dirs={}", directory.path().display());
    let taken = format!("kuring.admin.listener={}", first.admin());
    let (status, _, errors) = kuring(
        &["serve", "--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", &data, "--set", &taken],
        &[],
        &[],
    );
    assert_eq!(status.code(), Some(1));
    assert!(
        errors.contains(&format!("kuring.admin.listener cannot be bound to {}", first.admin())),
        "{errors}"
    );
}

#[test]
fn readiness_turns_with_the_start_and_the_stop() {
    if Broker::is_kafka() {
        return;
    }
    // A port that was free a moment ago.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("a port").port();
    let address = format!("127.0.0.1:{port}");
    let starting = std::thread::scope(|scope| {
        let polling = scope.spawn(|| poll_ready(&address, "serving"));
        let broker = Broker::with(2, &[("kuring.admin.listener", &address)]);
        (polling.join().expect("the poller"), broker)
    });
    let (starting, mut broker) = starting;
    assert_eq!(starting, ["503 starting", "200 serving"]);

    // An answer that its client does not take holds up the stop for a second.
    let client = Client::of(&broker);
    client.create_topic("large", 1, &[]);
    let records: Vec<Send> = (0..32).map(|_| Send::value(vec![b'x'; 900_000]).to(0)).collect();
    client.send(&client.producer(&[]), "large", &records);
    let mut raw = Raw::connect(&broker);
    let mut fetch = fetch("large", &[(0, 0)]);
    fetch.max_bytes = 50 << 20;
    fetch.topics[0].partitions[0].partition_max_bytes = 50 << 20;
    raw.send(FETCH, &fetch);
    eventually("the answer is on its way", || {
        let sent = Scrape::of(&address).sum("kuring_network_sent_bytes_total", &[]);
        (sent > 1e6).then_some(())
    });
    let stopping = std::thread::scope(|scope| {
        let polling = scope.spawn(|| poll_ready(&address, "no answer"));
        let (status, _) = broker.terminate();
        assert!(status.success());
        polling.join().expect("the poller")
    });
    assert!(stopping.contains(&"503 stopping".to_owned()), "{stopping:?}");
}

/// Asks `/ready` again and again until it says `last`; what it said, without repeats.
fn poll_ready(address: &str, last: &str) -> Vec<String> {
    let start = std::time::Instant::now();
    let mut said: Vec<String> = Vec::new();
    while start.elapsed() < PATIENCE {
        let answer = match try_get(address, "/ready") {
            None => "no answer".to_owned(),
            Some((status, body)) => {
                let json: serde_json::Value = serde_json::from_str(&body).expect("JSON");
                format!("{status} {}", json["state"].as_str().unwrap_or_default())
            }
        };
        if said.last() != Some(&answer) && (answer != "no answer" || !said.is_empty()) {
            said.push(answer.clone());
        }
        if answer.ends_with(last) && !said.is_empty() {
            return said;
        }
    }
    panic!("not within {PATIENCE:?}: {last}; {said:?}");
}

#[test]
fn more_admin_connections_than_there_are_places_for_are_closed() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[]);
    let silent: Vec<TcpStream> =
        (0..32).map(|_| TcpStream::connect(broker.admin()).expect("it listens")).collect();
    eventually("the next one is closed", || try_get(broker.admin(), "/health").is_none().then_some(()));
    drop(silent);
    eventually("there are places again", || try_get(broker.admin(), "/health").map(drop));
    assert!(limit_hits(&broker, "admin_connections") > 0.0);
}

#[test]
fn a_log_that_nobody_reads_stops_nobody() {
    if Broker::is_kafka() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut child = Command::new(env!("CARGO_BIN_EXE_kuring"))
        .args(["serve", "--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", "kuring.shards=1"])
        .args(["--set", "kuring.admin.listener=127.0.0.1:0", "--set", "kuring.request.log.sample=1"])
        .args(["--set", &format!("log.dirs={}", directory.path().display())])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built for this test");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a ready line");
    let word_after = |word: &str| {
        let after = line.split_once(word).and_then(|(_, after)| after.split([',', ' ']).next());
        after.unwrap_or_else(|| panic!("{line}")).to_owned()
    };
    let (bootstrap, admin) = (word_after("bootstrap "), word_after("admin "));
    let mut stream = TcpStream::connect(bootstrap).expect("the broker listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    // ApiVersions v0 of a client whose id is long: each request is a line of several hundred bytes.
    let mut request = vec![0, 0, 0, 74, 0, 18, 0, 0, 0, 0, 0, 1, 0, 64];
    request.extend([b'c'; 64]);
    // One after the other they would take a busy machine longer than its patience.
    let requests = request.repeat(500);
    let mut answer = vec![0; 4096];
    let mut asked = 0;
    let dropped = eventually("lines are dropped", || {
        stream.write_all(&requests).expect("sent");
        for _ in 0..500 {
            stream.read_exact(&mut answer[..4]).expect("an answer");
            let length = u32::from_be_bytes([answer[0], answer[1], answer[2], answer[3]]) as usize;
            stream.read_exact(&mut answer[..length]).expect("a whole answer");
        }
        asked += 500;
        Some(Scrape::of(&admin).sum("kuring_log_lines_dropped_total", &[])).filter(|dropped| *dropped > 0.0)
    });
    assert!(dropped < f64::from(asked), "{dropped} of {asked}");
    assert_eq!(get(&admin, "/health").0, 200);
    child.kill().expect("the child is ours");
    child.wait().expect("the child is ours");
}

#[test]
fn the_log_is_json_and_tells_sampled_requests() {
    if Broker::is_kafka() {
        return;
    }
    let settings = [("kuring.log.format", "json"), ("kuring.request.log.sample", "1")];
    let broker = Broker::with(1, &settings);
    Client::of(&broker).create_topic("something", 1, &[]);
    let line = eventually("a line about the request", || {
        broker.log().lines().find(|line| line.contains("\"api\":\"Metadata\"")).map(str::to_owned)
    });
    let json: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&json["message"], &json["target"]), (&"request".into(), &"kuring::request".into()), "{json}");
    for field in ["request_bytes", "response_bytes", "total_us"] {
        assert!(json[field].as_u64().is_some_and(|number| number > 0), "{field}: {json}");
    }
    for field in ["version", "client_id", "peer", "listener", "queue_us", "local_us", "remote_us", "send_us"]
    {
        assert!(!json[field].is_null(), "{field}: {json}");
    }
}
