//! Nodes that are controllers alone: they vote and lead the metadata log, keep no partition, and no client sees them.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::time::Duration;

use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::{
    ApiVersionsRequest, DeleteTopicsRequest, DescribeClusterRequest, MetadataRequest, RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
};
use kafka_protocol::protocol::StrBytes;

use super::admin::{get, metric, metric_with};
use super::cluster::{Cluster, create_through, partitions};
use super::cluster_elections::{await_replicas, create};
use super::harness::client::{Client, Send};
use super::harness::raw::{Answer, Raw, name};
use super::harness::{Broker, PATIENCE, eventually};
use super::quorum::{ids, quorum_now};

const INVALID_REPLICATION_FACTOR: i16 = 38;

fn send(node: &Broker, topic: &str, text: &str) {
    let client = Client::of(node);
    let producer = client.producer(&[("acks", "all")]);
    client.send(&producer, topic, &[Send::value(text).to(0)]);
}

/// Whom the brokers hold for the one that leads the metadata log.
fn leader(cluster: &Cluster) -> i32 {
    eventually("somebody leads", || {
        let told: BTreeSet<i32> =
            cluster.running().filter_map(|(_, node)| Some(quorum_now(node)?.leader_id.0)).collect();
        told.first().copied().filter(|_| told.len() == 1)
    })
}

/// No broker shows a controller to clients, and each sends them to a broker for changes.
fn no_client_sees_a_controller(cluster: &Cluster, brokers: &[i32]) {
    cluster.await_brokers(brokers);
    for (_, node) in cluster.running() {
        let mut raw = Raw::connect(node);
        let described = raw.call(2, &DescribeClusterRequest::default().with_endpoint_type(1));
        let metadata = raw.call(12, &MetadataRequest::default().with_topics(Some(Vec::new())));
        for controller in [described.controller_id.0, metadata.controller_id.0] {
            assert!(brokers.contains(&controller), "{controller}");
        }
        assert_eq!(metadata.brokers.len(), brokers.len());
    }
}

fn is_ready(controller: &Broker) -> bool {
    get(controller.admin(), "/ready").0 == 200
}

#[test]
fn three_controllers_lead_the_metadata_log_of_two_brokers() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_apart(0, 3, 2);
    no_client_sees_a_controller(&cluster, &[1, 2]);
    create(&cluster, "t", &[&[1, 2]]);
    send(&cluster.nodes[0], "t", "one");
    let mut raw = Raw::connect(&cluster.nodes[1]);
    assert_eq!(
        create_through(&mut raw, "too-many", 1, 3),
        INVALID_REPLICATION_FACTOR,
        "they are no candidates"
    );
    drop(raw);
    for controller in &cluster.controllers {
        assert!(is_ready(controller));
        assert_eq!(get(controller.admin(), "/health").0, 200);
        assert_eq!(metric(controller, "kuring_metadata_brokers_active"), 2);
        println!("a controller takes {} KiB", controller.resident_bytes() >> 10);
        let listens = controller.ready_line().contains(", controller 127.0.0.1:");
        assert!(listens && !controller.ready_line().contains("bootstrap"), "{}", controller.ready_line());
    }
    let told = eventually("somebody leads", || quorum_now(&cluster.nodes[0]));
    assert_eq!(ids(&told.current_voters), BTreeSet::from([101, 102, 103]));
    assert_eq!(ids(&told.observers), BTreeSet::from([1, 2]));
    let status = cluster.nodes[0].kuring(&["cluster", "status", "--wait", "30"], b"");
    let status = String::from_utf8(status).expect("text");
    assert!(status.contains(&format!("node {}", leader(&cluster))), "{status}");
    let brokers = cluster.nodes[0].kuring(&["cluster", "brokers", "--json"], b"");
    let brokers: serde_json::Value = serde_json::from_slice(&brokers).expect("JSON");
    assert_eq!(brokers["brokers"].as_array().map(Vec::len), Some(2));

    // One after the other is lost while it leads.
    for round in 0..3 {
        let lost = leader(&cluster);
        let index = lost as usize - 101;
        cluster.controllers[index].kill();
        let topic = format!("after-{round}");
        eventually("another one leads and makes a topic", || {
            let code = create_through(&mut Raw::connect(&cluster.nodes[1]), &topic, 1, 2);
            [0, 36].contains(&code).then_some(())
        });
        assert_ne!(leader(&cluster), lost);
        send(&cluster.nodes[0], "t", "more");
        cluster.start_stopped();
        assert!(is_ready(&cluster.controllers[index]));
        eventually("it has the topic's metadata", || {
            (metric(&cluster.controllers[index], "kuring_metadata_topics") >= 2 + round).then_some(())
        });
    }
    // All brokers and controllers at once.
    cluster.nodes.iter_mut().chain(&mut cluster.controllers).for_each(Broker::kill);
    cluster.start_stopped();
    no_client_sees_a_controller(&cluster, &[1, 2]);
    await_replicas(&cluster, "t", &[1, 2]);
    assert_eq!(Client::of(&cluster.nodes[1]).read("t", &[0], 4).len(), 4);
}

#[test]
fn who_comes_to_a_controllers_listener_is_bounded_and_counted() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start_apart(0, 1, 0);
    let controller = &cluster.controllers[0];
    let hits = |limit| metric_with(controller, "kuring_limit_hits_total", &[("limit", limit)]);
    let silent: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(controller.bootstrap()).expect("it listens")).collect();
    eventually("the first ones make room", || (hits("peer_strangers") >= 8).then_some(()));
    let first = format!("peer={}", silent[0].local_addr().expect("it is connected"));
    let log = controller.log();
    assert!(log.lines().any(|line| line.contains("has not said hello") && line.contains(&first)), "{log}");
    drop(silent);
    let request = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("test"))
        .with_client_software_version(StrBytes::from_static_str("1"));
    let come = || {
        let mut raw = Raw::connect(controller);
        raw.send(4, &request);
        matches!(raw.answer(PATIENCE), Answer::Frame(_)).then_some(raw)
    };
    let clients: Vec<Raw> = std::iter::from_fn(come).take(100).collect();
    assert_eq!(clients.len(), 64);
    assert_eq!(hits("controller_clients"), 1);
    drop(clients);
    eventually("there is room again", come);
}

#[test]
fn a_controller_without_a_majority_is_not_ready_and_says_why() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_apart(0, 3, 0);
    assert!(cluster.controllers.iter().all(is_ready));
    // The last one follows, or leads; then the other one does.
    for left in [2, 0] {
        (0..3).filter(|index| *index != left).for_each(|index| cluster.controllers[index].kill());
        assert!(is_ready(&cluster.controllers[left]), "a lost leader may be replaced soon");
        let body = eventually("it is not ready", || {
            let (code, body) = get(cluster.controllers[left].admin(), "/ready");
            (code == 503).then_some(body)
        });
        assert!(body.contains("no leader of the metadata log with a majority was heard of for"), "{body}");
        assert_eq!(get(cluster.controllers[left].admin(), "/health").0, 200);
        cluster.start_stopped();
        eventually("it is ready again", || is_ready(&cluster.controllers[left]).then_some(()));
    }
}

/// What Kafka's controllers advertise and kuring's serve.
const APIS: [i16; 17] = [18, 19, 20, 32, 33, 37, 43, 44, 45, 46, 49, 55, 57, 60, 64, 80, 81];
const MISMATCHED_ENDPOINT_TYPE: i16 = 114;
const UNSUPPORTED_ENDPOINT_TYPE: i16 = 115;
const BROKER_ID_NOT_REGISTERED: i16 = 102;
const UNSUPPORTED_VERSION: i16 = 35;

/// With Kafka's own requests, at the listener for controllers.
fn a_controller_answers(controller: &Broker, leader: i32, all: &[i32]) {
    let mut raw = Raw::connect(controller);
    let told = raw.call(
        4,
        &ApiVersionsRequest::default()
            .with_client_software_name(text("test"))
            .with_client_software_version(text("1")),
    );
    assert_eq!(told.api_keys.iter().map(|api| api.api_key).collect::<Vec<_>>(), APIS);
    assert!(told.finalized_features.iter().any(|feature| feature.name.as_str() == "transaction.version"));
    let describe = |endpoint_type| DescribeClusterRequest::default().with_endpoint_type(endpoint_type);
    let told = raw.call(1, &describe(2));
    assert_eq!((told.error_code, told.endpoint_type, told.controller_id.0), (0, 2, leader));
    let shown: Vec<i32> = told.brokers.iter().map(|it| it.broker_id.0).collect();
    assert_eq!(shown, all);
    let own =
        told.brokers.iter().find(|it| format!("{}:{}", it.host.as_str(), it.port) == controller.bootstrap());
    assert!(own.is_some(), "{told:?}");
    assert_eq!(raw.call(1, &describe(1)).error_code, MISMATCHED_ENDPOINT_TYPE);
    assert_eq!(raw.call(0, &DescribeClusterRequest::default()).error_code, MISMATCHED_ENDPOINT_TYPE);
    assert_eq!(raw.call(1, &describe(3)).error_code, UNSUPPORTED_ENDPOINT_TYPE);
    let quorum = eventually("somebody leads", || quorum_now(controller));
    assert_eq!((quorum.leader_id.0, quorum.current_voters.len()), (leader, all.len()));
    let topic = format!("by-{}", controller.bootstrap().replace(':', "-"));
    assert_eq!(create_through(&mut raw, &topic, 2, 1), 0);
    assert_eq!(create_through(&mut raw, &topic, 2, 1), 36, "TOPIC_ALREADY_EXISTS");
    raw.set_topic_config(&topic, "retention.ms", Some("77777"));
    let state = DeleteTopicState::default().with_name(Some(name(&topic)));
    let request = DeleteTopicsRequest::default().with_topics(vec![state]).with_timeout_ms(30_000);
    assert_eq!(raw.call(6, &request).responses[0].error_code, 0);
    let unregister = UnregisterBrokerRequest::default().with_broker_id(77.into());
    assert_eq!(raw.call(0, &unregister).error_code, BROKER_ID_NOT_REGISTERED);
    let remove = RemoveRaftVoterRequest::default()
        .with_cluster_id(None)
        .with_voter_id(all[0])
        .with_voter_directory_id(uuid::Uuid::from_u128(7));
    assert_eq!(raw.call(0, &remove).error_code, UNSUPPORTED_VERSION, "the voters are those of the file");
    // What it does not advertise closes the connection, as does what nobody knows.
    for (key, version, header) in [(3, 12, 2), (0, 9, 2), (1, 12, 2), (10, 4, 2), (62, 4, 2), (1000, 0, 1)] {
        let mut raw = Raw::connect(controller);
        raw.send_as(key, version, header, &[]);
        assert!(matches!(raw.answer(PATIENCE), Answer::Closed), "{key}");
    }
}

#[test]
fn controllers_answer_what_kafkas_tools_ask_of_them() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_apart(0, 3, 1);
    cluster.await_brokers(&[1]);
    let leads = leader(&cluster);
    for controller in &cluster.controllers {
        a_controller_answers(controller, leads, &[101, 102, 103]);
        assert!(metric(controller, "kuring_network_request_frames_total") > 10);
    }
    // Many at once cost one another their place, and the quorum nothing.
    let crowd: Vec<Raw> = (0..100).map(|_| Raw::connect(&cluster.controllers[0])).collect();
    assert_eq!(create_through(&mut Raw::connect(&cluster.nodes[0]), "beside-a-crowd", 1, 1), 0);
    drop(crowd);
    cluster.controllers[leads as usize - 101].kill();
    let next = eventually("another one leads", || Some(leader(&cluster)).filter(|next| *next != leads));
    for controller in cluster.controllers.iter().filter(|it| it.runs()) {
        eventually("it knows", || {
            let request = DescribeClusterRequest::default().with_endpoint_type(2);
            (Raw::connect(controller).call(1, &request).controller_id.0 == next).then_some(())
        });
        a_controller_answers(controller, next, &[101, 102, 103]);
    }
}

fn text(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

#[test]
fn a_controller_that_stops_in_order_hands_over_and_one_without_a_quorum_stops_too() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_apart(0, 3, 1);
    cluster.await_brokers(&[1]);
    let epoch = |cluster: &Cluster| quorum_now(&cluster.nodes[0]).map(|told| told.leader_epoch);
    let before = eventually("somebody leads", || epoch(&cluster));
    let led = leader(&cluster) as usize - 101;
    let (status, took) = cluster.controllers[led].terminate();
    assert!(status.success(), "{status}");
    println!("the leading controller stopped in {took:?}");
    assert_eq!(create_through(&mut Raw::connect(&cluster.nodes[0]), "at-once", 1, 1), 0);
    let log = cluster.controllers.iter().map(Broker::log).collect::<String>();
    assert!(!log.contains("panicked"), "{log}");
    let after = eventually("somebody leads", || epoch(&cluster));
    assert!(after > before);
    // The second one goes, and the third alone leads nothing.
    let next = leader(&cluster) as usize - 101;
    cluster.controllers[next].kill();
    let last = 3 - led - next;
    assert_eq!(get(cluster.controllers[last].admin(), "/health").0, 200, "it lives");
    let (status, took) = cluster.controllers[last].terminate();
    assert!(status.success() && took < Duration::from_secs(30), "{status}, {took:?}");
    cluster.start_stopped();
    assert!(cluster.controllers.iter().all(is_ready));
    assert_eq!(create_through(&mut Raw::connect(&cluster.nodes[0]), "again", 1, 1), 0);
}

#[test]
fn a_controller_beside_nodes_that_are_both_leads_and_is_lost() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_apart(2, 1, 0);
    cluster.await_brokers(&[1, 2]);
    create(&cluster, "t", &[&[1, 2]]);
    // Until it leads.
    for _ in 0..20 {
        let leads = leader(&cluster);
        if leads == 101 {
            break;
        }
        let (status, _) = cluster.nodes[leads as usize - 1].terminate();
        assert!(status.success(), "{status}");
        cluster.start_stopped();
        cluster.await_brokers(&[1, 2]);
    }
    assert_eq!(leader(&cluster), 101);
    no_client_sees_a_controller(&cluster, &[1, 2]);
    let mut raw = Raw::connect(&cluster.nodes[0]);
    assert_eq!(create_through(&mut raw, "through-it", 4, 2), 0);
    assert_eq!(create_through(&mut raw, "too-many", 1, 3), INVALID_REPLICATION_FACTOR);
    let found = partitions(&mut raw, "through-it").expect("it is there");
    assert!(found.iter().flat_map(|it| &it.replica_nodes).all(|node| [1, 2].contains(&node.0)));
    drop(raw);
    send(&cluster.nodes[0], "through-it", "one");
    cluster.controllers[0].kill();
    eventually("one of the others leads", || {
        let code = create_through(&mut Raw::connect(&cluster.nodes[1]), "without", 1, 2);
        [0, 36].contains(&code).then_some(())
    });
    assert!([1, 2].contains(&leader(&cluster)));
    send(&cluster.nodes[1], "through-it", "two");
    cluster.start_stopped();
    eventually("it has all", || {
        let told = quorum_now(&cluster.nodes[0])?;
        let own = told.current_voters.iter().find(|voter| voter.replica_id.0 == 101)?;
        (own.log_end_offset >= told.high_watermark).then_some(())
    });
}
