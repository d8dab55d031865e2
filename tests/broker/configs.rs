//! The broker's own settings: those that change while it runs and have their effect at once, and those that keep it
//! from starting.

use std::time::Duration;

use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::{ApiVersionsRequest, IncrementalAlterConfigsRequest};
use kafka_protocol::protocol::StrBytes;
use rdkafka::error::RDKafkaErrorCode;

use crate::harness::broker::kuring;
use crate::harness::client::{Client, Send};
use crate::harness::raw::{Answer, Raw};
use crate::harness::{Broker, PATIENCE, eventually, shard_counts};

const BROKER: i8 = 4;
const INVALID_REQUEST: i16 = 42;

/// Sets a config of the broker of this name, or of all of them; `None` takes the value away. The error code.
fn set(raw: &mut Raw, broker: &'static str, name: &'static str, value: Option<&str>) -> i16 {
    let config = AlterableConfig::default()
        .with_name(StrBytes::from_static_str(name))
        .with_config_operation(i8::from(value.is_none()))
        .with_value(value.map(|value| StrBytes::from_string(value.to_string())));
    let resource = AlterConfigsResource::default()
        .with_resource_type(BROKER)
        .with_resource_name(StrBytes::from_static_str(broker))
        .with_configs(vec![config]);
    let response = raw.call(1, &IncrementalAlterConfigsRequest::default().with_resources(vec![resource]));
    response.responses[0].error_code
}

#[test]
fn a_default_of_topics_changes_under_a_topic_that_is_there() {
    for shards in shard_counts([1, 3]) {
        let broker = Broker::with(shards, &[]);
        let client = Client::of(&broker);
        client.create_topic("sized", 1, &[]);
        let mut raw = Raw::connect(&broker);
        let producer = client.producer(&[]);
        let fits = |wanted: bool| {
            eventually(&format!("a record of 3,000 bytes fits: {wanted}"), || {
                let sent = client.try_send(&producer, "sized", &[Send::value(vec![0; 3_000])]).remove(0);
                let result = sent.map_err(|error| error.rdkafka_error_code());
                match wanted {
                    true => result.is_ok().then_some(()),
                    false => {
                        (result.err() == Some(Some(RDKafkaErrorCode::MessageSizeTooLarge))).then_some(())
                    }
                }
            });
        };
        fits(true);
        assert_eq!(set(&mut raw, "", "message.max.bytes", Some("2000")), 0);
        fits(false);
        // The broker's own value wins over the default of all brokers.
        assert_eq!(set(&mut raw, "1", "message.max.bytes", Some("5000")), 0);
        fits(true);
        assert_eq!(set(&mut raw, "1", "message.max.bytes", None), 0);
        fits(false);
        assert_eq!(set(&mut raw, "", "message.max.bytes", None), 0);
        fits(true);
    }
}

#[test]
fn a_limit_of_connections_holds_for_those_to_come() {
    let broker = Broker::start();
    let mut kept: Vec<Raw> = (0..3).map(|_| Raw::connect(&broker)).collect();
    let works = |raw: &mut Raw| {
        raw.send(0, &ApiVersionsRequest::default());
        matches!(raw.answer(PATIENCE), Answer::Frame(_))
    };
    assert!(kept.iter_mut().all(works));
    assert_eq!(set(&mut kept[0], "1", "max.connections.per.ip", Some("3")), 0);
    assert!(!works(&mut Raw::connect(&broker)));
    assert!(kept.iter_mut().all(works), "those that are there stay");
    assert_eq!(set(&mut kept[0], "1", "max.connections.per.ip", None), 0);
    assert!(works(&mut Raw::connect(&broker)));
    for name in ["max.connections", "listener.name.plaintext.max.connections"] {
        assert_eq!(set(&mut kept[0], "1", name, Some("3")), 0, "{name}");
        let mut waiting = Raw::connect(&broker);
        waiting.send(0, &ApiVersionsRequest::default());
        assert_eq!(waiting.answer(Duration::from_millis(200)), Answer::Silence, "{name}");
        assert!(kept.iter_mut().all(works), "{name}: those that are there stay");
        assert_eq!(set(&mut kept[0], "1", name, None), 0);
        assert!(matches!(waiting.answer(PATIENCE), Answer::Frame(_)), "{name}");
    }
    assert_eq!(set(&mut kept[0], "1", "max.connections.per.ip.overrides", Some("127.0.0.1:3")), 0);
    assert!(!works(&mut Raw::connect(&broker)));
    assert_eq!(set(&mut kept[0], "1", "max.connections.per.ip.overrides", None), 0);
    assert!(works(&mut Raw::connect(&broker)));
}

#[test]
fn a_shorter_retention_takes_old_records_away() {
    let broker =
        Broker::with(2, &[("log.retention.check.interval.ms", "100"), ("log.initial.task.delay.ms", "0")]);
    let client = Client::of(&broker);
    client.create_topic("old", 1, &[]);
    let producer = client.producer(&[]);
    client.send(&producer, "old", &[Send::value("a"), Send::value("b")]);
    assert_eq!(client.offsets("old", 0), (0, 2));
    let mut raw = Raw::connect(&broker);
    assert_eq!(set(&mut raw, "", "log.retention.ms", Some("1")), 0);
    eventually("the records are gone", || (client.offsets("old", 0) == (2, 2)).then_some(()));
}

#[test]
fn what_is_fixed_while_the_broker_runs_cannot_be_changed() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    for name in ["num.partitions", "node.id", "log.dirs"] {
        assert_eq!(set(&mut raw, "1", name, Some("5")), INVALID_REQUEST, "{name}");
    }
    assert_eq!(set(&mut raw, "1", "max.connections", Some("-5")), INVALID_REQUEST);
    assert_eq!(set(&mut raw, "2", "log.retention.ms", Some("5")), INVALID_REQUEST, "another broker's");
}

/// What `kuring serve` says about a file with these lines when it does not start.
fn refusal(lines: &str) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("server.properties");
    std::fs::write(&path, lines).expect("written");
    let (status, output, error) = kuring(&["serve", "--config", path.to_str().expect("text")], &[], b"");
    assert_eq!(status.code(), Some(1), "{error}");
    assert!(output.is_empty(), "no ready line");
    error
}

#[test]
fn a_file_that_cannot_be_followed_stops_the_start_and_says_where() {
    let wrong = refusal("node.id=1\nlog.dirs=/tmp/none\nnum.partitions=many\n");
    assert!(
        wrong.contains("server.properties:3: num.partitions = \"many\": wanted: a whole number"),
        "{wrong}"
    );
    for open in [
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "listeners=SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location=/etc/keystore",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        "kuring.durabilty=fsync",
    ] {
        let refused = refusal(&format!("node.id=1\nlog.dirs=/tmp/none\n{open}\n"));
        let name = open.split('=').next().expect("a name");
        assert!(refused.contains("server.properties:3: ") && refused.contains(name), "{refused}");
    }
}

#[test]
fn a_property_that_kuring_lacks_is_named_in_one_warning() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(2, &[("num.io.threads", "8"), ("example.reporter.topic", "x")]);
    let log = broker.log();
    for name in ["num.io.threads", "example.reporter.topic"] {
        let lines = log.lines().filter(|line| line.contains("WARN") && line.contains(name));
        assert_eq!(lines.count(), 1, "{name}: {log}");
    }
}
