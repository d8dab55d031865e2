//! What a file and the command line make of a broker.

use super::*;
use crate::config::{ListenerLimits, PeerSecurity};

/// The least that a file must say.
const LEAST: &str = "node.id=7\nlog.dirs=/data\n";

fn load(text: &str) -> Result<Loaded, ConfigError> {
    BrokerConfig::load(Some(Source { path: "server.properties", text: &format!("{LEAST}{text}") }), &[])
}

fn config(text: &str) -> BrokerConfig {
    load(text).unwrap().config
}

fn warnings(text: &str) -> Vec<String> {
    load(text).unwrap().warnings
}

fn refusal(text: &str) -> String {
    match load(text) {
        Ok(_) => "none".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn without_a_file_the_broker_fits_a_laptop() {
    let Loaded { config, warnings } = BrokerConfig::load(None, &[]).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(config.node_id.0, 1);
    assert_eq!(config.log_dirs, [std::path::PathBuf::from("./kuring-data")]);
    assert_eq!((config.listeners[0].host.as_str(), config.listeners[0].port), ("127.0.0.1", 9092));
    assert_eq!(config.groups.offsets_topic_replication_factor, 1);
    assert_eq!(config.log.min_insync_replicas, 1);
    assert!(config.auto_create_topics);
    assert_eq!(config.durability, Durability::PageCache);
    let others = [
        ("controller.quorum.voters", "1@127.0.0.1:9093,2@127.0.0.1:9094"),
        ("listeners", "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"),
        ("controller.listener.names", "CONTROLLER"),
        ("transaction.state.log.min.isr", "1"),
    ];
    let others = others.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = BrokerConfig::load(None, &others).unwrap().config;
    assert_eq!(config.groups.offsets_topic_replication_factor, 3, "among others it has Kafka's defaults");
    assert_eq!(config.settings.number::<i64>("transaction.state.log.min.isr"), 1, "what was said holds");
}

#[test]
fn with_a_file_kafkas_defaults_hold() {
    let config = config("");
    assert_eq!(config.groups.offsets_topic_replication_factor, 3);
    assert_eq!((config.listeners[0].host.as_str(), config.listeners[0].port), ("", 9092));
    assert_eq!(config.log, LogConfig::default());
    assert_eq!(config.socket_request_bytes_max, 104_857_600);
    assert_eq!(config.serving_limits.idle_time_max, Some(std::time::Duration::from_secs(600)));
    assert_eq!(config.groups.offsets_retention_ms, 7 * 24 * 3_600_000);
}

#[test]
fn the_admin_listener_knows_whether_anyone_asked_for_it() {
    let of = |text: &str| config(text).admin_listener.map(|at| (at.host, at.port, at.is_given));
    assert_eq!(of(""), Some(("127.0.0.1".to_owned(), 9644, false)));
    assert_eq!(of("kuring.admin.listener=[::1]:0"), Some(("::1".to_owned(), 0, true)));
    assert_eq!(of("kuring.admin.listener="), None);
    assert!(refusal("kuring.admin.listener=9644").ends_with("or nothing for none"));
}

#[test]
fn the_command_line_wins_over_the_file() {
    let overrides = [("num.partitions".to_owned(), "4".to_owned())];
    let source = Source { path: "f", text: "node.id=1\nlog.dirs=d\nnum.partitions=2" };
    assert_eq!(BrokerConfig::load(Some(source), &overrides).unwrap().config.num_partitions, 4);
    let wrong = [("num.partitions".to_owned(), "0".to_owned())];
    let error = BrokerConfig::load(Some(source), &wrong).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--set: num.partitions = \"0\": wanted: a whole number from 1 to 2147483647"
    );
}

#[test]
fn a_wrong_value_names_file_line_property_and_what_is_wanted() {
    assert_eq!(
        refusal("\n# more\nnum.partitions = many"),
        "server.properties:5: num.partitions = \"many\": wanted: a whole number from 1 to 2147483647"
    );
    assert!(
        refusal("compression.type=brotli")
            .ends_with("wanted: one of: uncompressed, zstd, lz4, snappy, gzip, producer")
    );
    assert!(refusal("auto.create.topics.enable=yes").ends_with("wanted: true or false"));
    assert!(refusal("kuring.durability=often").ends_with("wanted: one of: page-cache, fsync"));
    assert!(refusal("a=\\u12").starts_with("server.properties:3: "));
}

#[test]
fn a_property_that_kuring_lacks_gets_one_warning() {
    assert_eq!(
        warnings("num.io.threads=8\nfoo.bar=1"),
        [
            "server.properties:4: foo.bar is ignored: kuring does not know this property",
            "server.properties:3: num.io.threads is ignored: kuring has no such thread pool: kuring.shards \
             and kuring.file.threads take their place",
        ]
    );
}

#[test]
fn a_property_given_twice_gets_a_warning_and_the_last_counts() {
    let loaded = load("num.partitions=2\nnum.partitions=3").unwrap();
    assert_eq!(loaded.config.num_partitions, 3);
    assert_eq!(
        loaded.warnings,
        ["server.properties:4: num.partitions was already set in line 3; this one counts"]
    );
}

#[test]
fn what_would_leave_the_broker_open_stops_the_start() {
    for text in [
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "ssl.keystore.location=/etc/ks",
        "sasl.enabled.mechanisms=PLAIN",
        "super.users=User:admin",
        "listeners=SASL_SSL://:9092",
        "listeners=X://:9092\nlistener.security.protocol.map=X:SSL",
        "security.inter.broker.protocol=SSL",
        "listener.name.x.ssl.client.auth=required",
        "create.topic.policy.class.name=a.B",
        "remote.log.storage.system.enable=true",
        "kuring.durabilty=fsync",
    ] {
        assert!(refusal(text).starts_with("server.properties:"), "{text}: {}", refusal(text));
    }
}

#[test]
fn the_same_properties_with_values_that_ask_for_nothing_pass() {
    let text = "authorizer.class.name=\nallow.everyone.if.no.acl.found=true\nconnections.max.reauth.ms=0\n\
                security.inter.broker.protocol=PLAINTEXT\nremote.log.storage.system.enable=false";
    assert_eq!(warnings(text), Vec::<String>::new());
}

#[test]
fn a_password_is_not_shown() {
    let text = refusal("ssl.keystore.password=hunter2");
    assert!(text.contains("[hidden]") && !text.contains("hunter2"), "{text}");
}

#[test]
fn the_node_needs_a_number() {
    let error = BrokerConfig::load(Some(Source { path: "f", text: "log.dirs=d" }), &[]).unwrap_err();
    assert_eq!(error.to_string(), "configuration: node.id: missing; wanted: the number of this node, from 0");
    let old = BrokerConfig::load(Some(Source { path: "f", text: "broker.id=3" }), &[]).unwrap();
    assert_eq!(old.config.node_id.0, 3);
    assert!(refusal("broker.id=3").contains("differs from node.id"));
}

#[test]
fn a_single_node_kraft_file_is_taken_as_it_is() {
    let config = config(
        "process.roles=broker,controller\nlisteners=PLAINTEXT://:9092,CONTROLLER://:9093\n\
         inter.broker.listener.name=PLAINTEXT\nadvertised.listeners=PLAINTEXT://localhost:9092\n\
         controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=localhost:9093\n\
         listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL\n",
    );
    assert_eq!(config.listeners.len(), 1);
    assert_eq!(config.controller_listeners.len(), 1);
}

#[test]
fn a_node_among_others_must_be_one_of_them() {
    assert!(refusal("controller.quorum.voters=8@b:9093").contains("8@b:9093 is not this node, 7"));
    assert!(
        refusal("controller.quorum.voters=8@b:9093,9@c:9093").contains("this node, 7, is not among them")
    );
    assert!(refusal("process.roles=broker").contains("a broker alone needs controllers"));
    assert!(refusal("process.roles=").contains("process.roles"));
}

#[test]
fn named_listeners_have_endpoints_of_their_own() {
    let config = config(
        "listeners=IN://127.0.0.1:9092,OUT://0.0.0.0:9094\n\
         advertised.listeners=IN://10.0.0.1:9092,OUT://kafka.example:9094\n\
         listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT\ninter.broker.listener.name=IN",
    );
    let out = config.listener(&ListenerName::new("out")).unwrap();
    assert_eq!(
        out.advertised_endpoint(9094, "box"),
        Some(Endpoint { host: "kafka.example".into(), port: 9094 })
    );
    assert_eq!(config.inter_broker_listener.as_str(), "IN");
}

#[test]
fn retention_is_read_in_its_most_precise_unit() {
    assert_eq!(config("log.retention.hours=2").log.retention_ms, 2 * 3_600_000);
    assert_eq!(config("log.retention.hours=2\nlog.retention.minutes=3").log.retention_ms, 180_000);
    assert_eq!(config("log.retention.hours=2\nlog.retention.ms=5").log.retention_ms, 5);
    assert_eq!(config("log.retention.hours=-1").log.retention_ms, -1);
    assert!(refusal("log.retention.hours=0").contains("from 1, or -1"));
    assert_eq!(config("log.roll.hours=1").log.segment_ms, 3_600_000);
    assert_eq!(config("log.flush.scheduler.interval.ms=50").log.flush_ms, 50);
}

#[test]
fn limits_per_address_are_read() {
    let limits = config("max.connections.per.ip.overrides=127.0.0.1:5, [::1]:6").connection_limits;
    assert_eq!(limits.of("127.0.0.1".parse().unwrap()), 5);
    assert_eq!(limits.of("::1".parse().unwrap()), 6);
    assert_eq!(limits.of("10.0.0.1".parse().unwrap()), i32::MAX as u32);
    assert!(refusal("max.connections.per.ip.overrides=a:5").contains("address:count"));
    assert!(refusal("max.connections.per.ip=0").contains("shuts everyone out"));
}

#[test]
fn limits_of_one_listener_are_read_and_the_brokers_dynamic_ones_win() {
    let config = config(
        "listener.name.plaintext.max.connections=5\nlistener.name.plaintext.max.connection.creation.rate=7",
    );
    let name = ListenerName::new("PLAINTEXT");
    let limits = config.connection_limits.of_listener(&name);
    assert_eq!((limits.total, limits.creation_per_second), (5, 7));
    assert_eq!(config.connection_limits.of_listener(&ListenerName::new("x")), ListenerLimits::NONE);
    let none = Overrides::new();
    let broker = Overrides::from([("listener.name.plaintext.max.connections".to_owned(), "9".to_owned())]);
    assert_eq!(config.levels(&broker, &none).connection_limits().of_listener(&name).total, 9);
    assert!(refusal("listener.name.a.max.connections=-1").contains("listener.name.a.max.connections"));
}

#[test]
fn the_bytes_of_all_queued_requests_are_shared_out_to_the_shards() {
    let limits = config("queued.max.request.bytes=104857600").serving_limits;
    assert_eq!(limits.receive_bytes(4), 26_214_400);
    assert_eq!(config("").serving_limits.receive_bytes(4), 134_217_728);
    assert!(refusal("queued.max.request.bytes=1000").contains("socket.request.max.bytes"));
}

#[test]
fn cores_are_read_as_a_list_of_ranges() {
    assert_eq!(config("kuring.cpus=0-2,5").cpus, Some(vec![0, 1, 2, 5]));
    assert_eq!(config("").cpus, None);
    assert!(refusal("kuring.cpus=3-1").contains("as in 0-3,8"));
}

#[test]
fn without_log_dirs_the_default_place_is_warned_about() {
    let loaded = BrokerConfig::load(Some(Source { path: "f", text: "node.id=1" }), &[]).unwrap();
    assert_eq!(loaded.config.log_dirs, [std::path::PathBuf::from("/tmp/kafka-logs")]);
    assert!(loaded.warnings[0].contains("/tmp/kafka-logs"));
}

#[test]
fn dynamic_values_win_over_the_file_and_a_topics_own_over_all() {
    let config = config("log.retention.ms=1\nmessage.max.bytes=100\nmax.connections=5");
    let map = |name: &str, value: &str| Overrides::from([(name.to_owned(), value.to_owned())]);
    let (none, cluster, broker) =
        (Overrides::new(), map("log.retention.ms", "2"), map("log.retention.ms", "3"));
    let topic = map("retention.ms", "4");
    assert_eq!(config.levels(&none, &none).log_config(&none).retention_ms, 1);
    assert_eq!(config.levels(&none, &cluster).log_config(&none).retention_ms, 2);
    assert_eq!(config.levels(&broker, &cluster).log_config(&none).retention_ms, 3);
    assert_eq!(config.levels(&broker, &cluster).log_config(&topic).retention_ms, 4);
    assert_eq!(config.levels(&none, &none).log_config(&none).max_message_bytes, 100);
    assert_eq!(config.levels(&none, &map("max.connections", "9")).connection_limits().total, 9);
}

/// The files for people in the folder `config`.
fn shipped(name: &str) -> Result<Loaded, ConfigError> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    BrokerConfig::load(Some(Source { path: name, text: &text }), &[])
}

#[test]
fn the_shipped_files_load_without_a_warning() {
    for name in ["laptop.properties", "production.properties"] {
        assert_eq!(shipped(name).unwrap().warnings, Vec::<String>::new(), "{name}");
    }
    let production = shipped("production.properties").unwrap().config;
    assert_eq!(production.durability, Durability::Fsync);
    assert_eq!(production.listeners.len(), 2);
    assert_eq!(production.socket_send_buffer_bytes, None);
}

#[test]
fn the_cluster_file_is_that_of_one_of_three() {
    let loaded = shipped("cluster.properties").unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    let cluster = loaded.config.cluster.unwrap();
    assert_eq!(cluster.voters.len(), 3);
    assert_eq!(cluster.security, PeerSecurity::SecretFile("/etc/kuring/peers".into()));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config/cluster.properties");
    let text = std::fs::read_to_string(path).unwrap();
    let alone = [("controller.quorum.voters".to_owned(), "1@kafka1.internal:9093".to_owned())];
    let loaded = BrokerConfig::load(Some(Source { path: "f", text: &text }), &alone).unwrap();
    let [warning] = &loaded.warnings[..] else { panic!("{:?}", loaded.warnings) };
    assert!(warning.contains("kuring.peers.secret.file is ignored"), "{warning}");
}

#[test]
fn the_seccomp_rules_name_what_a_default_profile_may_lack() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config/seccomp-io_uring.json");
    let rules: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let rules = rules["syscalls"].as_array().unwrap();
    assert!(rules.iter().all(|rule| rule["action"] == "SCMP_ACT_ALLOW"));
    let names: Vec<&str> = rules
        .iter()
        .flat_map(|rule| rule["names"].as_array().unwrap())
        .map(|name| name.as_str().unwrap())
        .collect();
    for call in ["io_uring_setup", "io_uring_enter", "io_uring_register", "cachestat", "sync_file_range"] {
        assert!(names.contains(&call), "{call}");
    }
}

/// Those of the files of `config/` and of `docs/`, each with what it has.
fn documents() -> Vec<(String, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = ["docs", "config"].map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
    let paths = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.is_file());
    files.map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn kurings_own_properties_are_documented_and_no_other_is() {
    let documents = documents();
    let own: Vec<_> =
        super::table::broker_properties().filter(|one| one.name.starts_with("kuring.")).collect();
    assert!(own.len() > 20);
    for definition in own.iter().filter(|definition| !definition.internal) {
        let is_named = documents.iter().any(|(_, text)| text.contains(definition.name));
        assert!(is_named, "{} is in no document", definition.name);
    }
    for (path, text) in documents {
        for (at, _) in text.match_indices("kuring.") {
            let end =
                text[at..].find(|c: char| !c.is_ascii_lowercase() && c != '.').unwrap_or(text.len() - at);
            let name = text[at..at + end].trim_end_matches('.');
            // The unit of systemd, a feature, and what ends a sentence.
            let is_other = matches!(name, "kuring" | "kuring.service" | "kuring.metadata.version");
            assert!(is_other || own.iter().any(|one| one.name == name), "{path} has {name}");
        }
    }
}

/// Values at the edges of every type.
const EDGES: &[&str] = &[
    "",
    " ",
    "0",
    "-1",
    "-2",
    "1",
    "32768",
    "2147483647",
    "-2147483648",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "NaN",
    "-inf",
    "1e400",
    "true",
    "a",
    ",",
    "a,,b",
    ":",
    "A:PLAINTEXT",
    "A://",
    "A://:1",
    "*",
    "1:1",
    "1@a:1",
    "0-",
    "é",
];

#[test]
fn no_value_of_any_property_panics() {
    let names: Vec<_> = super::table::broker_properties().map(|definition| definition.name).collect();
    let none = Overrides::new();
    for name in &names {
        for value in EDGES {
            let given = [((*name).to_owned(), (*value).to_owned())];
            if let Ok(loaded) = BrokerConfig::load(None, &given) {
                let dynamic = Overrides::from(given);
                let levels = loaded.config.levels(&dynamic, &none);
                levels.connection_limits();
                levels.log_config(&none);
                assert!(!levels.describe_broker(|_| true).is_empty());
            }
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_text_of_a_file_panics(text in "([a-z.]{1,12}|listeners|num.partitions|kuring.cpus|[=:\\\\\n\r #!u0-9A-F,-]){0,20}") {
        let _ = BrokerConfig::load(Some(Source { path: "f", text: &text }), &[]);
    }
}

#[test]
fn coordinators_write_at_once_unless_a_linger_above_zero_is_set() {
    let lingers = |text: &str| {
        let config = config(text);
        (config.groups.append_linger, config.share_states.append_linger)
    };
    let ms = |ms| Some(std::time::Duration::from_millis(ms));
    assert_eq!(lingers(""), (None, None));
    let (group, share) = ("group.coordinator.append.linger.ms", "share.coordinator.append.linger.ms");
    assert_eq!(lingers(&format!("{group}=5\n{share}=0")), (ms(5), None));
    assert_eq!(lingers(&format!("{group}=-1\n{share}=7")), (None, ms(7)));
}
