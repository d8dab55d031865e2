//! Partitions of three processes whose leaders and replicas are changed: elections by command and by time, reassignments
//! under load, given up, and gone on with by another controller; a broker that is taken out for good.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::metadata_response::MetadataResponsePartition;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, CreateTopicsRequest, DeleteTopicsRequest, ElectLeadersRequest,
    ListPartitionReassignmentsRequest, UnregisterBrokerRequest,
};
use kuring::base::random::Random;
use rdkafka::producer::FutureProducer;

use super::admin::{metric, metric_with};
use super::cluster::{Cluster, KILLS, partitions};
use super::cluster_replication::log_in;
use super::harness::batch::Batch;
use super::harness::client::{Client, Send};
use super::harness::raw::{Raw, name};
use super::harness::{Broker, PATIENCE, eventually};

pub(super) const NONE: i16 = 0;
const NOT_CONTROLLER: i16 = 41;
const REQUEST_TIMED_OUT: i16 = 7;
const ELECTION_NOT_NEEDED: i16 = 84;
const NO_REASSIGNMENT_IN_PROGRESS: i16 = 85;
const BROKER_ID_NOT_REGISTERED: i16 = 102;
pub(super) const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

/// Asks nodes that run until one answers with something else than that there is no controller at the moment.
fn ask(cluster: &Cluster, what: &str, mut probe: impl FnMut(&mut Raw) -> i16) -> i16 {
    eventually(what, || {
        cluster.running().find_map(|(_, node)| {
            let code = probe(&mut Raw::connect(node));
            (![NOT_CONTROLLER, REQUEST_TIMED_OUT].contains(&code)).then_some(code)
        })
    })
}

/// Creates a topic with these replicas.
pub(super) fn create(cluster: &Cluster, topic: &str, assignment: &[&[i32]]) {
    let partitions = assignment.iter().zip(0..).map(|(replicas, index)| {
        CreatableReplicaAssignment::default()
            .with_partition_index(index)
            .with_broker_ids(replicas.iter().map(|id| (*id).into()).collect())
    });
    let wanted = CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(-1)
        .with_replication_factor(-1)
        .with_assignments(partitions.collect());
    let request = CreateTopicsRequest::default().with_topics(vec![wanted]).with_timeout_ms(30_000);
    let code = ask(cluster, "somebody creates the topic", |raw| raw.call(7, &request).topics[0].error_code);
    // One that is there already was created by an attempt that was not answered in time.
    assert!([NONE, 36].contains(&code), "{code}");
}

/// The partitions in order, as any node that runs has them.
pub(super) fn described(cluster: &Cluster, topic: &str) -> Vec<MetadataResponsePartition> {
    eventually("somebody tells of the topic", || {
        let (_, node) = cluster.running().next()?;
        let mut found = partitions(&mut Raw::connect(node), topic).ok()?;
        found.sort_by_key(|partition| partition.partition_index);
        Some(found)
    })
}

fn ids(ids: &[kafka_protocol::messages::BrokerId]) -> Vec<i32> {
    ids.iter().map(|id| id.0).collect()
}

fn set(of: &[kafka_protocol::messages::BrokerId]) -> BTreeSet<i32> {
    ids(of).into_iter().collect()
}

/// Partition 0 is on these, all in sync, and the first leads or another.
pub(super) fn await_replicas(cluster: &Cluster, topic: &str, replicas: &[i32]) {
    eventually(&format!("{topic} is on {replicas:?}"), || {
        let found = described(cluster, topic).remove(0);
        let is_there = ids(&found.replica_nodes) == replicas
            && set(&found.isr_nodes) == replicas.iter().copied().collect()
            && replicas.contains(&found.leader_id.0);
        is_there.then_some(())
    });
}

/// The answer's code, or that of partition 0.
pub(super) fn reassign(cluster: &Cluster, topic: &str, replicas: Option<&[i32]>) -> i16 {
    let replicas = replicas.map(|ids| ids.iter().map(|id| (*id).into()).collect());
    let wanted = ReassignablePartition::default().with_partition_index(0).with_replicas(replicas);
    let wanted = ReassignableTopic::default().with_name(name(topic)).with_partitions(vec![wanted]);
    let request =
        AlterPartitionReassignmentsRequest::default().with_topics(vec![wanted]).with_timeout_ms(30_000);
    ask(cluster, "somebody takes the reassignment", |raw| {
        let answer = raw.call(1, &request);
        if answer.error_code != NONE {
            answer.error_code
        } else {
            answer.responses[0].partitions[0].error_code
        }
    })
}

/// Replicas, those added, those removed, of each partition under way, as the node has it.
pub(super) fn under_way(node: &Broker) -> Vec<(Vec<i32>, Vec<i32>, Vec<i32>)> {
    let answer = Raw::connect(node).call(0, &ListPartitionReassignmentsRequest::default().with_topics(None));
    assert_eq!(answer.error_code, NONE);
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    let lists = partitions.map(|partition| {
        (ids(&partition.replicas), ids(&partition.adding_replicas), ids(&partition.removing_replicas))
    });
    lists.collect()
}

fn await_none_under_way(cluster: &Cluster) {
    for (_, node) in cluster.running() {
        eventually("no reassignment is under way", || under_way(node).is_empty().then_some(()));
    }
}

/// The codes by partition; of all topics with `None`.
pub(super) fn elect(node: &Broker, kind: i8, topic: Option<(&str, &[i32])>) -> Vec<(i32, i16)> {
    let topics = topic.map(|(topic, partitions)| {
        vec![TopicPartitions::default().with_topic(name(topic)).with_partitions(partitions.to_vec())]
    });
    let request = ElectLeadersRequest::default()
        .with_election_type(kind)
        .with_topic_partitions(topics)
        .with_timeout_ms(30_000);
    let answer = eventually("a controller elects", || {
        let answer = Raw::connect(node).call(2, &request);
        (![NOT_CONTROLLER, REQUEST_TIMED_OUT].contains(&answer.error_code)).then_some(answer)
    });
    assert_eq!(answer.error_code, NONE);
    let results = answer.replica_election_results.iter().flat_map(|topic| &topic.partition_result);
    results.map(|result| (result.partition_id, result.error_code)).collect()
}

pub(super) fn leaders(cluster: &Cluster, topic: &str) -> Vec<i32> {
    described(cluster, topic).iter().map(|partition| partition.leader_id.0).collect()
}

pub(super) fn await_all_in_sync(cluster: &Cluster, topic: &str) {
    eventually(&format!("all replicas of {topic} are in sync"), || {
        let found = described(cluster, topic);
        found.iter().all(|partition| set(&partition.isr_nodes) == set(&partition.replica_nodes)).then_some(())
    });
}

#[test]
fn the_first_replica_leads_again_when_somebody_asks_for_it() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "t", &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]]);
    assert_eq!(leaders(&cluster, "t"), [1, 2, 3]);
    let asked = (cluster.controller() + 1) % 3;
    assert_eq!(elect(&cluster.nodes[asked], PREFERRED, None), [], "nothing is to be done");
    let stopped = cluster.controller();
    let id = stopped as i32 + 1;
    let (status, _) = cluster.nodes[stopped].terminate();
    assert!(status.success());
    assert!(!leaders(&cluster, "t").contains(&id));
    let victim = stopped as i32;
    let unavailable = elect(&cluster.nodes[asked], PREFERRED, Some(("t", &[0, 1, 2])));
    let expected = |index: i32| if index == victim { 80 } else { ELECTION_NOT_NEEDED };
    assert_eq!(unavailable, [0, 1, 2].map(|index| (index, expected(index))));
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3]);
    await_all_in_sync(&cluster, "t");
    assert!(!leaders(&cluster, "t").contains(&id), "it does not by itself");
    assert_eq!(elect(&cluster.nodes[asked], PREFERRED, None), [(victim, NONE)]);
    eventually("all first replicas lead", || (leaders(&cluster, "t") == [1, 2, 3]).then_some(()));
    let again = elect(&cluster.nodes[asked], PREFERRED, Some(("t", &[victim])));
    assert_eq!(again, [(victim, ELECTION_NOT_NEEDED)]);
}

#[test]
fn the_first_replica_leads_again_by_itself_after_a_while() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_with(&[("leader.imbalance.check.interval.seconds", "1")]);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "t", &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]]);
    let stopped = cluster.controller();
    let (status, _) = cluster.nodes[stopped].terminate();
    assert!(status.success());
    assert!(!leaders(&cluster, "t").contains(&(stopped as i32 + 1)));
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3]);
    eventually("all first replicas lead", || (leaders(&cluster, "t") == [1, 2, 3]).then_some(()));
}

/// Sends numbers, each once, until it is told to stop; all of them were acknowledged.
fn produce_until(client: &Client, producer: &FutureProducer, topic: &str, stop: &AtomicBool) -> Vec<String> {
    let mut values = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let new: Vec<String> = (0..100).map(|number| format!("value {}", values.len() + number)).collect();
        let record = |value: &String| Send {
            partition: Some(0),
            value: Some(value.clone().into_bytes()),
            ..Send::default()
        };
        client.send(producer, topic, &new.iter().map(record).collect::<Vec<_>>());
        values.extend(new);
    }
    values
}

/// What was acknowledged is there, once, in its order.
fn check(cluster: &Cluster, topic: &str, values: &[String]) {
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    let found: Vec<String> = client.read(topic, &[0], values.len()).iter().map(|got| got.text()).collect();
    assert_eq!(found, values);
    let (_, end) = client.offsets(topic, 0);
    assert_eq!(end, values.len() as i64, "nothing beside it");
}

fn has_log(cluster: &Cluster, id: i32, topic: &str) -> bool {
    cluster.nodes[id as usize - 1].data().join(format!("{topic}-0")).exists()
}

/// The nodes that have the partition's log are these, and no others.
fn await_logs(cluster: &Cluster, topic: &str, expected: &[i32]) {
    eventually(&format!("the logs of {topic} are on {expected:?}"), || {
        let found: Vec<i32> = (1..=3).filter(|id| has_log(cluster, *id, topic)).collect();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        (found == expected).then_some(())
    });
}

#[test]
fn a_partition_goes_to_other_nodes_under_load_and_nothing_acknowledged_is_lost_or_doubled() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "pair", &[&[1, 2]]);
    create(&cluster, "alone", &[&[1]]);
    let settings = [("enable.idempotence", "true"), ("message.timeout.ms", "60000")];
    let stop = AtomicBool::new(false);
    let load = |topic: &'static str| {
        let addresses: Vec<&str> = cluster.running().map(|(_, node)| node.bootstrap()).collect();
        let client = Client::of_all(addresses.into_iter());
        client.await_partitions(topic, 1);
        let producer = client.producer(&settings);
        produce_until(&client, &producer, topic, &stop)
    };
    let (pair, alone) = std::thread::scope(|scope| {
        let pair = scope.spawn(|| load("pair"));
        let alone = scope.spawn(|| load("alone"));
        let moves: [(&[i32], &[i32]); 3] = [(&[2, 3], &[2]), (&[3, 1], &[3]), (&[1, 2], &[1])];
        for (pair, alone) in moves {
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(reassign(&cluster, "pair", Some(pair)), NONE);
            assert_eq!(reassign(&cluster, "alone", Some(alone)), NONE);
            await_replicas(&cluster, "pair", pair);
            await_replicas(&cluster, "alone", alone);
            await_none_under_way(&cluster);
            await_logs(&cluster, "pair", pair);
            await_logs(&cluster, "alone", alone);
        }
        stop.store(true, Ordering::Relaxed);
        (pair.join().expect("all was acknowledged"), alone.join().expect("all was acknowledged"))
    });
    println!("{} and {} records acknowledged", pair.len(), alone.len());
    check(&cluster, "pair", &pair);
    check(&cluster, "alone", &alone);
    assert_eq!(reassign(&cluster, "pair", None), NO_REASSIGNMENT_IN_PROGRESS);
    // Another order is there at once, and copies nothing.
    assert_eq!(reassign(&cluster, "pair", Some(&[2, 1])), NONE);
    await_replicas(&cluster, "pair", &[2, 1]);
    assert_eq!(elect(&cluster.nodes[2], PREFERRED, Some(("pair", &[0]))), [(0, NONE)]);
    eventually("the first leads", || (leaders(&cluster, "pair") == [2]).then_some(()));
    check(&cluster, "pair", &pair);
}

/// The numbers of the controller and of the two others.
pub(super) fn roles(cluster: &Cluster) -> (i32, i32, i32) {
    let controller = cluster.controller() as i32;
    (controller + 1, (controller + 1) % 3 + 1, (controller + 2) % 3 + 1)
}

/// How many commands of a kind the controllers have carried out.
fn commands(cluster: &Cluster, kind: &str) -> u64 {
    let counted = |(_, node): (usize, &Broker)| {
        metric_with(node, "kuring_controller_commands_total", &[("command", kind)])
    };
    cluster.running().map(counted).sum()
}

pub(super) fn kill(cluster: &mut Cluster, id: i32) {
    cluster.nodes[id as usize - 1].kill();
}

pub(super) fn await_without(cluster: &Cluster, id: i32) {
    let others: Vec<i32> = (1..=3).filter(|other| *other != id).collect();
    cluster.await_brokers(&others);
}

#[test]
fn a_reassignment_goes_on_when_the_controller_is_killed_in_the_middle_of_it() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    let (controller, from, to) = roles(&cluster);
    create(&cluster, "t", &[&[from]]);
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    client.await_partitions("t", 1);
    let producer = client.producer(&[("enable.idempotence", "true"), ("message.timeout.ms", "60000")]);
    let stop = AtomicBool::new(false);
    let values = std::thread::scope(|scope| {
        let sending = scope.spawn(|| produce_until(&client, &producer, "t", &stop));
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
        sending.join().expect("all was acknowledged")
    });
    // Its aim is not there: it stays half done.
    kill(&mut cluster, to);
    await_without(&cluster, to);
    assert_eq!(reassign(&cluster, "t", Some(&[to])), NONE);
    for (_, node) in cluster.running() {
        let expected = vec![(vec![to, from], vec![to], vec![from])];
        eventually("it is under way", || (under_way(node) == expected).then_some(()));
    }
    kill(&mut cluster, controller);
    cluster.nodes[to as usize - 1].start_again(1);
    await_replicas(&cluster, "t", &[to]);
    await_none_under_way(&cluster);
    eventually("the old log is gone", || (!has_log(&cluster, from, "t")).then_some(()));
    check(&cluster, "t", &values);
    // Who was away learns of it.
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3]);
    await_none_under_way(&cluster);
    check(&cluster, "t", &values);
}

#[test]
fn a_reassignment_that_is_given_up_leaves_the_replicas_from_before() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    let (controller, other, dead) = roles(&cluster);
    create(&cluster, "t", &[&[controller, other]]);
    kill(&mut cluster, dead);
    await_without(&cluster, dead);
    assert_eq!(reassign(&cluster, "t", Some(&[controller, dead])), NONE);
    let node = &cluster.nodes[other as usize - 1];
    let expected = vec![(vec![controller, dead, other], vec![dead], vec![other])];
    assert_eq!(under_way(node), expected, "whoever took it shows it");
    assert_eq!(reassign(&cluster, "t", None), NONE);
    await_none_under_way(&cluster);
    await_replicas(&cluster, "t", &[controller, other]);
    assert_eq!(reassign(&cluster, "t", None), NO_REASSIGNMENT_IN_PROGRESS);
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3]);
    await_replicas(&cluster, "t", &[controller, other]);
    await_logs(&cluster, "t", &[controller, other]);
}

#[test]
fn a_replica_that_is_behind_leads_only_when_somebody_takes_that_upon_himself() {
    if Broker::is_kafka() {
        return;
    }
    let soon = ("replica.high.watermark.checkpoint.interval.ms", "200");
    let mut cluster = Cluster::start_with(&[&KILLS[..], &[soon]].concat());
    cluster.await_brokers(&[1, 2, 3]);
    let (controller, first, second) = roles(&cluster);
    for topic in ["t", "by-setting"] {
        create(&cluster, topic, &[&[first, second]]);
    }
    kill(&mut cluster, second);
    await_without(&cluster, second);
    for topic in ["t", "by-setting"] {
        eventually("the first is alone in sync", || {
            (ids(&described(&cluster, topic)[0].isr_nodes) == [first]).then_some(())
        });
    }
    // What it acknowledges now, and knows to be acknowledged, nobody else has.
    let node = &cluster.nodes[first as usize - 1];
    assert_eq!(Raw::connect(node).produce("t", 0, -1, Batch::now(&["lost"]).encode()).error_code, NONE);
    let checkpoint = node.data().join("replication-offset-checkpoint");
    eventually("the high watermark is on the disk", || {
        let text = std::fs::read_to_string(&checkpoint).ok()?;
        text.lines().any(|line| line == "t 0 1").then_some(())
    });
    kill(&mut cluster, first);
    cluster.nodes[second as usize - 1].start_again(1);
    let asked = &cluster.nodes[controller as usize - 1];
    for topic in ["t", "by-setting"] {
        eventually("nobody leads", || (leaders(&cluster, topic) == [-1]).then_some(()));
    }
    Raw::connect(asked).set_topic_config("by-setting", "unclean.leader.election.enable", Some("true"));
    eventually("it leads at once where the topic says so", || {
        (leaders(&cluster, "by-setting") == [second]).then_some(())
    });
    assert_eq!(leaders(&cluster, "t"), [-1]);
    assert_eq!(elect(asked, PREFERRED, Some(("t", &[0]))), [(0, 80)]);
    assert_eq!(elect(asked, UNCLEAN, Some(("t", &[0]))), [(0, NONE)]);
    eventually("the one that is behind leads", || (leaders(&cluster, "t") == [second]).then_some(()));
    assert_eq!(elect(asked, UNCLEAN, Some(("t", &[0]))), [(0, ELECTION_NOT_NEEDED)]);
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3]);
    await_all_in_sync(&cluster, "t");
    assert_eq!(leaders(&cluster, "t"), [second]);
    let first = &cluster.nodes[first as usize - 1];
    assert_eq!(metric(first, "kuring_replica_truncations_total"), 1);
    assert_eq!(metric(first, "kuring_replica_truncations_below_high_watermark_total"), 1);
}

#[test]
fn a_broker_that_is_taken_out_is_forgotten_and_may_come_back() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    let (controller, other, gone) = roles(&cluster);
    create(&cluster, "t", &[&[gone, controller]]);
    let unregister = |cluster: &Cluster| {
        let request = UnregisterBrokerRequest::default().with_broker_id(gone.into());
        ask(cluster, "somebody takes it out", |raw| raw.call(0, &request).error_code)
    };
    kill(&mut cluster, gone);
    await_without(&cluster, gone);
    assert_eq!(unregister(&cluster), NONE);
    assert_eq!(unregister(&cluster), BROKER_ID_NOT_REGISTERED);
    assert_eq!(leaders(&cluster, "t"), [controller]);
    // Nobody is given something to a broker that is not there.
    assert_eq!(reassign(&cluster, "t", Some(&[gone, other])), 39, "INVALID_REPLICA_ASSIGNMENT");
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3]);
    await_all_in_sync(&cluster, "t");
    // One that lives is told with its next heartbeat, and registers anew.
    let before = commands(&cluster, "register_broker");
    assert_eq!(unregister(&cluster), NONE);
    eventually("it registers anew", || (commands(&cluster, "register_broker") > before).then_some(()));
    cluster.await_brokers(&[1, 2, 3]);
    await_all_in_sync(&cluster, "t");
}

#[test]
fn what_is_lost_with_a_log_directory_is_led_by_others_and_the_rest_stays() {
    if Broker::is_kafka() {
        return;
    }
    let settings = [
        ("log.dirs", "~/data,~/second"),
        ("kuring.reserve.bytes", "0"),
        ("replica.high.watermark.checkpoint.interval.ms", "500"),
    ];
    let cluster = Cluster::start_with(&settings);
    cluster.await_brokers(&[1, 2, 3]);
    let (controller, victim, other) = roles(&cluster);
    let replicas = [victim, other, controller];
    create(&cluster, "t", &[&replicas, &replicas, &replicas, &replicas, &replicas, &replicas]);
    await_all_in_sync(&cluster, "t");
    eventually("the controller was told where replicas are", || {
        (commands(&cluster, "assign_directories") > 0).then_some(())
    });
    let node = &cluster.nodes[victim as usize - 1];
    let second = node.home().join("second");
    let lost: BTreeSet<usize> = (0..6).filter(|n| second.join(format!("t-{n}")).exists()).collect();
    assert!(!lost.is_empty() && lost.len() < 6, "both directories are used: {lost:?}");
    // Nothing can be made in it any more.
    std::fs::rename(&second, node.home().join("away")).expect("it is ours");
    std::fs::write(&second, "not a directory").expect("it is ours");
    create(&cluster, "u", &[&[victim], &[victim], &[victim], &[victim]]);
    eventually("others lead what is lost", || {
        let found = leaders(&cluster, "t");
        lost.iter().all(|partition| found[*partition] == other).then_some(())
    });
    for (partition, found) in described(&cluster, "t").iter().enumerate() {
        if lost.contains(&partition) {
            assert!(!set(&found.isr_nodes).contains(&victim), "{found:?}");
        } else {
            assert_eq!(found.leader_id.0, victim, "{found:?}");
        }
    }
    assert_eq!(commands(&cluster, "directory_failed"), 1);
}

/// Aims that change before they are reached, come back to where the partition was a moment ago, and are given up; the
/// controller is killed in between.
#[test]
fn a_partition_whose_aim_changes_all_the_time_loses_nothing() {
    if Broker::is_kafka() {
        return;
    }
    const SEED: u64 = 12;
    let mut cluster = Cluster::start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "t", &[&[1, 2]]);
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    client.await_partitions("t", 1);
    let producer = client.producer(&[("enable.idempotence", "true"), ("message.timeout.ms", "120000")]);
    let stop = AtomicBool::new(false);
    let mut random = Random::seeded(SEED);
    let aims: [&[i32]; 8] = [&[1, 2], &[2, 1], &[2, 3], &[3, 2], &[1, 3], &[3, 1], &[1, 2, 3], &[3, 1, 2]];
    let values = std::thread::scope(|scope| {
        let sending = scope.spawn(|| produce_until(&client, &producer, "t", &stop));
        for round in 0..40 {
            match random.next_u64() % 9 {
                8 => {
                    let code = reassign(&cluster, "t", None);
                    assert!([NONE, NO_REASSIGNMENT_IN_PROGRESS].contains(&code), "{code}");
                }
                aim => assert_eq!(reassign(&cluster, "t", Some(aims[aim as usize])), NONE),
            }
            std::thread::sleep(Duration::from_millis(random.next_u64() % 60));
            if round == 20 {
                let (controller, _, _) = roles(&cluster);
                kill(&mut cluster, controller);
                await_without(&cluster, controller);
                cluster.start_stopped();
                cluster.await_brokers(&[1, 2, 3]);
            }
        }
        assert_eq!(reassign(&cluster, "t", Some(&[3, 1])), NONE);
        await_replicas(&cluster, "t", &[3, 1]);
        stop.store(true, Ordering::Relaxed);
        sending.join().expect("all was acknowledged")
    });
    println!("{} records acknowledged", values.len());
    await_none_under_way(&cluster);
    await_logs(&cluster, "t", &[3, 1]);
    check(&cluster, "t", &values);
}

/// A log that is about to be deleted counts for nothing, even if its broker is wanted again before it is gone: here its
/// deletion waits for those of a large topic.
#[test]
fn a_replica_that_is_wanted_again_is_in_sync_when_it_has_everything_anew() {
    if Broker::is_kafka() {
        return;
    }
    const MANY: usize = 600;
    let cluster = Cluster::start();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "large", &[&[3_i32][..]; MANY]);
    create(&cluster, "t", &[&[1, 2, 3]]);
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    client.await_partitions("t", 1);
    let records: Vec<Send> = (0..2000).map(|_| Send::value(vec![b'x'; 1000]).to(0)).collect();
    client.send(&client.producer(&[("acks", "all")]), "t", &records);
    let log = |id: usize| log_in(&cluster.nodes[id - 1].data().join("t-0")).unwrap_or_default();
    eventually("all have all", || (log(1) == log(3)).then_some(()));
    let whole = log(1).len();
    let home = cluster.nodes[2].data().join("t-0");
    let directory = || std::fs::metadata(&home).ok().map(|metadata| metadata.ino());
    let old = directory();
    assert!(whole > 2_000_000);
    // Node 1 is asked for all of it, and waits for no deletion.
    let state = DeleteTopicState::default().with_name(Some(name("large")));
    let request = DeleteTopicsRequest::default().with_topics(vec![state]).with_timeout_ms(30_000);
    assert_eq!(Raw::connect(&cluster.nodes[0]).call(6, &request).responses[0].error_code, NONE);
    assert_eq!(reassign(&cluster, "t", Some(&[1, 2])), NONE);
    // The deletion has been begun, and waits.
    let mut raw = Raw::connect(&cluster.nodes[2]);
    eventually("node 3 knows", || {
        let found = partitions(&mut raw, "t").ok()?;
        (ids(&found[0].replica_nodes) == [1, 2]).then_some(())
    });
    assert_eq!(reassign(&cluster, "t", Some(&[1, 2, 3])), NONE);
    println!("the old one is there yet: {}", directory() == old);
    let begun = Instant::now();
    let mut is_in_sync = false;
    // What it had is put aside, whenever the deletion's turn comes.
    while !is_in_sync || directory() == old {
        is_in_sync = set(&described(&cluster, "t")[0].isr_nodes).contains(&3);
        let found = log(3).len();
        assert!(!is_in_sync || found == whole, "in sync with {found} of {whole} bytes");
        assert!(begun.elapsed() < PATIENCE, "it does not come to be in sync");
        std::thread::sleep(Duration::from_millis(5));
    }
    await_none_under_way(&cluster);
}
