//! Figures of `/metrics` that no other test sees move: each does for its cause. `tests/tidy.rs` looks that every line of
//! `docs/METRICS.md` is in a test here or elsewhere, or has its reason in `docs/TESTING.md`.

use std::net::TcpStream;

use kafka_protocol::messages::alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    AlterReplicaLogDirsRequest, ConsumerGroupHeartbeatRequest, CreateTopicsRequest, FetchRequest,
    FindCoordinatorRequest, GroupId, InitProducerIdRequest, JoinGroupRequest, OffsetCommitRequest,
    ProduceRequest,
};
use kafka_protocol::protocol::StrBytes;

use crate::admin::{figure, limit_hits, metric, metric_with};
use crate::group_rules::{coordinator, join};
use crate::harness::batch::{Batch, Codec, Record};
use crate::harness::client::{Client, Send};
use crate::harness::disk::{JOURNAL, StickyDisk};
use crate::harness::raw::{Answer, FETCH, PRODUCE, Raw, fetch, name, produce};
use crate::harness::{Broker, PATIENCE, eventually};
use crate::limits::works;
use crate::transaction_rules::id;

const OK: i16 = 0;
const REQUEST_TIMED_OUT: i16 = 7;
const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const GROUP_MAX_SIZE_REACHED: i16 = 81;
const INVALID_REGULAR_EXPRESSION: i16 = 128;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Waits until the figure, of all labels together, is as it should be.
#[track_caller]
fn await_figure(broker: &Broker, name: &str, is_right: impl Fn(f64) -> bool) -> f64 {
    eventually(name, || Some(figure(broker, name, &[])).filter(|value| is_right(*value)))
}

#[test]
fn fetches_that_wait_and_their_sessions_are_counted() {
    const READERS: usize = 20;
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(2, &[]);
    Client::of(&broker).create_topic("t", 4, &[]);
    let all: Vec<(i32, i64)> = (0..4).map(|partition| (partition, 0)).collect();
    let request = fetch("t", &all).with_max_wait_ms(120_000).with_session_epoch(0);
    let mut readers: Vec<Raw> = (0..READERS).map(|_| Raw::connect(&broker)).collect();
    for reader in &mut readers {
        reader.send(FETCH, &request);
    }
    // At each of the shards that it asks.
    await_figure(&broker, "kuring_fetches_waiting", |waiting| waiting >= READERS as f64);
    assert!(figure(&broker, "kuring_mesh_calls", &[]) >= READERS as f64);
    let mut writer = Raw::connect(&broker);
    for partition in 0..4 {
        assert_eq!(writer.produce("t", partition, 1, Batch::now(&["x"]).encode()).error_code, OK);
    }
    for reader in &mut readers {
        assert_ne!(reader.receive::<FetchRequest>(FETCH).1.session_id, 0);
    }
    assert_eq!(metric(&broker, "kuring_fetches_waiting"), 0);
    assert!(metric(&broker, "kuring_fetch_parked_total") >= READERS as u64);
    assert_eq!(metric(&broker, "kuring_fetch_sessions"), READERS as u64);
    assert_eq!(metric(&broker, "kuring_fetch_session_partitions"), 4 * READERS as u64);
}

#[test]
fn what_waits_for_a_disk_that_is_stuck_is_counted() {
    const WRITERS: usize = 20;
    if Broker::is_kafka() {
        return;
    }
    let settings = [
        ("kuring.file.threads", "1"),
        ("kuring.durability", "fsync"),
        ("kuring.request.log.slow.ms", "1000"),
    ];
    let mut broker = Broker::stopped(1, &settings);
    let disk = StickyDisk::new(broker.home().join("journals"));
    broker.set_environment(JOURNAL, &disk.folder().to_string_lossy());
    broker.start_again(1);
    Client::of(&broker).create_topic("t", 1, &[]);
    let mut raw = Raw::connect(&broker);
    assert_eq!(raw.produce("t", 0, 1, Batch::now(&["first"]).encode()).error_code, OK);
    let mut creator = disk.stick_under(&broker);
    disk.stick_at_once();
    await_figure(&broker, "kuring_partitions_opening", |opening| opening > 0.0);
    await_figure(&broker, "kuring_file_jobs_waiting", |waiting| waiting > 0.0);
    let late = produce("t", 0, -1, Batch::now(&["late"]).encode()).with_timeout_ms(3_000);
    let mut writers: Vec<Raw> = (0..WRITERS).map(|_| Raw::connect(&broker)).collect();
    for writer in &mut writers {
        writer.send(PRODUCE, &late);
    }
    await_figure(&broker, "kuring_appends_waiting", |waiting| waiting > 0.0);
    await_figure(&broker, "kuring_shard_deadlines", |deadlines| deadlines > 0.0);
    for writer in &mut writers {
        let (_, answer) = writer.receive::<ProduceRequest>(PRODUCE);
        assert_eq!(answer.responses[0].partition_responses[0].error_code, REQUEST_TIMED_OUT);
    }
    assert_eq!(metric(&broker, "kuring_append_timeouts_total"), WRITERS as u64);
    await_figure(&broker, "kuring_slow_requests_total", |slow| slow > 0.0);
    disk.stick(false);
    assert_eq!(creator.receive::<CreateTopicsRequest>(7).1.topics[0].error_code, OK);
    await_figure(&broker, "kuring_partitions_opening", |opening| opening == 0.0);
}

#[test]
fn a_request_that_has_come_in_part_holds_receive_memory() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[]);
    let mut raw = Raw::connect(&broker);
    // A Produce of 1 MiB, of which half comes.
    raw.send_bytes(&[0, 0x10, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0]);
    raw.send_bytes(&[0; 512 << 10]);
    let held = await_figure(&broker, "kuring_receive_bytes", |bytes| bytes >= (512 << 10) as f64);
    assert!(held < figure(&broker, "kuring_receive_max_bytes", &[]));
    drop(raw);
    await_figure(&broker, "kuring_receive_bytes", |bytes| bytes < held);
}

#[test]
fn a_connection_of_a_client_makes_room_for_one_between_brokers() {
    if Broker::is_kafka() {
        return;
    }
    let settings = [
        ("listeners", "PLAINTEXT://127.0.0.1:0,BETWEEN://127.0.0.1:0"),
        ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,BETWEEN:PLAINTEXT"),
        ("inter.broker.listener.name", "BETWEEN"),
        ("max.connections", "1"),
    ];
    let broker = Broker::with(1, &settings);
    let mut addresses = broker.ready_line().split([',', ' ']).filter(|word| word.starts_with("127.0.0.1:"));
    let between = addresses.nth(1).expect("two listeners").to_owned();
    let mut client = Raw::connect(&broker);
    assert!(works(&mut client));
    assert_eq!(limit_hits(&broker, "connections_displaced"), 0.0);
    assert!(works(&mut Raw::connect_to(&between)));
    assert_eq!(client.answer(PATIENCE), Answer::Closed);
    assert_eq!(limit_hits(&broker, "connections_displaced"), 1.0);
}

#[test]
fn connections_that_find_no_descriptor_wait() {
    const HARD_LIMIT: usize = 300;
    if Broker::is_kafka() {
        return;
    }
    let script = format!("ulimit -n {HARD_LIMIT} && exec \"$0\" \"$@\"");
    let prefix = ["sh", "-c", &script].map(str::to_owned);
    let broker = Broker::behind(&prefix, 1, &[("socket.listen.backlog.size", "500")]);
    // The logs take what was left for them: each of these has files that are open.
    Client::of(&broker).create_topic("t", 60, &[]);
    let mut raw = Raw::connect(&broker);
    for partition in 0..60 {
        assert_eq!(raw.produce("t", partition, 1, Batch::now(&["x"]).encode()).error_code, OK);
    }
    let crowd: Vec<TcpStream> =
        (0..HARD_LIMIT).map(|_| TcpStream::connect(broker.bootstrap()).expect("the backlog")).collect();
    // The admin listener finds none, either.
    eventually("all are taken", || (broker.open_files() >= HARD_LIMIT).then_some(()));
    drop(crowd);
    eventually("it is counted", || (limit_hits(&broker, "accept_descriptors") > 0.0).then_some(()));
}

/// Of each batch only a part fits into a turn, and two of a shard may be half done. Whether so many come together is the
/// machine's to say.
#[test]
fn compressed_batches_wait_for_each_other() {
    const PARTITIONS: i32 = 8;
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[]);
    Client::of(&broker).create_topic("t", PARTITIONS, &[]);
    let mut batch = Batch::now(&[]).with_codec(Codec::Zstd);
    batch.records = vec![Record { value: Some(vec![0; 15 << 20]), ..Record::default() }];
    let batch = batch.encode();
    let mut writers: Vec<Raw> = (0..PARTITIONS).map(|_| Raw::connect(&broker)).collect();
    let mut written = 0;
    eventually("one waits for others", || {
        for (partition, writer) in (0..).zip(&mut writers) {
            writer.send(PRODUCE, &produce("t", partition, 1, batch.clone()));
        }
        for writer in &mut writers {
            let (_, answer) = writer.receive::<ProduceRequest>(PRODUCE);
            assert_eq!(answer.responses[0].partition_responses[0].error_code, OK);
        }
        written += PARTITIONS as u64;
        (limit_hits(&broker, "decompressions") > 0.0).then_some(())
    });
    assert_eq!(metric(&broker, "kuring_append_batches_total"), written);
}

#[test]
fn partitions_beyond_those_that_may_have_a_directory_to_come_are_counted_and_the_log_is_short() {
    const TOO_MANY: usize = 20;
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[]);
    let topic = AlterReplicaLogDirTopic::default()
        .with_name(name("nowhere"))
        .with_partitions((0..10_000 + TOO_MANY as i32).collect());
    let directory = AlterReplicaLogDir::default()
        .with_path(text(&broker.data().to_string_lossy()))
        .with_topics(vec![topic]);
    let request = AlterReplicaLogDirsRequest::default().with_dirs(vec![directory]);
    let answer = Raw::connect(&broker).call(2, &request);
    assert_eq!(answer.results[0].partitions.len(), 10_000 + TOO_MANY);
    assert_eq!(limit_hits(&broker, "preferred_directories"), TOO_MANY as f64);
    // Each has a line, and ten of them are told.
    assert!(metric(&broker, "kuring_log_lines_suppressed_total") > 0);
}

/// A member whose metadata has so many bytes.
fn large_join(group: &str, bytes: usize) -> JoinGroupRequest {
    let protocol =
        JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata(vec![0_u8; bytes].into());
    let times_ms = 600_000;
    join(group, "")
        .with_session_timeout_ms(times_ms)
        .with_rebalance_timeout_ms(times_ms)
        .with_protocols(vec![protocol])
}

#[test]
fn members_that_would_hold_too_much_are_refused_and_long_requests_closed() {
    if Broker::is_kafka() {
        return;
    }
    let settings = [
        ("kuring.groups.bytes.max", "8388608"),
        ("kuring.memory.serve.bytes", "1048576"),
        ("group.initial.rebalance.delay.ms", "600000"),
    ];
    let broker = Broker::with(1, &settings);
    let mut raw = coordinator(&broker, "a");
    // A quarter of all is for one group.
    assert_eq!(raw.call(3, &large_join("a", 3 << 20)).error_code, GROUP_MAX_SIZE_REACHED);
    assert_eq!(limit_hits(&broker, "group_bytes"), 1.0);
    // Those that wait for their groups to begin hold what they brought.
    let mut waiting: Vec<Raw> = Vec::new();
    for group in ["b", "c", "d"] {
        let mut raw = Raw::connect(&broker);
        raw.send(3, &large_join(group, 200 << 10));
        waiting.push(raw);
    }
    await_figure(&broker, "kuring_serve_bytes", |bytes| bytes > (512 << 10) as f64);
    assert_eq!(metric(&broker, "kuring_serve_max_bytes"), 1 << 20);
    let mut late = Raw::connect(&broker);
    late.send(3, &large_join("e", 8 << 10));
    assert_eq!(late.answer(PATIENCE), Answer::Closed);
    assert_eq!(limit_hits(&broker, "group_request_memory"), 1.0);
    let wrong = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text("n")))
        .with_member_id(text("m"))
        .with_rebalance_timeout_ms(60_000)
        .with_topic_partitions(Some(Vec::new()))
        .with_subscribed_topic_regex(Some(text("(")));
    assert_eq!(raw.call(1, &wrong).error_code, INVALID_REGULAR_EXPRESSION);
    assert_eq!(limit_hits(&broker, "group_expressions"), 1.0);
}

#[test]
fn transactional_ids_that_would_hold_too_much_are_refused() {
    if Broker::is_kafka() {
        return;
    }
    let settings = [
        ("transaction.state.log.replication.factor", "1"),
        ("transaction.state.log.min.isr", "1"),
        ("kuring.transactions.bytes.max", "1048576"),
    ];
    let broker = Broker::with(1, &settings);
    let mut raw = Raw::connect(&broker);
    let find = FindCoordinatorRequest::default().with_key_type(1).with_coordinator_keys(vec![text("x")]);
    eventually("there is a coordinator", || {
        (raw.call(4, &find).coordinators[0].error_code == OK).then_some(())
    });
    let mut init = |number: usize| {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(id(&format!("{number:0>30000}"))))
            .with_transaction_timeout_ms(60_000)
            .with_producer_id((-1).into())
            .with_producer_epoch(-1);
        raw.call(4, &request).error_code
    };
    eventually("the coordinator serves", || (init(0) == OK).then_some(()));
    let held = figure(&broker, "kuring_transactions_bytes", &[]);
    assert!(held >= 30_000.0, "{held}");
    assert_eq!(metric(&broker, "kuring_transactional_ids"), 1);
    let codes: Vec<i16> = (1..50).map(&mut init).collect();
    assert!(codes.contains(&COORDINATOR_NOT_AVAILABLE), "{codes:?}");
    assert!(limit_hits(&broker, "transaction_bytes") > 0.0);
}

#[test]
fn logs_are_told_of_by_topic_and_as_many_lags_as_there_may_be() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(2, &[("kuring.metrics.logs", "topic"), ("kuring.metrics.lag.max", "1")]);
    let client = Client::of(&broker);
    client.create_topic("t", 3, &[]);
    let records: Vec<Send> = (0..30).map(|number| Send::value([b'x'; 1000]).to(number % 3)).collect();
    client.send(&client.producer(&[("linger.ms", "0")]), "t", &records);
    let of_topic = |name: &str| metric_with(&broker, name, &[("topic", "t")]);
    assert_eq!(of_topic("kuring_topic_partitions"), 3);
    assert_eq!(of_topic("kuring_topic_log_offsets"), 30);
    assert_eq!(of_topic("kuring_topic_log_segments"), 3);
    assert!(of_topic("kuring_topic_log_bytes") >= 30_000);
    for group in ["near", "far"] {
        let mut raw = coordinator(&broker, group);
        let partition = OffsetCommitRequestPartition::default()
            .with_partition_index(0)
            .with_committed_offset(if group == "near" { 9 } else { 1 });
        let topic = OffsetCommitRequestTopic::default().with_name(name("t")).with_partitions(vec![partition]);
        let request = OffsetCommitRequest::default()
            .with_group_id(GroupId(text(group)))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![topic]);
        assert_eq!(raw.call(8, &request).topics[0].partitions[0].error_code, OK);
    }
    await_figure(&broker, "kuring_group_lag_left_out", |left_out| left_out == 1.0);
    assert_eq!(metric_with(&broker, "kuring_group_lag_records", &[("group", "far")]), 9);
}

#[test]
fn what_logs_reserve_ahead_of_their_ends_is_counted() {
    if Broker::is_kafka() {
        return;
    }
    const STEP: f64 = (64 << 20) as f64;
    let broker = Broker::with(1, &[("kuring.preallocated.bytes", "100000000")]);
    Client::of(&broker).create_topic("t", 2, &[("preallocate", "true")]);
    let mut raw = Raw::connect(&broker);
    for partition in 0..2 {
        assert_eq!(raw.produce("t", partition, 1, Batch::now(&["x"]).encode()).error_code, OK);
    }
    // There is room for one of the two.
    await_figure(&broker, "kuring_log_preallocations_refused_total", |refused| refused >= 1.0);
    await_figure(&broker, "kuring_log_preallocated_bytes", |bytes| (0.9 * STEP..=STEP).contains(&bytes));
}
