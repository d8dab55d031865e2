//! Describing and changing topic and broker configs, as a client sees it. The expected rows and texts were
//! taken from a real Apache Kafka 4.4.0.

use super::*;

fn config(text: &str) -> BrokerConfig {
    let text = format!("node.id=1\nlog.dirs=/data\n{text}");
    BrokerConfig::load(Some(Source { path: "f", text: &text }), &[]).unwrap().config
}

fn map(pairs: &[(&str, &str)]) -> Overrides {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A row in the shape `value source read-only [synonym=value:source, …]`.
fn show(rows: Vec<Row>) -> String {
    let row = rows.into_iter().next().expect("a row");
    let synonyms: Vec<_> = row
        .synonyms
        .iter()
        .map(|one| format!("{}={}:{}", one.name, one.value, one.source.wire_id()))
        .collect();
    format!("{:?} {} {} [{}]", row.value, row.source.wire_id(), row.read_only, synonyms.join(", "))
}

fn topic_row(config: &BrokerConfig, topic: &Overrides, cluster: &Overrides, name: &str) -> String {
    let none = Overrides::new();
    show(config.levels(&none, cluster).describe_topic(topic, |other| other == name))
}

fn broker_row(config: &BrokerConfig, broker: &Overrides, cluster: &Overrides, name: &str) -> String {
    show(config.levels(broker, cluster).describe_broker(|other| other == name))
}

#[test]
fn a_topic_row_tells_its_value_source_and_synonyms() {
    let (config, none) = (config(""), Overrides::new());
    assert_eq!(
        topic_row(&config, &none, &none, "max.message.bytes"),
        "Some(\"1048588\") 5 false [message.max.bytes=1048588:5]"
    );
    assert_eq!(topic_row(&config, &none, &none, "retention.ms"), "Some(\"604800000\") 5 false []");
    assert_eq!(
        topic_row(&config, &map(&[("retention.ms", " 77 ")]), &none, "retention.ms"),
        "Some(\"77\") 1 false [retention.ms=77:1]"
    );
    assert_eq!(
        topic_row(&config, &map(&[("cleanup.policy", "delete,compact")]), &none, "cleanup.policy"),
        "Some(\"delete,compact\") 1 false [cleanup.policy=delete,compact:1, log.cleanup.policy=delete:5]"
    );
    assert_eq!(
        topic_row(&config, &none, &map(&[("message.max.bytes", "7")]), "max.message.bytes"),
        "Some(\"7\") 3 false [message.max.bytes=7:3, message.max.bytes=1048588:5]"
    );
}

#[test]
fn a_broker_row_tells_its_value_source_and_synonyms() {
    let (config, none) = (config("message.max.bytes=9"), Overrides::new());
    assert_eq!(
        broker_row(
            &config,
            &map(&[("message.max.bytes", "7")]),
            &map(&[("message.max.bytes", "8")]),
            "message.max.bytes"
        ),
        "Some(\"7\") 2 false [message.max.bytes=7:2, message.max.bytes=8:3, message.max.bytes=9:4, \
         message.max.bytes=1048588:5]"
    );
    assert_eq!(broker_row(&config, &none, &none, "log.retention.ms"), "None 5 false []");
    assert_eq!(
        broker_row(&config, &none, &none, "log.retention.hours"),
        "Some(\"168\") 5 true [log.retention.hours=168:5]"
    );
    assert_eq!(broker_row(&config, &none, &none, "node.id"), "Some(\"1\") 4 true [node.id=1:4]");
    assert_eq!(
        broker_row(&config, &none, &none, "broker.id"),
        "Some(\"1\") 4 true [broker.id=1:4, broker.id=-1:5]"
    );
    assert_eq!(broker_row(&config, &none, &none, "advertised.listeners"), "None 5 true []");
}

#[test]
fn the_cluster_row_holds_only_what_is_set_there() {
    let (config, none, cluster) = (config(""), Overrides::new(), map(&[("log.retention.ms", "50")]));
    let levels = config.levels(&none, &cluster);
    let rows = levels.describe_cluster(|_| true);
    assert_eq!(rows.len(), 1);
    assert_eq!(show(rows), "Some(\"50\") 3 false [log.retention.ms=50:3]");
    assert_eq!(
        broker_row(&config, &none, &cluster, "log.retention.ms"),
        "Some(\"50\") 3 false [log.retention.ms=50:3, log.retention.hours=168:5]"
    );
}

#[test]
fn internal_configs_are_not_shown() {
    let (config, none) = (config(""), Overrides::new());
    let levels = config.levels(&none, &none);
    assert!(levels.describe_broker(|name| name == "log.initial.task.delay.ms").is_empty());
    assert_eq!(levels.describe_topic(&none, |_| true).len(), 37);
}

fn step(name: &str, operation: Operation, value: Option<&str>) -> Alteration {
    Alteration { name: name.to_owned(), operation, value: value.map(str::to_owned) }
}

fn alter(scope: Scope, current: &[(&str, &str)], steps: &[Alteration]) -> Result<Overrides, String> {
    scope.alter(&map(current), steps).map_err(|error| match error {
        AlterError::InvalidConfig(text) => format!("INVALID_CONFIG {text}"),
        AlterError::InvalidRequest(text) => format!("INVALID_REQUEST {text}"),
    })
}

fn set(name: &str, value: &str) -> Alteration {
    step(name, Operation::Set, Some(value))
}

#[test]
fn append_and_subtract_work_on_the_override_or_the_default() {
    let policy = |current: &[(&str, &str)], operation, value| {
        let step = step("cleanup.policy", operation, Some(value));
        alter(Scope::Topic, current, &[step]).unwrap()["cleanup.policy"].clone()
    };
    assert_eq!(policy(&[], Operation::Append, "compact"), "delete,compact");
    assert_eq!(
        policy(&[("cleanup.policy", "delete,compact")], Operation::Append, "compact,delete"),
        "delete,compact"
    );
    assert_eq!(policy(&[("cleanup.policy", "delete,compact")], Operation::Subtract, "delete"), "compact");
    assert_eq!(policy(&[("cleanup.policy", "compact")], Operation::Subtract, "compact"), "");
    assert_eq!(policy(&[], Operation::Subtract, "nothere"), "delete");
}

#[test]
fn delete_returns_to_the_default_and_minds_no_name() {
    let after = alter(
        Scope::Topic,
        &[("retention.ms", "5")],
        &[step("retention.ms", Operation::Delete, None), step("nope", Operation::Delete, None)],
    );
    assert_eq!(after, Ok(Overrides::new()));
    assert_eq!(
        alter(Scope::Broker, &[], &[step("num.partitions", Operation::Delete, None)]),
        Ok(Overrides::new())
    );
}

#[test]
fn a_refused_topic_change_has_kafkas_code_and_words() {
    let refused = |steps: &[Alteration]| alter(Scope::Topic, &[], steps).unwrap_err();
    assert_eq!(
        refused(&[set("retention.ms", "abc")]),
        "INVALID_CONFIG Invalid value abc for configuration retention.ms: Not a number of type LONG"
    );
    assert_eq!(refused(&[set("nope", "1")]), "INVALID_CONFIG Unknown topic config name: nope");
    assert_eq!(
        refused(&[step("retention.ms", Operation::Append, Some("1"))]),
        "INVALID_CONFIG Can't APPEND to key retention.ms because its type is not LIST."
    );
    assert_eq!(
        refused(&[step("retention.ms", Operation::Set, None)]),
        "INVALID_REQUEST Null value not supported for : retention.ms"
    );
    assert_eq!(
        refused(&[set("retention.ms", "1"), set("retention.ms", "2")]),
        "INVALID_REQUEST Error due to duplicate config keys"
    );
    assert_eq!(
        refused(&[set("min.compaction.lag.ms", "10"), set("max.compaction.lag.ms", "5")]),
        "INVALID_CONFIG conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"
    );
    assert_eq!(
        refused(&[set("remote.storage.enable", "true")]),
        "INVALID_CONFIG Tiered Storage functionality is disabled in the broker. Topic cannot be configured \
         with remote log storage."
    );
}

#[test]
fn a_refused_broker_change_has_kafkas_code_and_words() {
    let refused = |steps: &[Alteration]| alter(Scope::Broker, &[], steps).unwrap_err();
    assert_eq!(
        refused(&[set("node.id", "0"), set("num.partitions", "1")]),
        "INVALID_REQUEST Cannot update these configs dynamically: [node.id, num.partitions]"
    );
    assert_eq!(
        refused(&[set("log.retention.ms", "abc")]),
        "INVALID_REQUEST Invalid value abc for configuration log.retention.ms: Not a number of type LONG"
    );
    assert_eq!(
        refused(&[set("max.connections", "-5")]),
        "INVALID_REQUEST Invalid value -5 for configuration max.connections: Value must be at least 0"
    );
    assert_eq!(
        refused(&[step("log.retention.ms", Operation::Append, Some("1"))]),
        "INVALID_CONFIG Config value append is not allowed for config key: log.retention.ms"
    );
    assert_eq!(
        refused(&[set("log.roll.ms", "0")]),
        "INVALID_REQUEST requirement failed: log.roll.ms must be greater than or equal to 1"
    );
}

#[test]
fn what_has_no_effect_cannot_be_changed_while_the_broker_runs() {
    for name in ["num.io.threads", "listeners", "ssl.keystore.location", "nope"] {
        let refused = alter(Scope::Broker, &[], &[set(name, "1")]).unwrap_err();
        assert_eq!(refused, format!("INVALID_REQUEST Cannot update these configs dynamically: [{name}]"));
    }
}

#[test]
fn alter_configs_replaces_all_overrides() {
    let given = [("retention.ms".to_owned(), Some("9".to_owned()))];
    assert_eq!(Scope::Topic.replace(&given), Ok(map(&[("retention.ms", "9")])));
    assert_eq!(Scope::Topic.replace(&[]), Ok(Overrides::new()));
    assert!(Scope::Topic.replace(&[("retention.ms".to_owned(), None)]).is_err());
}

#[test]
fn every_dynamic_broker_config_changes_what_it_is_for() {
    let (config, none) = (config(""), Overrides::new());
    let before = config.levels(&none, &none);
    let samples = [
        ("compression.type", "zstd"),
        ("compression.gzip.level", "5"),
        ("compression.lz4.level", "5"),
        ("compression.zstd.level", "5"),
        ("log.cleanup.policy", "compact"),
        ("log.message.timestamp.type", "LogAppendTime"),
        ("log.cleaner.min.cleanable.ratio", "0.1"),
        ("log.cleaner.io.buffer.load.factor", "0.5"),
        ("unclean.leader.election.enable", "true"),
        ("log.preallocate", "true"),
        ("max.connections.per.ip.overrides", "127.0.0.1:3"),
    ];
    for definition in super::table::broker_properties().filter(|one| one.update == Update::ClusterWide) {
        let sample =
            samples.iter().find(|(name, _)| *name == definition.name).map_or("2097152", |(_, value)| value);
        let changed = map(&[(definition.name, sample)]);
        assert_eq!(Scope::Broker.validate(&changed), Ok(()), "{}", definition.name);
        let mut topic = Overrides::new();
        if let Some(codec) =
            definition.name.strip_prefix("compression.").and_then(|name| name.strip_suffix(".level"))
        {
            topic.insert("compression.type".to_owned(), codec.to_owned());
        }
        let after = config.levels(&none, &changed);
        let differs = before.log_config(&topic) != after.log_config(&topic)
            || before.connection_limits() != after.connection_limits()
            || before.cleaner() != after.cleaner()
            || before.move_bytes_per_second() != after.move_bytes_per_second()
            || before.leader_bytes_per_second() != after.leader_bytes_per_second()
            || before.follower_bytes_per_second() != after.follower_bytes_per_second();
        assert!(differs, "{}", definition.name);
    }
}

#[test]
fn every_topic_config_changes_what_it_is_for() {
    let (config, none) = (config(""), Overrides::new());
    let levels = config.levels(&none, &none);
    assert_eq!(levels.log_config(&none), LogConfig::default());
    let topic = map(&[("internal.segment.bytes", "100"), ("segment.bytes", "2097152")]);
    assert_eq!(levels.log_config(&topic).segment_bytes, 100);
    let both = levels.log_config(&map(&[("cleanup.policy", "compact,delete")])).cleanup_policy;
    assert_eq!(both, CleanupPolicy { delete: true, compact: true });
    let neither = levels.log_config(&map(&[("cleanup.policy", "")])).cleanup_policy;
    assert_eq!(neither, CleanupPolicy { delete: false, compact: false });
}
