//! Client quotas: set, described, kept; and what a client over its quota gets. What is answered is what Apache Kafka
//! 4.4.0 answers: `KURING_TEST_BROKER=kafka` runs the tests against it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    AlterClientQuotasRequest, CreateTopicsRequest, DescribeClientQuotasRequest, MetadataRequest,
};
use kafka_protocol::protocol::StrBytes;
use rdkafka::consumer::Consumer as _;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};

use crate::admin::{limit_hits, metric, metric_with};
use crate::harness::batch::Batch;
use crate::harness::client::{Client, Send};
use crate::harness::raw::{Answer, FETCH, PRODUCE, Raw, fetch, name, produce};
use crate::harness::{Broker, PATIENCE, eventually};

const INVALID_REQUEST: i16 = 42;
const UNSUPPORTED_VERSION: i16 = 35;
pub(super) const THROTTLING_QUOTA_EXCEEDED: i16 = 89;

/// Few windows: bursts are short, and over soon.
pub(super) const QUICK: [(&str, &str); 2] = [("quota.window.num", "3"), ("controller.quota.window.num", "3")];

pub(super) type Part<'a> = (&'a str, Option<&'a str>);
/// A limit of `None` takes the quota away.
pub(super) type Op<'a> = (&'a str, Option<f64>);

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn entry(parts: &[Part<'_>], ops: &[Op<'_>]) -> EntryData {
    let part = |(kind, name): &Part<'_>| {
        EntityData::default().with_entity_type(text(kind)).with_entity_name(name.map(text))
    };
    let op = |(key, limit): &Op<'_>| {
        OpData::default().with_key(text(key)).with_value(limit.unwrap_or(0.0)).with_remove(limit.is_none())
    };
    EntryData::default().with_entity(parts.iter().map(part).collect()).with_ops(ops.iter().map(op).collect())
}

/// The code and the words of each answer.
fn alter(raw: &mut Raw, version: i16, entries: Vec<EntryData>, validate: bool) -> Vec<(i16, Option<String>)> {
    let request = AlterClientQuotasRequest::default().with_entries(entries).with_validate_only(validate);
    let answered = raw.call(version, &request).entries.into_iter();
    answered.map(|entry| (entry.error_code, entry.error_message.map(|words| words.to_string()))).collect()
}

#[track_caller]
pub(super) fn set(raw: &mut Raw, parts: &[Part<'_>], ops: &[Op<'_>]) {
    assert_eq!(alter(raw, 1, vec![entry(parts, ops)], false), [(0, None)]);
    if Broker::is_kafka() {
        // It answers before its broker knows.
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn component(kind: &str, match_type: i8, name: Option<&str>) -> ComponentData {
    ComponentData::default()
        .with_entity_type(text(kind))
        .with_match_type(match_type)
        .with_match(name.map(text))
}

/// Each entity as `type=name,…: key=value,…`, sorted.
pub(super) fn described(
    raw: &mut Raw,
    version: i16,
    strict: bool,
    components: Vec<ComponentData>,
) -> Vec<String> {
    let request = DescribeClientQuotasRequest::default().with_components(components).with_strict(strict);
    let response = raw.call(version, &request);
    assert_eq!((response.error_code, response.error_message.as_deref()), (0, Some("")));
    let mut entities: Vec<String> = response
        .entries
        .unwrap()
        .into_iter()
        .map(|entry| {
            let part = |kind: &StrBytes, name: &Option<StrBytes>| {
                format!("{kind}={}", name.as_ref().map_or("*", |name| name))
            };
            let mut parts: Vec<String> =
                entry.entity.iter().map(|entity| part(&entity.entity_type, &entity.entity_name)).collect();
            let mut values: Vec<String> =
                entry.values.iter().map(|value| format!("{}={}", &*value.key, value.value)).collect();
            parts.sort();
            values.sort();
            format!("{}: {}", parts.join(","), values.join(","))
        })
        .collect();
    entities.sort();
    entities
}

#[test]
fn quotas_are_described_as_they_were_set_and_outlive_a_stop_and_a_kill() {
    let mut broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    let user = [("user", Some("ann"))];
    set(&mut raw, &user, &[("producer_byte_rate", Some(1000.0)), ("request_percentage", Some(12.5))]);
    set(&mut raw, &[("user", Some("ann")), ("client-id", None)], &[("consumer_byte_rate", Some(2000.0))]);
    set(&mut raw, &[("user", None)], &[("controller_mutation_rate", Some(0.5))]);
    set(&mut raw, &[("client-id", Some("c"))], &[("producer_byte_rate", Some(3e12))]);
    set(&mut raw, &[("ip", None)], &[("connection_creation_rate", Some(5000.0))]);
    // Changed for one, taken away from another, and tried only.
    set(&mut raw, &user, &[("producer_byte_rate", Some(1500.0))]);
    set(&mut raw, &[("ip", Some("10.1.2.3"))], &[("connection_creation_rate", Some(7.0))]);
    set(&mut raw, &[("ip", Some("10.1.2.3"))], &[("connection_creation_rate", None)]);
    let tried = entry(&user, &[("producer_byte_rate", Some(1.0))]);
    assert_eq!(alter(&mut raw, 0, vec![tried], true), [(0, None)]);
    let all = [
        "client-id=*,user=ann: consumer_byte_rate=2000",
        "client-id=c: producer_byte_rate=3000000000000",
        "ip=*: connection_creation_rate=5000",
        "user=*: controller_mutation_rate=0.5",
        "user=ann: producer_byte_rate=1500,request_percentage=12.5",
    ];
    for version in 0..=1 {
        eventually("the broker has the quotas", || {
            (described(&mut raw, version, false, vec![]) == all).then_some(())
        });
        let mut found = |strict, components| described(&mut raw, version, strict, components);
        assert_eq!(found(true, vec![]), [""; 0]);
        assert_eq!(found(true, vec![component("user", 0, Some("ann"))]), [all[4]]);
        assert_eq!(found(false, vec![component("user", 0, Some("ann"))]), [all[0], all[4]]);
        assert_eq!(found(true, vec![component("user", 1, None)]), [all[3]]);
        assert_eq!(found(false, vec![component("user", 2, None)]), [all[0], all[3], all[4]]);
        assert_eq!(found(true, vec![component("user", 2, None), component("client-id", 1, None)]), [all[0]]);
        assert_eq!(found(false, vec![component("client-id", 2, None)]), [all[0], all[1]]);
        assert_eq!(found(true, vec![component("ip", 1, None)]), [all[2]]);
        assert_eq!(found(true, vec![component("ip", 0, Some("10.1.2.3"))]), [""; 0]);
    }
    broker.terminate();
    broker.start_again(2);
    assert_eq!(described(&mut Raw::connect(&broker), 1, false, vec![]), all);
    set(&mut Raw::connect(&broker), &[("user", None)], &[("controller_mutation_rate", None)]);
    broker.kill();
    broker.start_again(1);
    let left = described(&mut Raw::connect(&broker), 1, false, vec![]);
    assert_eq!(left, [all[0], all[1], all[2], all[4]]);
}

#[test]
fn what_cannot_be_a_quota_is_refused_in_kafkas_words() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    let user = &[("user", Some("ann"))][..];
    let ip = &[("ip", Some("10.0.0.1"))][..];
    let cases: &[(&[Part<'_>], Op<'_>, &str)] = &[
        (user, ("nonsense", Some(1.0)), "Invalid configuration key nonsense"),
        (user, ("connection_creation_rate", Some(1.0)), "Invalid configuration key connection_creation_rate"),
        (ip, ("producer_byte_rate", Some(1.0)), "Invalid configuration key producer_byte_rate"),
        (user, ("producer_byte_rate", Some(0.0)), "Quota producer_byte_rate must be greater than 0"),
        (user, ("request_percentage", Some(-1.0)), "Quota request_percentage must be greater than 0"),
        (user, ("producer_byte_rate", Some(1.5)), "producer_byte_rate cannot be a fractional value."),
        (
            user,
            ("producer_byte_rate", Some(1e19)),
            "Proposed value for producer_byte_rate is too large for a LONG.",
        ),
        (
            ip,
            ("connection_creation_rate", Some(3e9)),
            "Proposed value for connection_creation_rate is too large for an INT.",
        ),
        (&[], ("producer_byte_rate", Some(1.0)), "Invalid empty client quota entity"),
        (
            &[("group", Some("g"))],
            ("producer_byte_rate", Some(1.0)),
            "Unhandled client quota entity type: group",
        ),
        (&[("user", Some(""))], ("producer_byte_rate", Some(1.0)), "Empty user not supported"),
        (
            &[("ip", Some("1.1.1.1.1"))],
            ("connection_creation_rate", Some(1.0)),
            "1.1.1.1.1 is not a valid IP or resolvable host.",
        ),
        (
            &[("ip", Some("10.0.0.1")), ("user", Some("ann"))],
            ("connection_creation_rate", Some(1.0)),
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
    ];
    for (parts, op, words) in cases {
        for validate in [true, false] {
            let answered = alter(&mut raw, 1, vec![entry(parts, &[*op])], validate);
            assert_eq!(answered, [(INVALID_REQUEST, Some((*words).to_owned()))]);
        }
    }
    // What was never set can be taken away, whatever it is.
    set(&mut raw, user, &[("nonsense", None), ("producer_byte_rate", None)]);
    let twice = entry(user, &[("producer_byte_rate", Some(1.0)), ("producer_byte_rate", Some(2.0))]);
    let again = "Ignoring duplicate entity ClientQuotaEntity(entries={user=ann})";
    assert_eq!(alter(&mut raw, 1, vec![twice], false), [(INVALID_REQUEST, Some(again.to_owned()))]);
    let one = || entry(user, &[("producer_byte_rate", Some(1.0))]);
    assert_eq!(alter(&mut raw, 1, vec![one(), one()], false), [(INVALID_REQUEST, Some(again.to_owned()))]);
    eventually("the first of both counts", || {
        (described(&mut raw, 1, false, vec![]) == ["user=ann: producer_byte_rate=1"]).then_some(())
    });

    let mut refused = |components: Vec<ComponentData>| {
        let request = DescribeClientQuotasRequest::default().with_components(components);
        let response = raw.call(1, &request);
        assert_eq!(response.entries, None);
        (response.error_code, response.error_message.unwrap_or_default().to_string())
    };
    let invalid = |words: &str| (INVALID_REQUEST, words.to_owned());
    let with_name =
        |kind: &str| invalid(&format!("Request specified {kind}, but also specified a match string."));
    let user = |match_type, name| component("user", match_type, name);
    assert_eq!(refused(vec![component("", 0, Some("x"))]), invalid("Invalid empty entity type."));
    let unknown = (UNSUPPORTED_VERSION, "Unsupported entity type group".to_owned());
    assert_eq!(refused(vec![component("group", 0, Some("x"))]), unknown);
    assert_eq!(
        refused(vec![user(2, None), user(1, None)]),
        invalid("Entity type user cannot appear more than once in the filter.")
    );
    assert_eq!(
        refused(vec![user(0, None)]),
        invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    );
    assert_eq!(refused(vec![user(1, Some("x"))]), with_name("MATCH_TYPE_DEFAULT"));
    assert_eq!(refused(vec![user(2, Some("x"))]), with_name("MATCH_TYPE_SPECIFIED"));
    assert_eq!(refused(vec![user(3, None)]), invalid("Unknown match type 3"));
    assert_eq!(
        refused(vec![user(2, None), component("ip", 2, None)]),
        invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or \
             clientId filter component."
        )
    );
}

fn batch_of(bytes: usize) -> Bytes {
    Batch::now(&["x".repeat(bytes).as_str()]).encode()
}

fn metadata() -> MetadataRequest {
    let nothing: Vec<MetadataRequestTopic> = Vec::new();
    MetadataRequest::default().with_topics(Some(nothing))
}

#[test]
fn a_producer_over_its_quota_is_answered_at_once_and_then_not_read_for_a_while() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("limited", 1, &[]);
    let mut other = Raw::connect(&broker).named("other");
    let client_id = [("client-id", Some("fast"))];
    set(&mut other, &client_id, &[("producer_byte_rate", Some(1000.0))]);
    let mut fast = Raw::connect(&broker).named("fast");
    // Ten seconds of it may come at once: 2.5 s are to wait after 12,500 bytes.
    let begun = Instant::now();
    let answer = fast.call(PRODUCE, &produce("limited", 0, 1, batch_of(12_300)));
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    let told = answer.throttle_time_ms;
    assert!((1_500..=3_000).contains(&told), "{told}");
    assert!(begun.elapsed() < Duration::from_millis(1_400), "the answer itself came late");
    // Whatever comes now waits; another client does not.
    fast.send(12, &metadata());
    let answer = other.call(PRODUCE, &produce("limited", 0, 1, batch_of(100_000)));
    assert_eq!(answer.throttle_time_ms, 0);
    assert_eq!(fast.answer(Duration::from_millis(200)), Answer::Silence);
    fast.receive::<MetadataRequest>(12);
    let muted = begun.elapsed().as_millis() as i32;
    assert!(muted >= told, "told to wait {told} ms, answered after {muted}");
    // Without acknowledgement there is nothing to be told, and the connection is muted all the same.
    fast.send(PRODUCE, &produce("limited", 0, 0, batch_of(3_000)));
    fast.send(12, &metadata());
    assert_eq!(fast.answer(Duration::from_millis(500)), Answer::Silence);
    fast.receive::<MetadataRequest>(12);
    // Nobody waits any more when the quota is gone.
    set(&mut other, &client_id, &[("producer_byte_rate", None)]);
    eventually("the quota is gone", || {
        let answer = fast.call(PRODUCE, &produce("limited", 0, 1, batch_of(20_000)));
        (answer.throttle_time_ms == 0).then_some(())
    });
}

#[test]
fn a_fetch_over_its_quota_is_answered_with_nothing_and_its_session_goes_on() {
    let broker = Broker::with(2, &QUICK);
    let client = Client::of(&broker);
    client.create_topic("read", 1, &[]);
    let mut other = Raw::connect(&broker).named("other");
    for _ in 0..4 {
        other.produce("read", 0, 1, batch_of(4_000));
    }
    set(&mut other, &[("client-id", Some("reader"))], &[("consumer_byte_rate", Some(4_000.0))]);
    let mut reader = Raw::connect(&broker).named("reader");
    let session = |id: i32, epoch: i32, offset: i64| {
        let mut request = fetch("read", &[(0, offset)]).with_session_id(id).with_session_epoch(epoch);
        request.topics[0].partitions[0].partition_max_bytes = 5_000;
        request
    };
    // Two seconds of it at once: the first is served and opens a session, the second comes to it, the third is over.
    let first = reader.call(FETCH, &session(0, 0, 0));
    assert_eq!((first.throttle_time_ms, first.error_code), (0, 0));
    assert_ne!(first.session_id, 0);
    let mut epoch = 1;
    let mut offset = 1;
    let throttled = eventually("a fetch is over the quota", || {
        let answer = reader.call(FETCH, &session(first.session_id, epoch, offset));
        epoch += 1;
        assert_eq!((answer.error_code, answer.session_id), (0, first.session_id));
        if answer.throttle_time_ms > 0 {
            return Some(answer);
        }
        offset += 1;
        None
    });
    assert_eq!(throttled.responses.len(), 0);
    let told = throttled.throttle_time_ms;
    let begun = Instant::now();
    assert!(offset < 4, "there was something to read");
    // The session knows of nothing that was told: the same again gives the records.
    let again = eventually("the time is over", || {
        let answer = reader.call(FETCH, &session(first.session_id, epoch, offset));
        epoch += 1;
        assert_eq!((answer.error_code, answer.session_id), (0, first.session_id));
        (answer.throttle_time_ms == 0).then_some(answer)
    });
    assert!(begun.elapsed().as_millis() as i32 >= told - 50, "muted for {told} ms");
    assert!(again.responses[0].partitions[0].records.as_ref().is_some_and(|records| !records.is_empty()));
    let unlimited = other.call(FETCH, &fetch("read", &[(0, 0)]));
    assert_eq!(unlimited.throttle_time_ms, 0);
    assert!(unlimited.responses[0].partitions[0].records.as_ref().unwrap().len() > 16_000);
    assert!(Broker::is_kafka() || metric(&broker, "kuring_throttled_consumer_byte_rate_total") > 0);
}

#[test]
fn a_client_that_takes_more_time_than_it_may_waits_for_a_window_at_most() {
    let broker = Broker::with(1, &QUICK);
    let mut other = Raw::connect(&broker).named("other");
    set(&mut other, &[("client-id", Some("busy"))], &[("request_percentage", Some(0.0001))]);
    let mut busy = Raw::connect(&broker).named("busy");
    let told = eventually("some requests take longer than 2 µs", || {
        Some(busy.call(12, &metadata()).throttle_time_ms).filter(|told| *told > 0)
    });
    assert!(told <= 1000, "{told}");
    let begun = Instant::now();
    busy.call(12, &metadata());
    assert!(begun.elapsed().as_millis() as i32 >= told - 50, "muted for {told} ms");
    assert_eq!(other.call(12, &metadata()).throttle_time_ms, 0);
    assert_eq!(other.call(12, &metadata()).throttle_time_ms, 0);
    assert!(Broker::is_kafka() || metric(&broker, "kuring_throttled_request_percentage_total") > 0);
}

#[test]
fn whoever_makes_more_partitions_than_he_may_is_refused_or_has_to_wait() {
    let broker = Broker::with(2, &QUICK);
    let mut other = Raw::connect(&broker).named("other");
    set(&mut other, &[("user", None)], &[("controller_mutation_rate", Some(2.0))]);
    set(
        &mut other,
        &[("user", None), ("client-id", Some("other"))],
        &[("controller_mutation_rate", Some(1e6))],
    );
    let create = |topic: &str, partitions| {
        let topic = CreatableTopic::default()
            .with_name(name(topic))
            .with_num_partitions(partitions)
            .with_replication_factor(1);
        CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000)
    };
    let mut maker = Raw::connect(&broker).named("maker");
    // A burst of six, two more each second.
    let first = maker.call(7, &create("first", 10));
    assert_eq!((first.topics[0].error_code, first.throttle_time_ms), (0, 0));
    let second = maker.call(7, &create("second", 1));
    let answered = Instant::now();
    assert_eq!(second.topics[0].error_code, THROTTLING_QUOTA_EXCEEDED);
    assert_eq!(second.topics[0].error_message, None, "the code says it all");
    let told = second.throttle_time_ms;
    assert!((1_000..=2_000).contains(&told), "{told}");
    assert_eq!(other.call(7, &create("others", 50)).topics[0].error_code, 0);
    let third = maker.call(7, &create("second", 1));
    assert!(answered.elapsed().as_millis() as i32 >= told - 50, "muted for {told} ms");
    assert_eq!(third.topics[0].error_code, 0);
    // An older version does not know the error: its client is served, and waits.
    let old = maker.call(5, &create("old", 6));
    assert_eq!(old.topics[0].error_code, 0);
    assert!(old.throttle_time_ms > 1_000, "{}", old.throttle_time_ms);
    assert!(Broker::is_kafka() || metric(&broker, "kuring_throttled_controller_mutation_rate_total") >= 2);
}

#[test]
fn an_address_that_connects_too_often_is_let_in_and_closed() {
    let broker = Broker::with(1, &QUICK);
    let mut first = Raw::connect(&broker);
    set(&mut first, &[("ip", Some("127.0.0.1"))], &[("connection_creation_rate", Some(5.0))]);
    let mut served = 0;
    let mut closed = 0;
    for _ in 0..15 {
        let mut raw = Raw::connect(&broker);
        raw.send(12, &metadata());
        match raw.answer(PATIENCE) {
            Answer::Frame(_) => served += 1,
            Answer::Closed => closed += 1,
            Answer::Silence => panic!("neither served nor closed"),
        }
    }
    assert!(served >= 8 && closed >= 1, "{served} served, {closed} closed");
    assert!(Broker::is_kafka() || limit_hits(&broker, "connection_creation_rate_of_ip") >= f64::from(closed));
    set(&mut first, &[("ip", Some("127.0.0.1"))], &[("connection_creation_rate", None)]);
    for _ in 0..30 {
        Raw::connect(&broker).call(12, &metadata());
    }
}

#[test]
fn clients_beyond_those_that_are_measured_apart_are_measured_together() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[("kuring.quota.clients.max", "1")]);
    Client::of(&broker).create_topic("t", 1, &[]);
    let mut first = Raw::connect(&broker).named("first");
    set(&mut first, &[("client-id", None)], &[("producer_byte_rate", Some(1e12))]);
    first.produce("t", 0, 1, batch_of(100));
    assert_eq!(limit_hits(&broker, "quota_clients"), 0.0);
    let mut second = Raw::connect(&broker).named("second");
    second.produce("t", 0, 1, batch_of(100));
    assert_eq!(limit_hits(&broker, "quota_clients"), 1.0);
}

/// Sends records of 5,000 bytes to all partitions as fast as it may, as four processes would, and tells what had come
/// at each of these times.
pub(super) fn produced_at<const N: usize>(
    client: &Client,
    topic: &str,
    partitions: i32,
    times: [Duration; N],
) -> [f64; N] {
    const RECORD_BYTES: usize = 5_000;
    let settings = [
        ("client.id", "fast"),
        ("batch.size", "16384"),
        ("linger.ms", "5"),
        ("queue.buffering.max.kbytes", "4096"),
    ];
    let producers: Vec<ThreadedProducer<DefaultProducerContext>> =
        (0..4).map(|_| client.config(&settings).create().expect("a producer")).collect();
    let begun = Instant::now();
    let payload = vec![7; RECORD_BYTES];
    let mut next = 0;
    let mut fill = |until: Duration| {
        while begun.elapsed() < until {
            let mut is_full = true;
            for producer in &producers {
                next = (next + 1) % partitions;
                let record = BaseRecord::<(), _>::to(topic).payload(&payload).partition(next);
                is_full &= producer.send(record).is_err();
            }
            if is_full {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    };
    let bytes = times.map(|time| {
        fill(time);
        let records: i64 = client.all_offsets(topic, partitions).iter().map(|(_, end)| end).sum();
        records as f64 * RECORD_BYTES as f64
    });
    // What is queued is of no interest.
    for producer in &producers {
        producer.purge(rdkafka::producer::PurgeConfig::default().queue().inflight());
    }
    bytes
}

#[test]
fn a_producer_gets_its_rate_on_one_shard_and_on_eight() {
    const LIMIT: f64 = 1_000_000.0;
    std::thread::scope(|scope| {
        for shards in [1, 8] {
            scope.spawn(move || {
                let broker = Broker::with(shards, &[]);
                let client = Client::of(&broker);
                client.create_topic("paced", 8, &[]);
                let mut other = Raw::connect(&broker).named("other");
                set(&mut other, &[("client-id", None)], &[("producer_byte_rate", Some(LIMIT))]);
                set(&mut other, &[("client-id", Some("other"))], &[("producer_byte_rate", Some(1e12))]);
                let seconds = Duration::from_secs;
                // What was not used in the windows before comes in a burst, and again when that has left them, after
                // twelve seconds: the looks are between two of them.
                let [first, second] = produced_at(&client, "paced", 8, [seconds(11), seconds(23)]);
                let rates = [first / 11.0, (second - first) / 12.0];
                assert!((0.9 * LIMIT..1.1 * LIMIT).contains(&rates[1]), "{shards} shards: {rates:?}");
                // While the first windows fill, those that have waited come a little too soon, by Kafka's formula.
                assert!((0.9 * LIMIT..1.25 * LIMIT).contains(&rates[0]), "{shards} shards: {rates:?}");
                let answer = other.call(PRODUCE, &produce("paced", 0, 1, batch_of(100_000)));
                assert_eq!(answer.throttle_time_ms, 0);
                if !Broker::is_kafka() {
                    let throttled = metric(&broker, "kuring_throttled_producer_byte_rate_total");
                    let labels = [("api", "Produce"), ("phase", "throttle")];
                    let told = metric_with(&broker, "kuring_request_phase_seconds_count", &labels);
                    assert!(throttled > 0 && told > 0, "{told} of {throttled}");
                }
            });
        }
    });
}

#[test]
fn a_consumer_gets_its_rate() {
    const LIMIT: f64 = 1_000_000.0;
    let broker = Broker::with(2, &QUICK);
    let client = Client::of(&broker);
    client.create_topic("paced", 4, &[]);
    let producer = client.producer(&[("batch.size", "65536")]);
    for _ in 0..40 {
        let records: Vec<Send> = (0..100).map(|n| Send::value(vec![9; 5_000]).to(n % 4)).collect();
        client.send(&producer, "paced", &records);
    }
    let mut other = Raw::connect(&broker).named("other");
    set(&mut other, &[("user", Some("ANONYMOUS"))], &[("consumer_byte_rate", Some(LIMIT))]);
    let settings = [("fetch.message.max.bytes", "65536"), ("fetch.wait.max.ms", "100")];
    let consumer = client.consumer(&settings);
    let mut list = rdkafka::TopicPartitionList::new();
    (0..4).for_each(|partition| {
        list.add_partition_offset("paced", partition, rdkafka::Offset::Beginning).expect("an offset");
    });
    consumer.assign(&list).expect("assigned");
    let mut begun = None;
    let mut bytes = 0;
    while begun.is_none_or(|begun: Instant| begun.elapsed() < Duration::from_secs(12)) {
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                begun.get_or_insert_with(Instant::now);
                bytes += message.payload_len();
            }
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }
    let rate = bytes as f64 / 12.0;
    assert!((0.85 * LIMIT..1.15 * LIMIT).contains(&rate), "{rate}");
}
