//! What a peer may take: connections, time, bytes. Where Kafka has the limit the behaviour is Kafka's.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, ApiKey, ApiVersionsRequest, ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest, DeleteGroupsRequest, DescribeConfigsRequest, DescribeGroupsRequest,
    ElectLeadersRequest, HeartbeatRequest, MetadataRequest, ProduceRequest, ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest, TopicName, alter_partition_reassignments_request, elect_leaders_request,
};
use kafka_protocol::protocol::StrBytes;

use crate::admin::limit_hits;
use crate::group_rules::coordinator;
use crate::harness::batch::{Batch, Codec, Record};
use crate::harness::client::{Client, Send};
use crate::harness::raw::{Answer, FETCH, PRODUCE, Raw, fetch, produce};
use crate::harness::{Broker, PATIENCE, eventually};

/// How long nothing is to happen.
const A_WHILE: Duration = Duration::from_millis(300);
const INVALID_RECORD: i16 = 87;
const INVALID_REQUEST: i16 = 42;

fn ask(raw: &mut Raw) {
    raw.send(0, &ApiVersionsRequest::default());
}

pub fn works(raw: &mut Raw) -> bool {
    ask(raw);
    matches!(raw.answer(PATIENCE), Answer::Frame(_))
}

/// Nothing came from the broker but the end.
#[track_caller]
fn is_closed(mut raw: Raw) {
    assert_eq!(raw.answer(PATIENCE), Answer::Closed);
}

/// A hit of the limit is in the figures; Kafka has others.
#[track_caller]
fn is_counted(broker: &Broker, limit: &str) {
    if !Broker::is_kafka() {
        eventually(limit, || (limit_hits(broker, limit) > 0.0).then_some(()));
    }
}

#[test]
fn above_the_most_connections_the_next_one_waits_until_another_leaves() {
    let broker = Broker::with(1, &[("max.connections", "2")]);
    let mut first = Raw::connect(&broker);
    let mut second = Raw::connect(&broker);
    assert!(works(&mut first) && works(&mut second));
    let mut third = Raw::connect(&broker);
    ask(&mut third);
    assert_eq!(third.answer(A_WHILE), Answer::Silence);
    is_counted(&broker, "connections");
    drop(first);
    assert!(matches!(third.answer(PATIENCE), Answer::Frame(_)));
    assert!(works(&mut second));
}

#[test]
fn above_the_most_connections_of_an_address_the_next_one_is_closed() {
    let broker = Broker::with(1, &[("max.connections.per.ip", "2")]);
    let mut first = Raw::connect(&broker);
    let mut second = Raw::connect(&broker);
    assert!(works(&mut first) && works(&mut second));
    assert!(!works(&mut Raw::connect(&broker)));
    is_counted(&broker, "connections_per_ip");
    drop(first);
    eventually("there is a place again", || works(&mut Raw::connect(&broker)).then_some(()));
    assert!(works(&mut second));
}

#[test]
fn a_limit_of_one_listener_leaves_the_other_alone() {
    if Broker::is_kafka() {
        // The harness knows one listener of it.
        return;
    }
    let broker = Broker::with(
        1,
        &[
            ("listeners", "PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0"),
            ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"),
            ("listener.name.other.max.connections", "1"),
        ],
    );
    let mut addresses = broker.ready_line().split([',', ' ']).filter(|word| word.starts_with("127.0.0.1:"));
    // Behind them stands the admin listener's.
    let other = addresses.nth(1).expect("two listeners").to_owned();
    let mut first = Raw::connect_to(&other);
    assert!(works(&mut first));
    let mut second = Raw::connect_to(&other);
    ask(&mut second);
    assert_eq!(second.answer(A_WHILE), Answer::Silence);
    is_counted(&broker, "connections");
    assert!(works(&mut Raw::connect(&broker)));
    drop(first);
    assert!(matches!(second.answer(PATIENCE), Answer::Frame(_)));
}

#[test]
fn connections_above_the_creation_rate_wait() {
    let broker = Broker::with(1, &[("max.connection.creation.rate", "5")]);
    let start = Instant::now();
    let mut all: Vec<Raw> = (0..12).map(|_| Raw::connect(&broker)).collect();
    assert!(all.iter_mut().all(works));
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    is_counted(&broker, "connection_creation_rate");
}

#[test]
fn who_asks_nothing_is_closed_and_who_has_asked_stays() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[("kuring.connection.first.request.ms", "400")]);
    let mut asked = Raw::connect(&broker);
    assert!(works(&mut asked));
    let silent = Raw::connect(&broker);
    let mut trickling = Raw::connect(&broker);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        trickling.send_bytes(&[0]);
        std::thread::sleep(Duration::from_millis(100));
        if start.elapsed() > Duration::from_millis(250) {
            break;
        }
    }
    is_closed(silent);
    is_closed(trickling);
    is_counted(&broker, "first_requests");
    std::thread::sleep(Duration::from_millis(500));
    assert!(works(&mut asked));
}

#[test]
fn a_connection_that_is_silent_for_too_long_is_closed() {
    let broker = Broker::with(1, &[("connections.max.idle.ms", "400")]);
    let mut raw = Raw::connect(&broker);
    assert!(works(&mut raw));
    is_closed(raw);
    is_counted(&broker, "idle_connections");
}

#[test]
fn a_request_that_does_not_come_to_its_end_is_cut_off() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[("kuring.connection.request.ms", "400")]);
    let begin = || {
        let mut raw = Raw::connect(&broker);
        assert!(works(&mut raw));
        raw.send_bytes(&[0, 0, 0, 200, 0, 3, 0, 0]);
        raw
    };
    is_closed(begin());
    let mut trickling = begin();
    let start = Instant::now();
    let answer = loop {
        trickling.send_bytes(&[0]);
        match trickling.answer(Duration::from_millis(20)) {
            Answer::Silence => {
                assert!(start.elapsed() < PATIENCE, "one byte after another is taken for ever")
            }
            other => break other,
        }
    };
    assert_eq!(answer, Answer::Closed);
    is_counted(&broker, "slow_requests");
}

#[test]
fn an_answer_that_is_not_taken_ends_its_connection() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(
        1,
        &[
            ("kuring.connection.response.ms", "500"),
            ("kuring.connection.rate.min", "1048576"),
            ("socket.send.buffer.bytes", "65536"),
        ],
    );
    Client::of(&broker).create_topic("large", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let value = "x".repeat(1_000_000);
    for _ in 0..20 {
        raw.produce("large", 0, 1, Batch::now(&[&value]).encode());
    }
    let mut slow = Raw::connect(&broker);
    let mut request = fetch("large", &[(0, 0)]);
    request.topics[0].partitions[0].partition_max_bytes = 50 << 20;
    slow.send(FETCH, &request);
    is_counted(&broker, "slow_responses");
    assert_eq!(slow.answer(PATIENCE), Answer::Closed, "the rest of the answer came all the same");
    assert!(works(&mut raw));
}

#[test]
fn a_request_longer_than_its_api_needs_is_refused_before_it_has_come() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    assert!(works(&mut raw));
    // A Heartbeat of 8 MiB.
    raw.send_bytes(&[0, 0x80, 0, 0, 0, 12]);
    is_closed(raw);
    is_counted(&broker, "request_bytes_of_api");
    let mut raw = Raw::connect(&broker);
    let name = StrBytes::from_string("n".repeat(30_000));
    let heartbeat = HeartbeatRequest::default().with_group_id(name.clone().into()).with_member_id(name);
    assert_ne!(raw.call(4, &heartbeat).error_code, 0, "names of any legal length are answered");
}

#[test]
fn a_request_whose_length_cannot_be_is_refused_before_it_has_come() {
    let broker = Broker::start();
    // A Produce of 2 GiB less one byte, and one of less than nothing.
    for length in [i32::MAX, -1] {
        let mut raw = Raw::connect(&broker);
        let hits = if Broker::is_kafka() { 0.0 } else { limit_hits(&broker, "request_bytes") };
        raw.send_bytes(&length.to_be_bytes());
        raw.send_bytes(&[0, 0]);
        is_closed(raw);
        assert!(Broker::is_kafka() || limit_hits(&broker, "request_bytes") > hits, "{length}");
    }
}

#[test]
fn a_client_id_of_the_greatest_length_is_taken() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    let mut frame = vec![0, 18, 0, 0, 0, 0, 0, 5, 0x7f, 0xff];
    frame.resize(frame.len() + 0x7fff, b'c');
    raw.send_frame(&frame);
    assert!(matches!(raw.answer(PATIENCE), Answer::Frame(_)));
}

#[test]
fn more_tagged_fields_than_a_request_may_have_close_the_connection() {
    let mut broker = Broker::start();
    let count = 300_000u32;
    let varint = [count as u8 | 0x80, (count >> 7) as u8 | 0x80, (count >> 14) as u8];
    // Metadata 12: no topics, two flags, then the tagged fields, empty ones.
    let mut body = vec![0, 0, 0];
    body.extend(varint);
    body.resize(body.len() + 2 * count as usize, 0);
    let mut raw = Raw::connect(&broker);
    raw.send_as(ApiKey::Metadata as i16, 12, 2, &body);
    is_closed(raw);
    is_counted(&broker, "request_elements");
    assert!(broker.is_alive() && works(&mut Raw::connect(&broker)));
}

#[test]
fn a_batch_that_decompresses_to_far_more_than_its_size_is_refused() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::start();
    Client::of(&broker).create_topic("bombs", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let mut bomb = Batch::now(&[]).with_codec(Codec::Zstd);
    bomb.records = vec![Record { value: Some(vec![0; 24 << 20]), ..Record::default() }];
    assert_eq!(raw.produce("bombs", 0, 1, bomb.encode()).error_code, INVALID_RECORD);
    is_counted(&broker, "decompressed_bytes");
    assert_eq!(raw.produce("bombs", 0, 1, Batch::now(&["a"]).encode()).error_code, 0);
}

#[test]
fn a_batch_of_more_records_than_one_may_have_is_refused() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[("kuring.batch.records.max", "3")]);
    Client::of(&broker).create_topic("many", 1, &[]);
    let mut raw = Raw::connect(&broker);
    for codec in [Codec::None, Codec::Lz4] {
        let four = Batch::now(&["a", "b", "c", "d"]).with_codec(codec);
        assert_eq!(raw.produce("many", 0, 1, four.encode()).error_code, INVALID_RECORD, "{codec:?}");
        let three = Batch::now(&["a", "b", "c"]).with_codec(codec);
        assert_eq!(raw.produce("many", 0, 1, three.encode()).error_code, 0, "{codec:?}");
    }
    is_counted(&broker, "batch_records");
}

#[test]
fn a_peer_that_has_finished_sending_gets_its_answers() {
    let broker = Broker::start();
    let mut stream = TcpStream::connect(broker.bootstrap()).expect("the broker listens");
    let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff];
    for _ in 0..20 {
        stream.write_all(&request).expect("sent");
    }
    stream.shutdown(Shutdown::Write).expect("open");
    stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).expect("the end comes");
    let mut count = 0;
    while answers.len() >= 4 {
        let length = u32::from_be_bytes([answers[0], answers[1], answers[2], answers[3]]) as usize;
        answers.drain(..4 + length);
        count += 1;
    }
    assert_eq!(count, 20);
}

#[test]
fn requests_without_end_and_nobody_who_reads_the_answers_hold_little() {
    let broker =
        Broker::with(1, &[("kuring.memory.serve.bytes", "4194304"), ("socket.send.buffer.bytes", "65536")]);
    if Broker::is_kafka() {
        return;
    }
    Client::of(&broker).create_topic("many", 200, &[]);
    let all = MetadataRequest::default().with_topics(None);
    let mut frame = Vec::new();
    {
        use bytes::BufMut as _;
        use kafka_protocol::protocol::Encodable as _;
        let mut body = bytes::BytesMut::new();
        all.encode(&mut body, 9).expect("fits");
        frame.put_i32((11 + body.len()) as i32);
        frame.extend([0, 3, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0]);
        frame.extend(&body);
    }
    let before = broker.resident_bytes();
    let burst: Vec<u8> = frame.iter().copied().cycle().take(frame.len() * 20_000).collect();
    let mut greedy = Vec::new();
    for _ in 0..30 {
        let stream = TcpStream::connect(broker.bootstrap()).expect("the broker listens");
        stream.set_nonblocking(true).expect("a socket");
        // The kernel would take megabytes for each.
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 65536).expect("a socket");
        let _ = (&stream).write(&burst);
        greedy.push(stream);
    }
    let mut bystander = Raw::connect(&broker);
    for _ in 0..20 {
        for stream in &greedy {
            let mut stream = stream;
            let _ = stream.write(&burst);
        }
        assert!(works(&mut bystander));
        std::thread::sleep(Duration::from_millis(20));
    }
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB more", grown >> 20);
    // Their answers would have been three times what may be held, and whoever took none for a second was closed.
    assert!(limit_hits(&broker, "serve_memory") > 0.0);
    eventually("somebody has stalled", || (limit_hits(&broker, "stalled_connections") > 0.0).then_some(()));
}

#[test]
fn who_stalls_with_memory_that_others_wait_for_is_closed() {
    if Broker::is_kafka() {
        return;
    }
    let broker =
        Broker::with(1, &[("kuring.memory.receive.bytes", "4194304"), ("kuring.memory.stall.ms", "500")]);
    let client = Client::of(&broker);
    client.create_topic("wanted", 1, &[]);
    let mut stalled: Vec<TcpStream> = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(broker.bootstrap()).expect("the broker listens");
        stream.set_nonblocking(true).expect("a socket");
        // Produce requests of 1 MiB, of which 100 KiB come.
        let mut begun = vec![0, 0x10, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0];
        begun.resize(100 << 10, 0);
        let _ = stream.write(&begun);
        stalled.push(stream);
    }
    eventually("the memory is used up", || (limit_hits(&broker, "receive_memory") > 0.0).then_some(()));
    let start = Instant::now();
    let producer = client.producer(&[("linger.ms", "0")]);
    client.send(&producer, "wanted", &[Send::value(vec![7; 500_000]).to(0)]);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    // The producer's request has a lane without them; those that stall wait for each other.
    let closed = || limit_hits(&broker, "stalled_connections") + limit_hits(&broker, "crowded_connections");
    eventually("somebody has been closed", || (closed() > 0.0).then_some(()));
}

#[test]
fn requests_of_a_connection_beyond_what_may_be_in_service_wait_and_are_answered_in_order() {
    for (setting, value, limit) in [
        ("kuring.connection.requests.max", "1", "connection_requests"),
        ("kuring.memory.connection.bytes", "100", "connection_memory"),
    ] {
        let broker = Broker::with(2, &[(setting, value)]);
        Client::of(&broker).create_topic("many", 8, &[]);
        let mut raw = Raw::connect(&broker);
        let sent: Vec<i32> = (0..20)
            .map(|number| raw.send(PRODUCE, &produce("many", number % 8, 1, Batch::now(&["a"]).encode())))
            .collect();
        for correlation in sent {
            let (answered, response) = raw.receive::<ProduceRequest>(PRODUCE);
            assert_eq!(answered, correlation);
            assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
        }
        if !Broker::is_kafka() {
            assert!(limit_hits(&broker, limit) > 0.0, "{limit}");
        }
    }
}

#[test]
fn what_a_request_names_twice_is_answered_as_kafka_does() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("t", 1, &[]);
    let mut raw = Raw::connect(&broker);
    let text = StrBytes::from_static_str;
    let asked = |key| {
        DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text("t"))
            .with_configuration_keys(Some(vec![text(key)]))
    };
    let resources = ["retention.ms", "segment.bytes", "retention.ms"].map(asked).to_vec();
    let response = raw.call(4, &DescribeConfigsRequest::default().with_resources(resources));
    let names: Vec<&str> = response.results.iter().map(|result| &*result.configs[0].name).collect();
    assert_eq!(names, ["retention.ms", "segment.bytes", "retention.ms"]);
    let groups = ["g", "h", "g"].map(|group| text(group).into()).to_vec();
    let describe = DescribeGroupsRequest::default().with_groups(groups.clone());
    assert_eq!(raw.call(5, &describe).groups.len(), 3);
    let delete = DeleteGroupsRequest::default().with_groups_names(groups);
    assert_eq!(raw.call(2, &delete).results.len(), 2);
}

#[test]
fn an_answer_that_would_be_too_long_is_cut_and_others_are_served_meanwhile() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[]);
    let mut raw = Raw::connect(&broker);
    assert!(works(&mut raw));
    let node = DescribeConfigsResource::default()
        .with_resource_type(4)
        .with_resource_name(StrBytes::from_static_str("1"))
        .with_configuration_keys(None);
    let resources = vec![node; 20_000];
    let request = DescribeConfigsRequest::default()
        .with_resources(resources)
        .with_include_synonyms(true)
        .with_include_documentation(true);
    let mut bystander = Raw::connect(&broker);
    raw.send(4, &request);
    let mut served = 0;
    while limit_hits(&broker, "answer_bytes") == 0.0 {
        assert!(works(&mut bystander));
        served += 1;
    }
    // One or two come through before it is begun.
    assert!(served > 4, "only {served} requests");
    match raw.answer(PATIENCE) {
        Answer::Frame(frame) => assert!(frame.len() < 128 << 20, "{}", frame.len()),
        other => panic!("{other:?}"),
    }
    assert!(broker.resident_bytes() < 600 << 20, "{} MiB", broker.resident_bytes() >> 20);
}

/// A group that is named again is described again.
#[test]
fn descriptions_of_groups_do_not_grow_beyond_their_bound() {
    const NAMED: usize = 3000;
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[]);
    let mut raw = coordinator(&broker, "consumers");
    let text = |text: &str| StrBytes::from_string(text.to_owned());
    let topics: Vec<TopicName> = (0..1000).map(|n| text(&format!("{n:0240}")).into()).collect();
    let join = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(text("consumers").into())
        .with_member_id(text("m"))
        .with_rebalance_timeout_ms(60_000)
        .with_subscribed_topic_names(Some(topics.clone()))
        .with_topic_partitions(Some(Vec::new()));
    eventually("it has joined", || (raw.call(1, &join).error_code == 0).then_some(()));
    let join = ShareGroupHeartbeatRequest::default()
        .with_group_id(text("sharers").into())
        .with_member_id(text("m"))
        .with_subscribed_topic_names(Some(topics));
    eventually("it has joined", || (raw.call(1, &join).error_code == 0).then_some(()));
    let named = |group: &str| vec![text(group).into(); NAMED];
    let consumers = ConsumerGroupDescribeRequest::default().with_group_ids(named("consumers"));
    let codes: Vec<i16> = raw.call(1, &consumers).groups.iter().map(|group| group.error_code).collect();
    is_cut(&broker, 1, &codes);
    let sharers = ShareGroupDescribeRequest::default().with_group_ids(named("sharers"));
    let codes: Vec<i16> = raw.call(1, &sharers).groups.iter().map(|group| group.error_code).collect();
    is_cut(&broker, 2, &codes);

    /// Some are described, of the rest it is said that the answer would be too long.
    #[track_caller]
    fn is_cut(broker: &Broker, times: u64, codes: &[i16]) {
        assert_eq!(codes.len(), NAMED);
        let described = codes.iter().take_while(|code| **code == 0).count();
        assert!((100..1000).contains(&described), "{described}");
        assert!(codes[described..].iter().all(|code| *code == INVALID_REQUEST));
        assert_eq!(limit_hits(broker, "answer_bytes") as u64, times);
    }
}

/// The names that a request has come again in the message of each of its partitions.
#[test]
fn an_answer_of_elections_or_reassignments_does_not_grow_beyond_its_bound() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[]);
    let mut raw = Raw::connect(&broker);
    let name = StrBytes::from_string("x".repeat(30_000));
    let elect = ElectLeadersRequest::default().with_topic_partitions(Some(vec![
        elect_leaders_request::TopicPartitions::default()
            .with_topic(name.clone().into())
            .with_partitions((0..6000).collect()),
    ]));
    let codes: Vec<i16> = raw.call(2, &elect).replica_election_results[0]
        .partition_result
        .iter()
        .map(|result| result.error_code)
        .collect();
    assert_eq!((codes.len(), codes[0], codes[5999]), (6000, 3, 42));
    assert!(limit_hits(&broker, "answer_bytes") > 0.0);
    let strange = ElectLeadersRequest::default().with_election_type(7);
    assert_eq!(raw.call(2, &strange).error_code, 42);
    let partition = |index| {
        alter_partition_reassignments_request::ReassignablePartition::default()
            .with_partition_index(index)
            .with_replicas(Some(vec![1.into()]))
    };
    let reassign = AlterPartitionReassignmentsRequest::default().with_topics(vec![
        alter_partition_reassignments_request::ReassignableTopic::default()
            .with_name(name.into())
            .with_partitions((0..6000).map(partition).collect()),
    ]);
    let response = raw.call(1, &reassign);
    let codes: Vec<i16> =
        response.responses[0].partitions.iter().map(|partition| partition.error_code).collect();
    assert_eq!((codes.len(), codes[0], codes[5999]), (6000, 3, 42));
    assert!(works(&mut raw));
}

#[test]
fn a_fetch_that_holds_much_is_answered_at_once_when_memory_is_short() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[("kuring.memory.serve.bytes", "1048576")]);
    Client::of(&broker).create_topic("many", 1000, &[]);
    let mut raw = Raw::connect(&broker);
    let all: Vec<(i32, i64)> = (0..1000).map(|partition| (partition, 0)).collect();
    let mut request = fetch("many", &all);
    (request.max_wait_ms, request.session_epoch) = (60_000, 0);
    let start = Instant::now();
    let opened = raw.call(FETCH, &request);
    assert_eq!(opened.error_code, 0);
    // The next one names nothing, and holds as much.
    let mut next = fetch("many", &[]);
    next.topics.clear();
    (next.max_wait_ms, next.session_id, next.session_epoch) = (60_000, opened.session_id, 1);
    assert_eq!(raw.call(FETCH, &next).error_code, 0);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert!(limit_hits(&broker, "parked_fetches") >= 2.0);
}
