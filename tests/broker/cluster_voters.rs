//! Clusters whose voters come and go (KIP-853): one node that votes alone, more that are added while it serves, voters that
//! are removed, killed in between, and come back with an empty disk.

use std::collections::BTreeSet;

use kafka_protocol::messages::add_raft_voter_request::Listener;
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::{
    AddRaftVoterRequest, ApiVersionsRequest, RemoveRaftVoterRequest, UpdateFeaturesRequest,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::cluster::{Cluster, KILLS, NO_SECRET, create_through};
use super::cluster_elections::await_all_in_sync;
use super::cluster_faults::{TWO_IN_SYNC, load_on};
use super::harness::raw::Raw;
use super::harness::{Broker, eventually};
use super::quorum::{ids, quorum_now};

const NONE: i16 = 0;
const REQUEST_TIMED_OUT: i16 = 7;
const UNSUPPORTED_VERSION: i16 = 35;
const NOT_CONTROLLER: i16 = 41;
const INVALID_UPDATE_VERSION: i16 = 95;
const DUPLICATE_VOTER: i16 = 126;
const VOTER_NOT_FOUND: i16 = 127;

/// Where the node's metadata log is, as its `meta.properties` says.
fn directory(node: &Broker) -> Uuid {
    let text = std::fs::read_to_string(node.data().join("meta.properties")).expect("it is formatted");
    let id = text.lines().find_map(|line| line.strip_prefix("directory.id=")).expect("a directory's id");
    id.parse::<kuring::base::TopicId>().expect("an id").0
}

fn add(node: &Broker, id: i32, directory: Uuid, timeout_ms: i32) -> i16 {
    let listener = Listener::default().with_name(StrBytes::from_static_str("CONTROLLER"));
    let listener = listener.with_host(StrBytes::from_static_str("127.0.0.1")).with_port(1);
    let request = AddRaftVoterRequest::default()
        .with_cluster_id(None)
        .with_timeout_ms(timeout_ms)
        .with_voter_id(id)
        .with_voter_directory_id(directory)
        .with_listeners(vec![listener]);
    Raw::connect(node).call(0, &request).error_code
}

fn remove(node: &Broker, id: i32, directory: Uuid) -> i16 {
    let request = RemoveRaftVoterRequest::default()
        .with_cluster_id(None)
        .with_voter_id(id)
        .with_voter_directory_id(directory);
    Raw::connect(node).call(0, &request).error_code
}

/// Through any node that runs, until it is known to be done.
fn add_until_done(cluster: &Cluster, id: i32, directory: Uuid) {
    eventually(&format!("voter {id} is added"), || {
        let (_, node) = cluster.running().next()?;
        let code = add(node, id, directory, 10_000);
        assert!([NONE, REQUEST_TIMED_OUT, NOT_CONTROLLER, DUPLICATE_VOTER].contains(&code), "{code}");
        [NONE, DUPLICATE_VOTER].contains(&code).then_some(())
    });
}

fn remove_until_done(cluster: &Cluster, id: i32, directory: Uuid) {
    eventually(&format!("voter {id} is removed"), || {
        let (_, node) = cluster.running().next()?;
        let code = remove(node, id, directory);
        assert!([NONE, REQUEST_TIMED_OUT, NOT_CONTROLLER, VOTER_NOT_FOUND].contains(&code), "{code}");
        [NONE, VOTER_NOT_FOUND].contains(&code).then_some(())
    });
}

fn await_quorum(cluster: &Cluster, voters: &[i32], observers: &[i32]) {
    for (index, node) in cluster.running() {
        eventually(&format!("node {} tells of voters {voters:?}", index + 1), || {
            let told = quorum_now(node)?;
            let is_right = ids(&told.current_voters) == voters.iter().copied().collect()
                && ids(&told.observers) == observers.iter().copied().collect::<BTreeSet<i32>>();
            is_right.then_some(())
        });
    }
}

fn create(cluster: &Cluster, topic: &str) {
    eventually(&format!("somebody creates {topic}"), || {
        cluster.running().find_map(|(_, node)| {
            let code = create_through(&mut Raw::connect(node), topic, 3, 1);
            [0, 36].contains(&code).then_some(())
        })
    });
}

/// What clients are told of `kraft.version`: supported, finalized.
fn kraft_version(node: &Broker) -> (bool, Option<i16>) {
    let request = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("test"))
        .with_client_software_version(StrBytes::from_static_str("1"));
    let answer = Raw::connect(node).call(4, &request);
    let is_it = |name: &StrBytes| name.as_str() == "kraft.version";
    let finalized = answer.finalized_features.iter().find(|it| is_it(&it.name));
    (answer.supported_features.iter().any(|it| is_it(&it.name)), finalized.map(|it| it.max_version_level))
}

#[test]
fn a_first_controller_that_listens_everywhere_serves_and_lets_its_machine_in() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_as_kafkas_file_says();
    cluster.await_brokers(&[1]);
    create(&cluster, "one");
    let log = cluster.nodes[0].log();
    assert!(
        log.contains("nodes on other machines cannot join") && log.contains("kuring.peers.secret.file"),
        "{log}"
    );
    cluster.add_controller(&NO_SECRET);
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2]);
    add_until_done(&cluster, 2, directory(&cluster.nodes[1]));
    await_quorum(&cluster, &[1, 2], &[]);
}

#[test]
fn a_quorum_of_one_grows_to_three_and_shrinks_again_while_it_serves() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_growing(&KILLS);
    cluster.await_brokers(&[1]);
    assert_eq!(kraft_version(&cluster.nodes[0]), (true, Some(1)));
    create(&cluster, "one");
    for _ in 0..2 {
        cluster.add_controller(&KILLS);
    }
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3]);
    await_quorum(&cluster, &[1], &[2, 3]);
    let directories: Vec<Uuid> = cluster.nodes.iter().map(directory).collect();
    assert_eq!(add(&cluster.nodes[0], 9, Uuid::from_u128(9), 100), REQUEST_TIMED_OUT, "nobody is there");
    assert_eq!(add(&cluster.nodes[1], 1, Uuid::from_u128(9), 100), DUPLICATE_VOTER);
    assert_eq!(remove(&cluster.nodes[1], 1, Uuid::from_u128(9)), VOTER_NOT_FOUND);
    assert_eq!(remove(&cluster.nodes[1], 1, directories[0]), VOTER_NOT_FOUND, "the last one stays");
    // Through another node than the one that leads.
    assert_eq!(add(&cluster.nodes[2], 2, directories[1], 30_000), NONE);
    add_until_done(&cluster, 3, directories[2]);
    await_quorum(&cluster, &[1, 2, 3], &[]);
    // Two of them are enough now.
    cluster.nodes[0].kill();
    create(&cluster, "two");
    cluster.start_stopped();
    await_quorum(&cluster, &[1, 2, 3], &[]);
    // The one that leads is taken out, hands over, and serves on.
    let leader = cluster.controller();
    remove_until_done(&cluster, leader as i32 + 1, directories[leader]);
    let left: Vec<i32> = [1, 2, 3].into_iter().filter(|id| *id != leader as i32 + 1).collect();
    await_quorum(&cluster, &left, &[leader as i32 + 1]);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "three");
    // All at once: each knows its seat.
    cluster.nodes.iter_mut().for_each(Broker::kill);
    cluster.start_stopped();
    await_quorum(&cluster, &left, &[leader as i32 + 1]);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "four");
    let mut raw = Raw::connect(&cluster.nodes[leader]);
    for topic in ["one", "two", "three", "four"] {
        eventually(topic, || super::cluster::partitions(&mut raw, topic).ok().filter(|it| it.len() == 3));
    }
}

#[test]
fn three_that_began_together_lose_one_and_its_new_disk_votes_when_the_old_one_is_out() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_with_initial_controllers(&KILLS);
    cluster.await_brokers(&[1, 2, 3]);
    await_quorum(&cluster, &[1, 2, 3], &[]);
    create(&cluster, "one");
    let lost = (cluster.controller() + 1) % 3;
    let id = lost as i32 + 1;
    let before = directory(&cluster.nodes[lost]);
    cluster.nodes[lost].kill();
    std::fs::remove_dir_all(cluster.nodes[lost].data()).expect("its disk is lost");
    cluster.format_to_join(lost);
    let fresh = directory(&cluster.nodes[lost]);
    assert_ne!(before, fresh);
    // It comes up when its old self is out of the way, not before.
    std::thread::scope(|scope| {
        let (mut gone, rest): (Vec<&mut Broker>, Vec<&mut Broker>) =
            cluster.nodes.iter_mut().partition(|node| !node.runs());
        let starting = gone.remove(0);
        let started = scope.spawn(|| starting.start_again(1));
        let through = &*rest[0];
        assert_eq!(add(through, id, fresh, 300), DUPLICATE_VOTER);
        assert!(!started.is_finished());
        eventually("its old self is removed", || {
            let code = remove(through, id, before);
            assert!([NONE, REQUEST_TIMED_OUT, NOT_CONTROLLER, VOTER_NOT_FOUND].contains(&code), "{code}");
            [NONE, VOTER_NOT_FOUND].contains(&code).then_some(())
        });
        started.join().expect("it starts");
    });
    add_until_done(&cluster, id, fresh);
    await_quorum(&cluster, &[1, 2, 3], &[]);
    // Its vote counts: another one may go.
    let other = 6 - id - (cluster.controller() as i32 + 1);
    if other != id && (1..=3).contains(&other) {
        cluster.nodes[other as usize - 1].kill();
    }
    create(&cluster, "two");
}

/// Has `kraft.version` finalized; `upgrade` as the request has it.
fn update_kraft(node: &Broker, level: i16, upgrade: i8) -> (i16, String) {
    let update = FeatureUpdateKey::default()
        .with_feature(StrBytes::from_static_str("kraft.version"))
        .with_max_version_level(level)
        .with_upgrade_type(upgrade);
    let request = UpdateFeaturesRequest::default().with_timeout_ms(10_000).with_feature_updates(vec![update]);
    let answer = Raw::connect(node).call(2, &request);
    (answer.error_code, answer.error_message.map_or_else(String::new, |text| text.to_string()))
}

/// As the guide says it: raised while it serves, then each node restarted with its old file, and with the new one.
#[test]
fn fixed_voters_are_raised_under_load_and_replaced_and_nothing_is_lost() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_with(&[&KILLS[..], &[TWO_IN_SYNC]].concat());
    let (client, load) = load_on(&cluster);
    let directories: Vec<Uuid> = cluster.nodes.iter().map(directory).collect();
    let other = |index: usize| (index + 1) % 3;
    for node in &cluster.nodes {
        eventually("it is told that it could be raised", || {
            (kraft_version(node) == (true, None)).then_some(())
        });
    }
    assert_eq!(add(&cluster.nodes[0], 4, Uuid::from_u128(4), 100), UNSUPPORTED_VERSION);
    let through = &cluster.nodes[other(cluster.controller())];
    eventually("it is raised", || {
        let (code, text) = update_kraft(through, 1, 1);
        assert!([NONE, REQUEST_TIMED_OUT, NOT_CONTROLLER].contains(&code), "{code}: {text}");
        (code == NONE).then_some(())
    });
    for node in &cluster.nodes {
        eventually("it is raised", || (kraft_version(node) == (true, Some(1))).then_some(()));
    }
    let (code, text) = update_kraft(through, 0, 2);
    assert!(
        code == INVALID_UPDATE_VERSION && text.ends_with("Can't downgrade the version of this feature."),
        "{text}"
    );
    load.await_progress("after it was raised");
    // Another controller, and a broker whose file names the old ones.
    cluster.add_controller(&KILLS);
    cluster.add_observer(true, &KILLS);
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3, 4, 5]);
    add_until_done(&cluster, 4, directory(&cluster.nodes[3]));
    let gone = (0..3).find(|index| *index != cluster.controller()).expect("three");
    let gone = (gone as i32 + 1, directories[gone]);
    remove_until_done(&cluster, gone.0, gone.1);
    let left: Vec<i32> = (1..=4).filter(|id| *id != gone.0).collect();
    await_quorum(&cluster, &left, &[gone.0, 5]);
    load.await_progress("with other voters");
    for is_old in [true, false] {
        for index in 0..4 {
            await_all_in_sync(&cluster, "load");
            match is_old {
                true => cluster.nodes[index].kill(),
                false => drop(cluster.nodes[index].terminate()),
            }
            if !is_old && index < 3 {
                cluster.name_no_voters(index);
            }
            cluster.start_stopped();
            await_quorum(&cluster, &left, &[gone.0, 5]);
            load.await_progress(&format!("after node {} was restarted, {is_old}", index + 1));
        }
    }
    // None of those that the broker's file names has a vote.
    for (index, directory) in directories.iter().enumerate() {
        remove_until_done(&cluster, index as i32 + 1, *directory);
    }
    await_quorum(&cluster, &[4], &[1, 2, 3, 5]);
    cluster.nodes[4].terminate();
    cluster.start_stopped();
    create(&cluster, "two");
    for (_, node) in cluster.running() {
        let mut raw = Raw::connect(node);
        eventually("two", || super::cluster::partitions(&mut raw, "two").ok().filter(|it| it.len() == 3));
    }
    load.finish(&client);
}
